//! Code versions of pipelines.

use crate::error::{Code, Error, Result};
use crate::ledger::compatible;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::window::Reading;
use crate::postgres::meaning::{self, Meaning};
use crate::postgres::reach::Part;
use crate::postgres::{lock, lock::Key, role, settings, spi, subtransaction};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::PgSqlErrorCode;

/// What stands for the version of slices without one.
pub const UNKNOWN: &str = "unknown";

/// Refuses a version that somebody states if it is the word for having none (22023).
pub fn require_name(version: Option<&str>) -> Result<()> {
    if version != Some(UNKNOWN) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidParameter, format!("code_version cannot be '{UNKNOWN}'"))
        .detail("That stands for slices without a version, which are compatible with none.")
        .hint("Leave it out, or name the code, such as 'legacy' or the name of the old job."))
}

const KNOWN: &str = "SELECT 1 FROM backfill.version_data
    WHERE pipeline_id = $1 AND code_version = $2 AND (query, query_path) = ($3, $4)";

/// What was defined takes the place of what a call gave: leases carry it, and it runs as the pipeline's owner.
const RECORD: &str = "INSERT INTO backfill.version_data (pipeline_id, code_version, query, query_path)
    VALUES ($1, $2, $3, $4)
    ON CONFLICT (pipeline_id, code_version) DO UPDATE SET query = excluded.query, query_path = excluded.query_path";

const RECORD_GIVEN: &str = "INSERT INTO backfill.version_data (pipeline_id, code_version, query, query_path)
    VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";

/// The fingerprint of a query as it is defined now, recorded with its text. `None` while another transaction
/// is recording a version of the same pipeline, so that a claim does not wait for it.
fn of_query(pipeline: &Pipeline, text: &str, path: &str) -> Result<Option<String>> {
    let meaning = meaning::of_text(&pipeline.owner, text, path)?;
    let args = [pipeline.id.into(), meaning.version.as_str().into(), text.into(), path.into()];
    let is_new = role::as_ledger(|| {
        if spi::first(KNOWN, &args, |_| ()).is_some() {
            return Some(false);
        }
        if !lock::try_exclusive(Key::Version { pipeline: pipeline.id }) {
            return None;
        }
        spi::run(RECORD, &args);
        record_parts(pipeline.id, &meaning);
        Some(true)
    });
    if is_new == Some(true) {
        compare_majors(pipeline, &meaning, text, path);
    }
    Ok(is_new.map(|_| meaning.version.clone()))
}

/// [`of_query`] where a query is run, or an error (40001).
pub fn recorded(pipeline: &Pipeline, text: &str, path: &str) -> Result<String> {
    of_query(pipeline, text, path)?.ok_or_else(|| being_recorded(pipeline))
}

pub fn being_recorded(pipeline: &Pipeline) -> Error {
    Error::new(Code::Serialization, "the code version is being recorded by another transaction")
        .detail(format!("Pipeline \"{}\" was run under a new version just now.", pipeline.name))
        .hint("Repeat the call.")
}

/// The newest come first, but any may be what the slices are of: an edit that was taken back leaves the newest unused.
const OF_OTHER_MAJORS: &str = "SELECT code_version, server_major FROM backfill.version_data
    WHERE pipeline_id = $1 AND query = $2 AND query_path = $3 AND server_major <> $4 AND code_version <> $5
    ORDER BY first_seen DESC LIMIT 100";

const PARTS: &str = "SELECT kind, name, definition FROM backfill.version_part_data
    WHERE pipeline_id = $1 AND code_version = $2";

/// Another major version of PostgreSQL may write an unchanged definition in other words. What it wrote is read here once more,
/// and where it then says the same the two versions are compatible.
fn compare_majors(pipeline: &Pipeline, meaning: &Meaning, text: &str, path: &str) {
    let major = pg_sys::PG_VERSION_NUM as i32 / 10_000;
    let now = meaning.version.as_str();
    let args = [pipeline.id.into(), text.into(), path.into(), major.into(), now.into()];
    let known = role::as_ledger(|| {
        spi::latest(OF_OTHER_MAJORS, &args, |row| (row.at::<String>(1), row.at::<i32>(2)))
    });
    let is_same = |(version, _): &(String, i32)| {
        let args = [pipeline.id.into(), version.as_str().into()];
        let decode = |row: &spi::Row| Part::recorded(row.at(1), row.at(2), row.at(3));
        let parts = role::as_ledger(|| spi::latest_bulk(PARTS, &args, decode));
        meaning::says_the_same(&pipeline.owner, path, &parts, &meaning.parts)
    };
    if let Some((version, before)) = known.into_iter().find(is_same) {
        let reason = format!("the same definition under PostgreSQL {before} and {major}");
        compatible::say(pipeline.id, &version, now, &reason, "pg_backfill");
    }
}

