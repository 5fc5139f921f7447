//! Ending the lease of a worker that is gone.
//!
//! The window's mutex is taken first, because its place in the queue is written. The lease row is locked without waiting: while a fenced transaction holds it, the window is not handed out,
//! expired or not. The heartbeat's mutex keeps a heartbeat that is under way from being overlooked. The expiry
//! is read again in a later statement, because the one that found the lease read an older state.

use crate::domain::zone::Instant;
use crate::ledger::claim::hold_window;
use crate::ledger::permit::Holder;
use crate::ledger::requeue::{self, Place};
use crate::ledger::run::{self, AsSeen};
use crate::postgres::{lock, lock::Key, spi};

const LOCK: &str = "SELECT 1 FROM backfill.run_data WHERE token = $1 AND ended_at IS NULL
    FOR UPDATE SKIP LOCKED";

const LOOK: &str = "SELECT COALESCE(h.expires_at, r.expires_at) < pg_catalog.clock_timestamp(),
        r.window_end, r.seq, r.attempt, r.turn, p.max_attempts
    FROM backfill.run_data r
    JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
    LEFT JOIN backfill.heartbeat_data h ON h.token = r.token
    WHERE r.token = $1 AND r.ended_at IS NULL";

const END: &str = "UPDATE backfill.run_data
    SET ended_at = pg_catalog.clock_timestamp(), outcome = $2, error = $3 WHERE token = $1";

/// Ends the lease if it is dead and nobody is writing under it; says whether it did. An expired lease costs
/// an attempt, and its window keeps its place in the order.
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
    let look = spi::first(LOOK, &[token.into()], |row| {
        (
            row.at::<bool>(1),
            row.at::<Instant>(2),
            row.at::<i64>(3),
            row.at::<i32>(4),
            row.at::<i32>(5),
            row.at::<i32>(6),
        )
    });
    let Some((expired, window_end, seq, attempt, turn, max_attempts)) = look else {
        return false;
    };
    let void = run::void_reason(AsSeen::Now, holder.pipeline_id, holder.plan_id, holder.window_start, token);
    let (outcome, error) = match (void, expired) {
        (Some(why), _) => ("revoked", why),
        (None, true) => ("expired", "the lease expired and was taken over".to_owned()),
        (None, false) => return false,
    };
    spi::run(END, &[token.into(), outcome.into(), error.as_str().into()]);
    // The worker of another server cost no attempt here.
    let next = if error == run::OTHER_SERVER { attempt } else { attempt + 1 };
    let comes_back = outcome == "expired" || error == run::OTHER_SERVER;
    if comes_back && next <= max_attempts {
        requeue::put(&Place {
            pipeline_id: holder.pipeline_id,
            plan_id: holder.plan_id,
            window_start: holder.window_start,
            window_end,
            seq,
            attempt: next,
            after_turn: turn,
            due_at: None,
        });
    }
    true
}
