//! Where a pid means something: pids are counted anew in each pid namespace of each machine.

use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// A machine, and a pid namespace of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// A hash of the machine's id, which machine-id(5) asks to keep to oneself.
    pub machine: u64,
    /// The inode of the pid namespace; 0 where it cannot be seen.
    pub pids: u64,
}

/// Where a record comes from, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    /// This boot and this pid namespace: a pid on record is a pid.
    Here,
    /// Another boot of this machine: a lock that is held is the only sign of life.
    OtherBoot,
    /// This machine, under a boot that is not known: a lock that is held is a sign of life, and so
    /// is a process with the recorded pid and start time.
    UnknownBoot,
    /// Another machine or pid namespace, whose processes cannot be seen from here.
    Foreign(Foreign),
}

super::words::words! {
    /// Where a foreign record comes from.
    pub enum Foreign {
        /// Another machine's: a shared directory, or a copy of it in an image.
        Machine = "another machine",
        /// Another pid namespace's of this machine: a container's.
        Namespace = "another pid namespace",
        /// A process's that lives and whose boot is another or not known.
        Boot = "another boot",
    }
}

/// The inode of the machine's own pid namespace, under any boot: `PROC_PID_INIT_INO`
/// (include/linux/proc_ns.h).
pub const FIRST: u64 = 0xefff_fffc;

impl Place {
    /// The place with this machine id, or whatever stands for one.
    pub fn new(machine: &str, pids: u64) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(b"again");
        hasher.write(machine.as_bytes());
        let machine = hasher.finish();
        Place { machine, pids }
    }

    /// Its name in the name of a file.
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
