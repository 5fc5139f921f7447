//! Tables of every shape, and what reaches them by detours.

use super::{assert_refused, assert_refused_within, copy, fence, protected};
use crate::support::{Calls, define};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};

/// A lease of a window of a pipeline.
fn lease(session: &mut Session, pipeline: &str, key: &str) -> i64 {
    session.one::<i64>(
        "SELECT windows FROM backfill_plan($1, NULL, NULL, 'test', keys => ARRAY[$2], expect => 1)",
        &[&pipeline, &key],
    );
    session.one("SELECT token FROM backfill_claim('test', pipelines => ARRAY[$1])", &[&pipeline])
}

#[test]
fn what_other_triggers_make_of_a_row_is_what_counts() {
    let database = protected();
    let mut worker = database.connect();
    worker.run(
        "CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN NEW.at := NEW.at + interval '1 day'; RETURN NEW; END $$;
         CREATE TRIGGER zz_last BEFORE INSERT ON facts FOR EACH ROW EXECUTE FUNCTION later()",
    );
    let token = lease(&mut worker, "daily", "2024-01-02");
    fence(&mut worker, token);
    assert_refused_within(&mut worker, "INSERT INTO facts VALUES ('2024-01-02', 1)");
    worker.run("INSERT INTO facts VALUES ('2024-01-01', 1); ROLLBACK");
    worker.run(
        "CREATE TABLE events (at timestamptz);
         CREATE FUNCTION copied() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO facts VALUES (NEW.at, 0); RETURN NULL; END $$;
         CREATE TRIGGER copied AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION copied()",
    );
    assert_refused(&mut worker, "INSERT INTO events VALUES ('2024-01-02')");
}

#[test]
fn cascades_are_writes() {
    let database = protected();
    let mut worker = database.connect();
    let token = lease(&mut worker, "daily", "2024-01-02");
    worker.run(
        "CREATE TABLE batches (id bigint PRIMARY KEY); INSERT INTO batches SELECT DISTINCT token FROM facts",
    );
    worker.run(
        "ALTER TABLE facts ADD FOREIGN KEY (token) REFERENCES batches ON DELETE CASCADE ON UPDATE CASCADE
         DEFERRABLE INITIALLY DEFERRED",
    );
    assert_refused(&mut worker, "DELETE FROM batches");
    assert_refused(&mut worker, "UPDATE batches SET id = id + 1");
    assert_refused(&mut worker, "TRUNCATE batches CASCADE");
    worker.run("INSERT INTO batches VALUES (1)");
    fence(&mut worker, token);
    worker.run("INSERT INTO facts VALUES ('2024-01-02', 1); DELETE FROM batches WHERE id = 1; COMMIT");
}

