//! The runs of this node that wait for a slot, or have one, and the node's places in the engine. What is to be done about them is said
//! here, and done elsewhere.

/// What outlives a service, as it is written down.
mod kept;

use again::model::{Boottime, Identity, Span};

use super::few::Few;
use crate::ask::Wish;
use crate::engine::LEASE;
use crate::policy::slots::{Lease, Standing};
use crate::step::model::Client;
use crate::wire::name::{Name, Node};

/// How many nodes are named to whoever waits.
const MOST_NAMED: usize = 5;
/// How many groups a node is in together.
const MOST_GROUPS: usize = 64;
/// How many of those before it a node wants to know of, beside as many as there are slots.
const MOST_BEFORE: usize = if cfg!(test) { 5 } else { 100 };
/// Before what has failed is tried again: less than a run waits for a service that says nothing. It doubles so many times.
const PAUSE: Span = Span::from_secs(2);
const DOUBLED: u32 = 5;

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its process.
    pub who: Identity,
    /// The number of its pidfd's file, by which newer kernels know a process.
    pub file: u64,
    /// Since when it waits, milliseconds of the wall clock after 1970.
    pub since: u64,
    /// What it is, in words.
    pub why: String,
}

/// Where this node stands in a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Under which lease.
    pub lease: Lease,
    /// The revision of its first write.
    pub first: u64,
    /// That of the second, which is its place; 0 before that.
    pub revision: u64,
}

/// How far it is with a place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is under way.
    #[default]
    Idle,
    /// Something was ordered.
    Ordered,
    /// It stands there.
    Stands,
}

/// A group in which a run of this node waits, or runs.
#[derive(Debug, Default)]
pub struct Group {
    /// How many slots it has, as far as this node knows.
    pub limit: u32,
    /// The runs that have not ended.
    pub runs: Vec<Run>,
    /// Where it stands.
    pub place: Option<Place>,
    /// Whether its turn has come.
    pub had_turn: bool,
    /// Whether the runs that it was for have ended; those that came since have no part in it.
    is_over: bool,
    stage: Stage,
    /// What the engine said when it did not do what was ordered.
    trouble: Option<String>,
    /// When it was ordered to keep its place alive, if that is not answered yet.
    asked: Option<Boottime>,
    /// When its lease ends, by the last time that the engine has kept it alive.
    ends: Boottime,
    /// Whether it was said that it has ended.
    has_ended: bool,
    /// Those before it, by their own word, if they are known.
    line: Option<Vec<Standing>>,
    /// Whether those are all.
    is_all: bool,
    /// Whether they are looked at anew.
    is_looking: bool,
    /// How often those were too few who stand there by their own word, and twice as many were to be known.
    doubled: u32,
    /// Who waits to be told, and what they were told last.
    callers: Few<Client, Option<Waits>>,
}

/// What a run waits for, in words, and whether that is why nobody can say it. They are empty as long as its place is on its way.
pub type Waits = (String, bool);

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Deed {
    /// To write down what is to outlive this service.
    Save,
    /// To go to the end of the line.
    Enter(Name),
    /// To say there who it is.
    Sign(Name),
    /// To keep a place of before.
    Resume(Name, Lease),
    /// To give one up.
    Leave(Name, Lease),
    /// To look at all lines in which this node stands; or at none.
    Look,
    /// To tell somebody why they wait.
    Tell(Client, Waits),
    /// To tell somebody that their turn has come.
    Turn(Client),
    /// To log this.
    Say(String),
}

/// All groups.
#[derive(Debug, Default)]
pub struct Slots {
    /// The time of what happens.
    pub now: Boottime,
    groups: Few<Name, Group>,
    /// The number of the look that counts.
    round: u64,
    /// When what has failed is tried again, and how often in a row it has.
    due: Option<Boottime>,
    failures: u32,
    /// Why the engine cannot be asked; nothing if it can.
    away: Option<String>,
}

impl Slots {
    /// After a start; only runs that `lives` says have not ended.
    pub fn begin(&mut self, mut lives: impl FnMut(&Name, &Run) -> bool) {
        self.away = Some("the engine was not reached yet".to_owned());
        for (name, group) in &mut self.groups.0 {
            // The service of before may have kept it alive until a moment ago.
            group.ends = self.now + Span::from_secs(LEASE);
            group.runs.retain(|run| lives(name, run));
            group.is_over |= group.runs.is_empty();
        }
        self.groups
            .0
            .retain(|(_, group)| !group.runs.is_empty() || group.place.is_some());
    }

    /// The group of this name.
    pub fn group(&self, name: &Name) -> Option<&Group> {
        self.groups.get(name)
    }

