//! Rights that end while a transaction is open.

use crate::fence::{assert_won, begin, rebuilding, under_every_level};
use crate::support::{Calls, daily, impatient, replacing, replacing_with, waiting};
use pgrx_tests::{assert_sqlstate, expect_sqlstate};

/// What makes a transaction one that may not commit once its right has ended.
fn fenced(token: i64) -> [String; 6] {
    [
        format!("SELECT fence_check({token})"),
        format!("SELECT backfill_finish({token}, 4)"),
        replacing(token),
        replacing_with(token, ", finish => false"),
        format!("SELECT backfill_stage({token})"),
        format!("SAVEPOINT s; {}; RELEASE s", replacing(token)),
    ]
}

#[test]
fn a_cancel_returns_at_once_and_the_open_transaction_cannot_commit() {
    under_every_level(|level| {
        let (database, mut worker, mut operator, before, lease) = rebuilding();
        begin(&mut worker, level);
        worker.replace(lease.token).unwrap();
        let cancel = "SELECT windows_freed, leases_revoked, still_writing FROM backfill_cancel(2, 'test')";
        assert_eq!(operator.lines(cancel), [format!("1|1|{{{}}}", worker.pid())]);
        // Its windows can be planned at once; this one is handed out when its writer's transaction ends.
        operator.plan_window("2024-01-01");
        assert_eq!(operator.claim(), None);
        let failure = assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
        assert!(failure.message.contains("cancelled"), "{failure}");
        assert_won(&database, before);
        let next = operator.lease_after_failure();
        operator.replace(next.token).unwrap();
        assert_won(&database, next.token);
    });
}

#[test]
fn whatever_passed_the_fence_cannot_commit_after_a_cancel() {
    let (database, mut worker, mut operator, before, mut lease) = rebuilding();
    for i in 0..fenced(0).len() {
        let fenced = &fenced(lease.token)[i];
        worker.run("BEGIN");
        worker.run(fenced);
        let still_writing = "SELECT still_writing FROM backfill_cancel($1, 'test')";
        let writing: Vec<i32> = operator.one(still_writing, &[&lease.plan_id]);
        assert_eq!(writing, [worker.pid()], "{fenced}");
        expect_sqlstate(fenced, worker.try_run("COMMIT"), "BF002");
        assert_won(&database, before);
        worker.plan_window("2024-01-01");
        lease = worker.lease();
    }
}

#[test]
fn a_skip_returns_at_once_and_the_open_transaction_cannot_commit() {
    under_every_level(|level| {
        let (database, mut worker, mut operator, before, lease) = rebuilding();
        begin(&mut worker, level);
        worker.replace(lease.token).unwrap();
        operator.run("SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')");
        assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
        assert_eq!(operator.state("2024-01-01"), "skipped");
        assert_eq!(operator.lines("SELECT DISTINCT token FROM facts"), [before.to_string()]);
        drop(database);
    });
}

#[test]
fn what_is_taken_back_while_the_transaction_is_open_ends_it_all_the_same() {
    for (close, open) in [("lock", "unlock"), ("skip", "unskip")] {
        under_every_level(|level| {
            let (database, mut worker, mut operator, before, lease) = rebuilding();
            begin(&mut worker, level);
            worker.replace(lease.token).unwrap();
            for call in [close, open] {
                let sql = format!("SELECT window_{call}('daily', '2024-01-01', '2024-01-02', 'test')");
                assert_eq!(operator.one::<i64>(&sql, &[]), 1);
            }
            let failure = assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
            assert!(failure.message.contains(close), "{failure}");
            assert_won(&database, before);
        });
    }
}

#[test]
fn whatever_passed_the_fence_cannot_commit_after_a_lock_that_was_lifted() {
    let (database, mut worker, mut operator, before, mut lease) = rebuilding();
    for i in 0..fenced(0).len() {
        let fenced = &fenced(lease.token)[i];
        worker.run("BEGIN");
        worker.run(fenced);
        operator.run("SELECT window_lock('daily', NULL, NULL, 'test')");
        operator.run("SELECT window_unlock('daily', NULL, NULL, 'test')");
        expect_sqlstate(fenced, worker.try_run("COMMIT"), "BF002");
        assert_won(&database, before);
        lease = worker.lease_after_failure();
    }
}

