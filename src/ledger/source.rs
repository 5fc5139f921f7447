//! Where the new rows of a slice come from.
//!
//! A query or a staging table that the call gives, else the token's stage, else the lease's query. What somebody wrote
//! runs as whoever wrote it: the pipeline's query as its owner, all else as the caller.

use crate::error::{Code, Error, Result, faithful};
use crate::ledger::run::Run;
use crate::ledger::stage::{self, Stage};
use crate::ledger::{compatible, lint, version};
use crate::postgres::author::Author;
use crate::postgres::executor::{self, Sight};
use crate::postgres::meaning::{self, Meaning};
use crate::postgres::query::Select;
use crate::postgres::rows::Rows;
use crate::postgres::segment::Segment;
use crate::postgres::{quote, role, settings, table, target};
use pgrx::pg_sys;
use std::cell::OnceCell;

/// What a call of `replace_partition` asks for, beside its token.
#[derive(Debug, Default)]
pub struct Wish {
    pub query: Option<String>,
    pub staging: Option<pg_sys::Oid>,
    pub allow_shrink: Option<String>,
    /// A person has seen the rows and takes them as they are.
    pub is_accepted: bool,
    /// The caller's own `search_path`.
    pub path: String,
}

/// Where the new rows come from.
pub struct Source {
    pub author: Author,
    text: String,
    /// The `search_path` that the text is read under.
    path: String,
    /// The columns by name; `None` matches them by position.
    columns: Option<Vec<String>>,
    /// The lease's own query must still be what the lease was given for.
    own: bool,
    /// The version of the query that ran: of the lease's own, or of one that the call gave.
    ran: OnceCell<String>,
}

/// New rows, and the columns of the target that they hold.
pub struct Built {
    columns: Vec<String>,
    pub rows: Rows,
}

