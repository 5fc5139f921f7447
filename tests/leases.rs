//! Leases: one per window, never above a cap, under tokens that only increase.

use crate::support::{Calls, LEVELS, Lease, daily, define, impatient, keys, replacing};
use pgrx_tests::{Database, Session, assert_sqlstate, wait_until};
use std::sync::atomic::{AtomicUsize, Ordering};

const CALLS: [&str; 7] = [
    "backfill_heartbeat($1)",
    "backfill_finish($1)",
    "backfill_fail($1, 'late')",
    "backfill_release($1)",
    "fence_check($1)",
    "replace_partition($1)",
    "backfill_stage($1)",
];

/// Every call that takes a token is refused with this error, and changes nothing.
#[track_caller]
fn assert_refused(session: &mut Session, token: i64, code: &str) {
    let everything = "SELECT md5(string_agg(r::text, ',' ORDER BY token)) FROM backfill.run_data r";
    let before: Option<String> = session.one(everything, &[]);
    for call in CALLS {
        let sql = format!("SELECT {}", call.replace("$1", &token.to_string()));
        let failure = assert_sqlstate!(session.try_run(&sql), code);
        assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{failure}");
    }
    assert_eq!(before, session.one::<Option<String>>(everything, &[]));
}

// ── one lease a window, caps ─────────────────────────────────────────────────────────────────

#[test]
fn two_hundred_windows_and_twenty_workers_give_two_hundred_leases_within_the_caps() {
    let database = daily("");
    let mut operator = database.connect();
    operator.run("SELECT pool_define('backfill', 5)");
    let first = operator.plan("2024-04-10", ", concurrency => 3");
    let second = operator.plan("2024-07-19", ", mode => 'missing', concurrency => 3");
    let done = AtomicUsize::new(0);
    let held = database.many(21, |i, session| {
        let mut most = 0;
        wait_until("all windows are done", || {
            if i == 20 {
                let held = "SELECT in_use FROM backfill.pools WHERE pool = 'backfill'";
                most = most.max(session.one::<i64>(held, &[]));
            } else {
                for lease in session.leases(1 + i % 3) {
                    session.call("finish", lease.token);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            done.load(Ordering::Relaxed) >= 200
        });
        most
    });
    assert!(held[20] <= 5, "{} slots of 5 were held", held[20]);
    operator.assert_one_lease_per_window();
    let runs = "SELECT count(*), count(DISTINCT window_key), max(attempt) FROM backfill.runs";
    assert_eq!(operator.lines(runs), ["200|200|1"]);
    for plan in [first, second] {
        assert!(operator.most_at_once(&format!("plan_id = {plan}")) <= 3);
    }
    assert!(operator.most_at_once("true") <= 5);
    let states = "SELECT DISTINCT state FROM backfill.plans";
    assert_eq!(operator.lines(states), ["completed"]);
}

#[test]
fn the_tightest_of_the_limits_applies_and_only_where_it_should() {
    for (slots, concurrency, granted) in [(3, 2, 2), (2, 3, 2), (0, 5, 0), (5, 5, 5)] {
        let database = daily("");
        let mut worker = database.connect();
        worker.run(&format!("SELECT pool_define('backfill', {slots})"));
        worker.plan("2024-01-11", &format!(", concurrency => {concurrency}"));
        let all = worker.all_of("daily");
        assert_eq!(all.len(), granted, "{slots} slots, concurrency {concurrency}");
    }
}

#[test]
fn a_full_plan_hides_no_other_work() {
    let database = daily("catchup => 5, max_active => 2");
    let mut worker = database.connect();
    let full = worker.plan("2024-01-11", ", concurrency => 1, priority => 9");
    let other = worker.plan("2024-01-21", ", mode => 'missing', concurrency => 1");
    let leases = worker.all_of("daily");
    let of = |plan| leases.iter().filter(|lease| lease.plan_id == plan).count();
    assert_eq!((of(None), of(Some(full)), of(Some(other))), (2, 1, 1));
    // Scheduled work comes first, then plans by priority.
    let order: Vec<_> = leases.iter().map(|lease| lease.plan_id).collect();
    assert_eq!(order, [None, None, Some(full), Some(other)]);
}

#[test]
fn one_batch_respects_every_cap() {
    let database = daily("catchup => 9, max_active => 2");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 4)");
    worker.plan("2024-01-11", ", concurrency => 3");
    worker.plan("2024-01-21", ", mode => 'missing', concurrency => 3");
    let batch = worker.leases(100);
    let live = batch.iter().filter(|lease| lease.plan_id.is_none()).count();
    assert_eq!((live, batch.len()), (2, 6));
    assert_eq!(worker.claim(), None);
}

#[test]
fn a_lowered_pool_ends_nothing_and_grants_nothing_until_fewer_are_held() {
    let database = daily("");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 4)");
    worker.plan("2024-01-31", ", concurrency => 9");
    let held = worker.leases(9);
    assert_eq!(held.len(), 4);
    worker.run("SELECT pool_define('backfill', 2)");
    for lease in &held[..3] {
        assert_eq!(worker.claim(), None);
        worker.call("finish", lease.token);
    }
    // One is held, so one is free, whichever slot it is.
    assert_eq!(worker.leases(9).len(), 1);
    worker.run("SELECT pool_define('backfill', 5)");
    assert_eq!(worker.leases(9).len(), 3);
}

