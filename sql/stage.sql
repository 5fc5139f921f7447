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
-- One for each plan that publishes all its windows at once, from its approval until that or until it is swept.
CREATE TABLE backfill.plan_stage_data (
    plan_id     bigint      NOT NULL PRIMARY KEY,
    pipeline_id bigint      NOT NULL,
    relation    regclass    NOT NULL,
    made_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE backfill.plan_stage_data IS 'Stages of plans: tables that hold the new rows of all windows of a plan until it is published.';

COMMENT ON TABLE backfill.stage_data IS 'Staging tables: the token that owns each, and why those in quarantine are kept.';

-- What becomes of each stage: the one place of this rule. A run that is void will never be anything else.
CREATE VIEW backfill.stage_state_data AS
SELECT s.*,
       CASE WHEN s.quarantined_at IS NOT NULL THEN 'quarantined'
            WHEN r.token IS NULL OR r.ended_at IS NOT NULL OR r.void_reason IS NOT NULL THEN 'dead'
            ELSE 'loading' END AS state,
       s.quarantined_at + interval '30 days' AS kept_until
FROM backfill.stage_data s
LEFT JOIN backfill.run_void_data r ON r.token = s.token;
COMMENT ON VIEW backfill.stage_state_data IS 'Staging tables with what becomes of them: loading, quarantined until kept_until, or dead.';
