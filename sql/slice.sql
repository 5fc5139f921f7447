CREATE TYPE backfill.replacement AS (
    token    bigint,
    strategy text,
    rows     bigint,
    inserted bigint,
    deleted  bigint,
    changed  boolean,
    digest   text
);
COMMENT ON TYPE backfill.replacement IS 'What replace_partition did: by which strategy, the rows that the slice holds now, how many came and how many went (by rows, all of them; by diff, those that differ), and the digest of the rows. strategy none is a verification: rows and digest are of what was built, and nothing was written.';

CREATE TYPE backfill.attempt AS (
    sqlstate text,
    error    text
);
COMMENT ON TYPE backfill.attempt IS 'How an attempt went that keeps refused rows: NULLs where the slice was published, else why it was refused.';

-- No SET clause: a query given at the call is read under the caller's own search_path. What the function
-- itself runs pins it.
CREATE FUNCTION replace_partition(
    token        bigint,
    query        text     DEFAULT NULL,
    staging      regclass DEFAULT NULL,
    strategy     text     DEFAULT 'auto',
    allow_shrink text     DEFAULT NULL,
    finish       boolean  DEFAULT true
) RETURNS backfill.replacement
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'replace_partition_wrapper';
REVOKE ALL ON FUNCTION replace_partition(bigint, text, regclass, text, text, boolean) FROM PUBLIC;
COMMENT ON FUNCTION replace_partition(bigint, text, regclass, text, text, boolean) IS
'Exchanges the rows of a window for new ones in one step and ends the run as done, unless finish is false. The rows come from query or staging, else from the stage of the token, else from the query of the lease; a query and a staging table given here run as the caller, the query of the lease as the owner of the pipeline. An unchanged slice is not written. Under a lease of kind verify no slice is: the new rows are compared with it, and backfill.verifications shows how they differ. strategy rows deletes and inserts the whole slice, diff writes only the rows that differ, auto picks between them and says which; swap gives the partition that is exactly the window other storage: it locks that partition, and transactions with an older snapshot see the new rows. Errors: BF001, BF002 (at the latest at COMMIT), BF004 where the query changed since the lease was given, BF005 for rows outside the window, BF006 where too many rows would be lost and allow_shrink gives no reason, BF007 where the slice would mix code versions and on_mixture is refuse, BF010 where on_impure is refuse and the query is no function of its window, 40001 where the table does not hold what was written, or another target is being named, 0A000 for swap where the target has no such partition or something would be passed by (publications, foreign keys, triggers, row-level security; DETAIL says what), and for diff where a partition is a foreign table, 55P03 and 55006 for swap where the partition is in use, 23505 for swap, 22023, 22004, 42501, 42704, 54000 for diff where the rows of the slice do not fit into maintenance_work_mem, 55000 without a target, where something depends on the stage, and for auto where a foreign key would delete or change rows that refer to ones that come again, 25006, and those of the query.';

CREATE FUNCTION replace_or_keep(token bigint) RETURNS backfill.attempt
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'replace_or_keep_wrapper';
REVOKE ALL ON FUNCTION replace_or_keep(bigint) FROM PUBLIC;
COMMENT ON FUNCTION replace_or_keep(bigint) IS
'Like replace_partition(token), for backfill_work: rows that are refused (BF005, BF006, BF007) are put into the stage of the token, where backfill_fail takes them into quarantine, and the refusal is answered instead of raised. All other errors are raised.';

CREATE FUNCTION backfill_stage(token bigint) RETURNS regclass
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_stage_wrapper';
REVOKE ALL ON FUNCTION backfill_stage(bigint) FROM PUBLIC;
COMMENT ON FUNCTION backfill_stage(bigint) IS
'Makes a table for COPY, empty and shaped like the target, that belongs to the token, and answers its name; the same one again if it is there. replace_partition takes its rows and drops it; backfill_fail moves it to quarantine. Errors: BF001, BF002 (at the latest at COMMIT), 22004, 42501, 42704, 55000 without a target, 25006.';
