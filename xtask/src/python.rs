//! Python: pip for wheels, and psycopg for what talks to the server in Python.

use crate::{Result, place, process, progress, toolchain};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What programs in Python get to speak to the server with.
const PACKAGES: &str = "psycopg[binary]==3.3.9";

/// A Python, and a folder of packages if they are not its own.
pub struct Python {
    program: PathBuf,
    packages: Option<PathBuf>,
}

impl Python {
    /// A command that runs it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(packages) = &self.packages {
            command.env("PYTHONPATH", packages);
        }
        command
    }

    /// `pip install`, which asks nothing and says nothing; what to install is to be added.
    pub fn pip_install(&self) -> Command {
        let mut command = self.command();
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        command.args(["--no-input", "--root-user-action=ignore"]);
        command
    }
}

/// The machine's Python, with pip.
pub fn with_pip() -> Result<Python> {
    if !process::works("python3", &["-m", "pip", "--version"]) {
        toolchain::debian_packages("Python 3 with pip", &["python3", "python3-pip"])?;
    }
    Ok(Python { program: "python3".into(), packages: None })
}

/// Python with psycopg, in target/.
pub fn with_psycopg() -> Result<Python> {
    let folder = place::target().join("python");
    let stamp = folder.join("packages.txt");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == PACKAGES) {
        progress::step("installing psycopg", || {
            place::remove(&folder)?;
            install_psycopg(&folder)?;
            fs::write(&stamp, PACKAGES).map_err(|error| format!("cannot write {}: {error}", stamp.display()))
        })?;
    }
    Ok(python_in(&folder))
}

fn install_psycopg(folder: &Path) -> Result<()> {
    // Debian's Python makes environments only with python3-venv; a folder of packages does as well.
    let environment = folder.join("environment");
    if !process::works("python3", &["-m", "venv", &environment.to_string_lossy()]) {
        place::remove(&environment)?;
    }
    let python = if environment.exists() { python_in(folder) } else { with_pip()? };
    let mut pip = python.pip_install();
    pip.arg(PACKAGES);
    if !environment.exists() {
        pip.arg("--target").arg(folder.join("packages"));
    }
    process::run(&mut pip)
}

fn python_in(folder: &Path) -> Python {
    let program = folder.join("environment/bin/python");
    if program.exists() {
        Python { program, packages: None }
    } else {
        Python { program: "python3".into(), packages: Some(folder.join("packages")) }
    }
}
