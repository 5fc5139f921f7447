CREATE TYPE backfill.lease AS (
    token        bigint,
    pipeline     text,
    window_key   text,
    window_start timestamptz,
    window_end   timestamptz,
    time_zone    text,
    run_kind     text,
    plan_id      bigint,
    attempt      int,
    code_version text,
    effects      boolean,
    as_of        timestamptz,
    target       regclass,
    write_to     regclass,
    publish      text,
    query        text,
    params       jsonb,
    lease_for    interval,
    expires_at   timestamptz
);
COMMENT ON TYPE backfill.lease IS 'The right of one worker to produce one window, for a while, under one fencing token. write_to is where its rows go; NULL with publish none, which is a verification: its rows are compared with the slice, and nothing is written where slices are read.';

CREATE FUNCTION backfill_claim(
    worker       text,
    max_windows  int    DEFAULT 1,
    pools        text[] DEFAULT NULL,
    pipelines    text[] DEFAULT NULL,
    code_version text   DEFAULT NULL,
    window_key   text   DEFAULT NULL
) RETURNS SETOF backfill.lease
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_claim_wrapper';
REVOKE ALL ON FUNCTION backfill_claim(text, int, text[], text[], text, text) FROM PUBLIC;
COMMENT ON FUNCTION backfill_claim(text, int, text[], text[], text, text) IS
'Hands out up to max_windows (1 to 1000) windows to a worker; an empty answer means that nothing can be had now. It gives fewer where its transaction has claimed so many that their locks (three each) fill a sixteenth of the server''s lock table: some 160 by default. Never waits. Without pipelines only those with a query are looked at; code_version states the code that the worker runs; window_key claims one named window of one pipeline. Where on_mixture is refuse it gives no window whose slice would mix code versions. Errors: 22023, 42704 unknown pool or pipeline, 42501, 25006; 40001 above READ COMMITTED where the ledger moved since the snapshot.';

