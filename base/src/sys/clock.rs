//! Clocks. Waiting is measured on CLOCK_BOOTTIME, which includes suspend and cannot be set; the
//! wall clock is for people, and for comparing events across reboots.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

use nix::libc::{EIO, EMFILE, ENFILE, ENOMEM};
use nix::time::{ClockId, clock_gettime};

use super::file::read_regular;
use super::machine::replacement;
use super::process::{lossy, read_whole};
use crate::model::{Boottime, Moment, Place, Walltime};

/// File with the machine's id: machine-id(5).
const MACHINE_ID: &str = "/etc/machine-id";
/// File with the boot's id: random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// File with the offsets of the time namespace for children: time_namespaces(7). Missing in kernels
/// before 5.6.
const OFFSETS: &str = "/proc/self/timens_offsets";

#[cfg(all(feature = "shift-clock", not(debug_assertions)))]
compile_error!(
    "shift-clock is a feature of the tests, and no release may have it: test without --release"
);

static BOOT: OnceLock<String> = OnceLock::new();
static PLACE: OnceLock<Place> = OnceLock::new();

/// Time since boot, including suspend: clock_gettime(2), CLOCK_BOOTTIME.
pub fn boottime() -> Boottime {
    if let Some(machine) = replacement() {
        return machine.moment().uptime;
    }
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(t) => {
            let since = std::time::Duration::from(t).as_nanos();
            Boottime::from_nanos(u64::try_from(since).unwrap_or(u64::MAX))
        }
        // CLOCK_BOOTTIME exists since Linux 2.6.39; Rust itself needs 3.2.
        Err(_) => unreachable!("the kernel has no CLOCK_BOOTTIME"),
    }
}

/// Time of the wall clock, for display and across reboots only.
pub fn walltime() -> Walltime {
    if let Some(machine) = replacement() {
        return machine.moment().wall;
    }
    wall_of(system_time())
}

/// Time of the wall clock as a `SystemTime`. Only times of files are compared with an unshifted
/// reading of it.
pub fn system_time() -> SystemTime {
    let now = SystemTime::now();
    #[cfg(feature = "shift-clock")]
    let now = shifted(now);
    now
}

/// Shifts a time by the seconds in the file that `SHIFT_CLOCK` names; negative seconds shift it
/// into the past. Without the variable or the file the time stays unchanged. Times of files, and
/// those that TLS compares, are not shifted.
#[cfg(feature = "shift-clock")]
fn shifted(time: SystemTime) -> SystemTime {
    let file = std::env::var_os("SHIFT_CLOCK").map(std::fs::read_to_string);
    let seconds = file.and_then(|text| text.ok()?.trim().parse::<i64>().ok());
    let seconds = seconds.unwrap_or_default();
    let shift = std::time::Duration::from_secs(seconds.unsigned_abs());
    match seconds {
        ..0 => time - shift,
        0.. => time + shift,
    }
}

/// Wall clock time from a system time, such as that of a file.
pub fn wall_of(time: SystemTime) -> Walltime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    Walltime::from_millis(u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX))
}

/// Random identifier of this boot: random(4), /proc/sys/kernel/random/boot_id. In a time namespace
/// whose CLOCK_BOOTTIME has an offset, the offset is appended: times of that clock, including the
/// start times of processes, are comparable under one offset only.
///
/// Empty if /proc does not show it, as in a unit with `ProcSubset=pid`: see
/// [`Provenance::UnknownBoot`](crate::model::Provenance::UnknownBoot).
pub fn boot_id() -> String {
    if let Some(machine) = replacement() {
        return machine.moment().boot;
    }
    BOOT.get_or_init(|| of_boot().unwrap_or_default()).clone()
}

/// Machine, from machine-id(5), and our pid namespace. A machine without an id is identified by its
/// boot.
pub fn place() -> Place {
    if let Some(machine) = replacement() {
        return machine.moment().place;
    }
    *PLACE.get_or_init(|| place_of(machine_id()))
}

/// Determines the boot and the place for the lifetime of the process. Later, without a free
/// descriptor, they could not be read, and this machine would be taken for another one.
///
/// # Errors
/// The machine or the boot has an id that cannot be read now.
pub fn locate() -> io::Result<()> {
    let boot = unless_in_need(BOOT_ID, of_boot())?;
    BOOT.get_or_init(|| boot.unwrap_or_default());
    let id = unless_in_need(MACHINE_ID, of_machine())?;
    PLACE.get_or_init(|| place_of(id.flatten()));
    Ok(())
}

/// Id of the machine: machine-id(5). `None` if it has none yet.
pub fn machine_id() -> Option<String> {
    of_machine().ok().flatten()
}

fn of_boot() -> io::Result<String> {
    let id = read_whole(BOOT_ID)?;
    let offsets = match read_whole(OFFSETS) {
        Err(e) if !is_need(&e) => Vec::new(),
        read => read?,
    };
    let [own, for_children] = [own_namespace("time")?, own_namespace("time_for_children")?];
    let boot = boot_under(lossy(id).trim(), &own, &for_children, &lossy(offsets));
    Ok(boot)
}

