//! Single steps. That they keep every promise together is shown by `tests/simulation`.

use again_base::model::{Moment, Span};

use super::model::*;
use super::{step, wakes};
use crate::handover::Evidence;
use crate::policy::accept::Accept;
use crate::policy::fire::tests::request;
use crate::policy::fire::{Numbers, Request};
use crate::policy::judge::{Rules, Signed, Verdict, judge};
use crate::policy::lineage::tests::{lineage, node};
use crate::policy::replay::{Record, ReplayLedger, TriggerKey};
use crate::policy::term::tests::moment;
use crate::wire::inventory::Inventory;
use crate::wire::key::Key;
use crate::wire::lineage::Lineage;
use crate::wire::name::Id;
use crate::wire::outcome::{Outcome, Ran, TriggerStatus};
use crate::wire::trigger::tests::trigger;
use crate::wire::trigger::{Ask, Trigger};

/// Triggers that come too early, and senders that send more than their share.
#[path = "ahead/tests.rs"]
mod ahead;
/// What stands at the node's own key.
#[path = "node/tests.rs"]
mod own_key;
/// Triggers that are part of a rolling run.
#[path = "rolling/tests.rs"]
mod rolling;
/// Selections that are resolved later.
#[path = "selections/tests.rs"]
mod selections;

const CLIENT: Client = Client::Connection(5);

/// A service and its clocks.
struct Bench {
    state: State,
    now: Moment,
}

impl Bench {
    fn new(me: &str) -> Bench {
        let now = moment("a", 1_000_000, 2_000_000_000);
        let rules = Rules {
            me: node(me),
            accept: Accept {
                from: vec!["web*".parse().expect("a pattern")],
                on_behalf: vec![],
            },
            skew: Span::from_secs(300),
            hop_limit: 3,
            locks: vec![],
        };
        Bench {
            state: State::new(rules, Numbers::default(), [], &now),
            now,
        }
    }

    fn linked(me: &str) -> Bench {
        let mut bench = Bench::new(me);
        assert_eq!(bench.reaches(), []);
        bench
    }

    /// The backend is reached, and does not show what stands at the own key.
    fn reaches(&mut self) -> Vec<Action> {
        let mut actions = self.does(Event::Reached);
        actions.extend(self.does(Event::OwnKeySeen { is_shown: false }));
        actions
    }

    fn does(&mut self, event: Event) -> Vec<Action> {
        step(&mut self.state, event, &self.now)
    }

    /// Lets time pass, and everything happen that is due meanwhile.
    fn passes(&mut self, seconds: u64) -> Vec<Action> {
        let span = Span::from_secs(seconds);
        let (uptime, wall) = (self.now.uptime + span, self.now.wall + span);
        let mut actions = Vec::new();
        while let Some(at) = wakes(&self.state).filter(|at| *at <= uptime) {
            let step = at.since(self.now.uptime);
            self.now.uptime = self.now.uptime + step;
            self.now.wall = self.now.wall + step;
            actions.extend(self.does(Event::Tick));
        }
        (self.now.uptime, self.now.wall) = (uptime, wall);
        actions
    }

    /// Fires, and has it kept.
    fn fires(&mut self, request: Request) -> (Trigger, Vec<Action>) {
        let mut actions = self.does(Event::Fire {
            client: CLIENT,
            request,
        });
        let draft = kept(&actions);
        let Content::Trigger(trigger) = draft.content.clone() else {
            panic!("{draft:?}");
        };
        actions.extend(self.keeps(&draft, Ok(())));
        (trigger, actions)
    }

    fn keeps(&mut self, draft: &Draft, kept: Result<(), String>) -> Vec<Action> {
        self.does(Event::Kept {
            entry: draft.entry.clone(),
            version: draft.version,
            kept,
        })
    }

    /// The backend answers a put.
    fn is_put(&mut self, put: &Action, answer: Result<(), String>) -> Vec<Action> {
        let Action::Put {
            entry,
            version,
            key,
            ..
        } = put.clone()
        else {
            panic!("{put:?}");
        };
        self.does(Event::Put {
            entry,
            version,
            key,
            answer,
        })
    }

    fn hears(&mut self, trigger: &Trigger, outcome: Outcome) -> Vec<Action> {
        self.does(Event::Heard(told(trigger, outcome)))
    }

    /// A register stands in the backend.
    fn sees(&mut self, trigger: &Trigger, revision: u64) -> Vec<Action> {
        self.does(Event::Seen(vec![sight(trigger, revision)]))
    }

    fn gets(&mut self, trigger: &Trigger, outcome: Outcome) -> Vec<Action> {
        self.does(Event::Answers(vec![Answer {
            which: TriggerKey::from(trigger),
            outcome,
            why: String::new(),
            above: None,
        }]))
    }

    /// What is fired at this node now.
    fn fired(&self, number: u64) -> Trigger {
        Trigger {
            number,
            id: Id::from_bits(number.into()),
            at: self.now.wall.millis(),
            ..trigger()
        }
    }
}

fn told(trigger: &Trigger, outcome: Outcome) -> TriggerStatus {
    TriggerStatus {
        id: trigger.id.clone(),
        number: trigger.number,
        sender: trigger.sender.clone(),
        target: trigger.target.clone(),
        name: trigger.name.clone(),
        outcome,
        why: String::new(),
        at: 0,
        stopped: vec![],
        ran: None,
        above: None,
        waits: false,
    }
}

fn sight(trigger: &Trigger, revision: u64) -> Sight {
    Sight {
        place: (trigger.sender.clone(), trigger.name.clone()),
        revision,
        found: Found::Good(Signed {
            signer: trigger.sender.clone(),
            extensions: Default::default(),
            trigger: trigger.clone(),
        }),
        evidence: Evidence::Register(Vec::new()),
    }
}

fn kept(actions: &[Action]) -> Draft {
    let kept = actions.iter().find_map(|action| match action {
        Action::Keep(drafts) => drafts.first().cloned(),
        _ => None,
    });
    kept.unwrap_or_else(|| panic!("nothing is kept: {actions:?}"))
}

fn puts(actions: &[Action]) -> Vec<Action> {
    let is_put = |action: &&Action| matches!(action, Action::Put { .. });
    actions.iter().filter(is_put).cloned().collect()
}

