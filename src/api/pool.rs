//! `pool_define`.

use crate::error::{Code, Error, Result, answer};
use crate::postgres::{role, session, spi};
use pgrx::prelude::*;

const DEFINE: &str = "INSERT INTO backfill.pool_data (name, slots, created_by) VALUES ($1, $2, $3)
    ON CONFLICT (name) DO UPDATE SET slots = excluded.slots";

const SLOTS: &str = "SELECT slots FROM backfill.pool_data WHERE name = $1";

#[pg_extern(sql = false)]
fn pool_define(pool: Option<String>, slots: Option<i32>) -> String {
    answer(define(pool, slots))
}

fn define(pool: Option<String>, slots: Option<i32>) -> Result<String> {
    session::require_writable()?;
    role::require_superuser("pool_define")?;
    let name = pool.filter(|name| !name.trim().is_empty()).ok_or_else(|| {
        Error::new(Code::InvalidParameter, "a pool needs a name")
            .detail("pool is NULL or blank.")
            .hint("SELECT pool_define('nightly', 4).")
    })?;
    let slots = slots.filter(|slots| (0..=10_000).contains(slots)).ok_or_else(|| {
        Error::new(Code::InvalidParameter, format!("the slots of pool \"{name}\" are out of range"))
            .detail("slots must be between 0 and 10000.")
            .hint("Give the number of windows that may run at once; 0 stops the pool.")
    })?;
    let caller = role::name(role::caller());
    Ok(role::as_ledger(|| {
        let before = spi::first(SLOTS, &[name.as_str().into()], |row| row.at::<i32>(1));
        if before == Some(slots) {
            return "unchanged".to_owned();
        }
        spi::run(DEFINE, &[name.as_str().into(), slots.into(), caller.as_str().into()]);
        before.map_or("created".to_owned(), |before| format!("changed: slots {before} -> {slots}"))
    }))
}
