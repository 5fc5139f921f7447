//! Rows that a query finds under a name of ours, as if they were a table.

use crate::postgres::batch::{Batch, shape};
use crate::postgres::quote;
use crate::postgres::table::Table;
use pgrx::pg_sys;
use std::ffi::CString;

/// A named relation that is no table. The query that reads it is analysed and run with its environment.
pub struct Named {
    environment: *mut pg_sys::QueryEnvironment,
    /// The environment points at both.
    _relation: Box<pg_sys::EphemeralNamedRelationData>,
    _name: CString,
}

impl Named {
    /// The rows under that name.
    pub fn rows(name: &str, rows: &Batch) -> Self {
        Self::new(name, rows.shape(), rows.store(), rows.count())
    }

    /// No rows yet; those to come have the columns of the table that a statement may give a value. For analysis only.
    pub fn shaped(name: &str, table: &Table) -> Self {
        let columns = table.columns.iter().filter(|column| !column.generated);
        let columns: Vec<_> = columns.map(|column| (column.name.as_str(), column.type_oid, -1)).collect();
        Self::new(name, shape(&columns), std::ptr::null_mut(), 0)
    }

    fn new(name: &str, shape: pg_sys::TupleDesc, store: *mut pg_sys::Tuplestorestate, count: u64) -> Self {
        let name = quote::c_string(name);
        let mut relation = Box::new(pg_sys::EphemeralNamedRelationData::default());
        relation.md.name = name.as_ptr().cast_mut();
        relation.md.tupdesc = shape;
        relation.md.enrtype = pg_sys::EphemeralNameRelationType::ENR_NAMED_TUPLESTORE;
        relation.md.enrtuples = count as f64;
        relation.reldata = store.cast();
        let environment = unsafe {
            let environment = pg_sys::create_queryEnv();
            pg_sys::register_ENR(environment, &raw mut *relation);
            environment
        };
        Self { environment, _relation: relation, _name: name }
    }

    pub fn environment(&self) -> *mut pg_sys::QueryEnvironment {
        self.environment
    }
}
