//! One way through everything that the extension does, with its answers, to be taken under all kinds of names
//! and settings.

use pgrx_tests::Session;

/// What the tour's objects are called.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    pub schema: &'a str,
    pub table: &'a str,
    pub column: &'a str,
    pub pipeline: &'a str,
    pub pool: &'a str,
}

pub const PLAIN: Names<'static> =
    Names { schema: "public", table: "clicks", column: "at", pipeline: "clicks", pool: "pool" };

/// A lease of the plan that the tour makes.
const LEASE: &str = "(SELECT l.token FROM backfill.leases l ORDER BY l.token LIMIT 1)";

/// The calls, each with the name that its answer is kept under. None of them uses an operator, or a function that
/// is not the extension's: they are also made where those are not PostgreSQL's.
const CALLS: [(&str, &str); 40] = [
    ("pool", "SELECT pool_define({pool}, 3)"),
    ("defined", DEFINE),
    ("unchanged", DEFINE),
    ("protected", "SELECT fence_protect({target})"),
    ("altered", r#"SELECT pipeline_alter({pipeline}, '{"max_attempts": 4, "retry_delay": "2 hours"}')"#),
    (
        "pipelines",
        "SELECT pipeline, owner, cadence, start_at, time_zone, target, slice_column, query, pool, delay, lease_for,
                max_attempts, retry_delay, expected_duration, cost_per_hour FROM backfill.pipelines",
    ),
    (
        "plan",
        "SELECT plan_id, windows, range_start, range_end, estimate, declined
         FROM backfill_plan({pipeline}, '2024-03-08', '2024-03-13', 'why', pool => {pool}, effects => true, params => '{\"a\": 1.50}')",
    ),
    ("explained", "SELECT * FROM backfill_explain(1)"),
    ("approved", "SELECT backfill_approve(1, 5)"),
    (
        "claim",
        "SELECT pipeline, window_key, window_start, window_end, time_zone, run_kind, plan_id, attempt, code_version,
                effects, target, write_to, publish, query, params, lease_for
         FROM backfill_claim('w', 2, pools => ARRAY[{pool}]::pg_catalog.text[])",
    ),
    ("heartbeat", "SELECT backfill_heartbeat({lease}) IS NULL"),
    ("checked", "SELECT pipeline, window_key, target, query FROM fence_check({lease})"),
    ("emitted", r#"SELECT effect_emit({lease}, {pipeline}, '{"n": 1.50}', {pool}), effects_allowed({lease})"#),
    (
        "replaced",
        "SELECT strategy, rows, inserted, deleted, changed, digest FROM replace_partition({lease})",
    ),
    ("taken", "SELECT pipeline, window_key, effect, key, payload, plan_id FROM effect_take({pipeline}, 2)"),
    ("delivered", "SELECT effect_done(1)"),
    (
        "effects",
        "SELECT id, pipeline, window_key, effect, key, state, payload, plan_id, done_by FROM backfill.effects",
    ),
    ("staged", "SELECT backfill_stage({lease}) IS NULL"),
    ("failed", "SELECT backfill_fail({lease}, 'boom', false)"),
    (
        "named",
        "SELECT window_key FROM backfill_claim('w', pipelines => ARRAY[{pipeline}]::pg_catalog.text[],
                                               window_key => '2024-03-12')",
    ),
    ("released", "SELECT backfill_release({lease})"),
    ("worked", "CALL backfill_work('w', pools => ARRAY[{pool}]::pg_catalog.text[], max_windows => 2)"),
    ("skipped", "SELECT window_skip({pipeline}, '2024-03-20', '2024-03-22'::pg_catalog.date, 'holiday')"),
    ("unskipped", "SELECT window_unskip({pipeline}, '2024-03-21', '2024-03-22', 'no holiday')"),
    ("locked", "SELECT window_lock({pipeline}, '2024-03-08', '2024-03-09', 'closed')"),
    ("unlocked", "SELECT window_unlock({pipeline}, '2024-03-08', '2024-03-09', 'open')"),
    ("marked", "SELECT window_mark_stale({pipeline}, '2024-03-08', '2024-03-13', 'late data')"),
    ("adopted", "SELECT windows, rows, empty_keys FROM window_adopt({pipeline}, '2024-03-20', '2024-03-23', 'old', 'why')"),
    ("marks", "SELECT window_key, window_start, mark, reason, marked_by, lift_reason FROM backfill.window_marks ORDER BY window_start, marked_at"),
    ("paused", "SELECT pipeline_pause({pipeline}, 'why')"),
    ("resumed", "SELECT oldest, plan_id FROM pipeline_resume({pipeline})"),
    (
        "windows",
        "SELECT window_key, window_start, window_end, state, code_version, plan_id, attempts, rows, why
         FROM pipeline_windows({pipeline}, '2024-03-08', '2024-03-23')",
    ),
    ("calendar", "SELECT * FROM pipeline_calendar({pipeline}, '2024-03-08', '2024-03-23') AS c (line)"),
    (
        "recorded",
        "SELECT window_key, window_start, state, code_version, plan_id, attempts, rows FROM backfill.windows
         ORDER BY window_start",
    ),
    (
        "plans",
        "SELECT plan_id, pipeline, state, range_start, range_end, reason, done, failed, running FROM backfill.plans
         ORDER BY plan_id",
    ),
    (
        "progress",
        "SELECT plan_id, pipeline, state, windows, done, failed, running, waiting, skipped, percent
         FROM backfill_progress(1)",
    ),
    (
        "runs",
        "SELECT pipeline, window_key, window_start, plan_id, attempt, worker, outcome, rows, digest, error
         FROM backfill.runs ORDER BY token",
    ),
    (
        "slices",
        "SELECT pipeline, window_key, target, code_version, rows, digest FROM backfill.slices ORDER BY window_start",
    ),
    ("unprotected", "SELECT fence_unprotect({target})"),
    ("cancelled", "SELECT windows_freed, leases_revoked, still_writing FROM backfill_cancel(1, 'why')"),
];

const DEFINE: &str = "SELECT pipeline_define({pipeline}, '1 day', '2024-03-08', target => {target}, slice_column => {column},
    time_zone => 'America/New_York', query => 'SELECT $1, ''x''', pool => {pool}, delay => '1 hour 30 minutes',
    expected_duration => '90 seconds', cost_per_hour => 2.5)";

