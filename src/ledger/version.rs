//! Code versions of pipelines.

use crate::error::Result;
use crate::ledger::pipeline::Pipeline;
use crate::postgres::{lock, lock::Key, query, role, spi};

const KNOWN: &str = "SELECT 1 FROM backfill.version_data WHERE pipeline_id = $1 AND code_version = $2";

const RECORD: &str = "INSERT INTO backfill.version_data (pipeline_id, code_version, query, query_path)
    VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";

/// The fingerprint of a query as it is defined now, recorded with its text. `None` while another transaction
/// is recording a version of the same pipeline, so that a claim does not wait for it.
pub fn of_query(pipeline: &Pipeline, text: &str, path: &str) -> Result<Option<String>> {
    let version = query::fingerprint(&pipeline.owner, text, path)?;
    let key = [pipeline.id.into(), version.as_str().into()];
    let recorded = role::as_ledger(|| {
        if spi::first(KNOWN, &key, |_| ()).is_some() {
            return true;
        }
        if !lock::try_exclusive(Key::Version { pipeline: pipeline.id }) {
            return false;
        }
        let args = [pipeline.id.into(), version.as_str().into(), text.into(), path.into()];
        spi::run(RECORD, &args);
        true
    });
    Ok(recorded.then_some(version))
}
