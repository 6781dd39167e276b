//! Whether a container outlives its runs, according to its processes.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::ancestry::Seen;
use again_base::sys::process::{base_name, split_block};

/// Programs that continue when a run below them ends.
const LIVE_ON: [&str; 10] = [
    "systemd",
    "init",
    "openrc-init",
    "s6-svscan",
    "runsvdir",
    "cron",
    "crond",
    "sshd",
    "dinit",
    "supervisord",
];

/// Process 1 above a run, if the container may end with the run: neither process 1 nor any process
/// between them is known to continue. `above` are the run's ancestors, the nearest first.
pub fn may_end_with(above: &[Seen]) -> Option<String> {
    let first = above.last().filter(|seen| seen.identity.pid == 1)?;
    let ends = !above.iter().any(lives_on);
    ends.then(|| String::from_utf8_lossy(program(first)).into_owned())
}

/// Whether a process is known to continue.
fn lives_on(seen: &Seen) -> bool {
    let program = program(seen);
    let is_known = LIVE_ON.iter().any(|name| program == name.as_bytes());
    // Container engines mount an init of their own, which ends with its only child.
    is_known && !(program == b"init" && is_mounted(path(seen).as_deref()))
}

/// Whether a program is in a directory where container engines mount theirs: `/dev/init`,
/// `/run/podman-init`.
fn is_mounted(path: Option<&[u8]>) -> bool {
    path.is_some_and(|path| path.starts_with(b"/dev/") || path.starts_with(b"/run/"))
}

/// Path of a process's program, if known.
fn path(seen: &Seen) -> Option<Vec<u8>> {
    let own = seen
        .exe
        .as_deref()
        .map(|exe| exe.as_os_str().as_bytes().to_vec());
    own.or_else(|| split_block(&seen.cmdline).into_iter().next())
}

/// Name of a process's program: for busybox the applet's, for a python that runs supervisord
/// `supervisord`.
fn program(seen: &Seen) -> &[u8] {
    let mut words = seen
        .cmdline
        .split(|&b| b == 0)
        .filter(|word| !word.is_empty());
    let called = words.next().map_or(&seen.comm[..], |word| base_name(word));
    let Some(exe) = seen.exe.as_deref() else {
        return called_as(&seen.comm, called);
    };
    let own = own_name(exe);
    if own.starts_with(b"busybox") {
        let called = called.strip_prefix(b"-").unwrap_or(called);
        return match called.starts_with(b"busybox") {
            true => words.next().unwrap_or(called),
            false => called,
        };
    }
    if own.starts_with(b"python") || own.starts_with(b"platform-python") {
        let is_it = |word: &[u8]| base_name(word) == SUPERVISOR || word == SUPERVISORS_MODULE;
        let script = words.find(|word| is_it(word));
        return script.map_or(own, |_| SUPERVISOR);
    }
    own
}

const SUPERVISOR: &[u8] = b"supervisord";
const SUPERVISORS_MODULE: &[u8] = b"supervisor.supervisord";

/// Name of a program whose file may not be seen, since it is another user's. A script has its own
/// name, with its interpreter's command line; a daemon may have a title.
fn called_as<'a>(comm: &'a [u8], called: &[u8]) -> &'a [u8] {
    let called = called
        .split(|b| b": ".contains(b))
        .next()
        .unwrap_or_default();
    let is_known = |name: &[u8]| LIVE_ON.iter().any(|known| known.as_bytes() == name);
    let is_script = is_known(comm) && !is_known(called) && comm != SUPERVISOR;
    if is_script { b"a script" } else { comm }
}

