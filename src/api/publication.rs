//! Publishing a plan whose windows are staged.

use crate::api::plan::for_decision;
use crate::api::slice;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::mixture::{self, Bringing};
use crate::ledger::pipeline::{Definition, Pipeline};
use crate::ledger::plan::{self, Plan};
use crate::ledger::plan_stage::PlanStage;
use crate::ledger::publication::Closing;
use crate::ledger::run::{self, Run};
use crate::ledger::source::{Built, Source};
use crate::ledger::together::{self, Staged};
use crate::ledger::window::Reading;
use crate::ledger::{audit, compatible, gate, several, version};
use crate::postgres::datum::Span;
use crate::postgres::segment::Segment;
use crate::postgres::{role, session, settings, spi, target};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn backfill_publish(plan_id: Option<i64>, allow_shrink: Option<String>) -> i64 {
    let allow_shrink = allow_shrink.filter(|reason| !reason.trim().is_empty());
    let source = Source::kept(settings::session_path());
    answer(settings::pinned(|| publish_plan(plan::require_id(plan_id)?, allow_shrink.as_deref(), &source)))
}

fn publish_plan(plan_id: i64, allow_shrink: Option<&str>, source: &Source) -> Result<i64> {
    session::require_writable()?;
    gate::require_none_closed("backfill_publish")?;
    let (pipeline, plan) = for_decision(plan_id)?;
    require_staged(&plan)?;
    let definition = together::definition(&plan)?;
    if let Some((before, after)) = &definition {
        require_same_code(&pipeline, &plan, before, after)?;
    }
    let target = pipeline.target.expect("a plan that is published together has a target");
    target::require_write(target, role::caller())?;
    target::require_read(target, role::caller())?;
    let stage = PlanStage::of(Reading::Deciding, &plan)?;
    let windows = together::staged(&plan);
    together::require_whole(&pipeline, &plan, &windows)?;
    let publishing: Vec<_> =
        windows.iter().map(|window| Publishing { window, stage, allow_shrink }).collect();
    let starts: Vec<_> = windows.iter().map(|window| window.start).collect();
    let versions = windows.iter().map(|window| window.code_version.clone());
    mixture::admit_all(&pipeline, Bringing::Plan(plan_id), &starts, versions)?;
    several::exchange(&publishing, source)?;
    if let Some((before, after)) = &definition
        && !pipeline.redefine(before, after)
    {
        return Err(redefined(&pipeline, &plan, before));
    }
    together::note(&plan, stage);
    Ok(windows.len() as i64)
}

const COUNTS: &str = "SELECT state, staged, failed, running FROM backfill.plan_count_data WHERE plan_id = $1";

/// All windows are staged or skipped (55000).
fn require_staged(plan: &Plan) -> Result<()> {
    let cannot = |detail: String, hint: String| {
        Err(Error::new(Code::NotInState, format!("plan {} cannot be published", plan.id))
            .detail(detail)
            .hint(hint))
    };
    if plan.verifies {
        return cannot(
            "It is a verification: it compares, and publishes nothing.".to_owned(),
            format!("SELECT * FROM backfill.verifications WHERE plan_id = {}; shows what it found.", plan.id),
        );
    }
    if !plan.together {
        return cannot(
            "Its windows are published each by itself, as soon as they are done.".to_owned(),
            "A plan with publish => 'together' is published by this call.".to_owned(),
        );
    }
    let counts = role::as_ledger(|| {
        spi::latest_bulk(COUNTS, &[plan.id.into()], |row| {
            (row.at::<String>(1), row.at::<i64>(2), row.at::<i64>(3), row.at::<i64>(4))
        })
    });
    let (state, staged, failed, running) = counts.into_iter().next().expect("every plan is counted");
    let detail = format!(
        "Its state is \"{state}\": of {} windows {staged} are staged, {failed} failed, and {running} are being built.",
        plan.windows
    );
    match state.as_str() {
        "staged" => Ok(()),
        "paused" => cannot(
            detail,
            format!(
                "SELECT backfill_resume({}), if it is to go on; backfill.plans says who paused it and why.",
                plan.id
            ),
        ),
        "partial" => cannot(
            detail,
            format!(
                "SELECT backfill_retry({0}) runs those that failed again; or window_skip(...) where one is not to be published.",
                plan.id
            ),
        ),
        "published" | "reverted" => cannot(
            format!("Its state is \"{state}\"."),
            "SELECT published_by, published_at, reverted_at FROM backfill.plans says who did, and when."
                .to_owned(),
        ),
        _ => cannot(detail, format!("SELECT bar FROM backfill_progress({}) shows how far it is.", plan.id)),
    }
}

