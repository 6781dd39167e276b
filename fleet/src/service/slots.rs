//! Runs of this node that wait for a slot or have one, and the node's entries in the queues. This
//! module decides; the driver carries out the effects.

mod beating;
mod held;
mod kept;
mod shown;

use again_base::model::{Boottime, Span};

pub use held::{Holder, Run, Waiter, named};
use held::{before, ended};

use super::small_map::SmallMap;
use crate::backend::LEASE;
use crate::policy::beat::SURE;
use crate::policy::replay::TriggerKey;
use crate::policy::slots::{Lease, Standing};
use crate::step::model::Client;
use crate::wire::beat::MOST_GROUPS;
use crate::wire::name::{Name, Node};

/// Number of entries before its own that a node wants to know, in addition to the number of slots.
const MOST_BEFORE: usize = if cfg!(test) { 5 } else { 100 };
/// Pause before a failed request is repeated: shorter than a run waits for a silent service.
const PAUSE: Span = Span::from_secs(2);
/// Largest number of times that the pause doubles, and that the number of entries to read doubles.
const DOUBLED: u32 = 5;

/// Entry of this node in the queue of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Lease of the entry.
    pub lease: Lease,
    /// Revision of the first write.
    pub first: u64,
    /// Revision of the second write, which is the position in the queue; 0 before that.
    pub revision: u64,
}

/// Progress with an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// No request is under way.
    #[default]
    Idle,
    /// A request was sent.
    Ordered,
    /// The entry is stored in the backend.
    Stands,
}

/// Group in which runs of this node wait or have a slot.
#[derive(Debug, Default)]
pub struct Group {
    /// Number of slots, as far as this node knows.
    pub limit: u32,
    /// Runs that have not ended.
    pub runs: Vec<Run>,
    /// Entry of this node in the queue, if there is one.
    pub place: Option<Place>,
    /// Whether the turn of this node has come.
    pub had_turn: bool,
    /// Whether the runs that the entry was for have ended. Runs that came since need a new entry.
    is_over: bool,
    stage: Stage,
    /// Error of the last request to the backend.
    trouble: Option<String>,
    /// Time of the first write or renewal that is not answered yet.
    asked: Option<Boottime>,
    /// End of the lease, counted from the last renewal that the backend confirmed.
    ends: Boottime,
    /// Time until which beats make this node certain of its entry; none before its first write or
    /// first beat was confirmed to this service.
    beaten: Option<Boottime>,
    /// Whether the end of the slot was reported.
    has_ended: bool,
    /// Signed entries before this one, if they are known.
    line: Option<Vec<Standing>>,
    /// Whether `line` has all of them.
    is_all: bool,
    /// Whether the queue is being read again.
    is_looking: bool,
    /// Number of times in a row that too few of the entries were signed, and twice as many were to
    /// be read.
    doubled: u32,
    /// Clients and triggers that wait, and what each was last told.
    waiters: SmallMap<Waiter, Option<Waits>>,
}

/// Reason why a run waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// The entry is not stored yet.
    Place,
    /// The backend cannot be asked, for this reason.
    Backend(String),
    /// Other nodes are before it in a group with this number of slots; a description of these
    /// nodes.
    Others(u32, String),
}

/// Effect that the driver carries out.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the slots to disk.
    Save,
    /// Make the first write of a new entry, for the end of the queue.
    Enter(Name),
    /// Make the second write, which this node signs.
    Sign(Name),
    /// Renew the lease of an existing entry.
    Resume(Name, Lease),
    /// Revoke a lease, and with it the entry.
    Leave(Name, Lease),
    /// Read all queues in which this node has an entry, which may be none.
    Look,
    /// Report why a run waits.
    Tell(Waiter, Waits),
    /// Report that the turn has come.
    Turn(Waiter),
    /// Log this warning.
    Say(String),
}

/// Groups in which this node has runs or entries.
#[derive(Debug, Default)]
pub struct Slots {
    /// Time since boot, which the caller sets.
    pub now: Boottime,
    groups: SmallMap<Name, Group>,
    /// Number of the current observation of the queues; reports of earlier ones are ignored.
    round: u64,
    /// Time at which failed requests are repeated, and the number of failures in a row.
    due: Option<Boottime>,
    failures: u32,
    /// Reason why the backend cannot be asked; none if it can.
    away: Option<String>,
}

impl Slots {
    /// Continues after a start, with only the runs that `lives` confirms.
    pub fn begin(&mut self, mut lives: impl FnMut(&Name, &Run) -> bool) {
        self.away = Some("the backend was not reached yet".to_owned());
        for (name, group) in &mut self.groups.0 {
            // The previous service may have renewed the lease a moment ago.
            group.ends = self.now + Span::from_secs(LEASE);
            group.runs.retain(|run| lives(name, run));
            group.is_over |= group.runs.is_empty();
        }
        self.groups
            .0
            .retain(|(_, group)| !group.runs.is_empty() || group.place.is_some());
    }

