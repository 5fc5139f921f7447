-- Plans that publish all their windows at once.
CREATE TYPE backfill.difference AS (
    window_key   text,
    window_start timestamptz,
    changed      boolean,
    rows_now     bigint,
    rows_new     bigint,
    gone         bigint,
    fresh        bigint,
    digest_now   text,
    digest_new   text,
    columns      jsonb,
    sample       jsonb
);
COMMENT ON TYPE backfill.difference IS 'A window of a plan as the target holds it now and as the plan has staged it; without a window_key, all of them. gone: rows of now that the new ones have not; fresh: the other way round. columns: for each the number of NULLs, and for numbers the sum, now and new. sample: up to 5 rows of each side that differ, their columns as text of 200 characters at most.';

CREATE FUNCTION backfill_diff(plan_id bigint) RETURNS SETOF backfill.difference
    LANGUAGE c STABLE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'backfill_diff_wrapper';
COMMENT ON FUNCTION backfill_diff(bigint) IS
'Compares what a plan with publish => together has staged with what the target holds: a row for each staged window, oldest first, and one for all of them, whose window_key is NULL. Rows are compared as multisets, by their text. Reads only, and takes about three scans of both sides where they differ; the digests of one window''s rows must fit into memory. Errors: 55000 for a plan without a stage, and where the target lost a column of it or changed its type, 22004, 42501 without SELECT on the whole target, and where row-level security hides rows of it, 42704.';

-- No SET clause: what triggers and checks of the target name is found by the caller's own search_path, as in replace_partition().
CREATE FUNCTION backfill_publish(plan_id bigint, allow_shrink text DEFAULT NULL) RETURNS bigint
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'backfill_publish_wrapper';
REVOKE ALL ON FUNCTION backfill_publish(bigint, text) FROM PUBLIC;
COMMENT ON FUNCTION backfill_publish(bigint, text) IS
'Publishes all windows that a plan with publish => together has staged, in one transaction, as the caller and by his search_path, and answers how many; a query or code_version of the plan''s own becomes the pipeline''s in the same transaction. Every window must be staged or skipped. Audits and the shrink guard look once more; allow_shrink is the reason for which a slice may lose what came into the target since it was staged. A plan that was paused is not published. What was there before is kept for backfill_revert(): for the pipeline''s keep_previous, else for 7 days. Errors: BF001 where a window was written again since it was staged, BF004 where the pipeline was given other code since the plan was made, or the plan''s own query means something else by now, BF005, BF006, BF007 where it would mix code versions and on_mixture is refuse, 55000 for a plan whose windows are not all staged, where one is locked, after another decision in the same transaction, where the target lost a column of the stage, and where a superuser wrote into the stage by hand, 40001 where somebody writes to the target without a fence, 55P03 where somebody holds rows of the target for longer than lock_timeout (2 seconds if none is set), 22004, 42501, 42704, 25006.';

CREATE VIEW backfill.plan_stages WITH (security_barrier) AS
SELECT s.plan_id, v.name AS pipeline, pl.state IN ('approved', 'paused') AS is_needed, s.relation,
       backfill.stage_bytes(s.relation) AS bytes, s.made_at
FROM backfill.plan_stage_data s
JOIN backfill.plan_data pl ON pl.plan_id = s.plan_id
JOIN backfill.readable_data v ON v.pipeline_id = s.pipeline_id;
COMMENT ON VIEW backfill.plan_stages IS 'Stages of plans that publish all their windows at once, with their sizes in bytes. One that is not needed any more is dropped by backfill_sweep().';
GRANT SELECT ON backfill.plan_stages TO PUBLIC;
