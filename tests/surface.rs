//! The extension as SQL shows it: its objects, their names, where it can be installed, and that no session's
//! settings change what its calls mean.

use crate::calls::{CALLS, MEMBER_PROC, World, claim};
use crate::tour::{self, Names, PLAIN, ident};
use pgrx_tests::{Cluster, Database, Failure, Session, assert_sqlstate};
use std::collections::BTreeSet;

/// A routine, its arguments with their defaults, and what it returns, as the contract has them.
const ROUTINES: [(&str, &str, &str); 63] = [
    (
        "backfill_adjust",
        "plan_id bigint, concurrency integer DEFAULT NULL, priority integer DEFAULT NULL",
        "text",
    ),
    ("backfill_approve", "plan_id bigint, windows bigint", "text"),
    (
        "backfill_cancel",
        "plan_id bigint, reason text",
        "TABLE(windows_freed bigint, leases_revoked bigint, still_writing integer[])",
    ),
    (
        "backfill_claim",
        "worker text, max_windows integer DEFAULT 1, pools text[] DEFAULT NULL, pipelines text[] DEFAULT NULL, \
         code_version text DEFAULT NULL, window_key text DEFAULT NULL",
        "SETOF backfill.lease",
    ),
    ("backfill_diff", "plan_id bigint", "SETOF backfill.difference"),
    ("backfill_explain", "plan_id bigint", "SETOF text"),
    ("backfill_extend", "plan_id bigint", "bigint"),
    (
        "backfill_fail",
        "token bigint, error text, retry boolean DEFAULT true, sqlstate text DEFAULT NULL",
        "text",
    ),
    (
        "backfill_finish",
        "token bigint, rows bigint DEFAULT NULL, digest text DEFAULT NULL, metrics jsonb DEFAULT NULL",
        "text",
    ),
    ("backfill_heartbeat", "token bigint, progress jsonb DEFAULT NULL", "timestamp with time zone"),
    ("backfill_new_epoch", "reason text", "bigint"),
    ("backfill_pause", "plan_id bigint, reason text", "text"),
    (
        "backfill_plan",
        "pipeline text, since backfill.bound, until backfill.bound, reason text, mode text DEFAULT 'all', \
         keys text[] DEFAULT NULL, ordering text DEFAULT 'oldest_first', concurrency integer DEFAULT NULL, \
         pool text DEFAULT 'backfill', priority integer DEFAULT 0, canary integer DEFAULT NULL, \
         code_version text DEFAULT NULL, query text DEFAULT NULL, publish text DEFAULT 'each', \
         effects boolean DEFAULT false, on_failure text DEFAULT 'continue', cascade boolean DEFAULT false, \
         params jsonb DEFAULT NULL, override_retention text DEFAULT NULL, allow_shrink text DEFAULT NULL, \
         expect bigint DEFAULT NULL",
        "backfill.plan_summary",
    ),
    ("backfill_progress", "plan_id bigint", "backfill.progress"),
    ("backfill_publish", "plan_id bigint, allow_shrink text DEFAULT NULL", "bigint"),
    ("backfill_release", "token bigint", "text"),
    ("backfill_resume", "plan_id bigint", "text"),
    ("backfill_retry", "plan_id bigint", "bigint"),
    ("backfill_revert", "plan_id bigint, reason text", "bigint"),
    (
        "backfill_verify",
        "pipeline text, since backfill.bound, until backfill.bound, sample integer DEFAULT 10",
        "backfill.plan_summary",
    ),
    ("backfill_stage", "token bigint", "regclass"),
    ("backfill_sweep", "", "TABLE(dropped bigint, left_over bigint)"),
    (
        "backfill_work",
        "IN worker text DEFAULT NULL, IN pools text[] DEFAULT NULL, IN pipelines text[] DEFAULT NULL, \
         IN max_windows bigint DEFAULT NULL, IN until_idle boolean DEFAULT true",
        "",
    ),
    ("effect_done", "id bigint", "text"),
    ("effect_emit", "token bigint, effect text, payload jsonb DEFAULT '{}', key text DEFAULT ''", "text"),
    ("effect_take", "effect text, n integer DEFAULT 1", "SETOF backfill.effect_delivery"),
    ("effects_allowed", "token bigint", "boolean"),
    ("fence_check", "token bigint", "backfill.lease"),
    ("fence_protect", "target regclass, mode text DEFAULT 'refuse'", "text"),
    ("fence_unprotect", "target regclass", "text"),
    ("pipeline_alter", "pipeline text, settings jsonb", "text"),
    (
        "pipeline_define",
        "pipeline text, cadence interval, start_at backfill.bound, target regclass DEFAULT NULL, \
         slice_column name DEFAULT NULL, time_zone text DEFAULT 'UTC', query text DEFAULT NULL, \
         code_version text DEFAULT NULL, depends_on_past boolean DEFAULT false, backlog integer DEFAULT 3, \
         catchup integer DEFAULT 0, delay interval DEFAULT '00:00:00', pool text DEFAULT 'live', \
         max_active integer DEFAULT 1, lease_for interval DEFAULT '00:05:00', run_timeout interval DEFAULT NULL, \
         max_attempts integer DEFAULT 3, retry_delay interval DEFAULT '00:01:00', \
         source_retention interval DEFAULT NULL, expected_duration interval DEFAULT NULL, \
         cost_per_hour numeric DEFAULT NULL, max_shrink real DEFAULT 0.5, on_mixture text DEFAULT 'warn', \
         on_impure text DEFAULT 'warn', keep_previous interval DEFAULT NULL, stamp_column name DEFAULT NULL, \
         description text DEFAULT NULL",
        "text",
    ),
    ("pipeline_audit", "pipeline text, name text, query text", "text"),
    ("pipeline_audit_drop", "pipeline text, name text", "text"),
    (
        "pipeline_calendar",
        "pipeline text, since backfill.bound DEFAULT NULL, until backfill.bound DEFAULT NULL",
        "SETOF text",
    ),
    ("pipeline_drop", "pipeline text", "text"),
    (
        "pipeline_explain_version",
        "pipeline text",
        "TABLE(kind text, name text, change text, definition text, before text)",
    ),
    (
        "pipeline_lint",
        "pipeline text",
        "TABLE(rule text, severity text, object text, place text, remedy text)",
    ),
    ("pipeline_version", "pipeline text", "text"),
    ("pipeline_grant", "pipeline text, role text, level text", "text"),
    ("pipeline_pause", "pipeline text, reason text", "text"),
    (
        "pipeline_resume",
        "pipeline text",
        "TABLE(missed bigint, oldest timestamp with time zone, newest timestamp with time zone, plan_id bigint)",
    ),
    ("pipeline_rename", "pipeline text, new_name text", "text"),
    ("pipeline_revoke", "pipeline text, role text", "text"),
    (
        "pipeline_windows",
        "pipeline text, since backfill.bound DEFAULT NULL, until backfill.bound DEFAULT NULL",
        "TABLE(window_key text, window_start timestamp with time zone, window_end timestamp with time zone, \
         state text, code_version text, plan_id bigint, token bigint, attempts integer, rows bigint, \
         published_at timestamp with time zone, why text)",
    ),
    ("pool_define", "pool text, slots integer", "text"),
    ("pool_drop", "pool text", "text"),
    ("pool_pause", "pool text, reason text, revoke boolean DEFAULT false", "text"),
    ("pool_resume", "pool text", "text"),
    ("quarantine_accept", "token bigint, reason text", "backfill.replacement"),
    ("quarantine_discard", "token bigint", "bigint"),
    (
        "replace_partition",
        "token bigint, query text DEFAULT NULL, staging regclass DEFAULT NULL, strategy text DEFAULT 'auto', \
         allow_shrink text DEFAULT NULL, finish boolean DEFAULT true",
        "backfill.replacement",
    ),
    ("version_compatible", "pipeline text, old text, new text, reason text", "text"),
    ("version_compatible_drop", "pipeline text, old text, new text", "text"),
    (
        "window_adopt",
        "pipeline text, since backfill.bound, until backfill.bound, code_version text, reason text",
        "TABLE(windows bigint, rows bigint, empty_keys text[])",
    ),
    ("window_lock", "pipeline text, since backfill.bound, until backfill.bound, reason text", "bigint"),
    ("window_mark_stale", "pipeline text, since backfill.bound, until backfill.bound, reason text", "bigint"),
    ("window_skip", "pipeline text, since backfill.bound, until backfill.bound, reason text", "bigint"),
    ("window_unadopt", "pipeline text, since backfill.bound, until backfill.bound, reason text", "bigint"),
    ("window_unlock", "pipeline text, since backfill.bound, until backfill.bound, reason text", "bigint"),
    ("window_unskip", "pipeline text, since backfill.bound, until backfill.bound, reason text", "bigint"),
    ("window_why", "pipeline text, window_key text", "text"),
    ("slice_version", "target regclass, at timestamp with time zone", "text"),
];

