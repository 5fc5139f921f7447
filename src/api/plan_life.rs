//! The life of an approved plan: pause, resume, retry, adjust, extend.
//!
//! Each call locks the plan's row, which claims and workers never write, so that it waits for other people only. It
//! counts from the next claim that looks at the plan; leases that are held go on.

use crate::api::plan::{append, for_decision, frozen_version, require_state, store_declined};
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::grid;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{self, Ordering, Plan, Request, select_beside};
use crate::ledger::window::require_reason;
use crate::ledger::{compatible, pool, stop};
use crate::postgres::{datum, role, session, settings, spi};
use pgrx::prelude::*;

/// The states of a plan that hands out windows, or would.
const ACTIVE: [&str; 2] = ["approved", "paused"];

/// The plan, locked by the caller for a decision. People who approve plans of the pipeline wait for it.
fn active(plan_id: Option<i64>, wanted: &str) -> Result<(Pipeline, Plan)> {
    session::require_writable()?;
    let (pipeline, plan) = for_decision(plan::require_id(plan_id)?)?;
    require_state(&plan, &ACTIVE, wanted)?;
    Ok((pipeline, plan))
}

const PAUSE: &str = "UPDATE backfill.plan_data
    SET state = 'paused', paused_by = $2, paused_at = pg_catalog.clock_timestamp(), pause_reason = $3
    WHERE plan_id = $1";

#[pg_extern(sql = false)]
fn backfill_pause(plan_id: Option<i64>, reason: Option<String>) -> String {
    answer(pause(plan_id, reason))
}

fn pause(plan_id: Option<i64>, reason: Option<String>) -> Result<String> {
    let reason = require_reason(reason)?;
    let (_, plan) = active(plan_id, "paused")?;
    if plan.state == "paused" {
        return Ok("unchanged".to_owned());
    }
    let who = role::name(role::caller());
    role::as_ledger(|| spi::run(PAUSE, &[plan.id.into(), who.as_str().into(), reason.as_str().into()]));
    plan::note(plan.id, "paused", Some(&reason));
    Ok("paused".to_owned())
}

const IS_CANARY_OVER: &str = "SELECT is_canary_over FROM backfill.plan_count_data WHERE plan_id = $1";

const RESUME: &str = "UPDATE backfill.plan_data
    SET state = 'approved', paused_by = NULL, paused_at = NULL, pause_reason = NULL,
        canary = CASE WHEN $2 THEN NULL ELSE canary END
    WHERE plan_id = $1";

#[pg_extern(sql = false)]
fn backfill_resume(plan_id: Option<i64>) -> String {
    answer(resume(plan_id))
}

fn resume(plan_id: Option<i64>) -> Result<String> {
    let (_, plan) = active(plan_id, "resumed")?;
    let changed = role::as_ledger(|| {
        let is_canary_over = plan.canary.is_some()
            && spi::latest_bulk(IS_CANARY_OVER, &[plan.id.into()], |row| row.at::<bool>(1)) == [true];
        let stopped = stop::lift(plan.id);
        if !stopped && !is_canary_over && plan.state == "approved" {
            return false;
        }
        spi::run(RESUME, &[plan.id.into(), is_canary_over.into()]);
        spi::notify(&plan.id.to_string());
        true
    });
    if !changed {
        return Ok("unchanged".to_owned());
    }
    plan::note(plan.id, "resumed", None);
    Ok("resumed".to_owned())
}

/// The windows that failed in the plan for good, each with its newest turn, and whoever has it now.
macro_rules! failed {
    ($columns:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM backfill.plan_run_data r
             CROSS JOIN LATERAL (
                 SELECT n.turn, n.token, n.ended_at FROM backfill.run_data n
                 WHERE n.pipeline_id = r.pipeline_id AND n.window_start = r.window_start
                 ORDER BY n.turn DESC LIMIT 1
             ) n
             LEFT JOIN backfill.owned_data o ON o.pipeline_id = r.pipeline_id AND o.window_start = r.window_start
             WHERE r.pipeline_id = $1 AND r.plan_id = $2
               AND r.outcome IN ('failed', 'expired', 'refused') AND NOT r.requeued AND NOT r.skipped"
        )
    };
}
const TAKEN: &str = concat!(
    failed!("r.window_start, o.plan_id, n.token"),
    " AND (o.plan_id IS NOT NULL OR n.ended_at IS NULL) ORDER BY r.seq LIMIT 1"
);
const REQUEUE: &str = concat!(
    "INSERT INTO backfill.requeue_data
        (pipeline_id, plan_id, window_start, window_end, seq, attempt, after_turn, rank, due_at) ",
    failed!(
        "r.pipeline_id, r.plan_id, r.window_start, r.window_end, r.seq, 1, n.turn, 0, '-infinity'::timestamptz"
    ),
    " ON CONFLICT DO NOTHING"
);

const NEXT_GENERATION: &str = "UPDATE backfill.plan_data SET generation = generation + 1 WHERE plan_id = $1";

#[pg_extern(sql = false)]
fn backfill_retry(plan_id: Option<i64>) -> i64 {
    answer(retry(plan_id))
}