#[test]
fn a_lowered_max_active_ends_nothing_and_grants_nothing_until_fewer_are_held() {
    let database = daily("catchup => 20, max_active => 3");
    let mut worker = database.connect();
    let held = worker.leases(9);
    assert_eq!(held.len(), 3);
    worker.run(r#"SELECT pipeline_alter('daily', '{"max_active": 1}')"#);
    for lease in &held {
        assert_eq!(worker.claim(), None);
        worker.call("release", lease.token);
    }
    assert_eq!(worker.leases(9).len(), 1);
}

#[test]
fn claims_that_meet_at_the_last_slot_cannot_both_have_it() {
    let database = daily("");
    let mut operator = database.connect();
    operator.plan("2024-01-31", ", concurrency => 1");
    for _ in 0..10 {
        let had = database.many(8, |_, session| session.claim());
        let had: Vec<Lease> = had.into_iter().flatten().collect();
        assert!(had.len() <= 1, "{had:?}");
        // Claims that pass each other may all go away empty; the next one must not.
        let lease = had.into_iter().next().unwrap_or_else(|| operator.lease());
        operator.call("finish", lease.token);
    }
    assert_eq!(operator.most_at_once("true"), 1);
}

// ── expiry and takeover ──────────────────────────────────────────────────────────────────────

const SHORT: &str = "lease_for => '1 second'";

#[test]
fn an_expired_lease_is_taken_over_under_a_higher_token_and_costs_one_attempt() {
    let database = daily(SHORT);
    let (mut slow, mut next) = (database.connect(), database.connect());
    slow.plan_window("2024-01-01");
    let old = slow.lease();
    assert_eq!(next.claim(), None);
    slow.let_expire(old.token);
    let new = next.lease();
    assert_eq!((new.key.as_str(), new.attempt), ("2024-01-01", 2));
    assert!(new.token > old.token);
    assert_refused(&mut slow, old.token, "BF001");
    next.replace(new.token).unwrap();
    assert_refused(&mut slow, old.token, "BF001");
    next.assert_data_is_the_ledger();
    let outcomes = "SELECT outcome FROM backfill.runs ORDER BY token";
    assert_eq!(next.lines(outcomes), ["expired", "done"]);
}

#[test]
fn an_expired_lease_may_do_all_that_a_live_one_may_until_it_is_taken_over() {
    let database = daily(SHORT);
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 9)");
    worker.plan("2024-01-06", "");
    let leases = worker.leases(9);
    worker.let_expire(leases[4].token);
    let [replaced, finished, failed, released, beating] = [0, 1, 2, 3, 4].map(|i| leases[i].token);
    worker.run(&format!("SELECT backfill_stage({replaced})"));
    worker.replace(replaced).unwrap();
    worker.run(&format!("SELECT fence_check({finished})"));
    worker.call("finish", finished);
    worker.fail(failed);
    worker.call("release", released);
    worker.run(r#"SELECT pipeline_alter('daily', '{"lease_for": "1 hour"}')"#);
    worker.call("heartbeat", beating);
    let again = worker.leases(9);
    assert_eq!(keys(&again), ["2024-01-04"], "only the released window is free");
}

#[test]
fn a_heartbeat_keeps_the_lease_beyond_its_first_expiry() {
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), database.connect());
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run(r#"SELECT pipeline_alter('daily', '{"lease_for": "1 hour"}')"#);
    worker.call("heartbeat", lease.token);
    database
        .wait_for("the first expiry is past", "SELECT expires_at < clock_timestamp() FROM backfill.run_data");
    assert_eq!(other.claim(), None);
    worker.replace(lease.token).unwrap();
}

