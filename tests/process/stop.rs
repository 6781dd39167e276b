use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::sys::signal::Signal;

use again_test_support::{
    Dice, SHORT, Scratch, Stamp, Started, assert_line, now, sleep_until, start, timed, wait_until,
};

/// Starts a run that makes a request with these words and then continues until `go`.
fn ask_and_hold(scratch: &Scratch, words: &str) -> Started {
    let manifest = format!("ask('run', {words}) if NTH == 1\nhold('go') if NTH == 1");
    start(&mut scratch.apply("site", &manifest))
}

/// Runs a run that makes a request with these words.
fn ask_and_end(scratch: &Scratch, words: &str) {
    start(&mut scratch.apply("site", &format!("ask('run', {words}) if NTH == 1"))).finish();
}

/// Stops the only timer; checks that it is gone when `stop` returns, that nothing is left, and that
/// no further run starts.
fn assert_stops(scratch: &Scratch, runs: usize) {
    let waiter = scratch.waiter("again");
    let answer = scratch.again(&["stop"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(assert_line(&answer.out), "stopped");
    assert!(answer.out.contains("timer 'again'"), "{answer:?}");
    assert!(!waiter.alive(), "gone when stop says so");
    scratch.assert_nothing_left();
    let stopped = scratch.told("stopped");
    assert_eq!(
        stopped,
        [("again".to_owned(), "stopped by root".to_owned())]
    );
    assert!(scratch.told("started").is_empty());
    assert_eq!(scratch.runs("site").len(), runs);
    // A second `stop` finds nothing to stop.
    let answer = scratch.again(&["stop"]);
    assert_eq!(
        (answer.code, assert_line(&answer.out).as_str()),
        (Some(0), "nothing to do")
    );
}

#[test]
fn while_it_waits_for_the_run() {
    let scratch = Scratch::new();
    let run = ask_and_hold(&scratch, "'--delta', '1h'");
    scratch.wait_for_state("again", "waiting for the run");
    assert_stops(&scratch, 1);
    assert!(run.process.alive(), "the run goes on");
    scratch.release("go");
    run.finish();
    scratch.assert_nothing_left();
    assert_eq!(scratch.runs("site").len(), 1);
}

#[test]
fn while_it_waits_to_be_due() {
    let scratch = Scratch::new();
    ask_and_end(&scratch, "'--delta', '1h'");
    scratch.wait_for_state("again", "waiting");
    assert_stops(&scratch, 1);
}

#[test]
fn while_another_run_holds_the_agents_lock() {
    let scratch = Scratch::new();
    let holder = start(&mut scratch.apply("holder", "hold('go')"));
    scratch.write("lock", &holder.process.pid.to_string());
    let lock = scratch.at("lock");
    ask_and_end(
        &scratch,
        &format!("'--agent-catalog-run-lockfile', '{lock}'"),
    );
    scratch.wait_for_state("again", "due");
    assert_stops(&scratch, 1);
    assert!(holder.process.alive(), "the other run goes on");
    scratch.release("go");
    holder.finish();
    scratch.assert_nothing_left();
}

/// Returns the lines of proc_pid_fdinfo(5) about a process's inotify(7) watches.
fn watched_by(pid: i64) -> String {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("a process");
    let texts = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    let watches = lines.filter(|line| line.starts_with("inotify "));
    watches.map(|line| line + "\n").collect()
}

#[test]
fn while_the_agent_is_disabled() {
    let scratch = Scratch::new();
    scratch.write("lock", "{\"disabled_message\":\"on holiday\"}");
    let lock = scratch.at("lock");
    let words = format!(
        "'--agent-disabled-lockfile', '{lock}', '--agent-catalog-run-lockfile', ROOT + '/none'"
    );
    start(&mut scratch.agent("site", &format!("ask('run', {words}) if NTH == 1"))).finish();
    let timer = scratch.wait_for_state("again", "held");
    assert_eq!(timer["reason"], "the puppet agent is disabled: on holiday");
    // The watches are those that its wait depends on, and none that any other run writes to: the
    // directories of the lock and of the switch, which comes last.
    let waiter = timer["waiter"]["pid"].as_i64().expect("a waiter");
    let inode = |path| std::fs::metadata(scratch.path(path)).expect("there").ino();
    let switch = format!("ino:{:x} ", inode("state"));
    let mut watched = String::new();
    wait_until("the waiter to watch", SHORT, || {
        watched = watched_by(waiter);
        watched.contains(&switch)
    });
    assert!(
        watched.contains(&format!("ino:{:x} ", inode("."))),
        "{watched}"
    );
    assert_eq!(watched.lines().count(), 2, "{watched}");
    assert_stops(&scratch, 1);
    std::fs::remove_file(scratch.path("lock")).expect("enabled");
    scratch.assert_nothing_left();
    assert_eq!(scratch.runs("site").len(), 1);
}

#[test]
fn while_again_is_disabled() {
    let scratch = Scratch::new();
    let run = ask_and_hold(&scratch, "'--name', 'again'");
    scratch.wait_for_state("again", "waiting for the run");
    scratch.write("state/disabled", "{\"reason\":\"freeze\",\"since\":1}");
    scratch.release("go");
    run.finish();
    let timer = scratch.wait_for_state("again", "held");
    assert_eq!(timer["reason"], "again is disabled: freeze");
    assert_eq!(scratch.status()["disabled"]["reason"], "freeze");
    assert_stops(&scratch, 1);
    std::fs::remove_file(scratch.path("state/disabled")).expect("enabled");
    scratch.assert_nothing_left();
    assert_eq!(scratch.runs("site").len(), 1);
}

/// A rerun has requested another one, and ends while `again` is disabled: that one is held, and the
/// end of the first is recorded once, however often the waiter looks.
#[test]
fn disabled_between_a_rerun_and_the_next() {
    let scratch = Scratch::new();
    let manifest = "ask('run') if NTH < 3\nhold('go') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    wait_until("the rerun to ask", SHORT, || {
        let runs = scratch.runs("site");
        runs.get(1).is_some_and(|rerun| !rerun.asked().is_empty())
    });
    scratch.waiter("again").wait_until_asleep();
    scratch.again_well(&["disable", "freeze"]);
    scratch.release("go");
    scratch.wait_for_state("again", "held");
    scratch.again_well(&["enable"]);
    scratch.wait_for_runs("site", 3);
    scratch.wait_until_settled();
    let ended = scratch.told("ended");
    assert_eq!(ended.len(), 2, "one of each rerun: {ended:?}");
    assert_eq!(scratch.told("started").len(), 2);
    scratch.assert_nothing_left();
}

