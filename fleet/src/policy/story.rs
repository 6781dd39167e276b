//! PURE: story of an origin, as a tree of the triggers that followed from it, over all nodes.
//!
//! The clocks of nodes disagree, so times of different nodes are never compared to order triggers.
//! The path in each trigger gives its parent node. Times of the sending node alone decide which of
//! its runs sent the trigger, and in which order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::wire::lineage::Cause;
use crate::wire::name::{Id, Name, Node};
use crate::wire::outcome::{Entry, Outcome, Ran};
use crate::wire::trigger::Trigger;

/// Largest difference of two clocks that is ignored, in milliseconds.
const CLOSE: u64 = 1000;

/// Story of an origin, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// Id of the origin.
    pub id: Id,
    /// Cause of the origin.
    pub cause: Cause,
    /// Node of the origin.
    pub node: Node,
    /// Time of the first trigger, in milliseconds after 1970 of that node's wall clock.
    pub at: u64,
    /// Triggers, each after the one whose run sent it.
    pub steps: Vec<Step>,
}

/// Trigger at one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Id of the trigger.
    pub id: Id,
    /// Number of the trigger: the sender's wall clock in milliseconds after 1970.
    pub fired: u64,
    /// Node that signed the trigger.
    pub sender: Node,
    /// Target node.
    pub target: Node,
    /// Name of the trigger.
    pub name: Name,
    /// Nodes from the origin to the sending node.
    pub path: Vec<Node>,
    /// State of the trigger.
    pub state: State,
    /// Reason of the outcome, and what was stopped.
    pub why: String,
    /// Run that served the trigger.
    pub ran: Option<Ran>,
    /// Index of the step whose run sent the trigger; none for triggers that the origin itself sent.
    pub parent: Option<usize>,
    /// Depth in the tree; 0 for steps without a parent.
    pub depth: usize,
    /// Nodes of the path after the parent step that have not published anything.
    pub untold: Vec<Node>,
    /// Smallest difference of the target's clock, in milliseconds: negative if it is behind the
    /// sender's clock, positive if it is ahead of this node's.
    pub clock: Option<i64>,
}

/// State of a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Outcome that the target has published, and its time by the target's clock.
    Known(Outcome, u64),
    /// Sent by this node; may be accepted until this time of this node's clock.
    OnTheWay(u64),
}

impl State {
    /// Text for the state.
    pub fn word(self) -> String {
        match self {
            State::Known(outcome, _) => outcome.to_string(),
            State::OnTheWay(_) => "on its way".to_owned(),
        }
    }
}

impl Step {
    /// Whether the state is final, and no rerun of the run is to come.
    pub fn is_over(&self) -> bool {
        let is_final = matches!(self.state, State::Known(outcome, _) if outcome.is_final());
        is_final && self.ran.as_ref().is_none_or(|ran| !ran.more)
    }

    /// Sort key among the triggers that one node sent.
    fn rank(&self) -> impl Ord + use<> {
        let (target, name) = (self.target.clone(), self.name.clone());
        (self.fired, target, name, self.id.clone())
    }

    fn began(&self) -> Option<u64> {
        self.ran.as_ref()?.began
    }
}

impl Story {
    /// Story of an origin, or the newest story with a trigger of this id; without an id, the newest
    /// of all. None if nothing was published about it. A story that began later than `latest`, by
    /// its sender's clock, never counts as the newest.
    pub fn of(
        entries: Vec<Entry>,
        on_the_way: Vec<Trigger>,
        wanted: Option<&Id>,
        [now, latest]: [u64; 2],
    ) -> Option<Story> {
        let stories = gathered(entries, on_the_way, now);
        let begins = |steps: &Steps| steps.values().map(|(_, step)| first(step)).min();
        let has = |steps: &Steps, id: &Id| steps.keys().any(|(_, one)| one == id);
        let newest = stories
            .into_iter()
            .filter(|(id, steps)| wanted.is_none_or(|wanted| id == wanted || has(steps, wanted)))
            .max_by_key(|(id, steps)| {
                let is_it = wanted == Some(id);
                let at = begins(steps).map(|(_, at, _)| at);
                (is_it, at.filter(|at| *at <= latest), Reverse(id.clone()))
            });
        let (id, steps) = newest?;
        let (cause, begins) = steps.values().min_by_key(|(_, step)| first(step))?.clone();
        let steps = steps.into_values().map(|(_, step)| step).collect();
        Some(Story {
            id,
            cause,
            node: begins.path.first()?.clone(),
            at: begins.fired,
            steps: tree(steps),
        })
    }

