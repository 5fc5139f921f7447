//! Every way to a mixture is closed, and leaves nothing half done.

use super::{assert_refused, january, lease, publish, replace, versions};
use crate::calls::ledger;
use crate::plans::together::Together;
use crate::support::{Calls, define};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};

/// A statement of a transaction that is refused, with all that comes before it.
#[track_caller]
fn refused(session: &mut Session, sql: &str, of: &[&str]) {
    let before = (ledger(session), session.lines("SELECT * FROM facts ORDER BY 1, 2"));
    let outcome = session.try_run(sql);
    session.run("ROLLBACK");
    assert_refused(outcome, of);
    let mut after = (ledger(session), session.lines("SELECT * FROM facts ORDER BY 1, 2"));
    // Numbers that nobody got may have been drawn.
    let tokens = |line: &String| !line.contains("_seq|");
    after.0.retain(tokens);
    let mut before = before;
    before.0.retain(tokens);
    assert_eq!(before, after, "{sql}");
}

#[test]
fn no_publication_mixes() {
    let (_database, mut session) = january("refuse");
    // Leases of another version, and of none, that were given before there was any slice.
    let other = lease(&mut session, 5, "v2").unwrap();
    let unknown: i64 = session.one(
        "SELECT token FROM backfill_claim('w', pipelines => '{daily}', window_key => '2024-01-06')",
        &[],
    );
    let kept = lease(&mut session, 7, "v2").unwrap();
    publish(&mut session, 1, "v1");
    publish(&mut session, 2, "v1");
    let rows = |token: i64, more: &str| crate::support::replacing_with(token, more);
    let of = ["v2", "v1 (2 windows from 2024-01-01 to 2024-01-02)"];
    for more in ["", ", strategy => 'rows'", ", strategy => 'diff'", ", finish => false"] {
        refused(&mut session, &rows(other, more), &of);
    }
    refused(&mut session, &rows(unknown, ""), &["unknown", "v1"]);
    session.run("CREATE TABLE mine AS SELECT at, token FROM facts WHERE false; INSERT INTO mine VALUES ('2024-01-05 06:00Z', 1)");
    refused(&mut session, &format!("SELECT replace_partition({other}, staging => 'mine')"), &of);
    session.run(&format!("SELECT backfill_stage({other})"));
    refused(&mut session, &format!("SELECT replace_partition({other})"), &of);
    // Rows that the worker wrote himself.
    refused(
        &mut session,
        &format!(
            "BEGIN; SELECT fence_check({other}); INSERT INTO facts VALUES ('2024-01-05 06:00Z', {other}); SELECT backfill_finish({other})"
        ),
        &of,
    );
    refused(&mut session, &format!("SELECT backfill_finish({other}, 1)"), &of);
    // What a person takes from quarantine.
    session.run(&format!(
        "SELECT backfill_stage({kept}); INSERT INTO backfill.stage_{kept} VALUES ('2024-01-07 06:00Z', 7);
         SELECT backfill_fail({kept}, 'odd', sqlstate => 'BF006')"
    ));
    refused(&mut session, &format!("SELECT quarantine_accept({kept}, 'they are right')"), &of);
    // What was there before.
    session.run("SELECT backfill_cancel(1, 'x'); INSERT INTO facts VALUES ('2024-01-20 06:00Z', 0)");
    refused(
        &mut session,
        "SELECT window_adopt('daily', '2024-01-20', '2024-01-21', 'v2', 'why')",
        &["v2", "v1"],
    );
    session.run("SELECT window_adopt('daily', '2024-01-20', '2024-01-21', 'v1', 'why')");
    assert_eq!(versions(&mut session), ["1|v1", "2|v1", "20|v1"]);
    // The way forward that was named.
    session.run("SELECT version_compatible('daily', 'v1', 'v2', 'no column changed')");
    session.run(&format!("SELECT quarantine_accept({kept}, 'they are right')"));
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix"), ["f"]);
}

#[test]
fn the_only_slice_may_be_built_by_other_code() {
    let (_database, mut session) = january("refuse");
    publish(&mut session, 3, "v1");
    session.run("SELECT backfill_plan('daily', '2024-01-03', '2024-01-04', 'again', code_version => 'v2', expect => 1)");
    publish(&mut session, 3, "v2");
    assert_eq!(lease(&mut session, 4, "v1"), None);
    publish(&mut session, 4, "v2");
    assert_eq!(versions(&mut session), ["3|v2", "4|v2"]);
}

