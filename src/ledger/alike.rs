//! Which slices were built by the code that counts now, or by code that was said to mean the same.

use crate::ledger::pipeline::Pipeline;
use crate::ledger::version;
use crate::ledger::window::Reading;
use crate::postgres::{role, spi};
use std::collections::BTreeSet;

/// A code version with all of its class.
pub struct Alike(BTreeSet<String>);

const CLASS: &str =
    "SELECT a.other FROM backfill.version_alike_data a WHERE a.pipeline_id = $1 AND a.code_version = $2";

impl Alike {
    pub fn to(reading: Reading, pipeline_id: i64, version: String) -> Self {
        let args = [pipeline_id.into(), version.as_str().into()];
        let class: Vec<String> = role::as_ledger(|| match reading {
            Reading::Stable => spi::read(CLASS, &args, |row| row.at(1)),
            Reading::Deciding => spi::latest(CLASS, &args, |row| row.at(1)),
        });
        Self(class.into_iter().chain([version]).collect())
    }

    /// Those of what the pipeline runs now; `None` where that is for its workers to say.
    pub fn to_current(reading: Reading, pipeline: &Pipeline) -> Option<Self> {
        version::shown(reading, pipeline).map(|version| Self::to(reading, pipeline.id, version))
    }

    /// For a statement to look for.
    pub fn to_vec(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }

    /// Nobody knows whether a slice without a version was built by them.
    pub fn includes(&self, version: Option<&str>) -> bool {
        version.is_some_and(|version| self.0.contains(version))
    }
}
