//! Rows of the extension's own composite types.

use crate::postgres::quote;
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::{IntoDatum, impl_sql_translatable, pg_sys};

/// A value of a composite type of schema `backfill`.
pub struct Composite(pg_sys::Datum);

impl_sql_translatable!(Composite, "record");

/// Makes a value of `backfill.<type_name>` from its attributes in their order.
pub fn composite(type_name: &str, mut values: Vec<Option<pg_sys::Datum>>) -> Composite {
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"backfill".as_ptr(), false);
        let name = quote::c_string(type_name);
        let oid = pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::TYPENAMENSP as i32,
            pg_sys::Anum_pg_type_oid as _,
            pg_sys::Datum::from(name.as_ptr()),
            pg_sys::Datum::from(schema),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
        );
        let desc = pg_sys::lookup_rowtype_tupdesc(oid, -1);
        assert_eq!((*desc).natts as usize, values.len(), "attributes of backfill.{type_name}");
        let mut nulls: Vec<bool> = values.iter().map(Option::is_none).collect();
        let mut datums: Vec<pg_sys::Datum> =
            values.drain(..).map(|v| v.unwrap_or(pg_sys::Datum::from(0))).collect();
        let tuple = pg_sys::heap_form_tuple(desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
        let datum = pg_sys::heap_copy_tuple_as_datum(tuple, desc);
        pg_sys::DecrTupleDescRefCount(desc);
        Composite(datum)
    }
}

/// A value as an attribute.
pub fn value<T: IntoDatum>(value: T) -> Option<pg_sys::Datum> {
    value.into_datum()
}

impl IntoDatum for Composite {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.0)
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::RECORDOID
    }
}

unsafe impl BoxRet for Composite {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}
