//! Defining pipelines, pausing them, and saying who may do what with them.

use crate::domain::bound::{Bound, instant_text, local_text};
use crate::domain::cadence::Cadence;
use crate::domain::calendar::Grid;
use crate::domain::timeline::Timeline;
use crate::domain::zone::{Instant, Zone};
use crate::error::{Code, Error, Result, answer};
use crate::ledger::lint::{self, OnImpure};
use crate::ledger::mixture::{self, OnMixture};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{self, Request, ranges_of};
use crate::ledger::rights::{self, Level};
use crate::ledger::window::{self, Reading, require_reason};
use crate::ledger::{fenced, gate, grid, piece, pool, retarget, version};
use crate::postgres::arguments::{self, Signature};
use crate::postgres::datum::{self, Span};
use crate::postgres::zone::PgZone;
use crate::postgres::{lock, lock::Key, query, role, session, settings, spi, target};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::{JsonB, pg_sys};
use serde_json::{Map, Value, json};

/// The settings of a pipeline: the arguments of `pipeline_define` after the name, and the keys of
/// `pipeline_alter`.
const SETTINGS: Signature = &[
    ("cadence", pg_sys::INTERVALOID),
    ("start_at", pg_sys::TEXTOID),
    ("target", pg_sys::OIDOID),
    ("slice_column", pg_sys::NAMEOID),
    ("time_zone", pg_sys::TEXTOID),
    ("query", pg_sys::TEXTOID),
    ("code_version", pg_sys::TEXTOID),
    ("depends_on_past", pg_sys::BOOLOID),
    ("backlog", pg_sys::INT4OID),
    ("catchup", pg_sys::INT4OID),
    ("delay", pg_sys::INTERVALOID),
    ("pool", pg_sys::TEXTOID),
    ("max_active", pg_sys::INT4OID),
    ("lease_for", pg_sys::INTERVALOID),
    ("run_timeout", pg_sys::INTERVALOID),
    ("max_attempts", pg_sys::INT4OID),
    ("retry_delay", pg_sys::INTERVALOID),
    ("source_retention", pg_sys::INTERVALOID),
    ("expected_duration", pg_sys::INTERVALOID),
    ("cost_per_hour", pg_sys::NUMERICOID),
    ("max_shrink", pg_sys::FLOAT4OID),
    ("on_mixture", pg_sys::TEXTOID),
    ("on_impure", pg_sys::TEXTOID),
    ("keep_previous", pg_sys::INTERVALOID),
    ("stamp_column", pg_sys::NAMEOID),
    ("description", pg_sys::TEXTOID),
];

/// Settings that lay the grid.
const GRID: [&str; 3] = ["cadence", "start_at", "time_zone"];

/// Settings that say where slices lie.
const TABLE: [&str; 2] = ["target", "slice_column"];

/// What `pipeline_alter` takes beside the settings: from when on another grid counts.
const SWITCH_AT: &str = "switch_at";

/// Settings that what is found in a query depends on.
const LOOKED_AT: [&str; 6] =
    ["query", "target", "slice_column", "depends_on_past", "stamp_column", "on_impure"];

#[pg_extern(sql = false)]
fn pipeline_define(fcinfo: pg_sys::FunctionCallInfo) -> String {
    const NAME: (&str, pg_sys::Oid) = ("pipeline", pg_sys::TEXTOID);
    const ARGUMENTS: [(&str, pg_sys::Oid); SETTINGS.len() + 1] = {
        let mut arguments = [NAME; SETTINGS.len() + 1];
        let mut i = 0;
        while i < SETTINGS.len() {
            arguments[i + 1] = SETTINGS[i];
            i += 1;
        }
        arguments
    };
    let mut settings = unsafe { arguments::object(fcinfo, &ARGUMENTS) };
    let path = settings::search_path();
    let name = settings.remove("pipeline").and_then(|v| v.as_str().map(str::to_owned));
    answer(settings::for_text(|| define(name, settings, &path)))
}

fn define(name: Option<String>, settings: Map<String, Value>, path: &str) -> Result<String> {
    session::require_writable()?;
    let name = require_name("pipeline", name)?;
    role::as_ledger(|| lock::exclusive(Key::Definitions));
    let Some(existing) = Pipeline::find(&name) else {
        return create(&name, &settings, path);
    };
    rights::require(&existing, Level::Owner)?;
    change(&existing, &settings, path, |wanted| match wanted.moved[..] {
        [] => Ok(None),
        _ => Err(grid::not_by_definition(&existing, wanted)),
    })
}

