SELECT windows, estimate->'parallel' AS price
FROM backfill_plan('daily_delays', '2013-01-01', '2014-01-01', reason => 'what does a window cost?',
    keys => '{2013-02-08, 2013-03-10, 2013-07-04, 2013-11-03, 2013-12-25}', expect => 5);

CALL backfill_work(pipelines => '{daily_delays}');
