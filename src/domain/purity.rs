//! What keeps a query from being a function of its window: the rules, and what PostgreSQL's own functions do against them.

use crate::domain::tokens::{Token, tokens};

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// By what the query itself says, the same window can give other rows at another time or in another session.
    Error,
    /// The rows depend on data or on rounding that may change, or on a choice that PostgreSQL is free to make.
    Warning,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

macro_rules! rules {
    ($($rule:ident $name:literal $severity:ident $remedy:literal,)*) => {
        /// What is looked for, in the order in which it is listed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule { $($rule,)* }

        impl Rule {
            pub const ALL: &[Self] = &[$(Self::$rule,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)* }
            }

            pub fn severity(self) -> Severity {
                match self { $(Self::$rule => Severity::$severity,)* }
            }

            pub fn remedy(self) -> &'static str {
                match self { $(Self::$rule => $remedy,)* }
            }
        }
    };
}

rules! {
    Clock "clock" Error "Take the time from $1 and $2, or from a column that was written once.",
    Random "random" Error "Derive it from the rows: a hash of their keys is the same each time.",
    Sequence "sequence" Error "Derive numbers from the rows: row_number() over a full order, or a key of the source.",
    Volatile "volatile-function" Error "Declare it STABLE or IMMUTABLE if it is; otherwise do without it.",
    Writes "writes" Error "Let the query only read; what must happen once belongs into effect_emit().",
    Session "session" Error "Write the value into the query, or read it from a table.",
    Transaction "transaction" Error "Do without it: every attempt is another transaction.",
    SystemColumn "system-column" Error "Use a key of the table: where a row lies changes with every update, restore and VACUUM FULL.",
    ReadsSetting "reads-setting" Error "Write the value into the query, or into SET of the function that reads it.",
    ServerState "server-state" Error "Keep what is needed in a table of your own, with its time.",
    OtherServer "other-server" Error "Copy the rows into a table of this database first, by a pipeline of their own.",
    Sample "sample" Error "Choose rows by a hash of their key.",
    WindowUnused "window-unused" Error "Restrict what is read by $1 and $2.",
    NotWindowed "not-windowed" Error "Restrict it to the window, such as column >= $1 AND column < $2.",
    OpenEnded "open-ended" Error "Restrict it by $2 too: rows of later windows come into this one.",
    WrongColumn "wrong-column" Error "Restrict the column that becomes the slice column: rows that another window restricts are lost here.",
    OpenStart "open-start" Warning "Restrict it by $1 too, or know that late rows of any earlier window change this one.",
    BoundUnused "bound-unused" Warning "Use both $1 and $2: where the cadence changes, the query must follow.",
    MutableDimension "mutable-dimension" Warning "Join what was valid in the window (a history restricted by $1 and $2), or know that editing it changes the past.",
    SelfRead "self-read" Warning "Give the pipeline depends_on_past, or read another table: the result depends on which windows are done.",
    ForeignTable "foreign-table" Warning "Copy it first: nothing here sees it change, and the snapshot is not this transaction's.",
    MaterializedView "materialized-view" Warning "Read the tables behind it: its rows are those of its last REFRESH.",
    SettingNotPinned "setting-not-pinned" Warning "Name the configuration or the format in the call.",
    DynamicSql "dynamic-sql" Warning "Write the statement out: nobody can look into a text that is made when it runs.",
    LimitWithoutOrder "limit-without-order" Warning "Give it ORDER BY with a full order.",
    DistinctOnWithoutOrder "distinct-on-without-order" Warning "Give ORDER BY more columns than DISTINCT ON, so that one row is the first.",
    AggregateWithoutOrder "aggregate-without-order" Warning "Write ORDER BY into the call: string_agg(x, ',' ORDER BY id).",
    WindowWithoutOrder "window-without-order" Warning "Give OVER (...) an ORDER BY with a full order.",
    FloatSum "float-sum" Warning "Sum numeric: sum(x::numeric), or sum(x ORDER BY id).",
}

/// How a function may vary, as it is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Volatility {
    Immutable,
    Stable,
    Volatile,
}

