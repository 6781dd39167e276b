use super::*;

/// What is fired at this node as a part of a rolling run.
fn rolls(bench: &Bench, number: u64) -> Trigger {
    Trigger {
        parallel: 3,
        stop_after: 2,
        ..bench.fired(number)
    }
}

fn queued(actions: &[Action]) -> Vec<(TriggerKey, u32)> {
    let queued = actions.iter().filter_map(|action| match action {
        Action::Queue(which, parallel) => Some((which.clone(), *parallel)),
        _ => None,
    });
    queued.collect()
}

/// Has everything that this node has told kept and put.
fn tells_all(lb1: &mut Bench) {
    for _ in 0..2 {
        let entries = lb1.state.entries.iter();
        let entries: Vec<_> = entries.map(|(id, one)| (id.clone(), one.version)).collect();
        for (entry, version) in entries {
            let kept = Ok(());
            let actions = lb1.does(Event::Kept {
                entry,
                version,
                kept,
            });
            for put in puts(&actions) {
                lb1.is_put(&put, Ok(()));
            }
        }
    }
}

fn ran(lb1: &mut Bench, trigger: &Trigger, outcome: Outcome) {
    lb1.does(Event::Ran {
        which: TriggerKey::from(trigger),
        lineage: trigger.lineage.clone(),
        outcome,
        why: String::new(),
        ran: None,
    });
}

fn is_over(lb1: &Bench, trigger: &Trigger) -> bool {
    lb1.state.is_over(&TriggerKey::from(trigger), false)
}

#[test]
fn it_waits_for_its_turn_and_its_place_is_free_when_the_backend_has_how_it_ended() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = rolls(&lb1, 2_000_000_000);
    let which = TriggerKey::from(&trigger);
    let actions = lb1.sees(&trigger, 7);
    assert_eq!(
        (handed(&actions), queued(&actions)),
        (0, vec![(which.clone(), 3)])
    );
    assert_eq!(lb1.state.waiting(&which), Some(&trigger));
    // Others do not wait for that.
    let other = Trigger {
        name: "other".parse().expect("a name"),
        ..lb1.fired(5)
    };
    assert_eq!(handed(&lb1.sees(&other, 8)), 1);
    lb1.gets(&other, Outcome::Taken);
    assert_eq!(handed(&lb1.passes(600)), 0);
    // It is written down before it is handed over, and told nobody.
    let actions = lb1.does(Event::Turn(which.clone()));
    assert!(
        matches!(&actions[..], [Action::Keep(_), Action::HandOver(_)]),
        "{actions:?}"
    );
    let turn = kept(&actions);
    assert!(puts(&lb1.keeps(&turn, Ok(()))).is_empty());
    assert!(!is_over(&lb1, &trigger));
    assert_eq!(removed(&lb1.gets(&trigger, Outcome::Taken)), Some(7));
    lb1.does(Event::Gone((trigger.sender.clone(), trigger.name.clone())));
    for outcome in [Outcome::Taken, Outcome::Started, Outcome::Changed] {
        ran(&mut lb1, &trigger, outcome);
        assert!(!is_over(&lb1, &trigger), "{outcome}");
    }
    tells_all(&mut lb1);
    assert!(is_over(&lb1, &trigger));
    // A turn that comes twice is none.
    assert_eq!(lb1.does(Event::Turn(which)), []);
}

#[test]
fn what_is_halted_is_told_and_removed_and_does_not_begin_when_it_comes_again() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = rolls(&lb1, 2_000_000_000);
    lb1.sees(&trigger, 7);
    let (which, outcome) = (TriggerKey::from(&trigger), Outcome::Halted);
    let why = "2 of its targets have failed: web1, web2".to_owned();
    let actions = lb1.does(Event::NoTurn(Answer {
        which: which.clone(),
        outcome,
        why: why.clone(),
        above: None,
    }));
    let draft = kept(&actions);
    assert!(
        matches!(&draft.content, Content::Status { told, .. } if (told.outcome, &told.why) == (outcome, &why))
    );
    assert_eq!((removed(&actions), handed(&actions)), (Some(7), 0));
    assert!(!is_over(&lb1, &trigger), "nobody has been told");
    tells_all(&mut lb1);
    assert!(is_over(&lb1, &trigger));
    // Its sender did not hear of it.
    let actions = lb1.sees(&trigger, 9);
    assert_eq!(puts(&actions).len(), 2, "{actions:?}");
    assert_eq!(removed(&actions), Some(9));
    assert!(queued(&actions).is_empty() && handed(&actions) == 0);
}

