-- Looks every 20 ms: how often, and how many sessions waited for a lock (one may be seen twice).
CREATE FUNCTION pg_temp.look() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot();
    PERFORM pg_sleep(0.02);
    RETURN (SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database());
END
$$;
SELECT count(*), sum(pg_temp.look()) FROM generate_series(1, :seconds * 40);
