//! Replacing slices, by several sessions at once.

use pgrx_tests::{Cluster, Database, Failure, Session, assert_sqlstate};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const ISOLATION: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// A shop with a daily pipeline whose days hold 24 rows each.
fn shop() -> Database {
    let database = Cluster::shared().database();
    database.connect().run(
        "CREATE TABLE source (at timestamptz, amount int);
         INSERT INTO source SELECT '2024-03-01Z'::timestamptz + n * interval '1 hour', n % 24 FROM generate_series(0, 30 * 24 - 1) n;
         CREATE TABLE sales (at timestamptz, amount int, token bigint DEFAULT 0);
         CREATE INDEX ON sales (at);
         SELECT pool_define('backfill', 16);
         SELECT pipeline_define('sales', '1 day', '2024-03-01', target => 'sales', slice_column => 'at',
             query => 'SELECT at, amount FROM source WHERE at >= $1 AND at < $2')",
    );
    database
}

/// Tokens for days of March, each under a plan of its own.
fn tokens(session: &mut Session, days: &[u32]) -> Vec<i64> {
    days.iter()
        .map(|day| {
            let key = format!("2024-03-{day:02}");
            let plan: i64 = session.one(
                "SELECT plan_id FROM backfill_plan('sales', NULL, NULL, 'test', keys => ARRAY[$1])",
                &[&key],
            );
            session.run(&format!("SELECT backfill_approve({plan}, 1)"));
            claim(session, &key)
        })
        .collect()
}

fn claim(session: &mut Session, key: &str) -> i64 {
    session.one(
        "SELECT token FROM backfill_claim('test', pipelines => ARRAY['sales'], window_key => $1)",
        &[&key],
    )
}

/// The call with rows that tell which token wrote them.
fn marked(token: i64) -> String {
    format!(
        "SELECT replace_partition({token}, query => 'SELECT at, amount, {token} FROM source WHERE at >= $1 AND at < $2')"
    )
}

/// One line a token that has rows in the day.
fn writers(session: &mut Session, day: u32) -> Vec<String> {
    session.lines(&format!(
        "SELECT token, count(*) FROM sales WHERE at >= '2024-03-{day:02}Z' AND at < '2024-03-{day:02}Z'::timestamptz + interval '1 day' GROUP BY token"
    ))
}

#[test]
fn one_token_used_twice_at_once_writes_once() {
    let database = shop();
    let (mut first, mut second) = (database.connect(), database.connect());
    for (day, isolation) in (1..).zip(ISOLATION) {
        let token = tokens(&mut first, &[day])[0];
        for session in [&mut first, &mut second] {
            session.run(&format!("BEGIN ISOLATION LEVEL {isolation}"));
            // The snapshot is older than what the other one will write.
            session.run("SELECT count(*) FROM sales");
        }
        first.run(&marked(token));
        let pid = second.pid();
        let failure = thread::scope(|scope| {
            let waiting = scope.spawn(|| second.failure(&marked(token)));
            database.wait_for_lock(pid);
            first.run("COMMIT");
            waiting.join().unwrap()
        });
        second.run("ROLLBACK");
        assert_stale(isolation, &failure);
        assert_eq!(writers(&mut first, day), [format!("{token}|24")], "{isolation}");
    }
}

#[test]
fn an_old_token_loses_against_the_one_that_took_over() {
    let database = shop();
    let (mut old, mut new) = (database.connect(), database.connect());
    for (day, isolation) in (1..).zip(ISOLATION) {
        let stale = tokens(&mut old, &[day])[0];
        old.run(&format!("BEGIN ISOLATION LEVEL {isolation}"));
        old.run("SELECT count(*) FROM sales");
        new.run(&format!(
            "UPDATE backfill.run_data SET expires_at = clock_timestamp() - interval '1 second' WHERE token = {stale}"
        ));
        let token = claim(&mut new, &format!("2024-03-{day:02}"));
        assert!(token > stale);
        new.run(&marked(token));
        assert_stale(isolation, &old.failure(&marked(stale)));
        old.run("ROLLBACK");
        assert_eq!(writers(&mut new, day), [format!("{token}|24")], "{isolation}");
        // Nor later, in a new transaction.
        assert_sqlstate!(old.try_run(&marked(stale)), "BF001");
        assert_eq!(writers(&mut new, day), [format!("{token}|24")], "{isolation}");
    }
}

