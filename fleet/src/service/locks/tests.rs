//! Who takes a lock, keeps it and passes it on; and a few nodes that want it, whatever fails.

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use again_base::model::Walltime;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::backend::LEASE;
use crate::policy::beat::{Dead, Found, SILENT};
use crate::policy::lock::tests::lock;
use crate::policy::lock::{AHEAD, Known};
use crate::service::beats::{self, Beats};
use crate::wire::beat::{Beat, Covered};
use crate::wire::lock::{MOST_TOKEN, Published, Reset};

const NAMES: [&str; 4] = ["n0", "n1", "n2", "n3"];
/// A candidate in somebody else's hand.
const LIAR: &str = "liar";
/// Between two beats, in milliseconds.
const BEAT: u64 = 27_000;
const LEASE_MS: u64 = LEASE * 1000;

fn db() -> Name {
    "db".parse().expect("a name")
}

fn node(n: usize) -> Node {
    NAMES[n].parse().expect("a certname")
}

fn millis(millis: u64) -> Boottime {
    Boottime::from_nanos(millis * 1_000_000)
}

/// What stands there.
#[derive(Clone)]
struct There {
    lease: Lease,
    revision: u64,
    word: Option<Word>,
}

impl There {
    fn first(&self) -> u64 {
        self.word.as_ref().map_or(self.revision, |word| word.first)
    }

    fn seen(&self) -> Seen {
        match &self.word {
            Some(word) => Seen::Held(Box::new(word.clone())),
            None => Seen::Coming,
        }
    }
}

/// A backend with one lock.
#[derive(Default)]
struct Store {
    now: u64,
    revision: u64,
    leases: BTreeMap<Lease, u64>,
    /// Those that somebody keeps alive, whoever has died.
    haunted: BTreeSet<Lease>,
    /// The nodes' beats, with their revisions, and all that ever were there.
    beats: BTreeMap<Node, (u64, Beat)>,
    past: Vec<Beat>,
    /// When somebody has put a copy of an old beat over a node's, in milliseconds.
    copied: BTreeMap<Node, u64>,
    evictions: usize,
    there: Option<There>,
    told: Vec<(Node, Known)>,
    /// Serial of what was published last.
    serial: u64,
    log: Vec<(u64, Seen)>,
    /// The operator's resets, with the revision of each. The last one stands there.
    resets: Vec<(u64, Reset)>,
    /// All words that ever stood there since the last of them.
    words: Vec<Word>,
    /// Those from before.
    before: usize,
    last_lease: Lease,
}

impl Store {
    fn note(&mut self, seen: Seen) -> u64 {
        self.revision += 1;
        self.log.push((self.revision, seen));
        self.revision
    }

    fn take(&mut self) -> Option<(u64, Lease)> {
        if self.there.is_some() {
            return None;
        }
        self.last_lease += 1;
        let lease = self.last_lease;
        self.leases.insert(lease, self.now + LEASE_MS);
        let first = self.note(Seen::Coming);
        self.there = Some(There {
            lease,
            revision: first,
            word: None,
        });
        Some((first, lease))
    }

    fn sign(&mut self, lease: Lease, word: Word) -> Option<u64> {
        let there = self.there.clone()?;
        if there.revision != word.first || there.lease != lease {
            return None;
        }
        self.words.push(word.clone());
        let revision = self.note(Seen::Held(Box::new(word.clone())));
        self.there = Some(There {
            revision,
            word: Some(word),
            ..there
        });
        Some(revision)
    }

    fn tell(&mut self, node: &Node, known: Known) {
        self.serial += 1;
        self.told.retain(|(one, _)| one != node);
        let serial = self.serial;
        self.told.push((node.clone(), Known { serial, ..known }));
    }

    /// An operator's reset, unless something stands there.
    fn reset(&mut self, number: u64, token: u64) -> bool {
        if self.there.is_some() {
            return false;
        }
        self.revision += 1;
        let before = self.told.iter().map(|(node, known)| Published {
            node: node.clone(),
            token: known.token,
            reset: known.reset,
            serial: known.serial,
        });
        let before = before.collect();
        let reset = Reset {
            before,
            ..reset(number, token)
        };
        self.resets.push((self.revision, reset));
        self.before += std::mem::take(&mut self.words).len();
        true
    }

    fn revoke(&mut self, lease: Lease) {
        self.leases.remove(&lease);
        if self
            .there
            .as_ref()
            .is_some_and(|there| there.lease == lease)
        {
            self.there = None;
            self.note(Seen::Nobody);
        }
    }

    fn beat(&mut self, beat: Beat) {
        self.revision += 1;
        self.beats.insert(beat.node.clone(), (self.revision, beat));
    }

    /// Removes the word of a dead holder, unless it has changed, or its node has beaten. Whether that was so.
    fn evict(&mut self, dead: &Dead) -> bool {
        let there = self.there.as_ref().map_or(0, |there| there.revision);
        let beat = self.beats.get(&dead.place.node);
        let is_dead =
            there == dead.place.revision && beat.map_or(0, |(revision, _)| *revision) == dead.beat;
        if is_dead {
            self.there = None;
            self.note(Seen::Nobody);
            self.evictions += 1;
        }
        is_dead
    }

    fn pass(&mut self, millis: u64) {
        self.now += millis;
        for lease in &self.haunted {
            if let Some(ends) = self.leases.get_mut(lease) {
                *ends = self.now + LEASE_MS;
            }
        }
        let over = self.leases.iter().filter(|(_, ends)| **ends <= self.now);
        let over: Vec<Lease> = over.map(|(lease, _)| *lease).collect();
        over.into_iter().for_each(|lease| self.revoke(lease));
    }
}

fn reset(number: u64, token: u64) -> Reset {
    Reset {
        lock: db(),
        node: "operator".parse().expect("a certname"),
        token,
        number,
        before: Vec::new(),
    }
}

/// What a node publishes, but for its serial.
fn known(token: u64, reset: u64) -> Known {
    let serial = 0;
    Known {
        token,
        reset,
        serial,
    }
}

/// A reset, as it stands there for a node that takes resets or does not.
fn standing(reset: Reset, revision: u64, refuses: bool) -> Standing {
    let why = "operators does not list operator".to_owned();
    Standing {
        reset,
        revision,
        judged: if refuses { Err(why) } else { Ok(()) },
    }
}

/// What an answer of the backend's comes to.
type Heard = Box<dyn FnOnce(&mut Locks) -> Vec<Effect>>;

/// What a candidate says of it.
#[derive(Debug)]
struct View {
    holder: Option<Node>,
    token: Option<u64>,
    is_mine: bool,
    why: String,
}

/// A candidate.
struct Stand {
    locks: Locks,
    beats: Beats,
    /// What is to be asked or written for beats, and words that are to be removed.
    asked: Vec<beats::Effect>,
    dead: Vec<Dead>,
    /// What is on its disk.
    kept: String,
    is_up: bool,
    is_linked: bool,
    orders: Vec<Effect>,
    /// What it has to tell, and how far it has heard.
    tells: bool,
    /// Whether its watch has not begun.
    lists: bool,
    heard: usize,
    /// How many resets it has heard of.
    resets: usize,
    /// What it has logged.
    log: Vec<String>,
    beat: u64,
    /// Whether it knows no operator.
    refuses: bool,
    /// How often it looked.
    looks: usize,
    /// Whether its disk keeps nothing.
    is_full: bool,
    runs: usize,
}

impl Stand {
    fn unlinked(&mut self) {
        self.orders.clear();
        self.asked.clear();
        self.dead.clear();
        self.beats.lost();
    }
}

struct World {
    store: Store,
    nodes: Vec<Stand>,
    dice: StdRng,
    lock: Lock,
    /// Whether a node has refused a reset that others may have taken.
    refuses: bool,
}

impl World {
    fn new(seed: u64, count: usize, prefer: &[&str]) -> World {
        World::of(seed, count, lock(&NAMES[..count], prefer))
    }

    /// One of whose candidates a liar is.
    fn with_liar(seed: u64, count: usize, prefer: &[&str]) -> World {
        let names = [&NAMES[..count], &[LIAR]].concat();
        World::of(seed, count, lock(&names, prefer))
    }

