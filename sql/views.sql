-- What may be read. Every view runs with the rights of the ledger's owner and shows the rows of those pipelines
-- that the current user may read: security_barrier keeps a leaky function in a WHERE clause from seeing others.
CREATE VIEW backfill.readable_data AS
SELECT p.pipeline_id, p.name, p.owner
FROM backfill.pipeline_data p
WHERE EXISTS (SELECT FROM pg_catalog.pg_roles me WHERE me.rolname = CURRENT_USER AND me.rolsuper)
   OR EXISTS (
        SELECT FROM pg_catalog.pg_roles o
        WHERE o.rolname = p.owner AND pg_catalog.pg_has_role(CURRENT_USER, o.oid, 'USAGE'))
   OR EXISTS (
        SELECT FROM backfill.grant_data g
        JOIN pg_catalog.pg_roles r ON r.rolname = g.grantee
        WHERE g.pipeline_id = p.pipeline_id AND pg_catalog.pg_has_role(CURRENT_USER, r.oid, 'USAGE'));
COMMENT ON VIEW backfill.readable_data IS 'Pipelines that the current user may read. The one place of this rule in SQL.';

CREATE VIEW backfill.pipelines WITH (security_barrier) AS
SELECT p.name AS pipeline, p.owner, p.cadence, p.start_at, p.time_zone, p.target, p.slice_column, p.query,
       p.code_version, o.name AS pool, p.max_active, p.backlog, p.catchup, p.delay, p.lease_for, p.max_attempts,
       p.retry_delay, p.source_retention, p.expected_duration, p.cost_per_hour, p.max_shrink, p.description,
       p.active_since, p.paused_at, p.paused_by, p.pause_reason, p.created_at, p.created_by, p.changed_at, p.changed_by
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id
JOIN backfill.pool_data o ON o.pool_id = p.pool_id
WHERE p.dropped_at IS NULL;
COMMENT ON VIEW backfill.pipelines IS 'Pipelines with their settings.';

CREATE VIEW backfill.windows WITH (security_barrier) AS
SELECT p.name AS pipeline, w.*
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id AND p.dropped_at IS NULL
CROSS JOIN LATERAL backfill.windows_of(p.pipeline_id) w;
COMMENT ON VIEW backfill.windows IS 'Windows that have a run, are in an approved plan, or were decided about; pipeline_windows() shows all.';

-- An open run of a cancelled plan, a skipped window or a dropped pipeline is shown as what it is, revoked.
CREATE VIEW backfill.runs WITH (security_barrier) AS
SELECT r.token, v.name AS pipeline, backfill.window_key(p.cadence, p.start_local, p.start_at, p.time_zone, r.window_start) AS window_key,
       r.window_start, r.window_end, NULLIF(r.plan_id, 0) AS plan_id, r.attempt, r.run_kind, r.worker, r.role,
       r.code_version, r.as_of, r.started_at, r.ended_at AS finished_at,
       CASE WHEN r.ended_at IS NOT NULL THEN r.outcome WHEN r.void_reason IS NOT NULL THEN 'revoked' END AS outcome,
       r.rows, r.digest, CASE WHEN r.ended_at IS NOT NULL THEN r.error ELSE r.void_reason END AS error, r.sqlstate, r.allow_shrink, r.metrics
FROM backfill.run_void_data r
JOIN backfill.readable_data v ON v.pipeline_id = r.pipeline_id
JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id;
COMMENT ON VIEW backfill.runs IS 'Every attempt at a window; outcome is NULL while it is open.';

CREATE VIEW backfill.leases WITH (security_barrier) AS
SELECT r.token, v.name AS pipeline, backfill.window_key(p.cadence, p.start_local, p.start_at, p.time_zone, r.window_start) AS window_key,
       r.window_start, r.window_end, p.time_zone, r.run_kind, NULLIF(r.plan_id, 0) AS plan_id, r.attempt,
       r.code_version, COALESCE(pl.effects, true) AS effects, r.as_of, p.target, p.target AS write_to,
       'each'::text AS publish, ver.query, pl.params, p.lease_for, r.lease_until AS expires_at,
       r.worker, r.role, r.started_at, r.beat_at, r.progress
FROM backfill.run_void_data r
JOIN backfill.readable_data v ON v.pipeline_id = r.pipeline_id
JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
LEFT JOIN backfill.plan_data pl ON pl.plan_id = r.plan_id
LEFT JOIN backfill.version_data ver ON ver.pipeline_id = r.pipeline_id AND ver.code_version = r.code_version
WHERE r.ended_at IS NULL AND r.void_reason IS NULL;
COMMENT ON VIEW backfill.leases IS 'Open leases. One past expires_at may go on while nobody has taken it over.';

