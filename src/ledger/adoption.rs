//! Slices that were in the target before the ledger knew them.
//!
//! An adopted slice is a run that nobody had a lease for: of kind `adopted`, done from the start, holding no permit.
//! Its window must not be handed out meanwhile, and no claim may wait for this transaction. So the mutex of each
//! window is tried, as claims do, and kept where a claim may come to the window by itself. To the others only a plan
//! leads, and none is approved meanwhile; keeping all would exhaust the server's table of locks. No grid is changed
//! meanwhile either.
//!
//! Taking an adoption back deletes the run: nothing ran, and the window is again what it was before. Who adopted it
//! and who took it back stays among the marks.

use crate::domain::calendar::Window;
use crate::domain::lifecycle::{Mark, State};
use crate::domain::zone::Instant;
use crate::error::Result;
use crate::ledger::claim::{hold_window, release_window};
use crate::ledger::grid;
use crate::ledger::mark::Decision;
use crate::ledger::piece::{Piece, Seen};
use crate::ledger::window::{self, Reading};
use crate::postgres::segment::Measure;
use crate::postgres::{datum, lock, lock::Key, role, spi};
use std::collections::HashSet;

/// A due window without a slice that nobody is to produce.
pub struct Candidate {
    pub window: Window,
    /// Its newest turn; 0 if it never had one.
    turn: i32,
}

/// The windows of the range that may be adopted by the end of this transaction.
pub fn candidates(decision: &Decision) -> Result<Vec<Candidate>> {
    let id = decision.pipeline.id;
    let free = || -> Result<Vec<Seen>> {
        let positions = decision.bounds.positions.clone();
        let mut pieces = window::look(Reading::Deciding, &decision.pipeline, positions, datum::clock())?;
        pieces.retain(is_free);
        Ok(window::one_by_one(&decision.pipeline, pieces).collect())
    };
    role::as_ledger(|| lock::exclusive(Key::Approve { pipeline: id }));
    grid::require_current(&decision.pipeline)?;
    let mut idle = HashSet::new();
    for seen in free()? {
        let start = seen.window.start;
        if hold_window(id, start) {
            idle.insert((start, starts_by_itself(&seen)));
            if !starts_by_itself(&seen) {
                release_window(id, start);
            }
        }
    }
    // What was read before its mutex was held may have moved.
    Ok(free()?
        .into_iter()
        .filter(|seen| {
            let start = seen.window.start;
            idle.contains(&(start, true)) || idle.contains(&(start, starts_by_itself(seen)))
        })
        .map(|seen| Candidate { window: seen.window, turn: seen.record().turn })
        .collect())
}

fn is_free(piece: &Piece) -> bool {
    let free = [State::Blocked, State::Failed, State::Refused, State::Eligible, State::Missed];
    let record = piece.record();
    free.contains(&piece.state) && record.owner_plan.is_none() && record.slice_token.is_none()
}

fn starts_by_itself(seen: &Seen) -> bool {
    matches!(seen.state, State::Blocked | State::Eligible)
}

/// The unique index on (window, turn) leaves out a window that somebody else took after all.
const ADOPT: &str = "WITH drawn AS MATERIALIZED (
        SELECT pg_catalog.nextval('backfill.token_seq') AS token, w.*
        FROM ROWS FROM (pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8), pg_catalog.unnest($9),
                        pg_catalog.unnest($10), pg_catalog.unnest($11))
            AS w (window_start, window_end, turn, seq, rows, digest)
    ), adopted AS (
        INSERT INTO backfill.run_data
            (token, pipeline_id, window_start, window_end, turn, attempt, seq, in_order, run_kind,
             pool_id, pool_slot, pool_gen, limit_slot, limit_gen, role, code_version, as_of,
             started_at, expires_at, published_at, ended_at, outcome, rows, digest)
        SELECT d.token, $1, d.window_start, d.window_end, d.turn, 0, d.seq, false, 'adopted',
               0, 0, d.token, 0, d.token, $3, $4, $5, $5, $5, $5, $5, 'done', d.rows, d.digest
        FROM drawn d
        ON CONFLICT DO NOTHING
        RETURNING window_start, token, rows
    ), said AS (
        INSERT INTO backfill.mark_data (pipeline_id, window_start, mark, reason, marked_by, token)
        SELECT $1, a.window_start, 'adopted', $2, $3, a.token FROM adopted a
    )
    SELECT pg_catalog.count(*), COALESCE(pg_catalog.sum(a.rows), 0)::pg_catalog.int8 FROM adopted a";

/// Writes the slices; says how many windows and rows that are.
pub fn write(decision: &Decision, code_version: &str, slices: &[(Candidate, Measure)]) -> (i64, i64) {
    let args = [
        decision.pipeline.id.into(),
        decision.reason.as_str().into(),
        decision.by.as_str().into(),
        code_version.into(),
        datum::clock().into(),
        slices.iter().map(|(c, _)| c.window.start).collect::<Vec<Instant>>().into(),
        slices.iter().map(|(c, _)| c.window.end).collect::<Vec<Instant>>().into(),
        slices.iter().map(|(c, _)| c.turn + 1).collect::<Vec<i32>>().into(),
        slices.iter().map(|(c, _)| c.window.position).collect::<Vec<i64>>().into(),
        slices.iter().map(|(_, m)| m.rows as i64).collect::<Vec<i64>>().into(),
        slices.iter().map(|(_, m)| m.digest.to_string()).collect::<Vec<String>>().into(),
    ];
    let written = role::as_ledger(|| spi::first(ADOPT, &args, |row| (row.at(1), row.at(2))));
    written.expect("an aggregate has one row")
}

const TAKE_BACK: &str = "DELETE FROM backfill.run_data r
    WHERE r.pipeline_id = $1 AND r.window_start = ANY ($2) AND r.run_kind = 'adopted'
      AND NOT EXISTS (SELECT FROM backfill.run_data n
                      WHERE n.pipeline_id = $1 AND n.window_start = r.window_start AND n.turn > r.turn
                        AND n.published_at IS NOT NULL)
    RETURNING r.window_start";

/// Takes back those slices of the windows that were adopted and not replaced since; says how many.
pub fn take_back(decision: &Decision) -> u64 {
    role::as_ledger(|| {
        let args = [decision.pipeline.id.into(), decision.starts().into()];
        let gone = spi::query(TAKE_BACK, &args, |row| row.at(1));
        decision.lift(Mark::Adopted, gone)
    })
}