#[pg_extern(sql = false)]
fn pipeline_alter(pipeline: Option<String>, settings: Option<JsonB>) -> String {
    let path = settings::search_path();
    let relation = settings.as_ref().and_then(|s| s.0.get("target")).and_then(Value::as_str);
    // A table is named as the caller sees it, so before the path is pinned.
    let relation = relation.map(target::resolve);
    answer(settings::for_text(|| alter(pipeline, settings, relation, &path)))
}

fn alter(
    pipeline: Option<String>,
    settings: Option<JsonB>,
    relation: Option<Result<pg_sys::Oid>>,
    path: &str,
) -> Result<String> {
    session::require_writable()?;
    let name = pipeline.unwrap_or_default();
    role::as_ledger(|| lock::exclusive(Key::Definitions));
    let pipeline = Pipeline::for_caller(&name, Level::Owner)?;
    let Some(JsonB(Value::Object(mut settings))) = settings else {
        return Err(invalid(
            "settings must be a JSON object",
            "settings is NULL or not an object.",
            "SELECT pipeline_alter('...', '{\"max_active\": 2}').",
        ));
    };
    let switch_at = switch_at(&mut settings)?;
    if let Some(unknown) = settings.keys().find(|key| SETTINGS.iter().all(|(name, _)| name != *key)) {
        let known: Vec<&str> = SETTINGS.iter().map(|(name, _)| *name).collect();
        return Err(invalid(
            &format!("unknown setting \"{unknown}\""),
            &format!("Settings are {}, and {SWITCH_AT}.", known.join(", ")),
            "Settings have the names of pipeline_define's arguments.",
        ));
    }
    if let Some(relation) = relation {
        settings.insert("target".to_owned(), Value::from(u32::from(relation?)));
    }
    let mut all = stored(&pipeline);
    if settings.contains_key("time_zone") {
        // As in a definition, where it is local as a rule: midnight stays midnight.
        all.insert(
            "start_at".to_owned(),
            local_text(pipeline.grid.zone().to_local(given_start(&pipeline))).into(),
        );
    }
    all.extend(settings);
    change(&pipeline, &all, path, |wanted| grid::decide(&pipeline, wanted, switch_at.as_deref()))
}

/// Takes `switch_at` out of the settings.
fn switch_at(settings: &mut Map<String, Value>) -> Result<Option<String>> {
    let Some(given) = settings.remove(SWITCH_AT).filter(|given| !given.is_null()) else { return Ok(None) };
    let text = given.as_str().filter(|_| GRID.iter().any(|name| settings.contains_key(*name)));
    text.map(|text| Some(text.to_owned())).ok_or_else(|| {
        invalid(
            &format!("{SWITCH_AT} cannot be used"),
            &format!("{SWITCH_AT} is a bound as text, beside {}.", GRID.join(", ")),
            "SELECT pipeline_alter('...', '{\"cadence\": \"1 hour\", \"switch_at\": \"...\"}').",
        )
    })
}

fn require_name(argument: &str, name: Option<String>) -> Result<String> {
    name.filter(|name| !name.trim().is_empty()).ok_or_else(|| {
        invalid("a pipeline needs a name", &format!("{argument} is NULL or blank."), "Give it a name.")
    })
}

fn invalid(message: &str, detail: &str, hint: &str) -> Error {
    Error::new(Code::InvalidParameter, message).detail(detail).hint(hint)
}

/// Settings with their types, checked one by one.
struct Checked {
    grid: Grid<PgZone>,
    target: Option<pg_sys::Oid>,
    slice_column: Option<String>,
    query: Option<String>,
    code_version: Option<String>,
    backlog: i32,
    catchup: i32,
    delay: Span,
    pool_id: i32,
    max_active: i32,
    lease_for: Span,
    run_timeout: Option<Span>,
    max_attempts: i32,
    retry_delay: Span,
    source_retention: Option<Span>,
    expected_duration: Option<Span>,
    cost_per_hour: Option<AnyNumeric>,
    max_shrink: f32,
    description: Option<String>,
    depends_on_past: bool,
    on_mixture: String,
    keep_previous: Option<Span>,
    on_impure: OnImpure,
    stamp_column: Option<String>,
}

