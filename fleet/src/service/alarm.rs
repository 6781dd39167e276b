//! The service's only timer, on the boot-time clock: it keeps counting during suspend, as the times
//! of triggers do, and the service sleeps until it is due.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use again_base::model::Boottime;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the event loop, to wait until it is readable.
///
/// # Errors
/// Any error of epoll_ctl(2).
pub fn waited_for(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor, which stays open until the `AsyncFd` is dropped
    // with its registration.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    fd.map_err(|e| e.into_parts().1)
}

const NEVER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Timer of timerfd_create(2).
pub struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    /// Any error of timerfd_create(2) or epoll_ctl(2).
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        waited_for(timer).map(Alarm)
    }

    /// Sets the timer to a time, which may have passed, in place of the previous one.
    ///
    /// # Errors
    /// Any error of timerfd_settime(2).
    pub fn set(&self, at: Boottime) -> io::Result<()> {
        // A time of 0 would disarm the timer.
        let nanos = i128::from(at.nanos().max(1));
        let at = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        };
        let spec = Itimerspec {
            it_interval: NEVER,
            it_value: at,
        };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }

    /// Waits until the timer expires.
    ///
    /// # Errors
    /// Any error of read(2).
    pub async fn ring(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0_u8; 8])?));
            if let Ok(read) = read {
                return read.map(|_| ());
            }
        }
    }
}
