//! Publishing, staging and reverting 100 windows on a server that may go away.

use crate::crash::is_gone;
use crate::crash::judging::{claiming, replacing};
use crate::support::Calls;
use pgrx_tests::{Failure, Session};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: usize = 4;

/// What is done to all windows of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// By workers, window by window, each in a transaction of its own.
    Publish,
    /// The same for a plan that is published together, later.
    Stage,
    /// By one statement in one transaction: all of them or none.
    Whole { name: &'static str, statement: &'static str },
}

pub const PUBLISH: Operation =
    Operation::Whole { name: "publish together", statement: "SELECT backfill_publish({plan})" };

pub const REVERT: Operation =
    Operation::Whole { name: "revert", statement: "SELECT backfill_revert({plan}, 'it was wrong')" };

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Stage => "stage",
            Self::Whole { name, .. } => name,
        }
    }

    /// How many sessions it takes.
    pub fn hands(self) -> usize {
        if matches!(self, Self::Whole { .. }) { 1 } else { WORKERS }
    }
}

/// An operation on a plan, and the versions that the windows hold before and after it.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    pub operation: Operation,
    pub plan: i64,
    /// What the plan builds.
    pub version: i32,
    pub before: Option<i32>,
    pub after: Option<i32>,
}

/// Where a session is; the last one that it came to is where the server left it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    #[default]
    Claiming,
    Staging,
    Writing,
    Committing,
    Over,
}

/// What a session did and was told.
#[derive(Debug, Default)]
pub struct Trace {
    pub step: Step,
    /// Tokens that it was given.
    pub given: Vec<i64>,
    /// The one that it works under, and how many rows its stage holds.
    pub held: Option<(i64, Option<i64>)>,
    pub done: Vec<i64>,
    /// How long its COMMITs took.
    pub commits: Vec<Duration>,
}

/// What the sessions of a task share with whoever stops the server.
#[derive(Debug, Default)]
pub struct Shared {
    /// COMMITs that were sent.
    pub commits: AtomicUsize,
    pub over: AtomicUsize,
}

impl Trace {
    fn commit(&mut self, session: &mut Session, shared: &Shared) -> Result<(), Failure> {
        self.step = Step::Committing;
        shared.commits.fetch_add(1, Ordering::Release);
        let sent = Instant::now();
        session.try_run("COMMIT")?;
        self.commits.push(sent.elapsed());
        Ok(())
    }
}

/// Does the task until it is done or the server is gone.
pub fn work(session: &mut Session, task: Task, floor: i64, shared: &Shared) -> Trace {
    let mut trace = Trace::default();
    let outcome = match task.operation {
        Operation::Publish | Operation::Stage => produce_all(session, task, floor, shared, &mut trace),
        Operation::Whole { statement, .. } => whole(session, task, statement, shared, &mut trace),
    };
    match outcome {
        Ok(()) => trace.step = Step::Over,
        Err(failure) => assert!(is_gone(&failure), "{failure}"),
    }
    shared.over.fetch_add(1, Ordering::Release);
    trace
}

fn whole(
    session: &mut Session,
    task: Task,
    statement: &str,
    shared: &Shared,
    trace: &mut Trace,
) -> Result<(), Failure> {
    trace.step = Step::Writing;
    session.try_run("BEGIN")?;
    session.try_run(&statement.replace("{plan}", &task.plan.to_string()))?;
    trace.commit(session, shared)
}

fn produce_all(
    session: &mut Session,
    task: Task,
    floor: i64,
    shared: &Shared,
    trace: &mut Trace,
) -> Result<(), Failure> {
    let version = task.version;
    let over = "SELECT state IN ('completed', 'staged') FROM backfill.plans WHERE plan_id = $1";
    loop {
        trace.step = Step::Claiming;
        let Some(lease) = session.try_claim(&claiming(version, 1))?.pop() else {
            if session.try_one(over, &[&task.plan])? {
                return Ok(());
            }
            // Others hold what is left, or did before a stop.
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        assert!(lease.token > floor, "token {} came twice", lease.token);
        trace.given.push(lease.token);
        trace.held = Some((lease.token, None));
        match produce(session, lease.token, version, shared, trace) {
            Ok(()) => trace.done.push(lease.token),
            Err(failure) if is_gone(&failure) => return Err(failure),
            // A machine that is busy lets leases expire.
            Err(failure) => {
                assert!(["BF001", "BF002", "40001"].contains(&failure.sqlstate.as_str()), "{failure}");
                session.try_run("ROLLBACK")?;
            }
        }
        trace.held = None;
    }
}

/// Publishes the window in one of four ways.
fn produce(
    session: &mut Session,
    token: i64,
    version: i32,
    shared: &Shared,
    trace: &mut Trace,
) -> Result<(), Failure> {
    let way = ["rows", "diff", "auto", "stage"][token as usize % 4];
    if way == "stage" {
        trace.step = Step::Staging;
        session.try_run(&format!("SELECT backfill_stage({token})"))?;
        let fill = "INSERT INTO backfill.stage_{token}
            SELECT f.* FROM backfill.leases l, slice_of({version}, l.window_start) f WHERE l.token = {token}";
        let fill = fill.replace("{token}", &token.to_string()).replace("{version}", &version.to_string());
        session.try_run(&fill)?;
        trace.held = Some((token, Some(rows_of(version))));
    }
    trace.step = Step::Writing;
    session.try_run("BEGIN")?;
    match way {
        "stage" => session.try_run(&format!("SELECT replace_partition({token})"))?,
        strategy => session.try_run(&replacing(token, version, &format!(", strategy => '{strategy}'")))?,
    }
    trace.commit(session, shared)
}

fn rows_of(version: i32) -> i64 {
    i64::from(8 + version % 3)
}
