//! Caps that hold exactly, without a counter and without a row to fight for.
//!
//! A pool, a plan and a pipeline each have numbered slots. The newest run of a slot (its highest generation)
//! tells whether the slot is free; taking it writes the next generation, which a unique index lets only one
//! claim do. A slot whose lease is dead (expired or void) may be taken over.
//!
//! After a cap was lowered, leases may still hold slots above it. Then only the slots `1..=t` are given out,
//! with `t` the largest number for which `t + held above t <= cap`: whatever is granted there, no more than
//! `cap` are held, and no claim needs to look at what another one is granting.
//!
//! A lease above a lowered cap may not be committed yet. A claim first takes the mutexes of its slots and then reads the caps
//! again (claim.rs); one that reads a lowered cap then looks at the mutexes above it. Whichever comes first, one of the
//! two sees the other.

use crate::domain::zone::Instant;
use crate::ledger::run;
use crate::postgres::{lock, lock::Key, random, spi};
use pgrx::datum::DatumWithOid;
use std::collections::HashSet;

/// Whose slots.
#[derive(Debug, Clone, Copy)]
pub enum Cap {
    Pool {
        pool: i32,
    },
    /// `plan` is 0 for the live runs of a pipeline.
    Limit {
        pipeline: i64,
        plan: i64,
    },
}

impl Cap {
    pub fn key(self, slot: i32) -> Key {
        match self {
            Self::Pool { pool } => Key::PoolSlot { pool, slot },
            Self::Limit { pipeline, plan } => Key::LimitSlot { pipeline, plan, slot },
        }
    }
}

/// A slot that may be taken, with the generation that taking it writes.
#[derive(Debug, Clone, Copy)]
pub struct Permit {
    pub slot: i32,
    pub generation: i64,
}

/// An open run that holds a slot.
#[derive(Debug, Clone)]
pub struct Holder {
    pub token: i64,
    pub pipeline_id: i64,
    pub plan_id: i64,
    pub window_start: Instant,
    /// Past its expiry, or of an earlier epoch.
    pub expired: bool,
}

impl Holder {
    /// Whether the lease may be taken over.
    pub fn is_dead(&self) -> bool {
        self.expired || run::void_reason(self.token).is_some()
    }
}

/// How many slots a cap has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub now: i32,
    /// The most that it had before.
    pub before: i32,
}

impl Size {
    fn was_lowered(self) -> bool {
        self.before > self.now
    }
}

struct Slot {
    permit: Permit,
    holder: Option<Holder>,
}

/// Slots looked at in one statement before a claim is content with the free ones it found. Up to this cap
/// every dead lease is found at once; above it, by luck of the starting slot or when nothing else is left.
const GLANCE: i32 = 16;

macro_rules! slots {
    ($same_cap:literal, $slot:literal, $generation:literal) => {
        concat!(
            "SELECT s.slot, COALESCE(r.generation, 0) + 1, r.token, r.pipeline_id, r.plan_id, r.window_start,
                    COALESCE(h.expires_at, r.expires_at) < pg_catalog.clock_timestamp()
                        OR r.token < (SELECT e.first_token FROM backfill.epoch_data e ORDER BY e.epoch DESC LIMIT 1)
             FROM pg_catalog.generate_series(0, $2 - 1) i
             CROSS JOIN LATERAL (SELECT (i + $3) % $2 + 1 AS slot) s
             LEFT JOIN LATERAL (
                 SELECT n.",
            $generation,
            " AS generation, n.pipeline_id, n.plan_id, n.window_start, n.expires_at,
                        CASE WHEN n.ended_at IS NULL THEN n.token END AS token
                 FROM backfill.run_data n WHERE ",
            $same_cap,
            " AND n.",
            $slot,
            " = s.slot
                 ORDER BY n.",
            $generation,
            " DESC LIMIT 1
             ) r ON true
             LEFT JOIN backfill.heartbeat_data h ON h.token = r.token
             WHERE $4 OR r.token IS NULL LIMIT $5"
        )
    };
}
const POOL_SLOTS: &str = slots!("n.pool_id = $1", "pool_slot", "pool_gen");
const LIMIT_SLOTS: &str = slots!("n.pipeline_id = $1 AND n.plan_id = $6", "limit_slot", "limit_gen");

const POOL_HIGHEST: &str = "SELECT pool_slot FROM backfill.run_data WHERE pool_id = $1
    ORDER BY pool_id DESC, pool_slot DESC LIMIT 1";
const LIMIT_HIGHEST: &str = "SELECT limit_slot FROM backfill.run_data WHERE pipeline_id = $1 AND plan_id = $2
    ORDER BY pipeline_id DESC, plan_id DESC, limit_slot DESC LIMIT 1";

