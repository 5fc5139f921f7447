//! The life of an approved plan: pause, resume, canary, stop, retry, adjust, extend.

use crate::support::{Calls, Plan, daily, keys};
use pgrx_tests::{Session, assert_sqlstate};

fn shown(session: &mut Session, plan: i64) -> String {
    session.one("SELECT state FROM backfill.plans WHERE plan_id = $1", &[&plan])
}

fn finish_all(session: &mut Session) -> Vec<String> {
    let mut done = vec![];
    while let Some(lease) = session.claim() {
        session.call("finish", lease.token);
        done.push(lease.key);
    }
    done
}

#[test]
fn a_pause_counts_from_the_next_claim_and_keeps_what_runs() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.plan("2024-01-06", "");
    let lease = session.lease();
    let pause = format!("SELECT backfill_pause({plan}, 'month end')");
    assert_eq!(session.lines(&pause), ["paused"]);
    assert_eq!(session.lines(&pause), ["unchanged"]);
    assert_eq!(session.claim(), None);
    session.replace(lease.token).unwrap();
    let told = "SELECT state, paused_by, pause_reason, done FROM backfill.plans";
    assert_eq!(session.lines(told), ["paused|postgres|month end|1"]);
    // Its windows stay its own.
    let other = session.draft("NULL, '2024-01-06', 'test'");
    assert_eq!(other.windows, 1);
    assert_eq!(session.lines(&format!("SELECT backfill_resume({plan})")), ["resumed"]);
    assert_eq!(session.lines(&format!("SELECT backfill_resume({plan})")), ["unchanged"]);
    assert_eq!(finish_all(&mut session).len(), 4);
    assert_eq!(shown(&mut session, plan), "completed");
    let events = "SELECT what, why, who FROM backfill.plan_events WHERE plan_id = 1 ORDER BY happened_at";
    assert_eq!(
        session.lines(events),
        ["drafted|test|postgres", "approved||postgres", "paused|month end|postgres", "resumed||postgres"]
    );
}

#[test]
fn a_canary_runs_so_many_windows_and_waits_for_a_person() {
    for ordering in ["oldest_first", "newest_first"] {
        let database = daily("max_attempts => 2, retry_delay => '0'");
        let mut session = database.connect();
        session.run("SELECT pool_define('backfill', 8)");
        let plan = session.plan("2024-01-11", &format!(", canary => 3, ordering => '{ordering}'"));
        let held = session.leases(8);
        assert_eq!(held.len(), 3, "{ordering}");
        let named = "SELECT count(*) FROM backfill_claim('test', pipelines => ARRAY['daily'], window_key => '2024-01-05')";
        assert_eq!(session.lines(named), ["0"]);
        assert_eq!(session.fail(held[0].token), "retrying");
        session.call("release", held[1].token);
        session.call("finish", held[2].token);
        assert_eq!(shown(&mut session, plan), "running");
        let mut again = keys(&session.leases(8)).into_iter().map(str::to_owned).collect::<Vec<_>>();
        again.sort();
        let mut expected = vec![held[0].key.clone(), held[1].key.clone()];
        expected.sort();
        assert_eq!(again, expected);
        // A pause meanwhile does not use it up.
        session.run(&format!("SELECT backfill_pause({plan}, 'test'); SELECT backfill_resume({plan})"));
        assert_eq!(session.claim(), None);
        for token in session.lines("SELECT token FROM backfill.leases") {
            session.run(&format!("SELECT backfill_finish({token})"));
        }
        assert_eq!(session.claim(), None);
        let told = "SELECT state, paused_by, pause_reason FROM backfill.plans";
        assert_eq!(session.lines(told), ["paused|canary|the first 3 windows have run"]);
        assert_eq!(session.lines(&format!("SELECT backfill_resume({plan})")), ["resumed"]);
        assert_eq!(finish_all(&mut session).len(), 7);
        assert_eq!(shown(&mut session, plan), "completed");
    }
}

