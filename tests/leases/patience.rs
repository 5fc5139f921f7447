//! Claims never wait for anyone.

use crate::support::{Calls, daily, define, impatient, replacing};
use pgrx_tests::assert_sqlstate;

#[test]
fn a_claim_waits_for_nobody() {
    let database = daily("catchup => 3, lease_for => '1 second'");
    let (mut blocker, mut claimer) = (database.connect(), impatient(&database));
    blocker.run("SELECT pool_define('backfill', 50), pool_define('other', 1)");
    let running = blocker.plan("2024-01-21", ", concurrency => 40");
    let other = blocker.plan("2024-01-26", ", mode => 'missing'");
    let draft = blocker.draft("NULL, '2024-01-31', 'test', mode => 'missing'");
    blocker.run("SELECT window_lock('daily', '2024-02-01', '2024-02-04', 'test')");
    blocker.run("SELECT window_skip('daily', '2024-02-04', '2024-02-08', 'test')");
    blocker.run("INSERT INTO facts VALUES ('2024-02-08', 0), ('2024-02-10', 0)");
    blocker.run("SELECT window_adopt('daily', '2024-02-08', '2024-02-09', 'legacy', 'test')");
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
        "SELECT window_lock('daily', NULL, '2024-01-31', 'test')".into(),
        "SELECT window_unlock('daily', NULL, '2024-02-10', 'test')".into(),
        "SELECT window_unskip('daily', NULL, '2024-02-10', 'test')".into(),
        "SELECT window_mark_stale('daily', NULL, NULL, 'test')".into(),
        "SELECT window_adopt('daily', NULL, NULL, 'legacy', 'test')".into(),
        "SELECT window_unadopt('daily', NULL, NULL, 'test')".into(),
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

#[test]
fn a_query_whose_table_is_locked_keeps_no_claim_and_no_other_pipeline() {
    let database = daily("");
    let (mut blocker, mut claimer) = (database.connect(), impatient(&database));
    blocker.run("SELECT pool_define('backfill', 9); CREATE TABLE source (at timestamptz, n int)");
    for name in ["free", "locked"] {
        blocker.run(&format!(
            "CREATE TABLE {name}_facts (at timestamptz); CREATE TABLE {name} (at timestamptz)"
        ));
        let settings = format!(
            "query => 'SELECT at FROM {name} WHERE at >= $1 AND at < $2', catchup => 2, max_active => 5"
        );
        define(&mut blocker, name, &format!("'1 day', '2024-01-01', '{name}_facts', 'at'"), &settings);
    }
    blocker.run("BEGIN; TRUNCATE locked");
    let mut claimed = || {
        claimer.lines(
            "SELECT pipeline, count(*) FROM backfill_claim('test', 9, pipelines => '{locked,free}') GROUP BY 1 ORDER BY 1",
        )
    };
    assert_eq!(claimed(), ["free|2"]);
    blocker.run("COMMIT");
    assert_eq!(claimed(), ["locked|2"]);
}

#[test]
fn a_person_waits_for_a_table_of_the_query_no_longer_than_others_can_wait_for_him() {
    let database = daily("");
    let [mut blocker, mut person] = [(); 2].map(|()| database.connect());
    blocker.run("CREATE TABLE source (at timestamptz, n int)");
    let query = "SELECT at, n FROM source WHERE at >= $1 AND at < $2";
    blocker.run(&format!(r#"SELECT pipeline_alter('daily', '{{"query": "{query}"}}')"#));
    let draft = person.draft("NULL, '2024-01-31', 'test'");
    blocker.run("BEGIN; TRUNCATE source");
    // Who has asked lately knows what the query means, and waits for nobody.
    let mut another = database.connect();
    assert_sqlstate!(another.approve(draft), "55P03");
    let alter = format!(r#"SELECT pipeline_alter('daily', '{{"query": "{query} LIMIT 9"}}')"#);
    assert_sqlstate!(person.try_run(&alter), "55P03");
    blocker.run("ROLLBACK");
    person.approve(draft).unwrap();
}
