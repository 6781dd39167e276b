//! Kills at every step: `helper kill-at` kills a process as it enters its 1st, 2nd, 3rd … system
//! call that another process could notice, until it completes. These are all states that a SIGKILL
//! can leave, not a sample of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use serde_json::Value;

use again_test_support::{
    Dice, Ended, Process, SHORT, Scratch, answer, ask_for, start, wait_until,
};

/// Returns how `helper kill-at` ended: `killed`, `launched` or `ended`, at which system call, and
/// its number.
fn verdict(said: &str) -> (String, u64, i64) {
    let line = said
        .lines()
        .find_map(|line| line.split_once("kill-at: "))
        .expect("a verdict")
        .1;
    let words: Vec<&str> = line.split(' ').collect();
    (
        words[0].to_owned(),
        words[1].parse().expect("a count"),
        words[2].parse().expect("a number"),
    )
}

/// Runs `again` with these words through `helper kill-at`.
fn killed_at(scratch: &Scratch, who: &str, n: u64, words: &[&str]) -> (Ended, String, i64) {
    ended_at(scratch, "kill-at", who, n, words)
}

/// Does the same with another way to end the process, such as `term-at`.
fn ended_at(
    scratch: &Scratch,
    way: &str,
    who: &str,
    n: u64,
    words: &[&str],
) -> (Ended, String, i64) {
    let mut command = scratch.command(scratch.path("bin/helper"));
    command
        .args([way, who, &n.to_string(), "--", &scratch.at("bin/again")])
        .args(words);
    let done = answer(&mut command);
    let (how, _, call) = verdict(&done.err);
    (done, how, call)
}

/// Repeats a case for every system call until the process completes. Returns the number of calls.
fn sweep(mut case: impl FnMut(u64) -> bool) -> u64 {
    for n in 1..2000 {
        if !case(n) {
            return n - 1;
        }
    }
    panic!("it never gets through");
}

/// Returns the living processes that hold an order's lock in this state directory, by token.
fn waiters_of(scratch: &Scratch, state: &str) -> BTreeMap<String, Process> {
    let orders = format!("{}/targets/", scratch.at(state));
    scratch
        .waiters()
        .into_iter()
        .filter_map(|process| {
            let descriptors = process.descriptors();
            let order = descriptors.values().find(|to| to.starts_with(&orders))?;
            let token = Path::new(order.trim_end_matches(" (deleted)")).file_name()?;
            Some((token.to_str()?.to_owned(), process))
        })
        .collect()
}

/// Returns the tokens of the timers that were removed from the record, and whose waiters may still
/// have to end.
fn leaving(scratch: &Scratch, state: &str) -> Vec<String> {
    let records = scratch.records(state);
    let of = |record: &Value| record["leaving"].as_array().cloned().unwrap_or_default();
    let all = records.iter().flat_map(of);
    all.map(|timer| timer["token"].as_str().expect("a token").to_owned())
        .collect()
}

/// Returns token and waiter of the timers on record.
fn recorded(scratch: &Scratch, state: &str) -> BTreeMap<String, Option<i32>> {
    let mut found = BTreeMap::new();
    for record in scratch.records(state) {
        for timer in record["timers"].as_object().expect("timers").values() {
            let token = timer["token"].as_str().expect("a token").to_owned();
            found.insert(token, timer["waiter"]["pid"].as_i64().map(|pid| pid as i32));
        }
    }
    found
}

/// Name of a file that is only a lock, and stays.
const STARTS_LOCK: &str = ".starts.lock";

/// Whether a name in the index of pending timers belongs to a timer on record.
fn is_entry(name: &str, tokens: &BTreeMap<String, Option<i32>>) -> bool {
    let token = name.split_once('.').map(|(_, token)| token);
    name.starts_with("whole") || token.is_some_and(|token| tokens.contains_key(token))
}

/// Returns the timers on record that are missing from the index of pending timers.
fn unlisted(scratch: &Scratch, state: &str) -> Vec<String> {
    let index = fs::read_dir(scratch.path(state).join("pending"));
    let names = index.into_iter().flatten().flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    let is_listed = |token: &String| {
        names
            .iter()
            .any(|name| name.to_string_lossy().ends_with(token))
    };
    let mut tokens: Vec<String> = recorded(scratch, state).into_keys().collect();
    tokens.retain(|token| !is_listed(token));
    tokens
}

