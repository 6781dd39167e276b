//! Pid namespace with few pids, so that they are reused within a second: each test runs in it as
//! process 1.

use std::fs;

use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use again_test_support::{Bystander, Process, SHORT, Scratch, in_namespaces, start, wait_until};

const PID_MAX: &str = "/proc/sys/kernel/pid_max";

/// Runs the body where the only pids are those between 300 and 400.
fn with_few_pids(test: &str, body: impl FnOnce()) {
    let outside = fs::read_to_string(PID_MAX).expect("pid_max");
    in_namespaces(
        &["--pid", "--mount-proc", "--fork", "--kill-child"],
        test,
        || {
            assert_eq!(std::process::id(), 1, "the first process of its namespace");
            if few_pids_can_be_had() {
                fs::write(PID_MAX, "400").expect("pid_max");
                println!(
                    "pid_max is {} here",
                    fs::read_to_string(PID_MAX).expect("pid_max").trim()
                );
            } else {
                println!(
                    "pid_max is the machine's on this kernel: ns_last_pid brings the pids round"
                );
            }
            // The kernel uses the pids below 300 in the first round only.
            fs::write("/proc/sys/kernel/ns_last_pid", "320").expect("ns_last_pid");
            body();
        },
    );
    if std::process::id() != 1 {
        assert_eq!(
            fs::read_to_string(PID_MAX).expect("pid_max"),
            outside,
            "the machine's own"
        );
    }
}

/// pid_max belongs to the namespace since Linux 6.14; before, it is the machine's, which a test
/// must not change.
fn few_pids_can_be_had() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release
        .split(['.', '-'])
        .map(|word| word.trim().parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 14)
}

/// Starts unrelated processes until one of them gets this pid; that one lives on.
fn recur(pid: i32) -> Bystander {
    if !few_pids_can_be_had() {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).expect("ns_last_pid");
    }
    for others in 0..1000 {
        let bystander = Bystander::new();
        if bystander.pid() == pid {
            println!("pid {pid} came round after {others} others");
            return bystander;
        }
    }
    panic!("pid {pid} does not come round");
}

/// Reaps an orphan, since the test is process 1; until then it keeps its pid.
fn reap(process: Process) {
    wait_until("the end of it", SHORT, || !process.alive());
    let _ = waitpid(Pid::from_raw(process.pid), None);
    assert!(Process::now(process.pid).is_none());
}

fn kill_and_reap(process: Process) {
    process.signal(Signal::SIGKILL).expect("killed");
    reap(process);
}

/// Requests a command with a delay of an hour; returns its waiter.
fn in_an_hour(scratch: &Scratch) -> Process {
    scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
    scratch.waiter("again")
}

#[test]
fn stop_spares_a_process_with_the_pid_of_a_dead_waiter() {
    with_few_pids(
        "privileged::recycled::stop_spares_a_process_with_the_pid_of_a_dead_waiter",
        || {
            let scratch = Scratch::new();
            let waiter = in_an_hour(&scratch);
            kill_and_reap(waiter);
            let mut innocent = recur(waiter.pid);
            assert_eq!(
                scratch.timers()[0]["state"],
                "dead",
                "not taken for the waiter"
            );
            let said = scratch.again_well(&["stop"]);
            assert!(said.contains("stopped"), "{said}");
            assert!(innocent.is_unharmed());
            scratch.assert_nothing_left();
        },
    );
}

#[test]
fn request_spares_a_process_with_the_pid_of_a_dead_waiter() {
    with_few_pids(
        "privileged::recycled::request_spares_a_process_with_the_pid_of_a_dead_waiter",
        || {
            let scratch = Scratch::new();
            let waiter = in_an_hour(&scratch);
            kill_and_reap(waiter);
            let mut innocent = recur(waiter.pid);
            let next = in_an_hour(&scratch);
            assert!(innocent.is_unharmed());
            scratch.again_well(&["stop"]);
            reap(next);
            assert!(innocent.is_unharmed());
            scratch.assert_nothing_left();
        },
    );
}

#[test]
fn stop_run_spares_a_process_with_the_pid_of_a_rerun() {
    with_few_pids(
        "privileged::recycled::stop_run_spares_a_process_with_the_pid_of_a_rerun",
        || {
            let scratch = Scratch::new();
            let manifest = "ask('run') if NTH == 1\nhold('go') if NTH == 2";
            start(&mut scratch.apply("site", manifest)).finish();
            wait_until("the rerun", SHORT, || scratch.runs("site").len() == 2);
            let rerun = Process::now(scratch.runs("site")[1].pid()).expect("the rerun");
            kill_and_reap(rerun);
            let mut innocent = recur(rerun.pid);
            scratch.again_well(&["stop", "--run"]);
            assert!(innocent.is_unharmed());
            assert!(scratch.status()["targets"][0]["running"].is_null());
            scratch.assert_nothing_left();
        },
    );
}

