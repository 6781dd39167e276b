use std::fs;
use std::time::Duration;

use again_test_support::{
    Bystander, Past, Process, SHORT, Scratch, now, pass_a_tick, sleep_until, spread, start, stays,
    wait_for, wait_until, write_program,
};

const SECOND: u64 = 1_000_000_000;

/// Returns the time from the run's end (its own last action) to the start of the rerun, which must
/// not be before the delta was over.
#[track_caller]
fn wait_of(run: &Past, rerun: &Past, delta: u64) -> u64 {
    let ended = run.ended().expect("ended");
    assert!(
        rerun.started() >= ended + delta * SECOND,
        "early by {} ns",
        ended + delta * SECOND - rerun.started()
    );
    rerun.started() - ended
}

#[test]
fn timers_of_different_names_stay_apart() {
    let scratch = Scratch::new();
    let manifest = "if NTH == 1\n\
        ask('run')\n\
        ask('run', '--name', 'two', '--delta', '1')\n\
        ask('run', '--name', 'four', '--delta', '2')\n\
        ask('run', '--name', 'four', '--delta', '2')\nhold('go')\nend";
    let run = start(&mut scratch.apply("site", manifest));
    scratch.wait_for_answers("site", 4);
    assert_eq!(scratch.timers().len(), 3, "one timer per name");
    // The waiter that was replaced may still be working.
    wait_until("one waiter per name", SHORT, || {
        scratch.waiters().len() == 3
    });
    assert_eq!(scratch.told("merged").len(), 1);
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("site", 4);
    let waits: Vec<u64> = (0..3)
        .map(|n| wait_of(&runs[0], &runs[n + 1], n as u64))
        .collect();
    println!(
        "reruns after {:?} ms",
        waits.iter().map(|ns| ns / 1_000_000).collect::<Vec<_>>()
    );
    let timers = ["again", "two", "four"];
    for (n, name) in timers.iter().enumerate() {
        assert_eq!(runs[n + 1].variable("AGAIN_TIMER").as_deref(), Some(*name));
        // The waits differ, and are not much longer than requested.
        assert!(waits[n] < (n as u64 + 30) * SECOND, "{waits:?}");
    }
    let chains: Vec<_> = runs[1..]
        .iter()
        .map(|run| run.variable("AGAIN_CHAIN"))
        .collect();
    assert!(
        chains
            .iter()
            .all(|chain| chain.is_some() && *chain == chains[0]),
        "{chains:?}"
    );
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 4, "and no more");
    scratch.assert_nothing_left();
}

/// Two runs of one target make requests with one name: one timer, which waits for both of them, and
/// keeps the promise to each.
#[test]
fn the_same_name_merges_across_runs() {
    let scratch = Scratch::new();
    let manifest = "ask('run', '--delta', '2') if NTH == 1\nask('run') if NTH == 2\n\
        hold('first') if NTH == 1\nhold('second') if NTH == 2";
    let first = start(&mut scratch.apply("site", manifest));
    wait_until("the first request", SHORT, || !scratch.timers().is_empty());
    let before = scratch.waiter("again");
    let second = start(&mut scratch.apply("site", manifest));
    wait_until("the second request", SHORT, || {
        scratch.told("merged").len() == 1
    });
    before.wait_until_gone(SHORT);
    assert_eq!((scratch.timers().len(), scratch.waiters().len()), (1, 1));
    assert_eq!(scratch.timers()[0]["waits_for_pid"], second.process.pid);
    let said = &scratch.runs("site")[1].asked()[0].output;
    let too = format!(
        "waits for the run that asked for it too (pid {})",
        first.process.pid
    );
    assert!(said.contains(&too), "{said}");
    // The run of the newer request ends first.
    scratch.release("second");
    second.finish();
    let waiter = scratch.waiter("again");
    wait_until("the waiter to wait for the other", SHORT, || {
        waiter
            .title()
            .contains(&format!("run with pid {}", first.process.pid))
    });
    assert_eq!(scratch.timers()[0]["waits_for_pid"], first.process.pid);
    scratch.release("first");
    first.finish();
    let runs = scratch.wait_for_runs("site", 3);
    wait_of(&runs[0], &runs[2], 2);
    wait_of(&runs[1], &runs[2], 0);
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 3);
    scratch.assert_nothing_left();
}

