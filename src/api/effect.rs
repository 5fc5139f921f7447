//! The outbox: emitting effects, and delivering them.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::rights::{self, Level};
use crate::ledger::run;
use crate::postgres::composite::{Composite, composite, value};
use crate::postgres::datum::Jsonb;
use crate::postgres::{quote, role, session, spi};
use pgrx::prelude::*;

/// What an index entry has room for, with the key of the same length beside it.
const MOST_BYTES: usize = 1000;

/// The most effects that one call gives.
const MOST_EFFECTS: i32 = 1000;

fn require_fitting(what: &str, text: String) -> Result<String> {
    if text.len() <= MOST_BYTES {
        return Ok(text);
    }
    Err(Error::new(Code::InvalidParameter, format!("{what} is too long"))
        .detail(format!("It has {} bytes; {MOST_BYTES} are allowed.", text.len()))
        .hint("Put what is long into the payload; md5(...) makes a short key of a long one."))
}

fn require_name(effect: Option<String>) -> Result<String> {
    let effect = effect.filter(|effect| !effect.trim().is_empty()).ok_or_else(|| {
        Error::new(Code::InvalidParameter, "an effect needs a name")
            .detail("effect is NULL or blank; consumers ask for effects by their name.")
            .hint("SELECT effect_emit(token, 'mail', '{\"to\": \"...\"}'), and SELECT * FROM effect_take('mail').")
    })?;
    require_fitting("the name of the effect", effect)
}

/// An argument of `effect_emit` that may be left out, but not be NULL (22004).
fn given<T>(argument: &str, given: Option<T>) -> Result<T> {
    given.ok_or_else(|| {
        Error::new(Code::NullValue, format!("{argument} must not be NULL"))
            .detail("The effect is kept with its payload, one for each window, effect and key.")
            .hint(format!("Leave {argument} out."))
    })
}

#[pg_extern(sql = false)]
fn effect_emit(
    token: Option<i64>,
    effect: Option<String>,
    payload: Option<Jsonb>,
    key: Option<String>,
) -> String {
    answer(emit(token, effect, payload, key)).to_owned()
}

const FIND: &str = "SELECT state, token FROM backfill.effect_data
    WHERE pipeline_id = $1 AND window_start = $2 AND effect = $3 AND key = $4";

const PUT: &str = "INSERT INTO backfill.effect_data
        (pipeline_id, window_start, effect, key, window_end, payload, token, plan_id, suppressed, emitted_at, published_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, now.at, CASE WHEN $10 THEN now.at END
    FROM (SELECT pg_catalog.clock_timestamp() AS at) now
    ON CONFLICT (pipeline_id, window_start, effect, key) DO UPDATE
    SET payload = excluded.payload, token = excluded.token, plan_id = excluded.plan_id,
        suppressed = excluded.suppressed, emitted_at = excluded.emitted_at, published_at = excluded.published_at
    RETURNING effect_id";

const COUNT_SUPPRESSED: &str = "INSERT INTO backfill.suppression_data (plan_id, effect_id) VALUES ($1, $2)
    ON CONFLICT DO NOTHING";

const MARK: &str = "UPDATE backfill.run_data SET has_effects = true WHERE token = $1";

/// Puts an effect into the outbox; says what became of it. All that emit for one window pass one fence, so that
/// what is found here stays.
fn emit(
    token: Option<i64>,
    effect: Option<String>,
    payload: Option<Jsonb>,
    key: Option<String>,
) -> Result<&'static str> {
    let token = run::require_token(token)?;
    let effect = require_name(effect)?;
    let payload = given("payload", payload)?;
    let key = require_fitting("the key", given("key", key)?)?;
    let run = run::fence_beside_slice(token)?;
    let suppressed = !run.effects;
    Ok(role::as_ledger(|| {
        let window =
            [run.pipeline.id.into(), run.window_start.into(), effect.as_str().into(), key.as_str().into()];
        let found = spi::latest(FIND, &window, |row| (row.at::<String>(1), row.at::<i64>(2)));
        match found.first().map(|(state, emitter)| (state.as_str(), *emitter)) {
            Some(("done", _)) => return "done",
            Some(("ready", emitter)) if emitter != token => return "ready",
            // What the outbox knows of the slice stays as it is.
            _ if run.verifies() => return "suppressed",
            _ => {}
        }
        let args = [
            run.pipeline.id.into(),
            run.window_start.into(),
            effect.as_str().into(),
            key.as_str().into(),
            run.window_end.into(),
            payload.into(),
            token.into(),
            run.plan_id.into(),
            suppressed.into(),
            (run.finished_here && !suppressed).into(),
        ];
        let id: i64 = spi::first(PUT, &args, |row| row.at(1)).expect("INSERT ... RETURNING of one row");
        if suppressed {
            spi::run(COUNT_SUPPRESSED, &[run.plan_id.into(), id.into()]);
            return "suppressed";
        }
        if !run.has_effects && !run.finished_here {
            spi::run(MARK, &[token.into()]);
        }
        "held"
    }))
}

#[pg_extern(sql = false)]
fn effect_take(effect: Option<String>, n: Option<i32>) -> SetOfIterator<'static, Composite> {
    SetOfIterator::new(answer(take(effect, n)))
}

/// The pipelines that have ready effects of a name. No order: none of them comes first for ever.
const WAITING: &str = "SELECT p.pipeline_id, p.owner FROM backfill.pipeline_data p
    CROSS JOIN LATERAL (
        SELECT FROM backfill.effect_data e
        WHERE e.pipeline_id = p.pipeline_id AND e.effect = $1 AND e.state = 'ready' LIMIT 1
    ) ready
    ORDER BY pg_catalog.random()";

