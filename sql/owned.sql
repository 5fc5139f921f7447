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
