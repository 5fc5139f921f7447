-- Windows that were built again to see whether the same comes of it.
CREATE TABLE backfill.verification_data (
    token          bigint      NOT NULL PRIMARY KEY,   -- the run that built the window again
    pipeline_id    bigint      NOT NULL,
    plan_id        bigint      NOT NULL,
    window_start   timestamptz NOT NULL,
    slice_token    bigint      NOT NULL,               -- whose slice it was held to
    slice_version  text,
    code_version   text,
    same           boolean     NOT NULL,
    rows_published bigint,
    rows_rebuilt   bigint,
    only_published bigint,
    only_rebuilt   bigint,
    columns        text[],
    cause          text,
    verified_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CHECK (same = (cause IS NULL))
);
CREATE INDEX verification_window ON backfill.verification_data (pipeline_id, window_start, token);
COMMENT ON TABLE backfill.verification_data IS 'What verifications found: a line for each run that compared, whatever became of it afterwards.';

CREATE FUNCTION backfill_verify(
    pipeline text,
    since    backfill.bound,
    until    backfill.bound,
    sample   int DEFAULT 10
) RETURNS backfill.plan_summary
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_verify_wrapper';
REVOKE ALL ON FUNCTION backfill_verify(text, backfill.bound, backfill.bound, int) FROM PUBLIC;
COMMENT ON FUNCTION backfill_verify(text, backfill.bound, backfill.bound, int) IS
'Has windows between since and until (exclusive; NULL is the first window, and the last complete one) that hold a slice built again, sample of them (NULL: all), and compares what comes of it with what is published, which stays untouched. Makes a plan that is approved at once, and answers as backfill_plan does. The windows are the oldest, the newest, and between them one drawn from each of equal parts. Workers get them as leases of run_kind verify with publish none. backfill.verifications shows what was found. Errors: 22023 for a sample below 1, 54000 for more than 10 million windows, BF012, 42704, 42501, 25006, and those of the query.';
