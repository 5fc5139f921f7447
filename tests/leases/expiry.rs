//! What becomes of a lease whose worker is gone.

use crate::leases::{SHORT, assert_refused};
use crate::support::{Calls, Lease, daily, define, impatient, keys};
use pgrx_tests::wait_until;

#[test]
fn an_expired_lease_is_taken_over_under_a_higher_token_and_costs_one_attempt() {
    let database = daily(SHORT);
    let (mut slow, mut next) = (database.connect(), database.connect());
    slow.plan_window("2024-01-01");
    let old = slow.lease();
    assert_eq!(next.claim(), None);
    slow.let_expire(old.token);
    let new = next.lease();
    assert_eq!((new.key.as_str(), new.attempt), ("2024-01-01", 2));
    assert!(new.token > old.token);
    assert_refused(&mut slow, old.token, "BF001");
    next.replace(new.token).unwrap();
    assert_refused(&mut slow, old.token, "BF001");
    next.assert_data_is_the_ledger();
    let outcomes = "SELECT outcome FROM backfill.runs ORDER BY token";
    assert_eq!(next.lines(outcomes), ["expired", "done"]);
}

#[test]
fn an_expired_lease_may_do_all_that_a_live_one_may_until_it_is_taken_over() {
    let database = daily(SHORT);
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 9)");
    worker.plan("2024-01-06", "");
    let leases = worker.leases(9);
    worker.let_expire(leases[4].token);
    let [replaced, finished, failed, released, beating] = [0, 1, 2, 3, 4].map(|i| leases[i].token);
    worker.run(&format!("SELECT backfill_stage({replaced})"));
    worker.replace(replaced).unwrap();
    worker.run(&format!("SELECT fence_check({finished})"));
    worker.call("finish", finished);
    worker.fail(failed);
    worker.call("release", released);
    worker.run(r#"SELECT pipeline_alter('daily', '{"lease_for": "1 hour"}')"#);
    worker.call("heartbeat", beating);
    let again = worker.leases(9);
    assert_eq!(keys(&again), ["2024-01-04"], "only the released window is free");
}

#[test]
fn a_heartbeat_keeps_the_lease_beyond_its_first_expiry() {
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), database.connect());
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run(r#"SELECT pipeline_alter('daily', '{"lease_for": "1 hour"}')"#);
    worker.call("heartbeat", lease.token);
    database
        .wait_for("the first expiry is past", "SELECT expires_at < clock_timestamp() FROM backfill.run_data");
    assert_eq!(other.claim(), None);
    worker.replace(lease.token).unwrap();
}

#[test]
fn a_heartbeat_that_is_not_committed_yet_is_not_overlooked() {
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.let_expire(lease.token);
    worker.run(r#"SELECT pipeline_alter('daily', '{"lease_for": "1 hour"}'); BEGIN"#);
    worker.call("heartbeat", lease.token);
    assert_eq!(other.claim(), None);
    worker.run("COMMIT");
    assert_eq!(other.claim(), None);
    // Once it is rolled back it never was.
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.let_expire(lease.token);
    worker.run("BEGIN");
    worker.call("heartbeat", lease.token);
    assert_eq!(other.claim(), None);
    worker.run("ROLLBACK");
    assert_eq!(other.lease().key, lease.key);
}

#[test]
fn a_heartbeat_waits_for_nobody_while_its_own_worker_writes() {
    let database = daily("");
    let (mut worker, mut pulse) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    pulse.call("heartbeat", lease.token);
    worker.run("COMMIT");
    worker.assert_data_is_the_ledger();
}

#[test]
fn a_window_is_not_handed_out_while_a_fenced_transaction_is_open() {
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.run(&format!("SELECT fence_check({})", lease.token));
    worker.let_expire(lease.token);
    assert_eq!(other.claim(), None);
    worker.replace(lease.token).unwrap();
    assert_eq!(other.claim(), None);
    worker.run("COMMIT");
    assert_eq!(other.claim(), None);
    assert_eq!(other.state("2024-01-01"), "done");
}

#[test]
fn a_fenced_transaction_that_rolls_back_lets_the_window_go() {
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), database.connect());
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    other.let_expire(lease.token);
    assert_eq!(other.claim(), None);
    worker.run("ROLLBACK");
    let new = other.lease();
    other.replace(new.token).unwrap();
    other.assert_data_is_the_ledger();
}

#[test]
fn of_many_claims_one_takes_an_expired_lease_over() {
    let database = daily(SHORT);
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let mut lease = worker.lease();
    for attempt in 2..=3 {
        worker.let_expire(lease.token);
        let had = database.many(8, |_, session| session.claim());
        let had: Vec<Lease> = had.into_iter().flatten().collect();
        assert!(had.len() <= 1, "{had:?}");
        lease = had.into_iter().next().unwrap_or_else(|| worker.lease());
        assert_eq!(lease.attempt, attempt);
    }
    worker.assert_one_lease_per_window();
}

#[test]
fn an_expired_lease_gives_its_slots_to_other_windows_too() {
    let database = daily("lease_for => '1 second', max_attempts => 1");
    let mut worker = database.connect();
    define(&mut worker, "other", "'1 day', '2024-01-01'", "");
    worker.run("SELECT pool_define('backfill', 1)");
    worker.plan_window("2024-01-01");
    let lost = worker.lease();
    let sql = "SELECT backfill_plan('other', NULL, '2024-01-02', 'test', expect => 1)";
    worker.run(sql);
    let other = "1, pipelines => ARRAY['other']";
    assert_eq!(worker.try_claim(other).unwrap(), []);
    worker.let_expire(lost.token);
    assert_eq!(worker.try_claim(other).unwrap().len(), 1);
    assert_refused(&mut worker, lost.token, "BF001");
    assert_eq!(worker.state("2024-01-01"), "failed");
}

#[test]
fn a_window_that_comes_back_can_be_claimed_by_name() {
    let database = daily("lease_for => '1 second', retry_delay => '0'");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 9)");
    worker.plan("2024-01-05", "");
    let [expired, failed, released] = worker.leases(3).try_into().unwrap();
    worker.fail(failed.token);
    worker.call("release", released.token);
    worker.let_expire(expired.token);
    for lease in [released, failed, expired] {
        let named = format!("1, pipelines => ARRAY['daily'], window_key => '{}'", lease.key);
        assert_eq!(keys(&worker.try_claim(&named).unwrap()), [lease.key.as_str()]);
    }
}

#[test]
fn an_expired_lease_is_found_among_many_slots() {
    let database = daily("lease_for => '1 second', catchup => 100, max_active => 40");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 40), pool_define('live', 40)");
    worker.plan("2024-01-04", "");
    let pools =
        ["live", "backfill"].map(|pool| format!("1, pools => ARRAY['{pool}'], pipelines => ARRAY['daily']"));
    let lost = pools.clone().map(|pool| worker.try_claim(&pool).unwrap().remove(0));
    for (pool, lost) in pools.iter().zip(lost) {
        worker.let_expire(lost.token);
        wait_until("the lost window comes back", || {
            let lease = worker.try_claim(pool).unwrap().pop();
            if let Some(lease) = &lease {
                worker.call("finish", lease.token);
            }
            lease.is_some_and(|lease| lease.key == lost.key)
        });
    }
}