/// Calls that fail at the end of the tour: their words are answers too.
const FAILURES: [&str; 8] = [
    "SELECT backfill_plan({pipeline}, '2024-03-10 05:00', '2024-03-13', 'why')",
    "SELECT backfill_plan({pipeline}, '2024-03-13', '2024-03-08', 'why')",
    "SELECT backfill_approve(2, 1)",
    "SELECT pipeline_alter({pipeline}, '{\"cadence\": \"1 hour\"}')",
    "SELECT pipeline_alter({pipeline}, '{\"delay\": \"-1 hour\"}')",
    "SELECT fence_protect({target}, 'forbid')",
    "SELECT window_why({pipeline}, '2024-03-10T01:30')",
    "SELECT replace_partition(1)",
];

/// Makes what the tour starts with, in a session of the superuser without special settings.
pub fn prepare(admin: &mut Session, names: &Names) {
    let (schema, table, column) = (ident(names.schema), ident(names.table), ident(names.column));
    admin.run(&format!(
        "CREATE SCHEMA IF NOT EXISTS {schema};
         CREATE TABLE {schema}.{table} ({column} timestamptz NOT NULL, \"Who\" text);
         CREATE SCHEMA answer"
    ));
}

/// Takes the tour in `session` and returns its answers, as `reader` shows them.
pub fn take(session: &mut Session, reader: &mut Session, names: &Names) -> Vec<String> {
    let target = format!("{}.{}", ident(names.schema), ident(names.table));
    let fill = |sql: &str| {
        sql.replace("{pipeline}", &literal(names.pipeline))
            .replace("{pool}", &literal(names.pool))
            .replace("{column}", &literal(names.column))
            .replace("{target}", &literal(&target))
            .replace("{lease}", LEASE)
    };
    let mut answers = vec![];
    for (name, sql) in CALLS {
        if sql.starts_with("CALL") {
            session.run(&fill(sql));
            continue;
        }
        session.run(&format!("CREATE TABLE answer.{name} AS {}", fill(sql)));
        // Tokens and the clock differ between tours.
        answers.extend(reader.lines(&format!(
            "SELECT '{name}: ' || regexp_replace(a::text, '(oken|at) [-0-9T:.+]{{10,}}', '\\1 …', 'g') FROM answer.{name} a"
        )));
    }
    answers.extend(FAILURES.map(|sql| session.failure(&fill(sql)).to_string()));
    answers
}

pub fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A literal that reads the same whatever `standard_conforming_strings` says.
pub fn literal(text: &str) -> String {
    assert!(!text.contains('\\'));
    format!("'{}'", text.replace('\'', "''"))
}
