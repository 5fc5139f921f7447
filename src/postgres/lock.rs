//! The mutexes of the ledger.
//!
//! They are heavyweight locks on objects of the class `backfill.run_data`: held to the end of the
//! transaction, seen in `pg_locks`, without a row to write (so no dead tuples and no WAL), and out of reach of
//! `pg_advisory_lock`, which any role may call. A key is 48 bits of a hash: two keys that collide make a
//! claim look elsewhere, nothing more, because the unique indexes of `run_data` decide.
//!
//! Order, for whoever waits at all: row of a lease, then versions (`Mixture`), then rows of the target, then gates; for people definitions, then decisions and
//! approvals, then the gate of the pipeline or of the pool, then rows of plans, pipelines and pools. Claims take window,
//! pool slot, limit slot and grid only if they are free and so never wait, as the lock of a target is taken.
//!
//! A fenced transaction takes the gates of its pipelines and pools shared at COMMIT; calls that end rights (cancel, skip,
//! lock, drop; pool_pause), or lift what ended them, take one exclusively. A person may hold several by then, of several
//! calls in one transaction, in any order. So a COMMIT takes its gates all at once: while it waits for one it holds
//! none, nothing that it does hold is asked for by a person, and it is in no cycle.
//!
//! All calls of people about one pipeline take its decisions first, so that two people meet there and not with one holding
//! a gate and the other the row of a plan. Two transactions that each decide about several pipelines or pools, in
//! opposite orders, do get a deadlock (40P01), as those do that write two rows in opposite orders.

use crate::postgres::{role, spi};
use pgrx::pg_sys;
use std::collections::HashMap;

/// What a lock stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Handing out one window.
    Window { pipeline: i64, start: i64 },
    /// One slot of a pool.
    PoolSlot { pool: i32, slot: i32 },
    /// One slot of a plan's concurrency (`plan` > 0) or of a pipeline's `max_active`.
    LimitSlot { pipeline: i64, plan: i64, slot: i32 },
    /// The end of rights: see the module's text.
    Gate { pipeline: i64 },
    /// The end of rights that come from a pool.
    PoolGate { pool: i32 },
    /// Handing out a window of a pipeline whose windows depend on each other.
    Sequence { pipeline: i64 },
    /// A person decides about a pipeline, its plans or its windows.
    Decisions { pipeline: i64 },
    /// Plans of a pipeline are being approved, or must not be.
    Approve { pipeline: i64 },
    /// A heartbeat of a lease is being written.
    Beat { token: i64 },
    /// The list of a plan is being swept for holes.
    Sweep { plan: i64 },
    /// A new epoch of tokens is being started.
    Epoch,
    /// Pipelines are being defined, altered or dropped.
    Definitions,
    /// A code version of a pipeline is being recorded.
    Version { pipeline: i64 },
    /// The target of a pipeline: shared by those who write a slice of it, see `ledger::retarget`.
    Target { pipeline: i64 },
    /// Which code versions the slices of a pipeline are of, see `ledger::mixture`.
    Mixture { pipeline: i64 },
    /// The grid of a pipeline: shared by claims of windows that the ledger may not name yet, see `ledger::grid`.
    Grid { pipeline: i64 },
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Key {
    fn hash(self) -> u64 {
        let parts = match self {
            Self::Window { pipeline, start } => [1, pipeline, start, 0],
            Self::PoolSlot { pool, slot } => [2, pool.into(), slot.into(), 0],
            Self::LimitSlot { pipeline, plan, slot } => [3, pipeline, plan, slot.into()],
            Self::Gate { pipeline } => [4, pipeline, 0, 0],
            Self::Beat { token } => [5, token, 0, 0],
            Self::Sweep { plan } => [6, plan, 0, 0],
            Self::Epoch => [7, 0, 0, 0],
            Self::Definitions => [8, 0, 0, 0],
            Self::Version { pipeline } => [9, pipeline, 0, 0],
            Self::Approve { pipeline } => [10, pipeline, 0, 0],
            Self::PoolGate { pool } => [11, pool.into(), 0, 0],
            Self::Sequence { pipeline } => [12, pipeline, 0, 0],
            Self::Grid { pipeline } => [13, pipeline, 0, 0],
            Self::Decisions { pipeline } => [14, pipeline, 0, 0],
            Self::Target { pipeline } => [15, pipeline, 0, 0],
            Self::Mixture { pipeline } => [16, pipeline, 0, 0],
        };
        parts
            .into_iter()
            .fold(0, |h: u64, p| mix(h.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(p as u64)))
    }

    fn tag(self) -> pg_sys::LOCKTAG {
        let hash = self.hash();
        pg_sys::LOCKTAG {
            locktag_field1: u32::from(unsafe { pg_sys::MyDatabaseId }),
            locktag_field2: u32::from(role::ledger_relation()),
            locktag_field3: hash as u32,
            locktag_field4: (hash >> 32) as u16,
            locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
            locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        }
    }
}

