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

CREATE VIEW backfill.target_data AS
SELECT c.oid, c.oid::pg_catalog.regclass AS target FROM pg_catalog.pg_class c;
COMMENT ON VIEW backfill.target_data IS 'Relations that exist: what is joined to them shows NULL, and no bare number, for a target that was dropped.';

CREATE VIEW backfill.pipelines WITH (security_barrier) AS
SELECT p.name AS pipeline, p.owner, p.cadence, p.given_start AS start_at, p.time_zone, t.target, p.slice_column, p.query,
       p.code_version, o.name AS pool, p.max_active, p.backlog, p.catchup, p.delay, p.lease_for, p.max_attempts,
       p.retry_delay, p.depends_on_past, p.source_retention, p.expected_duration, p.cost_per_hour, p.max_shrink, p.on_mixture, p.on_impure, p.keep_previous, p.stamp_column, p.description,
       p.active_since, p.paused_at, p.paused_by, p.pause_reason, p.created_at, p.created_by, p.changed_at, p.changed_by
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id
JOIN backfill.pool_data o ON o.pool_id = p.pool_id
LEFT JOIN backfill.target_data t ON t.oid = p.target
WHERE p.dropped_at IS NULL;
COMMENT ON VIEW backfill.pipelines IS 'Pipelines with their settings; target is NULL also where the table was dropped.';

CREATE VIEW backfill.grids WITH (security_barrier) AS
SELECT v.name AS pipeline, g.since, g.until, g.cadence, g.start_at, g.time_zone, g.replaced_at, g.replaced_by
FROM (
    SELECT p.pipeline_id, p.dropped_at, e.since, e.until, e.cadence, e.start_at, e.time_zone, e.replaced_at, e.replaced_by
    FROM backfill.pipeline_data p CROSS JOIN LATERAL pg_catalog.unnest(p.ended_grids) e
    UNION ALL
    SELECT p.pipeline_id, p.dropped_at, p.grid_since, 'infinity', p.cadence, p.start_at, p.time_zone, NULL, NULL
    FROM backfill.pipeline_data p
) g
JOIN backfill.readable_data v ON v.pipeline_id = g.pipeline_id
WHERE g.dropped_at IS NULL;
COMMENT ON VIEW backfill.grids IS 'The grids of each pipeline, which follow each other without a gap: windows from since on and before until are laid by cadence from start_at in time_zone.';

CREATE VIEW backfill.windows WITH (security_barrier) AS
SELECT p.name AS pipeline, w.*
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id AND p.dropped_at IS NULL
CROSS JOIN LATERAL backfill.windows_of(p.pipeline_id) w;
COMMENT ON VIEW backfill.windows IS 'Windows that have a run, are in an approved plan, or were decided about; pipeline_windows() shows all.';

CREATE VIEW backfill.window_marks WITH (security_barrier) AS
SELECT v.name AS pipeline, backfill.window_key(m.pipeline_id, m.window_start) AS window_key,
       m.window_start, m.mark, m.reason, m.marked_by, m.marked_at, m.token, m.plan_id,
       m.lifted_at, m.lifted_by, m.lift_reason
FROM backfill.mark_data m
JOIN backfill.readable_data v ON v.pipeline_id = m.pipeline_id;
COMMENT ON VIEW backfill.window_marks IS 'What people decided about windows (locked, skipped, stale, adopted), when, why, and who took it back; lifted_at is NULL while it stands. A newer slice than token is not stale.';

-- An open run of a cancelled plan, a closed window or a dropped pipeline is shown as what it is, revoked.
CREATE VIEW backfill.runs WITH (security_barrier) AS
SELECT r.token, v.name AS pipeline, backfill.window_key(r.pipeline_id, r.window_start) AS window_key,
       r.window_start, r.window_end, NULLIF(r.plan_id, 0) AS plan_id, r.attempt, r.run_kind, r.worker, r.role,
       r.code_version, r.as_of, r.started_at, r.ended_at AS finished_at,
       CASE WHEN r.ended_at IS NOT NULL THEN r.outcome WHEN r.void_reason IS NOT NULL THEN 'revoked' END AS outcome,
       r.rows, r.digest, CASE WHEN r.ended_at IS NOT NULL THEN r.error ELSE r.void_reason END AS error, r.sqlstate, r.allow_shrink, r.metrics, r.restores
