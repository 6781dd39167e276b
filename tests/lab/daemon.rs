//! puppet.service as packaged: a daemon that forks a child for each run, KillMode=process.

use crate::{
    Mark, asks_once, asks_once_with, delta, marks, nothing_more_happens, put_off_own_runs,
};
use again_test_support::Lab;

/// The run of the service's daemon that asked, by its mark.
fn first_mark(lab: &Lab) -> Mark {
    lab.wait_until("the daemon's first run", 30, || marks(lab).first().cloned())
}

/// Waits for the end of a process; when it was seen last, before that. On a busy machine its end is seen late.
fn ended(lab: &Lab, pid: u64) -> f64 {
    // It was there when it made its mark.
    let own = marks(lab).into_iter().filter(|mark| mark.pid == pid);
    let mut seen = own.map(|mark| mark.uptime).fold(0.0, f64::max);
    lab.wait_until(&format!("pid {pid} has ended"), 60, || {
        let now = lab.uptime();
        if lab.group_of(pid).is_some() {
            seen = now;
            return None;
        }
        Some(seen)
    })
}

#[test]
fn a_timer_outlives_a_restart_of_the_service() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(40)));
    lab.sh("systemctl start puppet");
    let timer = lab.pending(30);
    let asked = first_mark(&lab);
    let end = ended(&lab, asked.pid);
    lab.sh("systemctl restart puppet");
    assert_eq!(
        lab.pending(1)["waiter"]["pid"],
        timer["waiter"]["pid"],
        "the restart took the waiter"
    );

    let reruns = lab.wait_for_reruns(1, 60);
    assert!(reruns[0].started >= end - 0.5 + 40.0, "early");
    let argv: Vec<_> = reruns[0].argv.iter().map(String::as_str).collect();
    assert_eq!(argv[0], "agent");
    for flag in ["--onetime", "--no-daemonize", "--no-splay"] {
        assert!(argv.contains(&flag), "{argv:?}");
    }
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
    assert_eq!(lab.sh("systemctl is-active puppet").trim(), "active");
}

const SLOW: &str = "exec { '/bin/sleep 9': require => Exec['again'], unless => '/usr/bin/test -e /var/lib/slept' }
    exec { '/bin/touch /var/lib/slept': creates => '/var/lib/slept', require => Exec['/bin/sleep 9'] }";

/// KillMode=process leaves the run's child alive, with the lock.
#[test]
fn a_run_orphaned_by_a_restart_is_waited_for() {
    let lab = Lab::boot();
    lab.catalog(&asks_once_with(SLOW, "Exec['again']"));
    lab.sh("systemctl start puppet");
    lab.pending(30);
    let run = first_mark(&lab).pid;
    lab.sh("systemctl restart puppet");
    let parent = lab.sh(&format!("cut -d' ' -f4 /proc/{run}/stat"));
    assert_eq!(parent.trim(), "1", "the restart did not orphan the run");
    assert!(lab.reruns().is_empty());

    let end = ended(&lab, run);
    let reruns = lab.wait_for_reruns(1, 40);
    assert!(
        reruns[0].started >= end - 0.5,
        "the rerun began {} s before the orphan's end",
        end - reruns[0].started
    );
    // Nothing was applied beside the orphan: neither by the new daemon nor by the rerun.
    assert!(
        marks(&lab)[1..].iter().all(|m| m.uptime >= end - 0.5),
        "{:?}",
        marks(&lab)
    );
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}

/// The same, but the orphan asks only after it has lost its daemon.
#[test]
fn a_run_orphaned_by_a_restart_can_still_ask() {
    let lab = Lab::boot();
    lab.catalog(&asks_once_with(
        "exec { '/bin/sh -c \"until test -e /var/lib/go; do sleep 0.2; done\"':
           before => Exec['ask'], require => Exec['mark'], creates => '/var/lib/asked' }",
        "Exec['again']",
    ));
    lab.sh("systemctl start puppet");
    let run = first_mark(&lab).pid;
    lab.sh("systemctl restart puppet");
    // Whose first run finds the orphan's lock; its next one is half an hour away.
    lab.wait_until("the new daemon", 120, || {
        lab.log_of("puppet")
            .contains("already in progress")
            .then_some(())
    });
    lab.write("/var/lib/go", "");
    let end = ended(&lab, run);
    let reruns = lab.wait_for_reruns(1, 40);
    assert!(reruns[0].started >= end - 0.5, "early");
    assert!(
        reruns[0].argv.iter().any(|a| a == "--onetime"),
        "{:?}",
        reruns[0].argv
    );
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}

