//! Handing out windows.
//!
//! A claim walks over the *sources* that it may serve: the live right of each pipeline, then the approved plans.
//! For each it looks for permits (pool slot, and a slot of the plan's concurrency or the pipeline's
//! `max_active`), picks windows in the source's order, takes their mutexes without waiting, and writes the runs in
//! one INSERT. What it read may be older than the locks it holds: the INSERT names the next generation of each
//! slot and the next turn of each window, and the unique indexes of the log refuse what somebody else took
//! meanwhile (under READ COMMITTED such a row is left out; above it the claim gets 40001).
//!
//! A source of a pipeline that depends on its past gives a window only when the one before it is settled
//! (sequence.rs). Plans of one priority are served in an order drawn at random for each claim, so that each gets
//! an equal share of what becomes free.
//!
//! Order in a source: windows that keep their place (expired, released, left out), then those never tried,
//! then failed ones whose delay is over.

use crate::domain::calendar::Window;
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result};
use crate::ledger::candidate::{self, Candidate};
use crate::ledger::mixture::{OnMixture, Open};
use crate::ledger::permit::{self, Cap, Permit, Size};
use crate::ledger::pipeline::{self, Pipeline, pipeline_columns};
use crate::ledger::rights::{self, Level};
use crate::ledger::{allowance, epoch, grid, requeue, sequence, takeover, version};
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
    pub pool_size: Size,
    /// Windows at once: the plan's concurrency, or the pipeline's `max_active`.
    pub limit: Size,
    /// The version that the plan was frozen with, and what that version's query is.
    pub plan_version: Option<String>,
    pub plan_query: Option<String>,
    /// Where the plan keeps new rows, if it publishes all windows at once.
    pub plan_stage: Option<pgrx::pg_sys::Oid>,
    /// Whether the plan publishes nothing, and compares.
    pub verifies: bool,
    pub effects: bool,
    pub params: Option<serde_json::Value>,
    /// The clock of a plan's selection.
    pub as_of: Option<Instant>,
    /// Counts the plan's retries and extensions.
    pub generation: i32,
    /// The last place of the plan's list that is handed out, while the plan is a canary.
    pub canary: Option<i32>,
    /// One window after the other, though they do not depend on each other: none is handed out while an earlier one
    /// will be tried again.
    pub in_sequence: bool,
    /// Whether claims reached the end of the plan's list.
    pub swept: bool,
    /// Whether the queue names windows of it.
    pub queued: bool,
    /// The newest window of a live source that has any run.
    pub newest: Option<Instant>,
    /// Whether a live source ever had a run of its own.
    pub has_run_live: bool,
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
    pub plan_stage: Option<pgrx::pg_sys::Oid>,
}

