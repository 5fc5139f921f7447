-- Functions (true) and tables (false) that names ($1) may stand for: those that the search_path shows, and those of schemas that are
-- named too.
SELECT true, p.oid FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE p.proname = ANY ($1) AND p.oid >= 16384 AND (pg_catalog.pg_function_is_visible(p.oid) OR n.nspname = ANY ($1))
UNION ALL
SELECT false, c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = ANY ($1) AND c.relkind IN ('r', 'v', 'm', 'p', 'f') AND c.oid >= 16384
  AND (pg_catalog.pg_table_is_visible(c.oid) OR n.nspname = ANY ($1))
