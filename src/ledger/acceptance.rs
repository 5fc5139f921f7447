//! Publishing rows from quarantine after all, because a person says that they are right.
//!
//! The window gets a new run, which is open only within the transaction that publishes the rows: nobody else ever sees it
//! as a lease, and it holds no permit. It stands in the plan of the attempt that was refused, if that is still active,
//! so that the plan is whole then; else by itself.
//!
//! As a claim does, it tries the mutex of the window and never waits for a worker; and as an adoption does, it keeps
//! plans from being approved meanwhile. It comes too late once anybody was handed the window again.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::claim::hold_window;
use crate::ledger::run::Run;
use crate::ledger::{epoch, requeue, sequence};
use crate::postgres::{datum, lock, lock::Key, role, spi};

/// How a window stands whose refused rows are to be accepted.
struct Standing {
    newest: i64,
    /// Whether the plan of the attempt is still active.
    has_plan: bool,
    /// An active plan that will produce the window.
    owner: Option<i64>,
    closed: Option<String>,
    is_dropped: bool,
}

const STANDING: &str = "SELECT
        (SELECT n.token FROM backfill.run_data n WHERE n.pipeline_id = r.pipeline_id AND n.window_start = r.window_start
         ORDER BY n.turn DESC LIMIT 1),
        EXISTS (SELECT FROM backfill.plan_data pl WHERE pl.plan_id = r.plan_id AND pl.state IN ('approved', 'paused')),
        (SELECT o.plan_id FROM backfill.owned_data o
         WHERE o.pipeline_id = r.pipeline_id AND o.window_start = r.window_start LIMIT 1),
        (SELECT pg_catalog.min(c.mark) FROM backfill.closing_data c
         WHERE c.pipeline_id = r.pipeline_id AND c.window_start = r.window_start AND c.in_force),
        (SELECT p.dropped_at IS NOT NULL FROM backfill.pipeline_data p WHERE p.pipeline_id = r.pipeline_id)
    FROM backfill.run_data r WHERE r.token = $1";

const ISSUE: &str = "WITH drawn AS MATERIALIZED (SELECT pg_catalog.nextval('backfill.token_seq') AS token)
    INSERT INTO backfill.run_data
        (token, pipeline_id, plan_id, window_start, window_end, turn, attempt, seq, in_order, run_kind,
         pool_id, pool_slot, pool_gen, limit_slot, limit_gen, role, code_version, as_of, started_at, expires_at, together)
    SELECT d.token, r.pipeline_id, $2, r.window_start, r.window_end, r.turn + 1, r.attempt, $3, false, r.run_kind,
           0, 0, d.token, 0, d.token, $4, r.code_version, r.as_of, $5, $5,
           r.together AND $2 > 0
    FROM backfill.run_data r, drawn d WHERE r.token = $1
    RETURNING token";

const BECAUSE: &str = "UPDATE backfill.run_data SET allow_shrink = $2 WHERE token = $1";

/// A token under which this transaction may publish what `refused` produced.
///
/// BF001 where the window was handed out again since, BF009 where a plan is to produce it, 55000 where it is closed or one
/// before it is in its way, 40001 where a claim is under way.
pub fn issue(refused: &Run) -> Result<i64> {
    let (pipeline, start) = (&refused.pipeline, refused.window_start);
    let busy = |what: &str| {
        Error::new(Code::Serialization, format!("window {} is being handed out", refused.window_key))
            .detail(what.to_owned())
            .hint("Repeat the call.")
    };
    let standing = role::as_ledger(|| {
        // Decisions too: whoever holds the gate for which the COMMIT will wait has them, and may ask for approvals.
        lock::exclusive_at_once(&[
            Key::Decisions { pipeline: pipeline.id },
            Key::Approve { pipeline: pipeline.id },
        ]);
        if !epoch::ready() || !hold_window(pipeline.id, start) {
            return None;
        }
        spi::latest(STANDING, &[refused.token.into()], |row| Standing {
            newest: row.at(1),
            has_plan: row.at(2),
            owner: row.get(3),
            closed: row.get(4),
            is_dropped: row.at(5),
        })
        .into_iter()
        .next()
    });
    let standing = standing.ok_or_else(|| busy("The transaction of a claim is open."))?;
    require_free(refused, &standing)?;
    if pipeline.depends_on_past {
        if !role::as_ledger(|| sequence::is_idle(pipeline.id)) {
            return Err(busy("Windows of this pipeline run one at a time, and one is leased."));
        }
        if !role::as_ledger(|| sequence::is_ready(pipeline, start)) {
            return Err(not_in_state(refused, "a window before it is not settled"));
        }
    }
    let (plan_id, seq) = match standing.has_plan {
        true => (refused.plan_id, refused.seq),
        false => (0, pipeline.position_of(start)),
    };
    let by = role::name(role::caller());
    role::as_ledger(|| {
        requeue::remove(pipeline.id, refused.plan_id, vec![start]);
        let now: Instant = datum::clock();
        let args = [refused.token.into(), plan_id.into(), seq.into(), by.as_str().into(), now.into()];
        spi::first(ISSUE, &args, |row| row.at::<i64>(1))
    })
    .ok_or_else(|| busy("Somebody else took it at the same moment."))
}

fn require_free(refused: &Run, standing: &Standing) -> Result<()> {
    if standing.is_dropped {
        return Err(not_in_state(refused, "its pipeline was dropped"));
    }
    if standing.newest != refused.token {
        return Err(Error::new(
            Code::StaleToken,
            format!("the rows of token {} are out of date", refused.token),
        )
        .detail(format!(
            "Window {} was handed out again since: the newest token is {}.",
            refused.window_key, standing.newest
        ))
        .hint(format!("SELECT quarantine_discard({}).", refused.token)));
    }
    if let Some(mark) = &standing.closed {
        return Err(not_in_state(refused, &format!("it is {mark}")));
    }
    match standing.owner {
        Some(plan) if plan != refused.plan_id => {
            Err(Error::new(Code::Owned, format!("plan {plan} owns window {}", refused.window_key))
                .detail("It will produce the window again.")
                .hint(format!(
                    "Discard these rows with SELECT quarantine_discard({}), or cancel the plan.",
                    refused.token
                )))
        }
        _ => Ok(()),
    }
}

fn not_in_state(refused: &Run, why: &str) -> Error {
    Error::new(Code::NotInState, format!("window {} cannot be written now", refused.window_key))
        .detail(format!("In pipeline \"{}\" {why}.", refused.pipeline.name))
        .hint("SELECT window_why(pipeline, window_key) says what keeps it.")
}

/// Keeps the reason with the run, whether or not the slice shrank.
pub fn note(token: i64, reason: &str) {
    role::as_ledger(|| spi::run(BECAUSE, &[token.into(), reason.into()]));
}
