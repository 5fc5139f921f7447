//! Leases: one per window, never above a cap, under tokens that only increase.

mod attempts;
mod caps;
mod changing;
mod expiry;
mod isolation;
mod operators;
mod order;
mod patience;
mod pools;
mod sequence;
mod storm;
mod tokens;

use pgrx_tests::{Session, assert_sqlstate};

/// The shortest lease that there is.
const SHORT: &str = "lease_for => '1 second'";

const CALLS: [&str; 8] = [
    "backfill_heartbeat($1)",
    "backfill_finish($1)",
    "backfill_fail($1, 'late')",
    "backfill_release($1)",
    "fence_check($1)",
    "replace_partition($1)",
    "backfill_stage($1)",
    "effect_emit($1, 'mail')",
];

/// Every call that takes a token is refused with this error, and changes nothing.
#[track_caller]
fn assert_refused(session: &mut Session, token: i64, code: &str) {
    let everything = "SELECT md5(string_agg(r::text, ',' ORDER BY token)) FROM backfill.run_data r";
    let before: Option<String> = session.one(everything, &[]);
    for call in CALLS {
        let sql = format!("SELECT {}", call.replace("$1", &token.to_string()));
        let failure = assert_sqlstate!(session.try_run(&sql), code);
        assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{failure}");
    }
    assert_eq!(before, session.one::<Option<String>>(everything, &[]));
}
