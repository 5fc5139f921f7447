//! How many windows one transaction may claim.
//!
//! Every granted window costs three entries of the server's table of locks until the transaction ends: the mutexes of
//! the window and of its slots of two caps. All transactions of the server share that table, and whoever finds it full
//! fails (53200), whatever it does. So a transaction's claims fill no more than a part of it, and give fewer windows
//! than they were asked for beyond that.

use pgrx::pg_sys;
use std::cell::Cell;

const LOCKS_OF_A_WINDOW: usize = 3;
/// So many transactions may claim as much as they can at the same moment.
const TRANSACTIONS: usize = 16;

thread_local! {
    /// The newest transaction of this backend that was granted windows, and how many.
    static GRANTED: Cell<Option<(pg_sys::TransactionId, usize)>> = const { Cell::new(None) };
}

fn granted() -> usize {
    // A grant is a row, so that a transaction with grants has a number.
    let transaction = unsafe { pg_sys::GetTopTransactionIdIfAny() };
    GRANTED.get().filter(|(of, _)| *of == transaction).map_or(0, |(_, windows)| windows)
}

/// How many windows may still be granted in this transaction.
pub fn left() -> usize {
    // Prepared transactions, where they are enabled, make the table larger still.
    let table = unsafe { pg_sys::max_locks_per_xact as usize * pg_sys::MaxBackends as usize };
    (table / TRANSACTIONS / LOCKS_OF_A_WINDOW).max(1).saturating_sub(granted())
}

/// Notes that so many windows were granted just now. What a savepoint takes back is not given back.
pub fn spend(windows: usize) {
    let windows = granted() + windows;
    GRANTED.set(Some((unsafe { pg_sys::GetTopTransactionIdIfAny() }, windows)));
}
