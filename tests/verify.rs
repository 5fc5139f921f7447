//! Building windows again to see whether the same comes of it.

use crate::support::{Calls, LEVELS, assert_lost, daily, define};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};

const QUERY: &str = "SELECT $1, s.item, s.total FROM sold s WHERE s.day >= $1 AND s.day < $2";

/// A pipeline `revenue` over a view of orders and items, and the first ten days of 2024 as slices of it. Nothing of it
/// starts by itself.
fn world_of(columns: &str, more: &str) -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(&format!(
        "CREATE TABLE orders (at timestamptz NOT NULL, item int NOT NULL, amount numeric NOT NULL);
         CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, vat numeric NOT NULL);
         INSERT INTO items SELECT n, 'item ' || n, 0.2 FROM generate_series(1, 9) n;
         INSERT INTO orders SELECT '2024-01-01 12:00Z'::timestamptz + d * interval '1 day', n, d * n
         FROM generate_series(0, 9) d, generate_series(1, 4) n;
         CREATE VIEW sold AS
         SELECT date_trunc('day', o.at, 'UTC') AS day, i.name AS item, sum(o.amount * (1 + i.vat)) AS total
         FROM orders o JOIN items i ON i.id = o.item GROUP BY 1, 2;
         CREATE TABLE revenue (day timestamptz NOT NULL, item text NOT NULL, total numeric {columns}) {more}"
    ));
    define(
        &mut session,
        "revenue",
        "'1 day', '2024-01-01', 'revenue', 'day'",
        &format!("query => '{QUERY}'"),
    );
    session.run("SELECT pipeline_pause('revenue', 'tests decide what runs')");
    plan(&mut session, "");
    (database, session)
}

fn world() -> (Database, Session) {
    world_of("", "")
}

/// Builds the ten windows by a plan.
fn plan(session: &mut Session, more: &str) {
    session.run(&format!(
        "SELECT backfill_plan('revenue', '2024-01-01', '2024-01-11', 'test', expect => 10 {more})"
    ));
    session.run("CALL backfill_work(pipelines => ARRAY['revenue'])");
}

/// A plan that verifies windows of `revenue`; its number and how many they are.
fn verification(session: &mut Session, sample: &str) -> (i64, i64) {
    let sql = format!(
        "SELECT coalesce(plan_id, 0), windows FROM backfill_verify('revenue', '2024-01-01', '2024-01-11', {sample})"
    );
    let rows = session.rows(&sql, &[]);
    (rows[0].get(0), rows[0].get(1))
}

/// Verifies all ten windows.
fn verify(session: &mut Session) -> i64 {
    let (plan, windows) = verification(session, "NULL");
    assert_eq!(windows, 10);
    session.run("CALL backfill_work(pipelines => ARRAY['revenue'])");
    plan
}

/// The windows that a plan found to differ, with these columns.
fn differing(session: &mut Session, plan: i64, columns: &str) -> Vec<String> {
    session.lines(&format!(
        "SELECT {columns} FROM backfill.verifications WHERE plan_id = {plan} AND NOT same ORDER BY window_start"
    ))
}

#[track_caller]
fn assert_cause(session: &mut Session, plan: i64, windows: i64, cause: &str) {
    let causes = session.lines(&format!(
        "SELECT count(*), cause FROM backfill.verifications WHERE plan_id = {plan} AND NOT same GROUP BY cause"
    ));
    assert_eq!(causes.len(), 1, "{causes:#?}");
    assert!(causes[0].starts_with(&format!("{windows}|")) && causes[0].contains(cause), "{causes:#?}");
}

/// All that a verification must leave as it is: rows where they lie, slices, what each window shows, the outbox.
fn standing(session: &mut Session, pipeline: &str, target: &str) -> Vec<String> {
    let until = "2024-01-15";
    let mut lines =
        session.lines(&format!("SELECT tableoid::regclass, ctid, xmin, * FROM {target} ORDER BY 1, 2"));
    lines.extend(session.lines("SELECT * FROM backfill.slice_history ORDER BY token"));
    lines.extend(session.lines(&format!("SELECT * FROM pipeline_windows('{pipeline}', NULL, '{until}')")));
    lines.extend(session.lines("SELECT * FROM backfill.effects ORDER BY id"));
    lines.extend(session.lines("SELECT * FROM backfill.version_mix"));
    lines.extend(session.lines("SELECT * FROM backfill.quarantine"));
    lines
}

#[test]
fn a_pure_pipeline_gives_the_same_again_and_nothing_moves() {
    let (_database, mut session) = world();
    let before = standing(&mut session, "revenue", "revenue");
    let plan = verify(&mut session);
    assert_eq!(
        session.lines(&format!(
            "SELECT count(*), bool_and(same), count(cause), sum(rows_published), sum(rows_rebuilt), sum(only_published),
                    sum(only_rebuilt), count(columns), bool_and(slice_version = code_version), bool_and(is_newest)
             FROM backfill.verifications WHERE plan_id = {plan} AND pipeline = 'revenue'"
        )),
        ["10|t|0|40|40|0|0|0|t|t"]
    );
    assert_eq!(standing(&mut session, "revenue", "revenue"), before);
    assert_eq!(
        session.lines(&format!(
            "SELECT state, publish, effects, windows, done, failed, reason FROM backfill.plans WHERE plan_id = {plan}"
        )),
        ["completed|none|f|10|10|0|verification of 10 windows"]
    );
    assert_eq!(
        session.lines("SELECT DISTINCT run_kind, outcome, rows FROM backfill.runs WHERE run_kind = 'verify'"),
        ["verify|done|4"]
    );
    assert_eq!(session.count("backfill.attention WHERE kind = 'not reproduced'"), 0);
    assert_eq!(session.one::<f64>(&format!("SELECT percent FROM backfill_progress({plan})"), &[]), 100.0);
    let page = session.lines(&format!("SELECT backfill_explain({plan})")).join("\n");
    assert!(page.contains("10 slices are compared") && !page.contains("are replaced,"), "{page}");
}

#[test]
fn a_sample_has_both_ends_and_says_what_it_leaves_out() {
    let (_database, mut session) = world();
    let (plan, windows) = verification(&mut session, "4");
    assert_eq!(windows, 4);
    let drawn: Vec<String> = session.column(
        "SELECT backfill.window_key(w.pipeline_id, w.window_start) FROM backfill.plan_window_data w
         WHERE w.plan_id = $1 ORDER BY w.window_start",
        &[&plan],
    );
    assert_eq!((drawn.len(), drawn[0].as_str(), drawn[3].as_str()), (4, "2024-01-01", "2024-01-10"));
    assert_eq!(
        session.lines(&format!(
            "SELECT reason, sum(windows) FROM backfill.plan_declined WHERE plan_id = {plan} GROUP BY reason"
        )),
        ["not in the sample|6"]
    );
    // Its windows are owned, all others can be verified.
    let (_, windows) = verification(&mut session, "10");
    assert_eq!(windows, 6);
    let (plan, windows) = verification(&mut session, "10");
    assert_eq!((plan, windows), (0, 0), "all are owned");
    let failure = session.failure("SELECT backfill_verify('revenue', NULL, NULL, 0)");
    assert_eq!(failure.sqlstate, "22023", "{failure}");
}

