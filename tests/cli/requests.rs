use std::fs;
use std::fs::File;
use std::process::Stdio;

use again_test_support::{
    Ended, SHORT, Scratch, answer, assert_line, open_to_all, start, wait_until,
};

/// What the run heard when it asked.
fn asked(scratch: &Scratch, name: &str) -> (i32, String) {
    let asked = scratch.runs(name)[0].asked();
    assert_eq!(asked.len(), 1);
    (asked[0].code, asked[0].output.clone())
}

#[track_caller]
fn assert_says(said: &str, outcome: &str, words: &[&str]) {
    println!("{}", said.trim());
    assert_eq!(assert_line(said), outcome, "{said}");
    for word in words {
        assert!(said.contains(word), "does not say {word:?}: {said}");
    }
}

#[test]
fn scheduled_says_what_when_and_how_to_stop_it() {
    let scratch = Scratch::new();
    let pid = start(&mut scratch.apply("site", "ask('run', '--delta', '90', '--jitter', '30')"));
    let run = pid.process.pid;
    pid.finish();
    let (code, said) = asked(&scratch, "site");
    assert_eq!(code, 0);
    let pid = format!("(pid {run})");
    assert_says(
        &said,
        "scheduled",
        &[
            "puppet apply runs again",
            "1m30s to 2m",
            "after this run has ended",
            &pid,
            "timer 'again'",
            "run 2 of chain",
            "0 of at most 100000 reruns within 1h",
            "again status",
            "again stop",
        ],
    );

    // The same timer once more.
    let done = scratch.again(&[
        "run",
        "--delta",
        "1h",
        "--name",
        "two words",
        "--",
        "/bin/true",
    ]);
    assert_says(
        &done.out,
        "scheduled",
        &["command runs 1h from now", "'two words'", "run 1 of chain"],
    );
    let done = scratch.again(&[
        "run",
        "--delta",
        "1h",
        "--name",
        "two words",
        "--",
        "/bin/true",
    ]);
    assert_says(&done.out, "scheduled", &["replaces"]);
    // What it tells a person to type does what it says.
    let command = done
        .out
        .split("again stop ")
        .nth(1)
        .expect("a command")
        .lines()
        .next()
        .expect("a line");
    let command = command.split([';']).next().expect("a command").trim();
    assert!(
        command.starts_with("'two words'") || command.starts_with("\"two words\""),
        "{command}"
    );
    let words = format!("{} stop {command}", scratch.at("bin/again"));
    let stopped = answer(scratch.command("/bin/sh").args(["-c", &words]));
    assert_says(&stopped.out, "stopped", &["timer 'two words'", "chain"]);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Names that a shell or the option parser would take for something else: the line says how to stop them all the same.
#[test]
fn the_line_says_how_to_stop_a_timer_of_an_odd_name() {
    let scratch = Scratch::new();
    for name in [
        "-dash",
        "--run",
        "it's",
        "50% of $HOME",
        "a\"b",
        "*",
        "peers joined",
        "ä",
        "x;y",
        "-",
        "--",
    ] {
        let option = format!("--name={name}");
        let done = scratch.again(&["run", "--delta", "1h", &option, "--", "/bin/true"]);
        assert_eq!(done.code, Some(0), "{name}: {done:?}");
        let (_, command) = done
            .out
            .split_once("again stop ")
            .unwrap_or_else(|| panic!("{done:?}"));
        let command = format!("{} stop {}", scratch.at("bin/again"), command.trim());
        let stopped = answer(scratch.command("/bin/sh").args(["-c", &command]));
        assert_eq!(stopped.code, Some(0), "{name}: {command}: {stopped:?}");
        assert!(
            stopped.out.starts_with("again: stopped: "),
            "{name}: {command}: {stopped:?}"
        );
        assert!(scratch.timers().is_empty(), "{name}: {command}");
    }
    scratch.assert_nothing_left();
}

#[test]
fn names_that_are_none() {
    let scratch = Scratch::new();
    for name in ["", "two\nlines", "bell\x07", &"x".repeat(201), "\x1b[31m"] {
        let done = scratch.again(&["run", "--name", name, "--", "/bin/true"]);
        assert_eq!(
            (done.code, done.out.as_str()),
            (Some(2), ""),
            "{name:?}: {done:?}"
        );
        assert_says(&done.err, "error", &["timer"]);
        assert!(!done.err.contains('\x1b') && !done.err.contains('\x07'));
    }
    assert!(scratch.waiters().is_empty());
}

#[test]
fn lines_show_deceptive_characters_as_escapes() {
    let scratch = Scratch::new();
    let name = "a\u{202e}b\u{200b}";
    let asked = ["run", "--delta", "1h", "--name", name, "--", "/bin/true"];
    let mut out = scratch.again(&asked).ok();
    for words in [
        &["status"][..],
        &["history"],
        &["disable", name],
        &["disable", name],
        &["enable"],
        &["stop"],
    ] {
        out += &scratch.again(words).out;
    }
    assert!(!out.contains(['\u{202e}', '\u{200b}']), "{out:?}");
    for line in [
        "scheduled",
        "pending",
        "requested",
        "disabled",
        "nothing to do",
        "enabled",
        "stopped",
    ] {
        let escaped = |one: &str| one.contains(line) && one.contains("a\\u{202e}b\\u{200b}");
        assert!(out.lines().any(escaped), "{line}: {out}");
    }
    assert!(scratch.waiters().is_empty());
}

#[test]
fn no_run_above() {
    let scratch = Scratch::new();
    for words in [&[][..], &["run"], &["--delta", "5"]] {
        let done = scratch.again(words);
        assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{done:?}");
        assert_says(
            &done.err,
            "error",
            &[
                "no puppet run above this process",
                "again converge -- puppet",
                "again run -- COMMAND",
            ],
        );
    }
    assert!(!scratch.path("state").exists(), "nothing was written");
    scratch.assert_nothing_left();
}

#[test]
fn a_noop_run() {
    for options in [&["--noop"][..], &["--no-noop", "--noop"]] {
        let scratch = Scratch::new();
        scratch.write("work/site.pp", "ask('run')");
        let mut words = vec!["apply".into()];
        words.extend(options.iter().map(Into::into));
        words.push("site.pp".into());
        start(&mut scratch.puppet_command(&words)).finish();
        let (code, said) = asked(&scratch, "site");
        assert_eq!(code, 0);
        assert_says(&said, "nothing to do", &["noop", "--noop"]);
        scratch.assert_nothing_left();
    }
    let scratch = Scratch::new();
    scratch.write("work/site.pp", "ask('run') if NTH == 1");
    start(
        &mut scratch.puppet_command(&["apply", "--noop", "--no-noop", "site.pp"].map(Into::into)),
    )
    .finish();
    assert_eq!(
        assert_line(&asked(&scratch, "site").1),
        "scheduled",
        "the last one counts"
    );
    scratch.wait_until_settled();
}

/// The manifest on a pipe, a socket, or a deleted file: it cannot be read again.
#[test]
fn standard_input_that_cannot_be_read_again() {
    let scratch = Scratch::new();
    let manifest = "ask('run')";
    let path = scratch.write("manifest", manifest);
    let cases: [(&str, Stdio); 2] = [
        ("pipe:[", {
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            std::io::Write::write_all(&mut writer, manifest.as_bytes()).expect("written");
            reader.into()
        }),
        ("(deleted)", {
            let file = File::open(&path).expect("opened");
            std::fs::remove_file(&path).expect("removed");
            file.into()
        }),
    ];
    for (n, (evidence, input)) in cases.into_iter().enumerate() {
        let mut command = scratch.puppet_command(&["apply".into()]);
        command.stdin(input);
        start(&mut command).finish();
        let asked = scratch.runs("stdin")[n].asked();
        assert_eq!(asked[0].code, 1, "what cannot be done fails");
        assert_says(&asked[0].output, "refused", &["standard input", evidence]);
    }
    scratch.assert_nothing_left();
}

/// `user =>` in an Exec: that user may not read the run's environment, and not act for it.
#[test]
fn request_in_the_run_of_another_user_fails() {
    let scratch = Scratch::new();
    open_to_all(&scratch.path("work"), 0o777);
    let nobody =
        "['/usr/bin/setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--']";
    start(&mut scratch.apply("site", &format!("ask('run', through: {nobody})"))).finish();
    let (code, said) = asked(&scratch, "site");
    assert_eq!(code, 1);
    let words: &[&str] = if scratch.hides_processes() {
        &["no puppet run above this process", "none that can be seen"]
    } else {
        &["belongs to another user", "root", "user"]
    };
    assert_says(&said, "error", words);
    scratch.assert_nothing_left();
}

#[test]
fn request_of_a_user_without_a_home_names_the_setting() {
    let scratch = Scratch::new();
    let mut command = scratch.as_nobody(scratch.path("bin/again"));
    command
        .args(["run", "--delta", "1h", "--", "/bin/true"])
        .env("AGAIN_CONFIG", "/dev/null")
        .env("HOME", "/nonexistent");
    let ended = scratch.start(command).wait();
    assert_eq!(ended.status(), 1, "{ended:?}");
    let remedy =
        "name another directory with state_dir in /etc/again.toml, or with AGAIN_STATE_DIR";
    assert!(ended.err.contains(remedy), "{ended:?}");
}

/// An ordinary user's own run is that user's business, in that user's directory.
#[test]
fn an_ordinary_users_own_run() {
    let scratch = Scratch::new();
    let own = scratch.path("own");
    std::fs::create_dir(&own).expect("created");
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).expect("given away");
    scratch.write(
        "again.toml",
        &format!(
            "jitter = 0\nagent_catalog_run_lockfile = \"{}\"\n",
            scratch.at("none")
        ),
    );
    let command = scratch.apply("site", "ask('run') if NTH == 1");
    let mut as_nobody = scratch.as_nobody(command.get_program());
    as_nobody
        .args(command.get_args())
        .env("XDG_STATE_HOME", &own);
    scratch.with_output(&mut as_nobody);
    start(&mut as_nobody).finish();
    let (code, said) = asked(&scratch, "site");
    assert_eq!(
        (code, assert_line(&said).as_str()),
        (0, "scheduled"),
        "{said}"
    );
    let runs = scratch.wait_for_runs("site", 2);
    assert!(runs[1].status("Uid").starts_with("65534"));
    assert_eq!(runs[0].environment(), runs[1].environment());
    assert_eq!(
        std::fs::read_dir(own.join("again/log"))
            .expect("logs")
            .count(),
        1
    );
    again_test_support::wait_until("the rerun to end", again_test_support::SHORT, || {
        scratch.processes().is_empty()
    });
}

