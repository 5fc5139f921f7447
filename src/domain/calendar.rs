//! A grid of boundaries laid over time. A pipeline's windows are those of the grids of its
//! [`Timeline`](super::timeline::Timeline), which for most pipelines is one grid.
//!
//! ```text
//! Grid::new(cadence, start, zone)              start is a Bound; its window is position 0
//! grid.boundary(k) · window(k) -> Option       b(k), and [b(k), b(k + 1)) if it exists
//! grid.window_of(t) · windows(a..b)            the window around t; existing windows only
//! grid.locate(bound) -> k                      on a boundary, or off the grid
//! grid.window_key(k) · parse_key(text) -> k
//! ```
//!
//! For months and days `b(k) = (local start + k × cadence) AT TIME ZONE zone`, always computed from
//! the start, so that the 31st clamps to the end of a shorter month and does not drift. For a time
//! `b(k)` is the start's instant plus `k` times the duration. *k* may be negative.
//!
//! `b` never decreases. For a time that is arithmetic; for months and days it holds because no
//! [`Zone`] skips more than 24 hours at once, and the tests run it over every zone of PostgreSQL.
//! `b(k) = b(k + 1)` happens where a zone skips exactly one day of a daily grid: that position has no
//! window and is passed over by everything that yields windows. No rule beyond that is needed.
//!
//! Boundaries lie between 0001-01-02 and 9999-12-30 UTC, so that every local text has a year of four
//! digits. What would leave that range is [`GridError::OutOfRange`].

use std::fmt;
use std::ops::Range;

use chrono::{Datelike, Months, NaiveDateTime, TimeDelta};

use super::bound::{Bound, BoundError, instant_text, local_text};
use super::cadence::Cadence;
use super::zone::{Instant, Zone};

/// 0001-01-02 00:00:00 UTC.
const FIRST: Instant = Instant(-63_082_195_200_000_000);
/// 9999-12-30 00:00:00 UTC.
const LAST: Instant = Instant(252_455_443_200_000_000);

/// One calendar. The fields are what a pipeline stores; [`Grid::new`] finds them.
#[derive(Clone, Copy, Debug)]
pub struct Grid<Z> {
    pub cadence: Cadence,
    /// The local time of position 0: what months and days are counted from.
    pub anchor_local: NaiveDateTime,
    /// The instant of position 0: what a time is counted from.
    pub anchor: Instant,
    pub zone: Z,
}

/// The half-open interval `[start, end)`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub position: i64,
    pub start: Instant,
    pub end: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GridError {
    /// A boundary would be outside of the years that a calendar covers.
    OutOfRange,
    /// A bound is not a boundary; with the nearest boundaries on both sides, as text that
    /// [`Bound::parse`] reads.
    OffGrid { before: String, after: String },
    /// The start of months or days is the first showing of a local time that repeats, which calendar
    /// steps cannot hit; `second` is the showing that they hit.
    StartRepeats { second: String },
    /// The zone skipped the whole window that a key names.
    Skipped { key: String },
    /// A key names a window before the first one of the pipeline, whose key is `first`.
    BeforeFirst { key: String, first: String },
    /// The key of a window of a time cadence came without its offset.
    KeyWithoutOffset { key: String },
    /// A key or a bound cannot be read.
    Text(BoundError),
}

impl<Z: Zone> Grid<Z> {
    /// Lays a grid whose position 0 starts at `start`, which is local in `zone` unless it is absolute.
    ///
    /// # Errors
    /// [`GridError::StartRepeats`], and [`GridError::OutOfRange`] for the window at position 0.
    pub fn new(cadence: Cadence, start: Bound, zone: Z) -> Result<Grid<Z>, GridError> {
        let anchor = start.instant(&zone);
        let anchor_local = match start {
            Bound::Local(local) => local,
            Bound::Absolute(_) => zone.to_local(anchor),
        };
        let grid = Grid { cadence, anchor_local, anchor, zone };
        let first = grid.boundary(0)?;
        grid.boundary(1)?;
        if first != anchor {
            return Err(GridError::StartRepeats { second: instant_text(&grid.zone, first) });
        }
        Ok(grid)
    }

