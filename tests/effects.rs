//! Effects: each leaves once, with the slice that it belongs to, or not at all.

mod allowing;
mod crashing;
mod delivering;
mod emitting;
mod suppressing;

use crate::support::{Calls, Lease, daily};
use pgrx_tests::{Database, Failure, Session};

/// What is taken where nothing is ready.
const NONE: [i64; 0] = [];

/// More arguments of a plan whose windows may have effects.
const WITH_EFFECTS: &str = ", effects => true";

/// A database whose pipeline `daily` has an approved plan of its first windows, with effects.
fn planned(settings: &str) -> Database {
    let database = daily(settings);
    database.connect().plan("2024-01-11", WITH_EFFECTS);
    database
}

/// An approved plan of the first window of `daily`.
fn plan_first(session: &mut Session, more: &str) -> i64 {
    session.plan("2024-01-02", more)
}

/// The calls of workers that emit and of those that deliver.
trait Outbox {
    /// What `effect_emit` answers for a mail under the token.
    fn try_mail(&mut self, token: i64, key: &str) -> Result<String, Failure>;
    fn mail(&mut self, token: i64, key: &str) -> String;
    /// Claims the next window, emits a mail and replaces its slice.
    fn mail_window(&mut self) -> (Lease, String);
    /// Takes up to `n` mails into the transaction.
    fn take(&mut self, n: i32) -> Vec<i64>;
    fn done(&mut self, id: i64);
    /// Delivers all that is ready, and says how much that was.
    fn deliver(&mut self) -> usize;
    /// Key, state and token of the mails.
    fn outbox(&mut self) -> Vec<String>;
}

impl Outbox for Session {
    #[track_caller]
    fn try_mail(&mut self, token: i64, key: &str) -> Result<String, Failure> {
        let payload = "jsonb_build_object('token', $1::bigint)";
        self.try_one(&format!("SELECT effect_emit($1, 'mail', {payload}, $2)"), &[&token, &key])
    }

    #[track_caller]
    fn mail(&mut self, token: i64, key: &str) -> String {
        self.try_mail(token, key).unwrap_or_else(|failure| panic!("{failure}"))
    }

    #[track_caller]
    fn mail_window(&mut self) -> (Lease, String) {
        let lease = self.lease();
        self.run("BEGIN");
        let answer = self.mail(lease.token, "");
        self.replace(lease.token).unwrap_or_else(|failure| panic!("{failure}"));
        self.run("COMMIT");
        (lease, answer)
    }

    #[track_caller]
    fn take(&mut self, n: i32) -> Vec<i64> {
        self.column("SELECT id FROM effect_take('mail', $1)", &[&n])
    }

    #[track_caller]
    fn done(&mut self, id: i64) {
        assert_eq!(self.one::<String>("SELECT effect_done($1)", &[&id]), "done");
    }

    #[track_caller]
    fn deliver(&mut self) -> usize {
        self.run("BEGIN");
        let taken = self.take(1000);
        taken.iter().for_each(|id| self.done(*id));
        self.run("COMMIT");
        taken.len()
    }

    #[track_caller]
    fn outbox(&mut self) -> Vec<String> {
        self.lines("SELECT key, state, token FROM backfill.effects ORDER BY id")
    }
}
