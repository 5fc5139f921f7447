//! Targets that are more than a plain table of one server.

use crate::support::*;
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};

/// The pipeline `far`, without a query: its target is a foreign table, which stands for `there.facts` of the same
/// server over a connection of its own. `None` where the server came without postgres_fdw, as the wheel of version 16 does.
fn far() -> Option<Database> {
    let database = Cluster::shared().database();
    let mut owner = database.connect();
    if owner.lines("SELECT FROM pg_available_extensions WHERE name = 'postgres_fdw'").is_empty() {
        println!("not tried: this server has no postgres_fdw");
        return None;
    }
    owner.run(
        "CREATE EXTENSION postgres_fdw;
         CREATE SCHEMA there;
         CREATE TABLE there.facts (at timestamptz NOT NULL, n int CHECK (n < 1000));
         DO $$ BEGIN EXECUTE format(
             'CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host %L, port %L, dbname %L)',
             split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_database());
         END $$;
         CREATE USER MAPPING FOR CURRENT_USER SERVER far OPTIONS (user 'postgres');
         CREATE FOREIGN TABLE facts (at timestamptz NOT NULL, n int) SERVER far
             OPTIONS (schema_name 'there', table_name 'facts')",
    );
    define(&mut owner, "far", "'1 day', '2024-01-01', 'facts', 'at'", "");
    owner.run("INSERT INTO facts SELECT '2024-01-01 23:00Z'::timestamptz + n * interval '1 hour', -1 FROM generate_series(0, 25) n");
    Some(database)
}

/// A token for the second day, which holds 24 rows of somebody's, beside one in each neighbour.
fn second_day(session: &mut Session) -> i64 {
    let plan: i64 = session.one(
        "SELECT plan_id FROM backfill_plan('far', NULL, NULL, 'test', keys => ARRAY['2024-01-02'], expect => 1)",
        &[],
    );
    session.one(
        &format!(
            "SELECT token FROM backfill_claim('test', pipelines => ARRAY['far']) WHERE plan_id = {plan}"
        ),
        &[],
    )
}

fn hours(token: i64, first: i32, more: &str) -> String {
    format!(
        "SELECT strategy, rows, inserted, deleted, changed FROM replace_partition({token},
             query => 'SELECT $1 + n * interval ''1 hour'', {first} + n FROM generate_series(0, 23) n'{more})"
    )
}

/// What is on the far side, as it sees it.
fn there(session: &mut Session) -> Vec<String> {
    session.lines(
        "SELECT (at AT TIME ZONE 'UTC')::date, count(*), min(n) FROM there.facts GROUP BY 1 ORDER BY 1",
    )
}

#[test]
fn a_slice_of_a_foreign_table_is_replaced_as_rows() {
    let Some(database) = far() else { return };
    let mut session = database.connect();
    let token = second_day(&mut session);
    assert_sqlstate!(session.try_run(&hours(token, 5, ", strategy => 'diff'")), "0A000");
    assert_eq!(session.lines(&hours(token, 5, "")), ["rows|24|24|24|t"]);
    assert_eq!(there(&mut session), ["2024-01-01|1|-1", "2024-01-02|24|5", "2024-01-03|1|-1"]);
    let token = second_day(&mut session);
    assert_eq!(session.lines(&hours(token, 5, "")), ["diff|24|0|0|f"], "it is compared by its digest");
    // Somebody on the far side writes there: the ledger's digest does not stand in for a look.
    session.run("DELETE FROM there.facts WHERE n = 7");
    let token = second_day(&mut session);
    assert_eq!(session.lines(&hours(token, 5, "")), ["rows|24|24|23|t"]);
}

