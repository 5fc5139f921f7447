//! Plans and the catchup rule: nothing runs that they do not allow, and nothing that is due is lost.

use crate::support::{Calls, LEVELS, Plan, assert_lost, daily, define, keys, waiting};
use pgrx_tests::{Database, Session, assert_sqlstate, wait_until};

/// What a plan answers about the windows it leaves out, in their order.
fn declined(session: &mut Session, arguments: &str) -> Vec<String> {
    session.lines(&format!(
        "SELECT d->>'reason', d->>'windows'
         FROM backfill_plan('daily', {arguments}) p, jsonb_array_elements(p.declined) d"
    ))
}

fn count(session: &mut Session, from: &str) -> i64 {
    session.one(&format!("SELECT count(*) FROM {from}"), &[])
}

// ── proposing ────────────────────────────────────────────────────────────────────────────────

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
    let before = count(&mut session, "backfill.plan_data");
    let done = "NULL, '2024-01-03', 'test', mode => 'missing'";
    assert_eq!(declined(&mut session, done), ["already done|2"]);
    for arguments in [done, "'2024-01-02', '2024-01-02', 'test'", "NULL, NULL, 'test', keys => '{}'"] {
        let answer = format!("SELECT plan_id, state, windows FROM backfill_plan('daily', {arguments})");
        assert_eq!(session.lines(&answer), ["||0"], "{arguments}");
    }
    assert_eq!(count(&mut session, "backfill.plan_data"), before);
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

// ── approving ────────────────────────────────────────────────────────────────────────────────

#[test]
fn approval_repeats_the_number_of_windows() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.draft("NULL, '2024-01-11', 'test'");
    for windows in [9, 11, 0, -1, i64::MAX] {
        let failure = assert_sqlstate!(session.approve(Plan { windows, ..plan }), "BF003");
        assert!(failure.hint.contains("10"), "{failure}");
    }
    assert_eq!(session.claim(), None);
    session.approve(plan).unwrap();
    let failure = assert_sqlstate!(session.approve(plan), "55000");
    assert!(failure.detail.contains("approved"), "{failure}");
    assert_sqlstate!(session.approve(Plan { id: 99, ..plan }), "42704");
}

#[test]
fn expect_approves_at_once_when_the_count_is_right_and_stores_nothing_when_not() {
    let database = daily("");
    let mut session = database.connect();
    let plan = |expect: i64| {
        format!(
            "SELECT state, windows FROM backfill_plan('daily', NULL, '2024-01-11', 'test', expect => {expect})"
        )
    };
    assert_sqlstate!(session.try_run(&plan(9)), "BF003");
    assert_eq!(count(&mut session, "backfill.plan_data"), 0);
    assert_eq!(session.lines(&plan(10)), ["approved|10"]);
    session.lease();
}

/// The draft of `daily` up to 2024-01-06 is out of date after `change`, and says what moved.
#[track_caller]
fn assert_out_of_date(database: &Database, change: impl FnOnce(&mut Session), moved: &str) {
    let mut session = database.connect();
    let plan = session.draft("NULL, '2024-01-06', 'test'");
    assert_ne!(plan.windows, 0);
    change(&mut session);
    let failure = assert_sqlstate!(session.approve(plan), "BF004");
    assert!(failure.detail.contains(moved), "{moved}: {failure}");
    // Nothing is half approved, and a new plan is in order.
    let again = session.draft("NULL, '2024-01-06', 'test'");
    session.approve(again).unwrap();
}

fn run_third(session: &mut Session, call: &str) {
    session.plan_window("2024-01-03");
    let token = session.lease().token;
    session.run(&call.replace("$1", &token.to_string()));
}

#[test]
fn a_draft_is_out_of_date_once_a_window_of_it_was_run() {
    assert_out_of_date(
        &daily(""),
        |session| run_third(session, "SELECT backfill_finish($1, 0)"),
        "2024-01-03 holds the slice",
    );
    for fail in [
        "SELECT backfill_fail($1, 'no luck', retry => false)",
        "SELECT backfill_fail($1, 'no luck', sqlstate => 'BF005')",
    ] {
        assert_out_of_date(&daily(""), |session| run_third(session, fail), "2024-01-03 changed");
    }
    // The slice was replaced by a newer one, though the window is as done as before.
    let database = daily("");
    run_third(&mut database.connect(), "SELECT backfill_finish($1, 0)");
    assert_out_of_date(
        &database,
        |session| run_third(session, "SELECT backfill_finish($1, 0)"),
        "2024-01-03 holds the slice",
    );
}