/// Columns of views and attributes of types that the contract names. There may be more.
const COLUMNS: [(&str, &str); 29] = [
    (
        "difference",
        "window_key, window_start, changed, rows_now, rows_new, gone, fresh, digest_now, digest_new, columns, sample",
    ),
    ("effect_delivery", "id, pipeline, window_key, window_start, window_end, effect, key, payload"),
    ("effects", "id, pipeline, window_key, effect, key, state"),
    (
        "lease",
        "token, pipeline, window_key, window_start, window_end, time_zone, run_kind, plan_id, attempt, code_version, \
         effects, as_of, target, write_to, publish, query, params, lease_for, expires_at",
    ),
    (
        "leases",
        "token, pipeline, window_key, window_start, window_end, time_zone, run_kind, plan_id, attempt, code_version, \
         effects, as_of, target, write_to, publish, query, params, lease_for, expires_at",
    ),
    ("grids", "pipeline, since, until, cadence, start_at, time_zone"),
    ("kept_slices", "token, pipeline, window_key, plan_id, previous_token, rows, bytes, kept_until"),
    ("missed", "pipeline, windows, oldest, newest"),
    ("pipelines", "pipeline, owner, cadence, start_at, time_zone, target, query, code_version"),
    ("plan_declined", "plan_id, range_start, range_end, windows, reason"),
    ("plan_stages", "plan_id, pipeline, is_needed, relation, bytes, made_at"),
    ("plan_summary", "plan_id, windows, range_start, range_end, estimate, declined"),
    (
        "plans",
        "plan_id, pipeline, state, windows, range_start, range_end, reason, estimate, actual, done, failed, running, \
         eta, effects_suppressed",
    ),
    ("pools", "pool, slots, in_use, waiting, paused"),
    (
        "progress",
        "plan_id, pipeline, state, windows, done, failed, running, waiting, skipped, rate, eta, remaining, bar",
    ),
    ("audits", "pipeline, name, query, made_by, made_at"),
    ("protections", "pipeline, target, mode, unguarded"),
    ("quarantine", "token, pipeline, window_key, reason, kept_until"),
    (
        "verifications",
        "plan_id, pipeline, window_key, window_start, token, slice_token, slice_version, code_version, same, \
         rows_published, rows_rebuilt, only_published, only_rebuilt, columns, cause, verified_at, is_newest",
    ),
    ("replacement", "token, strategy, rows, inserted, deleted, changed, digest"),
    (
        "runs",
        "token, pipeline, window_key, window_start, plan_id, attempt, worker, started_at, finished_at, outcome, rows, \
         error",
    ),
    (
        "slice_history",
        "pipeline, window_key, token, code_version, plan_id, worker, as_of, rows, digest, published_at",
    ),
    (
        "slices",
        "pipeline, window_key, token, code_version, plan_id, worker, as_of, rows, digest, published_at",
    ),
    ("stages", "token, pipeline, window_key, state, relation, bytes, made_by, made_at, kept_until"),
    (
        "unfenced_writes",
        "pipeline, target, operation, role, session_role, application_name, client_addr, first_seen, last_seen, \
         transactions, rows",
    ),
    ("compatible_versions", "pipeline, old, new, reason, said_by, said_at"),
    ("version_mix", "target, versions, mixed, ranges"),
    ("versions", "pipeline, code_version, class, query"),
    (
        "windows",
        "pipeline, window_key, window_start, window_end, state, code_version, plan_id, token, attempts, rows, \
         published_at, why",
    ),
];