/// The live rights and the plans that may be served: scheduled work first, then plans by priority, then in any
/// order. What the queue and the log say of a source is read along, so that a claim need not ask in vain.
const SOURCES: &str = concat!(
    "SELECT s.* FROM (
        SELECT ",
    pipeline_columns!(),
    ", o.slots, o.slots_before, 0::pg_catalog.int8 AS plan_id, p.pool_id AS from_pool, p.max_active AS at_once,
            p.max_active_before AS at_once_before, NULL::pg_catalog.text AS plan_version, true AS effects, NULL::pg_catalog.jsonb AS params,
            NULL::pg_catalog.timestamptz AS as_of, 0 AS generation, NULL::pg_catalog.int4 AS canary,
            false AS in_sequence, true AS swept,
            EXISTS (SELECT FROM backfill.requeue_data q WHERE q.pipeline_id = p.pipeline_id AND q.plan_id = 0) AS queued,
            (SELECT r.window_start FROM backfill.run_data r WHERE r.pipeline_id = p.pipeline_id
             ORDER BY r.window_start DESC LIMIT 1) AS newest,
            EXISTS (SELECT FROM backfill.run_data r WHERE r.pipeline_id = p.pipeline_id AND r.plan_id = 0) AS has_run_live,
            NULL::pg_catalog.text AS plan_query, NULL::pg_catalog.oid AS plan_stage, false AS verifies, 0 AS priority
        FROM backfill.pipeline_data p JOIN backfill.pool_data o ON o.pool_id = p.pool_id
        WHERE p.dropped_at IS NULL AND p.paused_at IS NULL AND o.paused_at IS NULL
          AND ($1 IS NULL OR o.name = ANY ($1))
          AND (p.name = ANY ($2) OR ($2 IS NULL AND p.query IS NOT NULL))
        UNION ALL
        SELECT ",
    pipeline_columns!(),
    ", o.slots, o.slots_before, pl.plan_id, pl.pool_id, pl.concurrency, pl.concurrency_before, pl.code_version, pl.effects, pl.params, pl.as_of,
            pl.generation, pl.canary, pl.ordering = 'sequential' AND NOT p.depends_on_past,
            COALESCE(c.swept = pl.generation, false),
            EXISTS (SELECT FROM backfill.requeue_data q WHERE q.pipeline_id = p.pipeline_id AND q.plan_id = pl.plan_id
                    AND NOT EXISTS (SELECT FROM backfill.closing_data c
                                    WHERE c.pipeline_id = q.pipeline_id AND c.window_start = q.window_start
                                      AND (c.in_force OR c.plan_id = q.plan_id))),
            NULL, false, v.query, CASE pl.publish WHEN 'together' THEN (
                SELECT g.relation::pg_catalog.oid FROM backfill.plan_stage_data g WHERE g.plan_id = pl.plan_id) END,
            pl.publish = 'none', pl.priority
        FROM backfill.plan_data pl
        LEFT JOIN backfill.plan_cursor_data c ON c.plan_id = pl.plan_id
        JOIN backfill.pipeline_data p ON p.pipeline_id = pl.pipeline_id
        JOIN backfill.pool_data o ON o.pool_id = pl.pool_id
        LEFT JOIN backfill.version_data v ON pl.runs_query AND v.pipeline_id = pl.pipeline_id
            AND v.code_version = pl.code_version
        WHERE pl.state = 'approved' AND c.drained IS DISTINCT FROM pl.generation
          AND p.dropped_at IS NULL AND o.paused_at IS NULL
          AND NOT EXISTS (SELECT FROM backfill.plan_stop_data t WHERE t.plan_id = pl.plan_id)
          AND ($1 IS NULL OR o.name = ANY ($1))
          AND (p.name = ANY ($2) OR ($2 IS NULL AND v.query IS NOT NULL))
     ) s
     ORDER BY s.plan_id > 0, s.priority DESC, pg_catalog.random()"
);

/// Generations, turns and permits are the ones that were read; a row that somebody else wrote meanwhile is
/// left out by its unique index.
const INSERT: &str = "INSERT INTO backfill.run_data
        (token, pipeline_id, plan_id, window_start, window_end, turn, attempt, seq, in_order, run_kind,
         pool_id, pool_slot, pool_gen, limit_slot, limit_gen, worker, role, code_version, as_of,
         started_at, expires_at, together, runs_query)
    SELECT pg_catalog.nextval('backfill.token_seq'), $1, $2, w.window_start, w.window_end, w.turn, w.attempt, w.seq,
           $20, w.run_kind, $3, w.pool_slot, w.pool_gen, w.limit_slot, w.limit_gen, $4, $5, $6, $7, $8, $8 + $9, $21, $22
    FROM ROWS FROM (
        pg_catalog.unnest($10), pg_catalog.unnest($11), pg_catalog.unnest($12), pg_catalog.unnest($13),
        pg_catalog.unnest($14), pg_catalog.unnest($15), pg_catalog.unnest($16), pg_catalog.unnest($17),
        pg_catalog.unnest($18), pg_catalog.unnest($19)
    ) AS w (window_start, window_end, turn, attempt, seq, run_kind, pool_slot, pool_gen, limit_slot, limit_gen)
    ON CONFLICT DO NOTHING
    RETURNING token, window_start, expires_at";

impl Source {
    fn decode(row: &spi::Row) -> Self {
        let c = pipeline::COLUMNS;
        Self {
            pipeline: Pipeline::decode(row),
            pool_size: Size { now: row.at(c + 1), before: row.at(c + 2) },
            plan_id: row.at(c + 3),
            pool_id: row.at(c + 4),
            limit: Size { now: row.at(c + 5), before: row.at(c + 6) },
            plan_version: row.get(c + 7),
            effects: row.at(c + 8),
            params: row.get::<pgrx::JsonB>(c + 9).map(|json| json.0),
            as_of: row.get(c + 10),
            generation: row.at(c + 11),
            canary: row.get(c + 12),
            in_sequence: row.at(c + 13),
            swept: row.at(c + 14),
            queued: row.at(c + 15),
            newest: row.get(c + 16),
            has_run_live: row.at(c + 17),
            plan_query: row.get(c + 18),
            plan_stage: row.get(c + 19),
            verifies: row.at(c + 20),
        }
    }

