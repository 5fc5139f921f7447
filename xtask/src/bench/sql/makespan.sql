-- How long each window takes, drawn before anything runs.
CREATE TABLE task (
    pipeline     text             NOT NULL,
    window_start timestamptz      NOT NULL,
    seconds      double precision NOT NULL,
    PRIMARY KEY (pipeline, window_start)
);

-- A worker: a connection of its own that holds each lease for as long as its window takes. It ends with the plan.
CREATE PROCEDURE work(pipeline text, plan_id bigint) LANGUAGE plpgsql AS $$
DECLARE
    lease record;
BEGIN
    LOOP
        SELECT c.token, t.seconds INTO lease
        FROM backfill_claim('bench ' || pg_backend_pid(), pipelines => ARRAY[work.pipeline]) c
        JOIN task t ON t.pipeline = c.pipeline AND t.window_start = c.window_start;
        COMMIT;
        IF lease.token IS NULL THEN
            EXIT WHEN (SELECT p.state FROM backfill.plans p WHERE p.plan_id = work.plan_id) IN ('completed', 'partial');
            PERFORM pg_sleep(0.02);
            CONTINUE;
        END IF;
        PERFORM pg_sleep(lease.seconds);
        PERFORM backfill_finish(lease.token);
        COMMIT;
    END LOOP;
END
$$;