    fn of(seed: u64, count: usize, lock: Lock) -> World {
        let mut world = World {
            store: Store::default(),
            nodes: Vec::new(),
            dice: StdRng::seed_from_u64(seed),
            lock,
            refuses: false,
        };
        for n in 0..count {
            world.nodes.push(Stand {
                locks: Locks::read(node(n), ""),
                beats: Beats::new(node(n)),
                asked: Vec::new(),
                dead: Vec::new(),
                kept: String::new(),
                is_up: false,
                is_linked: false,
                orders: Vec::new(),
                tells: false,
                lists: false,
                heard: 0,
                resets: 0,
                log: Vec::new(),
                beat: 0,
                refuses: false,
                looks: 0,
                is_full: false,
                runs: 0,
            });
            world.start(n);
            world.link(n);
        }
        world
    }

    /// A node's locks, as of now.
    fn locks(&mut self, n: usize) -> &mut Locks {
        let jitter = Span::from_nanos(self.dice.random_range(0..500_000_000));
        let locks = &mut self.nodes[n].locks;
        (locks.now, locks.jitter) = (millis(self.store.now), jitter);
        locks
    }

    fn start(&mut self, n: usize) {
        let one = &mut self.nodes[n];
        one.locks = Locks::read(node(n), &one.kept);
        one.beats = Beats::new(node(n));
        (one.is_up, one.is_linked, one.tells) = (true, false, false);
        one.unlinked();
        let locks = [self.lock.clone()];
        let effects = self.locks(n).set(&locks);
        self.doing(n, effects);
    }

    fn kill(&mut self, n: usize) {
        let one = &mut self.nodes[n];
        (one.is_up, one.is_linked) = (false, false);
        one.unlinked();
    }

    /// Somebody keeps a node's lease alive, which is killed or cut off after that.
    fn keep_its_lease(&mut self, n: usize) {
        let place = self.nodes[n].locks.place(&db());
        self.store.haunted.extend(place.map(|place| place.lease));
    }

    /// A node beats, and looks at the beats of others.
    fn beats(&mut self, n: usize, looks: bool) {
        let (now, clock) = (
            millis(self.store.now),
            Walltime::from_millis(self.store.now),
        );
        let one = &mut self.nodes[n];
        let (covered, watched) = (one.locks.covered(), one.locks.watched());
        one.asked
            .extend(one.beats.beat(Vec::new(), covered, (now, clock)));
        if looks {
            one.asked.extend(one.beats.look(watched, now));
        }
    }

    /// One of these reaches the backend, and is answered.
    fn beaten(&mut self, n: usize) {
        let now = millis(self.store.now);
        if let Some(dead) = self.nodes[n].dead.pop() {
            self.evict(&dead);
            return;
        }
        if self.nodes[n].asked.is_empty() {
            return;
        }
        let at = self.dice.random_range(0..self.nodes[n].asked.len());
        match self.nodes[n].asked.remove(at) {
            beats::Effect::Find => {
                let found = self.store.beats.get(&node(n));
                let found = found.map_or(0, |(_, beat)| beat.counter);
                self.nodes[n].beats.found(Some(found));
                self.beats(n, false);
            }
            beats::Effect::Put(beat) => {
                self.store.past.push(beat.clone());
                self.store.beat(beat);
                let one = &mut self.nodes[n];
                one.asked.extend(one.beats.answered(true));
            }
            beats::Effect::Check(_) => {
                let first = self.store.there.as_ref().map(There::first);
                if let Some((sent, beat)) = self.nodes[n].beats.checked(true) {
                    let stands = |lock: &Covered| Some(lock.first) == first;
                    let effects = self.locks(n).beaten(&beat.locks, sent, stands);
                    self.doing(n, effects);
                }
            }
            beats::Effect::Look(nodes) => {
                let found = nodes.into_iter().filter_map(|node| {
                    let (revision, beat) = self.store.beats.get(&node)?.clone();
                    let beat = Some(beat);
                    Some(Found {
                        node,
                        revision,
                        beat,
                        is_unclear: false,
                    })
                });
                let found: Vec<Found> = found.collect();
                let dead = self.nodes[n].beats.looked(Some(&found), now);
                self.nodes[n].dead.extend(dead);
            }
        }
    }

    /// Nobody is removed who is certain, unless somebody has just put a copy over its beats.
    fn evict(&mut self, dead: &Dead) {
        let holders = self.holders();
        let is_certain = holders.iter().any(|n| node(*n) == dead.place.node);
        let copied = self.store.copied.get(&dead.place.node);
        let is_copied = copied.is_some_and(|at| self.store.now - at <= 1000 * SILENT.secs());
        if self.store.evict(dead) {
            assert!(!is_certain || is_copied, "{dead:?}");
        }
    }

    /// Somebody puts a copy of an old beat over a node's: not so often that none of its own is seen.
    fn copies(&mut self) {
        if self.store.past.is_empty() {
            return;
        }
        let at = self.dice.random_range(0..self.store.past.len());
        let (beat, now) = (self.store.past[at].clone(), self.store.now);
        let last = self.store.copied.get(&beat.node);
        if last.is_none_or(|last| now - last > 2000 * SILENT.secs()) {
            self.store.copied.insert(beat.node.clone(), now);
            self.store.beat(beat);
        }
    }

    fn link(&mut self, n: usize) {
        if !self.nodes[n].is_up || self.nodes[n].is_linked {
            return;
        }
        let effects = self.locks(n).reached();
        let one = &mut self.nodes[n];
        (one.is_linked, one.tells, one.beat) = (true, true, self.store.now + BEAT);
        one.resets = self.store.resets.len();
        self.doing(n, effects);
        self.nodes[n].lists = true;
        self.beats(n, true);
        self.resets(n);
    }

    /// The reset that stands there, as a node sees it.
    fn standing(&mut self, n: usize) -> Option<Standing> {
        let (revision, reset) = self.store.resets.last().cloned()?;
        let refuses = self.nodes[n].refuses;
        self.refuses |= refuses;
        Some(standing(reset, revision, refuses))
    }

    /// A node hears of the reset that stands there.
    fn resets(&mut self, n: usize) {
        if let Some(standing) = self.standing(n) {
            let effects = self.locks(n).reset_written(standing);
            self.doing(n, effects);
        }
    }

    /// A copy of an earlier reset stands there while one node looks.
    fn show(&mut self, n: usize, at: usize) {
        self.store.revision += 1;
        let (revision, reset) = (self.store.revision, self.store.resets[at].1.clone());
        let copy = standing(reset, revision, self.nodes[n].refuses);
        let effects = self.locks(n).resets_listed(&db(), vec![copy]);
        self.doing(n, effects);
    }

    /// Somebody puts a copy of an earlier reset over the one that stands there.
    fn put_back(&mut self, at: usize) {
        self.store.revision += 1;
        let (_, reset) = self.store.resets[at].clone();
        self.store.resets.push((self.store.revision, reset));
    }

    /// A node looks, and this reset stands there.
    fn reset(&mut self, n: usize, reset: Reset, revision: u64) -> Vec<Effect> {
        let standing = standing(reset, revision, false);
        self.locks(n).resets_listed(&db(), vec![standing])
    }

    fn lose_state(&mut self, n: usize) {
        self.kill(n);
        self.nodes[n].kept.clear();
        self.start(n);
        self.link(n);
    }

    /// The liar publishes this, or takes the lock with it for as long as its lease lives.
    fn lie(&mut self, known: Known, takes: bool) {
        let liar: Node = LIAR.parse().expect("a certname");
        self.store.tell(&liar, known);
        if takes && let Some((first, lease)) = self.store.take() {
            let word = Word {
                lock: db(),
                node: liar,
                first,
                token: known.token.max(1),
                since: self.store.now,
                candidates: self.lock.candidates.clone(),
                to: None,
                beats: false,
            };
            self.store.sign(lease, word);
            // It is none of those whose tokens are looked at.
            self.store.words.pop();
        }
    }

    fn cut(&mut self, n: usize) {
        if self.nodes[n].is_linked {
            self.nodes[n].is_linked = false;
            self.nodes[n].unlinked();
            self.locks(n).lost("cut");
        }
    }

