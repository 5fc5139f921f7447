//! What a pipeline's code means now, what has changed in it, and which code built a slice.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::rights::{self, Level};
use crate::ledger::window::require_reason;
use crate::ledger::{compatible, version};
use crate::postgres::meaning;
use crate::postgres::reach::Part;
use crate::postgres::{quote, role, session, settings, spi};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::BTreeMap;

#[pg_extern(sql = false)]
fn pipeline_version(pipeline: Option<String>) -> Option<String> {
    answer(settings::pinned(|| version(pipeline)))
}

fn version(pipeline: Option<String>) -> Result<Option<String>> {
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Read)?;
    Ok(match parts(&pipeline)? {
        Some((version, _)) => Some(version),
        None => pipeline.code_version,
    })
}

/// The version of a pipeline's query now, and its parts; `None` without a query.
fn parts(pipeline: &Pipeline) -> Result<Option<(String, Vec<Part>)>> {
    let (Some(query), Some(path)) = (&pipeline.query, &pipeline.query_path) else { return Ok(None) };
    let meaning = settings::with_patience(|| meaning::of_text(&pipeline.owner, query, path))?;
    Ok(Some((meaning.version.clone(), meaning.parts.clone())))
}

/// The version of the slice of the newest window that has one, and what it depended on when it was recorded.
const BUILT: &str = "SELECT v.kind, v.name, v.definition FROM backfill.version_part_data v
    WHERE v.pipeline_id = $1 AND v.code_version = (
        SELECT s.code_version FROM (
            SELECT DISTINCT ON (r.window_start) r.* FROM backfill.run_data r
            WHERE r.pipeline_id = $1 AND r.published_at IS NOT NULL ORDER BY r.window_start DESC, r.turn DESC
        ) s
        WHERE s.run_kind <> 'withdrawn' ORDER BY s.window_start DESC LIMIT 1)";

type Row = (String, String, Option<String>, Option<String>, Option<String>);

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn pipeline_explain_version(
    pipeline: Option<String>,
) -> TableIterator<
    'static,
    (
        name!(kind, String),
        name!(name, String),
        name!(change, Option<String>),
        name!(definition, Option<String>),
        name!(before, Option<String>),
    ),
> {
    TableIterator::new(answer(settings::pinned(|| explain(pipeline))))
}

fn explain(pipeline: Option<String>) -> Result<Vec<Row>> {
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Read)?;
    let Some((_, now)) = parts(&pipeline)? else {
        let stated = pipeline.code_version;
        return Ok(vec![("code_version".to_owned(), String::new(), None, stated, None)]);
    };
    let built: BTreeMap<(String, String), String> = role::as_ledger(|| {
        spi::read(BUILT, &[pipeline.id.into()], |row| ((row.at(1), row.at(2)), row.at(3)))
    })
    .into_iter()
    .collect();
    Ok(compare(now, built))
}

/// The parts of now beside those of before, and then those that are gone; without any before nothing is said to change.
fn compare(now: Vec<Part>, mut before: BTreeMap<(String, String), String>) -> Vec<Row> {
    let knows = !before.is_empty();
    let mut rows = vec![];
    for Part { kind, name, definition, .. } in now {
        let was = before.remove(&(kind.clone(), name.clone()));
        let change = match &was {
            _ if !knows => None,
            None => Some("new"),
            Some(was) if *was == definition => Some("same"),
            Some(_) => Some("changed"),
        };
        rows.push((kind, name, change.map(str::to_owned), Some(definition), was));
    }
    let gone = before.into_iter();
    rows.extend(gone.map(|((kind, name), was)| (kind, name, Some("gone".to_owned()), None, Some(was))));
    rows
}

#[pg_extern(sql = false)]
fn version_compatible(
    pipeline: Option<String>,
    old: Option<String>,
    new: Option<String>,
    reason: Option<String>,
) -> &'static str {
    answer(say_compatible(pipeline, old, new, reason))
}

