//! Replacing the slice of a window.

use crate::error::{Code, Error, Result, answer, faithful};
use crate::ledger::audit;
use crate::ledger::run::{self, Ending, Run};
use crate::ledger::slice;
use crate::ledger::stage::{self, Purpose, Stage};
use crate::ledger::strategy::Strategy;
use crate::ledger::version;
use crate::postgres::author::Author;
use crate::postgres::batch::Batch;
use crate::postgres::comparison::Comparison;
use crate::postgres::composite::{Composite, composite, value};
use crate::postgres::executor::{self, Pair, Sight};
use crate::postgres::query::{self, Select};
use crate::postgres::rows::Rows;
use crate::postgres::segment::{Measure, Segment};
use crate::postgres::{quote, role, settings, spi, table, target};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// What a call of `replace_partition` asks for, beside its token.
#[derive(Debug, Default)]
struct Wish {
    query: Option<String>,
    staging: Option<pg_sys::Oid>,
    allow_shrink: Option<String>,
    /// A person has seen the rows and takes them as they are.
    is_accepted: bool,
    /// The caller's own `search_path`.
    path: String,
}

/// What a call did to the slice.
struct Replacement {
    strategy: Strategy,
    rows: u64,
    /// How many rows the slice has that it had not, and the other way round.
    inserted: u64,
    deleted: u64,
    changed: bool,
    digest: String,
    /// Why the slice was allowed to shrink, where it needed that.
    allow_shrink: Option<String>,
}

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
    let source = Source::of(&run, &target, wish)?;
    let built = source.build(&run, &target)?;
    built.inside(&run, &target)?;
    if !wish.is_accepted {
        audit::check(&run, &built.rows)?;
    }
    let replacement = publish(&run, &target, &source, built, strategy, consent(&run, wish), finish)?;
    Ok(composite(
        "replacement",
        vec![
            value(token),
            value(replacement.strategy.name()),
            value(replacement.rows as i64),
            value(replacement.inserted as i64),
            value(replacement.deleted as i64),
            value(replacement.changed),
            value(replacement.digest),
        ],
    ))
}

/// Publishes the stage of a token, whatever it holds, for that reason.
pub fn replace_from_stage(token: i64, reason: &str) -> Result<Composite> {
    let wish = Wish { allow_shrink: Some(reason.to_owned()), is_accepted: true, ..Wish::default() };
    replace(token, None, &wish, true)
}

