-- Rules that more than one call needs, each in one place.

-- Why a run may not do anything any more; NULL if it may. Nothing is written into a run when its right ends, so
-- that those calls take constant time; the next claim that needs its permit or its window writes it down.
CREATE VIEW backfill.run_void_data AS
SELECT r.*, COALESCE(h.expires_at, r.expires_at) AS lease_until, h.progress, h.beat_at, 
       -- The worker is not to blame: the attempt does not count, and the window comes back in its place.
       e.is_other OR COALESCE(o.takes_away, false) AS void_without_fault,
       CASE
           WHEN r.plan_id > 0 AND NOT EXISTS (
               SELECT FROM backfill.plan_data pl WHERE pl.plan_id = r.plan_id AND pl.state IN ('approved', 'paused'))
               THEN pg_catalog.format('plan %s was cancelled', r.plan_id)
           WHEN EXISTS (
               SELECT FROM backfill.mark_data m
               WHERE m.pipeline_id = r.pipeline_id AND m.window_start = r.window_start AND m.mark = 'skipped')
               THEN 'the window was skipped'
           WHEN EXISTS (
               SELECT FROM backfill.pipeline_data p WHERE p.pipeline_id = r.pipeline_id AND p.dropped_at IS NOT NULL)
               THEN 'the pipeline was dropped'
           WHEN o.takes_away
               THEN pg_catalog.format('pool "%s" was paused', o.name)
           WHEN e.is_other
               THEN 'the server was restored, promoted or copied since the lease was given'
       END AS void_reason
FROM backfill.run_data r
LEFT JOIN backfill.heartbeat_data h ON h.token = r.token AND r.ended_at IS NULL
LEFT JOIN LATERAL (
    SELECT d.name, d.revoking OR r.token <= d.revoked_to AS takes_away FROM backfill.pool_data d WHERE d.pool_id = r.pool_id
) o ON true
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
WHERE pl.state IN ('approved', 'paused')
  AND c.drained IS DISTINCT FROM pl.generation
  AND (r.ended_at IS NULL OR EXISTS (
        SELECT FROM backfill.requeue_data q
        WHERE q.pipeline_id = w.pipeline_id AND q.plan_id = w.plan_id AND q.window_start = w.window_start))
  AND NOT EXISTS (
        SELECT FROM backfill.mark_data m
        WHERE m.pipeline_id = w.pipeline_id AND m.window_start = w.window_start AND m.mark = 'skipped');
COMMENT ON VIEW backfill.owned_data IS 'Windows that an approved plan still owns.';

-- Every open run, found by its pool slot: the newest run of a slot is the only one of it that can be open. Costs as
-- much as there are slots, however long the log is.
CREATE VIEW backfill.open_run_data AS
SELECT r.pool_id, r.pool_slot, r.token, r.pipeline_id, r.plan_id
FROM backfill.pool_data o
CROSS JOIN LATERAL pg_catalog.generate_series(1, COALESCE((
    SELECT n.pool_slot FROM backfill.run_data n WHERE n.pool_id = o.pool_id
    ORDER BY n.pool_id DESC, n.pool_slot DESC LIMIT 1), 0)) s (slot)
CROSS JOIN LATERAL (
    SELECT n.* FROM backfill.run_data n WHERE n.pool_id = o.pool_id AND n.pool_slot = s.slot
    ORDER BY n.pool_gen DESC LIMIT 1
) r
WHERE r.ended_at IS NULL;
COMMENT ON VIEW backfill.open_run_data IS 'The open runs, void ones included.';

