//! Two sessions, one empty window, one token.

use crate::fence::{assert_won, begin, under_every_level};
use crate::support::{Calls, assert_lost, daily, replacing, replacing_with, waiting};
use pgrx_tests::{Database, Session, assert_sqlstate};

/// Two sessions with transactions that began when the window was empty, and the token of its lease.
fn one_token(level: &str) -> (Database, Session, Session, i64) {
    let database = daily("");
    let (mut a, mut b) = (database.connect(), database.connect());
    a.plan_window("2024-01-01");
    let token = a.lease().token;
    begin(&mut a, level);
    begin(&mut b, level);
    (database, a, b, token)
}

#[test]
fn one_token_used_twice_in_a_row_writes_once() {
    under_every_level(|level| {
        let (database, mut a, mut b, token) = one_token(level);
        a.replace(token).unwrap();
        a.run("COMMIT");
        assert_lost(&b.replace(token).unwrap_err(), level, "BF001");
        b.run("ROLLBACK");
        assert_won(&database, token);
    });
}

#[test]
fn one_token_used_twice_at_once_writes_once() {
    under_every_level(|level| {
        let (database, mut a, mut b, token) = one_token(level);
        a.replace(token).unwrap();
        let second = waiting(&database, &mut b, &replacing(token), || a.run("COMMIT"));
        assert_lost(&second.unwrap_err(), level, "BF001");
        b.run("ROLLBACK");
        assert_won(&database, token);
    });
}

#[test]
fn the_second_use_of_a_token_wins_if_the_first_rolls_back() {
    under_every_level(|level| {
        let (database, mut a, mut b, token) = one_token(level);
        a.replace(token).unwrap();
        waiting(&database, &mut b, &replacing(token), || a.run("ROLLBACK")).unwrap();
        b.run("COMMIT");
        assert_won(&database, token);
    });
}

#[test]
fn one_token_that_is_not_finished_may_write_again_and_still_writes_once() {
    under_every_level(|level| {
        let (database, mut a, mut b, token) = one_token(level);
        let replace = replacing_with(token, ", finish => false");
        a.run(&replace);
        match waiting(&database, &mut b, &replace, || a.run("COMMIT")) {
            Ok(()) => {
                assert_eq!(level, "READ COMMITTED", "a snapshot from before cannot see the rows");
                b.run("COMMIT");
            }
            Err(failure) => {
                assert_eq!(failure.sqlstate, "40001", "{failure}");
                b.run("ROLLBACK");
            }
        }
        b.call("finish", token);
        assert_won(&database, token);
    });
}

#[test]
fn a_lease_newer_than_the_snapshot_is_no_stale_one() {
    under_every_level(|level| {
        let database = daily("");
        let (mut a, mut b) = (database.connect(), database.connect());
        a.plan_window("2024-01-01");
        begin(&mut a, level);
        let token = b.lease().token;
        let written = a.replace(token);
        if level == "READ COMMITTED" {
            written.unwrap();
            a.run("COMMIT");
        } else {
            assert_sqlstate!(written, "40001");
            a.run("ROLLBACK");
            a.replace(token).unwrap();
        }
        assert_won(&database, token);
    });
}
