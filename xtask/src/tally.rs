//! Counting what test runs say at their ends.

use crate::{Result, process};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// How many tests passed, failed, and did not run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
    pub filtered: u64,
}

impl Tally {
    /// Runs a `cargo test`, passing its output on line by line and counting.
    pub fn run(&mut self, command: &mut Command) -> Result<()> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| process::cannot_run(command, &error))?;
        let output = child.stdout.take().map(BufReader::new);
        for line in output.into_iter().flat_map(|output| output.split(b'\n')) {
            let line = line.map_err(|error| format!("cannot read what the tests print: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            self.count(&line);
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", process::shown(command))) }
    }

    /// Adds the numbers of a line like `test result: ok. 3 passed; 0 failed; …`; ignores all others.
    fn count(&mut self, line: &str) {
        let Some((_, numbers)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for item in numbers.split("; ") {
            if let Some((number, what)) = item.split_once(' ')
                && let Ok(number) = number.parse::<u64>()
            {
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    "filtered out" => self.filtered += number,
                    _ => {}
                }
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed; {} failed; {} ignored; 0 measured; {} filtered out",
            self.passed, self.failed, self.ignored, self.filtered
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_add_up() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.10s",
            "test a_test_about_a_result ... ok",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            tally.count(line);
        }
        assert_eq!(tally, Tally { passed: 7, failed: 2, ignored: 1, filtered: 2 });
    }
}