-- Windows of an active plan that were not handed out yet, or will be again: the places of its list behind the highest
-- that was reached, those that the queue names, and the holes. In time that does not depend on the size of the plan.
CREATE VIEW backfill.plan_waiting_data AS
SELECT pl.plan_id,
       CASE WHEN EXISTS (
                SELECT FROM backfill.plan_cursor_data c WHERE c.plan_id = pl.plan_id AND c.swept = pl.generation) THEN 0
            ELSE pl.windows - COALESCE((
                SELECT r.seq FROM backfill.run_data r WHERE r.plan_id = pl.plan_id AND r.in_order
                ORDER BY r.seq DESC LIMIT 1), 0)
       END
       + (SELECT pg_catalog.count(*) FROM backfill.requeue_data q
          WHERE q.pipeline_id = pl.pipeline_id AND q.plan_id = pl.plan_id)
       + (SELECT pg_catalog.count(*) FROM backfill.plan_hole_data o
          JOIN backfill.plan_window_data w ON w.plan_id = o.plan_id AND w.seq = o.seq
          WHERE o.plan_id = pl.plan_id
            AND NOT EXISTS (
                SELECT FROM backfill.run_data own
                WHERE own.pipeline_id = w.pipeline_id AND own.window_start = w.window_start AND own.plan_id = pl.plan_id))
       AS windows
FROM backfill.plan_data pl
WHERE pl.state IN ('approved', 'paused');
COMMENT ON VIEW backfill.plan_waiting_data IS 'How many windows each active plan has still to hand out.';

-- The newest run of each window in a plan; a run that the queue names will be followed by another.
CREATE VIEW backfill.plan_run_data AS
SELECT DISTINCT ON (r.plan_id, r.seq) r.*,
       EXISTS (SELECT FROM backfill.requeue_data q
               WHERE q.pipeline_id = r.pipeline_id AND q.plan_id = r.plan_id AND q.window_start = r.window_start) AS requeued,
       EXISTS (SELECT FROM backfill.mark_data m
               WHERE m.pipeline_id = r.pipeline_id AND m.window_start = r.window_start AND m.mark = 'skipped') AS skipped
FROM backfill.run_data r
WHERE r.plan_id > 0
ORDER BY r.plan_id, r.seq, r.turn DESC;
COMMENT ON VIEW backfill.plan_run_data IS 'How the windows of each plan stand in it, as far as they have started.';

-- How a plan stands: the one place of what is shown as its state.
CREATE VIEW backfill.plan_count_data AS
SELECT pl.plan_id, n.done, n.failed, n.running, n.started, skipped.windows AS skipped,
       n.ended + skipped.windows >= pl.windows AS is_over,
       pl.canary IS NOT NULL AND n.canary_ended >= pl.canary AS is_canary_over,
       stop.token AS stopped_by,
       CASE WHEN pl.state NOT IN ('approved', 'paused') THEN pl.state
            WHEN n.ended + skipped.windows >= pl.windows THEN CASE WHEN n.failed > 0 THEN 'partial' ELSE 'completed' END
            WHEN pl.state = 'paused' OR stop.token IS NOT NULL OR n.canary_ended >= pl.canary THEN 'paused'
            WHEN n.started > 0 THEN 'running'
            ELSE 'approved' END AS state
FROM backfill.plan_data pl
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) FILTER (WHERE r.outcome = 'done' AND NOT r.skipped) AS done,
           pg_catalog.count(*) FILTER (WHERE r.outcome IN ('failed', 'expired', 'refused') AND NOT r.requeued AND NOT r.skipped) AS failed,
           pg_catalog.count(*) FILTER (WHERE r.outcome IS NULL AND NOT r.skipped AND pl.state IN ('approved', 'paused')) AS running,
           pg_catalog.count(*) AS started,
           pg_catalog.count(*) FILTER (WHERE r.outcome IS NOT NULL AND NOT r.requeued AND NOT r.skipped) AS ended,
           pg_catalog.count(*) FILTER (WHERE (r.outcome IS NOT NULL AND NOT r.requeued OR r.skipped) AND r.seq <= pl.canary) AS canary_ended
    FROM backfill.plan_run_data r
    WHERE r.pipeline_id = pl.pipeline_id AND r.plan_id = pl.plan_id
) n
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS windows FROM backfill.plan_window_data w
    JOIN backfill.mark_data m ON m.pipeline_id = w.pipeline_id AND m.window_start = w.window_start AND m.mark = 'skipped'
    WHERE w.plan_id = pl.plan_id
) skipped
LEFT JOIN LATERAL (
    SELECT t.token FROM backfill.plan_stop_data t WHERE t.plan_id = pl.plan_id ORDER BY t.token LIMIT 1
) stop ON true;
COMMENT ON VIEW backfill.plan_count_data IS 'The counts of each plan, and the state that it shows.';
