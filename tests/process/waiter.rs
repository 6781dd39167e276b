use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use again_test_support::{
    Past, Permission, Process, SHORT, Scratch, answer, permits, start, stays, wait_until,
};

/// Manifest of a run that makes the request `ask` and then continues until `go`.
fn holding(ask: &str) -> String {
    format!("ask('run', {ask}) if NTH == 1\nhold('go') if NTH == 1")
}

fn switches(process: Process) -> u64 {
    let count = process.status("voluntary_ctxt_switches").expect("a count");
    count.parse().expect("a number")
}

/// Purpose of a descriptor, from its target. An unknown one is a failure.
fn purpose(scratch: &Scratch, fd: i32, to: &str) -> &'static str {
    match to {
        "/dev/null" if fd <= 2 => "nothing to read, nowhere to write",
        _ if fd <= 2 => panic!("descriptor {fd} is {to}"),
        "/memfd:again-order (deleted)" => "what to run, in memory",
        "anon_inode:[pidfd]" => "the process it waits for",
        "anon_inode:[timerfd]" => "when to wake up",
        "anon_inode:[signalfd]" => "its signals",
        "anon_inode:inotify" => "the files that hold it",
        _ if to == scratch.at("state") => "where the state is",
        _ if to.starts_with(&scratch.at("state/targets/")) && to.contains("/orders/") => {
            "the lock that says that it lives"
        }
        _ if to == scratch.at("state") => "the state directory, whatever takes its name",
        _ => panic!("descriptor {fd} of the waiter is {to}"),
    }
}

/// Returns the sockets and pipes that other processes hold as well.
fn shared_with_others(process: Process, descriptors: &BTreeMap<i32, String>) -> Vec<String> {
    let named = |to: &&String| to.starts_with("socket:[") || to.starts_with("pipe:[");
    let own: Vec<&String> = descriptors.values().filter(named).collect();
    Process::all()
        .into_iter()
        .filter(|other| *other != process)
        .flat_map(|other| other.descriptors().into_values())
        .filter(|to| own.contains(&to))
        .collect()
}

fn assert_out_of_reach(scratch: &Scratch, waiter: Process, run: Option<Process>) {
    assert_eq!(
        waiter.stat(6),
        Some(i64::from(waiter.pid)),
        "leads a session of its own"
    );
    assert_eq!(waiter.stat(7), Some(0), "no terminal");
    if let Some(run) = run {
        assert_ne!(waiter.stat(6), run.stat(6), "the run's session");
        assert_ne!(waiter.parent(), run.pid, "a child of the run");
        assert!(!run.descendants().contains(&waiter), "below the run");
    }
    assert_eq!(
        waiter.link("cwd").as_deref(),
        Some("/".as_ref()),
        "keeps no file system busy"
    );
    assert_eq!(
        waiter.environment(),
        BTreeMap::new(),
        "holds nobody's secrets"
    );
    let descriptors = waiter.descriptors();
    assert!(descriptors.len() <= 16, "{descriptors:?}");
    for (fd, to) in &descriptors {
        purpose(scratch, *fd, to);
    }
    assert_eq!(
        shared_with_others(waiter, &descriptors),
        Vec::<String>::new()
    );
    // HUP, INT, QUIT, USR1, USR2, TERM and CHLD, which the waiter reads from its signalfd.
    assert_eq!(waiter.status("SigBlk").as_deref(), Some("0000000000014a07"));
}

