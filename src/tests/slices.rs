//! Replacing slices, where one backend is enough to see it.

use crate::postgres::digest;
use crate::postgres::executor::{self, Pair, Sight, Sink};
use crate::postgres::query::{self, Select};
use crate::postgres::settings;
use pgrx::prelude::*;
use pgrx::{JsonB, pg_sys};
use serde_json::Value;

fn run(sql: &str) {
    Spi::run(sql).unwrap();
}

fn number(sql: &str) -> i64 {
    Spi::get_one::<i64>(sql).unwrap().unwrap()
}

fn text(sql: &str) -> String {
    Spi::get_one::<String>(sql).unwrap().unwrap()
}

fn yes(sql: &str) -> bool {
    Spi::get_one::<bool>(sql).unwrap().unwrap()
}

/// What a statement fails with.
fn caught(sql: &str) -> Value {
    if yes("SELECT to_regproc('public.caught') IS NULL") {
        define_caught();
    }
    let args = [sql.into()];
    Spi::get_one_with_args::<JsonB>("SELECT public.caught($1)", &args).unwrap().unwrap().0
}

fn define_caught() {
    run(r#"
        CREATE FUNCTION public.caught(sql text) RETURNS jsonb LANGUAGE plpgsql AS $$
        DECLARE code text; message text; detail text; hint text; constr text;
        BEGIN
            EXECUTE sql;
            RETURN '{"code": "00000"}';
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, constr = CONSTRAINT_NAME;
            RETURN jsonb_build_object('code', code, 'message', message, 'detail', detail, 'hint', hint,
                'constraint', constr);
        END $$"#);
}

#[track_caller]
fn fails(sql: &str, code: &str) -> Value {
    let error = caught(sql);
    assert_eq!(error["code"], code, "{sql}: {error}");
    error
}

/// The parts of an error that a person reads.
#[track_caller]
fn says(error: &Value, part: &str, words: &str) {
    assert!(error[part].as_str().unwrap().contains(words), "{part} of {error} lacks {words:?}");
}

/// A source, a target and a daily pipeline in New York between them.
fn sales() {
    run("CREATE TABLE public.source (at timestamptz, item text, amount int);
         INSERT INTO public.source
         SELECT '2024-03-09 00:30-05'::timestamptz + n * interval '1 hour', 'item ' || n % 5, n
         FROM generate_series(0, 71) n;
         CREATE TABLE public.sales (at timestamptz, item text, amount int)");
    define("SELECT at, item, amount FROM public.source WHERE at >= $1 AND at < $2");
}

fn define(query: &str) {
    let args = [query.into()];
    Spi::run_with_args(
        "SELECT pipeline_define('sales', '1 day', '2024-03-01', target => 'public.sales',
             slice_column => 'at', time_zone => 'America/New_York', query => $1)",
        &args,
    )
    .unwrap();
}

/// A new token for a day: a plan of that one window, claimed.
fn token(pipeline: &str, day: &str) -> i64 {
    token_of(pipeline, day, "")
}

fn token_of(pipeline: &str, day: &str, extra: &str) -> i64 {
    plan(pipeline, day, extra);
    claim(pipeline)
}

fn plan(pipeline: &str, day: &str, extra: &str) {
    let plan = number(&format!(
        "SELECT (backfill_plan('{pipeline}', NULL, NULL, 'test', keys => ARRAY['{day}'] {extra})).plan_id"
    ));
    run(&format!("SELECT backfill_approve({plan}, 1)"));
}

fn claim(pipeline: &str) -> i64 {
    number(&format!("SELECT token FROM backfill_claim('test', pipelines => ARRAY['{pipeline}'])"))
}

fn replace(token: i64) -> (i64, i64, i64, bool, String) {
    replace_by(&token.to_string())
}

fn replace_by(arguments: &str) -> (i64, i64, i64, bool, String) {
    Spi::connect_mut(|client| {
        let sql = format!(
            "SELECT rows, inserted, deleted, changed, digest FROM replace_partition({arguments})"
        );
        let row = client.update(&sql, None, &[]).unwrap().first();
        (
            row.get(1).unwrap().unwrap(),
            row.get(2).unwrap().unwrap(),
            row.get(3).unwrap().unwrap(),
            row.get(4).unwrap().unwrap(),
            row.get(5).unwrap().unwrap(),
        )
    })
}

#[pg_test]
fn a_slice_is_replaced_and_an_unchanged_one_is_left_alone() {
    sales();
    let (rows, inserted, deleted, changed, digest) = replace(token("sales", "2024-03-09"));
    assert_eq!((rows, inserted, deleted, changed), (24, 24, 0, true));
    assert_eq!(number("SELECT count(*) FROM sales"), 24);

    run("CREATE TABLE places AS SELECT ctid AS place, * FROM sales");
    let again = replace(token("sales", "2024-03-09"));
    assert_eq!(again, (24, 0, 0, false, digest.clone()));
    assert_eq!(number("SELECT count(*) FROM sales s JOIN places p ON p.place = s.ctid"), 24);

    run("UPDATE source SET amount = amount + 1 WHERE item = 'item 0'");
    let (rows, inserted, deleted, changed, other) = replace(token("sales", "2024-03-09"));
    assert_eq!((rows, inserted, deleted, changed), (24, 24, 24, true));
    assert_ne!(digest, other);
    assert_eq!(number("SELECT count(*) FROM (TABLE sales EXCEPT ALL TABLE source) d"), 0);
}

#[pg_test]
fn a_slice_that_somebody_changed_by_hand_is_repaired() {
    sales();
    let first = replace(token("sales", "2024-03-09"));
    run("UPDATE sales SET amount = -1 WHERE item = 'item 0'");
    let second = replace(token("sales", "2024-03-09"));
    assert_eq!((second.2, second.3, &second.4), (24, true, &first.4));
    assert_eq!(number("SELECT count(*) FROM sales WHERE amount < 0"), 0);
}

#[pg_test]
fn the_short_day_has_23_hours_and_its_neighbours_are_untouched() {
    sales();
    run("INSERT INTO sales VALUES ('2024-03-10 00:00-05', 'first', 0), ('2024-03-10 23:59:59.999999-04', 'last', 0),
             ('2024-03-09 23:59:59.999999-05', 'before', 0), ('2024-03-11 00:00-04', 'after', 0)");
    run("SET LOCAL TimeZone = 'Asia/Tokyo'");
    let (rows, _, deleted, ..) = replace(token("sales", "2024-03-10"));
    assert_eq!((rows, deleted), (23, 2));
    assert_eq!(text("SELECT string_agg(item, ' ' ORDER BY item) FROM sales WHERE amount = 0"), "after before");
}

#[pg_test]
fn a_source_row_that_vanished_is_gone_after_a_rebuild() {
    sales();
    replace(token("sales", "2024-03-09"));
    run("DELETE FROM source WHERE amount = 3");
    assert_eq!(replace(token("sales", "2024-03-09")).0, 23);
    assert_eq!(number("SELECT count(*) FROM sales WHERE amount = 3"), 0);
}

#[pg_test]
fn rows_outside_the_window_are_refused_with_examples() {
    sales();
    let token = token("sales", "2024-03-09");
    let error = fails(
        &format!(
            "SELECT replace_partition({token}, query => $q$SELECT at, item, amount FROM source
                 WHERE at >= $1 AND at < $2 + interval '3 hours' UNION ALL SELECT NULL, 'no time', 0$q$)"
        ),
        "BF005",
    );
    says(&error, "message", "4 of 28 new rows lie outside window 2024-03-09");
    says(&error, "detail", "[2024-03-09 00:00:00-05, 2024-03-10 00:00:00-05)");
    says(&error, "detail", "2024-03-10 00:30:00-05, 2024-03-10 01:30:00-05, 2024-03-10 03:30:00-04");
    says(&error, "hint", "at >= $1 AND at < $2");
    assert_eq!(number("SELECT count(*) FROM sales"), 0);

    let error = fails(
        &format!("SELECT replace_partition({token}, query => 'SELECT NULL::timestamptz, ''x'', 1')"),
        "BF005",
    );
    says(&error, "detail", "such rows have NULL");
    for edge in ["$2", "'infinity'::timestamptz", "'-infinity'::timestamptz", "$1 - interval '1 us'"] {
        fails(&format!("SELECT replace_partition({token}, query => $q$SELECT {edge}, 'x', 1$q$)"), "BF005");
    }
    assert_eq!(replace_by(&format!("{token}, query => $q$SELECT $1, 'x', 1$q$")).0, 1);
}

#[pg_test]
fn a_slice_that_shrinks_needs_a_reason_which_is_kept() {
    sales();
    replace(token("sales", "2024-03-09"));
    run("DELETE FROM source WHERE amount >= 11");
    let token = token("sales", "2024-03-09");
    let error = fails(&format!("SELECT replace_partition({token})"), "BF006");
    says(&error, "message", "window 2024-03-09 would lose 13 of 24 rows");
    says(&error, "detail", "the share 0.5");
    says(&error, "hint", "allow_shrink");
    fails(&format!("SELECT replace_partition({token}, allow_shrink => '  ')"), "BF006");
    assert_eq!(number("SELECT count(*) FROM sales"), 24);
    assert_eq!(replace_by(&format!("{token}, allow_shrink => 'the source expired'")).0, 11);
    let kept = text(&format!("SELECT allow_shrink FROM backfill.run_data WHERE token = {token}"));
    assert_eq!(kept, "the source expired");
}

#[pg_test]
fn an_empty_slice_over_unknown_rows_is_refused() {
    sales();
    run("INSERT INTO sales VALUES ('2024-03-05 12:00-05', 'by hand', 1);
         SELECT pipeline_alter('sales', '{\"max_shrink\": 1}')");
    let token = token_of("sales", "2024-03-05", ", allow_shrink => 'the shop was closed'");
    let other = number("SELECT token FROM backfill.run_data ORDER BY token DESC LIMIT 1");
    assert_eq!(token, other);
    // The plan's reason counts.
    assert_eq!(replace(token).0, 0);
    assert_eq!(
        text(&format!("SELECT allow_shrink FROM backfill.run_data WHERE token = {token}")),
        "the shop was closed"
    );
    run("INSERT INTO sales VALUES ('2024-03-05 12:00-05', 'by hand', 1)");
    let error =
        fails(&format!("SELECT replace_partition({})", self::token("sales", "2024-03-05")), "BF006");
    says(&error, "message", "would become empty");
}

#[pg_test]
fn a_reason_that_was_not_needed_is_not_kept() {
    sales();
    let token = token("sales", "2024-03-09");
    replace_by(&format!("{token}, allow_shrink => 'just in case'"));
    assert!(yes(&format!("SELECT allow_shrink IS NULL FROM backfill.run_data WHERE token = {token}")));
}

#[pg_test]
fn generated_identity_and_dropped_columns_are_left_to_the_table() {
    run("CREATE TABLE source (at timestamptz, amount int);
         INSERT INTO source VALUES ('2024-03-09 12:00-05', 7), ('2024-03-09 13:00-05', 8);
         CREATE TABLE sales (
             dropped int, id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL, gone text,
             double int GENERATED ALWAYS AS (amount * 2) STORED, amount int,
             number int GENERATED BY DEFAULT AS IDENTITY, loaded text DEFAULT 'now');
         ALTER TABLE sales DROP COLUMN dropped, DROP COLUMN gone");
    define("SELECT at, amount FROM source WHERE at >= $1 AND at < $2");
    let (rows, .., digest) = replace(token("sales", "2024-03-09"));
    assert_eq!(rows, 2);
    assert_eq!(
        text("SELECT string_agg(format('%s %s %s %s %s', id, double, amount, number, loaded), ',' ORDER BY at) FROM sales"),
        "1 14 7 1 now,2 16 8 2 now"
    );
    // Numbers by default are part of the row: the slice is new, and says so.
    let again = replace(token("sales", "2024-03-09"));
    assert!(again.3 && again.4 != digest);

    let longer = token("sales", "2024-03-09");
    let error = fails(
        &format!("SELECT replace_partition({longer}, query => 'SELECT $1, 1, 2, ''a'', 5')"),
        "42601",
    );
    says(&error, "message", "more expressions than target columns");
    let error = fails(&format!("SELECT replace_partition({longer}, query => 'SELECT $1, true')"), "42804");
    says(&error, "message", "is of type integer but expression is of type boolean");
}

#[pg_test]
fn literals_and_types_are_converted_as_insert_does() {
    run("CREATE TYPE mood AS ENUM ('good', 'bad');
         CREATE DOMAIN share AS numeric(4, 2) CHECK (VALUE <= 1);
         CREATE TABLE sales (at timestamptz, mood mood, share share, code char(5), list int[]);
         CREATE TABLE source (x int)");
    define("SELECT $1, 'good', 0.12345, 'ab', '{1,2}'");
    let (rows, .., digest) = replace(token("sales", "2024-03-09"));
    assert_eq!(rows, 1);
    assert_eq!(text("SELECT (mood, share, code, list)::text FROM sales"), "(good,0.12,\"ab   \",\"{1,2}\")");
    assert_eq!(replace(token("sales", "2024-03-09")), (1, 0, 0, false, digest));
    let token = token("sales", "2024-03-09");
    fails(&format!("SELECT replace_partition({token}, query => $q$SELECT $1, 'good', 2, 'ab', '{{1}}'$q$)"), "23514");
    fails(&format!("SELECT replace_partition({token}, query => $q$SELECT $1, 'good', 1, 'toolong', '{{1}}'$q$)"), "22001");
    fails(&format!("SELECT replace_partition({token}, query => $q$SELECT $1, 'good'::text, 1, 'a', '{{1}}'$q$)"), "42804");
    let values = "VALUES ($1, 'bad', 1, 'a', '{2}'), ($1, 'good', 0.5, NULL, NULL)";
    assert_eq!(replace_by(&format!("{token}, query => $q${values}$q$, finish => false")).0, 2);
    let with = "WITH w AS (SELECT 'bad'::mood AS m) SELECT $1, (SELECT m FROM w), 1, 'a', '{2}' ORDER BY 1 LIMIT 1;  -- done";
    assert_eq!(replace_by(&format!("{token}, query => $q${with}$q$, finish => false")).0, 1);
    assert_eq!(replace_by(&format!("{token}, query => $q$VALUES ($1, (SELECT 'bad'::mood), 1, 'a', '{{2}}')$q$")).0, 1);
}

#[pg_test]
fn a_staging_table_is_matched_by_name() {
    sales();
    let token = token("sales", "2024-03-09");
    run("CREATE TABLE loaded (amount int, at timestamptz);
         INSERT INTO loaded VALUES (5, '2024-03-09 12:00-05'), (6, '2024-03-09 13:00-05');
         ALTER TABLE sales ALTER item SET DEFAULT 'none'");
    assert_eq!(replace_by(&format!("{token}, staging => 'loaded', finish => false")).0, 2);
    assert_eq!(text("SELECT string_agg(item || amount, ',' ORDER BY amount) FROM sales"), "none5,none6");
    run("ALTER TABLE loaded ADD colour text");
    let error = fails(&format!("SELECT replace_partition({token}, staging => 'loaded')"), "22023");
    says(&error, "message", "column \"colour\"");
    run("ALTER TABLE loaded DROP colour, DROP at");
    let error = fails(&format!("SELECT replace_partition({token}, staging => 'loaded')"), "22023");
    says(&error, "message", "no column \"at\"");
    fails(&format!("SELECT replace_partition({token}, query => 'SELECT 1', staging => 'loaded')"), "22023");
}

#[pg_test]
fn a_stage_belongs_to_its_token() {
    sales();
    run("ALTER TABLE sales ADD id int GENERATED BY DEFAULT AS IDENTITY, ADD loaded text NOT NULL DEFAULT 'now',
             ADD twice int GENERATED ALWAYS AS (amount * 2) STORED, ADD key int GENERATED ALWAYS AS IDENTITY");
    let first = token("sales", "2024-03-09");
    let stage = text(&format!("SELECT backfill_stage({first})::text"));
    assert_eq!(stage, format!("backfill.stage_{first}"));
    assert_eq!(text(&format!("SELECT backfill_stage({first})::text")), stage);
    run(&format!("INSERT INTO {stage} (at, amount) VALUES ('2024-03-09 12:00-05', 5), ('2024-03-09 13:00-05', 6)"));
    fails(&format!("INSERT INTO {stage} (at, loaded) VALUES ('2024-03-09 12:00-05', NULL)"), "23502");

    let second = token("sales", "2024-03-10");
    let error = fails(&format!("SELECT replace_partition({second}, staging => '{stage}')"), "22023");
    says(&error, "message", "another token");

    let (rows, inserted, ..) = replace(first);
    assert_eq!((rows, inserted), (2, 2));
    assert_eq!(text("SELECT string_agg(format('%s %s %s', id, loaded, twice), ',' ORDER BY id) FROM sales"), "1 now 10,2 now 12");
    assert!(yes(&format!("SELECT to_regclass('{stage}') IS NULL")));
    assert_eq!(number("SELECT count(*) FROM backfill.stage_data"), 0);
    fails(&format!("SELECT backfill_stage({first})"), "BF001");
    fails("SELECT backfill_stage(12345)", "BF001");
    fails("SELECT backfill_stage(NULL)", "22004");
}

#[pg_test]
fn staged_rows_outside_the_window_are_refused() {
    sales();
    let token = token("sales", "2024-03-09");
    let stage = text(&format!("SELECT backfill_stage({token})::text"));
    run(&format!("INSERT INTO {stage} VALUES ('2024-03-10 12:00-05', 'late', 1)"));
    let error = fails(&format!("SELECT replace_partition({token})"), "BF005");
    says(&error, "detail", "2024-03-10 13:00:00-04");
}

#[pg_test]
fn a_failed_attempt_s_stage_is_kept_even_if_it_is_empty() {
    sales();
    for (day, rows) in [("2024-03-09", 1), ("2024-03-10", 0)] {
        let token = token("sales", day);
        let stage = text(&format!("SELECT backfill_stage({token})::text"));
        if rows > 0 {
            run(&format!("INSERT INTO {stage} VALUES ('2024-03-19 12:00-05', 'late', 1)"));
        }
        assert_eq!(
            text(&format!("SELECT backfill_fail({token}, 'too few rows', sqlstate => 'BF006')")),
            "refused"
        );
        assert_eq!(number(&format!("SELECT count(*) FROM {stage}")), rows);
        assert!(yes(&format!(
            "SELECT quarantined_at IS NOT NULL AND rows = {rows} AND reason = 'too few rows' AND sqlstate = 'BF006'
             FROM backfill.stage_data WHERE token = {token}"
        )));
        fails(&format!("SELECT backfill_stage({token})"), "BF001");
        fails(&format!("SELECT replace_partition({token})"), "BF001");
    }
}

#[pg_test]
fn refused_rows_are_kept_by_the_worker_s_call() {
    sales();
    run("ALTER TABLE sales ALTER item SET NOT NULL");
    run("SELECT pipeline_alter('sales', jsonb_build_object('query',
            'SELECT at, item, amount FROM public.source WHERE at < $2 UNION ALL SELECT NULL, NULL, 1'))");
    let day = token("sales", "2024-03-10");
    let kept = text(&format!("SELECT sqlstate || ' ' || error FROM replace_or_keep({day})"));
    assert!(kept.starts_with("BF005 25 of 48 new rows lie outside window 2024-03-10. Column"), "{kept}");
    assert_eq!(number(&format!("SELECT count(*) FROM backfill.stage_{day}")), 48);
    assert_eq!(number("SELECT count(*) FROM sales"), 0);
    run(&format!("SELECT backfill_fail({day}, 'refused', sqlstate => 'BF005')"));
    assert_eq!(number(&format!("SELECT rows FROM backfill.stage_data WHERE token = {day}")), 48);

    run("SELECT pipeline_alter('sales', jsonb_build_object('query',
            'SELECT at, item, amount FROM public.source WHERE at >= $1 AND at < $2'))");
    let day = token("sales", "2024-03-10");
    assert!(yes(&format!("SELECT sqlstate IS NULL AND error IS NULL FROM replace_or_keep({day})")));
    assert_eq!(number("SELECT count(*) FROM sales"), 23);
    run("DELETE FROM source");
    let day = token("sales", "2024-03-10");
    let kept = text(&format!("SELECT sqlstate FROM replace_or_keep({day})"));
    assert_eq!(kept, "BF006");
    assert_eq!(number(&format!("SELECT count(*) FROM backfill.stage_{day}")), 0);
    assert_eq!(number("SELECT count(*) FROM sales"), 23);
}

#[pg_test]
fn finish_false_leaves_the_run_open() {
    sales();
    let token = token("sales", "2024-03-09");
    let (.., digest) = replace_by(&format!("{token}, finish => false"));
    let open = format!(
        "SELECT outcome IS NULL AND rows = 24 AND digest = '{digest}' FROM backfill.run_data WHERE token = {token}"
    );
    assert!(yes(&open));
    run(&format!("SELECT backfill_finish({token})"));
    assert!(yes(&format!(
        "SELECT outcome = 'done' AND rows = 24 AND digest = '{digest}' FROM backfill.run_data WHERE token = {token}"
    )));
    fails(&format!("SELECT replace_partition({token})"), "BF001");
}

#[pg_test]
fn strategies_that_are_not_built_are_refused() {
    sales();
    let token = token("sales", "2024-03-09");
    for strategy in ["diff", "swap"] {
        let error = fails(&format!("SELECT replace_partition({token}, strategy => '{strategy}')"), "0A000");
        says(&error, "hint", "'auto' or 'rows'");
    }
    fails(&format!("SELECT replace_partition({token}, strategy => 'merge')"), "22023");
    fails("SELECT replace_partition(NULL)", "22004");
    fails("SELECT replace_partition(4, strategy => 'merge')", "BF001");
    assert_eq!(replace_by(&format!("{token}, strategy => 'rows'")).0, 24);
}

#[pg_test]
fn without_target_query_or_rows_the_error_says_what_to_give() {
    run("SELECT pipeline_define('outside', '1 day', '2024-03-01')");
    let token = self::token("outside", "2024-03-09");
    says(&fails(&format!("SELECT replace_partition({token})"), "55000"), "hint", "backfill_finish");
    run("CREATE TABLE sales (at timestamptz);
         SELECT pipeline_define('by worker', '1 day', '2024-03-01', target => 'sales', slice_column => 'at')");
    let token = self::token("by worker", "2024-03-09");
    let error = fails(&format!("SELECT replace_partition({token})"), "22023");
    says(&error, "hint", &format!("backfill_stage({token})"));
}

#[pg_test]
fn names_of_any_kind_are_handled() {
    let long = "é".repeat(31); // 62 bytes
    let table = format!("\"Ünï \"\"quoted\"\" 😀\".\"{long}x\"");
    run(&format!(
        "CREATE SCHEMA \"Ünï \"\"quoted\"\" 😀\";
         CREATE TABLE {table} (\"select\" timestamptz, \"{long}y\" text, \"a'b\" int, \"$1\" int);
         CREATE TABLE source (at timestamptz);
         INSERT INTO source SELECT '2024-03-09 12:00-05' FROM generate_series(1, 3)"
    ));
    run(&format!(
        "SELECT pipeline_define('an odd ''one''', '1 day', '2024-03-01', target => $t${table}$t$,
             slice_column => 'select', time_zone => 'America/New_York',
             query => 'SELECT at, ''x'', 1, 2 FROM source WHERE at >= $1 AND at < $2')"
    ));
    let token = token("an odd ''one''", "2024-03-09");
    let stage = text(&format!("SELECT backfill_stage({token})::text"));
    run(&format!("INSERT INTO {stage} (\"select\", \"$1\") VALUES ('2024-03-09 12:00-05', 9)"));
    assert_eq!(replace(token).0, 1);
    assert_eq!(number(&format!("SELECT \"$1\"::bigint FROM {table}")), 9);
    assert_eq!(replace(self::token("an odd ''one''", "2024-03-09")).0, 3);
}

#[pg_test]
fn local_slice_columns_are_read_in_the_pipeline_s_zone() {
    run("CREATE TABLE source (at timestamptz);
         INSERT INTO source SELECT '2024-03-09 00:30-05'::timestamptz + n * interval '1 hour' FROM generate_series(0, 71) n;
         CREATE TABLE by_date (day date, n int); CREATE TABLE by_local (at timestamp, n int);
         INSERT INTO by_date VALUES ('2024-03-09', -1), ('2024-03-10', -1), ('2024-03-11', -1);
         INSERT INTO by_local VALUES ('2024-03-09 23:59:59.999999', -1), ('2024-03-10', -1),
             ('2024-03-10 23:59:59.999999', -1), ('2024-03-11', -1)");
    run("SELECT pipeline_define('date', '1 day', '2024-03-01', target => 'by_date', slice_column => 'day', time_zone => 'America/New_York',
             query => 'SELECT (at AT TIME ZONE ''America/New_York'')::date, 1 FROM source WHERE at >= $1 AND at < $2');
         SELECT pipeline_define('local', '1 day', '2024-03-01', target => 'by_local', slice_column => 'at', time_zone => 'America/New_York',
             query => 'SELECT at::timestamp, 1 FROM source WHERE at >= $1 AND at < $2')");
    for zone in ["Asia/Tokyo", "Pacific/Honolulu", "UTC"] {
        run(&format!("SET LOCAL TimeZone = '{zone}'; SET LOCAL DateStyle = 'SQL, DMY'"));
        run("UPDATE by_date SET n = -1; UPDATE by_local SET n = -1");
        assert_eq!(replace(token("date", "2024-03-10")).0, 23);
        // Inside the query, too, a cast means the pipeline's zone.
        assert_eq!(replace(token("local", "2024-03-10")).0, 23);
        assert_eq!(number("SELECT count(*) FROM by_date WHERE n < 0 AND day <> '2024-03-10'"), 2);
        assert_eq!(number("SELECT count(*) FROM by_local WHERE n < 0"), 2);
        assert_eq!(number("SELECT count(*) FROM by_local WHERE at::date = '2024-03-10' AND n = 1"), 23);
    }
    let error = fails(
        &format!("SELECT replace_partition({}, query => $q$SELECT '2024-03-11'::date, 1$q$)", token("date", "2024-03-10")),
        "BF005",
    );
    says(&error, "detail", "[2024-03-10, 2024-03-11)");
}

#[pg_test]
fn duplicates_and_nulls_are_rows_like_any_other() {
    sales();
    run("INSERT INTO source SELECT '2024-03-05 12:00-05', NULL, NULL FROM generate_series(1, 3)");
    assert_eq!(replace(token("sales", "2024-03-05")).0, 3);
    let nulls = replace(token("sales", "2024-03-05"));
    assert!(!nulls.3);
    run("UPDATE source SET item = '' WHERE item IS NULL");
    let empties = replace(token("sales", "2024-03-05"));
    assert!(empties.3 && empties.4 != nulls.4);
    run("DELETE FROM source WHERE ctid = (SELECT ctid FROM source WHERE item = '' LIMIT 1)");
    let two = replace(token("sales", "2024-03-05"));
    assert!(two.0 == 2 && two.4 != empties.4);
}

#[pg_test]
fn a_digest_depends_on_the_rows_alone() {
    run("CREATE TYPE pair AS (at timestamptz, f float8);
         CREATE TABLE sales (at timestamptz, f float8, b bytea, i interval, r tstzrange, a timestamptz[], p pair, t timestamp, c regclass, m money);
         CREATE TABLE source (LIKE sales);
         INSERT INTO source SELECT '2024-03-09 12:00-05'::timestamptz + n * interval '1 minute', n / 7.0, '\\xdead', interval '1 mon 3 days 04:05:06' * n,
             tstzrange('2024-03-09 12:00-05', '2024-03-09 13:00-05'), ARRAY['2024-03-09 12:00-05'::timestamptz], ROW('2024-03-09 12:00-05', n / 3.0)::pair, '2024-03-09', 'source', n
         FROM generate_series(1, 50) n");
    define("SELECT * FROM public.source ORDER BY at");
    let (.., digest) = replace(token("sales", "2024-03-09"));
    for setting in [
        "TimeZone = 'Asia/Kolkata'",
        "DateStyle = 'German'",
        "IntervalStyle = 'iso_8601'",
        "extra_float_digits = -10",
        "bytea_output = 'escape'",
        "search_path = 'backfill', 'public'",
    ] {
        run(&format!("SET LOCAL {setting}"));
        let own = replace(token("sales", "2024-03-09"));
        assert_eq!((own.3, &own.4), (false, &digest), "{setting}");
        // Given at the call it runs as the caller; in another order, and over another plan.
        let given = replace_by(&format!(
            "{}, query => 'SELECT * FROM public.source ORDER BY f DESC'",
            token("sales", "2024-03-09")
        ));
        assert_eq!((given.3, &given.4), (false, &digest), "{setting}");
    }
}

/// Takes the digest of each row by itself.
#[derive(Default)]
struct Digests {
    shape: Option<pg_sys::TupleDesc>,
    digests: Vec<String>,
}

impl Sink for Digests {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        self.shape = Some(unsafe { pg_sys::CreateTupleDescCopy(shape) });
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let mut digester = digest::Digester::new(self.shape.unwrap());
        unsafe { digester.add(slot) };
        self.digests.push(digester.digest().to_string());
    }
}

#[pg_test]
fn the_text_that_is_hashed_is_the_output_function_s() {
    let values = [
        ("boolean", "SELECT n % 2 = 0 FROM n"),
        ("smallint", "SELECT v::smallint FROM unnest('{-32768,-1,0,7,32767}'::int[]) v"),
        ("int", "SELECT v FROM unnest('{-2147483648,-1,0,10,2147483647}'::int[]) v"),
        ("bigint", "SELECT v FROM unnest('{-9223372036854775808,-10,0,1,9223372036854775807}'::bigint[]) v"),
        ("date", "SELECT '2000-01-01'::date + n * 379 FROM n UNION ALL SELECT v FROM unnest('{4713-01-01 BC,0001-12-31 BC,0001-01-01,5874897-12-31,infinity,-infinity}'::date[]) v"),
        ("timestamp", "SELECT '2000-01-01'::timestamp + n * interval '379 days 3 hours 7.000123 seconds' FROM n UNION ALL SELECT v FROM unnest('{4713-01-01 00:00:00.5 BC,0001-12-31 BC,294276-12-31 23:59:59.999999,infinity,-infinity,2024-01-01 00:00:00.1,2024-01-01 00:00:00.01,2024-01-01 00:00:00.000001}'::timestamp[]) v"),
        ("timestamptz", "SELECT '2000-01-01Z'::timestamptz + n * interval '379 days 3 hours 7.00012 seconds' FROM n UNION ALL SELECT v FROM unnest('{4713-01-01 00:00:00+00 BC,0044-03-15 12:00+00 BC,infinity,-infinity}'::timestamptz[]) v"),
        ("uuid", "SELECT md5(n::text)::uuid FROM n"),
        ("text", "SELECT repeat('ü😀''\"', n::int) FROM n"),
        ("varchar(3)", "SELECT 'a' UNION ALL SELECT '' UNION ALL SELECT 'a  '"),
        ("json", "SELECT '{\"a\":  1}'::json"),
        ("numeric", "SELECT n / 7.0 FROM n UNION ALL SELECT 'NaN' UNION ALL SELECT '1e100'"),
        ("float8", "SELECT n / 7.0::float8 FROM n UNION ALL SELECT v FROM unnest('{NaN,-0,1e-300,Infinity}'::float8[]) v"),
        ("jsonb", "SELECT jsonb_build_object('b', n, 'a', NULL) FROM n"),
        ("text", "SELECT string_agg(md5(n::text || m), '') FROM n, generate_series(1, 200) m GROUP BY n"),
    ];
    run("SET LOCAL TimeZone = 'America/New_York'; SET LOCAL DateStyle = 'SQL, DMY'");
    let bounds =
        Pair { type_oid: pg_sys::TIMESTAMPTZOID, values: [pg_sys::Datum::from(0); 2] };
    for (type_name, select) in values {
        run(&format!(
            "DROP TABLE IF EXISTS many;
             CREATE TABLE many AS WITH n AS MATERIALIZED (SELECT n FROM generate_series(-400, 400) n)
             SELECT v::{type_name} FROM ({}) AS s(v)",
            select
        ));
        let mut own = Digests::default();
        let select = Select::of_ours("SELECT v FROM public.many", pg_sys::TIMESTAMPTZOID);
        unsafe { executor::select(select.query(), select.text(), bounds, Sight::Transaction, &mut own) };
        let expected: Vec<(String, String)> = settings::for_text(|| {
            Spi::connect(|client| {
                let rows = client.select("SELECT format('%s', v) FROM public.many", None, &[]).unwrap();
                rows.map(|row| {
                    let text: String = row.get(1).unwrap().unwrap();
                    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
                    bytes.extend(text.bytes());
                    (digest::of_text(&bytes).to_string(), text)
                })
                .collect()
            })
        });
        assert!(!expected.is_empty() && own.digests.len() == expected.len());
        for (own, (expected, text)) in own.digests.iter().zip(&expected) {
            assert_eq!(own, expected, "{type_name} {text}");
        }
    }
}

#[pg_test]
fn triggers_that_swallow_or_add_rows_are_noticed() {
    sales();
    run("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.amount = 3 THEN RETURN NULL; END IF; RETURN NEW; END $$;
         CREATE FUNCTION add() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.amount = 3 THEN INSERT INTO public.sales VALUES (NEW.at, 'added', -1); END IF; RETURN NULL; END $$;
         CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             NEW.at := NEW.at + interval '1 day'; RETURN NEW; END $$;
         CREATE FUNCTION double() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             NEW.amount := NEW.amount * 2; RETURN NEW; END $$");
    let token = token("sales", "2024-03-09");
    for (moment, function) in [("BEFORE", "swallow"), ("AFTER", "add"), ("BEFORE", "move")] {
        run(&format!("CREATE TRIGGER odd {moment} INSERT ON sales FOR EACH ROW EXECUTE FUNCTION {function}()"));
        let error = fails(&format!("SELECT replace_partition({token})"), "40001");
        says(&error, "hint", "trigger");
        assert_eq!(number("SELECT count(*) FROM sales"), 0);
        run("DROP TRIGGER odd ON sales");
    }
    let (.., plain) = replace_by(&format!("{token}, finish => false"));
    run("CREATE TRIGGER odd BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION double()");
    // What is recorded is what the table holds.
    let (rows, .., doubled) = replace(token);
    assert_eq!(rows, 24);
    assert_ne!(plain, doubled);
    run("DROP TRIGGER odd ON sales; UPDATE source SET amount = amount * 2");
    assert_eq!(replace(self::token("sales", "2024-03-09")), (24, 0, 0, false, doubled));
}

#[pg_test]
fn errors_of_users_sql_keep_their_code_and_names() {
    sales();
    run("ALTER TABLE sales ADD CONSTRAINT one_per_hour UNIQUE (at);
         INSERT INTO source SELECT * FROM source WHERE amount = 3");
    let token = token("sales", "2024-03-09");
    let error = fails(&format!("SELECT replace_partition({token})"), "23505");
    assert_eq!(error["constraint"], "one_per_hour");
    says(&error, "detail", "already exists");
    assert_eq!(number("SELECT count(*) FROM sales"), 0);
    for (query, code) in [
        ("SELECT at, item, 1 / (amount - 3) FROM source WHERE at >= $1 AND at < $2", "22012"),
        ("SELECT at, item, FROM source", "42601"),
        ("SELECT nothing FROM source", "42703"),
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT $3, 'x', 1", "42P02"),
        ("SELECT at, item FROM source WHERE at > now(); SELECT 1", "22023"),
        ("", "22023"),
        ("-- nothing", "22023"),
        ("DELETE FROM source", "22023"),
        ("SELECT at, item, amount INTO other FROM source", "22023"),
        ("SELECT at, item, amount INTO other FROM source UNION ALL SELECT * FROM source", "22023"),
        ("WITH d AS (DELETE FROM source RETURNING *) SELECT * FROM d", "22023"),
        ("EXPLAIN SELECT 1", "22023"),
        ("SELECT $1, 'x', 1) SELECT (1", "42601"),
    ] {
        let error = fails(&format!("SELECT replace_partition({token}, query => $q${query}$q$)"), code);
        if code == "22023" {
            says(&error, "hint", "Write one SELECT");
        }
    }
    assert_eq!(number("SELECT count(*) FROM source"), 73);
    // After all these errors the session is as it was.
    assert_eq!(text("SHOW search_path"), text("SELECT reset_val FROM pg_settings WHERE name = 'search_path'"));
    assert_eq!(text("SELECT current_user::text"), text("SELECT session_user::text"));
}

#[pg_test]
fn a_lease_s_query_that_changed_is_not_run() {
    sales();
    run("SELECT pipeline_alter('sales', jsonb_build_object('query', 'SELECT s.* FROM public.source s WHERE at >= $1 AND at < $2'))");
    let token = token("sales", "2024-03-09");
    run("ALTER TABLE sales ADD extra int; ALTER TABLE source ADD extra int");
    let error = fails(&format!("SELECT replace_partition({token})"), "BF004");
    says(&error, "detail", "sql:");
    says(&error, "hint", &format!("backfill_release({token})"));
    // Its own query is not asked for here.
    assert_eq!(replace_by(&format!("{token}, query => $q$SELECT $1, 'x', 1, 1$q$")).0, 1);
}

#[pg_test]
fn a_fingerprint_is_of_the_meaning() {
    run("CREATE SCHEMA other; CREATE TABLE public.source (at timestamptz, n int); CREATE TABLE other.source (at timestamptz, n int)");
    let me = text("SELECT current_user::text");
    let print = |sql: &str, path: &str| query::fingerprint(&me, sql, path).unwrap();
    let plain = print("SELECT at, n FROM source WHERE at >= $1 AND at < $2", "public");
    assert!(plain.starts_with("sql:") && plain.len() == 36);
    assert_eq!(plain, print("select AT,\n  N -- the number\nfrom /* here */ public.source where at>=$1 and at<$2;", "public"));
    assert_ne!(plain, print("SELECT at, n FROM source WHERE at >= $1 AND at < $2", "other, public"));
    assert_ne!(plain, print("SELECT at, n + 0 FROM source WHERE at >= $1 AND at < $2", "public"));
    let dated = |zone: &str| {
        run(&format!("SET LOCAL TimeZone = '{zone}'; SET LOCAL DateStyle = 'SQL, DMY'"));
        print("SELECT at, n FROM source WHERE at >= '2024-03-02 00:00+00' AND at < $2 AND '1 mon'::interval > '3 days'", "public")
    };
    assert_eq!(dated("UTC"), dated("Asia/Tokyo"));
}

/// A worker, an owner and their rights.
fn roles() {
    define_caught();
    run("CREATE ROLE slice_owner; CREATE ROLE slice_worker;
         GRANT CREATE, USAGE ON SCHEMA public TO slice_owner; GRANT USAGE ON SCHEMA public TO slice_worker;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO slice_owner, slice_worker");
}

#[pg_test]
fn sql_runs_as_whoever_wrote_it() {
    roles();
    run("CREATE TABLE secret (at timestamptz); INSERT INTO secret VALUES ('2024-03-09 12:00-05');
         CREATE TABLE sales (at timestamptz, who text);
         GRANT SELECT ON secret TO slice_owner; GRANT SELECT, INSERT, DELETE ON sales TO slice_owner");
    run("SET LOCAL ROLE slice_owner");
    run("SELECT pipeline_define('sales', '1 day', '2024-03-01', target => 'sales', slice_column => 'at',
             time_zone => 'America/New_York', query => 'SELECT at, current_user::text FROM secret WHERE at >= $1 AND at < $2');
         SELECT pipeline_grant('sales', 'slice_worker', 'work')");
    plan("sales", "2024-03-09", "");
    run("SET LOCAL ROLE slice_worker");
    let first = claim("sales");
    let error = fails(&format!("SELECT replace_partition({first})"), "42501");
    says(&error, "detail", "lacks INSERT");
    run("RESET ROLE; GRANT INSERT ON sales TO slice_worker; SET LOCAL ROLE slice_worker");
    says(&fails(&format!("SELECT replace_partition({first})"), "42501"), "detail", "lacks DELETE");
    run("RESET ROLE; GRANT DELETE ON sales TO slice_worker; SET LOCAL ROLE slice_worker");
    fails("SELECT count(*) FROM secret", "42501");
    assert_eq!(replace(first).0, 1);
    run("RESET ROLE");
    assert_eq!(text("SELECT who FROM sales"), "slice_owner");

    run("SET LOCAL ROLE slice_owner");
    plan("sales", "2024-03-09", "");
    run("SET LOCAL ROLE slice_worker");
    let second = claim("sales");
    // Given at the call: as the caller, who may not read the source or the target.
    fails(&format!("SELECT replace_partition({second}, query => 'SELECT at, current_user::text FROM secret')"), "42501");
    fails(&format!("SELECT replace_partition({second}, query => $q$SELECT $1, current_user::text$q$)"), "42501");
    run("RESET ROLE; GRANT SELECT ON sales TO slice_worker; SET LOCAL ROLE slice_worker");
    assert_eq!(replace_by(&format!("{second}, query => $q$SELECT $1, current_user::text$q$")).0, 1);
    assert_eq!(text("SELECT who FROM sales"), "slice_worker");

    // The worker's own stage, too.
    run("SET LOCAL ROLE slice_owner");
    plan("sales", "2024-03-09", "");
    run("SET LOCAL ROLE slice_worker");
    let third = claim("sales");
    let stage = text(&format!("SELECT backfill_stage({third})::text"));
    run(&format!("INSERT INTO {stage} VALUES ('2024-03-09 13:00-05', 'staged')"));
    assert_eq!(replace(third).0, 1);
    fails("SELECT backfill_stage(1)", "BF001");
    // A role without the level is told who can help.
    run("RESET ROLE; CREATE ROLE slice_stranger; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO slice_stranger");
    let fourth = token("sales", "2024-03-09");
    run("SET LOCAL ROLE slice_stranger");
    fails(&format!("SELECT replace_partition({fourth})"), "42501");
    fails(&format!("SELECT backfill_stage({fourth})"), "42501");
    fails(&format!("SELECT replace_or_keep({fourth})"), "42501");
}

#[pg_test]
fn the_owner_s_query_leaves_nothing_in_the_caller_s_session() {
    sales();
    run("CREATE FUNCTION sneak() RETURNS int LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE left_behind (); RETURN 1; END $$;
         CREATE FUNCTION escape() RETURNS int LANGUAGE plpgsql AS $$ BEGIN SET ROLE NONE; RETURN 1; END $$;
         CREATE FUNCTION twist() RETURNS int LANGUAGE sql AS $$ SELECT length(set_config('search_path', 'nowhere', false)) $$");
    for (function, code) in [("sneak", "42501"), ("escape", "42501")] {
        run(&format!("SELECT pipeline_alter('sales', jsonb_build_object('query', 'SELECT $1, ''x'', public.{function}()'))"));
        fails(&format!("SELECT replace_partition({})", token("sales", "2024-03-09")), code);
        run("UPDATE backfill.run_data SET ended_at = now(), outcome = 'failed' WHERE ended_at IS NULL");
    }
    run("SELECT pipeline_alter('sales', jsonb_build_object('query', 'SELECT $1, ''x'', public.twist()'))");
    assert_eq!(replace(token("sales", "2024-03-09")).0, 1);
    assert_ne!(text("SHOW search_path"), "nowhere");
}

#[pg_test]
fn a_hostile_search_path_reaches_the_caller_s_query_only() {
    sales();
    let first = token("sales", "2024-03-09");
    let second = token("sales", "2024-03-10");
    run("CREATE SCHEMA evil;
         CREATE FUNCTION evil.boom(anyelement, anyelement) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil ran' USING ERRCODE = 'ZZ999'; END $$;
         CREATE FUNCTION evil.boom_at(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil ran' USING ERRCODE = 'ZZ999'; END $$;
         CREATE FUNCTION evil.boom_number(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil ran' USING ERRCODE = 'ZZ999'; END $$;
         CREATE OPERATOR evil.>= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.boom_at);
         CREATE OPERATOR evil.< (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.boom_at);
         CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.boom_number);
         CREATE OPERATOR evil.= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.boom_at);
         CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '1999-01-01'::timestamptz $$;
         CREATE FUNCTION evil.count() RETURNS bigint LANGUAGE sql AS $$ SELECT 0::bigint $$;
         CREATE TABLE evil.source (at timestamptz, item text, amount int);
         CREATE TABLE evil.sales (at timestamptz, item text, amount int);
         SET LOCAL search_path = evil, pg_catalog, public");
    assert_eq!(replace_by(&first.to_string()).0, 24);
    run(&format!("INSERT INTO evil.source VALUES ('2024-03-10 12:00-04', 'evil', 1)"));
    // The caller's own text is read as the caller reads it.
    fails(&format!("SELECT public.replace_partition({second}, query => 'SELECT * FROM source WHERE at >= $1')"), "ZZ999");
    let (rows, ..) = replace_by(&format!("{second}, query => 'SELECT * FROM source'"));
    assert_eq!(rows, 1);
    run("SET LOCAL search_path = public");
    assert_eq!(number("SELECT count(*) FROM evil.sales"), 0);
    assert_eq!(number("SELECT count(*) FROM sales"), 25);
}

#[pg_test]
fn a_temporary_table_does_not_stand_in_for_the_source() {
    sales();
    run("SELECT pipeline_alter('sales', jsonb_build_object('query', 'SELECT at, item, amount FROM source WHERE at >= $1 AND at < $2'));
         CREATE TEMP TABLE source (at timestamptz, item text, amount int)");
    assert_eq!(replace(token("sales", "2024-03-09")).0, 24);
}

#[pg_test]
fn rows_that_row_level_security_hides_are_not_doubled() {
    roles();
    run("CREATE TABLE sales (at timestamptz, tenant text);
         INSERT INTO sales VALUES ('2024-03-09 12:00-05', 'other'), ('2024-03-09 12:00-05', 'mine');
         ALTER TABLE sales ENABLE ROW LEVEL SECURITY;
         CREATE POLICY mine ON sales TO slice_worker USING (tenant = 'mine');
         GRANT SELECT, INSERT, DELETE ON sales TO slice_worker;
         SELECT pipeline_define('sales', '1 day', '2024-03-01', target => 'sales', slice_column => 'at', time_zone => 'America/New_York');
         SELECT pipeline_grant('sales', 'slice_worker', 'work')");
    let token = token("sales", "2024-03-09");
    run("SET LOCAL ROLE slice_worker");
    let call = format!("SELECT public.replace_partition({token}, query => $q$SELECT $1, 'mine' UNION ALL SELECT $1, 'mine'$q$)");
    let error = fails(&call, "40001");
    says(&error, "detail", "1 rows were deleted");
    says(&error, "hint", "row-level security");
    fails(&format!("SELECT public.replace_partition({token}, query => $q$SELECT $1, 'other'$q$)"), "42501");
    run("RESET ROLE; DELETE FROM sales WHERE tenant = 'other'; SET LOCAL ROLE slice_worker");
    run(&call);
    run("RESET ROLE");
    assert_eq!(number("SELECT count(*) FROM sales"), 2);
}

#[pg_test]
fn partitions_of_any_depth_are_written_through_the_parent() {
    run("CREATE TABLE source (at timestamptz, region text, n int);
         INSERT INTO source SELECT '2024-03-09 00:30-05'::timestamptz + n * interval '1 hour', (ARRAY['eu', 'us', 'asia'])[1 + n % 3], n FROM generate_series(0, 71) n;
         CREATE TABLE sales (at timestamptz, region text, n int) PARTITION BY RANGE (at);
         CREATE TABLE sales_old PARTITION OF sales FOR VALUES FROM (MINVALUE) TO ('2024-03-09 12:00-05') PARTITION BY LIST (region);
         CREATE TABLE sales_old_eu PARTITION OF sales_old FOR VALUES IN ('eu');
         CREATE TABLE sales_old_rest PARTITION OF sales_old DEFAULT;
         CREATE TABLE sales_new (n int, at timestamptz, gone int, region text);
         ALTER TABLE sales_new DROP gone;
         ALTER TABLE sales ATTACH PARTITION sales_new FOR VALUES FROM ('2024-03-09 12:00-05') TO (MAXVALUE)");
    define("SELECT * FROM public.source WHERE at >= $1 AND at < $2");
    let first = replace(token("sales", "2024-03-09"));
    assert_eq!(first.0, 24);
    assert_eq!(number("SELECT count(DISTINCT tableoid) FROM sales"), 3);
    assert_eq!(replace(token("sales", "2024-03-09")), (24, 0, 0, false, first.4));
    run("UPDATE source SET n = -n");
    assert_eq!(replace(token("sales", "2024-03-09")).2, 24);
    assert_eq!(number("SELECT count(*) FROM (TABLE sales EXCEPT ALL TABLE source) d"), 0);
    // A trigger on a partition is seen as well.
    run("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
         CREATE TRIGGER odd BEFORE INSERT ON sales_old_eu FOR EACH ROW EXECUTE FUNCTION swallow();
         UPDATE source SET n = n - 1");
    fails(&format!("SELECT replace_partition({})", token("sales", "2024-03-09")), "40001");
}

#[pg_test]
fn a_target_that_is_gone_is_named() {
    sales();
    let token = token("sales", "2024-03-09");
    run("ALTER TABLE sales RENAME at TO happened");
    fails(&format!("SELECT replace_partition({token})"), "42704");
    run("ALTER TABLE sales RENAME happened TO at; ALTER TABLE sales ALTER at TYPE text");
    fails(&format!("SELECT replace_partition({token})"), "42704");
    run("DROP TABLE sales");
    fails(&format!("SELECT replace_partition({token})"), "42704");
    fails(&format!("SELECT backfill_stage({token})"), "42704");
}
