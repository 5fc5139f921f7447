//! Replacing slices: what is written, what is refused, what is kept.

use super::support::*;
use pgrx::prelude::*;

#[pg_schema]
mod tests {
    use super::*;

    #[pg_test]
    fn nothing_has_changed_where_nothing_was_written() {
        sales();
        let token = token("sales", "2024-03-01");
        for strategy in ["auto", "rows", "diff"] {
            let empty = replace_by(&format!("{token}, strategy => '{strategy}', finish => false"));
            assert_eq!((empty.0, empty.1, empty.2, empty.3), (0, 0, 0, false), "{strategy}");
            run(&format!("UPDATE backfill.run_data SET digest = 'none' WHERE token = {token}"));
        }
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
        assert_eq!((rows, inserted, deleted, changed), (24, 5, 5, true));
        assert_ne!(digest, other);
        assert_eq!(number("SELECT count(*) FROM (TABLE sales EXCEPT ALL TABLE source) d"), 0);
    }

    #[pg_test]
    fn a_slice_that_somebody_changed_by_hand_is_repaired() {
        sales();
        let first = replace(token("sales", "2024-03-09"));
        run("UPDATE sales SET amount = -1 WHERE item = 'item 0'");
        let second = replace(token("sales", "2024-03-09"));
        assert_eq!((second.2, second.3, &second.4), (5, true, &first.4));
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
        assert_eq!(
            text("SELECT string_agg(item, ' ' ORDER BY item) FROM sales WHERE amount = 0"),
            "after before"
        );
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
            fails(
                &format!("SELECT replace_partition({token}, query => $q$SELECT {edge}, 'x', 1$q$)"),
                "BF005",
            );
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
    fn strategies_that_do_not_suit_or_exist_are_refused() {
        sales();
        let token = token("sales", "2024-03-09");
        let error = fails(&format!("SELECT replace_partition({token}, strategy => 'swap')"), "0A000");
        says(&error, "hint", "'rows' or 'diff'");
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
            run(&format!(
                "CREATE TRIGGER odd {moment} INSERT ON sales FOR EACH ROW EXECUTE FUNCTION {function}()"
            ));
            let error = fails(&format!("SELECT replace_partition({token})"), "40001");
            says(&error, "hint", "trigger");
            assert_eq!(number("SELECT count(*) FROM sales"), 0);
            run("DROP TRIGGER odd ON sales");
        }
        let (.., plain) = replace_by(&format!("{token}, finish => false"));
        run("UPDATE source SET amount = amount + 100;
             CREATE TRIGGER odd BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION double()");
        // What is recorded is what the table holds.
        let (rows, .., doubled) = replace(token);
        assert_eq!(rows, 24);
        assert_ne!(plain, doubled);
        run("DROP TRIGGER odd ON sales; UPDATE source SET amount = amount * 2");
        assert_eq!(replace(self::token("sales", "2024-03-09")), (24, 0, 0, false, doubled));
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
}
