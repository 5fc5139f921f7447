//! Strategy `swap`: a partition gets other storage.

use crate::support::waiting;
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate, wait_until};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// A day of these is a partition, with all that can hang on one. Each day has 24 rows, some of them too long for a page.
const SHOP: &str = "CREATE TABLE sales (gone int, at timestamptz NOT NULL, id int NOT NULL CHECK (id >= 0), item text, note text,
         CONSTRAINT short CHECK (length(item) < 20), PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
     CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2024-03-01Z') TO ('2024-03-02Z')
         WITH (fillfactor = 70, toast.autovacuum_enabled = off);
     ALTER TABLE sales DROP COLUMN gone;
     CREATE TABLE sales_2 (note text, id int NOT NULL, at timestamptz NOT NULL, item text);
     ALTER TABLE sales_2 ADD CONSTRAINT sales_id_check CHECK (id >= 0), ADD CONSTRAINT short CHECK (length(item) < 20);
     ALTER TABLE sales ATTACH PARTITION sales_2 FOR VALUES FROM ('2024-03-02Z') TO ('2024-03-03Z');
     CREATE TABLE sales_3 PARTITION OF sales FOR VALUES FROM ('2024-03-03Z') TO ('2024-03-04Z');
     CREATE UNLOGGED TABLE sales_4 PARTITION OF sales FOR VALUES FROM ('2024-03-04Z') TO ('2024-03-05Z');
     CREATE TABLE sales_later PARTITION OF sales FOR VALUES FROM ('2024-03-05Z') TO ('2024-04-01Z');
     CREATE TABLE sales_rest PARTITION OF sales DEFAULT;
     CREATE INDEX sales_note ON sales (md5(note)) WITH (fillfactor = 50);
     CREATE INDEX sales_item ON sales USING gin (to_tsvector('simple', item)) WHERE id > 3;
     CREATE INDEX sales_1_item ON sales_1 (item COLLATE \"C\" DESC) INCLUDE (id);
     CREATE STATISTICS sales_1_both ON id, item FROM sales_1;
     COMMENT ON TABLE sales_1 IS 'the first';
     COMMENT ON INDEX sales_1_item IS 'its index';
     COMMENT ON COLUMN sales_1.item IS 'what was sold';
     ALTER TABLE sales_1 ALTER item SET STATISTICS 5, ALTER note SET STORAGE EXTERNAL;
     GRANT SELECT (item), INSERT ON sales_1 TO PUBLIC;
     CREATE TABLE source (at timestamptz, id int, item text, note text);
     INSERT INTO source SELECT '2024-03-01Z'::timestamptz + n * interval '1 hour', n % 24, 'item ' || n % 24,
             CASE WHEN n % 6 = 0 THEN (SELECT string_agg(md5((n * 1000 + k)::text), '') FROM generate_series(1, 400) k) END
         FROM generate_series(0, 30 * 24 - 1) n;
     INSERT INTO sales SELECT at, id, 'old', note FROM source WHERE at < '2024-03-05Z';
     ANALYZE;
     SELECT pool_define('backfill', 16);
     SELECT pipeline_define('sales', '1 day', '2024-03-01', target => 'sales', slice_column => 'at',
         query => 'SELECT * FROM source WHERE at >= $1 AND at < $2')";

fn shop_in(cluster: &Cluster) -> Database {
    let database = cluster.database();
    database.connect().run(SHOP);
    database
}

fn shop() -> Database {
    shop_in(Cluster::shared())
}

/// A token for a day of March.
fn token(session: &mut Session, day: u32) -> i64 {
    let key = format!("2024-03-{day:02}");
    session.run(&format!(
        "SELECT FROM backfill_plan('sales', NULL, NULL, 'test', keys => ARRAY['{key}'], expect => 1)"
    ));
    session.one(
        "SELECT token FROM backfill_claim('test', pipelines => ARRAY['sales'], window_key => $1)",
        &[&key],
    )
}

fn swap(token: i64) -> String {
    format!(
        "SELECT strategy, rows, inserted, deleted, changed FROM replace_partition({token}, strategy => 'swap', finish => false)"
    )
}

/// The same with rows that tell which round brought them.
fn swap_marked(token: i64, round: usize) -> String {
    format!(
        "SELECT FROM replace_partition({token}, strategy => 'swap', finish => false,
             query => 'SELECT at, id, ''round {round}'', note FROM source WHERE at >= $1 AND at < $2')"
    )
}

