//! Protecting a target from whoever writes to it without the fence of a window.
//!
//! A row trigger looks at each row after it was written: what other triggers made of it, in the partition that it is
//! in now, with its generated columns; rows that ON CONFLICT or MERGE left alone are not looked at. A trigger before the row
//! would see none of this, and would keep COPY from writing rows many at a time. On a partitioned table it is cloned
//! to partitions, also to those that come later. A statement trigger refuses TRUNCATE; PostgreSQL does not clone those.
//!
//! All that is kept is the triggers, the mode as their argument, so that it is dumped with the table.

use crate::error::{Code, Error, Result, answer, faithful, raise};
use crate::ledger::fenced::{self, Sight};
use crate::ledger::gate;
use crate::ledger::pipeline::{self, Pipeline};
use crate::ledger::rights::{self, Level};
use crate::ledger::unfenced::{self, Write};
use crate::postgres::table::with_partitions;
use crate::postgres::trigger::{Firing, Operation, Row};
use crate::postgres::{executor, quote, role, session, settings, spi};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

/// The names of the triggers: for rows, and for TRUNCATE.
const TRIGGERS: [&str; 2] = ["backfill_fence", "backfill_fence_truncate"];

/// How many fenced windows an error names.
const SHOWN: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Refuse,
    Log,
}

impl Mode {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "refuse" => Some(Self::Refuse),
            "log" => Some(Self::Log),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Log => "log",
        }
    }
}

#[pg_extern(sql = false)]
fn fence_protect(target: Option<pg_sys::Oid>, mode: Option<String>) -> String {
    answer(protect(target, mode.as_deref().unwrap_or(Mode::Refuse.name())))
}

#[pg_extern(sql = false)]
fn fence_unprotect(target: Option<pg_sys::Oid>) -> String {
    answer(unprotect(target))
}

/// A table that can have triggers.
struct Table {
    oid: pg_sys::Oid,
    kind: String,
    owner: pg_sys::Oid,
    /// Whether other tables inherit from it, other than as its partitions.
    has_heirs: bool,
}

const TABLE: &str = "SELECT c.relkind::pg_catalog.text, c.relowner,
        c.relkind <> 'p' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)
    FROM pg_catalog.pg_class c WHERE c.oid = $1";

/// A table and its partitions, each with how many of its triggers are there and enabled. Foreign partitions are left
/// out: PostgreSQL does not truncate them unless they are asked for.
const TREE: &str = concat!(
    "SELECT c.oid, (SELECT pg_catalog.count(*) FROM pg_catalog.pg_trigger t
                    WHERE t.tgrelid = c.oid AND t.tgenabled IN ('O', 'A')
                      AND t.tgfoid = pg_catalog.to_regproc('backfill.fence_guard'))
     FROM ",
    with_partitions!("$1"),
    " r JOIN pg_catalog.pg_class c ON c.oid = r.relid AND c.relkind IN ('r', 'p') ORDER BY c.oid <> $1, 1"
);

/// The triggers on a table and its partitions, each with its table, its mode, and whether it belongs to a partitioned
/// table above.
const GUARDS: &str = concat!(
    "SELECT t.tgrelid, t.tgname::pg_catalog.text,
        pg_catalog.convert_from(pg_catalog.substr(t.tgargs, 1, pg_catalog.octet_length(t.tgargs) - 1), 'UTF8'),
        t.tgparentid <> 0
    FROM pg_catalog.pg_trigger t
    WHERE t.tgfoid = pg_catalog.to_regproc('backfill.fence_guard') AND t.tgrelid IN ",
    with_partitions!("$1")
);

/// Somebody else's trigger of a name that is needed.
const NAMESAKE: &str = concat!(
    "SELECT t.tgrelid, t.tgname::pg_catalog.text FROM pg_catalog.pg_trigger t
    WHERE t.tgname = ANY ($2) AND t.tgfoid <> pg_catalog.to_regproc('backfill.fence_guard') AND t.tgrelid IN ",
    with_partitions!("$1"),
    " LIMIT 1"
);

struct Guard {
    table: pg_sys::Oid,
    name: String,
    mode: String,
    /// Whether it is the clone of one on a partitioned table.
    is_clone: bool,
}

fn guards(table: pg_sys::Oid) -> Vec<Guard> {
    role::as_ledger(|| {
        spi::latest_bulk(GUARDS, &[table.into()], |row| Guard {
            table: row.at(1),
            name: row.at(2),
            mode: row.at(3),
            is_clone: row.at(4),
        })
    })
}

