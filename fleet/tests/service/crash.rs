//! Crashes of each process at every step that another process could notice, and sometimes of the
//! backend. No trigger is acted on twice, none that was promised is lost, and the outcome of each
//! is published.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use again_fleet::policy::fire::Request;
use again_fleet::wire::name::Id;
use again_fleet::wire::outcome::Outcome;

use crate::node::{Node, request, until};
use crate::requests;
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use again_test_support::Dice;

/// Process that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Sender,
    Target,
    Root,
}

/// Number of triggers that may be under way while processes are killed: each adds one step or more
/// to every later start.
const UNDER_WAY: u64 = 8;

/// Number of steps between two cases; the nightly sweep uses one (tests/tools/sweep).
const STRIDE: u64 = 6;

/// Number of cases in one world: the files that they leave on the disk add steps to every later
/// start. The sweep is over when a new world outlives it.
const CASES: usize = 40;

/// Value of a numeric environment variable, or else `otherwise`.
pub fn set(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable);
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

struct World {
    server: Server,
    web1: Node,
    lb1: Node,
    dice: Dice,
    /// Triggers that were sent: whether each was promised, and its name.
    fired: BTreeMap<Id, (bool, String)>,
    /// Requests that were left on disk while the sender was down.
    left: Vec<Request>,
}

impl World {
    fn new(seed: u64) -> World {
        let server = Server::start(Kind::Etcd);
        let web1 = Node::new("web1.test", &server);
        fs::create_dir(requests::spool(&web1)).expect("made");
        World {
            web1,
            lb1: Node::new("lb1.test", &server),
            server,
            dice: Dice::new(seed),
            fired: BTreeMap::new(),
            left: Vec::new(),
        }
    }

    /// Sends triggers while this process is killed at its nth step, and starts it again; returns
    /// whether it was killed.
    fn case(&mut self, who: Who, n: u64) -> bool {
        let (web1, lb1) = (&self.web1, &self.lb1);
        match who {
            Who::Sender => {
                web1.kill();
                let left = request(&format!("left {n}"), &["lb1.test"]);
                requests::leave(web1, &left.id, &left);
                self.left.push(left);
                web1.start_killed_at(n);
            }
            Who::Target => {
                lb1.kill();
                lb1.start_killed_at(n);
            }
            Who::Root => {
                lb1.kill_take();
                lb1.take_killed_at(n);
            }
        }
        let name = format!("{who:?} {n}");
        let one: Request = request(&name, &["lb1.test"]);
        let said = web1.try_to_fire(&one);
        let is_promised =
            |word: &String| word.starts_with("delivered ") || word.starts_with("kept ");
        let promised = said.iter().any(is_promised);
        self.fired.insert(one.id.clone(), (promised, name));
        if self.dice.below(8) == 0 {
            self.server.kill();
            self.server.run();
        }
        let victim = if who == Who::Sender { web1 } else { lb1 };
        let has_run = || lb1.runs().iter().any(|run| run.triggers.contains(&one.id));
        let is_over = || has_run() && web1.is_done();
        until("its death, or the end", || victim.was_killed() || is_over());
        let was_killed = victim.was_killed();
        match who {
            Who::Sender => web1.start_anew(),
            Who::Target => lb1.start_anew(),
            Who::Root => {
                lb1.kill_take();
                lb1.take();
            }
        }
        if web1.how().outbox.triggers > UNDER_WAY {
            until("an empty outbox", || web1.how().outbox.triggers == 0);
        }
        was_killed
    }

    /// Waits until nothing is under way, and checks the triggers that were promised; returns their
    /// number, and that of all triggers.
    fn check(&self) -> (usize, usize) {
        let World {
            server,
            web1,
            lb1,
            fired,
            left,
            ..
        } = self;
        until("no request on disk", || requests::waiting(web1).is_empty());
        until("an empty outbox", || web1.how().outbox.triggers == 0);
        until("the last run", || {
            lb1.again(&["status"]).status.code() == Some(3)
        });
        let ran = lb1.ran();
        for one in left {
            let times = ran.iter().filter(|id| **id == one.id).count();
            assert_eq!(times, 1, "{}", one.name);
        }
        let straight = Straight::at(server, "web1.test");
        let mut done = BTreeSet::new();
        for (id, (promised, name)) in fired {
            let times = ran.iter().filter(|one| *one == id).count();
            assert!(times <= 1, "{name} was run {times} times");
            assert!(times == 1 || !promised, "{name} was lost");
            if times == 1 {
                done.insert(id.clone());
            }
        }
        until("what is told of all", || {
            let told = straight.told("web1.test").into_iter();
            let told = told.filter(|one| one.outcome != Outcome::Held);
            let told: BTreeSet<Id> = told.map(|one| one.id).collect();
            done.is_subset(&told)
        });
        // Nothing is left over except the number, the log and the node's entry.
        until("no register", || straight.list("to/").is_empty());
        for (directory, most) in [("kept", 3), ("tmp", 0), ("aside", 0)] {
            let path = web1.path("state/serve/fired").join(directory);
            let left = fs::read_dir(path).expect("the outbox").count();
            assert!(left <= most, "{left} in {directory}");
        }
        let promised = fired.values().filter(|(promised, _)| *promised);
        (promised.count(), fired.len())
    }
}

/// Counts of a sweep.
#[derive(Debug, Default)]
struct Sum {
    killed: usize,
    promised: usize,
    fired: usize,
}

/// Kills this process at its steps, one of every `stride`.
fn sweep(who: Who, seed: u64) -> Sum {
    let stride = set("AGAIN_FLEET_STRIDE", STRIDE);
    let mut sum = Sum::default();
    let mut n = 1 + Dice::new(seed).below(stride);
    let mut goes_on = true;
    while goes_on {
        let mut world = World::new(seed + n);
        for _ in 0..CASES {
            goes_on = world.case(who, n);
            sum.killed += usize::from(goes_on);
            n += stride;
            if !goes_on {
                break;
            }
        }
        let (promised, fired) = world.check();
        sum.promised += promised;
        sum.fired += fired;
    }
    sum
}

/// Kills this process at each step of a sweep.
fn is_killed_at_any_step(who: Who) {
    let sum = sweep(who, set("AGAIN_FLEET_SEED", 7));
    println!("{who:?}: {sum:?}");
    assert!(
        sum.killed > 2 && sum.promised > sum.fired / 4,
        "{who:?}: {sum:?}"
    );
}

#[test]
fn sender_killed_at_any_step_loses_and_doubles_nothing() {
    is_killed_at_any_step(Who::Sender);
}

#[test]
fn target_killed_at_any_step_loses_and_doubles_nothing() {
    is_killed_at_any_step(Who::Target);
}

#[test]
fn executor_killed_at_any_step_loses_and_doubles_nothing() {
    is_killed_at_any_step(Who::Root);
}
