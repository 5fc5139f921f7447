//! Versions that mean the same: because somebody says so, or because only the server's words for them have changed.

use crate::support::{Calls, daily, define};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};

/// A pipeline of unpinned workers with one slice of each of these versions, oldest first; NULL is none.
fn written_by(versions: &[&str]) -> (Database, Session) {
    let database = daily("backlog => 0");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    session.plan(&format!("2024-01-{:02}", versions.len() + 1), "");
    for version in versions {
        let claim = format!(
            "SELECT token FROM backfill_claim('w', pipelines => '{{daily}}', code_version => {version})"
        );
        let token: i64 = session.one(&claim, &[]);
        session.replace(token).unwrap();
    }
    (database, session)
}

fn say(old: &str, new: &str) -> String {
    format!("SELECT version_compatible('daily', '{old}', '{new}', 'no column of it changed')")
}

fn mixed(session: &mut Session) -> bool {
    session.one("SELECT mixed FROM backfill.version_mix WHERE pipeline = 'daily'", &[])
}

#[test]
fn compatible_versions_are_no_mixture_and_are_listed_each() {
    let (_database, mut session) = written_by(&["'v1'", "'v1'", "'v2'", "'v3'"]);
    assert!(mixed(&mut session));
    assert_eq!(session.lines(&say("v1", "v2")), ["recorded"]);
    assert!(mixed(&mut session), "v3 is left");
    assert_eq!(
        session.lines("SELECT code_version, class FROM backfill.versions ORDER BY 1"),
        ["v1|v1", "v2|v1", "v3|v3"]
    );
    // Over v2, and in the other direction.
    assert_eq!(session.lines(&say("v3", "v2")), ["recorded"]);
    assert!(!mixed(&mut session));
    assert_eq!(
        session.lines("SELECT key, value FROM backfill.version_mix, jsonb_each(versions) ORDER BY 1"),
        ["v1|2", "v2|1", "v3|1"]
    );
    assert_eq!(session.lines("SELECT DISTINCT class FROM backfill.versions"), ["v1"]);
    assert_eq!(session.count("backfill.attention WHERE kind = 'mixed versions'"), 0);
    assert_eq!(session.lines(&say("v2", "v3")), ["unchanged"]);
    assert_eq!(
        session.lines("SELECT pipeline, old, new, reason, said_by = current_user FROM backfill.compatible_versions ORDER BY 2"),
        ["daily|v1|v2|no column of it changed|t", "daily|v3|v2|no column of it changed|t"]
    );
    // What was said wrongly is taken back, in either order of the two.
    assert_sqlstate!(session.try_run("SELECT version_compatible_drop('daily', 'v1', 'v3')"), "42704");
    session.notices();
    assert_eq!(session.lines("SELECT version_compatible_drop('daily', 'v2', 'v1')"), ["dropped"]);
    let [warning] = &session.notices()[..] else { panic!("one warning") };
    assert!(
        warning.message.contains("v2 and v1 are not compatible any more") && warning.message.contains("v3"),
        "{warning}"
    );
    assert!(mixed(&mut session));
    assert_eq!(
        session.lines("SELECT code_version, class FROM backfill.versions ORDER BY 1"),
        ["v1|v1", "v2|v2", "v3|v2"]
    );
    session.run("SELECT pipeline_rename('daily', 'nightly')");
    assert_eq!(session.count("backfill.compatible_versions WHERE pipeline = 'nightly'"), 1);
}

#[test]
fn a_version_without_a_name_is_compatible_with_none() {
    let (_database, mut session) = written_by(&["NULL", "'v1'", "'v2'"]);
    session.run(&say("v1", "v2"));
    assert!(mixed(&mut session));
    let failure = assert_sqlstate!(session.try_run(&say("v4", "v1")), "42704");
    assert!(failure.hint.contains("backfill.versions"), "{failure}");
    // Nor does anybody make one by that name.
    for call in [
        &say("unknown", "v1"),
        &say("v1", "unknown"),
        "SELECT FROM backfill_claim('w', pipelines => '{daily}', code_version => 'unknown')",
        "SELECT pipeline_alter('daily', '{\"code_version\": \"unknown\"}')",
        "SELECT backfill_plan('daily', NULL, NULL, 'why', code_version => 'unknown')",
        "SELECT window_adopt('daily', NULL, NULL, 'unknown', 'why')",
    ] {
        assert_sqlstate!(session.try_run(call), "22023");
    }
    assert_sqlstate!(session.try_run(&say("v1", "v1")), "22023");
    assert_sqlstate!(session.try_run("SELECT version_compatible('daily', 'v1', 'v2', ' ')"), "22023");
    assert_sqlstate!(session.try_run("SELECT version_compatible('daily', 'v1', NULL, 'why')"), "22004");
}

