-- Not pinned, because a function with a SET clause costs more than the check: what it runs pins it.
CREATE FUNCTION backfill.fence_guard() RETURNS trigger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'fence_guard_wrapper';
REVOKE ALL ON FUNCTION backfill.fence_guard() FROM PUBLIC;
COMMENT ON FUNCTION backfill.fence_guard() IS
'The trigger of protected targets, made by fence_protect(), with the mode as its argument. Refuses rows that lie in no window which the transaction is fenced for, and TRUNCATE (BF011), or counts them for backfill.unfenced_writes.';

CREATE FUNCTION fence_protect(target regclass, mode text DEFAULT 'refuse') RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'fence_protect_wrapper';
REVOKE ALL ON FUNCTION fence_protect(regclass, text) FROM PUBLIC;
COMMENT ON FUNCTION fence_protect(regclass, text) IS
'Refuses (BF011) every write to the target whose old or new row is not inside a window that its transaction passed the fence of, and TRUNCATE; with mode log refuses nothing and records such writes in backfill.unfenced_writes. For the owner of the pipeline who also owns the table. Replication passes. Repeated it changes the mode and guards partitions that came since. Answers protected, changed: … or unchanged. Waits for writers up to lock_timeout, 2 seconds where none is set (55P03). Errors: 22023 for a table that is no pipeline''s target or an unknown mode, 0A000 for what is not a table or cannot be guarded, 42710, 42704, 22004, 42501, 25006.';

CREATE FUNCTION fence_unprotect(target regclass) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'fence_unprotect_wrapper';
REVOKE ALL ON FUNCTION fence_unprotect(regclass) FROM PUBLIC;
COMMENT ON FUNCTION fence_unprotect(regclass) IS
'Lifts the protection of a table. For its owner, who must also own the pipeline if it still is a target. Answers unprotected or not protected. Waits for readers and writers up to lock_timeout, 2 seconds where none is set (55P03). Errors: 22023 for a partition of a protected table, 42704, 22004, 42501, 25006.';

-- Several rows may be about the same: a writer takes one that nobody holds, or adds one.
CREATE TABLE backfill.unfenced_write_data (
    pipeline_id      bigint      NOT NULL,
    target           regclass    NOT NULL,
    operation        text        NOT NULL CHECK (operation IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')),
    role             text        NOT NULL,
    session_role     text        NOT NULL,
    application_name text        NOT NULL,
    client_addr      inet,
    first_seen       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    last_seen        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    transactions     bigint      NOT NULL DEFAULT 1,
    rows             bigint      NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX unfenced_write ON backfill.unfenced_write_data (pipeline_id, target, operation, role);
COMMENT ON TABLE backfill.unfenced_write_data IS 'Writes to protected targets without a fence, where they are logged and not refused. Not dumped: it tells of this server''s clients.';
