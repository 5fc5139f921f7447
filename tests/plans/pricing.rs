//! What a plan is expected to take, and what it took.

use crate::support::{Calls, daily, define};
use pgrx_tests::{Database, Session, assert_sqlstate};

/// Works through the plans of `daily` and lets the log say that the n-th attempt at a window of the plan took
/// so many seconds, and that its worker then stood idle for so many more.
fn run_as_if(session: &mut Session, plan: i64, took: &str, idle: i64) {
    while let Some(lease) = session.claim() {
        session.call("finish", lease.token);
    }
    let sql = format!(
        "WITH run AS (
             SELECT token, row_number() OVER (ORDER BY token) AS n, {took} AS took, window_start
             FROM backfill.run_data WHERE plan_id = {plan}
         ), timed AS (
             SELECT token, took, sum(took + {idle}) OVER (ORDER BY n) - took - {idle} AS start FROM run
         )
         UPDATE backfill.run_data r
         SET started_at = timestamptz '2024-06-01' + t.start * interval '1 second',
             ended_at = timestamptz '2024-06-01' + (t.start + t.took) * interval '1 second'
         FROM timed t WHERE t.token = r.token"
    );
    session.run(&sql);
}

/// A value of the estimate of a draft of `daily`.
fn estimate(session: &mut Session, arguments: &str, keys: &str) -> Vec<String> {
    let sql = format!(
        "SELECT p.estimate->>key FROM backfill_plan('daily', {arguments}) p,
            unnest('{{{keys}}}'::text[]) WITH ORDINALITY k (key, place) ORDER BY place"
    );
    session.lines(&sql)
}

fn priced(settings: &str) -> (Database, Session) {
    let database = daily(settings);
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 4)");
    (database, session)
}

#[test]
fn what_is_not_known_is_null() {
    let (_database, mut session) = priced("cost_per_hour => 2");
    let keys = session.lines(
        "SELECT key, value FROM backfill_plan('daily', NULL, '2024-01-09', 'test') p, jsonb_each(p.estimate) ORDER BY 1",
    );
    let expected = [
        "confidence|\"none\"",
        "cost|null",
        "holding_data|{}",
        "idle|null",
        "model|null",
        "ordering_price|null",
        "parallel|null",
        "parallel_high|null",
        "parallel_low|null",
        "sample|0",
        "sequential|null",
        "slots|4",
        "window_p50|null",
        "window_p90|null",
        "windows|8",
    ];
    assert_eq!(keys, expected);
}

#[test]
fn durations_without_an_end_are_refused() {
    let database = daily("");
    let mut session = database.connect();
    let settings =
        ["delay", "lease_for", "run_timeout", "retry_delay", "source_retention", "expected_duration"];
    // Servers before 17 have no infinite intervals.
    let major = session.one::<i32>("SELECT current_setting('server_version_num')::int / 10000", &[]);
    for value in if major < 17 { &["101 years"][..] } else { &["101 years", "infinity", "-infinity"] } {
        for setting in settings {
            let call = format!("SELECT pipeline_define('p', '1 day', '2024-01-01', {setting} => '{value}')");
            assert_sqlstate!(session.try_run(&call), "22023");
        }
    }
}

#[test]
fn an_expected_duration_prices_a_plan_without_confidence() {
    let (_database, mut session) = priced("cost_per_hour => 2, expected_duration => '1 hour'");
    let keys = "windows,window_p50,window_p90,sequential,parallel,ordering_price,cost,sample,confidence,model,parallel_low";
    let values = estimate(&mut session, "NULL, '2024-01-10', 'test'", keys);
    assert_eq!(
        values,
        ["9", "3600.0", "3600.0", "32400.0", "10800.0", "21600.0", "18.0", "0", "none", "expected", ""]
    );
}

#[test]
fn finished_runs_price_a_plan_with_the_time_between_them() {
    let (_database, mut session) =
        priced("cost_per_hour => 36, expected_duration => '1 hour', max_attempts => 1");
    let plan = session.plan("2024-01-12", ", concurrency => 1");
    // One that failed is no measure of a window.
    let token = session.lease().token;
    session.fail(token);
    run_as_if(&mut session, plan, "10", 2);
    let keys =
        "window_p50,window_p90,idle,sequential,parallel,ordering_price,cost,sample,confidence,model,slots";
    let values = estimate(&mut session, "NULL, '2024-01-09', 'test'", keys);
    assert_eq!(
        values,
        ["10.0", "10.0", "2.0", "94.0", "22.0", "72.0", "0.94", "10", "medium", "history", "4"]
    );
    let bounds = estimate(&mut session, "NULL, '2024-01-09', 'test'", "parallel_low,parallel_high");
    let [low, high] = [0, 1].map(|n: usize| bounds[n].parse::<f64>().unwrap());
    assert!(low < 22.0 && 22.0 < high && high < 44.0, "{bounds:?}");
    // On one slot there is nothing to gain.
    let one = estimate(
        &mut session,
        "NULL, '2024-01-09', 'test', concurrency => 1",
        "parallel,ordering_price,slots",
    );
    assert_eq!(one, ["94.0", "0.0", "1"]);
}

