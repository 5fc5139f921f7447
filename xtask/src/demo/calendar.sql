SELECT to_char(min(window_start) AT TIME ZONE 'America/New_York', 'Mon') AS month,
       string_agg(CASE WHEN w.state <> 'done' THEN '?'
                       WHEN w.attempts > 1 THEN upper(right(s.worker, 1))
                       ELSE right(s.worker, 1) END, '' ORDER BY window_key) AS "1   5    10   15   20   25   30"
FROM backfill.windows w
LEFT JOIN backfill.slices s USING (pipeline, window_key, window_start)
WHERE pipeline = 'daily_delays' AND window_key < '2014'
GROUP BY left(window_key, 7) ORDER BY left(window_key, 7);
