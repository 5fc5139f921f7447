//! The end of a plan's list.
//!
//! Claims walk the list from the highest place that the log knows. Places that were passed over (their claim
//! was rolled back or is not committed yet, the window was locked, or somebody else's lease was in the way) are
//! noted once, when the end is reached: from then on claims look at those only. They have a table of their own,
//! because a queued window is also written by workers, and a claim must not wait for one.
//!
//! What was noted holds for one generation of the plan: a retry or an extension begins the next one.

use crate::ledger::claim::Source;
use crate::ledger::permit::{self, Cap};
use crate::postgres::{lock, lock::Key, spi};

const NOTE_HOLES: &str = "INSERT INTO backfill.plan_hole_data (plan_id, seq)
    SELECT w.plan_id, w.seq FROM backfill.plan_window_data w
    WHERE w.plan_id = $1
      AND NOT EXISTS (SELECT FROM backfill.run_data own
                      WHERE own.pipeline_id = w.pipeline_id AND own.window_start = w.window_start
                        AND own.plan_id = $1)
    ON CONFLICT DO NOTHING";

const IS_SWEPT: &str = "SELECT 1 FROM backfill.plan_cursor_data WHERE plan_id = $1 AND swept = $2";

const SWEPT: &str = "INSERT INTO backfill.plan_cursor_data (plan_id, swept) VALUES ($1, $2)
    ON CONFLICT (plan_id) DO UPDATE SET swept = excluded.swept";

const DRAINED: &str = "UPDATE backfill.plan_cursor_data SET drained = $3
    WHERE plan_id = $1 AND drained IS DISTINCT FROM $3
      AND NOT EXISTS (
            SELECT FROM backfill.requeue_data q
            JOIN backfill.owned_data o ON o.pipeline_id = q.pipeline_id AND o.window_start = q.window_start
            WHERE q.pipeline_id = $2 AND q.plan_id = $1 AND o.plan_id = $1)
      AND NOT EXISTS (
            SELECT FROM backfill.plan_hole_data h
            JOIN backfill.plan_window_data w ON w.plan_id = h.plan_id AND w.seq = h.seq
            JOIN backfill.owned_data o ON o.pipeline_id = w.pipeline_id AND o.window_start = w.window_start
            WHERE h.plan_id = $1 AND o.plan_id = $1)";

/// A plan with more slots than this is looked at by every claim for ever: its slots cannot all be held.
const MOST_SLOTS: i32 = 256;

/// Notes the places of the list that have no run. Says whether the list is swept now.
pub fn sweep(source: &Source) -> bool {
    let plan = source.plan_id;
    if !lock::try_exclusive(Key::Sweep { plan }) {
        return false;
    }
    // The one who held the mutex before may have swept it.
    if !spi::latest(IS_SWEPT, &[plan.into(), source.generation.into()], |_| ()).is_empty() {
        return true;
    }
    spi::run_bulk(NOTE_HOLES, &[plan.into()]);
    spi::run(SWEPT, &[plan.into(), source.generation.into()]);
    true
}

/// Notes that the plan has nothing left to hand out, so that later claims do not look at it. A claim that is
/// not committed yet holds the mutex of its slot: only who holds them all knows that there is none.
pub fn drain(source: &Source) {
    let plan = source.plan_id;
    if source.limit.now > MOST_SLOTS || !lock::try_exclusive(Key::Sweep { plan }) {
        return;
    }
    let cap = Cap::Limit { pipeline: source.pipeline.id, plan };
    if !permit::hold_all(cap, source.limit.now) {
        return;
    }
    if permit::look(cap, source.limit, 0, true).held.is_empty() {
        spi::run(DRAINED, &[plan.into(), source.pipeline.id.into(), source.generation.into()]);
    }
}
