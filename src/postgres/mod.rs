//! What touches the server.

pub mod arguments;
pub mod author;
pub mod batch;
pub mod cells;
pub mod comparison;
pub mod composite;
pub mod datum;
pub mod digest;
pub mod executor;
pub mod lock;
pub mod named;
pub mod query;
pub mod quote;
pub mod random;
pub mod role;
pub mod rows;
pub mod scratch;
pub mod segment;
pub mod session;
pub mod settings;
pub mod spi;
pub mod subtransaction;
pub mod table;
pub mod target;
pub mod trigger;
pub mod zone;
