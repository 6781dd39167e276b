use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use again_rig::{Process, SHORT, Scratch, copy_program, in_namespaces, start, wait_until};

/// A command that is due at once, and notes that it ran. Gives its waiter, which `hold` has kept from running it.
fn stamp(scratch: &Scratch, delta: &str) -> Process {
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    scratch.again_well(&[
        "run", "--delta", delta, "--", &helper, "stamp", &stamps, "ran",
    ]);
    scratch.waiter("again")
}

fn ran(scratch: &Scratch) -> usize {
    scratch.stamps().len()
}

/// Waits until the waiter has failed at something and is to try again.
fn wait_for_trouble(waiter: Process) {
    wait_until("an attempt that fails", SHORT, || {
        waiter.title().contains("will retry")
    });
}

/// Once, and nothing is left.
fn assert_ran_once(scratch: &Scratch) {
    wait_until("the rerun", SHORT, || ran(scratch) == 1);
    scratch.wait_until_settled();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(ran(scratch), 1);
    scratch.assert_nothing_left();
}

fn mount(words: &[&str]) {
    let done = Command::new("mount").args(words).status().expect("mount");
    assert!(done.success(), "mount {words:?}");
}

/// The journal's socket, in a /run of our own, so that what waiters say can be read.
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
fn the_disk_becomes_read_only_for_a_while() {
    in_namespaces(
        &["--mount"],
        "under::the_disk_becomes_read_only_for_a_while",
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
            mount(&["-o", "remount,ro", &scratch.at("state")]);
            wait_for_trouble(waiter);
            // It is asked to try at once, several times, and says so once.
            for _ in 0..5 {
                waiter.signal(Signal::SIGUSR1).expect("signalled");
                std::thread::sleep(Duration::from_millis(100));
            }
            assert_eq!(ran(&scratch), 0);
            let timer = scratch.timer("again").expect("pending");
            assert_ne!(timer["state"], "dead");
            let words = timer["blocked_by"]["reason"].as_str().expect("words");
            assert!(words.starts_with("will retry within a minute: "), "{words}");
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

/// At the cap, with `on_cap = wait`, and the moment it is put off to cannot be written down: it waits for that moment all the same,
/// says so once, and a person can still bring it forward.
#[test]
fn it_is_put_off_while_the_disk_is_read_only() {
    in_namespaces(
        &["--mount"],
        "under::it_is_put_off_while_the_disk_is_read_only",
        || {
            let scratch = Scratch::new();
            let journal = journal();
            fs::create_dir(scratch.path("state")).expect("created");
            let tmpfs = ["-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs"];
            mount(&[&tmpfs[..], &[&scratch.at("state")]].concat());
            let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
            // Both are granted; the second finds the cap reached by the first.
            for (name, delta) in [("second", "3"), ("first", "0")] {
                scratch.again_well(&[
                    "run",
                    "--name",
                    name,
                    "--delta",
                    delta,
                    "--jitter",
                    "0",
                    "--max-runs",
                    "1",
                    "--on-cap",
                    "wait",
                    "--",
                    &helper,
                    "stamp",
                    &stamps,
                    "ran",
                ]);
            }
            wait_until("the first", SHORT, || ran(&scratch) == 1);
            let waiter = scratch.waiter("second");
            mount(&["-o", "remount,ro", &scratch.at("state")]);
            std::thread::sleep(Duration::from_secs(4));
            let switches = || -> u64 {
                let count = |name: &str| -> u64 {
                    waiter
                        .status(name)
                        .and_then(|n| n.parse().ok())
                        .unwrap_or(0)
                };
                count("voluntary_ctxt_switches") + count("nonvoluntary_ctxt_switches")
            };
            let before = switches();
            std::thread::sleep(Duration::from_secs(1));
            assert!(switches() <= before + 2, "it does not sleep");
            let lines = said(&journal);
            let refused = lines.iter().filter(|l| l.contains("Read-only file system"));
            assert_eq!(refused.count(), 1, "{lines:?}");
            assert!(waiter.title().contains("waits until"), "{}", waiter.title());
            mount(&["-o", "remount,rw", &scratch.at("state")]);
            scratch.again_well(&["reset"]);
            // It may have started already.
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

/// Removed, or with something else in its place: nothing is started, and the system log has a line about it.
#[test]
fn its_directory_goes_away() {
    in_namespaces(&["--mount"], "under::its_directory_goes_away", || {
        let journal = journal();
        type Case<'a> = (&'a str, &'a str, &'a dyn Fn(&Scratch));
        let lost = "is lost";
        let cases: [Case<'_>; 6] = [
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
            ("a newer record", lost, &|scratch| {
                fs::write(record(scratch), b"{\"version\":2}").expect("damaged")
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
            // It must not begin while this is on its way.
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
    });
}

fn record(scratch: &Scratch) -> std::path::PathBuf {
    let targets = fs::read_dir(scratch.path("state/targets")).expect("targets");
    targets
        .flatten()
        .next()
        .expect("a target")
        .path()
        .join("state.json")
}

/// No descriptor to spare when it is due: nothing that it cannot see counts as not being there.
#[test]
fn its_descriptors_are_exhausted() {
    let scratch = Scratch::new();
    let waiter = stamp(&scratch, "1");
    let limit = |soft: &str| {
        let done = Command::new("prlimit")
            .args([
                "--pid",
                &waiter.pid.to_string(),
                &format!("--nofile={soft}:"),
            ])
            .status();
        assert!(done.expect("prlimit").success());
    };
    limit("3");
    // It is due, tries, and cannot even say so.
    std::thread::sleep(Duration::from_secs(3));
    assert!(waiter.alive());
    assert_eq!(ran(&scratch), 0);
    // A command that cannot read which machine this is takes it for no other one.
    let mut status = scratch.line(&["prlimit", "--nofile=3:", &scratch.at("bin/again"), "status"]);
    let said = status.output().expect("prlimit");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.contains("cannot tell which machine this is: /proc/sys/kernel/random/boot_id: "),
        "{said}"
    );
    limit("256");
    waiter.signal(Signal::SIGUSR1).expect("signalled");
    assert_ran_once(&scratch);
}

/// More held timers than the user may have inotify instances, of which the kernel allows 128; or another program has taken all
/// the watches. Then the waiter looks now and then, and a converge driver does.
#[test]
fn no_directory_can_be_watched() {
    let test = "under::no_directory_can_be_watched";
    in_namespaces(&["--user", "--map-root-user"], test, || {
        for limit in ["instances", "watches"] {
            let file = format!("/proc/sys/user/max_inotify_{limit}");
            fs::write(&file, "0").expect("our own limit");
            let scratch = Scratch::new();
            let (stamps, helper) = (scratch.at("stamps"), scratch.at("bin/helper"));
            let command = format!(
                "{helper} stamp {stamps} ran; test -n \"$AGAIN_RUN\" && exit\n\
                 $AGAIN run && : > asked; while test ! -e go; do sleep 0.02; done"
            );
            let mut driver = scratch
                .command(scratch.path("bin/again"))
                .args(["converge", "--", "sh", "-c", &command])
                .env("AGAIN", scratch.at("bin/again"))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("started");
            wait_until("the driver's run to have asked", SHORT, || {
                scratch.path("work/asked").exists()
            });
            stamp(&scratch, "3");
            scratch.again_well(&["disable", "no", "watch"]);
            fs::write(scratch.path("work/go"), "").expect("written");
            scratch.wait_for_state("again", "held");
            wait_until("the driver to be held", SHORT, || {
                scratch.status()["drivers"][0]["state"] == "held"
            });
            assert_eq!(ran(&scratch), 1, "{limit}");
            scratch.again_well(&["enable"]);
            assert!(driver.wait().expect("waited").success());
            wait_until("both reruns", SHORT, || ran(&scratch) == 3);
            scratch.wait_until_settled();
            assert_eq!(ran(&scratch), 3, "{limit}");
            scratch.assert_nothing_left();
            fs::write(&file, "128").expect("our own limit");
        }
    });
}

/// An upgrade: another file under the name of the program, and of puppet, while waiters wait and a run is under way.
#[test]
fn the_programs_are_replaced() {
    let scratch = Scratch::new();
    let run = start(&mut scratch.apply(
        "site",
        "ask('run', '--delta', '1') if NTH == 1\nhold('go') if NTH == 1",
    ));
    scratch.wait_for_state("again", "waiting for the run");
    for program in ["bin/again", "bin/puppet"] {
        let new = scratch.path("new");
        copy_program(scratch.path(program), &new);
        fs::rename(new, scratch.path(program)).expect("replaced");
    }
    assert_eq!(
        scratch.timers().len(),
        1,
        "the new program sees what the old one set"
    );
    scratch.release("go");
    run.finish();
    scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 2);
    scratch.assert_nothing_left();
}

/// Every wall clock time on record a day off, either way: within a boot only the other clock counts.
#[test]
fn the_wall_clock_is_a_day_off() {
    for day in [-86_400_000_i64, 86_400_000] {
        let scratch = Scratch::new();
        let before = again_rig::now();
        stamp(&scratch, "2");
        let path = record(&scratch);
        let mut record: Value =
            serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        shift(&mut record, day);
        let new = scratch.path("shifted");
        fs::write(&new, record.to_string()).expect("written");
        fs::rename(new, path).expect("replaced");
        scratch.status();
        assert_ran_once(&scratch);
        let took = scratch.stamps()[0].at - before;
        assert!((2_000_000_000..12_000_000_000).contains(&took), "{took}");
    }
}

fn shift(value: &mut Value, by: i64) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_i64() {
                    Some(at) if name == "wall" || name == "due_wall" => *value = (at + by).into(),
                    _ => shift(value, by),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| shift(value, by)),
        _ => {}
    }
}

/// A waiter is killed while the run that asked lives on: the one that `again resume` starts waits for the run as well.
#[test]
fn resumed_before_the_run_has_ended() {
    let scratch = Scratch::new();
    let run = start(&mut scratch.apply("site", "ask('run') if NTH == 1\nhold('go') if NTH == 1"));
    scratch.wait_for_state("again", "waiting for the run");
    let waiter = scratch.waiter("again");
    waiter.signal(Signal::SIGKILL).expect("killed");
    waiter.wait_until_gone(SHORT);
    let said = scratch.again_well(&["resume"]);
    assert!(said.contains("after the end of its run"), "{said}");
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(scratch.runs("site").len(), 1, "a rerun beside its run");
    assert_eq!(
        scratch.timer("again").expect("pending")["state"],
        "waiting for the run"
    );
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert!(runs[1].started() >= runs[0].ended().expect("ended"));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A waiter would keep the chroot busy, and end with what it is mounted on.
#[test]
fn its_run_is_in_a_chroot() {
    in_namespaces(&["--mount"], "under::its_run_is_in_a_chroot", || {
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
        assert_eq!(again_rig::assert_line(&asked[0].output), "refused");
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
            advice.iter().all(|words| said.contains(words)) && said.contains("a command was named"),
            "{said}"
        );
        scratch.assert_nothing_left();
    });
}
