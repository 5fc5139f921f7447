//! Windows as a calendar of text.

use crate::domain::bound::instant_text;
use crate::domain::chart::{self, Cell, MOST};
use crate::domain::lifecycle::State;
use crate::error::{Code, Error, Result, answer};
use crate::ledger::piece::Seen;
use crate::ledger::pipeline::Pipeline;
use crate::ledger::rights::Level;
use crate::ledger::window::{self, Reading};
use crate::postgres::datum;
use pgrx::prelude::*;
use std::collections::BTreeMap;

#[pg_extern(sql = false)]
fn pipeline_calendar(
    pipeline: Option<String>,
    since: Option<String>,
    until: Option<String>,
) -> SetOfIterator<'static, String> {
    SetOfIterator::new(answer(calendar(pipeline, since, until)))
}

fn calendar(pipeline: Option<String>, since: Option<String>, until: Option<String>) -> Result<Vec<String>> {
    let pipeline = Pipeline::for_caller(&pipeline.unwrap_or_default(), Level::Read)?;
    let now = datum::clock();
    let bounds = pipeline.bounds(since.as_deref(), until.as_deref(), now)?;
    let windows = bounds.positions.end - bounds.positions.start;
    if windows > MOST as i64 {
        let newest = pipeline.grid.boundary(bounds.positions.end - MOST as i64).unwrap_or(bounds.since);
        return Err(Error::new(
            Code::InvalidParameter,
            format!("{windows} windows are too many for a calendar"),
        )
        .detail(format!("It shows {MOST} at most."))
        .hint(format!(
            "Give since and until closer together, such as since => '{}'.",
            instant_text(pipeline.grid.zone(), newest)
        )));
    }
    let pieces = window::look(Reading::Stable, &pipeline, bounds.positions, now)?;
    let seen: Vec<Seen> = window::one_by_one(&pipeline, pieces).collect();
    let versions = Versions::of(&seen);
    let mut page = vec![];
    // Each grid that the pipeline has had is drawn as its own cadence wants.
    for stretch in
        seen.chunk_by(|a, b| pipeline.grid.at(a.window.start).since == pipeline.grid.at(b.window.start).since)
    {
        let cells: Vec<Cell> = stretch
            .iter()
            .map(|seen| Cell {
                local: pipeline.grid.nominal_start(seen.window.position).expect("it was looked at"),
                glyph: versions.glyph(seen),
            })
            .collect();
        if !page.is_empty() {
            page.push(String::new());
        }
        page.extend(chart::draw(&cells, pipeline.grid.at(stretch[0].window.start).grid.cadence));
    }
    let legend = chart::legend(&versions.legend(&seen));
    if !legend.is_empty() {
        page.push(String::new());
        page.extend(legend);
    }
    Ok(page)
}

/// A letter for each code version, where the windows that are done have several.
struct Versions(Vec<String>);

fn is_built(seen: &Seen) -> bool {
    matches!(seen.state, State::Done | State::Outdated)
}

impl Versions {
    fn of(seen: &[Seen]) -> Self {
        let mut versions: Vec<String> = vec![];
        for seen in seen.iter().filter(|seen| is_built(seen)) {
            let version = version_of(seen);
            if !versions.iter().any(|known| known == version) {
                versions.push(version.to_owned());
            }
        }
        Self(if versions.len() > 1 { versions } else { vec![] })
    }

    /// The letter of the n-th version; there are no more than 52.
    fn letter(n: usize) -> Option<char> {
        ('a'..='z').chain('A'..='Z').nth(n)
    }

    fn letter_of(&self, seen: &Seen) -> Option<char> {
        let version = version_of(seen);
        self.0.iter().position(|known| known == version).and_then(Self::letter)
    }

    fn glyph(&self, seen: &Seen) -> char {
        let letter = if is_built(seen) { self.letter_of(seen) } else { None };
        letter.unwrap_or(seen.state.glyph())
    }

    /// What occurs, with its count, in the order of the states.
    fn legend(&self, seen: &[Seen]) -> Vec<String> {
        let mut counts: BTreeMap<(State, Option<char>), usize> = BTreeMap::new();
        for seen in seen {
            let letter = if is_built(seen) { self.letter_of(seen) } else { None };
            *counts.entry((seen.state, letter)).or_default() += 1;
        }
        let version_of = |letter| self.0.iter().enumerate().find(|(n, _)| Self::letter(*n) == Some(letter));
        counts
            .into_iter()
            .map(|((state, letter), count)| match letter.and_then(version_of).zip(letter) {
                Some(((_, version), letter)) => format!("{letter} {state} {count} by {}", shortened(version)),
                None => format!("{} {state} {count}", state.glyph()),
            })
            .collect()
    }
}

fn version_of(seen: &Seen) -> &str {
    seen.record().code_version.as_deref().unwrap_or("unknown")
}

/// As much of a version as a legend has room for.
fn shortened(version: &str) -> String {
    const ROOM: usize = 24;
    if version.chars().count() <= ROOM {
        return version.to_owned();
    }
    version.chars().take(ROOM - 3).chain("...".chars()).collect()
}
