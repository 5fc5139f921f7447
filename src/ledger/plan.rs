//! A plan: what was asked, which windows that selects, and what the ledger stores of it.
//!
//! ```text
//!            approve(count)             every window ended
//!   draft ─────────────────▶ approved ───────────────────▶ (shown as completed or partial)
//!     │                       │    ▲                          │ retry: its failed windows, and
//!     │                 pause │    │ resume                   │ extend: those due since
//!     │                       ▼    │                          ▼ are handed out again
//!     │                       paused                        approved
//!     └──────── cancel ─────────┴────────▶ cancelled
//!
//!   together: approved ──▶ (every window staged) ── publish ──▶ published
//!
//!   (every window ended), published or cancelled ── revert ──▶ reverted
//! ```
//!
//! A verification is a plan that publishes nothing (`ledger::verification`): its windows end as done, and hold what they held.
//!
//! A plan is also shown as paused while its canary waits for a person, and after a failure stopped it
//! (`on_failure => 'stop'`); neither is stored in its row, which claims and workers never write.
//!
//! A draft stores positions, states and slice tokens; approval selects again by the same request and the same
//! clock (`as_of`) and refuses if anything moved. Only then are there rows, and the plan owns its windows.

use crate::domain::bound::instant_text;
use crate::domain::calendar::Window;
use crate::domain::lifecycle::State;
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::alike::Alike;
use crate::ledger::piece::{self, Piece};
use crate::ledger::pipeline::{Definition, ON_GRID, Pipeline};
use crate::ledger::window::{self, Bounds, Reading};
use crate::postgres::{role, spi};
use serde_json::{Map, Value};
use std::ops::Range;

/// What somebody asked for; the arguments of `backfill_plan` after their defaults.
#[derive(Debug, Clone)]
pub struct Request {
    pub since: Option<String>,
    pub until: Option<String>,
    pub reason: String,
    pub mode: Mode,
    pub keys: Option<Vec<String>>,
    /// Ranges of positions, as pairs: how a draft of `pipeline_resume` names its windows.
    pub positions: Option<Vec<i64>>,
    pub ordering: Ordering,
    pub concurrency: Option<i32>,
    pub pool: String,
    pub priority: i32,
    /// How many windows run before the plan waits for a person.
    pub canary: Option<i32>,
    /// Whether a window that fails for good stops the plan.
    pub stops_on_failure: bool,
    pub code_version: Option<String>,
    /// A query of the plan's own, and the `search_path` that it is read under.
    pub query: Option<(String, String)>,
    /// Whether all windows are published at once, by `backfill_publish`.
    pub together: bool,
    /// Whether they are built to be compared with what is published, and never published.
    pub verifies: bool,
    pub effects: bool,
    pub params: Option<Value>,
    pub override_retention: Option<String>,
    pub allow_shrink: Option<String>,
    pub expect: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every due window of the range.
    All,
    /// Those without a slice.
    Missing,
    /// Those that failed or were refused.
    Failed,
    /// Those whose slice is stale.
    Stale,
    /// Those whose slice was built by other code than the plan's.
    Outdated,
}

impl Mode {
    /// Why it leaves out a window that could be planned. `code` is the plan's, for [`Mode::Outdated`].
    fn reason_to_decline(self, piece: &Piece, code: Option<&Alike>) -> Option<&'static str> {
        let record = piece.record();
        match self {
            Self::Outdated if record.slice_token.is_none() => Some("not built"),
            Self::Outdated if code.is_some_and(|code| code.includes(record.code_version.as_deref())) => {
                Some("built by this version")
            }
            Self::Missing if record.slice_token.is_some() => Some("already done"),
            Self::Failed if !matches!(piece.state, State::Failed | State::Refused) => Some("not failed"),
            Self::Stale if piece.state != State::Stale => Some("not stale"),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    OldestFirst,
    NewestFirst,
    /// Oldest first, one at a time, and none past a window that will be tried again.
    Sequential,
}

fn text<'v>(object: &'v Map<String, Value>, name: &str) -> Option<&'v str> {
    object.get(name).and_then(Value::as_str)
}

fn one_of(object: &Map<String, Value>, name: &str, known: &[&str]) -> Result<String> {
    let given = text(object, name).unwrap_or(known[0]);
    if known.contains(&given) {
        return Ok(given.to_owned());
    }
    Err(Error::new(Code::InvalidParameter, format!("{name} \"{given}\" is unknown"))
        .detail(format!("{name} is one of {}.", known.join(", ")))
        .hint(format!("Leave {name} at its default, '{}'.", known[0])))
}