    /// The number of the look that counts.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The lines in which this node stands: the group, its place, and about how many are to be known.
    pub fn lines(&self) -> impl Iterator<Item = (&Name, u64, usize, bool)> {
        let standing = self.groups.0.iter();
        let standing = standing.filter(|(_, group)| group.stage == Stage::Stands);
        standing.filter_map(|(name, group)| {
            let slots = usize::try_from(group.limit).unwrap_or(usize::MAX);
            let most = slots.saturating_add(MOST_BEFORE << group.doubled);
            Some((name, group.place?.revision, most, group.line.is_some()))
        })
    }

    /// What there is to say of this node's slots without the engine; or only of those that have ended.
    pub fn own(&self, is_ended: bool) -> Vec<String> {
        let mut own = Vec::new();
        for (name, group) in &self.groups.0 {
            own.extend(match (group.runs.first(), group.had_turn) {
                _ if is_ended && !group.has_ended => None,
                (Some(_), true) if group.has_ended => Some(ended(name)),
                (Some(run), true) => Some(format!("{} has a slot in group '{name}'", run.why)),
                (Some(run), false) => Some(format!("{} waits in group '{name}'", run.why)),
                (None, _) => None,
            });
        }
        own
    }

    /// A run wants a slot; whoever asks is told when its turn has come.
    ///
    /// # Errors
    /// There are too many groups.
    pub fn want(&mut self, client: Client, wish: &Wish, run: Run) -> Result<Vec<Deed>, String> {
        if self.groups.get(&wish.group).is_none() {
            self.groups.insert(wish.group.clone(), Group::default());
        }
        let is_full = self.groups.0.len() > MOST_GROUPS;
        let Some(group) = self.groups.get_mut(&wish.group).filter(|_| !is_full) else {
            self.groups.remove(&wish.group);
            return Err(format!("runs of this node wait in {MOST_GROUPS} groups"));
        };
        if group.place.is_none() {
            group.limit = wish.limit;
        }
        if !group.runs.iter().any(|one| one.who == run.who) {
            group.runs.push(run);
        }
        group.callers.insert(client, None);
        let mut deeds = vec![Deed::Save];
        if group.stage == Stage::Idle && self.away.is_none() {
            self.go_on(&wish.group, &mut deeds);
        }
        self.settle(&mut deeds);
        Ok(deeds)
    }

    /// Somebody does not want to be told any more.
    pub fn leave(&mut self, client: Client) {
        for (_, group) in &mut self.groups.0 {
            group.callers.remove(&client);
        }
    }

    /// A run has ended.
    pub fn ended(&mut self, name: &Name, who: Identity) -> Vec<Deed> {
        let mut deeds = Vec::new();
        if let Some(group) = self.groups.get_mut(name) {
            group.runs.retain(|run| run.who != who);
            if group.runs.is_empty() {
                group.is_over = true;
                // They were a part of it.
                let all = std::mem::take(&mut group.callers);
                deeds.extend(all.0.into_iter().map(|(client, _)| Deed::Turn(client)));
            }
            if group.runs.is_empty() && group.stage != Stage::Ordered {
                self.give_up(name, &mut deeds);
            }
            deeds.push(Deed::Save);
        }
        deeds
    }

