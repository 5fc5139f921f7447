//! Publishing a plan beside workers, other people, readers and crashes.

use crate::crash;
use crate::dump::{dump, restored};
use crate::plans::reverting::{KEEPING, Reverting, run};
use crate::plans::together::Together;
use crate::support::{Calls, LEVELS, NOTING, daily, daily_in, impatient, waiting};
use pgrx_tests::assert_sqlstate;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[test]
fn a_reader_sees_all_windows_of_before_or_all_of_after() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    let first = session.plan("2024-01-09", "");
    for lease in session.leases(16) {
        session.run(&format!(
            "SELECT replace_partition({}, query => 'SELECT $1, 0 FROM generate_series(1, 40)')",
            lease.token
        ));
    }
    assert_eq!(session.plan_state(first), "completed");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for level in ["READ COMMITTED", "REPEATABLE READ"] {
            let (mut reader, is_over) = (database.connect(), &is_over);
            scope.spawn(move || {
                reader.run(&format!("SET default_transaction_isolation = '{}'", level.to_lowercase()));
                let mut reads = 0;
                while !is_over.load(SeqCst) || reads < 10 {
                    reader.run("BEGIN");
                    // One statement, and two of one snapshot.
                    let seen = "SELECT count(*), count(DISTINCT at::date), count(DISTINCT token) FROM facts";
                    let once = reader.lines(seen);
                    assert_eq!(once, ["320|8|1"], "{level}");
                    if level == "REPEATABLE READ" {
                        assert_eq!(reader.lines(seen), once);
                    }
                    reader.run("COMMIT");
                    reads += 1;
                }
            });
        }
        for round in 1..6 {
            let (plan, tokens) = session.together("2024-01-09", "");
            for token in tokens {
                session.run(&format!(
                    "SELECT replace_partition({token}, query => 'SELECT $1, {round} FROM generate_series(1, 40)')"
                ));
            }
            session.publish(plan).unwrap();
            if round == 3 {
                session.run(&format!("SELECT backfill_revert({plan}, 'test')"));
            }
        }
        is_over.store(true, SeqCst);
    });
    assert_eq!(session.lines("SELECT DISTINCT token FROM facts"), ["5"]);
}

#[test]
fn a_publication_is_done_at_every_isolation_level() {
    for level in LEVELS {
        let database = daily("");
        let mut session = database.connect();
        let plan = session.staged("2024-01-04", "");
        session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        assert_eq!(session.publish(plan).unwrap(), 3, "{level}");
        session.run("COMMIT");
        session.assert_data_is_the_ledger();
    }
}

#[test]
fn two_people_who_decide_come_one_after_the_other() {
    for (first, second, outcome) in [
        ("backfill_publish(1)", "backfill_publish(1)", "55000"),
        ("backfill_publish(1)", "backfill_cancel(1, 'x')", "55000"),
        ("backfill_publish(1)", "window_lock('daily', '2024-01-02', '2024-01-03', 'x')", ""),
        ("backfill_cancel(1, 'x')", "backfill_publish(1)", "55000"),
        ("window_lock('daily', '2024-01-02', '2024-01-03', 'x')", "backfill_publish(1)", "55000"),
        ("window_skip('daily', '2024-01-02', '2024-01-03', 'x')", "backfill_publish(1)", ""),
        ("pipeline_drop('daily')", "backfill_publish(1)", "42704"),
        ("backfill_publish(1)", "pipeline_drop('daily')", ""),
        ("backfill_pause(1, 'x')", "backfill_publish(1)", "55000"),
    ] {
        let database = daily("");
        let (mut one, mut other) = (database.connect(), database.connect());
        assert_eq!(one.staged("2024-01-04", ""), 1);
        one.run("BEGIN");
        one.run(&format!("SELECT {first}"));
        let went = waiting(&database, &mut other, &format!("SELECT {second}"), || one.run("COMMIT"));
        let code = went.err().map_or_else(String::new, |failure| failure.sqlstate.clone());
        assert_eq!(code, outcome, "{first}, then {second}");
        assert!([0, 8, 12].contains(&one.count("facts")));
        if !first.contains("drop") && !second.contains("drop") {
            one.assert_data_is_the_ledger();
        }
    }
}