FROM backfill.run_void_data r
JOIN backfill.readable_data v ON v.pipeline_id = r.pipeline_id;
COMMENT ON VIEW backfill.runs IS 'Every attempt at a window; outcome is NULL while it is open. Where a plan was reverted, one of the kind reverted put the slice of the token restores back, and one of the kind withdrawn left the window without a slice.';

CREATE VIEW backfill.leases WITH (security_barrier) AS
SELECT r.token, v.name AS pipeline, backfill.window_key(r.pipeline_id, r.window_start) AS window_key,
       r.window_start, r.window_end,
       COALESCE((SELECT g.time_zone FROM pg_catalog.unnest(p.ended_grids) g
                 WHERE g.since <= r.window_start AND g.until > r.window_start), p.time_zone) AS time_zone,
       r.run_kind, NULLIF(r.plan_id, 0) AS plan_id, r.attempt,
       COALESCE(r.claim_version, r.code_version) AS code_version, COALESCE(pl.effects, true) AS effects, r.as_of, t.target,
       CASE WHEN r.together THEN (SELECT g.relation FROM backfill.plan_stage_data g WHERE g.plan_id = r.plan_id)
            WHEN r.run_kind <> 'verify' THEN t.target END AS write_to,
       CASE WHEN r.together THEN 'together' WHEN r.run_kind = 'verify' THEN 'none' ELSE 'each' END AS publish, ver.query, pl.params, p.lease_for, r.lease_until AS expires_at,
       r.worker, r.role, r.started_at, r.beat_at, r.progress
FROM backfill.open_run_data open
JOIN backfill.run_void_data r ON r.token = open.token
JOIN backfill.readable_data v ON v.pipeline_id = r.pipeline_id
JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
LEFT JOIN backfill.target_data t ON t.oid = p.target
LEFT JOIN backfill.plan_data pl ON pl.plan_id = r.plan_id
LEFT JOIN backfill.version_data ver ON r.runs_query AND ver.pipeline_id = r.pipeline_id
    AND ver.code_version = COALESCE(r.claim_version, r.code_version)
WHERE r.ended_at IS NULL AND r.void_reason IS NULL;
COMMENT ON VIEW backfill.leases IS 'Open leases. One past expires_at may go on while nobody has taken it over.';

CREATE VIEW backfill.plans WITH (security_barrier) AS
SELECT pl.plan_id, v.name AS pipeline, n.state,
       pl.windows, pl.range_start, pl.range_end, pl.reason, pl.ordering, pl.concurrency, o.name AS pool, pl.priority,
       pl.canary, pl.on_failure, pl.code_version, pl.publish, pl.effects, pl.params, pl.allow_shrink, pl.estimate,
       backfill.plan_actual(pl.plan_id, n.is_over AND n.skipped = 0) AS actual,
       n.done, n.staged, n.failed, n.running, n.skipped,
       CASE WHEN n.state = 'running' THEN backfill.plan_eta(pl.plan_id, pl.windows - n.ended - n.skipped) END AS eta,
       (SELECT pg_catalog.count(*) FROM backfill.suppression_data s WHERE s.plan_id = pl.plan_id) AS effects_suppressed,
       pl.created_by, pl.created_at, CASE WHEN pl.state = 'draft' THEN pl.expires_at END AS expires_at,
       pl.approved_by, pl.approved_at,
       CASE WHEN n.state = 'paused' THEN n.paused_by END AS paused_by,
       CASE WHEN n.state = 'paused' THEN pl.paused_at END AS paused_at,
       CASE WHEN n.state = 'paused' THEN n.pause_reason END AS pause_reason,
       pl.cancelled_by, pl.cancelled_at, pl.cancel_reason, pl.published_by, pl.published_at, pl.reverted_by, pl.reverted_at, pl.revert_reason