#[test]
fn a_draft_is_out_of_date_once_a_person_decided_otherwise() {
    assert_out_of_date(
        &daily(""),
        |session| session.run("SELECT window_skip('daily', '2024-01-02', '2024-01-03', 'test')"),
        "2024-01-02 can no longer be planned",
    );
    assert_out_of_date(
        &daily("source_retention => '100 years'"),
        |session| {
            let retention: String = session.one(
                r#"SELECT jsonb_build_object('source_retention', now() - '2024-01-02 12:00Z')::text"#,
                &[],
            );
            session.run(&format!("SELECT pipeline_alter('daily', '{retention}')"));
        },
        "2024-01-01 can no longer be planned",
    );
    let database = daily("");
    let other = database.connect().plan_window("2024-01-04");
    assert_out_of_date(&database, |session| session.cancel(other), "2024-01-04 would now be");
}

#[test]
fn a_draft_is_out_of_date_once_its_code_changed() {
    assert_out_of_date(
        &daily("code_version => 'v1'"),
        |session| session.run(r#"SELECT pipeline_alter('daily', '{"code_version": "v2"}')"#),
        "v2",
    );
    let query = |text: &str| {
        format!(r#"SELECT pipeline_alter('daily', '{{"query": "SELECT $1, {text} WHERE $2 > $1"}}')"#)
    };
    let database = daily("");
    let mut owner = database.connect();
    owner.run(&query("1"));
    assert_out_of_date(&database, |session| session.run(&query("2")), "code version");
    // Another text of the same query is the same code.
    let plan = owner.draft("'2024-02-01', '2024-02-06', 'test'");
    owner.run(&query("/* two */  2"));
    owner.approve(plan).unwrap();
}

#[test]
fn a_window_of_the_draft_in_a_live_lease_makes_it_out_of_date() {
    let database = daily("catchup => 1");
    let mut session = database.connect();
    let newest: String = session.one("SELECT (current_date - 1)::text", &[]);
    let plan = session.draft(&format!("'{newest}', NULL, 'test'"));
    let lease = session.lease();
    let failure = assert_sqlstate!(session.approve(plan), "BF004");
    assert!(failure.detail.contains(&lease.key), "{failure}");
}

#[test]
fn prices_and_the_clock_alone_do_not_put_a_draft_out_of_date() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "fast", "'100 milliseconds', now() - interval '1 second'", "backlog => 1");
    let fast = "SELECT coalesce(max(window_key), '') FROM pipeline_windows('fast')";
    let draft = "SELECT plan_id FROM backfill_plan('fast', NULL, NULL, 'test')";
    let id: i64 = session.one(draft, &[]);
    let size = "SELECT windows, range_end = (SELECT max(window_end) FROM pipeline_windows('fast', NULL, range_end::text))
                FROM backfill.plans WHERE plan_id = $1";
    let row = session.rows(size, &[&id]).remove(0);
    let (windows, ends_well): (i64, bool) = (row.get(0), row.get(1));
    assert!(ends_well);
    // Windows fall due, and the one that could start by itself then cannot any more.
    let newest: String = session.one(fast, &[]);
    database.wait_for("more windows fall due", &format!("SELECT ({fast}) > '{newest}'"));
    session.run(r#"SELECT pipeline_alter('fast', '{"expected_duration": "1 hour", "cost_per_hour": 7}')"#);
    session.run("SELECT pool_define('backfill', 90), pipeline_pause('fast', 'test')");
    session.approve(Plan { id, windows }).unwrap();
    // They are not in the frozen plan.
    assert_eq!(count(&mut session, "backfill.plan_window_data"), windows);
    let inside = "SELECT bool_and(w.window_end <= p.range_end) FROM backfill.plan_window_data w
                  JOIN backfill.plans p USING (plan_id)";
    assert!(session.one::<bool>(inside, &[]));
}

#[test]
fn a_plan_and_its_windows_appear_at_once() {
    let database = daily("");
    let (mut operator, mut other) = (database.connect(), database.connect());
    let plan = operator.draft("NULL, '2024-01-11', 'test'");
    operator.run("BEGIN");
    operator.approve(plan).unwrap();
    assert_eq!(other.claim(), None);
    assert_eq!(other.lines("SELECT state FROM backfill.plans"), ["draft"]);
    operator.run("COMMIT");
    let queued = "SELECT count(*) FROM pipeline_windows('daily') WHERE state = 'queued'";
    assert_eq!(other.lines(queued), ["10"]);
    other.lease();
}

// ── one owner a window ───────────────────────────────────────────────────────────────────────

/// Two drafts that share windows.
fn overlapping(session: &mut Session) -> [Plan; 2] {
    ["'2024-01-01', '2024-01-11', 'test'", "'2024-01-05', '2024-01-16', 'test'"]
        .map(|bounds| session.draft(bounds))
}

#[test]
fn a_plan_cannot_be_approved_over_windows_that_another_one_owns() {
    let database = daily("");
    let mut session = database.connect();
    let [first, second] = overlapping(&mut session);
    session.approve(second).unwrap();
    let failure = assert_sqlstate!(session.approve(first), "BF009");
    let named = failure.detail.contains(&format!("plan {}", second.id));
    assert!(named && failure.detail.contains("2024-01-05"), "{failure}");
    assert_eq!(count(&mut session, "backfill.plan_window_data"), second.windows);
    // Which is let go by a cancel.
    session.cancel(second.id);
    session.approve(first).unwrap();
}

#[test]
fn of_two_approvals_at_once_one_wins_at_every_level() {
    for level in LEVELS {
        let database = daily("");
        let (mut a, mut b) = (database.connect(), database.connect());
        let [first, second] = overlapping(&mut a);
        for session in [&mut a, &mut b] {
            session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
            session.run("SELECT count(*) FROM backfill.plans");
        }
        a.approve(first).unwrap();
        let approve = format!("SELECT backfill_approve({}, {})", second.id, second.windows);
        let late = waiting(&database, &mut b, &approve, || a.run("COMMIT"));
        assert_lost(&late.unwrap_err(), level, "BF009");
        b.run("ROLLBACK");
        let states = "SELECT state FROM backfill.plans ORDER BY plan_id";
        assert_eq!(b.lines(states), ["approved", "draft"]);
    }
}

#[test]
fn of_racing_approvals_exactly_one_wins() {
    let database = daily("");
    let mut judge = database.connect();
    for _ in 0..10 {
        let plans = [overlapping(&mut judge), overlapping(&mut judge)].concat();
        let won = database.many(4, |i, session| {
            session.approve(plans[i]).map(|()| plans[i]).map_err(|failure| failure.sqlstate.clone())
        });
        let lost = won.iter().filter(|won| **won == Err("BF009".into())).count();
        let won: Vec<Plan> = won.into_iter().flatten().collect();
        assert_eq!((won.len(), lost), (1, 3));
        judge.cancel(won[0].id);
    }
}

#[test]
fn of_two_approvals_of_one_draft_one_wins() {
    for level in LEVELS {
        let database = daily("");
        let (mut a, mut b) = (database.connect(), database.connect());
        let plan = a.draft("NULL, '2024-01-11', 'test'");
        b.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM backfill.plans"));
        a.run("BEGIN");
        a.approve(plan).unwrap();
        let approve = format!("SELECT backfill_approve({}, {})", plan.id, plan.windows);
        let late = waiting(&database, &mut b, &approve, || a.run("COMMIT"));
        assert_lost(&late.unwrap_err(), level, "55000");
        b.run("ROLLBACK");
        assert_eq!(count(&mut b, "backfill.plan_window_data"), 10);
    }
}

#[test]
fn an_owned_window_runs_only_by_its_plan_and_gets_its_live_right_back() {
    let database = daily("catchup => 3");
    let mut session = database.connect();
    let plan = session.draft("current_date - 3, NULL, 'test', concurrency => 1");
    session.approve(plan).unwrap();
    let live = "1, pools => ARRAY['live'], pipelines => ARRAY['daily']";
    assert_eq!(session.try_claim(live).unwrap(), []);
    let started = session.lease();
    assert_eq!(session.claim(), None);
    session.cancel(plan.id);
    session.run(r#"SELECT pipeline_alter('daily', '{"max_active": 9}')"#);
    let again = session.all_of("daily");
    assert!(again.iter().all(|lease| lease.run_kind == "catchup"), "{again:?}");
    assert_eq!(again.len(), 2, "those that the plan never started");
    assert_eq!(session.state(&started.key), "missed");
}

#[test]
fn a_plan_lets_go_of_each_window_as_it_ends() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    session.plan("2024-01-05", "");
    let [done, failed, refused, _open] = session.leases(4).try_into().unwrap();
    session.call("finish", done.token);
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", failed.token));
    session.run(&format!("SELECT backfill_fail({}, 'no', sqlstate => 'BF006')", refused.token));
    let all = "NULL, '2024-01-05', 'test'";
    assert_eq!(declined(&mut session, all), ["owned by plan 1|1"]);
    session.run("SELECT window_skip('daily', '2024-01-04', '2024-01-05', 'test')");
    assert_eq!(declined(&mut session, all), ["skipped|1"]);
    let plan = "SELECT state, windows, done, failed, skipped FROM backfill.plans WHERE plan_id = 1";
    assert_eq!(session.lines(plan), ["partial|4|1|2|1"]);
}

// ── cancelling ───────────────────────────────────────────────────────────────────────────────

#[test]
fn a_cancel_frees_everything_at_once_and_says_how_much() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 10)");
    let plan = session.plan("2024-01-31", "");
    let held = session.leases(10);
    for lease in &held[..3] {
        session.replace(lease.token).unwrap();
    }
    let cancel = format!("SELECT * FROM backfill_cancel({plan}, 'wrong month')");
    assert_eq!(session.lines(&cancel), ["27|7|{}"]);
    assert_eq!(session.claim(), None);
    assert_sqlstate!(session.replace(held[5].token), "BF002");
    assert_sqlstate!(session.try_run(&cancel), "55000");
    let kept = "SELECT state, cancel_reason, done, running FROM backfill.plans";
    assert_eq!(session.lines(kept), ["cancelled|wrong month|3|0"]);
    let in_use = "SELECT in_use FROM backfill.pools WHERE pool = 'backfill'";
    assert_eq!(session.lines(in_use), ["0"]);
    let next = session.draft("NULL, '2024-01-31', 'test', mode => 'missing'");
    assert_eq!(next.windows, 27);
    session.approve(next).unwrap();
    assert_eq!(session.all_of("daily").len(), 10);
    session.assert_one_lease_per_window();
}

