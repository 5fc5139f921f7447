//! Planning a backfill: propose, look at the price, approve, cancel.

use crate::domain::bound::instant_text;
use crate::domain::calendar::Window;
use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::permit::{self, Cap, Size};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{self, Declined, Frozen, Ordering, Plan, Request, Selection, select};
use crate::ledger::plan_stage::PlanStage;
use crate::ledger::rights::{self, Level};
use crate::ledger::window::{Reading, require_reason};
use crate::ledger::{compatible, gate, grid, lint, mixture, pool, price, sequence, version, writer};
use crate::postgres::arguments::{self, Signature};
use crate::postgres::composite::{Composite, composite, value};
use crate::postgres::{datum, lock, lock::Key, query, role, session, settings, spi};
use pgrx::prelude::*;
use pgrx::{JsonB, pg_sys};
use serde_json::{Map, Value, json};

const ARGUMENTS: Signature = &[
    ("pipeline", pg_sys::TEXTOID),
    ("since", pg_sys::TEXTOID),
    ("until", pg_sys::TEXTOID),
    ("reason", pg_sys::TEXTOID),
    ("mode", pg_sys::TEXTOID),
    ("keys", pg_sys::TEXTARRAYOID),
    ("ordering", pg_sys::TEXTOID),
    ("concurrency", pg_sys::INT4OID),
    ("pool", pg_sys::TEXTOID),
    ("priority", pg_sys::INT4OID),
    ("canary", pg_sys::INT4OID),
    ("code_version", pg_sys::TEXTOID),
    ("query", pg_sys::TEXTOID),
    ("publish", pg_sys::TEXTOID),
    ("effects", pg_sys::BOOLOID),
    ("on_failure", pg_sys::TEXTOID),
    ("cascade", pg_sys::BOOLOID),
    ("params", pg_sys::JSONBOID),
    ("override_retention", pg_sys::TEXTOID),
    ("allow_shrink", pg_sys::TEXTOID),
    ("expect", pg_sys::INT8OID),
];

#[pg_extern(sql = false)]
fn backfill_plan(fcinfo: pg_sys::FunctionCallInfo) -> Composite {
    let mut arguments = unsafe { arguments::object(fcinfo, ARGUMENTS) };
    if arguments.get("query").is_some_and(Value::is_string) {
        arguments.insert(plan::QUERY_PATH.to_owned(), Value::from(settings::search_path()));
    }
    let summary = settings::pinned(|| plan(arguments));
    answer(summary).row()
}

/// What planning answers; the attributes of `backfill.plan_summary`.
pub struct Summary {
    plan_id: Option<i64>,
    pipeline: String,
    state: Option<&'static str>,
    windows: i64,
    range_start: Instant,
    range_end: Instant,
    estimate: Value,
    declined: Value,
}

impl Summary {
    pub fn windows(&self) -> i64 {
        self.windows
    }

    pub fn approved(self) -> Self {
        Self { state: Some("approved"), ..self }
    }

    pub fn plan_id(&self) -> Option<i64> {
        self.plan_id
    }

    pub fn row(self) -> Composite {
        composite(
            "plan_summary",
            vec![
                value(self.plan_id),
                value(self.windows),
                value(self.range_start),
                value(self.range_end),
                value(JsonB(self.estimate)),
                value(JsonB(self.declined)),
                value(self.pipeline),
                value(self.state),
            ],
        )
    }
}

fn plan(mut arguments: Map<String, Value>) -> Result<Summary> {
    session::require_writable()?;
    let name = arguments.remove("pipeline").and_then(|v| v.as_str().map(str::to_owned));
    let pipeline = Pipeline::for_caller(name.as_deref().unwrap_or_default(), Level::Operate)?;
    let request = Request::read(&arguments)?;
    if request.query.is_some() || request.has_own_code() {
        // A query runs as the owner, and what is published together becomes what the pipeline runs.
        rights::require(&pipeline, Level::Owner)?;
    }
    arguments.retain(|_, v| !v.is_null());
    let summary = propose(&pipeline, &request, arguments, "person")?;
    match (summary.plan_id, request.expect) {
        (Some(_), Some(expect)) if expect != summary.windows => Err(unexpected(&summary, expect)),
        (Some(plan_id), Some(expect)) => {
            approve(plan_id, expect)?;
            Ok(summary.approved())
        }
        _ => Ok(summary),
    }
}

