//! Lines, leases and whose turn it is; and a hundred nodes that share slots, whatever fails.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::{Identity, Walltime};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::policy::beat::{Dead, Found, SILENT, SURE, Watched};
use crate::service::beats::{self, Beats};
use crate::wire::beat::{Beat, Covered};
use crate::wire::key::Key;
use crate::wire::slot::Slot;

fn group() -> Name {
    "g".parse().expect("a name")
}

fn name_of(n: usize) -> Node {
    format!("n{n}").parse().expect("a certname")
}

fn who(pid: i32) -> Identity {
    Identity { pid, start: 1 }
}

fn run(pid: i32) -> Run {
    Run {
        who: Holder::Process(who(pid)),
        file: 1,
        since: 1,
        why: format!("process {pid}"),
    }
}

/// Somebody who asks, by a number.
fn asker(n: u64) -> Waiter {
    Waiter::Client(Client::Connection(n))
}

/// What stands in the backend.
#[derive(Clone)]
struct Held {
    lease: Lease,
    first: u64,
    revision: u64,
    slot: Option<Slot>,
}

impl Held {
    fn standing(&self) -> Option<Standing> {
        let writes = if self.slot.is_some() { 2 } else { 1 };
        Standing::new(self.slot.clone()?, self.revision, self.first, writes)
    }
}

/// A backend, to which everybody's orders come in any order.
#[derive(Default)]
struct Store {
    now: u64,
    revision: u64,
    values: BTreeMap<usize, Held>,
    /// When each ends.
    leases: BTreeMap<Lease, u64>,
    log: Vec<(usize, Option<Held>)>,
    /// Those that somebody keeps alive, whoever has died.
    haunted: BTreeSet<Lease>,
    /// The nodes' beats, with their revisions, and all that ever were there.
    beats: BTreeMap<usize, (u64, Beat)>,
    past: Vec<(usize, Beat)>,
    /// When somebody has put a copy of an old beat over a node's.
    copied: BTreeMap<usize, u64>,
    evictions: usize,
}

/// Seconds.
const BEAT: u64 = 27;

impl Store {
    fn put(&mut self, n: usize, held: Held) {
        self.log.push((n, Some(held.clone())));
        self.values.insert(n, held);
    }

    fn remove(&mut self, n: usize) {
        if self.values.remove(&n).is_some() {
            self.revision += 1;
            self.log.push((n, None));
        }
    }

    fn enter(&mut self, n: usize) -> (u64, Lease) {
        self.remove(n);
        self.revision += 1;
        let (first, lease) = (self.revision, self.revision as Lease);
        self.leases.insert(lease, self.now + LEASE);
        let slot = None;
        self.put(
            n,
            Held {
                lease,
                first,
                revision: first,
                slot,
            },
        );
        (first, lease)
    }

    fn sign(&mut self, n: usize, slot: Slot, lease: Lease) -> Option<u64> {
        let held = self.values.get(&n)?.clone();
        if held.revision != slot.first || !self.leases.contains_key(&lease) {
            return None;
        }
        self.revision += 1;
        let (first, revision, slot) = (held.first, self.revision, Some(slot));
        self.put(
            n,
            Held {
                lease,
                first,
                revision,
                slot,
            },
        );
        Some(revision)
    }

    fn renew(&mut self, lease: Lease) -> bool {
        let ends = self.leases.get_mut(&lease);
        ends.map(|ends| *ends = self.now + LEASE).is_some()
    }

    fn beat(&mut self, n: usize, beat: Beat) {
        self.revision += 1;
        self.beats.insert(n, (self.revision, beat));
    }

    fn found(&self, nodes: &[Node]) -> Vec<Found> {
        let beats = self.beats.iter();
        let beats = beats.filter(|(n, _)| nodes.contains(&name_of(**n)));
        let found = beats.map(|(n, (revision, beat))| Found {
            node: name_of(*n),
            revision: *revision,
            beat: Some(beat.clone()),
            is_unclear: false,
        });
        found.collect()
    }

    /// Removes a place unless it has changed, or its node has beaten. Whose it was.
    fn evict(&mut self, dead: &Dead) -> Option<usize> {
        let held = self.values.iter();
        let mut held = held.filter(|(_, held)| held.revision == dead.place.revision);
        let n = *held.next()?.0;
        let beat = self.beats.get(&n).map_or(0, |(revision, _)| *revision);
        if beat != dead.beat {
            return None;
        }
        self.remove(n);
        self.evictions += 1;
        Some(n)
    }

    fn revoke(&mut self, lease: Lease) {
        self.leases.remove(&lease);
        let gone = self.values.iter().filter(|(_, held)| held.lease == lease);
        let gone: Vec<usize> = gone.map(|(n, _)| *n).collect();
        gone.into_iter().for_each(|n| self.remove(n));
    }

    fn pass(&mut self, seconds: u64) {
        self.now += seconds;
        for lease in self.haunted.clone() {
            self.renew(lease);
        }
        let over = self.leases.iter().filter(|(_, ends)| **ends <= self.now);
        let over: Vec<Lease> = over.map(|(lease, _)| *lease).collect();
        over.into_iter().for_each(|lease| self.revoke(lease));
    }

    /// Of those that stand there by their own word, before this revision.
    fn before(&self, revision: u64) -> usize {
        let standing = self.values.values().filter_map(Held::standing);
        standing.filter(|one| one.revision < revision).count()
    }
}

