//! The price of a plan: what it takes in order, and what it takes side by side.
//!
//! ```text
//! price(history, idle, expected, windows, slots) -> Price { sample, confidence, model, window_p50, window_p90,
//!                                       sequential, parallel, low, high, ordering_price, idle }
//! percentile(sorted, percent)
//! ```
//!
//! Durations are microseconds. `parallel` is the end of a schedule, the windows in the plan's order on its slots;
//! `sequential` is the same on one slot, and the price of ordering is the difference. Both are the mean of many
//! schedules whose windows take what past runs took. `low` and `high` hold eight in ten of these schedules, each
//! made from another sample that the history might have been. Nothing is invented: without a run and without an
//! expected duration every duration is `None`.

use crate::domain::durations::{Basis, Durations, Past, Size};
use crate::domain::makespan::{Slots, makespan};
use crate::domain::random::Random;

/// Fewer finished runs than this are `low` confidence: one slow run moves the whole estimate.
const LOW_BELOW: usize = 5;
/// Fewer than this are `medium`: a 90th percentile of fewer rests on two or three runs.
const MEDIUM_BELOW: usize = 30;
/// Half the interval as a part of the estimate: above the first nothing is `high`, above the second nothing `medium`.
const HIGH_WITHIN: f64 = 0.25;
const MEDIUM_WITHIN: f64 = 0.75;

/// Draws in all schedules together: a plan of a million windows is priced in the time of one of a thousand.
const DRAWS: usize = 400_000;
const SCHEDULES: usize = 400;
/// Windows of a schedule. Of longer plans this many are simulated, evenly spread; the others are taken to be packed
/// without gaps, which they nearly are.
const SIMULATED: usize = 5_000;

/// How far conditions drift between the history and the plan, as the standard deviation of a factor on everything:
/// as far as they wandered while the history was made, at least the first; the second where it has too few runs to say.
const LEAST_DRIFT: f64 = 0.03;
const USUAL_DRIFT: f64 = 0.05;
/// What a small sample cannot show of itself: one run says nothing about the spread of others. Falls with the runs.
const UNSEEN: f64 = 1.2;

/// What a plan is expected to take. Durations in microseconds, `None` = unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Finished runs that the price rests on.
    pub sample: usize,
    pub confidence: Confidence,
    pub basis: Option<Basis>,
    pub window_p50: Option<i64>,
    pub window_p90: Option<i64>,
    /// Between two windows of a slot.
    pub idle: Option<i64>,
    pub sequential: Option<i64>,
    pub parallel: Option<i64>,
    /// Eight in ten such plans end between these two. `None` without a run.
    pub low: Option<i64>,
    pub high: Option<i64>,
    pub ordering_price: Option<i64>,
}

/// How far a price can be trusted, from the number of runs that it rests on and from how wide its interval is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// No run: unknown, or only what the pipeline's owner expects.
    None,
    /// Fewer than 5 runs, or an interval wider than ±75 %.
    Low,
    /// Fewer than 30 runs, or an interval wider than ±25 %.
    Medium,
    High,
}

/// Prices the windows, in the plan's order, on `slots` slots (at least one is assumed). Without a history every
/// window takes `expected`.
pub fn price(
    history: &[Past],
    idle: Option<i64>,
    expected: Option<i64>,
    windows: &[Size],
    slots: usize,
) -> Price {
    let durations = Durations::fit(history, windows).or_else(|| expected.map(Durations::fixed));
    let mut price = Price {
        sample: history.len(),
        confidence: Confidence::None,
        basis: durations.as_ref().map(Durations::basis),
        window_p50: None,
        window_p90: None,
        idle: idle.filter(|_| !history.is_empty()),
        sequential: None,
        parallel: None,
        low: None,
        high: None,
        ordering_price: None,
    };
    let Some(durations) = durations else { return price };
    let schedules = Schedules::run(&durations, price.idle.unwrap_or(0), windows, slots);
    [price.window_p50, price.window_p90] = percentiles(&durations, history, windows);
    let sequential = schedules.sequential;
    let parallel = (sequential * schedules.efficiency).round();
    price.sequential = Some(sequential.round() as i64);
    price.parallel = Some(parallel as i64);
    price.ordering_price = Some(sequential.round() as i64 - parallel as i64);
    if !durations.is_fixed() {
        let drift = durations.drift(history).map_or(USUAL_DRIFT, |drift| drift.max(LEAST_DRIFT));
        let [low, high] = schedules.interval(history.len(), drift);
        price.low = Some(low.min(parallel) as i64);
        price.high = Some(high.max(parallel) as i64);
        let half = (high - low) / 2.0;
        price.confidence = Confidence::of(history.len(), if parallel > 0.0 { half / parallel } else { 0.0 });
    }
    price
}

