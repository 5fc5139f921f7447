use super::super::bound::instant_text;
use super::super::laws;
use super::super::zone::fake::*;
use super::*;

const HOUR: i64 = 3_600_000_000;
const DAYS: Cadence = Cadence::Days(1);
const HOURS: Cadence = Cadence::Micros(HOUR);
const MONTHS: Cadence = Cadence::Months(1);

fn bound(text: &str) -> Bound {
    Bound::parse(text).expect("a bound in a test")
}

fn grid(cadence: Cadence, start: &str, zone: FakeZone) -> Grid<FakeZone> {
    Grid::new(cadence, bound(start), zone).expect("a grid in a test")
}

fn timeline(cadence: Cadence, start: &str, zone: FakeZone) -> Timeline<FakeZone> {
    Timeline::new(grid(cadence, start, zone))
}

fn keys(timeline: &Timeline<FakeZone>, positions: Range<i64>) -> Vec<String> {
    let windows = timeline.windows(positions).unwrap();
    windows.map(|window| timeline.window_key(window.position).unwrap()).collect()
}

/// The laws, and that nothing before the switch has moved. Returns the position at the switch.
fn check(old: &Timeline<FakeZone>, new: &Timeline<FakeZone>, at: Instant) -> i64 {
    let position = new.window_of(at).unwrap().position;
    assert_eq!(old.window_of(at).unwrap().position, position);
    assert_eq!(new.boundary(position), Ok(at));
    for k in position - 30..position {
        assert_eq!(new.window(k), old.window(k));
        assert_eq!(new.window_key(k), old.window_key(k));
    }
    let endless = new.clone().starting_at(i64::MIN);
    laws::check(&endless, position - 30..position + 30);
    laws::check(&endless, position - 1..position + 1);
    laws::check(&endless, position..position + 1);
    position
}

#[test]
fn from_days_to_hours_and_back() {
    let days = timeline(DAYS, "2013-03-01", new_york());
    let at = utc("2013-03-10T05:00:00");
    let hours = days.switched(at, grid(HOURS, "2013-03-01", new_york())).unwrap();
    assert_eq!(check(&days, &hours, at), 9);
    assert_eq!(
        keys(&hours, 7..12),
        [
            "2013-03-08",
            "2013-03-09",
            "2013-03-10T00:00-05:00",
            "2013-03-10T01:00-05:00",
            "2013-03-10T03:00-04:00",
        ]
    );
    assert_eq!(hours.count(0..12), Ok(12));
    assert_eq!(hours.newest_due(at), hours.window(8).map(Option::unwrap));
    // The day with 23 hours, then days again.
    let back = utc("2013-03-11T04:00:00");
    let again = hours.switched(back, grid(DAYS, "2013-03-01", new_york())).unwrap();
    assert_eq!(check(&hours, &again, back), 9 + 23);
    assert_eq!(keys(&again, 31..34), ["2013-03-10T23:00-04:00", "2013-03-11", "2013-03-12"]);
    assert_eq!(again.parse_key("2013-03-09"), Ok(8));
    assert_eq!(again.parse_key("2013-03-10T04:00-04:00"), Ok(12));
    assert_eq!(again.parse_key("2013-03-12"), Ok(33));
    // A day that lies in the stretch of hours is not one of its windows; as a bound it is.
    let key = "2013-03-10".to_string();
    assert_eq!(again.parse_key(&key), Err(GridError::KeyWithoutOffset { key: key.clone() }));
    assert_eq!(again.locate(bound(&key)), Ok(9));
    assert!(matches!(again.parse_key("2013-03-11T05:00-04:00"), Err(GridError::OffGrid { .. })));
}

#[test]
fn from_months_to_days() {
    let months = timeline(MONTHS, "2023-10-31", fixed(0));
    let at = utc("2024-02-29T00:00:00");
    let days = months.switched(at, grid(DAYS, "2023-10-31", fixed(0))).unwrap();
    assert_eq!(check(&months, &days, at), 4);
    assert_eq!(keys(&days, 2..6), ["2023-12-31", "2024-01-31", "2024-02-29", "2024-03-01"]);
    assert_eq!(days.locate(bound("2024-01-31")), Ok(3));
    assert!(matches!(days.locate(bound("2024-02-01")), Err(GridError::OffGrid { .. })));
}

