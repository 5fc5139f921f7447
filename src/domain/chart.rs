//! Windows as a calendar of text: one glyph a window, 80 columns.
//!
//! ```text
//! draw(cells, cadence) -> lines        a line of columns, then a line for each month, day, year …
//! legend(entries) -> lines
//! ```
//!
//! A line holds the largest stretch of time that fits: days fill months, weeks and months fill years, hours fill days,
//! minutes fill hours. A glyph stands where its window starts on the local clock, so that columns line up whatever the
//! length of a month or a day is. An hour that the clock skips leaves its column empty; one that it repeats goes to a line of its own
//! below, in its column.

use crate::domain::cadence::Cadence;
use chrono::{Datelike, NaiveDateTime, NaiveTime, TimeDelta, Timelike};

/// More windows than this nobody looks at; a year of hours is 8,760.
pub const MOST: usize = 10_000;
const WIDTH: usize = 80;
/// Glyphs of a line, at most; and where its label has seconds.
const COLUMNS: i64 = 60;
const COLUMNS_OF_SECONDS: usize = 50;
const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// What a line may hold of a day, in seconds: parts that a day is a multiple of.
const SPANS: [i64; 16] =
    [86_400, 43_200, 28_800, 21_600, 14_400, 10_800, 7_200, 3_600, 1_800, 1_200, 900, 600, 360, 300, 120, 60];

/// A window: when it starts on the local clock, and how it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub local: NaiveDateTime,
    pub glyph: char,
}

/// What a line stands for.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Windows of so many years.
    Decades(i64),
    /// Of so many months.
    YearsOfMonths(i64),
    /// Of so many days, a week or more.
    YearsOfDays(i64),
    /// Of so many days.
    Months(i64),
    /// Parts of a day: the seconds of a line, and the microseconds of a window.
    Days { span: i64, step: i64 },
    /// Windows too short for any of these: a minute of them would not fit. So many to a line.
    Plain,
}

impl Layout {
    fn of(cadence: Cadence) -> Self {
        let days = |days| if days < 7 { Self::Months(days) } else { Self::YearsOfDays(days) };
        match cadence {
            Cadence::Months(months) if months < 12 => Self::YearsOfMonths(months.into()),
            Cadence::Months(months) => Self::Decades(i64::from(months) / 12),
            Cadence::Days(n) => days(n.into()),
            Cadence::Micros(step) if step >= DAY => days(step / DAY),
            Cadence::Micros(step) => {
                let span = SPANS.into_iter().find(|span| (span * SECOND + step - 1) / step <= COLUMNS);
                span.map_or(Self::Plain, |span| Self::Days { span, step })
            }
        }
    }

    /// The line that a window belongs to, and its column there.
    fn place(self, local: NaiveDateTime) -> (String, usize) {
        let (year, month, day) =
            (i64::from(local.year()), i64::from(local.month0()), i64::from(local.day0()));
        let (line, column) = match self {
            Self::Decades(step) => (format!("{:04}s", year / 10 * 10), year % 10 / step),
            Self::YearsOfMonths(step) => (format!("{year:04}"), month / step),
            Self::YearsOfDays(step) => (format!("{year:04}"), i64::from(local.ordinal0()) / step),
            Self::Months(step) => (local.format("%Y-%m").to_string(), day / step),
            Self::Days { span, step } => {
                let seconds = i64::from(local.num_seconds_from_midnight());
                let start = seconds - seconds % span;
                let micros = (seconds - start) * SECOND + i64::from(local.nanosecond() / 1_000);
                (line_text(local, start, span), micros / step)
            }
            Self::Plain => (String::new(), 0),
        };
        (line, column as usize)
    }

