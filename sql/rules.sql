-- Rules that more than one call needs, each in one place.

-- Why a run may not do anything any more; NULL if it may. Nothing is written into a run when its right ends, so
-- that those calls take constant time; the next claim that needs its permit or its window writes it down.
CREATE VIEW backfill.run_void_data AS
SELECT r.*, COALESCE(h.expires_at, r.expires_at) AS lease_until, h.progress, h.beat_at, e.is_other AS of_other_server,
       CASE
           WHEN r.plan_id > 0 AND NOT EXISTS (
               SELECT FROM backfill.plan_data pl WHERE pl.plan_id = r.plan_id AND pl.state = 'approved')
               THEN pg_catalog.format('plan %s was cancelled', r.plan_id)
           WHEN EXISTS (
               SELECT FROM backfill.mark_data m
               WHERE m.pipeline_id = r.pipeline_id AND m.window_start = r.window_start AND m.mark = 'skipped')
               THEN 'the window was skipped'
           WHEN EXISTS (
               SELECT FROM backfill.pipeline_data p WHERE p.pipeline_id = r.pipeline_id AND p.dropped_at IS NOT NULL)
               THEN 'the pipeline was dropped'
           WHEN e.is_other
               THEN 'the server was restored, promoted or copied since the lease was given'
       END AS void_reason
FROM backfill.run_data r
LEFT JOIN backfill.heartbeat_data h ON h.token = r.token AND r.ended_at IS NULL
CROSS JOIN LATERAL (
    -- The database's own number tells a restored ledger before the first claim starts an epoch of its own; token
    -- calls also compare the server (epoch.rs).
    SELECT r.token < COALESCE((
               SELECT CASE WHEN n.database_oid = (SELECT d.oid::pg_catalog.int8 FROM pg_catalog.pg_database d
                                                  WHERE d.datname = pg_catalog.current_database())
                           THEN n.first_token ELSE 9223372036854775807 END
               FROM backfill.epoch_data n ORDER BY n.epoch DESC LIMIT 1), 0) AS is_other
) e;
COMMENT ON VIEW backfill.run_void_data IS 'Runs, until when their leases hold, and why an open one may not do anything any more.';

-- One owner per window: a plan owns its windows from approval until each has ended in it (done, failed for
-- good, refused, skipped) or the plan is cancelled. The one place of this rule.
CREATE VIEW backfill.owned_data AS
SELECT w.pipeline_id, w.window_start, w.window_end, w.plan_id, w.seq, r.token IS NOT NULL AS started
FROM backfill.plan_data pl
JOIN backfill.plan_window_data w ON w.plan_id = pl.plan_id
LEFT JOIN backfill.plan_cursor_data c ON c.plan_id = pl.plan_id
LEFT JOIN LATERAL (
    SELECT n.token, n.ended_at FROM backfill.run_data n
    WHERE n.pipeline_id = w.pipeline_id AND n.window_start = w.window_start AND n.plan_id = w.plan_id
    ORDER BY n.turn DESC LIMIT 1
) r ON true
WHERE pl.state = 'approved'
  AND c.drained_at IS NULL
  AND (r.ended_at IS NULL OR EXISTS (
        SELECT FROM backfill.requeue_data q
        WHERE q.pipeline_id = w.pipeline_id AND q.plan_id = w.plan_id AND q.window_start = w.window_start))
  AND NOT EXISTS (
        SELECT FROM backfill.mark_data m
        WHERE m.pipeline_id = w.pipeline_id AND m.window_start = w.window_start AND m.mark = 'skipped');
COMMENT ON VIEW backfill.owned_data IS 'Windows that an approved plan still owns.';
