//! Pipelines whose windows depend on the one before (`depends_on_past`).
//!
//! - One lease over live work and all plans. A claim holds the pipeline's sequence mutex to the end of its
//!   transaction and then sees, at every isolation level, every lease that was given before.
//! - A window is handed out only when the one before it is *settled*: it has its slice, locked or not, or was skipped,
//!   and no active plan will build it again. A window that is missed, failed or still to come is in the way of all
//!   behind it.
//! - A slice is *stale* once one before it changed, or was skipped, after it was built, and so is every slice behind
//!   it. Nothing is stored for that: fencing tokens increase, so a slice with a smaller token than a change before it
//!   is older than that change.

use crate::domain::lifecycle::{Outcome, State};
use crate::domain::timeline::Timeline;
use crate::domain::zone::{Instant, Zone};
use crate::error::Result;
use crate::ledger::permit::Holder;
use crate::ledger::piece::{Blocker, Piece};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::takeover;
use crate::ledger::window::{self, Reading};
use crate::postgres::{datum, lock, lock::Key, spi};
use serde_json::{Value, json};

/// The newest run of each limit slot of the live right and of the plans, where it is open.
const OPEN: &str = "SELECT r.token, r.plan_id, r.window_start,
        COALESCE(h.expires_at, r.expires_at) < pg_catalog.clock_timestamp()
    FROM (
        SELECT 0::pg_catalog.int8 AS plan_id
        UNION ALL
        SELECT pl.plan_id FROM backfill.plan_data pl WHERE pl.pipeline_id = $1 AND pl.approved_at IS NOT NULL
    ) s
    CROSS JOIN LATERAL pg_catalog.generate_series(1, COALESCE((
        SELECT n.limit_slot FROM backfill.run_data n WHERE n.pipeline_id = $1 AND n.plan_id = s.plan_id
        ORDER BY n.pipeline_id DESC, n.plan_id DESC, n.limit_slot DESC LIMIT 1), 0)) l (slot)
    CROSS JOIN LATERAL (
        SELECT n.* FROM backfill.run_data n
        WHERE n.pipeline_id = $1 AND n.plan_id = s.plan_id AND n.limit_slot = l.slot
        ORDER BY n.limit_gen DESC LIMIT 1
    ) r
    LEFT JOIN backfill.heartbeat_data h ON h.token = r.token
    WHERE r.ended_at IS NULL";

/// Whether no window of the pipeline is leased, and none will be to anyone else before this transaction ends. Ends the
/// leases that are dead, which may put windows into the queue.
pub fn is_idle(pipeline_id: i64) -> bool {
    if !lock::try_exclusive(Key::Sequence { pipeline: pipeline_id }) {
        return false;
    }
    let open = spi::latest(OPEN, &[pipeline_id.into()], |row| Holder {
        token: row.at(1),
        pipeline_id,
        plan_id: row.at(2),
        window_start: row.at(3),
        expired: row.at(4),
    });
    open.iter().all(|holder| holder.is_dead() && takeover::take_over(holder))
}

/// Whether the window may be handed out.
pub fn is_ready(pipeline: &Pipeline, window_start: Instant) -> bool {
    let Some(before) = pipeline.window_before(pipeline.position_of(window_start)) else { return true };
    let range = before.position..before.position + 1;
    window::look_at_each(Reading::Deciding, pipeline, range, datum::clock())
        .is_ok_and(|pieces| pieces.iter().all(is_settled))
}

/// Whether what comes after the window can rest on it.
fn is_settled(piece: &Piece) -> bool {
    let record = piece.record();
    match piece.state {
        State::Skipped | State::Stale | State::Outdated | State::Adopted | State::Done => true,
        // What is locked stays what it is: that is what locks are for.
        State::Locked => {
            let failed = [Outcome::Failed, Outcome::Expired, Outcome::Refused].map(Some);
            record.slice_token.is_some() && record.owner_plan.is_none() && !failed.contains(&record.newest)
        }
        _ => false,
    }
}

/// The slices behind a position, which a rebuild of that window makes stale where it changes it.
pub fn becomes_stale(pipeline: &Pipeline, position: i64, now: Instant) -> Result<Value> {
    let behind = position + 1..pipeline.newest_due(now) + 1;
    let mut held = window::look_at_each(Reading::Deciding, pipeline, behind, now)?;
    held.retain(|piece| piece.record().slice_token.is_some());
    let key = |piece: Option<&Piece>| piece.and_then(|piece| pipeline.grid.window_key(piece.first()).ok());
    Ok(json!({ "windows": held.len(), "oldest": key(held.first()), "newest": key(held.last()) }))
}

/// The token before which a slice may rest on one that was skipped since; 0 if there is none.
fn withdrawn_by(piece: &Piece) -> i64 {
    let record = piece.record();
    let skip = record.said.as_ref().filter(|_| piece.state == State::Skipped);
    skip.filter(|_| record.slice_token.is_some()).map_or(0, |skip| skip.token + 1)
}

/// Marks what is blocked by a window before it, and what is stale because of one. `all` holds every window from the
/// pipeline's first one on.
pub fn judge<Z: Zone>(grid: &Timeline<Z>, all: Vec<Piece>) -> Vec<Piece> {
    let mut judged = Vec::with_capacity(all.len());
    let mut in_the_way: Option<Blocker> = None;
    let mut newest_change = 0;
    let mut stale = false;
    for mut piece in all {
        stale |= piece.record().slice_token.is_some_and(|token| token < newest_change);
        if stale && matches!(piece.state, State::Outdated | State::Adopted | State::Done) {
            piece.state = State::Stale;
        }
        newest_change = newest_change.max(piece.record().changed_by.unwrap_or(0)).max(withdrawn_by(&piece));
        if !matches!(piece.state, State::Queued | State::Eligible) {
            in_the_way = (!is_settled(&piece)).then(|| piece.as_blocker(piece.last()));
            judged.push(piece);
        } else if let Some(blocker) = in_the_way {
            judged.push(piece.blocked_by(blocker));
        } else {
            let first = piece.first();
            let blocker = piece.as_blocker(first);
            in_the_way = Some(blocker);
            let behind = piece.within(grid, &(first + 1..i64::MAX));
            judged.extend(piece.within(grid, &(first..first + 1)));
            judged.extend(behind.map(|behind| behind.blocked_by(blocker)));
        }
    }
    judged
}
