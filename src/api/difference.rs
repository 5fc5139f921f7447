//! What a plan that is not published yet would change.

use crate::domain::zone::Instant;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::{self, Plan};
use crate::ledger::plan_stage::PlanStage;
use crate::ledger::rights::{self, Level};
use crate::ledger::together;
use crate::ledger::window::Reading;
use crate::postgres::cells::Writer;
use crate::postgres::composite::{Composite, composite, value};
use crate::postgres::digest::{Digest, Digester};
use crate::postgres::executor::Sink;
use crate::postgres::scratch::Scratch;
use crate::postgres::segment::{Measure, Segment};
use crate::postgres::table::Table;
use crate::postgres::{quote, role, settings, spi, target};
use pgrx::prelude::*;
use pgrx::{FromDatum, JsonB, pg_sys};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

#[pg_extern(sql = false)]
fn backfill_diff(plan_id: Option<i64>) -> SetOfIterator<'static, Composite> {
    SetOfIterator::new(answer(settings::pinned(|| diff(plan::require_id(plan_id)?))))
}

fn diff(plan_id: i64) -> Result<Vec<Composite>> {
    let plan = Plan::read(Reading::Stable, plan_id)?;
    let pipeline = Pipeline::by_id(plan.pipeline_id);
    rights::require(&pipeline, Level::Read)?;
    let stage = PlanStage::of(Reading::Stable, &plan)?.relation;
    let target = pipeline.target.expect("a plan that is published together has a target");
    require_sight(target)?;
    let windows = together::shown(&plan);
    let scratch = Scratch::new();
    let mut total = Difference::default();
    let mut rows = Vec::with_capacity(windows.len() + 1);
    for window in &windows {
        pgrx::check_for_interrupts!();
        let difference = scratch.run(|| Difference::of(&pipeline, &plan, stage, window.start))?;
        rows.push(difference.row(Some((pipeline.key_of(window.start), window.start))));
        total.add(difference);
    }
    rows.push(total.row(None));
    Ok(rows)
}

/// Whoever sees rows of the target in the answer may see all of them (42501).
fn require_sight(target: pg_sys::Oid) -> Result<()> {
    target::require_read(target, role::caller())?;
    let hidden = unsafe { pg_sys::check_enable_rls(target, role::caller(), true) };
    if hidden != pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32 {
        return Ok(());
    }
    Err(Error::new(Code::Forbidden, "row-level security hides rows of the target from you")
        .detail("The answer compares all rows, and shows some.")
        .hint("Ask the owner of the table, or a role with BYPASSRLS."))
}

/// How many rows of each side are shown.
const SHOWN: usize = 5;

/// How many characters of a value are.
const LONGEST: usize = 200;

/// What a column holds: how many NULLs, and the sum of a number.
#[derive(Default, Clone)]
struct Column {
    nulls: i64,
    sum: Option<String>,
    is_number: bool,
}

/// A window, or several, as they are now and as they would be.
#[derive(Default)]
struct Difference {
    changed: bool,
    now: Measure,
    new: Measure,
    /// Rows of one side that the other has not, each as often as it is missing there.
    gone: u64,
    fresh: u64,
    columns: Vec<(String, [Column; 2])>,
    sample: Vec<Value>,
}

