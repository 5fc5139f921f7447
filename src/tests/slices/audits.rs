//! What must be true of new rows.

use super::support::*;
use pgrx::prelude::*;

#[pg_schema]
mod tests {
    use super::*;

    fn audit(name: &str, query: &str) -> String {
        text(&format!("SELECT pipeline_audit('sales', '{name}', $${query}$$)"))
    }

    #[pg_test]
    fn rows_of_which_an_audit_is_not_true_are_refused_before_anything_is_written() {
        sales();
        assert_eq!(audit("has rows", "SELECT count(*) > 20 FROM slice"), "created");
        assert_eq!(audit("has rows", "SELECT count(*) > 20 FROM slice"), "unchanged");
        let day = token("sales", "2024-03-10");
        assert_eq!(replace_by(&format!("{day}, finish => false")).0, 23);

        assert_eq!(audit("has rows", "SELECT count(*) > 23 FROM slice"), "changed");
        let error = fails(&format!("SELECT replace_partition({day})"), "BF006");
        says(&error, "message", "audit \"has rows\" refuses the rows for window 2024-03-10");
        says(&error, "detail", "SELECT count(*) > 23 FROM slice");
        says(&error, "hint", "quarantine_accept");
        assert_eq!(number("SELECT count(*) FROM sales"), 23);

        assert_eq!(text("SELECT pipeline_audit_drop('sales', 'has rows')"), "dropped");
        assert_eq!(replace(day).0, 23);
        fails("SELECT pipeline_audit_drop('sales', 'has rows')", "42704");
    }

    #[pg_test]
    fn null_nothing_several_rows_and_an_error_are_not_true() {
        sales();
        let day = token("sales", "2024-03-09");
        for (query, words) in [
            ("SELECT NULL::bool FROM slice LIMIT 1", "did not answer one row that is true"),
            ("SELECT true FROM slice WHERE amount < 0", "did not answer one row that is true"),
            ("SELECT true FROM slice", "did not answer one row that is true"),
            ("SELECT 1 / (count(*) - count(*)) = 1 FROM slice", "It failed: division by zero."),
        ] {
            audit("odd", query);
            says(&fails(&format!("SELECT replace_partition({day})"), "BF006"), "detail", words);
        }
        // Reasons for a slice that shrinks are not reasons for this.
        fails(&format!("SELECT replace_partition({day}, allow_shrink => 'why')"), "BF006");
        run("CREATE TABLE public.known (item text);
             INSERT INTO public.known SELECT DISTINCT item FROM public.source");
        audit("odd", "SELECT bool_and(item IN (SELECT item FROM public.known)) FROM slice");
        run("ALTER TABLE public.known RENAME TO unknown");
        let error = fails(&format!("SELECT replace_partition({day})"), "BF006");
        says(&error, "detail", "\"public.known\" does not exist");
        run("ALTER TABLE public.unknown RENAME TO known");
        assert_eq!(replace(day).0, 24);
    }

    #[pg_test]
    fn an_audit_sees_the_window_and_the_columns_by_name() {
        sales();
        run(
            "ALTER TABLE sales ADD twice int GENERATED ALWAYS AS (amount * 2) STORED, ADD loaded text DEFAULT 'now'",
        );
        audit("bounds", "SELECT bool_and(at >= $1 AND at < $2) AND $2 - $1 = interval '23 hours' FROM slice");
        audit("in another order", "SELECT max(length(item)) = 6 AND min(amount) = 24 FROM slice s");
        let day = token("sales", "2024-03-10");
        assert_eq!(replace(day).0, 23);

        // Those of a stage, too.
        audit("loaded", "SELECT bool_and(loaded = 'by hand') FROM slice");
        let day = token("sales", "2024-03-10");
        let stage = text(&format!("SELECT backfill_stage({day})::text"));
        run(&format!(
            "INSERT INTO {stage} (at, item, amount, loaded)
                      SELECT at, item, amount, 'by hand' FROM sales WHERE amount < 48 ORDER BY at"
        ));
        assert_eq!(replace(day).0, 23);
    }

    #[pg_test]
    fn an_audit_is_one_select_of_a_boolean_over_the_new_rows() {
        sales();
        let define = |query: &str| format!("SELECT pipeline_audit('sales', 'odd', $${query}$$)");
        for query in [
            "SELECT 1",
            "SELECT true, true",
            "DELETE FROM sales",
            "SELECT true; SELECT true",
            "SELECT true INTO x",
        ] {
            fails(&define(query), "22023");
        }
        fails(&define("SELECT colour IS NULL FROM slice"), "42703");
        fails(&define("SELEC"), "42601");
        fails("SELECT pipeline_audit('sales', ' ', 'SELECT true')", "22023");
        fails("SELECT pipeline_audit('sales', 'odd', NULL)", "22004");
        run("SELECT pipeline_define('outside', '1 day', '2024-03-01')");
        fails("SELECT pipeline_audit('outside', 'odd', 'SELECT true FROM slice')", "55000");
        assert_eq!(number("SELECT count(*) FROM backfill.audits"), 0);
    }

    #[pg_test]
    fn an_audit_runs_as_the_owner_of_the_pipeline() {
        roles();
        run("CREATE TABLE public.secret (least int); INSERT INTO public.secret VALUES (0);
             ALTER TABLE public.secret OWNER TO slice_owner; REVOKE ALL ON public.secret FROM PUBLIC");
        sales();
        run("ALTER TABLE sales OWNER TO slice_owner; ALTER TABLE source OWNER TO slice_owner;
             UPDATE backfill.pipeline_data SET owner = 'slice_owner';
             SELECT pipeline_grant('sales', 'slice_worker', 'work');
             GRANT SELECT, INSERT, DELETE ON sales TO slice_worker;
             SET ROLE slice_owner;
             SELECT pipeline_audit('sales', 'secret',
                 'SELECT min(amount) >= (SELECT least FROM public.secret) AND current_user = ''slice_owner'' FROM slice');
             RESET ROLE");
        // The fingerprint of the query is taken as its author.
        let day = token("sales", "2024-03-09");
        run("SET ROLE slice_worker");
        assert_eq!(replace(day).0, 24);
        run("RESET ROLE; UPDATE public.secret SET least = 99");
        let day = token("sales", "2024-03-09");
        run("SET ROLE slice_worker");
        fails(&format!("SELECT replace_partition({day})"), "BF006");
        run("RESET ROLE");
    }
}
