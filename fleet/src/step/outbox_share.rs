//! How much is kept in the outbox of what became of one sender's triggers.

use crate::wire::lineage::Lineage;
use crate::wire::name::Node;
use crate::wire::quota::Amount;

/// Results of the triggers of one sender, and their bytes.
pub(super) const OF_A_SENDER: Amount = Amount {
    values: 2000,
    bytes: 8 << 20,
};

/// Bytes of a result, about: most of it are the ways of its origins.
pub(super) fn size(lineage: &Lineage) -> usize {
    let name = |node: &Node| node.as_str().len() + 3;
    let origins = lineage.0.iter();
    let ways = origins.map(|origin| 100 + origin.path.iter().map(name).sum::<usize>());
    1000 + ways.sum::<usize>()
}