/// Returns the files in the state directory that nothing refers to: unfinished ones, orders of no
/// timer, reruns that have ended.
fn strays(scratch: &Scratch, state: &str) -> Vec<String> {
    let tokens = recorded(scratch, state);
    let mut found = Vec::new();
    let mut directories = vec![scratch.path(state)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().expect("a plain name");
            let is_order = directory.ends_with("orders");
            let is_dead_rerun = || {
                let text = fs::read(entry.path()).expect("readable");
                let process: Value = serde_json::from_slice(&text).expect("whole");
                let pid = process["process"]["pid"].as_i64().expect("a pid") as i32;
                Process::now(pid).is_none_or(|now| process["process"]["start"] != now.start)
            };
            if entry.path().is_dir() {
                directories.push(entry.path());
            } else if name.starts_with('.') && name != STARTS_LOCK
                || is_order && !tokens.contains_key(&name)
                || directory.ends_with("pending") && !is_entry(&name, &tokens)
                || directory.ends_with("reruns") && is_dead_rerun()
            {
                found.push(format!(
                    "{}/{name}",
                    directory.file_name().expect("a name").to_string_lossy()
                ));
            }
        }
    }
    found
}

/// Errors of all cases, so that one failure shows them all.
#[derive(Default)]
struct Wrong(Vec<String>);

impl Wrong {
    #[track_caller]
    fn assert_nothing(&self) {
        assert!(
            self.0.is_empty(),
            "{} cases are wrong: {:#?}",
            self.0.len(),
            self.0
        );
    }

    /// Checks that every timer on record has its living waiter, and every living waiter is on
    /// record: for its timer, or as one that has to leave. A waiter that is not on record has to
    /// find that out for itself, so the check waits for it.
    fn unless_consistent(&mut self, scratch: &Scratch, state: &str, case: &str) {
        self.unless_soon(case, || {
            let (recorded, leaving) = (recorded(scratch, state), leaving(scratch, state));
            let waiters = waiters_of(scratch, state);
            let pid = |token: &String| waiters.get(token).map(|process| process.pid);
            let every_timer = recorded
                .iter()
                .all(|(token, waiter)| waiter.is_some() && pid(token) == *waiter);
            let mut strangers = waiters
                .keys()
                .filter(|token| !recorded.contains_key(*token) && !leaving.contains(token));
            let unlisted = unlisted(scratch, state);
            if every_timer && strangers.next().is_none() && unlisted.is_empty() {
                return Ok(());
            }
            let living: Vec<_> = waiters.keys().map(|token| (token, pid(token))).collect();
            Err(format!(
                "on record {recorded:?}, not in the index {unlisted:?}, to leave {leaving:?}, alive {living:?}"
            ))
        });
    }

    /// Checks that the next request of that target removes the remains of a crash, and that
    /// everything else works as usual.
    fn unless_mended(&mut self, scratch: &Scratch, state: &str, case: &str, request: &[&str]) {
        // An unfinished file that may belong to another process is left alone while it is new.
        let a_while_ago = SystemTime::now() - Duration::from_secs(120);
        let of = |directory| fs::read_dir(directory).into_iter().flatten().flatten();
        let own = of(scratch.path(state)).filter(|entry| entry.path().is_file());
        for entry in own.chain(of(scratch.path(state).join("reruns"))) {
            let file = fs::File::options().write(true).open(entry.path());
            let _ = file.and_then(|file| file.set_modified(a_while_ago));
        }
        let dir = scratch.at(state);
        let words = [&["run", "--state-dir", dir.as_str()], request].concat();
        let done = scratch.again(&words);
        assert_eq!(done.code, Some(0), "{case}, the next request: {done:?}");
        self.unless_soon(case, || {
            let (left, leaving) = (strays(scratch, state), leaving(scratch, state));
            let (timers, waiters) = (recorded(scratch, state), waiters_of(scratch, state));
            if left.is_empty() && leaving.is_empty() && timers.keys().eq(waiters.keys()) {
                return Ok(());
            }
            let alive = waiters.len();
            Err(format!(
                "after the next request: strays {left:?}, to leave {leaving:?}, {alive} waiters"
            ))
        });
        stop(scratch, &dir, case);
        assert!(
            recorded(scratch, state).is_empty() && waiters_of(scratch, state).is_empty(),
            "{case}"
        );
    }

