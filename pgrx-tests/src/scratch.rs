//! Temporary folders that server processes can enter.

use crate::privileges::{give_to_server, own_uid, server_can_enter};
use std::env;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A socket's path may not pass about 100 bytes; what we put below the root takes up to 40.
const LONGEST_ROOT: usize = 60;

/// The folder that temporary folders are made in.
pub fn root() -> Result<PathBuf, String> {
    [env::temp_dir(), PathBuf::from("/tmp")]
        .into_iter()
        .find(|root| root.as_os_str().len() <= LONGEST_ROOT && server_can_enter(root))
        .ok_or_else(|| "no temporary folder is short enough and open to the server: set TMPDIR=/tmp".into())
}

/// Makes a folder of our own under a name that nothing else has. Only the server's account may enter it:
/// the servers in it trust every connection.
pub fn folder() -> Result<PathBuf, String> {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let root = root()?;
    loop {
        let name = format!("pg_backfill-{}-{}", process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let folder = root.join(name);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return give_to_server(&folder).map(|()| folder),
            // Left by a process that had our id before us.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(format!("cannot make {}: {error}", folder.display())),
        }
    }
}

/// Makes, or finds again, the folder `name`. It must be ours: anyone may make folders beside it.
pub fn lasting_folder(name: &str) -> Result<PathBuf, String> {
    let folder = root()?.join(name);
    if let Err(error) = DirBuilder::new().mode(0o755).create(&folder)
        && error.kind() != ErrorKind::AlreadyExists
    {
        return Err(format!("cannot make {}: {error}", folder.display()));
    }
    match fs::symlink_metadata(&folder) {
        Ok(found) if found.is_dir() && Some(found.uid()) == own_uid() => Ok(folder),
        _ => Err(format!("{} belongs to somebody else: remove it, or set TMPDIR", folder.display())),
    }
}