    /// Group of this name.
    pub fn group(&self, name: &Name) -> Option<&Group> {
        self.groups.get(name)
    }

    /// Number of the current observation of the queues.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Queues in which this node has an entry: the group, the revision of the entry, the
    /// approximate number of entries to read, and whether the queue was read before.
    pub fn lines(&self) -> impl Iterator<Item = (&Name, u64, usize, bool)> {
        let standing = self.groups.0.iter();
        let standing = standing.filter(|(_, group)| group.stage == Stage::Stands);
        standing.filter_map(|(name, group)| {
            let most = group.limit as usize + (MOST_BEFORE << group.doubled);
            Some((name, group.place?.revision, most, group.line.is_some()))
        })
    }

    /// Requests a slot for a run. The waiter is told when the turn has come.
    ///
    /// # Errors
    /// There are too many groups.
    pub fn want(
        &mut self,
        waiter: Waiter,
        name: &Name,
        limit: u32,
        run: Run,
    ) -> Result<Vec<Effect>, String> {
        if self.groups.get(name).is_none() {
            self.groups.insert(name.clone(), Group::default());
        }
        let is_full = self.groups.0.len() > MOST_GROUPS;
        let Some(group) = self.groups.get_mut(name).filter(|_| !is_full) else {
            self.groups.remove(name);
            return Err(format!("runs of this node wait in {MOST_GROUPS} groups"));
        };
        if group.place.is_none() {
            group.limit = limit;
        }
        if !group.runs.iter().any(|one| one.who == run.who) {
            group.runs.push(run);
        }
        group.waiters.insert(waiter, None);
        let mut effects = vec![Effect::Save];
        if group.stage == Stage::Idle && self.away.is_none() {
            self.go_on(name, &mut effects);
        }
        self.settle(&mut effects);
        Ok(effects)
    }

    /// Removes a client from the waiters of all groups.
    pub fn leave(&mut self, client: Client) {
        for (_, group) in &mut self.groups.0 {
            group.waiters.remove(&Waiter::Client(client));
        }
    }

    /// Triggers that have slots or wait for them, with their groups.
    pub fn triggers(&self) -> impl Iterator<Item = (&Name, &TriggerKey)> {
        self.groups.0.iter().flat_map(|(name, group)| {
            let all = group.runs.iter().filter_map(|run| run.who.trigger());
            all.map(move |which| (name, which))
        })
    }

