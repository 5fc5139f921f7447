//! `cargo xtask corpus`: what the lint finds in the corpus of queries, beside what is to be found.

use crate::arguments::Arguments;
use crate::{Result, place, served};
use pgrx_tests::corpus::{self, Corpus};
use std::collections::BTreeMap;

const DATABASE: &str = "corpus";

#[derive(Default)]
struct Score {
    expected: usize,
    found: usize,
    right: usize,
}

impl Score {
    fn line(&self, name: &str) -> String {
        let share = |of: usize| if of == 0 { 1.0 } else { self.right as f64 / of as f64 };
        format!(
            "{name:<26}{:>9}{:>9}{:>9}{:>11.3}{:>9.3}",
            self.expected,
            self.found,
            self.right,
            share(self.found),
            share(self.expected)
        )
    }
}

/// `cargo xtask corpus`.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Corpus { schema, cases } = Corpus::read(&place::root().join("tests/corpus/purity"))?;
    let server = served::start(arguments.version()?, false)?;
    server.psql("postgres", &format!("DROP DATABASE IF EXISTS {DATABASE};\nCREATE DATABASE {DATABASE};"))?;
    server.psql(DATABASE, &format!("CREATE EXTENSION pg_backfill;\n{schema}"))?;
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    let (mut alarmed, mut pure) = (0, 0);
    for case in &cases {
        let script = format!("BEGIN;\n{}\n\\echo found\n{};\nROLLBACK;", case.definition(), corpus::FINDINGS);
        let answer = server.psql(DATABASE, &script).map_err(|error| format!("{}: {error}", case.name))?;
        let found = corpus::findings(answer.lines().skip_while(|line| *line != "found").skip(1));
        for (what, findings) in
            [("missed", &case.expected - &found), ("false alarm", &found - &case.expected)]
        {
            for (rule, object, place) in findings {
                println!("{}: {what}: {rule} | {object} | {place}", case.name);
            }
        }
        if !case.expected.iter().any(|(rule, ..)| rule != "mutable-dimension") {
            pure += 1;
            alarmed += usize::from(!found.is_subset(&case.expected));
        }
        for finding in &case.expected | &found {
            let score = scores.entry(finding.0.clone()).or_default();
            let (is_expected, is_found) = (case.expected.contains(&finding), found.contains(&finding));
            score.expected += usize::from(is_expected);
            score.found += usize::from(is_found);
            score.right += usize::from(is_expected && is_found);
        }
    }
    let mut total = Score::default();
    println!("{:<26}{:>9}{:>9}{:>9}{:>11}{:>9}", "rule", "expected", "found", "right", "precision", "recall");
    for (rule, score) in &scores {
        println!("{}", score.line(rule));
        total.expected += score.expected;
        total.found += score.found;
        total.right += score.right;
    }
    println!("{}", total.line("total"));
    println!(
        "{} queries; {alarmed} of {pure} that are pure, but for the tables they name, raise a false alarm",
        cases.len()
    );
    Ok(())
}