#[test]
fn what_is_refused_changes_nothing_on_the_far_side() {
    let Some(database) = far() else { return };
    let [mut session, mut person] = [(); 2].map(|()| database.connect());
    let before = there(&mut session);
    let token = second_day(&mut session);
    assert_sqlstate!(session.try_run(&hours(token, 990, "")), "23514");
    assert_eq!(there(&mut session), before);
    assert_sqlstate!(
        session.try_run(&format!("SELECT replace_partition({token}, query => 'SELECT $2, 1')")),
        "BF005"
    );
    // The right ends while the rows are already written over there, and not committed.
    session.run("BEGIN");
    session.run(&hours(token, 5, ""));
    person.run("SELECT backfill_cancel(max(plan_id), 'it is wrong') FROM backfill.plans");
    assert_sqlstate!(session.try_run("COMMIT"), "BF002");
    assert_eq!(there(&mut person), before);
    let slices: i64 = person.one("SELECT count(*) FROM backfill.slices", &[]);
    assert_eq!(slices, 0);
}

#[test]
fn the_rights_are_looked_at_before_the_far_side_commits() {
    let write = "INSERT INTO facts VALUES ('2024-01-02 12:00Z', 0)";
    // Each a session that has not spoken to the far side before.
    for order in ["fence, write", "write, fence", "fence, write, finish"] {
        let Some(database) = far() else { return };
        let [mut session, mut person] = [(); 2].map(|()| database.connect());
        let before = there(&mut person);
        let token = second_day(&mut session);
        session.run("BEGIN");
        for step in order.split(", ") {
            session.run(&match step {
                "fence" => format!("SELECT fence_check({token})"),
                "finish" => format!("SELECT backfill_finish({token})"),
                _ => write.to_owned(),
            });
        }
        person.run("SELECT backfill_cancel(max(plan_id), 'it is wrong') FROM backfill.plans");
        assert_sqlstate!(session.try_run("COMMIT"), "BF002");
        assert_eq!(there(&mut person), before, "{order}");
    }
}

/// The same table as a partition, or by itself.
fn far_keeping(as_partition: bool) -> Option<Database> {
    let database = far()?;
    let mut owner = database.connect();
    if as_partition {
        owner.run(
            "ALTER FOREIGN TABLE facts RENAME TO part;
             CREATE TABLE facts (at timestamptz NOT NULL, n int) PARTITION BY RANGE (at);
             ALTER TABLE facts ATTACH PARTITION part FOR VALUES FROM (MINVALUE) TO (MAXVALUE);
             SELECT pipeline_alter('far', '{\"target\": \"facts\"}')",
        );
    }
    owner.run("SELECT pipeline_alter('far', '{\"keep_previous\": \"1 day\"}')");
    Some(database)
}

/// Publishes the first two days under a plan, and says its number.
fn two_days(session: &mut Session) -> i64 {
    let plan =
        session.one("SELECT plan_id FROM backfill_plan('far', NULL, '2024-01-03', 'test', expect => 2)", &[]);
    for lease in session.all_of("far") {
        session.run(&hours(lease.token, 5, ", allow_shrink => 'test'"));
    }
    plan
}

fn revert(plan: i64) -> String {
    format!("SELECT backfill_revert({plan}, 'it was wrong')")
}

