//! Which rows of an old set stay in a new one: both are multisets, in which copies count.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What a row, or its key, is known by: a hash so good that two rows with one mark are the same row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark([u64; 2]);

impl From<u128> for Mark {
    fn from(hash: u128) -> Self {
        Self([hash as u64, (hash >> 64) as u64])
    }
}

impl Hash for Mark {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

/// A mark is a hash already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("marks are written as one number");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type Index = HashMap<Mark, u32, BuildHasherDefault<AsItIs>>;

/// There is no such row.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Gone,
    Kept,
    Changed,
}

struct Old<P> {
    place: P,
    /// Another row with the same mark.
    next: u32,
    fate: Fate,
}

/// What becomes of a new row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<P> {
    /// It is there already.
    Same,
    /// The row at that place has its key, and becomes it.
    Changed(P),
    New,
}

/// Old rows, each at a place, to which new rows are held.
pub struct Pairing<P> {
    rows: Vec<Old<P>>,
    by_row: Index,
    by_key: Index,
}

impl<P> Default for Pairing<P> {
    fn default() -> Self {
        Self { rows: vec![], by_row: Index::default(), by_key: Index::default() }
    }
}

impl<P: Copy> Pairing<P> {
    /// About how many bytes one row takes at most.
    pub const BYTES: u64 = 128;

    /// How many old rows there are.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Adds an old row. No two of them have the same key.
    pub fn add(&mut self, row: Mark, key: Option<Mark>, place: P) {
        let index = u32::try_from(self.rows.len()).expect("a slice has fewer than 2^32 rows");
        let next = self.by_row.insert(row, index).unwrap_or(NONE);
        self.rows.push(Old { place, next, fate: Fate::Gone });
        if let Some(key) = key {
            self.by_key.insert(key, index);
        }
    }

    /// Finds the old row for a new one. An old row is found once.
    pub fn find(&mut self, row: Mark, key: Option<Mark>) -> Found<P> {
        if let Some(head) = self.by_row.get_mut(&row) {
            while let Some(old) = self.rows.get_mut(*head as usize) {
                *head = old.next;
                if old.fate == Fate::Gone {
                    old.fate = Fate::Kept;
                    return Found::Same;
                }
            }
        }
        let same_key = key.and_then(|key| self.by_key.get(&key));
        match same_key.map(|index| &mut self.rows[*index as usize]) {
            Some(old) if old.fate == Fate::Gone => {
                old.fate = Fate::Changed;
                Found::Changed(old.place)
            }
            _ => Found::New,
        }
    }

    /// The rows that are as they were.
    pub fn kept(&self) -> impl Iterator<Item = P> {
        self.with(Fate::Kept)
    }

    /// The rows that no new row was found for.
    pub fn gone(&self) -> impl Iterator<Item = P> {
        self.with(Fate::Gone)
    }

    fn with(&self, fate: Fate) -> impl Iterator<Item = P> {
        self.rows.iter().filter(move |old| old.fate == fate).map(|old| old.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::random::Random;

    fn mark(number: usize) -> Option<Mark> {
        // Marks that meet in the part that the index looks at first.
        Some(Mark::from((number as u128) << 64 | 7))
    }

    /// The old rows that stay, change and go, and how many new ones are new: (key, value) pairs.
    fn pair(old: &[(usize, usize)], new: &[(usize, usize)], keyed: bool) -> [Vec<usize>; 4] {
        let key = |row: &(usize, usize)| mark(row.0).filter(|_| keyed);
        let row = |row: &(usize, usize)| mark(row.0 * 100 + row.1).unwrap();
        let mut pairing = Pairing::default();
        for (place, old) in old.iter().enumerate() {
            pairing.add(row(old), key(old), place);
        }
        let (mut changed, mut fresh) = (vec![], vec![]);
        for (place, new) in new.iter().enumerate() {
            match pairing.find(row(new), key(new)) {
                Found::Same => (),
                Found::Changed(place) => changed.push(place),
                Found::New => fresh.push(place),
            }
        }
        changed.sort();
        [pairing.kept().collect(), changed, pairing.gone().collect(), fresh]
    }

    #[test]
    fn as_many_copies_stay_as_both_sides_have() {
        let copies = |n: usize| vec![(1, 1); n];
        for (before, after) in [(0, 0), (0, 2), (3, 0), (3, 3), (5, 2), (2, 5)] {
            let [kept, changed, gone, fresh] = pair(&copies(before), &copies(after), false);
            let same = before.min(after);
            assert_eq!(
                [kept.len(), changed.len(), gone.len(), fresh.len()],
                [same, 0, before - same, after - same]
            );
        }
    }

    #[test]
    fn a_row_whose_key_stays_changes() {
        let old = [(1, 1), (2, 2), (3, 3)];
        assert_eq!(pair(&old, &[(3, 3), (2, 7), (4, 1)], true), [vec![2], vec![1], vec![0], vec![2]]);
        assert_eq!(pair(&old, &[(3, 3), (2, 7), (4, 1)], false), [vec![2], vec![], vec![0, 1], vec![1, 2]]);
    }

    #[test]
    fn a_key_given_twice_changes_its_row_once() {
        // The second one is an insert, which the key's index refuses.
        assert_eq!(pair(&[(1, 1)], &[(1, 2), (1, 1)], true), [vec![], vec![0], vec![], vec![1]]);
        assert_eq!(pair(&[(1, 1)], &[(1, 1), (1, 2)], true), [vec![0], vec![], vec![], vec![1]]);
    }

    #[test]
    fn what_stays_and_what_is_written_is_the_new_set() {
        let mut random = Random::new(1);
        for _ in 0..500 {
            let mut draw = || -> Vec<(usize, usize)> {
                (0..random.below(30)).map(|_| (random.below(6), random.below(4))).collect()
            };
            let (old, new) = (draw(), draw());
            let [kept, _, gone, fresh] = pair(&old, &new, false);
            assert_eq!(kept.len() + gone.len(), old.len());
            // Nothing goes that is written again.
            assert!(gone.iter().all(|i| fresh.iter().all(|j| old[*i] != new[*j])));
            let stay = kept.iter().map(|i| old[*i]);
            let mut after: Vec<_> = stay.chain(fresh.iter().map(|j| new[*j])).collect();
            let mut expected = new;
            after.sort();
            expected.sort();
            assert_eq!(after, expected);
        }
    }
}
