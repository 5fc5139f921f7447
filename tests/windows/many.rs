//! Pipelines with more windows than a server has memory: what is read or refused costs nothing for a window that the
//! ledger does not name.

use crate::support::{Calls, define};
use pgrx_tests::{Cluster, Session, assert_sqlstate};

/// The most memory that the session's backend has had, in megabytes.
fn peak(session: &mut Session) -> i64 {
    let status =
        "SELECT (regexp_match(pg_read_file('/proc/self/status'), 'VmHWM:\\s+(\\d+)'))[1]::bigint / 1024";
    session.one(status, &[])
}

/// Runs them, and says by how many megabytes that raised the session's peak.
fn growth(session: &mut Session, calls: &[&str]) -> i64 {
    let before = peak(session);
    for sql in calls {
        session.lines(sql);
    }
    peak(session) - before
}

/// Reads of everything that a person looks at.
const READS: [&str; 7] = [
    "SELECT * FROM backfill.missed",
    "SELECT * FROM backfill.windows",
    "SELECT * FROM backfill.blocked",
    "SELECT * FROM backfill.attention",
    "SELECT * FROM backfill.pools",
    "SELECT window_why(pipeline, '2023-01-01T00:00+00:00') FROM backfill.pipelines",
    "SELECT p.pipeline, w.* FROM backfill.pipelines p, pipeline_windows(p.pipeline, '2024-01-01', '2024-01-01') w",
];

#[test]
fn memory_does_not_grow_with_windows_that_have_no_record() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    for (name, more) in [("free", "backlog => 2"), ("chained", "backlog => 2, depends_on_past => true")] {
        define(&mut session, name, "'1 minute', '2016-01-01'", more);
        session.active_for(name, "3 minutes");
        session.run(&format!("SELECT window_skip('{name}', '2020-01-01', '2020-01-01 00:05', 'test')"));
    }
    session.lines(READS[3]);
    let raised = growth(&mut session, &READS);
    assert!(raised < 100, "{raised} MB for five million windows without a record");
    // So many that there would be no memory for a list, whatever one of them costs.
    define(&mut session, "fast", "'1 microsecond', '2023-01-01'", "backlog => 0");
    let raised = growth(&mut session, &READS);
    assert!(raised < 100, "{raised} MB for the microseconds of years");
}

#[test]
fn what_is_missed_is_counted_without_being_listed() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    define(&mut session, "fast", "'1 second', '2020-01-01'", "backlog => 0");
    session.run("SELECT pipeline_pause('fast', 'test')");
    // What is due now is missed, less what was skipped; the clock goes on by less than an hour meanwhile.
    session.run("SELECT window_skip('fast', '2021-01-01', '2021-01-01 02:00', 'test')");
    let passed = "SELECT extract(epoch FROM now() - '2020-01-01 UTC')::bigint";
    let passed: i64 = session.one(passed, &[]);
    let missed: i64 = session.one("SELECT windows FROM backfill.missed", &[]);
    assert!((passed - 7201..passed - 3600).contains(&missed), "{missed} of {passed}");
    let resumed = "SELECT missed, oldest = '2020-01-01 UTC', newest > now() - interval '1 hour', plan_id
                   FROM pipeline_resume('fast')";
    let row = session.lines(resumed).concat();
    let (count, rest) = row.split_once('|').unwrap();
    assert!((passed - 7201..passed - 3600).contains(&count.parse().unwrap()), "{row}");
    assert_eq!(rest, "t|t|", "so many are planned in parts");
    assert_eq!(session.count("backfill.plans"), 0);
}

#[test]
fn a_call_names_ten_million_windows_at_most() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    define(&mut session, "fast", "'1 second', '2020-01-01'", "backlog => 0");
    for call in [
        "backfill_plan('fast', NULL, NULL, 'test')",
        "backfill_plan('fast', '2020-01-01', '2020-04-25 17:46:41', 'test')",
        "pipeline_windows('fast')",
        "window_lock('fast', NULL, NULL, 'test')",
        "window_mark_stale('fast', NULL, NULL, 'test')",
    ] {
        let refused = session.query(&format!("SELECT * FROM {call}"), &[]);
        assert_sqlstate!(refused, "54000");
    }
    let error = session.failure("SELECT * FROM pipeline_windows('fast', NULL, '2021-01-01')");
    assert_eq!(error.message, "31622400 windows are too many for one call");
    assert!(error.hint.contains("since => '2020-09-07T06:13:20+00:00'"));
    // Neither is refused where few windows are meant, wherever they lie.
    let few = "SELECT windows, plan_id FROM backfill_plan('fast', NULL, NULL, 'test', mode => 'failed')";
    assert_eq!(session.lines(few), ["0|"]);
    let few = "SELECT windows FROM backfill_plan('fast', NULL, NULL, 'test',
                   keys => '{2020-01-01T00:00+00:00,2024-01-01T00:00+00:00}')";
    assert_eq!(session.lines(few), ["2"]);
}
