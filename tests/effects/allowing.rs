//! What code is told that acts inside the worker's transaction.

use crate::effects::{WITH_EFFECTS, plan_first};
use crate::support::{Calls, daily};
use pgrx_tests::{Session, assert_sqlstate};

fn allowed(session: &mut Session, token: i64) -> bool {
    session.one("SELECT effects_allowed($1)", &[&token])
}

#[test]
fn effects_are_allowed_as_the_lease_says() {
    let database = daily("");
    let mut worker = database.connect();
    for (more, expected) in [("", false), (WITH_EFFECTS, true)] {
        plan_first(&mut worker, more);
        let lease = worker.lease();
        assert_eq!(allowed(&mut worker, lease.token), expected);
        worker.run("BEGIN");
        worker.replace(lease.token).unwrap();
        assert_eq!(allowed(&mut worker, lease.token), expected, "finished in this transaction");
        worker.run("COMMIT");
        assert!(!allowed(&mut worker, lease.token));
    }
    worker.active_for("daily", "2 days");
    let live = worker.lease();
    assert!(allowed(&mut worker, live.token));
}

#[test]
fn whoever_lost_the_lease_is_allowed_nothing() {
    let database = daily("lease_for => '1 second'");
    let mut worker = database.connect();
    let plan = plan_first(&mut worker, WITH_EFFECTS);
    let old = worker.lease();
    worker.let_expire(old.token);
    assert!(allowed(&mut worker, old.token), "nobody has taken its window over");
    let new = worker.lease();
    assert!(!allowed(&mut worker, old.token));
    assert!(allowed(&mut worker, new.token));
    worker.cancel(plan);
    assert!(!allowed(&mut worker, new.token));
    assert_sqlstate!(worker.try_run("SELECT effects_allowed(1)"), "BF001");
}

#[test]
fn asking_needs_no_right_to_write() {
    let database = daily("");
    let mut worker = database.connect();
    plan_first(&mut worker, WITH_EFFECTS);
    let lease = worker.lease();
    worker.run("BEGIN READ ONLY");
    assert!(allowed(&mut worker, lease.token));
}
