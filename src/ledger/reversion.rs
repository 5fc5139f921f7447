//! Putting back what was there before a plan.
//!
//! What a window held before is what it held before the newest publications of the plan that follow each other. It comes
//! back under a new run, which is open only within the transaction that writes the rows: nobody ever sees it as a lease, and
//! it holds no permit. Its code version and `as_of` are those of the run that made the slice (`restores`), and where that was
//! of an earlier plan, that plan can be reverted next. Where there was no slice, the
//! run is of the kind `withdrawn`: published, as the one before it has to be over, and a slice of nobody, so that the window is
//! missing again. Nothing is deleted from the log.
//!
//! The plan, to which nothing is left to run, takes part in nothing more. The call takes the pipeline's decisions and keeps
//! plans from being approved, as every decision about a plan does, so that only a plan that owns a window already could lead a
//! claim to it; that is refused. So the mutex of each window is tried, for a claim that is under way, and given back at once:
//! the number of locks does not grow with the plan. Since whoever ends rights takes the decisions first, no second look is
//! needed at COMMIT. Rows of the target may be held by somebody who writes there; for those it waits as long as
//! `lock_timeout` says. All that is one transaction: a crash at any moment leaves all windows as they were.

use crate::domain::bound::instant_text;
use crate::domain::lifecycle::Mark;
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::claim::{hold_window, release_window};
use crate::ledger::permit::Holder;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{self, Plan};
use crate::ledger::takeover;
use crate::ledger::{epoch, mark, sequence, several};
use crate::postgres::{datum, role, spi};

/// A window that the plan published.
pub struct Published {
    pub start: Instant,
    /// The run whose slice it holds now.
    slice: i64,
    is_the_plans: bool,
    /// Its newest run, the plan of that, and whether it is open.
    newest: (i64, i64, bool),
    /// Whose slice it held before.
    previous: Option<i64>,
    /// Who made that slice: another one where it was put back itself.
    made_by: Option<i64>,
    /// The run that kept the rows, or should have; `None` where they are still in place.
    pub kept_by: Option<i64>,
    replaced_at: Option<Instant>,
    kept_until: Option<Instant>,
    is_kept: bool,
    owner: Option<i64>,
    closed: Option<String>,
}

const PUBLISHED: &str = include_str!("../../sql/query/reversion.sql");

/// What the plan published, oldest window first.
pub fn published(plan: &Plan) -> Vec<Published> {
    role::as_ledger(|| {
        spi::latest_bulk(PUBLISHED, &[plan.pipeline_id.into(), plan.id.into()], |row| Published {
            start: row.at(1),
            slice: row.at(2),
            is_the_plans: row.at(3),
            newest: (row.at(4), row.at(5), row.at(6)),
            previous: row.get(7),
            made_by: row.get(8),
            kept_by: row.get(9),
            replaced_at: row.get(10),
            kept_until: row.get(11),
            is_kept: row.get(12).unwrap_or(false),
            owner: row.get(13),
            closed: row.get(14),
        })
    })
}