/// PostgreSQL reads the texts as the types of the settings.
const TYPED: &str = "SELECT s.cadence, s.delay, s.lease_for, s.run_timeout, s.retry_delay, s.source_retention,
        s.expected_duration, s.backlog, s.catchup, s.max_active, s.max_attempts, s.max_shrink, s.cost_per_hour,
        s.target, s.slice_column::pg_catalog.text, s.depends_on_past, s.keep_previous
    FROM pg_catalog.jsonb_populate_record(NULL::backfill.pipeline_settings, $1) s";

/// 100 years as intervals compare: what is longer was not meant, 'infinity' above all.
const CENTURY: i64 = 36_000 * 86_400_000_000;

fn check(settings: &Map<String, Value>) -> Result<Checked> {
    let text = |name: &str| settings.get(name).and_then(Value::as_str).map(str::to_owned);
    let time_zone = text("time_zone").unwrap_or_else(|| "UTC".to_owned());
    let zone = PgZone::new(&time_zone).map_err(|error| {
        invalid(
            &format!("time zone \"{time_zone}\" cannot be used"),
            &error.to_string(),
            "SELECT name FROM pg_timezone_names lists the names.",
        )
    })?;
    let typed = spi::first(TYPED, &[JsonB(Value::Object(settings.clone())).into()], |row| {
        let span = |n| row.get::<Span>(n);
        (
            [span(1), span(2), span(3), span(4), span(5), span(6), span(7)],
            [row.get::<i32>(8), row.get(9), row.get(10), row.get(11)],
            row.get::<f32>(12),
            row.get::<AnyNumeric>(13),
            row.get::<pg_sys::Oid>(14),
            row.get::<String>(15),
            row.get::<bool>(16),
            span(17),
        )
    })
    .expect("one row");
    let (
        [cadence, delay, lease_for, run_timeout, retry_delay, retention, expected],
        numbers,
        shrink,
        cost,
        relation,
        column,
        depends_on_past,
        keep_previous,
    ) = typed;
    let required = |name: &str| {
        invalid(
            &format!("{name} must not be null"),
            &format!("{name} is NULL."),
            &format!("Give {name}, or leave it out for its default."),
        )
    };
    let cadence = cadence.ok_or_else(|| required("cadence"))?;
    let step = Cadence::from_parts(cadence.months, cadence.days, cadence.micros).map_err(|error| {
        invalid(
            "the cadence cannot be used",
            &format!("{error}."),
            "Use for example '1 hour', '1 day', '7 days', '1 month', '3 months'.",
        )
    })?;
    let start_at = text("start_at").ok_or_else(|| required("start_at"))?;
    let bound = Bound::parse(&start_at).map_err(|error| {
        invalid(
            &format!("start_at \"{start_at}\" is not a bound"),
            &error.to_string(),
            "Give an ISO date, or date and time, local in the pipeline's zone unless it carries an offset.",
        )
    })?;
    let grid = Grid::new(step, bound, zone).map_err(|error| {
        invalid("the grid cannot be laid", &format!("{error}."), "Choose another start_at or cadence.")
    })?;
    let long = |name: &str, value: Option<Span>, least: i64| -> Result<Option<Span>> {
        match value {
            Some(span) if !(least..=CENTURY).contains(&span.approximate_micros()) => Err(invalid(
                &format!("{name} is out of range"),
                &format!("{name} must be between {} and 100 years.", datum::seconds_text(least)),
                &format!("Give another {name}."),
            )),
            other => Ok(other),
        }
    };
    let number = |name: &str, value: Option<i32>, least: i32, most: i32| -> Result<i32> {
        value.filter(|n| (least..=most).contains(n)).ok_or_else(|| {
            invalid(
                &format!("{name} is out of range"),
                &format!("{name} must be between {least} and {most}."),
                &format!("Give another {name}, or leave it out for its default."),
            )
        })
    };
    let [backlog, catchup, max_active, max_attempts] = numbers;
    let query = text("query");
    let code_version = text("code_version");
    version::require_name(code_version.as_deref())?;
    if query.is_some() && code_version.is_some() {
        return Err(invalid(
            "code_version cannot be given beside a query",
            "The code version of a pipeline with a query is the fingerprint of the query.",
            "Leave code_version out.",
        ));
    }
    let pool_name = text("pool").ok_or_else(|| required("pool"))?;
    let max_shrink = shrink.filter(|s| (0.0..=1.0).contains(s)).ok_or_else(|| {
        invalid(
            "max_shrink is out of range",
            "max_shrink must be between 0 and 1.",
            "0.5 refuses a slice that loses more than half of its rows.",
        )
    })?;
    let on_impure = match settings.get("on_impure").and_then(Value::as_str) {
        None => return Err(required("on_impure")),
        Some(text) => OnImpure::parse(text).ok_or_else(|| {
            invalid(
                &format!("on_impure \"{text}\" is unknown"),
                "on_impure is allow, warn or refuse.",
                "SELECT * FROM pipeline_lint('...') lists what it is about.",
            )
        })?,
    };
    let depends_on_past = depends_on_past.unwrap_or(false);
    if depends_on_past && max_active.is_some_and(|n| n > 1) {
        return Err(invalid(
            "max_active must be 1 where windows depend on the past",
            "Each window is a function of the one before it, so that only one can run at a time.",
            "Leave max_active out.",
        ));
    }
    let on_mixture = text("on_mixture").ok_or_else(|| required("on_mixture"))?;
    if !OnMixture::NAMES.contains(&on_mixture.as_str()) {
        return Err(invalid(
            &format!("on_mixture \"{on_mixture}\" is unknown"),
            &format!("on_mixture is one of {}.", OnMixture::NAMES.join(", ")),
            "Leave on_mixture at its default, 'warn'.",
        ));
    }
    if depends_on_past && on_mixture == "refuse" {
        return Err(invalid(
            "on_mixture cannot be 'refuse' where windows depend on the past",
            "Each window is built from the one before it, so that new code cannot build all of them before they are published.",
            "Give on_mixture => 'warn'.",
        ));
    }
    Ok(Checked {
        grid,
        target: relation,
        slice_column: column,
        query,
        code_version,
        backlog: number("backlog", backlog, 0, i32::MAX)?,
        catchup: number("catchup", catchup, 0, i32::MAX)?,
        delay: long("delay", delay, 0)?.ok_or_else(|| required("delay"))?,
        pool_id: pool::refer(&pool_name)?.0,
        max_active: number("max_active", max_active, 1, 10_000)?,
        lease_for: long("lease_for", lease_for, 1_000_000)?.ok_or_else(|| required("lease_for"))?,
        run_timeout: long("run_timeout", run_timeout, 1_000_000)?,
        max_attempts: number("max_attempts", max_attempts, 1, i32::MAX)?,
        retry_delay: long("retry_delay", retry_delay, 0)?.ok_or_else(|| required("retry_delay"))?,
        source_retention: long("source_retention", retention, 1)?,
        expected_duration: long("expected_duration", expected, 1)?,
        cost_per_hour: cost,
        max_shrink,
        description: text("description"),
        depends_on_past,
        on_mixture,
        keep_previous: long("keep_previous", keep_previous, 1)?,
        on_impure,
        stamp_column: text("stamp_column"),
    })
}

