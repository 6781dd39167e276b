use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use again_test_support::{
    Ended, SHORT, Scratch, answer, assert_line, open_to_all, start, wait_until,
};

/// User id of `nobody` on Debian and most others.
const NOBODY: u32 = 65534;

/// Checks that a command failed with a one-line error that contains `named`, such as a path, with
/// exit status 1, nothing pending and no process left.
#[track_caller]
pub fn assert_refused(scratch: &Scratch, case: &str, done: &Ended, named: &str) {
    assert!(!named.is_empty());
    assert_eq!(done.code, Some(1), "{case}: {done:?}");
    assert_eq!(done.out, "", "{case}");
    let line = done
        .err
        .strip_suffix('\n')
        .unwrap_or_else(|| panic!("{case}: {done:?}"));
    assert!(!line.contains('\n'), "{case}: more than one line: {line}");
    assert!(line.starts_with("again: error: "), "{case}: {line}");
    assert!(
        line.contains(named),
        "{case}: does not name {named}: {line}"
    );
    println!("{case}: {line}");
    // A waiter that was started before something failed finds that it is not on record, and ends.
    wait_until(&format!("{case}: no process to be left"), SHORT, || {
        scratch.waiters().is_empty()
    });
}

pub const REQUEST: [&str; 5] = ["run", "--delta", "1h", "--", "/bin/true"];

pub fn request(scratch: &Scratch) -> Ended {
    scratch.again(&REQUEST)
}

/// Prepares `again` as another user.
fn as_nobody(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = scratch.as_nobody(scratch.path("bin/again"));
    command.args(words);
    command
}

#[test]
fn a_state_directory_that_cannot_be_trusted() {
    let scratch = Scratch::new();
    let state = scratch.path("state");
    let cases: [(&str, &dyn Fn()); 6] = [
        ("a link", &|| {
            fs::create_dir(scratch.path("elsewhere")).expect("created");
            symlink(scratch.path("elsewhere"), &state).expect("linked");
        }),
        ("a file", &|| fs::write(&state, "").expect("written")),
        ("others may write", &|| {
            fs::create_dir(&state).expect("created");
            open_to_all(&state, 0o777);
        }),
        ("the group may write", &|| {
            fs::create_dir(&state).expect("created");
            open_to_all(&state, 0o775);
        }),
        ("another user's", &|| {
            fs::create_dir(&state).expect("created");
            chown(&state, Some(NOBODY), None).expect("given away");
        }),
        ("a dangling link", &|| {
            symlink(scratch.path("nowhere/x"), &state).expect("linked")
        }),
    ];
    for (case, prepare) in cases {
        prepare();
        let done = request(&scratch);
        assert_refused(&scratch, case, &done, &scratch.at("state"));
        let _ = fs::remove_dir_all(&state).or_else(|_| fs::remove_file(&state));
    }
    assert_eq!(
        fs::read_dir(scratch.path("elsewhere"))
            .expect("there")
            .count(),
        0,
        "nothing was written through the link"
    );
    assert!(!scratch.path("nowhere").exists());
    // In a run the result is the same, and the run receives the error.
    symlink(scratch.path("elsewhere"), &state).expect("linked");
    start(&mut scratch.apply("site", "ask('run')")).finish();
    let asked = &scratch.runs("site")[0].asked()[0];
    assert_eq!(asked.code, 1);
    assert!(asked.output.starts_with("again: error: "), "{asked:?}");
    fs::remove_file(&state).expect("removed");
    scratch.assert_nothing_left();
}

/// The same for paths below the state directory.
#[test]
fn a_part_of_the_state_directory_that_cannot_be_trusted() {
    for part in [
        "targets",
        "targets/ID",
        "targets/ID/orders",
        "targets/ID/lock",
        "targets/ID/state.json",
        "reruns",
    ] {
        for kind in ["link", "fifo", "open"] {
            let scratch = Scratch::new();
            scratch.again_well(&REQUEST);
            scratch.again_well(&["stop"]);
            let id = scratch.id();
            let path = scratch.path("state").join(part.replace("ID", &id));
            let is_directory = path.is_dir();
            let aside = scratch.path("aside");
            match kind {
                "open" if is_directory => open_to_all(&path, 0o777),
                // In a directory of root's, a file's own mode makes no difference.
                "open" => continue,
                _ => {
                    fs::rename(&path, &aside).expect("moved");
                    match kind {
                        "link" => symlink(&aside, &path).expect("linked"),
                        _ => {
                            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("made")
                        }
                    }
                }
            }
            let done = request(&scratch);
            let case = format!("{part} is {kind}");
            // An invalid record is set aside, and never stops a request; a lock on a fifo is as
            // good as any.
            if done.code == Some(0) {
                assert!(
                    part.ends_with("state.json") || (kind == "fifo" && part.ends_with("lock")),
                    "{case}: {done:?}"
                );
                assert_eq!(scratch.timers().len(), 1, "{case}");
                scratch.again_well(&["stop"]);
            } else {
                assert_refused(&scratch, &case, &done, path.to_str().expect("a path"));
            }
        }
    }
}

