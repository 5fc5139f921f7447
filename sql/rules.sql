-- Rules that more than one call needs, each in one place.

-- Versions that were said to be compatible, directly or over others, are one class, named by the smallest of them. Every
-- other version is a class by itself, and so are all slices without one: COALESCE(class, code_version, 'unknown').
-- Walked from each version by itself, so that the question about one costs no more than its class has pairs.
CREATE VIEW backfill.version_alike_data AS
SELECT v.pipeline_id, v.code_version, m.code_version AS other
FROM (
    SELECT DISTINCT e.pipeline_id, e.code_version
    FROM (
        SELECT d.pipeline_id, d.old AS code_version FROM backfill.version_compatible_data d
        UNION ALL
        SELECT d.pipeline_id, d.new FROM backfill.version_compatible_data d
    ) e
) v
CROSS JOIN LATERAL (
    WITH RECURSIVE member AS (
        SELECT v.code_version
        UNION
        SELECT n.code_version FROM member r
        CROSS JOIN LATERAL (
            SELECT d.new AS code_version FROM backfill.version_compatible_data d WHERE d.pipeline_id = v.pipeline_id AND d.old = r.code_version
            UNION ALL
            SELECT d.old FROM backfill.version_compatible_data d WHERE d.pipeline_id = v.pipeline_id AND d.new = r.code_version
        ) n
    )
    SELECT member.code_version FROM member
) m;
COMMENT ON VIEW backfill.version_alike_data IS 'For each code version that was said to be compatible with another all that are of its class, itself among them. The one place of this rule.';

CREATE VIEW backfill.version_class_data AS
SELECT a.pipeline_id, a.code_version, pg_catalog.min(a.other COLLATE "C") AS class
FROM backfill.version_alike_data a GROUP BY a.pipeline_id, a.code_version;
COMMENT ON VIEW backfill.version_class_data IS 'The class of each code version that was said to be compatible with another.';

-- Decisions that close a window. While one is in force nobody is handed the window. What a lock closes stays its plan's;
-- a skip takes the window from the plan that owned it (plan_id) for good. Leases up to last_token are void, so that one
-- that a decision ended does not come back when the decision is lifted.
CREATE VIEW backfill.closing_data AS
SELECT m.pipeline_id, m.window_start, m.mark, m.lifted_at IS NULL AS in_force, m.plan_id,
       COALESCE(m.lifted_token, 9223372036854775807) AS last_token
FROM backfill.mark_data m
WHERE m.mark IN ('locked', 'skipped');
COMMENT ON VIEW backfill.closing_data IS 'Locks and skips of windows, also those that were lifted.';

-- Why a run may not do anything any more; NULL if it may. Nothing is written into a run when its right ends, so
-- that those calls take constant time; the next claim that needs its permit or its window writes it down.
CREATE VIEW backfill.run_void_data AS
SELECT r.*, COALESCE(h.expires_at, r.expires_at) AS lease_until, h.progress, h.beat_at,
       CASE
           WHEN r.plan_id > 0 AND NOT EXISTS (
               SELECT FROM backfill.plan_data pl WHERE pl.plan_id = r.plan_id AND pl.state IN ('approved', 'paused'))
               THEN pg_catalog.format('plan %s was cancelled', r.plan_id)
           WHEN EXISTS (
               SELECT FROM backfill.closing_data c
               WHERE c.pipeline_id = r.pipeline_id AND c.window_start = r.window_start AND c.last_token >= r.token)
               THEN (SELECT pg_catalog.format('the window was %s', pg_catalog.min(c.mark)) FROM backfill.closing_data c
                     WHERE c.pipeline_id = r.pipeline_id AND c.window_start = r.window_start AND c.last_token >= r.token)
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
-- good, refused, skipped) or the plan is cancelled; what is staged until it is published. The one place of this rule.
CREATE VIEW backfill.owned_data AS
SELECT w.pipeline_id, w.window_start, w.window_end, w.plan_id, w.seq, r.token IS NOT NULL AS started
FROM backfill.plan_data pl
JOIN backfill.plan_window_data w ON w.plan_id = pl.plan_id
LEFT JOIN backfill.plan_cursor_data c ON c.plan_id = pl.plan_id
LEFT JOIN LATERAL (
    SELECT n.token, n.ended_at, n.together AND n.outcome = 'done' AND n.published_at IS NULL AS is_staged
    FROM backfill.run_data n
    WHERE n.pipeline_id = w.pipeline_id AND n.window_start = w.window_start AND n.plan_id = w.plan_id
    ORDER BY n.turn DESC LIMIT 1
) r ON true
WHERE pl.state IN ('approved', 'paused')
  AND (c.drained IS DISTINCT FROM pl.generation OR pl.publish = 'together')
  AND (r.ended_at IS NULL OR r.is_staged OR EXISTS (
        SELECT FROM backfill.requeue_data q
        WHERE q.pipeline_id = w.pipeline_id AND q.plan_id = w.plan_id AND q.window_start = w.window_start))
  -- One look at the index a window: while statistics do not know of skips, a join of all windows and all skips seems
  -- cheap to the planner.
  AND (SELECT true FROM backfill.closing_data s
       WHERE s.pipeline_id = w.pipeline_id AND s.window_start = w.window_start AND s.mark = 'skipped'
         AND (s.in_force OR s.plan_id = w.plan_id) LIMIT 1) IS NULL;
