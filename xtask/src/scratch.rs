//! The server of one run: its own data, gone afterwards.

use crate::stage::Stage;
use crate::{Result, extension, place, progress, toolchain};
use pgrx_tests::{keeper::Keeper, privileges, scratch, server::Server};
use std::fs;
use std::path::PathBuf;

/// Commits wait for the disk, as always. Room for the write-ahead log keeps checkpoints out of short slices.
const SETTINGS: [&str; 4] = [
    "max_connections = 100",
    "shared_buffers = '512MB'",
    "max_wal_size = '4GB'",
    "checkpoint_timeout = '30min'",
];

pub struct Scratch {
    pub server: Server,
    sockets: PathBuf,
    /// Ends the server and removes its data, also if we are killed.
    _keeper: Keeper,
}

impl Scratch {
    /// Builds the extension for release and starts a server with it.
    pub fn start(major: u16) -> Result<Self> {
        let _lock = place::lock()?;
        let postgres = toolchain::prepare(major)?;
        // Below target/, not in /tmp: that may be memory, where a commit waits for nothing.
        let programs = place::for_server(major)?.join("bench-programs");
        let home = place::for_server(major)?.join(format!("bench-{}", std::process::id()));
        place::create(&programs)?;
        place::create(&home)?;
        let stage = Stage::at(&postgres, &programs)?;
        extension::install_release(major, &stage.pg_config)?;
        stage.open_up()?;
        let keeper = Keeper::watch(&home)?;
        privileges::give_to_server(&home)?;
        let sockets = scratch::folder()?;
        let server = progress::step("starting a server", || {
            let server = Server::create(&stage.bindir()?, &home, &sockets, &SETTINGS)?;
            server.start()?;
            Ok(server)
        })?;
        Ok(Self { server, sockets, _keeper: keeper })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about a failure here; the keeper ends what is left.
        let _ = self.server.stop();
        let _ = fs::remove_dir_all(&self.sockets);
    }
}
