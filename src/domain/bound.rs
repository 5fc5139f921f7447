//! The text of a bound that a person gives, and the text that answers show.
//!
//! ```text
//! Bound::parse(text) -> Result<Bound, BoundError>      Local(date and time) | Absolute(instant)
//! Bound::instant(zone) -> Instant
//! local_text(local) · instant_text(zone, instant)      what Bound::parse reads back
//! ```
//!
//! Accepted are ISO 8601 dates and dates with a time, as PostgreSQL, psql and other languages write
//! them: `2024-01-01`, `2024-01-01 06:00`, `2024-01-01T06:00:00.5`, `2024-01-01 24:00`, and a time
//! with an offset: `Z`, `UTC`, `GMT`, `+05`, `+0530`, `+05:30`, `-03:30:15`. What depends on the moment
//! (`now`, `today`), on a setting (`01/02/2024`) or on a list of abbreviations (`PST`) is refused: the
//! same text must name the same window wherever and whenever it is read. Which day `24:00` or a
//! skipped local time belongs to is PostgreSQL's answer (see [`crate::domain::zone`]).

use std::fmt;

use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike};

use super::zone::{Instant, Zone};

/// PostgreSQL reads no larger offset; this side of it, hours.
const LARGEST_OFFSET_HOURS: u32 = 15;

/// A bound as it was given, not yet in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A date and time on the clock of the pipeline's zone; a date alone is its midnight.
    Local(NaiveDateTime),
    /// It had an offset, and means the same everywhere.
    Absolute(Instant),
}

/// Why a text is no bound. Each holds the text as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundError {
    Empty,
    /// `now`, `today`, `yesterday`, `tomorrow`, `epoch`, `allballs`.
    Word(String),
    Infinite(String),
    /// Numbers in an order that needs a setting to be understood, such as `01/02/2024`.
    Ambiguous(String),
    /// A name or an abbreviation of a zone behind the time.
    NamedZone(String),
    /// An ISO date or time that no calendar or clock has, such as `2024-02-30` or `25:00`.
    Impossible(String),
    /// Anything else.
    Malformed(String),
}

impl Bound {
    /// Reads the text of a bound.
    ///
    /// # Errors
    /// The text is not one of the forms in the module's documentation, or its year is not in
    /// 0001 to 9999.
    pub fn parse(text: &str) -> Result<Bound, BoundError> {
        let given = text.trim_ascii();
        let mut rest = Rest(given);
        let Some((year, month, day)) = rest.date() else {
            return Err(refusal(given));
        };
        let date = NaiveDate::from_ymd_opt(year, month, day).filter(|date| date.year() >= 1);
        let time = if rest.0.is_empty() {
            (0, 0, 0, 0)
        } else {
            rest.time().ok_or_else(|| BoundError::Malformed(given.into()))?
        };
        let local =
            date.and_then(|date| at_time(date, time)).ok_or_else(|| BoundError::Impossible(given.into()))?;
        rest.0 = rest.0.trim_ascii_start();
        if rest.0.is_empty() {
            return Ok(Bound::Local(local));
        }
        let is_named = rest.0.starts_with(|c: char| c.is_alphabetic());
        match rest.offset() {
            Some(east) if rest.0.is_empty() => {
                let utc = local.checked_sub_signed(TimeDelta::seconds(east)).unwrap_or(local);
                Ok(Bound::Absolute(Instant::from_utc(utc)))
            }
            None if is_named => Err(BoundError::NamedZone(given.into())),
            _ => Err(BoundError::Malformed(given.into())),
        }
    }

    /// The instant that is meant in `zone`.
    pub fn instant(self, zone: &impl Zone) -> Instant {
        match self {
            Bound::Local(local) => zone.to_instant(local),
            Bound::Absolute(instant) => instant,
        }
    }
}

/// The shortest ISO text of a local time: `2024-01-01`, `2024-01-01T06:00`, `2024-01-01T06:00:00.5`.
pub fn local_text(local: NaiveDateTime) -> String {
    if local.time() == NaiveTime::MIN {
        local.date().to_string()
    } else {
        format!("{}T{}", local.date(), time_text(local.time()))
    }
}

