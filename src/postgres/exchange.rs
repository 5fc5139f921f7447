//! Storage of a table built beside it and exchanged with its own, as CLUSTER does.
//!
//! The table keeps its number and with it all that hangs on it: privileges, comments, options, constraints, indexes and
//! their names, statistics. What changes is the files that it, its indexes and its TOAST table consist of. Indexes are
//! built before anything is locked: `finish_heap_swap` would build them while readers wait.
//!
//! The rows are written frozen. Nobody can see them before COMMIT, since no other session finds the files. Afterwards
//! everybody does, also under a snapshot that is older, which would else find the table empty.

use crate::error::{Code, Error, Result, faithful};
use crate::postgres::batch::Batch;
use crate::postgres::{quote, subtransaction};
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary as guarded;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTupleDesc, pg_sys};
use std::ffi::{CStr, c_char};

// pgrx does not bind these. They may raise errors: `guarded` makes those Rust's.
unsafe extern "C-unwind" {
    fn make_new_heap(
        old: pg_sys::Oid,
        tablespace: pg_sys::Oid,
        access_method: pg_sys::Oid,
        persistence: c_char,
        mode: pg_sys::LOCKMODE,
    ) -> pg_sys::Oid;
    fn toast_get_valid_index(toast: pg_sys::Oid, mode: pg_sys::LOCKMODE) -> pg_sys::Oid;
    fn CheckTableForSerializableConflictIn(relation: pg_sys::Relation);
    fn TransferPredicateLocksToHeapRelation(relation: pg_sys::Relation);
}

const NO_LOCK: pg_sys::LOCKMODE = pg_sys::NoLock as pg_sys::LOCKMODE;
const WRITING: pg_sys::LOCKMODE = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
const ALONE: pg_sys::LOCKMODE = pg_sys::AccessExclusiveLock as pg_sys::LOCKMODE;

/// As COPY does: so many rows are written at once, or so many bytes.
const ROWS_AT_ONCE: usize = 1000;
const BYTES_AT_ONCE: u32 = 65_535;

/// An open relation. Its lock stays to the end of the transaction.
struct Opened(pg_sys::Relation);

impl Opened {
    fn table(oid: pg_sys::Oid, mode: pg_sys::LOCKMODE) -> Self {
        Self(unsafe { pg_sys::table_open(oid, mode) })
    }

    fn shape(&self) -> pg_sys::TupleDesc {
        unsafe { (*self.0).rd_att }
    }

    fn class(&self) -> &pg_sys::FormData_pg_class {
        unsafe { &*(*self.0).rd_rel }
    }

    fn indexes(&self) -> Vec<pg_sys::Oid> {
        unsafe {
            let list = pg_sys::RelationGetIndexList(self.0);
            let count = if list.is_null() { 0 } else { (*list).length };
            (0..count).map(|i| pg_sys::list_nth_oid(list, i)).collect()
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // After an error the (sub)transaction closes it.
        if !std::thread::panicking() {
            unsafe { pg_sys::relation_close(self.0, NO_LOCK) };
        }
    }
}

/// Storage beside that of a table, whose shape it has.
pub struct Storage {
    of: pg_sys::Oid,
    heap: pg_sys::Oid,
    /// Each index of the table, and the one beside it.
    indexes: Vec<[pg_sys::Oid; 2]>,
    rows: u64,
}

/// Locks all that is exchanged: the table, its indexes, and its TOAST table, which is vacuumed on its own.
pub fn lock_out(table: pg_sys::Oid) {
    let table = Opened::table(table, ALONE);
    let toast = table.class().reltoastrelid;
    for part in table.indexes().into_iter().chain((toast != pg_sys::InvalidOid).then_some(toast)) {
        unsafe { pg_sys::LockRelationOid(part, ALONE) };
    }
}

impl Storage {
    /// Builds it of rows that have these columns, all that the table has. The table is locked as writing does, so that
    /// neither its shape nor its indexes change. Rows that a constraint refuses are refused (23502, 23514, 23505).
    pub fn build(table: pg_sys::Oid, columns: &[&str], rows: &Batch) -> Result<Self> {
        let old = Opened::table(table, WRITING);
        let class = old.class();
        let heap = faithful(|| unsafe {
            let (tablespace, method, persistence) = (class.reltablespace, class.relam, class.relpersistence);
            guarded(|| make_new_heap(table, tablespace, method, persistence, WRITING))
        });
        let new = Opened::table(heap, ALONE);
        faithful(|| unsafe { fill(&old, &new, columns, rows) });
        let mut indexes = vec![];
        for index in old.indexes() {
            let build = || subtransaction::attempt(|| unsafe { copy_index(&new, index) });
            indexes.push([index, faithful(|| build().map_err(|caught| not_unique(index, caught)))?]);
        }
        Ok(Self { of: table, heap, indexes, rows: rows.count() })
    }

