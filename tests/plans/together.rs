//! Plans that publish all their windows at once: staged by workers, looked at, published or given up as one.

use crate::support::{Calls, daily, define, replacing_with};
use pgrx_tests::{Cluster, Database, Failure, Session, assert_sqlstate};

pub const TOGETHER: &str = ", publish => 'together'";

pub trait Together {
    /// An approved plan of all windows of `daily` before a day, and the leases of all of them.
    fn together(&mut self, until: &str, more: &str) -> (i64, Vec<i64>);
    /// The same with every window staged.
    fn staged(&mut self, until: &str, more: &str) -> i64;
    fn publish(&mut self, plan: i64) -> Result<i64, Failure>;
    /// What `facts` holds: days, rows and tokens.
    fn facts(&mut self) -> Vec<String>;
    fn plan_state(&mut self, plan: i64) -> String;
}

impl Together for Session {
    #[track_caller]
    fn together(&mut self, until: &str, more: &str) -> (i64, Vec<i64>) {
        self.run("SELECT pool_define('backfill', 16)");
        let plan = self.plan(until, &format!("{TOGETHER} {more}"));
        let leases = self.leases(16);
        assert!(leases.iter().all(|lease| lease.plan_id == Some(plan)));
        (plan, leases.iter().map(|lease| lease.token).collect())
    }

    #[track_caller]
    fn staged(&mut self, until: &str, more: &str) -> i64 {
        let (plan, tokens) = self.together(until, more);
        tokens.into_iter().for_each(|token| self.replace(token).unwrap());
        plan
    }

    fn publish(&mut self, plan: i64) -> Result<i64, Failure> {
        self.try_one("SELECT backfill_publish($1)", &[&plan])
    }

    fn facts(&mut self) -> Vec<String> {
        self.lines("SELECT at::date, count(*), string_agg(DISTINCT token::text, ',') FROM facts GROUP BY 1 ORDER BY 1")
    }

    fn plan_state(&mut self, plan: i64) -> String {
        self.one("SELECT state FROM backfill.plans WHERE plan_id = $1", &[&plan])
    }
}

/// A pipeline with a query of which four windows are published, as version 1.
fn with_query() -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run("CREATE TABLE sales (at timestamptz NOT NULL, amount numeric NOT NULL)");
    session.run("INSERT INTO sales SELECT '2024-01-01Z'::timestamptz + n * interval '6 hours', n FROM generate_series(0, 15) n");
    session.run("CREATE TABLE totals (day timestamptz NOT NULL, total numeric, note text)");
    define(
        &mut session,
        "totals",
        "'1 day', '2024-01-01', 'totals', 'day'",
        "query => 'SELECT $1, sum(amount), NULL::text FROM sales WHERE at >= $1 AND at < $2'",
    );
    session.run("SELECT backfill_plan('totals', NULL, '2024-01-05', 'first', expect => 4)");
    session.run("CALL backfill_work(pools => '{backfill}')");
    (database, session)
}

const CANDIDATE: &str =
    "SELECT $1, sum(amount) * 100, 'in cents' FROM sales WHERE at >= $1 AND at < $2 AND amount <> 5";

fn candidate(session: &mut Session) -> i64 {
    let sql = format!(
        "SELECT plan_id FROM backfill_plan('totals', NULL, '2024-01-05', 'in cents', publish => 'together',
                                           query => $${CANDIDATE}$$, allow_shrink => 'one sale was a test', expect => 4)"
    );
    session.one(&sql, &[])
}

