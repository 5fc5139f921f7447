//! The step between two boundaries of a pipeline's calendar.
//!
//! ```text
//! Cadence::from_parts(months, days, micros) -> Result<Cadence, CadenceError>
//! ```
//!
//! Months and days are calendar steps, taken on the local clock; a time is an exact duration. Weeks
//! are 7 days, quarters 3 months, years 12 months. `24 hours` is a duration and `1 day` is not: a
//! local day has 23, 24 or 25 hours.

use std::fmt;

/// A positive step. Only [`Cadence::from_parts`] builds one, and a calendar relies on its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cadence {
    Months(i32),
    Days(i32),
    /// An exact duration in microseconds.
    Micros(i64),
}

/// Which rule of a cadence the three fields of an interval break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CadenceError {
    /// All fields are zero.
    Zero,
    /// The one field that is not zero is negative.
    Negative,
    /// More than one field is not zero, so that the step has no single meaning.
    Mixed,
}

impl Cadence {
    /// Reads the fields of a PostgreSQL interval.
    ///
    /// # Errors
    /// Exactly one field must be other than zero, and it must be positive.
    pub fn from_parts(months: i32, days: i32, micros: i64) -> Result<Cadence, CadenceError> {
        match (months, days, micros) {
            (0, 0, 0) => Err(CadenceError::Zero),
            (1.., 0, 0) => Ok(Cadence::Months(months)),
            (0, 1.., 0) => Ok(Cadence::Days(days)),
            (0, 0, 1..) => Ok(Cadence::Micros(micros)),
            (_, 0, 0) | (0, _, 0) | (0, 0, _) => Err(CadenceError::Negative),
            _ => Err(CadenceError::Mixed),
        }
    }
}

impl fmt::Display for CadenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CadenceError::Zero => "a cadence must be longer than zero",
            CadenceError::Negative => "a cadence must be positive",
            CadenceError::Mixed => "a cadence must be months, or days, or a time, and not a mixture of them",
        })
    }
}

impl std::error::Error for CadenceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_positive_field() {
        assert_eq!(Cadence::from_parts(3, 0, 0), Ok(Cadence::Months(3)));
        assert_eq!(Cadence::from_parts(0, 7, 0), Ok(Cadence::Days(7)));
        assert_eq!(Cadence::from_parts(0, 0, 1), Ok(Cadence::Micros(1)));
        assert_eq!(Cadence::from_parts(0, 0, 0), Err(CadenceError::Zero));
        for (months, days, micros) in [(-1, 0, 0), (0, i32::MIN, 0), (0, 0, i64::MIN)] {
            assert_eq!(Cadence::from_parts(months, days, micros), Err(CadenceError::Negative));
        }
        for (months, days, micros) in [(1, 1, 0), (1, 0, 1), (0, 1, -1), (-1, -1, -1)] {
            assert_eq!(Cadence::from_parts(months, days, micros), Err(CadenceError::Mixed));
        }
    }
}