#[test]
fn a_heartbeat_that_is_not_committed_yet_is_not_overlooked() {
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.let_expire(lease.token);
    worker.run(r#"SELECT pipeline_alter('daily', '{"lease_for": "1 hour"}'); BEGIN"#);
    worker.call("heartbeat", lease.token);
    assert_eq!(other.claim(), None);
    worker.run("COMMIT");
    assert_eq!(other.claim(), None);
    // Once it is rolled back it never was.
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.let_expire(lease.token);
    worker.run("BEGIN");
    worker.call("heartbeat", lease.token);
    assert_eq!(other.claim(), None);
    worker.run("ROLLBACK");
    assert_eq!(other.lease().key, lease.key);
}

#[test]
fn a_heartbeat_waits_for_nobody_while_its_own_worker_writes() {
    let database = daily("");
    let (mut worker, mut pulse) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    pulse.call("heartbeat", lease.token);
    worker.run("COMMIT");
    worker.assert_data_is_the_ledger();
}

#[test]
fn a_window_is_not_handed_out_while_a_fenced_transaction_is_open() {
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.run(&format!("SELECT fence_check({})", lease.token));
    worker.let_expire(lease.token);
    assert_eq!(other.claim(), None);
    worker.replace(lease.token).unwrap();
    assert_eq!(other.claim(), None);
    worker.run("COMMIT");
    assert_eq!(other.claim(), None);
    assert_eq!(other.state("2024-01-01"), "done");
}

#[test]
fn a_fenced_transaction_that_rolls_back_lets_the_window_go() {
    let database = daily(SHORT);
    let (mut worker, mut other) = (database.connect(), database.connect());
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    other.let_expire(lease.token);
    assert_eq!(other.claim(), None);
    worker.run("ROLLBACK");
    let new = other.lease();
    other.replace(new.token).unwrap();
    other.assert_data_is_the_ledger();
}

#[test]
fn of_many_claims_one_takes_an_expired_lease_over() {
    let database = daily(SHORT);
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let mut lease = worker.lease();
    for attempt in 2..=3 {
        worker.let_expire(lease.token);
        let had = database.many(8, |_, session| session.claim());
        let had: Vec<Lease> = had.into_iter().flatten().collect();
        assert!(had.len() <= 1, "{had:?}");
        lease = had.into_iter().next().unwrap_or_else(|| worker.lease());
        assert_eq!(lease.attempt, attempt);
    }
    worker.assert_one_lease_per_window();
}

#[test]
fn an_expired_lease_gives_its_slots_to_other_windows_too() {
    let database = daily("lease_for => '1 second', max_attempts => 1");
    let mut worker = database.connect();
    define(&mut worker, "other", "'1 day', '2024-01-01'", "");
    worker.run("SELECT pool_define('backfill', 1)");
    worker.plan_window("2024-01-01");
    let lost = worker.lease();
    let sql = "SELECT backfill_plan('other', NULL, '2024-01-02', 'test', expect => 1)";
    worker.run(sql);
    let other = "1, pipelines => ARRAY['other']";
    assert_eq!(worker.try_claim(other).unwrap(), []);
    worker.let_expire(lost.token);
    assert_eq!(worker.try_claim(other).unwrap().len(), 1);
    assert_refused(&mut worker, lost.token, "BF001");
    assert_eq!(worker.state("2024-01-01"), "failed");
}

#[test]
fn an_expired_lease_is_found_among_many_slots() {
    let database = daily("lease_for => '1 second', catchup => 100, max_active => 40");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 40), pool_define('live', 40)");
    worker.plan("2024-01-04", "");
    let pools =
        ["live", "backfill"].map(|pool| format!("1, pools => ARRAY['{pool}'], pipelines => ARRAY['daily']"));
    let lost = pools.clone().map(|pool| worker.try_claim(&pool).unwrap().remove(0));
    for (pool, lost) in pools.iter().zip(lost) {
        worker.let_expire(lost.token);
        wait_until("the lost window comes back", || {
            let lease = worker.try_claim(pool).unwrap().pop();
            if let Some(lease) = &lease {
                worker.call("finish", lease.token);
            }
            lease.is_some_and(|lease| lease.key == lost.key)
        });
    }
}

// ── what a token may still do ────────────────────────────────────────────────────────────────

#[test]
fn a_token_that_nobody_was_given_is_refused() {
    let database = daily("");
    let mut session = database.connect();
    session.plan_window("2024-01-01");
    let lease = session.lease();
    for token in [0, -1, 1, lease.token + 1, i64::MAX] {
        assert_refused(&mut session, token, "BF001");
    }
}

#[test]
fn a_token_that_failed_or_was_released_is_refused() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let released = worker.lease().token;
    worker.call("release", released);
    assert_refused(&mut worker, released, "BF001");
    let failed = worker.lease().token;
    worker.fail(failed);
    assert_refused(&mut worker, failed, "BF001");
}

#[test]
fn a_revoked_token_is_refused_as_revoked_whatever_revoked_it() {
    for revoke in [
        "SELECT backfill_cancel(1, 'test')",
        "SELECT window_skip('daily', '2024-01-01', '2024-01-02', 'test')",
        "SELECT pipeline_drop('daily')",
        "SELECT backfill_new_epoch('test')",
    ] {
        let database = daily("");
        let mut worker = database.connect();
        worker.plan_window("2024-01-01");
        let token = worker.lease().token;
        worker.run(revoke);
        assert_refused(&mut worker, token, "BF002");
        let seen = "SELECT outcome FROM backfill.runs";
        assert_eq!(worker.lines(seen), ["revoked"], "{revoke}");
    }
}