fn attempt(token: i64, wish: &Wish) -> Result<Option<Error>> {
    let run = run::fence(token)?;
    let target = open(&run)?;
    let source = Source::of(&run, &target, wish)?;
    let built = source.build(&run, &target)?;
    let consent = consent(&run, wish);
    // Before anything is written, so that what is refused can be kept in the same transaction.
    let refusal = built
        .inside(&run, &target)
        .and_then(|()| guard(&run, &target, target.count(), built.rows.count(), consent.as_deref()))
        .and_then(|_| audit::check(&run, &built.rows));
    match refusal {
        Ok(()) => publish(&run, &target, &source, built, Strategy::Auto, consent, true).map(|_| None),
        Err(refusal) => {
            if Stage::find(token).is_none() {
                let stage = Stage::create(&run, target.table.oid, Purpose::Keeping);
                stage.open_to(source.author.role());
                source.run(&run, || {
                    table::insert(&stage.table(), &built.columns(), built.rows.batch());
                });
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
fn open(run: &Run) -> Result<Segment> {
    let pipeline = &run.pipeline;
    let (Some(oid), Some(column)) = (pipeline.target, pipeline.slice_column.as_deref()) else {
        return Err(Error::new(Code::NotInState, format!("pipeline \"{}\" has no target", pipeline.name))
            .detail("Its slices lie outside this database, or in no table that the ledger knows.")
            .hint(format!(
                "Write them under token {0} where they belong, then SELECT backfill_finish({0}).",
                run.token
            )));
    };
    let zone = &pipeline.grid.at(run.window_start).grid.zone;
    Segment::open(oid, column, zone, [run.window_start, run.window_end])
}

/// Where the new rows come from.
struct Source {
    author: Author,
    text: String,
    /// The `search_path` that the text is read under.
    path: String,
    /// The columns by name; `None` matches them by position.
    columns: Option<Vec<String>>,
    /// The lease's own query must still be what the lease was given for.
    own: bool,
}

/// New rows, and the columns of the target that they hold.
struct Built {
    columns: Vec<String>,
    rows: Rows,
}

impl Source {
    /// A query or a staging table that the call gives, else the token's stage, else the lease's query.
    fn of(run: &Run, target: &Segment, wish: &Wish) -> Result<Self> {
        if wish.query.is_some() && wish.staging.is_some() {
            return Err(Error::new(Code::InvalidParameter, "both query and staging are given")
                .detail("A slice is built from one of them.")
                .hint("Leave one of the two out."));
        }
        if let Some(text) = &wish.query {
            return Ok(Self {
                author: Author::Caller,
                text: text.clone(),
                path: wish.path.clone(),
                columns: None,
                own: false,
            });
        }
        if let Some(staging) = wish.staging {
            return match stage::token_of(staging) {
                Some(token) if token != run.token => Err(Error::new(
                    Code::InvalidParameter,
                    format!("{} is the stage of another token", quote::relation(staging)),
                )
                .detail(format!("It belongs to token {token}; the call is made under token {}.", run.token))
                .hint(format!("SELECT backfill_stage({}) gives this token its own stage.", run.token))),
                _ => Self::table(staging, target, &wish.path),
            };
        }
        if let Some(stage) = Stage::find(run.token) {
            stage.open_to(role::caller());
            return Self::table(stage.relation, target, &wish.path);
        }
        let Some(text) = run.query.clone() else {
            return Err(Error::new(Code::InvalidParameter, "there are no rows to publish")
                .detail(format!(
                    "Pipeline \"{}\" has no query, token {} has no stage, and the call gives neither query nor staging.",
                    run.pipeline.name, run.token
                ))
                .hint(format!(
                    "COPY the rows into the table that SELECT backfill_stage({0}) names, or give query or staging, then SELECT * FROM replace_partition({0}, ...).",
                    run.token
                )));
        };
        // It also writes as the pipeline's owner: whoever sets it off must be allowed to write there.
        target::require_write(target.table.oid, role::caller())?;
        Ok(Self {
            author: Author::named(&run.pipeline.owner)?,
            text,
            path: settings::with_temporary_last(run.query_path.as_deref().unwrap_or_default()),
            columns: None,
            own: true,
        })
    }

    /// The rows of a table, its columns matched by name. What the target always generates is left to it.
    fn table(table: pg_sys::Oid, target: &Segment, path: &str) -> Result<Self> {
        let given = table::columns(table);
        let known = |name: &str| target.table.columns.iter().any(|column| column.name == name);
        if let Some(extra) = given.iter().find(|column| !known(&column.name)) {
            return Err(Error::new(
                Code::InvalidParameter,
                format!(
                    "{} has a column \"{}\" that the target has not",
                    quote::relation(table),
                    extra.name
                ),
            )
            .detail(format!(
                "The columns of {} are {}.",
                target.table.shown(),
                table::list(&target.table.writable())
            ))
            .hint("Columns of a staging table are matched by name: drop or rename those that the target has not."));
        }
        let mut columns = target.table.writable();
        columns.retain(|name| given.iter().any(|column| column.name == *name));
        Ok(Self {
            author: Author::Caller,
            text: format!("SELECT {} FROM {}", table::list(&columns), quote::relation(table)),
            path: path.to_owned(),
            columns: Some(columns.into_iter().map(str::to_owned).collect()),
            own: false,
        })
    }

    /// Runs something in the name and under the settings of the source.
    fn run<T>(&self, run: &Run, f: impl FnOnce() -> T) -> T {
        self.author.run(|| settings::for_query(&run.time_zone(), &self.path, f))
    }

    fn build(&self, run: &Run, target: &Segment) -> Result<Built> {
        if self.own {
            self.require_version(run)?;
        }
        self.run(run, || {
            let select = Select::read(&self.text)?;
            let writable = target.table.writable();
            let columns = match &self.columns {
                Some(columns) => columns.clone(),
                // A longer query is PostgreSQL's to refuse, a shorter one leaves defaults.
                None => writable.iter().take(select.width()).map(|name| (*name).to_owned()).collect(),
            };
            let slice = columns.iter().position(|name| *name == target.column);
            let Some(slice) = slice else {
                return Err(Error::new(
                    Code::InvalidParameter,
                    format!("the new rows have no column \"{}\"", target.column),
                )
                .detail(format!(
                    "They have the first {} of the columns {} of {}, so that nothing says which window a row belongs to.",
                    columns.len(),
                    table::list(&writable),
                    target.table.shown()
                ))
                .hint("Columns of a query are matched by position, as INSERT ... SELECT does; those of a staging table by name."));
            };
            let bounds = Pair {
                type_oid: pg_sys::TIMESTAMPTZOID,
                values: [run.window_start, run.window_end].map(|at| pg_sys::Datum::from(at.0)),
            };
            let mut rows = Rows::new(target.bounds, slice);
            let names: Vec<&str> = columns.iter().map(String::as_str).collect();
            let query = select.rows_for(&target.table, &names);
            faithful(|| unsafe {
                executor::select(query, select.text(), bounds, Sight::Transaction, None, &mut rows);
            });
            Ok(Built { columns, rows })
        })
    }

    /// The version of a query that the call gave in place of the pipeline's own.
    fn overriding_version(&self, run: &Run) -> Result<Option<String>> {
        if self.own || self.columns.is_some() || run.query.is_none() {
            return Ok(None);
        }
        let version = self.run(run, || Select::read(&self.text))?.fingerprint();
        version::record(run.pipeline.id, &version, &self.text, &settings::search_path());
        Ok(Some(version))
    }

    /// Refuses to run a query that is not any more what the lease was given for (BF004).
    fn require_version(&self, run: &Run) -> Result<()> {
        let path = run.query_path.as_deref().unwrap_or_default();
        let now = query::fingerprint(&run.pipeline.owner, &self.text, path)?;
        if run.code_version.as_deref() == Some(now.as_str()) {
            return Ok(());
        }
        Err(Error::new(
            Code::OutOfDate,
            format!("the query of pipeline \"{}\" changed since the lease was given", run.pipeline.name),
        )
        .detail(format!(
            "Token {} stands for version {}; the query is version {now} now.",
            run.token,
            run.code_version.as_deref().unwrap_or("(none)")
        ))
        .hint(format!(
            "SELECT backfill_release({}), then claim again; a plan made for the old version must be planned again.",
            run.token
        )))
    }
}

impl Built {
    fn columns(&self) -> Vec<&str> {
        self.columns.iter().map(String::as_str).collect()
    }

    /// Refuses rows outside the window (BF005).
    fn inside(&self, run: &Run, target: &Segment) -> Result<()> {
        let (outside, count) = (self.rows.outside(), self.rows.count());
        if outside == 0 {
            return Ok(());
        }
        let bounds = settings::for_query(&run.time_zone(), "", || target.bounds.text());
        let column = &target.column;
        Err(Error::new(
            Code::OutsideWindow,
            format!("{outside} of {count} new rows lie outside window {}", run.window_key),
        )
        .detail(format!(
            "Column \"{column}\" must be in {bounds}; such rows have {}.",
            self.rows.examples().join(", ")
        ))
        .hint(format!("Restrict the rows to {0} >= $1 AND {0} < $2.", quote::identifier(column))))
    }
}

/// Refuses a slice that lost too much (BF006) unless there is a reason, which is then given back to be kept.
fn guard(
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
        .hint(format!(
            "If that is right: SELECT * FROM replace_partition({}, allow_shrink => 'why'), or a plan with allow_shrink.",
            run.token
        )))
}

/// Exchanges the slice for the new rows and writes the ledger.
fn publish(
    run: &Run,
    target: &Segment,
    source: &Source,
    mut built: Built,
    strategy: Strategy,
    consent: Option<String>,
    finish: bool,
) -> Result<Replacement> {
    let replacement = match unchanged(run, target, &mut built.rows) {
        Some(held) => Replacement::none(strategy.or(Strategy::Diff), held),
        None => {
            let comparison = strategy.compare(target, &built.columns(), &built.rows, source.author.role())?;
            match comparison {
                Some(comparison) => write_difference(run, target, source, &mut built, &comparison, consent)?,
                None => write_rows(run, target, source, &mut built, strategy.or(Strategy::Rows), consent)?,
            }
        }
    };
    if let Some(stage) = Stage::find(run.token) {
        stage.drop();
    }
    let ending = Ending {
        rows: Some(replacement.rows as i64),
        digest: Some(replacement.digest.clone()),
        allow_shrink: replacement.allow_shrink.clone(),
        code_version: source.overriding_version(run)?,
        metrics: None,
    };
    if finish {
        run::finish(run, &ending)?
    } else {
        run::record(run, &ending)?
    }
    Ok(replacement)
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

fn write_rows(
    run: &Run,
    target: &Segment,
    source: &Source,
    built: &mut Built,
    strategy: Strategy,
    consent: Option<String>,
) -> Result<Replacement> {
    let rows = built.rows.count();
    let deleted = source.run(run, || target.delete());
    let allow_shrink = guard(run, target, deleted, rows, consent.as_deref())?;
    let columns = built.columns();
    let inserted = source.run(run, || table::insert(&target.table.shown(), &columns, built.rows.batch()));
    let held = if target.may_differ(&columns) {
        target.measure()
    } else {
        Measure { rows: target.count(), digest: built.rows.digest() }
    };
    if inserted != rows || held.rows != rows {
        return Err(disturbed(
            run,
            format!(
                "{deleted} rows were deleted and {inserted} of {rows} inserted; {} holds {} rows in the window now.",
                target.table.shown(),
                held.rows
            ),
        ));
    }
    let digest = held.digest.to_string();
    Ok(Replacement { strategy, rows, inserted, deleted, changed: true, digest, allow_shrink })
}

fn write_difference(
    run: &Run,
    target: &Segment,
    source: &Source,
    built: &mut Built,
    comparison: &Comparison,
    consent: Option<String>,
) -> Result<Replacement> {
    let Comparison { before, gone, changed, fresh, .. } = comparison;
    let rows = built.rows.count();
    let allow_shrink = guard(run, target, *before, rows, consent.as_deref())?;
    let columns = built.columns();
    // The ledger's digest is of all columns, as they are in the table.
    let digested = if target.may_differ(&columns) { target.table.writable() } else { vec![] };
    let wanted = [gone, changed, fresh].map(Batch::count);
    // Rows go before others come, so that these may take their places in unique indexes.
    let written = source.run(run, || {
        [
            target.delete_at(gone),
            target.update_at(&columns, changed),
            table::insert(&target.table.shown(), &columns, fresh),
        ]
    });
    let held = comparison.look_again(target, &digested);
    if written != wanted || held.rows != rows || held.kept != comparison.kept() {
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
    let [gone, changed, fresh] = wanted;
    Ok(Replacement {
        strategy: Strategy::Diff,
        rows,
        inserted: changed + fresh,
        deleted: changed + gone,
        changed: gone + changed + fresh > 0,
        digest: digest.to_string(),
        allow_shrink,
    })
}

/// What was written is not what is there (40001).
fn disturbed(run: &Run, detail: String) -> Error {
    Error::new(Code::Serialization, format!("window {} does not hold what was written", run.window_key))
        .detail(detail)
        .hint("Repeat the transaction. If it happens again, a session writes there without a fence, a trigger swallows or adds rows, or row-level security hides rows from the writer.")
}
