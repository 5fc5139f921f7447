//! Errors as a person reads them: SQLSTATE, message, DETAIL, HINT.

use postgres::error::DbError;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// What the server said went wrong. Boxed, since it travels in results.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Failure(Box<Fields>);

/// The fields of an error or notice; empty where the server sent none. A broken connection has no SQLSTATE.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fields {
    pub sqlstate: String,
    pub message: String,
    pub detail: String,
    pub hint: String,
    /// The CONTEXT lines.
    pub context: String,
    pub schema: String,
    pub table: String,
    pub column: String,
    pub constraint: String,
}

impl Failure {
    /// Reads the fields of a server's error.
    pub fn of(error: &postgres::Error) -> Self {
        match error.as_db_error() {
            Some(error) => Self::from(error),
            None => Fields { message: error.to_string(), ..Fields::default() }.into(),
        }
    }
}

impl From<Fields> for Failure {
    fn from(fields: Fields) -> Self {
        Self(Box::new(fields))
    }
}

impl Deref for Failure {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl DerefMut for Failure {
    fn deref_mut(&mut self) -> &mut Fields {
        &mut self.0
    }
}

impl From<&DbError> for Failure {
    fn from(error: &DbError) -> Self {
        let text = |field: Option<&str>| field.unwrap_or_default().to_owned();
        Fields {
            sqlstate: error.code().code().to_owned(),
            message: error.message().to_owned(),
            detail: text(error.detail()),
            hint: text(error.hint()),
            context: text(error.where_()),
            schema: text(error.schema()),
            table: text(error.table()),
            column: text(error.column()),
            constraint: text(error.constraint()),
        }
        .into()
    }
}

impl From<&postgres::Error> for Failure {
    fn from(error: &postgres::Error) -> Self {
        Self::of(error)
    }
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Self {
        Self::of(&error)
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.to_string()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            if self.sqlstate.is_empty() { "no SQLSTATE" } else { &self.sqlstate },
            self.message
        )?;
        for (name, value) in [
            ("DETAIL", &self.detail),
            ("HINT", &self.hint),
            ("CONTEXT", &self.context),
            ("CONSTRAINT", &self.constraint),
        ] {
            if !value.is_empty() {
                write!(f, "\n{name}: {value}")?;
            }
        }
        Ok(())
    }
}

/// The same text: a panic shows a failure through Debug.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// The failure, if the result is one with this SQLSTATE; panics with all its fields if it is another, or
/// none. [`assert_sqlstate!`](crate::assert_sqlstate) is this with the expression's own text.
#[track_caller]
pub fn expect_sqlstate<T, E: Into<Failure>>(what: &str, result: Result<T, E>, sqlstate: &str) -> Failure {
    match result.map_err(Into::into) {
        Ok(_) => panic!("expected SQLSTATE {sqlstate}, but this succeeded: {what}"),
        Err(failure) if failure.sqlstate == sqlstate => failure,
        Err(failure) => panic!("expected SQLSTATE {sqlstate} from: {what}\n{failure}"),
    }
}

/// Asserts that a result is an error with this SQLSTATE, and returns the [`Failure`].
#[macro_export]
macro_rules! assert_sqlstate {
    ($result:expr, $sqlstate:expr $(,)?) => {
        $crate::expect_sqlstate(stringify!($result), $result, $sqlstate)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stale() -> Failure {
        let fields = Fields {
            sqlstate: "BF001".into(),
            message: "token 7 is stale".into(),
            hint: "claim again".into(),
            ..Fields::default()
        };
        fields.into()
    }

    #[test]
    fn the_expected_sqlstate_gives_the_failure_back() {
        let result: Result<(), Failure> = Err(stale());
        assert_eq!(assert_sqlstate!(result, "BF001").hint, "claim again");
    }

    #[test]
    #[should_panic(expected = "BF001: token 7 is stale\nHINT: claim again")]
    fn another_sqlstate_shows_all_fields() {
        let result: Result<(), Failure> = Err(stale());
        assert_sqlstate!(result, "BF002");
    }
}
