//! Exchanging the slice of a window for new rows, in the transaction that holds its fence.

use crate::error::{Code, Error, Result};
use crate::ledger::kept::Keeper;
use crate::ledger::mixture::{self, OnMixture};
use crate::ledger::plan_stage;
use crate::ledger::run::{self, Ending, Run};
use crate::ledger::slice;
use crate::ledger::source::{Built, Source};
use crate::ledger::stage::Stage;
use crate::ledger::strategy::Strategy;
use crate::ledger::swap;
use crate::postgres::author::Author;
use crate::postgres::batch::Batch;
use crate::postgres::comparison::Comparison;
use crate::postgres::rows::Rows;
use crate::postgres::segment::{Measure, Segment};
use crate::postgres::table;

/// What a call did to the slice.
pub struct Replacement {
    pub strategy: Strategy,
    pub rows: u64,
    /// How many rows the slice has that it had not, and the other way round.
    pub inserted: u64,
    pub deleted: u64,
    pub changed: bool,
    pub digest: String,
    /// Why the slice was allowed to shrink, where it needed that.
    pub allow_shrink: Option<String>,
}

/// Refuses a slice that lost too much (BF006) unless there is a reason, which is then given back to be kept.
pub fn guard(
    run: &Run,
    target: &Segment,
    before: u64,
    after: u64,
    consent: Option<&str>,
) -> Result<Option<String>> {
    let pipeline = &run.pipeline;
    if !slice::shrinks(before, after, pipeline.max_shrink) {
        return Ok(None);
    }
    if let Some(reason) = consent {
        return Ok(Some(reason.to_owned()));
    }
    let message = match after {
        0 => format!("window {} would become empty", run.window_key),
        _ => format!("window {} would lose {} of {before} rows", run.window_key, before - after),
    };
    Err(Error::new(Code::Shrunk, message)
        .detail(format!(
            "{} holds {before} rows in the window, the new slice {after}; pipeline \"{}\" may lose at most the share {} of a slice (max_shrink), and never all of it.",
            target.table.shown(),
            pipeline.name,
            pipeline.max_shrink
        ))
        .hint(match run.was_staged {
            true => format!(
                "The target got rows since the window was staged. If they may go: SELECT backfill_publish({}, allow_shrink => 'why').",
                run.plan_id
            ),
            false => format!(
                "If that is right: SELECT * FROM replace_partition({}, allow_shrink => 'why'), or a plan with allow_shrink.",
                run.token
            ),
        }))
}

/// What becomes of a run whose rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// It ends as done.
    Finish,
    /// It goes on.
    Record,
    /// It had ended when its rows were staged.
    Published,
}

/// Where new rows go: into the target, or first into the stage of a plan that publishes all windows at once.
#[derive(Clone, Copy)]
pub struct Place<'p> {
    pub target: &'p Segment,
    pub stage: Option<&'p Segment>,
}

/// Exchanges the slice for the new rows, or stages them, and writes the ledger.
pub fn write(
    run: &Run,
    place: Place,
    source: &Source,
    built: Built,
    strategy: Strategy,
    consent: Option<String>,
    closing: Closing,
) -> Result<Replacement> {
    if let Some(stage) = place.stage {
        return self::stage(run, place.target, stage, source, built, consent, closing);
    }
    require_version(run, source)?;
    let replacement = exchange(run, place.target, source, built, strategy, consent)?;
    close(run, source, &replacement, closing)?;
    Ok(replacement)
}

/// Refuses before anything is written what would mix code versions where that is not to be (BF007).
pub fn require_version(run: &Run, source: &Source) -> Result<()> {
    if run.pipeline.on_mixture != OnMixture::Refuse {
        return Ok(());
    }
    let version = source.version(run);
    mixture::Publication::of(run.token, version.as_deref()).map_or(Ok(()), |publication| publication.admit())
}

