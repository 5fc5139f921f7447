//! Statements whose text is made at run time.
//!
//! A SELECT hands its rows on one by one, as they are made: SPI would keep all of them in memory before the
//! first could be looked at.

use crate::postgres::batch::Batch;
use crate::postgres::named::Named;
use crate::postgres::quote;
use pgrx::{pg_guard, pg_sys};
use std::ffi::CStr;

/// What takes the rows of a query.
pub trait Sink {
    /// The shape of the rows, before the first. What it allocates outlives the query.
    fn start(&mut self, shape: pg_sys::TupleDesc);
    /// One row, all of whose attributes have been fetched. It is gone afterwards.
    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot);
}

/// What a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// What a statement of the transaction sees.
    Transaction,
    /// What is committed now, at every isolation level, and what the transaction wrote.
    Now,
}

/// Two parameters of a query, $1 and $2.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    pub type_oid: pg_sys::Oid,
    pub values: [pg_sys::Datum; 2],
}

impl Pair {
    fn params(self) -> pg_sys::ParamListInfo {
        unsafe {
            let list = pg_sys::makeParamList(2);
            for (param, value) in (*list).params.as_mut_slice(2).iter_mut().zip(self.values) {
                param.value = value;
                param.isnull = false;
                param.pflags = pg_sys::PARAM_FLAG_CONST as u16;
                param.ptype = self.type_oid;
            }
            list
        }
    }
}

#[repr(C)]
struct Receiver<'a> {
    head: pg_sys::DestReceiver,
    /// The memory of whoever runs the query.
    home: pg_sys::MemoryContext,
    sink: &'a mut dyn Sink,
}

#[pg_guard]
unsafe extern "C-unwind" fn start(
    this: *mut pg_sys::DestReceiver,
    _operation: i32,
    shape: pg_sys::TupleDesc,
) {
    unsafe {
        let this = &mut *this.cast::<Receiver>();
        let query = pg_sys::MemoryContextSwitchTo(this.home);
        this.sink.start(shape);
        pg_sys::MemoryContextSwitchTo(query);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn receive(
    slot: *mut pg_sys::TupleTableSlot,
    this: *mut pg_sys::DestReceiver,
) -> bool {
    unsafe {
        // Rows that were computed have them all.
        if i32::from((*slot).tts_nvalid) < (*(*slot).tts_tupleDescriptor).natts {
            pg_sys::slot_getallattrs(slot);
        }
        (*this.cast::<Receiver>()).sink.row(slot);
    }
    true
}

#[pg_guard]
unsafe extern "C-unwind" fn nothing(_this: *mut pg_sys::DestReceiver) {}

/// Runs an analysed SELECT, whose `text` is for error positions.
///
/// # Safety
/// `query` is an analysed SELECT whose relations are locked, and belongs to this call: rewriting changes it. `named` is
/// what it was analysed with.
pub unsafe fn select(
    query: *mut pg_sys::Query,
    text: &CStr,
    parameters: Pair,
    sight: Sight,
    named: Option<&Named>,
    sink: &mut dyn Sink,
) {
    unsafe {
        // An earlier write of this call must be visible.
        pg_sys::CommandCounterIncrement();
        pg_sys::PushActiveSnapshot(match sight {
            Sight::Transaction => pg_sys::GetTransactionSnapshot(),
            Sight::Now => pg_sys::GetLatestSnapshot(),
        });
        let rewritten = pg_sys::QueryRewrite(query);
        assert_eq!((*rewritten).length, 1, "a SELECT is rewritten to one SELECT");
        let params = parameters.params();
        let plan = pg_sys::pg_plan_query(
            pg_sys::list_nth(rewritten, 0).cast(),
            text.as_ptr(),
            pg_sys::CURSOR_OPT_PARALLEL_OK as i32,
            params,
        );
        let mut receiver = Receiver {
            head: pg_sys::DestReceiver {
                receiveSlot: Some(receive),
                rStartup: Some(start),
                rShutdown: Some(nothing),
                rDestroy: Some(nothing),
                mydest: pg_sys::CommandDest::DestNone,
            },
            home: pg_sys::CurrentMemoryContext,
            sink,
        };
        let run = pg_sys::CreateQueryDesc(
            plan,
            text.as_ptr(),
            pg_sys::GetActiveSnapshot(),
            std::ptr::null_mut(),
            (&raw mut receiver).cast(),
            params,
            named.map_or(std::ptr::null_mut(), Named::environment),
            0,
        );
        let forward = pg_sys::ScanDirection::ForwardScanDirection;
        pg_sys::ExecutorStart(run, 0);
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
        pg_sys::ExecutorRun(run, forward, 0, true);
        #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
        pg_sys::ExecutorRun(run, forward, 0);
        pg_sys::ExecutorFinish(run);
        pg_sys::ExecutorEnd(run);
        pg_sys::FreeQueryDesc(run);
        pg_sys::PopActiveSnapshot();
    }
}

/// The name under which a writing statement reads the rows that are given with it.
pub const GIVEN: &str = "pg_backfill_rows";

/// Runs a writing statement, and says how many rows it wrote.
pub fn write(sql: &str, parameters: Option<Pair>, rows: Option<&Batch>) -> u64 {
    execute(sql, parameters, rows, true)
}

/// The same within [`together`], which does what triggers do after it.
pub fn write_part(sql: &str, parameters: Option<Pair>, rows: Option<&Batch>) -> u64 {
    execute(sql, parameters, rows, false)
}

/// Makes one statement of several [parts](write_part): what foreign keys and other triggers do after a statement, they
/// do after the last, when all rows are there that are to be.
pub fn together<R>(write: impl FnOnce() -> R) -> R {
    unsafe {
        pg_sys::AfterTriggerBeginQuery();
        let written = write();
        pg_sys::AfterTriggerEndQuery(std::ptr::null_mut());
        written
    }
}

fn execute(sql: &str, parameters: Option<Pair>, rows: Option<&Batch>, whole: bool) -> u64 {
    let text = quote::c_string(sql);
    let name = quote::c_string(GIVEN);
    let mut relation = pg_sys::EphemeralNamedRelationData::default();
    let (mut types, mut values) = (Vec::new(), Vec::new());
    if let Some(pair) = parameters {
        types.extend([pair.type_oid; 2]);
        values.extend(pair.values);
    }
    unsafe {
        assert_eq!(pg_sys::SPI_connect(), pg_sys::SPI_OK_CONNECT as i32);
        if let Some(rows) = rows {
            relation.md.name = name.as_ptr().cast_mut();
            relation.md.tupdesc = rows.shape();
            relation.md.enrtype = pg_sys::EphemeralNameRelationType::ENR_NAMED_TUPLESTORE;
            relation.md.enrtuples = rows.count() as f64;
            relation.reldata = rows.store().cast();
            let status = pg_sys::SPI_register_relation(&mut relation);
            assert_eq!(status, pg_sys::SPI_OK_REL_REGISTER as i32);
        }
        let plan = pg_sys::SPI_prepare(text.as_ptr(), types.len() as i32, types.as_mut_ptr());
        assert!(!plan.is_null(), "SPI_prepare: {}", { pg_sys::SPI_result });
        let (values, nulls, latest) = (values.as_mut_ptr(), std::ptr::null(), std::ptr::null_mut());
        let status = pg_sys::SPI_execute_snapshot(plan, values, nulls, latest, latest, false, whole, 0);
        assert!(status >= 0, "SPI: {status}");
        let written = pg_sys::SPI_processed;
        pg_sys::SPI_finish();
        written
    }
}
