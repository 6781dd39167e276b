//! Words in, words out: what the command line takes, says and returns. No Puppet, and no more processes than it takes to
//! have something to talk about.
#![allow(missing_docs, unsafe_code)]

/// The file itself.
mod binary;
/// `again fleet`, which becomes the other program.
mod fleet;
/// `--help`, and the options it speaks of.
mod help;
/// The plots of doc/numbers.
mod numbers;
/// What needs more than the root of a container may do.
mod privileged;
/// The one line that a request prints, its exit status, and what is refused.
mod requests;
/// /etc/again.toml, AGAIN_*, and what is wrong with them.
mod settings;
/// `again status`, for people and for programs, and for other users.
mod status;
