//! Slices that are out of date.

use crate::plans::declined;
use crate::support::{Calls, Plan, daily, impatient, keys};
use crate::windows::{decide, states};
use pgrx_tests::assert_sqlstate;

const WEEK: &str = "'2024-01-01', '2024-01-08'";

#[test]
fn slices_and_what_is_being_produced_are_stale_until_they_are_produced_again() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    session.plan("2024-01-03", ", concurrency => 2");
    let [done, making] = session.leases(2).try_into().unwrap();
    session.replace(done.token).unwrap();
    assert_eq!(decide(&mut session, "mark_stale", WEEK), 2, "there is nothing to be stale in the others");
    assert_eq!(states(&mut session, "2024-01-04"), ["stale", "leased", "missed"]);
    session.replace(making.token).unwrap();
    assert_eq!(states(&mut session, "2024-01-04"), ["stale", "stale", "missed"]);
    assert_eq!(session.claim(), None, "a stale window does not run by itself");
    let why: String = session.one("SELECT window_why('daily', '2024-01-02')", &[]);
    assert!(
        why.contains("postgres") && why.contains("test") && why.contains(&making.token.to_string()),
        "{why}"
    );

    let stale = format!("{WEEK}, 'test', mode => 'stale'");
    assert_eq!(declined(&mut session, &stale), ["not stale|5"]);
    let plan = session.draft(&stale);
    assert_eq!(plan.windows, 2);
    session.approve(plan).unwrap();
    assert_eq!(states(&mut session, "2024-01-04"), ["queued", "queued", "missed"]);
    for lease in session.leases(2) {
        session.replace(lease.token).unwrap();
    }
    assert_eq!(states(&mut session, "2024-01-04"), ["done", "done", "missed"]);
    session.assert_data_is_the_ledger();
}

#[test]
fn a_first_attempt_that_is_marked_and_then_fails_leaves_nothing_stale() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-02", "");
    let lease = session.lease();
    assert_eq!(decide(&mut session, "mark_stale", WEEK), 1);
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", lease.token));
    assert_eq!(states(&mut session, "2024-01-02"), ["failed"]);
    session.plan("2024-01-02", "");
    let next = session.lease();
    session.replace(next.token).unwrap();
    assert_eq!(states(&mut session, "2024-01-02"), ["done"]);
}

#[test]
fn marking_again_counts_from_then_and_keeps_the_earlier_mark() {
    let database = daily("");
    let mut session = database.connect();
    let build = |session: &mut pgrx_tests::Session| {
        session.plan_window("2024-01-01");
        let lease = session.lease();
        session.replace(lease.token).unwrap();
    };
    build(&mut session);
    session.run(&format!("SELECT window_mark_stale('daily', {WEEK}, 'late data')"));
    build(&mut session);
    assert_eq!(states(&mut session, "2024-01-02"), ["done"]);
    session.run(&format!("SELECT window_mark_stale('daily', {WEEK}, 'later data')"));
    assert_eq!(states(&mut session, "2024-01-02"), ["stale"]);
    let marks =
        "SELECT reason, lifted_at IS NULL FROM backfill.window_marks WHERE mark = 'stale' ORDER BY marked_at";
    assert_eq!(session.lines(marks), ["late data|f", "later data|t"]);
}

#[test]
fn a_draft_is_out_of_date_once_a_slice_of_it_was_marked() {
    let database = daily("");
    let mut session = database.connect();
    session.plan_window("2024-01-01");
    let lease = session.lease();
    session.replace(lease.token).unwrap();
    let plan: Plan = session.draft(&format!("{WEEK}, 'test'"));
    decide(&mut session, "mark_stale", WEEK);
    let failure = assert_sqlstate!(session.approve(plan), "BF004");
    assert!(failure.detail.contains("2024-01-01 changed its state"), "{failure}");
}

#[test]
fn marking_waits_for_no_worker_and_keeps_none_from_committing() {
    let database = daily("");
    let (mut worker, mut operator) = (impatient(&database), impatient(&database));
    worker.plan("2024-01-02", "");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    operator.run("BEGIN");
    assert_eq!(decide(&mut operator, "mark_stale", WEEK), 1);
    worker.run("COMMIT");
    assert_eq!(states(&mut worker, "2024-01-02"), ["done"]);
    operator.run("COMMIT");
    assert_eq!(states(&mut worker, "2024-01-02"), ["stale"]);
}

#[test]
fn marks_at_the_same_moment_are_one() {
    let database = daily("");
    let mut judge = database.connect();
    judge.run("SELECT pool_define('backfill', 9)");
    judge.plan("2024-01-08", "");
    for lease in judge.leases(7) {
        judge.replace(lease.token).unwrap();
    }
    database.many(6, |_, session| {
        for _ in 0..5 {
            decide(session, "mark_stale", WEEK);
        }
    });
    assert_eq!(judge.count("backfill.window_marks WHERE lifted_at IS NULL"), 7);
    assert_eq!(judge.count("backfill.windows WHERE state = 'stale'"), 7);
}

#[test]
fn the_mode_failed_takes_what_failed_or_was_refused_and_nothing_else() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    session.plan("2024-01-06", ", concurrency => 5");
    let [done, failed, refused, retrying, locked] = session.leases(5).try_into().unwrap();
    session.replace(done.token).unwrap();
    session.fail(retrying.token);
    for token in [failed.token, locked.token] {
        session.run(&format!("SELECT backfill_fail({token}, 'no luck', retry => false)"));
    }
    session.run(&format!("SELECT backfill_fail({}, 'no', sqlstate => 'BF005')", refused.token));
    decide(&mut session, "lock", "'2024-01-05', '2024-01-06'");
    let mode = format!("{WEEK}, 'test', mode => 'failed'");
    assert_eq!(
        declined(&mut session, &mode),
        ["not failed|1", "owned by plan 1|1", "locked|1", "not failed|2"]
    );
    let plan = session.draft(&mode);
    session.approve(plan).unwrap();
    assert_eq!(keys(&session.leases(9)), [failed.key.as_str(), &refused.key]);
}
