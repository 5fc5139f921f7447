//! A version while somebody else edits, cancels, or fails.

use crate::support::{define, waiting};
use pgrx_tests::{Cluster, Database, Session};

fn with_query(query: &str, setup: &str) -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run("CREATE TABLE target (at timestamptz NOT NULL, v text)");
    session.run(setup);
    define(
        &mut session,
        "beside",
        "'1 day', '2024-01-01', 'target', 'at'",
        &format!("query => $q${query}$q$"),
    );
    (database, session)
}

fn version(session: &mut Session) -> String {
    session.one("SELECT pipeline_version('beside')", &[])
}

#[test]
fn an_edit_while_a_version_is_taken_is_not_missed_later() {
    let (database, mut session) = with_query(
        "SELECT $1, late()",
        "CREATE TABLE late_rows (n int);
         CREATE FUNCTION late() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT max(n) FROM late_rows); END'",
    );
    let mut other = database.connect();
    other.run("BEGIN");
    other.run("LOCK TABLE late_rows");
    let mut reader = database.connect();
    waiting(&database, &mut reader, "SELECT pipeline_version('beside')", || {
        other.run("CREATE OR REPLACE FUNCTION late() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN 1 + (SELECT max(n) FROM late_rows); END'");
        other.run("COMMIT");
    })
    .unwrap();
    assert_eq!(version(&mut reader), version(&mut session));
    assert_eq!(version(&mut reader), version(&mut database.connect()));
}
