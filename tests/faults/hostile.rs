use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;

use again_test_support::{
    Ended, Permission, Process, SHORT, Scratch, answer, copy_program, open_to_all, permits, start,
    timed, wait_for, wait_until, write_program,
};

/// User id of `nobody` on Debian and most others.
const NOBODY: u32 = 65534;

/// Wraps a command so that another user runs it.
pub fn as_nobody(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = scratch.as_nobody(words[0]);
    command.args(&words[1..]);
    command
}

/// Process of the neighbour, ended with the test.
struct Neighbour(Child);

impl Neighbour {
    fn new(scratch: &Scratch, words: &[&str]) -> Neighbour {
        Neighbour(
            as_nobody(scratch, words)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("started"),
        )
    }
    fn process(&self) -> Process {
        Process::now(self.0.id() as i32).expect("alive")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fails if the function took as long as a process that waits for another one.
fn at_once<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let (done, took) = timed(act);
    assert!(took < Duration::from_secs(25), "{what} took {took:?}");
    done
}

pub fn directory_of_nobody(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.path(name);
    fs::create_dir(&path).expect("created");
    chown(&path, Some(NOBODY), Some(NOBODY)).expect("given away");
    path
}

/// Returns every file below, with owner, group, mode, size and time of change.
fn listing(at: &Path) -> BTreeMap<PathBuf, (u32, u32, u64, i64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![at.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).expect("there");
        if meta.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .expect("readable")
                    .flatten()
                    .map(|entry| entry.path()),
            );
        }
        found.insert(
            path,
            (meta.uid(), meta.mode(), meta.len(), meta.ctime_nsec()),
        );
    }
    found
}