#[test]
fn a_claim_waits_for_no_publication() {
    let database = daily("");
    let mut operator = database.connect();
    let plan = operator.staged("2024-01-04", "");
    let mut worker = impatient(&database);
    let other = operator.draft("'2024-01-04', '2024-01-06', 'others'");
    operator.approve(other).unwrap();
    operator.run("BEGIN");
    operator.publish(plan).unwrap();
    let leases = worker.leases(9);
    assert_eq!(leases.len(), 2);
    worker.replace(leases[0].token).unwrap();
    operator.run("COMMIT");
    worker.replace(leases[1].token).unwrap();
    operator.assert_data_is_the_ledger();
}

#[test]
fn whoever_writes_there_by_hand_is_waited_for_but_not_for_long() {
    let database = daily("");
    let mut operator = database.connect();
    let first = operator.staged("2024-01-04", "");
    operator.publish(first).unwrap();
    let plan = operator.staged("2024-01-04", "");
    let mut stranger = database.connect();
    stranger.run("BEGIN; UPDATE facts SET token = token WHERE at = '2024-01-02Z'");
    operator.run("SET lock_timeout = '100ms'");
    assert_sqlstate!(operator.publish(plan), "55P03");
    stranger.run("ROLLBACK");
    // A row that is not seen when the slice is deleted is found when it is counted.
    stranger.run("BEGIN; INSERT INTO facts VALUES ('2024-01-02Z', 1)");
    operator.run("RESET lock_timeout; BEGIN");
    operator.publish(plan).unwrap();
    operator.run("COMMIT");
    stranger.run("ROLLBACK");
    operator.assert_data_is_the_ledger();
}

#[test]
fn a_crash_leaves_all_windows_staged_or_all_published() {
    let cluster = crash::cluster();
    let database = daily_in(&cluster, "");
    let mut operator = database.connect();
    let plan = operator.staged("2024-01-05", "");
    operator.run("BEGIN");
    operator.publish(plan).unwrap();
    cluster.crash();
    cluster.restart();
    let mut operator = database.connect();
    assert_eq!(operator.count("facts"), 0);
    assert_eq!(operator.plan_state(plan), "staged");
    assert_eq!(operator.publish(plan).unwrap(), 4);
    cluster.crash();
    cluster.restart();
    let mut operator = database.connect();
    assert_eq!(operator.plan_state(plan), "published");
    operator.assert_data_is_the_ledger();
}

#[test]
fn a_staged_plan_is_dumped_and_published_where_it_is_restored() {
    let database = daily("");
    let mut session = database.connect();
    let (plan, tokens) = session.together("2024-01-04", "");
    session.replace(tokens[0]).unwrap();
    session.replace(tokens[1]).unwrap();
    let restored = restored(&dump(&database, &[]));
    let mut session = restored.connect();
    assert_eq!(
        session.lines("SELECT state FROM pipeline_windows('daily', NULL, '2024-01-04')"),
        ["staged", "staged", "queued"]
    );
    let lease = session.lease();
    session.replace(lease.token).unwrap();
    assert_eq!(session.lines(&format!("SELECT rows_new FROM backfill_diff({plan})")), ["4", "4", "4", "12"]);
    assert_eq!(session.publish(plan).unwrap(), 3);
    session.assert_data_is_the_ledger();
}

#[test]
fn a_reader_of_the_stage_keeps_nobody_waiting() {
    let database = daily("");
    let mut operator = database.connect();
    let plan = operator.staged("2024-01-04", "");
    let mut reader = database.connect();
    reader.run(&format!("BEGIN; SELECT FROM backfill.plan_stage_{plan}"));
    assert_eq!(operator.publish(plan).unwrap(), 3);
    assert_eq!(operator.lines("SELECT is_needed FROM backfill.plan_stages"), ["f"]);
    assert_eq!(operator.lines("SELECT dropped, left_over FROM backfill_sweep()"), ["0|1"]);
    reader.run("COMMIT");
    assert_eq!(operator.lines("SELECT dropped, left_over FROM backfill_sweep()"), ["1|0"]);
}

