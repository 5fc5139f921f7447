-- No SET clause: what triggers and checks of the target name is found by the caller's own search_path, as in replace_partition().
CREATE FUNCTION quarantine_accept(token bigint, reason text) RETURNS backfill.replacement
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'quarantine_accept_wrapper';
REVOKE ALL ON FUNCTION quarantine_accept(bigint, text) FROM PUBLIC;
COMMENT ON FUNCTION quarantine_accept(bigint, text) IS
'Publishes the rows that the attempt with that token left in quarantine, under a new token, as the caller and by his search_path. The reason is kept in backfill.runs (allow_shrink); it stands in for the shrink guard, not for the bounds of the window. Errors: BF001 where the window was handed out again since, BF005 for rows outside the window, BF007 where the slice would mix code versions and on_mixture is refuse, BF009 where a plan will produce it, 40001 where a claim of it is under way, 42704 for a token without rows in quarantine, 55000 where the window is closed or waits for one before it, and where something depends on the table of the rows, or the transaction has made a decision before, 55P03 where somebody keeps it waiting beyond lock_timeout (2 seconds where none is set), 22023, 22004, 42501, 25006.';

CREATE FUNCTION quarantine_discard(token bigint) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'quarantine_discard_wrapper';
REVOKE ALL ON FUNCTION quarantine_discard(bigint) FROM PUBLIC;
COMMENT ON FUNCTION quarantine_discard(bigint) IS
'Drops the rows that the attempt with that token left in quarantine; answers how many there were. Errors: 42704 for a token without rows in quarantine, 40001 while a transaction reads them, 55000 where something depends on their table, 22004, 42501, 25006.';

CREATE FUNCTION backfill_sweep(OUT dropped bigint, OUT left_over bigint)
    RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_sweep_wrapper';
REVOKE ALL ON FUNCTION backfill_sweep() FROM PUBLIC;
COMMENT ON FUNCTION backfill_sweep() IS
'Drops the staging tables of attempts that have ended or were revoked, and what was in quarantine for 30 days: up to 1,000 tables a call; and as many slices whose time to be kept is over (backfill.kept_slices). Those that a transaction uses, or that a view depends on, are left over. For superusers. Errors: 42501, 25006.';

CREATE FUNCTION backfill.stage_bytes(relation regclass) RETURNS bigint
    LANGUAGE c STABLE STRICT SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'stage_bytes_wrapper';
COMMENT ON FUNCTION backfill.stage_bytes(regclass) IS
'What a table takes on disk with its TOAST, in bytes; NULL while a transaction holds it exclusively, since views wait for nobody.';

CREATE VIEW backfill.stages WITH (security_barrier) AS
SELECT s.token, v.name AS pipeline, backfill.window_key(s.pipeline_id, r.window_start) AS window_key, s.state, s.relation,
       backfill.stage_bytes(s.relation) AS bytes, s.made_by, s.made_at, s.kept_until
FROM backfill.stage_state_data s
JOIN backfill.run_data r ON r.token = s.token
JOIN backfill.readable_data v ON v.pipeline_id = s.pipeline_id;
COMMENT ON VIEW backfill.stages IS 'Staging tables and their sizes in bytes: loading, quarantined (until kept_until), or dead, which the next stage of the pipeline or backfill_sweep() drops.';
GRANT SELECT ON backfill.stages TO PUBLIC;

CREATE VIEW backfill.quarantine WITH (security_barrier) AS
SELECT s.token, v.name AS pipeline,
       backfill.window_key(r.pipeline_id, r.window_start) AS window_key, s.relation, s.rows, s.reason, s.sqlstate, s.quarantined_at,
       s.kept_until
FROM backfill.stage_state_data s
JOIN backfill.run_data r ON r.token = s.token
JOIN backfill.readable_data v ON v.pipeline_id = s.pipeline_id
WHERE s.state = 'quarantined';
COMMENT ON VIEW backfill.quarantine IS 'Rows of attempts that failed or were refused, kept in the table named by relation, with the reason; quarantine_accept() and quarantine_discard() decide about them.';
GRANT SELECT ON backfill.quarantine TO PUBLIC;
