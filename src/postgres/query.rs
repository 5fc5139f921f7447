//! Users' queries: one SELECT each, whose $1 and $2 are a window's bounds.

use crate::error::{Code, Error, Result, faithful};
use crate::postgres::named::Named;
use crate::postgres::table::Table;
use crate::postgres::{quote, settings};
use pgrx::{IntoDatum, pg_sys};
use std::ffi::{CStr, CString};

const HINT: &str = "Write one SELECT, with $1 and $2 for the window's bounds; its rows are written for it.";

/// A query that was parsed and analysed. It lives as long as the memory context that it was read in.
pub struct Select {
    text: CString,
    raw: *mut pg_sys::RawStmt,
    query: *mut pg_sys::Query,
}

/// Refuses what is not one SELECT (22023), or cannot fill the target. What PostgreSQL itself finds wrong keeps
/// its own code. The caller is the author; `path` is the `search_path` that the query is to be read under.
pub fn check(text: &str, path: &str, target: pg_sys::Oid, stamp: Option<&str>, zone: &str) -> Result<()> {
    let table = Table::open(target)?;
    settings::for_query(zone, &settings::with_temporary_last(path), || {
        let select = Select::read(text)?;
        let columns: Vec<&str> = table.filled(stamp).into_iter().take(select.width()).collect();
        select.rows_for(&table, &columns, None);
        Ok(())
    })
}

fn refuse(message: impl Into<String>, detail: impl Into<String>) -> Error {
    Error::new(Code::InvalidParameter, message).detail(detail).hint(HINT)
}

unsafe fn is<T>(node: *const T, tag: pg_sys::NodeTag) -> bool {
    unsafe { !node.is_null() && (*node.cast::<pg_sys::Node>()).type_ == tag }
}

/// A new node of the parser's own; all of them start with their tag.
unsafe fn node<T>(tag: pg_sys::NodeTag) -> *mut T {
    unsafe {
        let node = pg_sys::palloc0(size_of::<T>()).cast::<T>();
        (*node.cast::<pg_sys::Node>()).type_ = tag;
        node
    }
}

/// A text, or NULL, as it stands in a query.
unsafe fn constant(text: Option<&str>) -> *mut pg_sys::Expr {
    unsafe {
        let datum = text.into_datum();
        let collation = pg_sys::DEFAULT_COLLATION_OID;
        let value = datum.unwrap_or(pg_sys::Datum::null());
        pg_sys::makeConst(pg_sys::TEXTOID, -1, collation, -1, value, datum.is_none(), false).cast()
    }
}

unsafe fn copy<T>(node: *mut T) -> *mut T {
    unsafe { pg_sys::copyObjectImpl(node.cast()).cast() }
}

/// `SELECT … INTO` is CREATE TABLE AS in other words; the INTO stands in the leftmost arm.
unsafe fn has_into(mut select: *mut pg_sys::SelectStmt) -> bool {
    unsafe {
        while !(*select).larg.is_null() {
            select = (*select).larg;
        }
        !(*select).intoClause.is_null()
    }
}

fn analyse(
    raw: *mut pg_sys::RawStmt,
    text: &CStr,
    parameter: pg_sys::Oid,
    named: Option<&Named>,
) -> *mut pg_sys::Query {
    let types = [parameter; 2];
    unsafe {
        pg_sys::parse_analyze_fixedparams(
            raw,
            text.as_ptr(),
            types.as_ptr(),
            types.len() as i32,
            named.map_or(std::ptr::null_mut(), Named::environment),
        )
    }
}

impl Select {
    /// Reads a user's text. Its author and settings are the caller's to see to.
    pub fn read(text: &str) -> Result<Self> {
        Self::parse(text, None)
    }

    /// The same for a text that may also read rows of ours.
    pub fn over(text: &str, named: &Named) -> Result<Self> {
        Self::parse(text, Some(named))
    }

    fn parse(text: &str, named: Option<&Named>) -> Result<Self> {
        let text = quote::c_string(text);
        unsafe {
            let statements = faithful(|| pg_sys::pg_parse_query(text.as_ptr()));
            let count = if statements.is_null() { 0 } else { (*statements).length };
            if count != 1 {
                return Err(refuse(
                    "a query must be exactly one statement",
                    format!("The text holds {count} statements."),
                ));
            }
            let raw: *mut pg_sys::RawStmt = pg_sys::list_nth(statements, 0).cast();
            if !is((*raw).stmt, pg_sys::NodeTag::T_SelectStmt) {
                return Err(refuse("a query must be a SELECT", "The text is another statement."));
            }
            if has_into((*raw).stmt.cast()) {
                return Err(refuse("a query must not write", "The text is a SELECT INTO."));
            }
            let query = faithful(|| analyse(copy(raw), &text, pg_sys::TIMESTAMPTZOID, named));
            if (*query).hasModifyingCTE {
                return Err(refuse(
                    "a query must not write",
                    "A WITH clause of the text holds an INSERT, UPDATE, DELETE or MERGE.",
                ));
            }
            Ok(Self { text, raw, query })
        }
    }