#[test]
fn a_window_whose_writer_is_still_open_is_not_handed_out() {
    let database = shop();
    let (mut writer, mut other) = (database.connect(), database.connect());
    let token = tokens(&mut writer, &[1])[0];
    writer.run("BEGIN");
    writer.run(&marked(token));
    other.run("SET statement_timeout = '10s'");
    let given: i64 = other.one(
        "SELECT count(*) FROM backfill_claim('other', pipelines => ARRAY['sales'], window_key => '2024-03-01')",
        &[],
    );
    assert_eq!(given, 0);
    writer.run("COMMIT");
    assert_eq!(writers(&mut other, 1), [format!("{token}|24")]);
}

fn assert_stale(isolation: &str, failure: &Failure) {
    let expected: &[&str] = if isolation == ISOLATION[0] { &["BF001"] } else { &["BF001", "40001"] };
    assert!(expected.contains(&failure.sqlstate.as_str()), "{isolation}: {failure}");
}

#[test]
fn readers_see_whole_slices_only() {
    let database = shop();
    let tokens = tokens(&mut database.connect(), &[1, 2, 3, 4]);
    for token in &tokens {
        database.connect().run(&format!("SELECT replace_partition({token}, finish => false)"));
    }
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    database.many(12, |i, session| {
        if let Some(token) = tokens.get(i) {
            for round in 1..=60 {
                // All rows of a slice carry the round that wrote it.
                session.run(&format!(
                    "SELECT replace_partition({token}, finish => false,
                         query => 'SELECT at, {round}, {round} FROM source WHERE at >= $1 AND at < $2')"
                ));
            }
            done.store(true, Ordering::Relaxed);
            return;
        }
        let mut seen = 0;
        while !done.load(Ordering::Relaxed) || seen == 0 {
            let slices = session.lines(
                "SELECT count(*), count(DISTINCT amount) FROM sales
                 WHERE at >= '2024-03-01Z' AND at < '2024-03-05Z' GROUP BY at::date",
            );
            assert_eq!(slices.len(), 4, "a slice was seen empty: {slices:?}");
            for slice in slices {
                // Before the first round all amounts differ.
                assert!(slice == "24|1" || slice == "24|24", "a torn slice: {slice}");
            }
            seen += 1;
        }
        reads.fetch_add(seen, Ordering::Relaxed);
    });
    assert!(reads.into_inner() > 100, "the readers hardly read");
}

