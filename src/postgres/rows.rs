//! The new rows of a slice, built before anything is written.
//!
//! They are set aside and read from there by the statement that writes them. So a refusal leaves no dead rows
//! behind, an unchanged slice is not written, and what was refused can still be shown. For 100,000 rows this costs 8 ms of the 150 that writing them takes.

use crate::postgres::batch::Batch;
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
    /// Made when the shape is known.
    batch: Option<Batch>,
    bounds: Bounds,
    /// Where the slice column stands in a row, from 0.
    slice: usize,
    output: pg_sys::FmgrInfo,
    digester: Option<Digester>,
    outside: u64,
    examples: Vec<String>,
}

impl Rows {
    /// None yet; those to come have the slice column at place `slice`.
    pub fn new(bounds: Bounds, slice: usize) -> Self {
        Self {
            batch: None,
            bounds,
            slice,
            output: pg_sys::FmgrInfo::default(),
            digester: None,
            outside: 0,
            examples: Vec::new(),
        }
    }

    pub fn count(&self) -> u64 {
        self.batch().count()
    }

    /// How many rows lie outside the window; a NULL does.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// The slice columns of the first few of these, as text.
    pub fn examples(&self) -> &[String] {
        &self.examples
    }

    pub fn batch(&self) -> &Batch {
        self.batch.as_ref().expect("the rows were built")
    }

    /// The digest of all rows.
    pub fn digest(&mut self) -> Digest {
        let digester = self.digester.as_mut().expect("the rows were built");
        let batch = self.batch.as_ref().expect("the rows were built");
        if digester.is_settled() {
            return digester.digest();
        }
        // Their text depends on settings that are the query's own while it runs.
        let mut sum = Digest::default();
        settings::for_text(|| batch.each(|slot| sum += unsafe { digester.of_row(slot) }));
        sum
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
            let shape = pg_sys::CreateTupleDescCopy(shape);
            self.batch = Some(Batch::new(shape));
            self.digester = Some(Digester::new(shape));
            let type_oid = PgTupleDesc::from_pg_unchecked(shape)
                .get(self.slice)
                .expect("the slice column is among the columns")
                .atttypid;
            let (mut function, mut varlena) = (pg_sys::InvalidOid, false);
            pg_sys::getTypeOutputInfo(type_oid, &mut function, &mut varlena);
            pg_sys::fmgr_info(function, &mut self.output);
        }
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
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
            self.batch.as_mut().expect("the shape came first").add(slot);
        }
    }
}
