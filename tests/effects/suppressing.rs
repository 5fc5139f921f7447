//! Leases that allow no effects.

use crate::effects::{Outbox, WITH_EFFECTS, plan_first};
use crate::support::{Calls, Plan, daily, define};
use pgrx_tests::{Cluster, Session};

/// How many effects each plan suppressed.
fn suppressed(session: &mut Session) -> Vec<i64> {
    session.column("SELECT effects_suppressed FROM backfill.plans ORDER BY plan_id", &[])
}

/// J6, and the story that the outbox is there for.
#[test]
fn a_backfill_of_two_years_sends_nothing_and_the_next_live_window_sends_its_own() {
    let database = Cluster::shared().database();
    let mut owner = database.connect();
    owner.run(
        "CREATE TABLE facts (at timestamptz NOT NULL, token bigint NOT NULL); CREATE INDEX ON facts (at)",
    );
    define(&mut owner, "daily", "'1 day', current_date - 731, 'facts', 'at'", "");
    owner.run("SELECT pool_define('backfill', 4)");
    let plan = owner.draft("NULL, current_date - 1, 'the code was wrong', concurrency => 4");
    assert_eq!(plan, Plan { id: 1, windows: 730 });
    owner.approve(plan).unwrap();

    database.many(4, |_, worker| {
        while worker.one::<bool>("SELECT state <> 'completed' FROM backfill.plans", &[]) {
            if let Some(lease) = worker.claim() {
                worker.run("BEGIN");
                assert_eq!(worker.mail(lease.token, ""), "suppressed");
                worker.replace(lease.token).unwrap();
                worker.run("COMMIT");
            }
        }
    });
    let counts = "SELECT state, done, effects_suppressed FROM backfill.plans";
    assert_eq!(owner.lines(counts), ["completed|730|730"]);
    assert_eq!(owner.lines("SELECT state, count(*) FROM backfill.effects GROUP BY 1"), ["suppressed|730"]);
    assert_eq!(owner.deliver(), 0);

    // Yesterday fell due while the pipeline was active.
    owner.active_for("daily", "25 hours");
    let (lease, answer) = owner.mail_window();
    assert_eq!((lease.run_kind.as_str(), answer.as_str()), ("scheduled", "held"));
    assert_eq!(owner.deliver(), 1);
    assert_eq!(owner.deliver(), 0);
    assert_eq!(owner.lines(counts), ["completed|730|730"]);
    owner.assert_data_is_the_ledger();
}

#[test]
fn an_effect_that_was_suppressed_can_be_sent_by_a_plan_with_effects_once() {
    let database = daily("");
    let mut worker = database.connect();
    for (effects, answer, delivered) in [
        ("", "suppressed", 0),
        ("", "suppressed", 0),
        (WITH_EFFECTS, "held", 1),
        (WITH_EFFECTS, "done", 0),
        ("", "done", 0),
    ] {
        plan_first(&mut worker, effects);
        assert_eq!(worker.mail_window().1, answer);
        assert_eq!(worker.deliver(), delivered);
        assert_eq!(worker.count("backfill.effects"), 1);
    }
    // What had gone out before was not suppressed by the last plan.
    assert_eq!(suppressed(&mut worker), [1, 1, 0, 0, 0]);
}

#[test]
fn attempts_of_one_plan_count_a_suppressed_effect_once() {
    let database = daily("retry_delay => '0', max_attempts => 9");
    let mut worker = database.connect();
    plan_first(&mut worker, "");
    for _ in 0..3 {
        let lease = worker.lease();
        assert_eq!(worker.mail(lease.token, ""), "suppressed");
        assert_eq!(worker.mail(lease.token, ""), "suppressed");
        worker.fail(lease.token);
    }
    worker.mail_window();
    assert_eq!(suppressed(&mut worker), [1]);
}

#[test]
fn what_an_attempt_with_effects_left_is_suppressed_by_a_plan_without() {
    let database = daily("max_attempts => 1");
    let mut worker = database.connect();
    plan_first(&mut worker, WITH_EFFECTS);
    let lease = worker.lease();
    worker.mail(lease.token, "");
    worker.fail(lease.token);
    plan_first(&mut worker, "");
    let (lease, answer) = worker.mail_window();
    assert_eq!(answer, "suppressed");
    assert_eq!(worker.outbox(), [format!("|suppressed|{}", lease.token)]);
    assert_eq!(worker.deliver(), 0);
}

#[test]
fn an_effect_that_a_plan_suppresses_while_it_is_ready_stays_ready() {
    let database = daily("");
    let mut worker = database.connect();
    plan_first(&mut worker, WITH_EFFECTS);
    worker.mail_window();
    plan_first(&mut worker, "");
    assert_eq!(worker.mail_window().1, "ready");
    assert_eq!(suppressed(&mut worker), [0, 0]);
    assert_eq!(worker.deliver(), 1);
}