#[test]
fn a_revoked_token_stays_revoked_when_its_window_has_a_new_lease() {
    let database = daily("");
    let mut worker = database.connect();
    let plan = worker.plan_window("2024-01-01");
    let old = worker.lease();
    worker.cancel(plan);
    worker.plan_window("2024-01-01");
    let new = worker.lease();
    assert!(new.token > old.token);
    assert_eq!(new.attempt, 1, "another plan counts anew");
    assert_refused(&mut worker, old.token, "BF002");
    worker.replace(new.token).unwrap();
    assert_refused(&mut worker, old.token, "BF002");
}

#[test]
fn a_finish_whose_answer_was_lost_is_answered_again() {
    let database = daily("");
    let (mut worker, mut other) = (database.connect(), database.connect());
    worker.plan("2024-01-03", "");
    let finish = "SELECT backfill_finish($1)";
    let first = worker.lease();
    for _ in 0..2 {
        assert_eq!(worker.one::<String>(finish, &[&first.token]), "done");
        assert_eq!(other.one::<String>(finish, &[&first.token]), "done");
    }
    let second = worker.lease();
    worker.replace(second.token).unwrap();
    assert_eq!(other.one::<String>(finish, &[&second.token]), "done");
    // All other calls of a finished token are refused.
    assert_sqlstate!(worker.replace(second.token), "BF001");
    let runs = "SELECT outcome, count(*), sum(rows) FROM backfill.runs GROUP BY outcome";
    assert_eq!(worker.lines(runs), ["done|2|4"]);
    worker.plan_window(&second.key);
    let newer = worker.lease();
    worker.replace(newer.token).unwrap();
    assert_eq!(worker.one::<String>(finish, &[&second.token]), "done");
    worker.assert_data_is_the_ledger();
}

// ── attempts ─────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_window_is_retried_until_its_attempts_are_used_up() {
    let database = daily("max_attempts => 3, retry_delay => '0'");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    for attempt in 1..=3 {
        let lease = worker.lease();
        assert_eq!(lease.attempt, attempt);
        let answer = worker.fail(lease.token);
        assert_eq!(answer, if attempt < 3 { "retrying" } else { "failed" });
    }
    assert_eq!(worker.claim(), None);
    assert_eq!(worker.state("2024-01-01"), "failed");
    assert_eq!(worker.lines("SELECT state, failed FROM backfill.plans"), ["partial|1"]);
    // A new plan may run it again, and counts anew.
    worker.plan_window("2024-01-01");
    assert_eq!(worker.lease().attempt, 1);
}

#[test]
fn releasing_costs_no_attempt() {
    let database = daily("max_attempts => 2, retry_delay => '0'");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    for attempt in [1, 2] {
        for _ in 0..3 {
            let lease = worker.lease();
            assert_eq!(lease.attempt, attempt);
            worker.call("release", lease.token);
        }
        let lease = worker.lease();
        worker.fail(lease.token);
    }
    assert_eq!(worker.state("2024-01-01"), "failed");
}

#[test]
fn attempts_end_a_window_whether_they_failed_or_expired() {
    let database = daily("max_attempts => 3, retry_delay => '0', lease_for => '1 second'");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let first = worker.lease();
    worker.let_expire(first.token);
    let second = worker.lease();
    assert_eq!(second.attempt, 2);
    assert_eq!(worker.fail(second.token), "retrying");
    let third = worker.lease();
    assert_eq!(third.attempt, 3);
    worker.let_expire(third.token);
    assert_eq!(worker.claim(), None);
    assert_eq!(worker.state("2024-01-01"), "failed");
    assert_eq!(worker.lines("SELECT state, failed, running FROM backfill.plans"), ["partial|1|0"]);
    assert_refused(&mut worker, third.token, "BF001");
}

#[test]
fn a_failed_window_waits_for_its_delay() {
    let database = daily("retry_delay => '1 hour'");
    let mut worker = database.connect();
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    assert_eq!(worker.fail(lease.token), "retrying");
    assert_eq!(worker.claim(), None);
    assert_eq!(worker.state("2024-01-01"), "retrying");
    let why: String = worker.one("SELECT window_why('daily', '2024-01-01')", &[]);
    assert!(why.contains("no luck"), "{why}");
}

#[test]
fn a_refusal_is_not_retried() {
    let database = daily("retry_delay => '0'");
    let mut worker = database.connect();
    worker.plan("2024-01-05", "");
    for code in ["BF005", "BF006", "BF007", "BF010"] {
        let lease = worker.lease();
        let fail = "SELECT backfill_fail($1, 'no luck', true, $2)";
        let answer: String = worker.one(fail, &[&lease.token, &code]);
        assert_eq!((answer.as_str(), worker.state(&lease.key).as_str()), ("refused", "refused"));
    }
    assert_eq!(worker.claim(), None);
    assert_eq!(worker.lines("SELECT state FROM backfill.plans"), ["partial"]);
}