/// What the stored request of a verification has. No argument of `backfill_plan` is called so.
pub const VERIFIES: &str = "verifies";

/// Where the stored request keeps the `search_path` of its query.
pub const QUERY_PATH: &str = "query_path";

impl Request {
    /// Reads the arguments of `backfill_plan`, or what a plan stored of them.
    pub fn read(object: &Map<String, Value>) -> Result<Self> {
        if object.get("cascade") == Some(&Value::Bool(true)) {
            return Err(Error::new(Code::Unsupported, "cascade => true is not supported yet")
                .detail("This release does not know which pipelines build on others.")
                .hint("Leave cascade at its default."));
        }
        let publish = ["each", "together"];
        let together = one_of(object, "publish", &publish)? == "together";
        let on_failure = ["continue", "stop"];
        let on_failure = one_of(object, "on_failure", &on_failure)?;
        let mode = one_of(object, "mode", &["all", "missing", "failed", "stale", "outdated"])?;
        let orderings = ["oldest_first", "newest_first", "sequential"];
        let ordering = match one_of(object, "ordering", &orderings)?.as_str() {
            "newest_first" => Ordering::NewestFirst,
            "sequential" => Ordering::Sequential,
            _ => Ordering::OldestFirst,
        };
        let blank = |name: &str| -> Result<Option<String>> {
            match text(object, name) {
                Some(given) if given.trim().is_empty() => {
                    Err(Error::new(Code::InvalidParameter, format!("{name} is blank"))
                        .detail("It gives the reason for what the plan may do, and is kept.")
                        .hint(format!("Leave {name} out, or say why.")))
                }
                given => Ok(given.map(str::to_owned)),
            }
        };
        let number = |name: &str| object.get(name).and_then(Value::as_i64);
        let concurrency = number("concurrency").map(|n| require_concurrency(n as i32)).transpose()?;
        if ordering == Ordering::Sequential && concurrency.is_some_and(|n| n > 1) {
            return Err(one_at_a_time());
        }
        if together && ordering == Ordering::Sequential {
            return Err(Error::new(Code::Unsupported, "a sequential plan is not published together")
                .detail("Each of its windows is built from the slice of the one before, which nobody can read before all are published.")
                .hint("Leave publish at its default, or choose another ordering."));
        }
        let query = text(object, "query")
            .map(|query| (query.to_owned(), text(object, QUERY_PATH).unwrap_or_default().to_owned()));
        if query.is_some() && text(object, "code_version").is_some() {
            return Err(Error::new(Code::InvalidParameter, "code_version cannot be given beside a query")
                .detail("The code version of a query is its fingerprint.")
                .hint("Leave code_version out."));
        }
        let canary = number("canary").map(|n| n as i32);
        if let Some(n) = canary.filter(|n| *n < 1) {
            return Err(Error::new(Code::InvalidParameter, format!("canary {n} is out of range"))
                .detail("canary is the number of windows that run before the plan waits for a person.")
                .hint("Give at least 1, or leave it out."));
        }
        let keys = match object.get("keys") {
            Some(Value::Array(keys)) if keys.is_empty() => {
                return Err(Error::new(Code::InvalidParameter, "keys is empty")
                    .detail("It names the windows of the plan, and names none.")
                    .hint("Name windows by their keys, or leave keys out for all of the range."));
            }
            Some(Value::Array(keys)) => {
                Some(keys.iter().filter_map(|k| k.as_str().map(str::to_owned)).collect())
            }
            _ => None,
        };
        Ok(Self {
            since: text(object, "since").map(str::to_owned),
            until: text(object, "until").map(str::to_owned),
            reason: window::require_reason(text(object, "reason").map(str::to_owned))?,
            mode: match mode.as_str() {
                "missing" => Mode::Missing,
                "failed" => Mode::Failed,
                "stale" => Mode::Stale,
                "outdated" => Mode::Outdated,
                _ => Mode::All,
            },
            keys,
            positions: object
                .get("positions")
                .and_then(Value::as_array)
                .map(|positions| positions.iter().filter_map(Value::as_i64).collect()),
            ordering,
            concurrency,
            canary,
            stops_on_failure: on_failure == "stop",
            pool: text(object, "pool").unwrap_or("backfill").to_owned(),
            priority: object.get("priority").and_then(Value::as_i64).unwrap_or(0) as i32,
            code_version: text(object, "code_version").map(str::to_owned),
            query,
            together,
            verifies: object.contains_key(VERIFIES),
            effects: object.get("effects").and_then(Value::as_bool).unwrap_or(false),
            params: object.get("params").filter(|v| !v.is_null()).cloned(),
            override_retention: blank("override_retention")?,
            allow_shrink: blank("allow_shrink")?,
            expect: object.get("expect").and_then(Value::as_i64),
        })
    }

