//! The text of an analysed query without what its author only called by a name: aliases of tables, subqueries, CTEs and
//! windows, and of the columns that no caller sees. Blanks and comments are gone by then, and every other name is qualified.
//!
//! A row as a whole carries the names of its columns into what is made of it (`row_to_json`): where a query uses one, names
//! of columns stay.

use crate::postgres::settings;
use pgrx::{pg_guard, pg_sys};
use std::ffi::{CStr, CString, c_void};

/// The text of a query, which is not changed.
pub fn text(query: *const pg_sys::Query) -> String {
    unsafe {
        let query: *mut pg_sys::Query = pg_sys::copyObjectImpl(query.cast()).cast();
        let mut whole_rows = false;
        find_whole_rows(query.cast(), (&raw mut whole_rows).cast());
        let mut naming = Naming { columns: !whole_rows, outer: vec![] };
        rename(query.cast(), (&raw mut naming).cast());
        settings::for_text(|| {
            CStr::from_ptr(pg_sys::pg_get_querydef(query, false)).to_string_lossy().into_owned()
        })
    }
}

/// A tag of a node.
pub unsafe fn is(node: *const pg_sys::Node, tag: pg_sys::NodeTag) -> bool {
    unsafe { !node.is_null() && (*node).type_ == tag }
}

/// The elements of a list of pointers.
pub unsafe fn each<T>(list: *const pg_sys::List) -> impl Iterator<Item = *mut T> {
    let count = if list.is_null() { 0 } else { unsafe { (*list).length } };
    (0..count).map(move |i| unsafe { pg_sys::list_nth(list, i).cast() })
}

#[pg_guard]
unsafe extern "C-unwind" fn find_whole_rows(node: *mut pg_sys::Node, found: *mut c_void) -> bool {
    unsafe {
        if node.is_null() {
            return false;
        }
        if is(node, pg_sys::NodeTag::T_Var) && (*node.cast::<pg_sys::Var>()).varattno == 0 {
            *found.cast::<bool>() = true;
            return true;
        }
        if is(node, pg_sys::NodeTag::T_Query) {
            return pg_sys::query_tree_walker(node.cast(), Some(find_whole_rows), found, 0);
        }
        pg_sys::expression_tree_walker(node, Some(find_whole_rows), found)
    }
}

struct Naming {
    /// Whether columns are renamed too.
    columns: bool,
    /// The queries around, outermost first.
    outer: Vec<*mut pg_sys::Query>,
}

/// Text that lives as long as the query.
fn copied(text: &str) -> *mut std::ffi::c_char {
    let text = CString::new(text).expect("names that are made here have no NUL");
    unsafe { pg_sys::pstrdup(text.as_ptr()) }
}

#[pg_guard]
unsafe extern "C-unwind" fn rename(node: *mut pg_sys::Node, naming: *mut c_void) -> bool {
    unsafe {
        if node.is_null() {
            return false;
        }
        if !is(node, pg_sys::NodeTag::T_Query) {
            return pg_sys::expression_tree_walker(node, Some(rename), naming);
        }
        let query: *mut pg_sys::Query = node.cast();
        let this = &mut *naming.cast::<Naming>();
        this.outer.push(query);
        this.rename_ranges(query);
        if this.columns {
            let entries = each::<pg_sys::TargetEntry>((*query).targetList);
            for entry in entries.filter(|entry| !(**entry).resjunk) {
                (*entry).resname = copied(&format!("c{}", (*entry).resno));
            }
        }
        rename_windows(query);
        pg_sys::query_tree_walker(query, Some(rename), naming, 0);
        // Those that refer to them have been renamed by now.
        let this = &mut *naming.cast::<Naming>();
        this.outer.pop();
        let depth = this.outer.len();
        for (place, cte) in each::<pg_sys::CommonTableExpr>((*query).cteList).enumerate() {
            (*cte).ctename = copied(&cte_name(depth, place));
            if this.columns && (*cte).search_clause.is_null() && (*cte).cycle_clause.is_null() {
                (*cte).aliascolnames = std::ptr::null_mut();
                (*cte).ctecolnames = numbered((*cte).ctecolnames);
            }
        }
        false
    }
}

fn cte_name(depth: usize, place: usize) -> String {
    format!("with{depth}_{place}")
}

