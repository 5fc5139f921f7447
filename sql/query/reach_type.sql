-- A type ($1): its name, its definition, the types that it is made of, the table whose rows it is of, and whether it is listed:
-- arrays and row types of tables are what they are made of.
SELECT pg_catalog.format_type(t.oid, NULL),
       pg_catalog.concat_ws(' ', t.typtype,
           CASE WHEN t.typtype = 'd' THEN pg_catalog.format_type(t.typbasetype, t.typtypmod) END,
           CASE WHEN t.typtype = 'd' AND t.typcollation NOT IN (0, 100) THEN 'collate ' || t.typcollation::pg_catalog.regcollation END,
           CASE WHEN t.typnotnull THEN 'not null' END,
           -- They hold for all new values, whatever is said of old ones.
           (SELECT pg_catalog.string_agg(k.definition, ' ' ORDER BY k.definition)
            FROM pg_catalog.pg_constraint c,
                 pg_catalog.regexp_replace(pg_catalog.pg_get_constraintdef(c.oid), ' NOT VALID$', '') k (definition)
            WHERE c.contypid = t.oid),
           (SELECT pg_catalog.string_agg(pg_catalog.quote_literal(e.enumlabel), ' ' ORDER BY e.enumsortorder)
            FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid),
           (SELECT pg_catalog.string_agg(pg_catalog.format('%I %s%s', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
                        CASE WHEN a.attcollation NOT IN (0, 100) THEN ' collate ' || a.attcollation::pg_catalog.regcollation END),
                                         ', ' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
           (SELECT pg_catalog.concat_ws(' ', pg_catalog.format_type(r.rngsubtype, NULL),
                        CASE WHEN r.rngcollation NOT IN (0, 100) THEN 'collate ' || r.rngcollation::pg_catalog.regcollation END,
                        CASE WHEN NOT o.opcdefault THEN pg_catalog.format('by %I.%I', n.nspname, o.opcname) END)
            FROM pg_catalog.pg_range r
            JOIN pg_catalog.pg_opclass o ON o.oid = r.rngsubopc JOIN pg_catalog.pg_namespace n ON n.oid = o.opcnamespace
            WHERE r.rngtypid = t.oid),
           CASE WHEN t.typtype = 'b' THEN pg_catalog.concat_ws(' ', t.typinput, t.typoutput) END),
       ARRAY(SELECT i FROM (
                 SELECT t.typelem AS i UNION ALL SELECT t.typbasetype
                 UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
                 UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                           WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) i
             WHERE i <> 0)::pg_catalog.oid[],
       CASE WHEN c.relkind <> 'c' THEN c.oid END,
       (c.oid IS NULL OR c.relkind = 'c') AND NOT (t.typelem <> 0 AND t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc)
FROM pg_catalog.pg_type t
LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
WHERE t.oid = $1
