//! The runs of this node that wait for a slot, or have one, and the node's places in the backend. What is to be done about them is said
//! here, and done elsewhere.

/// Beats for places, and the beats of others that are watched.
mod beating;
/// What places are held for.
mod held;
/// What outlives a service, as it is written down.
mod kept;
/// What there is to say of them.
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

/// How many of those before it a node wants to know of, beside as many as there are slots.
const MOST_BEFORE: usize = if cfg!(test) { 5 } else { 100 };
/// Before what has failed is tried again: less than a run waits for a service that says nothing. It doubles so many times.
const PAUSE: Span = Span::from_secs(2);
const DOUBLED: u32 = 5;

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
    /// What the backend said when it did not do what was ordered.
    trouble: Option<String>,
    /// When it was ordered to keep its place alive, if that is not answered yet.
    asked: Option<Boottime>,
    /// When its lease ends, by the last time that the backend has kept it alive.
    ends: Boottime,
    /// Until when this node is sure of it by its beats; nothing before one of this service was answered.
    beaten: Option<Boottime>,
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
    waiters: SmallMap<Waiter, Option<Waits>>,
}

/// What a run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// Its place is on its way.
    Place,
    /// The backend cannot say it, for this reason.
    Backend(String),
    /// The end of others in a group with this number of slots: who is before it, in words.
    Others(u32, String),
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
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
    Tell(Waiter, Waits),
    /// To tell somebody that their turn has come.
    Turn(Waiter),
    /// To log this.
    Say(String),
}

/// All groups.
#[derive(Debug, Default)]
pub struct Slots {
    /// The time of what happens.
    pub now: Boottime,
    groups: SmallMap<Name, Group>,
    /// The number of the look that counts.
    round: u64,
    /// When what has failed is tried again, and how often in a row it has.
    due: Option<Boottime>,
    failures: u32,
    /// Why the backend cannot be asked; nothing if it can.
    away: Option<String>,
}

impl Slots {
    /// After a start; only runs that `lives` says have not ended.
    pub fn begin(&mut self, mut lives: impl FnMut(&Name, &Run) -> bool) {
        self.away = Some("the backend was not reached yet".to_owned());
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
            let most = group.limit as usize + (MOST_BEFORE << group.doubled);
            Some((name, group.place?.revision, most, group.line.is_some()))
        })
    }

    /// A run wants a slot; whoever asks is told when its turn has come.
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

    /// Somebody does not want to be told any more.
    pub fn leave(&mut self, client: Client) {
        for (_, group) in &mut self.groups.0 {
            group.waiters.remove(&Waiter::Client(client));
        }
    }

    /// The triggers that have places or wait for them, and in which groups.
    pub fn triggers(&self) -> impl Iterator<Item = (&Name, &TriggerKey)> {
        self.groups.0.iter().flat_map(|(name, group)| {
            let all = group.runs.iter().filter_map(|run| run.who.trigger());
            all.map(move |which| (name, which))
        })
    }

    /// A run has ended.
    pub fn ended(&mut self, name: &Name, who: &Holder) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(group) = self.groups.get_mut(name) {
            group.runs.retain(|run| run.who != *who);
            if group.runs.is_empty() {
                group.is_over = true;
                // They were a part of it.
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

    /// Nobody needs the place any more. Where the backend is away, that is done later.
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
        // What is known of a line counts until then: nobody comes before this node.
        self.round += 1;
        effects.push(Effect::Look);
    }

    /// The backend is there: what was there before is taken up, and what was left undone is done.
    pub fn reached(&mut self) -> Vec<Effect> {
        self.away = None;
        let mut effects = Vec::new();
        // What was under way has failed with the connection.
        self.retry(Stage::Idle, &mut effects);
        effects
    }

    /// When something is to be done.
    pub fn wakes(&self) -> Option<Boottime> {
        let with_end = self.groups.0.iter().filter(|(_, group)| group.can_end());
        let ends = with_end.map(|(_, group)| group.ends());
        self.due.into_iter().chain(ends).min()
    }

    /// Some time has passed: what has failed is begun again, and what has ended is said.
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

    /// Keeps the places alive.
    pub fn beat(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.retry(Stage::Stands, &mut effects);
        // Old etcds lose some of what they should tell.
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

    /// The backend is not there any more.
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

    /// The first write is there.
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
        // Others have not watched this place before.
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

    /// The place is there, as of this revision; or it is still there.
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
            // It is given up by now.
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

    /// What was ordered was not done, and is tried again later.
    pub fn failed(&mut self, name: &Name, why: String) -> Vec<Effect> {
        if let Some(group) = self.groups.get_mut(name) {
            (group.stage, group.trouble, group.asked) = (Stage::Idle, Some(why), None);
        }
        // A place does not outlive its lease.
        let has_place = self.groups.0.iter().any(|(_, group)| group.place.is_some());
        let most = if has_place { DOUBLED / 2 } else { DOUBLED };
        let pause = PAUSE.nanos() << self.failures.min(most);
        self.failures += 1;
        let due = self.now + Span::from_nanos(pause);
        self.due = Some(self.due.map_or(due, |soon| soon.min(due)));
        self.look()
    }

    /// A place was given up.
    pub fn left(&mut self, name: &Name, lease: Lease) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(group) = self.groups.get_mut(name) else {
            return effects;
        };
        if group.place.is_none_or(|place| place.lease != lease) {
            return effects;
        }
        (group.place, group.stage) = (None, Stage::Idle);
        // Somebody may have come meanwhile.
        self.go_on(name, &mut effects);
        effects.push(Effect::Save);
        effects
    }

    /// The place is not there any more. A run that has begun goes on without; one that waits goes to the end of the line.
    /// Where that is seen and not told, it does so a little later, for it may be seen again.
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
            // It was said that it has ended.
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

    /// Those before this node in a line, by their own word, whether they are all, and whether it stands behind them.
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

    /// Nobody stands there any more; or this node does not.
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

    /// Sees whose turn has come, and tells whoever waits.
    pub fn look(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.settle(&mut effects);
        effects
    }

    fn settle(&mut self, effects: &mut Vec<Effect>) {
        let mut is_enough = true;
        for (_, group) in &mut self.groups.0 {
            let mut waits = Waits::Place;
            // A place that this node only remembers may be somebody else's by now.
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

    /// The backend has done what was asked for: the lease lives from then on.
    fn confirmed(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.ends = asked + Span::from_secs(LEASE);
            self.has_ended &= self.ends() <= asked;
        }
    }

    /// Whether its turn comes when a few more have ended.
    fn is_near(&self) -> bool {
        let line = self.line.as_ref();
        let line = line.filter(|_| !self.had_turn && !self.is_looking);
        line.is_some_and(|line| line.len() < 2 * self.limit as usize)
    }

    /// Whether a run has its slot by a lease of which it was not said that it has ended.
    fn can_end(&self) -> bool {
        self.had_turn && !self.has_ended && !self.runs.is_empty()
    }
}

#[cfg(test)]
mod tests;
