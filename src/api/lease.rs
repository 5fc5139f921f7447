//! Claiming windows and saying how they went.

use crate::domain::retry;
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::claim::{self, Grant, Wish};
use crate::ledger::requeue::{self, Place};
use crate::ledger::run::{self, Ending, Run};
use crate::ledger::{fenced, gate, pool, stop, version, window};
use crate::postgres::composite::{Composite, composite, value};
use crate::postgres::{datum, lock, lock::Key, random, role, session, spi};
use pgrx::JsonB;
use pgrx::prelude::*;

/// The most leases that one call gives.
const MOST_WINDOWS: i32 = 1000;

#[pg_extern(sql = false)]
fn backfill_claim(
    worker: Option<String>,
    max_windows: Option<i32>,
    pools: Option<Vec<Option<String>>>,
    pipelines: Option<Vec<Option<String>>>,
    code_version: Option<String>,
    window_key: Option<String>,
) -> SetOfIterator<'static, Composite> {
    let grants = answer(try_claim(worker, max_windows, pools, pipelines, code_version, window_key));
    SetOfIterator::new(grants.into_iter().map(lease_of_grant).collect::<Vec<_>>())
}

fn try_claim(
    worker: Option<String>,
    max_windows: Option<i32>,
    pools: Option<Vec<Option<String>>>,
    pipelines: Option<Vec<Option<String>>>,
    code_version: Option<String>,
    window_key: Option<String>,
) -> Result<Vec<Grant>> {
    session::require_writable()?;
    let worker = worker.filter(|worker| !worker.trim().is_empty()).ok_or_else(|| {
        Error::new(Code::InvalidParameter, "a worker needs a name")
            .detail("worker is NULL or blank; it is kept with every run.")
            .hint("Give a name that tells a person where the worker runs, such as its host and process.")
    })?;
    let max_windows = max_windows.filter(|n| (1..=MOST_WINDOWS).contains(n)).ok_or_else(|| {
        Error::new(Code::InvalidParameter, "max_windows is out of range")
            .detail(format!("max_windows must be between 1 and {MOST_WINDOWS}."))
            .hint("Claim several times for more.")
    })?;
    let (pools, pipelines) = (names("pools", pools)?, names("pipelines", pipelines)?);
    if let Some(name) = pools.iter().flatten().find(|name| !pool::exists(name)) {
        return Err(pool::unknown(name));
    }
    version::require_name(code_version.as_deref())?;
    let wish = Wish { worker, max_windows: max_windows as usize, pools, pipelines, code_version, window_key };
    claim::check(&wish)?;
    claim::claim(&wish)
}

/// An array of names without NULLs (22004).
fn names(argument: &str, given: Option<Vec<Option<String>>>) -> Result<Option<Vec<String>>> {
    let Some(given) = given else { return Ok(None) };
    given.into_iter().collect::<Option<Vec<String>>>().map(Some).ok_or_else(|| {
        Error::new(Code::NullValue, format!("{argument} must not contain NULL"))
            .detail("Each element is a name.")
            .hint(format!("Leave {argument} out to ask for all."))
    })
}

/// The attributes of `backfill.lease`, in their order.
struct Lease {
    token: i64,
    window_start: Instant,
    window_end: Instant,
    window_key: String,
    run_kind: String,
    plan_id: i64,
    attempt: i32,
    code_version: Option<String>,
    effects: bool,
    as_of: Instant,
    query: Option<String>,
    params: Option<serde_json::Value>,
    expires_at: Instant,
    plan_stage: Option<pg_sys::Oid>,
}

