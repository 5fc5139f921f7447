//! One PostgreSQL server: its programs, its data folder, its socket folder.

use crate::privileges::{as_server, give_to_server};
use std::env;
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Crash recovery after a long test is the slowest start there is.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// PostgreSQL reads it last, and of two lines the later one counts. ALTER SYSTEM works on it too.
const CONF: &str = "postgresql.auto.conf";

/// A server's place on disk. It knows how to start and to signal, not whether it is running.
#[derive(Clone, Debug)]
pub struct Server {
    bindir: PathBuf,
    data: PathBuf,
    sockets: PathBuf,
    port: u16,
}

impl Server {
    /// Makes a data folder in `home` with the settings `conf`. Connections go through a socket in the
    /// folder `sockets`; the port only names the socket unless `conf` asks to listen.
    pub fn create(bindir: &Path, home: &Path, sockets: &Path, conf: &[&str]) -> Result<Self, String> {
        let server = Self::prepare(bindir, home, sockets)?;
        let mut initdb = server.as_server("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        initdb.arg("--pgdata").arg(&server.data);
        succeed(&mut initdb)?;
        server.configure(conf)?;
        Ok(server)
    }

    /// Makes a standby of `primary`, which must be running, in `home`.
    pub fn standby_of(primary: &Self, home: &Path, sockets: &Path) -> Result<Self, String> {
        let server = Self::prepare(&primary.bindir, home, sockets)?;
        let mut backup = primary.command("pg_basebackup");
        as_server(backup.current_dir(&server.data));
        backup
            .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--pgdata"])
            .arg(&server.data);
        succeed(&mut backup)?;
        server.configure(&[])?;
        Ok(server)
    }

    /// The server that an earlier `create` made in `home`.
    pub fn open(bindir: &Path, home: &Path, sockets: &Path) -> Option<Self> {
        let data = home.join("data");
        let conf = fs::read_to_string(data.join(CONF)).ok()?;
        let port = conf.lines().find_map(|line| line.strip_prefix("port = "))?.parse().ok()?;
        Some(Self { bindir: bindir.into(), data, sockets: sockets.into(), port })
    }

    fn prepare(bindir: &Path, home: &Path, sockets: &Path) -> Result<Self, String> {
        let data = home.join("data");
        let server = Self { bindir: bindir.into(), data, sockets: sockets.into(), port: free_port()? };
        DirBuilder::new()
            .mode(0o700)
            .create(&server.data)
            .map_err(|error| server.cannot("make its data folder", &error))?;
        give_to_server(&server.data)?;
        Ok(server)
    }

    /// Adds settings of ours, and where connections are taken.
    fn configure(&self, conf: &[&str]) -> Result<(), String> {
        let mut text = format!(
            "port = {}\nunix_socket_directories = '{}'\nlisten_addresses = ''\nlog_line_prefix = '%m [%p] %q%u@%d '\n",
            self.port,
            self.sockets.display()
        );
        for line in conf {
            text.push_str(line);
            text.push('\n');
        }
        File::options()
            .append(true)
            .open(self.data.join(CONF))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| self.cannot("be configured", &error))
    }

