//! A running server for tests, with a template that databases are made from.

use crate::database::{Database, config};
use crate::failure::Failure;
use crate::keeper::Keeper;
use crate::scratch;
use crate::server::{Server, signal};
use crate::session::Session;
use crate::wait::wait_until;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

/// Where `cargo xtask test` tells us that the programs of the server are.
const BINDIR: &str = "PG_BACKFILL_BINDIR";

/// The database that administers, and that has no extension in it.
pub(crate) const WITHOUT_EXTENSION: &str = "postgres";
/// Nothing can connect to it, so background workers do not keep it from being copied.
const TEMPLATE: &str = "template_backfill";

const SETTINGS: [&str; 9] = [
    "max_prepared_transactions = 10",
    "wal_level = logical",
    "max_worker_processes = 16",
    // So that a failing test can show what a function reported on its way.
    "log_min_messages = info",
    "timezone = 'UTC'",
    "log_timezone = 'UTC'",
    // Distributions compile it in or not; no test is about it, and it takes time to load.
    "jit = off",
    // A test that hangs fails long before CI's own limit.
    "statement_timeout = '5min'",
    "max_connections = 200",
];

/// A server of the test process. It ends with its owner, even if that is killed.
pub struct Cluster {
    server: Server,
    process: Mutex<Option<Child>>,
    template: OnceLock<()>,
    databases: AtomicUsize,
    /// Last: its end removes the folder.
    _keeper: Keeper,
}