#[test]
fn whoever_waits_is_told_seldom() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = rolls(&lb1, 2_000_000_000);
    lb1.sees(&trigger, 7);
    let waits = |lb1: &mut Bench, words: &str| {
        let actions = lb1.does(Event::Waits(TriggerKey::from(&trigger), words.to_owned()));
        let kept = actions.iter().find_map(|action| match action {
            Action::Keep(drafts) => drafts.first(),
            _ => None,
        });
        kept.map(|draft| match &draft.content {
            Content::Status { told, .. } => told.why.clone(),
            other => panic!("{other:?}"),
        })
    };
    let words = "3 before it: a, b, c";
    let told = "waits for its turn, 3 at once: 3 before it: a, b, c";
    assert_eq!(waits(&mut lb1, words).as_deref(), Some(told));
    assert_eq!(waits(&mut lb1, "2 before it: a, b"), None);
    lb1.passes(700);
    assert!(waits(&mut lb1, "1 before it: a").is_some());
    // Nothing is told of it when its turn has come, nor in place of what those who take have said.
    lb1.does(Event::Turn(TriggerKey::from(&trigger)));
    assert_eq!(waits(&mut lb1, words), None);
    let held = Event::Answers(vec![Answer {
        which: TriggerKey::from(&trigger),
        outcome: Outcome::Held,
        why: "disabled".to_owned(),
        above: None,
    }]);
    assert!(
        matches!(&kept(&lb1.does(held)).content, Content::Status { told, .. } if told.why == "disabled")
    );
    // It gives its place up, and goes to the end of the line.
    assert!(is_over(&lb1, &trigger));
    let actions = lb1.passes(60);
    assert_eq!((queued(&actions).len(), handed(&actions)), (1, 0));
    assert_eq!(waits(&mut lb1, words), None);
    assert!(!is_over(&lb1, &trigger));
}

#[test]
fn what_expires_or_is_taken_back_or_replaced_does_not_wait() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = rolls(&lb1, 2_000_000_000);
    lb1.sees(&trigger, 7);
    assert_eq!(handed(&lb1.passes(3600)), 0);
    // An hour, and the skew.
    assert_eq!(handed(&lb1.passes(300)), 1);
    lb1.gets(&trigger, Outcome::Expired);
    tells_all(&mut lb1);
    assert!(is_over(&lb1, &trigger));
    let late = lb1.sees(&trigger, 9);
    assert_eq!((handed(&late), queued(&late)), (1, vec![]));
    for ask in [Ask::Cancel, Ask::Run] {
        let mut lb1 = Bench::linked("lb1");
        let trigger = rolls(&lb1, 2_000_000_000);
        lb1.sees(&trigger, 7);
        assert!(!is_over(&lb1, &trigger));
        let newer = Trigger {
            ask,
            number: trigger.number + 1,
            ..trigger.clone()
        };
        let actions = lb1.sees(&newer, 8);
        let is_run = ask == Ask::Run;
        assert_eq!(queued(&actions).len(), usize::from(is_run));
        assert_eq!(handed(&actions), usize::from(!is_run));
        assert!(is_over(&lb1, &trigger), "{ask}");
        assert_eq!(lb1.does(Event::Turn(TriggerKey::from(&trigger))), []);
    }
}

#[test]
fn a_service_that_begins_again_keeps_a_turn_that_had_come() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = rolls(&lb1, 2_000_000_000);
    lb1.sees(&trigger, 7);
    let draft = kept(&lb1.does(Event::Turn(TriggerKey::from(&trigger))));
    let begins = |draft: Option<Draft>| {
        let mut again = Bench::new("lb1");
        again.state = State::new(
            again.state.rules.clone(),
            Numbers::default(),
            draft,
            &again.now,
        );
        // No register is seen yet.
        let which = TriggerKey::from(&trigger);
        assert!(!is_over(&again, &trigger) && again.state.is_over(&which, true));
        again.does(Event::Reached);
        let actions = again.sees(&trigger, 7);
        assert!(!is_over(&again, &trigger));
        (handed(&actions), queued(&actions).len())
    };
    assert_eq!(begins(Some(draft)), (1, 0), "it may have been taken");
    assert_eq!(begins(None), (0, 1));
    // So where those who take gave no answer.
    lb1.does(Event::NotHanded("no answer".to_owned()));
    assert!(!is_over(&lb1, &trigger));
    let actions = lb1.passes(2);
    assert_eq!((handed(&actions), queued(&actions).len()), (1, 0));
    // What was taken goes on until it is known how it ended.
    lb1.gets(&trigger, Outcome::Taken);
    lb1.does(Event::Gone((trigger.sender.clone(), trigger.name.clone())));
    assert!(!lb1.state.is_over(&TriggerKey::from(&trigger), true));
}

