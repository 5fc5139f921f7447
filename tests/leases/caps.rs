//! One lease a window, and never more than a cap allows.

use crate::support::{Calls, LEVELS, daily, define};
use pgrx_tests::{Database, assert_sqlstate, wait_until};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Three locks a window, of a table that all transactions of the server share.
#[test]
fn the_claims_of_one_transaction_fill_a_part_of_the_lock_table() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 10000)");
    define(&mut session, "minutely", "'1 minute', now() - interval '10000 minutes'", "backlog => 0");
    session.run("SELECT backfill_plan('minutely', NULL, NULL, 'test', expect => 10000)");
    let claim = "SELECT count(*) FROM backfill_claim('test', 1000, pipelines => ARRAY['minutely'])";
    session.run("BEGIN");
    let granted = session.one::<i64>(claim, &[]);
    let held = "pg_locks WHERE pid = pg_backend_pid() AND classid = 'backfill.run_data'::regclass";
    let table = "SELECT current_setting('max_locks_per_transaction')::bigint * current_setting('max_connections')::bigint";
    let table: i64 = session.one(table, &[]);
    assert!((table / 48..table / 12).contains(&granted), "{granted} windows, {table} locks");
    let held = session.count(held);
    assert!((3 * granted..3 * granted + 5).contains(&held), "{held} locks for {granted} windows");
    for _ in 0..5 {
        assert_eq!(session.one::<i64>(claim, &[]), 0, "the transaction has its share");
    }
    session.run("COMMIT");
    assert_eq!(session.one::<i64>(claim, &[]), granted, "another one has its own");
    for n in [0, 1001] {
        assert_sqlstate!(session.try_claim(&n.to_string()), "22023");
    }
}

#[test]
fn two_hundred_windows_and_twenty_workers_give_two_hundred_leases_within_the_caps() {
    let database = daily("");
    let mut operator = database.connect();
    operator.run("SELECT pool_define('backfill', 5)");
    let first = operator.plan("2024-04-10", ", concurrency => 3");
    let second = operator.plan("2024-07-19", ", mode => 'missing', concurrency => 3");
    let done = AtomicUsize::new(0);
    let held = database.many(21, |i, session| {
        let mut most = 0;
        wait_until("all windows are done", || {
            if i == 20 {
                let held = "SELECT in_use FROM backfill.pools WHERE pool = 'backfill'";
                most = most.max(session.one::<i64>(held, &[]));
            } else {
                for lease in session.leases(1 + i % 3) {
                    session.call("finish", lease.token);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            done.load(Ordering::Relaxed) >= 200
        });
        most
    });
    assert!(held[20] <= 5, "{} slots of 5 were held", held[20]);
    operator.assert_one_lease_per_window();
    let runs = "SELECT count(*), count(DISTINCT window_key), max(attempt) FROM backfill.runs";
    assert_eq!(operator.lines(runs), ["200|200|1"]);
    for plan in [first, second] {
        assert!(operator.most_at_once(&format!("plan_id = {plan}")) <= 3);
    }
    assert!(operator.most_at_once("true") <= 5);
    let states = "SELECT DISTINCT state FROM backfill.plans";
    assert_eq!(operator.lines(states), ["completed"]);
}

#[test]
fn the_tightest_of_the_limits_applies_and_only_where_it_should() {
    for (slots, concurrency, granted) in [(3, 2, 2), (2, 3, 2), (0, 5, 0), (5, 5, 5)] {
        let database = daily("");
        let mut worker = database.connect();
        worker.run(&format!("SELECT pool_define('backfill', {slots})"));
        worker.plan("2024-01-11", &format!(", concurrency => {concurrency}"));
        let all = worker.all_of("daily");
        assert_eq!(all.len(), granted, "{slots} slots, concurrency {concurrency}");
    }
}

#[test]
fn a_full_plan_hides_no_other_work() {
    let database = daily("catchup => 5, max_active => 2");
    let mut worker = database.connect();
    let full = worker.plan("2024-01-11", ", concurrency => 1, priority => 9");
    let other = worker.plan("2024-01-21", ", mode => 'missing', concurrency => 1");
    let leases = worker.all_of("daily");
    let of = |plan| leases.iter().filter(|lease| lease.plan_id == plan).count();
    assert_eq!((of(None), of(Some(full)), of(Some(other))), (2, 1, 1));
    // Scheduled work comes first, then plans by priority.
    let order: Vec<_> = leases.iter().map(|lease| lease.plan_id).collect();
    assert_eq!(order, [None, None, Some(full), Some(other)]);
}

#[test]
fn one_batch_respects_every_cap() {
    let database = daily("catchup => 9, max_active => 2");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 4)");
    worker.plan("2024-01-11", ", concurrency => 3");
    worker.plan("2024-01-21", ", mode => 'missing', concurrency => 3");
    let batch = worker.leases(100);
    let live = batch.iter().filter(|lease| lease.plan_id.is_none()).count();
    assert_eq!((live, batch.len()), (2, 6));
    assert_eq!(worker.claim(), None);
}

#[test]
fn a_lowered_pool_ends_nothing_and_grants_nothing_until_fewer_are_held() {
    let database = daily("");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 4)");
    worker.plan("2024-01-31", ", concurrency => 9");
    let held = worker.leases(9);
    assert_eq!(held.len(), 4);
    worker.run("SELECT pool_define('backfill', 2)");
    for lease in &held[..3] {
        assert_eq!(worker.claim(), None);
        worker.call("finish", lease.token);
    }
    // One is held, so one is free, whichever slot it is.
    assert_eq!(worker.leases(9).len(), 1);
    worker.run("SELECT pool_define('backfill', 5)");
    assert_eq!(worker.leases(9).len(), 3);
}