/// Rows, items, and whether all are what the source has.
fn content(session: &mut Session, day: u32) -> String {
    let sql = format!(
        "SELECT count(*), count(DISTINCT s.item), min(s.item), count(*) FILTER (WHERE s.note IS NOT DISTINCT FROM o.note)
         FROM sales s JOIN source o USING (at, id)
         WHERE at >= '2024-03-{day:02}Z' AND at < '2024-03-{:02}Z'",
        day + 1
    );
    session.lines(&sql).remove(0)
}

const OLD: &str = "24|1|old|24";
const NEW: &str = "24|24|item 0|24";

/// Every index leads to the rows of the table, and every value in TOAST is there.
fn assert_sound(session: &mut Session, partition: &str) {
    session.run("SET enable_seqscan = off; SET enable_bitmapscan = off");
    for condition in ["md5(note) > '0'", "at > '2024-01-01Z' AND id = 6", "item > '' COLLATE \"C\""] {
        let count = format!("SELECT count(*), count(md5(note)) FROM {partition} WHERE {condition}");
        let found = session.lines(&count);
        session.run("SET enable_seqscan = on; SET enable_indexscan = off; SET enable_indexonlyscan = off");
        assert_eq!(session.lines(&count), found, "{partition}: {condition}");
        session.run("SET enable_seqscan = off; SET enable_indexscan = on; SET enable_indexonlyscan = on");
    }
    for scan in ["seqscan", "bitmapscan", "indexscan", "indexonlyscan"] {
        session.run(&format!("RESET enable_{scan}"));
    }
    if session.lines("SELECT FROM pg_available_extensions WHERE name = 'amcheck'").is_empty() {
        println!("not tried: this server has no amcheck");
        return;
    }
    session.run("CREATE EXTENSION IF NOT EXISTS amcheck");
    assert_eq!(
        session.lines(&format!("SELECT * FROM verify_heapam('{partition}', check_toast => true)")),
        [""; 0]
    );
    session.run(&format!(
        "SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
         WHERE c.relam = 403 AND i.indrelid IN ('{partition}'::regclass,
             (SELECT reltoastrelid FROM pg_class WHERE oid = '{partition}'::regclass))"
    ));
}

