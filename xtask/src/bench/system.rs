//! The three systems: how their queues are filled, what one operation is, and how operations are counted.

use super::pgbench::{Load, Report};
use super::{OURS, THEIRS, count};
use crate::Result;
use pgrx_tests::server::Server;
use std::cell::Cell;

pub use super::peers::Peers;

/// A system and the way that it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Ours,
    /// By a role that was granted "work" and owns nothing.
    OursGranted,
    PgmqArchive,
    PgmqDelete,
    Graphile,
}

/// Windows, messages or jobs that one call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    One,
    Ten,
}

impl Batch {
    pub fn size(self) -> usize {
        match self {
            Self::One => 1,
            Self::Ten => 10,
        }
    }

    /// More than this in a second has not been seen on two cores.
    pub fn ceiling(self) -> f64 {
        match self {
            Self::One => 9_000.0,
            Self::Ten => 45_000.0,
        }
    }
}

/// The most clients that any part uses, twice over: claims find a slot without looking for long.
const SPARE_SLOTS: usize = 2 * 32;

/// A queue that is filled, and what takes from it.
pub struct Work<'a> {
    server: &'a Server,
    peers: &'a Peers,
    database: String,
    pub system: System,
    batch: Batch,
    filled: f64,
    slots: usize,
    /// The pipeline, where it is ours.
    pipeline: String,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "pg_backfill",
            Self::OursGranted => "pg_backfill, granted role",
            Self::PgmqArchive => "pgmq read + archive",
            Self::PgmqDelete => "pgmq read + delete",
            Self::Graphile => "graphile-worker",
        }
    }

    /// For the heading of a ratio.
    pub fn short(self) -> &'static str {
        match self {
            Self::Ours | Self::OursGranted => "ours",
            Self::PgmqArchive => "archive",
            Self::PgmqDelete => "delete",
            Self::Graphile => "graphile",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::OursGranted)
    }

    /// The database that it is installed in.
    pub fn home(self) -> &'static str {
        if self.is_ours() { OURS } else { THEIRS }
    }

    /// A fresh queue of `rows` in its database or a copy of that.
    pub fn fill<'a>(
        self,
        server: &'a Server,
        peers: &'a Peers,
        database: &str,
        batch: Batch,
        rows: usize,
    ) -> Result<Work<'a>> {
        let slots = SPARE_SLOTS * batch.size();
        let mut pipeline = String::new();
        match self {
            Self::Ours | Self::OursGranted => pipeline = plan(server, database, rows, slots)?,
            Self::PgmqArchive => peers.fill_pgmq(server, database, "bench_archive", rows)?,
            Self::PgmqDelete => peers.fill_pgmq(server, database, "bench_delete", rows)?,
            Self::Graphile => peers.fill_graphile(server, database, rows)?,
        }
        // What filling wrote is not for whoever comes next to write out.
        server.psql(database, "CHECKPOINT")?;
        let (database, filled) = (database.to_owned(), rows as f64);
        Ok(Work { server, peers, database, system: self, batch, filled, slots, pipeline })
    }
}

/// A pipeline for outside workers with an approved plan of `windows` windows, in a pool of its own. Nothing of
/// it is due by itself. Answers its name, which is also the pool's.
pub fn plan(server: &Server, database: &str, windows: usize, slots: usize) -> Result<String> {
    thread_local!(static PIPELINES: Cell<usize> = const { Cell::new(0) });
    let name = format!("bench_{}", PIPELINES.replace(PIPELINES.get() + 1));
    let script = format!(
        "\\set name {name}\n\\set windows {windows}\n\\set slots {slots}\n{}",
        include_str!("sql/plan.sql")
    );
    server.psql(database, &script)?;
    Ok(name)
}