/// The error for a number of windows that is not the plan's, whose draft goes with the call.
fn unexpected(summary: &Summary, expect: i64) -> Error {
    Error::new(Code::Unconfirmed, format!("the plan would have {} windows, not {expect}", summary.windows))
        .detail("expect approves at once, so that it repeats the number of windows. No draft was kept.")
        .hint(format!(
            "Give expect => {}, or leave it out and read SELECT backfill_explain(...) of the draft.",
            summary.windows
        ))
}

const INSERT: &str = "INSERT INTO backfill.plan_data
        (pipeline_id, origin, request, reason, ordering, concurrency, pool_id, priority, code_version, effects,
         params, allow_shrink, as_of, windows, range_start, range_end, member_ranges, member_states, member_tokens,
         estimate, created_by, canary, on_failure, grid_version, publish, code_before,
         runs_query)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
        $24, $25, $26, $27)
    RETURNING plan_id";

const INSERT_DECLINED: &str = "INSERT INTO backfill.plan_declined_data (plan_id, range_start, range_end, windows, reason)
    SELECT $1, d.range_start, d.range_end, d.windows, d.reason
    FROM ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5))
        AS d (range_start, range_end, windows, reason)";

/// Stores a draft of what the request selects now. Nothing is stored where that is no window.
pub fn propose(
    pipeline: &Pipeline,
    request: &Request,
    stored: Map<String, Value>,
    origin: &str,
) -> Result<Summary> {
    let as_of = datum::clock();
    require_possible(pipeline, request)?;
    let version = frozen_version(pipeline, request)?;
    let selection = select(pipeline, request, version.as_deref(), as_of)?;
    store(pipeline, request, stored, origin, version, selection, as_of)
}

/// Refuses what no selection of windows can make possible.
pub fn require_possible(pipeline: &Pipeline, request: &Request) -> Result<()> {
    request.require_order_of(pipeline)?;
    request.require_target_of(pipeline)?;
    check_query(pipeline, request)
}

/// Stores a draft of a selection that was made by the clock `as_of`.
pub fn store(
    pipeline: &Pipeline,
    request: &Request,
    stored: Map<String, Value>,
    origin: &str,
    code_version: Option<String>,
    selection: Selection,
    as_of: Instant,
) -> Result<Summary> {
    let (pool_id, slots) = pool::refer(&request.pool)?;
    let concurrency = match request.ordering {
        Ordering::Sequential => 1,
        _ => request.concurrency.unwrap_or(slots.max(1)),
    };
    // Side by side the windows of a sequential plan would use the whole pool: the price of their order.
    let slots = match request.ordering {
        Ordering::Sequential => slots.max(1),
        _ => concurrency.min(slots.max(1)),
    };
    let mut estimate =
        price::estimate(pipeline, &selection.members, request.ordering == Ordering::NewestFirst, slots);
    if let (true, Some(last)) = (pipeline.depends_on_past && !request.verifies, selection.members.last()) {
        estimate["becomes_stale"] = sequence::becomes_stale(pipeline, last.last(), as_of)?;
    }
    let mut summary = Summary {
        plan_id: None,
        pipeline: pipeline.name.clone(),
        state: None,
        windows: selection.windows,
        range_start: selection.bounds.since,
        range_end: selection.bounds.until,
        declined: declined_json(pipeline, &selection.declined),
        estimate: estimate.clone(),
    };
    if selection.members.is_empty() {
        return Ok(summary);
    }
    let frozen = Frozen::of(&selection.members);
    let created_by = role::name(role::caller());
    let args = [
        pipeline.id.into(),
        origin.into(),
        JsonB(Value::Object(stored)).into(),
        request.reason.as_str().into(),
        request.ordering.name().into(),
        concurrency.into(),
        pool_id.into(),
        request.priority.into(),
        code_version.as_deref().into(),
        request.effects.into(),
        request.params.clone().map(JsonB).into(),
        request.allow_shrink.as_deref().into(),
        as_of.into(),
        summary.windows.into(),
        summary.range_start.into(),
        summary.range_end.into(),
        frozen.ranges.into(),
        frozen.states.into(),
        frozen.tokens.into(),
        JsonB(estimate).into(),
        created_by.as_str().into(),
        request.canary.into(),
        (if request.stops_on_failure { "stop" } else { "continue" }).into(),
        pipeline.grid_version.into(),
        request.publish().into(),
        request.has_own_code().then(|| JsonB(json!(pipeline.definition()))).into(),
        (request.query.is_some() || pipeline.query.is_some()).into(),
    ];
    let plan_id: i64 = role::as_ledger(|| {
        let plan_id: i64 =
            spi::first(INSERT, &args, |row| row.at(1)).expect("INSERT ... RETURNING of one row");
        store_declined(plan_id, &selection.declined);
        plan_id
    });
    plan::note(plan_id, "drafted", Some(&request.reason));
    summary.plan_id = Some(plan_id);
    summary.state = Some("draft");
    Ok(summary)
}

