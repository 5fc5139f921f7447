//! Building a window again to see whether the same comes of it: the test that its slice is a function of the window alone.
//!
//! ```text
//!   backfill_verify ─▶ a plan with publish 'none', approved at once, over a sample of windows that have a slice
//!     claim ─▶ a lease of kind verify; the window shows leased, and then again what it showed before
//!       replace_partition, backfill_work: the rows are built, and held to what the target holds now
//!       backfill_finish(token, rows, digest): what a worker built elsewhere is held to what the ledger knows of the slice
//!     ─▶ a line in backfill.verification_data, in the transaction that ends the run
//! ```
//!
//! - Nothing of the target is written. The lease's `write_to` is NULL, its run is no proof for a protected target, and its
//!   effects are suppressed without a trace in the outbox.
//! - The plan owns its windows until each has ended in it, so that nobody replaces a slice that is being verified; a cancel
//!   frees them. Failed attempts are retried as those of any plan. They say nothing about the window.
//! - A run of this kind has no `published_at`. That alone keeps it out of whatever reads slices; what reads the newest run of
//!   a window leaves it out once it has ended (`sql/query/window_records.sql`).
//! - Rows are the same if their digests are, and counted as multisets: see [`Discrepancy`]. Which columns count is said in
//!   [`compared`]. Whether somebody changed the slice without a lease is seen by the ledger's digest, which is of all columns.
//! - Whoever may read the pipeline reads the counts, the names of columns and the likely cause, and no value of a row: he may
//!   not be allowed to read the target.

use crate::domain::purity::{Rule, Severity};
use crate::error::{Code, Error, Result};
use crate::ledger::compatible;
use crate::ledger::lint::{self, Finding};
use crate::ledger::run::{self, Ending, Run};
use crate::ledger::slice::{self, Slice};
use crate::ledger::source::{Built, Source};
use crate::ledger::stage::Stage;
use crate::postgres::discrepancy::{Columns, Discrepancy};
use crate::postgres::impurity;
use crate::postgres::segment::{Measure, Segment};
use crate::postgres::{quote, role, spi};
use pgrx::pg_sys;

/// What a verification found.
struct Verdict {
    same: bool,
    rows: [Option<i64>; 2],
    only: Option<[u64; 2]>,
    columns: Option<Vec<String>>,
    cause: Option<String>,
}

const STORE: &str = "INSERT INTO backfill.verification_data
        (token, pipeline_id, plan_id, window_start, slice_token, slice_version, code_version, same, rows_published,
         rows_rebuilt, only_published, only_rebuilt, columns, cause)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
    ON CONFLICT (token) DO UPDATE
    SET slice_token = excluded.slice_token, slice_version = excluded.slice_version, code_version = excluded.code_version,
        same = excluded.same, rows_published = excluded.rows_published, rows_rebuilt = excluded.rows_rebuilt,
        only_published = excluded.only_published, only_rebuilt = excluded.only_rebuilt, columns = excluded.columns,
        cause = excluded.cause, verified_at = excluded.verified_at";

impl Verdict {
    fn store(self, run: &Run, slice: &Slice, version: Option<&str>) {
        let only = |side: usize| self.only.map(|only| only[side] as i64);
        let args = [
            run.token.into(),
            run.pipeline.id.into(),
            run.plan_id.into(),
            run.window_start.into(),
            slice.token.into(),
            slice.code_version.as_deref().into(),
            version.into(),
            self.same.into(),
            self.rows[0].into(),
            self.rows[1].into(),
            only(0).into(),
            only(1).into(),
            self.columns.into(),
            self.cause.as_deref().into(),
        ];
        role::as_ledger(|| spi::run(STORE, &args));
    }
}

/// The slice that the run is held to (55000 where there is none any more).
fn slice_of(run: &Run) -> Result<Slice> {
    slice::current(run.pipeline.id, run.window_start).ok_or_else(|| {
        Error::new(Code::NotInState, format!("window {} has no slice any more", run.window_key))
            .detail(format!(
                "Its adoption was taken back after plan {} was made: there is nothing to compare with.",
                run.plan_id
            ))
            .hint(format!("SELECT backfill_fail({}, 'no slice', false).", run.token))
    })
}

/// Columns that a sequence numbers where they are left out.
const NUMBERED: &str = "SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND (a.attidentity <> '' OR EXISTS (
        SELECT FROM pg_catalog.pg_attrdef f
        JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = f.oid
            AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
        JOIN pg_catalog.pg_class s ON s.oid = d.refobjid AND s.relkind = 'S'
        WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum))";

/// The columns that are compared: those that the new rows give. What the target fills in by itself is not made by the code.
/// Nor is the stamp, nor numbers of a sequence, which a stage has drawn for rows that came without them.
fn compared<'b>(run: &Run, target: &Segment, source: &Source, given: &[&'b str]) -> Columns<'b> {
    let numbered = |table: pg_sys::Oid| -> Vec<String> {
        role::as_ledger(|| spi::latest(NUMBERED, &[table.into()], |row| row.at(1)))
    };
    let mut left_out = if source.is_table() { numbered(target.table.oid) } else { vec![] };
    left_out.extend(run.pipeline.stamp_column.clone());
    let (places, names): (Vec<usize>, Vec<&str>) =
        given.iter().copied().enumerate().filter(|(_, name)| left_out.iter().all(|out| out != name)).unzip();
    let place = |name: &String| names.iter().position(|given| given == name);
    let key = target.table.key().and_then(|key| key.iter().map(place).collect());
    Columns { names, places, key }
}