fn acquire(key: Key, mode: u32, wait: bool) -> bool {
    let tag = key.tag();
    let result = unsafe { pg_sys::LockAcquire(&tag, mode as i32, false, !wait) };
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

const HOLDERS: &str = "SELECT l.objid, l.objsubid::pg_catalog.int4, l.pid FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'object' AND l.granted AND l.mode = 'ExclusiveLock'
      AND l.classid = 'backfill.run_data'::pg_catalog.regclass
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())";

/// Who holds which locks exclusively at one moment.
#[derive(Default)]
pub struct Holders(HashMap<(u32, u16), Option<i32>>);

impl Holders {
    /// For STABLE functions, as the ledger's owner.
    pub fn now() -> Self {
        let holders = spi::read(HOLDERS, &[], |row| {
            let object: pg_sys::Oid = row.at(1);
            ((u32::from(object), row.at::<i32>(2) as u16), row.get::<i32>(3))
        });
        Self(holders.into_iter().collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The backend that holds the lock; a prepared transaction has none.
    pub fn of(&self, key: Key) -> Option<Option<i32>> {
        let tag = key.tag();
        self.0.get(&(tag.locktag_field3, tag.locktag_field4)).copied()
    }
}

/// Takes the lock if nobody holds it; never waits.
pub fn try_exclusive(key: Key) -> bool {
    acquire(key, pg_sys::ExclusiveLock, false)
}

fn give_back(key: Key, mode: u32) {
    unsafe { pg_sys::LockRelease(&key.tag(), mode as i32, false) };
}

/// Gives back a lock that was taken for nothing. The others are held to the end of the transaction.
pub fn release(key: Key) {
    give_back(key, pg_sys::ExclusiveLock);
}

/// Gives back a lock that was taken shared for nothing.
pub fn release_shared(key: Key) {
    give_back(key, pg_sys::ShareLock);
}

/// Whether nobody else holds the lock exclusively now.
pub fn is_free(key: Key) -> bool {
    let free = try_shared(key);
    if free {
        give_back(key, pg_sys::ShareLock);
    }
    free
}

/// Waits for the lock.
pub fn exclusive(key: Key) {
    acquire(key, pg_sys::ExclusiveLock, true);
}

/// Waits for the locks, and holds none of them while it waits for another.
pub fn exclusive_at_once(keys: &[Key]) {
    at_once(keys, pg_sys::ExclusiveLock);
}

/// The same beside others who hold them shared.
pub fn shared_at_once(keys: &[Key]) {
    at_once(keys, pg_sys::ShareLock);
}

fn at_once(keys: &[Key], mode: u32) {
    let mut waited = 0;
    while let Some(key) = keys.get(waited) {
        acquire(*key, mode, true);
        let others = || (0..keys.len()).filter(|n| *n != waited);
        let Some(busy) = others().find(|n| !acquire(keys[*n], mode, false)) else { return };
        others().take_while(|n| *n < busy).for_each(|n| give_back(keys[n], mode));
        give_back(*key, mode);
        waited = busy;
    }
}

/// Takes the lock shared if nobody holds it exclusively; never waits.
pub fn try_shared(key: Key) -> bool {
    acquire(key, pg_sys::ShareLock, false)
}