#[test]
fn candidate_code_is_staged_compared_published_and_taken_back_as_one() {
    let (_database, mut session) = with_query();
    let totals = "SELECT day::date, total, note FROM totals ORDER BY 1";
    let before = session.lines(totals);
    let old = session.lines("SELECT query FROM backfill.pipelines");
    let plan = candidate(&mut session);
    assert_eq!(
        session.lines(
            "SELECT p.plan_id, p.pipeline, p.is_needed, p.relation, p.bytes > 0 FROM backfill.plan_stages p"
        ),
        [format!("{plan}|totals|t|backfill.plan_stage_{plan}|t")]
    );
    let lease = "SELECT target, write_to, publish, query FROM backfill_claim('w', 1)";
    assert_eq!(session.lines(lease), [format!("totals|backfill.plan_stage_{plan}|together|{CANDIDATE}")]);
    assert_eq!(
        session.lines("SELECT write_to, publish, query FROM backfill.leases"),
        [format!("backfill.plan_stage_{plan}|together|{CANDIDATE}")]
    );
    session.run("SELECT backfill_release(token) FROM backfill.leases");
    session.run("CALL backfill_work(pools => '{backfill}')");

    assert_eq!(session.lines(totals), before, "nothing is published");
    assert_eq!(
        session.lines("SELECT window_key, state FROM backfill.windows ORDER BY 1"),
        ["2024-01-01|staged", "2024-01-02|staged", "2024-01-03|staged", "2024-01-04|staged"]
    );
    let calendar = session.lines("SELECT pipeline_calendar('totals', '2024-01-01', '2024-01-05')").join("\n");
    assert!(calendar.contains("^^^^"), "{calendar}");
    let why: String = session.one("SELECT window_why('totals', '2024-01-02')", &[]);
    assert!(why.contains(&format!("Plan {plan} publishes them together")), "{why}");
    assert_eq!(
        session.lines("SELECT state, done, staged, windows FROM backfill.plans ORDER BY 1 DESC LIMIT 1"),
        ["staged|4|4|4"]
    );
    assert_eq!(
        session.lines("SELECT remedy FROM backfill.attention WHERE kind = 'staged plan'"),
        [format!("SELECT * FROM backfill_diff({plan}); SELECT backfill_publish({plan});")]
    );
    assert_eq!(
        session.lines("SELECT DISTINCT query FROM backfill.pipelines"),
        old,
        "live work keeps its code"
    );

    let diff = format!(
        "SELECT window_key, changed, rows_now, rows_new, gone, fresh, columns->'total', columns->'note', digest_now <> digest_new,
                window_start IS NULL
         FROM backfill_diff({plan})"
    );
    let total = |now: &str, new: &str| {
        format!(r#"{{"new": {{"sum": {new}, "nulls": 0}}, "now": {{"sum": {now}, "nulls": 0}}}}"#)
    };
    let note = |now: i32| format!(r#"{{"new": {{"nulls": 0}}, "now": {{"nulls": {now}}}}}"#);
    assert_eq!(
        session.lines(&diff),
        [
            format!("2024-01-01|t|1|1|1|1|{}|{}|t|f", total("6", "600"), note(1)),
            format!("2024-01-02|t|1|1|1|1|{}|{}|t|f", total("22", "1700"), note(1)),
            format!("2024-01-03|t|1|1|1|1|{}|{}|t|f", total("38", "3800"), note(1)),
            format!("2024-01-04|t|1|1|1|1|{}|{}|t|f", total("54", "5400"), note(1)),
            format!("|t|4|4|4|4|{}|{}|t|t", total("120", "11500"), note(4)),
        ]
    );
    assert_eq!(
        session.lines(&format!("SELECT sample FROM backfill_diff({plan}) WHERE window_key = '2024-01-02'")),
        [
            r#"[{"now": {"day": "2024-01-02 00:00:00+00", "note": null, "total": "22"}}, {"new": {"day": "2024-01-02 00:00:00+00", "note": "in cents", "total": "1700"}}]"#
        ]
    );

    let tokens = session.lines(
        "SELECT token FROM backfill.runs WHERE run_kind = 'backfill' AND finished_at IS NOT NULL
                                AND outcome = 'done' ORDER BY token DESC LIMIT 4",
    );
    assert_eq!(session.publish(plan).unwrap(), 4);
    assert_eq!(
        session.lines(totals),
        [
            "2024-01-01|600|in cents",
            "2024-01-02|1700|in cents",
            "2024-01-03|3800|in cents",
            "2024-01-04|5400|in cents"
        ]
    );
    assert_eq!(
        session.lines("SELECT token FROM backfill.slices ORDER BY token DESC"),
        tokens,
        "under the workers' tokens"
    );
    assert_eq!(session.lines("SELECT DISTINCT state FROM backfill.windows"), ["done"]);
    assert_eq!(session.lines("SELECT query FROM backfill.pipelines"), [CANDIDATE]);
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix"), ["f"]);
    assert_eq!(session.lines("SELECT count(*) FROM backfill.plan_stages"), ["0"]);
    assert_eq!(session.lines(&format!("SELECT to_regclass('backfill.plan_stage_{plan}')")), [""]);
    assert_eq!(
        session.lines(&format!(
            "SELECT state, published_by, published_at IS NOT NULL FROM backfill.plans WHERE plan_id = {plan}"
        )),
        ["published|postgres|t"]
    );
    assert_sqlstate!(session.publish(plan), "55000");
    assert_sqlstate!(session.try_run(&format!("SELECT * FROM backfill_diff({plan})")), "55000");
    // What comes next is built by what is the pipeline's code now.
    session.run("SELECT backfill_plan('totals', '2024-01-05', '2024-01-06', 'next')");
    assert_eq!(
        session.lines("SELECT code_version = (SELECT max(code_version) FROM backfill.slices) FROM backfill.plans WHERE state = 'draft'"),
        ["t"]
    );

    assert_eq!(session.lines(&format!("SELECT backfill_revert({plan}, 'readers expect euros')")), ["4"]);
    assert_eq!(session.lines(totals), before);
    assert_eq!(session.lines("SELECT query FROM backfill.pipelines"), old);
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix"), ["f"]);
    assert_eq!(session.plan_state(plan), "reverted");
}

#[test]
fn workers_that_state_their_version_stage_the_pipelines_next_one() {
    let database = daily("code_version => 'v1'");
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    let first = session.plan("2024-01-04", "");
    for _ in 0..3 {
        let lease = session.try_claim("1, pipelines => '{daily}', code_version => 'v1'").unwrap().remove(0);
        session.replace(lease.token).unwrap();
    }
    assert_eq!(session.plan_state(first), "completed");
    let before = session.facts();
    let plan = session.plan("2024-01-04", ", code_version => 'v2', publish => 'together'");
    for (version, n) in [("v1", 0), ("v2", 3)] {
        let leases =
            session.try_claim(&format!("9, pipelines => '{{daily}}', code_version => '{version}'")).unwrap();
        assert_eq!(leases.len(), n);
        leases.iter().for_each(|lease| session.replace(lease.token).unwrap());
    }
    assert_eq!(session.facts(), before);
    assert_eq!(session.publish(plan).unwrap(), 3);
    assert_ne!(session.facts(), before);
    session.assert_data_is_the_ledger();
    session.assert_one_lease_per_window();
    assert_eq!(session.lines("SELECT DISTINCT code_version FROM backfill.slices"), ["v2"]);
    assert_eq!(session.lines("SELECT code_version FROM backfill.pipelines"), ["v2"]);
    session.run(&format!("SELECT backfill_revert({plan}, 'no')"));
    assert_eq!(session.facts(), before);
    assert_eq!(session.lines("SELECT code_version FROM backfill.pipelines"), ["v1"]);
}

#[test]
fn what_cannot_be_published_together_is_refused() {
    let database = daily("");
    let mut session = database.connect();
    define(&mut session, "outside", "'1 day', '2024-01-01'", "");
    let plan = |pipeline: &str, more: &str| {
        format!("SELECT backfill_plan('{pipeline}', NULL, '2024-01-03', 'x', publish => 'together' {more})")
    };
    for (sql, code) in [
        (plan("daily", ", ordering => 'sequential'"), "0A000"),
        (plan("daily", ", cascade => true"), "0A000"),
        (plan("outside", ""), "0A000"),
        (plan("daily", ", query => 'SELECT $1, 1', code_version => 'v1'"), "22023"),
        (plan("daily", ", query => 'SELECT $1, ''x'''"), "22P02"),
        (plan("daily", ", query => 'DELETE FROM facts'"), "22023"),
        (
            "SELECT backfill_plan('outside', NULL, '2024-01-03', 'x', query => 'SELECT $1, 1')".to_owned(),
            "0A000",
        ),
        ("SELECT backfill_plan('daily', NULL, NULL, 'x', publish => 'apart')".to_owned(), "22023"),
        ("SELECT backfill_publish(NULL)".to_owned(), "22004"),
        ("SELECT * FROM backfill_diff(NULL)".to_owned(), "22004"),
        ("SELECT backfill_publish(99)".to_owned(), "42704"),
    ] {
        assert_sqlstate!(session.try_run(&sql), code);
    }
    let each = session.plan("2024-01-03", "");
    assert_sqlstate!(session.publish(each), "55000");
    assert_sqlstate!(session.try_run(&format!("SELECT * FROM backfill_diff({each})")), "55000");
    session.cancel(each);
    let (plan, tokens) = session.together("2024-01-04", "");
    let failure = assert_sqlstate!(session.publish(plan), "55000");
    assert!(
        failure.detail.contains("of 3 windows 0 are staged, 0 failed, and 3 are being built"),
        "{failure}"
    );
    session.replace(tokens[0]).unwrap();
    assert_sqlstate!(session.publish(plan), "55000");
    session.replace(tokens[1]).unwrap();
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", tokens[2]));
    assert_eq!(session.plan_state(plan), "partial");
    let failure = assert_sqlstate!(session.publish(plan), "55000");
    assert!(failure.hint.contains("backfill_retry"), "{failure}");
    assert_eq!(session.count("facts"), 0);
    // What failed runs again, and what is staged stays so.
    session.run(&format!("SELECT backfill_retry({plan})"));
    let lease = session.lease();
    assert_eq!(session.claim(), None);
    session.replace(lease.token).unwrap();
    assert_eq!(session.publish(plan).unwrap(), 3);
    session.assert_data_is_the_ledger();
}

#[test]
fn a_plan_of_its_own_query_that_publishes_each_window_leaves_the_pipelines_code_alone() {
    let (_database, mut session) = with_query();
    let old = session.lines("SELECT query FROM backfill.pipelines");
    session.run(
        "SELECT backfill_plan('totals', NULL, '2024-01-03', 'a look', expect => 2,
             query => 'SELECT $1, 0, ''zero'' FROM sales WHERE at >= $1 AND at < $2 LIMIT 1')",
    );
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(
        session.lines("SELECT day::date, total, note FROM totals ORDER BY 1"),
        ["2024-01-01|0|zero", "2024-01-02|0|zero", "2024-01-03|38|", "2024-01-04|54|"]
    );
    assert_eq!(session.lines("SELECT query FROM backfill.pipelines"), old);
    assert_eq!(session.lines("SELECT mixed FROM backfill.version_mix"), ["t"]);
}

#[test]
fn a_pipeline_without_a_query_gets_one() {
    let database = daily("");
    let mut session = database.connect();
    let plan: i64 = session.one(
        "SELECT plan_id FROM backfill_plan('daily', NULL, '2024-01-03', 'x', publish => 'together', query => 'SELECT $1, 7', expect => 2)",
        &[],
    );
    // Anybody can run them.
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_eq!(session.publish(plan).unwrap(), 2);
    assert_eq!(session.facts(), ["2024-01-01|1|7", "2024-01-02|1|7"]);
    assert_eq!(session.lines("SELECT query, code_version FROM backfill.pipelines"), ["SELECT $1, 7|"]);
    session.run(&format!("SELECT backfill_revert({plan}, 'x')"));
    assert_eq!(session.lines("SELECT query, code_version FROM backfill.pipelines"), ["|"]);
    assert_eq!(session.count("facts"), 0);
}

#[test]
fn only_the_owner_brings_code_and_an_operator_publishes_it() {
    let (database, mut session) = with_query();
    let role = database.role("operator");
    let plan = format!(
        "SELECT backfill_plan('totals', NULL, '2024-01-05', 'x', publish => 'together', query => $${CANDIDATE}$$)"
    );
    session.run(&format!("SELECT pipeline_grant('totals', '{role}', 'operate')"));
    let mut operator = database.connect_as(&role);
    let failure = assert_sqlstate!(operator.try_run(&plan), "42501");
    assert!(failure.detail.contains("level \"owner\""), "{failure}");
    let plan = candidate(&mut session);
    session.run("CALL backfill_work(pools => '{backfill}')");
    assert_sqlstate!(operator.try_run(&format!("SELECT * FROM backfill_diff({plan})")), "42501");
    assert_sqlstate!(operator.publish(plan), "42501");
    session.run(&format!("GRANT SELECT, INSERT, DELETE ON totals TO {role}"));
    operator.run(&format!("SELECT * FROM backfill_diff({plan})"));
    session.run("ALTER TABLE totals ENABLE ROW LEVEL SECURITY");
    assert_sqlstate!(operator.try_run(&format!("SELECT * FROM backfill_diff({plan})")), "42501");
    session.run("ALTER TABLE totals DISABLE ROW LEVEL SECURITY");
    assert_eq!(operator.publish(plan).unwrap(), 4);
    assert_eq!(
        session.lines("SELECT published_by FROM backfill.plans WHERE published_by IS NOT NULL"),
        [role]
    );
}

#[test]
fn a_worker_of_the_plan_cannot_write_the_target_and_needs_rights_on_it() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT fence_protect('facts')");
    let role = database.role("worker");
    let (plan, tokens) = session.together("2024-01-03", "");
    // The right to work came after the plan was approved.
    session.run(&format!("SELECT pipeline_grant('daily', '{role}', 'work')"));
    let mut worker = database.connect_as(&role);
    assert_sqlstate!(worker.replace(tokens[0]), "42501");
    session.run(&format!("GRANT SELECT, INSERT, DELETE ON facts TO {role}"));
    worker.replace(tokens[0]).unwrap();
    for write in ["SELECT fence_check", "SELECT replace_partition"] {
        worker.run("BEGIN");
        let more = if write.contains("replace") { ", query => 'SELECT $1, 1'" } else { "" };
        worker.run(&format!("{write}({}{more})", tokens[1]));
        assert_sqlstate!(worker.try_run("INSERT INTO facts VALUES ('2024-01-02Z', 1)"), "BF011");
        worker.run("ROLLBACK");
    }
    assert_sqlstate!(worker.try_run(&format!("SELECT backfill_finish({})", tokens[1])), "55000");
    worker.run(&replacing_with(tokens[1], ", finish => false"));
    assert_eq!(session.plan_state(plan), "running");
    assert_eq!(
        worker.lines(&format!("SELECT backfill_finish({}, rows => 77, digest => 'mine')", tokens[1])),
        ["done"]
    );
    assert_eq!(worker.lines(&format!("SELECT backfill_finish({})", tokens[1])), ["done"], "again");
    // Nobody else reads or writes the stage.
    let other = database.role("other");
    let mut other = database.connect_as(&other);
    assert_sqlstate!(other.try_run(&format!("SELECT FROM backfill.plan_stage_{plan}")), "42501");
    assert_eq!(session.publish(plan).unwrap(), 2);
    session.assert_data_is_the_ledger();
    assert_eq!(session.lines("SELECT rows FROM backfill.slices"), ["4", "4"]);
}