fn said(actions: &[Action]) -> Option<Said> {
    actions.iter().find_map(|action| match action {
        Action::Say(CLIENT, said) => Some(said.clone()),
        _ => None,
    })
}

fn removed(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| match action {
        Action::Remove { revision, .. } => Some(*revision),
        _ => None,
    })
}

fn handed(actions: &[Action]) -> usize {
    let count = |action: &Action| match action {
        Action::HandOver(places) => places.len(),
        _ => 0,
    };
    actions.iter().map(count).sum()
}

fn is_forgotten(actions: &[Action]) -> bool {
    let is_forget = |action: &Action| matches!(action, Action::Forget { .. });
    actions.iter().any(is_forget)
}

#[test]
fn a_trigger_is_kept_then_put_then_said_and_stays_until_its_target_told() {
    let mut web1 = Bench::linked("web1");
    let actions = web1.does(Event::Fire {
        client: CLIENT,
        request: request(&[]),
    });
    assert!(puts(&actions).is_empty());
    let actions = web1.keeps(&kept(&actions), Ok(()));
    let [put] = &puts(&actions)[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(said(&actions), None);
    let actions = web1.is_put(put, Ok(()));
    assert_eq!(said(&actions).expect("said").delivered, [node("lb1")]);
    let draft_is_there = web1.state.entries().count() == 1;
    assert!(draft_is_there && !is_forgotten(&actions));
}

#[test]
fn only_what_the_target_told_of_this_number_releases_it() {
    let mut web1 = Bench::linked("web1");
    let (trigger, _) = web1.fires(request(&[]));
    let older = Trigger {
        number: trigger.number - 1,
        ..trigger.clone()
    };
    let of_another = Trigger {
        sender: node("web2"),
        ..trigger.clone()
    };
    for (told, outcome) in [
        (&trigger, Outcome::Held),
        (&older, Outcome::Taken),
        (&of_another, Outcome::Taken),
    ] {
        assert!(!is_forgotten(&web1.hears(told, outcome)), "{outcome}");
    }
    assert!(is_forgotten(&web1.hears(&trigger, Outcome::Taken)));
}

#[test]
fn without_an_backend_it_is_said_as_kept_and_sent_later() {
    let mut web1 = Bench::new("web1");
    let (trigger, actions) = web1.fires(request(&[]));
    let said = said(&actions).expect("said at once");
    assert_eq!(
        (said.kept, said.until),
        (vec![node("lb1")], trigger.expires())
    );
    assert!(puts(&actions).is_empty());
    assert_eq!(puts(&web1.does(Event::Reached)).len(), 1);
}

#[test]
fn a_silent_backend_is_waited_for_four_seconds() {
    let mut web1 = Bench::linked("web1");
    web1.fires(request(&[]));
    assert_eq!(said(&web1.passes(3)), None);
    assert_eq!(said(&web1.passes(1)).expect("said").kept, [node("lb1")]);
    assert_eq!(said(&web1.passes(60)), None, "said once");
}

#[test]
fn what_cannot_be_kept_is_sent_all_the_same_or_has_failed() {
    let fire = |web1: &mut Bench| {
        let actions = web1.does(Event::Fire {
            client: CLIENT,
            request: request(&[]),
        });
        web1.keeps(&kept(&actions), Err("no space".to_owned()))
    };
    let mut web1 = Bench::linked("web1");
    let put = puts(&fire(&mut web1)).remove(0);
    let actions = web1.is_put(&put, Ok(()));
    assert_eq!(said(&actions).expect("said").delivered, [node("lb1")]);
    let mut web1 = Bench::new("web1");
    let actions = fire(&mut web1);
    let failed = said(&actions).expect("said").failed;
    assert_eq!(failed, [(node("lb1"), "no space".to_owned())]);
    assert!(is_forgotten(&actions));
    assert!(puts(&web1.does(Event::Reached)).is_empty());
}

#[test]
fn it_is_put_again_as_long_as_nothing_is_told() {
    let mut web1 = Bench::linked("web1");
    let (_, actions) = web1.fires(request(&[]));
    let put = puts(&actions).remove(0);
    // One at a time: the first has not been answered.
    assert!(puts(&web1.passes(30)).is_empty());
    web1.is_put(&put, Err("no answer".to_owned()));
    let again = puts(&web1.passes(1));
    assert_eq!(again.len(), 1);
    web1.is_put(&again[0], Ok(()));
    assert!(puts(&web1.passes(59)).is_empty());
    let again = puts(&web1.passes(1));
    assert_eq!(again.len(), 1, "the backend may have forgotten");
    web1.is_put(&again[0], Ok(()));
    assert!(puts(&web1.passes(100)).is_empty(), "more and more seldom");
    assert_eq!(
        puts(&web1.does(Event::Reached)).len(),
        1,
        "it may be another one"
    );
}

#[test]
fn a_second_firing_stands_for_the_first() {
    let mut web1 = Bench::new("web1");
    let (first, _) = web1.fires(request(&["1: a"]));
    let next = Request {
        id: Id::from_bits(100),
        ..request(&["2: b"])
    };
    let (second, actions) = web1.fires(next);
    assert_eq!(second.lineage, lineage(&["1: a web1", "2: b web1"]));
    assert!(second.number > first.number);
    let news = News::ReplacedBy(second.id.clone());
    let id = first.id.clone();
    let target = first.target.clone();
    assert!(actions.contains(&Action::Progress { id, target, news }));
    assert_eq!(web1.state.entries().count(), 1);
    // The first may have been taken all the same.
    assert!(!is_forgotten(&web1.hears(&first, Outcome::Taken)));
    assert!(is_forgotten(&web1.hears(&second, Outcome::Taken)));
}

#[test]
fn a_circle_fails_with_its_way() {
    let mut web1 = Bench::linked("web1");
    let actions = web1.does(Event::Fire {
        client: CLIENT,
        request: request(&["1: lb1 web1 lb1"]),
    });
    let failed = said(&actions).expect("said").failed;
    let why = "over 3 hops: lb1 -> web1 -> lb1 ...".to_owned();
    assert_eq!(failed, [(node("lb1"), why)]);
}

/// What a step tells of a trigger.
fn tells(actions: &[Action]) -> TriggerStatus {
    match kept(actions).content {
        Content::Status { told, .. } => told,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_circle_is_told_back_along_its_way() {
    let ran = |sender: &str, way: &str, outcome, why: &str| Event::Ran {
        which: TriggerKey {
            sender: node(sender),
            name: "again".parse().expect("a name"),
            number: 1,
            id: Id::from_bits(7),
        },
        lineage: lineage(&[way]),
        outcome,
        why: why.to_owned(),
        ran: None,
    };
    let is_kept = |actions: &[Action]| actions.iter().any(|one| matches!(one, Action::Keep(_)));
    let is_noted = |actions: &[Action], words: &str| {
        let is_it = |one: &Action| matches!(one, Action::Note(note) if note.ends_with(words));
        actions.iter().any(is_it)
    };
    let circle = "over 3 hops: lb1 -> web1 -> lb1 ...";
    let mut web1 = Bench::linked("web1");
    web1.does(ran("lb1", "1: lb1 web1 lb1", Outcome::Started, ""));
    let fire = Event::Fire {
        client: CLIENT,
        request: request(&["1: lb1 web1 lb1"]),
    };
    // The run goes on, and is told of when it ends.
    assert!(!is_kept(&web1.does(fire)));
    let failed = tells(&web1.does(ran("lb1", "1: lb1 web1 lb1", Outcome::Failed, "exit 1")));
    assert_eq!(failed.sentence(), format!("exit 1; {circle}"));
    // The run before it has ended long ago.
    let mut lb1 = Bench::linked("lb1");
    lb1.does(ran("web1", "1: lb1 web1", Outcome::Changed, "changed"));
    let heard = lb1.does(Event::Heard(failed.clone()));
    assert!(is_noted(&heard, circle), "{heard:?}");
    let changed = tells(&heard);
    assert_eq!(changed.sentence(), format!("changed; {circle}"));
    assert!(!is_kept(&lb1.does(Event::Heard(failed.clone()))));
    // It has come round.
    let heard = web1.does(Event::Heard(changed.clone()));
    assert!(is_noted(&heard, circle) && !is_kept(&heard), "{heard:?}");
    // Another origin's is not told.
    let mut other = Bench::linked("lb1");
    other.does(ran("web1", "2: lb1 web1", Outcome::Changed, "changed"));
    assert!(!is_kept(&other.does(Event::Heard(failed))));
}

#[test]
fn a_service_that_begins_puts_what_it_kept_and_goes_on_counting() {
    let mut web1 = Bench::new("web1");
    let actions = web1.does(Event::Fire {
        client: CLIENT,
        request: request(&[]),
    });
    let draft = kept(&actions);
    let mut again = Bench::new("web1");
    again.now.wall = moment("a", 0, 1_999_900_000).wall;
    again.state = State::new(
        again.state.rules.clone(),
        Numbers::default(),
        [draft.clone()],
        &again.now,
    );
    let actions = again.does(Event::Reached);
    assert_eq!(puts(&actions).len(), 1);
    let other = Request {
        name: "other".parse().expect("a name"),
        ..request(&[])
    };
    let (trigger, _) = again.fires(other);
    assert_eq!(trigger.number, draft.version + 1);
    // What was let go is known by the number that was written down.
    let mut again = Bench::new("web1");
    let numbers = Numbers {
        last: 2_000_100_000,
        before: 0,
    };
    again.state = State::new(again.state.rules.clone(), numbers, [], &again.now);
    assert_eq!(again.fires(request(&[])).0.number, 2_000_100_001);
    // Its clock was set back while it was away; what it has sent it knows from there, or from its outbox.
    let ahead = Numbers {
        last: again.now.wall.millis() + 3_600_000,
        before: 0,
    };
    let later = Trigger {
        number: ahead.last,
        ..web1.fires(request(&[])).0
    };
    let draft = Draft {
        content: Content::Trigger(later),
        version: ahead.last,
        ..draft
    };
    for (numbers, drafts) in [(ahead, vec![]), (Numbers::default(), vec![draft])] {
        let mut again = Bench::new("web1");
        again.state = State::new(again.state.rules.clone(), numbers, drafts, &again.now);
        assert_eq!(again.state.set_back(again.now.wall), Some(ahead.last));
        let other = Request {
            name: "other".parse().expect("a name"),
            ..request(&[])
        };
        let (trigger, actions) = again.fires(other);
        assert_eq!(trigger.number, again.now.wall.millis());
        let is_said = |action: &Action| matches!(action, Action::Note(note) if note.starts_with("the clock was set back"));
        assert!(actions.iter().any(is_said), "{actions:?}");
        let is_kept = |action: &Action| matches!(action, Action::KeepNumbers(numbers) if numbers.before == ahead.last);
        assert!(actions.iter().any(is_kept), "{actions:?}");
    }
}

/// The clock of a sender is an hour ahead for a while. What it fires afterwards is numbered by the clock, and above what its target
/// has recorded only where the target says so.
#[test]
fn sender_whose_clock_was_set_back_sends_once_more_above_what_its_target_has_recorded() {
    let hour = Span::from_secs(3600);
    let right = Bench::new("web1").now.wall;
    let after_an_hour_ahead = || {
        let mut web1 = Bench::linked("web1");
        web1.now.wall = right + hour;
        let (before, actions) = web1.fires(request(&[]));
        web1.is_put(&puts(&actions)[0], Ok(()));
        web1.hears(&before, Outcome::Taken);
        web1.now.wall = right;
        (web1, before)
    };
    let (mut web1, before) = after_an_hour_ahead();
    let next = Request {
        id: Id::from_bits(100),
        ..request(&[])
    };
    let (fired, actions) = web1.fires(next.clone());
    assert_eq!(fired.number, right.millis());
    let is_said = |action: &Action| matches!(action, Action::Note(note) if note.starts_with("the clock was set back"));
    assert!(actions.iter().any(is_said), "{actions:?}");
    assert_eq!(web1.state.set_back(right), Some(before.number));
    assert_eq!(web1.state.set_back(right + hour), None);
    // What its target tells of the former number is no word about a newer one.
    assert!(!is_forgotten(&web1.hears(&before, Outcome::Taken)));
    let superseded = |trigger: &Trigger, above| {
        Event::Heard(TriggerStatus {
            above: Some(above),
            ..told(trigger, Outcome::Superseded)
        })
    };
    let actions = web1.does(superseded(&fired, before.number));
    assert!(!is_forgotten(&actions));
    // Whoever waits for it goes on waiting, and the log has no failure.
    let is_said = |action: &Action| matches!(action, Action::Progress { .. } | Action::Note(_));
    assert!(!actions.iter().any(is_said), "{actions:?}");
    let Content::Trigger(again) = kept(&actions).content else {
        panic!("{actions:?}");
    };
    assert_eq!((again.number, &again.id), (before.number + 1, &fired.id));
    assert_eq!(again.expires(), fired.expires());
    assert_eq!(kept(&actions).version, fired.number + 1);
    // Once, whatever the target tells.
    let actions = web1.does(superseded(&again, again.number));
    assert!(is_forgotten(&actions));
    // Not above a number that it never used.
    let (mut web1, before) = after_an_hour_ahead();
    let (fired, _) = web1.fires(next.clone());
    let actions = web1.does(superseded(&fired, before.number + 1));
    assert!(is_forgotten(&actions));
    // Its target has taken it with the higher number, which this service has lost.
    let (mut web1, before) = after_an_hour_ahead();
    let (fired, _) = web1.fires(next);
    let taken = Trigger {
        number: before.number + 1,
        ..fired
    };
    assert!(is_forgotten(&web1.hears(&taken, Outcome::Taken)));
}

/// An entry that waits is on disk and put although its number is lower than before.
#[test]
fn entry_with_a_lower_number_is_kept_before_it_is_put() {
    let mut web1 = Bench::linked("web1");
    let right = web1.now.wall;
    web1.now.wall = right + Span::from_secs(3600);
    let (before, actions) = web1.fires(request(&[]));
    web1.is_put(&puts(&actions)[0], Ok(()));
    web1.now.wall = right;
    let next = Request {
        id: Id::from_bits(100),
        ..request(&[])
    };
    let actions = web1.does(Event::Fire {
        client: CLIENT,
        request: next,
    });
    let draft = kept(&actions);
    assert_eq!(draft.version, before.number + 1);
    assert!(puts(&actions).is_empty() && said(&actions).is_none());
    let actions = web1.keeps(&draft, Ok(()));
    assert_eq!(said(&actions), None);
    let actions = web1.is_put(&puts(&actions)[0], Ok(()));
    assert_eq!(said(&actions).expect("said").delivered, [node("lb1")]);
}

/// Also below a result of a higher number.
#[test]
fn sender_hears_above_which_number_its_trigger_would_be_taken() {
    let mut lb1 = Bench::linked("lb1");
    let (newer, older) = (lb1.fired(2_000_000_001), lb1.fired(2_000_000_000));
    lb1.sees(&newer, 7);
    let draft = kept(&lb1.gets(&newer, Outcome::Taken));
    for put in puts(&lb1.keeps(&draft, Ok(()))) {
        lb1.is_put(&put, Ok(()));
    }
    lb1.sees(&older, 8);
    let actions = lb1.does(Event::Answers(vec![Answer {
        which: TriggerKey::from(&older),
        outcome: Outcome::Superseded,
        why: String::new(),
        above: Some(newer.number),
    }]));
    assert_eq!(tells(&actions).above, Some(newer.number));
    let is_result = |put: &Action| {
        matches!(
            put,
            Action::Put {
                key: Key::Result { .. },
                ..
            }
        )
    };
    let actions = lb1.keeps(&kept(&actions), Ok(()));
    assert!(puts(&actions).iter().any(is_result), "{actions:?}");
}

/// A trigger that is ahead of the clock is not recorded, and its sender numbers by the clock again.
#[test]
fn result_of_a_lower_number_is_put_while_a_higher_one_waits() {
    let mut lb1 = Bench::linked("lb1");
    let (ahead, now) = (lb1.fired(2_003_600_000), lb1.fired(2_000_000_000));
    lb1.sees(&ahead, 7);
    let draft = kept(&lb1.gets(&ahead, Outcome::Held));
    for put in puts(&lb1.keeps(&draft, Ok(()))) {
        lb1.is_put(&put, Ok(()));
    }
    lb1.sees(&now, 8);
    let draft = kept(&lb1.gets(&now, Outcome::Taken));
    let is_result = |put: &Action| {
        matches!(
            put,
            Action::Put {
                key: Key::Result { .. },
                ..
            }
        )
    };
    let actions = lb1.keeps(&draft, Ok(()));
    assert!(puts(&actions).iter().any(is_result), "{actions:?}");
}

#[test]
fn a_sender_that_hears_nothing_says_so_when_the_time_is_over_on_both_clocks() {
    let mut web1 = Bench::new("web1");
    web1.fires(request(&[]));
    // Somebody sets the clock a day ahead.
    web1.now.wall = web1.now.wall + Span::from_secs(86_400);
    assert!(!is_forgotten(&web1.passes(3899)));
    let actions = web1.passes(1);
    assert!(is_forgotten(&actions));
    let is_no_answer = |action: &Action| matches!(action, Action::Progress { news, .. } if *news == News::NoAnswer);
    assert!(actions.iter().any(is_no_answer));
    assert_eq!(
        notes(&actions),
        ["'again' for lb1 had no answer in its time"]
    );
}

#[test]
fn that_a_run_did_not_come_or_failed_is_said_once_whoever_waits() {
    let mut web1 = Bench::linked("web1");
    let (trigger, _) = web1.fires(request(&[]));
    let mut said = Vec::new();
    // The backend may tell the same again, after each time that it was away.
    for outcome in [
        Outcome::Held,
        Outcome::Held,
        Outcome::Taken,
        Outcome::Failed,
    ] {
        said.extend(notes(&web1.hears(&trigger, outcome)));
    }
    assert_eq!(
        said,
        ["'again' for lb1 is held: ", "'again' for lb1 is failed: "]
    );
    let mut next = Bench::new("web1");
    next.state.logged = web1.state.logged;
    assert_eq!(
        notes(&next.hears(&trigger, Outcome::Failed)),
        [""; 0],
        "a restart"
    );
    assert_eq!(notes(&next.hears(&trigger, Outcome::Refused)).len(), 1);
}

#[test]
fn log_remembers_a_bounded_number_of_failures_and_none_that_went_well() {
    let mut web1 = Bench::linked("web1");
    let (trigger, _) = web1.fires(request(&[]));
    web1.hears(&trigger, Outcome::Failed);
    assert_eq!(web1.state.logged.len(), 1);
    web1.hears(&trigger, Outcome::Changed);
    assert_eq!(web1.state.logged.len(), 0);
    let others: Vec<Trigger> = (0..3_000_u64)
        .map(|n| Trigger {
            name: format!("name {n}").parse().expect("a name"),
            number: trigger.number + n,
            ..trigger.clone()
        })
        .collect();
    let mut said = |others: &[Trigger]| -> usize {
        let all = others.iter();
        all.map(|one| notes(&web1.hears(one, Outcome::Failed)).len())
            .sum()
    };
    assert_eq!(said(&others), 3_000);
    assert_eq!(said(&others[1_000..]), 0, "the newest are known");
    assert_eq!(said(&others[..1]), 1);
    assert_eq!(web1.state.logged.len(), 2_000);
}

#[test]
fn result_of_an_older_trigger_is_not_logged_again() {
    let mut web1 = Bench::linked("web1");
    let (older, _) = web1.fires(request(&[]));
    assert_eq!(notes(&web1.hears(&older, Outcome::Failed)).len(), 1);
    let newer = Trigger {
        number: older.number + 1,
        id: Id::from_bits(9),
        ..older.clone()
    };
    assert_eq!(notes(&web1.hears(&newer, Outcome::Refused)).len(), 1);
    assert_eq!(notes(&web1.hears(&older, Outcome::Failed)), [""; 0]);
}

fn notes(actions: &[Action]) -> Vec<String> {
    let notes = actions.iter().filter_map(|action| match action {
        Action::Note(text) => Some(text.clone()),
        _ => None,
    });
    notes.collect()
}

/// It came from the socket and from disk, or from disk again after a crash.
#[test]
fn request_that_comes_again_sends_nothing_new() {
    let mut web1 = Bench::linked("web1");
    let (trigger, _) = web1.fires(request(&[]));
    let fire = || Event::Fire {
        client: CLIENT,
        request: request(&[]),
    };
    let is_sent = |actions: &[Action]| {
        let is = |one: &Action| matches!(one, Action::Keep(_) | Action::Put { .. });
        actions.iter().any(is)
    };
    assert!(!is_sent(&web1.does(fire())));
    // What was cancelled meanwhile stays cancelled.
    let cancel = Event::TakeBack {
        client: CLIENT,
        what: Back::Id(trigger.id.clone()),
    };
    let draft = kept(&web1.does(cancel));
    web1.keeps(&draft, Ok(()));
    assert!(!is_sent(&web1.does(fire())));
    // Its target has answered, and the entry is gone: the target knows the id under any number.
    let lb1 = Bench::linked("lb1");
    let first = lb1.fired(2_000_000_000);
    let mut replays = ReplayLedger::default();
    let skew = lb1.state.rules.skew;
    replays.record(&Record::new(&first, Outcome::Taken, "", skew, &lb1.now));
    let again = Trigger {
        number: first.number + 5,
        ..first
    };
    let verdict = judge(&lb1.state.rules, &replays, &again, &lb1.now);
    assert_eq!(verdict, Verdict::Known(Outcome::Taken, String::new()));
}

/// What was not kept is written again.
#[test]
fn request_that_comes_again_is_kept_if_it_was_not() {
    let mut web1 = Bench::new("web1");
    let fire = || Event::Fire {
        client: CLIENT,
        request: request(&[]),
    };
    let draft = kept(&web1.does(fire()));
    web1.keeps(&draft, Err("full".to_owned()));
    let draft = kept(&web1.does(fire()));
    web1.keeps(&draft, Ok(()));
    let is_kept = |one: &Action| matches!(one, Action::Keep(_));
    assert!(!web1.does(fire()).iter().any(is_kept));
}

#[test]
fn what_is_on_its_way_can_be_taken_back() {
    let mut web1 = Bench::linked("web1");
    let (trigger, _) = web1.fires(request(&[]));
    let take_back = |what| Event::TakeBack {
        client: CLIENT,
        what,
    };
    let actions = web1.does(take_back(Back::Id(Id::from_bits(1))));
    assert_eq!(said(&actions), Some(Said::default()), "not that one");
    let actions = web1.does(take_back(Back::To(node("lb1"))));
    let Content::Trigger(cancel) = kept(&actions).content else {
        panic!("{actions:?}");
    };
    assert_eq!((cancel.ask, &cancel.id), (Ask::Cancel, &trigger.id));
    assert!(cancel.number > trigger.number);
    assert!(is_forgotten(&web1.hears(&cancel, Outcome::TooLate)));
}

#[test]
fn a_register_is_removed_once_it_is_recorded_and_at_its_revision() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = lb1.fired(2_000_000_000);
    let actions = lb1.sees(&trigger, 7);
    assert_eq!((handed(&actions), removed(&actions)), (1, None));
    // A newer one comes meanwhile.
    let newer = lb1.fired(2_000_000_001);
    assert_eq!(lb1.sees(&newer, 8), []);
    let actions = lb1.gets(&trigger, Outcome::Taken);
    assert_eq!((handed(&actions), removed(&actions)), (1, None));
    let actions = lb1.gets(&newer, Outcome::Taken);
    assert_eq!(removed(&actions), Some(8));
    // It is told before it is gone.
    assert!(matches!(actions[0], Action::Keep(_)), "{actions:?}");
}

#[test]
fn what_comes_together_is_handed_over_together() {
    let mut lb1 = Bench::linked("lb1");
    let named = |name: &str| Trigger {
        name: name.parse().expect("a name"),
        ..trigger()
    };
    let sights = vec![sight(&named("a"), 1), sight(&named("b"), 2)];
    assert_eq!(handed(&lb1.does(Event::Seen(sights))), 2);
    assert_eq!(
        handed(&lb1.sees(&named("c"), 3)),
        0,
        "one hand-over at a time"
    );
    let actions = lb1.gets(&named("a"), Outcome::Taken);
    // The other one was not spoken of: it waits a little.
    assert_eq!(handed(&actions), 1);
    lb1.gets(&named("c"), Outcome::Taken);
    assert_eq!(handed(&lb1.passes(2)), 1);
}

#[test]
fn who_takes_may_die_and_is_asked_again() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = lb1.fired(2_000_000_000);
    lb1.sees(&trigger, 7);
    let actions = lb1.does(Event::NotHanded("no answer".to_owned()));
    assert_eq!((handed(&actions), removed(&actions)), (0, None));
    assert_eq!(handed(&lb1.passes(2)), 1);
}

#[test]
fn what_is_held_stays_and_is_judged_again() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = lb1.fired(2_000_000_000);
    lb1.sees(&trigger, 7);
    let actions = lb1.gets(&trigger, Outcome::Held);
    assert_eq!(removed(&actions), None);
    assert!(
        matches!(&kept(&actions).content, Content::Status { told, .. } if told.outcome == Outcome::Held)
    );
    assert_eq!(handed(&lb1.passes(59)), 0);
    assert_eq!(handed(&lb1.passes(1)), 1);
    assert_eq!(lb1.gets(&trigger, Outcome::Held), [], "told once");
    assert_eq!(handed(&lb1.does(Event::Changed)), 1);
    assert_eq!(removed(&lb1.gets(&trigger, Outcome::Expired)), Some(7));
}