/// Slices outside of the database, one version after the other.
#[test]
fn a_long_history_of_consents_is_one_class() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    define(&mut session, "files", "'1 day', '2024-01-01'", "backlog => 0");
    session.run("SELECT FROM backfill_plan('files', '2024-01-01', '2024-01-03', 'test', expect => 2)");
    let finish = |session: &mut Session, version: &str| {
        session.run(&format!(
            "SELECT backfill_finish(token) FROM backfill_claim('w', pipelines => '{{files}}', code_version => '{version}')"
        ));
        session.count("backfill.slices")
    };
    assert_eq!(finish(&mut session, "v0"), 1);
    session.run("SELECT pipeline_alter('files', '{\"on_mixture\": \"refuse\"}')");
    assert_eq!(finish(&mut session, "v400"), 1, "it is not handed out");
    session.run(
        "SELECT version_compatible('files', 'v0', 'v' || n, 'a release') FROM generate_series(1, 399) n",
    );
    session.run("SELECT version_compatible('files', 'v0', 'v400', 'a release')");
    assert_eq!(finish(&mut session, "v400"), 2);
    let mix = "SELECT target IS NULL, mixed, (SELECT count(*) FROM jsonb_object_keys(versions)) FROM backfill.version_mix";
    assert_eq!(session.lines(mix), ["t|f|2"]);
    session.run("SELECT version_compatible_drop('files', 'v0', 'v400')");
    assert_eq!(session.lines(mix), ["t|t|2"]);
    assert_eq!(session.count("backfill.attention WHERE kind = 'mixed versions'"), 1);
    session.run("SELECT pipeline_drop('files')");
    assert_eq!(session.count("backfill.version_mix"), 0);
}

/// The versions of one pipeline say nothing about those of another, not even of one that had its name.
#[test]
fn consent_is_of_one_pipeline() {
    let (database, mut session) = written_by(&["'v1'", "'v2'"]);
    session.run(&say("v1", "v2"));
    session.run("SELECT pipeline_drop('daily')");
    define(&mut session, "daily", "'1 day', '2024-01-01', 'facts', 'at'", "backlog => 0");
    session.run("SELECT window_adopt('daily', '2024-01-01', '2024-01-02', 'v1', 'why'), window_adopt('daily', '2024-01-02', '2024-01-03', 'v2', 'why')");
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix ORDER BY mixed"), ["f", "t"]);
    let role = database.role("reader");
    let mut reader = database.connect_as(&role);
    for view in ["compatible_versions", "versions", "version_mix"] {
        assert_eq!(reader.count(&format!("backfill.{view}")), 0);
    }
    assert_sqlstate!(reader.try_run(&say("v1", "v2")), "42501");
}

/// A pipeline that reads a view and an SQL function, with a plan of three windows, one of which is done.
fn of_query() -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(
        "CREATE TABLE sales (at timestamptz NOT NULL, amount numeric NOT NULL);
         CREATE VIEW paid AS SELECT s.at, s.amount FROM sales s WHERE s.amount > 0;
         CREATE FUNCTION net(amount numeric, rate numeric DEFAULT 0.8) RETURNS numeric LANGUAGE sql AS 'SELECT amount * rate';
         CREATE TABLE totals (day timestamptz NOT NULL, total numeric)",
    );
    define(
        &mut session,
        "totals",
        "'1 day', '2024-01-01', 'totals', 'day'",
        "query => 'SELECT $1, sum(net(p.amount)) FROM paid p WHERE p.at >= $1 AND p.at < $2', backlog => 0",
    );
    session.run("SELECT backfill_plan('totals', NULL, '2024-01-04', 'first', expect => 3)");
    session.run("CALL backfill_work(pools => '{backfill}', max_windows => 1)");
    (database, session)
}

