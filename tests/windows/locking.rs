//! A lock holds a window still, and gives it back as it was.

use crate::plans::declined;
use crate::support::{Calls, daily, impatient, keys};
use crate::windows::{decide, states};
use pgrx_tests::{assert_sqlstate, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_plan_passes_over_locked_windows_and_runs_them_once_they_are_unlocked() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    let plan = session.plan("2024-01-06", ", concurrency => 5");
    decide(&mut session, "lock", "'2024-01-02', '2024-01-04'");
    let state = format!("SELECT state, done, running, skipped FROM backfill.plans WHERE plan_id = {plan}");
    for lease in session.all_of("daily") {
        session.replace(lease.token).unwrap();
    }
    assert_eq!(states(&mut session, "2024-01-06"), ["done", "locked", "locked", "done", "done"]);
    // The list was walked to its end more than once, and is not done with.
    assert_eq!(session.claim(), None);
    assert_eq!(session.claim(), None);
    assert_eq!(session.lines(&state), ["running|3|0|0"]);
    assert_eq!(
        declined(&mut session, "NULL, '2024-01-06', 'test', mode => 'missing'"),
        ["already done|1", "locked|2", "already done|2"]
    );
    decide(&mut session, "unlock", "'2024-01-02', '2024-01-03'");
    assert_eq!(states(&mut session, "2024-01-06"), ["done", "queued", "locked", "done", "done"]);
    let lease = session.lease();
    assert_eq!((lease.key.as_str(), lease.plan_id), ("2024-01-02", Some(plan)));
    assert_eq!(session.claim(), None);
    decide(&mut session, "unlock", "'2024-01-01', '2024-01-06'");
    let other = session.lease();
    assert_eq!(other.key, "2024-01-03");
    session.replace(lease.token).unwrap();
    session.replace(other.token).unwrap();
    assert_eq!(session.lines(&state), ["completed|5|0|0"]);
    session.assert_data_is_the_ledger();
}

#[test]
fn a_locked_window_stays_its_plans() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.plan("2024-01-03", "");
    let draft = session.draft("'2024-01-03', '2024-01-05', 'test'");
    decide(&mut session, "lock", "'2024-01-02', '2024-01-04'");
    let failure = assert_sqlstate!(session.approve(draft), "BF004");
    assert!(failure.detail.contains("2024-01-03 can no longer be planned"), "{failure}");
    let all = "'2024-01-01', '2024-01-05', 'test'";
    let owned = format!("owned by plan {plan}");
    assert_eq!(declined(&mut session, all), [format!("{owned}|1"), "locked|2".into()]);
    decide(&mut session, "unlock", "'2024-01-02', '2024-01-04'");
    assert_eq!(declined(&mut session, all), [format!("{owned}|2")]);
    // A cancel lets go of it while it is locked, too.
    decide(&mut session, "lock", "'2024-01-02', '2024-01-03'");
    session.cancel(plan);
    decide(&mut session, "unlock", "'2024-01-02', '2024-01-03'");
    assert_eq!(states(&mut session, "2024-01-03"), ["missed", "missed"]);
    assert_eq!(session.claim(), None);
}

#[test]
fn a_window_whose_lease_a_lock_revoked_runs_after_the_unlock_at_no_cost() {
    for (settings, until) in [("", "2024-01-02"), ("catchup => 1", "")] {
        for taken_over in [false, true] {
            let database =
                daily(&format!("max_attempts => 1{}{settings}", if settings.is_empty() { "" } else { ", " }));
            let mut session = database.connect();
            if settings.is_empty() {
                session.run("SELECT pool_define('backfill', 1)");
                session.plan(until, "");
            } else {
                session.run("SELECT pool_define('live', 1)");
            }
            let before = session.lease();
            decide(&mut session, "lock", "NULL, NULL");
            assert_eq!(session.count("backfill.plans WHERE running > 0"), 0);
            if taken_over {
                // Another pipeline's work needs the permit.
                session.run("SELECT pipeline_define('other', '1 day', '2024-01-01', catchup => 1)");
                session.run("SELECT backfill_plan('other', '2024-01-01', '2024-01-02', 'test', expect => 1)");
                let other = session.all_of("other");
                assert_ne!(other, []);
                other.iter().for_each(|lease| session.call("finish", lease.token));
                let ended = "SELECT ended_at IS NOT NULL FROM backfill.run_data WHERE token = $1";
                assert!(session.one::<bool>(ended, &[&before.token]));
            }
            assert_eq!(session.claim(), None);
            decide(&mut session, "unlock", "NULL, NULL");
            let expected = if settings.is_empty() { "queued" } else { "eligible" };
            assert_eq!(session.state(&before.key), expected);
            // Long before the lease would have expired.
            let after = session.lease();
            assert_eq!((&after.key, after.attempt, after.plan_id), (&before.key, 1, before.plan_id));
            assert!(after.token > before.token);
            assert_sqlstate!(session.replace(before.token), "BF002");
            session.replace(after.token).unwrap();
            assert_eq!(session.state(&before.key), "done");
        }
    }
}

