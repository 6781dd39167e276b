use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::{assert_same_circumstances, assert_same_run, changes_once, hold_until};
use again_test_support::{
    CachedAgent, Ended, LOCK_WAIT, LONG, Permission, Process, Record, SHORT, Scratch, Server,
    Started, boottime, permits, stays, text, wait_for, wait_until,
};

const LINGER: &str = "0.4";

/// Exactly two runs with a catalog each, none of which met the other's lock.
fn two_runs(scratch: &Scratch, first: &Ended) -> (Record, Record) {
    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!(
        (starts.len(), scratch.catalogs().len()),
        (2, 2),
        "{}",
        first.out
    );
    for output in scratch
        .logs()
        .iter()
        .map(|(_, log)| log)
        .chain([&first.out])
    {
        assert!(!output.contains("already in progress"), "{output}");
    }
    (starts[0].clone(), starts[1].clone())
}

#[test]
fn a_test_run_against_a_server_is_run_again() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    let agent = Server::get().enrol(&scratch, "testrun", &manifest, "");
    let first = agent
        .command(&["--test"])
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[2]);
    let (first, second) = two_runs(&scratch, &first);
    assert_same_run(&first, &second);
}

/// A catalog that does not compile leaves a summary without a single failed resource. It is a failure all the same, and `status`,
/// its JSON and the history say so.
#[test]
fn a_rerun_whose_catalog_fails_has_failed() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    let ask = format!("exec {{ 'ask': command => ['{root}/bin/again', 'run', '--delta', '3'] }}");
    // Otherwise Puppet makes do with the catalog of the first run.
    let conf = "usecacheonfailure = false";
    let server = Server::get();
    let agent = server.enrol(&scratch, "broken", &scratch.bare_manifest(&ask), conf);
    agent.command(&["--test"]).run().expect(&[2]);
    server.enrol(&scratch, "broken", "fail('not today')", conf);
    wait_until("the rerun to start", LONG, || scratch.starts().len() == 2);
    scratch.settle(LONG);
    assert_eq!(scratch.catalogs().len(), 1, "the second was never applied");
    assert!(scratch.logs()[0].1.contains("not today"));
    let summary =
        fs::read_to_string(scratch.path("puppet/public/last_run_summary.yaml")).expect("a summary");
    let line = |name: &str| {
        let mut lines = summary.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix(name).map(str::trim))
    };
    assert_eq!(line("config:"), Some(""), "{summary}");
    assert!(line("failed:").is_none_or(|n| n == "0"), "{summary}");
    let last = &scratch.status()["targets"][0]["last"];
    assert_eq!(last["outcome"], "failed", "{last:#}");
    let text = scratch.again(&["status"]);
    let text = text.out;
    assert!(text.contains(": failed, "), "{text}");
    let ended = &scratch.history_of("ended")[0];
    assert_eq!(ended["outcome"], "failed", "{ended:#}");
}