    /// As the driver does it.
    fn doing(&mut self, n: usize, mut effects: Vec<Effect>) {
        if effects.contains(&Effect::Save) {
            if self.nodes[n].is_full {
                effects.retain(|effect| !matches!(effect, Effect::Sign(_)));
                effects.extend(self.locks(n).not_kept());
            } else {
                self.nodes[n].kept = self.nodes[n].locks.written();
                effects.extend(self.nodes[n].locks.kept());
            }
        }
        for effect in effects {
            match effect {
                Effect::Save => {}
                Effect::Say(text) | Effect::Note(text) => self.nodes[n].log.push(text),
                Effect::Retell => self.nodes[n].tells = true,
                Effect::Fire(name) => {
                    self.nodes[n].runs += 1;
                    let effects = self.locks(n).fired(&name);
                    self.doing(n, effects);
                }
                order if self.nodes[n].is_linked => self.nodes[n].orders.push(order),
                _ => {}
            }
        }
    }

    /// One of a node's orders reaches the backend. Its answer may be lost, with the connection.
    fn carry(&mut self, n: usize, loses: bool) {
        let one = &mut self.nodes[n];
        if !one.is_linked {
            return;
        }
        // In any order.
        if one.tells && self.dice.random_bool(0.5) {
            let reset = one.locks.resets().get("db").copied();
            let known = known(one.locks.token(&db()), reset.unwrap_or(0));
            one.tells = false;
            self.store.tell(&node(n), known);
            return;
        }
        if one.orders.is_empty() {
            return;
        }
        let at = self.dice.random_range(0..one.orders.len());
        let order = self.nodes[n].orders.remove(at);
        let answer: Heard = match order {
            Effect::Enter(name) => {
                let place = self.store.take();
                Box::new(move |locks| locks.entered(&name, place))
            }
            Effect::Look(name) => {
                let there = self.store.there.clone();
                let told = self.store.told.clone();
                let seen = there.as_ref().map_or(Seen::Nobody, There::seen);
                let standing = self.standing(n);
                self.nodes[n].looks += 1;
                Box::new(move |locks| {
                    let mut effects = locks.resets_listed(&name, Vec::from_iter(standing));
                    let revision = there.map(|there| there.revision);
                    effects.extend(locks.weigh(&name, &told));
                    effects.extend(locks.saw(&name, seen, revision, true));
                    effects.extend(locks.told(&name, &told));
                    effects
                })
            }
            Effect::Sign(name) => {
                let locks = &self.nodes[n].locks;
                let Some(place) = locks.place(&name) else {
                    return;
                };
                let word = Word {
                    lock: name.clone(),
                    node: node(n),
                    first: place.first,
                    token: locks.token(&name),
                    since: self.store.now,
                    candidates: self.lock.candidates.clone(),
                    to: None,
                    beats: true,
                };
                // Whoever comes after it can know of its token.
                let told = self.store.told.iter().find(|(one, _)| *one == node(n));
                let told = told.map(|(_, known)| known.token);
                assert!(told >= Some(word.token), "{told:?}");
                let signed = self.store.sign(place.lease, word);
                // It may see its own word before it is told that it stands there.
                if self.dice.random_bool(0.5) {
                    (0..20).for_each(|_| self.hear(n));
                }
                Box::new(move |locks| match signed {
                    Some(revision) => locks.signed(&name, revision),
                    None => locks.gone(&name),
                })
            }
            Effect::Resume(name, lease) => {
                let now = self.store.now;
                let ends = self.store.leases.get_mut(&lease);
                let is_there = ends.map(|ends| *ends = now + LEASE_MS).is_some();
                let stands = self.store.there.is_some();
                Box::new(move |locks| match (is_there, stands) {
                    (true, _) => {
                        locks.renewed(&name);
                        Vec::new()
                    }
                    (false, true) => locks.failed(&name),
                    (false, false) => locks.gone(&name),
                })
            }
            Effect::Leave(_, lease) => {
                self.store.revoke(lease);
                return;
            }
            Effect::Clear(name, revision) => {
                let there = self.store.there.clone();
                if let Some(there) = there.filter(|there| there.revision == revision) {
                    assert_eq!(there.word, None, "a word is not cleared");
                    self.store.there = None;
                    self.store.note(Seen::Nobody);
                    return;
                }
                Box::new(move |locks| locks.not_cleared(&name, revision))
            }
            _ => return,
        };
        if loses {
            return self.cut(n);
        }
        let effects = answer(self.locks(n));
        self.doing(n, effects);
    }

    fn hear(&mut self, n: usize) {
        // What is below `move/` comes on a way of its own.
        if self.nodes[n].is_linked
            && self.nodes[n].resets < self.store.resets.len()
            && self.dice.random_bool(0.5)
        {
            self.nodes[n].resets = self.store.resets.len();
            self.resets(n);
        }
        let one = &mut self.nodes[n];
        if one.is_linked && one.lists {
            // It is some time before the watch begins.
            if self.dice.random_bool(0.2) {
                (one.lists, one.heard) = (false, self.store.log.len());
                if let Some(there) = self.store.there.clone() {
                    let locks = self.locks(n);
                    let effects = locks.saw(&db(), there.seen(), Some(there.revision), false);
                    self.doing(n, effects);
                }
            }
        } else if one.is_linked
            && let Some((revision, seen)) = self.store.log.get(one.heard).cloned()
        {
            one.heard += 1;
            let effects = self.locks(n).saw(&db(), seen, Some(revision), false);
            self.doing(n, effects);
        }
    }

    /// A little later.
    fn go_on(&mut self, losses: f64) {
        let step = self.dice.random_range(1..120);
        self.store.pass(step);
        for n in 0..self.nodes.len() {
            if !self.nodes[n].is_up {
                continue;
            }
            let mut effects = self.locks(n).tick();
            if self.nodes[n].is_linked && self.nodes[n].beat <= self.store.now {
                self.nodes[n].beat = self.store.now + BEAT;
                effects.extend(self.locks(n).beat());
                self.beats(n, true);
            }
            self.doing(n, effects);
            for _ in 0..self.dice.random_range(0..4) {
                let loses = self.dice.random_bool(losses);
                self.carry(n, loses);
                self.hear(n);
                if self.nodes[n].is_linked {
                    self.beaten(n);
                }
            }
        }
    }

    fn for_millis(&mut self, millis: u64) {
        let until = self.store.now + millis;
        while self.store.now < until {
            self.go_on(0.0);
            self.judge(0);
        }
    }

    /// One is away for this long, and back for a while.
    fn away(&mut self, n: usize, millis: u64, emptied: u64) {
        let back = self.store.now + millis;
        let mut until = back;
        while self.store.now < until {
            self.go_on(0.0);
            self.judge(emptied);
            if self.store.now >= back && until == back {
                self.link(n);
                self.judge(emptied);
                until = self.store.now + 5_000;
            }
        }
    }

    fn held(&mut self, n: usize) -> View {
        let held = self.locks(n).held().pop();
        let (word, why) = held.map_or((None, String::new()), |(word, why)| {
            (Some(word).filter(|_| why.is_empty()), why)
        });
        View {
            is_mine: word.as_ref().is_some_and(|word| word.node == node(n)),
            token: word.as_ref().map(|word| word.token),
            holder: word.map(|word| word.node),
            why,
        }
    }

    /// Those that are certain that they hold it.
    fn holders(&mut self) -> Vec<usize> {
        let all = 0..self.nodes.len();
        all.filter(|n| {
            let is_up = self.nodes[*n].is_up;
            is_up && self.held(*n).is_mine
        })
        .collect()
    }

    fn one(&mut self) -> usize {
        let holders = self.holders();
        assert_eq!(holders.len(), 1, "{holders:?}");
        holders[0]
    }

    /// Never two that are certain, but for as long as a lease after the backend has lost everything; and tokens grow.
    fn judge(&mut self, emptied: u64) {
        if emptied == 0 || self.store.now > emptied + LEASE_MS {
            let holders = self.holders();
            assert!(holders.len() <= 1, "{holders:?}");
        }
        let tokens = self.store.words.windows(2);
        for pair in tokens.map(|two| [two[0].token, two[1].token]) {
            assert!(pair[0] < pair[1], "{:?}", self.store.words);
        }
        if !self.refuses {
            let reset = self.store.resets.last().map(|(_, reset)| reset.token);
            let mut tokens = self.store.words.iter().map(|word| Some(word.token));
            assert!(tokens.all(|token| token > reset));
        }
    }

