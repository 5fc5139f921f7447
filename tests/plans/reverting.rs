//! Putting back what was there before a plan: all of it, as it was, or nothing.

use crate::support::{Calls, daily, define};
use pgrx_tests::{Cluster, Failure, Session, assert_sqlstate};

pub const KEEPING: &str = "keep_previous => '7 days'";

/// Runs a plan of all windows before a day; each slice holds four rows with its token.
pub fn run(session: &mut Session, until: &str) -> i64 {
    session.run("SELECT pool_define('backfill', 16)");
    let plan = session.plan(until, "");
    for lease in session.all_of_plan(plan) {
        session.replace(lease).unwrap();
    }
    plan
}

pub trait Reverting {
    fn all_of_plan(&mut self, plan: i64) -> Vec<i64>;
    fn revert(&mut self, plan: i64) -> Result<i64, Failure>;
    /// The slices: their windows, code versions, and the tokens that are in their rows.
    fn slices(&mut self) -> Vec<String>;
}

impl Reverting for Session {
    #[track_caller]
    fn all_of_plan(&mut self, plan: i64) -> Vec<i64> {
        let leases = self.leases(16);
        assert!(leases.iter().all(|lease| lease.plan_id == Some(plan)));
        leases.iter().map(|lease| lease.token).collect()
    }

    fn revert(&mut self, plan: i64) -> Result<i64, Failure> {
        self.try_one("SELECT backfill_revert($1, 'it was wrong')", &[&plan])
    }

    fn slices(&mut self) -> Vec<String> {
        self.lines(
            "SELECT s.window_key, s.rows, string_agg(DISTINCT f.token::text, ',')
             FROM backfill.slices s LEFT JOIN facts f ON f.at >= s.window_start AND f.at < s.window_end
             GROUP BY 1, 2 ORDER BY 1",
        )
    }
}

fn states(session: &mut Session, until: &str) -> Vec<String> {
    session.lines(&format!("SELECT window_key, state FROM pipeline_windows('daily', NULL, '{until}')"))
}