/// `again explain` from outside, of the child that a daemon forked for a run: its lock held, then the agent disabled under it.
#[test]
fn a_daemons_run_is_explained() {
    let scratch = Scratch::with_puppet();
    let hold = hold_until("hold", &text(scratch.path("go")));
    let agent = CachedAgent::new(&scratch, &scratch.bare_manifest(&hold), FAR);
    let daemon = agent.command(&["--no-daemonize"]).start();
    crate::until_held(&scratch);
    let run = scratch.catalogs()[0].process;
    assert_eq!(run.parent(), daemon.process.pid);
    let explain = || {
        let output = scratch.again(&["explain", "--pid", &run.pid.to_string()]);
        output.ok()
    };
    let said = explain();
    let of = |pid: i32| {
        let begin = format!("  {pid} ");
        let mut lines = said.lines().filter(|line| line.starts_with(&begin));
        lines.next().unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    assert!(of(run.pid).ends_with("  <- the run"), "{said}");
    let why = format!(
        "the run: its parent (pid {}) has the command line of a puppet agent daemon, which forks a child for each run\n",
        daemon.process.pid
    );
    assert!(said.contains(&why), "{said}");
    assert!(of(run.pid).contains("applying configuration"), "{said}");
    assert!(!of(daemon.process.pid).contains("<-"), "{said}");
    for line in [
        "  added --onetime: ".to_owned(),
        "  added --no-splay: ".to_owned(),
        format!(
            "  the agent's lock: held by pid {} ({})\n",
            run.pid,
            agent.lock().display()
        ),
        "verdict: would be scheduled\n".to_owned(),
    ] {
        assert!(said.contains(&line), "no {line:?}: {said}");
    }
    assert!(!said.contains("puppet agent --enable"), "{said}");
    agent
        .command(&["--disable", "new switches"])
        .run()
        .expect(&[0]);
    let said = explain();
    let line = format!(
        "  puppet agent --enable: it is disabled, \"new switches\" ({})\n",
        agent.disabled().display()
    );
    assert!(said.contains(&line), "{said}");
    assert!(!scratch.path("state").exists(), "it changed something");
    agent.command(&["--enable"]).run().expect(&[0]);
    fs::write(scratch.path("go"), "").expect("go");
    daemon.stop();
    scratch.settle(LONG);
}

/// `again run -- puppet agent` by a person, while another run holds the lock: it waits for that, runs once as run 1 of its
/// chain, and what asks in it gets run 2 of the same target.
#[test]
fn a_named_agent_waits_for_the_run_under_way() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    let hold = hold_until("hold", &text(scratch.path("go")));
    let ask = format!(
        "exec {{ 'ask': command => '{root}/bin/again run', onlyif => 'test \"$AGAIN_RUN\" = 1', provider => shell }}"
    );
    let agent = CachedAgent::new(
        &scratch,
        &scratch.bare_manifest(&format!("{hold}\n{ask}")),
        "",
    );
    let first = agent.command(&["--test"]).start();
    crate::until_held(&scratch);
    let conf = text(scratch.path("puppet/conf"));
    let request = ["run", "--", "puppet", "agent", "--confdir", &conf];
    let said = scratch.again(&request);
    assert!(
        said.out.contains("puppet agent runs 0s from now"),
        "{said:?}"
    );
    wait_until("it to be due", SHORT, || {
        scratch.timers()[0]["state"] == "due"
    });
    let moment = Duration::from_millis(500);
    stays("the lock is held", moment, || scratch.catalogs().len() == 1);
    fs::write(scratch.path("go"), "").expect("go");
    first.wait().expect(&[2]);
    wait_until("both reruns", LONG, || scratch.catalogs().len() == 3);
    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!((starts.len(), scratch.catalogs().len()), (3, 3));
    assert_eq!(starts[1].command, starts[2].command);
    let words = "--onetime --no-daemonize --no-splay";
    let words: Vec<&str> = words.split(' ').chain(LOCK_WAIT).collect();
    assert!(
        starts[1].command.ends_with(
            &words
                .iter()
                .map(|word| word.to_string())
                .collect::<Vec<_>>()
        )
    );
    assert!(
        scratch
            .logs()
            .iter()
            .all(|(_, log)| !log.contains("already in progress"))
    );
    let status = scratch.status();
    assert_eq!(
        status["targets"].as_array().map(Vec::len),
        Some(1),
        "{status:#}"
    );
    assert_eq!(status["targets"][0]["kind"], "agent");
    let ended = scratch.history_of("ended");
    assert_eq!(
        (&ended[0]["run"], &ended[1]["run"]),
        (&1.into(), &2.into()),
        "{ended:#?}"
    );
    assert_eq!(ended[0]["chain"], ended[1]["chain"]);
    assert_eq!(ended[0]["outcome"], "changed", "{ended:#?}");
}

/// As cron starts it. The first run turns the splay limit up, so that a rerun which splays would not come for half an hour.
#[test]
fn a_run_by_cron_is_run_again_without_its_splay() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    let manifest = scratch.manifest(&format!(
        "exec {{ '/bin/sed -i s/splaylimit=1/splaylimit=3600/ {root}/puppet/conf/puppet.conf': before => Exec['again'] }}\n{}",
        changes_once(&scratch, "Exec['again']")
    ));
    let agent = Server::get().enrol(&scratch, "cronrun", &manifest, "splaylimit=1");
    let words = ["--onetime", "--no-daemonize", "--splay", "--verbose"];
    let first = agent
        .command(&words)
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[0]);
    let (first, second) = two_runs(&scratch, &first);
    assert_same_circumstances(&first, &second);
    assert_eq!(
        second.command[..first.command.len()],
        first.command,
        "nothing is taken away"
    );
    assert_eq!(
        second.command[first.command.len()..],
        [&["--no-splay"][..], &LOCK_WAIT].concat(),
        "and this is all that is added"
    );
}

/// The daemon's catalog: the first run asks.
fn daemons_manifest(scratch: &Scratch) -> String {
    scratch.manifest(&changes_once(scratch, "Exec['again']"))
}

