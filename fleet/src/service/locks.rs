//! The locks for which this node is a candidate: which one holds each, and what this node does so that somebody does. What is to be done
//! about them is said here, and done elsewhere.

/// Beats for locks, and the beats of holders that are watched.
mod beating;
/// What outlives a service, as it is written down.
mod kept;
/// What there is to say of them.
mod shown;
/// What becomes of one of them.
mod state;
/// Which tokens of other candidates count.
mod tokens;

use std::collections::BTreeMap;

use again_base::model::{Boottime, Span};

use super::slots::Place;
use super::small_map::SmallMap;
use crate::policy::beat::{SILENT, SURE};
use crate::policy::lock::{Known, Lock};
use crate::policy::slots::Lease;
use crate::wire::lock::{Lock as Word, Published, Reset};
use crate::wire::name::{Name, Node};

/// Before what has failed is tried again.
const PAUSE: Span = Span::from_secs(2);
/// Why nobody can take a lock of which no higher token can be had.
const USED_UP: &str = "its tokens are used up; reset them: 'again-fleet locks reset NAME TOKEN'";

/// A reset that stands in the backend.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The reset.
    pub reset: Reset,
    /// The revision at which it was written.
    pub revision: u64,
    /// Why it counts for nothing, if no operator signed it.
    pub judged: Result<(), String>,
}

/// How long those who have not told their tokens are waited for, and how often that is looked at.
const PATIENCE: Span = Span::from_secs(3);
const LOOK_AGAIN: Span = Span::from_nanos(100_000_000);
/// How long all others leave a lock to the one that it was passed on to, and one that could not take it leaves it to the others.
const LEFT: Span = Span::from_secs(10);
/// How long the first write of somebody who takes a lock may stand there. It is removed then, whoever keeps its lease alive: as long as
/// it is not signed, nobody holds the lock by it, and whoever signs it later finds that it is gone.
const COMES: Span = SILENT;

/// What stands at the key of a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Seen {
    /// That is not known.
    #[default]
    Unknown,
    /// No value: nobody holds the lock.
    Nobody,
    /// The first write of somebody who takes it.
    Coming,
    /// A word that counts.
    Held(Box<Word>),
    /// Something that is nobody's word; why.
    Nothing(String),
    /// A word whose token is not believed; why.
    Doubted(String),
}

/// How far this node is with taking it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// It does nothing, or holds it.
    #[default]
    Idle,
    /// The first write was ordered.
    Entering,
    /// It asks which tokens the others know, until then at most.
    Asking(Boottime),
    /// It waits until its own token can be seen by others, until then at most.
    Publishing(Boottime),
    /// The second write was ordered.
    Signing,
}

/// What this node knows of a lock.
#[derive(Debug, Default)]
struct LockState {
    /// The lock, if this node is a candidate.
    lock: Option<Lock>,
    /// The highest token that it knows of.
    token: u64,
    /// The token with which it has had all candidates run.
    fired: u64,
    /// Its own write, if there is one.
    place: Option<Place>,
    stage: Stage,
    seen: Seen,
    /// The revision of that.
    at: u64,
    /// The revision of the last first write of somebody else, and since when it is known, over this connection.
    came: (u64, Boottime),
    /// When it was ordered to keep its lease alive, if that is not answered yet.
    asked: Option<Boottime>,
    /// When its lease ends, by the last time that the backend has kept it alive.
    ends: Boottime,
    /// Until when this node is sure of it by its beats.
    beaten: Boottime,
    /// Whether it was said that it has ended.
    has_ended: bool,
    /// When something is to be done.
    due: Option<Boottime>,
    /// Before that it does not try.
    rests: Boottime,
    /// The token from which an operator passes it on, and to whom.
    passed: Option<(u64, Node)>,
    /// Number of the newest reset that it has taken; 0 for none.
    reset: u64,
    /// Revision of that, in the backend that is connected; 0 if it was not seen there.
    reset_at: u64,
    /// What was before that reset, until the reset is on disk.
    undone: Option<Undone>,
    /// What nodes had published before that, if it was seen.
    before: Vec<Published>,
    /// The highest number of an operator's reset for which this node was to look.
    sought: u64,
    /// Resets that are not taken, by the node that signed them: their numbers, 0 for those of no operator, and why.
    refused: Vec<(Node, u64, String)>,
    /// The highest token that two other candidates published when it looked last.
    vouched: u64,
    /// The candidates that published a token that is ignored, and that, when it looked last.
    ignored: Vec<(Node, Known)>,
    /// The candidates that were logged for their tokens, as holders or not.
    named: Vec<(Node, bool)>,
    /// From when on a holder that is not believed has this node look again.
    doubts: Boottime,
}

