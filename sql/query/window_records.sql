-- Everything that the ledger holds of the windows of one pipeline ($1) that start in [$2, $3): the newest run,
-- the slice, a place in the queue, the plan that owns the window, what a person said about it, and the token of the
-- newest slice that is not what was there before.
WITH runs AS (
    SELECT r.token, r.pipeline_id, r.plan_id, r.window_start, r.turn, r.attempt, r.worker, r.code_version, r.rows,
           r.error, r.ended_at, r.published_at, r.outcome, r.lease_until, r.digest, r.run_kind,
           CASE WHEN r.ended_at IS NULL THEN r.void_reason END AS void_reason
    FROM backfill.run_void_data r
    WHERE r.pipeline_id = $1 AND r.window_start >= $2 AND r.window_start < $3
), newest AS (
    -- A verification counts while it is leased: once it has ended the window is what it was before.
    SELECT DISTINCT ON (window_start) * FROM runs
    WHERE run_kind <> 'verify' OR ended_at IS NULL AND void_reason IS NULL ORDER BY window_start, turn DESC
), turns AS (
    SELECT window_start, pg_catalog.max(turn) AS turn FROM runs GROUP BY window_start
), slice AS (
    SELECT * FROM (
        SELECT DISTINCT ON (window_start) * FROM runs WHERE published_at IS NOT NULL ORDER BY window_start, turn DESC
    ) p WHERE p.run_kind <> 'withdrawn'
), changed AS (
    SELECT d.window_start, pg_catalog.max(d.token) AS token
    FROM (
        SELECT window_start, token, digest, run_kind,
               pg_catalog.lag(digest) OVER (PARTITION BY window_start ORDER BY turn) AS before
        FROM runs WHERE published_at IS NOT NULL
    ) d
    WHERE (d.digest IS NULL OR d.digest IS DISTINCT FROM d.before) AND d.run_kind <> 'adopted'
    GROUP BY d.window_start
), owned AS (
    SELECT o.window_start, o.plan_id FROM backfill.owned_data o
    WHERE o.pipeline_id = $1 AND o.window_start >= $2 AND o.window_start < $3
), said AS (
    -- Of several marks the one that hides the others. What was being built when it was marked is stale too; a newer
    -- slice is not.
    SELECT DISTINCT ON (m.window_start) m.window_start, m.mark, m.reason, m.marked_by, m.marked_at, m.token
    FROM backfill.mark_data m
    LEFT JOIN slice s ON s.window_start = m.window_start
    WHERE m.pipeline_id = $1 AND m.window_start >= $2 AND m.window_start < $3 AND m.lifted_at IS NULL
      AND CASE m.mark WHEN 'stale' THEN m.token >= s.token WHEN 'adopted' THEN m.token = s.token ELSE true END
    ORDER BY m.window_start, pg_catalog.array_position('{locked,skipped,stale,adopted}', m.mark)
), keys AS (
    SELECT window_start FROM turns UNION SELECT window_start FROM owned UNION SELECT window_start FROM said
)
SELECT k.window_start, n.token, n.plan_id, n.attempt, n.outcome,
       COALESCE(n.outcome = 'revoked' OR n.void_reason IS NOT NULL, false),
       COALESCE(n.ended_at IS NULL AND n.lease_until < pg_catalog.clock_timestamp(), false),
       n.worker, n.error, n.lease_until,
       -- The next claim puts a live window back in the queue whose lease was ended by others.
       q.window_start IS NOT NULL OR COALESCE(n.plan_id = 0 AND n.void_reason IS NOT NULL, false), CASE WHEN q.rank = 1 THEN q.due_at END,
       s.token, s.code_version, s.rows, s.published_at,
       o.plan_id, t.turn, m.mark, m.reason, m.marked_by, m.marked_at, m.token, c.token, s.rows IS NOT NULL OR s.digest IS NOT NULL
FROM keys k
LEFT JOIN newest n ON n.window_start = k.window_start
LEFT JOIN turns t ON t.window_start = k.window_start
LEFT JOIN slice s ON s.window_start = k.window_start
LEFT JOIN changed c ON c.window_start = k.window_start
LEFT JOIN owned o ON o.window_start = k.window_start
LEFT JOIN said m ON m.window_start = k.window_start
LEFT JOIN backfill.requeue_data q
    ON q.pipeline_id = $1 AND q.window_start = k.window_start AND q.plan_id = COALESCE(o.plan_id, 0)
       AND q.after_turn = n.turn