    /// `b(k)`.
    ///
    /// # Errors
    /// [`GridError::OutOfRange`]; so do all functions below.
    pub fn boundary(&self, k: i64) -> Result<Instant, GridError> {
        let boundary = match self.cadence {
            Cadence::Micros(step) => step.checked_mul(k).and_then(|by| self.anchor.checked_add(by)),
            Cadence::Days(_) | Cadence::Months(_) => self.stepped(k).map(|local| self.zone.to_instant(local)),
        };
        boundary.filter(|at| (FIRST..=LAST).contains(at)).ok_or(GridError::OutOfRange)
    }

    /// The local start and `k` calendar steps; nothing for a time cadence.
    fn stepped(&self, k: i64) -> Option<NaiveDateTime> {
        match self.cadence {
            Cadence::Months(step) => {
                let months = i64::from(step).checked_mul(k)?;
                let distance = Months::new(months.unsigned_abs().try_into().ok()?);
                if months < 0 {
                    self.anchor_local.checked_sub_months(distance)
                } else {
                    self.anchor_local.checked_add_months(distance)
                }
            }
            Cadence::Days(step) => {
                let days = i64::from(step).checked_mul(k)?;
                self.anchor_local.checked_add_signed(TimeDelta::try_days(days)?)
            }
            Cadence::Micros(_) => None,
        }
    }

    /// The window at a position, unless the zone skipped it.
    pub fn window(&self, position: i64) -> Result<Option<Window>, GridError> {
        let start = self.boundary(position)?;
        let end = self.boundary(position + 1)?;
        Ok((start < end).then_some(Window { position, start, end }))
    }

    /// The window that contains an instant.
    pub fn window_of(&self, at: Instant) -> Result<Window, GridError> {
        if !(FIRST..=LAST).contains(&at) {
            return Err(GridError::OutOfRange);
        }
        // Never too low: after b(k) the clock shows no time before the nominal start of k any more,
        // because a time that repeats is read as its second showing. Too high by the time of day and
        // what a gap moved, a few steps at most.
        let mut position = match self.cadence {
            Cadence::Micros(step) => at.micros_since(self.anchor).div_euclid(step),
            Cadence::Days(_) | Cadence::Months(_) => self.steps_to(self.zone.to_local(at)),
        };
        let mut start = self.boundary(position)?;
        while start > at {
            position -= 1;
            start = self.boundary(position)?;
        }
        Ok(Window { position, start, end: self.boundary(position + 1)? })
    }

    /// Calendar steps from the anchor's day or month to that of `local`, rounded down.
    fn steps_to(&self, local: NaiveDateTime) -> i64 {
        let months = |at: NaiveDateTime| i64::from(at.year()) * 12 + i64::from(at.month0());
        match self.cadence {
            Cadence::Months(step) => (months(local) - months(self.anchor_local)).div_euclid(step.into()),
            Cadence::Days(step) => {
                let days = (local.date() - self.anchor_local.date()).num_days();
                days.div_euclid(step.into())
            }
            Cadence::Micros(_) => 0,
        }
    }

    /// The position whose window starts at a bound that a person gave.
    ///
    /// On a grid of months or days a local bound must be a nominal start. If the zone skipped the
    /// window that starts there, the answer is the next one, which starts at the same instant.
    ///
    /// # Errors
    /// [`GridError::OffGrid`].
    pub fn locate(&self, bound: Bound) -> Result<i64, GridError> {
        let at = match bound {
            Bound::Local(local) => match self.nominal_position(local) {
                Some(position) => self.boundary(position)?,
                None if matches!(self.cadence, Cadence::Micros(_)) => self.zone.to_instant(local),
                None => return Err(self.off_grid(self.window_of(self.zone.to_instant(local))?)),
            },
            Bound::Absolute(at) => at,
        };
        let window = self.window_of(at)?;
        if window.start == at { Ok(window.position) } else { Err(self.off_grid(window)) }
    }

    /// The error for a bound inside of a window.
    pub(super) fn off_grid(&self, around: Window) -> GridError {
        GridError::OffGrid {
            before: instant_text(&self.zone, around.start),
            after: instant_text(&self.zone, around.end),
        }
    }

