SELECT array_agg(msg_id) AS ids FROM pgmq.read('bench_archive', 300, 10)
\gset
SELECT count(*) FROM pgmq.archive('bench_archive', :ids::bigint[]);
