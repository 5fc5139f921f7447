//! Statements of the ledger: prepared once a backend, read into owned Rust values.
//!
//! pgrx's own client gives every statement after a write a new snapshot and every `get_one` a transaction
//! id; the ledger needs to say which of three snapshots a statement reads, so this thin layer calls SPI itself.

use pgrx::datum::DatumWithOid;
use pgrx::{FromDatum, pg_sys};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};

/// Which snapshot a statement reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Snapshot {
    /// The calling query's: for STABLE functions.
    Calling,
    /// A new one under READ COMMITTED, the transaction's above it; may write.
    Own,
    /// The newest committed state, at every isolation level; may not write.
    Latest,
}

/// What the planner may choose from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Index lookups only: a plan made while a table was empty, or before it was analysed, must be the plan
    /// that a million rows need. Everything on the path of a claim is of this shape.
    Point,
    /// As PostgreSQL thinks best: for statements over many windows at once.
    Bulk,
}

/// While it lives, the planner uses index lookups. The variables are set directly because a GUC change for
/// every statement costs more than the statement; dropping restores them on every way out.
struct IndexOnly([bool; 4]);

impl IndexOnly {
    fn new() -> Self {
        unsafe {
            let before = Self([
                pg_sys::enable_seqscan,
                pg_sys::enable_bitmapscan,
                pg_sys::enable_hashjoin,
                pg_sys::enable_mergejoin,
            ]);
            Self::set([false; 4]);
            before
        }
    }

    unsafe fn set(values: [bool; 4]) {
        unsafe {
            pg_sys::enable_seqscan = values[0];
            pg_sys::enable_bitmapscan = values[1];
            pg_sys::enable_hashjoin = values[2];
            pg_sys::enable_mergejoin = values[3];
        }
    }
}

impl Drop for IndexOnly {
    fn drop(&mut self) {
        unsafe { Self::set(self.0) };
    }
}

thread_local! {
    /// Plans by the address of their text, which is static.
    static PLANS: RefCell<HashMap<(usize, usize), pg_sys::SPIPlanPtr>> = RefCell::new(HashMap::new());
}

/// One row of a result.
pub struct Row {
    tuple: pg_sys::HeapTuple,
    desc: pg_sys::TupleDesc,
}

impl Row {
    /// Column `n`, counted from 1, which may be NULL.
    pub fn get<T: FromDatum>(&self, n: c_int) -> Option<T> {
        unsafe {
            let mut null = false;
            let datum = pg_sys::SPI_getbinval(self.tuple, self.desc, n, &mut null);
            T::from_datum(datum, null)
        }
    }

    /// Column `n`, counted from 1, which the statement never leaves NULL.
    pub fn at<T: FromDatum>(&self, n: c_int) -> T {
        self.get(n).unwrap_or_else(|| panic!("column {n} of a ledger statement is NULL"))
    }
}

fn plan(shape: Shape, sql: &'static str, args: &[DatumWithOid]) -> pg_sys::SPIPlanPtr {
    let key = (sql.as_ptr() as usize, sql.len());
    if let Some(plan) = PLANS.with_borrow(|plans| plans.get(&key).copied()) {
        return plan;
    }
    let text = CString::new(sql).expect("a ledger statement has no NUL");
    let mut types: Vec<pg_sys::Oid> = args.iter().map(DatumWithOid::oid).collect();
    unsafe {
        let options = match shape {
            Shape::Point => pg_sys::CURSOR_OPT_GENERIC_PLAN,
            Shape::Bulk => pg_sys::CURSOR_OPT_CUSTOM_PLAN,
        };
        let plan = pg_sys::SPI_prepare_cursor(
            text.as_ptr(),
            types.len() as c_int,
            types.as_mut_ptr(),
            options as c_int,
        );
        assert!(!plan.is_null(), "SPI_prepare of: {sql}");
        assert_eq!(pg_sys::SPI_keepplan(plan), 0);
        PLANS.with_borrow_mut(|plans| plans.insert(key, plan));
        plan
    }
}