impl Difference {
    fn of(pipeline: &Pipeline, plan: &Plan, stage: pg_sys::Oid, start: Instant) -> Result<Self> {
        let position = pipeline.position_of(start);
        let end = pipeline.grid.boundary(position + 1).expect("windows of the ledger are on the grid");
        let open = |relation| pipeline.segment(Table::look_only(relation)?, [start, end]);
        let (new, now) = (open(stage)?, open(pipeline.target.unwrap_or_default())?);
        let names = together::columns(&new, &now, plan.id)?;
        // A row that only other code built is no other row.
        let stamp = pipeline.stamp_column.as_deref();
        let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| stamp != Some(*name)).collect();
        let mut difference =
            Self { now: now.measure_of(&names), new: new.measure_of(&names), ..Self::default() };
        let [before, after] = [&now, &new].map(|side| sums(side, &names));
        difference.columns = names
            .iter()
            .zip(before.into_iter().zip(after))
            .map(|(name, (before, after))| ((*name).to_owned(), [before, after]))
            .collect();
        difference.changed = difference.now != difference.new;
        if difference.changed {
            difference.compare(&now, &new, &names);
        }
        Ok(difference)
    }

    /// Counts the rows that differ, as multisets.
    fn compare(&mut self, now: &Segment, new: &Segment, names: &[&str]) {
        let mut counting = Counting { digester: None, left: HashMap::new() };
        new.look_at(names, &mut counting);
        let mut left = counting.left;
        let mut gone = Sampling::new("now", &mut left);
        now.look_at(names, &mut gone);
        self.gone = gone.found;
        self.sample = gone.sample;
        let mut fresh = Sampling::of_what_is_left("new", &mut left);
        new.look_at(names, &mut fresh);
        self.fresh = fresh.found;
        self.sample.append(&mut fresh.sample);
    }

    fn add(&mut self, other: Self) {
        let add = |to: &mut Measure, from: Measure| {
            to.rows += from.rows;
            to.digest += from.digest;
        };
        self.changed |= other.changed;
        add(&mut self.now, other.now);
        add(&mut self.new, other.new);
        self.gone += other.gone;
        self.fresh += other.fresh;
        self.sample.extend(other.sample);
        self.sample.truncate(2 * SHOWN);
        if self.columns.is_empty() {
            self.columns = other.columns;
            return;
        }
        for ((_, to), (_, from)) in self.columns.iter_mut().zip(other.columns) {
            for (to, from) in to.iter_mut().zip(from) {
                to.nulls += from.nulls;
                to.sum = added(to.sum.take(), from.sum);
            }
        }
    }

    fn row(&self, window: Option<(String, Instant)>) -> Composite {
        let (key, start) = window.unzip();
        let columns: Map<String, Value> = self
            .columns
            .iter()
            .map(|(name, [now, new])| (name.clone(), json!({"now": now.json(), "new": new.json()})))
            .collect();
        composite(
            "difference",
            vec![
                key.and_then(value),
                start.and_then(value),
                value(self.changed),
                value(self.now.rows as i64),
                value(self.new.rows as i64),
                value(self.gone as i64),
                value(self.fresh as i64),
                value(self.now.digest.to_string()),
                value(self.new.digest.to_string()),
                value(JsonB(Value::Object(columns))),
                value(JsonB(Value::Array(self.sample.clone()))),
            ],
        )
    }
}

impl Column {
    fn json(&self) -> Value {
        if !self.is_number {
            return json!({"nulls": self.nulls});
        }
        // A number keeps all its digits; NaN and the infinities are none in JSON.
        let number =
            |text: &String| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()));
        json!({"nulls": self.nulls, "sum": self.sum.as_ref().map(number)})
    }
}

const ADD: &str = "SELECT pg_catalog.sum(v.sum)::pg_catalog.text
    FROM pg_catalog.unnest($1::pg_catalog.numeric[]) v (sum)";

/// The sum of two numbers as text; nothing adds nothing.
fn added(one: Option<String>, other: Option<String>) -> Option<String> {
    let both: Vec<String> = [one, other].into_iter().flatten().collect();
    if both.len() < 2 {
        return both.into_iter().next();
    }
    let both = format!("{{{}}}", both.join(","));
    role::as_ledger(|| spi::read(ADD, &[both.as_str().into()], |row| row.get(1))).into_iter().next().flatten()
}

const NUMBERS: [pg_sys::Oid; 6] = [
    pg_sys::INT2OID,
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::NUMERICOID,
    pg_sys::FLOAT4OID,
    pg_sys::FLOAT8OID,
];

