//! People who decide several things in one transaction, and those who meet them.

use crate::support::{Calls, daily, define, waiting};
use pgrx_tests::{Database, Session, assert_sqlstate};

const PAUSE_POOL: &str = "SELECT pool_pause('backfill', 'test', revoke => true)";
const CANCEL: &str = "SELECT backfill_cancel(1, 'test')";
const LOCK: &str = "SELECT window_lock('daily', NULL, NULL, 'test')";
const LOCK_OTHER: &str = "SELECT window_lock('other', NULL, NULL, 'test')";
const DROP_OTHER: &str = "SELECT pipeline_drop('other')";
const LOCK_ALL: &str = "SELECT window_lock(pipeline, NULL, NULL, 'test') FROM backfill.pipelines";

/// Plan 1 of `daily` and plan 2 of `other`, both in the pool `backfill`.
fn two_plans() -> (Database, Session, Session) {
    let database = daily("");
    let (worker, mut operator) = (database.connect(), database.connect());
    define(&mut operator, "other", "'1 day', '2024-01-01'", "");
    operator.run("SELECT pool_define('backfill', 9)");
    for pipeline in ["daily", "other"] {
        let plan = format!("SELECT backfill_plan('{pipeline}', NULL, '2024-04-10', 'test', expect => 100)");
        operator.run(&plan);
    }
    (database, worker, operator)
}

/// Has the worker come to its COMMIT under one token of each pipeline, in either order.
fn finish_both(worker: &mut Session, reversed: bool) {
    let mut pipelines = ["daily", "other"];
    if reversed {
        pipelines.reverse();
    }
    let tokens = pipelines
        .map(|name| worker.try_claim(&format!("1, pipelines => ARRAY['{name}']")).unwrap().remove(0).token);
    worker.run("BEGIN");
    for token in tokens {
        worker.call("finish", token);
    }
}

#[test]
fn a_person_who_decides_twice_never_fails_because_of_a_commit() {
    let (database, mut worker, mut operator) = two_plans();
    let decisions = [PAUSE_POOL, CANCEL, LOCK, LOCK_OTHER, DROP_OTHER, LOCK_ALL];
    for (i, first) in decisions.into_iter().enumerate() {
        for second in decisions {
            if first == second || (first, second) == (DROP_OTHER, LOCK_OTHER) {
                continue;
            }
            finish_both(&mut worker, i % 2 == 0);
            operator.run("BEGIN");
            operator.run(first);
            // The worker's COMMIT is as if the decisions had never been made.
            waiting(&database, &mut worker, "COMMIT", || {
                operator.run(second);
                operator.run("ROLLBACK");
            })
            .unwrap_or_else(|failure| panic!("{first}; {second}\n{failure}"));
        }
    }
}

#[test]
fn a_commit_that_waited_for_several_decisions_sees_the_last_one() {
    for (first, second) in [(PAUSE_POOL, LOCK), (LOCK_OTHER, CANCEL), (CANCEL, PAUSE_POOL)] {
        let (database, mut worker, mut operator) = two_plans();
        finish_both(&mut worker, false);
        operator.run("BEGIN");
        operator.run("SAVEPOINT s");
        operator.run(first);
        let commit = waiting(&database, &mut worker, "COMMIT", || {
            operator.run(second);
            operator.run("COMMIT");
        });
        assert_sqlstate!(commit, "BF002");
        assert_eq!(operator.count("backfill.slices"), 0);
    }
}

#[test]
fn a_commit_that_waits_can_be_cancelled_and_holds_up_nobody() {
    let (database, mut worker, mut operator) = two_plans();
    let pid = worker.pid();
    finish_both(&mut worker, false);
    operator.run("BEGIN");
    operator.run(LOCK_OTHER);
    let mut held = 0_i64;
    let commit = waiting(&database, &mut worker, "COMMIT", || {
        let gates = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype = 'object' AND mode = 'ShareLock' AND granted
                     AND classid = 'backfill.run_data'::regclass";
        held = operator.one(gates, &[&pid]);
        operator.run(&format!("SELECT pg_cancel_backend({pid})"));
    });
    assert_sqlstate!(commit, "57014");
    assert_eq!(held, 0, "it holds no gate while it waits for one");
    operator.run("COMMIT");
    assert_eq!(operator.count("backfill.slices"), 0);
}

/// Every pair of different calls in one transaction, against each single call in another.
#[track_caller]
fn assert_no_deadlock(database: &Database, twice: &[&str], once: &[&str]) {
    let (mut one, mut other) = (database.connect(), database.connect());
    for first in twice {
        for second in twice.iter().filter(|second| *second != first) {
            for call in once {
                one.run("BEGIN");
                one.run(first);
                other.run("BEGIN");
                waiting(database, &mut other, call, || {
                    one.run(second);
                    one.run("ROLLBACK");
                })
                .unwrap_or_else(|failure| panic!("{first}; {second} against {call}\n{failure}"));
                other.run("ROLLBACK");
            }
        }
    }
}

#[test]
fn who_decides_once_about_a_pipeline_meets_no_deadlock() {
    let (database, ..) = two_plans();
    let twice = [
        "SELECT backfill_pause(1, 'test')",
        "SELECT backfill_adjust(1, priority => 5)",
        "SELECT pipeline_pause('daily', 'test')",
        "SELECT * FROM pipeline_resume('daily')",
        "SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')",
        LOCK,
    ];
    let once = [CANCEL, LOCK, twice[0], twice[2], "SELECT pipeline_drop('daily')"];
    assert_no_deadlock(&database, &twice, &once);
}

#[test]
fn who_decides_once_about_a_pool_meets_no_deadlock() {
    let (database, ..) = two_plans();
    let calls = [
        PAUSE_POOL,
        "SELECT pool_resume('backfill')",
        "SELECT pool_define('backfill', 5)",
        "SELECT pool_define('backfill', 4)",
    ];
    assert_no_deadlock(&database, &calls, &calls);
}
