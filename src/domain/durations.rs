//! What the durations of windows depend on, as far as past runs show it.
//!
//! ```text
//! Durations::fit(history, windows) -> Option<Durations>      None without a run
//! durations.expected(window)                                 the mean of windows like it
//! durations.resampled(random).draw(window, random)           one that such a window might take
//! durations.drift(history)                                   how far conditions wandered while it was made
//! ```
//!
//! Candidates are the weekday, the hour, the length of the window (a month has 28 to 31 days), and the rows that
//! its slice holds now. Each predicts every past run from the others (leave one out). Only one that errs clearly
//! less than the plain mean is used: seven means of little are worse than one of all.

use crate::domain::random::Random;

/// A finer basis must leave less than this of the plain mean's squared error.
const CLEARLY_BETTER: f64 = 0.9;
/// Runs that a finer basis needs, in all and of one kind; windows of a kind with fewer count as any.
const RUNS: usize = 20;
const RUNS_OF_A_KIND: usize = 5;

/// Parts of a history, in its order, whose means are compared; and the runs of each that it takes.
const PARTS: usize = 10;
const RUNS_OF_A_PART: usize = 5;
/// Means of parts whose variance is more than so many times what chance alone makes of it differ for a reason.
/// Chance gets there once in 25 times.
const BEYOND_CHANCE: f64 = 2.0;

/// What is known of a window before it runs. Times are local in the pipeline's zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// 0 is Monday.
    pub weekday: usize,
    /// 0 to 23.
    pub hour: usize,
    /// From start to end, in microseconds.
    pub length: i64,
    /// Rows of its slice, if it has one.
    pub rows: Option<i64>,
}

/// A finished run.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    pub size: Size,
    /// In microseconds.
    pub duration: i64,
}

/// What tells the windows of a plan apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Nothing: no run is known, only what the pipeline's owner expects.
    Expected,
    /// Nothing: any of the past runs may be any window's.
    History,
    Weekday,
    Hour,
    /// Durations grow in proportion.
    Length,
    /// Durations grow along a line.
    Rows,
}

impl Basis {
    pub fn name(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::History => "history",
            Self::Weekday => "weekday",
            Self::Hour => "hour",
            Self::Length => "length",
            Self::Rows => "rows",
        }
    }
}

/// A sample of durations for each kind of window. In units of the window's scale: what took 3 s for a line's
/// 2 s is 1.5.
#[derive(Clone, Debug)]
pub struct Durations {
    basis: Basis,
    /// Kind 0 is any window, on a scale of 1 µs.
    kinds: Vec<Vec<f64>>,
    means: Vec<f64>,
    /// For [`Basis::Rows`] the duration of an empty slice and of each row.
    line: (f64, f64),
}

impl Durations {
    /// All windows take this.
    pub fn fixed(duration: i64) -> Self {
        let kinds = vec![vec![duration as f64]];
        Self { basis: Basis::Expected, means: means(&kinds), kinds, line: (0.0, 0.0) }
    }

    /// The basis that predicts the history best and says something about the windows.
    pub fn fit(history: &[Past], windows: &[Size]) -> Option<Self> {
        if history.is_empty() {
            return None;
        }
        let plain = Self::on(Basis::History, history, (0.0, 0.0));
        if history.len() < RUNS {
            return Some(plain);
        }
        let mut candidates: Vec<Self> = [Basis::Weekday, Basis::Hour, Basis::Length]
            .into_iter()
            .map(|basis| Self::on(basis, history, (0.0, 0.0)))
            .collect();
        if windows.iter().any(|window| window.rows.is_some()) {
            candidates.extend(line(history).map(|line| Self::on(Basis::Rows, history, line)));
        }
        let limit = CLEARLY_BETTER * plain.error(history);
        let best = candidates
            .into_iter()
            .map(|candidate| (candidate.error(history), candidate))
            .filter(|(error, _)| *error < limit)
            .min_by(|a, b| a.0.total_cmp(&b.0));
        Some(best.map_or(plain, |(_, candidate)| candidate))
    }

    fn on(basis: Basis, history: &[Past], line: (f64, f64)) -> Self {
        let mut durations = Self { basis, kinds: vec![], means: vec![], line };
        for past in history {
            let (kind, scale) = durations.kind(&past.size);
            let highest = durations.kinds.len().max(kind + 1);
            durations.kinds.resize(highest, vec![]);
            durations.kinds[0].push(past.duration as f64);
            if kind > 0 {
                durations.kinds[kind].push(past.duration as f64 / scale);
            }
        }
        durations.means = means(&durations.kinds);
        durations
    }

    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Which kind of window it is by the basis alone, and its scale.
    fn kind(&self, size: &Size) -> (usize, f64) {
        match self.basis {
            Basis::Expected | Basis::History => (0, 1.0),
            Basis::Weekday => (1 + size.weekday, 1.0),
            Basis::Hour => (1 + size.hour, 1.0),
            Basis::Length => (1, size.length.max(1) as f64),
            Basis::Rows => {
                let (empty, each) = self.line;
                size.rows.map_or((0, 1.0), |rows| (1, (empty + each * rows as f64).max(1.0)))
            }
        }
    }

