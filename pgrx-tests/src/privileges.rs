//! Who runs the server. PostgreSQL refuses to run as root, so root hands its processes to another account.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// An account that server processes run under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    uid: u32,
    gid: u32,
}

/// The account for server processes, or `None` when they may run as we do: then we are not root.
pub fn server_account() -> Option<Account> {
    static ACCOUNT: OnceLock<Option<Account>> = OnceLock::new();
    *ACCOUNT.get_or_init(|| {
        if own_uid() != Some(0) {
            return None;
        }
        let account = ["postgres", "nobody"]
            .iter()
            .find_map(|name| Some(Account { uid: id(&["-u", name])?, gid: id(&["-g", name])? }));
        Some(account.expect("root needs an account named postgres or nobody to run PostgreSQL under"))
    })
}

/// The account we run under.
pub fn own_uid() -> Option<u32> {
    static UID: OnceLock<Option<u32>> = OnceLock::new();
    *UID.get_or_init(|| id(&["-u"]))
}

/// Whether this process is root.
pub fn is_root() -> bool {
    server_account().is_some()
}

/// Makes `command` run under the account for server processes.
pub fn as_server(command: &mut Command) -> &mut Command {
    if let Some(account) = server_account() {
        command.uid(account.uid).gid(account.gid);
    }
    command
}

/// Gives a file or folder to the account for server processes.
pub fn give_to_server(path: &Path) -> Result<(), String> {
    match server_account() {
        Some(account) => chown(path, Some(account.uid), Some(account.gid))
            .map_err(|error| format!("cannot give {} to the server's account: {error}", path.display())),
        None => Ok(()),
    }
}

/// Whether server processes can reach what lies in `folder`.
pub fn server_can_enter(folder: &Path) -> bool {
    let Some(account) = server_account() else {
        return true;
    };
    let Ok(folder) = folder.canonicalize() else {
        return false;
    };
    folder.ancestors().all(|ancestor| {
        fs::metadata(ancestor).is_ok_and(|found| may_search(account, found.uid(), found.gid(), found.mode()))
    })
}

/// The execute bit that applies to `account` on a folder with this owner, group and mode.
fn may_search(account: Account, uid: u32, gid: u32, mode: u32) -> bool {
    let bit = if uid == account.uid {
        0o100
    } else if gid == account.gid {
        0o010
    } else {
        0o001
    };
    mode & bit != 0
}

/// std has no getuid; `id` is everywhere.
fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bit_of_the_owner_decides_for_the_owner() {
        let account = Account { uid: 101, gid: 104 };
        assert!(may_search(account, 101, 0, 0o700));
        assert!(!may_search(account, 0, 0, 0o700));
        assert!(may_search(account, 0, 104, 0o710));
        assert!(may_search(account, 0, 0, 0o711));
        assert!(!may_search(account, 101, 0, 0o077));
    }
}