fn database() -> Database {
    Cluster::shared().database()
}

/// What a query about the extension itself answers.
fn ask(sql: &str) -> Vec<String> {
    database().connect().lines(sql)
}

#[test]
fn routines_have_the_arguments_and_results_of_the_contract() {
    let lines = ask(&format!(
        "SELECT p.proname,
                -- Without the OUT arguments, and without the types of the defaults.
                regexp_replace(regexp_replace(pg_get_function_arguments(p.oid), '(, |^)OUT .*$', ''),
                               '::[a-z. ]+(\\[\\])?', '', 'g'),
                CASE WHEN p.prorettype = 'record'::regtype
                     THEN 'TABLE(' || array_to_string(ARRAY(
                            SELECT a.name || ' ' || format_type(a.type, NULL)
                            FROM ROWS FROM (unnest(p.proargnames), unnest(p.proallargtypes), unnest(p.proargmodes))
                                 AS a (name, type, mode)
                            WHERE a.mode = 'o'), ', ') || ')'
                     ELSE pg_get_function_result(p.oid) END
         FROM pg_proc p WHERE {MEMBER_PROC} AND p.pronamespace = 'public'::regnamespace"
    ));
    let actual: BTreeSet<String> = lines.into_iter().collect();
    let missing: Vec<String> = ROUTINES
        .iter()
        .map(|(name, arguments, result)| format!("{name}|{arguments}|{result}"))
        .filter(|wanted| !actual.contains(wanted))
        .collect();
    assert_eq!(missing, [""; 0], "there is {actual:#?}");
}

#[test]
fn views_and_types_have_the_columns_of_the_contract() {
    let database = database();
    let mut admin = database.connect();
    let mut missing = vec![];
    for (relation, columns) in COLUMNS {
        let columns: Vec<&str> = columns.split(", ").collect();
        missing.extend(admin.column::<String>(
            "SELECT $1::text || '.' || wanted FROM unnest($2::text[]) wanted
             WHERE NOT EXISTS (SELECT FROM pg_attribute a
                               WHERE a.attrelid = to_regclass('backfill.' || $1) AND a.attname = wanted)",
            &[&relation, &columns],
        ));
    }
    assert_eq!(missing, [""; 0]);
}

#[test]
fn every_object_has_a_comment() {
    let bare = ask(
        "WITH member AS (
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_backfill')
         ), object AS (
            SELECT * FROM member
            UNION
            SELECT 'pg_trigger'::regclass, t.oid FROM pg_trigger t JOIN member m ON m.objid = t.tgrelid
            WHERE NOT t.tgisinternal
            UNION
            SELECT 'pg_class'::regclass, d.objid FROM pg_depend d JOIN member m ON m.objid = d.refobjid
            JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
            WHERE d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
            UNION
            SELECT 'pg_extension'::regclass, oid FROM pg_extension WHERE extname = 'pg_backfill'
         )
         SELECT o.description FROM object, pg_describe_object(classid, objid, 0) o (description)
         WHERE COALESCE(obj_description(objid, (SELECT relname FROM pg_class WHERE oid = classid)), '') = ''
           AND o.description !~ '(function|schema) tests'
           -- Types that are there because a table or another type is.
           AND NOT (classid = 'pg_type'::regclass AND EXISTS (
                SELECT FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
                WHERE t.oid = objid AND (t.typcategory = 'A' OR c.relkind <> 'c')))",
    );
    assert_eq!(bare, [""; 0]);
}

#[test]
fn every_argument_has_a_name() {
    // Those of a type's own functions and of casts are for nobody to name.
    let nameless = ask(&format!(
        "SELECT p.oid::regprocedure FROM pg_proc p
         WHERE {MEMBER_PROC} AND p.pronargs > 0 AND (p.proargnames IS NULL OR '' = ANY (p.proargnames))
           AND NOT EXISTS (SELECT FROM pg_cast c WHERE c.castfunc = p.oid)
           AND NOT EXISTS (SELECT FROM pg_type t WHERE p.oid IN (t.typinput, t.typoutput, t.typreceive, t.typsend))"
    ));
    assert_eq!(nameless, [""; 0]);
}

/// Functions that read a user's names or query, or write his tables, and pin what they run themselves, a procedure that commits and so
/// can carry no setting, and what has no name to look up.
const NOT_PINNED: [&str; 17] = [
    "backfill_plan",
    "backfill_publish",
    "backfill_revert",
    "backfill_work",
    "bound_in",
    "bound_out",
    "bound_recv",
    "bound_send",
    "fence_guard",
    "fence_look_first",
    "pipeline_alter",
    "pipeline_audit",
    "pipeline_define",
    "quarantine_accept",
    "replace_or_keep",
    "replace_partition",
    "window_key",
];