/// The slots `1..=count`: as this transaction sees them, or as everybody does.
fn slots(cap: Cap, count: i32, all: bool, limit: i64, latest: bool) -> Vec<Slot> {
    let decode = |row: &spi::Row| Slot {
        permit: Permit { slot: row.at(1), generation: row.at(2) },
        holder: row.get::<i64>(3).map(|token| Holder {
            token,
            pipeline_id: row.at(4),
            plan_id: row.at(5),
            window_start: row.at(6),
            expired: row.at(7),
        }),
    };
    // Claims that look at the same moment should not all try the same slot.
    let start = (random::unit() * f64::from(count)) as i32;
    let scope: DatumWithOid = match cap {
        Cap::Pool { pool } => pool.into(),
        Cap::Limit { pipeline, .. } => pipeline.into(),
    };
    let mut args = vec![scope, count.into(), start.into(), all.into(), limit.into()];
    let sql = match cap {
        Cap::Pool { .. } => POOL_SLOTS,
        Cap::Limit { plan, .. } => {
            args.push(plan.into());
            LIMIT_SLOTS
        }
    };
    if latest { spi::latest(sql, &args, decode) } else { spi::query(sql, &args, decode) }
}

/// The highest slot of the cap that was ever given out; 0 if none was.
fn highest(cap: Cap) -> i32 {
    match cap {
        Cap::Pool { pool } => spi::latest(POOL_HIGHEST, &[pool.into()], |row| row.at(1)),
        Cap::Limit { pipeline, plan } => {
            spi::latest(LIMIT_HIGHEST, &[pipeline.into(), plan.into()], |row| row.at(1))
        }
    }
    .into_iter()
    .next()
    .unwrap_or(0)
}

/// The largest `t` for which `t` slots and those held above `t` are together no more than the cap.
fn largest_grantable(cap: i32, held: &HashSet<i32>) -> i32 {
    (0..=cap).rev().find(|t| t + held.iter().filter(|slot| *slot > t).count() as i32 <= cap).unwrap_or(0)
}

/// What a look at a cap found.
pub struct Look {
    pub free: Vec<Permit>,
    /// Held slots, where the look was thorough.
    pub held: Vec<(Permit, Holder)>,
}

/// Looks for free slots. A thorough look lists the held ones too; it is made for small caps always, and for
/// large ones only when asked.
pub fn look(cap: Cap, size: Size, want: usize, thorough: bool) -> Look {
    let mut look = Look { free: vec![], held: vec![] };
    if size.now <= 0 {
        return look;
    }
    let found = if size.was_lowered() {
        within_lowered(cap, size)
    } else {
        let all = thorough || size.now <= GLANCE;
        let limit = if all { i64::from(size.now) } else { want as i64 + 2 };
        slots(cap, size.now, all, limit, false)
    };
    for slot in found {
        match slot.holder {
            None => look.free.push(slot.permit),
            Some(holder) => look.held.push((slot.permit, holder)),
        }
    }
    look
}

/// Every slot that is held, and those that may be given out beside them.
fn within_lowered(cap: Cap, size: Size) -> Vec<Slot> {
    let highest = highest(cap).max(size.now);
    let mut grantable = size.now;
    loop {
        // First the mutexes: whoever let go of one before has committed what is read after.
        let claimed: Vec<i32> =
            (grantable + 1..=size.before).filter(|slot| !lock::is_free(cap.key(*slot))).collect();
        let mut found = slots(cap, highest, true, i64::from(highest), true);
        let held = found.iter().filter(|slot| slot.holder.is_some()).map(|slot| slot.permit.slot);
        let fewer = largest_grantable(size.now, &held.chain(claimed).collect()).min(grantable);
        if fewer == grantable {
            found.retain(|slot| slot.holder.is_some() || slot.permit.slot <= grantable);
            return found;
        }
        // A claim that read a higher cap may also hold one of the slots that are not given out now.
        grantable = fewer;
    }
}

/// Takes the mutexes of up to `want` of the permits; never waits.
pub fn hold(cap: Cap, permits: &[Permit], want: usize) -> Vec<Permit> {
    let mut held = Vec::with_capacity(want);
    for permit in permits {
        if held.len() == want {
            break;
        }
        if lock::try_exclusive(cap.key(permit.slot)) {
            held.push(*permit);
        }
    }
    held
}

/// Takes the mutexes of all slots, or says that some are held.
pub fn hold_all(cap: Cap, count: i32) -> bool {
    (1..=count).all(|slot| lock::try_exclusive(cap.key(slot)))
}

/// Gives back the mutexes of permits that were not needed.
pub fn give_back(cap: Cap, permits: &[Permit]) {
    for permit in permits {
        lock::release(cap.key(permit.slot));
    }
}

#[cfg(test)]
mod tests {
    use super::largest_grantable;

    #[test]
    fn a_lowered_cap_never_grants_past_itself() {
        let largest = |cap, held: &[i32]| largest_grantable(cap, &held.iter().copied().collect());
        assert_eq!(largest(4, &[]), 4);
        assert_eq!(largest(4, &[1, 2, 3, 4]), 4);
        assert_eq!(largest(4, &[4, 5, 6]), 1);
        assert_eq!(largest(4, &[5, 6, 7, 8]), 0);
        assert_eq!(largest(4, &[5, 6, 7, 8, 9]), 0);
        assert_eq!(largest(2, &[2, 8]), 0);
    }
}
