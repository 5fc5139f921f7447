-- What a copy of a table ($1) made by LIKE must lose or get: what the table always generates is left out, and what it generates by
-- default draws from its own sequence, so that numbers do not repeat.
SELECT pg_catalog.format(
        CASE WHEN a.attgenerated <> '' OR a.attidentity = 'a' THEN 'DROP COLUMN %1$I'
             ELSE 'ALTER COLUMN %1$I SET DEFAULT pg_catalog.nextval(%2$L::pg_catalog.regclass)' END,
        a.attname, s.objid::pg_catalog.regclass)
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_depend s ON a.attidentity = 'd'
    AND s.deptype = 'i' AND s.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
    AND s.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    AND s.refobjid = a.attrelid AND s.refobjsubid = a.attnum
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND (a.attgenerated <> '' OR a.attidentity <> '')
