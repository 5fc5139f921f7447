//! Claim and finish, at several numbers of clients, beside the peers.

use super::system::{Batch, Peers, System, Work};
use super::table::{Table, whole};
use super::{systems, verdict};
use crate::Result;
use pgrx_tests::server::Server;

const CLIENTS: [usize; 4] = [1, 4, 16, 32];
/// Each system has its turn this often in every cell, so that a slow moment of the machine meets all of them.
const ROUNDS: u64 = 2;

/// Operations a second of one system in one cell.
struct Speed {
    system: System,
    clients: usize,
    batch: Batch,
    per_second: f64,
}

pub fn measure(server: &Server, peers: &Peers, seconds: u64) -> Result<()> {
    let mut bench = Bench { server, peers, seconds, checks: vec![] };
    let systems = systems(peers);
    let mut speeds = vec![];
    for batch in [Batch::One, Batch::Ten] {
        println!("\n== claim and finish, {} a call: operations a second\n", batch.size());
        speeds.extend(bench.table(&systems, batch)?);
    }
    println!("\n== the same, 16 clients, one a call, by a role that was granted \"work\"\n");
    let both = [System::Ours, System::OursGranted];
    let cell = bench.cell(&both, 16, Batch::One, bench.rows(Batch::One, Batch::One.ceiling()))?;
    let ratio = cell[1].per_second / cell[0].per_second;
    println!("  {} a second, {ratio:.2} x of what the owner gets", whole(cell[1].per_second));
    println!("\n== read from the ledger after each run\n");
    bench.checks.iter().for_each(|check| println!("  {check}"));
    println!("\n== goals, at 16 clients\n");
    for (batch, peer, goal) in [
        (Batch::One, System::Graphile, 1.5),
        (Batch::One, System::PgmqArchive, 3.0),
        (Batch::Ten, System::Graphile, 1.5),
    ] {
        let speed = |system| {
            let cell = speeds.iter().find(|s| s.system == system && s.clients == 16 && s.batch == batch);
            cell.map(|speed| speed.per_second)
        };
        if let (Some(ours), Some(theirs)) = (speed(System::Ours), speed(peer)) {
            let what = format!("{} a call against {}", batch.size(), peer.name());
            verdict(&what, ours / theirs, ">=", goal);
        }
    }
    Ok(())
}

struct Bench<'a> {
    server: &'a Server,
    peers: &'a Peers,
    seconds: u64,
    /// What was read from the ledger.
    checks: Vec<String>,
}

impl Bench<'_> {
    /// All numbers of clients.
    fn table(&mut self, systems: &[System], batch: Batch) -> Result<Vec<Speed>> {
        let mut headings = vec!["clients".to_owned()];
        headings.extend(systems.iter().map(|system| system.name().to_owned()));
        headings.extend(systems[1..].iter().map(|system| format!("ours / {}", system.short())));
        let table = Table::start(0, &headings);
        let mut speeds = vec![];
        let mut per_client = batch.ceiling();
        for clients in CLIENTS {
            // Nothing scales better than its clients: enough rows, and no time lost on more of them.
            let rows = self.rows(batch, 2.0 * per_client * clients as f64);
            let cell = self.cell(systems, clients, batch, rows)?;
            let fastest = cell.iter().map(|speed| speed.per_second).fold(0.0, f64::max);
            per_client = fastest / clients as f64;
            let mut row = vec![clients.to_string()];
            row.extend(cell.iter().map(|speed| whole(speed.per_second)));
            let ratio = |speed: &Speed| format!("{:.2} x", cell[0].per_second / speed.per_second);
            row.extend(cell[1..].iter().map(ratio));
            table.row(&row);
            speeds.extend(cell);
        }
        Ok(speeds)
    }

    /// Rows that are enough at a certain speed.
    fn rows(&self, batch: Batch, per_second: f64) -> usize {
        let rows = per_second.min(batch.ceiling()) * self.seconds.max(ROUNDS) as f64;
        rows as usize + 1_000 * batch.size()
    }

    /// All systems in turn, at one number of clients.
    fn cell(&mut self, systems: &[System], clients: usize, batch: Batch, rows: usize) -> Result<Vec<Speed>> {
        let slice = (self.seconds / ROUNDS).max(1);
        let mut totals = vec![(0.0, 0.0); systems.len()];
        let fill = |system: &System| system.fill(self.server, self.peers, system.home(), batch, rows);
        let works: Vec<Work> = systems.iter().map(fill).collect::<Result<_>>()?;
        for _ in 0..ROUNDS {
            for (work, total) in works.iter().zip(&mut totals) {
                let (done, took) = work.run(clients, slice)?;
                total.0 += done;
                total.1 += took;
            }
        }
        for work in &works {
            self.checks.extend(work.check()?);
        }
        let speed = |(system, (done, took)): (&System, &(f64, f64))| Speed {
            system: *system,
            clients,
            batch,
            per_second: done / took,
        };
        Ok(systems.iter().zip(&totals).map(speed).collect())
    }
}
