CREATE TYPE backfill.pipeline_settings AS (
    cadence           interval,
    start_at          text,
    target            oid,
    slice_column      name,
    time_zone         text,
    query             text,
    code_version      text,
    depends_on_past   boolean,
    backlog           int,
    catchup           int,
    delay             interval,
    pool              text,
    max_active        int,
    lease_for         interval,
    run_timeout       interval,
    max_attempts      int,
    retry_delay       interval,
    source_retention  interval,
    expected_duration interval,
    cost_per_hour     numeric,
    max_shrink        real,
    on_mixture        text,
    on_impure         text,
    keep_previous     interval,
    stamp_column      name,
    description       text
);
COMMENT ON TYPE backfill.pipeline_settings IS 'The settings of a pipeline: the arguments of pipeline_define and the keys of pipeline_alter.';

CREATE FUNCTION pipeline_define(
    pipeline          text,
    cadence           interval,
    start_at          backfill.bound,
    target            regclass DEFAULT NULL,
    slice_column      name     DEFAULT NULL,
    time_zone         text     DEFAULT 'UTC',
    query             text     DEFAULT NULL,
    code_version      text     DEFAULT NULL,
    depends_on_past   boolean  DEFAULT false,
    backlog           int      DEFAULT 3,
    catchup           int      DEFAULT 0,
    delay             interval DEFAULT '0',
    pool              text     DEFAULT 'live',
    max_active        int      DEFAULT 1,
    lease_for         interval DEFAULT '5 minutes',
    run_timeout       interval DEFAULT NULL,
    max_attempts      int      DEFAULT 3,
    retry_delay       interval DEFAULT '1 minute',
    source_retention  interval DEFAULT NULL,
    expected_duration interval DEFAULT NULL,
    cost_per_hour     numeric  DEFAULT NULL,
    max_shrink        real     DEFAULT 0.5,
    on_mixture        text     DEFAULT 'warn',
    on_impure         text     DEFAULT 'warn',
    keep_previous     interval DEFAULT NULL,
    stamp_column      name     DEFAULT NULL,
    description       text     DEFAULT NULL
) RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pipeline_define_wrapper';
REVOKE ALL ON FUNCTION pipeline_define(text, interval, backfill.bound, regclass, name, text, text, text, boolean, int, int, interval, text, int, interval, interval, int, interval, interval, interval, numeric, real, text, text, interval, name, text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_define(text, interval, backfill.bound, regclass, name, text, text, text, boolean, int, int, interval, text, int, interval, interval, int, interval, interval, interval, numeric, real, text, text, interval, name, text) IS
'Defines a pipeline, or applies what differs, and answers created, unchanged or what changed; the same call on every deployment changes nothing. Its windows follow each other by cadence (months, days, or a time) from start_at, local in time_zone. Nothing older than backlog windows ever starts by itself. Durations other than the cadence are 100 years at most. on_mixture says what becomes of slices of several code versions: allow, warn (the default) or refuse, which depends_on_past excludes. Another grid is refused: pipeline_alter changes it. Another target or slice_column is refused as by pipeline_alter. Errors: 22023, 42704, 55000, 40001, 42710 where another pipeline has the target, 42501, BF010 where on_impure is refuse and the query is no function of its window, 0A000 for what is not built yet, 25006.';

CREATE FUNCTION pipeline_alter(pipeline text, settings jsonb) RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pipeline_alter_wrapper';
REVOKE ALL ON FUNCTION pipeline_alter(text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_alter(text, jsonb) IS
'Changes some settings, named as in pipeline_define, and answers unchanged or what changed. With switch_at, cadence, time_zone and start_at lay another grid from that instant on, a boundary of both grids and not before the end of the newest window that the ledger names; the windows before it stay. An earlier start_at alone adds windows before the first one. Another target or slice_column is refused (55000) while the ledger holds slices of the old one, or open leases; a column that was renamed may be named. Errors: 22023 for unknown settings too, BF012 where switch_at or start_at is off a grid, 40001 while windows are being claimed or a slice is being written; for on_mixture 55000 after a decision or a publication in the same transaction, and 55P03 while a publication that it let in, or an adoption, is open for longer than lock_timeout (2 seconds if none is set); and those of pipeline_define.';

CREATE FUNCTION pipeline_rename(pipeline text, new_name text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_rename_wrapper';
REVOKE ALL ON FUNCTION pipeline_rename(text, text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_rename(text, text) IS
'Gives the pipeline another name, and answers renamed or unchanged. Its windows, plans, leases and grants stay as they are; workers that name it need the new name. Errors: 22023 for a blank name, 42710 for one that is taken, 42704, 42501, 25006.';

CREATE FUNCTION pipeline_pause(pipeline text, reason text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_pause_wrapper';
REVOKE ALL ON FUNCTION pipeline_pause(text, text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_pause(text, text) IS
'Stops new live leases from the next claim on; plans and what runs go on. Answers paused or unchanged. Errors: 22023 without a reason, 42704, 42501, 25006.';

CREATE FUNCTION pipeline_resume(pipeline text, OUT missed bigint, OUT oldest timestamptz, OUT newest timestamptz, OUT plan_id bigint)
    RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 1 SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_resume_wrapper';
REVOKE ALL ON FUNCTION pipeline_resume(text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_resume(text) IS
'Lets the pipeline start windows again, from the next one that falls due. Answers how many due windows were missed, the starts of the oldest and the newest, and a draft plan of them, which does nothing until it is approved and replaces the draft of an earlier resume; plan_id is NULL where nothing was missed, and where more than 10 million windows were: plan those in parts. Errors: 42704, 42501, 25006.';

CREATE FUNCTION pipeline_drop(pipeline text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_drop_wrapper';
REVOKE ALL ON FUNCTION pipeline_drop(text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_drop(text) IS
'Drops the pipeline: its plans that have not ended are cancelled, its leases are void, its name and target are free. Its runs and slices stay in the ledger, its target is not touched. Errors: 42704, 42501, 25006.';

CREATE FUNCTION pipeline_grant(pipeline text, role text, level text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_grant_wrapper';
REVOKE ALL ON FUNCTION pipeline_grant(text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_grant(text, text, text) IS
'Gives a role the level read, work or operate on the pipeline, each including those before it, and EXECUTE on the functions of that level. Errors: 22023 unknown level, 42704 unknown role or pipeline, 42501, 25006.';

CREATE FUNCTION pipeline_revoke(pipeline text, role text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_revoke_wrapper';
REVOKE ALL ON FUNCTION pipeline_revoke(text, text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_revoke(text, text) IS
'Takes a role''s level on the pipeline away, and EXECUTE with the last one. Answers revoked or unchanged. Errors: 42704, 42501, 25006.';

CREATE FUNCTION pool_define(pool text, slots int) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pool_define_wrapper';
REVOKE ALL ON FUNCTION pool_define(text, int) FROM PUBLIC;
COMMENT ON FUNCTION pool_define(text, int) IS
'Sets how many windows a pool lets run at once (0 to 10000). Lowering it ends nothing: no claim is granted until fewer are held. For superusers (42501). Errors: 22023, 25006.';

CREATE FUNCTION pool_pause(pool text, reason text, revoke boolean DEFAULT false) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pool_pause_wrapper';
REVOKE ALL ON FUNCTION pool_pause(text, text, boolean) FROM PUBLIC;
COMMENT ON FUNCTION pool_pause(text, text, boolean) IS
'Stops the pool from the next claim on. With revoke its leases are taken away too, in time that does not depend on their number: no transaction that writes under one can commit (BF002), their attempts do not count, and their windows come back after pool_resume. Answers paused or unchanged. For superusers (42501). Errors: 22023 without a reason, 42704, 25006.';

CREATE FUNCTION pool_resume(pool text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pool_resume_wrapper';
REVOKE ALL ON FUNCTION pool_resume(text) FROM PUBLIC;
COMMENT ON FUNCTION pool_resume(text) IS
'Lets a paused pool hand out windows again; leases that were revoked stay so. Answers resumed or unchanged. For superusers (42501). Errors: 42704, 25006.';

CREATE FUNCTION pool_drop(pool text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pool_drop_wrapper';
REVOKE ALL ON FUNCTION pool_drop(text) FROM PUBLIC;
COMMENT ON FUNCTION pool_drop(text) IS
'Drops a pool that no pipeline, unfinished plan or lease uses (one whose right has ended does not); live and backfill then exist again with their own slots. For superusers (42501). Errors: 55000 with who uses it, 42704, 25006.';
