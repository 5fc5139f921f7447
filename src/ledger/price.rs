//! The price of a plan from what the ledger knows, and what the plan then took.

use crate::domain::durations::{Past, Size};
use crate::domain::price;
use crate::domain::turnaround;
use crate::domain::zone::{Instant, Zone};
use crate::ledger::pace::Pace;
use crate::ledger::piece::Piece;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::Plan;
use crate::ledger::window;
use crate::postgres::{role, spi};
use chrono::{Datelike, Timelike};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

const HISTORY: &str = include_str!("../../sql/query/price_history.sql");

/// Finished runs that a price rests on, at most.
const RUNS: usize = 500;
/// Waits that a plan must have seen to be the measure alone; what workers were like earlier then counts no more.
const WAITS: usize = 20;

/// What past runs of a pipeline took.
struct History {
    /// Newest first.
    runs: Vec<Past>,
    /// Between two windows of a worker.
    idle: Option<i64>,
}

impl History {
    fn of(pipeline: &Pipeline) -> Self {
        let mut runs: Vec<(i64, Past)> = vec![];
        let mut plans: HashMap<i64, Vec<turnaround::Attempt>> = HashMap::new();
        role::as_ledger(|| {
            spi::query(HISTORY, &[pipeline.id.into()], |row| {
                let (start, end): (Instant, Option<Instant>) = (row.at(6), row.get(7));
                if let Some(plan_id) = row.get::<i64>(2) {
                    plans.entry(plan_id).or_default().push((start.0, end.map(|end| end.0)));
                }
                if let Some(end) = end.filter(|_| row.at::<bool>(8)) {
                    let size = size(pipeline, row.at(3), row.at(4), row.get(5));
                    runs.push((row.at(1), Past { size, duration: end.micros_since(start) }));
                }
            })
        });
        runs.sort_unstable_by_key(|(token, _)| std::cmp::Reverse(*token));
        runs.dedup_by_key(|(token, _)| *token);
        runs.truncate(RUNS);
        let mut newest_first: Vec<(i64, Vec<i64>)> =
            plans.into_iter().map(|(plan_id, attempts)| (plan_id, turnaround::waits(&attempts))).collect();
        newest_first.sort_unstable_by_key(|(plan_id, _)| std::cmp::Reverse(*plan_id));
        let enough = newest_first.iter().find(|(_, waits)| waits.len() >= WAITS);
        let waits = match enough {
            Some((_, waits)) => waits.clone(),
            None => newest_first.into_iter().flat_map(|(_, waits)| waits).collect(),
        };
        Self { runs: runs.into_iter().map(|(_, past)| past).collect(), idle: turnaround::typical(waits) }
    }
}

fn size(pipeline: &Pipeline, start: Instant, end: Instant, rows: Option<i64>) -> Size {
    let local = pipeline.grid.at(start).grid.zone.to_local(start);
    Size {
        weekday: local.weekday().num_days_from_monday() as usize,
        hour: local.hour() as usize,
        length: end.micros_since(start),
        rows,
    }
}

/// The price of running the members on `slots` slots, in the plan's order. Durations are in seconds; what is not
/// known is null.
pub fn estimate(pipeline: &Pipeline, members: &[Piece], newest_first: bool, slots: i32) -> Value {
    let history = History::of(pipeline);
    let expected = pipeline.expected_duration.map(|span| span.approximate_micros());
    let mut windows: Vec<Size> = window::one_by_one(pipeline, members.iter().cloned())
        .map(|seen| size(pipeline, seen.window.start, seen.window.end, seen.record().rows))
        .collect();
    if newest_first {
        windows.reverse();
    }
    let price = price::price(&history.runs, history.idle, expected, &windows, slots.max(1) as usize);
    let mut holding: BTreeMap<String, i64> = BTreeMap::new();
    for record in members.iter().map(Piece::record).filter(|record| record.slice_token.is_some()) {
        let version = record.code_version.clone().unwrap_or_else(|| "unknown".to_owned());
        *holding.entry(version).or_default() += 1;
    }
    json!({
        "windows": windows.len(),
        "window_p50": seconds(price.window_p50),
        "window_p90": seconds(price.window_p90),
        "idle": seconds(price.idle),
        "sequential": seconds(price.sequential),
        "parallel": seconds(price.parallel),
        "parallel_low": seconds(price.low),
        "parallel_high": seconds(price.high),
        "ordering_price": seconds(price.ordering_price),
        "slots": slots,
        "cost": cost(pipeline, price.sequential),
        "sample": price.sample,
        "confidence": price.confidence.as_str(),
        "model": price.basis.map(|basis| basis.name()),
        "holding_data": holding,
    })
}

fn seconds(micros: Option<i64>) -> Option<f64> {
    micros.map(|micros| micros as f64 / 1e6)
}

fn cost(pipeline: &Pipeline, micros: Option<i64>) -> Option<f64> {
    micros.zip(pipeline.cost_per_hour).map(|(micros, per_hour)| micros as f64 * per_hour / 3.6e9)
}

const TOOK: &str = include_str!("../../sql/query/plan_took.sql");

/// What the plan took so far, under the keys of its estimate; `None` before a window of it is done. `whole` says
/// that each window that was priced has been run: only then can the two be compared.
pub fn actual(pipeline: &Pipeline, plan: &Plan, whole: bool) -> Option<Value> {
    struct Took {
        attempts: i64,
        done: i64,
        p50: i64,
        p90: i64,
        busy: i64,
        start: Instant,
        end: Instant,
    }
    let took = role::as_ledger(|| {
        spi::read(TOOK, &[pipeline.id.into(), plan.id.into()], |row| Took {
            attempts: row.at(1),
            done: row.at(2),
            p50: row.at(3),
            p90: row.at(4),
            busy: row.at(5),
            start: row.at(6),
            end: row.at(7),
        })
    });
    let took = took.into_iter().next()?;
    let idle = Pace::of(plan.id).idle();
    let elapsed = took.end.micros_since(took.start);
    // A plan that ran in sequence shows what that takes, and not what side by side would have.
    let (sequential, parallel) = if plan.ordering == "sequential" {
        (elapsed, None)
    } else {
        (took.busy.saturating_add(idle.unwrap_or(0).saturating_mul(took.attempts - 1)), Some(elapsed))
    };
    // An extended plan has windows that were not priced.
    let whole = whole && plan.estimate["windows"] == plan.windows;
    let error = |key: &str, micros: Option<i64>| -> Option<f64> {
        let estimated = plan.estimate[key].as_f64().filter(|estimated| *estimated > 0.0)?;
        Some(seconds(micros)? / estimated - 1.0)
    };
    Some(json!({
        "windows": took.done,
        "window_p50": seconds(Some(took.p50)),
        "window_p90": seconds(Some(took.p90)),
        "idle": seconds(idle),
        "sequential": seconds(Some(sequential)),
        "parallel": seconds(parallel),
        "ordering_price": seconds(parallel.map(|parallel| sequential - parallel)),
        "cost": cost(pipeline, Some(sequential)),
        "error": whole.then(|| json!({
            "sequential": error("sequential", Some(sequential)),
            "parallel": error("parallel", parallel),
        })),
    }))
}
