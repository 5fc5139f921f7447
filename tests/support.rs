//! What tests of leases, fences, plans and crashes begin with.

use pgrx_tests::{Cluster, Database, Failure, Session, wait_until};
use std::{iter, thread};

pub const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// A database with the pipeline `daily`.
pub fn daily(settings: &str) -> Database {
    daily_in(Cluster::shared(), settings)
}

/// A database of a certain server with the pipeline `daily`: the days since 2024-01-01 in UTC, kept in
/// `facts`. It has no query, so that a test decides what each attempt writes.
pub fn daily_in(cluster: &Cluster, settings: &str) -> Database {
    let database = cluster.database();
    let mut owner = database.connect();
    owner.run("CREATE TABLE facts (at timestamptz NOT NULL, token bigint NOT NULL)");
    owner.run("CREATE INDEX ON facts (at)");
    define(&mut owner, "daily", "'1 day', '2024-01-01', 'facts', 'at'", settings);
    database
}

/// Triggers of `facts` that name a table without its schema.
pub const NOTING: &str = "CREATE TABLE noted (at timestamptz);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO noted VALUES (NEW.at); RETURN NEW; END';
    CREATE TRIGGER note BEFORE INSERT ON facts FOR EACH ROW EXECUTE FUNCTION note()";

/// Defines a pipeline; `first` are its arguments by position, `more` those by name.
pub fn define(owner: &mut Session, name: &str, first: &str, more: &str) {
    let comma = if more.is_empty() { "" } else { ", " };
    owner.run(&format!("SELECT pipeline_define('{name}', {first}{comma}{more})"));
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub token: i64,
    pub key: String,
    pub plan_id: Option<i64>,
    pub attempt: i32,
    pub run_kind: String,
}

pub fn keys(leases: &[Lease]) -> Vec<&str> {
    leases.iter().map(|lease| lease.key.as_str()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub id: i64,
    pub windows: i64,
}

/// The SQL of an attempt that replaces its slice with four rows, each bearing the attempt's token.
pub fn replacing(token: i64) -> String {
    replacing_with(token, "")
}

/// The same with more arguments of `replace_partition`.
pub fn replacing_with(token: i64, more: &str) -> String {
    format!(
        "SELECT replace_partition({token}, query => $$
            SELECT $1 + n * ($2 - $1) / 4, {token} FROM generate_series(0, 3) n $$ {more})"
    )
}

/// The calls of workers and of people, as short as tests want them.
pub trait Calls {
    /// What a claim answers that has these arguments after the worker's name.
    fn try_claim(&mut self, arguments: &str) -> Result<Vec<Lease>, Failure>;
    /// The next window of `daily`, if there is one.
    fn claim(&mut self) -> Option<Lease>;
    /// The next window of `daily`.
    fn lease(&mut self) -> Lease;
    /// The next window of `daily`, as soon as a transaction that has just failed has let go of it: a client is told
    /// before its transaction has ended.
    fn lease_after_failure(&mut self) -> Lease;
    /// The next windows of `daily`.
    fn leases(&mut self, n: usize) -> Vec<Lease>;
    /// Claims windows of a pipeline, one by one, until nothing can be had.
    fn all_of(&mut self, pipeline: &str) -> Vec<Lease>;
    /// Replaces the slice and finishes.
    fn replace(&mut self, token: i64) -> Result<(), Failure>;
    /// `finish`, `release`, `heartbeat`: a call whose only argument is the token.
    fn call(&mut self, what: &str, token: i64);
    /// Reports a failed attempt, and returns what becomes of the window.
    fn fail(&mut self, token: i64) -> String;
    /// Waits until the lease is past its expiry.
    fn let_expire(&mut self, token: i64);

    /// A draft of the windows of `daily` that the arguments after the pipeline's name choose; its number is
    /// 0 where that is none.
    fn draft(&mut self, arguments: &str) -> Plan;
    fn approve(&mut self, plan: Plan) -> Result<(), Failure>;
    /// An approved plan of the windows of `daily` up to `until`.
    fn plan(&mut self, until: &str, more: &str) -> i64;
    /// An approved plan of one window of `daily`.
    fn plan_window(&mut self, key: &str) -> i64;
    fn cancel(&mut self, plan_id: i64);

