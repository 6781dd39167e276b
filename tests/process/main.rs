//! Real processes without Puppet: a stand-in that has the shape of a puppet run starts in 40 ms, so that hundreds of
//! cases take seconds. What Puppet itself does is shown in `tests/puppet`; words in, words out in `tests/cli`.
#![allow(missing_docs, unsafe_code)]

/// Killed at any moment: requester, waiter, run, stop.
mod crash;
/// A hundred requests at once.
mod crowd;
/// Looked at from another pid namespace or machine.
mod elsewhere;
/// A kernel, or a filter in front of it, without some system calls.
mod fallback;
/// The state directory is unusable, the disk is full, standard descriptors are closed.
mod faults;
/// The rerun is what the run was: arguments, environment, program, input, output.
mod fidelity;
/// A command that is Puppet's, named by a person or in place of the run's own.
mod named;
/// Triggers of other nodes.
mod origin;
/// Pids that are used again.
mod recycled;
/// What waits for a slot of the fleet.
mod slots;
/// `again stop`, in every phase.
mod stop;
/// When reruns start, and what they wait for.
mod timing;
/// The process that waits.
mod waiter;
