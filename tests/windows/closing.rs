//! What locks and skips have in common: while one is in force nobody has the window.

use crate::support::{Calls, Lease, daily, keys};
use crate::windows::{adopt, decide, states};
use pgrx_tests::{Session, assert_sqlstate, expect_sqlstate};

const CLOSED: [(&str, &str, &str); 2] = [("lock", "unlock", "locked"), ("skip", "unskip", "skipped")];

const ALL: &str = "'2024-01-01', '2024-01-13'";

/// Twelve days in twelve states; the lease is of the fourth.
fn every_state(session: &mut Session) -> Lease {
    session.run("SELECT pool_define('backfill', 20); INSERT INTO facts VALUES ('2024-01-12', 0)");
    session.plan("2024-01-06", ", concurrency => 5");
    let [done, failed, refused, leased, retrying] = session.leases(5).try_into().unwrap();
    session.replace(done.token).unwrap();
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", failed.token));
    session.run(&format!("SELECT backfill_fail({}, 'no', sqlstate => 'BF006')", refused.token));
    session.fail(retrying.token);
    session.plan_window("2024-01-06");
    session.plan_window("2024-01-07");
    let stale = session.leases(9);
    session.run("SELECT backfill_cancel(3, 'test')");
    for lease in stale.iter().filter(|lease| lease.key == "2024-01-06") {
        session.replace(lease.token).unwrap();
    }
    decide(session, "mark_stale", "'2024-01-06', '2024-01-07'");
    session.plan_window("2024-01-08");
    decide(session, "lock", "'2024-01-09', '2024-01-10'");
    decide(session, "skip", "'2024-01-10', '2024-01-11'");
    assert_eq!(adopt(session, "'2024-01-12', '2024-01-13'"), "1|1|{}");
    leased
}

const BEFORE: [&str; 12] = [
    "done", "failed", "refused", "leased", "retrying", "stale", "missed", "queued", "locked", "skipped",
    "missed", "adopted",
];

#[test]
fn every_state_can_be_closed_and_is_what_it_was_once_it_is_opened_again() {
    for (close, open, closed) in CLOSED {
        let database = daily("");
        let mut session = database.connect();
        let leased = every_state(&mut session);
        assert_eq!(states(&mut session, "2024-01-13"), BEFORE);
        assert_eq!(decide(&mut session, close, ALL), 11);
        // A lock hides a skip, not the other way round.
        let hidden = |state: &str| if state == "locked" { "locked" } else { closed }.to_owned();
        assert_eq!(states(&mut session, "2024-01-13"), BEFORE.map(hidden));
        assert_eq!(decide(&mut session, close, ALL), 0, "they are closed already");
        assert_eq!(session.claim(), None);
        assert_eq!(session.lines("SELECT token FROM backfill.leases"), [""; 0]);

        assert_eq!(decide(&mut session, open, ALL), 12);
        let mut after = BEFORE.map(str::to_owned);
        if close == "lock" {
            // The plan owns its windows as before; the lease stays revoked.
            after[3] = "queued".into();
            after[8] = "missed".into();
        } else {
            // A plan lets go of what is skipped in it.
            after[3] = "missed".into();
            after[4] = "failed".into();
            after[7] = "missed".into();
            after[9] = "missed".into();
        }
        assert_eq!(states(&mut session, "2024-01-13"), after);
        assert_eq!(decide(&mut session, open, ALL), 0, "they are open already");
        assert_sqlstate!(session.replace(leased.token), "BF002");
    }
}

#[test]
fn a_revoked_lease_may_do_nothing_any_more_also_once_its_window_is_open_again() {
    for (close, open, closed) in CLOSED {
        let database = daily("");
        let mut session = database.connect();
        session.plan_window("2024-01-01");
        let token = session.lease().token;
        decide(&mut session, close, ALL);
        for _ in 0..2 {
            for call in [
                "backfill_heartbeat($1)",
                "backfill_finish($1)",
                "backfill_fail($1, 'late')",
                "backfill_release($1)",
                "fence_check($1)",
                "replace_partition($1)",
                "backfill_stage($1)",
            ] {
                // A finish looks when it commits.
                let sql = format!("SELECT {}", call.replace("$1", &token.to_string()));
                let failure = expect_sqlstate(&sql, session.try_run(&sql), "BF002");
                assert!(failure.message.contains(closed), "{failure}");
            }
            decide(&mut session, open, ALL);
        }
        let shown = "SELECT outcome, error FROM backfill.runs";
        assert_eq!(session.lines(shown), [format!("revoked|the window was {closed}")]);
    }
}

