//! Tests that need mounts, namespaces or the kernel's settings, which the root of a container may
//! not have.

/// Other or unreadable boot ids.
mod boots;
/// Containers that may end together with a run.
mod container;
/// Script that runs the other tests as in a container.
mod container_script;
/// State directories on file systems that are full or read-only.
mod disks;
/// Views from another pid namespace or machine.
mod elsewhere;
/// Reused pids.
mod recycled;
/// Scheduled shutdowns.
mod shutdown;
/// Runs whose title replaces their command line.
mod titles;
