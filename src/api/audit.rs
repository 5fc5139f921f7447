//! Audits: what must be true of new rows.

use crate::error::{Code, Error, Result, answer};
use crate::ledger::audit;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::rights::Level;
use crate::postgres::{session, settings};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn pipeline_audit(pipeline: Option<String>, name: Option<String>, query: Option<String>) -> &'static str {
    let path = settings::search_path();
    answer(settings::pinned(|| define(pipeline, name, query, &path)))
}

#[pg_extern(sql = false)]
fn pipeline_audit_drop(pipeline: Option<String>, name: Option<String>) -> &'static str {
    answer(settings::pinned(|| {
        let (pipeline, name) = named(pipeline, name)?;
        audit::drop(&pipeline, &name).map(|()| "dropped")
    }))
}

fn named(pipeline: Option<String>, name: Option<String>) -> Result<(Pipeline, String)> {
    session::require_writable()?;
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Owner)?;
    let name = name.filter(|name| !name.trim().is_empty()).ok_or_else(|| {
        Error::new(Code::InvalidParameter, "an audit needs a name")
            .detail("name is NULL or blank; the error of a refusal names the audit.")
            .hint("Give it a name.")
    })?;
    Ok((pipeline, name))
}

fn define(
    pipeline: Option<String>,
    name: Option<String>,
    query: Option<String>,
    path: &str,
) -> Result<&'static str> {
    let (pipeline, name) = named(pipeline, name)?;
    let query = query.ok_or_else(|| {
        Error::new(Code::NullValue, "query must not be NULL")
            .detail("An audit is a SELECT over slice, the new rows, that answers one true.")
            .hint("Write for example SELECT count(*) > 0 FROM slice.")
    })?;
    audit::define(&pipeline, &name, &query, path)
}
