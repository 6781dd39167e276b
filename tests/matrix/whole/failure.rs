use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::quick::fails_once;
use again_test_support::place::{assert_asked_once, run_twice, scratch};
use again_test_support::{
    CachedAgent, Ended, LONG, SHORT, Scratch, hold_until, text, until_held, wait_for, wait_until,
};

const ON_FAILURE: &str = "on_failure => true,";

/// A run with this manifest, which has to fail; and whether it was run again.
fn apply(scratch: &Scratch, manifest: &str, options: &[&str]) -> (Ended, bool) {
    scratch.write("work/site.pp", manifest);
    let run = scratch
        .puppet_apply(&[&["site.pp", "--detailed-exitcodes"], options].concat())
        .run();
    scratch.settle(LONG);
    let again = scratch.starts().len() > 1;
    (run, again)
}

#[test]
fn an_agents_run_is_run_again() {
    let scratch = scratch();
    let agent = CachedAgent::new(&scratch, &fails_once(&scratch), "");
    run_twice(&scratch, agent.command(&["--test"]), 6);
}

#[test]
fn a_daemons_run_is_run_again() {
    let scratch = scratch();
    let agent = CachedAgent::new(&scratch, &fails_once(&scratch), "runinterval = 3600");
    agent.plain().run().expect(&[0]);
    let daemon = wait_for("the daemon", SHORT, || agent.daemon());
    wait_until("the rerun", LONG, || scratch.catalogs().len() == 2);
    wait_until("its end", LONG, || scratch.processes() == [daemon]);
    assert_eq!(
        scratch.starts()[1].environment["AGAIN_TIMER"],
        "again-on-failure"
    );
    assert!(daemon.alive());
    daemon.end();
    scratch.settle(LONG);
}

/// The line is in the report, as that of an Exec would be.
#[test]
fn the_report_has_the_line() {
    let scratch = scratch();
    let manifest = scratch.manifest_with("on_failure => '1h',", "exec { '/bin/false': }");
    scratch.write("work/site.pp", &manifest);
    let run = scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    assert_asked_once(&run);
    let timers = scratch.timers();
    assert_eq!(timers[0]["name"], "again-on-failure");
    assert_eq!(timers[0]["delta_seconds"], 3600.0);
    let report = fs::read_to_string(scratch.path("puppet/var/state/last_run_report.yaml"))
        .expect("the report");
    assert!(report.contains("again: scheduled: "), "{report}");
    scratch.again(&["stop"]);
    scratch.settle(LONG);
}

/// A refresh that fails is a failure like any other.
#[test]
fn a_failed_refresh_counts() {
    let scratch = scratch();
    let root = scratch.root();
    let body = format!(
        "exec {{ '/bin/true': unless => '/usr/bin/test -e {root}/tried', notify => Exec['refresh'] }}\n\
         exec {{ 'refresh': command => ['/bin/sh', '-c', 'touch {root}/tried; false'], provider => 'posix', refreshonly => true }}"
    );
    let (run, again) = apply(&scratch, &scratch.manifest_with(ON_FAILURE, &body), &[]);
    assert!(again, "{}", run.out);
    assert_eq!(scratch.starts().len(), 2);
}

/// What the class was to wait for has failed, so that its own resources are all skipped.
#[test]
fn a_class_that_is_skipped_for_a_failure_asks_all_the_same() {
    let scratch = scratch();
    let root = scratch.root();
    let body = format!(
        "exec {{ 'fails once': command => ['/bin/sh', '-c', 'touch {root}/tried; false'], provider => 'posix', \
           creates => '{root}/tried', before => Class['common::again'] }}"
    );
    let (run, again) = apply(&scratch, &scratch.manifest_with(ON_FAILURE, &body), &[]);
    assert!(again, "{}", run.out);
    assert_eq!(scratch.starts().len(), 2);
}

#[test]
fn without_a_failure_and_without_the_parameter_nothing_is_asked() {
    for (parameters, body) in [
        (ON_FAILURE, "exec { '/bin/true': }"),
        ("", "exec { '/bin/false': }"),
        ("on_failure => false,", "exec { '/bin/false': }"),
    ] {
        let scratch = scratch();
        let (run, again) = apply(&scratch, &scratch.manifest_with(parameters, body), &[]);
        assert!(!again && run.lines_of_again().is_empty(), "{}", run.out);
    }
}

