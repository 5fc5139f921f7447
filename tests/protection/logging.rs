//! `mode => 'log'`: nobody is refused, and who would have been is known.

use super::{assert_refused, copy, fence, lease, protected};
use crate::support::{Calls, LEVELS};
use pgrx_tests::{Database, Session};

const WRITES: &str = "SELECT operation, role, session_role, transactions, rows FROM backfill.unfenced_writes
    ORDER BY operation, role, session_role";

fn logged() -> Database {
    let database = protected();
    database.connect().run("SELECT fence_protect('facts', 'log')");
    database
}

#[test]
fn who_writes_what_without_a_fence_is_told() {
    let database = logged();
    let writer = database.role("writer");
    let mut admin = database.connect();
    admin.run(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON facts TO {writer}"));
    let mut session = database.connect_as(&writer);
    session.run("SET application_name = 'nightly job''s'");
    for day in 1..4 {
        session.run(&format!("INSERT INTO facts SELECT '2024-02-0{day}'::timestamptz + n * interval '1 h', 1 FROM generate_series(1, 5) n"));
    }
    copy(&mut session, "facts", "2024-02-05\t1\n2024-02-06\t1\n").unwrap();
    session
        .run("BEGIN; UPDATE facts SET token = 2 WHERE token = 1; DELETE FROM facts WHERE token = 2; COMMIT");
    assert_eq!(
        admin.lines(WRITES),
        [
            format!("DELETE|{writer}|{writer}|1|17"),
            format!("INSERT|{writer}|{writer}|4|17"),
            format!("UPDATE|{writer}|{writer}|1|17"),
        ]
    );
    assert_eq!(
        admin.lines(
            "SELECT DISTINCT pipeline, target, application_name, client_addr IS NULL,
                    first_seen <= last_seen AND last_seen <= now() FROM backfill.unfenced_writes"
        ),
        ["daily|facts|nightly job's|t|t"]
    );
    // Neither writers nor strangers see the record; it is the pipeline's.
    assert_eq!(session.lines(WRITES), [""; 0]);
    session.run("SET application_name = 'other'; INSERT INTO facts VALUES ('2024-03-01', 1)");
    assert_eq!(admin.count("backfill.unfenced_writes WHERE operation = 'INSERT'"), 2);
}

#[test]
fn what_is_fenced_or_taken_back_is_not_told() {
    let database = logged();
    let mut worker = database.connect();
    let token = lease(&mut worker, "2024-01-02").token;
    let told = |session: &mut Session| {
        session.lines("SELECT operation, transactions, rows FROM backfill.unfenced_writes")
    };
    fence(&mut worker, token);
    worker.run("INSERT INTO facts VALUES ('2024-01-02', 1); COMMIT");
    worker.run("BEGIN; INSERT INTO facts VALUES ('2024-01-05', 1); ROLLBACK");
    worker.run(
        "BEGIN; SAVEPOINT a; INSERT INTO facts VALUES ('2024-01-05', 1); ROLLBACK TO a;
         DO $$ BEGIN DELETE FROM facts; RAISE 'no'; EXCEPTION WHEN raise_exception THEN END $$; COMMIT",
    );
    assert_eq!(told(&mut worker), [""; 0]);
    worker.run(
        "BEGIN; SAVEPOINT a; INSERT INTO facts VALUES ('2024-01-05', 1); RELEASE a; INSERT INTO facts VALUES ('2024-01-06', 1);
         SAVEPOINT a; INSERT INTO facts VALUES ('2024-01-07', 1); ROLLBACK TO a; COMMIT",
    );
    assert_eq!(told(&mut worker), ["INSERT|1|2"]);
    worker.run("TRUNCATE facts");
    assert_eq!(told(&mut worker), ["INSERT|1|2", "TRUNCATE|1|0"]);
}

#[test]
fn the_role_whose_rights_count_and_the_one_that_logged_in_are_told() {
    let database = logged();
    let [job, clerk] = ["job", "clerk"].map(|name| database.role(name));
    let mut admin = database.connect();
    admin.run(&format!(
        "GRANT INSERT ON facts TO {job};
         CREATE FUNCTION put() RETURNS void SECURITY DEFINER LANGUAGE sql AS $$ INSERT INTO facts VALUES (now(), 1) $$;
         ALTER FUNCTION put() OWNER TO {job}"
    ));
    database.connect_as(&clerk).run("SELECT put()");
    assert_eq!(admin.lines(WRITES), [format!("INSERT|{job}|{clerk}|1|1")]);
}

#[test]
fn writers_neither_wait_for_each_other_nor_fail() {
    let database = logged();
    database.connect().run("ALTER TABLE facts DROP CONSTRAINT facts_at_key");
    for level in LEVELS {
        database.many(8, |i, session| {
            session.run("SET application_name = 'many'");
            for n in 0..20 {
                session.run(&format!(
                    "BEGIN ISOLATION LEVEL {level};
                     INSERT INTO facts VALUES (clock_timestamp(), {i}), (clock_timestamp(), {n}); COMMIT"
                ));
            }
        });
    }
    let mut admin = database.connect();
    assert_eq!(
        admin.lines("SELECT operation, transactions, rows FROM backfill.unfenced_writes"),
        ["INSERT|480|960"]
    );
    // Under READ COMMITTED there are no more rows than writers at once; above it a row may not be read.
    let rows = admin.count("backfill.unfenced_write_data");
    assert!((321..=328).contains(&rows), "{rows}");

    // A row that somebody holds is not waited for.
    let mut writer = database.connect();
    writer.run("SET lock_timeout = '100ms'; SET application_name = 'many'");
    writer.notices();
    admin.run("BEGIN; SELECT FROM backfill.unfenced_write_data FOR UPDATE");
    writer.run("INSERT INTO facts VALUES (now(), 1)");
    assert_eq!(writer.notices(), []);
    admin.run("COMMIT");
    assert_eq!(admin.lines("SELECT transactions FROM backfill.unfenced_writes"), ["481"]);
}

#[test]
fn a_record_that_cannot_be_written_is_a_warning() {
    let database = logged();
    let (mut admin, mut writer) = (database.connect(), database.connect());
    admin.run("BEGIN; LOCK backfill.unfenced_write_data");
    writer.notices();
    writer.run("INSERT INTO facts VALUES ('2024-01-05', 1)");
    let warning = "writes without a fence could not be recorded: ";
    let locked = format!("{warning}backfill.unfenced_write_data is locked");
    assert_eq!(writer.notices().iter().map(|notice| notice.message.as_str()).collect::<Vec<_>>(), [locked]);
    admin.run("ROLLBACK");
    admin.run("ALTER TABLE backfill.unfenced_write_data ADD CHECK (rows = 0)");
    writer.run("INSERT INTO facts VALUES ('2024-01-06', 1)");
    let notices = writer.notices();
    assert!(notices.len() == 1 && notices[0].message.contains("violates check constraint"), "{notices:?}");
    assert_eq!(admin.count("facts WHERE token = 1"), 2);
    assert_eq!(admin.count("backfill.unfenced_writes"), 0);
}

#[test]
fn a_change_of_mode_reaches_writers_at_their_next_statement() {
    let database = logged();
    let mut writer = database.connect();
    let write = "INSERT INTO facts VALUES (clock_timestamp(), 1)";
    writer.run(&format!("PREPARE put AS {write}; EXECUTE put"));
    let mut admin = database.connect();
    assert_eq!(admin.one::<String>("SELECT fence_protect('facts')", &[]), "changed: mode");
    assert_refused(&mut writer, "EXECUTE put");
    assert_eq!(admin.one::<String>("SELECT fence_protect('facts', 'log')", &[]), "changed: mode");
    writer.run("EXECUTE put");
    assert_eq!(admin.count("facts WHERE token = 1"), 2);
}
