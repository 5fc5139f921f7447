//! What waits and why: `backfill.blocked`, `backfill.attention`, `backfill.pools`, `window_why`.

use crate::support::{Calls, daily, define};
use pgrx_tests::{Session, assert_sqlstate, wait_until};

fn blocked(session: &mut Session) -> Vec<String> {
    session.lines(
        "SELECT pipeline, blocked_by, reason, count(*) FROM backfill.blocked GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
    )
}

fn why(session: &mut Session, key: &str) -> String {
    session.one("SELECT window_why('daily', $1)", &[&key])
}

#[test]
fn a_full_pool_plan_and_pipeline_are_named() {
    let database = daily("catchup => 3");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 2)");
    let plan = session.plan("2024-01-06", ", concurrency => 1");
    assert_eq!(blocked(&mut session), [""; 0]);
    assert!(why(&mut session, "2024-01-02").contains(&format!("plan {plan} will run it")));
    let leases = session.leases(9);
    assert_eq!(leases.len(), 2);
    assert_eq!(
        blocked(&mut session),
        [
            "daily|pipeline \"daily\"|pipeline \"daily\" is full: it holds 1 of 1 leases|2".to_owned(),
            format!("daily|plan {plan}|plan {plan} is full: it holds 1 of 1 leases|4"),
        ]
    );
    session.run("SELECT pool_define('backfill', 1)");
    let pool = "daily|pool \"backfill\"|pool \"backfill\" is full: 1 of 1 slots are held|4";
    assert_eq!(blocked(&mut session)[1], pool);
    assert!(why(&mut session, "2024-01-02").contains("pool \"backfill\" is full: 1 of 1 slots are held"));
    let pools = "SELECT pool, slots, in_use, waiting FROM backfill.pools ORDER BY 1";
    assert_eq!(session.lines(pools), ["backfill|1|1|4", "live|8|1|2"]);
}

#[test]
fn a_pause_is_named_with_who_and_why() {
    let database = daily("catchup => 2");
    let mut session = database.connect();
    let plan = session.plan("2024-01-03", "");
    session.run(&format!(
        "SELECT backfill_pause({plan}, 'month end'); SELECT pipeline_pause('daily', 'broken')"
    ));
    assert_eq!(
        blocked(&mut session),
        [
            "daily|pipeline \"daily\"|pipeline \"daily\" is paused by postgres: broken|2".to_owned(),
            format!("daily|plan {plan}|plan {plan} is paused by postgres: month end|2"),
        ]
    );
    session.run(&format!("SELECT backfill_resume({plan}); SELECT pool_pause('backfill', 'no disk')"));
    assert!(why(&mut session, "2024-01-01").contains("pool \"backfill\" is paused by postgres: no disk"));
    let attention = "SELECT kind, what, remedy FROM backfill.attention WHERE kind LIKE 'paused%' ORDER BY 1";
    assert_eq!(
        session.lines(attention),
        [
            "paused pipeline|paused by postgres: broken|SELECT * FROM pipeline_resume('daily');",
            "paused pool|pool \"backfill\" is paused by postgres: no disk|SELECT pool_resume('backfill');"
        ]
    );
}

#[test]
fn a_window_in_the_way_is_named() {
    let database = daily("depends_on_past => true, max_attempts => 1");
    let mut session = database.connect();
    let plan = session.draft("NULL, '2024-01-05', 'test', ordering => 'sequential'");
    session.approve(plan).unwrap();
    let lease = session.lease();
    session.fail(lease.token);
    let reason = "window 2024-01-01 is failed: it has to be done, skipped or adopted first";
    assert_eq!(blocked(&mut session), [format!("daily|window 2024-01-01|{reason}|3")]);
    assert!(why(&mut session, "2024-01-04").contains(reason));
    let attention =
        "SELECT kind, windows, what FROM backfill.attention WHERE kind IN ('blocked', 'failed') ORDER BY 1";
    assert_eq!(
        session.lines(attention),
        [format!("blocked|3|{reason}"), "failed|1|their attempts are used up".into()]
    );
}

#[test]
fn a_backend_that_still_writes_is_named() {
    let database = daily("");
    let (mut worker, mut session) = (database.connect(), database.connect());
    let plan = session.plan("2024-01-02", "");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    session.cancel(plan);
    session.plan("2024-01-02", "");
    let pid = worker.pid();
    let named = "SELECT blocked_by FROM backfill.blocked";
    assert_eq!(session.lines(named), [format!("pid {pid}")]);
    assert!(why(&mut session, "2024-01-01").contains(&format!("backend {pid} has a transaction open")));
    assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
    wait_until("its backend is out of the way", || session.lines(named).is_empty());
}