/// Arguments, environment and output of a run contain secrets. None of them is in a file that the
/// neighbour can read, nor in what /proc shows of a waiter.
#[test]
fn secrets_are_the_owners() {
    let scratch = Scratch::new();
    let secret = "hunter2-the-secret";
    scratch.again_well(&[
        "run",
        "--delta",
        "0",
        "--",
        "/bin/sh",
        "-c",
        &format!("echo {secret}"),
    ]);
    scratch.wait_until_settled();
    let mut command = scratch.command(scratch.path("bin/again"));
    command
        .env("PASSWORD", secret)
        .args(["run", "--delta", "1h", "--", "/bin/echo", secret]);
    assert_eq!(answer(&mut command).code, Some(0));
    let waiter = scratch.waiter("again");
    let look = format!(
        "grep -rl {secret} {} {} /proc/{}/ 2>/dev/null",
        scratch.at("state"),
        scratch.at("logs"),
        waiter.pid
    );
    // Root finds it, so the search works.
    let found = answer(
        scratch
            .command("sh")
            .args(["-c", &look.replace("/proc/", "/nowhere/")]),
    );
    assert!(found.out.lines().count() >= 2, "{found:?}");
    let found = answer(&mut as_nobody(&scratch, &["sh", "-c", &look]));
    assert_eq!(found.out, "", "readable by others");
    // The neighbour can see the public part.
    let status = answer(&mut as_nobody(
        &scratch,
        &[&scratch.at("bin/again"), "status", "--json"],
    ));
    let status: Value = serde_json::from_str(&status.out).expect("JSON");
    assert_eq!(again_test_support::timers(&status).len(), 1);
    assert!(
        status["targets"]
            .as_array()
            .expect("targets")
            .iter()
            .all(|target| target["command"].is_null())
    );
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Any user may read the history, and so lock it: no process waits for that lock, not even when the
/// file is to be rotated.
#[test]
fn a_lock_on_the_history() {
    let scratch = Scratch::new();
    scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
    let history = scratch.path("state/history.jsonl");
    let mut text = fs::read(&history).expect("there");
    while text.len() < 1_100_000 {
        text.extend_from_within(..text.len());
    }
    fs::write(&history, text).expect("grown");
    let held = Neighbour::new(
        &scratch,
        &[
            "flock",
            "--no-fork",
            "--exclusive",
            &scratch.at("state/history.jsonl"),
            "sleep",
            "60",
        ],
    );
    wait_until("the neighbour's lock", SHORT, || {
        fs::read_to_string("/proc/locks")
            .expect("locks")
            .contains(&format!(" {} ", held.0.id()))
    });
    at_once("a request", || {
        scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"])
    });
    at_once("stop", || scratch.again_well(&["stop"]));
    assert!(
        scratch.path("state/history.1.jsonl").exists(),
        "it was rotated"
    );
    scratch.assert_nothing_left();
}

/// Puppet's own files may be in directories of the user puppet, and replaced by a fifo, a device,
/// or something huge.
#[test]
fn puppets_files_are_not_what_they_seem() {
    let scratch = Scratch::new();
    let theirs = directory_of_nobody(&scratch, "theirs");
    let huge = theirs.join("huge");
    fs::File::create(&huge)
        .expect("created")
        .set_len(1 << 40)
        .expect("grown");
    mkfifo(&theirs.join("fifo"), Mode::S_IRWXU).expect("a fifo");
    symlink("/dev/zero", theirs.join("device")).expect("linked");
    symlink("loop", theirs.join("loop")).expect("linked");
    for kind in ["fifo", "device", "huge", "loop"] {
        let file = theirs.join(kind);
        let file = file.to_str().expect("plain");
        let words = ["--lastrunfile", "--agent_catalog_run_lockfile", "--pidfile"]
            .map(|name| format!("'{name}', '{file}'"));
        let words = words
            .join(", ")
            .replace("agent_catalog_run_lockfile", "agent-catalog-run-lockfile");
        let name = format!("site-{kind}");
        let mut run = scratch.agent(&name, &format!("ask('run', {words}) if NTH == 1"));
        // Puppet's configuration is one of them too; a rerun cannot read another kind of file a
        // second time.
        if ["huge", "loop"].contains(&kind) {
            run.args(["--config", file]);
        } else {
            let name = format!("refused-{kind}");
            let mut run = scratch.agent(&name, "ask('run') if NTH == 1");
            run.args(["--config", file]);
            at_once(kind, || start(&mut run).wait());
            let asked = &scratch.runs(&name)[0].asked()[0];
            assert_eq!(asked.code, 1, "{kind}: {asked:?}");
            assert!(asked.output.contains("cannot be read again"), "{asked:?}");
        }
        at_once(kind, || start(&mut run).wait());
        assert_eq!(
            scratch.runs(&name)[0].asked()[0].code,
            0,
            "{kind}: {:?}",
            scratch.runs(&name)[0].asked()
        );
        scratch.wait_for_runs(&name, 2);
        at_once(kind, || scratch.wait_until_settled());
        let evidence = &scratch.status()["targets"];
        assert!(
            evidence.to_string().contains("cannot be read"),
            "{kind}: {evidence:#}"
        );
    }
    scratch.assert_nothing_left();
}

/// A lock file names a process of the neighbour whose name is puppet: no waiter waits for it. A pid
/// file does the same: the process is not taken for the agent.
#[test]
fn a_process_that_merely_looks_like_puppet() {
    let scratch = Scratch::new();
    let script = scratch.write("work/puppet", "sleep 60\n");
    open_to_all(&script, 0o755);
    let ruby = [
        "ruby",
        "--disable-gems",
        script.to_str().expect("plain"),
        "agent",
        "--no-daemonize",
    ];
    let other = Neighbour::new(&scratch, &ruby);
    let process = wait_for("the neighbour's ruby", SHORT, || {
        let command = other.process().raw_command();
        command.starts_with(b"ruby").then(|| other.process())
    });
    let lock = scratch.write("lock", &process.pid.to_string());
    let ask = format!(
        "ask('run', '--agent-catalog-run-lockfile', '{}') if NTH == 1",
        lock.display()
    );
    at_once("the rerun", || {
        start(&mut scratch.agent("site", &ask)).finish();
        scratch.wait_for_runs("site", 2);
    });
    scratch.wait_until_settled();
    // The process does not pass for the service of a daemon that was stopped either, for which
    // there must be no rerun. With the pid file of a puppet of root's own there is one.
    let mut ours = scratch.command("ruby");
    let ours = ours.args(["--disable-gems", &scratch.at("work/puppet"), "agent"]);
    let ours = Neighbour(ours.args(["--no-daemonize"]).spawn().expect("started"));
    wait_until("our ruby", SHORT, || {
        ours.process().raw_command().starts_with(b"ruby")
    });
    for (name, service, runs) in [("stopped", process, 1), ("restarted", ours.process(), 2)] {
        let pidfile = scratch.write(name, &service.pid.to_string());
        // The daemon ends before its run does.
        let manifest = format!(
            "exit if ARGV.include?('--onetime')
             fork do
               $0 = 'puppet agent: applying configuration'
               ask('run', '--pidfile', '{}')
               hold('{name}-run')
               exit!
             end
             hold('{name}-daemon')",
            pidfile.display()
        );
        scratch.write(&format!("work/{name}.pp"), &manifest);
        let words = ["agent", "--no-daemonize", "--certname", name].map(OsString::from);
        let daemon = start(&mut scratch.puppet_command(&words));
        scratch.wait_for_state("again", "waiting for the run");
        scratch.release(&format!("{name}-daemon"));
        daemon.finish();
        scratch.release(&format!("{name}-run"));
        at_once("its end", || scratch.wait_until_settled());
        assert_eq!(
            scratch.runs(name).len(),
            runs,
            "{name}: {:#}",
            scratch.status()
        );
    }
    let stopped = ("again".to_owned(), "stopped with the service".to_owned());
    assert_eq!(scratch.told("stopped"), [stopped]);
    assert!(process.alive(), "and it is left alone");
    drop(ours);
    scratch.assert_nothing_left();
    drop(other);
}

/// Root works on a directory whose owner has forged the records: root signals, writes or removes
/// nothing because of them.
#[test]
fn records_that_the_neighbour_made_up() {
    let scratch = Scratch::new();
    directory_of_nobody(&scratch, "theirs");
    let state = scratch.at("theirs/state");
    let words = [
        &scratch.at("bin/again"),
        "run",
        "--state-dir",
        &state,
        "--delta",
        "1h",
        "--",
        "/bin/true",
    ];
    let asked = answer(&mut as_nobody(&scratch, &words));
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let victim = scratch.command("sleep").arg("60").spawn().expect("started");
    let mut victim = Neighbour(victim);
    let record = fs::read_dir(scratch.path("theirs/state/targets"))
        .expect("there")
        .flatten()
        .next()
        .expect("one")
        .path();
    let record = record.join("state.json");
    let mut made_up: Value =
        serde_json::from_slice(&fs::read(&record).expect("read")).expect("JSON");
    let waiter = made_up["timers"]["again"]["waiter"]["pid"]
        .as_i64()
        .expect("a pid");
    let waiter = Process::now(waiter as i32).expect("the waiter");
    wait_until("the waiter to sleep", SHORT, || {
        waiter.title().contains("waits until")
    });
    let named = serde_json::json!({"pid": victim.process().pid, "start": victim.process().start});
    made_up["timers"]["again"]["waiter"] = named.clone();
    let moment = made_up["timers"]["again"]["requested"].clone();
    made_up["running"] = serde_json::json!([{"process": named, "token": "t", "chain": "\u{1b}[2J", "run": 2,
        "timer": "again", "started": moment, "log": "/etc/passwd", "lastrunfile": "/dev/zero"}]);
    made_up["starts"] = serde_json::json!([{"at": moment, "chain": "c", "run": 2}]);
    made_up["leaving"] = serde_json::json!([{"token": "../../../../victim", "waiter": named, "boot": moment["boot"]}]);
    fs::write(&record, made_up.to_string()).expect("made up");
    let driver = serde_json::json!({"version": 1, "token": "0123456789abcdef", "process": named, "boot": moment["boot"], "uid": 0,
        "target": "t", "chain": "c", "began": moment, "max_runs": 10, "run": 1, "child": null, "timers": {"again": 0}});
    for (token, process) in [
        ("0123456789abcdef", &named),
        ("fedcba9876543210", &Value::Null),
    ] {
        let mut driver = driver.clone();
        driver["token"] = token.into();
        if process.is_null() {
            // A dead driver, to be cleaned up.
            driver["process"]["start"] = 1.into();
        }
        fs::create_dir_all(scratch.path("theirs/state/drivers")).expect("made");
        fs::write(
            scratch.path(&format!("theirs/state/drivers/{token}.json")),
            driver.to_string(),
        )
        .expect("made up");
    }
    // A driver that seems to have started this very test, and would take its request.
    let (me, above) = (std::process::id() as i32, nix::unistd::getppid().as_raw());
    let [me, above] = [me, above].map(|pid| Process::now(pid).expect("alive"));
    let mut taker = driver.clone();
    taker["token"] = "aaaaaaaaaaaaaaaa".into();
    taker["process"] = serde_json::json!({"pid": above.pid, "start": above.start});
    taker["child"] = serde_json::json!({"pid": me.pid, "start": me.start});
    let inbox = scratch.path("theirs/state/drivers/aaaaaaaaaaaaaaaa");
    fs::create_dir(&inbox).expect("made");
    fs::write(inbox.with_extension("json"), taker.to_string()).expect("made up");
    let lock = fs::File::open(&inbox).expect("opened");
    lock.lock().expect("locked");
    fs::write(
        scratch.path("theirs/state/disabled"),
        "{\"reason\":\"theirs\",\"since\":1}",
    )
    .expect("made up");
    let before = listing(&scratch.path("theirs"));
    for verb in [
        &["stop", "--run"][..],
        &["run"],
        &["now"],
        &["resume"],
        &["reset"],
        &["disable"],
        &["enable"],
        &["run", "--", "/bin/true"],
    ] {
        let done = at_once("it", || {
            scratch.again(&[&["--state-dir", &state], verb].concat())
        });
        let refused = done.code == Some(1) && done.err.contains("belongs to nobody");
        assert!(refused, "{verb:?}: {done:?}");
    }
    let shown: Ended = at_once("status", || {
        scratch.again(&["status", "--state-dir", &state])
    });
    assert!(!shown.out.contains('\u{1b}'), "{shown:?}");
    assert!(
        victim.0.try_wait().expect("asked").is_none(),
        "the victim was signalled"
    );
    assert_eq!(
        listing(&scratch.path("theirs")),
        before,
        "something was written or removed"
    );
    waiter.end();
}

/// A state or log directory below one that the neighbour could rename: after the check, the path
/// may lead elsewhere.
#[test]
fn a_directory_that_the_neighbour_can_replace() {
    let scratch = Scratch::new();
    let theirs = directory_of_nobody(&scratch, "theirs");
    fs::create_dir(theirs.join("ours")).expect("created");
    symlink(scratch.path("work"), theirs.join("link")).expect("linked");
    std::os::unix::fs::lchown(theirs.join("link"), Some(NOBODY), None).expect("given away");
    let open = scratch.path("open");
    fs::create_dir(&open).expect("created");
    open_to_all(&open, 0o777);
    for below in [
        "theirs/ours/state",
        "theirs/state",
        "theirs/link/state",
        "open/state",
    ] {
        let done = scratch.again(&[
            "run",
            "--state-dir",
            &scratch.at(below),
            "--delta",
            "1h",
            "--",
            "/bin/true",
        ]);
        assert_eq!(done.code, Some(1), "{below}: {done:?}");
        assert!(done.err.contains("is not safe"), "{below}: {done:?}");
    }
    // As in /tmp, where no user can rename another's files.
    open_to_all(&open, 0o1777);
    let sticky = scratch.at("open/state");
    scratch.again_well(&[
        "run",
        "--state-dir",
        &sticky,
        "--delta",
        "1h",
        "--",
        "/bin/true",
    ]);
    scratch.again_well(&["stop", "--state-dir", &sticky]);
    // The log directory: the rerun has no log then, and no file there is removed.
    let old = "20200101T000000000-0123abcd-2-00000007.log";
    for n in 0..30 {
        fs::write(
            theirs.join(format!("ours/{}", old.replace("-2", &format!("-{n}")))),
            "",
        )
        .expect("written");
    }
    scratch.again_well(&[
        "run",
        "--log-dir",
        &scratch.at("theirs/ours"),
        "--",
        "/bin/true",
    ]);
    scratch.wait_until_settled();
    assert_eq!(
        fs::read_dir(theirs.join("ours")).expect("there").count(),
        30,
        "nothing came, nothing went"
    );
    scratch.assert_nothing_left();
}

/// A link in the last component is not followed, whatever follows the name: it could be another
/// user's choice of a directory.
#[test]
fn a_link_in_the_place_of_a_directory_however_it_is_written() {
    let scratch = Scratch::new();
    let victim = scratch.path("victim");
    fs::create_dir(&victim).expect("created");
    open_to_all(&victim, 0o700);
    let shared = scratch.path("shared");
    fs::create_dir(&shared).expect("created");
    open_to_all(&shared, 0o1777);
    for name in ["st", "log"] {
        symlink(&victim, shared.join(name)).expect("linked");
        std::os::unix::fs::lchown(shared.join(name), Some(NOBODY), None).expect("given away");
    }
    for ending in ["", "/", "//", "/.", "/./"] {
        let state = format!("{}{ending}", scratch.at("shared/st"));
        for words in [
            &["run", "--state-dir", &state, "--", "/bin/true"][..],
            &["disable", "--state-dir", &state],
        ] {
            let done = scratch.again(words);
            assert_eq!(done.code, Some(1), "{words:?}: {done:?}");
            assert!(
                done.err.contains("is a symbolic link"),
                "{words:?}: {done:?}"
            );
        }
        let logs = format!("{}{ending}", scratch.at("shared/log"));
        scratch.again_well(&["run", "--log-dir", &logs, "--", "/bin/true"]);
        scratch.wait_until_settled();
        let lost = scratch.status()["targets"][0]["last"]["log_lost"].clone();
        let lost = lost.as_str().expect("no log");
        assert!(lost.contains("is a symbolic link"), "{ending:?}: {lost}");
    }
    let meta = fs::metadata(&victim).expect("there");
    assert_eq!(meta.mode() & 0o7777, 0o700, "the mode of what it leads to");
    assert_eq!(
        fs::read_dir(&victim).expect("there").count(),
        0,
        "written through a link"
    );
    scratch.assert_nothing_left();
}

/// A directory writable for a group other than root's alone counts as writable for everybody,
/// except for logs below root's directories: /var/log is root:syslog.
#[test]
fn a_parent_that_a_group_can_write_to() {
    let scratch = Scratch::new();
    let parent = scratch.path("parent");
    fs::create_dir(&parent).expect("created");
    let (state, logs) = (scratch.at("parent/state"), scratch.at("parent/logs"));
    let request = [
        "run",
        "--state-dir",
        &state,
        "--log-dir",
        &logs,
        "--",
        "/bin/true",
    ];
    for (owner, group, mode, is_refused) in [
        (0, NOBODY, 0o775, true),
        (0, NOBODY, 0o2775, true),
        (0, NOBODY, 0o1775, false),
        (0, NOBODY, 0o755, false),
        (0, 0, 0o775, false),
    ] {
        chown(&parent, Some(owner), Some(group)).expect("given");
        open_to_all(&parent, mode);
        let done = scratch.again(&request);
        let case = format!("{owner}:{group} {mode:o}: {done:?}");
        if is_refused {
            assert_eq!(done.code, Some(1), "{case}");
            assert!(
                done.err.contains("is not safe") && done.err.contains("chmod g-w"),
                "{case}"
            );
            assert_eq!(fs::read_dir(&parent).expect("there").count(), 0, "{case}");
        } else {
            assert_eq!(done.code, Some(0), "{case}");
            wait_until("the rerun", SHORT, || {
                scratch.again(&["status", "--state-dir", &state]).code == Some(3)
            });
            fs::remove_dir_all(&state).expect("removed");
            fs::remove_dir_all(&logs).expect("removed");
        }
    }
    open_to_all(&parent, 0o775);
    chown(&parent, Some(0), Some(NOBODY)).expect("given");
    scratch.again_well(&["run", "--log-dir", &logs, "--", "/bin/echo", "said"]);
    scratch.wait_until_settled();
    let log = fs::read_dir(&logs)
        .expect("there")
        .flatten()
        .next()
        .expect("a log")
        .path();
    assert_eq!(fs::read_to_string(&log).expect("there"), "said\n");
    assert_eq!(fs::metadata(&log).expect("there").mode() & 0o777, 0o600);
    scratch.assert_nothing_left();
}

/// While a waiter sleeps, another directory replaces the one with which it was started: a copy with
/// the same timer in it.
#[test]
fn a_directory_that_takes_the_place_of_a_waiters() {
    let scratch = Scratch::new();
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    let command = [
        "run", "--delta", "3", "--", &helper, "stamp", &stamps, "ran",
    ];
    scratch.again_well(&command);
    let waiter = scratch.waiter("again");
    waiter.wait_until_asleep();
    let (state, ours) = (scratch.at("state"), scratch.at("ours"));
    scratch.run("cp", &["-a", &state, &ours]).ok();
    fs::rename(&state, scratch.path("moved")).expect("moved");
    fs::rename(&ours, &state).expect("moved");
    let before = listing(Path::new(&state));
    waiter.wait_until_gone(SHORT);
    assert!(
        scratch.stamps().is_empty(),
        "it ran by another directory's record"
    );
    assert_eq!(listing(Path::new(&state)), before, "it wrote there");
    // The next verb that runs on the new directory gives the timer a new waiter.
    scratch.again_well(&["resume"]);
    wait_until("the rerun", SHORT, || scratch.stamps().len() == 1);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// Kinds of foreign files that a directory may contain, with a name of again's or another one.
const KINDS: [&str; 6] = [
    "hard link",
    "link",
    "fifo",
    "huge file",
    "directory",
    "device",
];

/// Creates a foreign file, the important part of which is in `precious`.
fn plant(scratch: &Scratch, kind: &str, path: &Path) {
    let precious = scratch.path("precious");
    match kind {
        "hard link" => fs::hard_link(precious, path).expect("linked"),
        "link" => symlink(precious, path).expect("linked"),
        "fifo" => mkfifo(path, Mode::S_IRWXU).expect("a fifo"),
        "huge file" => {
            let file = fs::File::create(path).expect("created");
            file.set_len(1 << 40).expect("grown");
        }
        "directory" => {
            fs::create_dir(path).expect("created");
            fs::hard_link(precious, path.join("inside")).expect("linked");
        }
        _ => symlink("/dev/zero", path).expect("linked"),
    }
}

/// Fails if `precious` was written to, or its mode or owner changed.
#[track_caller]
fn assert_precious(scratch: &Scratch, case: &str) {
    let path = scratch.path("precious");
    assert_eq!(
        fs::read_to_string(&path).expect("there"),
        "precious",
        "{case}"
    );
    let meta = fs::metadata(&path).expect("there");
    assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o600, 0), "{case}");
}

