//! The price of a plan from what the ledger knows: the pipeline's own finished runs.

use crate::domain::price;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::window::Seen;
use crate::postgres::{role, spi};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const HISTORY: &str =
    "SELECT (pg_catalog.date_part('epoch', ended_at - started_at) * 1000000)::pg_catalog.int8
    FROM backfill.run_data WHERE pipeline_id = $1 AND outcome = 'done' AND run_kind <> 'adopted'
    ORDER BY window_start DESC LIMIT 500";

/// The price of running the members on `slots` slots. Durations are in seconds; what is not known is null.
pub fn estimate(pipeline: &Pipeline, members: &[Seen], slots: i32) -> Value {
    let history = role::as_ledger(|| spi::query(HISTORY, &[pipeline.id.into()], |row| row.at::<i64>(1)));
    let expected = pipeline.expected_duration.map(|span| span.approximate_micros());
    let price = price::price(&history, expected, members.len(), slots.max(1) as usize);
    let seconds = |micros: Option<i64>| micros.map(|m| m as f64 / 1e6);
    let cost = price
        .sequential
        .zip(pipeline.cost_per_hour)
        .map(|(micros, per_hour)| micros as f64 / 3.6e9 * per_hour);
    let mut holding: BTreeMap<String, i64> = BTreeMap::new();
    for seen in members.iter().filter(|seen| seen.record.slice_token.is_some()) {
        let version = seen.record.code_version.clone().unwrap_or_else(|| "unknown".to_owned());
        *holding.entry(version).or_default() += 1;
    }
    json!({
        "windows": members.len(),
        "window_p50": seconds(price.window_p50),
        "window_p90": seconds(price.window_p90),
        "sequential": seconds(price.sequential),
        "parallel": seconds(price.parallel),
        "ordering_price": seconds(price.ordering_price),
        "slots": slots,
        "cost": cost,
        "sample": price.sample,
        "confidence": price.confidence.as_str(),
        "holding_data": holding,
    })
}
