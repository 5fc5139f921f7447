//! Which effects come into the outbox, and when a consumer sees them.

use crate::effects::{NONE, Outbox, WITH_EFFECTS, plan_first, planned};
use crate::support::{Calls, LEVELS, assert_lost, daily, impatient, replacing, replacing_with, waiting};
use pgrx_tests::assert_sqlstate;

#[test]
fn an_effect_is_held_until_its_slice_is_published_and_ready_until_it_is_done() {
    let database = planned("");
    let (mut worker, mut consumer) = (database.connect(), database.connect());
    let lease = worker.lease();
    let token = lease.token;
    assert_eq!(worker.mail(token, "Grüße"), "held");
    assert_eq!(worker.mail(token, "Grüße"), "held");
    assert_eq!(consumer.take(9), NONE);
    worker.run("BEGIN");
    worker.replace(token).unwrap();
    assert_eq!(consumer.take(9), NONE, "its publication is not committed");
    worker.run("COMMIT");
    assert_eq!(consumer.outbox(), [format!("Grüße|ready|{token}")]);

    consumer.run("BEGIN");
    let taken = consumer.lines(
        "SELECT id, pipeline, window_key, window_end - window_start, effect, key, payload, token, plan_id,
                emitted_at < published_at FROM effect_take('mail')",
    );
    let expected = format!(
        "1|daily|{}|1 day|mail|Grüße|{{\"token\": {token}}}|{token}|{}|t",
        lease.key,
        lease.plan_id.unwrap()
    );
    assert_eq!(taken, [expected]);
    consumer.run("ROLLBACK");
    // A transaction that takes it and does not say that it is done changes nothing either.
    assert_eq!(consumer.take(1), [1]);
    assert_eq!(consumer.take(1), [1]);
    consumer.done(1);
    assert_eq!(consumer.take(1), NONE);
    assert_eq!(consumer.outbox(), [format!("Grüße|done|{token}")]);
    // The answer to a COMMIT was lost.
    consumer.done(1);
}

#[test]
fn an_effect_may_come_before_or_after_the_slice_in_its_transaction() {
    let database = planned("");
    let (mut worker, mut consumer) = (database.connect(), database.connect());
    for order in 0..4 {
        let lease = worker.lease();
        let emit = format!("SELECT effect_emit({}, 'mail')", lease.token);
        let finish = format!("SELECT backfill_finish({})", lease.token);
        let replace = replacing(lease.token);
        let write = replacing_with(lease.token, ", finish => false");
        let statements = match order {
            0 => vec![&emit, &replace],
            1 => vec![&replace, &emit],
            2 => vec![&write, &finish, &emit, &emit],
            _ => vec![&write, &emit, &finish],
        };
        worker.run("BEGIN");
        statements.iter().for_each(|statement| worker.run(statement));
        assert_eq!(consumer.take(1), NONE);
        worker.run("COMMIT");
        assert_eq!(consumer.deliver(), 1, "{statements:?}");
        assert_sqlstate!(worker.try_run(&emit), "BF001");
    }
    consumer.assert_data_is_the_ledger();
}

#[test]
fn an_effect_after_the_finish_goes_with_the_rest_where_the_commit_fails() {
    let database = planned("");
    let (mut worker, mut operator) = (database.connect(), impatient(&database));
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    worker.mail(lease.token, "");
    operator.cancel(lease.plan_id.unwrap());
    assert_sqlstate!(worker.try_mail(lease.token, "more"), "BF002");
    worker.run("ROLLBACK");
    assert_eq!(operator.outbox(), [""; 0]);
}