    /// What becomes of the rows of its windows.
    pub fn publish(&self) -> &'static str {
        match (self.verifies, self.together) {
            (true, _) => "none",
            (_, true) => "together",
            _ => "each",
        }
    }

    /// Whether the plan brings code that `backfill_publish` makes the pipeline's.
    pub fn has_own_code(&self) -> bool {
        self.together && (self.query.is_some() || self.code_version.is_some())
    }

    /// Refuses new rows that no target can hold (0A000).
    pub fn require_target_of(&self, pipeline: &Pipeline) -> Result<()> {
        let needs_target = match self.query {
            _ if pipeline.target.is_some() => return Ok(()),
            _ if self.together => "publish => 'together'",
            Some(_) => "query",
            None => return Ok(()),
        };
        let message = format!("{needs_target} needs a target, and pipeline \"{}\" has none", pipeline.name);
        Err(Error::new(Code::Unsupported, message)
            .detail("Its slices lie outside this database, or in no table that the ledger knows.")
            .hint("Give it target and slice_column with pipeline_alter()."))
    }

    /// Refuses an order in which the windows of the pipeline cannot run (22023).
    pub fn require_order_of(&self, pipeline: &Pipeline) -> Result<()> {
        if pipeline.depends_on_past && self.ordering != Ordering::Sequential {
            return Err(Error::new(
                Code::InvalidParameter,
                format!("plans of pipeline \"{}\" are sequential", pipeline.name),
            )
            .detail(format!(
                "Each of its windows depends on the one before (depends_on_past); ordering is {}.",
                self.ordering.name()
            ))
            .hint("Give ordering => 'sequential'."));
        }
        Ok(())
    }
}

impl Ordering {
    pub fn name(self) -> &'static str {
        match self {
            Self::OldestFirst => "oldest_first",
            Self::NewestFirst => "newest_first",
            Self::Sequential => "sequential",
        }
    }
}

/// A concurrency in its range (22023).
pub fn require_concurrency(n: i32) -> Result<i32> {
    if (1..=10_000).contains(&n) {
        return Ok(n);
    }
    Err(Error::new(Code::InvalidParameter, format!("concurrency {n} is out of range"))
        .detail("concurrency must be between 1 and 10000.")
        .hint("Leave it out to use every slot of the pool."))
}

/// The error for a sequential plan that should run several windows at once.
pub fn one_at_a_time() -> Error {
    Error::new(Code::InvalidParameter, "a sequential plan runs one window at a time")
        .detail("concurrency is more than 1.")
        .hint("Leave concurrency out, or choose another ordering.")
}

/// Neighbouring windows that are not in the plan, for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declined {
    pub start: Instant,
    pub end: Instant,
    pub windows: i64,
    pub reason: String,
}

/// The windows that a request selects, ascending, and why the others are left out.
#[derive(Debug)]
pub struct Selection {
    pub bounds: Bounds,
    pub members: Vec<Piece>,
    /// How many windows the members are.
    pub windows: i64,
    pub declined: Vec<Declined>,
}

impl Selection {
    /// The windows one by one.
    pub fn list(&self, pipeline: &Pipeline) -> Vec<Window> {
        window::one_by_one(pipeline, self.members.iter().cloned()).map(|seen| seen.window).collect()
    }

    /// Leaves out all members but those at some places, which ascend. Each member must be one window.
    pub fn keep_only(&mut self, pipeline: &Pipeline, places: &[usize], why: &str) {
        let mut left_out = vec![];
        for (place, piece) in std::mem::take(&mut self.members).into_iter().enumerate() {
            match places.binary_search(&place) {
                Ok(_) => self.members.push(piece),
                Err(_) => decline(&mut left_out, pipeline, &piece, why.to_owned()),
            }
        }
        self.declined.append(&mut left_out);
        self.declined.sort_unstable_by_key(|declined| declined.start);
        self.windows = self.members.len() as i64;
    }
}

