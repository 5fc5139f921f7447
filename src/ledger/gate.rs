//! The second look at COMMIT.
//!
//! A transaction that passed the fence of a lease looks once more, right before it commits: nothing that ends its
//! right may have happened since. It takes the gates of its pipelines and its pools shared, and those who end rights hold
//! one of them exclusively: either they come first, and this sees what they did, or they wait the moment that a COMMIT takes.
//! It takes all gates at once, so that whoever holds one of them exclusively may ask for another (lock.rs).
//!
//! It is a transaction callback and no deferred trigger, because `SET CONSTRAINTS ALL IMMEDIATE` would make a
//! trigger look early and then hold the gate, and every person who cancels, for as long as the worker likes.
//!
//! Foreign servers commit in such a callback too, and the callback that was registered last is called first. So this one
//! is registered anew whenever a fence is passed, for those that were written to before, and by a deferred trigger on
//! the row of the lease, for those that are written to after.

use crate::error::{Code, Error, Result, answer};
use crate::ledger::{fenced, mixture, run};
use crate::postgres::lock::{self, Holders, Key};
use crate::postgres::{role, settings};
use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;
use std::ffi::c_void;

/// A fence that was passed in the current transaction; a savepoint may have undone it since.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Passed {
    pipeline_id: i64,
    pool_id: i32,
    token: i64,
}

thread_local! {
    static PASSED: RefCell<Vec<Passed>> = const { RefCell::new(Vec::new()) };
    /// The gates that this transaction has closed; a savepoint may have undone it since.
    static CLOSED: RefCell<Vec<Key>> = const { RefCell::new(Vec::new()) };
}

/// For a call that ends rights in a pipeline, or lifts what ended them: from here to the end of its transaction nobody
/// commits under a lease of the pipeline. Waits for COMMITs that are under way, and for other people.
pub fn close(pipeline_id: i64) {
    lock::exclusive(Key::Decisions { pipeline: pipeline_id });
    shut(Key::Gate { pipeline: pipeline_id });
}

/// The same for the rights that come from a pool.
pub fn close_pool(pool_id: i32) {
    shut(Key::PoolGate { pool: pool_id });
}

fn shut(gate: Key) {
    lock::exclusive(gate);
    CLOSED.with_borrow_mut(|closed| closed.push(gate));
}

/// Refuses a call that may wait for a worker's transaction (55000) where that would wait, at its COMMIT, for a gate which
/// this transaction has closed: one of the two would lose.
pub fn require_none_closed(call: &str) -> Result<()> {
    let closed = CLOSED.with_borrow(Vec::clone);
    if closed.is_empty() {
        return Ok(());
    }
    // A savepoint may have given some back.
    let holders = role::as_ledger(Holders::now);
    let own = Some(Some(unsafe { pg_sys::MyProcPid }));
    if !closed.iter().any(|gate| holders.of(*gate) == own) {
        return Ok(());
    }
    Err(Error::new(Code::NotInState, format!("{call} cannot follow a decision in one transaction"))
        .detail("It may wait for a worker that writes, and that worker's COMMIT waits for what this transaction has decided (window_lock, backfill_cancel, pool_pause and the like).")
        .hint("COMMIT first, so that the decision holds, and repeat the call."))
}

/// Puts the second look before whatever others do at COMMIT whose callbacks are there by now.
pub fn look_first() {
    let nothing = std::ptr::null_mut();
    unsafe {
        pg_sys::UnregisterXactCallback(Some(at_transaction_end), nothing);
        pg_sys::RegisterXactCallback(Some(at_transaction_end), nothing);
    }
}

/// Notes that the transaction is about to pass the fence of a token.
pub fn note(pipeline_id: i64, pool_id: i32, token: i64) {
    let passed = Passed { pipeline_id, pool_id, token };
    PASSED.with_borrow_mut(|list| {
        if !list.contains(&passed) {
            list.push(passed);
        }
    });
    fenced::forget();
    look_first();
}

/// For a call that holds the pipeline's decisions to the end of its transaction, when it has written all under a token:
/// nobody can end that right before the COMMIT, which need not look.
pub fn dismiss(token: i64) {
    PASSED.with_borrow_mut(|list| list.retain(|passed| passed.token != token));
}

/// The tokens whose fence the transaction came to.
pub fn tokens() -> Vec<i64> {
    PASSED.with_borrow(|list| list.iter().map(|passed| passed.token).collect())
}

/// Whether the transaction came to the fence of a token. The ledger alone cannot say so: in a restored one the number
/// of an old transaction may be this one's.
pub fn noted(token: i64) -> bool {
    PASSED.with_borrow(|list| list.iter().any(|passed| passed.token == token))
}

#[pg_guard]
unsafe extern "C-unwind" fn at_transaction_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            let passed = PASSED.take();
            if !passed.is_empty() {
                settings::pinned(|| look_again(&passed));
            }
        }
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => {
            if let Some(passed) = PASSED.with_borrow(|list| list.first().copied()) {
                refuse_to_prepare(passed);
            }
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT
        | pg_sys::XactEvent::XACT_EVENT_COMMIT
        | pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            PASSED.take();
            CLOSED.take();
            mixture::forget();
        }
        _ => {}
    }
}

/// The second look before COMMIT, for a call that can still do something about it; what it finds holds until COMMIT,
/// because the gates stay taken. Whoever makes it commits at once.
pub fn look_now() {
    let passed = PASSED.with_borrow(Vec::clone);
    settings::pinned(|| look_again(&passed));
}

fn look_again(passed: &[Passed]) {
    let mut gates = vec![];
    for Passed { pipeline_id, pool_id, .. } in passed {
        for gate in [Key::Gate { pipeline: *pipeline_id }, Key::PoolGate { pool: *pool_id }] {
            if !gates.contains(&gate) {
                gates.push(gate);
            }
        }
    }
    role::as_ledger(|| lock::shared_at_once(&gates));
    for Passed { token, .. } in passed {
        answer(role::as_ledger(|| run::require_right(*token)));
    }
}

/// Nothing can look once more at COMMIT PREPARED.
fn refuse_to_prepare(passed: Passed) {
    answer::<()>(Err(Error::new(
        Code::Unsupported,
        "cannot PREPARE a transaction that has passed the fence of a lease",
    )
    .detail(format!(
        "It stands behind the fence of token {}; its right is looked at once more when it commits.",
        passed.token
    ))
    .hint("COMMIT it.")));
}