impl Source {
    /// A query or a staging table that the call gives, else the token's stage, else the lease's query.
    pub fn of(run: &Run, target: &Segment, wish: &Wish) -> Result<Self> {
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
                ran: OnceCell::new(),
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
                _ => {
                    lint::require_stored(&run.pipeline, staging)?;
                    Self::table(staging, run, target, &wish.path)
                }
            };
        }
        if let Some(stage) = Stage::find(run.token) {
            stage.open_to(role::caller());
            return Self::table(stage.relation, run, target, &wish.path);
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
        Ok(Self {
            author: Author::named(&run.pipeline.owner)?,
            text,
            path: settings::with_temporary_last(run.query_path.as_deref().unwrap_or_default()),
            columns: None,
            own: true,
            ran: OnceCell::new(),
        })
    }

    /// Rows that the ledger brings itself, for the caller to write under his own `search_path`: what triggers and checks of the
    /// target name is found there.
    pub fn kept(path: String) -> Self {
        Self { path, ..Self::written_by(Author::Caller) }
    }

    /// Rows that are built already, for somebody to write.
    pub fn written_by(author: Author) -> Self {
        let (text, path) = (String::new(), String::new());
        Self { author, text, path, columns: Some(vec![]), own: false, ran: OnceCell::new() }
    }

    /// The rows of a table, its columns matched by name. What the target always generates is left to it.
    fn table(table: pg_sys::Oid, run: &Run, target: &Segment, path: &str) -> Result<Self> {
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
        let mut columns = target.table.filled(run.pipeline.stamp_column.as_deref());
        columns.retain(|name| given.iter().any(|column| column.name == *name));
        Ok(Self {
            author: Author::Caller,
            text: format!("SELECT {} FROM {}", table::list(&columns), quote::relation(table)),
            path: path.to_owned(),
            columns: Some(columns.into_iter().map(str::to_owned).collect()),
            own: false,
            ran: OnceCell::new(),
        })
    }

    /// Whether its rows come from a table, their columns matched by name.
    pub fn is_table(&self) -> bool {
        self.columns.is_some()
    }

    /// Whether it is a query that the call gave in place of the lease's.
    pub fn replaces_query(&self, run: &Run) -> bool {
        run.query.is_some() && !self.own && !self.is_table()
    }

    /// Runs something in the name and under the settings of the source.
    pub fn run<T>(&self, run: &Run, f: impl FnOnce() -> T) -> T {
        self.author.run(|| settings::for_query(&run.time_zone(), &self.path, f))
    }

    pub fn build(&self, run: &Run, target: &Segment) -> Result<Built> {
        // The lease's query also writes as the pipeline's owner: whoever sets it off must be allowed to write there. What is
        // staged will be written there.
        let written = run.pipeline.target.unwrap_or(target.table.oid);
        target::require_write(written, role::caller())?;
        if self.own {
            self.require_version(run)?;
            // What it reaches may have been edited since it was defined.
            let path = run.query_path.as_deref().unwrap_or_default();
            lint::require_pure(&run.pipeline, &self.text, path)?;
        } else {
            // The slice is looked up before it is deleted.
            target::require_read(written, role::caller())?;
            if let Some((meaning, _)) = self.given(run)? {
                self.ran.get_or_init(|| meaning.version);
            }
        }
        let built = self.run(run, || {
            let select = Select::read(&self.text)?;
            if !self.own && self.columns.is_none() {
                lint::require_pure_query(&run.pipeline, &select, &settings::search_path())?;
            }
            let stamp = run.pipeline.stamp_column.as_deref();
            let filled = target.table.filled(stamp);
            let given: Vec<&str> = match &self.columns {
                Some(columns) => columns.iter().map(String::as_str).collect(),
                // A longer query is PostgreSQL's to refuse, a shorter one leaves defaults.
                None => filled.iter().take(select.width()).copied().collect(),
            };
            // In the order of the table, as digests are.
            let mut columns = target.table.writable();
            columns.retain(|name| given.contains(name) || stamp == Some(*name));
            let slice = columns.iter().position(|name| *name == target.column);
            let Some(slice) = slice else {
                return Err(Error::new(
                    Code::InvalidParameter,
                    format!("the new rows have no column \"{}\"", target.column),
                )
                .detail(format!(
                    "They have the first {} of the columns {} of {}, so that nothing says which window a row belongs to.",
                    given.len(),
                    table::list(&filled),
                    target.table.shown()
                ))
                .hint("Columns of a query are matched by position, as INSERT ... SELECT does; those of a staging table by name."));
            };
            let mut rows = Rows::new(target.bounds, slice);
            let place = columns.iter().position(|name| stamp == Some(*name));
            if let (Some(stamp), None) = (stamp, place) {
                return Err(no_stamp(run, target, stamp));
            }
            let version = place.and_then(|_| self.version(run));
            let query = select.rows_for(&target.table, &columns, place.map(|at| (at, version.as_deref())));
            faithful(|| unsafe {
                executor::select(query, select.text(), run.bounds(), Sight::Transaction, None, &mut rows);
            });
            Ok(Built { columns: columns.into_iter().map(str::to_owned).collect(), rows })
        })?;
        // A function that it calls may have been replaced while it ran.
        if self.own {
            self.require_version(run)?;
        } else if let Some((meaning, path)) = self.given(run)? {
            self.require_same(&meaning.version)?;
            version::record_given(run.pipeline.id, &meaning, &self.text, &path);
        }
        Ok(built)
    }

    /// The version that the slice is built by: that of the lease, but for a query that ran under a compatible one, and for one that
    /// the call gave in place of the lease's.
    pub fn version(&self, run: &Run) -> Option<String> {
        self.ran.get().cloned().or_else(|| run.code_version.clone())
    }

    /// What a query means now that the call gave in place of the lease's, and the `search_path` that it is read under.
    fn given(&self, run: &Run) -> Result<Option<(Meaning, String)>> {
        if !self.replaces_query(run) {
            return Ok(None);
        }
        self.run(run, || {
            let path = settings::search_path();
            Ok(Some((Meaning::of(&Select::read(&self.text)?, &path), path)))
        })
    }

    /// Refuses what another version than the one before was found of (BF004).
    fn require_same(&self, now: &str) -> Result<()> {
        match self.ran.get().filter(|before| *before != now) {
            None => Ok(()),
            Some(before) => Err(Error::new(Code::OutOfDate, "what the query means has changed while it ran")
                .detail(format!("It was version {before} and is version {now} now."))
                .hint("Repeat the call.")),
        }
    }

    /// Refuses to run a query that is neither what the lease was given for, nor compatible with that (BF004).
    fn require_version(&self, run: &Run) -> Result<()> {
        let path = run.query_path.as_deref().unwrap_or_default();
        let now = &meaning::of_text(&run.pipeline.owner, &self.text, path)?.version;
        let stands = match (self.ran.get(), &run.code_version) {
            (Some(ran), _) => ran == now,
            (None, Some(leased)) if leased == now => true,
            (None, Some(leased)) => {
                version::recorded(&run.pipeline, &self.text, path)?;
                compatible::are_same(run.pipeline.id, leased, now)
            }
            (None, None) => false,
        };
        if stands {
            self.ran.get_or_init(|| now.clone());
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

/// The column that would say which code built the rows is gone, or cannot be given values any more (42704).
fn no_stamp(run: &Run, target: &Segment, stamp: &str) -> Error {
    let what = format!("{} has no column \"{stamp}\" that can be given values", target.table.shown());
    Error::new(Code::Undefined, what)
        .detail("It is the stamp_column, which holds the code version of each row.")
        .hint(format!(
            "Add the column, or SELECT pipeline_alter({}, '{{\"stamp_column\": null}}').",
            quote::literal(&run.pipeline.name)
        ))
}

impl Built {
    pub fn new(columns: Vec<String>, rows: Rows) -> Self {
        Self { columns, rows }
    }

    pub fn columns(&self) -> Vec<&str> {
        self.columns.iter().map(String::as_str).collect()
    }

    /// Refuses rows outside the window (BF005).
    pub fn inside(&self, run: &Run, target: &Segment) -> Result<()> {
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