/// What a lock was before a reset.
#[derive(Debug)]
struct Undone {
    reset: u64,
    reset_at: u64,
    token: u64,
    fired: u64,
    before: Vec<Published>,
    /// A sentence about the reset, for the log.
    note: String,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// To write down what is to outlive this service, before anything else is done.
    Save,
    /// To tell others the tokens that this node knows of.
    Retell,
    /// To write there first, where nothing stands.
    Enter(Name),
    /// To look what stands there, and which tokens the candidates know.
    Look(Name),
    /// To say there who it is.
    Sign(Name),
    /// To keep a lease alive.
    Resume(Name, Lease),
    /// To end one.
    Leave(Name, Lease),
    /// To remove the first write of somebody else, if it is the one of this revision still.
    Clear(Name, u64),
    /// To have all candidates run, and to say then that it is done.
    Fire(Name),
    /// To log this: an operator may have to act.
    Say(String),
    /// To log this.
    Note(String),
}

/// All of them.
#[derive(Debug)]
pub struct Locks {
    /// The time of what happens.
    pub now: Boottime,
    /// A part of a second, drawn for it.
    pub jitter: Span,
    me: Node,
    all: SmallMap<Name, LockState>,
    /// Why the backend cannot be asked; nothing if it can.
    away: Option<String>,
}

impl Locks {
    /// From now on these. One that is not among them any more is given up.
    pub fn set(&mut self, locks: &[Lock]) -> Vec<Effect> {
        if locks.is_empty() && self.all.0.is_empty() {
            return Vec::new();
        }
        let mut effects = vec![Effect::Save, Effect::Retell];
        for (name, one) in &mut self.all.0 {
            if !locks.iter().any(|lock| lock.name == *name) {
                one.lock = None;
                one.leave(name, &mut effects);
                (one.seen, one.due, one.passed) = (Seen::Unknown, None, None);
            }
        }
        for lock in locks {
            if self.all.get(&lock.name).is_none() {
                self.all.insert(lock.name.clone(), LockState::default());
            }
            let (now, is_away) = (self.now, self.away.is_some());
            if let Some(one) = self.all.get_mut(&lock.name) {
                let is_new = one.lock.replace(lock.clone()).is_none();
                if is_new && !is_away {
                    one.due = Some(now + PAUSE);
                    effects.push(Effect::Look(lock.name.clone()));
                }
            }
        }
        effects
    }

    /// The highest tokens that this node knows of, of the locks for which it is a candidate.
    pub fn tokens(&self) -> BTreeMap<String, String> {
        let mine = self.all.0.iter().filter(|(_, one)| one.lock.is_some());
        let mut tokens = BTreeMap::new();
        for (name, one) in mine {
            tokens.insert(name.to_string(), one.token.to_string());
        }
        tokens
    }

    /// The numbers of the newest resets that this node has taken, of the locks for which it is a candidate.
    pub fn resets(&self) -> BTreeMap<String, u64> {
        let mine = self.all.0.iter().filter(|(_, one)| one.lock.is_some());
        let mine = mine.filter(|(_, one)| one.reset > 0);
        mine.map(|(name, one)| (name.to_string(), one.reset))
            .collect()
    }