    /// Marks above the columns: of each the distance from the start of a line, in the unit of the second part, which
    /// is the width of a column.
    fn marks(self) -> (Vec<(i64, String)>, i64) {
        let numbers = |numbers: Vec<i64>, unit: i64, sign: &str| -> Vec<(i64, String)> {
            numbers.into_iter().map(|n| (n * unit, format!("{sign}{n}"))).collect()
        };
        let initials = |starts: [i64; 12]| -> Vec<(i64, String)> {
            starts.into_iter().zip("JFMAMJJASOND".chars().map(String::from)).collect()
        };
        match self {
            Self::Decades(step) => (numbers((0..10).collect(), 1, ""), step),
            Self::YearsOfMonths(step) => (initials([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]), step),
            Self::YearsOfDays(step) => {
                // Months begin within columns: their first whole one bears the mark.
                let first = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
                (initials(first.map(|day| (day + step - 1) / step * step)), step)
            }
            Self::Months(step) => {
                let days = [1, 5, 10, 15, 20, 25, 30].into_iter();
                (days.map(|day| (day - 1, day.to_string())).collect(), step)
            }
            Self::Days { span: 86_400, step } => {
                let every = (step / (3_600 * SECOND)).max(3) as usize;
                (numbers((0..24).step_by(every).collect(), 3_600 * SECOND, ""), step)
            }
            Self::Days { span, step } if span > 3_600 => {
                (numbers((1..span / 3_600).collect(), 3_600 * SECOND, "+"), step)
            }
            Self::Days { span, step } => {
                let every = (span / 360).max(1) as usize;
                (numbers((0..span / 60).step_by(every).collect(), 60 * SECOND, ":"), step)
            }
            Self::Plain => (vec![], 1),
        }
    }
}

/// The day of a line, with the time that it starts at if it is less than a day.
fn line_text(local: NaiveDateTime, start: i64, span: i64) -> String {
    let date = local.date();
    if span == 86_400 {
        return date.to_string();
    }
    let at = date.and_time(NaiveTime::MIN) + TimeDelta::seconds(start);
    at.format("%Y-%m-%d %H:%M").to_string()
}

/// One line of the chart; `again` holds windows whose column was taken.
struct Line {
    label: String,
    again: bool,
    glyphs: Vec<Option<char>>,
}

impl Line {
    fn new(label: String, again: bool) -> Self {
        Self { label, again, glyphs: vec![] }
    }

    fn takes(&mut self, column: usize, glyph: char) -> bool {
        if self.glyphs.len() <= column {
            self.glyphs.resize(column + 1, None);
        }
        let free = self.glyphs[column].is_none();
        if free {
            self.glyphs[column] = Some(glyph);
        }
        free
    }
}

/// The chart of windows in ascending order.
pub fn draw(cells: &[Cell], cadence: Cadence) -> Vec<String> {
    let layout = Layout::of(cadence);
    let mut lines: Vec<Line> = vec![];
    if matches!(layout, Layout::Plain) {
        for part in cells.chunks(COLUMNS_OF_SECONDS) {
            let glyphs = part.iter().map(|cell| Some(cell.glyph)).collect();
            let label = part[0].local.format("%Y-%m-%d %H:%M:%S").to_string();
            lines.push(Line { label, again: false, glyphs });
        }
    } else {
        for cell in cells {
            let (label, column) = layout.place(cell.local);
            // The newest lines of the same stretch: the clock may have gone back meanwhile.
            let same = lines.iter_mut().rev().take_while(|line| line.label == label);
            let mut same: Vec<&mut Line> = same.collect();
            same.reverse();
            let seen = !same.is_empty();
            if !same.into_iter().any(|line| line.takes(column, cell.glyph)) {
                let mut line = Line::new(label, seen);
                line.takes(column, cell.glyph);
                lines.push(line);
            }
        }
    }
    let width = lines.iter().map(|line| line.label.len()).max().unwrap_or(0).max("again".len());
    let mut drawn = vec![];
    let marks = marked(layout.marks());
    if !marks.is_empty() && !lines.is_empty() {
        drawn.push(format!("{:width$}  {marks}", ""));
    }
    drawn.extend(lines.into_iter().map(|line| {
        let label = if line.again { format!("{:>width$}", "again") } else { line.label };
        let glyphs: String = line.glyphs.into_iter().map(|glyph| glyph.unwrap_or(' ')).collect();
        format!("{label:width$}  {glyphs}")
    }));
    drawn
}