/// Last component of an executable's path, even if the file was replaced.
fn own_name(exe: &Path) -> &[u8] {
    let path = exe.as_os_str().as_bytes();
    base_name(path.strip_suffix(b" (deleted)").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::model::Identity;
    use std::path::PathBuf;

    fn seen(pid: i32, exe: &str, comm: &str, cmdline: &str) -> Seen {
        Seen {
            identity: Identity { pid, start: 1 },
            comm: comm.as_bytes().to_vec(),
            cmdline: format!("{}\0", cmdline.replace(' ', "\0")).into_bytes(),
            exe: (!exe.is_empty()).then(|| PathBuf::from(exe)),
        }
    }

    fn first(exe: &str, comm: &str, cmdline: &str) -> Option<String> {
        let shell = seen(7, "/usr/bin/dash", "sh", "sh -c x");
        may_end_with(&[shell, seen(1, exe, comm, cmdline)])
    }

    #[test]
    fn process_1_that_is_known_to_live_on_keeps_the_container() {
        for (exe, comm, cmdline) in [
            ("/usr/lib/systemd/systemd", "systemd", "/sbin/init"),
            (
                "/usr/lib/systemd/systemd (deleted)",
                "systemd",
                "/sbin/init",
            ),
            ("", "systemd", "/sbin/init"),
            ("/sbin/init", "init", "init [2]"),
            ("/sbin/openrc-init", "openrc-init", "openrc-init"),
            ("/usr/bin/s6-svscan", "s6-svscan", "s6-svscan /run/service"),
            ("/usr/bin/runsvdir", "runsvdir", "runsvdir -P /etc/service"),
            (
                "/usr/bin/python3.11",
                "supervisord",
                "/usr/bin/python3 /usr/bin/supervisord -n",
            ),
            (
                "/usr/bin/python3.11",
                "python3",
                "python3 -m supervisor.supervisord",
            ),
            ("", "supervisord", "/usr/bin/python3 /usr/bin/supervisord"),
            ("/usr/sbin/cron", "cron", "cron -f"),
            ("/usr/sbin/crond", "crond", "/usr/sbin/crond -n"),
            (
                "/usr/sbin/sshd",
                "sshd",
                "sshd: /usr/sbin/sshd -D [listener]",
            ),
            ("", "sshd", "sshd: /usr/sbin/sshd -D [listener]"),
            ("/sbin/dinit", "dinit", "dinit -o"),
            ("/bin/busybox", "init", "init"),
            ("/bin/busybox", "init", "/sbin/init"),
            ("/bin/busybox", "busybox", "busybox crond -f"),
            ("/bin/busybox.static", "runsvdir", "runsvdir /etc/service"),
        ] {
            assert_eq!(first(exe, comm, cmdline), None, "{exe} {comm} {cmdline}");
        }
    }

    #[test]
    fn any_other_process_1_may_end_with_its_run() {
        for (exe, comm, cmdline, name) in [
            ("/usr/bin/bash", "bash", "bash", "bash"),
            ("/usr/bin/bash", "init", "/bin/bash /init", "bash"),
            ("/usr/bin/tini", "tini", "/usr/bin/tini -- sh", "tini"),
            (
                "/usr/bin/dumb-init",
                "dumb-init",
                "dumb-init sh",
                "dumb-init",
            ),
            (
                "/usr/bin/catatonit",
                "catatonit",
                "catatonit -P",
                "catatonit",
            ),
            ("/dev/init", "init", "/dev/init -- bash", "init"),
            (
                "/sbin/docker-init",
                "docker-init",
                "/sbin/docker-init -- sh",
                "docker-init",
            ),
            ("/usr/bin/ruby3.1", "puppet", "ruby puppet apply", "ruby3.1"),
            (
                "/usr/bin/python3.11",
                "python3",
                "python3 /entry.py",
                "python3.11",
            ),
            ("/bin/busybox", "sh", "sh -c x", "sh"),
            ("/bin/busybox", "ash", "-ash", "ash"),
            ("", "init", "/bin/sh /init", "a script"),
            ("", "init", "/dev/init -- sh", "init"),
            ("", "tini", "tini -- sh", "tini"),
            ("/usr/bin/bwrap", "bwrap", "bwrap --unshare-pid x", "bwrap"),
        ] {
            assert_eq!(
                first(exe, comm, cmdline).as_deref(),
                Some(name),
                "{exe} {comm} {cmdline}"
            );
        }
    }

    #[test]
    fn a_process_between_may_keep_the_container_and_process_1_may_be_no_ancestor() {
        let bash = seen(1, "/usr/bin/bash", "bash", "bash");
        let cron = seen(9, "/usr/sbin/cron", "cron", "cron -f");
        let shell = || seen(7, "/usr/bin/dash", "sh", "sh -c x");
        assert_eq!(may_end_with(&[shell(), cron.clone(), bash.clone()]), None);
        assert_eq!(may_end_with(&[shell(), cron]), None);
        assert_eq!(may_end_with(&[shell()]), None, "as below docker exec");
        assert_eq!(may_end_with(&[]), None);
        assert!(may_end_with(&[shell(), bash]).is_some());
    }
}
