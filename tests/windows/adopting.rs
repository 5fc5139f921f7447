//! Rows that were there before the ledger knew them.

use crate::plans::declined;
use crate::support::{Calls, daily, define, impatient, keys};
use crate::windows::{adopt, decide, states};
use pgrx_tests::{Cluster, Session, assert_sqlstate, wait_until};

/// Rows in some of the first days of January, two each.
fn fill(session: &mut Session, days: &[u32]) {
    for day in days {
        session.run(&format!(
            "INSERT INTO facts SELECT timestamp '2024-01-{day:02}' AT TIME ZONE 'UTC' + n * interval '23:59:59.999999', 0
             FROM generate_series(0, 1) n"
        ));
    }
}

const WEEK: &str = "'2024-01-01', '2024-01-08'";

#[test]
fn windows_with_rows_become_slices_and_those_without_stay_missed() {
    let database = daily("");
    let mut session = database.connect();
    fill(&mut session, &[1, 2, 4, 8]);
    assert_eq!(adopt(&mut session, WEEK), "3|6|{2024-01-03,2024-01-05,2024-01-06,2024-01-07}");
    let shown = states(&mut session, "2024-01-09");
    assert_eq!(shown[..5], ["adopted", "adopted", "missed", "adopted", "missed"]);
    assert_eq!(shown[7], "missed", "it is not in the range");
    assert_eq!(adopt(&mut session, WEEK), "0|0|{2024-01-03,2024-01-05,2024-01-06,2024-01-07}");
    let slices =
        "SELECT window_key, rows, code_version, worker, plan_id, published_at IS NULL FROM backfill.slices";
    assert_eq!(
        session.lines(slices),
        ["2024-01-01|2|legacy|||f", "2024-01-02|2|legacy|||f", "2024-01-04|2|legacy|||f"]
    );
    let why: String = session.one("SELECT window_why('daily', '2024-01-02')", &[]);
    assert!(why.contains("legacy") && why.contains("postgres") && why.contains("test"), "{why}");
    let missing = format!("{WEEK}, 'test', mode => 'missing'");
    assert_eq!(declined(&mut session, &missing), ["already done|2", "already done|1"]);
    assert_eq!(session.draft(&missing).windows, 4);
    assert_eq!(session.claim(), None);
    // Nobody worked, and nothing took any time.
    assert_eq!(session.count("backfill.workers"), 0);
    assert_eq!(session.lines("SELECT estimate->>'sample' FROM backfill.plans"), ["0"; 2]);
    assert_eq!(session.lines("SELECT in_use FROM backfill.pools"), ["0", "0"]);
}

#[test]
fn an_adopted_slice_is_measured_as_a_replaced_one_is() {
    for (column, value) in [
        ("timestamptz", "$1 + n * ($2 - $1 - interval '1 microsecond') / 3"),
        ("timestamp", "($1 + n * ($2 - $1 - interval '1 microsecond') / 3) AT TIME ZONE 'America/New_York'"),
        ("date", "($1 AT TIME ZONE 'America/New_York')::date"),
    ] {
        let database = Cluster::shared().database();
        let mut session = database.connect();
        session.run(&format!(
            "CREATE TABLE target (a int GENERATED ALWAYS AS IDENTITY, at {column} NOT NULL, who text,
                                  b text GENERATED ALWAYS AS (upper(who)) STORED)"
        ));
        let settings = format!(
            "time_zone => 'America/New_York',
             query => $q$SELECT {value}, n::text FROM generate_series(0, 3) n WHERE $2 > $1$q$"
        );
        define(&mut session, "daily", "'1 day', '2024-03-08', 'target', 'at'", &settings);
        let run = "SELECT backfill_plan('daily', '2024-03-08', '2024-03-13', 'test', expect => 5)";
        session.run(run);
        session.run("CALL backfill_work()");
        let slices = "SELECT window_key, rows, digest FROM backfill.slices";
        let replaced = session.lines(slices);
        assert_eq!(replaced.len(), 5);
        // The same rows, and a ledger that knows nothing of them.
        session.run("SELECT pipeline_drop('daily')");
        define(&mut session, "daily", "'1 day', '2024-03-08', 'target', 'at'", &settings);
        assert_eq!(adopt(&mut session, "'2024-03-08', '2024-03-13'"), "5|20|{}");
        let adopted = format!("{slices} ORDER BY token DESC LIMIT 5");
        let mut adopted = session.lines(&adopted);
        adopted.reverse();
        assert_eq!(adopted, replaced, "{column}");
        // And so its first run may find that it has nothing to write.
        session.run(run);
        let token: i64 =
            session.one("SELECT token FROM backfill_claim('w', pipelines => ARRAY['daily'])", &[]);
        assert!(!session.one::<bool>("SELECT changed FROM replace_partition($1)", &[&token]));
    }
}

