//! Pipelines whose windows depend on the one before.

use crate::support::{Calls, daily, define};
use pgrx_tests::{Session, assert_sqlstate};

const CHAIN: &str = "depends_on_past => true, catchup => 5";

fn sequential(session: &mut Session, since: &str, until: &str, more: &str) -> i64 {
    let plan = session.draft(&format!("'{since}', '{until}', 'test', ordering => 'sequential' {more}"));
    session.approve(plan).unwrap();
    plan.id
}

fn states(session: &mut Session, until: &str) -> Vec<String> {
    session.lines(&format!("SELECT state FROM pipeline_windows('daily', NULL, '{until}')"))
}

#[test]
fn a_window_waits_for_the_one_before_it() {
    let database = daily(CHAIN);
    let mut session = database.connect();
    // Live windows rest on missed ones.
    assert_eq!(session.claim(), None);
    sequential(&mut session, "2024-01-01", "2024-01-05", "");
    assert_eq!(states(&mut session, "2024-01-06"), ["queued", "blocked", "blocked", "blocked", "missed"]);
    let why: String = session.one("SELECT window_why('daily', '2024-01-03')", &[]);
    assert!(why.contains("2024-01-01"), "{why}");
    for key in ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"] {
        let lease = session.lease();
        assert_eq!(lease.key, key);
        assert_eq!(session.leases(9), [], "one lease at a time");
        session.replace(lease.token).unwrap();
    }
    assert_eq!(session.claim(), None);
    assert_eq!(session.lines("SELECT state FROM backfill.plans"), ["completed"]);
}

#[test]
fn a_failed_window_is_in_the_way_until_it_is_retried_or_skipped() {
    let database = daily("depends_on_past => true, max_attempts => 1");
    let mut session = database.connect();
    let plan = sequential(&mut session, "2024-01-01", "2024-01-05", "");
    let lease = session.lease();
    session.replace(lease.token).unwrap();
    let lease = session.lease();
    assert_eq!(session.fail(lease.token), "failed");
    assert_eq!(session.claim(), None);
    assert_eq!(states(&mut session, "2024-01-05"), ["done", "failed", "blocked", "blocked"]);
    assert_eq!(session.lines(&format!("SELECT backfill_retry({plan})")), ["1"]);
    let lease = session.lease();
    assert_eq!(lease.key, "2024-01-02");
    session.fail(lease.token);
    session.run("SELECT window_skip('daily', '2024-01-02', '2024-01-03', 'no source')");
    let lease = session.lease();
    assert_eq!(lease.key, "2024-01-03");
    session.replace(lease.token).unwrap();
}

#[test]
fn live_work_and_plans_share_one_lease() {
    let database = daily(CHAIN);
    let mut session = database.connect();
    let due: i64 = session.one("SELECT count(*) FROM pipeline_windows('daily')", &[]);
    let plan: i64 = session.one(
        "SELECT plan_id FROM backfill_plan('daily', NULL, NULL, 'test', ordering => 'sequential', expect => $1)",
        &[&due],
    );
    let mut done = 0;
    while done < due - 2 {
        let lease = session.lease();
        session.call("finish", lease.token);
        done += 1;
    }
    session.cancel(plan);
    // The two newest go on by themselves, one after the other.
    let live = session.lease();
    assert_eq!((live.run_kind.as_str(), live.plan_id), ("catchup", None));
    sequential(&mut session, "2024-01-01", "2024-01-03", "");
    assert_eq!(session.claim(), None, "a plan's window waits for the live lease");
    session.call("finish", live.token);
    let of_plan = session.leases(9);
    assert_eq!(of_plan.len(), 1);
    let other = session.claim();
    assert_eq!(other, None, "and a live window for the plan's");
}

#[test]
fn eight_workers_build_a_chain_in_order_at_every_level() {
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        let database = daily("depends_on_past => true, lease_for => '5 seconds'");
        let mut session = database.connect();
        let plan = sequential(&mut session, "2024-01-01", "2024-02-10", "");
        database.many(8, |_, worker| {
            worker.run(&format!("SET default_transaction_isolation = '{level}'"));
            let left = "SELECT count(*) FROM backfill.plans WHERE state IN ('approved', 'running')";
            while worker.one::<i64>(left, &[]) > 0 {
                let Ok(leases) = worker.try_claim("3, pipelines => ARRAY['daily']") else { continue };
                assert!(leases.len() <= 1);
                for lease in leases {
                    worker.replace(lease.token).unwrap();
                }
            }
        });
        assert_eq!(session.most_at_once(&format!("plan_id = {plan}")), 1, "{level}");
        let order = "SELECT bool_and(window_start > before) FROM (
            SELECT window_start, lag(window_start, 1, '-infinity') OVER (ORDER BY started_at) AS before FROM backfill.runs) r";
        assert!(session.one::<bool>(order, &[]));
        assert_eq!(session.lines("SELECT count(*), max(attempt) FROM backfill.runs"), ["40|1"]);
        session.assert_data_is_the_ledger();
    }
}

#[test]
fn a_dead_lease_of_another_source_is_not_in_the_way_for_ever() {
    let database = daily("depends_on_past => true, lease_for => '1 second'");
    let mut session = database.connect();
    sequential(&mut session, "2024-01-01", "2024-01-03", "");
    let lease = session.lease();
    session.let_expire(lease.token);
    let again = session.lease();
    assert_eq!((again.key, again.attempt), (lease.key, 2));
    assert_sqlstate!(session.replace(lease.token), "BF001");
}

