//! How often a window is tried.

use crate::leases::assert_refused;
use crate::support::{Calls, daily};

#[test]
fn a_window_is_retried_until_its_attempts_are_used_up() {
    let database = daily("max_attempts => 3, retry_delay => '0'");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    for attempt in 1..=3 {
        let lease = worker.lease();
        assert_eq!(lease.attempt, attempt);
        let answer = worker.fail(lease.token);
        assert_eq!(answer, if attempt < 3 { "retrying" } else { "failed" });
    }
    assert_eq!(worker.claim(), None);
    assert_eq!(worker.state("2024-01-01"), "failed");
    assert_eq!(worker.lines("SELECT state, failed FROM backfill.plans"), ["partial|1"]);
    // A new plan may run it again, and counts anew.
    worker.plan_window("2024-01-01");
    assert_eq!(worker.lease().attempt, 1);
}

#[test]
fn releasing_costs_no_attempt() {
    let database = daily("max_attempts => 2, retry_delay => '0'");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    for attempt in [1, 2] {
        for _ in 0..3 {
            let lease = worker.lease();
            assert_eq!(lease.attempt, attempt);
            worker.call("release", lease.token);
        }
        let lease = worker.lease();
        worker.fail(lease.token);
    }
    assert_eq!(worker.state("2024-01-01"), "failed");
}

#[test]
fn attempts_end_a_window_whether_they_failed_or_expired() {
    let database = daily("max_attempts => 3, retry_delay => '0', lease_for => '1 second'");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let first = worker.lease();
    worker.let_expire(first.token);
    let second = worker.lease();
    assert_eq!(second.attempt, 2);
    assert_eq!(worker.fail(second.token), "retrying");
    let third = worker.lease();
    assert_eq!(third.attempt, 3);
    worker.let_expire(third.token);
    assert_eq!(worker.claim(), None);
    assert_eq!(worker.state("2024-01-01"), "failed");
    assert_eq!(worker.lines("SELECT state, failed, running FROM backfill.plans"), ["partial|1|0"]);
    assert_refused(&mut worker, third.token, "BF001");
}

#[test]
fn a_failed_window_waits_for_its_delay() {
    let database = daily("retry_delay => '1 hour'");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    assert_eq!(worker.fail(lease.token), "retrying");
    assert_eq!(worker.claim(), None);
    assert_eq!(worker.state("2024-01-01"), "retrying");
    let why: String = worker.one("SELECT window_why('daily', '2024-01-01')", &[]);
    assert!(why.contains("no luck"), "{why}");
}

#[test]
fn a_refusal_is_not_retried() {
    let database = daily("retry_delay => '0'");
    let mut worker = database.connect();
    worker.plan("2024-01-05", "");
    for code in ["BF005", "BF006", "BF007", "BF010"] {
        let lease = worker.lease();
        let fail = "SELECT backfill_fail($1, 'no luck', true, $2)";
        let answer: String = worker.one(fail, &[&lease.token, &code]);
        assert_eq!((answer.as_str(), worker.state(&lease.key).as_str()), ("refused", "refused"));
    }
    assert_eq!(worker.claim(), None);
    assert_eq!(worker.lines("SELECT state FROM backfill.plans"), ["partial"]);
}

#[test]
fn one_bad_window_of_ten_leased_at_once_fails_alone() {
    let database = daily("max_attempts => 1");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 10)");
    worker.plan("2024-01-11", "");
    let leases = worker.leases(10);
    assert_eq!(leases.len(), 10);
    for lease in &leases {
        match lease.key.as_str() {
            "2024-01-04" => assert_eq!(worker.fail(lease.token), "failed"),
            _ => worker.replace(lease.token).unwrap(),
        }
    }
    assert_eq!(worker.lines("SELECT state, done, failed FROM backfill.plans"), ["partial|9|1"]);
    worker.assert_data_is_the_ledger();
}

/// As jsonb itself keeps it.
#[test]
fn json_comes_back_as_it_was_given() {
    let database = daily("");
    let mut session = database.connect();
    let json = r#"{"id": 123456789012345678901234567890, "rate": 1.50, "tiny": 1e-400}"#;
    let plan = session.draft(&format!("'2024-01-01', '2024-01-02', 'test', params => '{json}'"));
    session.approve(plan).unwrap();
    let kept: String = session.one("SELECT $1::text::jsonb::text", &[&json]);
    assert!(kept.contains("1.50") && kept.contains("123456789012345678901234567890"), "{kept}");
    let token: i64 = session.one(
        "SELECT token FROM backfill_claim('w', pipelines => ARRAY['daily']) WHERE params::text = $1",
        &[&kept],
    );
    session.run(&format!("SELECT backfill_heartbeat({token}, '{json}')"));
    assert_eq!(session.lines("SELECT params, progress FROM backfill.leases"), [format!("{kept}|{kept}")]);
    session.run(&format!("SELECT backfill_finish({token}, metrics => '{json}')"));
    assert_eq!(session.lines("SELECT metrics FROM backfill.runs"), [kept]);
}
