//! Many workers that ask for work where there is no room.

use super::pgbench::Load;
use super::system::{Batch, check, plan};
use super::table::whole;
use super::{OURS, count, verdict};
use crate::Result;
use pgrx_tests::server::Server;
use std::thread;

const POLLERS: usize = 50;
const CAP: usize = 4;

pub fn measure(server: &Server, seconds: u64) -> Result<()> {
    println!("\n== {POLLERS} pollers on a cap of {CAP}\n");
    let full = plan(server, OURS, 1_000, CAP)?;
    let held = count::one(
        server,
        OURS,
        &format!("SELECT count(*) FROM backfill_claim('bench', {CAP}, pipelines => '{{{full}}}')"),
    )?;
    if held != CAP as f64 {
        return Err(format!("{held} leases were given where {CAP} were asked for"));
    }
    let (refused, waits) = poll(server, include_str!("sql/poll.sql"), &full, seconds)?;
    println!("  all {CAP} held: {} refusals a second; {waits}", whole(refused));
    let leases =
        count::one(server, OURS, &format!("SELECT count(*) FROM backfill.leases WHERE pipeline = '{full}'"))?;
    if leases != CAP as f64 {
        return Err(format!("{leases} leases are held where the cap is {CAP}"));
    }
    println!("  {}", check(server, OURS, &full, CAP)?);
    let windows = (Batch::One.ceiling() * seconds as f64) as usize;
    let busy = plan(server, OURS, windows, CAP)?;
    let (calls, waits) = poll(server, include_str!("sql/claim_one.sql"), &busy, seconds)?;
    println!("  each finishes what it gets: {} calls a second; {waits}", whole(calls));
    println!("  {}", check(server, OURS, &busy, CAP)?);
    verdict("refusals a second", refused, ">=", 5_000.0);
    Ok(())
}

/// Runs a script in all pollers; answers calls a second, and what the sessions were seen to wait for.
fn poll(server: &Server, script: &str, pipeline: &str, seconds: u64) -> Result<(f64, String)> {
    let watch = format!("\\set seconds {seconds}\n{}", include_str!("sql/lock_waits.sql"));
    let variables = [("pipelines", format!("{{{pipeline}}}"))];
    let (report, waits) = thread::scope(|scope| {
        let watcher = scope.spawn(|| count::row::<2>(server, OURS, &watch));
        let load = Load {
            server,
            database: OURS,
            role: "postgres",
            script,
            variables: &variables,
            clients: POLLERS,
            seconds,
        };
        let report = load.run();
        (report, watcher.join().expect("it does not panic"))
    });
    let (report, [samples, waiting]) = (report?, waits?);
    let waits = format!("{waiting} lock waits in {samples} looks at {POLLERS} sessions");
    Ok((report.transactions / report.seconds, waits))
}
