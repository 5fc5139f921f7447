//! Time zones, from PostgreSQL's own zone data.
//!
//! ```text
//! PgZone::new(name) -> Result<PgZone, ZoneError>      implements domain::zone::Zone
//! zone.name()                                         as PostgreSQL spells it
//! zone.fixed_offset() -> Option<seconds east>         for zones that never change it
//! ```
//!
//! The calls below are those that `AT TIME ZONE` and `SET TimeZone` end in, without what the session
//! adds: a name is looked up in the zone data alone, never among the session's abbreviations. Those are
//! not stable. `MST` is UTC-7 in most sessions, but since PostgreSQL 18 it is UTC+2:30:17 where
//! `TimeZone` is `Europe/Moscow`. So a zone here means what `pg_timezone_names` and `SET TimeZone` say.
//! In SQL `AT TIME ZONE` prefers the abbreviation, which matters for four names of today's data: `CET`,
//! `EET`, `MET` and `WET` have a summer time as zones and none as abbreviations. Written with a colon
//! before the name (`AT TIME ZONE ':CET'`) SQL reads the zone too.
//!
//! A POSIX specification works as PostgreSQL reads it: `EST5EDT,M3.2.0,M11.1.0`, or `<+0530>-5:30`, where
//! the sign is that of hours *west*.

use std::ffi::{CStr, CString, c_int, c_long};
use std::fmt;
use std::ptr::NonNull;

use chrono::{Datelike, NaiveDateTime, Timelike};
use pgrx::pg_sys;

use crate::domain::zone::{Instant, Zone};

/// Seconds from 1970, where the zone data count from, to 2000, where PostgreSQL counts from.
const UNIX_TO_POSTGRES: i64 = 946_684_800;
/// PostgreSQL writes but does not read timestamps with an offset of 16 hours or more.
const OFFSET_LIMIT: i64 = 16 * 3600;
/// A zone that skipped more would make daily windows overlap.
const LARGEST_GAP: i64 = 24 * 3600;

/// A zone by its name. Copying is free; PostgreSQL keeps the data for the life of the backend.
#[derive(Clone, Copy, Debug)]
pub struct PgZone(NonNull<pg_sys::pg_tz>);

/// Why a name is refused. Each holds the name as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneError {
    /// Neither in the zone data nor a POSIX specification.
    Unknown(String),
    /// A bare offset: `SET TimeZone = '+5'` is five hours east, `AT TIME ZONE '+5'` five hours west.
    BareOffset(String),
    /// Its clock counts leap seconds, which PostgreSQL's does not.
    LeapSeconds(String),
    /// A POSIX specification with an offset of 16 hours or more, or a change by more than a day.
    Unreal(String),
}