/// A daemon whose schedule is far away, until [`assert_daemon_and_rerun`] brings it near: on a slow machine a run by schedule
/// would otherwise come before the rerun and do its job.
const FAR: &str = "runinterval = 3600\nfiletimeout = 1";
const NEAR: &str = "runinterval = 1\nfiletimeout = 1";

/// One one-off rerun beside the daemon, in the daemon's circumstances and with its command line and `added`; the daemon is as it
/// was, and goes on.
fn assert_daemon_and_rerun(
    scratch: &Scratch,
    agent: &CachedAgent,
    daemon: Process,
    added: &[&str],
) {
    let command = daemon.command();
    wait_until("the rerun", LONG, || scratch.catalogs().len() == 2);
    wait_until("its end", LONG, || scratch.processes() == [daemon]);
    let (catalogs, starts) = (scratch.catalogs(), scratch.starts());
    assert_eq!(
        catalogs[0].stat(4),
        i64::from(daemon.pid),
        "the first run is the daemon's"
    );
    let [started, rerun] = &starts[..] else {
        panic!("the daemon and one rerun, not {starts:#?}")
    };
    assert_eq!(
        catalogs[1].process, rerun.process,
        "the second is the rerun's"
    );
    assert_eq!(
        rerun.command,
        [
            command.clone(),
            added
                .iter()
                .chain(&LOCK_WAIT)
                .map(|word| word.to_string())
                .collect()
        ]
        .concat()
    );
    assert_eq!(
        rerun.environment_without_again(),
        started.environment_without_again(),
        "the environment, whole"
    );
    assert_eq!(rerun.status("Umask"), started.status("Umask"));
    assert_eq!(Some(rerun.directory.clone()), daemon.link("cwd"));

    // The daemon reads its configuration again and goes on by schedule.
    agent.configure(NEAR);
    wait_until("the daemon's next run by schedule", LONG, || {
        scratch.catalogs()[2..]
            .iter()
            .any(|record| record.stat(4) == i64::from(daemon.pid))
    });
    assert_eq!(daemon.command(), command, "the daemon is left alone");
    assert_eq!(scratch.starts().len(), 2, "nothing else has been started");
    daemon.end();
    scratch.settle(LONG);
}

#[test]
fn a_daemon_in_the_foreground_gets_one_rerun_and_keeps_its_schedule() {
    let scratch = Scratch::with_puppet();
    let agent = CachedAgent::new(&scratch, &daemons_manifest(&scratch), FAR);
    let daemon = agent.command(&["--no-daemonize"]).start();
    wait_until("its first run", LONG, || !scratch.catalogs().is_empty());
    assert_daemon_and_rerun(
        &scratch,
        &agent,
        daemon.process,
        &["--onetime", "--no-splay"],
    );
    daemon.stop();
}

/// The title wipes out the environment of the run's process; the rerun has it whole.
#[test]
fn a_plain_daemon_gets_one_rerun_with_a_whole_environment() {
    if !permits(Permission::MountNamespace) {
        return;
    }
    let scratch = Scratch::with_puppet();
    let agent = CachedAgent::new(&scratch, &daemons_manifest(&scratch), FAR);
    agent.plain().run().expect(&[0]);
    let daemon = wait_for("the daemon", SHORT, || agent.daemon());
    wait_until("its first run", LONG, || !scratch.catalogs().is_empty());
    assert!(
        scratch.catalogs()[0]
            .raw_environment
            .iter()
            .all(|byte| *byte == 0),
        "the title has wiped out the run's environment"
    );
    assert_daemon_and_rerun(
        &scratch,
        &agent,
        daemon,
        &["--onetime", "--no-daemonize", "--no-splay"],
    );
}

