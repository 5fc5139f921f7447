//! The fence: of two attempts at a window one wins, and whatever ends a right in time ends its COMMIT too.

use crate::support::{
    Calls, LEVELS, Lease, assert_lost, daily, impatient, replacing, replacing_with, waiting,
};
use pgrx_tests::{Database, Session, assert_sqlstate, expect_sqlstate};
use std::thread;

/// Runs a test under each isolation level, side by side since most of it is waiting.
fn under_every_level(test: impl Fn(&str) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for level in LEVELS {
            scope.spawn(move || test(level));
        }
    });
}

/// Begins a transaction, and has it take its snapshot.
fn begin(session: &mut Session, level: &str) {
    session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
    session.run("SELECT count(*) FROM facts, backfill.runs");
}

/// The first window is what this token wrote, once.
#[track_caller]
fn assert_won(database: &Database, token: i64) {
    let mut judge = database.connect();
    let rows = "SELECT count(*), min(token), max(token) FROM facts";
    assert_eq!(judge.lines(rows), [format!("4|{token}|{token}")]);
    assert_eq!(judge.lines("SELECT token, rows FROM backfill.slices"), [format!("{token}|4")]);
    judge.assert_data_is_the_ledger();
}

// ── two sessions, one empty window, one token ────────────────────────────────────────────────

/// Two sessions with transactions that began when the window was empty, and the token of its lease.
fn one_token(level: &str) -> (Database, Session, Session, i64) {
    let database = daily("");
    let (mut a, mut b) = (database.connect(), database.connect());
    a.plan_window("2024-01-01");
    let token = a.lease().token;
    begin(&mut a, level);
    begin(&mut b, level);
    (database, a, b, token)
}

#[test]
fn one_token_used_twice_in_a_row_writes_once() {
    under_every_level(|level| {
        let (database, mut a, mut b, token) = one_token(level);
        a.replace(token).unwrap();
        a.run("COMMIT");
        assert_lost(&b.replace(token).unwrap_err(), level, "BF001");
        b.run("ROLLBACK");
        assert_won(&database, token);
    });
}

#[test]
fn one_token_used_twice_at_once_writes_once() {
    under_every_level(|level| {
        let (database, mut a, mut b, token) = one_token(level);
        a.replace(token).unwrap();
        let second = waiting(&database, &mut b, &replacing(token), || a.run("COMMIT"));
        assert_lost(&second.unwrap_err(), level, "BF001");
        b.run("ROLLBACK");
        assert_won(&database, token);
    });
}

#[test]
fn the_second_use_of_a_token_wins_if_the_first_rolls_back() {
    under_every_level(|level| {
        let (database, mut a, mut b, token) = one_token(level);
        a.replace(token).unwrap();
        waiting(&database, &mut b, &replacing(token), || a.run("ROLLBACK")).unwrap();
        b.run("COMMIT");
        assert_won(&database, token);
    });
}

#[test]
fn one_token_that_is_not_finished_may_write_again_and_still_writes_once() {
    under_every_level(|level| {
        let (database, mut a, mut b, token) = one_token(level);
        let replace = replacing_with(token, ", finish => false");
        a.run(&replace);
        match waiting(&database, &mut b, &replace, || a.run("COMMIT")) {
            Ok(()) => {
                assert_eq!(level, "READ COMMITTED", "a snapshot from before cannot see the rows");
                b.run("COMMIT");
            }
            Err(failure) => {
                assert_eq!(failure.sqlstate, "40001", "{failure}");
                b.run("ROLLBACK");
            }
        }
        b.call("finish", token);
        assert_won(&database, token);
    });
}

// ── an old token against a new one ───────────────────────────────────────────────────────────

/// An old worker, whose transaction began before its lease expired, and a new one with the new lease.
fn two_tokens(level: &str) -> (Database, Session, Session, Lease, Lease) {
    let database = daily("lease_for => '1 second'");
    let (mut a, mut b) = (database.connect(), database.connect());
    a.plan_window("2024-01-01");
    let old = a.lease();
    begin(&mut a, level);
    b.let_expire(old.token);
    let new = b.lease();
    begin(&mut b, level);
    (database, a, b, old, new)
}