    /// Kind and scale, where enough runs are of the kind.
    fn place(&self, size: &Size) -> (usize, f64) {
        let (kind, scale) = self.kind(size);
        let enough = kind == 0 || self.kinds.get(kind).is_some_and(|runs| runs.len() >= RUNS_OF_A_KIND);
        if enough { (kind, scale) } else { (0, 1.0) }
    }

    /// The mean of windows like this one.
    pub fn expected(&self, size: &Size) -> f64 {
        let (kind, scale) = self.place(size);
        scale * self.means[kind]
    }

    /// The squared error of predicting each run from the others.
    fn error(&self, history: &[Past]) -> f64 {
        let errors = history.iter().map(|past| {
            let (kind, scale) = self.place(&past.size);
            let own = past.duration as f64 / scale;
            let runs = self.kinds[kind].len() as f64;
            let others = (runs * self.means[kind] - own) / (runs - 1.0);
            (past.duration as f64 - scale * others).powi(2)
        });
        errors.sum()
    }

    /// What the history might have been instead: as many runs of each kind, drawn from those there were. How
    /// much answers differ between such histories shows how little a small one says.
    pub fn resampled(&self, random: &mut Random) -> Self {
        let redraw = |runs: &Vec<f64>, random: &mut Random| -> Vec<f64> {
            (0..runs.len()).map(|_| runs[random.below(runs.len())]).collect()
        };
        let kinds: Vec<Vec<f64>> = self.kinds.iter().map(|runs| redraw(runs, random)).collect();
        Self { basis: self.basis, means: means(&kinds), kinds, line: self.line }
    }

    /// By how much conditions wandered while the history was made: the standard deviation of a factor on
    /// whole parts of it, without what chance makes of their means. `None` where it has too few runs to say.
    pub fn drift(&self, history: &[Past]) -> Option<f64> {
        let each = history.len() / PARTS;
        if each < RUNS_OF_A_PART {
            return None;
        }
        let against_expected = |past: &Past| past.duration as f64 / self.expected(&past.size).max(1.0);
        let ratios: Vec<f64> = history.iter().map(against_expected).collect();
        let parts: Vec<(f64, f64)> = ratios.chunks_exact(each).map(mean_and_variance).collect();
        let between = mean_and_variance(&parts.iter().map(|(mean, _)| *mean).collect::<Vec<_>>()).1;
        let chance = parts.iter().map(|(_, variance)| variance).sum::<f64>() / (parts.len() * each) as f64;
        Some(if between > BEYOND_CHANCE * chance { (between - chance).sqrt() } else { 0.0 })
    }

    /// A duration that the window might take, in microseconds.
    pub fn draw(&self, size: &Size, random: &mut Random) -> i64 {
        let (kind, scale) = self.place(size);
        let runs = &self.kinds[kind];
        (scale * runs[random.below(runs.len())]).round() as i64
    }

    /// Whether all windows take the same.
    pub fn is_fixed(&self) -> bool {
        self.basis == Basis::Expected
    }
}

/// The mean of each sample.
fn means(samples: &[Vec<f64>]) -> Vec<f64> {
    samples.iter().map(|sample| sample.iter().sum::<f64>() / sample.len() as f64).collect()
}

/// Of at least two values.
fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0))
}