/// The timer is held by another rerun of the same target; stopping the timer does not affect that
/// rerun, `--run` ends it as well.
#[test]
fn while_a_rerun_is_under_way_and_the_rerun_too() {
    let scratch = Scratch::new();
    let manifest = "if NTH == 1 then ask('run'); ask('run', '--name', 'later', '--delta', '1') end\nhold('go') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    scratch.wait_for_state("later", "due");
    let rerun = scratch.status()["targets"][0]["running"]["pid"]
        .as_i64()
        .expect("a pid") as i32;
    let rerun = again_test_support::Process::now(rerun).expect("the rerun");

    let answer = scratch.again(&["stop"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(scratch.timers().is_empty() && scratch.waiters().is_empty());
    assert!(rerun.alive(), "stop alone does not end a rerun");

    let answer = scratch.again(&["stop", "--run"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(assert_line(&answer.out), "stopped");
    assert!(
        answer.out.contains(&format!("pid {}", rerun.pid)),
        "{answer:?}"
    );
    assert!(!rerun.alive(), "ended when stop says so");
    scratch.assert_nothing_left();
    assert_eq!(scratch.runs("site").len(), 2);
    assert_eq!(scratch.runs("site")[1].pid(), rerun.pid);
}

/// A rerun that ignores TERM is ended with KILL, ten seconds later.
#[test]
fn a_rerun_that_ignores_term() {
    let scratch = Scratch::new();
    let manifest = "Signal.trap('TERM', 'IGNORE') if NTH == 2\nask('run') if NTH == 1\nnote('deaf', '') if NTH == 2\nhold('go') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    wait_until("the rerun to be deaf", SHORT, || {
        scratch.path("past/site/002/deaf").exists()
    });
    let (answer, took) = timed(|| scratch.again(&["stop", "--run"]));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.out.contains("ended by KILL"), "{answer:?}");
    assert!(took >= Duration::from_secs(10), "no grace: {took:?}");
    println!("ended by KILL after {took:?}");
    scratch.assert_nothing_left();
}

/// Ruby loses a signal that reaches it as it starts: a young rerun gets a second one, and need not
/// be killed.
#[test]
fn a_young_rerun_that_loses_its_first_term() {
    let scratch = Scratch::new();
    let manifest = "ask('run') if NTH == 1\n\
        if NTH == 2\nterms = 0\nSignal.trap('TERM') { exit!(0) if (terms += 1) == 2 }\nnote('deaf', '')\nhold('go')\nend";
    start(&mut scratch.apply("site", manifest)).finish();
    wait_until("the rerun to be deaf", SHORT, || {
        scratch.path("past/site/002/deaf").exists()
    });
    let answer = scratch.again(&["stop", "--run"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.out.contains("ended by TERM"), "{answer:?}");
    scratch.assert_nothing_left();
}

/// A waiter that cannot act on TERM, because it is stopped, is ended all the same.
#[test]
fn a_waiter_that_does_not_react() {
    let scratch = Scratch::new();
    ask_and_end(&scratch, "'--delta', '1h'");
    // The waiter is asleep, not in the middle of writing when it is due.
    let waiter = scratch.waiter("again");
    wait_until("the waiter to sleep", SHORT, || {
        waiter.title().contains("waits until")
    });
    waiter.signal(Signal::SIGSTOP).expect("sent");
    assert_stops(&scratch, 1);
}

#[test]
fn by_name_and_no_other() {
    let scratch = Scratch::new();
    let words = "'--name', 'one', '--delta', '1h'); ask('run', '--name', 'two', '--delta', '1h'";
    ask_and_end(&scratch, words);
    start(&mut scratch.apply("other", "ask('run', '--name', 'two', '--delta', '1h')")).finish();
    let (one, two) = (scratch.waiter("one"), scratch.waiter("two"));

    let answer = scratch.again(&["stop", "three"]);
    assert_eq!(
        (answer.code, assert_line(&answer.err).as_str()),
        (Some(1), "error")
    );
    assert!(
        answer
            .err
            .contains("no timer named 'three' is pending; there is "),
        "{answer:?}"
    );
    assert_eq!(scratch.timers().len(), 3);

    // The timers of this name are stopped in every target.
    let answer = scratch.again(&["stop", "two"]);
    assert_eq!(
        (answer.code, answer.out.lines().count()),
        (Some(0), 2),
        "{answer:?}"
    );
    assert!(one.alive() && !two.alive());
    let left: Vec<_> = scratch
        .timers()
        .iter()
        .map(|timer| timer["name"].clone())
        .collect();
    assert_eq!(left, ["one"]);
    assert_eq!(scratch.orders("state").len(), 1);
    let answer = scratch.again(&["stop", "one", "two"]);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    scratch.assert_nothing_left();
}

/// Stopped within a few milliseconds of the due time, before and after: either the timer is stopped
/// and nothing starts, or there was nothing left to stop and the rerun starts once. `again` draws
/// the due times within a second.
#[test]
fn as_it_becomes_due() {
    const CASES: u64 = 48;
    const SEED: u64 = 0x5eed_0001;
    let scratch = Scratch::new();
    let file = scratch.at("stamps");
    let (mut stopped, mut started) = (0, 0);
    // Several cases at the same time, so that their waits overlap.
    std::thread::scope(|scope| {
        let cases: Vec<_> = (0..8)
            .map(|thread| {
                let (scratch, file) = (&scratch, &file);
                scope.spawn(move || {
                    let mut dice = Dice::new(SEED + thread);
                    (0..CASES / 8)
                        .map(|case| race(scratch, file, &format!("{thread}-{case}"), &mut dice))
                        .collect::<Vec<bool>>()
                })
            })
            .collect();
        for case in cases
            .into_iter()
            .flat_map(|case| case.join().expect("a case"))
        {
            *(if case { &mut stopped } else { &mut started }) += 1;
        }
    });
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
    assert_eq!(scratch.stamps().len(), started);
    println!("{CASES} races (seed {SEED:#x}): {stopped} stopped, {started} started");
}

/// Returns true if the timer was stopped.
fn race(scratch: &Scratch, file: &str, name: &str, dice: &mut Dice) -> bool {
    let state = scratch.at(&format!("race-{name}"));
    let state = state.as_str();
    let helper = scratch.at("bin/helper");
    let request = [
        "run",
        "--state-dir",
        state,
        "--jitter",
        "1",
        "--",
        &helper,
        "stamp",
        file,
        name,
    ];
    scratch.again_well(&request);
    let mine = |stamps: Vec<Stamp>| stamps.iter().filter(|stamp| stamp.words == [name]).count();
    // The record may be gone if the timer was due immediately.
    if let Some(record) = scratch.records(&format!("race-{name}")).first()
        && let Some(due) = record["timers"]["again"]["due"].as_u64()
    {
        // `again stop` takes some milliseconds itself.
        let offset = dice.below(8_000_000);
        sleep_until((due + 1_000_000).saturating_sub(offset).max(now()));
    }
    let answer = scratch.again(&["stop", "--state-dir", state]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    // A running rerun is not stopped, and that has a line of its own.
    let alone = |line: &&str| line.starts_with("again: left alone: ");
    let mut lines = answer.out.lines().skip_while(alone);
    let line = lines.next().expect("a line");
    assert_eq!(lines.next(), None, "{answer:?}");
    let stopped = assert_line(&format!("{line}\n")) == "stopped";
    if !stopped {
        wait_until("the rerun", SHORT, || mine(scratch.stamps()) == 1);
    }
    wait_until("the end of it", SHORT, || {
        scratch.again(&["status", "--state-dir", state]).code == Some(3)
    });
    assert_eq!(
        mine(scratch.stamps()),
        usize::from(!stopped),
        "case {name}, stopped: {stopped}"
    );
    stopped
}
