//! The windows of a pipeline with everything that the ledger and the clock say about them.

use crate::domain::bound::{Bound, instant_text};
use crate::domain::calendar::{GridError, Window};
use crate::domain::catchup::Admission;
use crate::domain::lifecycle::{Facts, Mark, Outcome, State};
use crate::domain::timeline::EVER;
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::alike::Alike;
use crate::ledger::grid;
use crate::ledger::mixture::{self, OnMixture};
use crate::ledger::piece::{self, Piece, Seen};
use crate::ledger::pipeline::{ON_GRID, Pipeline};
use crate::ledger::sequence;
use crate::ledger::version;
use crate::postgres::{datum, role, spi};
use std::ops::Range;

/// What the ledger holds of one window.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub token: Option<i64>,
    pub plan_id: i64,
    pub turn: i32,
    pub attempt: i32,
    pub worker: Option<String>,
    pub error: Option<String>,
    pub newest: Option<Outcome>,
    pub expires_at: Option<Instant>,
    pub requeued: bool,
    pub retry_at: Option<Instant>,
    /// The newest finished run: the slice.
    pub slice_token: Option<i64>,
    pub code_version: Option<String>,
    pub rows: Option<i64>,
    pub published_at: Option<Instant>,
    pub owner_plan: Option<i64>,
    /// What a person said about it, as far as it still counts.
    pub said: Option<Said>,
    /// Whether the number of rows or the digest of the slice is known.
    pub is_measured: bool,
    /// The token of the newest slice whose digest is not that of the slice before.
    pub changed_by: Option<i64>,
}

/// A mark with who made it, when and why.
#[derive(Debug, Clone)]
pub struct Said {
    pub mark: Mark,
    pub reason: String,
    pub by: String,
    pub at: Instant,
    /// The last token that was given out by then.
    pub token: i64,
}

const RECORDS: &str = include_str!("../../sql/query/window_records.sql");

const NEWEST_START: &str = "SELECT window_start FROM backfill.run_data WHERE pipeline_id = $1
    ORDER BY window_start DESC LIMIT 1";

/// Whether the call reads only (STABLE), or decides and must see what was committed last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Stable,
    Deciding,
}

/// What the ledger holds of the windows that start from `since` on and before `until`, by position, ascending.
fn records(reading: Reading, pipeline: &Pipeline, since: Instant, until: Instant) -> Vec<(i64, Record)> {
    let args = [pipeline.id.into(), since.into(), until.into()];
    let decode = |row: &spi::Row| {
        let ended: Option<String> = row.get(5);
        let (void, overdue): (bool, bool) = (row.at(6), row.at(7));
        let token: Option<i64> = row.get(2);
        let newest = token.map(|_| match ended.as_deref() {
            _ if void => Outcome::Revoked,
            None if overdue => Outcome::Overdue,
            None => Outcome::Open,
            Some("done") => Outcome::Done,
            Some("failed") => Outcome::Failed,
            Some("refused") => Outcome::Refused,
            Some("released") => Outcome::Released,
            Some("expired") => Outcome::Expired,
            Some(_) => Outcome::Revoked,
        });
        let record = Record {
            token,
            plan_id: row.get(3).unwrap_or(0),
            attempt: row.get(4).unwrap_or(0),
            newest,
            worker: row.get(8),
            error: row.get(9),
            expires_at: row.get(10),
            requeued: row.at(11),
            retry_at: row.get(12),
            slice_token: row.get(13),
            code_version: row.get(14),
            rows: row.get(15),
            published_at: row.get(16),
            owner_plan: row.get(17),
            turn: row.get(18).unwrap_or(0),
            said: row.get::<String>(19).as_deref().and_then(Mark::parse).map(|mark| Said {
                mark,
                reason: row.at(20),
                by: row.at(21),
                at: row.at(22),
                token: row.at(23),
            }),
            changed_by: row.get(24),
            is_measured: row.at(25),
        };
        let window = pipeline.grid.window_of(row.at(1)).expect(ON_GRID);
        (window.position, record)
    };
    let mut records = match reading {
        Reading::Stable => spi::read(RECORDS, &args, decode),
        Reading::Deciding => spi::latest_bulk(RECORDS, &args, decode),
    };
    records.sort_unstable_by_key(|(position, _)| *position);
    records
}

/// The windows of a range of positions as they are at `now`. What that costs grows with what the ledger holds of
/// them, and not with how many they are.
pub fn look(
    reading: Reading,
    pipeline: &Pipeline,
    positions: Range<i64>,
    now: Instant,
) -> Result<Vec<Piece>> {
    if !pipeline.depends_on_past {
        let mut pieces = look_at_each(reading, pipeline, positions, now)?;
        block_mixture(pipeline, &mut pieces);
        return Ok(pieces);
    }
    let all = look_at_each(reading, pipeline, pipeline.grid.first..positions.end, now)?;
    let judged = sequence::judge(&pipeline.grid, all);
    Ok(judged.iter().filter_map(|piece| piece.within(&pipeline.grid, &positions)).collect())
}

