//! One attempt at a window: a lease while it is open, a line of the log once it has ended.
//!
//! ```text
//!            claim                  finish / replace_partition
//!   (none) ─────────▶ open ───────────────────────────────────▶ done
//!                      │   fail                                  failed ─▶ requeued, while attempts remain
//!                      │   fail with BF005, BF006, BF007, BF010  refused
//!                      │   release                               released ─▶ requeued in its place
//!                      │   taken over after its expiry           expired ─▶ requeued in its place, while attempts remain
//!                      └─  taken over after its plan was cancelled, its window closed, its epoch ended    revoked
//! ```
//!
//! An open run is *void* once its plan is cancelled, its window skipped or locked, its pipeline dropped, or its pool paused
//! with `revoke`: nothing is
//! written into it then (so that the call takes constant time); every token call sees it, and the next claim
//! that needs its permit or its window writes `revoked`.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::mixture::{self, Publication};
use crate::ledger::pipeline::{self, Pipeline, pipeline_columns};
use crate::ledger::rights::{self, Level};
use crate::ledger::{effect, epoch, gate, verification};
use crate::postgres::executor::Pair;
use crate::postgres::spi::{self, Row};
use crate::postgres::{role, session};
use pgrx::pg_sys;

/// What a fenced call knows of its lease.
#[derive(Debug)]
pub struct Run {
    pub token: i64,
    pub pipeline: Pipeline,
    /// 0 for a live run.
    pub plan_id: i64,
    pub pool_id: i32,
    pub window_start: Instant,
    pub window_end: Instant,
    pub window_key: String,
    pub attempt: i32,
    pub turn: i32,
    pub seq: i64,
    /// For a SQL pipeline the fingerprint of its query, else what the worker claimed with.
    pub code_version: Option<String>,
    /// The query that the lease stands for, with the search_path it is read under.
    pub query: Option<String>,
    pub query_path: Option<String>,
    /// The reason that the plan gives for a shrinking slice.
    pub allow_shrink: Option<String>,
    pub as_of: Instant,
    /// `scheduled`, `catchup`, `backfill` or `verify`.
    pub run_kind: String,
    /// Where its plan keeps new rows until it publishes all of them.
    pub plan_stage: Option<pg_sys::Oid>,
    /// Given by the plan.
    pub params: Option<pgrx::JsonB>,
    /// Whether effects of this run leave the system.
    pub effects: bool,
    /// Whether a heartbeat of it is kept.
    pub has_beaten: bool,
    pub expires_at: Instant,
    /// Whether it emitted effects that its end makes ready.
    pub has_effects: bool,
    /// Whether this transaction passed its fence, and did not undo that with a savepoint.
    fenced_here: bool,
    /// Whether this transaction ended it as done.
    pub finished_here: bool,
    /// Whether it ended before, and what it staged is being published.
    pub was_staged: bool,
}

/// How a run ended well.
#[derive(Debug, Default)]
pub struct Ending {
    pub rows: Option<i64>,
    pub digest: Option<String>,
    /// The digest is in the worker's words: the ledger took none.
    pub digest_told: bool,
    pub allow_shrink: Option<String>,
    pub metrics: Option<pgrx::JsonB>,
    /// That of the slice, where it is known to differ from what the run has noted.
    pub code_version: Option<String>,
}

const LOAD: &str = concat!(
    "SELECT ",
    pipeline_columns!(),
    ", r.plan_id, r.window_start, r.window_end, r.attempt, r.turn, r.seq, COALESCE(r.claim_version, r.code_version), r.as_of, \
       r.outcome, v.query, v.query_path, pl.allow_shrink, r.run_kind, pl.params, pl.effects, \
       COALESCE(h.expires_at, r.expires_at), h.token IS NOT NULL, r.has_effects, \
       COALESCE(r.fence_xid = pg_catalog.pg_current_xact_id_if_assigned(), false), r.token, \
       r.pool_id, CASE WHEN r.together THEN COALESCE(ps.relation::pg_catalog.oid, 0::pg_catalog.oid) END
     FROM backfill.run_data r
     JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
     LEFT JOIN backfill.plan_data pl ON pl.plan_id = r.plan_id
     LEFT JOIN backfill.plan_stage_data ps ON ps.plan_id = r.plan_id
     LEFT JOIN backfill.version_data v ON r.runs_query AND v.pipeline_id = r.pipeline_id
       AND v.code_version = COALESCE(r.claim_version, r.code_version)
     LEFT JOIN backfill.heartbeat_data h ON h.token = r.token
     WHERE r.token = $1"
);