/// Others can write to a directory above a record: no verb acts on the record, and it is kept.
#[test]
fn a_record_that_others_could_have_put_there() {
    let scratch = Scratch::new();
    scratch.again_well(&REQUEST);
    let waiter = scratch.waiter("again");
    waiter.wait_until_asleep();
    let id = scratch.id();
    let mut refused = 0;
    for (part, mode) in [
        ("", 0o755),
        ("targets", 0o755),
        ("targets/ID", 0o755),
        ("targets/ID/orders", 0o700),
    ] {
        let path = scratch.path(format!("state/{}", part.replace("ID", &id)).trim_end_matches('/'));
        open_to_all(&path, 0o775);
        for verb in [&["stop"][..], &["stop", "--run"], &["now"], &["resume"]] {
            let done = scratch.again(verb);
            let case = format!("{verb:?} with {} open: {done:?}", path.display());
            assert_eq!(done.code, Some(1), "{case}");
            let said = format!("{} can be written to by others (mode 775)", path.display());
            assert!(done.err.contains(&said), "{case}");
            refused += 1;
        }
        open_to_all(&path, mode);
        assert!(waiter.alive());
    }
    println!("{refused} refused");
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Other kinds of files replace the history: the request is granted all the same, and reports the
/// error.
#[test]
fn a_history_that_cannot_be_written() {
    for kind in ["link", "fifo", "directory"] {
        let scratch = Scratch::new();
        scratch.again_well(&REQUEST);
        scratch.again_well(&["stop"]);
        let history = scratch.path("state/history.jsonl");
        fs::remove_file(&history).expect("removed");
        scratch.write("precious", "precious");
        match kind {
            "link" => symlink(scratch.path("precious"), &history).expect("linked"),
            "fifo" => nix::unistd::mkfifo(&history, nix::sys::stat::Mode::S_IRWXU).expect("made"),
            _ => fs::create_dir(&history).expect("made"),
        }
        let done = request(&scratch);
        assert_eq!(done.code, Some(0), "{kind}: {done:?}");
        // Data written to a fifo is lost silently.
        assert!(
            done.err.contains("history.jsonl") || kind == "fifo",
            "{kind}: {done:?}"
        );
        assert_eq!(
            fs::read_to_string(scratch.path("precious")).expect("there"),
            "precious"
        );
        scratch.again_well(&["stop"]);
        let _ = fs::remove_file(&history).or_else(|_| fs::remove_dir(&history));
        scratch.assert_nothing_left();
    }
}

/// A damaged record is never read as valid.
#[test]
fn damaged_records_never_stop_a_request() {
    let damages: [&[u8]; 8] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{\"version\":1}",
        b"\xff\xfe\x00",
        b"{\"version\":1,\"id\":\"0000000000000000\"}",
        &[b'x'; 70_000],
    ];
    for damage in damages {
        let scratch = Scratch::new();
        scratch.again_well(&REQUEST);
        scratch.again_well(&["stop"]);
        let record = scratch.record_of(&scratch.id());
        fs::write(&record, damage).expect("damaged");
        let status = scratch.again(&["status"]);
        assert_eq!(status.code, Some(1), "{status:?}");
        assert!(
            status.out.starts_with("something may be pending: "),
            "{status:?}"
        );
        assert!(
            status.err.contains(record.to_str().expect("a path")),
            "{status:?}"
        );
        let done = request(&scratch);
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(
            done.err.contains("again: warning: ") && done.err.contains("rebuilt from the history"),
            "{done:?}"
        );
        assert_eq!(scratch.timers().len(), 1);
        let aside = fs::read_dir(record.parent().expect("a parent"))
            .expect("there")
            .flatten();
        let aside = aside
            .filter(|entry| entry.file_name().to_string_lossy().contains("unreadable"))
            .count();
        assert_eq!(aside, 1, "set aside, not thrown away");
        scratch.again_well(&["stop"]);
    }
    println!("{} kinds of damage", damages.len());
}

/// Whatever happens to a record, the cap holds because of the history, and neither a request nor
/// `stop` fails.
#[test]
fn a_record_that_is_missing_or_no_file_does_not_open_the_cap() {
    type Damage = dyn Fn(&std::path::Path);
    let damages: [(&str, &Damage); 5] = [
        ("missing", &|_| {}),
        ("a directory", &|record| {
            fs::create_dir(record).expect("created");
            fs::write(record.join("inside"), "precious").expect("written");
        }),
        ("a dangling link", &|record| {
            symlink("/nowhere/x", record).expect("linked")
        }),
        ("a fifo", &|record| {
            nix::unistd::mkfifo(record, nix::sys::stat::Mode::S_IRWXU).expect("made");
        }),
        ("a socket", &|record| {
            std::os::unix::net::UnixListener::bind(record).expect("bound");
        }),
    ];
    for (case, damage) in damages {
        let scratch = Scratch::new();
        scratch.settings("max_runs = 1");
        let request = ["run", "--", "/bin/true"];
        scratch.again_well(&request);
        scratch.wait_until_settled();
        let record = scratch.record_of(&scratch.id());
        let ruin = || {
            fs::remove_file(&record).expect("removed");
            damage(&record);
        };
        ruin();
        for verb in [&["stop"][..], &["now"], &["resume"]] {
            let done = scratch.again(verb);
            assert_eq!(done.code, Some(0), "{case}, {verb:?}: {done:?}");
        }
        let done = scratch.again(&request);
        assert_eq!(done.code, Some(1), "{case}: {done:?}");
        assert!(
            done.err.contains("the cap is reached: 1 of at most 1"),
            "{case}: {done:?}"
        );
        ruin();
        let done = scratch.again(&request);
        assert!(done.err.contains("the cap is reached"), "{case}: {done:?}");
        assert!(
            done.err.contains("rebuilt from the history"),
            "{case}: {done:?}"
        );
        // A reset is recorded in the history too.
        scratch.again_well(&["reset"]);
        ruin();
        scratch.again_well(&request);
        scratch.wait_until_settled();
        let kept = fs::read_dir(record.parent().expect("a parent"))
            .expect("there")
            .flatten();
        let kept = kept.filter(|entry| entry.file_name().to_string_lossy().contains("unreadable"));
        assert_eq!(
            kept.count(),
            if case == "missing" { 0 } else { 3 },
            "{case}"
        );
        scratch.assert_nothing_left();
    }
}

/// The record of a running rerun is lost. The next request creates it anew, and its rerun waits for
/// the running one.
#[test]
fn a_rerun_under_way_is_not_lost_with_its_record() {
    for is_missing in [true, false] {
        let scratch = Scratch::new();
        let manifest = "ask('run') unless NTH == 2 or NTH == 4\nhold('go') if NTH == 2";
        start(&mut scratch.apply("site", manifest)).finish();
        wait_until("the rerun", SHORT, || scratch.runs("site").len() == 2);
        let before = scratch.record()["running"].clone();
        let record = scratch.record_of(&scratch.id());
        fs::remove_file(&record).expect("removed");
        if !is_missing {
            fs::create_dir(&record).expect("created");
        }
        start(&mut scratch.apply("site", manifest)).finish();
        wait_until("the next one to be due", SHORT, || {
            let mut waiters = scratch.waiters().into_iter();
            scratch.runs("site").len() > 3
                || waiters.any(|one| one.title().contains("waits for the run with pid"))
        });
        assert_eq!(scratch.runs("site").len(), 3, "no two at once");
        assert_eq!(scratch.record()["running"], before);
        scratch.release("go");
        let runs = scratch.wait_for_runs("site", 4);
        assert!(runs[3].started() > runs[1].ended().expect("ended"));
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
}

/// A record is damaged while its waiter waits: nothing is started that could not be recorded, and
/// the log says so.
#[test]
fn waiter_gives_up_when_its_record_is_damaged() {
    for damage in [&b"{"[..], b""] {
        damaged_under_a_waiter(damage);
    }
}

fn damaged_under_a_waiter(damage: &[u8]) {
    let scratch = Scratch::new();
    let apply = scratch.apply("site", "ask('run') if NTH == 1\nhold('go') if NTH == 1");
    let mut apply = scratch.without_system_log(&apply);
    scratch.with_output(&mut apply);
    let run = start(&mut apply);
    scratch.wait_for_state("again", "waiting for the run");
    let waiter = scratch.waiter("again");
    waiter.wait_until_asleep();
    let id = scratch.id();
    fs::write(scratch.record_of(&id), damage).expect("damaged");
    scratch.release("go");
    run.finish();
    waiter.wait_until_gone(SHORT);
    assert_eq!(scratch.runs("site").len(), 1, "no rerun");
    // The message is in the log that operators read.
    let log = fs::read_to_string(scratch.path("state/again.log")).expect("a log");
    let said = log
        .lines()
        .find(|line| line.contains("a waiter has to give up: timer 'again' is lost: "))
        .unwrap_or_else(|| panic!("{log}"));
    println!("{damage:?}: {said}");
    assert!(said.contains(&format!("target={id}")), "{said}");
}

#[test]
fn a_directory_that_this_user_cannot_write_to() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("state")).expect("created");
    open_to_all(&scratch.path("state"), 0o755);
    let done = answer(&mut as_nobody(&scratch, &REQUEST));
    assert_refused(&scratch, "root's", &done, &scratch.at("state"));
    // The directory would have to be created where nothing can be created.
    let below = scratch.at("work/below");
    let done = answer(&mut as_nobody(
        &scratch,
        &[&REQUEST[..1], &["--state-dir", &below], &REQUEST[1..]].concat(),
    ));
    assert_refused(&scratch, "below root's", &done, &below);
    scratch.assert_nothing_left();
    // In a directory of its own, it works as that user.
    fs::create_dir(scratch.path("own")).expect("created");
    chown(scratch.path("own"), Some(NOBODY), Some(NOBODY)).expect("given away");
    let own = scratch.at("own/state");
    let done = answer(&mut as_nobody(
        &scratch,
        &[&REQUEST[..1], &["--state-dir", &own], &REQUEST[1..]].concat(),
    ));
    assert_eq!(done.code, Some(0), "{done:?}");
    let done = answer(&mut as_nobody(&scratch, &["stop", "--state-dir", &own]));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(scratch.waiters().is_empty());
}

