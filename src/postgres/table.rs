//! What must be known of a table before rows are written to it.

use crate::error::{Code, Error, Result, faithful};
use crate::postgres::batch::Batch;
use crate::postgres::{executor, quote, role, spi};
use pgrx::pg_sys;

/// A column that a row may have.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub type_oid: pg_sys::Oid,
    /// What narrows the type, such as the length of a `varchar`.
    pub modifier: i32,
    /// Whether its value always comes from the table itself: GENERATED ALWAYS, as a value or as an identity.
    pub generated: bool,
}

/// A plain or partitioned table, locked until the transaction ends.
pub struct Table {
    pub oid: pg_sys::Oid,
    name: [String; 2],
    pub owner: pg_sys::Oid,
    pub columns: Vec<Column>,
    /// Whether a trigger that is not the extension's may change, swallow or add rows.
    pub watched: bool,
    /// Whether all rows lie in heaps of this database: there a row's `ctid` stands for it until it is written.
    pub local: bool,
}

/// A foreign key of any table: it notices a row that is deleted, even if it comes again.
pub struct Referrer {
    pub name: String,
    pub table: pg_sys::Oid,
    /// Whether it then deletes or changes the rows that refer to it.
    pub acts: bool,
}

/// The SQL of a subquery: a table with its partitions (`relid`), of which a plain one has none. `pg_partition_tree` would
/// lock them all, to the end of the transaction, and so keep swaps of them away.
macro_rules! with_partitions {
    ($table:literal) => {
        concat!(
            "(WITH RECURSIVE tree AS (SELECT ",
            $table,
            "::pg_catalog.oid AS relid UNION
                SELECT h.inhrelid FROM tree JOIN pg_catalog.pg_inherits h ON h.inhparent = tree.relid)
                SELECT tree.relid FROM tree)"
        )
    };
}
pub(crate) use with_partitions;

const RELATION: &str = concat!(
    "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, c.relowner, c.relkind::pg_catalog.text,
        EXISTS (SELECT FROM pg_catalog.pg_trigger t
            WHERE NOT t.tgisinternal AND t.tgfoid <> pg_catalog.to_regproc('backfill.fence_guard') AND t.tgrelid IN ",
    with_partitions!("c.oid"),
    "),
        NOT EXISTS (SELECT FROM ",
    with_partitions!("c.oid"),
    " l
            JOIN pg_catalog.pg_class r ON r.oid = l.relid
            LEFT JOIN pg_catalog.pg_am m ON m.oid = r.relam
            WHERE r.relkind <> 'p' AND m.amname IS DISTINCT FROM 'heap')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = $1"
);

const COLUMNS: &str = "SELECT a.attname::pg_catalog.text, a.atttypid,
        a.attgenerated <> '' OR a.attidentity = 'a', a.atttypmod
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

/// The one index that may refuse a row because of another, if its columns are never NULL. Where there is a second
/// one, rows that exchange its values could not be updated one after the other; where policies apply, an UPDATE may
/// be hidden rows that a DELETE sees.
const KEY: &str = concat!(
    "SELECT (SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY a.attnum)
        FROM pg_catalog.unnest(i.indkey) WITH ORDINALITY k(attnum, place)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE k.place <= i.indnkeyatts
        HAVING pg_catalog.bool_and(a.attnotnull))
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
    WHERE i.indrelid = $1 AND i.indisunique AND i.indimmediate AND i.indisvalid AND NOT i.indisexclusion
      AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT c.relrowsecurity
      AND NOT EXISTS (SELECT
          FROM ",
    with_partitions!("$1"),
    " t
          JOIN pg_catalog.pg_index o ON o.indrelid = t.relid
          WHERE (o.indisunique OR o.indisexclusion) AND o.indexrelid NOT IN ",
    with_partitions!("i.indexrelid"),
    ")"
);

/// One that acts first, then one that was written down, before the copies that PostgreSQL keeps for partitions.
const REFERRER: &str = "WITH RECURSIVE tree AS (
        SELECT $1 AS relid UNION
        SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid)
    SELECT c.conname::pg_catalog.text, c.conrelid, c.confdeltype IN ('c', 'n', 'd')
    FROM pg_catalog.pg_constraint c
    WHERE c.contype = 'f' AND c.confrelid IN (SELECT t.relid FROM tree t)
    ORDER BY 3 DESC, c.conparentid, c.oid LIMIT 1";

