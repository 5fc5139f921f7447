//! Caps that people change while claims go on.

use crate::support::{Calls, Lease, daily};
use pgrx_tests::{Database, Session};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The three caps, each with what defines it as 4 and what makes it 1.
const CAPS: [(&str, &str, &str); 3] = [
    ("pool", "pool_define('backfill', 4)", "pool_define('backfill', 1)"),
    ("plan", "backfill_adjust(1, 4)", "backfill_adjust(1, 1)"),
    (
        "pipeline",
        r#"pipeline_alter('daily', '{"max_active": 4}')"#,
        r#"pipeline_alter('daily', '{"max_active": 1}')"#,
    ),
];

/// A pipeline with windows to hand out, of which four may be leased because of that cap, and otherwise eight.
fn capped(cap: &str, four: &str) -> Database {
    let live = "catchup => 20, max_active => 8";
    let database = daily(if cap == "pipeline" { live } else { "" });
    let mut operator = database.connect();
    operator.run("SELECT pool_define('backfill', 8), pool_define('live', 8)");
    if cap != "pipeline" {
        operator.plan("2024-01-31", ", concurrency => 8");
    }
    operator.run(&format!("SELECT {four}"));
    database
}

/// Which slot of the cap a lease holds.
fn slot(session: &mut Session, cap: &str, lease: &Lease) -> i32 {
    let column = if cap == "pool" { "pool_slot" } else { "limit_slot" };
    session.one(&format!("SELECT {column} FROM backfill.run_data WHERE token = $1"), &[&lease.token])
}

#[test]
fn a_claim_that_is_not_committed_counts_where_the_cap_was_lowered_meanwhile() {
    for (cap, four, one) in CAPS {
        let database = capped(cap, four);
        let (mut open, mut other) = (database.connect(), database.connect());
        // The slot that is free is the highest one.
        let (highest, rest): (Vec<_>, Vec<_>) =
            other.leases(8).into_iter().partition(|lease| slot(&mut open, cap, lease) == 4);
        assert_eq!((highest.len(), rest.len()), (1, 3), "{cap}");
        other.call("release", highest[0].token);
        open.run("BEGIN");
        let held = open.lease();
        rest.iter().for_each(|lease| other.call("finish", lease.token));
        other.run(&format!("SELECT {one}"));
        assert_eq!(other.claim(), None, "{cap}: one is held, though nobody sees it yet");
        open.run("COMMIT");
        assert_eq!(other.claim(), None, "{cap}");
        other.call("finish", held.token);
        assert_eq!(other.leases(9).len(), 1, "{cap}");
    }
}

#[test]
fn a_claim_with_an_older_snapshot_sees_who_holds_a_slot_above_a_lowered_cap() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for (cap, four, one) in CAPS {
            let database = capped(cap, four);
            let (mut old, mut new, mut judge) = (database.connect(), database.connect(), database.connect());
            // Since its snapshot, nothing but the highest slot was taken.
            loop {
                old.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM backfill.runs"));
                let lease = new.lease();
                if slot(&mut judge, cap, &lease) == 4 {
                    break;
                }
                new.call("release", lease.token);
                old.run("ROLLBACK");
            }
            new.run(&format!("SELECT {one}"));
            match old.try_claim("9, pipelines => ARRAY['daily']") {
                Ok(had) => assert_eq!(had, [], "{level}, {cap}"),
                Err(failure) => assert_eq!(failure.sqlstate, "40001", "{level}, {cap}"),
            }
        }
    }
}

/// Microseconds of the server's clock.
fn clock(session: &mut Session) -> i64 {
    session.one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", &[])
}

/// A cap from the moment when the call that set it began.
#[derive(Debug, Clone, Copy)]
struct Change {
    began: i64,
    ended: i64,
    cap: i64,
}

