//! What plans were estimated to take beside what they took.
//!
//! Each pipeline first gets a history: other windows, whose durations are drawn alike. The last of it runs as many
//! windows at once as the plans do, so that the time between two windows is known as it is at that load. Then come
//! some plans of 200 windows, each priced from the newest runs. What luck is in the draws, and what else the machine
//! does meanwhile, is in the errors, as it would be anywhere. A column says by how much the plan's own draws miss the
//! estimate, on slots that cost nothing else: that much of the error nobody could know.
//!
//! One plan may be unlucky, so that the answer is about all: the estimates are good if no more than one plan in ten is
//! off by more than 10 %, and the intervals are honest if as many plans lie in them as luck allows where 80 % should.

use super::table::Table;
use super::{OURS, count, load};
use crate::Result;
use pgrx_tests::server::Server;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::thread;
use std::time::Duration;

const WINDOWS: usize = 200;
/// Plans of each kind.
const PLANS: usize = 5;
/// Windows of the history, no more than a price looks at: those that run at least so many at once, to save time, and
/// those that run as the plan will. With 200 windows that vary by 40 % luck is left with some 3 %.
const HISTORY: [usize; 2] = [460, 40];
const AT_LEAST_AT_ONCE: usize = 4;
const SHAPES: [&str; 2] = ["lognormal", "bimodal"];
/// Windows at once, and the mean of what one takes in seconds. Longer where more run at once: two cores are to carry
/// the claims of them all.
const LOADS: [(usize, f64); 3] = [(1, 0.12), (4, 0.15), (16, 0.3)];
const WITHIN: f64 = 0.1;
/// Of all plans.
const MAY_MISS: f64 = 0.1;
/// The part of plans that the interval is said to hold, and how many standard deviations below it luck may bring it.
const INSIDE: f64 = 0.8;
const LUCK: f64 = 2.33;

pub fn measure(server: &Server, seed: u64) -> Result<()> {
    server.psql(OURS, include_str!("sql/makespan.sql"))?;
    let load = load();
    println!("\n== plans of {WINDOWS} windows, seed {seed}; load before: {load}\n");
    let headings =
        ["durations", "at once", "idle", "estimate", "80 % interval", "measured", "error", "draws", "inside"];
    let table = Table::start(9, &headings);
    let mut outcomes = vec![];
    for shape in SHAPES {
        for (at_once, mean) in LOADS {
            let experiment = Experiment { server, name: format!("{shape}_{at_once}"), at_once };
            experiment.prepare(shape, mean, seed)?;
            for n in 0..PLANS {
                let outcome = experiment.run(n)?;
                table.row(&[
                    shape.to_owned(),
                    at_once.to_string(),
                    format!("{:.1} ms", outcome.idle * 1e3),
                    format!("{:.2} s", outcome.estimate),
                    format!("{:.2} - {:.2} s", outcome.low, outcome.high),
                    format!("{:.2} s", outcome.measured),
                    format!("{:+.1} %", outcome.error() * 100.0),
                    format!("{:+.1} %", (outcome.own_draws / outcome.estimate - 1.0) * 100.0),
                    if outcome.is_inside() { "yes" } else { "no" }.to_owned(),
                ]);
                outcomes.push(outcome);
            }
        }
    }
    judge(&outcomes)
}

/// Says how good the estimates and how honest the intervals were; an error where they were not.
fn judge(outcomes: &[Outcome]) -> Result<()> {
    println!();
    for (at_once, _) in LOADS {
        let errors: Vec<f64> =
            outcomes.iter().filter(|outcome| outcome.at_once == at_once).map(Outcome::error).collect();
        let mean =
            |errors: &mut dyn Iterator<Item = f64>| errors.sum::<f64>() / (SHAPES.len() * PLANS) as f64;
        println!(
            "  {at_once} at once: {:+.1} % on average, {:.1} % either way, {:.1} % at worst",
            100.0 * mean(&mut errors.iter().copied()),
            100.0 * mean(&mut errors.iter().map(|error| error.abs())),
            100.0 * errors.iter().map(|error| error.abs()).fold(0.0, f64::max),
        );
    }
    let all = outcomes.len();
    let within = outcomes.iter().filter(|outcome| outcome.error().abs() <= WITHIN).count();
    let inside = outcomes.iter().filter(|outcome| outcome.is_inside()).count();
    println!("  {within} of {all} took within {} % of the estimate", WITHIN * 100.0);
    println!("  {inside} of {all} lie in their interval, which is to hold {} %", INSIDE * 100.0);
    let expected = INSIDE * all as f64;
    if (all - within) as f64 > MAY_MISS * all as f64 {
        return Err(format!("{} of {all} plans took over {} % more or less", all - within, WITHIN * 100.0));
    }
    if (inside as f64) < expected - LUCK * (expected * (1.0 - INSIDE)).sqrt() {
        return Err(format!("only {inside} of {all} plans lie in their interval"));
    }
    Ok(())
}