FROM backfill.plan_data pl
JOIN backfill.readable_data v ON v.pipeline_id = pl.pipeline_id
JOIN backfill.pool_data o ON o.pool_id = pl.pool_id
JOIN backfill.plan_count_data n ON n.plan_id = pl.plan_id;
COMMENT ON VIEW backfill.plans IS 'Plans with their state and progress: draft, approved (nothing was claimed yet), running, paused (by a person, by a failure or as a canary), staged (all windows are, and wait for backfill_publish), published, completed, partial (some windows failed or were refused), cancelled, reverted. actual is what a plan took, under the keys of its estimate, and eta when a running one will end; both are computed when they are asked for. publish none is a verification: backfill.verifications shows what it found.';

CREATE VIEW backfill.plan_events WITH (security_barrier) AS
SELECT e.plan_id, v.name AS pipeline, e.happened_at, e.who, e.what, e.why
FROM backfill.plan_event_data e
JOIN backfill.plan_data pl ON pl.plan_id = e.plan_id
JOIN backfill.readable_data v ON v.pipeline_id = pl.pipeline_id;
COMMENT ON VIEW backfill.plan_events IS 'Every decision about a plan: who, when, what and why.';

CREATE VIEW backfill.plan_declined WITH (security_barrier) AS
SELECT d.plan_id, v.name AS pipeline, d.range_start, d.range_end, d.windows, d.reason
FROM backfill.plan_declined_data d
JOIN backfill.plan_data pl ON pl.plan_id = d.plan_id
JOIN backfill.readable_data v ON v.pipeline_id = pl.pipeline_id;
COMMENT ON VIEW backfill.plan_declined IS 'Windows of a plan''s range that are not in it, as ranges, each with its reason.';

CREATE VIEW backfill.slice_history WITH (security_barrier) AS
SELECT v.name AS pipeline, backfill.window_key(r.pipeline_id, r.window_start) AS window_key,
       r.window_start, r.window_end, t.target, r.token, r.code_version, NULLIF(r.plan_id, 0) AS plan_id, r.worker,
       r.as_of, r.rows, r.digest, r.allow_shrink, r.published_at, r.replaced_at
FROM (
    SELECT n.*, pg_catalog.lead(n.published_at) OVER (PARTITION BY n.pipeline_id, n.window_start ORDER BY n.turn) AS replaced_at
    FROM backfill.run_data n WHERE n.published_at IS NOT NULL
) r
JOIN backfill.readable_data v ON v.pipeline_id = r.pipeline_id
JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
LEFT JOIN backfill.target_data t ON t.oid = p.target
WHERE r.run_kind <> 'withdrawn';
COMMENT ON VIEW backfill.slice_history IS 'Every slice that was ever published, also by an attempt that did not end as done; replaced_at is NULL for the one that the target holds now. target is NULL where the pipeline has none, and where it was dropped.';

CREATE VIEW backfill.slices WITH (security_barrier) AS
SELECT pipeline, window_key, window_start, window_end, target, token, code_version, plan_id, worker, as_of, rows,
       digest, allow_shrink, published_at
FROM backfill.slice_history WHERE replaced_at IS NULL;
COMMENT ON VIEW backfill.slices IS 'What each target holds for each window now: which token, code version, rows and digest.';

CREATE VIEW backfill.versions WITH (security_barrier) AS
SELECT v.name AS pipeline, COALESCE(ver.code_version, r.code_version) AS code_version,
       COALESCE(c.class, ver.code_version, r.code_version) AS class, ver.query, ver.first_seen,
       r.first_used, r.last_used, COALESCE(r.runs, 0) AS runs
FROM backfill.version_data ver
FULL JOIN (
    SELECT pipeline_id, code_version, pg_catalog.min(started_at) AS first_used, pg_catalog.max(started_at) AS last_used,
           pg_catalog.count(*) AS runs
    FROM backfill.run_data WHERE code_version IS NOT NULL GROUP BY pipeline_id, code_version
) r ON r.pipeline_id = ver.pipeline_id AND r.code_version = ver.code_version
JOIN backfill.readable_data v ON v.pipeline_id = COALESCE(ver.pipeline_id, r.pipeline_id)
LEFT JOIN backfill.version_class_data c ON c.pipeline_id = v.pipeline_id
    AND c.code_version = COALESCE(ver.code_version, r.code_version);
