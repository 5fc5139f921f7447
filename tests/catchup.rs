//! The catchup rule: what may start by itself, and what is listed instead.

use crate::support::{Calls, Plan, daily, define, keys};
use pgrx_tests::{Session, assert_sqlstate, wait_until};

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
    assert_eq!(session.count("backfill.windows"), 1);
    session.call("finish", held[0].token);
    session.run("SELECT pipeline_pause('fast', 'the rest is counted')");
    let eligible = "pipeline_windows('fast') WHERE state = 'eligible'";
    assert_eq!(session.count(eligible), 3);
    assert!(session.count("pipeline_windows('fast') WHERE state = 'missed'") >= 20);
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
    assert_eq!(session.count("backfill.plan_data"), 0);
}

#[test]
fn each_missed_window_is_a_row_and_a_window_of_the_plan_that_makes_it_good() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "five", "'1 hour', now() - interval '5 hours 30 minutes'", "");
    let missed: Vec<String> =
        session.column("SELECT window_key FROM pipeline_windows('five') WHERE state = 'missed'", &[]);
    assert_eq!(missed.len(), 5);
    session.run("SELECT pool_define('backfill', 9)");
    let plan: i64 = session.one(
        "SELECT plan_id FROM backfill_plan('five', NULL, NULL, 'make good', mode => 'missing', expect => 5)",
        &[],
    );
    let had = session.all_of("five");
    assert_eq!(keys(&had), missed);
    assert!(had.iter().all(|lease| lease.plan_id == Some(plan)));
}

#[test]
fn a_day_without_a_worker_leaves_the_bound_and_one_call_decides_about_the_rest() {
    let database = daily("");
    let mut session = database.connect();
    let minutes = "'1 minute', now() - interval '1440 minutes'";
    define(&mut session, "minutely", minutes, "max_active => 99");
    session.active_for("minutely", "1 day");
    let leases = session.all_of("minutely");
    // A minute may have passed between two of the claims.
    assert!((3..=4).contains(&leases.len()), "{leases:?}");
    let planned: i64 = session.one(
        "SELECT windows FROM backfill_plan('minutely', NULL, NULL, 'it matters', mode => 'missing')",
        &[],
    );
    let due: i64 = session.count("pipeline_windows('minutely')");
    assert!((1436..=1438).contains(&planned) && due >= planned + 3, "{planned} of {due}");
    // Or the same windows are given up.
    let skipped: i64 = session.one(
        "SELECT window_skip('minutely', NULL, $1::text::timestamptz::text, 'nobody needs them')",
        &[&leases[0].key],
    );
    assert!(skipped >= planned - 1, "{skipped} of {planned}");
    assert_eq!(session.count("backfill.missed WHERE pipeline = 'minutely'"), 0);
}

#[test]
fn a_window_that_does_not_run_tells_whether_the_rule_another_window_or_a_person_keeps_it() {
    let database = daily("catchup => 3");
    let mut session = database.connect();
    let lease = session.lease();
    session.run("SELECT window_skip('daily', '2024-02-01', '2024-02-02', 'no data that day')");
    let why = "SELECT state, why FROM pipeline_windows('daily') WHERE window_key <> $1 AND
               (window_key < '2024-02-03' OR window_key > $1) ORDER BY window_start";
    let told = session.rows(why, &[&lease.key]);
    let said = |place: usize| (told[place].get::<_, &str>(0), told[place].get::<_, &str>(1));
    let (state, why) = said(0);
    assert!(state == "missed" && why.contains("the catchup rule does not let it start"), "{why}");
    let (state, why) = said(31);
    assert!(state == "skipped" && why.contains("by postgres at 2"), "{why}");
    assert!(why.contains("no data that day"), "{why}");
    let (state, why) = said(33);
    assert!(state == "eligible" && why.contains("it holds 1 of 1 leases"), "{state}: {why}");
}