/// A loop through ever new command lines: each is a target with a cap of its own, and all of them together have one.
#[test]
fn the_cap_over_all_targets() {
    for (on_cap, code) in [("fail", 1), ("skip", 0)] {
        let scratch = Scratch::new();
        scratch.settings(&format!("max_runs = 2\non_cap = \"{on_cap}\""));
        let (again, next) = (scratch.at("bin/again"), scratch.at("next"));
        scratch.script(
            "next",
            // The next run may begin before this one has written its files.
            &format!("#!/bin/sh\necho $1 >>runs\n{again} run -- {next} $(($1 + 1)) >said.$1 2>&1\necho $? >code.$1\n"),
        );
        scratch.again_well(&["run", "--", &next, "1"]);
        wait_until("the loop to end", SHORT, || {
            scratch.path("work/code.6").exists()
                && scratch.text("work/code.6") == format!("{code}\n")
        });
        scratch.wait_until_settled();
        assert_eq!(scratch.text("work/runs"), "1\n2\n3\n4\n5\n6\n");
        assert_says(
            scratch
                .text("work/said.6")
                .trim_start_matches("again: error: "),
            "refused",
            &[
                "the cap over all targets is reached",
                "6 of at most 6 reruns within 1h",
                "max_runs_total",
            ],
        );
        // Another boot, which has the records only.
        fs::remove_file(scratch.path("state/starts")).expect("there");
        let done = scratch.again(&["run", "--", "/bin/true"]);
        assert_eq!(done.code, Some(code), "{done:?}");
        let more = scratch.again_well(&["run", "--max-runs-total", "7", "--", "/bin/true"]);
        assert!(more.contains("0 of at most 2 reruns"), "{more}");
        scratch.wait_until_settled();
        let refused = || {
            let targets = scratch.status()["targets"].clone();
            let targets = targets.as_array().expect("targets").iter();
            targets
                .filter(|target| !target["refused"].is_null())
                .count()
        };
        assert_ne!(refused(), 0);
        scratch.again_well(&["reset"]);
        assert_eq!(refused(), 0, "the count that refused it is forgotten");
        // What is due is judged again: of two that were granted, one starts.
        for word in ["a", "b"] {
            scratch.again_well(&[
                "run",
                "--max-runs-total",
                "1",
                "--delta",
                "1",
                "--jitter",
                "0",
                "--",
                "/bin/sh",
                "-c",
                &format!("echo {word} >>granted"),
            ]);
        }
        wait_until("both to be done", SHORT, || {
            scratch.timers().is_empty() && scratch.waiters().is_empty()
        });
        scratch.wait_until_settled();
        assert_eq!(scratch.text("work/granted").lines().count(), 1);
        scratch.assert_nothing_left();
    }
}

