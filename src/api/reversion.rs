//! Reverting a plan.

use crate::api::plan::for_decision;
use crate::api::slice;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::kept::Kept;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{self, Plan};
use crate::ledger::publication::Closing;
use crate::ledger::reversion::{self, Published};
use crate::ledger::run::{self, Run};
use crate::ledger::source::{Built, Source};
use crate::ledger::window::require_reason;
use crate::ledger::{gate, mixture, several, together};
use crate::postgres::segment::Segment;
use crate::postgres::{role, session, settings, spi, target};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn backfill_revert(plan_id: Option<i64>, reason: Option<String>) -> i64 {
    let source = Source::kept(settings::session_path());
    answer(settings::pinned(|| revert(plan_id, reason, &source)))
}

const STATE: &str = "SELECT state FROM backfill.plan_count_data WHERE plan_id = $1";

fn revert(plan_id: Option<i64>, reason: Option<String>, source: &Source) -> Result<i64> {
    session::require_writable()?;
    let plan_id = plan::require_id(plan_id)?;
    let reason = require_reason(reason)?;
    gate::require_none_closed("backfill_revert")?;
    let (pipeline, plan) = for_decision(plan_id)?;
    require_over(&plan)?;
    let target = require_target(&pipeline)?;
    let windows = reversion::published(&plan);
    reversion::require_whole(&pipeline, &plan, &windows)?;
    target::require_write(target, role::caller())?;
    reversion::require_idle(&pipeline, &windows)?;
    let stale = reversion::stale_before(&pipeline, &windows);
    let back: Vec<_> = windows
        .iter()
        .map(|window| PuttingBack { pipeline: &pipeline, window, source, reason: &reason })
        .collect();
    mixture::exclude(&pipeline);
    several::exchange(&back, source)?;
    if let Some((before, after)) = together::definition(&plan)? {
        // Unless it was given other code since.
        pipeline.redefine(&after, &together::definition_before(&plan, before)?);
    }
    reversion::note(&pipeline, &plan, stale, &reason);
    mixture::note_reverted(&pipeline, plan_id);
    Ok(windows.len() as i64)
}

/// A plan that may still run something is to be cancelled first (55000).
fn require_over(plan: &Plan) -> Result<()> {
    let state = role::as_ledger(|| spi::latest_bulk(STATE, &[plan.id.into()], |row| row.at::<String>(1)));
    let state = state.first().map_or("", String::as_str);
    let hint = match state {
        "completed" | "partial" | "cancelled" | "published" => return Ok(()),
        "reverted" => {
            "SELECT reverted_by, reverted_at, revert_reason FROM backfill.plans says who did, when and why."
                .to_owned()
        }
        _ => format!("SELECT backfill_cancel({}, 'why') ends it; then it can be reverted.", plan.id),
    };
    Err(Error::new(Code::NotInState, format!("plan {} cannot be reverted", plan.id))
        .detail(format!("Its state is \"{state}\"."))
        .hint(hint))
}

fn require_target(pipeline: &Pipeline) -> Result<pg_sys::Oid> {
    pipeline.target.ok_or_else(|| {
        Error::new(Code::NotInState, format!("pipeline \"{}\" has no target", pipeline.name))
            .detail("Its slices lie outside this database, where the ledger keeps none of them.")
            .hint("Put them back where they lie, or plan the windows again.")
    })
}

/// A window that gets back what it held.
struct PuttingBack<'p> {
    pipeline: &'p Pipeline,
    window: &'p Published,
    source: &'p Source,
    reason: &'p str,
}

impl several::Window for PuttingBack<'_> {
    const CLOSING: Closing = Closing::Finish;

    fn open(&self) -> Result<(Run, Segment)> {
        let mut run = run::fence(reversion::issue(self.pipeline, self.window, self.reason)?)?;
        // Nobody reverts what is put back.
        run.pipeline.keep_previous = None;
        let target = slice::open(&run)?;
        Ok((run, target))
    }

    fn is_replaced(&self) -> bool {
        self.window.kept_by.is_some()
    }

    fn build(&self, run: &Run, target: &Segment) -> Result<(Built, Option<String>)> {
        let kept = Kept::read(self.window.kept_by.expect("only what is replaced is built"));
        let built = kept.build(run, target, self.source)?;
        built.inside(run, target)?;
        Ok((built, Some(self.reason.to_owned())))
    }
}
