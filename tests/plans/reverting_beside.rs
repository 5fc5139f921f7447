//! Reverting a plan beside workers, other people, readers and crashes.

use crate::crash;
use crate::dump::{dump, restored};
use crate::plans::reverting::{KEEPING, Reverting, run};
use crate::support::{Calls, LEVELS, daily, daily_in, impatient, replacing_with, waiting};
use pgrx_tests::{Database, Session, assert_sqlstate};

/// A plan of three windows that was run a second time, by another plan, whose number is 2.
fn rebuilt(settings: &str) -> (Database, Session, Vec<String>) {
    let database = daily(&format!("{KEEPING} {settings}"));
    let mut session = database.connect();
    run(&mut session, "2024-01-04");
    let before = session.slices();
    assert_eq!(run(&mut session, "2024-01-04"), 2);
    (database, session, before)
}

const REVERT: &str = "SELECT backfill_revert(2, 'it was wrong')";

#[test]
fn a_claim_of_a_plan_that_was_cancelled_is_in_the_way_while_it_is_open_only() {
    let (database, mut operator, before) = rebuilt("");
    let mut worker = database.connect();
    operator.run("SET lock_timeout = '100ms'");
    // Not committed, then committed, then writing.
    for committed in [false, true, true] {
        let plan = operator.plan_window("2024-01-02");
        worker.run("BEGIN");
        let lease = worker.lease();
        if committed {
            worker.run("COMMIT; BEGIN");
            worker.replace(lease.token).unwrap();
        }
        operator.cancel(plan);
        let after = operator.lines("SELECT at, token FROM facts ORDER BY 1");
        assert_sqlstate!(operator.revert(2), "40001");
        assert_eq!(operator.lines("SELECT at, token FROM facts ORDER BY 1"), after);
        worker.run("ROLLBACK");
    }
    let plan = operator.plan_window("2024-01-02");
    let lease = worker.lease();
    operator.cancel(plan);
    assert_eq!(operator.revert(2).unwrap(), 3);
    assert_sqlstate!(worker.replace(lease.token), "BF002");
    assert_eq!(operator.slices(), before);
    operator.assert_one_lease_per_window();
}

#[test]
fn a_claim_waits_for_no_revert_and_the_locks_do_not_grow_with_the_plan() {
    let (database, mut operator, _) = rebuilt("");
    let mut worker = impatient(&database);
    let plan = operator.draft("'2024-01-04', '2024-01-06', 'others'");
    operator.approve(plan).unwrap();
    operator.run("BEGIN");
    operator.revert(2).unwrap();
    let locks: i64 = operator.one(
        "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'object' AND mode = 'ExclusiveLock'",
        &[],
    );
    assert!(locks <= 2, "{locks}");
    let leases = worker.leases(9);
    assert_eq!(leases.len(), 2);
    worker.replace(leases[0].token).unwrap();
    operator.run("COMMIT");
    worker.replace(leases[1].token).unwrap();
}

#[test]
fn two_people_who_decide_come_one_after_the_other() {
    // What somebody does in a transaction, what another then tries, and how that ends.
    let approve = "SELECT backfill_approve(3, 1)";
    let drop = "SELECT pipeline_drop('daily')";
    let lock = "SELECT window_lock('daily', '2024-01-02', '2024-01-03', 'closed')";
    for (first, second, outcome) in [
        (REVERT, REVERT, "55000"),
        (REVERT, approve, "BF004"),
        (approve, REVERT, "BF009"),
        (drop, REVERT, "42704"),
        (lock, REVERT, "55000"),
        (REVERT, lock, ""),
        (REVERT, drop, ""),
    ] {
        let (database, mut one, before) = rebuilt("");
        let mut other = database.connect();
        one.draft("NULL, NULL, 'once more', keys => '{2024-01-02}'");
        let after = one.slices();
        one.run(&format!("BEGIN; {first}"));
        let result = waiting(&database, &mut other, second, || one.run("COMMIT"));
        match outcome {
            "" => result.unwrap_or_else(|failure| panic!("{first}, then {second}: {failure}")),
            code => assert_eq!(result.expect_err(second).sqlstate, code, "{first}, then {second}"),
        }
        assert_eq!(one.slices(), if first == REVERT { before } else { after }, "{first}, then {second}");
    }
}

#[test]
fn a_revert_does_not_wait_for_long_for_those_who_write_there() {
    let (database, mut operator, before) = rebuilt("");
    let mut stranger = database.connect();
    stranger.run("BEGIN; UPDATE facts SET token = token WHERE at = '2024-01-02Z'");
    operator.run("SET lock_timeout = '100ms'");
    assert_sqlstate!(operator.revert(2), "55P03");
    assert_eq!(operator.lines("SELECT state FROM backfill.plans WHERE plan_id = 2"), ["completed"]);
    stranger.run("ROLLBACK");
    operator.revert(2).unwrap();
    assert_eq!(operator.slices(), before);
}

#[test]
fn a_decision_is_committed_before_a_revert() {
    let (_database, mut session, _) = rebuilt("");
    session.run("BEGIN; SELECT window_lock('daily', '2024-01-08', '2024-01-09', 'closed')");
    assert_sqlstate!(session.revert(2), "55000");
    session.run("ROLLBACK");
    session.revert(2).unwrap();
}

