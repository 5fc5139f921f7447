//! The calls themselves: who may make them, of what, and what they answer.

use super::{assert_refused, protected};
use crate::support::{Calls, daily, define};
use crate::tour::{ident, literal};
use pgrx_tests::{Cluster, assert_sqlstate};

#[test]
fn calls_say_what_they_changed() {
    let database = daily("");
    let mut admin = database.connect();
    for (call, answer) in [
        ("fence_unprotect('facts')", "not protected"),
        ("fence_protect('facts', 'log')", "protected"),
        ("fence_protect('facts', mode => 'log')", "unchanged"),
        ("fence_protect('facts')", "changed: mode"),
        ("fence_protect(target => 'facts', mode => 'refuse')", "unchanged"),
        ("fence_unprotect('facts')", "unprotected"),
        ("fence_unprotect(target => 'facts')", "not protected"),
    ] {
        assert_eq!(admin.one::<String>(&format!("SELECT {call}"), &[]), answer, "{call}");
    }
    admin.run("INSERT INTO facts VALUES ('2024-01-05', 1); TRUNCATE facts");

    // A trigger that was switched off is found.
    admin.run("SELECT fence_protect('facts'); ALTER TABLE facts DISABLE TRIGGER USER; INSERT INTO facts VALUES ('2024-01-05', 1)");
    assert_eq!(admin.lines("SELECT unguarded FROM backfill.protections"), ["{facts}"]);
    assert_eq!(
        admin.one::<String>("SELECT fence_protect('facts')", &[]),
        "changed: 1 tables were not guarded"
    );
    assert_refused(&mut admin, "INSERT INTO facts VALUES ('2024-01-05', 1)");
}

#[test]
fn what_cannot_be_protected_is_refused_in_words() {
    let database = daily("");
    let mut admin = database.connect();
    admin.run(
        "CREATE TABLE apart (at timestamptz);
         CREATE VIEW seen AS SELECT * FROM facts;
         CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
         CREATE FOREIGN TABLE far (at timestamptz) SERVER nowhere;
         CREATE TABLE whole (at timestamptz) PARTITION BY RANGE (at);
         CREATE TABLE part PARTITION OF whole DEFAULT;
         CREATE TABLE parent (at timestamptz); CREATE TABLE heir () INHERITS (parent);
         CREATE TABLE named (at timestamptz);
         CREATE TRIGGER backfill_fence AFTER UPDATE ON named EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    );
    for table in ["whole", "parent", "named"] {
        define(&mut admin, table, &format!("'1 day', '2024-01-01', '{table}', 'at'"), "");
    }
    for (call, sqlstate) in [
        ("fence_protect('apart')", "22023"),
        ("fence_protect('part')", "22023"),
        ("fence_protect('facts', 'forbid')", "22023"),
        ("fence_protect('seen')", "0A000"),
        ("fence_protect('far')", "0A000"),
        ("fence_protect('parent')", "0A000"),
        ("fence_protect('named')", "42710"),
        ("fence_protect(NULL)", "22004"),
        ("fence_unprotect(NULL)", "22004"),
        ("fence_protect(1)", "42704"),
    ] {
        let failure = assert_sqlstate!(admin.try_run(&format!("SELECT {call}")), sqlstate);
        assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{call}\n{failure}");
    }
    admin.run("SELECT fence_protect('whole')");
    let failure = assert_sqlstate!(admin.try_run("SELECT fence_unprotect('part')"), "22023");
    assert!(failure.hint.contains("public.whole"), "{failure}");
    assert_eq!(admin.one::<String>("SELECT fence_unprotect('far')", &[]), "not protected");
    if admin.one::<i32>("SELECT current_setting('server_version_num')::int", &[]) >= 180_000 {
        admin.run("CREATE TABLE virtual (day date, at date GENERATED ALWAYS AS (day + 1) VIRTUAL)");
        define(&mut admin, "virtual", "'1 day', '2024-01-01', 'virtual', 'at'", "");
        assert_sqlstate!(admin.try_run("SELECT fence_protect('virtual')"), "0A000");
    }
}