COMMENT ON VIEW backfill.versions IS 'Each code version of a pipeline, with its query where it has one, and its first and last use. Versions of one class were said to be compatible; backfill.compatible_versions says by whom and why.';

CREATE VIEW backfill.compatible_versions WITH (security_barrier) AS
SELECT v.name AS pipeline, d.old, d.new, d.reason, d.said_by, d.said_at
FROM backfill.version_compatible_data d
JOIN backfill.readable_data v ON v.pipeline_id = d.pipeline_id;
COMMENT ON VIEW backfill.compatible_versions IS 'Pairs of code versions of which somebody said that slices of both may stand side by side, who, when and why; version_compatible_drop() takes it back.';

CREATE VIEW backfill.version_mix_data WITH (security_barrier) AS
SELECT s.pipeline_id, t.target, v.name AS pipeline, pg_catalog.jsonb_object_agg(s.code_version, s.of_version) AS versions,
       pg_catalog.count(DISTINCT COALESCE(c.class, s.code_version)) > 1 AS mixed,
       pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
           'version', s.code_version, 'windows', s.windows,
           'since', backfill.window_key(s.pipeline_id, s.since), 'until', backfill.window_key(s.pipeline_id, s.until))
           ORDER BY s.since) AS ranges
FROM (
    -- Neighbouring windows of one version are a range.
    SELECT g.pipeline_id, g.code_version, g.range_no, pg_catalog.min(g.window_start) AS since,
           pg_catalog.max(g.window_end) AS until, pg_catalog.count(*) AS windows,
           pg_catalog.sum(pg_catalog.count(*)) OVER (PARTITION BY g.pipeline_id, g.code_version) AS of_version
    FROM (
        SELECT f.*, pg_catalog.count(*) FILTER (WHERE f.is_first) OVER (PARTITION BY f.pipeline_id ORDER BY f.window_start) AS range_no
        FROM (
            SELECT r.pipeline_id, r.window_start, r.window_end, COALESCE(r.code_version, 'unknown') AS code_version,
                   (r.code_version, r.window_start) IS DISTINCT FROM (pg_catalog.lag(r.code_version) OVER w, pg_catalog.lag(r.window_end) OVER w) AS is_first
            FROM (
                SELECT DISTINCT ON (n.pipeline_id, n.window_start) n.*
                FROM backfill.run_data n WHERE n.published_at IS NOT NULL
                ORDER BY n.pipeline_id, n.window_start, n.turn DESC
            ) r
            WHERE r.run_kind <> 'withdrawn'
            WINDOW w AS (PARTITION BY r.pipeline_id ORDER BY r.window_start)
        ) f
    ) g
    GROUP BY g.pipeline_id, g.code_version, g.range_no
) s
JOIN backfill.readable_data v ON v.pipeline_id = s.pipeline_id
JOIN backfill.pipeline_data p ON p.pipeline_id = s.pipeline_id
LEFT JOIN backfill.target_data t ON t.oid = p.target
LEFT JOIN backfill.version_class_data c ON c.pipeline_id = s.pipeline_id AND c.code_version = s.code_version
-- What a dropped pipeline left is there as long as its table is.
WHERE p.dropped_at IS NULL OR t.oid IS NOT NULL
GROUP BY t.target, s.pipeline_id, v.name;
COMMENT ON VIEW backfill.version_mix_data IS 'backfill.version_mix with the number of the pipeline, whose name another one may have by now.';

CREATE VIEW backfill.version_mix WITH (security_barrier) AS
SELECT target, pipeline, versions, mixed, ranges FROM backfill.version_mix_data;
COMMENT ON VIEW backfill.version_mix IS 'Per target (NULL where the slices lie outside of this database, or the table was dropped) and pipeline the code versions that built its slices, with their number of windows, whether they are mixed: whether they are of more than one class, and the ranges of neighbouring windows of each version, in the order of time, with bounds as backfill_plan() takes them.';

