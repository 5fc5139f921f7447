SELECT pool_define(:'name', :slots) AS pool,
       pipeline_define(:'name', '1 minute', '2000-01-01', time_zone => 'UTC', backlog => 0) AS pipeline,
       pipeline_grant(:'name', 'bench_worker', 'work') AS granted \gset
SELECT backfill_plan(:'name', NULL, timestamptz '2000-01-01 00:00Z' + :windows * interval '1 minute', 'bench',
                     pool => :'name', concurrency => :slots, expect => :windows) AS plan \gset
VACUUM ANALYZE backfill.plan_window_data;