COMMENT ON VIEW backfill.owned_data IS 'Windows that an approved plan still owns, staged ones included.';

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
-- that was reached, but for skipped ones, those that the queue names, and the holes that are known. In time that does not
-- depend on the size of the plan: places that were passed over count once a claim has been at the end of the list.
CREATE VIEW backfill.plan_waiting_data AS
SELECT pl.plan_id,
       CASE WHEN EXISTS (
                SELECT FROM backfill.plan_cursor_data c WHERE c.plan_id = pl.plan_id AND c.swept = pl.generation) THEN 0
            ELSE pl.windows - reached.seq - (
                SELECT pg_catalog.count(DISTINCT w.seq) FROM backfill.closing_data s
                JOIN backfill.plan_window_data w ON w.pipeline_id = s.pipeline_id AND w.window_start = s.window_start
                WHERE s.pipeline_id = pl.pipeline_id AND s.mark = 'skipped' AND (s.in_force OR s.plan_id = pl.plan_id)
                  AND w.plan_id = pl.plan_id AND w.seq > reached.seq)
       END
       + (SELECT pg_catalog.count(*) FROM backfill.requeue_data q
          JOIN backfill.owned_data o ON o.pipeline_id = q.pipeline_id AND o.window_start = q.window_start
          WHERE q.pipeline_id = pl.pipeline_id AND q.plan_id = pl.plan_id AND o.plan_id = pl.plan_id)
       + (SELECT pg_catalog.count(*) FROM backfill.plan_hole_data h
          JOIN backfill.plan_window_data w ON w.plan_id = h.plan_id AND w.seq = h.seq
          JOIN backfill.owned_data o ON o.pipeline_id = w.pipeline_id AND o.window_start = w.window_start
          WHERE h.plan_id = pl.plan_id AND o.plan_id = pl.plan_id AND NOT o.started)
       AS windows
FROM backfill.plan_data pl
CROSS JOIN LATERAL (
    SELECT COALESCE((SELECT r.seq FROM backfill.run_data r WHERE r.plan_id = pl.plan_id AND r.in_order
                     ORDER BY r.seq DESC LIMIT 1), 0) AS seq
) reached
WHERE pl.state IN ('approved', 'paused');
COMMENT ON VIEW backfill.plan_waiting_data IS 'How many windows each active plan has still to hand out.';

-- The newest run of each window in a plan; a run that the queue names will be followed by another.
CREATE VIEW backfill.plan_run_data AS
SELECT DISTINCT ON (r.plan_id, r.seq) r.*,
       EXISTS (SELECT FROM backfill.requeue_data q
               WHERE q.pipeline_id = r.pipeline_id AND q.plan_id = r.plan_id AND q.window_start = r.window_start) AS requeued,
       EXISTS (SELECT FROM backfill.closing_data s
               WHERE s.pipeline_id = r.pipeline_id AND s.window_start = r.window_start AND s.mark = 'skipped'
                 AND (s.in_force OR s.plan_id = r.plan_id)) AS skipped
