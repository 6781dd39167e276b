//! Identity of a process: a pid and its start time, never a pid alone. Pids are reused; the pair is
//! unique within one boot.

use serde::{Deserialize, Serialize};

/// One process, distinct from any later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Process id, in our pid namespace.
    pub pid: i32,
    /// Start time in clock ticks after boot: proc_pid_stat(5), field 22.
    pub start: u64,
}

/// Length of a clock tick of /proc, a hundredth of a second on Linux: proc_pid_stat(5), sysconf(3).
const NANOS_PER_TICK: u64 = 10_000_000;

impl Identity {
    /// Start time of the process, rounded down to a tick: never later than the real one.
    pub fn started(self) -> super::time::Boottime {
        super::time::Boottime::from_nanos(self.start.saturating_mul(NANOS_PER_TICK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_started_so_many_ticks_after_boot() {
        let who = Identity { pid: 7, start: 250 };
        assert_eq!(who.started().nanos(), 2_500_000_000);
    }
}
