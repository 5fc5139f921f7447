//! The story of the mission: two years of a daily pipeline, one unpause, fifty workers.

use crate::support::{Calls, define};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};

const DAYS: i64 = 730;

/// A daily pipeline that starts two years ago, and one with a window each second.
fn world() -> Database {
    let database = Cluster::shared().database();
    let mut owner = database.connect();
    owner.run("CREATE TABLE facts (at timestamptz NOT NULL, token bigint NOT NULL)");
    let start: String = owner.one("SELECT (current_date - 730)::text", &[]);
    let facts = format!("'1 day', '{start}', 'facts', 'at'");
    define(
        &mut owner,
        "daily",
        &facts,
        "expected_duration => '10 seconds', cost_per_hour => 3.6, backlog => 3",
    );
    owner.run("SELECT pool_define('backfill', 4)");
    database
}

fn claimable(session: &mut Session) -> usize {
    session.leases(1000).len()
}

#[test]
fn an_unpause_runs_nothing_and_a_plan_runs_exactly_what_was_approved() {
    let database = world();
    let mut person = database.connect();
    assert_eq!(claimable(&mut person), 0, "defined with an old start");
    person.run("SELECT pipeline_pause('daily', 'holidays')");
    let resumed = person.lines("SELECT missed, plan_id IS NOT NULL FROM pipeline_resume('daily')");
    assert_eq!(resumed, [format!("{DAYS}|t")]);
    assert_eq!(claimable(&mut person), 0, "unpaused");

    let plan = person.draft("NULL, NULL, 'new logic', concurrency => 4");
    assert_eq!(plan.windows, DAYS);
    let price =
        "SELECT (estimate->'windows')::int, (estimate->'sequential')::float8, (estimate->'parallel')::float8,
                        (estimate->'ordering_price')::float8, (estimate->'cost')::float8
                 FROM backfill.plans WHERE plan_id = $1";
    let shown = person.rows(price, &[&plan.id]);
    let seconds = |n: usize| shown[0].get::<_, f64>(n).round();
    assert_eq!(shown[0].get::<_, i32>(0) as i64, DAYS);
    // 730 windows of 10 s; 183 rounds of four.
    assert_eq!([seconds(1), seconds(2), seconds(3)], [7300.0, 1830.0, 5470.0]);
    assert!((shown[0].get::<_, f64>(4) - 7.3).abs() < 0.01);
    let page = person.lines(&format!("SELECT * FROM backfill_explain({})", plan.id)).join("\n");
    for told in ["730 windows", "price of ordering", "cost: 7.30"] {
        assert!(page.contains(told), "{told}:\n{page}");
    }
    let wrong =
        assert_sqlstate!(person.try_run(&format!("SELECT backfill_approve({}, 729)", plan.id)), "BF003");
    assert!(wrong.message.contains("730"), "{wrong}");
    assert_eq!(claimable(&mut person), 0, "not approved");
    person.approve(plan).unwrap();

    define(&mut person, "live", "'1 second', now()::timestamptz(0)", "backlog => 60, pool => 'live'");
    let over = AtomicBool::new(false);
    let most = database.many(51, |i, session| {
        let claim = "1, pipelines => ARRAY['daily', 'live']";
        let mut most = 0;
        while !over.load(Ordering::Relaxed) {
            if i == 50 {
                let held = "SELECT count(*) FROM backfill.leases WHERE pipeline = 'daily'";
                most = most.max(session.one::<i64>(held, &[]));
                let state: String =
                    session.one("SELECT state FROM backfill.plans WHERE plan_id = $1", &[&plan.id]);
                over.store(state == "completed", Ordering::Relaxed);
                continue;
            }
            for lease in session.try_claim(claim).unwrap_or_else(|failure| panic!("{failure}")) {
                // What a window takes.
                session.run("SELECT pg_sleep(0.01)");
                session.call("finish", lease.token);
            }
        }
        most
    });
    assert!((1..=4).contains(&most[50]), "{} leases were seen at once", most[50]);
    assert!(person.most_at_once("pipeline = 'daily'") <= 4);
    let runs = "SELECT count(*), count(DISTINCT window_key), max(attempt) FROM backfill.runs WHERE pipeline = 'daily'";
    assert_eq!(person.lines(runs), [format!("{DAYS}|{DAYS}|1")]);
    person.assert_one_lease_per_window();
    // Meanwhile each second had its window: none was a minute late, or it would have been missed.
    let live = "SELECT count(*) > 1, count(*) = max(extract(epoch FROM window_start)) - min(extract(epoch FROM window_start)) + 1
                FROM backfill.runs WHERE pipeline = 'live'";
    assert_eq!(person.lines(live), ["t|t"]);
    assert_eq!(person.count("backfill.missed WHERE pipeline = 'live'"), 0);
}

#[test]
fn the_windows_of_a_cancelled_plan_can_be_planned_again_at_once() {
    let database = world();
    let mut person = database.connect();
    let plan = person.draft("NULL, NULL, 'first try'");
    person.approve(plan).unwrap();
    let held = person.leases(4);
    person.run("SET lock_timeout = '1s'");
    person.cancel(plan.id);
    let again = person.draft("NULL, NULL, 'second try'");
    assert_eq!(again.windows, DAYS);
    person.approve(again).unwrap();
    assert_sqlstate!(person.replace(held[0].token), "BF002");
    wait_until("the permits are free", || claimable(&mut person) > 0);
}