    /// Starts the server and waits until it takes connections. It outlives the `Child` that is returned.
    pub fn start(&self) -> Result<Child, String> {
        let log = self.open_log().map_err(|error| self.cannot("write its log", &error))?;
        let also_log = log.try_clone().map_err(|error| self.cannot("write its log", &error))?;
        let mut postgres = self.as_server("postgres");
        // pgrx would append a backtrace to the DETAIL of every error.
        postgres.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
        // A group of its own: Ctrl-C in the terminal is for the tests, which then stop the server.
        postgres.arg("-D").arg(&self.data).process_group(0);
        postgres.stdin(Stdio::null()).stdout(log).stderr(also_log);
        let mut child = postgres.spawn().map_err(|error| self.cannot("start", &error))?;
        let deadline = Instant::now() + START_LIMIT;
        while !self.is_ready(child.id()) {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!(
                    "PostgreSQL did not start ({status}). Its log ends with:\n{}",
                    self.log_tail(20)
                ));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "PostgreSQL is not ready after {START_LIMIT:?}. Its log ends with:\n{}",
                    self.log_tail(20)
                ));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(child)
    }

    /// Stops a server that some earlier process of ours started. `false` if it was not running.
    pub fn stop(&self) -> Result<bool, String> {
        let Some(pid) = self.pid().filter(|pid| is_alive(*pid)) else {
            return Ok(false);
        };
        signal(pid, "INT")?;
        let deadline = Instant::now() + STOP_LIMIT;
        // One that this very process started stays a zombie until it is waited for; its lock file goes.
        while is_alive(pid) && self.pid() == Some(pid) {
            if Instant::now() > deadline {
                return Err(format!("PostgreSQL (process {pid}) has not stopped after {STOP_LIMIT:?}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(true)
    }

    /// Whether the server runs.
    pub fn is_running(&self) -> bool {
        self.pid().is_some_and(is_alive)
    }

    /// The postmaster's process, as its lock file names it.
    pub fn pid(&self) -> Option<u32> {
        self.lock_file()?.lines().next()?.trim().parse().ok()
    }

    /// A program of this server's version, pointed at it as its superuser.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.program(program);
        command.env("PGHOST", &self.sockets).env("PGPORT", self.port.to_string());
        command.env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command
    }

    /// What psql prints, unaligned and without headers, for a script of SQL and backslash commands.
    pub fn psql(&self, database: &str, script: &str) -> Result<String, String> {
        let file = crate::scratch::folder()?;
        let script_file = file.join("script.sql");
        let written =
            fs::write(&script_file, script).map_err(|error| self.cannot("be given a script", &error));
        let mut psql = self.command("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database, "-f"]).arg(&script_file);
        let output = written.and_then(|()| succeed(&mut psql));
        fs::remove_dir_all(&file).map_err(|error| self.cannot("remove a script", &error))?;
        output
    }

    /// The folder that its socket is in.
    pub fn sockets(&self) -> &Path {
        &self.sockets
    }

    /// The port that its socket is named after.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        fs::read(self.log_file())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(lines).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Beside the data folder, so that a copy of the data (a standby) starts with a log of its own.
    fn log_file(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    fn open_log(&self) -> std::io::Result<File> {
        File::options().create(true).append(true).open(self.log_file())
    }

    fn program(&self, program: &str) -> Command {
        let mut command = Command::new(self.bindir.join(program));
        // Whatever the developer's own servers need must not lead these programs astray.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command
    }

    fn as_server(&self, program: &str) -> Command {
        let mut command = self.program(program);
        // Our own folder may be closed to the server's account.
        command.current_dir(&self.data);
        as_server(&mut command);
        command
    }

    /// The lock file's eighth line says whether connections are taken.
    fn is_ready(&self, pid: u32) -> bool {
        self.pid() == Some(pid)
            && self
                .lock_file()
                .is_some_and(|lock| lock.lines().nth(7).is_some_and(|state| state.trim() == "ready"))
    }

    fn lock_file(&self) -> Option<String> {
        fs::read_to_string(self.data.join("postmaster.pid")).ok()
    }

    fn cannot(&self, what: &str, error: &std::io::Error) -> String {
        format!("the server in {} cannot {what}: {error}", self.data.display())
    }
}

/// Runs a command and returns what it printed; its complaints are the error.
pub fn succeed(command: &mut Command) -> Result<String, String> {
    let name =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(format!("{name} failed ({}): {}", output.status, complaint.trim()))
    }
}

/// Sends a signal by name. std can only kill, and only its own children.
pub fn signal(pid: u32, name: &str) -> Result<(), String> {
    succeed(Command::new("sh").args(["-c", &format!("kill -{name} {pid}")])).map(|_| ())
}

/// Whether a process is there.
pub fn is_alive(pid: u32) -> bool {
    signal(pid, "0").is_ok()
}

/// Should another server take the port before ours does, ours still starts: sockets live in a folder of
/// their own.
fn free_port() -> Result<u16, String> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("no free port: {error}"))
}
