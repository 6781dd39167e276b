use std::process::Command;

use again_test_support::repository;

/// Returns the container's output for a shell command, and whether it succeeded.
fn in_the_container(command: &str) -> (bool, String) {
    let done = Command::new(repository().join("tests/tools/container"))
        .args(["sh", "-c", command])
        .output()
        .expect("tests/tools/container");
    let out = String::from_utf8(done.stdout).expect("text");
    (done.status.success(), out.trim().to_owned())
}

#[test]
fn container_has_dockers_default_capabilities() {
    let (_, lines) = in_the_container("grep -E '^Cap(Prm|Eff|Bnd|Inh|Amb)' /proc/self/status");
    for line in lines.lines() {
        // As `docker run debian cat /proc/self/status` shows them.
        let is_empty = line.starts_with("CapInh") || line.starts_with("CapAmb");
        let expected = if is_empty {
            "0000000000000000"
        } else {
            "00000000a80425fb"
        };
        assert!(line.ends_with(expected), "{line}");
    }
    assert_eq!(lines.lines().count(), 5, "{lines}");
}

#[test]
fn container_denies_mounts_namespaces_and_the_kernels_settings() {
    for command in [
        "mount -t tmpfs none /mnt",
        "mount --bind /etc /mnt",
        "umount -l /proc",
        "unshare --mount true",
        "unshare --user true",
        "unshare --pid --fork true",
        "nsenter --mount=/proc/self/ns/mnt true",
        "echo x > /proc/sys/kernel/domainname",
        "mkdir /sys/fs/cgroup/x",
        "ls /dev/loop*",
    ] {
        let (is_done, out) = in_the_container(command);
        assert!(!is_done, "{command}: {out}");
    }
    // clone(2) with CLONE_NEWUSER, and clone3(2).
    let calls = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(56, 0x10000000, 0, 0, 0, 0), ctypes.get_errno())
print(libc.syscall(435, 0, 0), ctypes.get_errno())";
    let (_, out) = in_the_container(&format!("python3 -c '{calls}'"));
    assert_eq!(out, "-1 1\n-1 38");
}

#[test]
fn container_runs_a_command_with_its_status_and_default_signals() {
    assert!(!in_the_container("exit 3").0);
    let (is_done, out) = in_the_container(
        "grep SigIgn /proc/self/status; ruby -rsocket -e 'TCPServer.new(\"127.0.0.1\", 0)' && echo listens",
    );
    assert!(is_done);
    let (ignored, rest) = out.split_once('\n').expect("two lines");
    assert_eq!(rest, "listens");
    let ignored = ignored.rsplit('\t').next().expect("digits");
    let ignored = u64::from_str_radix(ignored, 16).expect("bits");
    // PIPE and XFSZ, which Python ignores.
    assert_eq!(ignored & (1 << 12 | 1 << 24), 0, "{ignored:x}");
}
