-- Windows of one minute each, with durations that vary by 40 % around their mean: lognormal ones, or half of the
-- windows more than twice as long as the other half.
SELECT setseed(:seed) AS seeded,
       pool_define(:'name', 16) AS pool,
       pipeline_define(:'name', '1 minute', '2000-01-01', backlog => 0, pool => :'name') AS pipeline \gset
INSERT INTO task
SELECT :'name', timestamptz '2000-01-01 00:00Z' + n * interval '1 minute',
       :mean * CASE :'shape'
           WHEN 'lognormal' THEN exp(0.4 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()) - 0.08)
           WHEN 'bimodal' THEN CASE WHEN random() < 0.5 THEN 0.6 ELSE 1.4 END * (0.9 + 0.2 * random())
       END
FROM generate_series(0, :windows - 1) n;
