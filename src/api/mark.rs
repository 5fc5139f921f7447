//! Deciding about windows: closing them for a while or for good, and saying that a slice is out of date.

use crate::domain::lifecycle::{Mark, Outcome};
use crate::error::{Result, answer};
use crate::ledger::mark::Decision;
use crate::ledger::window::{self, Reading};
use crate::ledger::{gate, grid};
use crate::postgres::{datum, lock, lock::Key, role};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn window_skip(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
    reason: Option<String>,
) -> i64 {
    close(Mark::Skipped, Decision::read(pipeline, since, until, reason))
}

#[pg_extern(sql = false)]
fn window_unskip(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
    reason: Option<String>,
) -> i64 {
    open(Mark::Skipped, Decision::read(pipeline, since, until, reason))
}

#[pg_extern(sql = false)]
fn window_lock(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
    reason: Option<String>,
) -> i64 {
    close(Mark::Locked, Decision::read(pipeline, since, until, reason))
}

#[pg_extern(sql = false)]
fn window_unlock(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
    reason: Option<String>,
) -> i64 {
    open(Mark::Locked, Decision::read(pipeline, since, until, reason))
}

fn close(mark: Mark, decision: Result<Decision>) -> i64 {
    at_the_gate(decision, |decision| decision.close(mark, decision.starts()))
}

fn open(mark: Mark, decision: Result<Decision>) -> i64 {
    at_the_gate(decision, |decision| decision.lift(mark, decision.starts()))
}

/// What ends leases, or moves up to where they stay ended, comes before or after a COMMIT under one of them.
fn at_the_gate(decision: Result<Decision>, write: impl FnOnce(&Decision) -> u64) -> i64 {
    let written = decision.and_then(|decision| {
        role::as_ledger(|| {
            gate::close(decision.pipeline.id);
            grid::require_current(&decision.pipeline)?;
            Ok(write(&decision) as i64)
        })
    });
    answer(written)
}

#[pg_extern(sql = false)]
fn window_mark_stale(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
    reason: Option<String>,
) -> i64 {
    answer(Decision::read(pipeline, since, until, reason).and_then(|decision| mark_stale(&decision)))
}

/// Ends no right, so that no COMMIT needs to wait for it.
fn mark_stale(decision: &Decision) -> Result<i64> {
    role::as_ledger(|| lock::exclusive(Key::Decisions { pipeline: decision.pipeline.id }));
    let positions = decision.bounds.positions.clone();
    let mut pieces = window::look(Reading::Deciding, &decision.pipeline, positions, datum::clock())?;
    pieces.retain(|piece| {
        let in_the_making = matches!(piece.record().newest, Some(Outcome::Open | Outcome::Overdue));
        in_the_making || piece.record().slice_token.is_some()
    });
    let built = window::one_by_one(&decision.pipeline, pieces).map(|seen| seen.window.start).collect();
    Ok(role::as_ledger(|| decision.mark_stale(built)) as i64)
}
