//! Publishing all windows of a plan at once.
//!
//! ```text
//!   leased ─▶ staged ─▶ done     a window of a plan with publish => 'together'
//!                │  backfill_publish: every window of the plan, in one transaction
//!                └─ (missed, or what it was before) where the plan is cancelled
//! ```
//!
//! A staged run has ended and has published nothing. The plan owns its window until it is published, so that nobody else can
//! be handed it. The call takes the pipeline's decisions and keeps plans from being approved, as every decision about a plan
//! does: nobody can end the right of a staged run, or give another one, before it has committed, and no second look is
//! needed at COMMIT. It writes the run of a window first, which is its fence towards the target (`ledger::fenced`), then the
//! rows, then the next window; the pipeline's row, if its code changes, comes last. It waits for whoever holds rows of the
//! target as long as `lock_timeout` says. All that is one transaction: a crash at any moment leaves all windows staged, or all
//! published.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::pipeline::{Definition, Pipeline};
use crate::ledger::plan::{self, Plan, Request};
use crate::ledger::plan_stage::PlanStage;
use crate::ledger::run::Run;
use crate::ledger::several;
use crate::ledger::source::Built;
use crate::ledger::window::Reading;
use crate::postgres::rows::Rows;
use crate::postgres::segment::{Measure, Segment};
use crate::postgres::table::Column;
use crate::postgres::{role, spi};

/// A staged window.
pub struct Staged {
    pub start: Instant,
    pub token: i64,
    pub rows: u64,
    pub digest: String,
    /// Why it was allowed to shrink when it was staged.
    pub allow_shrink: Option<String>,
    /// A person took its rows as they are.
    pub is_accepted: bool,
    is_locked: bool,
    newer: Option<i64>,
    /// The version that built its rows.
    pub code_version: Option<String>,
}

const STAGED: &str = "SELECT r.window_start, r.token, r.rows, r.digest, r.allow_shrink, r.worker IS NULL,
        EXISTS (SELECT FROM backfill.closing_data c
                WHERE c.pipeline_id = $1 AND c.window_start = r.window_start AND c.in_force),
        (SELECT n.token FROM backfill.run_data n
         WHERE n.pipeline_id = $1 AND n.window_start = r.window_start AND n.turn > r.turn
         ORDER BY n.turn DESC LIMIT 1), r.code_version
    FROM backfill.plan_run_data r
    WHERE r.pipeline_id = $1 AND r.plan_id = $2 AND r.together AND r.outcome = 'done' AND r.published_at IS NULL
      AND NOT r.skipped
    ORDER BY r.window_start";

fn decode(row: &spi::Row) -> Staged {
    Staged {
        start: row.at(1),
        token: row.at(2),
        rows: row.at::<i64>(3) as u64,
        digest: row.at(4),
        allow_shrink: row.get(5),
        is_accepted: row.at(6),
        is_locked: row.at(7),
        newer: row.get(8),
        code_version: row.get(9),
    }
}

/// The staged windows of a plan as everybody sees them now, oldest first.
pub fn staged(plan: &Plan) -> Vec<Staged> {
    role::as_ledger(|| spi::latest_bulk(STAGED, &[plan.pipeline_id.into(), plan.id.into()], decode))
}

/// The same for a call that only reads.
pub fn shown(plan: &Plan) -> Vec<Staged> {
    role::as_ledger(|| spi::read(STAGED, &[plan.pipeline_id.into(), plan.id.into()], decode))
}

/// Refuses to publish a part of the windows: 55000 where one is locked, BF001 where one was handed out again.
pub fn require_whole(pipeline: &Pipeline, plan: &Plan, windows: &[Staged]) -> Result<()> {
    let cannot = format!("plan {} cannot be published", plan.id);
    let refuse = |code, why: &str, hint: &str, against: &dyn Fn(&Staged) -> Option<String>| {
        let named = |window: &Staged| Some(format!("{} {}", pipeline.key_of(window.start), against(window)?));
        several::require_none(&cannot, code, why, hint, windows.iter().filter_map(named).collect())
    };
    refuse(
        Code::NotInState,
        "windows of it are locked",
        "SELECT window_unlock(...), or window_skip(...) where one is not to be published.",
        &|window| window.is_locked.then(|| "is locked".to_owned()),
    )?;
    refuse(
        Code::StaleToken,
        "windows of it were written again since they were staged",
        "SELECT * FROM backfill_cancel(...), and plan the windows again.",
        &|window| {
            window
                .newer
                .map(|newer| format!("was staged under token {}, and {newer} came later", window.token))
        },
    )
}

