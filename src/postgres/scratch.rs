//! Memory for a while.

use pgrx::pg_sys;

/// A memory context whose content is thrown away before it is used again. It belongs to the one in which it was made.
pub struct Scratch(pg_sys::MemoryContext);

impl Scratch {
    pub fn new() -> Self {
        Self(unsafe {
            pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"pg_backfill scratch".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            )
        })
    }

    /// Runs `f`, whose allocations live until the next call.
    pub fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        unsafe {
            pg_sys::MemoryContextReset(self.0);
            let outer = pg_sys::MemoryContextSwitchTo(self.0);
            let result = f();
            pg_sys::MemoryContextSwitchTo(outer);
            result
        }
    }
}
