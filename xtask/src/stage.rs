//! Copies of a PostgreSQL that the extension is installed into.

use crate::postgres::{self, Postgres};
use crate::{Result, place};
use pgrx_tests::server;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;

/// What only builds need.
const NOT_FOR_SERVERS: [&str; 4] = ["include", "pgxs", "bitcode", "pkgconfig"];

/// A PostgreSQL to install into and to start servers from: no root needed, nobody else's server touched.
pub struct Stage {
    root: PathBuf,
    pub pg_config: PathBuf,
}

impl Stage {
    /// Copies `postgres` into `folder`, or finds the copy again.
    pub fn at(postgres: &Postgres, folder: &Path) -> Result<Self> {
        let root = folder.join("postgres");
        let complete = folder.join("copied.txt");
        let origin = postgres::folder(&postgres.pg_config, "version")?.display().to_string();
        if !fs::read_to_string(&complete).is_ok_and(|copied| copied == origin) {
            place::remove(&root)?;
            copy_tree(&postgres.root, &root, &|path| {
                let name = path.file_name().unwrap_or_default();
                !NOT_FOR_SERVERS.iter().any(|other| name == *other)
                    && path.extension().is_none_or(|e| e != "a")
            })?;
            fs::write(&complete, origin)
                .map_err(|error| format!("cannot write {}: {error}", complete.display()))?;
        }
        let inside = postgres.pg_config.strip_prefix(&postgres.root).map_err(|error| error.to_string())?;
        Ok(Self { pg_config: root.join(inside), root })
    }

    /// A copy for one run of ours: runs at the same time do not replace each other's extension.
    pub fn for_this_run(postgres: &Postgres) -> Result<OwnStage> {
        let folder = place::for_server(postgres.major)?;
        remove_abandoned(&folder)?;
        let folder = folder.join(format!("stage-{}", process::id()));
        Ok(OwnStage { stage: Self::at(postgres, &folder)?, folder })
    }

    pub fn bindir(&self) -> Result<PathBuf> {
        postgres::folder(&self.pg_config, "bindir")
    }

    /// Where shared libraries go.
    pub fn libraries(&self) -> Result<PathBuf> {
        postgres::folder(&self.pg_config, "pkglibdir")
    }

    /// Where control files and scripts go.
    pub fn extensions(&self) -> Result<PathBuf> {
        Ok(postgres::folder(&self.pg_config, "sharedir")?.join("extension"))
    }

    /// Lets the server's account read it all, whatever our umask is.
    pub fn open_up(&self) -> Result<()> {
        open_up(&self.root).map_err(|error| format!("cannot open up {}: {error}", self.root.display()))
    }
}

/// A stage that goes when its run ends.
pub struct OwnStage {
    stage: Stage,
    folder: PathBuf,
}

impl std::ops::Deref for OwnStage {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Drop for OwnStage {
    fn drop(&mut self) {
        // What stays is removed by the next run.
        let _ = place::remove(&self.folder);
    }
}

fn remove_abandoned(folder: &Path) -> Result<()> {
    for entry in
        fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?.flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("stage-").and_then(|pid| pid.parse().ok());
        if owner.is_some_and(|pid| !server::is_alive(pid)) {
            place::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Copies a folder: links as what they point at, dangling ones not at all, and only what `wanted` wants.
pub fn copy_tree(from: &Path, to: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    let cannot =
        |error: std::io::Error| format!("cannot copy {} to {}: {error}", from.display(), to.display());
    fs::create_dir_all(to).map_err(cannot)?;
    for entry in fs::read_dir(from).map_err(cannot)? {
        let source = entry.map_err(cannot)?.path();
        let Some(name) = source.file_name() else { continue };
        match fs::metadata(&source) {
            Ok(found) if !wanted(&source) || !(found.is_dir() || found.is_file()) => {}
            Ok(found) if found.is_dir() => copy_tree(&source, &to.join(name), wanted)?,
            Ok(_) => {
                fs::copy(&source, to.join(name)).map_err(cannot)?;
            }
            Err(_) => {}
        }
    }
    Ok(())
}

fn open_up(path: &Path) -> std::io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let mode = found.permissions().mode();
    if found.is_dir() {
        fs::set_permissions(path, Permissions::from_mode(mode | 0o755))?;
        for entry in fs::read_dir(path)? {
            open_up(&entry?.path())?;
        }
    } else if found.is_file() {
        let execute = if mode & 0o100 == 0 { 0 } else { 0o111 };
        fs::set_permissions(path, Permissions::from_mode(mode | 0o444 | execute))?;
    }
    Ok(())
}