/// All windows that are due or that the ledger holds something of, as they are at `now`.
pub fn look_at_all(pipeline: &Pipeline, now: Instant) -> Vec<Piece> {
    let records = role::as_ledger(|| records(Reading::Stable, pipeline, EVER, Instant(i64::MAX)));
    let newest = records.last().map_or(i64::MIN, |(position, _)| *position);
    let all = pipeline.grid.first..newest.max(pipeline.newest_due(now)) + 1;
    let pieces = assemble(Reading::Stable, pipeline, all, records, now);
    if pipeline.depends_on_past {
        return sequence::judge(&pipeline.grid, pieces);
    }
    let mut pieces = pieces;
    block_mixture(pipeline, &mut pieces);
    pieces
}

/// Marks what may start by itself and whose slice would be refused because of its code version.
fn block_mixture(pipeline: &Pipeline, pieces: &mut [Piece]) {
    let mut eligible = pieces.iter_mut().filter(|piece| piece.state == State::Eligible).peekable();
    if pipeline.on_mixture != OnMixture::Refuse || eligible.peek().is_none() {
        return;
    }
    let Some(version) = version::shown(Reading::Stable, pipeline) else { return };
    // An eligible window has no slice.
    if !mixture::fits(pipeline.id, Some(&version), mixture::NO_WINDOW) {
        eligible.for_each(|piece| piece.state = State::Blocked);
    }
}

/// The windows of pieces, one by one as they are asked for.
pub fn one_by_one<P: IntoIterator<Item = Piece>>(
    pipeline: &Pipeline,
    pieces: P,
) -> impl Iterator<Item = Seen> + use<P> {
    piece::windows(&pipeline.grid, pieces).inspect(|_| {
        pgrx::check_for_interrupts!();
    })
}

/// Which windows of the pipeline may start by themselves at `now`.
fn admission(pipeline: &Pipeline, now: Instant) -> Admission {
    let newest =
        role::as_ledger(|| spi::read(NEWEST_START, &[pipeline.id.into()], |row| row.at::<Instant>(1)));
    pipeline.admission(now, newest.into_iter().next())
}

/// [`look`], without what depends on the windows before.
pub fn look_at_each(
    reading: Reading,
    pipeline: &Pipeline,
    positions: Range<i64>,
    now: Instant,
) -> Result<Vec<Piece>> {
    if positions.is_empty() {
        return Ok(vec![]);
    }
    let at = |position| pipeline.grid.boundary(position).map_err(out_of_range);
    let (since, until) = (at(positions.start)?, at(positions.end)?);
    let records = role::as_ledger(|| records(reading, pipeline, since, until));
    Ok(assemble(reading, pipeline, positions, records, now))
}

fn assemble(
    reading: Reading,
    pipeline: &Pipeline,
    positions: Range<i64>,
    records: Vec<(i64, Record)>,
    now: Instant,
) -> Vec<Piece> {
    let admission = admission(pipeline, now);
    let newest_due = pipeline.newest_due(now);
    let has_slices = records.iter().any(|(_, record)| record.slice_token.is_some());
    let current = has_slices.then(|| Alike::to_current(reading, pipeline)).flatten();
    let state_of = |position: i64, record: &Record| {
        let said = record.said.as_ref().map(|said| said.mark);
        let facts = Facts {
            newest: record.newest,
            requeued: record.requeued,
            attempts_left: record.attempt < pipeline.max_attempts,
            locked: said == Some(Mark::Locked),
            skipped: said == Some(Mark::Skipped),
            owned: record.owner_plan.is_some(),
            // A plan that does not publish later owns no window of which it is done.
            staged: record.newest == Some(Outcome::Done) && record.owner_plan == Some(record.plan_id),
            has_slice: record.slice_token.is_some(),
            stale: said == Some(Mark::Stale),
            outdated: current.as_ref().is_some_and(|code| !code.includes(record.code_version.as_deref())),
            adopted: said == Some(Mark::Adopted),
            admitted: admission.contains(position),
            due: position <= newest_due,
        };
        facts.state()
    };
    let (catchup, backlog) = (&admission.catchup, &admission.backlog);
    let turns = [catchup.start, catchup.end, backlog.start, backlog.end, newest_due + 1];
    piece::divide(&pipeline.grid, positions, records, &turns, state_of)
}

/// The windows that are due, did not run, and start by themselves no more, oldest first.
pub fn missed(reading: Reading, pipeline: &Pipeline, now: Instant) -> Result<Vec<Piece>> {
    let due = pipeline.grid.first..pipeline.newest_due(now) + 1;
    let mut pieces = look_at_each(reading, pipeline, due, now)?;
    pieces.retain(|piece| piece.state == State::Missed);
    Ok(pieces)
}

/// The most windows that one call names. A plan of so many takes about a gigabyte of memory.
const MOST: i64 = 10_000_000;

/// Whether one call may name so many windows.
pub fn is_countable(windows: i64) -> bool {
    windows <= MOST
}