#[test]
fn one_effect_for_each_window_effect_and_key() {
    let database = planned("");
    let mut worker = database.connect();
    let longest = "🐘".repeat(250);
    let names = ["mail", "Order \"x\" of 'y'", " a ", "select", "%s {0} $1", &longest];
    for _ in 0..2 {
        let lease = worker.lease();
        for name in names {
            for key in ["", "'\"; 🐘", &longest] {
                for _ in 0..2 {
                    let sql = "SELECT effect_emit($1, $2, key => $3)";
                    assert_eq!(worker.one::<String>(sql, &[&lease.token, &name, &key]), "held");
                }
            }
        }
        worker.replace(lease.token).unwrap();
    }
    let kept = "SELECT count(*), count(DISTINCT (window_key, effect, key)) FROM backfill.effects";
    assert_eq!(worker.lines(kept), ["36|36"]);
    for name in names {
        let taken: Vec<String> =
            worker.column("SELECT max(effect) FROM effect_take($1, 1000) HAVING count(*) = 6", &[&name]);
        assert_eq!(taken, [name]);
    }
}

#[test]
fn a_payload_comes_out_as_it_went_in() {
    let database = planned("");
    let mut worker = database.connect();
    let lease = worker.lease();
    let payload = r#"{"amount": 12345678901234567890.10, "a": [null, "ü\n🐘"], "big": 1e400}"#;
    worker.run(&format!("SELECT effect_emit({}, 'mail', '{payload}')", lease.token));
    let large =
        format!("SELECT effect_emit({}, 'mail', to_jsonb(repeat('long', 500000)), 'long')", lease.token);
    worker.run(&large);
    worker.replace(lease.token).unwrap();
    let same = format!(
        "SELECT bool_and(payload::text = CASE key WHEN 'long' THEN to_jsonb(repeat('long', 500000))::text
                                         ELSE '{payload}'::jsonb::text END), count(*) FROM effect_take('mail', 9)"
    );
    assert_eq!(worker.lines(&same), ["t|2"]);
}

#[test]
fn an_attempt_that_is_never_published_delivers_nothing() {
    let database = planned("max_attempts => 1");
    let (mut worker, mut consumer) = (database.connect(), database.connect());
    for end in ["backfill_fail($1, 'no luck')", "backfill_fail($1, 'bad rows', sqlstate => 'BF005')"] {
        let lease = worker.lease();
        worker.mail(lease.token, "");
        worker.run(&format!("SELECT {}", end.replace("$1", &lease.token.to_string())));
    }
    // One that did not last so long leaves nothing at all.
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.mail(lease.token, "");
    worker.run("ROLLBACK");
    worker.call("release", lease.token);
    assert_eq!(consumer.deliver(), 0);
    assert_eq!(consumer.count("backfill.effects WHERE state = 'held'"), 2);
    assert_eq!(consumer.count("backfill.effects"), 2);
}

#[test]
fn the_next_attempt_takes_over_what_the_last_one_left() {
    let database = planned("retry_delay => '0', max_attempts => 9");
    let (mut worker, mut consumer) = (database.connect(), database.connect());
    let first = worker.lease();
    worker.mail(first.token, "both");
    worker.mail(first.token, "first only");
    worker.call("release", first.token);
    let second = worker.lease();
    assert_eq!(second.key, first.key);
    assert_eq!(worker.mail(second.token, "both"), "held");
    worker.replace(second.token).unwrap();
    assert_eq!(
        consumer.outbox(),
        [format!("both|ready|{}", second.token), format!("first only|held|{}", first.token)]
    );
    let payload: String = consumer.one("SELECT payload->>'token' FROM effect_take('mail', 9)", &[]);
    assert_eq!(payload, second.token.to_string());
    assert_eq!(consumer.deliver(), 1);
}

#[test]
fn a_slice_that_is_replaced_later_sends_nothing_twice() {
    let database = daily("");
    let (mut worker, mut consumer) = (database.connect(), database.connect());
    plan_first(&mut worker, WITH_EFFECTS);
    let (first, _) = worker.mail_window();
    for before in ["ready", "done"] {
        plan_first(&mut worker, WITH_EFFECTS);
        let (_, answer) = worker.mail_window();
        assert_eq!(answer, before);
        assert_eq!(consumer.outbox(), [format!("|{before}|{}", first.token)]);
        assert_eq!(consumer.deliver(), usize::from(before == "ready"));
    }
}

