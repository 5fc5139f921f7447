//! What a plan replaces, kept for a while so that the plan can be reverted.
//!
//! The rows are read before anything is written and set aside as text, in the transaction that replaces them and as many as
//! it deletes. A publication that changes nothing keeps none: the rows that were there still are. Nobody but the ledger
//! reads what is kept, since it is what the target held for those who may read the target.
//!
//! Where the time is over, the rows are dropped by whoever keeps others of the same pipeline, and by `backfill_sweep`: both
//! pass over what another transaction holds, and wait for nobody.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result, faithful};
use crate::ledger::run::Run;
use crate::ledger::source::{Built, Source};
use crate::postgres::batch::{Batch, shape};
use crate::postgres::cells::{Reader, Writer};
use crate::postgres::digest::Digester;
use crate::postgres::executor::{self, Pair, Sight, Sink};
use crate::postgres::query::Select;
use crate::postgres::rows::Rows;
use crate::postgres::segment::{Measure, Segment};
use crate::postgres::table::Column;
use crate::postgres::{datum, role, settings, spi, table};
use pgrx::pg_sys;

/// Of the first publication of a run only: what it published itself is not what was there before.
const IS_FIRST: &str = "SELECT r.published_at IS NULL OR r.together
        OR EXISTS (SELECT FROM backfill.kept_data k WHERE k.token = r.token AND NOT k.changed)
    FROM backfill.run_data r WHERE r.token = $1";

const NOTE: &str = "INSERT INTO backfill.kept_data
        (token, pipeline_id, previous_token, changed, columns, rows, bytes, digest, kept_until)
    SELECT r.token, r.pipeline_id, (
            SELECT CASE WHEN p.run_kind <> 'withdrawn' THEN p.token END FROM backfill.run_data p
            WHERE p.pipeline_id = r.pipeline_id AND p.window_start = r.window_start AND p.turn < r.turn
              AND p.published_at IS NOT NULL
            ORDER BY p.turn DESC LIMIT 1),
           $2, $3, $4, $5, $6, $7
    FROM backfill.run_data r WHERE r.token = $1
    ON CONFLICT (token) DO UPDATE
    SET changed = excluded.changed, columns = excluded.columns, rows = excluded.rows, bytes = excluded.bytes,
        digest = excluded.digest, kept_until = excluded.kept_until";

/// Keeps what a publication replaces.
pub struct Keeper {
    token: i64,
    pipeline_id: i64,
    until: Instant,
}

impl Keeper {
    /// `None` where nothing is kept: the pipeline does not ask for it, or no plan could be reverted.
    pub fn of(run: &Run) -> Option<Self> {
        let replaces = run.plan_id > 0 && run.plan_stage.is_none();
        let span = run.pipeline.keep_previous.filter(|_| replaces)?;
        let is_first =
            role::as_ledger(|| spi::latest(IS_FIRST, &[run.token.into()], |row| row.at::<bool>(1)));
        (is_first == [true]).then(|| Self {
            token: run.token,
            pipeline_id: run.pipeline.id,
            until: Instant(datum::clock().0.saturating_add(span.approximate_micros())),
        })
    }

    /// Notes that the rows stay as they are.
    pub fn unchanged(&self, target: &Segment, held: Measure) {
        self.note(target, false, held, 0);
    }

    /// Sets the rows of the slice aside; says how many there are.
    pub fn keep(&self, target: &Segment) -> u64 {
        drop_old(Some(self.pipeline_id), DROPPED_BY_KEEPER);
        let mut copy = Copying {
            token: self.token,
            rows: Batch::new(shape(&[("token", pg_sys::INT8OID, -1), ("cells", pg_sys::TEXTARRAYOID, -1)])),
            made: None,
            bytes: 0,
        };
        target.look_at(&target.table.writable(), &mut copy);
        let digest = copy.made.map(|(_, digester)| digester.digest()).unwrap_or_default();
        let held = Measure { rows: copy.rows.count(), digest };
        role::as_ledger(|| table::insert("backfill.kept_row_data", &["token", "cells"], &copy.rows));
        self.note(target, true, held, copy.bytes);
        held.rows
    }

    fn note(&self, target: &Segment, changed: bool, held: Measure, bytes: i64) {
        let columns: Vec<String> = target.table.writable().into_iter().map(str::to_owned).collect();
        let args = [
            self.token.into(),
            changed.into(),
            columns.into(),
            (held.rows as i64).into(),
            bytes.into(),
            held.digest.to_string().into(),
            self.until.into(),
        ];
        role::as_ledger(|| spi::run(NOTE, &args));
    }
}

/// Rows on their way from the target into the ledger.
struct Copying {
    token: i64,
    rows: Batch,
    made: Option<(Writer, Digester)>,
    bytes: i64,
}

impl Sink for Copying {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        self.made = Some((Writer::new(shape), Digester::new(shape)));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let (writer, digester) = self.made.as_mut().expect("the shape came first");
        unsafe {
            digester.add(slot);
            let (cells, bytes) = writer.cells(slot);
            self.bytes += bytes as i64;
            self.rows.add_values(&mut [self.token.into(), cells], &mut [false; 2]);
        }
    }
}

/// What a run replaced.
pub struct Kept {
    token: i64,
    columns: Vec<String>,
    rows: u64,
    digest: String,
}

const READ: &str = "SELECT columns, rows, digest FROM backfill.kept_data WHERE token = $1";

