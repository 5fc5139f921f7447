//! The table that a pipeline fills stays the same while the ledger says what it holds.
//!
//! Slices are of the pipeline's target, which is kept once and not with each of them. So another target would make the
//! ledger say of a table what another one holds. Whoever writes a slice takes the lock of the target shared, and looks whether
//! the target is still the one that was read; a change takes it exclusively. Both only try.

use crate::error::{Code, Error, Result};
use crate::ledger::pipeline::Pipeline;
use crate::postgres::{lock, lock::Key, quote, role, spi, table};

const CURRENT: &str = "SELECT 1 FROM backfill.pipeline_data
    WHERE pipeline_id = $1 AND target IS NOT DISTINCT FROM $2::pg_catalog.regclass AND slice_column IS NOT DISTINCT FROM $3::pg_catalog.name";

/// For whoever writes a slice: the target stays what it is to the end of the transaction (40001).
pub fn hold(pipeline: &Pipeline) -> Result<()> {
    let args = [pipeline.id.into(), pipeline.target.into(), pipeline.slice_column.as_deref().into()];
    let held = role::as_ledger(|| {
        lock::try_shared(Key::Target { pipeline: pipeline.id })
            && !spi::latest(CURRENT, &args, |_| ()).is_empty()
    });
    if held {
        return Ok(());
    }
    Err(Error::new(
        Code::Serialization,
        format!("the target of pipeline \"{}\" is being changed", pipeline.name),
    )
    .detail("Another transaction names another table or slice column for it.")
    .hint("Repeat the call when it has ended."))
}

const SLICES: &str = "SELECT pg_catalog.count(DISTINCT window_start) FROM backfill.run_data
    WHERE pipeline_id = $1 AND published_at IS NOT NULL";

const LEASES: &str = "SELECT pg_catalog.count(*) FROM backfill.open_run_data o
    JOIN backfill.run_void_data r ON r.token = o.token
    WHERE o.pipeline_id = $1 AND r.void_reason IS NULL";

const STAGES: &str = "SELECT pg_catalog.count(*) FROM backfill.plan_data
    WHERE pipeline_id = $1 AND publish = 'together' AND state IN ('approved', 'paused')";

/// For a setting that what is staged rests on: refuses to change it (55000) while a plan stages windows side by side.
pub fn require_nothing_staged(pipeline: &Pipeline, setting: &str) -> Result<()> {
    if count(STAGES, pipeline) == 0 {
        return Ok(());
    }
    let message = format!("{setting} of pipeline \"{}\" cannot be changed now", pipeline.name);
    Err(Error::new(Code::NotInState, message)
        .detail("A plan stages windows of it side by side, to publish them together.")
        .hint("Publish or cancel it first; SELECT plan_id, pipeline FROM backfill.plan_stages WHERE is_needed names it."))
}

fn count(sql: &'static str, pipeline: &Pipeline) -> i64 {
    role::as_ledger(|| spi::latest(sql, &[pipeline.id.into()], |row| row.at::<i64>(1)))[0]
}

/// For a call that names another target or slice column: refuses it (55000) while the ledger holds slices of the old one,
/// or leases under which some are written; 40001 while one is being written. A column that was renamed may be named.
pub fn require_free(pipeline: &Pipeline, moved: &[&str]) -> Result<()> {
    let Some(old) = pipeline.target else { return Ok(()) };
    let column = pipeline.slice_column.as_deref().unwrap_or_default();
    let exists = table::exists(old);
    if moved == ["slice_column"] && exists && !table::has_column(old, column) {
        return Ok(());
    }
    let what = moved.join(" and ");
    let refused = |code, why: &str| {
        Error::new(code, format!("{what} of pipeline \"{}\" cannot be changed{why}", pipeline.name))
    };
    if !role::as_ledger(|| lock::try_exclusive(Key::Target { pipeline: pipeline.id })) {
        return Err(refused(Code::Serialization, " now")
            .detail("A slice is being written to the old one, in a transaction that is open.")
            .hint("Repeat the call when it has ended."));
    }
    let slices = count(SLICES, pipeline);
    let shown = quote::relation(old);
    if slices > 0 && !exists {
        let name = quote::literal(&pipeline.name);
        return Err(refused(Code::NotInState, "")
            .detail(format!("The ledger holds the slices of {slices} windows; their table was dropped."))
            .hint(format!(
                "SELECT pipeline_drop({name}), then define it with the new table: its name is free then, and its windows begin anew."
            )));
    }
    if slices > 0 {
        return Err(refused(Code::NotInState, "")
            .detail(format!("The ledger says what {shown} holds in {slices} windows, by its column \"{column}\"."))
            .hint("Define another pipeline for the other table; window_adopt() takes over what it holds. ALTER TABLE renames the table, or moves it to another schema, and it stays the target."));
    }
    if count(STAGES, pipeline) > 0 {
        return Err(refused(Code::NotInState, " now")
            .detail(format!("A plan stages rows that it will publish to {shown}."))
            .hint("Publish or cancel it first; SELECT plan_id, pipeline FROM backfill.plan_stages WHERE is_needed names it."));
    }
    match count(LEASES, pipeline) {
        0 => Ok(()),
        leases => Err(refused(Code::NotInState, " now")
            .detail(format!("{leases} leases are open, under which {shown} is written."))
            .hint(
                "Repeat the call when they have ended; SELECT token, worker FROM backfill.leases lists them.",
            )),
    }
}