/// Makes the ledger believe that another major version wrote what it holds, in the words that `reworded` gives it.
fn comes_from_postgresql_12(session: &mut Session, reworded: &str) {
    session.run(
        "BEGIN; SET LOCAL session_replication_role = replica;
         UPDATE backfill.version_data SET code_version = 'sql:of 12', server_major = 12;
         UPDATE backfill.version_part_data SET code_version = 'sql:of 12';
         UPDATE backfill.run_data SET code_version = 'sql:of 12';
         UPDATE backfill.plan_data SET code_version = 'sql:of 12'; COMMIT",
    );
    session.run(reworded);
}

/// The same query, view and function, as some other server might have spelled them.
const SPELLED: &str = "
    UPDATE backfill.version_part_data SET definition = CASE kind
        WHEN 'query' THEN 'select ($1) as a, sum(public.net((x.amount))) as b from public.paid as x where (($1 <= x.at)) is not null and (x.at >= $1) and x.at < $2'
        WHEN 'view' THEN 'select  x.at, x.amount from public.sales as x where (x.amount > 0::numeric)'
        WHEN 'function' THEN replace(definition, 'SELECT ($1 * $2) AS c1', 'select  (($1) * net.rate) as product')
        ELSE definition END";

fn spelled() -> String {
    SPELLED.replace("(($1 <= x.at)) is not null and ", "")
}

const MIX: &str =
    "SELECT mixed, (SELECT count(*) FROM jsonb_object_keys(versions)) FROM backfill.version_mix";

#[test]
fn what_another_major_version_only_spelled_otherwise_goes_on() {
    let (_database, mut session) = of_query();
    let parts = "SELECT definition FROM backfill.version_part_data WHERE kind IN ('query', 'view', 'function') ORDER BY kind";
    let own = session.lines(parts);
    comes_from_postgresql_12(&mut session, &spelled());
    let other = session.lines(parts);
    // It was edited there, and edited back.
    session.run(
        "INSERT INTO backfill.version_data (pipeline_id, code_version, query, query_path, server_major, first_seen)
         SELECT pipeline_id, 'sql:edited', query, query_path, server_major, first_seen + interval '1 second' FROM backfill.version_data",
    );
    assert!(own.iter().zip(&other).all(|(own, other)| own != other), "{own:#?} {other:#?}");
    // The plan's windows carry the version of the other server, and are stamped with the one that runs.
    let lease: (i64, String) = {
        let rows =
            session.rows("SELECT token, code_version FROM backfill_claim('w', pipelines => '{totals}')", &[]);
        (rows[0].get(0), rows[0].get(1))
    };
    assert_eq!(lease.1, "sql:of 12");
    session.run(&format!("SELECT replace_partition({})", lease.0));
    session.run("CALL backfill_work(pools => '{backfill}')");
    let major: i32 = session.one("SELECT current_setting('server_version_num')::int / 10000", &[]);
    assert_eq!(
        session.lines("SELECT reason, said_by FROM backfill.compatible_versions WHERE old = 'sql:of 12' AND new = pipeline_version('totals')"),
        [format!("the same definition under PostgreSQL 12 and {major}|pg_backfill")]
    );
    assert_eq!(
        session.lines("SELECT code_version = pipeline_version('totals'), count(*) FROM backfill.slices GROUP BY 1 ORDER BY 1"),
        ["f|1", "t|2"]
    );
    assert_eq!(session.lines(MIX), ["f|2"]);
    assert_eq!(session.lines("SELECT state FROM backfill.plans"), ["completed"]);
    // What is edited from here on is another version as ever.
    session.run("CREATE OR REPLACE VIEW paid AS SELECT s.at, s.amount FROM sales s WHERE s.amount > 1");
    session.run("SELECT backfill_plan('totals', NULL, '2024-01-02', 'again', expect => 1)");
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(session.lines(MIX), ["t|2"]);
}

/// Another version of PostgreSQL 12, recorded after the first: somebody edited the view, and took it back.
const EDITED: &str = "
    INSERT INTO backfill.version_data (pipeline_id, code_version, query, query_path, first_seen, server_major)
    SELECT pipeline_id, 'sql:edited', query, query_path, first_seen + interval '1 second', server_major FROM backfill.version_data;
    INSERT INTO backfill.version_part_data
    SELECT pipeline_id, 'sql:edited', kind, name, CASE kind WHEN 'view' THEN replace(definition, '> ', '>= ') ELSE definition END
    FROM backfill.version_part_data";

