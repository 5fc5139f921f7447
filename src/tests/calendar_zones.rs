//! The laws of the calendar over every zone that this server knows, from 1970 to 2040, and that
//! [`PgZone`] reads them as SQL does.

use std::collections::HashMap;

use pgrx::prelude::*;

use crate::domain::bound::Bound;
use crate::domain::cadence::Cadence;
use crate::domain::calendar::{Grid, GridError, Window};
use crate::domain::laws;
use crate::domain::timeline::Timeline;
use crate::domain::zone::{Instant, Zone};
use crate::postgres::zone::{PgZone, ZoneError};

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;
/// 1970-01-01 and 2040-01-01 UTC, in days from 2000-01-01.
const DAYS: std::ops::Range<i64> = -10_957..14_610;

fn names() -> Vec<String> {
    let names = Spi::get_one("SELECT array_agg(name ORDER BY name) FROM pg_timezone_names");
    names.unwrap().unwrap()
}

fn zone(name: &str) -> PgZone {
    PgZone::new(name).unwrap()
}

/// The instants at which a zone changes its offset.
fn changes(zone: PgZone) -> Vec<Instant> {
    let mut changes = vec![];
    let mut last = zone.offset(Instant(DAYS.start * DAY));
    for day in DAYS {
        let (mut before, mut after) = (day * DAY, (day + 1) * DAY);
        let next = zone.offset(Instant(after));
        if next != last {
            while after - before > 1_000_000 {
                let middle = (before + after) / 2;
                if zone.offset(Instant(middle)) == last {
                    before = middle;
                } else {
                    after = middle;
                }
            }
            changes.push(Instant(after.div_euclid(1_000_000) * 1_000_000));
            last = next;
        }
    }
    changes
}

/// Every zone of the server with its changes, without those that are another one's equal.
fn different_zones() -> Vec<(PgZone, Vec<Instant>)> {
    let mut zones = HashMap::new();
    for name in names() {
        let zone = zone(&name);
        let changes = changes(zone);
        let offsets: Vec<i32> = changes.iter().map(|at| zone.offset(*at)).collect();
        let first = zone.offset(Instant(DAYS.start * DAY));
        zones.insert((first, offsets, changes.clone()), (zone, changes));
    }
    zones.into_values().collect()
}

fn grid(cadence: Cadence, start: &str, zone: PgZone) -> Timeline<PgZone> {
    let grid = Grid::new(cadence, Bound::parse(start).unwrap(), zone).unwrap();
    Timeline::new(grid).starting_at(i64::MIN)
}

/// Checks the windows around each change of offset, `reach` on both sides, and some others.
fn check_around(grid: &Timeline<PgZone>, changes: &[Instant], reach: i64) {
    let others = [-10_000, -1, 0, 59, 8_000, 14_000].map(|day| Instant(day * DAY));
    let mut instants = [changes, &others].concat();
    instants.sort();
    let mut checked = i64::MIN;
    for at in instants {
        let position = grid.window_of(at).unwrap().position;
        let since = checked.max(position - reach);
        checked = position + reach;
        laws::check(grid, since..checked);
    }
}

#[pg_schema]
mod tests {
    use super::*;

    /// Days, weeks, months, quarters and years, at times of day inside of common gaps and folds, and
    /// from the last day of a month.
    #[pg_test]
    fn laws_hold_for_calendar_cadences() {
        let cadences =
            [Cadence::Days(1), Cadence::Days(7), Cadence::Months(1), Cadence::Months(3), Cadence::Months(12)];
        let starts = ["2000-01-31", "2000-01-31 02:30", "2000-02-29 01:15", "1999-12-31 23:30"];
        for (zone, changes) in different_zones() {
            for cadence in cadences {
                for start in starts {
                    check_around(&grid(cadence, start, zone), &changes, 2);
                }
            }
        }
    }

    #[pg_test]
    fn laws_hold_for_exact_cadences() {
        let cadences = [HOUR / 4, HOUR, 6 * HOUR, 36 * HOUR].map(Cadence::Micros);
        for (zone, changes) in different_zones() {
            for cadence in cadences {
                check_around(&grid(cadence, "2000-01-01", zone), &changes, 5);
            }
        }
    }

