//! Whether what a pipeline runs is a function of its window.

use crate::domain::purity::Severity;
use crate::error::{Code, Error, Result};
use crate::ledger::pipeline::Pipeline;
use crate::postgres::impurity::{self, Found, Subject};
use crate::postgres::query::Select;
use crate::postgres::{meaning, quote, settings, table};
use pgrx::{PgLogLevel, PgSqlErrorCode, ereport, pg_sys};

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

impl From<&Found> for Finding {
    fn from(found: &Found) -> Self {
        let Found { rule, object, place } = found;
        Self {
            rule: rule.name(),
            severity: rule.severity(),
            object: object.clone(),
            place: place.clone(),
            remedy: rule.remedy().to_owned(),
        }
    }
}

/// What to do about a query that is impure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnImpure {
    Allow,
    Warn,
    Refuse,
}

impl OnImpure {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "allow" => Self::Allow,
            "warn" => Self::Warn,
            "refuse" => Self::Refuse,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Warn => "warn",
            Self::Refuse => "refuse",
        }
    }
}

/// What the pipeline's own query meets, errors first; nothing for a pipeline without a query.
pub fn findings(pipeline: &Pipeline) -> Result<Vec<Finding>> {
    match (&pipeline.query, &pipeline.query_path) {
        (Some(text), Some(path)) => of_text(pipeline, text, path),
        _ => Ok(vec![]),
    }
}

/// What a text meets that is run as the pipeline's owner.
pub fn of_text(pipeline: &Pipeline, text: &str, path: &str) -> Result<Vec<Finding>> {
    let Some(subject) = subject(pipeline) else { return Ok(vec![]) };
    let found = settings::with_patience(|| meaning::impurities(&pipeline.owner, text, path, &subject))?;
    Ok(found.iter().map(Finding::from).collect())
}

fn subject(pipeline: &Pipeline) -> Option<Subject> {
    Some(Subject {
        target: pipeline.target?,
        slice_column: pipeline.slice_column.clone()?,
        stamp_column: pipeline.stamp_column.clone(),
        depends_on_past: pipeline.depends_on_past,
    })
}

/// Whose query was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The pipeline's: pipeline_lint() looks at it too.
    Own,
    /// One that a plan or a call has in its place.
    Given,
}

impl Whose {
    fn of(pipeline: &Pipeline, text: &str, path: &str) -> Self {
        let own = (pipeline.query.as_deref(), pipeline.query_path.as_deref());
        if own == (Some(text), Some(path)) { Self::Own } else { Self::Given }
    }

    fn shown(self, pipeline: &Pipeline) -> String {
        match self {
            Self::Own => format!("the query of pipeline \"{}\"", pipeline.name),
            Self::Given => format!("the query that was given for pipeline \"{}\"", pipeline.name),
        }
    }
}

/// Refuses a text with errors where the pipeline takes none (BF010), and warns of what it has where that is wanted.
pub fn judge(pipeline: &Pipeline, text: &str, path: &str) -> Result<()> {
    match pipeline.on_impure {
        OnImpure::Allow => Ok(()),
        OnImpure::Warn => {
            warn(pipeline, Whose::of(pipeline, text, path), &of_text(pipeline, text, path)?);
            Ok(())
        }
        OnImpure::Refuse => require_pure(pipeline, text, path),
    }
}

/// Refuses a text with errors where the pipeline takes none (BF010).
pub fn require_pure(pipeline: &Pipeline, text: &str, path: &str) -> Result<()> {
    match pipeline.on_impure {
        OnImpure::Refuse => {
            refuse(pipeline, Whose::of(pipeline, text, path), &of_text(pipeline, text, path)?)
        }
        _ => Ok(()),
    }
}

/// The same for a query that a call gave and that was read in its caller's name.
pub fn require_pure_query(pipeline: &Pipeline, select: &Select, path: &str) -> Result<()> {
    match (pipeline.on_impure, subject(pipeline)) {
        (OnImpure::Refuse, Some(subject)) => {
            let found = impurity::look(select, path, &subject)?;
            refuse(pipeline, Whose::Given, &found.iter().map(Finding::from).collect::<Vec<_>>())
        }
        _ => Ok(()),
    }
}

/// The same for a staging table that a call gave: rows that are stored are taken as they are, a view would be a query that
/// nobody has read.
pub fn require_stored(pipeline: &Pipeline, staging: pg_sys::Oid) -> Result<()> {
    if pipeline.on_impure != OnImpure::Refuse || table::stores_rows(staging) {
        return Ok(());
    }
    let shown = quote::relation(staging);
    Err(Error::new(Code::Impure, format!("{shown} does not just hold rows"))
        .detail("It is a view or a foreign table, has a foreign partition, or has row-level security: reading it runs code, which may be no function of the window, and on_impure is 'refuse'.")
        .hint(format!(
            "Give a query instead, which is looked at: replace_partition(token, query => 'SELECT ... FROM {shown} WHERE ...'); or load the rows into a table."
        )))
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

fn lines<'a>(findings: impl Iterator<Item = &'a Finding>) -> String {
    let line = |Finding { rule, object, place, remedy, .. }: &Finding| {
        format!("{rule}: {object} in {place}. {remedy}")
    };
    findings.map(line).collect::<Vec<_>>().join("\n")
}

fn warn(pipeline: &Pipeline, whose: Whose, findings: &[Finding]) {
    if findings.is_empty() {
        return;
    }
    let [errors, warnings] = [Severity::Error, Severity::Warning].map(|severity| count(findings, severity));
    let message = format!(
        "{} may give other rows for the same window (errors: {errors}, warnings: {warnings})",
        whose.shown(pipeline)
    );
    match whose {
        Whose::Own => pgrx::warning!(
            "{message}; SELECT * FROM pipeline_lint({}) says why",
            quote::literal(&pipeline.name)
        ),
        Whose::Given => {
            ereport!(PgLogLevel::WARNING, PgSqlErrorCode::ERRCODE_WARNING, message, lines(findings.iter()))
        }
    }
}

fn refuse(pipeline: &Pipeline, whose: Whose, findings: &[Finding]) -> Result<()> {
    if count(findings, Severity::Error) == 0 {
        return Ok(());
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let name = quote::literal(&pipeline.name);
    let take = format!(
        "Change the query or what it reaches, or take it as it is: SELECT pipeline_alter({name}, '{{\"on_impure\": \"warn\"}}')"
    );
    let look = format!(", then SELECT * FROM pipeline_lint({name})");
    let hint = match whose {
        Whose::Own => format!("{take}{look}."),
        Whose::Given => format!("{take}."),
    };
    let message = format!("{} is no function of its window", whose.shown(pipeline));
    Err(Error::new(Code::Impure, message).detail(lines(errors)).hint(hint))
}
