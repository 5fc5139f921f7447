//! What people decide about windows, and what becomes of them then.

mod adopting;
mod closing;
mod locking;
mod many;
mod marking;
mod skipping;

use pgrx_tests::Session;

/// `lock`, `unlock`, `skip`, `unskip`, `mark_stale`, `unadopt`: how many windows of `daily` it changed.
#[track_caller]
fn decide(session: &mut Session, what: &str, range: &str) -> i64 {
    session.one(&format!("SELECT window_{what}('daily', {range}, 'test')"), &[])
}

/// Adopts windows of `daily`: how many, their rows, and the keys of those without.
#[track_caller]
fn adopt(session: &mut Session, range: &str) -> String {
    let sql =
        format!("SELECT windows, rows, empty_keys FROM window_adopt('daily', {range}, 'legacy', 'test')");
    session.lines(&sql).concat()
}

/// The states of the first days of January.
#[track_caller]
fn states(session: &mut Session, until: &str) -> Vec<String> {
    session.lines(&format!("SELECT state FROM pipeline_windows('daily', NULL, '{until}')"))
}
