//! The version of a query is that of its meaning: what changes that changes it, wherever it stands, and nothing else does.

mod beside;
mod consumers;
mod edges;
mod outdated;
mod stamps;

use crate::support::define;
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};

/// Tables, views, functions and types that reach far, and a pipeline `far` over them.
const WORLD: &str = r#"
    CREATE TYPE mood AS ENUM ('sad', 'happy');
    CREATE TYPE pair AS (one int, two numeric);
    CREATE DOMAIN euros AS numeric(12, 2) CHECK (VALUE < 1000000);
    CREATE COLLATION mine (provider = libc, locale = 'C');
    CREATE TABLE sales (
        at timestamptz NOT NULL, amount numeric(10, 2) NOT NULL, item int, feeling mood, price euros, note text COLLATE mine,
        unused int, kept int
    );
    CREATE TABLE items (id int PRIMARY KEY, name varchar(20), unused int);
    CREATE TABLE rates (since timestamptz, rate numeric, other int);
    CREATE TABLE elsewhere (n int);
    CREATE VIEW recent AS SELECT s.at, s.amount, s.item, s.feeling, s.price, s.note FROM sales s WHERE s.amount > 0;
    CREATE VIEW nested AS SELECT r.at, r.amount, r.item, r.feeling, r.price, r.note AS n FROM recent r;
    CREATE VIEW apart AS SELECT 1 AS one;
    CREATE FUNCTION inner_tax(numeric) RETURNS numeric LANGUAGE sql AS 'SELECT $1 * 0.2';
    CREATE FUNCTION tax(amount numeric, rate numeric DEFAULT 0.2) RETURNS numeric LANGUAGE sql
        AS 'SELECT inner_tax(amount) * rate';
    CREATE FUNCTION net(amount numeric) RETURNS numeric LANGUAGE sql RETURN amount * 0.8;
    CREATE FUNCTION helper(numeric) RETURNS numeric LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
    CREATE FUNCTION discount(amount numeric) RETURNS numeric LANGUAGE plpgsql STABLE AS $$
        DECLARE found numeric;
        BEGIN
            SELECT max(r.rate) INTO found FROM rates r;  -- the newest
            RETURN helper(amount) * coalesce(found, 1);
        END $$;
    CREATE FUNCTION unrelated() RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION add(numeric, numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT coalesce($1, 0) + coalesce($2, 0)';
    CREATE AGGREGATE total(numeric) (SFUNC = add, STYPE = numeric, INITCOND = '0');
    CREATE FUNCTION near(numeric, numeric) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT abs($1 - $2) < 1';
    CREATE OPERATOR ~=~ (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = near);
    CREATE FUNCTION cents(euros) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT ($1 * 100)::int';
    CREATE TABLE guarded (at timestamptz, n int);
    ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
    CREATE POLICY mine_only ON guarded USING (n > 0);
    CREATE TABLE target (at timestamptz NOT NULL, a numeric, b numeric, c text, d text, e boolean, f int, g text);
"#;

const QUERY: &str = r#"
    WITH days AS (SELECT n.at AS day, n.amount AS sold, n.item, n.feeling, n.price, n.n FROM nested n WHERE n.at >= $1 AND n.at < $2)
    SELECT $1, sum(tax(net(d.sold))), total(discount(d.sold)), max(d.feeling::text), max(i.name), bool_or(d.sold ~=~ 1),
           sum(cents(d.price))::int + (SELECT count(*) FROM guarded g WHERE g.at >= $1)::int,
           max((ROW(1, 2)::pair).two::text || d.n)
    FROM days d LEFT JOIN items i ON i.id = d.item
"#;

fn world(query: &str) -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(WORLD);
    define(&mut session, "far", "'1 day', '2024-01-01', 'target', 'at'", &format!("query => $q${query}$q$"));
    (database, session)
}

fn version(session: &mut Session) -> String {
    session.one("SELECT pipeline_version('far')", &[])
}