#[test]
fn rows_that_are_refused_can_be_taken_into_the_stage() {
    let database = daily("");
    let mut session = database.connect();
    session
        .run("SELECT pipeline_audit('daily', 'no sevens', 'SELECT count(*) = 0 FROM slice WHERE token = 7')");
    let first = session.plan("2024-01-03", "");
    session.leases(2).iter().for_each(|lease| session.replace(lease.token).unwrap());
    assert_eq!(session.plan_state(first), "completed");
    let before = session.facts();
    let (plan, tokens) = session.together("2024-01-03", "");
    let outside = format!("SELECT replace_partition({}, query => 'SELECT $2, 1')", tokens[0]);
    assert_sqlstate!(session.try_run(&outside), "BF005");
    let smaller = |token| format!("SELECT replace_partition({token}, query => 'SELECT $1, 1')");
    assert_sqlstate!(session.try_run(&smaller(tokens[0])), "BF006");
    session.run(&format!(
        "SELECT replace_partition({}, query => 'SELECT $1, 1', allow_shrink => 'so it is')",
        tokens[0]
    ));
    let sevens = "SELECT $1 + n * interval '1 hour', 7 FROM generate_series(1, 4) n";
    assert_sqlstate!(
        session.try_run(&format!("SELECT replace_partition({}, query => $${sevens}$$)", tokens[1])),
        "BF006"
    );
    session.run(&format!(
        "CREATE TABLE mine AS SELECT * FROM facts WITH NO DATA;
         INSERT INTO mine SELECT '2024-01-02Z'::timestamptz + n * interval '1 hour', 7 FROM generate_series(1, 4) n;
         DO $$ DECLARE stage regclass := backfill_stage({0}); BEGIN EXECUTE format('INSERT INTO %s TABLE mine', stage); END $$;
         SELECT backfill_fail({0}, 'sevens', sqlstate => 'BF006')",
        tokens[1]
    ));
    assert_eq!(session.plan_state(plan), "partial");
    session.run(&format!("SELECT quarantine_accept({}, 'they are right')", tokens[1]));
    assert_eq!(session.plan_state(plan), "staged");
    assert_eq!(session.facts(), before);
    assert_eq!(session.publish(plan).unwrap(), 2);
    assert_eq!(session.facts(), ["2024-01-01|1|1", "2024-01-02|4|7"]);
    assert_eq!(
        session.lines("SELECT allow_shrink FROM backfill.slices ORDER BY window_start"),
        ["so it is", "they are right"]
    );
}

