//! Python: pip for wheels, and packages for what talks to the server in Python.

use crate::{Result, place, process, progress, toolchain};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What programs in Python get beside it, and the folder below target/ that it is put in.
#[derive(Debug, Clone, Copy)]
pub struct Packages {
    folder: &'static str,
    list: &'static [&'static str],
}

/// To speak to the server.
pub const PSYCOPG: Packages = Packages { folder: "python", list: &["psycopg[binary]==3.3.9"] };

/// To speak to it and to write Apache Iceberg tables.
pub const ICEBERG: Packages = Packages {
    folder: "python-iceberg",
    list: &[
        "psycopg[binary]==3.3.9",
        "pyarrow==26.0.1",
        "pyiceberg[pyarrow,sql-postgres]==0.12.0",
        "sqlalchemy==2.1.9",
    ],
};

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

/// Python with packages, in target/.
pub fn with(packages: &Packages) -> Result<Python> {
    let folder = place::target().join(packages.folder);
    let (stamp, list) = (folder.join("packages.txt"), packages.list.join("\n"));
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == list) {
        progress::step(&format!("installing {}", packages.list.join(", ")), || {
            place::remove(&folder)?;
            install(packages, &folder)?;
            fs::write(&stamp, &list).map_err(|error| format!("cannot write {}: {error}", stamp.display()))
        })?;
    }
    Ok(python_in(&folder))
}

fn install(packages: &Packages, folder: &Path) -> Result<()> {
    // Debian's Python makes environments only with python3-venv; a folder of packages does as well.
    let environment = folder.join("environment");
    if !process::works("python3", &["-m", "venv", &environment.to_string_lossy()]) {
        place::remove(&environment)?;
    }
    let python = if environment.exists() { python_in(folder) } else { with_pip()? };
    let mut pip = python.pip_install();
    pip.args(packages.list);
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