#[test]
fn what_needs_a_person_is_listed_with_the_call_that_helps() {
    let database = daily("max_attempts => 1, lease_for => '1 second'");
    let mut session = database.connect();
    let far_from_midnight: String = session.one(
        "SELECT CASE WHEN extract(hour FROM now() AT TIME ZONE 'UTC') BETWEEN 6 AND 17 THEN 'UTC' ELSE 'Etc/GMT-12' END",
        &[],
    );
    let settings = format!("catchup => 2, code_version => 'v7', time_zone => '{far_from_midnight}'");
    define(&mut session, "idle", "'1 day', '2024-01-01'", &settings);
    session.run("SELECT pool_define('backfill', 9)");
    session.plan("2024-01-04", "");
    let leases = session.leases(3);
    session.fail(leases[0].token);
    session.run(&format!("SELECT backfill_fail({}, 'rows', sqlstate => 'BF005')", leases[1].token));
    session.let_expire(leases[2].token);
    let draft = session.draft("'2024-02-01', '2024-02-03', 'the rest'").id;
    let kinds = |session: &mut Session, pipeline: &str| {
        session.lines(&format!(
            "SELECT kind, windows, plan_id FROM backfill.attention
             WHERE pipeline = '{pipeline}' AND kind <> 'missed' ORDER BY kind"
        ))
    };
    assert_eq!(
        kinds(&mut session, "daily"),
        [format!("draft|2|{draft}"), "failed|1|".into(), "overdue|1|".into(), "refused|1|".into()]
    );
    assert_eq!(kinds(&mut session, "idle"), ["no worker|2|"]);
    let remedy = "SELECT remedy FROM backfill.attention WHERE kind = 'no worker'";
    assert_eq!(session.lines(remedy), ["start a worker"], "it has no query that backfill_work could run");
    let why: String =
        session.one("SELECT why FROM pipeline_windows('idle') WHERE state = 'eligible' LIMIT 1", &[]);
    assert!(why.contains("\"v7\""), "{why}");
    let remedy = "SELECT remedy FROM backfill.attention WHERE kind = 'draft'";
    assert_eq!(session.lines(remedy), [format!("SELECT backfill_explain({draft});")]);
    follow_the_remedies(&mut session);
}

/// What the remedies call exists and works.
fn follow_the_remedies(session: &mut Session) {
    for remedy in session.lines("SELECT remedy FROM backfill.attention WHERE remedy LIKE 'SELECT%'") {
        session.run(&remedy);
    }
}

#[test]
fn a_claim_that_is_not_committed_is_named() {
    let database = daily("");
    let [mut person, mut worker] = [(); 2].map(|()| database.connect());
    person.run("SELECT pool_define('backfill', 2)");
    person.plan("2024-01-06", ", concurrency => 5");
    worker.run("BEGIN");
    assert_eq!(worker.leases(2).len(), 2);
    assert_eq!(person.claim(), None);
    let pid = worker.pid();
    let open = format!("held by a transaction that is open: pid {pid}");
    assert_eq!(
        blocked(&mut person),
        [
            format!("daily|pid {pid}|every free slot is {open}|3"),
            format!("daily|pid {pid}|the window is {open}|2")
        ]
    );
    let told = why(&mut person, "2024-01-04");
    assert!(told.contains(&format!("pid {pid}")), "{told}");
    worker.run("COMMIT");
    assert!(blocked(&mut person).iter().all(|line| line.contains("is full: 2 of 2 slots")));
}

#[test]
fn what_helps_windows_that_depend_on_each_other_is_a_sequential_plan() {
    let database = daily("depends_on_past => true, max_attempts => 1");
    let mut session = database.connect();
    let plan = session.draft("NULL, '2024-01-03', 'test', ordering => 'sequential'");
    session.approve(plan).unwrap();
    let token = session.lease().token;
    session.fail(token);
    let remedies = "SELECT kind FROM backfill.attention WHERE remedy LIKE '%sequential%' ORDER BY 1";
    assert_eq!(session.lines(remedies), ["failed", "missed"]);
    follow_the_remedies(&mut session);
}

#[test]
fn what_is_missed_is_counted_once_a_pipeline_also_without_statistics() {
    let database = daily("");
    let mut session = database.connect();
    for n in 1..=20 {
        define(&mut session, &format!("p{n}"), "'1 day', '2024-01-01'", "");
    }
    session.run("SET track_functions = 'all'; BEGIN; SELECT count(*) FROM backfill.attention");
    let calls = "SELECT pg_stat_get_xact_function_calls('backfill.missed_of'::regproc)";
    assert!(session.one::<i64>(calls, &[]) <= 21 + 20);
}

#[test]
fn a_dropped_pipeline_asks_for_no_attention() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    mix(&mut session, "");
    session.run("SELECT backfill_verify('daily', NULL, '2024-01-03')");
    for lease in session.leases(2) {
        session.replace(lease.token).unwrap();
    }
    let kinds =
        "SELECT kind FROM backfill.attention WHERE kind IN ('mixed versions', 'not reproduced') ORDER BY 1";
    assert_eq!(session.lines(kinds), ["mixed versions", "not reproduced"]);
    session.run("SELECT pipeline_drop('daily')");
    assert_eq!(session.lines(kinds), [""; 0]);
    // Nor does one that has its name.
    define(&mut session, "daily", "'1 day', '2024-01-01'", "");
    assert_eq!(session.lines(kinds), [""; 0]);
    assert_eq!(session.count("backfill.version_mix WHERE mixed"), 1);
    assert_eq!(session.count("backfill.verifications WHERE NOT same"), 2);
}

/// Two days of `daily`, each by other code, which workers state.
fn mix(session: &mut Session, more: &str) {
    for day in 1..3 {
        let plan = session.draft(&format!("'2024-01-{day:02}', '2024-01-{:02}', 'test' {more}", day + 1));
        session.approve(plan).unwrap();
        let claim = format!("1, pipelines => ARRAY['daily'], code_version => 'v{day}'");
        let token = session.try_claim(&claim).unwrap()[0].token;
        session.replace(token).unwrap();
    }
}

#[test]
fn what_helps_a_mixture_says_how_the_windows_depend_on_each_other_and_which_code_counts() {
    for (settings, ordering) in [("", ""), ("depends_on_past => true", ", ordering => 'sequential'")] {
        let database = daily(settings);
        let mut session = database.connect();
        mix(&mut session, ordering);
        let remedy: String =
            session.one("SELECT remedy FROM backfill.attention WHERE kind = 'mixed versions'", &[]);
        assert_eq!(
            remedy,
            format!(
                "SELECT * FROM backfill_plan('daily', NULL, NULL, '...', mode => 'outdated'{ordering}, code_version => '...');"
            )
        );
        session.run(&remedy.replace("'...', mode", "'why', mode").replace("'...'", "'v2'"));
    }
}