fn retry(plan_id: Option<i64>) -> Result<i64> {
    let (pipeline, plan) = active(plan_id, "retried")?;
    pool::keep_for(&plan, "retried")?;
    let args = [pipeline.id.into(), plan.id.into()];
    let taken = role::as_ledger(|| {
        spi::latest_bulk(TAKEN, &args, |row| (row.at::<Instant>(1), row.get::<i64>(2), row.at::<i64>(3)))
    });
    if let Some((start, owner, token)) = taken.first() {
        let by =
            owner.map_or_else(|| format!("leased under token {token}"), |id| format!("owned by plan {id}"));
        return Err(Error::new(Code::Owned, format!("a failed window of plan {} is {by}", plan.id))
            .detail(format!("It is window {} of pipeline \"{}\".", pipeline.key_of(*start), pipeline.name))
            .hint("Wait for that, or cancel that plan, and repeat the call."));
    }
    let windows = role::as_ledger(|| {
        let windows = spi::run_bulk(REQUEUE, &args) as i64;
        stop::lift(plan.id);
        spi::run(NEXT_GENERATION, &[plan.id.into()]);
        spi::notify(&plan.id.to_string());
        windows
    });
    plan::note(plan.id, &format!("retried {windows} window(s)"), None);
    Ok(windows)
}

const ADJUST: &str = "UPDATE backfill.plan_data
    SET concurrency = COALESCE($2, concurrency), priority = COALESCE($3, priority),
        concurrency_before = GREATEST(concurrency_before, concurrency)
    WHERE plan_id = $1 AND (concurrency, priority) IS DISTINCT FROM (COALESCE($2, concurrency), COALESCE($3, priority))
    RETURNING concurrency, priority";

#[pg_extern(sql = false)]
fn backfill_adjust(plan_id: Option<i64>, concurrency: Option<i32>, priority: Option<i32>) -> String {
    answer(adjust(plan_id, concurrency, priority))
}

fn adjust(plan_id: Option<i64>, concurrency: Option<i32>, priority: Option<i32>) -> Result<String> {
    let (_, plan) = active(plan_id, "adjusted")?;
    let concurrency = concurrency.map(plan::require_concurrency).transpose()?;
    if plan.ordering == Ordering::Sequential.name() && concurrency.is_some_and(|n| n > 1) {
        return Err(plan::one_at_a_time());
    }
    let args = [plan.id.into(), concurrency.into(), priority.into()];
    let now = role::as_ledger(|| {
        let now = spi::first(ADJUST, &args, |row| (row.at::<i32>(1), row.at::<i32>(2)));
        spi::notify(&plan.id.to_string());
        now
    });
    let Some((concurrency, priority)) = now else { return Ok("unchanged".to_owned()) };
    let changed = format!("concurrency {concurrency}, priority {priority}");
    plan::note(plan.id, &format!("adjusted to {changed}"), None);
    Ok(format!("changed: {changed}"))
}

const LISTED: &str = "SELECT window_start FROM backfill.plan_window_data WHERE plan_id = $1";

const EXTEND: &str = "UPDATE backfill.plan_data
    SET generation = generation + 1, windows = windows + $2, as_of = $3,
        range_start = LEAST(range_start, $4), range_end = GREATEST(range_end, $5)
    WHERE plan_id = $1";

const FORGET_DECLINED: &str = "DELETE FROM backfill.plan_declined_data WHERE plan_id = $1";

#[pg_extern(sql = false)]
fn backfill_extend(plan_id: Option<i64>) -> i64 {
    answer(settings::pinned(|| extend(plan_id)))
}

fn extend(plan_id: Option<i64>) -> Result<i64> {
    let (pipeline, plan) = active(plan_id, "extended")?;
    if plan.verifies {
        return Err(Error::new(Code::NotInState, format!("plan {} cannot be extended", plan.id))
            .detail("It is a verification of a sample that was drawn when it was made.")
            .hint("SELECT * FROM backfill_verify(...) draws another one."));
    }
    pool::keep_for(&plan, "extended")?;
    grid::require_current(&pipeline)?;
    let request = Request::read(&plan.request)?;
    request.require_order_of(&pipeline)?;
    let version = frozen_version(&pipeline, &request)?;
    if !compatible::is_same(pipeline.id, plan.code_version.as_deref(), version.as_deref()) {
        return Err(Error::new(
            Code::OutOfDate,
            format!("plan {} cannot be extended: the code version has moved", plan.id),
        )
        .detail("A plan runs one version to its end.")
        .hint("Make a new plan of the windows that became due with SELECT * FROM backfill_plan(...)."));
    }
    let now = datum::clock();
    let mut listed: Vec<i64> = role::as_ledger(|| {
        spi::latest_bulk(LISTED, &[plan.id.into()], |row| pipeline.position_of(row.at(1)))
    });
    listed.sort_unstable();
    let selection = select_beside(&listed, &pipeline, &request, version.as_deref(), now)?;
    let added = selection.list(&pipeline);
    let (Some(first), Some(last)) = (added.first(), added.last()) else { return Ok(0) };
    let mut members = added.clone();
    if request.ordering == Ordering::NewestFirst {
        members.reverse();
    }
    let windows = members.len() as i64;
    role::as_ledger(|| {
        append(plan.id, &pipeline, plan.windows, &members);
        let args = [plan.id.into(), windows.into(), now.into(), first.start.into(), last.end.into()];
        spi::run(EXTEND, &args);
        spi::run(FORGET_DECLINED, &[plan.id.into()]);
        store_declined(plan.id, &selection.declined);
        spi::notify(&plan.id.to_string());
    });
    plan::note(plan.id, &format!("extended by {windows} window(s)"), None);
    Ok(windows)
}