#[test]
fn an_old_token_loses_though_it_writes_first() {
    under_every_level(|level| {
        let (database, mut a, mut b, old, new) = two_tokens(level);
        assert_lost(&a.replace(old.token).unwrap_err(), level, "BF001");
        a.run("ROLLBACK");
        b.replace(new.token).unwrap();
        b.run("COMMIT");
        assert_won(&database, new.token);
    });
}

/// C1: the worker was stopped before it wrote and goes on after the other one committed.
#[test]
fn an_old_token_loses_after_the_new_one_committed() {
    under_every_level(|level| {
        let (database, mut a, mut b, old, new) = two_tokens(level);
        b.replace(new.token).unwrap();
        b.run("COMMIT");
        let failure = a.replace(old.token).unwrap_err();
        assert_lost(&failure, level, "BF001");
        if failure.sqlstate == "BF001" {
            for token in [old.token, new.token] {
                assert!(failure.message.contains(&token.to_string()), "{failure}");
            }
        }
        a.run("ROLLBACK");
        assert_won(&database, new.token);
    });
}

#[test]
fn an_old_token_loses_while_the_new_one_writes() {
    under_every_level(|level| {
        let (database, mut a, mut b, old, new) = two_tokens(level);
        b.replace(new.token).unwrap();
        assert_lost(&a.replace(old.token).unwrap_err(), level, "BF001");
        a.run("ROLLBACK");
        b.run("COMMIT");
        assert_won(&database, new.token);
    });
}

#[test]
fn an_old_token_that_meets_a_takeover_in_the_making_loses_if_that_commits() {
    under_every_level(|level| {
        let database = daily("lease_for => '1 second'");
        let (mut a, mut b) = (database.connect(), database.connect());
        a.plan_window("2024-01-01");
        let old = a.lease();
        b.let_expire(old.token);
        begin(&mut a, level);
        begin(&mut b, level);
        let new = b.lease();
        b.replace(new.token).unwrap();
        let late = waiting(&database, &mut a, &replacing(old.token), || b.run("COMMIT"));
        assert_lost(&late.unwrap_err(), level, "BF001");
        a.run("ROLLBACK");
        assert_won(&database, new.token);
    });
}

#[test]
fn an_old_token_that_meets_a_takeover_in_the_making_wins_if_that_rolls_back() {
    under_every_level(|level| {
        let database = daily("lease_for => '1 second'");
        let (mut a, mut b) = (database.connect(), database.connect());
        a.plan_window("2024-01-01");
        let old = a.lease();
        b.let_expire(old.token);
        begin(&mut a, level);
        b.run("BEGIN");
        b.lease();
        waiting(&database, &mut a, &replacing(old.token), || b.run("ROLLBACK")).unwrap();
        a.run("COMMIT");
        assert_won(&database, old.token);
    });
}

/// The worker was stopped between its write and its COMMIT, past its expiry.
#[test]
fn a_late_commit_wins_because_nobody_could_take_its_window_over() {
    under_every_level(|level| {
        let database = daily("lease_for => '1 second'");
        let (mut a, mut b) = (database.connect(), impatient(&database));
        a.plan_window("2024-01-01");
        let lease = a.lease();
        begin(&mut a, level);
        a.replace(lease.token).unwrap();
        b.let_expire(lease.token);
        assert_eq!(b.claim(), None);
        a.run("COMMIT");
        assert_eq!(b.claim(), None);
        assert_won(&database, lease.token);
    });
}

// ── rights that end while a transaction is open ──────────────────────────────────────────────

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