#[test]
fn a_cancel_works_in_every_state_in_which_something_is_left() {
    let database = daily("");
    let mut session = database.connect();
    let cancelled = |session: &mut Session, plan: i64| {
        session.lines(&format!("SELECT windows_freed, leases_revoked FROM backfill_cancel({plan}, 'test')"))
    };
    let draft = session.draft("NULL, '2024-01-03', 'test'");
    assert_eq!(cancelled(&mut session, draft.id), ["0|0"]);
    let untouched = session.plan("2024-01-03", "");
    assert_eq!(cancelled(&mut session, untouched), ["2|0"]);
    let leased = session.plan("2024-01-03", "");
    assert_eq!(session.leases(2).len(), 2);
    assert_eq!(cancelled(&mut session, leased), ["2|2"]);
    let retrying = session.plan("2024-01-03", "");
    let token = session.lease().token;
    session.fail(token);
    assert_eq!(cancelled(&mut session, retrying), ["2|0"]);
    assert_sqlstate!(session.approve(draft), "55000");
    assert_eq!(session.claim(), None);
    for reason in ["NULL", "' '"] {
        let cancel = format!("SELECT backfill_cancel({retrying}, {reason})");
        assert_eq!(session.failure(&cancel).sqlstate, "22023");
    }
}

// ── catchup ──────────────────────────────────────────────────────────────────────────────────