impl Table {
    fn find(target: Option<pg_sys::Oid>) -> Result<Self> {
        let oid = target.ok_or_else(|| {
            Error::new(Code::NullValue, "target must not be NULL")
                .detail("It is the table whose writers are checked.")
                .hint("SELECT target FROM backfill.pipelines lists the targets of pipelines.")
        })?;
        let table = role::as_ledger(|| {
            spi::latest(TABLE, &[oid.into()], |row| Self {
                oid,
                kind: row.at(1),
                owner: row.at(2),
                has_heirs: row.at(3),
            })
        });
        table.into_iter().next().ok_or_else(|| {
            Error::new(Code::Undefined, format!("there is no table with the number {}", u32::from(oid)))
                .detail("The target was dropped.")
                .hint("SELECT target FROM backfill.pipelines lists the targets of pipelines.")
        })
    }

    fn shown(&self) -> String {
        quote::relation(self.oid)
    }

    /// Its triggers change what its owner may do too.
    fn require_ownership(&self) -> Result<()> {
        let caller = role::caller();
        if role::has_rights_of(caller, self.owner) {
            return Ok(());
        }
        let [caller, owner] = [caller, self.owner].map(role::name);
        Err(Error::new(Code::Forbidden, format!("must be owner of table {}", self.shown()))
            .detail(format!(
                "It belongs to \"{owner}\"; the caller is \"{caller}\". Protection binds its owner too."
            ))
            .hint(format!("Ask \"{owner}\" or a superuser to make the call.")))
    }

    fn require_protectable(&self, pipeline: &Pipeline) -> Result<()> {
        if self.has_heirs {
            return Err(Error::new(Code::Unsupported, format!("{} cannot be protected", self.shown()))
                .detail("Other tables inherit from it, and their rows are among its own; PostgreSQL fires its triggers for none of them.")
                .hint("Use a partitioned table, or move their rows."));
        }
        let column = pipeline.slice_column.as_deref().unwrap_or_default();
        let kind = unsafe {
            let place = pg_sys::get_attnum(self.oid, quote::c_string(column).as_ptr());
            if place > 0 { pg_sys::get_attgenerated(self.oid, place) as u8 } else { 0 }
        };
        if kind == b'v' {
            return Err(Error::new(Code::Unsupported, format!("{} cannot be protected", self.shown()))
                .detail(format!(
                    "Its slice column \"{column}\" is a virtual generated column, which triggers do not see."
                ))
                .hint("Make it STORED, or a column of its own."));
        }
        Ok(())
    }
}

/// The pipeline whose slices a table holds.
fn pipeline_of(table: &Table) -> Result<Pipeline> {
    let (own, above): (Vec<_>, Vec<_>) =
        pipeline::over(table.oid).into_iter().partition(|pipeline| pipeline.target == Some(table.oid));
    if let Some(pipeline) = own.into_iter().next() {
        return Ok(pipeline);
    }
    let name = table.shown();
    Err(match above.first() {
        Some(pipeline) => {
            let target = quote::relation(pipeline.target.unwrap_or(table.oid));
            Error::new(Code::InvalidParameter, format!("{name} is a part of a target"))
                .detail(format!("It is a partition of {target}, the target of pipeline \"{}\".", pipeline.name))
                .hint(format!("SELECT fence_protect({}) protects all its partitions.", quote::literal(&target)))
        }
        None => Error::new(Code::InvalidParameter, format!("{name} is the target of no pipeline"))
            .detail("Without a pipeline it has no windows, and nobody could pass the fence of one.")
            .hint("Name it as target in pipeline_define() or pipeline_alter() first; SELECT target FROM backfill.pipelines lists those that are."),
    })
}

/// Runs a statement about triggers as the caller.
fn define(sql: &str) {
    settings::with_patience(|| faithful(|| executor::write(sql, None, None)));
}

