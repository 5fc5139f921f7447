-- The newest attempts of a pipeline ($1), found by index alone: those at its newest windows, and those of its newest
-- plans. The latter come without gaps, so that the time between them can be seen; some attempts come twice. A verification
-- writes nothing, and says little about how long a window takes.
SELECT r.token, NULL::pg_catalog.int8, r.window_start, r.window_end, r.rows, r.started_at, r.ended_at,
       COALESCE(r.outcome = 'done', false)
FROM (
    SELECT n.* FROM backfill.run_data n WHERE n.pipeline_id = $1 AND n.run_kind NOT IN ('adopted', 'reverted', 'withdrawn', 'verify')
    ORDER BY n.window_start DESC LIMIT 500
) r
UNION ALL
SELECT r.token, r.plan_id, r.window_start, r.window_end, r.rows, r.started_at, r.ended_at,
       COALESCE(r.outcome = 'done', false)
FROM (
    SELECT pl.plan_id FROM backfill.plan_data pl
    WHERE pl.pipeline_id = $1 AND pl.approved_at IS NOT NULL AND pl.publish <> 'none' ORDER BY pl.plan_id DESC LIMIT 10
) p
CROSS JOIN LATERAL (
    SELECT n.* FROM backfill.run_data n WHERE n.plan_id = p.plan_id AND n.in_order ORDER BY n.seq DESC LIMIT 500
) r