/// What the pipeline runs is what it ran when the plan was made, and the plan's own query still means what was staged (BF004).
fn require_same_code(
    pipeline: &Pipeline,
    plan: &Plan,
    before: &Definition,
    after: &Definition,
) -> Result<()> {
    if pipeline.definition() != *before {
        return Err(redefined(pipeline, plan, before));
    }
    let Some((query, path)) = after.query.as_deref().zip(after.query_path.as_deref()) else { return Ok(()) };
    let now = version::for_person(pipeline, query, path)?;
    if compatible::is_same(pipeline.id, plan.code_version.as_deref(), now.as_deref()) {
        return Ok(());
    }
    let shown = |version: &Option<String>| version.clone().unwrap_or_else(|| "being recorded".to_owned());
    Err(Error::new(Code::OutOfDate, format!("the query of plan {} means something else by now", plan.id))
        .detail(format!(
            "What is staged was built by version {}; the query is version {} now: a view, a function or a table that it reads was changed.",
            shown(&plan.code_version),
            shown(&now)
        ))
        .hint(format!(
            "Change that back, or SELECT * FROM backfill_cancel({}, 'why') and plan the windows again.",
            plan.id
        )))
}

fn redefined(pipeline: &Pipeline, plan: &Plan, before: &Definition) -> Error {
    let shown = |definition: &Definition| match (&definition.query, &definition.code_version) {
        (Some(query), _) => {
            let path = definition.query_path.as_deref().unwrap_or_default();
            format!("the query {} (search_path {path})", query.trim())
        }
        (None, Some(version)) => format!("code version {version}"),
        (None, None) => "no code of its own".to_owned(),
    };
    let now = Pipeline::by_id(pipeline.id).definition();
    Error::new(
        Code::OutOfDate,
        format!("plan {} cannot be published: pipeline \"{}\" was given other code", plan.id, pipeline.name),
    )
    .detail(format!("It ran {} when the plan was made, and runs {} now.", shown(before), shown(&now)))
    .hint("Publishing would undo that. Give the pipeline the code back with pipeline_alter(), or cancel the plan.")
}

/// For how long what a plan replaces is kept where the pipeline says nothing else.
const KEPT: Span = Span { months: 0, days: 7, micros: 0 };

/// A staged window that is being published.
struct Publishing<'p> {
    window: &'p Staged,
    stage: PlanStage,
    allow_shrink: Option<&'p str>,
}

impl several::Window for Publishing<'_> {
    const CLOSING: Closing = Closing::Published;

    fn open(&self) -> Result<(Run, Segment)> {
        let mut run = run::publish_staged(self.window.token)?;
        run.pipeline.keep_previous.get_or_insert(KEPT);
        let target = slice::open(&run)?;
        Ok((run, target))
    }

    fn is_replaced(&self) -> bool {
        true
    }

    fn build(&self, run: &Run, target: &Segment) -> Result<(Built, Option<String>)> {
        let stage = PlanStage::open(self.stage.relation, run)?;
        let built = together::rows(run, self.window, &stage, target)?;
        built.inside(run, target)?;
        if !self.window.is_accepted {
            audit::check(run, &built.rows)?;
        }
        let reasons = [self.allow_shrink, self.window.allow_shrink.as_deref(), run.allow_shrink.as_deref()];
        Ok((built, reasons.into_iter().flatten().next().map(str::to_owned)))
    }
}
