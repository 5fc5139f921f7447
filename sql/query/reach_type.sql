-- A type ($1): its name, its definition, the types that it is made of, the table whose rows it is of, whether it is listed:
-- arrays and row types of tables are what they are made of; its collations, and the functions by which a range has its order.
SELECT pg_catalog.format_type(t.oid, NULL),
       pg_catalog.concat_ws(' ', t.typtype,
           CASE WHEN t.typtype = 'd' THEN pg_catalog.format_type(t.typbasetype, t.typtypmod) END,
           (SELECT 'COLLATE ' || t.typcollation::pg_catalog.regcollation FROM pg_catalog.pg_type b
            WHERE b.oid = t.typbasetype AND t.typcollation <> b.typcollation),
           CASE WHEN t.typnotnull THEN 'not null' END,
           -- They hold for all new values, whatever is said of old ones.
           (SELECT pg_catalog.string_agg(k.definition, ' ' ORDER BY k.definition)
            FROM pg_catalog.pg_constraint c,
                 pg_catalog.regexp_replace(pg_catalog.pg_get_constraintdef(c.oid), ' NOT VALID$', '') k (definition)
            WHERE c.contypid = t.oid),
           (SELECT pg_catalog.string_agg(pg_catalog.quote_literal(e.enumlabel), ' ' ORDER BY e.enumsortorder)
            FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid),
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ',
                       pg_catalog.quote_ident(a.attname), pg_catalog.format_type(a.atttypid, a.atttypmod),
                       CASE WHEN a.attcollation <> b.typcollation
                            THEN 'COLLATE ' || a.attcollation::pg_catalog.regcollation END), ', ' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type b ON b.oid = a.atttypid
            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
           pg_catalog.format_type(r.rngsubtype, NULL),
           CASE WHEN r.rngcollation <> s.typcollation THEN 'COLLATE ' || r.rngcollation::pg_catalog.regcollation END,
           -- Without a name it is the type's own, as PostgreSQL brings it.
           CASE WHEN o.oid >= 16384 OR NOT o.opcdefault THEN pg_catalog.format('USING %I.%I', n.nspname, o.opcname) END,
           CASE WHEN o.oid >= 16384 THEN compares.amproc::pg_catalog.oid::pg_catalog.regprocedure END,
           CASE WHEN t.typtype = 'b' THEN pg_catalog.concat_ws(' ', t.typinput, t.typoutput) END),
       ARRAY(SELECT i FROM (
                 SELECT t.typelem AS i UNION ALL SELECT t.typbasetype
                 UNION ALL SELECT r.rngsubtype
                 UNION ALL SELECT m.rngtypid FROM pg_catalog.pg_range m WHERE m.rngmultitypid = t.oid
                 UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                           WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) i
             WHERE i <> 0)::pg_catalog.oid[],
       CASE WHEN c.relkind <> 'c' THEN c.oid END,
       (c.oid IS NULL OR c.relkind = 'c') AND NOT (t.typelem <> 0 AND t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc),
       ARRAY(SELECT i FROM (
                 SELECT t.typcollation AS i UNION ALL SELECT r.rngcollation
                 UNION ALL SELECT a.attcollation FROM pg_catalog.pg_attribute a
                           WHERE a.attrelid = t.typrelid AND c.relkind = 'c' AND a.attnum > 0 AND NOT a.attisdropped) i
             WHERE i <> 0)::pg_catalog.oid[],
       ARRAY(SELECT f.oid FROM (VALUES (r.rngcanonical::pg_catalog.oid), (compares.amproc::pg_catalog.oid)) f (oid)
             WHERE f.oid <> 0)::pg_catalog.oid[]
FROM pg_catalog.pg_type t
LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid
LEFT JOIN pg_catalog.pg_type s ON s.oid = r.rngsubtype
LEFT JOIN pg_catalog.pg_opclass o ON o.oid = r.rngsubopc
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = o.opcnamespace
LEFT JOIN pg_catalog.pg_amproc compares
    ON (compares.amprocfamily, compares.amproclefttype, compares.amprocrighttype, compares.amprocnum)
       = (o.opcfamily, o.opcintype, o.opcintype, 1)
WHERE t.oid = $1
