//! What counts as a fence, and which writes it covers.

use super::{assert_refused, assert_refused_within, copy, fence, lease, protected};
use crate::support::{Calls, LEVELS, define};
use pgrx_tests::assert_sqlstate;

/// A write of each kind; `{in}` is a row's time.
const WRITES: [&str; 7] = [
    "INSERT INTO facts VALUES ('{in}', 9)",
    "UPDATE facts SET token = 8 WHERE at = '{in}'",
    "INSERT INTO facts VALUES ('{in}', 7) ON CONFLICT (at) DO UPDATE SET token = excluded.token",
    "MERGE INTO facts f USING (VALUES ('{in}'::timestamptz)) v (at) ON f.at = v.at
     WHEN MATCHED THEN UPDATE SET token = 6 WHEN NOT MATCHED THEN INSERT VALUES (v.at, 6)",
    "WITH gone AS (DELETE FROM facts WHERE at = '{in}' RETURNING at) INSERT INTO facts SELECT at + interval '1 s', 5 FROM gone",
    "UPDATE facts SET at = at - interval '1 s' WHERE at = '{in}'::timestamptz + interval '1 s'",
    "DELETE FROM facts WHERE at = '{in}'",
];

#[test]
fn every_kind_of_write_is_refused_to_everyone_without_a_fence() {
    let database = protected();
    let [owner, writer] = ["owner", "writer"].map(|name| database.role(name));
    let mut admin = database.connect();
    admin.run(&format!(
        "ALTER TABLE facts OWNER TO {owner}; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON facts TO {writer}"
    ));
    let before = admin.lines("SELECT * FROM facts ORDER BY at");
    for role in ["postgres", &owner, &writer] {
        let mut session = database.connect_as(role);
        assert_refused(&mut session, &WRITES[0].replace("{in}", "2024-01-02 00:00+00"));
        for write in &WRITES[1..] {
            // About a row that is there.
            let write = write.replace("{in}'::timestamptz + interval '1 s'", "{in}'");
            assert_refused(&mut session, &write.replace("{in}", "2024-01-01 00:00+00"));
        }
        assert_sqlstate!(copy(&mut session, "facts", "2024-01-02 00:00+00\t1\n"), "BF011");
        assert_refused(&mut session, "TRUNCATE facts");
        // What writes nothing is nobody's harm.
        session.run("INSERT INTO facts VALUES ('2024-01-01 00:00+00', 1) ON CONFLICT DO NOTHING");
        session.run("DELETE FROM facts WHERE false");
    }
    assert_eq!(admin.lines("SELECT * FROM facts ORDER BY at"), before);
}

#[test]
fn a_fenced_transaction_writes_in_its_windows_and_nowhere_else() {
    let database = protected();
    let mut worker = database.connect();
    let leases = ["2024-01-02", "2024-01-04"].map(|key| lease(&mut worker, key));
    for level in LEVELS {
        worker.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        for lease in &leases {
            worker.run(&format!("SELECT fence_check({})", lease.token));
        }
        for day in ["2024-01-02", "2024-01-04"] {
            for write in WRITES {
                worker.run(&write.replace("{in}", &format!("{day} 05:00+00")));
            }
            copy(&mut worker, "facts", &format!("{day} 00:00+00\t1\n{day} 23:59:59.999999+00\t1\n")).unwrap();
        }
        for outside in ["2024-01-01 23:59:59.999999+00", "2024-01-03", "2024-01-05", "infinity", "-infinity"]
        {
            assert_refused_within(&mut worker, &format!("INSERT INTO facts VALUES ('{outside}', 1)"));
        }
        // Rows may move between its windows, and neither leave them nor come from elsewhere.
        worker.run("UPDATE facts SET at = '2024-01-04 01:00+00' WHERE at = '2024-01-02 00:00+00'");
        assert_refused_within(
            &mut worker,
            "UPDATE facts SET at = '2024-01-03' WHERE at = '2024-01-04 01:00+00'",
        );
        assert_refused_within(
            &mut worker,
            "UPDATE facts SET at = '2024-01-04 02:00+00' WHERE at = '2024-01-01 00:00+00'",
        );
        assert_refused_within(&mut worker, "UPDATE facts SET token = 1 WHERE at = '2024-01-01 00:00+00'");
        assert_refused_within(&mut worker, "TRUNCATE facts");
        worker.run("ROLLBACK");
        assert_refused(&mut worker, "INSERT INTO facts VALUES ('2024-01-02', 1)");
    }
    fence(&mut worker, leases[0].token);
    worker.run("INSERT INTO facts VALUES ('2024-01-02', 1); COMMIT");
    assert_refused(&mut worker, "DELETE FROM facts WHERE at = '2024-01-02'");
}

