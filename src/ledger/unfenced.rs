//! Who writes to a protected target without a fence, where that is only to be known and not refused.
//!
//! It is counted in memory, and written once, right before the transaction commits: what a savepoint or the
//! transaction takes back was not written. The record must not cost the writer his COMMIT. A row of it is written
//! only if nobody else holds one, else there will be two that the view adds up; and where it cannot be written, that is a
//! warning.

use crate::postgres::{role, settings, spi, subtransaction};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;
use std::ffi::{CStr, c_void};

/// What is counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    pub pipeline_id: i64,
    pub target: pg_sys::Oid,
    pub operation: &'static str,
    pub role: pg_sys::Oid,
}

/// A count, and the depth of the savepoint that it stands or falls with.
#[derive(Debug, Clone, Copy)]
struct Tally {
    write: Write,
    depth: i32,
    rows: i64,
}

thread_local! {
    static TALLIES: RefCell<Vec<Tally>> = const { RefCell::new(Vec::new()) };
}

/// Called once, when the library is loaded.
pub fn init() {
    unsafe {
        pg_sys::RegisterXactCallback(Some(at_transaction_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_savepoint), std::ptr::null_mut());
    }
}

/// Counts rows of one write.
pub fn count(write: Write, rows: i64) {
    let depth = unsafe { pg_sys::GetCurrentTransactionNestLevel() };
    TALLIES.with_borrow_mut(|tallies| add(tallies, Tally { write, depth, rows }));
}

fn add(tallies: &mut Vec<Tally>, more: Tally) {
    match tallies.iter_mut().rfind(|tally| tally.write == more.write && tally.depth == more.depth) {
        Some(tally) => tally.rows += more.rows,
        None => tallies.push(more),
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_savepoint(
    event: pg_sys::SubXactEvent::Type,
    _mine: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    use pg_sys::SubXactEvent::{SUBXACT_EVENT_ABORT_SUB, SUBXACT_EVENT_COMMIT_SUB};
    if !matches!(event, SUBXACT_EVENT_ABORT_SUB | SUBXACT_EVENT_COMMIT_SUB)
        || TALLIES.with_borrow(Vec::is_empty)
    {
        return;
    }
    let depth = unsafe { pg_sys::GetCurrentTransactionNestLevel() };
    TALLIES.with_borrow_mut(|tallies| leave(tallies, depth, event == SUBXACT_EVENT_COMMIT_SUB));
}

/// A savepoint ends: what was counted in it belongs to the one around it, or is gone.
fn leave(tallies: &mut Vec<Tally>, depth: i32, kept: bool) {
    for mut tally in std::mem::take(tallies) {
        if tally.depth >= depth {
            if !kept {
                continue;
            }
            tally.depth = depth - 1;
        }
        add(tallies, tally);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_transaction_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_PRE_COMMIT, XACT_EVENT_PRE_PREPARE};
    match event {
        XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE => {
            let tallies = TALLIES.take();
            if !tallies.is_empty() {
                settings::pinned(|| role::as_ledger(|| write_down(&tallies)));
            }
        }
        XACT_EVENT_ABORT => {
            TALLIES.take();
        }
        _ => {}
    }
}

fn write_down(tallies: &[Tally]) {
    let is_free = unsafe {
        let schema = pg_sys::get_namespace_oid(c"backfill".as_ptr(), true);
        let relation = pg_sys::get_relname_relid(c"unfenced_write_data".as_ptr(), schema);
        pg_sys::ConditionalLockRelationOid(relation, pg_sys::RowExclusiveLock as i32)
    };
    let why = if is_free {
        // No statement is running that would have one.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
        let outcome = subtransaction::attempt(|| tallies.iter().for_each(store));
        unsafe { pg_sys::PopActiveSnapshot() };
        outcome.err().map(|error| words(&error))
    } else {
        Some("backfill.unfenced_write_data is locked".to_owned())
    };
    if let Some(why) = why {
        pgrx::warning!("writes without a fence could not be recorded: {why}");
    }
}

fn words(error: &CaughtError) -> String {
    match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report.message().to_owned(),
        CaughtError::RustPanic { ereport, .. } => ereport.message().to_owned(),
    }
}

/// What another transaction holds is passed over.
const PICK: &str = "SELECT w.ctid FROM backfill.unfenced_write_data w
    WHERE w.pipeline_id = $1 AND w.target = $2 AND w.operation = $3 AND w.role = $4 AND w.session_role = $5
      AND w.application_name = $6 AND w.client_addr IS NOT DISTINCT FROM pg_catalog.inet_client_addr()
    LIMIT 1 FOR UPDATE SKIP LOCKED";

/// A statement of its own: the row may have been changed right before it was locked.
const ADD: &str = "UPDATE backfill.unfenced_write_data
    SET rows = rows + $2, transactions = transactions + 1, last_seen = pg_catalog.clock_timestamp()
    WHERE ctid = $1";

const INSERT: &str = "INSERT INTO backfill.unfenced_write_data
        (pipeline_id, target, operation, role, session_role, application_name, client_addr, rows)
    VALUES ($1, $2, $3, $4, $5, $6, pg_catalog.inet_client_addr(), $7)";

fn store(tally: &Tally) {
    let Tally { write, rows, .. } = *tally;
    let (role, session_role) = (role::name(write.role), role::name(unsafe { pg_sys::GetSessionUserId() }));
    let application = unsafe { CStr::from_ptr(pg_sys::application_name) }.to_string_lossy().into_owned();
    let what = || {
        vec![
            write.pipeline_id.into(),
            write.target.into(),
            write.operation.into(),
            role.as_str().into(),
            session_role.as_str().into(),
            application.as_str().into(),
        ]
    };
    // Above READ COMMITTED a row that changed since the snapshot would fail the writer, and one that is read could.
    let may_read = unsafe { pg_sys::XactIsoLevel } <= pg_sys::XACT_READ_COMMITTED as i32;
    let free =
        may_read.then(|| spi::first(PICK, &what(), |row| row.at::<pg_sys::ItemPointerData>(1))).flatten();
    match free {
        Some(place) => spi::run(ADD, &[place.into(), rows.into()]),
        None => {
            let mut values = what();
            values.push(rows.into());
            spi::run(INSERT, &values)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(operation: &'static str, depth: i32, rows: i64) -> Tally {
        let write = Write { pipeline_id: 1, target: pg_sys::InvalidOid, operation, role: pg_sys::InvalidOid };
        Tally { write, depth, rows }
    }

    fn counts(tallies: &[Tally]) -> Vec<(&str, i32, i64)> {
        tallies.iter().map(|tally| (tally.write.operation, tally.depth, tally.rows)).collect()
    }

    #[test]
    fn what_a_savepoint_takes_back_is_not_counted() {
        let mut tallies = vec![];
        for more in
            [tally("INSERT", 1, 2), tally("INSERT", 2, 3), tally("DELETE", 3, 1), tally("INSERT", 3, 4)]
        {
            add(&mut tallies, more);
            add(&mut tallies, more);
        }
        leave(&mut tallies, 3, true);
        assert_eq!(counts(&tallies), [("INSERT", 1, 4), ("INSERT", 2, 14), ("DELETE", 2, 2)]);
        leave(&mut tallies, 2, false);
        assert_eq!(counts(&tallies), [("INSERT", 1, 4)]);
    }
}