macro_rules! setting_columns {
    () => {
        "target, slice_column, query, query_path, code_version, backlog, catchup, \
         delay, pool_id, max_active, lease_for, run_timeout, max_attempts, retry_delay, source_retention, \
         expected_duration, cost_per_hour, max_shrink, description, \
         depends_on_past, keep_previous, on_mixture, on_impure, stamp_column"
    };
}
const INSERT: &str = concat!(
    "INSERT INTO backfill.pipeline_data (name, owner, created_by, active_since, ",
    setting_columns!(),
    ", cadence, start_local, start_at, time_zone, given_start) \
     VALUES ($1, $2, $2, pg_catalog.clock_timestamp(), $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
       $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $29)"
);
const UPDATE: &str = concat!(
    "UPDATE backfill.pipeline_data SET max_active_before = GREATEST(max_active_before, max_active), \
       (changed_at, changed_by, ",
    setting_columns!(),
    ") = ROW (pg_catalog.clock_timestamp(), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, \
       $17, $18, $19, $20, $21, $22, $23, $24, $25, $26) WHERE pipeline_id = $1"
);

impl Checked {
    /// The values of `setting_columns!()`.
    fn values(&self, path: &str) -> Vec<DatumWithOid<'_>> {
        vec![
            self.target.into(),
            self.slice_column.as_deref().into(),
            self.query.as_deref().into(),
            self.query.as_ref().map(|_| path.to_owned()).into(),
            self.code_version.as_deref().into(),
            self.backlog.into(),
            self.catchup.into(),
            self.delay.into(),
            self.pool_id.into(),
            self.max_active.into(),
            self.lease_for.into(),
            self.run_timeout.into(),
            self.max_attempts.into(),
            self.retry_delay.into(),
            self.source_retention.into(),
            self.expected_duration.into(),
            self.cost_per_hour.clone().into(),
            self.max_shrink.into(),
            self.description.as_deref().into(),
            self.depends_on_past.into(),
            self.keep_previous.into(),
            self.on_mixture.as_str().into(),
            self.on_impure.name().into(),
            self.stamp_column.as_deref().into(),
        ]
    }

    fn insert(&self, name: &str, owner: &str, path: &str) {
        let (cadence, start_local, start_at, time_zone) = grid::columns(&self.grid);
        let mut args = vec![name.into(), owner.into()];
        args.extend(self.values(path));
        args.extend([cadence.into(), start_local.into(), start_at.into(), time_zone.into()]);
        spi::run(INSERT, &args);
    }

    fn update(&self, pipeline_id: i64, by: &str, path: &str) {
        let mut args = vec![pipeline_id.into(), by.into()];
        args.extend(self.values(path));
        spi::run(UPDATE, &args);
    }

    fn require_target(&self, timeline: &Timeline<PgZone>) -> Result<()> {
        target::check(self.target, self.slice_column.as_deref(), timeline, self.query.is_some())?;
        target::check_stamp(self.target, self.slice_column.as_deref(), self.stamp_column.as_deref())
    }
}

