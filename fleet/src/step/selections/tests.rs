use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::policy::stored_selection::tests::{inventory, open};
use crate::policy::stored_selection::{MOST, MOST_BYTES, StoredSelection};
use crate::wire::name::Node;

/// A service with its disk.
struct Sender {
    bench: Bench,
    disk: BTreeMap<EntryId, Draft>,
    is_disk_full: bool,
    /// Triggers that were written, in their order.
    sent: Vec<Trigger>,
    /// What clients were told.
    said: Option<Said>,
    log: Vec<String>,
    /// How often the nodes were asked for.
    readings: usize,
    /// How many values are still written until the service dies.
    writes_left: usize,
}

impl Sender {
    fn new() -> Sender {
        Sender {
            bench: Bench::new("web1"),
            disk: BTreeMap::new(),
            is_disk_full: false,
            sent: Vec::new(),
            said: None,
            log: Vec::new(),
            readings: 0,
            writes_left: usize::MAX,
        }
    }

    fn does(&mut self, event: Event) {
        let actions = self.bench.does(event);
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Keep(drafts) => {
                    for draft in drafts {
                        if self.writes_left == 0 {
                            return;
                        }
                        self.writes_left -= 1;
                        if let Content::Trigger(trigger) = &draft.content {
                            self.sent.push(trigger.clone());
                        }
                        let kept = match self.is_disk_full {
                            true => Err("no space left".to_owned()),
                            false => Ok(()),
                        };
                        actions.extend(self.bench.keeps(&draft, kept.clone()));
                        if kept.is_ok() {
                            self.disk.insert(draft.entry.clone(), draft);
                        }
                    }
                }
                // Numbers are written before an entry is removed, which a full disk refuses.
                Action::Forget {
                    number: Some(_), ..
                } if self.is_disk_full => {}
                Action::Forget { entry, .. } => drop(self.disk.remove(&entry)),
                Action::Say(CLIENT, said) => self.said = Some(said),
                Action::Note(text) | Action::Info(text) => self.log.push(text),
                Action::ReadNodes => self.readings += 1,
                _ => {}
            }
        }
    }

    fn fires(&mut self, request: Request) {
        let client = CLIENT;
        self.does(Event::Fire { client, request });
    }

    fn cancels(&mut self, what: Back) -> Option<SelectionState> {
        let client = CLIENT;
        self.does(Event::TakeBack { client, what });
        self.said.take().and_then(|said| said.selection)
    }

    fn passes(&mut self, seconds: u64) {
        let actions = self.bench.passes(seconds);
        self.perform(actions);
    }

    /// The backend shows its nodes, of which these have the role that is selected.
    fn shows(&mut self, balancers: &[&str]) {
        let nodes = balancers.iter().map(|name| inventory(name, "lb"));
        let nodes = nodes.chain([inventory("db1", "db"), inventory("web1", "lb")]);
        self.does(Event::Nodes(nodes.collect()));
    }

    /// The service starts anew, with what its disk has.
    fn restarts(&mut self) {
        self.writes_left = usize::MAX;
        let drafts = self.disk.values().cloned();
        let rules = self.bench.state.rules.clone();
        let now = &self.bench.now;
        self.bench.state = State::new(rules, Numbers::default(), drafts, now);
    }

    fn targets(&self) -> Vec<&str> {
        let all = self.sent.iter().filter(|one| one.ask == Ask::Run);
        all.map(|one| one.target.as_str()).collect()
    }

    fn is_stored(&self) -> bool {
        let is_selection = |id: &EntryId| matches!(id, EntryId::Selection(..));
        self.disk.keys().any(is_selection)
    }

    fn is_logged(&self, words: &str) -> bool {
        self.log.iter().any(|line| line.contains(words))
    }
}