#[test]
fn live_runs_count_and_what_lies_between_them_does_not() {
    let database = daily("catchup => 20, max_active => 9");
    let mut session = database.connect();
    while let Some(lease) = session.claim() {
        session.call("finish", lease.token);
    }
    session.run(
        "UPDATE backfill.run_data SET started_at = window_end, ended_at = window_end + interval '30 seconds'",
    );
    let values = estimate(&mut session, "NULL, '2024-01-09', 'test'", "window_p50,idle,sample");
    assert_eq!(values[..2], ["30.0", ""]);
    assert!(values[2].parse::<i64>().unwrap() >= 20, "{values:?}");
}

#[test]
fn weekends_that_took_longer_make_a_plan_of_weekends_dearer() {
    let (_database, mut session) = priced("");
    let plan = session.plan("2024-03-11", ", concurrency => 1");
    let took = "CASE WHEN date_part('isodow', window_start AT TIME ZONE 'UTC') > 5 THEN 90 ELSE 10 END";
    run_as_if(&mut session, plan, took, 0);
    let of = |session: &mut Session, key: &str| {
        estimate(
            session,
            &format!("NULL, NULL, 'test', keys => ARRAY['{key}']"),
            "model,window_p50,sequential",
        )
    };
    // A Saturday, and a Wednesday.
    assert_eq!(of(&mut session, "2024-04-06"), ["weekday", "90.0", "90.0"]);
    assert_eq!(of(&mut session, "2024-04-10"), ["weekday", "10.0", "10.0"]);
    let page = session.lines("SELECT * FROM backfill_explain(2)").join("\n");
    assert!(
        page.contains("from 70 finished run(s), by the weekday of the window; confidence high"),
        "{page}"
    );
}

#[test]
fn a_finished_plan_shows_what_it_took_beside_its_estimate() {
    let (_database, mut session) = priced("cost_per_hour => 36, expected_duration => '10 seconds'");
    let plan = session.plan("2024-01-06", ", concurrency => 1");
    let actual = "SELECT actual FROM backfill.plans";
    assert_eq!(session.lines(actual), [""], "nothing is done");
    let lease = session.lease();
    session.call("finish", lease.token);
    let so_far = "SELECT actual->>'windows', actual->'error' FROM backfill.plans";
    assert_eq!(session.lines(so_far), ["1|null"], "a part is not compared with the whole");

    run_as_if(&mut session, plan, "CASE WHEN seq = 5 THEN 40 ELSE 10 END", 2);
    let shown = session.lines(
        "SELECT p.state, key, actual->>key, estimate->>key
         FROM backfill.plans p, unnest('{windows,window_p50,window_p90,idle,sequential,parallel,ordering_price,cost}'::text[]) key",
    );
    let expected = [
        "completed|windows|5|5",
        "completed|window_p50|10.0|10.0",
        "completed|window_p90|40.0|10.0",
        "completed|idle|2.0|",
        "completed|sequential|88.0|50.0",
        "completed|parallel|88.0|50.0",
        "completed|ordering_price|0.0|0.0",
        "completed|cost|0.88|0.5",
    ];
    assert_eq!(shown, expected);
    let errors = "SELECT round((actual->'error'->>'sequential')::numeric, 6), round((actual->'error'->>'parallel')::numeric, 6)
                  FROM backfill.plans";
    assert_eq!(session.lines(errors), ["0.760000|0.760000"]);
    let page = session.lines(&format!("SELECT * FROM backfill_explain({plan})"));
    let line = page.iter().find(|line| line.contains("side by side  ")).expect("the page compares");
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["side", "by", "side", "50", "s", "88", "s", "+76.0", "%"]
    );
    assert!(page.iter().all(|line| !line.contains("backfill_approve")), "{page:#?}");
}

#[test]
fn a_plan_with_skipped_windows_is_not_compared_with_its_estimate() {
    let (_database, mut session) = priced("expected_duration => '10 seconds'");
    session.plan("2024-01-04", "");
    session.run("SELECT window_skip('daily', '2024-01-02', '2024-01-03', 'no data')");
    while let Some(lease) = session.claim() {
        session.call("finish", lease.token);
    }
    let shown = "SELECT state, actual->>'windows', actual->'error' FROM backfill.plans";
    assert_eq!(session.lines(shown), ["completed|2|null"]);
}

