SELECT array_agg(msg_id) AS ids FROM pgmq.read('bench_delete', 300, 10)
\gset
SELECT count(*) FROM pgmq.delete('bench_delete', :ids::bigint[]);
