-- A pool bounds how many leases may be held at once. Its permits are not rows: slot s of a pool is free when
-- the newest run that took it has ended, and the unique index of runs on (pool, slot, generation) makes a
-- lost race an error instead of one lease too many.
CREATE TABLE backfill.pool_data (
    pool_id    int         NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL CHECK (name <> ''),
    slots      int         NOT NULL CHECK (slots BETWEEN 0 AND 10000),
    -- the most that it had before: a claim of that time may not be committed yet
    slots_before int       NOT NULL DEFAULT 0,
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    paused_at  timestamptz,
    paused_by  text,
    pause_reason text,
    -- every lease of the pool is void while this holds, and for ever those up to the token that was the last when
    -- the pool was resumed: a lease that was taken away does not come back
    revoking   boolean     NOT NULL DEFAULT false,
    revoked_to bigint      NOT NULL DEFAULT 0,
    dropped_at timestamptz,
    dropped_by text,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    CHECK (paused_at IS NOT NULL OR NOT revoking)
);
-- A dropped pool keeps its row, because the runs that it bounded outlive it.
CREATE UNIQUE INDEX pool_name ON backfill.pool_data (name) WHERE dropped_at IS NULL;
COMMENT ON TABLE backfill.pool_data IS 'Pools that something refers or referred to, with their number of slots, and who paused them and why.';
COMMENT ON SEQUENCE backfill.pool_data_pool_id_seq IS 'Numbers of pools.';