#[test]
fn what_a_plan_replaced_is_put_back_under_new_tokens() {
    let database = daily(&format!("code_version => 'v1', {KEEPING}"));
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    session.plan("2024-01-04", "");
    session.run(
        "SELECT replace_partition(token, query => format('SELECT $1, %s::bigint', token))
                 FROM backfill_claim('w', 16, pipelines => '{daily}', code_version => 'v1')",
    );
    let (before, facts) = (session.slices(), session.lines("SELECT at, token FROM facts ORDER BY 1"));
    let as_of = session.lines("SELECT window_key, as_of, code_version FROM backfill.slices ORDER BY 1");
    let second = session.plan("2024-01-06", ", code_version => 'v2'");
    session.run("SELECT replace_partition(token, query => format('SELECT $1, %s::bigint FROM generate_series(1, 2)', token))
                 FROM backfill_claim('w', 16, pipelines => '{daily}', code_version => 'v2')");
    assert_eq!(session.lines("SELECT count(*), sum(rows) FROM backfill.kept_slices"), ["8|3"]);

    assert_eq!(session.revert(second).unwrap(), 5);
    assert_eq!(session.slices(), before);
    assert_eq!(session.lines("SELECT at, token FROM facts ORDER BY 1"), facts);
    assert_eq!(
        session.lines("SELECT window_key, as_of, code_version FROM backfill.slices ORDER BY 1"),
        as_of,
        "whose slice it was"
    );
    assert_eq!(
        states(&mut session, "2024-01-06"),
        ["2024-01-01|done", "2024-01-02|done", "2024-01-03|done", "2024-01-04|missed", "2024-01-05|missed"]
    );
    let why: String = session.one("SELECT window_why('daily', '2024-01-04')", &[]);
    assert!(why.contains("reverted"), "{why}");
    assert_eq!(
        session.lines(&format!(
            "SELECT state, reverted_by, revert_reason, reverted_at IS NOT NULL FROM backfill.plans WHERE plan_id = {second}"
        )),
        ["reverted|postgres|it was wrong|t"]
    );
    let event = format!(
        "SELECT what, why FROM backfill.plan_events WHERE plan_id = {second} ORDER BY happened_at DESC LIMIT 1"
    );
    assert_eq!(session.lines(&event), ["reverted|it was wrong"]);
    assert_eq!(
        session.lines(
            "SELECT run_kind, count(*), count(plan_id), max(allow_shrink) FROM backfill.runs
                       WHERE run_kind <> 'backfill' GROUP BY 1 ORDER BY 1"
        ),
        ["reverted|3|0|it was wrong", "withdrawn|2|0|it was wrong"]
    );
    // The log keeps what was there in between.
    assert_eq!(session.lines("SELECT count(*), count(replaced_at) FROM backfill.slice_history"), ["11|8"]);
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix"), ["f"]);
    // Nobody worked on them, and they say nothing about how long a window takes.
    assert_eq!(session.lines("SELECT worker, done FROM backfill.workers"), ["w|8"]);
    assert_eq!(
        session.lines("SELECT estimate->>'sample' FROM backfill_plan('daily', NULL, '2024-01-03', 'test')"),
        ["8"]
    );
    session.assert_one_lease_per_window();
}

#[test]
fn a_reverted_plan_is_over_and_its_windows_are_free() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    let plan = run(&mut session, "2024-01-03");
    session.revert(plan).unwrap();
    assert_eq!(session.count("facts"), 0);
    for call in [
        "retry({})",
        "extend({})",
        "resume({})",
        "pause({}, 'x')",
        "cancel({}, 'x')",
        "revert({}, 'x')",
        "approve({}, 2)",
    ] {
        let sql = format!("SELECT backfill_{}", call.replace("{}", &plan.to_string()));
        assert_sqlstate!(session.try_run(&sql), "55000");
    }
    assert_eq!(session.claim(), None);
    assert_eq!(session.lines("SELECT count(*) FROM backfill.owned_data"), ["0"]);
    assert_eq!(session.lines("SELECT windows FROM backfill.missed").len(), 1);
    // They are missed, as before, and can be planned and adopted.
    assert_eq!(session.draft("NULL, '2024-01-03', 'again', mode => 'missing'").windows, 2);
    session.run("INSERT INTO facts VALUES ('2024-01-01 12:00Z', 0)");
    assert_eq!(
        session.lines(
            "SELECT windows, rows FROM window_adopt('daily', '2024-01-01', '2024-01-03', 'legacy', 'why')"
        ),
        ["1|1"]
    );
    assert_eq!(states(&mut session, "2024-01-03"), ["2024-01-01|adopted", "2024-01-02|missed"]);
    run(&mut session, "2024-01-03");
    assert_eq!(states(&mut session, "2024-01-03"), ["2024-01-01|done", "2024-01-02|done"]);
    session.assert_data_is_the_ledger();
}

#[test]
fn rows_that_the_ledger_never_knew_come_back_too() {
    let database = daily(&format!("{KEEPING}, max_shrink => 1"));
    let mut session = database.connect();
    session.run("INSERT INTO facts SELECT '2024-01-01 01:00Z', 7 FROM generate_series(1, 50)");
    let plan = run(&mut session, "2024-01-02");
    assert_eq!(session.revert(plan).unwrap(), 1);
    assert_eq!(session.lines("SELECT token, count(*) FROM facts GROUP BY 1"), ["7|50"]);
    assert_eq!(states(&mut session, "2024-01-02"), ["2024-01-01|missed"]);
}

#[test]
fn an_empty_window_that_stays_empty_keeps_nothing() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    let plan = session.plan("2024-01-02", "");
    let token = session.lease().token;
    let nothing = "query => 'SELECT $1, 0::bigint WHERE false', finish => false";
    let replaced =
        session.lines(&format!("SELECT strategy, changed FROM replace_partition({token}, {nothing})"));
    assert_eq!(replaced, ["rows|f"]);
    assert_eq!(session.lines("SELECT changed, rows FROM backfill.kept_data"), ["f|0"]);
    // What comes after it in the same run replaces the empty slice.
    session.replace(token).unwrap();
    assert_eq!(session.lines("SELECT changed, rows FROM backfill.kept_data"), ["t|0"]);
    session.revert(plan).unwrap();
    assert_eq!(session.count("facts"), 0);
    // Where nothing else came, the revert leaves the rows in place.
    let plan = session.plan("2024-01-02", "");
    let token = session.lease().token;
    session.run(&format!("SELECT replace_partition({token}, query => 'SELECT $1, 0::bigint WHERE false')"));
    assert_eq!(session.revert(plan).unwrap(), 1);
    assert_eq!(session.slices(), [""; 0]);
    assert_eq!(states(&mut session, "2024-01-02"), ["2024-01-01|missed"]);
}

