//! State of the key where this node publishes its inventory.

use again_base::model::Boottime;

use crate::wire::inventory::Inventory;

/// Value at this node's own key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnKey {
    /// No value.
    Absent,
    /// The value that this service put there last.
    Unchanged,
    /// Another value that this node's certificate has signed.
    Signed(Box<Inventory>),
    /// A value that this node has not signed; why it does not count.
    Foreign(String),
}

/// Knowledge about this node's own key.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnKeyState {
    /// Whether the key was seen since the backend was reached, or cannot be seen. Nothing is put
    /// there before.
    pub is_seen: bool,
    /// Uptime from which the key counts as seen. It stays the same over all connections until one
    /// has shown the key or refused to.
    pub seen_by: Option<Boottime>,
    /// Value at the key; `None` if it is not known.
    pub found: Option<OwnKey>,
    /// Revision of that value.
    pub revision: u64,
    /// Highest version that this node's certificate has signed, as given by [`Inventory::order`].
    pub last: u64,
    /// Highest version, if it was found at the key and this node had not published it.
    pub newest: Option<Box<Inventory>>,
    /// Uptime from which this node may restore its own value.
    pub next: Boottime,
}