fn create(name: &str, settings: &Map<String, Value>, path: &str) -> Result<String> {
    let checked = check(settings)?;
    checked.require_target(&Timeline::new(checked.grid))?;
    claim_target(&checked, 0)?;
    let owner = role::name(role::caller());
    check_query(&checked, path)?;
    role::as_ledger(|| {
        checked.insert(name, &owner, path);
        rights::execute_grants(&owner);
    });
    fenced::forget();
    record_version(name)?;
    judge(name)?;
    Ok("created".to_owned())
}

/// The same call on every deployment changes nothing; what differs is applied and named. `regrid` decides about
/// another grid.
fn change(
    existing: &Pipeline,
    settings: &Map<String, Value>,
    path: &str,
    regrid: impl FnOnce(&grid::Wanted) -> Result<Option<grid::Regrid>>,
) -> Result<String> {
    let checked = check(settings)?;
    let before = stored(existing);
    let after = comparable(settings, &checked);
    let mut changed: Vec<&str> = SETTINGS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| match *name {
            "start_at" => !is_same_start(existing, &checked.grid),
            name => differs(before.get(name), after.get(name)),
        })
        .collect();
    let moved: Vec<&str> = changed.iter().copied().filter(|name| GRID.contains(name)).collect();
    let regrid = regrid(&grid::Wanted { grid: checked.grid, moved, settings: &after })?;
    if regrid.is_some() && changed.iter().all(|name| !GRID.contains(name)) {
        changed.push(SWITCH_AT);
    }
    checked.require_target(regrid.as_ref().map_or(&existing.grid, |regrid| &regrid.timeline))?;
    let moved_path = checked.query.is_some() && existing.query_path.as_deref() != Some(path);
    if changed.is_empty() && !moved_path {
        return Ok("unchanged".to_owned());
    }
    let moved: Vec<&str> = changed.iter().copied().filter(|name| TABLE.contains(name)).collect();
    if !moved.is_empty() {
        retarget::require_free(existing, &moved)?;
    }
    if checked.depends_on_past && !existing.depends_on_past {
        retarget::require_nothing_staged(existing, "depends_on_past")?;
    }
    if changed.contains(&"stamp_column") {
        retarget::require_nothing_staged(existing, "stamp_column")?;
    }
    claim_target(&checked, existing.id)?;
    check_query(&checked, path)?;
    if changed.contains(&"on_mixture") {
        mixture::exclude_all(existing, "pipeline_alter of on_mixture")?;
        if checked.on_mixture == OnMixture::REFUSE {
            mixture::require_none_open(existing)?;
        }
    }
    let changed_by = role::name(role::caller());
    role::as_ledger(|| {
        if changed.contains(&"on_mixture") && checked.on_mixture == OnMixture::REFUSE {
            // Whoever publishes just now without having been judged looks at this before its COMMIT.
            gate::close(existing.id);
        }
        checked.update(existing.id, &changed_by, path);
        if let Some(regrid) = regrid {
            regrid.store(existing.id, &changed_by);
        }
    });
    fenced::forget();
    record_version(&existing.name)?;
    if moved_path || changed.iter().any(|name| LOOKED_AT.contains(name)) {
        judge(&existing.name)?;
    }
    if moved_path && !changed.contains(&"query") {
        changed.push("search_path of query");
    }
    Ok(format!("changed: {}", changed.join(", ")))
}