fn precious(scratch: &Scratch) {
    let path = scratch.write("precious", "precious");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set");
}

/// Foreign files in every directory, including the log directory, `reruns`, `drivers` and a
/// driver's inbox, with names that are not again's, and names that might be: no process waits for
/// them or follows them, and files with other names are left alone.
#[test]
fn something_foreign_in_every_directory() {
    const FOREIGN: [&[u8]; 4] = [b"precious.log", b"-rf", b"two\nlines", b"\xff\xfe"];
    const LIKE_OURS: [&[u8]; 6] = [
        b"0123456789abcdef",
        b"0123456789abcdef.json",
        b"20260101T000000000-0123abcd-2-00000007.log",
        b"4194303",
        b".4194303.0123456789abcdef",
        b".state.json.0123456789abcdef",
    ];
    let mut planted = 0;
    for round in 0..KINDS.len() {
        let scratch = Scratch::new();
        scratch.settings("keep_logs = 1");
        precious(&scratch);
        let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
        let request = ["run", "--", &helper, "stamp", &stamps, "ran"];
        scratch.again_well(&request);
        scratch.wait_until_settled();
        scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
        let wait = "touch up; until test -e go; do sleep 0.02; done";
        let mut driver = start(
            scratch
                .command(scratch.path("bin/again"))
                .args(["converge", "--", "sh", "-c", wait])
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        );
        wait_until("the driver's run", SHORT, || {
            scratch.path("work/up").exists()
        });
        let mut directories = vec![scratch.path("logs")];
        let mut left = vec![scratch.path("state")];
        while let Some(directory) = left.pop() {
            let entries = fs::read_dir(&directory).expect("readable").flatten();
            left.extend(entries.map(|e| e.path()).filter(|path| path.is_dir()));
            directories.push(directory);
        }
        assert!(directories.len() >= 9, "{directories:?}");
        let inbox = directories.iter().find(|path| {
            path.parent()
                .is_some_and(|parent| parent.ends_with("drivers"))
        });
        let inbox = inbox.expect("a driver's inbox").clone();
        let mut foreign = Vec::new();
        for directory in &directories {
            for (n, name) in FOREIGN.iter().chain(&LIKE_OURS).enumerate() {
                let path = directory.join(std::ffi::OsStr::from_bytes(name));
                plant(&scratch, KINDS[(n + round) % KINDS.len()], &path);
                planted += 1;
                if n < FOREIGN.len() && *directory != inbox {
                    foreign.push(path);
                }
            }
        }
        for words in [
            &["status"][..],
            &["status", "--json"],
            &["history"],
            &["log"],
            &["metrics"],
            &["disable", "why"],
            &["enable"],
            &["resume"],
            &request,
            &["reset"],
            &["stop", "again"],
            &["now"],
        ] {
            let done = at_once("it", || scratch.again(words));
            assert!(
                matches!(done.code, Some(0 | 1 | 3)) && !done.err.contains("panicked"),
                "round {round}, {words:?}: {done:?}"
            );
            if words == request {
                // Before any verb stops it.
                at_once("the rerun", || {
                    wait_until("the rerun", SHORT, || scratch.stamps().len() == 2)
                });
            }
            assert_precious(&scratch, &format!("round {round}, {words:?}"));
        }
        scratch.write("work/go", "");
        at_once("converge", || driver.process.wait_until_gone(SHORT));
        driver.reap();
        scratch.again(&["stop"]);
        wait_until("everything to end", SHORT, || {
            scratch.processes().is_empty()
        });
        assert_precious(&scratch, &format!("round {round}"));
        for path in foreign {
            assert!(
                path.symlink_metadata().is_ok(),
                "{} is gone",
                path.display()
            );
        }
    }
    println!("{planted} files, directories, links, fifos and devices that were not ours");
}

