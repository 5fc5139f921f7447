//! One pipeline as the ledger holds it.

use crate::domain::calendar::Window;
use crate::domain::catchup::{Admission, Standing};
use crate::domain::timeline::Timeline;
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::grid;
use crate::ledger::lint::OnImpure;
use crate::ledger::mixture::OnMixture;
use crate::ledger::rights::{self, Level};
use crate::postgres::datum::Span;
use crate::postgres::segment::Segment;
use crate::postgres::spi::{self, Row};
use crate::postgres::table::Table;
use crate::postgres::zone::PgZone;
use crate::postgres::{role, settings};
use pgrx::pg_sys;
use serde::{Deserialize, Serialize};

/// A pipeline that was not dropped, or the one that a lease or a plan belongs to.
#[derive(Debug, Clone)]
pub struct Pipeline {
    pub id: i64,
    pub name: String,
    pub owner: String,
    pub grid: Timeline<PgZone>,
    /// Counts the changes of grids.
    pub grid_version: i32,
    /// The zone of the newest grid.
    pub time_zone: String,
    pub target: Option<pg_sys::Oid>,
    pub slice_column: Option<String>,
    pub query: Option<String>,
    pub query_path: Option<String>,
    pub code_version: Option<String>,
    pub backlog: i32,
    pub catchup: i32,
    pub delay: Span,
    pub active_since: Instant,
    pub lease_for: Span,
    pub max_attempts: i32,
    pub retry_delay: Span,
    pub source_retention: Option<Span>,
    pub expected_duration: Option<Span>,
    pub cost_per_hour: Option<f64>,
    pub max_shrink: f32,
    /// How long what plans replace is kept.
    pub keep_previous: Option<Span>,
    /// What becomes of slices of several code versions.
    pub on_mixture: OnMixture,
    /// The column of the target that holds the code version of each row.
    pub stamp_column: Option<String>,
    pub dropped: bool,
    /// A window is a function of the one before it.
    pub depends_on_past: bool,
    pub on_impure: OnImpure,
}

/// What a pipeline runs: a query under a `search_path`, or the code of workers that state a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    pub query: Option<String>,
    pub query_path: Option<String>,
    pub code_version: Option<String>,
}

/// The columns of [`Pipeline`], in the order that [`Pipeline::decode`] reads them; `p` is the table.
macro_rules! pipeline_columns {
    () => {
        "p.pipeline_id, p.name, p.owner, p.cadence, p.start_local, p.start_at, p.time_zone, p.target, \
         p.slice_column::pg_catalog.text, p.query, p.query_path, \
         p.code_version, p.backlog, p.catchup, p.delay, p.active_since, \
         p.depends_on_past, p.lease_for, p.max_attempts, p.retry_delay, \
         p.source_retention, p.expected_duration, p.cost_per_hour::pg_catalog.float8, p.max_shrink, \
         p.dropped_at IS NOT NULL, p.grid_version, p.first_position, p.grid_since, \
         p.ended_grids, p.keep_previous, p.on_mixture, p.on_impure, \
         p.stamp_column::pg_catalog.text"
    };
}
/// How many columns that is.
pub const COLUMNS: i32 = 33;
pub(crate) use pipeline_columns;

const BY_NAME: &str = concat!(
    "SELECT ",
    pipeline_columns!(),
    " FROM backfill.pipeline_data p WHERE p.name = $1 AND p.dropped_at IS NULL"
);
const BY_ID: &str =
    concat!("SELECT ", pipeline_columns!(), " FROM backfill.pipeline_data p WHERE p.pipeline_id = $1");

/// A table has few ancestors and a server may have many pipelines: the index on targets is used.
const OVER: &str = concat!(
    "SELECT ",
    pipeline_columns!(),
    " FROM backfill.pipeline_data p
     WHERE p.dropped_at IS NULL AND p.target = ANY (ARRAY(
         SELECT $1::pg_catalog.regclass UNION SELECT a.relid FROM pg_catalog.pg_partition_ancestors($1) a))"
);

/// The pipelines whose target is a table or one that it is a partition of.
pub fn over(relation: pg_sys::Oid) -> Vec<Pipeline> {
    role::as_ledger(|| spi::latest(OVER, &[relation.into()], Pipeline::decode))
}

impl Pipeline {
    /// Reads the columns of `pipeline_columns!()` from column 1 on.
    pub fn decode(row: &Row) -> Self {
        let time_zone: String = row.at(7);
        let grid = grid::lay(row.at(4), row.at(5), row.at(6), &time_zone);
        let grid = match row.get(29) {
            None => Timeline::new(grid),
            Some(ended) => grid::timeline(ended, row.at(28), grid),
        };
        Self {
            id: row.at(1),
            name: row.at(2),
            owner: row.at(3),
            grid: grid.starting_at(row.at(27)),
            grid_version: row.at(26),
            time_zone,
            target: row.get(8),
            slice_column: row.get(9),
            query: row.get(10),
            query_path: row.get(11),
            code_version: row.get(12),
            backlog: row.at(13),
            catchup: row.at(14),
            delay: row.at(15),
            active_since: row.at(16),
            depends_on_past: row.at(17),
            lease_for: row.at(18),
            max_attempts: row.at(19),
            retry_delay: row.at(20),
            source_retention: row.get(21),
            expected_duration: row.get(22),
            cost_per_hour: row.get(23),
            max_shrink: row.at(24),
            keep_previous: row.get(30),
            on_mixture: OnMixture::parse(&row.at::<String>(31)).expect("a CHECK lists them"),
            on_impure: OnImpure::parse(&row.at::<String>(32)).expect("the ledger knows what it may be"),
            stamp_column: row.get(33),
            dropped: row.at(25),
        }
    }

