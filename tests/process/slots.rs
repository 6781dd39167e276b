use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use again_test_support::{SHORT, Scratch, WAITS, start, stays, wait_until};

/// Creates a directory whose reruns wait for slots.
fn with_slots() -> Scratch {
    let scratch = Scratch::new();
    scratch.settings("slots = true");
    scratch
}

fn asking_once(scratch: &Scratch) -> Command {
    scratch.apply("site", "ask('run') if NTH == 1")
}

fn ask_once(scratch: &Scratch) {
    start(&mut asking_once(scratch)).finish();
}

fn kinds(descriptors: &[(i32, String)]) -> Vec<&str> {
    let above = descriptors.iter().filter(|(fd, _)| *fd > 2);
    let mut kinds: Vec<&str> = above
        .map(|(_, to)| to.split('[').next().unwrap_or(to))
        .filter(|to| !to.contains("/orders/"))
        .collect();
    kinds.sort_unstable();
    kinds
}

#[test]
fn a_rerun_starts_once_it_has_a_slot_and_nothing_is_left_of_the_question() {
    let scratch = with_slots();
    scratch.install_slots();
    ask_once(&scratch);
    let timer = scratch.blocked_by_slot(WAITS);
    assert_eq!(
        (&timer["state"], &timer["reason"]),
        (&"due".into(), &Value::Null)
    );
    let status = scratch.again_well(&["status"]);
    let line = format!("timer 'again': due, {WAITS} (run 2 of chain ");
    assert!(status.contains(&line), "{status}");

    let (waiter, child) = (scratch.waiter("again"), scratch.question(1));
    assert_eq!(child.parent(), waiter.pid, "the run is the waiter");
    assert_eq!(scratch.asked_for_slots()[0].0, waiter.pid);
    // The script sees the run's environment, and inherits nothing from the waiter.
    let first = &scratch.runs("site")[0];
    let seen = scratch.text("environ");
    for name in ["RIG_MARK", "HOME", "PATH"] {
        let entry = format!("{name}={}\0", first.variable(name).expect("there"));
        assert!(seen.contains(&entry), "{seen:?}");
    }
    let fds = scratch.text("fds");
    assert!(
        !fds.contains("/orders/") && !fds.contains("anon_inode"),
        "{fds}"
    );
    waiter.wait_until_asleep();
    let switches = || waiter.status("voluntary_ctxt_switches").expect("a count");
    let before = switches();
    stays("it sleeps", Duration::from_secs(2), || switches() == before);
    assert_eq!(scratch.runs("site").len(), 1);

    scratch.answer_slot("0");
    let runs = scratch.wait_for_runs("site", 2);
    assert_eq!(runs[1].pid(), waiter.pid, "the run that asked");
    assert_eq!(runs[0].environment(), runs[1].environment());
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
    assert!(!child.alive());
    assert_eq!(scratch.asked_for_slots().len(), 1);
    assert!(scratch.told("delayed").is_empty());
    // Reference: the rerun of a run that needs no slot.
    scratch.settings("");
    start(&mut scratch.apply("plain", "ask('run') if NTH == 1")).finish();
    let plain = scratch.wait_for_runs("plain", 2);
    assert_eq!(
        kinds(&runs[1].descriptors()),
        kinds(&plain[1].descriptors())
    );
    scratch.wait_until_settled();
}

#[test]
fn a_stop_ends_the_waiter_and_its_question() {
    let scratch = with_slots();
    scratch.install_slots();
    ask_once(&scratch);
    scratch.blocked_by_slot(WAITS);
    let (waiter, child) = (scratch.waiter("again"), scratch.question(1));
    scratch.again_well(&["stop"]);
    assert!(!waiter.alive() && !child.alive());
    scratch.assert_nothing_left();
    assert_eq!(scratch.runs("site").len(), 1);
}

