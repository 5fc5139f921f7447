//! `cargo xtask test`: everything that CI needs, one step after the other.

use crate::arguments::Arguments;
use crate::postgres::SUPPORTED;
use crate::progress::shown;
use crate::stage::Stage;
use crate::tally::Tally;
use crate::{Result, extension, place, process, progress, toolchain};
use std::time::{Duration, Instant};

/// Where the tests find the server's programs; `pgrx-tests` reads it.
const BINDIR: &str = "PG_BACKFILL_BINDIR";

/// Runs the steps. One that fails keeps only those from running that need its work.
pub fn run(arguments: &Arguments) -> Result<()> {
    let versions = arguments.versions()?;
    let mut report = Report { start: Instant::now(), steps: vec![], tally: Tally::default() };
    // A filter is for the test one works on.
    let whole = arguments.rest.is_empty();
    if whole {
        report.step("format", |_| process::run(toolchain::plain_cargo().args(["fmt", "--all", "--check"])));
    }
    for &major in &versions {
        // What went wrong is in the report.
        let _ = one_version(major, whole, arguments, &mut report);
    }
    report.close(&versions, &arguments.rest)
}

/// The steps for one version of PostgreSQL.
fn one_version(major: u16, whole: bool, arguments: &Arguments, report: &mut Report) -> Option<()> {
    let named = |what: &str| format!("PostgreSQL {major}: {what}");
    let (lock, postgres) =
        report.step(&named("set-up"), |_| Ok((place::lock()?, toolchain::prepare(major)?)))?;
    if whole {
        report.step(&named("lints"), |_| {
            // Not through RUSTFLAGS: with other flags everything would be built a second time.
            let mut cargo = toolchain::cargo(major);
            cargo.args(["clippy", "--workspace", "--all-targets"]).args(toolchain::features(major, true));
            process::run(cargo.args(["--", "-D", "warnings"]))
        });
    }
    report.step(&named("build"), |_| extension::build_tests(major))?;
    let (stage, bindir) = report.step(&named("install"), |_| {
        let stage = Stage::for_this_run(&postgres)?;
        extension::install_tests(&postgres, &stage)?;
        let bindir = stage.bindir()?;
        Ok((stage, bindir))
    })?;
    drop(lock);
    for (what, target) in [
        ("pure and in-backend tests", &["--lib", "--bins"][..]),
        ("real-client tests", &["--test", "clients"]),
    ] {
        report.step(&named(what), |tally| {
            let mut cargo = extension::tests(major);
            cargo.envs(arguments.for_tests.iter().map(|(name, number)| (name, number.to_string())));
            tally.run(cargo.args(target).env(BINDIR, &bindir).arg("--").args(&arguments.rest))
        });
    }
    drop(stage);
    Some(())
}

struct Report {
    start: Instant,
    steps: Vec<Step>,
    tally: Tally,
}

struct Step {
    what: String,
    elapsed: Duration,
    error: Option<String>,
}

impl Report {
    fn step<T>(&mut self, what: &str, work: impl FnOnce(&mut Tally) -> Result<T>) -> Option<T> {
        let start = Instant::now();
        let result = progress::step(what, || work(&mut self.tally));
        let (result, error) = match result {
            Ok(value) => (Some(value), None),
            Err(error) => {
                eprintln!("error: {error}");
                (None, Some(error))
            }
        };
        self.steps.push(Step { what: what.to_owned(), elapsed: start.elapsed(), error });
        result
    }

    /// Says how it all went. The last line is the one that cargo test ends with.
    fn close(&self, versions: &[u16], filter: &[String]) -> Result<()> {
        println!("\nsteps:");
        for step in &self.steps {
            let outcome = if step.error.is_some() { "FAILED" } else { "ok" };
            println!("  {outcome:<6} {:>12}  {}", shown(step.elapsed), step.what);
        }
        for major in SUPPORTED.filter(|major| !versions.contains(major)) {
            // No wheel brings 17, so it is tested where somebody has it.
            let why = if major == 17 { "no PG_CONFIG given" } else { "not asked for" };
            println!("PostgreSQL {major}: not tested ({why})");
        }
        let failures: Vec<&str> = self.steps.iter().filter_map(|step| step.error.as_deref()).collect();
        let outcome = if failures.is_empty() { "ok" } else { "FAILED" };
        println!(
            "\ntest result: {outcome}. {}; finished in {:.2}s",
            self.tally,
            self.start.elapsed().as_secs_f64()
        );
        if let Some(first) = failures.first() {
            Err(format!("{} of {} steps failed, first: {first}", failures.len(), self.steps.len()))
        } else if self.tally.passed == 0 {
            Err(format!("no test's name contains {:?}", filter.join(" ")))
        } else {
            Ok(())
        }
    }
}
