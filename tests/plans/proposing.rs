//! Which windows a plan takes, and what it says about the others.

use crate::plans::declined;
use crate::support::{Calls, daily, define, keys};

#[test]
fn every_window_that_is_left_out_has_its_reason() {
    let database = daily("catchup => 1");
    let mut session = database.connect();
    session.plan_window("2024-01-01");
    let lease = session.try_claim("1, pools => ARRAY['backfill'], pipelines => ARRAY['daily']");
    session.replace(lease.unwrap()[0].token).unwrap();
    let owner = session.plan_window("2024-01-02");
    session.run("SELECT window_skip('daily', '2024-01-03', '2024-01-05', 'no data')");
    let live = session.try_claim("1, pools => ARRAY['live'], pipelines => ARRAY['daily']");
    assert_eq!(live.unwrap()[0].run_kind, "catchup");

    let all = "'2024-01-01', current_date + 5, 'test', mode => 'missing'";
    let reasons = [
        "already done|1".to_owned(),
        format!("owned by plan {owner}|1"),
        "skipped|2".to_owned(),
        "in flight|1".to_owned(),
        "not due|5".to_owned(),
    ];
    assert_eq!(declined(&mut session, all), reasons);
    let stored = "SELECT reason, windows FROM backfill.plan_declined ORDER BY plan_id, range_start";
    assert_eq!(session.lines(stored), reasons);
    // Windows and reasons together are the whole range.
    let whole =
        "SELECT windows + (SELECT sum(windows) FROM backfill.plan_declined d WHERE d.plan_id = p.plan_id)
                     = current_date + 5 - date '2024-01-01'
                 FROM backfill.plans p WHERE state = 'draft'";
    assert!(session.one::<bool>(whole, &[]));
}

#[test]
fn windows_that_the_source_cannot_answer_for_are_left_out_unless_a_reason_is_given() {
    let database = daily("source_retention => now() - '2024-01-11 12:00+00'");
    let mut session = database.connect();
    let january = "'2024-01-01', '2024-02-01', 'test'";
    assert_eq!(declined(&mut session, january), ["beyond source retention|11"]);
    let overridden = format!("{january}, override_retention => 'restored from tape'");
    assert_eq!(declined(&mut session, &overridden), [""; 0]);
    let kept = "SELECT request->>'override_retention' FROM backfill.plan_data ORDER BY plan_id";
    assert_eq!(session.lines(kept), ["", "restored from tape"]);
}

#[test]
fn a_plan_of_no_window_stores_nothing_and_says_why() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-03", "");
    for lease in session.leases(2) {
        session.replace(lease.token).unwrap();
    }
    let before = session.count("backfill.plan_data");
    let done = "NULL, '2024-01-03', 'test', mode => 'missing'";
    assert_eq!(declined(&mut session, done), ["already done|2"]);
    for arguments in [done, "'2024-01-02', '2024-01-02', 'test'"] {
        let answer = format!("SELECT plan_id, state, windows FROM backfill_plan('daily', {arguments})");
        assert_eq!(session.lines(&answer), ["||0"], "{arguments}");
    }
    assert_eq!(session.count("backfill.plan_data"), before);
}

#[test]
fn keys_that_name_no_window_of_the_range_are_refused() {
    let database = daily("");
    let mut session = database.connect();
    for (arguments, message) in [
        ("NULL, NULL, 'test', keys => '{}'", "keys is empty"),
        (
            "'2024-01-02', '2024-01-04', 'test', keys => '{2024-01-03,2024-01-04}'",
            "window 2024-01-04 is not between since and until",
        ),
        (
            "'2024-01-02', NULL, 'test', keys => '{2024-01-01}'",
            "window 2024-01-01 is not between since and until",
        ),
    ] {
        let error = session.failure(&format!("SELECT backfill_plan('daily', {arguments})"));
        assert_eq!((error.sqlstate.as_str(), error.message.as_str()), ("22023", message));
    }
    let inside = "'2024-01-02', '2024-01-05', 'test', keys => '{2024-01-03,2024-01-04}'";
    assert_eq!(session.draft(inside).windows, 2);
}

#[test]
fn an_expectation_that_is_wrong_is_answered_with_the_right_one() {
    let database = daily("");
    let mut session = database.connect();
    let error = session.failure("SELECT backfill_plan('daily', NULL, '2024-01-04', 'test', expect => 2)");
    assert_eq!(error.sqlstate, "BF003");
    assert!(error.hint.starts_with("Give expect => 3,"), "{error}");
    assert_eq!(session.count("backfill.plans"), 0);
}

