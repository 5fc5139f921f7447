//! The domain's values as PostgreSQL's datums.

use crate::domain::zone::Instant;
use chrono::NaiveDateTime;
use pgrx::callconv::{Arg, ArgAbi};
use pgrx::datum::{Interval, Timestamp, TimestampWithTimeZone};
use pgrx::{FromDatum, IntoDatum, impl_sql_translatable, pg_sys};

impl FromDatum for Instant {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _typoid: pg_sys::Oid,
    ) -> Option<Self> {
        (!is_null).then(|| Instant(datum.value() as i64))
    }
}

impl IntoDatum for Instant {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(self.0))
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TIMESTAMPTZOID
    }
}

/// The server's clock, read now.
pub fn clock() -> Instant {
    Instant(unsafe { pg_sys::GetCurrentTimestamp() })
}

/// A `timestamp` without zone as civil time. Both count microseconds since 2000-01-01 00:00:00.
pub fn local(timestamp: Timestamp) -> NaiveDateTime {
    Instant(i64::from(timestamp)).utc()
}

/// An instant as pgrx's type, for the rows of set-returning functions.
pub fn timestamptz(at: Instant) -> TimestampWithTimeZone {
    TimestampWithTimeZone::try_from(at.0).expect("instants of the ledger are finite")
}

/// Civil time as a `timestamp` without zone.
pub fn timestamp(local: NaiveDateTime) -> Timestamp {
    Timestamp::try_from(Instant::from_utc(local).0).expect("chrono's years are within PostgreSQL's")
}

/// An interval by its three fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

impl Span {
    /// Microseconds, with a month of 30 days and a day of 24 hours, as PostgreSQL compares intervals.
    /// Saturates at the range of `i64`.
    pub fn approximate_micros(self) -> i64 {
        let days = i64::from(self.months) * 30 + i64::from(self.days);
        days.saturating_mul(86_400_000_000).saturating_add(self.micros)
    }
}

impl FromDatum for Span {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        typoid: pg_sys::Oid,
    ) -> Option<Self> {
        let interval = unsafe { Interval::from_polymorphic_datum(datum, is_null, typoid) }?;
        Some(Self { months: interval.months(), days: interval.days(), micros: interval.micros() })
    }
}

impl IntoDatum for Span {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Interval::new(self.months, self.days, self.micros)
            .expect("fields that came from an interval")
            .into_datum()
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::INTERVALOID
    }
}

/// A `jsonb` as PostgreSQL stores it. pgrx's own type would read its numbers as floats.
#[derive(Debug)]
pub struct Jsonb(Box<[u8]>);

impl_sql_translatable!(Jsonb, "jsonb");

impl FromDatum for Jsonb {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _typoid: pg_sys::Oid,
    ) -> Option<Self> {
        if is_null {
            return None;
        }
        unsafe {
            let varlena = pg_sys::pg_detoast_datum(datum.cast_mut_ptr());
            let bytes = std::slice::from_raw_parts(varlena.cast::<u8>(), pgrx::varsize_any(varlena));
            Some(Self(bytes.into()))
        }
    }
}

impl IntoDatum for Jsonb {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        unsafe {
            let copy = pg_sys::palloc(self.0.len()).cast::<u8>();
            copy.copy_from_nonoverlapping(self.0.as_ptr(), self.0.len());
            Some(pg_sys::Datum::from(copy))
        }
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONBOID
    }
}

unsafe impl<'fcx> ArgAbi<'fcx> for Jsonb {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        unsafe { arg.unbox_arg_using_from_datum() }.expect("an argument that is not NULL")
    }
}

/// A duration in microseconds as people read it: `90 s`, `15 min`, `36 h`.
pub fn seconds_text(micros: i64) -> String {
    let seconds = micros as f64 / 1e6;
    match micros {
        m if m % 3_600_000_000 == 0 => format!("{} h", m / 3_600_000_000),
        m if m % 60_000_000 == 0 => format!("{} min", m / 60_000_000),
        _ => format!("{seconds} s"),
    }
}
