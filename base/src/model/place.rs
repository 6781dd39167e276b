//! Machine and pid namespace in which a pid is valid.

use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// Machine, and a pid namespace of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Hash of the machine's id, which machine-id(5) asks to keep confidential.
    pub machine: u64,
    /// Inode of the pid namespace; 0 if it cannot be read.
    pub pids: u64,
}

/// Provenance of a record, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    /// This boot and this pid namespace: a recorded pid is valid.
    Here,
    /// Another boot of this machine: a held lock is the only sign of life.
    OtherBoot,
    /// This machine, under a boot that is not known: a held lock is a sign of life, and so is a
    /// process with the recorded pid and start time.
    UnknownBoot,
    /// Another machine or pid namespace, whose processes cannot be seen from here.
    Foreign(Foreign),
}

super::words::words! {
    /// Kind of a foreign place.
    pub enum Foreign {
        /// Another machine: a shared directory, or a copy of one in an image.
        Machine = "another machine",
        /// Another pid namespace of this machine: a container.
        Namespace = "another pid namespace",
        /// Another or unknown boot, of a process that is alive.
        Boot = "another boot",
    }
}

/// Inode of the machine's own pid namespace, under any boot: `PROC_PID_INIT_INO`
/// (include/linux/proc_ns.h).
pub const FIRST: u64 = 0xefff_fffc;

impl Place {
    /// Place with this machine id, or with a substitute for it.
    pub fn new(machine: &str, pids: u64) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(b"again");
        hasher.write(machine.as_bytes());
        let machine = hasher.finish();
        Place { machine, pids }
    }

    /// Suffix of file names that identifies the place.
    pub fn tag(self) -> String {
        format!("-{:016x}", self.machine ^ self.pids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_keeps_its_number_and_does_not_tell_its_id() {
        let place = Place::new("3d1219c7c4c5404aaa1f6d2a48adfda4", 1);
        assert_eq!(place, Place::new("3d1219c7c4c5404aaa1f6d2a48adfda4", 1));
    }

    #[test]
    fn a_place_is_named_by_machine_and_namespace_together() {
        let tag = |machine, pids| Place { machine, pids }.tag();
        assert_eq!(tag(0b0110, 0b0011), "-0000000000000005");
        assert_eq!(tag(u64::MAX, 0), "-ffffffffffffffff");
    }
}