    /// Records a condition that does not become true within some seconds; after the first error,
    /// the others get less time.
    fn unless_soon(&mut self, case: &str, mut look: impl FnMut() -> Result<(), String>) {
        let limit = Duration::from_secs(if self.0.is_empty() { 60 } else { 2 });
        let mut last = String::new();
        let is_so = ask_for(limit, Duration::from_millis(5), || {
            look().map_err(|what| last = what).ok()
        });
        if is_so.is_none() {
            self.0.push(format!("{case}: {last}"));
        }
    }
}

fn stop(scratch: &Scratch, state: &str, case: &str) {
    let done = scratch.again(&["stop", "--run", "--state-dir", state]);
    assert_eq!(done.code, Some(0), "{case}: {done:?}");
}

#[test]
fn the_requester_of_a_command_at_every_system_call() {
    let scratch = Scratch::new();
    let mut wrong = Wrong::default();
    let mut pending = 0;
    let calls = sweep(|n| {
        let state = format!("crash/{n}");
        let dir = scratch.at(&state);
        let request = ["--delta", "1h", "--", "/bin/true"];
        let words = [&["run", "--state-dir", dir.as_str()], &request[..]].concat();
        let (_, how, call) = killed_at(&scratch, "parent", n, &words);
        let case = format!("killed entering call {n} (number {call})");
        wrong.unless_consistent(&scratch, &state, &case);
        pending += u64::from(!recorded(&scratch, &state).is_empty());
        wrong.unless_mended(&scratch, &state, &case, &request);
        how == "killed"
    });
    assert!(scratch.waiters().is_empty());
    assert!(pending > 1 && pending < calls, "both outcomes were seen");
    println!(
        "{calls} moments of death, after {} of them the timer was pending",
        pending - 1
    );
    wrong.assert_nothing();
}

/// The requester is an Exec of a run, one run for all cases, which has another timer already.
#[test]
fn the_requester_of_a_run_at_every_system_call() {
    let scratch = Scratch::new();
    let mut wrong = Wrong::default();
    let manifest = format!(
        "(1..2000).each do |n|\n\
           to = ['--state-dir', \"{}/#{{n}}\", '--delta', '1h']\n\
           ask('run', *to, '--name', 'other')\n\
           ask('run', *to, through: [HELPER, 'kill-at', 'parent', n.to_s, '--'])\n\
           break unless File.read(format(\"#{{NOTES}}/ask-%03d\", 2 * n)).include?('kill-at: killed')\n\
         end\nnote('through', '')\nhold('go')",
        scratch.at("crash")
    );
    let run = start(&mut scratch.apply("site", &manifest));
    wait_until("a request to get through", SHORT * 2, || {
        scratch.path("past/site/001/through").exists()
    });
    let asked = scratch.runs("site")[0].asked();
    let mut pending = 0;
    for (n, asked) in asked.iter().skip(1).step_by(2).enumerate() {
        let state = format!("crash/{}", n + 1);
        let case = format!("in a run, {}", asked.output);
        assert!(asked.pipe_closed, "{case}: its pipe outlives it");
        wrong.unless_consistent(&scratch, &state, &case);
        let timers = recorded(&scratch, &state).len();
        assert!((1..=2).contains(&timers), "{case}: {timers} timers");
        pending += timers - 1;
        stop(&scratch, &scratch.at(&state), &case);
        wrong.unless_consistent(&scratch, &state, &case);
    }
    assert!(scratch.waiters().is_empty());
    let calls = asked.len() / 2;
    assert!(pending > 1 && pending < calls, "both outcomes were seen");
    println!(
        "{} moments of death in a run, after {} of them the timer was pending",
        calls - 1,
        pending - 1
    );
    scratch.release("go");
    run.finish();
    assert_eq!(scratch.runs("site").len(), 1);
    wrong.assert_nothing();
}

