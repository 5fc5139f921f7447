//! Claims above READ COMMITTED.

use crate::leases::{SHORT, assert_refused};
use crate::support::{Calls, LEVELS, Lease, daily};
use pgrx_tests::{Database, wait_until};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_claim_with_an_older_snapshot_gives_no_window_twice() {
    for level in LEVELS {
        let database = daily("");
        let (mut old, mut new) = (database.connect(), database.connect());
        old.run("SELECT pool_define('backfill', 9)");
        old.plan("2024-01-04", "");
        let first = new.lease();
        old.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        assert_eq!(old.lines("SELECT count(*) FROM backfill.runs"), ["1"]);
        let second = new.lease();
        new.replace(first.token).unwrap();
        match old.try_claim("1, pipelines => ARRAY['daily']") {
            Ok(leases) => {
                let third = &leases[0];
                assert!(third.key > second.key && third.token > second.token, "{level}: {third:?}");
                old.run("COMMIT");
            }
            Err(failure) => {
                assert_ne!(level, "READ COMMITTED", "{failure}");
                assert_eq!(failure.sqlstate, "40001", "{failure}");
                old.run("ROLLBACK");
                assert_eq!(old.lease().key, "2024-01-03");
            }
        }
        new.assert_one_lease_per_window();
    }
}

/// What a claim gets whose transaction took its snapshot before `decision` was committed.
fn claim_from_before(database: &Database, level: &str, decision: &str) -> Vec<Lease> {
    let (mut old, mut operator) = (database.connect(), database.connect());
    old.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM backfill.runs"));
    operator.run(decision);
    let had = match old.try_claim("9, pipelines => ARRAY['daily']") {
        Err(failure) if failure.sqlstate == "40001" && level != "READ COMMITTED" => vec![],
        Err(failure) if failure.sqlstate == "42704" && decision.contains("drop") => vec![],
        had => had.unwrap(),
    };
    old.run("COMMIT");
    had
}

#[test]
fn a_lease_from_an_older_snapshot_of_a_right_that_ended_is_void() {
    for level in LEVELS {
        for decision in [
            "SELECT backfill_cancel(1, 'test')",
            "SELECT window_skip('daily', '2024-01-01', '2024-01-04', 'test')",
            "SELECT pipeline_drop('daily')",
        ] {
            let database = daily("");
            let mut session = database.connect();
            session.plan("2024-01-04", "");
            for lease in claim_from_before(&database, level, decision) {
                assert_refused(&mut session, lease.token, "BF002");
            }
        }
    }
}

#[test]
fn a_live_claim_with_an_older_snapshot_obeys_what_people_decided_since() {
    let database = daily("catchup => 3");
    let mut owner = database.connect();
    for level in LEVELS {
        for decision in [
            "SELECT pipeline_pause('daily', 'test')",
            "SELECT pool_define('live', 0)",
            r#"SELECT pipeline_alter('daily', '{"catchup": 0}')"#,
        ] {
            owner.run("SELECT pipeline_resume('daily'), pool_define('live', 2)");
            owner.run(r#"SELECT pipeline_alter('daily', '{"catchup": 3}')"#);
            assert_eq!(claim_from_before(&database, level, decision), [], "{level}: {decision}");
        }
    }
}

#[test]
fn a_claim_with_an_older_snapshot_does_not_take_over_a_lease_that_was_renewed() {
    for level in LEVELS {
        let database = daily(SHORT);
        let mut worker = database.connect();
        worker.plan_window("2024-01-01");
        let lease = worker.lease();
        worker.let_expire(lease.token);
        worker.run(r#"SELECT pipeline_alter('daily', '{"lease_for": "1 hour"}')"#);
        let beat = format!("SELECT backfill_heartbeat({})", lease.token);
        assert_eq!(claim_from_before(&database, level, &beat), [], "{level}");
        worker.replace(lease.token).unwrap();
    }
}

#[test]
fn workers_above_read_committed_lease_each_window_once_and_keep_the_cap() {
    for level in &LEVELS[1..] {
        let database = daily("");
        let mut operator = database.connect();
        operator.run("SELECT pool_define('backfill', 4)");
        operator.plan("2024-02-10", "");
        let done = AtomicUsize::new(0);
        database.many(8, |_, worker| {
            worker.run(&format!("SET default_transaction_isolation = '{level}'"));
            wait_until("all windows are done", || {
                let had = match worker.try_claim("2, pipelines => ARRAY['daily']") {
                    Ok(had) => had,
                    Err(failure) if failure.sqlstate == "40001" => vec![],
                    Err(failure) => panic!("{failure}"),
                };
                for lease in had {
                    wait_until("its finish", || {
                        let finish = format!("SELECT backfill_finish({})", lease.token);
                        match worker.try_run(&finish) {
                            Err(failure) if failure.sqlstate == "40001" => false,
                            outcome => outcome.map(|()| true).unwrap(),
                        }
                    });
                    done.fetch_add(1, Ordering::Relaxed);
                }
                done.load(Ordering::Relaxed) >= 40
            });
        });
        operator.assert_one_lease_per_window();
        let runs = "SELECT count(*), count(DISTINCT window_key) FROM backfill.runs";
        assert_eq!(operator.lines(runs), ["40|40"], "{level}");
        assert!(operator.most_at_once("true") <= 4);
    }
}
