//! What rebuilding a table day by day costs, by each strategy and by what people write by hand, while others read it.
//!
//! The table has a partition a day. Each way brings it from one version of its rows to the other, a transaction a day; a
//! tenth of the rows differ. A reader reads days at random meanwhile, in turn at READ COMMITTED
//! and at REPEATABLE READ: with the writer that is one for each of two cores.
//! Only ours have a fence, a guard, a count, a digest and a ledger.

use super::table::{Table, whole};
use super::{OURS, count, load, verdict};
use crate::Result;
use pgrx_tests::server::Server;
use std::thread;

/// Statements with the number of the day, the version, and the two bounds: `%1$s`, `%2$s`, `%3$L`, `%4$L`.
const WAYS: [(&str, &str); 9] = [
    (
        "DELETE + INSERT",
        "DELETE FROM facts WHERE at >= %3$L AND at < %4$L;
         INSERT INTO facts SELECT * FROM source_%2$s WHERE at >= %3$L AND at < %4$L",
    ),
    (
        "TRUNCATE + INSERT",
        "TRUNCATE facts_%1$s;
         INSERT INTO facts SELECT * FROM source_%2$s WHERE at >= %3$L AND at < %4$L",
    ),
    (
        "DETACH/ATTACH",
        "CREATE TABLE fresh (LIKE facts INCLUDING ALL, CONSTRAINT day CHECK (at >= %3$L AND at < %4$L)) WITH (autovacuum_enabled = off);
         INSERT INTO fresh SELECT * FROM source_%2$s WHERE at >= %3$L AND at < %4$L;
         ALTER TABLE facts DETACH PARTITION facts_%1$s;
         DROP TABLE facts_%1$s;
         ALTER TABLE fresh RENAME TO facts_%1$s;
         ALTER TABLE facts ATTACH PARTITION facts_%1$s FOR VALUES FROM (%3$L) TO (%4$L);
         ALTER TABLE facts_%1$s DROP CONSTRAINT day",
    ),
    // What dbt-postgres does with a batch and a unique_key: rows that vanished from the source stay.
    (
        "dbt microbatch",
        "CREATE TEMP TABLE batch ON COMMIT DROP AS SELECT * FROM source_%2$s WHERE at >= %3$L AND at < %4$L;
         MERGE INTO facts AS t USING batch AS s ON s.at = t.at AND s.id = t.id
         WHEN MATCHED THEN UPDATE SET item = s.item, price = s.price
         WHEN NOT MATCHED THEN INSERT VALUES (s.at, s.id, s.item, s.price)",
    ),
    (
        "MERGE + DELETE",
        "MERGE INTO facts t USING (SELECT * FROM source_%2$s WHERE at >= %3$L AND at < %4$L) s
         ON t.at = s.at AND t.id = s.id AND t.at >= %3$L AND t.at < %4$L
         WHEN MATCHED AND (t.item, t.price) IS DISTINCT FROM (s.item, s.price) THEN UPDATE SET item = s.item, price = s.price
         WHEN NOT MATCHED THEN INSERT VALUES (s.at, s.id, s.item, s.price);
         DELETE FROM facts t WHERE t.at >= %3$L AND t.at < %4$L
             AND NOT EXISTS (SELECT FROM source_%2$s s WHERE s.at = t.at AND s.id = t.id AND s.at >= %3$L AND s.at < %4$L)",
    ),
    ("rows", OF_OURS),
    ("diff", OF_OURS),
    ("auto", OF_OURS),
    ("swap", OF_OURS),
];

const OF_OURS: &str = "SELECT replace_partition(token, strategy => '{strategy}',
         query => 'SELECT * FROM source_%2$s WHERE at >= $1 AND at < $2')
     FROM backfill_claim('bench', pipelines => '{facts}')";

const PLAN: &str = "SELECT FROM backfill_plan('facts', NULL, timestamptz '2024-01-01 00:00Z' + {days} * interval '1 day', 'bench', expect => {days})";

