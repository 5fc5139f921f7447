//! A cancel frees everything at once.

use crate::support::{Calls, daily, define, waiting};
use pgrx_tests::{Session, assert_sqlstate};

#[test]
fn a_cancel_frees_everything_at_once_and_says_how_much() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 10)");
    let plan = session.plan("2024-01-31", "");
    let held = session.leases(10);
    for lease in &held[..3] {
        session.replace(lease.token).unwrap();
    }
    let cancel = format!("SELECT * FROM backfill_cancel({plan}, 'wrong month')");
    assert_eq!(session.lines(&cancel), ["27|7|{}"]);
    assert_eq!(session.claim(), None);
    assert_sqlstate!(session.replace(held[5].token), "BF002");
    assert_sqlstate!(session.try_run(&cancel), "55000");
    let kept = "SELECT state, cancel_reason, done, running FROM backfill.plans";
    assert_eq!(session.lines(kept), ["cancelled|wrong month|3|0"]);
    let in_use = "SELECT in_use FROM backfill.pools WHERE pool = 'backfill'";
    assert_eq!(session.lines(in_use), ["0"]);
    let next = session.draft("NULL, '2024-01-31', 'test', mode => 'missing'");
    assert_eq!(next.windows, 27);
    session.approve(next).unwrap();
    assert_eq!(session.all_of("daily").len(), 10);
    session.assert_one_lease_per_window();
}

#[test]
fn a_cancel_works_in_every_state_in_which_something_is_left() {
    let database = daily("");
    let mut session = database.connect();
    let cancelled = |session: &mut Session, plan: i64| {
        session.lines(&format!("SELECT windows_freed, leases_revoked FROM backfill_cancel({plan}, 'test')"))
    };
    let draft = session.draft("NULL, '2024-01-03', 'test'");
    assert_eq!(cancelled(&mut session, draft.id), ["0|0"]);
    let untouched = session.plan("2024-01-03", "");
    assert_eq!(cancelled(&mut session, untouched), ["2|0"]);
    let leased = session.plan("2024-01-03", "");
    assert_eq!(session.leases(2).len(), 2);
    assert_eq!(cancelled(&mut session, leased), ["2|2"]);
    let retrying = session.plan("2024-01-03", "");
    let token = session.lease().token;
    session.fail(token);
    assert_eq!(cancelled(&mut session, retrying), ["2|0"]);
    assert_sqlstate!(session.approve(draft), "55000");
    assert_eq!(session.claim(), None);
    // Not one that has ended: it stays what it is.
    let over = session.plan("2024-01-03", "");
    for lease in session.leases(2) {
        session.call("finish", lease.token);
    }
    assert_sqlstate!(session.try_run(&format!("SELECT backfill_cancel({over}, 'test')")), "55000");
    let state: String = session.one("SELECT state FROM backfill.plans WHERE plan_id = $1", &[&over]);
    assert_eq!(state, "completed");
    for reason in ["NULL", "' '"] {
        let cancel = format!("SELECT backfill_cancel({retrying}, {reason})");
        assert_eq!(session.failure(&cancel).sqlstate, "22023");
    }
}

#[test]
fn a_plan_that_owns_a_window_can_be_cancelled_whatever_claims_have_reached() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.plan("2024-01-04", "");
    session.run("SELECT window_lock('daily', '2024-01-01', '2024-01-02', 'closed')");
    for _ in 0..2 {
        let lease = session.lease();
        session.replace(lease.token).unwrap();
    }
    // Claims have reached the end of the list, and passed over one.
    assert_eq!(
        session
            .lines(&format!("SELECT windows_freed, leases_revoked FROM backfill_cancel({plan}, 'enough')")),
        ["1|0"]
    );
    assert_eq!(session.lines("SELECT count(*) FROM backfill.owned_data"), ["0"]);
}

#[test]
fn a_plan_whose_windows_have_all_ended_cannot_be_cancelled() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.plan("2024-01-04", "");
    let named = session.try_claim("pipelines => '{daily}', window_key => '2024-01-03'").unwrap();
    session.replace(named[0].token).unwrap();
    session.run("SELECT window_skip('daily', '2024-01-01', '2024-01-03', 'holidays')");
    assert_eq!(session.lines("SELECT state FROM backfill.plans"), ["completed"]);
    let failure =
        assert_sqlstate!(session.try_run(&format!("SELECT backfill_cancel({plan}, 'why')")), "55000");
    assert!(failure.detail.contains("has ended"), "{failure}");
}