#[test]
fn strangers_do_not_come_near_those_who_take() {
    let mut lb1 = Bench::linked("lb1");
    let mut stranger = lb1.fired(2_000_000_000);
    stranger.sender = node("db1");
    let actions = lb1.sees(&stranger, 7);
    assert_eq!((handed(&actions), removed(&actions)), (0, Some(7)));
    assert!(
        matches!(&kept(&actions).content, Content::Status { told, .. } if told.outcome == Outcome::Refused)
    );
    // Nobody can be told of what nobody signed, or of what was put where it does not belong.
    let forged = Sight {
        found: Found::Bad("not signed".to_owned()),
        ..sight(&trigger(), 8)
    };
    let moved = Sight {
        place: (node("web2"), trigger().name),
        ..sight(&lb1.fired(2_000_000_000), 9)
    };
    let unclear = Sight {
        found: Found::Unclear("no revocation list".to_owned()),
        ..sight(&trigger(), 10)
    };
    for (sight, goes) in [(forged, Some(8)), (moved, Some(9)), (unclear, None)] {
        let actions = lb1.does(Event::Seen(vec![sight]));
        assert_eq!((handed(&actions), removed(&actions)), (0, goes));
        assert!(
            !actions
                .iter()
                .any(|action| matches!(action, Action::Keep(_)))
        );
    }
    // Once it can be verified, the same revision counts.
    assert_eq!(handed(&lb1.sees(&lb1.fired(2_000_000_000), 10)), 1);
}