#[test]
fn what_cannot_be_compared_is_left_out_with_its_reason() {
    let (_database, mut session) = world();
    session.run(
        "SELECT window_lock('revenue', '2024-01-02', '2024-01-03', 'closed');
         SELECT window_skip('revenue', '2024-01-03', '2024-01-04', 'never');
         SELECT window_mark_stale('revenue', '2024-01-06', '2024-01-07', 'late');
         SELECT backfill_plan('revenue', '2024-01-04', '2024-01-06', 'test', expect => 2);
         SELECT backfill_fail(token, 'boom', false)
         FROM backfill_claim('w', pipelines => ARRAY['revenue'], window_key => '2024-01-04');",
    );
    let declined = session.lines(
        "SELECT d->>'windows', d->>'reason' FROM backfill_verify('revenue', '2024-01-01', '2024-01-13', NULL) v,
            jsonb_array_elements(v.declined) d",
    );
    assert_eq!(declined, ["1|locked", "1|skipped", "1|failed", "1|owned by plan 2", "2|no slice"]);
    assert_eq!(session.lines("SELECT windows FROM backfill.plans WHERE publish = 'none'"), ["6"]);
    session.run("SELECT backfill_cancel(3, 'test')");
    session.run("SELECT pipeline_alter('revenue', '{\"source_retention\": \"1 day\"}')");
    assert_eq!(verification(&mut session, "NULL"), (0, 0), "the source cannot answer any more");
}

#[test]
fn the_clock_in_a_view_shows() {
    let (_database, mut session) = world();
    session.run(
        "CREATE OR REPLACE VIEW sold AS
         SELECT date_trunc('day', o.at, 'UTC') AS day, i.name AS item,
                sum(o.amount) + extract(epoch FROM clock_timestamp()) AS total
         FROM orders o JOIN items i ON i.id = o.item GROUP BY 1, 2",
    );
    plan(&mut session, "");
    let plan = verify(&mut session);
    assert_eq!(
        differing(&mut session, plan, "rows_published, rows_rebuilt, only_published, only_rebuilt, columns"),
        vec!["4|4|4|4|{total}"; 10]
    );
    assert_cause(&mut session, plan, 10, IMPURE);
    assert_eq!(
        session.lines(
            "SELECT windows, plan_id = $1 FROM backfill.attention WHERE kind = 'not reproduced'"
                .replace("$1", &plan.to_string())
                .as_str()
        ),
        ["10|t"]
    );
    // Once a window is built again it is not known to differ.
    session.run("SELECT backfill_plan('revenue', '2024-01-01', '2024-01-10', 'test', expect => 9)");
    session.run("CALL backfill_work(pipelines => ARRAY['revenue'])");
    assert_eq!(session.lines("SELECT windows FROM backfill.attention WHERE kind = 'not reproduced'"), ["1"]);
}

/// What tells of the clock.
const IMPURE: &str = "(clock): clock_timestamp";

#[test]
fn a_dimension_that_changed_since_shows() {
    let (_database, mut session) = world();
    session.run("UPDATE items SET vat = 0.25 WHERE id = 3");
    let plan = verify(&mut session);
    // Nothing was sold on the first day, but 0 * 1.25 has one digit more than 0 * 1.2.
    assert_eq!(
        differing(&mut session, plan, "rows_published, rows_rebuilt, only_published, only_rebuilt, columns"),
        vec!["4|4|1|1|{total}"; 10]
    );
    assert_cause(&mut session, plan, 10, DIMENSION);
}

/// What tells of a table without a time.
const DIMENSION: &str = "(mutable-dimension): ";

#[test]
fn late_source_rows_and_lost_ones_show() {
    let (_database, mut session) = world();
    session.run(
        "INSERT INTO orders VALUES ('2024-01-03 05:00Z', 7, 1), ('2024-01-03 05:00Z', 8, 1);
         DELETE FROM orders WHERE at >= '2024-01-05' AND at < '2024-01-06' AND item = 2",
    );
    let plan = verify(&mut session);
    let found = differing(&mut session, plan, "window_key, only_published, only_rebuilt, columns, cause");
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("2024-01-03|0|2||rows came late: 2 rows"), "{found:#?}");
    assert!(found[1].starts_with("2024-01-05|1|0||rows are gone from the source: 1 rows"), "{found:#?}");
}

#[test]
fn what_somebody_changed_by_hand_shows_as_that() {
    let (_database, mut session) = world();
    session.run(
        "UPDATE revenue SET total = 1 WHERE day = '2024-01-02Z' AND item = 'item 1';
         DELETE FROM revenue WHERE day = '2024-01-04Z' AND item = 'item 2'",
    );
    let plan = verify(&mut session);
    let found = differing(&mut session, plan, "window_key, rows_published, rows_rebuilt, columns, cause");
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found[0].starts_with("2024-01-02|4|4|{total}|the slice was changed without a lease, or"),
        "{found:#?}"
    );
    assert!(
        found[1].starts_with("2024-01-04|3|4||the slice was changed without a lease: it had 4 rows"),
        "{found:#?}"
    );
    // What was changed back is the same again.
    session.run("DELETE FROM revenue WHERE day = '2024-01-04Z'");
    session.run("INSERT INTO revenue SELECT s.day, s.item, s.total FROM sold s WHERE s.day = '2024-01-04Z'");
    let plan = verify(&mut session);
    assert_eq!(differing(&mut session, plan, "window_key"), ["2024-01-02"]);
}