/// `c1, c2, …`, as many as the names of a list.
unsafe fn numbered(names: *mut pg_sys::List) -> *mut pg_sys::List {
    unsafe {
        let count = each::<pg_sys::Node>(names).count();
        let mut numbered = std::ptr::null_mut();
        for place in 1..=count {
            numbered = pg_sys::lappend(numbered, pg_sys::makeString(copied(&format!("c{place}"))).cast());
        }
        numbered
    }
}

unsafe fn rename_windows(query: *mut pg_sys::Query) {
    unsafe {
        let windows: Vec<*mut pg_sys::WindowClause> = each((*query).windowClause).collect();
        let names: Vec<Option<CString>> = windows
            .iter()
            .map(|window| (**window).name)
            .map(|name| (!name.is_null()).then(|| CStr::from_ptr(name).to_owned()))
            .collect();
        for (place, window) in windows.iter().enumerate() {
            if names[place].is_some() {
                (**window).name = copied(&format!("w{place}"));
            }
            if !(**window).refname.is_null() {
                let wanted = CStr::from_ptr((**window).refname);
                let of = names.iter().position(|name| name.as_deref() == Some(wanted));
                of.into_iter().for_each(|of| (**window).refname = copied(&format!("w{of}")));
            }
        }
    }
}

impl Naming {
    unsafe fn rename_ranges(&mut self, query: *mut pg_sys::Query) {
        use pg_sys::RTEKind::{
            RTE_CTE, RTE_FUNCTION, RTE_JOIN, RTE_RELATION, RTE_SUBQUERY, RTE_TABLEFUNC, RTE_VALUES,
        };
        unsafe {
            for (place, range) in each::<pg_sys::RangeTblEntry>((*query).rtable).enumerate() {
                let kind = (*range).rtekind;
                if kind == RTE_CTE {
                    self.rename_reference(range);
                }
                let named = [RTE_CTE, RTE_FUNCTION, RTE_RELATION, RTE_SUBQUERY, RTE_TABLEFUNC, RTE_VALUES];
                if !named.contains(&kind) && (kind != RTE_JOIN || (*range).alias.is_null()) {
                    continue;
                }
                let name = copied(&format!("t{place}"));
                let columns = match kind {
                    _ if !self.columns || kind == RTE_JOIN => {
                        let alias = (*range).alias;
                        if alias.is_null() { std::ptr::null_mut() } else { (*alias).colnames }
                    }
                    RTE_RELATION => {
                        (*(*range).eref).colnames = own_names((*range).relid, (*(*range).eref).colnames);
                        std::ptr::null_mut()
                    }
                    _ => {
                        (*(*range).eref).colnames = numbered((*(*range).eref).colnames);
                        match kind {
                            // What gives its columns no names of its own.
                            RTE_VALUES | RTE_FUNCTION => (*(*range).eref).colnames,
                            _ => std::ptr::null_mut(),
                        }
                    }
                };
                (*range).alias = pg_sys::makeAlias(name, columns);
                (*(*range).eref).aliasname = name;
            }
        }
    }

    /// A CTE is referred to by its name in the query that many levels up.
    unsafe fn rename_reference(&self, range: *mut pg_sys::RangeTblEntry) {
        unsafe {
            let up = (*range).ctelevelsup as usize;
            let Some(depth) = (self.outer.len() - 1).checked_sub(up) else { return };
            let wanted = CStr::from_ptr((*range).ctename);
            let place = each::<pg_sys::CommonTableExpr>((*self.outer[depth]).cteList)
                .position(|cte| CStr::from_ptr((*cte).ctename) == wanted);
            if let Some(place) = place {
                (*range).ctename = copied(&cte_name(depth, place));
            }
        }
    }
}

/// The names of a table's own columns, as many as were given.
unsafe fn own_names(relation: pg_sys::Oid, given: *mut pg_sys::List) -> *mut pg_sys::List {
    unsafe {
        let mut names = std::ptr::null_mut();
        for place in 1..=each::<pg_sys::Node>(given).count() {
            let name = pg_sys::get_attname(relation, place as i16, true);
            // A dropped column has none.
            let name = if name.is_null() { copied("") } else { name };
            names = pg_sys::lappend(names, pg_sys::makeString(name).cast());
        }
        names
    }
}
