-- The columns of a table ($1) that are read, by their numbers ($2; 0 is all), with what counts of each, and its policies; NULL for
-- a view.
SELECT CASE WHEN c.relkind <> 'v' THEN pg_catalog.concat_ws('; ',
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', pg_catalog.quote_ident(a.attname),
                       pg_catalog.format_type(a.atttypid, a.atttypmod),
                       CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation
                            THEN 'COLLATE ' || a.attcollation::pg_catalog.regcollation END,
                       CASE WHEN a.attgenerated <> '' THEN
                           'GENERATED ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid) END), ', ' ORDER BY a.attname)
            FROM pg_catalog.pg_attribute a
            JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
            LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attnum > 0
              AND (a.attnum = ANY ($2) OR 0 = ANY ($2))),
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', 'policy', p.polpermissive, p.polcmd,
                       ARRAY(SELECT pg_catalog.pg_get_userbyid(r) FROM pg_catalog.unnest(p.polroles) r WHERE r <> 0 ORDER BY 1),
                       pg_catalog.pg_get_expr(p.polqual, p.polrelid)), '; ' ORDER BY p.polname)
            FROM pg_catalog.pg_policy p
            WHERE p.polrelid = c.oid AND c.relrowsecurity AND p.polcmd IN ('r', '*')))
       END
FROM pg_catalog.pg_class c WHERE c.oid = $1
