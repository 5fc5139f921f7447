//! What becomes of the rows of attempts that failed or were refused.

use crate::api::slice;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::rights::{self, Level};
use crate::ledger::run::{self, Run};
use crate::ledger::stage::{self, Stage};
use crate::ledger::window::require_reason;
use crate::ledger::{acceptance, gate, kept, plan_stage};
use crate::postgres::composite::Composite;
use crate::postgres::{role, session, settings};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn quarantine_accept(token: Option<i64>, reason: Option<String>) -> Composite {
    let path = settings::session_path();
    answer(settings::pinned(|| accept(run::require_token(token)?, reason, path)))
}

#[pg_extern(sql = false)]
fn quarantine_discard(token: Option<i64>) -> i64 {
    answer(settings::pinned(|| discard(run::require_token(token)?)))
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn backfill_sweep() -> TableIterator<'static, (name!(dropped, i64), name!(left_over, i64))> {
    TableIterator::once(answer(settings::pinned(sweep)))
}

/// How many bytes a stage takes; `None` while somebody holds it for himself.
#[pg_extern(sql = false)]
fn stage_bytes(relation: pg_sys::Oid) -> Option<i64> {
    stage::bytes(relation)
}

/// The run and the kept rows of a token about which the caller may decide.
fn kept(token: i64) -> Result<(Run, Stage)> {
    session::require_writable()?;
    let run = run::of_any_outcome(token)?;
    rights::require(&run.pipeline, Level::Operate)?;
    let stage = Stage::in_quarantine(token).ok_or_else(|| {
        Error::new(Code::Undefined, format!("token {token} has no rows in quarantine"))
            .detail("They were accepted, discarded or swept, or there never were any.")
            .hint("SELECT * FROM backfill.quarantine lists those that are kept.")
    })?;
    Ok((run, stage))
}

/// It holds the pipeline's decisions while it writes, so it waits for nobody for long (55P03).
fn accept(token: i64, reason: Option<String>, path: String) -> Result<Composite> {
    settings::with_patience(|| accept_soon(token, reason, path))
}

fn accept_soon(token: i64, reason: Option<String>, path: String) -> Result<Composite> {
    let reason = require_reason(reason)?;
    gate::require_none_closed("quarantine_accept")?;
    let (refused, stage) = kept(token)?;
    let new = acceptance::issue(&refused)?;
    stage.hand_over(new);
    let replacement = slice::replace_from_stage(new, &reason, path)?;
    acceptance::note(new, &reason);
    Ok(replacement)
}

fn discard(token: i64) -> Result<i64> {
    let (_, stage) = kept(token)?;
    let rows = stage.rows();
    if stage.drop_if_idle() {
        return Ok(rows);
    }
    stage.require_free()?;
    Err(Error::new(Code::Serialization, format!("the rows of token {token} are being read"))
        .detail(format!("A transaction holds {}.", stage.table()))
        .hint("Repeat the call when it has ended."))
}

/// One call drops no more than so many tables, each of which holds a lock to the end of the transaction, and kept slices.
const AT_ONCE: usize = 1_000;

fn sweep() -> Result<(i64, i64)> {
    role::require_superuser("backfill_sweep")?;
    session::require_writable()?;
    let stages = stage::sweep(None, AT_ONCE);
    let rest = AT_ONCE - stages.0 as usize;
    let swept = [stages, plan_stage::sweep(rest), kept::sweep(AT_ONCE)];
    Ok(swept.into_iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1)))
}
