//! What keeps windows that would run from being handed out.

use crate::domain::lifecycle::{Outcome, State};
use crate::ledger::mixture::{self, OnMixture};
use crate::ledger::permit::Cap;
use crate::ledger::piece::{Blocker, Piece, Seen};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::window::Reading;
use crate::ledger::{version, writer};
use crate::postgres::lock::{Holders, Key};
use crate::postgres::{role, spi};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Who or what is in the way, and how.
#[derive(Debug, Clone)]
pub struct Obstacle {
    pub by: String,
    pub reason: String,
}

/// What is in the way of the windows of one pipeline, as the calling query sees it.
pub struct Obstacles {
    pipeline_id: i64,
    /// By plan; 0 is the live right.
    sources: HashMap<i64, Obstacle>,
    /// The backend that still writes under a token.
    writers: HashMap<i64, i32>,
    /// The keys of the windows that block others, by position.
    blocking: HashMap<i64, String>,
    /// Why the pipeline's own code builds nothing now.
    mixture: Option<Obstacle>,
    /// Which versions outside workers may state, where that matters.
    wanted: Option<String>,
    /// The plans whose windows are of what their workers state.
    unpinned: HashSet<i64>,
    /// What claims hold that are not committed.
    holders: Holders,
}

const SOURCES: &str =
    "SELECT o.plan_id, o.blocked_by, o.reason FROM backfill.obstacle_data o WHERE o.pipeline_id = $1";

/// What the sources of a pipeline share: the pool with its slots, and how many leases hold one.
const CAPS: &str = "WITH held AS (
        SELECT o.pool_id, o.pipeline_id, o.plan_id FROM backfill.open_run_data o
        JOIN backfill.run_void_data r ON r.token = o.token WHERE r.void_reason IS NULL
    )
    SELECT s.plan_id, s.pool_id, o.slots, s.at_once,
           (SELECT pg_catalog.count(*) FROM held h WHERE h.pool_id = s.pool_id),
           (SELECT pg_catalog.count(*) FROM held h WHERE h.pipeline_id = $1 AND h.plan_id = s.plan_id)
    FROM (
        SELECT 0::pg_catalog.int8 AS plan_id, p.pool_id, p.max_active AS at_once
        FROM backfill.pipeline_data p WHERE p.pipeline_id = $1
        UNION ALL
        SELECT pl.plan_id, pl.pool_id, pl.concurrency FROM backfill.plan_data pl
        WHERE pl.pipeline_id = $1 AND pl.state IN ('approved', 'paused')
    ) s JOIN backfill.pool_data o ON o.pool_id = s.pool_id";

/// Plans that publish each window by itself, with the version that it will be of, if that is known.
const PLANS: &str = "SELECT pl.plan_id, COALESCE(pl.code_version, p.code_version)
    FROM backfill.plan_data pl JOIN backfill.pipeline_data p ON p.pipeline_id = pl.pipeline_id
    WHERE pl.pipeline_id = $1 AND pl.state IN ('approved', 'paused') AND pl.publish = 'each'";

/// What an open transaction holds, in words: a claim that is not committed, as a rule.
fn claimed_by(pids: impl IntoIterator<Item = Option<i32>>, what: &str) -> Obstacle {
    let names: BTreeSet<String> = pids
        .into_iter()
        .map(|pid| pid.map_or("a prepared transaction".to_owned(), |pid| format!("pid {pid}")))
        .collect();
    let by = names.into_iter().collect::<Vec<_>>().join(", ");
    Obstacle { reason: format!("{what} by a transaction that is open: {by}"), by }
}

/// Whether the window would run by itself, had it a lease.
pub fn is_waiting(state: State) -> bool {
    matches!(state, State::Queued | State::Eligible | State::Blocked | State::Retrying)
}