/// Selects by the clock `as_of`, for a plan that runs a code version.
pub fn select(
    pipeline: &Pipeline,
    request: &Request,
    version: Option<&str>,
    as_of: Instant,
) -> Result<Selection> {
    select_beside(&[], pipeline, request, version, as_of)
}

/// The same without the windows at these positions, which ascend: they are neither taken nor declined.
pub fn select_beside(
    listed: &[i64],
    pipeline: &Pipeline,
    request: &Request,
    version: Option<&str>,
    as_of: Instant,
) -> Result<Selection> {
    let wanted = named_windows(pipeline, request)?;
    let bounds = match wanted.as_deref() {
        Some([first, .., last]) if request.since.is_none() && request.until.is_none() => {
            named_bounds(pipeline, first.start..last.end)
        }
        Some([only]) if request.since.is_none() && request.until.is_none() => {
            named_bounds(pipeline, only.clone())
        }
        _ => pipeline.bounds(request.since.as_deref(), request.until.as_deref(), as_of)?,
    };
    if let Some(ranges) = &wanted {
        require_within(pipeline, ranges, &bounds)?;
    }
    let pieces = window::look(Reading::Deciding, pipeline, bounds.positions.clone(), as_of)?;
    let newest_due = pipeline.newest_due(as_of);
    let retained = pipeline.source_retention.filter(|_| request.override_retention.is_none());
    let oldest_source = retained.and_then(|retention| {
        let oldest = Instant(as_of.0.saturating_sub(retention.approximate_micros()));
        let window = pipeline.grid.window_of(oldest).ok()?;
        Some(if window.start < oldest { window.position + 1 } else { window.position })
    });
    let wanted = without(listed, wanted.unwrap_or_else(|| vec![bounds.positions.clone()]));
    let border = oldest_source.unwrap_or(i64::MIN);
    let code = match request.mode {
        Mode::Outdated => Some(code_of_plan(pipeline, version)?),
        _ => None,
    };
    let mut members = Vec::new();
    let mut declined: Vec<Declined> = Vec::new();
    for piece in pieces {
        let behind = wanted.partition_point(|range| range.end <= piece.first());
        for range in wanted[behind..].iter().take_while(|range| range.start <= piece.last()) {
            for range in [range.start..range.end.min(border), range.start.max(border)..range.end] {
                let Some(piece) = piece.within(&pipeline.grid, &range) else { continue };
                match reason_to_decline(&piece, request, code.as_ref(), newest_due, border) {
                    None => members.push(piece),
                    Some(reason) => decline(&mut declined, pipeline, &piece, reason),
                }
            }
        }
    }
    let windows = piece::count(&pipeline.grid, &members);
    window::require_countable(pipeline, windows, &bounds.positions)?;
    Ok(Selection { bounds, members, windows, declined })
}

/// What slices are compared with that may be outdated (22023 where the plan has no version).
fn code_of_plan(pipeline: &Pipeline, version: Option<&str>) -> Result<Alike> {
    let version = version.ok_or_else(|| {
        Error::new(Code::InvalidParameter, "nothing says what is outdated")
            .detail(format!(
                "Neither the plan nor pipeline \"{}\" has a code version: its workers state what they run.",
                pipeline.name
            ))
            .hint("Name the version that the windows are to be built by: code_version => '...'.")
    })?;
    Ok(Alike::to(Reading::Deciding, pipeline.id, version.to_owned()))
}

/// Ascending ranges without some of their positions.
fn without(listed: &[i64], ranges: Vec<Range<i64>>) -> Vec<Range<i64>> {
    let mut left = Vec::with_capacity(ranges.len());
    for Range { mut start, end } in ranges {
        let first = listed.partition_point(|position| *position < start);
        for position in listed[first..].iter().take_while(|position| **position < end) {
            left.extend(Some(start..*position).filter(|range| !range.is_empty()));
            start = position + 1;
        }
        left.extend(Some(start..end).filter(|range| !range.is_empty()));
    }
    left
}

/// The windows that the request names, as ascending ranges of positions; `None` if it names a range of time.
fn named_windows(pipeline: &Pipeline, request: &Request) -> Result<Option<Vec<Range<i64>>>> {
    if let Some(positions) = &request.positions {
        return Ok(Some(positions.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()));
    }
    let Some(keys) = &request.keys else { return Ok(None) };
    let mut ranges = Vec::with_capacity(keys.len());
    for key in keys {
        let position = pipeline.window_named(key)?.position;
        ranges.push(position..position + 1);
    }
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup();
    Ok(Some(ranges))
}

