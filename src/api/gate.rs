//! The second look at COMMIT.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, answer};
use crate::ledger::run::{self, AsSeen};
use crate::postgres::{lock, lock::Key, role};
use pgrx::prelude::*;

/// At COMMIT of a transaction that passed the fence: nothing that ends its right may have happened since.
///
/// The gate is held shared until the transaction ends, and those who end rights hold it exclusively: either
/// they come first, and this sees what they did, or they wait the moment that a COMMIT takes. Before
/// PostgreSQL 18 a deferred trigger runs as whoever is current at COMMIT, so the ledger's role is taken here.
#[pg_trigger(sql = false)]
fn run_gate<'a>(
    trigger: &'a pgrx::PgTrigger<'a>,
) -> Result<Option<PgHeapTuple<'a, impl WhoAllocated>>, std::convert::Infallible> {
    let new = trigger.new().expect("an UPDATE has a new row");
    let number =
        |column: &str| -> i64 { new.get_by_name(column).ok().flatten().expect("the column is NOT NULL") };
    let (pipeline_id, plan_id, token) = (number("pipeline_id"), number("plan_id"), number("token"));
    let start: TimestampWithTimeZone =
        new.get_by_name("window_start").ok().flatten().expect("the column is NOT NULL");
    let why = role::as_ledger(|| {
        lock::shared(Key::Gate { pipeline: pipeline_id });
        run::void_reason(AsSeen::Now, pipeline_id, plan_id, Instant(i64::from(start)), token)
    });
    if let Some(why) = why {
        answer::<()>(Err(Error::new(
            Code::Revoked,
            format!("the lease of fencing token {token} was revoked: {why}"),
        )
        .detail("It was revoked while this transaction was open, so that it cannot commit.")
        .hint("Claim again with SELECT * FROM backfill_claim(…).")));
    }
    Ok(None::<PgHeapTuple<'a, pgrx::AllocatedByPostgres>>)
}