#[test]
fn another_version_is_named() {
    let (_database, mut session) = world();
    // What publishes nothing mixes nothing.
    session.run("SELECT pipeline_alter('revenue', '{\"on_mixture\": \"refuse\"}')");
    let old: String = session.one("SELECT pipeline_version('revenue')", &[]);
    session.run(
        "CREATE OR REPLACE VIEW sold AS
         SELECT date_trunc('day', o.at, 'UTC') AS day, i.name AS item, sum(o.amount) AS total
         FROM orders o JOIN items i ON i.id = o.item GROUP BY 1, 2",
    );
    let new: String = session.one("SELECT pipeline_version('revenue')", &[]);
    let plan = verify(&mut session);
    assert_cause(&mut session, plan, 10, &format!("another code version built it: {old}, and {new} ran now"));
    assert_cause(&mut session, plan, 10, "SELECT * FROM pipeline_explain_version('revenue')");
    // Other words for the same rows are not held against it.
    session.run(
        "CREATE OR REPLACE VIEW sold AS
         SELECT date_trunc('day', o.at, 'UTC') AS day, i.name AS item, sum(o.amount * (i.vat + 1)) AS total
         FROM orders o JOIN items i ON i.id = o.item GROUP BY 1, 2",
    );
    let plan = verify(&mut session);
    assert_eq!(differing(&mut session, plan, "window_key, cause"), [""; 0]);
    assert_eq!(
        session.lines(&format!(
            "SELECT DISTINCT slice_version <> code_version FROM backfill.verifications WHERE plan_id = {plan}"
        )),
        ["t"]
    );
}

#[test]
fn another_query_than_the_lease_has_is_named() {
    let (_database, mut session) = world();
    let given = |session: &mut Session, query: &str| {
        let (plan, _) = verification(session, "1");
        let token: i64 =
            session.one("SELECT token FROM backfill_claim('w', pipelines => ARRAY['revenue'])", &[]);
        session.run(&format!("SELECT replace_partition({token}, query => $q${query}$q$)"));
        plan
    };
    let plan = given(&mut session, "SELECT $1, 'none', 0");
    assert_cause(&mut session, plan, 1, "the call gave another query than the lease's");
    // The lease's own text is no other query.
    let plan = given(&mut session, QUERY);
    assert_eq!(differing(&mut session, plan, "cause"), [""; 0]);
    // Where the code of the pipeline did change, that is the cause.
    let changed = QUERY.replace("s.total", "s.total + 1");
    session.run(&format!("SELECT pipeline_alter('revenue', jsonb_build_object('query', $q${changed}$q$))"));
    let plan = given(&mut session, &changed);
    assert_cause(&mut session, plan, 1, "another code version built it");
}

#[test]
fn what_the_pipeline_runs_by_now_is_no_cause_of_what_ran() {
    let (_database, mut session) = world();
    session.run("CREATE VIEW gone AS SELECT now() AS at");
    let now =
        QUERY.replace("s.total", "s.total + extract(second FROM g.at)").replace("sold s", "sold s, gone g");
    let (plan, _) = verification(&mut session, "NULL");
    session.run("INSERT INTO orders VALUES ('2024-01-01 05:00Z', 7, 1), ('2024-01-02 05:00Z', 7, 1)");
    session.run(&format!("SELECT pipeline_alter('revenue', jsonb_build_object('query', $q${now}$q$))"));
    let verify_next = |session: &mut Session| {
        let token: i64 =
            session.one("SELECT token FROM backfill_claim('w', pipelines => ARRAY['revenue'])", &[]);
        session.run(&format!("SELECT replace_partition({token})"));
    };
    verify_next(&mut session);
    session.run("DROP VIEW gone");
    verify_next(&mut session);
    let causes = differing(&mut session, plan, "window_key, split_part(cause, ':', 1)");
    assert_eq!(causes, ["2024-01-01|rows came late", "2024-01-02|rows came late"]);
}

#[test]
fn the_lint_does_not_explain_rows_that_no_query_made() {
    let (_database, mut session) = world_of(", made timestamptz DEFAULT now()", "");
    let clock = QUERY.replace("s.total", "s.total, clock_timestamp()");
    session.run(&format!("SELECT pipeline_alter('revenue', jsonb_build_object('query', $q${clock}$q$))"));
    plan(&mut session, "");
    let (plan, _) = verification(&mut session, "1");
    session.run(
        "CREATE TABLE lease AS SELECT token, window_start FROM backfill_claim('w', pipelines => ARRAY['revenue']);
         CREATE TABLE mine AS SELECT r.* FROM revenue r JOIN lease l ON l.window_start = r.day;
         UPDATE mine SET total = -1;
         SELECT replace_partition(token, staging => 'mine') FROM lease",
    );
    assert_cause(&mut session, plan, 1, "unknown: the same code");
}

#[test]
fn a_slice_that_is_the_same_is_read_no_more_often_for_a_column_that_is_left_out() {
    let scans = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'revenue'";
    let reads = |columns: &str, settings: &str| {
        let (_database, mut session) = world_of(columns, "");
        session.run(&format!("SELECT pipeline_alter('revenue', '{settings}')"));
        plan(&mut session, "");
        verification(&mut session, "1");
        session.run("BEGIN");
        let before: i64 = session.one(scans, &[]);
        session
            .run("SELECT replace_partition(token) FROM backfill_claim('w', pipelines => ARRAY['revenue'])");
        assert_eq!(session.lines("SELECT same FROM backfill.verifications"), ["t"]);
        session.one::<i64>(scans, &[]) - before
    };
    assert_eq!(reads(", version text", "{\"stamp_column\": \"version\"}"), reads("", "{}"));
}

#[test]
fn a_column_that_is_not_compared_is_no_cause() {
    let (_database, mut session) = world_of(", entered timestamptz DEFAULT now()", "");
    assert_eq!(
        session.lines("SELECT rule FROM pipeline_lint('revenue') WHERE severity = 'error'"),
        ["clock"]
    );
    session.run("UPDATE orders SET amount = amount + 1");
    let plan = verify(&mut session);
    assert_cause(&mut session, plan, 10, "(mutable-dimension): public.items in view public.sold");
}

#[test]
fn code_that_changes_in_the_middle_is_refused() {
    let (_database, mut session) = world();
    let (plan, _) = verification(&mut session, "2");
    session.run(
        "CREATE OR REPLACE VIEW sold AS
         SELECT date_trunc('day', o.at, 'UTC') AS day, i.name AS item, sum(o.amount) AS total
         FROM orders o JOIN items i ON i.id = o.item GROUP BY 1, 2",
    );
    let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => ARRAY['revenue'])", &[]);
    assert_sqlstate!(session.try_run(&format!("SELECT replace_partition({token})")), "BF004");
    assert_eq!(session.count(&format!("backfill.verifications WHERE plan_id = {plan}")), 0);
}

