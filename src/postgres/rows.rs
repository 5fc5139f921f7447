//! The new rows of a slice, built before anything is written.
//!
//! They are kept in a tuplestore, which goes to temporary files beyond `maintenance_work_mem`, and read from there by the
//! statement that writes them. So a refusal leaves no dead rows behind, an unchanged slice is not written, and
//! what was refused can still be shown. For 100,000 rows this costs 8 ms of the 150 that writing them takes.

use crate::postgres::digest::{Digest, Digester};
use crate::postgres::executor::Sink;
use crate::postgres::segment::Bounds;
use crate::postgres::settings;
use pgrx::{PgTupleDesc, pg_sys};
use std::ffi::CStr;

/// How many rows outside the window are shown.
const EXAMPLES: usize = 3;

/// Rows of the target's shape.
pub struct Rows {
    store: *mut pg_sys::Tuplestorestate,
    shape: pg_sys::TupleDesc,
    bounds: Bounds,
    /// Where the slice column stands in a row, from 0.
    slice: usize,
    output: pg_sys::FmgrInfo,
    digester: Option<Digester>,
    count: u64,
    outside: u64,
    examples: Vec<String>,
}

impl Rows {
    /// None yet; those to come have the slice column at place `slice`.
    pub fn new(bounds: Bounds, slice: usize) -> Self {
        Self {
            store: unsafe {
                let memory = pg_sys::work_mem.max(pg_sys::maintenance_work_mem);
                pg_sys::tuplestore_begin_heap(false, false, memory)
            },
            shape: std::ptr::null_mut(),
            bounds,
            slice,
            output: pg_sys::FmgrInfo::default(),
            digester: None,
            count: 0,
            outside: 0,
            examples: Vec::new(),
        }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many rows lie outside the window; a NULL does.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// The slice columns of the first few of these, as text.
    pub fn examples(&self) -> &[String] {
        &self.examples
    }

    pub fn store(&self) -> *mut pg_sys::Tuplestorestate {
        self.store
    }

    pub fn shape(&self) -> pg_sys::TupleDesc {
        self.shape
    }

    /// The digest of all rows.
    pub fn digest(&mut self) -> Digest {
        let digester = self.digester.as_mut().expect("the rows were built");
        if !digester.is_settled() {
            // Their text depends on settings that are the query's own while it runs.
            digester.reset();
            settings::for_text(|| unsafe {
                let ops = &raw const pg_sys::TTSOpsMinimalTuple;
                let slot = pg_sys::MakeSingleTupleTableSlot(self.shape, ops);
                pg_sys::tuplestore_rescan(self.store);
                while pg_sys::tuplestore_gettupleslot(self.store, true, false, slot) {
                    pg_sys::slot_getallattrs(slot);
                    digester.add(slot);
                }
                pg_sys::ExecDropSingleTupleTableSlot(slot);
            });
        }
        digester.digest()
    }

    fn example(&mut self, value: Option<pg_sys::Datum>) {
        let text = value.map(|value| unsafe {
            CStr::from_ptr(pg_sys::OutputFunctionCall(&mut self.output, value)).to_string_lossy().into_owned()
        });
        self.examples.push(text.unwrap_or_else(|| "NULL".into()));
    }
}

impl Sink for Rows {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        unsafe {
            self.shape = pg_sys::CreateTupleDescCopy(shape);
            let type_oid = PgTupleDesc::from_pg_unchecked(shape)
                .get(self.slice)
                .expect("the slice column is among the columns")
                .atttypid;
            let (mut function, mut varlena) = (pg_sys::InvalidOid, false);
            pg_sys::getTypeOutputInfo(type_oid, &mut function, &mut varlena);
            pg_sys::fmgr_info(function, &mut self.output);
        }
        self.digester = Some(Digester::new(self.shape));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        self.count += 1;
        unsafe {
            let null = *(*slot).tts_isnull.add(self.slice);
            let value = (!null).then(|| *(*slot).tts_values.add(self.slice));
            if !value.is_some_and(|value| self.bounds.contain(value)) {
                self.outside += 1;
                if self.examples.len() < EXAMPLES {
                    self.example(value);
                }
            }
            if let Some(digester) = self.digester.as_mut().filter(|digester| digester.is_settled()) {
                digester.add(slot);
            }
            pg_sys::tuplestore_puttupleslot(self.store, slot);
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // After an error the (sub)transaction frees what it holds.
        if !std::thread::panicking() {
            unsafe { pg_sys::tuplestore_end(self.store) };
        }
    }
}