/// The window 2024-01-01 holds a slice, and is leased again under a plan.
fn rebuilding() -> (Database, Session, Session, i64, Lease) {
    let database = daily("");
    let (mut worker, operator) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let before = worker.lease().token;
    worker.replace(before).unwrap();
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    (database, worker, operator, before, lease)
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

#[test]
fn a_cancel_that_rolls_back_revokes_nothing() {
    let (database, mut worker, mut operator, _, lease) = rebuilding();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    operator.run("BEGIN");
    operator.cancel(2);
    // The COMMIT waits for the people's decision, whatever it will be.
    waiting(&database, &mut worker, "COMMIT", || operator.run("ROLLBACK")).unwrap();
    assert_won(&database, lease.token);
}

#[test]
fn a_commit_that_meets_a_cancel_in_the_making_fails_if_that_commits() {
    let (database, mut worker, mut operator, before, lease) = rebuilding();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    operator.run("BEGIN");
    operator.cancel(2);
    let commit = waiting(&database, &mut worker, "COMMIT", || operator.run("COMMIT"));
    assert_sqlstate!(commit, "BF002");
    assert_won(&database, before);
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

// ── ways around ──────────────────────────────────────────────────────────────────────────────

#[test]
fn immediate_constraints_neither_hide_a_cancel_nor_hold_it_up() {
    for immediate_first in [true, false] {
        let (database, mut worker, mut operator, before, lease) = rebuilding();
        let immediate = "SET CONSTRAINTS ALL IMMEDIATE".to_owned();
        let replace = replacing(lease.token);
        worker.run("BEGIN");
        for statement in if immediate_first { [&immediate, &replace] } else { [&replace, &immediate] } {
            worker.run(statement);
        }
        operator.cancel(2);
        assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
        assert_won(&database, before);
    }
}

#[test]
fn a_fence_that_was_rolled_back_to_a_savepoint_holds_nothing() {
    let database = daily("lease_for => '1 second'");
    let (mut worker, mut other) = (database.connect(), database.connect());
    worker.plan_window("2024-01-01");
    let old = worker.lease();
    worker.run("BEGIN; SAVEPOINT s");
    worker.replace(old.token).unwrap();
    other.let_expire(old.token);
    assert_eq!(other.claim(), None);
    worker.run("ROLLBACK TO s");
    let new = other.lease();
    other.replace(new.token).unwrap();
    assert_sqlstate!(worker.replace(old.token), "BF001");
    worker.run("ROLLBACK TO s; COMMIT");
    assert_won(&database, new.token);
}

#[test]
fn a_slice_that_was_rolled_back_to_a_savepoint_can_be_written_again() {
    let (database, mut worker, _, _, lease) = rebuilding();
    worker.run("BEGIN; SAVEPOINT s");
    worker.replace(lease.token).unwrap();
    worker.run("ROLLBACK TO s");
    worker.replace(lease.token).unwrap();
    worker.run("COMMIT");
    assert_won(&database, lease.token);
}

#[test]
fn a_fence_that_was_rolled_back_to_a_savepoint_is_not_looked_at_again() {
    let (database, mut worker, mut operator, before, lease) = rebuilding();
    worker.run("CREATE TABLE notes (note text); BEGIN; SAVEPOINT s");
    worker.replace(lease.token).unwrap();
    worker.run("ROLLBACK TO s; INSERT INTO notes VALUES ('kept')");
    let cancel = "SELECT still_writing FROM backfill_cancel(2, 'test')";
    assert_eq!(operator.lines(cancel), ["{}"]);
    worker.run("COMMIT");
    assert_eq!(worker.lines("SELECT note FROM notes"), ["kept"]);
    assert_won(&database, before);
}

#[test]
fn a_caught_error_does_not_let_a_stale_token_write() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.replace(lease.token).unwrap();
    worker.run(&format!(
        "DO $do$ BEGIN
             PERFORM replace_partition({}, query => 'SELECT $1, 0 FROM generate_series(1, 9)');
         EXCEPTION WHEN SQLSTATE 'BF001' THEN NULL;
         END $do$",
        lease.token
    ));
    assert_won(&database, lease.token);
}

#[test]
fn a_fenced_transaction_cannot_hide_in_a_prepared_one() {
    let (database, mut worker, mut operator, before, lease) = rebuilding();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    operator.cancel(2);
    assert_sqlstate!(worker.try_run("PREPARE TRANSACTION 'late'"), "0A000");
    assert_won(&database, before);

    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    // Nothing could look once more when it is committed.
    assert_sqlstate!(worker.try_run("PREPARE TRANSACTION 'hidden'"), "0A000");
    operator.cancel(3);
    assert_won(&database, before);
}