/// Edits that change what the query means, each with the part that says so.
const CHANGING: [(&str, &str); 55] = [
    // Views, near and far.
    (
        "CREATE OR REPLACE VIEW recent AS SELECT s.at, s.amount, s.item, s.feeling, s.price, s.note FROM sales s WHERE s.amount > 1",
        "recent",
    ),
    (
        "CREATE OR REPLACE VIEW recent AS SELECT s.at, s.amount, s.kept AS item, s.feeling, s.price, s.note FROM sales s WHERE s.amount > 0",
        "recent",
    ),
    (
        "CREATE OR REPLACE VIEW recent AS SELECT s.at, s.amount, s.item, s.feeling, s.price, s.note FROM sales s",
        "recent",
    ),
    (
        "CREATE OR REPLACE VIEW recent AS SELECT s.at, s.amount, s.item, s.feeling, s.price, s.note FROM ONLY sales s WHERE s.amount > 0",
        "recent",
    ),
    (
        "CREATE OR REPLACE VIEW recent AS SELECT DISTINCT s.at, s.amount, s.item, s.feeling, s.price, s.note FROM sales s WHERE s.amount > 0",
        "recent",
    ),
    (
        "CREATE OR REPLACE VIEW recent AS SELECT s.at, s.amount, s.item, s.feeling, s.price, s.note FROM sales s WHERE s.amount > 0 LIMIT 10",
        "recent",
    ),
    (
        "CREATE OR REPLACE VIEW nested AS SELECT r.at, (-r.amount)::numeric(10, 2) AS amount, r.item, r.feeling, r.price, r.note AS n FROM recent r",
        "nested",
    ),
    (
        "CREATE OR REPLACE VIEW nested AS SELECT r.at, r.amount, r.item, r.feeling, r.price, upper(r.note) AS n FROM recent r",
        "nested",
    ),
    (
        "CREATE OR REPLACE VIEW nested AS SELECT s.at, s.amount, s.item, s.feeling, s.price, s.note AS n FROM sales s",
        "nested",
    ),
    (
        "CREATE OR REPLACE VIEW nested AS SELECT r.at, r.amount, unrelated() AS item, r.feeling, r.price, r.note AS n FROM recent r",
        "unrelated",
    ),
    // SQL functions: in the query, and behind another one.
    (
        "CREATE OR REPLACE FUNCTION tax(amount numeric, rate numeric DEFAULT 0.2) RETURNS numeric LANGUAGE sql AS 'SELECT inner_tax(amount) * rate * 2'",
        "tax",
    ),
    (
        "CREATE OR REPLACE FUNCTION tax(amount numeric, rate numeric DEFAULT 0.3) RETURNS numeric LANGUAGE sql AS 'SELECT inner_tax(amount) * rate'",
        "tax",
    ),
    (
        "CREATE OR REPLACE FUNCTION tax(amount numeric, rate numeric DEFAULT net(0.2)) RETURNS numeric LANGUAGE sql AS 'SELECT inner_tax(amount) * rate'",
        "tax",
    ),
    (
        "CREATE OR REPLACE FUNCTION tax(amount numeric, rate numeric DEFAULT 0.2) RETURNS numeric LANGUAGE plpgsql AS 'BEGIN RETURN inner_tax(amount) * rate; END'",
        "tax",
    ),
    ("ALTER FUNCTION tax STRICT", "tax"),
    ("ALTER FUNCTION tax SET search_path = pg_catalog, public", "tax"),
    ("ALTER FUNCTION tax SET TimeZone = 'Asia/Tokyo'", "tax"),
    ("ALTER FUNCTION tax SECURITY DEFINER", "tax"),
    ("ALTER FUNCTION tax STABLE", "tax"),
    (
        "CREATE OR REPLACE FUNCTION inner_tax(numeric) RETURNS numeric LANGUAGE sql AS 'SELECT $1 * 0.3'",
        "inner_tax",
    ),
    (
        "CREATE OR REPLACE FUNCTION net(amount numeric) RETURNS numeric LANGUAGE sql RETURN amount * 0.9",
        "net",
    ),
    (
        "CREATE OR REPLACE FUNCTION net(amount numeric) RETURNS numeric LANGUAGE sql BEGIN ATOMIC SELECT amount * 0.8; SELECT amount; END",
        "net",
    ),
    (
        "CREATE FUNCTION inner_tax(int) RETURNS numeric LANGUAGE sql AS 'SELECT 1.0'; CREATE OR REPLACE FUNCTION tax(amount numeric, rate numeric DEFAULT 0.2) RETURNS numeric LANGUAGE sql AS 'SELECT inner_tax(amount::int) * rate'",
        "inner_tax",
    ),
    // PL/pgSQL: its text, and what it names.
    (
        "CREATE OR REPLACE FUNCTION helper(numeric) RETURNS numeric LANGUAGE plpgsql AS 'BEGIN RETURN $1 + 1; END'",
        "helper",
    ),
    (
        "CREATE OR REPLACE FUNCTION discount(amount numeric) RETURNS numeric LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN helper(amount); END $$",
        "discount",
    ),
    (
        "CREATE OR REPLACE FUNCTION discount(amount numeric) RETURNS numeric LANGUAGE plpgsql STABLE AS $$ DECLARE found numeric; BEGIN SELECT max(r.rate) INTO found FROM rates r; RETURN helper(amount) * coalesce(found, 2); END $$",
        "discount",
    ),
    (
        "CREATE OR REPLACE FUNCTION discount(amount numeric) RETURNS numeric LANGUAGE plpgsql STABLE AS $$ DECLARE found numeric; BEGIN SELECT max(r.rate) INTO found FROM rates r; EXECUTE 'SELECT 1'; RETURN helper(amount) * coalesce(found, 1); END $$",
        "discount",
    ),
    ("ALTER TABLE rates ALTER rate TYPE numeric(4, 2)", "rates"),
    ("ALTER TABLE rates RENAME rate TO how_much", "rates"),
    ("DROP TABLE rates; CREATE VIEW rates AS SELECT now() AS since, 2::numeric AS rate", "rates"),
    // Aggregates, operators, casts.
    (
        "CREATE OR REPLACE FUNCTION add(numeric, numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT $1 - $2'",
        "add",
    ),
    ("CREATE OR REPLACE AGGREGATE total(numeric) (SFUNC = add, STYPE = numeric, INITCOND = '1')", "total"),
    (
        "CREATE OR REPLACE AGGREGATE total(numeric) (SFUNC = numeric_add, STYPE = numeric, INITCOND = '0')",
        "total",
    ),
    (
        "CREATE OR REPLACE FUNCTION near(numeric, numeric) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT abs($1 - $2) < 2'",
        "near",
    ),
    (
        "CREATE OR REPLACE FUNCTION cents(euros) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT ($1 * 1000)::int'",
        "cents",
    ),
    // Types and columns.
    ("ALTER DOMAIN euros ADD CHECK (VALUE >= 0)", "euros"),
    ("ALTER DOMAIN euros SET NOT NULL", "euros"),
    ("ALTER TYPE mood ADD VALUE 'angry'", "mood"),
    ("ALTER TYPE mood ADD VALUE 'calm' BEFORE 'sad'", "mood"),
    ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "mood"),
    ("ALTER TYPE pair ALTER ATTRIBUTE two TYPE numeric(10, 1)", "pair"),
    ("ALTER TYPE pair ADD ATTRIBUTE three int", ""),
    ("ALTER TABLE items ALTER name TYPE varchar(30)", "items"),
    ("ALTER TABLE items ALTER name TYPE varchar(20) COLLATE \"C\"", "items"),
    ("ALTER TABLE items ALTER id TYPE bigint", "items"),
    ("ALTER TABLE items RENAME name TO title; ALTER TABLE items ADD name text", "items"),
    // Row-level security.
    ("ALTER POLICY mine_only ON guarded USING (n > 1)", "guarded"),
    ("CREATE POLICY others ON guarded AS RESTRICTIVE USING (n < 9)", "guarded"),
    ("DROP POLICY mine_only ON guarded", "guarded"),
    ("ALTER TABLE guarded DISABLE ROW LEVEL SECURITY", "guarded"),
    (
        "CREATE FUNCTION allowed(int) RETURNS boolean LANGUAGE sql AS 'SELECT $1 > 0'; ALTER POLICY mine_only ON guarded USING (allowed(n))",
        "allowed",
    ),
    // Other objects under the same names.
    (
        "DROP VIEW nested CASCADE; CREATE VIEW nested AS SELECT at, amount, item, feeling, price, note AS n FROM sales",
        "nested",
    ),
    ("ALTER TABLE items RENAME TO things; CREATE TABLE items (id int, name text)", "items"),
    (
        "ALTER FUNCTION helper RENAME TO helped; CREATE FUNCTION helper(numeric) RETURNS numeric LANGUAGE sql AS 'SELECT $1 * 3'",
        "helper",
    ),
    ("ALTER OPERATOR ~=~ (numeric, numeric) SET SCHEMA pg_catalog", ""),
];

