//! Ways around the fence: constraints, savepoints, caught errors, prepared transactions.

use crate::fence::{assert_won, rebuilding};
use crate::support::{Calls, daily, replacing};
use pgrx_tests::assert_sqlstate;

#[test]
fn immediate_constraints_neither_hide_a_cancel_nor_hold_it_up() {
    for immediate_first in [true, false] {
        let (database, mut worker, mut operator, before, lease) = rebuilding();
        let immediate = "SET CONSTRAINTS ALL IMMEDIATE".to_owned();
        let replace = replacing(lease.token);
        worker.run("BEGIN");
        for statement in if immediate_first { [&immediate, &replace] } else { [&replace, &immediate] } {
            worker.run(statement);
        }
        operator.cancel(2);
        assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
        assert_won(&database, before);
    }
}

#[test]
fn a_fence_that_was_rolled_back_to_a_savepoint_holds_nothing() {
    let database = daily("lease_for => '1 second'");
    let (mut worker, mut other) = (database.connect(), database.connect());
    worker.plan_window("2024-01-01");
    let old = worker.lease();
    worker.run("BEGIN; SAVEPOINT s");
    worker.replace(old.token).unwrap();
    other.let_expire(old.token);
    assert_eq!(other.claim(), None);
    worker.run("ROLLBACK TO s");
    let new = other.lease();
    other.replace(new.token).unwrap();
    assert_sqlstate!(worker.replace(old.token), "BF001");
    worker.run("ROLLBACK TO s; COMMIT");
    assert_won(&database, new.token);
}

#[test]
fn a_slice_that_was_rolled_back_to_a_savepoint_can_be_written_again() {
    let (database, mut worker, _, _, lease) = rebuilding();
    worker.run("BEGIN; SAVEPOINT s");
    worker.replace(lease.token).unwrap();
    worker.run("ROLLBACK TO s");
    worker.replace(lease.token).unwrap();
    worker.run("COMMIT");
    assert_won(&database, lease.token);
}

#[test]
fn a_fence_that_was_rolled_back_to_a_savepoint_is_not_looked_at_again() {
    let (database, mut worker, mut operator, before, lease) = rebuilding();
    worker.run("CREATE TABLE notes (note text); BEGIN; SAVEPOINT s");
    worker.replace(lease.token).unwrap();
    worker.run("ROLLBACK TO s; INSERT INTO notes VALUES ('kept')");
    let cancel = "SELECT still_writing FROM backfill_cancel(2, 'test')";
    assert_eq!(operator.lines(cancel), ["{}"]);
    worker.run("COMMIT");
    assert_eq!(worker.lines("SELECT note FROM notes"), ["kept"]);
    assert_won(&database, before);
}

#[test]
fn a_caught_error_does_not_let_a_stale_token_write() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.replace(lease.token).unwrap();
    worker.run(&format!(
        "DO $do$ BEGIN
             PERFORM replace_partition({}, query => 'SELECT $1, 0 FROM generate_series(1, 9)');
         EXCEPTION WHEN SQLSTATE 'BF001' THEN NULL;
         END $do$",
        lease.token
    ));
    assert_won(&database, lease.token);
}

#[test]
fn a_fenced_transaction_cannot_hide_in_a_prepared_one() {
    let (database, mut worker, mut operator, before, lease) = rebuilding();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    operator.cancel(2);
    assert_sqlstate!(worker.try_run("PREPARE TRANSACTION 'late'"), "0A000");
    assert_won(&database, before);

    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    // Nothing could look once more when it is committed.
    assert_sqlstate!(worker.try_run("PREPARE TRANSACTION 'hidden'"), "0A000");
    operator.cancel(3);
    assert_won(&database, before);
}
