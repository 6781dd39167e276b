//! Limit of the results that the outbox holds for the triggers of one sender.

use crate::wire::lineage::Lineage;
use crate::wire::name::Node;
use crate::wire::quota::Amount;

/// Largest number of results for one sender's triggers, and of their bytes.
pub(super) const OF_A_SENDER: Amount = Amount {
    values: 2000,
    bytes: 8 << 20,
};

/// Approximate size of a result in bytes, most of which are the ways of its origins.
pub(super) fn size(lineage: &Lineage) -> usize {
    let name = |node: &Node| node.as_str().len() + 3;
    let origins = lineage.0.iter();
    let ways = origins.map(|origin| 100 + origin.path.iter().map(name).sum::<usize>());
    1000 + ways.sum::<usize>()
}
