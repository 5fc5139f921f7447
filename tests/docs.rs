//! What the documentation shows is run: the SQL blocks of each file, in their order, in a database of its own.
//!
//! A block fenced as `sql` must succeed. One fenced as `sql error` must end in an error, and in the one whose
//! SQLSTATE follows, if there is one: `sql error BF003`. Everything else is for people only.

use pgrx_tests::Cluster;
use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block of SQL.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// The line of its fence, from 1.
    line: usize,
    sql: String,
    expected: Expected,
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Success,
    AnyError,
    Error(String),
}

/// The blocks of SQL of a text in Markdown.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = vec![];
    let mut lines = text.lines().zip(1..);
    while let Some((fence, line)) = lines.next() {
        let Some(info) = fence.trim_start().strip_prefix("```") else { continue };
        let body: Vec<&str> =
            lines.by_ref().map(|(line, _)| line).take_while(|line| line.trim() != "```").collect();
        let expected = match info.split_whitespace().collect::<Vec<_>>()[..] {
            ["sql"] => Expected::Success,
            ["sql", "error"] => Expected::AnyError,
            ["sql", "error", sqlstate] => Expected::Error(sqlstate.to_owned()),
            ["sql", ..] => {
                panic!("line {line} says {info}: SQL is fenced as sql, or sql error and a SQLSTATE")
            }
            _ => continue,
        };
        blocks.push(Block { line, sql: body.join("\n"), expected });
    }
    blocks
}

/// README.md and docs/*.md.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> = fs::read_dir(root.join("docs"))
        .expect("the checkout has a folder docs")
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    files.sort();
    files.push(root.join("README.md"));
    files
}

/// Runs the blocks with psql, in one session, and says what went wrong with which.
fn run(blocks: &[Block]) -> Result<(), String> {
    let mut script = String::new();
    for Block { line, sql, expected } in blocks {
        let stop = if *expected == Expected::Success { "on" } else { "off" };
        script.push_str(&format!(
            "\\set ON_ERROR_STOP {stop}\n\\set LAST_ERROR_SQLSTATE none\n\\echo @{line}\n{sql}\n;\n\
             \\echo @{line} :LAST_ERROR_SQLSTATE\n"
        ));
    }
    let database = Cluster::shared().database();
    let folder = pgrx_tests::scratch::folder()?;
    let file = folder.join("blocks.sql");
    fs::write(&file, script).map_err(|error| error.to_string())?;
    let output = database.command("psql").args(["-X", "-q", "-f"]).arg(&file).output();
    fs::remove_dir_all(folder).map_err(|error| error.to_string())?;
    let output = output.map_err(|error| error.to_string())?;
    let [printed, complaints] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());

    for Block { line, expected, .. } in blocks {
        let end = format!("@{line} ");
        let met = printed.lines().find_map(|printed| printed.strip_prefix(&end)).unwrap_or("an end");
        let as_expected = match expected {
            Expected::Success => met == "none",
            Expected::AnyError => met != "none",
            Expected::Error(sqlstate) => met == sqlstate,
        };
        if !as_expected {
            return Err(format!("the block at line {line} met {met}, not {expected:?}\n{complaints}"));
        }
    }
    Ok(())
}

#[test]
fn the_sql_of_the_documentation_does_what_it_says() {
    let mut wrong = vec![];
    let mut count = 0;
    for file in files() {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let blocks = blocks(&text);
        count += blocks.len();
        if let Err(error) = run(&blocks) {
            wrong.push(format!("{}: {error}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 10, "there are {count} blocks");
}

/// Tokens and fingerprints are new in each database.
fn masked(transcript: &str) -> String {
    let mut masked = String::new();
    for line in transcript.lines() {
        let words = line.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
        masked.extend(words.map(|word| {
            let name = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let is_made =
                name.len() >= 8 && name.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
            if is_made { word.replacen(name, &"x".repeat(name.len()), 1) } else { word.to_owned() }
        }));
        masked.push('\n');
    }
    masked
}

/// What the README's tour answers, as psql prints it. `UPDATE_TRANSCRIPT=1` writes the transcript anew.
#[test]
fn the_tour_of_the_readme_answers_as_its_transcript_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).expect("there is a README");
    let sql: Vec<String> = blocks(&readme).into_iter().map(|block| block.sql).collect();
    let folder = pgrx_tests::scratch::folder().expect("a folder can be made");
    let file = folder.join("tour.sql");
    fs::write(&file, sql.join("\n\n") + "\n").expect("it can be written");
    let database = Cluster::shared().database();
    let mut psql = database.command("psql");
    psql.args(["-X", "-a", "-v", "ON_ERROR_STOP=1", "-f"]).arg(&file).env("PGTZ", "Europe/Paris");
    let output = psql.output().expect("psql runs");
    fs::remove_dir_all(folder).expect("the folder can be removed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let transcript = masked(&String::from_utf8_lossy(&output.stdout));
    let kept = root.join("tests/transcripts/tour.out");
    if std::env::var_os("UPDATE_TRANSCRIPT").is_some() {
        fs::write(&kept, &transcript).expect("the transcript can be written");
    }
    let expected = fs::read_to_string(&kept).expect("the transcript is kept");
    for (number, (found, expected)) in transcript.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of the transcript", number + 1);
    }
    assert_eq!(transcript.lines().count(), expected.lines().count());
}

#[test]
fn blocks_are_found_by_their_fences() {
    let text =
        "# A\n```sql\nSELECT 1;\n```\n\n```bash\nls\n```\n\n- b\n  ```sql error BF003\n  SELECT 2\n  ```\n";
    let found = blocks(text);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], Block { line: 2, sql: "SELECT 1;".into(), expected: Expected::Success });
    assert_eq!((found[1].line, &found[1].expected), (11, &Expected::Error("BF003".into())));
}

#[test]
fn a_block_that_does_not_end_as_it_says_is_found() {
    let run =
        |fence: &str, sql: &str| run(&blocks(&format!("```{fence}\n{sql}\n```\n```sql\nSELECT 1;\n```")));
    assert_eq!(run("sql", "SELECT 1"), Ok(()));
    assert_eq!(run("sql error", "SELECT 1/0;"), Ok(()));
    assert_eq!(run("sql error 22012", "SELECT 1/0;"), Ok(()));
    for (fence, sql) in
        [("sql", "SELECT 1/0;"), ("sql error", "SELECT 1;"), ("sql error 22023", "SELECT 1/0;")]
    {
        let error = run(fence, sql).expect_err(fence);
        assert!(error.contains("line 1 "), "{error}");
    }
}
