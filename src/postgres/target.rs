//! The table that a pipeline fills.

use crate::domain::bound::local_text;
use crate::domain::cadence::Cadence;
use crate::domain::calendar::Grid;
use crate::domain::timeline::Timeline;
use crate::domain::zone::Zone;
use crate::error::{Code, Error, Result};
use crate::postgres::zone::PgZone;
use crate::postgres::{quote, role, spi, table};
use pgrx::datum::DatumWithOid;
use pgrx::pg_sys;

const RESOLVE: &str = "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid";

/// The relation that a text names for the caller (42P01 from PostgreSQL's own words: here 42704).
pub fn resolve(name: &str) -> Result<pg_sys::Oid> {
    spi::first(RESOLVE, &[name.into()], |row| row.get::<pg_sys::Oid>(1)).flatten().ok_or_else(|| {
        Error::new(Code::Undefined, format!("relation \"{name}\" does not exist"))
            .detail("The target was not found on the caller's search_path.")
            .hint("Name the table with its schema.")
    })
}

const DESCRIBE: &str = "SELECT c.relkind::pg_catalog.text, c.relpersistence::pg_catalog.text
    FROM pg_catalog.pg_class c WHERE c.oid = $1";

const COLUMN: &str = "SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped";

fn oid(oid: pg_sys::Oid) -> DatumWithOid<'static> {
    oid.into()
}

fn invalid(message: String, detail: String, hint: &str) -> Error {
    Error::new(Code::InvalidParameter, message).detail(detail).hint(hint)
}

/// Checks that the pipeline can keep one slice a window in the table.
pub fn check(
    relation: Option<pg_sys::Oid>,
    column: Option<&str>,
    timeline: &Timeline<PgZone>,
    has_query: bool,
) -> Result<()> {
    let (relation, column) = match (relation, column) {
        (None, None) if has_query => {
            return Err(invalid(
                "a query needs a target".to_owned(),
                "query is given, target is not.".to_owned(),
                "Give target and slice_column too.",
            ));
        }
        (None, None) => return Ok(()),
        (Some(relation), Some(column)) => (relation, column),
        _ => {
            return Err(invalid(
                "target and slice_column go together".to_owned(),
                "One of them is NULL.".to_owned(),
                "slice_column is the column of the target that holds each row's time.",
            ));
        }
    };
    let name = quote::relation(relation);
    let (kind, persistence) =
        spi::first(DESCRIBE, &[oid(relation)], |row| (row.at::<String>(1), row.at::<String>(2))).ok_or_else(
            || {
                Error::new(Code::Undefined, format!("relation {name} does not exist"))
                    .detail("The target was dropped.")
                    .hint("Name an existing table.")
            },
        )?;
    if !table::holds_slices(&kind) {
        return Err(invalid(
            format!("{name} cannot be a target"),
            "A target is a table: plain, partitioned or foreign.".to_owned(),
            "Name the table behind it.",
        ));
    }
    if persistence == "t" {
        return Err(invalid(
            format!("{name} cannot be a target"),
            "It is a temporary table, which no other session sees.".to_owned(),
            "Name a permanent table.",
        ));
    }
    require_write(relation, role::caller())?;
    // The slice is looked up before it is deleted.
    require_read(relation, role::caller())?;
    let slice_type =
        spi::first(COLUMN, &[oid(relation), column.into()], |row| row.at(1)).ok_or_else(|| {
            Error::new(Code::Undefined, format!("column \"{column}\" of {name} does not exist"))
                .detail("slice_column must be a column of the target.")
                .hint("Name the column that holds each row's time.")
        })?;
    for stretch in timeline.stretches() {
        check_type(slice_type, &stretch.grid, column, &name)?;
    }
    if slice_type == pg_sys::TIMESTAMPTZOID {
        return Ok(());
    }
    for [before, after] in timeline.stretches().array_windows() {
        let shown = |zone: &PgZone| local_text(zone.to_local(after.since));
        let (old, new) = (shown(&before.grid.zone), shown(&after.grid.zone));
        if new < old {
            return Err(invalid(
                format!("column \"{column}\" of {name} cannot hold these windows"),
                format!(
                    "It has no time zone: at the switch the clock is set back from {old} to {new}, and windows of both grids would own the same rows."
                ),
                "Use a timestamptz column.",
            ));
        }
    }
    Ok(())
}

/// Checks that the code version of each row can be kept in a column of the table.
pub fn check_stamp(
    relation: Option<pg_sys::Oid>,
    slice_column: Option<&str>,
    stamp: Option<&str>,
) -> Result<()> {
    let Some(stamp) = stamp else { return Ok(()) };
    const HINT: &str = "Name a column of type text that the query does not fill.";
    let Some(relation) = relation else {
        return Err(invalid(
            "stamp_column needs a target".to_owned(),
            "stamp_column is given, target is not.".to_owned(),
            HINT,
        ));
    };
    let name = quote::relation(relation);
    let columns = table::columns(relation);
    let Some(column) = columns.iter().find(|column| column.name == stamp) else {
        return Err(Error::new(Code::Undefined, format!("column \"{stamp}\" of {name} does not exist"))
            .detail("stamp_column must be a column of the target.")
            .hint(HINT));
    };
    let why = if slice_column == Some(stamp) {
        "It is the slice column."
    } else if column.generated {
        "Its values come from the table itself."
    } else if (column.type_oid, column.modifier) != (pg_sys::TEXTOID, -1) {
        "A code version is a text of any length."
    } else {
        return Ok(());
    };
    Err(invalid(format!("column \"{stamp}\" of {name} cannot be the stamp"), why.to_owned(), HINT))
}