impl Lease {
    fn row(self, pipeline: &crate::ledger::pipeline::Pipeline) -> Composite {
        let verifies = self.run_kind == "verify";
        let publish = match self.plan_stage {
            Some(_) => "together",
            None if verifies => "none",
            None => "each",
        };
        composite(
            "lease",
            vec![
                value(self.token),
                value(pipeline.name.as_str()),
                value(self.window_key),
                value(self.window_start),
                value(self.window_end),
                value(pipeline.time_zone_at(self.window_start)),
                value(self.run_kind),
                (self.plan_id > 0).then_some(self.plan_id).and_then(value),
                value(self.attempt),
                value(self.code_version),
                value(self.effects),
                value(self.as_of),
                value(pipeline.target),
                value(self.plan_stage.or(pipeline.target.filter(|_| !verifies))),
                value(publish),
                value(self.query),
                value(self.params.map(JsonB)),
                value(pipeline.lease_for),
                value(self.expires_at),
            ],
        )
    }
}

fn lease_of_grant(grant: Grant) -> Composite {
    Lease {
        token: grant.token,
        window_key: grant.pipeline.key_of(grant.window_start),
        window_start: grant.window_start,
        window_end: grant.window_end,
        run_kind: grant.run_kind.to_owned(),
        plan_id: grant.plan_id,
        attempt: grant.attempt,
        code_version: grant.code_version,
        effects: grant.effects,
        as_of: grant.as_of,
        query: grant.query,
        params: grant.params,
        expires_at: grant.expires_at,
        plan_stage: grant.plan_stage,
    }
    .row(&grant.pipeline)
}

fn lease_of_run(run: Run) -> Composite {
    Lease {
        token: run.token,
        window_key: run.window_key,
        window_start: run.window_start,
        window_end: run.window_end,
        run_kind: run.run_kind,
        plan_id: run.plan_id,
        attempt: run.attempt,
        code_version: run.code_version,
        effects: run.effects,
        as_of: run.as_of,
        query: run.query,
        params: run.params.map(|params| params.0),
        expires_at: run.expires_at,
        plan_stage: run.plan_stage,
    }
    .row(&run.pipeline)
}

/// The function of a deferred trigger, which runs right before the callbacks of a COMMIT and does no harm earlier.
#[pg_extern(sql = false)]
fn fence_look_first() {
    gate::look_first();
}

#[pg_extern(sql = false)]
fn fence_check(token: Option<i64>) -> Composite {
    lease_of_run(answer(run::require_token(token).and_then(run::fence)))
}

const BEAT: &str = "INSERT INTO backfill.heartbeat_data (token, expires_at, beat_at, progress)
    VALUES ($1, $2 + $3, $2, $4)
    ON CONFLICT (token) DO UPDATE
    SET expires_at = excluded.expires_at, beat_at = excluded.beat_at,
        progress = COALESCE(excluded.progress, heartbeat_data.progress)
    RETURNING expires_at";

#[pg_extern(sql = false)]
fn backfill_heartbeat(token: Option<i64>, progress: Option<JsonB>) -> TimestampWithTimeZone {
    let expires_at = answer(run::require_token(token).and_then(|token| heartbeat(token, progress)));
    datum::timestamptz(expires_at)
}

fn heartbeat(token: i64, progress: Option<JsonB>) -> Result<Instant> {
    session::require_writable()?;
    // Before the lease is read: a takeover either sees this heartbeat or makes it fail.
    if !role::as_ledger(|| lock::try_shared(Key::Beat { token })) {
        return Err(Error::new(Code::StaleToken, format!("fencing token {token} is being taken over"))
            .detail("Its lease expired and another claim is ending it.")
            .hint("Stop, and claim again with SELECT * FROM backfill_claim(...)."));
    }
    let run = run::open(token)?;
    let args = [token.into(), datum::clock().into(), run.pipeline.lease_for.into(), progress.into()];
    Ok(role::as_ledger(|| spi::first(BEAT, &args, |row| row.at(1))).expect("INSERT ... RETURNING of one row"))
}

#[pg_extern(sql = false)]
fn backfill_finish(
    token: Option<i64>,
    rows: Option<i64>,
    digest: Option<String>,
    metrics: Option<JsonB>,
) -> String {
    let ending = Ending { rows, digest, digest_told: true, metrics, ..Ending::default() };
    answer(run::require_token(token).and_then(|token| finish(token, ending)))
}

