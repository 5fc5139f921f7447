//! Walks over trees of nodes with a stack of its own.
//!
//! PostgreSQL's walkers call themselves. With a visitor in Rust each level would take ten times the stack that theirs takes, and
//! an error would be caught and raised again at each: so they are only asked for what is right below a node.

use pgrx::pg_sys;
use pgrx::pg_sys::NodeTag as T;
use std::ffi::c_void;

type Node = *mut pg_sys::Node;

/// It raises no error, so that it needs no guard.
unsafe extern "C-unwind" fn push(node: Node, found: *mut c_void) -> bool {
    if !node.is_null() {
        unsafe { &mut *found.cast::<Vec<Node>>() }.push(node);
    }
    false
}

unsafe extern "C-unwind" fn push_function(function: pg_sys::Oid, found: *mut c_void) -> bool {
    unsafe { &mut *found.cast::<Vec<pg_sys::Oid>>() }.push(function);
    false
}

/// The nodes right below one, in their order; of a query what PostgreSQL's flags (`QTW_…`) say.
pub unsafe fn children(node: Node, flags: u32) -> Vec<Node> {
    pgrx::check_for_interrupts!();
    let mut found: Vec<Node> = vec![];
    let into = (&raw mut found).cast();
    unsafe {
        match (*node).type_ {
            T::T_Query => drop(pg_sys::query_tree_walker(node.cast(), Some(push), into, flags as i32)),
            // What is below it is given with it.
            T::T_RangeTblEntry => {}
            _ => drop(pg_sys::expression_tree_walker(node, Some(push), into)),
        }
    }
    found
}

/// The functions that a node itself calls.
pub unsafe fn functions(node: Node) -> Vec<pg_sys::Oid> {
    let mut found: Vec<pg_sys::Oid> = vec![];
    unsafe { pg_sys::check_functions_in_node(node, Some(push_function), (&raw mut found).cast()) };
    found
}

/// Whether a node is in a tree.
pub unsafe fn any(tree: Node, flags: u32, mut is_wanted: impl FnMut(Node) -> bool) -> bool {
    let mut pending = vec![tree];
    while let Some(node) = pending.pop() {
        if node.is_null() {
            continue;
        }
        if is_wanted(node) {
            return true;
        }
        pending.extend(unsafe { children(node, flags) });
    }
    false
}
