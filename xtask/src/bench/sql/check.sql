-- A lease holds its slot and its window from its start to its end, both read from the server's clock while the
-- locks were held.
WITH runs AS (
    SELECT r.token, r.window_start, r.seq, r.started_at, COALESCE(r.ended_at, 'infinity') AS ended_at
    FROM backfill.run_data r JOIN backfill.pipeline_data p USING (pipeline_id) WHERE p.name = :'pipeline'
), steps AS (
    SELECT started_at AS at, 1 AS step FROM runs UNION ALL SELECT ended_at, -1 FROM runs
), held AS (
    SELECT sum(step) OVER (ORDER BY at, step) AS leases FROM steps
), repeated AS (
    SELECT started_at < lag(ended_at) OVER (PARTITION BY window_start ORDER BY started_at) AS too_early FROM runs
)
SELECT (SELECT count(*) FROM runs), (SELECT COALESCE(max(leases), 0) FROM held),
       (SELECT count(*) FROM repeated WHERE too_early), (SELECT count(DISTINCT token) FROM runs),
       (SELECT COALESCE(max(seq), 0) - count(DISTINCT seq) FROM runs);