/// A pipeline of hours, none of which ends while a test runs.
const HOURS: &str = "'1 hour', now() - interval '100 hours 30 minutes'";

/// The start of the `n`th newest window of `hourly`, in SQL.
fn hour(n: i64) -> String {
    format!(
        "(SELECT start_at + interval '{} hours' FROM backfill.pipelines WHERE pipeline = 'hourly')",
        100 - n
    )
}

/// The windows of a pipeline by state, in the order of time.
fn states(session: &mut Session, pipeline: &str) -> Vec<String> {
    session.lines(&format!(
        "SELECT state, count(*) FROM (
             SELECT state, window_start, sum(turn) OVER (ORDER BY window_start) AS stretch FROM (
                 SELECT *, (state IS DISTINCT FROM lag(state) OVER (ORDER BY window_start))::int AS turn
                 FROM pipeline_windows('{pipeline}')) w) w
         GROUP BY stretch, state ORDER BY stretch"
    ))
}

#[test]
fn defining_a_pipeline_with_an_old_start_starts_nothing() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "old", "'1 day', current_date - 1095", "max_active => 99");
    assert_eq!(session.all_of("old"), []);
    let missed = "SELECT windows, oldest = current_date - 1095 FROM backfill.missed WHERE pipeline = 'old'";
    assert_eq!(session.lines(missed), ["1095|t"]);
    assert_eq!(states(&mut session, "old"), ["missed|1095"]);
    // The same script on the next deployment changes nothing either.
    define(&mut session, "old", "'1 day', current_date - 1095", "max_active => 99");
    assert_eq!(session.all_of("old"), []);
}

