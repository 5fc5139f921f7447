//! Another grid for a pipeline with a history: the windows before the switch stay what they are, those after it
//! are laid anew, and nothing starts that the catchup rule does not admit.

use crate::support::{Calls, daily, define, keys};
use pgrx_tests::{Database, Failure, Session, assert_sqlstate};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Calls `pipeline_alter` and returns what it answers.
fn alter(session: &mut Session, pipeline: &str, settings: &str) -> Result<String, Failure> {
    let sql = format!("SELECT pipeline_alter('{pipeline}', $json${settings}$json$)");
    session.try_one(&sql, &[])
}

#[track_caller]
fn altered(session: &mut Session, pipeline: &str, settings: &str) -> String {
    alter(session, pipeline, settings).unwrap_or_else(|failure| panic!("{failure}"))
}

/// The call that a refusal suggests.
#[track_caller]
fn suggested(failure: &Failure) -> String {
    let call = failure.hint.split(" keeps ").next().expect("split yields one part");
    assert!(call.starts_with("SELECT pipeline_alter(") && call.contains("switch_at"), "{failure}");
    call.to_owned()
}

/// The keys and states of windows of `daily`.
fn windows(session: &mut Session, since: &str, until: &str) -> Vec<String> {
    session.lines(&format!("SELECT window_key, state FROM pipeline_windows('daily', '{since}', '{until}')"))
}

/// `daily` with the slices of 1 to 3 January.
fn three_days(settings: &str) -> (Database, Session) {
    let database = daily(settings);
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 99)");
    session.plan("2024-01-04", "");
    for lease in session.leases(3) {
        session.replace(lease.token).unwrap();
    }
    (database, session)
}

#[test]
fn the_windows_before_the_switch_stay_and_those_after_it_are_laid_anew() {
    let (_database, mut session) = three_days("");
    let slices = "SELECT window_key, token, rows FROM backfill.slices ORDER BY 1";
    let before = session.lines(slices);
    let switch = r#"{"cadence": "1 hour", "switch_at": "2024-01-04"}"#;
    assert_eq!(altered(&mut session, "daily", switch), "changed: cadence");
    assert_eq!(altered(&mut session, "daily", switch), "unchanged", "once more");
    assert_eq!(session.lines(slices), before);
    assert_eq!(
        windows(&mut session, "2024-01-02", "2024-01-04 02:00"),
        [
            "2024-01-02|done",
            "2024-01-03|done",
            "2024-01-04T00:00+00:00|missed",
            "2024-01-04T01:00+00:00|missed"
        ]
    );
    // Both are named by their keys, planned, and written within their bounds.
    for (key, hours) in [("2024-01-02", 24), ("2024-01-04T01:00+00:00", 1)] {
        session.plan_window(key);
        let lease = session.lease();
        assert_eq!(lease.key, key);
        let length = "SELECT window_end - window_start = make_interval(hours => $2) FROM backfill.leases
                      WHERE window_key = $1";
        assert!(session.one::<bool>(length, &[&key, &hours]), "{key}");
        session.replace(lease.token).unwrap();
    }
    session.assert_data_is_the_ledger();
    let runs = "SELECT window_key FROM backfill.runs ORDER BY token";
    let named = ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-02", "2024-01-04T01:00+00:00"];
    assert_eq!(session.lines(runs), named);
    assert_eq!(
        session.lines(
            "SELECT since, until AT TIME ZONE 'UTC', cadence, replaced_by, replaced_at IS NULL FROM backfill.grids ORDER BY since"
        ),
        [
            "-infinity|2024-01-04 00:00:00|1 day|postgres|f",
            "2024-01-04 00:00:00+00|infinity|01:00:00||t"
        ]
    );
    for key in ["2024-01-04", "2024-01-03T01:00+00:00", "2024-01-04T01:00"] {
        assert_sqlstate!(session.try_run(&format!("SELECT window_why('daily', '{key}')")), "22023");
    }
}