#[test]
fn a_claim_gives_no_window_that_would_mix_and_says_so() {
    let (_database, mut session) = january("refuse");
    session.run("SELECT backfill_cancel(1, 'x'); SELECT pipeline_alter('daily', '{\"backlog\": 100000}')");
    session.active_for("daily", "10000 days");
    publish(&mut session, 1, "v1");
    assert_eq!(lease(&mut session, 2, "v2"), None);
    assert_eq!(session.state("2024-01-02"), "eligible");
    let why = "SELECT window_why('daily', '2024-01-02')";
    assert!(session.one::<String>(why, &[]).contains("v1 (window 2024-01-01)"));
    // Once the pipeline names its version that is known without a claim.
    session.run("SELECT pipeline_alter('daily', '{\"code_version\": \"v2\"}')");
    assert_eq!(session.state("2024-01-02"), "blocked");
    let said: String = session.one(why, &[]);
    assert!(
        super::WAYS.iter().all(|way| said.contains(way)) && said.contains("v2 would mix with v1"),
        "{said}"
    );
    assert_eq!(
        session.lines("SELECT blocked_by, state, reason LIKE '%v2 would mix with v1%' FROM backfill.blocked WHERE window_key = '2024-01-02'"),
        ["on_mixture|blocked|t"]
    );
    assert_eq!(
        session.count("backfill.attention WHERE kind = 'blocked' AND remedy LIKE 'SELECT window_why%'"),
        1
    );
    assert_eq!(lease(&mut session, 2, "v2"), None);
    assert_eq!(session.count("backfill.runs"), 1, "no attempt is used");
    session.run("SELECT version_compatible('daily', 'v1', 'v2', 'the same')");
    assert_eq!(session.state("2024-01-02"), "eligible");
    publish(&mut session, 2, "v2");
    assert_eq!(versions(&mut session), ["1|v1", "2|v2"]);
}

#[test]
fn windows_of_a_plan_say_which_versions_count() {
    let (_database, mut session) = january("refuse");
    publish(&mut session, 1, "v1");
    let why = "SELECT window_why('daily', '2024-01-02')";
    let said: String = session.one(why, &[]);
    assert!(
        said.contains("Approved plan 1") && said.contains("compatible with v1 (window 2024-01-01)"),
        "{said}"
    );
    // What the pipeline is pinned to counts for the plan too.
    session.run("SELECT pipeline_alter('daily', '{\"code_version\": \"v2\"}')");
    let said: String = session.one(why, &[]);
    assert!(said.contains("Now version v2 would mix with v1"), "{said}");
    assert_eq!(
        session.lines(
            "SELECT DISTINCT plan_id, blocked_by FROM backfill.blocked WHERE window_key <= '2024-01-31'"
        ),
        ["1|on_mixture"]
    );
}

#[test]
fn a_plan_that_would_mix_is_refused_at_approval() {
    let (_database, mut session) = january("refuse");
    publish(&mut session, 1, "v1");
    publish(&mut session, 2, "v1");
    session.run("SELECT backfill_cancel(1, 'x')");
    let plan = |since: &str, until: &str, more: &str| {
        format!(
            "SELECT backfill_plan('daily', '2024-01-{since}', '2024-01-{until}', 'x', code_version => {more})"
        )
    };
    for (since, until, more) in [
        ("05", "06", "'v2', expect => 1"),
        ("01", "02", "'v2', expect => 1"),
        // Each window by itself: the first of them would mix.
        ("01", "03", "'v2', expect => 2"),
        ("01", "11", "'v2', expect => 10"),
        // A part of the table at once.
        ("02", "05", "'v2', publish => 'together', expect => 3"),
    ] {
        refused(&mut session, &plan(since, until, more), &["v2", "v1"]);
    }
    session.run(&plan("05", "06", "'v2'"));
    let draft: i64 = session.one("SELECT max(plan_id) FROM backfill.plans", &[]);
    refused(&mut session, &format!("SELECT backfill_approve({draft}, 1)"), &["v2", "v1"]);
    assert_eq!(session.plan_state(draft), "draft");
    // Its own version, the whole table, and windows behind.
    session.run(&plan("05", "07", "'v1', expect => 2"));
    session.run(&plan("01", "05", "'v2', publish => 'together'"));
}