fn say_compatible(
    pipeline: Option<String>,
    old: Option<String>,
    new: Option<String>,
    reason: Option<String>,
) -> Result<&'static str> {
    session::require_writable()?;
    let reason = require_reason(reason)?;
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Owner)?;
    if let (Some(query), Some(path)) = (&pipeline.query, &pipeline.query_path) {
        // What the query means now counts, though nothing ran under it yet.
        version::for_person(&pipeline, query, path)?.ok_or_else(|| version::being_recorded(&pipeline))?;
    }
    compatible::record(&pipeline, &require_version("old", old)?, &require_version("new", new)?, &reason)
}

#[pg_extern(sql = false)]
fn version_compatible_drop(
    pipeline: Option<String>,
    old: Option<String>,
    new: Option<String>,
) -> &'static str {
    answer(take_back(pipeline, old, new))
}

fn take_back(pipeline: Option<String>, old: Option<String>, new: Option<String>) -> Result<&'static str> {
    session::require_writable()?;
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Owner)?;
    compatible::take_back(&pipeline, &require_version("old", old)?, &require_version("new", new)?)?;
    Ok("dropped")
}

fn require_version(argument: &str, given: Option<String>) -> Result<String> {
    given.ok_or_else(|| {
        Error::new(Code::NullValue, format!("{argument} must not be NULL"))
            .detail("It is a code version of the pipeline.")
            .hint("SELECT code_version FROM backfill.versions lists them.")
    })
}

/// Pipelines that fill a table or one that it is a partition of, also dropped ones: their slices stay.
const FILLERS: &str = "SELECT p.pipeline_id, p.name, p.owner FROM backfill.pipeline_data p
    WHERE p.target = ANY (ARRAY(
        SELECT $1::pg_catalog.regclass UNION SELECT a.relid FROM pg_catalog.pg_partition_ancestors($1) a))
    ORDER BY p.pipeline_id";

/// The newest publication of the newest window that starts by then. Windows of a pipeline do not overlap: that is the one that
/// holds the instant, if any does.
const SLICE_AT: &str = "SELECT n.code_version, n.published_at
    FROM (
        SELECT r.* FROM backfill.run_data r
        WHERE r.pipeline_id = $1 AND r.window_start <= $2 AND r.published_at IS NOT NULL
        ORDER BY r.window_start DESC, r.turn DESC LIMIT 1
    ) n
    WHERE n.window_end > $2 AND n.run_kind <> 'withdrawn'";

#[pg_extern(sql = false)]
fn slice_version(target: Option<pg_sys::Oid>, at: Option<TimestampWithTimeZone>) -> Option<String> {
    answer(settings::pinned(|| match target.zip(at) {
        Some((target, at)) => built_by(target, Instant(i64::from(at))),
        None => Ok(None),
    }))
}

/// What built the slice that a table holds for an instant. Of two pipelines, of which one was dropped, the one that published
/// last counts.
fn built_by(target: pg_sys::Oid, at: Instant) -> Result<Option<String>> {
    let who = role::caller();
    let fillers = role::as_ledger(|| {
        spi::look(FILLERS, &[target.into()], |row| {
            (row.at::<i64>(1), row.at::<String>(2), row.at::<String>(3))
        })
    });
    let Some((_, name, owner)) = fillers.first() else {
        return Err(Error::new(Code::Undefined, format!("no pipeline fills {}", quote::relation(target)))
            .detail("It is the target of no pipeline, and of none that was dropped.")
            .hint("SELECT pipeline, target FROM backfill.pipelines lists those that you may read."));
    };
    let readable: Vec<i64> = fillers
        .iter()
        .filter(|(id, _, owner)| rights::has(who, *id, owner, Level::Read))
        .map(|(id, _, _)| *id)
        .collect();
    if readable.is_empty() {
        return Err(rights::denied(who, name, owner, Level::Read));
    }
    let slices = readable.into_iter().flat_map(|id| {
        role::as_ledger(|| {
            let decode = |row: &spi::Row| (row.at::<Instant>(2), row.get::<String>(1));
            spi::look(SLICE_AT, &[id.into(), at.into()], decode)
        })
    });
    Ok(slices.max_by_key(|(published_at, _)| *published_at).and_then(|(_, version)| version))
}