#[test]
fn readers_of_both_kinds_see_one_sum_whatever_the_strategy() {
    let database = shop();
    let tokens = tokens(&mut database.connect(), &[1, 2, 3, 4]);
    // Two rows of a slice move against each other from round to round, so that its sum stays.
    let fill = |round: usize, token: i64, strategy: &str| {
        format!(
            "SELECT strategy FROM replace_partition({token}, finish => false, strategy => '{strategy}', query =>
                 'SELECT at, amount + CASE amount WHEN 0 THEN {round} WHEN 1 THEN -{round} ELSE 0 END, 0
                  FROM source WHERE at >= $1 AND at < $2')"
        )
    };
    for token in &tokens {
        database.connect().run(&fill(0, *token, "rows"));
    }
    let (writing, reads) = (AtomicU64::new(tokens.len() as u64), AtomicU64::new(0));
    database.many(12, |i, session| {
        if let Some(token) = tokens.get(i) {
            for round in 1..=60 {
                let strategy = ["rows", "diff", "auto", "diff"][(i + round) % 4];
                let done: String = session.one(&fill(round, *token, strategy), &[]);
                assert_eq!(done, if strategy == "rows" { "rows" } else { "diff" });
            }
            writing.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let look = "SELECT at::date, count(*), sum(amount) FROM sales
                    WHERE at >= '2024-03-01Z' AND at < '2024-03-05Z' GROUP BY 1 ORDER BY 1";
        let mut seen = 0;
        while writing.load(Ordering::Relaxed) > 0 || seen == 0 {
            session.run(&format!("BEGIN ISOLATION LEVEL {}", ISOLATION[i % 2]));
            for _ in 0..3 {
                let slices = session.lines(look);
                let whole = slices.iter().filter(|slice| slice.ends_with("|24|276")).count();
                assert_eq!(whole, 4, "a slice was seen torn or empty: {slices:?}");
                seen += 1;
            }
            session.run("COMMIT");
        }
        reads.fetch_add(seen, Ordering::Relaxed);
    });
    assert!(reads.into_inner() > 100, "the readers hardly read");
}

#[test]
fn rows_that_stay_are_not_written() {
    let database = shop();
    let mut session = database.connect();
    let token = tokens(&mut session, &[1])[0];
    session.run(&format!("SELECT replace_partition({token}, finish => false)"));
    let rows = "SELECT at, ctid, xmin FROM sales ORDER BY at";
    let before = session.lines(rows);
    // Counts may go on from the transaction before.
    let counts = |session: &mut Session| -> [i64; 3] {
        let sql = "SELECT ARRAY[n_tup_ins, n_tup_upd, n_tup_del] FROM pg_stat_xact_user_tables WHERE relname = 'sales'";
        session.one::<Vec<i64>>(sql, &[]).try_into().unwrap()
    };
    for changed in [0, 1, 5] {
        session.run(&format!("BEGIN; UPDATE source SET amount = amount + 100 WHERE amount < {changed}"));
        let start = counts(&mut session);
        session.run(&format!("SELECT replace_partition({token}, strategy => 'diff', finish => false)"));
        let end = counts(&mut session);
        // What is deleted is what vacuum has to take away.
        assert_eq!([0, 1, 2].map(|i| end[i] - start[i]), [changed, 0, changed]);
        session.run("ROLLBACK");
        assert_eq!(session.lines(rows), before);
    }
    session.run("ALTER TABLE sales ADD PRIMARY KEY (at)");
    session.run(&format!(
        "UPDATE source SET amount = amount + 100 WHERE amount = 3;
         SELECT replace_partition({token}, strategy => 'diff', finish => false,
             query => 'SELECT at, amount, 0 FROM source WHERE at >= $1 AND at < $2')"
    ));
    let after = session.lines(rows);
    assert_eq!(before.iter().filter(|row| after.contains(row)).count(), 23);
}

#[test]
fn a_row_that_was_to_stay_and_was_written_by_a_stranger_is_noticed() {
    let database = shop();
    let (mut worker, mut stranger) = (database.connect(), database.connect());
    for (day, isolation) in (1..).zip(ISOLATION) {
        let token = tokens(&mut worker, &[day])[0];
        let call = |third: i32| {
            format!(
                "SELECT replace_partition({token}, strategy => 'diff', finish => false, query =>
                     'SELECT at, CASE amount WHEN 3 THEN {third} ELSE amount END, 0 FROM source WHERE at >= $1 AND at < $2')"
            )
        };
        worker.run(&call(3));
        worker.run(&format!("BEGIN ISOLATION LEVEL {isolation}"));
        worker.run("SELECT count(*) FROM sales");
        // The worker has compared when it waits for the row that is to go.
        let in_day =
            format!("at >= '2024-03-{day:02}Z' AND at < '2024-03-{day:02}Z'::timestamptz + interval '1 day'");
        stranger.run(&format!(
            "BEGIN; SELECT FROM sales WHERE {in_day} AND amount = 3 FOR UPDATE;
             UPDATE sales SET amount = -5 WHERE {in_day} AND amount = 5"
        ));
        let pid = worker.pid();
        let failure = thread::scope(|scope| {
            let waiting = scope.spawn(|| worker.failure(&call(-3)));
            database.wait_for_lock(pid);
            stranger.run("COMMIT");
            waiting.join().unwrap()
        });
        worker.run("ROLLBACK");
        assert_eq!(failure.sqlstate, "40001", "{isolation}: {failure}");
        assert!(failure.detail.contains("22 of 23 others stayed"), "{isolation}: {failure}");
        // Repeated, it sees what the stranger did.
        worker.run(&call(-3));
        assert_eq!(
            worker.lines(&format!("SELECT count(*), sum(amount) FROM sales WHERE {in_day}")),
            ["24|270"]
        );
    }
}