#[test]
fn skipped_windows_neither_wait_nor_are_freed() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.plan("2024-01-11", "");
    session.run("SELECT window_skip('daily', '2024-01-06', '2024-01-11', 'holidays')");
    let lease = session.lease();
    session.replace(lease.token).unwrap();
    assert_eq!(session.lines("SELECT waiting FROM backfill.pools WHERE pool = 'backfill'"), ["4"]);
    assert_eq!(session.lines(&format!("SELECT windows_freed FROM backfill_cancel({plan}, 'enough')")), ["4"]);
}

#[test]
fn a_drop_of_the_pipeline_cancels_what_is_left_of_its_plans() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('night', 2)");
    let over = session.plan("2024-01-02", ", pool => 'night'");
    let token = session.lease().token;
    session.call("finish", token);
    let paused = session.plan_window("2024-01-09");
    session.run(&format!("SELECT backfill_pause({paused}, 'test')"));
    let running = session.draft("'2024-01-02', '2024-01-06', 'test', pool => 'night'");
    session.approve(running).unwrap();
    let held = session.leases(2);
    assert_eq!(held.len(), 2);
    let draft = session.draft("'2024-02-01', '2024-02-06', 'test', pool => 'night'");
    session.run("SELECT pipeline_drop('daily')");

    let told = "SELECT plan_id, state, running, cancelled_by, cancel_reason FROM backfill.plans ORDER BY 1";
    let mut expected = vec![format!("{over}|completed|0||")];
    let cancelled = [paused, running.id, draft.id];
    expected.extend(cancelled.map(|plan| format!("{plan}|cancelled|0|postgres|the pipeline was dropped")));
    assert_eq!(session.lines(told), expected);
    let events = "SELECT plan_id, who, why FROM backfill.plan_events WHERE what = 'cancelled' ORDER BY 1";
    assert_eq!(
        session.lines(events),
        cancelled.map(|plan| format!("{plan}|postgres|the pipeline was dropped"))
    );
    let pools = "SELECT in_use, waiting FROM backfill.pools WHERE pool = 'night'";
    assert_eq!(session.lines(pools), ["0|0"]);
    assert_eq!(session.count("backfill.attention"), 0);
    for lease in held {
        assert_sqlstate!(session.replace(lease.token), "BF002");
    }
    for plan in cancelled {
        let cancel = format!("SELECT backfill_cancel({plan}, 'test')");
        let failure = assert_sqlstate!(session.try_run(&cancel), "55000");
        assert!(failure.detail.contains("\"cancelled\""), "{failure}");
    }
    assert_eq!(session.lines("SELECT pool_drop('night')"), ["dropped"]);
}

#[test]
fn a_plan_that_is_made_while_its_pipeline_is_dropped_is_cancelled_too_or_can_be() {
    let database = daily("");
    let (mut planner, mut owner) = (database.connect(), database.connect());
    let drop = "SELECT pipeline_drop('daily')";
    let state = |owner: &mut Session, plan: i64| -> String {
        owner.one("SELECT state FROM backfill.plans WHERE plan_id = $1", &[&plan])
    };
    planner.run("BEGIN");
    let approved = planner.plan("2024-01-03", "");
    waiting(&database, &mut owner, drop, || planner.run("COMMIT")).unwrap();
    assert_eq!(state(&mut owner, approved), "cancelled");

    define(&mut owner, "daily", "'1 day', '2024-01-01'", "");
    owner.run("BEGIN");
    owner.run(drop);
    let late = "SELECT backfill_plan('daily', NULL, '2024-01-03', 'test', expect => 2)";
    let late = waiting(&database, &mut planner, late, || owner.run("COMMIT"));
    assert_eq!(late.unwrap_err().sqlstate, "42704");

    // Nobody waits for the making of a draft.
    define(&mut owner, "daily", "'1 day', '2024-01-01'", "");
    planner.run("BEGIN");
    let draft = planner.draft("NULL, '2024-01-03', 'test'");
    owner.run(drop);
    planner.run("COMMIT");
    assert_sqlstate!(planner.approve(draft), "42704");
    planner.cancel(draft.id);
    assert_eq!(state(&mut owner, draft.id), "cancelled");
}
