//! Settings for the length of a call: a statement must not mean something else in another session.
//!
//! They are set for one nest level of PostgreSQL's own and taken back with it, together with what the
//! statements set themselves, at the end of the closure or of the (sub)transaction that an error aborts.

use crate::postgres::quote;
use pgrx::pg_sys;
use std::ffi::CStr;

/// What everything resolves to that belongs to PostgreSQL; the session's own temporary tables come last.
const SYSTEM_PATH: &str = "pg_catalog, pg_temp";

/// How text is read: a query means the same, whatever session runs it.
const READING: [(&str, &str); 4] = [
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("array_nulls", "on"),
    ("xmloption", "content"),
];

/// How values are written as text, apart from the zone.
const WRITING: [(&str, &str); 4] = [
    ("DateStyle", "ISO, YMD"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
];

/// A nest level of settings.
struct Nest(i32);

impl Nest {
    fn new() -> Self {
        Self(unsafe { pg_sys::NewGUCNestLevel() })
    }

    fn set(&self, name: &str, value: &str) {
        let (name, value) = (quote::c_string(name), quote::c_string(value));
        unsafe {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
    }

    fn set_all(&self, settings: &[(&str, &str)]) {
        for (name, value) in settings {
            self.set(name, value);
        }
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        // An error takes the level back when it aborts the (sub)transaction.
        if !std::thread::panicking() {
            unsafe { pg_sys::AtEOXact_GUC(false, self.0) };
        }
    }
}

/// The session's `search_path` as it was set.
pub fn session_path() -> String {
    unsafe { CStr::from_ptr(pg_sys::namespace_search_path).to_string_lossy().into_owned() }
}

/// Runs statements of the ledger, in which every name without a schema is PostgreSQL's own.
pub fn pinned<T>(f: impl FnOnce() -> T) -> T {
    if unsafe { CStr::from_ptr(pg_sys::namespace_search_path) }.to_bytes() == SYSTEM_PATH.as_bytes() {
        return f();
    }
    let nest = Nest::new();
    nest.set("search_path", SYSTEM_PATH);
    let result = f();
    drop(nest);
    result
}

/// Runs somebody's query: in the pipeline's zone, and under the `search_path` that it was written for.
pub fn for_query<T>(zone: &str, path: &str, f: impl FnOnce() -> T) -> T {
    let nest = Nest::new();
    nest.set_all(&READING);
    nest.set_all(&WRITING);
    nest.set("TimeZone", zone);
    nest.set("search_path", path);
    let result = f();
    drop(nest);
    result
}

/// Whether [`for_query`] sets it.
pub fn is_pinned(name: &str) -> bool {
    let named = |(setting, _): &(&str, &str)| setting.eq_ignore_ascii_case(name);
    READING.iter().chain(&WRITING).any(named)
        || ["TimeZone", "search_path"].iter().any(|setting| setting.eq_ignore_ascii_case(name))
}

/// Runs what must come out as the same text in every session: digests, deparsed queries.
pub fn for_text<T>(f: impl FnOnce() -> T) -> T {
    let nest = Nest::new();
    nest.set_all(&READING);
    nest.set_all(&WRITING);
    nest.set("TimeZone", "UTC");
    nest.set("lc_monetary", "C");
    nest.set("quote_all_identifiers", "off");
    nest.set("search_path", SYSTEM_PATH);
    let result = f();
    drop(nest);
    result
}

/// Looks at a slice as it is: [`for_text`], and no row may be hidden without an error.
///
/// Right after writing, the planner holds the slice's pages for all-visible and in order. A bitmap scan counts
/// 100,000 rows in 13 ms, where the index-only scan that the planner would choose takes 35, an index scan 22.
pub fn for_slice<T>(f: impl FnOnce() -> T) -> T {
    for_text(|| {
        let nest = Nest::new();
        nest.set("row_security", "off");
        nest.set("enable_indexonlyscan", "off");
        nest.set("enable_indexscan", "off");
        let result = f();
        drop(nest);
        result
    })
}

/// Takes locks on a user's table: others queue up behind whoever waits for one, so that nobody waits for long.
/// A limit that the session has set counts.
pub fn with_patience<T>(f: impl FnOnce() -> T) -> T {
    if unsafe { pg_sys::LockTimeout } > 0 { f() } else { waiting_at_most("2s", f) }
}

/// Waits for no lock: for a millisecond, which is as short as it can be said.
pub fn without_patience<T>(f: impl FnOnce() -> T) -> T {
    waiting_at_most("1ms", f)
}

/// Waits so many milliseconds for each lock, or as long as the session has set, if that is less.
pub fn waiting_briefly<T>(limit: i32, f: impl FnOnce() -> T) -> T {
    match unsafe { pg_sys::LockTimeout } {
        set if (1..=limit).contains(&set) => f(),
        _ => waiting_at_most(&format!("{limit}ms"), f),
    }
}

fn waiting_at_most<T>(limit: &str, f: impl FnOnce() -> T) -> T {
    let nest = Nest::new();
    nest.set("lock_timeout", limit);
    let result = f();
    drop(nest);
    result
}

/// A `search_path` of [`search_path`] for a session that may have temporary tables: without a mention of
/// `pg_temp` they would come first.
pub fn with_temporary_last(path: &str) -> String {
    if path.is_empty() { "pg_temp".into() } else { format!("{path}, pg_temp") }
}

/// The schemas that the session's `search_path` means now, as one that means the same in every session: what
/// `"$user"` stands for is written out, the session's temporary schema is left out.
pub fn search_path() -> String {
    let mut schemas = Vec::new();
    unsafe {
        let list = pg_sys::fetch_search_path(false);
        if !list.is_null() {
            for i in 0..(*list).length {
                let schema = pg_sys::list_nth_oid(list, i);
                let name = pg_sys::get_namespace_name(schema);
                if !pg_sys::isTempNamespace(schema) && !name.is_null() {
                    schemas.push(quote::identifier(&CStr::from_ptr(name).to_string_lossy()));
                }
            }
        }
    }
    schemas.join(", ")
}