/// In the order of an index that leads past nothing else.
const TAKE: &str =
    "SELECT effect_id, window_start, window_end, key, payload, token, plan_id, emitted_at, published_at
    FROM backfill.effect_data
    WHERE pipeline_id = $1 AND effect = $2 AND state = 'ready'
    ORDER BY published_at, effect_id LIMIT $3
    FOR UPDATE SKIP LOCKED";

fn take(effect: Option<String>, n: Option<i32>) -> Result<Vec<Composite>> {
    session::require_writable()?;
    let effect = require_name(effect)?;
    let n = n.filter(|n| (1..=MOST_EFFECTS).contains(n)).ok_or_else(|| {
        Error::new(Code::InvalidParameter, "n is out of range")
            .detail(format!("n must be between 1 and {MOST_EFFECTS}."))
            .hint("Take several times for more.")
    })? as usize;
    let who = role::caller();
    let mut waiting = role::as_ledger(|| {
        spi::query(WAITING, &[effect.as_str().into()], |row| (row.at(1), row.at::<String>(2)))
    });
    waiting.retain(|(pipeline_id, owner)| rights::has(who, *pipeline_id, owner, Level::Work));
    if waiting.is_empty() {
        rights::require_anywhere(Level::Work)?;
    }
    let mut taken = vec![];
    for (pipeline_id, _) in waiting {
        if taken.len() == n {
            break;
        }
        taken.extend(of_pipeline(&Pipeline::by_id(pipeline_id), &effect, n - taken.len()));
    }
    Ok(taken)
}

/// An effect that was taken: its columns in the outbox.
struct Taken {
    id: i64,
    window_start: Instant,
    window_end: Instant,
    key: String,
    payload: Jsonb,
    token: i64,
    plan_id: i64,
    emitted_at: Instant,
    published_at: Instant,
}

/// Locks up to `n` ready effects of a pipeline that nobody has taken.
fn of_pipeline(pipeline: &Pipeline, effect: &str, n: usize) -> Vec<Composite> {
    let args = [pipeline.id.into(), effect.into(), (n as i64).into()];
    let taken = role::as_ledger(|| {
        spi::query(TAKE, &args, |row| Taken {
            id: row.at(1),
            window_start: row.at(2),
            window_end: row.at(3),
            key: row.at(4),
            payload: row.at(5),
            token: row.at(6),
            plan_id: row.at(7),
            emitted_at: row.at(8),
            published_at: row.at(9),
        })
    });
    taken.into_iter().map(|taken| delivery(pipeline, effect, taken)).collect()
}

fn delivery(pipeline: &Pipeline, effect: &str, taken: Taken) -> Composite {
    composite(
        "effect_delivery",
        vec![
            value(taken.id),
            value(pipeline.name.as_str()),
            value(pipeline.key_of(taken.window_start)),
            value(taken.window_start),
            value(taken.window_end),
            value(effect),
            value(taken.key),
            value(taken.payload),
            value(taken.token),
            (taken.plan_id > 0).then_some(taken.plan_id).and_then(value),
            value(taken.emitted_at),
            value(taken.published_at),
        ],
    )
}

#[pg_extern(sql = false)]
fn effect_done(id: Option<i64>) -> String {
    answer(done(id)).to_owned()
}

const LOOK: &str =
    "SELECT pipeline_id, state, effect, window_start FROM backfill.effect_data WHERE effect_id = $1";

const DONE: &str = "UPDATE backfill.effect_data SET done_at = pg_catalog.clock_timestamp(), done_by = $2
    WHERE effect_id = $1 AND state = 'ready'";

fn done(id: Option<i64>) -> Result<&'static str> {
    session::require_writable()?;
    let id = id.ok_or_else(|| {
        Error::new(Code::NullValue, "id must not be NULL")
            .detail("It says which effect was delivered.")
            .hint("SELECT id FROM effect_take(...) gives the effects to deliver.")
    })?;
    let found = role::as_ledger(|| {
        spi::latest(LOOK, &[id.into()], |row| {
            (row.at::<i64>(1), row.at::<String>(2), row.at::<String>(3), row.at::<Instant>(4))
        })
    });
    let Some((pipeline_id, state, effect, window_start)) = found.into_iter().next() else {
        return Err(Error::new(Code::Undefined, format!("effect {id} does not exist"))
            .detail("Nothing in the outbox of this database has this id.")
            .hint("SELECT id FROM effect_take(...) gives the effects to deliver."));
    };
    let pipeline = Pipeline::by_id(pipeline_id);
    rights::require(&pipeline, Level::Work)?;
    match state.as_str() {
        "done" => return Ok("done"),
        "ready" => {}
        _ => {
            return Err(Error::new(Code::NotInState, format!("effect {id} is {state}, not ready"))
                .detail(format!(
                    "Effect \"{effect}\" of window {} of pipeline \"{}\" was given to no consumer.",
                    pipeline.key_of(window_start),
                    pipeline.name
                ))
                .hint(format!(
                    "SELECT * FROM effect_take({}) gives those that are ready.",
                    quote::literal(&effect)
                )));
        }
    }
    let by = role::name(role::caller());
    // If it finds none, somebody else's transaction was waited for, and did the same.
    role::as_ledger(|| spi::run(DONE, &[id.into(), by.as_str().into()]));
    Ok("done")
}

#[pg_extern(sql = false)]
fn effects_allowed(token: Option<i64>) -> bool {
    answer(run::require_token(token).and_then(run::allows_effects))
}