const FENCE: &str = "UPDATE backfill.run_data SET fence_xid = pg_catalog.pg_current_xact_id()
    WHERE token = $1 AND ended_at IS NULL";

const FINISH: &str = "UPDATE backfill.run_data
    SET ended_at = pg_catalog.clock_timestamp(), outcome = 'done',
        published_at = CASE WHEN NOT together AND run_kind <> 'verify'
                            THEN COALESCE(published_at, pg_catalog.clock_timestamp()) END, fence_xid = pg_catalog.pg_current_xact_id(),
        rows = CASE WHEN together THEN rows ELSE COALESCE($2, rows) END,
        digest = CASE WHEN together THEN digest ELSE COALESCE($3, digest) END,
        digest_told = CASE WHEN together OR $3 IS NULL THEN digest_told ELSE $7 END,
        allow_shrink = COALESCE($4, allow_shrink), metrics = COALESCE($5, metrics),
        code_version = COALESCE($6, code_version),
        claim_version = CASE WHEN $6 <> code_version THEN COALESCE(claim_version, code_version) ELSE claim_version END
    WHERE token = $1 AND ended_at IS NULL
    RETURNING has_effects AND NOT together";

/// The slice of a staged run is what its transaction writes from here on.
const PUBLISH: &str = "UPDATE backfill.run_data
    SET published_at = pg_catalog.clock_timestamp(), fence_xid = pg_catalog.pg_current_xact_id()
    WHERE token = $1 AND together AND outcome = 'done' AND published_at IS NULL";

const PUBLISHED: &str = "UPDATE backfill.run_data
    SET rows = $2, digest = $3, allow_shrink = COALESCE($4, allow_shrink) WHERE token = $1";

const RECORD: &str = "UPDATE backfill.run_data
    SET rows = $2, digest = $3, digest_told = false, allow_shrink = $4, code_version = COALESCE($5, claim_version, code_version),
        claim_version = CASE WHEN $5 <> code_version THEN COALESCE(claim_version, code_version) ELSE claim_version END,
        published_at = CASE WHEN NOT together AND run_kind <> 'verify' THEN pg_catalog.clock_timestamp() END WHERE token = $1 AND ended_at IS NULL";

const BUILT: &str = "UPDATE backfill.run_data
    SET claim_version = COALESCE(claim_version, code_version), code_version = $2
    WHERE token = $1 AND ended_at IS NULL AND code_version <> $2";

const VOID: &str = "SELECT void_reason FROM backfill.run_void_data WHERE token = $1";

/// The same for a run whose fence this transaction has passed, and did not undo with a savepoint.
const VOID_FENCED: &str = "SELECT r.void_reason, p.on_mixture
    FROM backfill.run_void_data r JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
    WHERE r.token = $1 AND r.fence_xid = pg_catalog.pg_current_xact_id_if_assigned()";

/// Before a claim has started the epoch of this server, no lease is of it.
const OTHER_SERVER: &str = "the server was restored, promoted or copied since the lease was given";

/// Why the open run may not do anything any more, if so, as everybody sees it now.
pub fn void_reason(token: i64) -> Option<String> {
    if !epoch::is_current() {
        return Some(OTHER_SERVER.to_owned());
    }
    spi::latest(VOID, &[token.into()], |row| row.get(1)).into_iter().next().flatten()
}

/// Refuses to commit behind the fence of a run that may do nothing any more (BF002), or that published before mixtures were
/// refused (40001).
pub fn require_right(token: i64) -> Result<()> {
    let found = match epoch::is_current() {
        true => spi::latest(VOID_FENCED, &[token.into()], |row| (row.get(1), row.at::<String>(2))),
        false => vec![(Some(OTHER_SERVER.to_owned()), String::new())],
    };
    match found.into_iter().next() {
        Some((Some(why), _)) => Err(revoked(token, &why)
            .detail("It was revoked while this transaction was open, so that it cannot commit.")),
        Some((None, on_mixture)) => mixture::require_judged(token, &on_mixture),
        None => Ok(()),
    }
}