#[test]
fn routines_pin_their_search_path() {
    let open = ask(&format!(
        "SELECT DISTINCT proname FROM pg_proc p
         WHERE {MEMBER_PROC} AND NOT COALESCE(proconfig @> '{{\"search_path=pg_catalog, pg_temp\"}}', false)
         ORDER BY 1"
    ));
    assert_eq!(open, NOT_PINNED);
}

/// How many rows each catalog has in this database, which objects come and go with.
fn catalogs(session: &mut Session) -> Vec<String> {
    let catalogs: Vec<String> = session.column(
        "SELECT c.relname::text FROM pg_class c
         WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'r' AND NOT c.relisshared
           AND c.relname NOT LIKE 'pg_statistic%' ORDER BY 1",
        &[],
    );
    let mut held: Vec<String> = catalogs
        .iter()
        .flat_map(|name| session.lines(&format!("SELECT '{name}', count(*) FROM pg_catalog.{name}")))
        .collect();
    held.extend(session.lines(
        "SELECT 'pg_shdepend', count(*) FROM pg_shdepend
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())",
    ));
    held
}

#[test]
fn the_extension_works_in_any_schema_and_leaves_nothing_when_it_is_dropped() {
    let longest = "s".repeat(63);
    for schema in ["My Schema", "Grüße 🐘", "select", "backfill", &longest] {
        let database = Cluster::shared().empty_database();
        let mut admin = database.connect();
        tour::prepare(&mut admin, &PLAIN);
        let before = catalogs(&mut admin);
        let create = format!(
            "CREATE SCHEMA {0}; SET search_path = {0}, public; CREATE EXTENSION pg_backfill SCHEMA {0}",
            ident(schema)
        );
        admin.run(&create);
        let answers = tour::take(&mut admin, &mut database.connect(), &PLAIN);
        assert!(answers.contains(&"cancelled: (1,0,{})".to_owned()), "{schema}: {answers:#?}");
        admin.run("DROP SCHEMA answer CASCADE; CREATE SCHEMA answer; TRUNCATE clicks");
        // Rows in quarantine are a user's to drop.
        let quarantine: String = admin.one("SELECT relation::text FROM backfill.quarantine", &[]);
        admin.run(&format!(
            "DROP TABLE {quarantine}; DROP EXTENSION pg_backfill; DROP SCHEMA {}",
            ident(schema)
        ));
        assert_eq!(catalogs(&mut admin), before, "{schema}");

        // What this session remembers of the one that is gone does not mislead it.
        admin.run(&create);
        same(tour::take(&mut admin, &mut database.connect(), &PLAIN), &answers, schema);
    }
}

#[test]
fn a_schema_named_backfill_that_is_somebody_elses_is_refused() {
    let database = Cluster::shared().empty_database();
    let somebody = database.role("somebody");
    let mut admin = database.connect();
    admin.run(&format!("CREATE SCHEMA backfill AUTHORIZATION {somebody}"));
    for schema in ["backfill", "public"] {
        let sql = format!("CREATE EXTENSION pg_backfill SCHEMA {schema}");
        complete(assert_sqlstate!(admin.try_run(&sql), "42P06"));
    }
}

#[test]
fn a_role_has_in_each_database_what_it_was_granted_there() {
    let [first, second] = [(); 2].map(|()| database());
    let role = first.role("operator");
    for database in [&first, &second] {
        database.connect().run("SELECT pipeline_define('clicks', '1 day', '2024-01-01')");
    }
    first.connect().run(&format!("SELECT pipeline_grant('clicks', '{role}', 'operate')"));
    first.connect_as(&role).run("SELECT pipeline_pause('clicks', 'why')");
    assert_sqlstate!(second.connect_as(&role).try_run("SELECT pipeline_pause('clicks', 'why')"), "42501");
    assert_eq!(second.connect_as(&role).one::<i64>("SELECT count(*) FROM backfill.pipelines", &[]), 0);
}

#[test]
fn names_may_be_any_that_postgresql_takes() {
    let longest = "n".repeat(63);
    for name in ["Order \"x\" of 'y'", "ünï 🐘", " a ", "select", "a;b--c", "%s {0} $1", &longest] {
        let database = database();
        let mut admin = database.connect();
        let names = Names { schema: name, table: name, column: name, pipeline: name, pool: name };
        tour::prepare(&mut admin, &names);
        // Roles are shared by all databases, and not every name is one that the test support can drop.
        let role = ident(name);
        admin.run(&format!("CREATE ROLE {role} SUPERUSER; SET ROLE {role}"));
        let answers = tour::take(&mut admin, &mut database.connect(), &names);
        assert!(answers.contains(&"cancelled: (1,0,{})".to_owned()), "{name}: {answers:#?}");
        admin.run("RESET ROLE");
        admin.one::<String>("SELECT pipeline_grant($1, $1, 'work')", &[&name]);
        admin.one::<String>("SELECT pipeline_revoke($1, $1)", &[&name]);
        admin.run(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"));
    }
}

/// Gives every operator, function, type and table of PostgreSQL a namesake in the schema `evil` that raises.
const SET_TRAPS: &str = r#"
    CREATE SCHEMA evil;
    SET search_path = pg_catalog;
    SET check_function_bodies = off;
    DO $do$
    DECLARE
        trap text := $$ BEGIN RAISE 'trapped'; END $$;
        f record;
    BEGIN
        FOR f IN
            SELECT o.oid, o.oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result
            FROM pg_operator o WHERE o.oprkind = 'b' AND NOT EXISTS (
                SELECT FROM pg_type t WHERE t.oid IN (o.oprleft, o.oprright, o.oprresult)
                  AND t.typtype = 'p' AND t.typname !~ '^any(element|array|nonarray|compatible)')
        LOOP
            EXECUTE format('CREATE FUNCTION evil.trap_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L',
                           f.oid, f.l, f.r, f.result, trap);
            EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.trap_%s)',
                           f.oprname, f.l, f.r, f.oid);
        END LOOP;
        FOR f IN
            SELECT p.proname, oidvectortypes(p.proargtypes) AS args, p.prorettype::regtype AS result, p.proretset
            FROM pg_proc p
            WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind <> 'p' AND p.proargmodes IS NULL
              AND NOT EXISTS (
                SELECT FROM pg_type t WHERE (t.oid = ANY (p.proargtypes) OR t.oid = p.prorettype)
                  AND t.typtype = 'p' AND t.typname !~ '^any(element|array|nonarray|compatible)')
        LOOP
            EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS %L',
                           f.proname, f.args, CASE WHEN f.proretset THEN 'SETOF' END, f.result, trap);
        END LOOP;
        FOR f IN
            SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
        LOOP
            EXECUTE format('CREATE TABLE evil.%I (trapped int)', f.relname);
        END LOOP;
        FOR f IN
            SELECT typname FROM pg_type
            WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typcategory <> 'A'
              AND to_regtype('evil.' || quote_ident(typname)) IS NULL
        LOOP
            EXECUTE format('CREATE DOMAIN evil.%I AS pg_catalog.%I CHECK (false)', f.typname, f.typname);
        END LOOP;
    END
    $do$"#;

