-- Five days of rows, and a source with new ones for the day in the middle. Vacuum comes when it is called.
CREATE TABLE sales (
    at     timestamptz NOT NULL,
    id     bigint      NOT NULL,
    item   text        NOT NULL,
    price  numeric     NOT NULL,
    loaded text,
    PRIMARY KEY (at, id)
) WITH (autovacuum_enabled = off);
CREATE TABLE source (LIKE sales) WITH (autovacuum_enabled = off);

-- The rows of a day; of a hundred rows the first few have another price.
CREATE FUNCTION rows_of(day timestamptz, rows bigint, percent bigint) RETURNS SETOF sales LANGUAGE sql AS $$
    SELECT day + n * interval '1 day' / rows, n, 'item ' || n % 1000, n / 7.0 + CASE WHEN n % 100 < percent THEN 1 ELSE 0 END,
           CASE WHEN n % 3 > 0 THEN md5(n::text) END
    FROM generate_series(0, rows - 1) n
$$;

INSERT INTO sales SELECT r.* FROM generate_series(0, 4) d, rows_of(timestamptz '2024-03-01 00:00Z' + d * interval '1 day', :rows, 0) r;

SELECT pipeline_define('slices', '1 day', '2024-03-01', target => 'sales', slice_column => 'at', time_zone => 'UTC',
                       query => 'SELECT * FROM source', lease_for => '1 day');
SELECT backfill_approve(plan_id, 1) FROM backfill_plan('slices', NULL, NULL, 'bench', keys => '{2024-03-03}');
SELECT token FROM backfill_claim('bench', pipelines => '{slices}');

-- Runs statements; answers milliseconds, bytes of the write-ahead log, and rows left for vacuum.
CREATE FUNCTION cost(statements text, OUT ms float8, OUT wal float8, OUT dead float8) LANGUAGE plpgsql AS $$
DECLARE
    target  oid         := 'sales'::regclass;
    before  bigint      := pg_stat_get_xact_tuples_updated(target) + pg_stat_get_xact_tuples_deleted(target);
    place   pg_lsn      := pg_current_wal_insert_lsn();
    started timestamptz := clock_timestamp();
BEGIN
    EXECUTE statements;
    ms := 1e3 * extract(epoch FROM clock_timestamp() - started);
    wal := pg_current_wal_insert_lsn() - place;
    dead := pg_stat_get_xact_tuples_updated(target) + pg_stat_get_xact_tuples_deleted(target) - before;
END
$$;
