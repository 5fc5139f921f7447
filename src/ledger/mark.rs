//! What people said about windows: a history, of which the newest mark of a kind stands until it is lifted.

use crate::domain::lifecycle::Mark;
use crate::domain::zone::Instant;
use crate::error::Result;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::rights::Level;
use crate::ledger::window::{self, Bounds, require_reason};
use crate::postgres::{datum, role, session, spi};

/// What a call says about the windows of a range.
pub struct Decision {
    pub pipeline: Pipeline,
    pub bounds: Bounds,
    pub reason: String,
    /// Who says it.
    pub by: String,
}

/// The last token that was given out. Of what is in the making, older than this is what has its token already.
macro_rules! last_token {
    () => {
        "(SELECT last_value - (NOT is_called)::pg_catalog.int4 FROM backfill.token_seq)"
    };
}

const CLOSE: &str = concat!(
    "INSERT INTO backfill.mark_data (pipeline_id, window_start, mark, reason, marked_by, token, plan_id)
    SELECT $1, w, $3, $4, $5, ",
    last_token!(),
    ", CASE WHEN $3 = 'skipped' THEN o.plan_id END
    FROM pg_catalog.unnest($2) w
    LEFT JOIN backfill.owned_data o ON o.pipeline_id = $1 AND o.window_start = w
    ON CONFLICT DO NOTHING"
);

const LIFT: &str = concat!(
    "UPDATE backfill.mark_data
    SET lifted_at = pg_catalog.clock_timestamp(), lifted_by = $5, lift_reason = $4, lifted_token = ",
    last_token!(),
    " WHERE pipeline_id = $1 AND window_start = ANY ($2) AND mark = $3 AND lifted_at IS NULL"
);

/// Two calls at the same moment are one mark, of the later one.
const MARK_STALE: &str = concat!(
    "INSERT INTO backfill.mark_data (pipeline_id, window_start, mark, reason, marked_by, token)
    SELECT $1, w, $3, $4, $5, ",
    last_token!(),
    " FROM pg_catalog.unnest($2) w
    ON CONFLICT (pipeline_id, window_start, mark) WHERE lifted_at IS NULL DO UPDATE
    SET reason = excluded.reason, marked_by = excluded.marked_by, marked_at = excluded.marked_at, token = excluded.token"
);

const MARK_EACH: &str = concat!(
    "INSERT INTO backfill.mark_data (pipeline_id, window_start, mark, reason, marked_by, token)
    SELECT $1, w.window_start, $4, w.reason, $5, ",
    last_token!(),
    " FROM ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) AS w (window_start, reason)"
);

/// Gives windows a mark, each for its own reason, in place of the one that stands.
pub fn mark_again(mark: Mark, pipeline_id: i64, windows: Vec<(Instant, String)>, because: &str, by: &str) {
    let (starts, reasons): (Vec<Instant>, Vec<String>) = windows.into_iter().unzip();
    let args = [pipeline_id.into(), starts.clone().into(), mark.name().into(), because.into(), by.into()];
    spi::run_bulk(LIFT, &args);
    let args = [pipeline_id.into(), starts.into(), reasons.into(), mark.name().into(), by.into()];
    spi::run_bulk(MARK_EACH, &args);
}

impl Decision {
    /// Reads what every call of this kind is given. The caller must hold level "operate" on the pipeline (42501).
    pub fn read(
        pipeline: Option<String>,
        since: Option<String>,
        until: Option<String>,
        reason: Option<String>,
    ) -> Result<Self> {
        session::require_writable()?;
        let reason = require_reason(reason)?;
        let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Operate)?;
        let bounds = pipeline.bounds(since.as_deref(), until.as_deref(), datum::clock())?;
        let positions = &bounds.positions;
        window::require_countable(&pipeline, positions.end - positions.start, positions)?;
        Ok(Self { pipeline, bounds, reason, by: role::name(role::caller()) })
    }

    /// Where the windows of the range start.
    pub fn starts(&self) -> Vec<Instant> {
        let windows = self.pipeline.grid.windows(self.bounds.positions.clone());
        windows.map(|windows| windows.map(|window| window.start).collect()).unwrap_or_default()
    }

    /// Locks or skips the windows; says how many were not so before.
    pub fn close(&self, mark: Mark, starts: Vec<Instant>) -> u64 {
        self.write(CLOSE, mark, starts)
    }

    /// Takes such marks back; says how many there were.
    pub fn lift(&self, mark: Mark, starts: Vec<Instant>) -> u64 {
        self.write(LIFT, mark, starts)
    }

    /// Marks the slices of the windows. An earlier mark of one stays as history.
    pub fn mark_stale(&self, starts: Vec<Instant>) -> u64 {
        self.write(LIFT, Mark::Stale, starts.clone());
        self.write(MARK_STALE, Mark::Stale, starts)
    }

    fn write(&self, sql: &'static str, mark: Mark, starts: Vec<Instant>) -> u64 {
        let args = [
            self.pipeline.id.into(),
            starts.into(),
            mark.name().into(),
            self.reason.as_str().into(),
            self.by.as_str().into(),
        ];
        spi::run_bulk(sql, &args)
    }
}
