//! The runs of this node that wait for a slot, or have one, and the node's places in the engine. What is to be done about them is said
//! here, and done elsewhere.

use std::collections::BTreeMap;

use again::model::Identity;
use serde::{Deserialize, Serialize};

use crate::ask::{Waits, Wish};
use crate::policy::slots::{Lease, Line, Standing};
use crate::step::model::Client;
use crate::wire::name::{Name, Node};

/// How many nodes are named to whoever waits.
const MOST_NAMED: usize = 5;
/// How many groups a node is in together.
const MOST_GROUPS: usize = 64;

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Group {
    /// How many slots it has, as far as this node knows.
    pub limit: u32,
    /// The runs that have not ended.
    pub runs: Vec<Run>,
    /// Where it stands.
    pub place: Option<Place>,
    /// Whether its turn has come.
    pub had_turn: bool,
    #[serde(skip)]
    stage: Stage,
    /// What the engine said when it did not do what was ordered.
    #[serde(skip)]
    trouble: Option<String>,
    /// Who waits to be told, and what they were told last.
    #[serde(skip)]
    callers: BTreeMap<Client, Option<Waits>>,
}

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
    /// To watch all groups in which this node stands, from the beginning; or none.
    Watch,
    /// To tell somebody why they wait.
    Tell(Client, Waits),
    /// To tell somebody that their turn has come.
    Turn(Client),
    /// To log this.
    Say(String),
}

/// All groups.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slots {
    groups: BTreeMap<Name, Group>,
    /// Whoever stands in these groups, and by its own word.
    #[serde(skip)]
    seen: BTreeMap<(Name, Node), Standing>,
    /// Whether all of them were seen.
    #[serde(skip)]
    is_complete: bool,
    /// The number of the watch that counts.
    #[serde(skip)]
    round: u64,
    /// Why the engine cannot be asked; nothing if it can.
    #[serde(skip)]
    away: Option<String>,
}

impl Slots {
    /// After a start; only runs that `lives` says have not ended.
    pub fn begin(&mut self, mut lives: impl FnMut(&Name, &Run) -> bool) {
        self.away = Some("it was not reached yet".to_owned());
        for (name, group) in &mut self.groups {
            group.runs.retain(|run| lives(name, run));
        }
        self.groups
            .retain(|_, group| !group.runs.is_empty() || group.place.is_some());
    }

    /// The group of this name.
    pub fn group(&self, name: &Name) -> Option<&Group> {
        self.groups.get(name)
    }

    /// The number of the watch that counts, and the groups that it is for.
    pub fn watch(&self) -> (u64, Vec<&Name>) {
        (self.round, self.groups.keys().collect())
    }

    /// A run wants a slot; whoever asks is told when its turn has come.
    ///
    /// # Errors
    /// There are too many groups.
    pub fn want(&mut self, client: Client, wish: &Wish, run: Run) -> Result<Vec<Deed>, String> {
        if self.groups.len() >= MOST_GROUPS && !self.groups.contains_key(&wish.group) {
            return Err(format!("runs of this node wait in {MOST_GROUPS} groups"));
        }
        let group = self.groups.entry(wish.group.clone()).or_default();
        if group.place.is_none() {
            group.limit = wish.limit;
        }
        if !group.runs.iter().any(|one| one.who == run.who) {
            group.runs.push(run);
        }
        group.callers.insert(client, None);
        let mut deeds = vec![Deed::Save];
        if group.stage == Stage::Idle && self.away.is_none() {
            group.enter(&wish.group, &mut deeds);
        }
        self.settle(&mut deeds);
        Ok(deeds)
    }

    /// Somebody does not want to be told any more.
    pub fn leave(&mut self, client: Client) {
        for group in self.groups.values_mut() {
            group.callers.remove(&client);
        }
    }