/// A node: its service, and a run that waits or goes on.
struct Stand {
    slots: Slots,
    beats: Beats,
    /// What is to be asked or written for beats, and places that are to be removed.
    asked: Vec<beats::Effect>,
    dead: Vec<Dead>,
    /// Whether its service has been killed for good.
    is_dead: bool,
    /// What is on its disk.
    kept: String,
    is_up: bool,
    /// Ordered, and not answered.
    orders: Vec<Effect>,
    /// How far its look is in the log; none before it has listed.
    look: Option<(u64, Option<usize>)>,
    beat: u64,
    client: u64,
    pid: i32,
    /// Whether its run has begun.
    runs: Option<bool>,
    done: usize,
    /// Until when it is cut off.
    away: u64,
}

/// All of them.
struct World {
    store: Store,
    nodes: Vec<Stand>,
    limit: u32,
    dice: StdRng,
    /// Whether what is ordered may fail.
    fails: bool,
}

impl World {
    fn new(seed: u64, count: usize, limit: u32) -> World {
        let mut world = World {
            store: Store::default(),
            nodes: Vec::new(),
            limit,
            dice: StdRng::seed_from_u64(seed),
            fails: false,
        };
        for n in 0..count {
            world.nodes.push(Stand {
                slots: Slots::default(),
                beats: Beats::new(name_of(n)),
                asked: Vec::new(),
                dead: Vec::new(),
                is_dead: false,
                kept: String::new(),
                is_up: false,
                orders: Vec::new(),
                look: None,
                beat: 0,
                client: 0,
                pid: 0,
                runs: None,
                done: 0,
                away: 0,
            });
            world.start(n);
        }
        world
    }

    /// The runs of a node, as of now.
    fn slots(&mut self, n: usize) -> &mut Slots {
        let slots = &mut self.nodes[n].slots;
        slots.now = Boottime::from_nanos(self.store.now * 1_000_000_000);
        slots
    }

    /// As the driver does it.
    fn doing(&mut self, n: usize, effects: Vec<Effect>) {
        let mut is_kept = true;
        for effect in effects {
            let node = &mut self.nodes[n];
            match effect {
                Effect::Save => is_kept = false,
                Effect::Look => node.look = Some((node.slots.round, None)),
                Effect::Turn(waiter) if waiter == asker(node.client) => {
                    // One that asks again is told so once more.
                    if node.runs.is_some() {
                        node.runs = Some(true);
                        self.begins(n);
                    }
                }
                Effect::Turn(_) | Effect::Tell(..) | Effect::Say(_) => {}
                order => node.orders.push(order),
            }
        }
        if !is_kept {
            let node = &mut self.nodes[n];
            node.kept = node.slots.written();
        }
    }

    /// Never more than the limit, nor before those who came first, nor by a lease that has ended: by what the backend holds at that
    /// moment.
    fn begins(&self, n: usize) {
        let place = self.nodes[n].slots.group(&group()).expect("a group").place;
        let place = place.expect("a place").revision;
        let held = self.store.values.get(&n).expect("a lease that lives");
        assert_eq!(held.revision, place, "n{n}");
        let before = self.store.before(place);
        assert!(before < self.limit as usize, "n{n} after {before}");
        let running = |(n, node): &(usize, &Stand)| {
            let had_turn = node.slots.group(&group()).is_some_and(|one| one.had_turn);
            had_turn && node.runs == Some(true) && self.store.values.contains_key(n)
        };
        let count = self.nodes.iter().enumerate().filter(running).count();
        assert!(count <= self.limit as usize, "{count} run");
    }

    fn wants(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.runs.is_none() {
            (node.pid, node.runs) = (node.pid + 1, Some(false));
        }
        node.client += 1;
        let (waiter, run) = (asker(node.client), run(node.pid));
        let limit = self.limit;
        let effects = self.slots(n).want(waiter, &group(), limit, run);
        let effects = effects.expect("wanted");
        self.doing(n, effects);
    }

    fn ends(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.runs.take() == Some(true) {
            node.done += 1;
        }
        let who = run(node.pid).who;
        let effects = self.slots(n).ended(&group(), &who);
        self.doing(n, effects);
    }

    /// Kills the service of a node, and starts it.
    fn start(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.is_dead = false;
        node.beats = Beats::new(name_of(n));
        node.slots = Slots::read(&node.kept);
        let lives = node.runs.is_some().then_some(node.pid);
        self.slots(n)
            .begin(|_, run| lives.is_some_and(|pid| run.who == Holder::Process(who(pid))));
        self.unlinked(n);
        if self.nodes[n].runs == Some(false) {
            self.wants(n);
        }
    }

    fn unlinked(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.is_up = false;
        node.look = None;
        node.orders.clear();
        node.asked.clear();
        node.dead.clear();
        node.beats.lost();
    }

    /// Somebody keeps a node's lease alive.
    fn keep_its_lease(&mut self, n: usize) {
        let group = self.nodes[n].slots.group(&group());
        let place = group.and_then(|one| one.place);
        self.store.haunted.extend(place.map(|place| place.lease));
    }

    /// The service of a node is killed and does not come back, and somebody keeps its leases alive.
    fn dies(&mut self, n: usize) {
        self.keep_its_lease(n);
        self.unlinked(n);
        self.nodes[n].is_dead = true;
    }

