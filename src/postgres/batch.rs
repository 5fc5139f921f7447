//! Rows set aside, to be written by a statement later: in a tuplestore, which goes to temporary files beyond
//! `maintenance_work_mem`.

use crate::postgres::quote;
use pgrx::pg_sys;

/// The shape of rows with columns of these names, types and modifiers.
pub fn shape(columns: &[(&str, pg_sys::Oid, i32)]) -> pg_sys::TupleDesc {
    unsafe {
        let shape = pg_sys::CreateTemplateTupleDesc(columns.len() as i32);
        for (place, (name, type_oid, modifier)) in (1..).zip(columns) {
            let name = quote::c_string(name);
            pg_sys::TupleDescInitEntry(shape, place, name.as_ptr(), *type_oid, *modifier, 0);
        }
        shape
    }
}

/// Rows of one shape.
pub struct Batch {
    store: *mut pg_sys::Tuplestorestate,
    shape: pg_sys::TupleDesc,
    count: u64,
}

impl Batch {
    /// None yet, of a shape that lives as long.
    pub fn new(shape: pg_sys::TupleDesc) -> Self {
        let store = unsafe {
            let memory = pg_sys::work_mem.max(pg_sys::maintenance_work_mem);
            pg_sys::tuplestore_begin_heap(false, false, memory)
        };
        Self { store, shape, count: 0 }
    }

    pub fn shape(&self) -> pg_sys::TupleDesc {
        self.shape
    }

    pub fn store(&self) -> *mut pg_sys::Tuplestorestate {
        self.store
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the row in the slot.
    pub unsafe fn add(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        self.count += 1;
        unsafe { pg_sys::tuplestore_puttupleslot(self.store, slot) };
    }

    /// Adds a row of these values.
    pub unsafe fn add_values(&mut self, values: &mut [pg_sys::Datum], nulls: &mut [bool]) {
        self.count += 1;
        unsafe {
            pg_sys::tuplestore_putvalues(self.store, self.shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
    }

    /// Shows each row in its order, in a slot all of whose attributes have been fetched.
    pub fn each(&self, mut look: impl FnMut(*mut pg_sys::TupleTableSlot)) {
        unsafe {
            let ops = &raw const pg_sys::TTSOpsMinimalTuple;
            let slot = pg_sys::MakeSingleTupleTableSlot(self.shape, ops);
            pg_sys::tuplestore_rescan(self.store);
            while pg_sys::tuplestore_gettupleslot(self.store, true, false, slot) {
                pg_sys::slot_getallattrs(slot);
                look(slot);
            }
            pg_sys::ExecDropSingleTupleTableSlot(slot);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // After an error the (sub)transaction frees what it holds.
        if !std::thread::panicking() {
            unsafe { pg_sys::tuplestore_end(self.store) };
        }
    }
}
