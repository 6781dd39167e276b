//! Tests that need mounts, loop devices or namespaces, which the root of a container may not have.

/// Time namespaces.
mod clock;
/// Unprivileged user of the same machine.
mod hostile;
/// Power failures at any moment.
mod power;
/// Changes beneath a waiter: its disk and its directory.
mod under;