#[test]
fn a_range_smaller_than_a_window_is_refused_with_the_nearest_bounds() {
    let database = daily("");
    let mut session = database.connect();
    let plan = "SELECT backfill_plan('daily', '2024-01-05 10:00', '2024-01-05 11:00', 'test')";
    let failure = session.failure(plan);
    assert_eq!(failure.sqlstate, "BF012", "{failure}");
    assert!(failure.hint.contains("2024-01-05") && failure.hint.contains("2024-01-06"), "{failure}");
    let backwards = "SELECT backfill_plan('daily', '2024-01-05', '2024-01-04', 'test')";
    assert_eq!(session.failure(backwards).sqlstate, "22023");
    for reason in ["NULL", "''", "' '"] {
        let plan = format!("SELECT backfill_plan('daily', '2024-01-01', '2024-01-04', {reason})");
        assert_eq!(session.failure(&plan).sqlstate, "22023");
    }
}

#[test]
fn keys_name_the_windows_of_a_plan() {
    let database = daily("");
    let mut session = database.connect();
    let keys_given = "ARRAY['2024-03-05', '2024-01-09', '2024-03-05', '2024-02-29']";
    let plan = session.draft(&format!("NULL, NULL, 'test', keys => {keys_given}"));
    assert_eq!(plan.windows, 3);
    session.approve(plan).unwrap();
    session.run("SELECT pool_define('backfill', 9)");
    assert_eq!(keys(&session.all_of("daily")), ["2024-01-09", "2024-02-29"], "its concurrency is 2");
    for wrong in ["2024-02-30", "2024-01-01 06:00", "yesterday"] {
        let plan = format!("SELECT backfill_plan('daily', NULL, NULL, 'test', keys => ARRAY['{wrong}'])");
        assert_eq!(session.failure(&plan).sqlstate, "22023", "{wrong}");
    }
}

#[test]
fn the_same_plan_from_sessions_in_three_zones_has_the_same_windows() {
    let database = daily("time_zone => 'America/New_York'");
    let mut plans = vec![];
    for zone in ["UTC", "America/New_York", "Pacific/Apia"] {
        for style in ["ISO, MDY", "German", "SQL, DMY"] {
            let mut session = database.connect();
            session.run(&format!("SET timezone = '{zone}'; SET datestyle = '{style}'"));
            for bounds in [
                "'2024-03-01', '2024-04-01'",
                "date '20240301', date '20240401'",
                "timestamp '20240301', timestamp '20240401'",
                "timestamptz '20240301T00:00-05', timestamptz '20240401T00:00-04'",
                "'2024-03-01 05:00Z', '2024-04-01T04:00+00'",
            ] {
                let plan = session.draft(&format!("{bounds}, 'test'"));
                session.approve(plan).unwrap();
                let windows = session.lines(&format!(
                    "SELECT window_key, extract(epoch FROM window_start), extract(epoch FROM window_end)
                     FROM backfill.windows WHERE plan_id = {} ORDER BY 1",
                    plan.id
                ));
                session.cancel(plan.id);
                plans.push(windows);
            }
        }
    }
    assert_eq!(plans[0].len(), 31);
    assert_eq!(plans[0][9], "2024-03-10|1710046800.000000|1710129600.000000", "23 hours");
    assert!(plans.iter().all(|plan| plan == &plans[0]));
}

#[test]
fn a_day_that_is_not_over_is_not_planned_though_its_hours_are() {
    let database = daily("");
    let mut session = database.connect();
    // The newest day began seventeen and a half hours ago.
    let since: String =
        session.one("SELECT (now() - interval '17 hours 30 minutes')::timestamptz(0)::text", &[]);
    for (cadence, answer) in [("1 hour", "17|not due|7"), ("1 day", "0|not due|1")] {
        define(&mut session, cadence, &format!("'{cadence}', '{since}'"), "");
        let plan = format!(
            "SELECT p.windows, d->>'reason', d->>'windows'
             FROM backfill_plan('{cadence}', '{since}', timestamptz '{since}' + interval '24 hours', 'test') p,
                  jsonb_array_elements(p.declined) d"
        );
        assert_eq!(session.lines(&plan), [answer]);
    }
}

#[test]
fn the_order_is_part_of_the_plan_and_shown() {
    let database = daily("");
    let mut session = database.connect();
    for ordering in ["oldest_first", "newest_first", "sequential"] {
        let plan = session.draft(&format!("NULL, '2024-01-06', 'test', ordering => '{ordering}'"));
        let shown = "SELECT ordering FROM backfill.plans WHERE plan_id = $1";
        assert_eq!(session.one::<String>(shown, &[&plan.id]), ordering);
        let page = session.lines(&format!("SELECT * FROM backfill_explain({})", plan.id)).join("\n");
        let words = ordering.replace('_', " ");
        assert!(
            page.contains(&words) || page.contains("each runs after the one before it has ended"),
            "{ordering}:\n{page}"
        );
    }
}
