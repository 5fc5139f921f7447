//! The test support itself: what other tests rely on.

use pgrx_tests::{Cluster, Failure, assert_sqlstate, wait_until};
use std::thread;

#[test]
fn every_database_has_the_extension() {
    let database = Cluster::shared().database();
    let version: String =
        database.connect().one("SELECT extversion FROM pg_extension WHERE extname = 'pg_backfill'", &[]);
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert_eq!(
        Cluster::shared().empty_database().connect().one::<i64>("SELECT count(*) FROM pg_extension", &[]),
        1
    );
}

#[test]
fn databases_are_dropped_with_their_roles() {
    let database = Cluster::shared().database();
    let (name, role) = (database.name().to_owned(), database.role("reader"));
    database.connect().run(&format!(r#"CREATE TABLE t (i int); GRANT SELECT ON t TO "{role}""#));
    assert_sqlstate!(database.connect_as(&role).try_run("INSERT INTO t VALUES (1)"), "42501");
    drop(database);
    let left: i64 = Cluster::shared().database().connect().one(
        "SELECT (SELECT count(*) FROM pg_database WHERE datname = $1) + (SELECT count(*) FROM pg_roles WHERE rolname = $2)",
        &[&name, &role],
    );
    assert_eq!(left, 0);
}

#[test]
fn many_sessions_start_together_and_answer_in_order() {
    let database = Cluster::shared().database();
    database.connect().run("CREATE SEQUENCE drawn");
    let answers = database.many(8, |i, session| (i, session.one::<i64>("SELECT nextval('drawn')", &[])));
    assert_eq!(answers.iter().map(|(i, _)| *i).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    let mut drawn: Vec<i64> = answers.iter().map(|(_, value)| *value).collect();
    drawn.sort_unstable();
    assert_eq!(drawn, (1..=8).collect::<Vec<_>>());
}

#[test]
fn a_session_that_waits_for_a_lock_is_noticed() {
    let database = Cluster::shared().database();
    let mut holder = database.connect();
    holder.run("CREATE TABLE t (i int)");
    holder.run("BEGIN; LOCK TABLE t");
    let mut waiter = database.connect();
    let pid = waiter.pid();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || waiter.run("SELECT * FROM t"));
        database.wait_for_lock(pid);
        holder.run("COMMIT");
        waiting.join().unwrap();
    });
}

#[test]
fn errors_and_notices_keep_their_fields() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run("DO $$ BEGIN RAISE NOTICE 'by the way' USING HINT = 'look'; END $$");
    let notices = session.notices();
    assert_eq!((notices[0].message.as_str(), notices[0].hint.as_str()), ("by the way", "look"));
    let failure: Failure = assert_sqlstate!(
        session
            .try_run("DO $$ BEGIN RAISE 'no' USING ERRCODE = 'BF001', DETAIL = 'why', HINT = 'how'; END $$"),
        "BF001"
    );
    assert_eq!(
        failure.to_string().lines().take(3).collect::<Vec<_>>(),
        ["BF001: no", "DETAIL: why", "HINT: how"]
    );
    assert!(!failure.context.contains("stack backtrace"), "{failure}");
}

#[test]
fn the_programs_of_the_server_reach_the_database() {
    let database = Cluster::shared().database();
    assert_eq!(database.psql("SELECT 1 + 1;\n\\echo done"), "2\ndone\n");
    assert!(
        database.output("pg_dump", &["--schema-only"]).contains("CREATE EXTENSION IF NOT EXISTS pg_backfill")
    );
}

#[test]
fn a_crash_keeps_what_was_committed() {
    let cluster = Cluster::private(&[]);
    let database = cluster.database();
    let mut session = database.connect();
    session.run("CREATE TABLE t (i int); INSERT INTO t VALUES (1)");
    session.run("BEGIN; INSERT INTO t VALUES (2)");
    cluster.crash();
    cluster.restart();
    assert!(session.try_run("COMMIT").is_err());
    assert_eq!(database.connect().column::<i32>("SELECT i FROM t", &[]), [1]);
    let victim = database.connect();
    cluster.kill_backend(victim.pid());
    assert_eq!(database.connect().column::<i32>("SELECT i FROM t", &[]), [1]);
}

#[test]
fn a_standby_follows_and_takes_over() {
    let primary = Cluster::private(&[]);
    let database = primary.database();
    database.connect().run("CREATE TABLE t AS SELECT 1 AS i");
    let standby = primary.standby();
    let mut reader = standby.connect(database.name());
    wait_until("the standby has the table", || reader.try_one::<i32>("SELECT i FROM t", &[]).is_ok());
    assert_sqlstate!(reader.try_run("INSERT INTO t VALUES (2)"), "25006");
    primary.crash();
    assert!(reader.one::<bool>("SELECT pg_promote()", &[]));
    reader.run("INSERT INTO t VALUES (2)");
}

#[test]
fn nothing_is_left_of_a_cluster() {
    let cluster = Cluster::private(&[]);
    let data = cluster.data().to_owned();
    cluster.database();
    drop(cluster);
    wait_until("the folder is gone", || !data.exists());
}
