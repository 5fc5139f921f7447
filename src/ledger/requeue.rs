//! Windows that a claim must come back to.
//!
//! A row is an invitation, not a state: it counts only while `after_turn` is still the window's newest turn, so
//! one that was overtaken does no harm and is removed when met.

use crate::domain::zone::Instant;
use crate::postgres::spi;

/// A window with its place in the order of its plan (or of live work, with `plan_id` 0).
#[derive(Debug, Clone)]
pub struct Place {
    pub pipeline_id: i64,
    pub plan_id: i64,
    pub window_start: Instant,
    pub window_end: Instant,
    pub seq: i64,
    /// The number that the next attempt will have.
    pub attempt: i32,
    pub after_turn: i32,
    /// When a failed window may run again, behind those never tried; `None` keeps its place in the order.
    pub due_at: Option<Instant>,
}

const PUT: &str = "INSERT INTO backfill.requeue_data
        (pipeline_id, plan_id, window_start, window_end, seq, attempt, after_turn, rank, due_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, CASE WHEN $8 IS NULL THEN 0 ELSE 1 END, COALESCE($8, '-infinity'))
    ON CONFLICT (pipeline_id, plan_id, window_start) DO UPDATE
    SET seq = excluded.seq, attempt = excluded.attempt, after_turn = excluded.after_turn,
        rank = excluded.rank, due_at = excluded.due_at";

const REMOVE: &str = "DELETE FROM backfill.requeue_data
    WHERE pipeline_id = $1 AND plan_id = $2 AND window_start = ANY ($3)";

/// Queues the window again.
pub fn put(place: &Place) {
    let args = [
        place.pipeline_id.into(),
        place.plan_id.into(),
        place.window_start.into(),
        place.window_end.into(),
        place.seq.into(),
        place.attempt.into(),
        place.after_turn.into(),
        place.due_at.into(),
    ];
    spi::run(PUT, &args);
}

/// Takes windows off the queue, because they were claimed or their rows were overtaken.
pub fn remove(pipeline_id: i64, plan_id: i64, windows: Vec<Instant>) {
    if !windows.is_empty() {
        spi::run(REMOVE, &[pipeline_id.into(), plan_id.into(), windows.into()]);
    }
}