fn perform<R>(
    snapshot: Snapshot,
    shape: Shape,
    sql: &'static str,
    args: &[DatumWithOid],
    mut decode: impl FnMut(&Row) -> R,
) -> (u64, Vec<R>) {
    let mut values: Vec<pg_sys::Datum> = Vec::with_capacity(args.len());
    let mut nulls: Vec<c_char> = Vec::with_capacity(args.len());
    for arg in args {
        match arg.datum() {
            Some(datum) => {
                values.push(datum.sans_lifetime());
                nulls.push(b' ' as c_char);
            }
            None => {
                values.push(pg_sys::Datum::from(0));
                nulls.push(b'n' as c_char);
            }
        }
    }
    unsafe {
        assert_eq!(pg_sys::SPI_connect(), pg_sys::SPI_OK_CONNECT as c_int);
        let plan = plan(shape, sql, args);
        let planner = (shape == Shape::Point).then(IndexOnly::new);
        if snapshot == Snapshot::Latest {
            // So that it also shows what this transaction wrote before.
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
        }
        let status = pg_sys::SPI_execute_snapshot(
            plan,
            values.as_mut_ptr(),
            nulls.as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            snapshot != Snapshot::Own,
            true,
            0,
        );
        drop(planner);
        if snapshot == Snapshot::Latest {
            pg_sys::PopActiveSnapshot();
        }
        assert!(status >= 0, "SPI_execute_snapshot: {status}");
        let processed = pg_sys::SPI_processed;
        let mut rows = Vec::new();
        if let Some(table) = pg_sys::SPI_tuptable.as_ref() {
            rows.reserve(table.numvals as usize);
            for i in 0..table.numvals as usize {
                rows.push(decode(&Row { tuple: *table.vals.add(i), desc: table.tupdesc }));
            }
        }
        pg_sys::SPI_finish();
        (processed, rows)
    }
}

/// The rows of a query under the calling query's snapshot (STABLE functions).
pub fn read<R>(sql: &'static str, args: &[DatumWithOid], decode: impl FnMut(&Row) -> R) -> Vec<R> {
    perform(Snapshot::Calling, Shape::Bulk, sql, args, decode).1
}

/// The rows of a query of few index lookups under the same snapshot.
pub fn look<R>(sql: &'static str, args: &[DatumWithOid], decode: impl FnMut(&Row) -> R) -> Vec<R> {
    perform(Snapshot::Calling, Shape::Point, sql, args, decode).1
}

/// The rows of a statement of few index lookups, which may write, under the transaction's snapshot rules.
pub fn query<R>(sql: &'static str, args: &[DatumWithOid], decode: impl FnMut(&Row) -> R) -> Vec<R> {
    perform(Snapshot::Own, Shape::Point, sql, args, decode).1
}

/// The rows of a query over many windows that sees the newest committed state at every isolation level.
pub fn latest_bulk<R>(sql: &'static str, args: &[DatumWithOid], decode: impl FnMut(&Row) -> R) -> Vec<R> {
    perform(Snapshot::Latest, Shape::Bulk, sql, args, decode).1
}

/// The first row of [`query`].
pub fn first<R>(sql: &'static str, args: &[DatumWithOid], decode: impl FnMut(&Row) -> R) -> Option<R> {
    query(sql, args, decode).into_iter().next()
}

/// The rows of a query that sees the newest committed state at every isolation level.
pub fn latest<R>(sql: &'static str, args: &[DatumWithOid], decode: impl FnMut(&Row) -> R) -> Vec<R> {
    perform(Snapshot::Latest, Shape::Point, sql, args, decode).1
}

/// Runs a statement of few index lookups and says how many rows it wrote.
pub fn run(sql: &'static str, args: &[DatumWithOid]) -> u64 {
    perform(Snapshot::Own, Shape::Point, sql, args, |_| ()).0
}

/// Runs a statement over many windows and says how many rows it wrote.
pub fn run_bulk(sql: &'static str, args: &[DatumWithOid]) -> u64 {
    perform(Snapshot::Own, Shape::Bulk, sql, args, |_| ()).0
}

/// Runs a statement whose text is made for the call.
pub fn execute(sql: &str) {
    let text = CString::new(sql).expect("a statement has no NUL");
    unsafe {
        assert_eq!(pg_sys::SPI_connect(), pg_sys::SPI_OK_CONNECT as c_int);
        let status = pg_sys::SPI_execute(text.as_ptr(), false, 0);
        assert!(status >= 0, "SPI_execute: {status}");
        pg_sys::SPI_finish();
    }
}

/// Wakes workers that listen on channel `backfill`, at COMMIT. A hint only: nothing depends on its arrival.
pub fn notify(about: &str) {
    query("SELECT pg_catalog.pg_notify('backfill', $1)", &[about.into()], |_| ());
}
