CREATE FUNCTION pipeline_version(pipeline text) RETURNS text
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pipeline_version_wrapper';
COMMENT ON FUNCTION pipeline_version(text) IS
'The code version of the pipeline now: of a query the fingerprint of what it means, with all tables, views, functions and types that it reaches; else the version that it is pinned to, or NULL. Errors: 42704, 42501, 55P03 where somebody keeps a table of the query locked for longer than lock_timeout (2 seconds if none is set), and those of the query.';

CREATE FUNCTION pipeline_explain_version(
    pipeline text, OUT kind text, OUT name text, OUT change text, OUT definition text, OUT before text
) RETURNS SETOF record
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pipeline_explain_version_wrapper';
COMMENT ON FUNCTION pipeline_explain_version(text) IS
'What the meaning of the pipeline''s query depends on: the query itself, and each view, table with the columns that are read, function, type and collation that it reaches; search_path where a function finds names by it when it runs. change (same, changed, new, gone) and before say how each differs from what the slice of the newest window was built by; NULL where there is none. Errors: as pipeline_version.';

CREATE FUNCTION slice_version(target regclass, at timestamptz) RETURNS text
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'slice_version_wrapper';
COMMENT ON FUNCTION slice_version(regclass, timestamptz) IS
'The code version that built the slice which a target, or a partition of one, holds for an instant; NULL where the ledger knows of no slice, or not by what it was built. One look at an index, so that a query can ask it for each window that it reads. Errors: 42704 where no pipeline fills the table, 42501.';