/// Holds the rows that a run has built to those that the target holds, keeps what comes of it, and ends the run if
/// `finishes`; answers what was built. The caller has passed the fence.
pub fn of_rows(
    run: &Run,
    target: &Segment,
    source: &Source,
    mut built: Built,
    finishes: bool,
) -> Result<Measure> {
    let slice = slice_of(run)?;
    let version = source.version(run);
    let given = built.columns();
    let columns = compared(run, target, source, &given);
    let found = Discrepancy::of(target, built.rows.batch(), &columns);
    let is_whole = columns.names == target.table.writable();
    // Where the rows are the same nobody asks for it.
    let whole = || if is_whole { found.held } else { target.measure() };
    let same = found.is_none();
    let known = || {
        changed_without_lease(run, target, &slice, whole())
            .or_else(|| ran_another_query(run, source, &slice, version.as_deref()))
            .or_else(|| known_cause(run, &slice, version.as_deref()))
            .or_else(|| changed_by_trigger(target))
    };
    let cause = match same {
        true => None,
        false => match known() {
            None if !source.is_table() && version == run.code_version => {
                impurity(run, found.only, target, &columns.names)?
            }
            known => known,
        }
        .or_else(|| Some(guess(found.only))),
    };
    let verdict = Verdict {
        same,
        rows: [found.held.rows, found.built.rows].map(|rows| Some(rows as i64)),
        only: found.only,
        columns: (!found.columns.is_empty()).then_some(found.columns),
        cause,
    };
    verdict.store(run, &slice, version.as_deref());
    if let Some(stage) = Stage::find(run.token) {
        stage.drop()?;
    }
    let measure = Measure { rows: built.rows.count(), digest: built.rows.digest() };
    let ending = Ending {
        rows: Some(measure.rows as i64),
        digest: Some(measure.digest.to_string()),
        code_version: version,
        ..Ending::default()
    };
    if finishes {
        run::finish(run, &ending)?
    } else {
        run::record(run, &ending)?
    }
    Ok(measure)
}

/// Holds what a worker says of rows that it has built elsewhere to what the ledger knows of the slice, and keeps what comes
/// of it. The caller has passed the fence.
pub fn of_report(run: &Run, ending: &Ending) -> Result<()> {
    let slice = slice_of(run)?;
    let rows = slice.rows.zip(ending.rows);
    let digests = slice.digest.as_deref().zip(ending.digest.as_deref());
    if rows.is_none() && digests.is_none() {
        return Err(nothing_to_compare(run, &slice));
    }
    let same =
        rows.is_none_or(|(one, other)| one == other) && digests.is_none_or(|(one, other)| one == other);
    // As many rows are not the same rows, where the ledger knows which they were.
    if same && slice.digest.is_some() && digests.is_none() {
        return Err(nothing_to_compare(run, &slice));
    }
    let version = run.code_version.as_deref();
    let cause = (!same).then(|| {
        known_cause(run, &slice, version).unwrap_or_else(|| {
            guess(rows.map(|(held, built)| [(held - built).max(0) as u64, (built - held).max(0) as u64]))
        })
    });
    let verdict = Verdict { same, rows: [slice.rows, ending.rows], only: None, columns: None, cause };
    verdict.store(run, &slice, version);
    Ok(())
}

fn nothing_to_compare(run: &Run, slice: &Slice) -> Error {
    let known = |what: &str, known: bool| format!("{what} {}", if known { "known" } else { "unknown" });
    let hint = match run.pipeline.target {
        Some(_) => format!(
            "Load the rows into the table that SELECT backfill_stage({0}) names, then SELECT * FROM replace_partition({0}).",
            run.token
        ),
        None => format!("SELECT backfill_finish({}, rows, digest).", run.token),
    };
    Error::new(Code::NotInState, format!("nothing is compared under token {}", run.token))
        .detail(format!(
            "A verification ends when what was built has been held to the slice of token {}, of which {} and {}.",
            slice.token,
            known("the number of rows is", slice.rows.is_some()),
            known("the digest", slice.digest.is_some())
        ))
        .hint(hint)
}

/// That the target does not hold what the ledger says of the slice.
fn changed_without_lease(run: &Run, target: &Segment, slice: &Slice, held: Measure) -> Option<String> {
    let rows = slice.rows.filter(|rows| *rows != held.rows as i64);
    let digest = slice.digest.as_ref().filter(|_| !slice.digest_told);
    let what = match rows {
        Some(rows) => format!(
            "the slice was changed without a lease: it had {rows} rows when token {} published it, and has {} now",
            slice.token, held.rows
        ),
        None if digest.is_some_and(|digest| *digest != held.digest.to_string()) => format!(
            "the slice was changed without a lease, or the columns of the target were: it does not hold any more what token {} published",
            slice.token
        ),
        None => return None,
    };
    let table = quote::literal(&target.table.shown());
    Some(format!(
        "{what}. SELECT fence_protect({table}, 'log') finds out who writes there, and a plan of window {} builds it again.",
        run.window_key
    ))
}