impl Obstacles {
    /// What is in the way of those of the windows that wait.
    pub fn of(pipeline: &Pipeline, all: &[Piece]) -> Self {
        let waiting = || all.iter().filter(|piece| is_waiting(piece.state));
        let mut found = Self {
            pipeline_id: pipeline.id,
            sources: HashMap::new(),
            writers: HashMap::new(),
            blocking: HashMap::new(),
            mixture: None,
            wanted: None,
            unpinned: HashSet::new(),
            holders: Holders::default(),
        };
        if waiting().next().is_none() {
            return found;
        }
        if pipeline.on_mixture == OnMixture::Refuse {
            found.look_at_versions(pipeline);
        }
        found.holders = role::as_ledger(Holders::now);
        let held = waiting().filter(|piece| piece.record().newest == Some(Outcome::Revoked));
        let held: Vec<i64> = held.filter_map(|piece| piece.record().token).collect();
        role::as_ledger(|| {
            let sources = spi::read(SOURCES, &[pipeline.id.into()], |row| {
                (row.at::<i64>(1), Obstacle { by: row.at(2), reason: row.at(3) })
            });
            found.sources.extend(found.holders_of_slots(pipeline.id));
            found.sources.extend(sources);
            found.writers.extend(writer::of(Reading::Stable, held));
        });
        for Blocker { position, .. } in waiting().filter_map(|piece| piece.blocked_by) {
            found.blocking.insert(position, pipeline.grid.window_key(position).unwrap_or_default());
        }
        found
    }

    /// Sources all of whose free slots, in the pool or of their own, are held by claims that are not committed.
    fn holders_of_slots(&self, pipeline_id: i64) -> Vec<(i64, Obstacle)> {
        if self.holders.is_empty() {
            return vec![];
        }
        let caps = spi::read(CAPS, &[pipeline_id.into()], |row| {
            let (plan, pool) = (row.at::<i64>(1), row.at::<i32>(2));
            let limit = Cap::Limit { pipeline: pipeline_id, plan };
            let pool = Cap::Pool { pool };
            (plan, [(pool, row.at::<i32>(3), row.at::<i64>(5)), (limit, row.at(4), row.at(6))])
        });
        let full = |(cap, slots, leases): (Cap, i32, i64)| {
            let held: Vec<_> = (1..=slots).filter_map(|slot| self.holders.of(cap.key(slot))).collect();
            let is_full = !held.is_empty() && leases + held.len() as i64 >= i64::from(slots);
            is_full.then(|| claimed_by(held, "every free slot is held"))
        };
        caps.into_iter().filter_map(|(plan, caps)| Some((plan, caps.into_iter().find_map(full)?))).collect()
    }

    fn look_at_versions(&mut self, pipeline: &Pipeline) {
        let against = |version: &str| {
            let fits = mixture::fits(pipeline.id, Some(version), mixture::NO_WINDOW);
            (!fits).then(|| Obstacle {
                by: "on_mixture".to_owned(),
                reason: mixture::obstacle(pipeline, version),
            })
        };
        match version::shown(Reading::Stable, pipeline) {
            Some(version) => self.mixture = against(&version),
            None if pipeline.query.is_none() => self.wanted = mixture::wanted(pipeline),
            None => {}
        }
        let plans = role::as_ledger(|| {
            spi::read(PLANS, &[pipeline.id.into()], |row| (row.at::<i64>(1), row.get::<String>(2)))
        });
        for (plan, version) in plans {
            match version {
                Some(version) => self.sources.extend(against(&version).map(|obstacle| (plan, obstacle))),
                None => drop(self.unpinned.insert(plan)),
            }
        }
    }

    /// Which versions a worker may state to get a window, where that matters.
    pub fn wanted(&self, seen: &Seen) -> Option<&str> {
        let is_free = match seen.record().owner_plan {
            Some(plan) => self.unpinned.contains(&plan),
            None => seen.state == State::Eligible,
        };
        self.wanted.as_deref().filter(|_| is_free && is_waiting(seen.state))
    }

    /// What is in the way of a window that waits.
    pub fn before(&self, seen: &Seen) -> Option<Obstacle> {
        let record = seen.record();
        if let Some(Blocker { position, state, plan }) = seen.blocked_by
            && let Some(key) = self.blocking.get(&position)
        {
            let what = match plan {
                Some(plan) => {
                    format!(
                        "plan {plan} has to be done with it first, or SELECT backfill_cancel({plan}, 'why')"
                    )
                }
                None => "it has to be done, skipped or adopted first".to_owned(),
            };
            return Some(Obstacle {
                by: format!("window {key}"),
                reason: format!("window {key} is {state}: {what}"),
            });
        }
        let window = Key::Window { pipeline: self.pipeline_id, start: seen.window.start.0 };
        if let Some(pid) = self.holders.of(window) {
            return Some(claimed_by([pid], "the window is held"));
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
        if let Some(mixture) = self.mixture.as_ref().filter(|_| record.owner_plan.is_none()) {
            return Some(mixture.clone());
        }
        self.sources.get(&record.owner_plan.unwrap_or(0)).cloned()
    }
}
