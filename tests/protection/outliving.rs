//! Replication, dump and restore, and the end of the extension.

use super::{assert_refused, copy, fence, protected};
use crate::dump::{dump, restored};
use crate::support::Calls;
use pgrx_tests::{Cluster, assert_sqlstate};

#[test]
fn what_replication_applies_passes() {
    let database = protected();
    let mut apply = database.connect();
    // As apply workers do.
    apply.run("SET session_replication_role = replica");
    apply.run("INSERT INTO facts VALUES ('2024-01-09', 1); UPDATE facts SET token = 2; TRUNCATE facts");
    copy(&mut apply, "facts", "2024-01-09\t1\n").unwrap();
    apply.run("RESET session_replication_role");
    assert_refused(&mut apply, "DELETE FROM facts");
    let nobody = database.role("nobody");
    assert_sqlstate!(database.connect_as(&nobody).try_run("SET session_replication_role = replica"), "42501");
}

#[test]
fn a_subscription_applies_to_a_protected_table() {
    let cluster = Cluster::private(&["wal_level = logical"]);
    let (from, to) = (cluster.database(), cluster.database());
    for database in [&from, &to] {
        database.connect().run(
            "CREATE TABLE t (at timestamptz PRIMARY KEY);
             SELECT pipeline_define('t', '1 day', '2024-01-01', target => 't', slice_column => 'at')",
        );
    }
    let (mut publisher, mut subscriber) = (from.connect(), to.connect());
    subscriber.run("SELECT fence_protect('t')");
    publisher.run("INSERT INTO t VALUES ('2024-01-01'); CREATE PUBLICATION all_of_it FOR TABLE t");
    publisher.run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    let connection: String = publisher.one(
        "SELECT format('host=%s port=%s user=postgres dbname=%s', split_part(current_setting('unix_socket_directories'), ',', 1),
                       current_setting('port'), current_database())",
        &[],
    );
    subscriber.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{connection}' PUBLICATION all_of_it WITH (create_slot = false)"
    ));
    to.wait_for("the first copy", "SELECT count(*) = 1 FROM t");
    publisher.run("INSERT INTO t VALUES ('2024-01-02'); DELETE FROM t WHERE at = '2024-01-01'; INSERT INTO t VALUES ('2024-01-03')");
    to.wait_for("the changes", "SELECT count(*) = 2 FROM t WHERE at > '2024-01-01'");
    publisher.run("TRUNCATE t");
    to.wait_for("the truncation", "SELECT count(*) = 0 FROM t");
    assert_refused(&mut subscriber, "INSERT INTO t VALUES ('2024-01-05')");
    subscriber.run(
        "ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s",
    );
    from.wait_for("the slot is free", "SELECT NOT active FROM pg_replication_slots");
    publisher.run("SELECT pg_drop_replication_slot('s')");
}

#[test]
fn protection_is_dumped_with_the_table() {
    let database = protected();
    let mut admin = database.connect();
    admin.run("CREATE TABLE logs (at timestamptz NOT NULL) PARTITION BY RANGE (at); CREATE TABLE part PARTITION OF logs DEFAULT");
    admin.run("SELECT pipeline_define('logs', '1 day', '2024-01-01', 'logs', 'at'); SELECT fence_protect('logs', 'log')");
    let protections = "SELECT * FROM backfill.protections ORDER BY pipeline";
    let expected = admin.lines(protections);

    let new = restored(&dump(&database, &[]));
    let mut session = new.connect();
    assert_eq!(session.lines(protections), expected);
    assert_eq!(session.count("facts"), 4);
    for write in ["INSERT INTO facts VALUES ('2024-01-09', 1)", "DELETE FROM facts", "TRUNCATE facts"] {
        assert_refused(&mut session, write);
    }
    session.run("INSERT INTO part VALUES ('2024-01-09')");
    assert_eq!(session.lines("SELECT target, rows FROM backfill.unfenced_writes"), ["logs|1"]);
    session.plan_window("2024-01-09");
    let token = session.lease().token;
    session.replace(token).unwrap();
    session.plan_window("2024-01-08");
    let token = session.lease().token;
    fence(&mut session, token);
    session.run("INSERT INTO facts VALUES ('2024-01-08', 1); COMMIT");

    // Rows alone are raw writes, unless triggers are disabled.
    let apart = restored(&dump(&database, &["--schema-only"]));
    let load = |arguments: &[&str]| {
        let script = String::from_utf8(dump(&database, arguments)).expect("a dump is text");
        let folder = pgrx_tests::scratch::folder().expect("a folder can be made");
        let file = folder.join("data.sql");
        std::fs::write(&file, script).expect("it can be written");
        let output =
            apart.command("psql").args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-1", "-f"]).arg(&file).output();
        std::fs::remove_dir_all(folder).expect("it can be removed");
        let output = output.expect("psql runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (succeeded, complaint) = load(&["--data-only"]);
    assert!(!succeeded && complaint.contains("is not fenced"), "{complaint}");
    let (succeeded, complaint) = load(&["--data-only", "--disable-triggers"]);
    assert!(succeeded, "{complaint}");
    let mut session = apart.connect();
    assert_eq!(session.count("facts"), 4);
    assert_eq!(session.lines(protections), expected);
    assert_refused(&mut session, "DELETE FROM facts");
}

#[test]
fn the_extension_goes_only_with_its_triggers_and_leaves_the_table() {
    let database = protected();
    let mut admin = database.connect();
    let failure = assert_sqlstate!(admin.try_run("DROP EXTENSION pg_backfill"), "2BP01");
    assert!(failure.detail.contains("backfill_fence"), "{failure}");
    admin.run("DROP EXTENSION pg_backfill CASCADE");
    admin.run("INSERT INTO facts VALUES ('2024-01-09', 1); TRUNCATE facts");
    assert_eq!(admin.count("pg_trigger WHERE NOT tgisinternal"), 0);
}
