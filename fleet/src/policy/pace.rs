//! How long a target waits, beyond what it was asked for: so that many targets do not start together, and a circle slows down.

use again_base::delay;
use again_base::model::Span;

/// What a node's operator set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// For each other target of the same firing.
    pub spread: Span,
    /// The jitter of a trigger that is not the first of its story, where somebody set it.
    pub jitter: Option<Span>,
    /// The most that the jitter grows to.
    pub max_jitter: Span,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            spread: Span::from_nanos(50_000_000),
            jitter: None,
            max_jitter: Span::from_secs(300),
        }
    }
}

/// The longest that this target may wait on top of the delta: the moment itself is drawn from zero to here.
///
/// One target starts at once, and a thousand not together. The first hop adds nothing; from the second one on the jitter is
/// that of a rerun with this number in its chain.
pub fn range(pace: &Pace, delta: Span, targets: u32, hops: usize) -> Span {
    let spread = pace.spread.times(u64::from(targets.saturating_sub(1)));
    if hops <= 1 {
        return spread;
    }
    let rerun = u32::try_from(hops).unwrap_or(u32::MAX);
    spread + delay::jitter_range(delta, pace.jitter, pace.max_jitter, rerun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn millis(targets: u32, hops: usize) -> u64 {
        range(&Pace::default(), Span::ZERO, targets, hops).millis()
    }

    #[test]
    fn one_target_of_a_first_hop_starts_at_once() {
        assert_eq!(millis(1, 1), 0);
        assert_eq!(millis(2, 1), 50);
        assert_eq!(millis(1000, 1), 49_950);
    }

    #[test]
    fn slower_with_every_hop() {
        let seconds: Vec<u64> = (1..=10).map(|hops| millis(1, hops) / 1000).collect();
        assert_eq!(seconds, [0, 2, 2, 4, 8, 16, 32, 64, 128, 256]);
        assert_eq!(millis(1, 20), 300_000);
    }

    proptest! {
        #[test]
        fn never_less_for_more(delta in 0..1_000_000_u64, targets in 1..1_000_000_u32, hops in 0..20_usize) {
            let range = |targets, hops| range(&Pace::default(), Span::from_secs(delta), targets, hops);
            prop_assert!(range(targets, hops) <= range(targets + 1, hops));
            prop_assert!(range(targets, hops) <= range(targets, hops + 1));
        }
    }
}