#[test]
fn the_script_of_the_present_grid_changes_nothing_and_that_of_another_is_refused() {
    let (_database, mut session) = three_days("");
    let script = |cadence: &str| {
        format!("SELECT pipeline_define('daily', '{cadence}', '2024-01-01', 'facts', 'at', max_active => 2)")
    };
    let refused = assert_sqlstate!(session.try_run(&script("1 hour")), "22023");
    assert!(refused.detail.contains("1 h"), "{refused}");
    session.run(&suggested(&refused));
    assert_eq!(session.one::<String>(&script("1 hour"), &[]), "changed: max_active");
    assert_eq!(session.one::<String>(&script("1 hour"), &[]), "unchanged");
    assert_sqlstate!(session.try_run(&script("1 day")), "22023");
    // The start that was given with the switch is the one that the script must have now.
    altered(
        &mut session,
        "daily",
        r#"{"cadence": "1 day", "start_at": "2024-01-01 06:00", "switch_at": "2024-01-06 06:00"}"#,
    );
    let moved = script("1 day").replace("'2024-01-01'", "'2024-01-01 06:00'");
    assert_eq!(session.one::<String>(&moved, &[]), "unchanged");
    assert_eq!(
        windows(&mut session, "2024-01-06 05:00", "2024-01-08 06:00"),
        ["2024-01-06T05:00+00:00|missed", "2024-01-06T06:00|missed", "2024-01-07T06:00|missed"]
    );
}

