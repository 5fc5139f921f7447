//! A database of a test's own, dropped with it.

use crate::cluster::WITHOUT_EXTENSION;
use crate::failure::Failure;
use crate::server::{Server, succeed};
use crate::session::Session;
use crate::wait::wait_until;
use postgres::Config;
use std::panic;
use std::process::Command;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

/// A database in a [`Cluster`](crate::Cluster). It is dropped at the end, with the roles it made.
pub struct Database {
    server: Server,
    name: String,
    roles: Mutex<Vec<String>>,
}

impl Database {
    pub(crate) fn create(server: &Server, name: String, template: &str) -> Result<Self, Failure> {
        let mut admin = Session::open(&config(server, WITHOUT_EXTENSION, "postgres"))?;
        admin.try_run(&format!(r#"CREATE DATABASE "{name}" TEMPLATE "{template}""#))?;
        Ok(Self { server: server.clone(), name, roles: Mutex::default() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A session of the superuser.
    #[track_caller]
    pub fn connect(&self) -> Session {
        self.connect_as("postgres")
    }

    /// A session of another role.
    #[track_caller]
    pub fn connect_as(&self, role: &str) -> Session {
        self.try_connect_as(role).unwrap_or_else(|failure| panic!("cannot connect as {role}: {failure}"))
    }

    /// Like [`connect_as`](Self::connect_as), giving the failure back.
    pub fn try_connect_as(&self, role: &str) -> Result<Session, Failure> {
        Ok(Session::open(&self.config(role))?)
    }

    /// The settings of a connection, to change before connecting.
    pub fn config(&self, role: &str) -> Config {
        config(&self.server, &self.name, role)
    }

    /// Makes a role that may log in and nothing else, and returns its name. Roles are shared by all
    /// databases of a cluster, so the name starts with this database's.
    #[track_caller]
    pub fn role(&self, name: &str) -> String {
        let role = format!("{}_{name}", self.name);
        self.connect().run(&format!(r#"CREATE ROLE "{role}" LOGIN"#));
        self.roles.lock().unwrap_or_else(PoisonError::into_inner).push(role.clone());
        role
    }

    /// A program of this server's version (psql, pg_dump, pgbench…), pointed at this database.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.server.command(program);
        command.env("PGDATABASE", &self.name);
        command
    }

    /// What a program of this server's version prints. Panics with its complaints.
    #[track_caller]
    pub fn output(&self, program: &str, arguments: &[&str]) -> String {
        succeed(self.command(program).args(arguments)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What psql prints for a script.
    #[track_caller]
    pub fn psql(&self, script: &str) -> String {
        self.server.psql(&self.name, script).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs `work` in `n` threads, each with a session of its own, all let go at once. Returns what they
    /// returned, in order; passes on the first panic.
    pub fn many<T: Send>(&self, n: usize, work: impl Fn(usize, &mut Session) -> T + Sync) -> Vec<T> {
        let barrier = Barrier::new(n);
        // Connected before the threads start: a failed connection must not leave the others waiting.
        let sessions: Vec<Session> = (0..n).map(|_| self.connect()).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = sessions
                .into_iter()
                .enumerate()
                .map(|(i, mut session)| {
                    let (barrier, work) = (&barrier, &work);
                    scope.spawn(move || {
                        barrier.wait();
                        work(i, &mut session)
                    })
                })
                .collect();
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            results
                .into_iter()
                .map(|result| result.unwrap_or_else(|panic| panic::resume_unwind(panic)))
                .collect()
        })
    }

    /// Waits until the backend `pid` waits for a lock.
    #[track_caller]
    pub fn wait_for_lock(&self, pid: i32) {
        let sql = format!(
            "SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = {pid}"
        );
        self.wait_for(&format!("backend {pid} waits for a lock"), &sql);
    }

    /// Waits until a query returns true.
    #[track_caller]
    pub fn wait_for(&self, what: &str, sql: &str) {
        let mut observer = self.connect();
        wait_until(what, || observer.rows(sql, &[]).first().is_some_and(|row| row.get(0)));
    }
}

impl Drop for Database {
    /// A test that crashed its server leaves nothing to drop; a test that failed has said so already.
    fn drop(&mut self) {
        let Ok(mut admin) = Session::open(&config(&self.server, WITHOUT_EXTENSION, "postgres")) else {
            return;
        };
        let _ = admin.try_run(&format!(r#"DROP DATABASE IF EXISTS "{}" WITH (FORCE)"#, self.name));
        for role in self.roles.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = admin.try_run(&format!(r#"DROP ROLE IF EXISTS "{role}""#));
        }
    }
}

/// How to reach `database` as `role`.
pub(crate) fn config(server: &Server, database: &str, role: &str) -> Config {
    let mut config = Config::new();
    config.host_path(server.sockets()).port(server.port()).user(role).dbname(database);
    // A test's thread bears its name.
    config.application_name(thread::current().name().unwrap_or("test"));
    config
}