/// What the reader saw: how many days, the p99 in milliseconds, and how many days of which a part was missing, or all.
struct Reading {
    reads: f64,
    p99: f64,
    wrong: f64,
}

pub fn measure(server: &Server, days: u64, rows: u64) -> Result<()> {
    println!("\n== {days} days of {} rows; load before: {}\n", whole(rows as f64), load());
    let setup = format!("\\set days {days}\n\\set rows {rows}\n{}", include_str!("sql/strategies.sql"));
    server.psql(OURS, &setup)?;
    let (_, idle) = read_during(server, days, rows, || server.psql(OURS, "SELECT pg_sleep(5)"))?;
    let headings =
        ["", "s", "against", "WAL MB", "against", "dead rows", "read p99", "against", "wrong reads"];
    let table = Table::start(18, &headings);
    table.row(&["nobody writes", "", "", "", "", "", &format!("{:.1} ms", idle.p99), "", &whole(idle.wrong)]);
    let mut first = None;
    let mut calm: f64 = 0.0;
    for (turn, (name, statements)) in WAYS.iter().enumerate() {
        let is_ours = *statements == OF_OURS;
        if is_ours {
            server.psql(OURS, &PLAN.replace("{days}", &days.to_string()))?;
        }
        let statements = statements.replace("{strategy}", name);
        let call = format!("CALL replace_all($way${statements}$way$, {days}, {}, 0, 0)", 1 - turn % 2);
        let ([seconds, wal], reading) =
            read_during(server, days, rows, || count::row::<2>(server, OURS, &call))?;
        let [dead, missing] = count::row::<2>(server, OURS, &after(1 - turn % 2))?;
        if missing > 0.0 {
            return Err(format!("{name} left {missing} rows that differ from the source"));
        }
        let (base, base_wal) = *first.get_or_insert((seconds, wal));
        if is_ours {
            // A swap may keep readers for 50 ms.
            if *name != "swap" {
                calm = calm.max(reading.p99 / idle.p99);
            }
            if reading.wrong > 0.0 {
                return Err(format!("{name}: a part of a slice was seen {} times", reading.wrong));
            }
        }
        table.row(&[
            (*name).to_owned(),
            format!("{seconds:.1}"),
            format!("{:.2} x", seconds / base),
            format!("{:.0}", wal / 1e6),
            format!("{:.2} x", wal / base_wal),
            whole(dead),
            format!("{:.1} ms", reading.p99),
            format!("{:.2} x", reading.p99 / idle.p99),
            format!("{} of {}", whole(reading.wrong), whole(reading.reads)),
        ]);
        server.psql(OURS, "VACUUM ANALYZE facts")?;
    }
    println!("\n  load after: {}", load());
    verdict("reader's p99 during ours, but for swap, against nobody writes", calm, "<=", 1.2);
    Ok(())
}

/// Rows left for vacuum, and rows that the table and the source do not have in common.
fn after(version: usize) -> String {
    format!(
        "SELECT (SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname ~ '^facts_'),
                (SELECT count(*) FROM facts f FULL JOIN source_{version} s USING (at, id, item, price)
                 WHERE f.tableoid IS NULL OR s.tableoid IS NULL)"
    )
}

/// Does something while the reader reads, which is told to stop when it is done, also if it failed.
fn read_during<T>(
    server: &Server,
    days: u64,
    rows: u64,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Reading)> {
    server.psql(OURS, "UPDATE control SET stopped = false")?;
    thread::scope(|scope| {
        let call = format!("CALL read_days({days}, {rows}, 0, 0, 0)");
        let reader = scope.spawn(move || count::row::<3>(server, OURS, &call));
        let done = work();
        server.psql(OURS, "UPDATE control SET stopped = true")?;
        let [reads, p99, wrong] = reader.join().map_err(|_| "the reader's thread failed")??;
        Ok((done?, Reading { reads, p99, wrong }))
    })
}
