//! Tests that need mounts, namespaces or the kernel's settings, which the root of a container may not have.

/// Under a boot id that is another one, or cannot be read.
mod boots;
/// Containers that may end with the run in them.
mod container;
/// The script that runs the other tests as in a container.
mod container_script;
/// State directories on file systems that are full or read-only.
mod disks;
/// Looked at from another pid namespace or machine.
mod elsewhere;
/// Pids that are used again.
mod recycled;
/// A shutdown that is announced.
mod shutdown;
/// Runs that show a title in place of their command line.
mod titles;
