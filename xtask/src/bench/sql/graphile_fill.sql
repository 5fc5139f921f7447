TRUNCATE graphile_worker._private_jobs;
SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
    SELECT ('bench', '{}', NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec
    FROM generate_series(1, :rows)));
VACUUM ANALYZE graphile_worker._private_jobs;