/// A rerun of a daemon's run that asks again is rewritten into itself: one target, one chain, one cap.
#[test]
fn the_reruns_of_a_daemons_run_are_one_chain() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    // Each run does the next of two steps.
    let step = |n: u32, after: &str| {
        format!(
            "exec {{ 'step {n}': command => '/usr/bin/touch {root}/step{n}', creates => '{root}/step{n}', {after} notify => Exec['again'] }}\n"
        )
    };
    let body = step(2, &format!("onlyif => '/usr/bin/test -e {root}/step1',"))
        + &step(1, "require => Exec['step 2'],");
    let agent = CachedAgent::new(&scratch, &scratch.manifest(&body), "runinterval = 3600");
    let daemon = agent
        .command(&["--no-daemonize", "--splay", "--splaylimit=1"])
        .start();
    wait_until("three runs", LONG, || scratch.catalogs().len() == 3);
    wait_until("the last rerun to end", LONG, || {
        scratch.agains().is_empty() && scratch.processes() == [daemon.process]
    });
    let starts = scratch.starts();
    let [_, second, third] = &starts[..] else {
        panic!("the daemon and two reruns, not {starts:#?}")
    };
    assert_eq!(second.command, third.command);
    assert_eq!(
        second.environment["AGAIN_CHAIN"],
        third.environment["AGAIN_CHAIN"]
    );
    assert_eq!(
        (
            second.environment["AGAIN_RUN"].as_str(),
            third.environment["AGAIN_RUN"].as_str()
        ),
        ("2", "3")
    );
    let status = scratch.status();
    assert_eq!(
        status["targets"].as_array().map(Vec::len),
        Some(1),
        "{status:#}"
    );
    assert_eq!(status["targets"][0]["cap"]["used"], 2);
    daemon.stop();
    scratch.settle(LONG);
}

/// A timer that is due in five seconds, and whose waiter is kept from acting by a stop signal, so that what follows does not depend
/// on how fast this machine is.
struct Stopped {
    waiter: Process,
    /// It is due no earlier than this …
    earliest: f64,
    /// … and no later than this.
    latest: f64,
}

/// A one-off run of the agent asks for that timer; then the waiter is stopped.
fn asked_and_stopped(scratch: &Scratch, agent: &CachedAgent) -> Stopped {
    let ask = format!(
        "exec {{ 'ask': command => ['{}/bin/again', 'run', '--delta', '5'] }}",
        scratch.root()
    );
    let ask = agent.compile(&scratch.bare_manifest(&ask));
    let hold =
        agent.compile(&scratch.bare_manifest(&hold_until("hold", &text(scratch.path("go")))));
    agent.cache(&ask);
    agent
        .command(&["--onetime", "--no-daemonize"])
        .run()
        .expect(&[0]);
    agent.cache(&hold);
    let waiter = scratch.only_waiter();
    wait_until("the timer to count", SHORT, || {
        // Stopped before that, it would count from when it goes on.
        scratch.timers()[0]["due_at"].is_string()
    });
    waiter.signal(Signal::SIGSTOP).expect("stopped");
    Stopped {
        waiter,
        earliest: scratch.starts()[0].ended().expect("its end") + 5.0,
        latest: boottime() + 5.0,
    }
}

/// A one-off run of the agent that will take the lock and be held until `go`.
fn start_holder(agent: &CachedAgent) -> Started {
    agent.command(&["--test"]).env("RIG_LINGER", LINGER).start()
}

fn until_locked(agent: &CachedAgent, holder: &Started) {
    wait_until("the lock", LONG, || {
        fs::read_to_string(agent.lock()).is_ok_and(|pid| pid == holder.process.pid.to_string())
    });
}

/// A timer that is due and held up by another run of the agent, which started before the timer was due. Returns that run.
pub fn held_up(scratch: &Scratch, agent: &CachedAgent) -> Started {
    let timer = asked_and_stopped(scratch, agent);
    let holder = start_holder(agent);
    assert!(
        boottime() < timer.earliest,
        "this machine is too slow for the test"
    );
    until_locked(agent, &holder);
    wait_until("the timer to be due", SHORT, || boottime() > timer.latest);
    timer.waiter.signal(Signal::SIGCONT).expect("continued");
    wait_until("the waiter to wait for the holder", SHORT, || {
        waits_for(timer.waiter, holder.process)
    });
    holder
}

/// Whether a process has a pidfd on another.
fn waits_for(waiter: Process, other: Process) -> bool {
    waiter.descriptors().iter().any(|(fd, to)| {
        to == "anon_inode:[pidfd]"
            && fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", waiter.pid)).is_ok_and(|info| {
                info.lines()
                    .any(|line| line.split_whitespace().eq(["Pid:", &other.pid.to_string()]))
            })
    })
}