fn finish(token: i64, ending: Ending) -> Result<String> {
    if ending.rows.is_some_and(|rows| rows < 0) {
        return Err(Error::new(Code::InvalidParameter, "rows must not be negative")
            .detail(format!("rows is {}.", ending.rows.unwrap_or_default()))
            .hint("Give the number of rows that the slice holds now, or NULL."));
    }
    run::finish_token(token, &ending)?;
    Ok("done".to_owned())
}

const END: &str = "UPDATE backfill.run_data
    SET ended_at = pg_catalog.clock_timestamp(), outcome = $2, error = $3, sqlstate = $4
    WHERE token = $1 AND ended_at IS NULL";

/// Ends the open run without a slice.
fn end(run: &Run, outcome: &str, error: Option<&str>, sqlstate: Option<&str>) -> Result<()> {
    let args = [run.token.into(), outcome.into(), error.into(), sqlstate.into()];
    if role::as_ledger(|| spi::run(END, &args)) == 0 {
        return Err(run::lost(run.token));
    }
    fenced::forget();
    if run.has_beaten {
        run::forget_heartbeat(run.token);
    }
    Ok(())
}

fn place(run: &Run, attempt: i32, due_at: Option<Instant>) -> Place {
    Place {
        pipeline_id: run.pipeline.id,
        plan_id: run.plan_id,
        window_start: run.window_start,
        window_end: run.window_end,
        seq: run.seq,
        attempt,
        after_turn: run.turn,
        due_at,
    }
}

/// Reports of these are never retried: the same code over the same window gives the same answer.
const REFUSALS: [&str; 4] = ["BF005", "BF006", "BF007", "BF010"];

#[pg_extern(sql = false)]
fn backfill_fail(
    token: Option<i64>,
    error: Option<String>,
    retry: Option<bool>,
    sqlstate: Option<String>,
) -> String {
    answer(run::require_token(token).and_then(|token| fail(token, error, retry.unwrap_or(true), sqlstate)))
}

fn fail(token: i64, error: Option<String>, retry: bool, sqlstate: Option<String>) -> Result<String> {
    let run = run::open(token)?;
    let reason = error.as_deref().unwrap_or("no reason given");
    let refused = sqlstate.as_deref().is_some_and(|code| REFUSALS.contains(&code));
    let outcome = if refused { "refused" } else { "failed" };
    end(&run, outcome, Some(reason), sqlstate.as_deref())?;
    if !run.verifies() {
        crate::api::slice::quarantine(token, reason, sqlstate.as_deref())?;
    }
    if refused || !retry || run.attempt >= run.pipeline.max_attempts {
        role::as_ledger(|| stop::note(run.plan_id, token));
        return Ok(outcome.to_owned());
    }
    let first = run.pipeline.retry_delay.approximate_micros();
    let wait = retry::delay(first, run.attempt, random::unit());
    let due_at = datum::clock().checked_add(wait);
    role::as_ledger(|| requeue::put(&place(&run, run.attempt + 1, due_at)));
    Ok("retrying".to_owned())
}

#[pg_extern(sql = false)]
fn backfill_release(token: Option<i64>) -> String {
    answer(run::require_token(token).and_then(release))
}

fn release(token: i64) -> Result<String> {
    let run = run::open(token)?;
    end(&run, "released", None, None)?;
    role::as_ledger(|| requeue::put(&place(&run, run.attempt, None)));
    Ok("released".to_owned())
}

/// Whether the procedure that calls it may commit.
#[pg_extern(sql = false)]
fn may_commit() -> bool {
    unsafe { pg_sys::SPI_inside_nonatomic_context() && !pg_sys::IsSubTransaction() }
}

#[pg_extern(sql = false)]
fn backfill_new_epoch(reason: Option<String>) -> i64 {
    answer(new_epoch(reason))
}

fn new_epoch(reason: Option<String>) -> Result<i64> {
    session::require_writable()?;
    role::require_superuser("backfill_new_epoch")?;
    let reason = window::require_reason(reason)?;
    Ok(role::as_ledger(|| crate::ledger::epoch::start(&reason)))
}