/// The requester replaces a pending timer of that name: one timer is left, the old or the new one,
/// and one waiter.
#[test]
fn the_requester_that_replaces_a_timer_at_every_system_call() {
    let scratch = Scratch::new();
    let mut wrong = Wrong::default();
    let (mut old, mut new) = (0, 0);
    let calls = sweep(|n| {
        let state = format!("crash/{n}");
        let dir = scratch.at(&state);
        let request = ["--delta", "1h", "--", "/bin/true"];
        let words = [&["run", "--state-dir", dir.as_str()], &request[..]].concat();
        scratch.again_well(&words);
        let first = recorded(&scratch, &state);
        let (_, how, call) = killed_at(&scratch, "parent", n, &words);
        let case = format!("replacing, killed entering call {n} (number {call})");
        wrong.unless_consistent(&scratch, &state, &case);
        let now = recorded(&scratch, &state);
        assert_eq!(now.len(), 1, "{case}");
        *(if now == first { &mut old } else { &mut new }) += 1;
        wrong.unless_mended(&scratch, &state, &case, &request);
        how == "killed"
    });
    assert!(scratch.waiters().is_empty());
    assert!(old > 0 && new > 1, "both outcomes were seen");
    println!(
        "{calls} moments of death, after {old} of them the older timer was pending, after {} the newer",
        new - 1
    );
    wrong.assert_nothing();
}

/// Returns the number of triggers that wait in the timers on record.
fn waiting(scratch: &Scratch, state: &str) -> usize {
    let mut waiting = 0;
    for record in scratch.records(state) {
        for timer in record["timers"].as_object().expect("timers").values() {
            let taken = timer["taken"].as_array().cloned().unwrap_or_default();
            let triggers = |one: &Value| one["lineage"]["triggers"].as_array().map_or(0, Vec::len);
            waiting += taken.iter().map(triggers).sum::<usize>();
        }
    }
    waiting
}

/// The requester records triggers of other nodes, with a timer of their own and with a pending one:
/// a second request has all of them on record, each once.
#[test]
fn the_requester_for_triggers_at_every_system_call() {
    let scratch = Scratch::new();
    for others in [0, 2] {
        let mut wrong = Wrong::default();
        let (mut new, mut known) = (0, 0);
        let calls = sweep(|n| {
            let state = format!("crash/{others}-{n}");
            let dir = scratch.at(&state);
            let request = |sender, number, delta| {
                let word = super::origin::word(&[(sender, number)], 0);
                let name = "--name=again-fleet";
                ["--origin", &word, name, delta, "--", "/bin/true"].map(str::to_owned)
            };
            let words = |request: &[String]| -> Vec<String> {
                let run = ["run", "--state-dir", &dir].map(str::to_owned);
                [&run[..], request].concat()
            };
            let run = |words: &[String]| {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                scratch.again_well(&words)
            };
            if others == 2 {
                run(&words(&request("web2", 1, "--delta=3600")));
                run(&words(&request("web2", 2, "--delta=7200")));
            }
            let killed = words(&request("web1", 1, "--delta=5400"));
            let killed: Vec<&str> = killed.iter().map(String::as_str).collect();
            let (_, how, call) = killed_at(&scratch, "parent", n, &killed);
            let case = format!("{others} pending, killed entering call {n} (number {call})");
            wrong.unless_consistent(&scratch, &state, &case);
            let before = waiting(&scratch, &state);
            let said = run(&words(&request("web1", 1, "--delta=5400")));
            let was_known = said.contains("nothing to do");
            *(if was_known { &mut known } else { &mut new }) += 1;
            assert_eq!(before, others + usize::from(was_known), "{case}: {said}");
            assert_eq!(waiting(&scratch, &state), others + 1, "{case}: {said}");
            assert_eq!(
                recorded(&scratch, &state).len(),
                others.max(1),
                "{case}: {said}"
            );
            let plain = ["--delta", "1h", "--", "/bin/true"];
            wrong.unless_mended(&scratch, &state, &case, &plain);
            how == "killed"
        });
        assert!(new > 1 && known > 1, "both outcomes were seen");
        println!(
            "{others} pending: {calls} moments of death, after {known} of them the trigger was on record"
        );
        wrong.assert_nothing();
    }
}

