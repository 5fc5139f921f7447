//! What must be true of the target and the ledger at any moment, and so after any crash.

use crate::support::{Calls, define};
use pgrx_tests::{Cluster, Database, Session};

/// How many windows there are, and the day after the last.
pub const WINDOWS: i64 = 100;
pub const UNTIL: &str = "2024-04-10";

/// The pipeline `daily` with a partitioned target, what plans replace being kept. What a version of its code makes of a
/// window is `slice_of`: half of the rows are the same in all versions.
pub fn history(cluster: &Cluster) -> Database {
    let database = cluster.database();
    let mut owner = database.connect();
    owner.run(
        "CREATE TABLE facts (at timestamptz PRIMARY KEY, n int NOT NULL, version int NOT NULL) PARTITION BY RANGE (at);
         CREATE TABLE january PARTITION OF facts FOR VALUES FROM (MINVALUE) TO ('2024-02-01Z');
         CREATE TABLE february PARTITION OF facts FOR VALUES FROM ('2024-02-01Z') TO ('2024-03-01Z');
         CREATE TABLE march PARTITION OF facts FOR VALUES FROM ('2024-03-01Z') TO ('2024-04-01Z');
         CREATE TABLE later PARTITION OF facts DEFAULT;
         CREATE FUNCTION slice_of(made_by int, since timestamptz) RETURNS SETOF facts LANGUAGE sql IMMUTABLE AS $$
             SELECT since + n * interval '1 hour', n, CASE n % 2 WHEN 0 THEN made_by ELSE 0 END
             FROM generate_series(0, 7 + made_by % 3) n $$;
         SELECT pool_define('backfill', 16)",
    );
    let settings = "keep_previous => '7 days', max_shrink => 1, lease_for => '2 seconds', retry_delay => '0', max_attempts => 99";
    define(&mut owner, "daily", "'1 day', '2024-01-01', 'facts', 'at'", settings);
    database
}

/// Each names what its query finds.
const NEVER: [(&str, &str); 13] = [
    (
        "rows that are not those of the slice in the ledger",
        "WITH wanted AS (SELECT f.* FROM backfill.slices s, slice_of(s.code_version::int, s.window_start) f)
         SELECT 'missing', * FROM (TABLE wanted EXCEPT ALL TABLE facts) f
         UNION ALL SELECT 'strange', * FROM (TABLE facts EXCEPT ALL TABLE wanted) f",
    ),
    (
        "slices with another number of rows",
        "SELECT s.window_key, s.rows, count(f.at) FROM backfill.slices s
         LEFT JOIN facts f ON f.at >= s.window_start AND f.at < s.window_end
         GROUP BY 1, 2 HAVING count(f.at) <> s.rows",
    ),
    (
        "lost partitions",
        "SELECT p FROM unnest('{facts,january,february,march,later}'::text[]) p
         WHERE NOT EXISTS (SELECT FROM pg_partition_tree('facts') t WHERE t.relid::text = p)",
    ),
    (
        "stages without a table, and tables without a stage",
        "SELECT c.relname, s.name
         FROM (SELECT oid, relname FROM pg_class
               WHERE relnamespace = 'backfill'::regnamespace AND relkind = 'r' AND relname ~ '^(plan_)?stage_[0-9]+$') c
         FULL JOIN (SELECT relation, 'stage_' || token AS name FROM backfill.stage_data
                    UNION ALL SELECT relation, 'plan_stage_' || plan_id FROM backfill.plan_stage_data) s
             ON s.relation = c.oid AND c.relname = s.name
         WHERE c.oid IS NULL OR s.name IS NULL",
    ),
    (
        "kept slices with another number of rows",
        "SELECT k.token, k.rows, count(r.token) FROM backfill.kept_data k LEFT JOIN backfill.kept_row_data r USING (token)
         WHERE k.dropped_at IS NULL GROUP BY 1, 2, k.changed
         HAVING count(r.token) <> CASE WHEN k.changed THEN k.rows ELSE 0 END",
    ),
    (
        "kept rows of nobody",
        "SELECT DISTINCT r.token FROM backfill.kept_row_data r
         WHERE NOT EXISTS (SELECT FROM backfill.kept_data k WHERE k.token = r.token)",
    ),
    (
        "publications of plans that kept nothing",
        "SELECT r.token FROM backfill.run_data r
         WHERE r.plan_id > 0 AND r.published_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM backfill.kept_data k WHERE k.token = r.token)",
    ),
    (
        "plans in another state than their windows and their decisions say",
        "SELECT p.plan_id, p.state, p.done, w.done FROM backfill.plans p
         CROSS JOIN LATERAL (
             SELECT count(DISTINCT r.window_key) FILTER (WHERE r.outcome = 'done') AS done, count(r.token) AS runs
             FROM backfill.runs r WHERE r.plan_id = p.plan_id) w
         WHERE p.done <> w.done OR p.state <> CASE
             WHEN EXISTS (SELECT FROM backfill.plan_events e WHERE e.plan_id = p.plan_id AND e.what = 'reverted') THEN 'reverted'
             WHEN EXISTS (SELECT FROM backfill.plan_events e WHERE e.plan_id = p.plan_id AND e.what = 'published') THEN 'published'
             WHEN w.done = p.windows THEN CASE p.publish WHEN 'together' THEN 'staged' ELSE 'completed' END WHEN w.runs > 0 THEN 'running' ELSE 'approved' END",
    ),
    (
        "slices of plans that were reverted",
        "SELECT s.window_key, s.token, p.plan_id FROM backfill.slices s
         JOIN backfill.plans p ON p.code_version = s.code_version WHERE p.state = 'reverted'",
    ),
    (
        "reverts of a part of a plan",
        "SELECT count(*) FROM backfill.runs WHERE run_kind IN ('reverted', 'withdrawn') AND outcome = 'done'
         HAVING count(*) <> (SELECT coalesce(sum(windows), 0) FROM backfill.plans WHERE state = 'reverted')",
    ),
    (
        "windows that a plan did twice",
        "SELECT plan_id, window_key FROM backfill.runs WHERE plan_id IS NOT NULL AND outcome = 'done'
         GROUP BY 1, 2 HAVING count(*) > 1",
    ),
    (
        "leases of plans that are over, and two of one window",
        "SELECT l.window_key, array_agg(l.token) FROM backfill.leases l JOIN backfill.plans p USING (plan_id)
         GROUP BY 1 HAVING count(*) > 1 OR bool_or(p.state IN ('completed', 'staged', 'published', 'reverted'))",
    ),
    (
        "runs that ended under a token below that of an earlier one",
        "SELECT window_key, token, before FROM (
             SELECT window_key, token, started_at, lag(token) OVER w AS before FROM backfill.runs
             WINDOW w AS (PARTITION BY pipeline, window_start ORDER BY started_at)) r WHERE token < before",
    ),
];

