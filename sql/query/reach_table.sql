-- What a table ($1) is to who reads it, or of a view what its query does not tell: the columns that are read, by their numbers
-- ($2; 0 is all), with what counts of each; and what hides rows, of a view only where some table has row security ($3).
SELECT CASE WHEN c.relkind = 'v' THEN 'columns' ELSE 'table' END,
       pg_catalog.concat_ws('; ',
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ',
                       -- The query of a view gives its columns by their places.
                       CASE WHEN c.relkind IN ('v', 'm') THEN a.attnum END,
                       pg_catalog.quote_ident(a.attname),
                       pg_catalog.format_type(a.atttypid, a.atttypmod),
                       CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation
                            THEN 'COLLATE ' || a.attcollation::pg_catalog.regcollation END,
                       CASE WHEN a.attgenerated <> '' THEN
                           'GENERATED ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid) END),
                       -- A whole row has them in their order.
                       ', ' ORDER BY CASE WHEN 0 = ANY ($2) THEN a.attnum END, a.attname)
            FROM pg_catalog.pg_attribute a
            JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
            LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attnum > 0
              AND (a.attnum = ANY ($2) OR 0 = ANY ($2))),
           CASE WHEN c.relrowsecurity OR c.relkind = 'v' AND $3 THEN
               pg_catalog.concat_ws(' ', 'owner', pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(c.relowner)),
                   CASE WHEN c.relforcerowsecurity THEN 'forced' END,
                   (SELECT 'as invoker' FROM pg_catalog.pg_options_to_table(c.reloptions) o
                    WHERE o.option_name = 'security_invoker' AND o.option_value::pg_catalog.bool)) END,
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', 'policy', p.polpermissive, p.polcmd,
                       ARRAY(SELECT pg_catalog.pg_get_userbyid(r) FROM pg_catalog.unnest(p.polroles) r WHERE r <> 0 ORDER BY 1),
                       pg_catalog.pg_get_expr(p.polqual, p.polrelid)), '; ' ORDER BY p.polname)
            FROM pg_catalog.pg_policy p
            WHERE p.polrelid = c.oid AND c.relrowsecurity AND p.polcmd IN ('r', '*')))
FROM pg_catalog.pg_class c WHERE c.oid = $1