/// Whether relations of a kind (`relkind`) hold rows that a slice can be made of.
pub fn holds_slices(kind: &str) -> bool {
    matches!(kind, "r" | "p" | "f")
}

/// Whether what is read from a relation lies in this database as rows: neither it nor a part of it is a view or a foreign table.
pub fn stores_rows(relation: pg_sys::Oid) -> bool {
    const STORED: &str = concat!(
        "SELECT pg_catalog.bool_and(c.relkind IN ('r', 'p', 'm')) FROM ",
        with_partitions!("$1"),
        " t JOIN pg_catalog.pg_class c ON c.oid = t.relid"
    );
    catalog(STORED, relation, |row| row.get::<bool>(1)) == [Some(true)]
}

/// Whether a relation was not dropped.
pub fn exists(relation: pg_sys::Oid) -> bool {
    unsafe { !pg_sys::get_rel_name(relation).is_null() }
}

/// Whether a relation has a column of that name.
pub fn has_column(relation: pg_sys::Oid, name: &str) -> bool {
    unsafe { pg_sys::get_attnum(relation, quote::c_string(name).as_ptr()) != 0 }
}

/// The columns of any relation.
pub fn columns(relation: pg_sys::Oid) -> Vec<Column> {
    catalog(COLUMNS, relation, |row| Column {
        name: row.at(1),
        type_oid: row.at(2),
        generated: row.at(3),
        modifier: row.at(4),
    })
}

fn catalog<R>(sql: &'static str, oid: pg_sys::Oid, decode: impl FnMut(&spi::Row) -> R) -> Vec<R> {
    role::as_ledger(|| spi::latest(sql, &[oid.into()], decode))
}

impl Table {
    /// Locks the table as writing to it does and reads it. Views are refused (0A000): what they hold is not theirs alone.
    pub fn open(oid: pg_sys::Oid) -> Result<Self> {
        Self::locked(oid, pg_sys::RowExclusiveLock)
    }

    /// The same for whoever only reads it.
    pub fn look_only(oid: pg_sys::Oid) -> Result<Self> {
        Self::locked(oid, pg_sys::AccessShareLock)
    }

    fn locked(oid: pg_sys::Oid, mode: u32) -> Result<Self> {
        unsafe { pg_sys::LockRelationOid(oid, mode as i32) };
        let found = catalog(RELATION, oid, |row| {
            let table = Self {
                oid,
                name: [row.at(1), row.at(2)],
                owner: row.at(3),
                columns: Vec::new(),
                watched: row.at(5),
                local: row.at(6),
            };
            (table, row.at::<String>(4))
        });
        let Some((table, kind)) = found.into_iter().next() else {
            return Err(Error::new(Code::Undefined, "the target table does not exist any more")
                .detail(format!("It was the relation with the number {}.", u32::from(oid)))
                .hint("Give the pipeline an existing table with pipeline_alter()."));
        };
        if !holds_slices(&kind) {
            return Err(Error::new(Code::Unsupported, format!("{} is not a table", table.shown()))
                .detail("Slices are replaced in plain, partitioned and foreign tables.")
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

    /// Those that a query fills, by their position: all but the one that the ledger stamps with the code version.
    pub fn filled(&self, stamp: Option<&str>) -> Vec<&str> {
        self.writable().into_iter().filter(|name| stamp != Some(*name)).collect()
    }

    /// The columns that tell a row from all others, if changed rows can be updated by them.
    pub fn key(&self) -> Option<Vec<String>> {
        catalog(KEY, self.oid, |row| row.get::<Vec<String>>(1)).into_iter().next().flatten()
    }

    /// A foreign key that refers to it or to a part of it; one that acts, if there is one.
    pub fn referrer(&self) -> Option<Referrer> {
        let decode = |row: &spi::Row| Referrer { name: row.at(1), table: row.at(2), acts: row.at(3) };
        catalog(REFERRER, self.oid, decode).into_iter().next()
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

/// The statement that inserts the given rows.
pub fn insertion(table: &str, columns: &[&str]) -> String {
    format!("INSERT INTO {table} ({}) SELECT * FROM {}", list(columns), executor::GIVEN)
}

/// Inserts new rows, as whoever calls; says how many.
pub fn insert(table: &str, columns: &[&str], rows: &Batch) -> u64 {
    faithful(|| executor::write(&insertion(table, columns), None, Some(rows)))
}
