//! The grids of a pipeline, and changing them.
//!
//! What has a history keeps its windows: another grid follows from an instant on that is a boundary of both and
//! not before the end of the newest window in the ledger. A claim that is under way may be handing out a window
//! that the ledger does not name yet. It holds the lock of the grid shared from before it looks whether the grid
//! is still the one that it read, and whoever changes the grid holds it exclusively; neither waits.

use crate::domain::bound::{Bound, instant_text};
use crate::domain::cadence::Cadence;
use crate::domain::calendar::{Grid, GridError};
use crate::domain::timeline::{EVER, SwitchError, Timeline};
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::gate;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::window::cadence_text;
use crate::postgres::datum::{self, Span};
use crate::postgres::zone::PgZone;
use crate::postgres::{lock, lock::Key, quote, role, spi};
use pgrx::datum::UnboxDatum;
use pgrx::prelude::*;
use pgrx::{AllocatedByRust, FromDatum, IntoDatum};
use serde_json::{Map, Value};

/// A grid from its columns.
pub fn lay(cadence: Span, start_local: Timestamp, start_at: Instant, time_zone: &str) -> Grid<PgZone> {
    Grid {
        cadence: Cadence::from_parts(cadence.months, cadence.days, cadence.micros)
            .expect("the ledger holds valid cadences"),
        anchor_local: datum::local(start_local),
        anchor: start_at,
        zone: PgZone::new(time_zone).expect("the ledger holds known zones"),
    }
}

/// The columns of a grid: `cadence`, `start_local`, `start_at`, `time_zone`.
pub fn columns(grid: &Grid<PgZone>) -> (Span, Timestamp, Instant, String) {
    let nothing = Span { months: 0, days: 0, micros: 0 };
    let cadence = match grid.cadence {
        Cadence::Months(months) => Span { months, ..nothing },
        Cadence::Days(days) => Span { days, ..nothing },
        Cadence::Micros(micros) => Span { micros, ..nothing },
    };
    (cadence, datum::timestamp(grid.anchor_local), grid.anchor, grid.zone.name())
}

/// A value of `backfill.ended_grid`.
pub type Ended<'a> = PgHeapTuple<'a, AllocatedByRust>;

fn column<T>(row: &Ended, name: &str) -> T
where
    T: FromDatum + IntoDatum + for<'a> UnboxDatum<As<'a> = T>,
{
    row.get_by_name(name).ok().flatten().expect("a grid of the ledger has all its columns")
}

/// The calendar of a pipeline that had other grids, given oldest first, before the newest one follows.
pub fn timeline(ended: Array<Ended>, since: Instant, newest: Grid<PgZone>) -> Timeline<PgZone> {
    let instant = |row: &Ended, name| Instant(i64::from(column::<TimestampWithTimeZone>(row, name)));
    let mut grids: Vec<(Instant, Grid<PgZone>)> = vec![];
    for row in ended.iter().flatten() {
        let cadence: Interval = column(&row, "cadence");
        let cadence = Span { months: cadence.months(), days: cadence.days(), micros: cadence.micros() };
        let zone: String = column(&row, "time_zone");
        let grid = lay(cadence, column(&row, "start_local"), instant(&row, "start_at"), &zone);
        grids.push((instant(&row, "since"), grid));
    }
    grids.push((since, newest));
    let mut timeline = Timeline::new(grids[0].1);
    for (since, grid) in grids.drain(1..) {
        timeline.follow(since, grid).expect("grids of the ledger are within its years");
    }
    timeline
}

/// How the windows of a grid are laid, in words.
pub fn described(grid: &Grid<PgZone>) -> String {
    let start = instant_text(&grid.zone, grid.anchor);
    format!("are laid from {start} in {}, every {}", grid.zone.name(), cadence_text(grid.cadence))
}

const CURRENT: &str = "SELECT 1 FROM backfill.pipeline_data WHERE pipeline_id = $1 AND grid_version = $2";

fn is_current(pipeline: &Pipeline) -> bool {
    !spi::latest(CURRENT, &[pipeline.id.into(), pipeline.grid_version.into()], |_| ()).is_empty()
}

/// For a claim that may hand out windows which the ledger does not name yet: the grid is not changed from here to the
/// end of the transaction. The claim then looks whether it is still the one that it read. False if it is being changed.
pub fn hold(pipeline: &Pipeline) -> bool {
    lock::try_shared(Key::Grid { pipeline: pipeline.id })
}

