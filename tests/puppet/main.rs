//! Real Puppet: every test here starts a real `puppet apply` or `puppet agent` and looks at what really ran.
//! What needs no Puppet belongs to `tests/process` (real processes) or `tests/cli` (words in, words out).
#![allow(missing_docs)]

/// The agent: one-off, against a real server, as a daemon; its lock.
mod agent;
/// `puppet apply`: the second run is the first one's equal; what cannot be run again is refused.
mod apply;
/// The forms of an Exec that `again` may be called from.
mod exec;
/// What stops a loop, and what must not meet the cap.
mod loops;
/// Triggers of other nodes.
mod origin;
/// What needs more than the root of a container may do.
mod privileged;
/// The test support itself.
mod rig_itself;
/// Several timers, and when they fire.
mod timers;
/// The process that waits, and stopping it.
mod waiter;

use again_test_support::{
    assert_same_circumstances, assert_same_run, changes_once, hold_until, until_held,
};