CREATE VIEW backfill.plans WITH (security_barrier) AS
SELECT pl.plan_id, v.name AS pipeline,
       CASE WHEN pl.state <> 'approved' THEN pl.state
            WHEN n.ended + skipped.windows >= pl.windows THEN CASE WHEN n.failed > 0 THEN 'partial' ELSE 'completed' END
            WHEN n.started > 0 THEN 'running'
            ELSE 'approved' END AS state,
       pl.windows, pl.range_start, pl.range_end, pl.reason, pl.ordering, pl.concurrency, o.name AS pool, pl.priority,
       pl.code_version, pl.effects, pl.params, pl.allow_shrink, pl.estimate,
       backfill.plan_actual(pl.plan_id, n.ended >= pl.windows AND skipped.windows = 0) AS actual,
       n.done, n.failed, n.running, skipped.windows AS skipped,
       CASE WHEN pl.state = 'approved' AND n.started > 0 AND n.ended + skipped.windows < pl.windows
            THEN backfill.plan_eta(pl.plan_id, pl.windows - n.ended - skipped.windows) END AS eta,
       pl.created_by, pl.created_at, pl.approved_by, pl.approved_at, pl.cancelled_by, pl.cancelled_at, pl.cancel_reason
FROM backfill.plan_data pl
JOIN backfill.readable_data v ON v.pipeline_id = pl.pipeline_id
JOIN backfill.pool_data o ON o.pool_id = pl.pool_id
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) FILTER (WHERE r.outcome = 'done' AND NOT r.skipped) AS done,
           pg_catalog.count(*) FILTER (WHERE r.outcome IN ('failed', 'expired', 'refused') AND NOT r.requeued AND NOT r.skipped) AS failed,
           pg_catalog.count(*) FILTER (WHERE r.outcome IS NULL AND NOT r.skipped AND pl.state = 'approved') AS running,
           pg_catalog.count(*) AS started,
           pg_catalog.count(*) FILTER (WHERE r.outcome IS NOT NULL AND NOT r.requeued AND NOT r.skipped) AS ended
    FROM (
        SELECT DISTINCT ON (r.seq) r.outcome,
               EXISTS (SELECT FROM backfill.requeue_data q
                       WHERE q.pipeline_id = r.pipeline_id AND q.plan_id = r.plan_id AND q.window_start = r.window_start) AS requeued,
               EXISTS (SELECT FROM backfill.mark_data m
                       WHERE m.pipeline_id = r.pipeline_id AND m.window_start = r.window_start AND m.mark = 'skipped') AS skipped
        FROM backfill.run_data r
        WHERE r.pipeline_id = pl.pipeline_id AND r.plan_id = pl.plan_id
        ORDER BY r.seq, r.turn DESC
    ) r
) n
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS windows FROM backfill.plan_window_data w
    JOIN backfill.mark_data m ON m.pipeline_id = w.pipeline_id AND m.window_start = w.window_start AND m.mark = 'skipped'
    WHERE w.plan_id = pl.plan_id
) skipped;
COMMENT ON VIEW backfill.plans IS 'Plans with their state and progress: draft, approved (nothing was claimed yet), running, completed, partial (some windows failed or were refused), cancelled.';

CREATE VIEW backfill.plan_declined WITH (security_barrier) AS
SELECT d.plan_id, v.name AS pipeline, d.range_start, d.range_end, d.windows, d.reason
FROM backfill.plan_declined_data d
JOIN backfill.plan_data pl ON pl.plan_id = d.plan_id
JOIN backfill.readable_data v ON v.pipeline_id = pl.pipeline_id;
COMMENT ON VIEW backfill.plan_declined IS 'Windows of a plan''s range that are not in it, as ranges, each with its reason.';

CREATE VIEW backfill.slice_history WITH (security_barrier) AS
SELECT v.name AS pipeline, backfill.window_key(p.cadence, p.start_local, p.start_at, p.time_zone, r.window_start) AS window_key,
       r.window_start, r.window_end, p.target, r.token, r.code_version, NULLIF(r.plan_id, 0) AS plan_id, r.worker,
       r.as_of, r.rows, r.digest, r.allow_shrink, r.ended_at AS published_at,
       pg_catalog.lead(r.ended_at) OVER (PARTITION BY r.pipeline_id, r.window_start ORDER BY r.turn) AS replaced_at
