//! An old token against a new one.

use crate::fence::{assert_won, begin, under_every_level};
use crate::support::{Calls, Lease, assert_lost, daily, impatient, replacing, waiting};
use pgrx_tests::{Database, Session};

/// An old worker, whose transaction began before its lease expired, and a new one with the new lease.
fn two_tokens(level: &str) -> (Database, Session, Session, Lease, Lease) {
    let database = daily("lease_for => '1 second'");
    let (mut a, mut b) = (database.connect(), database.connect());
    a.plan_window("2024-01-01");
    let old = a.lease();
    begin(&mut a, level);
    b.let_expire(old.token);
    let new = b.lease();
    begin(&mut b, level);
    (database, a, b, old, new)
}

#[test]
fn an_old_token_loses_though_it_writes_first() {
    under_every_level(|level| {
        let (database, mut a, mut b, old, new) = two_tokens(level);
        assert_lost(&a.replace(old.token).unwrap_err(), level, "BF001");
        a.run("ROLLBACK");
        b.replace(new.token).unwrap();
        b.run("COMMIT");
        assert_won(&database, new.token);
    });
}

/// C1: the worker was stopped before it wrote and goes on after the other one committed.
#[test]
fn an_old_token_loses_after_the_new_one_committed() {
    under_every_level(|level| {
        let (database, mut a, mut b, old, new) = two_tokens(level);
        b.replace(new.token).unwrap();
        b.run("COMMIT");
        let failure = a.replace(old.token).unwrap_err();
        assert_lost(&failure, level, "BF001");
        if failure.sqlstate == "BF001" {
            for token in [old.token, new.token] {
                assert!(failure.message.contains(&token.to_string()), "{failure}");
            }
        }
        a.run("ROLLBACK");
        assert_won(&database, new.token);
    });
}

#[test]
fn an_old_token_loses_while_the_new_one_writes() {
    under_every_level(|level| {
        let (database, mut a, mut b, old, new) = two_tokens(level);
        b.replace(new.token).unwrap();
        assert_lost(&a.replace(old.token).unwrap_err(), level, "BF001");
        a.run("ROLLBACK");
        b.run("COMMIT");
        assert_won(&database, new.token);
    });
}

#[test]
fn an_old_token_that_meets_a_takeover_in_the_making_loses_if_that_commits() {
    under_every_level(|level| {
        let database = daily("lease_for => '1 second'");
        let (mut a, mut b) = (database.connect(), database.connect());
        a.plan_window("2024-01-01");
        let old = a.lease();
        b.let_expire(old.token);
        begin(&mut a, level);
        begin(&mut b, level);
        let new = b.lease();
        b.replace(new.token).unwrap();
        let late = waiting(&database, &mut a, &replacing(old.token), || b.run("COMMIT"));
        assert_lost(&late.unwrap_err(), level, "BF001");
        a.run("ROLLBACK");
        assert_won(&database, new.token);
    });
}

#[test]
fn an_old_token_that_meets_a_takeover_in_the_making_wins_if_that_rolls_back() {
    under_every_level(|level| {
        let database = daily("lease_for => '1 second'");
        let (mut a, mut b) = (database.connect(), database.connect());
        a.plan_window("2024-01-01");
        let old = a.lease();
        b.let_expire(old.token);
        begin(&mut a, level);
        b.run("BEGIN");
        b.lease();
        waiting(&database, &mut a, &replacing(old.token), || b.run("ROLLBACK")).unwrap();
        a.run("COMMIT");
        assert_won(&database, old.token);
    });
}

/// The worker was stopped between its write and its COMMIT, past its expiry.
#[test]
fn a_late_commit_wins_because_nobody_could_take_its_window_over() {
    under_every_level(|level| {
        let database = daily("lease_for => '1 second'");
        let (mut a, mut b) = (database.connect(), impatient(&database));
        a.plan_window("2024-01-01");
        let lease = a.lease();
        begin(&mut a, level);
        a.replace(lease.token).unwrap();
        b.let_expire(lease.token);
        assert_eq!(b.claim(), None);
        a.run("COMMIT");
        assert_eq!(b.claim(), None);
        assert_won(&database, lease.token);
    });
}