#[test]
fn the_slice_column_may_be_one_that_the_table_generates() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(
        "CREATE TABLE target (at timestamp NOT NULL, day date GENERATED ALWAYS AS (at::date) STORED);
         INSERT INTO target (at) VALUES ('2024-01-01 07:00'), ('2024-01-03')",
    );
    define(&mut session, "daily", "'1 day', '2024-01-01', 'target', 'day'", "");
    assert_eq!(adopt(&mut session, "'2024-01-01', '2024-01-04'"), "2|2|{2024-01-02}");
}

#[test]
fn windows_that_somebody_has_are_left_alone() {
    let database = daily("catchup => 1, lease_for => '1 second'");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 20)");
    fill(&mut session, &[1, 2, 3, 4, 5, 6, 7, 8]);
    session.plan("2024-01-07", ", concurrency => 5");
    let plan = "5, pools => ARRAY['backfill'], pipelines => ARRAY['daily']";
    let [done, failed, retrying, expired, leased] = session.try_claim(plan).unwrap().try_into().unwrap();
    session.call("finish", done.token);
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", failed.token));
    session.fail(retrying.token);
    session.let_expire(expired.token);
    session.call("heartbeat", leased.token);
    decide(&mut session, "skip", "'2024-01-07', '2024-01-08'");
    decide(&mut session, "lock", "'2024-01-08', '2024-01-09'");
    let before = states(&mut session, "2024-01-09");
    assert_eq!(before[2..], ["retrying", "retrying", "leased", "queued", "skipped", "locked"]);
    // Only the one that failed for good: what holds its rows is for a person to say.
    assert_eq!(adopt(&mut session, "'2024-01-01', current_date + 9").split('|').next(), Some("1"));
    let after = states(&mut session, "2024-01-09");
    assert_eq!(after[0..2], ["done", "adopted"]);
    assert_eq!(after[2..], before[2..]);
    session.replace(leased.token).unwrap();
    assert_eq!(
        session.count("pipeline_windows('daily', current_date, current_date + 9) WHERE state <> 'future'"),
        0
    );
}

