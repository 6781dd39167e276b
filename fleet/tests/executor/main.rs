//! Executor as a process, started through its socket, with certificates of a real Puppet CA. A
//! script instead of `again` writes down its arguments.

#[path = "../support/ca.rs"]
mod ca;
mod calls;
#[path = "../support/fired.rs"]
mod fired;
mod hostile;
mod names;
mod node;
mod rules;
mod share;
mod source;
#[path = "../support/told.rs"]
mod told;

use again_base::model::Span;
use again_base::schema::origin::Word;
use again_fleet::handover::Answer;
use again_fleet::wire::name::Id;
use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::trigger::Trigger;
use fired::{by, sealed, trigger, unsigned};
use node::{Node, cancel};

fn outcomes(answers: &[Answer]) -> Vec<Outcome> {
    answers.iter().map(|answer| answer.outcome).collect()
}

#[test]
fn what_an_accepted_node_has_signed_is_passed_on() {
    let node = Node::new();
    let one = Trigger {
        delta: 1500,
        ..trigger("web1.test")
    };
    let answers = node.hand_over(&[by("web1.test", &one)]);
    assert_eq!(outcomes(&answers), [Outcome::Taken]);
    assert_eq!(answers[0].why, "scheduled: by the stand-in");
    let [call] = &node.calls()[..] else {
        panic!("{:?}", node.calls())
    };
    let [run, origin, word, rest @ ..] = &call[..] else {
        panic!("{call:?}")
    };
    assert_eq!([run, origin], ["run", "--origin"]);
    // The command is this node's own, and comes after the end of the options.
    let expected = [
        "--name=again-fleet",
        "--delta=2",
        "--",
        "/bin/puppet it",
        "--test",
    ];
    assert_eq!(rest, expected);
    let word = Word::parse(word).expect("a word");
    assert_eq!((&word.origins, word.jitter()), (&one.lineage.0, Span::ZERO));
    let numbered = &word.triggers[0];
    assert_eq!(
        (&numbered.id, &numbered.sender, numbered.number),
        (&one.id, &one.sender, one.number)
    );
    assert_eq!(numbered.until.millis(), one.at + one.ttl + 300_000);
}

#[test]
fn nothing_is_taken_twice() {
    let node = Node::new();
    let new = trigger("web1.test");
    let old = Trigger {
        number: new.number - 1,
        at: new.at - 1,
        ..trigger("web1.test")
    };
    // The same id with another number and name is the same trigger.
    let again = Trigger {
        number: new.number + 1,
        name: "other".parse().expect("a name"),
        ..new.clone()
    };
    let value = by("web1.test", &new);
    for value in [&value, &value, &by("web1.test", &again)] {
        assert_eq!(node.one(value).outcome, Outcome::Taken);
    }
    assert_eq!(
        outcomes(&node.hand_over(&[by("web1.test", &old)])),
        [Outcome::Superseded]
    );
    // Another process does not run it either, because it reads the ledger from the disk.
    node.wait_until_idle();
    assert_eq!(
        outcomes(&node.hand_over(&[value, by("web1.test", &old)])),
        [Outcome::Taken, Outcome::Held]
    );
    assert_eq!(
        outcomes(&node.hand_over(&[by("web1.test", &old)])),
        [Outcome::Superseded]
    );
    assert_eq!(node.calls().len(), 1);
    let newer = Trigger {
        number: new.number + 1,
        id: Id::from_bits(9),
        ..new
    };
    assert_eq!(
        outcomes(&node.hand_over(&[by("web1.test", &newer)])),
        [Outcome::Taken]
    );
    assert_eq!(node.calls().len(), 2);
}

/// An upgrade does not wait until requests cease.
#[test]
fn a_program_that_was_replaced_ends_when_it_has_answered() {
    let mut node = Node::new();
    node.idle = "10m";
    node.upgrade();
    let one = trigger("web1.test");
    let value = by("web1.test", &one);
    assert_eq!(node.one(&value).outcome, Outcome::Taken);
    assert!(!node.ends(), "{}", node.errors());
    node.upgrade();
    assert_eq!(node.one(&value).outcome, Outcome::Taken);
    assert!(node.ends(), "the old program goes on");
    // The next process reads the ledger from the disk.
    assert_eq!(node.one(&value).outcome, Outcome::Taken);
    assert_eq!(node.calls().len(), 1);
}

