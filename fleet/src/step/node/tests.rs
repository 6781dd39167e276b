//! What stands at the node's own key, and what it does about that.

use again_base::model::Walltime;

use super::*;
use crate::step::own_key::OwnKey;

/// What stands at the own key of a node.
fn own_key(revision: u64, found: OwnKey) -> Event {
    Event::OwnKey { revision, found }
}

fn signed(serial: u64, role: &str) -> OwnKey {
    OwnKey::Signed(Box::new(Inventory {
        serial,
        at: serial,
        ..inventory(role)
    }))
}

/// The log of what stood at the own key.
fn logged(actions: &[Action]) -> Vec<&str> {
    let said = actions.iter().filter_map(|action| match action {
        Action::Rejected(why) | Action::Note(why) => Some(why.as_str()),
        _ => None,
    });
    said.collect()
}

impl Bench {
    /// Published by this node, and seen at its own key at this revision.
    fn publishes(&mut self, role: &str, revision: u64) -> Inventory {
        let draft = kept(&self.does(Event::Inventory(inventory(role))));
        let put = node_puts(&self.keeps(&draft, Ok(()))).remove(0);
        assert_eq!(self.is_put_at(&put, revision), []);
        let Content::Node(published) = draft.content else {
            panic!("{:?}", draft.content);
        };
        published
    }

    /// The backend has what was put at the own key.
    fn is_put_at(&mut self, put: &Action, revision: u64) -> Vec<Action> {
        let mut actions = self.does(own_key(revision, OwnKey::Unchanged));
        actions.extend(self.is_put(put, Ok(())));
        actions
    }
}

#[test]
fn serial_is_the_clock_or_one_more_than_the_last() {
    let mut web1 = Bench::linked("web1");
    let now = web1.now.wall.millis();
    assert_eq!(web1.publishes("a", 1).serial, now);
    assert_eq!(web1.publishes("b", 2).serial, now + 1);
    web1.passes(60);
    assert_eq!(web1.publishes("c", 3).serial, now + 60_000);
    // A clock that is set back, and a service that begins anew.
    web1.now.wall = Walltime::from_millis(5);
    let draft = kept(&web1.does(Event::Inventory(inventory("d"))));
    let mut again = Bench::new("web1");
    again.now.wall = Walltime::from_millis(5);
    again.state = State::new(
        again.state.rules.clone(),
        Numbers::default(),
        [draft],
        &again.now,
    );
    let put = node_puts(&again.reaches()).remove(0);
    again.is_put_at(&put, 3);
    assert_eq!(again.publishes("e", 4).serial, now + 60_002);
    // One that has lost its disk continues from what it finds at its own key.
    let mut anew = Bench::new("web1");
    anew.now.wall = Walltime::from_millis(5);
    anew.does(Event::Reached);
    anew.does(own_key(4, signed(now + 60_002, "e")));
    assert_eq!(anew.does(Event::OwnKeySeen { is_shown: true }), []);
    assert_eq!(anew.publishes("f", 5).serial, now + 60_003);
}