#[test]
fn the_whole_table_changes_its_code_together() {
    let (_database, mut session) = january("refuse");
    (1..=3).for_each(|day| publish(&mut session, day, "v1"));
    session.run(
        "SELECT backfill_cancel(1, 'x'); SELECT pipeline_alter('daily', '{\"code_version\": \"v1\"}');
         SELECT backfill_plan('daily', '2024-01-01', '2024-01-04', 'x', code_version => 'v2', publish => 'together', expect => 3)",
    );
    let plan: i64 = session.one("SELECT max(plan_id) FROM backfill.plans", &[]);
    for day in 1..=3 {
        let token = lease(&mut session, day, "v2").unwrap();
        session.replace(token).unwrap();
    }
    // Live work goes on with the old code meanwhile, and that is in the way.
    session.run("SELECT backfill_plan('daily', '2024-01-04', '2024-01-05', 'live', expect => 1)");
    publish(&mut session, 4, "v1");
    refused(&mut session, &format!("SELECT backfill_publish({plan})"), &["v2", "v1 (window 2024-01-04)"]);
    assert_eq!(session.plan_state(plan), "staged");
    session.run(&format!("SELECT backfill_cancel({plan}, 'again, with all of them')"));
    session.run("SELECT backfill_plan('daily', '2024-01-01', '2024-01-05', 'x', code_version => 'v2', publish => 'together', expect => 4)");
    let plan: i64 = session.one("SELECT max(plan_id) FROM backfill.plans", &[]);
    for day in 1..=4 {
        let token = lease(&mut session, day, "v2").unwrap();
        session.replace(token).unwrap();
    }
    session.publish(plan).unwrap();
    assert_eq!(versions(&mut session), ["1|v2", "2|v2", "3|v2", "4|v2"]);
    // One window of it by the code before: a revert is nothing that anybody is asked about, and is kept with the plan.
    session.run("SELECT backfill_plan('daily', '2024-01-05', '2024-01-06', 'live', expect => 1)");
    publish(&mut session, 5, "v2");
    session.run(&format!("SELECT backfill_revert({plan}, 'it was wrong')"));
    assert_eq!(versions(&mut session), ["1|v1", "2|v1", "3|v1", "4|v1", "5|v2"]);
    assert_eq!(
        session.lines(&format!(
            "SELECT why FROM backfill.plan_events WHERE plan_id = {plan} AND what = 'mixed'"
        )),
        ["the slices are of v2 (window 2024-01-05), v1 (4 windows from 2024-01-01 to 2024-01-04)"]
    );
    assert!(session.notices().iter().any(|notice| notice.message.contains("several code versions")));
    assert_eq!(session.count("backfill.attention WHERE kind = 'mixed versions'"), 1);
}

/// Plans that were approved while there was nothing: the first window decides, and the others wait where everybody sees why.
#[test]
fn what_the_first_window_of_another_plan_excludes_waits_and_is_kept_where_it_was_built() {
    let (_database, mut session) = partitioned();
    session.run(
        "SELECT pool_define('backfill', 8);
         SELECT backfill_plan('daily', '2024-01-01', '2024-01-02', 'own', query => 'SELECT $1, 7', expect => 1);
         SELECT backfill_plan('daily', '2024-01-02', '2024-01-04', 'as it is', expect => 2)",
    );
    let claim = |session: &mut Session, day: i32| -> Option<i64> {
        let sql = format!(
            "SELECT token FROM backfill_claim('w', pipelines => '{{daily}}', window_key => '2024-01-{day:02}')"
        );
        session.column(&sql, &[]).pop()
    };
    let (own, other) = (claim(&mut session, 1).unwrap(), claim(&mut session, 2).unwrap());
    session.run(&format!("SELECT replace_partition({own})"));
    assert_eq!(claim(&mut session, 3), None);
    assert_eq!(
        session.lines("SELECT state, blocked_by, reason LIKE '%would mix with sql:%' FROM backfill.blocked WHERE window_key = '2024-01-03'"),
        ["queued|on_mixture|t"]
    );
    // As backfill_work does: its rows are kept, and the window is refused.
    assert_eq!(session.lines(&format!("SELECT sqlstate FROM replace_or_keep({other})")), ["BF007"]);
    session.run(&format!("SELECT backfill_fail({other}, 'mixes', sqlstate => 'BF007')"));
    assert_eq!(session.state("2024-01-02"), "refused");
    assert_eq!(session.lines("SELECT rows FROM backfill.quarantine"), ["1"]);
    assert_eq!(session.lines("SELECT DISTINCT n FROM facts"), ["7"]);
}

