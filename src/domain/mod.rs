//! Decisions, without a server: nothing here imports pgrx.

pub mod bound;
pub mod cadence;
pub mod calendar;
pub mod catchup;
#[cfg(any(test, feature = "pg_test"))]
pub mod laws;
pub mod lifecycle;
pub mod price;
pub mod retry;
pub mod timeline;
pub mod zone;