/// The rule that calling a function by that name breaks, wherever it is named; `arguments` are as PostgreSQL writes them.
fn by_name(name: &str, arguments: Option<&[&str]>) -> Option<Rule> {
    let first = arguments.and_then(|arguments| arguments.first().copied());
    let count = arguments.map(<[_]>::len);
    Some(match name {
        "now" | "transaction_timestamp" | "statement_timestamp" | "clock_timestamp" | "timeofday" => {
            Rule::Clock
        }
        "age" if count == Some(1) && first != Some("xid") => Rule::Clock,
        "age" if first == Some("xid") => Rule::Transaction,
        "random" | "random_normal" | "setseed" | "gen_random_uuid" | "uuidv4" | "uuidv7" | "array_sample"
        | "array_shuffle" | "gen_random_bytes" | "gen_salt" => Rule::Random,
        "uuid_generate_v1" | "uuid_generate_v1mc" | "uuid_generate_v4" => Rule::Random,
        "nextval" | "currval" | "lastval" | "setval" | "pg_sequence_last_value" => Rule::Sequence,
        "current_database"
        | "current_query"
        | "getdatabaseencoding"
        | "getpgusername"
        | "inet_client_addr"
        | "inet_client_port"
        | "inet_server_addr"
        | "inet_server_port"
        | "pg_backend_pid"
        | "pg_client_encoding"
        | "pg_cursor"
        | "pg_has_role"
        | "pg_is_other_temp_schema"
        | "pg_listening_channels"
        | "pg_my_temp_schema"
        | "pg_prepared_statement"
        | "pg_trigger_depth"
        | "row_security_active"
        | "system_user"
        | "icu_unicode_version"
        | "unicode_version"
        | "version" => Rule::Session,
        _ if name.starts_with("has_") && name.ends_with("_privilege") => Rule::Session,
        "pg_current_snapshot"
        | "pg_current_xact_id"
        | "pg_current_xact_id_if_assigned"
        | "pg_export_snapshot"
        | "pg_last_committed_xact"
        | "mxid_age" => Rule::Transaction,
        _ if name.starts_with("txid_") || name.starts_with("pg_xact_") => Rule::Transaction,
        "current_setting" | "set_config" | "pg_show_all_settings" => Rule::ReadsSetting,
        _ if name.starts_with("dblink") => Rule::OtherServer,
        "get_current_ts_config" => Rule::SettingNotPinned,
        "to_tsvector"
        | "to_tsquery"
        | "plainto_tsquery"
        | "phraseto_tsquery"
        | "websearch_to_tsquery"
        | "ts_headline"
        | "json_to_tsvector"
        | "jsonb_to_tsvector"
            if first.is_some_and(|first| first != "regconfig") =>
        {
            Rule::SettingNotPinned
        }
        "ts_match_tt" | "ts_match_tq" | "cash_in" | "cash_out" | "money" => Rule::SettingNotPinned,
        "numeric" if first == Some("money") => Rule::SettingNotPinned,
        _ => return None,
    })
}

/// The rule that calling a function breaks which PostgreSQL brings. The signature is its name with the types of its arguments.
pub fn of_builtin(signature: &str, volatility: Volatility) -> Option<Rule> {
    let (name, arguments) = parts(signature);
    if let Some(rule) = by_name(name, Some(&arguments)) {
        return Some(rule);
    }
    match volatility {
        Volatility::Immutable => None,
        Volatility::Stable if name.ends_with("_to_xml") || name.ends_with("_to_xml_and_xmlschema") => {
            Some(Rule::Volatile)
        }
        Volatility::Stable => (is_state(name) && !STATELESS.contains(&name)).then_some(Rule::ServerState),
        Volatility::Volatile if shows_state(name) => Some(Rule::ServerState),
        Volatility::Volatile => Some(Rule::Volatile),
    }
}

/// `pg_…` that says nothing about the server.
const STATELESS: [&str; 9] = [
    "pg_basetype",
    "pg_char_to_encoding",
    "pg_collation_for",
    "pg_encoding_to_char",
    "pg_get_keywords",
    "pg_input_error_info",
    "pg_input_is_valid",
    "pg_node_tree_out",
    "pg_typeof",
];