const ROWS: &str = "SELECT k.cells FROM backfill.kept_row_data AS k
    WHERE k.token OPERATOR(pg_catalog.=) $1 AND k.token OPERATOR(pg_catalog.=) $2";

impl Kept {
    pub fn read(token: i64) -> Self {
        let read = |row: &spi::Row| Self {
            token,
            columns: row.at(1),
            rows: row.at::<i64>(2) as u64,
            digest: row.at(3),
        };
        let kept = role::as_ledger(|| spi::latest(READ, &[token.into()], read));
        kept.into_iter().next().expect("lines about what is kept are never deleted")
    }

    /// The rows for the target as it is now, matched by the names of columns (55000 where they are not what they were).
    pub fn build(&self, run: &Run, target: &Segment, source: &Source) -> Result<Built> {
        let place = |name: &str| self.columns.iter().position(|column| column == name);
        let writable = |column: &&Column| !column.generated;
        let columns: Vec<&Column> = target.table.columns.iter().filter(writable).collect();
        if let Some(lost) =
            self.columns.iter().find(|name| columns.iter().all(|column| column.name != **name))
        {
            return Err(self.changed(
                run,
                format!(
                    "They have a column \"{lost}\"; the columns of {} that can be given values are {}.",
                    target.table.shown(),
                    table::list(&target.table.writable())
                ),
            ));
        }
        let given = columns.iter().filter_map(|column| Some((*column, place(&column.name)?)));
        let (columns, places): (Vec<&Column>, Vec<usize>) = given.unzip();
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let slice = names.iter().position(|name| *name == target.column);
        let mut rows = Rows::new(target.bounds, slice.expect("the slice column was there"));
        let described: Vec<_> =
            columns.iter().map(|column| (column.name.as_str(), column.type_oid, column.modifier)).collect();
        let shape = shape(&described);
        let cells = self.cells();
        rows.start(shape);
        source.run(run, || {
            settings::for_text(|| {
                faithful(|| {
                    let mut reader = Reader::new(shape);
                    cells.each(|slot| unsafe {
                        reader.row(*(*slot).tts_values, &places, |slot| rows.row(slot));
                    });
                });
            });
        });
        let digest = rows.digest().to_string();
        // They may have been dropped this moment.
        if rows.count() != self.rows {
            return Err(
                self.changed(run, format!("{} rows were kept, and {} are there.", self.rows, rows.count()))
            );
        }
        if names == self.columns && digest != self.digest {
            return Err(self.changed(
                run,
                format!(
                    "Their digest was {}; as {} takes them now it is {digest}.",
                    self.digest,
                    target.table.shown()
                ),
            ));
        }
        Ok(Built::new(names, rows))
    }

    fn cells(&self) -> Batch {
        let mut cells = Cells(Batch::new(shape(&[("cells", pg_sys::TEXTARRAYOID, -1)])));
        let token = Pair { type_oid: pg_sys::INT8OID, values: [self.token.into(); 2] };
        role::as_ledger(|| {
            let select = Select::of_ours(ROWS, pg_sys::INT8OID);
            unsafe {
                executor::select(select.query(), select.text(), token, Sight::Now, None, &mut cells);
            }
        });
        cells.0
    }

    fn changed(&self, run: &Run, detail: String) -> Error {
        let message = format!("what window {} held cannot be put back as it was", run.window_key);
        Error::new(Code::NotInState, message).detail(detail).hint(
            "Give the target the shape back that it had then, and call again; or plan the window again.",
        )
    }
}

struct Cells(Batch);

impl Sink for Cells {
    fn start(&mut self, _shape: pg_sys::TupleDesc) {}

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        unsafe { self.0.add(slot) };
    }
}

const DROP_OLD: &str = "WITH old AS MATERIALIZED (
        SELECT k.token FROM backfill.kept_data k
        WHERE ($1 IS NULL OR k.pipeline_id = $1) AND k.changed AND k.dropped_at IS NULL
          AND k.kept_until < $3
        ORDER BY k.kept_until LIMIT $2 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM backfill.kept_row_data r USING old WHERE r.token = old.token
    )
    UPDATE backfill.kept_data k SET dropped_at = pg_catalog.clock_timestamp() FROM old WHERE k.token = old.token";

const OLD: &str = "SELECT pg_catalog.count(*) FROM backfill.kept_data k
    WHERE k.changed AND k.dropped_at IS NULL AND k.kept_until < pg_catalog.clock_timestamp()";

/// More than the one that comes, so that none pile up.
const DROPPED_BY_KEEPER: i64 = 2;

/// Drops the rows of slices whose time is over, of one pipeline or of all, at most so many; says of how many.
fn drop_old(pipeline_id: Option<i64>, at_most: i64) -> u64 {
    // Above READ COMMITTED what somebody else dropped since the snapshot would fail the publication.
    if unsafe { pg_sys::XactIsoLevel } > pg_sys::XACT_READ_COMMITTED as i32 {
        return 0;
    }
    // The clock itself, asked by the statement, would be asked for each line that the index holds.
    role::as_ledger(|| spi::run(DROP_OLD, &[pipeline_id.into(), at_most.into(), datum::clock().into()]))
}

/// The same for all pipelines; says of how many, and how many are left: those that somebody holds, and those beyond the
/// limit.
pub fn sweep(at_most: usize) -> (i64, i64) {
    let dropped = drop_old(None, at_most as i64) as i64;
    let left = role::as_ledger(|| spi::latest(OLD, &[], |row| row.at::<i64>(1)));
    (dropped, left.into_iter().sum())
}