CREATE VIEW backfill.verification_state_data WITH (security_barrier) AS
SELECT d.pipeline_id, d.plan_id, v.name AS pipeline, backfill.window_key(d.pipeline_id, d.window_start) AS window_key, d.window_start,
       d.token, d.slice_token, d.slice_version, d.code_version, d.same, d.rows_published, d.rows_rebuilt,
       d.only_published, d.only_rebuilt, d.columns, d.cause, d.verified_at,
       d.slice_token = (
           SELECT s.token FROM backfill.run_data s
           WHERE s.pipeline_id = d.pipeline_id AND s.window_start = d.window_start AND s.published_at IS NOT NULL
           ORDER BY s.turn DESC LIMIT 1)
       AND NOT EXISTS (
           SELECT FROM backfill.verification_data n JOIN backfill.run_data o ON o.token = n.token AND o.outcome = 'done'
           WHERE n.pipeline_id = d.pipeline_id AND n.window_start = d.window_start AND n.token > d.token) AS is_newest
FROM backfill.verification_data d
JOIN backfill.run_data r ON r.token = d.token AND r.outcome = 'done'
JOIN backfill.readable_data v ON v.pipeline_id = d.pipeline_id;
COMMENT ON VIEW backfill.verification_state_data IS 'backfill.verifications with the number of the pipeline, whose name another one may have by now.';

CREATE VIEW backfill.verifications WITH (security_barrier) AS
SELECT plan_id, pipeline, window_key, window_start, token, slice_token, slice_version, code_version, same, rows_published,
       rows_rebuilt, only_published, only_rebuilt, columns, cause, verified_at, is_newest
FROM backfill.verification_state_data;
COMMENT ON VIEW backfill.verifications IS 'Windows that were built again under token for backfill_verify(), held to the slice of slice_token. same: the same rows came of it, as multisets. only_published and only_rebuilt count the rows that one side has and the other has not; columns names those in which they differ, where rows of both sides do; cause is the likeliest reason, with what helps. is_newest: the slice is still there, and no later verification of it has ended. What could not be compared is NULL.';

CREATE VIEW backfill.missed WITH (security_barrier) AS
SELECT p.name AS pipeline, m.windows, m.oldest, m.newest
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id AND p.dropped_at IS NULL
CROSS JOIN LATERAL backfill.missed_of(p.pipeline_id) m
WHERE m.windows > 0;
COMMENT ON VIEW backfill.missed IS 'Windows that are due, did not run, and start by themselves no more, per pipeline; a plan can run them.';

CREATE VIEW backfill.effects WITH (security_barrier) AS
SELECT e.effect_id AS id, v.name AS pipeline,
       backfill.window_key(e.pipeline_id, e.window_start) AS window_key,
       e.window_start, e.window_end, e.effect, e.key, e.state, e.payload, e.token, NULLIF(e.plan_id, 0) AS plan_id,
       e.emitted_at, e.published_at, e.done_at, e.done_by
FROM backfill.effect_data e
JOIN backfill.readable_data v ON v.pipeline_id = e.pipeline_id;
COMMENT ON VIEW backfill.effects IS 'The outbox: effects that are suppressed, held until their slice is published, ready for a consumer, or done.';

-- Readable by all: what a pool holds is a number.
CREATE VIEW backfill.pools WITH (security_barrier) AS
SELECT o.name AS pool, o.slots,
       (SELECT pg_catalog.count(*) FROM backfill.open_run_data open JOIN backfill.run_void_data r ON r.token = open.token
        WHERE open.pool_id = o.pool_id AND r.void_reason IS NULL) AS in_use,
       COALESCE(backfill.waiting_for(o.pool_id), 0) AS waiting,
       o.paused_at IS NOT NULL AS paused, o.paused_by, o.paused_at, o.pause_reason
FROM (
    SELECT pool_id, name, slots, paused_by, paused_at, pause_reason FROM backfill.pool_data WHERE dropped_at IS NULL
    UNION ALL
    SELECT NULL, b.name, b.slots, NULL, NULL, NULL FROM (VALUES ('live', 8), ('backfill', 2)) b (name, slots)
    WHERE NOT EXISTS (SELECT FROM backfill.pool_data d WHERE d.name = b.name AND d.dropped_at IS NULL)
) o;
COMMENT ON VIEW backfill.pools IS 'Pools with their slots, how many leases they hold, how many windows wait for one, and who paused them and why.';

