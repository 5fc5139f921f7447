//! Workers and servers that die between an emission and its publication.

use crate::crash::{cluster, is_gone};
use crate::effects::{Outbox, WITH_EFFECTS};
use crate::support::{Calls, daily, daily_in, replacing_with};
use pgrx_tests::{Cluster, Failure, Session, wait_until};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The statements after which a worker is killed, and whether they publish its mail.
const STEPS: [(&[&str], bool); 6] = [
    (&["BEGIN", EMIT], false),
    (&[EMIT], false),
    (&["BEGIN", EMIT, FINISH], false),
    (&["BEGIN", FINISH, EMIT], false),
    (&[EMIT, "BEGIN", FINISH], false),
    (&[EMIT, FINISH], true),
];

const EMIT: &str = "SELECT effect_emit({token}, 'mail')";
const FINISH: &str = "SELECT backfill_finish({token})";

/// Does what is left of the plan.
fn finish(session: &mut Session) {
    wait_until("all windows are done", || {
        work(session, 0).unwrap() == 0 && session.lines("SELECT state FROM backfill.plans") == ["completed"]
    });
}

/// Each window sent one mail, that of its slice.
fn judge(session: &mut Session, windows: i64) {
    let mails = "SELECT state, count(*), count(DISTINCT window_key) FROM backfill.effects GROUP BY state";
    assert_eq!(session.lines(mails), [format!("done|{windows}|{windows}")]);
    assert_eq!(session.count("backfill.effects e JOIN backfill.slices s USING (token)"), windows);
}

#[test]
fn a_worker_that_is_killed_at_any_step_sends_each_mail_once() {
    let database = daily("lease_for => '1 second', max_attempts => 9");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    session.plan("2024-01-11", WITH_EFFECTS);
    for (statements, published) in STEPS {
        let mut worker = database.connect();
        let token = worker.lease().token.to_string();
        statements.iter().for_each(|statement| worker.run(&statement.replace("{token}", &token)));
        session.run(&format!("SELECT pg_terminate_backend({})", worker.pid()));
        wait_until("the worker is gone", || {
            worker.try_run("SELECT 1").is_err_and(|failure| is_gone(&failure))
        });
        assert_eq!(session.deliver(), usize::from(published), "{statements:?}");
    }
    finish(&mut session);
    assert_eq!(session.deliver(), 9);
    judge(&mut session, 10);
}

#[test]
fn workers_and_consumers_on_a_server_that_crashes_send_each_mail_once() {
    let cluster = cluster();
    let database = daily_in(&cluster, "lease_for => '1 second', retry_delay => '0', max_attempts => 9");
    let mut operator = database.connect();
    operator.run("SELECT pool_define('backfill', 6); CREATE TABLE sent (id bigint)");
    operator.plan("2024-04-10", WITH_EFFECTS);
    let crashes: [fn(&Cluster, i32); 2] = [Cluster::kill_backend, |cluster, _| {
        cluster.crash();
        cluster.restart();
    }];
    for crash in crashes {
        let done = AtomicUsize::new(0);
        let victim = Mutex::new(0);
        database.many(7, |i, session| {
            if i == 6 {
                wait_until("the work is in full swing", || done.load(Ordering::Relaxed) >= 25);
                return crash(&cluster, *victim.lock().unwrap());
            }
            *victim.lock().unwrap() = session.pid();
            let gone = loop {
                let outcome = if i < 4 { work(session, i) } else { consume(session) };
                match outcome {
                    Ok(worked) => done.fetch_add(worked, Ordering::Relaxed),
                    Err(failure) => break failure,
                };
            };
            assert!(is_gone(&gone), "{gone}");
        });
    }
    let mut session = database.connect();
    finish(&mut session);
    while consume(&mut session).unwrap() > 0 {}
    assert_eq!(session.lines("SELECT count(*), count(DISTINCT id) FROM sent"), ["100|100"]);
    judge(&mut session, 100);
    session.assert_data_is_the_ledger();
}

/// Produces a window, with its mail in the same transaction or in one before.
fn work(session: &mut Session, i: usize) -> Result<usize, Failure> {
    let leases = session.try_claim("1, pipelines => ARRAY['daily']")?;
    for lease in &leases {
        let together = i.is_multiple_of(2);
        if together {
            session.try_run("BEGIN")?;
        }
        session.try_mail(lease.token, "")?;
        session.try_run(&replacing_with(lease.token, ", finish => false"))?;
        session.try_run(&format!("SELECT backfill_finish({})", lease.token))?;
        if together {
            session.try_run("COMMIT")?;
        }
    }
    Ok(leases.len())
}

fn consume(session: &mut Session) -> Result<usize, Failure> {
    session.try_run("BEGIN")?;
    let rows = session.query(
        "WITH taken AS (SELECT id FROM effect_take('mail', 2)),
              sent AS (INSERT INTO sent SELECT id FROM taken RETURNING id)
         SELECT effect_done(id) FROM sent",
        &[],
    )?;
    session.try_run("COMMIT")?;
    Ok(rows.len())
}