/// A run may take longer than its trigger had time to be taken, and reruns may follow it: all of it is told, and once.
#[test]
fn what_goes_on_is_told_to_its_end() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = lb1.fired(2_000_000_000);
    let told = |lb1: &mut Bench, actions: &[Action]| {
        let draft = kept(actions);
        for put in puts(&lb1.keeps(&draft, Ok(()))) {
            lb1.is_put(&put, Ok(()));
        }
    };
    let ran = |outcome, reruns, more| Event::Ran {
        which: TriggerKey::from(&trigger),
        lineage: trigger.lineage.clone(),
        outcome,
        why: String::new(),
        ran: Some(Ran {
            log: "c-1".to_owned(),
            began: Some(1),
            ended: None,
            reruns,
            last: None,
            more,
        }),
    };
    lb1.sees(&trigger, 7);
    let actions = lb1.gets(&trigger, Outcome::Taken);
    told(&mut lb1, &actions);
    let after = |lb1: &mut Bench, hours: u64| {
        lb1.passes(hours * 3600);
        lb1.state.entries().count()
    };
    assert_eq!(after(&mut lb1, 3), 1);
    for (outcome, reruns, more) in [
        (Outcome::Started, 0, false),
        (Outcome::Changed, 0, true),
        (Outcome::Changed, 1, true),
        (Outcome::Changed, 1, false),
    ] {
        let actions = lb1.does(ran(outcome, reruns, more));
        assert_eq!(tells(&actions).ran.map(|ran| ran.reruns), Some(reruns));
        told(&mut lb1, &actions);
        // The same is no news.
        assert_eq!(lb1.does(ran(outcome, reruns, more)), []);
        assert_eq!(
            after(&mut lb1, 3),
            usize::from(more || outcome == Outcome::Started)
        );
    }
    // Nobody waits for ever.
    let other = lb1.fired(3_000_000_000);
    lb1.sees(&other, 9);
    let actions = lb1.gets(&other, Outcome::Taken);
    told(&mut lb1, &actions);
    assert_eq!(after(&mut lb1, 25), 0);
}