/// Refuses the name of a window that since and until leave out (22023).
fn require_within(pipeline: &Pipeline, named: &[Range<i64>], bounds: &Bounds) -> Result<()> {
    let inside =
        |range: &Range<i64>| range.start >= bounds.positions.start && range.end <= bounds.positions.end;
    let Some(outside) = named.iter().find(|range| !inside(range)) else { return Ok(()) };
    let key = pipeline.grid.window_key(outside.start).unwrap_or_default();
    let shown = |at| instant_text(pipeline.grid.zone(), at);
    Err(Error::new(Code::InvalidParameter, format!("window {key} is not between since and until"))
        .detail(format!("keys names it; since is {}, until {}.", shown(bounds.since), shown(bounds.until)))
        .hint("Leave since and until out where keys names the windows."))
}

fn named_bounds(pipeline: &Pipeline, positions: Range<i64>) -> Bounds {
    let boundary = |k| pipeline.grid.boundary(k).expect("names are of windows of the grid");
    Bounds { since: boundary(positions.start), until: boundary(positions.end), positions }
}

/// The positions of ascending pieces as half-open ranges, flattened: `[first, end, first, end, …]`.
pub fn ranges_of(pieces: &[Piece]) -> Vec<i64> {
    let mut ranges: Vec<i64> = vec![];
    for Range { start, end } in pieces.iter().map(|piece| piece.positions.clone()) {
        match ranges.last_mut() {
            Some(last) if *last == start => *last = end,
            _ => ranges.extend([start, end]),
        }
    }
    ranges
}

/// Why a window is left out that the source cannot answer for any more.
pub const RETENTION: &str = "beyond source retention";

/// The same for all windows of the piece.
fn reason_to_decline(
    piece: &Piece,
    request: &Request,
    code: Option<&Alike>,
    newest_due: i64,
    oldest_source: i64,
) -> Option<String> {
    match piece.state {
        State::Locked => Some("locked".to_owned()),
        State::Skipped => Some("skipped".to_owned()),
        _ if let Some(plan) = piece.record().owner_plan => Some(format!("owned by plan {plan}")),
        State::Leased | State::Retrying => Some("in flight".to_owned()),
        _ if piece.first() > newest_due => Some("not due".to_owned()),
        _ if request.verifies
            && let Some(reason) = reason_not_to_verify(piece) =>
        {
            Some(reason)
        }
        _ if let Some(reason) = request.mode.reason_to_decline(piece, code) => Some(reason.to_owned()),
        _ if piece.first() < oldest_source => Some(RETENTION.to_owned()),
        _ => None,
    }
}

/// Why a window is left out of a verification: there is nothing to compare with, or something else is to become of it.
fn reason_not_to_verify(piece: &Piece) -> Option<String> {
    let record = piece.record();
    match piece.state {
        _ if record.slice_token.is_none() => Some("no slice".to_owned()),
        State::Done | State::Stale | State::Outdated | State::Adopted if !record.is_measured => {
            Some("neither rows nor digest of its slice are known".to_owned())
        }
        State::Done | State::Stale | State::Outdated | State::Adopted => None,
        state => Some(state.to_string()),
    }
}

fn decline(declined: &mut Vec<Declined>, pipeline: &Pipeline, piece: &Piece, reason: String) {
    let boundary = |k| pipeline.grid.boundary(k).expect(ON_GRID);
    let (start, end) = (boundary(piece.first()), boundary(piece.positions.end));
    let windows = piece.count(&pipeline.grid);
    match declined.last_mut() {
        Some(last) if last.end == start && last.reason == reason => {
            last.end = end;
            last.windows += windows;
        }
        _ => declined.push(Declined { start, end, windows, reason }),
    }
}

/// What a draft keeps of its members to see whether they moved: positions as ranges, a letter for each
/// state, and each slice's token (0 for none).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    pub ranges: Vec<i64>,
    pub states: String,
    pub tokens: Vec<i64>,
}

impl Frozen {
    pub fn of(members: &[Piece]) -> Self {
        let mut frozen = Self { ranges: ranges_of(members), states: String::new(), tokens: vec![] };
        for piece in members {
            let windows = (piece.positions.end - piece.positions.start) as usize;
            frozen.states.extend(std::iter::repeat_n(letter(piece.state), windows));
            frozen.tokens.extend(std::iter::repeat_n(piece.record().slice_token.unwrap_or(0), windows));
        }
        frozen
    }