#[test]
fn a_rerun_waits_for_another_run_that_holds_the_lock() {
    let scratch = Scratch::with_puppet();
    let agent = CachedAgent::new(&scratch, "", "");
    let holder = held_up(&scratch, &agent);
    assert_eq!(
        scratch.starts().len(),
        2,
        "nothing has started over the holder's head"
    );
    agent.catalog(&scratch.bare_manifest(""));
    let released = boottime();
    fs::write(scratch.path("go"), "").expect("go");
    let holder_process = holder.process;
    let holder = holder.wait();
    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!(
        (starts.len(), scratch.catalogs().len()),
        (3, 3),
        "{:#?}",
        scratch.history()
    );
    let rerun = &starts[2];
    assert!(rerun.at > released);
    assert!(
        !rerun
            .earlier
            .iter()
            .any(|(pid, running)| *pid == holder_process.pid && *running),
        "the holder had ended"
    );
    assert!(
        rerun.at - holder.ended_at < 10.0,
        "at once, not at the next poll: {:.3} s",
        rerun.at - holder.ended_at
    );
    assert!(
        scratch
            .logs()
            .iter()
            .all(|(_, log)| !log.contains("already in progress"))
    );
}

#[test]
fn a_run_that_started_after_the_due_time_does_the_timers_job() {
    let scratch = Scratch::with_puppet();
    let agent = CachedAgent::new(&scratch, "", "");
    let timer = asked_and_stopped(&scratch, &agent);
    // A process is said to have started at the tick before it did, and a tick is 10 ms.
    wait_until("the timer to be due", SHORT, || {
        boottime() > timer.latest + 0.05
    });
    let by_hand = start_holder(&agent);
    until_locked(&agent, &by_hand);
    timer.waiter.signal(Signal::SIGCONT).expect("continued");
    wait_until("the timer to be satisfied", SHORT, || {
        scratch.history_of("satisfied").len() == 1
    });
    timer.waiter.wait_until_gone(SHORT);
    fs::write(scratch.path("go"), "").expect("go");
    let _ = by_hand.wait();
    scratch.settle(LONG);
    assert_eq!(
        scratch.starts().len(),
        2,
        "the run that asked and the one by hand"
    );
    assert!(scratch.history_of("started").is_empty());
}

/// A lock whose holder is dead, is not puppet, or cannot be read at all is no reason to wait.
#[test]
fn stale_locks_are_ignored() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    let sleeper = scratch.prepare(&["sleep", "600"]).start();
    let dead = scratch.prepare(&["true"]).run().process.pid;
    assert!(Process::now(dead).is_none());
    let locks = [
        ("dead", dead.to_string()),
        ("other", sleeper.process.pid.to_string()),
        ("empty", String::new()),
        ("garbage", "\u{0}\u{1}not a number\n".to_owned()),
        // What the others are held against: nothing to ignore.
        ("none", String::new()),
    ];
    let mut asks = String::new();
    for (name, content) in &locks {
        if *name != "none" {
            scratch.write(&format!("locks/{name}"), content);
        }
        // A target of its own each, so that none does another's job.
        asks += &format!(
            "exec {{ 'ask {name}': command => ['{root}/bin/again', 'run', '--name', '{name}', '--agent-catalog-run-lockfile', \
             '{root}/locks/{name}', '--', '/bin/sh', '-c', 'cut -d\" \" -f1 /proc/uptime > {root}/{name}.done'] }}\n"
        );
    }
    // And the agent's own lock, with a whole run of the agent after it.
    asks += &format!(
        "exec {{ 'ask': command => ['{root}/bin/again', 'run', '--delta', '2'], unless => '/usr/bin/test -e {root}/asked' }}\n\
         -> file {{ '{root}/asked': content => '' }}\n"
    );
    let agent = CachedAgent::new(&scratch, &scratch.bare_manifest(&asks), "");
    let first = agent
        .command(&["--onetime", "--no-daemonize"])
        .run()
        .expect(&[0]);
    fs::write(agent.lock(), sleeper.process.pid.to_string()).expect("a stale lock");
    for (name, _) in &locks {
        let done = scratch.path(&format!("{name}.done"));
        wait_until(
            &format!("the rerun past a lock that is {name}"),
            SHORT,
            || fs::read_to_string(&done).is_ok_and(|text| text.ends_with('\n')),
        );
    }
    let done = |name: &str| {
        let uptime = fs::read_to_string(scratch.path(&format!("{name}.done"))).expect("a time");
        uptime.trim().parse::<f64>().expect("seconds") - first.ended_at
    };
    for (name, _) in &locks {
        assert!(
            done(name) < done("none") + 1.0,
            "past a lock that is {name} {:.2} s after the run, without a lock {:.2} s after it",
            done(name),
            done("none")
        );
    }
    wait_until("the agent's rerun", LONG, || scratch.starts().len() == 2);
    sleeper.stop();
    scratch.settle(LONG);
    assert_eq!(
        scratch.catalogs().len(),
        2,
        "the agent took the stale lock over"
    );
    let late = scratch.starts()[1].at - first.ended_at - 2.0;
    assert!(late < 5.0, "{late:.3} s after it was due");
}