fn is_state(name: &str) -> bool {
    name.starts_with("pg_") || name.starts_with("to_reg") || name.ends_with("_description")
}

fn shows_state(name: &str) -> bool {
    name.ends_with("_size")
        || [
            "pg_stat",
            "pg_ls_",
            "pg_read_",
            "pg_control_",
            "pg_get_",
            "pg_current_",
            "pg_last_",
            "pg_is_",
            "pg_lock_status",
            "pg_partition_",
            "pg_prepared_xact",
            "pg_show_",
            "pg_blocking_",
            "pg_hba_",
            "pg_jit_",
        ]
        .iter()
        .any(|head| name.starts_with(head))
}

/// A signature's name and the types of its arguments.
fn parts(signature: &str) -> (&str, Vec<&str>) {
    let (name, rest) = signature.split_once('(').unwrap_or((signature, ""));
    let arguments = rest.trim_end_matches(')');
    let arguments = if arguments.is_empty() { vec![] } else { arguments.split(',').map(str::trim).collect() };
    (name.rsplit_once('.').map_or(name, |(_, name)| name), arguments)
}

/// The rule that calling a function of somebody's own breaks by its name alone.
pub fn of_name(signature: &str) -> Option<Rule> {
    let (name, _) = parts(signature);
    match name {
        _ if name.starts_with("dblink") => Some(Rule::OtherServer),
        _ if name.starts_with("uuid_generate_v") || name == "gen_random_bytes" || name == "gen_salt" => {
            by_name(name, None)
        }
        _ => None,
    }
}

/// The words that stand for a value of the clock or of the session without a call.
const WORDS: [(&str, Rule); 11] = [
    ("current_date", Rule::Clock),
    ("current_time", Rule::Clock),
    ("current_timestamp", Rule::Clock),
    ("localtime", Rule::Clock),
    ("localtimestamp", Rule::Clock),
    ("current_catalog", Rule::Session),
    ("current_role", Rule::Session),
    ("current_user", Rule::Session),
    ("session_user", Rule::Session),
    ("system_user", Rule::Session),
    ("tablesample", Rule::Sample),
];

/// Leaves out what other transactions hold.
pub const SKIP_LOCKED: &str = "SKIP LOCKED";

/// What a text says of which nothing but its words is known, with what says so.
pub fn of_text(tokens: &[Token]) -> Vec<(Rule, String)> {
    let mut found = vec![];
    for (place, token) in tokens.iter().enumerate() {
        match token {
            Token::Name(name) => {
                if let Some((word, rule)) = WORDS.iter().find(|(word, _)| word == name) {
                    found.push((*rule, word.to_uppercase()));
                } else if name == "skip" && is_at(tokens, place + 1, "locked") {
                    found.push((Rule::Transaction, SKIP_LOCKED.to_owned()));
                } else if name == "execute" {
                    found.push((Rule::DynamicSql, "EXECUTE".to_owned()));
                } else if tokens.get(place + 1).is_some_and(|next| next.text() == "(")
                    && let Some(rule) = by_name(name, None)
                {
                    found.push((rule, format!("{name}()")));
                }
            }
            Token::Other(literal) if is_clock_literal(literal) => found.push((Rule::Clock, literal.clone())),
            Token::Other(_) => {}
        }
    }
    found
}

/// A name in a text, with its schema if that is there.
pub type Named = (Option<String>, String);

fn name_at(tokens: &[Token], place: usize) -> Option<String> {
    match tokens.get(place) {
        Some(Token::Name(name)) => Some(name.clone()),
        _ => None,
    }
}

fn is_at(tokens: &[Token], place: usize, text: &str) -> bool {
    tokens.get(place).is_some_and(|token| token.text() == text)
}

/// The names that a text calls as functions.
pub fn calls_of_text(tokens: &[Token]) -> Vec<Named> {
    (0..tokens.len())
        .filter(|place| is_at(tokens, place + 1, "("))
        .filter_map(|place| {
            let schema = (place >= 2 && is_at(tokens, place - 1, ".")).then(|| name_at(tokens, place - 2));
            Some((schema.flatten(), name_at(tokens, place)?))
        })
        .collect()
}

