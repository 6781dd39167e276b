use std::fs;

use serde_json::{Value, json};

use again_test_support::{
    Ended, Past, SHORT, Scratch, Started, assert_line, now, pass_a_tick, start, wait_for,
    wait_until,
};

/// Returns an origin argument, as again-fleet writes it, with one trigger for each sender and
/// number. All are of one origin, two hops away.
pub fn word(triggers: &[(&str, u64)], jitter: u64) -> String {
    let until = 4_000_000_000_000_u64;
    let trigger = |(sender, number): &(&str, u64)| {
        json!({
            "id": id(sender, *number), "sender": sender, "name": "again", "number": number, "until": until,
        })
    };
    let triggers: Vec<Value> = triggers.iter().map(trigger).collect();
    json!({
        "version": 1, "jitter": jitter, "triggers": triggers,
        "origins": [{"id": format!("{:032x}", 1), "cause": "refresh", "path": ["web1", "lb1"]}],
    })
    .to_string()
}

fn id(sender: &str, number: u64) -> String {
    let sum: u64 = sender.bytes().map(u64::from).sum();
    format!("{sum:016x}{number:016x}")
}

/// Returns the words `run --origin WORD --name=again-fleet --delta=S -- COMMAND`.
fn asked<'a>(word: &'a str, delta: &'a str, command: &[&'a str]) -> Vec<&'a str> {
    let head = ["run", "--origin", word, "--name=again-fleet", delta, "--"];
    [&head[..], command].concat()
}

/// Returns the words that run the stand-in as an agent.
fn agent(scratch: &Scratch) -> Vec<String> {
    let script = scratch.at("bin/puppet");
    let words = ["ruby", "--disable-gems", &script, "agent", "--onetime"];
    let more = ["--no-daemonize", "--no-splay", "--certname", "node"];
    words
        .iter()
        .chain(&more)
        .map(|word| (*word).to_owned())
        .collect()
}

fn ask(scratch: &Scratch, triggers: &[(&str, u64)], jitter: u64, delta: u64) -> Ended {
    let command = agent(scratch);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let (word, delta) = (word(triggers, jitter), format!("--delta={delta}"));
    scratch.again(&asked(&word, &delta, &command))
}

#[track_caller]
pub fn ask_well(scratch: &Scratch, triggers: &[(&str, u64)], jitter: u64, delta: u64) -> String {
    let done = ask(scratch, triggers, jitter, delta);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    done.out
}

/// Returns `this_run` of the nth answer of `again status --json` to this run.
pub fn this_run(run: &Past, nth: usize) -> Value {
    let report: Value = serde_json::from_str(&run.asked()[nth].output).expect("JSON");
    report["this_run"].clone()
}

/// Returns sender and number of the triggers of an origin.
pub fn triggers(origin: &Value) -> Vec<(String, u64)> {
    let all = origin["triggers"].as_array().expect("triggers").iter();
    let mut all: Vec<(String, u64)> = all
        .map(|one| {
            let sender = one["sender"].as_str().expect("a sender");
            let number = one["number"].as_u64().expect("a number");
            assert_eq!(one["id"], id(sender, number));
            (sender.to_owned(), number)
        })
        .collect();
    all.sort();
    all
}

/// Returns the entries of `again history --json` of this kind.
fn history(scratch: &Scratch, what: &str) -> Vec<Value> {
    let text = scratch.again_well(&["history", "--json"]);
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines.filter(|line: &Value| line["what"] == what).collect()
}

/// Returns all triggers of these entries.
fn all_triggers(scratch: &Scratch, what: &str) -> Vec<(String, u64)> {
    let lines = history(scratch, what).into_iter();
    let mut all: Vec<_> = lines
        .filter(|line| !line["origin"].is_null())
        .flat_map(|line| triggers(&line["origin"]))
        .collect();
    all.sort();
    all
}

pub fn of(triggers: &[(&str, u64)]) -> Vec<(String, u64)> {
    triggers
        .iter()
        .map(|(sender, number)| ((*sender).to_owned(), *number))
        .collect()
}

