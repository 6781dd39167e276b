use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use again_test_support::{Dice, LONG, Process, Scratch, timed, wait_until};

/// Number of repetitions: the long version multiplies it.
fn times(n: usize) -> usize {
    n * std::env::var("AGAIN_SOAK_TIMES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1)
}

/// Seed of the random numbers.
fn seed(n: u64) -> u64 {
    std::env::var("AGAIN_SOAK_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(n)
        .max(1)
}

/// Starts the same for a shell's `script`, followed by the words that note `word`.
fn ask_for(scratch: &Scratch, script: &str, word: &str) -> Child {
    ask_by(scratch, &["--", "sh", "-c", script], word)
}

/// Starts a request whose rerun notes `word`.
fn ask(scratch: &Scratch, options: &[&str], word: &str) -> Child {
    ask_by(scratch, &[options, &["--"]].concat(), word)
}

fn ask_by(scratch: &Scratch, words: &[&str], word: &str) -> Child {
    scratch
        .command(scratch.path("bin/again"))
        .arg("run")
        .args(words)
        .args([
            &scratch.at("bin/helper"),
            "stamp",
            &scratch.at("stamps"),
            word,
        ])
        .stdout(Stdio::null())
        .spawn()
        .expect("started")
}

fn end(children: Vec<Child>) {
    for mut child in children {
        assert!(child.wait().expect("waited for").success());
    }
}

fn words(scratch: &Scratch) -> Vec<String> {
    scratch
        .stamps()
        .into_iter()
        .map(|stamp| stamp.words.join(" "))
        .collect()
}

/// Fails unless every word was noted once.
fn assert_each_once(scratch: &Scratch, count: usize) {
    let words = words(scratch);
    assert_eq!(words.len(), count);
    assert_eq!(
        words.into_iter().collect::<BTreeSet<_>>().len(),
        count,
        "something ran twice"
    );
}

#[test]
fn two_at_the_same_instant_are_one_timer() {
    let scratch = Scratch::new();
    let pairs = times(40);
    for _ in 0..pairs {
        end(vec![
            ask(&scratch, &["--delta", "1h"], "x"),
            ask(&scratch, &["--delta", "1h"], "x"),
        ]);
        assert_eq!(scratch.timers().len(), 1);
    }
    wait_until("the replaced waiters to end", LONG, || {
        scratch.waiters().len() == 1
    });
    scratch.again_well(&["now"]);
    wait_until("the rerun", LONG, || words(&scratch).len() == 1);
    scratch.wait_until_settled();
    assert_each_once(&scratch, 1);
    scratch.assert_nothing_left();
    println!("{pairs} pairs at the same instant");
}

#[test]
fn five_hundred_at_once_under_one_name() {
    let scratch = Scratch::new();
    let (failed, took) = timed(|| {
        let asking: Vec<Child> = (0..500)
            .map(|_| ask(&scratch, &["--delta", "1h"], "x"))
            .collect();
        let ended = asking.into_iter().map(|mut child| child.wait());
        ended
            .filter(|status| !status.as_ref().expect("waited for").success())
            .count()
    });
    // A request gives up after 30 s, which a busy machine may need for all of them.
    assert!(
        failed == 0 || took > Duration::from_secs(30),
        "{failed} failed in {took:?}"
    );
    assert_eq!(scratch.timers().len(), 1);
    wait_until("the replaced waiters to end", LONG, || {
        scratch.waiters().len() == 1
    });
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
    println!("500 requests at once took {took:?}");
}

/// A thousand timers, each of its own target: `status` shows them in time, and each starts its
/// rerun once.
#[test]
fn a_thousand_timers_of_a_thousand_targets() {
    let scratch = Scratch::new();
    let all: Vec<String> = (0..1000).map(|n| format!("word-{n}")).collect();
    for some in all.chunks(20) {
        end(some
            .iter()
            .map(|word| ask(&scratch, &["--delta", "1h"], word))
            .collect());
    }
    let (timers, took) = timed(|| scratch.timers());
    assert_eq!(timers.len(), 1000);
    assert!(timers.iter().all(|timer| timer["state"] == "waiting"));
    println!("status of 1,000 timers took {took:?}");
    scratch.again_well(&["now"]);
    wait_until("all of them", LONG, || words(&scratch).len() >= 1000);
    wait_until("everything to settle", LONG, || {
        scratch.again(&["status"]).code == Some(3) && scratch.waiters().is_empty()
    });
    assert_each_once(&scratch, 1000);
    scratch.assert_nothing_left();
}

const ROLES: [&str; 3] = ["requester killed", "waiter killed", "rerun killed"];

/// Returns the role of one of the directory's processes in a request's life.
fn role(scratch: &Scratch, process: Process) -> &'static str {
    let is_ours = process.link("exe") == Some(scratch.path("bin/again"));
    match process.command().get(1).map(String::as_str) {
        Some("run") if is_ours => ROLES[0],
        _ if is_ours => ROLES[1],
        _ => ROLES[2],
    }
}

/// Requesters, waiters and reruns are killed at random moments near their due time. Each promised
/// rerun has run once, or is on record as started or as pending, and in that case `again resume`
/// starts it.
#[test]
fn killed_at_random_moments() {
    let scratch = Scratch::new();
    let seed = seed(0x5eed_0021);
    let mut dice = Dice::new(seed);
    let cases = times(600);
    let mut kinds = BTreeMap::<&str, usize>::new();
    let mut promised = 0;
    // Slow enough to be found before and during its work.
    let slow = "sleep 0.01; exec \"$0\" \"$@\"";
    for round in 0..cases / 10 {
        let asked: Vec<Child> = (0..10)
            .map(|n| ask_for(&scratch, slow, &format!("r{round}-{n}")))
            .collect();
        for _ in 0..12 {
            dice.pause(Duration::from_millis(3));
            let mut live: Vec<(Process, &str)> = scratch
                .processes_at_a_glance()
                .into_iter()
                .map(|process| (process, role(&scratch, process)))
                .collect();
            // A process of one role, if there is any: reruns live the shortest.
            let wanted = ROLES[usize::try_from(dice.below(3)).expect("small")];
            if live.iter().any(|(_, role)| *role == wanted) {
                live.retain(|(_, role)| *role == wanted);
            }
            let nth = dice.below(live.len().max(1) as u64);
            if let Some((victim, role)) = live.get(usize::try_from(nth).expect("small"))
                && victim.signal(Signal::SIGKILL).is_ok()
            {
                *kinds.entry(role).or_default() += 1;
            }
        }
        for mut child in asked {
            promised += usize::from(child.wait().expect("waited for").success());
        }
    }
    kinds.insert("promised", promised);
    let dead = |scratch: &Scratch| {
        scratch
            .timers()
            .iter()
            .filter(|t| t["state"] == "dead")
            .count()
    };
    wait_until("the living to end", LONG, || scratch.waiters().is_empty());
    kinds.insert("resumed", dead(&scratch));
    scratch.again_well(&["resume"]);
    scratch.wait_until_settled();
    let words = words(&scratch);
    let once: BTreeSet<&String> = words.iter().collect();
    assert_eq!(once.len(), words.len(), "something ran twice");
    kinds.insert("ran", words.len());
    // A word that is missing belongs to a rerun that started and died before it did anything; that
    // is on record.
    let started = scratch.told("started").len() - scratch.told("taken-back").len();
    let counted: usize = scratch
        .records("state")
        .iter()
        .map(|r| r["starts"].as_array().expect("starts").len())
        .sum();
    // A requester that was killed may have made its promise just before.
    assert!(
        (promised..=cases).contains(&counted),
        "{counted} on record as started: {kinds:?}"
    );
    assert!(started <= counted && words.len() <= counted);
    scratch.assert_nothing_left();
    println!("{cases} requests (seed {seed:#x}): {kinds:?}");
    let killed = |role: &&str| kinds.get(role).copied().unwrap_or(0);
    assert!(
        ROLES.iter().all(|role| killed(role) > 0),
        "not one of each role: {kinds:?}"
    );
    assert!(
        ROLES.iter().map(killed).sum::<usize>() > cases / 20,
        "{kinds:?}"
    );
}
