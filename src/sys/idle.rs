//! The lowest possible priority, for work that nobody waits for.
#![allow(unsafe_code)]

use nix::libc;

/// Lets this process run only if no other wants the processor or the disk: sched_setscheduler(2),
/// ioprio_set(2). After a failure it merely competes with others.
pub fn become_idle() {
    let none: libc::c_int = 0;
    // SAFETY: the kernel reads one integer. musl's own function always fails.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_IDLE,
            &raw const none,
        )
    };
    // IOPRIO_WHO_PROCESS, and IOPRIO_CLASS_IDLE above IOPRIO_CLASS_SHIFT (linux/ioprio.h).
    let (process, class) = (1, 3 << 13);
    // SAFETY: integers only.
    unsafe { libc::syscall(libc::SYS_ioprio_set, process, 0, class) };
    // Between sessions the scheduler may divide first: sched(7), autogroup.
    let _ = std::fs::write("/proc/self/autogroup", "19");
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    /// A child, since there may be no way back. It may not run again for long once it is idle.
    #[test]
    fn become_idle_sets_the_idle_scheduling_class() {
        // SAFETY: the child makes system calls alone, until it is killed.
        let child = match unsafe { nix::unistd::fork() }.expect("forked") {
            nix::unistd::ForkResult::Child => {
                // In a session of its own: the autogroup is of the session, and the tests' must not stay slow.
                let _ = nix::unistd::setsid();
                super::become_idle();
                nix::unistd::pause();
                unreachable!("it is killed");
            }
            nix::unistd::ForkResult::Parent { child } => child,
        };
        // SAFETY: integers only.
        let class = || unsafe { libc::syscall(libc::SYS_sched_getscheduler, child.as_raw()) };
        let end = Instant::now() + Duration::from_secs(120);
        while class() != i64::from(libc::SCHED_IDLE) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let found = class();
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).expect("killed");
        assert_eq!(found, i64::from(libc::SCHED_IDLE));
    }
}
