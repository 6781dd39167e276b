//! Tests with real processes, but without Puppet: a stand-in that looks like a puppet run starts in
//! 40 ms, so that hundreds of cases take seconds. Puppet itself is tested in `tests/puppet`;
//! command-line input and output in `tests/cli`.
#![allow(missing_docs, unsafe_code)]

/// Kills at any moment: requester, waiter, run, stop.
mod crash;
/// A hundred requests at the same time.
mod crowd;
/// Directory in which the rerun of a run below a link starts.
mod directory;
/// Kernels, or filters, without some system calls.
mod fallback;
/// Unusable state directories, full disks, closed standard descriptors.
mod faults;
/// Fidelity of the rerun to its run: arguments, environment, program, input, output.
mod fidelity;
/// Manifests that are a descriptor of the run.
mod manifest;
/// Commands of Puppet's, named by a person or instead of the run's own.
mod named;
/// Records of a newer version.
mod newer;
/// Triggers of other nodes.
mod origin;
/// Tests that need more privileges than the root of a container may have.
mod privileged;
/// Waits for a slot of the fleet.
mod slots;
/// `again stop`, in every phase.
mod stop;
/// Times at which reruns start, and the conditions that they wait for.
mod timing;
/// Upkeep of old logs and idle targets: which commands do it, and which do not read them.
mod upkeep;
/// Process that waits.
mod waiter;