/// Refuses to put back a part of the windows.
pub fn require_whole(pipeline: &Pipeline, plan: &Plan, windows: &[Published]) -> Result<()> {
    let cannot = format!("plan {} cannot be reverted", plan.id);
    let refuse = |code, why: &str, hint: &str, against: &dyn Fn(&Published) -> Option<String>| {
        let named =
            |window: &Published| Some(format!("{} {}", pipeline.key_of(window.start), against(window)?));
        several::require_none(&cannot, code, why, hint, windows.iter().filter_map(named).collect())
    };
    if windows.is_empty() {
        return Err(Error::new(Code::NotInState, format!("{cannot}: it published nothing"))
            .detail(if plan.verifies {
                "It is a verification: it compares, and publishes nothing."
            } else {
                "No window has a slice that it made."
            })
            .hint("SELECT * FROM backfill.slice_history shows which plan made which slice."));
    }
    refuse(
        Code::NotInState,
        "windows of it are closed",
        "SELECT window_unlock(...) or window_unskip(...), if they are to change.",
        &|window| window.closed.as_ref().map(|mark| format!("is {mark}")),
    )?;
    refuse(
        Code::Owned,
        "another plan will produce windows of it",
        "Wait for that plan, or cancel it.",
        &|window| window.owner.map(|plan| format!("is owned by plan {plan}")),
    )?;
    refuse(
        Code::StaleToken,
        "windows of it were published again since",
        "Revert what came later first, or plan the windows again with the code that is to count.",
        &|window| (!window.is_the_plans).then(|| format!("holds the slice of token {}", window.slice)),
    )?;
    let shown = |at: Option<Instant>| at.map(|at| instant_text(pipeline.grid.zone(), at)).unwrap_or_default();
    refuse(
        Code::NotInState,
        "what was there before is not kept",
        "Plan the windows again with the code that is to count. pipeline_alter(pipeline, '{\"keep_previous\": \"7 days\"}') keeps what plans replace from then on.",
        &|window| {
            let lacks = window.kept_by.is_some() && !window.is_kept;
            lacks.then(|| match window.kept_until {
                Some(_) => format!("was kept until {}", shown(window.kept_until)),
                None => format!("was replaced at {} without keep_previous", shown(window.replaced_at)),
            })
        },
    )
}

/// Refuses the call while a claim of one of the windows is under way (40001).
pub fn require_idle(pipeline: &Pipeline, windows: &[Published]) -> Result<()> {
    let busy = |start, why: &str| {
        Error::new(
            Code::Serialization,
            format!("window {} is being handed out or written", pipeline.key_of(start)),
        )
        .detail(why.to_owned())
        .hint("Repeat the call.")
    };
    let Some(first) = windows.first() else { return Ok(()) };
    role::as_ledger(|| {
        if !epoch::ready() {
            return Err(busy(first.start, "Another transaction starts a new epoch of tokens."));
        }
        if pipeline.depends_on_past && !sequence::is_idle(pipeline.id) {
            return Err(busy(first.start, "Windows of this pipeline run one at a time, and one is leased."));
        }
        for window in windows {
            if !hold_window(pipeline.id, window.start) {
                return Err(busy(window.start, "The transaction of a claim is open."));
            }
            let (token, plan_id, is_open) = window.newest;
            let holder = Holder {
                token,
                pipeline_id: pipeline.id,
                plan_id,
                window_start: window.start,
                expired: true,
            };
            if is_open && !takeover::take_over(&holder) {
                return Err(busy(window.start, &format!("A worker writes under token {token}.")));
            }
            // A takeover takes it once more.
            (0..=i32::from(is_open)).for_each(|_| release_window(pipeline.id, window.start));
        }
        Ok(())
    })
}

const ISSUE: &str = "WITH drawn AS MATERIALIZED (SELECT pg_catalog.nextval('backfill.token_seq') AS token)
    INSERT INTO backfill.run_data
        (token, pipeline_id, window_start, window_end, turn, attempt, seq, in_order, run_kind, pool_id, pool_slot,
         pool_gen, limit_slot, limit_gen, role, code_version, as_of, started_at, expires_at, allow_shrink, restores)
    SELECT d.token, r.pipeline_id, r.window_start, r.window_end, r.turn + 1, 0, $3, false,
           CASE WHEN p.token IS NULL THEN 'withdrawn' ELSE 'reverted' END, 0, 0,
           d.token, 0, d.token, $4, p.code_version, COALESCE(p.as_of, $5), $5, $5, $6, $7
    FROM drawn d, backfill.run_data r LEFT JOIN backfill.run_data p ON p.token = $2
    WHERE r.token = $1
    ON CONFLICT DO NOTHING
    RETURNING token";