#[test]
fn a_reader_sees_all_of_the_old_or_all_of_the_new_at_every_level() {
    for level in LEVELS {
        let (database, mut operator, before) = rebuilt("");
        let mut reader = database.connect();
        reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        let after = reader.slices();
        operator.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        operator.revert(2).unwrap();
        assert_eq!(database.connect().slices(), after, "{level}");
        operator.run("COMMIT");
        assert_eq!(reader.slices(), after, "{level}");
        reader.run("COMMIT");
        assert_eq!(reader.slices(), before, "{level}");
    }
}

#[test]
fn a_crash_before_the_commit_leaves_everything_as_it_was() {
    let cluster = crash::cluster();
    let database = daily_in(&cluster, KEEPING);
    let mut session = database.connect();
    run(&mut session, "2024-01-04");
    let before = session.slices();
    let plan = run(&mut session, "2024-01-05");
    let after = session.slices();
    for kill in [true, false] {
        session.run("BEGIN");
        session.revert(plan).unwrap();
        if kill {
            cluster.kill_backend(session.pid());
        } else {
            cluster.crash();
            cluster.restart();
        }
        session = database.connect();
        assert_eq!(session.slices(), after);
        session.assert_data_is_the_ledger();
        let state = format!("SELECT state FROM backfill.plans WHERE plan_id = {plan}");
        assert_eq!(session.lines(&state), ["completed"]);
    }
    assert_eq!(session.revert(plan).unwrap(), 4);
    assert_eq!(session.slices(), before);
    cluster.restart();
    assert_eq!(database.connect().slices(), before);
}

#[test]
fn a_plan_is_reverted_where_its_database_was_restored() {
    let (database, mut session, before) = rebuilt("");
    let kept = "SELECT token, window_key, plan_id, previous_token, rows, bytes, kept_until FROM backfill.kept_slices ORDER BY 1";
    let new = restored(&dump(&database, &[]));
    let mut restored = new.connect();
    assert_eq!(restored.lines(kept), session.lines(kept));
    assert_eq!(restored.revert(2).unwrap(), 3);
    assert_eq!(restored.slices(), before);
}

#[test]
fn whoever_reverts_needs_the_level_and_the_rights_on_the_target() {
    let (database, mut admin, before) = rebuilt("");
    let role = database.role("operator");
    let mut operator = database.connect_as(&role);
    assert_sqlstate!(operator.revert(2), "42501");
    admin.run(&format!("SELECT pipeline_grant('daily', '{role}', 'work')"));
    assert_sqlstate!(operator.revert(2), "42501");
    admin.run(&format!("SELECT pipeline_grant('daily', '{role}', 'operate')"));
    let failure = assert_sqlstate!(operator.revert(2), "42501");
    assert!(failure.message.contains("facts"), "{failure}");
    admin.run(&format!("GRANT SELECT, INSERT, DELETE ON facts TO {role}"));
    assert_sqlstate!(operator.try_run("SELECT FROM backfill.kept_row_data"), "42501");
    assert_eq!(operator.lines("SELECT count(*) FROM backfill.kept_slices"), ["6"]);
    assert_eq!(operator.revert(2).unwrap(), 3);
    assert_eq!(admin.slices(), before);
}

#[test]
fn protected_targets_are_reverted_behind_the_fence() {
    let (_database, mut session, before) = rebuilt("");
    session.run("SELECT fence_protect('facts')");
    assert_eq!(session.revert(2).unwrap(), 3);
    assert_eq!(session.slices(), before);
    assert_sqlstate!(session.try_run("BEGIN; DELETE FROM facts"), "BF011");
}

#[test]
fn triggers_that_swallow_rows_leave_the_new_slice() {
    let (_database, mut session, before) = rebuilt("");
    let after = session.slices();
    session.run(
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
         CREATE TRIGGER swallow BEFORE INSERT ON facts FOR EACH ROW WHEN (NEW.at >= '2024-01-03Z') EXECUTE FUNCTION swallow()",
    );
    assert_sqlstate!(session.revert(2), "40001");
    assert_eq!(session.slices(), after);
    session.run("DROP TRIGGER swallow ON facts");
    session.revert(2).unwrap();
    assert_eq!(session.slices(), before);
}

#[test]
fn what_an_attempt_published_that_a_cancel_ended_is_put_back() {
    let (database, mut operator, before) = rebuilt("");
    let mut worker = database.connect();
    let plan = operator.plan_window("2024-01-02");
    let lease = worker.lease();
    worker.run(&replacing_with(lease.token, ", finish => false"));
    operator.cancel(plan);
    assert_eq!(operator.revert(plan).unwrap(), 1);
    assert_sqlstate!(worker.replace(lease.token), "BF002");
    assert_eq!(
        operator.lines("SELECT outcome FROM backfill.runs ORDER BY token DESC LIMIT 2"),
        ["done", "revoked"]
    );
    let middle = operator.slices();
    assert_ne!(middle, before);
    operator.assert_one_lease_per_window();
}

