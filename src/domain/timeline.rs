//! The windows of a pipeline: grids that follow each other in time.
//!
//! ```text
//! Timeline::new(grid)                          one grid for all time, its position 0 the first window
//! timeline.switched(at, grid)                  the same until `at`, the other grid from then on
//! timeline.boundary(k) · window(k) · windows(a..b) · window_of(t) · next(k) · previous(k)
//! timeline.newest_due(t)                       the newest window that ended by t
//! timeline.locate(bound) -> k                  on a boundary, or off the grid
//! timeline.count(a..b)                         existing windows only
//! timeline.window_key(k) · parse_key(text) -> k
//! timeline.shared_from(grid, t) · shared_until(grid, t)    boundaries of both
//! ```
//!
//! Positions run on over a switch: a window keeps its position for ever, and the first window of a new
//! grid has the one after the last window of the old grid. A switch is a boundary of both grids, so that
//! no window is cut, and there is neither gap nor overlap.
//!
//! **Local times** are read as on one clock, which at a switch to another zone is set forward or back:
//! what it shows twice is the second showing, what it skips is read on the old clock. That is how a zone
//! reads its own changes (see [`super::zone`]).

use std::ops::Range;

use chrono::NaiveDateTime;

use super::bound::Bound;
use super::cadence::Cadence;
use super::calendar::{Grid, GridError, Window};
use super::zone::{Instant, Zone};

/// Before all time, and PostgreSQL's own number for `-infinity`.
pub const EVER: Instant = Instant(i64::MIN);

/// The calendar of one pipeline.
#[derive(Clone, Debug)]
pub struct Timeline<Z> {
    /// Ascending, never empty; the first one has no beginning.
    stretches: Vec<Stretch<Z>>,
    /// The position of the pipeline's first window. Negative where the start was moved earlier.
    pub first: i64,
}

/// The time in which one grid counts; it ends where the next one begins.
#[derive(Clone, Debug)]
pub struct Stretch<Z> {
    pub since: Instant,
    pub grid: Grid<Z>,
    /// The position of its first window.
    start: i64,
    /// What makes a position of the timeline from one of the grid.
    shift: i64,
}

impl<Z> Stretch<Z> {
    fn local(&self, k: i64) -> Result<i64, GridError> {
        k.checked_sub(self.shift).ok_or(GridError::OutOfRange)
    }

    fn window(&self, window: Window) -> Window {
        Window { position: window.position + self.shift, ..window }
    }
}

/// Why a timeline cannot go over to another grid at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchError {
    /// It is not a boundary of both grids; with the nearest ones that are, if there are any.
    NotShared {
        before: Option<Instant>,
        after: Option<Instant>,
    },
    /// No window starts before it.
    BeforeFirst,
    /// The clock would be set back so far that this key would name a window on both sides.
    KeyTwice {
        key: String,
    },
    Grid(GridError),
}

/// Boundaries looked at for one that two grids share. Where there is one at all it is found within a few steps
/// of the longer cadence, because each look leaps to the next boundary of the other grid.
const STEPS: usize = 1_000;

impl<Z: Zone> Timeline<Z> {
    pub fn new(grid: Grid<Z>) -> Timeline<Z> {
        Timeline { stretches: vec![Stretch { since: EVER, grid, start: i64::MIN, shift: 0 }], first: 0 }
    }

    /// The same, with another first window.
    pub fn starting_at(self, first: i64) -> Timeline<Z> {
        Timeline { first, ..self }
    }

    /// Lets a grid follow from an instant on, which must lie in the newest stretch.
    ///
    /// # Errors
    /// [`GridError::OutOfRange`].
    pub fn follow(&mut self, since: Instant, grid: Grid<Z>) -> Result<(), GridError> {
        let start = self.window_of(since)?.position;
        let shift = start - grid.window_of(since)?.position;
        self.stretches.push(Stretch { since, grid, start, shift });
        Ok(())
    }

    /// The stretches in which a grid counted or counts, oldest first.
    pub fn stretches(&self) -> &[Stretch<Z>] {
        &self.stretches
    }

    pub fn newest(&self) -> &Stretch<Z> {
        self.stretches.last().expect("a timeline has a grid")
    }

    /// The position of the newest grid's first window.
    pub fn newest_first(&self) -> i64 {
        self.newest().start.max(self.first)
    }

    /// The zone in which the pipeline shows times now.
    pub fn zone(&self) -> &Z {
        &self.newest().grid.zone
    }

    /// The stretch that an instant lies in.
    pub fn at(&self, at: Instant) -> &Stretch<Z> {
        &self.stretches[self.stretches.partition_point(|stretch| stretch.since <= at).saturating_sub(1)]
    }

