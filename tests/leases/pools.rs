//! The brake: a pool that is paused, whose leases are taken away, and one that is dropped.

use crate::support::{Calls, LEVELS, assert_lost, daily, define, waiting};
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
fn leases_whose_right_has_ended_do_not_keep_a_pool() {
    let database = daily("catchup => 2, max_active => 9");
    let mut session = database.connect();
    session.run("SELECT pool_define('night', 4)");
    session.run("SELECT pipeline_alter('daily', '{\"pool\": \"night\"}')");
    let plan = session.plan("2024-01-05", ", pool => 'night'");
    let held = session.leases(4);
    assert!(held.iter().any(|lease| lease.plan_id == Some(plan)));
    assert!(held.iter().any(|lease| lease.plan_id.is_none()));
    session.cancel(plan);
    session.run("SELECT pipeline_alter('daily', '{\"pool\": \"live\"}')");
    let drop = "SELECT pool_drop('night')";
    let failure = assert_sqlstate!(session.try_run(drop), "55000");
    for lease in held {
        let is_named = failure.detail.contains(&format!("token {}", lease.token));
        assert_eq!(is_named, lease.plan_id.is_none(), "{failure}");
    }
    session.run("SELECT pool_pause('night', 'test', revoke => true)");
    assert_eq!(session.lines(drop), ["dropped"]);
    // The windows of the leases that were taken away come back, in the pool that the pipeline has now.
    assert!(session.lease().plan_id.is_none());
    session.assert_one_lease_per_window();
}

#[test]
fn a_plan_that_has_ended_is_given_no_window_in_a_pool_that_was_dropped() {
    let database = daily("max_attempts => 1");
    let mut session = database.connect();
    session.run("SELECT pool_define('night', 2)");
    let plan = session.plan("2024-01-03", ", pool => 'night'");
    for lease in session.leases(2) {
        session.fail(lease.token);
    }
    session.run("SELECT pool_drop('night')");
    // Also where another one has its name.
    for define in ["SELECT 1", "SELECT pool_define('night', 2)"] {
        session.run(define);
        for call in ["retry", "extend"] {
            let failure =
                assert_sqlstate!(session.try_run(&format!("SELECT backfill_{call}({plan})")), "55000");
            assert!(failure.detail.contains("\"night\" was dropped"), "{failure}");
        }
    }
    assert_eq!(session.claim(), None);
    assert_eq!(session.lines("SELECT state FROM backfill.plans"), ["partial"]);
}

#[test]
fn a_retry_and_a_drop_of_the_pool_at_once() {
    let database = daily("max_attempts => 1");
    let (mut operator, mut admin) = (database.connect(), database.connect());
    admin.run("SELECT pool_define('night', 2)");
    let plan = operator.plan("2024-01-03", ", pool => 'night'");
    for lease in operator.leases(2) {
        operator.fail(lease.token);
    }
    let retry = format!("SELECT backfill_retry({plan})");
    operator.run("BEGIN");
    operator.run(&retry);
    let dropped = waiting(&database, &mut admin, "SELECT pool_drop('night')", || operator.run("COMMIT"));
    assert_eq!(dropped.unwrap_err().sqlstate, "55000");
    for lease in operator.leases(2) {
        operator.fail(lease.token);
    }
    admin.run("BEGIN; SELECT pool_drop('night')");
    let retried = waiting(&database, &mut operator, &retry, || admin.run("COMMIT"));
    assert_eq!(retried.unwrap_err().sqlstate, "55000");
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

#[test]
fn live_work_at_full_load_takes_nothing_from_another_pool_and_in_its_own_it_is_seen_what_waits() {
    let database = daily("catchup => 30, max_active => 30");
    let mut session = database.connect();
    session.run("SELECT pool_define('live', 2), pool_define('backfill', 1)");
    session.plan("2024-01-11", "");
    let beside = session.draft("'2024-01-11', '2024-01-14', 'in the pool of live work', pool => 'live'");
    session.approve(beside).unwrap();
    let mut of_the_plan = 0;
    // Each round, live work takes every slot of its pool again as soon as one is free.
    for _ in 0..10 {
        for lease in session.leases(9) {
            of_the_plan += i32::from(lease.plan_id.is_some());
            assert_ne!(lease.plan_id, Some(beside.id), "scheduled work comes first");
        }
        let pools = "SELECT pool, in_use, slots FROM backfill.pools ORDER BY pool";
        assert_eq!(session.lines(pools), ["backfill|1|1", "live|2|2"]);
        let of_its_pool = "SELECT min(token), pool FROM backfill.leases
            JOIN (VALUES (true, 'live'), (false, 'backfill')) p (is_live, pool) ON is_live = (plan_id IS NULL) GROUP BY pool";
        for lease in session.rows(of_its_pool, &[]) {
            session.call("finish", lease.get::<_, i64>(0));
        }
    }
    assert_eq!(of_the_plan, 10, "a plan has its own pool");
    assert_eq!(session.lines("SELECT state FROM backfill.plans WHERE plan_id = 1"), ["completed"]);
    // Who gave a plan the pool of live work sees that it waits, and for what.
    session.leases(9);
    let waiting = "SELECT waiting FROM backfill.pools WHERE pool = 'live'";
    let live_left = "pipeline_windows('daily') WHERE state = 'eligible'";
    let left = session.count(live_left);
    assert_eq!(session.lines(waiting), [(left + 3).to_string()]);
    let blocked = "SELECT DISTINCT blocked_by, reason FROM backfill.blocked WHERE plan_id = $1";
    let seen = session.rows(blocked, &[&beside.id]);
    let reason: &str = seen[0].get(1);
    assert_eq!((seen.len(), reason), (1, "pool \"live\" is full: 2 of 2 slots are held"));
}

#[test]
fn a_live_window_that_falls_due_comes_before_the_ten_thousand_of_a_plan() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('live', 1)");
    define(&mut session, "minutely", "'1 minute', now() - interval '10000 minutes'", "backlog => 0");
    let plan: i64 = session.one(
        "SELECT plan_id FROM backfill_plan('minutely', NULL, NULL, 'test', pool => 'live', priority => 99,
                                           keys => NULL, expect => 10000)",
        &[],
    );
    define(&mut session, "fast", "'200 milliseconds', now()", "");
    let claim = "9, pipelines => ARRAY['minutely', 'fast']";
    let mut lease = session.try_claim(claim).unwrap().remove(0);
    for _ in 0..3 {
        database.wait_for(
            "a live window is due",
            "SELECT count(*) > 0 FROM pipeline_windows('fast') WHERE state = 'eligible'",
        );
        session.call("finish", lease.token);
        lease = session.try_claim(claim).unwrap().remove(0);
        assert_eq!((lease.plan_id, lease.run_kind.as_str()), (None, "scheduled"));
    }
    let waiting = "SELECT windows - done FROM backfill.plans WHERE plan_id = $1";
    assert!(session.one::<i64>(waiting, &[&plan]) >= 9_999);
}