#[test]
fn it_takes_the_owner_of_the_pipeline_and_of_the_table() {
    let database = daily("");
    let [alice, bob] = ["alice", "bob"].map(|name| database.role(name));
    let mut admin = database.connect();
    admin.run(&format!(
        "GRANT EXECUTE ON FUNCTION pipeline_define TO {alice}; GRANT SELECT, INSERT, DELETE, TRIGGER ON facts TO {alice};
         SELECT pipeline_drop('daily'); SET ROLE {alice};
         SELECT pipeline_define('hers', '1 day', '2024-01-01', 'facts', 'at'); RESET ROLE;
         SELECT pipeline_grant('hers', '{bob}', 'operate'); ALTER TABLE facts OWNER TO {bob};
         GRANT EXECUTE ON FUNCTION fence_protect, fence_unprotect TO {bob}"
    ));
    let mut sessions = [&alice, &bob].map(|role| database.connect_as(role));
    for session in &mut sessions {
        for call in ["fence_protect('facts')", "fence_unprotect('facts')"] {
            let failure = assert_sqlstate!(session.try_run(&format!("SELECT {call}")), "42501");
            assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{failure}");
        }
    }
    admin.run(&format!("ALTER TABLE facts OWNER TO {alice}"));
    sessions[0].run("SELECT fence_protect('facts')");
    assert_refused(&mut sessions[0], "INSERT INTO facts VALUES ('2024-01-01', 1)");

    // Once the pipeline is gone the table is its owner's alone.
    admin.run("SELECT pipeline_drop('hers')");
    let failure = assert_refused(&mut sessions[0], "INSERT INTO facts VALUES ('2024-01-01', 1)");
    assert!(failure.hint.contains("fence_unprotect('public.facts')"), "{failure}");
    sessions[0].run("SELECT fence_unprotect('facts'); INSERT INTO facts VALUES ('2024-01-01', 1)");
}

#[test]
fn it_waits_for_writers_no_longer_than_the_limit() {
    let database = protected();
    let (mut admin, mut writer) = (database.connect(), database.connect());
    admin.run("SELECT fence_unprotect('facts')");
    writer.run("BEGIN; INSERT INTO facts VALUES ('2024-01-05', 1)");
    // Without a limit of the session's own.
    assert_sqlstate!(admin.try_run("SELECT fence_protect('facts')"), "55P03");
    assert_eq!(admin.one::<String>("SHOW lock_timeout", &[]), "0");
    writer.run("COMMIT; BEGIN; SELECT count(*) FROM facts");
    // Readers are not waited for.
    admin.run("SET lock_timeout = '50ms'; SELECT fence_protect('facts')");
    assert_sqlstate!(admin.try_run("SELECT fence_unprotect('facts')"), "55P03");
    writer.run("COMMIT");
    admin.run("SELECT fence_unprotect('facts')");
}

#[test]
fn names_may_be_any_that_postgresql_takes() {
    let longest = "N".repeat(63);
    for name in ["Order \"x\" of 'y'", "ünï 🐘", "select", &longest] {
        let database = Cluster::shared().database();
        let mut admin = database.connect();
        let table = format!("{0}.{0}", ident(name));
        admin.run(&format!(
            "CREATE SCHEMA {0}; CREATE TABLE {table} ({0} timestamptz) PARTITION BY RANGE ({0});
             CREATE TABLE {0}.part PARTITION OF {table} DEFAULT;
             SELECT pipeline_define({1}, '1 day', '2024-01-01', {2}, {1});
             SELECT fence_protect({2})",
            ident(name),
            literal(name),
            literal(&table)
        ));
        let failure = assert_refused(&mut admin, &format!("INSERT INTO {table} VALUES ('2024-01-01')"));
        assert!(failure.detail.contains(name) && failure.hint.contains(name), "{failure}");
        assert_eq!(admin.lines("SELECT mode, unguarded FROM backfill.protections"), ["refuse|{}"]);
        admin.run(&format!("SELECT fence_protect({0}, 'log')", literal(&table)));
        admin.run(&format!(
            "INSERT INTO {table} VALUES ('2024-01-01'); SELECT fence_unprotect({})",
            literal(&table)
        ));
        assert_eq!(admin.count("backfill.unfenced_writes"), 1);
    }
}
