CREATE TABLE backfill.audit_data (
    pipeline_id bigint      NOT NULL REFERENCES backfill.pipeline_data,
    name        text        NOT NULL,
    query       text        NOT NULL,
    query_path  text        NOT NULL,                -- the search_path of whoever defined it
    made_by     text        NOT NULL,
    made_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline_id, name)
);
COMMENT ON TABLE backfill.audit_data IS 'What must be true of new rows before they are published.';

CREATE VIEW backfill.audits WITH (security_barrier) AS
SELECT v.name AS pipeline, a.name, a.query, a.made_by, a.made_at
FROM backfill.audit_data a
JOIN backfill.readable_data v ON v.pipeline_id = a.pipeline_id
JOIN backfill.pipeline_data p ON p.pipeline_id = a.pipeline_id AND p.dropped_at IS NULL;
COMMENT ON VIEW backfill.audits IS 'What must be true of new rows before they are published, by pipeline.';
GRANT SELECT ON backfill.audits TO PUBLIC;

-- No SET clause: the query is read under the caller's own search_path, which is kept with it.
CREATE FUNCTION pipeline_audit(pipeline text, name text, query text) RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'pipeline_audit_wrapper';
REVOKE ALL ON FUNCTION pipeline_audit(text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_audit(text, text, text) IS
'Defines an audit, or gives it another query: a SELECT over slice, the new rows of a window, that must answer one row with one boolean that is true before anything is written; $1 and $2 are the bounds of the window. It runs as the owner of the pipeline. Rows of which it is not true, or over which it fails, are refused (BF006) and kept like those that the shrink guard refuses. Answers created, changed or unchanged. For the owner. Errors: 22023 for a query that is not such a SELECT and for a blank name, 55000 for a pipeline without a target, 22004, 42704, 42501, 25006, and those of the query.';

CREATE FUNCTION pipeline_audit_drop(pipeline text, name text) RETURNS text
    LANGUAGE c VOLATILE SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'pipeline_audit_drop_wrapper';
REVOKE ALL ON FUNCTION pipeline_audit_drop(text, text) FROM PUBLIC;
COMMENT ON FUNCTION pipeline_audit_drop(text, text) IS
'Drops an audit, and answers dropped. For the owner. Errors: 42704 where there is none of that name, 22023 for a blank name, 42501, 25006.';
