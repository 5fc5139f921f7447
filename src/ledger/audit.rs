//! What must be true of new rows before they are published.
//!
//! An audit is a SELECT over `slice`, the new rows, that answers one true. It runs as the pipeline's owner, who wrote it,
//! after the rows were built and found to be inside the window, and before anything is written. What is false, NULL, or
//! fails refuses the rows as the shrink guard does; only what a retry may mend (a deadlock, a cancelled statement, a
//! full disk) stays an error of its own. `$1` and `$2` are the window's bounds, as in the pipeline's query.

use crate::error::{self, Code, Error, Result};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::run::Run;
use crate::postgres::author::Author;
use crate::postgres::executor::{self, Pair, Sight, Sink};
use crate::postgres::named::Named;
use crate::postgres::query::Select;
use crate::postgres::rows::Rows;
use crate::postgres::table::Table;
use crate::postgres::{role, settings, spi, subtransaction};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use std::ffi::c_int;

/// The name of the new rows in an audit.
const SLICE: &str = "slice";

struct Audit {
    name: String,
    query: String,
    path: String,
}

const OF_PIPELINE: &str = "SELECT name, query, query_path FROM backfill.audit_data
    WHERE pipeline_id = $1 ORDER BY name";

/// Refuses rows of which an audit is not true (BF006).
pub fn check(run: &Run, rows: &Rows) -> Result<()> {
    let pipeline = &run.pipeline;
    let audits = role::as_ledger(|| {
        spi::latest(OF_PIPELINE, &[pipeline.id.into()], |row| Audit {
            name: row.at(1),
            query: row.at(2),
            path: row.at(3),
        })
    });
    if audits.is_empty() {
        return Ok(());
    }
    let author = Author::named(&pipeline.owner)?;
    for audit in audits {
        let path = settings::with_temporary_last(&audit.path);
        let answer = subtransaction::attempt(|| {
            author.run(|| {
                settings::for_query(&run.time_zone(), &path, || holds(&audit.query, rows, run.bounds()))
            })
        });
        match answer {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Err(refusal(run, &audit, "It did not answer one row that is true.")),
            Ok(Err(error)) => return Err(refusal(run, &audit, &format!("It failed: {}.", error.message))),
            Err(caught) => match message(&caught) {
                Some(message) => return Err(refusal(run, &audit, &format!("It failed: {message}."))),
                None => caught.rethrow(),
            },
        }
    }
    Ok(())
}

fn refusal(run: &Run, audit: &Audit, why: &str) -> Error {
    Error::new(
        Code::Shrunk,
        format!("audit \"{}\" refuses the rows for window {}", audit.name, run.window_key),
    )
    .detail(format!("{why} Its query: {}", audit.query.trim()))
    .hint(match run.was_staged {
        true => format!(
            "Mend the audit with pipeline_audit(...), or SELECT * FROM backfill_cancel({}, 'why').",
            run.plan_id
        ),
        false => "Mend the rows, or the audit with pipeline_audit(...). Rows in quarantine are published all the same by quarantine_accept(token, reason).".to_owned(),
    })
}

/// The classes of errors that a retry may mend.
const PASSING: [&str; 6] = ["08", "40", "53", "55", "57", "58"];

/// The words of an error that will be the same next time.
fn message(caught: &CaughtError) -> Option<String> {
    let CaughtError::PostgresError(report) = caught else { return None };
    let class = error::class(report.sql_error_code() as c_int);
    (!PASSING.map(error::pack).contains(&class)).then(|| report.message().to_owned())
}

fn holds(query: &str, rows: &Rows, bounds: Pair) -> Result<bool> {
    let slice = Named::rows(SLICE, rows.batch());
    let select = Select::over(query, &slice)?;
    require_boolean(&select)?;
    let mut verdict = Verdict::default();
    unsafe {
        executor::select(
            select.query(),
            select.text(),
            bounds,
            Sight::Transaction,
            Some(&slice),
            &mut verdict,
        );
    }
    Ok(verdict == Verdict { rows: 1, trues: 1 })
}

/// What the rows of an audit say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    rows: u64,
    trues: u64,
}

impl Sink for Verdict {
    fn start(&mut self, _shape: pg_sys::TupleDesc) {}

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        self.rows += 1;
        let is_true = unsafe { !*(*slot).tts_isnull && (*(*slot).tts_values).value() != 0 };
        self.trues += u64::from(is_true);
    }
}

fn require_boolean(select: &Select) -> Result<()> {
    if select.types() == [pg_sys::BOOLOID] {
        return Ok(());
    }
    Err(Error::new(Code::InvalidParameter, "an audit answers one boolean")
        .detail(format!("The query has {} columns, or one of another type.", select.width()))
        .hint("Write for example SELECT count(*) > 0 FROM slice."))
}

const PUT: &str = "INSERT INTO backfill.audit_data AS a (pipeline_id, name, query, query_path, made_by)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (pipeline_id, name) DO UPDATE
    SET query = excluded.query, query_path = excluded.query_path, made_by = excluded.made_by,
        made_at = pg_catalog.clock_timestamp()
    WHERE (a.query, a.query_path) <> (excluded.query, excluded.query_path)
    RETURNING (xmax = 0)";

/// Defines an audit or gives it another query; says what changed. 22023 for what is not one SELECT of a boolean over
/// `slice`, 55000 for a pipeline without a target.
pub fn define(pipeline: &Pipeline, name: &str, query: &str, path: &str) -> Result<&'static str> {
    let Some(target) = pipeline.target else {
        return Err(Error::new(Code::NotInState, format!("pipeline \"{}\" has no target", pipeline.name))
            .detail("An audit looks at the rows that are about to be written to it.")
            .hint("Give it target and slice_column with pipeline_alter()."));
    };
    let table = Table::open(target)?;
    let author = Author::named(&pipeline.owner)?;
    author.run(|| {
        settings::for_query(&pipeline.grid.zone().name(), &settings::with_temporary_last(path), || {
            require_boolean(&Select::over(query, &Named::shaped(SLICE, &table))?)
        })
    })?;
    let by = role::name(role::caller());
    let args = [pipeline.id.into(), name.into(), query.into(), path.into(), by.as_str().into()];
    let created = role::as_ledger(|| spi::first(PUT, &args, |row| row.at::<bool>(1)));
    Ok(match created {
        Some(true) => "created",
        Some(false) => "changed",
        None => "unchanged",
    })
}

const DROP: &str = "DELETE FROM backfill.audit_data WHERE pipeline_id = $1 AND name = $2";

/// 42704 where there is none of that name.
pub fn drop(pipeline: &Pipeline, name: &str) -> Result<()> {
    if role::as_ledger(|| spi::run(DROP, &[pipeline.id.into(), name.into()])) > 0 {
        return Ok(());
    }
    Err(Error::new(
        Code::Undefined,
        format!("audit \"{name}\" of pipeline \"{}\" does not exist", pipeline.name),
    )
    .detail("Its audits have other names, or it has none.")
    .hint("SELECT * FROM backfill.audits lists them."))
}