/// The line of least squares through rows and durations: what an empty slice takes, and what each row adds.
/// `None` where few runs have rows, or more rows do not take longer.
fn line(history: &[Past]) -> Option<(f64, f64)> {
    let points: Vec<(f64, f64)> =
        history.iter().filter_map(|past| Some((past.size.rows? as f64, past.duration as f64))).collect();
    if points.len() < RUNS {
        return None;
    }
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / n, y + point.1 / n));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let along: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let each = along / spread;
    if !(each > 0.0 && each.is_finite()) {
        return None;
    }
    let empty = y - each * x;
    // A line below zero would price small slices at nothing.
    Some(if empty >= 0.0 { (empty, each) } else { (0.0, y / x) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000_000;

    fn days(n: usize, duration: impl Fn(usize, &Size, &mut Random) -> f64) -> Vec<Past> {
        let mut random = Random::new(11);
        (0..n)
            .map(|day| {
                let rows = Some(1_000 + random.below(9_000) as i64);
                let size = Size { weekday: day % 7, hour: 0, length: DAY, rows };
                Past { size, duration: duration(day, &size, &mut random) as i64 }
            })
            .collect()
    }

    fn sizes(history: &[Past]) -> Vec<Size> {
        history.iter().map(|past| past.size).collect()
    }

    fn basis(history: &[Past]) -> Basis {
        Durations::fit(history, &sizes(history)).unwrap().basis()
    }

    #[test]
    fn noise_is_not_taken_for_a_pattern() {
        for n in [1, 9, 35, 70, 500] {
            let exponential = days(n, |_, _, random| -1e6 * (1.0 - random.unit()).ln());
            assert_eq!(basis(&exponential), Basis::History, "{n} runs");
            let bimodal = days(n, |_, _, random| if random.below(5) == 0 { 9e6 } else { 1e6 });
            assert_eq!(basis(&bimodal), Basis::History, "{n} runs");
        }
        assert!(Durations::fit(&[], &[]).is_none());
    }

    #[test]
    fn weekends_that_take_longer_are_noticed_once_they_were_seen_often_enough() {
        let slow = |_: usize, size: &Size, random: &mut Random| {
            if size.weekday > 4 { 9e6 + 1e6 * random.unit() } else { 1e6 + 1e6 * random.unit() }
        };
        assert_eq!(basis(&days(14, slow)), Basis::History);
        let history = days(70, slow);
        let durations = Durations::fit(&history, &sizes(&history)).unwrap();
        assert_eq!(durations.basis(), Basis::Weekday);
        let on = |weekday| durations.expected(&Size { weekday, ..Size::default() });
        assert!((9.2e6..9.8e6).contains(&on(6)) && (1.2e6..1.8e6).contains(&on(2)), "{} {}", on(6), on(2));
    }

    #[test]
    fn hours_and_lengths_are_noticed() {
        let mut hourly = days(480, |_, _, _| 0.0);
        for (n, past) in hourly.iter_mut().enumerate() {
            (past.size.hour, past.size.weekday) = (n % 24, n / 24 % 7);
            past.duration = if past.size.hour < 6 { 5_000_000 } else { 1_000_000 } + n as i64 % 13 * 40_000;
        }
        assert_eq!(basis(&hourly), Basis::Hour);
        let mut months = days(24, |_, _, _| 0.0);
        for (n, past) in months.iter_mut().enumerate() {
            past.size.length = [31, 28, 31, 30][n % 4] * DAY;
            past.duration = past.size.length / 100 + (n as i64 % 5) * 10_000_000;
        }
        assert_eq!(basis(&months), Basis::Length);
    }

    #[test]
    fn rows_price_the_windows_that_hold_a_slice() {
        let history =
            days(40, |_, size, random| 2e6 + 1e3 * size.rows.unwrap() as f64 * (0.9 + 0.2 * random.unit()));
        let durations = Durations::fit(&history, &sizes(&history)).unwrap();
        assert_eq!(durations.basis(), Basis::Rows);
        let of = |rows| durations.expected(&Size { rows, ..Size::default() });
        assert!((4.5e6..5.5e6).contains(&of(Some(3_000))), "{}", of(Some(3_000)));
        let any = history.iter().map(|past| past.duration).sum::<i64>() as f64 / 40.0;
        assert!((of(None) - any).abs() < 1.0);
        // Where no window of the plan holds a slice, rows say nothing.
        let new = [Size::default(); 3];
        assert_eq!(Durations::fit(&history, &new).unwrap().basis(), Basis::History);
    }

    #[test]
    fn rows_that_do_not_matter_or_do_not_differ_are_no_line() {
        assert!(line(&days(40, |_, size, _| 1e7 - 500.0 * size.rows.unwrap() as f64)).is_none());
        let mut same = days(40, |day, _, _| day as f64);
        same.iter_mut().for_each(|past| past.size.rows = Some(7));
        assert!(line(&same).is_none());
        let steep = days(40, |_, size, _| (1e3 * size.rows.unwrap() as f64 - 1e6).max(1.0));
        assert_eq!(line(&steep).unwrap().0, 0.0);
    }

    #[test]
    fn drift_is_told_from_chance() {
        let drift = |history: &[Past]| Durations::fit(history, &sizes(history)).unwrap().drift(history);
        let exponential = |random: &mut Random| -1e6 * (1.0 - random.unit()).ln();
        assert_eq!(drift(&days(49, |_, _, random| exponential(random))), None);
        assert_eq!(drift(&days(500, |_, _, random| exponential(random))), Some(0.0));
        let weekends = days(200, |_, size, _| if size.weekday > 4 { 9e6 } else { 1e6 });
        assert!(drift(&weekends).unwrap() < 1e-6, "what the basis explains is no drift");
        // From one third less to one third more, over the whole of it.
        let wandered =
            days(500, |day, _, random| (8e5 + 4e5 * random.unit()) * (0.67 + 0.66 * day as f64 / 500.0));
        assert!((0.12..0.28).contains(&drift(&wandered).unwrap()), "{:?}", drift(&wandered));
    }

    #[test]
    fn draws_are_durations_of_the_windows_kind() {
        let history = days(70, |_, size, _| if size.weekday > 4 { 9e6 } else { 1e6 });
        let mut random = Random::new(1);
        let durations = Durations::fit(&history, &sizes(&history)).unwrap().resampled(&mut random);
        let sunday = Size { weekday: 6, ..Size::default() };
        assert_eq!(durations.draw(&sunday, &mut random), 9_000_000);
        assert_eq!(durations.draw(&Size::default(), &mut random), 1_000_000);
        assert_eq!(Durations::fixed(70).draw(&sunday, &mut random), 70);
    }
}
