-- The log: one row per attempt, written at claim, fenced and ended by an update that changes no indexed
-- column (HOT). Window state, plan state, permits, slices and their history are read from it.
CREATE SEQUENCE backfill.token_seq AS bigint MAXVALUE 9007199254740991 NO CYCLE;
COMMENT ON SEQUENCE backfill.token_seq IS 'The last fencing token.';

CREATE TABLE backfill.epoch_data (
    epoch             int         NOT NULL PRIMARY KEY,
    system_identifier bigint      NOT NULL,
    timeline          bigint      NOT NULL,
    database_oid      bigint      NOT NULL,
    first_token       bigint      NOT NULL,
    reason            text        NOT NULL,
    started_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE backfill.epoch_data IS 'Spans of the token sequence. A server that is not the one of the newest row starts a new epoch above every token before it.';

CREATE TABLE backfill.run_data (
    token          bigint      NOT NULL PRIMARY KEY,
    pipeline_id    bigint      NOT NULL,
    plan_id        bigint      NOT NULL DEFAULT 0,      -- 0: a live run
    window_start   timestamptz NOT NULL,
    window_end     timestamptz NOT NULL,
    turn           int         NOT NULL,                -- counts all attempts at a window, for ever
    attempt        int         NOT NULL,                -- counts within the plan or the live right
    seq            bigint      NOT NULL,                -- place in the plan; position of a live window
    in_order       boolean     NOT NULL,                -- handed out as the next of its plan; not asked for by its key
    run_kind       text        NOT NULL CHECK (run_kind IN ('scheduled', 'catchup', 'backfill', 'verify', 'adopted', 'reverted', 'withdrawn')),
    pool_id        int         NOT NULL,
    pool_slot      int         NOT NULL,
    pool_gen       bigint      NOT NULL,
    limit_slot     int         NOT NULL,                -- of the plan's concurrency or the pipeline's max_active
    limit_gen      bigint      NOT NULL,
    worker         text,
    role           text        NOT NULL,
    code_version   text,                                -- of the slice: that of the claim, or of a query that a call gave
    claim_version  text,                                -- that of the claim, where another version was built under it
    runs_query     boolean     NOT NULL DEFAULT false,  -- the version of the claim is that of a query, which the lease carries
    as_of          timestamptz NOT NULL,
    started_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,                -- until a heartbeat says later
    fence_xid      xid8,                                -- the newest transaction that passed the fence
    published_at   timestamptz,                         -- when its rows became the window's slice, however it ended then
    ended_at       timestamptz,
    outcome        text        CHECK (outcome IN ('done', 'failed', 'refused', 'released', 'expired', 'revoked')),
    rows           bigint,
    digest         text,
    digest_told    boolean     NOT NULL DEFAULT false,  -- the digest is in the words of the worker: the ledger took none
    allow_shrink   text,
    error          text,
    sqlstate       text,
    metrics        jsonb,
    together       boolean     NOT NULL DEFAULT false,  -- its plan publishes all windows at once: once done it is staged
    has_effects    boolean     NOT NULL DEFAULT false,  -- it emitted some that its end makes ready
    restores       bigint,                              -- the run that made the slice which this one put back
    CHECK ((ended_at IS NULL) = (outcome IS NULL) AND (outcome <> 'done' OR together OR run_kind = 'verify' OR published_at IS NOT NULL)),
    -- What is staged is published once, by backfill_publish(), after it ended.
    CHECK (NOT together OR plan_id > 0 AND (published_at IS NULL OR outcome = 'done')),
    -- A verification publishes nothing, whatever becomes of it.
    CHECK (run_kind <> 'verify' OR plan_id > 0 AND NOT together AND NOT has_effects AND published_at IS NULL),
    -- Rows that were in the target before the ledger knew them: nobody produced them under a lease.
    CHECK (run_kind <> 'adopted' OR outcome = 'done' AND attempt = 0 AND worker IS NULL),
    -- A plan was reverted: an earlier slice is there again under this token, or (withdrawn) none is, as before the plan.
    CHECK (run_kind NOT IN ('reverted', 'withdrawn') OR plan_id = 0 AND attempt = 0 AND worker IS NULL),
    CHECK ((run_kind = 'reverted') = (restores IS NOT NULL))
) WITH (fillfactor = 70);
-- No index may name a column that the fence or the end of a run writes, or their updates stop being HOT.
CREATE UNIQUE INDEX run_window ON backfill.run_data (pipeline_id, window_start, turn);
CREATE UNIQUE INDEX run_pool ON backfill.run_data (pool_id, pool_slot, pool_gen);
CREATE UNIQUE INDEX run_limit ON backfill.run_data (pipeline_id, plan_id, limit_slot, limit_gen);
-- How far claims have come with the list of a plan. A window that was asked for by its key moves nobody on.
CREATE INDEX run_plan ON backfill.run_data (plan_id, seq) WHERE in_order;
COMMENT ON TABLE backfill.run_data IS 'The log of attempts. The open ones are the leases; the newest one of a window that published rows is its slice, unless it withdrew it.';

CREATE TABLE backfill.heartbeat_data (
    token      bigint      NOT NULL PRIMARY KEY,
    expires_at timestamptz NOT NULL,
    beat_at    timestamptz NOT NULL,
    progress   jsonb
) WITH (fillfactor = 50);
COMMENT ON TABLE backfill.heartbeat_data IS 'The newest heartbeat of a lease: apart from the log, so that a heartbeat touches nothing that a writing transaction holds.';

CREATE TABLE backfill.requeue_data (
    pipeline_id  bigint      NOT NULL,
    plan_id      bigint      NOT NULL,                  -- 0: the live right
    window_start timestamptz NOT NULL,
    window_end   timestamptz NOT NULL,
    rank         smallint    NOT NULL CHECK (rank IN (0, 1)),  -- 0: keeps its place in the order; 1: behind those never tried
    due_at       timestamptz NOT NULL,
    seq          bigint      NOT NULL,
    attempt      int         NOT NULL,
    after_turn   int         NOT NULL,                  -- valid only while this is the window's newest turn
    PRIMARY KEY (pipeline_id, plan_id, window_start)
);
CREATE INDEX requeue_due ON backfill.requeue_data (pipeline_id, plan_id, rank, due_at, seq);
COMMENT ON TABLE backfill.requeue_data IS 'Windows that a claim must come back to: expired, released and failed ones.';
