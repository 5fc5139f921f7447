-- A grid that was followed by another one. In the pipeline's own row, so that a claim reads the whole calendar with it:
-- a table of them cost 5 % of a claim.
CREATE TYPE backfill.ended_grid AS (
    since       timestamptz,
    until       timestamptz,
    cadence     interval,
    start_local timestamp,
    start_at    timestamptz,
    time_zone   text,
    replaced_by text,
    replaced_at timestamptz
);
COMMENT ON TYPE backfill.ended_grid IS 'A grid that a pipeline had, whose windows from since on and before until are history.';

CREATE TABLE backfill.pipeline_data (
    pipeline_id       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text        NOT NULL CHECK (name <> ''),
    owner             text        NOT NULL,  -- a name: a role that is missing where a dump is restored must not stop the restore
    -- the grid: window k is [b(k), b(k+1)), b(k) = (start_local + k * cadence) AT TIME ZONE time_zone
    cadence           interval    NOT NULL,
    start_local       timestamp   NOT NULL,
    start_at          timestamptz NOT NULL,
    time_zone         text        NOT NULL,
    grid_since        timestamptz NOT NULL DEFAULT '-infinity',
    ended_grids       backfill.ended_grid[],                     -- before grid_since, oldest first; positions run on from grid to grid
    grid_version      int         NOT NULL DEFAULT 0,            -- counts the changes of grids
    first_position    bigint      NOT NULL DEFAULT 0,            -- the first window's; a start that was moved earlier makes it negative
    given_start       timestamptz NOT NULL,                      -- start_at as it was given last
    -- what is produced, where, by which code
    target            regclass,
    slice_column      name,
    query             text,
    query_path        text,       -- the search_path of definition, under which the query is read
    code_version      text,
    description       text,
    depends_on_past   boolean     NOT NULL,  -- a window is a function of the one before it
    -- section "catchup": what may start by itself
    backlog           int         NOT NULL CHECK (backlog >= 0),
    catchup           int         NOT NULL CHECK (catchup >= 0),
    delay             interval    NOT NULL,
    active_since      timestamptz NOT NULL,
    paused_at         timestamptz,
    paused_by         text,
    pause_reason      text,
    -- how it runs
    pool_id           int         NOT NULL REFERENCES backfill.pool_data,
    max_active        int         NOT NULL CHECK (max_active BETWEEN 1 AND 10000),
    -- the most that it was before, as slots_before of a pool
    max_active_before int         NOT NULL DEFAULT 0,
    lease_for         interval    NOT NULL,
    run_timeout       interval,
    max_attempts      int         NOT NULL CHECK (max_attempts >= 1),
    retry_delay       interval    NOT NULL,
    -- what it costs and what may be asked of the past
    source_retention  interval,
    expected_duration interval,
    cost_per_hour     numeric,
    max_shrink        real        NOT NULL CHECK (max_shrink BETWEEN 0 AND 1),
    on_mixture        text        NOT NULL CHECK (on_mixture IN ('allow', 'warn', 'refuse')),
    keep_previous     interval,              -- how long what plans replace is kept
    stamp_column      name,                  -- the column of the target that holds the code version of each row
    on_impure         text        NOT NULL CHECK (on_impure IN ('allow', 'warn', 'refuse')),
    created_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    created_by        text        NOT NULL,
    changed_at        timestamptz,
    changed_by        text,
    dropped_at        timestamptz,
    dropped_by        text,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    CHECK ((target IS NULL) = (slice_column IS NULL)),
    CHECK (stamp_column IS NULL OR target IS NOT NULL),
    CHECK (query IS NULL OR target IS NOT NULL),
    CHECK (NOT depends_on_past OR max_active = 1 AND on_mixture <> 'refuse'),
    CHECK (query IS NULL OR code_version IS NULL)
);
-- A dropped pipeline keeps its row, because its runs and slices outlive it; its name and target are free again.
CREATE UNIQUE INDEX pipeline_name ON backfill.pipeline_data (name) WHERE dropped_at IS NULL;
CREATE INDEX pipeline_target ON backfill.pipeline_data (target);
COMMENT ON SEQUENCE backfill.pipeline_data_pipeline_id_seq IS 'Numbers of pipelines.';
COMMENT ON TABLE backfill.pipeline_data IS 'Every pipeline ever defined, dropped ones included.';

