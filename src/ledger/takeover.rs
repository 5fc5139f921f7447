//! Ending the lease of a worker that is gone.
//!
//! The window's mutex is taken first, because its place in the queue is written. The lease row is locked without waiting: while a fenced transaction holds it, the window is not handed out,
//! expired or not. The heartbeat's mutex keeps a heartbeat that is under way from being overlooked. The expiry
//! is read again in a later statement, because the one that found the lease read an older state.

use crate::ledger::claim::hold_window;
use crate::ledger::permit::Holder;
use crate::ledger::requeue::{self, Place};
use crate::ledger::{fenced, stop};
use crate::postgres::{lock, lock::Key, spi};

const LOCK: &str = "SELECT 1 FROM backfill.run_data WHERE token = $1 AND ended_at IS NULL
    FOR UPDATE SKIP LOCKED";

/// The window comes back to its plan while that owns it, and to the live right always.
const LOOK: &str =
    "SELECT r.lease_until < pg_catalog.clock_timestamp(), r.window_end, r.seq, r.attempt, r.turn,
        p.max_attempts, r.void_reason,
        p.dropped_at IS NULL AND (r.plan_id = 0 OR EXISTS (
            SELECT FROM backfill.owned_data o
            WHERE o.pipeline_id = r.pipeline_id AND o.window_start = r.window_start AND o.plan_id = r.plan_id))
    FROM backfill.run_void_data r JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
    WHERE r.token = $1 AND r.ended_at IS NULL";

/// A lease as it is once its row is locked.
struct Standing {
    expired: bool,
    void_reason: Option<String>,
    comes_back: bool,
    place: Place,
    max_attempts: i32,
}

const END: &str = "UPDATE backfill.run_data
    SET ended_at = pg_catalog.clock_timestamp(), outcome = $2, error = $3 WHERE token = $1";

/// Ends the lease if it is dead and nobody is writing under it; says whether it did. An expired lease costs
/// an attempt, a revoked one none, and the window keeps its place in the order.
pub fn take_over(holder: &Holder) -> bool {
    let token = holder.token;
    if !hold_window(holder.pipeline_id, holder.window_start) {
        return false;
    }
    if spi::first(LOCK, &[token.into()], |_| ()).is_none() {
        return false;
    }
    if !lock::try_exclusive(Key::Beat { token }) {
        return false;
    }
    // The row is locked: what is committed now stays.
    let standing = spi::latest(LOOK, &[token.into()], |row| Standing {
        expired: row.at(1),
        void_reason: row.get(7),
        comes_back: row.at(8),
        max_attempts: row.at(6),
        place: Place {
            pipeline_id: holder.pipeline_id,
            plan_id: holder.plan_id,
            window_start: holder.window_start,
            window_end: row.at(2),
            seq: row.at(3),
            attempt: row.at(4),
            after_turn: row.at(5),
            due_at: None,
        },
    });
    let Some(standing) = standing.into_iter().next() else { return false };
    let (outcome, error) = match (&standing.void_reason, standing.expired) {
        (Some(why), _) => ("revoked", why.as_str()),
        (None, true) => ("expired", "the lease expired and was taken over"),
        (None, false) => return false,
    };
    spi::run(END, &[token.into(), outcome.into(), error.into()]);
    fenced::forget();
    let mut place = standing.place;
    // A worker whose right was ended by others did nothing wrong.
    if outcome == "expired" {
        place.attempt += 1;
    }
    if standing.comes_back {
        if place.attempt <= standing.max_attempts {
            requeue::put(&place);
        } else {
            stop::note(place.plan_id, token);
        }
    }
    true
}