#[test]
fn the_page_says_what_becomes_of_the_slices_and_of_the_source() {
    let (_database, mut session) = priced("source_retention => now() - '2024-01-11 12:00+00'");
    session.run("SELECT backfill_plan('daily', '2024-01-01', '2024-01-14', 'test', override_retention => 'tape', expect => 13)");
    for (version, day) in [("v1", 12), ("v2", 13)] {
        let claim = format!(
            "1, pipelines => ARRAY['daily'], code_version => '{version}', window_key => '2024-01-{day}'"
        );
        let token = session.try_claim(&claim).unwrap()[0].token;
        session.call("finish", token);
    }
    session.cancel(1);
    session.draft("'2024-01-01', '2024-01-16', 'test'");
    let page = session.lines("SELECT * FROM backfill_explain(2)").join("\n");
    for said in [
        "2 slices are replaced, built 1 by v1, 1 by v2; of 2 windows the ledger has none",
        "and 11 windows beyond that are left out",
        "confidence low: a history of few runs says little",
        "80 % of such plans",
    ] {
        assert!(page.contains(said), "{said}\n{page}");
    }
    let kept = session.lines("SELECT * FROM backfill_explain(1)").join("\n");
    assert!(kept.contains("and that is overridden: tape"), "{kept}");
    assert!(kept.contains("neither a finished run nor an expected_duration"), "{kept}");
}

#[test]
fn the_page_says_that_the_ledger_does_not_know_all_rows() {
    let (_database, mut session) = priced("");
    session.run("INSERT INTO facts SELECT '2024-01-01Z'::timestamptz + n * interval '1 hour', 0 FROM generate_series(0, 71) n");
    let plan = session.draft("'2024-01-01', '2024-01-04', 'test'");
    let said = |session: &mut Session, plan: i64| {
        let page = session.lines(&format!("SELECT * FROM backfill_explain({plan})"));
        let from = page.iter().position(|line| line.starts_with("4.")).unwrap();
        let answers = page[from + 1..].iter().take_while(|line| !line.is_empty());
        answers.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    let answers = said(&mut session, plan.id);
    assert_eq!(answers[0], "the ledger has no slice of these windows");
    assert!(
        answers[1].starts_with("rows that are in the target all the same are replaced too"),
        "{answers:?}"
    );
    assert!(answers[2].contains("window_adopt()"), "{answers:?}");
    assert_eq!(session.lines(&answers[3]), ["3|72|{}"]);

    let plan = session.draft("'2024-01-01', '2024-01-04', 'test'");
    let answers = said(&mut session, plan.id);
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert_eq!(answers[0], "3 slices are replaced, built 3 by legacy");
    session.run(&format!("DROP TABLE facts; SELECT backfill_explain({})", plan.id));
}

#[test]
fn other_pipelines_runs_are_no_history() {
    let (_database, mut session) = priced("");
    define(&mut session, "other", "'1 day', '2024-01-01'", "catchup => 5, max_active => 9");
    for lease in session.all_of("other") {
        session.call("finish", lease.token);
    }
    assert_eq!(estimate(&mut session, "NULL, '2024-01-09', 'test'", "sample"), ["0"]);
}

#[test]
fn a_sequential_plan_shows_what_its_order_costs() {
    let (_database, mut session) = priced("expected_duration => '10 seconds'");
    let plan = session.plan("2024-01-09", ", ordering => 'sequential'");
    let price = "SELECT estimate->>'sequential', estimate->>'parallel', estimate->>'ordering_price', estimate->>'slots'
                 FROM backfill.plans";
    assert_eq!(session.lines(price), ["80.0|20.0|60.0|4"]);
    run_as_if(&mut session, plan, "10", 5);
    let took = "SELECT actual->>'sequential', actual->>'parallel', actual->'error'->>'sequential', actual->'error'->>'parallel'
                FROM backfill.plans";
    assert_eq!(session.lines(took), ["115.0||0.4375|"]);
}

#[test]
fn windows_that_were_added_later_were_not_priced() {
    let (_database, mut session) = priced("expected_duration => '10 seconds'");
    session.run("SELECT window_skip('daily', '2024-01-02', '2024-01-03', 'no data')");
    let plan = session.plan("2024-01-05", "");
    session.run("DELETE FROM backfill.mark_data");
    session.run(&format!("SELECT backfill_extend({plan})"));
    while let Some(lease) = session.claim() {
        session.call("finish", lease.token);
    }
    let shown = "SELECT state, estimate->>'windows', actual->>'windows', actual->'error' FROM backfill.plans";
    assert_eq!(session.lines(shown), ["completed|3|4|null"]);
}