    /// Exchanges it for the table's own, which goes. The table is [locked out](lock_out).
    pub fn exchange(self) {
        faithful(|| unsafe {
            let old = Opened::table(self.of, NO_LOCK);
            // A cursor of this session would read on in files that are gone.
            pg_sys::CheckTableNotInUse(old.0, c"replace a slice of".as_ptr());
            assert!(
                old.indexes().iter().eq(self.indexes.iter().map(|[index, _]| index)),
                "an index came or went"
            );
            // What somebody has read by an index is locked there only.
            for [index, _] in &self.indexes {
                let index = Opened(pg_sys::index_open(*index, NO_LOCK));
                guarded(|| TransferPredicateLocksToHeapRelation(index.0));
            }
            guarded(|| {
                TransferPredicateLocksToHeapRelation(old.0);
                CheckTableForSerializableConflictIn(old.0);
            });
            let new = Opened::table(self.heap, NO_LOCK);
            let size = Size::of(&new, self.rows);
            drop((old, new));
            swap_files(self.of, self.heap, Some(size));
            self.indexes.iter().for_each(|[old, new]| swap_files(*old, *new, None));
            pg_sys::CommandCounterIncrement();
            drop_table(self.heap);
            let now = Opened::table(self.of, NO_LOCK);
            name_toast(&now);
            // So that the table is analysed when its time has come, and not vacuumed for what is gone.
            pg_sys::pgstat_count_truncate(now.0);
            pg_sys::pgstat_count_heap_insert(now.0, self.rows as i64);
        });
    }
}

/// A unique index could not be built of the new rows (23505); any other error goes on.
fn not_unique(index: pg_sys::Oid, caught: CaughtError) -> Error {
    match &caught {
        CaughtError::PostgresError(report)
            if report.sql_error_code() == PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION =>
        {
            let name = quote::relation(index);
            Error::new(Code::NotUnique, format!("the new rows violate unique index {name}"))
                .detail(report.detail().unwrap_or("Two of them have the same key.").to_owned())
                .hint("Give each key once; nothing was changed.")
        }
        _ => caught.rethrow(),
    }
}

/// Writes the rows. Their columns are matched by name: the table may have others that were dropped.
unsafe fn fill(old: &Opened, new: &Opened, columns: &[&str], rows: &Batch) {
    unsafe {
        let shape = PgTupleDesc::from_pg_unchecked(old.shape());
        let place = |attribute: &pg_sys::FormData_pg_attribute| {
            let name = CStr::from_ptr(attribute.attname.data.as_ptr()).to_bytes();
            columns.iter().position(|column| !attribute.attisdropped && column.as_bytes() == name)
        };
        let places: Vec<Option<usize>> = (0..shape.len()).map(|i| shape.get(i).and_then(place)).collect();
        let mut writing = Writing::start(old, new);
        rows.each(|row| writing.add(row, &places));
        writing.end();
    }
}

/// Rows on their way into new storage.
struct Writing<'w> {
    into: &'w Opened,
    /// The table whose constraints hold.
    checked: pg_sys::ResultRelInfo,
    state: *mut pg_sys::EState,
    /// Forgotten after each write.
    memory: pg_sys::MemoryContext,
    bulk: pg_sys::BulkInsertState,
    slots: Vec<*mut pg_sys::TupleTableSlot>,
    filled: usize,
    bytes: u32,
}

impl<'w> Writing<'w> {
    unsafe fn start(table: &Opened, into: &'w Opened) -> Self {
        unsafe {
            let state = pg_sys::CreateExecutorState();
            pg_sys::MakePerTupleExprContext(state);
            let mut checked = pg_sys::ResultRelInfo {
                type_: pg_sys::NodeTag::T_ResultRelInfo,
                ..pg_sys::ResultRelInfo::default()
            };
            pg_sys::InitResultRelInfo(&mut checked, table.0, 0, std::ptr::null_mut(), 0);
            Self {
                into,
                checked,
                state,
                memory: pg_sys::AllocSetContextCreateInternal(
                    pg_sys::CurrentMemoryContext,
                    c"pg_backfill rows".as_ptr(),
                    pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                    pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                    pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
                ),
                bulk: pg_sys::GetBulkInsertState(),
                slots: vec![],
                filled: 0,
                bytes: 0,
            }
        }
    }