#[test]
fn what_somebody_else_deletes_meanwhile_is_not_kept_as_deleted() {
    let (database, mut worker, before) = rebuilt("");
    let mut stranger = database.connect();
    worker.plan_window("2024-01-02");
    let lease = worker.lease();
    stranger.run("BEGIN; DELETE FROM facts WHERE at = '2024-01-02Z'");
    let replace = replacing_with(lease.token, ", strategy => 'rows'");
    let failure = waiting(&database, &mut worker, &replace, || stranger.run("COMMIT")).unwrap_err();
    assert_eq!(failure.sqlstate, "40001", "{failure}");
    assert!(failure.detail.contains("4 rows were kept, 3 rows were deleted"), "{failure}");
    worker.replace(lease.token).unwrap();
    assert_ne!(worker.slices(), before);
}

#[test]
fn a_target_of_another_shape_takes_the_rows_by_the_names_of_columns() {
    let (_database, mut session, _) = rebuilt("");
    session.run("ALTER TABLE facts RENAME token TO other");
    let failure = assert_sqlstate!(session.revert(2), "55000");
    assert!(failure.detail.contains("\"token\""), "{failure}");
    session.run("ALTER TABLE facts RENAME other TO token; ALTER TABLE facts ADD more text DEFAULT 'new'");
    session.run("ALTER TABLE facts ALTER token TYPE text USING token || '.0'");
    session.revert(2).unwrap();
    assert_eq!(
        session
            .lines("SELECT more, count(*), count(*) FILTER (WHERE token LIKE '%.0') FROM facts GROUP BY 1"),
        ["new|12|0"]
    );
}

#[test]
fn values_that_would_come_back_otherwise_are_refused() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    session.run("ALTER TABLE facts ALTER token TYPE numeric");
    let write = |session: &mut Session, value: &str| {
        let plan = session.plan_window("2024-01-01");
        let token = session.lease().token;
        session.run(&format!("SELECT replace_partition({token}, query => 'SELECT $1, {value}')"));
        plan
    };
    write(&mut session, "1.25");
    let plan = write(&mut session, "2");
    session.run("ALTER TABLE facts ALTER token TYPE numeric(4, 1)");
    let failure = assert_sqlstate!(session.revert(plan), "55000");
    assert!(failure.detail.contains("digest"), "{failure}");
    session.run("ALTER TABLE facts ALTER token TYPE numeric, ADD CHECK (token > 1.5)");
    assert_sqlstate!(session.revert(plan), "23514");
    assert_eq!(session.lines("SELECT token FROM facts"), ["2.0"]);
}

fn sequential(session: &mut Session, arguments: &str) -> i64 {
    let plan = session.draft(&format!("{arguments}, ordering => 'sequential'"));
    session.approve(plan).unwrap();
    while let Some(lease) = session.claim() {
        session.replace(lease.token).unwrap();
    }
    plan.id
}

#[test]
fn what_was_stale_is_stale_again() {
    let database = daily(&format!("{KEEPING}, depends_on_past => true"));
    let mut session = database.connect();
    let states = |session: &mut Session| {
        session.lines("SELECT string_agg(state, ' ' ORDER BY window_key) FROM pipeline_windows('daily', NULL, '2024-01-05')")
    };
    sequential(&mut session, "NULL, '2024-01-05', 'first'");
    let again = sequential(&mut session, "NULL, '2024-01-05', 'again'");
    let once_more = sequential(&mut session, "NULL, '2024-01-05', 'once more'");
    for plan in [once_more, again] {
        session.revert(plan).unwrap();
        assert_eq!(states(&mut session), ["done done done done"]);
    }
    let first = sequential(&mut session, "NULL, '2024-01-02', 'the first once more'");
    assert_eq!(states(&mut session), ["done stale stale stale"]);
    let rest = sequential(&mut session, "NULL, '2024-01-04', 'the rest', mode => 'stale'");
    assert_eq!(states(&mut session), ["done done done stale"]);
    session.revert(rest).unwrap();
    assert_eq!(states(&mut session), ["done stale stale stale"]);
    sequential(&mut session, "NULL, '2024-01-05', 'the rest', mode => 'stale'");
    assert_eq!(states(&mut session), ["done done done done"]);
    session.revert(first).unwrap();
    assert_eq!(states(&mut session), ["done stale stale stale"]);
}

#[test]
fn a_mark_that_stood_before_stands_again() {
    let (_database, mut session, _) = rebuilt("");
    session.run("SELECT window_mark_stale('daily', '2024-01-02', '2024-01-03', 'late data')");
    let plan = session.plan_window("2024-01-02");
    let lease = session.lease();
    session.replace(lease.token).unwrap();
    assert_eq!(session.state("2024-01-02"), "done");
    session.revert(plan).unwrap();
    assert_eq!(session.state("2024-01-02"), "stale");
    assert_eq!(
        session.lines("SELECT reason, lift_reason FROM backfill.window_marks ORDER BY marked_at"),
        [format!("late data|plan {plan} was reverted: it was wrong"), "late data|".to_owned()]
    );
}