    /// A lock for which this node is a candidate.
    pub fn lock(&self, name: &Name) -> Option<&Lock> {
        self.all.get(name)?.lock.as_ref()
    }

    /// The place of this node there, if it has one.
    pub fn place(&self, name: &Name) -> Option<Place> {
        self.all.get(name)?.place
    }

    /// The highest token that this node knows of.
    pub fn token(&self, name: &Name) -> u64 {
        self.all.get(name).map_or(0, |one| one.token)
    }

    /// When something is to be done.
    pub fn wakes(&self) -> Option<Boottime> {
        let all = self.all.0.iter().map(|(_, one)| one);
        let ends = all.clone().filter(|one| one.can_end());
        let due = all.filter_map(|one| one.due);
        due.chain(ends.map(|one| one.ends())).min()
    }

    /// The backend is there. What this node holds it goes on holding, if its lease lives.
    pub fn reached(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        (self.away, self.jitter) = (None, self.jitter + Span::from_secs(1));
        let (me, now, jitter) = (self.me.clone(), self.now, self.jitter);
        for (name, one) in &mut self.all.0 {
            (one.at, one.stage, one.asked) = (0, Stage::Idle, None);
            (one.rests, one.reset_at, one.sought) = (now, 0, 0);
            (one.before, one.refused, one.named) = Default::default();
            one.came = Default::default();
            if !one.is_mine(&me) {
                one.seen = Seen::Unknown;
            }
            match one.place {
                Some(place) if place.revision > 0 && one.lock.is_some() => {
                    one.asked = Some(now);
                    effects.push(Effect::Resume(name.clone(), place.lease));
                    effects.push(Effect::Look(name.clone()));
                }
                _ => one.leave(name, &mut effects),
            }
            one.due = one.lock.as_ref().map(|lock| now + lock.pause(&me) + jitter);
        }
        effects
    }

    /// The backend is not there any more.
    pub fn lost(&mut self, why: &str) {
        self.away = Some(format!("the backend is not there: {why}"));
        for (_, one) in &mut self.all.0 {
            (one.stage, one.asked, one.due) = (Stage::Idle, None, None);
        }
    }

    /// Keeps leases alive.
    pub fn beat(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.away.is_some() {
            return effects;
        }
        for (name, one) in &mut self.all.0 {
            match one.place {
                Some(place) if place.revision > 0 && one.asked.is_none() => {
                    one.asked = Some(self.now);
                    effects.push(Effect::Resume(name.clone(), place.lease));
                }
                // The reason may be one of this node's own, or have passed.
                None if one.lock.is_some()
                    && (!matches!(one.seen, Seen::Nobody | Seen::Coming | Seen::Held(_))
                        || one.sought > one.reset
                        || !one.ignored.is_empty()
                        || !one.refused.is_empty()) =>
                {
                    effects.push(Effect::Look(name.clone()));
                }
                _ => {}
            }
        }
        effects
    }

    /// Some time has passed.
    pub fn tick(&mut self) -> Vec<Effect> {
        let (mut effects, now) = (Vec::new(), self.now);
        for (name, one) in &mut self.all.0 {
            if one.can_end() && one.ends() <= now {
                one.has_ended = true;
                effects.push(Effect::Say(format!(
                    "whether this node still holds the lock '{name}' is not known: its lease or its beats may have ended, and another one may hold it"
                )));
            }
            if self.away.is_some() || one.due.is_none_or(|due| due > now) {
                continue;
            }
            one.due = None;
            match (one.stage, one.place) {
                (Stage::Asking(_) | Stage::Publishing(_), _) => {
                    effects.push(Effect::Look(name.clone()))
                }
                (Stage::Idle, Some(place)) if one.asked.is_none() => {
                    one.asked = Some(now);
                    effects.push(Effect::Resume(name.clone(), place.lease));
                }
                (Stage::Idle, None) if one.is_free() => {
                    (one.stage, one.asked) = (Stage::Entering, Some(now));
                    effects.push(Effect::Enter(name.clone()));
                }
                (Stage::Idle, None) if one.seen == Seen::Coming => {
                    let (revision, since) = one.came;
                    one.due = Some(since + COMES);
                    if since + COMES <= now {
                        one.due = Some(now + COMES);
                        effects.push(Effect::Clear(name.clone(), revision));
                    }
                }
                _ => {}
            }
        }
        effects
    }