#[test]
fn a_failure_for_good_stops_a_plan_that_asked_for_it() {
    let database = daily("max_attempts => 2, retry_delay => '0'");
    let mut session = database.connect();
    let plan = session.plan("2024-01-06", ", on_failure => 'stop', concurrency => 1");
    let lease = session.lease();
    // An attempt that will be repeated stops nothing.
    assert_eq!(session.fail(lease.token), "retrying");
    let other = session.lease();
    assert_ne!(other.key, lease.key, "a failed window comes behind those never tried");
    session.call("finish", other.token);
    loop {
        let lease = session.lease();
        if session.fail(lease.token) == "failed" {
            break;
        }
    }
    assert_eq!(session.claim(), None);
    let told = "SELECT state, paused_by, failed, done FROM backfill.plans";
    assert_eq!(session.lines(told), ["paused|on_failure|1|1"]);
    // The failed window stays failed; the others go on.
    assert_eq!(session.lines(&format!("SELECT backfill_resume({plan})")), ["resumed"]);
    assert_eq!(finish_all(&mut session).len(), 3);
    assert_eq!(shown(&mut session, plan), "partial");
}

#[test]
fn an_expiry_for_good_stops_it_too() {
    let database = daily("max_attempts => 1, lease_for => '1 second'");
    let mut session = database.connect();
    session.plan("2024-01-06", ", on_failure => 'stop', concurrency => 1");
    let lease = session.lease();
    session.let_expire(lease.token);
    // The claim that ends it sees no free slot of an earlier look; none is handed out after that.
    let _ = session.claim().map(|lease| session.call("finish", lease.token));
    assert_eq!(session.claim(), None);
    let told = "SELECT state, paused_by, failed FROM backfill.plans";
    assert_eq!(session.lines(told), ["paused|on_failure|1"]);
}

#[test]
fn a_retry_runs_exactly_the_failed_windows() {
    let database = daily("max_attempts => 1");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 8)");
    let plan = session.plan("2024-01-09", "");
    for (i, lease) in session.leases(8).iter().enumerate() {
        match i {
            1 | 4 => assert_eq!(session.fail(lease.token), "failed"),
            6 => session.run(&format!("SELECT backfill_fail({}, 'empty', sqlstate => 'BF006')", lease.token)),
            _ => session.call("finish", lease.token),
        }
    }
    assert_eq!(shown(&mut session, plan), "partial");
    assert_eq!(session.claim(), None);
    let retry = format!("SELECT backfill_retry({plan})");
    assert_eq!(session.lines(&retry), ["3"]);
    // They are the plan's again, and nobody else's.
    assert_eq!(session.draft("NULL, '2024-01-09', 'test', mode => 'missing'"), Plan { id: 0, windows: 0 });
    assert_eq!(session.lines(&retry), ["0"]);
    let again = session.leases(8);
    assert_eq!(keys(&again), ["2024-01-02", "2024-01-05", "2024-01-07"]);
    assert!(again.iter().all(|lease| lease.attempt == 1), "a new count");
    for lease in &again {
        session.call("finish", lease.token);
    }
    assert_eq!(shown(&mut session, plan), "completed");
    assert_eq!(session.claim(), None);
    session.assert_one_lease_per_window();
}

#[test]
fn a_retry_respects_who_owns_a_window_by_now() {
    let database = daily("max_attempts => 1");
    let mut session = database.connect();
    let plan = session.plan("2024-01-03", "");
    for lease in session.leases(2) {
        session.fail(lease.token);
    }
    let other = session.plan_window("2024-01-02");
    let retry = format!("SELECT backfill_retry({plan})");
    let failure = assert_sqlstate!(session.try_run(&retry), "BF009");
    assert!(failure.message.contains(&format!("plan {other}")), "{failure}");
    assert_eq!(session.count("backfill.requeue_data"), 0);
    session.cancel(other);
    assert_eq!(session.lines(&retry), ["2"]);
    session.cancel(plan);
    assert_sqlstate!(session.try_run(&retry), "55000");
}

