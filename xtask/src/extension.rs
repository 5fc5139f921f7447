//! Building the extension and putting it into a PostgreSQL.

use crate::arguments::Arguments;
use crate::postgres::{self, Postgres};
use crate::stage::Stage;
use crate::{Result, place, process, progress, toolchain};
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::Path;
use std::process::Command;

const NAME: &str = "pg_backfill";

/// `cargo xtask install`: into the PostgreSQL that PG_CONFIG names.
pub fn install(arguments: &Arguments) -> Result<()> {
    let named = postgres::named_by_environment()?
        .ok_or("which PostgreSQL? PG_CONFIG=/path/to/pg_config cargo xtask install")?;
    if arguments.version()? != named.major {
        return Err(format!("PG_CONFIG names PostgreSQL {}, --pg another", named.major));
    }
    let _lock = place::lock()?;
    toolchain::prepare(named.major)?;
    install_release(named.major, &named.pg_config)
}

/// Builds for release and installs into the PostgreSQL of `pg_config`.
pub fn install_release(major: u16, pg_config: &Path) -> Result<()> {
    progress::step(&format!("building pg_backfill for PostgreSQL {major}, for release"), || {
        let mut install = toolchain::pgrx(major, "install")?;
        install.args(["--release", "--package", NAME, "--pg-config"]).arg(pg_config);
        process::run(install.args(toolchain::features(major, false)))
    })
}

/// Builds the tests, and with them the extension that they test.
pub fn build_tests(major: u16) -> Result<()> {
    process::run(tests(major).arg("--no-run"))
}

/// `cargo test`, always of the whole workspace: for another choice of packages cargo resolves other features
/// and builds the dependencies a second time.
pub fn tests(major: u16) -> Command {
    let mut cargo = toolchain::cargo(major);
    cargo.args(["test", "--workspace"]).args(toolchain::features(major, true));
    cargo
}

/// Installs what [`build_tests`] built into a stage.
pub fn install_tests(postgres: &Postgres, stage: &Stage) -> Result<()> {
    let library = format!("{DLL_PREFIX}{NAME}{DLL_SUFFIX}");
    let debug = place::cargo_target().join("debug");
    // cargo leaves a library that was only built for tests among the dependencies; cargo-pgrx reads it here.
    let built = debug.join(&library);
    replace(&debug.join("deps").join(&library), &built)?;
    let version = version()?;
    let extensions = stage.extensions()?;
    let mut schema = toolchain::pgrx(postgres.major, "schema")?;
    schema.args([&format!("pg{}", postgres.major), "--skip-build", "--package", NAME]);
    schema.args(toolchain::features(postgres.major, true));
    schema.arg("--out").arg(extensions.join(format!("{NAME}--{version}.sql")));
    // It lists what it found, in colours; only its complaints matter.
    pgrx_tests::server::succeed(&mut schema)?;
    let control = place::root().join(format!("{NAME}.control"));
    let text = fs::read_to_string(&control)
        .map_err(|error| format!("cannot read {}: {error}", control.display()))?;
    fs::write(extensions.join(format!("{NAME}.control")), text.replace("@CARGO_VERSION@", &version))
        .map_err(|error| format!("cannot write the control file: {error}"))?;
    for entry in fs::read_dir(place::root().join("sql")).into_iter().flatten().flatten() {
        if is_upgrade(&entry.file_name().to_string_lossy()) {
            replace(&entry.path(), &extensions.join(entry.file_name()))?;
        }
    }
    replace(&built, &stage.libraries()?.join(format!("{NAME}{DLL_SUFFIX}")))?;
    stage.open_up()
}

/// Upgrade scripts are the only files of `sql/` that are installed as they are.
fn is_upgrade(file: &str) -> bool {
    file.strip_prefix(NAME)
        .and_then(|rest| rest.strip_prefix("--"))
        .and_then(|rest| rest.strip_suffix(".sql"))
        .is_some_and(|versions| versions.contains("--"))
}

/// Never writes into a file that is there: a running server may have mapped it.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let cannot = |error| format!("cannot copy {} to {}: {error}", from.display(), to.display());
    if to.exists() {
        fs::remove_file(to).map_err(cannot)?;
    }
    fs::copy(from, to).map_err(cannot)?;
    Ok(())
}

/// The version in Cargo.toml.
fn version() -> Result<String> {
    let id = process::first_line(toolchain::plain_cargo().args(["pkgid", "--package", NAME]))?;
    Ok(id.rsplit(['@', '#']).next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scripts_between_two_versions_are_upgrades() {
        assert!(is_upgrade("pg_backfill--0.1.0--0.2.0.sql"));
        assert!(!is_upgrade("pg_backfill--0.1.0.sql"));
        assert!(!is_upgrade("pipeline.sql"));
    }
}