#[test]
fn different_windows_of_one_empty_table_are_written_at_once() {
    let database = shop();
    let days: Vec<u32> = (1..=8).collect();
    let tokens = tokens(&mut database.connect(), &days);
    for isolation in ISOLATION {
        database.many(8, |i, session| {
            session.run(&format!("SET default_transaction_isolation = '{isolation}'"));
            // SERIALIZABLE may see a conflict where pages are shared, and says so.
            while let Err(failure) = session.try_run(&format!(
                "SELECT replace_partition({}, finish => {})",
                tokens[i],
                isolation == ISOLATION[2]
            )) {
                assert_eq!((isolation, failure.sqlstate.as_str()), (ISOLATION[2], "40001"), "{failure}");
            }
        });
    }
    let mut session = database.connect();
    assert_eq!(
        session.lines("SELECT count(*), count(DISTINCT at::date) FROM sales"),
        [format!("{}|8", 8 * 24)]
    );
    assert_eq!(session.one::<i64>("SELECT count(*) FROM backfill.slices WHERE rows = 24", &[]), 8);
}

#[test]
fn an_unfenced_writer_in_the_window_is_noticed() {
    let database = shop();
    let (mut worker, mut stranger) = (database.connect(), database.connect());
    for (day, isolation) in (1..).zip(&ISOLATION[1..]) {
        let token = tokens(&mut worker, &[day])[0];
        worker.run(&format!("BEGIN ISOLATION LEVEL {isolation}"));
        worker.run("SELECT count(*) FROM sales");
        stranger.run(&format!("INSERT INTO sales VALUES ('2024-03-{day:02} 12:00Z', -1)"));
        let failure = assert_sqlstate!(worker.try_run(&marked(token)), "40001");
        assert!(failure.detail.contains("holds 25 rows"), "{failure}");
        worker.run("ROLLBACK");
        assert_eq!(writers(&mut stranger, day), ["0|1"]);
        // Repeated, it takes the stranger's row with the old slice.
        worker.run(&marked(token));
        assert_eq!(writers(&mut stranger, day), [format!("{token}|24")]);
    }
}

#[test]
fn errors_of_the_table_reach_the_client_with_their_names() {
    let database = shop();
    let mut session = database.connect();
    let token = tokens(&mut session, &[1])[0];
    session
        .run("ALTER TABLE sales ADD CONSTRAINT small CHECK (amount < 20), ADD CONSTRAINT once UNIQUE (at)");
    let failure = assert_sqlstate!(session.try_run(&format!("SELECT replace_partition({token})")), "23514");
    assert_eq!((failure.constraint.as_str(), failure.table.as_str()), ("small", "sales"));
    session.run("INSERT INTO source SELECT * FROM source; ALTER TABLE sales DROP CONSTRAINT small");
    let failure = assert_sqlstate!(session.try_run(&format!("SELECT replace_partition({token})")), "23505");
    assert_eq!(failure.constraint, "once");
    assert!(failure.detail.contains("already exists"), "{failure}");
}

#[test]
fn backfill_work_claims_nothing_that_it_cannot_run() {
    let database = shop();
    let mut session = database.connect();
    session.run("SELECT pipeline_alter('sales', '{\"query\": null, \"catchup\": 2}')");
    let work = "CALL backfill_work('here', pipelines => ARRAY['sales'])";
    let failure = assert_sqlstate!(session.try_run(work), "55000");
    assert!(failure.message.contains("sales"), "{failure}");
    assert_eq!(session.lines("SELECT count(*) FROM backfill.runs"), ["0"]);
}

