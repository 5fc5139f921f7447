//! What replacing the slice of one day costs, by each strategy and by hand.
//!
//! The table has a primary key and holds five days. Before each measurement the day is put back and vacuumed. No
//! checkpoint falls between, so that the log holds no whole pages: how many those are depends on the time since
//! the last one. The statements by hand have no fence, no guard, no count and no digest. Where the ledger knows the
//! new rows' digest, an unchanged slice is left alone by every strategy.

use super::table::{Table, whole};
use super::{OURS, count, load, verdict};
use crate::Result;
use pgrx_tests::server::Server;

/// How many rows in a hundred differ.
const SHARES: [u64; 4] = [0, 1, 10, 100];
const ROUNDS: usize = 3;

const BY_HAND: &str = "DELETE FROM sales WHERE at >= '2024-03-03 00:00Z' AND at < '2024-03-04 00:00Z';
    INSERT INTO sales SELECT * FROM source";
/// A day and its source, read to the last byte: less than this no comparison can do.
const READ: &str = "DO $$ BEGIN PERFORM sum(hashtext(x::text)) FROM
    (SELECT * FROM source UNION ALL SELECT * FROM sales WHERE at >= '2024-03-03 00:00Z' AND at < '2024-03-04 00:00Z') x; END $$";

/// What is measured, the first as what the others are compared with.
const WAYS: [(&str, Way); 8] = [
    ("DELETE + INSERT by hand", Way::Statements(BY_HAND)),
    ("MERGE + DELETE by hand", Way::Statements(include_str!("sql/slices_merge.sql"))),
    ("rows", Way::Strategy),
    ("diff", Way::Strategy),
    ("auto", Way::Strategy),
    ("rows", Way::Keeping),
    ("diff", Way::Keeping),
    ("reading both sides", Way::Statements(READ)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Statements(&'static str),
    /// `replace_partition` with the strategy of that name.
    Strategy,
    /// The same in a pipeline with `keep_previous`.
    Keeping,
}

/// Milliseconds, bytes of the write-ahead log, rows left for vacuum.
type Cost = [f64; 3];

pub fn measure(server: &Server, rows: u64) -> Result<()> {
    println!("\n== a slice of {} rows; medians of {ROUNDS}; load before: {}\n", whole(rows as f64), load());
    let setup = format!("\\set rows {rows}\n{}", include_str!("sql/slices.sql"));
    server.psql(OURS, &setup)?;
    let headings = ["differ", "ms", "against", "WAL kB", "against", "dead rows"];
    let table = Table::start(30, &headings);
    let mut costs = vec![];
    for share in SHARES {
        let medians = medians(server, rows, share)?;
        for ((name, way), cost) in WAYS.iter().zip(&medians) {
            let against = |figure: usize| format!("{:.2} x", cost[figure] / medians[0][figure]);
            table.row(&[
                format!("{share:>3} %  {name}{}", if *way == Way::Keeping { ", keeping" } else { "" }),
                format!("{:.0}", cost[0]),
                against(0),
                whole(cost[1] / 1024.0),
                against(1),
                whole(cost[2]),
            ]);
        }
        costs.push(medians);
    }
    println!("\n  load after: {}", load());
    let [none, few, _, all] = [0, 1, 2, 3].map(|share| &costs[share]);
    verdict("rows against DELETE + INSERT, all differ, time", all[2][0] / all[0][0], "<=", 1.15);
    verdict("the same, WAL", all[2][1] / all[0][1], "<=", 1.02);
    verdict("rows, keeping, against rows, all differ, time", all[5][0] / all[2][0], "<=", 2.0);
    verdict("diff against DELETE + INSERT, 1 % differ, WAL", few[3][1] / few[0][1], "<=", 0.05);
    verdict("diff against reading both sides, none differ, time", none[3][0] / none[7][0], "<=", 1.3);
    verdict("diff against DELETE + INSERT, none differ, WAL", none[3][1] / none[0][1], "<=", 0.01);
    Ok(())
}

/// The median cost of each way, measured in turn.
fn medians(server: &Server, rows: u64, percent: u64) -> Result<Vec<Cost>> {
    let reset =
        format!("\\set rows {rows}\n\\set percent {percent}\n{}", include_str!("sql/slices_reset.sql"));
    let mut costs = vec![vec![]; WAYS.len()];
    for _ in 0..ROUNDS {
        for ((name, way), costs) in WAYS.iter().zip(&mut costs) {
            let keep = if *way == Way::Keeping { "1 day" } else { "" };
            server.psql(OURS, &format!("\\set keep '{keep}'\n{reset}"))?;
            let statements = match way {
                Way::Statements(statements) => (*statements).to_owned(),
                Way::Strategy | Way::Keeping => format!(
                    "SELECT replace_partition((SELECT token FROM backfill.leases), strategy => '{name}', finish => false)"
                ),
            };
            costs.push(count::row::<3>(
                server,
                OURS,
                &format!("SELECT * FROM cost($statements${statements}$statements$)"),
            )?);
        }
    }
    let median = |costs: &Vec<Cost>, figure: usize| {
        let mut figures: Vec<f64> = costs.iter().map(|cost| cost[figure]).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    Ok(costs.iter().map(|costs| [0, 1, 2].map(|figure| median(costs, figure))).collect())
}