/// Whether a grid starts where the pipeline was said to start. A local start stays the same in another zone.
fn is_same_start(existing: &Pipeline, grid: &Grid<PgZone>) -> bool {
    let (given, zone) = (given_start(existing), existing.grid.zone());
    given == grid.anchor || (zone.name() != grid.zone.name() && zone.to_local(given) == grid.anchor_local)
}

const GIVEN_START: &str = "SELECT given_start FROM backfill.pipeline_data WHERE pipeline_id = $1";

/// `start_at` as it was given last. The grid may count from elsewhere: from before it was changed, or before its
/// start was moved.
fn given_start(pipeline: &Pipeline) -> Instant {
    role::as_ledger(|| spi::first(GIVEN_START, &[pipeline.id.into()], |row| row.at(1)))
        .expect("the ledger never forgets a pipeline")
}

fn differs(before: Option<&Value>, after: Option<&Value>) -> bool {
    let plain = |value: Option<&Value>| value.filter(|v| !v.is_null()).cloned();
    plain(before) != plain(after)
}

/// Settings as the ledger holds them.
const STORED: &str = include_str!("../../sql/query/pipeline_settings.sql");

fn stored(pipeline: &Pipeline) -> Map<String, Value> {
    let stored = role::as_ledger(|| spi::first(STORED, &[pipeline.id.into()], |row| row.at::<JsonB>(1).0));
    let mut settings = match stored {
        Some(Value::Object(settings)) => settings,
        _ => Map::new(),
    };
    settings.insert("start_at".to_owned(), start_text(pipeline.grid.zone(), given_start(pipeline)));
    settings
}

/// The start as text that reads the same in every session.
fn start_text(zone: &PgZone, start: Instant) -> Value {
    Value::from(instant_text(zone, start))
}

/// Given settings as [`stored`] would show them.
const COMPARABLE: &str = "SELECT pg_catalog.to_jsonb(s)
    FROM pg_catalog.jsonb_populate_record(NULL::backfill.pipeline_settings, $1) s";

fn comparable(settings: &Map<String, Value>, checked: &Checked) -> Map<String, Value> {
    let mut settings = settings.clone();
    settings.insert("time_zone".to_owned(), Value::from(checked.grid.zone.name()));
    settings.insert("start_at".to_owned(), start_text(&checked.grid.zone, checked.grid.anchor));
    let json = spi::first(COMPARABLE, &[JsonB(Value::Object(settings)).into()], |row| row.at::<JsonB>(1).0);
    match json {
        Some(Value::Object(settings)) => settings,
        _ => Map::new(),
    }
}

fn claim_target(checked: &Checked, pipeline_id: i64) -> Result<()> {
    checked.target.map_or(Ok(()), |relation| target::claim(relation, pipeline_id))
}

fn check_query(checked: &Checked, path: &str) -> Result<()> {
    match (&checked.query, checked.target) {
        // The tables of the query are locked while it is read, and definitions of others wait meanwhile.
        (Some(text), Some(target)) => settings::with_patience(|| {
            query::check(text, path, target, checked.stamp_column.as_deref(), &checked.grid.zone.name())
        }),
        _ => Ok(()),
    }
}

/// The ledger knows the text of every version from its definition on.
fn record_version(name: &str) -> Result<()> {
    let pipeline = Pipeline::named(name)?;
    if let (Some(query), Some(path)) = (&pipeline.query, &pipeline.query_path) {
        version::for_person(&pipeline, query, path)?;
    }
    Ok(())
}

/// Whether the pipeline's own query is a function of its window, if somebody wants to know.
fn judge(name: &str) -> Result<()> {
    let pipeline = Pipeline::named(name)?;
    match (&pipeline.query, &pipeline.query_path) {
        (Some(query), Some(path)) => lint::judge(&pipeline, query, path),
        _ => Ok(()),
    }
}

