//! Real processes without Puppet: a stand-in that has the shape of a puppet run starts in 40 ms, so that hundreds of
//! cases take seconds. What Puppet itself does is shown in `tests/puppet`; words in, words out in `tests/cli`.
#![allow(missing_docs, unsafe_code)]

/// Killed at any moment: requester, waiter, run, stop.
mod crash;
/// A hundred requests at once.
mod crowd;
/// Where the rerun of a run below a link starts.
mod directory;
/// A kernel, or a filter in front of it, without some system calls.
mod fallback;
/// The state directory is unusable, the disk is full, standard descriptors are closed.
mod faults;
/// The rerun is what the run was: arguments, environment, program, input, output.
mod fidelity;
/// The manifest is a descriptor of the run.
mod manifest;
/// A command that is Puppet's, named by a person or in place of the run's own.
mod named;
/// Records of a newer version.
mod newer;
/// Triggers of other nodes.
mod origin;
/// What needs more than the root of a container may do.
mod privileged;
/// What waits for a slot of the fleet.
mod slots;
/// `again stop`, in every phase.
mod stop;
/// When reruns start, and what they wait for.
mod timing;
/// Old logs and quiet targets: who looks after them, and who does not look at them.
mod upkeep;
/// The process that waits.
mod waiter;
