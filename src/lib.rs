//! pg_backfill: catchup and backfill without the stampede, the torn partition, or the silent mixture of code
//! versions. The map of this crate:
//!
//! - [`domain`]: decisions, without a server.
//! - `postgres`: what touches the server.
//! - `ledger`: the ledger's rows and the rules that more than one call needs.
//! - `api`: the functions that SQL calls; their declarations are in `sql/`.

// Errors of this crate are made once and end the call; boxing them would only hide what they are.
#![allow(clippy::result_large_err)]

use pgrx::prelude::*;

mod api;
pub mod domain;
mod error;
mod ledger;
mod postgres;

pgrx::pg_module_magic!(name, version);

#[pg_guard]
extern "C-unwind" fn _PG_init() {
    ledger::gate::look_first();
    ledger::fenced::init();
    postgres::meaning::init();
    ledger::unfenced::init();
}

extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
extension_sql_file!("../sql/bound.sql", name = "bound", requires = ["schema"]);
extension_sql_file!("../sql/pool.sql", name = "pool", requires = ["bound"]);
extension_sql_file!("../sql/pipeline.sql", name = "pipeline", requires = ["pool"]);
extension_sql_file!("../sql/plan.sql", name = "plan", requires = ["pipeline"]);
extension_sql_file!("../sql/run.sql", name = "run", requires = ["plan"]);
extension_sql_file!("../sql/rules.sql", name = "rules", requires = ["run"]);
extension_sql_file!("../sql/stage.sql", name = "stage", requires = ["rules"]);
extension_sql_file!("../sql/effect.sql", name = "effect", requires = ["stage"]);
extension_sql_file!("../sql/lease.sql", name = "lease", requires = ["effect"]);
extension_sql_file!("../sql/plan_functions.sql", name = "plan_functions", requires = ["lease"]);
extension_sql_file!("../sql/verification.sql", name = "verification", requires = ["plan_functions"]);
extension_sql_file!(
    "../sql/pipeline_functions.sql",
    name = "pipeline_functions",
    requires = ["verification"]
);
extension_sql_file!(
    "../sql/window_functions.sql",
    name = "window_functions",
    requires = ["pipeline_functions"]
);
extension_sql_file!("../sql/protection.sql", name = "protection", requires = ["window_functions"]);
extension_sql_file!("../sql/views.sql", name = "views", requires = ["protection"]);
extension_sql_file!("../sql/slice.sql", name = "slice", requires = ["views"]);
extension_sql_file!("../sql/quarantine.sql", name = "quarantine", requires = ["slice"]);
extension_sql_file!("../sql/kept.sql", name = "kept", requires = ["views"]);
extension_sql_file!("../sql/audit.sql", name = "audit", requires = ["views"]);
extension_sql_file!("../sql/together.sql", name = "together", requires = ["quarantine"]);
extension_sql_file!("../sql/version.sql", name = "version", requires = ["views"]);
extension_sql_file!("../sql/dump.sql", name = "dump", finalize);

#[cfg(any(test, feature = "pg_test"))]
mod tests {
    mod calendar_zones;
    mod slices;
}

/// What `#[pg_test]` asks of the server.
#[cfg(test)]
pub mod pg_test {
    pub fn setup(_options: Vec<&str>) {}

    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec![]
    }
}