    unsafe fn add(&mut self, row: *mut pg_sys::TupleTableSlot, places: &[Option<usize>]) {
        unsafe {
            if self.filled == self.slots.len() {
                let shape = self.into.shape();
                self.slots.push(pg_sys::MakeSingleTupleTableSlot(shape, &raw const pg_sys::TTSOpsHeapTuple));
            }
            let slot = self.slots[self.filled];
            for (i, place) in places.iter().enumerate() {
                let null = place.is_none_or(|place| *(*row).tts_isnull.add(place));
                *(*slot).tts_isnull.add(i) = null;
                let value = place.filter(|_| !null).map(|place| *(*row).tts_values.add(place));
                *(*slot).tts_values.add(i) = value.unwrap_or(pg_sys::Datum::from(0));
            }
            pg_sys::ExecStoreVirtualTuple(slot);
            if !(*(*self.checked.ri_RelationDesc).rd_att).constr.is_null() {
                pg_sys::ExecConstraints(&mut self.checked, slot, self.state);
            }
            pg_sys::ExecPartitionCheck(&mut self.checked, slot, self.state, true);
            pg_sys::MemoryContextReset((*(*self.state).es_per_tuple_exprcontext).ecxt_per_tuple_memory);
            // The values are the row's, which goes.
            let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, true, std::ptr::null_mut());
            self.bytes = self.bytes.saturating_add((*tuple).t_len);
            self.filled += 1;
            if self.filled == ROWS_AT_ONCE || self.bytes > BYTES_AT_ONCE {
                self.write();
            }
        }
    }

    unsafe fn write(&mut self) {
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo(self.memory);
            pg_sys::heap_multi_insert(
                self.into.0,
                self.slots.as_mut_ptr(),
                self.filled as i32,
                pg_sys::GetCurrentCommandId(true),
                (pg_sys::HEAP_INSERT_SKIP_FSM | pg_sys::HEAP_INSERT_FROZEN) as i32,
                self.bulk,
            );
            pg_sys::MemoryContextSwitchTo(before);
            pg_sys::MemoryContextReset(self.memory);
            for slot in &self.slots[..self.filled] {
                pg_sys::ExecClearTuple(*slot);
            }
            (self.filled, self.bytes) = (0, 0);
        }
    }

    unsafe fn end(mut self) {
        unsafe {
            if self.filled > 0 {
                self.write();
            }
            self.slots.iter().for_each(|slot| pg_sys::ExecDropSingleTupleTableSlot(*slot));
            pg_sys::FreeBulkInsertState(self.bulk);
            pg_sys::FreeExecutorState(self.state);
            pg_sys::MemoryContextDelete(self.memory);
        }
    }
}

/// Builds an index like one of the table's over the new rows. It is never used as it is: its state in the catalog is that
/// of one that CREATE INDEX CONCURRENTLY has begun.
unsafe fn copy_index(heap: &Opened, index: pg_sys::Oid) -> pg_sys::Oid {
    unsafe {
        let old = pg_sys::index_open(index, WRITING);
        let tablespace = (*(*old).rd_rel).reltablespace;
        pg_sys::index_close(old, NO_LOCK);
        let name = quote::c_string(&format!("pg_temp_{}", u32::from(index)));
        let oid = pg_sys::index_concurrently_create_copy(heap.0, index, tablespace, name.as_ptr());
        let new = pg_sys::index_open(oid, ALONE);
        pg_sys::index_build(heap.0, new, pg_sys::BuildIndexInfo(new), false, true);
        pg_sys::index_close(new, NO_LOCK);
        oid
    }
}

/// What the planner is told of new storage.
struct Size {
    pages: i32,
    rows: f32,
    visible: i32,
    #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
    frozen: i32,
}

impl Size {
    unsafe fn of(heap: &Opened, rows: u64) -> Self {
        unsafe {
            let (mut visible, mut frozen) = (0, 0);
            pg_sys::visibilitymap_count(heap.0, &mut visible, &mut frozen);
            Self {
                pages: pg_sys::RelationGetNumberOfBlocksInFork(heap.0, pg_sys::ForkNumber::MAIN_FORKNUM)
                    as i32,
                rows: rows as f32,
                visible: visible as i32,
                #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
                frozen: frozen as i32,
            }
        }
    }
}

/// A row of pg_class that can be changed.
struct Class(pg_sys::HeapTuple);

impl Class {
    fn read(oid: pg_sys::Oid) -> Self {
        let none = pg_sys::Datum::from(0);
        let cache = pg_sys::SysCacheIdentifier::RELOID as i32;
        let tuple = unsafe { pg_sys::SearchSysCacheCopy(cache, oid.into(), none, none, none) };
        assert!(!tuple.is_null(), "relation {} is missing", u32::from(oid));
        Self(tuple)
    }

    fn form(&mut self) -> &mut pg_sys::FormData_pg_class {
        unsafe { &mut *pg_sys::GETSTRUCT(self.0).cast() }
    }

    unsafe fn write(self, catalog: &Opened) {
        unsafe {
            pg_sys::CatalogTupleUpdate(catalog.0, &mut (*self.0).t_self, self.0);
            pg_sys::heap_freetuple(self.0);
        }
    }
}

