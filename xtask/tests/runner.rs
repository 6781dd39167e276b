//! The runner of the suites, as a process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A suite that starts what is hard to end: processes in a session of their own, one of them
/// below a parent that has ended, that ignore signals.
const STUBBORN: &str = "#!/bin/bash
cd \"$(dirname \"$0\")\"
setsid sh -c 'trap \"\" TERM INT HUP; echo $$ > first.new; mv first.new first; sleep 1000 & wait; sleep 1000' &
(setsid sh -c 'echo $$ > second.new; mv second.new second; sleep 1000 & wait' &)
echo $$ > third.new; mv third.new third
sleep 1000
";

/// The row of a suite that runs this script. Its name is the directory's, for the runner names
/// logs after suites.
fn write_suite(directory: &Path, script: &str) -> String {
    let path = directory.join("suite");
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
    format!("check {} 1 5 | {} |", name(directory), path.display())
}

fn name(directory: &Path) -> &str {
    let name = directory.file_name().expect("a name");
    name.to_str().expect("plain").trim_start_matches('.')
}

fn runner(row: &str, name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["test", "--bin", "/bin/true", "--row", row, name]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts the stubborn suite; the runner, and the pids of the suite's processes.
fn start(directory: &Path) -> (Child, Vec<String>) {
    let row = write_suite(directory, STUBBORN);
    let runner = runner(&row, name(directory)).spawn().expect("the runner");
    let read = |name: &str| fs::read_to_string(directory.join(name));
    let names = ["first", "second", "third"];
    wait_until("the suite to start", || {
        names.iter().all(|name| read(name).is_ok())
    });
    let pids = names.map(|name| read(name).expect("a pid").trim().to_owned());
    (runner, pids.to_vec())
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn runner_ends_every_process_when_a_signal_interrupts_it() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut runner, pids) = start(directory.path());
        kill(Pid::from_raw(runner.id().cast_signed()), signal).expect("a child");
        let status = runner.wait().expect("a status");
        assert_eq!(status.code(), Some(130), "{signal}");
        for pid in pids {
            assert!(!is_running(&pid), "{pid} outlives {signal}");
        }
    }
}

#[test]
fn guard_ends_every_process_when_the_runner_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut runner, pids) = start(directory.path());
    runner.kill().expect("a child");
    runner.wait().expect("a status");
    wait_until("the end of all processes", || {
        pids.iter().all(|pid| !is_running(pid))
    });
}

#[test]
fn runner_names_what_was_skipped_and_fails_for_it_with_ci() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = "#!/bin/sh\necho 'skip  a mount: needs CAP_SYS_ADMIN'\necho 'small: 2 passed, 0 failed, 1 skipped'\n";
    let row = write_suite(directory.path(), script);
    let name = name(directory.path());
    for (ci, is_good) in [("", true), ("true", false)] {
        let output = runner(&row, name)
            .env("CI", ci)
            .output()
            .expect("the runner");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.success(), is_good, "{said}");
        assert!(said.contains(&format!(
            "\nskipped in {name}: a mount: needs CAP_SYS_ADMIN\n"
        )));
        assert!(
            said.ends_with("\n2 passed, 0 failed, 1 skipped\n"),
            "{said}"
        );
    }
}

#[test]
fn runner_ends_what_a_suite_leaves_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = "#!/bin/bash\ncd \"$(dirname \"$0\")\"\nsetsid sleep 1000 >/dev/null 2>&1 &\necho $! > left\necho 'small: 1 passed, 0 failed'\n";
    let row = write_suite(directory.path(), script);
    let name = name(directory.path());
    let output = runner(&row, name).output().expect("the runner");
    assert!(output.status.success(), "{output:?}");
    let pid = fs::read_to_string(directory.path().join("left")).expect("a pid");
    assert!(!is_running(pid.trim()));
}

#[test]
fn advisories_says_that_none_were_checked_without_a_database() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = command.arg("advisories").env_remove("ADVISORY_DB").output();
    let output = output.expect("xtask");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert!(said.starts_with("advisories were not checked: "), "{said}");
}