    /// All candidates begin with this token, and are stopped once they have published it and nobody holds the lock.
    fn stop_with(&mut self, token: u64) {
        for n in 0..self.nodes.len() {
            self.kill(n);
            self.nodes[n].kept = format!("{token} 0 0 0 0 db\n");
            self.start(n);
            self.link(n);
        }
        self.for_millis(8_000);
        (0..self.nodes.len()).for_each(|n| self.kill(n));
        self.for_millis(LEASE_MS + 1_000);
    }

    fn back(&mut self, n: usize) {
        self.start(n);
        self.link(n);
        self.for_millis(20_000);
    }

    /// A node publishes the same again, with a new serial.
    fn signs_anew(&mut self, n: usize) {
        let told = self.store.told.iter().find(|(one, _)| *one == node(n));
        let (_, known) = *told.expect("what it has published");
        self.store.tell(&node(n), known);
    }

    fn last(&self) -> u64 {
        self.store.words.last().expect("a word").token
    }

    fn logged(&self, n: usize, text: &str) -> usize {
        let log = self.nodes[n].log.iter();
        log.filter(|line| line.contains(text)).count()
    }

    /// Nothing of what it held is there any more, and everybody has to connect anew.
    fn empty(&mut self) {
        (0..self.nodes.len()).for_each(|n| self.cut(n));
        let was = std::mem::take(&mut self.store);
        self.store = Store {
            now: was.now,
            words: was.words,
            before: was.before,
            evictions: was.evictions,
            last_lease: was.last_lease,
            serial: was.serial,
            ..Store::default()
        };
        (0..self.nodes.len()).for_each(|n| self.link(n));
    }

    /// All is well again: somebody holds it, all know who, and it has had them run.
    fn ends_well(&mut self) {
        for n in 0..self.nodes.len() {
            self.nodes[n].is_full = false;
            if !self.nodes[n].is_up {
                self.start(n);
            }
            self.link(n);
        }
        // A word without its node, whose lease somebody keeps alive, goes only when the others have seen no beat for long enough.
        let there = self.store.there.as_ref();
        let is_kept = there.is_some_and(|there| self.store.haunted.contains(&there.lease));
        let removal = 1000 * SILENT.secs() + 3 * BEAT + 10_000;
        self.for_millis(if is_kept { removal } else { 90_000 });
        let holder = self.one();
        let token = self.store.words.last().expect("a word").token;
        for n in 0..self.nodes.len() {
            let held = self.held(n);
            assert_eq!(
                (held.holder, held.token),
                (Some(node(holder)), Some(token)),
                "n{n}"
            );
        }
        let fired = self.nodes[holder].locks.all.get(&db()).map(|one| one.fired);
        assert_eq!(fired, Some(token));
    }
}

#[test]
fn one_takes_it_and_the_one_that_is_preferred_takes_it_first() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, &["n1"]);
        world.for_millis(8_000);
        assert_eq!(world.one(), 1);
        assert_eq!(world.store.words.len(), 1);
        assert_eq!(world.nodes[1].runs, 1);
        // It is kept, for longer than a lease.
        world.for_millis(3 * LEASE_MS);
        assert_eq!((world.one(), world.store.words.len()), (1, 1));
        // Another one is not preferred to it when it comes back.
        world.kill(1);
        world.for_millis(LEASE_MS + 10_000);
        let other = world.one();
        world.start(1);
        world.link(1);
        world.for_millis(LEASE_MS);
        assert_eq!((world.one(), world.store.words.len()), (other, 2));
        world.ends_well();
    }
}

#[test]
fn a_service_that_begins_anew_goes_on_holding_it() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, &[]);
        world.for_millis(5_000);
        let holder = world.one();
        for _ in 0..5 {
            world.kill(holder);
            let away = world.dice.random_range(0..LEASE_MS - BEAT - 2_000);
            world.for_millis(away);
            assert!(world.holders().is_empty());
            world.start(holder);
            assert!(
                world.holders().is_empty(),
                "it is not certain before the backend has said so"
            );
            world.link(holder);
            world.for_millis(3_000);
            assert_eq!(world.one(), holder);
        }
        assert_eq!(world.store.words.len(), 1, "no failover");
        assert_eq!(world.nodes[holder].runs, 1);
    }
}

#[test]
fn dead_holder_whose_lease_somebody_keeps_alive_loses_the_lock() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, &[]);
        world.for_millis(8_000);
        let holder = world.one();
        world.keep_its_lease(holder);
        world.kill(holder);
        world.for_millis(1000 * SILENT.secs() - BEAT - 1_000);
        assert!(world.holders().is_empty(), "it may still be certain");
        world.for_millis(3 * BEAT + 10_000);
        let other = world.one();
        assert_eq!((world.store.evictions, world.store.words.len()), (1, 2));
        // Who lives and beats keeps it, also if somebody overwrites a beat now and then.
        for _ in 0..10 {
            world.copies();
            world.for_millis(LEASE_MS);
        }
        assert_eq!((world.one(), world.store.words.len()), (other, 2));
        world.ends_well();
    }
}

#[test]
fn holder_that_has_lost_its_state_loses_the_lock_although_its_lease_lives() {
    let mut world = World::new(1, 3, &[]);
    world.for_millis(8_000);
    let holder = world.one();
    world.keep_its_lease(holder);
    world.lose_state(holder);
    world.ends_well();
    assert_eq!((world.store.evictions, world.store.words.len()), (1, 2));
}

#[test]
fn holder_that_was_cut_off_and_evicted_is_not_certain_when_it_is_back() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, &[]);
        world.for_millis(8_000);
        let holder = world.one();
        world.keep_its_lease(holder);
        world.cut(holder);
        world.for_millis(150_000);
        world.link(holder);
        // Its look fails, and its watch begins late.
        let orders = &mut world.nodes[holder].orders;
        orders.retain(|order| !matches!(order, Effect::Look(_)));
        for _ in 0..30 {
            world.carry(holder, false);
            world.beaten(holder);
            world.judge(0);
        }
        world.for_millis(5_000);
        assert_ne!(world.one(), holder);
        assert_eq!((world.store.evictions, world.store.words.len()), (1, 2));
        world.ends_well();
    }
}

#[test]
fn holder_without_answered_beats_is_not_certain() {
    let mut world = World::new(1, 1, &[]);
    world.for_millis(8_000);
    world.one();
    world.store.now += LEASE_MS;
    world.locks(0).beat();
    world.locks(0).renewed(&db());
    let why = "the lease or the beats of this node may have ended";
    assert_eq!(world.held(0).why, why);
    let covered = world.nodes[0].locks.covered();
    let now = world.locks(0).now;
    // A beat for an earlier word counts for nothing.
    let mut earlier = covered.clone();
    earlier[0].first -= 1;
    world.locks(0).beaten(&earlier, now, |_| true);
    assert!(!world.held(0).is_mine);
    world.locks(0).beaten(&covered, now, |_| true);
    assert!(world.held(0).is_mine);
    // It was removed before the beat was written.
    world.locks(0).beaten(&covered, now, |_| false);
    assert!(!world.held(0).is_mine);
}

#[test]
fn who_loses_the_backend_is_certain_for_no_longer_than_the_lease() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, &[]);
        world.for_millis(5_000);
        let holder = world.one();
        world.cut(holder);
        let effects = world.held(holder);
        assert!(effects.is_mine, "its lease lives");
        world.for_millis(LEASE_MS + 10_000);
        let other = world.one();
        assert_ne!(other, holder);
        let held = world.held(holder);
        assert_eq!((&held.holder, held.is_mine), (&None, false));
        assert!(held.why.contains("the backend is not there"), "{held:?}");
        world.link(holder);
        world.for_millis(2_000);
        let held = world.held(holder);
        assert_eq!(held.holder, Some(node(other)));
        world.ends_well();
    }
}

#[test]
fn one_alone_takes_it_again_after_its_lease_has_ended() {
    for seed in 0..20 {
        let mut world = World::new(seed, 1, &[]);
        world.for_millis(8_000);
        world.one();
        world.cut(0);
        world.for_millis(LEASE_MS + 10_000);
        world.link(0);
        world.for_millis(20_000);
        assert_eq!((world.one(), world.store.words.len()), (0, 2));
    }
}

