//! Decisions, without a server: nothing here imports pgrx.

pub mod bound;
pub mod cadence;
pub mod calendar;
pub mod catchup;
pub mod chart;
pub mod duration;
pub mod durations;
#[cfg(any(test, feature = "pg_test"))]
pub mod laws;
pub mod lifecycle;
pub mod makespan;
pub mod pairing;
pub mod price;
pub mod progress;
pub mod purity;
pub mod random;
pub mod retry;
pub mod sample;
pub mod timeline;
pub mod tokens;
pub mod turnaround;
pub mod zone;