    /// How many rows there are.
    fn count(&mut self, from: &str) -> i64;
    /// The state of one window of `daily`.
    fn state(&mut self, key: &str) -> String;
    /// Moves back the moment since which the pipeline counts as active.
    fn active_for(&mut self, pipeline: &str, time: &str);
    /// The most runs that were open at once, of those that satisfy the condition.
    fn most_at_once(&mut self, condition: &str) -> i64;
    /// Each slice of `facts` holds the rows of the token that the ledger names, all of them and no other.
    fn assert_data_is_the_ledger(&mut self);
    /// No window had two leases at once, and each lease had a higher token than those before it.
    fn assert_one_lease_per_window(&mut self);
}

impl Calls for Session {
    #[track_caller]
    fn try_claim(&mut self, arguments: &str) -> Result<Vec<Lease>, Failure> {
        let sql = format!(
            "SELECT token, window_key, plan_id, attempt, run_kind FROM backfill_claim('test', {arguments})"
        );
        let rows = self.query(&sql, &[])?;
        Ok(rows
            .iter()
            .map(|row| Lease {
                token: row.get(0),
                key: row.get(1),
                plan_id: row.get(2),
                attempt: row.get(3),
                run_kind: row.get(4),
            })
            .collect())
    }

    #[track_caller]
    fn claim(&mut self) -> Option<Lease> {
        self.leases(1).pop()
    }

    #[track_caller]
    fn lease(&mut self) -> Lease {
        self.claim().expect("a window can be had")
    }

    #[track_caller]
    fn lease_after_failure(&mut self) -> Lease {
        let mut lease = None;
        wait_until("the window can be had", || {
            lease = self.claim();
            lease.is_some()
        });
        lease.expect("it was had")
    }

    #[track_caller]
    fn leases(&mut self, n: usize) -> Vec<Lease> {
        self.try_claim(&format!("{n}, pipelines => ARRAY['daily']"))
            .unwrap_or_else(|failure| panic!("{failure}"))
    }

    #[track_caller]
    fn all_of(&mut self, pipeline: &str) -> Vec<Lease> {
        let one = format!("1, pipelines => ARRAY['{pipeline}']");
        let claim = || self.try_claim(&one).unwrap_or_else(|failure| panic!("{failure}")).pop();
        iter::from_fn(claim).collect()
    }

    #[track_caller]
    fn replace(&mut self, token: i64) -> Result<(), Failure> {
        self.try_run(&replacing(token))
    }

    #[track_caller]
    fn call(&mut self, what: &str, token: i64) {
        self.run(&format!("SELECT backfill_{what}({token})"));
    }

    #[track_caller]
    fn fail(&mut self, token: i64) -> String {
        self.one("SELECT backfill_fail($1, 'no luck')", &[&token])
    }

    #[track_caller]
    fn let_expire(&mut self, token: i64) {
        let sql = "SELECT expires_at < clock_timestamp() FROM backfill.leases WHERE token = $1";
        wait_until("the lease expires", || self.one(sql, &[&token]));
    }

    #[track_caller]
    fn draft(&mut self, arguments: &str) -> Plan {
        let sql = format!("SELECT coalesce(plan_id, 0), windows FROM backfill_plan('daily', {arguments})");
        let rows = self.rows(&sql, &[]);
        Plan { id: rows[0].get(0), windows: rows[0].get(1) }
    }

    #[track_caller]
    fn approve(&mut self, plan: Plan) -> Result<(), Failure> {
        self.try_run(&format!("SELECT backfill_approve({}, {})", plan.id, plan.windows))
    }

    #[track_caller]
    fn plan(&mut self, until: &str, more: &str) -> i64 {
        let plan = self.draft(&format!("NULL, '{until}', 'test' {more}"));
        self.approve(plan).unwrap_or_else(|failure| panic!("{failure}"));
        plan.id
    }

