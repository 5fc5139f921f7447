//! Looking at windows.

use crate::domain::bound::instant_text;
use crate::domain::lifecycle::{Outcome, State};
use crate::domain::timeline::Timeline;
use crate::domain::zone::Instant;
use crate::error::{Result, answer};
use crate::ledger::mixture;
use crate::ledger::obstacle::{Obstacles, is_waiting};
use crate::ledger::piece::{self, Piece, Seen};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::rights::{self, Level};
use crate::ledger::window::{self, Reading};
use crate::postgres::datum::{self, timestamptz};
use crate::postgres::settings;
use crate::postgres::zone::PgZone;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::HashMap;

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn pipeline_windows(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
) -> TableIterator<
    'static,
    (
        name!(window_key, String),
        name!(window_start, TimestampWithTimeZone),
        name!(window_end, TimestampWithTimeZone),
        name!(state, String),
        name!(code_version, Option<String>),
        name!(plan_id, Option<i64>),
        name!(token, Option<i64>),
        name!(attempts, i32),
        name!(rows, Option<i64>),
        name!(published_at, Option<TimestampWithTimeZone>),
        name!(why, String),
    ),
> {
    let (pipeline, pieces) = answer(windows(pipeline, since, until));
    TableIterator::new(rows(pipeline, pieces))
}

fn windows(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
) -> Result<(Pipeline, Vec<Piece>)> {
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Read)?;
    let now = datum::clock();
    let bounds = pipeline.bounds(since.as_deref(), until.as_deref(), now)?;
    let positions = bounds.positions;
    window::require_countable(&pipeline, positions.end - positions.start, &positions)?;
    let pieces = window::look(Reading::Stable, &pipeline, positions, now)?;
    Ok((pipeline, pieces))
}

type Row = (
    String,
    TimestampWithTimeZone,
    TimestampWithTimeZone,
    String,
    Option<String>,
    Option<i64>,
    Option<i64>,
    i32,
    Option<i64>,
    Option<TimestampWithTimeZone>,
    String,
);

/// A row for each window, made as it is asked for.
fn rows(pipeline: Pipeline, pieces: Vec<Piece>) -> impl Iterator<Item = Row> {
    let obstacles = Obstacles::of(&pipeline, &pieces);
    window::one_by_one(&pipeline, pieces).map(move |seen| row(&pipeline, &obstacles, &seen))
}

fn row(pipeline: &Pipeline, obstacles: &Obstacles, seen: &Seen) -> Row {
    let record = seen.record();
    (
        pipeline.grid.window_key(seen.window.position).unwrap_or_default(),
        timestamptz(seen.window.start),
        timestamptz(seen.window.end),
        seen.state.name().to_owned(),
        record.code_version.clone(),
        record.owner_plan.or((record.plan_id > 0).then_some(record.plan_id)),
        record.token,
        record.attempt,
        record.rows,
        record.published_at.map(timestamptz),
        why(pipeline, obstacles, seen),
    )
}

/// The windows of a pipeline that have a run, are in an approved plan, or were decided about.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn windows_of(
    pipeline_id: i64,
) -> TableIterator<
    'static,
    (
        name!(window_key, String),
        name!(window_start, TimestampWithTimeZone),
        name!(window_end, TimestampWithTimeZone),
        name!(state, String),
        name!(code_version, Option<String>),
        name!(plan_id, Option<i64>),
        name!(token, Option<i64>),
        name!(attempts, i32),
        name!(rows, Option<i64>),
        name!(published_at, Option<TimestampWithTimeZone>),
        name!(why, String),
    ),