#[test]
fn node_restores_its_own_key_at_most_once_a_minute() {
    let mut web1 = Bench::linked("web1");
    let old = web1.publishes("a", 1);
    let new = web1.publishes("b", 2);
    let older = || OwnKey::Signed(Box::new(old.clone()));
    // What is told late, and what is its own, is nothing.
    assert_eq!(web1.does(own_key(1, older())), []);
    let mine = OwnKey::Signed(Box::new(new.clone()));
    assert_eq!(web1.does(own_key(2, mine)), []);
    let actions = web1.does(own_key(3, older()));
    let serials = (new.serial, old.serial);
    let why = format!(
        "the facts of this node, web1, are published again: in place of version {} stood version {} of ",
        serials.0, serials.1
    );
    assert!(logged(&actions)[0].starts_with(&why), "{actions:?}");
    let [put] = &node_puts(&actions)[..] else {
        panic!("{actions:?}");
    };
    // It is on its way, and then it is there; a tick finds nothing to do.
    assert_eq!(web1.does(own_key(4, OwnKey::Absent)), []);
    assert_eq!(web1.is_put_at(put, 5), []);
    assert_eq!(web1.passes(30), []);
    for (revision, found) in [
        (6, older()),
        (7, OwnKey::Absent),
        (8, OwnKey::Foreign("nobody signed it".to_owned())),
    ] {
        assert_eq!(web1.does(own_key(revision, found)), [], "{revision}");
    }
    assert_eq!(web1.passes(29), []);
    let actions = web1.passes(1);
    let why = "in their place stood a value that does not count: nobody signed it";
    assert!(logged(&actions)[0].ends_with(why), "{actions:?}");
    assert_eq!(node_puts(&actions).len(), 1);
    // What was published is what is restored.
    let Some(Content::Node(published)) = web1.state.entry(&EntryId::Node) else {
        panic!("nothing is published");
    };
    assert_eq!(*published, new);
    web1.is_put_at(&node_puts(&actions)[0], 9);
    web1.passes(60);
    let actions = web1.does(own_key(10, OwnKey::Absent));
    assert!(matches!(&actions[0], Action::Note(why) if why.ends_with(": they were removed")));
    assert_eq!(node_puts(&actions).len(), 1);
    // Nothing wakes it until something happens there.
    assert_eq!(wakes(&web1.state), None);
}

#[test]
fn node_names_another_user_of_its_certificate_and_publishes_a_newer_version() {
    let mut web1 = Bench::linked("web1");
    let mine = web1.publishes("a", 1);
    let theirs = mine.serial + 1_000_000_000;
    let actions = web1.does(own_key(2, signed(theirs, "b")));
    let [why] = logged(&actions)[..] else {
        panic!("{actions:?}");
    };
    let part = format!("another user of its certificate published version {theirs} at ");
    assert!(why.contains(&part) && why.contains(", role=b; "), "{why}");
    let draft = kept(&actions);
    let Content::Node(published) = &draft.content else {
        panic!("{draft:?}");
    };
    assert_eq!(
        (published.serial, &published.facts),
        (theirs + 1, &mine.facts)
    );
    let put = node_puts(&web1.keeps(&draft, Ok(()))).remove(0);
    assert_eq!(web1.is_put_at(&put, 3), []);
    // Two that fight over a key do so once a minute.
    assert_eq!(web1.does(own_key(4, signed(theirs + 2, "b"))), []);
    assert_eq!(logged(&web1.passes(60)).len(), 1);
}

/// Nothing is put before it is known what stands there: a service with an older disk would overwrite what was published after it.
#[test]
fn restored_service_continues_from_what_it_finds_at_its_own_key() {
    let mut before = Bench::linked("web1");
    let draft = kept(&before.does(Event::Inventory(inventory("a"))));
    let mut web1 = Bench::new("web1");
    web1.state = State::new(
        web1.state.rules.clone(),
        Numbers::default(),
        [draft.clone()],
        &web1.now,
    );
    assert_eq!(puts(&web1.does(Event::Reached)), []);
    let theirs = web1.now.wall.millis() + 7;
    assert_eq!(puts(&web1.does(own_key(9, signed(theirs, "b")))), []);
    let actions = web1.does(Event::OwnKeySeen { is_shown: true });
    assert!(
        logged(&actions)[0].contains("restored backup"),
        "{actions:?}"
    );
    assert_eq!(puts(&actions), []);
    let newer = kept(&actions);
    let Content::Node(published) = &newer.content else {
        panic!("{newer:?}");
    };
    assert_eq!(published.serial, theirs + 1);
    assert_eq!(node_puts(&web1.keeps(&newer, Ok(()))).len(), 1);
    // A backend that has lost it, and one that does not show it, get it without a word.
    for is_shown in [true, false] {
        let mut again = Bench::new("web1");
        again.state = State::new(
            again.state.rules.clone(),
            Numbers::default(),
            [draft.clone()],
            &again.now,
        );
        assert_eq!(puts(&again.does(Event::Reached)), []);
        let actions = again.does(Event::OwnKeySeen { is_shown });
        assert_eq!((logged(&actions), puts(&actions).len()), (vec![], 1));
    }
}

