//! What must be known of a table before rows are written to it.

use crate::error::{Code, Error, Result, faithful};
use crate::postgres::rows::Rows;
use crate::postgres::{executor, quote, role, spi};
use pgrx::pg_sys;

/// A column that a row may have.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub type_oid: pg_sys::Oid,
    /// Whether its value always comes from the table itself: GENERATED ALWAYS, as a value or as an identity.
    pub generated: bool,
}

/// A plain or partitioned table, locked as writing to it does until the transaction ends.
pub struct Table {
    pub oid: pg_sys::Oid,
    name: [String; 2],
    pub owner: pg_sys::Oid,
    pub columns: Vec<Column>,
    /// Whether a trigger that is not the extension's may change, swallow or add rows.
    pub watched: bool,
}

const RELATION: &str = "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, c.relowner,
        c.relkind::pg_catalog.text,
        EXISTS (SELECT FROM pg_catalog.pg_trigger t
            WHERE NOT t.tgisinternal AND t.tgfoid <> pg_catalog.to_regproc('backfill.fence_guard') AND (t.tgrelid = c.oid
               OR t.tgrelid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p)))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = $1";

const COLUMNS: &str = "SELECT a.attname::pg_catalog.text, a.atttypid,
        a.attgenerated <> '' OR a.attidentity = 'a'
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

/// The columns of any relation.
pub fn columns(relation: pg_sys::Oid) -> Vec<Column> {
    catalog(COLUMNS, relation, |row| Column { name: row.at(1), type_oid: row.at(2), generated: row.at(3) })
}

fn catalog<R>(sql: &'static str, oid: pg_sys::Oid, decode: impl FnMut(&spi::Row) -> R) -> Vec<R> {
    role::as_ledger(|| spi::latest(sql, &[oid.into()], decode))
}

impl Table {
    /// Locks the table and reads it. Views and foreign tables are refused (0A000): what they hold cannot be
    /// counted on to be theirs alone.
    pub fn open(oid: pg_sys::Oid) -> Result<Self> {
        unsafe { pg_sys::LockRelationOid(oid, pg_sys::RowExclusiveLock as i32) };
        let found = catalog(RELATION, oid, |row| {
            let table = Self {
                oid,
                name: [row.at(1), row.at(2)],
                owner: row.at(3),
                columns: Vec::new(),
                watched: row.at(5),
            };
            (table, row.at::<String>(4))
        });
        let Some((table, kind)) = found.into_iter().next() else {
            return Err(Error::new(Code::Undefined, "the target table does not exist any more")
                .detail(format!("It was the relation with the number {}.", u32::from(oid)))
                .hint("Give the pipeline an existing table with pipeline_alter()."));
        };
        if kind != "r" && kind != "p" {
            return Err(Error::new(Code::Unsupported, format!("{} is not a table", table.shown()))
                .detail("Slices are replaced in plain and partitioned tables.")
                .hint("Give the pipeline a table as its target."));
        }
        Ok(Self { columns: columns(oid), ..table })
    }

    /// The name with its schema, quoted.
    pub fn shown(&self) -> String {
        format!("{}.{}", quote::identifier(&self.name[0]), quote::identifier(&self.name[1]))
    }

    /// The columns that a statement may give a value, in their order.
    pub fn writable(&self) -> Vec<&str> {
        self.columns.iter().filter(|c| !c.generated).map(|c| c.name.as_str()).collect()
    }

    /// The table for a statement that the parser has yet to analyse.
    pub fn range_var(&self) -> *mut pg_sys::RangeVar {
        let [schema, table] = self.name.each_ref().map(|name| quote::c_string(name));
        unsafe { pg_sys::makeRangeVar(pg_sys::pstrdup(schema.as_ptr()), pg_sys::pstrdup(table.as_ptr()), -1) }
    }
}

/// Identifiers, quoted, with commas between them.
pub fn list(columns: &[&str]) -> String {
    columns.iter().map(|name| quote::identifier(name)).collect::<Vec<_>>().join(", ")
}

/// Inserts new rows, as whoever calls; says how many.
pub fn insert(table: &str, columns: &[&str], rows: &Rows) -> u64 {
    let new = executor::NEW_ROWS;
    let sql = format!("INSERT INTO {table} ({}) SELECT * FROM {new}", list(columns));
    faithful(|| executor::write(&sql, None, Some(rows)))
}
