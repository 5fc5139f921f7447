-- Each call is rolled back, so that it can be made again.
CREATE TEMP TABLE took (place int, us float8);
SELECT set_config('bench.pipelines', ARRAY[:'small', :'large']::text, false) AS pipelines \gset
DO $$
DECLARE
    names   text[] := current_setting('bench.pipelines');
    plan    bigint;
    started timestamptz;
    us      float8;
BEGIN
    FOR i IN 1 .. 60 LOOP
        FOR place IN 1 .. 2 LOOP
            SELECT l.plan_id INTO STRICT plan FROM backfill.plans l WHERE l.pipeline = names[place];
            BEGIN
                started := clock_timestamp();
                PERFORM * FROM backfill_cancel(plan, 'bench');
                us := 1e6 * extract(epoch FROM clock_timestamp() - started);
                RAISE EXCEPTION USING ERRCODE = 'XXBEN';
            EXCEPTION WHEN SQLSTATE 'XXBEN' THEN
                IF i > 10 THEN
                    INSERT INTO took VALUES (place, us);
                END IF;
            END;
        END LOOP;
    END LOOP;
END
$$;
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY us) FILTER (WHERE place = 1),
       percentile_cont(0.5) WITHIN GROUP (ORDER BY us) FILTER (WHERE place = 2)
FROM took;