/// Many schedules of one plan.
struct Schedules {
    /// The mean of what the windows take one after the other.
    sequential: f64,
    /// What part of that they take on the slots.
    efficiency: f64,
    /// When each schedule ended.
    ends: Vec<f64>,
}

impl Schedules {
    fn run(durations: &Durations, idle: i64, windows: &[Size], slots: usize) -> Self {
        let count = windows.len();
        let waits = idle as f64 * count.saturating_sub(1) as f64;
        let sequential = windows.iter().map(|window| durations.expected(window)).sum::<f64>() + waits;
        let simulated = count.min(SIMULATED);
        if simulated == 0 {
            return Self { sequential: 0.0, efficiency: 1.0, ends: vec![0.0] };
        }
        let beyond = count as f64 / simulated as f64 - 1.0;
        let slots = slots.clamp(1, count);
        let picked: Vec<&Size> = (0..simulated).map(|n| &windows[n * count / simulated]).collect();
        let number = if durations.is_fixed() { 1 } else { (DRAWS / simulated).min(SCHEDULES) };
        let mut random = Random::new(count as u64);
        let mut totals = 0.0;
        let mut ends = Vec::with_capacity(number);
        for _ in 0..number {
            let sample = durations.resampled(&mut random);
            let drawn: Vec<i64> = picked.iter().map(|window| sample.draw(window, &mut random)).collect();
            let total = makespan(drawn.iter().copied(), 1, idle) as f64;
            let mut schedule = Slots::new(slots, idle);
            drawn.into_iter().for_each(|duration| schedule.run(duration));
            ends.push(schedule.end() as f64 + beyond * total / slots as f64);
            totals += (1.0 + beyond) * total;
        }
        let efficiency = if totals > 0.0 { ends.iter().sum::<f64>() / totals } else { 1.0 };
        Self { sequential, efficiency, ends }
    }

    /// Between which two ends eight in ten schedules lie, those in mind that a history of `sample` runs cannot
    /// show.
    fn interval(&self, sample: usize, drift: f64) -> [f64; 2] {
        let spread = drift + UNSEEN / sample as f64;
        let mut random = Random::new(sample as u64);
        let mut ends: Vec<f64> = self.ends.iter().map(|end| end * (spread * random.normal()).exp()).collect();
        ends.sort_unstable_by(f64::total_cmp);
        let at = |percent| ends[rank(ends.len(), percent)];
        [at(10).round(), at(90).round()]
    }
}

/// Durations that are drawn for percentiles where windows differ.
const MIXED: usize = 10_000;

/// The median and the 90th percentile of one window of the plan.
fn percentiles(durations: &Durations, history: &[Past], windows: &[Size]) -> [Option<i64>; 2] {
    let mut sample: Vec<i64> = if durations.basis() == Basis::History || windows.is_empty() {
        history.iter().map(|past| past.duration).collect()
    } else {
        let mut random = Random::new(0);
        let draw = |_| durations.draw(&windows[random.below(windows.len())], &mut random);
        (0..MIXED).map(draw).collect()
    };
    sample.sort_unstable();
    [50, 90].map(|percent| percentile(&sample, percent))
}