#[test]
fn what_is_handed_over_together_is_asked_for_once() {
    let node = Node::new();
    let mut triggers: Vec<Trigger> = (0..20)
        .map(|n| Trigger {
            id: Id::from_bits(n),
            name: format!("name {n}").parse().expect("a name"),
            ..trigger("web1.test")
        })
        .collect();
    triggers[7].delta = 60_000;
    let answers = node.hand_over(&sealed("web1.test", "test", &triggers));
    assert_eq!(outcomes(&answers), [Outcome::Taken; 20]);
    let calls = node.calls();
    let words: Vec<(usize, &str)> = calls
        .iter()
        .map(|call| {
            (
                serde_json::from_str::<Word>(&call[2])
                    .expect("a word")
                    .triggers
                    .len(),
                call[4].as_str(),
            )
        })
        .collect();
    assert_eq!(words, [(19, "--delta=0"), (1, "--delta=60")]);
}

#[test]
fn what_the_helper_does_not_put_on_record_is_held() {
    let node = Node::new();
    node.helper_says("again: disabled: not today; again enable", 75);
    let value = by("web1.test", &trigger("web1.test"));
    let held = node.one(&value);
    assert_eq!(held.outcome, Outcome::Held);
    assert_eq!(held.why, "disabled: not today; again enable");
    node.helper_says("", 2);
    assert!(node.one(&value).why.ends_with("ended with exit status: 2"));
    node.helper_says("again: scheduled: now", 0);
    assert_eq!(outcomes(&node.hand_over(&[value])), [Outcome::Taken]);
    assert_eq!(node.calls().len(), 3);
}

#[test]
fn what_was_taken_back_in_time_is_not_run() {
    let node = Node::new();
    let one = trigger("web1.test");
    let back = by("web1.test", &cancel(&one));
    assert_eq!(node.one(&back).outcome, Outcome::Cancelled);
    node.wait_until_idle();
    assert_eq!(
        outcomes(&node.hand_over(&[by("web1.test", &one)])),
        [Outcome::Cancelled]
    );
    assert_eq!(outcomes(&node.hand_over(&[back])), [Outcome::Cancelled]);
    assert_eq!(node.calls().len(), 0);
}

/// The script kills its caller as late as possible.
#[test]
fn what_was_begun_is_finished_before_anything_else() {
    let node = Node::new();
    node.helper_kills(true);
    let one = trigger("web1.test");
    let value = by("web1.test", &one);
    assert!(
        node.try_to_hand_over(std::slice::from_ref(&value)).is_err(),
        "it was killed"
    );
    node.helper_kills(false);
    // The executor must not report now that the trigger was cancelled in time.
    let answers = node.hand_over(&[by("web1.test", &cancel(&one))]);
    assert_eq!(outcomes(&answers), [Outcome::TooLate]);
    let calls = node.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(
        calls[0], calls[1],
        "the same numbers, which the helper knows"
    );
    assert_eq!(outcomes(&node.hand_over(&[value])), [Outcome::Taken]);
    assert_eq!(node.calls().len(), 2);
}

#[test]
fn what_was_begun_and_has_expired_is_left_alone() {
    let node = Node::new();
    node.helper_kills(true);
    let brief = Trigger {
        ttl: 1,
        // This time is within the skew for ten seconds.
        at: trigger("web1.test").at - 290_000,
        ..trigger("web1.test")
    };
    // `again` has recorded one of the triggers.
    let recorded = Trigger {
        name: "recorded".parse().expect("a name"),
        id: Id::from_bits(5),
        ..brief.clone()
    };
    let values = sealed("web1.test", "test", &[brief.clone(), recorded.clone()]);
    node.helper_shows("history", &format!("{{\"id\": \"{}\"}}\n", recorded.id));
    let begun = node.try_to_hand_over(&values);
    assert!(begun.is_err(), "{begun:?}");
    node.helper_kills(false);
    // Time itself is tested: the trigger expires.
    std::thread::sleep(std::time::Duration::from_secs(12));
    let other = Trigger {
        name: "other".parse().expect("a name"),
        ..trigger("web1.test")
    };
    assert_eq!(
        outcomes(&node.hand_over(&[by("web1.test", &other)])),
        [Outcome::Taken]
    );
    let late = outcomes(&node.hand_over(&values));
    assert_eq!(late, [Outcome::Expired, Outcome::Taken]);
    let numbers: Vec<u64> = node
        .calls()
        .iter()
        .map(|call| {
            serde_json::from_str::<Word>(&call[2])
                .expect("a word")
                .triggers[0]
                .number
        })
        .collect();
    assert_eq!(numbers, [brief.number, other.number]);
}