#[test]
fn the_bounds_are_those_of_the_columns_type_in_the_pipelines_zone() {
    let database = Cluster::shared().database();
    let mut worker = database.connect();
    worker.run("SET TimeZone = 'Asia/Tokyo'; CREATE DOMAIN day AS date");
    for (column, inside, outside) in [
        (
            "timestamptz",
            ["2013-03-10 00:00-05", "2013-03-10 23:59:59-04"],
            ["2013-03-09 23:59:59-05", "2013-03-11 00:00-04"],
        ),
        (
            "timestamp(0)",
            ["2013-03-10 00:00", "2013-03-10 23:59:59"],
            ["2013-03-09 23:59:59", "2013-03-11 00:00"],
        ),
        ("day", ["2013-03-10", "2013-03-10"], ["2013-03-09", "2013-03-11"]),
    ] {
        worker.run(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (at {column})"));
        let name = format!("in {column}");
        define(&mut worker, &name, "'1 day', '2013-03-01', 't', 'at'", "time_zone => 'America/New_York'");
        let token = lease(&mut worker, &name, "2013-03-10");
        worker.run("SELECT fence_protect('t')");
        fence(&mut worker, token);
        for value in inside {
            worker.run(&format!("INSERT INTO t VALUES ('{value}')"));
        }
        for value in outside.into_iter().chain(["infinity", "-infinity"]) {
            assert_refused_within(&mut worker, &format!("INSERT INTO t VALUES ('{value}')"));
        }
        assert_refused_within(&mut worker, "INSERT INTO t VALUES (NULL)");
        worker.run(&format!("COMMIT; SELECT pipeline_drop('{name}')"));
    }
}

#[test]
fn generated_and_late_columns_are_seen_and_row_security_is_no_matter() {
    let database = Cluster::shared().database();
    let mut worker = database.connect();
    worker.run(
        "CREATE TABLE t (gone int, local timestamp, note text,
                         at timestamp GENERATED ALWAYS AS (local + interval '1 day') STORED);
         ALTER TABLE t DROP gone;
         ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY;
         CREATE POLICY all_of_it ON t USING (true)",
    );
    define(&mut worker, "t", "'1 day', '2024-01-01', 't', 'at'", "");
    let token = lease(&mut worker, "t", "2024-01-02");
    worker.run("SELECT fence_protect('t')");
    fence(&mut worker, token);
    worker.run("INSERT INTO t VALUES ('2024-01-01 05:00')");
    assert_refused_within(&mut worker, "INSERT INTO t VALUES ('2024-01-02 05:00')");
    assert_refused_within(&mut worker, "UPDATE t SET local = local + interval '1 day'");
    worker.run("COMMIT");

    // Rows that are older than a column have its default.
    worker.run(
        "CREATE TABLE u (n int); INSERT INTO u VALUES (1); ALTER TABLE u ADD at date DEFAULT '2024-01-02'",
    );
    define(&mut worker, "u", "'1 day', '2024-01-01', 'u', 'at'", "");
    let token = lease(&mut worker, "u", "2024-01-02");
    worker.run("SELECT fence_protect('u')");
    assert_refused(&mut worker, "DELETE FROM u");
    fence(&mut worker, token);
    worker.run("DELETE FROM u; COMMIT");
}

/// A target with partitions by month, one of them in partitions itself, and columns in another order in each.
fn partitioned() -> Database {
    let database = Cluster::shared().database();
    let mut admin = database.connect();
    admin.run(
        "CREATE TABLE logs (gone int, at timestamptz NOT NULL, region text) PARTITION BY RANGE (at);
         ALTER TABLE logs DROP gone;
         CREATE TABLE january PARTITION OF logs FOR VALUES FROM ('2024-01-01Z') TO ('2024-02-01Z');
         CREATE TABLE february PARTITION OF logs FOR VALUES FROM ('2024-02-01Z') TO ('2024-03-01Z') PARTITION BY LIST (region);
         CREATE TABLE february_north PARTITION OF february FOR VALUES IN ('north');
         CREATE TABLE february_rest (region text, at timestamptz NOT NULL);
         ALTER TABLE february ATTACH PARTITION february_rest DEFAULT",
    );
    define(&mut admin, "logs", "'1 day', '2024-01-01', 'logs', 'at'", "");
    admin.run("SELECT fence_protect('logs')");
    database
}

#[test]
fn partitions_are_covered_whichever_way_the_rows_come() {
    let database = partitioned();
    let mut worker = database.connect();
    let tokens = ["2024-01-31", "2024-02-01"].map(|key| lease(&mut worker, "logs", key));
    for table in ["logs", "january"] {
        assert_refused(&mut worker, &format!("INSERT INTO {table} VALUES ('2024-01-31Z', 'north')"));
    }
    for table in ["logs", "february", "february_north"] {
        assert_refused(&mut worker, &format!("INSERT INTO {table} VALUES ('2024-02-01Z', 'north')"));
    }
    for table in ["logs", "january", "february", "february_north", "february_rest"] {
        assert_refused(&mut worker, &format!("TRUNCATE {table}"));
    }
    fence(&mut worker, tokens[0]);
    worker.run("INSERT INTO logs VALUES ('2024-01-31Z', 'north'), ('2024-01-31 01:00Z', 'south')");
    copy(&mut worker, "january", "2024-01-31 02:00Z\twest\n").unwrap();
    // Into another partition is into another window here.
    assert_refused_within(&mut worker, "UPDATE logs SET at = at + interval '1 day'");
    worker.run("COMMIT");
    worker.run(&format!("BEGIN; SELECT fence_check({}), fence_check({})", tokens[0], tokens[1]));
    worker.run("UPDATE logs SET at = at + interval '1 day'");
    worker.run("UPDATE february SET region = 'east' WHERE region = 'north'");
    worker.run("INSERT INTO february_rest VALUES ('up', '2024-02-01Z')");
    assert_refused_within(&mut worker, "INSERT INTO february_rest VALUES ('up', '2024-02-02Z')");
    worker.run("COMMIT");
    assert_eq!(worker.lines("SELECT tableoid::regclass, count(*) FROM logs GROUP BY 1"), ["february_rest|4"]);
    worker.run("SELECT backfill_finish(token) FROM backfill.leases");
    for key in ["2024-01-31", "2024-02-01"] {
        let token = lease(&mut worker, "logs", key);
        worker.run(&format!(
            "SELECT replace_partition({token}, query => 'SELECT $1, ''north''', allow_shrink => 'test')"
        ));
    }
    assert_eq!(worker.count("logs"), 2);
}