#[test]
fn a_closed_window_is_handed_out_by_no_way_there_is() {
    for (close, open, _) in CLOSED {
        let database = daily("catchup => 3, max_active => 9, retry_delay => '0'");
        let mut session = database.connect();
        session.run("SELECT pool_define('backfill', 20)");
        // Live: two that never started, and one that gave its lease back.
        let released = session.lease();
        session.call("release", released.token);
        // By a plan: untried, to be retried, and behind those a hole that was passed over.
        session.plan("2024-01-06", ", concurrency => 9");
        let held = session.try_claim("2, pools => ARRAY['backfill'], pipelines => ARRAY['daily']").unwrap();
        session.fail(held[0].token);
        session.call("release", held[1].token);
        assert!(decide(&mut session, close, "NULL, NULL") > 9);
        let named = |key: &str| format!("1, pipelines => ARRAY['daily'], window_key => '{key}'");
        for key in ["2024-01-01", "2024-01-02", "2024-01-03", &released.key] {
            assert_eq!(session.try_claim(&named(key)).unwrap(), [], "{key}");
        }
        assert_eq!(session.leases(99), []);
        // Claims have been through the whole list and know its holes.
        assert_eq!(session.leases(99), []);

        decide(&mut session, open, "NULL, NULL");
        let had = session.leases(99);
        let live = had.iter().filter(|lease| lease.plan_id.is_none()).count();
        assert_eq!(live, 3, "the live right is what it was: {had:?}");
        let planned = if close == "lock" { 5 } else { 0 };
        assert_eq!(had.len() - live, planned, "a plan keeps what was locked: {had:?}");
        session.assert_one_lease_per_window();
    }
}

/// More windows than a claim reads at once.
const MANY: usize = 40;

#[test]
fn closed_windows_hide_none_behind_them() {
    for (close, ..) in CLOSED {
        let database = daily("retry_delay => '0', max_active => 100");
        let mut session = database.connect();
        session.run("SELECT pool_define('backfill', 200)");
        session.plan("2024-03-31", ", concurrency => 100");
        // The first windows are in the queue, then come untried ones.
        for lease in session.leases(MANY + 1) {
            session.call("release", lease.token);
        }
        assert_eq!(decide(&mut session, close, "'2024-01-01', '2024-02-10'"), MANY as i64);
        assert_eq!(keys(&session.leases(1)), ["2024-02-10"], "the last one of the queue");
        assert_eq!(decide(&mut session, close, "'2024-02-11', '2024-03-28'"), 46);
        assert_eq!(keys(&session.leases(9)), ["2024-03-28", "2024-03-29", "2024-03-30"]);
    }
}

#[test]
fn windows_that_are_not_due_yet_can_be_closed_ahead() {
    for (close, open, closed) in CLOSED {
        let database = daily("");
        let mut session = database.connect();
        assert_eq!(decide(&mut session, close, "current_date + 1, current_date + 3"), 2);
        let ahead = format!("SELECT count(*) FROM backfill.windows WHERE state = '{closed}'");
        assert_eq!(session.one::<i64>(&ahead, &[]), 2);
        assert_eq!(
            decide(&mut session, open, "NULL, NULL"),
            0,
            "NULL is the end of the last complete window"
        );
        assert_eq!(decide(&mut session, open, "NULL, current_date + 3"), 2);
        let state =
            "SELECT DISTINCT state FROM pipeline_windows('daily', current_date + 1, current_date + 3)";
        assert_eq!(session.lines(state), ["future"]);
    }
}

#[test]
fn who_decided_when_and_why_is_kept_also_of_what_was_taken_back() {
    for (close, open, closed) in CLOSED {
        let database = daily("");
        let [first, second] = ["first", "second"].map(|name| database.role(name));
        let mut admin = database.connect();
        for role in [&first, &second] {
            admin.run(&format!("SELECT pipeline_grant('daily', '{role}', 'operate')"));
        }
        let window = "'2024-01-01', '2024-01-02'";
        let (mut a, mut b) = (database.connect_as(&first), database.connect_as(&second));
        a.run(&format!("SELECT window_{close}('daily', {window}, 'the books are closed')"));
        let why: String = admin.one("SELECT window_why('daily', '2024-01-01')", &[]);
        assert!(
            why.contains(closed) && why.contains(&first) && why.contains("the books are closed"),
            "{why}"
        );
        let shown: String = admin.one("SELECT why FROM backfill.windows", &[]);
        assert_eq!(shown, why);
        b.run(&format!("SELECT window_{open}('daily', {window}, 'a correction')"));
        b.run(&format!("SELECT window_{close}('daily', {window}, 'again')"));
        let history =
            "SELECT window_key, mark, reason, marked_by, lift_reason, lifted_by, lifted_at > marked_at
                       FROM backfill.window_marks ORDER BY marked_at";
        assert_eq!(
            admin.lines(history),
            [
                format!("2024-01-01|{closed}|the books are closed|{first}|a correction|{second}|t"),
                format!("2024-01-01|{closed}|again|{second}|||")
            ]
        );
        for call in [close, open] {
            for reason in ["NULL", "''", "' '"] {
                let sql = format!("SELECT window_{call}('daily', {window}, {reason})");
                assert_sqlstate!(admin.try_run(&sql), "22023");
            }
        }
    }
}
