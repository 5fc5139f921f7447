//! The server that `cargo xtask run` starts, for trying things on. It stays until it is stopped.

use crate::arguments::Arguments;
use crate::stage::Stage;
use crate::{Result, extension, place, postgres, process, python, toolchain};
use pgrx_tests::{privileges, server::Server};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// The extension is preloaded, so that its workers can be tried as well.
const SETTINGS: [&str; 4] = [
    "shared_preload_libraries = 'pg_backfill'",
    "max_prepared_transactions = 10",
    "wal_level = logical",
    "max_worker_processes = 16",
];

/// `cargo xtask run`.
pub fn run(arguments: &Arguments) -> Result<()> {
    let major = arguments.version()?;
    if arguments.stop {
        let stopped = find(major)?.is_some_and(|server| server.is_running()) && stop(major)?;
        println!("{}", if stopped { "stopped" } else { "it was not running" });
        return Ok(());
    }
    let server = start(major, arguments.fresh)?;
    println!("PostgreSQL {major} with pg_backfill runs (process {}).", server.pid().unwrap_or_default());
    println!("  cargo xtask psql --pg {major}");
    println!("  psql -h {} -p {} -U postgres", server.sockets().display(), server.port());
    println!("  cargo xtask run --pg {major} --stop");
    Ok(())
}

/// `cargo xtask psql`.
pub fn psql(arguments: &Arguments) -> Result<()> {
    process::run(running(arguments.version()?)?.command("psql").args(&arguments.rest))
}

/// `cargo xtask python`.
pub fn python(arguments: &Arguments) -> Result<()> {
    let server = running(arguments.version()?)?;
    process::run(pointed_at(&server, &mut python::with(&python::PSYCOPG)?.command()).args(&arguments.rest))
}

/// Builds for release and starts the server with the extension created in the database `postgres`. A
/// server that runs is restarted: it would go on with the library it has loaded.
pub fn start(major: u16, fresh: bool) -> Result<Server> {
    let _lock = place::lock()?;
    let postgres = toolchain::prepare(major)?;
    let home = home(major)?;
    let stage = Stage::at(&postgres, &home)?;
    extension::install_release(major, &stage.pg_config)?;
    stage.open_up()?;
    stop(major)?;
    if fresh {
        place::remove(&home.join("data"))?;
    }
    let server = match find(major)? {
        Some(server) => server,
        None => Server::create(&stage.bindir()?, &home, &sockets(major)?, &SETTINGS)?,
    };
    server.start()?;
    server.psql("postgres", "CREATE EXTENSION IF NOT EXISTS pg_backfill")?;
    Ok(server)
}

/// Points a program at the server, as its superuser, in the variables that every client reads.
pub fn pointed_at<'a>(server: &Server, command: &'a mut Command) -> &'a mut Command {
    for (name, value) in server.command("psql").get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

fn running(major: u16) -> Result<Server> {
    find(major)?
        .filter(Server::is_running)
        .ok_or_else(|| format!("no server runs: start it with cargo xtask run --pg {major}"))
}

fn stop(major: u16) -> Result<bool> {
    find(major)?.map_or(Ok(false), |server| server.stop())
}

/// The server, if there ever was one; without getting anything for it.
fn find(major: u16) -> Result<Option<Server>> {
    let home = home(major)?;
    if !home.join("data").exists() {
        return Ok(None);
    }
    let stage = Stage::at(&postgres::obtain(major)?, &home)?;
    Ok(Server::open(&stage.bindir()?, &home, &sockets(major)?))
}

fn home(major: u16) -> Result<PathBuf> {
    let home = place::for_server(major)?.join("server");
    place::create(&home)?;
    Ok(home)
}

/// A path to a socket must be short, so it cannot be in the checkout. Every connection is trusted, so
/// nobody else may enter.
fn sockets(major: u16) -> Result<PathBuf> {
    let folder = place::lasting()?.join(format!("sockets{major}"));
    place::create(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o700))
        .map_err(|error| format!("cannot close {}: {error}", folder.display()))?;
    privileges::give_to_server(&folder)?;
    Ok(folder)
}
