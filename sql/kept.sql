-- What plans replaced, for as long as the pipeline keeps it. One table for all: publishing runs no DDL, takes no lock that
-- another publisher needs, and a target that got another shape meanwhile is still served, by the names of the columns.
CREATE TABLE backfill.kept_data (
    token          bigint      NOT NULL PRIMARY KEY,   -- the run that replaced it
    pipeline_id    bigint      NOT NULL,
    previous_token bigint,                             -- whose slice it was; NULL where the ledger knew of none
    changed        boolean     NOT NULL,               -- false: the rows stayed, so that none are kept
    columns        text[]      NOT NULL,
    rows           bigint      NOT NULL,
    bytes          bigint      NOT NULL,
    digest         text        NOT NULL,
    kept_until     timestamptz NOT NULL,
    dropped_at     timestamptz                         -- the rows are gone; the line stays, to say since when
);
CREATE INDEX kept_to_drop ON backfill.kept_data (pipeline_id, kept_until) WHERE changed AND dropped_at IS NULL;
COMMENT ON TABLE backfill.kept_data IS 'What a run of a plan replaced, in pipelines with keep_previous: one line for each publication.';

CREATE TABLE backfill.kept_row_data (
    token bigint NOT NULL,
    cells text[] NOT NULL   -- in the order of the columns; as their output functions write them, NULL for NULL
);
CREATE INDEX kept_row_token ON backfill.kept_row_data (token);
COMMENT ON TABLE backfill.kept_row_data IS 'The rows that are kept, as text. For the ledger only.';

CREATE VIEW backfill.kept_slices WITH (security_barrier) AS
SELECT k.token, v.name AS pipeline, backfill.window_key(k.pipeline_id, r.window_start) AS window_key, r.window_start,
       r.plan_id, k.previous_token, k.rows, k.bytes, k.kept_until
FROM backfill.kept_data k
JOIN backfill.run_data r ON r.token = k.token
JOIN backfill.readable_data v ON v.pipeline_id = k.pipeline_id
WHERE k.changed AND k.dropped_at IS NULL;
COMMENT ON VIEW backfill.kept_slices IS 'Slices that a plan replaced under token, kept for backfill_revert() until kept_until: how many rows they had, and their size as text in bytes. previous_token is NULL where the ledger knew of no slice.';
GRANT SELECT ON backfill.kept_slices TO PUBLIC;

-- No SET clause: what triggers and checks of the target name is found by the caller's own search_path, as in replace_partition().
CREATE FUNCTION backfill_revert(plan_id bigint, reason text) RETURNS bigint
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'backfill_revert_wrapper';
REVOKE ALL ON FUNCTION backfill_revert(bigint, text) FROM PUBLIC;
COMMENT ON FUNCTION backfill_revert(bigint, text) IS
'Puts back what every window held before the plan published it, as the caller, by his search_path and under new tokens with the code version of then, and answers how many windows; all of them or none. A window that had no slice has none again, and is missed. The plan must have ended or be cancelled, and its pipeline must keep what plans replace (keep_previous). Shrink guard and audits do not count; effects that left are not taken back; on_mixture does not keep it from mixing code versions, which backfill.plan_events keeps. Errors: BF001 where a window was published again since, BF009 where another plan will produce one, 55000 for a plan that has windows left, was reverted, or published nothing, for a window that is locked or skipped, and where what was there is not kept, also after another decision in the same transaction, 40001 where a claim of a window is under way, 55P03 where somebody holds the rows for longer than lock_timeout (2 seconds if none is set), 22023, 22004, 42501, 42704, 25006.';
