SELECT pg_catalog.concat_ws(' ',
        pg_catalog.quote_ident(a.attname),
        pg_catalog.format_type(a.atttypid, a.atttypmod),
        CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation THEN
            'COLLATE ' || pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(c.collname) END,
        CASE WHEN $2 AND a.attnotnull THEN 'NOT NULL' END)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace cn ON cn.oid = c.collnamespace
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
  AND a.attgenerated = '' AND a.attidentity <> 'a'
ORDER BY a.attnum