impl Run {
    fn decode(row: &Row) -> (Self, Option<String>) {
        let pipeline = Pipeline::decode(row);
        let c = pipeline::COLUMNS;
        let window_start: Instant = row.at(c + 2);
        let outcome: Option<String> = row.get(c + 9);
        let token: i64 = row.at(c + 20);
        let fenced_here = row.at(c + 19) && gate::noted(token);
        let run = Self {
            token,
            window_key: pipeline.key_of(window_start),
            pipeline,
            plan_id: row.at(c + 1),
            window_start,
            window_end: row.at(c + 3),
            attempt: row.at(c + 4),
            turn: row.at(c + 5),
            seq: row.at(c + 6),
            code_version: row.get(c + 7),
            as_of: row.at(c + 8),
            query: row.get(c + 10),
            query_path: row.get(c + 11),
            allow_shrink: row.get(c + 12),
            run_kind: row.at(c + 13),
            params: row.get(c + 14),
            effects: row.get(c + 15).unwrap_or(true),
            expires_at: row.at(c + 16),
            has_beaten: row.at(c + 17),
            has_effects: row.at(c + 18),
            fenced_here,
            finished_here: fenced_here && outcome.as_deref() == Some("done"),
            was_staged: false,
            pool_id: row.at(c + 21),
            plan_stage: row.get(c + 22),
        };
        (run, outcome)
    }

    /// The run and, where it has ended, its outcome, as everybody sees it now; BF001 if there is none.
    /// The caller must hold level "work" on the pipeline (42501).
    fn load(token: i64) -> Result<(Self, Option<String>)> {
        let loaded = role::as_ledger(|| spi::latest(LOAD, &[token.into()], Self::decode).into_iter().next());
        let Some((run, outcome)) = loaded else {
            return Err(Error::new(Code::StaleToken, format!("fencing token {token} is unknown"))
                .detail("No claim in this database ever gave it out.")
                .hint("SELECT * FROM backfill_claim(...) gives a lease with its token."));
        };
        rights::require(&run.pipeline, Level::Work)?;
        Ok((run, outcome))
    }

    /// The error that a token call gets whose run has ended.
    fn ended(&self, outcome: &str) -> Error {
        let window = format!("window {} of pipeline \"{}\"", self.window_key, self.pipeline.name);
        if outcome == "revoked" {
            let why = role::as_ledger(|| spi::latest(WHY, &[self.token.into()], |row| row.at::<String>(1)));
            return self.revoked(why.first().map_or("nobody said why", String::as_str));
        }
        let newest = role::as_ledger(|| {
            spi::latest(NEWEST_TOKEN, &[self.pipeline.id.into(), self.window_start.into()], |row| {
                row.at::<i64>(1)
            })
        });
        let newest = newest.into_iter().next().unwrap_or(self.token);
        let message = if newest > self.token {
            format!("fencing token {} is stale: {newest} was given out for its window", self.token)
        } else {
            format!("fencing token {} has ended", self.token)
        };
        Error::new(Code::StaleToken, message)
            .detail(format!(
                "Token {} of {window} ended as \"{outcome}\"; the newest token of the window is {newest}.",
                self.token
            ))
            .hint("Drop what this attempt made and claim again with SELECT * FROM backfill_claim(...).")
    }

    fn revoked(&self, why: &str) -> Error {
        revoked(self.token, why).detail(format!(
            "Token {} was for window {} of pipeline \"{}\".",
            self.token, self.window_key, self.pipeline.name
        ))
    }

    /// Whether it is built to be compared with what is published, and never published.
    pub fn verifies(&self) -> bool {
        self.run_kind == "verify"
    }

    /// The bounds of its window, as `$1` and `$2` of a query.
    pub fn bounds(&self) -> Pair {
        Pair {
            type_oid: pg_sys::TIMESTAMPTZOID,
            values: [self.window_start, self.window_end].map(|at| pg_sys::Datum::from(at.0)),
        }
    }

    /// The zone that counts for its window.
    pub fn time_zone(&self) -> String {
        self.pipeline.time_zone_at(self.window_start)
    }

    /// Refuses the call if the open run is void (BF002).
    fn require_valid(&self) -> Result<()> {
        let why = role::as_ledger(|| void_reason(self.token));
        why.map_or(Ok(()), |why| Err(self.revoked(&why)))
    }

    fn pass_fence(&self) -> Result<()> {
        gate::note(self.pipeline.id, self.pool_id, self.token);
        if role::as_ledger(|| spi::run(FENCE, &[self.token.into()])) == 0 {
            return Err(lost(self.token));
        }
        // The UPDATE may have waited: what could void the run is read in a later statement.
        self.require_valid()
    }
}

/// The error for a lease that a person's call has ended (BF002).
pub fn revoked(token: i64, why: &str) -> Error {
    Error::new(Code::Revoked, format!("the lease of fencing token {token} was revoked: {why}"))
        .hint("Drop what this attempt made and claim again with SELECT * FROM backfill_claim(...).")
}