    /// A node beats, and looks at the beats of others.
    fn beats(&mut self, n: usize, looks: bool) {
        let now = Boottime::from_nanos(self.store.now * 1_000_000_000);
        let node = &mut self.nodes[n];
        let clock = (now, Walltime::from_millis(self.store.now * 1000));
        let (covered, watched) = (node.slots.covered(), node.slots.watched());
        node.asked
            .extend(node.beats.beat(covered, Vec::new(), clock));
        if looks {
            node.asked.extend(node.beats.look(watched, now));
        }
    }

    /// One of these reaches the backend.
    fn beaten(&mut self, n: usize, is_answered: bool) {
        let fails = self.fails && self.dice.random_bool(0.1);
        self.slots(n);
        let node = &mut self.nodes[n];
        if let Some(dead) = node.dead.pop() {
            if let Some(gone) = self.store.evict(&dead) {
                self.judge_eviction(gone);
            }
            return;
        }
        if node.asked.is_empty() {
            return;
        }
        let at = self.dice.random_range(0..node.asked.len());
        let now = node.slots.now;
        match node.asked.remove(at) {
            beats::Effect::Find if is_answered => {
                let found = self.store.beats.get(&n);
                let found = found.map_or(0, |(_, beat)| beat.counter);
                node.beats.found((!fails).then_some(found));
                if !fails {
                    self.beats(n, false);
                }
            }
            beats::Effect::Put(beat) => {
                self.store.past.push((n, beat.clone()));
                self.store.beat(n, beat);
                if is_answered {
                    node.asked.extend(node.beats.answered(!fails));
                }
            }
            beats::Effect::Check(_) if is_answered => {
                let first = self.store.values.get(&n).map(|held| held.first);
                if let Some((sent, beat)) = node.beats.checked(!fails) {
                    let stands = |place: &Covered| Some(place.first) == first;
                    let effects = node.slots.beaten(&beat.slots, sent, stands);
                    self.doing(n, effects);
                }
            }
            beats::Effect::Look(nodes) if is_answered => {
                let found = self.store.found(&nodes);
                let found = (!fails).then_some(&found[..]);
                let dead = node.beats.looked(found, now);
                node.dead.extend(dead);
            }
            _ => {}
        }
    }

    /// Only those lose a place who are not sure of it: they are dead or away, or somebody has just put a copy over their beats.
    fn judge_eviction(&mut self, n: usize) {
        let since = self.store.copied.get(&n).map(|at| self.store.now - at);
        let (is_dead, now) = (self.nodes[n].is_dead, self.slots(n).now);
        let group = self.nodes[n].slots.group(&group());
        let is_sure = group.is_some_and(|group| group.is_sure(now));
        let is_copied = since.is_some_and(|since| since <= SILENT.secs());
        assert!(is_dead || !is_sure || is_copied, "n{n} was sure");
    }

    /// Somebody puts a copy of an old beat over a node's: not so often that none of its own is seen.
    fn copies(&mut self) {
        if self.store.past.is_empty() {
            return;
        }
        let at = self.dice.random_range(0..self.store.past.len());
        let (n, beat) = self.store.past[at].clone();
        let last = self.store.copied.get(&n).copied();
        if last.is_none_or(|last| self.store.now - last > 2 * SILENT.secs()) {
            self.store.copied.insert(n, self.store.now);
            self.store.beat(n, beat);
        }
    }

    /// The connection breaks; what is under way may be done, and is not answered.
    fn breaks(&mut self, n: usize) {
        for _ in 0..self.dice.random_range(0..3) {
            if !self.nodes[n].orders.is_empty() {
                self.ordered(n, false);
            }
            self.beaten(n, false);
        }
        self.unlinked(n);
        let effects = self.slots(n).lost("gone");
        self.doing(n, effects);
    }

    fn reached(&mut self, n: usize) {
        self.nodes[n].is_up = true;
        self.nodes[n].beat = self.store.now + BEAT;
        let effects = self.slots(n).reached();
        self.doing(n, effects);
        self.beats(n, true);
    }

    /// Something that was ordered is done.
    fn ordered(&mut self, n: usize, is_answered: bool) {
        let fails = self.fails && self.dice.random_bool(0.1);
        self.slots(n);
        let node = &mut self.nodes[n];
        let at = self.dice.random_range(0..node.orders.len());
        let order = node.orders.remove(at);
        let (store, slots) = (&mut self.store, &mut node.slots);
        let place = slots.group(&group()).and_then(|group| group.place);
        let is_of = |lease| place.is_some_and(|place| place.lease == lease);
        let effects = match order {
            Effect::Enter(name) => {
                let (first, lease) = store.enter(n);
                match is_answered {
                    true if fails => slots.failed(&name, "no answer".to_owned()),
                    true => slots.entered(&name, first, lease),
                    false => return,
                }
            }
            Effect::Sign(name) => {
                let Some(place) = place else {
                    return;
                };
                let slot = Slot {
                    group: name.clone(),
                    node: name_of(n),
                    first: place.first,
                    limit: self.limit,
                    since: 1,
                    why: String::new(),
                    beats: true,
                };
                match store.sign(n, slot, place.lease) {
                    _ if !is_answered => return,
                    _ if fails => slots.failed(&name, "no answer".to_owned()),
                    Some(revision) => slots.stands(&name, Some(revision)),
                    None => slots.gone(&name, false),
                }
            }
            Effect::Resume(name, lease) => match store.renew(lease) {
                _ if !is_answered || !is_of(lease) => return,
                _ if fails => slots.failed(&name, "no answer".to_owned()),
                true => slots.stands(&name, None),
                false => slots.gone(&name, false),
            },
            Effect::Leave(name, lease) => {
                if !fails {
                    store.revoke(lease);
                }
                match is_answered && is_of(lease) {
                    true if fails => slots.failed(&name, "no answer".to_owned()),
                    true => slots.left(&name, lease),
                    false => return,
                }
            }
            other => panic!("{other:?}"),
        };
        self.doing(n, effects);
    }

