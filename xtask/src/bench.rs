//! `cargo xtask bench claims`: what a claim costs, beside two queues on the same server.
//!
//! Times are noisy on a shared machine, so everything is printed as a ratio of things measured in turn within
//! one run. The peers run the SQL that they publish; operations are counted in the tables, not by the driver.

mod count;
mod full;
mod held;
mod peers;
mod pgbench;
mod scratch;
mod size;
mod system;
mod table;
mod throughput;

use crate::arguments::Arguments;
use crate::{Result, progress};
use pgrx_tests::server::Server;
use scratch::Scratch;
use std::time::{Duration, Instant};
use system::{Peers, System};

/// The extension and the peers live in databases of their own on the one server.
const OURS: &str = "bench";
const THEIRS: &str = "peers";

/// What was asked for.
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
    fn parse(words: &[String]) -> Result<Self> {
        let mut options = Self { parts: vec![], seconds: 5, held_seconds: 60 };
        let mut words = words.iter().map(String::as_str);
        if words.next() != Some("claims") {
            return Err("what is to be measured? cargo xtask bench claims".into());
        }
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
    let options = Options::parse(&arguments.rest)?;
    let started = Instant::now();
    let scratch = Scratch::start(arguments.version()?)?;
    measure(&scratch.server, &options)?;
    println!("\nmeasured in {}", progress::shown(started.elapsed()));
    Ok(())
}

fn measure(server: &Server, options: &Options) -> Result<()> {
    let needs_peers = options.parts.iter().any(|part| matches!(part, Part::Throughput | Part::Held));
    let peers = if needs_peers { Peers::install(server)? } else { Peers::none() };
    server.psql("postgres", &format!("CREATE DATABASE {OURS}"))?;
    server.psql(OURS, "CREATE EXTENSION pg_backfill; CREATE ROLE bench_worker LOGIN")?;
    println!("\n{}", server.psql(OURS, include_str!("bench/sql/server.sql"))?.trim());
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

    fn parse(line: &str) -> Result<Options> {
        Options::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn everything_is_measured_unless_parts_are_named() {
        assert_eq!(parse("claims").unwrap().parts.len(), 4);
        let some = parse("claims size --seconds 2 full").unwrap();
        assert_eq!((some.parts, some.seconds), (vec![Part::Size, Part::Full], 2));
    }

    #[test]
    fn mistakes_are_named() {
        for line in ["", "claim", "claims --seconds", "claims --seconds 0", "claims --held x", "claims all"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
