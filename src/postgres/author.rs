//! SQL runs as whoever wrote it.

use crate::error::{Code, Error, Result};
use crate::postgres::quote;
use crate::postgres::role::{self, Switch};
use pgrx::pg_sys;

/// In whose name a user's SQL runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// The caller gave it with the call: it may do what the caller may do anyway.
    Caller,
    /// It was given before, by this role. Whoever sets it off must not gain more than its rows, so it runs as
    /// a security-restricted operation: it can neither change the role nor leave something behind in the
    /// session, temporary tables included.
    Role(pg_sys::Oid),
}

impl Author {
    /// The role of that name, or 42704.
    pub fn named(name: &str) -> Result<Self> {
        role::find(name).map(Self::Role).ok_or_else(|| {
            Error::new(Code::Undefined, format!("role \"{name}\" does not exist"))
                .detail(format!("The query was written by role \"{name}\" and runs as that role."))
                .hint(format!("CREATE ROLE {}, or define the pipeline again.", quote::identifier(name)))
        })
    }

    /// The role whose rights the SQL has.
    pub fn role(self) -> pg_sys::Oid {
        match self {
            Self::Caller => role::caller(),
            Self::Role(role) => role,
        }
    }

    /// Runs the author's SQL.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        match self {
            Self::Caller => f(),
            Self::Role(role) => {
                let _switch = Switch::to(role, pg_sys::SECURITY_RESTRICTED_OPERATION);
                f()
            }
        }
    }
}
