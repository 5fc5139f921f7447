//! Crashes: whatever the moment, each window is done once or can be claimed, and no token comes twice.

mod judging;
mod stopping;
mod working;

use crate::support::{Calls, daily_in, replacing, replacing_with};
use pgrx_tests::{Cluster, Database, Failure, Session, wait_until};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The tests take turns in crashing it. It writes asynchronous commits late, so that they are lost. What was
/// written outlives all its processes without fsync, which only makes each recovery take seconds.
pub fn cluster() -> MutexGuard<'static, Cluster> {
    static CLUSTER: OnceLock<Mutex<Cluster>> = OnceLock::new();
    CLUSTER
        .get_or_init(|| Mutex::new(Cluster::private(&["fsync = off", "wal_writer_delay = '10s'"])))
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone, Copy)]
enum Crash {
    /// SIGKILL of one backend: the server ends all others and recovers.
    Kill,
    /// The server itself ends at once.
    Stop,
}

impl Crash {
    fn happen(self, cluster: &Cluster, victim: i32) {
        match self {
            Self::Kill => cluster.kill_backend(victim),
            Self::Stop => {
                cluster.crash();
                cluster.restart();
            }
        }
    }
}

/// A session that does not wait for its commits to reach the disk.
fn careless(database: &Database) -> Session {
    let mut session = database.connect();
    session.run("SET synchronous_commit = off");
    session
}

/// Runs what is left of the plan, and looks at the outcome: each window was done once, by the token whose
/// rows it holds, and each new token lies above those that were given out before.
fn finish_and_judge(database: &Database, given: &[i64]) {
    let mut worker = database.connect();
    let torn = "SELECT date_trunc('day', at) FROM facts GROUP BY 1
                HAVING count(*) <> 4 OR count(DISTINCT token) <> 1";
    assert_eq!(worker.lines(torn), [""; 0], "a slice that is not one attempt's");
    let known = "SELECT count(*) FROM backfill.runs WHERE token = ANY ($1)";
    assert_eq!(worker.one::<i64>(known, &[&given]), given.len() as i64, "leases were forgotten");
    let newest = given.iter().max().unwrap();
    wait_until("all windows are done", || {
        for lease in worker.leases(9) {
            assert!(lease.token > *newest, "token {} came twice", lease.token);
            worker.replace(lease.token).unwrap();
        }
        worker.lines("SELECT state FROM backfill.plans") == ["completed"]
    });
    let often = "SELECT window_key, count(*) FROM backfill.runs WHERE outcome = 'done'
                 GROUP BY window_key HAVING count(*) <> 1";
    assert_eq!(worker.lines(often), [""; 0], "windows that were done more than once");
    worker.assert_one_lease_per_window();
    worker.assert_data_is_the_ledger();
}

/// Where a worker is when it is killed. `None` is a worker whose claim is not committed.
const STEPS: [fn(i64) -> String; 11] = [
    |_| String::new(),
    |token| format!("SELECT backfill_heartbeat({token})"),
    |token| format!("SELECT backfill_stage({token})"),
    |token| format!("BEGIN; SELECT fence_check({token})"),
    |token| format!("BEGIN; {}", replacing(token)),
    |token| replacing_with(token, ", finish => false"),
    |token| format!("{}; BEGIN; SELECT backfill_finish({token})", replacing_with(token, ", finish => false")),
    |token| replacing(token),
    |token| format!("SELECT backfill_fail({token}, 'no luck')"),
    |token| format!("SELECT backfill_release({token})"),
    |token| format!("BEGIN; SELECT backfill_fail({token}, 'no luck')"),
];

fn a_crash_at_every_step(crash: Crash) {
    let cluster = cluster();
    let settings = "lease_for => '1 second', retry_delay => '0', max_attempts => 9";
    let database = daily_in(&cluster, settings);
    let mut operator = database.connect();
    operator.run("SELECT pool_define('backfill', 16)");
    operator.plan("2024-01-21", "");
    let mut tokens = vec![];
    let mut workers = vec![];
    for step in STEPS {
        let mut worker = careless(&database);
        let lease = worker.lease();
        worker.run(&step(lease.token));
        tokens.push(lease.token);
        workers.push(worker);
    }
    let mut claiming = careless(&database);
    claiming.run("BEGIN");
    claiming.lease();
    // What was waited for is kept.
    let kept = operator.lease();
    operator.replace(kept.token).unwrap();
    tokens.push(kept.token);
    crash.happen(&cluster, workers[4].pid());
    let mut judge = database.connect();
    assert_eq!(judge.state(&kept.key), "done");
    finish_and_judge(&database, &tokens);
}