    /// The position of months or days whose nominal start is `local`.
    fn nominal_position(&self, local: NaiveDateTime) -> Option<i64> {
        let position = self.steps_to(local);
        (self.stepped(position) == Some(local)).then_some(position)
    }

    /// The windows of a range of positions, ascending.
    pub fn windows(&self, positions: Range<i64>) -> Result<Windows<'_, Z>, GridError> {
        if positions.is_empty() {
            let nowhere = Window { position: 0, start: self.anchor, end: self.anchor };
            return Ok(Windows { grid: self, start: nowhere.start, next: 0, stop: 0 });
        }
        // With both ends in range everything between them is.
        self.boundary(positions.end)?;
        let start = self.boundary(positions.start)?;
        Ok(Windows { grid: self, start, next: positions.start, stop: positions.end })
    }

    /// The local time that names a window: the local start and `k` steps for months and days, what
    /// the clock shows at `b(k)` for a time. It may be a time that the zone skipped.
    pub fn nominal_start(&self, k: i64) -> Result<NaiveDateTime, GridError> {
        let at = self.boundary(k)?;
        Ok(self.stepped(k).unwrap_or_else(|| self.zone.to_local(at)))
    }

    /// The name of the window at a position, unique in the grid: its nominal start, `2013-03-10` or
    /// `2013-03-10T06:00`, or its start with the offset for a time: `2013-03-10T05:00-04:00`.
    pub fn window_key(&self, k: i64) -> Result<String, GridError> {
        let at = self.boundary(k)?;
        Ok(self.stepped(k).map_or_else(|| instant_text(&self.zone, at), local_text))
    }

    /// The position of the window that a key names. Other spellings of the same start that
    /// [`Bound::parse`] reads are accepted, other windows' times are not.
    ///
    /// # Errors
    /// [`GridError::Text`], [`GridError::KeyWithoutOffset`], [`GridError::OffGrid`] and
    /// [`GridError::Skipped`].
    pub fn parse_key(&self, text: &str) -> Result<i64, GridError> {
        let bound = Bound::parse(text).map_err(GridError::Text)?;
        if let Bound::Local(local) = bound {
            if matches!(self.cadence, Cadence::Micros(_)) {
                return Err(GridError::KeyWithoutOffset { key: text.into() });
            }
            if let Some(position) = self.nominal_position(local)
                && self.window(position)?.is_none()
            {
                return Err(GridError::Skipped { key: text.into() });
            }
        }
        self.locate(bound)
    }
}

/// Iterates over the windows of a range of positions; each boundary is computed once.
pub struct Windows<'g, Z> {
    grid: &'g Grid<Z>,
    /// The boundary at `next`.
    start: Instant,
    next: i64,
    stop: i64,
}

impl<Z: Zone> Iterator for Windows<'_, Z> {
    type Item = Window;

    fn next(&mut self) -> Option<Window> {
        while self.next < self.stop {
            let (position, start) = (self.next, self.start);
            let end = self.grid.boundary(position + 1).ok()?;
            self.next += 1;
            self.start = end;
            if start < end {
                return Some(Window { position, start, end });
            }
        }
        None
    }
}

impl fmt::Display for GridError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GridError::OutOfRange => f.write_str("windows must lie between 0001-01-02 and 9999-12-30"),
            GridError::OffGrid { before, after } => {
                write!(f, "not a boundary of the grid; the nearest ones are {before} and {after}")
            }
            GridError::StartRepeats { second } => write!(
                f,
                "calendar steps cannot start in the first showing of a local time that repeats; \
                 the second one is {second}"
            ),
            GridError::Skipped { key } => {
                write!(f, "there is no window \"{key}\": the time zone skipped it")
            }
            GridError::BeforeFirst { key, first } => {
                write!(f, "there is no window \"{key}\": the first one is \"{first}\"")
            }
            GridError::KeyWithoutOffset { key } => write!(
                f,
                "the window key \"{key}\" lacks its offset; the keys of this cadence look like \
                 2013-03-10T05:00-04:00"
            ),
            GridError::Text(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for GridError {}

#[cfg(test)]
mod tests;