    /// What was to be removed does not stand there at this revision: it was signed, or it went between a list and the beginning of the
    /// watch, which then shows no end.
    pub fn not_cleared(&mut self, name: &Name, revision: u64) -> Vec<Effect> {
        let due = self.now + PAUSE.times(2) + self.jitter;
        let one = self.all.get_mut(name);
        let is_same = |one: &&mut LockState| one.seen == Seen::Coming && one.came.0 == revision;
        let Some(one) = one.filter(|one| one.lock.is_some()).filter(is_same) else {
            return Vec::new();
        };
        (one.seen, one.due) = (Seen::Unknown, Some(due));
        vec![Effect::Look(name.clone())]
    }

    /// Something stands there, or nothing, as of this revision; where it was listed, it stood there after all that was answered before.
    pub fn saw(
        &mut self,
        name: &Name,
        seen: Seen,
        revision: Option<u64>,
        is_list: bool,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (me, now, jitter) = (self.me.clone(), self.now, self.jitter);
        let Some(one) = self.all.get_mut(name).filter(|one| one.lock.is_some()) else {
            return effects;
        };
        let own = one.place.map_or(0, |place| place.first.max(place.revision));
        let is_old = match revision {
            Some(revision) if is_list => revision < one.at,
            // What was there before this node came.
            Some(revision) => revision < one.at.max(own),
            None => {
                one.place.is_none()
                    && matches!(one.seen, Seen::Nobody | Seen::Coming | Seen::Held(_))
            }
        };
        if is_old {
            return effects;
        }
        one.at = one.at.max(revision.unwrap_or(0));
        let seen = one.believed(name, seen, (now, is_list), &mut effects);
        if one.learn(&seen) {
            effects.extend([Effect::Save, Effect::Retell]);
        }
        let is_known = one.seen == seen;
        one.seen = seen;
        if one.seen == Seen::Coming && one.came.0 != one.at {
            one.came = (one.at, now);
        }
        if let Some(place) = one.place {
            let stands = match &one.seen {
                Seen::Held(word) => word.node == me && word.first == place.first,
                Seen::Coming => place.revision == 0,
                _ => false,
            };
            if !stands {
                one.lose(name, &mut effects);
            }
        }
        match &one.seen {
            Seen::Nobody => one.will_try(&me, now, jitter),
            Seen::Coming if one.place.is_none() && one.stage == Stage::Idle => {
                one.due = Some(one.came.1 + COMES);
            }
            Seen::Nothing(why) if !is_known => effects.push(nobody_can(name, why)),
            Seen::Held(_) => {
                // An earlier service may have been killed before it had them run.
                if one.is_mine(&me) && one.fired < one.token {
                    effects.push(Effect::Fire(name.clone()));
                }
                one.heed(name, &me, &mut effects);
            }
            _ => {}
        }
        effects
    }

    /// The first write is there, or the backend says that something stood there before.
    pub fn entered(&mut self, name: &Name, place: Option<(u64, Lease)>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (now, jitter) = (self.now, self.jitter);
        let one = self.all.get_mut(name);
        let one = one.filter(|one| one.stage == Stage::Entering);
        match (one, place) {
            (Some(one), Some((first, lease))) => {
                let revision = 0;
                one.place = Some(Place {
                    lease,
                    first,
                    revision,
                });
                one.stage = Stage::Asking(now + PATIENCE);
                effects.extend([Effect::Save, Effect::Look(name.clone())]);
            }
            (Some(one), None) => {
                (one.stage, one.asked) = (Stage::Idle, None);
                one.due = Some(now + COMES);
                if one.is_free() {
                    // Who stands there is told in a moment.
                    one.seen = Seen::Unknown;
                    one.due = Some(now + PAUSE.times(2) + jitter);
                }
            }
            (None, Some((_, lease))) => effects.push(Effect::Leave(name.clone(), lease)),
            (None, None) => {}
        }
        effects
    }

