-- A partition a day, and two versions of what should be in it: they differ in a tenth of the rows. Vacuum comes when it is
-- called.
CREATE TABLE facts (
    at    timestamptz NOT NULL,
    id    bigint      NOT NULL,
    item  text        NOT NULL,
    price numeric     NOT NULL,
    PRIMARY KEY (at, id)
) PARTITION BY RANGE (at);
CREATE FUNCTION day(n int) RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT timestamptz '2024-01-01 00:00Z' + n * interval '1 day' $$;
SELECT format('CREATE TABLE facts_%s PARTITION OF facts FOR VALUES FROM (%L) TO (%L) WITH (autovacuum_enabled = off)', n, day(n), day(n + 1))
FROM generate_series(0, :days - 1) n \gexec
CREATE TABLE source_0 (LIKE facts);
INSERT INTO source_0
SELECT day(d) + n * interval '1 day' / :rows, n, 'item ' || n % 1000, n / 7.0
FROM generate_series(0, :days - 1) d, generate_series(0, :rows - 1) n;
CREATE TABLE source_1 (LIKE facts);
INSERT INTO source_1 SELECT at, id, item, price + CASE WHEN id % 10 = 0 THEN 1 ELSE 0 END FROM source_0;
INSERT INTO facts SELECT * FROM source_0;
CREATE INDEX ON source_0 (at);
CREATE INDEX ON source_1 (at);
VACUUM ANALYZE source_0, source_1, facts;

SELECT pool_define('backfill', 1),
       pipeline_define('facts', '1 day', '2024-01-01', target => 'facts', slice_column => 'at', time_zone => 'UTC',
                       query => 'SELECT * FROM source_0 WHERE at >= $1 AND at < $2');

-- One transaction a day. The statements know the number of the day, the version, and the bounds. A swap gives up where the
-- reader holds the partition for too long; as a worker would, it is repeated, and the time counts.
CREATE PROCEDURE replace_all(statements text, days int, version int, OUT seconds float8, OUT wal float8) LANGUAGE plpgsql AS $$
DECLARE
    started timestamptz := clock_timestamp();
    place   pg_lsn      := pg_current_wal_insert_lsn();
BEGIN
    FOR d IN 0..days - 1 LOOP
        LOOP
            BEGIN
                EXECUTE format(statements, d, version, day(d), day(d + 1));
                EXIT;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END LOOP;
        COMMIT;
    END LOOP;
    seconds := extract(epoch FROM clock_timestamp() - started);
    wal := pg_current_wal_insert_lsn() - place;
END
$$;

-- Reads days at random. One without all of its rows is one that nobody ever published.
CREATE FUNCTION read_three(days int, rows bigint, OUT times float8[], OUT wrong int) LANGUAGE plpgsql AS $$
DECLARE
    started timestamptz;
    d       int;
    found   bigint;
BEGIN
    wrong := 0;
    FOR n IN 1..3 LOOP
        d := floor(random() * days);
        started := clock_timestamp();
        SELECT count(price) INTO found FROM facts WHERE at >= day(d) AND at < day(d + 1);
        times := times || 1e3::float8 * extract(epoch FROM clock_timestamp() - started)::float8;
        wrong := wrong + (found <> rows)::int;
    END LOOP;
END
$$;

-- Until it is told to stop: three days each on a snapshot of its own, then three on that of the transaction.
CREATE TABLE control (stopped boolean NOT NULL);
INSERT INTO control VALUES (true);
CREATE PROCEDURE read_days(days int, rows bigint, OUT reads float8, OUT p99 float8, OUT wrong float8) LANGUAGE plpgsql AS $$
DECLARE
    times float8[] := '{}';
    three record;
BEGIN
    wrong := 0;
    LOOP
        COMMIT;
        EXIT WHEN (SELECT stopped FROM control);
        SELECT * INTO three FROM read_three(days, rows);
        times := times || three.times;
        wrong := wrong + three.wrong;
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
        SELECT * INTO three FROM read_three(days, rows);
        times := times || three.times;
        wrong := wrong + three.wrong;
    END LOOP;
    reads := cardinality(times);
    p99 := (SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY t) FROM unnest(times) t);
END
$$;
