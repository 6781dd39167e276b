use std::fs::File;
use std::process::Stdio;

use crate::stage::{Answer, Stage, answer, assert_line, open_to_all, start};

/// What the run heard when it asked.
fn asked(stage: &Stage, name: &str) -> (i32, String) {
    let asked = stage.runs(name)[0].asked();
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
    let stage = Stage::new();
    let pid = start(&mut stage.apply("site", "ask('run', '--delta', '90', '--jitter', '30')"));
    let run = pid.process.pid;
    pid.wait();
    let (code, said) = asked(&stage, "site");
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
    let done = stage.again(&[
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
    let done = stage.again(&[
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
    let words = format!("{} stop {command}", stage.at("bin/again"));
    let stopped = answer(stage.command("/bin/sh").args(["-c", &words]));
    assert_says(&stopped.out, "stopped", &["timer 'two words'", "chain"]);
    stage.again_well(&["stop"]);
    stage.assert_nothing_left();
}

/// Names that a shell or the option parser would take for something else: the line says how to stop them all the same.
#[test]
fn the_line_says_how_to_stop_a_timer_of_an_odd_name() {
    let stage = Stage::new();
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
        let done = stage.again(&["run", "--delta", "1h", &option, "--", "/bin/true"]);
        assert_eq!(done.code, Some(0), "{name}: {done:?}");
        let (_, command) = done
            .out
            .split_once("again stop ")
            .unwrap_or_else(|| panic!("{done:?}"));
        let command = format!("{} stop {}", stage.at("bin/again"), command.trim());
        let stopped = answer(stage.command("/bin/sh").args(["-c", &command]));
        assert_eq!(stopped.code, Some(0), "{name}: {command}: {stopped:?}");
        assert!(
            stopped.out.starts_with("again: stopped: "),
            "{name}: {command}: {stopped:?}"
        );
        assert!(stage.timers().is_empty(), "{name}: {command}");
    }
    stage.assert_nothing_left();
}

#[test]
fn names_that_are_none() {
    let stage = Stage::new();
    for name in ["", "two\nlines", "bell\x07", &"x".repeat(201), "\x1b[31m"] {
        let done = stage.again(&["run", "--name", name, "--", "/bin/true"]);
        assert_eq!(
            (done.code, done.out.as_str()),
            (Some(2), ""),
            "{name:?}: {done:?}"
        );
        assert_says(&done.err, "error", &["timer"]);
        assert!(!done.err.contains('\x1b') && !done.err.contains('\x07'));
    }
    assert!(stage.waiters().is_empty());
}

#[test]
fn no_run_above() {
    let stage = Stage::new();
    for words in [&[][..], &["run"], &["--delta", "5"]] {
        let done = stage.again(words);
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
    assert!(!stage.path("state").exists(), "nothing was written");
    stage.assert_nothing_left();
}

#[test]
fn a_noop_run() {
    for options in [&["--noop"][..], &["--no-noop", "--noop"]] {
        let stage = Stage::new();
        stage.write("work/site.pp", "ask('run')");
        let mut words = vec!["apply".into()];
        words.extend(options.iter().map(Into::into));
        words.push("site.pp".into());
        start(&mut stage.puppet_command(&words)).wait();
        let (code, said) = asked(&stage, "site");
        assert_eq!(code, 0);
        assert_says(&said, "nothing to do", &["noop", "--noop"]);
        stage.assert_nothing_left();
    }
    let stage = Stage::new();
    stage.write("work/site.pp", "ask('run') if NTH == 1");
    start(&mut stage.puppet_command(&["apply", "--noop", "--no-noop", "site.pp"].map(Into::into)))
        .wait();
    assert_eq!(
        assert_line(&asked(&stage, "site").1),
        "scheduled",
        "the last one counts"
    );
    stage.wait_until_settled();
}

/// The manifest on a pipe, a socket, or a deleted file: it cannot be read again.
#[test]
fn standard_input_that_cannot_be_read_again() {
    let stage = Stage::new();
    let manifest = "ask('run')";
    let path = stage.write("manifest", manifest);
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
        let mut command = stage.puppet_command(&["apply".into()]);
        command.stdin(input);
        start(&mut command).wait();
        let asked = stage.runs("stdin")[n].asked();
        assert_eq!(asked[0].code, 0);
        assert_says(&asked[0].output, "refused", &["standard input", evidence]);
    }
    stage.assert_nothing_left();
}

/// `user =>` in an Exec: that user may not read the run's environment, and not act for it.
#[test]
fn another_users_run() {
    let stage = Stage::new();
    open_to_all(&stage.path("work"), 0o777);
    let nobody =
        "['/usr/bin/setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--']";
    start(&mut stage.apply("site", &format!("ask('run', through: {nobody})"))).wait();
    let (code, said) = asked(&stage, "site");
    assert_eq!(code, 1);
    assert_says(&said, "error", &["belongs to another user", "root", "user"]);
    stage.assert_nothing_left();
}

/// An ordinary user's own run is that user's business, in that user's directory.
#[test]
fn an_ordinary_users_own_run() {
    let stage = Stage::new();
    let own = stage.path("own");
    std::fs::create_dir(&own).expect("created");
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).expect("given away");
    stage.write(
        "again.toml",
        &format!(
            "jitter = 0\nagent_catalog_run_lockfile = \"{}\"\n",
            stage.at("none")
        ),
    );
    let command = stage.apply("site", "ask('run') if NTH == 1");
    let mut as_nobody = stage.as_nobody(command.get_program());
    as_nobody
        .args(command.get_args())
        .env("XDG_STATE_HOME", &own);
    stage.with_output(&mut as_nobody);
    start(&mut as_nobody).wait();
    let (code, said) = asked(&stage, "site");
    assert_eq!(
        (code, assert_line(&said).as_str()),
        (0, "scheduled"),
        "{said}"
    );
    let runs = stage.wait_for_runs("site", 2);
    assert!(runs[1].status("Uid").starts_with("65534"));
    assert_eq!(runs[0].environment(), runs[1].environment());
    assert_eq!(
        std::fs::read_dir(own.join("again/log"))
            .expect("logs")
            .count(),
        1
    );
    crate::rig::wait_until("the rerun to end", crate::rig::SHORT, || {
        stage.processes().is_empty()
    });
}

#[test]
fn the_cap() {
    let cases = [("fail", 1), ("skip", 0)];
    for (on_cap, code) in cases {
        let stage = Stage::new();
        stage.settings(&format!("max_runs = 2\non_cap = \"{on_cap}\""));
        start(&mut stage.apply("site", "ask('run')")).wait();
        stage.wait_for_runs("site", 3);
        stage.wait_until_settled();
        let runs = stage.runs("site");
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
        let status = stage.status();
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
        let done = stage.again(&["run", "--delta", "1h", "--", "/bin/true"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        stage.again_well(&["stop"]);
        stage.assert_nothing_left();
    }
    // Slowed down, not refused.
    let stage = Stage::new();
    stage.settings("max_runs = 1\non_cap = \"wait\"");
    start(&mut stage.apply("site", "ask('run')")).wait();
    stage.wait_for_runs("site", 2);
    let due_in = crate::rig::wait_for("a due time", crate::rig::SHORT, || {
        stage.timer("again")?["due_in_seconds"].as_f64()
    });
    assert!(due_in > 3000.0, "{due_in}");
    assert_eq!(stage.runs("site").len(), 2);
    stage.again_well(&["stop"]);
    stage.assert_nothing_left();
}

#[test]
fn a_cap_of_zero_allows_nothing() {
    for on_cap in ["fail", "wait", "skip"] {
        let stage = Stage::new();
        let done = stage.again(&[
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
        stage.assert_nothing_left();
    }
}

#[test]
fn while_again_is_disabled() {
    let stage = Stage::new();
    std::fs::create_dir(stage.path("state")).expect("created");
    for (content, words) in [
        ("{\"reason\":\"freeze\",\"since\":1}", "freeze"),
        ("{\"reason\":\"\",\"since\":1}", "no reason given"),
        ("garbage", "cannot be read"),
    ] {
        stage.write("state/disabled", content);
        let done = stage.again(&["run", "--", "/bin/true"]);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
        assert_says(
            &done.out,
            "refused",
            &["again is disabled", words, "again enable"],
        );
    }
    stage.assert_nothing_left();
}

/// Errors go to standard error, everything else to standard output, and each is one line.
#[test]
fn outputs_are_apart() {
    let stage = Stage::new();
    let lines = |done: &Answer| (done.out.lines().count(), done.err.lines().count());
    assert_eq!(lines(&stage.again(&["run"])), (0, 1));
    assert_eq!(
        lines(&stage.again(&["run", "--delta", "1h", "--", "/bin/true"])),
        (1, 0)
    );
    assert_eq!(lines(&stage.again(&["stop"])), (1, 0));
    assert_eq!(lines(&stage.again(&["stop"])), (1, 0));
    assert_eq!(lines(&stage.again(&["stop", "x", "y"])), (2, 0));
}

/// Nobody listens any more: that is no error, and the timer is set all the same.
#[test]
fn a_reader_that_has_gone() {
    let stage = Stage::new();
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
        let mut command = stage.command(stage.path("bin/again"));
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
            assert_eq!(stage.timers().len(), 1);
        }
    }
    stage.assert_nothing_left();
    let line = format!(
        "{} status | head -1 >/dev/null; {} status --json | true",
        stage.at("bin/again"),
        stage.at("bin/again")
    );
    let done = answer(stage.command("/bin/sh").args(["-c", &line]));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
}

/// A standard output that cannot be written to: a timer that was set is set, and what is said does not deny it.
#[test]
fn an_output_that_cannot_be_written() {
    let stage = Stage::new();
    let full = || {
        File::options()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full")
    };
    let mut command = stage.command(stage.path("bin/again"));
    let done = command
        .args(["run", "--delta", "1h", "--", "/bin/true"])
        .stdout(full())
        .output()
        .expect("started");
    assert_eq!(stage.timers().len(), 1);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        done.status.code() == Some(0) || said.contains("standard output"),
        "{done:?}"
    );
    stage.again_well(&["stop"]);
    let mut command = stage.command(stage.path("bin/again"));
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
    stage.assert_nothing_left();
}

/// `again stop | head -1`: all of them are stopped, however few lines anybody reads.
#[test]
fn stop_does_not_stop_half_way() {
    let stage = Stage::new();
    for n in 0..6 {
        let (name, target) = (format!("n{n}"), (n % 2).to_string());
        stage.again_well(&[
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
    let mut command = stage.command(stage.path("bin/again"));
    let done = command
        .arg("stop")
        .stdout(writer)
        .output()
        .expect("started");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(stage.history("stopped").len(), 6);
    stage.assert_nothing_left();
}

/// explain changes nothing, and gives the verdict that a request would get.
#[test]
fn explain_says_what_a_request_would_say() {
    let stage = Stage::new();
    let run = start(&mut stage.apply("site", "ask('explain', '--delta', '90'); hold('go')"));
    crate::rig::wait_until("it to ask", crate::rig::SHORT, || {
        stage
            .runs("site")
            .first()
            .is_some_and(|run| run.asked().len() == 1)
    });
    let (code, said) = asked(&stage, "site");
    assert_eq!(code, 0, "{said}");
    for word in [
        "<- the run",
        "would run: ",
        "bin/puppet apply site.pp",
        "the same command line as the run's",
        &stage.at("work"),
        "verdict: would be scheduled",
        "chain: ",
    ] {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
    assert!(!stage.path("state").exists(), "it changed something");
    // For somebody else.
    let done = stage.again(&["explain", "--pid", &run.process.pid.to_string()]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.out.contains("would run: ") && done.out.contains("<- the run"),
        "{done:?}"
    );
    stage.release("go");
    run.wait();
    let done = stage.again(&["explain"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.out.contains("verdict: error: no puppet run above"),
        "{done:?}"
    );
    let done = stage.again(&["explain", "--pid", "4194304"]);
    assert_eq!(
        (done.code, assert_line(&done.err).as_str()),
        (Some(1), "error"),
        "{done:?}"
    );
    stage.assert_nothing_left();
}

#[test]
fn resume_has_nothing_to_do_or_gives_a_dead_timer_a_waiter() {
    let stage = Stage::new();
    let done = stage.again(&["resume"]);
    assert_eq!(
        (done.code, assert_line(&done.out).as_str()),
        (Some(0), "nothing to do")
    );
    stage.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
    let first = stage.waiter("again");
    let done = stage.again(&["resume"]);
    assert_eq!(
        (done.code, assert_line(&done.out).as_str()),
        (Some(0), "nothing to do")
    );
    assert_eq!(stage.waiters(), [first]);
    first
        .signal(nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    first.wait_until_gone(crate::rig::SHORT);
    let done = stage.again(&["resume"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    println!("{}", done.out.trim());
    assert_eq!((stage.timers().len(), stage.waiters().len()), (1, 1));
    assert_eq!(stage.timers()[0]["waiter"]["alive"], true);
    stage.again_well(&["stop"]);
    stage.assert_nothing_left();
}

/// The terminal that it was asked for on hangs up.
#[test]
fn a_command_outlives_its_terminal() {
    let stage = Stage::new();
    let mut command = stage.command(stage.path("bin/helper"));
    command.args([
        "terminal",
        "--",
        &stage.at("bin/again"),
        "run",
        "--delta",
        "1h",
        "--",
        "/bin/true",
    ]);
    let done = answer(&mut command);
    assert_eq!(done.code, Some(0), "{done:?}");
    let waiter = stage.waiter("again");
    assert_eq!(waiter.stat(7), Some(0), "no terminal");
    assert!(
        waiter
            .descriptors()
            .values()
            .all(|to| !to.starts_with("/dev/pts/"))
    );
    stage.again_well(&["stop"]);
    stage.assert_nothing_left();
}

/// What asked is shown as it was given, in so far as it can be shown.
#[test]
fn the_resource_that_asks_is_shown() {
    use std::os::unix::ffi::OsStrExt;
    let stage = Stage::new();
    let odd = std::ffi::OsStr::from_bytes(b"Exec[a\x1b[2J\xff\nb]");
    let mut command = stage.command(stage.path("bin/again"));
    command
        .args(["run", "--delta", "1h", "--resource"])
        .arg(odd);
    let asked = answer(command.args(["--", "/bin/true"]));
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let timer = &stage.timers()[0];
    assert_eq!(
        timer["resource"], "Exec[a\u{fffd}[2J\u{fffd}\u{fffd}b]",
        "{timer}"
    );
    for verb in ["status", "history"] {
        let shown = stage.again(&[verb]).out;
        assert!(shown.contains("by Exec[a\u{fffd}[2J"), "{shown}");
    }
    stage.again_well(&["stop"]);
    stage.assert_nothing_left();
}

/// What `again resume` prints is read by nobody for a while: no request of the same target has to wait for that.
#[test]
fn a_reader_that_does_not_read_holds_up_no_request() {
    let stage = Stage::new();
    let request = ["run", "--delta", "1h", "--", "/bin/true"];
    stage.again_well(&request);
    let waiter = stage.waiter("again");
    waiter.wait_until_asleep();
    waiter
        .signal(nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    waiter.wait_until_gone(crate::rig::SHORT);
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
    let mut command = stage.command(stage.path("bin/again"));
    let mut resume = command
        .arg("resume")
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    drop(command);
    crate::rig::wait_until("it to have resumed", crate::rig::SHORT, || {
        stage.history("resumed").len() == 1
    });
    let (done, took) = crate::stage::timed(|| stage.again(&request));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    assert!(
        resume.try_wait().expect("asked").is_none(),
        "nothing was in its way"
    );
    drop(reader);
    resume.wait().expect("waited");
    stage.again_well(&["stop"]);
}
