use std::fs;
use std::time::Duration;

use crate::{hold_until, until_held};
use again_test_support::{CachedAgent, Process, SHORT, Scratch, stays, text, wait_until};

/// A run that asks for a rerun in an hour, leaving a note of the pipe that the Exec's output went to, and then is held until
/// `go`. The pipe has a second descriptor, which Puppet itself would not give away but a script may.
fn ask_and_hold(scratch: &Scratch) -> String {
    let root = scratch.root();
    scratch.bare_manifest(&format!(
        "exec {{ 'ask': command => ['/bin/sh', '-c', 'to=$(readlink /proc/$$/fd/1); echo $to > {root}/pipe; exec 9>&1; exec {root}/bin/again run --delta 1h'],\n  \
           provider => 'posix', unless => '/usr/bin/test -e {root}/pipe' }}\n\
         -> {}",
        hold_until("hold", &format!("{root}/go"))
    ))
}

/// What is left of a request: nothing pending, nothing running, no order on disk, and nothing was ever started.
fn assert_all_gone(scratch: &Scratch) {
    scratch.settle(SHORT);
    assert!(scratch.timers().is_empty());
    let orders: Vec<_> = fs::read_dir(scratch.path("state/targets"))
        .expect("targets")
        .flatten()
        .flat_map(|target| {
            fs::read_dir(target.path().join("orders"))
                .into_iter()
                .flatten()
                .flatten()
        })
        .map(|order| order.path())
        .collect();
    assert!(orders.is_empty(), "left in the state directory: {orders:?}");
    assert!(scratch.history_of("started").is_empty());
    assert_eq!(
        scratch.history_of("stopped").len(),
        1,
        "{:#?}",
        scratch.history()
    );
}

fn switches(waiter: Process) -> u64 {
    waiter
        .status("voluntary_ctxt_switches")
        .and_then(|count| count.parse().ok())
        .expect("a count")
}

/// Session, terminal, descriptors, memory and wakeups of the process that waits, while the run goes on and after it.
#[test]
fn the_waiter_is_out_of_the_way_and_asleep() {
    let scratch = Scratch::with_puppet();
    let manifest = ask_and_hold(&scratch);
    let run = scratch.puppet_apply(&["-e", &manifest]).start();
    until_held(&scratch);
    let waiter = scratch.only_waiter();

    let pipe = fs::read_to_string(scratch.path("pipe"))
        .expect("the pipe")
        .trim()
        .to_owned();
    assert!(pipe.starts_with("pipe:["), "{pipe}");
    let holders: Vec<Process> = Process::all()
        .into_iter()
        .filter(|process| process.descriptors().values().any(|to| *to == pipe))
        .collect();
    assert!(
        holders.is_empty(),
        "the Exec's pipe outlives the requester in {holders:?}"
    );
    // What the run has open, and its requester might have inherited; an anonymous inode has no name to tell it by.
    let of_the_run: Vec<String> = run
        .process
        .descriptors()
        .into_values()
        .filter(|to| !to.starts_with("anon_inode:"))
        .collect();
    let state = text(scratch.path("state"));
    for (fd, to) in waiter.descriptors() {
        // What it waits on, its order, the timer's lock, a pipe to itself, the system log.
        let own = ["anon_inode:", "/memfd:", "pipe:", "socket:", &state]
            .iter()
            .any(|kind| to.starts_with(kind));
        assert!(
            if fd <= 2 {
                to == "/dev/null"
            } else {
                own && !of_the_run.contains(&to)
            },
            "descriptor {fd} is {to}"
        );
    }
    assert_eq!(
        waiter.stat(6),
        Some(i64::from(waiter.pid)),
        "the leader of a session of its own"
    );
    assert_ne!(
        waiter.stat(5),
        run.process.stat(5),
        "not in the run's process group"
    );
    assert_eq!(waiter.stat(7), Some(0), "no terminal");
    assert_ne!(waiter.parent(), run.process.pid);

    // The run ends, the timer starts to count; then it is left alone for a while.
    fs::write(scratch.path("go"), "").expect("go");
    run.wait().expect(&[0]);
    wait_until("the timer to count", SHORT, || {
        scratch.timers()[0]["state"] == "waiting"
    });
    waiter.wait_until_asleep();
    let before = switches(waiter);
    stays("it waits", Duration::from_secs(20), || waiter.alive());
    assert_eq!(switches(waiter) - before, 0, "wakeups in 20 s of waiting");
    let (resident, anonymous) = (
        waiter.memory("Rss").expect("Rss"),
        waiter.memory("Anonymous").expect("Anonymous"),
    );
    assert!(resident <= 1200, "{resident} kB resident");
    assert!(anonymous <= 256, "{anonymous} kB anonymous");

    // And stopped while it counts.
    let stop = scratch.again(&["stop", "again"]);
    assert_eq!(stop.code, Some(0), "{stop:?}");
    assert_all_gone(&scratch);
    assert_eq!(scratch.starts().len(), 1);
}

