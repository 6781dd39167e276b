//! The parts of the file system that may disappear before a process ends: its root, and a /tmp of
//! its own.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use again_base::sys::process::{lossy, read_whole};

/// Whether this process is in a chroot: another process of its mount namespace, one of the
/// `ancestors` or process 1, has another root.
pub fn is_chrooted(ancestors: impl Iterator<Item = i32>) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let root = |pid: &str| {
        let meta = fs::metadata(format!("/proc/{pid}/root/")).ok()?;
        Some((meta.dev(), meta.ino()))
    };
    let (Some(here), Some(own)) = (namespace("self"), root("self")) else {
        return false;
    };
    ancestors.chain([1]).any(|pid| {
        let pid = pid.to_string();
        namespace(&pid).is_some_and(|theirs| theirs == here)
            && root(&pid).is_some_and(|theirs| theirs != own)
    })
}

/// Directories of which systemd can give a unit its own, and which it removes with the unit
/// (systemd.exec(5), PrivateTmp=).
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Part of the path under which systemd stores them.
const PRIVATE: &str = "/systemd-private-";

/// Whether /tmp or /var/tmp is a unit's own.
pub fn has_private_tmp() -> bool {
    private_tmps().next().is_some()
}

/// Directories that are the unit's own.
fn private_tmps() -> impl Iterator<Item = &'static str> {
    let mut text = lossy(read_whole("/proc/thread-self/mountinfo").unwrap_or_default());
    // There may be hundreds of mounts.
    if !text.contains(PRIVATE) {
        text.clear();
    }
    let is_own = move |path: &&str| text.lines().any(|line| is_private(line, path));
    TEMPORARY.into_iter().filter(is_own)
}

/// Whether a line of proc_pid_mountinfo(5) is a private mount of `path`.
fn is_private(line: &str, path: &str) -> bool {
    let mut words = line.split(' ').skip(3);
    let (root, point) = (words.next(), words.next());
    root.is_some_and(|root| root.contains(PRIVATE)) && point == Some(path)
}

/// Whether this process may mount: CAP_SYS_ADMIN (capabilities(7)).
pub fn may_mount() -> bool {
    let text = lossy(read_whole("/proc/self/status").unwrap_or_default());
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << 21) != 0)
}

/// Mounts an empty /tmp over a unit's own, which is removed with the unit at an unknown moment. The
/// unit's other processes keep theirs: this process leaves its mount namespace first.
///
/// # Errors
/// Errors of unshare(2), umount(2) and mount(2).
pub fn renew_tmp() -> io::Result<()> {
    let own: Vec<_> = private_tmps().collect();
    if own.is_empty() {
        return Ok(());
    }
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    for path in own {
        umount2(path, MntFlags::MNT_DETACH)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some("mode=1777"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_a_units_own_tmp() {
        let root = "/systemd-private-0123-puppet-run.service-abc/tmp";
        assert!(is_private(
            &format!("36 35 0:32 {root} /tmp rw,nosuid shared:7 - tmpfs tmpfs rw"),
            "/tmp"
        ));
        assert!(!is_private("36 35 0:32 / /tmp rw - tmpfs tmpfs rw", "/tmp"));
        assert!(!is_private(
            &format!("36 35 0:32 {root} /mnt rw - tmpfs tmpfs rw"),
            "/tmp"
        ));
        assert!(!is_private("", "/tmp"));
    }

    /// In a thread of its own, whose mounts nobody else sees.
    #[test]
    fn a_units_own_tmp_is_left_while_it_is_still_there() {
        if !may_mount() {
            return;
        }
        let left = std::thread::spawn(|| -> io::Result<bool> {
            let (dir, none) = (tempfile::tempdir()?, None::<&str>);
            let own = dir.path().join("systemd-private-x/tmp");
            fs::create_dir_all(&own)?;
            fs::write(own.join("file"), "")?;
            unshare(CloneFlags::CLONE_NEWNS)?;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            mount(Some(&own), "/tmp", none, MsFlags::MS_BIND, none)?;
            assert!(has_private_tmp() && fs::exists("/tmp/file")?);
            renew_tmp()?;
            Ok(!has_private_tmp() && fs::read_dir("/tmp")?.next().is_none())
        });
        assert!(left.join().expect("joined").expect("mounted"));
    }

    #[test]
    fn this_process_is_in_no_chroot() {
        assert!(!is_chrooted(std::iter::once(
            nix::unistd::getppid().as_raw()
        )));
    }
}
