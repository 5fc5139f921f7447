//! What keeps windows that would run from being handed out.

use crate::domain::lifecycle::{Outcome, State};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::window::{Reading, Seen};
use crate::ledger::writer;
use crate::postgres::{role, spi};
use std::collections::HashMap;

/// Who or what is in the way, and how.
#[derive(Debug, Clone)]
pub struct Obstacle {
    pub by: String,
    pub reason: String,
}

/// What is in the way of the windows of one pipeline, as the calling query sees it.
pub struct Obstacles {
    /// By plan; 0 is the live right.
    sources: HashMap<i64, Obstacle>,
    /// The backend that still writes under a token.
    writers: HashMap<i64, i32>,
    /// The windows that block others, with the state that they are in.
    blocking: HashMap<i64, (String, State)>,
}

const SOURCES: &str =
    "SELECT o.plan_id, o.blocked_by, o.reason FROM backfill.obstacle_data o WHERE o.pipeline_id = $1";

/// Whether the window would run by itself, had it a lease.
pub fn is_waiting(seen: &Seen) -> bool {
    matches!(seen.state, State::Queued | State::Eligible | State::Blocked | State::Retrying)
}

impl Obstacles {
    /// What is in the way of those of the windows that wait.
    pub fn of(pipeline: &Pipeline, all: &[Seen]) -> Self {
        let waiting = || all.iter().filter(|seen| is_waiting(seen));
        let mut found = Self { sources: HashMap::new(), writers: HashMap::new(), blocking: HashMap::new() };
        if waiting().next().is_none() {
            return found;
        }
        let held = waiting().filter(|seen| seen.record.newest == Some(Outcome::Revoked));
        let held: Vec<i64> = held.filter_map(|seen| seen.record.token).collect();
        role::as_ledger(|| {
            let sources = spi::read(SOURCES, &[pipeline.id.into()], |row| {
                (row.at::<i64>(1), Obstacle { by: row.at(2), reason: row.at(3) })
            });
            found.sources.extend(sources);
            found.writers.extend(writer::of(Reading::Stable, held));
        });
        for (position, state) in waiting().filter_map(|seen| seen.record.blocked_by) {
            let key = pipeline.grid.window_key(position).unwrap_or_default();
            found.blocking.insert(position, (key, state));
        }
        found
    }

    /// What is in the way of a window that waits.
    pub fn before(&self, seen: &Seen) -> Option<Obstacle> {
        let record = &seen.record;
        if let Some((key, state)) = record.blocked_by.and_then(|(position, _)| self.blocking.get(&position)) {
            return Some(Obstacle {
                by: format!("window {key}"),
                reason: format!("window {key} is {state}: it has to be done, skipped or adopted first"),
            });
        }
        if let Some(pid) = record.token.and_then(|token| self.writers.get(&token)) {
            return Some(Obstacle {
                by: format!("pid {pid}"),
                reason: format!(
                    "backend {pid} has a transaction open under token {}, which was revoked; the window is handed out when it ends",
                    record.token.unwrap_or_default()
                ),
            });
        }
        self.sources.get(&record.owner_plan.unwrap_or(0)).cloned()
    }
}