    /// What its windows are built by, where that is a query.
    fn query(&self) -> &Option<String> {
        if self.plan_id > 0 { &self.plan_query } else { &self.pipeline.query }
    }

    fn pool_cap(&self) -> Cap {
        Cap::Pool { pool: self.pool_id }
    }

    fn limit_cap(&self) -> Cap {
        Cap::Limit { pipeline: self.pipeline.id, plan: self.plan_id }
    }

    /// The version that a run of this source will carry, if a worker that states `stated` may have its
    /// windows. A window is pinned to a version if it has no query and its plan, else its pipeline, names one.
    fn version_for(&self, stated: Option<&str>) -> Option<Option<String>> {
        if self.plan_query.is_some() {
            return Some(self.plan_version.clone());
        }
        if let (0, Some(query), Some(path)) = (self.plan_id, &self.pipeline.query, &self.pipeline.query_path)
        {
            return version::for_claim(&self.pipeline, query, path).map(Some);
        }
        let pinned = self.plan_version.as_deref().or(self.pipeline.code_version.as_deref());
        match pinned {
            Some(pinned) if stated != Some(pinned) => None,
            _ => Some(stated.map(str::to_owned)),
        }
    }

    /// Which windows may be built by a version and published, as things stand. What is staged is judged when it is published,
    /// and a verification publishes nothing.
    fn open_to(&self, version: Option<&str>) -> Open {
        let is_judged =
            self.pipeline.on_mixture == OnMixture::Refuse && self.plan_stage.is_none() && !self.verifies;
        if is_judged { Open::to(self.pipeline.id, version) } else { Open::All }
    }
}

/// Gives out up to `max_windows` leases, fewer where the transaction has its share of locks. Never waits for anyone; an empty answer means that nothing can be
/// had now.
pub fn claim(wish: &Wish) -> Result<Vec<Grant>> {
    let who = role::caller();
    let sources = role::as_ledger(|| {
        if !epoch::ready() {
            return vec![];
        }
        let args = [wish.pools.clone().into(), wish.pipelines.clone().into()];
        // A pause or a lowered cap counts from the moment that it is committed, at every isolation level.
        spi::latest(SOURCES, &args, Source::decode)
    });
    for name in wish.pipelines.iter().flatten() {
        match sources.iter().find(|source| source.pipeline.name == *name) {
            Some(source) => rights::require(&source.pipeline, Level::Work)?,
            None => drop(Pipeline::for_caller(name, Level::Work)?),
        }
    }
    let mut grants: Vec<Grant> = vec![];
    let most = wish.max_windows.min(allowance::left());
    for mut source in sources {
        let want = most - grants.len();
        if want == 0 {
            break;
        }
        let pipeline = &source.pipeline;
        if wish.pipelines.is_none() && !rights::has(who, pipeline.id, &pipeline.owner, Level::Work) {
            continue;
        }
        grants.extend(serve(&mut source, wish, want, who)?);
    }
    if !grants.is_empty() {
        allowance::spend(grants.len());
        // A token that a crash forgets would be given out again.
        unsafe { pgrx::pg_sys::ForceSyncCommit() };
    }
    Ok(grants)
}

/// How often a claim looks again after others took what it had read.
const LOOKS: usize = 5;

fn serve(source: &mut Source, wish: &Wish, want: usize, who: pgrx::pg_sys::Oid) -> Result<Vec<Grant>> {
    let only = match &wish.window_key {
        Some(key) => Some(source.pipeline.window_named(key)?),
        None => None,
    };
    // Of windows that depend on each other only one is leased at a time.
    let want = if source.pipeline.depends_on_past { 1 } else { want };
    if source.pipeline.depends_on_past {
        if !role::as_ledger(|| sequence::is_idle(source.pipeline.id)) {
            return Ok(vec![]);
        }
        // A lease that ended just now, for this source or for another, may have left a window in the queue.
        source.queued = true;
    }
    let role_name = role::name(who);
    // Above READ COMMITTED a second look would show the same, and the INSERT has answered with 40001.
    let looks = if unsafe { pgrx::pg_sys::XactIsoLevel } > pgrx::pg_sys::XACT_READ_COMMITTED as i32 {
        1
    } else {
        LOOKS
    };
    for _ in 0..looks {
        let Some(mut held) = role::as_ledger(|| hold(source, only, want)) else { return Ok(vec![]) };
        let Some(version) = source.version_for(wish.code_version.as_deref()) else {
            role::as_ledger(|| held.give_back(source, |_| true));
            return Ok(vec![]);
        };
        let open = source.open_to(version.as_deref());
        role::as_ledger(|| held.keep(source, |window| open.takes(window.window_start)));
        if held.windows.is_empty() {
            return Ok(vec![]);
        }
        let grants = role::as_ledger(|| write(source, wish, &role_name, version, &held));
        if !grants.is_empty() {
            return Ok(grants);
        }
    }
    Ok(vec![])
}

