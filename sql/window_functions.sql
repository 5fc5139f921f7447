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
'The windows of a pipeline between since and until (exclusive; NULL is the first window, and the last complete one) with their state and why. Errors: 54000 for more than 10 million windows, BF012, 22023, 42704, 42501.';

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
'Decides that the windows between since and until (exclusive) do not run, and answers how many were not skipped before. A lease on one is revoked, and a plan that owns one lets go of it for good. Errors: 54000 for more than 10 million windows, BF012, 22023, 42704, 42501, 25006.';

CREATE FUNCTION window_unskip(pipeline text, since backfill.bound, until backfill.bound, reason text) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'window_unskip_wrapper';
REVOKE ALL ON FUNCTION window_unskip(text, backfill.bound, backfill.bound, text) FROM PUBLIC;
COMMENT ON FUNCTION window_unskip(text, backfill.bound, backfill.bound, text) IS
'Takes the skip of the windows between since and until (exclusive) back, and answers how many were skipped. What may start by itself may do so again; a lease that the skip revoked stays revoked. Errors: 54000 for more than 10 million windows, BF012, 22023, 42704, 42501, 25006.';

CREATE FUNCTION window_lock(pipeline text, since backfill.bound, until backfill.bound, reason text) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'window_lock_wrapper';
REVOKE ALL ON FUNCTION window_lock(text, backfill.bound, backfill.bound, text) FROM PUBLIC;
COMMENT ON FUNCTION window_lock(text, backfill.bound, backfill.bound, text) IS
'Closes the windows between since and until (exclusive), and answers how many were not locked before: nobody can lease or plan them until they are unlocked. A lease on one is revoked; a plan that owns one runs it after that. Errors: 54000 for more than 10 million windows, BF012, 22023, 42704, 42501, 25006.';

CREATE FUNCTION window_unlock(pipeline text, since backfill.bound, until backfill.bound, reason text) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'window_unlock_wrapper';
REVOKE ALL ON FUNCTION window_unlock(text, backfill.bound, backfill.bound, text) FROM PUBLIC;
COMMENT ON FUNCTION window_unlock(text, backfill.bound, backfill.bound, text) IS
'Opens the locked windows between since and until (exclusive) again, and answers how many were locked. A lease that the lock revoked stays revoked. Errors: 54000 for more than 10 million windows, BF012, 22023, 42704, 42501, 25006.';

CREATE FUNCTION window_mark_stale(pipeline text, since backfill.bound, until backfill.bound, reason text) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'window_mark_stale_wrapper';
REVOKE ALL ON FUNCTION window_mark_stale(text, backfill.bound, backfill.bound, text) FROM PUBLIC;
COMMENT ON FUNCTION window_mark_stale(text, backfill.bound, backfill.bound, text) IS
'Says that the slices of the windows between since and until (exclusive), and those that are being produced now, are out of date, and answers how many there are. They stay stale until a later lease has produced them again, which a plan must ask for. Call it after what changed is committed. Errors: 54000 for more than 10 million windows, BF012, 22023, 42704, 42501, 25006.';

CREATE FUNCTION window_adopt(
    pipeline     text,
    since        backfill.bound,
    until        backfill.bound,
    code_version text,
    reason       text,
    OUT windows bigint, OUT rows bigint, OUT empty_keys text[]
) RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 1 SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'window_adopt_wrapper';
REVOKE ALL ON FUNCTION window_adopt(text, backfill.bound, backfill.bound, text, text) FROM PUBLIC;
COMMENT ON FUNCTION window_adopt(text, backfill.bound, backfill.bound, text, text) IS
'Takes the rows that the target holds already as the slices of the due windows between since and until (exclusive) that have none, built by code_version. Answers how many windows and rows that are, and the keys of the windows without rows, which stay as they are. Windows that are leased, to be retried, owned by a plan or closed, or that another session is taking, are left alone. Needs SELECT on the target. Errors: BF007 where code_version would mix with the slices that there are and on_mixture is refuse, 55000 after another decision in the same transaction and 55P03 while a worker has published and not committed for longer than lock_timeout (2 seconds if none is set) in that case, 54000 for more than 10 million windows, BF012, 22023 without a code version, a reason or a target, 42704, 42501, 25006.';

CREATE FUNCTION window_unadopt(pipeline text, since backfill.bound, until backfill.bound, reason text) RETURNS bigint
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'window_unadopt_wrapper';
REVOKE ALL ON FUNCTION window_unadopt(text, backfill.bound, backfill.bound, text) FROM PUBLIC;
COMMENT ON FUNCTION window_unadopt(text, backfill.bound, backfill.bound, text) IS
'Takes the adoption of the windows between since and until (exclusive) back where their slices are still the adopted ones, and answers how many. They are what they were before; the rows of the target stay. Errors: 55000 after another decision in the same transaction where on_mixture is refuse, and 55P03 there while a worker has published and not committed for longer than lock_timeout (2 seconds if none is set), 54000 for more than 10 million windows, BF012, 22023, 42704, 42501, 25006.';

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
