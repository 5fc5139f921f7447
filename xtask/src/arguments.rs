//! The command line.

use crate::{Result, postgres};

pub const HELP: &str = "\
Usage: cargo xtask <command> [--pg N[,N...]] [arguments]

Commands
  setup              get PostgreSQL, libclang and cargo-pgrx; the other commands do it by themselves
  test [filter]      format, lints, pure, in-backend and real-client tests; with a filter only the
                     tests whose names contain it
      --stops N      stop the server N times in the test of immediate stops (default 6; 200 take 8 minutes)
      --seed N       at the same moments as another time (default: from the clock; a failing test tells it)
  demo               rebuild a year of New York flights with four workers, two of them hurt
      --stop         stop the server at the end
  corpus             what the lint finds in 200 queries, beside what is to be found in them, rule by rule
  example [name...]  try the examples of targets outside the database: files, iceberg (1 minute)
  bench claims       what claims cost, beside pgmq and graphile-worker on the same server (10 minutes)
      --seconds N    time of each system in a cell of the first table (default 5)
      --held N       time of each system with a held snapshot, and without (default 60)
      throughput, held, size, full
                     only these parts
  bench makespan     what plans of 200 windows were estimated to take, and what they took (8 minutes);
                     fails if over one in ten is more than 10 % off, or too few lie in their interval
      --seed N       draw other durations (default 1)
  bench slices       what replacing a slice costs by each strategy, beside statements by hand (2 minutes)
      --rows N       rows of the slice (default 100000)
  bench strategies   what rebuilding a table of 100 days costs by each strategy and by hand, and what
                     its readers see meanwhile (15 minutes)
      --days N       of 100000 rows each (default 100)
  bench protect      what fence_protect costs: a million rows into a protected table and into another (2 minutes)
  run                build for release and start a server with the extension; a running one is restarted
      --fresh        throw its data away first
      --stop         stop it
  psql [arguments]   psql on that server
  python [arguments] Python with psycopg, its environment pointed at that server
  install            build for release and install into the PostgreSQL that PG_CONFIG names

Options
  --pg N[,N...]      PostgreSQL versions, 15 to 18 (default: PG_CONFIG's, otherwise 18)
  -h, --help         this text

Environment
  PG_CONFIG          the pg_config of an installed PostgreSQL to use for its version
  LIBCLANG_PATH      the folder of an installed libclang to use instead of downloading one

Everything is put below target/ and into cargo's own folders. On Debian, root may also get packages.
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Help,
    Setup,
    Test,
    Bench,
    Corpus,
    Demo,
    Example,
    Install,
    Run,
    Psql,
    Python,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    pub command: Command,
    asked_for: Vec<u16>,
    pub fresh: bool,
    pub stop: bool,
    /// Options of tests, under the names by which these find them.
    pub for_tests: Vec<(&'static str, u64)>,
    /// A test filter, or what goes to psql or Python.
    pub rest: Vec<String>,
}

impl Arguments {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut arguments = arguments;
        let command = match arguments.next().as_deref() {
            None | Some("help" | "-h" | "--help") => Command::Help,
            Some("setup") => Command::Setup,
            Some("test") => Command::Test,
            Some("bench") => Command::Bench,
            Some("corpus") => Command::Corpus,
            Some("demo") => Command::Demo,
            Some("example") => Command::Example,
            Some("install") => Command::Install,
            Some("run") => Command::Run,
            Some("psql") => Command::Psql,
            Some("python") => Command::Python,
            Some(other) => return Err(format!("there is no command {other}: see cargo xtask --help")),
        };
        let mut parsed =
            Self { command, asked_for: vec![], fresh: false, stop: false, for_tests: vec![], rest: vec![] };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--pg" => parsed.asked_for = versions(&arguments.next().unwrap_or_default())?,
                "-h" | "--help" if parsed.rest.is_empty() => parsed.command = Command::Help,
                "--fresh" if command == Command::Run => parsed.fresh = true,
                "--stop" if matches!(command, Command::Run | Command::Demo) => parsed.stop = true,
                "--stops" | "--seed" if command == Command::Test => {
                    let name = if argument == "--stops" { "PG_BACKFILL_STOPS" } else { "PG_BACKFILL_SEED" };
                    let number = arguments.next().unwrap_or_default().parse();
                    parsed.for_tests.push((name, number.map_err(|_| format!("{argument} takes a number"))?));
                }
                _ => {
                    parsed.rest.push(argument);
                    // What follows is for psql or Python, whatever it looks like.
                    if matches!(command, Command::Psql | Command::Python) {
                        parsed.rest.extend(arguments.by_ref());
                    }
                }
            }
        }
        match (command, parsed.rest.first()) {
            (Command::Setup | Command::Corpus | Command::Install | Command::Run, Some(unknown)) => {
                Err(format!("{unknown} means nothing here: see cargo xtask --help"))
            }
            (Command::Test, Some(option)) if option.starts_with('-') => {
                Err(format!("there is no option {option}: see cargo xtask --help"))
            }
            _ => Ok(parsed),
        }
    }

    /// The versions to work on: those asked for, and PG_CONFIG's own; 18 if there are none.
    pub fn versions(&self) -> Result<Vec<u16>> {
        let mut versions = self.asked_for.clone();
        if let Some(named) = postgres::named_by_environment()?
            && !versions.contains(&named.major)
        {
            versions.push(named.major);
        }
        if versions.is_empty() {
            versions.push(postgres::DEFAULT);
        }
        Ok(versions)
    }

    /// The version to work on, for commands that take one.
    pub fn version(&self) -> Result<u16> {
        match (self.asked_for.as_slice(), self.versions()?.as_slice()) {
            ([one], _) | ([], [one]) => Ok(*one),
            _ => Err("this command takes one version: --pg N".into()),
        }
    }
}

fn versions(list: &str) -> Result<Vec<u16>> {
    list.split(',')
        .map(|item| match item.trim().parse() {
            Ok(major) if postgres::SUPPORTED.contains(&major) => Ok(major),
            _ => Err(format!("--pg takes versions from 15 to 18, not {item:?}")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments> {
        Arguments::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn several_versions_and_a_filter() {
        let arguments = parse("test --pg 15,18 claims").unwrap();
        assert_eq!(arguments.asked_for, [15, 18]);
        assert_eq!(arguments.rest, ["claims"]);
    }

    #[test]
    fn a_test_is_told_how_often_to_stop_the_server() {
        let arguments = parse("test --stops 200 --seed 7 stopping").unwrap();
        assert_eq!(arguments.for_tests, [("PG_BACKFILL_STOPS", 200), ("PG_BACKFILL_SEED", 7)]);
        assert_eq!(arguments.rest, ["stopping"]);
    }

    #[test]
    fn what_is_for_psql_stays_as_it_is() {
        let arguments = parse("psql --pg 16 -c --stop --help").unwrap();
        assert_eq!(arguments.rest, ["-c", "--stop", "--help"]);
        assert_eq!(arguments.asked_for, [16]);
    }

    #[test]
    fn help_is_everywhere() {
        for line in ["", "--help", "test --help", "run --help", "psql -h"] {
            assert_eq!(parse(line).unwrap().command, Command::Help, "{line}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for line in
            ["tset", "test --pg 14", "test --pg", "run sideways", "test --nocapture", "test --stops many"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