/// The highest cap that may have been in force at some moment of the two and between them: the old one until the
/// call that changed it had ended, the new one since it began.
fn highest_between(changes: &[Change], from: i64, to: i64) -> i64 {
    let until = |i: usize| changes.get(i + 1).map_or(i64::MAX, |next| next.ended);
    let in_force = (0..changes.len()).filter(|i| changes[*i].began <= to && until(*i) >= from);
    in_force.map(|i| changes[i].cap).max().expect("there always is a cap")
}

/// Changes a cap up and down until the work is done.
fn change_until(
    session: &mut Session,
    call: &str,
    caps: &[i64],
    over: impl Fn(&mut Session) -> bool,
) -> Vec<Change> {
    let mut changes = vec![];
    for cap in caps.iter().cycle() {
        let began = if changes.is_empty() { 0 } else { clock(session) };
        session.run(&format!("SELECT {}", call.replace("{}", &cap.to_string())));
        changes.push(Change { began, ended: clock(session), cap: *cap });
        if over(session) {
            return changes;
        }
    }
    unreachable!("a cycle does not end");
}

#[test]
fn no_claim_is_granted_above_the_cap_that_was_in_force_however_caps_change_meanwhile() {
    const WINDOWS: usize = 500;
    let database = daily("");
    let mut judge = database.connect();
    judge.run("SELECT pool_define('backfill', 6)");
    let plan = judge.plan("2025-05-15", ", concurrency => 6");
    let began = Mutex::new(HashMap::new());
    let done = AtomicUsize::new(0);
    let is_over = |_: &mut Session| done.load(Ordering::Relaxed) >= WINDOWS;
    let changes = database.many(10, |i, session| match i {
        0 => change_until(session, "pool_define('backfill', {})", &[6, 2, 5, 1, 4, 3], is_over),
        1 => change_until(session, &format!("backfill_adjust({plan}, {{}})"), &[6, 1, 4, 2, 5], is_over),
        _ => {
            while !is_over(session) {
                let now = clock(session);
                let leases = session.leases(1 + i % 3);
                began.lock().unwrap().extend(leases.iter().map(|lease| (lease.token, now)));
                for lease in leases {
                    session.run("SELECT pg_sleep(0.001)");
                    session.call("finish", lease.token);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            vec![]
        }
    });
    let began = began.into_inner().unwrap();
    // started_at is read after the permits are held and finished_at before they are given back: no more were held
    // than this counts at least.
    let grants = judge.rows(
        "SELECT r.token, (extract(epoch FROM r.started_at) * 1000000)::bigint,
                (SELECT count(*) FROM backfill.runs o WHERE o.started_at <= r.started_at AND o.finished_at > r.started_at)
         FROM backfill.runs r",
        &[],
    );
    assert_eq!(grants.len(), WINDOWS);
    for grant in &grants {
        let (token, started, held): (i64, i64, i64) = (grant.get(0), grant.get(1), grant.get(2));
        for (name, changes) in ["pool", "plan"].iter().zip(&changes) {
            let cap = highest_between(changes, began[&token], started);
            assert!(held <= cap, "token {token} made {held} leases in a {name} of {cap}");
        }
    }
    let ups_and_downs = changes[0].len().min(changes[1].len());
    assert!(ups_and_downs > 20, "only {ups_and_downs} changes");
    assert_eq!(judge.lines("SELECT state, done FROM backfill.plans"), [format!("completed|{WINDOWS}")]);
    judge.assert_one_lease_per_window();
}

#[test]
fn the_highest_cap_of_a_time_is_found() {
    let change = |began, ended, cap| Change { began, ended, cap };
    let changes = [change(0, 1, 6), change(10, 12, 2), change(20, 22, 4)];
    for ((from, to), highest) in
        [((3, 5), 6), ((3, 30), 6), ((11, 15), 6), ((13, 15), 2), ((13, 20), 4), ((23, 30), 4)]
    {
        assert_eq!(highest_between(&changes, from, to), highest, "{from} to {to}");
    }
}
