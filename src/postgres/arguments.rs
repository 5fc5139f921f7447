//! The arguments of a function with many of them, as one JSON object by their names.
//!
//! A declaration with twenty defaulted arguments and a `settings jsonb` with the same names then share one
//! way of reading, checking and storing them.

use pgrx::{FromDatum, JsonB, pg_sys};
use serde_json::{Map, Value};
use std::ffi::CStr;

/// The name and the type of each argument, in the order of the declaration. `backfill.bound` is text, and a
/// relation is its number.
pub type Signature = &'static [(&'static str, pg_sys::Oid)];

/// Reads the arguments of the call. NULLs are kept as JSON nulls.
///
/// # Safety
/// `fcinfo` must belong to a call of a function that is declared with this signature.
pub unsafe fn object(fcinfo: pg_sys::FunctionCallInfo, signature: Signature) -> Map<String, Value> {
    let args = unsafe {
        assert_eq!((*fcinfo).nargs as usize, signature.len(), "arguments of the declaration");
        (*fcinfo).args.as_slice(signature.len())
    };
    signature
        .iter()
        .zip(args)
        .map(|((name, oid), arg)| {
            let value = unsafe { if arg.isnull { Value::Null } else { value(arg.value, *oid) } };
            ((*name).to_owned(), value)
        })
        .collect()
}

unsafe fn value(datum: pg_sys::Datum, oid: pg_sys::Oid) -> Value {
    unsafe {
        match oid {
            pg_sys::BOOLOID => bool::from_datum(datum, false).map(Value::Bool),
            pg_sys::INT4OID => i32::from_datum(datum, false).map(Value::from),
            pg_sys::INT8OID => i64::from_datum(datum, false).map(Value::from),
            pg_sys::OIDOID => pg_sys::Oid::from_datum(datum, false).map(|oid| Value::from(u32::from(oid))),
            pg_sys::JSONBOID => JsonB::from_datum(datum, false).map(|json| json.0),
            pg_sys::TEXTARRAYOID => Vec::<Option<String>>::from_datum(datum, false).map(Value::from),
            _ => {
                let (mut output, mut varlena) = (pg_sys::InvalidOid, false);
                pg_sys::getTypeOutputInfo(oid, &mut output, &mut varlena);
                let text = pg_sys::OidOutputFunctionCall(output, datum);
                Some(Value::from(CStr::from_ptr(text).to_string_lossy().into_owned()))
            }
        }
    }
    .unwrap_or(Value::Null)
}