#[test]
fn strangers_do_not_fill_the_outbox() {
    let mut lb1 = Bench::linked("lb1");
    for number in 1..=1000 {
        let stranger = Trigger {
            sender: node("db1"),
            name: number.to_string().parse().expect("a name"),
            ..trigger()
        };
        assert_eq!(removed(&lb1.sees(&stranger, number)), Some(number));
    }
    assert_eq!(lb1.state.entries().count(), 100);
}

#[test]
fn many_results_take_no_room_from_what_is_fired() {
    let mut lb1 = Bench::new("lb1");
    let ran = |number: u64| Event::Ran {
        which: TriggerKey {
            number,
            sender: node(&format!("web{}", number % 15)),
            ..TriggerKey::from(&trigger())
        },
        lineage: trigger().lineage,
        outcome: Outcome::Changed,
        why: String::new(),
        ran: None,
    };
    let mut last = Vec::new();
    for number in 1..=20_001 {
        last = lb1.does(ran(number));
    }
    assert!(matches!(&last[..], [Action::Note(_)]), "{last:?}");
    assert_eq!(lb1.state.entries().count(), 20_000);
    lb1.fires(request(&[]));
}

#[test]
fn the_same_number_again_is_told_again() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = lb1.fired(2_000_000_000);
    lb1.sees(&trigger, 7);
    let draft = kept(&lb1.gets(&trigger, Outcome::Taken));
    for put in puts(&lb1.keeps(&draft, Ok(()))) {
        lb1.is_put(&put, Ok(()));
    }
    lb1.sees(&trigger, 9);
    let actions = lb1.gets(&trigger, Outcome::Taken);
    assert_eq!(removed(&actions), Some(9));
    // In the result register, and in the story of its origin.
    assert_eq!(puts(&actions).len(), 2);
}

