//! A shop with a daily pipeline, and short ways to ask.

use pgrx::JsonB;
use pgrx::prelude::*;
use serde_json::Value;

pub fn run(sql: &str) {
    Spi::run(sql).unwrap();
}

pub fn number(sql: &str) -> i64 {
    Spi::get_one::<i64>(sql).unwrap().unwrap()
}

pub fn text(sql: &str) -> String {
    Spi::get_one::<String>(sql).unwrap().unwrap()
}

pub fn yes(sql: &str) -> bool {
    Spi::get_one::<bool>(sql).unwrap().unwrap()
}

/// What a statement fails with.
pub fn caught(sql: &str) -> Value {
    if yes("SELECT to_regproc('public.caught') IS NULL") {
        define_caught();
    }
    let args = [sql.into()];
    Spi::get_one_with_args::<JsonB>("SELECT public.caught($1)", &args).unwrap().unwrap().0
}

pub fn define_caught() {
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
pub fn fails(sql: &str, code: &str) -> Value {
    let error = caught(sql);
    assert_eq!(error["code"], code, "{sql}: {error}");
    error
}

/// The parts of an error that a person reads.
#[track_caller]
pub fn says(error: &Value, part: &str, words: &str) {
    assert!(error[part].as_str().unwrap().contains(words), "{part} of {error} lacks {words:?}");
}

/// A source, a target and a daily pipeline in New York between them.
pub fn sales() {
    run("CREATE TABLE public.source (at timestamptz, item text, amount int);
         INSERT INTO public.source
         SELECT '2024-03-09 00:30-05'::timestamptz + n * interval '1 hour', 'item ' || n % 5, n
         FROM generate_series(0, 71) n;
         CREATE TABLE public.sales (at timestamptz, item text, amount int)");
    define("SELECT at, item, amount FROM public.source WHERE at >= $1 AND at < $2");
}

pub fn define(query: &str) {
    let args = [query.into()];
    Spi::run_with_args(
        "SELECT pipeline_define('sales', '1 day', '2024-03-01', target => 'public.sales',
             slice_column => 'at', time_zone => 'America/New_York', query => $1)",
        &args,
    )
    .unwrap();
}

/// A new token for a day: a plan of that one window, claimed.
pub fn token(pipeline: &str, day: &str) -> i64 {
    token_of(pipeline, day, "")
}

pub fn token_of(pipeline: &str, day: &str, extra: &str) -> i64 {
    plan(pipeline, day, extra);
    claim(pipeline)
}

pub fn plan(pipeline: &str, day: &str, extra: &str) {
    let plan = number(&format!(
        "SELECT (backfill_plan('{pipeline}', NULL, NULL, 'test', keys => ARRAY['{day}'] {extra})).plan_id"
    ));
    run(&format!("SELECT backfill_approve({plan}, 1)"));
}

pub fn claim(pipeline: &str) -> i64 {
    number(&format!("SELECT token FROM backfill_claim('test', pipelines => ARRAY['{pipeline}'])"))
}

pub fn replace(token: i64) -> (i64, i64, i64, bool, String) {
    replace_by(&token.to_string())
}

pub fn replace_by(arguments: &str) -> (i64, i64, i64, bool, String) {
    Spi::connect_mut(|client| {
        let sql =
            format!("SELECT rows, inserted, deleted, changed, digest FROM replace_partition({arguments})");
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

/// A worker, an owner and their rights.
pub fn roles() {
    define_caught();
    run("CREATE ROLE slice_owner; CREATE ROLE slice_worker;
         GRANT CREATE, USAGE ON SCHEMA public TO slice_owner; GRANT USAGE ON SCHEMA public TO slice_worker;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO slice_owner, slice_worker");
}
