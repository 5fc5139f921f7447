//! A plan as a page for the one who decides about it.

use crate::domain::bound::instant_text;
use crate::error::{Result, answer};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{Declined, Plan, Request};
use crate::ledger::rights::{self, Level};
use crate::ledger::window::Reading;
use crate::postgres::{role, spi};
use pgrx::prelude::*;
use serde_json::Value;

#[pg_extern(sql = false)]
fn backfill_explain(plan_id: i64) -> SetOfIterator<'static, String> {
    SetOfIterator::new(answer(explain(plan_id)))
}

const DECLINED: &str = "SELECT range_start, range_end, windows, reason FROM backfill.plan_declined_data
    WHERE plan_id = $1 ORDER BY range_start";

/// A duration in seconds as people read it.
fn duration_text(seconds: &Value) -> String {
    let Some(seconds) = seconds.as_f64() else { return "unknown".to_owned() };
    let whole = seconds.round() as i64;
    match whole {
        _ if seconds < 10.0 => format!("{seconds:.1} s"),
        0..120 => format!("{whole} s"),
        120..7_200 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

fn explain(plan_id: i64) -> Result<Vec<String>> {
    let plan = Plan::read(Reading::Stable, plan_id)?;
    let pipeline = Pipeline::by_id(plan.pipeline_id);
    rights::require(&pipeline, Level::Read)?;
    let request = Request::read(&plan.request)?;
    let zone = pipeline.grid.zone();
    let estimate = &plan.estimate;
    let field = |name: &str| duration_text(&estimate[name]);
    let mut page = vec![
        format!("Plan {plan_id} of pipeline {}: {}", pipeline.name, plan.state),
        format!("Reason: {} ({})", plan.reason, plan.created_by),
        String::new(),
        "1. How many windows?".to_owned(),
        format!(
            "   {} windows, {} to {} (exclusive, {})",
            plan.windows,
            instant_text(zone, plan.range_start),
            instant_text(zone, plan.range_end),
            pipeline.time_zone
        ),
        format!(
            "   one window: p50 {}, p90 {} ({} finished runs, confidence {})",
            field("window_p50"),
            field("window_p90"),
            estimate["sample"],
            estimate["confidence"].as_str().unwrap_or("none")
        ),
        match estimate["cost"].as_f64() {
            Some(cost) => format!("   cost: {cost:.2}"),
            None => "   cost: unknown".to_owned(),
        },
        String::new(),
        "2. Does window N depend on window N-1?".to_owned(),
        order_text(&pipeline, &plan),
        format!(
            "   in sequence {}, side by side {}: the price of ordering is {}",
            field("sequential"),
            field("parallel"),
            field("ordering_price")
        ),
        String::new(),
        "3. What side effects fire per run?".to_owned(),
        if request.effects {
            "   effects are allowed: each window may send its own".to_owned()
        } else {
            "   none: the leases say that effects are suppressed".to_owned()
        },
        String::new(),
        "4. Who reads the target meanwhile?".to_owned(),
        holding_text(estimate),
        format!(
            "   each slice is replaced at once when its window is done; pool {} bounds the load",
            plan.pool
        ),
        String::new(),
        "5. Can the source still answer for these windows?".to_owned(),
        retention_text(&pipeline, &request),
    ];
    let declined = role::as_ledger(|| {
        spi::read(DECLINED, &[plan_id.into()], |row| Declined {
            start: row.at(1),
            end: row.at(2),
            windows: row.at(3),
            reason: row.at(4),
        })
    });
    if !declined.is_empty() {
        page.push(String::new());
        page.push("Not in the plan:".to_owned());
        page.extend(declined.iter().map(|d| {
            format!(
                "   {} window(s), {} to {}: {}",
                d.windows,
                instant_text(zone, d.start),
                instant_text(zone, d.end),
                d.reason
            )
        }));
    }
    if plan.state == "draft" {
        page.push(String::new());
        page.push(format!("Approve: SELECT backfill_approve({plan_id}, {});", plan.windows));
    }
    Ok(page)
}

fn order_text(pipeline: &Pipeline, plan: &Plan) -> String {
    let order = plan.ordering.replace('_', " ");
    if !pipeline.depends_on_past {
        return format!("   no: the windows run {order}, {} at a time", plan.concurrency);
    }
    let stale = &plan.estimate["becomes_stale"];
    let behind = match stale["windows"].as_i64().unwrap_or(0) {
        0 => "no slice lies behind the last one".to_owned(),
        n => format!(
            "{n} slice(s) behind the last one become stale where it changes, {} to {}",
            stale["oldest"].as_str().unwrap_or_default(),
            stale["newest"].as_str().unwrap_or_default()
        ),
    };
    format!("   yes: the windows run one after the other, each once the one before it is done; {behind}")
}

fn holding_text(estimate: &Value) -> String {
    let holding = estimate["holding_data"].as_object();
    let versions: Vec<String> =
        holding.into_iter().flatten().map(|(version, windows)| format!("{windows} by {version}")).collect();
    if versions.is_empty() {
        "   none of these windows holds data now".to_owned()
    } else {
        format!("   windows that hold data now: {}", versions.join(", "))
    }
}

fn retention_text(pipeline: &Pipeline, request: &Request) -> String {
    match (pipeline.source_retention, &request.override_retention) {
        (None, _) => "   unknown: the pipeline does not say how long its source keeps data".to_owned(),
        (Some(_), Some(reason)) => format!("   the retention of the source is overridden: {reason}"),
        (Some(_), None) => "   yes: windows beyond the retention of the source are left out".to_owned(),
    }
}
