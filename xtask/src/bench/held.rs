//! The same while another session holds back what vacuum may remove, as a long transaction does.
//!
//! Each system has two queues of one size, in two databases that are copies of one another; the transaction is open in
//! one of them. Horizons are per database, so the other is what the first would be without it, at the same age.

use super::system::{Batch, Peers, System, Work};
use super::table::{Table, whole};
use super::verdict;
use crate::Result;
use pgrx_tests::server::Server;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

const CLIENTS: usize = 16;
/// Each queue is taken from this often, in turn with the other: a machine is not equally fast for a minute.
const SLICES: u32 = 6;
/// The last slices, in which most is held back.
const LAST: usize = 2;

pub fn measure(server: &Server, peers: &Peers, held: Duration) -> Result<()> {
    let mut systems = vec![System::Ours];
    systems.extend(peers.systems().into_iter().filter(|system| *system != System::PgmqDelete));
    let slice = (held / SLICES).as_secs().max(1);
    println!(
        "\n== {CLIENTS} clients, one a call, while a transaction holds back vacuum: operations a second\n"
    );
    let last = LAST as u64 * slice;
    let headings = ["", "free", "held", "held / free", &format!("last {last} s")].map(str::to_owned);
    let table = Table::start(19, &headings);
    let mut checks = vec![];
    let mut ours = 0.0;
    for system in systems {
        let pair = Pair::fill(system, server, peers, slice)?;
        let speeds = pair.speeds(server, slice)?;
        let mean = |speeds: &[[f64; 2]]| {
            [0, 1].map(|which| speeds.iter().map(|turn| turn[which]).sum::<f64>() / speeds.len() as f64)
        };
        let ratio = |[free, held]: [f64; 2]| held / free;
        let all = mean(&speeds);
        let end = mean(&speeds[speeds.len() - LAST..]);
        let mut row = vec![system.name().to_owned()];
        row.extend(all.map(whole));
        row.extend([all, end].map(|speeds| format!("{:.2} x", ratio(speeds))));
        table.row(&row);
        if system == System::Ours {
            ours = ratio(all);
        }
        for work in [&pair.free, &pair.held] {
            checks.extend(work.check()?);
        }
    }
    println!();
    checks.iter().for_each(|check| println!("  {check}"));
    verdict("held / free", ours, ">=", 0.9);
    Ok(())
}

/// Two queues that differ in nothing but the transaction.
struct Pair<'a> {
    free: Work<'a>,
    held: Work<'a>,
    database: String,
}

impl<'a> Pair<'a> {
    fn fill(system: System, server: &'a Server, peers: &'a Peers, slice: u64) -> Result<Self> {
        let rows = (Batch::One.ceiling() * slice as f64 * f64::from(SLICES)) as usize;
        let copy = |suffix: &str| {
            let name = format!("{}_{suffix}_{}", system.home(), system.short());
            server.psql("postgres", &format!("CREATE DATABASE {name} TEMPLATE {}", system.home()))?;
            Ok::<_, String>(name)
        };
        let [free, held] = [copy("free")?, copy("held")?];
        let fill = |database: &str| system.fill(server, peers, database, Batch::One, rows);
        Ok(Self { free: fill(&free)?, held: fill(&held)?, database: held })
    }

    /// What was done in a second, of each turn without and with the transaction. Who goes first changes by turns.
    fn speeds(&self, server: &Server, slice: u64) -> Result<Vec<[f64; 2]>> {
        let holder = Holder::open(server, &self.database)?;
        let speed = |work: &Work| work.run(CLIENTS, slice).map(|(done, took)| done / took);
        let turn = |turn: u32| match turn % 2 {
            0 => Ok([speed(&self.free)?, speed(&self.held)?]),
            _ => speed(&self.held).and_then(|held| Ok([speed(&self.free)?, held])),
        };
        let speeds = (0..SLICES).map(turn).collect::<Result<_>>()?;
        holder.close()?;
        Ok(speeds)
    }
}

/// A session with an open transaction and a snapshot.
struct Holder {
    session: Child,
}

impl Holder {
    fn open(server: &Server, database: &str) -> Result<Self> {
        let mut psql = server.command("psql");
        psql.args(["-X", "-q", "-A", "-t", "-d", database]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = psql.spawn().map_err(|error| format!("cannot run psql: {error}"))?;
        let cannot = |error| format!("cannot speak to psql: {error}");
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT 'snapshot';\n";
        session.stdin.as_mut().expect("it is piped").write_all(begin.as_bytes()).map_err(cannot)?;
        let mut line = String::new();
        BufReader::new(session.stdout.take().expect("it is piped")).read_line(&mut line).map_err(cannot)?;
        if line.trim() != "snapshot" {
            return Err("the session that was to hold a snapshot did not get one".into());
        }
        Ok(Self { session })
    }

    /// Ends the transaction; its session must have lived until now.
    fn close(mut self) -> Result<()> {
        drop(self.session.stdin.take());
        let status = self.session.wait().map_err(|error| format!("cannot wait for psql: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the session with the snapshot failed ({status})"))
        }
    }
}