#[test]
fn a_refusal_tells_the_row_and_the_windows() {
    let database = protected();
    let mut worker = database.connect();
    let token = lease(&mut worker, "2024-01-02").token;
    let failure = assert_refused(&mut worker, "INSERT INTO facts VALUES ('2024-01-09 03:00+00', 1)");
    assert_eq!(failure.message, "INSERT on public.facts is not fenced");
    assert_eq!(
        failure.detail,
        "\"at\" of the new row is 2024-01-09 03:00:00+00; the windows that this transaction is fenced for: none of this table."
    );
    assert!(failure.hint.contains("fence_check(token)") && failure.hint.contains("\"daily\""), "{failure}");
    fence(&mut worker, token);
    let failure = assert_refused(&mut worker, "DELETE FROM facts");
    assert_eq!(
        failure.detail,
        "\"at\" of the old row is 2024-01-01 00:00:00+00; the windows that this transaction is fenced for: [2024-01-02 00:00:00+00, 2024-01-03 00:00:00+00)."
    );
}

#[test]
fn a_fence_that_a_savepoint_took_back_does_not_count() {
    let database = protected();
    let mut worker = database.connect();
    let token = lease(&mut worker, "2024-01-02").token;
    let write = "INSERT INTO facts VALUES ('2024-01-02', 1)";
    let check = format!("SELECT fence_check({token})");

    worker.run(&format!("BEGIN; SAVEPOINT a; {check}; {write}; ROLLBACK TO a"));
    assert_refused(&mut worker, write);
    worker.run("ROLLBACK");

    // In the block of a function, which is a savepoint too.
    let block = format!(
        "DO $$ BEGIN PERFORM fence_check({token}); RAISE 'no'; EXCEPTION WHEN raise_exception THEN END $$"
    );
    worker.run(&format!("BEGIN; {block}"));
    assert_refused(&mut worker, write);
    worker.run("ROLLBACK");

    // Kept by RELEASE, and taken back with the savepoint around it.
    worker.run(&format!("BEGIN; SAVEPOINT a; SAVEPOINT b; {check}; RELEASE b; {write}; ROLLBACK TO a"));
    assert_refused(&mut worker, write);
    worker.run("ROLLBACK");

    // An earlier one stands.
    worker.run(&format!("BEGIN; {check}; SAVEPOINT a; {check}; ROLLBACK TO a; {write}; COMMIT"));
    assert_eq!(worker.count("facts WHERE at = '2024-01-02'"), 1);
}

#[test]
fn a_fence_of_another_session_pipeline_or_right_does_not_count() {
    let database = protected();
    let (mut worker, mut other) = (database.connect(), database.connect());
    other.run("CREATE TABLE apart (at timestamptz NOT NULL)");
    define(&mut other, "apart", "'1 day', '2024-01-01', 'apart', 'at'", "");
    let token = lease(&mut worker, "2024-01-02").token;
    let write = "INSERT INTO facts VALUES ('2024-01-02', 1)";
    fence(&mut worker, token);
    assert_refused(&mut other, write);
    worker.run("ROLLBACK");

    other.run("SELECT backfill_plan('apart', NULL, NULL, 'test', keys => ARRAY['2024-01-02'], expect => 1)");
    let apart: i64 = other.one("SELECT token FROM backfill_claim('test', pipelines => ARRAY['apart'])", &[]);
    fence(&mut other, apart);
    other.run("INSERT INTO apart VALUES ('2024-01-02')");
    assert_refused(&mut other, write);
    other.run("ROLLBACK");

    // What nobody can set.
    for setting in ["SET backfill.fenced = on", "SET application_name = 'backfill_work'"] {
        other.run(setting);
        assert_refused(&mut other, write);
    }

    // A lease that was given back in the transaction.
    for end in ["backfill_release({})", "backfill_fail({}, 'why')"] {
        fence(&mut worker, token);
        worker.run(write);
        worker.run(&format!("SELECT {}", end.replace("{}", &token.to_string())));
        assert_refused(&mut worker, "INSERT INTO facts VALUES ('2024-01-02 01:00', 1)");
        worker.run("ROLLBACK");
    }

    // One that was finished there still is this transaction's window.
    fence(&mut worker, token);
    worker.run(&format!("SELECT backfill_finish({token}); {write}; COMMIT"));
    assert_refused(&mut worker, "INSERT INTO facts VALUES ('2024-01-02 01:00', 1)");
}

