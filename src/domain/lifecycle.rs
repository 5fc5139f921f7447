//! The state of a window: derived, never stored.
//!
//! ```text
//!   future ─▶ eligible ─▶ leased ─▶ done ─▶ stale (its slice was marked) ─▶ (planned again) queued
//!      │         ▲          │ ▲
//!      │         │          ▼ │ permit
//!      │       (live)    retrying ─▶ failed        refused (what was produced was not accepted)
//!      ▼                      attempts used up
//!   missed ─▶ queued (in an approved plan) ─▶ leased
//!      └────▶ adopted (its rows were in the target before)
//!
//!   done ─▶ outdated (the pipeline runs other code now), and back when that is taken back or said to mean the same
//!
//!   leased ─▶ staged ─▶ done, where its plan publishes all its windows together
//!
//!   done ─▶ missed, where its plan is reverted and it had no slice before; to done or stale where it had one
//!
//!   locked, skipped   a person closed the window: from every state, and back when that is lifted
//!   blocked           in place of queued or eligible, while a window before it is in its way, or its code version is
//!                     (`ledger::mixture`); and stale for done, where
//!                     that was built again: see `ledger::sequence`
//! ```
//!
//! A window that is verified shows queued and leased, and then what it showed before.
//!
//! A window shows the first state in the order of [`State`] whose condition holds. A closed window has no lease
//! and will not be retried, whatever its newest run says.

use std::fmt;

/// What a window shows, in order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// A worker holds its lease.
    Leased,
    /// Its new rows are ready, for a plan that publishes all its windows at once.
    Staged,
    /// It will be tried again by itself: its attempt failed, or its lease expired.
    Retrying,
    /// A person closed it until it is unlocked.
    Locked,
    /// A person decided that it does not run.
    Skipped,
    /// It waits for the window before it, on which it depends, or for a decision about its code version.
    Blocked,
    /// An approved plan will run it.
    Queued,
    /// Its attempts are used up.
    Failed,
    /// What was produced for it was refused.
    Refused,
    /// Its slice is published, and what it was built from has changed since, or a person said that it is out of date.
    Stale,
    /// Its slice is published, and was built by other code than the pipeline runs now.
    Outdated,
    /// Its slice was in the target before the ledger knew it.
    Adopted,
    /// Its slice is published.
    Done,
    /// It may start by itself.
    Eligible,
    /// It is due, never started, and needs a plan.
    Missed,
    /// It is not due yet.
    Future,
}

impl State {
    pub const ALL: [State; 16] = [
        State::Leased,
        State::Staged,
        State::Retrying,
        State::Locked,
        State::Skipped,
        State::Blocked,
        State::Queued,
        State::Failed,
        State::Refused,
        State::Stale,
        State::Outdated,
        State::Adopted,
        State::Done,
        State::Eligible,
        State::Missed,
        State::Future,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Staged => "staged",
            Self::Retrying => "retrying",
            Self::Locked => "locked",
            Self::Skipped => "skipped",
            Self::Blocked => "blocked",
            Self::Queued => "queued",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Stale => "stale",
            Self::Outdated => "outdated",
            Self::Adopted => "adopted",
            Self::Done => "done",
            Self::Eligible => "eligible",
            Self::Missed => "missed",
            Self::Future => "future",
        }
    }

    /// How a calendar shows it; letters stand for code versions there.
    pub fn glyph(self) -> char {
        match self {
            Self::Leased => '>',
            Self::Staged => '^',
            Self::Retrying => '~',
            Self::Locked => '=',
            Self::Skipped => '-',
            Self::Blocked => '|',
            Self::Queued => '+',
            Self::Failed => '!',
            Self::Refused => '?',
            Self::Stale => '*',
            Self::Outdated => '%',
            Self::Adopted => '@',
            Self::Done => '#',
            Self::Eligible => ':',
            Self::Missed => '.',
            Self::Future => '_',
        }
    }
}

/// What a person said about a window, in the order in which one hides the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Closed until it is unlocked. A plan that owns the window runs it then.
    Locked,
    /// It does not run; a plan that owned it does not get it back.
    Skipped,
    /// Its slice, or what is being produced for it now, is out of date.
    Stale,
    /// The rows in the target are its slice.
    Adopted,
}

impl Mark {
    pub const ALL: [Mark; 4] = [Mark::Locked, Mark::Skipped, Mark::Stale, Mark::Adopted];

    /// What the ledger calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Skipped => "skipped",
            Self::Stale => "stale",
            Self::Adopted => "adopted",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mark| mark.name() == name)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a run stands; a run of a cancelled plan, a closed window or a dropped pipeline is `Revoked`, whether or
/// not the ledger says so already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Open,
    /// Open, past its expiry, and not taken over yet.
    Overdue,
    Done,
    Failed,
    Refused,
    Released,
    Expired,
    Revoked,
}

/// What is known of a window.
#[derive(Debug, Clone, Copy, Default)]
pub struct Facts {
    /// How its newest run stands, if it ever had one.
    pub newest: Option<Outcome>,
    /// A claim will come back to it by itself.
    pub requeued: bool,
    /// An overdue run has attempts left.
    pub attempts_left: bool,
    pub locked: bool,
    pub skipped: bool,
    /// An approved plan owns it.
    pub owned: bool,
    /// Its newest run has ended well in a plan that publishes it later.
    pub staged: bool,
    /// It has a published slice.
    pub has_slice: bool,
    /// The slice was marked since its run began.
    pub stale: bool,
    /// The slice was built by another version than that of the pipeline now.
    pub outdated: bool,
    /// The slice is one that was adopted.
    pub adopted: bool,
    /// The catchup rule admits it.
    pub admitted: bool,
    pub due: bool,
}

