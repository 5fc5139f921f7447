SELECT plan_id FROM backfill_plan('daily_delays', '2013-01-01', '2014-01-01', reason => 'load 2013') \gset
SELECT backfill_explain(:plan_id);