#[test]
fn settings_that_cannot_be_used_take_nothing_and_lose_nothing() {
    let node = Node::new();
    let value = by("web1.test", &trigger("web1.test"));
    for (settings, words) in [
        (
            "accept = [\"web*.test\"]\nacept = []",
            "again-fleet.toml: line 2: unknown key 'acept'",
        ),
        ("certname = \"lb1.test\"", "set accept"),
        (
            "certname = \"lb1.test\"\naccept = []\ncrl = \"/nonexistent/crl.pem\"",
            "/nonexistent/crl.pem cannot be read",
        ),
    ] {
        node.set(settings);
        let answer = node.one(&value);
        assert_eq!(answer.outcome, Outcome::Held);
        assert!(answer.why.contains(words), "{}", answer.why);
    }
    // The same process that had no settings reads them now.
    node.set_well("");
    assert_eq!(outcomes(&node.hand_over(&[value])), [Outcome::Taken]);
}

#[test]
fn the_helper_inherits_nothing_of_this_service() {
    let node = Node::new();
    node.hand_over(&[by("web1.test", &trigger("web1.test"))]);
    let environment = node.helper_saw("env");
    for ours in ["LISTEN_", "AGAIN_FLEET_", "INVOCATION_ID", "JOURNAL_STREAM"] {
        assert!(!environment.contains(ours), "{environment}");
    }
    assert!(
        environment.contains("PATH=") && environment.contains("KEPT=1"),
        "{environment}"
    );
    assert_eq!(node.helper_saw("sockets"), "");
    // Signals that are neither ignored nor blocked: PIPE, and all others except the C library's
    // own, which posix_spawn(3) leaves ignored in the process that started this test.
    let signals = node.helper_saw("signals");
    let masks = signals
        .split([':', ' '])
        .filter_map(|word| u64::from_str_radix(word, 16).ok());
    let own = 0b111 << 31;
    assert_eq!(
        masks.map(|mask| mask & !own).collect::<Vec<_>>(),
        [0, 0],
        "{signals}"
    );
}

#[test]
fn run_cmd_starts_in_the_directory_that_is_set() {
    let node = Node::new();
    let value = by("web1.test", &trigger("web1.test"));
    let cwd = node.path("work");
    node.set_well(&format!("cwd = {cwd:?}"));
    let missing = format!("{}, the directory of run_cmd, is not there", cwd.display());
    let answer = node.one(&value);
    assert_eq!((answer.outcome, answer.why), (Outcome::Held, missing));
    std::fs::create_dir(&cwd).expect("made");
    assert_eq!(node.one(&value).outcome, Outcome::Taken);
    let environment = node.helper_saw("env");
    let pwd = format!("PWD={}", cwd.display());
    assert!(environment.lines().any(|line| line == pwd), "{environment}");
}

#[test]
fn without_certificates_everybodys_word_counts_who_can_write_to_the_backend() {
    let node = Node::new();
    node.set_well("trust = \"backend\"\nca = \"/nonexistent\"");
    let one = trigger("web1.test");
    assert_eq!(
        outcomes(&node.hand_over(&[unsigned(&one)])),
        [Outcome::Taken]
    );
    let other = trigger("db1.test");
    assert_eq!(
        outcomes(&node.hand_over(&[unsigned(&other)])),
        [Outcome::Refused]
    );
}
