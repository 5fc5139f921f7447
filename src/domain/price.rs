//! The price of a plan: what it takes in order, and what it takes side by side.
//!
//! ```text
//! price(history, expected, windows, slots) -> Price { sample, confidence, window_p50, window_p90,
//!                                                     sequential, parallel, ordering_price }
//! makespan(durations, slots) · percentile(sorted, percent)
//! ```
//!
//! Durations are microseconds. The cost of ordering is the sequential duration less the parallel one,
//! and the parallel one is the end of an actual schedule, not a division: 9 windows of 10 minutes on
//! 4 slots take 30 minutes, not 22.5. Nothing is invented: without a run and without an expected
//! duration every duration is `None`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Fewer finished runs than this are `low` confidence: one slow run moves the whole estimate.
const LOW_BELOW: usize = 5;
/// Fewer than this are `medium`: a 90th percentile of fewer rests on two or three runs.
const MEDIUM_BELOW: usize = 30;

/// What a plan is expected to take. Durations in microseconds, `None` = unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Finished runs that the price rests on.
    pub sample: usize,
    pub confidence: Confidence,
    pub window_p50: Option<i64>,
    pub window_p90: Option<i64>,
    pub sequential: Option<i64>,
    pub parallel: Option<i64>,
    pub ordering_price: Option<i64>,
}

/// How far a price can be trusted, from the number of runs it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// No run: unknown, or only what the pipeline's owner expects.
    None,
    /// Fewer than 5 runs.
    Low,
    /// Fewer than 30 runs.
    Medium,
    High,
}

/// Prices `windows` windows on `slots` slots (at least one is assumed).
///
/// `history` holds the durations of this pipeline's own finished runs in the order they ran. The
/// windows of the plan are given these durations over and over in that order: that keeps both their
/// mean and their spread, which multiples of a percentile do not. Without a history every window takes
/// `expected`.
pub fn price(history: &[i64], expected: Option<i64>, windows: usize, slots: usize) -> Price {
    let sample = history.len();
    let known = if history.is_empty() { expected.as_slice() } else { history };
    let mut sorted = known.to_vec();
    sorted.sort_unstable();
    let plan = || known.iter().copied().cycle().take(windows);
    let is_known = !known.is_empty();
    let sequential = is_known.then(|| plan().fold(0, i64::saturating_add));
    let parallel = is_known.then(|| makespan(plan(), slots));
    Price {
        sample,
        confidence: Confidence::of(sample),
        window_p50: percentile(&sorted, 50),
        window_p90: percentile(&sorted, 90),
        sequential,
        parallel,
        ordering_price: sequential.zip(parallel).map(|(all, side_by_side)| all - side_by_side),
    }
}

/// When the last of the windows ends, if each in turn goes to the slot that is free first.
/// O(n log slots); no window makes 0, negative durations count as 0.
pub fn makespan(durations: impl IntoIterator<Item = i64>, slots: usize) -> i64 {
    let mut busy: BinaryHeap<Reverse<i64>> = BinaryHeap::new();
    let mut last = 0;
    for duration in durations {
        let free = if busy.len() < slots.max(1) { 0 } else { busy.pop().map_or(0, |slot| slot.0) };
        let end = free.saturating_add(duration.max(0));
        last = last.max(end);
        busy.push(Reverse(end));
    }
    last
}

/// The percentile by nearest rank of ascending values: the smallest that at least `percent` in a
/// hundred of them do not exceed. Always one of the values; `None` if there are none.
pub fn percentile(sorted: &[i64], percent: usize) -> Option<i64> {
    let rank = (sorted.len() * percent.min(100)).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

impl Confidence {
    fn of(sample: usize) -> Confidence {
        match sample {
            0 => Confidence::None,
            1..LOW_BELOW => Confidence::Low,
            LOW_BELOW..MEDIUM_BELOW => Confidence::Medium,
            _ => Confidence::High,
        }
    }

    /// `none`, `low`, `medium` or `high`.
    pub fn as_str(self) -> &'static str {
        match self {
            Confidence::None => "none",
            Confidence::Low => "low",
            Confidence::Medium => "medium",
            Confidence::High => "high",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makespan_is_a_schedule_not_a_division() {
        assert_eq!(makespan([10; 9], 4), 30);
        assert_eq!(makespan([10; 8], 4), 20);
        assert_eq!(makespan([5, 1, 1, 1, 1, 1], 2), 5);
        // In list order the long one comes last and cannot be shared.
        assert_eq!(makespan([1, 1, 1, 1, 1, 5], 2), 7);
        assert_eq!(makespan([3, 4], 1), 7);
        assert_eq!(makespan([3, 4], 0), 7);
        assert_eq!(makespan([3, 4], 100), 4);
        assert_eq!(makespan([], 3), 0);
        assert_eq!(makespan([i64::MAX, i64::MAX, -7], 1), i64::MAX);
    }

    #[test]
    fn percentiles_are_values_of_the_sample() {
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[7], 50), Some(7));
        assert_eq!(percentile(&[15, 20, 35, 40, 50], 30), Some(20));
        assert_eq!(percentile(&[15, 20, 35, 40, 50], 40), Some(20));
        assert_eq!(percentile(&[15, 20, 35, 40, 50], 50), Some(35));
        assert_eq!(percentile(&[15, 20, 35, 40, 50], 100), Some(50));
        assert_eq!(percentile(&[15, 20, 35, 40, 50], 0), Some(15));
    }

    #[test]
    fn unknown_stays_unknown() {
        let unknown = price(&[], None, 400, 4);
        assert_eq!(unknown.confidence.as_str(), "none");
        let durations = [unknown.window_p50, unknown.sequential, unknown.parallel];
        assert_eq!((durations, unknown.ordering_price), ([None; 3], None));
    }

    #[test]
    fn expected_duration_prices_without_confidence() {
        let expected = price(&[], Some(10), 30, 4);
        assert_eq!((expected.sample, expected.confidence), (0, Confidence::None));
        assert_eq!((expected.sequential, expected.parallel), (Some(300), Some(80)));
        assert_eq!((expected.window_p90, expected.ordering_price), (Some(10), Some(220)));
    }

    #[test]
    fn history_comes_before_expectation() {
        let priced = price(&[10, 20, 60], Some(1), 6, 2);
        assert_eq!((priced.sample, priced.confidence), (3, Confidence::Low));
        assert_eq!((priced.window_p50, priced.window_p90), (Some(20), Some(60)));
        // In the order of the list the slots run 10, 60 and 20, 10, 20, 60.
        assert_eq!((priced.sequential, priced.parallel), (Some(180), Some(110)));
        assert_eq!(price(&[1; 5], None, 0, 2).sequential, Some(0));
    }

    #[test]
    fn confidence_grows_with_the_sample() {
        for (sample, word) in [(0, "none"), (4, "low"), (5, "medium"), (29, "medium"), (30, "high")] {
            assert_eq!(Confidence::of(sample).as_str(), word);
        }
    }

    #[test]
    fn a_million_windows_are_priced_at_once() {
        let history: Vec<i64> = (1..=1000).map(|n| n * 7919 % 1009 + 1).collect();
        let started = std::time::Instant::now();
        let priced = price(&history, None, 1_000_000, 64);
        assert!(started.elapsed().as_secs() < 5, "debug build: {:?}", started.elapsed());
        assert!(priced.parallel.unwrap() >= priced.sequential.unwrap() / 64);
    }
}
