//! What plans were estimated to take beside what they took.
//!
//! Each pipeline first gets a history: other windows, whose durations are drawn alike. The last of it runs as many
//! windows at once as the plan does, so that the time between two windows is known as it is at that load. What luck is in the
//! draws, and what else the machine does meanwhile, is in the error, as it would be anywhere. A column says how much
//! longer the plan's windows took than the history's: that much of the error nobody could know.

use super::table::Table;
use super::{OURS, count};
use crate::Result;
use pgrx_tests::server::Server;
use std::fs;
use std::thread;
use std::time::Duration;

const WINDOWS: usize = 200;
/// Windows of the history, no more than a price looks at: those that run at least so many at once, to save time, and
/// those that run as the plan will. With 200 windows that vary by 40 % luck is left with some 3 %.
const HISTORY: [usize; 2] = [460, 40];
const AT_LEAST_AT_ONCE: usize = 4;
const SHAPES: [&str; 2] = ["lognormal", "bimodal"];
/// Windows at once, and the mean of what one takes in seconds. Longer where more run at once: two cores are to carry
/// the claims of them all.
const LOADS: [(usize, f64); 3] = [(1, 0.12), (4, 0.15), (16, 0.3)];
const WITHIN: f64 = 0.1;

pub fn measure(server: &Server, seed: u64) -> Result<()> {
    server.psql(OURS, include_str!("sql/makespan.sql"))?;
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split_whitespace().take(3).collect();
    println!("\n== plans of {WINDOWS} windows, seed {seed}; load before: {}\n", load.join(" "));
    let headings = [
        "durations",
        "at once",
        "idle",
        "estimate",
        "80 % interval",
        "measured",
        "error",
        "windows",
        "inside",
    ];
    let table = Table::start(9, &headings);
    let (mut missed, mut inside) = (0, 0);
    for shape in SHAPES {
        for (at_once, mean) in LOADS {
            let plan = Experiment { server, name: format!("{shape}_{at_once}"), at_once };
            let outcome = plan.run(shape, mean, seed)?;
            let [idle, estimate, low, high, measured, windows] = outcome;
            let error = measured / estimate - 1.0;
            let is_inside = (low..=high).contains(&measured);
            missed += usize::from(error.abs() > WITHIN);
            inside += usize::from(is_inside);
            table.row(&[
                shape.to_owned(),
                at_once.to_string(),
                format!("{:.1} ms", idle * 1e3),
                format!("{estimate:.2} s"),
                format!("{low:.2} - {high:.2} s"),
                format!("{measured:.2} s"),
                format!("{:+.1} %", error * 100.0),
                format!("{:+.1} %", windows * 100.0),
                if is_inside { "yes" } else { "no" }.to_owned(),
            ]);
        }
    }
    let all = SHAPES.len() * LOADS.len();
    println!("\n  {inside} of {all} lie in their interval, which is to hold 80 %");
    if missed > 0 {
        return Err(format!(
            "{missed} of {all} plans took over {} % more or less than estimated",
            WITHIN * 100.0
        ));
    }
    Ok(())
}

/// A pipeline, its history, and a plan.
struct Experiment<'a> {
    server: &'a Server,
    name: String,
    at_once: usize,
}

impl Experiment<'_> {
    /// Idle time, estimate, its bounds, what it took, and how much longer its windows are than the history's.
    fn run(&self, shape: &str, mean: f64, seed: u64) -> Result<[f64; 6]> {
        let windows = HISTORY[0] + HISTORY[1] + WINDOWS;
        // PostgreSQL takes seeds from -1 to 1. Each load has draws of its own.
        let seed = ((seed * 100 + self.at_once as u64) as f64 * 0.618_034).fract();
        let name = &self.name;
        let tasks = include_str!("sql/makespan_tasks.sql");
        self.server.psql(
            OURS,
            &format!("\\set name {name}\n\\set shape {shape}\n\\set mean {mean}\n\\set seed {seed}\n\\set windows {windows}\n{tasks}"),
        )?;
        self.plan(0, HISTORY[0], self.at_once.max(AT_LEAST_AT_ONCE))?;
        self.plan(HISTORY[0], HISTORY[1], self.at_once)?;
        let plan_id = self.plan(HISTORY[0] + HISTORY[1], WINDOWS, self.at_once)?;
        count::row(
            self.server,
            OURS,
            &format!(
                "SELECT estimate->>'idle', estimate->>'parallel', estimate->>'parallel_low', estimate->>'parallel_high',
                        actual->>'parallel',
                        (SELECT avg(finished_at - started_at) FILTER (WHERE r.plan_id = plans.plan_id)
                              / avg(finished_at - started_at) FILTER (WHERE r.plan_id < plans.plan_id) - 1
                         FROM (SELECT plan_id, extract(epoch FROM finished_at) AS finished_at,
                                      extract(epoch FROM started_at) AS started_at
                               FROM backfill.runs WHERE pipeline = plans.pipeline) r)
                 FROM backfill.plans WHERE plan_id = {plan_id} AND state = 'completed'"
            ),
        )
    }

    /// Runs a plan of some windows with as many workers as it has slots; answers its number. They are there before
    /// it is approved, so that no time passes in which they only start.
    fn plan(&self, first: usize, windows: usize, at_once: usize) -> Result<u64> {
        let (server, name) = (self.server, &self.name);
        let at = |minute: usize| format!("timestamptz '2000-01-01 00:00Z' + {minute} * interval '1 minute'");
        let plan_id = count::one(
            server,
            OURS,
            &format!(
                "SELECT plan_id FROM backfill_plan('{name}', {}, {}, 'bench', pool => '{name}', concurrency => {at_once})",
                at(first),
                at(first + windows)
            ),
        )? as u64;
        let work = format!("CALL work('{name}', {plan_id})");
        thread::scope(|scope| {
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(|| server.psql(OURS, &work))).collect();
            let approved = self
                .wait_for_workers(at_once)
                .and_then(|()| server.psql(OURS, &format!("SELECT backfill_approve({plan_id}, {windows})")));
            if approved.is_err() {
                // They would wait for ever.
                let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = ";
                server.psql(OURS, &format!("{end}$${work}$$"))?;
            }
            let ended: Result<Vec<String>> =
                workers.into_iter().map(|worker| worker.join().expect("it does not panic")).collect();
            approved.and(ended)
        })?;
        Ok(plan_id)
    }

    fn wait_for_workers(&self, at_once: usize) -> Result<()> {
        let there =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL work%' AND state = 'active'";
        for _ in 0..1_000 {
            if count::one(self.server, OURS, there)? as usize >= at_once {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!("{at_once} workers did not start in time"))
    }
}