    /// The look of a node tells something of what it has not told: first those up to its place, then who goes.
    fn watched(&mut self, n: usize) {
        self.slots(n);
        let node = &mut self.nodes[n];
        let Some((round, at)) = node.look else {
            return;
        };
        let end = self.store.log.len();
        let to = at.map_or(end, |at| self.dice.random_range(at..=end));
        node.look = Some((round, Some(to)));
        let lines: Vec<(u64, usize)> = node.slots.lines().map(|one| (one.1, one.2)).collect();
        if round != node.slots.round || lines.is_empty() {
            return;
        }
        let Some(at) = at else {
            let (place, most) = lines[0];
            let values = self.store.values.iter();
            let mut listed: Vec<_> = values.filter(|(_, held)| held.revision <= place).collect();
            listed.sort_by_key(|(_, held)| held.revision);
            listed.truncate(most);
            let is_all = listed.len() < most;
            let stands = listed
                .iter()
                .any(|(one, held)| **one == n && held.revision == place);
            let others = listed.iter().filter(|(one, _)| **one != n);
            let line = others.filter_map(|(_, held)| held.standing()).collect();
            let effects = self.slots(n).saw(&group(), line, is_all, stands);
            return self.doing(n, effects);
        };
        for at in at..to {
            let (other, held) = &self.store.log[at];
            let (other, is_gone) = (*other, held.is_none());
            // What it has led to may be another look.
            if is_gone && self.nodes[n].slots.round == round {
                let slots = self.slots(n);
                let effects = slots.saw_go(&group(), &name_of(other), &name_of(n));
                self.doing(n, effects);
            }
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.store.pass(seconds);
        for n in 0..self.nodes.len() {
            if self.nodes[n].is_dead {
                continue;
            }
            let effects = self.slots(n).tick();
            self.doing(n, effects);
            let node = &mut self.nodes[n];
            if !node.is_up || node.beat > self.store.now {
                continue;
            }
            node.beat = self.store.now + BEAT;
            let effects = self.slots(n).beat();
            self.doing(n, effects);
            self.beats(n, true);
        }
    }

    /// Everything goes on for a while without harm: what is under way is done, what is told is heard.
    fn settles(&mut self) {
        for n in 0..self.nodes.len() {
            if !self.nodes[n].is_dead && self.nodes[n].away <= self.store.now {
                self.settle(n);
            }
        }
    }

    /// The same for one node.
    fn settle(&mut self, n: usize) {
        if !self.nodes[n].is_up {
            self.reached(n);
        }
        while !self.nodes[n].asked.is_empty() || !self.nodes[n].dead.is_empty() {
            self.beaten(n, true);
        }
        while !self.nodes[n].orders.is_empty() {
            self.ordered(n, true);
        }
        for _ in 0..4 {
            self.watched(n);
        }
    }

    /// One thing that may happen.
    fn step(&mut self) {
        let n = self.dice.random_range(0..self.nodes.len());
        let node = &self.nodes[n];
        if node.is_dead {
            return match self.dice.random_range(0..400) {
                0 => self.start(n),
                // Nobody is there to see it.
                1..20 => self.nodes[n].runs = None,
                _ => {}
            };
        }
        match self.dice.random_range(0..100) {
            0..20 if !node.asked.is_empty() || !node.dead.is_empty() => self.beaten(n, true),
            96 => self.copies(),
            97 if self.dice.random_bool(0.1) => self.dies(n),
            0..30 if !node.orders.is_empty() => self.ordered(n, true),
            0..55 => self.watched(n),
            55..75 if node.runs.is_none() => self.wants(n),
            55..65 if node.runs == Some(true) => self.ends(n),
            65..67 => self.ends(n),
            75..80 => self.start(n),
            80..83 if node.is_up => {
                self.breaks(n);
                if self.dice.random_bool(0.1) {
                    self.keep_its_lease(n);
                    self.nodes[n].away = self.store.now + 2 * SILENT.secs();
                }
            }
            80..95 if !node.is_up && node.away <= self.store.now => self.reached(n),
            98 if node.runs == Some(true) => self.wants(n),
            95.. => {
                let seconds = self.dice.random_range(1..30);
                self.pass(seconds);
            }
            _ => {}
        }
    }

    /// Nothing breaks any more, and no run comes: in the end nobody stands there.
    fn ends_well(&mut self) {
        self.fails = false;
        self.nodes.iter_mut().for_each(|node| node.away = 0);
        let lives = |node: &&Stand| !node.is_dead;
        let waits = |world: &World| {
            let mut nodes = world.nodes.iter().filter(lives);
            nodes.any(|node| node.runs.is_some())
        };
        let dead = self.nodes.iter().filter(|node| node.is_dead).count() as u64;
        // What is left of those that were killed goes with its lease, or is removed once nobody has seen a beat for long enough.
        let mut rounds = (LEASE + BEAT) / 5 + 2 + self.nodes.len() as u64;
        rounds += dead * (SILENT.secs() + 3 * BEAT) / 5;
        let stands = |world: &World| {
            let mut held = world.store.values.values();
            held.any(|held| !world.store.haunted.contains(&held.lease))
        };
        while waits(self) || stands(self) {
            rounds -= 1;
            assert!(rounds > 0, "a slot is lost");
            self.settles();
            for n in 0..self.nodes.len() {
                if self.nodes[n].runs == Some(true) && !self.nodes[n].is_dead {
                    self.ends(n);
                }
            }
            self.pass(5);
        }
        self.pass(LEASE);
        let mut left = self.store.leases.keys();
        assert!(left.all(|lease| self.store.haunted.contains(lease)));
    }
}

/// Until a node stands in the backend, and has heard of it.
fn standing(count: usize, limit: u32) -> World {
    let mut world = World::new(1, count, limit);
    for n in 0..count {
        world.reached(n);
        world.wants(n);
    }
    (0..3).for_each(|_| world.settles());
    world
}

#[test]
fn a_hundred_nodes_share_five_slots() {
    let mut world = standing(100, 5);
    let runs = world.nodes.iter().filter(|node| node.runs == Some(true));
    assert_eq!(runs.count(), 5);
    world.ends_well();
    assert!(world.nodes.iter().all(|node| node.done == 1));
}

/// Services are killed, connections break, leases end, orders are done and not answered, watches lag: never more than the limit have
/// a slot, and none is lost.
#[test]
fn whatever_breaks_no_slot_is_given_twice_or_lost() {
    let mut evictions = 0;
    for seed in 0..30 {
        let (count, limit) = [(100, 5), (12, 3), (3, 1)][seed as usize % 3];
        let mut world = World::new(seed, count, limit);
        world.fails = true;
        for _ in 0..4000 {
            world.step();
            // It takes a while for a dead one to be removed.
            if world.dice.random_bool(0.001) {
                passes(&mut world, 200);
            }
        }
        world.ends_well();
        evictions += world.store.evictions;
    }
    assert!(evictions > 5, "too few: {evictions}");
}

/// Until this many seconds have passed, step by step.
fn passes(world: &mut World, seconds: u64) {
    for _ in 0..seconds / 5 {
        world.settles();
        world.pass(5);
    }
    world.settles();
}

#[test]
fn dead_holder_whose_lease_somebody_keeps_alive_loses_its_slot() {
    let mut world = standing(4, 1);
    // The next one in line is dead as well.
    world.dies(0);
    world.dies(1);
    passes(&mut world, SURE.secs());
    assert!(world.store.values.contains_key(&0), "it may still be sure");
    assert_eq!(world.nodes[2].runs, Some(false));
    passes(&mut world, SILENT.secs() + 2 * BEAT - SURE.secs());
    assert_eq!(world.nodes[2].runs, Some(true));
    assert!(!world.store.values.contains_key(&0) && !world.store.values.contains_key(&1));
    // Who lives and beats keeps its place.
    passes(&mut world, 4 * SILENT.secs());
    assert_eq!(
        (world.nodes[2].runs, world.nodes[3].runs),
        (Some(true), Some(false))
    );
    assert_eq!(world.store.evictions, 2);
    world.ends_well();
}

/// Another run of the node asks then.
#[test]
fn holder_that_was_cut_off_and_removed_has_no_turn_when_it_is_back() {
    for seed in 0..20 {
        let mut world = standing(3, 1);
        world.dice = StdRng::seed_from_u64(seed);
        world.keep_its_lease(0);
        world.breaks(0);
        world.nodes[0].away = 2 * SILENT.secs();
        passes(&mut world, 2 * SILENT.secs() - 5);
        let runs = |world: &World| world.nodes.iter().map(|node| node.runs).collect::<Vec<_>>();
        assert_eq!(runs(&world), [Some(true), Some(true), Some(false)]);
        world.reached(0);
        world.wants(0);
        // Each turn is judged.
        while !(world.nodes[0].asked.is_empty() && world.nodes[0].orders.is_empty()) {
            if world.dice.random_bool(0.5) {
                world.beaten(0, true);
            } else if !world.nodes[0].orders.is_empty() {
                world.ordered(0, true);
            }
        }
        assert!(!world.store.values.contains_key(&0));
        world.ends_well();
        assert_eq!(world.store.evictions, 1, "seed {seed}");
    }
}

#[test]
fn holder_without_answered_beats_has_no_turn_and_a_removed_one_is_not_sure() {
    let mut world = standing(2, 1);
    let sure = |world: &mut World, n: usize| {
        let now = world.slots(n).now;
        let group = world.nodes[n].slots.group(&group());
        group.is_some_and(|group| group.is_sure(now))
    };
    assert!(sure(&mut world, 0) && sure(&mut world, 1));
    // Its lease is kept alive, its beats are not answered.
    world.store.now += LEASE;
    for n in 0..2 {
        world.slots(n).beat();
        world.slots(n).stands(&group(), None);
        assert!(!sure(&mut world, n));
    }
    let effects = world.slots(1).saw(&group(), Vec::new(), true, true);
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Turn(_))),
        "{effects:?}"
    );
    // A beat for another place at the same key counts for nothing.
    let covered = |world: &World, more| {
        let place = world.nodes[1]
            .slots
            .group(&group())
            .and_then(|one| one.place);
        let first = place.expect("a place").first + more;
        [Covered {
            name: group(),
            first,
        }]
    };
    let (earlier, own) = (covered(&world, 1), covered(&world, 0));
    let now = world.slots(1).now;
    world.slots(1).beaten(&earlier, now, |_| true);
    assert!(!sure(&mut world, 1));
    let effects = world.slots(1).beaten(&own, now, |_| true);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Turn(_))),
        "{effects:?}"
    );
    assert!(sure(&mut world, 1));
    world.slots(1).saw_go(&group(), &name_of(1), &name_of(1));
    assert!(!sure(&mut world, 1));
}