// ── order ────────────────────────────────────────────────────────────────────────────────────

#[test]
fn the_oldest_come_first() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan("2024-01-11", "");
    let mut keys = vec![];
    while let Some(lease) = worker.claim() {
        worker.call("finish", lease.token);
        keys.push(lease.key);
    }
    assert_eq!(keys.len(), 10);
    assert!(keys.is_sorted(), "{keys:?}");
}

#[test]
fn the_first_three_leases_of_three_workers_are_the_three_newest() {
    let database = daily("");
    let mut operator = database.connect();
    operator.run("SELECT pool_define('backfill', 3)");
    operator.plan("2024-01-11", ", ordering => 'newest_first'");
    let had = database.many(3, |_, session| {
        let mut lease = None;
        wait_until("a lease", || {
            lease = session.claim();
            lease.is_some()
        });
        lease.unwrap().key
    });
    let mut had: Vec<&str> = had.iter().map(String::as_str).collect();
    had.sort_unstable();
    assert_eq!(had, ["2024-01-08", "2024-01-09", "2024-01-10"]);
}

#[test]
fn expired_and_released_windows_keep_their_place_and_failed_ones_go_to_the_end() {
    let database = daily("lease_for => '1 second', retry_delay => '0'");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 9)");
    worker.plan("2024-01-06", "");
    let leases = worker.leases(3);
    worker.fail(leases[0].token);
    worker.call("release", leases[1].token);
    worker.let_expire(leases[2].token);
    let order = worker.all_of("daily");
    assert_eq!(keys(&order), ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05", "2024-01-01"]);
}

#[test]
fn a_released_window_keeps_its_place_among_newest_first() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan("2024-01-06", ", ordering => 'newest_first', concurrency => 1");
    let mut keys = vec![];
    for _ in 0..3 {
        let lease = worker.lease();
        worker.call("release", lease.token);
        let again = worker.lease();
        assert_eq!(again.key, lease.key);
        worker.call("finish", again.token);
        keys.push(lease.key);
    }
    assert_eq!(keys, ["2024-01-05", "2024-01-04", "2024-01-03"]);
}

#[test]
fn sixty_windows_that_always_fail_keep_neither_the_newest_nor_a_plan_from_running() {
    let database = daily("catchup => 60, max_attempts => 1000, retry_delay => '0'");
    let mut worker = database.connect();
    worker.plan("2024-03-02", ", concurrency => 1");
    for arguments in [
        "pools => ARRAY['live'], pipelines => ARRAY['daily']",
        "pools => ARRAY['backfill'], pipelines => ARRAY['daily']",
    ] {
        let mut tried = std::collections::BTreeSet::new();
        for _ in 0..61 {
            let lease = worker.try_claim(&format!("1, {arguments}")).unwrap().remove(0);
            worker.fail(lease.token);
            tried.insert(lease.key);
        }
        assert!(tried.len() >= 60, "only {} windows were tried", tried.len());
    }
}

#[test]
fn one_window_is_claimed_by_name_under_the_same_rules() {
    let database = daily("catchup => 1");
    let mut worker = database.connect();
    worker.run("SELECT pool_define('backfill', 2)");
    worker.plan("2024-01-06", "");
    let named = |key: &str| format!("1, pipelines => ARRAY['daily'], window_key => '{key}'");
    let third = worker.try_claim(&named("2024-01-03")).unwrap();
    assert_eq!(keys(&third), ["2024-01-03"]);
    // Leased, not in the plan, missed.
    for key in ["2024-01-03", "2024-01-06", "2024-02-01"] {
        assert_eq!(worker.try_claim(&named(key)).unwrap(), [], "{key}");
        let why: String = worker.one("SELECT window_why('daily', $1)", &[&key]);
        assert!(!why.is_empty());
    }
    // It does not disturb the order of the others.
    assert_eq!(worker.lease().plan_id, None);
    assert_eq!(worker.lease().key, "2024-01-01");
    assert_eq!(worker.try_claim(&named("2024-01-02")).unwrap(), [], "the pool is full");
    assert_sqlstate!(worker.try_claim("1, window_key => '2024-01-02'"), "22023");
    assert_sqlstate!(worker.try_claim(&named("2024-01-99")), "22023");
}

// ── claims never wait ────────────────────────────────────────────────────────────────────────

