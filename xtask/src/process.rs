//! Programs that we run.

use crate::Result;
use std::process::{Command, Stdio};

/// Runs a command; its output goes where ours goes.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| cannot_run(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", shown(command))) }
}

/// Runs a command and returns the first line that it prints.
pub fn first_line(command: &mut Command) -> Result<String> {
    let output = pgrx_tests::server::succeed(command)?;
    Ok(output.lines().next().unwrap_or_default().trim().to_owned())
}

/// Whether a command can be run and succeeds.
pub fn works(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

pub fn cannot_run(command: &Command, error: &std::io::Error) -> String {
    format!("cannot run {}: {error}", command.get_program().display())
}