/// What a module that manages Puppet's own settings does. The new daemon has no pid file yet when the orphan asks.
#[test]
fn a_run_that_restarts_its_own_service_can_ask_afterwards() {
    let lab = Lab::boot();
    lab.catalog(&asks_once_with(
        "service { 'puppet': ensure => running, subscribe => Exec['ask'], before => Exec['again-delta-later'] }",
        // Long enough for a busy machine: a run of the new daemon's that begins later does the timer's job.
        &delta(40),
    ));
    lab.sh("systemctl start puppet");
    let run = first_mark(&lab).pid;
    let end = ended(&lab, run);
    assert!(
        lab.log_of("puppet")
            .contains(&format!("Unit process {run} (puppet) remains running")),
        "the run did not restart its service"
    );
    let reruns = lab.wait_for_reruns(1, 80);
    assert!(reruns[0].started >= end - 0.5 + 40.0, "early");
    assert!(
        reruns[0].argv.iter().any(|a| a == "--onetime"),
        "{:?}",
        reruns[0].argv
    );
    for name in ["HOME", "PATH", "USER"] {
        assert_eq!(
            reruns[0].var(name),
            lab.runs()[0].var(name),
            "{name} is not the service's"
        );
    }
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}

#[test]
fn after_the_service_was_stopped_there_is_no_rerun_and_the_history_says_so() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(6)));
    lab.sh("systemctl start puppet");
    lab.pending(30);
    ended(&lab, first_mark(&lab).pid);
    lab.sh("systemctl stop puppet");
    lab.wait_until("the timer has ended", 20, || {
        lab.timers().is_empty().then_some(())
    });
    assert!(
        lab.history().contains("stopped with the service"),
        "the history does not say so:\n{}",
        lab.history()
    );
    nothing_more_happens(&lab);
    assert!(lab.reruns().is_empty());
    assert_eq!(marks(&lab).len(), 1);
}

/// It is due while the old daemon has gone, and the new one is not there yet or has no pid file.
#[test]
fn a_timer_that_is_due_while_the_service_is_restarted() {
    for restart in [
        "systemctl restart puppet",
        "systemctl stop puppet; sleep 4; systemctl start puppet",
    ] {
        let lab = Lab::boot();
        lab.catalog(&asks_once(&delta(2)));
        lab.sh("systemctl start puppet");
        ended(&lab, first_mark(&lab).pid);
        put_off_own_runs(&lab);
        lab.sh(restart);
        lab.wait_for_reruns(1, 40);
        nothing_more_happens(&lab);
        assert_eq!(lab.reruns().len(), 1);
        assert!(
            !lab.history().contains("stopped with the service"),
            "{restart}:\n{}",
            lab.history()
        );
    }
}

/// A rerun of a daemon's run asks in its turn. That began in the service too, and stops with it.
#[test]
fn a_chain_that_began_in_the_service_stops_with_it() {
    let lab = Lab::boot();
    let asks = "exec { 'more': command => '/bin/true', notify => Exec['again-delta-later'] }";
    lab.catalog(&asks_once_with(asks, &delta(8)));
    lab.sh("systemctl start puppet");
    let rerun = lab.wait_for_reruns(1, 60)[0].pid;
    lab.pending(20);
    ended(&lab, rerun);
    lab.sh("systemctl stop puppet");
    lab.wait_until("the timer has ended", 30, || {
        lab.timers().is_empty().then_some(())
    });
    assert!(
        lab.history().contains("stopped with the service"),
        "the history does not say so:\n{}",
        lab.history()
    );
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}

/// Stopped and started again before it is due: the operator wants Puppet to run.
#[test]
fn a_service_that_was_stopped_and_started_again_keeps_its_timer() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(40)));
    lab.sh("systemctl start puppet");
    lab.pending(30);
    ended(&lab, first_mark(&lab).pid);
    lab.sh("systemctl stop puppet; sleep 1; systemctl start puppet");
    lab.wait_for_reruns(1, 80);
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}

/// Whatever a rerun starts has AGAIN_CHAIN and AGAIN_RUN in its environment, and does not count as part of the chain.
#[test]
fn a_daemon_that_a_rerun_started_does_not_belong_to_its_chain() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(300)));
    lab.manifest(
        "exec { '/bin/touch /var/lib/first': creates => '/var/lib/first', notify => Exec['rerun'] }
        exec { 'rerun': command => '/usr/local/bin/again run --jitter 0', refreshonly => true, logoutput => true }
        exec { '/usr/bin/puppet agent': onlyif => '/usr/bin/test -n \"$AGAIN_RUN\"', provider => shell }",
    );
    lab.exec(&["puppet", "apply", "/root/site.pp"]).ok();
    let rerun = &lab.wait_for_reruns(1, 40)[0];
    let timer = lab.pending(40);
    let daemon = lab
        .runs()
        .into_iter()
        .find(|run| run.argv == ["agent"])
        .expect("a daemon was started");
    assert_eq!(
        daemon.var("AGAIN_RUN"),
        Some("2"),
        "the daemon inherits nothing, this shows nothing"
    );
    assert_eq!(timer["name"], "later");
    assert_ne!(timer["chain"].as_str(), rerun.var("AGAIN_CHAIN"));
    assert_eq!(timer["run"], 2, "{timer:#?}");
}