/// What an update of an open run that found no row means.
pub fn lost(token: i64) -> Error {
    match Run::load(token) {
        Ok((run, Some(outcome))) => run.ended(&outcome),
        Ok((_, None)) => Error::new(
            Code::Serialization,
            format!("the lease of fencing token {token} is newer than this transaction's snapshot"),
        )
        .detail("The transaction took its snapshot before the lease was given.")
        .hint("Roll back and repeat the transaction."),
        Err(error) => error,
    }
}

/// A run that has ended needs its heartbeat no more.
pub fn forget_heartbeat(token: i64) {
    role::as_ledger(|| spi::run(FORGET, &[token.into()]));
}

const FORGET: &str = "DELETE FROM backfill.heartbeat_data WHERE token = $1";

/// A revoked run keeps why its right ended.
const WHY: &str = "SELECT error FROM backfill.run_data WHERE token = $1 AND error IS NOT NULL";

const NEWEST_TOKEN: &str = "SELECT token FROM backfill.run_data
    WHERE pipeline_id = $1 AND window_start = $2 ORDER BY turn DESC LIMIT 1";

/// A token that is not NULL (22004).
pub fn require_token(token: Option<i64>) -> Result<i64> {
    token.ok_or_else(|| {
        Error::new(Code::NullValue, "token must not be NULL")
            .detail("The token says which window is written, and by which attempt.")
            .hint("SELECT * FROM backfill_claim(...) gives a lease with its token.")
    })
}

/// The run of a token whose caller may work on it, however it ended.
pub fn of_any_outcome(token: i64) -> Result<Run> {
    Run::load(token).map(|(run, _)| run)
}

/// The open run of a token whose caller may work on it, without passing the fence.
pub fn open(token: i64) -> Result<Run> {
    session::require_writable()?;
    let (run, outcome) = Run::load(token)?;
    if let Some(outcome) = outcome {
        return Err(run.ended(&outcome));
    }
    run.require_valid()?;
    Ok(run)
}

/// Passes the fence: from here to the end of the transaction nobody else can take the window or write it under
/// another token, and at COMMIT the plan and the pipeline are looked at once more.
///
/// BF001 for a token that is unknown, superseded or finished; BF002 for a revoked one; 40001 above READ
/// COMMITTED where the row moved since the transaction's snapshot.
pub fn fence(token: i64) -> Result<Run> {
    let run = open(token)?;
    run.pass_fence()?;
    Ok(run)
}

/// Like [`fence`], for what belongs to a slice beside its rows: it may also come after the run was finished, in the
/// same transaction. The row is not written again by a transaction that stands behind its fence, because such calls
/// are made many times.
pub fn fence_beside_slice(token: i64) -> Result<Run> {
    session::require_writable()?;
    let (run, outcome) = Run::load(token)?;
    match outcome {
        Some(outcome) if !run.finished_here => return Err(run.ended(&outcome)),
        _ => run.require_valid()?,
    }
    if !run.fenced_here {
        run.pass_fence()?;
    }
    Ok(run)
}

/// Whether what works under the token may have effects now. Reads only.
pub fn allows_effects(token: i64) -> Result<bool> {
    let (run, outcome) = Run::load(token)?;
    let stands = outcome.is_none() || run.finished_here;
    Ok(stands && run.effects && role::as_ledger(|| void_reason(token)).is_none())
}

/// Ends the open run as done. Passes the fence itself.
pub fn finish(run: &Run, ending: &Ending) -> Result<()> {
    end_as_done(run.pipeline.id, run.pool_id, run.token, run.has_beaten, ending)
}

fn end_as_done(pipeline_id: i64, pool_id: i32, token: i64, has_beaten: bool, ending: &Ending) -> Result<()> {
    gate::note(pipeline_id, pool_id, token);
    if let Some(publication) = Publication::of(token, ending.code_version.as_deref()) {
        // The row of the lease comes first in the order of locks.
        let must_fence = publication.is_refusable() && !publication.is_fenced;
        if must_fence && role::as_ledger(|| spi::run(FENCE, &[token.into()])) == 0 {
            return Err(lost(token));
        }
        publication.admit()?;
    }
    let metrics = ending.metrics.as_ref().map(|m| pgrx::JsonB(m.0.clone()));
    let args = [
        token.into(),
        ending.rows.into(),
        ending.digest.as_deref().into(),
        ending.allow_shrink.as_deref().into(),
        metrics.into(),
        ending.code_version.as_deref().into(),
        ending.digest_told.into(),
    ];
    // An emission under the same token may have been waited for: the row is what it left.
    let Some(has_effects) = role::as_ledger(|| spi::first(FINISH, &args, |row| row.at(1))) else {
        return Err(lost(token));
    };
    if has_effects {
        effect::publish(token);
    }
    if has_beaten {
        forget_heartbeat(token);
    }
    Ok(())
}