const PAUSE: &str = "UPDATE backfill.pipeline_data
    SET paused_at = pg_catalog.clock_timestamp(), paused_by = $2, pause_reason = $3
    WHERE pipeline_id = $1 AND paused_at IS NULL";

#[pg_extern(sql = false)]
fn pipeline_pause(pipeline: Option<String>, reason: Option<String>) -> String {
    answer(pause(pipeline, reason))
}

fn pause(pipeline: Option<String>, reason: Option<String>) -> Result<String> {
    session::require_writable()?;
    let reason = require_reason(reason)?;
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Operate)?;
    let caller = role::name(role::caller());
    let args = [pipeline.id.into(), caller.as_str().into(), reason.as_str().into()];
    let written = role::as_ledger(|| {
        lock::exclusive(Key::Decisions { pipeline: pipeline.id });
        spi::run(PAUSE, &args)
    });
    Ok(if written == 0 { "unchanged" } else { "paused" }.to_owned())
}

const RESUME: &str = "UPDATE backfill.pipeline_data
    SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, active_since = pg_catalog.clock_timestamp()
    WHERE pipeline_id = $1 AND paused_at IS NOT NULL";

const REPLACE_DRAFT: &str = "UPDATE backfill.plan_data
    SET state = 'cancelled', cancelled_by = $2, cancelled_at = pg_catalog.clock_timestamp(),
        cancel_reason = 'replaced by a newer draft of pipeline_resume'
    WHERE pipeline_id = $1 AND state = 'draft' AND origin = 'resume'
    RETURNING plan_id";

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)] // pgrx reads the columns from the type.
fn pipeline_resume(
    pipeline: Option<String>,
) -> TableIterator<
    'static,
    (
        name!(missed, i64),
        name!(oldest, Option<TimestampWithTimeZone>),
        name!(newest, Option<TimestampWithTimeZone>),
        name!(plan_id, Option<i64>),
    ),
> {
    TableIterator::once(answer(resume(pipeline)))
}

type Missed = (i64, Option<TimestampWithTimeZone>, Option<TimestampWithTimeZone>, Option<i64>);

fn resume(pipeline: Option<String>) -> Result<Missed> {
    session::require_writable()?;
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Operate)?;
    let caller = role::name(role::caller());
    let replaced = role::as_ledger(|| {
        lock::exclusive(Key::Decisions { pipeline: pipeline.id });
        spi::run(RESUME, &[pipeline.id.into()]);
        spi::notify(&pipeline.name);
        spi::query(REPLACE_DRAFT, &[pipeline.id.into(), caller.as_str().into()], |row| row.at::<i64>(1))
    });
    for plan_id in replaced {
        plan::note(plan_id, "cancelled", Some("replaced by a newer draft of pipeline_resume"));
    }
    let pipeline = Pipeline::by_id(pipeline.id);
    let now = datum::clock();
    let missed = window::missed(Reading::Deciding, &pipeline, now)?;
    let (Some(oldest), Some(newest)) = (missed.first(), missed.last()) else {
        return Ok((0, None, None, None));
    };
    let windows = piece::count(&pipeline.grid, &missed);
    let start = |position| pipeline.grid.boundary(position).ok().map(datum::timestamptz);
    let (oldest, newest) = (start(oldest.first()), start(newest.last()));
    if !window::is_countable(windows) {
        return Ok((windows, oldest, newest, None));
    }
    let mut request = Map::new();
    request.insert("mode".to_owned(), json!("missing"));
    if pipeline.depends_on_past {
        request.insert("ordering".to_owned(), json!("sequential"));
    }
    request.insert("reason".to_owned(), json!("missed while the pipeline was not active"));
    request.insert("positions".to_owned(), json!(ranges_of(&missed)));
    let summary = crate::api::plan::propose(&pipeline, &Request::read(&request)?, request, "resume")?;
    Ok((windows, oldest, newest, summary.plan_id()))
}

const NAMED: &str = "SELECT 1 FROM backfill.pipeline_data WHERE name = $1 AND dropped_at IS NULL";

const RENAME: &str = "UPDATE backfill.pipeline_data
    SET name = $2, changed_at = pg_catalog.clock_timestamp(), changed_by = $3 WHERE pipeline_id = $1";

#[pg_extern(sql = false)]
fn pipeline_rename(pipeline: Option<String>, new_name: Option<String>) -> String {
    answer(rename(pipeline, new_name))
}