#[test]
fn a_timer_is_stopped_while_it_waits_for_the_run() {
    let scratch = Scratch::with_puppet();
    let manifest = ask_and_hold(&scratch);
    let run = scratch.puppet_apply(&["-e", &manifest]).start();
    until_held(&scratch);
    let waiter = scratch.only_waiter();
    assert_eq!(scratch.timers()[0]["state"], "waiting for the run");
    let stop = scratch.again(&["stop"]);
    assert_eq!(stop.code, Some(0), "{stop:?}");
    assert!(!waiter.alive(), "gone when stop says so");
    assert!(run.process.alive(), "the run goes on");
    fs::write(scratch.path("go"), "").expect("go");
    run.wait().expect(&[0]);
    assert_all_gone(&scratch);
    assert_eq!(scratch.starts().len(), 1);
}

/// Due, and another agent run has the lock: stopping the timer leaves that run alone.
#[test]
fn a_timer_is_stopped_while_another_run_holds_it_up() {
    let scratch = Scratch::with_puppet();
    let agent = CachedAgent::new(&scratch, "", "");
    let holder = crate::agent::held_up(&scratch, &agent);
    let waiter = scratch.only_waiter();
    let stop = scratch.again(&["stop"]);
    assert_eq!(stop.code, Some(0), "{stop:?}");
    assert!(!waiter.alive() && holder.process.alive());
    fs::write(scratch.path("go"), "").expect("go");
    let _ = holder.wait();
    assert_all_gone(&scratch);
    assert_eq!(
        scratch.starts().len(),
        2,
        "the run that asked and the one that held the lock"
    );
}

/// `stop` lets a rerun that is under way go on; `stop --run` ends it.
#[test]
fn a_rerun_under_way_is_ended_on_demand_only() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    let body = format!(
        "{}\nexec {{ 'hold': command => ['/bin/sh', '-c', 'until test -e {root}/go; do sleep 0.05; done'], provider => 'posix', timeout => 300,\n  \
           onlyif => '/usr/bin/test -e {root}/hold' }}\n\
         file {{ '{root}/hold': content => '', require => Exec['hold'] }}",
        crate::changes_once(&scratch, "Exec['again']")
    );
    scratch.write("work/site.pp", &scratch.manifest(&body));
    scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    until_held(&scratch);
    let rerun = scratch.starts()[1].process;
    let status = scratch.status();
    assert_eq!(
        status["targets"][0]["running"]["pid"], rerun.pid,
        "{status:#}"
    );

    let left = scratch.again(&["stop"]);
    assert!(left.out.contains("left alone: run 2 of chain "), "{left:?}");
    assert!(rerun.alive(), "stop alone does not end a rerun");
    let stop = scratch.again(&["stop", "--run"]);
    assert_eq!(stop.code, Some(0), "{stop:?}");
    rerun.wait_until_gone(SHORT);
    // What the rerun's Exec had started is not ours to end.
    fs::write(scratch.path("go"), "").expect("go");
    scratch.settle(SHORT);
    let status = scratch.status();
    assert!(status["targets"][0]["running"].is_null());
    // Puppet's summary counts no failure of what was cut short.
    let last = &status["targets"][0]["last"];
    assert_eq!(last["outcome"], "failed", "{last:#}");
    let evidence = last["evidence"].as_str().expect("evidence");
    assert!(
        evidence.contains("cut short") && evidence.contains("ended by TERM"),
        "{evidence}"
    );
    assert_eq!(scratch.starts().len(), 2);
}