/// No boundary is a midnight in both, so that it takes some hours between the days.
#[test]
fn from_days_in_one_zone_over_hours_to_days_in_another() {
    let utc_days = timeline(DAYS, "2013-01-01", fixed(0));
    let days = grid(DAYS, "2013-01-01", new_york());
    let from = utc("2013-01-05T00:00:00");
    assert_eq!(
        utc_days.switched(from, days.clone()).unwrap_err(),
        SwitchError::NotShared { before: None, after: None }
    );
    let hours = utc_days.switched(from, grid(HOURS, "2013-01-01", fixed(0))).unwrap();
    let at = hours.shared_from(&days, from).unwrap();
    assert_eq!(at, utc("2013-01-05T05:00:00"));
    let three = hours.switched(at, days).unwrap();
    assert_eq!(check(&hours, &three, at), 9);
    assert_eq!(
        keys(&three, 3..11),
        [
            "2013-01-04",
            "2013-01-05T00:00+00:00",
            "2013-01-05T01:00+00:00",
            "2013-01-05T02:00+00:00",
            "2013-01-05T03:00+00:00",
            "2013-01-05T04:00+00:00",
            "2013-01-05",
            "2013-01-06",
        ]
    );
    assert_eq!(three.count(i64::MIN / 2..i64::MIN / 2), Ok(0));
    assert_eq!(three.count(-3..20), Ok(23));
}

#[test]
fn local_times_are_read_as_on_one_clock() {
    let at = utc("2013-01-05T05:00:00");
    let back = timeline(HOURS, "2013-01-01", fixed(0)).switched(at, grid(HOURS, "2013-01-01", new_york()));
    let back = back.unwrap();
    // At 05:00 the clock is set back to 00:00: what it shows twice is the second showing.
    assert_eq!(back.instant(bound("2013-01-04 23:00")), utc("2013-01-04T23:00:00"));
    assert_eq!(back.instant(bound("2013-01-05 00:00")), at);
    assert_eq!(back.instant(bound("2013-01-05 04:00")), utc("2013-01-05T09:00:00"));
    assert_eq!(back.locate(bound("2013-01-05 04:00")), Ok(96 + 9));
    assert_eq!(back.locate(bound("2013-01-05 04:00Z")), Ok(96 + 4));
    // At 00:00 in New York it is set forward to 05:00: what it skips is read on the old clock.
    let on = timeline(HOURS, "2013-01-01", new_york()).switched(at, grid(DAYS, "2013-01-01 05:00", fixed(0)));
    let on = on.unwrap();
    assert_eq!(on.locate(bound("2013-01-04 23:00")), Ok(95));
    assert_eq!(on.locate(bound("2013-01-05 00:00")), Ok(96));
    assert_eq!(on.locate(bound("2013-01-05 05:00")), Ok(96));
    assert_eq!(on.instant(bound("2013-01-05 02:00")), utc("2013-01-05T07:00:00"));
    let around = GridError::OffGrid {
        before: "2013-01-05T05:00+00:00".into(),
        after: "2013-01-06T05:00+00:00".into(),
    };
    assert_eq!(on.locate(bound("2013-01-05 02:00")), Err(around.clone()));
    assert_eq!(on.parse_key("2013-01-06T02:00"), Err(around.clone()));
    assert_eq!(on.parse_key("2013-01-05T05:00"), Ok(96));
}

#[test]
fn a_switch_is_a_boundary_of_both() {
    let days = timeline(DAYS, "2024-01-01", fixed(0));
    let weeks = || grid(Cadence::Days(7), "2024-01-01", fixed(0));
    let (before, after) = (Some(utc("2024-01-08T00:00:00")), Some(utc("2024-01-15T00:00:00")));
    for at in ["2024-01-09T00:00:00", "2024-01-09T01:00:00", "2024-01-14T23:59:59"] {
        let refused = days.switched(utc(at), weeks()).unwrap_err();
        assert_eq!(refused, SwitchError::NotShared { before, after }, "{at}");
    }
    assert!(days.switched(utc("2024-01-15T00:00:00"), weeks()).is_ok());
    // Five and seven days meet every 35.
    let fives = timeline(Cadence::Days(5), "2024-01-01", fixed(0));
    assert_eq!(fives.shared_from(&weeks(), utc("2024-01-02T00:00:00")), Some(utc("2024-02-05T00:00:00")));
    assert_eq!(fives.shared_until(&weeks(), utc("2024-02-04T00:00:00")), Some(utc("2024-01-01T00:00:00")));
}

#[test]
fn a_key_names_one_window() {
    // Kiritimati and Honolulu show the same time of day, a day apart.
    let (east, west) = (fixed(14 * 3600), fixed(-10 * 3600));
    let at = utc("2024-01-09T10:00:00");
    let days = timeline(DAYS, "2024-01-01", east.clone());
    let refused = days.switched(at, grid(DAYS, "2024-01-01", west.clone())).unwrap_err();
    assert_eq!(refused, SwitchError::KeyTwice { key: "2024-01-09".into() });
    // With a day of hours between them no day is there twice.
    let hours = days.switched(at, grid(HOURS, "2024-01-01", east)).unwrap();
    for (hour, allowed) in [(0, false), (24, true), (48, true)] {
        let at = Instant(at.0 + hour * HOUR);
        let result = hours.switched(at, grid(DAYS, "2024-01-01", west.clone()));
        assert_eq!(result.is_ok(), allowed, "{hour}");
        if let Ok(timeline) = result {
            check(&hours, &timeline, at);
        }
    }
    // Set forward by a day, the clock shows no day twice.
    let days = timeline(DAYS, "2024-01-01", west);
    assert!(days.switched(at, grid(DAYS, "2024-01-01", fixed(14 * 3600))).is_ok());
}

