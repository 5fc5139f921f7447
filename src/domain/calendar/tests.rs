use super::super::laws::check;
use super::super::timeline::Timeline;
use super::super::zone::fake::*;
use super::*;

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

/// The windows of one grid, those before its start included.
fn grid(cadence: Cadence, start: &str, zone: FakeZone) -> Timeline<FakeZone> {
    endless(Grid::new(cadence, bound(start), zone).expect("a grid in a test"))
}

fn endless(grid: Grid<FakeZone>) -> Timeline<FakeZone> {
    Timeline::new(grid).starting_at(i64::MIN)
}

fn bound(text: &str) -> Bound {
    Bound::parse(text).expect("a bound in a test")
}

fn keys(grid: &Timeline<FakeZone>, positions: Range<i64>) -> Vec<String> {
    let windows = grid.windows(positions).unwrap();
    windows.map(|window| grid.window_key(window.position).unwrap()).collect()
}

/// The next number of a fixed sequence, the upper bits of Knuth's LCG: the same trials every run.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn every_window_of_many_grids() {
    let zones = [new_york, havana, apia, half_hours, || fixed(0), || fixed(-16_200)];
    let starts = ["2009-12-31", "2011-12-30", "2013-03-10 02:30", "2013-11-03 01:30", "2023-03-12"];
    let cadences = [
        Cadence::Days(1),
        Cadence::Days(7),
        Cadence::Months(1),
        Cadence::Months(3),
        Cadence::Months(12),
        Cadence::Micros(36 * HOUR),
        Cadence::Micros(HOUR / 4),
        Cadence::Micros(1),
    ];
    for zone in zones {
        for start in starts {
            for cadence in cadences {
                check(&grid(cadence, start, zone()), -40..40);
            }
        }
    }
}

#[test]
fn random_grids() {
    let mut state = 1;
    for _ in 0..2_000 {
        let second = random(&mut state, 20 * 365 * 86_400) as i64;
        let anchor_local = local("2006-01-01T00:00:00") + TimeDelta::seconds(second);
        let cadence = match random(&mut state, 3) {
            0 => Cadence::Months(1 + random(&mut state, 30) as i32),
            1 => Cadence::Days(1 + random(&mut state, 3) as i32),
            _ => Cadence::Micros(1 + random(&mut state, DAY as u64 * 3) as i64),
        };
        let zone = [new_york, havana, apia, half_hours][random(&mut state, 4) as usize]();
        let grid = endless(Grid::new(cadence, Bound::Local(anchor_local), zone).unwrap());
        let first = random(&mut state, 600) as i64 - 300;
        check(&grid, first..first + 30);
    }
}

#[test]
fn days_are_local() {
    let days = grid(Cadence::Days(1), "2013-03-09", new_york());
    let hours: Vec<i64> = days.windows(0..3).unwrap().map(|w| w.end.micros_since(w.start) / HOUR).collect();
    assert_eq!(hours, [24, 23, 24]);
    assert_eq!(keys(&days, 0..2), ["2013-03-09", "2013-03-10"]);
    let fall = days.window(days.parse_key("2013-11-03").unwrap()).unwrap().unwrap();
    assert_eq!(fall.end.micros_since(fall.start), 25 * HOUR);
}

/// Case D1: a boundary inside of the gap neither empties a window nor skips one.
#[test]
fn a_boundary_in_the_gap() {
    let days = grid(Cadence::Days(1), "2013-03-09 02:00", new_york());
    let windows: Vec<Window> = days.windows(0..3).unwrap().collect();
    assert_eq!(windows[1].start, utc("2013-03-10T07:00:00"));
    assert_eq!(windows[1].end, utc("2013-03-11T06:00:00"));
    assert_eq!(keys(&days, 0..3), ["2013-03-09T02:00", "2013-03-10T02:00", "2013-03-11T02:00"]);
}

#[test]
fn gap_and_fold_at_midnight() {
    let days = grid(Cadence::Days(1), "2023-03-11", havana());
    let gap = days.window(1).unwrap().unwrap();
    assert_eq!((gap.start, gap.end), (utc("2023-03-12T05:00:00"), utc("2023-03-13T04:00:00")));
    let fold = days.window(days.parse_key("2023-11-05").unwrap()).unwrap().unwrap();
    assert_eq!((fold.start, fold.end), (utc("2023-11-05T05:00:00"), utc("2023-11-06T05:00:00")));
    // The first showing of 00:30 still belongs to the day before.
    assert_eq!(days.window_of(utc("2023-11-05T04:30:00")).unwrap().position, fold.position - 1);
}

#[test]
fn a_skipped_day_has_no_window() {
    let days = grid(Cadence::Days(1), "2011-12-28", apia());
    assert_eq!(days.window(2), Ok(None));
    assert_eq!(keys(&days, 0..5), ["2011-12-28", "2011-12-29", "2011-12-31", "2012-01-01"]);
    assert_eq!(days.count(0..5), Ok(4));
    // As a bound the skipped day is the instant of its neighbour; as a name it is refused.
    assert_eq!(days.locate(bound("2011-12-30")), Ok(3));
    assert_eq!(days.locate(bound("2011-12-31")), Ok(3));
    let skipped = GridError::Skipped { key: "2011-12-30".into() };
    assert_eq!(days.parse_key("2011-12-30"), Err(skipped));
    // So it is when the grid starts there.
    assert_eq!(grid(Cadence::Days(1), "2011-12-30", apia()).window(0), Ok(None));
}