    fn positions(&self) -> impl Iterator<Item = i64> + '_ {
        self.ranges.chunks_exact(2).flat_map(|range| range[0]..range[1])
    }

    /// The first differences between this and what is selected now, in words.
    pub fn differences(&self, now: &Self, key_of: impl Fn(i64) -> String) -> Vec<String> {
        let index = |frozen: &Self| -> std::collections::BTreeMap<i64, (char, i64)> {
            frozen.positions().zip(frozen.states.chars().zip(frozen.tokens.iter().copied())).collect()
        };
        let (then, now) = (index(self), index(now));
        let mut differences = vec![];
        for (position, (state, token)) in &then {
            match now.get(position) {
                None => differences.push(format!("{} can no longer be planned", key_of(*position))),
                Some(found) if found.1 != *token => differences.push(format!(
                    "{} holds the slice of token {} instead of {token}",
                    key_of(*position),
                    found.1
                )),
                Some(found) if found.0 != *state => {
                    differences.push(format!("{} changed its state", key_of(*position)));
                }
                Some(_) => {}
            }
        }
        for position in now.keys().filter(|position| !then.contains_key(position)) {
            differences.push(format!("{} would now be in the plan", key_of(*position)));
        }
        differences
    }
}

/// "Eligible" and "missed" differ by the clock and by other windows' progress alone.
fn letter(state: State) -> char {
    match state {
        // Which code built a slice is compared with the slices' tokens, and what the pipeline runs with its version.
        State::Done | State::Outdated | State::Adopted => 'd',
        State::Failed => 'f',
        State::Refused => 'r',
        State::Stale => 's',
        _ => 'n',
    }
}

/// A plan as it is stored.
#[derive(Debug)]
pub struct Plan {
    pub id: i64,
    pub pipeline_id: i64,
    pub state: String,
    pub request: Map<String, Value>,
    pub concurrency: i32,
    /// The most that it was before.
    pub concurrency_before: i32,
    pub windows: i64,
    pub range_start: Instant,
    pub range_end: Instant,
    pub code_version: Option<String>,
    pub as_of: Instant,
    pub estimate: Value,
    pub pool: String,
    pub pool_slots: i32,
    pub ordering: String,
    pub reason: String,
    pub created_by: String,
    pub canary: Option<i32>,
    /// Whether the draft is too old to be approved.
    pub expired: bool,
    /// Which grids of the pipeline its positions are of.
    pub grid_version: i32,
    /// Whether all windows are published at once.
    pub together: bool,
    /// Whether none is: they are compared with what is published.
    pub verifies: bool,
    pub published_at: Option<Instant>,
    /// What the pipeline ran when a plan with code of its own was made.
    pub code_before: Option<Definition>,
}

macro_rules! plan_columns {
    () => {
        "SELECT pl.plan_id, pl.pipeline_id, pl.state, pl.request, pl.concurrency, pl.windows, pl.range_start,
                pl.range_end, pl.code_version, pl.as_of, pl.estimate, o.name, pl.ordering, pl.reason, pl.created_by,
                pl.canary, pl.expires_at < pg_catalog.clock_timestamp(), pl.grid_version, o.slots,
                pl.concurrency_before, pl.publish = 'together', pl.code_before, pl.published_at, pl.publish = 'none'
         FROM backfill.plan_data pl JOIN backfill.pool_data o ON o.pool_id = pl.pool_id
         WHERE pl.plan_id = $1"
    };
}
const LOAD: &str = plan_columns!();
const LOCK: &str = concat!(plan_columns!(), " FOR UPDATE OF pl");

impl Plan {
    fn decode(row: &spi::Row) -> Self {
        let request = match row.at::<pgrx::JsonB>(4).0 {
            Value::Object(request) => request,
            _ => Map::new(),
        };
        Self {
            id: row.at(1),
            pipeline_id: row.at(2),
            state: row.at(3),
            request,
            concurrency: row.at(5),
            concurrency_before: row.at(20),
            windows: row.at(6),
            range_start: row.at(7),
            range_end: row.at(8),
            code_version: row.get(9),
            as_of: row.at(10),
            estimate: row.at::<pgrx::JsonB>(11).0,
            pool: row.at(12),
            ordering: row.at(13),
            reason: row.at(14),
            created_by: row.at(15),
            canary: row.get(16),
            expired: row.at(17),
            grid_version: row.at(18),
            pool_slots: row.at(19),
            together: row.at(21),
            verifies: row.at(24),
            published_at: row.get(23),
            code_before: row
                .get::<pgrx::JsonB>(22)
                .map(|code| serde_json::from_value(code.0).expect("a plan keeps the code as it was")),
        }
    }