#[test]
fn a_claim_waits_for_nobody() {
    let database = daily("catchup => 3, lease_for => '1 second'");
    let (mut blocker, mut claimer) = (database.connect(), impatient(&database));
    blocker.run("SELECT pool_define('backfill', 50), pool_define('other', 1)");
    let running = blocker.plan("2024-01-21", ", concurrency => 40");
    let other = blocker.plan("2024-01-26", ", mode => 'missing'");
    let draft = blocker.draft("NULL, '2024-01-31', 'test', mode => 'missing'");
    let leases = blocker.leases(6);
    let [token, expired] = [leases[4].token, leases[5].token];
    blocker.let_expire(expired);
    for other in &leases[..5] {
        blocker.call("heartbeat", other.token);
    }
    for blocking in [
        "SELECT backfill_claim('other', 7, pipelines => ARRAY['daily'])".into(),
        format!("SELECT fence_check({token})"),
        replacing(token),
        format!("SELECT backfill_finish({token})"),
        format!("SELECT backfill_fail({token}, 'no luck')"),
        format!("SELECT backfill_release({token})"),
        format!("SELECT backfill_heartbeat({expired})"),
        format!("SELECT backfill_stage({token})"),
        format!("SELECT backfill_approve({}, {})", draft.id, draft.windows),
        format!("SELECT backfill_cancel({running}, 'test')"),
        format!("SELECT backfill_cancel({other}, 'test')"),
        "SELECT backfill_plan('daily', NULL, NULL, 'test')".into(),
        "SELECT window_skip('daily', NULL, '2024-01-31', 'test')".into(),
        "SELECT pipeline_pause('daily', 'test'); SELECT pipeline_resume('daily')".into(),
        r#"SELECT pipeline_alter('daily', '{"max_active": 9}')"#.into(),
        "SELECT pipeline_drop('daily')".into(),
        "SELECT pipeline_define('new', '1 day', '2024-01-01')".into(),
        "SELECT pool_define('backfill', 60)".into(),
        "SELECT backfill_new_epoch('test')".into(),
    ] {
        blocker.run("BEGIN");
        blocker.run(&blocking);
        claimer.run("BEGIN");
        let had = claimer.try_claim("9, pipelines => ARRAY['daily']");
        let had = had.unwrap_or_else(|failure| panic!("beside {blocking}\n{failure}"));
        assert!(!had.is_empty(), "nothing beside {blocking}");
        claimer.run("ROLLBACK");
        blocker.run("ROLLBACK");
    }
}

#[test]
fn the_first_claims_of_a_database_do_not_wait_for_each_other() {
    let database = daily("");
    let (mut first, mut second) = (database.connect(), impatient(&database));
    first.plan("2024-01-11", "");
    first.run("BEGIN");
    first.lease();
    assert_eq!(second.claim(), None);
    first.run("ROLLBACK");
    second.lease();
}

#[test]
fn first_claims_of_a_query_do_not_wait_for_each_other() {
    let database = daily("");
    let (mut first, mut second) = (database.connect(), impatient(&database));
    first.run("SELECT pool_define('backfill', 9)");
    first.plan("2024-01-11", "");
    first.lease();
    let query = r#"{"query": "SELECT $1, 0 WHERE $2 IS NOT NULL"}"#;
    first.run(&format!("SELECT pipeline_alter('daily', '{query}')"));
    first.run("CREATE TABLE other (at timestamptz)");
    let settings = "query => 'SELECT $1 WHERE $2 IS NOT NULL', catchup => 9, max_active => 5";
    define(&mut first, "other", "'1 day', '2024-01-01', 'other', 'at'", settings);
    first.run("BEGIN");
    first.try_claim("1, pipelines => ARRAY['other']").unwrap();
    second.try_claim("9").unwrap();
}

// ── tokens ───────────────────────────────────────────────────────────────────────────────────

#[test]
fn tokens_increase_and_fit_into_a_double() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan("2024-01-31", "");
    let take = |worker: &mut Session| {
        let token = worker.lease().token;
        worker.call("finish", token);
        token
    };
    let mut tokens: Vec<i64> = (0..5).map(|_| take(&mut worker)).collect();
    // Claims that are rolled back draw tokens too, which nobody else gets.
    worker.run("BEGIN");
    worker.lease();
    worker.run("ROLLBACK");
    tokens.push(take(&mut worker));
    let first: i64 = worker.one("SELECT backfill_new_epoch('test')", &[]);
    tokens.push(take(&mut worker));
    assert_eq!(tokens.last(), Some(&first));
    worker.run("SELECT backfill_new_epoch('test')");
    tokens.push(take(&mut worker));
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let since_1970 = "SELECT (extract(epoch FROM now())::bigint - 3600) * 1048576";
    assert!(tokens[0] > worker.one::<i64>(since_1970, &[]));
    assert!(*tokens.last().unwrap() < 1 << 53);
}

#[test]
fn a_new_epoch_gives_the_windows_back_in_their_places() {
    let database = daily("");
    let mut worker = database.connect();
    worker.plan("2024-01-04", ", concurrency => 2");
    let held = worker.leases(2);
    worker.run("SELECT backfill_new_epoch('test')");
    let again = worker.leases(2);
    assert_eq!(keys(&again), keys(&held));
    assert!(again[0].token > held[1].token);
    assert_eq!((again[0].attempt, again[1].attempt), (1, 1), "it costs no attempt");
}