#[test]
fn the_cap() {
    let cases = [("fail", 1), ("skip", 0)];
    for (on_cap, code) in cases {
        let scratch = Scratch::new();
        scratch.settings(&format!("max_runs = 2\non_cap = \"{on_cap}\""));
        start(&mut scratch.apply("site", "ask('run')")).finish();
        scratch.wait_for_runs("site", 3);
        scratch.wait_until_settled();
        let runs = scratch.runs("site");
        assert_eq!(runs.len(), 3, "the first run and two reruns");
        let last = &runs[2].asked()[0];
        assert_eq!(last.code, code, "{on_cap}: {last:?}");
        assert_says(
            &last.output,
            "refused",
            &[
                "the cap is reached",
                "2 of at most 2 reruns within 1h",
                "max_runs",
            ],
        );
        let status = scratch.status();
        assert_eq!(status["targets"][0]["cap"]["used"], 2);
        assert!(status["targets"][0]["cap"]["frees_at"].is_string());
        let refused = &status["targets"][0]["refused"];
        assert!(
            refused["reason"]
                .as_str()
                .expect("a reason")
                .contains("the cap is reached"),
            "{refused}"
        );
        // Another target has a cap of its own.
        let done = scratch.again(&["run", "--delta", "1h", "--", "/bin/true"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        scratch.again_well(&["stop"]);
        scratch.assert_nothing_left();
    }
    // Slowed down, not refused.
    let scratch = Scratch::new();
    scratch.settings("max_runs = 1\non_cap = \"wait\"");
    start(&mut scratch.apply("site", "ask('run')")).finish();
    scratch.wait_for_runs("site", 2);
    let due_in = again_test_support::wait_for("a due time", again_test_support::SHORT, || {
        scratch.timer("again")?["due_in_seconds"].as_f64()
    });
    assert!(due_in > 3000.0, "{due_in}");
    assert_eq!(scratch.runs("site").len(), 2);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

#[test]
fn a_cap_of_zero_allows_nothing() {
    for on_cap in ["fail", "wait", "skip"] {
        let scratch = Scratch::new();
        let done = scratch.again(&[
            "run",
            "--max-runs",
            "0",
            "--on-cap",
            on_cap,
            "--",
            "/bin/true",
        ]);
        let said = if done.out.is_empty() {
            &done.err
        } else {
            &done.out
        };
        assert_eq!(assert_line(said), "refused", "{on_cap}: {done:?}");
        assert_eq!(
            done.code,
            Some(i32::from(on_cap != "skip")),
            "{on_cap}: {done:?}"
        );
        scratch.assert_nothing_left();
    }
}

#[test]
fn while_again_is_disabled() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("state")).expect("created");
    for (content, words) in [
        ("{\"reason\":\"freeze\",\"since\":1}", "freeze"),
        ("{\"reason\":\"\",\"since\":1}", "no reason given"),
        ("garbage", "cannot be read"),
    ] {
        scratch.write("state/disabled", content);
        let done = scratch.again(&["run", "--", "/bin/true"]);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
        assert_says(
            &done.out,
            "refused",
            &["again is disabled", words, "again enable"],
        );
    }
    scratch.assert_nothing_left();
}

/// Errors go to standard error, everything else to standard output, and each is one line.
#[test]
fn outputs_are_apart() {
    let scratch = Scratch::new();
    let lines = |done: &Ended| (done.out.lines().count(), done.err.lines().count());
    assert_eq!(lines(&scratch.again(&["run"])), (0, 1));
    assert_eq!(
        lines(&scratch.again(&["run", "--delta", "1h", "--", "/bin/true"])),
        (1, 0)
    );
    assert_eq!(lines(&scratch.again(&["stop"])), (1, 0));
    assert_eq!(lines(&scratch.again(&["stop"])), (1, 0));
    assert_eq!(lines(&scratch.again(&["stop", "x", "y"])), (0, 1));
}

/// Nobody listens any more: that is no error, and the timer is set all the same.
#[test]
fn a_reader_that_has_gone() {
    let scratch = Scratch::new();
    for words in [
        &["run", "--delta", "1h", "--", "/bin/true"][..],
        &["status"],
        &["status", "--json"],
        &["--help"],
        &["explain", "--", "/bin/true"],
        &["stop"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = scratch.command(scratch.path("bin/again"));
        let done = command
            .args(words)
            .stdout(writer)
            .output()
            .expect("started");
        assert_eq!(done.status.code(), Some(0), "{words:?}: {done:?}");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if words[0] == "run" {
            // That there was somebody to tell is not certain, so it may be said.
            assert!(
                said.is_empty() || said.starts_with("again: warning: the timer is set"),
                "{said}"
            );
        } else {
            assert_eq!(said, "", "{words:?}");
        }
        if words[0] == "run" {
            assert_eq!(scratch.timers().len(), 1);
        }
    }
    scratch.assert_nothing_left();
    let line = format!(
        "{} status | head -1 >/dev/null; {} status --json | true",
        scratch.at("bin/again"),
        scratch.at("bin/again")
    );
    let done = answer(scratch.command("/bin/sh").args(["-c", &line]));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
}

/// A standard output that cannot be written to: a timer that was set is set, and what is said does not deny it.
#[test]
fn an_output_that_cannot_be_written() {
    let scratch = Scratch::new();
    let full = || {
        File::options()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full")
    };
    let mut command = scratch.command(scratch.path("bin/again"));
    let done = command
        .args(["run", "--delta", "1h", "--", "/bin/true"])
        .stdout(full())
        .output()
        .expect("started");
    assert_eq!(scratch.timers().len(), 1);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        done.status.code() == Some(0) || said.contains("standard output"),
        "{done:?}"
    );
    scratch.again_well(&["stop"]);
    let mut command = scratch.command(scratch.path("bin/again"));
    let done = command
        .args(["status"])
        .stdout(full())
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(
        (done.status.code(), assert_line(&said).as_str()),
        (Some(1), "error"),
        "{done:?}"
    );
    assert!(said.contains("standard output"), "{said}");
    scratch.assert_nothing_left();
}

/// `again stop | head -1`: all of them are stopped, however few lines anybody reads.
#[test]
fn stop_does_not_stop_half_way() {
    let scratch = Scratch::new();
    for n in 0..6 {
        let (name, target) = (format!("n{n}"), (n % 2).to_string());
        scratch.again_well(&[
            "run",
            "--delta",
            "1h",
            "--name",
            &name,
            "--",
            "/bin/true",
            &target,
        ]);
    }
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = scratch.command(scratch.path("bin/again"));
    let done = command
        .arg("stop")
        .stdout(writer)
        .output()
        .expect("started");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(scratch.told("stopped").len(), 6);
    scratch.assert_nothing_left();
}

/// explain changes nothing, and gives the verdict that a request would get.
#[test]
fn explain_says_what_a_request_would_say() {
    let scratch = Scratch::new();
    let run = start(&mut scratch.apply("site", "ask('explain', '--delta', '90'); hold('go')"));
    again_test_support::wait_until("it to ask", again_test_support::SHORT, || {
        scratch
            .runs("site")
            .first()
            .is_some_and(|run| run.asked().len() == 1)
    });
    let (code, said) = asked(&scratch, "site");
    assert_eq!(code, 0, "{said}");
    for word in [
        "<- the run",
        "would run: ",
        "bin/puppet apply site.pp",
        "the same command line as the run's",
        &scratch.at("work"),
        "verdict: would be scheduled",
        "chain: ",
    ] {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
    assert!(!scratch.path("state").exists(), "it changed something");
    // For somebody else.
    let done = scratch.again(&["explain", "--pid", &run.process.pid.to_string()]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.out.contains("would run: ") && done.out.contains("<- the run"),
        "{done:?}"
    );
    scratch.release("go");
    run.finish();
    let done = scratch.again(&["explain"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.out.contains("verdict: error: no puppet run above"),
        "{done:?}"
    );
    let done = scratch.again(&["explain", "--pid", "4194304"]);
    assert_eq!(
        (done.code, assert_line(&done.err).as_str()),
        (Some(1), "error"),
        "{done:?}"
    );
    scratch.assert_nothing_left();
}

#[test]
fn resume_has_nothing_to_do_or_gives_a_dead_timer_a_waiter() {
    let scratch = Scratch::new();
    let done = scratch.again(&["resume"]);
    assert_eq!(
        (done.code, assert_line(&done.out).as_str()),
        (Some(0), "nothing to do")
    );
    scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
    let first = scratch.waiter("again");
    let done = scratch.again(&["resume"]);
    assert_eq!(
        (done.code, assert_line(&done.out).as_str()),
        (Some(0), "nothing to do")
    );
    assert_eq!(scratch.waiters(), [first]);
    first
        .signal(nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    first.wait_until_gone(again_test_support::SHORT);
    let done = scratch.again(&["resume"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    println!("{}", done.out.trim());
    assert_eq!((scratch.timers().len(), scratch.waiters().len()), (1, 1));
    assert_eq!(scratch.timers()[0]["waiter"]["alive"], true);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// The terminal that it was asked for on hangs up.
#[test]
fn a_command_outlives_its_terminal() {
    let scratch = Scratch::new();
    let mut command = scratch.command(scratch.path("bin/helper"));
    command.args([
        "terminal",
        "--",
        &scratch.at("bin/again"),
        "run",
        "--delta",
        "1h",
        "--",
        "/bin/true",
    ]);
    let done = answer(&mut command);
    assert_eq!(done.code, Some(0), "{done:?}");
    let waiter = scratch.waiter("again");
    assert_eq!(waiter.stat(7), Some(0), "no terminal");
    assert!(
        waiter
            .descriptors()
            .values()
            .all(|to| !to.starts_with("/dev/pts/"))
    );
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// What asked is shown as it was given, in so far as it can be shown.
#[test]
fn the_resource_that_asks_is_shown() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let odd = std::ffi::OsStr::from_bytes(b"Exec[a\x1b[2J\xff\nb]");
    let mut command = scratch.command(scratch.path("bin/again"));
    command
        .args(["run", "--delta", "1h", "--resource"])
        .arg(odd);
    let asked = answer(command.args(["--", "/bin/true"]));
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let timer = &scratch.timers()[0];
    assert_eq!(
        timer["resource"], "Exec[a\u{fffd}[2J\u{fffd}\u{fffd}b]",
        "{timer}"
    );
    for verb in ["status", "history"] {
        let shown = scratch.again(&[verb]).out;
        assert!(shown.contains("by Exec[a\u{fffd}[2J"), "{shown}");
    }
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// What `again resume` prints is read by nobody for a while: no request of the same target has to wait for that.
#[test]
fn a_reader_that_does_not_read_holds_up_no_request() {
    let scratch = Scratch::new();
    let request = ["run", "--delta", "1h", "--", "/bin/true"];
    scratch.again_well(&request);
    let waiter = scratch.waiter("again");
    waiter.wait_until_asleep();
    waiter
        .signal(nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    waiter.wait_until_gone(again_test_support::SHORT);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let full = writer.try_clone().expect("a copy");
    nix::fcntl::fcntl(
        &full,
        nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
    )
    .expect("set");
    while nix::unistd::write(&full, &[b'x'; 4096]).is_ok() {}
    nix::fcntl::fcntl(
        &full,
        nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()),
    )
    .expect("set");
    drop(full);
    let mut command = scratch.command(scratch.path("bin/again"));
    let mut resume = command
        .arg("resume")
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    drop(command);
    again_test_support::wait_until("it to have resumed", again_test_support::SHORT, || {
        scratch.told("resumed").len() == 1
    });
    let (done, took) = again_test_support::timed(|| scratch.again(&request));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    assert!(
        resume.try_wait().expect("asked").is_none(),
        "nothing was in its way"
    );
    drop(reader);
    resume.wait().expect("waited");
    scratch.again_well(&["stop"]);
}