/// From the waiter's fork to the exec, each trigger gets its run, or one that is on record as
/// started; none gets two.
#[test]
fn the_waiter_with_triggers_at_every_system_call() {
    let scratch = Scratch::new();
    let stamps = scratch.at("stamps");
    let helper = scratch.at("bin/helper");
    let mut count = BTreeMap::<&str, u64>::new();
    let calls = sweep(|n| {
        let dir = scratch.at(&format!("crash/{n}"));
        let name = n.to_string();
        let word = super::origin::word(&[("web1", n)], 0);
        let words = [
            "run",
            "--state-dir",
            &dir,
            "--origin",
            &word,
            "--name=again-fleet",
            "--delta=0",
            "--",
            &helper,
            "stamp",
            &stamps,
            &name,
        ];
        let (done, how, call) = killed_at(&scratch, "child", n, &words);
        let case = format!("waiter killed entering call {n} (number {call})");
        // A caller without an answer repeats its request, and any next command gives a dead waiter
        // its successor.
        if done.code != Some(0) {
            *count.entry("asked again").or_default() += 1;
        }
        scratch.again_well(&words);
        scratch.again_well(&["resume", "--state-dir", &dir]);
        wait_until("everything to settle", SHORT, || {
            scratch.again(&["status", "--state-dir", &dir]).code == Some(3)
                && scratch.waiters().is_empty()
        });
        let text = scratch.again_well(&["history", "--json", "--state-dir", &dir]);
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let started = lines.filter(|line| {
            line["what"] == "started" && line["origin"]["triggers"][0]["number"] == n
        });
        let report = scratch.status_of(&["--state-dir", &dir]);
        let taken_back = text
            .lines()
            .filter(|line| line.contains(r#""what":"taken-back""#));
        let started = started.count().saturating_sub(taken_back.count());
        let used = report["targets"][0]["cap"]["used"].as_u64();
        let times = scratch
            .stamps()
            .iter()
            .filter(|stamp| stamp.words == [name.clone()])
            .count();
        // The history may lack what the record has: the process was killed between the two.
        assert!(
            times <= 1 && started <= 1 && used == Some(1),
            "{case}: ran {times} times, {used:?} on record: {text}"
        );
        *count
            .entry(if times == 1 {
                "ran"
            } else {
                "perhaps not begun"
            })
            .or_default() += 1;
        how == "killed"
    });
    println!("{calls} moments of death: {count:?}");
    for kind in ["asked again", "ran", "perhaps not begun"] {
        assert!(count.contains_key(kind), "{kind} was not among {count:?}");
    }
}

/// The requester gives another target's dead waiter a successor in passing: that timer is pending
/// before and after, and has one waiter after the next request.
#[test]
fn the_requester_that_resumes_a_timer_at_every_system_call() {
    let scratch = Scratch::new();
    let mut wrong = Wrong::default();
    let (mut dead, mut resumed) = (0, 0);
    let calls = sweep(|n| {
        let state = format!("crash/{n}");
        let dir = scratch.at(&state);
        let run = ["run", "--state-dir", dir.as_str()];
        let orphan = ["--name", "orphan", "--delta", "1h", "--", "/bin/true"];
        scratch.again_well(&[&run[..], &orphan].concat());
        let waiter = waiters_of(&scratch, &state).into_values().next();
        let waiter = waiter.expect("a waiter");
        waiter.signal(Signal::SIGKILL).expect("killed");
        waiter.wait_until_gone(SHORT);
        let request = ["--delta", "1h", "--", "/bin/false"];
        let (_, how, call) = killed_at(&scratch, "parent", n, &[&run[..], &request].concat());
        let case = format!("resuming, killed entering call {n} (number {call})");
        let timers = recorded(&scratch, &state);
        let successor = timers.values().flatten().any(|pid| {
            *pid != waiter.pid && waiters_of(&scratch, &state).values().any(|w| w.pid == *pid)
        });
        *(if timers.len() == 2 && successor {
            &mut resumed
        } else {
            &mut dead
        }) += 1;
        wrong.unless_mended(&scratch, &state, &case, &request);
        how == "killed"
    });
    assert!(scratch.waiters().is_empty());
    assert!(dead > 0 && resumed > 1, "both outcomes were seen");
    println!("{calls} moments of death, after {dead} of them without a successor");
    wrong.assert_nothing();
}

/// The waiter is killed from its fork to the exec of the rerun: at most one rerun starts, and one
/// that did not start is resumed, by the request itself if that sees its waiter die, else by
/// `again resume`. Its start counts for no cap. Only a rerun killed at the exec itself is not
/// started again, and is shown as perhaps not begun.
#[test]
fn the_waiter_at_every_system_call() {
    let scratch = Scratch::new();
    let mut wrong = Wrong::default();
    let stamps = scratch.at("stamps");
    let helper = scratch.at("bin/helper");
    let mut count: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut parallel, mut later) = (0, 0);
    let calls = sweep(|n| {
        let state = format!("crash/{n}");
        let dir = scratch.at(&state);
        let name = n.to_string();
        let request = ["--", &helper, "stamp", &stamps, &name];
        let words = [&["run", "--state-dir", dir.as_str()], &request[..]].concat();
        let (done, how, call) = killed_at(&scratch, "child", n, &words);
        let case = format!(
            "waiter killed entering call {n} (number {call}): {}",
            done.out
        );
        let times = || {
            scratch
                .stamps()
                .iter()
                .filter(|stamp| stamp.words == [name.clone()])
                .count()
        };
        if how == "launched" {
            wait_until("the rerun", SHORT, || times() == 1);
        }
        wait_until("no process to be left", SHORT, || {
            scratch.waiters().is_empty()
        });
        let status = |words: &[&str]| scratch.status_of(&[words, &["--state-dir", &dir]].concat());
        let report = status(&[]);
        let timers = again_test_support::timers(&report);
        let kind = match (done.code, timers.len(), times()) {
            // The waiter died before it reported that it is ready.
            (Some(1), 0, 0) => {
                assert!(
                    done.err.contains("again: error: cannot start the waiter"),
                    "{case}: {done:?}"
                );
                "not promised"
            }
            (Some(0), 1, 0) => {
                assert_eq!(timers[0]["state"], "dead", "{case}: {report:#}");
                assert_eq!(report["targets"][0]["cap"]["used"], 0, "{case}: {report:#}");
                later += 1;
                // The next request of that name replaces it as well.
                let resume = ["resume", "--state-dir", &dir];
                let resumed = scratch.again(if n % 2 == 0 { &resume } else { &words });
                assert_eq!(resumed.code, Some(0), "{case}: {resumed:?}");
                wait_until("the resumed rerun", SHORT, || times() == 1);
                "resumed"
            }
            (Some(0), 0, 0) => {
                let last = &report["targets"][0]["last"];
                let evidence = last["evidence"].as_str().unwrap_or_default();
                assert!(
                    evidence.contains("may not have begun"),
                    "{case}: {report:#}"
                );
                assert_eq!(report["targets"][0]["cap"]["used"], 1, "{case}");
                "perhaps not begun"
            }
            (Some(0), 0, 1) if how == "killed" => {
                parallel += 1;
                "resumed"
            }
            (Some(0), 0, 1) => "started",
            (code, pending, times) => {
                panic!("{case}: status {code:?}, {pending} pending, started {times} times")
            }
        };
        *count.entry(kind).or_default() += 1;
        wait_until("everything to settle", SHORT, || {
            scratch.again(&["status", "--state-dir", &dir]).code == Some(3)
                && scratch.waiters().is_empty()
        });
        assert_eq!(
            times(),
            usize::from(kind == "started" || kind == "resumed"),
            "{case}"
        );
        // After the line with the boot, there is one line for each start that counts for all
        // targets together.
        let starts = fs::read_to_string(scratch.path(&state).join("starts")).unwrap_or_default();
        let counted = starts.lines().count().saturating_sub(1);
        assert_eq!(
            counted,
            usize::from(kind != "not promised"),
            "{case}: {kind}"
        );
        assert_eq!(begun(&scratch, &dir), counted, "{case}: {kind}");
        wrong.unless_mended(
            &scratch,
            &state,
            &case,
            &["--delta", "1h", "--", &helper, "stamp", &stamps, &name],
        );
        how == "killed"
    });
    println!(
        "{calls} moments of death: {count:?}; resumed by the request {parallel}, later {later}"
    );
    for kind in ["not promised", "resumed", "perhaps not begun", "started"] {
        assert!(count.contains_key(kind), "{kind} was not among {count:?}");
    }
    assert_eq!(
        count["perhaps not begun"], 1,
        "only at the exec itself: {count:?}"
    );
    wrong.assert_nothing();
}

/// Returns the number of starts in the history that were not taken back.
fn begun(scratch: &Scratch, dir: &str) -> usize {
    let text = scratch.again_well(&["history", "--json", "--state-dir", dir]);
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let whats: Vec<Value> = lines.map(|line| line["what"].clone()).collect();
    let count = |what: &str| whats.iter().filter(|one| *one == what).count();
    // A start is taken back even if the process was killed before it recorded it.
    count("started")
        .saturating_sub(count("taken-back"))
        .max(count("ended"))
}

/// TERM instead of KILL: a signal sent to a waiter, or to the rerun according to the record, must
/// take effect. A signal that is caught and forgotten on the way from the one to the other would be
/// lost.
#[test]
fn no_term_is_lost_at_any_system_call() {
    let scratch = Scratch::new();
    let stamps = scratch.at("stamps");
    let helper = scratch.at("bin/helper");
    let mut on_record = 0;
    let calls = sweep(|n| {
        let dir = scratch.at(&format!("crash/{n}"));
        let name = n.to_string();
        let words = [
            "run",
            "--state-dir",
            &dir,
            "--jitter",
            "0",
            "--",
            &helper,
            "stamp",
            &stamps,
            &name,
        ];
        let (done, how, call) = ended_at(&scratch, "term-at", "child", n, &words);
        let case = format!(
            "TERM entering call {n} (number {call}): {}{}",
            done.out, done.err
        );
        wait_until("no process to be left", SHORT, || {
            scratch.processes().is_empty()
        });
        let times = || {
            scratch
                .stamps()
                .iter()
                .filter(|stamp| stamp.words == [name.clone()])
                .count()
        };
        // A requester that ends late finds the waiter dead, and has its timer resumed.
        if how == "launched" || case.contains("again: resumed: ") {
            wait_until("the rerun", SHORT, || times() == 1);
        } else {
            assert_eq!(times(), 0, "{case}");
            let history = scratch.again_well(&["history", "--json", "--state-dir", &dir]);
            on_record += usize::from(history.contains(r#""what":"started""#));
        }
        stop(&scratch, &dir, &case);
        // A signal that comes with the exec itself reaches the new program.
        how == "killed"
    });
    println!("{calls} moments, after {on_record} of them the rerun was on record already");
    assert!(on_record > 0, "none came between the record and the exec");
}

/// Whatever `again stop` got done, no rerun starts whose timer is not pending, and every pending
/// timer has its waiter.
#[test]
fn stop_at_every_system_call() {
    let scratch = Scratch::new();
    let mut wrong = Wrong::default();
    let (mut pending, mut stopped) = (0, 0);
    let calls = sweep(|n| {
        let state = format!("crash/{n}");
        let dir = scratch.at(&state);
        let request = ["--delta", "1h", "--", "/bin/true"];
        scratch.again_well(&[&["run", "--state-dir", dir.as_str()], &request[..]].concat());
        let (_, how, call) = killed_at(&scratch, "parent", n, &["stop", "--state-dir", &dir]);
        let case = format!("stop killed entering call {n} (number {call})");
        wrong.unless_consistent(&scratch, &state, &case);
        *(if recorded(&scratch, &state).is_empty() {
            &mut stopped
        } else {
            &mut pending
        }) += 1;
        wrong.unless_mended(&scratch, &state, &case, &request);
        how == "killed"
    });
    assert!(scratch.waiters().is_empty());
    assert!(pending > 0 && stopped > 1, "both outcomes were seen");
    println!("{calls} moments of death, after {pending} of them the timer was still pending");
    wrong.assert_nothing();
}

/// Two hundred requests of one run, a few at a time, each killed at a random moment of its life,
/// with one name, so that they replace each other too.
#[test]
fn requesters_in_a_crowd_at_random_moments() {
    const CASES: usize = 200;
    const SEED: u64 = 0x5eed_0002;
    let scratch = Scratch::new();
    let mut wrong = Wrong::default();
    let mut dice = Dice::new(SEED);
    // Four requests at the same time take about 30 ms, ruby's forks included.
    let delays: Vec<String> = (0..CASES)
        .map(|_| format!("{:.6}", dice.below(40_000) as f64 / 1e6))
        .collect();
    let manifest = format!(
        "[{}].each_slice(4) do |delays|\n\
           begun = delays.map {{ |delay| b = begin_ask('run'); [b, Thread.new {{ sleep delay; Process.kill(:KILL, b[1]) }}] }}\n\
           begun.each {{ |b, death| death.join; end_ask(b) }}\n\
         end if NTH == 1\nhold('go') if NTH == 1",
        delays.join(", ")
    );
    let run = start(&mut scratch.apply("site", &manifest));
    let asked = scratch.wait_for_answers("site", CASES);
    let died = asked
        .iter()
        .filter(|asked| asked.code == -(Signal::SIGKILL as i32))
        .count();
    wrong.unless_consistent(&scratch, "state", "after all of them");
    let pending = recorded(&scratch, "state").len();
    assert!(pending <= 1, "{pending} timers of one name");
    scratch.release("go");
    run.finish();
    scratch.wait_until_settled();
    let runs = scratch.wait_for_runs("site", 1 + pending);
    assert_eq!(
        runs.len(),
        1 + pending,
        "one rerun for the timer that was pending"
    );
    println!(
        "{CASES} requests (seed {SEED:#x}), {died} of them killed, {pending} timer pending, {pending} rerun"
    );
    wrong.assert_nothing();
}

/// The run is killed at random moments while it makes its request, together with its children: each
/// pending timer has its waiter, and starts its rerun, since the run has ended.
#[test]
fn the_run_at_random_moments() {
    const CASES: usize = 60;
    const SEED: u64 = 0x5eed_0003;
    let scratch = Scratch::new();
    let mut wrong = Wrong::default();
    let mut dice = Dice::new(SEED);
    let stamps = scratch.at("stamps");
    let mut asked = 0;
    for case in 0..CASES {
        let ask = format!("ask('run', '--', HELPER, 'stamp', '{stamps}', '{case}')");
        let run = start(&mut scratch.apply(&format!("site{case}"), &ask));
        wait_until("the run to begin", SHORT, || {
            !scratch.runs(&format!("site{case}")).is_empty()
        });
        dice.pause(Duration::from_millis(14));
        run.kill();
        asked += 1;
    }
    wait_until("everything to settle", SHORT, || {
        scratch.again(&["status"]).code == Some(3) && scratch.waiters().is_empty()
    });
    wrong.unless_consistent(&scratch, "state", "after all of them");
    let mut words: Vec<Vec<String>> = scratch
        .stamps()
        .into_iter()
        .map(|stamp| stamp.words)
        .collect();
    let reruns = words.len();
    words.sort();
    words.dedup();
    assert_eq!(words.len(), reruns, "a request was answered twice");
    let requested = scratch.told("requested").len();
    assert_eq!(scratch.told("started").len(), reruns);
    println!(
        "{asked} runs killed (seed {SEED:#x}): {requested} requests were granted, {reruns} reruns"
    );
    wrong.assert_nothing();
}

/// Records are never torn: they are read all the time while a hundred requests write them.
#[test]
fn records_are_whole_at_every_moment() {
    let scratch = Scratch::new();
    let manifest = "100.times { |n| ask('run', '--name', \"n#{n % 5}\", '--delta', '1h') }";
    let run = start(&mut scratch.apply("site", manifest));
    let mut read = 0;
    while run.process.alive() {
        for record in scratch.records("state") {
            let _: &Value = &record["timers"];
            read += 1;
        }
    }
    run.finish();
    println!("read {read} times");
    assert!(read > 100);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}
