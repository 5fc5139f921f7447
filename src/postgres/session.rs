//! What the calling session may do.

use crate::error::{Code, Error, Result};
use pgrx::pg_sys;

/// Refuses a writing call on a standby or in a read-only transaction (25006), also where it would find
/// nothing to write.
pub fn require_writable() -> Result<()> {
    let (read_only, standby) = unsafe { (pg_sys::XactReadOnly, pg_sys::RecoveryInProgress()) };
    if !read_only && !standby {
        return Ok(());
    }
    let why = if standby { "This server is a standby." } else { "The transaction is read-only." };
    Err(Error::new(Code::ReadOnly, "the ledger cannot be written here")
        .detail(why)
        .hint("Make the call on the primary, in a read-write transaction."))
}