#[test]
fn a_new_epoch_also_ends_what_is_being_written() {
    let database = daily("");
    let (mut worker, mut operator) = (database.connect(), impatient(&database));
    worker.plan_window("2024-01-01");
    let lease = worker.lease();
    worker.run("BEGIN");
    worker.replace(lease.token).unwrap();
    operator.run("SELECT backfill_new_epoch('test')");
    assert_eq!(operator.claim(), None);
    assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
    let again = operator.lease_after_failure();
    assert_eq!(again.key, lease.key);
    operator.replace(again.token).unwrap();
    operator.assert_data_is_the_ledger();
}

// ── above READ COMMITTED ─────────────────────────────────────────────────────────────────────

#[test]
fn a_claim_with_an_older_snapshot_gives_no_window_twice() {
    for level in LEVELS {
        let database = daily("");
        let (mut old, mut new) = (database.connect(), database.connect());
        old.run("SELECT pool_define('backfill', 9)");
        old.plan("2024-01-04", "");
        let first = new.lease();
        old.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        assert_eq!(old.lines("SELECT count(*) FROM backfill.runs"), ["1"]);
        let second = new.lease();
        new.replace(first.token).unwrap();
        match old.try_claim("1, pipelines => ARRAY['daily']") {
            Ok(leases) => {
                let third = &leases[0];
                assert!(third.key > second.key && third.token > second.token, "{level}: {third:?}");
                old.run("COMMIT");
            }
            Err(failure) => {
                assert_ne!(level, "READ COMMITTED", "{failure}");
                assert_eq!(failure.sqlstate, "40001", "{failure}");
                old.run("ROLLBACK");
                assert_eq!(old.lease().key, "2024-01-03");
            }
        }
        new.assert_one_lease_per_window();
    }
}

/// What a claim gets whose transaction took its snapshot before `decision` was committed.
fn claim_from_before(database: &Database, level: &str, decision: &str) -> Vec<Lease> {
    let (mut old, mut operator) = (database.connect(), database.connect());
    old.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM backfill.runs"));
    operator.run(decision);
    let had = match old.try_claim("9, pipelines => ARRAY['daily']") {
        Err(failure) if failure.sqlstate == "40001" && level != "READ COMMITTED" => vec![],
        Err(failure) if failure.sqlstate == "42704" && decision.contains("drop") => vec![],
        had => had.unwrap(),
    };
    old.run("COMMIT");
    had
}

#[test]
fn a_lease_from_an_older_snapshot_of_a_right_that_ended_is_void() {
    for level in LEVELS {
        for decision in [
            "SELECT backfill_cancel(1, 'test')",
            "SELECT window_skip('daily', '2024-01-01', '2024-01-04', 'test')",
            "SELECT pipeline_drop('daily')",
        ] {
            let database = daily("");
            let mut session = database.connect();
            session.plan("2024-01-04", "");
            for lease in claim_from_before(&database, level, decision) {
                assert_refused(&mut session, lease.token, "BF002");
            }
        }
    }
}

