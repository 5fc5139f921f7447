//! Every error that a caller can meet: its SQLSTATE, the values (DETAIL) and the call that helps (HINT).
//!
//! pgrx's list of SQLSTATEs is closed and an error that crosses Rust loses the fields that it does not know.
//! Both are mended at one place, [`raise`] and [`faithful`]: an error-context callback, which PostgreSQL
//! calls while it assembles a report, puts the code and the fields back.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::panic::AssertUnwindSafe;

/// The reason of an error, one for each SQLSTATE that this extension raises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// BF001: the fencing token is unknown, superseded or finished.
    StaleToken,
    /// BF002: the lease was revoked.
    Revoked,
    /// BF003: the number given as confirmation is not the number of windows.
    Unconfirmed,
    /// BF004: what a plan or a lease was made from has moved.
    OutOfDate,
    /// BF005: rows lie outside the window.
    OutsideWindow,
    /// BF006: the new slice is empty or much smaller than the old one.
    Shrunk,
    /// BF007: slices of several code versions would stand side by side.
    Mixed,
    /// BF009: another plan owns the window.
    Owned,
    /// BF010: what a query says keeps it from being a function of its window.
    Impure,
    /// BF011: a protected table is written without the fence of the window.
    Unfenced,
    /// BF012: a bound is off the grid.
    OffGrid,
    /// 22023
    InvalidParameter,
    /// 22004
    NullValue,
    /// 23505
    NotUnique,
    /// 25006
    ReadOnly,
    /// 40001
    Serialization,
    /// 42501
    Forbidden,
    /// 42704
    Undefined,
    /// 42710
    Duplicate,
    /// 0A000
    Unsupported,
    /// 54000
    TooMany,
    /// 55000
    NotInState,
    /// 55P03
    Locked,
}

impl Code {
    /// The five characters of the SQLSTATE.
    pub fn sqlstate(self) -> &'static str {
        match self {
            Self::StaleToken => "BF001",
            Self::Revoked => "BF002",
            Self::Unconfirmed => "BF003",
            Self::OutOfDate => "BF004",
            Self::OutsideWindow => "BF005",
            Self::Shrunk => "BF006",
            Self::Mixed => "BF007",
            Self::Owned => "BF009",
            Self::Impure => "BF010",
            Self::Unfenced => "BF011",
            Self::OffGrid => "BF012",
            Self::InvalidParameter => "22023",
            Self::NullValue => "22004",
            Self::NotUnique => "23505",
            Self::ReadOnly => "25006",
            Self::Serialization => "40001",
            Self::Forbidden => "42501",
            Self::Undefined => "42704",
            Self::Duplicate => "42710",
            Self::Unsupported => "0A000",
            Self::TooMany => "54000",
            Self::NotInState => "55000",
            Self::Locked => "55P03",
        }
    }
}

/// An error as the caller will see it.
#[derive(Debug, Clone)]
pub struct Error {
    pub code: Code,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None }
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.sqlstate(), self.message)
    }
}

impl std::error::Error for Error {}

/// What pgrx does not carry from an error to its report.
#[derive(Debug, Clone, Default)]
pub struct Fields {
    pub sqlstate: c_int,
    pub message: String,
    schema: Option<CString>,
    table: Option<CString>,
    column: Option<CString>,
    datatype: Option<CString>,
    constraint: Option<CString>,
}

impl Fields {
    /// Whether they were noted of this error. One that nobody noted has other words.
    fn are_of(&self, caught: &CaughtError) -> bool {
        matches!(caught, CaughtError::PostgresError(report) if report.message() == self.message)
    }
}

unsafe extern "C-unwind" {
    // pgrx leaves these unbound on purpose; they are called from inside a report only.
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn err_generic_string(field: c_int, value: *const c_char) -> c_int;
}

thread_local! {
    /// Set before a report; consumed by the callback of that report.
    static PENDING: RefCell<Option<Fields>> = const { RefCell::new(None) };
    /// The newest error seen while [`faithful`] ran.
    static SEEN: RefCell<Option<Fields>> = const { RefCell::new(None) };
}

struct Callback(std::cell::UnsafeCell<pg_sys::ErrorContextCallback>);
// A backend has one thread that reports errors.
unsafe impl Sync for Callback {}

impl Callback {
    const fn empty() -> Self {
        Self(std::cell::UnsafeCell::new(pg_sys::ErrorContextCallback {
            previous: std::ptr::null_mut(),
            callback: None,
            arg: std::ptr::null_mut(),
        }))
    }

    /// Puts the callback on top of the stack, where it stays until PostgreSQL unwinds to the catcher of
    /// the error that is about to be raised.
    unsafe fn push(&self, callback: unsafe extern "C-unwind" fn(*mut c_void)) {
        unsafe {
            let cb = self.0.get();
            if pg_sys::error_context_stack != cb {
                (*cb).previous = pg_sys::error_context_stack;
                (*cb).callback = Some(callback);
                pg_sys::error_context_stack = cb;
            }
        }
    }
}