#[test]
fn an_edit_that_was_taken_back_under_another_major_version_is_passed_over() {
    let (_database, mut session) = of_query();
    comes_from_postgresql_12(&mut session, &format!("{}; {EDITED}", spelled()));
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(
        session.lines("SELECT old, new = pipeline_version('totals') FROM backfill.compatible_versions"),
        ["sql:of 12|t"]
    );
    assert_eq!(session.lines(MIX), ["f|2"]);
}

/// Most are: their text is recorded anew when it is formatted in another way.
#[test]
fn a_version_that_both_major_versions_write_alike_is_itself() {
    let (_database, mut session) = of_query();
    session.run(
        "BEGIN; SET LOCAL session_replication_role = replica; UPDATE backfill.version_data SET server_major = 12; COMMIT;
         SELECT pipeline_alter('totals', jsonb_build_object('query', replace(query, 'sum(', ' sum (')))
         FROM backfill.version_data",
    );
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(session.count("backfill.compatible_versions"), 0);
    assert_eq!(session.lines(MIX), ["f|1"]);
}

/// Each of these meant something else.
const OTHER: [(&str, &str); 6] = [
    ("query", "replace(definition, 'sum', 'max')"),
    ("query", "replace(definition, '>=', '>')"),
    ("query", "'select from where'"),
    ("view", "replace(definition, '> (0)', '> (1)')"),
    ("function", "replace(definition, '*', '+')"),
    ("table", "replace(definition, 'numeric', 'numeric(10,2)')"),
];

#[test]
fn what_meant_something_else_under_another_major_version_does_not_go_on() {
    for (kind, definition) in OTHER {
        let (_database, mut session) = of_query();
        let edit = format!(
            "WITH edited AS (UPDATE backfill.version_part_data SET definition = {definition}
                             WHERE kind = '{kind}' AND definition <> {definition} RETURNING 1)
             SELECT count(*) FROM edited"
        );
        comes_from_postgresql_12(
            &mut session,
            &spelled().replace("definition = CASE kind", "definition = CASE 'none'"),
        );
        assert_ne!(session.one::<i64>(&edit, &[]), 0, "{edit}");
        let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => '{totals}')", &[]);
        assert_sqlstate!(session.try_run(&format!("SELECT replace_partition({token})")), "BF004");
        assert_eq!(session.count("backfill.compatible_versions"), 0, "{edit}");
        assert_eq!(session.count("backfill.slices"), 1);
    }
}

/// Its answer stands for good, so that one which learns nothing must give none.
#[test]
fn a_comparison_that_found_a_lock_in_its_way_is_made_again() {
    let (database, mut session) = of_query();
    comes_from_postgresql_12(&mut session, &spelled());
    // What the query means now is known from here on: only the comparison reads its tables.
    session.run("SELECT pipeline_version('totals'); SET lock_timeout = '50ms'");
    let mut other = database.connect();
    other.run("BEGIN; LOCK TABLE sales");
    let plan = "SELECT backfill_plan('totals', '2024-01-06', '2024-01-08', 'a draft')";
    assert_sqlstate!(session.try_run(plan), "55P03");
    other.run("ROLLBACK");
    session.run(plan);
    assert_eq!(session.count("backfill.compatible_versions"), 1);
}

/// A person's word counts as much: leases, drafts and plans of the old version go on, and say what really ran.
#[test]
fn plans_go_on_under_a_version_that_somebody_said_is_compatible() {
    let (_database, mut session) = of_query();
    let old: String = session.one("SELECT pipeline_version('totals')", &[]);
    session.run("SELECT backfill_plan('totals', '2024-01-06', '2024-01-08', 'a draft')");
    let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => '{totals}')", &[]);
    session.run("CREATE OR REPLACE VIEW paid AS SELECT s.at, s.amount FROM sales s WHERE NOT s.amount <= 0");
    let replace = format!("SELECT replace_partition({token})");
    assert_sqlstate!(session.try_run(&replace), "BF004");
    assert_sqlstate!(session.try_run("SELECT backfill_approve(2, 2)"), "BF004");
    assert_sqlstate!(session.try_run("SELECT backfill_extend(1)"), "BF004");
    // Planning anything records the version of now.
    session.run("SELECT backfill_plan('totals', '2024-01-10', '2024-01-11', 'a draft')");
    let new: String = session.one("SELECT pipeline_version('totals')", &[]);
    assert_ne!(old, new);
    session.run(&format!(
        "SELECT version_compatible('totals', '{old}', '{new}', 'NULLs are not allowed there')"
    ));
    session.run(&replace);
    session.run("SELECT backfill_approve(2, 2)");
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(
        session.lines(&format!(
            "SELECT code_version = '{new}', count(*) FROM backfill.slices GROUP BY 1 ORDER BY 1"
        )),
        ["f|1", "t|4"]
    );
    assert_eq!(session.lines(MIX), ["f|2"]);
}