/// Both have an entry of their own, and one register.
#[test]
fn a_newer_result_is_put_as_soon_as_the_older_one_is() {
    let mut lb1 = Bench::linked("lb1");
    let (older, newer) = (lb1.fired(2_000_000_000), lb1.fired(2_000_000_001));
    lb1.sees(&older, 7);
    let draft = kept(&lb1.gets(&older, Outcome::Taken));
    let under_way = puts(&lb1.keeps(&draft, Ok(())));
    lb1.sees(&newer, 8);
    let draft = kept(&lb1.gets(&newer, Outcome::Taken));
    let is_result = |put: &Action| matches!(put, Action::Put { key: Key::Result { .. }, entry, .. } if *entry == draft.entry);
    assert!(!lb1.keeps(&draft, Ok(())).iter().any(is_result));
    assert!(!lb1.passes(1).iter().any(is_result));
    for put in &under_way {
        lb1.is_put(put, Ok(()));
    }
    assert!(lb1.passes(0).iter().any(is_result));
}

#[test]
fn a_late_older_one_does_not_displace_what_was_told() {
    let mut lb1 = Bench::linked("lb1");
    let (older, newer) = (lb1.fired(2_000_000_000), lb1.fired(2_000_000_001));
    let ran = |trigger: &Trigger, outcome| Event::Ran {
        which: TriggerKey::from(trigger),
        lineage: trigger.lineage.clone(),
        outcome,
        why: String::new(),
        ran: None,
    };
    let keys = |actions: &[Action]| {
        let key = |action: &Action| match action {
            Action::Put { key, .. } => Some(key.clone()),
            _ => None,
        };
        actions.iter().filter_map(key).collect::<Vec<_>>()
    };
    let draft = kept(&lb1.does(ran(&newer, Outcome::Changed)));
    lb1.keeps(&draft, Ok(()));
    let draft = kept(&lb1.does(ran(&older, Outcome::Changed)));
    let keys = keys(&lb1.keeps(&draft, Ok(())));
    assert!(matches!(keys[..], [Key::Story { .. }]), "{keys:?}");
    // What it came to is not made undone by coming again.
    lb1.sees(&older, 9);
    let actions = lb1.gets(&older, Outcome::Superseded);
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::Keep(_))),
        "{actions:?}"
    );
    assert_eq!(lb1.does(ran(&older, Outcome::Started)), []);
}