/// Returns the timers on record, and when they are due, in nanoseconds since boot.
fn timers(scratch: &Scratch) -> Vec<(String, u64)> {
    let record = scratch.record();
    let timers = record["timers"].as_object().expect("timers").iter();
    timers
        .map(|(name, timer)| (name.clone(), timer["due"].as_u64().expect("a due time")))
        .collect()
}

/// The origin reaches the run, its report on the server, the history, and the reruns that follow.
#[test]
fn a_run_is_told_where_it_comes_from_and_so_is_what_follows() {
    let scratch = Scratch::new();
    scratch.write(
        "work/node.pp",
        "ask('status', '--json'); ask('run') if ENV['AGAIN_RUN'] != '3'",
    );
    let said = ask_well(&scratch, &[("web1", 7), ("web2", 9)], 50, 0);
    assert_eq!(assert_line(&said), "scheduled");
    let runs = scratch.wait_for_runs("node", 3);
    scratch.wait_until_settled();
    assert_eq!(runs.len(), 3);
    let requested = history(&scratch, "requested");
    for (nth, run) in runs.iter().enumerate() {
        let request = requested[nth]["request"].as_str().expect("a request");
        let this = this_run(run, 0);
        let path = &this["origin"]["origins"][0]["path"];
        assert_eq!(path, &json!(["web1", "lb1"]), "{this:#}");
        let carried = triggers(&this["origin"]);
        let whose: &[(&str, u64)] = if nth == 0 {
            &[("web1", 7), ("web2", 9)]
        } else {
            &[]
        };
        assert_eq!(carried, of(whose), "run {nth}: {this:#}");
        assert_eq!(this["run"], nth + 1);
        let line = String::from_utf8(run.raw("cmdline")).expect("UTF-8");
        // The job id contains the path of the origin, for readers of the report.
        let way = this["origin"]["origins"][0]["id"].as_str();
        let way = format!("{}/refresh/web1/lb1", way.expect("an id"));
        let job = format!("\0--job-id={request}//{way}\0");
        assert!(line.contains(&job), "{line:?} lacks {job:?}");
        assert_eq!(line.matches("--job-id").count(), 1, "{line:?}");
    }
    assert_eq!(
        scratch.status()["targets"].as_array().map(Vec::len),
        Some(1)
    );
    for what in ["requested", "started", "ended"] {
        assert_eq!(
            all_triggers(&scratch, what),
            of(&[("web1", 7), ("web2", 9)]),
            "{what}"
        );
        let lines = history(&scratch, what);
        assert_eq!(lines.len(), 3);
        assert!(
            lines
                .iter()
                .all(|line| line["origin"]["origins"][0]["cause"] == "refresh")
        );
    }
    scratch.assert_nothing_left();
}

