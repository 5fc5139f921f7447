//! What a query reaches by other ways than a function's or a table's name.

use crate::support::define;
use pgrx_tests::{Cluster, Session};

/// What is there; the query, which gives a moment and a text; an edit, and whether it changes what the query gives.
type Case = (&'static str, &'static str, &'static str, bool);

/// The version before and after an edit, which is rolled back. An edit with `query:` is another query.
fn versions((setup, query, edit, _): Case, session: &mut Session) -> [String; 2] {
    session.run("BEGIN");
    session.run(setup);
    define(session, "edge", "'1 day', '2024-01-01', 'target', 'at'", &format!("query => $q${query}$q$"));
    let version = "SELECT pipeline_version('edge')";
    let before = session.one(version, &[]);
    match edit.strip_prefix("query: ") {
        Some(query) => {
            session.run(&format!("SELECT pipeline_alter('edge', jsonb_build_object('query', $q${query}$q$))"))
        }
        None => session.run(edit),
    }
    let after = session.one(version, &[]);
    session.run("ROLLBACK");
    [before, after]
}

fn assert_seen(cases: &[Case]) {
    let database = Cluster::shared().database();
    let mut session = database.connect();
    session.run("CREATE TABLE target (at timestamptz NOT NULL, v text)");
    let mut wrong = vec![];
    for case in cases {
        let [before, after] = versions(*case, &mut session);
        if (before != after) != case.3 {
            wrong.push(format!("{}: {}", if case.3 { "not seen" } else { "took for a change" }, case.2));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const JSON: &str =
    "CREATE TABLE source (j jsonb); CREATE DOMAIN small AS int; CREATE TYPE pair AS (a int, b int);
    CREATE VIEW net AS SELECT x.net AS n FROM source, jsonb_to_recordset(source.j) AS x(net text)";

#[test]
fn names_by_which_a_function_looks_for_its_values_count() {
    assert_seen(&[
        (
            JSON,
            "SELECT $1, x.net FROM source, jsonb_to_recordset(j) AS x(net text)",
            "query: SELECT $1, y.net FROM source, jsonb_to_recordset(source.j) AS y(net text)",
            false,
        ),
        (
            JSON,
            "SELECT $1, x.net FROM source, jsonb_to_recordset(j) AS x(net text)",
            "query: SELECT $1, x.gross FROM source, jsonb_to_recordset(j) AS x(gross text)",
            true,
        ),
        (
            JSON,
            "SELECT $1, n FROM net",
            "CREATE OR REPLACE VIEW net AS SELECT x.gross AS n FROM source, jsonb_to_recordset(source.j) AS x(gross text)",
            true,
        ),
        (
            JSON,
            "SELECT $1, x.m::text FROM source, jsonb_to_recordset(j) AS x(m pair)",
            "ALTER TYPE pair RENAME ATTRIBUTE b TO c",
            true,
        ),
        (
            JSON,
            "SELECT $1, x.m::text FROM source, XMLTABLE('/r' PASSING xmlparse(content j::text) COLUMNS m small) x",
            "ALTER DOMAIN small ADD CHECK (VALUE < 3)",
            true,
        ),
    ]);
}

const VIEW: &str = "CREATE TABLE source (a int, b int, c int); CREATE VIEW seen AS SELECT a AS x, b AS y, c AS z FROM source;
    CREATE FUNCTION by_name() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT x FROM seen); END'";

#[test]
fn names_of_a_views_columns_count_where_they_lead_to_values() {
    let exchanged = "DROP VIEW seen; CREATE VIEW seen AS SELECT a AS y, b AS x, c AS z FROM source";
    assert_seen(&[
        (VIEW, "SELECT $1, to_jsonb(seen)::text FROM seen", "ALTER VIEW seen RENAME x TO w", true),
        (VIEW, "SELECT $1, by_name()", exchanged, true),
        (VIEW, "SELECT $1, x::text FROM seen", exchanged, true),
        (VIEW, "SELECT $1, z::text FROM seen", exchanged, false),
        (VIEW, "SELECT $1, z::text FROM seen", "ALTER VIEW seen RENAME x TO w", false),
    ]);
}

/// As PostgreSQL 15 keeps all of them: with OLD and NEW.
#[test]
fn a_view_that_was_made_by_a_rule_is_the_same_view() {
    let rule =
        |query| format!(r#"CREATE OR REPLACE RULE "_RETURN" AS ON SELECT TO seen DO INSTEAD {query}"#).leak();
    let [same, other] = [
        rule("SELECT a AS x, b AS y, c AS z FROM source"),
        rule("SELECT a AS x, b AS y, b AS z FROM source"),
    ];
    let joined = "CREATE OR REPLACE VIEW seen AS SELECT s.a AS x, s.b AS y, (SELECT max(o.c) FROM source o WHERE o.a = s.b) AS z
        FROM source s LEFT JOIN source t USING (a)";
    let setup: &str = format!("{VIEW}; {joined}").leak();
    let joined_rule = rule(joined.split_once(" AS ").expect("the query").1);
    assert_seen(&[
        (VIEW, "SELECT $1, z::text FROM seen", same, false),
        (VIEW, "SELECT $1, by_name()", same, false),
        (VIEW, "SELECT $1, z::text FROM seen", other, true),
        (setup, "SELECT $1, z::text FROM seen", joined_rule, false),
        (setup, "SELECT $1, by_name()", joined_rule, false),
    ]);
}

const PLPGSQL: &str = "CREATE DOMAIN small AS int;
    CREATE FUNCTION near(numeric, numeric) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT abs($1 - $2) < 1';
    CREATE OPERATOR ~=~ (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = near);
    CREATE FUNCTION typed() RETURNS text LANGUAGE plpgsql AS 'DECLARE x small; BEGIN x := 5; RETURN x; END';
    CREATE FUNCTION compared() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN 1::numeric~=~-2.5; END';
    CREATE FUNCTION plain() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN 1::numeric = 2.5; END'";

#[test]
fn types_and_operators_of_a_text_are_reached() {
    let near = "CREATE OR REPLACE FUNCTION near(numeric, numeric) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT abs($1 - $2) < 2'";
    let small = "ALTER DOMAIN small ADD CHECK (VALUE < 3)";
    assert_seen(&[
        (PLPGSQL, "SELECT $1, typed()", small, true),
        (PLPGSQL, "SELECT $1, compared()", near, true),
        (PLPGSQL, "SELECT $1, plain()", near, false),
        (PLPGSQL, "SELECT $1, plain()", small, false),
    ]);
}

const BUILTIN: &str = "CREATE TABLE source (a int, t text);
    CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq);
    CREATE FUNCTION compared() RETURNS text LANGUAGE plpgsql STABLE AS 'BEGIN RETURN 1 === 2; END';
    CREATE CAST (text AS int) WITH FUNCTION length(text) AS ASSIGNMENT";

/// PostgreSQL's own functions, of which nothing says that it is they that are called.
#[test]
fn what_an_operator_and_a_cast_call_counts() {
    let other = "DROP OPERATOR === (int, int); CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4ne)";
    assert_seen(&[
        (BUILTIN, "SELECT $1, (a === 1)::text FROM source", other, true),
        (BUILTIN, "SELECT $1, (a === ANY ('{1,2}'))::text FROM source", other, true),
        (BUILTIN, "SELECT $1, compared()", other, true),
        (BUILTIN, "SELECT $1, (a = 1)::text FROM source", other, false),
        (
            BUILTIN,
            "SELECT $1, (t::int)::text FROM source",
            "DROP CAST (text AS int); CREATE CAST (text AS int) WITH FUNCTION octet_length(text)",
            true,
        ),
        (BUILTIN, "SELECT $1, (t::int)::text FROM source", "DROP CAST (text AS int)", true),
        (BUILTIN, "SELECT $1, (t::bigint)::text FROM source", "DROP CAST (text AS int)", false),
    ]);
}

const SORTED: &str = "CREATE TYPE pair AS (a int);
    CREATE FUNCTION lt(pair, pair) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT ($1).a < ($2).a';
    CREATE FUNCTION eq(pair, pair) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT ($1).a = ($2).a';
    CREATE FUNCTION cmp(pair, pair) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN sign(($1).a - ($2).a); END';
    CREATE FUNCTION other_cmp(pair, pair) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN -sign(($1).a - ($2).a); END';
    CREATE OPERATOR <<< (LEFTARG = pair, RIGHTARG = pair, FUNCTION = lt);
    CREATE OPERATOR === (LEFTARG = pair, RIGHTARG = pair, FUNCTION = eq);
    CREATE OPERATOR CLASS pairs DEFAULT FOR TYPE pair USING btree AS OPERATOR 1 <<<, OPERATOR 3 ===, FUNCTION 1 cmp(pair, pair)";

const SEARCH: &str = "CREATE TEXT SEARCH DICTIONARY words (TEMPLATE = simple);
    CREATE TEXT SEARCH CONFIGURATION search (COPY = english); CREATE TEXT SEARCH CONFIGURATION other (COPY = english);
    ALTER TEXT SEARCH CONFIGURATION search ALTER MAPPING FOR word WITH words";

#[test]
fn a_text_search_configuration_counts() {
    let search = "SELECT $1, to_tsvector('search', 'running dogs')::text";
    assert_seen(&[
        (
            SEARCH,
            search,
            "ALTER TEXT SEARCH CONFIGURATION search ALTER MAPPING FOR asciiword WITH simple",
            true,
        ),
        (
            SEARCH,
            search,
            "ALTER TEXT SEARCH CONFIGURATION other ALTER MAPPING FOR asciiword WITH simple",
            false,
        ),
        (SEARCH, search, "ALTER TEXT SEARCH DICTIONARY words (Accept = false)", true),
        (
            SEARCH,
            search,
            "ALTER TEXT SEARCH CONFIGURATION search RENAME TO third; ALTER TEXT SEARCH CONFIGURATION other RENAME TO search",
            true,
        ),
    ]);
}

#[test]
fn what_really_compares_when_rows_are_sorted_is_reached() {
    let query = "SELECT $1, array_agg(x.c ORDER BY x.c USING <<<)::text FROM (VALUES (ROW(1)::pair), (ROW(2)::pair)) x (c)";
    assert_seen(&[
        (
            SORTED,
            query,
            "CREATE OR REPLACE FUNCTION cmp(pair, pair) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN -sign(($1).a - ($2).a); END'",
            true,
        ),
        (
            SORTED,
            query,
            "DROP OPERATOR CLASS pairs USING btree;
             CREATE OPERATOR CLASS pairs DEFAULT FOR TYPE pair USING btree AS OPERATOR 1 <<<, OPERATOR 3 ===, FUNCTION 1 other_cmp(pair, pair)",
            true,
        ),
    ]);
}

const UNREAD: &str =
    "CREATE DOMAIN small AS int CONSTRAINT a CHECK (VALUE < 30) CONSTRAINT b CHECK (VALUE > 0);
    ALTER DOMAIN small ADD CONSTRAINT k CHECK (VALUE < 40) NOT VALID; CREATE TYPE mood AS ENUM ('sad');
    CREATE COLLATION mine (provider = libc, locale = 'C');
    CREATE TABLE source (a int, b small, c int); CREATE TABLE other (a int, m mood)";

#[test]
fn columns_that_nobody_reads_bring_nothing_with_them() {
    let read = "SELECT $1, s.a::text FROM source s JOIN other o USING (a)";
    assert_seen(&[
        (UNREAD, read, "ALTER DOMAIN small ADD CHECK (VALUE < 3)", false),
        (UNREAD, read, "ALTER TYPE mood ADD VALUE 'happy'", false),
        (UNREAD, read, "ALTER TABLE source ADD m mood, ADD t text COLLATE mine", false),
        (UNREAD, "SELECT $1, max(b)::text FROM source", "ALTER DOMAIN small ADD CHECK (VALUE < 3)", true),
        (UNREAD, "SELECT $1, max(b)::text FROM source", "ALTER DOMAIN small VALIDATE CONSTRAINT k", false),
        (UNREAD, "SELECT $1, max(b)::text FROM source", "ALTER DOMAIN small RENAME CONSTRAINT a TO z", false),
        (UNREAD, "SELECT $1, max(s::text) FROM source s", "ALTER DOMAIN small ADD CHECK (VALUE < 3)", true),
    ]);
}

const COLLATED: &str = r#"CREATE TABLE source (t text); CREATE COLLATION mine (provider = libc, locale = 'C');
    CREATE DOMAIN word AS text COLLATE "C"; CREATE DOMAIN plain AS text; CREATE TYPE words AS (w text COLLATE "C");
    CREATE TYPE span AS RANGE (SUBTYPE = text, COLLATION = "C", MULTIRANGE_TYPE_NAME = spans)"#;

#[test]
fn how_a_type_sorts_its_values_counts() {
    let word = "SELECT $1, min(t::word)::text FROM source";
    let words = "SELECT $1, (ROW(t)::words > ROW('b')::words)::text FROM source";
    let span = "SELECT $1, (t <@ span('a', 'b'))::text FROM source";
    let spans = "SELECT $1, (spans(span('a', 'b')) @> t)::text FROM source";
    let constant = "SELECT $1, ('{[a,b)}'::spans @> t)::text FROM source";
    let other = "DROP TYPE span; CREATE TYPE span AS RANGE (SUBTYPE = text, MULTIRANGE_TYPE_NAME = spans)";
    let by_pattern = r#"DROP TYPE span; CREATE TYPE span AS
        RANGE (SUBTYPE = text, COLLATION = "C", SUBTYPE_OPCLASS = text_pattern_ops, MULTIRANGE_TYPE_NAME = spans)"#;
    let same = r#"DROP TYPE span; CREATE TYPE span AS
        RANGE (SUBTYPE = text, COLLATION = "C", SUBTYPE_OPCLASS = text_ops, MULTIRANGE_TYPE_NAME = spans)"#;
    let nothing = "DROP DOMAIN plain; CREATE DOMAIN plain AS text COLLATE \"default\"";
    assert_seen(&[
        (COLLATED, word, "DROP DOMAIN word; CREATE DOMAIN word AS text", true),
        (COLLATED, word, "DROP DOMAIN word; CREATE DOMAIN word AS text COLLATE mine", true),
        (COLLATED, "SELECT $1, min(t::plain)::text FROM source", nothing, false),
        (COLLATED, words, "DROP TYPE words; CREATE TYPE words AS (w text)", true),
        (COLLATED, words, "ALTER TYPE words ALTER ATTRIBUTE w TYPE text COLLATE mine", true),
        (COLLATED, span, other, true),
        (COLLATED, span, by_pattern, true),
        (COLLATED, span, same, false),
        (COLLATED, spans, by_pattern, true),
        (COLLATED, constant, other, true),
    ]);
}

/// What a collation of somebody's own is, which nothing but a type names.
#[test]
fn a_collation_that_a_type_has_is_reached() {
    let mine = |locale| format!("CREATE COLLATION mine (provider = libc, locale = '{locale}')");
    for (made, query) in [
        ("DOMAIN word AS text COLLATE mine", "SELECT $1, ('a'::word < 'B')::text"),
        ("TYPE word AS (w text COLLATE mine)", "SELECT $1, (ROW('a')::word > ROW('B')::word)::text"),
        ("TYPE word AS RANGE (SUBTYPE = text, COLLATION = mine)", "SELECT $1, isempty(word('a', 'b'))::text"),
    ] {
        let setup = format!("{}; CREATE {made}", mine("C")).leak();
        let edit = format!("DROP TYPE word; DROP COLLATION mine; {}; CREATE {made}", mine("POSIX")).leak();
        assert_seen(&[(setup, query, edit, true)]);
    }
}

const RANGE: &str = "CREATE FUNCTION cmp(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT btint4cmp($2, $1)';
    CREATE OPERATOR CLASS falling FOR TYPE int USING btree AS OPERATOR 1 >, OPERATOR 3 =, OPERATOR 5 <, FUNCTION 1 cmp(int, int);
    CREATE TYPE span AS RANGE (SUBTYPE = int, SUBTYPE_OPCLASS = falling)";

#[test]
fn what_compares_the_bounds_of_a_range_is_reached() {
    let query = "SELECT $1, (3 <@ span(5, 1))::text";
    assert_seen(&[
        (
            RANGE,
            query,
            "CREATE OR REPLACE FUNCTION cmp(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT btint4cmp($1, $2)'",
            true,
        ),
        (
            RANGE,
            query,
            "DROP OPERATOR CLASS falling USING btree CASCADE;
             CREATE OPERATOR CLASS falling FOR TYPE int USING btree AS OPERATOR 1 >, OPERATOR 3 =, OPERATOR 5 <, FUNCTION 1 btint4cmp;
             CREATE TYPE span AS RANGE (SUBTYPE = int, SUBTYPE_OPCLASS = falling)",
            true,
        ),
    ]);
}

#[test]
fn whose_rows_are_hidden_counts() {
    let database = Cluster::shared().database();
    let [owner, reader] = ["owner", "reader"].map(|name| database.role(name));
    let mut session = database.connect();
    session.run(&format!(
        "GRANT EXECUTE ON FUNCTION pipeline_define TO {owner}; GRANT CREATE ON SCHEMA public TO {owner}, {reader};
         CREATE TABLE hidden (n int); ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; CREATE POLICY positive ON hidden USING (n > 0);
         CREATE TABLE plain (n int); GRANT SELECT ON hidden, plain TO {owner}, {reader};
         CREATE VIEW over AS SELECT n FROM hidden; CREATE VIEW over_plain AS SELECT n FROM plain;
         GRANT SELECT ON over, over_plain TO {owner};
         SET ROLE {owner}; CREATE TABLE target (at timestamptz NOT NULL, v text); CREATE TABLE another (LIKE target);
         SELECT pipeline_define('over', '1 day', '2024-01-01', target => 'target', slice_column => 'at',
             query => 'SELECT $1, count(n)::text FROM over');
         SELECT pipeline_define('plain', '1 day', '2024-01-01', target => 'another', slice_column => 'at',
             query => 'SELECT $1, count(n)::text FROM over_plain');
         RESET ROLE"
    ));
    for (edit, changes) in [
        ("ALTER TABLE hidden FORCE ROW LEVEL SECURITY".to_owned(), true),
        (format!("ALTER TABLE hidden OWNER TO {reader}"), true),
        ("ALTER VIEW over SET (security_invoker = on)".to_owned(), true),
        (format!("ALTER VIEW over OWNER TO {reader}"), true),
        (format!("ALTER VIEW over_plain OWNER TO {reader}"), false),
        ("ALTER VIEW over_plain SET (security_invoker = on)".to_owned(), false),
    ] {
        let pipeline = if changes { "over" } else { "plain" };
        let version = format!("SELECT pipeline_version('{pipeline}')");
        let before: String = session.one(&version, &[]);
        session.run("BEGIN");
        session.run(&edit);
        assert_eq!(session.one::<String>(&version, &[]) != before, changes, "{edit}");
        session.run("ROLLBACK");
    }
}

const COMMANDS: &str = "SET LOCAL check_function_bodies = off;
    CREATE FUNCTION inner_one() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
    CREATE FUNCTION setting() RETURNS int LANGUAGE sql AS 'SET LOCAL work_mem = 100000; SELECT inner_one()';
    CREATE FUNCTION making() RETURNS int LANGUAGE sql AS 'CREATE TEMP TABLE t AS SELECT 1 AS a; SELECT inner_one() FROM t';
    CREATE FUNCTION poly(anyelement) RETURNS int LANGUAGE sql AS 'SELECT inner_one()';
    CREATE FUNCTION many(VARIADIC anyarray) RETURNS int LANGUAGE sql AS 'SELECT inner_one()'";

#[test]
fn sql_functions_that_cannot_be_analysed_are_taken_by_their_names() {
    let inner =
        "CREATE OR REPLACE FUNCTION inner_one() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 2; END'";
    assert_seen(&[
        (COMMANDS, "SELECT $1, setting()::text", inner, true),
        (COMMANDS, "SELECT $1, making()::text", inner, true),
        (COMMANDS, "SELECT $1, poly(1)::text", inner, true),
        (COMMANDS, "SELECT $1, many(1, 2)::text", inner, true),
        (
            COMMANDS,
            "SELECT $1, poly(1)::text",
            "CREATE OR REPLACE FUNCTION poly(anyelement) RETURNS int LANGUAGE sql AS 'SELECT /* one */ inner_one()'",
            false,
        ),
        (
            COMMANDS,
            "SELECT $1, poly(1)::text",
            "CREATE OR REPLACE FUNCTION poly(anyelement) RETURNS int LANGUAGE sql AS 'SELECT -inner_one()'",
            true,
        ),
    ]);
}
