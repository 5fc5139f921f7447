//! A column of the target that says of each row by which code it was built.

use crate::support::{Calls, define};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};

/// The stamp stands before the last column, so that its place is not where it is put by chance.
const WORLD: &str = r#"
    CREATE TABLE source (at timestamptz NOT NULL, n int NOT NULL);
    INSERT INTO source SELECT '2024-01-01Z'::timestamptz + i * interval '6 hours', i FROM generate_series(0, 11) i;
    CREATE TABLE built (at timestamptz NOT NULL, "Built by 🦀" text, n bigint);
"#;
const QUERY: &str = "SELECT at, n FROM source WHERE at >= $1 AND at < $2";

fn world(settings: &str) -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(WORLD);
    let settings = format!("stamp_column => 'Built by 🦀', {settings}");
    define(&mut session, "daily", "'1 day', '2024-01-01', 'built', 'at'", &settings);
    (database, session)
}

fn query() -> (Database, Session) {
    world(&format!("query => '{QUERY}', keep_previous => '1 day'"))
}

fn plan(session: &mut Session, more: &str) -> i64 {
    session.one(
        &format!("SELECT plan_id FROM backfill_plan('daily', NULL, '2024-01-04', 'why'{more}, expect => 3)"),
        &[],
    )
}

fn work(session: &mut Session) {
    session.run("CALL backfill_work(pipelines => ARRAY['daily'])");
}

