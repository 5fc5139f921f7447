-- The schema of the ledger. It is created here and belongs to the extension; a schema of that name that
-- exists already is accepted only where it is the one that CREATE EXTENSION was given, and only from its
-- own owner: whoever owns a schema can replace what lies in it.
DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'pg_backfill needs a database with the encoding UTF8'
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = pg_catalog.format('The encoding of this database is %s.', pg_catalog.getdatabaseencoding()),
                  HINT = 'CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0 makes one.';
    END IF;
    IF pg_catalog.to_regnamespace('backfill') IS NULL THEN
        CREATE SCHEMA backfill;
    ELSIF NOT EXISTS (
        SELECT FROM pg_catalog.pg_namespace n
        WHERE n.nspname = 'backfill'
          AND n.nspname = '@extschema@'
          AND pg_catalog.pg_get_userbyid(n.nspowner) = CURRENT_USER
    ) THEN
        RAISE EXCEPTION 'schema "backfill" exists already'
            USING ERRCODE = 'duplicate_schema',
                  DETAIL = 'pg_backfill keeps its ledger in a schema of this name that belongs to the extension.',
                  HINT = 'Rename or drop the existing schema, then run CREATE EXTENSION pg_backfill again.';
    END IF;
END
$$;

COMMENT ON SCHEMA backfill IS 'pg_backfill: the ledger of pipelines, windows, plans, leases and slices. Read its views; write through the functions.';
GRANT USAGE ON SCHEMA backfill TO PUBLIC;
