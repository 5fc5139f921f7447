//! Trying something that may fail without losing the transaction.

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, pg_sys};
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