/// The tables that a text names where tables are named: behind FROM and JOIN.
pub fn tables_of_text(tokens: &[Token]) -> Vec<Named> {
    let behind =
        |place: usize| matches!(&tokens[place], Token::Name(word) if word == "from" || word == "join");
    (0..tokens.len())
        .filter(|place| behind(*place))
        .filter_map(|place| {
            let first = name_at(tokens, place + 1)?;
            match is_at(tokens, place + 2, ".").then(|| name_at(tokens, place + 3)).flatten() {
                Some(second) => Some((Some(first), second)),
                None => Some((None, first)),
            }
        })
        .collect()
}

/// The first literal of text, behind whatever stands before it, as one that can be read by itself: with its continuations on
/// other lines.
pub fn first_literal(text: &str) -> Option<String> {
    let is_literal = |token: &Token| matches!(token, Token::Other(text) if text.contains('\'') || text.starts_with('$') && text.len() > 1);
    let tokens = tokens(text);
    let first = tokens.iter().position(is_literal)?;
    let is_unicode = first == 2 && tokens[0].text() == "u" && is_at(&tokens, 1, "&");
    let parts: Vec<&str> =
        tokens[first..].iter().take_while(|token| is_literal(token)).map(Token::text).collect();
    Some(format!("{}{}", if is_unicode { "U&" } else { "" }, parts.join("\n")))
}

/// Whether a literal, with its quotes, reads as a moment of the clock where a date or a time is expected: it has no other
/// words, as those of a message.
pub fn is_clock_literal(literal: &str) -> bool {
    let inner = literal.trim_start_matches(['e', 'E']);
    let inner = inner.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\'')).unwrap_or("");
    let mut words = inner.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let is_of_time = |word: &str| {
        let word = word.to_lowercase();
        let known = ["allballs", "z", "utc", "am", "pm", "infinity"].contains(&word.as_str());
        known || names_the_clock(&word) || word.starts_with(|c: char| c.is_ascii_digit())
    };
    names_the_clock(inner) && words.all(is_of_time)
}

/// Whether the text of a date or time, or of a range or an array of them, holds a word that stands for the clock.
pub fn names_the_clock(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric())
        .any(|word| ["now", "today", "tomorrow", "yesterday"].contains(&word.to_lowercase().as_str()))
}

/// Aggregates whose result depends on the order of their rows.
const ORDERED: [&str; 16] = [
    "any_value",
    "array_agg",
    "json_agg",
    "json_agg_strict",
    "json_object_agg",
    "json_object_agg_strict",
    "json_object_agg_unique",
    "json_object_agg_unique_strict",
    "jsonb_agg",
    "jsonb_agg_strict",
    "jsonb_object_agg",
    "jsonb_object_agg_strict",
    "string_agg",
    "xmlagg",
    "first",
    "last",
];

pub fn aggregate_needs_order(name: &str) -> bool {
    ORDERED.contains(&name) || name.starts_with("first_") || name.starts_with("last_")
}

/// Window functions whose result depends on the order of their rows. Without one all rows are peers to rank() and the like.
pub fn window_needs_order(name: &str) -> bool {
    ["row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"].contains(&name)
}

/// Aggregates that add up, so that the rounding of floats depends on the order.
pub fn adds_up(name: &str) -> bool {
    ["sum", "avg", "variance", "corr"].contains(&name)
        || ["stddev", "var_", "covar_", "regr_"].iter().any(|head| name.starts_with(head))
            && name != "regr_count"
}

