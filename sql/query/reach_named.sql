-- Functions (true) and tables (false) that names ($1) may stand for: those that the search_path shows, and those of schemas that are
-- named too.
-- They are read under the path of the query that is looked at, whose operators are not to be trusted.
SELECT true, p.oid FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
WHERE p.proname OPERATOR(pg_catalog.=) ANY ($1) AND p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  AND (pg_catalog.pg_function_is_visible(p.oid) OR n.nspname OPERATOR(pg_catalog.=) ANY ($1))
UNION ALL
SELECT false, c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.relname OPERATOR(pg_catalog.=) ANY ($1)
  AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v,m,p,f}'::pg_catalog."char"[]) AND c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  AND (pg_catalog.pg_table_is_visible(c.oid) OR n.nspname OPERATOR(pg_catalog.=) ANY ($1))
