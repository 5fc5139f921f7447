//! Strategy `diff`, and when it is chosen.

use super::support::*;
use crate::domain::random::Random;
use pgrx::prelude::*;

/// A table of the same columns beside it, whose rows the slice is to hold.
fn pair(columns: &str) -> i64 {
    run(&format!("CREATE TABLE sales ({columns}); CREATE TABLE source (LIKE sales)"));
    define("SELECT * FROM public.source");
    token("sales", "2024-03-09")
}

/// Replaces by `diff`, and leaves the run open.
fn differ(token: i64) -> (i64, i64, i64, bool, String) {
    replace_by(&format!("{token}, strategy => 'diff', finish => false"))
}

fn written(token: i64) -> (i64, i64) {
    let (_, inserted, deleted, ..) = differ(token);
    (inserted, deleted)
}

fn strategy(arguments: &str) -> String {
    text(&format!("SELECT strategy FROM replace_partition({arguments}, finish => false)"))
}

#[pg_schema]
mod tests {
    use super::*;

    #[pg_test]
    fn values_that_are_equal_and_not_the_same_differ() {
        run("CREATE TYPE pair AS (name text, share numeric); CREATE DOMAIN exact AS numeric;
             CREATE TYPE mood AS ENUM ('good', 'bad')");
        // Not every server is built with it.
        let icu = caught(
            "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        );
        let icu = icu["code"] == "00000";
        let citext = yes("SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'citext')");
        if citext {
            run("CREATE EXTENSION citext SCHEMA public");
        }
        let mut values = vec![
            ("float8", "'0'", "'-0'"),
            ("float4", "'NaN'", "NULL"),
            ("float8", "0.1", "0.1::float8 + 1e-17 + 2e-17"),
            ("numeric", "1.0", "1.00"),
            ("numeric", "'NaN'", "'Infinity'"),
            ("exact", "7", "7.0"),
            ("jsonb", r#"'{"a": 1.5}'"#, r#"'{"a": 1.50}'"#),
            ("json", r#"'{"a":1}'"#, r#"'{"a": 1}'"#),
            ("text[]", "'{a,NULL}'", r#"'{a,"NULL"}'"#),
            ("int[]", "'{1,2}'", "'[0:1]={1,2}'"),
            ("float8[]", "'{0}'", "'{-0}'"),
            ("pair", "ROW('x', 1.0)::pair", "ROW('x', 1.00)::pair"),
            ("pair", "ROW(NULL, NULL)::pair", "NULL"),
            ("pair[]", "ARRAY[ROW('x', 1.0)::pair]", "ARRAY[ROW('x', 1.00)::pair]"),
            ("interval", "'1 mon'", "'30 days'"),
            ("timetz", "'12:00+00'", "'13:00+01'"),
            ("timestamptz", "'-infinity'", "'infinity'"),
            ("point", "'(0,1)'", "'(0,1.5)'"),
            ("circle", "'<(0,0),1>'", "'<(0,0),2>'"),
            ("bytea", r"'\x00'", r"'\x0000'"),
            ("bit varying", "'01'", "'010'"),
            ("inet", "'10.0.0.0/8'", "'10.0.0.0'"),
            ("numrange", "'[1.0,2)'", "'[1.00,2)'"),
            ("text", "NULL", "''"),
            ("text", "'a'", "'a '"),
            ("bpchar", "'a'", "'a '"),
            ("mood", "'good'", "'bad'"),
            ("tsvector", "'a:1'", "'a:2'"),
            ("regclass", "'source'", "'pg_class'"),
            ("text", "repeat(md5('1'), 100000)", "repeat(md5('1'), 99999) || md5('2')"),
        ];
        if icu {
            values.push(("text COLLATE blind", "'a'", "'A'"));
        }
        if citext {
            values.push(("citext", "'a'", "'A'"));
        }
        let columns: Vec<String> =
            values.iter().enumerate().map(|(i, v)| format!(", c{i} {}", v.0)).collect();
        let olds: Vec<String> = values.iter().map(|v| format!(", {}", v.1)).collect();
        run(&format!(
            "CREATE TABLE sales (at timestamptz{0}); CREATE TABLE source (LIKE sales)",
            columns.concat()
        ));
        run(&format!("INSERT INTO source SELECT '2024-03-09 12:00-05'{}", olds.concat()));
        define("SELECT * FROM public.source");
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (1, 0));
        assert_eq!(written(token), (0, 0));
        for (i, (type_name, old, new)) in values.iter().enumerate() {
            for value in [new, old] {
                run(&format!("UPDATE source SET c{i} = {value}"));
                assert_eq!(written(token), (1, 1), "{type_name} {value}");
                let place = text("SELECT ctid::text FROM sales");
                // The same bits, as far as PostgreSQL can tell.
                assert!(yes("SELECT s *= t FROM source s, sales t"), "{type_name} {value}");
                // Row by row, too: the ledger is made to know nothing.
                run(&format!("UPDATE backfill.run_data SET digest = 'none' WHERE token = {token}"));
                assert_eq!(written(token), (0, 0), "{type_name} {value}");
                assert_eq!(text("SELECT ctid::text FROM sales"), place);
            }
        }
    }

    #[pg_test]
    fn the_slice_is_the_new_multiset_whatever_it_was() {
        let mut random = Random::new(20_240_309);
        let shapes = [
            ("none", "", "SELECT 1"),
            ("one", "PRIMARY KEY (at, k)", "SELECT 1"),
            ("two", "PRIMARY KEY (at, k), UNIQUE (v, x)", "SELECT 1"),
            ("late", "UNIQUE (at, k) DEFERRABLE INITIALLY IMMEDIATE", "SELECT 1"),
            ("nulls", "", "CREATE UNIQUE INDEX ON sales (at, k, v, x)"),
        ];
        for (name, constraint, index) in shapes {
            let comma = if constraint.is_empty() { "" } else { ", " };
            run(&format!(
                "DROP TABLE IF EXISTS sales, source;
                 CREATE TABLE source (at timestamptz, k int, v numeric, x text);
                 CREATE TABLE sales (at timestamptz, k int, v numeric, x text{comma}{constraint});
                 {index}"
            ));
            let unique = name != "none";
            run(&format!(
                "SELECT pipeline_define('{name}', '1 day', '2024-03-01', target => 'sales', slice_column => 'at',
                     time_zone => 'America/New_York', query => 'SELECT * FROM public.source', max_shrink => 1)"
            ));
            let token = token(name, "2024-03-09");
            let mut old: Vec<String> = vec![];
            for round in 0..25 {
                // Some rows stay, others come, a few twice where that is allowed.
                let mut rows: Vec<String> = old.into_iter().filter(|_| random.below(4) > 0).collect();
                for _ in 0..random.below(12) {
                    let hour = 5 + random.below(3);
                    let (k, v, x) = (random.below(6), random.below(4), random.below(40));
                    let scale = ["", ".0", ".00"][random.below(3)];
                    let v = if v == 0 && !unique { "NULL".to_owned() } else { format!("{v}{scale}") };
                    let x = if x < 8 { "NULL".to_owned() } else { format!("'{x}'") };
                    let row = format!("('2024-03-09 0{hour}:00-05', {k}, {v}, {x})");
                    let key = |row: &str| row.split(", ").take(2).collect::<Vec<_>>().join(" ");
                    // 1.0 and 1 are one to an index.
                    let value = |row: &str| {
                        let whole = |text: &str| text.split('.').next().unwrap_or_default().to_owned();
                        row.split(", ").skip(2).map(whole).collect::<Vec<_>>()
                    };
                    let clash = |other: &String| key(other) == key(&row) || value(other) == value(&row);
                    if unique {
                        rows.retain(|other| !clash(other));
                    }
                    rows.push(row);
                }
                if rows.is_empty() {
                    rows.push("('2024-03-09 05:00-05', 1, 1, NULL)".into());
                }
                run(&format!("TRUNCATE source; INSERT INTO source VALUES {}", rows.join(", ")));
                run("DROP TABLE IF EXISTS before;
                     CREATE TEMP TABLE before AS SELECT ctid AS place, xmin::text AS birth, t::text AS row FROM sales t");
                let (count, inserted, deleted, changed, digest) = differ(token);
                assert_eq!(count as usize, rows.len(), "{name} {round}");
                let less = |one: &str, other: &str| {
                    number(&format!("SELECT count(*) FROM (SELECT {one} EXCEPT ALL SELECT {other}) d"))
                };
                let new = "s::text FROM source s";
                assert_eq!(less(new, "t::text FROM sales t"), 0, "{name} {round}");
                assert_eq!(inserted, less(new, "row FROM before"), "{name} {round}");
                assert_eq!(deleted, less("row FROM before", new), "{name} {round}");
                assert_eq!(changed, inserted + deleted > 0);
                // What is not counted was not touched.
                let places = "FROM sales t JOIN before b ON b.place = t.ctid AND b.row = t::text AND b.birth = t.xmin::text";
                assert_eq!(number(&format!("SELECT count(*) {places}")), count - inserted, "{name} {round}");
                let rows_too = replace_by(&format!("{token}, strategy => 'rows', finish => false"));
                assert_eq!((rows_too.0, rows_too.4), (count, digest), "{name} {round}");
                old = rows;
            }
            run(&format!("SELECT pipeline_drop('{name}')"));
        }
    }

    #[pg_test]
    fn a_changed_row_with_a_key_is_updated() {
        run("CREATE TABLE sales (at timestamptz, item text, amount int, id int GENERATED ALWAYS AS IDENTITY,
                 twice int GENERATED ALWAYS AS (amount * 2) STORED, PRIMARY KEY (at, item));
             CREATE TABLE source (at timestamptz, item text, amount int);
             INSERT INTO source SELECT '2024-03-09 12:00-05', 'item ' || n, n FROM generate_series(1, 10) n");
        define("SELECT * FROM public.source");
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (10, 0));
        run("CREATE TABLE returned (at timestamptz, item text, FOREIGN KEY (at, item) REFERENCES sales);
             INSERT INTO returned SELECT at, item FROM sales;
             CREATE TABLE before AS SELECT ctid AS place, id, item FROM sales;
             UPDATE source SET amount = -amount WHERE amount = 7");
        // What refers to the row goes on to refer to it.
        fails(&format!("SELECT replace_partition({token}, strategy => 'rows')"), "23503");
        assert_eq!(written(token), (1, 1));
        assert_eq!(number("SELECT count(*) FROM sales JOIN before USING (id, item)"), 10);
        assert_eq!(
            number("SELECT count(*) FROM sales s JOIN before b ON b.place = s.ctid AND b.id = s.id"),
            9
        );
        assert_eq!(text("SELECT amount || ' ' || twice FROM sales WHERE item = 'item 7'"), "-7 -14");
        run("UPDATE source SET amount = amount + 100");
        assert_eq!(strategy(&token.to_string()), "diff");
        assert_eq!(number("SELECT count(*) FROM sales JOIN before USING (id, item) WHERE amount > 90"), 10);
        // A key that changes is another row.
        run("UPDATE source SET item = 'other' WHERE item = 'item 1'");
        fails(&format!("SELECT replace_partition({token}, strategy => 'diff')"), "23503");
    }

    #[pg_test]
    fn rows_of_a_slice_may_refer_to_each_other() {
        for (i, action) in
            ["", "ON DELETE RESTRICT", "ON DELETE CASCADE", "ON DELETE SET NULL"].iter().enumerate()
        {
            let name = format!("tree{i}");
            run(&format!(
                "DROP TABLE IF EXISTS {name}, source;
                 CREATE TABLE {name} (at timestamptz NOT NULL, id int PRIMARY KEY, parent int REFERENCES {name} {action}, v text);
                 CREATE TABLE source (LIKE {name});
                 INSERT INTO {name} VALUES ('2024-03-10 12:00-05', 9, NULL, 'another day');
                 SELECT pipeline_define('{name}', '1 day', '2024-03-01', target => '{name}', slice_column => 'at',
                     time_zone => 'America/New_York', query => 'SELECT * FROM public.source', max_shrink => 0.9)"
            ));
            let token = token(&name, "2024-03-09");
            for rows in [
                "(1, NULL, 'a'), (2, 1, 'a')",
                "(2, NULL, 'a')",
                "(1, NULL, 'a'), (2, 1, 'a')",
                "(1, NULL, 'a'), (2, 3, 'a'), (3, NULL, 'a')",
                "(1, 2, 'a'), (2, 3, 'b'), (3, 1, 'a')",
                "(4, 2, 'a'), (2, 4, 'b')",
            ] {
                run(&format!(
                    "TRUNCATE source; INSERT INTO source SELECT '2024-03-09 12:00-05', id, parent::int, v FROM (VALUES {rows}) AS rows(id, parent, v)"
                ));
                replace_by(&format!("{token}, finish => false"));
                let differ = format!(
                    "SELECT count(*) FROM ((TABLE source EXCEPT ALL SELECT * FROM {name})
                     UNION ALL (SELECT * FROM {name} WHERE id <> 9 EXCEPT ALL TABLE source)) d"
                );
                assert_eq!(number(&differ), 0, "{action} {rows}");
            }
            // A row of another slice refers to one that comes again.
            run(&format!("UPDATE {name} SET parent = 2 WHERE id = 9; UPDATE source SET v = 'c'"));
            replace_by(&format!("{token}, finish => false"));
            assert_eq!(number(&format!("SELECT parent::bigint FROM {name} WHERE id = 9")), 2, "{action}");
            run(&format!("SELECT pipeline_drop('{name}')"));
        }
    }

    #[pg_test]
    fn a_foreign_key_does_not_act_on_rows_that_have_just_come() {
        let token = pair(
            "at timestamptz, id int PRIMARY KEY, parent int REFERENCES sales ON DELETE CASCADE, v int UNIQUE",
        );
        run(
            "INSERT INTO source VALUES ('2024-03-09 12:00-05', 1, NULL, 1), ('2024-03-09 12:00-05', 2, 1, 2)",
        );
        assert_eq!(written(token), (2, 0));
        run("UPDATE source SET v = v + 1");
        fails(&format!("SELECT replace_partition({token})"), "55000");
        assert_eq!(written(token), (2, 2));
        assert_eq!(number("SELECT count(*) FROM (TABLE source EXCEPT ALL TABLE sales) d"), 0);
    }

    #[pg_test]
    fn rows_that_come_again_keep_what_refers_to_them() {
        run("CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'");
        let plain = "PRIMARY KEY (at, k)";
        let shapes = [
            ("updates", plain, "", "v int", "1", "00000"),
            ("default", plain, "", "v int, loaded timestamptz DEFAULT clock_timestamp()", "1", "55000"),
            (
                "trigger",
                plain,
                "CREATE TRIGGER see AFTER INSERT OR UPDATE ON sales FOR EACH ROW EXECUTE FUNCTION see()",
                "v int",
                "1",
                "55000",
            ),
            ("unique", "PRIMARY KEY (at, k), UNIQUE (at, v)", "", "v int", "1", "55000"),
            ("policy", plain, "ALTER TABLE sales ENABLE ROW LEVEL SECURITY", "v int", "1", "55000"),
            ("scale", plain, "", "v int", "1.00", "23505"),
            (
                "memory",
                plain,
                "INSERT INTO source SELECT '2024-03-09 12:00-05', n, 0 FROM generate_series(20, 9000) n;
                 SET LOCAL work_mem = '64kB'; SET LOCAL maintenance_work_mem = '1MB'",
                "v int",
                "1",
                "55000",
            ),
        ];
        for (name, constraint, more, columns, key, code) in shapes {
            for (parts, parent) in [("", "sales"), ("PARTITION BY RANGE (at)", "sales_part")] {
                for action in ["CASCADE", "SET NULL", "SET DEFAULT"] {
                    let name = format!("{name} {parent} {action}");
                    run(
                        "DROP TABLE IF EXISTS returned, sales, source;
                         CREATE TABLE source (at timestamptz, k numeric, v int);
                         INSERT INTO source SELECT '2024-03-09 12:00-05', n, n FROM generate_series(1, 10) n",
                    );
                    run(&format!(
                        "CREATE TABLE sales (at timestamptz, k numeric, {columns}, {constraint}) {parts}"
                    ));
                    if !parts.is_empty() {
                        run("CREATE TABLE sales_part PARTITION OF sales DEFAULT");
                    }
                    run(more);
                    run(&format!(
                        "SELECT pipeline_define('{name}', '1 day', '2024-03-01', target => 'sales', slice_column => 'at',
                             time_zone => 'America/New_York', query => 'SELECT * FROM public.source')"
                    ));
                    let token = token(&name, "2024-03-09");
                    assert_eq!(strategy(&token.to_string()), "rows");
                    run(&format!(
                        "CREATE TABLE returned (at timestamptz, k numeric, FOREIGN KEY (at, k) REFERENCES {parent} ON DELETE {action});
                         INSERT INTO returned SELECT at, k FROM sales WHERE k <= 10"
                    ));
                    let kept = || number("SELECT count(*) FROM returned JOIN sales USING (at, k)");
                    // The ledger is made to know nothing, so that the rows are looked at.
                    run(&format!("UPDATE backfill.run_data SET digest = 'none' WHERE token = {token}"));
                    if name.starts_with("memory") {
                        fails(&format!("SELECT replace_partition({token}, finish => false)"), "55000");
                    } else {
                        assert_eq!(replace_by(&format!("{token}, finish => false")).1, 0, "{name}");
                    }
                    assert_eq!(kept(), 10, "{name}");
                    run(&format!("UPDATE source SET v = -v, k = {key} WHERE k = 1"));
                    let error = fails(&format!("SELECT replace_partition({token}, finish => false)"), code);
                    if code == "55000" {
                        says(&error, "message", "returned");
                        says(&error, "hint", "strategy => 'rows'");
                    }
                    assert_eq!(kept(), 10, "{name}");
                    // What is really gone is lost, as the foreign key says.
                    if !name.starts_with("memory") {
                        run("UPDATE source SET v = -v, k = 1 WHERE k = 1; DELETE FROM source WHERE k = 3");
                        let gone = replace_by(&format!("{token}, finish => false"));
                        assert_eq!((gone.0, kept()), (9, 9), "{name}");
                    }
                    run(&format!("UPDATE backfill.run_data SET digest = 'none' WHERE token = {token}"));
                    run(&format!(
                        "SELECT replace_partition({token}, strategy => 'rows', allow_shrink => 'test')"
                    ));
                    assert_eq!(kept(), 0, "{name}");
                    run(&format!("SELECT pipeline_drop('{name}')"));
                }
            }
        }
    }

    #[pg_test]
    fn a_key_that_the_table_generates_tells_nothing() {
        run(
            "CREATE TABLE sales (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz, item text);
             CREATE TABLE source AS SELECT '2024-03-09 12:00-05'::timestamptz AS at, 'item ' || n AS item FROM generate_series(1, 10) n",
        );
        define("SELECT * FROM public.source");
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (10, 0));
        run("UPDATE source SET item = 'other' WHERE item = 'item 3'");
        assert_eq!(written(token), (1, 1));
        assert_eq!(text("SELECT string_agg(id::text, ' ' ORDER BY id) FROM sales"), "1 2 4 5 6 7 8 9 10 11");
    }

    #[pg_test]
    fn values_that_rows_exchange_do_not_meet() {
        let token = pair("at timestamptz, k int, v int, PRIMARY KEY (at, k), UNIQUE (at, v)");
        run("INSERT INTO source SELECT '2024-03-09 12:00-05', n, n FROM generate_series(1, 10) n");
        assert_eq!(written(token), (10, 0));
        run("UPDATE source SET v = v % 9 + 1 WHERE v < 10");
        assert_eq!(written(token), (9, 9));
        run("ALTER TABLE sales DROP CONSTRAINT sales_at_v_key; UPDATE source SET k = k % 9 + 1 WHERE k < 10");
        assert_eq!(written(token), (9, 9));
        assert_eq!(number("SELECT count(*) FROM (TABLE source EXCEPT ALL TABLE sales) d"), 0);
    }

    #[pg_test]
    fn rows_with_the_key_twice_are_refused_by_the_index() {
        let token = pair("at timestamptz, k int, v int, PRIMARY KEY (at, k)");
        run("INSERT INTO source VALUES ('2024-03-09 12:00-05', 1, 1), ('2024-03-09 12:00-05', 2, 1)");
        assert_eq!(written(token), (2, 0));
        for v in [1, 2] {
            run(&format!("INSERT INTO source VALUES ('2024-03-09 12:00-05', 1, {v})"));
            fails(&format!("SELECT replace_partition({token}, strategy => 'diff')"), "23505");
        }
    }

    #[pg_test]
    fn names_and_operators_of_others_have_no_part_in_it() {
        run(r#"CREATE SCHEMA evil;
             CREATE FUNCTION evil.never(tid, tid) RETURNS boolean LANGUAGE sql AS 'SELECT false';
             CREATE FUNCTION evil.never(oid, oid) RETURNS boolean LANGUAGE sql AS 'SELECT false';
             CREATE OPERATOR evil.= (LEFTARG = tid, RIGHTARG = tid, FUNCTION = evil.never);
             CREATE OPERATOR evil.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = evil.never);
             CREATE TABLE evil.pg_backfill_rows (at int);
             SET LOCAL search_path = evil, pg_catalog, public;
             CREATE TABLE public.sales (t int, g int, pg_backfill_rows int, "select" text, gone int, at timestamptz, PRIMARY KEY (at, g));
             ALTER TABLE public.sales DROP gone;
             CREATE TABLE public.source (LIKE public.sales);
             INSERT INTO public.source SELECT n, n, n, n, '2024-03-09 12:00-05' FROM generate_series(1, 10) n"#);
        define("SELECT * FROM public.source");
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (10, 0));
        run("UPDATE public.source SET t = 0 WHERE g OPERATOR(pg_catalog.=) 3;
             DELETE FROM public.source WHERE g OPERATOR(pg_catalog.=) 4;
             INSERT INTO public.source VALUES (0, 44, 0, 'x', '2024-03-09 12:00-05')");
        assert_eq!(written(token), (2, 2));
        assert_eq!(number("SELECT count(*) FROM (TABLE public.source EXCEPT ALL TABLE public.sales) d"), 0);
    }

    #[pg_test]
    fn who_may_not_update_replaces_a_changed_row() {
        roles();
        run("CREATE TABLE sales (at timestamptz, item text, amount int, id int GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (at, item));
             CREATE TABLE source AS SELECT '2024-03-09 12:00-05'::timestamptz AS at, 'item ' || n AS item, n AS amount FROM generate_series(1, 10) n;
             GRANT SELECT, INSERT, DELETE ON sales TO slice_owner; GRANT SELECT, UPDATE, DELETE ON source TO slice_owner");
        run("SET LOCAL ROLE slice_owner");
        define("SELECT * FROM public.source");
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (10, 0));
        run("UPDATE source SET amount = 0 WHERE item = 'item 1'");
        assert_eq!(written(token), (1, 1));
        assert_eq!(number("SELECT id::bigint FROM sales WHERE item = 'item 1'"), 11);
        run(
            "RESET ROLE; GRANT UPDATE ON sales TO slice_owner; SET LOCAL ROLE slice_owner; UPDATE source SET amount = -1 WHERE item = 'item 1'",
        );
        assert_eq!(written(token), (1, 1));
        assert_eq!(number("SELECT id::bigint FROM sales WHERE item = 'item 1'"), 11);
        // Without SELECT on the whole table nobody may compare.
        run(
            "RESET ROLE; REVOKE SELECT ON sales FROM slice_owner; GRANT SELECT (at) ON sales TO slice_owner; SET LOCAL ROLE slice_owner; UPDATE source SET amount = -7 WHERE item = 'item 1'",
        );
        assert_eq!(strategy(&token.to_string()), "rows");
        run("UPDATE source SET amount = -8 WHERE item = 'item 1'");
        fails(&format!("SELECT replace_partition({token}, strategy => 'diff')"), "42501");
        run("RESET ROLE; GRANT SELECT ON sales TO slice_owner; SET LOCAL ROLE slice_owner");
        // Rows that a policy hides from the writer are not deleted, and that is noticed; if they stay, it does not matter.
        run("RESET ROLE; ALTER TABLE sales ENABLE ROW LEVEL SECURITY;
             CREATE POLICY most ON sales TO slice_owner USING (item <> 'item 2') WITH CHECK (true); SET LOCAL ROLE slice_owner;
             UPDATE source SET amount = -2 WHERE item = 'item 1'");
        assert_eq!(written(token), (1, 1));
        run("DELETE FROM source WHERE item = 'item 2'");
        fails(&format!("SELECT replace_partition({token}, strategy => 'diff')"), "40001");
    }

    #[pg_test]
    fn partitions_are_compared_together() {
        run("CREATE TABLE source (at timestamptz, region text, n int);
             INSERT INTO source SELECT '2024-03-09 00:30-05'::timestamptz + n * interval '1 hour', (ARRAY['eu', 'us', 'asia'])[1 + n % 3], n FROM generate_series(0, 23) n;
             CREATE TABLE sales (at timestamptz, region text, n int, UNIQUE (at, region)) PARTITION BY RANGE (at);
             CREATE TABLE sales_old PARTITION OF sales FOR VALUES FROM (MINVALUE) TO ('2024-03-09 12:00-05') PARTITION BY LIST (region);
             CREATE TABLE sales_old_eu PARTITION OF sales_old FOR VALUES IN ('eu');
             CREATE TABLE sales_old_rest PARTITION OF sales_old DEFAULT;
             CREATE TABLE sales_new (n int, at timestamptz, gone int, region text);
             ALTER TABLE sales_new DROP gone;
             ALTER TABLE sales ATTACH PARTITION sales_new FOR VALUES FROM ('2024-03-09 12:00-05') TO (MAXVALUE)");
        define("SELECT * FROM public.source");
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (24, 0));
        run("CREATE TABLE before AS SELECT tableoid AS part, ctid AS place, n FROM sales;
             UPDATE source SET n = n + 100 WHERE n % 4 = 0; UPDATE source SET region = 'eu' WHERE n = 3");
        for (constraint, kept) in
            [("", 18), ("ALTER TABLE sales ALTER at SET NOT NULL, ALTER region SET NOT NULL;", 17)]
        {
            run(&format!(
                "{constraint} UPDATE source SET region = 'us' WHERE n = 5 AND '{constraint}' <> ''"
            ));
            let (inserted, deleted) = written(token);
            assert_eq!(inserted, deleted);
            assert_eq!(number("SELECT count(*) FROM (TABLE source EXCEPT ALL TABLE sales) d"), 0);
            let stay = "SELECT count(*) FROM sales s JOIN before b ON (b.part, b.place, b.n) = (s.tableoid, s.ctid, s.n)";
            assert!(number(stay) >= kept, "{constraint}");
        }
        run("UPDATE source SET n = 0; UPDATE source SET region = 'asia' WHERE region = 'eu'");
        differ(token);
        assert_eq!(number("SELECT count(*) FROM (TABLE source EXCEPT ALL TABLE sales) d"), 0);
        // Rows of a foreign table have no place that lasts.
        run("CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
             ALTER TABLE sales DROP CONSTRAINT sales_at_region_key; UPDATE source SET n = 1;
             CREATE FOREIGN TABLE sales_far PARTITION OF sales_old FOR VALUES IN ('mars') SERVER nowhere");
        let error = fails(&format!("SELECT replace_partition({token}, strategy => 'diff')"), "0A000");
        says(&error, "hint", "'rows'");
    }

    #[pg_test]
    fn what_is_refused_is_refused_before_anything_is_written() {
        sales();
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (24, 0));
        run("DELETE FROM source WHERE amount >= 11 AND amount < 24");
        let error = fails(&format!("SELECT replace_partition({token}, strategy => 'diff')"), "BF006");
        says(&error, "message", "window 2024-03-09 would lose 13 of 24 rows");
        let error = fails(
            &format!(
                "SELECT replace_partition({token}, query => 'SELECT at, item, amount FROM source', strategy => 'diff')"
            ),
            "BF005",
        );
        says(&error, "message", "48 of 59 new rows");
        let done = replace_by(&format!("{token}, strategy => 'diff', allow_shrink => 'the source expired'"));
        assert_eq!((done.0, done.1, done.2), (11, 0, 13));
        let kept = text(&format!("SELECT allow_shrink FROM backfill.run_data WHERE token = {token}"));
        assert_eq!(kept, "the source expired");
    }

    #[pg_test]
    fn triggers_fire_for_the_rows_that_are_written() {
        sales();
        run("CREATE TABLE seen (what text, amount int);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO public.seen VALUES (TG_OP, COALESCE(NEW.amount, OLD.amount)); RETURN NULL; END $$;
             CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
             CREATE FUNCTION add() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO public.sales VALUES (OLD.at, 'added', -1); RETURN OLD; END $$");
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (24, 0));
        run("ALTER TABLE sales ADD PRIMARY KEY (at, item);
             CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON sales FOR EACH ROW EXECUTE FUNCTION see();
             UPDATE source SET amount = 100 WHERE amount = 3");
        assert_eq!(written(token), (1, 1));
        assert_eq!(
            text("SELECT string_agg(what || ' ' || amount, ', ' ORDER BY what) FROM seen"),
            "DELETE 3, INSERT 100"
        );
        run(
            "ALTER TABLE sales DROP CONSTRAINT sales_pkey; UPDATE source SET amount = 101 WHERE amount = 100",
        );
        for (moment, function) in
            [("BEFORE INSERT", "swallow"), ("BEFORE DELETE", "swallow"), ("BEFORE DELETE", "add")]
        {
            run(&format!("CREATE TRIGGER odd {moment} ON sales FOR EACH ROW EXECUTE FUNCTION {function}()"));
            fails(&format!("SELECT replace_partition({token}, strategy => 'diff')"), "40001");
            run("DROP TRIGGER odd ON sales");
        }
    }

    #[pg_test]
    fn triggers_see_the_slice_as_it_is_to_be() {
        sales();
        run("CREATE TABLE seen (what text, rows bigint, total bigint);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO public.seen SELECT TG_OP, count(*), (SELECT sum(amount) FROM public.sales) FROM moved; RETURN NULL; END $$");
        let token = token("sales", "2024-03-09");
        assert_eq!(written(token), (24, 0));
        run("CREATE TRIGGER gone AFTER DELETE ON sales REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION see();
             CREATE TRIGGER come AFTER INSERT ON sales REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION see();
             UPDATE source SET amount = 100 WHERE amount < 3; DELETE FROM source WHERE amount = 3");
        assert_eq!(written(token), (3, 4));
        let total = number("SELECT sum(amount) FROM sales");
        assert_eq!(
            text("SELECT string_agg(concat_ws(' ', what, rows, total), ', ' ORDER BY what) FROM seen"),
            format!("DELETE 4 {total}, INSERT 3 {total}")
        );
    }

    #[pg_test]
    fn columns_that_are_not_given_stay_as_they_are() {
        run(
            "CREATE TABLE sales (at timestamptz, amount int, loaded int GENERATED BY DEFAULT AS IDENTITY);
             CREATE TABLE source AS SELECT '2024-03-09 12:00-05'::timestamptz + n * interval '1 hour' AS at, n AS amount FROM generate_series(1, 2) n",
        );
        define("SELECT at, amount FROM public.source");
        let token = token("sales", "2024-03-09");
        let first = differ(token);
        run("UPDATE source SET amount = 3 WHERE amount = 2");
        let second = differ(token);
        assert_eq!((second.1, second.2), (1, 1));
        assert_eq!(
            text("SELECT string_agg(amount || ' ' || loaded, ', ' ORDER BY at) FROM sales"),
            "1 1, 3 3"
        );
        // The digest is the table's, of all columns.
        assert_ne!(first.4, second.4);
        assert_eq!(differ(token), (2, 0, 0, false, second.4));
        assert_eq!(strategy(&token.to_string()), "rows");
    }

    #[pg_test]
    fn auto_says_what_it_picked() {
        sales();
        let token = token("sales", "2024-03-09");
        let auto = || strategy(&token.to_string());
        // Nothing to compare with.
        assert_eq!(auto(), "rows");
        assert_eq!(auto(), "diff");
        // Nothing stays.
        run("UPDATE source SET amount = amount - 10");
        assert_eq!(auto(), "rows");
        run(
            "UPDATE source SET amount = 0 WHERE item = 'item 0'; SET LOCAL work_mem = '64kB'; SET LOCAL maintenance_work_mem = '1MB'",
        );
        assert_eq!(auto(), "diff");
        run("INSERT INTO source SELECT '2024-03-09 12:00-05', 'many', n FROM generate_series(1, 10000) n");
        assert_eq!(auto(), "diff");
        // It is the old rows that are kept in memory, however few come.
        run("DELETE FROM source WHERE item = 'many' AND amount > 1");
        let error = fails(
            &format!("SELECT replace_partition({token}, strategy => 'diff', allow_shrink => 'test')"),
            "54000",
        );
        says(&error, "detail", "maintenance_work_mem");
        assert_eq!(strategy(&format!("{token}, allow_shrink => 'test'")), "rows");
        run("INSERT INTO source SELECT '2024-03-09 12:00-05', 'one', 1; CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             CREATE TRIGGER odd BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION nothing(); RESET maintenance_work_mem");
        assert_eq!(auto(), "rows");
        // Asked for by name it is what was asked for, however much stays.
        assert_eq!(strategy(&format!("{token}, strategy => 'rows'")), "rows");
        run("UPDATE source SET amount = amount - 10");
        assert_eq!(strategy(&format!("{token}, strategy => 'diff'")), "diff");
    }
}
