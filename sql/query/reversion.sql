-- The windows that plan $2 of pipeline $1 published, oldest first, with what was there before its newest publications that
-- follow each other, and with what speaks against putting that back. A slice that a revert put back is that of the run that
-- made it: n, so that plans can be reverted one after the other, the newest first.
SELECT w.window_start, l.token, n.plan_id = $2, t.token, t.plan_id, t.ended_at IS NULL,
       CASE WHEN p.run_kind <> 'withdrawn' THEN p.token END, COALESCE(p.restores, p.token), h.token, h.published_at, k.kept_until,
       k.dropped_at IS NULL AND k.kept_until > pg_catalog.clock_timestamp(), o.plan_id,
       (SELECT pg_catalog.min(c.mark) FROM backfill.closing_data c
        WHERE c.pipeline_id = $1 AND c.window_start = w.window_start AND c.in_force)
FROM (
    SELECT DISTINCT r.window_start FROM backfill.run_data r
    WHERE r.pipeline_id = $1 AND r.plan_id = $2 AND r.published_at IS NOT NULL
) w
CROSS JOIN LATERAL (
    SELECT r.token, COALESCE(r.restores, r.token) AS made_by FROM backfill.run_data r
    WHERE r.pipeline_id = $1 AND r.window_start = w.window_start AND r.published_at IS NOT NULL
    ORDER BY r.turn DESC LIMIT 1
) l
JOIN backfill.run_data n ON n.token = l.made_by
CROSS JOIN LATERAL (
    SELECT r.token, r.plan_id, r.ended_at FROM backfill.run_data r
    WHERE r.pipeline_id = $1 AND r.window_start = w.window_start ORDER BY r.turn DESC LIMIT 1
) t
LEFT JOIN LATERAL (
    SELECT r.token, r.turn, r.run_kind, r.restores FROM backfill.run_data r
    WHERE r.pipeline_id = $1 AND r.window_start = w.window_start AND r.published_at IS NOT NULL AND r.plan_id <> $2
      AND r.turn < n.turn
    ORDER BY r.turn DESC LIMIT 1
) p ON true
-- The first that changed the rows has kept them. If one before it may have and kept none, that is the one.
LEFT JOIN LATERAL (
    SELECT r.token, r.published_at FROM backfill.run_data r
    LEFT JOIN backfill.kept_data c ON c.token = r.token
    WHERE r.pipeline_id = $1 AND r.window_start = w.window_start AND r.published_at IS NOT NULL AND r.plan_id = $2
      AND r.turn > COALESCE(p.turn, 0) AND r.turn <= n.turn AND c.changed IS NOT false
    ORDER BY r.turn LIMIT 1
) h ON true
LEFT JOIN backfill.kept_data k ON k.token = h.token
LEFT JOIN (
    SELECT d.window_start, pg_catalog.min(d.plan_id) AS plan_id FROM backfill.owned_data d
    WHERE d.pipeline_id = $1 GROUP BY d.window_start
) o ON o.window_start = w.window_start
ORDER BY w.window_start
