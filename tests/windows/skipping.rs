//! A skip takes a window from its plan for good, and from the live right until it is taken back.

use crate::plans::declined;
use crate::support::{Calls, daily, keys, waiting};
use crate::windows::{decide, states};
use pgrx_tests::assert_sqlstate;

#[test]
fn a_window_that_is_not_skipped_any_more_may_start_by_itself_where_the_rule_says_so() {
    let database = daily("catchup => 2, max_active => 9");
    let mut session = database.connect();
    let started = session.lease();
    decide(&mut session, "skip", "NULL, NULL");
    assert_eq!(session.leases(9), []);
    decide(&mut session, "unskip", "NULL, NULL");
    let newest: String = session.one("SELECT (current_date - 1)::text", &[]);
    assert_eq!(session.state(&newest), "eligible");
    assert_eq!(session.state(&started.key), "eligible", "what has started keeps its right");
    assert_eq!(session.state("2024-01-01"), "missed");
    let mut again = session.all_of("daily");
    again.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(keys(&again), [started.key.as_str(), &newest]);
    assert!(again.iter().all(|lease| lease.attempt == 1));
    assert_sqlstate!(session.replace(started.token), "BF002");
}

#[test]
fn a_plan_does_not_get_back_what_was_skipped_in_it() {
    let database = daily("retry_delay => '0', max_attempts => 9");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 20)");
    let first = session.plan("2024-01-06", ", concurrency => 2");
    // One that is leased, one to be retried, and three untried; of the last one nothing is decided.
    let [leased, retried] = session.leases(2).try_into().unwrap();
    session.fail(retried.token);
    decide(&mut session, "skip", "'2024-01-01', '2024-01-05'");
    decide(&mut session, "unskip", "'2024-01-01', '2024-01-05'");
    assert_eq!(states(&mut session, "2024-01-06"), ["missed", "failed", "missed", "missed", "queued"]);
    assert_eq!(declined(&mut session, "NULL, '2024-01-06', 'test'"), [format!("owned by plan {first}|1")]);
    let second = session.plan("2024-01-05", ", concurrency => 9");
    let named = |key: &str| format!("1, pipelines => ARRAY['daily'], window_key => '{key}'");
    for key in ["2024-01-01", "2024-01-02", "2024-01-03"] {
        let lease = session.try_claim(&named(key)).unwrap().pop().unwrap();
        assert_eq!(lease.plan_id, Some(second), "{key}");
        session.replace(lease.token).unwrap();
    }
    for lease in session.all_of("daily") {
        let owner = if lease.key == "2024-01-05" { first } else { second };
        assert_eq!(lease.plan_id, Some(owner), "{lease:?}");
        session.replace(lease.token).unwrap();
    }
    assert_sqlstate!(session.replace(leased.token), "BF002");
    let plans = "SELECT plan_id, state, done, failed, skipped FROM backfill.plans WHERE state <> 'draft'
                 ORDER BY plan_id";
    assert_eq!(
        session.lines(plans),
        [format!("{first}|completed|1|0|4"), format!("{second}|completed|4|0|0")]
    );
    // Both lists are done with, and nothing invites a claim to come back to the lease that was revoked.
    assert_eq!(session.count("backfill.requeue_data WHERE seq = 1"), 0);
    assert_eq!(session.claim(), None);
    assert_eq!(session.claim(), None);
    let drained = "SELECT count(*) FROM backfill.plan_cursor_data WHERE drained IS NOT NULL";
    assert_eq!(session.lines(drained), ["2"]);
    session.assert_one_lease_per_window();
    session.assert_data_is_the_ledger();
}

/// Decisions of people about one pipeline come one after the other.
#[test]
fn a_skip_and_an_approval_see_each_other() {
    let skip = "SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')";
    let database = daily("");
    let (mut operator, mut other) = (database.connect(), database.connect());
    let plan = operator.draft("NULL, '2024-01-03', 'test'");
    operator.run("BEGIN");
    operator.approve(plan).unwrap();
    waiting(&database, &mut other, skip, || operator.run("COMMIT")).unwrap();
    assert_eq!(keys(&other.all_of("daily")), ["2024-01-02"]);
    decide(&mut other, "unskip", "'2024-01-01', '2024-01-02'");
    assert_eq!(states(&mut other, "2024-01-03"), ["missed", "leased"]);

    let database = daily("");
    let (mut operator, mut other) = (database.connect(), database.connect());
    let plan = operator.draft("NULL, '2024-01-03', 'test'");
    other.run("BEGIN");
    other.run(skip);
    let approve = format!("SELECT backfill_approve({}, {})", plan.id, plan.windows);
    let late = waiting(&database, &mut operator, &approve, || other.run("COMMIT"));
    assert_sqlstate!(late, "BF004");
}

#[test]
fn a_window_that_ended_in_a_plan_counts_as_what_it_was_once_it_is_open() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-03", "");
    for lease in session.leases(2) {
        session.replace(lease.token).unwrap();
    }
    decide(&mut session, "skip", "'2024-01-01', '2024-01-03'");
    decide(&mut session, "unskip", "'2024-01-01', '2024-01-03'");
    assert_eq!(session.lines("SELECT state, done, skipped FROM backfill.plans"), ["completed|2|0"]);
    assert_eq!(states(&mut session, "2024-01-03"), ["done", "done"]);
}
