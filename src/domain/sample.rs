//! Which of many a sample takes.

/// The places of a sample of `size` from `count`, ascending: the first, the last, and between them one drawn from each of
/// equal parts, so that no stretch is left out. `unit` draws from `[0, 1)`.
pub fn draw(count: usize, size: usize, mut unit: impl FnMut() -> f64) -> Vec<usize> {
    if size >= count {
        return (0..count).collect();
    }
    let mut drawn_from = |from: usize, until: usize| from + ((until - from) as f64 * unit()) as usize;
    match size {
        0 => vec![],
        1 => vec![drawn_from(0, count)],
        _ => {
            let (inner, parts) = (count - 2, size - 2);
            let mut places = vec![0];
            for part in 0..parts {
                places.push(drawn_from(1 + part * inner / parts, 1 + (part + 1) * inner / parts));
            }
            places.push(count - 1);
            places
        }
    }
}

#[cfg(test)]
mod tests {
    use super::draw;
    use crate::domain::random::Random;

    #[test]
    fn a_sample_ascends_and_has_both_ends() {
        let mut random = Random::new(7);
        for count in 0..40 {
            for size in 0..45 {
                let drawn = draw(count, size, || random.unit());
                assert_eq!(drawn.len(), size.min(count));
                assert!(drawn.is_sorted_by(|a, b| a < b), "{drawn:?}");
                assert!(drawn.iter().all(|place| *place < count));
                if size > 1 && count > 1 {
                    assert_eq!((drawn.first(), drawn.last()), (Some(&0), Some(&(count - 1))));
                }
            }
        }
    }

    #[test]
    fn each_part_gives_one() {
        for unit in [0.0, 0.5, 0.999_999] {
            let drawn = draw(1002, 12, || unit);
            for (part, place) in drawn[1..11].iter().enumerate() {
                assert!((1 + part * 100..101 + part * 100).contains(place), "{drawn:?}");
            }
        }
    }

    #[test]
    fn a_sample_of_one_may_be_any() {
        let mut random = Random::new(3);
        let mut seen: Vec<usize> = (0..200).flat_map(|_| draw(4, 1, || random.unit())).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [0, 1, 2, 3]);
    }
}