/// A run without a trigger from another node has no origin, and neither do its files.
#[test]
fn a_run_of_this_node_alone_has_no_origin() {
    let scratch = Scratch::new();
    let manifest = "ask('status', '--json'); ask('run') unless ENV['AGAIN_RUN']";
    start(&mut scratch.apply("site", manifest)).finish();
    let runs = scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    assert!(runs.iter().all(|run| this_run(run, 0)["origin"].is_null()));
    assert!(!scratch.path("state/triggered").exists());
    let text = scratch.text("state/history.jsonl") + &scratch.record().to_string();
    for word in ["lineage", "taken", "numbers", "served"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    scratch.assert_nothing_left();
}

#[test]
fn a_number_is_acted_on_once() {
    let scratch = Scratch::new();
    scratch.write("work/node.pp", "");
    ask_well(&scratch, &[("web1", 7)], 0, 3600);
    let pending = timers(&scratch);
    // The same trigger and an older one request nothing, even when `again` is disabled.
    scratch.again_well(&["disable", "why"]);
    for number in [7, 6] {
        let said = ask_well(&scratch, &[("web1", number)], 0, 0);
        assert_eq!(assert_line(&said), "nothing to do");
        assert!(
            said.contains("trigger 'again' of web1") && said.contains(&format!("number {number}")),
            "{said}"
        );
    }
    let refused = ask(&scratch, &[("web1", 7), ("web1", 8)], 0, 0);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    scratch.again_well(&["enable"]);
    assert_eq!(timers(&scratch), pending);
    // A refused trigger is still new, and of two triggers only the new one counts.
    ask_well(&scratch, &[("web1", 7), ("web1", 8)], 0, 3600);
    assert_eq!(
        all_triggers(&scratch, "requested"),
        of(&[("web1", 7), ("web1", 8)])
    );
    scratch.again_well(&["now"]);
    let runs = scratch.wait_for_runs("node", 1);
    scratch.wait_until_settled();
    assert_eq!(
        scratch.runs("node").len(),
        1,
        "one run does the job of both"
    );
    let mut done = all_triggers(&scratch, "started");
    done.extend(all_triggers(&scratch, "satisfied"));
    done.sort();
    assert_eq!(done, of(&[("web1", 7), ("web1", 8)]));
    assert_eq!(
        assert_line(&ask_well(&scratch, &[("web1", 8)], 0, 0)),
        "nothing to do"
    );
    // The number applies to another command too, because it belongs to the node.
    let word = word(&[("web1", 8)], 0);
    let done = scratch.again(&asked(&word, "--delta=0", &["/bin/true"]));
    assert_eq!(assert_line(&done.out), "nothing to do", "{done:?}");
    // A lost record is created anew: triggers that were acted on are still known.
    for target in fs::read_dir(scratch.path("state/targets")).expect("targets") {
        let _ = fs::remove_file(target.expect("one").path().join("state.json"));
    }
    let done = ask(&scratch, &[("web1", 8)], 0, 0);
    assert_eq!(
        (done.code, assert_line(&done.out).as_str()),
        (Some(0), "nothing to do"),
        "{done:?}"
    );
    ask_well(&scratch, &[("web1", 9)], 0, 0);
    scratch.wait_for_runs("node", runs.len() + 1);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The trigger's time is over: it can no longer be handed over again.
#[test]
fn a_number_is_forgotten_when_its_time_is_over() {
    let scratch = Scratch::new();
    scratch.write("work/node.pp", "");
    let command = agent(&scratch);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let over = word(&[("web1", 7)], 0).replace("4000000000000", "1000");
    scratch.again_well(&asked(&over, "--delta=0", &command));
    scratch.wait_for_runs("node", 1);
    ask_well(&scratch, &[("web1", 8)], 0, 0);
    scratch.wait_for_runs("node", 2);
    scratch.wait_until_settled();
    let numbers = scratch.record()["numbers"].clone();
    assert_eq!(numbers.as_array().map(Vec::len), Some(1), "{numbers}");
    scratch.assert_nothing_left();
}

/// A run of the agent that began when the trigger was ready satisfies it, and carries it on, in its
/// reruns too, both before and after the waiter has noticed.
#[test]
fn a_run_that_satisfies_a_trigger_carries_it_on() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("puppet")).expect("a directory");
    let lock = scratch.at("puppet/lock");
    scratch.settings(&format!("agent_catalog_run_lockfile = \"{lock}\""));
    // Searches a number with a drawn delay that leaves time for a run before it, and is not too
    // long.
    let number = (7..).find(|number| {
        ask_well(&scratch, &[("web1", *number)], 40_000, 0);
        // A trigger that is due immediately may have started already.
        let due = scratch
            .timers()
            .first()
            .and_then(|timer| timer["due_in_seconds"].as_f64());
        let is_good = due.is_some_and(|due| (15.0..20.0).contains(&due));
        if !is_good {
            scratch.again_well(&["stop"]);
        }
        is_good
    });
    let satisfied = of(&[("web1", number.expect("a number"))]);
    pass_a_tick();
    let manifest = format!(
        "File.binwrite('{lock}', Process.pid.to_s)
         ask('status', '--json'); hold('go'); ask('status', '--json'); ask('run', '--name', 'own') unless ENV['AGAIN_RUN']
         File.delete('{lock}')"
    );
    // This run has another command line.
    let run = start(&mut scratch.agent_of("node", "cron", &manifest));
    wait_until("it to be satisfied", SHORT, || {
        !scratch.told("satisfied").is_empty()
    });
    assert_eq!(all_triggers(&scratch, "satisfied"), satisfied);
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("cron", 2);
    for nth in [0, 1] {
        let this = this_run(&runs[0], nth);
        assert_eq!(triggers(&this["origin"]), satisfied, "{nth}: {this:#}");
    }
    let next = this_run(&runs[1], 0);
    assert_eq!(
        next["origin"]["origins"][0]["path"],
        json!(["web1", "lb1"]),
        "{next:#}"
    );
    assert_eq!(triggers(&next["origin"]), []);
    scratch.wait_until_settled();
    assert!(!all_triggers(&scratch, "started").contains(&satisfied[0]));
    // A run that began later is independent of it.
    start(&mut scratch.agent("later", "ask('status', '--json')")).finish();
    assert!(this_run(&scratch.runs("later")[0], 0)["origin"].is_null());
    scratch.assert_nothing_left();
}

