-- A bound given by a person. One base type with implicit casts, because function overloads cannot keep
-- PostgreSQL from reading a bare literal in the session's zone. The text is read by the pipeline's zone
-- later; nothing here depends on TimeZone or DateStyle.
CREATE TYPE backfill.bound;

CREATE FUNCTION backfill.bound_in(cstring) RETURNS backfill.bound
    LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'textin';
CREATE FUNCTION backfill.bound_out(backfill.bound) RETURNS cstring
    LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'textout';
CREATE FUNCTION backfill.bound_recv(internal) RETURNS backfill.bound
    LANGUAGE internal STABLE STRICT PARALLEL SAFE AS 'textrecv';
CREATE FUNCTION backfill.bound_send(backfill.bound) RETURNS bytea
    LANGUAGE internal STABLE STRICT PARALLEL SAFE AS 'textsend';

CREATE TYPE backfill.bound (
    INPUT = backfill.bound_in,
    OUTPUT = backfill.bound_out,
    RECEIVE = backfill.bound_recv,
    SEND = backfill.bound_send,
    LIKE = pg_catalog.text
);

CREATE FUNCTION backfill.bound(date) RETURNS backfill.bound
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD'
    RETURN $1::text::backfill.bound;
CREATE FUNCTION backfill.bound(timestamp) RETURNS backfill.bound
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD'
    RETURN $1::text::backfill.bound;
CREATE FUNCTION backfill.bound(timestamptz) RETURNS backfill.bound
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' SET timezone = 'UTC'
    RETURN $1::text::backfill.bound;

CREATE CAST (text AS backfill.bound) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (varchar AS backfill.bound) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (date AS backfill.bound) WITH FUNCTION backfill.bound(date) AS IMPLICIT;
CREATE CAST (timestamp AS backfill.bound) WITH FUNCTION backfill.bound(timestamp) AS IMPLICIT;
CREATE CAST (timestamptz AS backfill.bound) WITH FUNCTION backfill.bound(timestamptz) AS IMPLICIT;
CREATE CAST (backfill.bound AS text) WITHOUT FUNCTION AS ASSIGNMENT;

COMMENT ON TYPE backfill.bound IS 'A bound given by a person: ISO date or date and time, local in the pipeline''s zone unless it carries an offset. text, date, timestamp and timestamptz cast to it.';
COMMENT ON FUNCTION backfill.bound_in(cstring) IS 'Input of backfill.bound.';
COMMENT ON FUNCTION backfill.bound_out(backfill.bound) IS 'Output of backfill.bound.';
COMMENT ON FUNCTION backfill.bound_recv(internal) IS 'Binary input of backfill.bound.';
COMMENT ON FUNCTION backfill.bound_send(backfill.bound) IS 'Binary output of backfill.bound.';
COMMENT ON FUNCTION backfill.bound(date) IS 'A date as a bound: local midnight in the pipeline''s zone.';
COMMENT ON FUNCTION backfill.bound(timestamp) IS 'A timestamp as a bound: local in the pipeline''s zone.';
COMMENT ON FUNCTION backfill.bound(timestamptz) IS 'A timestamptz as a bound: that instant, whatever the session''s zone.';
COMMENT ON CAST (text AS backfill.bound) IS 'Bounds may be text.';
COMMENT ON CAST (varchar AS backfill.bound) IS 'Bounds may be varchar.';
COMMENT ON CAST (date AS backfill.bound) IS 'Bounds may be dates.';
COMMENT ON CAST (timestamp AS backfill.bound) IS 'Bounds may be timestamps, local in the pipeline''s zone.';
COMMENT ON CAST (timestamptz AS backfill.bound) IS 'Bounds may be instants.';
COMMENT ON CAST (backfill.bound AS text) IS 'The text of a bound, as it was given.';
