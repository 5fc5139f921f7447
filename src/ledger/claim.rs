//! Handing out windows.
//!
//! A claim walks over the *sources* that it may serve: the live right of each pipeline, then the approved plans.
//! For each it looks for permits (pool slot, and a slot of the plan's concurrency or the pipeline's
//! `max_active`), picks windows in the source's order, takes their mutexes without waiting, and writes the runs in
//! one INSERT. What it read may be older than the locks it holds: the INSERT names the next generation of each
//! slot and the next turn of each window, and the unique indexes of the log refuse what somebody else took
//! meanwhile (under READ COMMITTED such a row is left out; above it the claim gets 40001).
//!
//! Order in a source: windows that keep their place (expired, released, left out), then those never tried,
//! then failed ones whose delay is over.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::candidate::{self, Candidate};
use crate::ledger::permit::{self, Cap, Permit};
use crate::ledger::pipeline::{self, Pipeline, pipeline_columns};
use crate::ledger::rights::{self, Level};
use crate::ledger::{epoch, requeue, takeover, version};
use crate::postgres::{datum, lock, lock::Key, role, spi};

/// What a worker asks for.
pub struct Wish {
    pub worker: String,
    pub max_windows: usize,
    pub pools: Option<Vec<String>>,
    pub pipelines: Option<Vec<String>>,
    pub code_version: Option<String>,
    pub window_key: Option<String>,
}

/// Where windows come from: the live right of a pipeline, or a plan.
pub struct Source {
    pub pipeline: Pipeline,
    /// 0 for the live right.
    pub plan_id: i64,
    pub pool_id: i32,
    pub pool_slots: i32,
    /// Windows at once: the plan's concurrency, or the pipeline's `max_active`.
    pub limit: i32,
    /// The version that the plan was frozen with.
    pub plan_version: Option<String>,
    pub effects: bool,
    pub params: Option<serde_json::Value>,
    /// The clock of a plan's selection.
    pub as_of: Option<Instant>,
    pub swept: bool,
}

/// A lease that was just given.
pub struct Grant {
    pub token: i64,
    pub window_start: Instant,
    pub window_end: Instant,
    pub run_kind: &'static str,
    pub plan_id: i64,
    pub attempt: i32,
    pub code_version: Option<String>,
    pub effects: bool,
    pub as_of: Instant,
    pub params: Option<serde_json::Value>,
    pub expires_at: Instant,
    pub pipeline: Pipeline,
    pub query: Option<String>,
}

const LIVE: &str = concat!(
    "SELECT ",
    pipeline_columns!(),
    ", o.slots
     FROM backfill.pipeline_data p JOIN backfill.pool_data o ON o.pool_id = p.pool_id
     WHERE p.dropped_at IS NULL AND p.paused_at IS NULL
       AND ($1 IS NULL OR o.name = ANY ($1))
       AND (p.name = ANY ($2) OR ($2 IS NULL AND p.query IS NOT NULL))
     ORDER BY pg_catalog.random()"
);

const PLANS: &str = concat!(
    "SELECT ",
    pipeline_columns!(),
    ", o.slots, pl.plan_id, pl.pool_id, pl.concurrency, pl.code_version, pl.effects, pl.params, pl.as_of,
       c.swept_at IS NOT NULL
     FROM backfill.plan_data pl
     LEFT JOIN backfill.plan_cursor_data c ON c.plan_id = pl.plan_id
     JOIN backfill.pipeline_data p ON p.pipeline_id = pl.pipeline_id
     JOIN backfill.pool_data o ON o.pool_id = pl.pool_id
     WHERE pl.state = 'approved' AND c.drained_at IS NULL AND p.dropped_at IS NULL
       AND ($1 IS NULL OR o.name = ANY ($1))
       AND (p.name = ANY ($2) OR ($2 IS NULL AND p.query IS NOT NULL))
     ORDER BY pl.priority DESC, pg_catalog.random()"
);

/// Generations, turns and permits are the ones that were read; a row that somebody else wrote meanwhile is
/// left out by its unique index.
const INSERT: &str = "INSERT INTO backfill.run_data
        (token, pipeline_id, plan_id, window_start, window_end, turn, attempt, seq, run_kind,
         pool_id, pool_slot, pool_gen, limit_slot, limit_gen, worker, role, code_version, as_of,
         started_at, expires_at)
    SELECT pg_catalog.nextval('backfill.token_seq'), $1, $2, w.window_start, w.window_end, w.turn, w.attempt, w.seq,
           w.run_kind, $3, w.pool_slot, w.pool_gen, w.limit_slot, w.limit_gen, $4, $5, $6, $7, $8, $8 + $9
    FROM ROWS FROM (
        pg_catalog.unnest($10), pg_catalog.unnest($11), pg_catalog.unnest($12), pg_catalog.unnest($13),
        pg_catalog.unnest($14), pg_catalog.unnest($15), pg_catalog.unnest($16), pg_catalog.unnest($17),
        pg_catalog.unnest($18), pg_catalog.unnest($19)
    ) AS w (window_start, window_end, turn, attempt, seq, run_kind, pool_slot, pool_gen, limit_slot, limit_gen)
    ON CONFLICT DO NOTHING
    RETURNING token, window_start, expires_at";

