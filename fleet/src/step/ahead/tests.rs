//! Triggers that come too early, and senders that send more than their share.

use super::*;

const DAY: u64 = 86_400;
const HOUR: u64 = 3_600_000;

/// A trigger of web1's whose clock is this many milliseconds ahead of the bench's.
fn ahead(bench: &Bench, millis: u64) -> Trigger {
    let trigger = bench.fired(bench.now.wall.millis() + millis);
    Trigger {
        at: trigger.number,
        ..trigger
    }
}

/// What it tells, with the result put in the backend if it tells the sender.
fn tells_sender(bench: &mut Bench, actions: &[Action]) -> Option<(u64, Outcome)> {
    let draft = kept(actions);
    let Content::Status { told, .. } = draft.content.clone() else {
        panic!("{draft:?}");
    };
    let mut is_told = false;
    for put in puts(&bench.keeps(&draft, Ok(()))) {
        is_told |= matches!(
            &put,
            Action::Put {
                key: Key::Result { .. },
                ..
            }
        );
        bench.is_put(&put, Ok(()));
    }
    is_told.then_some((told.number, told.outcome))
}

#[test]
fn trigger_of_a_clock_that_is_ahead_is_not_handed_over_and_expires_after_a_day() {
    let mut lb1 = Bench::linked("lb1");
    let early = ahead(&lb1, 10 * HOUR * 24 * 365);
    let actions = lb1.sees(&early, 7);
    assert_eq!((handed(&actions), removed(&actions)), (0, None));
    let told = tells(&actions);
    let words = " by the clock of web1, here it is 1970-01-24 03:33:20 UTC";
    assert!(
        told.why.starts_with("fired at ") && told.why.ends_with(words),
        "{}",
        told.why
    );
    assert_eq!(
        tells_sender(&mut lb1, &actions),
        Some((early.number, Outcome::Held))
    );
    // It is looked at every ten minutes, and told once.
    let actions = lb1.passes(DAY / 2);
    assert_eq!((handed(&actions), puts(&actions)), (0, vec![]));
    assert!(!actions.iter().any(|one| matches!(one, Action::Keep(_))));
    // The backend is away for a moment.
    lb1.does(Event::Lost);
    lb1.reaches();
    lb1.sees(&early, 7);
    assert_eq!(removed(&lb1.passes(DAY / 2 - 1)), None);
    let actions = lb1.passes(1);
    assert_eq!((handed(&actions), removed(&actions)), (0, Some(7)));
    assert_eq!(tells(&actions).outcome, Outcome::Expired);
    // It is not remembered for ten years.
    assert_eq!(
        tells_sender(&mut lb1, &actions),
        Some((early.number, Outcome::Expired))
    );
    lb1.does(Event::Gone((early.sender.clone(), early.name.clone())));
    lb1.passes(2 * DAY);
    assert_eq!(lb1.state.entries().count(), 0);
}

#[test]
fn trigger_is_handed_over_when_a_clock_is_set_right_or_its_time_has_come() {
    for is_set in [true, false] {
        let mut lb1 = Bench::linked("lb1");
        let skew = 300_000;
        let early = ahead(&lb1, if is_set { HOUR } else { skew + 10_000 });
        assert_eq!(handed(&lb1.sees(&early, 7)), 0);
        assert_eq!(handed(&lb1.passes(9)), 0);
        let actions = if is_set {
            lb1.now.wall = lb1.now.wall + Span::from_secs(3600);
            lb1.does(Event::Changed)
        } else {
            lb1.passes(1)
        };
        assert_eq!(handed(&actions), 1);
    }
}

#[test]
fn clock_that_is_set_and_still_wrong_is_told_again() {
    let mut lb1 = Bench::linked("lb1");
    let early = ahead(&lb1, 10 * HOUR);
    let actions = lb1.sees(&early, 7);
    tells_sender(&mut lb1, &actions);
    lb1.now.wall = lb1.now.wall + Span::from_secs(3600);
    let actions = lb1.does(Event::Changed);
    assert!(
        tells(&actions)
            .why
            .ends_with("here it is 1970-01-24 04:33:20 UTC")
    );
}