#[test]
fn selection_is_resolved_once_more_for_nodes_that_it_was_not_sent_to() {
    let mut web1 = Sender::new();
    web1.fires(open(&["lb1"], 0));
    let said = web1.said.take().expect("said without waiting");
    assert_eq!(said.selection, Some(SelectionState::Stored));
    assert_eq!(said.kept, [node("lb1")]);
    web1.passes(600);
    for _ in 0..2 {
        web1.restarts();
        assert!(!web1.bench.state.needs_nodes(&web1.bench.now));
    }
    web1.does(Event::Reached);
    // Other nodes connect again, too. A list of nodes that somebody asks for meanwhile comes too early.
    web1.passes(59);
    web1.shows(&["lb1"]);
    assert_eq!((web1.targets(), web1.readings), (vec!["lb1"], 0));
    web1.passes(1);
    assert_eq!(web1.readings, 1);
    web1.shows(&["lb1", "lb2"]);
    assert_eq!(web1.targets(), ["lb1", "lb2"]);
    let [first, second] = &web1.sent[..] else {
        panic!("two triggers");
    };
    assert_eq!(first.id, second.id);
    assert_eq!(first.expires(), second.expires());
    assert_eq!(first.lineage, second.lineage);
    assert!(!web1.is_stored() && web1.is_logged("is sent to 1 node"));
    web1.shows(&["lb1", "lb2", "lb3"]);
    web1.passes(900);
    assert_eq!((web1.targets().len(), web1.readings), (2, 1));
}

#[test]
fn rolling_run_is_sent_when_its_selection_is_resolved() {
    let mut web1 = Sender::new();
    let rolling = Request {
        stop_after: 2,
        ..open(&["other"], 1)
    };
    web1.fires(rolling.clone());
    let said = web1.said.take().expect("said");
    assert_eq!(said.selection, Some(SelectionState::Stored));
    assert!(web1.sent.is_empty() && said.kept.is_empty());
    assert_eq!(said.until, web1.bench.now.wall + rolling.ttl);
    // A second before the backend is reached: others still need as long to connect and publish.
    web1.passes(1);
    web1.does(Event::Reached);
    web1.passes(30);
    web1.shows(&["lb1"]);
    assert!(web1.sent.is_empty());
    web1.passes(30);
    web1.shows(&["lb1", "lb2"]);
    assert_eq!(web1.targets(), ["lb1", "lb2", "other"]);
    assert!(
        web1.sent
            .iter()
            .all(|one| (one.targets, one.parallel) == (3, 1))
    );
    assert!(web1.disk.contains_key(&EntryId::Targets(rolling.id)));
}

#[test]
fn selection_waits_for_nodes_that_return_after_a_loss() {
    let mut web1 = Sender::new();
    web1.fires(open(&[], 0));
    web1.does(Event::Reached);
    web1.passes(60);
    web1.does(Event::NodesIncomplete(Span::from_secs(300)));
    web1.passes(299);
    assert_eq!((web1.readings, web1.targets().len()), (1, 0));
    web1.passes(1);
    // The backend does not answer, and is asked again.
    web1.passes(60);
    assert_eq!(web1.readings, 3);
    web1.shows(&["lb1"]);
    assert_eq!(web1.targets(), ["lb1"]);
    // One that is stored while the backend is reached is resolved with the next list.
    web1.fires(open(&[], 0));
    assert_eq!(web1.readings, 4);
    web1.does(Event::Lost);
    web1.shows(&["lb1", "lb2"]);
    assert!(web1.is_stored());
}

#[test]
fn newer_selection_of_the_name_replaces_a_stored_one() {
    let newer = |id, is_open| Request {
        id: Id::from_bits(id),
        is_open,
        ..open(&[], 0)
    };
    for is_open in [true, false] {
        let mut web1 = Sender::new();
        web1.fires(open(&[], 0));
        // By another name, and for another node.
        web1.fires(Request {
            name: "other".parse().expect("a name"),
            ..newer(2, true)
        });
        web1.fires(Request {
            on_behalf: Some(node("db9")),
            ..newer(3, true)
        });
        assert!(!web1.is_logged("is replaced by"));
        // A trigger without a selection does not.
        web1.fires(request(&[]));
        assert_eq!(web1.bench.state.stored_selections(), 3);
        web1.fires(newer(4, is_open));
        assert!(web1.is_logged(&format!("is replaced by id {}", Id::from_bits(4))));
        assert_eq!(web1.bench.state.stored_selections(), 2 + u64::from(is_open));
        web1.does(Event::Reached);
        web1.passes(60);
        web1.shows(&["lb2"]);
        let to = |id| {
            web1.sent
                .iter()
                .any(|one| one.target == node("lb2") && one.id == Id::from_bits(id))
        };
        // The one for another node is refused while a trigger of the same name is on its way.
        assert_eq!([2, 3, 4, 99].map(to), [true, true, false, false]);
    }
}