#[test]
fn a_partition_gets_new_rows_and_stays_what_it_was() {
    let database = shop();
    let mut session = database.connect();
    let describe = |session: &mut Session| {
        let dump = database.output("pg_dump", &["--schema-only", "--schema=public"]);
        // What a newer pg_dump makes anew each time.
        let dump: Vec<String> =
            dump.lines().filter(|line| !line.contains("restrict ")).map(str::to_owned).collect();
        let classes = session.lines(
            "SELECT c.oid, c.relname, c.relkind, c.relowner, c.reltablespace, c.relpersistence, c.reloptions, c.relacl,
                    c.relhasindex, c.relrewrite, c.relispartition, i.indisvalid, i.indisready, t.relname, t.reloptions, t.relrewrite
             FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
             WHERE c.relnamespace = 'public'::regnamespace ORDER BY c.oid",
        );
        let columns = session.lines(
            "SELECT attrelid, attname, attnum, attisdropped, attstorage, attnotnull FROM pg_attribute
             WHERE attrelid::regclass::text ~ '^sales' ORDER BY 1, attnum",
        );
        let files = session.lines(
            "SELECT c.oid, c.relfilenode FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace",
        );
        ((dump, classes, columns), files)
    };
    // Indexes are built by several processes where that pays.
    session.run("SET min_parallel_table_scan_size = 0; SET maintenance_work_mem = '512MB'");
    for day in 1..=4 {
        let token = token(&mut session, day);
        let (before, files) = describe(&mut session);
        assert_eq!(content(&mut session, day), OLD);
        assert_eq!(session.lines(&swap(token)), ["swap|24|24|24|t"]);
        let (after, new_files) = describe(&mut session);
        assert_eq!(before, after);
        let moved = files.iter().filter(|file| !new_files.contains(file)).count();
        assert_eq!(moved, if day == 1 { 5 } else { 4 }, "the heap and its indexes");
        assert_eq!(content(&mut session, day), NEW);
        assert_eq!(content(&mut session, day % 4 + 1), if day < 4 { OLD } else { NEW });
        assert_sound(&mut session, &format!("sales_{day}"));
        // It goes on living.
        session.run(&format!(
            "UPDATE sales_{day} SET note = note || 'x' WHERE id < 7; DELETE FROM sales_{day} WHERE id > 20"
        ));
        session.run(&format!("VACUUM (FREEZE, ANALYZE) sales_{day}"));
        assert_sound(&mut session, &format!("sales_{day}"));
        let slice = "SELECT digest FROM replace_partition($1, strategy => $2, finish => false)";
        let by_rows: String = session.one(slice, &[&token, &"rows"]);
        session.run(&format!("DELETE FROM sales_{day} WHERE id = 1"));
        assert_eq!(session.one::<String>(slice, &[&token, &"swap"]), by_rows);
        assert_eq!(session.lines(&swap(token)), ["swap|24|0|0|f"]);
        // The planner and vacuum know what is there.
        assert_eq!(
            session.lines(&format!(
                "SELECT reltuples, relpages > 0, relallvisible = relpages, relfrozenxid::text::bigint > 0 FROM pg_class WHERE oid = 'sales_{day}'::regclass"
            )),
            ["24|t|t|t"]
        );
    }
    let leftovers = session.lines(
        "SELECT relname FROM pg_class WHERE relname ~ 'pg_temp_' OR relnamespace = 'pg_toast'::regnamespace AND relkind = 't'
             AND relname <> ALL (SELECT 'pg_toast_' || oid FROM pg_class)",
    );
    assert_eq!(leftovers, [""; 0]);
}

#[test]
fn rows_that_a_constraint_refuses_leave_everything() {
    let database = shop();
    let mut session = database.connect();
    let token = token(&mut session, 1);
    for (columns, code, detail) in [
        ("date_trunc('day', at), id % 23, item, note", "23505", "is duplicated"),
        ("at, -id, item, note", "23514", ""),
        ("at, nullif(id, 5), item, note", "23502", ""),
        ("at, id, repeat('x', 20), note", "23514", ""),
        ("at, id, item", "0A000", "leave column \"note\" to its default"),
        ("at + interval '1 day', id, item, note", "BF005", ""),
    ] {
        let files = session.lines("SELECT relname, relfilenode FROM pg_class ORDER BY oid");
        let call = format!(
            "SELECT replace_partition({token}, strategy => 'swap', query => 'SELECT {} FROM source WHERE at >= $1 AND at < $2')",
            columns.replace('\'', "''")
        );
        let failure = assert_sqlstate!(session.try_run(&call), code);
        assert!(failure.detail.contains(detail), "{failure}");
        assert_eq!(session.lines("SELECT relname, relfilenode FROM pg_class ORDER BY oid"), files);
        assert_eq!(content(&mut session, 1), OLD);
    }
    let call = |allow: &str| {
        format!(
            "SELECT deleted FROM replace_partition({token}, strategy => 'swap', finish => false{allow}, query => 'SELECT * FROM source WHERE at >= $1 AND at < $2 LIMIT 5')"
        )
    };
    assert_sqlstate!(session.try_run(&call("")), "BF006");
    assert_eq!(content(&mut session, 1), OLD);
    assert_eq!(session.lines(&call(", allow_shrink => 'test'")), ["24"]);
    session.run(&swap_marked(token, 1));
    assert_eq!(content(&mut session, 1), "24|1|round 1|24");
}

