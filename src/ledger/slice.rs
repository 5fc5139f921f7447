//! What a target holds for a window: the rows of the newest run that published some.

use crate::domain::zone::Instant;
use crate::postgres::{role, spi};

/// The slice that a target holds for a window, as the ledger knows it.
#[derive(Debug)]
pub struct Slice {
    pub token: i64,
    pub code_version: Option<String>,
    pub rows: Option<i64>,
    pub digest: Option<String>,
    /// The digest is in the words of a worker, and says nothing of what the target holds.
    pub digest_told: bool,
    /// Its rows were there before the ledger knew them.
    pub is_adopted: bool,
    /// The plan that built it, and what that gave its workers.
    pub plan_id: i64,
    pub params: Option<String>,
    /// Why it is out of date, if a person said so.
    pub stale: Option<String>,
}

/// What put a slice back is not what made it.
const CURRENT: &str = "SELECT r.token, r.code_version, r.rows, r.digest, r.digest_told, b.run_kind = 'adopted', b.plan_id, pl.params::pg_catalog.text,
        (SELECT m.reason FROM backfill.mark_data m
         WHERE m.pipeline_id = $1 AND m.window_start = $2 AND m.mark = 'stale' AND m.lifted_at IS NULL AND m.token >= r.token
         ORDER BY m.token DESC LIMIT 1)
    FROM (
        SELECT * FROM backfill.run_data n
        WHERE n.pipeline_id = $1 AND n.window_start = $2 AND n.published_at IS NOT NULL ORDER BY n.turn DESC LIMIT 1
    ) r
    JOIN backfill.run_data b ON b.token = COALESCE(r.restores, r.token)
    LEFT JOIN backfill.plan_data pl ON pl.plan_id = b.plan_id
    WHERE r.run_kind <> 'withdrawn'";

/// The slice of a window as everybody sees it now, if it has one.
pub fn current(pipeline_id: i64, window_start: Instant) -> Option<Slice> {
    let args = [pipeline_id.into(), window_start.into()];
    let decode = |row: &spi::Row| Slice {
        token: row.at(1),
        code_version: row.get(2),
        rows: row.get(3),
        digest: row.get(4),
        digest_told: row.at(5),
        is_adopted: row.at(6),
        plan_id: row.at(7),
        params: row.get(8),
        stale: row.get(9),
    };
    role::as_ledger(|| spi::latest(CURRENT, &args, decode)).into_iter().next()
}

const DIGEST: &str = "SELECT digest FROM backfill.run_data
    WHERE pipeline_id = $1 AND window_start = $2 AND published_at IS NOT NULL ORDER BY turn DESC LIMIT 1";

/// The digest of the slice of a window, if it was ever produced and has one. The target itself may differ, if
/// somebody wrote to it without a fence.
pub fn digest(pipeline_id: i64, window_start: Instant) -> Option<String> {
    let args = [pipeline_id.into(), window_start.into()];
    role::as_ledger(|| spi::first(DIGEST, &args, |row| row.get(1))).flatten()
}

/// Whether going from `before` rows to `after` needs somebody's consent: nothing is left of something, or more
/// than the share `max_shrink` is lost.
pub fn shrinks(before: u64, after: u64, max_shrink: f32) -> bool {
    if before == 0 || after >= before {
        return false;
    }
    // 0.7 as `real` is a little less than 0.7: take what was written, not what was stored.
    let share: f64 = max_shrink.to_string().parse().expect("a number's own text");
    let lost = (before - after) as f64;
    after == 0 || lost > share * before as f64 + 1e-9 * before as f64
}

#[cfg(test)]
mod tests {
    use super::shrinks;

    #[test]
    fn growth_and_equality_need_no_consent() {
        assert!(!shrinks(0, 0, 0.0));
        assert!(!shrinks(0, 5, 0.0));
        assert!(!shrinks(5, 5, 0.0));
        assert!(!shrinks(5, 6, 0.0));
    }

    #[test]
    fn an_empty_slice_always_needs_consent() {
        assert!(shrinks(1, 0, 1.0));
        assert!(shrinks(1_000_000, 0, 1.0));
    }

    #[test]
    fn the_share_itself_may_be_lost() {
        for (share, lost) in [(0.1_f32, 100), (0.3, 300), (0.5, 500), (0.7, 700), (0.9, 900)] {
            assert!(!shrinks(1000, 1000 - lost, share), "{share}");
            assert!(shrinks(1000, 1000 - lost - 1, share), "{share}");
        }
        assert!(shrinks(1000, 999, 0.0));
    }
}