CREATE VIEW backfill.workers WITH (security_barrier) AS
SELECT r.worker, r.role, pg_catalog.count(*) FILTER (WHERE r.outcome IS NULL) AS open,
       pg_catalog.count(*) FILTER (WHERE r.outcome = 'done') AS done,
       pg_catalog.count(*) FILTER (WHERE r.outcome IN ('failed', 'refused', 'expired')) AS failed,
       pg_catalog.max(GREATEST(r.started_at, r.finished_at)) AS last_seen
FROM backfill.runs r WHERE r.run_kind NOT IN ('adopted', 'reverted', 'withdrawn') GROUP BY r.worker, r.role;
COMMENT ON VIEW backfill.workers IS 'Workers by the name that they claimed with.';

CREATE VIEW backfill.blocked WITH (security_barrier) AS
SELECT v.name AS pipeline, w.window_key, w.window_start, w.state, w.plan_id, w.blocked_by, w.reason
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id AND p.dropped_at IS NULL
CROSS JOIN LATERAL backfill.waiting_of(v.pipeline_id) w
WHERE w.blocked_by IS NOT NULL;
COMMENT ON VIEW backfill.blocked IS 'Windows that would run and cannot now, with what is in the way: a window, a pool, a plan, the pipeline, or a backend that still writes.';

CREATE VIEW backfill.protections WITH (security_barrier) AS
SELECT v.name AS pipeline, p.target,
       pg_catalog.convert_from(pg_catalog.substr(t.tgargs, 1, pg_catalog.octet_length(t.tgargs) - 1), 'UTF8') AS mode,
       ARRAY(SELECT c.oid::pg_catalog.regclass
             FROM (SELECT p.target AS relid UNION SELECT part.relid FROM pg_catalog.pg_partition_tree(p.target) part) r
             JOIN pg_catalog.pg_class c ON c.oid = r.relid AND c.relkind IN ('r', 'p')
             WHERE 2 > (SELECT pg_catalog.count(*) FROM pg_catalog.pg_trigger g
                        WHERE g.tgrelid = c.oid AND g.tgenabled IN ('O', 'A') AND g.tgfoid = t.tgfoid)
             ORDER BY c.relname) AS unguarded
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id AND p.dropped_at IS NULL
JOIN pg_catalog.pg_trigger t ON t.tgrelid = p.target AND (t.tgtype & 1) = 1
    AND t.tgfoid = 'backfill.fence_guard'::pg_catalog.regproc;
COMMENT ON VIEW backfill.protections IS 'Protected targets, with the mode (refuse or log). unguarded: tables where a trigger is disabled, and partitions that came since, which can be truncated by themselves; fence_protect() guards them.';

CREATE VIEW backfill.unfenced_writes WITH (security_barrier) AS
SELECT v.name AS pipeline, w.target, w.operation, w.role, w.session_role, w.application_name, w.client_addr,
       pg_catalog.min(w.first_seen) AS first_seen, pg_catalog.max(w.last_seen) AS last_seen,
       pg_catalog.sum(w.transactions)::bigint AS transactions, pg_catalog.sum(w.rows)::bigint AS rows
FROM backfill.unfenced_write_data w
JOIN backfill.readable_data v ON v.pipeline_id = w.pipeline_id
GROUP BY v.name, w.target, w.operation, w.role, w.session_role, w.application_name, w.client_addr;
COMMENT ON VIEW backfill.unfenced_writes IS 'Who wrote to targets that are protected with mode log, without a fence: the role whose rights counted, the role that had logged in, its application_name and client_addr (NULL over a local socket), how many transactions and rows, and when they committed first and last. TRUNCATE counts no rows.';