/// With this seed, what it wrote first is listed to it and gone before it watches.
#[test]
fn first_write_that_is_gone_unseen_holds_nobody_up() {
    let mut world = World::new(400, 1, &[]);
    world.for_millis(8_000);
    world.one();
    world.cut(0);
    world.for_millis(LEASE_MS + 10_000);
    world.link(0);
    world.for_millis(120_000);
    assert_eq!((world.one(), world.store.words.len()), (0, 2));
}

#[test]
fn a_look_that_fails_makes_no_lease_longer() {
    let mut world = World::new(1, 1, &[]);
    world.for_millis(8_000);
    world.one();
    world.cut(0);
    let asked = millis(world.store.now);
    let is_resume = |effect: &Effect| matches!(effect, Effect::Resume(..));
    assert!(world.locks(0).reached().iter().any(is_resume));
    world.locks(0).not_seen(&db());
    world.store.now += 5_000;
    assert!(!world.locks(0).tick().iter().any(is_resume));
    world.locks(0).renewed(&db());
    let one = world.nodes[0].locks.all.get(&db()).expect("a lock");
    assert_eq!(one.ends, asked + Span::from_secs(LEASE));
}

#[test]
fn what_nobody_signs_is_removed_after_90_seconds_without_a_change() {
    let mut world = World::new(1, 2, &[]);
    let come = |locks: &mut Locks, revision, is_list| {
        locks.saw(&db(), Seen::Coming, Some(revision), is_list)
    };
    assert_eq!(come(world.locks(0), 50, false), []);
    world.store.now += 80_000;
    // It was listed again, and then another one came.
    assert_eq!(come(world.locks(0), 50, true), []);
    world.store.now += 9_999;
    assert_eq!(world.locks(0).tick(), [], "it may still come");
    assert_eq!(come(world.locks(0), 51, false), []);
    world.store.now += 1000 * SILENT.secs() - 1;
    assert_eq!(world.locks(0).tick(), []);
    world.store.now += 1;
    assert_eq!(world.locks(0).tick(), [Effect::Clear(db(), 51)]);
    assert!(world.held(0).why.contains("is taking it"));
    assert_eq!(world.locks(0).saw(&db(), Seen::Nobody, Some(52), false), []);
    assert!(world.nodes[0].locks.wakes() < Some(millis(world.store.now + 10_000)));
    // Of another connection nothing is known.
    assert_eq!(come(world.locks(1), 60, false), []);
    world.locks(1).lost("cut");
    world.store.now += 1000 * SILENT.secs();
    assert_eq!(world.locks(1).tick(), []);
}

/// Candidate that fails or loses its own write while another one takes the lock leaves that one 90 seconds all the same.
#[test]
fn first_write_is_not_removed_earlier_by_a_candidate_that_fails() {
    let is_cleared = |world: &mut World| {
        world.store.now += 20_000;
        let early = world.locks(0).tick();
        world.store.now += 1000 * SILENT.secs() - 20_000 - 1;
        let late = world.locks(0).tick();
        assert_eq!([early, late], [vec![], vec![]]);
        world.store.now += 1;
        assert_eq!(world.locks(0).tick(), [Effect::Clear(db(), 51)]);
    };
    let come = |world: &mut World, is_list| {
        world.locks(0).saw(&db(), Seen::Coming, Some(51), is_list);
    };
    // It cannot look, or its own write is refused.
    for fails in [Locks::not_seen, Locks::failed] {
        let mut world = World::new(1, 2, &[]);
        come(&mut world, false);
        fails(world.locks(0), &db());
        is_cleared(&mut world);
        // A removal that is refused is tried again.
        fails(world.locks(0), &db());
        world.store.now += 11_000;
        assert_eq!(world.locks(0).tick(), [Effect::Clear(db(), 51)]);
    }
    // It was stopped until its lease had ended, and lists another one's write before its watch tells anything.
    let mut world = World::new(1, 2, &[]);
    world.store.now += 10_000;
    assert_eq!(world.locks(0).tick(), [Effect::Enter(db())]);
    world.locks(0).entered(&db(), Some((50, 1)));
    come(&mut world, true);
    world.locks(0).gone(&db());
    is_cleared(&mut world);
}

#[test]
fn candidate_that_died_before_it_signed_keeps_nobody_from_the_lock() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, &[]);
        while world.store.there.is_none() {
            world.go_on(0.0);
        }
        let first = world.store.there.clone().expect("a write");
        assert_eq!(first.word, None);
        let is_its = |stand: &Stand| stand.locks.place(&db()).is_some();
        let dead = world.nodes.iter().position(is_its);
        world.store.haunted.insert(first.lease);
        if let Some(dead) = dead {
            world.kill(dead);
        }
        world.for_millis(1000 * SILENT.secs() + 20_000);
        world.one();
        world.ends_well();
    }
}

#[test]
fn an_operators_word_counts_though_it_is_heard_late() {
    let mut world = World::new(1, 3, &[]);
    world.for_millis(8_000);
    let token = world.store.words[0].token;
    let holder = world.one();
    let other = (holder + 1) % 3;
    world.locks(other).saw(&db(), Seen::Nobody, Some(50), false);
    let soon = world.nodes[other].locks.wakes();
    let to = node((holder + 2) % 3);
    world.locks(other).passed(&db(), token, to);
    let now = millis(world.store.now);
    assert!(soon < Some(now + LEFT) && world.nodes[other].locks.wakes() > Some(now + LEFT));
    world.locks(other).passed(&db(), token, node(other));
    assert_eq!(world.nodes[other].locks.wakes(), Some(now));
}

#[test]
fn an_operator_passes_it_on() {
    for seed in 0..20 {
        let mut world = World::new(seed, 4, &["n0"]);
        world.for_millis(8_000);
        assert_eq!(world.one(), 0);
        let token = world.store.words[0].token;
        let say = |world: &mut World, token, to| {
            for n in 0..4 {
                let effects = world.locks(n).passed(&db(), token, node(to));
                world.doing(n, effects);
            }
            world.for_millis(5_000);
        };
        // About another one that held it, and to nobody.
        say(&mut world, token + 1, 2);
        assert_eq!((world.one(), world.store.words.len()), (0, 1));
        let nobody = "x".parse().expect("a certname");
        assert_eq!(world.locks(0).passed(&db(), token, nobody), []);
        say(&mut world, token, 2);
        assert_eq!((world.one(), world.store.words.len()), (2, 2));
        // The same word counts once.
        say(&mut world, token, 3);
        assert_eq!((world.one(), world.store.words.len()), (2, 2));
        // One that cannot take it: the others do, a while later.
        world.kill(3);
        let token = world.store.words[1].token;
        say(&mut world, token, 3);
        assert!(world.holders().is_empty());
        world.for_millis(20_000);
        assert_eq!(world.store.words.len(), 3);
        world.one();
    }
}

#[test]
fn one_that_has_missed_all_of_it_takes_a_higher_token() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, &["n0", "n1"]);
        world.for_millis(8_000);
        world.cut(2);
        for gone in [0, 1, 0] {
            world.kill(gone);
            world.for_millis(LEASE_MS + 10_000);
            world.start(gone);
            world.link(gone);
            world.for_millis(1_000);
        }
        world.kill(0);
        world.kill(1);
        world.for_millis(LEASE_MS + 1_000);
        world.link(2);
        world.for_millis(20_000);
        assert_eq!((world.one(), world.store.words.len()), (2, 5));
        world.ends_well();
    }
}

#[test]
fn a_backend_that_has_lost_everything_takes_no_token_back() {
    for seed in 0..50 {
        let mut world = World::new(seed, 3, &[]);
        world.for_millis(8_000);
        for n in 0..6 {
            let holder = world.one();
            if n % 2 == 0 {
                world.kill(holder);
                world.for_millis(LEASE_MS + 10_000);
                world.start(holder);
                world.link(holder);
                world.for_millis(2_000);
            }
            world.empty();
            let emptied = world.store.now;
            while world.store.now < emptied + 15_000 {
                world.go_on(0.0);
                world.judge(emptied);
            }
            world.one();
        }
        assert!(world.store.words.len() >= 10);
    }
}