pub fn store_declined(plan_id: i64, declined: &[Declined]) {
    let args = [
        plan_id.into(),
        declined.iter().map(|d| d.start).collect::<Vec<Instant>>().into(),
        declined.iter().map(|d| d.end).collect::<Vec<Instant>>().into(),
        declined.iter().map(|d| d.windows).collect::<Vec<i64>>().into(),
        declined.iter().map(|d| d.reason.clone()).collect::<Vec<String>>().into(),
    ];
    spi::run(INSERT_DECLINED, &args);
}

/// Refuses a query of the plan's own that the target cannot take, as a definition does.
fn check_query(pipeline: &Pipeline, request: &Request) -> Result<()> {
    match (&request.query, pipeline.target) {
        (Some((text, path)), Some(target)) => {
            settings::with_patience(|| {
                query::check(
                    text,
                    path,
                    target,
                    pipeline.stamp_column.as_deref(),
                    &pipeline.grid.zone().name(),
                )
            })?;
            lint::judge(pipeline, text, path)
        }
        _ => Ok(()),
    }
}

/// The version that every run of the plan will carry: of a query, the plan's own or the pipeline's, its fingerprint now,
/// else the one that the plan, or the pipeline, is pinned to.
pub fn frozen_version(pipeline: &Pipeline, request: &Request) -> Result<Option<String>> {
    let own = request.query.as_ref().map(|(query, path)| (query, path));
    if let Some((query, path)) = own.or(pipeline.query.as_ref().zip(pipeline.query_path.as_ref())) {
        if request.code_version.is_some() {
            return Err(Error::new(
                Code::InvalidParameter,
                "code_version cannot be given for a pipeline with a query",
            )
            .detail("Its code version is the fingerprint of the query.")
            .hint("Leave code_version out."));
        }
        let now = version::for_person(pipeline, query, path)?;
        return now.map(Some).ok_or_else(|| version::being_recorded(pipeline));
    }
    version::require_name(request.code_version.as_deref())?;
    Ok(request.code_version.clone().or_else(|| pipeline.code_version.clone()))
}

fn declined_json(pipeline: &Pipeline, declined: &[Declined]) -> Value {
    declined
        .iter()
        .map(|d| {
            json!({
                "range_start": instant_text(pipeline.grid.zone(), d.start),
                "range_end": instant_text(pipeline.grid.zone(), d.end),
                "windows": d.windows,
                "reason": d.reason,
            })
        })
        .collect()
}

#[pg_extern(sql = false)]
fn backfill_approve(plan_id: i64, windows: i64) -> String {
    answer(approve(plan_id, windows))
}

const APPROVE: &str = "UPDATE backfill.plan_data
    SET state = 'approved', approved_by = $2, approved_at = pg_catalog.clock_timestamp(),
        member_ranges = NULL, member_states = NULL, member_tokens = NULL
    WHERE plan_id = $1";