/// The percentile by nearest rank of ascending values: the smallest that at least `percent` in a
/// hundred of them do not exceed. Always one of the values; `None` if there are none.
pub fn percentile(sorted: &[i64], percent: usize) -> Option<i64> {
    sorted.get(rank(sorted.len(), percent)).copied()
}

fn rank(count: usize, percent: usize) -> usize {
    (count * percent.min(100)).div_ceil(100).saturating_sub(1)
}

impl Confidence {
    /// `half` is half the width of the interval, as a part of the estimate.
    fn of(sample: usize, half: f64) -> Confidence {
        let by_sample = match sample {
            0 => Confidence::None,
            1..LOW_BELOW => Confidence::Low,
            LOW_BELOW..MEDIUM_BELOW => Confidence::Medium,
            _ => Confidence::High,
        };
        let by_width = match half {
            _ if half <= HIGH_WITHIN => Confidence::High,
            _ if half <= MEDIUM_WITHIN => Confidence::Medium,
            _ => Confidence::Low,
        };
        by_sample.min(by_width)
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

    fn history(durations: &[i64]) -> Vec<Past> {
        durations.iter().map(|duration| Past { size: Size::default(), duration: *duration }).collect()
    }

    fn plain(durations: &[i64], expected: Option<i64>, windows: usize, slots: usize) -> Price {
        price(&history(durations), None, expected, &vec![Size::default(); windows], slots)
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
        let unknown = plain(&[], None, 400, 4);
        assert_eq!((unknown.confidence.as_str(), unknown.basis), ("none", None));
        let durations = [unknown.window_p50, unknown.sequential, unknown.parallel, unknown.low, unknown.high];
        assert_eq!((durations, unknown.ordering_price, unknown.idle), ([None; 5], None, None));
    }

    #[test]
    fn expected_duration_prices_without_confidence() {
        let expected = plain(&[], Some(10), 30, 4);
        assert_eq!((expected.sample, expected.confidence), (0, Confidence::None));
        assert_eq!((expected.sequential, expected.parallel), (Some(300), Some(80)));
        assert_eq!((expected.window_p90, expected.ordering_price), (Some(10), Some(220)));
        assert_eq!((expected.low, expected.high), (None, None), "nothing is known of how far off it is");
        assert_eq!(plain(&[], Some(10), 0, 4).window_p50, None);
    }

    #[test]
    fn history_comes_before_expectation() {
        let priced = plain(&[10, 20, 60], Some(1), 6, 2);
        assert_eq!((priced.sample, priced.confidence), (3, Confidence::Low));
        assert_eq!((priced.window_p50, priced.window_p90), (Some(20), Some(60)));
        assert_eq!(priced.sequential, Some(180));
        let parallel = priced.parallel.unwrap();
        assert!(
            (95..130).contains(&parallel),
            "more than half of it, since the last one runs alone: {parallel}"
        );
        assert_eq!(plain(&[1; 5], None, 0, 2).sequential, Some(0));
    }

    #[test]
    fn one_slot_has_no_price_of_ordering() {
        let priced = price(&history(&[10_000, 20_000, 90_000]), Some(500), None, &[Size::default(); 50], 1);
        assert_eq!(priced.sequential, Some(50 * 40_000 + 49 * 500));
        assert_eq!((priced.parallel, priced.ordering_price), (priced.sequential, Some(0)));
    }

    #[test]
    fn idle_slots_are_part_of_the_price() {
        let of = |idle| price(&history(&[1_000; 40]), idle, None, &[Size::default(); 200], 4);
        assert_eq!((of(None).parallel, of(Some(100)).parallel), (Some(50_000), Some(54_900)));
        assert_eq!(of(Some(100)).sequential, Some(200_000 + 19_900));
    }

    #[test]
    fn the_plans_own_weekends_are_priced() {
        let week = |n: usize| Size { weekday: n % 7, ..Size::default() };
        let took = |n: usize| if n % 7 > 4 { 9_000_000 } else { 1_000_000 + (n as i64 % 5) * 1_000 };
        let history: Vec<Past> = (0..70).map(|n| Past { size: week(n), duration: took(n) }).collect();
        let weekends: Vec<Size> = (0..100).map(|n| week(5 + n % 2)).collect();
        let priced = price(&history, None, None, &weekends, 4);
        assert_eq!(priced.basis, Some(Basis::Weekday));
        assert_eq!((priced.window_p50, priced.sequential), (Some(9_000_000), Some(900_000_000)));
        assert_eq!(priced.parallel, Some(225_000_000));
    }

    #[test]
    fn confidence_needs_runs_and_a_narrow_interval() {
        for (sample, word) in [(0, "none"), (4, "low"), (5, "medium"), (29, "medium"), (30, "high")] {
            assert_eq!(Confidence::of(sample, 0.1).as_str(), word);
        }
        assert_eq!([0.3, 0.8].map(|half| Confidence::of(100, half)), [Confidence::Medium, Confidence::Low]);
        // Two hundred runs, and still nobody knows whether the one window is a short or a long one.
        let either: Vec<i64> = (0..200).map(|n| if n % 2 == 0 { 1_000 } else { 100_000 }).collect();
        assert_eq!(plain(&either, None, 1, 4).confidence, Confidence::Low);
        assert_eq!(plain(&either, None, 400, 4).confidence, Confidence::High);
    }

    #[test]
    fn few_runs_make_a_wide_interval() {
        let width = |runs: usize| {
            let durations: Vec<i64> = (0..runs).map(|n| 80_000 + n as i64 % 2 * 40_000).collect();
            let priced = plain(&durations, None, 200, 4);
            let (low, high) = (priced.low.unwrap(), priced.high.unwrap());
            assert!(low <= priced.parallel.unwrap() && priced.parallel.unwrap() <= high);
            (high - low) as f64 / priced.parallel.unwrap() as f64
        };
        let widths = [1, 4, 16, 64, 500].map(width);
        assert!(widths.is_sorted_by(|a, b| a > b), "{widths:?}");
        assert!(widths[0] > 1.0 && widths[4] < 0.16, "{widths:?}");
    }

    /// Eight in ten plans are to end in the interval that they were priced with.
    #[test]
    fn the_interval_is_honest() {
        type Draw = fn(&mut Random) -> f64;
        let lognormal: Draw = |random| 1e5 * (0.6 * random.normal()).exp();
        let bimodal: Draw = |random| if random.below(5) == 0 { 4e5 } else { 5e4 };
        let exponential: Draw = |random| -1e5 * (1.0 - random.unit()).ln();
        for (name, draw) in [("lognormal", lognormal), ("bimodal", bimodal), ("exponential", exponential)] {
            for (runs, slots) in [(10, 4), (40, 1), (150, 16)] {
                let (mut inside, trials) = (0, 60);
                for trial in 0..trials {
                    let mut random = Random::new(1_000 + trial);
                    let mut take = |n: usize| (0..n).map(|_| draw(&mut random) as i64).collect::<Vec<_>>();
                    let priced = plain(&take(runs), None, 150, slots);
                    let measured = makespan(take(150), slots, 0);
                    inside += u64::from((priced.low.unwrap()..=priced.high.unwrap()).contains(&measured));
                }
                let part = inside as f64 / trials as f64;
                assert!((0.68..=0.97).contains(&part), "{name}, {runs} runs, {slots} slots: {part:.2}");
            }
        }
    }

    #[test]
    fn a_million_windows_are_priced_at_once() {
        let durations: Vec<i64> = (1..=500).map(|n| n * 7_919 % 1_009 + 1).collect();
        let priced = plain(&durations, None, 1_000_000, 64);
        let (sequential, parallel) = (priced.sequential.unwrap(), priced.parallel.unwrap());
        assert!((sequential / 64..sequential / 60).contains(&parallel), "{sequential} {parallel}");
    }
}