    fn of(&self, position: i64) -> &Stretch<Z> {
        let behind = self.stretches.partition_point(|stretch| stretch.start <= position);
        &self.stretches[behind.saturating_sub(1)]
    }

    /// Where the stretch `i` ends.
    fn end(&self, i: usize) -> Option<Instant> {
        self.stretches.get(i + 1).map(|next| next.since)
    }

    /// `b(k)`.
    ///
    /// # Errors
    /// [`GridError::OutOfRange`]; so do all functions below.
    pub fn boundary(&self, k: i64) -> Result<Instant, GridError> {
        let stretch = self.of(k);
        stretch.grid.boundary(stretch.local(k)?)
    }

    /// The window at a position, unless the zone skipped it.
    pub fn window(&self, position: i64) -> Result<Option<Window>, GridError> {
        let stretch = self.of(position);
        let window = stretch.grid.window(stretch.local(position)?)?;
        Ok(window.map(|window| stretch.window(window)))
    }

    /// The window that contains an instant.
    pub fn window_of(&self, at: Instant) -> Result<Window, GridError> {
        let stretch = self.at(at);
        stretch.grid.window_of(at).map(|window| stretch.window(window))
    }

    /// The newest window whose end is not after `at`. A window is due when its end and its pipeline's
    /// delay are past: subtract the delay from the clock first.
    pub fn newest_due(&self, at: Instant) -> Result<Window, GridError> {
        self.previous(self.window_of(at)?.position)
    }

    /// The first existing window after a position.
    pub fn next(&self, position: i64) -> Result<Window, GridError> {
        let mut k = position;
        loop {
            k = k.checked_add(1).ok_or(GridError::OutOfRange)?;
            if let Some(window) = self.window(k)? {
                return Ok(window);
            }
        }
    }

    /// The last existing window before a position.
    pub fn previous(&self, position: i64) -> Result<Window, GridError> {
        let mut k = position;
        loop {
            k = k.checked_sub(1).ok_or(GridError::OutOfRange)?;
            if let Some(window) = self.window(k)? {
                return Ok(window);
            }
        }
    }

    /// A range of positions, by stretches.
    fn parts(&self, positions: Range<i64>) -> impl Iterator<Item = (&Stretch<Z>, Range<i64>)> {
        self.stretches.iter().enumerate().filter_map(move |(i, stretch)| {
            let end = self.stretches.get(i + 1).map_or(i64::MAX, |next| next.start);
            let part = positions.start.max(stretch.start)..positions.end.min(end);
            (!part.is_empty()).then_some((stretch, part))
        })
    }

    /// The windows of a range of positions, ascending.
    pub fn windows(&self, positions: Range<i64>) -> Result<impl Iterator<Item = Window>, GridError> {
        let mut windows = Vec::new();
        for (stretch, part) in self.parts(positions) {
            let local = stretch.local(part.start)?..stretch.local(part.end)?;
            windows.push(stretch.grid.windows(local)?.map(|window| stretch.window(window)));
        }
        Ok(windows.into_iter().flatten())
    }

    /// How many windows a range of positions has. Arithmetic, except for days, where skipped ones
    /// have to be looked for (some 0.2 µs a window on PostgreSQL's zones).
    pub fn count(&self, positions: Range<i64>) -> Result<u64, GridError> {
        let mut count = 0;
        for (stretch, part) in self.parts(positions) {
            count += match stretch.grid.cadence {
                Cadence::Days(1) => self.windows(part)?.count() as u64,
                // A zone skips 24 hours at most: a longer step always leaves something.
                _ => part.end.abs_diff(part.start),
            };
        }
        Ok(count)
    }

    /// The stretch whose clock shows a local time, and when. That may be after its end, if the next one's
    /// clock was set forward past it.
    fn reading(&self, local: NaiveDateTime) -> (usize, Instant) {
        let readings = self.stretches.iter().enumerate().rev();
        let mut readings = readings.map(|(i, stretch)| (i, stretch.grid.zone.to_instant(local)));
        readings
            .find(|(i, at)| *i == 0 || *at >= self.stretches[*i].since)
            .expect("the first one has no beginning")
    }