/// Windows with the permits to hand them out; the mutexes of all of them are held.
struct Held {
    windows: Vec<Candidate>,
    pool: Vec<Permit>,
    limit: Vec<Permit>,
}

impl Held {
    /// Gives back all but those windows for which `wanted` holds, with the permits beside them.
    fn keep(&mut self, source: &Source, wanted: impl Fn(&Candidate) -> bool) {
        self.give_back(source, |window| !wanted(window));
        let kept: Vec<bool> = self.windows.iter().map(wanted).collect();
        let mut places = kept.iter();
        self.windows.retain(|_| *places.next().expect("one for each window"));
        for permits in [&mut self.pool, &mut self.limit] {
            let mut places = kept.iter();
            permits.retain(|_| places.next().copied().unwrap_or(true));
        }
    }

    /// Gives back the mutexes of those windows, and of the permits beside them, for which `unused` holds.
    fn give_back(&self, source: &Source, unused: impl Fn(&Candidate) -> bool) {
        for (i, window) in self.windows.iter().enumerate().filter(|(_, window)| unused(window)) {
            release_window(source.pipeline.id, window.window_start);
            permit::give_back(source.pool_cap(), &self.pool[i..=i]);
            permit::give_back(source.limit_cap(), &self.limit[i..=i]);
        }
    }
}

/// Holds up to `want` windows and permits for them, whichever of the two is more likely to be missing first:
/// a plan has windows as a rule, a live right has permits.
fn hold(source: &mut Source, only: Option<Window>, want: usize) -> Option<Held> {
    let (mut windows, mut pool, mut limit);
    if source.plan_id > 0 {
        (pool, limit) = permits(source, want)?;
        windows = candidate::pick(source, only, pool.len().min(limit.len()));
        if windows.is_empty() && end_dead(source) {
            windows = candidate::pick(source, only, pool.len().min(limit.len()));
        }
    } else {
        windows = candidate::pick(source, only, want);
        if windows.is_empty() && !has_dead(source) {
            return None;
        }
        let wanted = if windows.is_empty() { want } else { windows.len() };
        let Some(permits) = permits(source, wanted) else {
            windows.iter().for_each(|window| release_window(source.pipeline.id, window.window_start));
            return None;
        };
        (pool, limit) = permits;
        if windows.is_empty() && (source.queued || end_dead(source)) {
            windows = candidate::pick(source, only, pool.len().min(limit.len()));
        }
    }
    let used = windows.len().min(pool.len()).min(limit.len());
    windows.drain(used..).for_each(|window| release_window(source.pipeline.id, window.window_start));
    permit::give_back(source.pool_cap(), &pool.split_off(used.min(pool.len())));
    permit::give_back(source.limit_cap(), &limit.split_off(used.min(limit.len())));
    (used > 0).then_some(Held { windows, pool, limit })
}

/// Ends the dead leases of a plan. Above a certain number of slots they are not looked for while permits are
/// free; a claim that found no other window has the time.
fn end_dead(source: &mut Source) -> bool {
    let look = permit::look(source.limit_cap(), source.limit, 0, true);
    let mut ended = false;
    for (_, holder) in look.held.iter().filter(|(_, holder)| holder.is_dead()) {
        ended |= takeover::take_over(holder);
    }
    source.queued |= ended;
    ended
}

/// Whether a live lease of the source is dead: its window is then met while permits are looked for.
fn has_dead(source: &Source) -> bool {
    source.has_run_live
        && permit::look(source.limit_cap(), source.limit, 0, true)
            .held
            .iter()
            .any(|(_, holder)| holder.is_dead())
}

const SETTINGS: &str = "SELECT o.slots, o.slots_before, COALESCE(pl.concurrency, p.max_active),
        COALESCE(pl.concurrency_before, p.max_active_before), p.grid_version
    FROM backfill.pipeline_data p
    JOIN backfill.pool_data o ON o.pool_id = $3
    LEFT JOIN backfill.plan_data pl ON pl.plan_id = $2
    WHERE p.pipeline_id = $1";

