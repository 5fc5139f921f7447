//! Users' queries: what is taken for one, what it means, whose it is.

use super::support::*;
use crate::postgres::meaning;
use pgrx::prelude::*;

#[pg_schema]
mod tests {
    use super::*;

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
        assert_eq!(
            text("SHOW search_path"),
            text("SELECT reset_val FROM pg_settings WHERE name = 'search_path'")
        );
        assert_eq!(text("SELECT current_user::text"), text("SELECT session_user::text"));
    }

    #[pg_test]
    fn a_lease_s_query_that_changed_is_not_run() {
        sales();
        run(
            "SELECT pipeline_alter('sales', jsonb_build_object('query', 'SELECT s.* FROM public.source s WHERE at >= $1 AND at < $2'))",
        );
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
        run(
            "CREATE SCHEMA other; CREATE TABLE public.source (at timestamptz, n int); CREATE TABLE other.source (at timestamptz, n int)",
        );
        let me = text("SELECT current_user::text");
        let print = |sql: &str, path: &str| meaning::of_text(&me, sql, path).unwrap().version.clone();
        let plain = print("SELECT at, n FROM source WHERE at >= $1 AND at < $2", "public");
        assert!(plain.starts_with("sql:") && plain.len() == 36);
        assert_eq!(
            plain,
            print(
                "select AT,\n  N -- the number\nfrom /* here */ public.source where at>=$1 and at<$2;",
                "public"
            )
        );
        assert_ne!(plain, print("SELECT at, n FROM source WHERE at >= $1 AND at < $2", "other, public"));
        assert_ne!(plain, print("SELECT at, n + 0 FROM source WHERE at >= $1 AND at < $2", "public"));
        let dated = |zone: &str| {
            run(&format!("SET LOCAL TimeZone = '{zone}'; SET LOCAL DateStyle = 'SQL, DMY'"));
            print(
                "SELECT at, n FROM source WHERE at >= '2024-03-02 00:00+00' AND at < $2 AND '1 mon'::interval > '3 days'",
                "public",
            )
        };
        assert_eq!(dated("UTC"), dated("Asia/Tokyo"));
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
        says(&error, "detail", "needs INSERT");
        run("RESET ROLE; GRANT INSERT ON sales TO slice_worker; SET LOCAL ROLE slice_worker");
        says(&fails(&format!("SELECT replace_partition({first})"), "42501"), "detail", "needs DELETE");
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
        fails(
            &format!(
                "SELECT replace_partition({second}, query => 'SELECT at, current_user::text FROM secret')"
            ),
            "42501",
        );
        fails(
            &format!("SELECT replace_partition({second}, query => $q$SELECT $1, current_user::text$q$)"),
            "42501",
        );
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
        run(
            "RESET ROLE; CREATE ROLE slice_stranger; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO slice_stranger",
        );
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
            run(&format!(
                "SELECT pipeline_alter('sales', jsonb_build_object('query', 'SELECT $1, ''x'', public.{function}()'))"
            ));
            fails(&format!("SELECT replace_partition({})", token("sales", "2024-03-09")), code);
            run("UPDATE backfill.run_data SET ended_at = now(), outcome = 'failed' WHERE ended_at IS NULL");
        }
        run(
            "SELECT pipeline_alter('sales', jsonb_build_object('query', 'SELECT $1, ''x'', public.twist()'))",
        );
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
        run("INSERT INTO evil.source VALUES ('2024-03-10 12:00-04', 'evil', 1)");
        // The caller's own text is read as the caller reads it.
        fails(
            &format!(
                "SELECT public.replace_partition({second}, query => 'SELECT * FROM source WHERE at >= $1')"
            ),
            "ZZ999",
        );
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
        let call = format!(
            "SELECT public.replace_partition({token}, query => $q$SELECT $1, 'mine' UNION ALL SELECT $1, 'mine'$q$)"
        );
        let error = fails(&call, "40001");
        says(&error, "detail", "1 rows were deleted");
        says(&error, "hint", "row-level security");
        fails(
            &format!("SELECT public.replace_partition({token}, query => $q$SELECT $1, 'other'$q$)"),
            "42501",
        );
        run("RESET ROLE; DELETE FROM sales WHERE tenant = 'other'; SET LOCAL ROLE slice_worker");
        run(&call);
        run("RESET ROLE");
        assert_eq!(number("SELECT count(*) FROM sales"), 2);
    }

    #[pg_test]
    fn rows_that_are_hidden_from_their_owner_are_not_guessed_at() {
        roles();
        run(
            "CREATE TABLE sales (at timestamptz, tenant text);
             ALTER TABLE sales ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY, OWNER TO slice_owner;
             CREATE POLICY mine ON sales USING (tenant = 'mine');
             SELECT pipeline_define('sales', '1 day', '2024-03-01', target => 'sales', slice_column => 'at')",
        );
        let token = token("sales", "2024-03-09");
        let call = format!("SELECT replace_partition({token}, query => $q$SELECT $1, 'mine'$q$)");
        says(&fails(&call, "42501"), "message", "row-level security");
        run("ALTER TABLE sales NO FORCE ROW LEVEL SECURITY");
        run(&call);
    }

    #[pg_test]
    fn a_pipeline_is_not_defined_with_what_is_no_query() {
        sales();
        let define = |query: &str| {
            format!("SELECT pipeline_alter('sales', jsonb_build_object('query', $q${query}$q$))")
        };
        for (query, code) in [
            ("DELETE FROM source", "22023"),
            ("SELECT 1; SELECT 2", "22023"),
            ("WITH d AS (DELETE FROM source RETURNING *) SELECT * FROM d", "22023"),
            ("SELECT * FROM nowhere", "42P01"),
            ("SELECT at, item, amount, 1 FROM source", "42601"),
            ("SELECT item FROM source", "42804"),
            ("SELECT at, item, $3 FROM source", "42P02"),
        ] {
            fails(&define(query), code);
        }
        run(&define("SELECT at FROM source"));
    }
}
