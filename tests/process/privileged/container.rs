//! Containers whose process 1 has various names: a shell with that name.

use std::process::Command;

use again_test_support::{Ended, Scratch, answer, copy_program};

/// Programs that may end before a run.
const END: [&str; 6] = [
    "sh",
    "bash",
    "tini",
    "dumb-init",
    "catatonit",
    "docker-init",
];
/// Programs that outlive a run.
const LIVE_ON: [&str; 10] = [
    "systemd",
    "init",
    "openrc-init",
    "s6-svscan",
    "runsvdir",
    "supervisord",
    "cron",
    "crond",
    "sshd",
    "dinit",
];

/// Prepares a shell command line below a process 1 with this name, in a pid namespace of its own.
fn below(scratch: &Scratch, first: &str, line: &str) -> Command {
    let program = scratch.path(&format!("bin/{first}"));
    if !program.exists() {
        copy_program("/bin/sh", &program);
    }
    let mut command = scratch.line(&["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]);
    // Not the shell's last command, which the shell may become.
    command
        .arg(program)
        .args(["-c", &format!("{line}; exit $?")]);
    command.env_remove("AGAIN_CONTAINER");
    command
}

/// Returns the output of `again explain` for a run below the command.
#[track_caller]
fn verdict(scratch: &Scratch, command: &mut Command) -> String {
    let _ = std::fs::remove_dir_all(scratch.path("past/site"));
    let ended = answer(command);
    let asked = scratch
        .runs("site")
        .first()
        .map(again_test_support::Past::asked)
        .unwrap_or_default();
    let said = asked
        .first()
        .unwrap_or_else(|| panic!("{ended:?}"))
        .output
        .clone();
    said.lines().last().expect("a verdict").to_owned()
}

fn run(scratch: &Scratch, manifest: &str) -> String {
    scratch.write("work/site.pp", manifest);
    format!(
        "ruby --disable-gems {} apply site.pp",
        scratch.at("bin/puppet")
    )
}

#[test]
fn run_is_refused_where_its_container_may_end_with_it() {
    let scratch = Scratch::new();
    let run = run(&scratch, "ask('explain')");
    for first in END {
        let said = verdict(&scratch, &mut below(&scratch, first, &run));
        let expected = format!(
            "verdict: refused: this container may end with its process 1, {first} (run pid "
        );
        assert!(
            said.starts_with(&expected) && said.contains("run 'again converge -- puppet …'"),
            "{first}: {said}"
        );
    }
    for first in LIVE_ON {
        let said = verdict(&scratch, &mut below(&scratch, first, &run));
        assert_eq!(said, "verdict: would be scheduled", "{first}");
    }
}

#[test]
fn process_between_the_first_and_the_run_keeps_the_container() {
    let scratch = Scratch::new();
    let run = run(&scratch, "ask('explain')");
    for (between, is_kept) in [("crond", true), ("tini", false)] {
        copy_program("/bin/sh", scratch.path(&format!("bin/{between}")));
        let line = format!(
            "{} -c '{run}; exit $?'",
            scratch.at(&format!("bin/{between}"))
        );
        let said = verdict(&scratch, &mut below(&scratch, "bash", &line));
        assert_eq!(
            said == "verdict: would be scheduled",
            is_kept,
            "{between}: {said}"
        );
    }
}

#[test]
fn setting_keeps_a_container_whatever_its_first_process_is() {
    let scratch = Scratch::new();
    let run = run(&scratch, "ask('explain')");
    let mut command = below(&scratch, "tini", &run);
    command.env("AGAIN_CONTAINER", "stays");
    assert_eq!(
        verdict(&scratch, &mut command),
        "verdict: would be scheduled"
    );
    scratch.settings("container = \"stays\"");
    assert_eq!(
        verdict(&scratch, &mut below(&scratch, "tini", &run)),
        "verdict: would be scheduled"
    );
}

#[test]
fn request_of_a_run_that_its_container_would_end_fails_and_leaves_no_timer() {
    let scratch = Scratch::new();
    let run = run(&scratch, "exit ask('run', '--delta', '60')");
    let ended: Ended = answer(&mut below(&scratch, "tini", &run));
    let asked = scratch.runs("site")[0].asked();
    assert!(
        ended.code == Some(1) && asked[0].output.contains("again converge"),
        "{asked:?}"
    );
    scratch.assert_nothing_left();
    let again = scratch.at("bin/again");
    let named = answer(&mut below(
        &scratch,
        "tini",
        &format!("{again} run --delta 60 -- true"),
    ));
    assert!(
        named.code == Some(1)
            && named
                .said()
                .contains("(a command was named); run 'again converge -- COMMAND'"),
        "{named:?}"
    );
    scratch.assert_nothing_left();
}

#[test]
fn converge_takes_a_request_in_any_container() {
    let scratch = Scratch::new();
    let run = run(&scratch, "ask('run') if NTH == 1");
    let line = format!("{} converge -- {run}", scratch.at("bin/again"));
    let ended = answer(&mut below(&scratch, "tini", &line));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(scratch.runs("site").len(), 2);
    scratch.assert_nothing_left();
}

/// As in a chroot without /proc.
#[test]
fn a_request_where_proc_is_not_mounted_says_so() {
    let scratch = Scratch::new();
    for words in [&["run", "--", "/bin/true"][..], &["status"], &["stop"]] {
        let mut command = scratch.command("unshare");
        let line = "umount -l /proc && exec \"$@\"";
        command
            .args(["--mount", "sh", "-c", line, "sh"])
            .arg(scratch.path("bin/again"))
            .args(words);
        let said = answer(&mut command);
        let remedy = "/proc is not mounted; mount it: mount -t proc proc /proc";
        assert!(
            said.code == Some(1) && said.err.contains(remedy),
            "{words:?}: {said:?}"
        );
    }
    scratch.assert_nothing_left();
}
