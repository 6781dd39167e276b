//! Every Puppet: the same tests with Puppet 7, Puppet 8, OpenVox 9, and a Puppet that is laid out as in its all-in-one packages. `run`
//! starts this program in a copy of a root (`image`, `enter`, `aio`) for each of them, where it may write to wherever the class does by
//! default; started by hand it fails. What is the same for all Puppets belongs to the other rooms.
#![allow(missing_docs)]

/// Manifests in the manner of the original's known users, unmodified but for their two minutes.
mod dropin;
/// What `make test` runs: no puppetserver, a few minutes for all places together.
mod quick;
/// What `make matrix` runs too.
mod whole;

/// Runs a puppetserver for the program in another place, until our standard input ends; started by `run`, never as a test.
#[test]
#[ignore = "a server for others"]
fn serve() {
    again_test_support::Server::serve();
}