#[test]
fn a_subtransaction_that_is_rolled_back_leaves_the_old_rows() {
    let database = shop();
    let mut session = database.connect();
    let token = token(&mut session, 1);
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        session.run(&format!("BEGIN ISOLATION LEVEL {isolation}"));
        session.run(&format!("SAVEPOINT s; {}", swap(token)));
        assert_eq!(content(&mut session, 1), NEW);
        session.run("ROLLBACK TO s");
        assert_eq!(content(&mut session, 1), OLD);
        assert_sound(&mut session, "sales_1");
        for round in 1..=2 {
            session.run(&format!("SAVEPOINT s; {}; RELEASE s", swap_marked(token, round)));
            assert_eq!(content(&mut session, 1), format!("24|1|round {round}|24"));
            session.run("DELETE FROM sales WHERE at = '2024-03-01 03:00Z'; INSERT INTO sales SELECT * FROM source WHERE at = '2024-03-01 03:00Z'");
        }
        assert_eq!(content(&mut session, 1), "24|2|item 3|24");
        assert_sound(&mut session, "sales_1");
        session.run("ROLLBACK");
        assert_eq!(content(&mut session, 1), OLD);
    }
    session.run(&format!("BEGIN; {}; {}; COMMIT", swap_marked(token, 1), swap_marked(token, 2)));
    assert_eq!(content(&mut session, 1), "24|1|round 2|24");
    assert_sound(&mut session, "sales_1");
}

#[test]
fn readers_see_whole_slices_while_four_are_swapped() {
    let database = shop();
    let tokens = [1, 2, 3, 4].map(|day| token(&mut database.connect(), day));
    let (writing, reads, tries) = (AtomicU64::new(4), AtomicU64::new(0), AtomicU64::new(0));
    database.many(12, |i, session| {
        if let Some(token) = tokens.get(i) {
            for round in 1..=20 {
                while let Err(failure) = session.try_run(&swap_marked(*token, round)) {
                    assert_eq!(failure.sqlstate, "55P03", "{failure}");
                    tries.fetch_add(1, Ordering::Relaxed);
                }
            }
            writing.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let look = "SELECT at::date, count(*), sum(id), count(DISTINCT item) FROM sales
                    WHERE at >= '2024-03-01Z' AND at < '2024-03-05Z' GROUP BY 1 ORDER BY 1";
        let mut seen = 0;
        while writing.load(Ordering::Relaxed) > 0 || seen == 0 {
            let level = ["READ COMMITTED", "REPEATABLE READ"][i % 2];
            // The snapshot of the second kind is older than what it reads.
            session.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM source LIMIT 1"));
            let slices = session.lines(look);
            assert_eq!(
                slices.iter().filter(|slice| slice.ends_with("|24|276|1")).count(),
                4,
                "{level}: {slices:?}"
            );
            session.run("COMMIT");
            seen += 1;
        }
        reads.fetch_add(seen, Ordering::Relaxed);
    });
    assert!(reads.into_inner() > 50, "the readers hardly read");
    assert!(tries.into_inner() < 20, "swaps were hardly let through");
}

#[test]
fn an_old_snapshot_sees_the_new_slice_and_else_what_it_saw() {
    let database = shop();
    let [mut old, mut session] = [(); 2].map(|()| database.connect());
    for (day, strategy, seen) in [(1, "rows", OLD), (2, "swap", NEW)] {
        let token = token(&mut session, day);
        old.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        old.run("SELECT FROM pg_class LIMIT 1");
        session.run(&format!("UPDATE source SET item = 'later' WHERE at >= '2024-03-10Z'; SELECT replace_partition({token}, strategy => '{strategy}', finish => false)"));
        assert_eq!(content(&mut old, day), seen);
        if strategy == "swap" {
            // What a transaction has read it reads again: nobody swaps it meanwhile.
            let again = session.failure(&swap_marked(token, 1));
            assert_eq!(again.sqlstate, "55P03", "{again}");
            assert_eq!(content(&mut old, day), seen);
        }
        // The rest is as of the snapshot.
        assert_eq!(content(&mut old, day + 1), OLD);
        old.run("ROLLBACK");
        assert_eq!(content(&mut old, day), NEW);
    }
}

#[test]
fn a_long_reader_keeps_nobody_but_the_swap_waiting() {
    let database = shop();
    let [mut long, mut session] = [(); 2].map(|()| database.connect());
    let token = token(&mut session, 1);
    long.run("BEGIN; SELECT count(*) FROM sales");
    let (reader, pid, ended) = (long.pid(), session.pid(), AtomicBool::new(false));
    let failure = thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let failure = session.failure(&swap(token));
            ended.store(true, Ordering::Relaxed);
            failure
        });
        database.wait_for_lock(pid);
        let others =
            ["SELECT count(*) FROM sales", "UPDATE sales SET item = item WHERE at = '2024-03-01 05:00Z'"];
        let others = others.map(|sql| {
            let (database, ended) = (&database, &ended);
            scope.spawn(move || {
                let mut other = database.connect();
                // Ten times what they may have to wait.
                other.run("SET lock_timeout = '500ms'");
                let mut times = 0;
                while !ended.load(Ordering::Relaxed) {
                    other.run(sql);
                    times += 1;
                }
                times
            })
        });
        for other in others {
            assert!(other.join().unwrap() >= 10, "hardly anybody got through");
        }
        swapping.join().unwrap()
    });
    assert_eq!(failure.sqlstate, "55P03", "{failure}");
    assert!(failure.detail.contains(&format!("{reader}")), "{failure}");
    assert!(failure.hint.contains("'rows'"), "{failure}");
    assert_eq!(session.lines("SELECT count(*) FROM pg_locks WHERE NOT granted"), ["0"]);
    assert_eq!(content(&mut session, 1), OLD);
    // A reader that ends in time is waited for.
    waiting(&database, &mut session, &swap(token), || long.run("COMMIT")).unwrap();
    assert_eq!(content(&mut session, 1), NEW);
}