impl Facts {
    /// The one state that the window shows.
    pub fn state(self) -> State {
        use Outcome::{Expired, Failed, Open, Overdue, Refused, Released};
        let newest = self.newest;
        // Before it is handed out again, a released window is as if it had not been claimed.
        let comes_back = self.requeued && newest != Some(Released);
        if self.locked {
            return State::Locked;
        }
        if self.skipped {
            return State::Skipped;
        }
        match newest {
            Some(Open) => State::Leased,
            Some(Overdue) if self.attempts_left => State::Retrying,
            _ if self.staged => State::Staged,
            Some(Failed | Expired) if comes_back => State::Retrying,
            _ if self.owned => State::Queued,
            Some(Failed | Expired | Overdue) => State::Failed,
            Some(Refused) => State::Refused,
            _ if self.has_slice && self.stale => State::Stale,
            _ if self.has_slice && self.outdated => State::Outdated,
            _ if self.has_slice && self.adopted => State::Adopted,
            _ if self.has_slice => State::Done,
            _ if !self.due => State::Future,
            None if self.admitted => State::Eligible,
            Some(_) if self.requeued => State::Eligible,
            _ => State::Missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due() -> Facts {
        Facts { due: true, ..Facts::default() }
    }

    #[test]
    fn every_state_has_a_glyph_of_its_own() {
        let glyphs: std::collections::BTreeSet<char> = State::ALL.into_iter().map(State::glyph).collect();
        assert_eq!(glyphs.len(), State::ALL.len());
        assert!(glyphs.iter().all(char::is_ascii_punctuation), "{glyphs:?}");
    }

    #[test]
    fn a_window_without_history() {
        assert_eq!(Facts::default().state(), State::Future);
        assert_eq!(due().state(), State::Missed);
        assert_eq!(Facts { admitted: true, ..due() }.state(), State::Eligible);
        assert_eq!(Facts { admitted: true, owned: true, ..due() }.state(), State::Queued);
        assert_eq!(Facts { has_slice: true, ..due() }.state(), State::Done);
    }

    #[test]
    fn the_newest_run_decides() {
        let with = |newest, requeued| Facts { newest: Some(newest), requeued, ..due() }.state();
        assert_eq!(with(Outcome::Open, false), State::Leased);
        assert_eq!(with(Outcome::Failed, true), State::Retrying);
        assert_eq!(with(Outcome::Failed, false), State::Failed);
        assert_eq!(with(Outcome::Refused, false), State::Refused);
        assert_eq!(with(Outcome::Released, true), State::Eligible);
        assert_eq!(with(Outcome::Revoked, false), State::Missed);
        assert_eq!(with(Outcome::Expired, true), State::Retrying);
        assert_eq!(with(Outcome::Overdue, false), State::Failed);
    }

    #[test]
    fn a_decision_of_a_person_hides_everything() {
        for newest in [Outcome::Open, Outcome::Overdue, Outcome::Failed, Outcome::Done] {
            let facts = Facts { newest: Some(newest), requeued: true, owned: true, has_slice: true, ..due() };
            assert_eq!(Facts { skipped: true, ..facts }.state(), State::Skipped);
            assert_eq!(Facts { locked: true, ..facts }.state(), State::Locked);
            assert_eq!(Facts { locked: true, skipped: true, ..facts }.state(), State::Locked);
        }
    }

    #[test]
    fn a_slice_is_stale_before_it_is_adopted_and_neither_hides_what_will_run() {
        let adopted = Facts { newest: Some(Outcome::Done), has_slice: true, adopted: true, ..due() };
        assert_eq!(adopted.state(), State::Adopted);
        let outdated = Facts { outdated: true, ..adopted };
        assert_eq!(outdated.state(), State::Outdated);
        assert_eq!(Facts { has_slice: false, newest: None, ..outdated }.state(), State::Missed);
        let stale = Facts { stale: true, ..outdated };
        assert_eq!(stale.state(), State::Stale);
        assert_eq!(Facts { owned: true, ..stale }.state(), State::Queued);
        assert_eq!(Facts { owned: true, staged: true, ..stale }.state(), State::Staged);
        assert_eq!(Facts { owned: true, staged: true, locked: true, ..stale }.state(), State::Locked);
        assert_eq!(Facts { newest: Some(Outcome::Open), ..stale }.state(), State::Leased);
        assert_eq!(Facts { newest: Some(Outcome::Failed), ..stale }.state(), State::Failed);
        // A mark of a window whose first run never published anything.
        assert_eq!(
            Facts { has_slice: false, newest: Some(Outcome::Revoked), ..stale }.state(),
            State::Missed
        );
    }

    /// No due window is lost: whatever is known of it, it shows a state other than "future".
    #[test]
    fn every_due_window_has_a_state() {
        let outcomes = [
            None,
            Some(Outcome::Open),
            Some(Outcome::Overdue),
            Some(Outcome::Done),
            Some(Outcome::Failed),
            Some(Outcome::Refused),
            Some(Outcome::Released),
            Some(Outcome::Expired),
            Some(Outcome::Revoked),
        ];
        for newest in outcomes {
            for bits in 0..2048 {
                let bit = |n: u32| bits >> n & 1 == 1;
                let facts = Facts {
                    newest,
                    requeued: bit(0),
                    attempts_left: bit(1),
                    skipped: bit(2),
                    owned: bit(3),
                    has_slice: bit(4),
                    admitted: bit(5),
                    locked: bit(6),
                    stale: bit(7),
                    adopted: bit(8),
                    staged: bit(9),
                    outdated: bit(10),
                    due: true,
                };
                assert_ne!(facts.state(), State::Future, "{facts:?}");
            }
        }
    }
}
