-- Functions, tables and types that names ($1) may stand for: those that the search_path shows, and those of schemas that are named too;
-- and operators whose names are in a text of operators ($2), but for those of extensions, which few texts mean.
-- They are read under the path of the query that is looked at, whose operators are not to be trusted.
SELECT 'function'::pg_catalog.text, p.oid
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
WHERE p.proname OPERATOR(pg_catalog.=) ANY ($1) AND p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  AND (pg_catalog.pg_function_is_visible(p.oid) OR n.nspname OPERATOR(pg_catalog.=) ANY ($1))
UNION ALL
SELECT 'table'::pg_catalog.text, c.oid
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.relname OPERATOR(pg_catalog.=) ANY ($1)
  AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v,m,p,f}'::pg_catalog."char"[]) AND c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  AND (pg_catalog.pg_table_is_visible(c.oid) OR n.nspname OPERATOR(pg_catalog.=) ANY ($1))
UNION ALL
SELECT 'type'::pg_catalog.text, t.oid
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace
LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.typrelid
WHERE t.typname OPERATOR(pg_catalog.=) ANY ($1) AND t.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  AND (c.oid IS NULL OR c.relkind OPERATOR(pg_catalog.=) 'c'::pg_catalog."char")
  AND (pg_catalog.pg_type_is_visible(t.oid) OR n.nspname OPERATOR(pg_catalog.=) ANY ($1))
UNION ALL
SELECT 'operator'::pg_catalog.text, o.oid
FROM pg_catalog.pg_operator o
WHERE o.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  AND pg_catalog.strpos($2, o.oprname::pg_catalog.text) OPERATOR(pg_catalog.>) 0 AND pg_catalog.pg_operator_is_visible(o.oid)
  AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d
                  WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_operator'::pg_catalog.regclass
                    AND d.objid OPERATOR(pg_catalog.=) o.oid AND d.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char")
