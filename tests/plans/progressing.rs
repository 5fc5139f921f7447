//! How far a plan has come, and when it will end.

use crate::support::{Calls, daily};
use pgrx_tests::{Session, assert_sqlstate};

const COUNTS: &str =
    "SELECT state, windows, done, failed, running, waiting, skipped, percent FROM backfill_progress(1)";

fn bar(session: &mut Session) -> String {
    session.one("SELECT bar FROM backfill_progress(1)", &[])
}

#[test]
fn progress_counts_as_the_view_does_in_every_state() {
    let database = daily("max_attempts => 1");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    let plan = session.draft("NULL, '2024-01-09', 'test'");
    assert_eq!(session.lines(COUNTS), ["draft|8|0|0|0|8|0|0"]);
    session.approve(plan).unwrap();
    assert_eq!(session.lines(COUNTS), ["approved|8|0|0|0|8|0|0"]);
    assert_eq!(bar(&mut session), "[....................]   0.0% 0/8, approved");
    let leases = session.leases(4);
    session.call("finish", leases[0].token);
    session.fail(leases[1].token);
    session.run("SELECT window_skip('daily', '2024-01-08', '2024-01-09', 'no data')");
    assert_eq!(session.lines(COUNTS), ["running|8|1|1|2|3|1|37.5"]);
    let same = "SELECT (p.state, p.windows, p.done, p.failed, p.running, p.skipped, p.pipeline)
                     = (v.state, v.windows, v.done, v.failed, v.running, v.skipped, v.pipeline)
                FROM backfill_progress(1) p, backfill.plans v";
    assert!(session.one::<bool>(same, &[]));
    session.call("finish", leases[2].token);
    session.call("finish", leases[3].token);
    while let Some(lease) = session.claim() {
        session.call("finish", lease.token);
    }
    assert_eq!(session.lines(COUNTS), ["partial|8|6|1|0|0|1|100"]);
    assert_eq!(bar(&mut session), "[###############--!!!] 100.0% 6/8, 1 failed, partial");
    let rate = "SELECT rate > 0, eta, remaining FROM backfill_progress(1)";
    assert_eq!(session.lines(rate), ["t||"]);
    assert_sqlstate!(session.try_run("SELECT backfill_progress(99)"), "42704");
}

#[test]
fn a_cancelled_plan_waits_for_nothing() {
    let database = daily("expected_duration => '1 hour'");
    let mut session = database.connect();
    session.plan("2024-01-09", "");
    let lease = session.lease();
    session.call("finish", lease.token);
    session.lease();
    session.cancel(1);
    assert_eq!(session.lines(COUNTS), ["cancelled|8|1|0|0|0|0|12.5"]);
    assert_eq!(bar(&mut session), "[##..................]  12.5% 1/8, cancelled");
    assert_eq!(session.lines("SELECT eta, remaining FROM backfill_progress(1)"), ["|"]);
}

/// Seconds until the plan will end, as far as is known.
fn remaining(session: &mut Session) -> Option<f64> {
    session.one("SELECT extract(epoch FROM eta - clock_timestamp())::float8 FROM backfill.plans", &[])
}

#[test]
fn the_end_is_told_from_the_estimate_first_and_then_from_what_windows_take() {
    let database = daily("expected_duration => '1 hour'");
    let mut session = database.connect();
    session.plan("2024-01-21", ", concurrency => 1");
    assert_eq!(remaining(&mut session), None, "nothing runs");
    let mut lease = session.lease();
    let first = remaining(&mut session).unwrap();
    assert!((19.9 * 3600.0..=20.0 * 3600.0).contains(&first), "{first}");
    for _ in 0..9 {
        session.call("finish", lease.token);
        lease = session.lease();
    }
    // Nine windows of a minute each, and the tenth has just begun.
    session.run(
        "WITH open AS (SELECT started_at FROM backfill.run_data WHERE ended_at IS NULL)
         UPDATE backfill.run_data r SET started_at = open.started_at - (10 - seq) * interval '1 minute',
                                        ended_at = open.started_at - (9 - seq) * interval '1 minute'
         FROM open WHERE r.ended_at IS NOT NULL",
    );
    let then = remaining(&mut session).unwrap();
    assert!((10.5 * 60.0..=11.1 * 60.0).contains(&then), "{then}");
    let shown = "SELECT rate BETWEEN 55 AND 60, remaining BETWEEN '10 minutes' AND '12 minutes', bar LIKE '% min % s left'
                 FROM backfill_progress(1)";
    assert_eq!(session.lines(shown), ["t|t|t"]);
    // The worker stopped ten minutes ago.
    session.call("release", lease.token);
    session.run(
        "UPDATE backfill.run_data SET ended_at = ended_at - interval '10 minutes' WHERE ended_at IS NOT NULL",
    );
    assert_eq!(remaining(&mut session), None);
}

#[test]
fn slots_that_nobody_serves_do_not_bring_the_end_nearer() {
    let database = daily("expected_duration => '1 hour'");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    session.plan("2024-01-09", "");
    session.lease();
    let alone = remaining(&mut session).unwrap();
    assert!((7.9 * 3600.0..=8.0 * 3600.0).contains(&alone), "{alone}");
    session.leases(3);
    let four = remaining(&mut session).unwrap();
    assert!((1.9 * 3600.0..=2.0 * 3600.0).contains(&four), "{four}");
}

#[test]
fn what_is_not_known_has_no_end() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-09", "");
    session.lease();
    assert_eq!(remaining(&mut session), None);
    assert!(bar(&mut session).ends_with("0/8, running"));
}