#[test]
fn only_whose_turn_is_near_watches_those_before_it_that_beat() {
    let mut world = standing(20, 1);
    let watched: Vec<usize> = (0..20).map(|n| world.slots(n).watched().len()).collect();
    // Of a line that is longer than what is seen of it, nobody is watched.
    let expected = (0..20).map(|n| if n < MOST_BEFORE { n } else { 0 });
    assert_eq!(watched, expected.collect::<Vec<_>>());
    let one = &world.slots(2).watched()[1];
    let held = &world.store.values[&1];
    let expected = Watched {
        key: Key::Slot {
            group: group(),
            node: name_of(1),
        },
        node: name_of(1),
        first: held.first,
        revision: held.revision,
    };
    assert_eq!(*one, expected);
    // One of a version that does not beat is left to its lease.
    let line = world.nodes[2].slots.groups.0[0].1.line.as_mut();
    line.expect("a line")[1].slot.beats = false;
    assert_eq!(world.slots(2).watched().len(), 1);
}

/// Old etcds lose some of what they should tell.
#[test]
fn whose_turn_is_near_looks_at_each_beat() {
    let mut world = standing(8, 2);
    let looks: Vec<bool> = (0..8)
        .map(|n| world.slots(n).beat().contains(&Effect::Look))
        .collect();
    let with_turn = |n: &usize| world.nodes[*n].runs == Some(true);
    assert_eq!((0..8).filter(with_turn).count(), 2);
    assert!((0..8).filter(with_turn).all(|n| !looks[n]));
    assert_eq!(looks.iter().filter(|looks| **looks).count(), 2);
}

