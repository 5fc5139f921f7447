//! Who is calling, and the ledger's owner in whose name its statements run.

use crate::error::{Code, Error, Result};
use pgrx::pg_sys;
use std::ffi::CStr;

/// The role whose rights the calling statement has: inside a SECURITY DEFINER function, its owner.
pub fn caller() -> pg_sys::Oid {
    unsafe { pg_sys::GetUserId() }
}

/// The name of a role; the number of one that was dropped.
pub fn name(role: pg_sys::Oid) -> String {
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        if name.is_null() {
            return u32::from(role).to_string();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

/// The role of that name, if there is one.
pub fn find(name: &str) -> Option<pg_sys::Oid> {
    let name = std::ffi::CString::new(name).ok()?;
    let oid = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// Whether the role may do everything.
pub fn is_superuser(role: pg_sys::Oid) -> bool {
    unsafe { pg_sys::superuser_arg(role) }
}

/// Whether `role` has the rights of `other`.
pub fn has_rights_of(role: pg_sys::Oid, other: pg_sys::Oid) -> bool {
    unsafe { pg_sys::has_privs_of_role(role, other) }
}

/// The log of runs: the class of the ledger's locks, and the relation whose owner is the ledger's.
pub fn ledger_relation() -> pg_sys::Oid {
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"backfill".as_ptr(), false);
        let relation = pg_sys::get_relname_relid(c"run_data".as_ptr(), schema);
        assert!(relation != pg_sys::InvalidOid, "backfill.run_data is missing");
        relation
    }
}

/// The owner of the ledger, in whose name its statements run.
pub fn ledger_owner() -> pg_sys::Oid {
    unsafe {
        let relation = ledger_relation();
        let tuple =
            pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, pg_sys::Datum::from(relation));
        assert!(!tuple.is_null(), "backfill.run_data is missing");
        let owner = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>()).relowner;
        pg_sys::ReleaseSysCache(tuple);
        owner
    }
}

/// While it lives, statements run as another role. PostgreSQL restores the role itself when a
/// (sub)transaction aborts; dropping restores it on every other way out.
pub struct Switch {
    role: pg_sys::Oid,
    context: i32,
}

impl Switch {
    /// `restrictions` are PostgreSQL's SECURITY_… flags, beside the one that the role is not to be changed.
    pub fn to(role: pg_sys::Oid, restrictions: u32) -> Self {
        unsafe {
            let mut before = Self { role: pg_sys::InvalidOid, context: 0 };
            pg_sys::GetUserIdAndSecContext(&mut before.role, &mut before.context);
            let restrictions = pg_sys::SECURITY_LOCAL_USERID_CHANGE | restrictions;
            pg_sys::SetUserIdAndSecContext(role, before.context | restrictions as i32);
            before
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        unsafe { pg_sys::SetUserIdAndSecContext(self.role, self.context) };
    }
}

/// Runs ledger statements as the ledger's owner. Nothing that a user wrote may run inside.
pub fn as_ledger<T>(f: impl FnOnce() -> T) -> T {
    let _switch = Switch::to(ledger_owner(), 0);
    f()
}

/// Refuses a call that only a superuser may make.
pub fn require_superuser(what: &str) -> Result<()> {
    let caller = caller();
    if is_superuser(caller) {
        return Ok(());
    }
    Err(Error::new(Code::Forbidden, format!("permission denied for {what}"))
        .detail(format!("{what} is for superusers; the caller is \"{}\".", name(caller)))
        .hint("Ask a superuser to make the call."))
}