#[test]
fn audits_and_the_guard_look_once_more_at_publication() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.staged("2024-01-03", "");
    session.run("SELECT pipeline_audit('daily', 'many', 'SELECT count(*) > 4 FROM slice')");
    let failure = assert_sqlstate!(session.publish(plan), "BF006");
    assert!(failure.message.contains("\"many\""), "{failure}");
    session.run("SELECT pipeline_audit_drop('daily', 'many')");
    session.run("INSERT INTO facts SELECT '2024-01-02 05:00Z', 1 FROM generate_series(1, 10)");
    let failure = assert_sqlstate!(session.publish(plan), "BF006");
    assert!(failure.hint.contains(&format!("backfill_publish({plan}, allow_shrink")), "{failure}");
    assert_eq!(session.facts(), ["2024-01-02|10|1"]);
    assert_eq!(session.plan_state(plan), "staged");
    session.run(&format!("SELECT backfill_publish({plan}, allow_shrink => 'they were a test')"));
    session.assert_data_is_the_ledger();
    assert_eq!(
        session.lines("SELECT allow_shrink FROM backfill.slices ORDER BY window_start"),
        ["", "they were a test"]
    );
}

#[test]
fn a_window_that_a_person_closed_is_left_out_or_in_the_way() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.staged("2024-01-05", "");
    session.run("SELECT window_lock('daily', '2024-01-02', '2024-01-03', 'closed')");
    let failure = assert_sqlstate!(session.publish(plan), "55000");
    assert!(failure.detail.contains("2024-01-02 is locked"), "{failure}");
    session.run("SELECT window_unlock('daily', '2024-01-02', '2024-01-03', 'open')");
    session.run("SELECT window_skip('daily', '2024-01-03', '2024-01-04', 'not this one')");
    assert_eq!(session.publish(plan).unwrap(), 3);
    assert_eq!(session.facts().len(), 3);
    session.assert_data_is_the_ledger();
    session.run("SELECT window_unskip('daily', '2024-01-03', '2024-01-04', 'now')");
    assert_eq!(session.state("2024-01-03"), "missed");
}

