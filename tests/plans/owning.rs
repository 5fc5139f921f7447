//! One owner a window.

use crate::plans::declined;
use crate::support::{Calls, LEVELS, Plan, assert_lost, daily, waiting};
use pgrx_tests::{Session, assert_sqlstate};

/// Two drafts that share windows.
fn overlapping(session: &mut Session) -> [Plan; 2] {
    ["'2024-01-01', '2024-01-11', 'test'", "'2024-01-05', '2024-01-16', 'test'"]
        .map(|bounds| session.draft(bounds))
}

#[test]
fn a_plan_cannot_be_approved_over_windows_that_another_one_owns() {
    let database = daily("");
    let mut session = database.connect();
    let [first, second] = overlapping(&mut session);
    session.approve(second).unwrap();
    let failure = assert_sqlstate!(session.approve(first), "BF009");
    let named = failure.detail.contains(&format!("plan {}", second.id));
    assert!(named && failure.detail.contains("2024-01-05"), "{failure}");
    assert_eq!(session.count("backfill.plan_window_data"), second.windows);
    // Which is let go by a cancel.
    session.cancel(second.id);
    session.approve(first).unwrap();
}

#[test]
fn of_two_approvals_at_once_one_wins_at_every_level() {
    for level in LEVELS {
        let database = daily("");
        let (mut a, mut b) = (database.connect(), database.connect());
        let [first, second] = overlapping(&mut a);
        for session in [&mut a, &mut b] {
            session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
            session.run("SELECT count(*) FROM backfill.plans");
        }
        a.approve(first).unwrap();
        let approve = format!("SELECT backfill_approve({}, {})", second.id, second.windows);
        let late = waiting(&database, &mut b, &approve, || a.run("COMMIT"));
        assert_lost(&late.unwrap_err(), level, "BF009");
        b.run("ROLLBACK");
        let states = "SELECT state FROM backfill.plans ORDER BY plan_id";
        assert_eq!(b.lines(states), ["approved", "draft"]);
    }
}

#[test]
fn of_racing_approvals_exactly_one_wins() {
    let database = daily("");
    let mut judge = database.connect();
    for _ in 0..10 {
        let plans = [overlapping(&mut judge), overlapping(&mut judge)].concat();
        let won = database.many(4, |i, session| {
            session.approve(plans[i]).map(|()| plans[i]).map_err(|failure| failure.sqlstate.clone())
        });
        let lost = won.iter().filter(|won| **won == Err("BF009".into())).count();
        let won: Vec<Plan> = won.into_iter().flatten().collect();
        assert_eq!((won.len(), lost), (1, 3));
        judge.cancel(won[0].id);
    }
}

#[test]
fn of_two_approvals_of_one_draft_one_wins() {
    for level in LEVELS {
        let database = daily("");
        let (mut a, mut b) = (database.connect(), database.connect());
        let plan = a.draft("NULL, '2024-01-11', 'test'");
        b.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM backfill.plans"));
        a.run("BEGIN");
        a.approve(plan).unwrap();
        let approve = format!("SELECT backfill_approve({}, {})", plan.id, plan.windows);
        let late = waiting(&database, &mut b, &approve, || a.run("COMMIT"));
        assert_lost(&late.unwrap_err(), level, "55000");
        b.run("ROLLBACK");
        assert_eq!(b.count("backfill.plan_window_data"), 10);
    }
}

#[test]
fn an_owned_window_runs_only_by_its_plan_and_gets_its_live_right_back() {
    let database = daily("catchup => 3");
    let mut session = database.connect();
    let plan = session.draft("current_date - 3, NULL, 'test', concurrency => 1");
    session.approve(plan).unwrap();
    let live = "1, pools => ARRAY['live'], pipelines => ARRAY['daily']";
    assert_eq!(session.try_claim(live).unwrap(), []);
    let started = session.lease();
    assert_eq!(session.claim(), None);
    session.cancel(plan.id);
    session.run(r#"SELECT pipeline_alter('daily', '{"max_active": 9}')"#);
    let again = session.all_of("daily");
    assert!(again.iter().all(|lease| lease.run_kind == "catchup"), "{again:?}");
    assert_eq!(again.len(), 2, "those that the plan never started");
    assert_eq!(session.state(&started.key), "missed");
}

#[test]
fn a_plan_lets_go_of_each_window_as_it_ends() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    session.plan("2024-01-05", "");
    let [done, failed, refused, _open] = session.leases(4).try_into().unwrap();
    session.call("finish", done.token);
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", failed.token));
    session.run(&format!("SELECT backfill_fail({}, 'no', sqlstate => 'BF006')", refused.token));
    let all = "NULL, '2024-01-05', 'test'";
    assert_eq!(declined(&mut session, all), ["owned by plan 1|1"]);
    session.run("SELECT window_skip('daily', '2024-01-04', '2024-01-05', 'test')");
    assert_eq!(declined(&mut session, all), ["skipped|1"]);
    let plan = "SELECT state, windows, done, failed, skipped FROM backfill.plans WHERE plan_id = 1";
    assert_eq!(session.lines(plan), ["partial|4|1|2|1"]);
}

/// What another plan has built since is not built again by the one that was done with it before.
#[test]
fn a_plan_does_not_come_back_to_a_window_that_another_one_took_over() {
    for (settings, by_key) in [(", canary => 1", "2024-01-01"), ("", "2024-01-03")] {
        let database = daily("");
        let mut session = database.connect();
        let first = session.draft(&format!("'2024-01-01', '2024-01-04', 'first' {settings}"));
        session.approve(first).unwrap();
        let own = session.try_claim(&format!("pipelines => '{{daily}}', window_key => '{by_key}'")).unwrap();
        session.replace(own[0].token).unwrap();
        let second = session.plan_window(by_key);
        let again =
            session.try_claim(&format!("pipelines => '{{daily}}', window_key => '{by_key}'")).unwrap();
        assert_eq!(again[0].plan_id, Some(second));
        session.replace(again[0].token).unwrap();
        session.run("SELECT backfill_resume(1)");
        let rest = session.all_of("daily");
        assert!(rest.iter().all(|lease| lease.key != by_key && lease.plan_id == Some(first.id)), "{rest:?}");
        assert_eq!(rest.len(), 2);
        assert_eq!(
            session.lines("SELECT state, done FROM backfill.plans ORDER BY plan_id"),
            ["running|1", "completed|1"]
        );
    }
}