/// Whether a format of `to_char` and its like takes words or signs from the locale's settings.
pub fn follows_locale(format: &str, is_number: bool) -> bool {
    let mut plain = String::new();
    // What stands in double quotes is copied.
    for (place, part) in format.split('"').enumerate() {
        if place % 2 == 0 {
            plain.push_str(part);
        }
    }
    let plain = plain.to_uppercase();
    if is_number { plain.contains(['L', 'D', 'G']) } else { plain.contains("TM") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rule_has_a_name_of_its_own_and_a_remedy() {
        let names: BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(names.len(), Rule::ALL.len());
        assert!(Rule::ALL.iter().all(|rule| rule.remedy().ends_with('.')));
        // Errors come first wherever rules are sorted.
        assert!(Rule::ALL.is_sorted_by_key(|rule| rule.severity()));
    }

    #[test]
    fn functions_of_one_name_are_told_apart_by_their_arguments() {
        let stable = |signature| of_builtin(signature, Volatility::Stable);
        assert_eq!(stable("age(timestamp with time zone)"), Some(Rule::Clock));
        assert_eq!(stable("age(timestamp with time zone,timestamp with time zone)"), None);
        assert_eq!(stable("age(xid)"), Some(Rule::Transaction));
        assert_eq!(stable("to_tsvector(text)"), Some(Rule::SettingNotPinned));
        assert_eq!(stable("to_tsvector(regconfig,text)"), None);
        assert_eq!(stable("date_trunc(text,timestamp with time zone)"), None);
        assert_eq!(stable("pg_stat_get_live_tuples(oid)"), Some(Rule::ServerState));
        assert_eq!(stable("pg_typeof(\"any\")"), None);
        assert_eq!(stable("system_user()"), Some(Rule::Session));
        assert_eq!(stable("to_regclass(text)"), Some(Rule::ServerState));
        assert_eq!(of_builtin("pg_relation_size(regclass)", Volatility::Volatile), Some(Rule::ServerState));
        assert_eq!(of_builtin("pg_sleep(double precision)", Volatility::Volatile), Some(Rule::Volatile));
        assert_eq!(of_builtin("abs(numeric)", Volatility::Immutable), None);
    }

    #[test]
    fn a_text_is_read_by_its_words() {
        let text = "BEGIN -- now()
            PERFORM SYSTEM_USER FROM x FOR SHARE SKIP LOCKED;
            IF CURRENT_DATE > x.now THEN EXECUTE q; END IF;
            RETURN nextval('s') || 'now()' || ' today' || $$random()$$;
        END";
        let found: Vec<(Rule, String)> = of_text(&tokens(text));
        let expected = [
            (Rule::Session, "SYSTEM_USER"),
            (Rule::Transaction, "SKIP LOCKED"),
            (Rule::Clock, "CURRENT_DATE"),
            (Rule::DynamicSql, "EXECUTE"),
            (Rule::Sequence, "nextval()"),
            (Rule::Clock, "'now()'"),
            (Rule::Clock, "' today'"),
        ];
        assert_eq!(found, expected.map(|(rule, text)| (rule, text.to_owned())));
        let tables = tables_of_text(&tokens("SELECT 1 FROM a JOIN b.c ON x = y, d"));
        assert_eq!(tables, [(None, "a".to_owned()), (Some("b".to_owned()), "c".to_owned())]);
        let calls = calls_of_text(&tokens("SELECT a(1), b.c (x.y, (2))"));
        assert_eq!(calls, [(None, "a".to_owned()), (Some("b".to_owned()), "c".to_owned())]);
    }

    #[test]
    fn a_literal_is_taken_with_its_continuations() {
        for (text, literal) in [
            ("DATE 'to'\n  -- a comment\n 'day' + 1", "'to'\n'day'"),
            ("U&'\\0074oday'::date", "U&'\\0074oday'"),
            ("timestamptz (3) $a$now$a$, 'x'", "$a$now$a$"),
            ("E'a\\'b'", "E'a\\'b'"),
        ] {
            assert_eq!(first_literal(text).as_deref(), Some(literal));
        }
        assert_eq!(first_literal("1 + 2"), None);
    }

    #[test]
    fn formats_that_follow_the_locale_are_known() {
        assert!(follows_locale("TMMonth", false) && follows_locale("L999D99", true));
        assert!(!follows_locale("YYYY-MM-DD", false) && !follows_locale("FM999.00", true));
        assert!(!follows_locale("\"TM\"YYYY", false));
    }
}
