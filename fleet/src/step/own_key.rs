//! What is known of the key where this node publishes its facts.

use again_base::model::Boottime;

use crate::wire::inventory::Inventory;

/// What stands at this node's own key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnKey {
    /// No value.
    Absent,
    /// The very value that this service put there last.
    Unchanged,
    /// Another value that this node's certificate has signed.
    Signed(Box<Inventory>),
    /// A value that it has not signed; why.
    Foreign(String),
}

/// What is known of this node's own key.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnKeyState {
    /// Whether it was seen since the backend was reached, or cannot be. Nothing is put there before.
    pub is_seen: bool,
    /// When it counts as seen; the same over all connections until one has shown it or refused to.
    pub seen_by: Option<Boottime>,
    /// What stands there; nothing if that is not known.
    pub found: Option<OwnKey>,
    /// Revision of that.
    pub revision: u64,
    /// Highest version that this node's certificate has signed, as [`Inventory::order`] gives it.
    pub last: u64,
    /// That version, if it was found there and this node had not published it.
    pub newest: Option<Box<Inventory>>,
    /// When this node may put its own there again.
    pub next: Boottime,
}