    /// Its word stands there: it holds the lock.
    pub fn signed(&mut self, name: &Name, revision: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        let one = self.all.get_mut(name);
        if let Some(one) = one.filter(|one| one.stage == Stage::Signing)
            && let Some(place) = &mut one.place
        {
            place.revision = revision;
            one.stage = Stage::Idle;
            // Others have not watched this word before.
            one.beaten = one.asked.map_or(one.beaten, |asked| asked + SURE);
            one.confirmed();
            let token = one.token;
            effects.push(Effect::Save);
            effects.push(Effect::Note(format!(
                "this node holds the lock '{name}', with token {token}"
            )));
            effects.push(Effect::Fire(name.clone()));
        }
        effects
    }

    /// Its lease was kept alive.
    pub fn renewed(&mut self, name: &Name) {
        let one = self.all.get_mut(name);
        if let Some(one) = one.filter(|one| one.place.is_some()) {
            one.confirmed();
        }
    }

    /// All candidates are had to run.
    pub fn fired(&mut self, name: &Name) -> Vec<Effect> {
        if let Some(one) = self.all.get_mut(name) {
            one.fired = one.token;
        }
        vec![Effect::Save]
    }

    /// What was ordered was not done, or nobody knows.
    pub fn failed(&mut self, name: &Name) -> Vec<Effect> {
        let (mut effects, now) = (Vec::new(), self.now);
        if let Some(one) = self.all.get_mut(name) {
            let mut pause = PAUSE;
            if one.place.is_none_or(|place| place.revision == 0) {
                one.leave(name, &mut effects);
                pause = LEFT;
            }
            one.asked = None;
            if self.away.is_none() && one.lock.is_some() {
                one.rests = now + pause + self.jitter;
                one.due = Some(one.rests);
            }
        }
        effects
    }

    /// It could not be looked. What was ordered beside that is answered all the same.
    pub fn not_seen(&mut self, name: &Name) -> Vec<Effect> {
        let asked = self.all.get(name).and_then(|one| one.asked);
        let effects = self.failed(name);
        if let Some(one) = self.all.get_mut(name).filter(|one| one.place.is_some()) {
            one.asked = asked;
        }
        effects
    }

    /// The backend says that its lease, or its write, is not there any more.
    pub fn gone(&mut self, name: &Name) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (me, now, jitter) = (self.me.clone(), self.now, self.jitter);
        if let Some(one) = self.all.get_mut(name)
            && one.place.is_some()
        {
            let was_mine = one.is_mine(&me);
            one.lose(name, &mut effects);
            if was_mine || one.is_free() {
                one.seen = Seen::Unknown;
            }
            one.due = one.lock.as_ref().map(|lock| now + lock.pause(&me) + jitter);
        }
        effects
    }

    /// An operator wants it to go on.
    pub fn passed(&mut self, name: &Name, token: u64, to: Node) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (me, now, jitter) = (self.me.clone(), self.now, self.jitter);
        if let Some(one) = self.all.get_mut(name)
            && one.lock.as_ref().is_some_and(|lock| lock.has(&to))
        {
            one.passed = Some((token, to));
            one.heed(name, &me, &mut effects);
            // That it was given up may have been told before.
            if one.seen == Seen::Nobody {
                one.will_try(&me, now, jitter);
            }
        }
        effects
    }
}

/// Why nobody can, and what to do.
fn nobody_can(name: &Name, why: &str) -> Effect {
    Effect::Say(format!(
        "nobody can hold the lock '{name}': {why}; remove what stands there with 'etcdctl del'"
    ))
}

#[cfg(test)]
mod tests;