#[test]
fn a_drop_returns_at_once_and_the_open_transaction_cannot_commit() {
    under_every_level(|level| {
        let (database, mut worker, mut operator, before, lease) = rebuilding();
        begin(&mut worker, level);
        worker.replace(lease.token).unwrap();
        operator.run("SELECT pipeline_drop('daily')");
        assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
        assert_eq!(operator.lines("SELECT DISTINCT token FROM facts"), [before.to_string()]);
        drop(database);
    });
}

#[test]
fn a_skip_or_a_cancel_of_others_lets_the_transaction_commit() {
    let (database, mut worker, mut operator, _, lease) = rebuilding();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    let other = operator.plan("2024-01-05", ", mode => 'missing'");
    operator.cancel(other);
    operator.run("SELECT window_skip('daily', '2024-01-02', '2024-01-05', 'test')");
    operator.run("SELECT pipeline_pause('daily', 'test')");
    worker.run("COMMIT");
    assert_won(&database, lease.token);
}

const DECISIONS: [&str; 5] = [
    "SELECT backfill_cancel(2, 'test')",
    "SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')",
    "SELECT window_lock('daily', '2024-01-01', '2024-01-02', 'test')",
    "SELECT window_lock('daily', NULL, NULL, 'test'), window_unlock('daily', NULL, NULL, 'test')",
    "SELECT pipeline_drop('daily')",
];

#[test]
fn a_commit_waits_for_a_decision_in_the_making_and_succeeds_if_that_rolls_back() {
    for decision in DECISIONS {
        let (database, mut worker, mut operator, _, lease) = rebuilding();
        worker.run("BEGIN");
        worker.replace(lease.token).unwrap();
        operator.run("BEGIN");
        operator.run(decision);
        waiting(&database, &mut worker, "COMMIT", || operator.run("ROLLBACK")).unwrap();
        assert_won(&database, lease.token);
    }
}

#[test]
fn a_commit_waits_for_a_decision_in_the_making_and_fails_if_that_commits() {
    for decision in DECISIONS {
        let (database, mut worker, mut operator, before, lease) = rebuilding();
        worker.run("BEGIN");
        worker.replace(lease.token).unwrap();
        operator.run("BEGIN");
        operator.run(decision);
        let commit = waiting(&database, &mut worker, "COMMIT", || operator.run("COMMIT"));
        assert_sqlstate!(commit, "BF002");
        assert_won(&database, before);
    }
}

#[test]
fn one_revoked_window_takes_the_whole_transaction_with_it() {
    let database = daily("");
    let (mut worker, mut operator) = (database.connect(), impatient(&database));
    let plans = [operator.plan_window("2024-01-01"), operator.plan_window("2024-01-02")];
    let [first, second] = [worker.lease(), worker.lease()];
    worker.run("BEGIN");
    worker.replace(first.token).unwrap();
    worker.replace(second.token).unwrap();
    operator.cancel(plans[1]);
    assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
    assert_eq!(worker.lines("SELECT count(*) FROM facts"), ["0"]);
    let kept = plans[0];
    let other = [first, second].into_iter().find(|lease| lease.plan_id == Some(kept)).unwrap();
    worker.replace(other.token).unwrap();
    worker.assert_data_is_the_ledger();
}

#[test]
fn of_a_commit_and_a_cancel_that_race_the_ledger_says_which_came_first() {
    let database = daily("");
    let mut judge = database.connect();
    judge.plan_window("2024-01-01");
    for _ in 0..20 {
        let lease = judge.lease();
        let plan = lease.plan_id.unwrap();
        let committed = database.many(2, |i, session| {
            if i == 0 {
                return session.try_run(&format!("SELECT backfill_cancel({plan}, 'test')")).is_ok();
            }
            session.run("BEGIN");
            let written = session.replace(lease.token).and_then(|()| session.try_run("COMMIT"));
            if let Err(failure) = &written {
                assert_eq!(failure.sqlstate, "BF002", "{failure}");
            }
            written.is_ok()
        });
        let done = "SELECT r.outcome = 'done' AND (p.cancelled_at IS NULL OR r.finished_at < p.cancelled_at)
                    FROM backfill.runs r JOIN backfill.plans p USING (plan_id) WHERE r.token = $1";
        assert_eq!(judge.one::<bool>(done, &[&lease.token]), committed[1]);
        judge.assert_data_is_the_ledger();
        judge.plan_window("2024-01-01");
    }
}
