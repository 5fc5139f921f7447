//! Catchup: which windows may start by themselves.
//!
//! ```text
//! Standing { first, newest_due, first_since_active }.admits(backlog, catchup) -> Admission
//! Admission { backlog, catchup, missed }   ranges of positions     .contains(position)
//! ```
//!
//! One rule, computed from the clock and the ledger alone, so that definition with an old start,
//! resume, days without workers, restart, failover, restore and upgrade give the same set: the
//! positions `max(m, n − backlog + 1) … n`, and the `catchup` positions just before *m*. Starting,
//! finishing, skipping or planning a window moves neither *m* nor *n*, and so never admits an older
//! one. There is no value for "all".

use std::ops::Range;

/// Where a pipeline stands, in positions of its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The position of the pipeline's first window; nothing before it exists.
    pub first: i64,
    /// *n*: the newest window that is due, or the highest that has started if that is higher (a clock
    /// that was set back takes nothing back).
    pub newest_due: i64,
    /// *m*: the first window that fell due after the pipeline last became active. All before it were
    /// due by then.
    pub first_since_active: i64,
}

/// The due windows, divided. Ranges are half-open, and may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// May start by themselves: the newest of those that fell due while the pipeline was active.
    pub backlog: Range<i64>,
    /// May start by themselves: the newest of those that were due before it became active.
    pub catchup: Range<i64>,
    /// All other due positions, older ones first. Those of them that never started are missed.
    pub missed: [Range<i64>; 2],
}

impl Standing {
    /// Divides the due windows. Both bounds are numbers of positions; a negative one is read as 0.
    pub fn admits(self, backlog: i32, catchup: i32) -> Admission {
        let Standing { first, newest_due, first_since_active } = self;
        // Everything below is clamped into what is due, which also keeps an odd standing (nothing due
        // yet, a clock set back) from admitting anything else.
        let end = newest_due.saturating_add(1).max(first);
        let middle = first_since_active.clamp(first, end);
        let newest = end.saturating_sub(backlog.max(0).into()).clamp(middle, end);
        let oldest = first_since_active.saturating_sub(catchup.max(0).into()).clamp(first, middle);
        Admission { backlog: newest..end, catchup: oldest..middle, missed: [first..oldest, middle..newest] }
    }
}

impl Admission {
    /// Whether the window at a position may start by itself.
    pub fn contains(&self, position: i64) -> bool {
        self.backlog.contains(&position) || self.catchup.contains(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(first: i64, m: i64, n: i64, backlog: i32, catchup: i32) -> Admission {
        Standing { first, newest_due: n, first_since_active: m }.admits(backlog, catchup)
    }

    /// A1: a daily pipeline defined three years after its start. All 1,095 windows are missed.
    #[test]
    fn defining_with_an_old_start_starts_nothing() {
        let defined = admission(0, 1095, 1094, 3, 0);
        assert!(defined.backlog.is_empty() && defined.catchup.is_empty());
        assert_eq!(defined.missed, [0..1095, 1095..1095]);
    }

    /// A2: a minutely pipeline paused at 1000 and resumed 30 minutes later.
    #[test]
    fn resuming_follows_the_same_rule() {
        assert_eq!(admission(0, 1030, 1029, 3, 2).catchup, 1028..1030);
        let later = admission(0, 1030, 1031, 3, 2);
        assert_eq!((later.backlog.clone(), later.catchup.clone()), (1030..1032, 1028..1030));
        assert_eq!(later.missed, [0..1028, 1030..1030]);
        assert!(later.contains(1028) && later.contains(1031));
        assert!(!later.contains(1027) && !later.contains(1032));
    }

    /// A3: without catchup the first window to run ends after the pipeline became active.
    #[test]
    fn nothing_older_runs_without_catchup() {
        assert!(!admission(0, 10, 9, 3, 0).contains(9));
        assert!(admission(0, 10, 10, 3, 0).contains(10));
    }

    /// A5: no worker for 24 hours on a minutely pipeline that stayed active.
    #[test]
    fn days_without_workers_leave_the_backlog_only() {
        let back = admission(0, 100, 100 + 1440, 3, 0);
        assert_eq!(back.backlog, 1538..1541);
        assert_eq!(back.missed, [0..100, 100..1538]);
    }

    /// A9: an outage of 13 months is bounded by a count, whatever its age.
    #[test]
    fn a_long_outage_is_bounded_by_a_count() {
        let back = admission(0, 5, 5 + 13 * 30 * 24 * 60, 10, 4);
        assert_eq!(back.backlog.end - back.backlog.start, 10);
        assert_eq!(back.catchup, 1..5);
    }

    #[test]
    fn nothing_before_the_first_window_and_nothing_that_is_not_due() {
        assert_eq!(admission(0, 2, 1, 3, 100).catchup, 0..2);
        assert_eq!(admission(7, 2, 8, 100, 100).backlog, 7..9);
        // The start is in the future: nothing is due.
        let future = admission(10, 3, 2, 5, 5);
        assert!((0..20).all(|k| !future.contains(k)));
        // The clock was set back to before the pipeline became active.
        let back = admission(0, 10, 6, 3, 3);
        assert_eq!((back.backlog, back.catchup), (7..7, 7..7));
    }

    #[test]
    fn every_due_window_is_in_exactly_one_range() {
        let extremes = [i64::MIN, -3, 0, 4, 9, i64::MAX];
        let all = |first, m, n| {
            for (backlog, catchup) in [(0, 0), (3, 2), (i32::MAX, i32::MAX), (-1, -1)] {
                let divided = admission(first, m, n, backlog, catchup);
                let [older, newer] = divided.missed.clone();
                let ranges = [older, divided.catchup.clone(), newer, divided.backlog.clone()];
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
                assert_eq!(ranges[0].start, first);
                assert_eq!(ranges[3].end, n.saturating_add(1).max(first));
                assert!(divided.backlog.clone().take(10).all(|k| k >= m && k <= n));
            }
        };
        for first in extremes {
            for m in extremes {
                for n in extremes {
                    all(first, m, n);
                }
            }
        }
    }
}
