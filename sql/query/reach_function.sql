-- A function ($1): its name, all of its definition that counts but the body, whether it is SQL, its body as text or as it was
-- analysed, the defaults of its arguments, its own search_path, the functions that an aggregate is made of, the types that it
-- names, and its owner where it runs as that.
SELECT pg_catalog.format('%I.%I(%s)', n.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)),
       pg_catalog.concat_ws(' ', p.prokind, pg_catalog.pg_get_function_arguments(p.oid), '->',
                            pg_catalog.pg_get_function_result(p.oid), l.lanname, p.provolatile,
                            CASE WHEN p.proisstrict THEN 'strict' END,
                            CASE WHEN p.prosecdef THEN 'security definer as ' || pg_catalog.pg_get_userbyid(p.proowner) END,
                            p.proconfig,
                            CASE WHEN l.lanname IN ('c', 'internal') THEN p.prosrc END, x.extversion,
                            pg_catalog.to_jsonb(a) - '{aggfnoid,aggtransspace,aggmtransspace}'::pg_catalog.text[]),
       l.lanname = 'sql',
       CASE WHEN p.prokind <> 'a' AND l.lanname NOT IN ('c', 'internal') AND p.prosqlbody IS NULL THEN p.prosrc END,
       p.prosqlbody::pg_catalog.text,
       p.proargdefaults::pg_catalog.text,
       (SELECT pg_catalog.substr(s.setting, 13) FROM pg_catalog.unnest(p.proconfig) s (setting)
        WHERE s.setting LIKE 'search\_path=%'),
       ARRAY(SELECT f.oid FROM (VALUES (a.aggtransfn), (a.aggfinalfn), (a.aggcombinefn), (a.aggserialfn), (a.aggdeserialfn),
                                       (a.aggmtransfn), (a.aggminvtransfn), (a.aggmfinalfn)) f (oid)
             WHERE f.oid::pg_catalog.oid <> 0)::pg_catalog.oid[],
       ARRAY(SELECT t FROM pg_catalog.unnest(p.prorettype || COALESCE(p.proallargtypes, p.proargtypes::pg_catalog.oid[])) t),
       CASE WHEN p.prosecdef THEN p.proowner END
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
LEFT JOIN pg_catalog.pg_aggregate a ON a.aggfnoid = p.oid
LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
LEFT JOIN pg_catalog.pg_extension x ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND x.oid = d.refobjid
WHERE p.oid = $1
