//! Workers run a plan while two people do what they please with it.

use crate::leases::storm::{Dice, may_be_lost};
use crate::support::{Calls, define, replacing};
use pgrx_tests::{Cluster, Failure, Session, wait_until};
use std::sync::atomic::{AtomicUsize, Ordering};

const WORKERS: usize = 8;

#[test]
fn whatever_two_operators_do_each_window_of_a_plan_is_done_once_or_accounted_for() {
    let database = Cluster::shared().database();
    let mut judge = database.connect();
    judge.run("CREATE TABLE facts (at timestamptz NOT NULL, token bigint NOT NULL)");
    judge.run("CREATE INDEX ON facts (at)");
    // 200 windows, of which the last 20 fall due when somebody says so.
    let first = "'1 day', (now() - interval '200 days 12 hours')::timestamptz(0), 'facts', 'at'";
    let settings = "delay => '20 days', lease_for => '5 seconds', retry_delay => '0', max_attempts => 2";
    define(&mut judge, "daily", first, settings);
    judge.run("SELECT pool_define('backfill', 6)");
    let plan = judge.draft("NULL, NULL, 'everything', concurrency => 5, on_failure => 'stop'");
    assert_eq!(plan.windows, 180);
    judge.approve(plan).unwrap();
    let deciding = AtomicUsize::new(2);
    database.many(WORKERS + 2, |i, session| {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ i as u64);
        if i < WORKERS {
            while deciding.load(Ordering::Relaxed) > 0 {
                work(session, &mut dice);
            }
        } else {
            for _ in 0..60 {
                decide(session, &mut dice);
            }
            deciding.fetch_sub(1, Ordering::Relaxed);
        }
    });
    settle(&mut judge);
    judge.assert_one_lease_per_window();
    judge.assert_data_is_the_ledger();
    let twice = "SELECT plan_id, window_key FROM backfill.runs WHERE outcome = 'done'
                 GROUP BY plan_id, window_key HAVING count(*) > 1";
    assert_eq!(judge.lines(twice), [""; 0], "windows that one plan did twice");
    let states = "SELECT state, count(*) FROM pipeline_windows('daily') GROUP BY state";
    assert_eq!(judge.lines(states), ["done|200"]);
    let unclear = "SELECT plan_id, state, windows, done, failed, skipped, running FROM backfill.plans
                   WHERE CASE state WHEN 'completed' THEN done <> windows
                                    WHEN 'partial' THEN done + failed <> windows OR failed = 0
                                    ELSE state NOT IN ('cancelled', 'draft') END OR running > 0";
    assert_eq!(judge.lines(unclear), [""; 0]);
    let held = "SELECT pool, in_use, waiting FROM backfill.pools WHERE in_use > 0 OR waiting > 0";
    assert_eq!(judge.lines(held), [""; 0]);
}

fn work(session: &mut Session, dice: &mut Dice) {
    for lease in session.leases(1 + dice.roll(3) as usize) {
        let token = lease.token;
        may_be_lost(match dice.roll(12) {
            0..8 => session.replace(token),
            8 => session.try_run(&format!("SELECT backfill_fail({token}, 'no luck')")),
            9 => session.try_run(&format!("SELECT backfill_fail({token}, 'never', retry => false)")),
            10 => session.try_run(&format!("SELECT backfill_release({token})")),
            _ => session.try_run(&format!("BEGIN; {}; ROLLBACK", replacing(token))),
        });
        session.run("ROLLBACK");
    }
}

/// One call, about any plan. It may find that the plan is over, that somebody was faster, or that its windows are
/// another's.
fn decide(session: &mut Session, dice: &mut Dice) {
    let plans: Vec<i64> = session.column("SELECT plan_id FROM backfill.plans ORDER BY plan_id", &[]);
    let plan = plans[dice.roll(plans.len() as u64) as usize];
    let n = 1 + dice.roll(8);
    let call = match dice.roll(19) {
        0 => "pool_pause('backfill', 'the source is slow')".to_owned(),
        1 => "pool_pause('backfill', 'the source is down', revoke => true)".to_owned(),
        2..5 => "pool_resume('backfill')".to_owned(),
        5 => format!("backfill_pause({plan}, 'month end')"),
        6..9 => format!("backfill_resume({plan})"),
        9 => format!("backfill_retry({plan})"),
        10 => format!("backfill_adjust({plan}, {n})"),
        11 => format!("pool_define('backfill', {n})"),
        12 => format!("pipeline_alter('daily', '{{\"delay\": \"{} days\"}}')", 2 * n),
        13 => format!("backfill_extend({plan})"),
        14 => format!("backfill_cancel({plan}, 'wrong month')"),
        // A window at a time, by its own bounds.
        15 | 16 => of_a_window("window_lock", dice.roll(180), 4),
        17 => of_a_window("window_unlock", 0, 180),
        _ => return plan_the_rest(session),
    };
    may_be_late(session.try_run(&format!("SELECT {call}")));
}

/// A decision about some windows of the pipeline.
fn of_a_window(call: &str, after: u64, windows: u64) -> String {
    format!(
        "{call}('daily', min(window_start)::text, max(window_end)::text, 'the books are closed')
         FROM (SELECT * FROM pipeline_windows('daily') ORDER BY window_start OFFSET {after} LIMIT {windows}) w"
    )
}

fn plan_the_rest(session: &mut Session) {
    let plan = session.draft("NULL, NULL, 'the rest', mode => 'missing', concurrency => 5");
    if plan.windows > 0 {
        may_be_late(session.approve(plan));
    }
}

#[track_caller]
fn may_be_late(outcome: Result<(), Failure>) {
    if let Err(failure) = outcome {
        assert!(matches!(failure.sqlstate.as_str(), "55000" | "BF004" | "BF009"), "{failure}");
    }
}

/// Lets everything go on that somebody stopped, and runs what is left.
fn settle(session: &mut Session) {
    session.run("SELECT pool_resume('backfill'), window_unlock('daily', NULL, NULL, 'test')");
    session.run(r#"SELECT pipeline_alter('daily', '{"delay": "0"}')"#);
    wait_until("everything is done", || {
        session.run("SELECT backfill_resume(plan_id) FROM backfill.plans WHERE state = 'paused'");
        for lease in session.leases(9) {
            session.replace(lease.token).unwrap();
        }
        let left = "SELECT count(*) FROM backfill.plans WHERE state IN ('approved', 'running', 'paused')";
        if session.one::<i64>(left, &[]) == 0 {
            plan_the_rest(session);
        }
        session.count("pipeline_windows('daily') WHERE state <> 'done'") == 0
    });
}