#[test]
fn a_slice_that_changes_makes_the_later_ones_stale() {
    let database = daily("depends_on_past => true");
    let mut session = database.connect();
    sequential(&mut session, "2024-01-01", "2024-01-05", "");
    while let Some(lease) = session.claim() {
        session.replace(lease.token).unwrap();
    }
    assert_eq!(states(&mut session, "2024-01-05"), ["done"; 4]);
    // The same rows again change nothing.
    let again = |session: &mut Session, rows: &str| {
        let lease = session.lease();
        session.run(&format!(
            "SELECT replace_partition({}, query => 'SELECT $1, 1::bigint {rows}')",
            lease.token
        ));
    };
    let plan =
        |session: &mut Session| sequential(session, "2024-01-01", "2024-01-02", ", allow_shrink => 'test'");
    plan(&mut session);
    again(&mut session, "");
    assert_eq!(states(&mut session, "2024-01-05"), ["done", "stale", "stale", "stale"]);
    let estimate = "SELECT estimate->'becomes_stale'->>'windows' FROM backfill_plan('daily', '2024-01-01', '2024-01-02', 'test', ordering => 'sequential')";
    assert_eq!(session.lines(estimate), ["3"]);
    // One that is built again is good, those behind it are not.
    let rest = session.draft(
        "NULL, '2024-01-05', 'test', mode => 'stale', ordering => 'sequential', allow_shrink => 'test'",
    );
    assert_eq!(rest.windows, 3);
    session.approve(rest).unwrap();
    again(&mut session, "");
    assert_eq!(states(&mut session, "2024-01-05"), ["done", "done", "queued", "blocked"]);
    session.cancel(rest.id);
    assert_eq!(states(&mut session, "2024-01-05"), ["done", "done", "stale", "stale"]);
    plan(&mut session);
    again(&mut session, "");
    assert_eq!(states(&mut session, "2024-01-05"), ["done", "done", "stale", "stale"], "unchanged");
    // Skipping one marks the later ones.
    session.run("SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'withdrawn')");
    assert_eq!(states(&mut session, "2024-01-05"), ["skipped", "stale", "stale", "stale"]);
}

#[test]
fn other_orders_and_more_at_once_are_refused() {
    let database = daily("depends_on_past => true");
    let mut session = database.connect();
    for more in ["", ", ordering => 'newest_first'", ", ordering => 'sequential', concurrency => 2"] {
        let plan = format!("SELECT backfill_plan('daily', NULL, '2024-01-05', 'test' {more})");
        assert_sqlstate!(session.try_run(&plan), "22023");
    }
    let define =
        "SELECT pipeline_define('two', '1 day', '2024-01-01', depends_on_past => true, max_active => 2)";
    assert_sqlstate!(session.try_run(define), "22023");
    let plan = sequential(&mut session, "2024-01-01", "2024-01-05", "");
    assert_sqlstate!(session.try_run(&format!("SELECT backfill_adjust({plan}, 2)")), "22023");
    // What pipeline_resume drafts can be approved.
    session.run("SELECT pipeline_pause('daily', 'test')");
    let draft: i64 = session.one("SELECT plan_id FROM pipeline_resume('daily')", &[]);
    let approve = "SELECT backfill_approve(plan_id, windows) FROM backfill.plans WHERE plan_id = $1";
    assert_eq!(session.one::<String>(approve, &[&draft]), "approved");
}

#[test]
fn a_sequential_plan_of_other_windows_runs_one_at_a_time_in_order() {
    let database = daily("max_attempts => 2, retry_delay => '0'");
    let mut session = database.connect();
    define(&mut session, "other", "'1 day', '2024-01-01'", "");
    sequential(&mut session, "2024-01-01", "2024-01-04", "");
    let lease = session.lease();
    assert_eq!(session.claim(), None);
    session.fail(lease.token);
    let again = session.lease();
    assert_eq!((again.key, again.attempt), ("2024-01-01".to_owned(), 2));
    assert_eq!(session.fail(again.token), "failed");
    // What has failed for good holds up nothing: these windows do not depend on each other.
    assert_eq!(session.lease().key, "2024-01-02");
}

#[test]
fn pipelines_do_not_block_each_other() {
    let database = daily("depends_on_past => true, max_attempts => 1");
    let mut session = database.connect();
    let past_its_end = "'1 day', current_date - 2";
    define(&mut session, "other", past_its_end, "depends_on_past => true, catchup => 2, backlog => 0");
    for _ in 0..2 {
        let lease = session.try_claim("1, pipelines => ARRAY['other']").unwrap().remove(0);
        session.call("finish", lease.token);
    }
    sequential(&mut session, "2024-01-01", "2024-01-05", "");
    let both = "9, pipelines => ARRAY['daily', 'other']";
    let blocked = "SELECT DISTINCT b.pipeline, b.blocked_by, w.state FROM backfill.blocked b
                   JOIN pipeline_windows('daily') w ON b.blocked_by = 'window ' || w.window_key";
    // Nothing is left of the one. Of the other one window at a time can be had, and a real one is in the way.
    for key in ["2024-01-01", "2024-01-02", "2024-01-03"] {
        let leases = session.try_claim(both).unwrap();
        assert_eq!(leases.iter().map(|lease| lease.key.as_str()).collect::<Vec<_>>(), [key]);
        assert_eq!(session.lines(blocked), [format!("daily|window {key}|leased")]);
        session.call("finish", leases[0].token);
    }
    let lease = session.lease();
    session.fail(lease.token);
    assert_eq!(session.try_claim(both).unwrap(), []);
    assert_eq!(session.count("backfill.blocked"), 0, "nothing waits behind the last one of the plan");
}
