//! Windows that were built by other code than counts now: they say so, and one plan builds them again.

use crate::plans::declined;
use crate::support::{Calls, daily, define};
use pgrx_tests::{Session, assert_sqlstate};

/// Builds what the arguments after the pipeline's name choose of `daily`, by workers that state a version.
fn build(session: &mut Session, chosen: &str, version: &str) -> i64 {
    let plan = session.draft(chosen);
    session.approve(plan).unwrap();
    session.run(&format!(
        "SELECT replace_partition(token, query => format('SELECT $1, %s::bigint', token))
         FROM backfill_claim('w', 16, pipelines => '{{daily}}', code_version => '{version}')"
    ));
    plan.windows
}

fn states(session: &mut Session) -> String {
    session.lines("SELECT state FROM pipeline_windows('daily', NULL, '2024-01-07')").join(" ")
}

fn mix(session: &mut Session) -> Vec<String> {
    session.lines(
        "SELECT mixed, r->>'version', r->>'since', r->>'until', r->>'windows'
         FROM backfill.version_mix, jsonb_array_elements(ranges) r",
    )
}

/// Three days by v1, one by nobody, one by v1, one by v2, which is what the pipeline runs now.
fn mixed() -> (pgrx_tests::Database, Session) {
    let database = daily("code_version => 'v1'");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    build(&mut session, "NULL, '2024-01-04', 'why'", "v1");
    build(&mut session, "'2024-01-05', '2024-01-06', 'why'", "v1");
    session.run("SELECT pipeline_alter('daily', '{\"code_version\": \"v2\"}')");
    build(&mut session, "'2024-01-06', '2024-01-07', 'why'", "v2");
    (database, session)
}

#[test]
fn what_other_code_built_is_outdated_and_one_plan_makes_it_whole() {
    let (_database, mut session) = mixed();
    assert_eq!(states(&mut session), "outdated outdated outdated missed outdated done");
    assert_eq!(
        mix(&mut session),
        ["t|v1|2024-01-01|2024-01-04|3", "t|v1|2024-01-05|2024-01-06|1", "t|v2|2024-01-06|2024-01-07|1"]
    );
    assert_eq!(
        session.lines("SELECT remedy FROM backfill.attention WHERE kind = 'mixed versions'"),
        ["SELECT * FROM backfill_plan('daily', NULL, NULL, '...', mode => 'outdated');"]
    );
    let why: String = session.one("SELECT window_why('daily', '2024-01-01')", &[]);
    assert!(why.contains("built by code version \"v1\"") && why.contains("mode => 'outdated'"), "{why}");
    assert_eq!(
        declined(&mut session, "NULL, '2024-01-07', 'one meaning', mode => 'outdated'"),
        ["not built|1", "built by this version|1"]
    );
    // Its price says by which versions the windows were built that it replaces.
    let by: String = session.one(
        "SELECT estimate->>'holding_data' FROM backfill_plan('daily', NULL, '2024-01-07', 'why', mode => 'outdated')",
        &[],
    );
    assert_eq!(by, "{\"v1\": 4}");
    assert_eq!(build(&mut session, "NULL, '2024-01-07', 'one meaning', mode => 'outdated'", "v2"), 4);
    assert_eq!(states(&mut session), "done done done missed done done");
    assert_eq!(mix(&mut session), ["f|v2|2024-01-01|2024-01-04|3", "f|v2|2024-01-05|2024-01-07|2"]);
    assert_eq!(session.draft("NULL, '2024-01-07', 'again', mode => 'outdated'").windows, 0);
}

#[test]
fn a_plan_s_own_version_says_what_is_outdated() {
    let (_database, mut session) = mixed();
    assert_eq!(
        session.draft("NULL, '2024-01-07', 'why', mode => 'outdated', code_version => 'v1'").windows,
        1
    );
    assert_eq!(
        session.draft("NULL, '2024-01-07', 'why', mode => 'outdated', code_version => 'v3'").windows,
        5
    );
    // Where workers state what they run, the plan must say what counts.
    session.run("SELECT pipeline_alter('daily', '{\"code_version\": null}')");
    assert_eq!(states(&mut session), "done done done missed done done");
    let plan = "SELECT FROM backfill_plan('daily', NULL, '2024-01-07', 'why', mode => 'outdated'";
    assert_sqlstate!(session.query(&format!("{plan})"), &[]), "22023");
    session.run(&format!("{plan}, code_version => 'v2', expect => 4)"));
}