#[test]
fn another_backend_has_other_revisions() {
    let mut lb1 = Bench::linked("lb1");
    let (one, other) = (lb1.fired(2_000_000_000), lb1.fired(2_000_000_001));
    lb1.sees(&one, 7);
    assert_eq!(removed(&lb1.gets(&one, Outcome::Taken)), Some(7));
    lb1.does(Event::Lost);
    lb1.does(Event::Reached);
    assert_eq!(handed(&lb1.sees(&other, 7)), 1);
}

#[test]
fn another_backend_is_asked_to_remove_nothing_that_was_not_judged() {
    let mut lb1 = Bench::linked("lb1");
    let (one, other) = (lb1.fired(2_000_000_000), lb1.fired(2_000_000_001));
    lb1.sees(&one, 7);
    lb1.does(Event::Lost);
    // It was recorded, but nobody can be asked to remove it.
    assert_eq!(removed(&lb1.gets(&one, Outcome::Taken)), None);
    assert_eq!(removed(&lb1.passes(10)), None);
    lb1.does(Event::Reached);
    lb1.sees(&other, 7);
    assert_eq!(removed(&lb1.gets(&other, Outcome::Held)), None);
    // A late answer is about another one.
    let place = (one.sender.clone(), one.name.clone());
    for answer in [Err("no answer".to_owned()), Ok(())] {
        lb1.does(Event::Removed {
            place: place.clone(),
            revision: 7,
            answer,
        });
    }
    assert_eq!(removed(&lb1.passes(10)), None);
    assert_eq!(handed(&lb1.passes(50)), 1);
    assert_eq!(removed(&lb1.gets(&other, Outcome::Taken)), Some(7));
}

#[test]
fn what_could_not_be_removed_before_the_backend_was_lost_is_not_removed_meanwhile() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = lb1.fired(2_000_000_000);
    lb1.sees(&trigger, 7);
    assert_eq!(removed(&lb1.gets(&trigger, Outcome::Taken)), Some(7));
    lb1.does(Event::Removed {
        place: (trigger.sender.clone(), trigger.name.clone()),
        revision: 7,
        answer: Err("no answer".to_owned()),
    });
    lb1.does(Event::Lost);
    assert_eq!(removed(&lb1.passes(100)), None);
    // Those who take know its number.
    lb1.does(Event::Reached);
    assert_eq!(handed(&lb1.sees(&trigger, 7)), 1);
    assert_eq!(removed(&lb1.gets(&trigger, Outcome::Taken)), Some(7));
}

#[test]
fn another_trigger_at_the_same_revision_is_judged_by_itself() {
    let mut lb1 = Bench::linked("lb1");
    let (one, other) = (lb1.fired(2_000_000_000), lb1.fired(2_000_000_001));
    lb1.sees(&one, 7);
    assert_eq!(lb1.sees(&one, 7), []);
    // The backend began anew without a lost connection.
    lb1.sees(&other, 7);
    let actions = lb1.gets(&one, Outcome::Taken);
    assert_eq!((handed(&actions), removed(&actions)), (1, None));
    assert_eq!(removed(&lb1.gets(&other, Outcome::Taken)), Some(7));
}

#[test]
fn a_removal_that_fails_is_tried_again() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = lb1.fired(2_000_000_000);
    lb1.sees(&trigger, 7);
    lb1.gets(&trigger, Outcome::Taken);
    let place = (trigger.sender.clone(), trigger.name.clone());
    let answer = |answer| Event::Removed {
        place: place.clone(),
        revision: 7,
        answer,
    };
    lb1.does(answer(Err("no answer".to_owned())));
    assert_eq!(removed(&lb1.passes(2)), Some(7));
    lb1.does(answer(Ok(())));
    assert_eq!(removed(&lb1.passes(100)), None);
}

#[test]
fn what_was_told_is_let_go_when_nobody_can_ask_any_more() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = lb1.fired(2_000_000_000);
    lb1.sees(&trigger, 7);
    let draft = kept(&lb1.gets(&trigger, Outcome::Refused));
    let put = puts(&lb1.keeps(&draft, Ok(())));
    assert!(
        !is_forgotten(&lb1.passes(5000)),
        "the backend does not have it"
    );
    for put in put {
        lb1.is_put(&put, Ok(()));
    }
    lb1.does(Event::Reached);
    assert!(is_forgotten(&lb1.passes(1)));
    assert_eq!(lb1.state.entries().count(), 0);
}