#[test]
fn a_lock_waits_for_no_worker_and_its_window_is_handed_out_when_the_writer_has_ended() {
    let database = daily("");
    let (mut worker, mut operator) = (database.connect(), impatient(&database));
    worker.plan("2024-01-02", "");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    decide(&mut operator, "lock", "'2024-01-01', '2024-01-02'");
    decide(&mut operator, "unlock", "'2024-01-01', '2024-01-02'");
    assert_eq!(operator.claim(), None, "somebody writes there");
    assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
    let next = operator.lease_after_failure();
    operator.replace(next.token).unwrap();
    operator.assert_data_is_the_ledger();
}

#[test]
fn claims_that_race_with_a_lock_leave_the_locked_windows_as_they_were() {
    let database = daily("lease_for => '1 minute'");
    let mut judge = database.connect();
    judge.run("SELECT pool_define('backfill', 8)");
    judge.plan("2024-03-01", ", concurrency => 8");
    let locked = AtomicBool::new(false);
    database.many(9, |i, session| {
        if i == 8 {
            wait_until("some work is done", || session.count("backfill.slices") > 5);
            decide(session, "lock", "'2024-01-10', '2024-02-20'");
            locked.store(true, Ordering::SeqCst);
            return;
        }
        loop {
            let after = locked.load(Ordering::SeqCst);
            let Some(lease) = session.claim() else { return };
            let closed = ("2024-01-10".."2024-02-20").contains(&lease.key.as_str());
            assert!(!(after && closed), "{lease:?} was locked before it was claimed");
            if let Err(failure) = session.replace(lease.token) {
                assert_eq!(failure.sqlstate, "BF002", "{failure}");
                assert!(closed, "{lease:?}");
            }
        }
    });
    let late = "SELECT s.window_key FROM backfill.slices s JOIN backfill.window_marks m USING (window_key)
                WHERE s.published_at > m.marked_at";
    assert_eq!(judge.lines(late), [""; 0], "nothing was published under a lock");
    let open = "SELECT count(*) FROM pipeline_windows('daily', NULL, '2024-03-01') WHERE state NOT IN ('done', 'locked')";
    assert_eq!(judge.lines(open), ["0"]);
    judge.assert_data_is_the_ledger();
    decide(&mut judge, "unlock", "'2024-01-10', '2024-02-20'");
    // Nothing is lost.
    for _ in 0..60 {
        let Some(lease) = judge.claim() else { break };
        judge.replace(lease.token).unwrap();
    }
    assert_eq!(judge.lines("SELECT state, done FROM backfill.plans"), ["completed|60"]);
    judge.assert_one_lease_per_window();
    judge.assert_data_is_the_ledger();
}

