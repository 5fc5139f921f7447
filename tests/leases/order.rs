//! Which window comes next.

use crate::support::{Calls, daily, keys};
use pgrx_tests::{assert_sqlstate, wait_until};

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
    // Nor does it come again when it is its turn.
    worker.call("finish", third[0].token);
    let mut rest = vec![];
    while let Some(lease) = worker.claim() {
        worker.call("finish", lease.token);
        rest.push(lease.key);
    }
    assert_eq!(rest, ["2024-01-02", "2024-01-04", "2024-01-05"]);
    assert_sqlstate!(worker.try_claim("1, window_key => '2024-01-02'"), "22023");
    assert_sqlstate!(worker.try_claim(&named("2024-01-99")), "22023");
}

#[test]
fn a_plan_in_order_hands_out_no_window_before_its_turn() {
    let database = daily("retry_delay => '1 hour'");
    let mut session = database.connect();
    let plan = session.draft("'2024-01-01', '2024-01-04', 'test', ordering => 'sequential'");
    session.approve(plan).unwrap();
    let named = |key: &str| format!("pipelines => '{{daily}}', window_key => '{key}'");
    assert_eq!(session.try_claim(&named("2024-01-03")).unwrap(), []);
    let first = session.try_claim(&named("2024-01-01")).unwrap();
    session.fail(first[0].token);
    assert_eq!(session.try_claim(&named("2024-01-03")).unwrap(), []);
    assert_eq!(session.try_claim(&named("2024-01-02")).unwrap(), []);
    let why = "SELECT window_key, reason FROM backfill.blocked ORDER BY window_key";
    assert_eq!(
        session.lines(why),
        ["2024-01-01", "2024-01-02", "2024-01-03"]
            .map(|key| format!("{key}|its windows run in order, and one of them waits to be tried again"))
    );
    let told: String = session.one("SELECT window_why('daily', '2024-01-03')", &[]);
    assert!(told.contains("waits to be tried again"), "{told}");
}