#[test]
fn backfill_work_says_where_it_can_be_called() {
    let database = shop();
    let mut session = database.connect();
    session.run("SELECT pipeline_alter('sales', '{\"catchup\": 2}')");
    let work = "CALL backfill_work('here', max_windows => 1)";
    for block in [
        format!("BEGIN; {work}"),
        format!("DO $$ BEGIN {work}; EXCEPTION WHEN division_by_zero THEN NULL; END $$"),
        format!("CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {work}; END $$; SELECT f()"),
    ] {
        let failure = assert_sqlstate!(session.try_run(&block), "25001");
        assert!(failure.detail.contains("Nothing was claimed"), "{failure}");
        assert!(failure.hint.contains("by itself"), "{failure}");
        session.run("ROLLBACK");
    }
    assert_eq!(session.lines("SELECT count(*) FROM backfill.runs"), ["0"]);
    session.run(&format!("DO $$ BEGIN {work}; END $$"));
    session.run(work);
    assert_eq!(session.lines("SELECT count(*) FROM backfill.slices"), ["2"]);
}

#[test]
fn backfill_work_keeps_what_is_refused() {
    let database = shop();
    let mut session = database.connect();
    session.run(
        "SELECT pipeline_alter('sales', '{\"query\": \"SELECT at, amount FROM source WHERE at < $2\"}')",
    );
    let plan: i64 =
        session.one("SELECT plan_id FROM backfill_plan('sales', '2024-03-01', '2024-03-04', 'test')", &[]);
    session.run(&format!("SELECT backfill_approve({plan}, 3)"));
    session.run("CALL backfill_work('here')");
    assert_eq!(
        session.lines("SELECT window_key, rows, sqlstate FROM backfill.quarantine ORDER BY window_key"),
        ["2024-03-02|48|BF005", "2024-03-03|72|BF005"]
    );
    assert_eq!(session.lines("SELECT count(*) FROM sales"), ["24"]);
    let kept: String =
        session.one("SELECT relation::text FROM backfill.quarantine WHERE window_key = '2024-03-02'", &[]);
    assert_eq!(session.lines(&format!("SELECT count(*), min(at)::date FROM {kept}")), ["48|2024-03-01"]);
}

#[test]
fn a_stage_is_filled_by_copy_and_seen_by_its_token_only() {
    let database = shop();
    let worker = database.role("worker");
    let mut owner = database.connect();
    owner.run(&format!(
        "SELECT pipeline_grant('sales', '{worker}', 'work'); GRANT SELECT, INSERT, DELETE ON sales TO \"{worker}\""
    ));
    let token = tokens(&mut owner, &[1])[0];
    let mut session = database.connect_as(&worker);
    let stage: String = session.one("SELECT backfill_stage($1)::text", &[&token]);
    let mut copy = session.copy_in(&format!("COPY {stage} (at, amount) FROM STDIN")).unwrap();
    std::io::Write::write_all(&mut copy, b"2024-03-01 10:00+00\t1\n2024-03-01 11:00+00\t2\n").unwrap();
    assert_eq!(copy.finish().unwrap(), 2);
    // The role that staged is gone from the shop, the next one goes on with the token.
    let second = database.role("second");
    owner.run(&format!(
        "SELECT pipeline_grant('sales', '{second}', 'work'); GRANT SELECT, INSERT, DELETE ON sales TO \"{second}\""
    ));
    let mut other = database.connect_as(&second);
    assert_sqlstate!(other.try_run(&format!("TABLE {stage}")), "42501");
    other.run(&format!("SELECT replace_partition({token})"));
    assert_eq!(owner.lines("SELECT sum(amount), count(*) FROM sales"), ["3|2"]);
    assert_eq!(owner.lines(&format!("SELECT to_regclass('{stage}') IS NULL")), ["t"]);
}

#[test]
fn a_query_given_at_the_call_is_recorded_as_what_built_the_slice() {
    let db = Cluster::shared().database();
    let mut session = db.connect();
    session.run(
        "CREATE TABLE totals (at timestamptz, n bigint);
         SELECT pipeline_define('totals', '1 day', '2024-01-01', target => 'totals', slice_column => 'at',
                                query => 'SELECT $1, 1');
         SELECT backfill_approve(plan_id, 1)
         FROM backfill_plan('totals', '2024-01-01', '2024-01-02', 'one day');
         SELECT replace_partition(token, query => 'SELECT $1, 2')
         FROM backfill_claim('w', pipelines => ARRAY['totals'])",
    );
    let own: bool = session.one(
        "SELECT s.code_version = v.code_version FROM backfill.slices s
         JOIN backfill.versions v ON v.query = 'SELECT $1, 2'",
        &[],
    );
    assert!(own, "the slice carries the fingerprint of the query that made it");
}