/// Five waiters, one in each kind of sleep and one that will follow its run immediately, observed
/// for the same 20 seconds.
#[test]
fn it_is_out_of_reach_small_and_asleep_in_every_phase() {
    let scratch = Scratch::new();
    // The first waits for its run to end.
    let run = start(&mut scratch.apply("run", &holding("'--name', 'run', '--delta', '1h'")));
    // The second does the same, and will follow it immediately.
    let soon = start(&mut scratch.apply("soon", &holding("'--name', 'soon'")));
    // The third waits for an hour to pass.
    start(&mut scratch.apply("due", "ask('run', '--name', 'due', '--delta', '1h')")).finish();
    // The fourth waits for another puppet, which holds the agent's lock.
    let other = start(&mut scratch.apply("other", "hold('other')"));
    scratch.write("lock", &other.process.pid.to_string());
    let lock = scratch.at("lock");
    let ask = format!("ask('run', '--name', 'lock', '--agent-catalog-run-lockfile', '{lock}')");
    start(&mut scratch.apply("lock", &ask)).finish();
    // The fifth waits for the agent to be enabled.
    scratch.write("disabled", "{}");
    let disabled = scratch.at("disabled");
    let ask = format!(
        "ask('run', '--name', 'held', '--agent-disabled-lockfile', '{disabled}', '--agent-catalog-run-lockfile', ROOT + '/none')"
    );
    start(&mut scratch.agent("held", &ask)).finish();

    scratch.wait_for_state("run", "waiting for the run");
    scratch.wait_for_state("soon", "waiting for the run");
    scratch.wait_for_state("due", "waiting");
    scratch.wait_for_state("lock", "due");
    scratch.wait_for_state("held", "held");
    let names = ["run", "soon", "due", "lock", "held"];
    let waiters = names.map(|name| scratch.waiter(name));
    for (name, waiter) in names.iter().zip(waiters) {
        waiter.wait_until_asleep();
        let of = match *name {
            "run" => Some(run.process),
            "soon" => Some(soon.process),
            _ => None,
        };
        assert_out_of_reach(&scratch, waiter, of);
        let title = waiter.title();
        assert!(
            title.starts_with(&format!("again: timer '{name}' ")),
            "{title}"
        );
    }
    for (name, waiter) in names.iter().zip(waiters) {
        let kinds: Vec<String> = waiter
            .descriptors()
            .iter()
            .map(|(fd, to)| format!("{fd}: {}", purpose(&scratch, *fd, to)))
            .collect();
        println!("{name}: {}; holds {}", waiter.title(), kinds.join(", "));
    }
    let asked = scratch.wait_for_answers("run", 1);
    assert!(asked[0].pipe_closed, "the requester's pipe outlives it");

    let before = waiters.map(switches);
    stays("all wait", Duration::from_secs(20), || {
        waiters.iter().all(|waiter| waiter.alive())
    });
    for ((name, waiter), before) in names.iter().zip(waiters).zip(before) {
        let kb = |what: &str| waiter.memory(what).expect("a size");
        let (resident, anonymous, own) = (kb("Rss"), kb("Anonymous"), kb("Pss"));
        let woken = switches(waiter) - before;
        println!(
            "{name}: {woken} wakeups in 20 s, {resident} kB resident ({own} kB its share), {anonymous} kB anonymous"
        );
        assert_eq!(woken, 0, "{name}: wakeups in 20 s");
        assert!(resident <= 1200, "{name}: {resident} kB resident");
        assert!(anonymous <= 256, "{name}: {anonymous} kB anonymous");
    }

    scratch.again_well(&["stop"]);
    scratch.release("go");
    scratch.release("other");
    run.finish();
    soon.finish();
    other.finish();
    scratch.assert_nothing_left();
    for name in names {
        assert_eq!(scratch.runs(name).len(), 1);
    }
}