> {
    if !rights::may_read(pipeline_id) {
        return TableIterator::new([]);
    }
    let pipeline = Pipeline::by_id(pipeline_id);
    let mut pieces = window::look_at_all(&pipeline, datum::clock());
    pieces.retain(Piece::has_record);
    TableIterator::new(rows(pipeline, pieces))
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn missed_of(
    pipeline_id: i64,
) -> TableIterator<
    'static,
    (
        name!(windows, i64),
        name!(oldest, Option<TimestampWithTimeZone>),
        name!(newest, Option<TimestampWithTimeZone>),
    ),
> {
    if !rights::may_read(pipeline_id) {
        return TableIterator::new([]);
    }
    let pipeline = Pipeline::by_id(pipeline_id);
    let missed = answer(window::missed(Reading::Stable, &pipeline, datum::clock()));
    let start = |position| pipeline.grid.boundary(position).ok().map(timestamptz);
    TableIterator::once((
        piece::count(&pipeline.grid, &missed),
        missed.first().and_then(|piece| start(piece.first())),
        missed.last().and_then(|piece| start(piece.last())),
    ))
}

/// The calendars of the pipelines that a query has met; `None` for those that its caller may not read.
type Calendars = HashMap<i64, Option<Timeline<PgZone>>>;

#[pg_extern(sql = false)]
fn window_key(
    pipeline_id: i64,
    window_start: TimestampWithTimeZone,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<String> {
    let mut calendars = unsafe { pgrx::fcinfo::pg_func_extra(fcinfo, Calendars::new) };
    let calendar = calendars.entry(pipeline_id).or_insert_with(|| {
        settings::pinned(|| rights::may_read(pipeline_id).then(|| Pipeline::by_id(pipeline_id).grid))
    });
    let calendar = calendar.as_ref()?;
    let window = calendar.window_of(Instant(i64::from(window_start))).ok()?;
    calendar.window_key(window.position).ok()
}

#[pg_extern(sql = false)]
fn window_why(pipeline: Option<String>, window_key: Option<String>) -> String {
    answer(why_named(pipeline, window_key))
}

fn why_named(pipeline: Option<String>, window_key: Option<String>) -> Result<String> {
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Read)?;
    let window = pipeline.window_named(&window_key.unwrap_or_default())?;
    let range = window.position..window.position + 1;
    let pieces = window::look(Reading::Stable, &pipeline, range, datum::clock())?;
    let obstacles = Obstacles::of(&pipeline, &pieces);
    let seen = window::one_by_one(&pipeline, pieces).next();
    Ok(seen.map(|seen| why(&pipeline, &obstacles, &seen)).unwrap_or_default())
}

/// One honest sentence or more on why the window is as it is, and what would move it.
fn why(pipeline: &Pipeline, obstacles: &Obstacles, seen: &Seen) -> String {
    let mut said = state_text(pipeline, seen);
    if let Some(wanted) = obstacles.wanted(seen) {
        said.push_str(&format!(
            " on_mixture is 'refuse': a worker gets it that states a version compatible with {wanted}. {}",
            mixture::ways_forward(pipeline)
        ));
    }
    match is_waiting(seen.state).then(|| obstacles.before(seen)).flatten() {
        Some(obstacle) => format!("{said} Now {}.", obstacle.reason),
        None => said,
    }
}

fn state_text(pipeline: &Pipeline, seen: &Seen) -> String {
    let record = seen.record();
    let at = |instant: Instant| instant_text(pipeline.grid.zone(), instant);
    let error = || record.error.as_deref().unwrap_or("no reason given").trim_end_matches('.').to_owned();
    let said = || {
        let said = record.said.as_ref().expect("states that a person gave have a mark");
        format!("by {} at {}: {}", said.by, at(said.at), said.reason)
    };
    match seen.state {
        State::Leased => format!(
            "Worker {} holds its lease under token {} until {}.",
            record.worker.as_deref().unwrap_or("unknown"),
            record.token.unwrap_or_default(),
            record.expires_at.map(at).unwrap_or_default()
        ),
        State::Staged => format!(
            "Its new rows are staged under token {}. Plan {} publishes them together with those of its other windows.",
            record.token.unwrap_or_default(),
            record.owner_plan.unwrap_or_default()
        ),
        State::Retrying => match record.retry_at {
            Some(when) => format!(
                "Attempt {} of {} failed: {}. It will be tried again after {}.",
                record.attempt,
                pipeline.max_attempts,
                error(),
                at(when)
            ),
            None => format!(
                "Attempt {} of {} was not heard of in time; the next claim takes it over.",
                record.attempt, pipeline.max_attempts
            ),
        },
        State::Locked => format!("It was locked {}. Nothing runs it until it is unlocked.", said()),
        State::Skipped => format!("It was skipped {}.", said()),
        State::Blocked if seen.blocked_by.is_none() => {
            format!("It does not start by itself, because it would mix code versions. {}", mixture::ways_forward(pipeline))
        }
        State::Blocked => "It waits for a window before it, on which it depends.".to_owned(),
        State::Queued => format!(
            "Approved plan {} will run it when a worker claims it and a permit is free.",
            record.owner_plan.unwrap_or_default()
        ),
        State::Failed => format!(
            "Attempt {} was the last one and failed: {}. A new plan can run it again.",
            record.attempt,
            error()
        ),
        State::Refused => format!(
            "What attempt {} produced was refused: {}. A new plan can run it again.",
            record.attempt,
            error()
        ),
        State::Stale if record.said.is_none() => format!(
            "Token {} published it at {}, and what it was built from has changed since. A plan can build it again.",
            record.slice_token.unwrap_or_default(),
            record.published_at.map(at).unwrap_or_default()
        ),
        State::Stale => format!(
            "The slice of token {} was marked as stale {}. A plan can build it again.",
            record.slice_token.unwrap_or_default(),
            said()
        ),
        State::Outdated => format!(
            "It was built by code version \"{}\", and the pipeline runs another one now. A plan with mode => 'outdated' can build it again.",
            record.code_version.as_deref().unwrap_or("unknown")
        ),
        State::Adopted => format!(
            "Its rows were in the target before; they were adopted as code version \"{}\" {}.",
            record.code_version.as_deref().unwrap_or_default(),
            said()
        ),
        State::Done => format!(
            "Token {} published it at {}.",
            record.slice_token.unwrap_or_default(),
            record.published_at.map(at).unwrap_or_default()
        ),
        State::Eligible => match (&pipeline.query, &pipeline.code_version) {
            (None, Some(version)) => format!(
                "It may start by itself when a worker claims it that states code version \"{version}\"."
            ),
            _ => "It may start by itself when a worker claims it.".to_owned(),
        },
        State::Missed if record.newest == Some(Outcome::Done) => {
            "Its plan was reverted, or cancelled before it published, and it had no slice before that. It does not start by \
             itself; an approved plan can run it."
                .to_owned()
        }
        State::Missed => {
            "It is due and did not run, and the catchup rule does not let it start by itself. An approved plan \
             can run it."
                .to_owned()
        }
        State::Future => format!(
            "It is due when its end and the delay of the pipeline are past, after {}.",
            at(Instant(seen.window.end.0.saturating_add(pipeline.delay.approximate_micros())))
        ),
    }
}