/// Marks on one line, those left out that stand between columns or would run into the one before. Letters may touch.
fn marked((marks, width): (Vec<(i64, String)>, i64)) -> String {
    let mut line = String::new();
    for (at, text) in marks.into_iter().filter(|(at, _)| at % width == 0) {
        let column = (at / width) as usize;
        let apart = !line.is_empty() && !text.starts_with(char::is_alphabetic);
        if column >= line.len() + usize::from(apart) {
            line.push_str(&" ".repeat(column - line.len()));
            line.push_str(&text);
        }
    }
    line
}

/// Entries side by side, as many to a line as it holds. One that is too long is cut.
pub fn legend(entries: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for entry in entries {
        let entry: String = entry.chars().take(WIDTH).collect();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + entry.chars().count() <= WIDTH => {
                line.push_str("   ");
                line.push_str(&entry);
            }
            _ => lines.push(entry),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::bound::Bound;
    use super::super::calendar::Grid;
    use super::super::zone::Zone;
    use super::super::zone::fake::{fixed, local, new_york};
    use super::*;

    /// Every window of a grid between two positions, as `#`.
    fn cells(grid: &Grid<impl Zone>, positions: std::ops::Range<i64>) -> Vec<Cell> {
        let windows = grid.windows(positions).unwrap();
        windows
            .map(|window| Cell { local: grid.nominal_start(window.position).unwrap(), glyph: '#' })
            .collect()
    }

    fn grid(cadence: Cadence, start: &str) -> Grid<impl Zone> {
        Grid::new(cadence, Bound::parse(start).unwrap(), new_york()).unwrap()
    }

    fn chart(cadence: Cadence, start: &str, windows: i64) -> Vec<String> {
        draw(&cells(&grid(cadence, start), 0..windows), cadence)
    }

    fn minutes(n: i64) -> Cadence {
        Cadence::Micros(n * 60 * SECOND)
    }

    #[test]
    fn days_fill_months() {
        let drawn = chart(Cadence::Days(1), "2013-01-30", 61);
        assert_eq!(
            drawn,
            [
                "         1   5    10   15   20   25   30",
                "2013-01                               ##",
                "2013-02  ############################",
                "2013-03  ###############################",
            ]
        );
        assert_eq!(chart(Cadence::Days(2), "2013-01-01", 15)[1], "2013-01  ###############");
    }

    #[test]
    fn a_day_that_lacks_an_hour_lines_up() {
        let drawn = chart(minutes(60), "2013-03-10", 23 + 24);
        assert_eq!(
            drawn,
            [
                "            0  3  6  9  12 15 18 21",
                "2013-03-10  ## #####################",
                "2013-03-11  ########################",
            ]
        );
    }

    #[test]
    fn an_hour_that_comes_twice_has_a_line_of_its_own() {
        let drawn = chart(minutes(60), "2013-11-03", 25 + 1);
        assert_eq!(drawn[1..], ["2013-11-03  ########################", "     again   #", "2013-11-04  #"]);
        let drawn = chart(minutes(1), "2013-11-03T01:00-04:00", 121);
        let hour = "#".repeat(60);
        assert_eq!(drawn[0], "                  :0        :10       :20       :30       :40       :50");
        assert_eq!(
            drawn[1..],
            [
                format!("2013-11-03 01:00  {hour}"),
                format!("           again  {hour}"),
                "2013-11-03 02:00  #".to_owned()
            ]
        );
    }

    #[test]
    fn weeks_and_months_fill_years() {
        let drawn = chart(Cadence::Days(7), "2013-12-23", 3);
        assert_eq!(drawn[1..], [format!("2013   {}##", " ".repeat(50)), "2014   #".to_owned()]);
        assert_eq!(
            chart(Cadence::Months(1), "2013-11-01", 14),
            ["       JFMAMJJASOND", "2013             ##", "2014   ############"]
        );
        assert_eq!(chart(Cadence::Months(3), "2013-01-01", 5), ["       JAJO", "2013   ####", "2014   #"]);
        assert_eq!(
            chart(Cadence::Months(12), "2008-01-01", 4),
            ["       0 2 4 6 8", "2000s          ##", "2010s  ##"]
        );
    }

    #[test]
    fn parts_of_a_day_fill_as_much_of_it_as_a_line_holds() {
        let drawn = chart(minutes(15), "2013-01-01", 96);
        assert_eq!(drawn.len(), 3);
        assert_eq!(drawn[2], format!("2013-01-01 12:00  {}", "#".repeat(48)));
        assert_eq!(chart(minutes(360), "2013-01-01", 8)[1..], ["2013-01-01  ####", "2013-01-02  ####"]);
        // Hours that do not divide the day.
        let drawn = chart(minutes(420), "2013-01-01", 7);
        assert_eq!(drawn, ["            0 14", "2013-01-01  ####", "2013-01-02  ###"]);
        let drawn = chart(Cadence::Micros(36 * 3_600 * SECOND), "2013-01-01", 4);
        assert_eq!(drawn[1], "2013-01  ## ##");
    }

    #[test]
    fn windows_shorter_than_a_second_follow_each_other() {
        let drawn = chart(Cadence::Micros(SECOND / 10), "2013-01-01", 70);
        assert_eq!(drawn.len(), 2);
        assert!(drawn[1].starts_with("2013-01-01 00:00:05  ###"), "{drawn:?}");
    }

    #[test]
    fn every_window_is_drawn_once_and_within_80_columns() {
        let cadences = [
            Cadence::Micros(1),
            Cadence::Micros(SECOND),
            Cadence::Micros(7 * SECOND),
            minutes(1),
            minutes(5),
            minutes(7),
            minutes(11),
            minutes(20),
            minutes(45),
            minutes(90),
            minutes(1_000),
            minutes(1_440),
            minutes(10_000),
            Cadence::Days(1),
            Cadence::Days(3),
            Cadence::Days(7),
            Cadence::Days(10),
            Cadence::Days(28),
            Cadence::Days(400),
            Cadence::Months(1),
            Cadence::Months(5),
            Cadence::Months(18),
            Cadence::Months(240),
        ];
        for cadence in cadences {
            let lines = draw(&cells(&grid(cadence, "2013-03-09T17:00-05:00"), 0..300), cadence);
            let glyphs = lines.iter().flat_map(|line| line.chars()).filter(|glyph| *glyph == '#').count();
            assert_eq!(glyphs, 300, "{cadence:?}: {lines:#?}");
            assert!(lines.iter().all(|line| line.len() <= WIDTH), "{cadence:?}: {lines:#?}");
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert_eq!(draw(&[], Cadence::Days(1)), [""; 0]);
        assert_eq!(legend(&[]), [""; 0]);
    }

    #[test]
    fn a_legend_is_as_wide_as_the_chart() {
        let entries: Vec<String> = (0..12).map(|n| format!("# done {n}")).collect();
        let lines = legend(&entries);
        assert!(lines.len() == 2 && lines.iter().all(|line| line.len() <= WIDTH), "{lines:?}");
        assert_eq!(legend(&["x".repeat(200)]), ["x".repeat(80)]);
        // A grid of another zone than the fake one's is drawn alike.
        let grid = Grid::new(Cadence::Days(1), Bound::Local(local("2013-01-01T00:00:00")), fixed(0)).unwrap();
        assert_eq!(draw(&cells(&grid, 0..1), Cadence::Days(1)).len(), 2);
    }
}