#[test]
fn the_31st_clamps_and_does_not_drift() {
    let months = grid(Cadence::Months(1), "2023-12-31", fixed(0));
    assert_eq!(keys(&months, 0..5), ["2023-12-31", "2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"]);
    assert_eq!(keys(&months, -11..-9), ["2023-01-31", "2023-02-28"]);
    let years = grid(Cadence::Months(12), "2024-02-29", fixed(0));
    assert_eq!(keys(&years, 0..5), ["2024-02-29", "2025-02-28", "2026-02-28", "2027-02-28", "2028-02-29"]);
}

#[test]
fn times_are_exact_and_named_with_their_offset() {
    let hours = grid(Cadence::Micros(HOUR), "2013-11-03", new_york());
    assert_eq!(
        keys(&hours, 0..4),
        [
            "2013-11-03T00:00-04:00",
            "2013-11-03T01:00-04:00",
            "2013-11-03T01:00-05:00",
            "2013-11-03T02:00-05:00",
        ]
    );
    assert_eq!(hours.parse_key("2013-11-03T06:00Z"), Ok(2), "another spelling");
    let key = "2013-11-03T00:00".to_string();
    assert_eq!(hours.parse_key(&key), Err(GridError::KeyWithoutOffset { key }));
    let quarters = grid(Cadence::Micros(HOUR / 4), "2012-01-01", half_hours());
    assert_eq!(quarters.window_key(1), Ok("2012-01-01T00:15+05:00:45".into()));
}

#[test]
fn bounds_off_the_grid_name_the_two_nearest() {
    let days = grid(Cadence::Days(1), "2013-03-09 02:30", new_york());
    let around = GridError::OffGrid {
        before: "2013-03-10T03:30-04:00".into(),
        after: "2013-03-11T02:30-04:00".into(),
    };
    for off in ["2013-03-10 12:00", "2013-03-10T12:00Z", "2013-03-10 03:30"] {
        let bound = bound(off);
        let located = days.locate(bound);
        assert_eq!(located, Err(around.clone()), "{off}");
    }
    assert_eq!(days.locate(bound("2013-03-10 02:30")), Ok(1), "nominal");
    for nearest in ["2013-03-10T03:30-04:00", "2013-03-11T02:30-04:00"] {
        assert!(days.locate(bound(nearest)).is_ok());
    }
    assert_eq!(
        days.parse_key("2013-03-10"),
        Err(GridError::OffGrid {
            before: "2013-03-09T02:30-05:00".into(),
            after: "2013-03-10T03:30-04:00".into(),
        })
    );
    assert!(matches!(days.parse_key("today"), Err(GridError::Text(BoundError::Word(_)))));
}

#[test]
fn months_and_days_start_where_they_can_arrive() {
    let first = bound("2013-11-03T01:30-04:00");
    let second = "2013-11-03T01:30-05:00".to_string();
    let refused = Grid::new(Cadence::Days(1), first, new_york()).map(|_| ());
    assert_eq!(refused, Err(GridError::StartRepeats { second }));
    let exact = Grid::new(Cadence::Micros(HOUR), first, new_york()).unwrap();
    assert_eq!(exact.boundary(0), Ok(utc("2013-11-03T05:30:00")));
    let days = grid(Cadence::Days(1), "2013-11-02T04:00Z", new_york());
    assert_eq!(days.window_key(0), Ok("2013-11-02".into()));
}

#[test]
fn out_of_range_is_an_error() {
    assert_eq!(FIRST, utc("0001-01-02T00:00:00"));
    assert_eq!(LAST, utc("9999-12-30T00:00:00"));
    let cadences = [
        Cadence::Days(1),
        Cadence::Days(i32::MAX),
        Cadence::Months(1),
        Cadence::Months(i32::MAX),
        Cadence::Micros(1),
        Cadence::Micros(i64::MAX),
    ];
    for cadence in cadences {
        let anchor_local = local("2024-01-31T00:00:00");
        let anchor = Instant::from_utc(anchor_local);
        let grid = endless(Grid { cadence, anchor_local, anchor, zone: fixed(0) });
        for k in [i64::MIN, i64::MIN + 1, -(1 << 60), 1 << 60, i64::MAX - 1, i64::MAX] {
            assert_eq!(grid.boundary(k), Err(GridError::OutOfRange));
            assert_eq!(grid.window(k), Err(GridError::OutOfRange));
            assert_eq!(grid.next(k), Err(GridError::OutOfRange));
            assert_eq!(grid.previous(k), Err(GridError::OutOfRange));
            assert_eq!(grid.window_key(k), Err(GridError::OutOfRange));
            assert_eq!(grid.windows(0..k).is_ok(), k < 0);
            assert_eq!(grid.window_of(Instant(k)), Err(GridError::OutOfRange));
            let _ = grid.count(0..k);
        }
        for at in [FIRST, LAST, Instant(FIRST.0 - 1), Instant(LAST.0 + 1)] {
            let _ = (grid.window_of(at), grid.newest_due(at), grid.locate(Bound::Absolute(at)));
        }
        for text in ["0001-01-01", "9999-12-31", "9999-12-31 24:00"] {
            assert!(grid.locate(bound(text)).is_err());
        }
    }
    for start in ["0001-01-01", "9999-12-31"] {
        let refused = Grid::new(Cadence::Days(1), bound(start), fixed(0)).map(|_| ());
        assert_eq!(refused, Err(GridError::OutOfRange));
    }
}

#[test]
fn a_million_windows_are_counted() {
    let days = grid(Cadence::Days(1), "1000-01-01", new_york());
    assert_eq!(days.count(0..1_000_000), Ok(1_000_000));
}