#[test]
fn rows_of_one_key_say_which_columns_differ() {
    let (_database, mut session) = world_of(", more text, PRIMARY KEY (day, item)", "");
    session.run(
        "UPDATE items SET vat = CASE id WHEN 1 THEN 0.25 ELSE 0.2 END;
         INSERT INTO orders VALUES ('2024-01-07 05:00Z', 7, 1);
         DELETE FROM orders WHERE at >= '2024-01-07' AND at < '2024-01-08' AND item = 4",
    );
    let plan = verify(&mut session);
    let found = differing(&mut session, plan, "window_key, only_published, only_rebuilt, columns");
    assert!(found.contains(&"2024-01-07|2|2|{total}".to_owned()), "{found:#?}");
}

#[test]
fn values_that_two_rows_exchange_are_found() {
    let (_database, mut session) = world();
    session.run("UPDATE items SET name = CASE id WHEN 1 THEN 'item 2' WHEN 2 THEN 'item 1' ELSE name END");
    let plan = verify(&mut session);
    let found = differing(&mut session, plan, "only_published, only_rebuilt, columns");
    // Without a key the values of each column are the same all together.
    assert!(!found.is_empty() && found.iter().all(|line| line == "2|2|"), "{found:#?}");
}

#[test]
fn a_partitioned_target_with_quoted_names_is_verified() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(
        r#"CREATE SCHEMA "The schema";
         CREATE TABLE "The schema"."Da""ys" ("The day" date NOT NULL, "a $1" text, gone int, n int GENERATED ALWAYS AS (7) STORED)
         PARTITION BY RANGE ("The day");
         ALTER TABLE "The schema"."Da""ys" DROP COLUMN gone;
         CREATE TABLE p1 PARTITION OF "The schema"."Da""ys" FOR VALUES FROM ('2024-01-01') TO ('2024-01-03');
         CREATE TABLE p2 PARTITION OF "The schema"."Da""ys" DEFAULT;"#,
    );
    define(
        &mut session,
        "it''s",
        r#"'1 day', '2024-01-01', '"The schema"."Da""ys"', 'The day'"#,
        "query => $$SELECT $1::date, 'x'::text || d FROM generate_series(1, 3) d$$",
    );
    session.run(
        "SELECT pipeline_pause('it''s', 'test');
         SELECT backfill_plan('it''s', '2024-01-01', '2024-01-05', 'test', expect => 4)",
    );
    session.run("CALL backfill_work(pipelines => ARRAY['it''s'])");
    let before = standing(&mut session, "it''s", r#""The schema"."Da""ys""#);
    session.run("SELECT backfill_verify('it''s', NULL, '2024-01-05')");
    session.run("CALL backfill_work(pipelines => ARRAY['it''s'])");
    assert_eq!(standing(&mut session, "it''s", r#""The schema"."Da""ys""#), before);
    assert_eq!(
        session.lines("SELECT count(*), bool_and(same), sum(rows_published) FROM backfill.verifications"),
        ["4|t|12"]
    );
    session.run(r#"UPDATE "The schema"."Da""ys" SET "a $1" = 'y' WHERE "The day" = '2024-01-04'"#);
    session.run("SELECT backfill_verify('it''s', NULL, '2024-01-05')");
    session.run("CALL backfill_work(pipelines => ARRAY['it''s'])");
    assert_eq!(differing(&mut session, 3, "window_key, columns"), [r#"2024-01-04|{"a $1"}"#]);
}

/// The pipeline `daily` with slices of three days, whose rows are the hours of the day.
fn outside() -> (Database, Session) {
    let database = daily("");
    let mut session = database.connect();
    session.run("SELECT pipeline_pause('daily', 'test'), pool_define('backfill', 8)");
    session.plan("2024-01-04", "");
    for lease in session.leases(3) {
        session.run(&format!("SELECT replace_partition({}, query => $q${HOURS}$q$)", lease.token));
    }
    (database, session)
}

const HOURS: &str = "SELECT h, 7 FROM generate_series($1, $2 - interval '1 hour', '1 hour') h";

fn verify_daily(session: &mut Session) -> i64 {
    session.one("SELECT plan_id FROM backfill_verify('daily', NULL, '2024-01-04')", &[])
}

#[test]
fn a_worker_loads_what_it_built_into_the_stage_of_its_token() {
    let (_database, mut session) = outside();
    let before = standing(&mut session, "daily", "facts");
    let plan = verify_daily(&mut session);
    let leases = session.leases(3);
    let lease = &leases[0];
    assert_eq!((lease.run_kind.as_str(), lease.plan_id), ("verify", Some(plan)));
    assert_eq!(
        session.lines(&format!(
            "SELECT run_kind, effects, target, write_to, publish FROM fence_check({0})
             UNION ALL SELECT run_kind, effects, target, write_to, publish FROM backfill.leases WHERE token = {0}",
            lease.token
        )),
        ["verify|f|facts||none"; 2]
    );
    assert_eq!(session.state(&lease.key), "leased");
    let load = |token: i64, key: &str, value: i64| {
        format!(
            "SELECT backfill_stage({token});
             INSERT INTO backfill.stage_{token}
             SELECT h, {value} FROM generate_series('{key} 00:00Z'::timestamptz, '{key} 23:00Z', '1 hour') h;"
        )
    };
    session.run(&load(lease.token, &lease.key, 7));
    assert_eq!(
        session.lines(&format!(
            "SELECT strategy, rows, inserted, deleted, changed, length(digest) FROM replace_partition({})",
            lease.token
        )),
        ["none|24|0|0|f|32"]
    );
    session.run(&load(leases[1].token, &leases[1].key, 8));
    session.run(&format!("SELECT replace_partition({})", leases[1].token));
    // A query of the caller's own, and the end of the run apart.
    session.run(&format!(
        "BEGIN; SELECT replace_partition({0}, query => $q${HOURS}$q$, finish => false); COMMIT;
         SELECT backfill_finish({0}); SELECT backfill_finish({0})",
        leases[2].token
    ));
    assert_eq!(
        session.lines("SELECT window_key, same, columns FROM backfill.verifications ORDER BY 1"),
        ["2024-01-01|t|", "2024-01-02|f|{token}", "2024-01-03|t|"]
    );
    assert_eq!(session.count("backfill.stage_data"), 0);
    assert_eq!(standing(&mut session, "daily", "facts"), before);
}

#[test]
fn numbers_that_a_stage_draws_are_not_held_against_it() {
    let (_database, mut session) = outside();
    session.run("ALTER TABLE facts ADD id bigint GENERATED BY DEFAULT AS IDENTITY, ADD made timestamptz DEFAULT now()");
    session.plan("2024-01-02", "");
    let token = session.lease().token;
    let load = |token: i64| {
        format!(
            "SELECT backfill_stage({token});
             INSERT INTO backfill.stage_{token} (at, token)
             SELECT h, 7 FROM generate_series('2024-01-01Z'::timestamptz, '2024-01-01 23:00Z', '1 hour') h;
             SELECT replace_partition({token})"
        )
    };
    session.run(&load(token));
    session.run("SELECT backfill_verify('daily', NULL, '2024-01-02')");
    let token = session.lease().token;
    session.run(&load(token));
    assert_eq!(
        session.lines("SELECT same, columns FROM backfill.verifications"),
        ["f|{made}"],
        "a default that reads the clock is"
    );
}

#[test]
fn a_worker_whose_target_is_elsewhere_reports_rows_and_digest() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    define(&mut session, "daily", "'1 day', '2024-01-01'", "code_version => 'v1'");
    session.run("SELECT pipeline_pause('daily', 'test'), pool_define('backfill', 8)");
    session.plan("2024-01-05", "");
    let claim = "4, pipelines => ARRAY['daily'], code_version => 'v1'";
    let leases = session.try_claim(claim).unwrap();
    for (lease, report) in leases.iter().zip(["10, 'abc'", "10", "NULL, 'abc'", "NULL"]) {
        session.run(&format!("SELECT backfill_finish({}, {report})", lease.token));
    }
    let summary = session
        .lines("SELECT windows, declined->0->>'reason' FROM backfill_verify('daily', NULL, '2024-01-05')");
    assert_eq!(summary, ["3|neither rows nor digest of its slice are known"]);
    let tokens: Vec<i64> = session.try_claim(claim).unwrap().iter().map(|lease| lease.token).collect();
    assert_eq!(tokens.len(), 3);
    let failure = session.failure(&format!("SELECT backfill_finish({})", tokens[0]));
    assert_eq!(failure.sqlstate, "55000", "{failure}");
    let failure = session.failure(&format!("SELECT replace_partition({})", tokens[0]));
    assert_eq!(failure.sqlstate, "55000", "{failure}");
    session.run(&format!("SELECT backfill_finish({}, 10, 'abc')", tokens[0]));
    session.run(&format!("SELECT backfill_finish({}, 12, 'other')", tokens[1]));
    session.run(&format!("SELECT backfill_finish({}, 12, 'other')", tokens[2]));
    let found = session.lines(
        "SELECT same, rows_published, rows_rebuilt, only_published, split_part(cause, ':', 1)
         FROM backfill.verifications ORDER BY token",
    );
    assert_eq!(found, ["t|10|10||", "f|10|12||rows came late", "f||12||unknown"]);
    assert_eq!(
        session.lines("SELECT rows, digest FROM backfill.slices ORDER BY window_start LIMIT 1"),
        ["10|abc"]
    );
    // Another version is a cause that is known.
    session.run("SELECT pipeline_alter('daily', '{\"code_version\": \"v2\"}')");
    session.run("SELECT backfill_verify('daily', NULL, '2024-01-02')");
    let token = session.try_claim("1, pipelines => ARRAY['daily'], code_version => 'v2'").unwrap()[0].token;
    session.run(&format!("SELECT backfill_finish({token}, 10, 'abd')"));
    assert_cause(&mut session, 3, 1, "another code version built it: v1, and v2 ran now");
}

#[test]
fn rows_that_were_counted_only_are_not_the_same_as_those_of_a_digest() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    define(&mut session, "daily", "'1 day', '2024-01-01'", "");
    session.run("SELECT pipeline_pause('daily', 'test'), pool_define('backfill', 8)");
    session.plan("2024-01-03", "");
    let leases = session.leases(2);
    for (lease, report) in leases.iter().zip(["10, 'abc'", "10"]) {
        session.run(&format!("SELECT backfill_finish({}, {report})", lease.token));
    }
    session.run("SELECT backfill_verify('daily', NULL, '2024-01-03')");
    let [digested, counted] = &session.leases(2)[..] else { panic!("two windows") };
    session.run(&format!("SELECT backfill_finish({}, 10)", counted.token));
    let finish = format!("SELECT backfill_finish({}, 10)", digested.token);
    let failure = assert_sqlstate!(session.try_run(&finish), "55000");
    assert!(failure.hint.contains("rows, digest"), "{failure}");
    // Other numbers are other rows.
    session.run(&format!("SELECT backfill_finish({}, 11)", digested.token));
    assert_eq!(
        session.lines("SELECT window_key, same FROM backfill.verifications ORDER BY 1"),
        ["2024-01-01|f", "2024-01-02|t"]
    );
}

#[test]
fn a_digest_in_a_worker_s_own_words_accuses_nobody() {
    let (_database, mut session) = outside();
    session.plan("2024-01-03", "");
    let leases = session.leases(2);
    session.run(&format!(
        "SELECT backfill_finish({}, 24, md5('its rows'));
         SELECT replace_partition({1}, query => $q${HOURS}$q$, finish => false);
         SELECT backfill_finish({1}, 24, md5('its rows'))",
        leases[0].token, leases[1].token
    ));
    verify_daily(&mut session);
    for lease in session.leases(3) {
        session.run(&format!(
            "SELECT replace_partition({}, query => $q${HOURS} UNION ALL SELECT $1 + interval '30 minutes', 7$q$)",
            lease.token
        ));
    }
    assert_eq!(
        session.lines("SELECT DISTINCT split_part(cause, ':', 1) FROM backfill.verifications"),
        ["rows came late"]
    );
}

#[test]
fn a_protected_target_refuses_whoever_writes_under_a_verification() {
    let (_database, mut session) = outside();
    session.run("SELECT fence_protect('facts')");
    verify_daily(&mut session);
    let token = session.lease().token;
    for write in
        ["INSERT INTO facts VALUES ('2024-01-01 03:00Z', 1)", "DELETE FROM facts WHERE at < '2024-01-02'"]
    {
        let failure = session.failure(&format!("BEGIN; SELECT fence_check({token}); {write}"));
        assert_eq!(failure.sqlstate, "BF011", "{failure}");
        session.run("ROLLBACK");
    }
    let compare = format!("SELECT replace_partition({token}, query => $q${HOURS}$q$, finish => false)");
    let failure = session.failure(&format!("BEGIN; {compare}; DELETE FROM facts WHERE at < '2024-01-02'"));
    assert_eq!(failure.sqlstate, "BF011", "{failure}");
    session.run("ROLLBACK");
    session.run(&compare);
}

#[test]
fn effects_are_suppressed_and_the_outbox_stays_as_it_is() {
    let (_database, mut session) = outside();
    session.run("SELECT backfill_plan('daily', NULL, '2024-01-02', 'test', effects => true, expect => 1)");
    let token = session.lease().token;
    session.run(&format!(
        "SELECT effect_emit({token}, 'mail', '{{\"n\": 1}}'); SELECT replace_partition({token}, query => $q${HOURS}$q$)"
    ));
    let before = standing(&mut session, "daily", "facts");
    let plan = verify_daily(&mut session);
    let token = session.lease().token;
    let emit = |session: &mut Session, effect: &str| -> String {
        session.one(&format!("SELECT effect_emit({token}, '{effect}', '{{\"n\": 2}}')"), &[])
    };
    assert_eq!(emit(&mut session, "mail"), "ready");
    assert_eq!(emit(&mut session, "other"), "suppressed");
    assert!(!session.one::<bool>("SELECT effects_allowed($1)", &[&token]));
    session.run(&format!("SELECT replace_partition({token}, query => $q${HOURS}$q$)"));
    session.cancel(plan);
    assert_eq!(standing(&mut session, "daily", "facts"), before);
}

#[test]
fn rows_outside_the_window_are_refused_and_not_kept() {
    let (_database, mut session) = outside();
    let plan = verify_daily(&mut session);
    let before = session.lines("SELECT window_key, state, token FROM backfill.windows ORDER BY window_start");
    let token = session.lease().token;
    session.run(&format!(
        "SELECT backfill_stage({token}); INSERT INTO backfill.stage_{token} VALUES ('2024-02-01', 7)"
    ));
    assert_sqlstate!(session.try_run(&format!("SELECT replace_partition({token})")), "BF005");
    assert_eq!(
        session.one::<String>("SELECT backfill_fail($1, 'outside', sqlstate => 'BF005')", &[&token]),
        "refused"
    );
    assert_eq!(session.count("backfill.quarantine"), 0);
    assert_sqlstate!(session.try_run(&format!("SELECT quarantine_accept({token}, 'why')")), "42704");
    session.run("SELECT backfill_sweep()");
    assert_eq!(session.count("backfill.stage_data"), 0);
    assert_eq!(session.state("2024-01-01"), "done");
    session.cancel(plan);
    assert_eq!(
        session.lines("SELECT window_key, state, token FROM backfill.windows ORDER BY window_start").len(),
        before.len()
    );
}

#[test]
fn a_cancel_frees_the_windows_and_revokes_the_leases() {
    let (database, mut session) = outside();
    let before = standing(&mut session, "daily", "facts");
    let plan = verify_daily(&mut session);
    let mut worker = database.connect();
    let token = worker.lease().token;
    worker.run(&format!("BEGIN; SELECT replace_partition({token}, query => $q${HOURS}$q$)"));
    assert_eq!(
        session.lines(&format!("SELECT windows_freed, leases_revoked FROM backfill_cancel({plan}, 'test')")),
        ["3|1"]
    );
    assert_sqlstate!(worker.try_run("COMMIT"), "BF002");
    assert_eq!(standing(&mut session, "daily", "facts"), before);
    assert_eq!(session.count("backfill.verification_data"), 0);
    // The windows can be planned at once.
    session.plan("2024-01-04", "");
}

#[test]
fn failed_and_expired_attempts_are_retried_and_leave_the_window_as_it_was() {
    let (_database, mut session) = outside();
    session.run("SELECT pipeline_alter('daily', '{\"lease_for\": \"1 second\", \"max_attempts\": 2, \"retry_delay\": \"0\"}')");
    let before = standing(&mut session, "daily", "facts");
    let plan: i64 = session.one("SELECT plan_id FROM backfill_verify('daily', NULL, '2024-01-03')", &[]);
    let lease = session.lease();
    session.let_expire(lease.token);
    let again = session.lease();
    assert_eq!((again.key.as_str(), again.attempt), (lease.key.as_str(), 2));
    assert_eq!(session.fail(again.token), "failed");
    assert_eq!(session.state(&lease.key), "done");
    let other = session.lease();
    session.run(&format!("SELECT replace_partition({}, query => $q${HOURS}$q$)", other.token));
    let state = format!("SELECT state, done, failed FROM backfill.plans WHERE plan_id = {plan}");
    assert_eq!(session.lines(&state), ["partial|1|1"]);
    assert_eq!(standing(&mut session, "daily", "facts"), before);
    assert_eq!(session.one::<i64>("SELECT backfill_retry($1)", &[&plan]), 1);
    assert_eq!(session.state(&lease.key), "queued");
    let token = session.lease().token;
    session.run(&format!("SELECT replace_partition({token}, query => $q${HOURS}$q$)"));
    assert_eq!(session.lines(&state), ["completed|2|0"]);
    assert_eq!(standing(&mut session, "daily", "facts"), before);
}

#[test]
fn windows_that_are_verified_belong_to_that_plan() {
    let (database, mut session) = outside();
    let plan = verify_daily(&mut session);
    let draft = session.draft("NULL, '2024-01-04', 'test'");
    assert_eq!(draft.id, 0);
    assert_eq!(session.state("2024-01-02"), "queued");
    session.run(&format!("SELECT backfill_pause({plan}, 'test')"));
    assert!(session.claim().is_none());
    session.run(&format!("SELECT backfill_resume({plan})"));
    // Two workers, each with a window of its own, at the same time.
    let mut other = database.connect();
    let [one, two] = [session.lease(), other.lease()];
    assert_ne!(one.key, two.key);
    for (session, lease) in [(&mut session, &one), (&mut other, &two)] {
        session.run(&format!("BEGIN; SELECT replace_partition({}, query => $q${HOURS}$q$)", lease.token));
    }
    session.run("COMMIT");
    other.run("COMMIT");
    assert_eq!(session.lines("SELECT count(*), bool_and(same) FROM backfill.verifications"), ["2|t"]);
}

#[test]
fn what_publishes_refuses_a_verification() {
    let (_database, mut session) = outside();
    let plan = verify_daily(&mut session);
    for call in [
        format!("SELECT backfill_publish({plan})"),
        format!("SELECT * FROM backfill_diff({plan})"),
        format!("SELECT backfill_extend({plan})"),
    ] {
        let failure = session.failure(&call);
        assert_eq!(failure.sqlstate, "55000", "{failure}");
        assert!(failure.detail.contains("is a verification"), "{failure}");
    }
    for lease in session.leases(3) {
        session.run(&format!("SELECT replace_partition({}, query => $q${HOURS}$q$)", lease.token));
    }
    assert_sqlstate!(session.try_run(&format!("SELECT backfill_revert({plan}, 'why')")), "55000");
}

#[test]
fn a_plan_can_be_reverted_after_its_slices_were_verified() {
    let (_database, mut session) = outside();
    session.run("SELECT pipeline_alter('daily', '{\"keep_previous\": \"1 day\"}')");
    let rebuilt = session.plan("2024-01-04", ", allow_shrink => 'test'");
    for lease in session.leases(3) {
        session.replace(lease.token).unwrap();
    }
    verify_daily(&mut session);
    let tokens: Vec<i64> = session.leases(3).iter().map(|lease| lease.token).collect();
    assert_sqlstate!(session.try_run(&format!("SELECT backfill_revert({rebuilt}, 'why')")), "BF009");
    for token in tokens {
        session.run(&format!("SELECT replace_partition({token}, query => $q${HOURS}$q$)"));
    }
    assert_eq!(
        session.lines("SELECT count(*) FROM backfill.verifications WHERE is_newest AND NOT same"),
        ["3"]
    );
    assert_eq!(session.one::<i64>("SELECT backfill_revert($1, 'wrong')", &[&rebuilt]), 3);
    assert_eq!(session.count("facts WHERE token = 7"), 72);
    assert_eq!(session.lines("SELECT count(*) FROM backfill.verifications WHERE is_newest"), ["0"]);
    session.assert_one_lease_per_window();
}

#[test]
fn an_adopted_slice_is_compared_and_its_adoption_can_be_taken_back() {
    let database = daily("");
    let mut session = database.connect();
    session.run("SET timezone = 'UTC'");
    session.active_for("daily", "5 days");
    session.run(
        "INSERT INTO facts SELECT current_date - 1 + interval '1 hour' * n, 1 FROM generate_series(1, 3) n;
         SELECT window_adopt('daily', current_date - 1, current_date, 'legacy', 'it was there')",
    );
    session.run("SELECT backfill_verify('daily', current_date - 1, current_date)");
    let lease =
        session.try_claim("1, pipelines => ARRAY['daily'], pools => ARRAY['backfill']").unwrap().remove(0);
    session.run(&format!(
        "SELECT replace_partition({}, query => 'SELECT $1 + interval ''1 hour'' * n, 2 FROM generate_series(1, 3) n')",
        lease.token
    ));
    assert_eq!(session.state(&lease.key), "adopted");
    assert_cause(
        &mut session,
        1,
        1,
        "the slice was adopted: what built it is not known but by name (legacy)",
    );
    // Nothing ran there: the window starts by itself, and can be adopted again.
    session.run("SELECT window_unadopt('daily', current_date - 1, current_date, 'no')");
    assert_eq!(session.state(&lease.key), "eligible");
    session.run("BEGIN");
    assert_eq!(
        session.lines(
            "SELECT windows FROM window_adopt('daily', current_date - 1, current_date, 'legacy', 'yes')"
        ),
        ["1"]
    );
    session.run("ROLLBACK");
    let again =
        session.try_claim(&format!("1, pipelines => ARRAY['daily'], window_key => '{}'", lease.key)).unwrap();
    assert_eq!(again[0].run_kind, "scheduled");
    session.replace(again[0].token).unwrap();
    assert_eq!(session.state(&lease.key), "done");
}

#[test]
fn windows_that_depend_on_their_past_are_verified_in_order() {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run("CREATE TABLE sums (at timestamptz NOT NULL, n bigint NOT NULL)");
    define(
        &mut session,
        "sums",
        "'1 day', '2024-01-01', 'sums', 'at'",
        "depends_on_past => true,
         query => 'SELECT $1, 1 + coalesce((SELECT max(s.n) FROM sums s WHERE s.at < $1 AND $2 > $1), 0)'",
    );
    session.run(
        "SELECT pipeline_pause('sums', 'test');
         SELECT backfill_plan('sums', NULL, '2024-01-06', 'test', ordering => 'sequential', expect => 5)",
    );
    session.run("CALL backfill_work(pipelines => ARRAY['sums'])");
    let before = standing(&mut session, "sums", "sums");
    // Of so many some follow each other, whichever are drawn.
    session.run("SELECT backfill_verify('sums', NULL, '2024-01-06', 4)");
    // While it is paused, live work waits for it, and says so.
    session.run("SELECT backfill_pause(2, 'test'); SELECT pipeline_alter('sums', '{\"backlog\": 1}'); SELECT pipeline_resume('sums')");
    let why: String = session.one(
        "SELECT window_why('sums', window_key) FROM backfill.blocked WHERE pipeline = 'sums' AND blocked_by LIKE 'window%' LIMIT 1",
        &[],
    );
    assert!(
        why.contains("plan 2 has to be done with it first, or SELECT backfill_cancel(2, 'why')"),
        "{why}"
    );
    session.run("SELECT backfill_resume(2)");
    session.run("CALL backfill_work(pipelines => ARRAY['sums'])");
    assert_eq!(session.lines("SELECT count(*), bool_and(same) FROM backfill.verifications"), ["4|t"]);
    assert_eq!(standing(&mut session, "sums", "sums"), before);
    assert_eq!(
        session.lines("SELECT state, ordering FROM backfill.plans WHERE plan_id = 2"),
        ["completed|sequential"]
    );
}

#[test]
fn a_worker_may_verify_at_every_level_of_isolation() {
    let (_database, mut session) = outside();
    let plan = verify_daily(&mut session);
    for level in LEVELS {
        let token = session.lease().token;
        session.run(&format!(
            "BEGIN ISOLATION LEVEL {level}; SELECT replace_partition({token}, query => $q${HOURS}$q$); COMMIT"
        ));
    }
    assert_eq!(session.lines("SELECT count(*), bool_and(same) FROM backfill.verifications"), ["3|t"]);
    assert_eq!(
        session.lines(&format!("SELECT state FROM backfill.plans WHERE plan_id = {plan}")),
        ["completed"]
    );
    // A stale token is refused at each.
    for level in LEVELS {
        session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        let failure = session.failure(&format!("SELECT replace_partition({plan}, query => $q${HOURS}$q$)"));
        session.run("ROLLBACK");
        assert_lost(&failure, level, "BF001");
    }
}

#[test]
fn a_backend_that_dies_in_the_middle_leaves_nothing() {
    let (database, mut session) = outside();
    verify_daily(&mut session);
    let before = standing(&mut session, "daily", "facts");
    let mut worker = database.connect();
    let lease = worker.lease();
    worker.run(&format!("BEGIN; SELECT replace_partition({}, query => $q${HOURS}$q$)", lease.token));
    let pid = worker.pid();
    session.run(&format!("SELECT pg_terminate_backend({pid}, 10000)"));
    assert_eq!(session.count("backfill.verification_data"), 0);
    // The lease goes on.
    session.run(&format!("SELECT replace_partition({}, query => $q${HOURS}$q$)", lease.token));
    assert_eq!(session.lines("SELECT same FROM backfill.verifications"), ["t"]);
    assert_eq!(standing(&mut session, "daily", "facts").len(), before.len());
}

#[test]
fn verifications_are_seen_by_those_who_may_read_the_pipeline() {
    let (database, mut session) = outside();
    let [reader, other] = ["reader", "other"].map(|name| database.role(name));
    session.run(&format!("SELECT pipeline_grant('daily', '{reader}', 'read')"));
    verify_daily(&mut session);
    let token = session.lease().token;
    session.run(&format!("SELECT replace_partition({token}, query => $q${HOURS}$q$)"));
    let count = "SELECT count(*) FROM backfill.verifications";
    assert_eq!(database.connect_as(&reader).one::<i64>(count, &[]), 1);
    assert_eq!(database.connect_as(&other).one::<i64>(count, &[]), 0);
    let failure = database.connect_as(&reader).failure("SELECT backfill_verify('daily', NULL, NULL)");
    assert_eq!(failure.sqlstate, "42501", "{failure}");
}

#[test]
fn verifications_say_nothing_about_what_a_window_takes() {
    let (_database, mut session) = outside();
    let price = "SELECT estimate->>'sample', estimate->>'window_p50', estimate->>'idle'
        FROM backfill_plan('daily', '2024-01-04', '2024-01-08', 'test')";
    let before = session.lines(price);
    verify_daily(&mut session);
    for lease in session.leases(3) {
        session.run(&format!("SELECT replace_partition({}, query => $q${HOURS}$q$)", lease.token));
    }
    assert_eq!(session.lines(price), before);
}

#[test]
fn what_the_ledger_knows_is_the_cause_before_what_rows_suggest() {
    let (_database, mut session) = world();
    session.run(
        "INSERT INTO orders SELECT '2024-01-01 05:00Z'::timestamptz + d * interval '1 day', 7, 1 FROM generate_series(1, 2) d;
         SELECT window_mark_stale('revenue', '2024-01-02', '2024-01-03', 'orders came late')",
    );
    let plan = verify(&mut session);
    let found = differing(&mut session, plan, "window_key, split_part(cause, '.', 1)");
    assert_eq!(found[0], "2024-01-02|the slice is out of date: orders came late");
    assert!(found[1].starts_with("2024-01-03|rows came late"), "{found:#?}");
    assert_eq!(
        session.lines("SELECT state FROM pipeline_windows('revenue') WHERE window_key = '2024-01-02'"),
        ["stale"]
    );

    session.run(
        "SELECT backfill_plan('revenue', '2024-01-02', '2024-01-03', 'test', params => '{\"a\": 1}', expect => 1)",
    );
    session.run("CALL backfill_work(pipelines => ARRAY['revenue'])");
    session.run("DELETE FROM orders WHERE item = 7");
    let plan = verify(&mut session);
    let found = differing(&mut session, plan, "window_key, cause");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("built it with params {\"a\": 1}"), "{found:#?}");
}

#[test]
fn what_is_known_of_a_slice_is_known_where_it_was_put_back() {
    let database = daily("keep_previous => '7 days'");
    let mut session = database.connect();
    session.run("SELECT pipeline_pause('daily', 'test'), pool_define('backfill', 8)");
    session.run(
        "INSERT INTO facts SELECT '2024-01-01 01:00Z', 1;
         SELECT window_adopt('daily', '2024-01-01', '2024-01-02', 'legacy', 'it was there')",
    );
    let mut built = |more: &str| {
        let plan = session.plan("2024-01-03", more);
        for lease in session.leases(2) {
            session.replace(lease.token).unwrap();
        }
        plan
    };
    let first = built(", keys => '{2024-01-02}', params => '{\"a\": 1}'");
    let second = built("");
    session.run(&format!("SELECT backfill_revert({second}, 'wrong'), backfill_verify('daily', NULL, NULL)"));
    for lease in session.leases(2) {
        session.replace(lease.token).unwrap();
    }
    let causes = session.lines("SELECT window_key, cause FROM backfill.verifications ORDER BY 1");
    assert!(causes[0].starts_with("2024-01-01|the slice was adopted"), "{causes:#?}");
    assert!(causes[1].starts_with(&format!("2024-01-02|plan {first} built it with params")), "{causes:#?}");
}

#[test]
fn triggers_that_change_rows_are_named() {
    let (_database, mut session) = world();
    session.run(
        "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.item := upper(NEW.item); RETURN NEW; END';
         CREATE TRIGGER shout BEFORE INSERT ON revenue FOR EACH ROW EXECUTE FUNCTION shout();
         DELETE FROM revenue",
    );
    plan(&mut session, "");
    let plan = verify(&mut session);
    assert_eq!(differing(&mut session, plan, "columns"), vec!["{item}"; 10]);
    assert_cause(&mut session, plan, 10, "public.revenue has triggers");
}

#[test]
fn rows_that_do_not_fit_into_memory_are_not_counted_apart() {
    let (_database, mut session) = outside();
    session.run("SET maintenance_work_mem = '1MB'; SET work_mem = '64kB'; SELECT backfill_verify('daily', NULL, '2024-01-03')");
    let many = |value: i32| {
        format!("SELECT $1 + n * interval '1 second', {value} FROM generate_series(1, 9000) n WHERE $2 > $1")
    };
    for lease in session.leases(2) {
        session.run(&format!("SELECT replace_partition({}, query => $q${}$q$)", lease.token, many(7)));
    }
    assert_eq!(
        session.lines(
            "SELECT DISTINCT same, rows_published, rows_rebuilt, only_published, only_rebuilt, columns, cause LIKE 'unknown%'
             FROM backfill.verifications"
        ),
        ["f|24|9000||||t"]
    );
}

#[test]
fn a_comparison_whose_run_then_fails_is_not_shown() {
    let (_database, mut session) = outside();
    verify_daily(&mut session);
    let token = session.lease().token;
    session.run(&format!("SELECT replace_partition({token}, query => 'SELECT $1, 9', finish => false)"));
    assert_eq!(session.count("backfill.verifications"), 0);
    assert_eq!(session.count("backfill.slices"), 3);
    // Compared once more, what came last counts.
    session.run(&format!("SELECT replace_partition({token}, query => $q${HOURS}$q$, finish => false)"));
    session.run(&format!("SELECT backfill_finish({token})"));
    assert_eq!(session.lines("SELECT same, rows_rebuilt FROM backfill.verifications"), ["t|24"]);
    let token = session.lease().token;
    session.run(&format!(
        "SELECT replace_partition({token}, query => 'SELECT $1, 9', finish => false); SELECT backfill_fail({token}, 'why', false)"
    ));
    assert_eq!(session.count("backfill.verifications"), 1);
}
