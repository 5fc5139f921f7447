//! Nobody's snapshot is a way around: publications of several versions at once.

use super::{assert_refused, january, lease, publish, replace, versions};
use crate::support::{Calls, LEVELS, waiting};
use pgrx_tests::{Failure, Session, wait_until};

/// Refused, or above READ COMMITTED to be repeated.
#[track_caller]
fn assert_lost(outcome: Result<(), Failure>, level: &str, of: &[&str]) {
    match &outcome {
        Err(failure) if level != "READ COMMITTED" && failure.sqlstate == "40001" => {}
        _ => assert_refused(outcome, of),
    }
}

fn begin(session: &mut Session, level: &str) {
    session.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM facts"));
}

#[test]
fn of_two_first_publications_the_second_sees_the_first() {
    for level in LEVELS {
        for swapped in [false, true] {
            let (database, mut one) = january("refuse");
            let mut other = database.connect();
            let tokens = [lease(&mut one, 1, "v1").unwrap(), lease(&mut one, 2, "v2").unwrap()];
            let [first, second] = if swapped { [tokens[1], tokens[0]] } else { tokens };
            begin(&mut one, level);
            begin(&mut other, level);
            replace(&mut one, first, "").unwrap();
            let sql = crate::support::replacing(second);
            let outcome = waiting(&database, &mut other, &sql, || one.run("COMMIT"));
            assert_lost(outcome, level, &["v1", "v2"]);
            other.run("ROLLBACK");
            assert_eq!(versions(&mut one).len(), 1, "{level}");
            one.assert_data_is_the_ledger();
        }
    }
}

#[test]
fn the_second_publishes_where_the_first_gives_up_or_is_killed() {
    for kill in [false, true] {
        let (database, mut session) = january("refuse");
        let (mut one, mut other) = (database.connect(), database.connect());
        let (first, second) = (lease(&mut session, 1, "v1").unwrap(), lease(&mut session, 2, "v2").unwrap());
        one.run("BEGIN");
        replace(&mut one, first, "").unwrap();
        let sql = crate::support::replacing(second);
        let pid = one.pid();
        waiting(&database, &mut other, &sql, || match kill {
            true => session.run(&format!("SELECT pg_terminate_backend({pid})")),
            false => one.run("ROLLBACK"),
        })
        .unwrap();
        assert_eq!(versions(&mut session), ["2|v2"]);
        if !kill {
            assert_refused(replace(&mut one, first, ""), &["v1", "v2"]);
        }
    }
}

/// Where the class is there, nobody waits for anybody.
#[test]
fn publications_of_one_version_go_side_by_side() {
    let (database, mut session) = january("refuse");
    publish(&mut session, 1, "v1");
    let tokens = [2, 3].map(|day| lease(&mut session, day, "v1").unwrap());
    let mut sessions = [database.connect(), database.connect()];
    for (session, token) in sessions.iter_mut().zip(tokens) {
        session.run("SET lock_timeout = '1s'; BEGIN");
        replace(session, token, "").unwrap();
    }
    sessions.iter_mut().for_each(|session| session.run("COMMIT"));
    assert_eq!(versions(&mut session), ["1|v1", "2|v1", "3|v1"]);
}

/// The last slice of a class goes while another window gets one of it.
#[test]
fn a_class_that_leaves_is_not_brought_back() {
    for level in LEVELS {
        let (database, mut session) = january("allow");
        (1..=2).for_each(|day| publish(&mut session, day, "v1"));
        publish(&mut session, 3, "v2");
        session.run("SELECT pipeline_alter('daily', '{\"on_mixture\": \"refuse\"}')");
        session.run("SELECT backfill_plan('daily', '2024-01-03', '2024-01-04', 'x', code_version => 'v1', expect => 1)");
        let (leaving, coming) =
            (lease(&mut session, 3, "v1").unwrap(), lease(&mut session, 4, "v2").unwrap());
        let (mut one, mut other) = (database.connect(), database.connect());
        begin(&mut one, level);
        begin(&mut other, level);
        replace(&mut one, leaving, "").unwrap();
        let sql = crate::support::replacing(coming);
        let outcome = waiting(&database, &mut other, &sql, || one.run("COMMIT"));
        assert_lost(outcome, level, &["v2", "v1 (3 windows"]);
        other.run("ROLLBACK");
        assert_eq!(versions(&mut session), ["1|v1", "2|v1", "3|v1"]);
    }
}