#[test]
fn a_cancelled_plan_leaves_everything_as_it_was() {
    let database = daily("");
    let mut session = database.connect();
    let (plan, tokens) = session.together("2024-01-05", "");
    session.replace(tokens[0]).unwrap();
    session.replace(tokens[1]).unwrap();
    session.run(&format!("SELECT backfill_fail({}, 'no luck', retry => false)", tokens[2]));
    assert_eq!(
        session.lines(&format!("SELECT windows_freed, leases_revoked FROM backfill_cancel({plan}, 'no')")),
        ["3|1"]
    );
    assert_sqlstate!(session.replace(tokens[3]), "BF002");
    assert_eq!(session.count("facts"), 0);
    assert_eq!(
        session.lines("SELECT state FROM pipeline_windows('daily', NULL, '2024-01-05')"),
        ["missed", "missed", "failed", "missed"]
    );
    assert_sqlstate!(session.publish(plan), "55000");
    assert_eq!(session.lines("SELECT is_needed FROM backfill.plan_stages"), ["f"]);
    session.run("SELECT backfill_sweep()");
    assert_eq!(session.lines("SELECT count(*) FROM backfill.plan_stages"), ["0"]);
    assert_eq!(session.lines(&format!("SELECT to_regclass('backfill.plan_stage_{plan}')")), [""]);
    let next = session.staged("2024-01-05", "");
    assert_eq!(session.publish(next).unwrap(), 4);
    session.assert_data_is_the_ledger();
    // A staged plan goes with its pipeline.
    let last = session.staged("2024-01-05", "");
    session.run("SELECT pipeline_drop('daily')");
    assert_sqlstate!(session.publish(last), "42704");
    assert_eq!(session.lines("SELECT is_needed FROM backfill.plan_stages"), ["f"]);
}

#[test]
fn windows_that_became_due_meanwhile_are_added() {
    let database = daily("");
    let mut session = database.connect();
    let (plan, tokens) = session.together("2024-01-03", "");
    tokens.into_iter().for_each(|token| session.replace(token).unwrap());
    assert_eq!(session.lines(&format!("SELECT backfill_extend({plan})")), ["0"]);
    // As if the plan had been made when fewer windows were due.
    session.run(&format!(
        "UPDATE backfill.plan_data SET request = request || '{{\"until\": \"2024-01-06\"}}' WHERE plan_id = {plan}"
    ));
    assert_eq!(session.lines(&format!("SELECT backfill_extend({plan})")), ["3"]);
    assert_sqlstate!(session.publish(plan), "55000");
    session.leases(9).iter().for_each(|lease| session.replace(lease.token).unwrap());
    assert_eq!(session.plan_state(plan), "staged");
    assert_eq!(session.publish(plan).unwrap(), 5);
    session.assert_data_is_the_ledger();
}