    /// Nobody needs the place any more. Where the engine is away, that is done later.
    fn give_up(&mut self, name: &Name, deeds: &mut Vec<Deed>) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        (group.had_turn, group.is_over, group.asked) = (false, true, None);
        match group.place {
            Some(_) if self.away.is_some() => group.stage = Stage::Idle,
            Some(place) => {
                group.stage = Stage::Ordered;
                deeds.push(Deed::Leave(name.clone(), place.lease));
            }
            None => {
                self.groups.remove(name);
                self.look_anew(deeds);
            }
        }
    }

    fn look_anew(&mut self, deeds: &mut Vec<Deed>) {
        // What is known of a line counts until then: nobody comes before this node.
        self.round += 1;
        deeds.push(Deed::Look);
    }

    /// The engine is there: what was there before is taken up, and what was left undone is done.
    pub fn reached(&mut self) -> Vec<Deed> {
        self.away = None;
        let mut deeds = Vec::new();
        // What was under way has failed with the connection.
        self.retry(Stage::Idle, &mut deeds);
        deeds
    }

    /// When something is to be done.
    pub fn wakes(&self) -> Option<Boottime> {
        let with_end = self.groups.0.iter().filter(|(_, group)| group.can_end());
        let ends = with_end.map(|(_, group)| group.ends);
        self.due.into_iter().chain(ends).min()
    }

    /// Some time has passed: what has failed is begun again, and what has ended is said.
    pub fn tick(&mut self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for (name, group) in &mut self.groups.0 {
            if group.can_end() && group.ends <= self.now {
                group.has_ended = true;
                deeds.push(Deed::Say(ended(name)));
            }
        }
        if self.due.is_some_and(|due| due <= self.now) {
            self.due = None;
            self.retry(Stage::Idle, &mut deeds);
        }
        deeds
    }

    /// Keeps the places alive.
    pub fn beat(&mut self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        self.retry(Stage::Stands, &mut deeds);
        deeds
    }

    fn retry(&mut self, stage: Stage, deeds: &mut Vec<Deed>) {
        if self.away.is_some() {
            return;
        }
        let all = self.groups.0.iter();
        let those = all.filter(|(_, group)| group.stage == stage && group.asked.is_none());
        let names: Vec<Name> = those.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.go_on(&name, deeds);
        }
    }

    fn go_on(&mut self, name: &Name, deeds: &mut Vec<Deed>) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        match group.place {
            _ if group.runs.is_empty() => self.give_up(name, deeds),
            Some(_) if group.is_over => self.give_up(name, deeds),
            Some(place) if place.revision > 0 => {
                if group.stage == Stage::Idle {
                    group.stage = Stage::Ordered;
                }
                group.asked = Some(self.now);
                deeds.push(Deed::Resume(name.clone(), place.lease));
            }
            _ => group.enter(name, self.now, deeds),
        }
    }

    /// The engine is not there any more.
    pub fn lost(&mut self, why: &str) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let away = format!("the engine is not there: {why}");
        let was_there = self.away.replace(away).is_none();
        self.round += 1;
        for (name, group) in &mut self.groups.0 {
            (group.stage, group.asked, group.line) = (Stage::Idle, None, None);
            group.is_looking = false;
            if was_there && group.had_turn && !group.runs.is_empty() {
                deeds.push(Deed::Say(format!(
                    "the slot in group '{name}' ends with its lease, a minute after it was renewed last, unless the engine is back before: one more may run then"
                )));
            }
        }
        self.settle(&mut deeds);
        deeds
    }

    /// The first write is there.
    pub fn entered(&mut self, name: &Name, first: u64, lease: Lease) -> Vec<Deed> {
        let Some(group) = self.groups.get_mut(name) else {
            return vec![Deed::Leave(name.clone(), lease)];
        };
        let revision = 0;
        group.place = Some(Place {
            lease,
            first,
            revision,
        });
        group.confirmed();
        let mut deeds = vec![Deed::Save];
        if group.is_over {
            self.give_up(name, &mut deeds);
        } else {
            deeds.push(Deed::Sign(name.clone()));
        }
        deeds
    }

    /// The place is there, as of this revision; or it is still there.
    pub fn stands(&mut self, name: &Name, revision: Option<u64>) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let Some(group) = self.groups.get_mut(name) else {
            return deeds;
        };
        match (&mut group.place, revision) {
            (Some(place), Some(revision)) => {
                place.revision = revision;
                deeds.push(Deed::Save);
            }
            _ if group.asked.is_some() => group.confirmed(),
            // It is given up by now.
            _ => return deeds,
        }
        let stood = group.stage == Stage::Stands;
        (group.stage, group.trouble) = (Stage::Stands, None);
        self.failures = 0;
        if group.is_over {
            self.give_up(name, &mut deeds);
        } else if stood {
            self.settle(&mut deeds);
        } else {
            self.look_anew(&mut deeds);
        }
        deeds
    }

    /// What was ordered was not done, and is tried again later.
    pub fn failed(&mut self, name: &Name, why: String) -> Vec<Deed> {
        if let Some(group) = self.groups.get_mut(name) {
            (group.stage, group.trouble, group.asked) = (Stage::Idle, Some(why), None);
        }
        let pause = PAUSE.nanos() << self.failures.min(DOUBLED);
        self.failures += 1;
        self.due = Some(self.now + Span::from_nanos(pause));
        self.look()
    }

    /// A place was given up.
    pub fn left(&mut self, name: &Name, lease: Lease) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let Some(group) = self.groups.get_mut(name) else {
            return deeds;
        };
        if group.place.is_none_or(|place| place.lease != lease) {
            return deeds;
        }
        (group.place, group.stage) = (None, Stage::Idle);
        // Somebody may have come meanwhile.
        self.go_on(name, &mut deeds);
        deeds.push(Deed::Save);
        deeds
    }

    /// The place is not there any more. A run that has begun goes on without; one that waits goes to the end of the line.
    /// Where that is seen and not told, it does so a little later, for it may be seen again.
    pub fn gone(&mut self, name: &Name, is_seen: bool) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let Some(group) = self.groups.get_mut(name) else {
            return deeds;
        };
        if let Some(place) = group.place.take() {
            deeds.push(Deed::Leave(name.clone(), place.lease));
        }
        let had_turn = std::mem::take(&mut group.had_turn);
        let is_said = std::mem::take(&mut group.has_ended);
        if had_turn && is_said {
            // It has ended with its lease.
        } else if had_turn {
            deeds.push(Deed::Say(format!(
                "the slot in group '{name}' is gone, by 'again-fleet release', with its lease, or by whoever may write to the engine: the run here goes on, and one more may run meanwhile"
            )));
        } else {
            deeds.push(Deed::Say(format!(
                "the place in group '{name}' is gone, by 'again-fleet release', with its lease, or by whoever may write to the engine: the run here waits at the end of the line"
            )));
        }
        (group.stage, group.asked, group.line) = (Stage::Idle, None, None);
        group.is_looking = false;
        if group.runs.is_empty() || had_turn && group.callers.0.is_empty() {
            self.groups.remove(name);
            self.look_anew(&mut deeds);
        } else if is_seen {
            self.due = Some(self.now + PAUSE);
        } else if self.away.is_none() {
            group.enter(name, self.now, &mut deeds);
        }
        deeds.push(Deed::Save);
        deeds
    }

    /// Those before this node in a line, by their own word, whether they are all, and whether it stands behind them.
    pub fn saw(
        &mut self,
        name: &Name,
        line: Vec<Standing>,
        is_all: bool,
        stands: bool,
    ) -> Vec<Deed> {
        if let Some(group) = self.standing(name) {
            if is_all && !stands {
                return self.gone(name, true);
            }
            let is_short =
                !is_all && line.len() < usize::try_from(group.limit).unwrap_or(usize::MAX);
            group.doubled = if is_short {
                DOUBLED.min(group.doubled + 1)
            } else {
                0
            };
            (group.line, group.is_all, group.is_looking) = (Some(line), is_all, false);
        }
        self.look()
    }

    /// Nobody stands there any more; or this node does not.
    pub fn saw_go(&mut self, name: &Name, node: &Node, me: &Node) -> Vec<Deed> {
        if let Some(group) = self.standing(name) {
            if node == me {
                return self.gone(name, true);
            }
            if let Some(line) = &mut group.line {
                line.retain(|one| one.slot.node != *node);
            }
        }
        self.look()
    }

    fn standing(&mut self, name: &Name) -> Option<&mut Group> {
        let group = self.groups.get_mut(name);
        group.filter(|group| group.stage == Stage::Stands)
    }

    /// Sees whose turn has come, and tells whoever waits.
    pub fn look(&mut self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        self.settle(&mut deeds);
        deeds
    }

    fn settle(&mut self, deeds: &mut Vec<Deed>) {
        let mut is_enough = true;
        for (_, group) in &mut self.groups.0 {
            let mut waits = (String::new(), false);
            // A place that this node only remembers may be somebody else's by now.
            let is_sure = group.stage == Stage::Stands && self.now < group.ends;
            if let Some(why) = self.away.as_ref().or(group.trouble.as_ref()) {
                waits = (why.clone(), true);
            } else if !group.had_turn
                && is_sure
                && let Some(line) = &group.line
            {
                let limits = line.iter().map(|one| one.slot.limit);
                let limit = limits.fold(group.limit, u32::min);
                if line.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
                    waits.0 = before(line, limit, group.is_all);
                } else if group.is_all {
                    group.had_turn = true;
                    deeds.push(Deed::Save);
                } else {
                    waits.0 = before(line, limit, false);
                    is_enough &= std::mem::replace(&mut group.is_looking, true);
                }
            }
            if group.had_turn && is_sure {
                let all = std::mem::take(&mut group.callers);
                deeds.extend(all.0.into_iter().map(|(client, _)| Deed::Turn(client)));
            }
            for (client, told) in &mut group.callers.0 {
                if told.as_ref() != Some(&waits) {
                    *told = Some(waits.clone());
                    deeds.push(Deed::Tell(*client, waits.clone()));
                }
            }
        }
        if !is_enough {
            self.look_anew(deeds);
        }
    }
}

