//! Code versions that were said to mean the same: see `backfill.version_class_data`.

use crate::error::{Code, Error, Result};
use crate::ledger::alike::Alike;
use crate::ledger::mixture::{self, OnMixture};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::version;
use crate::ledger::window::Reading;
use crate::postgres::{lock, lock::Key, role, spi};

/// Whether two versions are of one class.
pub fn are_same(pipeline_id: i64, one: &str, other: &str) -> bool {
    one == other || Alike::to(Reading::Deciding, pipeline_id, one.to_owned()).includes(Some(other))
}

/// Whether a version of a query takes the place of the one that was there when it was asked for last.
pub fn is_same(pipeline_id: i64, before: Option<&str>, now: Option<&str>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => are_same(pipeline_id, before, now),
        (before, now) => before == now,
    }
}

const KNOWN: &str = "SELECT 1 WHERE EXISTS (
        SELECT FROM backfill.version_data v WHERE v.pipeline_id = $1 AND v.code_version = $2)
    OR EXISTS (SELECT FROM backfill.pipeline_data p WHERE p.pipeline_id = $1 AND p.code_version = $2)
    OR EXISTS (SELECT FROM backfill.plan_data pl WHERE pl.pipeline_id = $1 AND pl.code_version = $2)
    OR EXISTS (SELECT FROM backfill.run_data r WHERE r.pipeline_id = $1 AND r.code_version = $2)";

fn require_known(pipeline: &Pipeline, version: &str) -> Result<()> {
    if !spi::latest_bulk(KNOWN, &[pipeline.id.into(), version.into()], |_| ()).is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Code::Undefined,
        format!("pipeline \"{}\" has no code version \"{version}\"", pipeline.name),
    )
    .detail("Neither the pipeline nor a plan names it, and no attempt ran under it.")
    .hint("SELECT code_version FROM backfill.versions lists those that it has."))
}

const SAY: &str = "INSERT INTO backfill.version_compatible_data (pipeline_id, old, new, reason, said_by)
    SELECT $1, $2, $3, $4, $5
    WHERE NOT EXISTS (SELECT FROM backfill.version_compatible_data d
                      WHERE d.pipeline_id = $1 AND (d.old, d.new) IN (($2, $3), ($3, $2)))
    ON CONFLICT DO NOTHING";

/// Keeps that two versions mean the same, whoever says so.
pub fn say(pipeline_id: i64, old: &str, new: &str, reason: &str, by: &str) -> bool {
    let args = [pipeline_id.into(), old.into(), new.into(), reason.into(), by.into()];
    role::as_ledger(|| spi::run(SAY, &args)) > 0
}

/// The same for a person, who may only name versions that the pipeline has (42704, 22023).
pub fn record(pipeline: &Pipeline, old: &str, new: &str, reason: &str) -> Result<&'static str> {
    if old == new {
        return Err(Error::new(Code::InvalidParameter, "a version is compatible with itself")
            .detail(format!("old and new are both \"{old}\"."))
            .hint("Name two versions; SELECT code_version FROM backfill.versions lists them."));
    }
    version::require_name(Some(old)).and(version::require_name(Some(new)))?;
    let by = role::name(role::caller());
    role::as_ledger(|| {
        lock::exclusive(Key::Decisions { pipeline: pipeline.id });
        require_known(pipeline, old)?;
        // What workers will state nobody can know before, nor what a query is that was refused with all that its call wrote.
        if pipeline.query.is_some() && pipeline.on_mixture != OnMixture::Refuse {
            require_known(pipeline, new)?;
        }
        Ok(if say(pipeline.id, old, new, reason, &by) { "recorded" } else { "unchanged" })
    })
}

const TAKE_BACK: &str = "DELETE FROM backfill.version_compatible_data d
    WHERE d.pipeline_id = $1 AND (d.old, d.new) IN (($2, $3), ($3, $2))";

/// Takes that back (42704 where nobody said so), when all that was let in for it is committed.
pub fn take_back(pipeline: &Pipeline, old: &str, new: &str) -> Result<()> {
    mixture::exclude_all(pipeline, "version_compatible_drop")?;
    let args = [pipeline.id.into(), old.into(), new.into()];
    if role::as_ledger(|| spi::run(TAKE_BACK, &args)) > 0 {
        mixture::warn_if_mixed(pipeline, &format!("{old} and {new} are not compatible any more"));
        return Ok(());
    }
    Err(Error::new(Code::Undefined, "nobody said that these versions are compatible")
        .detail(format!("They are \"{old}\" and \"{new}\" of pipeline \"{}\".", pipeline.name))
        .hint("SELECT old, new FROM backfill.compatible_versions lists the pairs of which somebody did; others are compatible over them."))
}