#[test]
fn code_that_moved_since_is_not_overwritten() {
    let (_database, mut session) = with_query();
    session
        .run("CREATE SCHEMA first; CREATE VIEW seen AS SELECT * FROM sales; SET search_path = first, public");
    let plan: i64 = session.one(
        "SELECT plan_id FROM backfill_plan('totals', NULL, '2024-01-05', 'x', publish => 'together', expect => 4,
             query => 'SELECT $1, sum(amount) + 1, ''new'' FROM seen WHERE at >= $1 AND at < $2')",
        &[],
    );
    session.run("CALL backfill_work(pools => '{backfill}')");
    let old: String = session.one("SELECT query FROM backfill.pipelines", &[]);
    session.run("SET search_path = public");
    session.run("SELECT pipeline_alter('totals', '{\"query\": \"SELECT $1, 0, ''other''\"}')");
    let failure = assert_sqlstate!(session.publish(plan), "BF004");
    assert!(failure.detail.contains("'other'"), "{failure}");
    session.run(&format!("SELECT pipeline_alter('totals', jsonb_build_object('query', $${old}$$))"));
    session.run("CREATE VIEW first.seen AS SELECT at, amount + 1 AS amount FROM sales");
    let failure = assert_sqlstate!(session.publish(plan), "BF004");
    assert!(failure.message.contains("means something else"), "{failure}");
    assert_eq!(session.lines("SELECT sum(total) FROM totals"), ["120"]);
    session.run("DROP VIEW first.seen");
    session.publish(plan).unwrap();
    // Code that came after a publication is not taken back by reverting that.
    session.run("SELECT pipeline_alter('totals', '{\"query\": \"SELECT $1, 0, ''other''\"}')");
    session.run(&format!("SELECT backfill_revert({plan}, 'x')"));
    assert_eq!(session.lines("SELECT query FROM backfill.pipelines"), ["SELECT $1, 0, 'other'"]);
    // A draft does not outlive a change either.
    let draft: i64 = session.one(
        "SELECT plan_id FROM backfill_plan('totals', NULL, '2024-01-05', 'x', publish => 'together', query => 'SELECT $1, 1, ''x''')",
        &[],
    );
    session.run(&format!("SELECT pipeline_alter('totals', jsonb_build_object('query', $${old}$$))"));
    let failure = assert_sqlstate!(session.try_run(&format!("SELECT backfill_approve({draft}, 4)")), "BF004");
    assert!(failure.detail.contains("other code"), "{failure}");
}

#[test]
fn a_stage_that_somebody_wrote_to_or_dropped_is_not_published() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.staged("2024-01-04", "");
    let stage = format!("backfill.plan_stage_{plan}");
    session.run(&format!("DELETE FROM {stage} WHERE at = '2024-01-02Z'"));
    let failure = assert_sqlstate!(session.publish(plan), "55000");
    assert!(failure.detail.contains("staged 4 rows") && failure.detail.contains("holds 3"), "{failure}");
    assert_eq!(session.count("facts"), 0, "the first window neither");
    session.run(&format!("DROP TABLE {stage}"));
    assert_sqlstate!(session.publish(plan), "55000");
    assert_sqlstate!(session.try_run(&format!("SELECT * FROM backfill_diff({plan})")), "55000");
    session.cancel(plan);
}

#[test]
fn a_target_that_lost_the_shape_of_the_stage_takes_nothing() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.staged("2024-01-04", "");
    session.run("ALTER TABLE facts RENAME token TO other");
    let failure = assert_sqlstate!(session.publish(plan), "55000");
    assert!(failure.detail.contains("\"token\""), "{failure}");
    assert_sqlstate!(session.try_run(&format!("SELECT * FROM backfill_diff({plan})")), "55000");
    session.run("ALTER TABLE facts RENAME other TO token; ALTER TABLE facts ALTER token TYPE numeric");
    assert_sqlstate!(session.publish(plan), "55000");
    session.run("ALTER TABLE facts ALTER token TYPE bigint, ADD more text DEFAULT 'new'");
    assert_eq!(session.publish(plan).unwrap(), 3);
    assert_eq!(session.lines("SELECT more, count(*) FROM facts GROUP BY 1"), ["new|12"]);
}

#[test]
fn effects_are_held_until_the_plan_is_published() {
    let database = daily("");
    let mut session = database.connect();
    let (plan, tokens) = session.together("2024-01-03", ", effects => true");
    for token in tokens {
        session.run(&format!("BEGIN; SELECT effect_emit({token}, 'mail')"));
        session.replace(token).unwrap();
        session.run("COMMIT");
    }
    let states = "SELECT state, count(*) FROM backfill.effects GROUP BY 1";
    assert_eq!(session.lines(states), ["held|2"]);
    assert_eq!(session.lines("SELECT count(*) FROM effect_take('mail', 9)"), ["0"]);
    session.publish(plan).unwrap();
    assert_eq!(session.lines(states), ["ready|2"]);
    assert_eq!(session.lines("SELECT count(*) FROM effect_take('mail', 9)"), ["2"]);
}

#[test]
fn another_plan_cannot_have_what_is_staged() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.staged("2024-01-04", "");
    assert_eq!(
        session.lines(
            "SELECT plan_id IS NULL, d->>'reason' FROM backfill_plan('daily', NULL, '2024-01-04', 'again') p,
                 jsonb_array_elements(p.declined) d"
        ),
        [format!("t|owned by plan {plan}")]
    );
    assert_eq!(
        session.lines("SELECT windows FROM window_adopt('daily', '2024-01-02', '2024-01-03', 'v0', 'x')"),
        ["0"]
    );
    assert_eq!(session.state("2024-01-02"), "staged");
    assert_eq!(session.claim(), None);
    assert_eq!(session.lines("SELECT count(*) FROM backfill.blocked"), ["0"]);
    assert_eq!(
        session.lines(&format!("SELECT state, done, waiting FROM backfill_progress({plan})")),
        ["staged|3|0"]
    );
}