fn rename(pipeline: Option<String>, new_name: Option<String>) -> Result<String> {
    session::require_writable()?;
    let new_name = require_name("new_name", new_name)?;
    role::as_ledger(|| lock::exclusive(Key::Definitions));
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Owner)?;
    if pipeline.name == new_name {
        return Ok("unchanged".to_owned());
    }
    let by = role::name(role::caller());
    role::as_ledger(|| {
        if !spi::latest(NAMED, &[new_name.as_str().into()], |_| ()).is_empty() {
            return Err(Error::new(Code::Duplicate, format!("pipeline \"{new_name}\" exists already"))
                .detail("Names of pipelines are unique until they are dropped.")
                .hint("Choose another name."));
        }
        spi::run(RENAME, &[pipeline.id.into(), new_name.as_str().into(), by.as_str().into()]);
        Ok("renamed".to_owned())
    })
}

const DROP: &str = "UPDATE backfill.pipeline_data
    SET dropped_at = pg_catalog.clock_timestamp(), dropped_by = $2
    WHERE pipeline_id = $1 AND dropped_at IS NULL";

#[pg_extern(sql = false)]
fn pipeline_drop(pipeline: Option<String>) -> String {
    answer(drop_pipeline(pipeline))
}

fn drop_pipeline(pipeline: Option<String>) -> Result<String> {
    session::require_writable()?;
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Owner)?;
    let caller = role::name(role::caller());
    let id = pipeline.id;
    role::as_ledger(|| {
        lock::exclusive_at_once(&[
            Key::Definitions,
            Key::Decisions { pipeline: id },
            Key::Approve { pipeline: id },
        ]);
        gate::close(id);
    });
    crate::api::plan::cancel_all(&pipeline, "the pipeline was dropped")?;
    role::as_ledger(|| spi::run(DROP, &[id.into(), caller.as_str().into()]));
    fenced::forget();
    Ok("dropped".to_owned())
}

const GRANT: &str =
    "INSERT INTO backfill.grant_data (pipeline_id, grantee, level, granted_by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (pipeline_id, grantee) DO UPDATE
    SET level = excluded.level, granted_by = excluded.granted_by, granted_at = excluded.granted_at";

const REVOKE: &str = "DELETE FROM backfill.grant_data WHERE pipeline_id = $1 AND grantee = $2";

#[pg_extern(sql = false)]
fn pipeline_grant(pipeline: Option<String>, role: Option<String>, level: Option<String>) -> String {
    answer(grant(pipeline, role, level))
}

fn existing_role(name: Option<String>) -> Result<String> {
    let name = name.unwrap_or_default();
    if role::find(&name).is_none() {
        return Err(Error::new(Code::Undefined, format!("role \"{name}\" does not exist"))
            .detail("No role of this name exists in this cluster.")
            .hint("CREATE ROLE makes one."));
    }
    Ok(name)
}

fn grant(pipeline: Option<String>, role: Option<String>, level: Option<String>) -> Result<String> {
    session::require_writable()?;
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Owner)?;
    let grantee = existing_role(role)?;
    let name = level.unwrap_or_default();
    let level = Level::parse(&name).ok_or_else(|| {
        invalid(
            &format!("level \"{name}\" is unknown"),
            "Levels are read, work and operate; each includes those before it.",
            "SELECT pipeline_grant('...', '...', 'work').",
        )
    })?;
    let granted_by = role::name(role::caller());
    role::as_ledger(|| {
        lock::exclusive(Key::Definitions);
        let args =
            [pipeline.id.into(), grantee.as_str().into(), level.name().into(), granted_by.as_str().into()];
        spi::run(GRANT, &args);
        rights::execute_grants(&grantee);
    });
    Ok(format!("granted: {}", level.name()))
}

#[pg_extern(sql = false)]
fn pipeline_revoke(pipeline: Option<String>, role: Option<String>) -> String {
    answer(revoke(pipeline, role))
}

fn revoke(pipeline: Option<String>, role: Option<String>) -> Result<String> {
    session::require_writable()?;
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Owner)?;
    // The role may have been dropped since: what it was granted can still be taken away.
    let grantee = role.unwrap_or_default();
    role::as_ledger(|| {
        lock::exclusive(Key::Definitions);
        if spi::run(REVOKE, &[pipeline.id.into(), grantee.as_str().into()]) == 0 {
            return Ok("unchanged".to_owned());
        }
        rights::execute_grants(&grantee);
        Ok("revoked".to_owned())
    })
}
