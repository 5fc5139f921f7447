//! Planning a verification.

use crate::api::plan::{self, Summary};
use crate::domain::sample;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{Request, VERIFIES, ranges_of, select};
use crate::ledger::rights::Level;
use crate::postgres::composite::Composite;
use crate::postgres::{datum, random, session, settings};
use pgrx::prelude::*;
use serde_json::{Map, Value, json};

#[pg_extern(sql = false)]
fn backfill_verify(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
    sample: Option<i32>,
) -> Composite {
    answer(settings::pinned(|| verify(&pipeline.unwrap_or_default(), since, until, sample))).row()
}

/// Plans a sample of what could be verified, and approves it.
fn verify(name: &str, since: Option<String>, until: Option<String>, sample: Option<i32>) -> Result<Summary> {
    session::require_writable()?;
    let pipeline = Pipeline::for_caller(name, Level::Operate)?;
    if let Some(n) = sample.filter(|n| *n < 1) {
        return Err(Error::new(Code::InvalidParameter, format!("sample {n} is out of range"))
            .detail("sample is the number of windows that are built again at most.")
            .hint("Give at least 1, or NULL for all of them."));
    }
    let ordering = if pipeline.depends_on_past { "sequential" } else { "oldest_first" };
    let mut asked = Map::from_iter([
        (VERIFIES.to_owned(), Value::Bool(true)),
        ("reason".to_owned(), Value::from("verification")),
        ("ordering".to_owned(), Value::from(ordering)),
    ]);
    asked.extend(
        [("since", since), ("until", until)]
            .into_iter()
            .filter_map(|(name, bound)| bound.map(|bound| (name.to_owned(), Value::from(bound)))),
    );
    let request = Request::read(&asked)?;
    plan::require_possible(&pipeline, &request)?;
    let as_of = datum::clock();
    let version = plan::frozen_version(&pipeline, &request)?;
    let mut selection = select(&pipeline, &request, version.as_deref(), as_of)?;
    // Each has a slice, and so is one window.
    let all = selection.members.len();
    let size = sample.map_or(all, |sample| sample as usize);
    let drawn = sample::draw(all, size, random::unit);
    selection.keep_only(&pipeline, &drawn, "not in the sample");
    let reason = match all - drawn.len() {
        0 => format!("verification of {all} windows"),
        _ => format!("verification of a sample: {} of {all} windows", drawn.len()),
    };
    asked.insert("reason".to_owned(), Value::from(reason));
    asked.insert("positions".to_owned(), json!(ranges_of(&selection.members)));
    let request = Request::read(&asked)?;
    let summary = plan::store(&pipeline, &request, asked, "person", version, selection, as_of)?;
    match summary.plan_id() {
        Some(plan_id) => {
            plan::approve(plan_id, summary.windows())?;
            Ok(summary.approved())
        }
        None => Ok(summary),
    }
}