/// The ISO text of an instant on the clock of `zone`, with its offset: `2024-01-01T06:00-05:00`.
/// Seconds, their fraction and the seconds of the offset are shown only where they are not zero.
pub fn instant_text(zone: &impl Zone, at: Instant) -> String {
    let local = zone.to_local(at);
    let offset = zone.offset(at);
    let sign = if offset < 0 { '-' } else { '+' };
    let (hours, minutes, seconds) = (offset.abs() / 3600, offset.abs() / 60 % 60, offset.abs() % 60);
    let mut text = format!("{}T{}{sign}{hours:02}:{minutes:02}", local.date(), time_text(local.time()));
    if seconds != 0 {
        text += &format!(":{seconds:02}");
    }
    text
}

fn time_text(time: NaiveTime) -> String {
    let mut text = format!("{:02}:{:02}", time.hour(), time.minute());
    let micros = time.nanosecond() / 1000;
    if time.second() != 0 || micros != 0 {
        text += &format!(":{:02}", time.second());
    }
    if micros != 0 {
        text += format!(".{micros:06}").trim_end_matches('0');
    }
    text
}

/// Hour, minute, second and microsecond; 24:00 is the next day's midnight.
fn at_time(date: NaiveDate, time: (u32, u32, u32, u32)) -> Option<NaiveDateTime> {
    if time == (24, 0, 0, 0) {
        return date.succ_opt()?.and_hms_opt(0, 0, 0);
    }
    let (hour, minute, second, micro) = time;
    date.and_hms_micro_opt(hour, minute, second, micro)
}

/// Says why a text that does not begin with an ISO date is refused.
fn refusal(given: &str) -> BoundError {
    let owned = given.to_owned();
    let word = given.to_ascii_lowercase();
    match word.as_str() {
        "" => BoundError::Empty,
        "now" | "today" | "yesterday" | "tomorrow" | "epoch" | "allballs" => BoundError::Word(owned),
        "infinity" | "+infinity" | "-infinity" => BoundError::Infinite(owned),
        // One or two digits and a separator: a day or a month.
        _ if matches!(
            word.trim_start_matches(|c: char| c.is_ascii_digit()).as_bytes().first(),
            Some(b'/' | b'.' | b'-')
        ) && matches!(word.find(['/', '.', '-']), Some(1..=2)) =>
        {
            BoundError::Ambiguous(owned)
        }
        _ => BoundError::Malformed(owned),
    }
}

/// What is still to be read of a text.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    /// Takes exactly `digits` ASCII digits, at most nine.
    fn number(&mut self, digits: usize) -> Option<u32> {
        let (head, tail) = self.0.split_at_checked(digits)?;
        if !head.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        self.0 = tail;
        head.parse().ok()
    }

    fn symbol(&mut self, symbol: char) -> Option<()> {
        self.0 = self.0.strip_prefix(symbol)?;
        Some(())
    }

    /// `YYYY-MM-DD`, and nothing like a digit or a dash behind it.
    fn date(&mut self) -> Option<(i32, u32, u32)> {
        let year = self.number(4)?;
        self.symbol('-')?;
        let month = self.number(2)?;
        self.symbol('-')?;
        let day = self.number(2)?;
        if self.0.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            return None;
        }
        Some((year as i32, month, day))
    }

    /// `THH:MM`, `THH:MM:SS` or `THH:MM:SS.ffffff`; `T` may be a `t` or a space.
    fn time(&mut self) -> Option<(u32, u32, u32, u32)> {
        self.0 = self.0.strip_prefix(['T', 't', ' '])?;
        let hour = self.number(2)?;
        self.symbol(':')?;
        let minute = self.number(2)?;
        if self.symbol(':').is_none() {
            return Some((hour, minute, 0, 0));
        }
        let second = self.number(2)?;
        if self.symbol('.').is_none() {
            return Some((hour, minute, second, 0));
        }
        Some((hour, minute, second, self.fraction()?))
    }

    /// The digits behind the point as microseconds. What is finer than that must be zero: rounding
    /// would move the bound.
    fn fraction(&mut self) -> Option<u32> {
        let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, tail) = self.0.split_at_checked(length)?;
        let significant = digits.trim_end_matches('0');
        if digits.is_empty() || significant.len() > 6 {
            return None;
        }
        self.0 = tail;
        format!("{significant:0<6}").parse().ok()
    }

    /// `Z`, `UTC`, `GMT` or an offset, as seconds east.
    fn offset(&mut self) -> Option<i64> {
        if ["z", "utc", "gmt"].iter().any(|name| self.0.eq_ignore_ascii_case(name)) {
            self.0 = "";
            return Some(0);
        }
        let east = match self.0.strip_prefix(['+', '-']) {
            Some(tail) => {
                let east = self.0.starts_with('+');
                self.0 = tail;
                east
            }
            None => return None,
        };
        let hours = self.number(2).filter(|hours| *hours <= LARGEST_OFFSET_HOURS)?;
        let mut parts = [0, 0];
        for part in &mut parts {
            if self.0.is_empty() {
                break;
            }
            // Both +05:30 and +0530 are written.
            let _ = self.symbol(':');
            *part = self.number(2).filter(|sixtieths| *sixtieths < 60)?;
        }
        let seconds = i64::from(hours * 3600 + parts[0] * 60 + parts[1]);
        Some(if east { seconds } else { -seconds })
    }
}