#[test]
fn a_resume_starts_no_more_than_the_bound_and_lists_the_rest() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "hourly", HOURS, "max_active => 99, backlog => 5, catchup => 2");
    session.active_for("hourly", "50 hours");
    session.run("SELECT pipeline_pause('hourly', 'maintenance')");
    assert_eq!(session.all_of("hourly"), []);
    session.run("SELECT pipeline_resume('hourly')");
    assert_eq!(states(&mut session, "hourly"), ["missed|98", "eligible|2"]);
    let leases = session.all_of("hourly");
    assert_eq!(leases.len(), 2);
    assert!(leases.iter().all(|lease| lease.run_kind == "catchup"));
}

#[test]
fn without_catchup_the_first_lease_ends_after_the_pipeline_became_active() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "fast", "'300 milliseconds', now() - interval '10 seconds'", "");
    let mut leases = vec![];
    wait_until("a window falls due", || {
        leases = session.all_of("fast");
        !leases.is_empty()
    });
    assert_eq!(leases[0].run_kind, "scheduled");
    let after = "SELECT bool_and(r.window_end > p.active_since) FROM backfill.runs r
                 JOIN backfill.pipeline_data p ON p.name = r.pipeline";
    assert!(session.one::<bool>(after, &[]));
}

#[test]
fn after_days_without_workers_only_the_backlog_starts() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "hourly", HOURS, "max_active => 99, backlog => 3, catchup => 2");
    session.active_for("hourly", "50 hours");
    assert_eq!(states(&mut session, "hourly"), ["missed|48", "eligible|2", "missed|47", "eligible|3"]);
    assert_eq!(session.all_of("hourly").len(), 5);
    assert_eq!(states(&mut session, "hourly"), ["missed|48", "leased|2", "missed|47", "leased|3"]);
    let missed = "SELECT windows FROM backfill.missed WHERE pipeline = 'hourly'";
    assert_eq!(session.lines(missed), ["95"]);
    // One call decides about the rest, with author and reason.
    session.run("SELECT window_skip('hourly', NULL, NULL, 'not worth it')");
    assert_eq!(session.lines(missed), [""; 0]);
    let why: Vec<String> =
        session.column("SELECT DISTINCT format('%s: %s', marked_by, reason) FROM backfill.mark_data", &[]);
    assert_eq!(why, ["postgres: not worth it"]);
}

#[test]
fn nothing_that_happens_to_newer_windows_admits_an_older_one() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "hourly", HOURS, "max_active => 99, backlog => 5");
    session.active_for("hourly", "50 hours");
    let admitted = session.all_of("hourly");
    assert_eq!(admitted.len(), 5);
    let [done, failed, refused, released, open] = admitted.try_into().unwrap();
    session.call("finish", done.token);
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", failed.token));
    session.run(&format!("SELECT backfill_fail({}, 'no', sqlstate => 'BF005')", refused.token));
    session.call("release", released.token);
    assert_eq!(keys(&session.all_of("hourly")), [released.key.as_str()]);
    session.run(&format!("SELECT window_skip('hourly', {}, NULL, 'test')", hour(1)));
    assert_eq!(session.all_of("hourly"), []);
    assert_sqlstate!(session.try_run(&format!("SELECT backfill_finish({})", open.token)), "BF002");
    // Planning the newest, or old ones, and letting go of them.
    for bounds in [format!("{}, NULL", hour(3)), format!("NULL, {}", hour(60))] {
        let plan = format!("SELECT plan_id FROM backfill_plan('hourly', {bounds}, 'test')");
        let id: i64 = session.one(&plan, &[]);
        session.cancel(id);
        assert_eq!(session.all_of("hourly"), []);
    }
    assert_eq!(states(&mut session, "hourly")[0], "missed|95");
}