/// A waiter is killed while it waits for several runs: the next one waits for them too.
#[test]
fn what_was_promised_to_several_runs_outlives_a_waiter() {
    let scratch = Scratch::new();
    let manifest = "ask('run') if NTH < 3\nhold('first') if NTH == 1\nhold('second') if NTH == 2";
    let first = start(&mut scratch.apply("site", manifest));
    wait_until("the first request", SHORT, || !scratch.timers().is_empty());
    let second = start(&mut scratch.apply("site", manifest));
    wait_until("the second request", SHORT, || {
        scratch.told("merged").len() == 1
    });
    let waiter = scratch.waiter("again");
    waiter
        .signal(nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    waiter.wait_until_gone(SHORT);
    scratch.again_well(&["resume"]);
    scratch.release("second");
    second.finish();
    let waiter = scratch.waiter("again");
    wait_until("the waiter to wait for the other", SHORT, || {
        waiter
            .title()
            .contains(&format!("run with pid {}", first.process.pid))
    });
    scratch.release("first");
    first.finish();
    let runs = scratch.wait_for_runs("site", 3);
    wait_of(&runs[0], &runs[2], 0);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The jitter only spreads reruns: a run that begins while a timer waits for nothing else satisfies
/// it.
#[test]
fn a_run_within_the_jitter_does_the_job() {
    let scratch = Scratch::new();
    let manifest = "50.times do\nask('run', '--jitter', '24')\n\
        break if `#{AGAIN} status --json`[/\"jitter_seconds\":([0-9.]+)/, 1].to_f > 12\nend if NTH == 1\n\
        ask('run', '--name', 'other', '--delta', '1h') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    let waiting = scratch.wait_for_state("again", "waiting");
    // The delta begins when the waiter has noticed the end of the run.
    wait_until("the waiter to see the end", SHORT, || {
        scratch.waiter("again").title().contains("waits until")
    });
    pass_a_tick();
    start(&mut scratch.apply("site", manifest)).finish();
    assert!(
        !scratch.waiter("again").title().contains("is due"),
        "the case is as it should be: {waiting}"
    );
    // The record is written before the entry in the history.
    wait_until("the timer to be over", SHORT, || {
        scratch.timer("again").is_none() && !scratch.told("satisfied").is_empty()
    });
    let why = "a run of this target started after the timer's delta";
    assert_eq!(
        scratch.told("satisfied"),
        [("again".to_owned(), why.to_owned())]
    );
    assert_eq!(scratch.runs("site").len(), 2);
    scratch.again_well(&["stop"]);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A run that holds the agent's lock for longer than `runtimeout` is waited for, or ended if that
/// is configured: only when its time is over, and with KILL if TERM does not help.
#[test]
fn a_stuck_run_is_ended_where_that_is_wanted() {
    for (stuck, trap) in [("report", ""), ("end", ""), ("end", "trap('TERM') {}; ")] {
        let scratch = Scratch::new();
        scratch.settings(&format!("stuck = \"{stuck}\""));
        let holder = start(&mut scratch.apply("holder", &format!("{trap}hold('never')")));
        wait_until("the holder", SHORT, || !scratch.runs("holder").is_empty());
        // The run takes the lock three seconds after its start, like one that splays.
        sleep_until(holder.process.start * 10_000_000 + 3 * SECOND);
        scratch.write("lock", &holder.process.pid.to_string());
        let ask = format!(
            "ask('run', '--agent-catalog-run-lockfile', '{}') if NTH == 1",
            scratch.at("lock")
        );
        scratch.write("work/site.pp", &ask);
        let words = "agent --onetime --no-daemonize --no-splay --certname site --runtimeout=4";
        let words: Vec<_> = words
            .split(' ')
            .map(Into::into)
            .chain([scratch.at("work/site.pp").into()])
            .collect();
        let mut run = scratch.without_system_log(&scratch.puppet_command(&words));
        scratch.with_output(&mut run);
        start(&mut run).finish();
        if stuck == "report" {
            scratch.wait_for_state("again", "due");
            let longer = Duration::from_secs(6);
            stays("it is only reported", longer, || holder.process.alive());
            scratch.again_well(&["stop"]);
            holder.kill();
            continue;
        }
        let rerun = &scratch.wait_for_runs("site", 2)[1];
        let age = rerun.started() / 10_000_000 - holder.process.start;
        assert!(
            age >= if trap.is_empty() { 699 } else { 1699 },
            "{age} ticks"
        );
        assert!(!holder.process.alive());
        let log = scratch.text("state/again.log");
        assert!(
            log.contains("is stuck, and is ended by TERM after 4"),
            "{log}"
        );
        assert_eq!(
            log.contains("is ended by KILL after 14"),
            !trap.is_empty(),
            "{log}"
        );
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
}

/// To the nanosecond, by CLOCK_BOOTTIME. `helper stamp` notes the time as the first thing it does.
#[test]
fn never_early_and_hardly_late() {
    const CASES: usize = 60;
    let scratch = Scratch::new();
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    let mut asked = Vec::new();
    for case in 0..CASES {
        let (delta, jitter) = ([0, 1, 2][case % 3], [0, 1][case / 3 % 2]);
        let case = case.to_string();
        let before = now();
        scratch.again_well(&[
            "run",
            "--delta",
            &delta.to_string(),
            "--jitter",
            &jitter.to_string(),
            "--",
            &helper,
            "stamp",
            &stamps,
            &case,
        ]);
        asked.push((before, delta, jitter));
    }
    let stamps = wait_for("all of them", SHORT, || {
        let stamps = scratch.stamps();
        (stamps.len() == CASES).then_some(stamps)
    });
    let mut late = Vec::new();
    for stamp in stamps {
        let case: usize = stamp.words[0].parse().expect("a case");
        let (before, delta, jitter) = asked[case];
        assert!(stamp.at >= before + delta * SECOND, "case {case} is early");
        // The drawn jitter is at most the requested one.
        late.push(stamp.at - before - delta * SECOND);
        assert!(
            late[late.len() - 1] < (jitter + 30) * SECOND,
            "case {case} is late"
        );
    }
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
    println!("{CASES} cases, none early");
}

/// Compared with the due time on record, which includes the jitter; and compared with the end of a
/// run.
#[test]
fn never_before_the_due_time_on_record() {
    const CASES: usize = 24;
    let scratch = Scratch::new();
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    let (mut due, mut jitter): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    for case in 0..CASES {
        let dir = scratch.at(&format!("due/{case}"));
        let case = case.to_string();
        let request = ["run", "--state-dir", &dir, "--delta", "2", "--jitter", "1"];
        let command = ["--", &helper, "stamp", &stamps, &case];
        scratch.again_well(&[&request[..], &command].concat());
        let record = &scratch.records(&format!("due/{case}"))[0];
        let timer = &record["timers"]["again"];
        due.push(timer["due"].as_u64().expect("a due time"));
        jitter.push(timer["jitter"].as_u64().expect("a jitter"));
    }
    wait_until("all of them", SHORT, || scratch.stamps().len() == CASES);
    let mut late: Vec<u64> = Vec::new();
    for stamp in scratch.stamps() {
        let case: usize = stamp.words[0].parse().expect("a case");
        let due = due[case];
        assert!(
            stamp.at >= due,
            "case {case} is early by {} ns",
            due - stamp.at
        );
        // The steps before the exec take time; their start is on record too.
        let started = scratch.records(&format!("due/{case}"))[0]["starts"][0]["at"]["uptime"]
            .as_u64()
            .expect("a start");
        assert!(
            started >= due,
            "case {case} started early by {} ns",
            due - started
        );
        late.push(stamp.at - due);
    }
    let (median, _, most) = spread(&mut late);
    println!(
        "{CASES} cases, none early, late by {} us (median), {} us (most)",
        median / 1000,
        most / 1000
    );
    jitter.sort_unstable();
    println!(
        "jitter from {} to {} ms",
        jitter[0] / 1_000_000,
        jitter[CASES - 1] / 1_000_000
    );
    assert!(jitter[CASES - 1] <= SECOND);
    jitter.dedup();
    assert_eq!(jitter.len(), CASES, "every jitter is drawn afresh");
    wait_until("the waiters to be gone", SHORT, || {
        scratch.processes().is_empty()
    });
}

#[test]
fn counted_from_the_request_if_that_was_asked_for() {
    let scratch = Scratch::new();
    let manifest = "if NTH == 1\nnote('before', now.to_s)\nask('run', '--delta', '1', '--start-timer-now')\nhold('go')\nend";
    let run = start(&mut scratch.apply("site", manifest));
    wait_until("the request", SHORT, || !scratch.timers().is_empty());
    // The timer has been due for long when the run ends.
    let due = scratch.records("state")[0]["timers"]["again"]["due"]
        .as_u64()
        .expect("known at once");
    wait_until("the due time", SHORT, || now() > due + SECOND / 4);
    assert_eq!(scratch.timers()[0]["state"], "waiting for the run");
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("site", 2);
    let before: u64 = runs[0].text("before").parse().expect("a time");
    assert!(due >= before + SECOND);
    let wait = wait_of(&runs[0], &runs[1], 0);
    println!("{} ms after the end of the run", wait / 1_000_000);
    assert!(
        runs[1].started() > runs[0].ended().expect("ended"),
        "never while the run goes on"
    );
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A lock that does not contain the pid of a living puppet is ignored. The times are printed; they
/// are the same as without a lock.
#[test]
fn a_stale_lock_holds_nobody_up() {
    let scratch = Scratch::new();
    let mut ended = std::process::Command::new("/bin/true")
        .spawn()
        .expect("true");
    ended.wait().expect("ended");
    let innocent = Bystander::new();
    let (dead, living) = (ended.id().to_string(), innocent.pid().to_string());
    let me = std::process::id().to_string();
    let cases: [(&str, Option<&[u8]>); 13] = [
        ("none", None),
        ("dead pid", Some(dead.as_bytes())),
        ("living pid of somebody else", Some(living.as_bytes())),
        ("our own", Some(me.as_bytes())),
        ("empty", Some(b"")),
        ("line feed", Some(b"\n")),
        ("word", Some(b"puppet")),
        ("negative", Some(b"-1")),
        ("zero", Some(b"0")),
        ("huge", Some(b"99999999999999999999999")),
        ("two numbers", Some(b"1 2")),
        ("process 1", Some(b"1")),
        ("garbage", Some(b"\xff\x00\xfe\n\n\x1b[0m")),
    ];
    let lock = scratch.path("lock");
    for (n, (case, content)) in cases.iter().enumerate() {
        match content {
            Some(content) => fs::write(&lock, content).expect("written"),
            None => assert!(!lock.exists()),
        }
        let name = format!("site{n}");
        let ask = format!(
            "ask('run', '--agent-catalog-run-lockfile', '{}') if NTH == 1",
            scratch.at("lock")
        );
        start(&mut scratch.agent(&name, &ask)).finish();
        let runs = scratch.wait_for_runs(&name, 2);
        let wait = wait_of(&runs[0], &runs[1], 0);
        println!("{case}: rerun after {} ms", wait / 1_000_000);
        assert!(wait < 30 * SECOND, "{case}: held up for {wait} ns");
        assert_eq!(
            fs::read(&lock).ok().as_deref(),
            *content,
            "{case}: the lock is Puppet's, not ours"
        );
    }
    // A path that is not a file is not a lock either.
    fs::remove_file(&lock).expect("removed");
    for make in ["directory", "fifo", "dangling link"] {
        let done = std::process::Command::new("/bin/sh")
            .arg("-c")
            .arg(match make {
                "directory" => "mkdir \"$0\"",
                "fifo" => "mkfifo \"$0\"",
                _ => "ln -s \"$0.none\" \"$0\"",
            })
            .arg(&lock)
            .status()
            .expect("sh");
        assert!(done.success());
        let name = format!("odd-{}", make.replace(' ', "-"));
        let ask = format!(
            "ask('run', '--agent-catalog-run-lockfile', '{}') if NTH == 1",
            scratch.at("lock")
        );
        start(&mut scratch.agent(&name, &ask)).finish();
        scratch.wait_for_runs(&name, 2);
        let _ = fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock));
    }
    println!("{} states of a lock", cases.len() + 3);
    drop(innocent);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A waiter waits with a pidfd for a living puppet that holds the lock, whatever happens to the
/// lock file meanwhile.
#[test]
fn a_held_lock_is_waited_for() {
    let scratch = Scratch::new();
    let holder = start(&mut scratch.agent("holder", "hold('go')"));
    scratch.write("lock", &holder.process.pid.to_string());
    let lock = scratch.at("lock");
    let ask = format!("ask('run', '--agent-catalog-run-lockfile', '{lock}') if NTH == 1");
    start(&mut scratch.agent("site", &ask)).finish();
    scratch.wait_for_state("again", "due");
    let waiter = scratch.waiter("again");
    wait_until("the waiter to wait for it", SHORT, || {
        waiter.title().contains(&format!(
            "waits for the run with pid {} to end",
            holder.process.pid
        ))
    });
    assert!(
        waiter
            .descriptors()
            .values()
            .any(|to| to == "anon_inode:[pidfd]")
    );
    assert_eq!(scratch.runs("site").len(), 1);
    scratch.release("go");
    holder.finish();
    let runs = scratch.wait_for_runs("site", 2);
    let held = &scratch.runs("holder")[0];
    println!(
        "{} ms after the holder ended",
        wait_of(held, &runs[1], 0) / 1_000_000
    );
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// Two holders, one after the other: the waiter checks the lock again after each wait.
#[test]
fn a_lock_that_is_taken_again_is_waited_for_again() {
    let scratch = Scratch::new();
    let first = start(&mut scratch.apply("first", "hold('one')"));
    let second = start(&mut scratch.apply("second", "hold('two')"));
    scratch.write("lock", &first.process.pid.to_string());
    let lock = scratch.at("lock");
    // An apply takes no lock, so no agent's run satisfies it.
    start(&mut scratch.apply(
        "site",
        &format!("ask('run', '--agent-catalog-run-lockfile', '{lock}') if NTH == 1"),
    ))
    .finish();
    scratch.wait_for_state("again", "due");
    let waiter = scratch.waiter("again");
    let waits_for = |pid: i32| {
        wait_until("the waiter to wait for it", SHORT, || {
            waiter.title().contains(&format!("pid {pid} to end"))
        });
    };
    waits_for(first.process.pid);
    scratch.write("lock", &second.process.pid.to_string());
    scratch.release("one");
    first.finish();
    waits_for(second.process.pid);
    assert_eq!(scratch.runs("site").len(), 1);
    scratch.release("two");
    second.finish();
    let runs = scratch.wait_for_runs("site", 2);
    wait_of(&scratch.runs("second")[0], &runs[1], 0);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// An agent's run that began after the due time satisfies the timer, which ends without a run of
/// its own.
#[test]
fn a_run_that_began_after_the_due_time_does_the_job() {
    let scratch = Scratch::new();
    scratch.write("disabled", "{\"disabled_message\":\"for now\"}");
    let (lock, disabled) = (scratch.at("lock"), scratch.at("disabled"));
    let words = format!(
        "'--agent-catalog-run-lockfile', '{lock}', '--agent-disabled-lockfile', '{disabled}'"
    );
    start(&mut scratch.agent("site", &format!("ask('run', {words}) if NTH == 1"))).finish();
    scratch.wait_for_state("again", "held");
    // Ensures that the run has a start after the due time.
    pass_a_tick();
    // A person runs the agent by hand; the run holds the lock.
    let by_hand = start(&mut scratch.agent_of("site", "hand", "hold('go')"));
    scratch.write("lock", &by_hand.process.pid.to_string());
    fs::remove_file(scratch.path("disabled")).expect("enabled");
    wait_until("the timer to end", SHORT, || {
        scratch.timers().is_empty() && !scratch.told("satisfied").is_empty()
    });
    let satisfied = scratch.told("satisfied");
    assert_eq!(satisfied.len(), 1, "{satisfied:?}");
    assert!(
        satisfied[0]
            .1
            .contains(&format!("pid {}", by_hand.process.pid)),
        "{satisfied:?}"
    );
    wait_until("the waiter to be gone", SHORT, || {
        scratch.waiters().is_empty()
    });
    scratch.release("go");
    by_hand.finish();
    scratch.assert_nothing_left();
    assert_eq!(scratch.runs("site").len(), 1);
}

/// A noop run, a partial one, or a run with another configuration does not satisfy the timer: the
/// rerun waits for its end.
#[test]
fn a_run_of_something_else_after_the_due_time_is_waited_for() {
    for (nth, more) in [
        "--noop",
        "--no-noop",
        "--tags a",
        "--tags=a",
        "--skip_tags a",
        "--environment other",
        "-E other",
        "--confdir /none",
        "--config /none/puppet.conf",
        "--vardir /none",
        "--ssldir /none",
        "--certname other",
        "--server other",
        "--use_cached_catalog",
    ]
    .iter()
    .enumerate()
    {
        let scratch = Scratch::new();
        scratch.write("disabled", "{}");
        let (lock, disabled) = (scratch.at("lock"), scratch.at("disabled"));
        let words = format!(
            "'--jitter', '0', '--agent-catalog-run-lockfile', '{lock}', '--agent-disabled-lockfile', '{disabled}'"
        );
        start(&mut scratch.agent("site", &format!("ask('run', {words}) if NTH == 1"))).finish();
        scratch.wait_for_state("again", "held");
        pass_a_tick();
        let mut look = scratch.agent_of("site", "look", "hold('go')");
        let look = start(look.args(more.split(' ')));
        scratch.write("lock", &look.process.pid.to_string());
        fs::remove_file(scratch.path("disabled")).expect("enabled");
        let waiter = scratch.waiter("again");
        wait_until("the waiter to wait for it", SHORT, || {
            waiter
                .title()
                .contains(&format!("pid {} to end", look.process.pid))
        });
        assert_eq!(scratch.runs("site").len(), 1, "{nth}: {more}");
        scratch.release("go");
        look.finish();
        scratch.wait_for_runs("site", 2);
        scratch.wait_until_settled();
        assert!(scratch.told("satisfied").is_empty(), "{nth}: {more}");
        scratch.assert_nothing_left();
    }
}

/// The same from the record: a run of this very target began after the due time, and made a request
/// itself.
#[test]
fn a_recorded_run_that_began_after_the_due_time_does_the_job() {
    let scratch = Scratch::new();
    scratch.write("disabled", "{}");
    let words = format!("'--agent-disabled-lockfile', '{}'", scratch.at("disabled"));
    let manifest = format!(
        "ask('run', {words}, '--agent-catalog-run-lockfile', ROOT + '/none') if NTH == 1\nask('run', '--name', 'later', '--delta', '1h') if NTH == 2"
    );
    start(&mut scratch.agent("site", &manifest)).finish();
    scratch.wait_for_state("again", "held");
    // As above.
    pass_a_tick();
    start(&mut scratch.agent("site", &manifest)).finish();
    fs::remove_file(scratch.path("disabled")).expect("enabled");
    wait_until("the timer to end", SHORT, || scratch.timers().len() == 1);
    wait_until("a line of history", SHORT, || {
        scratch.told("satisfied").len() == 1
    });
    assert_eq!(scratch.timers()[0]["name"], "later");
    scratch.again_well(&["stop"]);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
    assert_eq!(scratch.runs("site").len(), 2);
}

/// A timer that becomes due during a rerun of its target waits for the end of that.
#[test]
fn reruns_of_one_target_never_overlap() {
    let scratch = Scratch::new();
    let manifest = "if NTH == 1\nask('run')\nask('run', '--name', 'next', '--delta', '1')\nend\nhold('go') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    scratch.wait_for_state("next", "due");
    assert_eq!(scratch.runs("site").len(), 2);
    let waiter = scratch.waiter("next");
    let rerun = scratch.runs("site")[1].pid();
    wait_until("the waiter to wait for it", SHORT, || {
        waiter.title().contains(&format!("pid {rerun} to end"))
    });
    scratch.release("go");
    let runs = scratch.wait_for_runs("site", 3);
    wait_of(&runs[1], &runs[2], 0);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// From the end of the run to the exec of the rerun, as a process sees it that does not wait for
/// the run.
#[test]
fn a_rerun_starts_at_once_when_nothing_has_to_be_waited_for() {
    const CASES: usize = 30;
    let scratch = Scratch::new();
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    let mut waits = Vec::new();
    for case in 0..CASES {
        let name = format!("site{case}");
        let ask = format!("ask('run', '--', '{helper}', 'stamp', '{stamps}', '{case}')");
        start(&mut scratch.apply(&name, &ask)).finish();
        let stamp = wait_for("the rerun", SHORT, || {
            scratch.stamps().into_iter().nth(case)
        });
        let ended = scratch.runs(&name)[0].ended().expect("ended");
        assert!(stamp.at >= ended, "case {case} is early");
        waits.push(stamp.at - ended);
    }
    let (median, _, most) = spread(&mut waits);
    println!(
        "{CASES} runs: {} us (median), {} us (most), ruby's own end included",
        median / 1000,
        most / 1000
    );
    assert!(Duration::from_nanos(median) < Duration::from_secs(10));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A rerun that makes a request continues its chain, with the same target.
#[test]
fn a_chain_counts_its_runs() {
    let scratch = Scratch::new();
    start(&mut scratch.apply("site", "ask('run') if NTH < 4")).finish();
    let runs = scratch.wait_for_runs("site", 4);
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 4);
    let numbers: Vec<_> = runs[1..]
        .iter()
        .map(|run| run.variable("AGAIN_RUN").expect("a number"))
        .collect();
    assert_eq!(numbers, ["2", "3", "4"]);
    let chains: Vec<_> = runs[1..]
        .iter()
        .map(|run| run.variable("AGAIN_CHAIN"))
        .collect();
    assert!(chains.iter().all(|chain| *chain == chains[0]));
    assert_eq!(
        scratch.status()["targets"]
            .as_array()
            .expect("targets")
            .len(),
        1
    );
    assert_eq!(runs[0].variable("AGAIN_RUN"), None);
    for pair in runs.windows(2) {
        wait_of(&pair[0], &pair[1], 0);
    }
    scratch.assert_nothing_left();
}

/// A command that requests itself is a chain, like a run of puppet.
#[test]
fn the_reruns_of_a_command_are_one_chain() {
    let scratch = Scratch::new();
    let (again, state) = (scratch.at("bin/again"), scratch.at("state"));
    let script = scratch.path("work/step");
    write_program(
        &script,
        &format!(
            "#!/bin/sh\necho \"$AGAIN_RUN $AGAIN_CHAIN\" >> {0}/steps\n\
             [ $(wc -l < {0}/steps) -ge 4 ] || exec {again} run --state-dir {state} --jitter 0 -- \"$0\"\n",
            scratch.at("work")
        ),
    );
    scratch.again_well(&["run", "--jitter", "0", "--", &scratch.at("work/step")]);
    let steps = || fs::read_to_string(scratch.path("work/steps")).unwrap_or_default();
    wait_until("four steps", SHORT, || steps().lines().count() == 4);
    scratch.wait_until_settled();
    let steps = steps();
    let steps: Vec<(&str, &str)> = steps.lines().filter_map(|l| l.split_once(' ')).collect();
    let numbers: Vec<&str> = steps.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
    assert!(
        steps.iter().all(|(_, chain)| *chain == steps[0].1),
        "{steps:?}"
    );
    scratch.assert_nothing_left();
}

/// A daemon that is started in a rerun keeps AGAIN_CHAIN for life; a run below that daemon is not
/// part of the chain.
#[test]
fn a_chain_is_not_inherited_by_the_environment() {
    let scratch = Scratch::new();
    let mut command = scratch.apply("site", "ask('run', '--delta', '1h')");
    command.envs([
        ("AGAIN_CHAIN", "0123abcd"),
        ("AGAIN_RUN", "7"),
        ("AGAIN_TIMER", "x"),
    ]);
    start(&mut command).finish();
    let timer = &scratch.timers()[0];
    assert_eq!(timer["run"], 2);
    assert_ne!(timer["chain"], "0123abcd");
    let waiter: Process = scratch.waiter("again");
    scratch.again_well(&["stop"]);
    assert!(!waiter.alive());
    scratch.assert_nothing_left();
}

/// A chain that does not settle slows down: from the fourth rerun on the range of the jitter
/// doubles. Each run draws twenty times, so that the draws show it too, not only `explain`.
#[test]
fn the_jitter_of_a_chain_doubles_from_the_fourth_rerun_on() {
    const DRAWS: usize = 20;
    let scratch = Scratch::new();
    let manifest = format!(
        "exit if NTH > 5\nask('explain', '--jitter', '1')\n\
         {DRAWS}.times {{ ask('run', '--jitter', '1'); ask('status', '--json') }}"
    );
    start(&mut scratch.apply("site", &manifest)).finish();
    let runs = scratch.wait_for_runs("site", 6);
    let mut shown = Vec::new();
    for (run, range) in runs.iter().zip([1, 1, 1, 2, 4]) {
        let asked = run.asked();
        assert_eq!(asked.len(), 1 + 2 * DRAWS);
        let time = format!("its time: 0s and up to {range}s of jitter, after the run has ended");
        assert!(asked[0].output.contains(&time), "{}", asked[0].output);
        let drawn: Vec<f64> = asked[2..]
            .iter()
            .step_by(2)
            .map(|asked| serde_json::from_str(&asked.output).expect("JSON"))
            .map(|status| again_test_support::timers(&status)[0]["jitter_seconds"].clone())
            .map(|jitter| jitter.as_f64().expect("a number"))
            .collect();
        let most = drawn.iter().copied().fold(0.0, f64::max);
        let range = f64::from(range);
        // Once in two million times all draws are in the lower half.
        assert!(most <= range && most > range / 2.0, "of {range}: {drawn:?}");
        shown.push((range, most));
    }
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 6);
    scratch.assert_nothing_left();
    println!("range and widest of {DRAWS} draws, in seconds: {shown:?}");
}

/// At the cap, with `on_cap = wait`, every rerun starts automatically as soon as the window allows
/// it, and none within.
#[test]
fn at_the_cap_a_timer_waits_for_the_window() {
    let scratch = Scratch::new();
    let cap = "'--max-runs', '2', '--window', '3s', '--on-cap', 'wait'";
    start(&mut scratch.apply("site", &format!("ask('run', {cap}) if NTH < 7"))).finish();
    let runs = scratch.wait_for_runs("site", 7);
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 7);
    let history = fs::read_to_string(scratch.path("state/history.jsonl")).expect("there");
    let starts: Vec<u64> = history
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .filter(|entry| entry["what"] == "started")
        .map(|entry| entry["at"]["uptime"].as_u64().expect("a time"))
        .collect();
    assert_eq!(starts.len(), 6);
    // The cap counts the same starts that the history contains, however long the disk takes in
    // between.
    let counted: Vec<u64> = scratch.records("state")[0]["starts"]
        .as_array()
        .expect("starts")
        .iter()
        .map(|start| start["at"]["uptime"].as_u64().expect("a time"))
        .collect();
    assert!(
        !counted.is_empty() && starts.ends_with(&counted),
        "{counted:?} of {starts:?}"
    );
    for pair in starts.windows(3) {
        assert!(
            pair[2] >= pair[0] + 3 * SECOND,
            "three within 3 s: {starts:?}"
        );
    }
    for start in starts.windows(3).map(|three| three[2] - three[0]) {
        assert!(start < 45 * SECOND, "long after the window: {starts:?}");
    }
    // Some had to wait; without their messages, the test shows nothing.
    let lines: Vec<String> = runs[..6]
        .iter()
        .map(|run| run.asked()[0].output.clone())
        .collect();
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with("again: scheduled: "))
            && lines
                .iter()
                .any(|line| line.contains("2 of at most 2 reruns within 3s used")),
        "{lines:?}"
    );
    assert!(scratch.told("refused").is_empty());
    scratch.assert_nothing_left();
    println!(
        "6 reruns, two in any 3 s: {:?} ms",
        starts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) / 1_000_000)
            .collect::<Vec<_>>()
    );
}
