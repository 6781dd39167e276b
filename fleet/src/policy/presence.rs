//! PURE: presence of a node, from the time at which it signed its published value. Only output for
//! people depends on it.

use again_base::model::{Span, Walltime};

/// Age at which a connected node signs its published value anew.
const SIGNED_ANEW: Span = Span::from_secs(600);
/// Greatest age at which a node counts as connected.
const CONNECTED: Span = Span::from_secs(900);
/// Maximum by which a node's own signature may be ahead of its clock before the clock counts as set
/// back.
const AHEAD: Span = Span::from_secs(60);

/// Presence of a node, as another node sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Presence {
    /// Node that has signed within the last 15 minutes, plus the skew.
    Connected,
    /// Node that has not signed within that time.
    #[default]
    Gone,
    /// Node that has signed at a time ahead of the reader's clock. One of the two clocks is wrong,
    /// so it is unknown whether the node is connected.
    Ahead,
}

impl Presence {
    /// Presence of a node that signed at this time. The clocks may differ by the skew.
    pub fn of(signed: Walltime, now: Walltime, skew: Span) -> Presence {
        if signed > now + skew {
            Presence::Ahead
        } else if now.since(signed) <= CONNECTED + skew {
            Presence::Connected
        } else {
            Presence::Gone
        }
    }
}

/// Whether a connected node has to sign its value anew: the signature is old, or the clock was set
/// back.
pub fn is_due(signed: Walltime, now: Walltime) -> bool {
    now.since(signed) >= SIGNED_ANEW || signed > now + AHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Walltime {
        Walltime::from_millis(seconds * 1000)
    }

    #[test]
    fn node_counts_as_connected_for_15_minutes_and_the_skew() {
        let skew = Span::from_secs(60);
        let of = |signed| Presence::of(at(signed), at(10_000), skew);
        assert_eq!(
            [of(10_000), of(9_040), of(10_060)],
            [Presence::Connected; 3]
        );
        assert_eq!([of(9_039), of(6_400)], [Presence::Gone; 2]);
        // A node whose clock is an hour ahead does not count as connected until that hour has come, whether it lives or not.
        assert_eq!([of(10_061), of(13_600)], [Presence::Ahead; 2]);
    }

    #[test]
    fn node_signs_anew_before_it_counts_as_gone_and_when_its_clock_was_set() {
        let due = |signed| is_due(at(signed), at(10_000));
        assert_eq!([due(9_401), due(10_000), due(10_060)], [false; 3]);
        assert_eq!([due(9_400), due(6_400), due(10_061)], [true; 3]);
    }
}