#[test]
fn rows_are_compared_as_multisets_by_their_text() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(
        "CREATE DOMAIN euros AS numeric(12, 2);
         CREATE TABLE odd (\"At the 日\" date NOT NULL, f float8, j json, p point, e euros, a int[], n numeric, gen int GENERATED ALWAYS AS (1) STORED)",
    );
    define(&mut session, "odd", "'1 day', '2024-01-01', 'odd', 'At the 日'", "");
    session.run("SELECT backfill_plan('odd', NULL, '2024-01-03', 'x', publish => 'together', expect => 2)");
    let plan = 1;
    session.run(
        "INSERT INTO odd VALUES ('2024-01-01', 'NaN', '{}', '(1,2)', 1, '{1}', 12345678901234567890.5),
                                ('2024-01-01', 1, NULL, NULL, 2, NULL, 1), ('2024-01-01', 1, NULL, NULL, 2, NULL, 1)",
    );
    let rows = [
        "VALUES ($1::date, 'NaN'::float8, '{}'::json, '(1,2)'::point, 1::numeric, '{1}'::int[], 12345678901234567890.5),
                ($1::date, 1, NULL, NULL, 2, NULL, 1.0), ($1::date, 1, NULL, NULL, 2, NULL, 1)",
        "SELECT $1::date, '-0'::float8",
    ];
    for query in rows {
        let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => '{odd}')", &[]);
        session.run(&format!("SELECT replace_partition({token}, query => $${query}$$)"));
    }
    assert_eq!(
        session.lines(
            "SELECT window_key, changed, rows_now, rows_new, gone, fresh, columns #>> '{f,now,sum}', columns #>> '{n,now,sum}',
                    columns #>> '{n,new,sum}', columns #>> '{j,new,nulls}', columns ? 'gen', columns #>> '{e,now,sum}' FROM backfill_diff(1)"
        ),
        [
            "2024-01-01|t|3|3|1|1|NaN|12345678901234567892.5|12345678901234567892.5|2|f|5.00",
            "2024-01-02|t|0|1|0|1||||1|f|",
            "|t|3|4|1|2|NaN|12345678901234567892.5|12345678901234567892.5|3|f|5.00",
        ]
    );
    assert_eq!(
        session.lines("SELECT sample->0->'now'->>'n', sample->1->'new'->>'n' FROM backfill_diff(1) LIMIT 1"),
        ["1|1.0"]
    );
    session.publish(plan).unwrap();
    assert_eq!(session.lines("SELECT count(*), sum(gen) FROM odd"), ["4|4"]);
    // Published again it changes nothing.
    session.run("SELECT backfill_plan('odd', NULL, '2024-01-03', 'x', publish => 'together', expect => 2)");
    for query in rows {
        let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => '{odd}')", &[]);
        session.run(&format!("SELECT replace_partition({token}, query => $${query}$$)"));
    }
    assert_eq!(session.lines("SELECT changed, gone, fresh, sample FROM backfill_diff(2)"), ["f|0|0|[]"; 3]);
    session.publish(2).unwrap();
    assert_eq!(
        session.lines("SELECT changed FROM backfill.kept_data ORDER BY token DESC LIMIT 2"),
        ["f", "f"]
    );
}

#[test]
fn the_target_stays_what_it_is_while_rows_for_it_are_staged() {
    let database = daily("");
    let mut session = database.connect();
    session.run("CREATE TABLE others (LIKE facts); ALTER TABLE facts ADD at2 timestamptz");
    let plan = session.staged("2024-01-03", "");
    for settings in [
        "{\"target\": \"others\"}",
        "{\"slice_column\": \"at2\"}",
        "{\"depends_on_past\": true, \"max_active\": 1}",
    ] {
        assert_sqlstate!(session.try_run(&format!("SELECT pipeline_alter('daily', '{settings}')")), "55000");
    }
    session.cancel(plan);
    session.run("SELECT pipeline_alter('daily', '{\"target\": \"others\"}')");
}

#[test]
fn columns_that_changed_their_places_keep_the_ledgers_digest_that_of_the_target() {
    let database = daily("");
    let mut session = database.connect();
    session.run("ALTER TABLE facts ADD more text");
    let plan = session.staged("2024-01-03", "");
    session.run("ALTER TABLE facts DROP token; ALTER TABLE facts ADD token bigint");
    session.publish(plan).unwrap();
    let digests = session.lines("SELECT digest FROM backfill.slices ORDER BY window_start");
    session.run("SELECT pipeline_drop('daily')");
    define(&mut session, "daily", "'1 day', '2024-01-01', 'facts', 'at'", "");
    session.run("SELECT window_adopt('daily', '2024-01-01', '2024-01-03', 'v0', 'to see the digests')");
    let adopted = "SELECT digest FROM backfill.slices WHERE code_version = 'v0' ORDER BY window_start";
    assert_eq!(session.lines(adopted), digests);
}

