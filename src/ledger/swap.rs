//! Strategy `swap`: the partition that is a window's own gets other storage, built beside it.
//!
//! The new rows and their indexes are written first, while nobody waits. Then the partition, and not its parent, is locked,
//! in three steps, none of which waits for more than a moment:
//!
//! 1. ACCESS EXCLUSIVE, given back at once, if rows are to be kept: where somebody reads for long it fails before they are.
//! 2. SHARE ROW EXCLUSIVE: who wrote there has committed, and nobody writes. The old rows are counted and kept; others read.
//! 3. ACCESS EXCLUSIVE, for the exchange and to the end of the transaction.
//!
//! If one fails, all are given back and tried again later, so that nobody queues up behind a reader. Nothing is counted
//! afterwards: since the second step nobody else can have written.

use crate::error::{Code, Error, Result, faithful};
use crate::ledger::kept::Keeper;
use crate::ledger::publication::guard;
use crate::ledger::run::Run;
use crate::ledger::source::{Built, Source};
use crate::postgres::exchange::{self, Storage};
use crate::postgres::segment::Segment;
use crate::postgres::{partition, quote, role, settings, spi, subtransaction, target};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, pg_sys};

/// How long others may queue up behind us, in milliseconds.
const WAIT: i32 = 50;
/// How long the locks are left alone after each failure, in milliseconds and on the average.
const PAUSES: [i32; 9] = [10, 20, 50, 100, 200, 400, 400, 400, 400];

/// What a swap replaced.
pub struct Swapped {
    pub deleted: u64,
    pub allow_shrink: Option<String>,
}

const REFUSED: &str = include_str!("../../sql/query/swap_refused.sql");

const HIDES_ROWS: &str = "SELECT pg_catalog.row_security_active($1)";

/// Refuses what cannot be swapped, or not safely (0A000).
pub fn require(run: &Run, target: &Segment, source: &Source) -> Result<()> {
    find(run, target, source).map(|_| ())
}

/// The partition that is the window's own, locked as writing does.
fn find(run: &Run, target: &Segment, source: &Source) -> Result<pg_sys::Oid> {
    let writer = source.author.role();
    target::require_write(target.table.oid, writer)?;
    target::require_read(target.table.oid, writer)?;
    let shown = target.table.shown();
    let Some(partition) = partition::of_window(target) else {
        return Err(refused(
            &shown,
            format!(
                "It has no partition of exactly window {}, by ranges of column \"{}\" alone.",
                run.window_key, target.column
            ),
        ));
    };
    let reason = role::as_ledger(|| {
        spi::latest_bulk(REFUSED, &[partition.into()], |row| (row.at::<String>(1), row.at::<bool>(2)))
    });
    match reason.into_iter().next() {
        Some((reason, true)) => {
            return Err(Error::new(Code::Locked, format!("an index of {shown} is being built"))
                .detail(format!("{reason} yet."))
                .hint("Repeat the call when it is, or give strategy 'rows' or 'diff'."));
        }
        Some((reason, false)) => return Err(refused(&shown, format!("{reason}."))),
        None => {}
    }
    let hides =
        source.run(run, || spi::latest(HIDES_ROWS, &[target.table.oid.into()], |row| row.at::<bool>(1)));
    if hides == [true] {
        let writer = role::name(writer);
        return Err(refused(&shown, format!("Row-level security applies to \"{writer}\", who writes.")));
    }
    Ok(partition)
}

fn refused(shown: &str, reason: String) -> Error {
    Error::new(Code::Unsupported, format!("strategy \"swap\" is not available for {shown}"))
        .detail(reason)
        .hint("Leave strategy out, or give 'rows' or 'diff'.")
}

/// Gives the partition the new rows.
pub fn write(
    run: &Run,
    target: &Segment,
    source: &Source,
    built: &Built,
    keeper: Option<&Keeper>,
    consent: Option<&str>,
) -> Result<Swapped> {
    let partition = find(run, target, source)?;
    let columns = built.columns();
    if let Some(missing) = target.table.columns.iter().find(|column| !columns.contains(&column.name.as_str()))
    {
        return Err(refused(
            &target.table.shown(),
            format!("The new rows leave column \"{}\" to its default.", missing.name),
        ));
    }
    let storage = source.run(run, || Storage::build(partition, &columns, built.rows.batch()))?;
    let take = || {
        settings::waiting_briefly(WAIT, || {
            if keeper.is_some() {
                lock(partition, pg_sys::AccessExclusiveLock);
                unlock(partition, pg_sys::AccessExclusiveLock);
            }
            lock(partition, pg_sys::ShareRowExclusiveLock);
        });
        // Somebody may have begun to publish it.
        find(run, target, source)?;
        let deleted = keeper.map_or_else(|| target.count(), |keeper| keeper.keep(target));
        let allow_shrink = guard(run, target, deleted, built.rows.count(), consent)?;
        settings::waiting_briefly(WAIT, || exchange::lock_out(partition));
        Ok(Swapped { deleted, allow_shrink })
    };
    let swapped = patiently(partition, take)?;
    storage.exchange();
    Ok(swapped)
}

fn lock(relation: pg_sys::Oid, mode: u32) {
    unsafe { pg_sys::LockRelationOid(relation, mode as i32) };
}

fn unlock(relation: pg_sys::Oid, mode: u32) {
    unsafe { pg_sys::UnlockRelationOid(relation, mode as i32) };
}

/// Repeats what fails for want of a lock, some times (55P03).
fn patiently<T>(partition: pg_sys::Oid, take: impl Fn() -> Result<T>) -> Result<T> {
    for pause in PAUSES.map(Some).into_iter().chain([None]) {
        let taken = faithful(|| match subtransaction::attempt(&take) {
            Ok(taken) => Some(taken),
            Err(CaughtError::PostgresError(report))
                if report.sql_error_code() == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE =>
            {
                None
            }
            Err(caught) => caught.rethrow(),
        });
        if let Some(taken) = taken {
            return taken;
        }
        if let Some(pause) = pause {
            spi::latest(PAUSE, &[pause.into()], |_| ());
        }
    }
    Err(locked(partition))
}

/// Of random length, so that those who were in each other's way come back one after the other.
const PAUSE: &str = "SELECT pg_catalog.pg_sleep($1 * (0.5 + pg_catalog.random()) / 1000.0)";

const HOLDERS: &str = "SELECT pg_catalog.string_agg(DISTINCT l.pid::pg_catalog.text, ', ')
    FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = $1 AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())";

fn locked(partition: pg_sys::Oid) -> Error {
    let holders = role::as_ledger(|| spi::latest(HOLDERS, &[partition.into()], |row| row.get::<String>(1)));
    let now = match holders.into_iter().next().flatten() {
        Some(pids) => format!("now it is used by process {pids}"),
        None => "now nobody uses it".to_owned(),
    };
    Error::new(Code::Locked, format!("partition {} is in use", quote::relation(partition)))
        .detail(format!(
            "It was to be locked {} times, for {WAIT} ms each time; {now}.",
            PAUSES.len() + 1
        ))
        .hint("Repeat the call when those who read the partition have ended, or give strategy => 'rows', which waits for no reader.")
}
