//! Tests that need mounts, loop devices or namespaces, which the root of a container may not have.

/// Time namespaces.
mod clock;
/// An unprivileged user of the same machine.
mod hostile;
/// The power fails at any moment.
mod power;
/// Under a waiter: its disk and its directory.
mod under;