impl Work<'_> {
    /// Lets `clients` take from the queue for a while: operations, and the seconds that they took.
    pub fn run(&self, clients: usize, seconds: u64) -> Result<(f64, f64)> {
        let before = self.done()?;
        let report = self.load(clients, seconds)?;
        let done = self.done()? - before;
        if self.left()? < self.batch.size() as f64 * clients as f64 {
            return Err(format!(
                "{} took all of {} rows, so its speed is not known: this machine is faster than was thought possible",
                self.system.name(),
                self.filled
            ));
        }
        Ok((done, report.seconds))
    }

    fn load(&self, clients: usize, seconds: u64) -> Result<Report> {
        let ours = vec![("pipelines", format!("{{{}}}", self.pipeline))];
        let (role, script, variables) = match (self.system, self.batch) {
            (System::Ours, Batch::One) => ("postgres", include_str!("sql/claim_one.sql"), ours),
            (System::Ours, Batch::Ten) => ("postgres", include_str!("sql/claim_ten.sql"), ours),
            (System::OursGranted, Batch::One) => ("bench_worker", include_str!("sql/claim_one.sql"), ours),
            (System::OursGranted, Batch::Ten) => ("bench_worker", include_str!("sql/claim_ten.sql"), ours),
            (System::PgmqArchive, Batch::One) => {
                ("postgres", include_str!("sql/pgmq_archive_one.sql"), vec![])
            }
            (System::PgmqArchive, Batch::Ten) => {
                ("postgres", include_str!("sql/pgmq_archive_ten.sql"), vec![])
            }
            (System::PgmqDelete, Batch::One) => ("postgres", include_str!("sql/pgmq_delete_one.sql"), vec![]),
            (System::PgmqDelete, Batch::Ten) => ("postgres", include_str!("sql/pgmq_delete_ten.sql"), vec![]),
            (System::Graphile, batch) => (
                "postgres",
                self.peers.graphile_script(batch),
                vec![("worker", "bench".to_owned()), ("tasks", "{1}".to_owned())],
            ),
        };
        let (server, database) = (self.server, self.database.as_str());
        Load { server, database, role, script, variables: &variables, clients, seconds }.run()
    }

    fn left(&self) -> Result<f64> {
        Ok(self.filled - self.done()?)
    }

    /// Operations that were completed since the queue was filled.
    fn done(&self) -> Result<f64> {
        let left = |table: &str| -> Result<f64> {
            let rows = count::one(self.server, &self.database, &format!("SELECT count(*) FROM {table}"))?;
            Ok(self.filled - rows)
        };
        match self.system {
            System::Ours | System::OursGranted => {
                let query = format!(
                    "SELECT count(*) FROM backfill.run_data JOIN backfill.pipeline_data p USING (pipeline_id) WHERE p.name = '{}' AND outcome = 'done'",
                    self.pipeline
                );
                count::one(self.server, &self.database, &query)
            }
            System::PgmqArchive => left("pgmq.q_bench_archive"),
            System::PgmqDelete => left("pgmq.q_bench_delete"),
            System::Graphile => left("graphile_worker._private_jobs"),
        }
    }

    /// Reads from the ledger that no promise was broken; says what it looked at. `None` for the peers.
    pub fn check(&self) -> Result<Option<String>> {
        if !self.system.is_ours() {
            return Ok(None);
        }
        check(self.server, &self.database, &self.pipeline, self.slots).map(Some)
    }
}

/// Reads from the ledger that a pipeline's cap of `slots` held, that no window was leased twice at once and no
/// token given twice.
pub fn check(server: &Server, database: &str, pipeline: &str, slots: usize) -> Result<String> {
    let query = format!("\\set pipeline {pipeline}\n{}", include_str!("sql/check.sql"));
    let [leases, at_once, twice, tokens, out_of_order] = count::row(server, database, &query)?;
    if at_once > slots as f64 || twice > 0.0 || tokens < leases {
        return Err(format!(
            "{pipeline} broke a promise: {at_once} leases at once with a cap of {slots}, {twice} windows leased \
             twice, {tokens} tokens for {leases} leases"
        ));
    }
    Ok(format!(
        "{} leases, at most {at_once} at once (cap {slots}), no window twice, {} tokens, {out_of_order} places left out",
        super::table::whole(leases),
        super::table::whole(tokens)
    ))
}
