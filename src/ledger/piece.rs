//! The windows of a pipeline in pieces: each window that the ledger holds something of by itself, and those between two
//! such as long as the same is true of them. A pipeline may have more windows than a server has memory; pieces are as
//! many as its records.

use crate::domain::calendar::Window;
use crate::domain::lifecycle::State;
use crate::domain::timeline::Timeline;
use crate::domain::zone::Zone;
use crate::ledger::window::Record;
use std::ops::Range;
use std::rc::Rc;
use std::sync::LazyLock;

/// What the ledger holds of a window that it does not name.
static NOTHING: LazyLock<Record> = LazyLock::new(Record::default);

/// A window that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocker {
    pub position: i64,
    pub state: State,
    /// The plan that owns it.
    pub plan: Option<i64>,
}

/// Neighbouring windows in one state; only one if the ledger holds something of it.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Never empty; the zone skipped neither the first nor the last.
    pub positions: Range<i64>,
    pub state: State,
    /// The window that they wait for.
    pub blocked_by: Option<Blocker>,
    record: Option<Rc<Record>>,
}

/// One window, its state, and what the ledger holds of it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub window: Window,
    pub state: State,
    pub blocked_by: Option<Blocker>,
    record: Option<Rc<Record>>,
}

impl Seen {
    pub fn record(&self) -> &Record {
        self.record.as_deref().unwrap_or(&NOTHING)
    }
}

impl Piece {
    pub fn record(&self) -> &Record {
        self.record.as_deref().unwrap_or(&NOTHING)
    }

    pub fn has_record(&self) -> bool {
        self.record.is_some()
    }

    pub fn first(&self) -> i64 {
        self.positions.start
    }

    pub fn last(&self) -> i64 {
        self.positions.end - 1
    }

    /// How many windows it has.
    pub fn count<Z: Zone>(&self, grid: &Timeline<Z>) -> i64 {
        if self.has_record() { 1 } else { grid.count(self.positions.clone()).map_or(0, |count| count as i64) }
    }

    /// The part of it within a range of positions.
    pub fn within<Z: Zone>(&self, grid: &Timeline<Z>, range: &Range<i64>) -> Option<Self> {
        let positions = self.positions.start.max(range.start)..self.positions.end.min(range.end);
        if positions == self.positions {
            return Some(self.clone());
        }
        existing(grid, positions).map(|positions| Self { positions, ..self.clone() })
    }

    /// Its window at a position, for others to wait for.
    pub fn as_blocker(&self, position: i64) -> Blocker {
        Blocker { position, state: self.state, plan: self.record().owner_plan }
    }

    /// These windows, waiting for one before them.
    pub fn blocked_by(self, blocker: Blocker) -> Self {
        Self { state: State::Blocked, blocked_by: Some(blocker), ..self }
    }
}

/// How many windows pieces have.
pub fn count<'p, Z: Zone>(grid: &Timeline<Z>, pieces: impl IntoIterator<Item = &'p Piece>) -> i64 {
    pieces.into_iter().map(|piece| piece.count(grid)).sum()
}

/// The windows of pieces, one by one as they are asked for.
pub fn windows<Z: Zone + Clone, P: IntoIterator<Item = Piece>>(
    grid: &Timeline<Z>,
    pieces: P,
) -> impl Iterator<Item = Seen> + use<Z, P> {
    let grid = Rc::new(grid.clone());
    pieces.into_iter().flat_map(move |Piece { positions, state, blocked_by, record }| {
        let grid = Rc::clone(&grid);
        positions.filter_map(move |position| {
            let window = grid.window(position).ok().flatten()?;
            Some(Seen { window, state, blocked_by, record: record.clone() })
        })
    })
}

/// The range without positions at its ends that have no window; `None` if it has none at all.
fn existing<Z: Zone>(grid: &Timeline<Z>, range: Range<i64>) -> Option<Range<i64>> {
    if range.is_empty() {
        return None;
    }
    let first = grid.next(range.start - 1).map_or(range.start, |window| window.position);
    let end = grid.previous(range.end).map_or(range.end, |window| window.position + 1);
    (first < end).then_some(first..end)
}

/// Divides a range of positions. `records` are by position, ascending; without one the state of a window is another
/// than that of the window before at `turns` only.
pub fn divide<Z: Zone>(
    grid: &Timeline<Z>,
    range: Range<i64>,
    records: Vec<(i64, Record)>,
    turns: &[i64],
    state_of: impl Fn(i64, &Record) -> State,
) -> Vec<Piece> {
    let mut borders: Vec<i64> = records.iter().flat_map(|(position, _)| [*position, position + 1]).collect();
    borders.extend(turns);
    borders.extend([range.start, range.end]);
    borders.retain(|border| (range.start..=range.end).contains(border));
    borders.sort_unstable();
    borders.dedup();
    let mut records = records.into_iter().peekable();
    let between = borders.windows(2).map(|pair| pair[0]..pair[1]);
    between
        .filter_map(|positions| {
            while records.next_if(|(position, _)| *position < positions.start).is_some() {}
            let record =
                records.next_if(|(position, _)| *position == positions.start).map(|(_, record)| record);
            let positions = if record.is_some() { positions } else { existing(grid, positions)? };
            let state = state_of(positions.start, record.as_ref().unwrap_or(&NOTHING));
            Some(Piece { positions, state, blocked_by: None, record: record.map(Rc::new) })
        })
        .collect()
}

