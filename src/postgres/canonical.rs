//! The text of an analysed query without what its author only called by a name: aliases of tables, subqueries, CTEs and
//! windows, and of the columns that no caller sees. Blanks and comments are gone by then, and every other name is qualified.
//!
//! A row as a whole carries the names of its columns into what is made of it (`row_to_json`): where a query uses one, names
//! of columns stay.

use crate::postgres::{settings, walk};
use pgrx::pg_sys;
use std::ffi::{CStr, CString};

/// The text of a query, which is not changed.
pub fn text(query: *const pg_sys::Query) -> String {
    unsafe {
        let query: *mut pg_sys::Query = pg_sys::copyObjectImpl(query.cast()).cast();
        let whole_rows = walk::any(query.cast(), 0, |node| {
            is(node, pg_sys::NodeTag::T_Var) && (*node.cast::<pg_sys::Var>()).varattno == 0
        });
        Naming { columns: !whole_rows, queries: queries(query) }.rename();
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

struct Naming {
    /// Whether columns are renamed too.
    columns: bool,
    queries: Vec<Nested>,
}

/// A query in another one.
struct Nested {
    query: *mut pg_sys::Query,
    /// The place of the query around it.
    around: Option<usize>,
    depth: usize,
}

/// A query and all that are in it, each behind the one around it.
unsafe fn queries(query: *mut pg_sys::Query) -> Vec<Nested> {
    let mut found: Vec<Nested> = vec![];
    let mut pending: Vec<(*mut pg_sys::Node, Option<usize>)> = vec![(query.cast(), None)];
    while let Some((node, mut around)) = pending.pop() {
        unsafe {
            if is(node, pg_sys::NodeTag::T_Query) {
                let depth = around.map_or(0, |around| found[around].depth + 1);
                found.push(Nested { query: node.cast(), around, depth });
                around = Some(found.len() - 1);
            }
            pending.extend(walk::children(node, 0).into_iter().map(|child| (child, around)));
        }
    }
    found
}

/// Text that lives as long as the query.
fn copied(text: &str) -> *mut std::ffi::c_char {
    let text = CString::new(text).expect("names that are made here have no NUL");
    unsafe { pg_sys::pstrdup(text.as_ptr()) }
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
    unsafe fn rename(&self) {
        unsafe {
            for (place, Nested { query, .. }) in self.queries.iter().enumerate() {
                self.rename_ranges(place);
                if self.columns {
                    let entries = each::<pg_sys::TargetEntry>((**query).targetList);
                    for entry in entries.filter(|entry| !(**entry).resjunk) {
                        (*entry).resname = copied(&format!("c{}", (*entry).resno));
                    }
                }
                rename_windows(*query);
            }
            // Those that refer to them have been renamed by now.
            for Nested { query, depth, .. } in &self.queries {
                for (place, cte) in each::<pg_sys::CommonTableExpr>((**query).cteList).enumerate() {
                    (*cte).ctename = copied(&cte_name(*depth, place));
                    if self.columns && (*cte).search_clause.is_null() && (*cte).cycle_clause.is_null() {
                        (*cte).aliascolnames = std::ptr::null_mut();
                        (*cte).ctecolnames = numbered((*cte).ctecolnames);
                    }
                }
            }
        }
    }

    unsafe fn rename_ranges(&self, inner: usize) {
        use pg_sys::RTEKind::{
            RTE_CTE, RTE_FUNCTION, RTE_JOIN, RTE_RELATION, RTE_SUBQUERY, RTE_TABLEFUNC, RTE_VALUES,
        };
        unsafe {
            let query = self.queries[inner].query;
            for (place, range) in each::<pg_sys::RangeTblEntry>((*query).rtable).enumerate() {
                let kind = (*range).rtekind;
                if kind == RTE_CTE {
                    self.rename_reference(inner, range);
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
                    RTE_FUNCTION if !defined_names(range).is_null() => {
                        (*(*range).eref).colnames = defined_names(range);
                        (*(*range).eref).colnames
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
    unsafe fn rename_reference(&self, inner: usize, range: *mut pg_sys::RangeTblEntry) {
        unsafe {
            let mut around = Some(inner);
            for _ in 0..(*range).ctelevelsup {
                around = around.and_then(|around| self.queries[around].around);
            }
            let Some(Nested { query, depth, .. }) = around.map(|around| &self.queries[around]) else {
                return;
            };
            let wanted = CStr::from_ptr((*range).ctename);
            let place = each::<pg_sys::CommonTableExpr>((**query).cteList)
                .position(|cte| CStr::from_ptr((*cte).ctename) == wanted);
            if let Some(place) = place {
                (*range).ctename = copied(&cte_name(*depth, place));
            }
        }
    }
}

/// The names that a column definition list gives to what a function returns: it looks for its values by them.
unsafe fn defined_names(range: *mut pg_sys::RangeTblEntry) -> *mut pg_sys::List {
    unsafe {
        let functions: Vec<*mut pg_sys::RangeTblFunction> = each((*range).functions).collect();
        match functions[..] {
            // Of several, each shows its own list.
            [function] => (*function).funccolnames,
            _ => std::ptr::null_mut(),
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
