-- A pool bounds how many leases may be held at once. Its permits are not rows: slot s of a pool is free when
-- the newest run that took it has ended, and the unique index of runs on (pool, slot, generation) makes a
-- lost race an error instead of one lease too many.
CREATE TABLE backfill.pool_data (
    pool_id    int         NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL UNIQUE CHECK (name <> ''),
    slots      int         NOT NULL CHECK (slots BETWEEN 0 AND 10000),
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE backfill.pool_data IS 'Pools that something refers to, with their number of slots.';
COMMENT ON SEQUENCE backfill.pool_data_pool_id_seq IS 'Numbers of pools.';