#[test]
fn a_hostile_search_path_changes_nothing() {
    let [plain, hostile] = [(); 2].map(|()| database());
    for database in [&plain, &hostile] {
        tour::prepare(&mut database.connect(), &PLAIN);
    }
    hostile.connect().run(SET_TRAPS);
    let mut session = hostile.connect();
    session.run("SET search_path = evil, pg_catalog, public");
    for trap in ["SELECT 1 = 1", "SELECT 'a' || 'b'", "SELECT now()", "SELECT lower('A')", "SELECT count(*)"]
    {
        session.failure(trap);
    }
    session.failure("SELECT 'a'::text; SELECT FROM pg_class WHERE relname IS NULL");

    let answers = tour::take(&mut session, &mut hostile.connect(), &PLAIN);
    let expected = tour::take(&mut plain.connect(), &mut plain.connect(), &PLAIN);
    same(answers, &expected, "hostile");
}

/// Asserts that two tours went alike.
#[track_caller]
fn same(answers: Vec<String>, expected: &[String], what: &str) {
    let pairs = answers.iter().zip(expected);
    let differing: Vec<_> = pairs.filter(|(answer, expected)| answer != expected).collect();
    assert!(differing.is_empty(), "{what}: {differing:#?}");
    assert_eq!(answers.len(), expected.len(), "{what}");
}

/// Settings that a session may have for reasons of its own.
const SESSIONS: [(&str, &[&str]); 6] = [
    ("dates", &["DateStyle = 'German, DMY'", "IntervalStyle = iso_8601", "TimeZone = 'Pacific/Apia'"]),
    (
        "more dates",
        &["DateStyle = 'SQL, MDY'", "IntervalStyle = sql_standard", "TimeZone = 'Asia/Kathmandu'"],
    ),
    (
        "texts",
        &[
            "standard_conforming_strings = off",
            "escape_string_warning = off",
            "bytea_output = escape",
            "quote_all_identifiers = on",
            "extra_float_digits = -15",
            "array_nulls = off",
            "transform_null_equals = on",
        ],
    ),
    (
        "planner",
        &[
            "enable_seqscan = off",
            "enable_indexscan = off",
            "enable_bitmapscan = off",
            "enable_nestloop = off",
            "enable_hashjoin = off",
            "enable_sort = off",
            "plan_cache_mode = force_generic_plan",
            "from_collapse_limit = 1",
            "join_collapse_limit = 1",
            "row_security = off",
        ],
    ),
    ("serializable", &["default_transaction_isolation = serializable", "synchronous_commit = off"]),
    (
        "repeatable read",
        &["default_transaction_isolation = 'repeatable read'", "default_transaction_deferrable = on"],
    ),
];

#[test]
fn the_settings_of_a_session_change_no_answer() {
    let answers = |settings: &[&str]| {
        let database = database();
        tour::prepare(&mut database.connect(), &PLAIN);
        let mut session = database.connect();
        settings.iter().for_each(|setting| session.run(&format!("SET {setting}")));
        tour::take(&mut session, &mut database.connect(), &PLAIN)
    };
    let expected = answers(&[]);
    for (what, settings) in SESSIONS {
        same(answers(settings), &expected, what);
    }
}

/// Asserts that an error tells the values and the call that helps.
#[track_caller]
fn complete(failure: Failure) {
    assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{failure}");
}

