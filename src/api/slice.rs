//! Replacing the slice of a window.

use crate::error::{Code, Error, Result, answer};
use crate::ledger::plan_stage::PlanStage;
use crate::ledger::publication::{self, Closing, Place, Replacement, guard};
use crate::ledger::retarget;
use crate::ledger::run::{self, Run};
use crate::ledger::source::{Built, Source, Wish};
use crate::ledger::stage::{Purpose, Stage};
use crate::ledger::strategy::Strategy;
use crate::ledger::{audit, gate, swap, verification};
use crate::postgres::composite::{Composite, composite, value};
use crate::postgres::segment::{Measure, Segment};
use crate::postgres::table::{self, Table};
use crate::postgres::{role, settings, spi};
use pgrx::pg_sys;
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn replace_partition(
    token: Option<i64>,
    query: Option<String>,
    staging: Option<pg_sys::Oid>,
    strategy: Option<String>,
    allow_shrink: Option<String>,
    finish: Option<bool>,
) -> Composite {
    let wish = Wish { query, staging, allow_shrink, is_accepted: false, path: settings::session_path() };
    answer(settings::pinned(|| {
        replace(run::require_token(token)?, strategy.as_deref(), &wish, finish.unwrap_or(true))
    }))
}

/// One attempt of `backfill_work`: the lease's query or stage, published; or, where the result is refused, the
/// refused rows in the token's stage and the error as a row.
#[pg_extern(sql = false)]
fn replace_or_keep(token: Option<i64>) -> Composite {
    let wish = Wish { path: settings::session_path(), ..Wish::default() };
    let refusal = answer(settings::pinned(|| attempt(run::require_token(token)?, &wish)));
    let (sqlstate, error) = refusal.map(|error| (error.code.sqlstate(), full_text(&error))).unzip();
    composite("attempt", vec![sqlstate.and_then(value), error.and_then(value)])
}

fn full_text(error: &Error) -> String {
    match &error.detail {
        Some(detail) => format!("{}. {detail}", error.message),
        None => error.message.clone(),
    }
}

#[pg_extern(sql = false)]
fn backfill_stage(token: Option<i64>) -> pg_sys::Oid {
    answer(settings::pinned(|| stage(run::require_token(token)?)))
}

/// The token's stage goes to quarantine, if it has one.
pub fn quarantine(token: i64, reason: &str, sqlstate: Option<&str>) -> Result<()> {
    if let Some(stage) = Stage::find(token) {
        let owner = role::as_ledger(|| spi::first(OWNER, &[token.into()], |row| row.at::<String>(1)));
        stage.quarantine(&owner.expect("a stage belongs to a pipeline"), reason, sqlstate);
    }
    Ok(())
}

const OWNER: &str = "SELECT p.owner FROM backfill.stage_data s
    JOIN backfill.pipeline_data p ON p.pipeline_id = s.pipeline_id WHERE s.token = $1";

fn stage(token: i64) -> Result<pg_sys::Oid> {
    // The fence makes two sessions that ask for the stage of one token come one after the other.
    let run = run::fence(token)?;
    let stage = match Stage::find(token) {
        Some(stage) => stage,
        None => {
            let target = open(&run)?;
            Stage::create(&run, target.table.oid, Purpose::Loading)
        }
    };
    stage.open_to(role::caller());
    Ok(stage.relation)
}

fn replace(token: i64, strategy: Option<&str>, wish: &Wish, finish: bool) -> Result<Composite> {
    let run = run::fence(token)?;
    let strategy = Strategy::named(strategy)?;
    let target = open(&run)?;
    if run.verifies() {
        let source = Source::of(&run, &target, wish)?;
        let built = source.build(&run, &target)?;
        built.inside(&run, &target)?;
        let Measure { rows, digest } = verification::of_rows(&run, &target, &source, built, finish)?;
        let digest = digest.to_string();
        return Ok(replacement(token, "none", [rows, 0, 0], false, digest));
    }
    let (stage, source, built) = build(&run, &target, wish, strategy)?;
    built.inside(&run, &target)?;
    if !wish.is_accepted {
        audit::check(&run, &built.rows)?;
    }
    let closing = if finish { Closing::Finish } else { Closing::Record };
    let place = Place { target: &target, stage: stage.as_ref() };
    let done = publication::write(&run, place, &source, built, strategy, consent(&run, wish), closing)?;
    let Replacement { strategy, rows, inserted, deleted, changed, digest, .. } = done;
    Ok(replacement(token, strategy.name(), [rows, inserted, deleted], changed, digest))
}

