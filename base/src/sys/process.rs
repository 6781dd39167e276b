//! Processes in /proc. A process is identified by a pid and its start time, never by a pid alone:
//! pids are reused, the pair is unique within one boot.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::machine::replacement;
use crate::model::Identity;

/// Fields of /proc/PID/stat that are used here (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Name between the parentheses, which may itself contain parentheses.
    pub comm: Vec<u8>,
    /// State, one letter. `Z`: the thread has ended, and the process too if it was the last.
    pub state: u8,
    /// Pid of the parent.
    pub ppid: i32,
    /// Process group.
    pub pgrp: i32,
    /// Session id.
    pub session: i32,
    /// Controlling terminal, 0 for none.
    pub tty: i32,
    /// Nice level.
    pub nice: i32,
    /// Number of threads, which includes the first one until the last has ended.
    pub threads: i32,
    /// Start time in clock ticks after boot.
    pub start: u64,
}

/// Lines of /proc/PID/status that are used here (proc_pid_status(5)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Effective user id.
    pub euid: u32,
    /// File mode creation mask, if the kernel shows it (since Linux 4.7).
    pub umask: Option<u32>,
}

/// Parses /proc/PID/stat; `None` if the text is invalid.
pub fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|&b| b == b'(')?;
    let close = text.iter().rposition(|&b| b == b')')?;
    let comm = text.get(open + 1..close)?.to_vec();
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    // Field 3 of the manual page comes first.
    let mut fields = rest.split_ascii_whitespace();
    Some(Stat {
        comm,
        state: *fields.next()?.as_bytes().first()?,
        ppid: fields.next()?.parse().ok()?,
        pgrp: fields.next()?.parse().ok()?,
        session: fields.next()?.parse().ok()?,
        tty: fields.next()?.parse().ok()?,
        nice: fields.nth(11)?.parse().ok()?,
        threads: fields.next()?.parse().ok()?,
        start: fields.nth(1)?.parse().ok()?,
    })
}

/// Parses /proc/PID/status; `None` without a `Uid:` line.
pub fn parse_status(text: &str) -> Option<Status> {
    let mut umask = None;
    for line in text.split('\n') {
        if let Some(rest) = line.strip_prefix("Umask:") {
            umask = u32::from_str_radix(rest.trim(), 8).ok();
        } else if let Some(rest) = line.strip_prefix("Uid:") {
            // The kernel writes the umask before it; most of the file follows.
            let euid = rest.split_ascii_whitespace().nth(1)?.parse().ok()?;
            return Some(Status { euid, umask });
        }
    }
    None
}