impl Cluster {
    /// The one server that all tests of this process share.
    #[track_caller]
    pub fn shared() -> &'static Self {
        Self::shared_with(&[])
    }

    /// The shared server; the first caller's settings count.
    #[track_caller]
    pub(crate) fn shared_with(conf: &[&str]) -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| {
            // Nobody crashes this one, and it is thrown away.
            let mut all = vec!["fsync = off", "full_page_writes = off"];
            all.extend(conf);
            Self::private(&all)
        })
    }

    /// A server for one test, with settings of its own: to preload the extension, to crash, to restart.
    #[track_caller]
    pub fn private(conf: &[&str]) -> Self {
        Self::start(conf).unwrap_or_else(|error| panic!("{error}"))
    }

    fn start(conf: &[&str]) -> Result<Self, String> {
        let bindir = env::var_os(BINDIR)
            .map(PathBuf::from)
            .ok_or("run `cargo xtask test`: it builds, installs and names what these tests need")?;
        Self::started(|home| Server::create(&bindir, home, home, &[&SETTINGS[..], conf].concat()))
    }

    /// A standby that follows this cluster. `SELECT pg_promote()` makes it a primary.
    #[track_caller]
    pub fn standby(&self) -> Self {
        Self::started(|home| Server::standby_of(&self.server, home, home))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn started(make: impl FnOnce(&Path) -> Result<Server, String>) -> Result<Self, String> {
        let home = scratch::folder()?;
        let keeper = Keeper::watch(&home)?;
        let server = make(&home)?;
        let process = server.start()?;
        Ok(Self {
            server,
            process: Mutex::new(Some(process)),
            template: OnceLock::new(),
            databases: AtomicUsize::new(0),
            _keeper: keeper,
        })
    }

    /// A new database with the extension in it.
    #[track_caller]
    pub fn database(&self) -> Database {
        self.database_named(self.new_name())
    }

    /// A new database without the extension.
    #[track_caller]
    pub fn empty_database(&self) -> Database {
        self.copy_of("template0", self.new_name())
    }

    #[track_caller]
    pub(crate) fn database_named(&self, name: String) -> Database {
        self.template.get_or_init(|| self.make_template());
        self.copy_of(TEMPLATE, name)
    }

    /// A session of the superuser in a database that is there.
    #[track_caller]
    pub fn connect(&self, database: &str) -> Session {
        Session::open(&config(&self.server, database, "postgres"))
            .unwrap_or_else(|error| panic!("{}", Failure::of(&error)))
    }

    /// A program of this server's version, pointed at the database `postgres`.
    pub fn command(&self, program: &str) -> Command {
        self.server.command(program)
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// The data folder.
    pub fn data(&self) -> &Path {
        self.server.data()
    }

    /// Ends all server processes at once, as a crash would. [`restart`](Self::restart) recovers.
    #[track_caller]
    pub fn crash(&self) {
        self.end("QUIT");
    }

    /// Gets ready to do what [`crash`](Self::crash) does, at a moment: the process is there already that sends the signal.
    #[track_caller]
    pub fn armed(&self) -> Armed<'_> {
        let pid = self.process().as_ref().map(Child::id).expect("the server runs");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("read -r _; kill -QUIT {pid}")]).stdin(Stdio::piped());
        let shell = shell.spawn().unwrap_or_else(|error| panic!("{error}"));
        Armed { cluster: self, shell }
    }

    /// Stops the server, ending open sessions.
    #[track_caller]
    pub fn stop(&self) {
        self.end("INT");
    }

    /// Starts the server again after a crash or a stop; stops it first if it runs.
    #[track_caller]
    pub fn restart(&self) {
        self.stop();
        let process = self.server.start().unwrap_or_else(|error| panic!("{error}"));
        *self.process() = Some(process);
    }

    /// Kills one backend with SIGKILL. The server then drops every session and recovers; this returns
    /// when it takes connections again.
    #[track_caller]
    pub fn kill_backend(&self, pid: i32) {
        // Connections are still taken until the server has noticed; this one's end shows that it has.
        let mut witness = self.admin();
        let pid = u32::try_from(pid).unwrap_or_else(|_| panic!("no process has the id {pid}"));
        signal(pid, "KILL").unwrap_or_else(|error| panic!("{error}"));
        wait_until("the server notices", || witness.try_run("SELECT 1").is_err());
        wait_until("the server recovers", || {
            Session::open(&config(&self.server, WITHOUT_EXTENSION, "postgres")).is_ok()
        });
    }

    #[track_caller]
    fn end(&self, how: &str) {
        if let Some(mut process) = self.process().take() {
            signal(process.id(), how).unwrap_or_else(|error| panic!("{error}"));
            process.wait().unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[track_caller]
    fn make_template(&self) {
        let mut admin = self.admin();
        admin.run(&format!("CREATE DATABASE {TEMPLATE}"));
        self.connect(TEMPLATE).run("CREATE EXTENSION pg_backfill");
        admin.run(&format!("ALTER DATABASE {TEMPLATE} ALLOW_CONNECTIONS false"));
        // The backend of that session may take a moment to leave.
        let left = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = '{TEMPLATE}'");
        wait_until("the template is left alone", || admin.one(&left, &[]));
    }

    #[track_caller]
    fn copy_of(&self, template: &str, name: String) -> Database {
        Database::create(&self.server, name, template).unwrap_or_else(|failure| panic!("{failure}"))
    }

    #[track_caller]
    fn admin(&self) -> Session {
        self.connect(WITHOUT_EXTENSION)
    }

    /// Unique, and readable in the server's log: libtest names the thread after the test.
    fn new_name(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let test =
            thread::current().name().unwrap_or("test").rsplit("::").next().unwrap_or("test").to_owned();
        let test: String = test.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(40).collect();
        format!("t{number}_{}", test.to_lowercase())
    }
}

/// A crash to come.
pub struct Armed<'c> {
    cluster: &'c Cluster,
    shell: Child,
}

impl Armed<'_> {
    /// Now. Returns when all server processes have ended.
    #[track_caller]
    pub fn fire(mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().unwrap_or_else(|error| panic!("{error}"));
        if let Some(mut process) = self.cluster.process().take() {
            process.wait().unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut process) = self.process().take() {
            // Its data is thrown away next, so it need not be left in good order. The keeper would end it
            // as well; only we can collect the process.
            let _ = signal(process.id(), "QUIT");
            let _ = process.wait();
        }
    }
}