const INSERT_WINDOWS: &str = "INSERT INTO backfill.plan_window_data (plan_id, seq, pipeline_id, window_start, window_end)
    SELECT $1, $5 + w.seq, $2, w.window_start, w.window_end
    FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4)) WITH ORDINALITY AS w (window_start, window_end, seq)";

const FROZEN: &str =
    "SELECT member_ranges, member_states, member_tokens FROM backfill.plan_data WHERE plan_id = $1";

pub fn approve(plan_id: i64, windows: i64) -> Result<String> {
    session::require_writable()?;
    let (pipeline, plan) = for_decision(plan_id)?;
    require_state(&plan, &["draft"], "approved")?;
    if plan.expired {
        return Err(Error::new(Code::OutOfDate, format!("the draft of plan {plan_id} has expired"))
            .detail("A draft can be approved for 7 days: its price and its list are of when it was made.")
            .hint("Make a new plan with SELECT * FROM backfill_plan(...) and approve that."));
    }
    if windows != plan.windows {
        return Err(Error::new(
            Code::Unconfirmed,
            format!("plan {plan_id} has {} windows, not {windows}", plan.windows),
        )
        .detail("Approval repeats the number of windows, so that nobody approves what he did not read.")
        .hint(format!(
            "Read SELECT backfill_explain({plan_id}); then SELECT backfill_approve({plan_id}, {}).",
            plan.windows
        )));
    }
    require_grid(&pipeline, &plan)?;
    let request = Request::read(&plan.request)?;
    request.require_order_of(&pipeline)?;
    request.require_target_of(&pipeline)?;
    let selection = select(&pipeline, &request, plan.code_version.as_deref(), plan.as_of)?;
    revalidate(&pipeline, &plan, &request, &selection)?;
    let mut members = selection.list(&pipeline);
    if !request.verifies {
        mixture::admit_plan(&pipeline, plan_id, plan.together, plan.code_version.as_deref(), &members)?;
    }
    if request.ordering == Ordering::NewestFirst {
        members.reverse();
    }
    let approved_by = role::name(role::caller());
    role::as_ledger(|| {
        append(plan_id, &pipeline, 0, &members);
        spi::run(APPROVE, &[plan_id.into(), approved_by.as_str().into()]);
        spi::notify(&plan_id.to_string());
    });
    if plan.together {
        settings::with_patience(|| PlanStage::create(&plan, &pipeline))?;
    }
    plan::note(plan_id, "approved", None);
    Ok("approved".to_owned())
}

/// Writes the windows into the plan's list, behind the place `after`.
pub fn append(plan_id: i64, pipeline: &Pipeline, after: i64, members: &[Window]) {
    let args = [
        plan_id.into(),
        pipeline.id.into(),
        members.iter().map(|m| m.start).collect::<Vec<Instant>>().into(),
        members.iter().map(|m| m.end).collect::<Vec<Instant>>().into(),
        after.into(),
    ];
    spi::run_bulk(INSERT_WINDOWS, &args);
}

/// The plan and its pipeline, locked for a decision that the caller may make, while no other plan is approved.
pub fn for_decision(plan_id: i64) -> Result<(Pipeline, Plan)> {
    let (pipeline, plan) = locked(plan_id, |pipeline| {
        lock::exclusive_at_once(&[Key::Decisions { pipeline }, Key::Approve { pipeline }]);
    })?;
    if pipeline.is_dropped() {
        return Err(Error::new(Code::Undefined, format!("pipeline \"{}\" was dropped", pipeline.name))
            .detail(format!("Plan {plan_id} belongs to it."))
            .hint("Define the pipeline again and plan again."));
    }
    Ok((pipeline, plan))
}

fn locked(plan_id: i64, lock: fn(i64)) -> Result<(Pipeline, Plan)> {
    let plan = Plan::read(Reading::Deciding, plan_id)?;
    let pipeline = Pipeline::by_id(plan.pipeline_id);
    rights::require(&pipeline, Level::Operate)?;
    role::as_ledger(|| lock(pipeline.id));
    let plan = Plan::lock(plan_id)?;
    Ok((pipeline, plan))
}