CREATE TABLE backfill.grant_data (
    pipeline_id bigint      NOT NULL REFERENCES backfill.pipeline_data,
    grantee     text        NOT NULL,
    level       text        NOT NULL CHECK (level IN ('read', 'work', 'operate')),
    granted_by  text        NOT NULL,
    granted_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline_id, grantee)
);
COMMENT ON TABLE backfill.grant_data IS 'The level that a role was granted on a pipeline; a level includes those below it.';

CREATE TABLE backfill.version_data (
    pipeline_id  bigint      NOT NULL REFERENCES backfill.pipeline_data,
    code_version text        NOT NULL,
    query        text,
    query_path   text,
    first_seen   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- The major version of PostgreSQL in whose words a query's meaning was written down.
    server_major int         NOT NULL DEFAULT pg_catalog.current_setting('server_version_num')::int / 10000,
    PRIMARY KEY (pipeline_id, code_version)
);
COMMENT ON TABLE backfill.version_data IS 'Each code version of a pipeline; for SQL pipelines with the text that it stands for.';

CREATE TABLE backfill.version_part_data (
    pipeline_id  bigint NOT NULL,
    code_version text   NOT NULL,
    kind         text   NOT NULL,
    name         text   NOT NULL,
    definition   text   NOT NULL,
    PRIMARY KEY (pipeline_id, code_version, kind, name)
);
COMMENT ON TABLE backfill.version_part_data IS 'What the meaning of each version of a query depends on: the query itself, and the tables, views, functions and types that it reaches, as they were.';

CREATE TABLE backfill.version_compatible_data (
    pipeline_id bigint      NOT NULL REFERENCES backfill.pipeline_data,
    old         text        NOT NULL,
    new         text        NOT NULL,
    reason      text        NOT NULL CHECK (pg_catalog.btrim(reason) <> ''),
    said_by     text        NOT NULL,
    said_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline_id, old, new),
    CHECK (old <> new)
);
CREATE INDEX ON backfill.version_compatible_data (pipeline_id, new);
COMMENT ON TABLE backfill.version_compatible_data IS 'Pairs of code versions of which somebody said that slices of both may stand side by side.';

-- A history: a mark that was lifted stays, with who lifted it, when and why. The tokens order it among the runs without
-- a clock, because a run has a token too.
CREATE TABLE backfill.mark_data (
    mark_id      bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id  bigint      NOT NULL REFERENCES backfill.pipeline_data,
    window_start timestamptz NOT NULL,
    mark         text        NOT NULL CHECK (mark IN ('locked', 'skipped', 'stale', 'adopted')),
    reason       text        NOT NULL CHECK (pg_catalog.btrim(reason) <> ''),
    marked_by    text        NOT NULL,
    marked_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    token        bigint      NOT NULL,    -- the last one given out by then; the slice's own where that was adopted
    plan_id      bigint      CHECK (mark = 'skipped' OR plan_id IS NULL),   -- owned the window that was skipped
    lifted_at    timestamptz,
    lifted_by    text,
    lift_reason  text        CHECK (pg_catalog.btrim(lift_reason) <> ''),
    lifted_token bigint,                  -- the last one given out by then
    CHECK (pg_catalog.num_nonnulls(lifted_at, lifted_by, lift_reason, lifted_token) IN (0, 4))
);
CREATE UNIQUE INDEX mark_in_force ON backfill.mark_data (pipeline_id, window_start, mark) WHERE lifted_at IS NULL;
CREATE INDEX mark_window ON backfill.mark_data (pipeline_id, window_start);
COMMENT ON SEQUENCE backfill.mark_data_mark_id_seq IS 'Numbers of marks.';
COMMENT ON TABLE backfill.mark_data IS 'What people decided about windows, with who, when and why.';
