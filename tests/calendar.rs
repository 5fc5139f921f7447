//! `pipeline_calendar`: the windows of a pipeline as a page of text.

use crate::support::{Calls, daily, define};
use pgrx_tests::{Cluster, Session, assert_sqlstate};

fn calendar(session: &mut Session, arguments: &str) -> Vec<String> {
    session.lines(&format!("SELECT * FROM pipeline_calendar({arguments})"))
}

/// Claims the next window for code of that version.
fn lease(session: &mut Session, version: &str) -> i64 {
    let claim = format!("1, pipelines => ARRAY['daily'], code_version => '{version}'");
    session.try_claim(&claim).unwrap()[0].token
}

#[test]
fn every_window_has_a_glyph_for_its_state() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    session.plan("2024-01-05", "");
    for _ in 0..2 {
        let token = lease(&mut session, "v1");
        session.replace(token).unwrap();
    }
    let [failing, retried] = [(); 2].map(|()| lease(&mut session, "v1"));
    session.run(&format!(
        "SELECT backfill_fail({failing}, 'no luck', false), backfill_fail({retried}, 'no luck')"
    ));
    session.run("SELECT window_skip('daily', '2024-01-06', '2024-01-08', 'no data')");
    session.draft("'2024-01-30', '2024-02-05', 'test', expect => 6");
    lease(&mut session, "v1");

    let expected = [
        "         1   5    10   15   20   25   30",
        "2024-01  ##!~.--......................>+",
        "2024-02  ++++..",
        "",
        "> leased 1   ~ retrying 1   - skipped 2   + queued 5   ! failed 1   # done 2",
        ". missed 25",
    ];
    assert_eq!(calendar(&mut session, "'daily', NULL, '2024-02-07'"), expected);
    let future = calendar(&mut session, "'daily', current_date, current_date + 3");
    assert_eq!(future.last().unwrap(), "_ future 3");
    assert_eq!(calendar(&mut session, "'daily', '2024-01-03', '2024-01-03'"), [""; 0]);
}

#[test]
fn slices_of_several_versions_have_letters() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-06", "");
    for version in ["v1", "a version with a very long name", "v1", "v3"] {
        let token = lease(&mut session, version);
        session.replace(token).unwrap();
    }
    let expected = [
        "         1   5    10   15   20   25   30",
        "2024-01  abac+",
        "",
        "+ queued 1   a done 2 by v1   b done 1 by a version with a very...   c done 1 by v3",
    ];
    let lines = calendar(&mut session, "'daily', '2024-01-01', '2024-01-06'");
    assert_eq!(lines[..3], expected[..3]);
    assert_eq!(lines[3..].join("   "), expected[3]);
    // Of one version there is nothing to tell apart.
    assert_eq!(calendar(&mut session, "'daily', '2024-01-01', '2024-01-02'")[3], "# done 1");
}

#[test]
fn days_of_23_and_25_hours_line_up() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    define(&mut session, "hourly", "'1 hour', '2013-03-01'", "time_zone => 'America/New_York'");
    let day = ".".repeat(24);
    assert_eq!(
        calendar(&mut session, "'hourly', '2013-03-09', '2013-03-12'")[..4],
        [
            "            0  3  6  9  12 15 18 21".to_owned(),
            format!("2013-03-09  {day}"),
            "2013-03-10  .. .....................".to_owned(),
            format!("2013-03-11  {day}"),
        ]
    );
    assert_eq!(
        calendar(&mut session, "'hourly', '2013-11-03', '2013-11-05'")[1..],
        [
            format!("2013-11-03  {day}"),
            "     again   .".to_owned(),
            format!("2013-11-04  {day}"),
            String::new(),
            ". missed 49".to_owned(),
        ]
    );
}

#[test]
fn a_range_of_too_many_windows_is_refused_with_one_that_is_not() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    define(&mut session, "by_minute", "'1 minute', '2013-01-01'", "");
    let failure = assert_sqlstate!(
        session.try_run("SELECT pipeline_calendar('by_minute', until => '2013-02-01')"),
        "22023"
    );
    let since = failure.hint.split('\'').nth(1).expect("the hint quotes a bound");
    assert!(!failure.detail.is_empty(), "{failure}");
    let lines = calendar(&mut session, &format!("'by_minute', '{since}', '2013-02-01'"));
    assert_eq!(lines.last().unwrap(), ". missed 10000");
    assert!(lines.iter().all(|line| line.len() <= 80), "{lines:#?}");
}

#[test]
fn each_grid_of_a_pipeline_is_laid_out_in_its_own_way() {
    let database = daily("");
    let mut session = database.connect();
    session.run(r#"SELECT pipeline_alter('daily', '{"cadence": "8 hours", "switch_at": "2024-02-28"}')"#);
    let expected = [
        "         1   5    10   15   20   25   30",
        "2024-02                           ..",
        "",
        "            0 16",
        "2024-02-28  ...",
        "2024-02-29  ...",
        "",
        ". missed 8",
    ];
    assert_eq!(calendar(&mut session, "'daily', '2024-02-26', '2024-03-01'"), expected);
}
