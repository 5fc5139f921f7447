//! Reverting a plan.

use crate::api::plan::for_decision;
use crate::api::slice;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::gate;
use crate::ledger::kept::Kept;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{self, Plan};
use crate::ledger::publication::{Closing, publish};
use crate::ledger::reversion::{self, Published};
use crate::ledger::run::{self, Ending};
use crate::ledger::source::Source;
use crate::ledger::strategy::Strategy;
use crate::ledger::together;
use crate::ledger::window::require_reason;
use crate::postgres::scratch::Scratch;
use crate::postgres::{role, session, settings, spi, target};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn backfill_revert(plan_id: Option<i64>, reason: Option<String>) -> i64 {
    answer(settings::pinned(|| revert(plan_id, reason)))
}

const STATE: &str = "SELECT state FROM backfill.plan_count_data WHERE plan_id = $1";

fn revert(plan_id: Option<i64>, reason: Option<String>) -> Result<i64> {
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
    let scratch = Scratch::new();
    for window in &windows {
        pgrx::check_for_interrupts!();
        settings::with_patience(|| scratch.run(|| put_back(&pipeline, window, &reason)))?;
    }
    if let Some((before, after)) = together::definition(&plan)? {
        // Unless it was given other code since.
        pipeline.redefine(&after, &together::definition_before(&plan, before)?);
    }
    reversion::note(&pipeline, &plan, stale, &reason);
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

fn put_back(pipeline: &Pipeline, window: &Published, reason: &str) -> Result<()> {
    let mut run = run::fence(reversion::issue(pipeline, window, reason)?)?;
    // Nobody reverts what is put back.
    run.pipeline.keep_previous = None;
    let target = slice::open(&run)?;
    match window.kept_by {
        Some(token) => {
            let source = Source::kept();
            let built = Kept::read(token).build(&run, &target, &source)?;
            built.inside(&run, &target)?;
            publish(&run, &target, &source, built, Strategy::Auto, Some(reason.to_owned()), Closing::Finish)?;
        }
        None => {
            let held = target.measure();
            let (rows, digest) = (Some(held.rows as i64), Some(held.digest.to_string()));
            run::finish(&run, &Ending { rows, digest, ..Ending::default() })?;
        }
    }
    gate::dismiss(run.token);
    Ok(())
}
