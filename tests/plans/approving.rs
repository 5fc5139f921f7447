//! Approval repeats what was read, and fails once that has moved.

use crate::support::{Calls, Plan, daily, define};
use pgrx_tests::{Database, Session, assert_sqlstate};

#[test]
fn approval_repeats_the_number_of_windows() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.draft("NULL, '2024-01-11', 'test'");
    for windows in [9, 11, 0, -1, i64::MAX] {
        let failure = assert_sqlstate!(session.approve(Plan { windows, ..plan }), "BF003");
        assert!(failure.hint.contains("10"), "{failure}");
    }
    assert_eq!(session.claim(), None);
    session.approve(plan).unwrap();
    let failure = assert_sqlstate!(session.approve(plan), "55000");
    assert!(failure.detail.contains("approved"), "{failure}");
    assert_sqlstate!(session.approve(Plan { id: 99, ..plan }), "42704");
}

#[test]
fn expect_approves_at_once_when_the_count_is_right_and_stores_nothing_when_not() {
    let database = daily("");
    let mut session = database.connect();
    let plan = |expect: i64| {
        format!(
            "SELECT state, windows
             FROM backfill_plan('daily', NULL, '2024-01-11', 'test', expect => {expect})"
        )
    };
    assert_sqlstate!(session.try_run(&plan(9)), "BF003");
    assert_eq!(session.count("backfill.plan_data"), 0);
    assert_eq!(session.lines(&plan(10)), ["approved|10"]);
    session.lease();
}

/// The draft of `daily` up to 2024-01-06 is out of date after `change`, and says what moved.
#[track_caller]
fn assert_out_of_date(database: &Database, change: impl FnOnce(&mut Session), moved: &str) {
    let mut session = database.connect();
    let plan = session.draft("NULL, '2024-01-06', 'test'");
    assert_ne!(plan.windows, 0);
    change(&mut session);
    let failure = assert_sqlstate!(session.approve(plan), "BF004");
    assert!(failure.detail.contains(moved), "{moved}: {failure}");
    // Nothing is half approved, and a new plan is in order.
    let again = session.draft("NULL, '2024-01-06', 'test'");
    session.approve(again).unwrap();
}

fn run_third(session: &mut Session, call: &str) {
    session.plan_window("2024-01-03");
    let token = session.lease().token;
    session.run(&call.replace("$1", &token.to_string()));
}

#[test]
fn a_draft_is_out_of_date_once_a_window_of_it_was_run() {
    assert_out_of_date(
        &daily(""),
        |session| run_third(session, "SELECT backfill_finish($1, 0)"),
        "2024-01-03 holds the slice",
    );
    for fail in [
        "SELECT backfill_fail($1, 'no luck', retry => false)",
        "SELECT backfill_fail($1, 'no luck', sqlstate => 'BF005')",
    ] {
        assert_out_of_date(&daily(""), |session| run_third(session, fail), "2024-01-03 changed");
    }
    // The slice was replaced by a newer one, though the window is as done as before.
    let database = daily("");
    run_third(&mut database.connect(), "SELECT backfill_finish($1, 0)");
    assert_out_of_date(
        &database,
        |session| run_third(session, "SELECT backfill_finish($1, 0)"),
        "2024-01-03 holds the slice",
    );
}

#[test]
fn a_draft_is_out_of_date_once_a_person_decided_otherwise() {
    assert_out_of_date(
        &daily(""),
        |session| session.run("SELECT window_skip('daily', '2024-01-02', '2024-01-03', 'test')"),
        "2024-01-02 can no longer be planned",
    );
    assert_out_of_date(
        &daily("source_retention => '100 years'"),
        |session| {
            let retention: String = session.one(
                r#"SELECT jsonb_build_object('source_retention', now() - '2024-01-02 12:00Z')::text"#,
                &[],
            );
            session.run(&format!("SELECT pipeline_alter('daily', '{retention}')"));
        },
        "2024-01-01 can no longer be planned",
    );
    let database = daily("");
    let other = database.connect().plan_window("2024-01-04");
    assert_out_of_date(&database, |session| session.cancel(other), "2024-01-04 would now be");
}

#[test]
fn a_draft_is_out_of_date_once_its_code_changed() {
    assert_out_of_date(
        &daily("code_version => 'v1'"),
        |session| session.run(r#"SELECT pipeline_alter('daily', '{"code_version": "v2"}')"#),
        "v2",
    );
    let query = |text: &str| {
        format!(r#"SELECT pipeline_alter('daily', '{{"query": "SELECT $1, {text} WHERE $2 > $1"}}')"#)
    };
    let database = daily("");
    let mut owner = database.connect();
    owner.run(&query("1"));
    assert_out_of_date(&database, |session| session.run(&query("2")), "code version");
    // Another text of the same query is the same code.
    let plan = owner.draft("'2024-02-01', '2024-02-06', 'test'");
    owner.run(&query("/* two */  2"));
    owner.approve(plan).unwrap();
}

#[test]
fn a_window_of_the_draft_in_a_live_lease_makes_it_out_of_date() {
    let database = daily("catchup => 1");
    let mut session = database.connect();
    let newest: String = session.one("SELECT (current_date - 1)::text", &[]);
    let plan = session.draft(&format!("'{newest}', NULL, 'test'"));
    let lease = session.lease();
    let failure = assert_sqlstate!(session.approve(plan), "BF004");
    assert!(failure.detail.contains(&lease.key), "{failure}");
}

#[test]
fn prices_and_the_clock_alone_do_not_put_a_draft_out_of_date() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "fast", "'100 milliseconds', now() - interval '1 second'", "backlog => 1");
    let fast = "SELECT coalesce(max(window_key), '') FROM pipeline_windows('fast')";
    let draft = "SELECT plan_id FROM backfill_plan('fast', NULL, NULL, 'test')";
    let id: i64 = session.one(draft, &[]);
    let windows: i64 = session.one("SELECT windows FROM backfill.plans WHERE plan_id = $1", &[&id]);
    // Windows fall due, and the one that could start by itself then cannot any more.
    let newest: String = session.one(fast, &[]);
    database.wait_for("more windows fall due", &format!("SELECT ({fast}) > '{newest}'"));
    session.run(r#"SELECT pipeline_alter('fast', '{"expected_duration": "1 hour", "cost_per_hour": 7}')"#);
    session.run("SELECT pool_define('backfill', 90), pipeline_pause('fast', 'test')");
    session.approve(Plan { id, windows }).unwrap();
    // They are not in the frozen plan.
    assert_eq!(session.count("backfill.plan_window_data"), windows);
    let inside = "SELECT bool_and(w.window_end <= p.range_end) FROM backfill.plan_window_data w
                  JOIN backfill.plans p USING (plan_id)";
    assert!(session.one::<bool>(inside, &[]));
}

#[test]
fn a_plan_and_its_windows_appear_at_once() {
    let database = daily("");
    let (mut operator, mut other) = (database.connect(), database.connect());
    let plan = operator.draft("NULL, '2024-01-11', 'test'");
    operator.run("BEGIN");
    operator.approve(plan).unwrap();
    assert_eq!(other.claim(), None);
    assert_eq!(other.lines("SELECT state FROM backfill.plans"), ["draft"]);
    operator.run("COMMIT");
    let queued = "SELECT count(*) FROM pipeline_windows('daily') WHERE state = 'queued'";
    assert_eq!(other.lines(queued), ["10"]);
    other.lease();
}
