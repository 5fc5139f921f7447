//! Tables that several code versions wrote: which of them go together, and where that is refused.

mod compatible;
mod pinning;
mod racing;
mod refusing;
mod walking;

use crate::support::{Calls, daily, replacing_with};
use pgrx_tests::{Database, Failure, Session};

/// `daily` for unpinned workers, with all windows of January in an approved plan.
fn january(on_mixture: &str) -> (Database, Session) {
    let database = daily(&format!("backlog => 0, on_mixture => '{on_mixture}'"));
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 32)");
    session.plan("2024-02-01", "");
    (database, session)
}

/// The token of a window of January, if a worker of that version gets it.
fn lease(session: &mut Session, day: i32, version: &str) -> Option<i64> {
    let claim = format!(
        "SELECT token FROM backfill_claim('w', pipelines => '{{daily}}', code_version => '{version}', window_key => '2024-01-{day:02}')"
    );
    session.column(&claim, &[]).pop()
}

/// A window published by that version.
#[track_caller]
fn publish(session: &mut Session, day: i32, version: &str) {
    let token = lease(session, day, version).expect("the window can be had");
    session.replace(token).unwrap_or_else(|failure| panic!("{failure}"));
}

fn replace(session: &mut Session, token: i64, more: &str) -> Result<(), Failure> {
    session.try_run(&replacing_with(token, more))
}

/// The versions of the slices by window.
fn versions(session: &mut Session) -> Vec<String> {
    session.lines("SELECT right(window_key, 2)::int, code_version FROM backfill.slices ORDER BY window_start")
}

const WAYS: [&str; 3] = ["publish => 'together'", "mode => 'outdated'", "version_compatible("];

#[track_caller]
fn assert_refused(outcome: Result<(), Failure>, of: &[&str]) {
    let failure = outcome.expect_err("a mixture is refused");
    assert_eq!(failure.sqlstate, "BF007", "{failure}");
    assert!(WAYS.iter().all(|way| failure.hint.contains(way)), "{failure}");
    assert!(of.iter().all(|version| failure.detail.contains(version)), "{failure}");
}