    /// From hours in UTC to days in the zone right before it changes, to hours of the zone after the change, and
    /// on to days of the next zone.
    #[pg_test]
    fn laws_hold_over_switches() {
        let utc = zone("UTC");
        let zones = different_zones();
        for (i, (zone, changes)) in zones.iter().enumerate() {
            let next = zones[(i + 1) % zones.len()].0;
            for at in changes.iter().step_by(changes.len() / 8 + 1) {
                let lay =
                    |cadence, zone| Grid::new(cadence, Bound::parse("2000-01-01").unwrap(), zone).unwrap();
                let mut timeline = Timeline::new(lay(Cadence::Micros(HOUR / 4), utc)).starting_at(i64::MIN);
                let mut from = Instant(at.0 - 2 * DAY);
                for grid in [
                    lay(Cadence::Days(1), *zone),
                    lay(Cadence::Micros(HOUR / 4), *zone),
                    lay(Cadence::Days(1), next),
                ] {
                    // A zone whose offset has seconds shares nothing with the quarters of an hour in UTC.
                    let Some(shared) = timeline.shared_from(&grid, from) else { break };
                    let Ok(switched) = timeline.switched(shared, grid) else { break };
                    let position = switched.window_of(shared).unwrap().position;
                    assert_eq!(position, timeline.window_of(shared).unwrap().position);
                    laws::check(&switched, position - 100..position + 4);
                    (timeline, from) = (switched, Instant(shared.0 + 2 * DAY));
                }
            }
        }
    }

    /// No boundary of a daily grid is ever before the one before it, which no sample could show; and
    /// the only days without a window are those that islands beside the date line skipped.
    #[pg_test]
    fn days_never_go_backwards() {
        let mut skipped = vec![];
        for (zone, _) in different_zones() {
            let days = grid(Cadence::Days(1), "2000-01-01", zone);
            let mut last = days.boundary(DAYS.start).unwrap();
            for k in DAYS {
                let next = days.boundary(k + 1).unwrap();
                assert!(last <= next, "{} {k}", zone.name());
                if last == next {
                    skipped.push(days.window_key(k).unwrap());
                }
                last = next;
            }
        }
        skipped.sort();
        skipped.dedup();
        // Kwajalein, Kiritimati (a day later in older zone data), Apia.
        let known = ["1993-08-21", "1994-12-31", "1995-01-01", "2011-12-30"];
        assert!(skipped.iter().all(|day| known.contains(&day.as_str())), "{skipped:?}");
        assert!(skipped.contains(&"2011-12-30".to_string()), "{skipped:?}");
    }

    /// Local times around every change, and the offsets there, whatever the session's zone is.
    #[pg_test]
    fn every_zone_is_read_as_sql_reads_it() {
        const SQL: &str = "
            SELECT array_agg(extract(epoch FROM
                (timestamp '2000-01-01' + make_interval(secs => s)) AT TIME ZONE $2
                - timestamptz '2000-01-01 00:00+00')::bigint ORDER BY nr)
            FROM unnest($1) WITH ORDINALITY AS sample (s, nr)";
        for (nr, name) in names().iter().enumerate() {
            let session = ["Pacific/Apia", "America/New_York", "Europe/Moscow"][nr % 3];
            Spi::run(&format!("SET LOCAL TimeZone = '{session}'")).unwrap();
            let zone = zone(name);
            let locals: Vec<i64> = changes(zone)
                .iter()
                .flat_map(|at| (-50..=50).map(move |half| Instant(at.0 + half * HOUR / 2)))
                .chain([Instant(0), Instant(1_000_000_000_000_000), Instant(-40_000 * DAY)])
                .map(|at| Instant::from_utc(zone.to_local(at)).0 / 1_000_000)
                .collect();
            let ours: Vec<i64> = locals
                .iter()
                .map(|shown| zone.to_instant(Instant(shown * 1_000_000).utc()).0 / 1_000_000)
                .collect();
            // The colon keeps SQL from taking CET, EET, MET and WET for abbreviations.
            let arguments = [locals.clone().into(), format!(":{name}").into()];
            let theirs: Vec<i64> = Spi::get_one_with_args(SQL, &arguments).unwrap().unwrap();
            for (local, (ours, theirs)) in locals.iter().zip(ours.iter().zip(&theirs)) {
                assert_eq!(ours, theirs, "{name} at {}", Instant(local * 1_000_000).utc());
            }
        }
    }