/// A pipeline with a query and partitions of its windows.
fn partitioned() -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(
        "CREATE TABLE facts (at timestamptz NOT NULL, n int) PARTITION BY RANGE (at);
         CREATE TABLE facts_1 PARTITION OF facts FOR VALUES FROM ('2024-01-01Z') TO ('2024-01-02Z');
         CREATE TABLE facts_2 PARTITION OF facts FOR VALUES FROM ('2024-01-02Z') TO ('2024-01-03Z');
         CREATE TABLE facts_3 PARTITION OF facts DEFAULT;
         CREATE VIEW source AS SELECT 1 AS n",
    );
    define(
        &mut session,
        "daily",
        "'1 day', '2024-01-01', 'facts', 'at'",
        "query => 'SELECT $1, n FROM source', backlog => 0, on_mixture => 'refuse', max_active => 4",
    );
    (database, session)
}

/// The same with a slice, and everything else to start by itself.
fn with_query() -> (Database, Session) {
    let (database, mut session) = partitioned();
    session.run("SELECT backfill_plan('daily', '2024-01-03', '2024-01-04', 'first', expect => 1)");
    session.run("CALL backfill_work(pools => '{backfill}')");
    session.run("SELECT pipeline_alter('daily', '{\"backlog\": 100000}')");
    session.active_for("daily", "10000 days");
    (database, session)
}

#[test]
fn an_edited_view_blocks_live_windows_until_somebody_decides() {
    let (_database, mut session) = with_query();
    // Two more windows are leased when the view is edited.
    let token: i64 = session.one(
        "SELECT token FROM backfill_claim('w', window_key => '2024-01-01', pipelines => '{daily}')",
        &[],
    );
    let swapped: i64 = session.one(
        "SELECT token FROM backfill_claim('w', window_key => '2024-01-02', pipelines => '{daily}')",
        &[],
    );
    let old: String = session.one("SELECT pipeline_version('daily')", &[]);
    // A query of the call's own has a version of its own.
    for strategy in ["rows", "swap"] {
        let sql =
            format!("SELECT replace_partition({swapped}, query => 'SELECT $1, 7', strategy => '{strategy}')");
        refused(&mut session, &sql, &["sql:", &old]);
    }
    session.run("CREATE OR REPLACE VIEW source AS SELECT 2 AS n");
    assert_sqlstate!(session.try_run(&format!("SELECT replace_partition({token})")), "BF004");
    session.run(&format!("SELECT backfill_release({token}), backfill_release({swapped})"));
    session.run("CALL backfill_work()");
    assert_eq!(session.count("backfill.runs WHERE outcome = 'done'"), 1);
    assert_eq!(
        session.lines("SELECT DISTINCT state FROM pipeline_windows('daily') WHERE rows IS NULL"),
        ["blocked"]
    );
    // The only slice is built again by what the view says now; live work goes on by itself.
    session.run("SELECT backfill_plan('daily', '2024-01-03', '2024-01-04', 'again', expect => 1)");
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(
        session.lines("SELECT DISTINCT state FROM pipeline_windows('daily') WHERE rows IS NULL"),
        ["eligible"]
    );
    session.run("CALL backfill_work(max_windows => 2)");
    assert_eq!(session.lines("SELECT mixed, (SELECT sum(v::int) FROM jsonb_each_text(versions) e (k, v)) FROM backfill.version_mix"), ["f|3"]);
    assert_eq!(session.lines("SELECT DISTINCT n FROM facts"), ["2"]);
}

#[test]
fn a_mixture_that_was_there_can_be_made_whole_and_not_widened() {
    let (_database, mut session) = january("warn");
    (1..=4).for_each(|day| publish(&mut session, day, "v1"));
    session.notices();
    (5..=6).for_each(|day| publish(&mut session, day, "v2"));
    let warnings: Vec<String> = session.notices().into_iter().map(|notice| notice.message.clone()).collect();
    assert_eq!(warnings.len(), 1, "only what begins a mixture is worth a warning: {warnings:?}");
    session.run("SELECT pipeline_alter('daily', '{\"on_mixture\": \"refuse\"}')");
    assert_eq!(session.lines("SELECT on_mixture FROM backfill.pipelines"), ["refuse"]);
    assert_eq!(lease(&mut session, 7, "v3"), None);
    publish(&mut session, 7, "v2");
    publish(&mut session, 8, "v1");
    session.run("SELECT backfill_plan('daily', NULL, NULL, 'x', mode => 'outdated', code_version => 'v2', expect => 5)");
    [1, 2, 3, 4, 8].into_iter().for_each(|day| publish(&mut session, day, "v2"));
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix"), ["f"]);
    assert_eq!(lease(&mut session, 9, "v1"), None);
}

