//! Tests on real, booted machines, set up with the classes of the module: nodes and a backend on a
//! separate network, with real Puppet, the real `again`, and certificates of a Puppet CA.

#[path = "../support/ca.rs"]
mod ca;
#[allow(dead_code, reason = "what is signed by nobody is not for this room")]
#[path = "../support/fired.rs"]
mod fired;
/// Machines on a network.
mod fleet;

/// Changes on one node that cause a run on another.
mod across;
/// Load balancer whose configuration lists all web servers.
mod balancer;
/// Service and executor of a node, after the service was compromised.
mod compromised;
/// Events of runs, seen on other nodes.
mod events;
/// Setup by a new user, from packages alone.
mod fresh;
/// Triggers that are held on their target.
mod held;
/// Lock holders when machines boot and lose power.
mod locks;
/// Broken networks.
mod network;
/// Rules for events of other nodes.
mod rules;
/// Agents of a Puppet server.
mod server;
/// Packages of two versions on a working fleet.
mod upgrade;
