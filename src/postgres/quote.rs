//! Names and values inside statements and hints, quoted by PostgreSQL's own rules.

use pgrx::pg_sys;
use std::ffi::{CStr, CString};

/// A string literal.
pub fn literal(value: &str) -> String {
    pgrx::spi::quote_literal(value)
}

/// An identifier.
pub fn identifier(name: &str) -> String {
    pgrx::spi::quote_identifier(name)
}

/// A relation's name with its schema; its number if it was dropped.
pub fn relation(oid: pg_sys::Oid) -> String {
    unsafe {
        let name = pg_sys::get_rel_name(oid);
        if name.is_null() {
            return u32::from(oid).to_string();
        }
        let schema = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(oid));
        let text = |p| CStr::from_ptr(p).to_string_lossy().into_owned();
        format!("{}.{}", identifier(&text(schema)), identifier(&text(name)))
    }
}

/// Text without NUL bytes for PostgreSQL's C functions.
pub fn c_string(text: &str) -> CString {
    CString::new(text).expect("text from PostgreSQL has no NUL")
}
