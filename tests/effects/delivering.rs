//! Consumers: each effect to one of them, and to the next one if it dies.

use crate::effects::{NONE, Outbox, WITH_EFFECTS, plan_first, planned};
use crate::support::{Calls, LEVELS, daily, define};
use pgrx_tests::{Database, Session, assert_sqlstate, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// A window with `n` ready mails.
fn ready(n: i32) -> Database {
    let database = planned("");
    let mut worker = database.connect();
    let lease = worker.lease();
    emit_many(&mut worker, lease.token, n);
    worker.replace(lease.token).unwrap();
    worker.run("CREATE TABLE sent (id bigint)");
    database
}

fn emit_many(worker: &mut Session, token: i64, n: i32) {
    worker
        .run(&format!("SELECT effect_emit({token}, 'mail', key => i::text) FROM generate_series(1, {n}) i"));
}

/// Sends a mail, which is to write it down.
fn send(consumer: &mut Session, id: i64) {
    consumer.run(&format!("INSERT INTO sent VALUES ({id})"));
    consumer.done(id);
}

#[test]
fn consumers_at_once_deliver_each_effect_once() {
    const EFFECTS: i32 = 500;
    let database = ready(EFFECTS);
    database.many(8, |i, consumer| {
        if i % 2 == 1 {
            consumer.run("SET default_transaction_isolation = 'repeatable read'");
        }
        let mut round = 0;
        while consumer.count("backfill.effects WHERE state = 'ready'") > 0 {
            round += 1;
            let at_once = 1 + (i as i32 + round) % 7;
            consumer.run("BEGIN");
            let sending = consumer.query("SELECT id FROM effect_take('mail', $1)", &[&at_once]);
            let Ok(rows) = sending else {
                consumer.run("ROLLBACK");
                continue;
            };
            rows.iter().for_each(|row| send(consumer, row.get(0)));
            consumer.run(if round % 3 == 0 { "ROLLBACK" } else { "COMMIT" });
        }
    });
    let mut judge = database.connect();
    let sent = "SELECT count(*), count(DISTINCT id) FROM sent";
    assert_eq!(judge.lines(sent), [format!("{EFFECTS}|{EFFECTS}")]);
    assert_eq!(judge.count("backfill.effects WHERE state = 'done'"), i64::from(EFFECTS));
}

#[test]
fn nobody_waits_for_a_consumer() {
    let database = ready(3);
    let (mut first, mut second) = (database.connect(), database.connect());
    second.run("SET lock_timeout = '100ms'");
    first.run("BEGIN");
    let taken = first.take(2);
    assert_eq!(taken.len(), 2);
    let left = second.take(9);
    assert_eq!(left.len(), 1);
    assert!(!taken.contains(&left[0]));
    // Nor do workers.
    let (_, answer) = second.mail_window();
    assert_eq!(answer, "held");
    assert_eq!(second.take(9).len(), 2);
}

#[test]
fn the_effects_of_a_consumer_that_dies_go_to_the_next() {
    let database = ready(1);
    let (mut dying, mut next) = (database.connect(), database.connect());
    dying.run("BEGIN");
    let id = dying.take(1)[0];
    send(&mut dying, id);
    assert_eq!(next.take(1), NONE);
    next.run(&format!("SELECT pg_terminate_backend({})", dying.pid()));
    wait_until("the effect is given back", || next.take(1) == [id]);
    next.run("BEGIN");
    assert_eq!(next.take(1), [id]);
    send(&mut next, id);
    next.run("COMMIT");
    assert_eq!(next.take(1), NONE);
    assert_eq!(next.count("sent"), 1);
}

#[test]
fn a_client_that_is_killed_delivers_nothing() {
    let database = ready(1);
    let mut psql = database
        .command("psql")
        .args(["-X", "-A", "-t", "-q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = psql.stdin.take().unwrap();
    let mut lines = BufReader::new(psql.stdout.take().unwrap()).lines();
    stdin.write_all(b"BEGIN; SELECT effect_done(id) FROM effect_take('mail');\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    let mut next = database.connect();
    assert_eq!(next.take(1), NONE);
    psql.kill().unwrap();
    psql.wait().unwrap();
    wait_until("the effect is given back", || next.take(1).len() == 1);
    assert_eq!(next.deliver(), 1);
}

#[test]
fn a_consumer_with_an_older_snapshot_sends_nothing_twice() {
    for level in LEVELS {
        let database = ready(2);
        let (mut old, mut new) = (database.connect(), database.connect());
        old.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM sent"));
        let id = new.take(1)[0];
        send(&mut new, id);
        match old.query("SELECT id FROM effect_take('mail', 9)", &[]) {
            Ok(rows) => {
                assert_eq!(level, "READ COMMITTED", "a snapshot from before shows the effect as ready");
                assert_eq!(rows.len(), 1);
                assert_ne!(rows[0].get::<_, i64>(0), id);
                send(&mut old, rows[0].get(0));
                old.run("COMMIT");
            }
            Err(error) => {
                assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{error}");
                old.run("ROLLBACK");
                assert_eq!(old.deliver(), 1);
            }
        }
        assert_eq!(new.count("backfill.effects WHERE state = 'done'"), 2);
    }
}

#[test]
fn what_cannot_be_taken_is_not_in_the_way_of_what_can() {
    const MANY: i32 = 1500;
    let database = daily("max_attempts => 1");
    let mut worker = database.connect();
    // Held for ever.
    plan_first(&mut worker, WITH_EFFECTS);
    let lease = worker.lease();
    emit_many(&mut worker, lease.token, MANY);
    worker.fail(lease.token);
    // Suppressed.
    worker.plan_window("2024-01-02");
    let lease = worker.lease();
    emit_many(&mut worker, lease.token, MANY);
    worker.replace(lease.token).unwrap();
    // Done, and ready for consumers of something else.
    let plan = worker.draft("NULL, NULL, 'test', keys => ARRAY['2024-01-03', '2024-01-04'], effects => true");
    worker.approve(plan).unwrap();
    let lease = worker.lease();
    emit_many(&mut worker, lease.token, MANY);
    worker.run(&format!(
        "SELECT effect_emit({}, 'other', key => i::text) FROM generate_series(1, {MANY}) i",
        lease.token
    ));
    worker.replace(lease.token).unwrap();
    while worker.deliver() > 0 {}
    worker.run("VACUUM backfill.effect_data");
    let last = worker.lease();
    worker.mail(last.token, "the one that counts");
    worker.replace(last.token).unwrap();

    worker.run("BEGIN");
    let read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables
                WHERE relid = 'backfill.effect_data'::regclass";
    let before: i64 = worker.one(read, &[]);
    assert_eq!(worker.take(9).len(), 1);
    let rows = worker.one::<i64>(read, &[]) - before;
    assert!(rows < 10, "{rows} rows were read to take one effect");
}

#[test]
fn a_consumer_gets_the_effects_of_the_pipelines_that_it_may_work_on() {
    let database = daily("");
    let mut admin = database.connect();
    let [one, none, reader] = ["one", "none", "reader"].map(|name| database.role(name));
    for pipeline in ["a", "b"] {
        define(&mut admin, pipeline, "'1 day', '2024-01-01'", "");
        admin.run(&format!(
            "SELECT backfill_plan('{pipeline}', '2024-01-01', '2024-01-03', 'test', effects => true, expect => 2);
             SELECT effect_emit(token, 'mail'), backfill_finish(token)
             FROM backfill_claim('w', 2, pipelines => ARRAY['{pipeline}'])"
        ));
    }
    admin.run(&format!(
        "SELECT pipeline_grant('a', '{one}', 'work'), pipeline_grant('a', '{reader}', 'read');
         GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO PUBLIC"
    ));
    assert_eq!(admin.take(3).len(), 3);
    assert_eq!(admin.take(9).len(), 4);

    let mut one = database.connect_as(&one);
    let taken = one.lines("SELECT id, pipeline FROM effect_take('mail', 9) ORDER BY id");
    assert_eq!(taken, ["1|a", "2|a"]);
    assert_eq!(one.deliver(), 2);
    assert_eq!(one.deliver(), 0);
    assert_sqlstate!(one.try_run("SELECT effect_done(3)"), "42501");
    assert_eq!(one.count("backfill.effects"), 2);
    assert_eq!(one.lines("SELECT DISTINCT done_by = current_user FROM backfill.effects"), ["t"]);

    let mut reader = database.connect_as(&reader);
    assert_eq!(reader.count("backfill.effects"), 2);
    let mut none = database.connect_as(&none);
    assert_eq!(none.count("backfill.effects"), 0);
    for session in [&mut reader, &mut none] {
        assert_sqlstate!(session.try_run("SELECT * FROM effect_take('mail')"), "42501");
        assert_sqlstate!(session.try_run("SELECT effect_done(1)"), "42501");
    }
}

#[test]
fn what_was_published_is_delivered_though_its_pipeline_was_dropped() {
    let database = planned("");
    let mut session = database.connect();
    session.mail_window();
    let held = session.lease();
    session.mail(held.token, "");
    session.run("SELECT pipeline_drop('daily')");
    assert_eq!(session.deliver(), 1);
    assert_eq!(session.lines("SELECT state FROM backfill.effects ORDER BY id"), ["done", "held"]);
}

#[test]
fn only_what_is_ready_can_be_done() {
    let database = planned("");
    let mut session = database.connect();
    let lease = session.lease();
    session.mail(lease.token, "");
    let failure = assert_sqlstate!(session.try_run("SELECT effect_done(1)"), "55000");
    assert!(failure.message.contains("held"), "{failure}");
    session.cancel(1);
    plan_first(&mut session, "");
    session.mail_window();
    let failure = assert_sqlstate!(session.try_run("SELECT effect_done(1)"), "55000");
    assert!(failure.message.contains("suppressed"), "{failure}");
}

/// One statement that takes, sends and says so, as the documentation shows it.
#[test]
fn a_statement_may_take_send_and_be_done_at_once() {
    let database = ready(5);
    let mut consumer = database.connect();
    let deliver = "WITH taken AS (SELECT id FROM effect_take('mail', 2)),
                        sent AS (INSERT INTO sent SELECT id FROM taken RETURNING id)
                   SELECT effect_done(id) FROM sent";
    let counts = [(); 4].map(|()| consumer.lines(deliver).len());
    assert_eq!(counts, [2, 2, 1, 0]);
    assert_eq!(consumer.lines("SELECT count(*), count(DISTINCT id) FROM sent"), ["5|5"]);
}