/// Name of a namespace of this process: namespaces(7). Empty if it does not exist.
fn own_namespace(kind: &str) -> io::Result<String> {
    match std::fs::read_link(format!("/proc/self/ns/{kind}")) {
        Err(e) if !is_need(&e) => Ok(String::new()),
        read => Ok(read?.to_string_lossy().into_owned()),
    }
}

/// Boot id as seen in a time namespace: `ID`, or `ID+SECONDS.NANOSECONDS`. `offsets` are those of
/// the namespace for children. If that is another one, as after unshare(2), and after exec before
/// Linux 6.3, our own offsets are unknown: `ID+NAME`.
fn boot_under(id: &str, own: &str, for_children: &str, offsets: &str) -> String {
    if own != for_children {
        return format!("{id}+{own}");
    }
    let mut lines = offsets.lines();
    let line = lines.find_map(|line| line.strip_prefix("boottime"));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    match words[..] {
        [] | [_] | ["0", "0"] => id.to_owned(),
        [seconds, nanoseconds, ..] => format!("{id}+{seconds}.{nanoseconds:0>9}"),
    }
}

fn of_machine() -> io::Result<Option<String>> {
    let id = read_regular(Path::new(MACHINE_ID), 4096, 0)?;
    let id = String::from_utf8_lossy(&id).trim().to_owned();
    Ok((!id.is_empty() && id != "uninitialized").then_some(id))
}

fn place_of(machine: Option<String>) -> Place {
    let pids = std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino());
    // All time namespaces of a boot are on one machine.
    let boot = || boot_id().split('+').next().unwrap_or_default().to_owned();
    Place::new(&machine.unwrap_or_else(boot), pids)
}

/// Whether the error is a temporary lack of resources of this process or the machine.
fn is_need(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EIO | EMFILE | ENFILE | ENOMEM))
}

/// Result of a read; `None` if there is nothing to read, and an error if it only cannot be read
/// now.
fn unless_in_need<T>(path: &str, read: io::Result<T>) -> io::Result<Option<T>> {
    read.map(Some).or_else(|e| match is_need(&e) {
        true => {
            let what = format!("cannot tell which machine this is: {path}: {e}");
            Err(io::Error::new(e.kind(), what))
        }
        false => Ok(None),
    })
}

/// Reason why the machine's id changes at a reboot, if it does: it has none, or systemd generated
/// one for this boot only and mounted it there, as machine-id(5) describes.
pub fn why_id_changes() -> Option<&'static str> {
    let file = |path: &str| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let made_up = || file(MACHINE_ID).ok() == file("/run/machine-id").ok();
    match machine_id() {
        None => Some("this one has no /etc/machine-id"),
        Some(_) if made_up() => Some("this one's /etc/machine-id is made up at each boot"),
        Some(_) => None,
    }
}

/// Current moment on both clocks, with boot and place.
pub fn moment() -> Moment {
    if let Some(machine) = replacement() {
        return machine.moment();
    }
    Moment {
        boot: boot_id(),
        place: place(),
        uptime: boottime(),
        wall: walltime(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_now_is_not_taken_for_missing() {
        let read = |error| unless_in_need("/x", Err::<(), _>(io::Error::from_raw_os_error(error)));
        for error in [EIO, EMFILE, ENFILE, ENOMEM] {
            let said = read(error).expect_err("an error").to_string();
            assert!(
                said.starts_with("cannot tell which machine this is: /x: "),
                "{said}"
            );
        }
        for error in [nix::libc::ENOENT, nix::libc::EACCES] {
            assert!(matches!(read(error), Ok(None)));
        }
        assert!(matches!(unless_in_need("/x", Ok(1)), Ok(Some(1))));
    }

    #[test]
    fn offset_of_the_time_namespace_is_part_of_the_boot_id() {
        let boot = |boottime: &str| {
            let offsets = format!("monotonic           7         7\nboottime   {boottime}\n");
            boot_under("c0ffee", "time:[1]", "time:[1]", &offsets)
        };
        assert_eq!(boot("        0         0"), "c0ffee");
        assert_eq!(boot("     7200         0"), "c0ffee+7200.000000000");
        assert_eq!(boot("       -5  20000000"), "c0ffee+-5.020000000");
        // A kernel without time namespaces, and one whose file has another form.
        for offsets in ["", "boottime\n", "boottime 7200\n"] {
            assert_eq!(boot_under("c0ffee", "", "", offsets), "c0ffee");
        }
    }

    /// It goes by the old clock, and the file has the offset of the new one.
    #[test]
    fn offset_of_the_namespace_for_children_is_not_that_of_a_process_outside_it() {
        for offsets in ["boottime 7200 0\n", "boottime 0 0\n"] {
            let boot = boot_under("c0ffee", "time:[1]", "time:[2]", offsets);
            assert_eq!(boot, "c0ffee+time:[1]");
        }
    }
}
