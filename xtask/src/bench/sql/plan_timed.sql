SELECT pool_define(:'name', :slots) AS pool,
       pipeline_define(:'name', :'cadence', '1900-01-01', time_zone => 'UTC', backlog => 0) AS pipeline \gset
SELECT clock_timestamp() AS started \gset
SELECT plan_id FROM backfill_plan(:'name', NULL, timestamptz '1900-01-01 00:00Z' + :windows * interval :'cadence', 'bench',
                                  pool => :'name', concurrency => :slots) \gset
SELECT backfill_approve(:plan_id, :windows) AS approved \gset
SELECT extract(epoch FROM clock_timestamp() - :'started');
