SELECT msg_id FROM pgmq.read('bench_delete', 300, 1)
\gset
SELECT pgmq.delete('bench_delete', :msg_id::bigint);