#[test]
fn what_was_said_to_mean_the_same_is_not_outdated() {
    let (_database, mut session) = mixed();
    let draft = session.draft("NULL, '2024-01-07', 'why', mode => 'outdated'");
    session.run("SELECT version_compatible('daily', 'v1', 'v2', 'a comment')");
    assert_eq!(states(&mut session), "done done done missed done done");
    // What a draft selects is looked at again when it is approved.
    assert_sqlstate!(session.approve(draft), "BF004");
    assert_eq!(
        declined(&mut session, "NULL, '2024-01-07', 'why', mode => 'outdated'"),
        ["built by this version|3", "not built|1", "built by this version|2"]
    );
    session.run("SELECT version_compatible_drop('daily', 'v1', 'v2')");
    assert_eq!(states(&mut session), "outdated outdated outdated missed outdated done");
}

#[test]
fn a_slice_of_unknown_code_is_outdated_where_the_code_is_known() {
    let database = daily("");
    let mut session = database.connect();
    session.run("INSERT INTO facts SELECT '2024-01-01Z', 1");
    session.run("SELECT FROM window_adopt('daily', NULL, '2024-01-02', 'before', 'it was there')");
    assert_eq!(session.state("2024-01-01"), "adopted");
    session.run("SELECT pipeline_alter('daily', '{\"code_version\": \"v2\"}')");
    assert_eq!(session.state("2024-01-01"), "outdated");
    session.run("SELECT pipeline_alter('daily', '{\"code_version\": \"before\"}')");
    assert_eq!(session.state("2024-01-01"), "adopted");
}

#[test]
fn an_edited_view_makes_the_windows_of_a_query_outdated_for_whoever_looks() {
    let database = daily("");
    let mut session = database.connect();
    session.run(
        "CREATE TABLE source (at timestamptz, n int);
         CREATE VIEW seen AS SELECT at, n FROM source WHERE n > 0;
         CREATE TABLE built (at timestamptz NOT NULL, n bigint)",
    );
    define(
        &mut session,
        "query",
        "'1 day', '2024-01-01', 'built', 'at'",
        "query => 'SELECT $1, sum(n) FROM seen WHERE at >= $1 AND at < $2'",
    );
    session.run("SELECT FROM backfill_plan('query', NULL, '2024-01-03', 'why', expect => 2)");
    session.run("CALL backfill_work(pipelines => ARRAY['query'])");
    let states = "SELECT state FROM pipeline_windows('query', NULL, '2024-01-03')";
    assert_eq!(session.lines(states), ["done", "done"]);
    session.run("CREATE OR REPLACE VIEW seen AS SELECT at, n FROM source WHERE n > 1");
    assert_eq!(session.lines(states), ["outdated", "outdated"]);
    // Nobody who only looks waits for somebody that changes a table, or records anything.
    let mut other = database.connect();
    let mut fresh = database.connect();
    other.run("BEGIN; ALTER TABLE source ADD more int");
    assert_eq!(fresh.lines(states), ["done", "done"]);
    other.run("ROLLBACK");
    assert_eq!(fresh.lines(states), ["outdated", "outdated"]);
    assert_eq!(session.lines("SELECT count(*) FROM backfill.versions"), ["1"]);
    session.run(
        "SELECT FROM backfill_plan('query', NULL, NULL, 'the view was mended', mode => 'outdated', expect => 2)",
    );
    session.run("CALL backfill_work(pipelines => ARRAY['query'])");
    assert_eq!(session.lines(states), ["done", "done"]);
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix"), ["f"]);
    // A query that cannot be read any more was built by what it was when it could.
    session.run("DROP TABLE source CASCADE");
    assert_eq!(session.lines(states), ["done", "done"]);
}
