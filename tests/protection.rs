//! `fence_protect`: who may write to a target, where, and what is known of those who may not.

mod fencing;
mod logging;
mod outliving;
mod protecting;
mod shapes;

use crate::support::{Calls, Lease, daily};
use pgrx_tests::{Database, Failure, Session, assert_sqlstate};

/// The pipeline `daily` with a slice in its first window, protected.
fn protected() -> Database {
    let database = daily("");
    let mut admin = database.connect();
    let token = lease(&mut admin, "2024-01-01").token;
    admin.replace(token).unwrap();
    admin.run("ALTER TABLE facts ADD UNIQUE (at); SELECT fence_protect('facts')");
    database
}

/// A lease of a window of `daily` by its key.
fn lease(session: &mut Session, key: &str) -> Lease {
    session.plan_window(key);
    session.lease()
}

/// Begins a transaction that passes the fence of the token.
fn fence(session: &mut Session, token: i64) {
    session.run(&format!("BEGIN; SELECT fence_check({token})"));
}

/// Tries COPY with one line.
fn copy(session: &mut Session, table: &str, line: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut writer = session.copy_in(&format!("COPY {table} FROM STDIN")).map_err(Failure::from)?;
    writer.write_all(line.as_bytes()).expect("it is buffered");
    writer.finish().map(drop).map_err(Failure::from)
}

/// Asserts that the statement is refused with words that help.
#[track_caller]
fn assert_refused(session: &mut Session, sql: &str) -> Failure {
    let failure = assert_sqlstate!(session.try_run(sql), "BF011");
    assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{sql}\n{failure}");
    failure
}

/// The same, within a transaction that goes on.
#[track_caller]
fn assert_refused_within(session: &mut Session, sql: &str) {
    session.run("SAVEPOINT before");
    assert_refused(session, sql);
    session.run("ROLLBACK TO before; RELEASE before");
}
