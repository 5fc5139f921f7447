CREATE TABLE backfill.plan_data (
    plan_id       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id   bigint      NOT NULL REFERENCES backfill.pipeline_data,
    state         text        NOT NULL DEFAULT 'draft' CHECK (state IN ('draft', 'approved', 'paused', 'cancelled', 'published', 'reverted')),
    origin        text        NOT NULL CHECK (origin IN ('person', 'resume')),
    request       jsonb       NOT NULL,   -- what was asked: selection is repeated from it at approval
    reason        text        NOT NULL CHECK (pg_catalog.btrim(reason) <> ''),
    ordering      text        NOT NULL CHECK (ordering IN ('oldest_first', 'newest_first', 'sequential')),
    concurrency   int         NOT NULL CHECK (concurrency BETWEEN 1 AND 10000),
    -- the most that it was before, as slots_before of a pool
    concurrency_before int    NOT NULL DEFAULT 0,
    pool_id       int         NOT NULL REFERENCES backfill.pool_data,
    priority      int         NOT NULL,
    canary        int         CHECK (canary > 0),  -- only so many places of the list are handed out; NULL once resumed
    on_failure    text        NOT NULL CHECK (on_failure IN ('continue', 'stop')),
    generation    int         NOT NULL DEFAULT 0,  -- counts retries and extensions: each gives claims new windows
    code_version  text,
    runs_query    boolean     NOT NULL,   -- the version is that of a query
    publish       text        NOT NULL CHECK (publish IN ('each', 'together', 'none')),  -- none: a verification
    -- what a plan with code of its own will put in its place: NULL where the plan runs the pipeline's
    code_before   jsonb       CHECK (code_before IS NULL OR publish = 'together'),
    effects       boolean     NOT NULL,
    params        jsonb,
    allow_shrink  text,
    as_of         timestamptz NOT NULL,   -- the clock of the selection
    windows       bigint      NOT NULL CHECK (windows > 0),
    range_start   timestamptz NOT NULL,
    range_end     timestamptz NOT NULL,
    -- a draft's members, to see at approval whether they moved: ranges of positions in the grids as they were, a
    -- letter for each state, the token of each slice
    grid_version  int         NOT NULL,
    member_ranges bigint[],
    member_states text,
    member_tokens bigint[],
    estimate      jsonb       NOT NULL,
    created_by    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- a draft is approved until then: what is older was decided on numbers that nobody remembers
    expires_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp() + '7 days'::interval,
    approved_by   text,
    approved_at   timestamptz,
    paused_by     text,
    paused_at     timestamptz,
    pause_reason  text,
    cancelled_by  text,
    cancelled_at  timestamptz,
    cancel_reason text,
    published_by  text,
    published_at  timestamptz,
    reverted_by   text,
    reverted_at   timestamptz,
    revert_reason text,
    CHECK ((approved_at IS NULL) = (approved_by IS NULL)),
    CHECK ((cancelled_at IS NULL) = (cancelled_by IS NULL)),
    CHECK (state <> 'cancelled' OR cancelled_at IS NOT NULL),
    CHECK (cancelled_at IS NULL OR state IN ('cancelled', 'reverted')),
    CHECK (pg_catalog.num_nonnulls(published_by, published_at) IN (0, 2)),
    CHECK (CASE state WHEN 'published' THEN published_at IS NOT NULL WHEN 'reverted' THEN true ELSE published_at IS NULL END),
    CHECK (published_at IS NULL OR publish = 'together'),
    CHECK (publish <> 'none' OR NOT effects),
    CHECK ((state = 'reverted') = (reverted_at IS NOT NULL)),
    CHECK (pg_catalog.num_nonnulls(reverted_by, reverted_at, revert_reason) IN (0, 3)),
    CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    CHECK (state <> 'paused' OR paused_at IS NOT NULL),
    CHECK (ordering <> 'sequential' OR concurrency = 1),
    CHECK (state NOT IN ('approved', 'paused') OR approved_at IS NOT NULL),
    CHECK (state <> 'draft' OR approved_at IS NULL),
    CHECK (state <> 'draft' OR member_ranges IS NOT NULL AND member_states IS NOT NULL AND member_tokens IS NOT NULL)
);
CREATE INDEX plan_claimable ON backfill.plan_data (pool_id) WHERE state = 'approved';
CREATE INDEX plan_pipeline ON backfill.plan_data (pipeline_id);
COMMENT ON SEQUENCE backfill.plan_data_plan_id_seq IS 'Numbers of plans.';
COMMENT ON TABLE backfill.plan_data IS 'Every plan with what was asked, what it was priced at, and who decided what when.';

-- Written by claims, and apart from the plan so that no call of a person ever waits for a claim.
CREATE TABLE backfill.plan_cursor_data (
    plan_id bigint NOT NULL PRIMARY KEY,
    -- generations of the plan
    swept   int    NOT NULL,  -- its list was walked to its end, and its holes were noted
    drained int               -- no window of it can be handed out any more
);
COMMENT ON TABLE backfill.plan_cursor_data IS 'How far claims have come with the list of a plan.';

-- Written by workers and by claims, and read by claims; a person who goes on deletes what he has seen.
CREATE TABLE backfill.plan_stop_data (
    plan_id    bigint      NOT NULL,
    token      bigint      NOT NULL,
    stopped_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (plan_id, token)
);
COMMENT ON TABLE backfill.plan_stop_data IS 'Runs whose failure stopped a plan with on_failure => ''stop''.';

CREATE TABLE backfill.plan_event_data (
    event_id bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    plan_id  bigint      NOT NULL REFERENCES backfill.plan_data,
    happened_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    who      text        NOT NULL,
    what     text        NOT NULL,
    why      text
);
CREATE INDEX plan_event_plan ON backfill.plan_event_data (plan_id, event_id);
COMMENT ON SEQUENCE backfill.plan_event_data_event_id_seq IS 'Numbers of decisions about plans.';
COMMENT ON TABLE backfill.plan_event_data IS 'Every decision of a person about a plan: who, when, what and why.';

CREATE TABLE backfill.plan_hole_data (
    plan_id bigint NOT NULL,
    seq     bigint NOT NULL,
    PRIMARY KEY (plan_id, seq)
);
COMMENT ON TABLE backfill.plan_hole_data IS 'Places of a plan''s list that had no run when claims reached its end; one counts until it has.';

CREATE TABLE backfill.plan_window_data (
    plan_id      bigint      NOT NULL,
    seq          bigint      NOT NULL,
    pipeline_id  bigint      NOT NULL,
    window_start timestamptz NOT NULL,
    window_end   timestamptz NOT NULL,
    PRIMARY KEY (plan_id, seq)
);
CREATE INDEX plan_window_owner ON backfill.plan_window_data (pipeline_id, window_start);
COMMENT ON TABLE backfill.plan_window_data IS 'The frozen list of an approved plan, in its order. Written once, at approval.';

CREATE TABLE backfill.plan_declined_data (
    plan_id      bigint      NOT NULL REFERENCES backfill.plan_data,
    range_start  timestamptz NOT NULL,
    range_end    timestamptz NOT NULL,
    windows      bigint      NOT NULL,
    reason       text        NOT NULL,
    PRIMARY KEY (plan_id, range_start)
);
COMMENT ON TABLE backfill.plan_declined_data IS 'Windows of a plan''s range that are not in it, as ranges, each with its reason.';
