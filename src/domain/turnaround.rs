//! The time between two windows of a slot, from the attempts of a plan.
//!
//! Which slot or which worker an attempt had plays no part: there may be fewer workers than slots, or more, and
//! names may be shared. If a plan had `m` attempts under way at once at most, it had `m` workers that mattered, and the
//! i-th end was made good by the start `m + i`: what lies between the two is time that one of the `m` stood idle.

/// Waits up to this are a worker's that is there; above it only those within ten medians are.
const ALWAYS_TURNAROUND: i64 = 1_000_000;

/// When an attempt started and when it ended, if it has; microseconds on any clock.
pub type Attempt = (i64, Option<i64>);

/// The most attempts under way at once.
pub fn most_at_once(attempts: &[Attempt]) -> usize {
    let mut steps: Vec<(i64, i32)> = attempts
        .iter()
        .flat_map(|(start, end)| [Some((*start, 1)), end.map(|end| (end, -1))])
        .flatten()
        .collect();
    // At one instant the ends come first.
    steps.sort_unstable();
    let mut at_once = 0_i32;
    let most = steps.iter().map(|(_, step)| {
        at_once += step;
        at_once
    });
    most.max().unwrap_or(0).max(0) as usize
}

/// The times that a plan's workers stood idle between two windows. An attempt that has not ended does not count: its
/// worker may be dead.
pub fn waits(attempts: &[Attempt]) -> Vec<i64> {
    let ended: Vec<Attempt> = attempts.iter().copied().filter(|(_, end)| end.is_some()).collect();
    let mut starts: Vec<i64> = ended.iter().map(|(start, _)| *start).collect();
    let mut ends: Vec<i64> = ended.iter().filter_map(|(_, end)| *end).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let made_good = starts.into_iter().skip(most_at_once(&ended));
    made_good.zip(ends).map(|(start, end)| (start - end).max(0)).collect()
}

/// The mean of the waits without those in which nobody asked for work: a paused plan, workers that were stopped.
pub fn typical(mut waits: Vec<i64>) -> Option<i64> {
    waits.sort_unstable();
    let median = *waits.get(waits.len() / 2)?;
    let longest = median.saturating_mul(10).max(ALWAYS_TURNAROUND);
    waits.retain(|wait| *wait <= longest);
    Some(waits.iter().sum::<i64>() / waits.len() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers that take windows of these durations one after the other, with a wait between two.
    fn run(workers: usize, durations: &[i64], wait: i64) -> Vec<Attempt> {
        let mut free = vec![0; workers];
        let mut attempts = vec![];
        for duration in durations {
            let worker = (0..workers).min_by_key(|worker| free[*worker]).unwrap();
            attempts.push((free[worker], Some(free[worker] + duration)));
            free[worker] += duration + wait;
        }
        attempts
    }

    #[test]
    fn idle_time_is_found_whatever_the_number_of_workers() {
        let durations: Vec<i64> = (0..200).map(|n| 50 + n * 37 % 101).collect();
        for workers in [1, 2, 4, 16] {
            let mut attempts = run(workers, &durations, 7);
            // Rows of the log come in any order.
            attempts.reverse();
            assert_eq!(most_at_once(&attempts), workers);
            let waits = waits(&attempts);
            assert_eq!(waits.len(), 200 - workers);
            assert_eq!(typical(waits), Some(7), "{workers} workers");
        }
    }

    #[test]
    fn the_end_of_an_attempt_makes_room_at_the_same_instant() {
        assert_eq!(most_at_once(&[(0, Some(5)), (5, Some(9)), (9, None)]), 1);
        assert_eq!(waits(&[(0, Some(5)), (5, Some(9)), (9, None)]), [0]);
    }

    #[test]
    fn a_plan_that_stood_still_overnight_is_no_measure() {
        let mut waits = vec![2_000; 30];
        waits.extend([8 * 3_600_000_000, 900_000]);
        assert_eq!(typical(waits), Some((30 * 2_000 + 900_000) / 31));
        // Workers that ask every half minute.
        assert_eq!(typical(vec![10_000_000, 20_000_000, 30_000_000]), Some(20_000_000));
        assert_eq!(typical(vec![]), None);
    }

    #[test]
    fn a_worker_that_died_is_not_waited_for() {
        let mut attempts = run(3, &[50; 30], 7);
        attempts.push((20, None));
        assert_eq!((most_at_once(&attempts), typical(waits(&attempts))), (4, Some(7)));
    }

    #[test]
    fn a_batch_of_leases_says_nothing_about_waits() {
        let batch: Vec<Attempt> = (1..=10).map(|n| (0, Some(n * 100))).collect();
        assert_eq!((most_at_once(&batch), waits(&batch).len()), (10, 0));
        assert_eq!((most_at_once(&[]), waits(&[]).len()), (0, 0));
    }
}
