//! What must hold of every timeline, for the tests over made-up zones and those over PostgreSQL's.

use std::collections::HashSet;
use std::fmt::Debug;
use std::ops::Range;

use super::bound::Bound;
use super::calendar::Window;
use super::timeline::Timeline;
use super::zone::{Instant, Zone};

/// Panics unless the windows of a range are contiguous, never empty and ascending, `window_of` and
/// `newest_due` find them from instants, and their keys are unique and lead back to them.
pub fn check<Z: Zone + Debug>(grid: &Timeline<Z>, positions: Range<i64>) {
    for k in positions.clone() {
        let (boundary, next) = (grid.boundary(k).unwrap(), grid.boundary(k + 1).unwrap());
        assert!(boundary <= next, "boundary {k} is after the next: {grid:?}");
    }
    let windows: Vec<Window> = grid.windows(positions.clone()).unwrap().collect();
    let mut end = grid.boundary(positions.start).unwrap();
    let mut keys = HashSet::new();
    for (i, &window) in windows.iter().enumerate() {
        assert_eq!(window.start, end, "a gap or an overlap: {grid:?}");
        assert!(window.start < window.end, "an empty window: {grid:?}");
        end = window.end;

        let last = Instant(window.end.0 - 1);
        let inside = Instant(window.start.0 + window.end.micros_since(window.start) / 3);
        for at in [window.start, inside, last] {
            assert_eq!(grid.window_of(at), Ok(window), "{grid:?}");
        }
        assert_eq!(grid.window(window.position), Ok(Some(window)));
        assert_eq!(grid.locate(Bound::Absolute(window.start)), Ok(window.position));
        assert_eq!(grid.newest_due(window.end), Ok(window));
        assert_ne!(grid.newest_due(last), Ok(window));
        if let Some(following) = windows.get(i + 1) {
            assert_eq!(grid.next(window.position), Ok(*following));
            assert_eq!(grid.previous(following.position), Ok(window));
        }

        let key = grid.window_key(window.position).unwrap();
        assert_eq!(grid.parse_key(&key), Ok(window.position), "{key}: {grid:?}");
        assert!(keys.insert(key), "a key twice: {grid:?}");
    }
    assert_eq!(grid.boundary(positions.end), Ok(end), "a gap at the end: {grid:?}");
    assert_eq!(grid.count(positions.clone()), Ok(windows.len() as u64), "{grid:?}");
}
