//! Whether a pipeline's query is a function of its window.

use crate::error::{Result, answer};
use crate::ledger::lint::{self, Finding};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::rights::Level;
use crate::postgres::settings;
use pgrx::prelude::*;

type Row = (String, String, String, String, String);

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn pipeline_lint(
    pipeline: Option<String>,
) -> TableIterator<
    'static,
    (
        name!(rule, String),
        name!(severity, String),
        name!(object, String),
        name!(place, String),
        name!(remedy, String),
    ),
> {
    TableIterator::new(answer(settings::pinned(|| rows(pipeline))))
}

fn rows(pipeline: Option<String>) -> Result<Vec<Row>> {
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Read)?;
    let row = |Finding { rule, severity, object, place, remedy }| {
        (rule.to_owned(), severity.name().to_owned(), object, place, remedy)
    };
    Ok(lint::findings(&pipeline)?.into_iter().map(row).collect())
}
