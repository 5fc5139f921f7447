//! What a target holds for a window: the newest finished run.

use crate::domain::zone::Instant;
use crate::postgres::{role, spi};

/// One slice as the ledger knows it. The target itself may differ, if somebody wrote to it without a fence.
#[derive(Debug, Clone)]
pub struct Slice {
    pub token: i64,
    pub code_version: Option<String>,
    pub rows: Option<i64>,
    pub digest: Option<String>,
    pub published_at: Instant,
}

const CURRENT: &str = "SELECT token, code_version, rows, digest, ended_at FROM backfill.run_data
    WHERE pipeline_id = $1 AND window_start = $2 AND outcome = 'done' ORDER BY turn DESC LIMIT 1";

/// The slice of a window, if it was ever produced.
pub fn current(pipeline_id: i64, window_start: Instant) -> Option<Slice> {
    role::as_ledger(|| {
        spi::first(CURRENT, &[pipeline_id.into(), window_start.into()], |row| Slice {
            token: row.at(1),
            code_version: row.get(2),
            rows: row.get(3),
            digest: row.get(4),
            published_at: row.at(5),
        })
    })
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