/// Rows whose stamp is that of their slice in the ledger, and all others.
fn stamped(session: &mut Session) -> String {
    session.one(
        "SELECT concat_ws('|', count(*) FILTER (WHERE \"Built by 🦀\" = slice_version('built', at)),
                count(*) FILTER (WHERE \"Built by 🦀\" IS DISTINCT FROM slice_version('built', at))) FROM built",
        &[],
    )
}

#[test]
fn every_row_has_the_version_of_its_slice_whatever_the_strategy() {
    let (_database, mut session) = query();
    plan(&mut session, "");
    work(&mut session);
    assert_eq!(stamped(&mut session), "12|0");
    assert_eq!(session.lines("SELECT sum(n) FROM built"), ["66"]);
    // The same rows again are no change; by other code they are, though it makes the same rows.
    let changed = "SELECT strategy, changed, inserted, deleted FROM replace_partition($1, strategy => $2)";
    for (strategy, edit) in [("rows", "+ 0"), ("diff", "+ 0 + 0"), ("auto", "* 1")] {
        for again in [false, true] {
            if !again {
                let other = QUERY.replace("at, n", &format!("at, n {edit}"));
                session
                    .run(&format!("SELECT pipeline_alter('daily', jsonb_build_object('query', '{other}'))"));
            }
            session.plan_window("2024-01-01");
            let token = session.lease().token;
            let row = session.query(changed, &[&token, &strategy]).unwrap().remove(0);
            assert_eq!(row.get::<_, bool>(1), !again, "{strategy}");
            assert_eq!([row.get::<_, i64>(2), row.get::<_, i64>(3)], if again { [0, 0] } else { [4, 4] });
            assert_eq!(stamped(&mut session), "12|0");
        }
    }
}

#[test]
fn rows_of_every_source_are_stamped_by_what_built_them() {
    let (_database, mut session) = query();
    for fill in [
        "SELECT FROM replace_partition({}, query => 'SELECT at, n + 1 FROM source WHERE at >= $1 AND at < $2')",
        "DO $$ BEGIN EXECUTE format('INSERT INTO %s (at, n) SELECT at, n FROM source WHERE n < 4', backfill_stage({})); END $$;
         SELECT FROM replace_partition({})",
        // What a stage says of its code is not believed.
        "CREATE TABLE mine AS SELECT at, n, 'forged' AS \"Built by 🦀\" FROM source WHERE n < 4;
         SELECT FROM replace_partition({}, staging => 'mine')",
    ] {
        session.plan_window("2024-01-01");
        let token = session.lease().token;
        session.run(&fill.replace("{}", &token.to_string()));
        assert_eq!(stamped(&mut session), "4|0", "{fill}");
    }
}

#[test]
fn workers_stamp_what_they_state_and_a_revert_brings_stamps_back() {
    let (_database, mut session) = world("keep_previous => '1 day'");
    let run = |session: &mut Session, version: &str| {
        let plan = plan(session, "");
        session.run(&format!(
            "SELECT replace_partition(token, query => '{QUERY}') FROM backfill_claim('w', 9, pipelines => '{{daily}}'{version})"
        ));
        plan
    };
    session.run("SELECT pool_define('backfill', 9)");
    run(&mut session, ", code_version => 'v1'");
    assert_eq!(session.lines("SELECT \"Built by 🦀\", count(*) FROM built GROUP BY 1"), ["v1|12"]);
    let second = run(&mut session, ", code_version => 'v2'");
    assert_eq!(session.lines("SELECT \"Built by 🦀\", count(*) FROM built GROUP BY 1"), ["v2|12"]);
    session.run(&format!("SELECT backfill_revert({second}, 'why')"));
    assert_eq!(session.lines("SELECT \"Built by 🦀\", count(*) FROM built GROUP BY 1"), ["v1|12"]);
    assert_eq!(stamped(&mut session), "12|0");
    // Whoever states nothing leaves nothing.
    run(&mut session, "");
    assert_eq!(session.lines("SELECT count(*), count(\"Built by 🦀\") FROM built"), ["12|0"]);
}

#[test]
fn a_plan_that_is_published_together_shows_no_difference_of_stamps_and_leaves_them() {
    let (_database, mut session) = query();
    plan(&mut session, "");
    work(&mut session);
    let other = QUERY.replace("at, n", "at, n + 0");
    let plan = plan(&mut session, &format!(", publish => 'together', query => '{other}'"));
    work(&mut session);
    let altered = session.query("SELECT pipeline_alter('daily', '{\"stamp_column\": null}')", &[]);
    assert_sqlstate!(altered, "55000");
    let differ = format!("SELECT bool_or(changed) FROM backfill_diff({plan})");
    assert_eq!(session.lines(&differ), ["f"]);
    session.run(&format!("SELECT backfill_publish({plan})"));
    assert_eq!(stamped(&mut session), "12|0");
    assert_eq!(session.lines("SELECT count(DISTINCT \"Built by 🦀\"), bool_and(\"Built by 🦀\" = pipeline_version('daily')) FROM built"), ["1|t"]);
}

#[test]
fn a_verification_holds_rows_to_each_other_and_not_their_stamps() {
    let (_database, mut session) = query();
    plan(&mut session, "");
    work(&mut session);
    let other = QUERY.replace("at, n", "at, n + 0");
    session.run(&format!("SELECT pipeline_alter('daily', jsonb_build_object('query', '{other}'))"));
    session.run("SELECT FROM backfill_verify('daily', NULL, '2024-01-04')");
    work(&mut session);
    assert_eq!(session.lines("SELECT same, count(*) FROM backfill.verifications GROUP BY 1"), ["t|3"]);
}

#[test]
fn a_stamp_is_a_text_of_the_target_that_nothing_else_fills() {
    let (_database, mut session) = query();
    session.run(
        "CREATE TABLE other (at timestamptz NOT NULL, short varchar(9), number int, always text GENERATED ALWAYS AS ('x') STORED,
            stamp text)",
    );
    let mut define = |stamp: &str| {
        session.query(
            &format!(
                "SELECT pipeline_define('p', '1 day', '2024-01-01', 'other', 'at', stamp_column => '{stamp}')"
            ),
            &[],
        )
    };
    assert_sqlstate!(define("missing"), "42704");
    for column in ["short", "number", "always", "at"] {
        assert_sqlstate!(define(column), "22023");
    }
    define("stamp").unwrap();
    assert_sqlstate!(
        session.query("SELECT pipeline_define('q', '1 day', '2024-01-01', stamp_column => 'stamp')", &[]),
        "22023"
    );
    assert_eq!(session.lines("SELECT stamp_column FROM backfill.pipelines WHERE pipeline = 'p'"), ["stamp"]);
    session.run("SELECT pipeline_alter('p', '{\"stamp_column\": null}')");
    // A column that went since is missed with a word.
    session.run("ALTER TABLE built DROP \"Built by 🦀\"");
    session.run("SELECT FROM backfill_plan('daily', NULL, '2024-01-02', 'why', expect => 1)");
    work(&mut session);
    let told: String = session.one(
        "SELECT error FROM backfill.runs WHERE outcome IS DISTINCT FROM 'done' ORDER BY token LIMIT 1",
        &[],
    );
    assert!(told.contains("Built by 🦀"), "{told}");
}
