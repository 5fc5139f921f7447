CREATE FUNCTION pipeline_version(pipeline text) RETURNS text
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pipeline_version_wrapper';
COMMENT ON FUNCTION pipeline_version(text) IS
'The code version of the pipeline now: of a query the fingerprint of what it means, with all tables, views, functions and types that it reaches; else the version that it is pinned to, or NULL. Errors: 42704, 42501, 55P03 where somebody keeps a table of the query locked for longer than lock_timeout (2 seconds if none is set), and those of the query.';

CREATE FUNCTION pipeline_lint(
    pipeline text, OUT rule text, OUT severity text, OUT object text, OUT place text, OUT remedy text
) RETURNS SETOF record
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pipeline_lint_wrapper';
COMMENT ON FUNCTION pipeline_lint(text) IS
'What keeps the pipeline''s query from being a function of its window: the clock, random values, sequences, the session, tables that the window does not restrict, choices that no ORDER BY makes; in the query, in all that it reaches, and in what the target fills in. severity error: by what it says, the same window can give other rows at another time or in another session; warning: it depends on data or on rounding that may change. Errors first; no rows for a pipeline without a query. Errors: as pipeline_version.';

CREATE FUNCTION pipeline_explain_version(
    pipeline text, OUT kind text, OUT name text, OUT change text, OUT definition text, OUT before text
) RETURNS SETOF record
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'pipeline_explain_version_wrapper';
COMMENT ON FUNCTION pipeline_explain_version(text) IS
'What the meaning of the pipeline''s query depends on: the query itself, and each view, columns of a view that are read, table with the columns that are read, function, operator, cast, type, collation and text search configuration that it reaches; search_path where a function finds names by it when it runs. change (same, changed, new, gone) and before say how each differs from what the slice of the newest window was built by; NULL where there is none. Errors: as pipeline_version.';

CREATE FUNCTION slice_version(target regclass, at timestamptz) RETURNS text
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'slice_version_wrapper';
COMMENT ON FUNCTION slice_version(regclass, timestamptz) IS
'The code version that built the slice which a target, or a partition of one, holds for an instant; NULL where the ledger knows of no slice, or not by what it was built. A look at two indexes, so that a query can ask it for each window that it reads. Errors: 42704 where no pipeline fills the table, 42501.';

CREATE FUNCTION version_compatible(pipeline text, old text, new text, reason text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'version_compatible_wrapper';
REVOKE ALL ON FUNCTION version_compatible(text, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION version_compatible(text, text, text, text) IS
'Says that slices of two code versions may stand side by side: that they mean the same, as far as anybody who reads the target cares. They, and all that either was said to be compatible with, are one class then: backfill.version_mix counts classes, and leases and plans of the one run on under the other. backfill.compatible_versions shows who said so and why. Answers recorded, or unchanged where that was said before. For the owner. Where the pipeline has no query, new may be a version that no worker has stated yet. Errors: 42704 for a version that the pipeline never had, 22023 for the same version twice and for a blank reason, 40001 while another transaction records a version, 55P03 where somebody keeps a table of the query locked for longer than lock_timeout (2 seconds if none is set), 22004, 42501, 25006, and those of the query.';

CREATE FUNCTION version_compatible_drop(pipeline text, old text, new text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'version_compatible_drop_wrapper';
REVOKE ALL ON FUNCTION version_compatible_drop(text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION version_compatible_drop(text, text, text) IS
'Takes back what version_compatible said of two code versions, and answers dropped. A mixture of the two shows again. For the owner. Errors: 42704 where nothing was said of them, 22004, 42501, 25006.';
