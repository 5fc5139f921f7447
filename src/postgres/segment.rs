//! The part of a table that a window owns.

use crate::domain::zone::{Instant, Zone};
use crate::error::{Code, Error, Result, faithful};
use crate::postgres::author::Author;
use crate::postgres::batch::Batch;
use crate::postgres::digest::{Digest, Digester};
use crate::postgres::executor::{self, Pair, Sight, Sink};
use crate::postgres::query::Select;
use crate::postgres::table::{self, Table};
use crate::postgres::zone::PgZone;
use crate::postgres::{datum, quote, settings};
use pgrx::pg_sys;
use std::ffi::CStr;

/// The two bounds of a window as values of the slice column's type: one pair serves read, delete and check.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pair: Pair,
}

impl Bounds {
    /// `timestamptz` as it is; `timestamp` and `date` are local in the pipeline's zone. `None` for other types.
    pub fn new(type_oid: pg_sys::Oid, zone: &PgZone, window: [Instant; 2]) -> Option<Self> {
        const DAY: i64 = 86_400_000_000;
        let local = |at| i64::from(datum::timestamp(zone.to_local(at)));
        let values = match type_oid {
            pg_sys::TIMESTAMPTZOID => window.map(|at| pg_sys::Datum::from(at.0)),
            pg_sys::TIMESTAMPOID => window.map(|at| pg_sys::Datum::from(local(at))),
            pg_sys::DATEOID => window.map(|at| pg_sys::Datum::from(local(at).div_euclid(DAY) as i32)),
            _ => return None,
        };
        Some(Self { pair: Pair { type_oid, values } })
    }

    /// Whether a value of the slice column lies inside. Infinities lie outside.
    pub fn contain(&self, value: pg_sys::Datum) -> bool {
        let [since, until] = self.pair.values.map(|bound| self.number(bound));
        (since..until).contains(&self.number(value))
    }

    /// Whether the window ends at a value of the slice column or before it.
    pub fn end_by(&self, value: pg_sys::Datum) -> bool {
        self.number(self.pair.values[1]) <= self.number(value)
    }

    /// Whether the window begins at a value of the slice column or after it.
    pub fn begin_from(&self, value: pg_sys::Datum) -> bool {
        self.number(value) <= self.number(self.pair.values[0])
    }

    /// Whether these values of the slice column are the two bounds.
    pub fn are(&self, values: [pg_sys::Datum; 2]) -> bool {
        self.pair.values.map(|bound| self.number(bound)) == values.map(|value| self.number(value))
    }

    fn number(&self, value: pg_sys::Datum) -> i64 {
        match self.pair.type_oid {
            pg_sys::DATEOID => i64::from(value.value() as i32),
            _ => value.value() as i64,
        }
    }

    /// Both bounds as text, under the settings in force.
    pub fn text(&self) -> String {
        let [since, until] = self.pair.values.map(|value| unsafe {
            let (mut output, mut varlena) = (pg_sys::InvalidOid, false);
            pg_sys::getTypeOutputInfo(self.pair.type_oid, &mut output, &mut varlena);
            CStr::from_ptr(pg_sys::OidOutputFunctionCall(output, value)).to_string_lossy().into_owned()
        });
        format!("[{since}, {until})")
    }
}

/// What a table holds in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measure {
    pub rows: u64,
    pub digest: Digest,
}

/// The part of a table that a window owns.
pub struct Segment {
    pub table: Table,
    pub column: String,
    pub bounds: Bounds,
}

impl Segment {
    /// The part of a locked table between two moments (42704 where no column places rows there).
    pub fn of(table: Table, column: &str, zone: &PgZone, window: [Instant; 2]) -> Result<Self> {
        let bounds = table
            .columns
            .iter()
            .find(|c| c.name == column)
            .and_then(|c| Bounds::new(unsafe { pg_sys::getBaseType(c.type_oid) }, zone, window));
        let Some(bounds) = bounds else {
            return Err(Error::new(
                Code::Undefined,
                format!("{} has no column \"{column}\" that places a row in a window", table.shown()),
            )
            .detail("The slice column must be of type timestamptz, timestamp or date.")
            .hint("Name the column that holds the time of a row as slice_column with pipeline_alter()."));
        };
        Ok(Self { table, column: column.into(), bounds })
    }

    /// Whether rows may come out other than they are put in: a trigger, or a column that gets its default.
    pub fn may_differ(&self, columns: &[&str]) -> bool {
        self.table.watched || columns.len() < self.table.writable().len()
    }

    /// `t.column >= $1 AND t.column < $2`, whatever the `search_path`.
    fn inside(&self) -> String {
        let column = quote::identifier(&self.column);
        format!("t.{column} OPERATOR(pg_catalog.>=) $1 AND t.{column} OPERATOR(pg_catalog.<) $2")
    }

    /// The given rows that name a row of the slice: table and window, which leads to few partitions, and place.
    fn at_places(&self) -> String {
        let equal = "OPERATOR(pg_catalog.=)";
        let inside = self.inside();
        format!(
            "{} AS g WHERE {inside} AND t.ctid {equal} g.ctid AND t.tableoid {equal} g.tableoid",
            executor::GIVEN
        )
    }

    /// Counts the slice. It counts as the table's owner does, who sees the rows that row-level security hides
    /// from others; where it hides rows from the owner too, PostgreSQL refuses.
    pub fn count(&self) -> u64 {
        let mut count = Count(0);
        self.look(self.bounds.pair, "pg_catalog.count(*)", &mut count);
        count.0
    }

    /// Counts the slice and takes its digest, like [`count`](Self::count).
    pub fn measure(&self) -> Measure {
        self.measure_of(&self.table.writable())
    }

