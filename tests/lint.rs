//! What the lint finds in queries, and what pipelines do about it.

use pgrx_tests::corpus::{self, Corpus};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};
use std::collections::BTreeSet;
use std::path::Path;

fn corpus() -> Corpus {
    Corpus::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/purity")).expect("it can be read")
}

fn world() -> (Database, Session) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run(&corpus().schema);
    (database, session)
}

#[test]
fn the_corpus_gives_what_is_to_be_found_in_it_and_nothing_else() {
    let (_database, mut session) = world();
    let mut wrong = vec![];
    let cases = corpus().cases;
    for case in &cases {
        session.run("BEGIN");
        if let Err(failure) = session.try_run(&case.definition()) {
            wrong.push(format!("{}: {}", case.name, failure.message));
            session.run("ROLLBACK");
            continue;
        }
        let lines = session.lines(corpus::FINDINGS);
        let found = corpus::findings(lines.iter().map(String::as_str));
        session.run("ROLLBACK");
        for (what, findings) in [("missed", &case.expected - &found), ("false", &found - &case.expected)] {
            wrong.extend(findings.iter().map(|finding| format!("{}: {what} {finding:?}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{} of {} findings:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len());
    let impure = cases.iter().filter(|case| !case.expected.is_empty()).count();
    assert!(impure > 60 && cases.len() - impure > 40, "{impure} of {}", cases.len());
}

/// A definition over `facts`, with more arguments.
fn definition(query: &str, more: &str) -> String {
    format!(
        "SELECT pipeline_define('daily', '1 day', '2024-01-01', target => 'facts', slice_column => 'day',
             query => $q${query}$q${more})"
    )
}

const PURE: &str = "SELECT p.at, p.amount FROM paid p WHERE p.at >= $1 AND p.at < $2";
const IMPURE: &str = "SELECT r.at, r.amount FROM recent_named r WHERE r.at >= $1 AND r.at < $2";
const WITH_DIMENSION: &str =
    "SELECT s.at, i.name FROM sales s JOIN items i ON i.id = s.item WHERE s.at >= $1 AND s.at < $2";

fn warnings(session: &Session) -> Vec<String> {
    session.notices().iter().map(|notice| notice.message.clone()).collect()
}

#[test]
fn a_definition_that_reads_the_clock_somewhere_is_warned_of_or_refused() {
    let (_database, mut session) = world();
    session.notices();
    session.run(&definition(PURE, ""));
    assert!(warnings(&session).is_empty());
    session.run(&definition(IMPURE, ""));
    let [warning] = &warnings(&session)[..] else { panic!("one warning") };
    assert!(
        warning.contains("errors: 1, warnings: 0") && warning.contains("pipeline_lint('daily')"),
        "{warning}"
    );
    session.run(&definition(IMPURE, ""));
    assert!(warnings(&session).is_empty(), "nothing changed");
    session.run(&definition(PURE, ""));
    session.run(&definition(IMPURE, ", on_impure => 'allow'"));
    assert!(warnings(&session).is_empty());

    let failure = assert_sqlstate!(
        session.try_run("SELECT pipeline_alter('daily', '{\"on_impure\": \"refuse\"}')"),
        "BF010"
    );
    assert!(
        failure.detail.contains("clock: now() in view public.recent_named > view public.recent"),
        "{failure}"
    );
    assert_eq!(session.lines("SELECT on_impure FROM backfill.pipelines"), ["allow"]);
    session.run(&definition(PURE, ", on_impure => 'refuse'"));
    let alter = format!("SELECT pipeline_alter('daily', jsonb_build_object('query', $q${IMPURE}$q$))");
    assert_sqlstate!(session.try_run(&alter), "BF010");
    let plan =
        format!("SELECT backfill_plan('daily', '2024-01-01', '2024-01-02', 'why', query => $q${IMPURE}$q$)");
    assert_sqlstate!(session.try_run(&plan), "BF010");
    assert_eq!(session.lines("SELECT rule FROM pipeline_lint('daily')"), Vec::<String>::new());
    session.run("SELECT pipeline_drop('daily')");
    assert_sqlstate!(session.try_run(&definition(IMPURE, ", on_impure => 'refuse'")), "BF010");
    assert_eq!(session.lines("SELECT pipeline FROM backfill.pipelines"), Vec::<String>::new());
    assert_sqlstate!(session.try_run(&definition(PURE, ", on_impure => 'perhaps'")), "22023");
}

/// pipeline_lint() does not look at it.
#[test]
fn the_query_of_a_plan_is_warned_of_with_what_it_meets() {
    let (_database, mut session) = world();
    session.run(&definition(PURE, "").replace("'daily'", "E'it''s \\\\ daily'"));
    session.notices();
    let plan = |name: &str| {
        format!("SELECT backfill_plan({name}, '2024-01-01', '2024-01-02', 'why', query => $q${IMPURE}$q$)")
    };
    let name = r"E'it''s \\ daily'";
    session.run(&plan(name));
    let [warning] = &session.notices()[..] else { panic!("one warning") };
    assert!(warning.message.starts_with("the query that was given for pipeline"), "{warning}");
    assert!(warning.message.ends_with("(errors: 1, warnings: 0)"), "{warning}");
    assert!(warning.detail.contains("clock: now() in view public.recent_named"), "{warning}");
    // What is to be copied can be.
    session.run(&format!("SELECT pipeline_alter({name}, jsonb_build_object('query', $q${IMPURE}$q$))"));
    let [warning] = &warnings(&session)[..] else { panic!("one warning") };
    let (_, call) = warning.split_once("; ").expect("a call");
    let call = call.strip_suffix(" says why").expect("what it is for");
    assert_eq!(session.lines(&call.replace('*', "rule")), ["clock"]);
    session.run(&format!("SELECT pipeline_alter({name}, jsonb_build_object('query', $q${PURE}$q$))"));
    session.run(&format!("SELECT pipeline_alter({name}, '{{\"on_impure\": \"refuse\"}}')"));
    let failure = assert_sqlstate!(session.try_run(&plan(name)), "BF010");
    assert!(!failure.hint.contains("pipeline_lint"), "{failure}");
}

#[test]
fn a_dimension_that_can_be_edited_is_named_and_does_not_refuse() {
    let (_database, mut session) = world();
    session.run(&definition(WITH_DIMENSION, ", on_impure => 'refuse'"));
    assert_eq!(
        session.lines("SELECT severity || ' ' || object FROM pipeline_lint('daily')"),
        ["warning public.items"]
    );
}

#[test]
fn what_was_edited_since_is_looked_at_when_a_window_is_built() {
    let (_database, mut session) = world();
    session.run(&definition(PURE, ", on_impure => 'refuse'"));
    let plan = "SELECT backfill_approve(plan_id, windows) FROM backfill_plan('daily', '2024-01-01', '2024-01-03', 'why')";
    session.run(plan);
    let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => ARRAY['daily'])", &[]);
    let given = "SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.at < now()";
    let replace = format!("SELECT replace_partition({token}, query => $q${given}$q$)");
    assert_sqlstate!(session.try_run(&replace), "BF010");
    // A view is a query that nobody has read; rows that are stored are taken as they are.
    session.run(
        "CREATE VIEW staged AS SELECT s.at AS day, 1 AS b FROM sales s WHERE s.at < now();
         CREATE TABLE secured (day timestamptz, b int); ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
         CREATE TABLE stored AS SELECT '2024-01-01'::timestamptz AS day, 1 AS b;
         CREATE TABLE staged_parts (day timestamptz, b int) PARTITION BY RANGE (day);
         CREATE FOREIGN TABLE far_part PARTITION OF staged_parts DEFAULT SERVER afar",
    );
    let staging =
        |table: &str| format!("SELECT replace_partition({token}, staging => '{table}', finish => false)");
    let failure = assert_sqlstate!(session.try_run(&staging("staged")), "BF010");
    assert!(failure.hint.contains("FROM public.staged"), "{failure}");
    assert_sqlstate!(session.try_run(&staging("secured")), "BF010");
    assert_sqlstate!(session.try_run(&staging("staged_parts")), "BF010");
    session.run(&staging("stored"));
    session
        .run(&format!("SELECT replace_partition({token}, query => $q${}$q$)", given.replace("now()", "$2")));

    session.run("CREATE OR REPLACE VIEW paid AS SELECT s.id, s.at, s.item, s.store, s.amount FROM sales s WHERE s.at < now()");
    session.run(
        "SELECT backfill_cancel(1, 'another version');
         SELECT backfill_approve(plan_id, windows) FROM backfill_plan('daily', '2024-01-02', '2024-01-03', 'again')",
    );
    session.run("CALL backfill_work(pipelines => ARRAY['daily'], max_windows => 1)");
    assert_eq!(
        session.lines("SELECT state FROM pipeline_windows('daily', '2024-01-02', '2024-01-03')"),
        ["refused"]
    );
    // Where it is only told, it runs.
    session.run("SELECT pipeline_alter('daily', '{\"on_impure\": \"allow\"}')");
    session.run("SELECT backfill_retry(2)");
    session.run("CALL backfill_work(pipelines => ARRAY['daily'], max_windows => 1)");
    assert_eq!(
        session.lines("SELECT state FROM pipeline_windows('daily', '2024-01-02', '2024-01-03')"),
        ["done"]
    );
}

/// Names are looked up as the ledger, for which `"$user"` would stand for another schema.
#[test]
fn a_query_that_a_call_gives_is_looked_at_by_the_path_of_its_caller() {
    let (database, mut session) = world();
    let alice = database.role("alice");
    session.run(&format!(
        "CREATE SCHEMA {alice};
         CREATE FUNCTION {alice}.helper() RETURNS text LANGUAGE plpgsql STABLE AS 'BEGIN RETURN now(); END';
         CREATE FUNCTION {alice}.outer_one() RETURNS text LANGUAGE plpgsql STABLE AS 'BEGIN RETURN helper(); END';
         GRANT USAGE ON SCHEMA {alice} TO {alice}; GRANT ALL ON facts, sales TO {alice}"
    ));
    session.run(&definition(PURE, ", on_impure => 'refuse'"));
    session.run(&format!(
        "SELECT pipeline_grant('daily', '{alice}', 'operate');
         SELECT backfill_plan('daily', '2024-01-01', '2024-01-02', 'why', expect => 1)"
    ));
    let mut session = database.connect_as(&alice);
    let token: i64 = session.one("SELECT token FROM backfill_claim('w', pipelines => ARRAY['daily'])", &[]);
    let given = "SELECT s.at, outer_one() FROM sales s WHERE s.at >= $1 AND s.at < $2";
    let failure = assert_sqlstate!(
        session.try_run(&format!("SELECT replace_partition({token}, query => $q${given}$q$)")),
        "BF010"
    );
    assert!(failure.detail.contains("now()"), "{failure}");
}

#[test]
fn a_default_of_the_target_counts_as_soon_as_it_is_there() {
    let (_database, mut session) = world();
    session.run(&definition(PURE, ""));
    let rules = "SELECT rule || ' ' || place FROM pipeline_lint('daily')";
    assert!(session.lines(rules).is_empty());
    session.run("ALTER TABLE facts ALTER b SET DEFAULT clock_timestamp()");
    assert_eq!(session.lines(rules), ["clock column b of public.facts (default)"]);
    session.run("ALTER TABLE facts ALTER b DROP DEFAULT");
    assert!(session.lines(rules).is_empty());
    // One that its domain brings, and what a trigger of a partition does.
    session.run(
        "CREATE DOMAIN moment AS timestamptz DEFAULT clock_timestamp(); ALTER TABLE facts ADD made moment;
         CREATE FUNCTION stamping() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.made := now(); RETURN NEW; END$$;
         CREATE TABLE parts (day timestamptz NOT NULL, amount numeric, made timestamptz) PARTITION BY RANGE (day);
         CREATE TABLE of_parts PARTITION OF parts DEFAULT;
         CREATE TRIGGER stamp BEFORE INSERT ON of_parts FOR EACH ROW EXECUTE FUNCTION stamping()",
    );
    assert_eq!(session.lines(rules), ["clock column made of public.facts (default)"]);
    session.run(&definition(PURE, "").replace("'daily'", "'parted'").replace("'facts'", "'parts'"));
    assert_eq!(
        session.lines("SELECT rule || ' ' || place FROM pipeline_lint('parted')"),
        ["clock trigger stamp of public.of_parts"]
    );
    session.run("SELECT pipeline_define('outside', '1 day', '2024-01-01')");
    assert!(session.lines("SELECT rule FROM pipeline_lint('outside')").is_empty());
}

#[test]
fn what_a_domain_and_a_partition_of_the_target_fill_in_counts() {
    let (_database, mut session) = world();
    session.run(
        "CREATE DOMAIN stamp AS text DEFAULT clock_timestamp()::text;
         CREATE TABLE parts (day timestamptz NOT NULL, a text, b stamp) PARTITION BY RANGE (day);
         CREATE TABLE one_part PARTITION OF parts DEFAULT;
         CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.a := random(); RETURN NEW; END';
         CREATE TRIGGER own BEFORE INSERT ON one_part FOR EACH ROW EXECUTE FUNCTION fill();
         CREATE TRIGGER inherited BEFORE INSERT ON parts FOR EACH ROW EXECUTE FUNCTION fill()",
    );
    session.run(&definition(PURE, "").replace("'facts'", "'parts'"));
    assert_eq!(
        session.lines("SELECT rule || ' ' || place FROM pipeline_lint('daily')"),
        [
            "clock column b of public.parts (default)",
            "random trigger inherited of public.parts",
            "random trigger own of public.one_part"
        ]
    );
}

/// Something that stands in itself so many times.
fn nested(depth: usize, innermost: &str, around: impl Fn(usize, &str) -> String) -> String {
    (0..depth).fold(innermost.to_owned(), |inner, level| around(level, &inner))
}

/// Each level is looked at several times. If each of these looks went through all that is below, none would come to an end.
#[test]
fn what_is_looked_at_does_not_double_with_each_level() {
    let (_database, mut session) = world();
    let depth = 40;
    let scalar = nested(depth, "$1", |_, inner| {
        format!("(SELECT max(s.at) FROM sales s WHERE s.at >= {inner} AND s.at < $2)")
    });
    let correlated = nested(depth, "s.at", |level, inner| {
        format!(
            "(SELECT max(r{level}.at) FROM refunds r{level} WHERE r{level}.at >= {inner} AND r{level}.at <= s.at)"
        )
    });
    let joined = |level: usize| {
        format!(
            "CREATE FUNCTION moments_{level}(timestamptz, timestamptz) RETURNS SETOF timestamptz STABLE LANGUAGE sql AS
             'SELECT a FROM moments_{0}($1, $2) a JOIN moments_{0}($1, $2) b ON a = b'",
            level - 1
        )
    };
    session.run(
        "CREATE FUNCTION moments_0(timestamptz, timestamptz) RETURNS SETOF timestamptz STABLE LANGUAGE sql AS
         'SELECT s.at FROM sales s WHERE s.at >= $1 AND s.at < $2'",
    );
    (1..=depth).for_each(|level| session.run(&joined(level)));
    // It calls itself.
    session.run(
        &joined(1)
            .replacen("CREATE", "CREATE OR REPLACE", 1)
            .replace("moments_0($1, $2) b", "moments_1($1, $2) b"),
    );
    for query in [
        format!("SELECT $1, count(*) FROM sales s WHERE s.at >= {scalar} AND s.at < $2"),
        // What the outermost query says of its column counts at each level.
        format!(
            "SELECT s.at, {correlated} FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.at > {correlated}"
        ),
        format!("SELECT m, 1 FROM moments_{depth}($1, $2) m"),
    ] {
        session.run(&definition(&query, ", on_impure => 'allow'"));
        let found = session.lines("SELECT rule || ' ' || object FROM pipeline_lint('daily')");
        assert_eq!(found, [""; 0], "{query}");
    }
}

/// Columns that are equal in a chain, below many levels that have no tables: a look that takes minutes, and no look into
/// the catalog meanwhile.
#[test]
fn a_look_can_be_cancelled() {
    let (_database, mut session) = world();
    let columns: Vec<String> = (0..600).map(|column| format!("c{column}")).collect();
    session.run(&format!("CREATE TABLE wide ({} timestamptz)", columns.join(" timestamptz, ")));
    let chain: Vec<String> = columns.windows(2).map(|pair| format!("{} = {}", pair[0], pair[1])).collect();
    let chain = format!("SELECT c0 FROM wide WHERE {} AND c599 >= $1 AND c599 < $2", chain.join(" AND "));
    let deep = nested(300, &chain, |level, inner| format!("SELECT * FROM ({inner}) x{level}"));
    session.run(&definition(&format!("SELECT y.c0, 1 FROM ({deep}) y"), ", on_impure => 'allow'"));
    session.run("SET statement_timeout = '1s'");
    assert_sqlstate!(session.try_run("SELECT count(*) FROM pipeline_lint('daily')"), "57014");
}
