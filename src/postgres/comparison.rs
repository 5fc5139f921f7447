//! What a slice holds, held to the rows that it is to hold.
//!
//! Two rows are the same if their digests are: the text of each column counts, not what `=` makes of it, which
//! some types have not and others find for different values. So the slice has the digest of the new rows
//! afterwards, and a column's collation or operators have no part in it.
//!
//! The old rows are seen as they are committed now, at every isolation level, in one look and without locks.
//! Whoever writes afterwards must find out whether they stayed: see [`Comparison::look_again`].

use crate::domain::pairing::{Found, Mark, Pairing};
use crate::error::faithful;
use crate::postgres::batch::Batch;
use crate::postgres::digest::{Digest, Digester};
use crate::postgres::executor::{Sink, together};
use crate::postgres::rows::Rows;
use crate::postgres::segment::Segment;
use crate::postgres::settings;
use pgrx::{itemptr, pg_sys};

/// Where a row lies: it stays there until somebody writes it, and nothing else comes there while a transaction
/// may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    table: u32,
    block: u32,
    offset: u16,
}

impl Place {
    /// Of the row in a slot, whose last two columns tell.
    unsafe fn of(slot: *mut pg_sys::TupleTableSlot, columns: usize) -> Self {
        unsafe {
            let values = (*slot).tts_values;
            let (block, offset) = itemptr::item_pointer_get_both(*(*values.add(columns + 1)).cast_mut_ptr());
            Self { table: (*values.add(columns)).value() as u32, block, offset }
        }
    }

    fn pointer(self) -> pg_sys::ItemPointerData {
        let mut pointer = pg_sys::ItemPointerData::default();
        itemptr::item_pointer_set_all(&mut pointer, self.block, self.offset);
        pointer
    }

    /// Adds a row to a batch whose last two columns tell this place.
    unsafe fn add(self, batch: &mut Batch, mut values: Vec<pg_sys::Datum>, mut nulls: Vec<bool>) {
        let mut pointer = self.pointer();
        values.push(pg_sys::Datum::from(self.table));
        values.push(pg_sys::Datum::from(&raw mut pointer));
        nulls.extend([false; 2]);
        unsafe { batch.add_values(&mut values, &mut nulls) };
    }
}

/// The shape of some columns with a place behind them, as [`Segment::look_at_places`] shows it.
fn with_place(shape: Option<pg_sys::TupleDesc>) -> pg_sys::TupleDesc {
    unsafe {
        let columns = shape.map_or(0, |shape| (*shape).natts) as i16;
        let with_place = pg_sys::CreateTemplateTupleDesc(i32::from(columns) + 2);
        for column in 1..=columns {
            pg_sys::TupleDescCopyEntry(with_place, column, shape.unwrap_or(with_place), column);
        }
        for (column, name, type_oid) in
            [(columns + 1, c"tableoid", pg_sys::OIDOID), (columns + 2, c"ctid", pg_sys::TIDOID)]
        {
            pg_sys::TupleDescInitEntry(with_place, column, name.as_ptr(), type_oid, -1, 0);
        }
        with_place
    }
}

/// How the rows that differ are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Rows go before others come, so that these may take their places in unique indexes. Foreign keys are checked when
    /// all is done: rows of one table may refer to each other.
    Together,
    /// The same, but rows come before others go: a foreign key that acts must not lose the rows of a key that is
    /// written in another way (`1.0` and `1.00`); its index refuses it.
    Gently,
    /// Each statement with all that follows from it: foreign keys act on rows that go before these come again, else
    /// they would act on what comes.
    Apart,
}

/// What came of a comparison.
pub enum Outcome {
    /// The slice is empty.
    Empty,
    /// It has more rows than can be kept in memory.
    TooLarge,
    Found(Comparison),
}

/// How a slice differs from the rows that it is to hold.
pub struct Comparison {
    /// How many rows the slice holds.
    pub before: u64,
    pub order: Order,
    /// Where rows are that stay, in order.
    kept: Vec<Place>,
    /// The places of rows that go.
    pub gone: Batch,
    /// New rows, each with the place of the row that has its key.
    pub changed: Batch,
    /// All other new rows.
    pub fresh: Batch,
}

impl Comparison {
    /// How many old rows may be kept in memory.
    pub fn room() -> u64 {
        let memory = unsafe { pg_sys::work_mem.max(pg_sys::maintenance_work_mem) } as u64 * 1024;
        memory / Pairing::<Place>::BYTES
    }