/// What the columns of a slice hold.
fn sums(side: &Segment, names: &[&str]) -> Vec<Column> {
    let is_number = |name: &&&str| {
        let column = side.table.columns.iter().find(|column| column.name == **name);
        column.is_some_and(|column| NUMBERS.contains(&unsafe { pg_sys::getBaseType(column.type_oid) }))
    };
    let mut texts = vec![];
    for name in names {
        let column = format!("t.{}", quote::identifier(name));
        texts.push(format!(
            "(pg_catalog.count(*) OPERATOR(pg_catalog.-) pg_catalog.count({column}))::pg_catalog.text"
        ));
        if is_number(&name) {
            // As numeric, so that no sum is too large.
            texts.push(format!("pg_catalog.sum({column}::pg_catalog.numeric)::pg_catalog.text"));
        }
    }
    let mut answer = Texts(vec![]);
    side.summarize(&format!("ARRAY[{}]", texts.join(", ")), &mut answer);
    let mut texts = answer.0.into_iter();
    let mut next = || texts.next().flatten();
    names
        .iter()
        .map(|name| Column {
            nulls: next().and_then(|count| count.parse().ok()).unwrap_or(0),
            is_number: is_number(&name),
            sum: is_number(&name).then(&mut next).flatten(),
        })
        .collect()
}

/// One array of texts.
struct Texts(Vec<Option<String>>);

impl Sink for Texts {
    fn start(&mut self, _shape: pg_sys::TupleDesc) {}

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let datum = unsafe { *(*slot).tts_values };
        self.0 = unsafe { FromDatum::from_datum(datum, false) }.unwrap_or_default();
    }
}

/// The text of a value, as far as it is shown.
fn shown(cell: Option<String>) -> Option<String> {
    cell.map(|text| match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    })
}

/// How often each row is there.
struct Counting {
    digester: Option<Digester>,
    left: HashMap<Digest, u64>,
}

impl Sink for Counting {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        self.digester = Some(Digester::new(shape));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let digester = self.digester.as_mut().expect("the shape came first");
        *self.left.entry(unsafe { digester.of_row(slot) }).or_default() += 1;
    }
}

/// Takes the rows of one side from those of the other, and shows some that the other has not.
struct Sampling<'s> {
    side: &'static str,
    left: &'s mut HashMap<Digest, u64>,
    /// Rows that are left on the other side are those to be shown.
    wants_left: bool,
    made: Option<(Digester, Writer, Vec<String>)>,
    found: u64,
    sample: Vec<Value>,
}

impl<'s> Sampling<'s> {
    fn new(side: &'static str, left: &'s mut HashMap<Digest, u64>) -> Self {
        Self { side, left, wants_left: false, made: None, found: 0, sample: vec![] }
    }

    fn of_what_is_left(side: &'static str, left: &'s mut HashMap<Digest, u64>) -> Self {
        Self { wants_left: true, ..Self::new(side, left) }
    }
}

impl Sink for Sampling<'_> {
    fn start(&mut self, shape: pg_sys::TupleDesc) {
        let described = unsafe { pgrx::PgTupleDesc::from_pg_unchecked(shape) };
        let names = described.iter().map(|column| column.name().to_owned()).collect();
        self.made = Some((Digester::new(shape), Writer::new(shape), names));
    }

    fn row(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let (digester, writer, names) = self.made.as_mut().expect("the shape came first");
        let left = self.left.get_mut(&unsafe { digester.of_row(slot) }).filter(|left| **left > 0);
        let was_left = left.map(|left| *left -= 1).is_some();
        if was_left != self.wants_left {
            return;
        }
        self.found += 1;
        if self.sample.len() < SHOWN {
            let cells: Vec<Option<String>> =
                unsafe { FromDatum::from_datum(writer.cells(slot).0, false) }.unwrap_or_default();
            let row: Map<String, Value> =
                names.iter().cloned().zip(cells.into_iter().map(|cell| shown(cell).into())).collect();
            self.sample.push(json!({ (self.side): row }));
        }
    }
}