-- Made of views above that show everyone his own.
-- Listed before it is joined: without statistics the planner would count the missed windows once for each pair of pipelines.
CREATE VIEW backfill.attention WITH (security_barrier) AS
WITH listed AS MATERIALIZED (
    SELECT w.state AS kind, w.pipeline, pg_catalog.count(*) AS windows, pg_catalog.min(w.window_start) AS oldest,
           pg_catalog.max(w.window_start) AS newest,
           CASE w.state WHEN 'failed' THEN 'their attempts are used up'
                        WHEN 'refused' THEN 'what was produced was refused; backfill.quarantine may hold it'
                        ELSE 'what their slices were built from has changed' END AS what,
           CASE w.state WHEN 'stale' THEN 'stale' ELSE 'failed' END AS mode
    FROM backfill.windows w WHERE w.state IN ('failed', 'refused', 'stale')
    GROUP BY w.pipeline, w.state
    UNION ALL
    SELECT 'missed', m.pipeline, m.windows, m.oldest, m.newest,
           'they are due, never ran, and start by themselves no more', 'missing'
    FROM backfill.missed m
)
SELECT l.kind, l.pipeline, l.windows, l.oldest, l.newest, NULL::bigint AS plan_id, l.what,
       pg_catalog.format('SELECT * FROM backfill_plan(%L, NULL, NULL, ''...'', mode => %L%s);', l.pipeline, l.mode,
                         CASE WHEN p.depends_on_past THEN ', ordering => ''sequential''' END) AS remedy
FROM listed l
JOIN backfill.pipelines p ON p.pipeline = l.pipeline
UNION ALL
SELECT 'blocked', b.pipeline, pg_catalog.count(*), pg_catalog.min(b.window_start), pg_catalog.max(b.window_start), NULL,
       pg_catalog.min(b.reason),
       CASE WHEN b.blocked_by = 'on_mixture' THEN pg_catalog.format('SELECT window_why(%L, %L);', b.pipeline, pg_catalog.min(b.window_key))
            ELSE pg_catalog.format('see to %s', b.blocked_by) END
FROM backfill.blocked b WHERE b.state = 'blocked'
GROUP BY b.pipeline, b.blocked_by
UNION ALL
SELECT 'overdue', l.pipeline, pg_catalog.count(*), pg_catalog.min(l.window_start), pg_catalog.max(l.window_start), NULL,
       'their leases expired, and no claim has come to take them over', 'start a worker'
FROM backfill.leases l WHERE l.expires_at < pg_catalog.clock_timestamp()
GROUP BY l.pipeline
UNION ALL
-- Nothing is in the way, and nobody comes: 15 minutes are longer than any worker sleeps.
SELECT 'no worker', v.name, pg_catalog.count(*), pg_catalog.min(w.window_start), pg_catalog.max(w.window_start), NULL,
       'they wait, nothing is in the way, and no worker has claimed one for 15 minutes',
       pg_catalog.format(CASE WHEN p.query IS NULL THEN 'start a worker'
                              ELSE 'start a worker, or CALL backfill_work(pipelines => ARRAY[%L]);' END, v.name)
FROM backfill.readable_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id AND p.dropped_at IS NULL
CROSS JOIN LATERAL backfill.waiting_of(v.pipeline_id) w
WHERE w.blocked_by IS NULL AND w.waits_since < pg_catalog.clock_timestamp() - '15 minutes'::interval
  AND NOT EXISTS (SELECT FROM backfill.open_run_data o WHERE o.pipeline_id = v.pipeline_id)
GROUP BY v.name, p.query IS NULL
UNION ALL
SELECT 'unguarded', t.pipeline, NULL, NULL, NULL, NULL,
       pg_catalog.format('%s tables of the protected target %s are not guarded', pg_catalog.cardinality(t.unguarded), t.target),
       pg_catalog.format('SELECT fence_protect(%L, %L);', t.target, t.mode)
FROM backfill.protections t WHERE pg_catalog.cardinality(t.unguarded) > 0
UNION ALL
-- A slice column without a target: the two are given together.
SELECT 'dropped target', p.pipeline, NULL, NULL, NULL, NULL, 'the table that it fills was dropped',
       pg_catalog.format('SELECT pipeline_drop(%L);', p.pipeline)
