//! What `#[pg_test]` calls: runs one function of the schema `tests` inside the server.

use crate::cluster::Cluster;
use crate::database::Database;
use crate::failure::{Failure, Fields};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Runs `SELECT tests.function()` in a transaction that is rolled back, and compares its error's message.
///
/// All such tests of a process share one server, started with the first one's settings, and the database
/// `pgrx_tests`, and run one after the other: their transactions create tables of the same names, so that two at once
/// would wait for each other, and could do so in a circle.
pub fn run_test(
    function: &str,
    expected_error: Option<&str>,
    conf: Vec<&'static str>,
) -> Result<(), Failure> {
    static DATABASE: OnceLock<Database> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::shared_with(&conf);
    let database = DATABASE.get_or_init(|| cluster.database_named("pgrx_tests".into()));
    let mut session = database.connect();
    let pid = session.pid();
    let outcome = session
        .transaction()
        .and_then(|mut transaction| transaction.batch_execute(&format!(r#"SELECT tests."{function}"()"#)))
        .map_err(|error| Failure::of(&error));
    match (outcome, expected_error) {
        (Ok(()), None) => Ok(()),
        (Err(failure), Some(expected)) if failure.message == expected => Ok(()),
        (Ok(()), Some(expected)) => Err(Fields {
            message: format!("succeeded, but should have failed with: {expected}"),
            ..Fields::default()
        }
        .into()),
        (Err(mut failure), expected) => {
            if let Some(expected) = expected {
                failure.message.push_str(&format!("\nEXPECTED: {expected}"));
            }
            failure.context.push_str(&format!("\nSERVER LOG:\n{}", log_of(&cluster.log(), pid)));
            Err(failure)
        }
    }
}

/// What one backend wrote to the log. Lines that go on with a tab belong to the one before.
fn log_of(log: &str, pid: i32) -> String {
    let prefix = format!(" [{pid}] ");
    let mut ours = false;
    let lines = log.lines().filter(|line| {
        if !line.starts_with('\t') {
            ours = line.contains(&prefix);
        }
        ours
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::log_of;

    #[test]
    fn the_log_of_a_backend_keeps_its_continued_lines() {
        let log = "noon [7] a@b ERROR: one\n\tgoes on\nnoon [8] a@b LOG: other\n\tgoes on too\nnoon [7] a@b LOG: two";
        assert_eq!(log_of(log, 7), "noon [7] a@b ERROR: one\n\tgoes on\nnoon [7] a@b LOG: two");
    }
}