/// A file of again's is a hard link to an important file, as a restored backup may make it: it is
/// not written to. No other user can make such a link in any of again's directories.
#[test]
fn hard_links() {
    let scratch = Scratch::new();
    precious(&scratch);
    scratch.again_well(&["run", "--", "/bin/true"]);
    scratch.wait_until_settled();
    scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
    scratch.again_well(&["stop"]);
    let files: Vec<PathBuf> = listing(&scratch.path("state"))
        .into_keys()
        .chain(listing(&scratch.path("logs")).into_keys())
        .filter(|path| path.is_file())
        .collect();
    assert!(files.len() >= 4, "{files:?}");
    let directories: Vec<PathBuf> = listing(&scratch.path("state"))
        .into_keys()
        .chain([scratch.path("logs")])
        .filter(|path| path.is_dir())
        .collect();
    let theirs = directory_of_nobody(&scratch, "theirs");
    fs::write(theirs.join("bait"), "bait").expect("written");
    chown(theirs.join("bait"), Some(NOBODY), None).expect("given away");
    for directory in &directories {
        let to = directory.join("bait");
        let bait = scratch.at("theirs/bait");
        let done = answer(&mut as_nobody(
            &scratch,
            &["ln", &bait, to.to_str().expect("plain")],
        ));
        assert_ne!(done.code, Some(0), "{}", directory.display());
    }
    let mut wrong = Vec::new();
    for file in &files {
        // The commands before may have removed it.
        let _ = fs::remove_file(file);
        fs::hard_link(scratch.path("precious"), file).expect("linked");
        for words in [
            &["run", "--", "/bin/true"][..],
            &["run", "--delta", "1h", "--", "/bin/true"],
            &["status"],
            &["stop"],
            &["reset"],
        ] {
            let done = at_once("it", || scratch.again(words));
            assert!(matches!(done.code, Some(0 | 1 | 3)), "{words:?}: {done:?}");
        }
        wait_until("everything to end", SHORT, || {
            scratch.processes().is_empty()
        });
        if fs::read_to_string(scratch.path("precious")).expect("there") != "precious" {
            wrong.push(file.file_name().expect("a name").to_owned());
            fs::write(scratch.path("precious"), "precious").expect("restored");
        }
        assert_precious(&scratch, &file.display().to_string());
        let _ = fs::remove_file(file);
    }
    assert!(wrong.is_empty(), "written to: {wrong:?}");
    println!(
        "{} files of ours, in {} directories",
        files.len(),
        directories.len()
    );
}