#[test]
fn what_a_stranger_writes_meanwhile_is_counted_with_the_old_rows() {
    let database = shop();
    let [mut stranger, mut session] = [(); 2].map(|()| database.connect());
    session.run("SELECT pipeline_alter('sales', '{\"keep_previous\": \"1 day\"}')");
    let token = token(&mut session, 1);
    stranger.run("BEGIN; INSERT INTO sales VALUES ('2024-03-01 12:30Z', 99, 'stranger', NULL)");
    let call = format!("SELECT FROM replace_partition({token}, strategy => 'swap')");
    waiting(&database, &mut session, &call, || stranger.run("COMMIT")).unwrap();
    assert_eq!(session.lines("SELECT count(*) FROM sales_1"), ["24"]);
    assert_eq!(session.lines("SELECT rows FROM backfill.kept_slices"), ["25"]);
    session.run("SELECT backfill_revert(plan_id, 'test') FROM backfill.plans");
    assert_eq!(
        session.lines("SELECT count(*), count(*) FILTER (WHERE item = 'stranger') FROM sales_1"),
        ["25|1"]
    );
}

#[test]
fn a_protected_target_is_swapped_by_who_holds_the_fence() {
    let database = shop();
    let mut session = database.connect();
    session.run("SELECT fence_protect('sales')");
    let token = token(&mut session, 1);
    assert_eq!(session.lines(&swap(token)), ["swap|24|24|24|t"]);
    assert_sqlstate!(session.try_run("DELETE FROM sales WHERE id = 1"), "BF011");
    session.run(&format!("SELECT backfill_finish({token})"));
    assert_sqlstate!(session.try_run(&swap(token)), "BF001");
}

