//! The brake: a pool that is paused, whose leases are taken away, and one that is dropped.

use crate::support::{Calls, LEVELS, assert_lost, daily, waiting};
use pgrx_tests::{assert_sqlstate, wait_until};

#[test]
fn a_paused_pool_hands_out_nothing_and_keeps_what_runs() {
    let database = daily("catchup => 2, max_active => 9");
    let mut session = database.connect();
    session.run("SELECT pool_define('live', 4)");
    let lease = session.lease();
    let plan = session.plan("2024-01-05", ", pool => 'live'");
    let pause = "SELECT pool_pause('live', 'source is down')";
    assert_eq!(session.lines(pause), ["paused"]);
    assert_eq!(session.lines(pause), ["unchanged"]);
    assert_eq!(session.claim(), None);
    let told = "SELECT paused, paused_by, pause_reason, in_use FROM backfill.pools WHERE pool = 'live'";
    assert_eq!(session.lines(told), ["t|postgres|source is down|1"]);
    session.replace(lease.token).unwrap();
    assert_eq!(session.lines("SELECT pool_resume('live')"), ["resumed"]);
    assert_eq!(session.lines("SELECT pool_resume('live')"), ["unchanged"]);
    let mut plans: Vec<_> = session.leases(9).iter().map(|lease| lease.plan_id).collect();
    plans.sort();
    assert_eq!(plans, [None, Some(plan), Some(plan), Some(plan)]);
}

#[test]
fn a_revoking_pause_takes_every_lease_away_for_good_and_loses_no_window() {
    let database = daily("catchup => 2, max_active => 9");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 4)");
    let plan = session.plan("2024-01-09", "");
    let held = session.leases(6);
    assert_eq!(held.len(), 6);
    assert_eq!(session.lines("SELECT pool_pause('backfill', '3 a.m.', revoke => true)"), ["paused"]);
    for lease in &held {
        if lease.plan_id.is_some() {
            assert_sqlstate!(session.replace(lease.token), "BF002");
        }
    }
    assert_eq!(session.lines("SELECT in_use FROM backfill.pools WHERE pool = 'backfill'"), ["0"]);
    assert_eq!(session.claim(), None);
    session.run("SELECT pool_resume('backfill')");
    // A lease that was taken away does not come back with the pool.
    let first = held.iter().find(|lease| lease.plan_id == Some(plan)).unwrap();
    assert_sqlstate!(session.replace(first.token), "BF002");
    let mut done = vec![];
    while let Some(lease) = session.claim() {
        assert_eq!(lease.attempt, 1, "the worker is not to blame");
        session.replace(lease.token).unwrap();
        done.push(lease.key);
    }
    assert_eq!(done.len(), 8);
    let state: String = session.one("SELECT state FROM backfill.plans WHERE plan_id = $1", &[&plan]);
    assert_eq!(state, "completed");
    session.assert_data_is_the_ledger();
    session.assert_one_lease_per_window();
}

#[test]
fn a_revoking_pause_waits_for_no_worker_and_its_commit_fails() {
    for level in LEVELS {
        let database = daily("");
        let (mut worker, mut admin) = (database.connect(), database.connect());
        worker.plan("2024-01-09", "");
        let lease = worker.lease();
        worker.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        worker.replace(lease.token).unwrap();
        admin.run("SET lock_timeout = '1s'; SELECT pool_pause('backfill', 'test', revoke => true)");
        // Also where the pool works again by then.
        admin.run("SELECT pool_resume('backfill'); SELECT pool_define('backfill', 9)");
        assert_lost(&worker.failure("COMMIT"), level, "BF002");
        assert_eq!(worker.count("facts"), 0);
        wait_until("the window can be had again", || {
            admin.leases(9).iter().any(|again| again.key == lease.key && again.attempt == 1)
        });
    }
}