/// The requester is started with more open descriptors than Puppet leaves; neither waiter nor rerun
/// inherits them.
#[test]
fn it_takes_over_no_descriptor_from_a_careless_caller() {
    let scratch = Scratch::new();
    let file = fs::File::create(scratch.path("open")).expect("created");
    let manifest = "ask('run', '--delta', '1h', bare: true) if NTH == 1\nhold('go') if NTH == 1";
    let mut command = scratch.apply("site", manifest);
    let fd = file.as_raw_fd();
    // SAFETY: only dup2(2) between fork and exec; the copies are not close-on-exec.
    unsafe {
        command.pre_exec(move || {
            for copy in [9, 77, 255] {
                if libc::dup2(fd, copy) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let run = start(&mut command);
    scratch.wait_for_state("again", "waiting for the run");
    let held = run.process.descriptors();
    assert_eq!(
        held.get(&77),
        Some(&scratch.at("open")),
        "the case is as it should be"
    );
    let waiter = scratch.waiter("again");
    waiter.wait_until_asleep();
    assert_out_of_reach(&scratch, waiter, Some(run.process));
    assert!(scratch.wait_for_answers("site", 1)[0].pipe_closed);
    scratch.again_well(&["stop"]);

    // The same with a rerun.
    scratch.write("work/site.pp", "ask('run', bare: true) if NTH == 1");
    scratch.release("go");
    run.finish();
    let mut command = scratch.apply("second", "ask('run', bare: true) if NTH == 1");
    // SAFETY: as above.
    unsafe {
        command.pre_exec(move || match libc::dup2(fd, 77) {
            77 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    start(&mut command).finish();
    let runs = scratch.wait_for_runs("second", 2);
    let rerun = runs[1].descriptors();
    assert!(
        rerun.iter().all(|(_, to)| *to != scratch.at("open")),
        "{rerun:?}"
    );
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A waiter that was killed gets a successor from the next command that changes anything, of
/// whatever target.
#[test]
fn a_dead_waiter_is_replaced_by_the_next_who_changes_something() {
    let scratch = Scratch::new();
    let words = ["run", "--name", "first", "--delta", "1h", "--"];
    scratch.again_well(&[&words[..], &["/bin/true"]].concat());
    let kill = || {
        let waiter = scratch.waiter("first");
        waiter
            .signal(nix::sys::signal::Signal::SIGKILL)
            .expect("killed");
        waiter.wait_until_gone(SHORT);
        assert_eq!(scratch.timer("first").expect("there")["state"], "dead");
    };
    let due = || {
        let records = scratch.records("state").into_iter();
        let due = |record: serde_json::Value| record["timers"]["first"]["due"].as_u64();
        records.filter_map(due).collect::<Vec<u64>>()
    };
    let other = [
        "run",
        "--name",
        "other",
        "--delta",
        "1h",
        "--",
        "/bin/false",
    ];
    let verbs: [&[&str]; 5] = [
        &other,
        &["stop", "other"],
        &["disable"],
        &["reset"],
        &["enable"],
    ];
    for (n, verb) in verbs.iter().enumerate() {
        kill();
        let promised = due();
        let command = scratch.again_command(verb);
        let said = answer(&mut scratch.without_system_log(&command));
        assert_eq!(said.code, Some(0), "{verb:?}: {said:?}");
        let said = said.out;
        assert!(said.contains("resumed: timer 'first'"), "{verb:?}: {said}");
        let timer = scratch.timer("first").expect("there");
        assert_eq!(timer["state"], "waiting");
        assert_eq!(due(), promised);
        assert_eq!(scratch.told("resumed").len(), n + 1);
        let log = scratch.text("state/again.log");
        let died = "the waiter of timer 'first' had died";
        assert!(log.matches(died).count() > n, "{log}");
    }
    // Commands that only read change nothing.
    kill();
    for verb in ["status", "history", "metrics"] {
        scratch.again(&[verb]);
        assert_eq!(scratch.timer("first").expect("there")["state"], "dead");
    }
    // A refused request starts a successor too, and so `now` reaches a waiter.
    let refused = [&["run", "--max-runs", "0", "--"][..], &["/bin/false"]].concat();
    assert_eq!(scratch.again(&refused).code, Some(1));
    assert_eq!(scratch.timer("first").expect("there")["state"], "waiting");
    kill();
    scratch.again_well(&["now", "first"]);
    scratch.wait_until_settled();
    assert_eq!(scratch.told("started").len(), 1);
    scratch.assert_nothing_left();
}

/// Records that need no successor are not written again.
#[test]
fn resume_writes_only_what_changes() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    for (name, command) in [("dead", "/bin/true"), ("well", "/bin/false")] {
        scratch.again_well(&["run", "--name", name, "--delta", "1h", "--", command]);
    }
    scratch.again_well(&["run", "--delta", "1h", "--", "/bin/echo"]);
    scratch.again_well(&["stop", "again"]);
    let waiter = scratch.waiter("dead");
    let killed = waiter.signal(nix::sys::signal::Signal::SIGKILL);
    killed.expect("killed");
    waiter.wait_until_gone(SHORT);
    // A written record is a new file.
    let inodes = || {
        let targets = std::fs::read_dir(scratch.path("state/targets")).expect("targets");
        let mut found: Vec<(std::path::PathBuf, u64)> = targets
            .flatten()
            .map(|target| target.path().join("state.json"))
            .map(|path| (path.clone(), path.metadata().expect("a record").ino()))
            .collect();
        found.sort();
        found
    };
    let before = inodes();
    let said = scratch.again_well(&["resume"]);
    assert!(said.contains("resumed: timer 'dead'"), "{said}");
    let after = inodes();
    let changed: Vec<_> = before.iter().filter(|one| !after.contains(one)).collect();
    assert_eq!((before.len(), changed.len()), (3, 1), "{changed:?}");
    scratch.again_well(&["resume"]);
    assert_eq!(inodes(), after);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Only in passing: a target that another process has locked is that process's concern.
#[test]
fn a_locked_target_is_passed_by_in_silence() {
    let scratch = Scratch::new();
    let request = |name| ["run", "--name", name, "--delta", "1h", "--", "/bin/true"];
    scratch.again_well(&request("first"));
    let waiter = scratch.waiter("first");
    let killed = waiter.signal(nix::sys::signal::Signal::SIGKILL);
    killed.expect("killed");
    waiter.wait_until_gone(SHORT);
    let lock = std::fs::File::open(scratch.target().join("lock")).expect("opened");
    lock.lock().expect("locked");
    let mut other = request("other");
    other[6] = "/bin/false";
    let said = scratch.again(&other);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    assert!(!said.out.contains("resume"), "{said:?}");
    drop(lock);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Returns the differences between a rerun and its run; empty if they are alike.
fn differences(first: &Past, rerun: &Past) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, first: String, rerun: String| {
        if first != rerun {
            found.push(format!("{what}: {first} became {rerun}"));
        }
    };
    for line in [
        "SigIgn",
        "SigBlk",
        "SigCgt",
        "ShdPnd",
        "Umask",
        "Uid",
        "Gid",
        "Groups",
        "NoNewPrivs",
        "CapEff",
        "Cpus_allowed",
    ] {
        compare(line, first.status(line), rerun.status(line));
    }
    compare(
        "nice",
        first.stat(19).to_string(),
        rerun.stat(19).to_string(),
    );
    compare(
        "policy",
        first.stat(41).to_string(),
        rerun.stat(41).to_string(),
    );
    compare("limits", first.text("limits"), rerun.text("limits"));
    compare("cwd", first.text("cwd"), rerun.text("cwd"));
    let command = |past: &Past| format!("{:?}", String::from_utf8_lossy(&past.raw("cmdline")));
    compare("command", command(first), command(rerun));
    let environment = |past: &Past| format!("{:?}", past.environment());
    compare("environment", environment(first), environment(rerun));
    found
}

/// Properties with which a run is started: signals ignored and blocked, umask, nice level, limits.
#[derive(Debug, Clone, Default)]
struct Circumstances {
    ignored: &'static [&'static str],
    blocked: &'static [&'static str],
    umask: Option<u32>,
    nice: i32,
    limits: &'static [(u32, u64, u64)],
}

impl Circumstances {
    /// Wraps a command so that it starts with these properties.
    fn around(&self, scratch: &Scratch, command: &Command) -> Command {
        let mut words: Vec<std::ffi::OsString> = Vec::new();
        for (mode, signals) in [("ignored", self.ignored), ("blocked", self.blocked)] {
            if !signals.is_empty() {
                words.push(scratch.path("bin/helper").into());
                words.push(mode.into());
                words.extend(signals.iter().map(Into::into));
                words.push("--".into());
            }
        }
        words.push(command.get_program().to_owned());
        words.extend(command.get_args().map(ToOwned::to_owned));
        let mut around = scratch.command(&words[0]);
        around.args(&words[1..]);
        scratch.with_output(&mut around);
        let Circumstances {
            umask,
            nice,
            limits,
            ..
        } = self.clone();
        // SAFETY: system calls with integers only between fork and exec.
        unsafe {
            around.pre_exec(move || {
                if let Some(mask) = umask {
                    libc::umask(mask);
                }
                for (resource, soft, hard) in limits {
                    let limit = libc::rlimit {
                        rlim_cur: *soft,
                        rlim_max: *hard,
                    };
                    if libc::setrlimit(*resource as _, &raw const limit) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                if nice != 0 && libc::setpriority(libc::PRIO_PROCESS, 0, nice) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        around
    }
}

fn assert_same_circumstances(case: &Circumstances, ask: &str) {
    let scratch = Scratch::new();
    let command = scratch.apply("site", &format!("{ask} if NTH == 1"));
    start(&mut case.around(&scratch, &command)).finish();
    let asked = scratch.runs("site")[0].asked();
    assert_eq!(asked[0].code, 0, "{case:?}: {asked:?}");
    let runs = scratch.wait_for_runs("site", 2);
    assert_eq!(
        differences(&runs[0], &runs[1]),
        Vec::<String>::new(),
        "{case:?}"
    );
    // Checks that the case is set up as intended.
    let bits = |past: &Past, line: &str| u64::from_str_radix(&past.status(line), 16).expect("bits");
    for signal in case.ignored {
        let bit = signal.parse::<u32>().expect("a number") - 1;
        let ignored = bits(&runs[1], "SigIgn");
        assert_eq!(ignored >> bit & 1, 1, "{case:?}: {ignored:x}");
    }
    if let Some(mask) = case.umask {
        assert_eq!(runs[1].status("Umask"), format!("{mask:04o}"));
    }
    assert_eq!(runs[1].stat(19), i64::from(case.nice));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// HUP 1, USR1 10, PIPE 13, TERM 15, CHLD 17, WINCH 28. Ruby itself unblocks every signal as it
/// starts.
#[test]
fn the_rerun_has_the_signals_of_the_run() {
    let cases: [&[&str]; 6] = [
        &[],
        &["13"],
        &["1"],
        &["15"],
        &["1", "13", "28"],
        &["40", "64"],
    ];
    for ignored in cases {
        let case = Circumstances {
            ignored,
            ..Circumstances::default()
        };
        assert_same_circumstances(&case, "ask('run')");
    }
    println!("{} starting states", cases.len());
}

/// The first real-time signals (34 and up) belong to the C library, but a run may have them set all
/// the same.
#[test]
fn a_command_has_the_signals_of_its_requester() {
    let cases: [(&[&str], &[&str]); 8] = [
        (&[], &[]),
        (&[], &["10"]),
        (&[], &["15", "1", "2"]),
        (&["1", "13", "28"], &["10", "13", "40"]),
        (&["15", "17"], &["17", "17"]),
        (&["40", "64"], &["40", "64"]),
        (&["34", "35"], &["34", "35"]),
        (&["32", "33"], &["32", "33"]),
    ];
    let mut wrong = Vec::new();
    for (ignored, blocked) in cases {
        let scratch = Scratch::new();
        let case = Circumstances {
            ignored,
            blocked,
            ..Circumstances::default()
        };
        let copy = |to: &str| {
            let mut command = scratch.command("/bin/cp");
            command.args(["/proc/self/status", &scratch.at(to)]);
            command
        };
        start(&mut case.around(&scratch, &copy("directly"))).finish();
        let mut request = scratch.command(scratch.path("bin/again"));
        request
            .args(["run", "--"])
            .arg("/bin/cp")
            .args(copy("rerun").get_args());
        start(&mut case.around(&scratch, &request)).finish();
        scratch.wait_until_settled();
        let lines = |file: &str| -> Vec<String> {
            let text = fs::read_to_string(scratch.path(file)).expect("written");
            let is_wanted = |line: &&str| line.starts_with("SigBlk") || line.starts_with("SigIgn");
            text.lines().filter(is_wanted).map(str::to_owned).collect()
        };
        let (directly, rerun) = (lines("directly"), lines("rerun"));
        if directly != rerun {
            wrong.push(format!("{case:?}: {directly:?} became {rerun:?}"));
        }
        scratch.assert_nothing_left();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!("{} starting states", cases.len());
}

#[test]
fn rerun_has_umask_nice_level_and_limits_of_the_run() {
    let cases = [
        Circumstances {
            umask: Some(0o027),
            ..Circumstances::default()
        },
        Circumstances {
            umask: Some(0o777),
            ..Circumstances::default()
        },
        Circumstances {
            umask: Some(0),
            nice: 7,
            ..Circumstances::default()
        },
        Circumstances {
            limits: &LIMITS,
            ..Circumstances::default()
        },
    ];
    for case in &cases {
        assert_same_circumstances(case, "ask('run')");
    }
    println!("{} starting states", cases.len());
}

const LIMITS: [(u32, u64, u64); 5] = [
    (libc::RLIMIT_NOFILE, 512, 2048),
    (libc::RLIMIT_CORE, 0, 0),
    (libc::RLIMIT_NPROC, 4000, 5000),
    (libc::RLIMIT_STACK, 4 << 20, libc::RLIM_INFINITY),
    (libc::RLIMIT_CPU, 3600, libc::RLIM_INFINITY),
];

#[test]
fn rerun_has_the_raised_priority_of_the_run() {
    if !permits(Permission::SysNice) {
        return;
    }
    let case = Circumstances {
        nice: -3,
        limits: &LIMITS,
        ..Circumstances::default()
    };
    assert_same_circumstances(&case, "ask('run')");
}

/// An Exec's own umask, limits, signals, directory and variables do not affect the rerun.
#[test]
fn rerun_has_nothing_of_the_requester() {
    let wrappers = [
        &format!("['/bin/sh', '-c', '{OWN}; exec \"$@\"', 'sh']"),
        "['/usr/bin/nohup']",
        // The program timeout handles HUP, INT, QUIT and TERM, so its child has them by default.
        "['/usr/bin/timeout', '60']",
        "[HELPER, 'blocked', '1', '10', '15', '40', '--']",
        "[HELPER, 'ignored', '13', '15', '17', '--', HELPER, 'blocked', '12', '--']",
    ];
    for wrapper in wrappers {
        assert_requester_leaves_nothing(wrapper);
    }
    println!("{} wrappers, in runs of two kinds", wrappers.len());
}

/// Changes that a requester makes for itself.
const OWN: &str = "trap \"\" HUP USR1 PIPE; umask 077; ulimit -S -n 99; cd /tmp";

/// The requester has lowered its own priority: the waiter raises it again.
#[test]
fn rerun_has_not_the_nice_level_of_the_requester() {
    if permits(Permission::SysNice) {
        let wrapper = format!("['/bin/sh', '-c', '{OWN}; exec nice -n 5 \"$@\"', 'sh']");
        assert_requester_leaves_nothing(&wrapper);
    }
}

fn assert_requester_leaves_nothing(wrapper: &str) {
    let cases: [&[&str]; 2] = [&[], &["1", "3"]];
    for ignored in cases {
        let ask = format!(
            "ask('run', through: {wrapper}, env: {{'LEAK' => 'yes', 'LANG' => 'C', 'PATH' => '/usr/bin:/bin'}})"
        );
        let case = Circumstances {
            ignored,
            umask: Some(0o022),
            nice: 2,
            ..Circumstances::default()
        };
        assert_same_circumstances(&case, &ask);
    }
}

/// TERM is blocked or ignored in the run, but the waiter can be stopped.
#[test]
fn it_can_be_stopped_whatever_signals_the_run_blocks() {
    for (ignored, blocked) in [(&["15", "1"][..], &[][..]), (&[][..], &["15", "10"][..])] {
        let scratch = Scratch::new();
        let case = Circumstances {
            ignored,
            blocked,
            ..Circumstances::default()
        };
        let mut request = scratch.command(scratch.path("bin/again"));
        request.args(["run", "--delta", "1h", "--", "/bin/true"]);
        start(&mut case.around(&scratch, &request)).finish();
        let waiter = scratch.waiter("again");
        waiter.wait_until_asleep();
        waiter
            .signal(nix::sys::signal::Signal::SIGTERM)
            .expect("sent");
        waiter.wait_until_gone(SHORT);
        assert_eq!(scratch.timers()[0]["state"], "dead");
        scratch.again_well(&["stop"]);
        scratch.assert_nothing_left();
    }
}

/// SIGTERM to a waiter, as at shutdown, is not `again stop`: the timer stays on record, visible and
/// resumable.
#[test]
fn a_signal_to_end_leaves_its_timer_on_record() {
    use nix::sys::signal::Signal;
    for signal in [
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGKILL,
    ] {
        let scratch = Scratch::new();
        start(&mut scratch.apply("site", "ask('run', '--delta', '1h')")).finish();
        let waiter = scratch.waiter("again");
        waiter.wait_until_asleep();
        waiter.signal(signal).expect("sent");
        waiter.wait_until_gone(SHORT);
        let status = scratch.again(&["status", "--json"]);
        assert_eq!(status.code, Some(0), "it is still pending: {}", status.out);
        let timer = scratch.timer("again").expect("on record");
        assert_eq!(timer["state"], "dead", "{signal}");
        assert_eq!(timer["waiter"]["alive"], false);
        assert_eq!(
            scratch.orders("state").len(),
            1,
            "what it would run is kept"
        );
        let text = scratch.again(&["status"]).out;
        assert!(text.contains("its waiter is dead"), "{text}");
        // A new request of the same name replaces it.
        start(&mut scratch.apply("site", "ask('run', '--delta', '1h')")).finish();
        assert_eq!(scratch.timers().len(), 1);
        assert_eq!(scratch.timers()[0]["waiter"]["alive"], true);
        // The new waiter removes the order.
        wait_until("the dead one's order to go", SHORT, || {
            scratch.orders("state").len() == 1
        });
        scratch.again_well(&["stop"]);
        scratch.assert_nothing_left();
    }
}

/// A process ends with its last thread, whichever that is: until then it may write to its log,
/// which is not truncated.
#[test]
fn a_rerun_whose_first_thread_has_ended_runs_on() {
    let scratch = Scratch::new();
    let (helper, go) = (scratch.at("bin/helper"), scratch.at("go"));
    scratch.again_well(&[
        "run", "--delta", "0", "--jitter", "0", "--", &helper, "thread", &go,
    ]);
    let running = || scratch.status()["targets"][0]["running"].clone();
    wait_until("the rerun", SHORT, || running().is_object());
    let pid = running()["pid"].as_i64().expect("a pid");
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    wait_until("its first thread to end", SHORT, || {
        state().contains(") Z ")
    });
    let seen = running();
    assert_eq!(seen["pid"], pid, "{seen:#}");
    let log = fs::metadata(seen["log"].as_str().expect("a log")).expect("there");
    let blocks = std::os::unix::fs::MetadataExt::blocks;
    assert!(blocks(&log) > 0, "nothing is reserved");
    scratch.release("go");
    scratch.wait_until_settled();
    let (log, _) = scratch.logs().remove(0);
    assert_eq!(blocks(&fs::metadata(log).expect("there")), 0);
    scratch.assert_nothing_left();
}