/// One plan, in seconds.
struct Outcome {
    at_once: usize,
    idle: f64,
    estimate: f64,
    low: f64,
    high: f64,
    measured: f64,
    /// What its draws alone take.
    own_draws: f64,
}

impl Outcome {
    fn error(&self) -> f64 {
        self.measured / self.estimate - 1.0
    }

    fn is_inside(&self) -> bool {
        (self.low..=self.high).contains(&self.measured)
    }
}

/// A pipeline, its history, and its plans.
struct Experiment<'a> {
    server: &'a Server,
    name: String,
    at_once: usize,
}

impl Experiment<'_> {
    /// Draws what every window takes, and makes the history.
    fn prepare(&self, shape: &str, mean: f64, seed: u64) -> Result<()> {
        let windows = HISTORY[0] + HISTORY[1] + PLANS * WINDOWS;
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
        Ok(())
    }

    fn run(&self, n: usize) -> Result<Outcome> {
        let first = HISTORY[0] + HISTORY[1] + n * WINDOWS;
        let plan_id = self.plan(first, WINDOWS, self.at_once)?;
        let [idle, estimate, low, high, measured] = count::row(
            self.server,
            OURS,
            &format!(
                "SELECT estimate->>'idle', estimate->>'parallel', estimate->>'parallel_low', estimate->>'parallel_high',
                        actual->>'parallel'
                 FROM backfill.plans WHERE plan_id = {plan_id} AND state = 'completed'"
            ),
        )?;
        let drawn = self.server.psql(
            OURS,
            &format!(
                "SELECT seconds FROM task WHERE pipeline = '{}' ORDER BY window_start OFFSET {first} LIMIT {WINDOWS}",
                self.name
            ),
        )?;
        let drawn: Vec<f64> = drawn.lines().filter_map(|line| line.trim().parse().ok()).collect();
        let own_draws = schedule(&drawn, self.at_once, idle);
        Ok(Outcome { at_once: self.at_once, idle, estimate, low, high, measured, own_draws })
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

/// When the last one ends, if each goes to the slot that is free first. In seconds.
fn schedule(durations: &[f64], slots: usize, idle: f64) -> f64 {
    let micros = |seconds: f64| (seconds * 1e6) as u64;
    let mut free: BinaryHeap<Reverse<u64>> = (0..slots).map(|_| Reverse(0)).collect();
    let mut end = 0;
    for duration in durations {
        let Some(Reverse(start)) = free.pop() else { break };
        end = end.max(start + micros(*duration));
        free.push(Reverse(start + micros(duration + idle)));
    }
    end as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_goes_to_the_slot_that_is_free_first() {
        assert_eq!(schedule(&[5.0, 1.0, 1.0, 1.0, 1.0], 2, 0.25), 5.0);
        assert_eq!(schedule(&[1.0, 2.0, 3.0], 1, 0.5), 7.0);
    }

    #[test]
    fn one_miss_is_luck_and_many_are_not() {
        let outcome = |measured: f64| Outcome {
            at_once: 1,
            idle: 0.0,
            estimate: 10.0,
            low: 9.5,
            high: 10.5,
            measured,
            own_draws: 10.0,
        };
        let of = |far: usize, outside: usize| {
            let measured = (0..30).map(|n| match n {
                _ if n < far => 12.0,
                _ if n < far + outside => 10.7,
                _ => 10.1,
            });
            judge(&measured.map(outcome).collect::<Vec<_>>())
        };
        assert!(of(0, 0).is_ok() && of(3, 2).is_ok());
        assert!(of(4, 0).is_err() && of(0, 12).is_err());
    }
}
