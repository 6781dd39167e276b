//! PURE: decisions of a node about triggers. The caller passes in the time and all data; nothing
//! here uses a clock, the network or the disk.

/// Signers whose triggers this node accepts.
pub mod accept;
/// Slots and locks of dead nodes, from the counters of their beats.
pub mod beat;
/// Triggers that a sender makes from a request.
pub mod fire;
/// Verdict of a target on one trigger.
pub mod judge;
/// Last inventory of nodes that was read.
pub mod last_inventory;
/// Origins of a trigger, and the limit on their hops.
pub mod lineage;
/// Locks: candidates, order and tokens.
pub mod lock;
/// Newest versions of nodes' facts.
pub mod newest;
/// Wait of a target in addition to the delta of the trigger.
pub mod pace;
/// Content of a target's ledger file.
pub mod page;
/// Regular expressions.
mod pattern;
/// Whether a node is connected.
pub mod presence;
/// Replay ledger of a target, which keeps it from acting on a trigger twice.
pub mod replay;
/// Decision whether a target of a rolling run may begin.
pub mod rolling;
/// Rules, which select the events that this node reacts to.
pub mod rule;
/// Selection of nodes by facts, classes and environment.
pub mod select;
/// Share of the cap that the triggers of each node may use.
pub mod share;
/// Queues of the groups of nodes that share slots.
pub mod slots;
/// Selections that are resolved later.
pub mod stored_selection;
/// Story of an origin: all triggers that followed from it.
pub mod story;
/// Terms, which a wrong clock does not shorten.
pub mod term;
