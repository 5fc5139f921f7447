//! The same while another session holds back what vacuum may remove, as a long transaction does.

use super::system::{Batch, Peers, System, Work};
use super::table::{Table, whole};
use super::{OURS, THEIRS, verdict};
use crate::Result;
use pgrx_tests::server::Server;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

const CLIENTS: usize = 16;
/// Each system runs this often while the transaction is open, in turn, and once before it.
const SLICES: u32 = 3;

pub fn measure(server: &Server, peers: &Peers, held: Duration) -> Result<()> {
    let mut systems = vec![System::Ours];
    systems.extend(peers.systems().into_iter().filter(|system| *system != System::PgmqDelete));
    let slice = (held / SLICES).as_secs().max(1);
    let rows = (Batch::One.ceiling() * slice as f64 * f64::from(SLICES + 1)) as usize;
    println!(
        "\n== {CLIENTS} clients, one a call, while a transaction holds back vacuum: operations a second\n"
    );
    let fill = |system: &System| system.fill(server, peers, Batch::One, rows);
    let works: Vec<Work> = systems.iter().map(fill).collect::<Result<_>>()?;
    let mut speeds = vec![vec![]; works.len()];
    let mut holders = vec![];
    for turn in 0..=SLICES {
        if turn == 1 {
            // Horizons are per database.
            holders = vec![Holder::open(server, OURS)?, Holder::open(server, THEIRS)?];
        }
        for (work, speeds) in works.iter().zip(&mut speeds) {
            let (done, took) = work.run(CLIENTS, slice)?;
            speeds.push(done / took);
        }
    }
    for holder in holders {
        holder.close()?;
    }
    let mut headings = vec![String::new(), format!("{slice} s without")];
    headings.extend((1..=SLICES).map(|turn| format!("held, {} s", u64::from(turn) * slice)));
    headings.extend(["held / without".to_owned(), "at the end".to_owned()]);
    let table = Table::start(19, &headings);
    let mut ours = 0.0;
    for (work, speeds) in works.iter().zip(&speeds) {
        let (without, with) = (speeds[0], &speeds[1..]);
        let ratio = with.iter().sum::<f64>() / with.len() as f64 / without;
        let mut row = vec![work.system.name().to_owned()];
        row.extend(speeds.iter().map(|speed| whole(*speed)));
        row.push(format!("{ratio:.2} x"));
        row.push(format!("{:.2} x", with[with.len() - 1] / without));
        table.row(&row);
        if work.system == System::Ours {
            ours = ratio;
        }
    }
    println!();
    for work in &works {
        work.check()?.iter().for_each(|check| println!("  {check}"));
    }
    verdict("held / without", ours, ">=", 0.9);
    Ok(())
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
