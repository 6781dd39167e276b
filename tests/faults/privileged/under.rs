//! Changes beneath a waiter, of its disk and its directory, and its messages about them in the
//! journal.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use again_test_support::{Process, SHORT, Scratch, in_namespaces, start, wait_until};

use crate::under::{assert_ran_once, ran, record, stamp};

/// Waits until an attempt of the waiter has failed, and it is going to retry.
fn wait_for_trouble(waiter: Process) {
    wait_until("an attempt that fails", SHORT, || {
        waiter.title().contains("will retry")
    });
}

fn mount(words: &[&str]) {
    let done = Command::new("mount").args(words).status().expect("mount");
    assert!(done.success(), "mount {words:?}");
}

/// Makes the file system of the state directory read-only, as soon as the kernel has closed the
/// last file of the processes that wrote to it: until then it is busy.
fn make_read_only(scratch: &Scratch) {
    let state = scratch.at("state");
    wait_until("the disk to be read-only", SHORT, || {
        let remount = ["-o", "remount,ro", &state];
        let mount = Command::new("mount").args(remount).output();
        mount.expect("mount").status.success()
    });
}

/// Binds the journal's socket in a new /run, so that the test can read the messages of waiters.
fn journal() -> UnixDatagram {
    mount(&["-t", "tmpfs", "tmpfs", "/run"]);
    fs::create_dir_all("/run/systemd/journal").expect("created");
    let socket = UnixDatagram::bind("/run/systemd/journal/socket").expect("bound");
    socket.set_nonblocking(true).expect("set");
    socket
}

fn said(journal: &UnixDatagram) -> Vec<String> {
    let mut datagram = [0; 65536];
    std::iter::from_fn(|| {
        journal
            .recv(&mut datagram)
            .ok()
            .map(|n| String::from_utf8_lossy(&datagram[..n]).into_owned())
    })
    .collect()
}

#[test]
fn waiter_retries_while_the_disk_is_read_only() {
    in_namespaces(
        &["--mount"],
        "privileged::under::waiter_retries_while_the_disk_is_read_only",
        || {
            let scratch = Scratch::new();
            let journal = journal();
            fs::create_dir(scratch.path("state")).expect("created");
            mount(&[
                "-t",
                "tmpfs",
                "-o",
                "size=1m,mode=755",
                "tmpfs",
                &scratch.at("state"),
            ]);
            let waiter = stamp(&scratch, "1");
            wait_until("it to sleep", SHORT, || {
                waiter.title().contains("waits until")
            });
            make_read_only(&scratch);
            wait_for_trouble(waiter);
            // Several signals make it retry immediately; it logs the error once.
            for _ in 0..5 {
                waiter.signal(Signal::SIGUSR1).expect("signalled");
                // Time itself is tested: each signal is a separate attempt.
                std::thread::sleep(Duration::from_millis(100));
            }
            assert_eq!(ran(&scratch), 0);
            let timer = scratch.timer("again").expect("pending");
            assert_ne!(timer["state"], "dead");
            let words = timer["blocked_by"]["reason"].as_str().expect("words");
            assert!(
                words.starts_with("no rerun starts while ")
                    && words.ends_with("Read-only file system (os error 30)"),
                "{words}"
            );
            assert!(scratch.again_well(&["status"]).contains(words));
            let lines: Vec<String> = said(&journal)
                .into_iter()
                .filter(|l| l.contains("will retry"))
                .collect();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].contains("Read-only file system"), "{lines:?}");
            mount(&["-o", "remount,rw", &scratch.at("state")]);
            waiter.signal(Signal::SIGUSR1).expect("signalled");
            assert_ran_once(&scratch);
            assert_eq!(
                fs::read_dir(scratch.path("logs")).expect("logs").count(),
                1,
                "one log for one rerun"
            );
            mount(&["--make-private", "/"]);
            Command::new("umount")
                .arg(scratch.path("state"))
                .status()
                .expect("umount");
        },
    );
}

/// At the cap, with `on_cap = wait`, the new due time cannot be written: the waiter waits for that
/// moment all the same, logs it once, and a person can still bring it forward.
#[test]
fn waiter_at_the_cap_sleeps_while_the_disk_is_read_only() {
    in_namespaces(
        &["--mount"],
        "privileged::under::waiter_at_the_cap_sleeps_while_the_disk_is_read_only",
        || {
            let scratch = Scratch::new();
            let journal = journal();
            fs::create_dir(scratch.path("state")).expect("created");
            let tmpfs = ["-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs"];
            mount(&[&tmpfs[..], &[&scratch.at("state")]].concat());
            let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
            let ask = |name: &str, delta: &str| {
                let limits = ["--jitter", "0", "--max-runs", "1", "--on-cap", "wait"];
                let timer = ["run", "--name", name, "--delta", delta];
                let command = ["--", &helper, "stamp", &stamps, "ran"];
                scratch.again_well(&[&timer[..], &limits, &command].concat());
            };
            // Both are granted; the second finds the cap reached by the first, and the disk
            // read-only, however long the first takes.
            ask("second", "20");
            let waiter = scratch.waiter("second");
            wait_until("it to sleep", SHORT, || {
                waiter.title().contains("waits until")
            });
            waiter.signal(Signal::SIGSTOP).expect("stopped");
            ask("first", "0");
            wait_until("the first", SHORT, || ran(&scratch) == 1);
            make_read_only(&scratch);
            waiter.signal(Signal::SIGCONT).expect("continued");
            let mut lines = Vec::new();
            let mut refused = || {
                lines.extend(said(&journal));
                let refused = |l: &&String| l.contains("Read-only file system");
                lines.iter().filter(refused).count()
            };
            wait_until("the warning", SHORT, || refused() > 0);
            let switches = || -> u64 {
                let count = |name: &str| -> u64 {
                    waiter
                        .status(name)
                        .and_then(|n| n.parse().ok())
                        .unwrap_or(0)
                };
                count("voluntary_ctxt_switches") + count("nonvoluntary_ctxt_switches")
            };
            wait_until("five seconds of sleep", SHORT, || {
                let before = switches();
                // Time itself is tested: the waiter sleeps, and does not retry constantly.
                std::thread::sleep(Duration::from_secs(5));
                switches() <= before + 2
            });
            assert_eq!(refused(), 1, "{lines:?}");
            assert!(waiter.title().contains("waits until"), "{}", waiter.title());
            mount(&["-o", "remount,rw", &scratch.at("state")]);
            scratch.again_well(&["reset"]);
            // The second may have started already.
            scratch.again(&["now", "second"]);
            wait_until("the second", SHORT, || ran(&scratch) == 2);
            scratch.wait_until_settled();
            scratch.assert_nothing_left();
            mount(&["--make-private", "/"]);
            Command::new("umount")
                .arg(scratch.path("state"))
                .status()
                .expect("umount");
        },
    );
}

