//! Whether what a pipeline runs is a function of its window.

use crate::domain::purity::Severity;
use crate::error::Result;
use crate::ledger::pipeline::Pipeline;

/// Something that keeps a query from giving the same rows for the same window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub rule: &'static str,
    pub severity: Severity,
    /// What it is: a function, a table, a column.
    pub object: String,
    /// Where it stands, and through what it is reached.
    pub place: String,
    pub remedy: String,
}

/// What the pipeline's own query meets, errors first; nothing for a pipeline without a query.
pub fn findings(_pipeline: &Pipeline) -> Result<Vec<Finding>> {
    Ok(vec![])
}