fn ended(name: &Name) -> String {
    format!(
        "the slot in group '{name}' has ended with its lease; the run here goes on, and one more may run"
    )
}

/// Who is before it, in words.
fn before(line: &[Standing], limit: u32, is_all: bool) -> String {
    let nodes = line.iter().take(MOST_NAMED);
    let mut nodes: Vec<&str> = nodes.map(|one| one.slot.node.as_str()).collect();
    if nodes.len() < line.len() {
        nodes.push("...");
    }
    let (count, nodes) = (line.len(), nodes.join(", "));
    let more = if is_all { "" } else { " or more" };
    format!(", which has {limit}: {count}{more} before it: {nodes}")
}

impl Group {
    fn enter(&mut self, name: &Name, now: Boottime, deeds: &mut Vec<Deed>) {
        if let Some(place) = self.place.take() {
            deeds.push(Deed::Leave(name.clone(), place.lease));
        }
        (self.stage, self.is_over, self.trouble) = (Stage::Ordered, false, None);
        (self.line, self.is_looking, self.doubled) = (None, false, 0);
        self.asked = Some(now);
        deeds.push(Deed::Enter(name.clone()));
    }

    /// The engine has done what was asked for: the lease lives from then on.
    fn confirmed(&mut self) {
        if let Some(asked) = self.asked.take() {
            (self.ends, self.has_ended) = (asked + Span::from_secs(LEASE), false);
        }
    }