/// The directory is removed, or replaced: nothing is started, and the system log has a line about
/// it.
#[test]
fn waiter_gives_up_when_its_state_directory_goes_away() {
    in_namespaces(
        &["--mount"],
        "privileged::under::waiter_gives_up_when_its_state_directory_goes_away",
        || {
            let journal = journal();
            type Case<'a> = (&'a str, &'a str, &'a dyn Fn(&Scratch));
            let lost = "is lost";
            let cases: [Case<'_>; 5] = [
                ("removed", lost, &|scratch| {
                    fs::remove_dir_all(scratch.path("state")).expect("removed")
                }),
                ("a dangling link", lost, &|scratch| {
                    fs::rename(scratch.path("state"), scratch.path("old")).expect("renamed");
                    std::os::unix::fs::symlink(scratch.path("nowhere"), scratch.path("state"))
                        .expect("linked");
                }),
                ("a damaged record", lost, &|scratch| {
                    fs::write(record(scratch), b"{\"version\":1,").expect("damaged")
                }),
                ("a missing record", lost, &|scratch| {
                    fs::remove_file(record(scratch)).expect("removed")
                }),
                ("a record without it", "no longer on record", &|scratch| {
                    let mut without = scratch.record();
                    without["timers"] = serde_json::json!({});
                    fs::write(record(scratch), without.to_string()).expect("written")
                }),
            ];
            for (case, words, happen) in cases {
                let scratch = Scratch::new();
                let waiter = stamp(&scratch, "2");
                // The waiter must not begin during this change.
                waiter.signal(Signal::SIGSTOP).expect("stopped");
                happen(&scratch);
                waiter.signal(Signal::SIGCONT).expect("continued");
                waiter.wait_until_gone(SHORT);
                assert_eq!(ran(&scratch), 0, "{case}");
                let said = said(&journal);
                assert!(
                    said.iter().any(|line| {
                        line.contains(words)
                            && ["PRIORITY=3", "PRIORITY=4"]
                                .iter()
                                .any(|p| line.contains(p))
                    }),
                    "{case}: {said:?}"
                );
            }
        },
    );
}

/// A waiter would keep the chroot busy, and end with the mount below it.
#[test]
fn request_of_a_run_in_a_chroot_is_refused() {
    in_namespaces(
        &["--mount"],
        "privileged::under::request_of_a_run_in_a_chroot_is_refused",
        || {
            let scratch = Scratch::new();
            mount(&["-t", "tmpfs", "tmpfs", "/mnt"]);
            for name in ["bin", "lib", "lib64", "sbin"] {
                std::os::unix::fs::symlink(format!("usr/{name}"), format!("/mnt/{name}"))
                    .expect("linked");
            }
            for path in ["/usr", "/proc", "/dev", "/etc", &scratch.root()] {
                fs::create_dir_all(format!("/mnt{path}")).expect("created");
                mount(&["--rbind", path, &format!("/mnt{path}")]);
            }
            let run = scratch.apply("site", "ask('run')");
            let mut command = scratch.command("chroot");
            command.args(["/mnt", "env", "-C", &scratch.at("work"), "--"]);
            command.arg(run.get_program()).args(run.get_args());
            scratch.with_output(&mut command);
            start(&mut command).finish();
            let asked = scratch.runs("site")[0].asked();
            assert_eq!(asked[0].code, 1, "{asked:?}");
            assert_eq!(again_test_support::assert_line(&asked[0].output), "refused");
            let advice = ["is in a chroot", "again converge"];
            assert!(
                advice.iter().all(|words| asked[0].output.contains(words)),
                "{asked:?}"
            );
            // Without a run above it, for a command that is named.
            let again = scratch.at("bin/again");
            let named = scratch
                .command("chroot")
                .args(["/mnt", &again, "run", "--", "/bin/true"])
                .output()
                .expect("chroot");
            let said = String::from_utf8_lossy(&named.stderr);
            assert_eq!(named.status.code(), Some(1), "{said}");
            assert!(
                advice.iter().all(|words| said.contains(words))
                    && said.contains("a command was named"),
                "{said}"
            );
            scratch.assert_nothing_left();
        },
    );
}
