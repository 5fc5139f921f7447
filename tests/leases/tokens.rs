//! Tokens: they increase for ever, and a stale one changes nothing.

use crate::leases::assert_refused;
use crate::support::{Calls, daily, impatient, keys};
use pgrx_tests::{Session, assert_sqlstate};

#[test]
fn a_token_that_nobody_was_given_is_refused() {
    let database = daily("");
    let mut session = database.connect();
    session.plan_window("2024-01-01");
    let lease = session.lease();
    for token in [0, -1, 1, lease.token + 1, i64::MAX] {
        assert_refused(&mut session, token, "BF001");
    }
}

#[test]
fn a_token_that_failed_or_was_released_is_refused() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let released = worker.lease().token;
    worker.call("release", released);
    assert_refused(&mut worker, released, "BF001");
    let failed = worker.lease().token;
    worker.fail(failed);
    assert_refused(&mut worker, failed, "BF001");
}

#[test]
fn a_revoked_token_is_refused_as_revoked_whatever_revoked_it() {
    for revoke in [
        "SELECT backfill_cancel(1, 'test')",
        "SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')",
        "SELECT pipeline_drop('daily')",
        "SELECT backfill_new_epoch('test')",
    ] {
        let database = daily("");
        let mut worker = database.connect();
        worker.plan_window("2024-01-01");
        let token = worker.lease().token;
        worker.run(revoke);
        assert_refused(&mut worker, token, "BF002");
        let seen = "SELECT outcome FROM backfill.runs";
        assert_eq!(worker.lines(seen), ["revoked"], "{revoke}");
    }
}

#[test]
fn a_revoked_token_stays_revoked_when_its_window_has_a_new_lease() {
    let database = daily("");
    let mut worker = database.connect();
    let plan = worker.plan_window("2024-01-01");
    let old = worker.lease();
    worker.cancel(plan);
    worker.plan_window("2024-01-01");
    let new = worker.lease();
    assert!(new.token > old.token);
    assert_eq!(new.attempt, 1, "another plan counts anew");
    // It is written down by now, and why it was.
    assert_eq!(worker.count("backfill.run_data WHERE outcome = 'revoked'"), 1);
    let failure = assert_sqlstate!(worker.replace(old.token), "BF002");
    assert!(failure.message.ends_with(&format!("was revoked: plan {plan} was cancelled")), "{failure}");
    assert_refused(&mut worker, old.token, "BF002");
    worker.replace(new.token).unwrap();
    assert_refused(&mut worker, old.token, "BF002");
}

#[test]
fn a_lease_claimed_while_its_right_ended_is_void() {
    for end in [
        "SELECT backfill_cancel(1, 'test')",
        "SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')",
        "SELECT pipeline_drop('daily')",
    ] {
        let database = daily("");
        let (mut worker, mut operator) = (database.connect(), impatient(&database));
        operator.plan_window("2024-01-01");
        worker.run("BEGIN");
        let lease = worker.lease();
        operator.run(end);
        worker.run("COMMIT");
        assert_refused(&mut worker, lease.token, "BF002");
    }
}

#[test]
fn a_finish_whose_answer_was_lost_is_answered_again() {
    let database = daily("");
    let (mut worker, mut other) = (database.connect(), database.connect());
    worker.plan("2024-01-03", "");
    let finish = "SELECT backfill_finish($1)";
    let first = worker.lease();
    for _ in 0..2 {
        assert_eq!(worker.one::<String>(finish, &[&first.token]), "done");
        assert_eq!(other.one::<String>(finish, &[&first.token]), "done");
    }
    let second = worker.lease();
    worker.replace(second.token).unwrap();
    assert_eq!(other.one::<String>(finish, &[&second.token]), "done");
    // All other calls of a finished token are refused.
    assert_sqlstate!(worker.replace(second.token), "BF001");
    let runs = "SELECT outcome, count(*), sum(rows) FROM backfill.runs GROUP BY outcome";
    assert_eq!(worker.lines(runs), ["done|2|4"]);
    worker.plan_window(&second.key);
    let newer = worker.lease();
    worker.replace(newer.token).unwrap();
    assert_eq!(worker.one::<String>(finish, &[&second.token]), "done");
    worker.assert_data_is_the_ledger();
}

#[test]
fn tokens_increase_and_fit_into_a_double() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan("2024-01-31", "");
    let take = |worker: &mut Session| {
        let token = worker.lease().token;
        worker.call("finish", token);
        token
    };
    let mut tokens: Vec<i64> = (0..5).map(|_| take(&mut worker)).collect();
    // Claims that are rolled back draw tokens too, which nobody else gets.
    worker.run("BEGIN");
    worker.lease();
    worker.run("ROLLBACK");
    tokens.push(take(&mut worker));
    let first: i64 = worker.one("SELECT backfill_new_epoch('test')", &[]);
    tokens.push(take(&mut worker));
    assert_eq!(tokens.last(), Some(&first));
    worker.run("SELECT backfill_new_epoch('test')");
    tokens.push(take(&mut worker));
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let since_1970 = "SELECT (extract(epoch FROM now())::bigint - 3600) * 1048576";
    assert!(tokens[0] > worker.one::<i64>(since_1970, &[]));
    assert!(*tokens.last().unwrap() < 1 << 53);
}

#[test]
fn a_new_epoch_gives_the_windows_back_in_their_places() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan("2024-01-04", ", concurrency => 2");
    let held = worker.leases(2);
    worker.run("SELECT backfill_new_epoch('test')");
    let again = worker.leases(2);
    assert_eq!(keys(&again), keys(&held));
    assert!(again[0].token > held[1].token);
    assert_eq!((again[0].attempt, again[1].attempt), (1, 1), "it costs no attempt");
}

#[test]
fn a_new_epoch_also_ends_what_is_being_written() {
    let database = daily("");
    let (mut worker, mut operator) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    operator.run("SELECT backfill_new_epoch('test')");
    assert_eq!(operator.claim(), None);
    assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
    let again = operator.lease_after_failure();
    assert_eq!(again.key, lease.key);
    operator.replace(again.token).unwrap();
    operator.assert_data_is_the_ledger();
}

#[test]
fn an_epoch_that_was_rolled_back_is_started_by_the_next_claim() {
    for (undone, undo) in [("BEGIN", "ROLLBACK"), ("BEGIN; SAVEPOINT s", "ROLLBACK TO s; COMMIT")] {
        let database = daily("");
        let mut worker = database.connect();
        worker.run("SELECT pool_define('backfill', 9)");
        worker.plan("2024-01-06", "");
        worker.run(undone);
        // The second one sees the epoch of the first.
        let lost = [(); 2].map(|()| worker.lease());
        worker.run(undo);
        assert_eq!(worker.count("backfill.epoch_data"), 0);
        let kept = [(); 2].map(|()| worker.lease());
        let epochs = "SELECT count(*), bool_and(first_token <= $1) FROM backfill.epoch_data";
        assert_eq!(worker.lines(&epochs.replace("$1", &kept[0].token.to_string())), ["1|t"]);
        assert!(kept[0].token > lost[1].token && kept[1].token > kept[0].token, "{lost:?}, then {kept:?}");
        for lease in kept {
            worker.replace(lease.token).unwrap();
        }
        worker.assert_one_lease_per_window();
    }
}