/// Titles that runs write over their command lines.
pub const TITLES: [&str; 3] = [
    "$0 = \"#{$0} agent --onetime\"",
    "$0 = 'puppet agent: applying configuration'",
    "$0 = 'something else'",
];

/// Starts an agent daemon that waits for the file `daemon`.
pub fn daemon(scratch: &Scratch) -> Started {
    scratch.write("work/idle.pp", "hold('daemon')");
    let words = ["agent", "--no-daemonize", "--certname", "idle"];
    let daemon = start(&mut scratch.puppet_command(&words.map(Into::into)));
    wait_until("the daemon", SHORT, || !scratch.runs("idle").is_empty());
    daemon
}

/// A rerun whose title replaces its command line is identified by its process.
#[test]
fn status_finds_the_trigger_of_a_rerun_under_a_title() {
    let scratch = Scratch::new();
    // None of the reruns belongs to this daemon.
    let daemon = daemon(&scratch);
    for (nth, title) in (1..).zip(TITLES) {
        scratch.write(
            "work/node.pp",
            &format!("{title}; ask('status', '--this-run', '--json')"),
        );
        ask_well(&scratch, &[("web1", nth)], 0, 0);
        let runs = scratch.wait_for_runs("node", nth as usize);
        scratch.wait_until_settled();
        let this = this_run(&runs[nth as usize - 1], 0);
        assert_eq!(
            triggers(&this["origin"]),
            of(&[("web1", nth)]),
            "{title}: {this:#}"
        );
        assert_eq!(
            (&this["target"], &this["run"]),
            (&scratch.record()["id"], &json!(1)),
            "{title}"
        );
    }
    scratch.release("daemon");
    daemon.finish();
    scratch.assert_nothing_left();
}

/// A run that began before the trigger carries nothing, nor does an apply with another command
/// line.
#[test]
fn a_run_that_began_too_early_or_of_something_else_carries_nothing() {
    let scratch = Scratch::new();
    let manifest = "hold('asked'); ask('status', '--json')";
    let early = start(&mut scratch.agent("early", manifest));
    wait_until("it to run", SHORT, || !scratch.runs("early").is_empty());
    pass_a_tick();
    ask_well(&scratch, &[("web1", 7)], 0, 3600);
    scratch.release("asked");
    early.finish();
    let apply = start(&mut scratch.apply("apply", "ask('status', '--json')"));
    apply.finish();
    for name in ["early", "apply"] {
        let this = this_run(&scratch.runs(name)[0], 0);
        assert!(this["origin"].is_null(), "{name}: {this:#}");
    }
    scratch.again_well(&["stop"]);
    assert_eq!(all_triggers(&scratch, "stopped"), of(&[("web1", 7)]));
    scratch.assert_nothing_left();
}

