//! Instants, and the clock on the wall of a zone.
//!
//! ```text
//! Instant(micros since 2000-01-01 00:00:00 UTC)   from_utc · utc · checked_add · micros_since
//! trait Zone { to_instant(local) · offset(instant) · to_local(instant) }
//! ```
//!
//! A zone answers exactly as `timestamp AT TIME ZONE` does in PostgreSQL 15 to 18 (tried, and read in
//! `DetermineTimeZoneOffset`):
//!
//! - A local time that the clock skips is read with the offset from before the transition, which moves
//!   it forward by the width of the gap: 2013-03-10 02:30 in New York is 03:30 EDT. The skipped day
//!   2011-12-30 in Apia is the same instants as the 31st.
//! - A local time that the clock shows twice is its second showing: 2013-11-03 01:30 in New York is
//!   01:30 EST. Which of the two offsets is called standard time plays no part (Europe/Dublin).
//! - The transition itself belongs to what comes after it.
//!
//! Inside a gap the reading is not monotone: 02:30 is read as a later instant than 03:00. Two local
//! times at least as far apart as the gap is wide never change their order, and no zone skips more
//! than 24 hours (Apia, Kwajalein and Manila skipped exactly that), so that calendar steps, a day or
//! longer, never go backwards. The tests run that over every zone of PostgreSQL.

use chrono::{DateTime, NaiveDateTime, TimeDelta};

/// 2000-01-01 00:00:00 UTC, where PostgreSQL counts from, in microseconds since 1970.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// Microseconds since 2000-01-01 00:00:00 UTC: PostgreSQL's own number for a finite `timestamptz`.
///
/// PostgreSQL's infinities (`i64::MIN`, `i64::MAX`) are not instants; check for them first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub i64);

impl Instant {
    pub fn from_utc(utc: NaiveDateTime) -> Instant {
        // Chrono's years end at about 262,000: the number fits.
        Instant(utc.and_utc().timestamp_micros() - POSTGRES_EPOCH)
    }

    /// The date and time in UTC; chrono's first or last one where that is beyond its years.
    pub fn utc(self) -> NaiveDateTime {
        let utc = self.0.checked_add(POSTGRES_EPOCH).and_then(DateTime::from_timestamp_micros);
        match utc {
            Some(utc) => utc.naive_utc(),
            None if self.0 < 0 => NaiveDateTime::MIN,
            None => NaiveDateTime::MAX,
        }
    }

    pub fn checked_add(self, micros: i64) -> Option<Instant> {
        self.0.checked_add(micros).map(Instant)
    }

    /// Microseconds from `earlier` to here, negative if it is later, at most the range of `i64`.
    pub fn micros_since(self, earlier: Instant) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A source of offsets. Offsets are less than 24 hours, and none grows by more than 24 hours at once.
pub trait Zone {
    /// The instant of a local time, as `timestamp AT TIME ZONE` reads it (see the module).
    fn to_instant(&self, local: NaiveDateTime) -> Instant;

    /// Seconds east of Greenwich at an instant.
    fn offset(&self, at: Instant) -> i32;

    /// What the clock shows at an instant.
    fn to_local(&self, at: Instant) -> NaiveDateTime {
        let utc = at.utc();
        utc.checked_add_signed(TimeDelta::seconds(self.offset(at).into())).unwrap_or(utc)
    }
}

#[cfg(test)]
pub mod fake {
    //! A zone made of a few transitions, for tests without a server.

    use super::*;

    #[derive(Clone, Debug)]
    pub struct FakeZone {
        /// The offset before the first transition, seconds east.
        first: i32,
        /// Ascending instants, each with the offset from there on; at least two days apart.
        transitions: Vec<(Instant, i32)>,
    }

    pub fn fixed(offset: i32) -> FakeZone {
        FakeZone { first: offset, transitions: vec![] }
    }

    /// New York in 2013: 02:00 to 03:00 is skipped on 10 March, 01:00 to 02:00 repeats on 3 November.
    pub fn new_york() -> FakeZone {
        FakeZone {
            first: -5 * 3600,
            transitions: vec![
                (utc("2013-03-10T07:00:00"), -4 * 3600),
                (utc("2013-11-03T06:00:00"), -5 * 3600),
            ],
        }
    }

