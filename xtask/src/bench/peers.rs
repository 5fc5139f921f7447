//! The peers: pgmq and graphile-worker, by their own SQL, from the package registries.
//!
//! Nothing of them is kept in this repository. Each comes in one exact version, and its archive must have
//! exactly the bytes that it had when it was chosen.

use super::THEIRS;
use super::system::{Batch, System};
use crate::{Result, place, process, progress, toolchain};
use pgrx_tests::server::{Server, succeed};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A published archive.
struct Archive {
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
}

/// The crate carries the SQL of pgmq 1.13.0.
const PGMQ: Archive = Archive {
    name: "pgmq",
    version: "0.34.0-alpha.7",
    sha256: "9d53dadbae2b26d4003afe53cc2abaaf2987ef0891235d2f3cc413651dba0aa4",
};
const GRAPHILE: Archive = Archive {
    name: "graphile-worker",
    version: "0.18.0",
    sha256: "f6eb86e15119e649a2c540bfc982aa17bc9072707950081729e95dfd0677a865",
};

/// Prints graphile-worker's SQL by running its own code.
const GRAPHILE_SQL: &str = include_str!("graphile_worker.mjs");

/// The peers that could be had.
pub struct Peers {
    pgmq: bool,
    /// pgbench scripts for one job a call and for ten.
    graphile: Option<[String; 2]>,
}

impl Peers {
    pub fn none() -> Self {
        Self { pgmq: false, graphile: None }
    }

    /// Installs both into a database of theirs. One that cannot be had is left out, with the reason.
    pub fn install(server: &Server) -> Result<Self> {
        server.psql("postgres", &format!("CREATE DATABASE {THEIRS}"))?;
        let had = |name: &str, result: Result<()>| {
            result.map_err(|error| println!("{name} is left out: {error}")).is_ok()
        };
        let pgmq = had("pgmq", install_pgmq(server));
        let mut scripts = None;
        had("graphile-worker", install_graphile(server).map(|found| scripts = Some(found)));
        Ok(Self { pgmq, graphile: scripts })
    }

    pub fn systems(&self) -> Vec<System> {
        let mut systems = vec![];
        if self.graphile.is_some() {
            systems.push(System::Graphile);
        }
        if self.pgmq {
            systems.extend([System::PgmqArchive, System::PgmqDelete]);
        }
        systems
    }

    pub fn graphile_script(&self, batch: Batch) -> &str {
        let [one, ten] = self.graphile.as_ref().expect("only a peer that was installed is used");
        if batch == Batch::One { one } else { ten }
    }

    pub fn fill_pgmq(&self, server: &Server, database: &str, queue: &str, rows: usize) -> Result<()> {
        let fill = include_str!("sql/pgmq_fill.sql");
        let script = format!("\\set queue {queue}\n\\set table q_{queue}\n\\set rows {rows}\n{fill}");
        server.psql(database, &script).map(drop)
    }

    pub fn fill_graphile(&self, server: &Server, database: &str, rows: usize) -> Result<()> {
        let script = format!("\\set rows {rows}\n{}", include_str!("sql/graphile_fill.sql"));
        server.psql(database, &script).map(drop)
    }
}

fn install_pgmq(server: &Server) -> Result<()> {
    let folder = PGMQ.unpack(|download| {
        // cargo has no command that only downloads; to show a package it downloads it.
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(download).arg("info").arg(format!("{}@{}", PGMQ.name, PGMQ.version));
        succeed(&mut cargo)?;
        let file = format!("{}-{}.crate", PGMQ.name, PGMQ.version);
        let registries = cargo_home()?.join("registry/cache");
        let entries = fs::read_dir(&registries).map_err(|error| cannot("read", &registries, &error))?;
        let found = entries.flatten().map(|entry| entry.path().join(&file)).find(|path| path.exists());
        found.ok_or_else(|| format!("cargo downloaded no {file} into {}", registries.display()))
    })?;
    let sql = folder.join("src/install/embedded/sql/pgmq.sql");
    let sql = fs::read_to_string(&sql).map_err(|error| cannot("read", &sql, &error))?;
    server.psql(THEIRS, &sql).map(drop)
}

fn install_graphile(server: &Server) -> Result<[String; 2]> {
    if !process::works("npm", &["--version"]) || !process::works("node", &["--version"]) {
        toolchain::debian_packages("Node.js with npm", &["nodejs", "npm"])?;
    }
    let folder = GRAPHILE.unpack(|download| {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", "--pack-destination"]).arg(download);
        succeed(npm.arg(format!("{}@{}", GRAPHILE.name, GRAPHILE.version)))?;
        Ok(download.join(format!("{}-{}.tgz", GRAPHILE.name, GRAPHILE.version)))
    })?;
    let program = folder.join("print_sql.mjs");
    fs::write(&program, GRAPHILE_SQL).map_err(|error| cannot("write", &program, &error))?;
    let printed = |what: &str| succeed(Command::new("node").arg(&program).arg(what));
    server.psql(THEIRS, &printed("schema")?)?;
    Ok([printed("one")?, printed("ten")?])
}

impl Archive {
    /// The folder that the archive was unpacked into; it is downloaded once.
    fn unpack(&self, download: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<PathBuf> {
        let folder = place::target().join("bench-peers").join(format!("{}-{}", self.name, self.version));
        let stamp = folder.join("sha256.txt");
        if fs::read_to_string(&stamp).is_ok_and(|sum| sum == self.sha256) {
            return Ok(folder);
        }
        progress::step(&format!("downloading {} {}", self.name, self.version), || {
            place::remove(&folder)?;
            place::create(&folder)?;
            let archive = download(&folder)?;
            let sum = process::first_line(Command::new("sha256sum").arg(&archive))?;
            let sum = sum.split_whitespace().next().unwrap_or_default();
            if sum != self.sha256 {
                return Err(format!(
                    "{} is not the one that was chosen: its SHA-256 is {sum}",
                    archive.display()
                ));
            }
            let mut tar = Command::new("tar");
            tar.args(["--extract", "--gzip", "--strip-components=1", "--no-same-owner", "--file"])
                .arg(&archive);
            succeed(tar.arg("--directory").arg(&folder))?;
            fs::write(&stamp, self.sha256).map_err(|error| cannot("write", &stamp, &error))
        })?;
        Ok(folder)
    }
}

fn cargo_home() -> Result<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cargo")))
        .ok_or_else(|| "where is cargo's folder? Set CARGO_HOME.".into())
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}