#[test]
fn reverting_plans_in_any_order_leaves_no_code_that_was_reverted() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run("CREATE TABLE r (day timestamptz NOT NULL, v text)");
    define(&mut session, "r", "'1 day', '2024-01-01', 'r', 'day'", "query => 'SELECT $1, ''A'''");
    session.run("SELECT backfill_plan('r', '2024-01-01', '2024-01-07', 'A', expect => 6)");
    session.run("CALL backfill_work(pipelines => '{r}')");
    let mut plans = vec![];
    for (i, code) in ["B", "C", "D"].iter().enumerate() {
        let (since, until) = (1 + 2 * i, 3 + 2 * i);
        let plan: i64 = session.one(
            &format!(
                "SELECT plan_id FROM backfill_plan('r', '2024-01-0{since}', '2024-01-0{until}', '{code}',
                     publish => 'together', query => 'SELECT $1, ''{code}''', expect => 2)"
            ),
            &[],
        );
        session.run("CALL backfill_work(pipelines => '{r}')");
        session.publish(plan).unwrap();
        plans.push(plan);
    }
    for (plan, code) in [(1, 'D'), (0, 'D'), (2, 'A')] {
        session.run(&format!("SELECT backfill_revert({}, 'x')", plans[plan]));
        let query = format!("SELECT $1, '{code}'");
        assert_eq!(session.lines("SELECT query FROM backfill.pipelines"), [query]);
    }
    assert_eq!(session.lines("SELECT DISTINCT v FROM r"), ["A"]);
}

#[test]
fn a_plan_that_came_to_nothing_can_be_ended() {
    let database = daily("");
    let mut session = database.connect();
    for skipped in [false, true] {
        let (plan, tokens) = session.together("2024-01-03", "");
        for token in tokens {
            session.run(&format!("SELECT backfill_fail({token}, 'no luck', retry => false)"));
        }
        if skipped {
            session.run("SELECT window_skip('daily', '2024-01-01', '2024-01-03', 'x')");
        }
        session.cancel(plan);
        assert_eq!(session.plan_state(plan), "cancelled");
    }
    assert_eq!(session.lines("SELECT dropped, left_over FROM backfill_sweep()"), ["2|0"]);
}

#[test]
fn a_paused_plan_is_not_published() {
    let database = daily("");
    let mut session = database.connect();
    let plan = session.staged("2024-01-03", "");
    session.run(&format!("SELECT backfill_pause({plan}, 'wait for the review')"));
    let failure = assert_sqlstate!(session.publish(plan), "55000");
    assert!(failure.hint.contains("backfill_resume"), "{failure}");
    assert_eq!(
        session.lines(&format!(
            "SELECT state, paused_by, pause_reason FROM backfill.plans WHERE plan_id = {plan}"
        )),
        ["paused|postgres|wait for the review"]
    );
    session.run(&format!("SELECT backfill_resume({plan})"));
    assert_eq!(session.publish(plan).unwrap(), 2);
}

/// A pipeline `keyed` whose rows have a key without the slice column, and the numbers that its windows shall have.
fn keyed(database: &Database) -> Session {
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    session.run("CREATE TABLE keyed (day timestamptz NOT NULL, id int PRIMARY KEY, note text)");
    define(&mut session, "keyed", "'1 day', '2024-01-01', 'keyed', 'day'", "keep_previous => '1 day'");
    session
}

fn write_keyed(session: &mut Session, numbers: &[&str], more: &str) -> i64 {
    let until = 1 + numbers.len();
    let plan = session.one(
        &format!(
            "SELECT plan_id FROM backfill_plan('keyed', NULL, '2024-01-0{until}', 'x', expect => {} {more})",
            numbers.len()
        ),
        &[],
    );
    for ids in numbers {
        session.run(&format!(
            "SELECT replace_partition(token, query => 'SELECT $1, id, ''plan {plan}'' FROM unnest(ARRAY[{ids}]) id')
             FROM backfill_claim('w', pipelines => '{{keyed}}')"
        ));
    }
    plan
}

const KEYED: &str =
    "SELECT day::date, string_agg(id::text, ',' ORDER BY id), min(note) FROM keyed GROUP BY 1 ORDER BY 1";

#[test]
fn a_key_may_move_from_one_window_to_another() {
    let database = Cluster::shared().database();
    let mut session = keyed(&database);
    write_keyed(&mut session, &["1,2", "3,4", "5"], "");
    let before = session.lines(KEYED);
    let plan = write_keyed(&mut session, &["2,3", "5,1", "4"], TOGETHER);
    assert_eq!(session.publish(plan).unwrap(), 3);
    let note = format!("plan {plan}");
    assert_eq!(
        session.lines(KEYED),
        [format!("2024-01-01|2,3|{note}"), format!("2024-01-02|1,5|{note}"), format!("2024-01-03|4|{note}")]
    );
    assert_eq!(session.lines("SELECT rows FROM backfill.slices ORDER BY window_start"), ["2", "2", "1"]);
    session.run(&format!("SELECT backfill_revert({plan}, 'x')"));
    assert_eq!(session.lines(KEYED), before);
    assert_eq!(session.lines("SELECT count(*) FROM backfill.leases"), ["0"]);
}

#[test]
fn a_key_that_is_there_twice_leaves_everything_staged() {
    let database = Cluster::shared().database();
    let mut session = keyed(&database);
    write_keyed(&mut session, &["1", "2"], "");
    let before = session.lines(KEYED);
    let plan = write_keyed(&mut session, &["2", "2"], TOGETHER);
    assert_sqlstate!(session.publish(plan), "23505");
    assert_eq!(session.lines(KEYED), before);
    assert_eq!(session.plan_state(plan), "staged");
    session.cancel(plan);
    // Rows of another table would go with rows that come again.
    let plan = write_keyed(&mut session, &["2", "1"], TOGETHER);
    session
        .run("CREATE TABLE notes (id int REFERENCES keyed ON DELETE CASCADE); INSERT INTO notes VALUES (1)");
    assert_sqlstate!(session.publish(plan), "23505");
    assert_eq!(session.count("notes"), 1);
    session.run("DROP TABLE notes");
    assert_eq!(session.publish(plan).unwrap(), 2);
}