/// Refuses a call that would name too many windows (54000), those of `positions` among them.
pub fn require_countable(pipeline: &Pipeline, windows: i64, positions: &Range<i64>) -> Result<()> {
    if is_countable(windows) {
        return Ok(());
    }
    let newest = pipeline.grid.boundary(positions.end - MOST).unwrap_or(EVER);
    Err(Error::new(Code::TooMany, format!("{windows} windows are too many for one call"))
        .detail(format!("One call names {MOST} at most."))
        .hint(format!(
            "Give since and until closer together, such as since => '{}', and the others in further calls.",
            instant_text(pipeline.grid.zone(), newest)
        )))
}

fn out_of_range(error: GridError) -> Error {
    Error::new(Code::InvalidParameter, "the range of windows is out of range")
        .detail(error.to_string())
        .hint("Give bounds within the pipeline's grid.")
}

/// Two bounds that a person gave, resolved on the grid.
#[derive(Debug, Clone)]
pub struct Bounds {
    pub positions: Range<i64>,
    pub since: Instant,
    pub until: Instant,
}

impl Pipeline {
    /// The window that a key names (22023 for a text that is no key of the grid).
    pub fn window_named(&self, key: &str) -> Result<Window> {
        let named = self.grid.parse_key(key).and_then(|position| self.grid.window(position));
        let error = match named {
            Ok(Some(window)) => return Ok(window),
            Ok(None) => GridError::Skipped { key: key.to_owned() },
            Err(error) => error,
        };
        Err(Error::new(
            Code::InvalidParameter,
            format!("\"{key}\" is not the key of a window of pipeline \"{}\"", self.name),
        )
        .detail(error.to_string())
        .hint(format!(
            "Keys look like {}; SELECT window_key FROM pipeline_windows(...) lists them.",
            self.grid.window_key(self.grid.newest_first()).unwrap_or_default()
        )))
    }

    /// Reads a bound that a person gave (22023).
    pub fn read_bound(&self, what: &str, text: &str) -> Result<Bound> {
        Bound::parse(text).map_err(|error| {
            Error::new(Code::InvalidParameter, format!("{what} \"{text}\" is not a bound"))
                .detail(error.to_string())
                .hint("Give an ISO date, or date and time, local in the pipeline's zone unless it carries an offset.")
        })
    }

    /// Resolves a bound of the grid that a person gave: BF012 with the two nearest boundaries where it is off
    /// the grid, 22023 where it cannot be read.
    pub fn boundary_at(&self, what: &str, text: &str) -> Result<i64> {
        let bound = self.read_bound(what, text)?;
        self.grid.locate(bound).map_err(|error| match error {
            GridError::OffGrid { before, after } => Error::new(
                Code::OffGrid,
                format!("{what} \"{text}\" is not a boundary of pipeline \"{}\"", self.name),
            )
            .detail(format!("Its windows {}.", grid::described(&self.grid.at(self.grid.instant(bound)).grid)))
            .hint(format!("The nearest boundaries are {before} and {after}.")),
            other => grid::out_of_range(&format!("{what} \"{text}\""), &other),
        })
    }

    /// Resolves `since` and `until` (exclusive). No `since` is the pipeline's first window; no `until` is the end of
    /// its newest complete window.
    pub fn bounds(&self, since: Option<&str>, until: Option<&str>, now: Instant) -> Result<Bounds> {
        let first = since.map_or(Ok(self.grid.first), |text| self.boundary_at("since", text))?;
        let end = match until {
            Some(text) => self.boundary_at("until", text)?,
            None => (self.newest_due(now) + 1).max(first),
        };
        let at = |position| self.grid.boundary(position).map_err(out_of_range);
        let (since_at, until_at) = (at(first)?, at(end)?);
        if since_at > until_at {
            return Err(Error::new(Code::InvalidParameter, "since is after until")
                .detail(format!(
                    "since is {}, until (exclusive) is {}.",
                    instant_text(self.grid.zone(), since_at),
                    instant_text(self.grid.zone(), until_at)
                ))
                .hint("Swap the two bounds."));
        }
        let existing = |position: i64| position.max(self.grid.first);
        Ok(Bounds { positions: existing(first)..existing(end), since: since_at, until: until_at })
    }
}

/// A cadence in words.
pub fn cadence_text(cadence: crate::domain::cadence::Cadence) -> String {
    use crate::domain::cadence::Cadence;
    match cadence {
        Cadence::Months(n) => format!("{n} month(s)"),
        Cadence::Days(n) => format!("{n} day(s)"),
        Cadence::Micros(n) => datum::seconds_text(n),
    }
}

/// Every decision of a person is kept with its reason (22023 if it is NULL or blank).
pub fn require_reason(reason: Option<String>) -> Result<String> {
    reason.filter(|reason| !reason.trim().is_empty()).ok_or_else(|| {
        Error::new(Code::InvalidParameter, "a reason is required")
            .detail("reason is NULL or blank; it is kept beside what the call changes.")
            .hint("Say in a few words why, for whoever reads the ledger later.")
    })
}