/// For a call that waited for a lock that keeps the grid from being changed: 40001 if it was changed meanwhile.
pub fn require_current(pipeline: &Pipeline) -> Result<()> {
    if role::as_ledger(|| is_current(pipeline)) {
        return Ok(());
    }
    Err(Error::new(Code::Serialization, format!("the grid of pipeline \"{}\" was changed", pipeline.name))
        .detail("It was changed while this call waited, which read the windows of the grid before.")
        .hint("Repeat the call."))
}

/// Another grid for a pipeline, as somebody asked for it.
pub struct Wanted<'a> {
    pub grid: Grid<PgZone>,
    /// The settings that differ.
    pub moved: Vec<&'a str>,
    /// All settings as they would be.
    pub settings: &'a Map<String, Value>,
}

/// What a pipeline goes over to.
pub struct Regrid {
    pub timeline: Timeline<PgZone>,
    given_start: Instant,
    /// From when on the newest grid of the timeline counts; `None` if that stays and only the start is moved.
    since: Option<Instant>,
}

const NEWEST: &str = "SELECT GREATEST(
    (SELECT r.window_start FROM backfill.run_data r WHERE r.pipeline_id = $1 ORDER BY r.window_start DESC LIMIT 1),
    (SELECT m.window_start FROM backfill.mark_data m WHERE m.pipeline_id = $1 ORDER BY m.window_start DESC LIMIT 1),
    (SELECT w.window_start FROM backfill.plan_window_data w JOIN backfill.plan_data pl ON pl.plan_id = w.plan_id
     WHERE w.pipeline_id = $1 AND pl.state NOT IN ('draft', 'cancelled', 'reverted') ORDER BY w.window_start DESC LIMIT 1))";

/// The end of the newest window that a run, a mark or a plan names.
fn newest_end(pipeline: &Pipeline) -> Option<Instant> {
    let start = role::as_ledger(|| spi::latest(NEWEST, &[pipeline.id.into()], |row| row.get(1)));
    start.into_iter().next().flatten().and_then(|start| pipeline.grid.window_of(start).ok()).map(|w| w.end)
}

/// Keeps everybody from naming windows of the pipeline in the ledger. Only people are waited for.
fn hold_still(pipeline: &Pipeline) -> Result<()> {
    let id = pipeline.id;
    let free = role::as_ledger(|| {
        lock::exclusive_at_once(&[Key::Decisions { pipeline: id }, Key::Approve { pipeline: id }]);
        gate::close(id);
        lock::try_exclusive(Key::Grid { pipeline: id })
    });
    if !free {
        return Err(Error::new(
            Code::Serialization,
            format!("windows of pipeline \"{}\" are being claimed", pipeline.name),
        )
        .detail("The transaction of a claim is open; which windows it hands out shows when it ends.")
        .hint("Repeat the call."));
    }
    require_current(pipeline)
}

/// Decides what becomes of the pipeline's windows, and keeps it so to the end of the transaction; `None` where
/// nothing has to be done.
///
/// Without a history the grid is replaced. With one it is switched at `switch_at`, or its start moved earlier.
/// 22023 where that cannot be, BF012 off the grids, 40001 while claims are under way.
pub fn decide(pipeline: &Pipeline, wanted: &Wanted, switch_at: Option<&str>) -> Result<Option<Regrid>> {
    let switch_at = match switch_at {
        Some(text) => Some((text, pipeline.grid.instant(pipeline.read_bound("switch_at", text)?))),
        None => None,
    };
    // The same grid is wanted from another instant on: from after it counts, it does.
    let counts_then = switch_at.is_none_or(|(_, at)| at >= pipeline.grid.newest().since);
    if wanted.moved.is_empty() && counts_then {
        return Ok(None);
    }
    hold_still(pipeline)?;
    match (switch_at, newest_end(pipeline)) {
        (Some((text, at)), newest) => switch(pipeline, wanted, text, at, newest),
        (None, None) => {
            let timeline = Timeline::new(wanted.grid);
            Ok(Regrid { timeline, given_start: wanted.grid.anchor, since: Some(EVER) })
        }
        (None, Some(newest)) if wanted.moved == ["start_at"] => move_start(pipeline, wanted, newest),
        (None, Some(newest)) => Err(refusal(pipeline, wanted, newest)),
    }
    .map(Some)
}

