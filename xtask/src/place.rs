//! Where things are put.

use crate::Result;
use pgrx_tests::{privileges, scratch};
use std::env;
use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The checkout. cargo names the folder when it runs us; the one that we were compiled in may have moved.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let xtask = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        Path::new(&xtask).parent().expect("xtask lies in the checkout").to_owned()
    })
}

/// Where set-up puts things: `.cargo/config.toml` names folders in it.
pub fn target() -> PathBuf {
    root().join("target")
}

/// Where cargo puts things, which may be elsewhere.
pub fn cargo_target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(target, |folder| root().join(folder))
}

/// What belongs to one version of PostgreSQL.
pub fn version(major: u16) -> PathBuf {
    target().join(format!("pg{major}"))
}

/// A folder that server processes can enter: below target/, or in a temporary folder if the checkout lies
/// where their account cannot go (`/root`, say).
pub fn for_server(major: u16) -> Result<PathBuf> {
    let version = version(major);
    create(&version)?;
    if privileges::server_can_enter(&version) {
        return Ok(version);
    }
    let folder = lasting()?.join(format!("pg{major}"));
    create(&folder)?;
    Ok(folder)
}

/// A temporary folder that stays: for what cannot be in the checkout. Two checkouts have two.
pub fn lasting() -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    root().hash(&mut hasher);
    scratch::lasting_folder(&format!("pg_backfill-{:016x}", hasher.finish()))
}

/// Makes a folder and those above it.
pub fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))
}

/// Removes a folder if it is there.
pub fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if folder.exists() => Err(format!("cannot remove {}: {error}", folder.display())),
        _ => Ok(()),
    }
}

/// Held while something is set up, built or installed: two at once would mix what they make.
pub fn lock() -> Result<File> {
    create(&target())?;
    let path = target().join("xtask.lock");
    let cannot = |error| format!("cannot lock {}: {error}", path.display());
    let file = File::create(&path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            eprintln!("waiting for another cargo xtask in this checkout");
            file.lock().map_err(cannot)?;
            Ok(file)
        }
        Err(TryLockError::Error(error)) => Err(cannot(error)),
    }
}
