//! PURE: what a node decides about triggers. No clock, no network, no disk: they are given in.

/// Who may start runs here.
pub mod accept;
/// Which places belong to dead nodes.
pub mod beat;
/// What a sender asks for, as registers.
pub mod fire;
/// What a target makes of one register.
pub mod judge;
/// The nodes as they were read last.
pub mod last_inventory;
/// Where a trigger comes from, and when that has been far enough.
pub mod lineage;
/// Who may hold a lock.
pub mod lock;
/// Newest versions of nodes' facts.
pub mod newest;
/// How long a target waits, beyond what it was asked for.
pub mod pace;
/// What a target's ledger has on disk.
pub mod page;
/// Regular expressions.
mod pattern;
/// Whether a node is connected.
pub mod presence;
/// What a target remembers, so that it acts on nothing twice.
pub mod replay;
/// Whether a target of a rolling run may begin.
pub mod rolling;
/// Which events this node reacts to.
pub mod rule;
/// Which nodes are meant.
pub mod select;
/// How much of the cap the triggers of each node may use.
pub mod share;
/// Who of those that share slots may run.
pub mod slots;
/// Selections that are resolved later.
pub mod stored_selection;
/// What followed from an origin.
pub mod story;
/// Times that a wrong clock does not shorten.
pub mod term;
