//! Permissions that root has on a plain machine, and may lack in a container.

use std::fs;
use std::process::Command;

/// A permission that a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Permission to raise a priority again.
    SysNice,
    /// Permission to mount in a new mount namespace.
    MountNamespace,
    /// Set-user-ID programs and capabilities of files take effect.
    SetUserId,
    /// Permission to become a program in a new time namespace.
    TimeNamespace,
}

impl Permission {
    /// Returns the name in the line about a skipped test.
    fn name(self) -> &'static str {
        match self {
            Permission::SysNice => "CAP_SYS_NICE",
            Permission::MountNamespace => "CAP_SYS_ADMIN, for a mount namespace",
            Permission::SetUserId => "set-user-ID programs",
            Permission::TimeNamespace => "a time namespace that exec enters (Linux 6.3)",
        }
    }

    fn is_given(self) -> bool {
        match self {
            // Capability numbers from linux/capability.h.
            Permission::SysNice => has_capability(23),
            Permission::MountNamespace => has_capability(21),
            Permission::SetUserId => status("NoNewPrivs") == "0" && !temporary_is_nosuid(),
            Permission::TimeNamespace => enters_time_namespace(),
        }
    }
}

/// Whether this process has a permission. If not, a line names it, and the caller ends its test;
/// with `CI=true` the test fails instead.
#[track_caller]
pub fn permits(permission: Permission) -> bool {
    if permission.is_given() {
        return true;
    }
    let name = permission.name();
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!is_ci, "this test needs {name}, and CI=true allows no skip");
    println!("skipped: needs {name}");
    false
}

/// Returns a line of proc_pid_status(5) about this process.
fn status(name: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").expect("/proc");
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.expect("a line of the kernel's").trim().to_owned()
}

fn has_capability(number: u32) -> bool {
    let effective = u64::from_str_radix(&status("CapEff"), 16).expect("bits");
    effective >> number & 1 == 1
}

/// Whether programs in scratch directories get no privilege from their files.
fn temporary_is_nosuid() -> bool {
    let flags = nix::sys::statvfs::statvfs(&std::env::temp_dir())
        .expect("statvfs")
        .flags();
    flags.contains(nix::sys::statvfs::FsFlags::ST_NOSUID)
}

/// Whether unshare(1) may make a time namespace, and the program that it becomes is in it. Older
/// kernels only move its children there.
fn enters_time_namespace() -> bool {
    const LINK: &str = "/proc/self/ns/time";
    let words = ["--time", "--boottime=7", "--", "readlink", "-n", LINK];
    let done = Command::new("unshare").args(words).output();
    let done = done.expect("unshare");
    let own = fs::read_link(LINK).unwrap_or_default();
    done.status.success() && done.stdout != own.as_os_str().as_encoded_bytes()
}