#[test]
fn what_is_not_on_disk_is_not_signed() {
    let mut world = World::new(1, 2, &["n0"]);
    world.nodes[0].is_full = true;
    world.for_millis(30_000);
    assert_eq!(world.one(), 1);
    world.nodes[0].is_full = false;
    world.ends_well();
}

#[test]
fn what_is_nobodys_word_holds_everybody_up_and_that_is_said() {
    let mut world = World::new(1, 2, &[]);
    let why = || Seen::Nothing("it is not signed".to_owned());
    let effects = world.locks(0).saw(&db(), why(), Some(50), false);
    let said = |effects: &[Effect]| {
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Say(text) if text.contains("etcdctl del")))
    };
    assert!(said(&effects), "{effects:?}");
    let effects = world.locks(0).saw(&db(), why(), Some(50), false);
    assert!(!said(&effects), "once");
    let held = world.held(0);
    assert_eq!((held.holder, &*held.why), (None, "it is not signed"));
    // Nobody tries, as long as it stands there.
    world.locks(0).now = millis(10_000_000);
    assert_eq!(world.nodes[0].locks.tick(), []);
    assert_eq!(world.nodes[0].locks.beat(), [Effect::Look(db())]);
    let effects = world.locks(0).saw(&db(), Seen::Nobody, Some(51), false);
    assert_eq!(effects, []);
    assert!(world.nodes[0].locks.wakes().is_some());
}

#[test]
fn one_that_is_no_candidate_any_more_gives_it_up_at_once() {
    let mut world = World::new(1, 2, &["n0"]);
    world.for_millis(8_000);
    assert_eq!(world.one(), 0);
    let effects = world.locks(0).set(&[]);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Leave(..))),
        "{effects:?}"
    );
    assert!(world.nodes[0].locks.tokens().is_empty());
    world.doing(0, effects);
    world.for_millis(5_000);
    assert_eq!(world.one(), 1);
    // What it knew of tokens it goes on knowing.
    assert!(
        world.nodes[0].kept.starts_with("1 1 0 0 0 db"),
        "{}",
        world.nodes[0].kept
    );
    assert!(Locks::read(node(0), "x\n1 2 3\n\n1 1 0 0 0 db").token(&db()) == 1);
    assert!(Locks::read(node(0), "").set(&[]).is_empty());
}

#[test]
fn one_candidate_with_a_huge_token_keeps_nobody_from_the_lock() {
    for seed in 0..20 {
        let mut world = World::with_liar(seed, 3, &[]);
        let token = MOST_TOKEN - seed % 2;
        world.lie(known(token, seed), false);
        world.for_millis(8_000);
        let holder = world.one();
        assert_eq!(world.store.words[0].token, 1);
        let named = format!("{LIAR} publishes token {token} of the lock 'db', more than 1048576");
        let log = world.nodes[holder].log.iter();
        assert_eq!(log.filter(|text| text.starts_with(&named)).count(), 1);
        assert!(world.nodes[holder].locks.warnings()[0].starts_with(&named));
        // Nobody believes it as a holder either. When its lease has ended the others go on.
        world.kill(holder);
        world
            .store
            .revoke(world.store.there.clone().expect("a holder").lease);
        world.lie(known(token, 0), true);
        let first = world.store.there.clone().expect("a holder").revision;
        world.for_millis(5_000);
        for n in (0..3).filter(|n| *n != holder) {
            let held = world.held(n);
            let why = format!("{LIAR} holds it with token {token}, more than");
            assert!(held.why.starts_with(&why), "{held:?}");
            let named = format!("the holder of the lock 'db' is not believed: {why}");
            assert_eq!(world.logged(n, &named), 1, "{:?}", world.nodes[n].log);
            assert_eq!(world.logged(n, "etcdctl del"), 0);
        }
        world.for_millis(LEASE_MS + 10_000);
        assert!(world.store.there.clone().expect("a holder").revision > first);
        world.start(holder);
        world.ends_well();
        assert_eq!(world.store.words.last().map(|word| word.token), Some(2));
        // One that is within the bound counts.
        world.lie(known(2 + AHEAD, 0), false);
        let holder = world.one();
        world.kill(holder);
        world.for_millis(LEASE_MS + 10_000);
        assert_eq!(
            world.store.words.last().map(|word| word.token),
            Some(3 + AHEAD)
        );
    }
}

#[test]
fn new_candidate_believes_a_token_that_two_others_publish() {
    let high = 9 * AHEAD;
    let mut world = World::with_liar(1, 3, &["n2"]);
    world.cut(2);
    for n in 0..2 {
        world.kill(n);
        world.nodes[n].kept = format!("{high} 0 0 0 0 db\n");
        world.start(n);
        world.link(n);
    }
    world.lie(known(MOST_TOKEN, 0), false);
    world.for_millis(8_000);
    assert_eq!(world.store.words[0].token, high + 1);
    world.link(2);
    world.for_millis(1_000);
    // It has read the tokens of both, and so believes the holder.
    let held = world.held(2);
    assert_eq!(held.token, Some(high + 1), "{held:?}");
    (0..2).for_each(|n| world.kill(n));
    world.for_millis(LEASE_MS + 10_000);
    assert_eq!((world.one(), world.store.words[1].token), (2, high + 2));
}

#[test]
fn reset_counts_once_and_takes_tokens_back() {
    let mut world = World::new(1, 3, &["n0"]);
    for n in 0..3 {
        world.kill(n);
        world.nodes[n].kept = format!("{MOST_TOKEN} 1 0 0 0 db\n");
        world.start(n);
        world.link(n);
    }
    world.for_millis(20_000);
    assert!(world.holders().is_empty());
    let held = world.held(0);
    assert!(held.why.contains("its tokens are used up"), "{held:?}");
    assert!(world.nodes[1].locks.warnings()[0].contains("'again-fleet locks reset NAME TOKEN'"));
    // One of them is away meanwhile, and what it published last is from before the reset.
    world.kill(2);
    assert!(world.store.reset(7, 40));
    world.for_millis(8_000);
    assert_eq!((world.one(), world.store.words[0].token), (0, 41));
    assert!(
        world.nodes[0].kept.contains("\nreset 7 db\n"),
        "{}",
        world.nodes[0].kept
    );
    assert!(!world.store.reset(8, 50), "somebody holds it");
    world.start(2);
    world.ends_well();
    // Neither the same again or changed, nor one while it holds the lock.
    for (n, number) in [(1, 7), (0, 6), (0, 7), (0, 8)] {
        let effects = world.reset(n, reset(number, 50), 1_000);
        assert_eq!(effects, [], "{n}, {number}");
        assert_eq!(world.nodes[n].locks.token(&db()), 41);
    }
    // Nor one with a lower number. That is named if it was written later.
    for (revision, count) in [(1, 0), (1_001, 1), (1_001, 0)] {
        let effects = world.reset(1, reset(6, 50), revision);
        let is_named = |effect: &Effect| matches!(effect, Effect::Say(text) if text.contains("a later one was taken before"));
        assert!(
            effects.iter().all(is_named) && effects.len() == count,
            "{effects:?}"
        );
        assert_eq!(world.nodes[1].locks.token(&db()), 41);
    }
    // Nor after a restart, by what is on disk.
    world.kill(1);
    world.start(1);
    assert_eq!(world.nodes[1].locks.resets().get("db"), Some(&7));
    assert_eq!(world.reset(1, reset(7, 50), 1_000), []);
    // Whoever comes next goes on from there.
    world.link(1);
    world.kill(0);
    world.for_millis(LEASE_MS + 10_000);
    assert_eq!(world.store.words.last().map(|word| word.token), Some(42));
    // Tokens from before are not far above those after it, and do not count either.
    (1..3).for_each(|n| world.kill(n));
    world.for_millis(LEASE_MS);
    assert!(world.store.reset(9, 3));
    world.start(1);
    world.link(1);
    world.for_millis(8_000);
    assert_eq!(world.store.words[0].token, 4);
    world.ends_well();
}

