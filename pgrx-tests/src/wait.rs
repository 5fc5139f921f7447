//! Waiting on conditions instead of sleeping.

use std::thread;
use std::time::{Duration, Instant};

/// Far above what any wait takes, so that a slow machine does not fail a test.
const LIMIT: Duration = Duration::from_secs(30);

/// Polls until `holds` is true. Panics after 30 seconds, saying what did not happen.
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_until_within(LIMIT, what, holds);
}

/// Like [`wait_until`] with a limit of its own.
#[track_caller]
pub fn wait_until_within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "waited {limit:?} in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_ends_the_wait() {
        let mut polls = 0;
        wait_until("three polls", || {
            polls += 1;
            polls == 3
        });
        assert_eq!(polls, 3);
    }

    #[test]
    #[should_panic(expected = "in vain: the moon turns green")]
    fn a_condition_that_never_holds_says_so() {
        wait_until_within(Duration::from_millis(10), "the moon turns green", || false);
    }
}