/// The error for another grid where the one that is there has a history (22023).
fn refusal(pipeline: &Pipeline, wanted: &Wanted, newest: Instant) -> Error {
    let what = wanted.moved.join(", ");
    Error::new(
        Code::InvalidParameter,
        format!("{what} of pipeline \"{}\" cannot be changed without switch_at", pipeline.name),
    )
    .detail(format!(
        "Its windows {}; the newest one that the ledger names ends at {}.",
        described(&pipeline.grid.newest().grid),
        instant_text(pipeline.grid.zone(), newest)
    ))
    .hint(call(pipeline, wanted, newest))
}

/// The error for another grid in a definition, which is the same script on every deployment (22023).
pub fn not_by_definition(pipeline: &Pipeline, wanted: &Wanted) -> Error {
    let what = wanted.moved.join(", ");
    Error::new(
        Code::InvalidParameter,
        format!("{what} of pipeline \"{}\" cannot be changed by its definition", pipeline.name),
    )
    .detail(format!(
        "Its windows {}; those of the definition {}.",
        described(&pipeline.grid.newest().grid),
        described(&wanted.grid)
    ))
    .hint(match newest_end(pipeline) {
        Some(newest) => call(pipeline, wanted, newest),
        None => format!("{} changes it; no window has a history yet.", alter(pipeline, wanted, None)),
    })
}

/// A call of `pipeline_alter` that goes over to the wanted grid.
fn alter(pipeline: &Pipeline, wanted: &Wanted, switch_at: Option<Instant>) -> String {
    let setting = |name: &&str| ((*name).to_owned(), wanted.settings[*name].clone());
    // The grid that is there from another instant on is named by its cadence.
    let named: &[&str] = if wanted.moved.is_empty() { &["cadence"] } else { &wanted.moved };
    let mut settings: Map<String, Value> = named.iter().map(setting).collect();
    if let Some(at) = switch_at {
        settings.insert("switch_at".to_owned(), instant_text(pipeline.grid.zone(), at).into());
    }
    let settings = Value::Object(settings).to_string();
    format!("SELECT pipeline_alter({}, {})", quote::literal(&pipeline.name), quote::literal(&settings))
}

/// The same as a hint, switching at the first instant from `from` on at which that can be.
fn call(pipeline: &Pipeline, wanted: &Wanted, from: Instant) -> String {
    match pipeline.grid.shared_from(&wanted.grid, from) {
        Some(at) => format!("{} keeps the windows until then.", alter(pipeline, wanted, Some(at))),
        None => NONE_SHARED.to_owned(),
    }
}

const NONE_SHARED: &str = "No instant is a boundary of both grids. Switch to a short time cadence first, such as \
    '1 hour', and from that to this grid.";

fn move_start(pipeline: &Pipeline, wanted: &Wanted, newest: Instant) -> Result<Regrid> {
    let (timeline, given) = (&pipeline.grid, wanted.grid.anchor);
    let first = timeline.boundary(timeline.first).map_err(|error| out_of_range("start_at", &error))?;
    if given <= first {
        let position = pipeline.boundary_at("start_at", &instant_text(&wanted.grid.zone, given))?;
        let timeline = timeline.clone().starting_at(position);
        return Ok(Regrid { timeline, given_start: given, since: None });
    }
    if timeline.locate(Bound::Absolute(given)).is_err() {
        return Err(refusal(pipeline, wanted, newest));
    }
    let (name, shown) = (quote::literal(&pipeline.name), |at| instant_text(timeline.zone(), at));
    Err(Error::new(
        Code::InvalidParameter,
        format!("start_at of pipeline \"{}\" cannot be moved later", pipeline.name),
    )
    .detail(format!("Its first window starts at {}, and windows have a history.", shown(first)))
    .hint(format!(
        "SELECT window_skip({name}, '{}', '{}', '...') lets earlier windows rest.",
        shown(first),
        shown(given)
    )))
}

/// The error for a bound that no calendar holds (22023).
pub fn out_of_range(what: &str, error: &GridError) -> Error {
    Error::new(Code::InvalidParameter, format!("{what} is out of range"))
        .detail(error.to_string())
        .hint("Give a bound between the years 1 and 9999.")
}