#[test]
fn every_strategy_and_every_number_of_publications_comes_back() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    let made = |token: i64, rows: &str, more: &str| {
        format!(
            "SELECT replace_partition({token}, query => 'SELECT $1, n FROM unnest(ARRAY[{rows}]::bigint[]) n' {more})"
        )
    };
    let facts = "SELECT array_agg(token ORDER BY token) FROM facts";
    session.plan_window("2024-01-01");
    let token = session.lease().token;
    session.run(&made(token, "1,2,3,3", ""));
    let slice = session.lines("SELECT rows, digest FROM backfill.slices");
    for (rows, strategy) in
        [("4,5", "rows"), ("1,2,3,4", "diff"), ("1,2,3,3", "auto"), ("1,2,3,3", "rows"), ("", "auto")]
    {
        let plan = session.plan_window("2024-01-01");
        let token = session.lease().token;
        session.run(&made(token, rows, &format!(", strategy => '{strategy}', allow_shrink => 'test'")));
        session.revert(plan).unwrap();
        assert_eq!(session.lines(facts), ["{1,2,3,3}"], "{rows} by {strategy}");
        assert_eq!(session.lines("SELECT rows, digest FROM backfill.slices"), slice);
    }
    // Several publications of one run, and of two runs of one plan; the first changes nothing.
    let plan = session.plan_window("2024-01-01");
    let lease = session.lease();
    for rows in ["1,2,3,3", "8", "9,9"] {
        session.run(&made(lease.token, rows, ", finish => false, allow_shrink => 'test'"));
    }
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", lease.token));
    session.run(&format!("SELECT backfill_retry({plan})"));
    let token = session.lease().token;
    session.run(&made(token, "10", ", allow_shrink => 'test'"));
    session.revert(plan).unwrap();
    assert_eq!(session.lines(facts), ["{1,2,3,3}"]);
}

#[test]
fn what_is_there_for_good_is_reverted_whole_or_not_at_all() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    let plan = run(&mut session, "2024-01-04");
    let before = session.lines("SELECT at, token FROM facts ORDER BY 1");

    session.run("SELECT window_lock('daily', '2024-01-02', '2024-01-03', 'closed')");
    let failure = assert_sqlstate!(session.revert(plan), "55000");
    assert!(failure.detail.contains("2024-01-02 is locked"), "{failure}");
    session.run("SELECT window_unlock('daily', '2024-01-02', '2024-01-03', 'open')");

    let other = session.plan_window("2024-01-02");
    let failure = assert_sqlstate!(session.revert(plan), "BF009");
    assert!(failure.detail.contains(&format!("2024-01-02 is owned by plan {other}")), "{failure}");
    let lease = session.lease();
    assert_sqlstate!(session.revert(plan), "BF009");
    session.replace(lease.token).unwrap();
    let failure = assert_sqlstate!(session.revert(plan), "BF001");
    assert!(
        failure.detail.contains(&format!("2024-01-02 holds the slice of token {}", lease.token)),
        "{failure}"
    );
    assert_eq!(session.lines("SELECT count(*) FROM facts"), ["12"]);
    session.revert(other).unwrap();
    assert_eq!(session.lines("SELECT at, token FROM facts ORDER BY 1"), before);
    let state = format!("SELECT state FROM backfill.plans WHERE plan_id = {plan}");
    assert_eq!(session.lines(&state), ["completed"]);
    assert_eq!(session.revert(plan).unwrap(), 3);
    assert_eq!(session.count("facts"), 0);
}

