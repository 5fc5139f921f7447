//! Trying something that may fail without losing the transaction.

use crate::error;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, pg_sys};
use std::ffi::c_int;
use std::panic::AssertUnwindSafe;

/// Runs `f` in a subtransaction: committed with its value, or rolled back with whatever error ended it.
pub fn attempt<T>(f: impl FnOnce() -> T) -> Result<T, CaughtError> {
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        let callbacks = pg_sys::error_context_stack;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = PgTryBuilder::new(AssertUnwindSafe(|| Ok(f()))).catch_others(Err).execute();
        if result.is_ok() {
            pg_sys::ReleaseCurrentSubTransaction();
        } else {
            pg_sys::error_context_stack = callbacks;
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

fn is_of(caught: &CaughtError, classes: &[&str]) -> bool {
    match caught {
        CaughtError::PostgresError(report) => {
            let class = error::class(report.sql_error_code() as c_int);
            classes.iter().any(|one| error::pack(one) == class)
        }
        _ => false,
    }
}

/// Whether somebody ended the call. Code of a user that ran in it may raise the same SQLSTATEs.
pub fn is_interrupt(caught: &CaughtError) -> bool {
    match caught {
        CaughtError::PostgresError(report) => {
            is_of(caught, &["57"]) && report.function_name() == Some("ProcessInterrupts")
        }
        _ => true,
    }
}

/// Whether RAISE in PL/pgSQL made an error: its SQLSTATE is its author's choice.
fn is_raised(caught: &CaughtError) -> bool {
    matches!(caught, CaughtError::PostgresError(report) if report.file().ends_with("pl_exec.c"))
}

/// Whether an error depends on more than what was tried: on the moment, on locks, on the session's limits, on a fault of the
/// server.
pub fn is_accident(caught: &CaughtError) -> bool {
    !matches!(caught, CaughtError::PostgresError(_))
        || (is_of(caught, &["25", "40", "53", "54", "55", "57", "58", "XX"]) && !is_raised(caught))
}
