CREATE TABLE daily_delays (
    day date, carrier text, flights bigint, cancelled bigint, avg_delay numeric,
    PRIMARY KEY (day, carrier)
);

SELECT pipeline_define('daily_delays', cadence => '1 day', start_at => '2013-01-01',
    time_zone => 'America/New_York', target => 'daily_delays', slice_column => 'day',
    lease_for => '3 seconds', query => $$
        SELECT ($1 AT TIME ZONE 'America/New_York')::date AS day, carrier,
               count(*) AS flights, count(*) FILTER (WHERE dep_time IS NULL) AS cancelled,
               round(avg(dep_delay), 1) AS avg_delay
        FROM flights WHERE sched_dep >= $1 AND sched_dep < $2 GROUP BY carrier $$);
