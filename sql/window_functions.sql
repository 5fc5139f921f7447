CREATE FUNCTION pipeline_windows(
    pipeline text,
    since    backfill.bound DEFAULT NULL,
    until    backfill.bound DEFAULT NULL,
    OUT window_key text, OUT window_start timestamptz, OUT window_end timestamptz, OUT state text,
    OUT code_version text, OUT plan_id bigint, OUT token bigint, OUT attempts int, OUT rows bigint,
    OUT published_at timestamptz, OUT why text
) RETURNS SETOF record
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_windows_wrapper';
COMMENT ON FUNCTION pipeline_windows(text, backfill.bound, backfill.bound) IS
'The windows of a pipeline between since and until (exclusive; NULL is the first window, and the last complete one) with their state and why. Errors: BF012, 22023, 42704, 42501.';

CREATE FUNCTION pipeline_calendar(
    pipeline text,
    since    backfill.bound DEFAULT NULL,
    until    backfill.bound DEFAULT NULL
) RETURNS SETOF text
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_calendar_wrapper';
COMMENT ON FUNCTION pipeline_calendar(text, backfill.bound, backfill.bound) IS
'The windows of a pipeline between since and until (exclusive; NULL is the first window, and the last complete one) as a calendar of text, 80 columns wide: one glyph a window, a letter for each code version where there are several, and what the glyphs mean with their counts. Errors: 22023 for more than 10,000 windows, BF012, 42704, 42501.';

CREATE FUNCTION window_why(pipeline text, window_key text) RETURNS text
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'window_why_wrapper';
COMMENT ON FUNCTION window_why(text, text) IS
'Why a window is as it is, in one honest sentence or more. Errors: 22023 for a text that is no key, 42704, 42501.';

CREATE FUNCTION window_skip(pipeline text, since backfill.bound, until backfill.bound, reason text) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'window_skip_wrapper';
REVOKE ALL ON FUNCTION window_skip(text, backfill.bound, backfill.bound, text) FROM PUBLIC;
COMMENT ON FUNCTION window_skip(text, backfill.bound, backfill.bound, text) IS
'Decides that the windows between since and until (exclusive) do not run, and answers how many were not skipped before. A lease on one is revoked. Errors: BF012, 22023, 42704, 42501, 25006.';

CREATE FUNCTION backfill.windows_of(
    pipeline_id bigint,
    OUT window_key text, OUT window_start timestamptz, OUT window_end timestamptz, OUT state text,
    OUT code_version text, OUT plan_id bigint, OUT token bigint, OUT attempts int, OUT rows bigint,
    OUT published_at timestamptz, OUT why text
) RETURNS SETOF record
    LANGUAGE c STABLE STRICT SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'windows_of_wrapper';
COMMENT ON FUNCTION backfill.windows_of(bigint) IS
'The windows of a pipeline that have a run, are in an approved plan, or were decided about. For backfill.windows; none for a pipeline that the caller may not read.';

CREATE FUNCTION backfill.missed_of(pipeline_id bigint, OUT windows bigint, OUT oldest timestamptz, OUT newest timestamptz)
    RETURNS SETOF record
    LANGUAGE c STABLE STRICT ROWS 1 SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'missed_of_wrapper';
COMMENT ON FUNCTION backfill.missed_of(bigint) IS 'The missed windows of a pipeline. For backfill.missed; none for a pipeline that the caller may not read.';

CREATE FUNCTION backfill.waiting_of(
    pipeline_id bigint,
    OUT window_key text, OUT window_start timestamptz, OUT state text, OUT plan_id bigint, OUT waits_since timestamptz,
    OUT blocked_by text, OUT reason text
) RETURNS SETOF record
    LANGUAGE c STABLE STRICT SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'waiting_of_wrapper';
COMMENT ON FUNCTION backfill.waiting_of(bigint) IS
'The windows of a pipeline that would run and have no lease, and what is in the way (NULL: nothing). For backfill.blocked and backfill.attention; none for a pipeline that the caller may not read.';

CREATE FUNCTION backfill.waiting_for(pool_id int) RETURNS bigint
    LANGUAGE c STABLE STRICT SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'waiting_for_wrapper';
COMMENT ON FUNCTION backfill.waiting_for(int) IS 'How many windows wait for a slot of a pool. For backfill.pools.';

-- Called for every row of a view, where a SET clause would cost more than the function. It pins what it reads itself.
CREATE FUNCTION backfill.window_key(pipeline_id bigint, window_start timestamptz) RETURNS text
    LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'window_key_wrapper';
COMMENT ON FUNCTION backfill.window_key(bigint, timestamptz) IS
'The key of the window of a pipeline around an instant. For the views; NULL for a pipeline that the caller may not read.';