FROM backfill.run_data r
WHERE r.plan_id > 0
ORDER BY r.plan_id, r.seq, r.turn DESC;
COMMENT ON VIEW backfill.plan_run_data IS 'How the windows of each plan stand in it, as far as they have started.';

-- How a plan stands: the one place of what is shown as its state.
CREATE VIEW backfill.plan_count_data AS
SELECT pl.plan_id, n.done, n.staged, n.failed, n.running, n.started, n.ended, skipped.windows AS skipped,
       n.ended + skipped.windows >= pl.windows AS is_over,
       pl.canary IS NOT NULL AND n.canary_ended + skipped.canary >= pl.canary AS is_canary_over,
       CASE WHEN pl.state = 'paused' THEN pl.paused_by
            WHEN pl.state <> 'approved' THEN NULL
            WHEN stop.token IS NOT NULL THEN 'on_failure'
            WHEN n.canary_ended + skipped.canary >= pl.canary THEN 'canary' END AS paused_by,
       CASE WHEN pl.state = 'paused' THEN pl.pause_reason
            WHEN stop.token IS NOT NULL THEN pg_catalog.format('token %s failed for good', stop.token)
            ELSE pg_catalog.format('the first %s windows have run', pl.canary) END AS pause_reason,
       CASE WHEN pl.state NOT IN ('approved', 'paused') THEN pl.state
            WHEN pl.state = 'paused' AND pl.publish = 'together' THEN 'paused'
            WHEN n.ended + skipped.windows >= pl.windows THEN
                CASE WHEN n.failed > 0 THEN 'partial' WHEN n.staged > 0 THEN 'staged' ELSE 'completed' END
            WHEN pl.state = 'paused' OR stop.token IS NOT NULL OR n.canary_ended + skipped.canary >= pl.canary THEN 'paused'
            WHEN n.started > 0 THEN 'running'
            ELSE 'approved' END AS state
FROM backfill.plan_data pl
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) FILTER (WHERE r.outcome = 'done') AS done,
           pg_catalog.count(*) FILTER (WHERE r.together AND r.outcome = 'done' AND r.published_at IS NULL AND NOT r.skipped) AS staged,
           pg_catalog.count(*) FILTER (WHERE r.outcome IN ('failed', 'expired', 'refused') AND NOT r.requeued AND NOT r.skipped) AS failed,
           -- There are no more open runs than the plan has slots.
           pg_catalog.count(*) FILTER (WHERE CASE WHEN r.outcome IS NULL THEN (
               SELECT v.void_reason IS NULL FROM backfill.run_void_data v WHERE v.token = r.token) ELSE false END) AS running,
           pg_catalog.count(*) AS started,
           pg_catalog.count(*) FILTER (WHERE r.has_ended) AS ended,
           pg_catalog.count(*) FILTER (WHERE r.has_ended AND r.seq <= pl.canary) AS canary_ended
    FROM (
        -- What was done before it was skipped stays done.
        SELECT c.*, COALESCE(c.outcome = 'done' OR c.outcome IS NOT NULL AND NOT c.requeued AND NOT c.skipped, false) AS has_ended
        FROM backfill.plan_run_data c WHERE c.pipeline_id = pl.pipeline_id AND c.plan_id = pl.plan_id
    ) r
) n
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS windows, pg_catalog.count(*) FILTER (WHERE w.seq <= pl.canary) AS canary
    FROM backfill.plan_window_data w
    WHERE w.plan_id = pl.plan_id
      AND EXISTS (SELECT FROM backfill.closing_data s
                  WHERE s.pipeline_id = w.pipeline_id AND s.window_start = w.window_start AND s.mark = 'skipped'
                    AND (s.in_force OR s.plan_id = w.plan_id))
      AND NOT EXISTS (SELECT FROM backfill.run_data d
                      WHERE d.pipeline_id = w.pipeline_id AND d.window_start = w.window_start AND d.plan_id = w.plan_id
                        AND d.outcome = 'done')
) skipped
LEFT JOIN LATERAL (
    SELECT t.token FROM backfill.plan_stop_data t WHERE t.plan_id = pl.plan_id ORDER BY t.token LIMIT 1
) stop ON true;
COMMENT ON VIEW backfill.plan_count_data IS 'The counts of each plan, and the state that it shows.';