#[test]
fn adoption_does_not_move_what_may_start_by_itself() {
    let database = daily("catchup => 2, max_active => 9");
    let mut session = database.connect();
    let eligible = "SELECT window_key FROM pipeline_windows('daily') WHERE state = 'eligible'";
    let before = session.lines(eligible);
    assert_eq!(before.len(), 2);
    session.run("INSERT INTO facts VALUES (current_date - 1, 0)");
    assert_eq!(adopt(&mut session, "current_date - 1, current_date"), "1|1|{}");
    assert_eq!(session.lines(eligible), before[..1], "no older one is admitted");
    // What is adopted did not start: where it is not due any more, nothing before it is either.
    session.run(r#"SELECT pipeline_alter('daily', '{"delay": "3 days"}')"#);
    let due = session.lines("SELECT (current_date - n)::text FROM unnest(ARRAY[5, 4]) n");
    assert_eq!(session.lines(eligible), due);
    assert_eq!(keys(&session.leases(9)), due);
}

#[test]
fn an_adoption_is_taken_back_where_its_slice_is_still_there() {
    let database = daily("catchup => 1");
    let mut session = database.connect();
    fill(&mut session, &[1, 2, 3]);
    session.run("INSERT INTO facts VALUES (current_date - 1, 0)");
    session.plan_window("2024-01-03");
    let failed = session.try_claim("1, pools => ARRAY['backfill'], pipelines => ARRAY['daily']").unwrap();
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", failed[0].token));
    assert_eq!(adopt(&mut session, "NULL, '2024-01-04'"), "3|6|{}");
    assert_eq!(adopt(&mut session, "current_date - 1, NULL"), "1|1|{}");
    assert_eq!(session.claim(), None);
    session.plan_window("2024-01-02");
    let rebuilt = session.lease();
    session.replace(rebuilt.token).unwrap();
    session.run("SELECT window_unadopt('daily', NULL, NULL, 'the old job was wrong')");
    assert_eq!(states(&mut session, "2024-01-04"), ["missed", "done", "failed"]);
    let newest: String = session.one("SELECT (current_date - 1)::text", &[]);
    assert_eq!(session.state(&newest), "eligible", "it never started");
    assert_eq!(session.lease().key, newest);
    assert_eq!(session.lines("SELECT token FROM backfill.slices"), [rebuilt.token.to_string()]);
    assert_eq!(decide(&mut session, "unadopt", "NULL, NULL"), 0);
    let marks = "SELECT window_key, reason, lift_reason, lifted_by FROM backfill.window_marks
                 WHERE mark = 'adopted' AND window_key < '2024-02' ORDER BY 1";
    assert_eq!(
        session.lines(marks),
        [
            "2024-01-01|test|the old job was wrong|postgres",
            "2024-01-02|test||",
            "2024-01-03|test|the old job was wrong|postgres"
        ]
    );
    // Another code version, perhaps.
    assert_eq!(adopt(&mut session, "NULL, '2024-01-04'"), "2|4|{}");
    assert_eq!(states(&mut session, "2024-01-04"), ["adopted", "done", "adopted"]);
}

#[test]
fn a_draft_is_out_of_date_once_a_window_of_it_was_adopted_or_given_up() {
    let database = daily("");
    let mut session = database.connect();
    fill(&mut session, &[1]);
    let draft = session.draft("NULL, '2024-01-04', 'test'");
    adopt(&mut session, WEEK);
    assert_sqlstate!(session.approve(draft), "BF004");
    let draft = session.draft("NULL, '2024-01-04', 'test'");
    decide(&mut session, "unadopt", WEEK);
    assert_sqlstate!(session.approve(draft), "BF004");
}

#[test]
fn an_adopted_slice_can_be_stale_and_closed_and_built_again() {
    let database = daily("");
    let mut session = database.connect();
    fill(&mut session, &[1, 2]);
    adopt(&mut session, WEEK);
    assert_eq!(decide(&mut session, "mark_stale", "'2024-01-01', '2024-01-02'"), 1);
    assert_eq!(decide(&mut session, "lock", "'2024-01-02', '2024-01-03'"), 1);
    assert_eq!(states(&mut session, "2024-01-03"), ["stale", "locked"]);
    decide(&mut session, "unlock", "'2024-01-02', '2024-01-03'");
    assert_eq!(session.draft("NULL, '2024-01-03', 'test', mode => 'stale'").windows, 1);
    session.plan("2024-01-03", "");
    for lease in session.leases(2) {
        session.replace(lease.token).unwrap();
    }
    assert_eq!(states(&mut session, "2024-01-03"), ["done", "done"]);
    session.assert_data_is_the_ledger();
}

#[test]
fn an_adoption_leaves_what_a_claim_is_taking_and_waits_for_nobody() {
    let database = daily("catchup => 3, max_active => 2");
    let (mut worker, mut operator) = (database.connect(), impatient(&database));
    worker.run("INSERT INTO facts SELECT current_date - n, 0 FROM generate_series(1, 3) n");
    worker.run("BEGIN");
    let taken = worker.lease();
    let range = "current_date - 3, current_date";
    assert_eq!(adopt(&mut operator, range), "2|2|{}");
    worker.run("COMMIT");
    worker.replace(taken.token).unwrap();
    let adopted = format!("SELECT count(*) FROM pipeline_windows('daily', {range}) WHERE state = 'adopted'");
    assert_eq!(operator.lines(&adopted), ["2"]);
}

#[test]
fn a_claim_leaves_what_is_being_adopted_and_waits_for_nobody() {
    let database = daily("catchup => 3, max_active => 9");
    let (mut operator, mut worker) = (database.connect(), impatient(&database));
    operator.run("INSERT INTO facts SELECT current_date - n, 0 FROM generate_series(1, 2) n");
    for end in ["ROLLBACK", "COMMIT"] {
        operator.run("BEGIN");
        assert_eq!(adopt(&mut operator, "current_date - 2, current_date"), "2|2|{}");
        worker.run("BEGIN");
        assert_eq!(worker.leases(9).len(), 1, "the third one is to be had");
        worker.run("ROLLBACK");
        operator.run(end);
        worker.run("BEGIN");
        assert_eq!(worker.leases(9).len(), if end == "COMMIT" { 1 } else { 3 });
        worker.run("ROLLBACK");
    }
}

#[test]
fn of_racing_claims_and_adoptions_each_window_is_had_by_one() {
    let database = daily("catchup => 40, max_active => 40");
    let mut judge = database.connect();
    judge.run("SELECT pool_define('live', 40)");
    judge.run("INSERT INTO facts SELECT current_date - n, 0 FROM generate_series(1, 40) n");
    let range = "current_date - 40, current_date";
    let had = database.many(10, |i, session| {
        if i < 2 {
            let adopted = adopt(session, range);
            return adopted.split('|').next().unwrap().parse::<usize>().unwrap();
        }
        session.leases(2).len()
    });
    // Those that were busy at that moment are eligible still.
    let left = format!("SELECT count(*) FROM pipeline_windows('daily', {range}) WHERE state = 'eligible'");
    let left: i64 = judge.one(&left, &[]);
    assert_eq!(had.iter().sum::<usize>() + left as usize, 40, "{had:?}");
    let twice = "SELECT window_key FROM backfill.runs GROUP BY window_key HAVING count(*) > 1";
    assert_eq!(judge.lines(twice), [""; 0]);
}

#[test]
fn an_approval_waits_until_an_adoption_has_ended_and_sees_it() {
    let database = daily("");
    let (mut operator, mut other) = (database.connect(), database.connect());
    fill(&mut operator, &[1]);
    let plan = other.draft("NULL, '2024-01-03', 'test'");
    operator.run("BEGIN");
    adopt(&mut operator, WEEK);
    let approve = format!("SELECT backfill_approve({}, 2)", plan.id);
    let late = crate::support::waiting(&database, &mut other, &approve, || operator.run("COMMIT"));
    assert_sqlstate!(late, "BF004");
}

#[test]
fn a_long_history_is_adopted_in_one_call_without_a_lock_for_each_window() {
    let database = daily("");
    let mut session = database.connect();
    session.run("CREATE TABLE hours (at timestamptz NOT NULL)");
    session.run("INSERT INTO hours SELECT '2000-01-01 00:00Z'::timestamptz + n * interval '2 hours' FROM generate_series(0, 9999) n");
    define(&mut session, "hourly", "'1 hour', '2000-01-01', 'hours', 'at'", "");
    session.run("BEGIN");
    let adopted = "SELECT windows, rows, cardinality(empty_keys)
                   FROM window_adopt('hourly', NULL, '2002-04-13 08:00', 'legacy', 'test')";
    assert_eq!(session.lines(adopted), ["10000|10000|10000"]);
    let locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'object'";
    assert!(session.one::<i64>(locks, &[]) < 9);
    session.run("COMMIT");
    assert_eq!(session.count("backfill.slices"), 10_000);
}

#[test]
fn whoever_adopts_must_be_allowed_to_read_the_target_and_sees_all_of_it() {
    let database = daily("");
    let role = database.role("operator");
    let mut admin = database.connect();
    fill(&mut admin, &[1]);
    admin.run(&format!("SELECT pipeline_grant('daily', '{role}', 'operate')"));
    let mut session = database.connect_as(&role);
    let sql = format!("SELECT window_adopt('daily', {WEEK}, 'legacy', 'test')");
    let failure = assert_sqlstate!(session.try_run(&sql), "42501");
    assert!(failure.detail.contains("SELECT"), "{failure}");
    // Rows that a policy hides from him are part of the slice.
    admin.run(&format!(
        "GRANT SELECT ON facts TO {role}; ALTER TABLE facts ENABLE ROW LEVEL SECURITY;
         CREATE POLICY few ON facts USING (at < '2024-01-01 01:00Z')"
    ));
    assert_eq!(adopt(&mut session, "'2024-01-01', '2024-01-02'"), "1|2|{}");
}

#[test]
fn what_cannot_be_adopted_is_refused_in_words() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "outside", "'1 day', '2024-01-01'", "");
    for (pipeline, version, reason) in [
        ("outside", "'legacy'", "'test'"),
        ("daily", "NULL", "'test'"),
        ("daily", "' '", "'test'"),
        ("daily", "'legacy'", "NULL"),
    ] {
        let sql = format!("SELECT window_adopt('{pipeline}', {WEEK}, {version}, {reason})");
        let failure = assert_sqlstate!(session.try_run(&sql), "22023");
        assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{failure}");
    }
}