/// Whoever has read the newer version ignores this node's own until that is newer still.
#[test]
fn newer_version_is_answered_also_when_it_no_longer_stands_there() {
    let mut web1 = Bench::linked("web1");
    let mine = web1.publishes("a", 1);
    let put = node_puts(&web1.does(own_key(2, OwnKey::Absent))).remove(0);
    // Within the pause, while a put is under way that replaces it.
    let theirs = mine.serial + 1_000_000_000;
    assert_eq!(web1.does(own_key(3, signed(theirs, "b"))), []);
    assert_eq!(web1.is_put_at(&put, 4), []);
    assert_eq!(web1.passes(59), []);
    let actions = web1.passes(1);
    assert!(
        logged(&actions)[0].contains("another user of its certificate"),
        "{actions:?}"
    );
    let draft = kept(&actions);
    let Content::Node(published) = &draft.content else {
        panic!("{draft:?}");
    };
    assert_eq!(published.serial, theirs + 1);
    let put = node_puts(&web1.keeps(&draft, Ok(()))).remove(0);
    // The pause holds while a put is under way, too.
    assert_eq!(web1.does(own_key(5, signed(theirs + 2, "b"))), []);
    assert_eq!(web1.is_put_at(&put, 6), []);
    assert_eq!(logged(&web1.passes(60)).len(), 1);
}

/// A run that begins meanwhile publishes in the pause after a restoration, and the facts of the other user are gone with that.
#[test]
fn other_user_is_named_once_also_where_a_run_publishes_first() {
    let mut web1 = Bench::linked("web1");
    let mine = web1.publishes("a", 1);
    let put = node_puts(&web1.does(own_key(2, OwnKey::Absent))).remove(0);
    assert_eq!(web1.is_put_at(&put, 3), []);
    let theirs = mine.serial + 1_000_000_000;
    assert_eq!(web1.does(own_key(4, signed(theirs, "b"))), []);
    let actions = web1.does(Event::Inventory(inventory("c")));
    let names = |actions: &[Action]| {
        let logged = logged(actions);
        let named = logged
            .iter()
            .filter(|line| line.contains("another user of its certificate"));
        named.count()
    };
    assert_eq!(names(&actions), 1, "{actions:?}");
    let draft = kept(&actions);
    let Content::Node(published) = &draft.content else {
        panic!("{draft:?}");
    };
    assert_eq!(published.serial, theirs + 1);
    let put = node_puts(&web1.keeps(&draft, Ok(()))).remove(0);
    assert_eq!(names(&web1.is_put_at(&put, 5)), 0);
    assert_eq!(names(&web1.passes(60)), 0);
}

/// A stream that was deleted and made again counts from 1.
#[test]
fn own_facts_are_restored_where_revisions_begin_again() {
    let mut web1 = Bench::linked("web1");
    web1.publishes("a", 9);
    assert_eq!(web1.does(own_key(1, OwnKey::Absent)), []);
    web1.does(Event::OwnKeyLost);
    assert_eq!(node_puts(&web1.does(own_key(1, OwnKey::Absent))).len(), 1);
}

/// A look that never succeeds, over one connection or over many that end because of it.
#[test]
fn own_key_that_is_never_seen_holds_up_facts_and_triggers_for_ten_seconds() {
    for is_one_connection in [true, false] {
        let mut web1 = Bench::new("web1");
        let draft = kept(&web1.does(Event::Inventory(inventory("a"))));
        web1.keeps(&draft, Ok(()));
        assert_eq!(puts(&web1.does(Event::Reached)), []);
        web1.fires(request(&[]));
        let actions = if is_one_connection {
            assert_eq!(puts(&web1.passes(9)), []);
            web1.passes(1)
        } else {
            web1.passes(9);
            web1.does(Event::Lost);
            web1.passes(2);
            web1.does(Event::Reached)
        };
        let put = node_puts(&actions).remove(0);
        let triggers = puts(&web1.is_put_at(&put, 1));
        assert!(!triggers.is_empty(), "{triggers:?}");
        // It stays so, until a connection shows it.
        web1.does(Event::Lost);
        assert_eq!(node_puts(&web1.does(Event::Reached)).len(), 1);
        web1.does(Event::OwnKeySeen { is_shown: false });
        web1.does(Event::Lost);
        assert_eq!(node_puts(&web1.does(Event::Reached)), []);
    }
}

