//! Exchanging the slices of several windows in one transaction.
//!
//! One after the other, so that each is written in the way that takes least. Where that breaks a unique key, rows may have moved
//! from one window to another: all of it is taken back to a savepoint, and begun again with the rows of all windows deleted
//! before any are inserted. Nobody sees a difference, and what is broken then is broken by the new rows themselves.

use crate::error::{self, Code, Error, Result};
use crate::ledger::gate;
use crate::ledger::publication::{self, Closing, Place};
use crate::ledger::run::{self, Ending, Run};
use crate::ledger::source::{Built, Source};
use crate::ledger::strategy::Strategy;
use crate::postgres::scratch::Scratch;
use crate::postgres::segment::Segment;
use crate::postgres::{settings, subtransaction};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::PgSqlErrorCode::{ERRCODE_EXCLUSION_VIOLATION, ERRCODE_UNIQUE_VIOLATION};

/// A window whose slice is exchanged with others.
pub trait Window {
    /// What becomes of the run.
    const CLOSING: Closing;

    /// The run that writes it, behind its fence, and its slice.
    fn open(&self) -> Result<(Run, Segment)>;

    /// Whether it gets other rows; else the run stands for those that are there.
    fn is_replaced(&self) -> bool;

    /// The new rows, and why they may be few.
    fn build(&self, run: &Run, target: &Segment) -> Result<(Built, Option<String>)>;
}

/// How many windows an error names.
const NAMED: usize = 5;

/// Refuses what cannot be done while something speaks against windows: `found`, each with its name.
pub fn require_none(cannot: &str, code: Code, why: &str, hint: &str, found: Vec<String>) -> Result<()> {
    let named = found[..found.len().min(NAMED)].join("; ");
    let detail = match found.len() {
        0 => return Ok(()),
        1..=NAMED => format!("{named}."),
        count => format!("{named}; and {} more.", count - NAMED),
    };
    Err(Error::new(code, format!("{cannot}: {why}")).detail(detail).hint(hint))
}

/// Exchanges all of them, for a call that holds the pipeline's decisions to the end of its transaction. Waits for whoever holds their rows, but not for long (55P03).
pub fn exchange<W: Window>(windows: &[W], source: &Source) -> Result<()> {
    let caught = match subtransaction::attempt(|| one_by_one(windows, source)) {
        Ok(outcome) => return outcome,
        Err(caught) => caught,
    };
    match is_broken_key(&caught) && windows.len() > 1 {
        true => cleared_first(windows, source, caught),
        false => error::rethrow(caught),
    }
}

fn is_broken_key(caught: &CaughtError) -> bool {
    let CaughtError::PostgresError(report) = caught else { return false };
    [ERRCODE_UNIQUE_VIOLATION, ERRCODE_EXCLUSION_VIOLATION].contains(&report.sql_error_code())
}

fn one_by_one<W: Window>(windows: &[W], source: &Source) -> Result<()> {
    let scratch = Scratch::new();
    for window in windows {
        pgrx::check_for_interrupts!();
        settings::with_patience(|| scratch.run(|| by_itself(window, source)))?;
    }
    Ok(())
}

fn by_itself<W: Window>(window: &W, source: &Source) -> Result<()> {
    let (run, target) = window.open()?;
    if window.is_replaced() {
        let (built, consent) = window.build(&run, &target)?;
        let place = Place { target: &target, stage: None };
        publication::write(&run, place, source, built, Strategy::Auto, consent, W::CLOSING)?;
    } else {
        stays(&run, &target)?;
    }
    gate::dismiss(run.token);
    Ok(())
}

fn stays(run: &Run, target: &Segment) -> Result<()> {
    let held = target.measure();
    let (rows, digest) = (Some(held.rows as i64), Some(held.digest.to_string()));
    run::finish(run, &Ending { rows, digest, ..Ending::default() })
}

/// `broken` is why it was not done one by one.
fn cleared_first<W: Window>(windows: &[W], source: &Source, broken: CaughtError) -> Result<()> {
    let mut cleared = Vec::with_capacity(windows.len());
    for window in windows {
        pgrx::check_for_interrupts!();
        let (run, target) = window.open()?;
        // It would delete or change rows of other tables that refer to rows which come again.
        if target.table.referrer().is_some_and(|referrer| referrer.acts) {
            error::rethrow(broken);
        }
        let gone = window
            .is_replaced()
            .then(|| settings::with_patience(|| publication::clear(&run, &target, source)));
        cleared.push((window, run, target, gone));
    }
    let scratch = Scratch::new();
    for (window, run, target, gone) in cleared {
        pgrx::check_for_interrupts!();
        let fill = || match gone {
            None => stays(&run, &target),
            Some(gone) => {
                let (built, consent) = window.build(&run, &target)?;
                publication::fill(&run, &target, source, gone, built, consent, W::CLOSING)
            }
        };
        settings::with_patience(|| scratch.run(fill))?;
        gate::dismiss(run.token);
    }
    Ok(())
}
