//! Wait of a target in addition to the delta, so that many targets do not start together, and
//! circles slow down.

use again_base::delay;
use again_base::model::Span;

/// Pace that the operator of a node has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Spread for each further target of the same request.
    pub spread: Span,
    /// Jitter of a trigger from its second hop on; none for the default.
    pub jitter: Option<Span>,
    /// Upper limit of the jitter.
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

/// Longest wait of this target in addition to the delta. The actual wait is drawn between zero and
/// this value.
///
/// A single target starts immediately; many targets do not start together. The first hop adds no
/// jitter. From the second hop on, the jitter is that of a rerun with this number in its chain.
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