    /// The plan with that number (42704).
    pub fn read(reading: Reading, id: i64) -> Result<Self> {
        let args = [id.into()];
        let rows = role::as_ledger(|| match reading {
            Reading::Stable => spi::read(LOAD, &args, Self::decode),
            Reading::Deciding => spi::latest(LOAD, &args, Self::decode),
        });
        rows.into_iter().next().ok_or_else(|| missing(id))
    }

    /// What one window of the plan, and the wait after it, were estimated to take.
    pub fn window_micros(&self) -> Option<i64> {
        let estimated = |key: &str| self.estimate[key].as_f64();
        Some((estimated("sequential")? * 1e6 / estimated("windows")?) as i64)
    }

    /// The plan with that number, locked against other decisions about it. Waits for people only.
    pub fn lock(id: i64) -> Result<Self> {
        role::as_ledger(|| spi::first(LOCK, &[id.into()], Self::decode)).ok_or_else(|| missing(id))
    }
}

/// The number of a plan that is not NULL (22004).
pub fn require_id(plan_id: Option<i64>) -> Result<i64> {
    plan_id.ok_or_else(|| {
        Error::new(Code::NullValue, "plan_id must not be NULL")
            .detail("It says which plan is meant.")
            .hint("SELECT plan_id, pipeline, state FROM backfill.plans lists the plans.")
    })
}

const NOTE: &str = "INSERT INTO backfill.plan_event_data (plan_id, who, what, why) VALUES ($1, $2, $3, $4)";

/// Keeps a decision of the caller about the plan.
pub fn note(plan_id: i64, what: &str, why: Option<&str>) {
    let who = role::name(role::caller());
    role::as_ledger(|| spi::run(NOTE, &[plan_id.into(), who.as_str().into(), what.into(), why.into()]));
}

fn missing(id: i64) -> Error {
    Error::new(Code::Undefined, format!("plan {id} does not exist"))
        .detail("No plan of this number was made in this database.")
        .hint("SELECT plan_id, pipeline, state FROM backfill.plans lists those that you may read.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::piece::fake;
    use crate::ledger::window::Record;

    fn frozen(windows: &[(i64, State, Option<i64>)]) -> Frozen {
        let piece = |(position, state, token): &(i64, State, Option<i64>)| {
            let record = Record { slice_token: *token, ..Record::default() };
            let range = *position..position + 1;
            piece::divide(&fake::seconds(), range, vec![(*position, record)], &[], |_, _| *state).remove(0)
        };
        Frozen::of(&windows.iter().map(piece).collect::<Vec<_>>())
    }

    #[test]
    fn positions_are_left_out_of_ranges() {
        let of = |listed: &[i64]| without(listed, vec![0..3, 5..6, 8..12]);
        assert_eq!(of(&[]), [0..3, 5..6, 8..12]);
        assert_eq!(of(&[-1, 3, 4, 12, 13]), [0..3, 5..6, 8..12]);
        assert_eq!(of(&[0, 1, 5, 9, 11]), [2..3, 8..9, 10..11]);
        assert_eq!(of(&(0..12).collect::<Vec<_>>()), []);
    }

    #[test]
    fn frozen_members_name_what_moved() {
        let then = frozen(&[(1, State::Missed, None), (2, State::Missed, None), (4, State::Done, Some(7))]);
        assert_eq!(then.ranges, [1, 3, 4, 5]);
        let same = frozen(&[(1, State::Eligible, None), (2, State::Missed, None), (4, State::Done, Some(7))]);
        assert_eq!(then, same);
        let moved = frozen(&[(1, State::Missed, None), (3, State::Missed, None), (4, State::Done, Some(9))]);
        let differences = then.differences(&moved, |k| format!("w{k}"));
        assert_eq!(
            differences,
            [
                "w2 can no longer be planned",
                "w4 holds the slice of token 9 instead of 7",
                "w3 would now be in the plan"
            ]
        );
    }
}