/// Text from kernel bytes, with invalid UTF-8 replaced; names in it may be any bytes.
pub fn lossy(text: Vec<u8>) -> String {
    // Valid UTF-8, the usual case, is not copied, and ASCII is validated quickly.
    String::from_utf8(text).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// Splits a NUL-separated block (cmdline, environ); empty elements are kept.
pub fn split_block(block: &[u8]) -> Vec<Vec<u8>> {
    if block.is_empty() {
        return Vec::new();
    }
    let body = block.strip_suffix(b"\0").unwrap_or(block);
    body.split(|&b| b == 0).map(<[u8]>::to_vec).collect()
}

fn path(pid: i32, name: &str) -> String {
    format!("/proc/{pid}/{name}")
}

/// Largest file of /proc that is read, in bytes: a process may have arguments and environment of 6
/// MB, and a machine many mounts and locks.
const LARGEST: u64 = 32 << 20;

/// Reads a whole file of /proc. These files have size 0 in stat(2), from which a reader would start
/// with a buffer of a few bytes.
///
/// # Errors
/// The errors of open(2) and read(2), and a file of more than 32 MB.
pub fn read_whole(path: &str) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::with_capacity(4096);
    // `take` keeps `read_to_end` from querying the size first.
    std::fs::File::open(path)?
        .take(LARGEST + 1)
        .read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > LARGEST {
        let what = format!("{path} is larger than {LARGEST} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(text)
}

/// Reads and parses /proc/PID/stat.
///
/// # Errors
/// The errors of open(2) and read(2); `NotFound` if there is no such process.
pub fn stat(pid: i32) -> io::Result<Stat> {
    let text = read_whole(&path(pid, "stat"))?;
    parse_stat(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Reads and parses /proc/PID/status.
///
/// # Errors
/// As for [`stat`].
pub fn status(pid: i32) -> io::Result<Status> {
    let text = read_whole(&path(pid, "status"))?;
    parse_status(&lossy(text)).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Raw block of the command line.
///
/// # Errors
/// As for [`stat`].
pub fn cmdline(pid: i32) -> io::Result<Vec<u8>> {
    read_whole(&path(pid, "cmdline"))
}

/// Raw block of the environment that the process was started with.
///
/// # Errors
/// `PermissionDenied` for another user's process; otherwise as for [`stat`].
pub fn environ(pid: i32) -> io::Result<Vec<u8>> {
    read_whole(&path(pid, "environ"))
}

/// Path of the executable, with ` (deleted)` at the end if it was replaced.
///
/// # Errors
/// As for [`environ`].
pub fn exe(pid: i32) -> io::Result<PathBuf> {
    std::fs::read_link(path(pid, "exe"))
}

/// Working directory of the process.
///
/// # Errors
/// As for [`environ`].
pub fn cwd(pid: i32) -> io::Result<PathBuf> {
    std::fs::read_link(path(pid, "cwd"))
}

/// Inode of the machine's own pid namespace: PROC_PID_INIT_INO of linux/proc_ns.h.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether a process is in a pid namespace other than the machine's own, as in a container.
pub fn is_in_pid_namespace(pid: i32) -> bool {
    let space = std::fs::metadata(path(pid, "ns/pid"));
    space.is_ok_and(|space| space.ino() != FIRST_PID_NAMESPACE)
}

/// Target of a descriptor of the process, in the form of proc_pid_fd(5).
///
/// # Errors
/// As for [`environ`].
pub fn descriptor(pid: i32, fd: i32) -> io::Result<PathBuf> {
    std::fs::read_link(path(pid, &format!("fd/{fd}")))
}

/// Current identity of the process with this pid. A zombie has none, unless other threads than the
/// one that ended are left: they may still write, and hold locks.
///
/// # Errors
/// `NotFound` if there is none; otherwise as for [`stat`].
pub fn identify(pid: i32) -> io::Result<Identity> {
    if let Some(machine) = replacement() {
        return machine.identify(pid);
    }
    let stat = stat(pid)?;
    if matches!(stat.state, b'Z' | b'X') && stat.threads <= 1 {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    Ok(Identity {
        pid,
        start: stat.start,
    })
}

/// Identity of this process.
///
/// # Errors
/// As for [`stat`], only if /proc is not mounted.
pub fn own_identity() -> io::Result<Identity> {
    let own = || i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    identify(replacement().map_or_else(own, |machine| machine.own_pid()))
}

/// Pids of all visible processes.
pub fn all_pids() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// All descendants of `pid`, each with its process group.
pub fn descendants(pid: i32) -> Vec<(Identity, i32)> {
    let all: Vec<(i32, Stat)> = all_pids()
        .into_iter()
        .filter_map(|pid| Some((pid, stat(pid).ok()?)))
        .collect();
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for (pid, stat) in all.iter().filter(|(_, stat)| stat.ppid == parent) {
            found.push((
                Identity {
                    pid: *pid,
                    start: stat.start,
                },
                stat.pgrp,
            ));
            parents.push(*pid);
        }
    }
    found
}

/// Whether this very process still runs. If that cannot be determined, for want of a descriptor for
/// example, it counts as running.
pub fn is_alive(who: Identity) -> bool {
    match identify(who.pid) {
        Ok(now) => now == who,
        Err(e) if e.kind() != io::ErrorKind::NotFound && e.raw_os_error() != Some(libc::ESRCH) => {
            true
        }
        // If /proc is mounted with hidepid, another user's process is not shown, but it exists if a
        // signal to it is not permitted.
        Err(_) => {
            let pid = nix::unistd::Pid::from_raw(who.pid);
            nix::sys::signal::kill(pid, None) == Err(nix::errno::Errno::EPERM)
        }
    }
}

/// Last component of a path.
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or_default()
}

/// `OsString` from bytes of the kernel, for `Command` and paths.
pub fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_a_name_with_parentheses_and_spaces() {
        let text = b"12 (a) (b c) S 7 12 9 34816 -1 0 0 0 0 0 0 0 0 0 20 5 1 0 4242 1 1";
        let stat = parse_stat(text).expect("a stat line");
        assert_eq!(stat.comm, b"a) (b c");
        assert_eq!(
            (stat.state, stat.ppid, stat.pgrp, stat.session),
            (b'S', 7, 12, 9)
        );
        assert_eq!((stat.tty, stat.nice), (34816, 5));
        assert_eq!((stat.threads, stat.start), (1, 4242));
    }

    #[test]
    fn keeps_empty_elements() {
        assert_eq!(split_block(b"a\0\0b\0"), [&b"a"[..], b"", b"b"]);
        assert_eq!(split_block(b"a\0\0"), [&b"a"[..], b""]);
        assert!(split_block(b"").is_empty());
    }

    #[test]
    fn a_live_process_is_alive_and_a_wrong_start_time_is_not() {
        let me = own_identity().expect("/proc");
        assert!(is_alive(me));
        let later = Identity {
            start: me.start + 1,
            ..me
        };
        assert!(!is_alive(later));
    }

    proptest! {
        #[test]
        fn parsers_are_total(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_stat(&bytes);
            let _ = parse_status(&String::from_utf8_lossy(&bytes));
            let parts = split_block(&bytes);
            // Joining gives the block back, but for one closing NUL.
            let joined = parts.join(&0u8);
            prop_assert!(joined == bytes || [&joined[..], b"\0"].concat() == bytes);
        }
    }
}