#[test]
fn replacements_pass_and_stay_what_they_are() {
    let database = protected();
    let mut worker = database.connect();
    let token = lease(&mut worker, "2024-01-02").token;
    worker.replace(token).unwrap();
    let token = lease(&mut worker, "2024-01-03").token;
    worker.run(&format!(
        "SELECT backfill_stage({token}); INSERT INTO backfill.stage_{token} VALUES ('2024-01-03 04:00+00', {token});
         SELECT replace_partition({token})"
    ));
    let token = lease(&mut worker, "2024-01-02").token;
    let outside = "SELECT replace_partition($1, query => 'SELECT $2, 1')";
    assert_sqlstate!(worker.try_one::<String>(&outside.replace("$1", &token.to_string()), &[]), "BF005");
    assert_eq!(worker.count("facts"), 9);
}

#[test]
fn statements_that_were_prepared_before_are_refused_after() {
    let database = protected();
    let (mut admin, mut writer) = (database.connect(), database.connect());
    admin.run("SELECT fence_unprotect('facts')");
    writer.run(
        "PREPARE put AS INSERT INTO facts VALUES ($1, 0);
         CREATE FUNCTION put(at timestamptz) RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO facts VALUES (at, 0); END $$",
    );
    for hour in 1..8 {
        writer
            .run(&format!("EXECUTE put('2024-01-05 0{hour}:00+00'); SELECT put('2024-01-06 0{hour}:00+00')"));
    }
    admin.run("SELECT fence_protect('facts')");
    assert_refused(&mut writer, "EXECUTE put('2024-01-05 12:00+00')");
    assert_refused(&mut writer, "SELECT put('2024-01-06 12:00+00')");
    let token = lease(&mut writer, "2024-01-06").token;
    fence(&mut writer, token);
    writer.run("SELECT put('2024-01-06 12:00+00'); COMMIT");
}

#[test]
fn a_transaction_sees_its_own_changes_of_pipeline_and_table() {
    let database = protected();
    let mut admin = database.connect();
    let token = lease(&mut admin, "2024-01-02").token;
    fence(&mut admin, token);
    admin.run("INSERT INTO facts VALUES ('2024-01-02', 1)");
    admin.run("ALTER TABLE facts ADD before timestamptz; ALTER TABLE facts DROP token");
    admin.run("INSERT INTO facts VALUES ('2024-01-02 01:00', '2024-01-09')");
    admin.run("ALTER TABLE facts RENAME at TO moment; ALTER TABLE facts RENAME before TO at");
    assert_refused_within(&mut admin, "INSERT INTO facts VALUES ('2024-01-02 02:00', '2024-01-09')");
    admin.run("INSERT INTO facts VALUES ('2024-01-09', '2024-01-02 02:00')");
    admin.run("ALTER TABLE facts RENAME at TO before");
    let failure = assert_refused(&mut admin, "INSERT INTO facts VALUES ('2024-01-02 03:00', NULL)");
    assert!(failure.detail.contains("has no column \"at\""), "{failure}");
    admin.run("ROLLBACK");
    fence(&mut admin, token);
    admin.run("INSERT INTO facts VALUES ('2024-01-02', 1)");
    admin.run("SELECT pipeline_drop('daily')");
    let failure = assert_refused(&mut admin, "INSERT INTO facts VALUES ('2024-01-02 03:00', 1)");
    assert!(failure.hint.contains("fence_unprotect"), "{failure}");
}
