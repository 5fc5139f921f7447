//! The demo's worker processes, and everything they say.

use crate::{Result, process};
use pgrx_tests::server;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Longer than anybody is ever silent: the progress is told ten times a second.
const SILENCE: Duration = Duration::from_secs(60);

/// Kills the process groups that it was told, when its input ends.
const KEEPER: &str = r#"
trap '' INT TERM HUP
while read -r group; do set -- "$@" "-$group"; done
[ $# -eq 0 ] || kill -s KILL -- "$@"
"#;

/// Processes that end with their owner, even if that is killed.
pub struct Crew {
    members: Vec<Member>,
    keeper: Child,
    said: Receiver<Said>,
    says: Sender<Said>,
}

struct Member {
    name: &'static str,
    process: Child,
}

/// A line that a member wrote, or `None` when it ended.
pub struct Said {
    pub who: &'static str,
    pub line: Option<String>,
}

impl Crew {
    pub fn new() -> Result<Self> {
        let (says, said) = mpsc::channel();
        let mut keeper = Command::new("sh");
        // A group of its own: Ctrl-C ends us, and then it is needed.
        keeper.args(["-c", KEEPER, "keeper"]).process_group(0);
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().map_err(|error| process::cannot_run(&keeper, &error))?;
        Ok(Self { members: vec![], keeper, said, says })
    }

    /// Starts a process. It leads a group, because a shell script's worker is more than one.
    pub fn join(&mut self, name: &'static str, command: &mut Command) -> Result<()> {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| process::cannot_run(command, &error))?;
        let told = writeln!(self.keeper.stdin.as_mut().expect("it is piped"), "{}", process.id());
        self.listen(name, process.stdout.take(), true);
        self.listen(name, process.stderr.take(), false);
        self.members.push(Member { name, process });
        told.map_err(|error| format!("the keeper of the workers is gone: {error}"))
    }

    /// The next thing that anybody says.
    pub fn hear(&self) -> Result<Said> {
        self.said.recv_timeout(SILENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no worker said anything for {SILENCE:?}"),
            RecvTimeoutError::Disconnected => "all workers are gone".into(),
        })
    }

    /// Sends a signal to a member's processes.
    pub fn signal(&mut self, name: &str, signal: &str) -> Result<()> {
        let kill = format!("kill -s {signal} -- -{}", self.member(name).process.id());
        server::succeed(Command::new("sh").args(["-c", &kill])).map(drop)
    }

    /// Writes a line to a member.
    pub fn tell(&mut self, name: &str, line: &str) -> Result<()> {
        let input = self.member(name).process.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}").map_err(|error| format!("{name} does not listen: {error}"))
    }

    fn member(&mut self, name: &str) -> &mut Member {
        self.members.iter_mut().find(|member| member.name == name).expect("the demo knows its workers")
    }

    fn listen(&self, who: &'static str, output: Option<impl Read + Send + 'static>, to_its_end: bool) {
        let (says, output) = (self.says.clone(), output.expect("it is piped"));
        thread::spawn(move || {
            // Nobody listens any more when the demo is over.
            for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
                let _ = says.send(Said { who, line: Some(line) });
            }
            if to_its_end {
                let _ = says.send(Said { who, line: None });
            }
        });
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // They have not been waited for, so the ids that the keeper kills are still theirs.
        let _ = self.keeper.wait();
        for member in &mut self.members {
            // Should the keeper not have been able to, this ends the wait.
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crew_takes_its_processes_and_theirs_with_it() {
        let mut crew = Crew::new().unwrap();
        crew.join("shell", Command::new("sh").args(["-c", "sleep 600 & echo $!; wait"])).unwrap();
        let sleeper: u32 = crew.hear().unwrap().line.unwrap().parse().unwrap();
        crew.signal("shell", "STOP").unwrap();
        drop(crew);
        // It is an orphan now, whom init may take a moment to collect.
        let gone = (0..500).any(|_| {
            thread::sleep(Duration::from_millis(10));
            !server::is_alive(sleeper)
        });
        assert!(gone, "process {sleeper} is still there");
    }

    #[test]
    fn what_members_say_is_heard_with_their_end() {
        let mut crew = Crew::new().unwrap();
        crew.join("echo", Command::new("sh").args(["-c", "read line; echo heard $line"])).unwrap();
        crew.tell("echo", "this").unwrap();
        assert_eq!(crew.hear().unwrap().line.as_deref(), Some("heard this"));
        assert_eq!(crew.hear().unwrap().line, None);
    }
}