#[test]
fn locks_and_unlocks_that_race_with_claims_lose_no_window_and_run_none_twice_at_once() {
    let database = daily("lease_for => '1 second', catchup => 10, max_active => 4");
    let mut judge = database.connect();
    judge.run("SELECT pool_define('backfill', 6)");
    judge.plan("2024-02-01", ", concurrency => 6");
    let over = AtomicBool::new(false);
    database.many(10, |i, session| {
        if i >= 8 {
            for round in 0..25 {
                let first = 1 + (round * 7 + i * 3) % 25;
                let range = format!("'2024-01-{first:02}', '2024-01-{:02}'", first + 5);
                let newest = "current_date - 10, current_date - 3".to_owned();
                for range in [range, newest] {
                    decide(session, "lock", &range);
                    decide(session, "unlock", &range);
                }
            }
            over.store(true, Ordering::SeqCst);
            return;
        }
        while !over.load(Ordering::SeqCst) {
            for lease in session.leases(1 + i % 3) {
                if let Err(failure) = session.replace(lease.token) {
                    assert!(["BF001", "BF002"].contains(&failure.sqlstate.as_str()), "{failure}");
                }
            }
        }
    });
    wait_until("all is done", || {
        for lease in judge.leases(9) {
            judge.replace(lease.token).unwrap();
        }
        let left = "SELECT count(*) FROM pipeline_windows('daily') WHERE state NOT IN ('done', 'missed')";
        judge.one::<i64>(left, &[]) == 0
    });
    assert_eq!(judge.lines("SELECT state, done FROM backfill.plans"), ["completed|31"]);
    assert_eq!(judge.count("backfill.slices"), 41);
    judge.assert_one_lease_per_window();
    judge.assert_data_is_the_ledger();
}

#[test]
fn a_lock_counts_for_the_claim_of_one_named_window() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-04", "");
    decide(&mut session, "lock", "'2024-01-02', '2024-01-03'");
    let named = |key: &str| format!("1, pipelines => ARRAY['daily'], window_key => '{key}'");
    assert_eq!(session.try_claim(&named("2024-01-02")).unwrap(), []);
    assert_eq!(keys(&session.try_claim(&named("2024-01-03")).unwrap()), ["2024-01-03"]);
    decide(&mut session, "unlock", "'2024-01-02', '2024-01-03'");
    assert_eq!(keys(&session.try_claim(&named("2024-01-02")).unwrap()), ["2024-01-02"]);
}

#[test]
fn what_follows_may_rest_on_a_locked_slice_and_not_on_a_locked_gap() {
    let database = daily("depends_on_past => true");
    let mut session = database.connect();
    let plan = session.draft("'2024-01-01', '2024-01-05', 'test', ordering => 'sequential'");
    session.approve(plan).unwrap();
    let lease = session.lease();
    session.replace(lease.token).unwrap();
    decide(&mut session, "lock", "'2024-01-01', '2024-01-02'");
    decide(&mut session, "lock", "'2024-01-03', '2024-01-04'");
    let lease = session.lease();
    assert_eq!(lease.key, "2024-01-02");
    session.replace(lease.token).unwrap();
    assert_eq!(session.claim(), None);
    assert_eq!(states(&mut session, "2024-01-05"), ["locked", "done", "locked", "blocked"]);
    let why: String = session.one("SELECT window_why('daily', '2024-01-04')", &[]);
    assert!(why.contains("2024-01-03 is locked"), "{why}");
    decide(&mut session, "unlock", "NULL, NULL");
    assert_eq!(keys(&session.leases(9)), ["2024-01-03"]);
}

#[test]
fn a_sequential_plan_waits_for_no_window_that_is_closed() {
    for (close, left) in [("lock", 1), ("skip", 0)] {
        let database = daily("retry_delay => '1 day'");
        let mut session = database.connect();
        let plan = session.draft("'2024-01-01', '2024-01-04', 'test', ordering => 'sequential'");
        session.approve(plan).unwrap();
        let lease = session.lease();
        session.fail(lease.token);
        assert_eq!(session.claim(), None, "it is to be tried again first");
        decide(&mut session, close, "'2024-01-01', '2024-01-02'");
        for key in ["2024-01-02", "2024-01-03"] {
            let lease = session.lease();
            assert_eq!(lease.key, key);
            session.replace(lease.token).unwrap();
        }
        assert_eq!(session.claim(), None);
        let open = format!(
            "SELECT windows - done - failed - skipped FROM backfill.plans WHERE plan_id = {}",
            plan.id
        );
        assert_eq!(session.one::<i64>(&open, &[]), left);
    }
}
