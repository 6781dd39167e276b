//! Delta and jitter: the delay of a rerun.

use crate::model::Span;

/// Smallest default jitter, so that runs that end together do not start together.
const LEAST_JITTER: Span = Span::from_secs(2);

/// Number of the rerun in its chain from which on its jitter doubles.
const DOUBLES_FROM: u32 = 4;

/// Widest jitter of the `rerun`th rerun of a chain (1 for the first).
///
/// `asked` is the configured jitter J; the default J is a quarter of delta, at least 2 s. From the
/// fourth rerun on J doubles with each rerun, up to `most`; a configured J above `most` stays
/// unchanged. Zero stays zero.
pub fn jitter_range(delta: Span, asked: Option<Span>, most: Span, rerun: u32) -> Span {
    let base = asked.unwrap_or_else(|| Span::from_nanos(delta.nanos() / 4).max(LEAST_JITTER));
    let doublings = rerun.saturating_sub(DOUBLES_FROM - 1);
    if doublings == 0 {
        return base;
    }
    let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    base.times(factor).min(most.max(base))
}

/// Random span, uniform in `[0, range]`, from the caller's generator.
pub fn draw(range: Span, dice: &mut impl rand::Rng) -> Span {
    use rand::RngExt;
    Span::from_nanos(dice.random_range(0..=range.nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    const fn s(seconds: u64) -> Span {
        Span::from_secs(seconds)
    }

    #[test]
    fn a_quarter_of_delta_at_least_two_seconds() {
        assert_eq!(jitter_range(s(0), None, s(300), 1), s(2));
        assert_eq!(jitter_range(s(120), None, s(300), 3), s(30));
    }

    #[test]
    fn doubles_from_the_fourth_rerun() {
        let ranges: Vec<u64> = (1..=10)
            .map(|n| jitter_range(s(0), None, s(300), n).secs())
            .collect();
        assert_eq!(ranges, [2, 2, 2, 4, 8, 16, 32, 64, 128, 256]);
        assert_eq!(jitter_range(s(0), None, s(300), 11), s(300));
        assert_eq!(jitter_range(s(0), None, s(300), u32::MAX), s(300));
    }

    #[test]
    fn both_ends_of_the_range_are_reached() {
        let mut dice = rand::rngs::StdRng::seed_from_u64(7);
        let range = Span::from_nanos(3);
        let mut seen = [false; 4];
        for _ in 0..1000 {
            seen[usize::try_from(draw(range, &mut dice).nanos()).expect("small")] = true;
        }
        assert_eq!(seen, [true; 4]);
    }

    proptest! {
        #[test]
        fn zero_means_zero(delta in 0..1_000_000u64, rerun in 0..100u32) {
            prop_assert_eq!(jitter_range(s(delta), Some(s(0)), s(300), rerun), s(0));
        }

        #[test]
        fn never_shrinks_along_a_chain(delta in 0..1_000_000u64, asked in proptest::option::of(0..1000u64), rerun in 1..80u32) {
            let at = |n| jitter_range(s(delta), asked.map(s), s(300), n);
            prop_assert!(at(rerun) <= at(rerun + 1));
            prop_assert!(at(rerun) <= at(1).max(s(300)));
        }

        #[test]
        fn a_draw_stays_in_range(range in 0..u64::MAX, seed in any::<u64>()) {
            let mut dice = rand::rngs::StdRng::seed_from_u64(seed);
            prop_assert!(draw(Span::from_nanos(range), &mut dice).nanos() <= range);
        }
    }
}
