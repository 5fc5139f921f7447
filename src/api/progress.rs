//! How far a plan has come, and how well it was priced.

use crate::domain::progress::Counts;
use crate::domain::zone::Instant;
use crate::error::{Result, answer};
use crate::ledger::pace::Pace;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::Plan;
use crate::ledger::price;
use crate::ledger::rights::{self, Level};
use crate::ledger::window::Reading;
use crate::postgres::composite::{Composite, composite, value};
use crate::postgres::datum::{self, Span};
use crate::postgres::spi;
use pgrx::JsonB;
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn backfill_progress(plan_id: i64) -> Composite {
    answer(progress(plan_id))
}

/// The view counts, so that nobody counts otherwise. It is read as the caller, who may.
const SHOWN: &str = "SELECT p.pipeline, p.state, p.windows, p.done, p.failed, p.running, p.skipped, p.eta
    FROM backfill.plans p WHERE p.plan_id = $1";

fn progress(plan_id: i64) -> Result<Composite> {
    let plan = Plan::read(Reading::Stable, plan_id)?;
    rights::require(&Pipeline::by_id(plan.pipeline_id), Level::Read)?;
    let rows = spi::read(SHOWN, &[plan_id.into()], |row| {
        let counts = Counts {
            windows: row.at(3),
            done: row.at(4),
            failed: row.at(5),
            running: row.at(6),
            skipped: row.at(7),
        };
        (row.at::<String>(1), row.at::<String>(2), counts, row.get::<Instant>(8))
    });
    let (pipeline, state, counts, eta) = rows.into_iter().next().expect("a plan that may be read is shown");
    let now = datum::clock();
    let remaining = eta.map(|eta| eta.micros_since(now).max(0));
    let ended = counts.done + counts.failed + counts.skipped + counts.running;
    let waiting =
        if matches!(state.as_str(), "cancelled" | "reverted") { 0 } else { (counts.windows - ended).max(0) };
    let bar = counts.bar(&state, remaining.map(|micros| micros as f64 / 1e6));
    Ok(composite(
        "progress",
        vec![
            value(plan_id),
            value(pipeline),
            value(state),
            value(counts.windows),
            value(counts.done),
            value(counts.failed),
            value(counts.running),
            value(waiting),
            value(counts.skipped),
            value(counts.percent()),
            value(Pace::of(plan_id).rate(now)),
            value(eta),
            value(remaining.map(|micros| Span { months: 0, days: 0, micros })),
            value(bar),
        ],
    ))
}

/// The plan with that number and its pipeline, if the caller may read it.
fn readable(plan_id: i64) -> Option<(Plan, Pipeline)> {
    let plan = Plan::read(Reading::Stable, plan_id).ok()?;
    rights::may_read(plan.pipeline_id).then(|| {
        let pipeline = Pipeline::by_id(plan.pipeline_id);
        (plan, pipeline)
    })
}

#[pg_extern(sql = false)]
fn plan_actual(plan_id: i64, whole: bool) -> Option<JsonB> {
    let (plan, pipeline) = readable(plan_id)?;
    price::actual(&pipeline, &plan, whole).map(JsonB)
}

#[pg_extern(sql = false)]
fn plan_eta(plan_id: i64, windows_left: i64) -> Option<TimestampWithTimeZone> {
    let (plan, _) = readable(plan_id)?;
    let left = usize::try_from(windows_left).ok()?;
    let eta = Pace::of(plan_id).eta(&plan, left, datum::clock())?;
    TimestampWithTimeZone::try_from(eta.0).ok()
}