#[test]
fn a_service_that_is_killed_again_and_again_keeps_the_place_of_a_run_that_lives() {
    let mut world = standing(2, 1);
    let place = world.nodes[0].slots.group(&group()).expect("a group").place;
    for _ in 0..50 {
        world.start(0);
        world.reached(0);
        let lease = place.expect("a place").lease;
        assert_eq!(world.nodes[0].orders, [Effect::Resume(group(), lease)]);
        world.settles();
        world.pass(5);
        assert_eq!(
            world.nodes[0].slots.group(&group()).expect("a group").place,
            place
        );
    }
    assert_eq!(world.nodes[1].runs, Some(false));
    // It has ended while there was no service; another one that has come since does not get its place.
    world.nodes[0].runs = None;
    world.start(0);
    world.reached(0);
    world.breaks(0);
    world.wants(0);
    world.reached(0);
    let lease = place.expect("a place").lease;
    assert_eq!(world.nodes[0].orders, [Effect::Leave(group(), lease)]);
    (0..3).for_each(|_| world.settles());
    assert_eq!(world.nodes[0].runs, Some(false));
    assert_eq!(world.nodes[1].runs, Some(true));
}

#[test]
fn runs_of_one_node_share_a_place_and_the_last_frees_it() {
    let mut world = standing(2, 1);
    let node = &mut world.nodes[0];
    let effects = node
        .slots
        .want(asker(50), &group(), 1, run(7))
        .expect("wanted");
    assert_eq!(effects, [Effect::Save, Effect::Turn(asker(50))]);
    assert_eq!(node.slots.ended(&group(), &run(1).who), [Effect::Save]);
    let last = node.slots.ended(&group(), &run(7).who);
    assert!(
        matches!(last[..], [Effect::Leave(..), Effect::Save]),
        "{last:?}"
    );
}

