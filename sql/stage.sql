CREATE TABLE backfill.stage_data (
    token       bigint      NOT NULL PRIMARY KEY,
    pipeline_id bigint      NOT NULL,
    relation    regclass    NOT NULL,
    made_by     text        NOT NULL,
    made_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    quarantined_at timestamptz,
    reason      text,
    rows        bigint,
    sqlstate    text
);
COMMENT ON TABLE backfill.stage_data IS 'Staging tables: the token that owns each, and why those in quarantine are kept.';