#[test]
fn cancelled_selection_is_not_resolved() {
    let (mut by_id, mut for_node) = (Sender::new(), Sender::new());
    for web1 in [&mut by_id, &mut for_node] {
        web1.fires(open(&["lb9"], 1));
    }
    let other = Back::Id(Id::from_bits(1));
    assert_eq!(by_id.cancels(other), None);
    assert!(by_id.is_stored());
    let id = open(&[], 0).id;
    assert_eq!(by_id.cancels(Back::Id(id)), Some(SelectionState::Cancelled));
    assert!(!by_id.is_stored());
    for name in ["lb1", "lb9"] {
        let cancelled = for_node.cancels(Back::To(node(name)));
        assert_eq!(cancelled, Some(SelectionState::Cancelled));
    }
    assert_eq!(for_node.cancels(Back::To(node("lb1"))), None);
    for web1 in [&mut by_id, &mut for_node] {
        web1.restarts();
        web1.does(Event::Reached);
        web1.passes(60);
        web1.shows(&["lb1", "lb2"]);
    }
    assert_eq!(by_id.targets(), [""; 0]);
    assert_eq!(for_node.targets(), ["lb2"]);
}

#[test]
fn cancelled_selection_stays_removed_although_the_disk_is_full() {
    let mut web1 = Sender::new();
    web1.fires(open(&[], 0));
    web1.is_disk_full = true;
    let id = open(&[], 0).id;
    assert_eq!(web1.cancels(Back::Id(id)), Some(SelectionState::Cancelled));
    web1.restarts();
    assert!(!web1.is_stored());
    assert_eq!(web1.bench.state.stored_selections(), 0);
}

#[test]
fn selection_expires_with_its_ttl() {
    let mut web1 = Sender::new();
    web1.fires(open(&[], 0));
    web1.passes(3599);
    assert!(web1.is_stored());
    web1.passes(1);
    assert!(
        !web1.is_stored() && web1.is_logged("' (id "),
        "{:?}",
        web1.log
    );
    assert!(web1.is_logged("before it was sent to all nodes that it selects"));
    web1.does(Event::Reached);
    web1.passes(60);
    assert_eq!((web1.readings, web1.sent.len()), (0, 0));
}

#[test]
fn way_that_is_too_long_is_logged_when_the_selection_is_resolved() {
    let mut web1 = Sender::new();
    let far = Request {
        run: lineage(&["1: lb1 web1 lb1"]),
        ..open(&[], 0)
    };
    web1.fires(far);
    web1.does(Event::Reached);
    web1.passes(60);
    web1.shows(&["lb1", "lb2"]);
    assert_eq!(web1.targets(), [""; 0]);
    for why in [
        "is not sent to lb1: over 3 hops: lb1 -> web1 -> lb1 ...",
        "is not sent to lb2: over 3 hops: lb1 -> web1 -> lb1 -> web1 -> ...",
    ] {
        assert!(web1.is_logged(why), "{:?}", web1.log);
    }
    assert!(!web1.is_stored());
}