/// What the pipeline will run once the plan is published; `None` where that is what it runs now.
pub fn definition(plan: &Plan) -> Result<Option<(&Definition, Definition)>> {
    let Some(before) = &plan.code_before else { return Ok(None) };
    let request = Request::read(&plan.request)?;
    let (query, query_path) = request.query.unzip();
    Ok(Some((before, Definition { query, query_path, code_version: request.code_version })))
}

/// Names the columns that the stage and the target have in common, in the target's order, where the target takes all that the
/// stage has (55000).
pub fn columns(stage: &Segment, target: &Segment, plan_id: i64) -> Result<Vec<String>> {
    let same = |one: &Column, other: &Column| {
        one.name == other.name && (one.type_oid, one.modifier) == (other.type_oid, other.modifier)
    };
    let staged = &stage.table.columns;
    let taken: Vec<&Column> = target.table.columns.iter().filter(|column| !column.generated).collect();
    if let Some(lost) = staged.iter().find(|column| !taken.iter().any(|other| same(other, column))) {
        return Err(Error::new(
            Code::NotInState,
            format!("what plan {plan_id} staged is not of the target's shape any more"),
        )
        .detail(format!(
            "The stage {} has a column \"{}\"; {} has none of that name and type that can be given values.",
            stage.table.shown(),
            lost.name,
            target.table.shown()
        ))
        .hint(format!(
            "Give the target the shape back that it had at approval, or SELECT * FROM backfill_cancel({plan_id}, 'why') and plan again."
        )));
    }
    let common = taken.into_iter().filter(|column| staged.iter().any(|other| same(other, column)));
    Ok(common.map(|column| column.name.clone()).collect())
}

const REVERTED: &str = "SELECT pl.plan_id FROM backfill.plan_data pl
    WHERE pl.pipeline_id = $1 AND pl.state = 'reverted' AND pl.published_at < $2 AND pl.code_before IS NOT NULL
    ORDER BY pl.published_at DESC";

/// What the pipeline ran before a plan that is reverted: what that put in the place of, unless it came with a plan before, which
/// was reverted too.
pub fn definition_before(plan: &Plan, before: &Definition) -> Result<Definition> {
    let args = [plan.pipeline_id.into(), plan.published_at.into()];
    let mut found = before.clone();
    for earlier in role::as_ledger(|| spi::latest(REVERTED, &args, |row| row.at(1))) {
        let earlier = Plan::read(Reading::Deciding, earlier)?;
        if let Some((before, after)) = definition(&earlier)?
            && after == found
        {
            found = before.clone();
        }
    }
    Ok(found)
}

/// The rows that a window has in the stage (55000 where they are not those that were staged).
pub fn rows(run: &Run, window: &Staged, stage: &Segment, target: &Segment) -> Result<Built> {
    let names = columns(stage, target, run.plan_id)?;
    let slice = names.iter().position(|name| *name == target.column);
    let mut rows = Rows::new(target.bounds, slice.expect("the stage has the slice column"));
    let listed: Vec<&str> = names.iter().map(String::as_str).collect();
    stage.look_at(&listed, &mut rows);
    // What was staged was read in the stage's order.
    let held = match listed == stage.table.writable() {
        true => Measure { rows: rows.count(), digest: rows.digest() },
        false => stage.measure(),
    };
    let (count, digest) = (held.rows, held.digest.to_string());
    if (count, &digest) == (window.rows, &window.digest) && count == rows.count() {
        return Ok(Built::new(names, rows));
    }
    Err(Error::new(
        Code::NotInState,
        format!("the stage does not hold what was staged for window {}", run.window_key),
    )
    .detail(format!(
        "Token {} staged {} rows with digest {}; {} holds {count} with digest {digest}.",
        window.token,
        window.rows,
        window.digest,
        stage.table.shown()
    ))
    .hint(format!(
        "A superuser wrote there by hand. SELECT * FROM backfill_cancel({}, 'why'), and plan the windows again.",
        run.plan_id
    )))
}

const PUBLISHED: &str = "UPDATE backfill.plan_data
    SET state = 'published', published_by = $2, published_at = pg_catalog.clock_timestamp() WHERE plan_id = $1";

/// Writes down that the plan is published, and has no use for its stage any more.
pub fn note(plan: &Plan, stage: PlanStage) {
    let by = role::name(role::caller());
    role::as_ledger(|| spi::run(PUBLISHED, &[plan.id.into(), by.as_str().into()]));
    plan::note(plan.id, "published", None);
    stage.drop_if_idle();
}