#[test]
fn partitions_that_come_later_are_covered_too() {
    let database = partitioned();
    let mut admin = database.connect();
    admin.run(
        "CREATE TABLE march PARTITION OF logs FOR VALUES FROM ('2024-03-01Z') TO ('2024-04-01Z');
         CREATE TABLE april (region text, at timestamptz NOT NULL); INSERT INTO april VALUES ('x', '2024-04-02Z');
         ALTER TABLE logs ATTACH PARTITION april FOR VALUES FROM ('2024-04-01Z') TO ('2024-05-01Z')",
    );
    for write in [
        "INSERT INTO march VALUES ('2024-03-02Z')",
        "INSERT INTO april VALUES ('y', '2024-04-02Z')",
        "DELETE FROM april",
        "TRUNCATE logs",
    ] {
        assert_refused(&mut admin, write);
    }
    // PostgreSQL does not clone what guards them against TRUNCATE: it is said, and made good.
    let protections = "SELECT pipeline, target, mode, unguarded FROM backfill.protections";
    assert_eq!(admin.lines(protections), ["logs|logs|refuse|{april,march}"]);
    let remedy: String = admin.one("SELECT remedy FROM backfill.attention WHERE kind = 'unguarded'", &[]);
    admin.run(&remedy);
    assert_eq!(admin.lines(protections), ["logs|logs|refuse|{}"]);
    assert_refused(&mut admin, "TRUNCATE april");
    assert_eq!(admin.one::<String>("SELECT fence_protect('logs')", &[]), "unchanged");

    // A partition that left is a table of its own, and may come back.
    admin.run("ALTER TABLE logs DETACH PARTITION april; INSERT INTO april VALUES ('y', '2024-04-02Z'); TRUNCATE april");
    admin.run("ALTER TABLE logs ATTACH PARTITION april FOR VALUES FROM ('2024-04-01Z') TO ('2024-05-01Z')");
    assert_refused(&mut admin, "INSERT INTO april VALUES ('y', '2024-04-02Z')");
    assert_refused(&mut admin, "TRUNCATE april");
    assert_eq!(admin.one::<String>("SELECT fence_unprotect('logs')", &[]), "unprotected");
    let left = "pg_trigger WHERE tgfoid = 'backfill.fence_guard'::regproc";
    assert_eq!(admin.count(left), 0);
}

#[test]
fn a_trigger_of_somebodys_own_making_is_no_way_around() {
    let database = protected();
    let mut admin = database.connect();
    admin.run("CREATE TABLE own (at timestamptz)");
    admin.run(
        "CREATE TRIGGER before BEFORE INSERT ON own FOR EACH ROW EXECUTE FUNCTION backfill.fence_guard()",
    );
    assert_sqlstate!(admin.try_run("INSERT INTO own VALUES (now())"), "0A000");
    assert_sqlstate!(admin.try_run("SELECT backfill.fence_guard()"), "0A000");
}

#[test]
fn the_hint_without_a_pipeline_names_the_table_that_is_protected() {
    let database = partitioned();
    let mut admin = database.connect();
    admin.run("SELECT pipeline_drop('logs')");
    let call = "SELECT fence_unprotect('public.logs')";
    for sql in ["INSERT INTO logs VALUES ('2024-02-01Z', 'north')", "SELECT fence_unprotect('february_rest')"]
    {
        let failure = admin.failure(sql);
        assert!(failure.hint.starts_with(call), "{failure}");
    }
    admin.run(call);
    admin.run("INSERT INTO logs VALUES ('2024-02-01Z', 'north')");
}
