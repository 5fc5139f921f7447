-- One row a claim: whether it holds, and the claim with its numbers.
CREATE TEMPORARY VIEW direct AS
SELECT make_date(year, month, day) AS day, carrier, count(*) AS flights,
       count(*) FILTER (WHERE dep_time IS NULL) AS cancelled, round(avg(dep_delay), 1) AS avg_delay
FROM flights GROUP BY 1, 2;

SELECT a = 0 AND b = 0,
       format('The %s rows of the 365 slices are those of one direct query that groups by the source''s own'
              || E'\n        dates: EXCEPT one way leaves %s rows, the other way %s.', n, a, b)
FROM (SELECT (SELECT count(*) FROM (TABLE daily_delays EXCEPT ALL TABLE direct)) AS a,
             (SELECT count(*) FROM (TABLE direct EXCEPT ALL TABLE daily_delays)) AS b,
             (SELECT count(*) FROM daily_delays) AS n);

SELECT march = 23 AND november = 25 AND others = 363,
       format('10 March has %s hours, 3 November has %s, the other %s days have 24.', march, november, others)
FROM (SELECT max(hours) FILTER (WHERE window_key = '2013-03-10') AS march,
             max(hours) FILTER (WHERE window_key = '2013-11-03') AS november,
             count(*) FILTER (WHERE hours = 24) AS others
      FROM (SELECT window_key, extract(epoch FROM window_end - window_start)::int / 3600 AS hours
            FROM backfill.windows WHERE pipeline = 'daily_delays'));

SELECT windows = 365 AND slices = 365 AND twice = 0 AND ledger = target,
       format('%s windows are done and have %s slices, one each; the ledger counts %s rows, the table %s.',
              windows, slices, ledger, target)
FROM (SELECT (SELECT count(*) FROM backfill.windows WHERE pipeline = 'daily_delays' AND state = 'done') AS windows,
             (SELECT count(*) FROM daily_delays) AS target,
             count(*) AS slices, count(*) - count(DISTINCT window_key) AS twice, sum(rows) AS ledger
      FROM backfill.slices WHERE pipeline = 'daily_delays');

SELECT lost.outcome = 'expired' AND s.token <> lost.token,
       format('Of the killed worker''s attempt at %s nothing is left: %s did the window again.', window_key, s.worker)
FROM backfill.runs lost JOIN backfill.slices s USING (pipeline, window_key) WHERE lost.token = :killed;

SELECT lost.outcome = 'expired' AND s.token > lost.token,
       format('The stopped worker''s late write of %s changed nothing: the slice is that of %s.', window_key, s.worker)
FROM backfill.runs lost JOIN backfill.slices s USING (pipeline, window_key) WHERE lost.token = :stopped;