/// A plan is published at once while a live window gets a slice of the old code.
#[test]
fn a_plan_that_is_published_and_a_live_publication_see_each_other() {
    for plan_first in [true, false] {
        let (database, mut session) = january("refuse");
        (1..=2).for_each(|day| publish(&mut session, day, "v1"));
        session.run(
            "SELECT backfill_cancel(1, 'x'); SELECT pipeline_alter('daily', '{\"code_version\": \"v1\"}');
             SELECT backfill_plan('daily', '2024-01-01', '2024-01-03', 'x', code_version => 'v2', publish => 'together', expect => 2);
             SELECT backfill_plan('daily', '2024-01-03', '2024-01-04', 'live', expect => 1)",
        );
        for day in 1..=2 {
            let token = lease(&mut session, day, "v2").unwrap();
            session.replace(token).unwrap();
        }
        let live = lease(&mut session, 3, "v1").unwrap();
        let (mut one, mut other) = (database.connect(), database.connect());
        one.run("SET lock_timeout = '1min'");
        other.run("SET lock_timeout = '1min'");
        one.run("BEGIN");
        let (publishing, replacing) =
            ("SELECT backfill_publish(2)".to_owned(), crate::support::replacing(live));
        let (first, second) = if plan_first { (publishing, replacing) } else { (replacing, publishing) };
        one.run(&first);
        let outcome = waiting(&database, &mut other, &second, || one.run("COMMIT"));
        assert_refused(outcome, &["v1", "v2"]);
        let expected: &[&str] = if plan_first { &["1|v2", "2|v2"] } else { &["1|v1", "2|v1", "3|v1"] };
        assert_eq!(versions(&mut session), expected);
        session.assert_data_is_the_ledger();
    }
}

/// Adoption is a publication too.
#[test]
fn adoption_waits_for_a_first_publication() {
    let (database, mut session) = january("refuse");
    session.run("INSERT INTO facts VALUES ('2024-02-01 06:00Z', 0)");
    let token = lease(&mut session, 1, "v1").unwrap();
    let mut other = database.connect();
    other.run("SET lock_timeout = '1min'");
    session.run("BEGIN");
    replace(&mut session, token, "").unwrap();
    let adopt = "SELECT window_adopt('daily', '2024-02-01', '2024-02-02', 'v0', 'why')";
    let outcome = waiting(&database, &mut other, adopt, || session.run("COMMIT"));
    assert_refused(outcome, &["v0", "v1"]);
    // Workers wait for its COMMIT, so that it does not wait for them behind a decision.
    other.run("BEGIN; SELECT window_lock('daily', '2024-02-05', '2024-02-06', 'why')");
    assert_eq!(other.failure(adopt).sqlstate, "55000");
    other.run("ROLLBACK");
}

/// Many workers of several versions begin with an empty table.
#[test]
fn of_many_workers_one_version_wins() {
    let (database, mut session) = january("refuse");
    let tokens: Vec<i64> =
        (0..12).map(|n| lease(&mut session, n + 1, ["v1", "v2", "v3"][n as usize % 3]).unwrap()).collect();
    let outcomes = database.many(12, |n, session| {
        session.run(&format!("SET default_transaction_isolation = '{}'", LEVELS[n % 3]));
        replace(session, tokens[n], "").map_err(|failure| failure.sqlstate.clone())
    });
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!(done >= 1, "{outcomes:?}");
    let allowed = |outcome: &Result<(), String>| {
        outcome.as_ref().err().is_none_or(|code| ["BF007", "40001"].contains(&code.as_str()))
    };
    assert!(outcomes.iter().all(allowed), "{outcomes:?}");
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix"), ["f"]);
    wait_until("nobody writes", || {
        session.one(
            "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'object' AND pid <> pg_backend_pid()",
            &[],
        )
    });
}

/// A publication that nobody judged does not outlive the setting that would have refused it.
#[test]
fn what_is_open_while_mixtures_come_to_be_refused_does_not_commit() {
    let refuse = "SELECT pipeline_alter('daily', '{\"on_mixture\": \"refuse\"}')";
    for before in ["allow", "warn"] {
        for level in LEVELS {
            let (database, mut session) = january(before);
            publish(&mut session, 1, "v1");
            let mut writer = database.connect();
            let token = lease(&mut writer, 2, "v2").unwrap();
            writer.run(&format!("BEGIN ISOLATION LEVEL {level}"));
            replace(&mut writer, token, "").unwrap();
            session.run(refuse);
            let failure = writer.failure("COMMIT");
            assert_eq!(failure.sqlstate, "40001", "{failure}");
            assert_eq!(versions(&mut session), ["1|v1"]);
            assert_refused(replace(&mut writer, token, ""), &["v1", "v2"]);
            session.assert_data_is_the_ledger();
            // What was published before stays, and can be built again by what built it.
            session.run(&format!("SELECT pipeline_alter('daily', '{{\"on_mixture\": \"{before}\"}}')"));
            replace(&mut writer, token, "").unwrap();
            session.run(refuse);
            assert_eq!(versions(&mut session), ["1|v1", "2|v2"]);
        }
    }
}