/// Checks that values of that type tell the windows of a grid apart.
fn check_type(slice_type: pg_sys::Oid, grid: &Grid<PgZone>, column: &str, name: &str) -> Result<()> {
    let calendar = matches!(grid.cadence, Cadence::Days(_) | Cadence::Months(_));
    let midnight = grid.anchor_local.time() == chrono::NaiveTime::MIN;
    match slice_type {
        pg_sys::TIMESTAMPTZOID => {}
        pg_sys::DATEOID if calendar && midnight => {}
        pg_sys::DATEOID => {
            return Err(invalid(
                format!("column \"{column}\" of {name} cannot hold these windows"),
                "It is a date: every boundary must be a local midnight.".to_owned(),
                "Use a cadence of days or months that starts at midnight, or a timestamptz column.",
            ));
        }
        pg_sys::TIMESTAMPOID if calendar || grid.zone.fixed_offset().is_some() => {}
        pg_sys::TIMESTAMPOID => {
            return Err(invalid(
                format!("column \"{column}\" of {name} cannot hold these windows"),
                "It is a timestamp without time zone: where the clock is set back, two windows of a time \
                 cadence would own the same rows."
                    .to_owned(),
                "Use a cadence of days or months, a zone without offset changes, or a timestamptz column.",
            ));
        }
        _ => {
            return Err(invalid(
                format!("column \"{column}\" of {name} cannot be a slice column"),
                "A slice column is of type timestamptz, timestamp or date.".to_owned(),
                "Name the column that holds each row's time.",
            ));
        }
    }
    Ok(())
}

/// Whoever fills a table must be allowed to write it (42501).
pub fn require_write(relation: pg_sys::Oid, who: pg_sys::Oid) -> Result<()> {
    require(relation, who, pg_sys::ACL_INSERT, "INSERT")?;
    require(relation, who, pg_sys::ACL_DELETE, "DELETE")
}

/// Whoever learns what a table holds must be allowed to read it (42501).
pub fn require_read(relation: pg_sys::Oid, who: pg_sys::Oid) -> Result<()> {
    require(relation, who, pg_sys::ACL_SELECT, "SELECT")
}

/// Whether a role has a right on a whole table.
#[allow(clippy::useless_conversion)] // A right is 32 bits wide on PostgreSQL 15 and 64 from 16 on.
pub fn may(who: pg_sys::Oid, relation: pg_sys::Oid, right: u32) -> bool {
    let answer = unsafe { pg_sys::pg_class_aclcheck(relation, who, right.into()) };
    answer == pg_sys::AclResult::ACLCHECK_OK
}

fn require(relation: pg_sys::Oid, who: pg_sys::Oid, right: u32, word: &str) -> Result<()> {
    if table::exists(relation) && may(who, relation, right) {
        return Ok(());
    }
    let name = quote::relation(relation);
    if !table::exists(relation) {
        return Err(Error::new(Code::Undefined, "the target table does not exist any more")
            .detail(format!("It was the relation with the number {name}."))
            .hint("SELECT pipeline_drop(...), and define it with another table."));
    }
    Err(Error::new(Code::Forbidden, format!("permission denied for table {name}"))
        .detail(format!(
            "Working on slices needs {word} on the whole table; \"{}\" lacks it.",
            role::name(who)
        ))
        .hint(format!("Its owner can run GRANT SELECT, INSERT, DELETE ON {name} TO ...")))
}

const RIVAL: &str = "SELECT p.name FROM backfill.pipeline_data p
    WHERE p.dropped_at IS NULL AND p.pipeline_id <> $2 AND p.target IS NOT NULL
      AND (p.target = $1
           OR p.target IN (SELECT a.relid FROM pg_catalog.pg_partition_ancestors($1) a)
           OR $1 IN (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(p.target) a))
    LIMIT 1";

/// A table, with its partitions and ancestors, belongs to at most one pipeline (42710).
pub fn claim(relation: pg_sys::Oid, pipeline_id: i64) -> Result<()> {
    let rival = role::as_ledger(|| {
        let args = [relation.into(), pipeline_id.into()];
        spi::first(RIVAL, &args, |row| row.at::<String>(1))
    });
    let Some(rival) = rival else { return Ok(()) };
    let name = quote::relation(relation);
    Err(Error::new(Code::Duplicate, format!("{name} is the target of pipeline \"{rival}\" already"))
        .detail("A table, with its partitions and ancestors, belongs to at most one pipeline: two would replace each other's rows.")
        .hint(format!("Choose another table, or drop or alter pipeline \"{rival}\".")))
}
