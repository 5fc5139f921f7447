//! The ledger: its rows as Rust values, and the rules that more than one call needs.

pub mod adoption;
pub mod candidate;
pub mod claim;
pub mod effect;
pub mod epoch;
pub mod gate;
pub mod grid;
pub mod mark;
pub mod obstacle;
pub mod permit;
pub mod pipeline;
pub mod plan;
pub mod pool;
pub mod price;
pub mod requeue;
pub mod rights;
pub mod run;
pub mod sequence;
pub mod slice;
pub mod stage;
pub mod stop;
pub mod sweep;
pub mod takeover;
pub mod version;
pub mod window;
pub mod writer;