/// Edits after which it means the same.
const HARMLESS: [&str; 45] = [
    // The same in other words.
    "CREATE OR REPLACE VIEW recent AS select S.at, S.amount, S.item, S.feeling, S.price, S.note from public.sales as S where S.amount>0 -- positive",
    "CREATE OR REPLACE VIEW recent AS SELECT other.at, other.amount, other.item, other.feeling, other.price, other.note FROM sales other WHERE other.amount > 0",
    "CREATE OR REPLACE VIEW recent AS SELECT at, amount, item, feeling, price, note FROM sales WHERE amount > 0",
    "CREATE OR REPLACE VIEW nested AS SELECT recent.at, recent.amount, recent.item, recent.feeling, recent.price, recent.note AS n FROM recent",
    "CREATE OR REPLACE FUNCTION inner_tax(numeric) RETURNS numeric LANGUAGE sql AS 'select   $1*0.2 /* a fifth */'",
    "CREATE OR REPLACE FUNCTION tax(amount numeric, rate numeric DEFAULT 0.2) RETURNS numeric LANGUAGE sql AS $$ SELECT public.inner_tax(tax.amount) * tax.rate; $$",
    "CREATE OR REPLACE FUNCTION net(amount numeric) RETURNS numeric LANGUAGE sql RETURN (net.amount * 0.8)",
    "CREATE OR REPLACE FUNCTION helper(numeric) RETURNS numeric LANGUAGE plpgsql AS 'begin return $1; /* as it is */ end'",
    "CREATE OR REPLACE FUNCTION discount(amount numeric) RETURNS numeric LANGUAGE plpgsql STABLE AS $$ declare FOUND numeric; begin select MAX(r.rate) into found from rates r; return helper(amount)*coalesce(found,1); end $$",
    // What nobody reads.
    "ALTER TABLE sales ADD COLUMN more int",
    "ALTER TABLE sales DROP COLUMN unused",
    "ALTER TABLE sales RENAME unused TO still_unused",
    "ALTER TABLE sales ALTER unused TYPE bigint",
    "ALTER TABLE items DROP COLUMN unused",
    "ALTER TABLE items ADD COLUMN more text DEFAULT 'x'",
    "CREATE OR REPLACE VIEW apart AS SELECT 2 AS one",
    "CREATE OR REPLACE FUNCTION unrelated() RETURNS int LANGUAGE sql AS 'SELECT 2'",
    "ALTER TABLE elsewhere ALTER n TYPE text",
    "DROP TABLE elsewhere",
    "CREATE FUNCTION tax(text) RETURNS text LANGUAGE sql AS 'SELECT $1'",
    "CREATE SCHEMA aside; CREATE TABLE aside.sales (at int); CREATE FUNCTION aside.net(numeric) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE VIEW over AS SELECT * FROM nested",
    // How it is kept, and how fast it is.
    "CREATE INDEX ON sales (at)",
    "CREATE INDEX ON sales (at); REINDEX TABLE sales",
    "ANALYZE sales",
    "CREATE STATISTICS s (ndistinct) ON item, kept FROM sales",
    "ALTER TABLE sales SET (fillfactor = 70)",
    "ALTER TABLE sales ALTER note SET STORAGE EXTERNAL",
    "ALTER TABLE sales ALTER amount SET STATISTICS 1000",
    "ALTER TABLE sales CLUSTER ON none_yet",
    "ALTER FUNCTION tax COST 1000",
    "ALTER FUNCTION tax PARALLEL SAFE",
    "ALTER FUNCTION inner_tax(numeric) LEAKPROOF",
    // Whose it is, and what is said about it.
    "COMMENT ON VIEW recent IS 'what was sold'",
    "COMMENT ON COLUMN sales.amount IS 'in euros'",
    "COMMENT ON FUNCTION tax IS 'taxes'",
    "GRANT SELECT ON sales TO PUBLIC",
    "GRANT EXECUTE ON FUNCTION tax TO PUBLIC",
    "CREATE TRIGGER t AFTER INSERT ON sales FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "ALTER TABLE sales ADD CHECK (amount < 1000)",
    "ALTER TABLE sales ALTER kept SET DEFAULT 1",
    "INSERT INTO sales (at, amount) VALUES (now(), 1)",
    // Settings of the session.
    "SET LOCAL TimeZone = 'Asia/Tokyo'; SET LOCAL DateStyle = 'SQL, DMY'; SET LOCAL search_path = pg_catalog",
    "SET LOCAL quote_all_identifiers = on; SET LOCAL extra_float_digits = -5; SET LOCAL IntervalStyle = 'iso_8601'",
    "SET LOCAL standard_conforming_strings = off; SET LOCAL array_nulls = off; SET LOCAL row_security = off",
];

