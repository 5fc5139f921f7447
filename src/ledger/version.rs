//! Code versions of pipelines.

use crate::error::Result;
use crate::ledger::pipeline::Pipeline;
use crate::postgres::meaning::{self, Meaning};
use crate::postgres::{lock, lock::Key, role, settings, spi, subtransaction};
use crate::postgres::reach::Part;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::PgSqlErrorCode;

const KNOWN: &str = "SELECT 1 FROM backfill.version_data WHERE pipeline_id = $1 AND code_version = $2";

const RECORD: &str = "INSERT INTO backfill.version_data (pipeline_id, code_version, query, query_path)
    VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";

/// The fingerprint of a query as it is defined now, recorded with its text. `None` while another transaction
/// is recording a version of the same pipeline, so that a claim does not wait for it.
fn of_query(pipeline: &Pipeline, text: &str, path: &str) -> Result<Option<String>> {
    let meaning = meaning::of_text(&pipeline.owner, text, path)?;
    let key = [pipeline.id.into(), meaning.version.as_str().into()];
    let recorded = role::as_ledger(|| {
        if spi::first(KNOWN, &key, |_| ()).is_some() {
            return true;
        }
        if !lock::try_exclusive(Key::Version { pipeline: pipeline.id }) {
            return false;
        }
        record(pipeline.id, &meaning, text, path);
        true
    });
    Ok(recorded.then(|| meaning.version.clone()))
}

const RECORD_PARTS: &str = "INSERT INTO backfill.version_part_data (pipeline_id, code_version, kind, name, definition)
    SELECT $1, $2, p.kind, p.name, p.definition
    FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5)) AS p (kind, name, definition)
    ON CONFLICT DO NOTHING";

/// Records a version with the text that it stands for, and all that this depends on.
pub fn record(pipeline_id: i64, meaning: &Meaning, text: &str, path: &str) {
    let version = meaning.version.as_str();
    let column = |f: fn(&Part) -> &String| meaning.parts.iter().map(f).cloned().collect::<Vec<String>>();
    let parts = [
        pipeline_id.into(),
        version.into(),
        column(|part| &part.kind).into(),
        column(|part| &part.name).into(),
        column(|part| &part.definition).into(),
    ];
    role::as_ledger(|| {
        spi::run(RECORD, &[pipeline_id.into(), version.into(), text.into(), path.into()]);
        spi::run(RECORD_PARTS, &parts);
    });
}

const NEWEST: &str = "SELECT code_version FROM backfill.version_data
    WHERE pipeline_id = $1 AND query = $2 AND query_path = $3 ORDER BY first_seen DESC LIMIT 1";

/// [`of_query`] for a call of a person, who waits for whoever has locked a table of the query, but not for long
/// (55P03): others wait for him.
pub fn for_person(pipeline: &Pipeline, text: &str, path: &str) -> Result<Option<String>> {
    settings::with_patience(|| of_query(pipeline, text, path))
}

/// [`of_query`] for a claim, which waits for nobody: `None` where a table of the query is locked, so that nothing says
/// what the query means now. A query that cannot be read any more, because a table or its owner is gone, gets the
/// newest version that it was known under: the attempt then fails where everybody sees it, and neither other
/// pipelines' windows nor this one's count of attempts suffer.
pub fn for_claim(pipeline: &Pipeline, text: &str, path: &str) -> Option<String> {
    match subtransaction::attempt(|| settings::without_patience(|| of_query(pipeline, text, path))) {
        Ok(Ok(version)) => return version,
        Err(CaughtError::PostgresError(report))
            if report.sql_error_code() == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE =>
        {
            return None;
        }
        _ => {}
    }
    let args = [pipeline.id.into(), text.into(), path.into()];
    role::as_ledger(|| spi::latest(NEWEST, &args, |row| row.at(1))).into_iter().next()
}