#[test]
fn a_killed_waiter_takes_its_question_along_and_its_successor_asks_anew() {
    let scratch = with_slots();
    scratch.install_slots();
    ask_once(&scratch);
    scratch.blocked_by_slot(WAITS);
    let (waiter, child) = (scratch.waiter("again"), scratch.question(1));
    waiter.signal(Signal::SIGKILL).expect("killed");
    waiter.wait_until_gone(SHORT);
    child.wait_until_gone(SHORT);
    scratch.again_well(&["resume"]);
    let child = scratch.question(2);
    assert_eq!(child.parent(), scratch.waiter("again").pid);
    scratch.answer_slot("0");
    scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The waiter retries after a minute, or when a person uses `now`.
#[test]
fn without_a_slot_it_says_why_and_asks_again() {
    let scratch = with_slots();
    let again = "waits for a slot, and asks again within a minute: ";
    let settings = scratch.write("again-fleet.toml", "slots_required = true # by all means\n");
    let mut asks = scratch.apply("site", "ask('run') if NTH == 1");
    start(asks.env("AGAIN_FLEET_CONFIG", settings)).finish();
    scratch.blocked_by_slot(&format!(
        "{again}again-fleet is not installed: it is neither beside"
    ));
    scratch.install_slots();
    let begun = Instant::now();
    scratch.again_well(&["now"]);
    let denied = "no slot of group 'g' within 30m: others run";
    for nth in 1..=2 {
        let child = scratch.question(nth);
        scratch.blocked_by_slot(WAITS);
        scratch.answer_slot(&format!("1 {denied}"));
        child.wait_until_gone(SHORT);
        scratch.blocked_by_slot(&format!("{again}{denied}"));
        scratch.again_well(&["now"]);
    }
    let child = scratch.question(3);
    child.signal(Signal::SIGKILL).expect("killed");
    let killed = "'again fleet slot' was ended by signal 9";
    scratch.blocked_by_slot(&format!("{again}{killed}"));
    scratch.again_well(&["now"]);
    scratch.question(4);
    // Without `now`, four attempts would take four minutes.
    assert!(begun.elapsed() < Duration::from_secs(120));
    scratch.answer_slot("0");
    scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
    // Each reason is recorded once.
    let delayed: Vec<String> = scratch
        .told("delayed")
        .into_iter()
        .map(|told| told.1)
        .collect();
    assert_eq!(delayed.len(), 3, "{delayed:?}");
    assert_eq!(delayed[1..], [denied, killed]);
    let history = scratch.again_well(&["history"]);
    assert!(history.contains("delayed   waited "), "{history}");
}

/// The program is missing, and no setting requires a slot: the rerun starts, a while later.
#[test]
fn without_the_program_it_goes_ahead_after_a_while() {
    let scratch = with_slots();
    let begun = Instant::now();
    let mut run = scratch.without_system_log(&asking_once(&scratch));
    scratch.with_output(&mut run);
    start(&mut run).finish();
    scratch.wait_for_runs("site", 2);
    assert!(begun.elapsed() >= Duration::from_secs(10));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
    assert!(scratch.told("delayed").is_empty());
    let log = scratch.text("state/again.log");
    assert!(
        log.contains("the run goes ahead without a slot: again-fleet is not installed"),
        "{log}"
    );
}

/// No slot is requested while the rerun could not use it.
#[test]
fn what_else_is_in_the_way_is_heard_while_it_waits() {
    let scratch = with_slots();
    scratch.install_slots();
    fs::create_dir(scratch.path("puppet")).expect("a directory");
    let lock = scratch.at("puppet/lock");
    scratch.settings(&format!(
        "slots = true\nagent_catalog_run_lockfile = \"{lock}\""
    ));
    ask_once(&scratch);
    scratch.blocked_by_slot(WAITS);
    let (first, child) = (scratch.waiter("again"), scratch.question(1));
    scratch.again_well(&["disable", "freeze"]);
    child.wait_until_gone(SHORT);
    // The run that made the request has ended, so it blocks nothing.
    first.wait_until_gone(SHORT);
    let timer = scratch.wait_for_state("again", "held");
    assert_eq!(timer["reason"], "again is disabled: freeze");
    scratch.again_well(&["enable"]);
    scratch.blocked_by_slot(WAITS);

    let (second, child) = (scratch.waiter("again"), scratch.question(2));
    let manifest =
        format!("File.binwrite('{lock}', Process.pid.to_s); hold('go'); File.delete('{lock}')");
    let other = start(&mut scratch.apply("other", &manifest));
    child.wait_until_gone(SHORT);
    wait_until("the other run to be waited for", SHORT, || {
        let timer = scratch.timer("again").expect("pending");
        timer["blocked_by"]["what"] == "agent lock"
    });
    scratch.release("go");
    other.finish();
    let child = scratch.question(3);
    assert_eq!(
        child.parent(),
        second.pid,
        "for a moment it keeps its place"
    );
    scratch.answer_slot("0");
    let runs = scratch.wait_for_runs("site", 2);
    assert_eq!(runs[0].environment(), runs[1].environment());
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
    let history: Vec<Value> = scratch.history();
    let words: Vec<&Value> = history.iter().map(|entry| &entry["what"]).collect();
    assert_eq!(words, ["requested", "resumed", "started", "ended"]);
}

/// A command other than a run of Puppet needs no slot, and a run in the foreground waits for none.
#[test]
fn only_reruns_of_puppet_wait() {
    let scratch = with_slots();
    scratch.install_slots();
    scratch.again_well(&["run", "--", "/bin/true"]);
    scratch.wait_until_settled();
    scratch.write("work/driven.pp", "ask('run') if NTH == 1");
    let puppet = scratch.at("bin/puppet");
    let words = ["ruby", "--disable-gems", &puppet, "apply"];
    let words = [&words[..], &["driven.pp"]].concat();
    scratch.again_well(&[&["converge", "--"][..], &words].concat());
    assert_eq!(scratch.runs("driven").len(), 2);
    assert_eq!(scratch.asked_for_slots(), []);

    scratch.write("work/named.pp", "");
    let words = [&words[..4], &["named.pp"]].concat();
    let explained = scratch.again_well(&[&["explain", "--"][..], &words].concat());
    assert!(explained.contains("  a slot of the fleet"), "{explained}");
    scratch.again_well(&[&["run", "--"][..], &words].concat());
    scratch.question(1);
    scratch.answer_slot("0");
    scratch.wait_for_runs("named", 1);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}
