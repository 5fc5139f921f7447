//! What is being done, and how long it took.

use crate::Result;
use std::time::{Duration, Instant};

/// Says what is being done, does it, and says how long it took.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("==> {what}");
    let start = Instant::now();
    let result = work();
    let outcome = if result.is_ok() { "done" } else { "FAILED" };
    println!("    {what}: {outcome} after {}", shown(start.elapsed()));
    result
}

/// `0.4 s`, `12 s`, `3 min 20 s`.
pub fn shown(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", elapsed.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        _ => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        assert_eq!(shown(Duration::from_millis(420)), "0.4 s");
        assert_eq!(shown(Duration::from_millis(12_700)), "12 s");
        assert_eq!(shown(Duration::from_secs(200)), "3 min 20 s");
    }
}