    /// Whether all known steps are final.
    pub fn is_over(&self) -> bool {
        self.steps.iter().all(Step::is_over)
    }
}

/// Sort key of the step that is closest to the origin and was sent first.
fn first(step: &Step) -> (usize, u64, Id) {
    (step.path.len(), step.fired, step.id.clone())
}

/// Steps by target and id.
type Steps = BTreeMap<(Node, Id), (Cause, Step)>;

/// Steps by origin. A published status replaces a trigger that is on its way.
fn gathered(entries: Vec<Entry>, on_the_way: Vec<Trigger>, now: u64) -> BTreeMap<Id, Steps> {
    let mut stories = BTreeMap::<Id, Steps>::new();
    let ways = on_the_way.into_iter().flat_map(of_a_trigger);
    let told = entries.into_iter().map(|entry| of_an_entry(entry, now));
    for (origin, cause, step) in ways.chain(told) {
        let key = (step.target.clone(), step.id.clone());
        stories
            .entry(origin)
            .or_default()
            .insert(key, (cause, step));
    }
    stories
}

fn of_a_trigger(trigger: Trigger) -> Vec<(Id, Cause, Step)> {
    let until = trigger.expires().millis();
    let step = |path| Step {
        id: trigger.id.clone(),
        fired: trigger.number,
        sender: trigger.sender.clone(),
        target: trigger.target.clone(),
        name: trigger.name.clone(),
        path,
        state: State::OnTheWay(until),
        why: String::new(),
        ran: None,
        parent: None,
        depth: 0,
        untold: Vec::new(),
        clock: None,
    };
    let origins = trigger.lineage.0.iter().cloned();
    origins
        .map(|origin| (origin.id, origin.cause, step(origin.path)))
        .collect()
}

fn of_an_entry(Entry { told, origin }: Entry, now: u64) -> (Id, Cause, Step) {
    // The status was published after the trigger was sent.
    let began = told.ran.as_ref().and_then(|ran| ran.began);
    let soonest = began.map_or(told.at, |began| began.min(told.at));
    let milliseconds = |off: u64| i64::try_from(off).unwrap_or(i64::MAX);
    let clock = match (
        told.number.saturating_sub(soonest),
        told.at.saturating_sub(now),
    ) {
        (behind, _) if behind > CLOSE => Some(-milliseconds(behind)),
        (_, ahead) if ahead > CLOSE => Some(milliseconds(ahead)),
        _ => None,
    };
    let step = Step {
        why: told.sentence(),
        id: told.id,
        fired: told.number,
        sender: told.sender,
        target: told.target,
        name: told.name,
        path: origin.path,
        state: State::Known(told.outcome, told.at),
        ran: told.ran,
        parent: None,
        depth: 0,
        untold: Vec::new(),
        clock,
    };
    (origin.id, origin.cause, step)
}

/// Orders steps so that each follows the one whose run sent it.
fn tree(mut steps: Vec<Step>) -> Vec<Step> {
    steps.sort_by_key(|step| (step.path.len(), step.rank()));
    // The last list has the steps without a parent.
    let top = steps.len();
    let mut children = vec![Vec::new(); top + 1];
    for (n, (parent, known)) in parents(&steps).into_iter().enumerate() {
        children[parent.unwrap_or(top)].push((n, known));
    }
    let mut placed: Vec<Step> = Vec::with_capacity(steps.len());
    let mut rest: Vec<(usize, usize, Option<usize>)> = Vec::new();
    let mut below = |of: usize, at: Option<usize>, rest: &mut Vec<_>| {
        let mut those: Vec<(usize, usize)> = std::mem::take(&mut children[of]);
        // The stack returns the last one first.
        those.sort_by_key(|(n, _)| Reverse(steps[*n].rank()));
        rest.extend(those.into_iter().map(|(n, known)| (n, known, at)));
    };
    below(top, None, &mut rest);
    while let Some((n, known, parent)) = rest.pop() {
        let step = steps[n].clone();
        below(n, Some(placed.len()), &mut rest);
        placed.push(Step {
            parent,
            depth: parent.map_or(0, |parent| placed[parent].depth + 1),
            untold: step.path[(known + 1).min(step.path.len())..].to_vec(),
            ..step
        });
    }
    placed
}