-- What keeps every window of a source (plan_id 0 is the live right) from being handed out: the first that holds of a
-- pause, a pool without a free slot, and a plan or pipeline that has as many leases as it may.
CREATE VIEW backfill.obstacle_data AS
WITH held AS (
    SELECT o.pool_id, o.pipeline_id, o.plan_id
    FROM backfill.open_run_data o
    JOIN backfill.run_void_data r ON r.token = o.token
    WHERE r.void_reason IS NULL AND r.lease_until >= pg_catalog.clock_timestamp()
), source AS (
    SELECT p.pipeline_id, 0::bigint AS plan_id, p.pool_id, p.max_active AS at_once, p.paused_by, p.pause_reason,
           pg_catalog.format('pipeline "%s"', p.name) AS name, p.depends_on_past, false AS in_order
    FROM backfill.pipeline_data p
    UNION ALL
    SELECT pl.pipeline_id, pl.plan_id, pl.pool_id, pl.concurrency, n.paused_by, n.pause_reason,
           pg_catalog.format('plan %s', pl.plan_id), p.depends_on_past, pl.ordering = 'sequential'
    FROM backfill.plan_data pl
    JOIN backfill.plan_count_data n ON n.plan_id = pl.plan_id
    JOIN backfill.pipeline_data p ON p.pipeline_id = pl.pipeline_id
    WHERE pl.state IN ('approved', 'paused')
)
SELECT s.pipeline_id, s.plan_id, x.blocked_by, x.reason
FROM source s
JOIN backfill.pool_data o ON o.pool_id = s.pool_id
CROSS JOIN LATERAL (SELECT pg_catalog.format('pool "%s"', o.name) AS pool) named
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) FILTER (WHERE h.pool_id = s.pool_id) AS in_pool,
           pg_catalog.count(*) FILTER (WHERE h.pipeline_id = s.pipeline_id AND h.plan_id = s.plan_id) AS in_source,
           pg_catalog.count(*) FILTER (WHERE h.pipeline_id = s.pipeline_id) AS in_pipeline
    FROM held h
) n
CROSS JOIN LATERAL (
    SELECT c.blocked_by, c.reason
    FROM (VALUES
        (1, s.paused_by IS NOT NULL, s.name,
         pg_catalog.format('%s is paused by %s: %s', s.name, s.paused_by, s.pause_reason)),
        (2, o.paused_at IS NOT NULL, named.pool,
         pg_catalog.format('%s is paused by %s: %s', named.pool, o.paused_by, o.pause_reason)),
        (3, n.in_pool >= o.slots, named.pool,
         pg_catalog.format('%s is full: %s of %s slots are held', named.pool, n.in_pool, o.slots)),
        (4, n.in_source >= s.at_once, s.name,
         pg_catalog.format('%s is full: it holds %s of %s leases', s.name, n.in_source, s.at_once)),
        (5, s.depends_on_past AND n.in_pipeline > 0, s.name,
         'its windows run one at a time, and one is leased'),
        (6, s.in_order AND EXISTS (
                SELECT FROM backfill.requeue_data q
                WHERE q.pipeline_id = s.pipeline_id AND q.plan_id = s.plan_id AND q.due_at > pg_catalog.clock_timestamp()),
         s.name, 'its windows run in order, and one of them waits to be tried again')
    ) c (rank, holds, blocked_by, reason)
    WHERE c.holds ORDER BY c.rank LIMIT 1
) x;
COMMENT ON VIEW backfill.obstacle_data IS 'Live rights and active plans that hand out nothing now, and why.';
