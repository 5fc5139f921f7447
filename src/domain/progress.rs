//! How far a plan has come, on one line.

use crate::domain::duration;

/// Columns of the bar.
const BAR: i64 = 20;
/// Columns of the line.
const LINE: usize = 80;

/// The windows of a plan by how they stand. What is none of these waits.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub windows: i64,
    pub done: i64,
    pub skipped: i64,
    pub failed: i64,
    pub running: i64,
}

impl Counts {
    /// Windows that will not move any more, in a hundred; 100 only when that is all of them.
    pub fn percent(&self) -> f64 {
        let ended = self.done + self.skipped + self.failed;
        (1000 * ended / self.windows.max(1)) as f64 / 10.0
    }

    /// `[####>>......]  33.3% 10/30, 1 failed, 2 min 5 s left`: `#` done, `-` skipped, `!` failed, `>` running. At the
    /// end how long it will take from here, where that is known, or else the plan's state. At most 80 columns.
    pub fn bar(&self, state: &str, remaining: Option<f64>) -> String {
        let mut line = String::from("[");
        let (mut counted, mut drawn) = (0, 0);
        for (count, glyph) in [
            (self.done, '#'),
            (self.skipped, '-'),
            (self.failed, '!'),
            (self.running, '>'),
            (self.windows, '.'),
        ] {
            counted = (counted + count).min(self.windows);
            let end = BAR * counted / self.windows.max(1);
            line.extend((drawn..end).map(|_| glyph));
            drawn = drawn.max(end);
        }
        line.push_str(&format!("] {:5.1}% {}/{}", self.percent(), self.done, self.windows));
        let failed = (self.failed > 0).then(|| format!("{} failed", self.failed));
        let end = remaining.map_or(state.to_owned(), |seconds| format!("{} left", duration::text(seconds)));
        for part in failed.into_iter().chain([end]) {
            if line.chars().count() + part.chars().count() + 2 <= LINE {
                line.push_str(", ");
                line.push_str(&part);
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(windows: i64, [done, skipped, failed, running]: [i64; 4]) -> Counts {
        Counts { windows, done, skipped, failed, running }
    }

    #[test]
    fn a_bar_shows_what_became_of_the_windows() {
        let line = counts(40, [20, 2, 4, 2]).bar("running", Some(125.0));
        assert_eq!(line, "[##########-!!>......]  65.0% 20/40, 4 failed, 2 min 5 s left");
        assert_eq!(counts(3, [0; 4]).bar("draft", None), "[....................]   0.0% 0/3, draft");
        let line = counts(3, [3, 0, 0, 0]).bar("completed", None);
        assert_eq!(line, "[####################] 100.0% 3/3, completed");
    }

    #[test]
    fn nearly_all_is_not_all() {
        let nearly = counts(1_000_000, [999_999, 0, 0, 1]);
        assert_eq!(nearly.percent(), 99.9);
        assert!(
            nearly.bar("running", None).starts_with("[###################>] "),
            "{}",
            nearly.bar("", None)
        );
        assert_eq!(counts(3, [1, 1, 1, 0]).percent(), 100.0);
    }

    #[test]
    fn no_line_is_longer_than_a_terminal() {
        let many = 1_000_000_000;
        for remaining in [None, Some(0.0), Some(1e12)] {
            let line = counts(many, [many / 2, 1, many / 3, 4]).bar("running", remaining);
            assert!(line.len() <= LINE, "{line}");
        }
    }
}