/// A token under which this transaction puts back what the window held.
pub fn issue(pipeline: &Pipeline, window: &Published, reason: &str) -> Result<i64> {
    let by = role::name(role::caller());
    let args = [
        window.newest.0.into(),
        window.previous.into(),
        pipeline.position_of(window.start).into(),
        by.as_str().into(),
        datum::clock().into(),
        reason.into(),
        window.made_by.filter(|_| window.previous.is_some()).into(),
    ];
    role::as_ledger(|| spi::first(ISSUE, &args, |row| row.at(1))).ok_or_else(|| {
        Error::new(
            Code::Serialization,
            format!("window {} was handed out meanwhile", pipeline.key_of(window.start)),
        )
        .detail("It got another token, or this transaction's snapshot is older than its newest one.")
        .hint("Roll back and repeat the call.")
    })
}

/// Marks that say of a slice that comes back that it was out of date.
const MARKED: &str = "SELECT w.window_start, m.reason
    FROM ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) AS w (window_start, token)
    JOIN backfill.mark_data m ON m.pipeline_id = $1 AND m.window_start = w.window_start AND m.mark = 'stale'
      AND m.lifted_at IS NULL AND m.token >= w.token";

/// Where slices changed, or were skipped, with the newest token of that.
const CHANGED: &str = "SELECT c.window_start, pg_catalog.max(c.token) FROM (
        SELECT d.window_start, d.token FROM (
            SELECT r.window_start, r.token, r.digest, r.run_kind,
                   pg_catalog.lag(r.digest) OVER (PARTITION BY r.window_start ORDER BY r.turn) AS before
            FROM backfill.run_data r WHERE r.pipeline_id = $1 AND r.published_at IS NOT NULL
        ) d WHERE (d.digest IS NULL OR d.digest IS DISTINCT FROM d.before) AND d.run_kind <> 'adopted'
        UNION ALL
        SELECT m.window_start, m.token + 1 FROM backfill.mark_data m
        WHERE m.pipeline_id = $1 AND m.mark = 'skipped' AND m.lifted_at IS NULL
    ) c GROUP BY c.window_start";

/// Slices that come back and were out of date before, each with why. Under their new tokens nothing else would tell.
pub fn stale_before(pipeline: &Pipeline, windows: &[Published]) -> Vec<(Instant, String)> {
    let previous = || windows.iter().filter_map(|window| Some((window.start, window.previous?)));
    let (starts, tokens): (Vec<Instant>, Vec<i64>) = previous().unzip();
    role::as_ledger(|| {
        let args = [pipeline.id.into(), starts.into(), tokens.into()];
        let mut stale = spi::latest_bulk(MARKED, &args, |row| (row.at(1), row.at::<String>(2)));
        if pipeline.depends_on_past {
            let mut changes = spi::latest_bulk(CHANGED, &[pipeline.id.into()], |row| (row.at(1), row.at(2)));
            // What comes back changed when it was made.
            changes.retain(|(start, _)| windows.binary_search_by_key(start, |window| window.start).is_err());
            changes.extend(previous());
            changes.sort_unstable();
            let mut changes = changes.into_iter().peekable();
            let mut newest = 0;
            for (start, token) in previous() {
                while let Some((_, change)) = changes.next_if(|(changed, _)| *changed < start) {
                    newest = newest.max(change);
                }
                if token < newest && stale.iter().all(|(marked, _)| *marked != start) {
                    stale.push((start, "a window before it changed after it was built".to_owned()));
                }
            }
        }
        stale
    })
}

const REVERT: &str = "UPDATE backfill.plan_data
    SET state = 'reverted', reverted_by = $2, reverted_at = pg_catalog.clock_timestamp(), revert_reason = $3
    WHERE plan_id = $1";

/// Writes down that the plan is reverted, and which of its windows hold what was out of date before.
pub fn note(pipeline: &Pipeline, plan: &Plan, stale: Vec<(Instant, String)>, reason: &str) {
    let by = role::name(role::caller());
    role::as_ledger(|| {
        mark::mark_again(
            Mark::Stale,
            pipeline.id,
            stale,
            &format!("plan {} was reverted: {reason}", plan.id),
            &by,
        );
        spi::run(REVERT, &[plan.id.into(), by.as_str().into(), reason.into()]);
    });
    plan::note(plan.id, "reverted", Some(reason));
}