#[test]
fn what_cannot_be_swapped_is_refused_with_the_reason() {
    let database = shop();
    let mut session = database.connect();
    let [first, later] = [1, 6].map(|day| token(&mut session, day));
    let failure = assert_sqlstate!(session.try_run(&swap(later)), "0A000");
    assert!(failure.detail.contains("no partition of exactly window 2024-03-06"), "{failure}");
    session.run(
        "CREATE TABLE other (at timestamptz, id int, PRIMARY KEY (at, id)); CREATE SCHEMA s;
        CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    );
    for (change, reason) in [
        ("CREATE PUBLICATION p FOR TABLE sales_1", "publication p publishes public.sales_1"),
        ("CREATE PUBLICATION p FOR TABLE sales", "publication p publishes public.sales"),
        ("CREATE PUBLICATION p FOR ALL TABLES", "publication p publishes"),
        ("CREATE PUBLICATION p FOR TABLES IN SCHEMA public", "publication p publishes"),
        (
            "INSERT INTO other SELECT at, id FROM sales; ALTER TABLE sales ADD FOREIGN KEY (at, id) REFERENCES other",
            "would not be checked",
        ),
        (
            "ALTER TABLE sales_1 ADD CONSTRAINT own FOREIGN KEY (at, id) REFERENCES other NOT VALID",
            "foreign key own of public.sales_1 would not be checked",
        ),
        ("ALTER TABLE other ADD FOREIGN KEY (at, id) REFERENCES sales", "refers to public.sales"),
        (
            "CREATE TRIGGER own AFTER INSERT ON sales_1 FOR EACH ROW EXECUTE FUNCTION nothing()",
            "trigger own of public.sales_1",
        ),
        (
            "CREATE TRIGGER own AFTER INSERT ON sales FOR EACH ROW EXECUTE FUNCTION nothing()",
            "trigger own of public.sales",
        ),
        (
            "CREATE TRIGGER own AFTER INSERT ON sales FOR EACH STATEMENT EXECUTE FUNCTION nothing()",
            "trigger own of public.sales",
        ),
        ("CREATE RULE own AS ON INSERT TO sales DO ALSO NOTIFY x", "public.sales has rules"),
        ("ALTER TABLE sales DETACH PARTITION sales_1", "no partition of exactly window"),
        (
            "ALTER TABLE sales DETACH PARTITION sales_1; ALTER TABLE sales ATTACH PARTITION sales_1 FOR VALUES FROM ('2024-02-29Z') TO ('2024-03-02Z')",
            "no partition of exactly window",
        ),
        ("ALTER TABLE sales_1 ADD EXCLUDE USING btree (id WITH =)", "exclusion constraint"),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'sales_1_item'::regclass",
            "is not valid",
        ),
        (
            "DROP TABLE sales_1; CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2024-03-01Z') TO ('2024-03-02Z') PARTITION BY HASH (id)",
            "public.sales_1 is partitioned itself",
        ),
        (
            "DROP TABLE sales_1; CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere; ALTER TABLE sales DROP CONSTRAINT sales_pkey; DROP INDEX sales_note, sales_item; CREATE FOREIGN TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2024-03-01Z') TO ('2024-03-02Z') SERVER nowhere",
            "public.sales_1 is a foreign table",
        ),
        ("ALTER TABLE sales ADD made int GENERATED ALWAYS AS (id + 1) STORED", "column made of public.sales"),
    ] {
        session.run(&format!("BEGIN; {change}"));
        let failure = assert_sqlstate!(session.try_run(&swap(first)), "0A000");
        assert!(failure.detail.contains(reason), "{change}: {failure}");
        assert!(failure.hint.contains("'rows'"), "{failure}");
        session.run("ROLLBACK");
    }
    session.run("BEGIN; DECLARE c CURSOR FOR SELECT * FROM sales; FETCH c");
    assert_sqlstate!(session.try_run(&swap(first)), "55006");
    session.run("ROLLBACK");
    assert_eq!(content(&mut session, 1), OLD);
}

