SELECT window_key, token, worker, outcome, rows, error
FROM backfill.runs
WHERE plan_id = :plan AND window_key IN (SELECT window_key FROM backfill.runs WHERE token IN (:killed, :stopped))
ORDER BY window_key, token;
