//! What happens to two of the workers while the plan runs.

use crate::Result;
use crate::demo::bar::Bar;
use crate::demo::crew::Crew;
use std::process::Command;
use std::time::{Duration, Instant};

/// Workers end in a letter of their own, which stands for them in the calendar.
pub const KILLED: &str = "python-a";
pub const STOPPED: &str = "python-b";
/// Not a worker: a psql that watches the plan.
const WATCH: &str = "watch";

/// Much longer than it takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(180);

/// The tokens of the attempts that were struck.
#[derive(Default)]
pub struct Accidents {
    pub killed: String,
    pub stopped: String,
    continued: bool,
    refused: bool,
}

/// Shows the progress of the plan until it is completed, and strikes two workers on its way.
pub fn follow(crew: &mut Crew, watch: &mut Command) -> Result<Accidents> {
    crew.join(WATCH, watch.args(["-A", "-t"]))?;
    let deadline = Instant::now() + LIMIT;
    let mut bar = Bar::new();
    let mut accidents = Accidents::default();
    let mut completed = false;
    let mut last_words = String::new();
    while !(completed && accidents.refused) {
        if Instant::now() > deadline {
            return Err(format!("the plan did not end in {LIMIT:?}"));
        }
        let said = crew.hear()?;
        match said.line {
            _ if completed && (accidents.killed.is_empty() || accidents.stopped.is_empty()) => {
                return Err("the plan was completed before two workers could be struck".into());
            }
            Some(line) if said.who == WATCH => completed = progress(&line, crew, &mut bar, &mut accidents)?,
            Some(line) => {
                strike(said.who, &line, crew, &bar, &mut accidents)?;
                last_words = format!("{}: {line}", said.who);
            }
            None if said.who == KILLED && !accidents.killed.is_empty() => {}
            None => return Err(format!("{} ended. The last that was heard: {last_words}", said.who)),
        }
    }
    bar.leave();
    Ok(accidents)
}

/// Reads a line of progress.sql; answers whether the plan is completed.
fn progress(line: &str, crew: &mut Crew, bar: &mut Bar, accidents: &mut Accidents) -> Result<bool> {
    let fields: Vec<&str> = line.split('|').collect();
    let &[state, windows, done, running, overtaken] = fields.as_slice() else {
        return Err(format!("the progress of the plan cannot be read: {line}"));
    };
    let number = |text: &str| text.parse().unwrap_or_default();
    bar.draw(number(done), number(windows), number(running));
    if !accidents.continued
        && overtaken.split(',').any(|token| !token.is_empty() && token == accidents.stopped)
    {
        accidents.continued = true;
        bar.note("  The window of python-b was taken over and is done. CONT: python-b wakes up and writes.");
        crew.tell(STOPPED, "go on")?;
        crew.signal(STOPPED, "CONT")?;
    }
    match state {
        "completed" => Ok(true),
        "approved" | "running" => Ok(false),
        other => Err(format!("the plan is {other}")),
    }
}

fn strike(who: &str, line: &str, crew: &mut Crew, bar: &Bar, accidents: &mut Accidents) -> Result<()> {
    match (who, line.split_whitespace().collect::<Vec<_>>().as_slice()) {
        (KILLED, ["written", window, token]) => {
            bar.note(&format!("  python-a has written {window} and not committed it. KILL."));
            accidents.killed = (*token).to_owned();
            crew.signal(KILLED, "KILL")
        }
        (STOPPED, ["computed", window, token]) => {
            bar.note(&format!(
                "  python-b has computed {window} and not written it. STOP, until its lease is over."
            ));
            accidents.stopped = (*token).to_owned();
            crew.signal(STOPPED, "STOP")
        }
        (STOPPED, ["refused", ..]) => {
            bar.note(&format!("  python-b is {line}"));
            Ok(())
        }
        // The lines of the server's error that follow.
        (STOPPED, [field @ ("DETAIL:" | "HINT:"), ..]) => {
            bar.note(&format!("      {line}"));
            accidents.refused |= *field == "HINT:";
            Ok(())
        }
        _ => Ok(()),
    }
}