#[test]
fn live_work_that_commits_beside_a_publication_is_not_taken_back() {
    let database = daily("backlog => 30, max_active => 8");
    let mut operator = database.connect();
    operator.run("SELECT pool_define('backfill', 64), pool_define('live', 8)");
    operator.active_for("daily", "20 days");
    // All but the newest windows, which run live.
    let until: String =
        operator.one("SELECT (now() AT TIME ZONE 'UTC' - interval '10 days')::date::text", &[]);
    let since: String = operator.one("SELECT ($1::text::date - 116)::text", &[&until]);
    let plan = operator.draft(&format!("'{since}', '{until}', 'all at once', publish => 'together'"));
    assert_eq!(plan.windows, 116);
    operator.approve(plan).unwrap();
    while operator.plan_state(plan.id) != "staged" {
        let leases = operator.leases(64);
        leases
            .iter()
            .filter(|lease| lease.plan_id.is_some())
            .for_each(|lease| operator.replace(lease.token).unwrap());
        // Live ones come back to whoever runs them.
        leases
            .iter()
            .filter(|lease| lease.plan_id.is_none())
            .for_each(|lease| operator.call("release", lease.token));
    }
    assert_eq!(operator.count("facts"), 0);
    let mut before = database.connect();
    let early = before.lease();
    before.run("BEGIN");
    before.replace(early.token).unwrap();
    std::thread::scope(|scope| {
        let mut live = database.connect();
        scope.spawn(move || {
            while let Some(lease) = live.claim() {
                live.replace(lease.token).unwrap();
            }
        });
        // A transaction of a live window is open when it begins, and commits after it.
        assert_eq!(operator.publish(plan.id).unwrap(), 116);
    });
    before.run("COMMIT");
    operator.assert_data_is_the_ledger();
    operator.assert_one_lease_per_window();
    assert!(operator.count("backfill.slices WHERE plan_id IS NULL") >= 8);
    assert_eq!(operator.count(&format!("backfill.slices WHERE plan_id = {}", plan.id)), 116);
}

#[test]
fn triggers_find_their_names_by_the_search_path_of_whoever_publishes_or_reverts() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    run(&mut session, "2024-01-03");
    session.run(NOTING);
    let plan = session.staged("2024-01-03", "");
    assert_eq!(session.publish(plan).unwrap(), 2);
    assert_eq!(session.revert(plan).unwrap(), 2);
    // Also where all are deleted before any is inserted.
    session.run("CREATE UNIQUE INDEX ON facts (at)");
    let plan = session.staged("2024-01-03", "");
    session.run("UPDATE facts SET at = '2024-01-02 01:00Z' WHERE at = '2024-01-01Z'");
    assert_eq!(session.publish(plan).unwrap(), 2);
    assert_eq!(session.count("noted"), 3 * 8);
}

#[test]
fn errors_of_others_keep_their_sqlstate_and_what_they_name() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    run(&mut session, "2024-01-03");
    let published = run(&mut session, "2024-01-03");
    let staged = session.staged("2024-01-03", "");
    session.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
         AS $$ BEGIN RAISE 'never' USING ERRCODE = 'AB001', TABLE = 'other', CONSTRAINT = 'of_mine'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON facts FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let of_publish = session.publish(staged).unwrap_err();
    session.cancel(staged);
    for failure in [of_publish, session.revert(published).unwrap_err()] {
        assert_eq!(failure.sqlstate, "AB001", "{failure}");
        assert_eq!((failure.table.as_str(), failure.constraint.as_str()), ("other", "of_mine"), "{failure}");
    }
    session.run(
        "DROP TRIGGER refuse ON facts; ALTER TABLE facts ADD CONSTRAINT none CHECK (token < 0) NOT VALID",
    );
    let failure = assert_sqlstate!(session.revert(published), "23514");
    assert_eq!((failure.table.as_str(), failure.constraint.as_str()), ("facts", "none"), "{failure}");
}
