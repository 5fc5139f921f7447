//! A server that is stopped at once (`pg_ctl stop -m immediate`) at random moments while 100 windows are published,
//! one by one or together, or reverted.
//!
//! `cargo xtask test --stops 200 --seed 1 stopping` stops it so often, and draws the same moments again. They are parts of
//! what the same took before without a stop; every third one is drawn within a COMMIT.

use crate::crash::judging::{UNTIL, WINDOWS, faults, history, versions};
use crate::crash::working::{Operation, PUBLISH, REVERT, Shared, Step, Task, Trace, work};
use crate::support::Calls;
use pg_backfill::domain::random::Random;
use pgrx_tests::{Cluster, Database, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A COMMIT waits for 2 ms between its record and the disk, so that stops come upon it. That takes fsync, which else plays
/// no part: what was written outlives the server's processes. Recovery is not to look at every file for it.
const SETTINGS: [&str; 3] =
    ["commit_delay = 2000", "commit_siblings = 0", "recovery_init_sync_method = syncfs"];

/// When the server is stopped.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// So long after the start.
    Within(Duration),
    /// So long after that COMMIT was sent.
    Commit(usize, Duration),
}

impl Moment {
    fn wait(self, start: Instant, shared: &Shared, hands: usize) {
        match self {
            Self::Within(time) => thread::sleep(time.saturating_sub(start.elapsed())),
            Self::Commit(nth, delay) => {
                while shared.commits.load(Ordering::Acquire) < nth
                    && shared.over.load(Ordering::Acquire) < hands
                {
                    thread::sleep(Duration::from_micros(20));
                }
                let sent = Instant::now();
                while sent.elapsed() < delay {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

/// How long an operation and its COMMITs took.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    all: Duration,
    commit: Duration,
}

/// What the stops of an operation came upon, for a person.
#[derive(Debug, Default)]
struct Figures {
    stops: usize,
    /// Stops by the step of the session that had come furthest.
    furthest: BTreeMap<Step, usize>,
    /// Transactions that were stopped in their COMMIT, by whether they are committed.
    committed: usize,
    lost: usize,
}

struct Trial {
    cluster: Cluster,
    database: Database,
    random: Random,
    /// Plans whose slices are there, each with its version; every one replaced those of the one before.
    stack: Vec<(i64, i32)>,
    newest_version: i32,
    /// A task that another one has to come before.
    staged: Option<Task>,
    /// Whether plans are reverted, and not published, until none is left.
    is_falling: bool,
    /// The highest token before the last start of the server.
    floor: i64,
    open: BTreeSet<i64>,
    spans: BTreeMap<&'static str, Span>,
    figures: BTreeMap<&'static str, Figures>,
}

impl Trial {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::private(&SETTINGS);
        let database = history(&cluster);
        Self {
            cluster,
            database,
            random: Random::new(seed),
            stack: vec![],
            newest_version: 0,
            staged: None,
            is_falling: false,
            floor: 0,
            open: BTreeSet::new(),
            spans: BTreeMap::new(),
            figures: BTreeMap::new(),
        }
    }

    /// The next plan of all windows, to be published. Every second one is published together, and is staged before.
    fn publication(&mut self) -> Task {
        if let Some(staged) = self.staged.take() {
            return staged;
        }
        self.newest_version += 1;
        let after = self.newest_version;
        let together = after % 2 == 0;
        let publish = if together { "together" } else { "each" };
        let arguments = format!(", code_version => '{after}', publish => '{publish}'");
        let plan = self.database.connect().plan(UNTIL, &arguments);
        let before = self.stack.last().map(|(_, version)| *version);
        let task = Task { operation: Operation::Publish, plan, version: after, before, after: Some(after) };
        if together {
            self.staged = Some(Task { operation: PUBLISH, ..task });
            return Task { operation: Operation::Stage, after: before, ..task };
        }
        task
    }

    /// The revert of the newest plan.
    fn reversion(&self) -> Task {
        let version = |(_, version): &(i64, i32)| *version;
        let [.., (plan, newest)] = self.stack[..] else { panic!("there is a plan to revert") };
        let below = self.stack.iter().rev().nth(1);
        Task { operation: REVERT, plan, version: newest, before: Some(newest), after: below.map(version) }
    }

    fn is_done(&self, task: Task) -> bool {
        let mut session = self.database.connect();
        let state: String = session.one("SELECT state FROM backfill.plans WHERE plan_id = $1", &[&task.plan]);
        let ended = match task.operation {
            Operation::Publish => "completed",
            Operation::Stage => "staged",
            PUBLISH => "published",
            _ => "reverted",
        };
        state == ended && versions(&mut session) == [(task.after, WINDOWS)]
    }

    /// Lets the task go on to its end.
    fn complete(&mut self, task: Task) {
        let start = Instant::now();
        let shared = Shared::default();
        let traces =
            self.database.many(task.operation.hands(), |_, session| work(session, task, self.floor, &shared));
        assert!(traces.iter().all(|trace| trace.step == Step::Over), "{traces:?}");
        let commits: Vec<Duration> = traces.iter().flat_map(|trace| trace.commits.clone()).collect();
        let span = Span {
            all: start.elapsed(),
            commit: commits.iter().sum::<Duration>() / commits.len().max(1) as u32,
        };
        let known = self.spans.entry(task.operation.name()).or_insert(span);
        // The fastest, on a machine that is busy now and then. Of what workers do, a stop has left a part.
        if task.operation.hands() == 1 && span.all < known.all {
            *known = span;
        }
        self.settle(task);
    }

    /// The task is done.
    fn settle(&mut self, task: Task) {
        assert!(self.is_done(task), "{task:?}");
        match task.operation {
            Operation::Stage => (),
            REVERT => drop(self.stack.pop()),
            _ => self.stack.push((task.plan, task.version)),
        }
    }

    fn moment(&mut self, task: Task) -> Moment {
        let span = self.spans[task.operation.name()];
        // A little more than it took, so that its end is among them.
        let part = self.random.unit() * 1.1;
        if self.random.below(3) > 0 {
            return Moment::Within(span.all.mul_f64(part));
        }
        let nth = match task.operation {
            Operation::Whole { .. } => 1,
            _ => 1 + self.random.below(WINDOWS as usize / 2),
        };
        Moment::Commit(nth, span.commit.mul_f64(part))
    }

    /// Stops the server in the middle of the task, starts it again, and looks at what is there. Says whether the task is done.
    fn stop(&mut self, task: Task) -> bool {
        let moment = self.moment(task);
        println!("{task:?}, {moment:?}");
        let hands = task.operation.hands();
        let (early, meanwhile) = (self.random.below(3) == 0, self.random.below(3) == 0);
        let mut admin = self.database.connect();
        if early {
            admin.run("CHECKPOINT");
        }
        let shared = Shared::default();
        let sessions: Vec<Session> = (0..hands).map(|_| self.database.connect()).collect();
        let armed = self.cluster.armed();
        let (floor, shared) = (self.floor, &shared);
        let start = Instant::now();
        let traces: Vec<Trace> = thread::scope(|scope| {
            let work = |mut session| move || work(&mut session, task, floor, shared);
            let workers: Vec<_> = sessions.into_iter().map(|session| scope.spawn(work(session))).collect();
            if meanwhile {
                scope.spawn(|| admin.try_run("CHECKPOINT"));
            }
            moment.wait(start, shared, hands);
            armed.fire();
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
        });
        self.cluster.restart();
        self.judge(task, &traces)
    }

    fn judge(&mut self, task: Task, traces: &[Trace]) -> bool {
        let mut session = self.database.connect();
        let at = format!("{task:?} {traces:?}");
        assert_eq!(faults(&mut session), [""; 0], "{at}");
        let held = versions(&mut session);
        let known = |version: &Option<i32>| [task.before, task.after].contains(version);
        assert!(held.iter().all(|(version, _)| known(version)), "{held:?}: {at}");
        let done = self.is_done(task);

        // What a session was told is so.
        let given: Vec<i64> = traces.iter().flat_map(|trace| trace.given.clone()).collect();
        let runs = session.rows("SELECT token, outcome FROM backfill.runs WHERE token = ANY ($1)", &[&given]);
        let outcomes: BTreeMap<i64, Option<String>> =
            runs.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(outcomes.len(), given.len(), "leases were forgotten: {at}");
        let is_done = |token: i64| outcomes[&token].as_deref() == Some("done");
        let mut in_commit = vec![];
        for trace in traces {
            assert!(trace.done.iter().all(|token| is_done(*token)), "what was committed is lost: {at}");
            match (task.operation, trace.step, trace.held) {
                (Operation::Whole { .. }, step, _) => {
                    assert!(done || held == [(task.before, WINDOWS)], "a mixture, {held:?}: {at}");
                    match step {
                        Step::Committing => in_commit.push(done),
                        Step::Over => assert!(done, "what was committed is lost: {at}"),
                        _ => assert!(!done, "nobody committed it: {at}"),
                    }
                }
                (_, Step::Committing, Some((token, _))) => in_commit.push(is_done(token)),
                (_, _, Some((token, staged))) => {
                    assert!(!is_done(token), "nobody committed {token}: {at}");
                    if let (Some(rows), None) = (staged, &outcomes[&token]) {
                        assert_eq!(session.count(&format!("backfill.stage_{token}")), rows, "{at}");
                    }
                }
                (_, _, None) => (),
            }
        }

        // Who claimed when the server stopped may have a lease and not know it.
        let open: BTreeSet<i64> =
            session.column("SELECT token FROM backfill.leases", &[]).into_iter().collect();
        let unknown: Vec<&i64> =
            open.iter().filter(|token| !self.open.contains(token) && !given.contains(token)).collect();
        let claiming = traces.iter().filter(|trace| trace.step == Step::Claiming).count();
        assert!(
            unknown.len() <= claiming && unknown.iter().all(|token| **token > self.floor),
            "{unknown:?}: {at}"
        );
        self.open = open;
        self.floor = session.one("SELECT max(token) FROM backfill.runs", &[]);

        let figures = self.figures.entry(task.operation.name()).or_default();
        figures.stops += 1;
        // One that waits for windows of others is at its end.
        let furthest = traces.iter().map(|trace| trace.step).filter(|step| *step != Step::Over).max();
        *figures.furthest.entry(furthest.unwrap_or(Step::Over)).or_default() += 1;
        figures.committed += in_commit.iter().filter(|committed| **committed).count();
        figures.lost += in_commit.iter().filter(|committed| !**committed).count();
        done
    }

    /// Two plans are published, one on the other, and reverted again; down to none, where the windows had no slice.
    fn next(&mut self) -> Task {
        self.is_falling = match self.stack.len() {
            0 => false,
            2 => true,
            _ => self.is_falling,
        };
        if self.is_falling { self.reversion() } else { self.publication() }
    }

    /// What the stops came upon.
    fn told(&self) -> String {
        let line = |(name, figures): (&&str, &Figures)| {
            let furthest: Vec<String> =
                figures.furthest.iter().map(|(step, stops)| format!("{step:?} {stops}")).collect();
            format!(
                "{name}: {:?}; {} stops, furthest session {}; in COMMIT {} committed, {} lost\n",
                self.spans[name],
                figures.stops,
                furthest.join(", "),
                figures.committed,
                figures.lost
            )
        };
        self.figures.iter().map(line).collect()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn a_server_stopped_at_any_moment_leaves_no_mixture_no_lost_table_and_a_true_ledger() {
    let asked = number("PG_BACKFILL_STOPS");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = number("PG_BACKFILL_SEED").unwrap_or(now.as_millis() as u64);
    println!("--seed {seed} draws the same moments");
    let mut trial = Trial::new(seed);
    // How long they take: a plan window by window, one together, and their reverts.
    for _ in 0..5 {
        let task = trial.next();
        trial.complete(task);
    }
    let stops = asked.unwrap_or(6) as usize;
    let mut stop = 0;
    while stop < stops {
        let task = trial.next();
        loop {
            stop += 1;
            if trial.stop(task) {
                trial.settle(task);
                break;
            }
            // What was stopped goes on, and may be stopped again.
            if stop == stops || trial.random.below(4) > 0 {
                trial.complete(task);
                break;
            }
        }
    }
    let mut session = trial.database.connect();
    assert_eq!(faults(&mut session), [""; 0]);
    if asked.is_some() {
        // Not through the macros, whose words cargo keeps to itself where a test passes.
        let told = format!("{stops} stops, seed {seed}\n{}", trial.told());
        std::io::stderr().write_all(told.as_bytes()).expect("stderr takes it");
    }
}
