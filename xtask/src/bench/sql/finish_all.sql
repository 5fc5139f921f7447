-- Leaves the last 300 windows of the plan open, as if all others had been claimed in order and finished.
INSERT INTO backfill.run_data
    (token, pipeline_id, plan_id, window_start, window_end, turn, attempt, seq, in_order, run_kind, pool_id, pool_slot,
     pool_gen, limit_slot, limit_gen, worker, role, as_of, started_at, expires_at, published_at, ended_at, outcome)
SELECT nextval('backfill.token_seq'), w.pipeline_id, w.plan_id, w.window_start, w.window_end, 1, 1, w.seq, true, 'backfill',
       l.pool_id, 1 + w.seq % l.concurrency, 1000000 + w.seq, 1 + w.seq % l.concurrency, 1000000 + w.seq, 'bench',
       current_user, now(), now(), now(), now(), now(), 'done'
FROM backfill.plan_window_data w
JOIN backfill.plan_data l USING (plan_id)
JOIN backfill.pipeline_data p ON p.pipeline_id = w.pipeline_id
WHERE p.name = :'pipeline' AND w.seq <= l.windows - 300
  AND NOT EXISTS (SELECT FROM backfill.run_data r WHERE r.pipeline_id = w.pipeline_id AND r.window_start = w.window_start);
VACUUM ANALYZE backfill.run_data;
CHECKPOINT;