#[test]
fn an_effect_of_an_old_token_is_refused() {
    for level in LEVELS {
        let database = planned("lease_for => '1 second'");
        let (mut old, mut new) = (database.connect(), database.connect());
        let lease = old.lease();
        old.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM facts"));
        new.let_expire(lease.token);
        let next = new.lease();
        assert_eq!(new.mail(next.token, ""), "held");
        assert_lost(&old.try_mail(lease.token, "").unwrap_err(), level, "BF001");
        old.run("ROLLBACK");
        assert_eq!(new.outbox(), [format!("|held|{}", next.token)]);
    }
}

#[test]
fn an_effect_of_a_plan_that_is_cancelled_meanwhile_makes_the_commit_fail() {
    for level in LEVELS {
        let database = planned("");
        let (mut worker, mut operator) = (database.connect(), impatient(&database));
        let lease = worker.lease();
        worker.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        worker.mail(lease.token, "");
        operator.cancel(lease.plan_id.unwrap());
        assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
        assert_sqlstate!(worker.try_mail(lease.token, ""), "BF002");
        assert_eq!(operator.outbox(), [""; 0]);
    }
}

#[test]
fn an_effect_that_was_rolled_back_to_a_savepoint_is_not_emitted() {
    let database = planned("");
    let (mut worker, mut consumer) = (database.connect(), database.connect());
    let lease = worker.lease();
    worker.run("BEGIN; SAVEPOINT s");
    worker.mail(lease.token, "lost");
    worker.replace(lease.token).unwrap();
    worker.mail(lease.token, "lost too");
    worker.run("ROLLBACK TO s");
    worker.mail(lease.token, "kept");
    worker.replace(lease.token).unwrap();
    worker.run("COMMIT");
    assert_eq!(consumer.outbox(), [format!("kept|ready|{}", lease.token)]);
    assert_eq!(consumer.deliver(), 1);
}

/// The finish waits for the emission, and must publish what that left.
#[test]
fn a_finish_that_waits_for_an_emission_publishes_it() {
    for level in LEVELS {
        let database = planned("");
        let (mut a, mut b) = (database.connect(), database.connect());
        let token = a.lease().token;
        let finish = format!("SELECT backfill_finish({token})");
        b.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM facts"));
        a.run("BEGIN");
        a.mail(token, "");
        match waiting(&database, &mut b, &finish, || a.run("COMMIT")) {
            Ok(()) => {
                assert_eq!(level, "READ COMMITTED", "a snapshot from before cannot see the effect");
                b.run("COMMIT");
            }
            Err(failure) => {
                assert_eq!(failure.sqlstate, "40001", "{failure}");
                b.run("ROLLBACK");
                b.run(&finish);
            }
        }
        assert_eq!(a.deliver(), 1, "{level}");
    }
}

#[test]
fn an_emission_that_waits_for_the_finish_is_too_late() {
    for level in LEVELS {
        let database = planned("");
        let (mut a, mut b) = (database.connect(), database.connect());
        let token = a.lease().token;
        b.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM facts"));
        a.run("BEGIN");
        a.call("finish", token);
        let emit = format!("SELECT effect_emit({token}, 'mail')");
        let late = waiting(&database, &mut b, &emit, || a.run("COMMIT"));
        assert_lost(&late.unwrap_err(), level, "BF001");
        b.run("ROLLBACK");
        assert_eq!(a.outbox(), [""; 0]);
    }
}

#[test]
fn many_effects_of_one_transaction_write_the_lease_twice() {
    let database = planned("");
    let mut worker = database.connect();
    let lease = worker.lease();
    worker.run(&format!(
        "BEGIN; SELECT effect_emit({}, 'mail', key => i::text) FROM generate_series(1, 300) i",
        lease.token
    ));
    let updates = "SELECT n_tup_upd FROM pg_stat_xact_all_tables WHERE relid = 'backfill.run_data'::regclass";
    assert_eq!(worker.one::<i64>(updates, &[]), 2);
    worker.replace(lease.token).unwrap();
    worker.run("COMMIT");
    assert_eq!(worker.deliver(), 300);
}