/// That the call gave a query which is neither the lease's nor the one that built the slice.
fn ran_another_query(run: &Run, source: &Source, slice: &Slice, version: Option<&str>) -> Option<String> {
    let given = version.filter(|_| source.replaces_query(run))?;
    let is_same = |other: &Option<String>| other.as_deref() == Some(given);
    if is_same(&run.code_version) || is_same(&slice.code_version) {
        return None;
    }
    Some(format!(
        "the call gave another query than the lease's: {given} ran, and the lease is for {}. It says nothing about the code of the pipeline: verify window {} again without the argument query.",
        run.code_version.as_deref().unwrap_or("none"),
        run.window_key
    ))
}

/// What the ledger knows of the slice that makes other rows likely.
fn known_cause(run: &Run, slice: &Slice, version: Option<&str>) -> Option<String> {
    let name = quote::literal(&run.pipeline.name);
    let shown = |version: Option<&str>| version.unwrap_or("none").to_owned();
    let built_by = slice.code_version.as_deref();
    if slice.is_adopted {
        return Some(format!(
            "the slice was adopted: what built it is not known but by name ({}). A plan builds the window with the code of now.",
            shown(built_by)
        ));
    }
    if built_by != version {
        let how = match run.query {
            Some(_) => {
                format!("SELECT * FROM pipeline_explain_version({name}) says what changed, and a plan")
            }
            None => "A plan".to_owned(),
        };
        let consent = match compatible::is_same(run.pipeline.id, built_by, version) {
            true => ", though they were said to be compatible",
            false => "",
        };
        return Some(format!(
            "another code version built it: {}, and {} ran now{consent}. {how} with mode => 'outdated' builds such windows again.",
            shown(built_by),
            shown(version)
        ));
    }
    if let Some(params) = &slice.params {
        return Some(format!(
            "plan {} built it with params {params}, and a verification has none. It says nothing about such a window.",
            slice.plan_id
        ));
    }
    let stale = slice.stale.as_ref()?;
    Some(format!(
        "the slice is out of date: {stale}. SELECT * FROM backfill_plan({name}, ..., mode => 'stale') builds it again."
    ))
}

fn changed_by_trigger(target: &Segment) -> Option<String> {
    target.table.watched.then(|| {
        format!(
            "{} has triggers, which may change rows as they are written. What is compared is what the code makes.",
            target.table.shown()
        )
    })
}

/// What the lint finds in the query of the lease, which ran, or says the same as what ran: the pipeline may run another one by now.
/// What only may keep it from being pure does not explain rows that all came, or all went; nor does a column of the target
/// that was not compared.
fn impurity(
    run: &Run,
    only: Option<[u64; 2]>,
    target: &Segment,
    compared: &[&str],
) -> Result<Option<String>> {
    let columns = target.table.columns.iter().map(|column| column.name.as_str());
    let left_out: Vec<String> = columns
        .filter(|name| !compared.contains(name))
        .map(|name| impurity::place_of_column(name, &target.table.shown()))
        .collect();
    let Some((query, path)) = run.query.as_deref().zip(run.query_path.as_deref()) else { return Ok(None) };
    let mut found = lint::of_text(&run.pipeline, query, path)?;
    found.retain(|finding| !left_out.iter().any(|place| finding.place.starts_with(place)));
    let of = |matches: fn(&Finding) -> bool| found.iter().find(|finding| matches(finding));
    let is_error = |finding: &Finding| finding.severity == Severity::Error;
    let is_dimension = |finding: &Finding| finding.rule == Rule::MutableDimension.name();
    let is_one_sided = only.is_some_and(|only| only.contains(&0));
    let likely = of(is_error).or_else(|| of(is_dimension).or(found.first()).filter(|_| !is_one_sided));
    let all = match run.query == run.pipeline.query {
        true => format!(
            " SELECT * FROM pipeline_lint({}) lists all that was found.",
            quote::literal(&run.pipeline.name)
        ),
        false => String::new(),
    };
    Ok(likely.map(|Finding { rule, object, place, remedy, .. }| {
        format!("the query is no pure function of its window ({rule}): {object} in {place}. {remedy}{all}")
    }))
}

/// What the rows themselves suggest, if nothing else is known.
fn guess(only: Option<[u64; 2]>) -> String {
    match only {
        Some([0, fresh]) if fresh > 0 => format!(
            "rows came late: {fresh} rows are new and none is gone, as where the source got rows after the slice was built. A plan of the window takes them in."
        ),
        Some([gone, 0]) if gone > 0 => format!(
            "rows are gone from the source: {gone} rows do not come again and none is new. What is published may be all that is left of them."
        ),
        _ => "unknown: the same code over the same window made other rows. It may read a table without a time that has changed since, the clock, random numbers, a setting, or what another window wrote.".to_owned(),
    }
}
