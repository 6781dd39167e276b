use std::fs;

use again_test_support::{Ended, Scratch, answer};

/// A request under these settings, and nothing else.
fn request_with(scratch: &Scratch, file: &str) -> Ended {
    scratch.write("x.toml", file);
    scratch.again(&[
        "run",
        "--config",
        &scratch.at("x.toml"),
        "--state-dir",
        &scratch.at("state"),
        "--delta",
        "1h",
        "--",
        "/bin/true",
    ])
}

/// One line on standard error, exit 2, nothing pending.
#[track_caller]
fn assert_wrong(done: &Ended, words: &[&str]) {
    println!("{}", done.err.trim());
    assert_eq!((done.code, done.out.as_str()), (Some(2), ""), "{done:?}");
    assert!(
        done.err.starts_with("again: error: ") && done.err.lines().count() == 1,
        "{done:?}"
    );
    for word in words {
        assert!(
            done.err.contains(word),
            "does not say {word:?}: {}",
            done.err
        );
    }
}

#[test]
fn an_error_names_file_line_and_key() {
    let scratch = Scratch::new();
    let cases: [(&str, &[&str]); 24] = [
        (
            "max_run = 3\n",
            &["line 1", "max_run", "known are", "max_runs"],
        ),
        (
            "# comment\n\nmax_runs = 3\nfrobnicate = true\n",
            &["line 4", "frobnicate"],
        ),
        ("max_runs = \"x\"\n", &["line 1", "max_runs"]),
        ("max_runs = -1\n", &["line 1", "max_runs"]),
        ("stuck = \"kill\"\n", &["line 1", "stuck", "report"]),
        (
            "max_log_size = \"1T\"\n",
            &["line 1", "max_log_size", "16M"],
        ),
        ("max_runs = 1.5\n", &["line 1", "max_runs"]),
        ("max_runs = 5000000000\n", &["line 1", "max_runs"]),
        ("\n\nwindow = \"1w\"\n", &["line 3", "window", "1w"]),
        ("jitter = -5\n", &["line 1", "jitter"]),
        ("jitter = true\n", &["line 1", "jitter"]),
        ("max_jitter = \"\"\n", &["line 1", "max_jitter"]),
        ("on_cap = \"explode\"\n", &["line 1", "on_cap", "explode"]),
        (
            "save_environment = \"yes\"\n",
            &["line 1", "save_environment"],
        ),
        ("slots = 8\n", &["line 1", "slots", "true or false"]),
        ("scope = \"always\"\n", &["line 1", "scope", "always"]),
        ("container = true\n", &["line 1", "container"]),
        ("container = \"ends\"\n", &["line 1", "container", "stays"]),
        (
            "hold_before_shutdown = \"soon\"\n",
            &["line 1", "hold_before_shutdown"],
        ),
        ("command = \"puppet\"\n", &["line 1", "command"]),
        ("command = []\n", &["line 1", "command"]),
        ("keep_logs = \"all\"\n", &["line 1", "keep_logs"]),
        (
            "max_runs = 3\nlog_dir = \"relative\"\n",
            &["line 2", "log_dir", "absolute"],
        ),
        (
            "max_runs = 3\nmax_runs = 4\n",
            &["line 2", "duplicate key 'max_runs'"],
        ),
    ];
    let mut wrong = Vec::new();
    for (file, words) in cases {
        let done = request_with(&scratch, file);
        let missing: Vec<_> = words
            .iter()
            .chain(&["x.toml"])
            .filter(|word| !done.err.contains(**word))
            .collect();
        let one_line = done.err.starts_with("again: error: ") && done.err.lines().count() == 1;
        if done.code != Some(2) || !done.out.is_empty() || !one_line || !missing.is_empty() {
            wrong.push(format!(
                "{file:?} lacks {missing:?}: {:?} {:?}",
                done.code, done.err
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(!scratch.path("state").exists());
    println!("{} wrong settings", cases.len());
}

#[test]
fn a_file_that_is_no_settings_file() {
    let scratch = Scratch::new();
    for file in [
        "not toml",
        "[section]\nmax_runs = 3\n",
        "max_runs = 3\nmax_runs",
        "= 3",
    ] {
        let done = request_with(&scratch, file);
        assert_wrong(&done, &["x.toml", "line "]);
    }
    fs::write(scratch.path("x.toml"), b"max_runs = 3 # \xff\n").expect("written");
    let done = scratch.again(&["status", "--config", &scratch.at("x.toml")]);
    assert_wrong(&done, &["x.toml"]);
    // One that was named has to be there; the usual one need not be.
    let none = scratch.at("none/again.toml");
    let done = scratch.again(&["status", "--config", &none]);
    assert_wrong(&done, &[&none, "No such file"]);
    let done = scratch.again(&["status", "--config", "/"]);
    assert_wrong(&done, &["/"]);
    // None of these is waited for or read without end.
    let fifo = scratch.at("fifo");
    scratch.run("mkfifo", &[&fifo]).ok();
    let huge = scratch.at("huge");
    scratch.run("truncate", &["-s", "1T", &huge]).ok();
    let link = scratch.at("link");
    std::os::unix::fs::symlink("/dev/zero", &link).expect("linked");
    for (path, why) in [
        (fifo.as_str(), "not a regular file"),
        ("/dev/zero", "not a regular file"),
        (&link, "not a regular file"),
        (&huge, "larger than 1048576 bytes"),
    ] {
        for words in [
            &["status", "--config", path][..],
            &["run", "--config", path, "--", "true"],
        ] {
            assert_wrong(&scratch.again(words), &[path, why]);
        }
    }
    let done = scratch.again(&[
        "status",
        "--config",
        "/dev/null",
        "--state-dir",
        &scratch.at("none"),
    ]);
    assert_eq!(done.code, Some(3), "{done:?}");
}

#[test]
fn every_key_is_taken() {
    let scratch = Scratch::new();
    let file = format!(
        "jitter = 0\nmax_jitter = \"2m\"\nmax_runs = 7\nwindow = \"30m\"\non_cap = \"wait\"\nmax_runs_total = 9\nstuck = \"end\"\nslots = true\nsave_environment = false\nscope = \"never\"\ncontainer = \"stays\"\nhold_before_shutdown = \"10m\"\n\
         command = [\"/bin/true\"]\nstate_dir = \"{0}/s\"\nlog_dir = \"{0}/l\"\nkeep_logs = 5\nmax_log_size = \"1M\"\nmax_logs_size = 0\nagent_catalog_run_lockfile = \"/a\"\n\
         agent_disabled_lockfile = \"/b\"\nlastrunfile = \"/c\"\npidfile = \"/d\"\n",
        scratch.at("dirs")
    );
    scratch.write("x.toml", &file);
    let config = scratch.at("x.toml");
    fs::create_dir(scratch.path("dirs")).expect("created");
    let said = scratch.again_well(&[
        "run",
        "--config",
        &config,
        "--delta",
        "1h",
        "--",
        "/bin/true",
    ]);
    assert!(said.contains("0 of at most 7 reruns within 30m"), "{said}");
    let status = scratch.status_of(&["--config", &config]);
    assert_eq!(status["state_dir"], format!("{}/s", scratch.at("dirs")));
    assert_eq!(status["targets"][0]["cap"]["max_runs"], 7);
    assert_eq!(status["targets"][0]["cap"]["window_seconds"], 1800);
    scratch.again_well(&["stop", "--config", &config]);
    // As a comment or empty it is as good as none.
    for file in ["", "# nothing\n", "\n\n"] {
        let done = request_with(&scratch, file);
        assert_eq!(done.code, Some(0), "{file:?}: {done:?}");
        scratch.again_well(&["stop"]);
    }
    assert!(scratch.waiters().is_empty());
}

#[test]
fn flags_before_environment_before_file() {
    let scratch = Scratch::new();
    scratch.settings("max_runs = 3\nwindow = \"3h\"");
    let said = |variables: &[(&str, &str)], flags: &[&str]| {
        let mut command = scratch.command(scratch.path("bin/again"));
        command
            .envs(variables.iter().copied())
            .args(["run", "--delta", "1h"])
            .args(flags)
            .args(["--", "/bin/true"]);
        let done = answer(&mut command);
        assert_eq!(done.code, Some(0), "{done:?}");
        done.out
    };
    assert!(said(&[], &[]).contains("at most 3 reruns within 3h"));
    let variables = [("AGAIN_MAX_RUNS", "4"), ("AGAIN_WINDOW", "4h")];
    assert!(said(&variables, &[]).contains("at most 4 reruns within 4h"));
    assert!(
        said(&variables, &["--max-runs", "5", "--window", "5h"])
            .contains("at most 5 reruns within 5h")
    );
    // Empty is as good as unset.
    assert!(said(&[("AGAIN_MAX_RUNS", "")], &[]).contains("at most 3 reruns"));
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

#[test]
fn an_environment_that_is_wrong() {
    let scratch = Scratch::new();
    for (name, value) in [
        ("AGAIN_JITTER", "soon"),
        ("AGAIN_MAX_JITTER", "-1"),
        ("AGAIN_MAX_RUNS", "many"),
        ("AGAIN_WINDOW", "1.5"),
        ("AGAIN_ON_CAP", "explode"),
        ("AGAIN_SLOTS", "8"),
        ("AGAIN_SAVE_ENVIRONMENT", "perhaps"),
        ("AGAIN_SCOPE", "always"),
        ("AGAIN_CONTAINER", "ends"),
        ("AGAIN_HOLD_BEFORE_SHUTDOWN", "soon"),
        ("AGAIN_STATE_DIR", "relative"),
        ("AGAIN_LOG_DIR", "relative"),
        ("AGAIN_CONFIG", &scratch.at("none/again.toml")),
    ] {
        let mut command = scratch.command(scratch.path("bin/again"));
        command.env(name, value).args(["run", "--", "/bin/true"]);
        let done = answer(&mut command);
        // A path is known by itself.
        let named = if value.contains('/') || value == "relative" {
            value
        } else {
            name
        };
        assert_wrong(&done, &[value, named]);
    }
    assert!(scratch.waiters().is_empty());
}