    /// Records that a run has ended.
    pub fn ended(&mut self, name: &Name, who: &Holder) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(group) = self.groups.get_mut(name) {
            group.runs.retain(|run| run.who != *who);
            if group.runs.is_empty() {
                group.is_over = true;
                // The waiters belonged to these runs.
                let all = std::mem::take(&mut group.waiters);
                effects.extend(all.0.into_iter().map(|(waiter, _)| Effect::Turn(waiter)));
            }
            if group.runs.is_empty() && group.stage != Stage::Ordered {
                self.give_up(name, &mut effects);
            }
            effects.push(Effect::Save);
        }
        effects
    }

    /// Gives up the entry, which nobody needs any more. While the backend cannot be asked, this is
    /// left for later.
    fn give_up(&mut self, name: &Name, effects: &mut Vec<Effect>) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        (group.had_turn, group.is_over, group.asked) = (false, true, None);
        match group.place {
            Some(_) if self.away.is_some() => group.stage = Stage::Idle,
            Some(place) => {
                group.stage = Stage::Ordered;
                effects.push(Effect::Leave(name.clone(), place.lease));
            }
            None => {
                self.groups.remove(name);
                self.look_anew(effects);
            }
        }
    }

    fn look_anew(&mut self, effects: &mut Vec<Effect>) {
        // The queue counts as it is known until then: no new entry comes before this node's.
        self.round += 1;
        effects.push(Effect::Look);
    }

    /// Records a connection to the backend: renews the entries, and repeats what was left undone.
    pub fn reached(&mut self) -> Vec<Effect> {
        self.away = None;
        let mut effects = Vec::new();
        // Requests that were under way have failed with the connection.
        self.retry(Stage::Idle, &mut effects);
        effects
    }

    /// Time of the next [`Slots::tick`]; none if nothing is due.
    pub fn wakes(&self) -> Option<Boottime> {
        let with_end = self.groups.0.iter().filter(|(_, group)| group.can_end());
        let ends = with_end.map(|(_, group)| group.ends());
        self.due.into_iter().chain(ends).min()
    }

    /// Repeats failed requests that are due, and reports slots that have ended.
    pub fn tick(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (name, group) in &mut self.groups.0 {
            if group.can_end() && group.ends() <= self.now {
                group.has_ended = true;
                effects.push(Effect::Say(ended(name)));
            }
        }
        if self.due.is_some_and(|due| due <= self.now) {
            self.due = None;
            self.retry(Stage::Idle, &mut effects);
        }
        effects
    }

    /// Renews the entries, and reads the queues again if the turn of this node is near.
    pub fn beat(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.retry(Stage::Stands, &mut effects);
        // Old etcds do not report every removal.
        if self.groups.0.iter().any(|(_, group)| group.is_near()) {
            self.look_anew(&mut effects);
        }
        effects
    }

    fn retry(&mut self, stage: Stage, effects: &mut Vec<Effect>) {
        if self.away.is_some() {
            return;
        }
        let all = self.groups.0.iter();
        let those = all.filter(|(_, group)| group.stage == stage && group.asked.is_none());
        let names: Vec<Name> = those.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.go_on(&name, effects);
        }
    }

    fn go_on(&mut self, name: &Name, effects: &mut Vec<Effect>) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        match group.place {
            _ if group.runs.is_empty() => self.give_up(name, effects),
            Some(_) if group.is_over => self.give_up(name, effects),
            Some(place) if place.revision > 0 => {
                if group.stage == Stage::Idle {
                    group.stage = Stage::Ordered;
                }
                group.asked = Some(self.now);
                effects.push(Effect::Resume(name.clone(), place.lease));
            }
            _ => group.enter(name, self.now, effects),
        }
    }

    /// Records that the connection to the backend is lost.
    pub fn lost(&mut self, why: &str) -> Vec<Effect> {
        let mut effects = Vec::new();
        let away = format!("the backend is not there: {why}");
        let was_there = self.away.replace(away).is_none();
        self.round += 1;
        for (name, group) in &mut self.groups.0 {
            (group.stage, group.asked, group.line) = (Stage::Idle, None, None);
            group.is_looking = false;
            if was_there && group.had_turn && !group.runs.is_empty() {
                effects.push(Effect::Say(format!(
                    "the slot in group '{name}' ends a minute after lease and beats were renewed last, unless the backend is back before: one more may run then"
                )));
            }
        }
        self.settle(&mut effects);
        effects
    }

    /// Records the first write of an entry.
    pub fn entered(&mut self, name: &Name, first: u64, lease: Lease) -> Vec<Effect> {
        let Some(group) = self.groups.get_mut(name) else {
            return vec![Effect::Leave(name.clone(), lease)];
        };
        let revision = 0;
        group.place = Some(Place {
            lease,
            first,
            revision,
        });
        // Other nodes have not watched this entry before.
        group.beaten = group.asked.map(|asked| asked + SURE);
        group.confirmed();
        let mut effects = vec![Effect::Save];
        if group.is_over {
            self.give_up(name, &mut effects);
        } else {
            effects.push(Effect::Sign(name.clone()));
        }
        effects
    }

    /// Records the second write of an entry with its revision, or a renewal of the entry.
    pub fn stands(&mut self, name: &Name, revision: Option<u64>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(group) = self.groups.get_mut(name) else {
            return effects;
        };
        match (&mut group.place, revision) {
            (Some(place), Some(revision)) => {
                place.revision = revision;
                effects.push(Effect::Save);
            }
            _ if group.asked.is_some() => group.confirmed(),
            // The entry was given up meanwhile.
            _ => return effects,
        }
        let stood = group.stage == Stage::Stands;
        (group.stage, group.trouble) = (Stage::Stands, None);
        self.failures = 0;
        if group.is_over {
            self.give_up(name, &mut effects);
        } else if stood {
            self.settle(&mut effects);
        } else {
            self.look_anew(&mut effects);
        }
        effects
    }

    /// Records that a request has failed. The request is repeated later.
    pub fn failed(&mut self, name: &Name, why: String) -> Vec<Effect> {
        if let Some(group) = self.groups.get_mut(name) {
            (group.stage, group.trouble, group.asked) = (Stage::Idle, Some(why), None);
        }
        // An entry does not outlive its lease.
        let has_place = self.groups.0.iter().any(|(_, group)| group.place.is_some());
        let most = if has_place { DOUBLED / 2 } else { DOUBLED };
        let pause = PAUSE.nanos() << self.failures.min(most);
        self.failures += 1;
        let due = self.now + Span::from_nanos(pause);
        self.due = Some(self.due.map_or(due, |soon| soon.min(due)));
        self.look()
    }

    /// Records that an entry was given up.
    pub fn left(&mut self, name: &Name, lease: Lease) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(group) = self.groups.get_mut(name) else {
            return effects;
        };
        if group.place.is_none_or(|place| place.lease != lease) {
            return effects;
        }
        (group.place, group.stage) = (None, Stage::Idle);
        // A run may have come meanwhile.
        self.go_on(name, &mut effects);
        effects.push(Effect::Save);
        effects
    }

    /// Records that the entry no longer exists. A run that has begun continues without a slot; a
    /// run that waits goes to the end of the queue. If the loss was observed (`is_seen`) rather
    /// than answered, the new entry is made a little later, because the loss may be observed again.
    pub fn gone(&mut self, name: &Name, is_seen: bool) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(group) = self.groups.get_mut(name) else {
            return effects;
        };
        if let Some(place) = group.place.take() {
            effects.push(Effect::Leave(name.clone(), place.lease));
        }
        let had_turn = std::mem::take(&mut group.had_turn);
        let is_said = std::mem::take(&mut group.has_ended);
        if had_turn && is_said {
            // The end of the slot was reported before.
        } else if had_turn {
            effects.push(Effect::Say(format!(
                "the slot in group '{name}' is gone: released, its lease ended, or other nodes saw no beat for 90 s: the run here goes on, and one more may run meanwhile"
            )));
        } else {
            effects.push(Effect::Say(format!(
                "the place in group '{name}' is gone: released, its lease ended, or other nodes saw no beat for 90 s: the run here waits at the end of the line"
            )));
        }
        (group.stage, group.asked, group.line) = (Stage::Idle, None, None);
        group.is_looking = false;
        if group.runs.is_empty() || had_turn && group.waiters.0.is_empty() {
            self.groups.remove(name);
            self.look_anew(&mut effects);
        } else if is_seen {
            self.due = Some(self.now + PAUSE);
        } else if self.away.is_none() {
            group.enter(name, self.now, &mut effects);
        }
        effects.push(Effect::Save);
        effects
    }

    /// Records the signed entries before this node's in a queue, whether they are all, and whether
    /// the entry of this node was found behind them.
    pub fn saw(
        &mut self,
        name: &Name,
        line: Vec<Standing>,
        is_all: bool,
        stands: bool,
    ) -> Vec<Effect> {
        if let Some(group) = self.standing(name) {
            if is_all && !stands {
                return self.gone(name, true);
            }
            let is_short = !is_all && line.len() < group.limit as usize;
            group.doubled = if is_short {
                DOUBLED.min(group.doubled + 1)
            } else {
                0
            };
            (group.line, group.is_all, group.is_looking) = (Some(line), is_all, false);
        }
        self.look()
    }

    /// Records that the entry of a node was removed from a queue. The node may be this one.
    pub fn saw_go(&mut self, name: &Name, node: &Node, me: &Node) -> Vec<Effect> {
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

    /// Checks whose turn has come, and informs the waiters.
    pub fn look(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.settle(&mut effects);
        effects
    }

    fn settle(&mut self, effects: &mut Vec<Effect>) {
        let mut is_enough = true;
        for (_, group) in &mut self.groups.0 {
            let mut waits = Waits::Place;
            // If this node only remembers the entry, it may have been removed by now.
            let is_sure = group.is_sure(self.now);
            if let Some(why) = self.away.as_ref().or(group.trouble.as_ref()) {
                waits = Waits::Backend(why.clone());
            } else if !group.had_turn
                && is_sure
                && let Some(line) = &group.line
            {
                let limits = line.iter().map(|one| one.slot.limit);
                let limit = limits.fold(group.limit, u32::min);
                if line.len() >= limit as usize {
                    waits = Waits::Others(limit, before(line, group.is_all));
                } else if group.is_all {
                    group.had_turn = true;
                    effects.push(Effect::Save);
                } else {
                    waits = Waits::Others(limit, before(line, false));
                    is_enough &= std::mem::replace(&mut group.is_looking, true);
                }
            }
            if group.had_turn && is_sure {
                let all = std::mem::take(&mut group.waiters);
                effects.extend(all.0.into_iter().map(|(waiter, _)| Effect::Turn(waiter)));
            }
            for (waiter, told) in &mut group.waiters.0 {
                if told.as_ref() != Some(&waits) {
                    *told = Some(waits.clone());
                    effects.push(Effect::Tell(waiter.clone(), waits.clone()));
                }
            }
        }
        if !is_enough {
            self.look_anew(effects);
        }
    }
}

impl Group {
    fn enter(&mut self, name: &Name, now: Boottime, effects: &mut Vec<Effect>) {
        if let Some(place) = self.place.take() {
            effects.push(Effect::Leave(name.clone(), place.lease));
        }
        (self.stage, self.is_over, self.trouble) = (Stage::Ordered, false, None);
        (self.line, self.is_looking, self.doubled) = (None, false, 0);
        self.asked = Some(now);
        effects.push(Effect::Enter(name.clone()));
    }
}

#[cfg(test)]
mod tests;
