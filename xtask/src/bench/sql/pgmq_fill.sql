SELECT pgmq.drop_queue(:'queue') FROM pgmq.list_queues() WHERE queue_name = :'queue';
SELECT pgmq.create(:'queue');
SELECT count(*) FROM pgmq.send_batch(:'queue', ARRAY(SELECT '{}'::jsonb FROM generate_series(1, :rows)));
VACUUM ANALYZE pgmq.:table;
