//! How fast a plan goes, from its newest attempts.

use crate::domain::makespan;
use crate::domain::turnaround::{self, Attempt};
use crate::domain::zone::Instant;
use crate::ledger::plan::Plan;
use crate::postgres::{role, spi};

const ATTEMPTS: &str = include_str!("../../sql/query/plan_pace.sql");

/// Fewer finished windows of the plan itself say less than its estimate does.
const SHOWN: usize = 5;
/// A plan none of whose leases was held for so long has no workers.
const STANDSTILL: i64 = 60_000_000;
const HOUR: f64 = 3.6e9;

/// The newest attempts of a plan.
pub struct Pace {
    attempts: Vec<Attempt>,
    /// Durations of those that are done.
    done: Vec<i64>,
}

impl Pace {
    /// For STABLE functions.
    pub fn of(plan_id: i64) -> Self {
        let rows = role::as_ledger(|| {
            spi::read(ATTEMPTS, &[plan_id.into()], |row| {
                let end: Option<Instant> = row.get(2);
                (row.at::<Instant>(1).0, end.map(|end| end.0), row.at::<bool>(3))
            })
        });
        let done = rows.iter().filter(|(.., done)| *done);
        Self {
            done: done.filter_map(|(start, end, _)| Some((*end)? - start)).collect(),
            attempts: rows.into_iter().map(|(start, end, _)| (start, end)).collect(),
        }
    }

    /// Between two windows of a worker.
    pub fn idle(&self) -> Option<i64> {
        turnaround::typical(turnaround::waits(&self.attempts))
    }

    fn open(&self) -> impl Iterator<Item = i64> {
        self.attempts.iter().filter(|(_, end)| end.is_none()).map(|(start, _)| *start)
    }

    fn newest_end(&self) -> Option<i64> {
        self.attempts.iter().filter_map(|(_, end)| *end).max()
    }

    /// Windows done an hour: until now while leases are held, else until the last one ended.
    pub fn rate(&self, now: Instant) -> Option<f64> {
        let start = self.attempts.iter().map(|(start, _)| *start).min()?;
        let end = if self.open().next().is_some() { now.0 } else { self.newest_end()? };
        (end > start).then(|| self.done.len() as f64 * HOUR / (end - start) as f64)
    }

    /// When the plan will end that has `left` windows to go, if it goes on like this: by what its own windows took,
    /// or by its estimate while they are few. `None` where nothing runs or nothing is known.
    pub fn eta(&self, plan: &Plan, left: usize, now: Instant) -> Option<Instant> {
        let elapsed: Vec<i64> = self.open().map(|start| now.0 - start).collect();
        let stands = self.newest_end().is_none_or(|end| now.0 - end > STANDSTILL);
        if elapsed.is_empty() && stands {
            return None;
        }
        // No more than had work so far: the slots that nobody serves do not count.
        let workers = turnaround::most_at_once(&self.attempts);
        let slots = (plan.concurrency.min(plan.pool_slots).max(1) as usize).min(workers);
        let (sample, idle) = match plan.window_micros() {
            Some(expected) if self.done.len() < SHOWN => (vec![expected], 0),
            _ => (self.done.clone(), self.idle().unwrap_or(0)),
        };
        let waiting = left.saturating_sub(elapsed.len());
        let remaining = makespan::remaining(&sample, idle, &elapsed, waiting, slots)?;
        now.checked_add(remaining)
    }
}