/// Runs a plan of two windows by code of a version.
fn run_as(session: &mut Session, version: &str) -> i64 {
    let plan = session.plan("2024-01-03", &format!(", code_version => '{version}'"));
    session.run(&format!(
        "SELECT replace_partition(token, query => format('SELECT $1, %s::bigint', token))
         FROM backfill_claim('w', 16, pipelines => '{{daily}}', code_version => '{version}')"
    ));
    plan
}

#[test]
fn plans_are_reverted_one_after_the_other_the_newest_first() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    let (mut plans, mut slices) = (vec![], vec![vec![]]);
    for version in ["v1", "v2", "v3"] {
        plans.push(run_as(&mut session, version));
        slices.push(session.slices());
    }
    for (newest, plan) in plans.iter().enumerate().rev() {
        for earlier in &plans[..newest] {
            assert_sqlstate!(session.revert(*earlier), "BF001");
        }
        session.revert(*plan).unwrap();
        assert_eq!(session.slices(), slices[newest]);
        let versions = session.lines("SELECT DISTINCT code_version FROM backfill.slices");
        let version = (newest > 0).then(|| format!("v{newest}"));
        assert_eq!(versions, version.into_iter().collect::<Vec<_>>());
    }
    let restored = "SELECT count(*), count(restores) FROM backfill.runs WHERE run_kind <> 'backfill'";
    assert_eq!(session.lines(restored), ["6|4"]);
    // What comes after a revert is in the way as well.
    let [first, second] = ["v4", "v5"].map(|version| run_as(&mut session, version));
    session.revert(second).unwrap();
    let third = run_as(&mut session, "v6");
    assert_sqlstate!(session.revert(first), "BF001");
    session.revert(third).unwrap();
    session.revert(first).unwrap();
    assert_eq!(session.count("facts"), 0);
    session.assert_one_lease_per_window();
}

#[test]
fn what_is_not_kept_any_more_cannot_come_back() {
    let database = daily("");
    let mut session = database.connect();
    let never = run(&mut session, "2024-01-02");
    let failure = assert_sqlstate!(session.revert(never), "55000");
    assert!(failure.detail.contains("without keep_previous"), "{failure}");
    session.run("SELECT pipeline_alter('daily', '{\"keep_previous\": \"1 hour\"}')");
    let plan = run(&mut session, "2024-01-03");
    session.run("UPDATE backfill.kept_data SET kept_until = '2024-01-05Z' WHERE rows > 0");
    let failure = assert_sqlstate!(session.revert(plan), "55000");
    assert!(failure.detail.contains("2024-01-01 was kept until 2024-01-05"), "{failure}");
    // The next one who keeps something drops it, and so does a sweep.
    run(&mut session, "2024-01-03");
    assert_eq!(session.lines("SELECT count(*) FROM backfill.kept_slices WHERE kept_until < now()"), ["0"]);
    assert_eq!(session.count("backfill.kept_row_data"), 8);
    session.run("UPDATE backfill.kept_data SET kept_until = '2024-01-05Z'");
    assert_eq!(session.lines("SELECT * FROM backfill_sweep()"), ["3|0"]);
    assert_eq!(session.count("backfill.kept_row_data"), 0);
    assert_eq!(session.count("backfill.kept_slices"), 0);
}

#[test]
fn dropping_what_is_old_waits_for_nobody() {
    let database = daily(KEEPING);
    let [mut one, mut other] = [(); 2].map(|()| database.connect());
    run(&mut one, "2024-01-02");
    run(&mut one, "2024-01-02");
    one.run("UPDATE backfill.kept_data SET kept_until = '2024-01-05Z'");
    one.run("BEGIN; SELECT FROM backfill.kept_data FOR UPDATE");
    other.run("SET lock_timeout = '100ms'");
    run(&mut other, "2024-01-02");
    assert_eq!(other.lines("SELECT * FROM backfill_sweep()"), ["0|2"]);
    one.run("ROLLBACK");
    assert_eq!(other.lines("SELECT * FROM backfill_sweep()"), ["2|0"]);
}

