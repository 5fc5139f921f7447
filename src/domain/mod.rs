//! Decisions, without a server: nothing here imports pgrx.

pub mod bound;
pub mod cadence;
pub mod calendar;
pub mod catchup;
pub mod lifecycle;
pub mod price;
pub mod retry;
pub mod zone;