static RESTORE: Callback = Callback::empty();

/// Packs a SQLSTATE as PostgreSQL does (`MAKE_SQLSTATE`).
pub fn pack(sqlstate: &str) -> c_int {
    sqlstate
        .bytes()
        .take(5)
        .enumerate()
        .fold(0, |code, (i, b)| code | ((c_int::from(b) - c_int::from(b'0')) & 0x3F) << (6 * i))
}

/// The class of a packed SQLSTATE: its first two characters, packed.
pub fn class(packed: c_int) -> c_int {
    packed & 0xFFF
}

/// Runs inside the report that [`raise`] or [`faithful`] makes and gives it what pgrx lost.
unsafe extern "C-unwind" fn restore(_arg: *mut c_void) {
    let Some(fields) = PENDING.with(|p| p.take()) else { return };
    unsafe {
        errcode(fields.sqlstate);
        for (field, value) in [
            (pg_sys::PG_DIAG_SCHEMA_NAME, &fields.schema),
            (pg_sys::PG_DIAG_TABLE_NAME, &fields.table),
            (pg_sys::PG_DIAG_COLUMN_NAME, &fields.column),
            (pg_sys::PG_DIAG_DATATYPE_NAME, &fields.datatype),
            (pg_sys::PG_DIAG_CONSTRAINT_NAME, &fields.constraint),
        ] {
            if let Some(value) = value {
                err_generic_string(field as c_int, value.as_ptr());
            }
        }
    }
}

/// Runs inside every report made while [`faithful`] runs a statement and notes what pgrx will lose.
unsafe extern "C-unwind" fn observe(_arg: *mut c_void) {
    unsafe {
        // Copies must not lie in ErrorContext, which is where callbacks run.
        let context = pg_sys::MemoryContextSwitchTo(pg_sys::TopTransactionContext);
        let edata = pg_sys::CopyErrorData();
        if (*edata).elevel >= PgLogLevel::ERROR as c_int {
            let own = |p: *const c_char| (!p.is_null()).then(|| CStr::from_ptr(p).to_owned());
            let fields = Fields {
                sqlstate: (*edata).sqlerrcode,
                message: own((*edata).message).map(|m| m.to_string_lossy().into_owned()).unwrap_or_default(),
                schema: own((*edata).schema_name),
                table: own((*edata).table_name),
                column: own((*edata).column_name),
                datatype: own((*edata).datatype_name),
                constraint: own((*edata).constraint_name),
            };
            SEEN.with(|s| s.replace(Some(fields)));
        }
        pg_sys::FreeErrorData(edata);
        pg_sys::MemoryContextSwitchTo(context);
    }
}

/// Ends the call with an error of ours. Must be reached at the outermost function only: an error that
/// travels through SPI back into Rust is caught and raised again by pgrx, which drops its code.
pub fn raise(error: Error) -> ! {
    let fields = Fields { sqlstate: pack(error.code.sqlstate()), ..Fields::default() };
    PENDING.with(|p| p.replace(Some(fields)));
    unsafe { RESTORE.push(restore) };
    let mut report =
        ErrorReport::new(PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION, error.message, "pg_backfill");
    if let Some(detail) = error.detail {
        report = report.set_detail(detail);
    }
    if let Some(hint) = error.hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::ERROR);
    unreachable!()
}

/// The result of a SQL-callable function: its value, or the end of the call.
pub fn answer<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| raise(error))
}

/// Raises an error again that was caught on its way. What [`faithful`] noted of it comes back also where a subtransaction, or another
/// [`faithful`] around that one, has taken the callback off the stack since.
pub fn rethrow(caught: CaughtError) -> ! {
    if PENDING.with_borrow(|noted| noted.as_ref().is_some_and(|fields| fields.are_of(&caught))) {
        unsafe { RESTORE.push(restore) };
    }
    caught.rethrow()
}

/// Runs somebody's SQL so that its error reaches the caller with its own SQLSTATE, constraint, table and
/// column names.
pub fn faithful<T>(f: impl FnOnce() -> T) -> T {
    let mut frame = pg_sys::ErrorContextCallback {
        previous: unsafe { pg_sys::error_context_stack },
        callback: Some(observe),
        arg: std::ptr::null_mut(),
    };
    let previous = frame.previous;
    SEEN.with(|s| s.take());
    unsafe { pg_sys::error_context_stack = &raw mut frame };
    let result = PgTryBuilder::new(AssertUnwindSafe(f))
        .catch_others(|caught| {
            unsafe { pg_sys::error_context_stack = previous };
            if let Some(seen) = SEEN.with(|s| s.take())
                && seen.are_of(&caught)
            {
                PENDING.with(|p| p.replace(Some(seen)));
            }
            rethrow(caught)
        })
        .execute();
    unsafe { pg_sys::error_context_stack = previous };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_pack_as_postgresql_packs_them() {
        assert_eq!(pack("00000"), 0);
        assert_eq!(pack("23505"), 83_906_754);
        assert_eq!(class(pack("23505")), pack("23"));
    }
}