/// PostgreSQL's own `swap_relation_files`, which it does not export, for relations that are no catalogs and whose TOAST
/// tables change hands. A heap comes with its new `size`.
unsafe fn swap_files(oid: pg_sys::Oid, other: pg_sys::Oid, size: Option<Size>) {
    unsafe {
        let catalog = Opened::table(pg_sys::RelationRelationId, WRITING);
        let mut classes = [oid, other].map(Class::read);
        let [mine, theirs] = classes.each_mut().map(Class::form);
        std::mem::swap(&mut mine.relfilenode, &mut theirs.relfilenode);
        std::mem::swap(&mut mine.reltablespace, &mut theirs.reltablespace);
        std::mem::swap(&mut mine.relpages, &mut theirs.relpages);
        std::mem::swap(&mut mine.reltuples, &mut theirs.reltuples);
        assume_new(oid, other);
        if let Some(size) = size {
            (mine.relpages, mine.reltuples, mine.relallvisible) = (size.pages, size.rows, size.visible);
            #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
            {
                mine.relallfrozen = size.frozen;
            }
            // It never goes back.
            if pg_sys::TransactionIdPrecedes(mine.relfrozenxid, theirs.relfrozenxid) {
                mine.relfrozenxid = theirs.relfrozenxid;
            }
            if pg_sys::MultiXactIdPrecedes(mine.relminmxid, theirs.relminmxid) {
                mine.relminmxid = theirs.relminmxid;
            }
            std::mem::swap(&mut mine.reltoastrelid, &mut theirs.reltoastrelid);
            let owners = [(mine.reltoastrelid, oid), (theirs.reltoastrelid, other)];
            let owners = owners.into_iter().filter(|(toast, _)| *toast != pg_sys::InvalidOid);
            for (toast, _) in owners.clone() {
                pg_sys::deleteDependencyRecordsFor(pg_sys::RelationRelationId, toast, false);
            }
            for (toast, owner) in owners {
                let [toast, owner] = [toast, owner].map(address);
                pg_sys::recordDependencyOn(&toast, &owner, pg_sys::DependencyType::DEPENDENCY_INTERNAL);
            }
        }
        classes.into_iter().for_each(|class| class.write(&catalog));
        // Each of the two would be left with a link to the other's file.
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        [oid, other].into_iter().for_each(|oid| pg_sys::RelationCloseSmgrByOid(oid));
    }
}

/// Tells the session which of the files are new in this transaction: at `wal_level = minimal` they are not logged.
unsafe fn assume_new(oid: pg_sys::Oid, other: pg_sys::Oid) {
    unsafe {
        let [mine, theirs] = [oid, other].map(|oid| Opened(pg_sys::relation_open(oid, NO_LOCK)));
        let (from, to) = (&*mine.0, &mut *theirs.0);
        to.rd_createSubid = from.rd_createSubid;
        #[cfg(feature = "pg15")]
        {
            to.rd_newRelfilenodeSubid = from.rd_newRelfilenodeSubid;
            to.rd_firstRelfilenodeSubid = from.rd_firstRelfilenodeSubid;
            pg_sys::RelationAssumeNewRelfilenode(mine.0);
        }
        #[cfg(not(feature = "pg15"))]
        {
            to.rd_newRelfilelocatorSubid = from.rd_newRelfilelocatorSubid;
            to.rd_firstRelfilelocatorSubid = from.rd_firstRelfilelocatorSubid;
            pg_sys::RelationAssumeNewRelfilelocator(mine.0);
        }
    }
}

fn address(oid: pg_sys::Oid) -> pg_sys::ObjectAddress {
    pg_sys::ObjectAddress { classId: pg_sys::RelationRelationId, objectId: oid, objectSubId: 0 }
}

/// Drops a table of this transaction, on which nothing depends.
unsafe fn drop_table(oid: pg_sys::Oid) {
    let (restrict, quietly) = (pg_sys::DropBehavior::DROP_RESTRICT, pg_sys::PERFORM_DELETION_INTERNAL as i32);
    unsafe { pg_sys::performDeletion(&address(oid), restrict, quietly) };
}

/// Gives the TOAST table the name that goes with its table, and ends its being part of a rewrite.
unsafe fn name_toast(table: &Opened) {
    let toast = table.class().reltoastrelid;
    if toast == pg_sys::InvalidOid {
        return;
    }
    unsafe {
        let index = guarded(|| toast_get_valid_index(toast, NO_LOCK));
        let name = format!("pg_toast_{}", u32::from((*table.0).rd_id));
        let [table_name, index_name] =
            [name.clone(), format!("{name}_index")].map(|name| quote::c_string(&name));
        pg_sys::RenameRelationInternal(toast, table_name.as_ptr(), true, false);
        pg_sys::RenameRelationInternal(index, index_name.as_ptr(), true, true);
        pg_sys::CommandCounterIncrement();
        pg_sys::ResetRelRewrite(toast);
    }
}
