//! Locks for which this node is a candidate: which node holds each, and what this node does so that
//! one does. This module decides; the driver carries out the effects.

mod beating;
mod kept;
mod shown;
mod state;
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

/// Pause before a failed request is repeated.
const PAUSE: Span = Span::from_secs(2);
/// Reason why nobody can take a lock that has no higher token.
const USED_UP: &str = "its tokens are used up; reset them: 'again-fleet locks reset NAME TOKEN'";

/// Reset as stored in the backend.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Content of the reset.
    pub reset: Reset,
    /// Revision at which it was written.
    pub revision: u64,
    /// Whether the reset counts; an error says why it does not, for example because no operator
    /// signed it.
    pub judged: Result<(), String>,
}

/// Longest wait for candidates that have not published their tokens.
const PATIENCE: Span = Span::from_secs(3);
/// Time between two reads of the tokens during such a wait.
const LOOK_AGAIN: Span = Span::from_nanos(100_000_000);
/// Time for which all other candidates leave a lock to the node that it was moved to, and for which
/// a node that could not take a lock leaves it to the others.
const LEFT: Span = Span::from_secs(10);
/// Longest life of the first write of a node that takes a lock. After that it is removed, even if
/// its lease is kept alive: nobody holds the lock by an unsigned write, and a node that signs it
/// later finds that it is gone.
const COMES: Span = SILENT;

/// Observation of the key of a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Seen {
    /// The value is not known.
    #[default]
    Unknown,
    /// No value: nobody holds the lock.
    Nobody,
    /// First write of a node that takes the lock.
    Coming,
    /// Value of a holder that counts.
    Held(Box<Word>),
    /// Value that is not believed to be a holder's, and why.
    Nothing(String),
    /// Value of a holder whose token is not believed, and why.
    Doubted(String),
}

/// Progress of this node in taking a lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is under way, or this node holds the lock.
    #[default]
    Idle,
    /// The first write was requested.
    Entering,
    /// Reads which tokens the other candidates know, until this time at most.
    Asking(Boottime),
    /// Waits until others can see its own token, until this time at most.
    Publishing(Boottime),
    /// The second write was requested.
    Signing,
}

/// State of a lock, as this node knows it.
#[derive(Debug, Default)]
struct LockState {
    /// Lock, if this node is a candidate.
    lock: Option<Lock>,
    /// Highest token that this node knows.
    token: u64,
    /// Token with which this node last made all candidates run.
    fired: u64,
    /// Entry of this node at the lock's key, if there is one.
    place: Option<Place>,
    stage: Stage,
    seen: Seen,
    /// Revision of `seen`.
    at: u64,
    /// Revision of the last first write of another node, and since when it is known, on this
    /// connection.
    came: (u64, Boottime),
    /// Time of the first write or renewal that is not answered yet.
    asked: Option<Boottime>,
    /// End of the lease, counted from the last renewal that the backend confirmed.
    ends: Boottime,
    /// Time until which beats make this node certain of the lock.
    beaten: Boottime,
    /// Whether it was reported that the lock may have ended.
    has_ended: bool,
    /// Time of the next action.
    due: Option<Boottime>,
    /// Earliest time of the next attempt.
    rests: Boottime,
    /// Token from which an operator moves the lock, and the node that it moves to.
    passed: Option<(u64, Node)>,
    /// Number of the newest reset that this node has accepted; 0 for none.
    reset: u64,
    /// Revision of that reset in the connected backend; 0 if it was not seen there.
    reset_at: u64,
    /// State before that reset, until the reset is on disk.
    undone: Option<Undone>,
    /// Tokens that nodes had published before that reset, if the reset was seen.
    before: Vec<Published>,
    /// Highest number of an operator's reset that was a reason to read the lock.
    sought: u64,
    /// Resets that were rejected: the node that signed each, its number (0 if that is not an
    /// operator), and the reason.
    refused: Vec<(Node, u64, String)>,
    /// Highest token that two other candidates had published at the last read.
    vouched: u64,
    /// Candidates whose published tokens were ignored at the last read, and these tokens.
    ignored: Vec<(Node, Known)>,
    /// Candidates that were logged for their tokens, and whether they were holders.
    named: Vec<(Node, bool)>,
    /// Time from which on a holder that is not believed makes this node read the lock again.
    doubts: Boottime,
}

/// State of a lock before a reset.
#[derive(Debug)]
struct Undone {
    reset: u64,
    reset_at: u64,
    token: u64,
    fired: u64,
    before: Vec<Published>,
    /// Sentence about the reset, for the log.
    note: String,
}

/// Effect that the driver carries out.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the locks to disk, before anything else is done.
    Save,
    /// Publish the tokens that this node knows.
    Retell,
    /// Make the first write at the key of a lock, if it has no value.
    Enter(Name),
    /// Read the key of a lock, and the tokens that the candidates know.
    Look(Name),
    /// Make the second write, which this node signs.
    Sign(Name),
    /// Renew a lease.
    Resume(Name, Lease),
    /// Revoke a lease.
    Leave(Name, Lease),
    /// Remove the first write of another node, if it still has this revision.
    Clear(Name, u64),
    /// Make all candidates run, and then call [`Locks::fired`].
    Fire(Name),
    /// Log this warning: an operator may have to act.
    Say(String),
    /// Log this message.
    Note(String),
}

/// Locks that this node knows.
#[derive(Debug)]
pub struct Locks {
    /// Time since boot, which the caller sets.
    pub now: Boottime,
    /// Random delay of attempts, a part of a second, which the caller draws.
    pub jitter: Span,
    me: Node,
    all: SmallMap<Name, LockState>,
    /// Reason why the backend cannot be asked; none if it can.
    away: Option<String>,
}

