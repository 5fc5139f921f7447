//! Adopting slices that were in the target before the ledger knew them.

use crate::domain::calendar::Window;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::adoption;
use crate::ledger::mark::Decision;
use crate::ledger::mixture::{Bringing, OnMixture};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::{gate, mixture, retarget, version};
use crate::postgres::segment::Measure;
use crate::postgres::table::Table;
use crate::postgres::{role, target};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn window_adopt(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
    code_version: Option<String>,
    reason: Option<String>,
) -> TableIterator<'static, (name!(windows, i64), name!(rows, i64), name!(empty_keys, Vec<String>))> {
    let decision = Decision::read(pipeline, since, until, reason);
    TableIterator::once(answer(decision.and_then(|decision| adopt(&decision, code_version))))
}

fn adopt(decision: &Decision, code_version: Option<String>) -> Result<(i64, i64, Vec<String>)> {
    let pipeline = &decision.pipeline;
    let code_version = code_version.filter(|version| !version.trim().is_empty()).ok_or_else(|| {
        Error::new(Code::InvalidParameter, "adopted slices need a code version")
            .detail("code_version is NULL or blank; every slice says which code built it.")
            .hint("Name what built them before, such as 'legacy' or the name of the old job.")
    })?;
    version::require_name(Some(&code_version))?;
    let Some(oid) = pipeline.target else {
        return Err(Error::new(
            Code::InvalidParameter,
            format!("pipeline \"{}\" has no target", pipeline.name),
        )
        .detail("Whether a window holds rows can be seen only where the ledger knows their table.")
        .hint("Give it target and slice_column with pipeline_alter(), or plan the windows."));
    };
    target::require_read(oid, role::caller())?;
    require_free(pipeline, "window_adopt")?;
    retarget::hold(pipeline)?;
    let candidates = adoption::candidates(decision)?;
    let Some(first) = candidates.first() else { return Ok((0, 0, vec![])) };
    let zone = |start| &pipeline.grid.at(start).grid.zone;
    let bounds = |window: &Window| [window.start, window.end];
    let segment = pipeline.segment(Table::open(oid)?, bounds(&first.window))?;
    let windows = candidates.iter().map(|c| (zone(c.window.start), bounds(&c.window)));
    let measures = segment.measure_each(windows);
    let (slices, empty): (Vec<_>, Vec<_>) =
        candidates.into_iter().zip(measures).partition(|(_, measure): &(_, Measure)| measure.rows > 0);
    let starts: Vec<_> = slices.iter().map(|(candidate, _)| candidate.window.start).collect();
    if !starts.is_empty() {
        mixture::admit_all(pipeline, Bringing::Adoption, &starts, [Some(code_version.clone())])?;
    }
    let (windows, rows) = adoption::write(decision, &code_version, &slices);
    let empty_keys = empty.iter().map(|(candidate, _)| pipeline.key_of(candidate.window.start)).collect();
    Ok((windows, rows, empty_keys))
}

/// It may wait for workers that publish (55000 where one of them would wait for this transaction).
fn require_free(pipeline: &Pipeline, call: &str) -> Result<()> {
    if pipeline.on_mixture == OnMixture::Refuse { gate::require_none_closed(call) } else { Ok(()) }
}

#[pg_extern(sql = false)]
fn window_unadopt(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
    reason: Option<String>,
) -> i64 {
    let decision = answer(Decision::read(pipeline, since, until, reason));
    answer(require_free(&decision.pipeline, "window_unadopt"));
    mixture::exclude(&decision.pipeline);
    adoption::take_back(&decision) as i64
}
