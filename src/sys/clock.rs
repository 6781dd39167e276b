//! The two clocks. Waiting is measured on CLOCK_BOOTTIME, which counts suspend
//! and which nobody can set; the wall clock is for people to read, and to tell
//! apart what happened before a reboot.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use nix::time::{ClockId, clock_gettime};

use super::file::read_regular;
use crate::model::{Boottime, Moment, Place, Walltime};

/// Time since boot, suspend included: clock_gettime(2), CLOCK_BOOTTIME.
pub fn boottime() -> Boottime {
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(t) => {
            let since = std::time::Duration::from(t).as_nanos();
            Boottime::from_nanos(u64::try_from(since).unwrap_or(u64::MAX))
        }
        // CLOCK_BOOTTIME exists since Linux 2.6.39; Rust itself needs 3.2.
        Err(_) => unreachable!("the kernel has no CLOCK_BOOTTIME"),
    }
}

/// The wall clock, for display and across reboots only.
pub fn walltime() -> Walltime {
    wall_of(SystemTime::now())
}

/// A time of the system's, such as that of a file.
pub fn wall_of(time: SystemTime) -> Walltime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    Walltime::from_millis(u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX))
}

/// This boot's random identifier: random(4), /proc/sys/kernel/random/boot_id.
///
/// Empty where /proc does not show it; then every record counts as of this boot.
pub fn boot_id() -> String {
    static ID: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ID.get_or_init(|| {
        super::process::read_whole("/proc/sys/kernel/random/boot_id")
            .map(|id| String::from_utf8_lossy(&id).trim().to_owned())
            .unwrap_or_default()
    })
    .clone()
}

/// This machine, by machine-id(5), and our pid namespace. A machine without an id is told
/// by its boot.
pub fn place() -> Place {
    static PLACE: std::sync::OnceLock<Place> = std::sync::OnceLock::new();
    *PLACE.get_or_init(|| {
        let pids = std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino());
        Place::new(&machine_id().unwrap_or_else(boot_id), pids)
    })
}

/// The machine's id: machine-id(5). None where it has none yet.
pub fn machine_id() -> Option<String> {
    let id = read_regular(Path::new("/etc/machine-id"), 4096, 0).ok()?;
    let id = String::from_utf8_lossy(&id).trim().to_owned();
    (!id.is_empty() && id != "uninitialized").then_some(id)
}

/// Why a machine's id is another one after a reboot, if that is so: it has none, or one that
/// systemd made up for this boot and put in its place, by machine-id(5).
pub fn why_id_changes() -> Option<&'static str> {
    let file = |path: &str| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let made_up = || file("/etc/machine-id").ok() == file("/run/machine-id").ok();
    match machine_id() {
        None => Some("this one has no /etc/machine-id"),
        Some(_) if made_up() => Some("this one's /etc/machine-id is made up at each boot"),
        Some(_) => None,
    }
}

/// This moment, on both clocks, and here.
pub fn moment() -> Moment {
    Moment {
        boot: boot_id(),
        place: place(),
        uptime: boottime(),
        wall: walltime(),
    }
}