#[test]
fn only_what_a_plan_replaces_is_kept() {
    let database = daily("keep_previous => '1 day', backlog => 1");
    let mut session = database.connect();
    session.active_for("daily", "2 days");
    let lease = session.lease();
    assert_eq!(lease.plan_id, None);
    session.replace(lease.token).unwrap();
    assert_eq!(session.count("backfill.kept_data"), 0);
    session.run("SELECT pipeline_alter('daily', '{\"keep_previous\": null}')");
    run(&mut session, "2024-01-02");
    assert_eq!(session.count("backfill.kept_data"), 0);
    for wrong in ["0", "-1 day"] {
        let sql = format!("SELECT pipeline_alter('daily', '{{\"keep_previous\": \"{wrong}\"}}')");
        assert_sqlstate!(session.try_run(&sql), "22023");
    }
}

#[test]
fn a_plan_is_reverted_when_nothing_of_it_is_left_to_run() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    let draft = session.draft("NULL, '2024-01-03', 'test'");
    assert_sqlstate!(session.revert(draft.id), "55000");
    session.approve(draft).unwrap();
    assert_sqlstate!(session.revert(draft.id), "55000");
    let lease = session.lease();
    session.replace(lease.token).unwrap();
    let failure = assert_sqlstate!(session.revert(draft.id), "55000");
    assert!(failure.hint.contains("backfill_cancel"), "{failure}");
    session.cancel(draft.id);
    assert_eq!(session.revert(draft.id).unwrap(), 1);
    assert_eq!(
        session.lines("SELECT state, cancel_reason, revert_reason FROM backfill.plans"),
        ["reverted|test|it was wrong"]
    );
    assert_eq!(session.count("facts"), 0);
    let progress = format!("SELECT state, done, waiting FROM backfill_progress({})", draft.id);
    assert_eq!(session.lines(&progress), ["reverted|1|0"]);

    let partial = session.plan("2024-01-03", "");
    let [one, other] = session.leases(2).try_into().unwrap();
    session.replace(one.token).unwrap();
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", other.token));
    assert_eq!(session.revert(partial).unwrap(), 1);
    let nothing = session.plan_window("2024-01-02");
    session.cancel(nothing);
    let failure = assert_sqlstate!(session.revert(nothing), "55000");
    assert!(failure.message.contains("published nothing"), "{failure}");
    for (plan, reason, code) in
        [("NULL", "'x'", "22004"), ("1", "' '", "22023"), ("1", "NULL", "22023"), ("99", "'x'", "42704")]
    {
        assert_sqlstate!(session.try_run(&format!("SELECT backfill_revert({plan}, {reason})")), code);
    }
}

