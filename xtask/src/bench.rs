//! `cargo xtask bench claims`: what a claim costs, beside two queues on the same server.
//! `cargo xtask bench makespan`: what plans were estimated to take, beside what they took.
//! `cargo xtask bench slices`: what replacing a slice costs, beside what people write by hand.
//! `cargo xtask bench strategies`: what rebuilding a table day by day costs, and what its readers see meanwhile.
//! `cargo xtask bench protect`: what a protected table costs its writers.
//!
//! Times are noisy on a shared machine, so everything is printed as a ratio of things measured in turn within
//! one run. The peers run the SQL that they publish; operations are counted in the tables, not by the driver.

mod count;
mod full;
mod held;
mod makespan;
mod peers;
mod pgbench;
mod protect;
mod size;
mod slices;
mod strategies;
mod system;
mod table;
mod throughput;

use crate::arguments::Arguments;
use crate::scratch::Scratch;
use crate::{Result, progress};
use pgrx_tests::server::Server;
use std::fs;
use std::time::{Duration, Instant};
use system::{Peers, System};

/// The extension and the peers live in databases of their own on the one server.
const OURS: &str = "bench";
const THEIRS: &str = "peers";

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Claims(Options),
    Makespan { seed: u64 },
    Slices { rows: u64 },
    Strategies { days: u64, rows: u64 },
    Protect,
}

impl Subject {
    fn parse(words: &[String]) -> Result<Self> {
        let mut words = words.iter().map(String::as_str);
        match words.next() {
            Some("claims") => Options::parse(words).map(Self::Claims),
            // Another seed than the first draws other durations.
            Some("makespan") => number(words, "--seed", 1).map(|seed| Self::Makespan { seed }),
            Some("slices") => number(words, "--rows", 100_000).map(|rows| Self::Slices { rows }),
            Some("strategies") => {
                number(words, "--days", 100).map(|days| Self::Strategies { days, rows: 100_000 })
            }
            Some("protect") if words.next().is_none() => Ok(Self::Protect),
            _ => Err(
                "what is to be measured? cargo xtask bench claims, makespan, slices, strategies or protect"
                    .into(),
            ),
        }
    }
}

/// The one option that a subject takes.
fn number<'a>(mut words: impl Iterator<Item = &'a str>, option: &str, usual: u64) -> Result<u64> {
    match (words.next(), words.next().map(str::parse), words.next()) {
        (None, ..) => Ok(usual),
        (Some(word), Some(Ok(number)), None) if word == option && number > 0 => Ok(number),
        _ => Err(format!("it takes {option} and a number, and nothing else")),
    }
}

/// What was asked for of claims.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    parts: Vec<Part>,
    /// How long each system runs in one cell of the first table.
    seconds: u64,
    /// How long each system runs while a transaction holds back the horizon of vacuum.
    held_seconds: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Throughput,
    Held,
    Size,
    Full,
}

impl Options {
    fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Self> {
        let mut options = Self { parts: vec![], seconds: 5, held_seconds: 60 };
        while let Some(word) = words.next() {
            let mut seconds = || {
                let number = words.next().and_then(|n| n.parse().ok()).filter(|n| (1..=3600).contains(n));
                number.ok_or_else(|| format!("{word} takes a number of seconds"))
            };
            match word {
                "--seconds" => options.seconds = seconds()?,
                "--held" => options.held_seconds = seconds()?,
                "throughput" => options.parts.push(Part::Throughput),
                "held" => options.parts.push(Part::Held),
                "size" => options.parts.push(Part::Size),
                "full" => options.parts.push(Part::Full),
                other => return Err(format!("{other} means nothing here: see cargo xtask --help")),
            }
        }
        if options.parts.is_empty() {
            options.parts = vec![Part::Throughput, Part::Held, Part::Size, Part::Full];
        }
        Ok(options)
    }
}

/// `cargo xtask bench`.
pub fn run(arguments: &Arguments) -> Result<()> {
    let subject = Subject::parse(&arguments.rest)?;
    let started = Instant::now();
    let scratch = Scratch::start(arguments.version()?)?;
    let server = &scratch.server;
    server.psql("postgres", &format!("CREATE DATABASE {OURS}"))?;
    server.psql(OURS, "CREATE EXTENSION pg_backfill; CREATE ROLE bench_worker LOGIN")?;
    println!("\n{}", server.psql(OURS, include_str!("bench/sql/server.sql"))?.trim());
    match subject {
        Subject::Claims(options) => measure(server, &options)?,
        Subject::Makespan { seed } => makespan::measure(server, seed)?,
        Subject::Slices { rows } => slices::measure(server, rows)?,
        Subject::Strategies { days, rows } => strategies::measure(server, days, rows)?,
        Subject::Protect => protect::measure(server)?,
    }
    println!("\nmeasured in {}", progress::shown(started.elapsed()));
    Ok(())
}

fn measure(server: &Server, options: &Options) -> Result<()> {
    let needs_peers = options.parts.iter().any(|part| matches!(part, Part::Throughput | Part::Held));
    let peers = if needs_peers { Peers::install(server)? } else { Peers::none() };
    for part in &options.parts {
        match part {
            Part::Throughput => throughput::measure(server, &peers, options.seconds)?,
            Part::Held => held::measure(server, &peers, Duration::from_secs(options.held_seconds))?,
            Part::Size => size::measure(server)?,
            Part::Full => full::measure(server, options.seconds)?,
        }
    }
    Ok(())
}

/// What else the machine does: the load of the last 1, 5 and 15 minutes.
fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Says whether a figure reaches its goal.
fn verdict(what: &str, figure: f64, relation: &str, goal: f64) {
    let reached = if relation == ">=" { figure >= goal } else { figure <= goal };
    let word = if reached { "reached" } else { "MISSED" };
    println!("  {what}: {figure:.2} (goal {relation} {goal}: {word})");
}

fn systems(peers: &Peers) -> Vec<System> {
    let mut systems = vec![System::Ours];
    systems.extend(peers.systems());
    systems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Subject> {
        Subject::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    fn claims(line: &str) -> Options {
        match parse(line) {
            Ok(Subject::Claims(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn everything_is_measured_unless_parts_are_named() {
        assert_eq!(claims("claims").parts.len(), 4);
        let some = claims("claims size --seconds 2 full");
        assert_eq!((some.parts, some.seconds), (vec![Part::Size, Part::Full], 2));
        assert_eq!(parse("makespan"), Ok(Subject::Makespan { seed: 1 }));
        assert_eq!(parse("makespan --seed 7"), Ok(Subject::Makespan { seed: 7 }));
        assert_eq!(parse("slices"), Ok(Subject::Slices { rows: 100_000 }));
        assert_eq!(parse("slices --rows 500"), Ok(Subject::Slices { rows: 500 }));
    }

    #[test]
    fn mistakes_are_named() {
        for line in [
            "",
            "claim",
            "claims --seconds",
            "claims --seconds 0",
            "claims --held x",
            "claims all",
            "makespan all",
            "makespan --seed",
            "makespan --seed x",
            "slices --seed 1",
            "slices --rows 0",
            "protect all",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
