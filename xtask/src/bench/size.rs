//! What grows with the number of windows, and what must not.

use super::system::plan;
use super::table::{Table, whole};
use super::{OURS, count, verdict};
use crate::Result;
use pgrx_tests::server::Server;

const SLOTS: usize = 8;
const MANY: usize = 1_000_000;

pub fn measure(server: &Server) -> Result<()> {
    println!("\n== plans of many windows: seconds to plan and approve\n");
    let year = planned(server, "hourly", "1 hour", 26_280)?;
    println!("  26,280 hourly windows: {year:.2} s");
    let million = planned(server, "minutely", "1 minute", MANY)?;
    println!("  {} windows: {million:.2} s", whole(MANY as f64));
    verdict("26,280 windows", year, "<=", 1.0);
    verdict("1,000,000 windows", million, "<=", 10.0);

    println!("\n== one claim call, in turn: microseconds (median)\n");
    let few = plan(server, OURS, 300, SLOTS)?;
    let more = plan(server, OURS, 30_000, SLOTS)?;
    let first = medians(server, &[&few, &more, "minutely"])?;
    let again = plan(server, OURS, 300, SLOTS)?;
    server.psql(OURS, &format!("\\set pipeline minutely\n{}", include_str!("sql/finish_all.sql")))?;
    let second = medians(server, &[&again, "minutely"])?;
    let table = Table::start(0, &["open windows", "finished runs", "median", "against 300"]);
    let mut worst: f64 = 1.0;
    for (windows, runs, [median, base]) in [
        (300, 0, [first[0], first[0]]),
        (30_000, 0, [first[1], first[0]]),
        (MANY, 0, [first[2], first[0]]),
        (300, 0, [second[0], second[0]]),
        (300, MANY, [second[1], second[0]]),
    ] {
        worst = worst.max(median / base);
        let ratio = format!("{:.2} x", median / base);
        table.row(&[whole(windows as f64), whole(runs as f64), format!("{median:.0}"), ratio]);
    }
    verdict("the largest ratio", worst, "<=", 1.2);

    println!("\n== cancelling a plan, in turn: microseconds (median)\n");
    let small = plan(server, OURS, 1_000, SLOTS)?;
    let large = plan(server, OURS, MANY, SLOTS)?;
    let query = format!("\\set small {small}\n\\set large {large}\n{}", include_str!("sql/cancel.sql"));
    let [thousand, million] = count::row(server, OURS, &query)?;
    println!("  1,000 windows: {thousand:.0}\n  {} windows: {million:.0}", whole(MANY as f64));
    verdict("1,000,000 against 1,000", million / thousand, "<=", 1.5);
    Ok(())
}

/// Defines a pipeline and plans its first windows; answers the seconds of the two calls with their commits.
fn planned(server: &Server, name: &str, cadence: &str, windows: usize) -> Result<f64> {
    let script = format!(
        "\\set name {name}\n\\set cadence '{cadence}'\n\\set windows {windows}\n\\set slots {SLOTS}\n{}",
        include_str!("sql/plan_timed.sql")
    );
    count::one(server, OURS, &script)
}

/// Medians of the claim call in microseconds, of pipelines that are claimed from in turn.
fn medians(server: &Server, pipelines: &[&str]) -> Result<Vec<f64>> {
    let names = format!("{{{}}}", pipelines.join(","));
    let output =
        server.psql(OURS, &format!("\\set pipelines {names}\n{}", include_str!("sql/claim_timed.sql")))?;
    let medians: Vec<f64> = output.lines().filter_map(count::number).collect();
    if medians.len() == pipelines.len() { Ok(medians) } else { Err(format!("no medians in {output:?}")) }
}