/// For each error its code, what leads to it, and the call that gets it. The world is that of
/// calls.rs.
const ERRORS: [(&str, &str, &str); 106] = [
    ("BF001", "", "SELECT backfill_finish(1)"),
    ("BF001", "SELECT backfill_fail({token}, 'boom')", "SELECT backfill_heartbeat({token})"),
    ("BF001", "SELECT replace_partition({token})", "SELECT fence_check({token})"),
    ("BF002", "SELECT backfill_cancel(1, 'why')", "SELECT fence_check({token})"),
    (
        "BF002",
        "SELECT window_skip('clicks', '2024-01-01', '2024-01-02', 'why')",
        "SELECT replace_partition({token})",
    ),
    (
        "BF002",
        "SELECT window_lock('clicks', '2024-01-01', '2024-01-02', 'why')",
        "SELECT backfill_heartbeat({token})",
    ),
    (
        "BF002",
        "SELECT window_lock('clicks', '2024-01-01', '2024-01-02', 'why');
         SELECT window_unlock('clicks', '2024-01-01', '2024-01-02', 'why')",
        "SELECT backfill_release({token})",
    ),
    ("BF002", "SELECT backfill_new_epoch('why')", "SELECT backfill_heartbeat({token})"),
    ("BF001", "SELECT backfill_release({token})", "SELECT effect_emit({token}, 'mail')"),
    ("BF001", "", "SELECT effects_allowed(1)"),
    ("BF002", "SELECT backfill_cancel(1, 'why')", "SELECT effect_emit({token}, 'mail')"),
    ("BF003", "", "SELECT backfill_approve(2, 3)"),
    ("BF003", "", "SELECT backfill_plan('clicks', '2024-03-01', '2024-03-02', 'why', expect => 2)"),
    (
        "BF004",
        "SELECT window_skip('clicks', '2024-02-01', '2024-02-02', 'why')",
        "SELECT backfill_approve(2, 2)",
    ),
    (
        "BF004",
        "SELECT pipeline_alter('clicks', '{\"query\": \"SELECT $2, NULL\"}')",
        "SELECT backfill_approve(2, 2)",
    ),
    (
        "BF004",
        "SELECT pipeline_alter('clicks', '{\"cadence\": \"1 hour\", \"switch_at\": \"2024-03-01\"}')",
        "SELECT backfill_approve(2, 2)",
    ),
    ("BF005", "", "SELECT replace_partition({token}, query => 'SELECT $2, NULL')"),
    (
        "BF006",
        "INSERT INTO clicks VALUES ('2024-01-01')",
        "SELECT replace_partition({token}, query => 'SELECT $1, NULL WHERE false')",
    ),
    (
        "BF009",
        "SELECT backfill_plan('clicks', '2024-02-01', '2024-02-03', 'why', expect => 2)",
        "SELECT backfill_approve(2, 2)",
    ),
    (
        "BF010",
        "",
        "SELECT pipeline_alter('clicks', '{\"query\": \"SELECT now()\", \"on_impure\": \"refuse\"}')",
    ),
    ("BF011", "SELECT fence_protect('clicks')", "INSERT INTO clicks VALUES ('2024-03-01')"),
    (
        "BF011",
        "SELECT fence_protect('clicks'); SELECT fence_check({token})",
        "INSERT INTO clicks VALUES (now())",
    ),
    ("BF011", "SELECT fence_protect('clicks')", "TRUNCATE clicks"),
    ("22004", "", "SELECT fence_protect(NULL)"),
    ("22023", "", "SELECT fence_protect('clicks', 'forbid')"),
    ("22023", "CREATE TABLE apart (at timestamptz)", "SELECT fence_protect('apart')"),
    ("0A000", "", "SELECT fence_protect('backfill.runs')"),
    ("BF012", "", "SELECT backfill_plan('clicks', '2024-03-01 05:00', '2024-03-02', 'why')"),
    ("BF012", "", "SELECT window_skip('clicks', '2024-03-01', '2024-03-01 23:00', 'why')"),
    (
        "BF012",
        "",
        "SELECT pipeline_alter('clicks', '{\"cadence\": \"1 hour\", \"switch_at\": \"2024-03-01 05:30\"}')",
    ),
    ("BF012", "", "SELECT pipeline_alter('clicks', '{\"start_at\": \"2023-03-01 05:30\"}')"),
    ("BF012", "", "SELECT window_adopt('clicks', '2024-03-01 05:00', NULL, 'legacy', 'why')"),
    ("22004", "", "SELECT backfill_stage(NULL)"),
    ("22004", "", "SELECT quarantine_accept(NULL, 'why')"),
    ("22004", "", "SELECT pipeline_audit('clicks', 'some', NULL)"),
    ("22023", "", "SELECT pipeline_audit('clicks', 'some', 'SELECT 1')"),
    ("42704", "", "SELECT pipeline_audit_drop('clicks', 'none')"),
    ("22023", "", "SELECT version_compatible('clicks', 'v1', 'v2', ' ')"),
    ("42704", "", "SELECT version_compatible('clicks', 'v1', 'none', 'why')"),
    ("42704", "", "SELECT version_compatible_drop('clicks', 'v1', 'none')"),
    ("22023", "", "SELECT quarantine_accept({kept}, ' ')"),
    ("42704", "", "SELECT quarantine_accept({token}, 'why')"),
    ("42704", "", "SELECT quarantine_discard({token})"),
    ("22004", "", "SELECT effect_emit({token}, 'mail', NULL)"),
    ("22004", "", "SELECT effect_emit({token}, 'mail', key => NULL)"),
    ("22004", "", "SELECT effect_done(NULL)"),
    ("22023", "", "SELECT effect_emit({token}, ' ')"),
    ("22023", "", "SELECT effect_emit({token}, 'mail', key => repeat('x', 1001))"),
    ("22023", "", "SELECT effect_take(NULL)"),
    ("22023", "", "SELECT backfill_plan('clicks', '2024-03-01', '2024-03-02', 'why', canary => 0)"),
    ("22023", "", "SELECT backfill_adjust(1, 0)"),
    ("22023", "", "SELECT pool_pause('live', ' ')"),
    ("42704", "", "SELECT pool_pause('nowhere', 'why')"),
    (
        "54000",
        "SELECT pipeline_define('seconds', '1 second', '2020-01-01')",
        "SELECT backfill_plan('seconds', NULL, NULL, 'why')",
    ),
    ("55000", "", "SELECT pool_drop('live')"),
    ("55000", "", "SELECT backfill_retry(2)"),
    ("55000", "", "SELECT backfill_publish(1)"),
    ("22004", "", "SELECT backfill_publish(NULL)"),
    ("42704", "", "SELECT backfill_publish(99)"),
    ("55000", "", "SELECT backfill_diff(1)"),
    (
        "55000",
        "SELECT window_lock('clicks', '2024-02-11', '2024-02-12', 'why')",
        "SELECT backfill_publish(4)",
    ),
    (
        "BF006",
        "SELECT pipeline_audit('clicks', 'any', 'SELECT false FROM slice')",
        "SELECT backfill_publish(4)",
    ),
    ("55000", "DELETE FROM backfill.plan_stage_4", "SELECT backfill_publish(4)"),
    ("55000", "ALTER TABLE clicks RENAME who TO what", "SELECT backfill_diff(4)"),
    (
        "0A000",
        "",
        "SELECT backfill_plan('clicks', '2024-03-01', '2024-03-02', 'why', ordering => 'sequential', publish => 'together')",
    ),
    ("22023", "", "SELECT backfill_verify('clicks', NULL, NULL, 0)"),
    ("42704", "", "SELECT backfill_verify('nowhere', NULL, NULL)"),
    ("55000", "", "SELECT backfill_revert(2, 'why')"),
    ("22023", "", "SELECT backfill_revert(3, ' ')"),
    ("22004", "", "SELECT backfill_revert(NULL, 'why')"),
    ("42704", "", "SELECT backfill_revert(99, 'why')"),
    (
        "55000",
        "SELECT window_lock('clicks', '2024-02-10', '2024-02-11', 'why')",
        "SELECT backfill_revert(3, 'why')",
    ),
    ("55000", "SELECT backfill_revert(3, 'why')", "SELECT backfill_revert(3, 'why')"),
    ("22023", "", "SELECT pipeline_alter('clicks', '{\"keep_previous\": \"0\"}')"),
    ("22023", "", "SELECT effect_take('mail', 0)"),
    ("22023", "", "SELECT backfill_plan('clicks', '2024-03-02', '2024-03-01', 'why')"),
    ("22023", "", "SELECT backfill_plan('clicks', '2024-03-01', '2024-03-02', ' ')"),
    ("22023", "", "SELECT backfill_plan('clicks', 'tomorrow', '2024-03-02', 'why')"),
    ("22023", "", "SELECT backfill_plan('clicks', 'infinity', '2024-03-02', 'why')"),
    ("22023", "", "SELECT backfill_plan('clicks', '2024-03-01', '2024-03-02', 'why', concurrency => 0)"),
    ("22023", "", "SELECT backfill_plan('clicks', '2024-03-01', '2024-03-02', 'why', mode => 'most')"),
    ("22023", "", "SELECT backfill_plan('clicks', '2024-03-01', '2024-03-02', 'why', code_version => 'v1')"),
    ("22023", "", "SELECT backfill_plan('clicks', NULL, NULL, 'why', keys => ARRAY['nowhere'])"),
    ("22023", "", "SELECT backfill_claim(' ')"),
    ("22023", "", "SELECT backfill_claim('w', 0)"),
    ("22023", "", "SELECT backfill_claim('w', window_key => '2024-01-01')"),
    ("22023", "", "SELECT window_why('clicks', 'nowhere')"),
    ("22023", "", "SELECT window_lock('clicks', '2024-03-01', '2024-03-02', '')"),
    ("22023", "", "SELECT window_adopt('clicks', '2024-03-01', '2024-03-02', ' ', 'why')"),
    ("22023", "", "SELECT pipeline_define('p', '1 day 1 hour', '2024-01-01')"),
    ("22023", "", "SELECT pipeline_define('p', '1 day', '2024-01-01', time_zone => 'Mars')"),
    ("22023", "", "SELECT pipeline_define('clicks', '2 days', '2024-01-01')"),
    ("22023", "", "SELECT pipeline_alter('clicks', '{\"cadence\": \"1 hour\"}')"),
    ("22023", "", "SELECT pipeline_rename('clicks', ' ')"),
    ("22023", "", "SELECT pipeline_grant('clicks', 'postgres', 'rule')"),
    ("22023", "", "SELECT replace_partition({token}, query => 'DELETE FROM clicks')"),
    ("42704", "", "SELECT pipeline_pause('nothing', 'why')"),
    ("42704", "", "SELECT pipeline_grant('clicks', 'nobody at all', 'work')"),
    ("42704", "", "SELECT backfill_cancel(99, 'why')"),
    ("42704", "", "SELECT effect_done(99)"),
    ("42704", "", "SELECT backfill_claim('w', pools => ARRAY['nowhere'])"),
    (
        "42710",
        "",
        "SELECT pipeline_define('p', '1 day', '2024-01-01', target => 'clicks', slice_column => 'at')",
    ),
    ("42710", "SELECT pipeline_define('p', '1 day', '2024-01-01')", "SELECT pipeline_rename('clicks', 'p')"),
    ("0A000", "", "SELECT replace_partition({token}, strategy => 'swap')"),
    ("55000", "SELECT backfill_cancel(2, 'why')", "SELECT backfill_approve(2, 2)"),
    (
        "55000",
        "SELECT effect_emit({token}, 'held')",
        "SELECT effect_done(id) FROM backfill.effects WHERE effect = 'held'",
    ),
];