impl PgZone {
    /// Looks a zone up, in any spelling of upper and lower case.
    ///
    /// # Errors
    /// The name is not a zone that a calendar can rely on: see [`ZoneError`].
    pub fn new(name: &str) -> Result<PgZone, ZoneError> {
        if name.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-') {
            return Err(ZoneError::BareOffset(name.into()));
        }
        let unknown = || ZoneError::Unknown(name.into());
        // PostgreSQL reads an empty name as UTC here, though nowhere else.
        let c_name = CString::new(name).ok().filter(|c_name| !c_name.is_empty());
        let c_name = c_name.ok_or_else(unknown)?;
        // SAFETY: a NUL-terminated string. PostgreSQL refuses one that is too long.
        let zone = NonNull::new(unsafe { pg_sys::pg_tzset(c_name.as_ptr()) }).ok_or_else(unknown)?;
        // SAFETY: entries of PostgreSQL's cache of zones are never freed.
        if !unsafe { pg_sys::pg_tz_acceptable(zone.as_ptr()) } {
            return Err(ZoneError::LeapSeconds(name.into()));
        }
        let zone = PgZone(zone);
        if zone.is_misspelt() {
            return Err(unknown());
        }
        if !zone.is_real() {
            return Err(ZoneError::Unreal(name.into()));
        }
        Ok(zone)
    }

    /// The name as PostgreSQL spells it: `America/New_York` for `america/new_york`.
    pub fn name(&self) -> String {
        // SAFETY: the name is part of the cache entry.
        let name = unsafe { CStr::from_ptr(pg_sys::pg_get_timezone_name(self.0.as_ptr())) };
        name.to_string_lossy().into_owned()
    }

    /// Seconds east of Greenwich, if the zone has had no other offset in all its history.
    pub fn fixed_offset(&self) -> Option<i32> {
        let mut east: c_long = 0;
        // SAFETY: the zone is from the cache, the result goes to a local.
        let fixed = unsafe { pg_sys::pg_get_timezone_offset(self.0.as_ptr(), &mut east) };
        fixed.then_some(east as i32)
    }

    /// Whether this is a misspelt name that PostgreSQL took for a POSIX specification: it reads
    /// `Europe/Berlin2` as a zone two hours west. POSIX names have no slash and PostgreSQL stores a
    /// specification in capitals, while every zone with a slash has small letters.
    fn is_misspelt(&self) -> bool {
        let name = self.name();
        let (place, _rules) = name.split_once(',').unwrap_or((&name, ""));
        place.contains('/') && !place.contains(|c: char| c.is_ascii_lowercase())
    }

    /// Whether the offsets keep the promise of [`Zone`]. A POSIX specification repeats every year, so
    /// that the changes of one year show all of its offsets; the zone data are known to keep it.
    fn is_real(&self) -> bool {
        let mut from: pg_sys::pg_time_t = UNIX_TO_POSTGRES;
        for _ in 0..2 {
            let (mut before, mut after): (c_long, c_long) = (0, 0);
            let (mut before_dst, mut after_dst): (c_int, c_int) = (0, 0);
            let mut change: pg_sys::pg_time_t = 0;
            // SAFETY: the zone is from the cache, the results go to locals.
            let found = unsafe {
                pg_sys::pg_next_dst_boundary(
                    &from,
                    &mut before,
                    &mut before_dst,
                    &mut change,
                    &mut after,
                    &mut after_dst,
                    self.0.as_ptr(),
                )
            };
            if before.abs() >= OFFSET_LIMIT {
                return false;
            }
            if found != 1 {
                return true;
            }
            if after.abs() >= OFFSET_LIMIT || after - before > LARGEST_GAP {
                return false;
            }
            from = change;
        }
        true
    }
}

impl Zone for PgZone {
    fn to_instant(&self, local: NaiveDateTime) -> Instant {
        let mut clock = pg_sys::pg_tm {
            tm_year: local.year(),
            tm_mon: local.month() as c_int,
            tm_mday: local.day() as c_int,
            tm_hour: local.hour() as c_int,
            tm_min: local.minute() as c_int,
            tm_sec: local.second() as c_int,
            ..Default::default()
        };
        // SAFETY: the zone is from the cache. The call writes to `clock` and keeps nothing.
        let west = unsafe { pg_sys::DetermineTimeZoneOffset(&mut clock, self.0.as_ptr()) };
        let shown = Instant::from_utc(local);
        shown.checked_add(i64::from(west) * 1_000_000).unwrap_or(shown)
    }

    fn offset(&self, at: Instant) -> i32 {
        let seconds: pg_sys::pg_time_t = at.0.div_euclid(1_000_000) + UNIX_TO_POSTGRES;
        // SAFETY: the zone is from the cache. The answer is a static of PostgreSQL, read at once; it is
        // null only for years that no `int` holds, which microseconds in an i64 do not reach.
        unsafe { pg_sys::pg_localtime(&seconds, self.0.as_ptr()).as_ref() }
            .map_or(0, |clock| clock.tm_gmtoff as i32)
    }
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ZoneError::Unknown(name) => write!(
                f,
                "the time zone \"{name}\" is not known; pg_timezone_names lists the zones of this server"
            ),
            ZoneError::BareOffset(name) => write!(
                f,
                "the time zone \"{name}\" is an offset, which PostgreSQL reads east in one place and \
                 west in another; name a zone, such as Asia/Kolkata"
            ),
            ZoneError::LeapSeconds(name) => {
                write!(f, "the time zone \"{name}\" counts leap seconds")
            }
            ZoneError::Unreal(name) => write!(
                f,
                "the time zone \"{name}\" has an offset of 16 hours or more, or skips more than a day"
            ),
        }
    }
}

impl std::error::Error for ZoneError {}