/// A person who publishes does not keep others waiting behind a worker that idles.
#[test]
fn who_decides_waits_for_an_idle_worker_but_not_for_long() {
    let (database, mut session) = january("refuse");
    (1..=2).for_each(|day| publish(&mut session, day, "v1"));
    session.run("SELECT backfill_cancel(1, 'x')");
    let plan = session.plan("2024-01-03", ", code_version => 'v2', publish => 'together'");
    for day in 1..=2 {
        let token = lease(&mut session, day, "v2").unwrap();
        session.replace(token).unwrap();
    }
    session.run("INSERT INTO facts VALUES ('2024-02-01 06:00Z', 0)");
    session.run("SELECT FROM backfill_plan('daily', '2024-01-03', '2024-01-04', 'live', code_version => 'v1', expect => 1)");
    let token = lease(&mut session, 3, "v1").unwrap();
    session.run("BEGIN");
    replace(&mut session, token, "").unwrap();
    let mut person = crate::support::impatient(&database);
    for call in [
        format!("SELECT backfill_publish({plan})"),
        "SELECT window_adopt('daily', '2024-02-01', '2024-02-02', 'v1', 'why')".to_owned(),
    ] {
        assert_eq!(person.failure(&call).sqlstate, "55P03", "{call}");
    }
    session.run("COMMIT");
    person.run("SELECT window_adopt('daily', '2024-02-01', '2024-02-02', 'v1', 'why')");
}

/// The setting is another one when all that was judged by it, or was not judged, has committed.
#[test]
fn who_changes_what_is_refused_waits_for_what_is_open_but_not_for_long() {
    let alter = |to: &str| format!("SELECT pipeline_alter('daily', '{{\"on_mixture\": \"{to}\"}}')");
    let drop = "SELECT version_compatible_drop('daily', 'v1', 'v2')";
    let adopt = "SELECT window_adopt('daily', '2024-02-01', '2024-02-02', 'v1', 'why')";
    let (database, mut writer) = january("refuse");
    let mut person = crate::support::impatient(&database);
    // Judged, and the first of its class.
    let token = lease(&mut writer, 1, "v1").unwrap();
    writer.run("BEGIN");
    replace(&mut writer, token, "").unwrap();
    assert_eq!(person.failure(&alter("warn")).sqlstate, "55P03");
    writer.run("COMMIT");
    // Let in because somebody said that they are alike.
    person.run("SELECT version_compatible('daily', 'v1', 'v2', 'nothing changed')");
    let token = lease(&mut writer, 2, "v2").unwrap();
    writer.run("BEGIN");
    replace(&mut writer, token, "").unwrap();
    assert_eq!(person.failure(drop).sqlstate, "55P03");
    writer.run("ROLLBACK");
    person.run(drop);
    assert_refused(replace(&mut writer, token, ""), &["v1", "v2"]);
    // Adopted, and not judged.
    person.run(&alter("allow"));
    writer.run("INSERT INTO facts VALUES ('2024-02-01 06:00Z', 0)");
    writer.run(&format!("BEGIN; {adopt}"));
    assert_eq!(person.failure(&alter("refuse")).sqlstate, "55P03");
    writer.run("COMMIT");
    person.run(&alter("refuse"));
    assert_eq!(versions(&mut person), ["1|v1", "1|v1"]);
}

#[test]
fn mixtures_do_not_come_to_be_refused_behind_a_publication_of_the_same_transaction() {
    let (_database, mut session) = january("warn");
    let token = lease(&mut session, 1, "v1").unwrap();
    session.run("BEGIN");
    replace(&mut session, token, "").unwrap();
    let failure = session.failure("SELECT pipeline_alter('daily', '{\"on_mixture\": \"refuse\"}')");
    assert_eq!(failure.sqlstate, "55000", "{failure}");
    session.run("ROLLBACK; BEGIN; SELECT pipeline_alter('daily', '{\"on_mixture\": \"refuse\"}')");
    replace(&mut session, token, "").unwrap();
    session.run("COMMIT");
    assert_eq!(versions(&mut session), ["1|v1"]);
}
