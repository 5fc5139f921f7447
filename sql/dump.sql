-- What a dump keeps. What plans replaced is among it: a plan stays revertible where its database moves. Heartbeats are of leases, which a restored database voids; nothing that the extension's
-- script creates has rows, so that restored rows meet none.
DO $$
DECLARE
    kept text;
BEGIN
    FOREACH kept IN ARRAY ARRAY[
        'pool_data', 'pool_data_pool_id_seq', 'pipeline_data', 'pipeline_data_pipeline_id_seq',
        'grant_data', 'version_data', 'version_part_data', 'version_compatible_data', 'audit_data', 'mark_data', 'mark_data_mark_id_seq', 'plan_data', 'plan_data_plan_id_seq',
        'plan_window_data', 'plan_cursor_data', 'plan_hole_data', 'plan_stop_data', 'plan_declined_data',
        'plan_event_data', 'plan_event_data_event_id_seq',
        'epoch_data', 'token_seq', 'run_data', 'requeue_data', 'stage_data', 'plan_stage_data', 'kept_data', 'kept_row_data',
        'verification_data', 'effect_data', 'effect_data_effect_id_seq', 'suppression_data'
    ] LOOP
        PERFORM pg_catalog.pg_extension_config_dump(('backfill.' OPERATOR(pg_catalog.||) kept)::pg_catalog.regclass, '');
    END LOOP;
END
$$;