#[test]
fn a_plan_is_reverted_on_the_far_side_too() {
    for as_partition in [false, true] {
        let Some(database) = far_keeping(as_partition) else { return };
        let mut session = database.connect();
        let before = there(&mut session);
        let plan = two_days(&mut session);
        let after = there(&mut session);
        assert_eq!(after, ["2024-01-01|24|5", "2024-01-02|24|5", "2024-01-03|1|-1"]);
        // All or nothing: the far side refuses what one window held.
        session.run(
            "ALTER TABLE there.facts ADD CONSTRAINT late CHECK (n > 0 OR at < '2024-01-02 12:00Z') NOT VALID",
        );
        let failure = assert_sqlstate!(session.try_run(&revert(plan)), "23514");
        assert!(failure.message.contains("\"late\""), "{failure}");
        assert_eq!(there(&mut session), after);
        session.run("ALTER TABLE there.facts DROP CONSTRAINT late");
        // As after a crash of this server between the two commits: the far side has it, the ledger has not.
        session.run(
            "DELETE FROM there.facts WHERE at < '2024-01-03Z';
             INSERT INTO there.facts
             SELECT '2024-01-01 23:00Z'::timestamptz + n * interval '1 hour', -1 FROM generate_series(0, 24) n",
        );
        assert_eq!(there(&mut session), before);
        session.run(&revert(plan));
        assert_eq!(there(&mut session), before);
        let slices = "SELECT count(*) FROM backfill.slices";
        assert_eq!(session.lines(slices), ["0"], "the ledger knew of none");
        // One plan after the other.
        let [first, second] = [(); 2].map(|()| two_days(&mut session));
        session.run(&revert(second));
        assert_eq!((there(&mut session), session.lines(slices)), (after, vec!["2".to_owned()]));
        session.run(&revert(first));
        assert_eq!((there(&mut session), session.lines(slices)), (before, vec!["0".to_owned()]));
    }
}

#[test]
fn a_revert_waits_on_the_far_side_as_long_as_the_far_side_says() {
    let Some(database) = far_keeping(false) else { return };
    let [mut session, mut stranger] = [(); 2].map(|()| database.connect());
    session.run("ALTER SERVER far OPTIONS (ADD options '-c lock_timeout=100ms')");
    let plan = two_days(&mut session);
    let after = there(&mut session);
    stranger.run("BEGIN; UPDATE there.facts SET n = n WHERE at = '2024-01-02Z'");
    assert_sqlstate!(session.try_run(&revert(plan)), "55P03");
    assert_eq!(there(&mut session), after);
    stranger.run("ROLLBACK");
    session.run(&revert(plan));
}

#[test]
fn views_are_refused_also_those_that_could_be_written() {
    let database = Cluster::shared().database();
    let mut owner = database.connect();
    owner.run(
        "CREATE TABLE facts (at timestamptz);
         CREATE VIEW simple AS SELECT at FROM facts;
         CREATE VIEW instead AS SELECT at FROM facts WHERE at IS NOT NULL;
         CREATE FUNCTION write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
         CREATE TRIGGER write INSTEAD OF INSERT OR UPDATE OR DELETE ON instead FOR EACH ROW EXECUTE FUNCTION write();
         CREATE MATERIALIZED VIEW kept AS SELECT at FROM facts",
    );
    for view in ["simple", "instead", "kept"] {
        let call = format!(
            "SELECT pipeline_define('p', '1 day', '2024-01-01', target => '{view}', slice_column => 'at')"
        );
        let failure = owner.failure(&call);
        assert_eq!(failure.sqlstate, "22023", "{failure}");
        assert_eq!(failure.hint, "Name the table behind it.");
    }
}

#[test]
fn an_unlogged_target_that_a_crash_emptied_is_filled_again() {
    let cluster = Cluster::private(&[]);
    let database = cluster.database();
    let mut owner = database.connect();
    owner.run("CREATE UNLOGGED TABLE facts (at timestamptz NOT NULL, n int)");
    define(&mut owner, "far", "'1 day', '2024-01-01', 'facts', 'at'", "");
    let token = second_day(&mut owner);
    assert_eq!(owner.lines(&hours(token, 5, "")), ["rows|24|24|0|t"]);
    drop(owner);
    cluster.crash();
    cluster.restart();
    let mut owner = database.connect();
    assert_eq!(owner.one::<i64>("SELECT count(*) FROM facts", &[]), 0);
    // The same rows: the digest in the ledger says that they are there, and they are not.
    let token = second_day(&mut owner);
    assert_eq!(owner.lines(&hours(token, 5, "")), ["rows|24|24|0|t"]);
    assert_eq!(owner.one::<i64>("SELECT count(*) FROM facts", &[]), 24);
}
