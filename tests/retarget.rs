//! The table that a pipeline fills, and what the ledger says that it holds.

use crate::support::*;
use pgrx_tests::assert_sqlstate;

const OTHER: &str = r#"SELECT pipeline_alter('daily', '{"target": "other"}')"#;
const SLICES: &str = "SELECT pipeline, window_key, target FROM backfill.slices ORDER BY 1, 2";

#[test]
fn another_table_is_refused_while_the_ledger_holds_slices() {
    let database = daily("");
    let mut session = database.connect();
    session.run("CREATE TABLE other (at timestamptz NOT NULL, also timestamptz NOT NULL, token bigint)");
    session.plan("2024-01-03", "");
    session.run(OTHER);
    session.run(r#"SELECT pipeline_alter('daily', '{"target": "facts"}')"#);

    let lease = session.lease();
    let failure = assert_sqlstate!(session.try_run(OTHER), "55000");
    assert!(
        failure.detail.contains("1 leases are open") && failure.hint.contains("backfill.leases"),
        "{failure}"
    );
    session.replace(lease.token).unwrap();
    for settings in [
        r#"{"target": "other"}"#,
        r#"{"target": "other", "slice_column": "also"}"#,
        r#"{"target": null, "slice_column": null}"#,
    ] {
        let failure = session.failure(&format!("SELECT pipeline_alter('daily', '{settings}')"));
        assert_eq!(failure.sqlstate, "55000");
        assert!(failure.detail.contains("public.facts holds in 1 windows"), "{failure}");
        assert!(failure.hint.contains("window_adopt"), "{failure}");
    }
    let definition = "SELECT pipeline_define('daily', '1 day', '2024-01-01', 'other', 'at')";
    assert_sqlstate!(session.try_run(definition), "55000");
    assert_eq!(session.lines(SLICES), ["daily|2024-01-01|facts"]);

    // What the hints say: another pipeline, and a rename.
    session.run("INSERT INTO other VALUES ('2024-01-01 10:00Z', now(), 0)");
    session.run("SELECT pipeline_define('other', '1 day', '2024-01-01', 'other', 'at')");
    session.run("SELECT window_adopt('other', '2024-01-01', '2024-01-03', 'legacy', 'it is here')");
    session.run("CREATE SCHEMA old; ALTER TABLE facts RENAME TO kept; ALTER TABLE kept SET SCHEMA old");
    session.run("SELECT pipeline_alter('daily', '{\"max_active\": 2}')");
    assert_eq!(session.lines(SLICES), ["daily|2024-01-01|old.kept", "other|2024-01-01|other"]);
}

#[test]
fn a_slice_column_that_was_renamed_is_named_anew() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-02", "");
    let token = session.lease().token;
    session.replace(token).unwrap();
    session.run("ALTER TABLE facts ADD other timestamptz NOT NULL DEFAULT now()");
    let alter = |column: &str| format!(r#"SELECT pipeline_alter('daily', '{{"slice_column": "{column}"}}')"#);
    let failure = assert_sqlstate!(session.try_run(&alter("other")), "55000");
    assert!(failure.message.starts_with("slice_column of pipeline \"daily\""), "{failure}");
    session.run("ALTER TABLE facts RENAME at TO noted_at");
    session.run(&alter("noted_at"));
    session.plan("2024-01-02", "");
    let token = session.lease().token;
    session.run(&replacing(token).replace("$$ ", ", now() $$ "));
    assert_eq!(session.lines("SELECT token, count(*) FROM facts GROUP BY 1"), [format!("{token}|4")]);
}

#[test]
fn the_slices_of_a_dropped_table_name_none() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-02", "");
    let token = session.lease().token;
    session.replace(token).unwrap();
    session.run("DROP TABLE facts; CREATE TABLE facts (at timestamptz NOT NULL, token bigint)");
    assert_eq!(session.lines(SLICES), ["daily|2024-01-01|"]);
    assert_eq!(session.lines("SELECT pipeline, target FROM backfill.pipelines"), ["daily|"]);
    let seen = "SELECT kind, remedy FROM backfill.attention WHERE kind = 'dropped target'";
    assert_eq!(session.lines(seen), ["dropped target|SELECT pipeline_drop('daily');"]);
    let definition = "SELECT pipeline_define('daily', '1 day', '2024-01-01', 'facts', 'at')";
    let failure = assert_sqlstate!(session.try_run(definition), "55000");
    assert!(failure.detail.contains("their table was dropped"), "{failure}");
    assert!(failure.hint.starts_with("SELECT pipeline_drop('daily'), "), "{failure}");
    session.run("SELECT pipeline_drop('daily')");
    session.run(definition);
    assert_eq!(session.state("2024-01-01"), "missed");
}

#[test]
fn a_target_is_not_changed_while_a_slice_is_written() {
    let database = daily("");
    let (mut owner, mut worker) = (database.connect(), database.connect());
    owner.run("CREATE TABLE other (at timestamptz NOT NULL, token bigint)");
    owner.plan("2024-01-03", "");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    assert_sqlstate!(owner.try_run(OTHER), "40001");
    worker.run("ROLLBACK; BEGIN");
    worker.call("release", lease.token);
    worker.run("COMMIT");

    owner.run("BEGIN");
    owner.run(OTHER);
    let lease = worker.lease();
    assert_sqlstate!(worker.replace(lease.token), "40001");
    owner.run("COMMIT");
    worker.replace(lease.token).unwrap();
    assert_eq!(owner.lines("SELECT target FROM backfill.slices"), ["other"]);
    assert_eq!(owner.count("other"), 4);
}
