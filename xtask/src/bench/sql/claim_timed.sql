-- Each claim and each finish commits; only the claim call is timed, by the server's own clock.
CREATE TEMP TABLE took (pipeline text, place bigint, us float8);
SELECT set_config('bench.pipelines', :'pipelines', false) AS pipelines \gset
DO $$
DECLARE
    pipeline text;
    place    bigint;
    token    bigint;
    started  timestamptz;
    us       float8;
BEGIN
    FOR i IN 1 .. 120 LOOP
        FOR pipeline, place IN
            SELECT * FROM unnest(current_setting('bench.pipelines')::text[]) WITH ORDINALITY
        LOOP
            started := clock_timestamp();
            SELECT c.token INTO STRICT token FROM backfill_claim('bench', pipelines => ARRAY[pipeline]) c;
            us := 1e6 * extract(epoch FROM clock_timestamp() - started);
            COMMIT;
            PERFORM backfill_finish(token);
            COMMIT;
            -- The first calls of a session make its plans.
            IF i > 20 THEN
                INSERT INTO took VALUES (pipeline, place, us);
            END IF;
        END LOOP;
    END LOOP;
END
$$;
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY us) FROM took GROUP BY place ORDER BY place;
