//! `cargo xtask demo`: a year of flights is backfilled by four workers, of which one is killed and one is
//! stopped past its lease.

mod accidents;
mod bar;
mod crew;
mod source;

use crate::arguments::Arguments;
use crate::{Result, place, process, python, served};
use accidents::{Accidents, KILLED, STOPPED};
use crew::Crew;
use pgrx_tests::server::{Server, succeed};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const DATABASE: &str = "demo";
const BASH: &str = "bash-c";
const CALL: &str = "call-d";

/// `cargo xtask demo`.
pub fn run(arguments: &Arguments) -> Result<()> {
    let major = arguments.version()?;
    // What needs the network comes first, and together.
    source::archive()?;
    python::with(&python::PSYCOPG)?;
    let server = served::start(major, false)?;
    let shown = Demo { server: &server }.show();
    if arguments.stop {
        server.stop()?;
        return shown;
    }
    println!("\nThe server stays up. To go on by hand, and to stop it:");
    println!("  cargo xtask psql --pg {major} -d {DATABASE}");
    println!("  psql -h {} -p {} -U postgres {DATABASE}", server.sockets().display(), server.port());
    println!("  cargo xtask run --pg {major} --stop");
    shown
}

fn title(text: &str) {
    println!("\n== {text}\n");
}

struct Demo<'a> {
    server: &'a Server,
}