/// Puts the new rows of a window into the stage of its plan, which publishes all windows at once. What the target would
/// lose is looked at now, so that a person hears of it early, and once more then.
fn stage(
    run: &Run,
    target: &Segment,
    stage: &Segment,
    source: &Source,
    built: Built,
    consent: Option<String>,
    closing: Closing,
) -> Result<Replacement> {
    let allow_shrink = guard(run, target, target.count(), built.rows.count(), consent.as_deref())?;
    let built = plan_stage::completed(run, stage, source, built)?;
    let why = "nobody reads what an earlier attempt left in a stage".to_owned();
    let ledger = Source::written_by(Author::Role(stage.table.owner));
    let replacement = exchange(run, stage, &ledger, built, Strategy::Rows, Some(why))?;
    let replacement = Replacement { allow_shrink, ..replacement };
    close(run, source, &replacement, Closing::Record)?;
    if closing == Closing::Finish {
        run::finish(run, &Ending::default())?;
    }
    Ok(replacement)
}

fn exchange(
    run: &Run,
    target: &Segment,
    source: &Source,
    mut built: Built,
    strategy: Strategy,
    consent: Option<String>,
) -> Result<Replacement> {
    let keeper = Keeper::of(run);
    if let Some(held) = unchanged(run, target, &mut built.rows) {
        keeper.iter().for_each(|keeper| keeper.unchanged(target, held));
        return Ok(Replacement::none(strategy.or(Strategy::Diff), held));
    }
    if strategy == Strategy::Swap {
        let done = swap::write(run, target, source, &built, keeper.as_ref(), consent.as_deref())?;
        let digest = built.rows.digest().to_string();
        let (rows, deleted, allow_shrink) = (built.rows.count(), done.deleted, done.allow_shrink);
        let changed = rows + deleted > 0;
        return Ok(Replacement { strategy, rows, inserted: rows, deleted, changed, digest, allow_shrink });
    }
    let comparison = strategy.compare(target, &built.columns(), &built.rows, source.author.role())?;
    let exchange = Exchange { run, target, source, keeper };
    match comparison {
        Some(comparison) => exchange.write_difference(&mut built, &comparison, consent),
        None => exchange.fill(exchange.clear(), &mut built, strategy.or(Strategy::Rows), consent),
    }
}

fn close(run: &Run, source: &Source, replacement: &Replacement, closing: Closing) -> Result<()> {
    if let Some(stage) = Stage::find(run.token) {
        stage.drop()?;
    }
    let ending = Ending {
        rows: Some(replacement.rows as i64),
        digest: Some(replacement.digest.clone()),
        allow_shrink: replacement.allow_shrink.clone(),
        code_version: source.version(run),
        ..Ending::default()
    };
    match closing {
        Closing::Finish => run::finish(run, &ending),
        Closing::Record => run::record(run, &ending),
        Closing::Published => {
            run::published(run, &ending);
            Ok(())
        }
    }
}

/// What the target holds, if that is these rows already. It is looked at only if the ledger says that it should.
fn unchanged(run: &Run, target: &Segment, rows: &mut Rows) -> Option<Measure> {
    let digest = rows.digest();
    if slice::digest(run.pipeline.id, run.window_start) != Some(digest.to_string()) {
        return None;
    }
    let held = target.measure();
    (held == Measure { rows: rows.count(), digest }).then_some(held)
}

impl Replacement {
    /// Nothing was written.
    fn none(strategy: Strategy, held: Measure) -> Self {
        Self {
            strategy,
            rows: held.rows,
            inserted: 0,
            deleted: 0,
            changed: false,
            digest: held.digest.to_string(),
            allow_shrink: None,
        }
    }
}

/// How many rows were kept, if they are, and deleted.
pub struct Cleared {
    kept: Option<u64>,
    deleted: u64,
}

/// Deletes what a slice holds, before others are filled: what may only be there once may come back there.
pub fn clear(run: &Run, target: &Segment, source: &Source) -> Cleared {
    Exchange { run, target, source, keeper: Keeper::of(run) }.clear()
}

/// Fills a slice that was cleared, and writes the ledger.
pub fn fill(
    run: &Run,
    target: &Segment,
    source: &Source,
    cleared: Cleared,
    mut built: Built,
    consent: Option<String>,
    closing: Closing,
) -> Result<()> {
    let exchange = Exchange { run, target, source, keeper: None };
    let replacement = exchange.fill(cleared, &mut built, Strategy::Rows, consent)?;
    close(run, source, &replacement, closing)
}

