SELECT worker, count(*) FILTER (WHERE outcome = 'done') AS done, count(*) FILTER (WHERE outcome <> 'done') AS expired
FROM backfill.runs WHERE plan_id = :plan GROUP BY worker ORDER BY right(worker, 1);

SELECT window_key, token, worker, outcome, rows, error
FROM backfill.runs
WHERE plan_id = :plan AND window_key IN (SELECT window_key FROM backfill.runs WHERE token IN (:killed, :stopped))
ORDER BY window_key, token;
