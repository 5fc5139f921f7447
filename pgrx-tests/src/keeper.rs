//! A watcher that ends a server when the process that started it is gone, however it went.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Reads until the pipe from the process it watches closes, stops the server and removes its folder.
/// The data goes, so the server need not leave it in good order. PostgreSQL kills what has not ended after
/// five seconds; the lock file goes last.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
lock=$1/data/postmaster.pid
pid=$(head -n 1 "$lock" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
tries=0
while [ -e "$lock" ] && [ $tries -lt 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
rm -rf "$1"
"#;

/// Watches over the server in one folder. Dropping it, or dying, ends the server.
#[derive(Debug)]
pub struct Keeper {
    watcher: Child,
}

impl Keeper {
    /// Watches over the server in `home` and over `home` itself.
    pub fn watch(home: &Path) -> Result<Self, String> {
        // PR_SET_PDEATHSIG would be bound to the thread that starts the server, and tests start it from
        // theirs. A pipe is bound to the process, and its end is seen even after SIGKILL.
        let watcher = Command::new("sh")
            .args(["-c", SCRIPT, "keeper"])
            .arg(home)
            .process_group(0)
            .stdin(Stdio::piped())
            // Left open, they would keep whoever reads our output waiting.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot run sh: {error}"))?;
        Ok(Self { watcher })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        // Nothing can be done about a failure here, and the watcher reports none.
        let _ = self.watcher.wait();
    }
}
