-- The outbox: what leaves the system because of a window.
CREATE TABLE backfill.effect_data (
    effect_id    bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id  bigint      NOT NULL,
    window_start timestamptz NOT NULL,
    window_end   timestamptz NOT NULL,
    effect       text        NOT NULL CHECK (effect <> ''),
    key          text        NOT NULL,
    payload      jsonb       NOT NULL,
    -- the attempt that emitted it last
    token        bigint      NOT NULL,
    plan_id      bigint      NOT NULL,       -- 0: a live run
    emitted_at   timestamptz NOT NULL,
    suppressed   boolean     NOT NULL,
    published_at timestamptz,                -- written with the publication of the slice
    done_at      timestamptz,
    done_by      text,
    -- Said once, here. It is stored because the indexes need it.
    state        text        NOT NULL GENERATED ALWAYS AS (
        CASE WHEN suppressed THEN 'suppressed'
             WHEN done_at IS NOT NULL THEN 'done'
             WHEN published_at IS NOT NULL THEN 'ready'
             ELSE 'held' END) STORED,
    CHECK (NOT suppressed OR published_at IS NULL),
    CHECK (done_at IS NULL OR published_at IS NOT NULL),
    CHECK ((done_at IS NULL) = (done_by IS NULL)),
    UNIQUE (pipeline_id, window_start, effect, key)
);
-- A consumer meets neither what is done nor what nobody may have; a publication only what it publishes.
CREATE INDEX effect_ready ON backfill.effect_data (pipeline_id, effect, published_at, effect_id) WHERE state = 'ready';
CREATE INDEX effect_held ON backfill.effect_data (token) WHERE state = 'held';
COMMENT ON TABLE backfill.effect_data IS 'The outbox: one row per window, effect and key, for ever.';
COMMENT ON SEQUENCE backfill.effect_data_effect_id_seq IS 'Numbers of effects.';

-- An effect that one plan suppressed may be delivered for another later, or be suppressed by that one too.
CREATE TABLE backfill.suppression_data (
    plan_id   bigint NOT NULL,
    effect_id bigint NOT NULL,
    PRIMARY KEY (plan_id, effect_id)
);
COMMENT ON TABLE backfill.suppression_data IS 'Which effects each plan suppressed, for its count.';

CREATE TYPE backfill.effect_delivery AS (
    id           bigint,
    pipeline     text,
    window_key   text,
    window_start timestamptz,
    window_end   timestamptz,
    effect       text,
    key          text,
    payload      jsonb,
    token        bigint,
    plan_id      bigint,
    emitted_at   timestamptz,
    published_at timestamptz
);
COMMENT ON TYPE backfill.effect_delivery IS 'An effect that a consumer has taken; id names it for effect_done() and is the same at each delivery.';

CREATE FUNCTION effect_emit(token bigint, effect text, payload jsonb DEFAULT '{}', key text DEFAULT '') RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'effect_emit_wrapper';
REVOKE ALL ON FUNCTION effect_emit(bigint, text, jsonb, text) FROM PUBLIC;
COMMENT ON FUNCTION effect_emit(bigint, text, jsonb, text) IS
'Puts an effect of the token''s window into the outbox, in the transaction of the worker: one per window, effect and key, for ever (effect and key have at most 1000 bytes each). Answers held: consumers get it once the slice of this token is published; suppressed: the lease allows no effects; ready or done: it was published before, is kept as it was, and is not sent again. Passes the fence; may also come after the run was finished in the same transaction. Errors: BF001, BF002 (at the latest at COMMIT), 40001 above READ COMMITTED, 22023, 22004, 42501, 25006.';

CREATE FUNCTION effect_take(effect text, n int DEFAULT 1) RETURNS SETOF backfill.effect_delivery
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'effect_take_wrapper';
REVOKE ALL ON FUNCTION effect_take(text, int) FROM PUBLIC;
COMMENT ON FUNCTION effect_take(text, int) IS
'Gives up to n (1 to 1000) ready effects of this name to the caller''s transaction, of each pipeline the oldest first; only of pipelines that the caller may work on. Nobody else gets them before it ends; those that effect_done() was not called for are ready again then. Never waits. Errors: 22023, 42501 for a caller that may work on no pipeline, 25006; 40001 above READ COMMITTED where another consumer was faster.';

CREATE FUNCTION effect_done(id bigint) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'effect_done_wrapper';
REVOKE ALL ON FUNCTION effect_done(bigint) FROM PUBLIC;
COMMENT ON FUNCTION effect_done(bigint) IS
'Says that an effect was delivered, in the transaction that took it, and answers done. Repeated for one that is done it answers the same again. Errors: 55000 for one that is held or suppressed, 42704, 22004, 42501, 25006; 40001 above READ COMMITTED.';

CREATE FUNCTION effects_allowed(token bigint) RETURNS boolean
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'effects_allowed_wrapper';
COMMENT ON FUNCTION effects_allowed(bigint) IS
'Whether code that works under the token may act outside of the target: the lease has effects, and it is open, or was finished in this transaction. False for one that has ended or was revoked. Errors: BF001 for a token that was never given out, 22004, 42501.';
