//! What a build needs beside cargo: a C compiler, libclang, cargo-pgrx, and a PostgreSQL for pgrx.

use crate::postgres::{self, Postgres};
use crate::wheel::LIBCLANG;
use crate::{Result, place, process, progress, stage};
use pgrx_tests::privileges;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that pgrx in Cargo.toml asks for; cargo-pgrx works with no other.
const CARGO_PGRX: &str = "0.18.1";

/// Gets everything that building for one version needs, once.
pub fn prepare(major: u16) -> Result<Postgres> {
    compiler()?;
    let postgres = postgres::obtain(major)?;
    libclang()?;
    cargo_pgrx()?;
    let home = pgrx_home(major);
    place::create(&home)?;
    // pgrx rebuilds its bindings when this file changes.
    let config = format!("[configs]\npg{major} = {:?}\n", postgres.pg_config);
    write_if_changed(&home.join("config.toml"), &config)?;
    Ok(postgres)
}

/// cargo, with the environment that builds for one version.
pub fn cargo(major: u16) -> Command {
    let mut cargo = plain_cargo();
    cargo.env("PGRX_HOME", pgrx_home(major)).env("LIBCLANG_PATH", libclang_path());
    // pgrx reads its version's pg_config from its home; PG_CONFIG may name another.
    cargo.env_remove("PG_CONFIG");
    cargo
}

/// cargo, for what needs no PostgreSQL.
pub fn plain_cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(place::root());
    // `cargo run` tells us about our own package; a build script that saw it would be built again.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_")
            || name.to_string_lossy().starts_with("CARGO_MANIFEST_")
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The arguments that choose a version's features.
pub fn features(major: u16, test: bool) -> [String; 3] {
    let test = if test { " pg_test" } else { "" };
    ["--no-default-features".into(), "--features".into(), format!("pg{major}{test}")]
}

/// `cargo pgrx`, with that same environment.
pub fn pgrx(major: u16, command: &str) -> Result<Command> {
    let mut pgrx = Command::new(cargo_pgrx()?);
    for (name, value) in cargo(major).get_envs() {
        match value {
            Some(value) => pgrx.env(name, value),
            None => pgrx.env_remove(name),
        };
    }
    pgrx.current_dir(place::root()).args(["pgrx", command]);
    Ok(pgrx)
}

/// Gets Debian packages if we are root on Debian; otherwise says how to get them.
pub fn debian_packages(what: &str, packages: &[&str]) -> Result<()> {
    let by_hand = format!("apt-get install {}", packages.join(" "));
    if !privileges::is_root() || !process::works("apt-get", &["--version"]) {
        return Err(format!("{what} is missing: install it (on Debian: {by_hand})"));
    }
    progress::step(&by_hand, || {
        let install = || {
            let mut apt = Command::new("apt-get");
            apt.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(packages);
            process::run(apt.env("DEBIAN_FRONTEND", "noninteractive"))
        };
        // On a fresh machine the lists are missing or old; asking for them first would cost every run.
        install()
            .or_else(|_| {
                process::run(Command::new("apt-get").args(["update", "--quiet"])).and_then(|()| install())
            })
            .map_err(|_| format!("{what} is missing, and {by_hand} did not bring it"))
    })
}

fn pgrx_home(major: u16) -> PathBuf {
    place::version(major).join("pgrx")
}

fn compiler() -> Result<()> {
    if process::works("cc", &["--version"]) {
        return Ok(());
    }
    debian_packages("a C compiler", &["gcc", "libc6-dev"])
}

/// Our libclang's folder, unless the environment names another. `.cargo/config.toml` names ours.
fn libclang_path() -> OsString {
    env::var_os("LIBCLANG_PATH").unwrap_or_else(|| our_libclang().join("clang/native").into())
}

fn our_libclang() -> PathBuf {
    place::target().join("libclang")
}

fn libclang() -> Result<()> {
    let ours = our_libclang();
    if !Path::new(&libclang_path()).starts_with(&ours) {
        return Ok(());
    }
    LIBCLANG.unpack(&ours, |folder| {
        // The wheel lacks the compiler's own headers (stddef.h and the like). libclang and pgrx both look
        // for them here; neither follows a link.
        let headers = process::first_line(Command::new("cc").arg("-print-file-name=include"))?;
        let resources = folder.join("clang/lib/clang/18/include");
        stage::copy_tree(Path::new(&headers), &resources, &|_| true)
    })
}

/// The program cargo-pgrx: the one that is installed if it is of this version, else our own in target/.
fn cargo_pgrx() -> Result<PathBuf> {
    let own = place::target().join("cargo-pgrx");
    let candidates = [own.join("bin/cargo-pgrx"), "cargo-pgrx".into(), cargo_home().join("bin/cargo-pgrx")];
    let version =
        |program: &PathBuf| process::first_line(Command::new(program).args(["pgrx", "--version"])).ok();
    let found = candidates.iter().find(|program| version(program).is_some_and(|v| v.ends_with(CARGO_PGRX)));
    if let Some(program) = found {
        return Ok(program.clone());
    }
    if cfg!(target_os = "linux") && !process::works("pkg-config", &["--exists", "openssl"]) {
        debian_packages("OpenSSL with headers (for cargo-pgrx)", &["pkg-config", "libssl-dev"])?;
    }
    progress::step(&format!("installing cargo-pgrx {CARGO_PGRX}, which takes minutes"), || {
        let mut install = plain_cargo();
        // It reads one library and writes one file: optimizing it would take longer than all of its runs.
        install.args(["install", "--locked", "--debug", "cargo-pgrx", "--version", CARGO_PGRX]);
        process::run(install.env("CARGO_PROFILE_DEV_DEBUG", "false").arg("--root").arg(&own))
    })?;
    let [own, ..] = candidates;
    Ok(own)
}

fn cargo_home() -> PathBuf {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(env::home_dir()?.join(".cargo")))
        .unwrap_or_default()
}

fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