/// Chain and number come from a record about a process, not about a pid.
#[test]
fn run_with_the_pid_of_a_rerun_starts_a_chain_of_its_own() {
    with_few_pids(
        "privileged::recycled::run_with_the_pid_of_a_rerun_starts_a_chain_of_its_own",
        || {
            let scratch = Scratch::new();
            let manifest = "ask('run') if NTH == 1\nhold('go') if NTH == 2";
            start(&mut scratch.apply("site", manifest)).finish();
            wait_until("the rerun", SHORT, || scratch.runs("site").len() == 2);
            let chain = scratch.runs("site")[1]
                .variable("AGAIN_CHAIN")
                .expect("a chain");
            let rerun = Process::now(scratch.runs("site")[1].pid()).expect("the rerun");
            kill_and_reap(rerun);
            drop(recur(rerun.pid));
            // After another round, the pid goes to a run of another target that a person started:
            // its request does not look at the first target.
            let before = rerun.pid - 1;
            fs::write("/proc/sys/kernel/ns_last_pid", before.to_string()).expect("ns_last_pid");
            let run = start(&mut scratch.apply("other", "ask('run', '--delta', '1h')"));
            assert_eq!(run.process.pid, rerun.pid, "the case is as it should be");
            run.finish();
            let timer = &scratch.timers()[0];
            assert_eq!(timer["run"], 2, "{timer:#}");
            assert_ne!(timer["chain"], chain.as_str(), "{timer:#}");
            let waiter = scratch.waiter("again");
            scratch.again_well(&["stop"]);
            reap(waiter);
            scratch.assert_nothing_left();
        },
    );
}

/// The waiter is stopped while its run ends and the run's pid goes to another process, so it never
/// sees the end itself.
fn run_with_recycled_pid(test: &str, through: &[&str]) {
    with_few_pids(test, || {
        let scratch = Scratch::new();
        let helper = scratch.at("bin/helper");
        let stamps = scratch.at("stamps");
        let ask = format!("ask('run', '--', '{helper}', 'stamp', '{stamps}', 'x')\nhold('go')");
        let puppet = scratch.apply("site", &ask);
        let mut words: Vec<std::ffi::OsString> = Vec::new();
        if !through.is_empty() {
            words.push(helper.clone().into());
            words.extend(through.iter().map(Into::into));
        }
        words.push(puppet.get_program().to_owned());
        words.extend(puppet.get_args().map(ToOwned::to_owned));
        let mut command = scratch.command(&words[0]);
        command.args(&words[1..]);
        scratch.with_output(&mut command);
        let run = start(&mut command);
        scratch.wait_for_state("again", "waiting for the run");
        let waiter = scratch.waiter("again");
        wait_until("the waiter to sleep", SHORT, || {
            waiter.title().contains("waits for the run")
        });
        let holds_pidfd = waiter
            .descriptors()
            .values()
            .any(|to| to == "anon_inode:[pidfd]");
        assert_eq!(holds_pidfd, through.is_empty());

        waiter.signal(Signal::SIGSTOP).expect("stopped");
        let pid = run.process.pid;
        scratch.release("go");
        run.finish();
        let mut innocent = recur(pid);
        assert!(scratch.stamps().is_empty());
        waiter.signal(Signal::SIGCONT).expect("continued");
        wait_until("the rerun", SHORT, || scratch.stamps().len() == 1);
        assert!(innocent.is_unharmed());
        reap(waiter);
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    });
}

#[test]
fn waiter_notices_the_end_of_a_run_whose_pid_is_used_again() {
    run_with_recycled_pid(
        "privileged::recycled::waiter_notices_the_end_of_a_run_whose_pid_is_used_again",
        &[],
    );
}

/// The same on a kernel without pidfd_open(2).
#[test]
fn waiter_without_pidfds_notices_the_end_of_a_run_whose_pid_is_used_again() {
    let test = "privileged::recycled::waiter_without_pidfds_notices_the_end_of_a_run_whose_pid_is_used_again";
    run_with_recycled_pid(test, &["without", "434", "38", "--"]);
}

/// The agent's lock contains the pid of a run that has ended; the process with that pid now is not
/// puppet.
#[test]
fn waiter_ignores_a_lock_whose_pid_is_used_again() {
    with_few_pids(
        "privileged::recycled::waiter_ignores_a_lock_whose_pid_is_used_again",
        || {
            let scratch = Scratch::new();
            let holder = start(&mut scratch.apply("holder", "hold('other')"));
            let pid = holder.process.pid;
            scratch.write("lock", &pid.to_string());
            let lock = scratch.at("lock");
            let ask = format!("ask('run', '--agent-catalog-run-lockfile', '{lock}') if NTH == 1");
            start(&mut scratch.apply("site", &ask)).finish();
            scratch.wait_for_state("again", "due");
            let waiter = scratch.waiter("again");
            waiter.signal(Signal::SIGSTOP).expect("stopped");
            scratch.release("other");
            holder.finish();
            let mut innocent = recur(pid);
            waiter.signal(Signal::SIGCONT).expect("continued");
            scratch.wait_for_runs("site", 2);
            assert!(innocent.is_unharmed());
            reap(waiter);
            scratch.wait_until_settled();
            scratch.assert_nothing_left();
        },
    );
}
