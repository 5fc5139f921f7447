-- The newest attempts of a plan ($1): those that have ended, and those whose leases hold.
SELECT r.started_at, r.ended_at, COALESCE(r.outcome = 'done', false)
FROM (
    SELECT n.* FROM backfill.run_void_data n WHERE n.plan_id = $1 AND n.in_order ORDER BY n.seq DESC LIMIT 1000
) r
WHERE r.ended_at IS NOT NULL OR r.void_reason IS NULL AND r.lease_until >= pg_catalog.clock_timestamp()
