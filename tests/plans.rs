//! Plans: nothing runs that an approved one does not allow, and nothing that is due is lost.

mod approving;
mod cancelling;
mod living;
mod owning;
mod pricing;
mod progressing;
mod proposing;
pub mod reverting;
mod reverting_beside;
mod size;
pub mod together;
mod together_beside;

use pgrx_tests::Session;

/// What a plan answers about the windows it leaves out, in their order.
pub fn declined(session: &mut Session, arguments: &str) -> Vec<String> {
    session.lines(&format!(
        "SELECT d->>'reason', d->>'windows'
         FROM backfill_plan('daily', {arguments}) p, jsonb_array_elements(p.declined) d"
    ))
}
