//! Everything at once.

use crate::support::{Calls, daily, replacing};
use pgrx_tests::{Session, wait_until};

/// A small random generator, so that a failing storm can be run again.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What a worker may be told that lost its lease meanwhile.
#[track_caller]
pub fn may_be_lost(outcome: Result<(), pgrx_tests::Failure>) {
    if let Err(failure) = outcome {
        assert!(matches!(failure.sqlstate.as_str(), "BF001" | "BF002"), "{failure}");
    }
}

#[test]
fn a_storm_of_workers_and_people_breaks_no_invariant() {
    let database = daily("lease_for => '1 second', retry_delay => '0', catchup => 20, max_active => 3");
    let mut judge = database.connect();
    judge.run("SELECT pool_define('backfill', 6), pool_define('live', 2)");
    judge.plan("2024-01-21", ", concurrency => 4");
    database.many(10, |i, session| {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ i as u64);
        for _ in 0..40 {
            if i < 8 { work(session, &mut dice) } else { decide(session, &mut dice) }
        }
    });
    for opened in ["unlock", "unskip"] {
        judge.run(&format!("SELECT window_{opened}('daily', NULL, NULL, 'test')"));
    }
    // Whatever was abandoned is taken over, and the rest is done.
    wait_until("nothing is left to do", || {
        for lease in judge.leases(5) {
            judge.replace(lease.token).unwrap();
        }
        let left = "SELECT count(*) FROM pipeline_windows('daily')
                    WHERE state IN ('leased', 'retrying', 'queued', 'eligible')";
        judge.one::<i64>(left, &[]) == 0
    });
    judge.assert_one_lease_per_window();
    judge.assert_data_is_the_ledger();
    assert!(judge.most_at_once("plan_id IS NOT NULL") <= 6);
    assert!(judge.most_at_once("plan_id IS NULL") <= 2);
    let odd = "SELECT window_key, state FROM pipeline_windows('daily')
               WHERE state NOT IN ('done', 'failed', 'stale', 'missed')";
    assert_eq!(judge.lines(odd), [""; 0]);
    let unfinished = "SELECT plan_id, state FROM backfill.plans
                      WHERE state NOT IN ('completed', 'partial', 'cancelled', 'draft')";
    assert_eq!(judge.lines(unfinished), [""; 0]);
}

fn work(session: &mut Session, dice: &mut Dice) {
    for lease in session.leases(1 + dice.roll(3) as usize) {
        let token = lease.token;
        match dice.roll(10) {
            0..5 => may_be_lost(session.replace(token)),
            5 => may_be_lost(session.try_run(&format!("SELECT backfill_fail({token}, 'no luck')"))),
            6 => may_be_lost(session.try_run(&format!("SELECT backfill_release({token})"))),
            7 => may_be_lost(session.try_run(&format!("SELECT backfill_heartbeat({token})"))),
            8 => may_be_lost(session.try_run(&format!("BEGIN; {}; ROLLBACK", replacing(token)))),
            _ => {}
        }
        session.run("ROLLBACK");
    }
}

fn decide(session: &mut Session, dice: &mut Dice) {
    let day = 1 + dice.roll(28);
    let range = format!("'2024-01-{day:02}', '2024-01-{:02}', 'test'", day + 1);
    match dice.roll(12) {
        0..5 => {
            let plan = session.draft(&format!("'2024-01-{day:02}', '2024-02-01', 'test'"));
            let codes = ["BF004", "BF009"];
            if plan.windows > 0
                && let Err(failure) = session.approve(plan)
            {
                assert!(codes.contains(&failure.sqlstate.as_str()), "{failure}");
            }
        }
        5 | 6 => {
            let open = "SELECT plan_id FROM backfill.plans WHERE state IN ('approved', 'running')";
            if let Some(plan) = session.column::<i64>(open, &[]).first() {
                let cancel = format!("SELECT backfill_cancel({plan}, 'test')");
                if let Err(failure) = session.try_run(&cancel) {
                    assert_eq!(failure.sqlstate, "55000", "{failure}");
                }
            }
        }
        other => {
            let call = ["skip", "unskip", "lock", "unlock", "mark_stale"][other as usize - 7];
            session.run(&format!("SELECT window_{call}('daily', {range})"));
        }
    }
}
