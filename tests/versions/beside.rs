//! A version while somebody else edits, cancels, or fails.

use crate::plans::reverting::{KEEPING, Reverting};
use crate::support::{Calls, daily, define, waiting};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};

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

#[test]
fn a_call_that_was_ended_leaves_no_version_behind() {
    let (database, mut session) = with_query(
        "SELECT $1, slow()",
        "CREATE FUNCTION check_it(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
             IF current_setting('slow.sleeps', true) = 'on' THEN PERFORM pg_sleep(600); END IF; RETURN true; END $$;
         CREATE DOMAIN checked AS int CHECK (check_it(VALUE));
         CREATE FUNCTION slow() RETURNS text LANGUAGE sql AS $$ SELECT ('{1}'::checked[])::text $$",
    );
    let before = version(&mut session);
    session.run("SELECT backfill_plan('beside', NULL, '2024-01-02', 'x', expect => 1)");
    session.run("CALL backfill_work(pipelines => '{beside}')");
    let mut other = database.connect();
    other.run("SET slow.sleeps = on");
    for call in [
        "SELECT pipeline_version('beside')",
        "SELECT * FROM pipeline_windows('beside', NULL, '2024-01-03')",
        "SELECT * FROM pipeline_lint('beside')",
    ] {
        other.run("SET statement_timeout = 200");
        assert_sqlstate!(other.try_run(call), "57014");
        other.run("RESET statement_timeout");
    }
    other.run("RESET slow.sleeps");
    assert_eq!(version(&mut other), before);
}

/// Whoever may read the pipeline beside others would not see those either, and a worker would get none of their windows.
#[test]
fn an_error_that_calls_itself_a_cancel_ends_nobodys_call() {
    for constant in ["'{1}'::checked[]", "'1'::checked"] {
        let (database, mut session) = with_query(
            &format!("SELECT $1, ({constant})::text || poisoned()"),
            "CREATE FUNCTION check_it(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
                 IF current_setting('poison.is_there', true) = 'on' THEN RAISE 'poison' USING ERRCODE = '57014'; END IF;
                 RETURN true; END $$;
             CREATE DOMAIN checked AS int CHECK (check_it(VALUE));
             CREATE FUNCTION poisoned() RETURNS text LANGUAGE sql AS $$ SELECT ('{1}'::checked[])::text $$",
        );
        session.run("SELECT backfill_plan('beside', NULL, '2024-01-02', 'x', expect => 1)");
        let mut other = database.connect();
        other.run("SET poison.is_there = on");
        for call in [
            "SELECT count(*) FROM backfill.attention",
            "SELECT count(*) FROM backfill.missed",
            "SELECT count(*) FROM pipeline_windows('beside', NULL, '2024-01-03')",
            "SELECT * FROM backfill_claim('w')",
        ] {
            other.run(call);
        }
    }
}

#[test]
fn deep_queries_need_no_more_stack_than_postgresql() {
    let sum = format!("SELECT $1, ({})::text", vec!["1"; 3000].join(" + "));
    let (database, mut session) = with_query(&sum, "");
    let before = version(&mut session);
    assert_eq!(findings(&mut session), 1);
    session.run("SELECT backfill_plan('beside', NULL, '2024-01-02', 'x', expect => 1)");
    session.run("CALL backfill_work(pipelines => '{beside}')");
    assert_eq!(session.lines("SELECT v FROM target"), ["3000"]);
    assert_eq!(version(&mut database.connect()), before);
    let nested = format!("SELECT $1, {}1{}::text", "(SELECT ".repeat(250), ")".repeat(250));
    session.run(&format!("SELECT pipeline_alter('beside', jsonb_build_object('query', $q${nested}$q$))"));
    assert_ne!(version(&mut session), before);
    assert_eq!(findings(&mut session), 1);
}

/// How many findings the lint has: here, that the window's end is not used.
fn findings(session: &mut Session) -> i64 {
    session.one("SELECT count(*) FROM pipeline_lint('beside')", &[])
}

#[test]
fn taking_a_version_can_be_cancelled() {
    let (database, mut session) = with_query(
        "SELECT $1, ''",
        "CREATE FUNCTION deep(int) RETURNS int LANGUAGE sql AS 'SELECT $1'; CREATE TABLE slow_rows (n int)",
    );
    let query = format!("SELECT $1, ({})::text", vec!["deep(1)"; 2000].join(" + "));
    session.run(&format!("SELECT pipeline_alter('beside', jsonb_build_object('query', $q${query}$q$))"));
    let mut other = database.connect();
    other.run("SET statement_timeout = 1");
    assert_sqlstate!(other.try_run("SELECT pipeline_version('beside')"), "57014");
    other.run("RESET statement_timeout");
    assert_eq!(version(&mut other), version(&mut session));
}