FROM backfill.pipelines p WHERE p.target IS NULL AND p.slice_column IS NOT NULL
UNION ALL
SELECT CASE pl.state WHEN 'draft' THEN 'draft' ELSE pg_catalog.format('%s plan', pl.state) END, pl.pipeline, pl.windows, pl.range_start, NULL, pl.plan_id,
       CASE pl.state WHEN 'draft' THEN pg_catalog.format('it waits for approval: %s', pl.reason)
                     WHEN 'paused' THEN pg_catalog.format('paused by %s: %s', pl.paused_by, pl.pause_reason)
                     WHEN 'staged' THEN 'all its windows are staged, and nothing is published'
                     ELSE pg_catalog.format('%s of its windows failed or were refused', pl.failed) END,
       pg_catalog.format(CASE pl.state WHEN 'draft' THEN 'SELECT backfill_explain(%s);'
                                       WHEN 'paused' THEN 'SELECT backfill_resume(%s);'
                                       WHEN 'staged' THEN 'SELECT * FROM backfill_diff(%1$s); SELECT backfill_publish(%1$s);'
                                       ELSE 'SELECT backfill_retry(%s);' END, pl.plan_id)
FROM backfill.plans pl
WHERE pl.state IN ('paused', 'partial', 'staged') OR pl.state = 'draft' AND pl.expires_at > pg_catalog.clock_timestamp()
UNION ALL
SELECT 'paused pipeline', p.pipeline, NULL, NULL, NULL, NULL, pg_catalog.format('paused by %s: %s', p.paused_by, p.pause_reason),
       pg_catalog.format('SELECT * FROM pipeline_resume(%L);', p.pipeline)
FROM backfill.pipelines p WHERE p.paused_at IS NOT NULL
UNION ALL
SELECT 'paused pool', NULL, o.waiting, NULL, NULL, NULL, pg_catalog.format('pool "%s" is paused by %s: %s', o.pool, o.paused_by, o.pause_reason),
       pg_catalog.format('SELECT pool_resume(%L);', o.pool)
FROM backfill.pools o WHERE o.paused
UNION ALL
SELECT 'not reproduced', v.pipeline, pg_catalog.count(*), pg_catalog.min(v.window_start), pg_catalog.max(v.window_start),
       pg_catalog.max(v.plan_id), pg_catalog.format('built again, they came out otherwise: %s', pg_catalog.min(v.cause)),
       pg_catalog.format('SELECT * FROM backfill.verifications WHERE pipeline = %L AND is_newest AND NOT same;', v.pipeline)
FROM backfill.verification_state_data v
JOIN backfill.pipeline_data p ON p.pipeline_id = v.pipeline_id AND p.dropped_at IS NULL
WHERE v.is_newest AND NOT v.same
GROUP BY v.pipeline
UNION ALL
SELECT 'mixed versions', m.pipeline, NULL, NULL, NULL, NULL, pg_catalog.format('its slices were built by %s', m.versions),
       pg_catalog.format('SELECT * FROM backfill_plan(%L, NULL, NULL, ''...'', mode => ''outdated''%s%s);', m.pipeline,
                         CASE WHEN p.depends_on_past THEN ', ordering => ''sequential''' END,
                         -- Where only workers state what they run, a person says what is to count.
                         CASE WHEN p.query IS NULL AND p.code_version IS NULL THEN ', code_version => ''...''' END)
FROM backfill.version_mix_data m
JOIN backfill.pipeline_data p ON p.pipeline_id = m.pipeline_id AND p.dropped_at IS NULL
WHERE m.mixed;
COMMENT ON VIEW backfill.attention IS 'What a person should look at now, with the call that helps.';

GRANT SELECT ON backfill.pipelines, backfill.grids, backfill.windows, backfill.window_marks, backfill.runs, backfill.leases, backfill.plans,
    backfill.plan_declined, backfill.plan_events, backfill.slice_history, backfill.slices, backfill.versions, backfill.compatible_versions,
    backfill.version_mix, backfill.verifications, backfill.missed, backfill.effects, backfill.pools, backfill.workers,
    backfill.blocked, backfill.protections, backfill.unfenced_writes, backfill.attention TO PUBLIC;