    /// Holds the slice to new rows of these columns; changed rows are found by the columns of a key, if there
    /// is one. `cautious` where a foreign key acts on rows that are deleted.
    pub fn of(
        target: &Segment,
        columns: &[&str],
        rows: &Rows,
        key: Option<&[String]>,
        cautious: bool,
    ) -> Outcome {
        let order = match (cautious, key) {
            (false, _) => Order::Together,
            (true, Some(_)) => Order::Gently,
            (true, None) => Order::Apart,
        };
        let key: Option<Vec<usize>> = key.map(|key| {
            let place = |name: &String| columns.iter().position(|column| column == name);
            key.iter().map(|name| place(name).expect("the new rows have the key")).collect()
        });
        let mut old = Old {
            columns: columns.len(),
            key: key.as_deref(),
            marker: None,
            room: Self::room(),
            pairing: Some(Pairing::default()),
        };
        target.look_at_places(columns, &mut old);
        let Some(mut pairing) = old.pairing else { return Outcome::TooLarge };
        if pairing.count() == 0 {
            return Outcome::Empty;
        }
        let shape = rows.batch().shape();
        let mut changed = Batch::new(with_place(Some(shape)));
        let mut fresh = Batch::new(shape);
        settings::for_text(|| {
            let mut marker = Marker::new(columns.len(), key.as_deref(), shape);
            rows.batch().each(|slot| unsafe {
                let (row, key) = marker.marks(slot);
                match pairing.find(row, key) {
                    Found::Same => (),
                    Found::Changed(place) => {
                        let values = std::slice::from_raw_parts((*slot).tts_values, columns.len());
                        let nulls = std::slice::from_raw_parts((*slot).tts_isnull, columns.len());
                        place.add(&mut changed, values.to_vec(), nulls.to_vec());
                    }
                    Found::New => fresh.add(slot),
                }
            });
        });
        let mut gone = Batch::new(with_place(None));
        for place in pairing.gone() {
            unsafe { place.add(&mut gone, vec![], vec![]) };
        }
        let mut kept: Vec<Place> = pairing.kept().collect();
        kept.sort_unstable();
        Outcome::Found(Self { before: pairing.count() as u64, order, kept, gone, changed, fresh })
    }

    /// How many rows stay as they are.
    pub fn kept(&self) -> u64 {
        self.kept.len() as u64
    }

    /// Whether at least half of the old rows stay. For more rows that differ, finding and writing each takes longer
    /// than a new slice does.
    pub fn pays(&self) -> bool {
        self.kept() * 2 >= self.before
    }

    /// Whether a row that goes may come again, changed: there is no key to tell.
    pub fn may_repeat(&self) -> bool {
        self.order == Order::Apart && self.gone.count() > 0 && self.fresh.count() > 0
    }

    /// Writes what differs, as whoever calls; says how many rows were deleted, updated and inserted.
    pub fn write(&self, target: &Segment, columns: &[&str]) -> [u64; 3] {
        let delete = || target.delete_at(&self.gone);
        let update = || target.update_at(columns, &self.changed);
        let insert = || target.insert(columns, &self.fresh);
        faithful(|| match self.order {
            Order::Together => together(|| [delete(), update(), insert()]),
            Order::Gently => together(|| {
                let inserted = insert();
                [delete(), update(), inserted]
            }),
            Order::Apart => [together(delete), together(update), together(insert)],
        })
    }

    /// Looks at the slice again, as committed now. Somebody who writes without the fence may have changed a row
    /// that was to stay: it is not where it was then. The digest is taken of `columns`.
    pub fn look_again(&self, target: &Segment, columns: &[&str]) -> Held {
        let held = Held { rows: 0, kept: 0, digest: Digest::default() };
        let mut again = Again { columns: columns.len(), digester: None, places: &self.kept, held };
        target.look_at_places(columns, &mut again);
        again.held
    }
}

/// What a slice holds after it was written.
pub struct Held {
    pub rows: u64,
    /// How many of the rows that were to stay are still there.
    pub kept: u64,
    pub digest: Digest,
}

/// Takes the marks of rows and of their keys.
struct Marker {
    row: Digester,
    key: Option<Digester>,
}

impl Marker {
    fn new(columns: usize, key: Option<&[usize]>, shape: pg_sys::TupleDesc) -> Self {
        let key = key.map(|key| Digester::of(key.iter().copied(), shape));
        Self { row: Digester::of(0..columns, shape), key }
    }

    unsafe fn marks(&mut self, slot: *mut pg_sys::TupleTableSlot) -> (Mark, Option<Mark>) {
        let mark = |digester: &mut Digester| unsafe { digester.of_row(slot) }.mark();
        (mark(&mut self.row), self.key.as_mut().map(mark))
    }
}

/// Takes the rows of the slice.
struct Old<'k> {
    columns: usize,
    key: Option<&'k [usize]>,
    marker: Option<Marker>,
    room: u64,
    /// `None` if they were too many.
    pairing: Option<Pairing<Place>>,
}

impl Sink for Old<'_> {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        self.marker = Some(Marker::new(self.columns, self.key, shape));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let Some(pairing) = &mut self.pairing else { return };
        if pairing.count() as u64 == self.room {
            self.pairing = None;
            return;
        }
        let marker = self.marker.as_mut().expect("the shape came first");
        unsafe {
            let (row, key) = marker.marks(slot);
            pairing.add(row, key, Place::of(slot, self.columns));
        }
    }
}

/// Takes the rows of the slice once more.
struct Again<'k> {
    columns: usize,
    digester: Option<Digester>,
    places: &'k [Place],
    held: Held,
}

impl Sink for Again<'_> {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        self.digester = (self.columns > 0).then(|| Digester::of(0..self.columns, shape));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let place = unsafe { Place::of(slot, self.columns) };
        self.held.rows += 1;
        self.held.kept += u64::from(self.places.binary_search(&place).is_ok());
        if let Some(digester) = &mut self.digester {
            self.held.digest += unsafe { digester.of_row(slot) };
        }
    }
}
