//! The next windows of a source, in its order.

use crate::domain::calendar::Window;
use crate::domain::zone::Instant;
use crate::ledger::claim::{Source, hold_window, release_window};
use crate::ledger::permit::Holder;
use crate::ledger::{requeue, sequence, sweep, takeover};
use crate::postgres::{datum, spi};

/// A window that may be handed out and whose mutex is held.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub window_start: Instant,
    pub window_end: Instant,
    /// The newest turn that the window has had; 0 if none.
    pub turn: i32,
    pub attempt: i32,
    pub seq: i64,
    pub run_kind: &'static str,
    /// Whether a row of the queue names it.
    pub queued: bool,
}

/// A window of a source's order, as it was read.
struct Offer {
    candidate: Candidate,
    /// The turn after which the queue's row counts.
    after_turn: Option<i32>,
    /// The open run of the window, if there is one.
    holder: Option<Holder>,
    /// The plan has had it already, out of its order.
    taken: bool,
}

macro_rules! newest_run {
    ($of:literal) => {
        concat!(
            " LEFT JOIN LATERAL (
                SELECT n.turn, CASE WHEN n.ended_at IS NULL THEN n.token END AS token, n.plan_id, n.expires_at
                FROM backfill.run_data n
                WHERE n.pipeline_id = $1 AND n.window_start = ", $of, ".window_start
                ORDER BY n.turn DESC LIMIT 1
            ) r ON true
            LEFT JOIN backfill.heartbeat_data h ON h.token = r.token "
        )
    };
}

/// That no decision of a person keeps the window from the source. Said before the LIMIT of a statement, so that closed
/// windows hide none behind them.
macro_rules! is_open {
    ($of:literal, $plan:literal) => {
        concat!(
            " NOT EXISTS (SELECT FROM backfill.closing_data c
                WHERE c.pipeline_id = $1 AND c.window_start = ",
            $of,
            ".window_start AND (c.in_force OR c.plan_id = ",
            $plan,
            ")) "
        )
    };
}

macro_rules! offer {
    ($of:literal, $attempt:literal, $after_turn:literal) => {
        concat!(
            $of,
            ".seq, ",
            $of,
            ".window_start, ",
            $of,
            ".window_end, ",
            $attempt,
            ", ",
            $after_turn,
            ", COALESCE(r.turn, 0), r.token, r.plan_id,
             COALESCE(COALESCE(h.expires_at, r.expires_at) < pg_catalog.clock_timestamp(), false)"
        )
    };
}

macro_rules! queued {
    ($rank:literal) => {
        concat!(
            "SELECT ",
            offer!("q", "q.attempt", "q.after_turn"),
            ", false FROM (
                SELECT * FROM backfill.requeue_data q
                WHERE q.pipeline_id = $1 AND q.plan_id = $2 AND q.rank = ",
            $rank,
            "
                  AND q.due_at <= pg_catalog.clock_timestamp()
                  AND ($4 IS NULL OR q.window_start = $4)
                  AND NOT ($2 = 0 AND EXISTS (SELECT FROM backfill.owned_data o
                        WHERE o.pipeline_id = $1 AND o.window_start = q.window_start))
                  AND",
            is_open!("q", "$2"),
            "
                ORDER BY q.due_at, q.seq LIMIT $3
             ) q",
            newest_run!("q")
        )
    };
}
const KEEPING_PLACE: &str = queued!("0");
const RETRIES: &str = queued!("1");