/// An agent need not be root's: its rerun is its own user's, and the fact is right in both runs.
#[test]
fn an_ordinary_users_agent_is_run_again_and_knows_its_fact() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    let noted = format!(
        "file {{ \"{root}/fact-${{facts['again']['run']}}\": content => inline_template('<%= require \"json\"; JSON.generate(@facts[\"again\"]) %>') }}\n"
    );
    let manifest = scratch.manifest(&(noted + &changes_once(&scratch, "Exec['again']")));
    let _agent = Server::get().enrol(&scratch, "ordinary", &manifest, "");
    let given = std::process::Command::new("chown")
        .args(["-R", "nobody:nogroup", &root])
        .status()
        .expect("chown");
    assert!(given.success());
    let conf = text(scratch.path("puppet/conf"));
    let ordinary = [
        "setpriv",
        "--reuid=nobody",
        "--regid=nogroup",
        "--clear-groups",
    ];
    let words = ["puppet", "agent", "--confdir", &conf, "--test"];
    let first = scratch
        .prepare(&[&ordinary[..], &words].concat())
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[2]);
    let (first, second) = two_runs(&scratch, &first);
    assert_same_run(&first, &second);
    assert!(!second.status("Uid").starts_with('0'));
    for run in [1, 2] {
        let text = fs::read_to_string(scratch.path(&format!("fact-{run}"))).expect("the fact");
        let fact: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(fact["run"], run, "{fact:#}");
        assert_eq!(
            fact["paths"]["agent_catalog_run_lockfile"],
            format!("{root}/puppet/var/state/agent_catalog_run.lock"),
            "{fact:#}"
        );
    }
}

/// A living process that Puppet takes for the holder of its lock, which it has as soon as this returns.
fn lock_by_another(scratch: &Scratch, agent: &CachedAgent) -> Started {
    let holder = scratch.prepare(&["ruby", "-e", "sleep", "puppet"]).start();
    fs::write(agent.lock(), holder.process.pid.to_string()).expect("the lock");
    holder
}

fn release(agent: &CachedAgent, holder: Started) {
    fs::remove_file(agent.lock()).expect("the lock");
    holder.kill();
}

/// Another agent takes the lock while the rerun loads Puppet: the rerun waits for it.
#[test]
fn a_rerun_waits_for_a_lock_that_is_taken_while_it_starts() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    let agent = CachedAgent::new(&scratch, &manifest, "");
    agent.command(&["--test"]).run().expect(&[2]);
    wait_until("the rerun to start", LONG, || scratch.starts().len() == 2);
    let holder = lock_by_another(&scratch, &agent);
    let rerun = scratch.starts()[1].process;
    stays(
        "it waits while the lock is held",
        Duration::from_secs(5),
        || rerun.alive() && scratch.catalogs().len() == 1,
    );
    release(&agent, holder);
    wait_until("the rerun", LONG, || scratch.catalogs().len() == 2);
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 2);
}

/// A site that sets `waitforlock` to 0 has Puppet skip what finds the lock taken.
#[test]
fn rerun_that_puppet_skips_is_tried_again() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    let agent = CachedAgent::new(&scratch, &manifest, "waitforlock = 0");
    agent.command(&["--test"]).run().expect(&[2]);
    wait_until("the rerun to start", LONG, || scratch.starts().len() == 2);
    let holder = lock_by_another(&scratch, &agent);
    wait_until("Puppet to skip it", LONG, || {
        !scratch.history_of("ended").is_empty()
    });
    assert_eq!(scratch.catalogs().len(), 1, "while the lock is held");
    let last = || scratch.record()["last"].take();
    wait_until("the record", LONG, || last()["outcome"] == "skipped");
    assert!(last()["rerun"]["before_start"].is_null(), "{}", last());
    release(&agent, holder);
    scratch.settle(LONG);
    let ended = scratch.history_of("ended");
    let outcomes: Vec<_> = ended.iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, ["skipped", "unchanged"], "{ended:#?}");
    assert_eq!((scratch.starts().len(), scratch.catalogs().len()), (3, 2));
    let resumed = &scratch.history_of("resumed")[0];
    let why = resumed["reason"].as_str().expect("a reason");
    assert!(
        why.contains("another run of the agent had the lock"),
        "{why}"
    );
    assert_eq!(scratch.status()["targets"][0]["cap"]["used"], 2, "{why}");
}