#[cfg(test)]
pub mod fake {
    //! A calendar for tests without a server.

    use super::*;
    use crate::domain::bound::Bound;
    use crate::domain::cadence::Cadence;
    use crate::domain::calendar::Grid;
    use crate::domain::zone::fake::{FakeZone, fixed};

    fn grid(cadence: Cadence) -> Timeline<FakeZone> {
        let start = Bound::parse("2000-01-01").expect("a date");
        Timeline::new(Grid::new(cadence, start, fixed(0)).expect("a grid"))
    }

    pub fn seconds() -> Timeline<FakeZone> {
        grid(Cadence::Micros(1_000_000))
    }

    pub fn micros() -> Timeline<FakeZone> {
        grid(Cadence::Micros(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::sequence::judge;

    /// What a piece shows: its positions, its state, and whether it has a record.
    fn shown(pieces: &[Piece]) -> Vec<(Range<i64>, State, bool)> {
        pieces.iter().map(|piece| (piece.positions.clone(), piece.state, piece.has_record())).collect()
    }

    fn records(positions: &[i64]) -> Vec<(i64, Record)> {
        positions
            .iter()
            .map(|position| (*position, Record { slice_token: Some(1), ..Record::default() }))
            .collect()
    }

    /// Done where there is a record, eligible from `eligible` on, else missed.
    fn divided(range: Range<i64>, recorded: &[i64], eligible: i64) -> Vec<Piece> {
        divide(&fake::micros(), range, records(recorded), &[eligible], |position, record| {
            match record.slice_token {
                Some(_) => State::Done,
                None if position >= eligible => State::Eligible,
                None => State::Missed,
            }
        })
    }

    #[test]
    fn windows_without_a_record_are_counted_and_not_listed() {
        let century = 100 * 365 * 86_400 * 1_000_000;
        let pieces = divided(0..century, &[0, 7, 8, century - 1], century - 3);
        assert_eq!(
            shown(&pieces),
            [
                (0..1, State::Done, true),
                (1..7, State::Missed, false),
                (7..8, State::Done, true),
                (8..9, State::Done, true),
                (9..century - 3, State::Missed, false),
                (century - 3..century - 1, State::Eligible, false),
                (century - 1..century, State::Done, true),
            ]
        );
        assert_eq!(count(&fake::micros(), &pieces), century);
        let first: Vec<i64> =
            windows(&fake::micros(), pieces).take(3).map(|seen| seen.window.position).collect();
        assert_eq!(first, [0, 1, 2]);
    }

    #[test]
    fn every_window_is_in_the_piece_that_its_position_and_record_say() {
        let grid = fake::micros();
        for recorded in [&[][..], &[4], &[-2, 4, 5, 40], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            for eligible in -3..13 {
                let pieces = divided(0..10, recorded, eligible);
                let listed: Vec<Seen> = windows(&grid, pieces).collect();
                let positions: Vec<i64> = listed.iter().map(|seen| seen.window.position).collect();
                assert_eq!(positions, (0..10).collect::<Vec<i64>>());
                for seen in listed {
                    let position = seen.window.position;
                    let is_recorded = recorded.contains(&position);
                    assert_eq!(seen.record().slice_token.is_some(), is_recorded);
                    let expected = if is_recorded {
                        State::Done
                    } else if position >= eligible {
                        State::Eligible
                    } else {
                        State::Missed
                    };
                    assert_eq!(seen.state, expected);
                }
            }
        }
    }

    /// The pieces are judged as their windows would be one by one.
    #[test]
    fn pieces_are_blocked_as_windows_are() {
        let grid = fake::micros();
        for bits in 0..1 << 7 {
            let recorded: Vec<i64> = (0..7).filter(|n| bits >> n & 1 == 1).collect();
            for eligible in 0..8 {
                let pieces = divided(0..7, &recorded, eligible);
                let one_by_one: Vec<Piece> = pieces
                    .iter()
                    .flat_map(|piece| {
                        piece.positions.clone().filter_map(|k| piece.within(&grid, &(k..k + 1)))
                    })
                    .collect();
                let judged = |pieces| {
                    let seen = windows(&grid, judge(&grid, pieces));
                    seen.map(|seen| (seen.window.position, seen.state, seen.blocked_by)).collect::<Vec<_>>()
                };
                assert_eq!(judged(pieces), judged(one_by_one));
            }
        }
    }
}