/// If the log cannot be written, the rerun starts all the same.
#[test]
fn a_log_that_cannot_be_written() {
    let scratch = Scratch::new();
    scratch.write("logs", "in the way");
    start(&mut scratch.apply("site", "ask('run') if NTH == 1\nputs 'x' * 100_000")).finish();
    let runs = scratch.wait_for_runs("site", 2);
    let out: Vec<_> = runs[1]
        .descriptors()
        .into_iter()
        .filter(|(fd, _)| *fd <= 2)
        .collect();
    assert!(out.iter().all(|(_, to)| to == "/dev/null"), "{out:?}");
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// Started without some or all of the standard descriptors: no file of `again` takes their numbers.
#[test]
fn standard_descriptors_that_are_closed() {
    for closed in ["0", "1", "2", "01", "02", "12", "012"] {
        let scratch = Scratch::new();
        let mut command = scratch.command(scratch.path("bin/helper"));
        command
            .args(["closed", closed, "--", &scratch.at("bin/again")])
            .args(REQUEST);
        let done = answer(&mut command);
        assert_eq!(done.code, Some(0), "{closed}: {done:?}");
        let waiter = scratch.waiter("again");
        wait_until("the waiter to wait", SHORT, || {
            waiter.title().contains("waits until")
        });
        for (fd, to) in waiter.descriptors() {
            assert_eq!(fd <= 2, to == "/dev/null", "{closed}: {fd} is {to}");
        }
        let mut command = scratch.command(scratch.path("bin/helper"));
        command.args(["closed", closed, "--", &scratch.at("bin/again"), "status"]);
        assert_eq!(answer(&mut command).code, Some(0), "{closed}");
        for record in scratch.records("state") {
            assert_eq!(record["version"], 1, "{record:#}");
        }
        scratch.again_well(&["stop"]);
        scratch.assert_nothing_left();
        // A whole cycle, in a run that has closed them itself.
        scratch.write("work/site.pp", "ask('run', bare: true) if NTH == 1");
        let mut command = scratch.command(scratch.path("bin/helper"));
        command
            .args(["closed", closed, "--"])
            .args(scratch.puppet())
            .args(["apply", "site.pp"]);
        start(&mut command).finish();
        let runs = scratch.wait_for_runs("site", 2);
        let log = runs[1]
            .descriptors()
            .into_iter()
            .filter(|(fd, _)| (1..=2).contains(fd));
        assert!(
            log.map(|(_, to)| to)
                .all(|to| to.starts_with(&scratch.at("logs/"))),
            "{closed}"
        );
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
}

/// Few descriptors, and a limit on file sizes: the limits of the run hold for the requester as
/// well.
#[test]
fn limits_in_the_way_of_the_requester() {
    let scratch = Scratch::new();
    let limited = |resource: u32, limit: u64| {
        let mut command = scratch.command(scratch.path("bin/again"));
        command.args(REQUEST);
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let limit = libc::rlimit {
                    rlim_cur: limit,
                    rlim_max: limit,
                };
                match libc::setrlimit(resource as _, &raw const limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        answer(&mut command)
    };
    let (mut granted, mut refused, mut wrong) = (0, 0, Vec::new());
    let mut cases: Vec<(u32, u64)> = (4..=18).map(|limit| (libc::RLIMIT_NOFILE, limit)).collect();
    cases.extend([0, 1, 100, 1000, 3000, 100_000].map(|limit| (libc::RLIMIT_FSIZE, limit)));
    for (resource, limit) in cases {
        let case = format!("limit {resource} is {limit}");
        let done = limited(resource, limit);
        if done.code == Some(0) {
            granted += 1;
            assert_eq!(assert_line(&done.out), "scheduled", "{case}");
            assert_eq!(
                (scratch.timers().len(), scratch.waiters().len()),
                (1, 1),
                "{case}"
            );
            scratch.again_well(&["stop"]);
        } else {
            refused += 1;
            if done.code != Some(1) || done.err.contains("without a word") {
                wrong.push(format!("{case}: {done:?}"));
            } else {
                // The error number, because each C library has its own words.
                let why = if resource == libc::RLIMIT_NOFILE {
                    libc::EMFILE
                } else {
                    libc::EFBIG
                };
                let why = format!("(os error {why})");
                assert_refused(&scratch, &case, &done, &why);
            }
        }
        assert!(
            scratch.waiters().is_empty() && scratch.timers().is_empty(),
            "{case}"
        );
        assert_eq!(scratch.orders("state"), Vec::<String>::new(), "{case}");
    }
    scratch.again_well(&REQUEST);
    scratch.again_well(&["stop"]);
    assert!(wrong.is_empty(), "no clear error: {wrong:#?}");
    println!("{refused} refused, {granted} granted");
    assert!(refused > 2 && granted > 2);
}

/// The end of a rerun is recorded once, even by a command that can write the history and not the
/// record.
#[test]
fn an_end_is_told_once() {
    let scratch = Scratch::new();
    scratch.again_well(&["run", "--", "/bin/true"]);
    wait_until("the rerun", SHORT, || scratch.told("started").len() == 1);
    let mut record = scratch.records("state").remove(0);
    let path = scratch.record_of(record["id"].as_str().expect("an id"));
    let pid = record["running"][0]["process"]["pid"]
        .as_i64()
        .expect("nobody has looked yet");
    wait_until("its end", SHORT, || {
        again_test_support::Process::now(pid as i32).is_none()
    });
    // Longer than the limit, within which the history fits.
    record["refused"] = serde_json::json!({"at": record["starts"][0]["at"], "timer": "x", "kind": "cap", "reason": "x".repeat(4000)});
    fs::write(path, record.to_string()).expect("written");
    for _ in 0..3 {
        let done = scratch
            .command("prlimit")
            .args(["--fsize=3000", "--"])
            .arg(scratch.path("bin/again"))
            .arg("status")
            .output()
            .expect("prlimit");
        assert_eq!(done.status.code(), Some(3), "{done:?}");
    }
    assert_eq!(scratch.told("ended").len(), 0, "it is on no record yet");
    scratch.again(&["status"]);
    assert_eq!(scratch.told("ended").len(), 1);
}

/// Modes of written files, whatever the umask: all users may read what is pending, only the owner
/// what would be run.
#[test]
fn what_is_public_and_what_is_not() {
    for mask in [0o022, 0o077, 0o777, 0] {
        let scratch = Scratch::new();
        let mut command = scratch.command("/bin/sh");
        command
            .args([
                "-c",
                &format!("umask {mask:03o}; exec \"$@\""),
                "sh",
                &scratch.at("bin/again"),
            ])
            .args(REQUEST);
        let done = answer(&mut command);
        assert_eq!(done.code, Some(0), "{mask:o}: {done:?}");
        let mode = |path: &str| {
            let path = scratch.path("state").join(path);
            fs::metadata(&path)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
                .permissions()
                .mode()
                & 0o7777
        };
        let id = scratch.id();
        for (path, expected) in [
            (String::new(), 0o755),
            ("targets".to_owned(), 0o755),
            (format!("targets/{id}"), 0o755),
            (format!("targets/{id}/state.json"), 0o644),
            (format!("targets/{id}/orders"), 0o700),
            (
                format!("targets/{id}/orders/{}", scratch.orders("state")[0]),
                0o600,
            ),
            ("history.jsonl".to_owned(), 0o644),
        ] {
            assert_eq!(
                mode(&path),
                expected,
                "umask {mask:o}, {path}: {:o}",
                mode(&path)
            );
        }
        scratch.again_well(&["stop"]);
        scratch.assert_nothing_left();
    }
}
