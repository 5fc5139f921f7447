//! What grows with the number of windows, and what must not. `cargo xtask bench` has the figures.

use crate::support::{Calls, daily, define};
use pgrx_tests::Session;
use std::time::{Duration, Instant};

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    (work(), start.elapsed())
}

/// Plans the first windows of a pipeline of minutes.
fn planned(session: &mut Session, name: &str, windows: i64) {
    define(session, name, "'1 minute', '2020-01-01'", "");
    session.run(&format!(
        "SELECT backfill_plan('{name}', NULL, timestamptz '2020-01-01 00:00Z' + {windows} * interval '1 minute',
                              'test', concurrency => 100, expect => {windows})"
    ));
}

/// How long one claim takes, as the median of many.
fn claim_takes(session: &mut Session, name: &str) -> Duration {
    let mut took = vec![];
    for _ in 0..41 {
        let (leases, time) =
            timed(|| session.try_claim(&format!("1, pipelines => ARRAY['{name}']")).unwrap());
        session.call("finish", leases[0].token);
        took.push(time);
    }
    took.sort_unstable();
    took[took.len() / 2]
}

#[test]
fn a_hundred_thousand_windows_are_planned_in_seconds_and_leased_like_a_hundred() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 200)");
    let ((), took) = timed(|| planned(&mut session, "large", 100_000));
    // Far above what it takes, so that a busy machine does not fail a test.
    assert!(took < Duration::from_secs(30), "the plan took {took:?}");
    planned(&mut session, "small", 100);
    let small = claim_takes(&mut session, "small");
    let large = claim_takes(&mut session, "large");
    assert!(large < small * 3, "{large:?} of 100,000 windows, {small:?} of 100");
    // No step for each window stands between the approval and the leases: one call hands out as many as are wanted.
    let leases = session.try_claim("1000, pipelines => ARRAY['large']").unwrap();
    assert_eq!(leases.len(), 100, "its concurrency");
    let (states, took) =
        timed(|| session.lines("SELECT state, done, running FROM backfill.plans ORDER BY plan_id"));
    assert_eq!(states, ["running|41|100", "running|41|0"]);
    assert!(took < Duration::from_secs(5), "their states took {took:?}");
}

#[test]
fn a_million_windows_that_are_due_are_computed_and_not_stored() {
    let database = daily("");
    let mut session = database.connect();
    let stored = |session: &mut Session| {
        ["run_data", "requeue_data", "plan_window_data", "mark_data"]
            .map(|table| session.count(&format!("backfill.{table}")))
    };
    let ((), took) = timed(|| {
        define(
            &mut session,
            "minutely",
            "'1 minute', now() - interval '1000000 minutes'",
            "backlog => 2147483647",
        );
    });
    assert!(took < Duration::from_secs(2), "the definition took {took:?}");
    // As if nobody had worked for all that time, with a bound that bounds nothing.
    session.active_for("minutely", "1000000 minutes");
    let (lease, took) = timed(|| session.try_claim("1, pipelines => ARRAY['minutely']").unwrap().remove(0));
    assert!(took < Duration::from_secs(2), "the claim took {took:?}");
    assert_eq!(stored(&mut session), [1, 0, 0, 0]);
    session.call("finish", lease.token);
    // A draft is ranges.
    let draft =
        "SELECT windows >= 999998 FROM backfill_plan('minutely', NULL, NULL, 'test', mode => 'missing')";
    assert_eq!(session.lines(draft), ["t"]);
    assert_eq!(stored(&mut session), [1, 0, 0, 0]);
    let bytes: i64 = session.one(
        "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
         WHERE relnamespace = 'backfill'::regnamespace AND relkind = 'r'",
        &[],
    );
    assert!(bytes < 4_000_000, "{bytes} bytes");
}