const STANDING: &str = "SELECT r.pipeline_id, p.owner, r.outcome, h.token IS NOT NULL, r.pool_id, r.together AND r.digest IS NULL,
        r.run_kind = 'verify' AND NOT EXISTS (SELECT FROM backfill.verification_data d WHERE d.token = r.token)
    FROM backfill.run_data r
    JOIN backfill.pipeline_data p ON p.pipeline_id = r.pipeline_id
    LEFT JOIN backfill.heartbeat_data h ON h.token = r.token
    WHERE r.token = $1";

/// Ends the run of a token as done, or does nothing where that was done before: a COMMIT whose answer was lost is
/// repeated. On the path of every window, so it reads no more than it needs; whether the right still stands is
/// looked at once, at COMMIT.
pub fn finish_token(token: i64, ending: &Ending) -> Result<()> {
    session::require_writable()?;
    let standing = role::as_ledger(|| {
        spi::latest(STANDING, &[token.into()], |row| {
            let key = (row.at::<i64>(1), row.at::<String>(2), row.get::<String>(3));
            (key, row.at::<bool>(4), row.at::<i32>(5), row.at::<bool>(6), row.at::<bool>(7))
        })
    });
    if let Some(((pipeline_id, owner, outcome), has_beaten, pool_id, is_empty, is_to_compare)) =
        standing.first()
        && rights::has(role::caller(), *pipeline_id, owner, Level::Work)
    {
        match outcome.as_deref() {
            None if *is_empty => return Err(nothing_staged(token)),
            None if *is_to_compare => {
                let run = fence(token)?;
                verification::of_report(&run, ending)?;
                return finish(&run, ending);
            }
            None => return end_as_done(*pipeline_id, *pool_id, token, *has_beaten, ending),
            Some("done") => return Ok(()),
            Some(_) => {}
        }
    }
    // It is unknown, not the caller's, or has ended otherwise: the full look has the words for it.
    open(token).map(drop)
}

/// A plan that publishes all windows at once needs the rows of each (55000).
fn nothing_staged(token: i64) -> Error {
    Error::new(Code::NotInState, format!("nothing is staged under token {token}"))
        .detail("The plan publishes all its windows together, from rows that replace_partition() puts into its stage.")
        .hint(format!("SELECT * FROM replace_partition({token}, ...)."))
}

/// The staged run of a token, behind whose fence this transaction may write the target from here on. The caller holds what
/// keeps others from ending that right: see `ledger::together`.
pub fn publish_staged(token: i64) -> Result<Run> {
    let mut run = of_any_outcome(token)?;
    gate::note(run.pipeline.id, run.pool_id, token);
    if role::as_ledger(|| spi::run(PUBLISH, &[token.into()])) == 0 {
        return Err(Error::new(
            Code::Serialization,
            format!("what token {token} staged is newer than this transaction's snapshot"),
        )
        .detail(format!("It is window {} of pipeline \"{}\".", run.window_key, run.pipeline.name))
        .hint("Roll back and repeat the transaction."));
    }
    run.plan_stage = None;
    run.was_staged = true;
    Ok(run)
}

/// Notes what the slice of a staged run holds, now that it is published.
pub fn published(run: &Run, ending: &Ending) {
    let args = [
        run.token.into(),
        ending.rows.into(),
        ending.digest.as_deref().into(),
        ending.allow_shrink.as_deref().into(),
    ];
    role::as_ledger(|| spi::run(PUBLISHED, &args));
    if run.has_effects {
        effect::publish(run.token);
    }
}

/// Notes the version of rows that the run has built and that are kept aside: whoever accepts them publishes that one.
pub fn note_built(run: &Run, version: Option<&str>) {
    role::as_ledger(|| spi::run(BUILT, &[run.token.into(), version.into()]));
}

/// Notes what the fenced transaction wrote without ending the run: the slice is that run's from here on, whatever
/// becomes of it.
pub fn record(run: &Run, ending: &Ending) -> Result<()> {
    if let Some(publication) = Publication::of(run.token, ending.code_version.as_deref()) {
        publication.admit()?;
    }
    let args = [
        run.token.into(),
        ending.rows.into(),
        ending.digest.as_deref().into(),
        ending.allow_shrink.as_deref().into(),
        ending.code_version.as_deref().into(),
    ];
    if role::as_ledger(|| spi::run(RECORD, &args)) == 0 {
        return Err(lost(run.token));
    }
    Ok(())
}