#[test]
fn concurrency_and_priority_change_while_it_runs() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    let plan = session.plan("2024-01-31", ", concurrency => 2");
    assert_eq!(session.leases(9).len(), 2);
    let adjust = |more: &str| format!("SELECT backfill_adjust({plan}, {more})");
    assert_eq!(session.lines(&adjust("5")), ["changed: concurrency 5, priority 0"]);
    assert_eq!(session.leases(9).len(), 3);
    // Lowered below what is held: nothing ends, and nothing more is given.
    assert_eq!(session.lines(&adjust("2, priority => 7")), ["changed: concurrency 2, priority 7"]);
    assert_eq!(session.lines(&adjust("2")), ["unchanged"]);
    for held in [5, 4, 3, 2] {
        assert_eq!(session.count("backfill.leases"), held);
        assert_eq!(session.claim(), None, "{held} are held");
        let token: i64 = session.one("SELECT min(token) FROM backfill.leases", &[]);
        session.call("finish", token);
    }
    assert_eq!(session.leases(9).len(), 1);
    for wrong in ["0", "10001"] {
        assert_sqlstate!(session.try_run(&adjust(wrong)), "22023");
    }
}

#[test]
fn an_extension_adds_what_became_due_and_nothing_else() {
    let database = daily("delay => '2 days'");
    let mut session = database.connect();
    let due = "SELECT count(*)::int FROM pipeline_windows('daily')";
    let before: i32 = session.one(due, &[]);
    let plan = session.plan("2024-01-03", "");
    let open: i64 = session.one(
        "SELECT plan_id FROM backfill_plan('daily', '2024-01-03', NULL, 'the rest', expect => $1)",
        &[&i64::from(before - 2)],
    );
    let extend = |plan: i64| format!("SELECT backfill_extend({plan})");
    assert_eq!(session.lines(&extend(open)), ["0"]);
    session.run(r#"SELECT pipeline_alter('daily', '{"delay": "0"}')"#);
    assert_eq!(session.lines(&extend(plan)), ["0"], "its range ends before");
    assert_eq!(session.lines(&extend(open)), ["2"]);
    assert_eq!(session.lines(&extend(open)), ["0"]);
    let windows = format!(
        "SELECT windows, range_end = (SELECT max(window_end) FROM pipeline_windows('daily'))
                           FROM backfill.plans WHERE plan_id = {open}"
    );
    assert_eq!(session.lines(&windows), [format!("{}|t", before)]);
    assert_eq!(
        session.count(&format!("backfill.plan_declined WHERE plan_id = {open} AND reason = 'not due'")),
        0
    );
    assert_eq!(finish_all(&mut session).len() as i32, before + 2);
    assert_eq!(shown(&mut session, open), "completed");
}

#[test]
fn a_completed_plan_that_is_extended_goes_on() {
    let database = daily("delay => '1 day'");
    let mut session = database.connect();
    let from = "(now() AT TIME ZONE 'UTC' - interval '5 days')::date";
    let plan: i64 = session.one(
        &format!("SELECT plan_id FROM backfill_plan('daily', {from}, NULL, 'newest', expect => 4)"),
        &[],
    );
    assert_eq!(finish_all(&mut session).len(), 4);
    assert_eq!(session.claim(), None);
    assert_eq!(shown(&mut session, plan), "completed");
    session.run(r#"SELECT pipeline_alter('daily', '{"delay": "0"}')"#);
    assert_eq!(session.lines(&format!("SELECT backfill_extend({plan})")), ["1"]);
    assert_eq!(shown(&mut session, plan), "running");
    assert_eq!(finish_all(&mut session).len(), 1);
    assert_eq!(shown(&mut session, plan), "completed");
}

#[test]
fn what_a_draft_or_a_cancelled_plan_cannot_do() {
    let database = daily("");
    let mut session = database.connect();
    let draft = session.draft("NULL, '2024-01-03', 'test'").id;
    let cancelled = session.plan("2024-01-05", "");
    session.cancel(cancelled);
    for plan in [draft, cancelled] {
        for call in ["pause({}, 'why')", "resume({})", "retry({})", "adjust({}, 1)", "extend({})"] {
            let call = format!("SELECT backfill_{}", call.replace("{}", &plan.to_string()));
            assert_eq!(session.failure(&call).sqlstate, "55000", "{call}");
        }
    }
    assert_eq!(session.failure("SELECT backfill_retry(99)").sqlstate, "42704");
}

#[test]
fn a_draft_expires() {
    let database = daily("");
    let mut session = database.connect();
    let draft = session.draft("NULL, '2024-01-03', 'test'");
    session.run("UPDATE backfill.plan_data SET expires_at = clock_timestamp()");
    let failure = assert_sqlstate!(session.approve(draft), "BF004");
    assert!(failure.message.contains("expired"), "{failure}");
}

/// Old windows that fail for ever do not keep the newest from running.
#[test]
fn sixty_failing_windows_keep_nothing_else_from_running() {
    let database = daily("catchup => 60, max_active => 1, max_attempts => 1000, retry_delay => '0'");
    let mut session = database.connect();
    let newest: String = session.one(
        "SELECT window_key FROM pipeline_windows('daily') WHERE state = 'eligible' ORDER BY window_start DESC LIMIT 1",
        &[],
    );
    let mut seen = 0;
    loop {
        let lease = session.lease();
        seen += 1;
        if lease.key == newest {
            break;
        }
        session.fail(lease.token);
        assert!(seen <= 60, "the newest window has its turn");
    }
}

#[test]
fn a_second_retry_leaves_alone_what_the_first_made_good() {
    let database = daily("max_attempts => 1");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 9)");
    let plan = session.plan("2024-01-07", "");
    // Of the six windows three fail, then one of those.
    for failing in [&["2024-01-02", "2024-01-04", "2024-01-06"][..], &["2024-01-04"], &[]] {
        for lease in session.leases(9) {
            if failing.contains(&lease.key.as_str()) {
                session.fail(lease.token);
            } else {
                session.replace(lease.token).unwrap();
            }
        }
        assert_eq!(session.claim(), None);
        session.run(&format!("SELECT backfill_retry({plan})"));
    }
    let runs =
        "SELECT window_key, string_agg(outcome, ' ' ORDER BY token) FROM backfill.runs GROUP BY 1 ORDER BY 1";
    assert_eq!(
        session.lines(runs),
        [
            "2024-01-01|done",
            "2024-01-02|failed done",
            "2024-01-03|done",
            "2024-01-04|failed failed done",
            "2024-01-05|done",
            "2024-01-06|failed done"
        ]
    );
    assert_eq!(shown(&mut session, plan), "completed");
    session.assert_data_is_the_ledger();
}

#[test]
fn one_failure_of_a_hundred_is_no_success() {
    let database = daily("max_attempts => 1");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 100)");
    let plan = session.plan("2024-04-10", "");
    let leases = session.leases(100);
    session.run("SELECT backfill_finish(token) FROM backfill.leases WHERE window_key <> '2024-02-14'");
    let told = "SELECT state, windows, done, failed, running FROM backfill.plans";
    assert_eq!(session.lines(told), ["running|100|99|0|1"]);
    session.fail(leases.iter().find(|lease| lease.key == "2024-02-14").unwrap().token);
    assert_eq!(session.lines(told), ["partial|100|99|1|0"]);
    let attention = "SELECT what, remedy FROM backfill.attention WHERE kind = 'partial plan'";
    assert_eq!(
        session.lines(attention),
        [format!("1 of its windows failed or were refused|SELECT backfill_retry({plan});")]
    );
}

