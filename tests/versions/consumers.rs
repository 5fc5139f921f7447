//! What those who read a target ask: which code built the slice of an instant.

use crate::plans::reverting::{KEEPING, Reverting};
use crate::support::{daily, define};
use pgrx_tests::{Session, assert_sqlstate};

/// Builds days of `daily` by code of a version, in a plan.
fn build(session: &mut Session, since: &str, until: &str, version: &str) -> i64 {
    let plan: i64 = session.one(
        &format!(
            "SELECT plan_id FROM backfill_plan('daily', '{since}', '{until}', 'why', code_version => '{version}',
                expect => (DATE '{until}' - DATE '{since}'))"
        ),
        &[],
    );
    session.run(&format!(
        "SELECT replace_partition(token, query => format('SELECT $1, %s::bigint', token))
         FROM backfill_claim('w', 16, pipelines => '{{daily}}', code_version => '{version}')"
    ));
    plan
}

fn built(session: &mut Session, of: &str, at: &str) -> Option<String> {
    session.one(&format!("SELECT slice_version('{of}', '{at}')"), &[])
}

#[test]
fn an_instant_names_the_code_that_built_its_slice() {
    let database = daily(KEEPING);
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    build(&mut session, "2024-01-01", "2024-01-03", "v1");
    let second = build(&mut session, "2024-01-02", "2024-01-04", "v2");
    let answers = |session: &mut Session| {
        [
            "2023-12-31 23:59Z",
            "2024-01-01Z",
            "2024-01-01 23:59:59.999999Z",
            "2024-01-02Z",
            "2024-01-03 12:00Z",
            "2024-01-04Z",
        ]
        .map(|at| built(session, "facts", at).unwrap_or_default())
    };
    assert_eq!(answers(&mut session), ["", "v1", "v1", "v2", "v2", ""]);
    // It is an answer for each row.
    assert_eq!(
        session.lines("SELECT at::date, slice_version('facts', at) FROM facts ORDER BY 1"),
        ["2024-01-01|v1", "2024-01-02|v2", "2024-01-03|v2"]
    );
    session.revert(second).unwrap();
    assert_eq!(answers(&mut session), ["", "v1", "v1", "v1", "", ""]);
    session.run("SELECT pipeline_rename('daily', 'renamed')");
    assert_eq!(answers(&mut session), ["", "v1", "v1", "v1", "", ""]);
    // Slices outlive their pipeline, until another one replaces them.
    session.run("SELECT pipeline_drop('renamed')");
    assert_eq!(answers(&mut session), ["", "v1", "v1", "v1", "", ""]);
    define(&mut session, "daily", "'1 day', '2024-01-01', 'facts', 'at'", "");
    build(&mut session, "2024-01-02", "2024-01-03", "v3");
    assert_eq!(answers(&mut session), ["", "v1", "v1", "v3", "", ""]);
    assert_eq!(session.one::<Option<String>>("SELECT slice_version(NULL, now())", &[]), None);
    assert_eq!(session.one::<Option<String>>("SELECT slice_version('facts', NULL)", &[]), None);
}

#[test]
fn a_partition_is_asked_for_as_its_table_is_and_only_by_who_may() {
    let database = daily("");
    let mut session = database.connect();
    session.run(
        "CREATE TABLE parted (at timestamptz NOT NULL, token bigint) PARTITION BY RANGE (at);
         CREATE TABLE \"2024 🦀\" PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
         SELECT pipeline_drop('daily')",
    );
    define(&mut session, "daily", "'1 day', '2024-01-01', 'parted', 'at'", "");
    build(&mut session, "2024-01-01", "2024-01-02", "v1");
    assert_eq!(built(&mut session, "\"2024 🦀\"", "2024-01-01Z").as_deref(), Some("v1"));
    assert_sqlstate!(session.query("SELECT slice_version('pg_class', now())", &[]), "42704");
    let role = database.role("consumer");
    let mut consumer = database.connect_as(&role);
    assert_sqlstate!(consumer.query("SELECT slice_version('parted', '2024-01-01Z')", &[]), "42501");
    session.run(&format!("SELECT pipeline_grant('daily', '{role}', 'read')"));
    assert_eq!(built(&mut consumer, "parted", "2024-01-01Z").as_deref(), Some("v1"));
}

#[test]
fn an_answer_is_a_look_at_indexes() {
    let database = daily("");
    let mut session = database.connect();
    build(&mut session, "2024-01-01", "2024-01-02", "v1");
    let scans = "SELECT relname, seq_scan FROM pg_stat_xact_all_tables
        WHERE schemaname = 'backfill' AND relname IN ('pipeline_data', 'run_data') ORDER BY 1";
    session.run("BEGIN");
    let before = session.lines(scans);
    session.run("SELECT slice_version('facts', '2024-01-01Z')");
    assert_eq!(session.lines(scans), before);
}