#[test]
fn a_query_that_a_call_gives_has_the_version_of_the_pipelines() {
    let (_database, mut session) = with_query(
        "SELECT $1, outer_one()",
        "CREATE FUNCTION inner_one() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'a'; END $$;
         CREATE FUNCTION outer_one() RETURNS text LANGUAGE sql AS 'SELECT inner_one()'",
    );
    session.run("SELECT backfill_plan('beside', NULL, '2024-01-04', 'x', expect => 3)");
    let replace = |session: &mut Session| {
        let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => '{beside}')", &[]);
        session.run(&format!("SELECT replace_partition({token}, query => 'SELECT $1, outer_one()')"));
    };
    replace(&mut session);
    let before = version(&mut session);
    let built = "SELECT code_version FROM backfill.slices ORDER BY window_key";
    assert_eq!(session.lines(built), [before.as_str()]);
    session.run(
        "CREATE OR REPLACE FUNCTION inner_one() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'b'; END $$",
    );
    replace(&mut session);
    assert_eq!(session.lines(built), [before, version(&mut session)]);
}

#[test]
fn an_edit_while_a_query_runs_that_a_call_gives_is_refused() {
    let (database, mut session) = with_query(
        "SELECT $1, ''",
        "CREATE FUNCTION given() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'a'; END $$",
    );
    session.run("SELECT backfill_plan('beside', NULL, '2024-01-02', 'x', expect => 1)");
    let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => '{beside}')", &[]);
    let mut other = database.connect();
    other.run("BEGIN; SELECT pg_advisory_xact_lock(7)");
    let replace = format!(
        "SELECT replace_partition({token}, query => 'SELECT $1, given() FROM pg_advisory_xact_lock(7)')"
    );
    let outcome = waiting(&database, &mut session, &replace, || {
        other.run("CREATE OR REPLACE FUNCTION given() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'b'; END $$; COMMIT");
    });
    assert_sqlstate!(outcome, "BF004");
    session.run(&replace);
}

#[test]
fn a_function_that_is_edited_into_what_cannot_be_analysed_stops_no_worker() {
    let (_database, mut session) = with_query(
        "SELECT $1, outer_one()",
        "CREATE FUNCTION outer_one() RETURNS text LANGUAGE sql AS 'SELECT 1::text';
         CREATE FUNCTION poly(anyelement) RETURNS text LANGUAGE sql AS 'SELECT 2::text'",
    );
    session.run("CREATE OR REPLACE FUNCTION outer_one() RETURNS text LANGUAGE sql AS 'SELECT poly(1)'");
    session.run("SELECT backfill_plan('beside', NULL, '2024-01-03', 'x', expect => 2)");
    session.run("CALL backfill_work(pipelines => '{beside}')");
    assert_eq!(session.lines("SELECT DISTINCT v FROM target"), ["2"]);
    session.run("BEGIN; SELECT 1; COMMIT");
}

#[test]
fn an_error_within_a_function_leaves_the_caller_who_he_was() {
    let database = Cluster::shared().database();
    let [owner, reader] = ["owner", "reader"].map(|name| database.role(name));
    database.connect().run(&format!(
        "GRANT CREATE ON SCHEMA public TO {owner}; GRANT EXECUTE ON FUNCTION pipeline_define TO {owner}"
    ));
    let mut session = database.connect_as(&owner);
    session.run(&format!(
        "CREATE TABLE target (at timestamptz NOT NULL, v text); CREATE TABLE secret (n int);
         CREATE FUNCTION poly(anyelement) RETURNS text LANGUAGE sql AS 'SELECT 1';
         SELECT pipeline_define('beside', '1 day', '2024-01-01', target => 'target', slice_column => 'at',
             query => 'SELECT $1, poly(1)');
         SELECT pipeline_grant('beside', '{reader}', 'read')"
    ));
    let mut other = database.connect_as(&reader);
    for edit in ["SELECT 1", "ALTER FUNCTION poly RENAME TO gone"] {
        session.run(edit);
        for call in ["pipeline_version('beside')", "count(*) FROM pipeline_lint('beside')"] {
            other.run(&format!(
                "DO $$ BEGIN
                     BEGIN PERFORM {call}; EXCEPTION WHEN OTHERS THEN
                         IF current_user <> session_user THEN RAISE EXCEPTION 'as %', current_user; END IF;
                     END;
                     IF current_user <> session_user THEN RAISE EXCEPTION 'as %', current_user; END IF;
                 END $$"
            ));
        }
        assert_sqlstate!(other.try_run("SELECT * FROM secret"), "42501");
    }
}

#[test]
fn a_window_whose_slice_was_taken_back_explains_nothing() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    let query = |value: i32| format!("'SELECT $1, {value} WHERE $2 > $1'");
    session.run(&format!("SELECT pipeline_alter('daily', jsonb_build_object('query', {}))", query(1)));
    session.run("SELECT pipeline_pause('daily', 'test')");
    let run = |session: &mut Session, since: &str, until: &str| {
        let plan = session.draft(&format!("'{since}', '{until}', 'test'"));
        session.approve(plan).unwrap();
        session.run("CALL backfill_work(pipelines => ARRAY['daily'])");
        plan.id
    };
    run(&mut session, "2024-01-01", "2024-01-04");
    session.run(&format!("SELECT pipeline_alter('daily', jsonb_build_object('query', {}))", query(2)));
    let plan = run(&mut session, "2024-01-04", "2024-01-05");
    let change = "SELECT change FROM pipeline_explain_version('daily') WHERE kind = 'query'";
    assert_eq!(session.lines(change), ["same"]);
    session.revert(plan).unwrap();
    assert_eq!(session.lines(change), ["changed"]);
}