FROM backfill.run_data r
JOIN backfill.readable_data v ON v.pipeline_id = r.pipeline_id
JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
WHERE r.outcome = 'done';
COMMENT ON VIEW backfill.slice_history IS 'Every slice that was ever published; replaced_at is NULL for the one that the target holds now.';

CREATE VIEW backfill.slices WITH (security_barrier) AS
SELECT pipeline, window_key, window_start, window_end, target, token, code_version, plan_id, worker, as_of, rows,
       digest, allow_shrink, published_at
FROM backfill.slice_history WHERE replaced_at IS NULL;
COMMENT ON VIEW backfill.slices IS 'What each target holds for each window now: which token, code version, rows and digest.';

CREATE VIEW backfill.versions WITH (security_barrier) AS
SELECT v.name AS pipeline, COALESCE(ver.code_version, r.code_version) AS code_version, ver.query, ver.first_seen,
       r.first_used, r.last_used, COALESCE(r.runs, 0) AS runs
FROM backfill.version_data ver
FULL JOIN (
    SELECT pipeline_id, code_version, pg_catalog.min(started_at) AS first_used, pg_catalog.max(started_at) AS last_used,
           pg_catalog.count(*) AS runs
    FROM backfill.run_data WHERE code_version IS NOT NULL GROUP BY pipeline_id, code_version
) r ON r.pipeline_id = ver.pipeline_id AND r.code_version = ver.code_version
JOIN backfill.readable_data v ON v.pipeline_id = COALESCE(ver.pipeline_id, r.pipeline_id);
COMMENT ON VIEW backfill.versions IS 'Each code version of a pipeline, with its query where it has one, and its first and last use.';

CREATE VIEW backfill.version_mix WITH (security_barrier) AS
SELECT target, pipeline, pg_catalog.jsonb_object_agg(code_version, windows) AS versions, pg_catalog.count(*) > 1 AS mixed
FROM (
    SELECT target, pipeline, COALESCE(code_version, 'unknown') AS code_version, pg_catalog.count(*) AS windows
    FROM backfill.slices WHERE target IS NOT NULL GROUP BY 1, 2, 3
) s
GROUP BY target, pipeline;
COMMENT ON VIEW backfill.version_mix IS 'Per target the code versions that built its slices, with their number of windows, and whether they are mixed.';

CREATE VIEW backfill.missed WITH (security_barrier) AS
SELECT p.name AS pipeline, m.windows, m.oldest, m.newest
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id AND p.dropped_at IS NULL
CROSS JOIN LATERAL backfill.missed_of(p.pipeline_id) m
WHERE m.windows > 0;
COMMENT ON VIEW backfill.missed IS 'Windows that are due, did not run, and start by themselves no more, per pipeline; a plan can run them.';

-- Readable by all: what a pool holds is a number.
CREATE VIEW backfill.pools WITH (security_barrier) AS
SELECT o.name AS pool, o.slots,
       (SELECT pg_catalog.count(*) FROM backfill.run_void_data r
        WHERE r.pool_id = o.pool_id AND r.ended_at IS NULL AND r.void_reason IS NULL) AS in_use
FROM (
    SELECT pool_id, name, slots FROM backfill.pool_data
    UNION ALL
    SELECT NULL, b.name, b.slots FROM (VALUES ('live', 8), ('backfill', 2)) b (name, slots)
    WHERE NOT EXISTS (SELECT FROM backfill.pool_data d WHERE d.name = b.name)
) o;
COMMENT ON VIEW backfill.pools IS 'Pools with their slots and how many leases they hold.';

CREATE VIEW backfill.workers WITH (security_barrier) AS
SELECT r.worker, r.role, pg_catalog.count(*) FILTER (WHERE r.outcome IS NULL) AS open,
       pg_catalog.count(*) FILTER (WHERE r.outcome = 'done') AS done,
       pg_catalog.count(*) FILTER (WHERE r.outcome IN ('failed', 'refused', 'expired')) AS failed,
       pg_catalog.max(GREATEST(r.started_at, r.finished_at)) AS last_seen
FROM backfill.runs r GROUP BY r.worker, r.role;
COMMENT ON VIEW backfill.workers IS 'Workers by the name that they claimed with.';

GRANT SELECT ON backfill.pipelines, backfill.windows, backfill.runs, backfill.leases, backfill.plans,
    backfill.plan_declined, backfill.slice_history, backfill.slices, backfill.versions, backfill.version_mix,
    backfill.missed, backfill.pools, backfill.workers TO PUBLIC;