fn protect(target: Option<pg_sys::Oid>, mode: &str) -> Result<String> {
    session::require_writable()?;
    gate::require_none_closed("fence_protect")?;
    let mode = Mode::parse(mode).ok_or_else(|| {
        Error::new(Code::InvalidParameter, format!("mode \"{mode}\" is unknown"))
            .detail("The modes are \"refuse\" and \"log\".")
            .hint("Leave mode out to refuse writes without a fence.")
    })?;
    let table = Table::find(target)?;
    if !matches!(table.kind.as_str(), "r" | "p") {
        return Err(Error::new(Code::Unsupported, format!("{} cannot be protected", table.shown()))
            .detail("It is not a table, plain or partitioned: only those have triggers that see every row.")
            .hint("Name the table behind it."));
    }
    let pipeline = pipeline_of(&table)?;
    rights::require(&pipeline, Level::Owner)?;
    table.require_ownership()?;
    table.require_protectable(&pipeline)?;

    let before = guards(table.oid).into_iter().find(|guard| guard.table == table.oid).map(|guard| guard.mode);
    let is_same = before.as_deref() == Some(mode.name());
    let unguarded = tree(&table).iter().filter(|(_, triggers)| *triggers < TRIGGERS.len() as i64).count();
    if is_same && unguarded == 0 {
        return Ok("unchanged".to_owned());
    }
    let names = TRIGGERS.map(str::to_owned).to_vec();
    let namesake = role::as_ledger(|| {
        spi::latest(NAMESAKE, &[table.oid.into(), names.into()], |row| {
            (row.at::<pg_sys::Oid>(1), row.at::<String>(2))
        })
    });
    if let Some((on, name)) = namesake.first() {
        let on = quote::relation(*on);
        return Err(Error::new(Code::Duplicate, format!("{on} has a trigger \"{name}\" of its own"))
            .detail("A trigger of this name protects a table.")
            .hint(format!("ALTER TRIGGER {name} ON {on} RENAME TO ... makes room.")));
    }
    let call = format!("EXECUTE FUNCTION backfill.fence_guard({})", quote::literal(mode.name()));
    let [rows, truncate] = TRIGGERS;
    define(&format!(
        "CREATE OR REPLACE TRIGGER {rows} AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW {call}",
        table.shown()
    ));
    for (relation, _) in tree(&table) {
        define(&format!(
            "CREATE OR REPLACE TRIGGER {truncate} BEFORE TRUNCATE ON {} FOR EACH STATEMENT {call}",
            quote::relation(relation)
        ));
    }
    Ok(match before {
        None => "protected".to_owned(),
        Some(_) if is_same => format!("changed: {} tables were not guarded", unguarded),
        Some(_) => "changed: mode".to_owned(),
    })
}

fn tree(table: &Table) -> Vec<(pg_sys::Oid, i64)> {
    role::as_ledger(|| spi::latest_bulk(TREE, &[table.oid.into()], |row| (row.at(1), row.at(2))))
}

fn unprotect(target: Option<pg_sys::Oid>) -> Result<String> {
    session::require_writable()?;
    gate::require_none_closed("fence_unprotect")?;
    let table = Table::find(target)?;
    let guards = guards(table.oid);
    if guards.is_empty() {
        require_right_to_lift(&table)?;
        return Ok("not protected".to_owned());
    }
    if guards.iter().any(|guard| guard.table == table.oid && guard.is_clone) {
        return Err(Error::new(
            Code::InvalidParameter,
            format!("{} is protected as a partition", table.shown()),
        )
        .detail("Its triggers are those of a table that it is a partition of.")
        .hint(lifting(table.oid)));
    }
    require_right_to_lift(&table)?;
    for Guard { table, name, .. } in guards.iter().filter(|guard| !guard.is_clone) {
        define(&format!("DROP TRIGGER {} ON {}", quote::identifier(name), quote::relation(*table)));
    }
    Ok("unprotected".to_owned())
}

/// The pipeline may be gone, and the table's owner must be able to use it again.
fn require_right_to_lift(table: &Table) -> Result<()> {
    let pipelines = pipeline::over(table.oid);
    pipelines.iter().try_for_each(|pipeline| rights::require(pipeline, Level::Owner))?;
    table.require_ownership()
}

/// The function of both triggers.
#[pg_extern(sql = false)]
fn fence_guard(call: pg_sys::FunctionCallInfo) {
    // A function that is called gets its own call.
    let firing = unsafe { Firing::of(call) };
    match firing {
        Some(firing) if firing.is_after_row() => guard_row(firing),
        Some(firing) if firing.operation() == Operation::Truncate => guard_truncate(firing),
        _ => raise(
            Error::new(
                Code::Unsupported,
                "backfill.fence_guard() is a trigger for rows after they are written, and for TRUNCATE",
            )
            .detail("It was called as something else.")
            .hint("SELECT fence_protect('table') makes its triggers."),
        ),
    }
}

fn guard_row(firing: Firing) {
    let sight = fenced::sight(firing.relation());
    for (which, row) in ["old", "new"].into_iter().zip(firing.rows()) {
        let Some(row) = row else { continue };
        if !sight.holds(|place| row.value(place)) {
            if is_logged(firing) {
                return note(firing, &sight, 1);
            }
            raise(refusal(firing, &sight, which, row));
        }
    }
}