#[test]
fn holder_that_comes_and_goes_with_huge_tokens_is_named_once() {
    let mut world = World::with_liar(1, 2, &[]);
    world.for_millis(1_000);
    let holder = world.store.there.clone().map(|there| there.lease);
    world.store.revoke(holder.unwrap_or_default());
    let looks = world.nodes[0].looks;
    for n in 0..200 {
        world.lie(known(MOST_TOKEN - n, 0), true);
        world.for_millis(100);
        let lease = world.store.there.clone().map(|there| there.lease);
        world.store.revoke(lease.unwrap_or_default());
    }
    for n in 0..2 {
        assert!(world.logged(n, LIAR) <= 2, "{:?}", world.nodes[n].log);
    }
    assert!(world.nodes[0].looks < looks + 20);
}

#[test]
fn token_of_a_candidate_that_has_not_taken_a_reset_counts() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3, &["n0", "n1"]);
        world.nodes[2].refuses = true;
        world.stop_with(1_000);
        assert!(world.store.reset(5, 7));
        world.back(2);
        let given = world.last();
        assert!(given > 1_000, "{given}");
        assert_eq!(world.logged(2, "operators does not list operator"), 1);
        assert!(world.nodes[2].locks.warnings()[0].contains("by operator does not count here"));
        world.kill(2);
        world.for_millis(LEASE_MS + 1_000);
        // They take the reset, and were away meanwhile.
        world.back(0);
        assert_eq!((world.one(), world.last()), (0, given + 1));
        let named =
            format!("n2 has not taken the last reset of the lock 'db', so its token {given}");
        assert_eq!(world.logged(0, &named), 1, "{:?}", world.nodes[0].log);
        world.back(1);
        world.ends_well();
    }
}

#[test]
fn token_from_before_a_reset_does_not_count() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3, &[]);
        world.stop_with(1_000);
        assert!(world.store.reset(5, 7));
        // The others have signed the same anew, and are away for longer than they are waited for.
        (1..3).for_each(|n| world.signs_anew(n));
        world.back(0);
        assert_eq!(world.last(), 8);
        world.back(1);
        world.ends_well();
        assert_eq!(world.nodes[2].locks.token(&db()), 8);
    }
}

#[test]
fn reset_that_comes_late_takes_no_token_back() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3, &[]);
        (0..3).for_each(|n| world.nodes[n].refuses = true);
        world.stop_with(1_000);
        assert!(world.store.reset(5, 7));
        (0..3).for_each(|n| world.back(n));
        let (holder, given) = (world.one(), world.last());
        assert!(given > 1_000, "{given}");
        (0..3).for_each(|n| world.nodes[n].refuses = false);
        world.for_millis(BEAT + 1_000);
        world.kill(holder);
        world.for_millis(LEASE_MS + 10_000);
        assert_eq!(world.last(), given + 1);
        let late = format!("this node knows token {given}, which it had not published before");
        let other = (holder + 1) % 3;
        assert_eq!(
            world.logged(other, &late),
            1,
            "{:?}",
            world.nodes[other].log
        );
        // One that only raises them is never late.
        let other = 3 - holder - world.one();
        world.reset(other, reset(6, 5_000), 9_000);
        assert_eq!(world.nodes[other].locks.token(&db()), 5_000);
    }
}

#[test]
fn reset_that_is_put_back_takes_no_token_back() {
    for seed in 0..4 {
        let mut world = World::new(seed, 2, &[]);
        world.stop_with(1_000);
        // Both name what was published before the first.
        assert!(world.store.reset(5, 7) && world.store.reset(9, 3));
        world.back(1);
        assert!((4..7).contains(&world.last()), "{}", world.last());
        world.kill(1);
        world.for_millis(LEASE_MS + 1_000);
        world.refuses = true;
        world.put_back(0);
        world.back(0);
        let given = world.last();
        assert!(given >= 8, "{given}");
        world.kill(0);
        world.for_millis(LEASE_MS + 1_000);
        world.put_back(1);
        world.back(0);
        assert!(world.one() == 0 && world.last() > given);
        let why = format!("this node knows token {given}, which it had not published before");
        assert_eq!(world.logged(0, &why), 1, "{:?}", world.nodes[0].log);
        world.ends_well();
    }
}

#[test]
fn one_that_has_lost_its_state_takes_no_token_back_with_a_late_reset() {
    for seed in 0..4 {
        let mut world = World::new(seed, 2, &[]);
        world.stop_with(1_000);
        assert!(world.store.reset(5, 7));
        world.back(1);
        assert!((8..1_000).contains(&world.last()), "{}", world.last());
        world.kill(1);
        world.for_millis(LEASE_MS + 1_000);
        // It has published a higher token before the reset than it has given out since.
        world.nodes[0].refuses = true;
        world.lose_state(0);
        world.for_millis(20_000);
        let given = world.last();
        assert!(world.one() == 0 && (9..1_000).contains(&given), "{given}");
        world.kill(0);
        world.for_millis(LEASE_MS + 1_000);
        world.nodes[0].refuses = false;
        world.back(0);
        assert!(world.one() == 0 && world.last() > given);
        world.back(1);
        world.ends_well();
    }
}

#[test]
fn refused_resets_are_logged_once_and_an_operators_is_named() {
    let mut world = World::new(1, 1, &[]);
    world.for_millis(1_000);
    let mut refuse = |name: &str, number, refuses| {
        let mut reset = reset(number, 50);
        reset.node = name.parse().expect("a certname");
        // A later one was taken, where the node is an operator.
        let standing = standing(reset, 1_000 + number, refuses);
        world.locks(0).reset_written(standing).len()
    };
    assert_eq!(refuse("x0", 100, true), 1);
    assert_eq!(refuse("x0", 101, true), 0, "only the number is another");
    for n in 1..64 {
        assert_eq!(refuse(&format!("x{n}"), 100, true), 1);
    }
    assert_eq!(refuse("x64", 100, true), 0, "there are enough");
    let one = world.nodes[0].locks.all.get_mut(&db()).expect("a lock");
    (one.reset, one.reset_at) = (90, 1);
    let mut late = |number| {
        let standing = standing(reset(number, 50), 2_000 + number, false);
        world.locks(0).reset_written(standing).len()
    };
    assert_eq!([late(80), late(80), late(81)], [1, 0, 1]);
    let warnings = world.nodes[0].locks.warnings();
    assert_eq!(warnings.len(), 64);
    assert!(warnings[63].contains("a later one was taken before"));
}

#[test]
fn candidate_that_is_ignored_may_not_have_taken_the_last_reset() {
    let mut world = World::with_liar(1, 1, &[]);
    world.for_millis(1_000);
    let one = world.nodes[0].locks.all.get_mut(&db()).expect("a lock");
    one.reset = 5;
    let liar: Node = LIAR.parse().expect("a certname");
    for (number, is_behind) in [(4, true), (5, false)] {
        let tokens = [(liar.clone(), known(MOST_TOKEN, number))];
        world.locks(0).weigh(&db(), &tokens);
        let warnings = world.nodes[0].locks.warnings();
        let named = "it has not taken the last reset";
        assert_eq!(warnings[0].contains(named), is_behind, "{warnings:?}");
    }
}

#[test]
fn the_highest_of_several_resets_counts_first() {
    for numbers in [[5, 9], [9, 5]] {
        let mut world = World::new(1, 2, &[]);
        world.stop_with(1_000);
        let before = vec![Published {
            node: node(0),
            token: 1_000,
            reset: 0,
            serial: world.store.serial,
        }];
        let resets = numbers.map(|number| {
            let reset = Reset {
                before: before.clone(),
                ..reset(number, 12 - number)
            };
            standing(reset, number, false)
        });
        world.nodes[0].kept = "1000 0 0 0 0 db\n".to_owned();
        world.start(0);
        // Each alone has it look only.
        world.nodes[0].locks.reached();
        let written = resets.clone().map(|one| world.locks(0).reset_written(one));
        assert_eq!(written[0], [Effect::Look(db())]);
        assert_eq!(written[1].len(), usize::from(numbers[1] == 9));
        assert_eq!(world.nodes[0].locks.token(&db()), 1_000);
        world.locks(0).resets_listed(&db(), resets.to_vec());
        let locks = &world.nodes[0].locks;
        assert_eq!(
            (locks.resets().get("db"), locks.token(&db())),
            (Some(&9), 3)
        );
        assert_eq!(locks.warnings(), [""; 0]);
    }
}