    /// What changes at a given place, written down as SQL answers it.
    #[pg_test]
    fn days_of_known_changes() {
        // Zone, day, start, hours. Gaps and folds: at midnight, of half an hour, of a whole day, with
        // the summer time around Ramadan turned off and on, and with an odd offset.
        for (name, day, start, hours) in [
            ("America/New_York", "2013-03-10", "2013-03-10 05:00+00", 23.0),
            ("America/New_York", "2013-11-03", "2013-11-03 04:00+00", 25.0),
            ("America/Havana", "2023-03-12", "2023-03-12 05:00+00", 23.0),
            ("America/Havana", "2023-11-04", "2023-11-04 04:00+00", 25.0),
            ("America/Sao_Paulo", "2017-10-15", "2017-10-15 03:00+00", 23.0),
            ("America/Sao_Paulo", "2018-02-17", "2018-02-17 02:00+00", 25.0),
            ("Asia/Beirut", "2022-10-29", "2022-10-28 21:00+00", 25.0),
            ("Australia/Lord_Howe", "2024-04-07", "2024-04-06 13:00+00", 24.5),
            ("Australia/Lord_Howe", "2024-10-06", "2024-10-05 13:30+00", 23.5),
            ("Pacific/Apia", "2011-12-29", "2011-12-29 10:00+00", 24.0),
            ("Pacific/Apia", "2011-12-31", "2011-12-30 10:00+00", 24.0),
            ("Pacific/Kiritimati", "1994-12-30", "1994-12-30 10:00+00", 24.0),
            ("Africa/Casablanca", "2024-03-10", "2024-03-09 23:00+00", 25.0),
            ("Africa/Casablanca", "2024-04-14", "2024-04-14 00:00+00", 23.0),
            ("America/St_Johns", "2010-03-14", "2010-03-14 03:30+00", 23.0),
        ] {
            let days = grid(Cadence::Days(1), "2000-01-01", zone(name));
            let window = days.window(days.parse_key(day).unwrap()).unwrap().unwrap();
            assert_eq!(Bound::parse(start), Ok(Bound::Absolute(window.start)), "{name} {day}");
            let length = window.end.micros_since(window.start) as f64 / HOUR as f64;
            assert_eq!(length, hours, "{name} {day}");
        }
    }

    #[pg_test]
    fn a_day_that_apia_skipped() {
        let days = grid(Cadence::Days(1), "2000-01-01", zone("Pacific/Apia"));
        let located = |text| days.locate(Bound::parse(text).unwrap()).unwrap();
        assert_eq!(located("2011-12-30"), located("2011-12-31"));
        let key = "2011-12-30".to_string();
        assert_eq!(days.parse_key(&key), Err(GridError::Skipped { key }));
    }

    /// Both showings of an hour are windows of their own, Lord Howe's half-hour included.
    #[pg_test]
    fn repeated_hours_have_their_own_keys() {
        for (name, since, keys) in [
            (
                "America/New_York",
                "2013-11-03T01:00-04:00",
                ["2013-11-03T01:00-04:00", "2013-11-03T01:00-05:00"],
            ),
            (
                "Australia/Lord_Howe",
                "2024-04-07T01:00+11:00",
                ["2024-04-07T01:00+11:00", "2024-04-07T01:30+10:30"],
            ),
        ] {
            let hours = grid(Cadence::Micros(HOUR), since, zone(name));
            let found = hours.windows(0..2).unwrap().map(|w: Window| hours.window_key(w.position).unwrap());
            assert_eq!(found.collect::<Vec<_>>(), keys);
        }
    }

    #[pg_test]
    fn names_are_those_of_the_zone_data() {
        assert_eq!(zone("america/NEW_york").name(), "America/New_York");
        assert_eq!(zone("UTC").fixed_offset(), Some(0));
        assert_eq!(zone("Etc/GMT+5").fixed_offset(), Some(-5 * 3600));
        assert_eq!(zone("<+0530>-5:30").fixed_offset(), Some(5 * 3600 + 1800));
        assert_eq!(zone("Europe/Berlin").fixed_offset(), None);
        let july = Instant::from_utc("2024-07-01T00:00:00".parse().unwrap());
        assert_eq!(zone("EST5EDT,M3.2.0,M11.1.0").offset(july), -4 * 3600);
        // As SET TimeZone reads it, summer time included; AT TIME ZONE 'CET' would have none.
        assert_eq!(zone("CET").offset(july), 2 * 3600);

        for name in ["", "Mars/Olympus", "PDT", "Europe/Berlin2", "nul\0", "UTC+", "日本", &"x".repeat(300)]
        {
            assert_eq!(PgZone::new(name).err(), Some(ZoneError::Unknown(name.into())));
        }
        for name in ["+5", "-03:30", "5"] {
            assert_eq!(PgZone::new(name).err(), Some(ZoneError::BareOffset(name.into())));
        }
        for name in ["<x>+167", "XXX-24", "AAA15BBB-15,J100,J200"] {
            assert_eq!(PgZone::new(name).err(), Some(ZoneError::Unreal(name.into())));
        }
    }

    /// A million local days, with PostgreSQL's zone data, well under a second when optimised.
    #[pg_test]
    fn a_million_days_are_counted_at_once() {
        let days = grid(Cadence::Days(1), "0100-01-01", zone("Europe/Berlin"));
        let started = std::time::Instant::now();
        assert_eq!(days.count(0..1_000_000), Ok(1_000_000));
        let elapsed = started.elapsed();
        assert!(elapsed.as_secs() < 3, "a debug build took {elapsed:?}");
        notice!("1,000,000 daily windows took {elapsed:?}");
    }
}
