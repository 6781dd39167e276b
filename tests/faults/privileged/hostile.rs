//! Unprivileged user of the same machine, with an unusual /proc or /etc.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use again_test_support::{
    Process, SHORT, Scratch, answer, copy_program, in_namespaces, open_to_all, wait_for, wait_until,
};

use crate::hostile::{as_nobody, directory_of_nobody};

/// With `hidepid=2`, a rerun becomes root's through a set-user-ID program, and is no longer
/// visible. It is neither considered dead nor polled without a pause, and `stop --run` reports that
/// it did not stop it.
fn a_rerun_that_became_root_is_waited_for_asleep(scratch: &Scratch) {
    let raised = scratch.path("bin/raised");
    copy_program(
        fs::canonicalize("/usr/bin/setpriv").expect("setpriv"),
        &raised,
    );
    fs::set_permissions(&raised, fs::Permissions::from_mode(0o4755)).expect("set");
    directory_of_nobody(scratch, "raised");
    let (again, state, raised) = (
        scratch.at("bin/again"),
        scratch.at("raised/state"),
        scratch.at("bin/raised"),
    );
    let ask = |name: &str, delta: &str| {
        let words = [
            &again,
            "run",
            "--state-dir",
            &state,
            "--name",
            name,
            "--delta",
            delta,
            "--",
            &raised,
            "--reuid=0",
            "--regid=0",
            "--clear-groups",
            "/bin/sleep",
            "20",
        ];
        let done = answer(&mut as_nobody(scratch, &words));
        assert_eq!(done.code, Some(0), "{done:?}");
    };
    ask("first", "0");
    let is_root = |process: &Process| {
        process
            .status("Uid")
            .is_some_and(|uid| uid.starts_with("0\t0"))
    };
    let sleeps = || {
        let mut all = Process::all().into_iter();
        all.find(|process| process.command() == ["/bin/sleep", "20"] && is_root(process))
    };
    let rerun = wait_for("the rerun to be root's", SHORT, sleeps);
    ask("second", "1");
    // Time itself is tested: the processor time of the wait.
    std::thread::sleep(Duration::from_secs(3));
    let waiters = scratch.waiters();
    let [waiter] = &waiters[..] else {
        panic!("one waiter, not {waiters:?}")
    };
    // In hundredths of a second since its start; fields 14 and 15 of proc_pid_stat(5).
    let ticks = waiter.stat(14).expect("utime") + waiter.stat(15).expect("stime");
    assert!(ticks < 50, "busy: {ticks} ticks");
    let stop = [&again, "stop", "--run", "--state-dir", &state];
    let stopped = answer(&mut as_nobody(scratch, &stop));
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    assert!(!stopped.out.contains("it had ended"), "{stopped:?}");
    assert!(rerun.alive());
    rerun.end();
}

/// An unprivileged user who sees no processes but its own (`hidepid=2`) gets its reruns all the
/// same.
#[test]
fn user_gets_reruns_where_processes_are_hidden() {
    let test = "privileged::hostile::user_gets_reruns_where_processes_are_hidden";
    in_namespaces(
        &["--mount", "--pid", "--fork", "--mount-proc"],
        test,
        || {
            let hidden = Command::new("mount")
                .args(["-o", "remount,hidepid=2", "/proc"])
                .status()
                .expect("mount");
            assert!(hidden.success());
            let scratch = Scratch::new();
            directory_of_nobody(&scratch, "theirs");
            open_to_all(&scratch.path("past"), 0o777);
            let ask = format!(
                "ask('run', '--state-dir', '{}') if NTH == 1",
                scratch.at("theirs/state")
            );
            scratch.write("work/site.pp", &ask);
            let puppet: Vec<String> = scratch
                .puppet()
                .iter()
                .map(|w| w.to_str().expect("plain").to_owned())
                .collect();
            let mut words: Vec<&str> = puppet.iter().map(String::as_str).collect();
            words.extend(["apply", "site.pp"]);
            assert!(
                as_nobody(&scratch, &["ls", "/proc/1/"])
                    .output()
                    .expect("ls")
                    .stdout
                    .is_empty(),
                "hidden"
            );
            a_rerun_that_became_root_is_waited_for_asleep(&scratch);
            assert!(as_nobody(&scratch, &words).status().expect("ran").success());
            let runs = scratch.wait_for_runs("site", 2);
            assert_eq!(runs[0].asked()[0].code, 0, "{:?}", runs[0].asked());
            wait_until("everything to settle", SHORT, || {
                scratch.processes().is_empty()
            });
            assert_eq!(scratch.runs("site").len(), 2);
        },
    );
}

/// If the settings contain a secret and only root may read them, other users get the defaults, and
/// a verbose message about it.
#[test]
fn again_uses_defaults_where_it_may_not_read_the_settings() {
    let test = "privileged::hostile::again_uses_defaults_where_it_may_not_read_the_settings";
    in_namespaces(&["--mount"], test, || {
        let scratch = Scratch::new();
        scratch.run("cp", &["-a", "/etc", &scratch.at("etc")]).ok();
        scratch
            .run("mount", &["--bind", &scratch.at("etc"), "/etc"])
            .ok();
        fs::write("/etc/again.toml", "max_runs = \"nonsense\"\n").expect("written");
        directory_of_nobody(&scratch, "theirs");
        let (again, state) = (scratch.at("bin/again"), scratch.at("theirs/state"));
        let ask = |flags: &[&str]| {
            let mut words = vec![again.as_str(), "disable", "--state-dir", &state];
            words.extend(flags);
            answer(as_nobody(&scratch, &words).env_remove("AGAIN_CONFIG"))
        };
        open_to_all(Path::new("/etc/again.toml"), 0o644);
        assert_eq!(ask(&[]).code, Some(2), "they are read where they may be");
        open_to_all(Path::new("/etc/again.toml"), 0o600);
        let quiet = ask(&[]);
        assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""));
        let told = ask(&["-vv"]);
        assert!(
            told.err
                .contains("/etc/again.toml are not read: Permission denied"),
            "{told:?}"
        );
    });
}
