//! How a slice is exchanged for new rows.

use crate::error::{Code, Error, Result};
use crate::postgres::comparison::Comparison;
use crate::postgres::rows::Rows;
use crate::postgres::segment::Segment;
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
}

impl Strategy {
    /// The strategy of that name.
    pub fn named(name: Option<&str>) -> Result<Self> {
        match name.unwrap_or("auto") {
            "auto" => Ok(Self::Auto),
            "rows" => Ok(Self::Rows),
            "diff" => Ok(Self::Diff),
            "swap" => Err(Error::new(
                Code::Unsupported,
                "strategy \"swap\" is not available in this version",
            )
            .detail("Slices are replaced by DELETE and INSERT (\"rows\"), or where they differ (\"diff\").")
            .hint("Leave strategy out, or give 'auto', 'rows' or 'diff'.")),
            name => Err(Error::new(Code::InvalidParameter, format!("strategy \"{name}\" is unknown"))
                .detail("The strategies are \"auto\", \"rows\" and \"diff\".")
                .hint("Leave strategy out.")),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rows => "rows",
            Self::Diff => "diff",
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
        rows: &Rows,
        writer: pg_sys::Oid,
    ) -> Result<Option<Comparison>> {
        let may = |right| target::may(writer, target.table.oid, right);
        let plain = !target.may_differ(columns);
        // Only a whole table's SELECT covers the places of its rows.
        let comparable = plain && target.table.local && may(pg_sys::ACL_SELECT) && Comparison::fits(rows);
        match self {
            Self::Rows => return Ok(None),
            Self::Auto if !comparable => return Ok(None),
            Self::Diff if !target.table.local => {
                return Err(Error::new(
                    Code::Unsupported,
                    format!("strategy \"diff\" is not available for {}", target.table.shown()),
                )
                .detail("It, or a partition of it, is a foreign table or has another access method than heap: nothing says which row is which.")
                .hint("Leave strategy out, or give 'rows'."));
            }
            Self::Auto => (),
            Self::Diff => target::require_read(target.table.oid, writer)?,
        }
        // What a trigger or a default makes of a row that is inserted, an UPDATE may leave undone.
        let by_key = plain && may(pg_sys::ACL_UPDATE);
        let key = by_key.then(|| target.table.key()).flatten();
        // What the table generates, the new rows do not have.
        let key = key.filter(|key| key.iter().all(|name| columns.contains(&name.as_str())));
        Ok(Comparison::of(target, columns, rows, key.as_deref())
            .filter(|found| self == Self::Diff || found.pays() || target.table.is_referenced()))
    }
}
