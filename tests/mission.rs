//! The example that this project began with: a table of which one half was built by one meaning of a column, and the other
//! half by another.

use crate::support::{Calls, LEVELS};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Ten days of orders; what `revenue` holds of a day is gross in version 1, and net in version 2.
const WORLD: &str = "
    CREATE TABLE orders (at timestamptz NOT NULL, amount numeric NOT NULL);
    INSERT INTO orders SELECT '2024-01-01Z'::timestamptz + n * interval '1 hour', 10 FROM generate_series(0, 239) n;
    CREATE TABLE revenue (day timestamptz NOT NULL, total numeric NOT NULL);
";
const GROSS: &str = "SELECT $1, sum(amount) FROM orders WHERE at >= $1 AND at < $2";
const NET: &str = "SELECT $1, sum(amount * 0.8) FROM orders WHERE at >= $1 AND at < $2";

fn world(settings: &str) -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(WORLD);
    session.run(&format!(
        "SELECT pipeline_define('revenue', '1 day', '2024-01-01', 'revenue', 'day', query => '{GROSS}'{settings})"
    ));
    (database, session)
}

fn work(session: &mut Session) {
    session.run("CALL backfill_work(pipelines => ARRAY['revenue'])");
}

fn plan(session: &mut Session, arguments: &str) -> i64 {
    session.one(&format!("SELECT plan_id FROM backfill_plan('revenue', {arguments})"), &[])
}

fn redefine(session: &mut Session) {
    session.run(&format!("SELECT pipeline_alter('revenue', jsonb_build_object('query', '{NET}'))"));
}

/// How many days hold which total.
fn totals(session: &mut Session) -> Vec<String> {
    session.lines("SELECT trim_scale(total), count(*) FROM revenue GROUP BY 1 ORDER BY 1")
}

/// Whether the table is mixed, and its ranges.
fn mix(session: &mut Session) -> Vec<String> {
    session.lines(
        "SELECT mixed, r->>'since', r->>'until', (r->>'version') = pipeline_version('revenue')
         FROM backfill.version_mix, jsonb_array_elements(ranges) r",
    )
}

/// Half by version 1 and half by version 2, as it happens everywhere else.
fn half_and_half() -> (Database, Session) {
    let (database, mut session) = world("");
    plan(&mut session, "NULL, '2024-01-06', 'by the code of last year', expect => 5");
    work(&mut session);
    redefine(&mut session);
    plan(&mut session, "'2024-01-06', '2024-01-11', 'by the code of this year', expect => 5");
    work(&mut session);
    (database, session)
}

#[test]
fn a_mixture_is_seen_with_its_ranges_and_each_row_says_by_what_it_was_built() {
    let (_database, mut session) = half_and_half();
    assert_eq!(totals(&mut session), ["192|5", "240|5"]);
    assert_eq!(mix(&mut session), ["t|2024-01-01|2024-01-06|f", "t|2024-01-06|2024-01-11|t"]);
    assert_eq!(
        session.lines("SELECT slice_version('revenue', day) = pipeline_version('revenue'), min(day)::date, count(*) FROM revenue GROUP BY 1 ORDER BY 1"),
        ["f|2024-01-01|5", "t|2024-01-06|5"]
    );
    assert_eq!(
        session.lines("SELECT kind, pipeline FROM backfill.attention WHERE kind = 'mixed versions'"),
        ["mixed versions|revenue"]
    );
}

#[test]
fn one_plan_makes_it_whole_and_nobody_reads_it_half_way() {
    let (database, mut session) = half_and_half();
    let plan = plan(
        &mut session,
        "NULL, '2024-01-11', 'one meaning', mode => 'outdated', publish => 'together', expect => 5",
    );
    work(&mut session);
    assert_eq!(totals(&mut session), ["192|5", "240|5"]);
    assert_eq!(
        seen_while(&database, || session.run(&format!("SELECT backfill_publish({plan})"))),
        ["192|5 240|5", "192|10"]
    );
    assert_eq!(mix(&mut session), ["f|2024-01-01|2024-01-11|t"]);
}

/// What readers of three isolation levels read before, while and after something is done: each state once, in order.
fn seen_while(database: &Database, work: impl FnOnce()) -> Vec<String> {
    let over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let readers: Vec<_> = LEVELS
            .iter()
            .map(|level| {
                let over = &over;
                let mut reader = database.connect();
                reader.run(&format!("SET default_transaction_isolation = '{}'", level.to_lowercase()));
                let mut seen = vec![totals(&mut reader).join(" ")];
                scope.spawn(move || {
                    loop {
                        let last = over.load(Ordering::SeqCst);
                        seen.push(totals(&mut reader).join(" "));
                        seen.dedup();
                        if last {
                            return seen;
                        }
                    }
                })
            })
            .collect();
        work();
        over.store(true, Ordering::SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
    seen.into_iter().next().unwrap()
}

#[test]
fn under_refuse_the_code_changes_with_all_rows_or_not_at_all() {
    let (database, mut session) = world(", on_mixture => 'refuse'");
    plan(&mut session, "NULL, '2024-01-06', 'by the code of last year', expect => 5");
    work(&mut session);
    redefine(&mut session);
    let rest = "SELECT FROM backfill_plan('revenue', '2024-01-06', '2024-01-11', 'by the code of this year', expect => 5)";
    let failure = assert_sqlstate!(session.query(rest, &[]), "BF007");
    let hint = failure.hint.clone();
    for way in ["together", "outdated", "version_compatible"] {
        assert!(hint.contains(way), "{failure}");
    }
    assert_eq!(totals(&mut session), ["240|5"]);
    // All of it at once is the way.
    let plan =
        plan(&mut session, "NULL, '2024-01-11', 'net from now on', publish => 'together', expect => 10");
    work(&mut session);
    assert_eq!(totals(&mut session), ["240|5"]);
    let seen = seen_while(&database, || session.run(&format!("SELECT backfill_publish({plan})")));
    assert_eq!(seen, ["240|5", "192|10"]);
    assert_eq!(mix(&mut session), ["f|2024-01-01|2024-01-11|t"]);
    assert_eq!(session.count("backfill.blocked"), 0);
}
