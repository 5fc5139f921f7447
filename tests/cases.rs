//! Faults that users of other systems reported in public, and the tests that make their kind impossible here.
//!
//! The letters are subjects: A what starts by itself, B order, F the life of a backfill, G size and progress, H versions and
//! changed definitions, I replacing and publishing, J what a slice is a function of. Where nothing is tried yet, the case says
//! what it waits for.

use std::fs;
use std::path::Path;

enum Tried {
    /// Tests by their path; those that begin with `domain` are beside the code, those with `backend` in src/tests.
    By(&'static [&'static str]),
    /// Why not.
    Not(&'static str),
}
use Tried::{By, Not};

/// A case: its name, what went wrong there, where, and what tries it here.
type Case = (&'static str, &'static str, &'static str, Tried);

const CASES: [Case; 51] = [
    (
        "A1",
        "enabling a pipeline started runs for all its history",
        "apache/airflow#47354",
        By(&["catchup::defining_a_pipeline_with_an_old_start_starts_nothing"]),
    ),
    (
        "A2",
        "a pause and a resume made it forget that there was no catchup",
        "apache/airflow#19126",
        By(&[
            "catchup::a_resume_starts_no_more_than_the_bound_and_lists_the_rest",
            "eligible::the_same_windows_may_start_whatever_happened_before",
        ]),
    ),
    (
        "A3",
        "without catchup, one past run was started all the same",
        "apache/airflow#39867, #38168, #45768",
        By(&["catchup::without_catchup_the_first_lease_ends_after_the_pipeline_became_active"]),
    ),
    (
        "A5",
        "after a day without workers, all late runs were executed, oldest first",
        "PrefectHQ/prefect#15886, #17575",
        By(&[
            "catchup::a_day_without_a_worker_leaves_the_bound_and_one_call_decides_about_the_rest",
            "catchup::after_days_without_workers_only_the_backlog_starts",
        ]),
    ),
    (
        "A6",
        "behind one stuck run schedules piled up, and all started when it ended",
        "kestra-io/kestra#3000, #2713",
        By(&[
            "catchup::while_one_lease_is_held_later_windows_wait_as_states_and_the_bound_applies_when_it_ends",
        ]),
    ),
    (
        "A8",
        "only the last missed run was made good, the others were lost",
        "argoproj/argo-workflows#9632, #4210, #6778",
        By(&["catchup::each_missed_window_is_a_row_and_a_window_of_the_plan_that_makes_it_good"]),
    ),
    (
        "A9",
        "after an outage of a year a bound by age let thousands start",
        "temporalio/temporal#4332",
        By(&["domain::catchup::a_long_outage_is_bounded_by_a_count"]),
    ),
    (
        "A10",
        "nobody could learn which run was skipped, and why",
        "temporalio/temporal#8087, #10503",
        By(&[
            "catchup::a_window_that_does_not_run_tells_whether_the_rule_another_window_or_a_person_keeps_it",
        ]),
    ),
    (
        "B1",
        "a backfill was declared deadlocked because of another pipeline",
        "apache/airflow#26044, #31740",
        By(&["leases::sequence::pipelines_do_not_block_each_other"]),
    ),
    (
        "B2",
        "days that depend on each other were not run in their order",
        "apache/airflow#7989",
        By(&["leases::sequence::eight_workers_build_a_chain_in_order_at_every_level"]),
    ),
    (
        "B3",
        "running backwards had no effect",
        "apache/airflow#50522, #49397",
        By(&[
            "leases::order::the_first_three_leases_of_three_workers_are_the_three_newest",
            "leases::sequence::other_orders_and_more_at_once_are_refused",
        ]),
    ),
    (
        "B4",
        "the order of a range was random",
        "spotify/luigi#1110",
        By(&["leases::order::the_oldest_come_first"]),
    ),
    (
        "B5",
        "a backfill had no order to choose",
        "dagster-io/dagster#18563, #14747, #18773",
        By(&["plans::proposing::the_order_is_part_of_the_plan_and_shown"]),
    ),
    (
        "B7",
        "a day that was not over was launched with its hours",
        "dagster-io/dagster#13694",
        By(&["plans::proposing::a_day_that_is_not_over_is_not_planned_though_its_hours_are"]),
    ),
    (
        "B8",
        "an earlier start left out windows downstream, and ran others out of order",
        "TobikoData/sqlmesh#4837",
        Not("dependencies between pipelines are not built yet"),
    ),
    (
        "B10",
        "what coordinated took every slot, and nothing ran",
        "dbt-labs/dbt-core#11306, #11420, #12335",
        // Nothing coordinates: a plan is rows, and only leases hold slots.
        By(&["leases::pools::plans_of_one_priority_share_a_pool_and_a_higher_one_comes_first"]),
    ),
    (
        "F1",
        "a cancelled backfill went on, or left runs behind",
        "dagster-io/dagster#15013, #12634, #14188, #26165",
        By(&["plans::cancelling::a_cancel_frees_everything_at_once_and_says_how_much"]),
    ),
    (
        "F3",
        "a backfill whose runs were all queued could not be cancelled",
        "dagster-io/dagster#27748",
        By(&["plans::cancelling::a_cancel_works_in_every_state_in_which_something_is_left"]),
    ),
    (
        "F5",
        "a backfill was marked as complete before its runs existed",
        "apache/airflow#61375, #62561",
        By(&["plans::approving::a_plan_and_its_windows_appear_at_once"]),
    ),
    (
        "F7",
        "backfills that overlap were accepted",
        "apache/airflow#47670",
        By(&[
            "plans::owning::a_plan_cannot_be_approved_over_windows_that_another_one_owns",
            "plans::owning::of_two_approvals_at_once_one_wins_at_every_level",
            "plans::owning::of_racing_approvals_exactly_one_wins",
        ]),
    ),
    (
        "F8",
        "with the live schedule paused there was no backfill either",
        "apache/airflow#60768",
        By(&["catchup::a_paused_pipeline_starts_nothing_and_its_plans_go_on"]),
    ),
    (
        "F10",
        "a second retry ran successes again",
        "dbt-labs/dbt-core#10800",
        By(&["plans::living::a_second_retry_leaves_alone_what_the_first_made_good"]),
    ),
    (
        "F11",
        "a failure in part was reported as a success",
        "dbt-labs/dbt-core#11114, #11446",
        By(&["plans::living::one_failure_of_a_hundred_is_no_success"]),
    ),
    (
        "F12",
        "a restart failed the backfill and cancelled what was to come",
        "dagster-io/dagster#11631, #33059",
        By(&[
            "crash::a_restart_in_the_middle_of_a_plan_costs_nothing",
            "crash::workers_that_crash_in_the_middle_of_everything_do_each_window_once",
        ]),
    ),
    (
        "F14",
        "a batch of many windows could not fail one",
        "dagster-io/dagster#17836",
        By(&["leases::attempts::one_bad_window_of_ten_leased_at_once_fails_alone"]),
    ),
    (
        "F15",
        "two schedulers went over the limit, and did not look at the pause again",
        "apache/airflow#58752, #58807, #45388, spotify/styx#402, #487",
        By(&[
            "leases::caps::claims_of_different_windows_that_meet_at_the_last_slot_cannot_both_have_it",
            "leases::changing::no_claim_is_granted_above_the_cap_that_was_in_force_however_caps_change_meanwhile",
            "plans::living::a_pause_counts_from_the_next_claim_and_keeps_what_runs",
            "story::an_unpause_runs_nothing_and_a_plan_runs_exactly_what_was_approved",
        ]),
    ),
    (
        "F16",
        "live work starved a backfill for ever",
        "apache/airflow#66729, #58554, #72730",
        // No share has to be guaranteed: a plan has a pool of its own, and one in the pool of live work sees that it waits.
        By(&[
            "leases::pools::live_work_at_full_load_takes_nothing_from_another_pool_and_in_its_own_it_is_seen_what_waits",
        ]),
    ),
    (
        "F17",
        "a backfill starved live work",
        "dagster-io/dagster#2209, apache/airflow#17975",
        By(&[
            "leases::pools::a_live_window_that_falls_due_comes_before_the_ten_thousand_of_a_plan",
            "story::an_unpause_runs_nothing_and_a_plan_runs_exactly_what_was_approved",
        ]),
    ),
    (
        "F18",
        "one limit blocked work that had nothing to do with it, and limits did not compose",
        "apache/airflow#26078, dagster-io/dagster#25743, #31936",
        By(&[
            "leases::caps::the_tightest_of_the_limits_applies_and_only_where_it_should",
            "leases::caps::a_full_plan_hides_no_other_work",
            "waiting::a_full_pool_plan_and_pipeline_are_named",
        ]),
    ),
    (
        "F20",
        "the next batch waited for the slowest of this one",
        "apache/airflow#38954",
        By(&["leases::caps::a_slow_window_holds_up_no_other"]),
    ),
    (
        "G1",
        "ninety thousand partitions timed out",
        "dagster-io/dagster#12441, #3459, #24044",
        By(&["plans::size::a_hundred_thousand_windows_are_planned_in_seconds_and_leased_like_a_hundred"]),
    ),
    (
        "G3",
        "runs were submitted one each second",
        "dagster-io/dagster#28998",
        By(&["plans::size::a_hundred_thousand_windows_are_planned_in_seconds_and_leased_like_a_hundred"]),
    ),
    (
        "G5",
        "the price counted partitions where one of them fanned out into hundreds of tasks",
        "timefusion#109",
        Not("a plan runs the windows of one pipeline: plans with `cascade` are not built yet"),
    ),
    (
        "G6",
        "a backlog was stored before anybody asked for it",
        "OOZIE-3254",
        By(&["plans::size::a_million_windows_that_are_due_are_computed_and_not_stored"]),
    ),
    (
        "G7",
        "progress counted another backfill's runs, or said 100 % too early",
        "apache/airflow#64827, #61811, #56080, dagster-io/dagster#17080, #33888",
        By(&[
            "plans::living::progress_counts_what_the_ledger_holds_and_ends_with_the_last_window",
            "plans::progressing::progress_counts_as_the_view_does_in_every_state",
        ]),
    ),
    (
        "G8",
        "what was executed was not what had been planned, and 100 % was pretended",
        "cashapp/backfila#550",
        By(&[
            "plans::approving::prices_and_the_clock_alone_do_not_put_a_draft_out_of_date",
            "plans::living::a_completed_plan_that_is_extended_goes_on",
        ]),
    ),
    (
        "H1",
        "after a deployment a rerun used the old code, or some windows of it did",
        "apache/airflow#67657, #49639, #52884",
        By(&[
            "mixture::pinning::other_code_in_the_middle_neither_diverts_nor_breaks_a_plan",
            "mixture::pinning::another_query_of_the_pipeline_does_not_divert_a_plan",
            "versions::what_is_edited_in_the_middle_of_a_plan_is_noticed",
        ]),
    ),
    (
        "H3",
        "all was green while some partitions were built by an older version",
        "dagster-io/dagster#22553, #22704, #18921",
        By(&[
            "mixture::pinning::to_finish_on_another_version_takes_a_plan_of_its_own_and_is_on_record",
            "mixture::compatible::compatible_versions_are_no_mixture_and_are_listed_each",
        ]),
    ),
    (
        "H4",
        "which version had built an interval was forgotten by a clean-up",
        "TobikoData/sqlmesh, _update_intervals_for_deleted_snapshots",
        By(&["mixture::pinning::another_query_of_the_pipeline_does_not_divert_a_plan"]),
    ),
    (
        "H6",
        "a run that was resumed built its second half by other code",
        "bruin-data/bruin, its documentation",
        By(&[
            "mixture::pinning::to_finish_on_another_version_takes_a_plan_of_its_own_and_is_on_record",
            "versions::what_is_edited_in_the_middle_of_a_plan_is_noticed",
        ]),
    ),
    (
        "H7",
        "a definition that was changed in the middle of a backfill broke it, or moved it elsewhere",
        "dagster-io/dagster#31450, #32303, #30058; spotify/styx#41",
        By(&[
            "mixture::pinning::other_code_in_the_middle_neither_diverts_nor_breaks_a_plan",
            "grids::a_plan_goes_over_a_switch",
        ]),
    ),
    (
        "H9",
        "with another cadence and a later start windows before the start were asked for",
        "dagster-io/dagster#21812",
        By(&[
            "grids::the_windows_before_the_switch_stay_and_those_after_it_are_laid_anew",
            "grids::a_switch_is_at_a_boundary_of_both_grids_and_after_every_window_of_the_ledger",
        ]),
    ),
    (
        "H10",
        "cadence and start could not be changed, so that people deleted the pipeline with its state",
        "MicrosoftDocs/azure-docs#52805",
        By(&[
            "grids::the_windows_before_the_switch_stay_and_those_after_it_are_laid_anew",
            "grids::an_earlier_start_adds_windows_which_do_not_start",
        ]),
    ),
    (
        "I1",
        "a publication copied partitions one by one while live runs rewrote the table, and took their work back",
        "mozilla/bigquery-etl PR #9744, #9804",
        By(&[
            "plans::together_beside::live_work_that_commits_beside_a_publication_is_not_taken_back",
            "plans::together_beside::a_reader_sees_all_windows_of_before_or_all_of_after",
        ]),
    ),
    (
        "I2",
        "a publication failed in the middle, could not be repeated, and was shown as complete",
        "mozilla/bigquery-etl PR #9869",
        By(&[
            "plans::together_beside::a_crash_leaves_all_windows_staged_or_all_published",
            "crash::stopping::a_server_stopped_at_any_moment_leaves_no_mixture_no_lost_table_and_a_true_ledger",
        ]),
    ),
    (
        "I3",
        "between a DELETE and an INSERT a reader saw an empty slice, and built from it",
        "dbt-labs/dbt-adapters PR #1931",
        By(&[
            "slices::readers_see_whole_slices_only",
            "slices::readers_of_both_kinds_see_one_sum_whatever_the_strategy",
        ]),
    ),
    (
        "I4",
        "rows that vanished from the source stayed in the target, because the rebuild only merged",
        "dbt-labs/dbt-postgres#149",
        By(&[
            "backend::slices::replacing::a_source_row_that_vanished_is_gone_after_a_rebuild",
            "backend::slices::differences::the_slice_is_the_new_multiset_whatever_it_was",
        ]),
    ),
    (
        "I6",
        "an absent or short source replaced good data",
        "ClickHouse/ClickHouse#23727, hatchet-dev/hatchet PR #3709",
        By(&[
            "backend::slices::replacing::a_slice_that_shrinks_needs_a_reason_which_is_kept",
            "backend::slices::replacing::an_empty_slice_over_unknown_rows_is_refused",
            "backend::slices::stages::a_failed_attempt_s_stage_is_kept_even_if_it_is_empty",
        ]),
    ),
    (
        "I9",
        "data was written, and the state that should have said so was not",
        "TobikoData/sqlmesh#5901",
        By(&[
            "crash::a_killed_worker_leaves_each_window_done_once_or_claimable_whatever_its_step",
            "crash::a_stopped_server_leaves_each_window_done_once_or_claimable_whatever_the_step",
            "crash::stopping::a_server_stopped_at_any_moment_leaves_no_mixture_no_lost_table_and_a_true_ledger",
        ]),
    ),
    (
        "J3",
        "models read the clock, so that what they gave depended on the day they were run",
        "cagov/caldata-mdsa-caltrans-pems#560, dbt-labs/docs.getdbt.com PR #9473",
        By(&[
            "lint::the_corpus_gives_what_is_to_be_found_in_it_and_nothing_else",
            "lint::a_definition_that_reads_the_clock_somewhere_is_warned_of_or_refused",
        ]),
    ),
    (
        "J4",
        "history was rebuilt with the dimension of today",
        "dbt-labs/docs.getdbt.com (microbatch: customers), segment-docs#7652",
        By(&[
            "lint::a_dimension_that_can_be_edited_is_named_and_does_not_refuse",
            "verify::a_dimension_that_changed_since_shows",
        ]),
    ),
];

/// The source of the module that a test's path names, and how the test must begin there.
fn source(path: &str) -> (String, String) {
    let (module, test) = path.rsplit_once("::").expect("a test has a module");
    let (folder, module, head) = match module.split_once("::") {
        Some(("backend", module)) => ("src/tests", module, "    #[pg_test]\n    "),
        // Tests beside the code stand in a module of theirs.
        Some(("domain", _)) => ("src", module, "    #[test]\n    "),
        _ => ("tests", module, "\n#[test]\n"),
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(folder)
        .join(module.replace("::", "/"))
        .with_extension("rs");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    (text, format!("{head}fn {test}() {{"))
}

#[test]
fn every_case_is_tried_or_says_why_not() {
    for (name, fault, seen, tried) in &CASES {
        assert!(!fault.is_empty() && !seen.is_empty(), "{name}");
        match tried {
            Not(why) => assert!(!why.is_empty(), "{name}"),
            By(tests) => {
                assert!(!tests.is_empty(), "{name}");
                for path in *tests {
                    let (source, test) = source(path);
                    assert!(source.contains(&test), "{name}: no test {path}");
                }
            }
        }
    }
}
