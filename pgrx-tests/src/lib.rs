//! Test support for pg_backfill: servers that start as any user, databases made from a template, many
//! clients at once, and faults.
//!
//! It stands in for the upstream crate of the same name, which installs over the server's files and needs
//! `sudo` when the tests run as root. `#[pg_test]` finds [`run_test`] here.

pub mod corpus;
pub mod keeper;
pub mod privileges;
pub mod scratch;
pub mod server;

#[cfg(feature = "client")]
mod cluster;
#[cfg(feature = "client")]
mod database;
#[cfg(feature = "client")]
mod failure;
#[cfg(feature = "client")]
mod in_backend;
#[cfg(feature = "client")]
mod session;
#[cfg(feature = "client")]
mod wait;

#[cfg(feature = "client")]
pub use self::{
    cluster::Cluster,
    database::Database,
    failure::{Failure, Fields, expect_sqlstate},
    in_backend::run_test,
    session::Session,
    wait::{wait_until, wait_until_within},
};
#[cfg(feature = "client")]
pub use postgres;