fn switch(
    pipeline: &Pipeline,
    wanted: &Wanted,
    text: &str,
    at: Instant,
    newest: Option<Instant>,
) -> Result<Regrid> {
    let timeline = &pipeline.grid;
    let shown = |at| instant_text(timeline.zone(), at);
    if let Some(newest) = newest.filter(|newest| at < *newest) {
        return Err(Error::new(
            Code::InvalidParameter,
            format!("switch_at \"{text}\" is before the end of the newest window"),
        )
        .detail(format!("The newest window that the ledger names ends at {}.", shown(newest)))
        .hint(call(pipeline, wanted, newest)));
    }
    let refused = |code, what: &str| Error::new(code, format!("switch_at \"{text}\" {what}"));
    let timeline = timeline.switched(at, wanted.grid).map_err(|error| match error {
        SwitchError::NotShared { before, after } => {
            let before = before.filter(|before| newest.is_none_or(|newest| *before >= newest));
            refused(Code::OffGrid, "is not a boundary of both grids")
                .detail(format!(
                    "The windows until then {}, those from then on {}.",
                    described(&timeline.at(at).grid),
                    described(&wanted.grid)
                ))
                .hint(match (before, after) {
                    (Some(before), Some(after)) => {
                        format!("The nearest boundaries of both are {} and {}.", shown(before), shown(after))
                    }
                    (Some(only), None) | (None, Some(only)) => {
                        format!("The nearest boundary of both is {}.", shown(only))
                    }
                    (None, None) => NONE_SHARED.to_owned(),
                })
        }
        SwitchError::BeforeFirst => refused(Code::InvalidParameter, "is not after the first window's start")
            .detail(format!("No window of pipeline \"{}\" starts before it.", pipeline.name))
            .hint(format!("{} changes the grid from the beginning.", alter(pipeline, wanted, None))),
        SwitchError::KeyTwice { key } => refused(
            Code::InvalidParameter,
            &format!("would give the key \"{key}\" to two windows"),
        )
        .detail("At the switch to the other time zone the clock is set back by a whole day.")
        .hint("Switch to a time cadence first, such as '1 hour', and a day later from that to this grid."),
        SwitchError::Grid(error) => out_of_range("switch_at", &error),
    })?;
    Ok(Regrid { timeline, given_start: wanted.grid.anchor, since: Some(at) })
}

const MOVE_START: &str = "UPDATE backfill.pipeline_data SET first_position = $2, given_start = $3
    WHERE pipeline_id = $1";

/// The grids until the switch end there at the latest; one that was to come later never counted.
const RELAY: &str = "UPDATE backfill.pipeline_data
    SET ended_grids = (
            SELECT pg_catalog.array_agg(ROW (
                g.since, LEAST(g.until, $4), g.cadence, g.start_local, g.start_at, g.time_zone,
                CASE WHEN g.until > $4 THEN $9 ELSE g.replaced_by END,
                CASE WHEN g.until > $4 THEN pg_catalog.clock_timestamp() ELSE g.replaced_at END
            )::backfill.ended_grid ORDER BY g.since)
            FROM pg_catalog.unnest(ended_grids || ROW (
                grid_since, 'infinity', cadence, start_local, start_at, time_zone, NULL, NULL
            )::backfill.ended_grid) g
            WHERE g.since < $4),
        grid_since = $4, grid_version = grid_version + 1, first_position = $2, given_start = $3,
        cadence = $5, start_local = $6, start_at = $7, time_zone = $8
    WHERE pipeline_id = $1";

impl Regrid {
    /// Writes it down. Runs as the ledger's owner.
    pub fn store(&self, pipeline_id: i64, by: &str) {
        let (id, first, given) = (pipeline_id, self.timeline.first, self.given_start);
        let Some(since) = self.since else {
            spi::run(MOVE_START, &[id.into(), first.into(), given.into()]);
            return;
        };
        let (cadence, start_local, start_at, time_zone) = columns(&self.timeline.newest().grid);
        let args = [
            id.into(),
            first.into(),
            given.into(),
            since.into(),
            cadence.into(),
            start_local.into(),
            start_at.into(),
            time_zone.as_str().into(),
            by.into(),
        ];
        spi::run(RELAY, &args);
    }
}
