//! `cargo xtask`: set-up, tests, and a server to try things on. `cargo xtask --help` lists the commands.

mod arguments;
mod bench;
mod corpus;
mod demo;
mod example;
mod extension;
mod place;
mod postgres;
mod process;
mod progress;
mod python;
mod scratch;
mod served;
mod stage;
mod tally;
mod test;
mod toolchain;
mod wheel;

use arguments::{Arguments, Command};
use std::process::ExitCode;

/// Every error is one line for a person, saying what to do about it where that is known.
type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    match arguments.command {
        Command::Help => {
            print!("{}", arguments::HELP);
            Ok(())
        }
        Command::Setup => setup(arguments),
        Command::Bench => bench::run(arguments),
        Command::Corpus => corpus::run(arguments),
        Command::Demo => demo::run(arguments),
        Command::Example => example::run(arguments),
        Command::Test => test::run(arguments),
        Command::Install => extension::install(arguments),
        Command::Run => served::run(arguments),
        Command::Psql => served::psql(arguments),
        Command::Python => served::python(arguments),
    }
}

fn setup(arguments: &Arguments) -> Result<()> {
    let _lock = place::lock()?;
    for major in arguments.versions()? {
        let postgres = toolchain::prepare(major)?;
        println!("PostgreSQL {major} is ready: {}", postgres.pg_config.display());
    }
    Ok(())
}