#[test]
fn while_one_lease_is_held_later_windows_wait_as_states_and_the_bound_applies_when_it_ends() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "fast", "'50 milliseconds', now() - interval '1 second'", "backlog => 3");
    let mut held = vec![];
    wait_until("a window falls due", || {
        held = session.all_of("fast");
        !held.is_empty()
    });
    assert_eq!(held.len(), 1);
    let due = "SELECT count(*) >= 20 FROM pipeline_windows('fast') w, backfill.pipeline_data p
               WHERE p.name = 'fast' AND w.window_start > p.active_since";
    database.wait_for("twenty more fall due", due);
    assert_eq!(count(&mut session, "backfill.windows"), 1);
    session.call("finish", held[0].token);
    session.run("SELECT pipeline_pause('fast', 'the rest is counted')");
    let eligible = "pipeline_windows('fast') WHERE state = 'eligible'";
    assert_eq!(count(&mut session, eligible), 3);
    assert!(count(&mut session, "pipeline_windows('fast') WHERE state = 'missed'") >= 20);
}

#[test]
fn a_window_that_has_started_keeps_its_right_to_be_retried() {
    let database = daily("");
    let mut session = database.connect();
    let settings = "backlog => 1, retry_delay => '0', max_active => 99";
    define(&mut session, "fast", "'50 milliseconds', now() - interval '1 second'", settings);
    let mut first = vec![];
    wait_until("a window falls due", || {
        first = session.all_of("fast");
        !first.is_empty()
    });
    session.fail(first[0].token);
    let newer = "SELECT count(*) > 9 FROM pipeline_windows('fast') WHERE window_key > $1";
    wait_until("newer windows fall due", || session.one(newer, &[&first[0].key]));
    let again = session.all_of("fast");
    assert!(keys(&again).contains(&first[0].key.as_str()), "{again:?}");
}

#[test]
fn a_paused_pipeline_starts_nothing_and_its_plans_go_on() {
    let database = daily("catchup => 5");
    let mut session = database.connect();
    session.plan("2024-01-03", "");
    session.run("SELECT pipeline_pause('daily', 'test')");
    let leases = session.all_of("daily");
    assert_eq!(keys(&leases), ["2024-01-01", "2024-01-02"]);
    assert!(leases.iter().all(|lease| lease.run_kind == "backfill"));
}

#[test]
fn a_resume_drafts_what_was_missed_and_the_draft_does_nothing_until_it_is_approved() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "hourly", HOURS, "catchup => 2");
    session.run("SELECT pipeline_pause('hourly', 'test')");
    let resume = "SELECT missed, oldest = w.start_at, newest = w.start_at + interval '97 hours', r.plan_id
                  FROM backfill.pipeline_data w, pipeline_resume('hourly') r WHERE w.name = 'hourly'";
    assert_eq!(session.lines(resume), ["98|t|t|1"]);
    assert_eq!(session.all_of("hourly").len(), 1);
    // A newer draft replaces the last one.
    assert_eq!(session.lines(resume), ["98|t|t|2"]);
    let plans = "SELECT plan_id, state, windows FROM backfill.plans ORDER BY plan_id";
    assert_eq!(session.lines(plans), ["1|cancelled|98", "2|draft|98"]);
    assert_sqlstate!(session.approve(Plan { id: 1, windows: 98 }), "55000");
    session.approve(Plan { id: 2, windows: 98 }).unwrap();
    assert_eq!(states(&mut session, "hourly"), ["queued|98", "leased|1", "eligible|1"]);
    // What is approved stays.
    session.run("SELECT pipeline_resume('hourly')");
    assert_eq!(session.lines(plans), ["1|cancelled|98", "2|approved|98"]);
}

#[test]
fn a_resume_that_missed_nothing_drafts_nothing() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "new", "'1 hour', now() + interval '1 hour'", "");
    session.run("SELECT pipeline_pause('new', 'test')");
    assert_eq!(session.lines("SELECT * FROM pipeline_resume('new')"), ["0|||"]);
    assert_eq!(count(&mut session, "backfill.plan_data"), 0);
}