#[test]
fn a_warning_comes_with_what_begins_a_mixture_and_with_nothing_where_all_is_allowed() {
    for (on_mixture, expected) in [("warn", [1, 1, 1]), ("allow", [0, 0, 0])] {
        let (_database, mut session) = january(on_mixture);
        publish(&mut session, 1, "v1");
        session.run("INSERT INTO facts VALUES ('2024-02-01Z', 0)");
        session.notices();
        let count = |session: &mut Session, sql: &str| {
            session.run("BEGIN");
            session.run(sql);
            session.run("ROLLBACK");
            session.notices().iter().filter(|notice| notice.message.contains("several code versions")).count()
        };
        let found = [
            "SELECT window_adopt('daily', '2024-02-01', '2024-02-02', 'v2', 'why')",
            "SELECT backfill_plan('daily', '2024-02-01', '2024-02-02', 'x', code_version => 'v2', expect => 1)",
            "SELECT backfill_plan('daily', '2024-02-01', '2024-02-02', 'x', code_version => 'v2', publish => 'together', expect => 1)",
        ]
        .map(|sql| count(&mut session, sql));
        assert_eq!(found, expected, "{on_mixture}");
    }
}

#[test]
fn refusing_is_a_setting_as_others_are() {
    let (_database, mut session) = january("refuse");
    let set = |value: &str| format!("SELECT pipeline_alter('daily', '{{\"on_mixture\": {value}}}')");
    for value in ["\"never\"", "null", "\"\""] {
        assert_sqlstate!(session.try_run(&set(value)), "22023");
    }
    assert_eq!(session.lines(&set("\"refuse\"")), ["unchanged"]);
    assert_eq!(session.lines(&set("\"allow\"")), ["changed: on_mixture"]);
    assert_sqlstate!(
        session.try_run(
            "SELECT pipeline_alter('daily', '{\"on_mixture\": \"refuse\", \"depends_on_past\": true}')"
        ),
        "22023"
    );
    // A pipeline that had its name says nothing about it; one that was renamed is itself.
    session.run(&set("\"refuse\""));
    publish(&mut session, 1, "v1");
    session.run("SELECT pipeline_rename('daily', 'other'); SELECT pipeline_rename('other', 'daily')");
    assert_eq!(lease(&mut session, 2, "v2"), None);
    session.run("SELECT pipeline_drop('daily')");
    define(
        &mut session,
        "daily",
        "'1 day', '2024-01-01', 'facts', 'at'",
        "backlog => 0, on_mixture => 'refuse'",
    );
    session.plan("2024-01-05", "");
    publish(&mut session, 2, "v2");
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix ORDER BY 1"), ["f", "f"]);
}

/// What is built again by its own code widens nothing, though no other window is of that code.
#[test]
fn the_only_slice_of_a_version_is_built_again_by_it() {
    let (_database, mut session) = january("warn");
    publish(&mut session, 1, "v1");
    publish(&mut session, 2, "v2");
    session.run("SELECT pipeline_alter('daily', '{\"on_mixture\": \"refuse\"}')");
    let draft = session.draft("'2024-01-01', '2024-01-02', 'again', code_version => 'v1'");
    session.approve(draft).unwrap();
    let token = lease(&mut session, 1, "v1").unwrap();
    replace(&mut session, token, "").unwrap();
    let draft = session.draft("'2024-01-01', '2024-01-02', 'again', code_version => 'v3'");
    assert_refused(session.approve(draft), &["v1", "v2", "v3"]);
    let plan = session.plan("2024-01-02", ", code_version => 'v1', publish => 'together'");
    let token = lease(&mut session, 1, "v1").unwrap();
    replace(&mut session, token, "").unwrap();
    session.run(&format!("SELECT backfill_publish({plan})"));
    assert_eq!(versions(&mut session), ["1|v1", "2|v2"]);
}

/// A window that may not be built keeps none away that may.
#[test]
fn a_claim_gives_those_windows_that_fit() {
    let (_database, mut session) = january("refuse");
    publish(&mut session, 3, "v1");
    session.plan_window("2024-01-03");
    let claim = |session: &mut Session, version: &str| -> Vec<String> {
        session.lines(&format!(
            "SELECT window_key FROM backfill_claim('w', 5, pipelines => '{{daily}}', code_version => '{version}')"
        ))
    };
    // The only slice may be built by other code, and nothing beside it before.
    assert_eq!(claim(&mut session, "v2"), ["2024-01-03"]);
    assert_eq!(claim(&mut session, "v2"), Vec::<String>::new());
    assert_eq!(claim(&mut session, "v1").len(), 5);
}