    /// Havana in 2023: gap and fold both touch midnight.
    pub fn havana() -> FakeZone {
        FakeZone {
            first: -5 * 3600,
            transitions: vec![
                (utc("2023-03-12T05:00:00"), -4 * 3600),
                (utc("2023-11-05T05:00:00"), -5 * 3600),
            ],
        }
    }

    /// Apia at the end of 2011: the 30th of December does not exist.
    pub fn apia() -> FakeZone {
        FakeZone { first: -10 * 3600, transitions: vec![(utc("2011-12-30T10:00:00"), 14 * 3600)] }
    }

    /// A gap and a fold of half an hour, around offsets with seconds.
    pub fn half_hours() -> FakeZone {
        FakeZone {
            first: 4 * 3600 + 1845,
            transitions: vec![
                (utc("2010-01-01T00:00:00"), 5 * 3600 + 45),
                (utc("2015-06-01T13:15:07"), 4 * 3600 + 1845),
            ],
        }
    }

    pub fn local(text: &str) -> NaiveDateTime {
        text.parse().expect("a local time in a test")
    }

    pub fn utc(text: &str) -> Instant {
        Instant::from_utc(local(text))
    }

    impl Zone for FakeZone {
        fn to_instant(&self, local: NaiveDateTime) -> Instant {
            let shown = Instant::from_utc(local).0;
            let before_start = Instant(shown - 86_400_000_000);
            let before = self.offset(before_start);
            let with = |offset: i32| Instant(shown - i64::from(offset) * 1_000_000);
            match self.transitions.iter().find(|(at, _)| *at > before_start) {
                // In a gap the new offset points before the transition, in a fold behind it.
                Some(&(at, after)) if with(after) >= at => with(after),
                _ => with(before),
            }
        }

        fn offset(&self, at: Instant) -> i32 {
            let passed = self.transitions.partition_point(|(from, _)| *from <= at);
            passed.checked_sub(1).map_or(self.first, |last| self.transitions[last].1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::*;
    use super::*;

    #[test]
    fn instants_count_from_2000() {
        assert_eq!(utc("2000-01-01T00:00:00"), Instant(0));
        assert_eq!(Instant(-1).utc(), local("1999-12-31T23:59:59.999999"));
        for extreme in [i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX] {
            Instant(extreme).utc();
        }
        Instant::from_utc(NaiveDateTime::MIN);
        Instant::from_utc(NaiveDateTime::MAX);
    }

    #[test]
    fn gap_moves_forward() {
        let zone = new_york();
        assert_eq!(zone.to_instant(local("2013-03-10T01:59:59")), utc("2013-03-10T06:59:59"));
        assert_eq!(zone.to_instant(local("2013-03-10T02:00:00")), utc("2013-03-10T07:00:00"));
        assert_eq!(zone.to_instant(local("2013-03-10T02:30:00")), utc("2013-03-10T07:30:00"));
        assert_eq!(zone.to_instant(local("2013-03-10T03:00:00")), utc("2013-03-10T07:00:00"));
        assert_eq!(zone.to_local(utc("2013-03-10T07:30:00")), local("2013-03-10T03:30:00"));
    }

    #[test]
    fn fold_is_the_second_showing() {
        let zone = new_york();
        assert_eq!(zone.to_instant(local("2013-11-03T00:59:59")), utc("2013-11-03T04:59:59"));
        assert_eq!(zone.to_instant(local("2013-11-03T01:30:00")), utc("2013-11-03T06:30:00"));
        assert_eq!(zone.to_instant(local("2013-11-03T02:00:00")), utc("2013-11-03T07:00:00"));
    }

    #[test]
    fn a_skipped_day_is_the_next_one() {
        let zone = apia();
        assert_eq!(zone.to_instant(local("2011-12-29T23:00:00")), utc("2011-12-30T09:00:00"));
        assert_eq!(zone.to_instant(local("2011-12-30T00:00:00")), utc("2011-12-30T10:00:00"));
        assert_eq!(zone.to_instant(local("2011-12-30T12:00:00")), utc("2011-12-30T22:00:00"));
        assert_eq!(zone.to_instant(local("2011-12-31T00:00:00")), utc("2011-12-30T10:00:00"));
    }
}