impl fmt::Display for BoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoundError::Empty => write!(f, "a bound is empty")?,
            BoundError::Word(text) => {
                write!(f, "the bound \"{text}\" would name another window at another moment")?;
            }
            BoundError::Infinite(text) => write!(f, "the bound \"{text}\" is infinite")?,
            BoundError::Ambiguous(text) => {
                write!(f, "the bound \"{text}\" does not say which number is the month")?;
            }
            BoundError::NamedZone(text) => {
                write!(f, "the bound \"{text}\" names a zone where only an offset is read")?;
            }
            BoundError::Impossible(text) => {
                write!(f, "the bound \"{text}\" is not in the calendar of the years 0001 to 9999")?;
            }
            BoundError::Malformed(text) => write!(f, "the bound \"{text}\" cannot be read")?,
        }
        f.write_str(
            "; accepted are ISO dates and times such as 2024-01-31, 2024-01-31 06:00, \
             2024-01-31T06:00:00Z and 2024-01-31 06:00+05:30",
        )
    }
}

impl std::error::Error for BoundError {}

#[cfg(test)]
mod tests {
    use super::super::zone::fake::{fixed, half_hours, local, new_york, utc};
    use super::*;

    #[test]
    fn local_forms() {
        for (text, expected) in [
            ("2024-01-01", "2024-01-01T00:00:00"),
            ("  2024-01-01\n", "2024-01-01T00:00:00"),
            ("2024-02-29 06:07", "2024-02-29T06:07:00"),
            ("2024-02-29t06:07:08", "2024-02-29T06:07:08"),
            ("2024-02-29T06:07:08.25", "2024-02-29T06:07:08.25"),
            ("2024-02-29T06:07:08.123456000", "2024-02-29T06:07:08.123456"),
            ("2024-02-29T06:07:08.000", "2024-02-29T06:07:08"),
            ("2024-12-31 24:00", "2025-01-01T00:00:00"),
            ("2024-12-31T24:00:00.000", "2025-01-01T00:00:00"),
            ("0001-01-01", "0001-01-01T00:00:00"),
            ("9999-12-31T24:00", "+10000-01-01T00:00:00"),
        ] {
            assert_eq!(Bound::parse(text), Ok(Bound::Local(local(expected))), "{text}");
        }
    }

    #[test]
    fn absolute_forms() {
        for (text, expected) in [
            ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00"),
            ("2024-01-01 00:00:00+00", "2024-01-01T00:00:00"),
            ("2024-01-01 00:00 UTC", "2024-01-01T00:00:00"),
            ("2024-01-01 00:00gmt", "2024-01-01T00:00:00"),
            ("2024-01-01 00:00+05", "2023-12-31T19:00:00"),
            ("2024-01-01 00:00 +0530", "2023-12-31T18:30:00"),
            ("2024-01-01T00:00+05:30", "2023-12-31T18:30:00"),
            ("2024-01-01T00:00-03:30:15", "2024-01-01T03:30:15"),
            ("2024-01-01T00:00-033015", "2024-01-01T03:30:15"),
            ("2024-01-01T24:00+01", "2024-01-01T23:00:00"),
            ("0001-01-01T00:00+01", "0000-12-31T23:00:00"),
        ] {
            assert_eq!(Bound::parse(text), Ok(Bound::Absolute(utc(expected))), "{text}");
        }
    }