/// A second run of the node goes to the end of the line.
#[test]
fn a_run_that_has_begun_goes_on_without_its_place() {
    let mut world = standing(1, 1);
    let slots = &mut world.nodes[0].slots;
    assert!(matches!(&slots.lost("gone")[..], [Effect::Say(why)] if why.contains("one more")));
    // What this node remembers is nothing to begin by.
    let effects = slots.want(asker(50), &group(), 1, run(7)).expect("wanted");
    assert!(
        matches!(
            effects[..],
            [
                Effect::Save,
                Effect::Tell(Waiter::Client(Client::Connection(50)), _)
            ]
        ),
        "{effects:?}"
    );
    let effects = slots.reached();
    assert!(matches!(effects[..], [Effect::Resume(..)]), "{effects:?}");
    let effects = slots.gone(&group(), false);
    let [
        Effect::Leave(..),
        Effect::Say(why),
        Effect::Enter(_),
        Effect::Save,
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert!(why.contains("the run here goes on"), "{why}");
    slots.leave(Client::Connection(50));
    assert!(slots.ended(&group(), &run(7).who).contains(&Effect::Save));
    // Without one, nothing is left to be freed.
    let mut world = standing(1, 1);
    let slots = &mut world.nodes[0].slots;
    slots.gone(&group(), false);
    assert!(slots.groups.0.is_empty());
    assert_eq!(slots.ended(&group(), &run(1).who), []);
}

/// It is said when that is so, once, and what comes then has no part in it.
#[test]
fn a_slot_ends_with_its_lease_whether_the_backend_is_there_or_not() {
    let mut world = standing(2, 1);
    assert_eq!(world.nodes[0].slots.own(true), [""; 0]);
    world.breaks(0);
    let ends = world.nodes[0].slots.wakes().expect("an end");
    assert_eq!(ends.nanos(), LEASE * 1_000_000_000);
    world.store.now = LEASE - 1;
    assert_eq!(world.slots(0).tick(), []);
    world.store.now = LEASE;
    let said = ended(&group());
    assert_eq!(world.slots(0).tick(), [Effect::Say(said.clone())]);
    assert_eq!(
        (world.slots(0).tick(), world.slots(0).wakes()),
        (Vec::new(), None)
    );
    let own = [world.slots(0).own(true), world.slots(0).own(false)];
    assert_eq!(own, [[said.as_str()], [said.as_str()]]);
    let waits = ["process 1 waits in group 'g'"];
    assert_eq!(world.slots(1).own(false), waits);
    // It was told already.
    assert!(matches!(world.slots(0).reached()[..], [Effect::Resume(..)]));
    let effects = world.slots(0).gone(&group(), false);
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Say(_))),
        "{effects:?}"
    );
}

/// A machine that was suspended hears at once of all that has happened meanwhile, and last that its own lease has ended.
#[test]
fn no_turn_comes_by_a_lease_that_may_have_ended() {
    let mut world = standing(2, 1);
    world.store.now = LEASE - 1;
    let go = |world: &mut World| {
        let slots = world.slots(1);
        slots.saw_go(&group(), &name_of(0), &name_of(1))
    };
    let mut late = World {
        nodes: std::mem::take(&mut world.nodes),
        ..world
    };
    late.store.now = LEASE;
    let effects = go(&mut late);
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Turn(_))),
        "{effects:?}"
    );
    // Once it was kept alive, counted from when that was asked for, and a beat was answered.
    let is_resume = |effect: &Effect| matches!(effect, Effect::Resume(..));
    assert!(late.slots(1).beat().iter().any(is_resume));
    assert!(!late.slots(1).beat().iter().any(is_resume), "one at a time");
    let asked = late.slots(1).now;
    late.store.now += LEASE - 1;
    assert_eq!(late.slots(1).stands(&group(), None), []);
    let covered = late.slots(1).covered();
    let effects = late.slots(1).beaten(&covered, asked, |_| true);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Turn(_))),
        "{effects:?}"
    );
}

/// Nobody is sent more of a long line than it needs to know.
#[test]
fn a_long_line_is_seen_in_parts() {
    let mut world = standing(30, 2);
    let known = |world: &World| {
        let group = world.nodes[29].slots.group(&group()).expect("a group");
        (group.line.as_ref().map(Vec::len), group.is_all)
    };
    assert_eq!(known(&world), (Some(2 + MOST_BEFORE), false));
    let told = world.nodes[29].slots.groups.0[0].1.waiters.0[0].1.clone();
    let before = "7 or more before it: n0, n1, n2, n3, n4, ...".to_owned();
    assert_eq!(told, Some(Waits::Others(2, before)));
    let mut looks = 0;
    for n in 0..29 {
        let round = world.nodes[29].slots.round;
        (0..3).for_each(|_| world.settles());
        assert_eq!(world.nodes[n].runs, Some(true), "n{n}");
        world.ends(n);
        (0..3).for_each(|_| world.settles());
        looks += world.nodes[29].slots.round - round;
    }
    assert!((3..=6).contains(&looks), "{looks} looks");
    assert_eq!(world.nodes[29].runs, Some(true));
}

/// What others have put there, and is not believed, takes up room in what is seen.
#[test]
fn where_too_few_of_those_seen_count_twice_as_many_are_looked_at_later() {
    let mut slots = Slots::default();
    slots.reached();
    slots.want(asker(1), &group(), 3, run(1)).expect("wanted");
    slots.entered(&group(), 20, 1);
    slots.stands(&group(), Some(21));
    let wanted = |slots: &Slots| slots.lines().map(|line| (line.2, line.3)).next();
    assert_eq!(wanted(&slots), Some((3 + MOST_BEFORE, false)));
    for n in 1..=7 {
        let effects = slots.saw(&group(), Vec::new(), false, false);
        assert!(effects.contains(&Effect::Look), "{effects:?}");
        assert!(!effects.contains(&Effect::Turn(asker(1))), "{effects:?}");
        // Not looked at again before that is answered.
        assert_eq!(slots.look(), []);
        let most = 3 + (MOST_BEFORE << n.min(DOUBLED));
        assert_eq!(wanted(&slots), Some((most, true)));
    }
    let effects = slots.saw(&group(), Vec::new(), true, true);
    assert_eq!(effects, [Effect::Save, Effect::Turn(asker(1))]);
}