/// The attributes of `backfill.replacement`; `rows` are those that the slice has, that came, and that went.
fn replacement(token: i64, strategy: &str, rows: [u64; 3], changed: bool, digest: String) -> Composite {
    let [rows, inserted, deleted] = rows.map(|rows| value(rows as i64));
    composite(
        "replacement",
        vec![value(token), value(strategy), rows, inserted, deleted, value(changed), value(digest)],
    )
}

/// The new rows of a run, for the target, or first for the stage of its plan where that publishes all windows at once.
fn build(
    run: &Run,
    target: &Segment,
    wish: &Wish,
    strategy: Strategy,
) -> Result<(Option<Segment>, Source, Built)> {
    let Some(relation) = run.plan_stage else {
        let source = Source::of(run, target, wish)?;
        if strategy == Strategy::Swap {
            // Before somebody waits for rows that cannot be used.
            swap::require(run, target, &source)?;
        }
        let built = source.build(run, target)?;
        return Ok((None, source, built));
    };
    let stage = PlanStage::open(relation, run)?;
    let source = Source::of(run, &stage, wish)?;
    let built = source.build(run, &stage)?;
    Ok((Some(stage), source, built))
}

/// Publishes the stage of a token, whatever it holds, for that reason and under the caller's `search_path`.
pub fn replace_from_stage(token: i64, reason: &str, path: String) -> Result<Composite> {
    let wish = Wish { allow_shrink: Some(reason.to_owned()), is_accepted: true, path, ..Wish::default() };
    replace(token, None, &wish, true)
}

fn attempt(token: i64, wish: &Wish) -> Result<Option<Error>> {
    let run = run::fence(token)?;
    let target = open(&run)?;
    if run.verifies() {
        let source = Source::of(&run, &target, wish)?;
        let built = source.build(&run, &target)?;
        // What is refused would be published by nobody, and is not kept.
        if let Err(refusal) = built.inside(&run, &target) {
            return Ok(Some(refusal));
        }
        verification::of_rows(&run, &target, &source, built, true)?;
        gate::look_now();
        return Ok(None);
    }
    let (stage, source, built) = build(&run, &target, wish, Strategy::Auto)?;
    let consent = consent(&run, wish);
    // Before anything is written, so that what is refused can be kept in the same transaction.
    let refusal = built
        .inside(&run, &target)
        .and_then(|()| guard(&run, &target, target.count(), built.rows.count(), consent.as_deref()))
        .and_then(|_| audit::check(&run, &built.rows))
        .and_then(|()| match stage {
            Some(_) => Ok(()),
            None => publication::require_version(&run, &source),
        });
    match refusal {
        Ok(()) => {
            let place = Place { target: &target, stage: stage.as_ref() };
            publication::write(&run, place, &source, built, Strategy::Auto, consent, Closing::Finish)?;
            // An error at COMMIT would end the call that works through many windows.
            gate::look_now();
            Ok(None)
        }
        Err(refusal) => {
            if Stage::find(token).is_none() {
                let stage = Stage::create(&run, target.table.oid, Purpose::Keeping);
                stage.open_to(source.author.role());
                source.run(&run, || {
                    table::insert(&stage.table(), &built.columns(), built.rows.batch());
                });
                run::note_built(&run, source.version(&run).as_deref());
            }
            Ok(Some(refusal))
        }
    }
}

/// The reason that was given for a slice that shrinks: with the call, or with the plan.
fn consent(run: &Run, wish: &Wish) -> Option<String> {
    [&wish.allow_shrink, &run.allow_shrink]
        .into_iter()
        .flatten()
        .find(|reason| !reason.trim().is_empty())
        .cloned()
}

/// The target of a run, locked.
pub fn open(run: &Run) -> Result<Segment> {
    let pipeline = &run.pipeline;
    let Some(oid) = pipeline.target else {
        return Err(Error::new(Code::NotInState, format!("pipeline \"{}\" has no target", pipeline.name))
            .detail("Its slices lie outside this database, or in no table that the ledger knows.")
            .hint(if run.verifies() {
                format!(
                    "Build them aside, then SELECT backfill_finish({}, rows, digest), which is held to what the slice has.",
                    run.token
                )
            } else {
                format!(
                    "Write them under token {0} where they belong, then SELECT backfill_finish({0}).",
                    run.token
                )
            }));
    };
    retarget::hold(pipeline)?;
    pipeline.segment(Table::open(oid)?, [run.window_start, run.window_end])
}