#[test]
fn whoever_swaps_needs_the_rights_to_write_rows() {
    let database = shop();
    let role = database.role("worker");
    let [mut owner, mut worker] = [database.connect(), database.connect_as(&role)];
    owner.run(&format!(
        "GRANT USAGE ON SCHEMA public TO {role}; SELECT pipeline_grant('sales', '{role}', 'work'); GRANT SELECT ON source TO {role}"
    ));
    let token = token(&mut owner, 1);
    for (right, code) in [("SELECT", "42501"), ("INSERT", "42501"), ("DELETE", "")] {
        owner.run(&format!("GRANT {right} ON sales TO {role}"));
        let call = swap_marked(token, 1);
        if code.is_empty() {
            owner.run(
                "ALTER TABLE sales ENABLE ROW LEVEL SECURITY; CREATE POLICY all_rows ON sales USING (true)",
            );
            let failure = assert_sqlstate!(worker.try_run(&call), "0A000");
            assert!(failure.detail.contains("Row-level security applies"), "{failure}");
            // The owner's own is not concerned.
            owner.run(&call);
            owner.run("ALTER TABLE sales DISABLE ROW LEVEL SECURITY");
            worker.run(&swap_marked(token, 2));
        } else {
            assert_sqlstate!(worker.try_run(&call), code);
        }
    }
    assert_eq!(content(&mut owner, 1), "24|1|round 2|24");
}

#[test]
fn bounds_are_those_of_the_window_in_the_zone_of_the_pipeline() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    // A partition a month, with one a day in it; the day with 23 hours; a type without a zone.
    session.run(
        "CREATE TABLE days (at timestamp NOT NULL, n int) PARTITION BY RANGE (at);
         CREATE TABLE march PARTITION OF days FOR VALUES FROM (MINVALUE) TO ('2024-04-01') PARTITION BY RANGE (at);
         CREATE TABLE tenth PARTITION OF march FOR VALUES FROM ('2024-03-10') TO ('2024-03-11');
         CREATE TABLE short (at timestamptz NOT NULL, n int) PARTITION BY RANGE (at);
         CREATE TABLE short_tenth PARTITION OF short FOR VALUES FROM ('2024-03-10 00:00-05') TO ('2024-03-11 00:00-04');
         CREATE TABLE dates (at date NOT NULL, n int) PARTITION BY RANGE (at);
         CREATE TABLE dates_tenth PARTITION OF dates FOR VALUES FROM ('2024-03-10') TO ('2024-03-11');
         SELECT pool_define('backfill', 16)",
    );
    session.run("SET TimeZone = 'Asia/Tokyo'");
    for (table, partition) in [("days", "tenth"), ("short", "short_tenth"), ("dates", "dates_tenth")] {
        session.run(&format!(
            "SELECT pipeline_define('{table}', '1 day', '2024-03-10', target => '{table}', slice_column => 'at', time_zone => 'America/New_York',
                 query => 'SELECT $1 + interval ''5 minutes'', n FROM generate_series(1, 9) n');
             SELECT FROM backfill_plan('{table}', NULL, NULL, 'test', keys => ARRAY['2024-03-10'], expect => 1);
             SELECT replace_partition(token, strategy => 'swap') FROM backfill_claim('test', pipelines => ARRAY['{table}'], window_key => '2024-03-10')"
        ));
        assert_eq!(session.lines(&format!("SELECT count(*) FROM {partition}")), ["9"], "{table}");
    }
}

#[test]
fn a_crash_leaves_the_old_rows_before_commit_and_the_new_ones_after() {
    for settings in [&["wal_level = replica"][..], &["wal_level = minimal", "max_wal_senders = 0"]] {
        let cluster = Cluster::private(settings);
        let database = shop_in(&cluster);
        let mut session = database.connect();
        let [first, second] = [1, 2].map(|day| token(&mut session, day));
        session.run(&swap(first));
        let mut open = database.connect();
        // Rows that come after the swap in its transaction are in the new files too.
        open.run(&format!(
            "BEGIN; {}; INSERT INTO sales VALUES ('2024-03-02 12:30Z', 50, 'more', NULL); COMMIT",
            swap_marked(second, 1)
        ));
        open.run(&format!("BEGIN; {}", swap_marked(second, 2)));
        cluster.crash();
        cluster.restart();
        let mut session = database.connect();
        assert_eq!(content(&mut session, 1), NEW, "{settings:?}");
        assert_eq!(content(&mut session, 2), "24|1|round 1|24", "{settings:?}");
        assert_eq!(session.lines("SELECT count(*) FROM sales_2"), ["25"], "{settings:?}");
        [1, 2, 3].into_iter().for_each(|day| assert_sound(&mut session, &format!("sales_{day}")));
        assert_eq!(
            session.lines("SELECT token FROM backfill.slices ORDER BY 1"),
            [first, second].map(|token| token.to_string())
        );
    }
}