#[test]
fn a_lowered_max_active_ends_nothing_and_grants_nothing_until_fewer_are_held() {
    let database = daily("catchup => 20, max_active => 3");
    let mut worker = database.connect();
    let held = worker.leases(9);
    assert_eq!(held.len(), 3);
    worker.run(r#"SELECT pipeline_alter('daily', '{"max_active": 1}')"#);
    for lease in &held {
        assert_eq!(worker.claim(), None);
        worker.call("release", lease.token);
    }
    assert_eq!(worker.leases(9).len(), 1);
}

/// One slot, of either cap, for a plan of thirty windows.
fn one_slot(cap: &str) -> Database {
    let database = daily("");
    let mut operator = database.connect();
    let (slots, concurrency) = if cap == "pool" { (1, 9) } else { (9, 1) };
    operator.run(&format!("SELECT pool_define('backfill', {slots})"));
    operator.plan("2024-01-31", &format!(", concurrency => {concurrency}"));
    database
}

fn day(n: usize) -> String {
    format!("1, pipelines => ARRAY['daily'], window_key => '2024-01-{n:02}'")
}

#[test]
fn claims_of_different_windows_that_meet_at_the_last_slot_cannot_both_have_it() {
    for cap in ["pool", "plan"] {
        let database = one_slot(cap);
        let mut operator = database.connect();
        let had = database.many(8, |i, session| {
            let mut had = 0;
            for _ in 0..40 {
                for lease in session.try_claim(&day(1 + i)).unwrap() {
                    session.call("release", lease.token);
                    had += 1;
                }
            }
            had
        });
        assert!(had.iter().sum::<i32>() > 0);
        assert_eq!(operator.most_at_once("true"), 1, "{cap}");
    }
}

#[test]
fn claims_of_one_transaction_keep_to_the_caps_too() {
    for cap in ["pool", "plan"] {
        let database = one_slot(cap);
        let mut worker = database.connect();
        worker.run("BEGIN");
        worker.lease();
        assert_eq!(worker.claim(), None);
        worker.run("SAVEPOINT s");
        assert_eq!(worker.claim(), None);
        worker.run("ROLLBACK TO s; COMMIT");
        assert_eq!(worker.most_at_once("true"), 1);
    }
}

#[test]
fn a_claim_with_an_older_snapshot_does_not_take_a_slot_that_is_held_since() {
    for level in LEVELS {
        for cap in ["pool", "plan"] {
            let database = one_slot(cap);
            let (mut old, mut new) = (database.connect(), database.connect());
            let first = new.lease();
            new.call("finish", first.token);
            old.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM backfill.runs"));
            new.lease();
            match old.try_claim(&day(9)) {
                Ok(had) => assert_eq!(had, [], "{level}, {cap}"),
                Err(failure) => assert_eq!((failure.sqlstate.as_str(), level != LEVELS[0]), ("40001", true)),
            }
        }
    }
}

#[test]
fn a_slow_window_holds_up_no_other() {
    let database = daily("");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 4)");
    worker.plan("2024-02-20", "");
    let mut held = worker.leases(9);
    let slow = held.remove(0);
    let mut done = 0;
    while let Some(lease) = held.pop() {
        worker.call("finish", lease.token);
        done += 1;
        // What it gave back is taken at once.
        held.extend(worker.leases(9));
        assert_eq!(held.len(), 3.min(49 - done));
    }
    assert_eq!(done, 49);
    assert_eq!(worker.state(&slow.key), "leased");
    worker.call("finish", slow.token);
    assert_eq!(worker.lines("SELECT state, done FROM backfill.plans"), ["completed|50"]);
}