#[test]
fn a_live_claim_with_an_older_snapshot_obeys_what_people_decided_since() {
    let database = daily("catchup => 3");
    let mut owner = database.connect();
    for level in LEVELS {
        for decision in [
            "SELECT pipeline_pause('daily', 'test')",
            "SELECT pool_define('live', 0)",
            r#"SELECT pipeline_alter('daily', '{"catchup": 0}')"#,
        ] {
            owner.run("SELECT pipeline_resume('daily'), pool_define('live', 2)");
            owner.run(r#"SELECT pipeline_alter('daily', '{"catchup": 3}')"#);
            assert_eq!(claim_from_before(&database, level, decision), [], "{level}: {decision}");
        }
    }
}

#[test]
fn a_claim_with_an_older_snapshot_does_not_take_over_a_lease_that_was_renewed() {
    for level in LEVELS {
        let database = daily(SHORT);
        let mut worker = database.connect();
        worker.plan_window("2024-01-01");
        let lease = worker.lease();
        worker.let_expire(lease.token);
        worker.run(r#"SELECT pipeline_alter('daily', '{"lease_for": "1 hour"}')"#);
        let beat = format!("SELECT backfill_heartbeat({})", lease.token);
        assert_eq!(claim_from_before(&database, level, &beat), [], "{level}");
        worker.replace(lease.token).unwrap();
    }
}

#[test]
fn workers_above_read_committed_lease_each_window_once_and_keep_the_cap() {
    for level in &LEVELS[1..] {
        let database = daily("");
        let mut operator = database.connect();
        operator.run("SELECT pool_define('backfill', 4)");
        operator.plan("2024-02-10", "");
        let done = AtomicUsize::new(0);
        database.many(8, |_, worker| {
            worker.run(&format!("SET default_transaction_isolation = '{level}'"));
            wait_until("all windows are done", || {
                let had = match worker.try_claim("2, pipelines => ARRAY['daily']") {
                    Ok(had) => had,
                    Err(failure) if failure.sqlstate == "40001" => vec![],
                    Err(failure) => panic!("{failure}"),
                };
                for lease in had {
                    wait_until("its finish", || {
                        let finish = format!("SELECT backfill_finish({})", lease.token);
                        match worker.try_run(&finish) {
                            Err(failure) if failure.sqlstate == "40001" => false,
                            outcome => outcome.map(|()| true).unwrap(),
                        }
                    });
                    done.fetch_add(1, Ordering::Relaxed);
                }
                done.load(Ordering::Relaxed) >= 40
            });
        });
        operator.assert_one_lease_per_window();
        let runs = "SELECT count(*), count(DISTINCT window_key) FROM backfill.runs";
        assert_eq!(operator.lines(runs), ["40|40"], "{level}");
        assert!(operator.most_at_once("true") <= 4);
    }
}

// ── everything at once ───────────────────────────────────────────────────────────────────────

/// A small random generator, so that a failing storm can be run again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What a worker may be told that lost its lease meanwhile.
#[track_caller]
fn may_be_lost(outcome: Result<(), pgrx_tests::Failure>) {
    if let Err(failure) = outcome {
        assert!(matches!(failure.sqlstate.as_str(), "BF001" | "BF002"), "{failure}");
    }
}

#[test]
fn a_storm_of_workers_and_people_breaks_no_invariant() {
    let database = daily("lease_for => '1 second', retry_delay => '0', catchup => 20, max_active => 3");
    let mut judge = database.connect();
    judge.run("SELECT pool_define('backfill', 6), pool_define('live', 2)");
    judge.plan("2024-01-21", ", concurrency => 4");
    database.many(10, |i, session| {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ i as u64);
        for _ in 0..40 {
            if i < 8 { work(session, &mut dice) } else { decide(session, &mut dice) }
        }
    });
    // Whatever was abandoned is taken over, and the rest is done.
    wait_until("nothing is left to do", || {
        for lease in judge.leases(5) {
            judge.replace(lease.token).unwrap();
        }
        let left = "SELECT count(*) FROM pipeline_windows('daily')
                    WHERE state IN ('leased', 'retrying', 'queued', 'eligible')";
        judge.one::<i64>(left, &[]) == 0
    });
    judge.assert_one_lease_per_window();
    judge.assert_data_is_the_ledger();
    assert!(judge.most_at_once("plan_id IS NOT NULL") <= 6);
    assert!(judge.most_at_once("plan_id IS NULL") <= 2);
    let odd = "SELECT window_key, state FROM pipeline_windows('daily')
               WHERE state NOT IN ('done', 'failed', 'skipped', 'missed')";
    assert_eq!(judge.lines(odd), [""; 0]);
    let unfinished = "SELECT plan_id, state FROM backfill.plans
                      WHERE state NOT IN ('completed', 'partial', 'cancelled', 'draft')";
    assert_eq!(judge.lines(unfinished), [""; 0]);
}

fn work(session: &mut Session, dice: &mut Dice) {
    for lease in session.leases(1 + dice.roll(3) as usize) {
        let token = lease.token;
        match dice.roll(10) {
            0..5 => may_be_lost(session.replace(token)),
            5 => may_be_lost(session.try_run(&format!("SELECT backfill_fail({token}, 'no luck')"))),
            6 => may_be_lost(session.try_run(&format!("SELECT backfill_release({token})"))),
            7 => may_be_lost(session.try_run(&format!("SELECT backfill_heartbeat({token})"))),
            8 => may_be_lost(session.try_run(&format!("BEGIN; {}; ROLLBACK", replacing(token)))),
            _ => {}
        }
        session.run("ROLLBACK");
    }
}

fn decide(session: &mut Session, dice: &mut Dice) {
    let day = 1 + dice.roll(28);
    match dice.roll(8) {
        0..5 => {
            let plan = session.draft(&format!("'2024-01-{day:02}', '2024-02-01', 'test'"));
            let codes = ["BF004", "BF009"];
            if plan.windows > 0
                && let Err(failure) = session.approve(plan)
            {
                assert!(codes.contains(&failure.sqlstate.as_str()), "{failure}");
            }
        }
        5 | 6 => {
            let open = "SELECT plan_id FROM backfill.plans WHERE state IN ('approved', 'running')";
            if let Some(plan) = session.column::<i64>(open, &[]).first() {
                let cancel = format!("SELECT backfill_cancel({plan}, 'test')");
                if let Err(failure) = session.try_run(&cancel) {
                    assert_eq!(failure.sqlstate, "55000", "{failure}");
                }
            }
        }
        _ => session.run(&format!(
            "SELECT window_skip('daily', '2024-01-{day:02}', '2024-01-{:02}', 'test')",
            day + 1
        )),
    }
}
