//! pgbench, which comes with the server.

use super::count::number;
use crate::Result;
use pgrx_tests::scratch;
use pgrx_tests::server::{Server, succeed};
use std::fs;

/// A script that several clients run again and again, with statements prepared once a connection.
pub struct Load<'a> {
    pub server: &'a Server,
    pub database: &'a str,
    pub role: &'a str,
    pub script: &'a str,
    pub variables: &'a [(&'a str, String)],
    pub clients: usize,
    pub seconds: u64,
}

/// What pgbench says of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    pub transactions: f64,
    /// Without the time that connecting took.
    pub seconds: f64,
}

impl Load<'_> {
    /// An error of any client is ours.
    pub fn run(&self) -> Result<Report> {
        let folder = scratch::folder()?;
        let file = folder.join("script.sql");
        fs::write(&file, self.script).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let mut pgbench = self.server.command("pgbench");
        pgbench.env("PGUSER", self.role).env("PGDATABASE", self.database);
        pgbench.args(["--no-vacuum", "--protocol=prepared"]);
        pgbench.args(["--client", &self.clients.to_string(), "--jobs", &self.clients.min(2).to_string()]);
        pgbench.args(["--time", &self.seconds.to_string()]);
        for (name, value) in self.variables {
            pgbench.arg(format!("--define={name}={value}"));
        }
        let output = succeed(pgbench.arg("--file").arg(&file));
        fs::remove_dir_all(&folder)
            .map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
        Report::read(&output?)
    }
}

impl Report {
    fn read(output: &str) -> Result<Self> {
        let after = |start: &str| {
            let line = output.lines().find_map(|line| line.strip_prefix(start));
            line.and_then(|rest| number(rest.split([' ', '/']).next()?))
        };
        match (after("number of transactions actually processed: "), after("tps = ")) {
            (Some(transactions), Some(tps)) if tps > 0.0 => {
                Ok(Self { transactions, seconds: transactions / tps })
            }
            _ => Err(format!("pgbench did not say how fast it was:\n{output}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn a_report_is_read() {
        let output = "scaling factor: 1\nnumber of transactions actually processed: 2000\n\
                      number of failed transactions: 0 (0.000%)\ntps = 500.0 (without initial connection time)\n";
        assert_eq!(Report::read(output).unwrap(), Report { transactions: 2000.0, seconds: 4.0 });
        assert!(Report::read("nothing").is_err());
    }
}