    #[test]
    fn refused_forms() {
        type Make = fn(String) -> BoundError;
        let cases: [(Make, &[&str]); 6] = [
            (BoundError::Word, &["now", "TODAY", "yesterday", "tomorrow", "epoch"]),
            (BoundError::Infinite, &["infinity", "-Infinity"]),
            (BoundError::Ambiguous, &["01/02/2024", "1.2.2024", "02-01-2024", "1/2/24 06:00"]),
            (
                BoundError::NamedZone,
                &["2024-01-01 00:00 PST", "2024-01-01 00:00 Europe/Berlin", "2024-01-01 00:00 BC"],
            ),
            (
                BoundError::Impossible,
                &["2023-02-29", "2024-13-01", "0000-01-01", "2024-01-01 24:01", "2024-01-01 00:60"],
            ),
            (
                BoundError::Malformed,
                &[
                    "x",
                    "2024",
                    "2024/01/02",
                    "2024-1-2",
                    "10000-01-01",
                    "-1",
                    "+5",
                    "20240101",
                    "2024-01",
                    "January 1, 2024",
                    "2024-01-01Z",
                    "2024-01-01+05",
                    "2024-01-01 BC",
                    "2024-01-01T",
                    "2024-01-01T06",
                    "2024-01-01T6:00",
                    "2024-01-01T06:00:",
                    "2024-01-01T06:00:00.",
                    "2024-01-01T06:00:00.1234567",
                    "2024-01-01T06:00+5",
                    "2024-01-01T06:00+16",
                    "2024-01-01T06:00+05:60",
                    "2024-01-01T06:00+05:30:00:00",
                    "2024-01-01T06:00+01Z",
                    "2024-01-01T06:00−05",
                    "2024-01-01\u{a0}06:00",
                    "2024-01-0१",
                    "日本",
                ],
            ),
        ];
        for (error, texts) in cases {
            for text in texts {
                assert_eq!(Bound::parse(text), Err(error((*text).into())));
            }
        }
        assert_eq!(Bound::parse(" "), Err(BoundError::Empty));
    }

    #[test]
    fn no_text_panics() {
        let parts = ["2024", "-", "01", "1", ":", ".", "T", " ", "+", "Z", "9", "é", "UTC", "24", "\0"];
        let mut state: u64 = 7;
        for _ in 0..200_000 {
            let mut text = String::from("2024-01-01");
            for _ in 0..state % 9 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text += parts[(state >> 33) as usize % parts.len()];
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let from = (state >> 33) as usize % 11;
            if let Ok(Bound::Local(local)) = Bound::parse(&text[from..]) {
                assert_eq!(Bound::parse(&local_text(local)), Ok(Bound::Local(local)), "{text}");
            }
        }
    }

    #[test]
    fn refusals_say_what_is_accepted() {
        let message = Bound::parse("today").unwrap_err().to_string();
        assert!(message.contains("\"today\"") && message.contains("2024-01-31T06:00:00Z"), "{message}");
    }

    #[test]
    fn text_is_short_and_reads_back() {
        for (text, expected) in [
            ("2013-03-10T00:00:00", "2013-03-10"),
            ("2013-03-10T06:00:00", "2013-03-10T06:00"),
            ("2013-03-10T06:00:05", "2013-03-10T06:00:05"),
            ("2013-03-10T06:00:00.500", "2013-03-10T06:00:00.5"),
            ("2013-03-10T00:00:00.000001", "2013-03-10T00:00:00.000001"),
        ] {
            assert_eq!(local_text(local(text)), expected);
            assert_eq!(Bound::parse(expected), Ok(Bound::Local(local(text))));
        }
        let zone = new_york();
        assert_eq!(instant_text(&zone, utc("2013-11-03T05:30:00")), "2013-11-03T01:30-04:00");
        assert_eq!(instant_text(&zone, utc("2013-11-03T06:30:00")), "2013-11-03T01:30-05:00");
        assert_eq!(instant_text(&fixed(0), utc("2013-11-03T06:00:00")), "2013-11-03T06:00+00:00");
        let zone = half_hours();
        for micros in [0, 1, 86_399_999_999, 500_000_000_000_000, -1] {
            let text = instant_text(&zone, Instant(micros));
            assert_eq!(Bound::parse(&text), Ok(Bound::Absolute(Instant(micros))), "{text}");
        }
        assert_eq!(instant_text(&zone, utc("2001-01-01T00:00:00")), "2001-01-01T04:30:45+04:30:45");
    }
}