/// Rows that were refused carry the version that built them, whoever accepts them.
#[test]
fn accepted_rows_are_of_the_version_that_ran() {
    let (_database, mut session) = of_query();
    session.run(
        "INSERT INTO totals SELECT '2024-01-02 01:00Z', n FROM generate_series(1, 50) n;
         CREATE OR REPLACE VIEW paid AS SELECT s.at, s.amount FROM sales s WHERE NOT s.amount <= 0;
         SELECT backfill_plan('totals', '2024-01-10', '2024-01-11', 'a draft');
         SELECT version_compatible('totals', code_version, pipeline_version('totals'), 'NULLs are not allowed there')
         FROM backfill.slices",
    );
    session.run("CALL backfill_work(pools => '{backfill}', max_windows => 1)");
    let ran = "SELECT code_version = pipeline_version('totals') FROM backfill";
    assert_eq!(session.lines(&format!("{ran}.runs WHERE outcome = 'refused' AND sqlstate = 'BF006'")), ["t"]);
    session.run("SELECT quarantine_accept(token, 'they were too many') FROM backfill.quarantine");
    assert_eq!(session.lines(&format!("{ran}.slices ORDER BY window_start")), ["f", "t"]);
}

/// The way forward that errors name can be gone by whoever is kept from running the new code.
#[test]
fn new_code_is_said_to_be_compatible_before_it_ran() {
    let (_database, mut session) = written_by(&["'v1'", "'v1'"]);
    session.run("SELECT pipeline_alter('daily', '{\"on_mixture\": \"refuse\"}')");
    session.plan("2024-02-01", "");
    let claim = "SELECT count(*) FROM backfill_claim('w', pipelines => '{daily}', code_version => 'v2')";
    assert_eq!(session.lines(claim), ["0"]);
    session.run(&say("v1", "v2"));
    assert_eq!(session.lines(claim), ["1"]);

    session.run(
        "CREATE FUNCTION net(n int) RETURNS bigint LANGUAGE sql AS 'SELECT n::bigint';
         CREATE TABLE built (at timestamptz NOT NULL, n bigint)",
    );
    let settings = "query => 'SELECT $1, net(1)', on_mixture => 'refuse'";
    define(&mut session, "query", "'1 day', now() - interval '3 days', 'built', 'at'", settings);
    session.run("CALL backfill_work(pipelines => ARRAY['query'])");
    session.run("SELECT FROM backfill_plan('query', NULL, NULL, 'why', keys => (SELECT array_agg(window_key) FROM pipeline_windows('query') WHERE state = 'missed'))");
    session
        .run("CREATE OR REPLACE FUNCTION net(n int) RETURNS bigint LANGUAGE sql AS 'SELECT 0 + n::bigint'");
    session.run(
        "SELECT version_compatible('query', code_version, pipeline_version('query'), 'nothing is added')
         FROM backfill.versions WHERE pipeline = 'query'",
    );
    assert_eq!(session.count("backfill.compatible_versions"), 2);
}

#[test]
fn a_version_that_somebody_records_at_this_moment_is_not_called_unknown() {
    let database = daily("");
    let mut person = database.connect();
    let mut planner = database.connect();
    person.run("CREATE VIEW number AS SELECT 1::bigint AS n");
    let query = "SELECT $1, n FROM number WHERE $2 > $1";
    person.run(&format!("SELECT pipeline_alter('daily', jsonb_build_object('query', '{query}'))"));
    let old: String = person.one("SELECT pipeline_version('daily')", &[]);
    person.run("CREATE OR REPLACE VIEW number AS SELECT 2::bigint AS n");
    let new: String = person.one("SELECT pipeline_version('daily')", &[]);
    planner.run("BEGIN; SELECT backfill_plan('daily', NULL, '2024-01-03', 'test')");
    assert_sqlstate!(person.try_run(&say(&old, &new)), "40001");
    planner.run("COMMIT");
    assert_eq!(person.lines(&say(&old, &new)), ["recorded"]);
}