#[test]
fn an_adoption_sees_the_present_at_every_isolation_level() {
    let database = daily("catchup => 2, max_active => 9");
    let (mut old, mut worker) = (database.connect(), database.connect());
    old.run("INSERT INTO facts SELECT current_date - n, 0 FROM generate_series(1, 2) n");
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM backfill.runs");
    let lease = worker.lease();
    worker.run("INSERT INTO facts VALUES (current_date - 1, 0)");
    // The one window is leased, the other holds two rows by now.
    assert_eq!(adopt(&mut old, "current_date - 2, current_date"), "1|2|{}");
    old.run("COMMIT");
    worker.replace(lease.token).unwrap();
    wait_until("both are", || worker.count("backfill.slices") == 2);
}

#[test]
fn what_follows_may_rest_on_an_adopted_window() {
    let database = daily("depends_on_past => true");
    let mut session = database.connect();
    fill(&mut session, &[3, 4]);
    // The newer one first: nothing changed by that, so that it is not stale.
    assert_eq!(adopt(&mut session, "'2024-01-04', '2024-01-05'"), "1|2|{}");
    assert_eq!(adopt(&mut session, "'2024-01-03', '2024-01-04'"), "1|2|{}");
    let plan = session.draft("'2024-01-05', '2024-01-06', 'test', ordering => 'sequential'");
    session.approve(plan).unwrap();
    assert_eq!(states(&mut session, "2024-01-06"), ["missed", "missed", "adopted", "adopted", "queued"]);
    let lease = session.lease();
    assert_eq!(lease.key, "2024-01-05");
    session.replace(lease.token).unwrap();
    // One that is built again makes those behind it stale, adopted ones too.
    session.run("SELECT window_skip('daily', '2024-01-02', '2024-01-03', 'test')");
    let plan = session.draft("'2024-01-03', '2024-01-04', 'test', ordering => 'sequential'");
    session.approve(plan).unwrap();
    let lease = session.lease();
    session.replace(lease.token).unwrap();
    assert_eq!(states(&mut session, "2024-01-06"), ["missed", "skipped", "done", "stale", "stale"]);
}

#[test]
fn windows_of_former_grids_are_measured_by_their_own_zones() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run("CREATE TABLE target (at timestamp NOT NULL)");
    define(&mut session, "daily", "'1 hour', '2024-01-01', 'target', 'at'", "");
    session.run(
        r#"SELECT window_skip('daily', '2024-01-01', '2024-01-01 01:00', 'a history');
        SELECT pipeline_alter('daily', '{"cadence": "1 day", "time_zone": "Asia/Tokyo", "start_at": "2024-01-01",
                                         "switch_at": "2024-01-01T15:00Z"}')"#,
    );
    // The local clock is set forward by nine hours at the switch: both first rows are of windows that the zone decides.
    session.run("INSERT INTO target VALUES ('2024-01-01 14:59'), ('2024-01-02 00:00'), ('2024-01-02 23:59')");
    let windows = "SELECT windows, rows, cardinality(empty_keys)
                   FROM window_adopt('daily', NULL, '2024-01-03', 'legacy', 'test')";
    assert_eq!(session.lines(windows), ["2|3|13"]);
    let slices = "SELECT window_key, rows FROM backfill.slices ORDER BY window_start";
    assert_eq!(session.lines(slices), ["2024-01-01T14:00+00:00|1", "2024-01-02|2"]);
}
