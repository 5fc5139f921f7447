//! A plan runs one version to its end, whatever becomes of the pipeline's code meanwhile.

use super::{lease, versions};
use crate::support::{Calls, daily, define};
use pgrx_tests::{Cluster, Database, Session};

/// `daily` by code v1, with four windows in plan 1, of which the first is done.
fn four_windows() -> (Database, Session) {
    let database = daily("code_version => 'v1', backlog => 0, max_attempts => 1, retry_delay => '0'");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    session.plan("2024-01-05", "");
    publish(&mut session, 1, "v1");
    (database, session)
}

#[track_caller]
fn publish(session: &mut Session, day: i32, version: &str) {
    let token = lease(session, day, version).expect("the window can be had");
    session.replace(token).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn other_code_in_the_middle_neither_diverts_nor_breaks_a_plan() {
    let (_database, mut session) = four_windows();
    assert_eq!(
        session.lines("SELECT pipeline_alter('daily', '{\"code_version\": \"v2\", \"lease_for\": \"1 hour\", \"backlog\": 100000}')"),
        ["changed: code_version, backlog, lease_for"]
    );
    session.active_for("daily", "10000 days");
    assert_eq!(lease(&mut session, 2, "v2"), None, "it is the plan's, and the plan's is v1");
    let token = lease(&mut session, 2, "v1").unwrap();
    // What is claimed, what is stamped and what is shown is one version.
    let shown = format!("SELECT code_version FROM backfill.leases WHERE token = {token}");
    assert_eq!(session.lines(&shown), ["v1"]);
    session.replace(token).unwrap();
    (3..=4).for_each(|day| publish(&mut session, day, "v1"));
    assert_eq!(session.lines("SELECT state, code_version FROM backfill.plans"), ["completed|v1"]);
    assert_eq!(versions(&mut session), ["1|v1", "2|v1", "3|v1", "4|v1"]);
    assert_eq!(session.lines("SELECT DISTINCT code_version FROM backfill.runs"), ["v1"]);
    // Live work is of the pipeline's own code.
    assert_eq!(lease(&mut session, 5, "v1"), None);
    publish(&mut session, 5, "v2");
}

#[test]
fn to_finish_on_another_version_takes_a_plan_of_its_own_and_is_on_record() {
    let (_database, mut session) = four_windows();
    publish(&mut session, 2, "v1");
    for day in 3..=4 {
        let token = lease(&mut session, day, "v1").unwrap();
        assert_eq!(session.fail(token), "failed");
    }
    session.run("SELECT pipeline_alter('daily', '{\"code_version\": \"v2\"}'); SELECT backfill_retry(1)");
    assert_eq!([3, 4].map(|day| lease(&mut session, day, "v2")), [None; 2]);
    session.run(
        "SELECT backfill_cancel(1, 'v1 cannot do it');
         SELECT backfill_plan('daily', '2024-01-01', '2024-01-05', 'by v2', mode => 'missing', expect => 2)",
    );
    (3..=4).for_each(|day| publish(&mut session, day, "v2"));
    assert_eq!(versions(&mut session), ["1|v1", "2|v1", "3|v2", "4|v2"]);
    assert_eq!(
        session.lines("SELECT mixed, versions->>'v1', versions->>'v2' FROM backfill.version_mix"),
        ["t|2|2"]
    );
    assert_eq!(session.count("backfill.attention WHERE kind = 'mixed versions'"), 1);
}

/// The query is part of the plan; what it reaches is looked at, and is BF004 where it changed (see `versions`).
#[test]
fn another_query_of_the_pipeline_does_not_divert_a_plan() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run("CREATE TABLE facts (at timestamptz NOT NULL, n int)");
    define(
        &mut session,
        "daily",
        "'1 day', '2024-01-01', 'facts', 'at'",
        "query => 'SELECT $1, 1', backlog => 0",
    );
    let first: String = session.one("SELECT pipeline_version('daily')", &[]);
    session.run("SELECT backfill_plan('daily', '2024-01-01', '2024-01-05', 'x', expect => 4)");
    session.run("CALL backfill_work(pools => '{backfill}', max_windows => 2)");
    session.run("SELECT pipeline_alter('daily', '{\"query\": \"SELECT $1, 2\"}')");
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(session.lines("SELECT DISTINCT n FROM facts"), ["1"]);
    assert_eq!(session.lines("SELECT state FROM backfill.plans"), ["completed"]);
    assert_eq!(session.lines("SELECT DISTINCT code_version FROM backfill.slices"), [first.as_str()]);
    // Three versions later each window still says which text built it.
    for (n, day) in [(2, 5), (3, 6), (4, 7)] {
        session.run(&format!("SELECT pipeline_alter('daily', '{{\"query\": \"SELECT $1, {n}\"}}')"));
        let (since, until) = (format!("2024-01-{day:02}"), format!("2024-01-{:02}", day + 1));
        session.run(&format!("SELECT backfill_plan('daily', '{since}', '{until}', 'x', expect => 1)"));
        session.run("CALL backfill_work(pools => '{backfill}')");
    }
    session.run("SELECT pipeline_drop('daily'); SELECT * FROM backfill_sweep()");
    assert_eq!(
        session.lines(
            "SELECT right(s.window_key, 1), v.query FROM backfill.slices s JOIN backfill.versions v USING (pipeline, code_version)
             WHERE s.window_key >= '2024-01-04' ORDER BY 1"
        ),
        ["4|SELECT $1, 1", "5|SELECT $1, 2", "6|SELECT $1, 3", "7|SELECT $1, 4"]
    );
}
