-- Why the storage of a partition ($1) is not exchanged: what would be passed by, or would not be the same afterwards; and whether
-- that is so only while somebody builds an index.
WITH line AS (
    SELECT c.oid, c.relname, c.relnamespace, c.relkind, c.relam, c.relpersistence, c.relhasrules,
           pg_catalog.format('%I.%I', n.nspname, c.relname) AS shown
    FROM pg_catalog.pg_partition_ancestors($1) a
    JOIN pg_catalog.pg_class c ON c.oid = a.relid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
), reason AS (
    SELECT 1 AS place, pg_catalog.format('%s is %s', l.shown, CASE
        WHEN l.relkind = 'f' THEN 'a foreign table'
        WHEN l.relkind <> 'r' THEN 'partitioned itself'
        ELSE pg_catalog.format('of the access method %s', m.amname) END) AS text
    FROM line l LEFT JOIN pg_catalog.pg_am m ON m.oid = l.relam
    WHERE l.oid = $1 AND (l.relkind <> 'r' OR m.amname <> 'heap')
    UNION ALL
    SELECT 2, pg_catalog.format('publication %I publishes %s, and subscribers would not be told', p.pubname, l.shown)
    FROM pg_catalog.pg_publication p, line l
    WHERE p.puballtables
       OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = l.oid)
       OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
                  WHERE s.pnpubid = p.oid AND s.pnnspid = l.relnamespace)
    UNION ALL
    -- pgoutput hands on what is published. What others hand on, they alone know.
    SELECT 3, pg_catalog.format('replication slot %I hands on changes through %s, and its reader would not be told',
                                s.slot_name, s.plugin)
    FROM pg_catalog.pg_replication_slots s
    WHERE s.slot_type = 'logical' AND s.database = pg_catalog.current_database() AND s.plugin <> 'pgoutput'
    UNION ALL
    SELECT 4, pg_catalog.format('foreign key %I of %s %s', k.conname, k.conrelid::pg_catalog.regclass,
        CASE WHEN l.oid = k.conrelid THEN 'would not be checked'
             ELSE pg_catalog.format('refers to %s', l.shown) END)
    FROM pg_catalog.pg_constraint k JOIN line l ON l.oid IN (k.conrelid, k.confrelid)
    WHERE k.contype = 'f'
    UNION ALL
    SELECT 5, pg_catalog.format('trigger %I of %s would not fire', t.tgname, l.shown)
    FROM pg_catalog.pg_trigger t JOIN line l ON l.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND t.tgfoid <> pg_catalog.to_regproc('backfill.fence_guard')
    UNION ALL
    SELECT 6, pg_catalog.format('%s has rules', l.shown) FROM line l WHERE l.relhasrules
    UNION ALL
    SELECT 7, pg_catalog.format('column %I of %s is %s', a.attname, l.shown,
        CASE WHEN a.attidentity <> '' THEN 'an identity' ELSE 'generated' END)
    FROM pg_catalog.pg_attribute a JOIN line l ON l.oid = a.attrelid
    WHERE a.attnum > 0 AND NOT a.attisdropped AND (a.attidentity <> '' OR a.attgenerated <> '')
    UNION ALL
    SELECT CASE WHEN i.indisexclusion THEN 8 ELSE 9 END, pg_catalog.format('index %I %s', c.relname,
        CASE WHEN i.indisexclusion THEN 'is that of an exclusion constraint' ELSE 'is not valid' END)
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = $1 AND (i.indisexclusion OR NOT (i.indisvalid AND i.indisready AND i.indislive))
)
SELECT r.text, r.place = 9 AND EXISTS (
    SELECT FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = $1 AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()))
FROM reason r ORDER BY r.place, r.text LIMIT 1