const UNTRIED: &str = concat!(
    "SELECT ",
    offer!("w", "1", "NULL::pg_catalog.int4"),
    // The newest run may be another plan's, which got the window once this one was done with it.
    ", CASE WHEN r.turn IS NOT NULL THEN EXISTS (
            SELECT FROM backfill.run_data own
            WHERE own.pipeline_id = $1 AND own.window_start = w.window_start AND own.plan_id = $2)
        ELSE false END
     FROM (
        SELECT * FROM backfill.plan_window_data w
        WHERE w.plan_id = $2
          AND w.seq > COALESCE($4, (SELECT o.seq FROM backfill.run_data o WHERE o.plan_id = $2 AND o.in_order
                                    ORDER BY o.seq DESC LIMIT 1), 0)
          AND w.seq <= $5
          AND",
    is_open!("w", "$2"),
    "
        ORDER BY w.seq LIMIT $3
     ) w",
    newest_run!("w")
);

const HOLES: &str = concat!(
    "SELECT ",
    offer!("w", "1", "NULL::pg_catalog.int4"),
    ", false FROM (
        SELECT w.* FROM backfill.plan_hole_data o
        JOIN backfill.plan_window_data w ON w.plan_id = o.plan_id AND w.seq = o.seq
        WHERE o.plan_id = $2 AND o.seq > $4 AND o.seq <= $5
          AND NOT EXISTS (SELECT FROM backfill.run_data own
                          WHERE own.pipeline_id = $1 AND own.window_start = w.window_start
                            AND own.plan_id = $2)
          AND",
    is_open!("w", "$2"),
    "
        ORDER BY o.seq LIMIT $3
     ) w",
    newest_run!("w")
);

const UNTRIED_NAMED: &str = concat!(
    "SELECT ",
    offer!("w", "1", "NULL::pg_catalog.int4"),
    ", false FROM (
        SELECT * FROM backfill.plan_window_data w
        WHERE w.pipeline_id = $1 AND w.plan_id = $2 AND w.window_start = $4 AND w.seq <= $5
          AND",
    is_open!("w", "$2"),
    "
        LIMIT $3
     ) w",
    newest_run!("w"),
    "WHERE NOT EXISTS (SELECT FROM backfill.run_data own
        WHERE own.pipeline_id = $1 AND own.window_start = w.window_start AND own.plan_id = $2)"
);

const LIVE_STARTED: &str = concat!(
    // A verification of a slice that was adopted, and is no more, is no start.
    "SELECT w.place - 1, COALESCE((SELECT pg_catalog.max(r.turn) FROM backfill.run_data r
                                    WHERE r.pipeline_id = $1 AND r.window_start = w.window_start), 0)
    FROM pg_catalog.unnest($2) WITH ORDINALITY w (window_start, place)
    WHERE NOT EXISTS (SELECT FROM backfill.run_data r WHERE r.pipeline_id = $1 AND r.window_start = w.window_start
                      AND (r.run_kind <> 'verify' OR r.ended_at IS NULL))
      AND NOT EXISTS (SELECT FROM backfill.owned_data o
                      WHERE o.pipeline_id = $1 AND o.window_start = w.window_start)
      AND",
    is_open!("w", "0"),
    "
    ORDER BY w.place LIMIT $3"
);

/// Rows beyond what is wanted that a statement reads, because other claims may hold the first ones.
const SPARE: usize = 16;
/// Live windows looked at in one statement.
const CHUNK: usize = 256;

/// Up to `want` windows of the source whose mutexes were free, in its order; only `only`, if it is given.
pub fn pick(source: &Source, only: Option<Window>, want: usize) -> Vec<Candidate> {
    let mut picked = Picked { source, want, windows: vec![] };
    if source.queued {
        picked.queued(KEEPING_PLACE, only);
    }
    match (source.plan_id, only) {
        (0, only) => picked.live(only),
        (_, None) => picked.plan(),
        (_, Some(only)) if source.in_sequence => picked.next_of_plan(only),
        (_, Some(only)) => picked.plan_window(only),
    }
    if source.queued {
        picked.queued(RETRIES, only);
    }
    if picked.windows.is_empty() && only.is_none() && source.plan_id > 0 && source.swept {
        sweep::drain(source);
    }
    picked.windows
}

struct Picked<'s> {
    source: &'s Source,
    want: usize,
    windows: Vec<Candidate>,
}

