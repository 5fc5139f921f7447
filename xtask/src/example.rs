//! `cargo xtask example`: the examples of targets outside the database, tried on a server of their own.

use crate::arguments::Arguments;
use crate::python::{self, Packages};
use crate::scratch::Scratch;
use crate::{Result, place, process, served};

/// An example, and the packages that it needs.
const EXAMPLES: [(&str, Packages); 2] = [("files", python::PSYCOPG), ("iceberg", python::ICEBERG)];

/// Tries the examples that are named, or all.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(unknown) = arguments.rest.iter().find(|name| EXAMPLES.iter().all(|(known, _)| known != name))
    {
        return Err(format!("there is no example {unknown}: they are files and iceberg"));
    }
    let scratch = Scratch::start(arguments.version()?)?;
    scratch.server.psql("postgres", "CREATE EXTENSION pg_backfill")?;
    let asked_for = |name: &str| arguments.rest.is_empty() || arguments.rest.iter().any(|word| word == name);
    for (name, packages) in EXAMPLES.iter().filter(|(name, _)| asked_for(name)) {
        println!("\nexamples/{name}");
        let mut command = python::with(packages)?.command();
        served::pointed_at(&scratch.server, &mut command);
        // The examples are not the place for what Python compiles.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        process::run(command.arg(place::root().join("xtask/src/example").join(format!("{name}.py"))))?;
    }
    Ok(())
}
