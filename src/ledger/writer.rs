//! Transactions that still write under a lease.

use crate::ledger::window::Reading;
use crate::postgres::spi;
use pgrx::pg_sys;

/// Who has written the row of a lease and not ended its transaction yet.
const WRITERS: &str =
    "SELECT r.token, r.xmax FROM backfill.run_data r WHERE r.token = ANY ($1) AND r.ended_at IS NULL";

const PIDS: &str = "SELECT l.transactionid, l.pid FROM pg_catalog.pg_locks l
    JOIN pg_catalog.unnest($1) x (xid) ON l.transactionid = x.xid
    WHERE l.locktype = 'transactionid' AND l.granted AND l.pid IS NOT NULL";

/// The backends that have a transaction open under one of the tokens, with the token.
pub fn of(reading: Reading, tokens: Vec<i64>) -> Vec<(i64, i32)> {
    if tokens.is_empty() {
        return vec![];
    }
    let decode = |row: &spi::Row| (row.at::<i64>(1), row.at::<pg_sys::TransactionId>(2));
    let writers = match reading {
        Reading::Stable => spi::read(WRITERS, &[tokens.into()], decode),
        Reading::Deciding => spi::latest(WRITERS, &[tokens.into()], decode),
    };
    // A savepoint that was released leaves its own number in the row; the lock is the transaction's.
    let writers: Vec<(i64, pg_sys::TransactionId)> = writers
        .into_iter()
        .filter(|(_, xid)| unsafe { pg_sys::TransactionIdIsInProgress(*xid) })
        .map(|(token, xid)| (token, unsafe { pg_sys::SubTransGetTopmostTransaction(xid) }))
        .collect();
    let xids: Vec<pg_sys::TransactionId> = writers.iter().map(|(_, xid)| *xid).collect();
    let pids = spi::read(PIDS, &[xids.into()], |row| (row.at::<pg_sys::TransactionId>(1), row.at::<i32>(2)));
    writers
        .into_iter()
        .filter_map(|(token, xid)| pids.iter().find(|(of, _)| *of == xid).map(|(_, pid)| (token, *pid)))
        .collect()
}
