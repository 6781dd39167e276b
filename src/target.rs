//! Targets: what will be run again. Equal targets share timers, cap and history.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::model::{Identity, Kind};
use crate::state::order::Order;

/// The id of what `order` runs: user and command line, and for `puppet apply` the
/// working directory. 16 hexadecimal digits.
pub fn id(order: &Order, uid: u32) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write_u32(uid);
    hasher.write_u8(u8::from(order.kind == Kind::Apply));
    if order.kind == Kind::Apply {
        write(&mut hasher, &order.directory.0);
    }
    for argument in &order.arguments {
        write(&mut hasher, &argument.0);
    }
    format!("{:016x}", hasher.finish128().h1)
}

/// The id of the chain that a run begins: 8 hexadecimal digits, the same for
/// every request of that run.
pub fn chain_id(run: Identity, boot: &str) -> String {
    let mut hasher = SipHasher13::new();
    write(&mut hasher, boot.as_bytes());
    hasher.write_i32(run.pid);
    hasher.write_u64(run.start);
    format!("{:08x}", hasher.finish128().h1 >> 32)
}

/// With its length in front, so that no two lists run into one.
fn write(hasher: &mut SipHasher13, bytes: &[u8]) {
    hasher.write_u64(bytes.len() as u64);
    hasher.write(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bytes;
    use crate::puppet::paths::Paths;
    use crate::sys::attributes::Attributes;

    fn order(kind: Kind, directory: &str, arguments: &[&str]) -> Order {
        Order {
            version: 1,
            kind,
            programs: Vec::new(),
            arguments: arguments
                .iter()
                .map(|a| Bytes(a.as_bytes().to_vec()))
                .collect(),
            directory: Bytes(directory.as_bytes().to_vec()),
            environment: None,
            attributes: Attributes::default(),
            input: None,
            manifest: None,
            paths: Paths::default(),
            daemon: None,
            log_dir: Bytes::default(),
            keep_logs: 20,
        }
    }

    #[test]
    fn the_directory_counts_for_apply_alone() {
        let apply = |dir| id(&order(Kind::Apply, dir, &["puppet", "apply", "x.pp"]), 0);
        assert_ne!(apply("/a"), apply("/b"));
        let agent = |kind, dir| id(&order(kind, dir, &["puppet", "agent", "-t"]), 0);
        assert_eq!(agent(Kind::Agent, "/a"), agent(Kind::Daemon, "/b"));
    }

    #[test]
    fn user_and_every_boundary_between_arguments_count() {
        let a = order(Kind::Agent, "/", &["ab", "c"]);
        let b = order(Kind::Agent, "/", &["a", "bc"]);
        assert_ne!(id(&a, 0), id(&b, 0));
        assert_ne!(id(&a, 0), id(&a, 1));
    }

    /// A record written today must be found by the next release.
    #[test]
    fn the_id_never_changes() {
        let a = order(Kind::Agent, "/", &["puppet", "agent", "-t"]);
        assert_eq!(id(&a, 0), "410d3abb321270ae");
    }
}