#[test]
fn progress_counts_what_the_ledger_holds_and_ends_with_the_last_window() {
    let database = daily("max_attempts => 1");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 20)");
    // Of the same pipeline, so that each could be counted for the other.
    let other = session.draft("'2024-02-01', '2024-02-11', 'test'");
    let plan = session.plan("2024-01-11", ", ordering => 'newest_first'");
    let told =
        format!("SELECT state, windows, done, failed, running FROM backfill.plans WHERE plan_id = {plan}");
    assert_eq!(session.lines(&told), ["approved|10|0|0|0"]);
    let leases = session.leases(9);
    assert_eq!((leases[0].key.as_str(), leases.len()), ("2024-01-10", 9));
    leases[..5].iter().for_each(|lease| session.call("finish", lease.token));
    assert_eq!(session.lines(&told), ["running|10|5|0|4"]);
    session.approve(other).unwrap();
    let leases_of_the_other = session.leases(20).into_iter().filter(|lease| lease.plan_id == Some(other.id));
    leases_of_the_other.for_each(|lease| session.call("finish", lease.token));
    assert_eq!(session.lines(&told), ["running|10|5|0|5"]);
    leases[5..].iter().for_each(|lease| session.call("finish", lease.token));
    assert_eq!(session.lines(&told), ["running|10|9|0|1"], "not done while one window is not");
    session
        .run(&format!("SELECT backfill_fail(token, 'no luck') FROM backfill.leases WHERE plan_id = {plan}"));
    assert_eq!(session.lines(&told), ["partial|10|9|1|0"]);
}

