//! A plan as a page for the one who decides about it.

use crate::domain::bound::instant_text;
use crate::domain::duration;
use crate::error::{Result, answer};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{Declined, Plan, RETENTION, Request};
use crate::ledger::rights::{self, Level};
use crate::ledger::window::Reading;
use crate::postgres::{quote, role, spi, table};
use pgrx::prelude::*;
use serde_json::Value;

#[pg_extern(sql = false)]
fn backfill_explain(plan_id: i64) -> SetOfIterator<'static, String> {
    SetOfIterator::new(answer(explain(plan_id)))
}

const DECLINED: &str = "SELECT range_start, range_end, windows, reason FROM backfill.plan_declined_data
    WHERE plan_id = $1 ORDER BY range_start";

/// What the view shows of the plan; it is read as the caller, who may.
const SHOWN: &str = "SELECT p.state, p.actual FROM backfill.plans p WHERE p.plan_id = $1";

fn explain(plan_id: i64) -> Result<Vec<String>> {
    let plan = Plan::read(Reading::Stable, plan_id)?;
    let pipeline = Pipeline::by_id(plan.pipeline_id);
    rights::require(&pipeline, Level::Read)?;
    let request = Request::read(&plan.request)?;
    let declined = declined(plan_id);
    let shown = spi::read(SHOWN, &[plan_id.into()], |row| {
        (row.at::<String>(1), row.get::<pgrx::JsonB>(2).map(|json| json.0))
    });
    let (state, actual) = shown.into_iter().next().expect("a plan that may be read is shown");
    let mut page = vec![
        format!("Plan {plan_id} of pipeline {}: {state}", pipeline.name),
        format!("Reason: {} ({})", plan.reason, plan.created_by),
    ];
    let mut answer_to = |question: &str, answers: Vec<String>| {
        page.push(String::new());
        page.push(question.to_owned());
        page.extend(answers.into_iter().map(|answer| format!("   {answer}")));
    };
    answer_to("1. How many windows?", amount(&pipeline, &plan));
    answer_to("2. Does window N depend on window N-1?", ordering(&pipeline, &plan));
    answer_to("3. What side effects fire per run?", effects(&request));
    answer_to("4. Who reads the target meanwhile?", readers(&pipeline, &plan, &request, &state));
    answer_to("5. Can the source still answer for these windows?", source(&pipeline, &request, &declined));
    if !declined.is_empty() {
        answer_to("Not in the plan:", declined.iter().map(|d| left_out(&pipeline, d)).collect());
    }
    match (state.as_str(), actual) {
        ("completed" | "partial" | "staged" | "published", Some(actual)) => {
            answer_to("What it was priced at, and what it took:", comparison(&plan.estimate, &actual));
        }
        ("draft", _) => {
            page.push(String::new());
            page.push(format!("Approve: SELECT backfill_approve({plan_id}, {});", plan.windows));
        }
        _ => {}
    }
    Ok(page)
}

fn declined(plan_id: i64) -> Vec<Declined> {
    role::as_ledger(|| {
        spi::read(DECLINED, &[plan_id.into()], |row| Declined {
            start: row.at(1),
            end: row.at(2),
            windows: row.at(3),
            reason: row.at(4),
        })
    })
}

/// A duration of an estimate in words.
fn time(of: &Value, key: &str) -> String {
    of[key].as_f64().map_or("unknown".to_owned(), duration::text)
}

fn cost(of: &Value) -> String {
    of["cost"].as_f64().map_or("unknown".to_owned(), |cost| format!("{cost:.2}"))
}

fn amount(pipeline: &Pipeline, plan: &Plan) -> Vec<String> {
    let (zone, estimate) = (pipeline.grid.zone(), &plan.estimate);
    let mut one =
        format!("one window: p50 {}, p90 {}", time(estimate, "window_p50"), time(estimate, "window_p90"));
    if !estimate["idle"].is_null() {
        one.push_str(&format!(", and {} to the next one", time(estimate, "idle")));
    }
    vec![
        format!(
            "{} windows, {} to {} (exclusive, {})",
            plan.windows,
            instant_text(zone, plan.range_start),
            instant_text(zone, plan.range_end),
            pipeline.time_zone
        ),
        one,
        basis(estimate),
        format!("cost: {}", cost(estimate)),
    ]
}

/// What the durations are taken from, and how far that can be trusted.
fn basis(estimate: &Value) -> String {
    let sample = estimate["sample"].as_u64().unwrap_or(0);
    let confidence = estimate["confidence"].as_str().unwrap_or("none");
    let by = match estimate["model"].as_str() {
        Some("weekday") => ", by the weekday of the window",
        Some("hour") => ", by the hour of the window",
        Some("length") => ", by the length of the window",
        Some("rows") => ", by the rows that the window holds now",
        Some("expected") => {
            return "from the pipeline's expected_duration: it has no finished run".to_owned();
        }
        Some(_) => "",
        None => return "the pipeline has neither a finished run nor an expected_duration".to_owned(),
    };
    let doubt = match confidence {
        "high" => "",
        _ if sample < 30 => ": a history of few runs says little",
        _ => ": past runs differ too much to say more",
    };
    format!("from {sample} finished run(s){by}; confidence {confidence}{doubt}")
}