#[test]
fn a_noop_run_asks_for_nothing() {
    let scratch = scratch();
    let manifest = scratch.manifest_with(ON_FAILURE, "exec { '/bin/false': noop => false }");
    let (run, again) = apply(&scratch, &manifest, &["--noop"]);
    run.expect(&[4, 6]);
    assert!(!again);
}

/// As the Execs: by the tag `again` only.
#[test]
fn tags_are_obeyed() {
    let body = "class other { exec { '/bin/false': } } include other";
    let scratch = scratch();
    let manifest = scratch.manifest_with("on_failure => '1h',", body);
    let (run, _) = apply(&scratch, &manifest, &["--tags", "other"]);
    let run = run.expect(&[4, 6]);
    assert!(run.lines_of_again().is_empty(), "{}", run.out);
    let run = scratch
        .puppet_apply(&["site.pp", "--tags", "other,again"])
        .run()
        .expect(&[0]);
    assert_asked_once(&run);
    scratch.again(&["stop"]);
    scratch.settle(LONG);
}

/// The cap: so many reruns, and then a line that is an error, once. The reruns share the cap with those of Exec['again'].
#[test]
fn a_failure_that_stays_stops_at_the_cap() {
    let scratch = scratch();
    scratch.settings("max_runs = 2");
    let body = "exec { '/bin/true': notify => Exec['again'] } exec { '/bin/false': }";
    let (_, again) = apply(&scratch, &scratch.manifest_with(ON_FAILURE, body), &[]);
    assert!(again);
    assert_eq!(scratch.starts().len(), 1 + 2);
    let logs = scratch.logs();
    let last = &logs.last().expect("a log").1;
    let refused = |by: &str| {
        last.lines()
            .filter(|line| line.contains(by) && line.contains("again: refused: "))
            .count()
    };
    assert_eq!(refused("Exec[again]/returns"), 1, "{last}");
    assert_eq!(
        refused("Again_on_failure[again-on-failure]: again: refused: "),
        1,
        "{last}"
    );
    let line = last
        .lines()
        .find(|line| line.contains("Again_on_failure"))
        .expect("a line");
    assert!(line.contains("Error: "), "{line}");
    assert!(
        line.contains("the cap is reached: 2 of at most 2 reruns within 1h"),
        "{line}"
    );
}

/// A refused request of Exec['again'] is a failed resource, and no reason to ask once more.
#[test]
fn a_refused_request_is_no_reason_to_ask() {
    let scratch = scratch();
    scratch.settings("max_runs = 0");
    let body = "exec { '/bin/true': notify => Exec['again'] }";
    let (run, again) = apply(&scratch, &scratch.manifest_with(ON_FAILURE, body), &[]);
    let run = run.expect(&[6]);
    assert!(!again);
    assert!(!run.out.contains("Again_on_failure"), "{}", run.out);
}

/// Whoever ends a run does not want another one.
#[test]
fn a_run_that_was_told_to_stop_asks_for_nothing() {
    let scratch = scratch();
    let go = text(scratch.path("go"));
    let body = format!(
        "exec {{ '/bin/false': }} -> Exec['last']\n exec {{ 'last': command => '/bin/true' }}\n{}",
        hold_until("hold", &go)
    );
    scratch.write("work/site.pp", &scratch.manifest_with(ON_FAILURE, &body));
    let run = scratch.puppet_apply(&["site.pp"]).start();
    until_held(&scratch);
    run.process.signal(Signal::SIGTERM).expect("a signal");
    // Time itself is tested: Ruby handles a signal some time after it was delivered.
    std::thread::sleep(Duration::from_millis(300));
    fs::write(&go, "").expect("go");
    let run = run.wait();
    assert!(run.lines_of_again().is_empty(), "{}", run.out);
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 1);
}

/// Deleted in the very run: an error in its log, and the run ends as it would have.
#[test]
fn without_the_helper_there_is_a_line_that_says_so() {
    let scratch = scratch();
    let body = "exec { '/bin/false': }";
    let manifest = scratch
        .manifest_with(ON_FAILURE, body)
        .replace("/bin/again'", "/bin/not-there'");
    let (run, again) = apply(&scratch, &manifest, &[]);
    let run = run.expect(&[4]);
    assert!(!again);
    assert!(
        run.out
            .contains("again: error: cannot ask for a run after this one's failures: there is no "),
        "{}",
        run.out
    );
}