    /// A SELECT that this extension wrote, with two parameters of that type.
    pub fn of_ours(text: &str, parameter: pg_sys::Oid) -> Self {
        let text = quote::c_string(text);
        unsafe {
            let statements = pg_sys::pg_parse_query(text.as_ptr());
            let raw: *mut pg_sys::RawStmt = pg_sys::list_nth(statements, 0).cast();
            let query = analyse(copy(raw), &text, parameter, None);
            Self { text, raw, query }
        }
    }

    pub fn text(&self) -> &CStr {
        &self.text
    }

    /// The analysed query, to be run once.
    pub fn query(&self) -> *mut pg_sys::Query {
        unsafe { copy(self.query) }
    }

    /// How many columns its rows have.
    pub fn width(&self) -> usize {
        self.types().len()
    }

    /// The types of the columns of its rows.
    pub fn types(&self) -> Vec<pg_sys::Oid> {
        unsafe {
            let list = (*self.query).targetList;
            let count = if list.is_null() { 0 } else { (*list).length };
            (0..count)
                .map(|i| pg_sys::list_nth(list, i).cast::<pg_sys::TargetEntry>())
                .filter(|entry| !(**entry).resjunk)
                .map(|entry| pg_sys::exprType((*entry).expr.cast()))
                .collect()
        }
    }

    /// The query as it was analysed, to be looked at.
    pub fn analysed(&self) -> *const pg_sys::Query {
        self.query
    }

    /// The rows that `INSERT INTO target (columns) <query>` would write, as a query of its own: PostgreSQL
    /// itself analyses that statement, so that columns are matched and converted as nowhere but there, and the
    /// statement is then turned into the SELECT that it contains. `stamp` is a place among the columns and the text, or
    /// NULL, that stands there in each row.
    pub fn rows_for(
        &self,
        target: &Table,
        columns: &[&str],
        stamp: Option<(usize, Option<&str>)>,
    ) -> *mut pg_sys::Query {
        faithful(|| unsafe {
            let insert: *mut pg_sys::InsertStmt = node(pg_sys::NodeTag::T_InsertStmt);
            (*insert).relation = target.range_var();
            let stamped = stamp.map(|(place, _)| place);
            for (_, column) in columns.iter().enumerate().filter(|(place, _)| stamped != Some(*place)) {
                let name: *mut pg_sys::ResTarget = node(pg_sys::NodeTag::T_ResTarget);
                (*name).name = pg_sys::pstrdup(quote::c_string(column).as_ptr());
                (*name).location = -1;
                (*insert).cols = pg_sys::lappend((*insert).cols, name.cast());
            }
            (*insert).selectStmt = copy((*self.raw).stmt);
            let raw: *mut pg_sys::RawStmt = node(pg_sys::NodeTag::T_RawStmt);
            (*raw).stmt = insert.cast();
            (*raw).stmt_location = (*self.raw).stmt_location;
            (*raw).stmt_len = (*self.raw).stmt_len;

            let query = analyse(raw, &self.text, pg_sys::TIMESTAMPTZOID, None);
            let into: *mut pg_sys::RangeTblEntry = pg_sys::list_nth((*query).rtable, 0).cast();
            assert_eq!((*into).relid, target.oid, "the target was renamed while it was locked");
            // What is read is range 2, or nothing where the query is a single VALUES.
            (*query).rtable = pg_sys::list_delete_first((*query).rtable);
            pg_sys::ChangeVarNodes((*query).targetList.cast(), 2, 1, 0);
            pg_sys::ChangeVarNodes((*query).jointree.cast(), 2, 1, 0);
            #[cfg(not(feature = "pg15"))]
            {
                (*query).rteperminfos = std::ptr::null_mut();
            }
            (*query).commandType = pg_sys::CmdType::CMD_SELECT;
            (*query).resultRelation = 0;
            if let Some((place, text)) = stamp {
                let entry = pg_sys::makeTargetEntry(constant(text), 0, c"stamp".as_ptr().cast_mut(), false);
                (*query).targetList =
                    pg_sys::list_insert_nth((*query).targetList, place as i32, entry.cast());
            }
            for i in 0..columns.len() {
                let entry: *mut pg_sys::TargetEntry = pg_sys::list_nth((*query).targetList, i as i32).cast();
                (*entry).resno = i as i16 + 1;
            }
            query
        })
    }
}