#[test]
fn selection_that_cannot_be_stored_is_said() {
    let not_stored = |web1: &mut Sender, request| {
        web1.fires(request);
        let said = web1.said.take().expect("said");
        match said.selection {
            Some(SelectionState::NotStored(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let mut web1 = Sender::new();
    web1.is_disk_full = true;
    assert_eq!(not_stored(&mut web1, open(&[], 0)), "no space left");
    assert_eq!(web1.bench.state.stored_selections(), 0);
    web1.is_disk_full = false;
    let named = |n: usize| Request {
        name: n.to_string().parse().expect("a name"),
        ..open(&[], 0)
    };
    (0..MOST).for_each(|n| web1.fires(named(n)));
    let why = not_stored(&mut web1, named(MOST));
    assert!(
        why.starts_with("no room: 1000 selections are stored (at"),
        "{why}"
    );
    // One takes the place of its older one.
    web1.fires(named(7));
    assert_eq!(web1.bench.state.stored_selections(), 1000);
    let wide: Vec<String> = (0..20_000)
        .map(|n| format!("n{n}{}", "x".repeat(200)))
        .collect();
    let wide: Vec<&str> = wide.iter().map(String::as_str).collect();
    let size = StoredSelection::new(open(&wide, 1)).expect("open").size();
    assert!(size * 3 < MOST_BYTES && size * 4 > MOST_BYTES, "{size}");
    let mut web1 = Sender::new();
    let wide = |n: usize| Request {
        name: n.to_string().parse().expect("a name"),
        ..open(&wide, 1)
    };
    (0..3).for_each(|n| web1.fires(wide(n)));
    let why = not_stored(&mut web1, wide(3));
    assert!(
        why.starts_with("no room: 3 selections are stored (at"),
        "{why}"
    );
}

/// A service that dies between any two writes while it sends a rolling run.
#[test]
fn rolling_run_has_one_list_of_targets_although_its_sender_dies() {
    let mut deaths = 0;
    for writes in 0.. {
        let mut web1 = Sender::new();
        web1.fires(Request {
            stop_after: 1,
            ..open(&[], 1)
        });
        web1.does(Event::Reached);
        web1.passes(60);
        web1.writes_left = writes;
        web1.shows(&["lb1", "lb2", "lb3"]);
        if web1.writes_left > 0 {
            break;
        }
        deaths += 1;
        web1.restarts();
        web1.does(Event::Reached);
        web1.passes(60);
        // Meanwhile lb3 has lost its role, and lb4 has it.
        let shown = match writes {
            0 => ["lb1", "lb2", "lb3"],
            _ => ["lb1", "lb2", "lb4"],
        };
        web1.shows(&shown);
        assert_eq!(web1.targets(), ["lb1", "lb2", "lb3"], "{writes}");
        assert!(web1.sent.iter().all(|one| one.targets == 3));
        let list = &web1.disk[&EntryId::Targets(open(&[], 1).id)].content;
        assert!(matches!(list, Content::Targets(list) if list.targets.len() == 3));
        web1.passes(1);
        assert!(!web1.is_stored(), "{writes}");
    }
    assert_eq!(
        deaths, 7,
        "before each of six writes, and after the last one"
    );
}

#[test]
fn selection_that_was_sent_before_a_crash_replaces_nothing_newer() {
    let mut web1 = Sender::new();
    web1.fires(open(&[], 0));
    web1.does(Event::Reached);
    web1.passes(60);
    // It dies before it has noted that all was sent.
    web1.writes_left = 3;
    web1.shows(&["lb1", "lb2"]);
    assert_eq!(web1.targets(), ["lb1", "lb2"]);
    web1.restarts();
    assert_eq!(web1.bench.state.stored_selections(), 0);
    web1.fires(Request {
        id: Id::from_bits(5),
        targets: vec![node("lb2")],
        ..request(&[])
    });
    web1.does(Event::Reached);
    web1.passes(60);
    web1.shows(&["lb1", "lb2"]);
    assert_eq!(web1.targets(), ["lb1", "lb2", "lb2"]);
    assert!(!web1.is_stored());
}

#[test]
fn newer_trigger_stands_for_a_selection_that_is_resolved_later() {
    let mut web1 = Sender::new();
    web1.fires(open(&[], 1));
    web1.passes(1);
    let newer = Id::from_bits(5);
    web1.fires(Request {
        id: newer.clone(),
        targets: vec![node("lb2")],
        parallel: 0,
        ..request(&[])
    });
    web1.does(Event::Reached);
    web1.passes(60);
    web1.shows(&["lb1", "lb2"]);
    let [_, first, second] = &web1.sent[..] else {
        panic!("three triggers");
    };
    assert_eq!((&first.target, &first.parallel), (&node("lb1"), &1));
    assert_eq!((&second.id, &second.parallel), (&newer, &0));
    let origins: BTreeSet<&Id> = second.lineage.0.iter().map(|one| &one.id).collect();
    assert_eq!(origins, [&newer, &Id::from_bits(1)].into());
}

#[test]
fn full_disk_holds_a_rolling_run_up_until_it_has_room() {
    for parallel in [0, 1] {
        let mut web1 = Sender::new();
        web1.fires(open(&[], parallel));
        web1.does(Event::Reached);
        web1.passes(60);
        web1.is_disk_full = true;
        web1.shows(&["lb1"]);
        // Other triggers are sent from memory, and the selection stays until the backend has them.
        assert_eq!(web1.targets().len(), 1 - parallel as usize);
        assert!(web1.is_stored());
        web1.is_disk_full = false;
        web1.passes(60);
        web1.shows(&["lb1"]);
        assert_eq!(web1.targets(), ["lb1"]);
        assert_eq!(web1.is_stored(), parallel == 0);
        if parallel == 0 {
            let entry = EntryId::To(node("lb1"), "again".parse().expect("a name"));
            let [trigger] = &web1.sent[..] else {
                panic!("one trigger");
            };
            web1.does(Event::Put {
                entry,
                version: trigger.number,
                key: trigger.key(),
                answer: Ok(()),
            });
            assert!(!web1.is_stored());
        }
    }
}

#[test]
fn many_selections_are_resolved_in_several_steps_with_one_list_of_nodes() {
    let mut web1 = Sender::new();
    for n in 0..45 {
        web1.fires(Request {
            name: n.to_string().parse().expect("a name"),
            id: Id::from_bits(n),
            ..open(&[], 0)
        });
    }
    web1.does(Event::Reached);
    web1.passes(60);
    web1.shows(&["lb1", "lb2"]);
    for (steps, sent) in [(1, 40), (2, 80), (3, 90), (4, 90)] {
        assert_eq!(web1.sent.len(), sent, "{steps}");
        web1.does(Event::Tick);
    }
    assert_eq!((web1.readings, web1.is_stored()), (1, false));
}

#[test]
fn selections_of_many_nodes_are_resolved_in_several_steps() {
    let mut web1 = Sender::new();
    for n in 0..3 {
        web1.fires(Request {
            name: n.to_string().parse().expect("a name"),
            id: Id::from_bits(n),
            ..open(&[], 0)
        });
    }
    web1.does(Event::Reached);
    web1.passes(60);
    let nodes: Vec<String> = (0..600).map(|n| format!("n{n}")).collect();
    web1.shows(&nodes.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(web1.sent.len(), 1200);
    web1.does(Event::Tick);
    assert_eq!((web1.sent.len(), web1.readings), (1800, 1));
}

#[test]
fn selections_that_cannot_be_sent_hold_no_other_up() {
    let mut web1 = Sender::new();
    for n in 0..21 {
        web1.fires(Request {
            name: n.to_string().parse().expect("a name"),
            id: Id::from_bits(n),
            ..open(&[], u32::from(n < 20))
        });
    }
    web1.does(Event::Reached);
    web1.passes(60);
    web1.is_disk_full = true;
    web1.shows(&["lb1"]);
    assert_eq!(web1.targets(), [""; 0]);
    web1.passes(60);
    assert_eq!(web1.readings, 2);
    web1.shows(&["lb1", "lb2"]);
    assert_eq!(web1.targets(), ["lb1", "lb2"]);
}

#[test]
fn selection_that_waits_for_room_is_logged_once() {
    let mut web1 = Sender::new();
    web1.fires(request(&[]));
    let entry = web1.bench.state.entries.values().next();
    let entry = entry.expect("an entry").clone();
    web1.fires(open(&[], 0));
    web1.does(Event::Reached);
    web1.passes(60);
    let other = |n: usize| EntryId::To(node(&format!("x{n}")), "x".parse().expect("a name"));
    let others = (0..crate::step::entries::MOST).map(|n| (other(n), entry.clone()));
    web1.bench.state.entries.extend(others);
    for _ in 0..3 {
        web1.shows(&["lb2"]);
        web1.passes(60);
    }
    let logged = |line: &&String| line.contains("is not sent yet: 20000 triggers wait already");
    assert_eq!(web1.log.iter().filter(logged).count(), 1);
    let is_other = |id: &EntryId| matches!(id, EntryId::To(_, name) if name.as_str() == "x");
    web1.bench.state.entries.retain(|id, _| !is_other(id));
    web1.shows(&["lb2"]);
    assert_eq!(web1.targets().last(), Some(&"lb2"));
}

#[test]
fn expired_selection_is_not_replaced() {
    let mut web1 = Sender::new();
    web1.fires(open(&[], 0));
    // The service was not served in time.
    web1.bench.now.uptime = web1.bench.now.uptime + Span::from_secs(3600);
    web1.bench.now.wall = web1.bench.now.wall + Span::from_secs(3600);
    web1.fires(Request {
        id: Id::from_bits(4),
        ..open(&[], 0)
    });
    assert!(!web1.is_logged("is replaced by"));
}

#[derive(Debug, Clone)]
enum Step {
    Reach,
    Lose,
    Restart,
    Pass(u64),
    /// The backend shows these nodes.
    Show(BTreeSet<u8>),
    Cancel(u8),
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Reach),
        1 => Just(Step::Lose),
        1 => Just(Step::Restart),
        2 => (0..90_u64).prop_map(Step::Pass),
        3 => prop::collection::btree_set(0..6_u8, 0..6).prop_map(Step::Show),
        1 => (0..6_u8).prop_map(Step::Cancel),
    ]
}

proptest! {
    /// Whatever happens, no node is sent to twice, and nobody is whom no list had or for whom it was cancelled.
    #[test]
    fn no_node_is_sent_to_twice(before in prop::collection::btree_set(0..6_u8, 0..4), parallel in 0..2_u32, steps in prop::collection::vec(a_step(), 0..30)) {
        let name = |n: &u8| format!("lb{n}");
        let sent: Vec<String> = before.iter().map(name).collect();
        let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
        let mut web1 = Sender::new();
        web1.fires(open(&sent, parallel));
        let mut allowed = before.clone();
        for step in steps {
            match step {
                Step::Reach => web1.does(Event::Reached),
                Step::Lose => web1.does(Event::Lost),
                Step::Restart => web1.restarts(),
                Step::Pass(seconds) => web1.passes(seconds),
                Step::Show(nodes) => {
                    let is_resolved = web1.bench.state.needs_nodes(&web1.bench.now);
                    if is_resolved {
                        allowed.extend(&nodes);
                    }
                    let nodes: Vec<String> = nodes.iter().map(name).collect();
                    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
                    web1.shows(&nodes);
                    prop_assert!(!is_resolved || !web1.is_stored());
                }
                Step::Cancel(n) => {
                    let before = web1.targets().len();
                    web1.cancels(Back::To(node(&name(&n))));
                    prop_assert_eq!(web1.targets().len(), before);
                    if !web1.targets().contains(&&*name(&n)) {
                        allowed.remove(&n);
                    }
                }
            }
        }
        let targets = web1.targets();
        let distinct: BTreeSet<&str> = targets.iter().copied().collect();
        prop_assert_eq!(distinct.len(), targets.len());
        let nodes: BTreeSet<Node> = allowed.iter().map(|n| node(&name(n))).collect();
        prop_assert!(targets.iter().all(|one| nodes.contains(&node(one))), "{:?} of {:?}", targets, nodes);
    }
}
