-- The day as it was before, and a source of which a share differs.
DELETE FROM sales WHERE at >= '2024-03-03 00:00Z' AND at < '2024-03-04 00:00Z';
VACUUM sales;
INSERT INTO sales SELECT * FROM rows_of('2024-03-03 00:00Z', :rows, 0);
TRUNCATE source;
INSERT INTO source SELECT * FROM rows_of('2024-03-03 00:00Z', :rows, :percent);
VACUUM ANALYZE sales, source;
-- As if the run had not changed the slice before: what was there is kept by the first publication that does.
TRUNCATE backfill.kept_data, backfill.kept_row_data;
INSERT INTO backfill.kept_data SELECT token, pipeline_id, NULL, false, '{}', 0, 0, '', 'infinity', NULL FROM backfill.run_data;
UPDATE backfill.pipeline_data SET keep_previous = NULLIF(:'keep', '')::interval;
