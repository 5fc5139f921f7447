//! How a slice is exchanged for new rows.

use crate::error::{Code, Error, Result};
use crate::postgres::comparison::{Comparison, Outcome};
use crate::postgres::quote;
use crate::postgres::rows::Rows;
use crate::postgres::segment::Segment;
use crate::postgres::table::Referrer;
use crate::postgres::target;
use pgrx::pg_sys;

/// How a slice is exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Whichever of the others takes less.
    Auto,
    /// All rows are deleted and inserted.
    Rows,
    /// The rows that differ are written.
    Diff,
    /// A partition gets other storage, see `ledger::swap`.
    Swap,
}

impl Strategy {
    /// The strategy of that name.
    pub fn named(name: Option<&str>) -> Result<Self> {
        match name.unwrap_or("auto") {
            "auto" => Ok(Self::Auto),
            "rows" => Ok(Self::Rows),
            "diff" => Ok(Self::Diff),
            "swap" => Ok(Self::Swap),
            name => Err(Error::new(Code::InvalidParameter, format!("strategy \"{name}\" is unknown"))
                .detail("The strategies are \"auto\", \"rows\", \"diff\" and \"swap\".")
                .hint("Leave strategy out.")),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rows => "rows",
            Self::Diff => "diff",
            Self::Swap => "swap",
        }
    }

    /// What `auto` comes to.
    pub fn or(self, picked: Self) -> Self {
        if self == Self::Auto { picked } else { self }
    }

    /// The comparison to write by; `None` where all rows are to be written.
    pub fn compare(
        self,
        target: &Segment,
        columns: &[&str],
        built: &Rows,
        writer: pg_sys::Oid,
    ) -> Result<Option<Comparison>> {
        if self == Self::Rows {
            return Ok(None);
        }
        let may = |right| target::may(writer, target.table.oid, right);
        let plain = !target.may_differ(columns);
        let referrer = target.table.referrer();
        let acting = referrer.as_ref().filter(|referrer| referrer.acts);
        // Without a look, or where it tells too little, all rows are deleted: no foreign key may act on that.
        let rows = |why: &str| match acting {
            Some(referrer) if target.count() > 0 => Err(loses(target, referrer, why)),
            _ => Ok(None),
        };
        match self {
            Self::Diff if !target.table.local => {
                return Err(Error::new(
                    Code::Unsupported,
                    format!("strategy \"diff\" is not available for {}", target.table.shown()),
                )
                .detail("It, or a partition of it, is a foreign table or has another access method than heap: nothing says which row is which.")
                .hint("Leave strategy out, or give 'rows'."));
            }
            Self::Diff => target::require_read(target.table.oid, writer)?,
            _ if !target.table.local => {
                return rows("a partition is no heap, where nothing says which row is which");
            }
            // Only a whole table's SELECT covers the places of its rows.
            _ if !may(pg_sys::ACL_SELECT) => return rows("whoever writes has no SELECT on the whole table"),
            _ if !plain && acting.is_none() => return Ok(None),
            _ => (),
        }
        // What a trigger or a default makes of a row that is inserted, an UPDATE may leave undone.
        let by_key = plain && may(pg_sys::ACL_UPDATE);
        let key = by_key.then(|| target.table.key()).flatten();
        // What the table generates, the new rows do not have.
        let key = key.filter(|key| key.iter().all(|name| columns.contains(&name.as_str())));
        let found = match Comparison::of(target, columns, built, key.as_deref(), acting.is_some()) {
            Outcome::Empty => return Ok(None),
            Outcome::TooLarge if self == Self::Diff => return Err(too_large(target)),
            Outcome::TooLarge => {
                return rows("its rows do not fit into maintenance_work_mem, at 128 bytes each");
            }
            Outcome::Found(found) => found,
        };
        if self == Self::Diff || acting.is_some() {
            if self == Self::Auto && found.may_repeat() {
                return rows(
                    "changed rows cannot be updated: that takes exactly one unique index, on NOT NULL columns that the new rows give, all columns, UPDATE on the table, no trigger and no row-level security",
                );
            }
            return Ok(Some(found));
        }
        Ok(Some(found).filter(|found| found.pays() || referrer.is_some()))
    }
}

/// Rows that come again would be deleted, which a foreign key acts on (55000).
fn loses(target: &Segment, referrer: &Referrer, why: &str) -> Error {
    let table = quote::relation(referrer.table);
    Error::new(
        Code::NotInState,
        format!("foreign key \"{}\" of {table} would act on rows that come again", referrer.name),
    )
    .detail(format!(
        "All rows of the slice would be deleted from {} and inserted, and the foreign key would delete or change the rows of {table} that refer to them: {why}.",
        target.table.shown()
    ))
    .hint("Call replace_partition() with strategy => 'rows' if the foreign key shall act, or make it NO ACTION.")
}

/// The rows cannot be compared in memory (54000).
fn too_large(target: &Segment) -> Error {
    Error::new(Code::TooMany, format!("the slice in {} is too large to compare", target.table.shown()))
        .detail("Its rows do not fit into maintenance_work_mem, at 128 bytes each.")
        .hint("SET maintenance_work_mem to more, or give strategy => 'rows'.")
}
