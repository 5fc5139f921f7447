//! The outbox: what leaves the system because of a window.
//!
//! ```text
//!   emit, lease without effects ─▶ suppressed ──┐ emitted again with effects
//!   emit, lease with effects ────▶ held ◀───────┘
//!                                  │ the emitter's run is done: its slice is published
//!                                  ▼
//!                                  ready ─▶ done
//! ```
//!
//! There is one row per window, effect and key, for ever. What was held or suppressed belongs to the attempt that
//! emitted it last; what is ready or done is kept whoever emits it again. An attempt that was never published leaves
//! its effects held, for the next one to take over. A verification emits nothing: it is told that all is suppressed.

use crate::postgres::{role, spi};

const PUBLISH: &str = "UPDATE backfill.effect_data SET published_at = pg_catalog.clock_timestamp()
    WHERE token = $1 AND state = 'held'";

/// Makes the effects of a token ready, in the transaction that publishes its slice.
pub fn publish(token: i64) {
    role::as_ledger(|| spi::run(PUBLISH, &[token.into()]));
}
