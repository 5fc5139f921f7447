//! Plans that stop where a window fails for good (`on_failure => 'stop'`).
//!
//! The worker that fails writes a row of its own, because the plan's row belongs to people: nobody who pauses or
//! cancels waits for a worker. Claims pass over a plan that has such a row; resume and retry remove those that
//! they see.

use crate::postgres::spi;

const NOTE: &str = "INSERT INTO backfill.plan_stop_data (plan_id, token)
    SELECT pl.plan_id, $2 FROM backfill.plan_data pl WHERE pl.plan_id = $1 AND pl.on_failure = 'stop'
    ON CONFLICT DO NOTHING";

const LIFT: &str = "DELETE FROM backfill.plan_stop_data WHERE plan_id = $1";

/// Notes that a window of the plan failed for good.
pub fn note(plan_id: i64, token: i64) {
    if plan_id > 0 {
        spi::run(NOTE, &[plan_id.into(), token.into()]);
    }
}

/// Lets the plan go on; says whether it had stopped.
pub fn lift(plan_id: i64) -> bool {
    spi::run(LIFT, &[plan_id.into()]) > 0
}