/// The stage of a plan that is not published holds the rows of its windows that are done. Another stage is not needed.
const STAGES: &str =
    "SELECT p.plan_id, s.relation::text FROM backfill.plan_stage_data s JOIN backfill.plans p USING (plan_id)
    JOIN pg_class c ON c.oid = s.relation WHERE p.state IN ('approved', 'running', 'staged')";
const STAGED: &str = "WITH wanted AS (
        SELECT f.* FROM backfill.runs r, slice_of(r.code_version::int, r.window_start) f
        WHERE r.plan_id = {plan} AND r.outcome = 'done')
    SELECT 'missing', * FROM (TABLE wanted EXCEPT ALL TABLE {stage}) f
    UNION ALL SELECT 'strange', * FROM (TABLE {stage} EXCEPT ALL TABLE wanted) f";

/// What the target holds as the extension itself digests it: the rows of the copy of another pipeline are adopted.
const DIGESTED: &str = "CREATE TABLE copied AS TABLE facts;
    ALTER TABLE copied ALTER at SET NOT NULL;
    SELECT pipeline_define('copy', '1 day', '2024-01-01', target => 'copied', slice_column => 'at')";
const DIFFER: &str = "SELECT coalesce(s.window_key, c.window_key), s.digest, c.digest
    FROM (SELECT * FROM backfill.slices WHERE pipeline = 'daily') s
    FULL JOIN (SELECT * FROM backfill.slices WHERE pipeline = 'copy') c USING (window_key)
    WHERE (s.digest, s.rows) IS DISTINCT FROM (c.digest, c.rows)";

/// How much of what is wrong is told.
const TOLD: usize = 3;

/// All that is wrong.
pub fn faults(session: &mut Session) -> Vec<String> {
    let found = |(what, mut lines): (&str, Vec<String>)| {
        let count = lines.len();
        lines.truncate(TOLD);
        (count > 0).then(|| format!("{count} {what}: {}", lines.join(", ")))
    };
    let mut faults: Vec<_> =
        NEVER.iter().filter_map(|(what, query)| found((what, session.lines(query)))).collect();
    for row in session.rows(STAGES, &[]) {
        let staged =
            STAGED.replace("{plan}", &row.get::<_, i64>(0).to_string()).replace("{stage}", row.get(1));
        faults.extend(found((
            "rows that are not those of the windows that are staged",
            session.lines(&staged),
        )));
    }
    session.run(&format!(
        "BEGIN; {DIGESTED}; SELECT window_adopt('copy', '2024-01-01', '{UNTIL}', 'any', 'test')"
    ));
    faults.extend(found(("slices with another digest", session.lines(DIFFER))));
    session.run("ROLLBACK");
    faults
}

