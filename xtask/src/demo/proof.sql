-- One row a claim: whether it holds, and the claim with its numbers.
CREATE TEMPORARY VIEW direct AS
SELECT make_date(year, month, day) AS day, carrier, count(*) AS flights,
       count(*) FILTER (WHERE dep_time IS NULL) AS cancelled, round(avg(dep_delay), 1) AS avg_delay
FROM flights GROUP BY 1, 2;

SELECT extra = 0 AND missing = 0,
       format('The %s rows equal one direct query: EXCEPT leaves %s rows one way and %s the other.', n, extra, missing)
FROM (SELECT (SELECT count(*) FROM (TABLE daily_delays EXCEPT ALL TABLE direct) e) AS extra,
             (SELECT count(*) FROM (TABLE direct EXCEPT ALL TABLE daily_delays) e) AS missing,
             (SELECT count(*) FROM daily_delays) AS n) c;

SELECT windows = 365 AND slices = 365 AND twice = 0 AND counted = stored,
       format('%s windows are done and have %s slices, one each, of %s rows; the table has %s.',
              windows, slices, counted, stored)
FROM (SELECT (SELECT count(*) FROM backfill.windows WHERE pipeline = 'daily_delays' AND state = 'done') AS windows,
             (SELECT count(*) FROM daily_delays) AS stored,
             count(*) AS slices, count(*) - count(DISTINCT window_key) AS twice, sum(rows) AS counted
      FROM backfill.slices WHERE pipeline = 'daily_delays') c;

SELECT march = 23 AND november = 25 AND others = 363,
       format('10 March has %s hours, 3 November has %s, the other %s days have 24.', march, november, others)
FROM (SELECT max(hours) FILTER (WHERE window_key = '2013-03-10') AS march,
             max(hours) FILTER (WHERE window_key = '2013-11-03') AS november,
             count(*) FILTER (WHERE hours = 24) AS others
      FROM (SELECT window_key, extract(epoch FROM window_end - window_start)::int / 3600 AS hours
            FROM backfill.windows WHERE pipeline = 'daily_delays') w) c;

SELECT lost.outcome = 'expired' AND s.token > lost.token,
       format('Nothing is left of what the killed worker wrote: %s is the slice of %s.', window_key, s.worker)
FROM backfill.runs lost JOIN backfill.slices s USING (pipeline, window_key) WHERE lost.token = :killed;

SELECT lost.outcome = 'expired' AND s.token > lost.token,
       format('The stopped worker came back too late to change anything: %s is the slice of %s.', window_key, s.worker)
FROM backfill.runs lost JOIN backfill.slices s USING (pipeline, window_key) WHERE lost.token = :stopped;