impl Demo<'_> {
    fn show(&self) -> Result<()> {
        println!("\nA year of flights is summed up day by day, by four workers at once. Two of them meet");
        println!("what workers meet: one is killed before its COMMIT, one hangs until another has done");
        println!("its work, and then wakes up. At the end every day must be there once, and right.");
        title("The source");
        self.load()?;
        title("A pipeline: a table, a cadence, a time zone and a query");
        self.define()?;
        title("A trial of five days, for their price");
        self.psql("trial.sql", &[("ECHO", "all")])?;
        title("A plan for the year");
        self.psql("plan.sql", &[("ECHO", "all")])?;
        let plan = self.value("SELECT max(plan_id) FROM backfill.plans")?;
        title("Four workers, before and after it is approved");
        let accidents = self.backfill(&plan)?;
        let known = [("plan", plan.as_str()), ("killed", &accidents.killed), ("stopped", &accidents.stopped)];
        title("What the ledger says of the workers, and of the windows of the two that were struck");
        self.psql("attempts.sql", &known)?;
        title("The proof");
        self.prove(&known)?;
        title("The year: a letter a window, of the worker that did it; a capital at the second attempt");
        self.psql("calendar.sql", &[])
    }

    fn load(&self) -> Result<()> {
        self.server.psql(
            "postgres",
            &format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE);\nCREATE DATABASE {DATABASE};"),
        )?;
        let start = Instant::now();
        source::load(self.server, DATABASE)?;
        let flights = self.value("SELECT count(*) FROM flights")?;
        let apart =
            self.value("SELECT count(*) FROM flights WHERE date_trunc('hour', sched_dep) <> time_hour")?;
        println!(
            "Table flights: {flights} flights from New York in 2013 ({:.1} s). The source has New York's clock",
            start.elapsed().as_secs_f64()
        );
        println!(
            "times; column sched_dep has the instants. The source's own UTC hours contradict {apart} of them."
        );
        Ok(())
    }

    fn define(&self) -> Result<()> {
        self.value("CREATE EXTENSION pg_backfill")?;
        // As many as there will be workers; two are what a pool for backfills has otherwise.
        self.value("SELECT pool_define('backfill', 4)")?;
        self.psql("define.sql", &[("ECHO", "all")])?;
        let missed = self.value("SELECT windows FROM backfill.missed")?;
        let leases = self.value("SELECT count(*) FROM backfill_claim('early')")?;
        println!(
            "Since 2013 {missed} windows have fallen due, and a worker that asks now gets {leases} of them: a"
        );
        println!("date in a definition is not an order to work. They wait for a plan.");
        Ok(())
    }

    fn backfill(&self, plan: &str) -> Result<Accidents> {
        let mut crew = Crew::new()?;
        crew.join(KILLED, &mut self.clumsy(KILLED, "written")?)?;
        crew.join(STOPPED, &mut self.clumsy(STOPPED, "computed")?)?;
        crew.join(BASH, &mut self.bash())?;
        crew.join(CALL, &mut self.call())?;
        self.wait_for(&[KILLED, STOPPED, CALL])?;
        println!("  {KILLED}, {STOPPED}  examples/python/worker.py: COPY into a stage, replace_partition");
        println!("  {BASH}              examples/bash/worker.sh: replace_partition with the lease's query");
        println!("  {CALL}              CALL backfill_work(), in psql");
        let leases = self.value("SELECT count(*) FROM backfill.leases")?;
        println!("They ask for work and hold {leases} leases, because nobody has approved the plan yet.\n");
        println!("SELECT backfill_approve({plan}, 365);\n");
        self.value(&format!("SELECT backfill_approve({plan}, 365)"))?;
        accidents::follow(&mut crew, &mut self.script("progress.sql", &[("plan", plan)]))
    }

    fn prove(&self, known: &[(&str, &str)]) -> Result<()> {
        let answers = succeed(self.script("proof.sql", known).args(["-A", "-t"]))?;
        let mut holds = !answers.is_empty();
        for answer in answers.lines() {
            let (verdict, claim) = answer.split_once('|').unwrap_or(("f", answer));
            holds &= verdict == "t";
            println!("  {} {claim}", if verdict == "t" { "ok    " } else { "FAILED" });
        }
        if holds { Ok(()) } else { Err("the demo did not show what it should".into()) }
    }

    /// Python's worker, held at `point` for us to strike.
    fn clumsy(&self, name: &str, point: &str) -> Result<Command> {
        let mut command = python::with(&python::PSYCOPG)?.command();
        // The examples are not the place for what Python compiles.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(file("clumsy.py")).args([point, "--worker", name, "--pipeline", "daily_delays"]);
        self.point(&mut command, name);
        Ok(command)
    }

    fn bash(&self) -> Command {
        let mut command = Command::new("bash");
        command.arg(place::root().join("examples/bash/worker.sh"));
        command.args(["--worker", BASH, "--pipeline", "daily_delays"]);
        self.point(&mut command, BASH);
        // psql of the server's own version.
        let psql = self.server.command("psql");
        let bindir = Path::new(psql.get_program()).parent().unwrap_or(Path::new(""));
        let mut path = OsString::from(bindir);
        path.push(":");
        path.push(env::var_os("PATH").unwrap_or_default());
        command.env("PATH", path).env("POLL", "0.2");
        command
    }

    fn call(&self) -> Command {
        let mut command = self.server.command("psql");
        self.point(&mut command, CALL);
        // Otherwise the server would go on with the call when psql has been killed.
        command.env("PGOPTIONS", "-c client_connection_check_interval=100");
        let call =
            format!("CALL backfill_work('{CALL}', pipelines => '{{daily_delays}}', until_idle => false)");
        command.args(["-X", "-q", "-c", &call]);
        command
    }

    fn point(&self, command: &mut Command, name: &str) {
        served::pointed_at(self.server, command).env("PGDATABASE", DATABASE).env("PGAPPNAME", name);
    }

    /// Until these have connected and asked for work.
    fn wait_for(&self, names: &[&str]) -> Result<()> {
        let asking = format!(
            "SELECT count(DISTINCT application_name) FROM pg_stat_activity
             WHERE application_name IN ('{}') AND query ~ 'backfill_(claim|work)|pg_sleep'",
            names.join("', '")
        );
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.value(&asking)? != names.len().to_string() {
            if Instant::now() > deadline {
                return Err("the workers did not come to ask for work".into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn value(&self, sql: &str) -> Result<String> {
        Ok(self.server.psql(DATABASE, sql)?.trim().to_owned())
    }

    /// Runs a script of ours and shows what psql prints.
    fn psql(&self, script: &str, variables: &[(&str, &str)]) -> Result<()> {
        process::run(&mut self.script(script, variables))
    }

    fn script(&self, script: &str, variables: &[(&str, &str)]) -> Command {
        let mut command = self.server.command("psql");
        command.args([
            "-X",
            "-q",
            "-P",
            "footer=off",
            "-P",
            "pager=off",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            DATABASE,
        ]);
        for (name, value) in variables {
            command.arg("-v").arg(format!("{name}={value}"));
        }
        command.arg("-f").arg(file(script));
        command
    }
}

fn file(name: &str) -> PathBuf {
    place::root().join("xtask/src/demo").join(name)
}