#[test]
fn a_killed_worker_leaves_each_window_done_once_or_claimable_whatever_its_step() {
    a_crash_at_every_step(Crash::Kill);
}

#[test]
fn a_stopped_server_leaves_each_window_done_once_or_claimable_whatever_the_step() {
    a_crash_at_every_step(Crash::Stop);
}

#[test]
fn a_lease_that_a_careless_worker_was_told_of_survives_a_crash() {
    let cluster = cluster();
    let database = daily_in(&cluster, "lease_for => '1 second', max_attempts => 9");
    let mut worker = careless(&database);
    worker.plan("2024-01-04", "");
    let first = worker.lease();
    worker.call("finish", first.token);
    let mut tokens = vec![first.token];
    for _ in 0..2 {
        // Its token is the newest thing that the server knows.
        let mut worker = careless(&database);
        tokens.push(worker.lease().token);
        Crash::Stop.happen(&cluster, worker.pid());
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    finish_and_judge(&database, &tokens);
}

/// What a session is told whose server went away.
pub fn is_gone(failure: &Failure) -> bool {
    failure.sqlstate.is_empty() || failure.sqlstate.starts_with("57P")
}

#[test]
fn workers_that_crash_in_the_middle_of_everything_do_each_window_once() {
    let cluster = cluster();
    let settings = "lease_for => '1 second', retry_delay => '0', max_attempts => 9";
    let database = daily_in(&cluster, settings);
    let mut operator = database.connect();
    operator.run("SELECT pool_define('backfill', 6)");
    operator.plan("2024-04-10", "");
    let given = Mutex::new(vec![]);
    for crash in [Crash::Kill, Crash::Stop] {
        let done = AtomicUsize::new(0);
        let victim = Mutex::new(0);
        database.many(7, |i, session| {
            if i == 6 {
                wait_until("the work is in full swing", || done.load(Ordering::Relaxed) >= 25);
                return crash.happen(&cluster, *victim.lock().unwrap());
            }
            *victim.lock().unwrap() = session.pid();
            let gone = loop {
                if let Err(failure) = work(session, &given, &done) {
                    break failure;
                }
            };
            assert!(is_gone(&gone), "{gone}");
        });
    }
    finish_and_judge(&database, &given.into_inner().unwrap());
}

fn work(session: &mut Session, given: &Mutex<Vec<i64>>, done: &AtomicUsize) -> Result<(), Failure> {
    session.try_run("SET synchronous_commit = off")?;
    for lease in session.try_claim("1, pipelines => ARRAY['daily']")? {
        given.lock().unwrap().push(lease.token);
        session.replace(lease.token)?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[test]
fn a_restart_in_the_middle_of_a_plan_costs_nothing() {
    let cluster = cluster();
    let database = daily_in(&cluster, "");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 3)");
    worker.plan("2024-01-21", "");
    for _ in 0..10 {
        let lease = worker.lease();
        worker.replace(lease.token).unwrap();
    }
    let mut writing = database.connect();
    let [held, half] = writing.leases(2).try_into().unwrap();
    writing.run("BEGIN");
    writing.replace(half.token).unwrap();
    cluster.restart();
    // The same workers come back, and nobody decides anything.
    let mut worker = database.connect();
    assert_eq!(worker.lines("SELECT state, done, running FROM backfill.plans"), ["running|10|2"]);
    for token in [held.token, half.token] {
        worker.replace(token).unwrap();
    }
    while let Some(lease) = worker.claim() {
        worker.replace(lease.token).unwrap();
    }
    assert_eq!(worker.lines("SELECT state, done FROM backfill.plans"), ["completed|20"]);
    assert_eq!(worker.lines("SELECT count(*), max(attempt) FROM backfill.runs"), ["20|1"]);
    worker.assert_data_is_the_ledger();
}