/// An empty entry would replace facts that the backend has not shown, and an old one of its own may have been put there by somebody.
#[test]
fn node_without_its_state_leaves_what_may_stand_at_its_own_key_to_the_next_run() {
    let publishes = |web1: &Bench| [false, true].map(|one| web1.state.is_unpublished(one));
    let seen = |found: Option<OwnKey>| {
        let mut web1 = Bench::new("web1");
        web1.does(Event::Reached);
        assert_eq!(publishes(&web1), [false, false]);
        if let Some(found) = found {
            web1.does(own_key(1, found));
        }
        web1.does(Event::OwnKeySeen { is_shown: true });
        web1
    };
    assert_eq!(publishes(&seen(None)), [true, true]);
    let foreign = OwnKey::Foreign("nobody signed it".to_owned());
    assert_eq!(publishes(&seen(Some(foreign))), [true, true]);
    let mut web1 = seen(Some(signed(1, "a")));
    assert_eq!(publishes(&web1), [false, true]);
    web1.does(own_key(2, OwnKey::Absent));
    assert_eq!(publishes(&web1), [false, true]);
    web1.publishes("a", 3);
    assert_eq!(publishes(&web1), [false, false]);
    // The backend does not show it, or not in time.
    let mut late = Bench::new("web1");
    late.does(Event::Reached);
    late.passes(10);
    assert_eq!(publishes(&late), [false, true]);
    late.does(Event::OwnKeySeen { is_shown: false });
    assert_eq!(publishes(&late), [false, true]);
    late.does(own_key(1, OwnKey::Absent));
    assert_eq!(publishes(&late), [true, true]);
}

/// With the beat that is next after ten minutes, as the same to be selected by: no trigger waits for it.
#[test]
fn node_signs_the_same_anew_every_ten_minutes_while_it_is_connected() {
    let mut web1 = Bench::linked("web1");
    let first = web1.publishes("a", 1);
    assert_eq!(first.at, web1.now.wall.millis());
    web1.passes(599);
    assert_eq!(web1.does(Event::Beat), []);
    let later = web1.now.uptime + Span::from_secs(3_600);
    let wakes = wakes(&web1.state);
    assert!(wakes.is_none_or(|at| at > later), "{wakes:?} for that");
    web1.passes(1);
    let draft = kept(&web1.does(Event::Beat));
    let Content::Node(second) = &draft.content else {
        panic!("{draft:?}");
    };
    assert!(second.tells_the_same(&first));
    assert_eq!(
        (second.at, second.serial),
        (first.at + 600_000, first.serial + 600_000)
    );
    let put = node_puts(&web1.keeps(&draft, Ok(()))).remove(0);
    let (_, actions) = web1.fires(request(&[]));
    assert_eq!(puts(&actions).len(), 1);
    assert_eq!(web1.does(Event::Beat), [], "once");
    // The version before is told late, and nobody else is named for it.
    let older = || OwnKey::Signed(Box::new(first.clone()));
    assert_eq!(web1.does(own_key(1, older())), []);
    assert_eq!(web1.is_put_at(&put, 2), []);
    let put = node_puts(&web1.does(own_key(3, older()))).remove(0);
    assert_eq!(web1.is_put_at(&put, 4), []);
    // Without the backend it signs nothing, and at once when it is back.
    web1.passes(3_600);
    web1.does(Event::Lost);
    assert_eq!(web1.does(Event::Beat), []);
    web1.does(Event::Reached);
    assert_eq!(web1.does(Event::Beat), [], "it has not seen its own key");
    let actions = web1.does(Event::OwnKeySeen { is_shown: true });
    assert_eq!(node_puts(&actions), []);
    let third = kept(&actions);
    assert_eq!(node_puts(&web1.keeps(&third, Ok(()))).len(), 1);
    // Nobody takes a clock that was set back for a node of the future.
    web1.now.wall = Walltime::from_millis(first.at);
    let draft = kept(&web1.does(Event::Beat));
    let Content::Node(last) = &draft.content else {
        panic!("{draft:?}");
    };
    assert_eq!(last.at, first.at);
    assert!(last.serial > second.serial);
}