#[test]
fn every_error_has_its_code_the_values_and_the_call_that_helps() {
    let world = World::new(database());
    let mut session = world.database.connect();
    let fill = |sql: &str| world.fill(sql);
    for (sqlstate, before, call) in ERRORS {
        session.run(&format!("BEGIN; {}", fill(before)));
        let failure = assert_sqlstate!(session.try_run(&fill(call)), sqlstate);
        assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{call}\n{failure}");
        session.run("ROLLBACK");
    }
}

#[test]
fn a_lease_newer_than_the_transactions_snapshot_is_refused_in_words() {
    let world = World::new(database());
    let mut session = world.database.connect();
    session.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
    let token = claim(&mut world.database.connect(), "clicks");
    complete(assert_sqlstate!(session.try_run(&format!("SELECT fence_check({token})")), "40001"));
}

#[test]
fn a_caller_without_the_right_is_told_who_can_give_it() {
    let world = World::new(database());
    let nobody = world.database.role("nobody");
    world.database.connect().run("GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO PUBLIC");
    let mut session = world.database.connect_as(&nobody);
    for call in ["pipeline_pause('clicks', 'why')", "pipeline_drop('clicks')", "pool_define('live', 1)"] {
        complete(assert_sqlstate!(session.try_run(&format!("SELECT {call}")), "42501"));
    }
    session.run("CREATE TEMP TABLE own (at timestamptz)");
    world.database.connect().run("REVOKE INSERT ON clicks FROM PUBLIC");
    let define =
        "SELECT pipeline_define('own', '1 day', '2024-01-01', target => 'clicks', slice_column => 'at')";
    complete(assert_sqlstate!(session.try_run(define), "42501"));
}