/// The versions that the windows hold, each with the number of windows, in one statement. No version is no slice.
pub fn versions(session: &mut Session) -> Vec<(Option<i32>, i64)> {
    let rows = session.rows(
        &format!(
            "SELECT s.code_version::int, count(*) FROM pipeline_windows('daily', NULL, '{UNTIL}') w
             LEFT JOIN backfill.slices s USING (window_key) GROUP BY 1 ORDER BY 1 NULLS FIRST"
        ),
        &[],
    );
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The SQL that replaces a slice by the code of a version.
pub fn replacing(token: i64, version: i32, more: &str) -> String {
    format!("SELECT replace_partition({token}, query => 'SELECT * FROM slice_of({version}, $1)'{more})")
}

/// The next windows of a plan.
pub fn claiming(version: i32, windows: usize) -> String {
    format!("{windows}, pipelines => ARRAY['daily'], code_version => '{version}'")
}

#[test]
fn what_is_wrong_is_seen() {
    let database = history(Cluster::shared());
    let mut session = database.connect();
    let mut run = |version: i32, windows: usize| {
        let plan = session.plan("2024-01-11", &format!(", code_version => '{version}'"));
        for lease in session.try_claim(&claiming(version, windows)).unwrap() {
            session.run(&replacing(lease.token, version, ""));
        }
        plan
    };
    let [first, second, third] = [(1, 10), (2, 10), (3, 5)].map(|(version, windows)| run(version, windows));
    assert_eq!([first, second, third], [1, 2, 3]);
    session.run("SELECT backfill_stage(token) FROM backfill_claim('test', 2, pipelines => '{daily}', code_version => '3')");
    let together =
        session.draft("'2024-01-11', '2024-01-14', 'test', publish => 'together', code_version => '4'");
    session.approve(together).unwrap();
    for lease in session.try_claim(&claiming(4, 2)).unwrap() {
        session.run(&replacing(lease.token, 4, ""));
    }
    assert_eq!(faults(&mut session), [""; 0]);
    assert_eq!(versions(&mut session), [(None, 90), (Some(2), 5), (Some(3), 5)]);
    let newest = "(SELECT max(token) FROM backfill.run_data WHERE published_at IS NOT NULL)";
    let [lost, digest, staged] = ["slice in the ledger", "another digest", "windows that are staged"];
    for (harm, seen) in [
        ("UPDATE facts SET version = 1 WHERE at = '2024-01-01Z'", lost),
        ("DELETE FROM facts WHERE at = '2024-01-03 01:00Z'", lost),
        (
            "DELETE FROM facts WHERE at < '2024-01-04'; INSERT INTO facts SELECT f.* FROM generate_series('2024-01-01Z'::timestamptz, '2024-01-03Z', '1 day') d, slice_of(2, d) f",
            lost,
        ),
        ("INSERT INTO facts VALUES ('2024-03-01Z', 0, 0)", lost),
        ("UPDATE backfill.run_data SET digest = 'x' WHERE token = {newest}", digest),
        ("UPDATE backfill.run_data SET rows = rows + 1 WHERE token = {newest}", "another number"),
        ("DELETE FROM backfill.run_data WHERE token = {newest}", lost),
        ("ALTER TABLE facts DETACH PARTITION january", "lost partitions"),
        (
            "DELETE FROM backfill.stage_data WHERE token = (SELECT max(token) FROM backfill.stage_data)",
            "tables without a stage",
        ),
        (
            "DO $$ BEGIN EXECUTE 'DROP TABLE ' || (SELECT max(relation::text) FROM backfill.stage_data); END $$",
            "stages without a table",
        ),
        ("DELETE FROM backfill.kept_row_data WHERE token = {newest}", "kept slices"),
        ("DELETE FROM backfill.kept_data WHERE token = {newest}", "kept nothing"),
        (
            "UPDATE backfill.plan_data SET state = 'reverted', reverted_by = 'x', reverted_at = now(), revert_reason = 'x' WHERE plan_id = 3",
            "slices of plans that were reverted",
        ),
        (
            "UPDATE backfill.plan_data SET state = 'reverted', reverted_by = 'x', reverted_at = now(), revert_reason = 'x' WHERE plan_id = 2",
            "reverts of a part",
        ),
        (
            "INSERT INTO backfill.plan_event_data (plan_id, who, what) VALUES (3, 'x', 'reverted')",
            "plans in another state",
        ),
        ("DELETE FROM backfill.plan_stage_{together} WHERE at = '2024-01-12Z'", staged),
        ("INSERT INTO backfill.plan_stage_{together} VALUES ('2024-01-13Z', 0, 0)", staged),
        ("DELETE FROM backfill.plan_stage_data", "tables without a stage"),
        ("DROP TABLE backfill.plan_stage_{together}", "stages without a table"),
    ] {
        session.run(&format!(
            "BEGIN; {}",
            harm.replace("{newest}", newest).replace("{together}", &together.id.to_string())
        ));
        // It rolls back.
        let found = faults(&mut session);
        assert!(found.iter().any(|what| what.contains(seen)), "{harm}: {found:?}");
    }
}