/// Environment of a request's caller: PATH names other programs, AGAIN_* another chain.
#[test]
fn the_environment_of_a_caller() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("evil")).expect("created");
    for name in ["ruby", "puppet", "systemd-run", "again", "sh", "env"] {
        write_program(
            scratch.path(&format!("evil/{name}")),
            &format!("#!/bin/sh\necho {name} >> {}\n", scratch.at("caught")),
        );
    }
    let env = format!(
        "env: {{ 'PATH' => '{}', 'AGAIN_CHAIN' => 'deadbeef', 'AGAIN_RUN' => '99', 'AGAIN_TIMER' => 'x', 'LD_PRELOAD' => '/x.so', 'RUBYOPT' => '-r/x' }}",
        scratch.at("evil")
    );
    start(&mut scratch.apply("site", &format!("ask('run', {env}) if NTH == 1"))).finish();
    let said = &scratch.runs("site")[0].asked()[0].output;
    assert!(
        said.contains("run 2 of chain ") && !said.contains("deadbeef"),
        "{said}"
    );
    let runs = scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    assert!(
        !scratch.path("caught").exists(),
        "a program of the caller's PATH was started"
    );
    assert_eq!(runs[1].environment(), runs[0].environment());
    assert_eq!(runs[1].variable("AGAIN_RUN").as_deref(), Some("2"));
    scratch.assert_nothing_left();
}

