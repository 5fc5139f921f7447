SELECT msg_id FROM pgmq.read('bench_archive', 300, 1)
\gset
SELECT pgmq.archive('bench_archive', :msg_id::bigint);
