-- What a plan ($2) of a pipeline ($1) took: the attempts that a worker ended. When others ended one (expiry,
-- revocation) says nothing about how long it worked.
SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE r.done),
       pg_catalog.percentile_disc(0.5) WITHIN GROUP (ORDER BY r.took) FILTER (WHERE r.done),
       pg_catalog.percentile_disc(0.9) WITHIN GROUP (ORDER BY r.took) FILTER (WHERE r.done),
       pg_catalog.sum(r.took)::pg_catalog.int8, pg_catalog.min(r.started_at), pg_catalog.max(r.ended_at)
FROM (
    SELECT n.outcome = 'done' AS done, n.started_at, n.ended_at,
           (pg_catalog.date_part('epoch', n.ended_at - n.started_at) * 1000000)::pg_catalog.int8 AS took
    FROM backfill.run_data n
    WHERE n.pipeline_id = $1 AND n.plan_id = $2 AND n.outcome IN ('done', 'failed', 'refused')
) r
HAVING pg_catalog.bool_or(r.done)