/// With privileges from its file, `again` would obey the environment of any caller: it refuses to
/// run.
#[test]
fn set_user_id() {
    if !permits(Permission::SetUserId) {
        return;
    }
    let scratch = Scratch::new();
    let raised = scratch.path("bin/raised");
    let mut kinds = 0;
    for (kind, mode, capability) in [
        ("set-user-ID", 0o4755, None),
        ("set-group-ID", 0o2755, None),
        ("capabilities", 0o755, Some("cap_dac_override+ep")),
        ("none of them", 0o755, None),
    ] {
        let _ = fs::remove_file(&raised);
        copy_program(scratch.path("bin/again"), &raised);
        fs::set_permissions(&raised, fs::Permissions::from_mode(mode)).expect("set");
        if let Some(capability) = capability {
            // The command setcap comes from Debian's libcap2-bin.
            let mut command = scratch.command("setcap");
            let set = command.arg(capability).arg(&raised).output();
            if set.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                println!("no setcap here: {kind} left out");
                continue;
            }
            let set = set.expect("started");
            assert!(set.status.success(), "{set:?}");
        }
        let done = answer(&mut as_nobody(
            &scratch,
            &[raised.to_str().expect("plain"), "status"],
        ));
        if kind == "none of them" {
            assert_eq!(done.code, Some(3), "{kind}: {done:?}");
            continue;
        }
        assert_eq!(done.code, Some(1), "{kind}: {done:?}");
        assert!(
            done.err.contains("more privilege than its caller"),
            "{kind}: {done:?}"
        );
        kinds += 1;
    }
    println!("{kinds} kinds of privilege");
}

/// This user cannot start another process: one line reports it, and no file is left.
#[test]
fn no_further_process() {
    let scratch = Scratch::new();
    directory_of_nobody(&scratch, "theirs");
    let state = scratch.at("theirs/state");
    let again = scratch.at("bin/again");
    let words = [
        "prlimit",
        "--nproc=0:0",
        &again,
        "run",
        "--state-dir",
        &state,
        "--",
        "/bin/true",
    ];
    let done = answer(&mut as_nobody(&scratch, &words));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.err.contains("cannot start the waiter") && done.err.lines().count() == 1,
        "{done:?}"
    );
    assert!(scratch.waiters().is_empty());
    assert_eq!(scratch.orders("theirs/state"), Vec::<String>::new());
}
