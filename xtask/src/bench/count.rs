//! Numbers that psql prints.

use crate::Result;
use pgrx_tests::server::Server;

/// A number, however it is printed.
pub fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

/// The numbers in the one row that a query answers.
pub fn row<const N: usize>(server: &Server, database: &str, query: &str) -> Result<[f64; N]> {
    let output = server.psql(database, query)?;
    let line = output.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
    let numbers: Vec<f64> = line.split('|').filter_map(number).collect();
    numbers.try_into().map_err(|_| format!("{N} numbers were expected, not {line:?}: {query}"))
}

/// The number that a query answers.
pub fn one(server: &Server, database: &str, query: &str) -> Result<f64> {
    row::<1>(server, database, query).map(|[number]| number)
}