#[test]
fn a_commit_that_is_under_way_meets_a_revoking_pause() {
    for level in LEVELS {
        let database = daily("");
        let (mut worker, mut admin) = (database.connect(), database.connect());
        worker.plan("2024-01-09", "");
        let lease = worker.lease();
        worker.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        worker.replace(lease.token).unwrap();
        admin.run("BEGIN; SELECT pool_pause('backfill', 'test', revoke => true)");
        let late = waiting(&database, &mut worker, "COMMIT", || admin.run("COMMIT"));
        assert_lost(&late.unwrap_err(), level, "BF002");
        assert_eq!(worker.count("facts"), 0);
    }
}

#[test]
fn a_pool_is_dropped_only_when_nothing_uses_it() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('night', 2)");
    let drop = "SELECT pool_drop('night')";
    let plan = session.draft("NULL, '2024-01-03', 'test', pool => 'night'");
    let failure = assert_sqlstate!(session.try_run(drop), "55000");
    assert!(failure.detail.contains(&format!("plan {}", plan.id)), "{failure}");
    session.approve(plan).unwrap();
    assert_sqlstate!(session.try_run(drop), "55000");
    for lease in session.leases(2) {
        session.call("finish", lease.token);
    }
    session.run("SELECT pipeline_alter('daily', '{\"pool\": \"night\"}')");
    let failure = assert_sqlstate!(session.try_run(drop), "55000");
    assert!(failure.detail.contains("pipeline \"daily\""), "{failure}");
    session.run("SELECT pipeline_alter('daily', '{\"pool\": \"live\"}')");
    assert_eq!(session.lines(drop), ["dropped"]);
    assert_eq!(session.count("backfill.pools WHERE pool = 'night'"), 0);
    assert_sqlstate!(session.try_run("SELECT * FROM backfill_claim('w', pools => '{night}')"), "42704");
    assert_sqlstate!(session.try_run(drop), "42704");
    assert_eq!(session.lines("SELECT pool_define('night', 3)"), ["created"]);
    // The plan that ran in the old one is still told.
    assert_eq!(session.lines("SELECT pool, state FROM backfill.plans"), ["night|completed"]);
}

#[test]
fn a_plan_and_a_drop_of_its_pool_at_once() {
    let database = daily("");
    let (mut planner, mut admin) = (database.connect(), database.connect());
    admin.run("SELECT pool_define('night', 2)");
    planner.run("BEGIN; SELECT backfill_plan('daily', NULL, '2024-01-03', 'test', pool => 'night')");
    let dropped = waiting(&database, &mut admin, "SELECT pool_drop('night')", || planner.run("COMMIT"));
    assert_eq!(dropped.unwrap_err().sqlstate, "55000");
    planner.run("SELECT backfill_cancel(1, 'test')");
    admin.run("BEGIN; SELECT pool_drop('night')");
    let plan = "SELECT backfill_plan('daily', NULL, '2024-01-03', 'test', pool => 'night')";
    let planned = waiting(&database, &mut planner, plan, || admin.run("COMMIT"));
    assert_eq!(planned.unwrap_err().sqlstate, "42704");
}

#[test]
fn plans_of_one_priority_share_a_pool_and_a_higher_one_comes_first() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 1)");
    let bounds = [("2024-01-01", "2024-02-10"), ("2024-02-10", "2024-03-21"), ("2024-03-21", "2024-03-24")];
    let plans: Vec<i64> = bounds
        .iter()
        .enumerate()
        .map(|(i, (since, until))| {
            let plan = session.draft(&format!("'{since}', '{until}', 'test', priority => {}", i / 2));
            session.approve(plan).unwrap();
            plan.id
        })
        .collect();
    let mut order = vec![];
    for _ in 0..43 {
        let lease = session.lease();
        session.call("finish", lease.token);
        order.push(lease.plan_id.unwrap());
    }
    assert_eq!(order[..3], [plans[2]; 3]);
    let first = order[3..].iter().filter(|plan| **plan == plans[0]).count();
    // Of 40 fair draws fewer than 6 or more than 34 come from one plan once in 100,000 runs.
    assert!((6..=34).contains(&first), "{first} of 40 windows were of the first plan");
}