/// Of two groups one fails for good; the place in the other lives.
#[test]
fn what_fails_in_one_group_delays_no_other() {
    let mut world = standing(1, 1);
    let other: Name = "other".parse().expect("a name");
    for _ in 0..10 {
        world.slots(0).failed(&other, "denied".to_owned());
    }
    let now = world.slots(0).now;
    world.slots(0).failed(&group(), "no answer".to_owned());
    world.slots(0).failed(&other, "denied".to_owned());
    let due = world.slots(0).wakes().expect("a time");
    assert!(due <= now + Span::from_secs(8), "{due:?}");
}

#[test]
fn what_fails_is_tried_again_less_and_less_often() {
    let mut slots = Slots::default();
    slots.reached();
    slots.want(asker(1), &group(), 3, run(1)).expect("wanted");
    let mut pauses = Vec::new();
    for _ in 0..7 {
        slots.failed(&group(), "denied".to_owned());
        let due = slots.due.expect("later");
        pauses.push(due.since(slots.now).nanos() / 1_000_000_000);
        slots.now = due;
        assert!(slots.tick().contains(&Effect::Enter(group())));
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 64]);
}

/// Those behind it name what they like.
#[test]
fn the_smallest_number_of_those_before_it_and_its_own_counts() {
    let mut slots = Slots::default();
    slots.reached();
    slots.want(asker(1), &group(), 3, run(1)).expect("wanted");
    slots.entered(&group(), 20, 1);
    slots.stands(&group(), Some(21));
    let standing = |n: u64, limit| {
        let slot = Slot {
            group: group(),
            node: name_of(1),
            first: n,
            limit,
            since: 1,
            why: String::new(),
            beats: true,
        };
        Standing::new(slot, n + 1, n, 2).expect("its own")
    };
    let mut told = |line: Vec<Standing>| slots.saw(&group(), line, true, true);
    let waits = |effects: &[Effect]| match effects {
        [Effect::Tell(Waiter::Client(_), Waits::Others(limit, before))] => (*limit, before.clone()),
        other => panic!("{other:?}"),
    };
    let line = vec![standing(1, 2), standing(3, 8)];
    let (limit, before) = waits(&told(line));
    assert!(limit == 2 && before.starts_with("2 before it"), "{before}");
    let line = vec![standing(1, 9), standing(3, 9), standing(5, 8)];
    let (limit, before) = waits(&told(line));
    assert!(limit == 3 && before.starts_with("3 before it"), "{before}");
    let effects = told(vec![standing(3, 9), standing(5, 8)]);
    assert!(
        matches!(effects[..], [Effect::Save, Effect::Turn(Waiter::Client(_))]),
        "{effects:?}"
    );
}

#[test]
fn whoever_waits_is_told_who_is_before_them_whenever_that_changes() {
    let mut world = standing(5, 1);
    let told = |world: &World| {
        let waiters = &world.nodes[4]
            .slots
            .group(&group())
            .expect("a group")
            .waiters;
        let told = waiters.0.first().and_then(|(_, told)| told.clone());
        told.expect("told")
    };
    let before = "4 before it: n0, n1, n2, n3".to_owned();
    assert_eq!(told(&world), Waits::Others(1, before));
    world.ends(0);
    world.settles();
    let before = "3 before it: n1, n2, n3".to_owned();
    assert_eq!(told(&world), Waits::Others(1, before));
    assert_eq!(world.slots(4).look(), [], "nothing is told twice");
    world.breaks(4);
    let why = "the backend is not there: gone".to_owned();
    assert_eq!(told(&world), Waits::Backend(why));
}

#[test]
fn what_is_kept_comes_back_and_any_text_is_taken() {
    let mut world = standing(3, 2);
    let effects = world.nodes[0].slots.want(asker(50), &group(), 1, run(7));
    assert!(effects.is_ok());
    let which = TriggerKey {
        sender: "web 1".parse().expect("a certname"),
        name: "x\" \\ ".repeat(20).parse().expect("a name"),
        number: u64::MAX,
        id: crate::wire::name::Id::from_bits(7),
    };
    let slots = &mut world.nodes[1].slots;
    let effects = slots.want(asker(51), &group(), 1, Run::of(which.clone(), 9));
    assert!(effects.is_ok());
    let triggers: Vec<_> = slots.triggers().collect();
    assert_eq!(triggers, [(&group(), &which)]);
    for node in &world.nodes {
        let text = node.slots.written();
        let (read, group) = (
            Slots::read(&text),
            node.slots.group(&group()).expect("a group"),
        );
        let again = read.group(&super::tests::group()).expect("a group");
        assert_eq!(
            (&again.runs, again.place, again.had_turn),
            (&group.runs, group.place, group.had_turn)
        );
        assert_eq!(read.written(), text);
        // Cut anywhere, or with a word that is none.
        for at in 0..text.len() {
            let _ = Slots::read(&text[..at]).written();
            let _ = Slots::read(&text.replacen(&text[at..=at], "x", 3)).written();
        }
    }
    let _ = Slots::read("run 7 1 1 1 x\ngroup\nrun\n\n\u{0}group 1 2 3 4 5 6 7 \n");
}