/// What a node tells of itself, with this role.
fn inventory(role: &str) -> Inventory {
    crate::policy::select::tests::node(&[("role", role)])
}

fn to(target: &str) -> Request {
    Request {
        targets: vec![node(target)],
        ..request(&[])
    }
}

fn node_puts(actions: &[Action]) -> Vec<Action> {
    let mut puts = puts(actions);
    puts.retain(|put| matches!(put, Action::Put { entry, .. } if *entry == EntryId::Node));
    puts
}

#[test]
fn what_a_node_tells_of_itself_is_put_once_and_again_at_another_backend() {
    let mut web1 = Bench::linked("web1");
    let actions = web1.does(Event::Inventory(inventory("a")));
    let draft = kept(&actions);
    assert_eq!(puts(&actions), [], "it is not on disk yet");
    let put = node_puts(&web1.keeps(&draft, Ok(()))).remove(0);
    web1.is_put(&put, Ok(()));
    // The same, later, is nothing.
    let later = Inventory {
        at: 9,
        ..inventory("a")
    };
    assert_eq!(web1.does(Event::Inventory(later)), []);
    // Nor does it come to an end.
    assert_eq!(web1.passes(100_000_000), []);
    let actions = web1.does(Event::Inventory(inventory("b")));
    let newer = kept(&actions);
    assert!(newer.version > draft.version && newer.entry == draft.entry);
    let put = node_puts(&web1.keeps(&newer, Ok(()))).remove(0);
    web1.is_put(&put, Ok(()));
    web1.does(Event::Lost);
    assert_eq!(node_puts(&web1.reaches()).len(), 1);
    // A service that begins with it puts it too.
    let mut again = Bench::new("web1");
    again.now = web1.now.clone();
    again.state = State::new(
        again.state.rules.clone(),
        Numbers::default(),
        [newer],
        &again.now,
    );
    assert_eq!(node_puts(&again.reaches()).len(), 1);
    assert_eq!(again.state.untold(), 0);
}

#[test]
fn a_trigger_waits_for_what_its_node_tells_of_itself() {
    let mut web1 = Bench::linked("web1");
    let told = kept(&web1.does(Event::Inventory(inventory("a"))));
    let put = node_puts(&web1.keeps(&told, Ok(()))).remove(0);
    let (_, actions) = web1.fires(request(&[]));
    assert_eq!(puts(&actions), []);
    let released = puts(&web1.is_put(&put, Ok(())));
    assert!(
        matches!(
            &released[..],
            [Action::Put {
                entry: EntryId::To(..),
                ..
            }]
        ),
        "{released:?}"
    );
    // What does not tell how it is to be selected holds nothing up.
    let told = Inventory {
        pending: 1,
        ..inventory("a")
    };
    let told = kept(&web1.does(Event::Inventory(told)));
    let put = node_puts(&web1.keeps(&told, Ok(()))).remove(0);
    let (_, actions) = web1.fires(to("lb2"));
    let fired = puts(&actions);
    assert_eq!(fired.len(), 1);
    for put in [&released[0], &fired[0]] {
        web1.is_put(put, Ok(()));
    }
    // Nor if it is not put at once.
    web1.is_put(&put, Err("no answer".to_owned()));
    let put = node_puts(&web1.passes(5)).remove(0);
    let (_, actions) = web1.fires(to("lb3"));
    let fired = puts(&actions).remove(0);
    for put in [&put, &fired] {
        web1.is_put(put, Ok(()));
    }
    // Another backend has neither.
    web1.does(Event::Lost);
    let actions = puts(&web1.reaches());
    assert_eq!((actions.len(), node_puts(&actions).len()), (1, 1));
    assert_eq!(puts(&web1.is_put(&actions[0], Ok(()))).len(), 3);
}

#[test]
fn what_cannot_be_told_holds_no_trigger_up() {
    let begins = || {
        let mut web1 = Bench::linked("web1");
        let told = kept(&web1.does(Event::Inventory(inventory("a"))));
        let put = node_puts(&web1.keeps(&told, Ok(()))).remove(0);
        let (_, actions) = web1.fires(request(&[]));
        assert_eq!(puts(&actions), []);
        (web1, told, put)
    };
    // The backend says so.
    let (mut web1, told, put) = begins();
    web1.does(Event::NotTaken(told.version));
    assert_eq!(puts(&web1.is_put(&put, Err("denied".to_owned()))).len(), 1);
    let (_, actions) = web1.fires(to("lb2"));
    assert_eq!(puts(&actions).len(), 1);
    // Or does not say it: then it is tried a few times.
    let (mut web1, _, mut put) = begins();
    let (mut tries, mut sent) = (0, 0);
    while sent == 0 {
        sent = puts(&web1.is_put(&put, Err("no answer".to_owned()))).len();
        tries += 1;
        put = node_puts(&web1.passes(60)).pop().unwrap_or(put);
    }
    assert_eq!((tries, sent), (4, 1));
    // Also where the connection is lost each time.
    let (mut web1, _, mut put) = begins();
    let mut sent = [0; 4];
    for sent in &mut sent {
        *sent = puts(&web1.is_put(&put, Err("lost".to_owned()))).len();
        web1.does(Event::Lost);
        put = node_puts(&web1.reaches()).remove(0);
    }
    assert_eq!(sent, [0, 0, 0, 1]);
    // An error of a link that is lost is none of its own.
    let (mut web1, _, put) = begins();
    assert_eq!(puts(&web1.is_put(&put, Err("lost".to_owned()))), []);
    web1.does(Event::Lost);
    let actions = puts(&web1.reaches());
    assert_eq!((actions.len(), node_puts(&actions).len()), (1, 1));
}

#[test]
fn a_wide_firing_is_signed_together() {
    let mut web1 = Bench::linked("web1");
    let wide = Request {
        targets: (0..1000).map(|n| node(&format!("n{n}"))).collect(),
        run: Lineage::default(),
        ..request(&[])
    };
    let actions = web1.does(Event::Fire {
        client: CLIENT,
        request: wide,
    });
    let [Action::Keep(drafts)] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(drafts.len(), 1000);
}
