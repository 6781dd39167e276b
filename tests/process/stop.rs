use std::time::Duration;

use nix::sys::signal::Signal;

use crate::rig::{SHORT, wait_until};
use crate::stage::{Dice, Run, Stage, Stamp, assert_line, now, sleep_until, start, timed};

/// A run that asks with these words and then goes on until `go`.
fn ask_and_hold(stage: &Stage, words: &str) -> Run {
    let manifest = format!("ask('run', {words}) if NTH == 1\nhold('go') if NTH == 1");
    start(&mut stage.apply("site", &manifest))
}

/// A run that asks with these words and ends.
fn ask_and_end(stage: &Stage, words: &str) {
    start(&mut stage.apply("site", &format!("ask('run', {words}) if NTH == 1"))).wait();
}

/// Stops the only timer there is: gone when `stop` says so, with nothing left, and nothing comes of it.
fn assert_stops(stage: &Stage, runs: usize) {
    let waiter = stage.waiter("again");
    let answer = stage.again(&["stop"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(assert_line(&answer.out), "stopped");
    assert!(answer.out.contains("timer 'again'"), "{answer:?}");
    assert!(!waiter.alive(), "gone when stop says so");
    stage.assert_nothing_left();
    let stopped = stage.history("stopped");
    assert_eq!(
        stopped,
        [("again".to_owned(), "stopped by root".to_owned())]
    );
    assert!(stage.history("started").is_empty());
    assert_eq!(stage.runs("site").len(), runs);
    // A second time there is nothing to stop.
    let answer = stage.again(&["stop"]);
    assert_eq!(
        (answer.code, assert_line(&answer.out).as_str()),
        (Some(0), "nothing to do")
    );
}

#[test]
fn while_it_waits_for_the_run() {
    let stage = Stage::new();
    let run = ask_and_hold(&stage, "'--delta', '1h'");
    stage.wait_for_state("again", "waiting for the run");
    assert_stops(&stage, 1);
    assert!(run.process.alive(), "the run goes on");
    stage.release("go");
    run.wait();
    stage.assert_nothing_left();
    assert_eq!(stage.runs("site").len(), 1);
}

#[test]
fn while_it_waits_to_be_due() {
    let stage = Stage::new();
    ask_and_end(&stage, "'--delta', '1h'");
    stage.wait_for_state("again", "waiting");
    assert_stops(&stage, 1);
}

#[test]
fn while_another_run_holds_the_agents_lock() {
    let stage = Stage::new();
    let holder = start(&mut stage.apply("holder", "hold('go')"));
    stage.write("lock", &holder.process.pid.to_string());
    let lock = stage.at("lock");
    ask_and_end(&stage, &format!("'--agent-catalog-run-lockfile', '{lock}'"));
    stage.wait_for_state("again", "due");
    assert_stops(&stage, 1);
    assert!(holder.process.alive(), "the other run goes on");
    stage.release("go");
    holder.wait();
    stage.assert_nothing_left();
}

#[test]
fn while_the_agent_is_disabled() {
    let stage = Stage::new();
    stage.write("lock", "{\"disabled_message\":\"on holiday\"}");
    let lock = stage.at("lock");
    let words = format!(
        "'--agent-disabled-lockfile', '{lock}', '--agent-catalog-run-lockfile', ROOT + '/none'"
    );
    start(&mut stage.agent("site", &format!("ask('run', {words}) if NTH == 1"))).wait();
    let timer = stage.wait_for_state("again", "held");
    assert_eq!(timer["reason"], "the puppet agent is disabled: on holiday");
    assert_stops(&stage, 1);
    std::fs::remove_file(stage.path("lock")).expect("enabled");
    stage.assert_nothing_left();
    assert_eq!(stage.runs("site").len(), 1);
}

#[test]
fn while_again_is_disabled() {
    let stage = Stage::new();
    let run = ask_and_hold(&stage, "'--name', 'again'");
    stage.wait_for_state("again", "waiting for the run");
    stage.write("state/disabled", "{\"reason\":\"freeze\",\"since\":1}");
    stage.release("go");
    run.wait();
    let timer = stage.wait_for_state("again", "held");
    assert_eq!(timer["reason"], "again is disabled: freeze");
    assert_eq!(stage.status()["disabled"]["reason"], "freeze");
    assert_stops(&stage, 1);
    std::fs::remove_file(stage.path("state/disabled")).expect("enabled");
    stage.assert_nothing_left();
    assert_eq!(stage.runs("site").len(), 1);
}

/// A rerun has asked for one that would follow at once, and ends while `again` is disabled: what follows is held, and that the
/// rerun ended is told once, however often the waiter looks.
#[test]
fn disabled_between_a_rerun_and_the_next() {
    let stage = Stage::new();
    let manifest = "ask('run') if NTH < 3\nhold('go') if NTH == 2";
    start(&mut stage.apply("site", manifest)).wait();
    wait_until("the rerun to ask", SHORT, || {
        let runs = stage.runs("site");
        runs.get(1).is_some_and(|rerun| !rerun.asked().is_empty())
    });
    stage.waiter("again").wait_until_asleep();
    stage.again_well(&["disable", "freeze"]);
    stage.release("go");
    stage.wait_for_state("again", "held");
    stage.again_well(&["enable"]);
    stage.wait_for_runs("site", 3);
    stage.wait_until_settled();
    let ended = stage.history("ended");
    assert_eq!(ended.len(), 2, "one of each rerun: {ended:?}");
    assert_eq!(stage.history("started").len(), 2);
    stage.assert_nothing_left();
}

/// Held by another rerun of the same target; stopping the timer lets that one go on, `--run` ends it as well.
#[test]
fn while_a_rerun_is_under_way_and_the_rerun_too() {
    let stage = Stage::new();
    let manifest = "if NTH == 1 then ask('run'); ask('run', '--name', 'later', '--delta', '1') end\nhold('go') if NTH == 2";
    start(&mut stage.apply("site", manifest)).wait();
    stage.wait_for_state("later", "due");
    let rerun = stage.status()["targets"][0]["running"]["pid"]
        .as_i64()
        .expect("a pid") as i32;
    let rerun = crate::rig::Process::now(rerun).expect("the rerun");

    let answer = stage.again(&["stop"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(stage.timers().is_empty() && stage.waiters().is_empty());
    assert!(rerun.alive(), "stop alone does not end a rerun");

    let answer = stage.again(&["stop", "--run"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(assert_line(&answer.out), "stopped");
    assert!(
        answer.out.contains(&format!("pid {}", rerun.pid)),
        "{answer:?}"
    );
    assert!(!rerun.alive(), "ended when stop says so");
    stage.assert_nothing_left();
    assert_eq!(stage.runs("site").len(), 2);
    assert_eq!(stage.runs("site")[1].pid(), rerun.pid);
}

/// A rerun that does not mind TERM is ended by KILL, ten seconds later.
#[test]
fn a_rerun_that_ignores_term() {
    let stage = Stage::new();
    let manifest = "Signal.trap('TERM', 'IGNORE') if NTH == 2\nask('run') if NTH == 1\nnote('deaf', '') if NTH == 2\nhold('go') if NTH == 2";
    start(&mut stage.apply("site", manifest)).wait();
    wait_until("the rerun to be deaf", SHORT, || {
        stage.path("runs/site/002/deaf").exists()
    });
    let (answer, took) = timed(|| stage.again(&["stop", "--run"]));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.out.contains("ended by KILL"), "{answer:?}");
    assert!(took >= Duration::from_secs(10), "no grace: {took:?}");
    println!("ended by KILL after {took:?}");
    stage.assert_nothing_left();
}

/// Ruby loses a signal that reaches it as it starts: a young rerun is told a second time, and need not be killed.
#[test]
fn a_young_rerun_that_loses_its_first_term() {
    let stage = Stage::new();
    let manifest = "ask('run') if NTH == 1\n\
        if NTH == 2\nterms = 0\nSignal.trap('TERM') { exit!(0) if (terms += 1) == 2 }\nnote('deaf', '')\nhold('go')\nend";
    start(&mut stage.apply("site", manifest)).wait();
    wait_until("the rerun to be deaf", SHORT, || {
        stage.path("runs/site/002/deaf").exists()
    });
    let answer = stage.again(&["stop", "--run"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.out.contains("ended by TERM"), "{answer:?}");
    stage.assert_nothing_left();
}

/// A waiter that cannot act on TERM, because it is stopped, is ended all the same.
#[test]
fn a_waiter_that_does_not_react() {
    let stage = Stage::new();
    ask_and_end(&stage, "'--delta', '1h'");
    // Asleep, and not in the middle of writing when it is due.
    let waiter = stage.waiter("again");
    wait_until("the waiter to sleep", SHORT, || {
        waiter.title().contains("waits until")
    });
    waiter.signal(Signal::SIGSTOP).expect("sent");
    assert_stops(&stage, 1);
}

#[test]
fn by_name_and_no_other() {
    let stage = Stage::new();
    let words = "'--name', 'one', '--delta', '1h'); ask('run', '--name', 'two', '--delta', '1h'";
    ask_and_end(&stage, words);
    start(&mut stage.apply("other", "ask('run', '--name', 'two', '--delta', '1h')")).wait();
    let (one, two) = (stage.waiter("one"), stage.waiter("two"));

    let answer = stage.again(&["stop", "three"]);
    assert_eq!(
        (answer.code, assert_line(&answer.out).as_str()),
        (Some(0), "nothing to do")
    );
    assert!(
        answer.out.contains("no timer named 'three' is pending"),
        "{answer:?}"
    );
    assert_eq!(stage.timers().len(), 3);

    // Of every target that has one of the name.
    let answer = stage.again(&["stop", "two"]);
    assert_eq!(
        (answer.code, answer.out.lines().count()),
        (Some(0), 2),
        "{answer:?}"
    );
    assert!(one.alive() && !two.alive());
    let left: Vec<_> = stage
        .timers()
        .iter()
        .map(|timer| timer["name"].clone())
        .collect();
    assert_eq!(left, ["one"]);
    assert_eq!(stage.orders("state").len(), 1);
    stage.again_well(&["stop", "one", "two"]);
    stage.assert_nothing_left();
}

/// Stopped within a few milliseconds of the due time, before and after: either it is stopped and nothing starts, or
/// there was nothing to stop any more and it starts once. The due times lie within a second, drawn by `again`.
#[test]
fn as_it_becomes_due() {
    const CASES: u64 = 48;
    const SEED: u64 = 0x5eed_0001;
    let stage = Stage::new();
    let file = stage.at("stamps");
    let (mut stopped, mut started) = (0, 0);
    // Some at a time, so that the waiting overlaps.
    std::thread::scope(|scope| {
        let cases: Vec<_> = (0..8)
            .map(|thread| {
                let (stage, file) = (&stage, &file);
                scope.spawn(move || {
                    let mut dice = Dice(SEED + thread);
                    (0..CASES / 8)
                        .map(|case| race(stage, file, &format!("{thread}-{case}"), &mut dice))
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
    stage.wait_until_settled();
    stage.assert_nothing_left();
    assert_eq!(stage.stamps().len(), started);
    println!("{CASES} races (seed {SEED:#x}): {stopped} stopped, {started} started");
}

/// True if it was stopped.
fn race(stage: &Stage, file: &str, name: &str, dice: &mut Dice) -> bool {
    let state = stage.at(&format!("race-{name}"));
    let state = state.as_str();
    let helper = stage.at("bin/helper");
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
    stage.again_well(&request);
    let mine = |stamps: Vec<Stamp>| stamps.iter().filter(|stamp| stamp.words == [name]).count();
    // Gone already if it was due at once.
    if let Some(record) = stage.records(&format!("race-{name}")).first()
        && let Some(due) = record["timers"]["again"]["due"].as_u64()
    {
        // `again stop` needs some milliseconds itself.
        let offset = dice.below(8_000_000);
        sleep_until((due + 1_000_000).saturating_sub(offset).max(now()));
    }
    let answer = stage.again(&["stop", "--state-dir", state]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    // A rerun that is under way is left alone, and that has a line of its own.
    let alone = |line: &&str| line.starts_with("again: left alone: ");
    let mut lines = answer.out.lines().skip_while(alone);
    let line = lines.next().expect("a line");
    assert_eq!(lines.next(), None, "{answer:?}");
    let stopped = assert_line(&format!("{line}\n")) == "stopped";
    if !stopped {
        wait_until("the rerun", SHORT, || mine(stage.stamps()) == 1);
    }
    wait_until("the end of it", SHORT, || {
        stage.again(&["status", "--state-dir", state]).code == Some(3)
    });
    assert_eq!(
        mine(stage.stamps()),
        usize::from(!stopped),
        "case {name}, stopped: {stopped}"
    );
    stopped
}