/// Parent of each step, and the length of the path that leads to the parent. The path of a parent
/// is shorter than that of its child, so no step is below itself.
fn parents(steps: &[Step]) -> Vec<(Option<usize>, usize)> {
    let mut at: BTreeMap<(&[Node], &Node), Vec<usize>> = BTreeMap::new();
    for (n, step) in steps.iter().enumerate() {
        at.entry((&step.path, &step.target)).or_default().push(n);
    }
    let parent = |step: &Step| {
        let found = (1..step.path.len()).rev().find_map(|known| {
            let there = at.get(&(&step.path[..known], &step.path[known]))?;
            // Both times are from the clock of the sending node.
            let before = |n: &&usize| steps[**n].began().is_some_and(|began| began <= step.fired);
            let last = there
                .iter()
                .filter(before)
                .max_by_key(|n| steps[**n].began());
            Some((*last.or(there.first())?, known))
        });
        found.map_or((None, 0), |(n, known)| (Some(n), known))
    };
    steps.iter().map(parent).collect()
}

/// Number of target nodes of a story.
pub fn nodes(story: &Story) -> usize {
    let mut targets: Vec<&Node> = story.steps.iter().map(|step| &step.target).collect();
    targets.sort_unstable();
    targets.dedup();
    targets.len()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::lineage::Origin;
    use crate::wire::outcome::TriggerStatus;
    use proptest::prelude::*;

    fn node(name: &str) -> Node {
        name.parse().expect("a certname")
    }

    /// What a target told of a trigger that came this way, the target last: fired, told and begun at these times.
    pub fn entry(bits: u128, way: &str, fired: u64, told: u64, began: Option<u64>) -> Entry {
        let mut path: Vec<Node> = way.split(' ').map(node).collect();
        let target = path.pop().expect("a target");
        let ran = began.map(|began| Ran {
            log: format!("c-{bits}"),
            began: Some(began),
            ended: Some(told),
            reruns: 0,
            last: None,
            more: false,
        });
        Entry {
            told: TriggerStatus {
                id: Id::from_bits(bits),
                number: fired,
                sender: path[path.len() - 1].clone(),
                target,
                name: "again".parse().expect("a name"),
                outcome: Outcome::Changed,
                why: String::new(),
                at: told,
                stopped: vec![],
                ran,
                above: None,
                waits: false,
            },
            origin: Origin {
                id: Id::from_bits(1),
                cause: Cause::Person,
                path,
            },
        }
    }

    fn story(entries: Vec<Entry>) -> Story {
        Story::of(entries, vec![], None, [1 << 40; 2]).expect("a story")
    }

    /// Each step with its parent, in their order.
    fn shape(story: &Story) -> Vec<(String, Option<usize>)> {
        let shape = story.steps.iter().map(|step| {
            let n = u128::from_str_radix(step.id.as_str(), 16).expect("digits");
            (format!("{} {n}", step.target), step.parent)
        });
        shape.collect()
    }

    /// The clock of b is 30 s behind and that of c 30 s ahead of the others'.
    fn apart() -> Vec<Entry> {
        vec![
            entry(1, "a b", 100_000, 75_000, Some(71_000)),
            entry(2, "a c", 100_500, 135_000, Some(131_000)),
            // Fired in the first run of b, and in its second.
            entry(3, "a b d", 72_000, 104_000, Some(103_000)),
            entry(4, "a b", 105_000, 81_000, Some(80_000)),
            entry(5, "a b d", 80_500, 113_000, Some(112_000)),
            entry(6, "a c b", 133_000, 76_000, Some(75_500)),
        ]
    }

    #[test]
    fn parents_come_first_whatever_the_clocks_say() {
        let story = story(apart());
        let expected = [
            ("b 1", None),
            ("d 3", Some(0)),
            ("c 2", None),
            ("b 6", Some(2)),
            ("b 4", None),
            ("d 5", Some(4)),
        ];
        let expected = expected.map(|(step, parent)| (step.to_owned(), parent));
        assert_eq!(shape(&story), expected);
        assert_eq!(
            (story.node, story.at, story.cause),
            (node("a"), 100_000, Cause::Person)
        );
        // What cannot be otherwise is said of the clocks.
        let clocks: Vec<Option<i64>> = story.steps.iter().map(|step| step.clock).collect();
        let behind = Some(-29_000);
        let expected = [behind, None, None, Some(-57_500), Some(-25_000), None];
        assert_eq!(clocks, expected);
        let early = Story::of(apart(), vec![], None, [105_000; 2]).expect("a story");
        assert_eq!(early.steps[2].clock, Some(30_000));
    }

    #[test]
    fn what_is_missing_on_the_way_is_named() {
        let far = entry(9, "a b c d", 5, 6, None);
        let story = story(vec![far.clone()]);
        assert_eq!(shape(&story), [("d 9".to_owned(), None)]);
        assert_eq!(story.steps[0].untold, [node("b"), node("c")]);
        let story = self::story(vec![far, entry(1, "a b", 1, 2, None)]);
        assert_eq!(story.steps[1].parent, Some(0));
        assert_eq!(story.steps[1].untold, [node("c")]);
    }

    #[test]
    fn the_newest_is_told_or_the_one_that_is_wanted() {
        let of = |bits: u128, mut one: Entry| {
            one.origin.id = Id::from_bits(bits);
            one
        };
        let all = vec![
            of(7, entry(7, "a b", 100, 101, None)),
            of(8, entry(8, "c d", 200, 201, None)),
            of(7, entry(9, "a b c", 300, 301, None)),
            // Whose clock is far ahead, or who says so.
            of(6, entry(6, "e f", 2001, 202, None)),
        ];
        let told = |wanted: Option<u128>| {
            let wanted = wanted.map(Id::from_bits);
            let story = Story::of(all.clone(), vec![], wanted.as_ref(), [1000, 2000]);
            story.map(|story| (story.id, story.steps.len()))
        };
        assert_eq!(told(None), Some((Id::from_bits(8), 1)));
        assert_eq!(told(Some(7)), Some((Id::from_bits(7), 2)));
        // By a trigger that is a part of it.
        assert_eq!(told(Some(9)), Some((Id::from_bits(7), 2)));
        assert_eq!(told(Some(6)), Some((Id::from_bits(6), 1)));
        assert_eq!(told(Some(10)), None);
    }

    #[test]
    fn what_is_on_its_way_is_shown_until_something_is_told() {
        let one = entry(1, "a b", 1000, 1001, None);
        let mut trigger = crate::wire::trigger::tests::trigger();
        trigger.id = one.told.id.clone();
        trigger.target = one.told.target.clone();
        trigger.lineage.0 = vec![one.origin.clone()];
        let on_the_way = Story::of(vec![], vec![trigger.clone()], None, [0; 2]).expect("a story");
        assert_eq!(on_the_way.steps[0].state.word(), "on its way");
        assert!(!on_the_way.is_over());
        let told = Story::of(vec![one], vec![trigger], None, [0; 2]).expect("a story");
        assert_eq!((told.steps.len(), told.is_over()), (1, true));
        assert_eq!(told.steps[0].state, State::Known(Outcome::Changed, 1001));
    }

    /// Entries of one origin, on nodes of which some have told nothing, at any times.
    pub fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let way = prop::collection::vec(0u8..4, 2..6);
        let times = (
            0u64..100_000,
            0u64..100_000,
            prop::option::of(0u64..100_000),
        );
        prop::collection::vec((way, times), 1..40).prop_map(|all| {
            let one = |(n, (way, (fired, told, began))): (usize, (Vec<u8>, _))| {
                let way: Vec<String> = way.iter().map(|n| format!("n{n}")).collect();
                entry(n as u128, &way.join(" "), fired, told, began)
            };
            all.into_iter().enumerate().map(one).collect()
        })
    }

    proptest! {
        /// Whatever the order in which they come, and whatever the clocks say, all are there, each after its parent, whose way is
        /// the beginning of its own.
        #[test]
        fn nothing_is_lost_and_the_order_is_one(all in entries(), seed in any::<u64>()) {
            let told = story(all.clone());
            let mut other = all.clone();
            other.sort_by_key(|one| one.told.number.wrapping_mul(seed | 1));
            prop_assert_eq!(&story(other), &told);
            let mut ids: Vec<&Id> = told.steps.iter().map(|step| &step.id).collect();
            ids.sort();
            let mut expected: Vec<&Id> = all.iter().map(|one| &one.told.id).collect();
            expected.sort();
            prop_assert_eq!(ids, expected);
            for (n, step) in told.steps.iter().enumerate() {
                let Some(parent) = step.parent else {
                    prop_assert_eq!(step.untold.len(), step.path.len() - 1);
                    continue;
                };
                prop_assert!(parent < n);
                let above = &told.steps[parent];
                prop_assert_eq!(step.depth, above.depth + 1);
                let way = [&above.path[..], std::slice::from_ref(&above.target), &step.untold].concat();
                prop_assert_eq!(&way, &step.path);
            }
            // What one node fired in one run stands in the order of its own clock.
            for pair in told.steps.windows(2) {
                if pair[0].parent == pair[1].parent {
                    prop_assert!(pair[0].fired <= pair[1].fired);
                }
            }
        }
    }
}
