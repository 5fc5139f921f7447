//! Windows on slots: when the last of them ends.
//!
//! ```text
//! makespan(durations, slots, idle)             each in turn goes to the slot that is free first
//! remaining(sample, idle, elapsed, waiting, slots)   the same for a plan that is under way
//! ```
//!
//! A schedule, not a division: 9 windows of 10 minutes on 4 slots take 30 minutes, not 22.5. Times are
//! microseconds. Between two windows a slot stands idle: the first one's COMMIT, the worker's way back to the queue, the next claim.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Windows that are simulated one by one; those beyond are taken to be packed without gaps, which they nearly are.
const SIMULATED: usize = 10_000;

/// Slots at work, and the end of the last window so far.
pub struct Slots {
    count: usize,
    idle: i64,
    /// When each slot that was used takes its next window.
    next: BinaryHeap<Reverse<i64>>,
    end: i64,
}

impl Slots {
    /// At least one slot is assumed.
    pub fn new(count: usize, idle: i64) -> Self {
        Self { count: count.max(1), idle: idle.max(0), next: BinaryHeap::new(), end: 0 }
    }

    /// Gives the next window to the slot that is free first. A negative duration counts as 0.
    pub fn run(&mut self, duration: i64) {
        let ends = |start: i64| start.saturating_add(duration.max(0));
        if self.next.len() < self.count {
            let end = ends(0);
            self.end = self.end.max(end);
            self.next.push(Reverse(end.saturating_add(self.idle)));
        } else if let Some(mut slot) = self.next.peek_mut() {
            let end = ends(slot.0);
            self.end = self.end.max(end);
            slot.0 = end.saturating_add(self.idle);
        }
    }

    /// When the last window ends; 0 without one.
    pub fn end(&self) -> i64 {
        self.end
    }
}

/// When the last of the windows ends. O(n log slots).
pub fn makespan(durations: impl IntoIterator<Item = i64>, slots: usize, idle: i64) -> i64 {
    let mut slots = Slots::new(slots, idle);
    durations.into_iter().for_each(|duration| slots.run(duration));
    slots.end()
}

/// How long a plan will go on: `elapsed` says for how long each of its open windows has run, `waiting` is
/// the number of those to come. They take what those of the sample took, over and over in its order; an open one
/// takes what the longer ones of the sample took from there on. `None` for an empty sample.
pub fn remaining(sample: &[i64], idle: i64, elapsed: &[i64], waiting: usize, slots: usize) -> Option<i64> {
    if sample.is_empty() {
        return None;
    }
    let open = elapsed.iter().map(|elapsed| {
        let longer: Vec<i64> = sample.iter().map(|took| took - elapsed).filter(|left| *left > 0).collect();
        longer.iter().sum::<i64>() / (longer.len() as i64).max(1)
    });
    let simulated = waiting.min(SIMULATED);
    let to_come = sample.iter().copied().cycle().take(simulated);
    let simulated_end = makespan(open.chain(to_come), slots.max(elapsed.len()), idle);
    let mean = sample.iter().map(|took| *took as f64).sum::<f64>() / sample.len() as f64 + idle as f64;
    let packed = mean * (waiting - simulated) as f64 / slots.max(1) as f64;
    Some(simulated_end.saturating_add(packed as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_no_division() {
        assert_eq!(makespan([10; 9], 4, 0), 30);
        assert_eq!(makespan([10; 8], 4, 0), 20);
        assert_eq!(makespan([5, 1, 1, 1, 1, 1], 2, 0), 5);
        // In list order the long one comes last and cannot be shared.
        assert_eq!(makespan([1, 1, 1, 1, 1, 5], 2, 0), 7);
        assert_eq!(makespan([3, 4], 1, 0), 7);
        assert_eq!(makespan([3, 4], 0, 0), 7);
        assert_eq!(makespan([3, 4], 100, 0), 4);
        assert_eq!(makespan([], 3, 5), 0);
        assert_eq!(makespan([i64::MAX, i64::MAX, -7], 1, 1), i64::MAX);
    }

    #[test]
    fn a_slot_stands_idle_between_windows_only() {
        assert_eq!(makespan([10; 3], 1, 2), 34);
        assert_eq!(makespan([10; 3], 3, 2), 10);
        assert_eq!(makespan([10; 4], 2, 2), 22);
    }

    #[test]
    fn a_plan_under_way_goes_on_from_where_it_is() {
        assert_eq!(remaining(&[], 0, &[], 5, 1), None);
        assert_eq!(remaining(&[10], 0, &[], 0, 4), Some(0));
        assert_eq!(remaining(&[10], 0, &[4], 0, 4), Some(6));
        assert_eq!(remaining(&[10], 0, &[4, 0], 2, 2), Some(20));
        // It has run longer than any before it: about to end.
        assert_eq!(remaining(&[10], 0, &[40], 1, 1), Some(10));
        // The longer ones of the sample took 20 and 40, so 20 from there on.
        assert_eq!(remaining(&[5, 20, 40], 0, &[10], 0, 1), Some(20));
        // More leases are open than a lowered cap admits: they all go on.
        assert_eq!(remaining(&[10], 0, &[0, 0, 0], 0, 1), Some(10));
    }

    /// The test would not end if each of them were a step.
    #[test]
    fn waiting_windows_are_not_counted_one_by_one() {
        assert_eq!(remaining(&[10, 30], 5, &[], 1_000_000, 1), Some(25 * 1_000_000 - 5));
        let huge = remaining(&[10, 30], 5, &[], usize::MAX, 16).unwrap();
        assert!(huge > i64::MAX / 2, "{huge}");
    }
}
