//! The windows of a pipeline with everything that the ledger and the clock say about them.

use crate::domain::bound::Bound;
use crate::domain::calendar::{GridError, Window};
use crate::domain::catchup::Admission;
use crate::domain::lifecycle::{Facts, Mark, Outcome, State};
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::grid;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::sequence;
use crate::postgres::{datum, role, spi};
use std::collections::HashMap;
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
    /// The token of the newest slice whose digest is not that of the slice before.
    pub changed_by: Option<i64>,
    /// The position of the window that it waits for, and the state of that.
    pub blocked_by: Option<(i64, State)>,
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

/// One window, its state, and what the ledger holds of it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub window: Window,
    pub state: State,
    pub record: Record,
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

fn records(
    reading: Reading,
    pipeline: &Pipeline,
    since: Instant,
    until: Instant,
) -> HashMap<Instant, Record> {
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
            blocked_by: None,
        };
        (row.at::<Instant>(1), record)
    };
    let rows = match reading {
        Reading::Stable => spi::read(RECORDS, &args, decode),
        Reading::Deciding => spi::latest_bulk(RECORDS, &args, decode),
    };
    rows.into_iter().collect()
}

/// The windows of a range of positions as they are at `now`.
pub fn look(reading: Reading, pipeline: &Pipeline, positions: Range<i64>, now: Instant) -> Result<Vec<Seen>> {
    if !pipeline.depends_on_past {
        return look_at_each(reading, pipeline, positions, now);
    }
    let mut seen = look_at_each(reading, pipeline, pipeline.grid.first..positions.end, now)?;
    sequence::judge(&mut seen);
    seen.retain(|seen| positions.contains(&seen.window.position));
    Ok(seen)
}

/// Which windows of the pipeline may start by themselves at `now`.
pub fn admission(pipeline: &Pipeline, now: Instant) -> Admission {
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
) -> Result<Vec<Seen>> {
    let grid = &pipeline.grid;
    let windows: Vec<Window> = grid.windows(positions).map_err(out_of_range)?.collect();
    let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return Ok(vec![]) };
    let mut records = role::as_ledger(|| records(reading, pipeline, first.start, last.end));
    let admission = admission(pipeline, now);
    let newest_due = pipeline.newest_due(now);
    Ok(windows
        .into_iter()
        .map(|window| {
            let record = records.remove(&window.start).unwrap_or_default();
            let said = record.said.as_ref().map(|said| said.mark);
            let facts = Facts {
                newest: record.newest,
                requeued: record.requeued,
                attempts_left: record.attempt < pipeline.max_attempts,
                locked: said == Some(Mark::Locked),
                skipped: said == Some(Mark::Skipped),
                owned: record.owner_plan.is_some(),
                has_slice: record.slice_token.is_some(),
                stale: said == Some(Mark::Stale),
                adopted: said == Some(Mark::Adopted),
                admitted: admission.contains(window.position),
                due: window.position <= newest_due,
            };
            Seen { window, state: facts.state(), record }
        })
        .collect())
}

/// The windows that are due, did not run, and start by themselves no more, oldest first.
pub fn missed(reading: Reading, pipeline: &Pipeline, now: Instant) -> Result<Vec<Seen>> {
    let due = pipeline.grid.first..pipeline.newest_due(now) + 1;
    let mut seen = look(reading, pipeline, due, now)?;
    seen.retain(|seen| seen.state == State::Missed);
    Ok(seen)
}

/// The positions of those windows of the pipeline that have a record of any kind.
pub fn with_record(pipeline: &Pipeline) -> Vec<i64> {
    let everything = [pipeline.id.into(), Instant(i64::MIN + 1).into(), Instant(i64::MAX - 1).into()];
    let mut positions: Vec<i64> =
        role::as_ledger(|| spi::read(RECORDS, &everything, |row| pipeline.position_of(row.at(1))));
    positions.sort_unstable();
    positions
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
                    crate::domain::bound::instant_text(self.grid.zone(), since_at),
                    crate::domain::bound::instant_text(self.grid.zone(), until_at)
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