fn guard_truncate(firing: Firing) {
    // A partition that was detached keeps this trigger alone, and is a table like any other.
    if !firing.has_row_trigger() {
        return;
    }
    let relation = firing.relation();
    if is_logged(firing) {
        return note(firing, &fenced::sight(relation), 0);
    }
    let table = quote::relation(relation);
    raise(
        Error::new(Code::Unfenced, format!("TRUNCATE of {table} is refused"))
            .detail(format!(
                "{table} is protected: TRUNCATE takes the rows of all its windows at once, and transactions that began before would see it empty."
            ))
            .hint("SELECT * FROM replace_partition(token, query => ..., allow_shrink => 'why') empties a window; SELECT fence_unprotect(target) lifts the protection."),
    )
}

fn is_logged(firing: Firing) -> bool {
    firing.argument().to_bytes() == Mode::Log.name().as_bytes()
}

fn note(firing: Firing, sight: &Sight, rows: i64) {
    // Without a pipeline there is nobody whose target it is.
    if let Some(watch) = sight.watches.first() {
        let write = Write {
            pipeline_id: watch.pipeline.id,
            target: watch.pipeline.target.unwrap_or(firing.relation()),
            operation: firing.operation().name(),
            role: role::caller(),
        };
        unfenced::count(write, rows);
    }
}

/// Where the row trigger of a partition comes from.
const PROTECTED: &str = "SELECT t.tgrelid FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid IN (SELECT a.relid FROM pg_catalog.pg_partition_ancestors($1) a)
      AND t.tgfoid = 'backfill.fence_guard'::pg_catalog.regproc AND (t.tgtype & 1) = 1 AND t.tgparentid = 0";

/// The call that lifts the protection of a table, which may be a partition of the one that is protected.
fn lifting(relation: pg_sys::Oid) -> String {
    let protected = role::as_ledger(|| spi::latest(PROTECTED, &[relation.into()], |row| row.at(1)));
    let table = quote::relation(protected.first().copied().unwrap_or(relation));
    format!("SELECT fence_unprotect({}) lifts the protection.", quote::literal(&table))
}

/// The error of a row that is in no window which this transaction is fenced for.
fn refusal(firing: Firing, sight: &Sight, which: &str, row: Row) -> Error {
    let (operation, table) = (firing.operation().name(), quote::relation(firing.relation()));
    let error = Error::new(Code::Unfenced, format!("{operation} on {table} is not fenced"));
    let Some(watch) = sight.watches.first() else {
        return error
            .detail("The table is protected, and no pipeline has it as its target any more: nobody can pass the fence of a window of it.")
            .hint(lifting(firing.relation()));
    };
    let name = &watch.pipeline.name;
    let hint = format!(
        "Claim the window from pipeline \"{name}\" (backfill_claim), and in one transaction SELECT * FROM fence_check(token) and then write; or SELECT * FROM replace_partition(token, ...)."
    );
    let Some(place) = watch.place else {
        return error
            .detail(format!(
                "The table is protected, and has no column \"{}\", which tells the windows of pipeline \"{name}\" apart.",
                watch.column
            ))
            .hint("Name the column that holds the time of a row as slice_column with pipeline_alter().");
    };
    let (value, windows) = settings::for_query(&watch.pipeline.time_zone, "", || {
        let value = row.value(place).map_or("NULL".to_owned(), |value| unsafe {
            let (mut output, mut varlena) = (pg_sys::InvalidOid, false);
            let type_oid = pg_sys::get_atttype(firing.relation(), place);
            pg_sys::getTypeOutputInfo(type_oid, &mut output, &mut varlena);
            CStr::from_ptr(pg_sys::OidOutputFunctionCall(output, value)).to_string_lossy().into_owned()
        });
        let all = sight.watches.iter().flat_map(|watch| &watch.windows);
        (value, all.clone().take(SHOWN).map(|window| window.text()).collect::<Vec<_>>())
    });
    let count: usize = sight.watches.iter().map(|watch| watch.windows.len()).sum();
    let fenced = match count {
        0 => "none of this table".to_owned(),
        n if n > SHOWN => format!("{} and {} more", windows.join(", "), n - SHOWN),
        _ => windows.join(", "),
    };
    error
        .detail(format!(
            "\"{}\" of the {which} row is {value}; the windows that this transaction is fenced for: {fenced}.",
            watch.column
        ))
        .hint(hint)
}