/// The version after an edit that is rolled back, and the parts that are said to differ from what the newest slice was built by.
fn edited(session: &mut Session, edit: &str) -> Result<(String, Vec<String>), String> {
    session.run("BEGIN");
    // What must exist first, for an edit that names it.
    if edit.contains("none_yet") {
        session.run("CREATE INDEX none_yet ON sales (at)");
    }
    let seen = session.try_run(edit).and_then(|()| {
        let version = session.try_one("SELECT public.pipeline_version('far')", &[])?;
        let changes =
            session.lines("SELECT name FROM public.pipeline_explain_version('far') WHERE change <> 'same'");
        Ok((version, changes))
    });
    session.run("ROLLBACK");
    seen.map_err(|failure| failure.to_string())
}

#[test]
fn a_hundred_edits_change_the_version_if_they_change_the_meaning() {
    assert_eq!(CHANGING.len() + HARMLESS.len(), 100);
    let (_database, mut session) = world(QUERY);
    session.run("SELECT backfill_plan('far', '2024-01-01', '2024-01-02', 'x', expect => 1)");
    session.run("CALL backfill_work(pools => '{backfill}')");
    let before = version(&mut session);
    assert_eq!(session.lines("SELECT code_version FROM backfill.slices"), [before.as_str()]);
    let mut wrong = vec![];
    for (edit, part) in CHANGING {
        match edited(&mut session, edit) {
            Ok((version, _)) if version == before => wrong.push(format!("not seen: {edit}")),
            Ok((_, changes)) if !changes.iter().any(|change| change.contains(part)) => {
                wrong.push(format!("{part} is not named, but {changes:?}: {edit}"));
            }
            Ok(_) => {}
            // A query that cannot be read any more has no version.
            Err(_) if part.is_empty() => {}
            Err(error) => wrong.push(format!("{edit}\n{error}")),
        }
    }
    for edit in HARMLESS {
        match edited(&mut session, edit) {
            Ok((version, _)) if version != before => wrong.push(format!("took for a change: {edit}")),
            Ok((_, changes)) if !changes.is_empty() => wrong.push(format!("names {changes:?}: {edit}")),
            Ok(_) => {}
            Err(error) => wrong.push(format!("{edit}\n{error}")),
        }
    }
    assert!(wrong.is_empty(), "{} of 100:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(version(&mut session), before, "what was rolled back is forgotten");
}

#[test]
fn a_query_may_be_written_in_other_words() {
    let (_database, mut session) = world(QUERY);
    let before = version(&mut session);
    let define = |session: &mut Session, query: &str| {
        session.run(&format!("SELECT pipeline_alter('far', jsonb_build_object('query', $q${query}$q$))"));
        version(session)
    };
    let other = "
        WITH a_day AS (SELECT x.at, x.amount AS turnover, x.item AS what, x.feeling AS mood, x.price, x.n AS remark
                       FROM public.nested AS x WHERE x.at >= $1 AND x.at < $2) -- the days
        SELECT $1 AS at, sum(tax(net(turnover))) AS s, total(discount(turnover)), max(a_day.mood::text) AS m, max(name), bool_or(turnover ~=~ 1),
               sum(cents(price))::int + (SELECT count(*) AS number FROM guarded WHERE guarded.at >= $1)::int,
               max((ROW(1, 2)::public.pair).two::text || remark)
        FROM a_day LEFT JOIN items ON items.id = what";
    assert_eq!(define(&mut session, other), before);
    assert_ne!(define(&mut session, &other.replace("x.at < $2", "x.at <= $2")), before);
    // The names of a whole row's columns are visible in what is made of it.
    let row = |column: &str, table: &str| {
        format!(
            "SELECT $1, 1, 1, to_jsonb({table})::text, '', true, 1, ''
             FROM (SELECT amount AS {column} FROM sales WHERE at >= $1 AND at < $2) {table}"
        )
    };
    let one = define(&mut session, &row("one", "d"));
    assert_eq!(define(&mut session, &row("one", "e")), one);
    assert_ne!(define(&mut session, &row("other", "d")), one);
    // Windows, set operations, recursion, VALUES, functions and joins.
    for (query, renamed) in [
        (
            "SELECT $1, sum(amount) OVER w, rank() OVER (w ORDER BY item), '', '', true, 1, '' FROM sales WHERE at < $2 WINDOW w AS (PARTITION BY item)",
            "SELECT $1, sum(s.amount) OVER other, rank() OVER (other ORDER BY s.item), '', '', true, 1, '' FROM sales s WHERE s.at < $2 WINDOW other AS (PARTITION BY s.item)",
        ),
        (
            "WITH RECURSIVE t(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT $1, n, 1, '', '', true, 1, '' FROM t WHERE $2 > $1",
            "WITH RECURSIVE up(m) AS (VALUES (1) UNION ALL SELECT m + 1 FROM up WHERE m < 5) SELECT $1, u.m, 1, '', '', true, 1, '' FROM up u WHERE $2 > $1",
        ),
        (
            "SELECT $1, g, v.y, '', '', true, 1, '' FROM generate_series(1, 2) g, (VALUES (1, 2), (3, 4)) v (x, y) WHERE v.x = g AND $2 > $1",
            "SELECT $1, h.n, w.b, '', '', true, 1, '' FROM generate_series(1, 2) AS h (n), (VALUES (1, 2), (3, 4)) AS w (a, b) WHERE w.a = h.n AND $2 > $1",
        ),
        (
            "SELECT $1, a.amount, 1, '', '', true, 1, '' FROM sales a JOIN sales b USING (item) WHERE a.at >= $1 AND b.at < $2 AND item > 1",
            "SELECT $1, l.amount, 1, '', '', true, 1, '' FROM sales AS l JOIN sales AS r USING (item) WHERE l.at >= $1 AND r.at < $2 AND item > 1",
        ),
    ] {
        let version = define(&mut session, query);
        assert_eq!(define(&mut session, renamed), version, "{renamed}");
    }
}

#[test]
fn the_parts_say_what_changed_since_the_newest_slice() {
    let (database, mut session) = world(QUERY);
    let parts = |session: &mut Session, columns: &str| {
        session.lines(&format!("SELECT {columns} FROM pipeline_explain_version('far')"))
    };
    assert_eq!(parts(&mut session, "DISTINCT change"), [""], "nothing was built yet");
    let named = parts(&mut session, "kind, name");
    for part in [
        "query|",
        "collation|public.mine",
        "function|public.discount(amount numeric)",
        "function|public.helper(numeric)",
        "function|public.inner_tax(numeric)",
        "search_path|",
        "table|public.guarded",
        "table|public.rates",
        "view|public.nested",
        "view|public.recent",
    ] {
        assert!(named.iter().any(|found| found == part), "{part} is not in {named:#?}");
    }
    for absent in ["apart", "elsewhere", "unrelated"] {
        assert!(!named.iter().any(|found| found.contains(absent)), "{absent}");
    }
    session.run("SELECT backfill_plan('far', '2024-01-01', '2024-01-02', 'x', expect => 1)");
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(parts(&mut session, "DISTINCT change"), ["same"]);
    session.run(
        "CREATE OR REPLACE FUNCTION inner_tax(numeric) RETURNS numeric LANGUAGE sql AS 'SELECT helper($1)';
         CREATE OR REPLACE FUNCTION discount(amount numeric) RETURNS numeric LANGUAGE sql AS 'SELECT $1'",
    );
    assert_eq!(
        session.lines(
            "SELECT change, kind, name FROM pipeline_explain_version('far') WHERE change <> 'same' ORDER BY 1, 2, 3"
        ),
        [
            "changed|function|public.discount(amount numeric)",
            "changed|function|public.inner_tax(numeric)",
            "gone|table|public.rates"
        ]
    );
    let role = database.role("stranger");
    let mut stranger = database.connect_as(&role);
    assert_sqlstate!(stranger.try_run("SELECT pipeline_version('far')"), "42501");
    assert_sqlstate!(stranger.try_run("SELECT * FROM pipeline_explain_version('far')"), "42501");
    define(&mut session, "outside", "'1 day', '2024-01-01'", "code_version => 'v1'");
    assert_eq!(session.lines("SELECT pipeline_version('outside')"), ["v1"]);
    assert_eq!(
        session.lines("SELECT kind, definition FROM pipeline_explain_version('outside')"),
        ["code_version|v1"]
    );
}

#[test]
fn what_is_edited_in_the_middle_of_a_plan_is_noticed() {
    let (database, mut session) = world(QUERY);
    session.run("SELECT backfill_plan('far', '2024-01-01', '2024-01-04', 'x', expect => 3)");
    let mut other = database.connect();
    let lease = "SELECT token FROM backfill_claim('w', pipelines => '{far}')";
    let edit =
        "CREATE OR REPLACE FUNCTION inner_tax(numeric) RETURNS numeric LANGUAGE sql AS 'SELECT $1 * 0.5'";
    let back =
        "CREATE OR REPLACE FUNCTION inner_tax(numeric) RETURNS numeric LANGUAGE sql AS 'select $1 * 0.2'";
    let first: i64 = session.one(lease, &[]);
    session.run(&format!("SELECT replace_partition({first})"));
    let second: i64 = session.one(lease, &[]);
    other.run(edit);
    let failure = assert_sqlstate!(session.try_run(&format!("SELECT replace_partition({second})")), "BF004");
    assert!(failure.detail.contains("sql:"), "{failure}");
    other.run(back);
    session.run(&format!("SELECT replace_partition({second})"));
    // While the query runs: it waits in a function of its own, and another one is replaced meanwhile.
    session.run(
        "CREATE FUNCTION waits() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN 1; END $$;
         SELECT pipeline_alter('far', jsonb_build_object('query',
             $$SELECT $1, inner_tax(waits()), 1, '', '', true, 1, '' WHERE $2 > $1$$));
         SELECT backfill_cancel(1, 'x');
         SELECT backfill_plan('far', '2024-01-01', '2024-01-02', 'x', expect => 1)",
    );
    let third: i64 = session.one(lease, &[]);
    other.run("BEGIN; SELECT pg_advisory_xact_lock(77)");
    let replace = format!("SELECT replace_partition({third})");
    let outcome = crate::support::waiting(&database, &mut session, &replace, || {
        other.run(edit);
        other.run("COMMIT");
    });
    assert_eq!(outcome.unwrap_err().sqlstate, "BF004");
    assert_eq!(session.lines("SELECT DISTINCT a FROM target"), [""]);
}

#[test]
fn a_restored_query_means_the_same() {
    let (database, mut session) = world(QUERY);
    let before = version(&mut session);
    let parts = "SELECT kind, name, definition FROM pipeline_explain_version('far')";
    let restored = crate::dump::restored(&crate::dump::dump(&database, &[]));
    let mut there = restored.connect();
    assert_eq!(there.lines(parts), session.lines(parts));
    assert_eq!(version(&mut there), before);
}