/// A rerun that was requested on this node satisfies the triggers that are ready, and reports it.
#[test]
fn a_rerun_of_this_node_does_the_job_of_what_is_ready() {
    let scratch = Scratch::new();
    scratch.write("work/node.pp", "ask('status', '--json')");
    let command = agent(&scratch);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    ask_well(&scratch, &[("web1", 7)], 3_600_000, 0);
    ask_well(&scratch, &[("web2", 8)], 0, 1800);
    let words = [&["run", "--name", "own", "--"], &command[..]].concat();
    scratch.again_well(&words);
    let runs = scratch.wait_for_runs("node", 1);
    assert_eq!(
        triggers(&this_run(&runs[0], 0)["origin"]),
        of(&[("web1", 7)])
    );
    assert_eq!(all_triggers(&scratch, "started"), of(&[("web1", 7)]));
    let waiting: Vec<Value> = scratch.timers();
    let waiting = waiting.iter().filter(|timer| !timer["origin"].is_null());
    let waiting: Vec<_> = waiting
        .flat_map(|timer| triggers(&timer["origin"]))
        .collect();
    assert_eq!(waiting, of(&[("web2", 8)]));
    scratch.again_well(&["stop"]);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A due time stays; triggers that need a later one share a single next one.
#[test]
fn there_is_one_due_time_and_one_next() {
    let scratch = Scratch::new();
    scratch.write("work/node.pp", "");
    ask_well(&scratch, &[("web1", 1)], 0, 1000);
    let first = timers(&scratch);
    assert_eq!(first.len(), 1);
    ask_well(&scratch, &[("web2", 2)], 0, 2000);
    let second = timers(&scratch);
    assert_eq!((second.len(), &second[0]), (2, &first[0]));
    // These are ready in time for the pending run.
    for (sender, delta) in [("web3", 1500), ("web4", 500), ("web5", 0)] {
        let said = ask_well(&scratch, &[(sender, 3)], 0, delta);
        assert!(
            said.contains("goes with the pending timer 'again-fleet"),
            "{said}"
        );
        assert_eq!(timers(&scratch), second);
    }
    // This one is ready in time for neither.
    ask_well(&scratch, &[("web6", 4)], 0, 3000);
    let third = timers(&scratch);
    assert_eq!((third.len(), &third[0]), (2, &first[0]));
    assert!(third[1].1 > second[1].1, "{third:?}");
    let waiting: Vec<usize> = scratch
        .timers()
        .iter()
        .map(|timer| triggers(&timer["origin"]).len())
        .collect();
    assert_eq!(waiting, [3, 3]);
    // Stopping one timer stops only its triggers.
    scratch.again_well(&["stop", "again-fleet"]);
    assert_eq!(
        all_triggers(&scratch, "stopped"),
        of(&[("web1", 1), ("web4", 3), ("web5", 3)])
    );
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Many triggers come during a run: one run follows, which satisfies all of them; none is early.
#[test]
fn one_run_follows_however_many_came_meanwhile() {
    let scratch = Scratch::new();
    scratch.write("work/node.pp", "hold('go')");
    ask_well(&scratch, &[("web0", 1)], 0, 0);
    wait_until("the first run", SHORT, || scratch.runs("node").len() == 1);
    for number in 1..=40_u64 {
        let sender = format!("web{}", number % 5);
        ask_well(&scratch, &[(&sender, 100 + number)], 20, 0);
    }
    assert_eq!(scratch.timers().len(), 1);
    let asked_at = now();
    scratch.release("go");
    let runs = scratch.wait_for_runs("node", 2);
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("node").len(), 2);
    assert!(runs[1].started() >= asked_at);
    let started = history(&scratch, "started");
    assert_eq!(started.len(), 2);
    assert_eq!(triggers(&started[1]["origin"]).len(), 40);
    assert_eq!(all_triggers(&scratch, "ended").len(), 41);
    scratch.assert_nothing_left();
}

/// At the cap triggers wait, whatever the setting for other requests.
#[test]
fn at_the_cap_triggers_wait() {
    let scratch = Scratch::new();
    scratch.settings("max_runs = 1\nwindow = \"20s\"\non_cap = \"skip\"");
    scratch.write("work/node.pp", "");
    let begun = now();
    ask_well(&scratch, &[("web1", 1)], 0, 0);
    scratch.wait_for_runs("node", 1);
    ask_well(&scratch, &[("web1", 2)], 0, 0);
    let timer = wait_for("its timer", SHORT, || scratch.timer("again-fleet"));
    assert!(timer["put_off_seconds"].as_f64() > Some(0.0), "{timer:#}");
    assert_eq!(triggers(&timer["origin"]), of(&[("web1", 2)]));
    let runs = scratch.wait_for_runs("node", 2);
    assert!(runs[1].started() - runs[0].started() >= 19_900_000_000 && runs[1].started() > begun);
    scratch.wait_until_settled();
    assert_eq!(
        all_triggers(&scratch, "started"),
        of(&[("web1", 1), ("web1", 2)])
    );
    scratch.assert_nothing_left();
}

/// The waiter dies, and the machine reboots: the triggers still get their run, once, and not before
/// they are due.
#[test]
fn triggers_outlast_a_reboot() {
    let scratch = Scratch::new();
    scratch.write("work/node.pp", "ask('status', '--json')");
    ask_well(&scratch, &[("web1", 1)], 0, 2);
    let waiter = scratch.waiter("again-fleet");
    scratch.run("kill", &["-9", &waiter.pid.to_string()]).ok();
    wait_until("its end", SHORT, || scratch.waiters().is_empty());
    let path = scratch.target().join("state.json");
    let text = fs::read_to_string(&path).expect("a record");
    let boot = scratch.record()["timers"]["again-fleet"]["boot"].clone();
    let boot = boot.as_str().expect("a boot");
    fs::write(&path, text.replace(boot, "another-boot")).expect("written");
    let before = now();
    scratch.again_well(&["resume"]);
    // More triggers come meanwhile.
    ask_well(&scratch, &[("web2", 2)], 0, 0);
    let runs = scratch.wait_for_runs("node", 1);
    scratch.wait_until_settled();
    let mut carried: Vec<_> = scratch
        .runs("node")
        .iter()
        .flat_map(|run| triggers(&this_run(run, 0)["origin"]))
        .collect();
    carried.sort();
    assert_eq!(carried, of(&[("web1", 1), ("web2", 2)]));
    assert!(runs[0].started() > before);
    assert_eq!(
        all_triggers(&scratch, "started"),
        of(&[("web1", 1), ("web2", 2)])
    );
    scratch.assert_nothing_left();
}

/// An invalid origin argument is refused with the reason, and changes nothing.
#[test]
fn what_is_no_word_is_refused() {
    let scratch = Scratch::new();
    let good = word(&[("web1", 1)], 0);
    for (text, why) in [
        ("", "EOF"),
        ("{}", "missing field"),
        (
            &good.replace("\"version\":1", "\"version\":2"),
            "its version is 2",
        ),
        (&good.replace("web1", "w\\u0007"), "is no certname"),
        (&"[".repeat(100_000), "expected"),
    ] {
        let done = scratch.again(&asked(text, "--delta=0", &["/bin/true"]));
        assert_eq!((done.code, done.out.as_str()), (Some(2), ""), "{done:?}");
        assert!(done.err.contains(why) && done.err.len() < 500, "{done:?}");
        assert_eq!(done.err.lines().count(), 1, "{done:?}");
    }
    let done = scratch.again(&["run", "--origin", &good]);
    assert_eq!(done.code, Some(2), "without a command: {done:?}");
    assert!(!scratch.path("state").exists());
}