CREATE FUNCTION backfill_heartbeat(token bigint, progress jsonb DEFAULT NULL) RETURNS timestamptz
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_heartbeat_wrapper';
REVOKE ALL ON FUNCTION backfill_heartbeat(bigint, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION backfill_heartbeat(bigint, jsonb) IS
'Extends the lease by the pipeline''s lease_for from now and answers until when. Touches nothing that a writing transaction holds. Errors: BF001, BF002, 42501, 25006.';

CREATE FUNCTION backfill_finish(token bigint, rows bigint DEFAULT NULL, digest text DEFAULT NULL, metrics jsonb DEFAULT NULL)
    RETURNS text LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_finish_wrapper';
REVOKE ALL ON FUNCTION backfill_finish(bigint, bigint, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION backfill_finish(bigint, bigint, text, jsonb) IS
'Ends the run as done; the slice of its window is what it wrote. Passes the fence. Repeated for a token that was finished it answers the same again. Under a lease of kind verify rows and digest are held to those of the slice, unless replace_partition has compared already. Errors: BF001, BF002 (at the latest at COMMIT), BF007 where the slice would mix code versions and on_mixture is refuse, 55000 where nothing was staged, or compared, also where only as many rows are given for a slice that has a digest, 22023, 42501, 25006.';

CREATE FUNCTION backfill_fail(token bigint, error text, retry boolean DEFAULT true, sqlstate text DEFAULT NULL)
    RETURNS text LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_fail_wrapper';
REVOKE ALL ON FUNCTION backfill_fail(bigint, text, boolean, text) FROM PUBLIC;
COMMENT ON FUNCTION backfill_fail(bigint, text, boolean, text) IS
'Ends the run as failed and answers retrying, failed or refused. It is retried after retry_delay, doubled with each attempt, while attempts remain and retry is true; BF005, BF006, BF007 and BF010 are refusals and never retried. Moves the token''s stage to quarantine. Errors: BF001, BF002, 42501, 25006.';

CREATE FUNCTION backfill_release(token bigint) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_release_wrapper';
REVOKE ALL ON FUNCTION backfill_release(bigint) FROM PUBLIC;
COMMENT ON FUNCTION backfill_release(bigint) IS
'Gives the window back unproduced, in its place in the order and at no cost in attempts. Errors: BF001, BF002, 42501, 25006.';

CREATE FUNCTION fence_check(token bigint) RETURNS backfill.lease
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'fence_check_wrapper';
REVOKE ALL ON FUNCTION fence_check(bigint) FROM PUBLIC;
COMMENT ON FUNCTION fence_check(bigint) IS
'Passes the fence for the rest of the transaction: nobody else can take or write the window, and COMMIT looks once more. Errors: BF001 stale token, BF002 revoked lease (at the latest at COMMIT), 40001 above READ COMMITTED, 42501, 25006.';

CREATE FUNCTION backfill.fence_look_first() RETURNS trigger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'fence_look_first_wrapper';
REVOKE ALL ON FUNCTION backfill.fence_look_first() FROM PUBLIC;
COMMENT ON FUNCTION backfill.fence_look_first() IS
'The trigger of fenced leases: has COMMIT look at their rights before foreign servers commit.';
-- Not for a lease that is ending: its end puts the look first itself.
CREATE CONSTRAINT TRIGGER fence_look_first AFTER UPDATE OF fence_xid ON backfill.run_data
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.ended_at IS NULL)
    EXECUTE FUNCTION backfill.fence_look_first();
COMMENT ON TRIGGER fence_look_first ON backfill.run_data IS
'Right before a COMMIT, its look at the rights of the lease is put before the commits of foreign servers.';

CREATE FUNCTION backfill_new_epoch(reason text) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_new_epoch_wrapper';
REVOKE ALL ON FUNCTION backfill_new_epoch(text) FROM PUBLIC;
COMMENT ON FUNCTION backfill_new_epoch(text) IS
'Starts a new epoch of fencing tokens after a restore that the server cannot notice by itself, voids all open leases, and answers the first token. For superusers (42501). Errors: 22023 without a reason, 25006.';

CREATE FUNCTION backfill.may_commit() RETURNS boolean
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'may_commit_wrapper';
COMMENT ON FUNCTION backfill.may_commit() IS
'Whether the procedure that calls it may commit: it was not called inside of a transaction block, a function or a block with EXCEPTION.';

-- The body names everything with its schema, because a procedure that commits can carry no SET.
CREATE PROCEDURE backfill_work(
    worker      text    DEFAULT NULL,
    pools       text[]  DEFAULT NULL,
    pipelines   text[]  DEFAULT NULL,
    max_windows bigint  DEFAULT NULL,
    until_idle  boolean DEFAULT true
) LANGUAGE plpgsql AS $$
DECLARE
    lease   backfill.lease;
    done    pg_catalog.int8 := 0;
    message pg_catalog.text;
    state   pg_catalog.text;
    other   pg_catalog.text;
BEGIN
    worker := COALESCE(worker, pg_catalog.format('backfill_work %s', pg_catalog.pg_backend_pid()));
    IF NOT backfill.may_commit() THEN
        RAISE EXCEPTION 'backfill_work cannot run inside a transaction block'
            USING ERRCODE = '25001',
                  DETAIL = 'It commits: it claims windows in one transaction and writes their slices in the next. Nothing was claimed.',
                  HINT = 'CALL backfill_work(...) by itself: outside of BEGIN, of functions and DO blocks that run in a transaction, and of blocks with EXCEPTION.';
    END IF;
    -- Each of its windows would fail, and cost an attempt.
    SELECT p.pipeline INTO other FROM backfill.pipelines p
    WHERE p.pipeline OPERATOR(pg_catalog.=) ANY (backfill_work.pipelines) AND p.query IS NULL LIMIT 1;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'pipeline "%" has no query that backfill_work could run', other
            USING ERRCODE = '55000',
                  DETAIL = 'Its windows are for workers that make the rows themselves.',
                  HINT = pg_catalog.format('Claim them with SELECT * FROM backfill_claim(''...'', pipelines => ARRAY[%L]), or give it a query with pipeline_alter.', other);
    END IF;
    WHILE COALESCE(done OPERATOR(pg_catalog.<) max_windows, true) LOOP
        SELECT c.* INTO lease
        FROM @extschema@.backfill_claim(worker => backfill_work.worker, pools => backfill_work.pools,
                                        pipelines => backfill_work.pipelines) c;
        COMMIT;
        IF lease.token IS NULL THEN
            EXIT WHEN COALESCE(until_idle, true);
            PERFORM pg_catalog.pg_sleep(1);
            CONTINUE;
        END IF;
        BEGIN
            SELECT a.error, a.sqlstate INTO message, state FROM @extschema@.replace_or_keep(lease.token) a;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
        END;
        IF state IS NOT NULL THEN
            RAISE WARNING 'window % of pipeline "%" failed: %', lease.window_key, lease.pipeline, message;
            BEGIN
                PERFORM @extschema@.backfill_fail(lease.token, message, true, state);
            EXCEPTION WHEN SQLSTATE 'BF001' OR SQLSTATE 'BF002' THEN
                -- The lease is gone already: there is nothing to report.
                NULL;
            END;
        END IF;
        COMMIT;
        done := done OPERATOR(pg_catalog.+) 1;
    END LOOP;
END
$$;
REVOKE ALL ON PROCEDURE backfill_work(text, text[], text[], bigint, boolean) FROM PUBLIC;
COMMENT ON PROCEDURE backfill_work(text, text[], text[], bigint, boolean) IS
'Runs windows of pipelines with a query in this session: claims in one transaction; runs the query, replaces the slice and finishes in a second. Ends after max_windows, or when nothing can be claimed (until_idle). Refused inside of a transaction block (25001), and for a pipeline without a query (55000). A window that fails is reported as a warning and retried as backfill_fail says.';