#[test]
fn a_switch_that_has_not_come_yet_can_be_replaced() {
    let days = timeline(DAYS, "2024-01-01", fixed(0));
    let hours = days.switched(utc("2024-01-20T00:00:00"), grid(HOURS, "2024-01-01", fixed(0))).unwrap();
    let weeks = || grid(Cadence::Days(7), "2024-01-01", fixed(0));
    for at in ["2024-01-15T00:00:00", "2024-01-22T00:00:00"] {
        let timeline = hours.switched(utc(at), weeks()).unwrap();
        let expected = if at < "2024-01-20" { 2 } else { 3 };
        assert_eq!(timeline.stretches().len(), expected);
        check(&hours, &timeline, utc(at));
    }
    let same = hours.switched(utc("2024-01-20T00:00:00"), grid(MONTHS, "2024-01-20", fixed(0))).unwrap();
    assert_eq!(keys(&same, 18..21), ["2024-01-19", "2024-01-20", "2024-02-20"]);
    assert_eq!(same.stretches().len(), 2);
}

#[test]
fn no_window_is_before_the_first() {
    let mut days = timeline(DAYS, "2024-01-03", fixed(0));
    let error = GridError::BeforeFirst { key: "2024-01-02".into(), first: "2024-01-03".into() };
    assert_eq!(days.parse_key("2024-01-02"), Err(error));
    for at in ["2024-01-02T00:00:00", "2024-01-03T00:00:00"] {
        let hours = grid(HOURS, "2024-01-03", fixed(0));
        assert_eq!(days.switched(utc(at), hours).unwrap_err(), SwitchError::BeforeFirst);
    }
    // Moved earlier, the others keep their positions.
    days.first = days.locate(bound("2024-01-01")).unwrap();
    assert_eq!(days.first, -2);
    assert_eq!(days.parse_key("2024-01-02"), Ok(-1));
    let at = utc("2024-01-02T00:00:00");
    let hours = days.switched(at, grid(HOURS, "2024-01-03", fixed(0))).unwrap();
    assert_eq!(check(&days, &hours, at), -1);
    assert_eq!(hours.first, -2);
}

/// The next number of a fixed sequence, the upper bits of Knuth's LCG: the same trials every run.
fn random(state: &mut u64, below: u64) -> i64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) % below) as i64
}

#[test]
fn random_timelines() {
    let zones = [new_york, havana, apia, half_hours, || fixed(0), || fixed(14 * 3600), || fixed(-12 * 3600)];
    let mut state = 1;
    let mut switches = 0;
    for _ in 0..400 {
        let mut any = |from: Instant| {
            let cadence = match random(&mut state, 4) {
                0 => Cadence::Months(1 + random(&mut state, 3) as i32),
                1 => Cadence::Days(1 + random(&mut state, 3) as i32),
                2 => Cadence::Micros([HOUR / 4, HOUR, 6 * HOUR, 24 * HOUR][random(&mut state, 4) as usize]),
                _ => DAYS,
            };
            let zone = zones[random(&mut state, zones.len() as u64) as usize]();
            let start = Instant(from.0 + random(&mut state, 40 * 24) * HOUR);
            (Grid::new(cadence, Bound::Absolute(start), zone), start)
        };
        let (Ok(first), start) = any(utc("2011-12-01T00:00:00")) else { continue };
        let mut timeline = Timeline::new(first);
        let mut from = start;
        for _ in 0..3 {
            let (Ok(next), _) = any(utc("2011-12-01T00:00:00")) else { continue };
            let after = Instant(from.0 + 1);
            let Some(at) = timeline.shared_from(&next, after) else { continue };
            if at > utc("2030-01-01T00:00:00") {
                continue;
            }
            match timeline.switched(at, next) {
                Ok(switched) => {
                    check(&timeline, &switched, at);
                    timeline = switched;
                    from = at;
                    switches += 1;
                }
                Err(SwitchError::KeyTwice { .. }) => {}
                Err(error) => panic!("{error:?} at {}", instant_text(timeline.zone(), at)),
            }
        }
    }
    assert!(switches > 200, "{switches}");
}