impl Picked<'_> {
    fn missing(&self) -> usize {
        self.want - self.windows.len()
    }

    fn limit(&self) -> i64 {
        (self.missing() + SPARE) as i64
    }

    /// The last place of the plan's list that may be handed out.
    fn last_place(&self) -> i64 {
        self.source.canary.map_or(i64::MAX, i64::from)
    }

    /// Windows that the queue names: all of them that are due, until enough are found.
    fn queued(&mut self, sql: &'static str, only: Option<Window>) {
        while self.missing() > 0 {
            let limit = self.limit();
            let args = [
                self.source.pipeline.id.into(),
                self.source.plan_id.into(),
                limit.into(),
                only.map(|w| w.start).into(),
            ];
            let offers = spi::query(sql, &args, |row| self.offer(row, true));
            let read = offers.len() as i64;
            let (overtaken, offers): (Vec<Offer>, Vec<Offer>) =
                offers.into_iter().partition(|offer| offer.after_turn != Some(offer.candidate.turn));
            // Whoever writes the queue's row of a window holds its mutex, so that claims do not wait.
            let pipeline_id = self.source.pipeline.id;
            let overtaken: Vec<Instant> = overtaken
                .into_iter()
                .map(|offer| offer.candidate.window_start)
                .filter(|start| hold_window(pipeline_id, *start))
                .collect();
            let removed = overtaken.len();
            requeue::remove(pipeline_id, self.source.plan_id, overtaken);
            self.accept(offers);
            // Only removed rows make room for rows that were not read yet.
            if read < limit || removed == 0 {
                return;
            }
        }
    }

    /// The windows of the plan's list behind the highest place that any claim has reached, and at its end those
    /// that were passed over.
    fn plan(&mut self) {
        if self.source.in_sequence && self.source.queued {
            return;
        }
        // A canary's part of the list is short and walked whole, so that nothing behind it is noted as a hole.
        if self.source.canary.is_some() {
            self.listed(UNTRIED, Some(0));
            return;
        }
        if !self.source.swept {
            // Without a place to begin behind: the highest one that any claim has reached.
            self.listed(UNTRIED, None);
            if self.missing() == 0 || !sweep::sweep(self.source) {
                return;
            }
        }
        self.listed(HOLES, Some(0));
    }

    /// Windows of the list behind the place `after`, until enough are found.
    fn listed(&mut self, sql: &'static str, mut after: Option<i64>) {
        while self.missing() > 0 {
            let limit = self.limit();
            let args = [
                self.source.pipeline.id.into(),
                self.source.plan_id.into(),
                limit.into(),
                after.into(),
                self.last_place().into(),
            ];
            let offers = spi::query(sql, &args, |row| self.offer(row, false));
            let at_end = (offers.len() as i64) < limit;
            after = offers.last().map_or(after, |offer| Some(offer.candidate.seq));
            self.accept(offers);
            if at_end {
                return;
            }
        }
    }

    /// A window of a plan that runs in order is handed out in its turn, also to whoever names it.
    fn next_of_plan(&mut self, only: Window) {
        self.plan();
        let others = self.windows.extract_if(.., |window| window.window_start != only.start);
        others.for_each(|window| release_window(self.source.pipeline.id, window.window_start));
    }

    fn plan_window(&mut self, only: Window) {
        let args = [
            self.source.pipeline.id.into(),
            self.source.plan_id.into(),
            1_i64.into(),
            only.start.into(),
            self.last_place().into(),
        ];
        let offers = spi::query(UNTRIED_NAMED, &args, |row| self.offer(row, false));
        self.accept(offers);
    }

    /// Live windows that never started and that the catchup rule admits, oldest first.
    fn live(&mut self, only: Option<Window>) {
        let pipeline = &self.source.pipeline;
        let newest = self.source.newest;
        let admission = pipeline.admission(datum::clock(), newest);
        let started = pipeline.highest_started(newest);
        // Behind the newest start nothing has run: begin there, so that a long backlog costs no more than a
        // short one, and look at what lies before it only if that is not enough.
        let behind = |range: &std::ops::Range<i64>| range.start.max(started + 1)..range.end;
        let before = |range: &std::ops::Range<i64>| range.start..range.end.min(started + 1);
        let (catchup, backlog) = (&admission.catchup, &admission.backlog);
        for (range, run_kind) in [
            (behind(catchup), "catchup"),
            (behind(backlog), "scheduled"),
            (before(catchup), "catchup"),
            (before(backlog), "scheduled"),
        ] {
            match only {
                Some(window) if range.contains(&window.position) => {
                    self.live_windows(&[window], run_kind);
                }
                Some(_) => {}
                None => self.live_range(range, run_kind),
            }
        }
    }

    fn live_range(&mut self, range: std::ops::Range<i64>, run_kind: &'static str) {
        let Ok(mut windows) = self.source.pipeline.grid.windows(range) else { return };
        while self.missing() > 0 {
            let chunk: Vec<Window> = windows.by_ref().take(CHUNK).collect();
            if chunk.is_empty() {
                return;
            }
            self.live_windows(&chunk, run_kind);
        }
    }

    fn live_windows(&mut self, windows: &[Window], run_kind: &'static str) {
        let starts: Vec<Instant> = windows.iter().map(|w| w.start).collect();
        let args = [self.source.pipeline.id.into(), starts.into(), self.limit().into()];
        let free = spi::query(LIVE_STARTED, &args, |row| (row.at::<i64>(1) as usize, row.at::<i32>(2)));
        let offers = free
            .into_iter()
            .map(|(place, turn)| {
                let window = &windows[place];
                Offer {
                    candidate: Candidate {
                        window_start: window.start,
                        window_end: window.end,
                        turn,
                        attempt: 1,
                        seq: window.position,
                        run_kind,
                        queued: false,
                    },
                    after_turn: None,
                    holder: None,
                    taken: false,
                }
            })
            .collect();
        self.accept(offers);
    }

    fn offer(&self, row: &spi::Row, queued: bool) -> Offer {
        let source = self.source;
        let window_start: Instant = row.at(2);
        let seq: i64 = row.at(1);
        Offer {
            candidate: Candidate {
                seq,
                window_start,
                window_end: row.at(3),
                attempt: row.at(4),
                turn: row.at(6),
                run_kind: if source.verifies {
                    "verify"
                } else if source.plan_id > 0 {
                    "backfill"
                } else if seq > source.pipeline.newest_due(source.pipeline.active_since) {
                    "scheduled"
                } else {
                    "catchup"
                },
                queued,
            },
            after_turn: row.get(5),
            holder: row.get::<i64>(7).map(|token| Holder {
                token,
                pipeline_id: source.pipeline.id,
                plan_id: row.at(8),
                window_start,
                expired: row.at(9),
            }),
            taken: row.at(10),
        }
    }

    /// Takes those offers that can be had. A window whose lease is dead is taken over.
    fn accept(&mut self, offers: Vec<Offer>) {
        for offer in offers {
            if self.missing() == 0 {
                return;
            }
            let start = offer.candidate.window_start;
            if offer.taken || self.windows.iter().any(|w| w.window_start == start) {
                continue;
            }
            let pipeline_id = self.source.pipeline.id;
            let pipeline = &self.source.pipeline;
            if pipeline.depends_on_past && !sequence::is_ready(pipeline, start) {
                continue;
            }
            if !hold_window(pipeline_id, start) {
                continue;
            }
            let free = match &offer.holder {
                None => true,
                Some(holder) => holder.is_dead() && takeover::take_over(holder),
            };
            if free {
                self.windows.push(offer.candidate);
            } else {
                release_window(pipeline_id, start);
            }
        }
    }
}
