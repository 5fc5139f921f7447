//! Which windows of a table this transaction stands behind the fence of, at a price that every row can pay.
//!
//! The proof is the ledger: a run whose newest fence is this transaction's, and which it did not end otherwise than as
//! done. A run of a plan that publishes all windows at once may write the target only when that happens, a verification
//! never. What was read is kept until something may have changed it: another fence, the end of a run, a savepoint that was
//! rolled back (and the fence with it), a change of the table or of a pipeline, the end of the transaction.

use crate::domain::zone::Instant;
use crate::ledger::gate;
use crate::ledger::pipeline::{self, Pipeline};
use crate::postgres::segment::Bounds;
use crate::postgres::{meaning, quote, role, settings, spi};
use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::rc::Rc;

/// A pipeline whose slices lie in the table.
pub struct Watch {
    pub pipeline: Pipeline,
    /// The slice column.
    pub column: String,
    /// The number of that column in the table; `None` if it has none.
    pub place: Option<i16>,
    /// The windows that are fenced, in ascending order.
    pub windows: Vec<Bounds>,
}

/// What is known of a table, which may be a partition.
pub struct Sight {
    relation: pg_sys::Oid,
    pub watches: Vec<Watch>,
}

#[derive(Default)]
struct Sights {
    last: Option<Rc<Sight>>,
    all: HashMap<u32, Rc<Sight>>,
}

thread_local! {
    static SIGHTS: RefCell<Sights> = RefCell::default();
}

/// Called once, when the library is loaded.
pub fn init() {
    unsafe {
        pg_sys::RegisterXactCallback(Some(at_transaction_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_savepoint), std::ptr::null_mut());
        pg_sys::CacheRegisterRelcacheCallback(Some(at_table_change), pg_sys::Datum::null());
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_transaction_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    if matches!(event, XACT_EVENT_ABORT | XACT_EVENT_COMMIT | XACT_EVENT_PREPARE) {
        forget();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_savepoint(
    event: pg_sys::SubXactEvent::Type,
    _mine: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        forget();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_table_change(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    meaning::forget();
    let is_known = relation == pg_sys::InvalidOid
        || SIGHTS.with_borrow(|sights| sights.all.contains_key(&u32::from(relation)));
    if is_known {
        forget();
    }
}

/// What was read may not be so any more.
pub fn forget() {
    SIGHTS.take();
}

/// What is known of the table now.
pub fn sight(relation: pg_sys::Oid) -> Rc<Sight> {
    let known = SIGHTS.with_borrow_mut(|sights| {
        if sights.last.as_ref().is_none_or(|last| last.relation != relation) {
            sights.last = sights.all.get(&u32::from(relation)).cloned();
        }
        sights.last.clone()
    });
    known.unwrap_or_else(|| {
        let sight = Rc::new(settings::pinned(|| Sight::read(relation)));
        SIGHTS.with_borrow_mut(|sights| sights.all.insert(u32::from(relation), sight.clone()));
        sight
    })
}

const FENCED: &str = "SELECT pipeline_id, window_start, window_end FROM backfill.run_data
    WHERE token = ANY ($1) AND fence_xid = pg_catalog.pg_current_xact_id_if_assigned()
      AND (outcome IS NULL OR outcome = 'done') AND (NOT together OR published_at IS NOT NULL)
      AND run_kind <> 'verify'
    ORDER BY window_start";

impl Sight {
    fn read(relation: pg_sys::Oid) -> Self {
        let pipelines = pipeline::over(relation);
        let tokens = gate::tokens();
        let fenced = if pipelines.is_empty() || tokens.is_empty() {
            vec![]
        } else {
            role::as_ledger(|| {
                spi::latest(FENCED, &[tokens.into()], |row| {
                    (row.at::<i64>(1), [row.at::<Instant>(2), row.at::<Instant>(3)])
                })
            })
        };
        let watches = pipelines.into_iter().map(|pipeline| Watch::new(relation, pipeline, &fenced));
        Self { relation, watches: watches.collect() }
    }

    /// Whether a row lies in a window that is fenced, given its columns by their numbers. NULL lies in none.
    pub fn holds(&self, value: impl Fn(i16) -> Option<pg_sys::Datum>) -> bool {
        self.watches.iter().filter(|watch| !watch.windows.is_empty()).any(|watch| {
            let Some(value) = watch.place.and_then(&value) else { return false };
            let place = watch.windows.partition_point(|window| window.end_by(value));
            watch.windows.get(place).is_some_and(|window| window.contain(value))
        })
    }
}

impl Watch {
    fn new(relation: pg_sys::Oid, pipeline: Pipeline, fenced: &[(i64, [Instant; 2])]) -> Self {
        let column = pipeline.slice_column.clone().unwrap_or_default();
        let place = unsafe { pg_sys::get_attnum(relation, quote::c_string(&column).as_ptr()) };
        let place = (place > 0).then_some(place);
        let windows = place.map_or(vec![], |place| {
            let type_oid = unsafe { pg_sys::getBaseType(pg_sys::get_atttype(relation, place)) };
            let own = fenced.iter().filter(|(pipeline_id, _)| *pipeline_id == pipeline.id);
            own.filter_map(|(_, window)| {
                Bounds::new(type_oid, &pipeline.grid.at(window[0]).grid.zone, *window)
            })
            .collect()
        });
        Self { pipeline, column, place, windows }
    }
}