/// The sender's clock was set back, so that its number is lower. The result key is told what became of the later trigger to the end.
#[test]
fn sender_is_told_that_its_trigger_is_held_though_an_earlier_one_has_a_result() {
    let mut lb1 = Bench::linked("lb1");
    let earlier = lb1.fired(9_000_000_000);
    lb1.sees(&earlier, 7);
    let actions = lb1.gets(&earlier, Outcome::Taken);
    let told = tells_sender(&mut lb1, &actions);
    assert_eq!(told, Some((earlier.number, Outcome::Taken)));
    let later = ahead(&lb1, HOUR);
    assert!(later.number < earlier.number);
    let actions = lb1.sees(&later, 8);
    let told = tells_sender(&mut lb1, &actions);
    assert_eq!(told, Some((later.number, Outcome::Held)));
    lb1.now.wall = lb1.now.wall + Span::from_secs(3600);
    assert_eq!(handed(&lb1.does(Event::Changed)), 1);
    let actions = lb1.gets(&later, Outcome::Taken);
    let told = tells_sender(&mut lb1, &actions);
    assert_eq!(told, Some((later.number, Outcome::Taken)));
    lb1.does(Event::Gone((later.sender.clone(), later.name.clone())));
    let mut ran = |trigger: &Trigger| {
        let actions = lb1.does(Event::Ran {
            which: TriggerKey::from(trigger),
            lineage: trigger.lineage.clone(),
            outcome: Outcome::Changed,
            why: String::new(),
            ran: None,
        });
        tells_sender(&mut lb1, &actions)
    };
    assert_eq!(ran(&earlier), None);
    assert_eq!(ran(&later), Some((later.number, Outcome::Changed)));
}

/// Somebody without a key puts back what stood in the backend before.
#[test]
fn copy_of_an_earlier_trigger_keeps_no_result_of_a_later_one_from_its_sender() {
    // The earlier one's result is known, or forgotten.
    for is_forgotten in [false, true] {
        let mut lb1 = Bench::linked("lb1");
        let (earlier, later) = (lb1.fired(1_000), lb1.fired(2_000));
        lb1.sees(&earlier, 7);
        let actions = lb1.gets(&earlier, Outcome::Taken);
        tells_sender(&mut lb1, &actions);
        if is_forgotten {
            let id = EntryId::Status(TriggerKey::from(&earlier));
            lb1.state.entries.remove(&id);
        }
        lb1.sees(&later, 8);
        let actions = lb1.gets(&later, Outcome::Held);
        let told = tells_sender(&mut lb1, &actions);
        assert_eq!(told, Some((later.number, Outcome::Held)));
        lb1.sees(&earlier, 9);
        let actions = lb1.gets(&earlier, Outcome::Taken);
        // Its result is put again, and stays until the later one has a newer result.
        if is_forgotten {
            tells_sender(&mut lb1, &actions);
        }
        for put in puts(&actions) {
            lb1.is_put(&put, Ok(()));
        }
        lb1.does(Event::Gone((earlier.sender.clone(), earlier.name.clone())));
        lb1.sees(&later, 10);
        let actions = lb1.gets(&later, Outcome::Taken);
        let told = tells_sender(&mut lb1, &actions);
        assert_eq!(told, Some((later.number, Outcome::Taken)));
        let actions = lb1.does(Event::Ran {
            which: TriggerKey::from(&later),
            lineage: later.lineage.clone(),
            outcome: Outcome::Changed,
            why: String::new(),
            ran: None,
        });
        let told = tells_sender(&mut lb1, &actions);
        assert_eq!(told, Some((later.number, Outcome::Changed)));
    }
}

#[test]
fn value_below_a_name_of_a_rule_is_removed_from_the_backend() {
    let mut lb1 = Bench::linked("lb1");
    let one = Trigger {
        name: "rule/x".parse().expect("a name"),
        ..lb1.fired(1)
    };
    let actions = lb1.does(Event::Seen(vec![Sight {
        found: Found::Bad("nobody signed it".to_owned()),
        ..sight(&one, 7)
    }]));
    assert_eq!(removed(&actions), Some(7));
}

#[test]
fn results_of_one_sender_take_no_room_from_those_of_another() {
    let mut lb1 = Bench::linked("lb1");
    let mut told = |sender: &str, n: u64| {
        let trigger = Trigger {
            sender: node(sender),
            name: n.to_string().parse().expect("a name"),
            ..lb1.fired(n)
        };
        let which = TriggerKey::from(&trigger);
        let lineage = trigger.lineage.clone();
        let (outcome, why, ran) = (Outcome::Changed, String::new(), None);
        let actions = lb1.does(Event::Ran {
            which,
            lineage,
            outcome,
            why,
            ran,
        });
        let is_kept = actions.iter().any(|one| matches!(one, Action::Keep(_)));
        if is_kept {
            let draft = kept(&actions);
            for put in puts(&lb1.keeps(&draft, Ok(()))) {
                // The backend is slow with what it is told of web1.
                if sender != "web1" {
                    lb1.is_put(&put, Ok(()));
                }
            }
        }
        (is_kept, lb1.state.entries().count())
    };
    let last = (1..=5000).map(|n| told("web1", n)).last();
    assert_eq!(last, Some((false, 2000)));
    // What the backend has of a sender makes room.
    let last = (5001..=10_000).map(|n| told("web2", n)).last();
    assert!(
        last.is_some_and(|(is_kept, all)| is_kept && all <= 4000),
        "{last:?}"
    );
}
