-- The settings of pipeline $1 as pipeline_alter names them, without start_at.
SELECT pg_catalog.to_jsonb(ROW(
    p.cadence,
    NULL,
    p.target::pg_catalog.oid, p.slice_column, p.time_zone, p.query, p.code_version, p.depends_on_past,
    p.backlog, p.catchup, p.delay, o.name, p.max_active, p.lease_for, p.run_timeout, p.max_attempts,
    p.retry_delay, p.source_retention, p.expected_duration, p.cost_per_hour, p.max_shrink,
    p.on_mixture, p.on_impure, p.keep_previous, p.stamp_column, p.description
)::backfill.pipeline_settings)
FROM backfill.pipeline_data p JOIN backfill.pool_data o ON o.pool_id = p.pool_id
WHERE p.pipeline_id = $1