#[test]
fn a_canary_whose_window_is_skipped_has_had_its_part() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.plan("2024-01-04", ", canary => 1");
    session.run("SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'a holiday')");
    assert_eq!(shown(&mut session, plan), "paused");
    assert_eq!(session.lines("SELECT paused_by FROM backfill.plans"), ["canary"]);
    session.run(&format!("SELECT backfill_resume({plan})"));
    assert_eq!(session.all_of("daily").len(), 2);
}

#[test]
fn an_extension_forgets_why_its_windows_were_left_out() {
    let database = daily("");
    let mut session = database.connect();
    session.run(
        "SELECT pipeline_define('hourly', '1 hour', date_trunc('hour', now()) - interval '5 hours', backlog => 0);
         SELECT window_lock('hourly', date_trunc('hour', now()) - interval '2 hours', date_trunc('hour', now()) + interval '1 hour', 'closed');
         SELECT backfill_plan('hourly', NULL, date_trunc('hour', now()) + interval '2 hours', 'test', expect => 3)",
    );
    let why = "SELECT windows, reason FROM backfill.plan_declined ORDER BY range_start";
    let before = session.lines(why);
    assert!(before.contains(&"3|locked".to_owned()) || before.contains(&"2|locked".to_owned()), "{before:?}");
    session.run(
        "SELECT window_unlock('hourly', date_trunc('hour', now()) - interval '2 hours', date_trunc('hour', now()) + interval '1 hour', 'open')",
    );
    assert_eq!(session.lines("SELECT backfill_extend(1)"), ["2"]);
    let after = session.lines(why);
    assert!(after.iter().all(|line| line.ends_with("not due")), "{after:?}");
}

#[test]
fn what_was_done_stays_done_when_its_window_is_skipped_later() {
    let database = daily("");
    let mut session = database.connect();
    session.plan("2024-01-03", "");
    for lease in session.all_of("daily") {
        session.replace(lease.token).unwrap();
    }
    let shown = "SELECT state, done, failed, actual ? 'error' FROM backfill.plans";
    let before = session.lines(shown);
    session.run("SELECT window_skip('daily', '2024-01-02', '2024-01-03', 'it should not have run')");
    assert_eq!(session.lines(shown), before);
    assert_eq!(session.lines("SELECT done, skipped, percent FROM backfill_progress(1)"), ["2|0|100"]);
}