pub fn require_state(plan: &Plan, states: &[&str], wanted: &str) -> Result<()> {
    if states.contains(&plan.state.as_str()) {
        return Ok(());
    }
    Err(Error::new(Code::NotInState, format!("plan {} cannot be {wanted}", plan.id))
        .detail(format!("Its state is \"{}\".", plan.state))
        .hint("SELECT * FROM backfill.plans shows the state of every plan."))
}

const AGAIN: &str = "Make a new plan with SELECT * FROM backfill_plan(...) and approve that.";

/// A draft names its windows by their positions (BF004 if those were laid anew since).
fn require_grid(pipeline: &Pipeline, plan: &Plan) -> Result<()> {
    grid::require_current(pipeline)?;
    if plan.grid_version == pipeline.grid_version {
        return Ok(());
    }
    Err(Error::new(
        Code::OutOfDate,
        format!("plan {} is out of date: the grid of pipeline \"{}\" changed", plan.id, pipeline.name),
    )
    .detail(format!("Now its windows {}.", grid::described(&pipeline.grid.newest().grid)))
    .hint(AGAIN))
}

/// Differences named in an error.
const NAMED: usize = 5;

fn revalidate(pipeline: &Pipeline, plan: &Plan, request: &Request, selection: &Selection) -> Result<()> {
    let frozen = role::as_ledger(|| {
        spi::first(FROZEN, &[plan.id.into()], |row| Frozen {
            ranges: row.at(1),
            states: row.at(2),
            tokens: row.at(3),
        })
    })
    .expect("drafts keep their members");
    let now = Frozen::of(&selection.members);
    let version = frozen_version(pipeline, request)?;
    let redefined = plan.code_before.as_ref().is_some_and(|before| *before != pipeline.definition());
    let is_same_version = compatible::is_same(pipeline.id, plan.code_version.as_deref(), version.as_deref());
    if frozen == now && is_same_version && !redefined {
        return Ok(());
    }
    let owned = selection
        .declined
        .iter()
        .find(|d| d.reason.starts_with("owned by plan") && was_member(pipeline, &frozen, d));
    if let Some(owned) = owned {
        return Err(Error::new(Code::Owned, format!("windows of plan {} are {}", plan.id, owned.reason))
            .detail(format!(
                "{} window(s) from {} to {} are {}.",
                owned.windows,
                instant_text(pipeline.grid.zone(), owned.start),
                instant_text(pipeline.grid.zone(), owned.end),
                owned.reason
            ))
            .hint(format!("Wait for that plan, or cancel it. {AGAIN}")));
    }
    let mut differences =
        frozen.differences(&now, |position| pipeline.grid.window_key(position).unwrap_or_default());
    if !is_same_version {
        let shown = |v: &Option<String>| v.clone().unwrap_or_else(|| "none".to_owned());
        differences.push(format!(
            "the code version is {} instead of {}",
            shown(&version),
            shown(&plan.code_version)
        ));
    }
    if redefined {
        differences.push("the pipeline was given other code".to_owned());
    }
    let more = differences.len().saturating_sub(NAMED);
    differences.truncate(NAMED);
    let mut detail = differences.join("; ");
    if more > 0 {
        detail.push_str(&format!("; and {more} more"));
    }
    Err(Error::new(
        Code::OutOfDate,
        format!("plan {} is out of date: what it was made from has moved", plan.id),
    )
    .detail(format!("{detail}."))
    .hint(AGAIN))
}

fn was_member(pipeline: &Pipeline, frozen: &Frozen, declined: &Declined) -> bool {
    let first = pipeline.position_of(declined.start);
    let end = first + declined.windows;
    frozen.ranges.chunks_exact(2).any(|range| range[0] < end && first < range[1])
}

#[pg_extern(sql = false)]
fn backfill_cancel(
    plan_id: Option<i64>,
    reason: Option<String>,
) -> TableIterator<
    'static,
    (name!(windows_freed, i64), name!(leases_revoked, i64), name!(still_writing, Vec<i32>)),
> {
    TableIterator::once(answer(plan::require_id(plan_id).and_then(|plan_id| cancel(plan_id, reason))))
}

