//! The stage of a plan that publishes all its windows at once: one table for all of them, made at approval.
//!
//! ```text
//!   approve ─▶ staging ─▶ (dropped by backfill_publish)
//!                 └─ the plan was cancelled, published or reverted while somebody read it ─▶ dead ─▶ (swept)
//! ```
//!
//! It has the target's columns, and the slice column says which window a row belongs to, as it does in the target: so a slice
//! is put into it as it is put into a target, and read from it as it is read from there. Only the ledger writes it: nothing of
//! a user is run by that, since the rows come as they were built. What a default adds to them is added before, in a table of its
//! own and by whoever wrote the query.

use crate::error::{Code, Error, Result};
use crate::ledger::pipeline::Pipeline;
use crate::ledger::plan::Plan;
use crate::ledger::run::Run;
use crate::ledger::source::{Built, Source};
use crate::ledger::stage::{self, Purpose};
use crate::ledger::window::Reading;
use crate::postgres::rows::Rows;
use crate::postgres::segment::Segment;
use crate::postgres::table::{self, Table};
use crate::postgres::{executor, quote, role, spi};
use pgrx::pg_sys;

/// The stage of a plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanStage {
    plan_id: i64,
    pub relation: pg_sys::Oid,
}

const INSERT: &str = "INSERT INTO backfill.plan_stage_data (plan_id, pipeline_id, relation)
    VALUES ($1, $2, $3::pg_catalog.regclass)";

const FIND: &str = "SELECT relation::pg_catalog.oid FROM backfill.plan_stage_data WHERE plan_id = $1";

const DELETE: &str = "DELETE FROM backfill.plan_stage_data WHERE plan_id = $1";

const DEAD: &str = "SELECT s.plan_id, s.relation::pg_catalog.oid FROM backfill.plan_stage_data s
    JOIN backfill.plan_data pl ON pl.plan_id = s.plan_id
    WHERE pl.state NOT IN ('approved', 'paused') ORDER BY s.plan_id";

impl PlanStage {
    /// Makes the stage of a plan that is being approved.
    pub fn create(plan: &Plan, pipeline: &Pipeline) -> Result<()> {
        let (Some(target), Some(column)) = (pipeline.target, pipeline.slice_column.as_deref()) else {
            unreachable!("a plan that is published together has a target");
        };
        let table = Table::open(target)?;
        if !table.writable().contains(&column) {
            return Err(Error::new(
                Code::Undefined,
                format!("{} has no column \"{column}\" that can be given values", table.shown()),
            )
            .detail("It says which window a row belongs to.")
            .hint("Name the column that holds the time of a row as slice_column with pipeline_alter()."));
        }
        role::as_ledger(|| {
            let relation = stage::make(&format!("plan_stage_{}", plan.id), target, Purpose::Publishing);
            let index =
                format!("CREATE INDEX ON {} ({})", quote::relation(relation), quote::identifier(column));
            executor::write(&index, None, None);
            spi::run(INSERT, &[plan.id.into(), pipeline.id.into(), relation.into()]);
            if role::find(&pipeline.owner).is_some() {
                stage::grant(relation, "SELECT", &pipeline.owner);
            }
        });
        Ok(())
    }

    /// The stage of a plan (55000 where it has none).
    pub fn of(reading: Reading, plan: &Plan) -> Result<Self> {
        let args = [plan.id.into()];
        let decode = |row: &spi::Row| row.at::<pg_sys::Oid>(1);
        let found = role::as_ledger(|| match reading {
            Reading::Stable => spi::read(FIND, &args, decode),
            Reading::Deciding => spi::latest(FIND, &args, decode),
        });
        let relation = found.into_iter().next().filter(|relation| table::exists(*relation));
        relation.map(|relation| Self { plan_id: plan.id, relation }).ok_or_else(|| {
            let why = match plan.together {
                true => format!("Its state is \"{}\".", plan.state),
                false if plan.verifies => "It is a verification: it compares, and publishes nothing.".to_owned(),
                false => "Its windows are published each by itself.".to_owned(),
            };
            Error::new(Code::NotInState, format!("plan {} has nothing staged", plan.id)).detail(why).hint(
                "A plan with publish => 'together' stages its windows, from its approval until it is published or cancelled.",
            )
        })
    }

    /// The part of the stage that a window owns, locked.
    pub fn open(relation: pg_sys::Oid, run: &Run) -> Result<Segment> {
        if !table::exists(relation) {
            return Err(Error::new(Code::NotInState, format!("the stage of plan {} is gone", run.plan_id))
                .detail("Somebody dropped the table.")
                .hint(format!(
                    "SELECT backfill_cancel({}, 'why'), and plan the windows again.",
                    run.plan_id
                )));
        }
        run.pipeline.segment(Table::open(relation)?, [run.window_start, run.window_end])
    }

    /// Drops it if nobody uses it; else it is left to a sweep.
    pub fn drop_if_idle(self) -> bool {
        role::as_ledger(|| {
            stage::drop_if_idle(self.relation, || {
                spi::run(DELETE, &[self.plan_id.into()]);
                executor::write(&format!("DROP TABLE {}", quote::relation(self.relation)), None, None);
            })
        })
    }
}

/// The new rows with the values of columns that they do not give: the defaults of the target, as whoever wrote the query.
pub fn completed(run: &Run, stage: &Segment, source: &Source, built: Built) -> Result<Built> {
    let all = stage.table.writable();
    let (given, Some(target)) = (built.columns(), run.pipeline.target) else { return Ok(built) };
    if given.len() == all.len() {
        return Ok(built);
    }
    let relation =
        role::as_ledger(|| stage::make(&format!("defaults_{}", run.token), target, Purpose::Loading));
    let name = quote::relation(relation);
    stage::grant(relation, "INSERT", &role::name(source.author.role()));
    source.run(run, || table::insert(&name, &given, built.rows.batch()));
    let whole = PlanStage::open(relation, run)?;
    let place = all.iter().position(|name| *name == whole.column).expect("a stage has the slice column");
    let mut rows = Rows::new(whole.bounds, place);
    whole.look_at(&all, &mut rows);
    role::as_ledger(|| executor::write(&format!("DROP TABLE {name}"), None, None));
    Ok(Built::new(all.iter().map(|name| (*name).to_owned()).collect(), rows))
}

/// Drops stages of plans that need them no more, at most so many; says how many are gone, and how many are left.
pub fn sweep(at_most: usize) -> (i64, i64) {
    let dead = role::as_ledger(|| {
        spi::latest(DEAD, &[], |row| PlanStage { plan_id: row.at(1), relation: row.at(2) })
    });
    let dropped = dead.iter().filter(|stage| stage.drop_if_idle()).take(at_most).count();
    (dropped as i64, (dead.len() - dropped) as i64)
}
