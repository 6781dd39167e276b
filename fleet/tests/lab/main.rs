//! What must hold on real, booted machines, set up by the classes of the module: nodes and a backend on a network of their own, with
//! real Puppet, the real helper, and certificates of a Puppet CA.

#[path = "../support/ca.rs"]
mod ca;
#[allow(dead_code, reason = "what is signed by nobody is not for this room")]
#[path = "../support/fired.rs"]
mod fired;
/// Machines on a network.
mod fleet;

/// From a change on one node to a run on another.
mod across;
/// A load balancer that names all web servers.
mod balancer;
/// The two processes of a node, and one that was taken over.
mod compromised;
/// What runs do, told elsewhere.
mod events;
/// Somebody new, from packages alone.
mod fresh;
/// What holds a trigger on its node.
mod held;
/// Who holds a lock, when machines boot and lose their power.
mod locks;
/// A network that does not work.
mod network;
/// What has a node react to what others do.
mod rules;
/// Agents of a Puppet server.
mod server;
/// Packages of two versions on a fleet at work.
mod upgrade;
