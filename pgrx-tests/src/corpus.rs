//! The corpus of queries for the lint: each with all that must be found in it, and nothing else.
//!
//! A case begins with `--- name`. Behind it stand `-- expect rule | object | place`, with ` & ` between several objects,
//! `-- dims a b c` for tables without a window, `-- past` for a pipeline that depends on its past, and the query; before it may
//! stand statements, between `-- setup` and `-- query`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What is found: the rule, the object, and the place.
pub type Finding = (String, String, String);

pub struct Case {
    pub name: String,
    setup: String,
    query: String,
    depends_on_past: bool,
    pub expected: BTreeSet<Finding>,
}

/// What makes the tables, and the cases of each file.
pub struct Corpus {
    pub schema: String,
    pub cases: Vec<Case>,
}

/// Names the findings of a case that was defined, each as `rule | object | place`.
pub const FINDINGS: &str = "SELECT rule || ' | ' || object || ' | ' || place FROM pipeline_lint('corpus')";

impl Corpus {
    /// Reads the files of a folder, in the order of their names.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let text = |name: &str| {
            let file = folder.join(name);
            fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))
        };
        let mut cases = vec![];
        for name in ["impure.sql", "pure.sql", "tpch.sql", "tpcds.sql"] {
            let text = text(name)?;
            let parts = text.split("\n--- ").skip(1);
            cases.extend(parts.map(Case::parse));
        }
        Ok(Self { schema: text("schema.sql")?, cases })
    }
}

impl Case {
    fn parse(text: &str) -> Self {
        let (name, rest) = text.split_once('\n').unwrap_or((text, ""));
        let mut case = Self {
            name: name.trim().to_owned(),
            setup: String::new(),
            query: String::new(),
            depends_on_past: false,
            expected: BTreeSet::new(),
        };
        let mut in_setup = false;
        for line in rest.lines() {
            match line.strip_prefix("-- ").map(|line| line.split_once(' ').unwrap_or((line, ""))) {
                Some(("setup", "")) => in_setup = true,
                Some(("query", "")) => in_setup = false,
                Some(("past", "")) => case.depends_on_past = true,
                Some(("expect", finding)) => {
                    let mut fields = finding.split(" | ");
                    let [rule, objects, place] = [(); 3].map(|()| fields.next().unwrap_or_default());
                    case.expected.extend(objects.split(" & ").map(|object| finding_of(rule, object, place)));
                }
                Some(("dims", tables)) => {
                    let tables = tables.split_whitespace();
                    case.expected.extend(
                        tables.map(|table| {
                            finding_of("mutable-dimension", &format!("public.{table}"), "query")
                        }),
                    );
                }
                Some(_) | None => {
                    let part = if in_setup { &mut case.setup } else { &mut case.query };
                    part.push_str(line);
                    part.push('\n');
                }
            }
        }
        case
    }

    /// Statements that define its pipeline.
    pub fn definition(&self) -> String {
        format!(
            "{}SELECT pipeline_define('corpus', '1 day', '2024-01-01', target => 'facts', slice_column => 'day',
                 depends_on_past => {}, on_impure => 'allow', query => $corpus${}$corpus$);",
            self.setup, self.depends_on_past, self.query
        )
    }
}

fn finding_of(rule: &str, object: &str, place: &str) -> Finding {
    (rule.to_owned(), object.to_owned(), place.to_owned())
}

/// Reads what [`FINDINGS`] answers.
pub fn findings<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<Finding> {
    lines
        .map(|line| {
            let mut fields = line.split(" | ");
            let [rule, object, place] = [(); 3].map(|()| fields.next().unwrap_or_default());
            finding_of(rule, object, place)
        })
        .collect()
}