impl Source {
    fn live(row: &spi::Row) -> Self {
        let pipeline = Pipeline::decode(row);
        Self {
            plan_id: 0,
            pool_id: pipeline.pool_id,
            pool_slots: row.at(pipeline::COLUMNS + 1),
            limit: pipeline.max_active,
            plan_version: None,
            effects: true,
            params: None,
            as_of: None,
            swept: true,
            pipeline,
        }
    }

    fn plan(row: &spi::Row) -> Self {
        let c = pipeline::COLUMNS;
        Self {
            pipeline: Pipeline::decode(row),
            pool_slots: row.at(c + 1),
            plan_id: row.at(c + 2),
            pool_id: row.at(c + 3),
            limit: row.at(c + 4),
            plan_version: row.get(c + 5),
            effects: row.at(c + 6),
            params: row.get::<pgrx::JsonB>(c + 7).map(|json| json.0),
            as_of: row.get(c + 8),
            swept: row.at(c + 9),
        }
    }

    fn pool_cap(&self) -> Cap {
        Cap::Pool { pool: self.pool_id }
    }

    fn limit_cap(&self) -> Cap {
        Cap::Limit { pipeline: self.pipeline.id, plan: self.plan_id }
    }

    /// The version that a run of this source will carry, if a worker that states `stated` may have its
    /// windows. A window is pinned to a version if it has no query and its plan, else its pipeline, names one.
    fn version_for(&self, stated: Option<&str>) -> Result<Option<Option<String>>> {
        if let (Some(query), Some(path)) = (&self.pipeline.query, &self.pipeline.query_path) {
            return match &self.plan_version {
                Some(frozen) => Ok(Some(Some(frozen.clone()))),
                None => Ok(version::of_query(&self.pipeline, query, path)?.map(Some)),
            };
        }
        let pinned = self.plan_version.as_deref().or(self.pipeline.code_version.as_deref());
        Ok(match pinned {
            Some(pinned) if stated != Some(pinned) => None,
            _ => Some(stated.map(str::to_owned)),
        })
    }
}

/// Gives out up to `max_windows` leases. Never waits for anyone; an empty answer means that nothing can be
/// had now.
pub fn claim(wish: &Wish) -> Result<Vec<Grant>> {
    let who = role::caller();
    if let Some(names) = &wish.pipelines {
        for name in names {
            Pipeline::for_caller(name, Level::Work)?;
        }
    }
    let mut grants: Vec<Grant> = vec![];
    let sources = role::as_ledger(|| {
        if !epoch::ready() {
            return vec![];
        }
        let args = [wish.pools.clone().into(), wish.pipelines.clone().into()];
        let mut sources = spi::query(LIVE, &args, Source::live);
        sources.extend(spi::query(PLANS, &args, Source::plan));
        sources
    });
    for source in sources {
        let want = wish.max_windows - grants.len();
        if want == 0 {
            break;
        }
        let pipeline = &source.pipeline;
        if wish.pipelines.is_none() && !rights::has(who, pipeline.id, &pipeline.owner, Level::Work) {
            continue;
        }
        grants.extend(serve(&source, wish, want, who)?);
    }
    if !grants.is_empty() {
        // A token that a crash forgets would be given out again.
        unsafe { pgrx::pg_sys::ForceSyncCommit() };
    }
    Ok(grants)
}

fn serve(source: &Source, wish: &Wish, want: usize, who: pgrx::pg_sys::Oid) -> Result<Vec<Grant>> {
    let only = match &wish.window_key {
        Some(key) => match source.pipeline.window_named(key) {
            Ok(window) => Some(window),
            Err(error) if wish.pipelines.as_ref().is_some_and(|names| names.len() == 1) => {
                return Err(error);
            }
            Err(_) => return Ok(vec![]),
        },
        None => None,
    };
    let Some((pool, limit)) = role::as_ledger(|| permits(source, want)) else { return Ok(vec![]) };
    let Some(version) = source.version_for(wish.code_version.as_deref())? else {
        role::as_ledger(|| {
            permit::give_back(source.pool_cap(), &pool);
            permit::give_back(source.limit_cap(), &limit);
        });
        return Ok(vec![]);
    };
    let role_name = role::name(who);
    Ok(role::as_ledger(|| {
        let want = pool.len().min(limit.len());
        let windows = candidate::pick(source, only, want);
        let used = windows.len();
        permit::give_back(source.pool_cap(), &pool[used..]);
        permit::give_back(source.limit_cap(), &limit[used..]);
        if used == 0 {
            return vec![];
        }
        write(source, wish, &role_name, version, &windows, &pool, &limit)
    }))
}

