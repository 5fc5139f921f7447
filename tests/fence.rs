//! The fence: of two attempts at a window one wins, and whatever ends a right in time ends its COMMIT too.

mod detours;
mod ended_rights;
mod one_token;
mod several_gates;
mod two_tokens;

use crate::support::{Calls, LEVELS, Lease, daily, impatient};
use pgrx_tests::{Database, Session};
use std::thread;

/// Runs a test under each isolation level, side by side since most of it is waiting.
fn under_every_level(test: impl Fn(&str) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for level in LEVELS {
            scope.spawn(move || test(level));
        }
    });
}

/// Begins a transaction, and has it take its snapshot.
fn begin(session: &mut Session, level: &str) {
    session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
    session.run("SELECT count(*) FROM facts, backfill.runs");
}

/// The first window is what this token wrote, once.
#[track_caller]
fn assert_won(database: &Database, token: i64) {
    let mut judge = database.connect();
    let rows = "SELECT count(*), min(token), max(token) FROM facts";
    assert_eq!(judge.lines(rows), [format!("4|{token}|{token}")]);
    assert_eq!(judge.lines("SELECT token, rows FROM backfill.slices"), [format!("{token}|4")]);
    judge.assert_data_is_the_ledger();
}

/// The window 2024-01-01 holds a slice, and is leased again under a plan.
fn rebuilding() -> (Database, Session, Session, i64, Lease) {
    let database = daily("");
    let (mut worker, operator) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let before = worker.lease().token;
    worker.replace(before).unwrap();
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    (database, worker, operator, before, lease)
}
