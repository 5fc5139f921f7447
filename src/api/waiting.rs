//! What waits, and what for.

use crate::domain::lifecycle::State;
use crate::domain::zone::Instant;
use crate::ledger::obstacle::{Obstacles, is_waiting};
use crate::ledger::piece::{self, Piece};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::rights;
use crate::ledger::window;
use crate::postgres::{datum, role, spi};
use pgrx::prelude::*;
use std::collections::HashMap;

/// The windows of the pipeline that would run and have no lease.
fn waiting(pipeline: &Pipeline, only_live: bool) -> Vec<Piece> {
    let mut pieces = window::look_at_all(pipeline, datum::clock());
    pieces.retain(|piece| is_waiting(piece.state) && !(only_live && piece.record().owner_plan.is_some()));
    pieces
}

const APPROVED: &str = "SELECT plan_id, approved_at FROM backfill.plan_data
    WHERE pipeline_id = $1 AND state IN ('approved', 'paused')";

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn waiting_of(
    pipeline_id: i64,
) -> TableIterator<
    'static,
    (
        name!(window_key, String),
        name!(window_start, TimestampWithTimeZone),
        name!(state, String),
        name!(plan_id, Option<i64>),
        name!(waits_since, TimestampWithTimeZone),
        name!(blocked_by, Option<String>),
        name!(reason, Option<String>),
    ),
> {
    if !rights::may_read(pipeline_id) {
        return TableIterator::new([]);
    }
    let pipeline = Pipeline::by_id(pipeline_id);
    let pieces = waiting(&pipeline, false);
    let obstacles = Obstacles::of(&pipeline, &pieces);
    let approved: HashMap<i64, Instant> =
        role::as_ledger(|| spi::read(APPROVED, &[pipeline_id.into()], |row| (row.at(1), row.at(2))))
            .into_iter()
            .collect();
    TableIterator::new(window::one_by_one(&pipeline, pieces).map(move |seen| {
        let due = Instant(seen.window.end.0.saturating_add(pipeline.delay.approximate_micros()));
        let owner = seen.record().owner_plan;
        let approved = owner.and_then(|plan| approved.get(&plan)).copied();
        let (by, reason) = obstacles.before(&seen).map(|found| (found.by, found.reason)).unzip();
        (
            pipeline.grid.window_key(seen.window.position).unwrap_or_default(),
            datum::timestamptz(seen.window.start),
            seen.state.name().to_owned(),
            owner,
            datum::timestamptz(approved.map_or(due, |approved| approved.max(due))),
            by,
            reason,
        )
    }))
}

const PIPELINES: &str =
    "SELECT pipeline_id FROM backfill.pipeline_data WHERE pool_id = $1 AND dropped_at IS NULL";

const PLANNED: &str = "SELECT COALESCE(pg_catalog.sum(w.windows), 0)::pg_catalog.int8
    FROM backfill.plan_waiting_data w JOIN backfill.plan_data pl ON pl.plan_id = w.plan_id WHERE pl.pool_id = $1";

/// How many windows wait for a slot of the pool. A number that everyone may know, as how many are held.
#[pg_extern(sql = false)]
fn waiting_for(pool_id: i32) -> i64 {
    let (pipelines, planned) = role::as_ledger(|| {
        let pipelines = spi::read(PIPELINES, &[pool_id.into()], |row| row.at::<i64>(1));
        (pipelines, spi::read(PLANNED, &[pool_id.into()], |row| row.at::<i64>(1)))
    });
    let live = pipelines.into_iter().map(|id| {
        let pipeline = Pipeline::by_id(id);
        let waiting = waiting(&pipeline, true);
        piece::count(&pipeline.grid, waiting.iter().filter(|piece| piece.state != State::Blocked))
    });
    live.sum::<i64>() + planned.iter().sum::<i64>()
}