#[test]
fn a_standby_gets_the_new_storage() {
    let cluster = Cluster::private(&[]);
    let database = shop_in(&cluster);
    let standby = cluster.standby();
    let mut session = database.connect();
    let token = token(&mut session, 1);
    session.run(&swap(token));
    let mut reader = standby.connect(database.name());
    wait_until("the standby has the new slice", || content(&mut reader, 1) == NEW);
    reader.run("SET enable_seqscan = off");
    assert_eq!(reader.lines("SELECT count(*), count(md5(note)) FROM sales_1 WHERE md5(note) > '0'"), ["4|4"]);
    reader.run("SELECT pg_promote()");
    wait_until("it can be written", || !reader.one::<bool>("SELECT pg_is_in_recovery()", &[]));
    assert_sound(&mut reader, "sales_1");
}

#[test]
fn a_swap_sees_who_has_read_by_an_index() {
    let database = shop();
    let mut session = database.connect();
    session.run("CREATE TABLE counted (n int); CREATE INDEX sales_3_id ON sales_3 (id)");
    for strategy in ["rows", "swap"] {
        let token = token(&mut session, 3);
        session.run("BEGIN ISOLATION LEVEL SERIALIZABLE");
        assert_eq!(session.lines("SELECT count(*) FROM counted"), ["0"]);
        let mut reader = database.connect();
        reader.run("SET enable_seqscan = off; SET enable_bitmapscan = off");
        reader.run("BEGIN ISOLATION LEVEL SERIALIZABLE");
        assert_eq!(reader.lines("SELECT count(*) FROM sales_3 WHERE id = 99"), ["0"]);
        reader.run("INSERT INTO counted VALUES (1)");
        reader.run("COMMIT");
        // Each has not seen what the other wrote.
        let replace = format!(
            "SELECT FROM replace_partition({token}, strategy => '{strategy}', finish => false,
                 query => 'SELECT at, CASE id WHEN 5 THEN 99 ELSE id END, item, note FROM source WHERE at >= $1 AND at < $2')"
        );
        let outcome = session.try_run(&replace).and_then(|()| session.try_run("COMMIT"));
        assert_sqlstate!(outcome, "40001");
        session.run("ROLLBACK; TRUNCATE counted");
        session.run(&format!("SELECT backfill_release({token})"));
        session.run("SELECT backfill_cancel(plan_id, 'again') FROM backfill.plans WHERE state IN ('approved', 'running')");
    }
}

#[test]
fn an_index_that_is_being_built_keeps_a_swap_waiting_only() {
    let database = shop();
    let mut session = database.connect();
    let token = token(&mut session, 3);
    let [mut reader, mut builder] = [database.connect(), database.connect()];
    // Whoever builds it waits for those who do not know of it.
    reader.run("BEGIN; INSERT INTO sales_3 VALUES ('2024-03-03 00:30Z', 30)");
    waiting(&database, &mut builder, "CREATE INDEX CONCURRENTLY sales_3_id ON sales_3 (id)", || {
        assert_sqlstate!(session.try_run(&swap(token)), "55P03");
        reader.run("ROLLBACK");
    })
    .unwrap();
    session.run(&swap(token));
    session.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'sales_3_id'::regclass");
    assert_sqlstate!(session.try_run(&swap(token)), "0A000");
}
