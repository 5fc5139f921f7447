-- Once a tick: where the plan is, and the tokens whose window another worker took over and finished.
SELECT p.state, p.windows, p.done, p.running,
       (SELECT coalesce(string_agg(lost.token::text, ','), '')
        FROM backfill.runs lost
        JOIN backfill.slices s USING (pipeline, window_key)
        WHERE lost.plan_id = p.plan_id AND lost.outcome = 'expired' AND s.token > lost.token)
FROM backfill.plans p WHERE p.plan_id = :plan
\watch 0.1
