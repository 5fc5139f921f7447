//! How rows that were built differ from those that a slice holds: as multisets, and by their text, as digests compare.
//!
//! The digests of both sides are enough to say that they are the same. Only where they are not, rows are counted one by one,
//! as long as the digests of the new ones fit into memory.

use crate::postgres::batch::Batch;
use crate::postgres::comparison::Comparison;
use crate::postgres::digest::{Digest, Digester};
use crate::postgres::executor::Sink;
use crate::postgres::segment::{Measure, Segment};
use crate::postgres::settings;
use pgrx::pg_sys;
use std::collections::HashMap;

/// What two sides hold, and what of it is on one side only.
#[derive(Debug, Default)]
pub struct Discrepancy {
    pub held: Measure,
    pub built: Measure,
    /// Rows that one side has and the other has not, each as often as it is missing there: held, built. `None` where there
    /// are too many to be counted.
    pub only: Option<[u64; 2]>,
    /// The columns in which they differ, where rows of both sides do.
    pub columns: Vec<String>,
}

/// Some columns of new rows, by their names and places.
pub struct Columns<'c> {
    pub names: Vec<&'c str>,
    pub places: Vec<usize>,
    /// The places among `names` of those that tell a row from all others.
    pub key: Option<Vec<usize>>,
}

/// Pairs of rows with one key that are looked at.
const PAIRS: usize = 10_000;

impl Discrepancy {
    /// Whether both sides hold the same rows.
    pub fn is_none(&self) -> bool {
        self.only == Some([0; 2])
    }

    /// Holds rows to what the slice holds of the same columns.
    pub fn of(slice: &Segment, rows: &Batch, columns: &Columns) -> Self {
        let mut digester = Digester::of(columns.places.iter().copied(), rows.shape());
        let mut built = Measure { rows: rows.count(), digest: Digest::default() };
        settings::for_text(|| rows.each(|slot| built.digest += unsafe { digester.of_row(slot) }));
        let held = slice.measure_of(&columns.names);
        let undecided = Self { held, built, only: Some([0; 2]), columns: vec![] };
        if held == built {
            return undecided;
        }
        if built.rows > Comparison::room() {
            return Self { only: None, ..undecided };
        }
        let mut left: HashMap<Digest, u64> = HashMap::new();
        settings::for_text(|| {
            rows.each(|slot| *left.entry(unsafe { digester.of_row(slot) }).or_default() += 1);
        });
        // The rows of the slice that the new ones have not, and then the other way round.
        let mut held_only = Unmatched::new(columns, &mut left);
        slice.look_at(&columns.names, &mut held_only);
        let (gone, gone_cells) = (held_only.found, held_only.cells.take());
        let mut cells = Cells::new(columns, &columns.places, rows.shape());
        let mut fresh = 0;
        settings::for_text(|| {
            rows.each(|slot| {
                let row = unsafe { digester.of_row(slot) };
                if let Some(count) = left.get_mut(&row).filter(|count| **count > 0) {
                    *count -= 1;
                    fresh += 1;
                    unsafe { cells.add(slot) };
                }
            });
        });
        let differing = match gone_cells {
            Some(gone_cells) if gone > 0 && fresh > 0 => gone_cells.differing(&cells),
            _ => vec![],
        };
        let columns = differing.into_iter().map(|column| columns.names[column].to_owned()).collect();
        Self { only: Some([gone, fresh]), columns, ..undecided }
    }
}

/// The digests of the values of some rows: of each column all together, and where rows have a key, of each row apart.
struct Cells {
    columns: Vec<Digester>,
    key: Option<Digester>,
    sums: Vec<Digest>,
    by_key: HashMap<Digest, Vec<Digest>>,
}

impl Cells {
    /// Of rows of a shape in which the columns have these places.
    fn new(columns: &Columns, places: &[usize], shape: pg_sys::TupleDesc) -> Self {
        let key = columns.key.as_ref().map(|key| key.iter().map(|column| places[*column]));
        Self {
            columns: places.iter().map(|place| Digester::of([*place], shape)).collect(),
            key: key.map(|key| Digester::of(key, shape)),
            sums: vec![Digest::default(); places.len()],
            by_key: HashMap::new(),
        }
    }

    unsafe fn add(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let values: Vec<Digest> =
            self.columns.iter_mut().map(|column| unsafe { column.of_row(slot) }).collect();
        for (sum, value) in self.sums.iter_mut().zip(&values) {
            *sum += *value;
        }
        if let Some(key) = self.key.as_mut().filter(|_| self.by_key.len() < PAIRS) {
            self.by_key.insert(unsafe { key.of_row(slot) }, values);
        }
    }

    /// The columns that differ from those of other rows: in rows of one key, where there are such, else in what they hold
    /// all together.
    fn differing(&self, other: &Self) -> Vec<usize> {
        let pairs = || {
            self.by_key
                .iter()
                .filter_map(|(key, values)| other.by_key.get(key).map(|others| (values, others)))
        };
        let differs = |column: &usize| match pairs().next() {
            Some(_) => pairs().any(|(values, others)| values[*column] != others[*column]),
            None => self.sums[*column] != other.sums[*column],
        };
        (0..self.columns.len()).filter(differs).collect()
    }
}

/// Takes the rows of the slice from the new ones, and keeps those that are not among them.
struct Unmatched<'u> {
    columns: &'u Columns<'u>,
    left: &'u mut HashMap<Digest, u64>,
    digester: Option<Digester>,
    cells: Option<Cells>,
    found: u64,
}

impl<'u> Unmatched<'u> {
    fn new(columns: &'u Columns<'u>, left: &'u mut HashMap<Digest, u64>) -> Self {
        Self { columns, left, digester: None, cells: None, found: 0 }
    }
}

impl Sink for Unmatched<'_> {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        let places: Vec<usize> = (0..self.columns.names.len()).collect();
        self.digester = Some(Digester::new(shape));
        self.cells = Some(Cells::new(self.columns, &places, shape));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let (Some(digester), Some(cells)) = (&mut self.digester, &mut self.cells) else { return };
        match self.left.get_mut(&unsafe { digester.of_row(slot) }) {
            Some(left) if *left > 0 => *left -= 1,
            _ => {
                self.found += 1;
                unsafe { cells.add(slot) };
            }
        }
    }
}
