//! Pools: how many windows may run at once, and the brake.

use crate::error::{Code, Error, Result, answer};
use crate::ledger::gate;
use crate::ledger::pool;
use crate::ledger::window::require_reason;
use crate::postgres::{role, session, spi};
use pgrx::prelude::*;

const DEFINE: &str = "INSERT INTO backfill.pool_data (name, slots, created_by) VALUES ($1, $2, $3)
    ON CONFLICT (name) WHERE dropped_at IS NULL DO UPDATE
    SET slots = excluded.slots, slots_before = GREATEST(pool_data.slots_before, pool_data.slots)";

const SLOTS: &str = "SELECT pool_id, slots FROM backfill.pool_data WHERE name = $1 AND dropped_at IS NULL";

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
        let before = spi::first(SLOTS, &[name.as_str().into()], |row| (row.at::<i32>(1), row.at::<i32>(2)));
        if before.is_some_and(|(_, before)| before == slots) {
            return "unchanged".to_owned();
        }
        if let Some((pool, _)) = before {
            // Whoever writes the row has the gate by then.
            gate::close_pool(pool);
        }
        spi::run(DEFINE, &[name.as_str().into(), slots.into(), caller.as_str().into()]);
        before.map_or("created".to_owned(), |(_, before)| format!("changed: slots {before} -> {slots}"))
    }))
}

/// `revoking` takes effect with the pause; see the table.
const PAUSE: &str = "UPDATE backfill.pool_data
    SET paused_at = COALESCE(paused_at, pg_catalog.clock_timestamp()), paused_by = $2, pause_reason = $3,
        revoking = revoking OR $4
    WHERE pool_id = $1 AND (paused_at IS NULL OR $4 AND NOT revoking)";

#[pg_extern(sql = false)]
fn pool_pause(pool: Option<String>, reason: Option<String>, revoke: Option<bool>) -> String {
    answer(pause(pool, reason, revoke.unwrap_or(false)))
}

fn pause(pool: Option<String>, reason: Option<String>, revoke: bool) -> Result<String> {
    session::require_writable()?;
    role::require_superuser("pool_pause")?;
    let reason = require_reason(reason)?;
    let (pool_id, _) = pool::refer(&pool.unwrap_or_default())?;
    let caller = role::name(role::caller());
    let changed = role::as_ledger(|| {
        // A transaction that is at its COMMIT passes first, or sees the pause.
        gate::close_pool(pool_id);
        spi::run(PAUSE, &[pool_id.into(), caller.as_str().into(), reason.as_str().into(), revoke.into()])
    });
    Ok(if changed == 0 { "unchanged" } else { "paused" }.to_owned())
}

const RESUME: &str = "UPDATE backfill.pool_data
    SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, revoking = false,
        revoked_to = CASE WHEN revoking THEN (SELECT last_value FROM backfill.token_seq) ELSE revoked_to END
    WHERE pool_id = $1 AND paused_at IS NOT NULL";

#[pg_extern(sql = false)]
fn pool_resume(pool: Option<String>) -> String {
    answer(resume(pool))
}

fn resume(pool: Option<String>) -> Result<String> {
    session::require_writable()?;
    role::require_superuser("pool_resume")?;
    let name = pool.unwrap_or_default();
    let (pool_id, _) = pool::refer(&name)?;
    let changed = role::as_ledger(|| {
        gate::close_pool(pool_id);
        let changed = spi::run(RESUME, &[pool_id.into()]);
        spi::notify(&name);
        changed
    });
    Ok(if changed == 0 { "unchanged" } else { "resumed" }.to_owned())
}

/// Held against those who are about to refer to the pool.
const LOCK: &str = "SELECT 1 FROM backfill.pool_data WHERE pool_id = $1 AND dropped_at IS NULL FOR UPDATE";

const USERS: &str = "SELECT pg_catalog.format('pipeline \"%s\"', p.name) FROM backfill.pipeline_data p
        WHERE p.pool_id = $1 AND p.dropped_at IS NULL
    UNION ALL
    SELECT pg_catalog.format('plan %s', pl.plan_id) FROM backfill.plan_data pl
        JOIN backfill.plan_count_data n ON n.plan_id = pl.plan_id
        WHERE pl.pool_id = $1 AND pl.state NOT IN ('cancelled', 'reverted') AND NOT n.is_over
    UNION ALL
    SELECT pg_catalog.format('the lease of token %s', o.token) FROM backfill.open_run_data o
        JOIN backfill.run_void_data r ON r.token = o.token
        WHERE o.pool_id = $1 AND r.void_reason IS NULL
    LIMIT 5";

const DROP: &str = "UPDATE backfill.pool_data SET dropped_at = pg_catalog.clock_timestamp(), dropped_by = $2
    WHERE pool_id = $1";

#[pg_extern(sql = false)]
fn pool_drop(pool: Option<String>) -> String {
    answer(drop_pool(pool))
}

fn drop_pool(pool: Option<String>) -> Result<String> {
    session::require_writable()?;
    role::require_superuser("pool_drop")?;
    let name = pool.unwrap_or_default();
    let (pool_id, _) = pool::refer(&name)?;
    let caller = role::name(role::caller());
    role::as_ledger(|| {
        if spi::query(LOCK, &[pool_id.into()], |_| ()).is_empty() {
            return Err(pool::unknown(&name));
        }
        let users: Vec<String> = spi::latest_bulk(USERS, &[pool_id.into()], |row| row.at(1));
        if !users.is_empty() {
            return Err(Error::new(Code::NotInState, format!("pool \"{name}\" is in use"))
                .detail(format!("It is used by {}.", users.join(", ")))
                .hint("Give them another pool, end them, or stop the pool with SELECT pool_pause(...)."));
        }
        spi::run(DROP, &[pool_id.into(), caller.as_str().into()]);
        Ok("dropped".to_owned())
    })
}
