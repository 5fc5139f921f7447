//! What the lint finds in queries, and what pipelines do about it.

use pgrx_tests::corpus::{self, Corpus};
use pgrx_tests::{Cluster, Database, Session};
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
