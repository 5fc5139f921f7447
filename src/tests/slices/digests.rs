//! Digests: of the rows, and of nothing else.

use super::support::*;
use crate::postgres::digest;
use crate::postgres::executor::{self, Pair, Sight, Sink};
use crate::postgres::query::Select;
use crate::postgres::settings;
use pgrx::pg_sys;
use pgrx::prelude::*;

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

#[pg_schema]
mod tests {
    use super::*;

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
    fn blanks_that_a_length_adds_are_the_same_however_rows_come() {
        run("CREATE TABLE sales (at timestamptz, c char(3)); CREATE TABLE source (at timestamptz, c text);
             INSERT INTO source VALUES ('2024-03-09 12:00-05', 'a')");
        define("SELECT * FROM public.source");
        let first = replace(token("sales", "2024-03-09"));
        for c in ["'a'", "'a  '", "'a '::char(2)", "'a'::bpchar"] {
            let token = token("sales", "2024-03-09");
            let query = format!("{token}, query => $$SELECT at, {c} FROM public.source$$");
            assert_eq!(replace_by(&query), (1, 0, 0, false, first.4.clone()), "{c}");
        }
        let token = token("sales", "2024-03-09");
        run(&format!(
            "INSERT INTO {} SELECT * FROM source",
            text(&format!("SELECT backfill_stage({token})::text"))
        ));
        assert_eq!(replace(token), (1, 0, 0, false, first.4));
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

    #[pg_test]
    fn a_digest_is_the_same_on_every_server() {
        run("CREATE TABLE sales (at timestamptz, f float8, r tstzrange, n numeric, c char(5), d date, x text, gone int);
             ALTER TABLE sales DROP gone;
             CREATE TABLE source (n int)");
        define(
            "SELECT $1, 1 / 3.0::float8, tstzrange($1, $2), 0.10, 'ab', '2024-03-09', 'ü' FROM public.source",
        );
        run("INSERT INTO source VALUES (1), (2)");
        let (.., digest) = replace(token("sales", "2024-03-09"));
        assert_eq!(digest, "d8edda113b048ea0e3955a7b34899fe8");
    }

    #[pg_test]
    fn the_text_that_is_hashed_is_the_output_function_s() {
        let values = [
            ("boolean", "SELECT n % 2 = 0 FROM n"),
            ("smallint", "SELECT v::smallint FROM unnest('{-32768,-1,0,7,32767}'::int[]) v"),
            ("int", "SELECT v FROM unnest('{-2147483648,-1,0,10,2147483647}'::int[]) v"),
            (
                "bigint",
                "SELECT v FROM unnest('{-9223372036854775808,-10,0,1,9223372036854775807}'::bigint[]) v",
            ),
            (
                "date",
                "SELECT '2000-01-01'::date + n * 379 FROM n UNION ALL SELECT v FROM unnest('{4713-01-01 BC,0001-12-31 BC,0001-01-01,5874897-12-31,infinity,-infinity}'::date[]) v",
            ),
            (
                "timestamp",
                "SELECT '2000-01-01'::timestamp + n * interval '379 days 3 hours 7.000123 seconds' FROM n UNION ALL SELECT v FROM unnest('{4713-01-01 00:00:00.5 BC,0001-12-31 BC,294276-12-31 23:59:59.999999,infinity,-infinity,2024-01-01 00:00:00.1,2024-01-01 00:00:00.01,2024-01-01 00:00:00.000001}'::timestamp[]) v",
            ),
            (
                "timestamptz",
                "SELECT '2000-01-01Z'::timestamptz + n * interval '379 days 3 hours 7.00012 seconds' FROM n UNION ALL SELECT v FROM unnest('{4713-01-01 00:00:00+00 BC,0044-03-15 12:00+00 BC,infinity,-infinity}'::timestamptz[]) v",
            ),
            ("uuid", "SELECT md5(n::text)::uuid FROM n"),
            ("text", "SELECT repeat('ü😀''\"', n::int) FROM n"),
            ("varchar(3)", "SELECT 'a' UNION ALL SELECT '' UNION ALL SELECT 'a  '"),
            ("bpchar", "SELECT 'a' UNION ALL SELECT '' UNION ALL SELECT 'a  '"),
            ("char(3)", "SELECT 'a' UNION ALL SELECT '' UNION ALL SELECT 'a  '"),
            ("json", "SELECT '{\"a\":  1}'::json"),
            ("numeric", "SELECT n / 7.0 FROM n UNION ALL SELECT 'NaN' UNION ALL SELECT '1e100'"),
            (
                "float8",
                "SELECT n / 7.0::float8 FROM n UNION ALL SELECT v FROM unnest('{NaN,-0,1e-300,Infinity}'::float8[]) v",
            ),
            ("jsonb", "SELECT jsonb_build_object('b', n, 'a', NULL) FROM n"),
            ("text", "SELECT string_agg(md5(n::text || m), '') FROM n, generate_series(1, 200) m GROUP BY n"),
        ];
        run("SET LOCAL TimeZone = 'America/New_York'; SET LOCAL DateStyle = 'SQL, DMY'");
        let bounds = Pair { type_oid: pg_sys::TIMESTAMPTZOID, values: [pg_sys::Datum::from(0); 2] };
        for (type_name, select) in values {
            run(&format!(
                "DROP TABLE IF EXISTS many;
                 CREATE TABLE many AS WITH n AS MATERIALIZED (SELECT n FROM generate_series(-400, 400) n)
                 SELECT v::{type_name} FROM ({}) AS s(v)",
                select
            ));
            let mut own = Digests::default();
            let select = Select::of_ours("SELECT v FROM public.many", pg_sys::TIMESTAMPTZOID);
            unsafe {
                executor::select(select.query(), select.text(), bounds, Sight::Transaction, None, &mut own)
            };
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
}
