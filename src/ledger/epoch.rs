//! Tokens increase for ever, also when the server is not the one that drew the last one.
//!
//! The newest epoch names a server: system identifier, timeline of WAL insertion, database. A claim on another
//! one (after a restore, a promotion, a copy of the database) first starts a new epoch: tokens go on from
//! `max(last + 1, unix seconds * 2^20)`, and the leases that are open then belong to workers of the other
//! server, so they are void.

use crate::postgres::{lock, role, spi};
use pgrx::pg_sys;
use std::cell::Cell;

/// Which server this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Server {
    system_identifier: i64,
    timeline: i64,
    database: i64,
    /// Another one after the extension was dropped and created again.
    ledger: u32,
}

impl Server {
    fn this() -> Self {
        unsafe {
            Self {
                system_identifier: pg_sys::GetSystemIdentifier() as i64,
                timeline: i64::from(pg_sys::GetWALInsertionTimeLine()),
                database: i64::from(u32::from(pg_sys::MyDatabaseId)),
                ledger: u32::from(role::ledger_relation()),
            }
        }
    }
}

thread_local! {
    /// The server that the newest epoch was seen to name. Only a promotion changes what this backend is.
    static SEEN: Cell<Option<Server>> = const { Cell::new(None) };
    /// The last transaction that started an epoch here. It may undo that: as long as it goes on, what it sees is not kept.
    static STARTED_BY: Cell<Option<pg_sys::TransactionId>> = const { Cell::new(None) };
}

const NEWEST: &str = "SELECT system_identifier, timeline, database_oid
    FROM backfill.epoch_data ORDER BY epoch DESC LIMIT 1";

const START: &str = "WITH first AS (
        SELECT GREATEST(
            (SELECT last_value + is_called::pg_catalog.int4 FROM backfill.token_seq),
            COALESCE((SELECT r.token + 1 FROM backfill.run_data r ORDER BY r.token DESC LIMIT 1), 1),
            pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()))::pg_catalog.int8 * 1048576
        ) AS token
    ), moved AS MATERIALIZED (
        SELECT pg_catalog.setval('backfill.token_seq', first.token, false) AS token FROM first
    )
    INSERT INTO backfill.epoch_data (epoch, system_identifier, timeline, database_oid, first_token, reason)
    SELECT COALESCE((SELECT e.epoch FROM backfill.epoch_data e ORDER BY e.epoch DESC LIMIT 1), 0) + 1,
           $1, $2, $3, moved.token, $4
    FROM moved
    RETURNING first_token";

/// The workers of the other server hold no lease here: their windows go back to their places.
const REVOKE: &str = "WITH open AS MATERIALIZED (
        SELECT token FROM backfill.run_data WHERE ended_at IS NULL FOR UPDATE SKIP LOCKED
    ), ended AS (
        UPDATE backfill.run_data r
        SET ended_at = pg_catalog.clock_timestamp(), outcome = 'revoked', error = 'a new epoch of tokens began'
        FROM open WHERE r.token = open.token
        RETURNING r.pipeline_id, r.plan_id, r.window_start, r.window_end, r.seq, r.attempt, r.turn
    )
    INSERT INTO backfill.requeue_data
        (pipeline_id, plan_id, window_start, window_end, seq, attempt, after_turn, rank, due_at)
    SELECT pipeline_id, plan_id, window_start, window_end, seq, attempt, turn, 0, '-infinity' FROM ended
    ON CONFLICT (pipeline_id, plan_id, window_start) DO UPDATE SET after_turn = excluded.after_turn";

/// Starts a new epoch and answers its first token. Waits for nobody but another call like it.
pub fn start(reason: &str) -> i64 {
    lock::exclusive(lock::Key::Epoch);
    begin(reason)
}

fn begin(reason: &str) -> i64 {
    let server = Server::this();
    unsafe { pg_sys::ForceSyncCommit() };
    let args =
        [server.system_identifier.into(), server.timeline.into(), server.database.into(), reason.into()];
    let first = spi::first(START, &args, |row| row.at(1)).expect("INSERT ... RETURNING of one row");
    STARTED_BY.set(Some(unsafe { pg_sys::GetTopTransactionIdIfAny() }));
    spi::run_bulk(REVOKE, &[]);
    first
}

/// Whether the newest epoch is this server's. Where it is not, every lease is void until a claim starts one.
pub fn is_current() -> bool {
    let server = Server::this();
    if SEEN.get() == Some(server) {
        return true;
    }
    let current = matches_newest(server);
    if current && STARTED_BY.get() != Some(unsafe { pg_sys::GetTopTransactionIdIfAny() }) {
        SEEN.set(Some(server));
    }
    current
}

/// Whether tokens may be drawn on this server now. Starts a new epoch where it must; answers `false` while
/// another claim is doing that.
pub fn ready() -> bool {
    if is_current() {
        return true;
    }
    let server = Server::this();
    if !lock::try_exclusive(lock::Key::Epoch) {
        return false;
    }
    // The one who held the lock before may have started it.
    if !matches_newest(server) {
        begin("the server, its timeline or the database is another one than before");
    }
    true
}

fn matches_newest(server: Server) -> bool {
    let newest = spi::latest(NEWEST, &[], |row| Server {
        system_identifier: row.at(1),
        timeline: row.at(2),
        database: row.at(3),
        ledger: server.ledger,
    });
    newest.first() == Some(&server)
}