/// Whether the caps and the grid are still those that the claim has read; the grid then stays so. A plan's windows
/// are in its list, so that only a live source needs the grid.
fn is_current(source: &Source) -> bool {
    let (pipeline, is_live) = (&source.pipeline, source.plan_id == 0);
    if is_live && !grid::hold(pipeline) {
        return false;
    }
    let args = [pipeline.id.into(), source.plan_id.into(), source.pool_id.into()];
    let size = |row: &spi::Row, n| Size { now: row.at(n), before: row.at(n + 1) };
    spi::latest(SETTINGS, &args, |row| {
        let has_same_grid = !is_live || row.at::<i32>(5) == pipeline.grid_version;
        has_same_grid && (size(row, 1), size(row, 3)) == (source.pool_size, source.limit)
    }) == [true]
}

/// Holds permits of both caps for up to `want` windows; `None` if there is none of one of them, or if a cap or the
/// grid was changed since it was read.
fn permits(source: &mut Source, want: usize) -> Option<(Vec<Permit>, Vec<Permit>)> {
    let limit = take(source, source.limit_cap(), source.limit, want)?;
    let pool = take(source, source.pool_cap(), source.pool_size, limit.len()).unwrap_or_default();
    if pool.is_empty() || !is_current(source) {
        permit::give_back(source.pool_cap(), &pool);
        permit::give_back(source.limit_cap(), &limit);
        return None;
    }
    Some((pool, limit))
}

/// Holds up to `want` permits of one cap. Expired leases of the source itself are ended as soon as they are
/// seen, since their windows come first in its order; others' only where no permit is free.
fn take(source: &mut Source, cap: Cap, size: Size, want: usize) -> Option<Vec<Permit>> {
    let mut look = permit::look(cap, size, want, false);
    let own = matches!(cap, Cap::Limit { .. });
    let expired_own = own && look.held.iter().any(|(_, holder)| holder.expired);
    if look.free.is_empty() || expired_own {
        if look.held.is_empty() {
            look = permit::look(cap, size, want, true);
        }
        let mut ended = false;
        for (_, holder) in &look.held {
            let dead = if look.free.is_empty() { holder.is_dead() } else { holder.expired };
            ended |= dead && takeover::take_over(holder);
        }
        if ended {
            source.queued = true;
            look = permit::look(cap, size, want, true);
        }
    }
    let held = permit::hold(cap, &look.free, want);
    (!held.is_empty()).then_some(held)
}

fn write(source: &Source, wish: &Wish, role_name: &str, version: Option<String>, held: &Held) -> Vec<Grant> {
    let Held { windows, pool, limit } = held;
    let pipeline = &source.pipeline;
    let now = datum::clock();
    let as_of = source.as_of.unwrap_or(now);
    let column = |f: &dyn Fn(&Candidate) -> i64| windows.iter().map(f).collect::<Vec<i64>>();
    let slots = |permits: &[Permit]| permits.iter().map(|p| p.slot).collect();
    let generations = |permits: &[Permit]| permits.iter().map(|p| p.generation).collect();
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
        (source.plan_id > 0 && wish.window_key.is_none()).into(),
        source.plan_stage.is_some().into(),
        source.query().is_some().into(),
    ];
    let written =
        spi::query(INSERT, &args, |row| (row.at::<i64>(1), row.at::<Instant>(2), row.at::<Instant>(3)));
    let is_written = |window: &Candidate| written.iter().any(|(_, start, _)| *start == window.window_start);
    let queued = windows.iter().filter(|window| window.queued && is_written(window));
    requeue::remove(pipeline.id, source.plan_id, queued.map(|window| window.window_start).collect());
    held.give_back(source, |window| !is_written(window));
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
                query: source.query().clone(),
                plan_stage: source.plan_stage,
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
                "Give the pipeline too: backfill_claim(worker, pipelines => ARRAY['...'], window_key => '...').",
            ));
    }
    Ok(())
}

/// The mutex of a window.
fn window_key(pipeline_id: i64, start: Instant) -> Key {
    Key::Window { pipeline: pipeline_id, start: start.0 }
}

/// Gives back the mutex of a window that was not handed out.
pub fn release_window(pipeline_id: i64, start: Instant) {
    lock::release(window_key(pipeline_id, start));
}

/// Takes the mutex of a window without waiting.
pub fn hold_window(pipeline_id: i64, start: Instant) -> bool {
    lock::try_exclusive(window_key(pipeline_id, start))
}