impl Locks {
    /// Replaces the locks for which this node is a candidate. A lock that is not among them any
    /// more is given up.
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

    /// Highest tokens that this node knows, of the locks for which it is a candidate.
    pub fn tokens(&self) -> BTreeMap<String, String> {
        let mine = self.all.0.iter().filter(|(_, one)| one.lock.is_some());
        let mut tokens = BTreeMap::new();
        for (name, one) in mine {
            tokens.insert(name.to_string(), one.token.to_string());
        }
        tokens
    }

    /// Numbers of the newest resets that this node has accepted, of the locks for which it is a
    /// candidate.
    pub fn resets(&self) -> BTreeMap<String, u64> {
        let mine = self.all.0.iter().filter(|(_, one)| one.lock.is_some());
        let mine = mine.filter(|(_, one)| one.reset > 0);
        mine.map(|(name, one)| (name.to_string(), one.reset))
            .collect()
    }

    /// Lock for which this node is a candidate.
    pub fn lock(&self, name: &Name) -> Option<&Lock> {
        self.all.get(name)?.lock.as_ref()
    }

    /// Entry of this node at the key of a lock, if there is one.
    pub fn place(&self, name: &Name) -> Option<Place> {
        self.all.get(name)?.place
    }

    /// Highest token that this node knows; 0 for none.
    pub fn token(&self, name: &Name) -> u64 {
        self.all.get(name).map_or(0, |one| one.token)
    }

    /// Time of the next [`Locks::tick`]; none if nothing is due.
    pub fn wakes(&self) -> Option<Boottime> {
        let all = self.all.0.iter().map(|(_, one)| one);
        let ends = all.clone().filter(|one| one.can_end());
        let due = all.filter_map(|one| one.due);
        due.chain(ends.map(|one| one.ends())).min()
    }

    /// Records a connection to the backend. This node keeps the locks that it holds if their leases
    /// live.
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

    /// Records that the connection to the backend is lost.
    pub fn lost(&mut self, why: &str) {
        self.away = Some(format!("the backend is not there: {why}"));
        for (_, one) in &mut self.all.0 {
            (one.stage, one.asked, one.due) = (Stage::Idle, None, None);
        }
    }

    /// Renews leases, and reads again the locks whose state is in doubt.
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
                // The reason may lie in this node, or may have passed.
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

    /// Takes the actions that are due, and reports locks that may have ended.
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

    /// Records that a first write could not be removed, because the key does not have this
    /// revision: the write was signed, or it was removed between a list and the beginning of the
    /// watch, which then does not report the removal.
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

    /// Records what the key of a lock has, as of this revision. A list (`is_list`) was made after
    /// all earlier answers.
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
            // The value is older than the write of this node.
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
                // An earlier service may have been killed before it made the candidates run.
                if one.is_mine(&me) && one.fired < one.token {
                    effects.push(Effect::Fire(name.clone()));
                }
                one.heed(name, &me, &mut effects);
            }
            _ => {}
        }
        effects
    }

    /// Records the first write; without a place, the key had a value before.
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
                    // The watch reports the holder in a moment.
                    one.seen = Seen::Unknown;
                    one.due = Some(now + PAUSE.times(2) + jitter);
                }
            }
            (None, Some((_, lease))) => effects.push(Effect::Leave(name.clone(), lease)),
            (None, None) => {}
        }
        effects
    }

    /// Records the second write: this node holds the lock.
    pub fn signed(&mut self, name: &Name, revision: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        let one = self.all.get_mut(name);
        if let Some(one) = one.filter(|one| one.stage == Stage::Signing)
            && let Some(place) = &mut one.place
        {
            place.revision = revision;
            one.stage = Stage::Idle;
            // Other nodes have not watched this value before.
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

    /// Records that the lease was renewed.
    pub fn renewed(&mut self, name: &Name) {
        let one = self.all.get_mut(name);
        if let Some(one) = one.filter(|one| one.place.is_some()) {
            one.confirmed();
        }
    }

    /// Records that all candidates were made to run.
    pub fn fired(&mut self, name: &Name) -> Vec<Effect> {
        if let Some(one) = self.all.get_mut(name) {
            one.fired = one.token;
        }
        vec![Effect::Save]
    }

    /// Records that a request has failed, or may have failed.
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

    /// Records that a lock could not be read. A request that is under way besides is still
    /// answered.
    pub fn not_seen(&mut self, name: &Name) -> Vec<Effect> {
        let asked = self.all.get(name).and_then(|one| one.asked);
        let effects = self.failed(name);
        if let Some(one) = self.all.get_mut(name).filter(|one| one.place.is_some()) {
            one.asked = asked;
        }
        effects
    }

    /// Records that the lease or the entry no longer exists, according to the backend.
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

    /// Records that an operator moves the lock to a node, from the holder with this token.
    pub fn passed(&mut self, name: &Name, token: u64, to: Node) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (me, now, jitter) = (self.me.clone(), self.now, self.jitter);
        if let Some(one) = self.all.get_mut(name)
            && one.lock.as_ref().is_some_and(|lock| lock.has(&to))
        {
            one.passed = Some((token, to));
            one.heed(name, &me, &mut effects);
            // The holder may have given the lock up before.
            if one.seen == Seen::Nobody {
                one.will_try(&me, now, jitter);
            }
        }
        effects
    }
}

/// Message that nobody can hold a lock, with the reason and the remedy.
fn nobody_can(name: &Name, why: &str) -> Effect {
    Effect::Say(format!(
        "nobody can hold the lock '{name}': {why}; remove what stands there with 'etcdctl del'"
    ))
}

#[cfg(test)]
mod tests;