/// What is committed is the slice, also if the attempt that wrote it does not end well.
#[test]
fn rows_published_by_an_attempt_that_fails_are_on_record_as_its_slice() {
    let database = shop();
    let mut session = database.connect();
    let slices = "SELECT window_key, token, rows FROM backfill.slices ORDER BY window_key";
    let first = tokens(&mut session, &[1])[0];
    session.run(&format!("SELECT replace_partition({first})"));
    let [second, cancelled] = tokens(&mut session, &[1, 2])[..] else { unreachable!() };
    let some =
        "query => 'SELECT at, amount FROM source WHERE at >= $1 AND at < $2 LIMIT 20', finish => false";
    for token in [second, cancelled] {
        session.run(&format!("SELECT replace_partition({token}, {some})"));
    }
    let written = [format!("2024-03-01|{second}|20"), format!("2024-03-02|{cancelled}|20")];
    assert_eq!(session.lines(slices), written);
    session.run(&format!("SELECT backfill_fail({second}, 'the mail did not go out', false)"));
    session.run(&format!(
        "SELECT backfill_cancel(plan_id, 'enough') FROM backfill.leases WHERE token = {cancelled}"
    ));
    assert_eq!(session.lines(slices), written);
    assert_eq!(
        session.lines("SELECT window_key, state FROM pipeline_windows('sales', '2024-03-01', '2024-03-03')"),
        ["2024-03-01|failed", "2024-03-02|outdated"]
    );
    assert_eq!(session.lines("SELECT count(*) FROM sales"), ["40"]);
    assert_eq!(
        session.lines("SELECT token, replaced_at IS NULL FROM backfill.slice_history WHERE window_key = '2024-03-01' ORDER BY token"),
        [format!("{first}|f"), format!("{second}|t")]
    );
}

#[test]
fn backfill_work_goes_on_with_other_windows_where_a_right_ended() {
    let database = shop();
    let [mut person, mut worker] = [(); 2].map(|()| database.connect());
    person.run(
        "SELECT pipeline_alter('sales', jsonb_build_object('query',
             'SELECT at, amount FROM source, pg_advisory_xact_lock_shared(1) WHERE at >= $1 AND at < $2'));
         SELECT FROM backfill_plan('sales', '2024-03-01', '2024-03-05', 'test', expect => 4);
         SELECT pg_advisory_lock(1)",
    );
    let pid = worker.pid();
    thread::scope(|scope| {
        let work = scope.spawn(|| worker.run("CALL backfill_work('here', pipelines => ARRAY['sales'])"));
        database.wait_for_lock(pid);
        person.run("SELECT window_lock('sales', '2024-03-01', '2024-03-02', 'the source is wrong'); SELECT pg_advisory_unlock(1)");
        work.join().unwrap();
    });
    let warnings = worker.notices();
    assert!(warnings.iter().any(|warning| warning.message.contains("2024-03-01")), "{warnings:?}");
    assert_eq!(
        person.lines("SELECT window_key, rows FROM backfill.slices ORDER BY 1"),
        ["2024-03-02|24", "2024-03-03|24", "2024-03-04|24"]
    );
    assert_eq!(person.lines("SELECT count(*) FROM sales"), ["72"]);
}

#[test]
fn an_audit_that_could_not_be_asked_refuses_nothing() {
    let database = shop();
    let [mut worker, mut other] = [(); 2].map(|()| database.connect());
    let token = tokens(&mut worker, &[1])[0];
    worker.run("CREATE TABLE rates (rate int); SELECT pipeline_audit('sales', 'rates', 'SELECT count(*) >= 0 FROM rates')");
    other.run("BEGIN; LOCK rates");
    worker.run("SET lock_timeout = '50ms'");
    let replace = format!("SELECT replace_partition({token})");
    assert_sqlstate!(worker.try_run(&replace), "55P03");
    other.run("ROLLBACK");
    worker.run(&replace);
}