#[test]
fn one_that_was_cut_off_as_the_holder_takes_a_reset_when_it_is_back() {
    for seed in 0..5 {
        let mut world = World::new(seed, 2, &["n0"]);
        world.stop_with(1_000);
        world.back(0);
        world.cut(0);
        world.for_millis(LEASE_MS + 1_000);
        assert!(world.store.reset(5, 7));
        world.back(1);
        world.link(0);
        world.for_millis(3_000);
        assert_eq!((world.one(), world.last()), (1, 8));
        let locks = &world.nodes[0].locks;
        assert_eq!(
            (locks.resets().get("db"), locks.token(&db())),
            (Some(&5), 8)
        );
        // It looks also where it has looked before it learned that it does not hold the lock.
        let effects = world.locks(1).gone(&db());
        assert!(effects.contains(&Effect::Look(db())), "{effects:?}");
    }
}

/// Lives through one seed, whatever fails; and gives how many words there were, resets, and removals of dead holders.
fn live(seed: u64) -> [usize; 3] {
    let mut resets = 0;
    let (count, prefer): (usize, &[&str]) = (
        3 + (seed % 2) as usize,
        if seed.is_multiple_of(3) {
            &["n2", "n0"]
        } else {
            &[]
        },
    );
    let (lies, refuses) = (seed % 4 > 1, seed.is_multiple_of(5));
    let mut world = if lies {
        World::with_liar(seed, count, prefer)
    } else {
        World::new(seed, count, prefer)
    };
    let (mut emptied, mut number) = (0, 0);
    for _ in 0..40 {
        let n = world.dice.random_range(0..world.nodes.len());
        match world.dice.random_range(0..if refuses { 13 } else { 11 }) {
            0 => {
                if world.dice.random_bool(0.5) {
                    world.keep_its_lease(n);
                }
                world.kill(n);
            }
            1 | 2 => {
                world.kill(n);
                world.start(n);
                world.link(n);
            }
            3 => {
                let is_kept = world.dice.random_bool(0.5);
                if is_kept {
                    world.keep_its_lease(n);
                }
                world.cut(n);
                if is_kept && world.dice.random_bool(0.5) {
                    world.away(n, 150_000, emptied);
                }
            }
            4 => {
                let (to, token) = (
                    world.dice.random_range(0..world.nodes.len()),
                    world.store.words.last().map_or(1, |word| word.token),
                );
                for n in 0..world.nodes.len() {
                    if world.nodes[n].is_linked {
                        let effects = world.locks(n).passed(&db(), token, node(to));
                        world.doing(n, effects);
                    }
                }
            }
            5 => world.nodes[n].is_full ^= true,
            6 if world.dice.random_bool(0.3) => {
                // All are there, and have heard everything: what one alone knows nobody can know without it.
                world.ends_well();
                world.empty();
                emptied = world.store.now;
                for _ in 0..200 {
                    world.go_on(0.0);
                    world.judge(emptied);
                }
            }
            7 if lies => {
                let token = world.dice.random_range(1..=MOST_TOKEN);
                let reset = world.dice.random_range(0..=number + 1);
                let takes = world.dice.random_bool(0.3);
                world.lie(known(token, reset), takes);
            }
            8 if world.dice.random_bool(0.5) => {
                // Up or down, and by somebody who has stopped the holder and waited.
                world.holders().into_iter().for_each(|n| world.kill(n));
                let most = if refuses { AHEAD } else { 1 << 30 };
                let token = world.dice.random_range(0..most);
                let since = world.store.now;
                while world.store.there.is_some() && world.store.now < since + LEASE_MS {
                    world.go_on(0.0);
                    world.judge(emptied);
                }
                number += u64::from(world.store.reset(number + 1, token));
                resets += usize::from(world.store.words.is_empty());
            }
            9 => world.nodes[n].refuses = refuses && !world.nodes[n].refuses,
            10 if world.dice.random_bool(0.3) => {
                // One loses its state: the others have heard everything.
                world.ends_well();
                world.lose_state(n);
            }
            11 if refuses && world.store.resets.len() > 1 => {
                world.show(n, world.store.resets.len() - 2);
            }
            12 if world.dice.random_bool(0.3) => {
                world.nodes[n].refuses = true;
                world.ends_well();
                world.lose_state(n);
            }
            _ => {}
        }
        if world.dice.random_bool(0.1) {
            world.copies();
        }
        // For a dead one to be removed it takes longer.
        let most = if world.dice.random_bool(0.2) {
            200_000
        } else {
            40_000
        };
        let until = world.store.now + world.dice.random_range(100..most);
        while world.store.now < until {
            world.go_on(0.01);
            world.judge(emptied);
            let n = world.dice.random_range(0..world.nodes.len());
            if world.dice.random_bool(0.002) {
                if !world.nodes[n].is_up {
                    world.start(n);
                }
                world.link(n);
            }
        }
    }
    world.ends_well();
    let words = world.store.before + world.store.words.len();
    [words, resets, world.store.evictions]
}

/// Lives through these seeds, on all processors.
fn live_all(seeds: Range<u64>) {
    let (next, all) = (AtomicU64::new(seeds.start), Mutex::new([0; 3]));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end {
            return;
        }
        let counts = catch_unwind(|| live(seed))
            .unwrap_or_else(|_| panic!("again with AGAIN_FLEET_LOCK_SEED={seed}"));
        let mut all = all.lock().expect("no panic");
        (0..3).for_each(|n| all[n] += counts[n]);
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let [words, resets, evictions] = all.into_inner().expect("no panic");
    println!("{words} words, {resets} resets, {evictions} evictions");
    let count = (seeds.end - seeds.start) as usize;
    if count > 1 {
        assert!(evictions > count / 4, "too few: {evictions}");
        assert!(resets > count / 4, "too few: {resets}");
        assert!(words > 5 * count, "too little happened: {words}");
    }
}

#[test]
fn whatever_fails_no_two_hold_it_and_somebody_does_in_the_end() {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    live_all(match number("AGAIN_FLEET_LOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("AGAIN_FLEET_LOCK_SEEDS").unwrap_or(40),
    });
}

/// A node with a full disk had published a reset that it did not know after a restart, and refused the next one for ever.
#[test]
fn reset_that_is_not_on_disk_is_undone() {
    let mut world = World::new(1, 3, &[]);
    let published = |n: usize, token: u64, reset: u64, serial: u64| Published {
        node: node(n),
        token,
        reset,
        serial,
    };
    let own = |world: &World| {
        let locks = &world.nodes[1].locks;
        let reset = locks.resets().get("db").copied().unwrap_or(0);
        published(1, locks.token(&db()), reset, 1)
    };
    let resets = |world: &mut World, number: u64, token: u64, serial: u64| {
        let others = [0, 2].map(|n| published(n, 5 * serial, 0, serial));
        let before = [&[own(world)][..], &others].concat();
        let reset = Reset {
            before,
            ..reset(number, token)
        };
        let effects = world.reset(1, reset, 100 + number);
        world.doing(1, effects);
        own(world)
    };
    let first = resets(&mut world, 7, 40, 1);
    assert_eq!(first, published(1, 40, 7, 1));
    world.nodes[1].is_full = true;
    assert_eq!(resets(&mut world, 8, 30, 9), first);
    // Others have given out tokens between both resets.
    let given = Known {
        serial: 9,
        ..known(45, 0)
    };
    let given = [0, 2].map(|n| (node(n), given));
    world.locks(1).weigh(&db(), &given);
    assert_eq!(world.nodes[1].locks.all.0[0].1.vouched, 45);
    world.nodes[1].is_full = false;
    world.kill(1);
    world.start(1);
    world.link(1);
    assert_eq!(own(&world), first);
    assert_eq!(resets(&mut world, 9, 20, 9), published(1, 20, 9, 1));
    let log = world.nodes[1].log.join("\n");
    assert_eq!(log.matches("has reset the lock 'db'").count(), 2, "{log}");
}

#[test]
fn holder_is_logged_although_the_disk_is_full() {
    let mut world = World::new(1, 2, &["n0"]);
    while world.nodes[0].locks.all.0[0].1.stage != Stage::Signing {
        assert!(world.store.now < 30_000);
        world.go_on(0.0);
    }
    world.nodes[0].is_full = true;
    world.for_millis(2_000);
    assert_eq!(world.one(), 0);
    let log = &world.nodes[0].log;
    assert!(log.iter().any(|line| line.starts_with("this node holds")));
}