    #[track_caller]
    fn plan_window(&mut self, key: &str) -> i64 {
        let plan = self.draft(&format!("NULL, NULL, 'test', keys => ARRAY['{key}']"));
        self.approve(plan).unwrap_or_else(|failure| panic!("{failure}"));
        plan.id
    }

    #[track_caller]
    fn cancel(&mut self, plan_id: i64) {
        self.run(&format!("SELECT backfill_cancel({plan_id}, 'test')"));
    }

    #[track_caller]
    fn count(&mut self, from: &str) -> i64 {
        self.one(&format!("SELECT count(*) FROM {from}"), &[])
    }

    #[track_caller]
    fn state(&mut self, key: &str) -> String {
        let sql = "SELECT state FROM pipeline_windows('daily') WHERE window_key = $1";
        self.one(sql, &[&key])
    }

    #[track_caller]
    fn active_for(&mut self, pipeline: &str, time: &str) {
        self.run(&format!(
            "UPDATE backfill.pipeline_data SET active_since = clock_timestamp() - interval '{time}'
             WHERE name = '{pipeline}'"
        ));
    }

    #[track_caller]
    fn most_at_once(&mut self, condition: &str) -> i64 {
        self.one(
            &format!(
                "WITH run AS (SELECT * FROM backfill.runs WHERE {condition})
                 SELECT max((SELECT count(*) FROM run o WHERE o.started_at <= r.started_at
                             AND coalesce(o.finished_at, 'infinity') > r.started_at)) FROM run r"
            ),
            &[],
        )
    }

    #[track_caller]
    fn assert_data_is_the_ledger(&mut self) {
        let wrong = self.lines(
            "SELECT format('%s holds %s rows of %s, not %s of %s', s.window_key, count(f.at),
                           array_agg(DISTINCT f.token), s.rows, s.token)
             FROM backfill.slices s
             LEFT JOIN facts f ON f.at >= s.window_start AND f.at < s.window_end
             GROUP BY s.window_key, s.rows, s.token
             HAVING count(f.at) <> s.rows OR bool_or(f.token <> s.token)
             UNION ALL
             SELECT format('%s of %s is in no slice', f.at, f.token) FROM facts f
             WHERE NOT EXISTS (SELECT FROM backfill.slices s
                               WHERE f.at >= s.window_start AND f.at < s.window_end)",
        );
        assert_eq!(wrong, [""; 0]);
    }

    #[track_caller]
    fn assert_one_lease_per_window(&mut self) {
        let wrong = self.lines(
            "SELECT pipeline, window_key, token, next_token FROM (
                 SELECT *, lead(started_at) OVER w AS next_start, lead(token) OVER w AS next_token
                 FROM backfill.runs WINDOW w AS (PARTITION BY pipeline, window_start ORDER BY started_at)
             ) r WHERE next_start < coalesce(finished_at, 'infinity') OR next_token < token",
        );
        assert_eq!(wrong, [""; 0], "leases that overlap");
    }
}

/// A session that fails (55P03) rather than waits for anyone.
pub fn impatient(database: &Database) -> Session {
    let mut session = database.connect();
    session.run("SET lock_timeout = '100ms'");
    session
}

/// Runs a statement that must wait for somebody, lets `meanwhile` end that, and returns how it went.
#[track_caller]
pub fn waiting(
    database: &Database,
    session: &mut Session,
    sql: &str,
    meanwhile: impl FnOnce(),
) -> Result<(), Failure> {
    let pid = session.pid();
    thread::scope(|scope| {
        let statement = scope.spawn(|| session.try_run(sql));
        database.wait_for_lock(pid);
        meanwhile();
        statement.join().expect("the statement's thread does not panic")
    })
}

/// What a call gets that lost against somebody else's: the code, or 40001 above READ COMMITTED.
#[track_caller]
pub fn assert_lost(failure: &Failure, level: &str, code: &str) {
    let allowed: &[&str] = if level == "READ COMMITTED" { &[code] } else { &[code, "40001"] };
    assert!(allowed.contains(&failure.sqlstate.as_str()), "under {level}:\n{failure}");
}