    /// The pipeline of that name, or 42704.
    pub fn named(name: &str) -> Result<Self> {
        Self::find(name).ok_or_else(|| {
            Error::new(Code::Undefined, format!("pipeline \"{name}\" does not exist"))
                .detail("No pipeline of this name is defined in this database.")
                .hint("SELECT pipeline FROM backfill.pipelines lists those that you may read; pipeline_define() makes one.")
        })
    }

    /// The pipeline of that name, if there is one.
    pub fn find(name: &str) -> Option<Self> {
        role::as_ledger(|| spi::first(BY_NAME, &[name.into()], Self::decode))
    }

    /// The pipeline of that name, if the caller holds `level` on it (42704, 42501).
    pub fn for_caller(name: &str, level: Level) -> Result<Self> {
        let pipeline = Self::named(name)?;
        rights::require(&pipeline, level)?;
        Ok(pipeline)
    }

    /// What it runs by itself.
    pub fn definition(&self) -> Definition {
        Definition {
            query: self.query.clone(),
            query_path: self.query_path.clone(),
            code_version: self.code_version.clone(),
        }
    }

    /// Makes it run something else, if it still runs `before`; says whether it did. Whoever alters it is not waited for for long
    /// (55P03).
    pub fn redefine(&self, before: &Definition, after: &Definition) -> bool {
        let by = role::name(role::caller());
        let args = [
            self.id.into(),
            before.query.as_deref().into(),
            before.query_path.as_deref().into(),
            before.code_version.as_deref().into(),
            after.query.as_deref().into(),
            after.query_path.as_deref().into(),
            after.code_version.as_deref().into(),
            by.as_str().into(),
        ];
        settings::with_patience(|| role::as_ledger(|| spi::run(REDEFINE, &args))) > 0
    }

    /// The pipeline with that number, dropped or not.
    pub fn by_id(id: i64) -> Self {
        role::as_ledger(|| spi::first(BY_ID, &[id.into()], Self::decode))
            .expect("the ledger never forgets a pipeline")
    }

    /// Whether everybody sees by now that it was dropped.
    pub fn is_dropped(&self) -> bool {
        let now = role::as_ledger(|| spi::latest(BY_ID, &[self.id.into()], Self::decode));
        now.iter().all(|now| now.dropped)
    }
}

const REDEFINE: &str = "UPDATE backfill.pipeline_data
    SET query = $5, query_path = $6, code_version = $7, changed_at = pg_catalog.clock_timestamp(), changed_by = $8
    WHERE pipeline_id = $1 AND (query, query_path, code_version) IS NOT DISTINCT FROM ($2, $3, $4)";

/// What the ledger holds lies on the pipeline's grid and within its years.
pub const ON_GRID: &str = "windows of the ledger are on the grid";

const NEWEST_STARTED: &str = "SELECT window_start FROM backfill.run_data
    WHERE pipeline_id = $1 AND run_kind <> 'adopted' ORDER BY window_start DESC LIMIT 1";

impl Pipeline {
    /// The key of the window that starts at a boundary of the grid.
    pub fn key_of(&self, window_start: Instant) -> String {
        self.grid.window_key(self.position_of(window_start)).expect(ON_GRID)
    }

    /// The position of the window that starts at a boundary of the grid.
    pub fn position_of(&self, window_start: Instant) -> i64 {
        self.grid.window_of(window_start).expect(ON_GRID).position
    }

    /// The part of a locked table, shaped as the target is, that a window owns. Its zone is the one the window was laid in.
    pub fn segment(&self, table: Table, window: [Instant; 2]) -> Result<Segment> {
        let column = self.slice_column.as_deref().unwrap_or_default();
        Segment::of(table, column, &self.grid.at(window[0]).grid.zone, window)
    }

    /// The window before that position; nothing before the pipeline's first one.
    pub fn window_before(&self, position: i64) -> Option<Window> {
        (position > self.grid.first).then(|| self.grid.previous(position).ok()).flatten()
    }

    /// The clock as the rule "due when end + delay is past" reads it. Days of the delay count 24 hours.
    pub fn due_clock(&self, now: Instant) -> Instant {
        Instant(now.0.saturating_sub(self.delay.approximate_micros()))
    }

    /// The newest due position; before the first one while no window is due.
    pub fn newest_due(&self, now: Instant) -> i64 {
        self.grid.newest_due(self.due_clock(now)).map_or(self.grid.first - 1, |window| window.position)
    }

    /// The position of the window that starts there; before the first one if there is none.
    pub fn highest_started(&self, start: Option<Instant>) -> i64 {
        start.map_or(self.grid.first - 1, |start| self.position_of(start))
    }

    /// The name of the zone that counts for the window that starts there.
    pub fn time_zone_at(&self, window_start: Instant) -> String {
        self.grid.at(window_start).grid.zone.name()
    }

    /// Which windows may start by themselves, now. `newest` is the start of the newest window that has any run.
    pub fn admission(&self, now: Instant, newest: Option<Instant>) -> Admission {
        let due = self.newest_due(now);
        let mut started = self.highest_started(newest);
        if started > due {
            // The clock or the delay moved. What was adopted did not start.
            let newest = role::as_ledger(|| spi::read(NEWEST_STARTED, &[self.id.into()], |row| row.at(1)));
            started = self.highest_started(newest.first().copied());
        }
        Standing {
            first: self.grid.first,
            newest_due: due.max(started),
            first_since_active: self.newest_due(self.active_since) + 1,
        }
        .admits(self.backlog, self.catchup)
    }
}