/// Records the version of a query that a call gave. No lease carries it.
pub fn record_given(pipeline_id: i64, meaning: &Meaning, text: &str, path: &str) {
    let args = [pipeline_id.into(), meaning.version.as_str().into(), text.into(), path.into()];
    role::as_ledger(|| {
        if spi::first(KNOWN, &args, |_| ()).is_none() {
            // So that a claim which comes to the same version does not wait for this transaction.
            lock::try_exclusive(Key::Version { pipeline: pipeline_id });
            spi::run(RECORD_GIVEN, &args);
            record_parts(pipeline_id, meaning);
        }
    });
}

const RECORD_PARTS: &str = "INSERT INTO backfill.version_part_data (pipeline_id, code_version, kind, name, definition)
    SELECT $1, $2, p.kind, p.name, p.definition
    FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5)) AS p (kind, name, definition)
    ON CONFLICT DO NOTHING";

/// What a version depends on is the same however often it is recorded.
fn record_parts(pipeline_id: i64, meaning: &Meaning) {
    let column = |f: fn(&Part) -> &String| meaning.parts.iter().map(f).cloned().collect::<Vec<String>>();
    let args = [
        pipeline_id.into(),
        meaning.version.as_str().into(),
        column(|part| &part.kind).into(),
        column(|part| &part.name).into(),
        column(|part| &part.definition).into(),
    ];
    spi::run(RECORD_PARTS, &args);
}

const NEWEST: &str = "SELECT code_version FROM backfill.version_data
    WHERE pipeline_id = $1 AND query = $2 AND query_path = $3 ORDER BY first_seen DESC LIMIT 1";

/// [`of_query`] for a call of a person, who waits for whoever has locked a table of the query, but not for long
/// (55P03): others wait for him.
pub fn for_person(pipeline: &Pipeline, text: &str, path: &str) -> Result<Option<String>> {
    settings::with_patience(|| of_query(pipeline, text, path))
}

/// [`of_query`] for a claim, which waits for nobody: `None` where a table of the query is locked, so that nothing says
/// what the query means now. A query that cannot be read any more, because a table or its owner is gone, or code that it
/// reaches raises an error, gets the newest version that it was known under: the attempt then fails where everybody sees it,
/// and neither other pipelines' windows nor this one's count of attempts suffer.
pub fn for_claim(pipeline: &Pipeline, text: &str, path: &str) -> Option<String> {
    match subtransaction::attempt(|| settings::without_patience(|| of_query(pipeline, text, path))) {
        Ok(Ok(version)) => return version,
        Err(CaughtError::PostgresError(report))
            if report.sql_error_code() == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE =>
        {
            return None;
        }
        Err(caught) if subtransaction::is_interrupt(&caught) => caught.rethrow(),
        _ => {}
    }
    newest(Reading::Deciding, pipeline, text, path)
}

/// The newest version that a text was known under.
fn newest(reading: Reading, pipeline: &Pipeline, text: &str, path: &str) -> Option<String> {
    let args = [pipeline.id.into(), text.into(), path.into()];
    let found = role::as_ledger(|| match reading {
        Reading::Stable => spi::read(NEWEST, &args, |row| row.at(1)),
        Reading::Deciding => spi::latest(NEWEST, &args, |row| row.at(1)),
    });
    found.into_iter().next()
}

/// The version of what the pipeline runs now, for whoever only looks at windows: nothing is recorded, nobody is waited for, and a
/// query that cannot be read now has the newest version that it was known under. `None` where workers say what they run.
pub fn shown(reading: Reading, pipeline: &Pipeline) -> Option<String> {
    let (Some(text), Some(path)) = (&pipeline.query, &pipeline.query_path) else {
        return pipeline.code_version.clone();
    };
    let read = || settings::without_patience(|| meaning::of_text(&pipeline.owner, text, path));
    match subtransaction::attempt(read) {
        Ok(Ok(meaning)) => Some(meaning.version.clone()),
        Err(caught) if subtransaction::is_interrupt(&caught) => caught.rethrow(),
        _ => newest(reading, pipeline, text, path),
    }
}