    /// Whether a run has its slot by a lease of which it was not said that it has ended.
    fn can_end(&self) -> bool {
        self.had_turn && !self.has_ended && !self.runs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::wire::slot::Slot;

    fn group() -> Name {
        "g".parse().expect("a name")
    }

    fn name_of(n: usize) -> Node {
        format!("n{n}").parse().expect("a certname")
    }

    fn run(pid: i32) -> Run {
        Run {
            who: Identity { pid, start: 1 },
            file: 1,
            since: 1,
            why: format!("process {pid}"),
        }
    }

    fn wish(pid: i32, limit: u32) -> Wish {
        let Run { who, why, .. } = run(pid);
        Wish {
            group: group(),
            limit,
            run: who,
            why,
        }
    }

    /// What stands in the engine.
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

    /// An engine, to which everybody's orders come in any order.
    #[derive(Default)]
    struct Store {
        now: u64,
        revision: u64,
        values: BTreeMap<usize, Held>,
        /// When each ends.
        leases: BTreeMap<Lease, u64>,
        log: Vec<(usize, Option<Held>)>,
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

        fn revoke(&mut self, lease: Lease) {
            self.leases.remove(&lease);
            let gone = self.values.iter().filter(|(_, held)| held.lease == lease);
            let gone: Vec<usize> = gone.map(|(n, _)| *n).collect();
            gone.into_iter().for_each(|n| self.remove(n));
        }

        fn pass(&mut self, seconds: u64) {
            self.now += seconds;
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
    #[derive(Default)]
    struct Stand {
        slots: Slots,
        /// What is on its disk.
        kept: String,
        is_up: bool,
        /// Ordered, and not answered.
        orders: Vec<Deed>,
        /// How far its look is in the log; none before it has listed.
        look: Option<(u64, Option<usize>)>,
        beat: u64,
        client: Client,
        pid: i32,
        /// Whether its run has begun.
        runs: Option<bool>,
        done: usize,
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
                world.nodes.push(Stand::default());
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
        fn doing(&mut self, n: usize, deeds: Vec<Deed>) {
            let mut is_kept = true;
            for deed in deeds {
                let node = &mut self.nodes[n];
                match deed {
                    Deed::Save => is_kept = false,
                    Deed::Look => node.look = Some((node.slots.round, None)),
                    Deed::Turn(client) if client == node.client => {
                        if node.runs == Some(false) {
                            node.runs = Some(true);
                            self.begins(n);
                        }
                    }
                    Deed::Turn(_) | Deed::Tell(..) | Deed::Say(_) => {}
                    order => node.orders.push(order),
                }
            }
            if !is_kept {
                let node = &mut self.nodes[n];
                node.kept = node.slots.written();
            }
        }

        /// Never more than the limit, nor before those who came first, nor by a lease that has ended: by what the engine holds at that
        /// moment.
        fn begins(&self, n: usize) {
            let place = self.nodes[n].slots.group(&group()).expect("a group").place;
            let place = place.expect("a place").revision;
            let held = self.store.values.get(&n).expect("a lease that lives");
            assert_eq!(held.revision, place, "n{n}");
            let before = self.store.before(place);
            assert!(before < self.limit as usize, "n{n} after {before}");
            let running = |(n, node): &(usize, &Stand)| {
                node.runs == Some(true) && self.store.values.contains_key(n)
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
            let (wish, run) = (wish(node.pid, self.limit), run(node.pid));
            let client = node.client;
            let deeds = self.slots(n).want(client, &wish, run).expect("wanted");
            self.doing(n, deeds);
        }

        fn ends(&mut self, n: usize) {
            let node = &mut self.nodes[n];
            if node.runs.take() == Some(true) {
                node.done += 1;
            }
            let who = run(node.pid).who;
            let deeds = self.slots(n).ended(&group(), who);
            self.doing(n, deeds);
        }

        /// Kills the service of a node, and starts it.
        fn start(&mut self, n: usize) {
            let node = &mut self.nodes[n];
            node.slots = Slots::read(&node.kept);
            let lives = node.runs.is_some().then_some(node.pid);
            self.slots(n).begin(|_, run| Some(run.who.pid) == lives);
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
        }

        /// The connection breaks; what is under way may be done, and is not answered.
        fn breaks(&mut self, n: usize) {
            for _ in 0..self.dice.random_range(0..3) {
                if !self.nodes[n].orders.is_empty() {
                    self.ordered(n, false);
                }
            }
            self.unlinked(n);
            let deeds = self.slots(n).lost("gone");
            self.doing(n, deeds);
        }

        fn reached(&mut self, n: usize) {
            self.nodes[n].is_up = true;
            self.nodes[n].beat = self.store.now + BEAT;
            let deeds = self.slots(n).reached();
            self.doing(n, deeds);
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
            let deeds = match order {
                Deed::Enter(name) => {
                    let (first, lease) = store.enter(n);
                    match is_answered {
                        true if fails => slots.failed(&name, "no answer".to_owned()),
                        true => slots.entered(&name, first, lease),
                        false => return,
                    }
                }
                Deed::Sign(name) => {
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
                    };
                    match store.sign(n, slot, place.lease) {
                        _ if !is_answered => return,
                        _ if fails => slots.failed(&name, "no answer".to_owned()),
                        Some(revision) => slots.stands(&name, Some(revision)),
                        None => slots.gone(&name, false),
                    }
                }
                Deed::Resume(name, lease) => match store.renew(lease) {
                    _ if !is_answered || !is_of(lease) => return,
                    _ if fails => slots.failed(&name, "no answer".to_owned()),
                    true => slots.stands(&name, None),
                    false => slots.gone(&name, false),
                },
                Deed::Leave(name, lease) => {
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
            self.doing(n, deeds);
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
                let mut listed: Vec<_> =
                    values.filter(|(_, held)| held.revision <= place).collect();
                listed.sort_by_key(|(_, held)| held.revision);
                listed.truncate(most);
                let is_all = listed.len() < most;
                let stands = listed
                    .iter()
                    .any(|(one, held)| **one == n && held.revision == place);
                let others = listed.iter().filter(|(one, _)| **one != n);
                let line = others.filter_map(|(_, held)| held.standing()).collect();
                let deeds = self.slots(n).saw(&group(), line, is_all, stands);
                return self.doing(n, deeds);
            };
            for at in at..to {
                let (other, held) = &self.store.log[at];
                let (other, is_gone) = (*other, held.is_none());
                // What it has led to may be another look.
                if is_gone && self.nodes[n].slots.round == round {
                    let slots = self.slots(n);
                    let deeds = slots.saw_go(&group(), &name_of(other), &name_of(n));
                    self.doing(n, deeds);
                }
            }
        }

        fn pass(&mut self, seconds: u64) {
            self.store.pass(seconds);
            for n in 0..self.nodes.len() {
                let deeds = self.slots(n).tick();
                self.doing(n, deeds);
                let node = &mut self.nodes[n];
                if !node.is_up || node.beat > self.store.now {
                    continue;
                }
                node.beat = self.store.now + BEAT;
                let deeds = self.slots(n).beat();
                self.doing(n, deeds);
            }
        }

        /// Everything goes on for a while without harm: what is under way is done, what is told is heard.
        fn settles(&mut self) {
            for n in 0..self.nodes.len() {
                if !self.nodes[n].is_up {
                    self.reached(n);
                }
                while !self.nodes[n].orders.is_empty() {
                    self.ordered(n, true);
                }
                for _ in 0..4 {
                    self.watched(n);
                }
            }
        }

        /// One thing that may happen.
        fn step(&mut self) {
            let n = self.dice.random_range(0..self.nodes.len());
            let node = &self.nodes[n];
            match self.dice.random_range(0..100) {
                0..30 if !node.orders.is_empty() => self.ordered(n, true),
                0..55 => self.watched(n),
                55..75 if node.runs.is_none() => self.wants(n),
                55..65 if node.runs == Some(true) => self.ends(n),
                65..67 => self.ends(n),
                75..80 => self.start(n),
                80..83 if node.is_up => self.breaks(n),
                80..95 if !node.is_up => self.reached(n),
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
            let waits = |world: &World| world.nodes.iter().any(|node| node.runs.is_some());
            // What is left of those that were killed goes with its lease.
            let mut rounds = (LEASE + BEAT) / 5 + 2 + self.nodes.len() as u64;
            while waits(self) || !self.store.values.is_empty() {
                rounds -= 1;
                assert!(rounds > 0, "a slot is lost");
                self.settles();
                for n in 0..self.nodes.len() {
                    if self.nodes[n].runs == Some(true) {
                        self.ends(n);
                    }
                }
                self.pass(5);
            }
            self.pass(LEASE);
            assert!(self.store.leases.is_empty(), "{:?}", self.store.leases);
        }
    }

    /// Until a node stands in the engine, and has heard of it.
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
        for seed in 0..30 {
            let (count, limit) = [(100, 5), (12, 3), (3, 1)][seed as usize % 3];
            let mut world = World::new(seed, count, limit);
            world.fails = true;
            for _ in 0..4000 {
                world.step();
            }
            world.ends_well();
        }
    }

    #[test]
    fn a_service_that_is_killed_again_and_again_keeps_the_place_of_a_run_that_lives() {
        let mut world = standing(2, 1);
        let place = world.nodes[0].slots.group(&group()).expect("a group").place;
        for _ in 0..50 {
            world.start(0);
            world.reached(0);
            let lease = place.expect("a place").lease;
            assert_eq!(world.nodes[0].orders, [Deed::Resume(group(), lease)]);
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
        assert_eq!(world.nodes[0].orders, [Deed::Leave(group(), lease)]);
        (0..3).for_each(|_| world.settles());
        assert_eq!(world.nodes[0].runs, Some(false));
        assert_eq!(world.nodes[1].runs, Some(true));
    }

    #[test]
    fn runs_of_one_node_share_a_place_and_the_last_frees_it() {
        let mut world = standing(2, 1);
        let node = &mut world.nodes[0];
        let deeds = node.slots.want(50, &wish(7, 1), run(7)).expect("wanted");
        assert_eq!(deeds, [Deed::Save, Deed::Turn(50)]);
        assert_eq!(node.slots.ended(&group(), run(1).who), [Deed::Save]);
        let last = node.slots.ended(&group(), run(7).who);
        assert!(
            matches!(last[..], [Deed::Leave(..), Deed::Save]),
            "{last:?}"
        );
    }

    /// A second run of the node goes to the end of the line.
    #[test]
    fn a_run_that_has_begun_goes_on_without_its_place() {
        let mut world = standing(1, 1);
        let slots = &mut world.nodes[0].slots;
        assert!(matches!(&slots.lost("gone")[..], [Deed::Say(why)] if why.contains("one more")));
        // What this node remembers is nothing to begin by.
        let deeds = slots.want(50, &wish(7, 1), run(7)).expect("wanted");
        assert!(
            matches!(deeds[..], [Deed::Save, Deed::Tell(50, _)]),
            "{deeds:?}"
        );
        let deeds = slots.reached();
        assert!(matches!(deeds[..], [Deed::Resume(..)]), "{deeds:?}");
        let deeds = slots.gone(&group(), false);
        let [Deed::Leave(..), Deed::Say(why), Deed::Enter(_), Deed::Save] = &deeds[..] else {
            panic!("{deeds:?}");
        };
        assert!(why.contains("the run here goes on"), "{why}");
        slots.leave(50);
        assert!(slots.ended(&group(), run(7).who).contains(&Deed::Save));
        // Without one, nothing is left to be freed.
        let mut world = standing(1, 1);
        let slots = &mut world.nodes[0].slots;
        slots.gone(&group(), false);
        assert!(slots.groups.0.is_empty());
        assert_eq!(slots.ended(&group(), run(1).who), []);
    }

    /// It is said when that is so, once, and what comes then has no part in it.
    #[test]
    fn a_slot_ends_with_its_lease_whether_the_engine_is_there_or_not() {
        let mut world = standing(2, 1);
        assert_eq!(world.nodes[0].slots.own(true), [""; 0]);
        world.breaks(0);
        let ends = world.nodes[0].slots.wakes().expect("an end");
        assert_eq!(ends.nanos(), LEASE * 1_000_000_000);
        world.store.now = LEASE - 1;
        assert_eq!(world.slots(0).tick(), []);
        world.store.now = LEASE;
        let said = ended(&group());
        assert_eq!(world.slots(0).tick(), [Deed::Say(said.clone())]);
        assert_eq!(
            (world.slots(0).tick(), world.slots(0).wakes()),
            (Vec::new(), None)
        );
        let own = [world.slots(0).own(true), world.slots(0).own(false)];
        assert_eq!(own, [[said.as_str()], [said.as_str()]]);
        let waits = ["process 1 waits in group 'g'"];
        assert_eq!(world.slots(1).own(false), waits);
        // It was told already.
        assert!(matches!(world.slots(0).reached()[..], [Deed::Resume(..)]));
        let deeds = world.slots(0).gone(&group(), false);
        assert!(
            !deeds.iter().any(|deed| matches!(deed, Deed::Say(_))),
            "{deeds:?}"
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
        let deeds = go(&mut late);
        assert!(
            !deeds.iter().any(|deed| matches!(deed, Deed::Turn(_))),
            "{deeds:?}"
        );
        // Once it was kept alive, counted from when that was asked for.
        let deeds = late.slots(1).beat();
        assert!(matches!(deeds[..], [Deed::Resume(..)]), "{deeds:?}");
        assert_eq!(late.slots(1).beat(), [], "one at a time");
        late.store.now += LEASE - 1;
        let deeds = late.slots(1).stands(&group(), None);
        assert!(
            deeds.iter().any(|deed| matches!(deed, Deed::Turn(_))),
            "{deeds:?}"
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
        let told = world.nodes[29].slots.groups.0[0].1.callers.0[0].1.clone();
        let what = ", which has 2: 7 or more before it: n0, n1, n2, n3, n4, ...";
        assert_eq!(told, Some((what.to_owned(), false)));
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
        slots.want(1, &wish(1, 3), run(1)).expect("wanted");
        slots.entered(&group(), 20, 1);
        slots.stands(&group(), Some(21));
        let wanted = |slots: &Slots| slots.lines().map(|line| (line.2, line.3)).next();
        assert_eq!(wanted(&slots), Some((3 + MOST_BEFORE, false)));
        for n in 1..=7 {
            let deeds = slots.saw(&group(), Vec::new(), false, false);
            assert!(deeds.contains(&Deed::Look), "{deeds:?}");
            assert!(!deeds.contains(&Deed::Turn(1)), "{deeds:?}");
            // Not looked at again before that is answered.
            assert_eq!(slots.look(), []);
            let most = 3 + (MOST_BEFORE << n.min(DOUBLED));
            assert_eq!(wanted(&slots), Some((most, true)));
        }
        let deeds = slots.saw(&group(), Vec::new(), true, true);
        assert_eq!(deeds, [Deed::Save, Deed::Turn(1)]);
    }

    #[test]
    fn what_fails_is_tried_again_less_and_less_often() {
        let mut slots = Slots::default();
        slots.reached();
        slots.want(1, &wish(1, 3), run(1)).expect("wanted");
        let mut pauses = Vec::new();
        for _ in 0..7 {
            slots.failed(&group(), "denied".to_owned());
            let due = slots.due.expect("later");
            pauses.push(due.since(slots.now).nanos() / 1_000_000_000);
            slots.now = due;
            assert!(slots.tick().contains(&Deed::Enter(group())));
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 64]);
    }

    /// Those behind it name what they like.
    #[test]
    fn the_smallest_number_of_those_before_it_and_its_own_counts() {
        let mut slots = Slots::default();
        slots.reached();
        slots.want(1, &wish(1, 3), run(1)).expect("wanted");
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
            };
            Standing::new(slot, n + 1, n, 2).expect("its own")
        };
        let mut told = |line: Vec<Standing>| slots.saw(&group(), line, true, true);
        let waits = |deeds: &[Deed]| match deeds {
            [Deed::Tell(1, (what, false))] => what.clone(),
            other => panic!("{other:?}"),
        };
        let line = vec![standing(1, 2), standing(3, 8)];
        assert!(waits(&told(line)).starts_with(", which has 2: 2 before it"));
        let line = vec![standing(1, 9), standing(3, 9), standing(5, 8)];
        assert!(waits(&told(line)).starts_with(", which has 3: 3 before it"));
        let deeds = told(vec![standing(3, 9), standing(5, 8)]);
        assert!(
            matches!(deeds[..], [Deed::Save, Deed::Turn(1)]),
            "{deeds:?}"
        );
    }

    #[test]
    fn whoever_waits_is_told_who_is_before_them_whenever_that_changes() {
        let mut world = standing(5, 1);
        let told = |world: &World| {
            let callers = &world.nodes[4]
                .slots
                .group(&group())
                .expect("a group")
                .callers;
            let told = callers.0.first().and_then(|(_, told)| told.clone());
            told.expect("told")
        };
        let what = ", which has 1: 4 before it: n0, n1, n2, n3".to_owned();
        assert_eq!(told(&world), (what, false));
        world.ends(0);
        world.settles();
        let what = ", which has 1: 3 before it: n1, n2, n3".to_owned();
        assert_eq!(told(&world), (what, false));
        assert_eq!(world.slots(4).look(), [], "nothing is told twice");
        world.breaks(4);
        let what = "the engine is not there: gone".to_owned();
        assert_eq!(told(&world), (what, true));
    }

    #[test]
    fn what_is_kept_comes_back_and_any_text_is_taken() {
        let mut world = standing(3, 2);
        let deeds = world.nodes[0].slots.want(50, &wish(7, 1), run(7));
        assert!(deeds.is_ok());
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
}