#[test]
fn a_switch_is_at_a_boundary_of_both_grids_and_after_every_window_of_the_ledger() {
    let (_database, mut session) = three_days("");
    let refused = alter(&mut session, "daily", r#"{"cadence": "7 days"}"#);
    let refused = assert_sqlstate!(refused, "22023");
    assert!(refused.hint.contains("2024-01-08T00:00+00:00"), "{refused}");
    let weeks = |at: &str| format!(r#"{{"cadence": "7 days", "switch_at": "{at}"}}"#);
    let refused = assert_sqlstate!(alter(&mut session, "daily", &weeks("2024-01-01")), "22023");
    assert!(refused.detail.contains("2024-01-04T00:00+00:00"), "{refused}");
    let off = assert_sqlstate!(alter(&mut session, "daily", &weeks("2024-01-09")), "BF012");
    let nearest = "The nearest boundaries of both are 2024-01-08T00:00+00:00 and 2024-01-15T00:00+00:00.";
    assert_eq!(off.hint, nearest);
    let off = assert_sqlstate!(alter(&mut session, "daily", &weeks("2024-01-05")), "BF012");
    assert_eq!(off.hint, "The nearest boundary of both is 2024-01-08T00:00+00:00.");
    let none = r#"{"cadence": "1 day", "time_zone": "America/New_York"}"#;
    let refused = assert_sqlstate!(alter(&mut session, "daily", none), "22023");
    assert!(refused.hint.contains("1 hour"), "{refused}");
    for odd in [
        r#"{"switch_at": "2024-01-08"}"#,
        r#"{"backlog": 4, "switch_at": "2024-01-08"}"#,
        r#"{"cadence": "7 days", "switch_at": 5}"#,
        r#"{"cadence": "7 days", "switch_at": "tomorrow"}"#,
        r#"{"cadence": "7 days", "switch_at": "9999-12-31"}"#,
    ] {
        let refused = assert_sqlstate!(alter(&mut session, "daily", odd), "22023");
        assert!(!refused.detail.is_empty() && !refused.hint.is_empty(), "{refused}");
    }
    assert_sqlstate!(
        session.try_run("SELECT pipeline_define('daily', '1 day', '2024-01-01', switch_at => 'x')"),
        "42883"
    );

    // What a mark or a plan names is history as well; a draft is not.
    session.draft("'2024-03-01', '2024-03-02', 'test'");
    let end = |session: &mut Session| {
        let failure = assert_sqlstate!(alter(session, "daily", r#"{"cadence": "1 hour"}"#), "22023");
        failure.detail.split("ends at ").nth(1).expect("it says when").to_owned()
    };
    assert_eq!(end(&mut session), "2024-01-04T00:00+00:00.");
    session.run("SELECT window_skip('daily', '2024-01-09', '2024-01-10', 'test')");
    assert_eq!(end(&mut session), "2024-01-10T00:00+00:00.");
    let plan = session.plan_window("2024-01-20");
    assert_eq!(end(&mut session), "2024-01-21T00:00+00:00.");
    session.cancel(plan);
    assert_eq!(end(&mut session), "2024-01-10T00:00+00:00.");
}

#[test]
fn without_a_history_the_grid_is_replaced_and_drafts_are_out_of_date() {
    let database = daily("");
    let mut session = database.connect();
    let draft = session.draft("'2024-01-01', '2024-01-03', 'test'");
    let keyed = session.draft("NULL, NULL, 'test', keys => ARRAY['2024-01-02']");
    assert_eq!(altered(&mut session, "daily", r#"{"cadence": "1 hour"}"#), "changed: cadence");
    for plan in [draft, keyed] {
        let refused = assert_sqlstate!(session.approve(plan), "BF004");
        assert!(refused.message.contains("grid"), "{refused}");
    }
    let keys = windows(&mut session, "2024-01-01", "2024-01-01 02:00");
    assert_eq!(keys, ["2024-01-01T00:00+00:00|missed", "2024-01-01T01:00+00:00|missed"]);
    assert_eq!(session.count("backfill.grids"), 1);
    // Later, earlier, in another zone: there is nothing to keep.
    let settings = r#"{"cadence": "1 day", "start_at": "2024-02-01", "time_zone": "Asia/Tokyo"}"#;
    assert_eq!(altered(&mut session, "daily", settings), "changed: cadence, start_at, time_zone");
    let first = "SELECT window_key, window_start FROM pipeline_windows('daily') LIMIT 1";
    assert_eq!(session.lines(first), ["2024-02-01|2024-01-31 15:00:00+00"]);
    // A local midnight stays one in another zone.
    assert_eq!(altered(&mut session, "daily", r#"{"time_zone": "UTC"}"#), "changed: time_zone");
    assert_eq!(session.lines(first), ["2024-02-01|2024-02-01 00:00:00+00"]);
    // From the first record on, there is.
    let plan = session.plan_window("2024-02-03");
    assert_sqlstate!(alter(&mut session, "daily", r#"{"cadence": "1 hour"}"#), "22023");
    session.cancel(plan);
    altered(&mut session, "daily", r#"{"cadence": "1 hour"}"#);
}

#[test]
fn a_switch_that_has_not_come_yet_can_be_taken_back() {
    let (_database, mut session) = three_days("");
    let switch = |cadence: &str, at: &str| format!(r#"{{"cadence": "{cadence}", "switch_at": "{at}"}}"#);
    altered(&mut session, "daily", &switch("1 hour", "2124-01-01"));
    assert_eq!(altered(&mut session, "daily", &switch("1 hour", "2125-01-01")), "unchanged");
    assert_eq!(altered(&mut session, "daily", &switch("1 hour", "2123-01-01")), "changed: switch_at");
    assert_eq!(windows(&mut session, "2024-01-04", "2024-01-05"), ["2024-01-04|missed"]);
    altered(&mut session, "daily", &switch("7 days", "2024-01-08"));
    let grids = "SELECT cadence, until AT TIME ZONE 'UTC' FROM backfill.grids ORDER BY since";
    assert_eq!(session.lines(grids), ["1 day|2024-01-08 00:00:00", "7 days|infinity"]);
    altered(&mut session, "daily", &switch("1 month", "2024-07-01"));
    altered(&mut session, "daily", &switch("2 months", "2024-07-01"));
    assert_eq!(session.lines(grids)[1..], ["7 days|2024-07-01 00:00:00", "2 mons|infinity"]);
    assert_eq!(
        windows(&mut session, "2024-06-24", "2024-11-01"),
        ["2024-06-24|missed", "2024-07-01|missed", "2024-09-01|missed"]
    );
}

#[test]
fn what_starts_by_itself_follows_from_clock_and_ledger_on_the_new_grid_too() {
    let database = daily("");
    let mut session = database.connect();
    let settings = "max_active => 99, backlog => 3, catchup => 2";
    define(&mut session, "hourly", "'1 hour', now() - interval '100 hours 30 minutes'", settings);
    session.active_for("hourly", "50 hours");
    let hour = |n: i64| {
        format!("(SELECT start_at + interval '{n} hours' FROM backfill.pipelines WHERE pipeline = 'hourly')")
    };
    session.run(&format!("SELECT window_skip('hourly', NULL, {}, 'test')", hour(10)));
    let switch = |session: &mut Session, cadence: &str, n: i64| {
        session.run(&format!(
            "SELECT pipeline_alter('hourly', jsonb_build_object('cadence', '{cadence}', 'switch_at', {}::text))",
            hour(n)
        ));
    };
    let states = |session: &mut Session| -> Vec<String> {
        session.lines(
            "SELECT state, count(*) FROM (
                 SELECT state, window_start, sum(turn) OVER (ORDER BY window_start) AS stretch FROM (
                     SELECT *, (state IS DISTINCT FROM lag(state) OVER (ORDER BY window_start))::int AS turn
                     FROM pipeline_windows('hourly')) w) w
             GROUP BY stretch, state ORDER BY stretch",
        )
    };
    let hours = ["skipped|10", "missed|38", "eligible|2", "missed|47", "eligible|3"];
    assert_eq!(states(&mut session), hours);
    // A switch that is still to come changes nothing.
    switch(&mut session, "2 hours", 120);
    assert_eq!(states(&mut session), hours);
    // 40 windows of an hour and 30 of two; five of those had fallen due when the pipeline became active.
    switch(&mut session, "2 hours", 40);
    assert_eq!(states(&mut session), ["skipped|10", "missed|33", "eligible|2", "missed|22", "eligible|3"]);
    let missed = "SELECT windows FROM backfill.missed WHERE pipeline = 'hourly'";
    assert_eq!(session.lines(missed), ["55"]);
    let started = session.all_of("hourly");
    assert_eq!(started.len(), 5);
    let kinds: Vec<&str> = started.iter().map(|lease| lease.run_kind.as_str()).collect();
    assert_eq!(kinds, ["catchup", "catchup", "scheduled", "scheduled", "scheduled"]);
    for lease in &started {
        session.call("finish", lease.token);
    }
    assert_eq!(session.all_of("hourly"), []);
    assert_eq!(states(&mut session), ["skipped|10", "missed|33", "done|2", "missed|22", "done|3"]);
    assert_eq!(session.lines(missed), ["55"]);
}

#[test]
fn a_plan_goes_over_a_switch() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 99)");
    session.run("SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')");
    altered(&mut session, "daily", r#"{"cadence": "6 hours", "switch_at": "2024-01-05"}"#);
    altered(&mut session, "daily", r#"{"cadence": "7 days", "switch_at": "2024-01-08"}"#);
    let plan = session.draft("'2024-01-03', '2024-01-22', 'test'");
    assert_eq!(plan.windows, 2 + 12 + 2);
    session.approve(plan).unwrap();
    let leases = session.all_of("daily");
    assert_eq!(keys(&leases)[..3], ["2024-01-03", "2024-01-04", "2024-01-05T00:00+00:00"]);
    assert_eq!(keys(&leases)[13..], ["2024-01-07T18:00+00:00", "2024-01-08", "2024-01-15"]);
    for lease in leases {
        session.replace(lease.token).unwrap();
    }
    session.assert_data_is_the_ledger();
    let plans = "SELECT state, done FROM backfill.plans";
    assert_eq!(session.lines(plans), ["completed|16"]);
    let overlaps = "SELECT a.window_key FROM backfill.slices a JOIN backfill.slices b
                    ON a.window_start < b.window_start AND b.window_start < a.window_end";
    assert_eq!(session.lines(overlaps), [""; 0]);
    assert_eq!(session.count("facts"), 64);
}

#[test]
fn the_window_before_the_first_of_a_new_grid_is_the_last_of_the_old_one() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "chain", "'1 day', '2024-01-01'", "depends_on_past => true");
    let plan = |since: &str, until: &str, windows: i64| {
        format!(
            "SELECT backfill_plan('chain', '{since}', '{until}', 'test', ordering => 'sequential', expect => {windows})"
        )
    };
    session.run(&plan("2024-01-02", "2024-01-03", 1));
    altered(&mut session, "chain", r#"{"cadence": "1 hour", "switch_at": "2024-01-03"}"#);
    session.run(&plan("2024-01-03", "2024-01-03 02:00", 2));
    // Nothing may start before the day before it, which was never planned.
    assert_eq!(session.all_of("chain"), []);
    session.run(&plan("2024-01-01", "2024-01-02", 1));
    let mut done = vec![];
    while let Some(lease) = session.all_of("chain").pop() {
        session.call("finish", lease.token);
        done.push(lease.key);
    }
    assert_eq!(done, ["2024-01-01", "2024-01-02", "2024-01-03T00:00+00:00", "2024-01-03T01:00+00:00"]);
    // A day that is added before them is in the way of nothing that is done.
    altered(&mut session, "chain", r#"{"start_at": "2023-12-31"}"#);
    let states = "SELECT window_key, state FROM pipeline_windows('chain', NULL, '2024-01-03 01:00')";
    assert_eq!(
        session.lines(states),
        ["2023-12-31|missed", "2024-01-01|done", "2024-01-02|done", "2024-01-03T00:00+00:00|done"]
    );
}

#[test]
fn slices_and_queries_keep_the_zone_of_their_windows() {
    let database = daily("");
    let mut session = database.connect();
    session.run("CREATE TABLE days (day date NOT NULL, zone text)");
    define(
        &mut session,
        "days",
        "'1 day', '2023-06-01', 'days', 'day'",
        "query => 'SELECT ($1 AT TIME ZONE current_setting(''TimeZone''))::date, current_setting(''TimeZone'')'",
    );
    let plan = |key: &str| {
        format!(
            "SELECT backfill_approve(plan_id, 1) FROM backfill_plan('days', NULL, NULL, 'x', keys => ARRAY['{key}'])"
        )
    };
    session.run(&plan("2023-07-01"));
    session.run("CALL backfill_work(pipelines => ARRAY['days'])");
    let settings = r#"{"time_zone": "Europe/London", "switch_at": "2024-01-10"}"#;
    assert_eq!(altered(&mut session, "days", settings), "changed: time_zone");
    session.run("INSERT INTO days VALUES ('2023-06-30', 'kept'), ('2024-06-30', 'kept')");
    let claim = "SELECT window_key, time_zone FROM backfill_claim('test', 1, pipelines => ARRAY['days'])";
    for (key, zone) in [("2023-07-01", "UTC"), ("2024-07-01", "Europe/London")] {
        session.run(&plan(key));
        assert_eq!(session.lines(claim), [format!("{key}|{zone}")]);
    }
    let shown = "SELECT window_key, time_zone, window_start FROM backfill.leases ORDER BY token";
    assert_eq!(
        session.lines(shown),
        ["2023-07-01|UTC|2023-07-01 00:00:00+00", "2024-07-01|Europe/London|2024-06-30 23:00:00+00"]
    );
    session.run("SELECT replace_partition(token) FROM backfill.leases ORDER BY token");
    assert_eq!(
        session.lines("SELECT * FROM days ORDER BY 1"),
        ["2023-06-30|kept", "2023-07-01|UTC", "2024-06-30|kept", "2024-07-01|Europe/London"]
    );
    // The column must tell the windows of every grid apart.
    assert_sqlstate!(
        alter(&mut session, "days", r#"{"cadence": "1 hour", "switch_at": "2025-01-01"}"#),
        "22023"
    );
}

#[test]
fn a_column_without_a_zone_is_never_in_two_windows() {
    let database = daily("");
    let mut session = database.connect();
    for (name, zone, start, other, other_start) in [
        ("back", "UTC", "2024-01-01 05:00", "America/New_York", "2024-01-01"),
        ("forth", "America/New_York", "2024-01-01", "UTC", "2024-01-01 05:00"),
    ] {
        session.run(&format!("CREATE TABLE {name} (at timestamp NOT NULL)"));
        let first = format!("'1 day', '{start}', '{name}', 'at'");
        define(&mut session, name, &first, &format!("time_zone => '{zone}'"));
        session.run(&format!("SELECT window_skip('{name}', '{start}', NULL, 'test')"));
        let switch = format!(
            r#"{{"time_zone": "{other}", "start_at": "{other_start}", "switch_at": "2124-01-10T05:00Z"}}"#
        );
        let outcome = alter(&mut session, name, &switch);
        if name == "forth" {
            assert_eq!(outcome, Ok("changed: time_zone".to_owned()));
        } else {
            let refused = assert_sqlstate!(outcome, "22023");
            assert!(refused.detail.contains("2124-01-10T05:00 to 2124-01-10"), "{refused}");
        }
    }
}

#[test]
fn an_earlier_start_adds_windows_which_do_not_start() {
    let (_database, mut session) = three_days("");
    let script = |start: &str| format!("SELECT pipeline_define('daily', '1 day', '{start}', 'facts', 'at')");
    let missed = "SELECT windows FROM backfill.missed";
    let before: i64 = session.one(missed, &[]);
    for off in ["2023-12-01 05:00", "2023-12-30T23:00-05:00"] {
        let refused = alter(&mut session, "daily", &format!(r#"{{"start_at": "{off}"}}"#));
        assert_sqlstate!(refused, "BF012");
    }
    assert_sqlstate!(session.try_run(&script("2023-12-01")), "22023");
    assert_eq!(altered(&mut session, "daily", r#"{"start_at": "2023-12-01"}"#), "changed: start_at");
    assert_eq!(session.one::<i64>(missed, &[]), before + 31);
    assert_eq!(session.all_of("daily"), []);
    assert_eq!(session.one::<String>(&script("2023-12-01"), &[]), "unchanged");
    assert_sqlstate!(session.try_run(&script("2024-01-01")), "22023");
    assert_eq!(session.lines("SELECT start_at FROM backfill.pipelines"), ["2023-12-01 00:00:00+00"]);
    let first = "SELECT window_key, state FROM pipeline_windows('daily') LIMIT 1";
    assert_eq!(session.lines(first), ["2023-12-01|missed"]);
    assert_sqlstate!(session.try_run("SELECT window_why('daily', '2023-11-30')"), "22023");
    assert_sqlstate!(
        session.try_run("SELECT backfill_plan('daily', NULL, NULL, 'x', keys => ARRAY['2023-11-30'])"),
        "22023"
    );
    // They are planned as any others.
    let plan = session.draft("NULL, '2024-01-02', 'test'");
    assert_eq!(plan.windows, 32);
    session.approve(plan).unwrap();
    let lease = session.lease();
    assert_eq!(lease.key, "2023-12-01");
    session.replace(lease.token).unwrap();
    session.assert_data_is_the_ledger();

    let refused = assert_sqlstate!(alter(&mut session, "daily", r#"{"start_at": "2023-12-02"}"#), "22023");
    assert!(refused.hint.contains("window_skip"), "{refused}");
    // With another time of day it is another grid.
    let refused =
        assert_sqlstate!(alter(&mut session, "daily", r#"{"start_at": "2024-01-05 06:00"}"#), "22023");
    assert!(refused.message.contains("switch_at"), "{refused}");
    // The last positions before those of the new grid, and still the first ones.
    altered(&mut session, "daily", r#"{"cadence": "1 hour", "switch_at": "2024-01-10"}"#);
    assert_eq!(altered(&mut session, "daily", r#"{"start_at": "2023-11-30"}"#), "changed: start_at");
    assert_eq!(session.lines(first), ["2023-11-30|missed"]);
}

#[test]
fn a_catchup_that_had_no_windows_before_finds_those_of_an_earlier_start() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "new", "'1 day', current_date - 2", "catchup => 5, max_active => 99");
    assert_eq!(session.all_of("new").len(), 2);
    session.run("SELECT pipeline_alter('new', jsonb_build_object('start_at', (current_date - 20)::text))");
    // As if it had been defined so.
    assert_eq!(session.all_of("new").len(), 3);
}

#[test]
fn no_claim_hands_out_a_window_of_the_old_grid_after_the_switch() {
    let database = daily("catchup => 5, max_active => 9");
    let [mut worker, mut owner] = [(); 2].map(|()| database.connect());
    worker.run("BEGIN");
    let lease = worker.lease();
    let switch = format!(r#"{{"cadence": "1 hour", "switch_at": "{}"}}"#, lease.key);
    // Not committed, so that the ledger does not name it.
    owner.run("SET lock_timeout = '100ms'");
    owner.run("SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')");
    assert_sqlstate!(alter(&mut owner, "daily", &switch), "40001");
    worker.run("ROLLBACK");

    owner.run("BEGIN");
    altered(&mut owner, "daily", &switch);
    assert_eq!(worker.claim(), None, "neither of the old grid nor of one that may be rolled back");
    owner.run("COMMIT");
    let claimed = worker.lease();
    assert!(claimed.key.contains('T'), "{claimed:?}");
    worker.call("finish", claimed.token);

    // The list of a plan is not in doubt: nobody is in the way of anybody.
    owner.run("SELECT pipeline_pause('daily', 'test')");
    worker.plan_window("2024-02-01");
    worker.run("BEGIN");
    assert_eq!(worker.lease().key, "2024-02-01");
    altered(&mut owner, "daily", r#"{"cadence": "2 hours", "switch_at": "2124-01-01"}"#);
    worker.run("COMMIT");
}

#[test]
fn what_waited_for_a_change_of_the_grid_is_repeated_on_the_new_one() {
    let (database, mut owner) = three_days("");
    let draft = owner.draft("'2024-01-10', '2024-01-12', 'test'");
    let mut person = database.connect();
    for (wait, cadence) in [
        ("SELECT window_skip('daily', '2024-01-10', '2024-01-11', 'test')".to_owned(), "6 hours"),
        (format!("SELECT backfill_approve({}, {})", draft.id, draft.windows), "1 hour"),
    ] {
        owner.run("BEGIN");
        altered(&mut owner, "daily", &format!(r#"{{"cadence": "{cadence}", "switch_at": "2024-01-08"}}"#));
        let outcome = crate::support::waiting(&database, &mut person, &wait, || owner.run("COMMIT"));
        assert_sqlstate!(outcome, "40001");
    }
    assert_sqlstate!(person.approve(draft), "BF004");
    person.run("SELECT window_skip('daily', '2024-01-10', '2024-01-11', 'test')");
    assert_eq!(person.count("backfill.windows WHERE state = 'skipped'"), 24);
}

#[test]
fn claims_and_changes_of_the_grid_at_the_same_time_leave_no_window_off_the_grid() {
    let database = daily("");
    let mut judge = database.connect();
    let settings = "max_active => 7, backlog => 100000, lease_for => '1 hour'";
    define(&mut judge, "fast", "'1 hour', date_trunc('hour', now()) - interval '4000 hours'", settings);
    judge.run("SELECT pool_define('live', 7)");
    judge.active_for("fast", "3990 hours");
    // However loaded the machine is, the grid changes five times and more while others claim enough.
    let (over, claimed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let switched: i32 = database
        .many(8, |i, session| {
            let mut switched = 0;
            for turn in 0.. {
                let enough = switched >= 5 && claimed.load(Ordering::Relaxed) > 50;
                if enough || over.load(Ordering::Relaxed) {
                    over.store(true, Ordering::Relaxed);
                    break;
                }
                if i == 0 {
                    let cadence = ["2 hours", "30 minutes", "1 hour"][turn % 3];
                    let asked = alter(session, "fast", &format!(r#"{{"cadence": "{cadence}"}}"#));
                    let Err(failure) = asked else { continue };
                    let outcome = match failure.sqlstate.as_str() {
                        "22023" => session.try_run(&suggested(&failure)),
                        _ => Err(failure),
                    };
                    match outcome {
                        Ok(()) => switched += 1,
                        Err(failure) if ["40001", "22023", "BF012"].contains(&failure.sqlstate.as_str()) => {}
                        Err(failure) => panic!("{failure}"),
                    }
                } else {
                    for lease in session.try_claim("1, pipelines => ARRAY['fast']").unwrap() {
                        session.call("finish", lease.token);
                        claimed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            switched
        })
        .into_iter()
        .sum();
    assert!(switched >= 5 && judge.count("backfill.runs") > 50);
    let off = "SELECT r.window_key, r.window_start, r.window_end FROM backfill.runs r
               WHERE NOT EXISTS (SELECT FROM pipeline_windows('fast') w
                                 WHERE w.window_key = r.window_key AND w.window_start = r.window_start
                                   AND w.window_end = r.window_end)";
    assert_eq!(judge.lines(off), [""; 0]);
    judge.assert_one_lease_per_window();
}

#[test]
fn a_renamed_pipeline_keeps_what_it_has() {
    let (database, mut session) = three_days("");
    let reader = database.role("reader");
    session.run(&format!("SELECT pipeline_grant('daily', '{reader}', 'read')"));
    session.plan_window("2024-01-02");
    let rename = |new: &str| format!("SELECT pipeline_rename('daily', {new})");
    define(&mut session, "other", "'1 day', '2024-01-01'", "");
    for blank in ["NULL", "''", "'  '"] {
        assert_sqlstate!(session.try_run(&rename(blank)), "22023");
    }
    assert_sqlstate!(session.try_run(&rename("'other'")), "42710");
    assert_eq!(session.one::<String>(&rename("'daily'"), &[]), "unchanged");
    session.run("SELECT pipeline_drop('other')");
    assert_eq!(session.one::<String>(&rename("'other'"), &[]), "renamed");
    assert_sqlstate!(session.try_run(&rename("'daily'")), "42704");
    for (count, view) in [(3, "slices"), (3, "runs"), (2, "plans"), (1, "pipelines")] {
        assert_eq!(session.count(&format!("backfill.{view} WHERE pipeline = 'other'")), count, "{view}");
    }
    let mut reader = database.connect_as(&reader);
    assert_eq!(reader.count("backfill.slices"), 3);
    assert_eq!(keys(&session.all_of("other")), ["2024-01-02"]);
    // The name is free.
    define(&mut session, "daily", "'1 day', '2024-01-01'", "");
    assert_eq!(session.count("backfill.slices WHERE pipeline = 'daily'"), 0);
}