    /// The same of some columns.
    pub fn measure_of(&self, columns: &[&str]) -> Measure {
        let mut measuring = Measuring { digester: None, rows: 0 };
        self.look_at(columns, &mut measuring);
        let digest = measuring.digester.map(|digester| digester.digest()).unwrap_or_default();
        Measure { rows: measuring.rows, digest }
    }

    /// Measures the slice of each of some windows, in ascending order and each with its zone: in one scan, and so as
    /// of one moment.
    pub fn measure_each<'z>(
        &self,
        windows: impl Iterator<Item = (&'z PgZone, [Instant; 2])>,
    ) -> Vec<Measure> {
        let type_oid = self.bounds.pair.type_oid;
        let windows: Vec<Bounds> =
            windows.filter_map(|(zone, window)| Bounds::new(type_oid, zone, window)).collect();
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return vec![] };
        let range = Pair { type_oid, values: [first.pair.values[0], last.pair.values[1]] };
        let columns = table::list(&self.table.writable());
        let mut measures = vec![Measure::default(); windows.len()];
        let mut each = MeasuringEach {
            digester: None,
            columns: self.table.writable().len(),
            windows,
            measures: &mut measures,
        };
        // The slice column once more at the end: it may be one that the digest leaves out.
        let column = quote::identifier(&self.column);
        self.look(range, &format!("{columns}, {column}"), &mut each);
        measures
    }

    /// Shows columns of the slice's rows.
    pub fn look_at(&self, columns: &[&str], sink: &mut dyn Sink) {
        self.look(self.bounds.pair, &table::list(columns), sink);
    }

    /// Shows what aggregates make of the slice's rows, in which it is called `t`.
    pub fn summarize(&self, aggregates: &str, sink: &mut dyn Sink) {
        self.look(self.bounds.pair, aggregates, sink);
    }

    /// Shows columns of the slice's rows, and where each row is.
    pub fn look_at_places(&self, columns: &[&str], sink: &mut dyn Sink) {
        let columns: String = columns.iter().map(|name| format!("{}, ", quote::identifier(name))).collect();
        self.look(self.bounds.pair, &format!("{columns}t.tableoid, t.ctid"), sink);
    }

    fn look(&self, bounds: Pair, columns: &str, sink: &mut dyn Sink) {
        let sql = format!("SELECT {columns} FROM {} AS t WHERE {}", self.table.shown(), self.inside());
        let look = || {
            let select = Select::of_ours(&sql, bounds.type_oid);
            let query = select.query();
            unsafe { executor::select(query, select.text(), bounds, Sight::Now, None, sink) };
        };
        Author::Role(self.table.owner).run(|| settings::for_slice(|| faithful(look)));
    }

    /// Deletes the slice, as whoever calls; says how many rows it was.
    pub fn delete(&self) -> u64 {
        let sql = format!("DELETE FROM {} AS t WHERE {}", self.table.shown(), self.inside());
        faithful(|| executor::write(&sql, Some(self.bounds.pair), None))
    }

    /// Deletes the rows at some places of the slice, as whoever calls and as a part of a statement; says how many were
    /// there.
    pub fn delete_at(&self, places: &Batch) -> u64 {
        self.write_part(
            &format!("DELETE FROM {} AS t USING {}", self.table.shown(), self.at_places()),
            Some(self.bounds.pair),
            places,
        )
    }

    /// Gives columns of rows at some places new values, in the same way; says how many were there.
    pub fn update_at(&self, columns: &[&str], rows: &Batch) -> u64 {
        let set: Vec<String> = columns
            .iter()
            .map(|name| quote::identifier(name))
            .map(|name| format!("{name} = g.{name}"))
            .collect();
        let (table, set) = (self.table.shown(), set.join(", "));
        let sql = format!("UPDATE {table} AS t SET {set} FROM {}", self.at_places());
        self.write_part(&sql, Some(self.bounds.pair), rows)
    }

    /// Inserts new rows, in the same way; says how many.
    pub fn insert(&self, columns: &[&str], rows: &Batch) -> u64 {
        self.write_part(&table::insertion(&self.table.shown(), columns), None, rows)
    }

    fn write_part(&self, sql: &str, bounds: Option<Pair>, rows: &Batch) -> u64 {
        if rows.count() == 0 { 0 } else { executor::write_part(sql, bounds, Some(rows)) }
    }
}

/// The single number of a count.
struct Count(u64);

impl Sink for Count {
    fn start(&mut self, _shape: pg_sys::TupleDesc) {}

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        self.0 = unsafe { (*(*slot).tts_values).value() as u64 };
    }
}

struct Measuring {
    digester: Option<Digester>,
    rows: u64,
}

impl Sink for Measuring {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        self.digester = Some(Digester::new(shape));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        self.rows += 1;
        if let Some(digester) = self.digester.as_mut() {
            unsafe { digester.add(slot) };
        }
    }
}

/// Sorts rows by the window that they lie in.
struct MeasuringEach<'m> {
    digester: Option<Digester>,
    /// How many columns come before the slice column.
    columns: usize,
    windows: Vec<Bounds>,
    measures: &'m mut [Measure],
}

impl Sink for MeasuringEach<'_> {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        self.digester = Some(Digester::of(0..self.columns, shape));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let value = unsafe { *(*slot).tts_values.add(self.columns) };
        let place = self.windows.partition_point(|bounds| bounds.end_by(value));
        let is_inside = self.windows.get(place).is_some_and(|bounds| bounds.contain(value));
        if let Some(digester) = self.digester.as_mut().filter(|_| is_inside) {
            self.measures[place].rows += 1;
            self.measures[place].digest += unsafe { digester.of_row(slot) };
        }
    }
}