    /// The instant that a person's bound means.
    pub fn instant(&self, bound: Bound) -> Instant {
        match bound {
            Bound::Local(local) => self.reading(local).1,
            Bound::Absolute(at) => at,
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
        let (stretch, bound) = match bound {
            Bound::Local(local) => match self.reading(local) {
                (i, at) if self.end(i).is_none_or(|end| at < end) => (&self.stretches[i], bound),
                (_, at) => (self.at(at), Bound::Absolute(at)),
            },
            Bound::Absolute(at) => (self.at(at), bound),
        };
        stretch.grid.locate(bound).map(|k| k + stretch.shift)
    }

    /// The local time at which the window at a position starts by its grid's count.
    pub fn nominal_start(&self, k: i64) -> Result<NaiveDateTime, GridError> {
        let stretch = self.of(k);
        stretch.grid.nominal_start(stretch.local(k)?)
    }

    /// The name of the window at a position, unique in the timeline.
    pub fn window_key(&self, k: i64) -> Result<String, GridError> {
        let stretch = self.of(k);
        stretch.grid.window_key(stretch.local(k)?)
    }

    /// The position of the window that a key names. Other spellings of the same start that
    /// [`Bound::parse`] reads are accepted, other windows' times are not.
    ///
    /// # Errors
    /// [`GridError::Text`], [`GridError::KeyWithoutOffset`], [`GridError::OffGrid`],
    /// [`GridError::Skipped`] and [`GridError::BeforeFirst`].
    pub fn parse_key(&self, text: &str) -> Result<i64, GridError> {
        let bound = Bound::parse(text).map_err(GridError::Text)?;
        // Beside a switch to another zone the clock that the text was read from cannot be told by the time.
        for stretch in self.stretches.iter().rev() {
            let Ok(k) = stretch.grid.parse_key(text) else { continue };
            let position = k + stretch.shift;
            if !std::ptr::eq(self.of(position), stretch) {
                continue;
            }
            if position < self.first {
                let first = self.window_key(self.first)?;
                return Err(GridError::BeforeFirst { key: text.into(), first });
            }
            return Ok(position);
        }
        // No window has that key: say why, as the clock of its time does.
        let stretch = match bound {
            Bound::Local(local) => &self.stretches[self.reading(local).0],
            Bound::Absolute(at) => self.at(at),
        };
        stretch.grid.parse_key(text)?;
        Err(self.at(self.instant(bound)).grid.off_grid(self.window_of(self.instant(bound))?))
    }

    /// The first boundary from an instant on that another grid has, too.
    pub fn shared_from(&self, grid: &Grid<Z>, from: Instant) -> Option<Instant> {
        let up = |window: Window, at| if window.start == at { at } else { window.end };
        let mut at = from;
        for _ in 0..STEPS {
            let ours = up(self.window_of(at).ok()?, at);
            at = up(grid.window_of(ours).ok()?, ours);
            if at == ours {
                return Some(at);
            }
        }
        None
    }

    /// The last boundary up to an instant that another grid has, too.
    pub fn shared_until(&self, grid: &Grid<Z>, until: Instant) -> Option<Instant> {
        let mut at = until;
        for _ in 0..STEPS {
            let ours = self.window_of(at).ok()?.start;
            at = grid.window_of(ours).ok()?.start;
            if at == ours {
                return Some(at);
            }
        }
        None
    }
}

impl<Z: Zone + Clone> Timeline<Z> {
    /// The same windows until `at`, those of another grid from then on. What would have followed after
    /// `at` is forgotten.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn switched(&self, at: Instant, grid: Grid<Z>) -> Result<Timeline<Z>, SwitchError> {
        let (old, new) = (self.window_of(at), grid.window_of(at));
        let (old, new) = (old.map_err(SwitchError::Grid)?, new.map_err(SwitchError::Grid)?);
        if old.start != at || new.start != at {
            let (before, after) = (self.shared_until(&grid, at), self.shared_from(&grid, at));
            return Err(SwitchError::NotShared { before, after });
        }
        if old.position <= self.first {
            return Err(SwitchError::BeforeFirst);
        }
        let mut timeline = self.clone();
        timeline.stretches.retain(|stretch| stretch.since < at);
        if let Some(key) = timeline.repeated_key(at, &grid).map_err(SwitchError::Grid)? {
            return Err(SwitchError::KeyTwice { key });
        }
        timeline.follow(at, grid).map_err(SwitchError::Grid)?;
        Ok(timeline)
    }

    /// A key of a window before `at` that would name one of `grid` after it, too. A clock is set back by 26
    /// hours at most (from +14 to -12), so that only the last day of a stretch can come again; keys of time
    /// cadences carry their offset, and cannot.
    fn repeated_key(&self, at: Instant, grid: &Grid<Z>) -> Result<Option<String>, GridError> {
        for (i, stretch) in self.stretches.iter().enumerate() {
            if matches!(stretch.grid.cadence, Cadence::Micros(_)) {
                continue;
            }
            let end = stretch.grid.window_of(self.end(i).unwrap_or(at))?.position;
            let key = stretch.grid.window_key(end - 1)?;
            let again = grid.parse_key(&key).and_then(|k| grid.boundary(k));
            if again.is_ok_and(|again| again >= at) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
