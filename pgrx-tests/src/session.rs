//! One connection, with the shortcuts that tests want.

use crate::failure::Failure;
use postgres::types::{FromSqlOwned, ToSql};
use postgres::{Client, Config, NoTls, Row};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// A `postgres::Client` that knows its backend and keeps the notices it was sent.
pub struct Session {
    client: Client,
    pid: i32,
    notices: Arc<Mutex<Vec<Failure>>>,
}

impl Session {
    /// Connects; the error has no SQLSTATE if there is no server.
    pub fn open(config: &Config) -> Result<Self, postgres::Error> {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&notices);
        let mut config = config.clone();
        config.notice_callback(move |notice| {
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(Failure::from(&notice));
        });
        let mut client = config.connect(NoTls)?;
        let pid = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
        Ok(Self { client, pid, notices })
    }

    /// The process of the backend that serves this session.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The notices since the last call, oldest first.
    pub fn notices(&self) -> Vec<Failure> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs statements without parameters. Several in one call are one transaction, even those before a
    /// BEGIN. Panics with the server's words.
    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        self.try_run(sql).unwrap_or_else(|failure| panic!("{sql}\n{failure}"));
    }

    /// Like [`run`](Self::run), giving the failure back.
    pub fn try_run(&mut self, sql: &str) -> Result<(), Failure> {
        Ok(self.client.batch_execute(sql)?)
    }

    /// The only value of the only row.
    #[track_caller]
    pub fn one<T: FromSqlOwned>(&mut self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> T {
        self.try_one(sql, parameters).unwrap_or_else(|failure| panic!("{sql}\n{failure}"))
    }

    /// Like [`one`](Self::one), giving the failure back.
    pub fn try_one<T: FromSqlOwned>(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<T, Failure> {
        Ok(self.client.query_one(sql, parameters)?.try_get(0)?)
    }

    /// The first column of every row.
    #[track_caller]
    pub fn column<T: FromSqlOwned>(&mut self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<T> {
        self.rows(sql, parameters).iter().map(|row| row.get(0)).collect()
    }

    /// Every row.
    #[track_caller]
    pub fn rows(&mut self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.client.query(sql, parameters).unwrap_or_else(|error| panic!("{sql}\n{}", Failure::of(&error)))
    }

    /// The rows as text, the columns joined with `|`: for comparing whole answers.
    #[track_caller]
    pub fn lines(&mut self, sql: &str) -> Vec<String> {
        let messages =
            self.client.simple_query(sql).unwrap_or_else(|error| panic!("{sql}\n{}", Failure::of(&error)));
        messages
            .iter()
            .filter_map(|message| match message {
                postgres::SimpleQueryMessage::Row(row) => Some(
                    (0..row.len()).map(|column| row.get(column).unwrap_or("")).collect::<Vec<_>>().join("|"),
                ),
                _ => None,
            })
            .collect()
    }

    /// The failure that statements without parameters end in. Panics if they succeed.
    #[track_caller]
    pub fn failure(&mut self, sql: &str) -> Failure {
        match self.try_run(sql) {
            Ok(()) => panic!("this should have failed: {sql}"),
            Err(failure) => failure,
        }
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