fn ordering(pipeline: &Pipeline, plan: &Plan) -> Vec<String> {
    let estimate = &plan.estimate;
    let mut side_by_side = format!("side by side {}", time(estimate, "parallel"));
    if !estimate["parallel_low"].is_null() {
        side_by_side.push_str(&format!(
            " (80 % of such plans: {} to {})",
            time(estimate, "parallel_low"),
            time(estimate, "parallel_high")
        ));
    }
    let mut answers = vec![match plan.ordering.as_str() {
        _ if pipeline.depends_on_past => "yes: each runs once the one before it is done".to_owned(),
        "sequential" => "no, but each runs after the one before it has ended".to_owned(),
        order => format!("no: the windows run {}, {} at a time", order.replace('_', " "), plan.concurrency),
    }];
    let stale = &estimate["becomes_stale"];
    if let Some(windows) = stale["windows"].as_i64().filter(|windows| *windows > 0) {
        answers.push(format!(
            "{windows} slices behind the last one become stale where it changes, {} to {}",
            stale["oldest"].as_str().unwrap_or_default(),
            stale["newest"].as_str().unwrap_or_default()
        ));
    }
    answers.extend([
        format!("in sequence {}, {side_by_side}", time(estimate, "sequential")),
        format!("the price of ordering is {}", time(estimate, "ordering_price")),
    ]);
    answers
}

fn effects(request: &Request) -> Vec<String> {
    vec![if request.effects {
        "effects are allowed: each window may send its own".to_owned()
    } else {
        "none: the leases say that effects are suppressed".to_owned()
    }]
}

fn readers(pipeline: &Pipeline, plan: &Plan, request: &Request, state: &str) -> Vec<String> {
    let holding: Vec<(&String, i64)> = plan.estimate["holding_data"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(version, windows)| (version, windows.as_i64().unwrap_or(0)))
        .collect();
    let replaced: i64 = holding.iter().map(|(_, windows)| windows).sum();
    if request.verifies {
        return vec![
            format!(
                "{replaced} slices are compared with what comes of building them again; none is replaced"
            ),
            format!("SELECT * FROM backfill.verifications WHERE plan_id = {}; shows what was found", plan.id),
        ];
    }
    let by: Vec<String> =
        holding.iter().map(|(version, windows)| format!("{windows} by {version}")).collect();
    let mut answers = vec![if by.is_empty() {
        "the ledger has no slice of these windows".to_owned()
    } else {
        let rest = match plan.windows - replaced {
            0 => String::new(),
            rest => format!("; of {rest} windows the ledger has none"),
        };
        format!("{replaced} slices are replaced, built {}{rest}", by.join(", "))
    }];
    if replaced < plan.windows && pipeline.target.is_some_and(table::exists) {
        answers.extend(unknown(pipeline, plan, state));
    }
    let how = if plan.together {
        "all slices are replaced at once by backfill_publish(), and the old ones kept"
    } else {
        "each slice is replaced at once when its window is done"
    };
    answers.push(format!("{how}; pool {} bounds the load", plan.pool));
    if request.has_own_code() {
        answers.push(
            "the pipeline gets the plan's code with them; until then live work keeps its own".to_owned(),
        );
    }
    answers
}

/// What becomes of rows that the ledger does not know of. The target is not looked at: it may be large, and without an
/// index that helps.
fn unknown(pipeline: &Pipeline, plan: &Plan, state: &str) -> Vec<String> {
    let mut answers = vec![
        "rows that are in the target all the same are replaced too, and max_shrink alone guards them"
            .to_owned(),
    ];
    if state == "draft" {
        let [since, until] =
            [plan.range_start, plan.range_end].map(|at| instant_text(pipeline.grid.zone(), at));
        let name = quote::literal(&pipeline.name);
        answers.extend([
            "window_adopt() makes them known, for a plan that is made after it:".to_owned(),
            format!("SELECT * FROM window_adopt({name}, '{since}', '{until}', 'legacy', '...');"),
        ]);
    }
    answers
}

fn source(pipeline: &Pipeline, request: &Request, declined: &[Declined]) -> Vec<String> {
    let Some(retention) = pipeline.source_retention else {
        return vec!["unknown: the pipeline does not say how long its source keeps data".to_owned()];
    };
    let kept = duration::text(retention.approximate_micros() as f64 / 1e6);
    let beyond: i64 = declined.iter().filter(|d| d.reason == RETENTION).map(|d| d.windows).sum();
    vec![match &request.override_retention {
        Some(reason) => format!("its source keeps {kept}, and that is overridden: {reason}"),
        None => format!("yes: its source keeps {kept}, and {beyond} windows beyond that are left out"),
    }]
}

fn left_out(pipeline: &Pipeline, declined: &Declined) -> String {
    let zone = pipeline.grid.zone();
    format!(
        "{} window(s), {} to {}: {}",
        declined.windows,
        instant_text(zone, declined.start),
        instant_text(zone, declined.end),
        declined.reason
    )
}

/// Estimate and reality side by side.
fn comparison(estimate: &Value, actual: &Value) -> Vec<String> {
    let line = |what: &str, estimated: String, took: String, error: String| {
        format!("{what:<22} {estimated:>15} {took:>15} {error:>9}").trim_end().to_owned()
    };
    let times = |what: &str, key: &str| {
        let error = actual["error"][key].as_f64().map(|error| format!("{:+.1} %", error * 100.0));
        line(what, time(estimate, key), time(actual, key), error.unwrap_or_default())
    };
    vec![
        line("", "estimated".to_owned(), "actual".to_owned(), "error".to_owned()),
        times("one window, p50", "window_p50"),
        times("one window, p90", "window_p90"),
        times("from one to the next", "idle"),
        times("in sequence", "sequential"),
        times("side by side", "parallel"),
        line("cost", cost(estimate), cost(actual), String::new()),
    ]
}