/// The slice of a run while it is exchanged.
struct Exchange<'e> {
    run: &'e Run,
    target: &'e Segment,
    source: &'e Source,
    keeper: Option<Keeper>,
}

impl Exchange<'_> {
    /// Deletes what is there, and keeps it where that is asked for.
    fn clear(&self) -> Cleared {
        let Self { run, target, source, keeper } = self;
        let kept = keeper.as_ref().map(|keeper| keeper.keep(target));
        Cleared { kept, deleted: source.run(run, || target.delete()) }
    }

    /// Inserts the new rows where those of before were deleted.
    fn fill(
        &self,
        Cleared { kept, deleted }: Cleared,
        built: &mut Built,
        strategy: Strategy,
        consent: Option<String>,
    ) -> Result<Replacement> {
        let Self { run, target, source, keeper } = self;
        let rows = built.rows.count();
        let allow_shrink = guard(run, target, deleted, rows, consent.as_deref())?;
        let columns = built.columns();
        let inserted = source.run(run, || table::insert(&target.table.shown(), &columns, built.rows.batch()));
        let held = if target.may_differ(&columns) {
            target.measure()
        } else {
            Measure { rows: target.count(), digest: built.rows.digest() }
        };
        if inserted != rows || held.rows != rows || kept.is_some_and(|kept| kept != deleted) {
            return Err(disturbed(
                run,
                format!(
                    "{}{deleted} rows were deleted and {inserted} of {rows} inserted; {} holds {} rows in the window now.",
                    kept.map(|kept| format!("{kept} rows were kept, ")).unwrap_or_default(),
                    target.table.shown(),
                    held.rows
                ),
            ));
        }
        let digest = held.digest.to_string();
        let changed = inserted + deleted > 0;
        if let Some(keeper) = keeper.as_ref().filter(|_| !changed) {
            keeper.unchanged(target, held);
        }
        Ok(Replacement { strategy, rows, inserted, deleted, changed, digest, allow_shrink })
    }

    fn write_difference(
        &self,
        built: &mut Built,
        comparison: &Comparison,
        consent: Option<String>,
    ) -> Result<Replacement> {
        let Self { run, target, source, keeper } = self;
        let Comparison { before, gone, changed, fresh, .. } = comparison;
        let rows = built.rows.count();
        let allow_shrink = guard(run, target, *before, rows, consent.as_deref())?;
        let columns = built.columns();
        // The ledger's digest is of all columns, as they are in the table.
        let digested = if target.may_differ(&columns) { target.table.writable() } else { vec![] };
        let wanted = [gone, changed, fresh].map(Batch::count);
        let differs = wanted != [0; 3];
        let kept = keeper.as_ref().filter(|_| differs).map_or(*before, |keeper| keeper.keep(target));
        let written = source.run(run, || comparison.write(target, &columns));
        let held = comparison.look_again(target, &digested);
        if written != wanted || held.rows != rows || held.kept != comparison.kept() || kept != *before {
            return Err(disturbed(
                run,
                format!(
                    "{} of {} rows were deleted, {} of {} updated and {} of {} inserted, and {} of {} others stayed; {} holds {} rows in the window now.",
                    written[0],
                    wanted[0],
                    written[1],
                    wanted[1],
                    written[2],
                    wanted[2],
                    held.kept,
                    comparison.kept(),
                    target.table.shown(),
                    held.rows
                ),
            ));
        }
        let digest = if digested.is_empty() { built.rows.digest() } else { held.digest };
        if let Some(keeper) = keeper.as_ref().filter(|_| !differs) {
            keeper.unchanged(target, Measure { rows, digest });
        }
        let [gone, changed, fresh] = wanted;
        Ok(Replacement {
            strategy: Strategy::Diff,
            rows,
            inserted: changed + fresh,
            deleted: changed + gone,
            changed: differs,
            digest: digest.to_string(),
            allow_shrink,
        })
    }
}

/// What was written is not what is there (40001).
fn disturbed(run: &Run, detail: String) -> Error {
    Error::new(Code::Serialization, format!("window {} does not hold what was written", run.window_key))
        .detail(detail)
        .hint("Repeat the transaction. If it happens again, a session writes there without a fence, a trigger swallows or adds rows, or row-level security hides rows from the writer.")
}