const CANCEL: &str = "UPDATE backfill.plan_data
    SET state = 'cancelled', cancelled_by = $2, cancelled_at = pg_catalog.clock_timestamp(), cancel_reason = $3
    WHERE plan_id = $1";

/// From the end of the list, where a plan that has not ended has a window of its own at once.
const OWNS: &str = "SELECT 1 FROM backfill.owned_data WHERE plan_id = $1 ORDER BY seq DESC LIMIT 1";

const OWNED: &str = "SELECT pg_catalog.count(*) FROM backfill.owned_data WHERE plan_id = $1";

const WAITING: &str = "SELECT windows FROM backfill.plan_waiting_data WHERE plan_id = $1";

/// The windows that a cancel freed, the leases that it revoked, and the backends that still write under one.
type Freed = (i64, i64, Vec<i32>);

fn cancel(plan_id: i64, reason: Option<String>) -> Result<Freed> {
    session::require_writable()?;
    let reason = require_reason(reason)?;
    let (_, plan) = locked(plan_id, gate::close)?;
    require_state(&plan, &OPEN, "cancelled")?;
    withdraw(&plan, &reason).ok_or_else(|| {
        Error::new(Code::NotInState, format!("plan {plan_id} cannot be cancelled"))
            .detail("It has ended: every window of it has.")
            .hint("SELECT * FROM backfill.plans shows how.")
    })
}

/// The states in which a plan can be cancelled.
const OPEN: [&str; 3] = ["draft", "approved", "paused"];

/// Cancels an open plan that is locked; `None` if it has ended.
fn withdraw(plan: &Plan, reason: &str) -> Option<Freed> {
    let by = role::name(role::caller());
    let freed = role::as_ledger(|| {
        let cap = Cap::Limit { pipeline: plan.pipeline_id, plan: plan.id };
        let size = Size { now: plan.concurrency, before: plan.concurrency_before };
        let held: Vec<i64> =
            permit::look(cap, size, 0, true).held.into_iter().map(|(_, holder)| holder.token).collect();
        let freed: i64 = if plan.state == "draft" {
            0
        } else {
            spi::first(WAITING, &[plan.id.into()], |row| row.at(1)).unwrap_or(0)
        };
        let revoked = held.len() as i64;
        if plan.state != "draft" && !plan.together && spi::first(OWNS, &[plan.id.into()], |_| ()).is_none() {
            return None;
        }
        // What is staged is freed too. And where claims have passed over all that is left, none has been at the end of the
        // list since.
        let freed = match freed + revoked {
            known if plan.state != "draft" && (plan.together || known == 0) => {
                spi::first(OWNED, &[plan.id.into()], |row| row.at(1)).unwrap_or(0)
            }
            known => known,
        };
        let writing = writer::of(Reading::Deciding, held).into_iter().map(|(_, pid)| pid).collect();
        spi::run(CANCEL, &[plan.id.into(), by.as_str().into(), reason.into()]);
        Some((freed, revoked, writing))
    })?;
    plan::note(plan.id, "cancelled", Some(reason));
    Some(freed)
}

/// Most plans that have ended are drained, so that they need not be looked at.
const NOT_DRAINED: &str = "SELECT pl.plan_id FROM backfill.plan_data pl
    LEFT JOIN backfill.plan_cursor_data c ON c.plan_id = pl.plan_id
    WHERE pl.pipeline_id = $1 AND pl.state <> 'cancelled'
      AND (c.drained IS DISTINCT FROM pl.generation OR pl.publish = 'together')
    ORDER BY pl.plan_id";

/// Cancels every open plan of a pipeline, in which nobody else decides meanwhile.
pub fn cancel_all(pipeline: &Pipeline, reason: &str) -> Result<()> {
    for plan_id in role::as_ledger(|| spi::latest(NOT_DRAINED, &[pipeline.id.into()], |row| row.at(1))) {
        let plan = Plan::lock(plan_id)?;
        if OPEN.contains(&plan.state.as_str()) {
            withdraw(&plan, reason);
        }
    }
    Ok(())
}