/// Holds permits of both caps for up to `want` windows; `None` if there is none of one of them.
fn permits(source: &Source, want: usize) -> Option<(Vec<Permit>, Vec<Permit>)> {
    let limit = take(source.limit_cap(), source.limit, want, true)?;
    let Some(pool) = take(source.pool_cap(), source.pool_slots, limit.len(), false) else {
        permit::give_back(source.limit_cap(), &limit);
        return None;
    };
    Some((pool, limit))
}

/// Holds up to `want` permits of one cap. Expired leases of the source itself are ended as soon as they are
/// seen, since their windows come first in its order; others' only where no permit is free.
fn take(cap: Cap, count: i32, want: usize, own: bool) -> Option<Vec<Permit>> {
    let mut look = permit::look(cap, count, want, false);
    let expired_own = own && look.held.iter().any(|(_, holder)| holder.expired);
    if look.free.is_empty() || expired_own {
        if look.held.is_empty() {
            look = permit::look(cap, count, want, true);
        }
        let mut ended = false;
        for (_, holder) in &look.held {
            let dead = if look.free.is_empty() { holder.is_dead() } else { holder.expired };
            ended |= dead && takeover::take_over(holder);
        }
        if ended {
            look = permit::look(cap, count, want, true);
        }
    }
    let held = permit::hold(cap, &look.free, want);
    (!held.is_empty()).then_some(held)
}

fn write(
    source: &Source,
    wish: &Wish,
    role_name: &str,
    version: Option<String>,
    windows: &[Candidate],
    pool: &[Permit],
    limit: &[Permit],
) -> Vec<Grant> {
    let pipeline = &source.pipeline;
    let now = datum::clock();
    let as_of = source.as_of.unwrap_or(now);
    let column = |f: &dyn Fn(&Candidate) -> i64| windows.iter().map(f).collect::<Vec<i64>>();
    let slots = |permits: &[Permit]| permits[..windows.len()].iter().map(|p| p.slot).collect();
    let generations = |permits: &[Permit]| permits[..windows.len()].iter().map(|p| p.generation).collect();
    let (pool_slots, limit_slots): (Vec<i32>, Vec<i32>) = (slots(pool), slots(limit));
    let (pool_gens, limit_gens): (Vec<i64>, Vec<i64>) = (generations(pool), generations(limit));
    let args = [
        pipeline.id.into(),
        source.plan_id.into(),
        source.pool_id.into(),
        wish.worker.as_str().into(),
        role_name.into(),
        version.as_deref().into(),
        as_of.into(),
        now.into(),
        pipeline.lease_for.into(),
        windows.iter().map(|w| w.window_start).collect::<Vec<Instant>>().into(),
        windows.iter().map(|w| w.window_end).collect::<Vec<Instant>>().into(),
        windows.iter().map(|w| w.turn + 1).collect::<Vec<i32>>().into(),
        windows.iter().map(|w| w.attempt).collect::<Vec<i32>>().into(),
        column(&|w| w.seq).into(),
        windows.iter().map(|w| w.run_kind.to_owned()).collect::<Vec<String>>().into(),
        pool_slots.into(),
        pool_gens.into(),
        limit_slots.into(),
        limit_gens.into(),
    ];
    let written =
        spi::query(INSERT, &args, |row| (row.at::<i64>(1), row.at::<Instant>(2), row.at::<Instant>(3)));
    let queued: Vec<Instant> = windows.iter().filter(|w| w.queued).map(|w| w.window_start).collect();
    let taken: Vec<Instant> =
        queued.into_iter().filter(|start| written.iter().any(|(_, written, _)| written == start)).collect();
    requeue::remove(pipeline.id, source.plan_id, taken);
    written
        .into_iter()
        .filter_map(|(token, start, expires_at)| {
            let window = windows.iter().find(|w| w.window_start == start)?;
            Some(Grant {
                token,
                window_start: start,
                window_end: window.window_end,
                run_kind: window.run_kind,
                plan_id: source.plan_id,
                attempt: window.attempt,
                code_version: version.clone(),
                effects: source.effects,
                as_of,
                params: source.params.clone(),
                expires_at,
                pipeline: pipeline.clone(),
                query: pipeline.query.clone(),
            })
        })
        .collect()
}

/// Refuses a wish that cannot be meant (22023).
pub fn check(wish: &Wish) -> Result<()> {
    if wish.window_key.is_some() && wish.pipelines.as_ref().is_none_or(|names| names.len() != 1) {
        return Err(Error::new(Code::InvalidParameter, "window_key names a window of one pipeline")
            .detail("A key is unique within its pipeline only.")
            .hint(
                "Give the pipeline too: backfill_claim(worker, pipelines => ARRAY['…'], window_key => '…').",
            ));
    }
    Ok(())
}

/// The mutex of a window.
pub fn window_key(pipeline_id: i64, start: Instant) -> Key {
    Key::Window { pipeline: pipeline_id, start: start.0 }
}

/// Takes the mutex of a window without waiting.
pub fn hold_window(pipeline_id: i64, start: Instant) -> bool {
    lock::try_exclusive(window_key(pipeline_id, start))
}
