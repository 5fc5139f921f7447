//! Pools. `live` and `backfill` exist without being defined: their rows are written when something first
//! refers to them, because rows that an extension script inserts collide with dumped ones on restore.

use crate::error::{Code, Error, Result};
use crate::ledger::plan::Plan;
use crate::postgres::{role, spi};

/// Pools that need no definition, with their slots.
pub const BUILT_IN: [(&str, i32); 2] = [("live", 8), ("backfill", 2)];

const FIND: &str = "SELECT pool_id, slots FROM backfill.pool_data WHERE name = $1 AND dropped_at IS NULL";

/// The pool cannot be dropped before the transaction that refers to it has ended.
const REFER: &str =
    "SELECT pool_id, slots FROM backfill.pool_data WHERE name = $1 AND dropped_at IS NULL FOR KEY SHARE";

const KEEP: &str = "SELECT 1 FROM backfill.plan_data pl JOIN backfill.pool_data o ON o.pool_id = pl.pool_id
    WHERE pl.plan_id = $1 AND o.dropped_at IS NULL FOR KEY SHARE OF o";

const INSERT: &str = "INSERT INTO backfill.pool_data (name, slots, created_by) VALUES ($1, $2, $3)
    ON CONFLICT (name) WHERE dropped_at IS NULL DO NOTHING";

/// The number and the slots of a pool that something is about to refer to (42704 if there is none).
pub fn refer(name: &str) -> Result<(i32, i32)> {
    let find = || spi::first(REFER, &[name.into()], |row| (row.at(1), row.at(2)));
    let caller = role::name(role::caller());
    let found = role::as_ledger(|| {
        find().or_else(|| {
            let slots = BUILT_IN.into_iter().find(|(built_in, _)| *built_in == name)?.1;
            spi::run(INSERT, &[name.into(), slots.into(), caller.as_str().into()]);
            find()
        })
    });
    found.ok_or_else(|| unknown(name))
}

/// For a plan that had ended, which its pool does not outlive: the pool is not dropped while the plan is given windows
/// again (55000 if it was before).
pub fn keep_for(plan: &Plan, wanted: &str) -> Result<()> {
    if role::as_ledger(|| spi::first(KEEP, &[plan.id.into()], |_| ())).is_some() {
        return Ok(());
    }
    Err(Error::new(Code::NotInState, format!("plan {} cannot be {wanted}", plan.id))
        .detail(format!("Its pool \"{}\" was dropped.", plan.pool))
        .hint("Make a new plan in another pool with SELECT * FROM backfill_plan(...)."))
}

/// The error for a pool that does not exist.
pub fn unknown(name: &str) -> Error {
    Error::new(Code::Undefined, format!("pool \"{name}\" does not exist"))
        .detail("Pools are \"live\", \"backfill\" and those that pool_define() made.")
        .hint("A superuser can run SELECT pool_define('...', slots).")
}

/// Whether a pool of that name may be named.
pub fn exists(name: &str) -> bool {
    BUILT_IN.iter().any(|(built_in, _)| *built_in == name)
        || role::as_ledger(|| spi::first(FIND, &[name.into()], |_| ())).is_some()
}