/// Types and values whose text is easily spoilt.
const NASTY: &str = r#"
    CREATE TYPE mood AS ENUM ('so so', 'o''k', 'a,b"c');
    CREATE DOMAIN small AS int CHECK (VALUE < 100);
    CREATE DOMAIN named AS varchar(9) NOT NULL;
    CREATE TYPE pair AS (a text, b numeric(9, 3));
    CREATE TABLE "The ""odd"" one" (
        gone int, "At" timestamptz NOT NULL, b boolean, i2 smallint, i8 bigint, n numeric, n2 numeric(12, 4), f4 real, f8 float8,
        t text, c char(5), v varchar(9), bytes bytea, d date, ts timestamp(3), tm timetz, iv interval, j json, jb jsonb,
        a int[], ta text[], m mood, ma mood[], s small, nm named, p pair, pa pair[], u uuid, r int4range, ip inet,
        mo money, bits bit(3), tsv tsvector, pt point, "char" "char", oid regclass,
        g int GENERATED ALWAYS AS (i2 + 1) STORED, id int GENERATED ALWAYS AS IDENTITY, "Id 🐘" int GENERATED BY DEFAULT AS IDENTITY
    );
    ALTER TABLE "The ""odd"" one" DROP COLUMN gone;
    ALTER TABLE "The ""odd"" one" ADD COLUMN late text DEFAULT 'a default';
    INSERT INTO "The ""odd"" one" ("At", nm) SELECT '2024-01-01 01:00Z', '' FROM generate_series(1, 2);
    INSERT INTO "The ""odd"" one" VALUES
        ('2024-01-01 23:59:59.999999Z', true, -32768, -9223372036854775808, 'NaN', 1.5000, '-0', 'NaN',
         '', '', '''"\{},', '\x00ff', '-infinity', 'infinity', '12:00:00.5+13:59', '-1 mon +2 days -00:00:00.000001',
         '{ "b" : 1,  "b":2 }', '{"a": 1.00, "b": "\u00e9\"\\", "c": null}', '{}', '{NULL,"NULL","",",\"{\\}"}', 'a,b"c',
         '{"o''k",NULL,"a,b\"c"}', -5, 'é🐘\', '("",1.500)', '{"(\"a\"\"\\\\,\",)",NULL}',
         '00000000-0000-0000-0000-000000000001', 'empty', '::1/64', '-12.34', '101', 'a:1A b', '(-0,1e-300)',
         E'\x7f', 'pg_catalog.pg_class', DEFAULT, DEFAULT, 7, NULL),
        ('2024-01-01Z', false, 0, 9223372036854775807, 'Infinity', 0.1000, '1e-45', '5e-324',
         E'\t\n\r\b \\N', 'a', 'NULL', '', '4713-01-01 BC', '1999-12-31 23:59:59.999', '00:00+00', '0', 'null', 'null',
         '[2:3]={1,NULL}', '{}', 'so so', '{}', NULL, 'x', '(,)', '{}', NULL, '[1,)', '10.0.0.1',
         '0', '000', '', '(Infinity,NaN)', '', '"The ""odd"" one"', DEFAULT, DEFAULT, 7, 'late');
"#;

#[test]
fn every_value_comes_back_as_it_was_whatever_the_session() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(NASTY);
    let more = format!("{KEEPING}, max_shrink => 1");
    define(&mut session, "odd", r#"'1 day', '2024-01-01', '"The ""odd"" one"', 'At'"#, &more);
    session.run("SET extra_float_digits = 0; SET bytea_output = 'escape'; SET DateStyle = 'German'; SET lc_monetary = 'C'");
    session.run("SET TimeZone = 'Asia/Kathmandu'; SET IntervalStyle = 'sql_standard'");
    let held = r#"SELECT md5(string_agg(x, '/' ORDER BY x)) FROM (
        SELECT ROW(o.*)::text AS x FROM (SELECT (jsonb_each_text(to_jsonb(whole) - 'id')).* FROM "The ""odd"" one" whole) o) y"#;
    let bytes = r#"SELECT "At", float8send(f8), float4send(f4), n::text, n2::text, c || '|', tsv, "Id 🐘", late, s
                   FROM "The ""odd"" one" ORDER BY 1, 2"#;
    let before = (session.lines(held), session.lines(bytes));
    session.run("SELECT backfill_plan('odd', NULL, '2024-01-02', 'test', expect => 1)");
    session.run(
        r#"SELECT replace_partition(token, query => 'SELECT "At" FROM "The ""odd"" one" WHERE false', allow_shrink => 'test')
           FROM backfill_claim('w', pipelines => '{odd}')"#,
    );
    assert_eq!(session.count(r#""The ""odd"" one""#), 0);
    session.run("SET DateStyle = 'SQL, DMY'; SET TimeZone = 'UTC'; SET xmloption = 'document'");
    assert_eq!(session.revert(1).unwrap(), 1);
    session.run("RESET ALL; SET extra_float_digits = 0; SET bytea_output = 'escape'; SET DateStyle = 'German'; SET lc_monetary = 'C'");
    session.run("SET TimeZone = 'Asia/Kathmandu'; SET IntervalStyle = 'sql_standard'");
    assert_eq!((session.lines(held), session.lines(bytes)), before);
}

#[test]
fn xml_comes_back_where_a_session_takes_documents_only() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    if !session.one::<bool>("SELECT setting LIKE '%libxml%' FROM pg_config WHERE name = 'CONFIGURE'", &[]) {
        return;
    }
    session.run("ALTER TABLE facts ADD x xml");
    for x in ["'<a/> and text'", "NULL"] {
        session.plan_window("2024-01-01");
        let token = session.lease().token;
        session.run(&format!("SELECT replace_partition({token}, query => $$ SELECT $1, 1, {x}::xml $$)"));
    }
    session.run("SET xmloption = 'document'");
    session.revert(2).unwrap();
    assert_eq!(session.lines("SELECT x FROM facts"), ["<a/> and text"]);
}
