//! What `fence_protect` costs writers: the same rows into a protected table, behind its fence, and into one without.
//!
//! The fenced transaction is rolled back, and the table emptied as replication would: no round finds another one's rows.

use super::table::Table;
use super::{OURS, count};
use crate::Result;
use pgrx_tests::server::Server;
use std::fs;

const ROWS: usize = 1_000_000;
/// Rows that are written one a statement.
const SINGLE: usize = 100_000;
const ROUNDS: usize = 7;

/// The ways to write, each as SQL about the table `{table}`.
const WRITES: [(&str, &str); 3] = [
    ("COPY", "COPY {table} FROM '{file}'"),
    ("INSERT ... SELECT", "INSERT INTO {table} SELECT * FROM rows"),
    (
        "one row a statement",
        "DO $$ DECLARE r rows; BEGIN
             FOR r IN SELECT * FROM rows LIMIT {single} LOOP INSERT INTO {table} VALUES (r.at, r.id, r.note); END LOOP;
         END $$",
    ),
];

const PREPARE: &str = "
    CREATE TABLE rows (at timestamptz NOT NULL, id bigint NOT NULL, note text);
    INSERT INTO rows SELECT '2024-01-01Z'::timestamptz + n * interval '80 ms', n, 'row ' || n FROM generate_series(1, {rows}) n;
    CREATE TABLE plain (LIKE rows); CREATE INDEX ON plain (at);
    CREATE TABLE guarded (LIKE rows); CREATE INDEX ON guarded (at);
    COPY rows TO '{file}'; VACUUM ANALYZE rows;
    SELECT pipeline_define('guarded', '1 day', '2024-01-01', target => 'guarded', slice_column => 'at', lease_for => '1 day');
    SELECT fence_protect('guarded');
    SELECT FROM backfill_plan('guarded', NULL, NULL, 'bench', keys => ARRAY['2024-01-01'], expect => 1);
    SELECT token FROM backfill_claim('bench', pipelines => ARRAY['guarded']);";

const RUN: &str = "
    SET session_replication_role = replica; TRUNCATE {table}; RESET session_replication_role; CHECKPOINT;
    BEGIN; {fence}
    SELECT extract(epoch FROM clock_timestamp()) AS since \\gset
    {write};
    SELECT extract(epoch FROM clock_timestamp()) - :since; ROLLBACK;";

pub fn measure(server: &Server) -> Result<()> {
    let file = server.data().join("rows.copy").display().to_string();
    let token = server.psql(OURS, &fill(PREPARE, "", &file))?;
    let token = token.lines().last().unwrap_or_default().to_owned();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split_whitespace().take(3).collect();
    println!(
        "\n== a table with an index, protected and not; medians of {ROUNDS} rounds; load before: {}\n",
        load.join(" ")
    );
    let table = Table::start(20, &["", "rows", "without", "protected", "ratio", "a row"]);
    for (name, write) in WRITES {
        let rows = if write.contains("{single}") { SINGLE } else { ROWS };
        let mut times = [vec![], vec![]];
        for _ in 0..ROUNDS {
            for (times, (table, fence)) in times
                .iter_mut()
                .zip([("plain", String::new()), ("guarded", format!("SELECT FROM fence_check({token});"))])
            {
                let script = RUN.replace("{write}", write).replace("{fence}", &fence);
                times.push(count::one(server, OURS, &fill(&script, table, &file))?);
            }
        }
        let [without, with] = times.map(median);
        table.row(&[
            name.to_owned(),
            rows.to_string(),
            format!("{without:.3} s"),
            format!("{with:.3} s"),
            format!("{:.2} x", with / without),
            format!("{:+.0} ns", (with - without) / rows as f64 * 1e9),
        ]);
    }
    Ok(())
}

fn fill(sql: &str, table: &str, file: &str) -> String {
    sql.replace("{table}", table)
        .replace("{file}", file)
        .replace("{rows}", &ROWS.to_string())
        .replace("{single}", &SINGLE.to_string())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