#[test]
fn a_node_that_is_not_listened_to_any_more_does_not_wait() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = rolls(&lb1, 2_000_000_000);
    lb1.sees(&trigger, 7);
    assert_eq!(queued(&lb1.does(Event::Changed)).len(), 1);
    lb1.state.rules.accept.from.clear();
    assert_eq!(removed(&lb1.does(Event::Changed)), Some(7));
}

#[test]
fn backend_that_lost_everything_has_again_which_targets_began_or_failed() {
    for (outcome, count) in [
        (Outcome::Failed, 1),
        (Outcome::Unknown, 1),
        (Outcome::Started, 1),
        (Outcome::Changed, 0),
    ] {
        let mut lb1 = Bench::linked("lb1");
        let trigger = rolls(&lb1, 2_000_000_000);
        ran(&mut lb1, &trigger, outcome);
        tells_all(&mut lb1);
        let puts = puts(&lb1.reaches());
        let is_story = |put: &&Action| {
            matches!(
                put,
                Action::Put {
                    key: Key::Story { .. },
                    ..
                }
            )
        };
        assert_eq!(puts.iter().filter(is_story).count(), count, "{outcome}");
        let is_result = |put: &Action| {
            matches!(
                put,
                Action::Put {
                    key: Key::Result { .. },
                    ..
                }
            )
        };
        assert!(!puts.iter().any(is_result), "{outcome}");
    }
}

#[test]
fn cancel_that_comes_too_late_leaves_the_outcome_of_the_run_in_the_story() {
    let mut lb1 = Bench::linked("lb1");
    let trigger = rolls(&lb1, 2_000_000_000);
    ran(&mut lb1, &trigger, Outcome::Failed);
    tells_all(&mut lb1);
    let cancel = Trigger {
        ask: Ask::Cancel,
        number: trigger.number + 1,
        ..trigger.clone()
    };
    lb1.sees(&cancel, 8);
    let actions = lb1.gets(&cancel, Outcome::TooLate);
    let draft = kept(&actions);
    let keys: Vec<Key> = draft.content.keys().into_iter().collect();
    assert!(matches!(&keys[..], [Key::Result { .. }]), "{keys:?}");
}

#[test]
fn sender_publishes_the_targets_of_a_run_that_stops_after_failures() {
    let mut web1 = Bench::linked("web1");
    let run = |id: u128, targets: usize, stop_after: u32| {
        let targets = (0..targets).map(|n| format!("n{n:05}.example.com").parse());
        let request = Request {
            id: Id::from_bits(id),
            targets: targets.map(|one| one.expect("a certname")).collect(),
            parallel: 1,
            stop_after,
            ..to("lb1")
        };
        Event::Fire {
            client: CLIENT,
            request,
        }
    };
    let lists = |actions: &[Action]| -> Vec<Draft> {
        let kept = actions.iter().filter_map(|action| match action {
            Action::Keep(drafts) => Some(drafts.clone()),
            _ => None,
        });
        let is_list = |draft: &Draft| matches!(draft.entry, EntryId::Targets(_));
        kept.flatten().filter(is_list).collect()
    };
    assert_eq!(lists(&web1.does(run(1, 2, 0))), []);
    let list = lists(&web1.does(run(2, 2, 1))).remove(0);
    let Content::Targets(targets) = &list.content else {
        panic!("{list:?}");
    };
    assert_eq!((&targets.id, targets.targets.len()), (&Id::from_bits(2), 2));
    let puts_list = |actions: &[Action]| {
        let keys = actions.iter().filter_map(|action| match action {
            Action::Put { key, .. } => Some(key.clone()),
            _ => None,
        });
        keys.filter(|key| *key == targets.key()).count()
    };
    let put = web1.keeps(&list, Ok(()));
    assert_eq!(puts_list(&put), 1);
    web1.is_put(&puts(&put)[0], Ok(()));
    assert_eq!(puts_list(&web1.passes(30)), 0);
    // The backend may have lost it.
    let again = web1.passes(30);
    assert_eq!(puts_list(&again), 1);
    for put in puts(&again) {
        web1.is_put(&put, Ok(()));
    }
    // Another backend may not have it.
    assert_eq!(puts_list(&web1.reaches()), 1);
    // It stays until no target may begin any more.
    assert!(web1.state.entry(&list.entry).is_some());
    web1.passes(3 * 86_400);
    assert_eq!(web1.state.entry(&list.entry), None);
    let actions = web1.does(run(3, 7_000, 1));
    let said = said(&actions).expect("an answer");
    assert_eq!((said.failed.len(), lists(&actions)), (7_000, vec![]));
    assert!(
        said.failed[0]
            .1
            .contains("the list of 7000 nodes is too long"),
        "{}",
        said.failed[0].1
    );
}