#[test]
fn routines_that_write_say_so_in_a_transaction_that_may_not() {
    let world = World::new(database());
    let mut session = world.database.connect();
    let writing: Vec<String> = session.column(
        &format!("SELECT DISTINCT proname::text FROM pg_proc p WHERE {MEMBER_PROC} AND provolatile = 'v'"),
        &[],
    );
    session.run("SET default_transaction_read_only = on");
    for call in CALLS {
        let outcome = session.try_run(&world.sql(&call));
        // That of a trigger is PostgreSQL's to refuse.
        if ["fence_guard", "fence_look_first"].contains(&call.routine) {
            assert_sqlstate!(outcome, "25006");
        } else if writing.iter().any(|name| name == call.routine) {
            let failure = assert_sqlstate!(outcome, "25006");
            assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{}\n{failure}", call.routine);
        } else {
            outcome.unwrap_or_else(|failure| panic!("{}\n{failure}", call.routine));
        }
    }
}

#[test]
fn no_argument_is_answered_with_an_internal_error() {
    let world = World::new(database());
    let mut session = world.database.connect();
    // Every routine with NULLs, with what is nowhere, and with what lies at the end of its type.
    let calls: Vec<String> = session.column(
        &format!(
            "SELECT CASE p.prokind WHEN 'p' THEN 'CALL ' ELSE 'SELECT * FROM ' END || p.oid::regproc || '(' || (
                SELECT string_agg(COALESCE(quote_literal(CASE probe WHEN 1 THEN s.nowhere WHEN 2 THEN s.extreme END), 'NULL')
                                  || '::' || a.type::regtype, ', ' ORDER BY a.place)
                FROM unnest(p.proargtypes) WITH ORDINALITY a (type, place)
                JOIN strange s ON s.type = a.type::regtype
             ) || ')'
             FROM pg_proc p, generate_series(0, 2) probe, LATERAL (SELECT) x
             WHERE {MEMBER_PROC} AND p.prorettype <> 'trigger'::regtype AND p.pronargs > 0
               AND NOT p.proargtypes::oid[] && ARRAY['internal', 'cstring']::regtype[]::oid[]"
        )
        .replace(
            "SELECT CASE p.prokind",
            "WITH strange (type, nowhere, extreme) AS (VALUES
                ('text'::regtype, 'nowhere', repeat('x', 100)), ('bigint', '-1', '9223372036854775807'),
                ('integer', '-1', '2147483647'), ('boolean', 'true', 'true'), ('name', 'nowhere', ''),
                ('jsonb', '[]', '{\"a\": null}'), ('backfill.bound', 'gibberish', '294276-12-31'),
                ('regclass', 'pg_class', '1'), ('interval', '-1 day', '178000000 years'),
                ('timestamp', '-infinity', '294276-12-31'), ('timestamptz', 'infinity', '4713-01-01 BC'),
                ('date', 'infinity', '5874897-12-31'), ('real', 'NaN', 'Infinity'), ('numeric', 'NaN', '1e1000'),
                ('text[]', '{nowhere,NULL}', '{}')
             ) SELECT CASE p.prokind",
        ),
        &[],
    );
    assert!(calls.len() > 90, "{calls:#?}");
    session.run("SET statement_timeout = '5s'");
    let mut wrong = vec![];
    for call in calls {
        if let Err(failure) = session.try_run(&call)
            && (failure.sqlstate == "XX000" || failure.detail.is_empty() || failure.hint.is_empty())
        {
            wrong.push(format!("{call}\n{failure}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn errors_reach_clients_of_other_encodings() {
    let world = World::new(database());
    let fill = |sql: &str| world.fill(sql);
    let mut script = "SET client_encoding = 'LATIN1';\n\\o /dev/null\n".to_owned();
    for (_, before, call) in ERRORS {
        script.push_str(&format!(
            "BEGIN; {};\n\\set ON_ERROR_STOP off\n{};\n\\echo :LAST_ERROR_SQLSTATE\n\\set ON_ERROR_STOP on\nROLLBACK;\n",
            fill(before),
            fill(call)
        ));
    }
    let printed = world.database.psql(&script);
    let codes: Vec<&str> = printed.lines().collect();
    assert_eq!(codes, ERRORS.map(|(sqlstate, ..)| sqlstate));
}
