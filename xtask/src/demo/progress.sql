-- Where the plan is, and the tokens whose windows other workers took over and did.
SELECT p.state, p.windows, p.done, p.running,
       (SELECT string_agg(lost.token::text, ',')
        FROM backfill.runs lost JOIN backfill.slices s USING (pipeline, window_key)
        WHERE lost.plan_id = p.plan_id AND lost.outcome = 'expired' AND s.token > lost.token)
FROM backfill.plans p WHERE p.plan_id = :plan
\watch 0.1
