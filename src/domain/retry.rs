//! When a failed window may run again.

/// The longest wait between two attempts, in microseconds, unless the first delay is longer: a day.
const LONGEST: i64 = 86_400_000_000;

/// Microseconds to wait after attempt `attempt` (from 1) failed: `first`, doubled with every further attempt,
/// and up to a tenth more by `jitter` (0 to 1), so that windows that failed together do not come back together.
pub fn delay(first: i64, attempt: i32, jitter: f64) -> i64 {
    let doublings = (attempt - 1).clamp(0, 40) as u32;
    let doubled = first.max(0).saturating_mul(1_i64 << doublings).min(LONGEST.max(first));
    doubled.saturating_add((doubled as f64 * 0.1 * jitter.clamp(0.0, 1.0)) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_and_stays_bounded() {
        let minute = 60_000_000;
        assert_eq!(delay(minute, 1, 0.0), minute);
        assert_eq!(delay(minute, 2, 0.0), 2 * minute);
        assert_eq!(delay(minute, 4, 0.0), 8 * minute);
        assert_eq!(delay(minute, 1, 1.0), minute + minute / 10);
        assert_eq!(delay(minute, i32::MAX, 0.0), LONGEST);
        assert_eq!(delay(3 * LONGEST, 9, 0.0), 3 * LONGEST);
        assert_eq!(delay(0, 5, 0.5), 0);
    }
}
