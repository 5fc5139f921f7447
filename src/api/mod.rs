//! The functions that SQL calls, one file a noun. Their declarations, comments and grants are in `sql/`.

pub mod adoption;
pub mod audit;
pub mod calendar;
pub mod difference;
pub mod effect;
pub mod explain;
pub mod lease;
pub mod lint;
pub mod mark;
pub mod pipeline;
pub mod plan;
pub mod plan_life;
pub mod pool;
pub mod progress;
pub mod protection;
pub mod publication;
pub mod quarantine;
pub mod reversion;
pub mod slice;
pub mod verification;
pub mod version;
pub mod waiting;
pub mod window;