    /// A run has ended.
    pub fn ended(&mut self, name: &Name, who: Identity) -> Vec<Deed> {
        let mut deeds = Vec::new();
        if let Some(group) = self.groups.get_mut(name) {
            group.runs.retain(|run| run.who != who);
            if group.runs.is_empty() {
                // They were a part of it.
                let all = std::mem::take(&mut group.callers);
                deeds.extend(all.into_keys().map(Deed::Turn));
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
        group.had_turn = false;
        match group.place {
            Some(_) if self.away.is_some() => group.stage = Stage::Idle,
            Some(place) => {
                group.stage = Stage::Ordered;
                deeds.push(Deed::Leave(name.clone(), place.lease));
            }
            None => {
                self.groups.remove(name);
                self.watch_anew(deeds);
            }
        }
    }

    fn watch_anew(&mut self, deeds: &mut Vec<Deed>) {
        self.round += 1;
        self.seen.clear();
        self.is_complete = false;
        deeds.push(Deed::Watch);
    }

    /// The engine is there: what was there before is taken up, and what was left undone is done.
    pub fn reached(&mut self) -> Vec<Deed> {
        self.away = None;
        let mut deeds = Vec::new();
        let names: Vec<Name> = self.groups.keys().cloned().collect();
        for name in names {
            self.go_on(&name, &mut deeds);
        }
        deeds
    }

    /// Begins again with what has failed.
    pub fn retry(&mut self) -> Vec<Deed> {
        if self.away.is_some() {
            return Vec::new();
        }
        let idle = self
            .groups
            .iter()
            .filter(|(_, group)| group.stage == Stage::Idle);
        let idle: Vec<Name> = idle.map(|(name, _)| name.clone()).collect();
        let mut deeds = Vec::new();
        for name in idle {
            self.go_on(&name, &mut deeds);
        }
        deeds
    }

    fn go_on(&mut self, name: &Name, deeds: &mut Vec<Deed>) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        match group.place {
            _ if group.runs.is_empty() => self.give_up(name, deeds),
            Some(place) if place.revision > 0 => {
                group.stage = Stage::Ordered;
                deeds.push(Deed::Resume(name.clone(), place.lease));
            }
            _ => group.enter(name, deeds),
        }
    }

    /// The engine is not there any more.
    pub fn lost(&mut self, why: &str) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let was_there = self.away.replace(why.to_owned()).is_none();
        (self.is_complete, self.round) = (false, self.round + 1);
        for (name, group) in &mut self.groups {
            group.stage = Stage::Idle;
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
        let mut deeds = vec![Deed::Save];
        if group.runs.is_empty() {
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
        if let (Some(place), Some(revision)) = (&mut group.place, revision) {
            place.revision = revision;
            deeds.push(Deed::Save);
        }
        group.stage = Stage::Stands;
        if group.runs.is_empty() {
            self.give_up(name, &mut deeds);
        } else {
            self.watch_anew(&mut deeds);
        }
        deeds
    }

    /// What was ordered was not done, and is tried again later.
    pub fn failed(&mut self, name: &Name, why: String) -> Vec<Deed> {
        if let Some(group) = self.groups.get_mut(name) {
            (group.stage, group.trouble) = (Stage::Idle, Some(why));
        }
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
    /// Where that is seen and not told, it does so with the next beat, for it may be seen again.
    pub fn gone(&mut self, name: &Name, is_seen: bool) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let Some(group) = self.groups.get_mut(name) else {
            return deeds;
        };
        if let Some(place) = group.place.take() {
            deeds.push(Deed::Leave(name.clone(), place.lease));
        }
        if group.had_turn {
            deeds.push(Deed::Say(format!(
                "the slot in group '{name}' is gone, by 'again-fleet release', with its lease, or by whoever may write to the engine: the run here goes on, and one more may run meanwhile"
            )));
            self.groups.remove(name);
            self.watch_anew(&mut deeds);
        } else {
            deeds.push(Deed::Say(format!(
                "the place in group '{name}' is gone, by 'again-fleet release', with its lease, or by whoever may write to the engine: the run here waits at the end of the line"
            )));
            group.stage = Stage::Idle;
            if self.away.is_none() && !is_seen {
                group.enter(name, &mut deeds);
            }
        }
        deeds.push(Deed::Save);
        deeds
    }

    /// Somebody stands there, by its own word; or nobody does.
    pub fn saw(&mut self, name: Name, node: Node, standing: Option<Standing>) {
        match standing {
            Some(standing) => drop(self.seen.insert((name, node), standing)),
            None => drop(self.seen.remove(&(name, node))),
        }
    }

    /// All was seen that there is, up to now.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// The groups in which this node does not stand any more where it should.
    pub fn missing(&self, me: &Node) -> Vec<Name> {
        let is_missing = |(name, group): &(&Name, &Group)| {
            let seen = self.seen.get(&((*name).clone(), me.clone()));
            let place = group.place.map(|place| place.revision);
            group.stage == Stage::Stands && seen.map(|one| one.revision) != place
        };
        if !self.is_complete {
            return Vec::new();
        }
        let all = self.groups.iter().filter(is_missing);
        all.map(|(name, _)| name.clone()).collect()
    }

    /// Sees whose turn has come, and tells whoever waits.
    pub fn look(&mut self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        self.settle(&mut deeds);
        deeds
    }

    fn settle(&mut self, deeds: &mut Vec<Deed>) {
        for (name, group) in &mut self.groups {
            let mut waits = Waits {
                away: self.away.as_ref().or(group.trouble.as_ref()).cloned(),
                ..Waits::default()
            };
            if !group.had_turn && self.is_complete && group.stage == Stage::Stands {
                let others = self.seen.iter().filter(|((one, _), _)| one == name);
                let line = Line::new(others.map(|(_, standing)| standing));
                let revision = group.place.map_or(0, |place| place.revision);
                let before = line.nodes.iter().filter(|one| one.revision < revision);
                let before: Vec<&Node> = before.map(|one| &one.slot.node).collect();
                (waits.limit, waits.before) = (line.limit as u64, before.len() as u64);
                waits.nodes = before
                    .iter()
                    .take(MOST_NAMED)
                    .map(|one| (*one).clone())
                    .collect();
                if line.may_run(before.len()) {
                    group.had_turn = true;
                    deeds.push(Deed::Save);
                }
            }
            if group.had_turn && group.place.is_some() {
                let all = std::mem::take(&mut group.callers);
                deeds.extend(all.into_keys().map(Deed::Turn));
            }
            for (client, told) in &mut group.callers {
                if told.as_ref() != Some(&waits) {
                    *told = Some(waits.clone());
                    deeds.push(Deed::Tell(*client, waits.clone()));
                }
            }
        }
    }
}

impl Group {
    fn enter(&mut self, name: &Name, deeds: &mut Vec<Deed>) {
        self.place = None;
        (self.stage, self.trouble) = (Stage::Ordered, None);
        deeds.push(Deed::Enter(name.clone()));
    }
}
