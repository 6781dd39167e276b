//! Tokens of other candidates that count, and an operator's reset of them.
//!
//! A token is believed up to a bound above the highest that this node knows: by itself, or because
//! two other candidates publish it (`policy::lock`). So a single candidate that publishes a huge
//! token keeps nobody from the lock.

use std::cmp::Reverse;

use again_base::model::{Boottime, Span};

use super::{
    COMES, Effect, LOOK_AGAIN, LockState, Locks, PATIENCE, Seen, Stage, Standing, USED_UP, Undone,
};
use crate::policy::lock::{AHEAD, Known, is_near, vouched};
use crate::wire::lock::{Lock as Word, MOST_CANDIDATES, MOST_TOKEN, Published, Reset};
use crate::wire::name::{Name, Node};

/// Shortest time between two immediate reads because of a holder that is not believed. The lock is
/// read at each beat all the same.
const DOUBTS: Span = Span::from_secs(10);

impl LockState {
    /// Highest token that this node knows, by itself or from two others.
    fn highest(&self) -> u64 {
        self.token.max(self.vouched)
    }

    /// Reason why a holder is not believed, if its token is too high.
    pub(super) fn doubt(&self, word: &Word) -> Option<String> {
        let is_far = !is_near(word.token, self.highest());
        is_far.then(|| {
            let what = format!("{} holds it with token {}", word.node, word.token);
            format!("{what}, {}", self.too_high())
        })
    }

    /// Returns the observation if its holder is believed; otherwise a doubt, or [`Seen::Unknown`]
    /// until the lock was read: the other candidates may know a higher token. A holder that comes
    /// and goes does not cause a read each time.
    pub(super) fn believed(
        &mut self,
        name: &Name,
        seen: Seen,
        (now, is_list): (Boottime, bool),
        effects: &mut Vec<Effect>,
    ) -> Seen {
        let Seen::Held(word) = &seen else {
            return seen;
        };
        let Some(why) = self.doubt(word) else {
            return seen;
        };
        if !is_list && self.doubts <= now {
            self.doubts = now + DOUBTS;
            effects.push(Effect::Look(name.clone()));
            return Seen::Unknown;
        }
        if is_list && self.is_first(&word.node, true) {
            effects.push(Effect::Say(format!(
                "the holder of the lock '{name}' is not believed: {why}; see 'locks reset' in again-fleet(8)"
            )));
        }
        Seen::Doubted(why)
    }

    /// Records that a candidate is logged, as a holder or not. Returns whether that is the first
    /// time.
    fn is_first(&mut self, node: &Node, holds: bool) -> bool {
        let named = (node.clone(), holds);
        let is_first = !self.named.contains(&named);
        if is_first {
            self.named.push(named);
        }
        is_first
    }

    fn ignores(&self, name: &Name, node: &Node, known: Known) -> String {
        let (token, why) = (known.token, self.too_high());
        let what =
            format!("{node} publishes token {token} of the lock '{name}', {why}: it is ignored");
        if known.reset < self.reset {
            return format!("{what}; it has not taken the last reset: see its log");
        }
        // There is no third candidate to show which one is wrong.
        match &self.lock {
            Some(lock) if lock.candidates.len() == 2 => {
                format!("{what}; if this node has lost its state directory, reset the lock")
            }
            _ => what,
        }
    }

    fn too_high(&self) -> String {
        let known = self.highest();
        format!("more than {AHEAD} above {known}, the highest that this node knows")
    }

    /// Adopts the token of a holder. Returns whether it is new.
    pub(super) fn learn(&mut self, seen: &Seen) -> bool {
        match seen {
            Seen::Held(word) if word.token > self.token => {
                self.token = word.token;
                true
            }
            _ => false,
        }
    }

    /// Whether no higher token is possible.
    pub(super) fn is_used_up(&self) -> bool {
        self.token >= MOST_TOKEN
    }

    /// Token that a candidate publishes, 0 if it is from before the reset; none if the candidate
    /// publishes nothing.
    fn known_of(&self, tokens: &[(Node, Known)], node: &Node) -> Option<Known> {
        let (_, known) = tokens.iter().find(|(one, _)| one == node)?;
        let was = published(&self.before, node);
        let is_before = known.is_before(self.reset, was);
        Some(if is_before { Known::default() } else { *known })
    }

    /// Accepts a reset.
    fn take(&mut self, reset: &Reset, revision: u64, now: Boottime, effects: &mut Vec<Effect>) {
        let (name, node, next) = (&reset.lock, &reset.node, reset.token + 1);
        if matches!(self.stage, Stage::Publishing(_) | Stage::Signing) {
            // The token is from before the reset.
            self.leave(name, effects);
        }
        let undone = Undone {
            reset: self.reset,
            reset_at: self.reset_at,
            token: self.token,
            fired: self.fired,
            before: std::mem::take(&mut self.before),
            note: format!("{node} has reset the lock '{name}': its next token is {next}"),
        };
        self.undone.get_or_insert(undone);
        (self.reset, self.reset_at) = (reset.number, revision);
        self.before.clone_from(&reset.before);
        (self.token, self.fired, self.vouched) = (reset.token, 0, 0);
        (self.passed, self.rests) = (None, now);
        (self.ignored, self.named, self.refused) = Default::default();
        if matches!(self.seen, Seen::Held(_) | Seen::Doubted(_)) {
            // The value may be from before the reset, or have another token than this node knows
            // now.
            self.seen = Seen::Unknown;
            effects.push(Effect::Look(name.clone()));
        }
        effects.extend([Effect::Save, Effect::Retell]);
    }

    /// Rejects a reset, and logs the reason once. All resets of a node that is not an operator
    /// count as one, and make room for those of operators.
    fn refuse(&mut self, reset: &Reset, why: &str, is_operator: bool, effects: &mut Vec<Effect>) {
        let (lock, node) = (&reset.lock, &reset.node);
        let number = if is_operator { reset.number } else { 0 };
        let why = format!("the reset of the lock '{lock}' by {node} does not count here: {why}");
        let was = self.refused.iter().position(|(one, ..)| one == node);
        let was = was.map(|at| self.refused.swap_remove(at));
        if self.refused.len() >= MOST_CANDIDATES {
            let others = self.refused.iter().position(|(_, number, _)| *number == 0);
            let Some(at) = others.filter(|_| is_operator) else {
                return;
            };
            self.refused.swap_remove(at);
        }
        if was.is_none_or(|(_, was, text)| (was, &text) != (number, &why)) {
            effects.push(Effect::Say(why.clone()));
        }
        self.refused.push((node.clone(), number, why));
    }
}

impl Locks {
    /// Reason why a holder is not believed, if its token is too high for this node.
    pub fn doubt(&self, word: &Word) -> Option<String> {
        let one = self.all.get(&word.lock);
        let one = one.filter(|one| one.lock.is_some())?;
        one.doubt(word)
    }

    /// Tokens that are ignored, with the candidates that publish them.
    pub fn ignored(&self) -> Vec<(Name, Node, u64)> {
        let all = self.all.0.iter().flat_map(|(name, one)| {
            let ignored = one.ignored.iter();
            ignored.map(move |(node, known)| (name.clone(), node.clone(), known.token))
        });
        all.collect()
    }

    /// Warnings about tokens, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (name, one) in self.all.0.iter().filter(|(_, one)| one.lock.is_some()) {
            let ignored = one.ignored.iter();
            warnings.extend(ignored.map(|(node, known)| one.ignores(name, node, *known)));
            warnings.extend(one.refused.iter().map(|(.., why)| why.clone()));
            if one.is_used_up() {
                warnings.push(used_up(name));
            }
        }
        warnings
    }

    /// Weighs the tokens that the candidates publish: determines the highest that two of them
    /// publish, and the tokens that are ignored.
    pub fn weigh(&mut self, name: &Name, tokens: &[(Node, Known)]) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(one) = self.all.get_mut(name) else {
            return effects;
        };
        let Some(lock) = &one.lock else {
            return effects;
        };
        let others = lock.candidates.iter().filter(|node| **node != self.me);
        let others = others.filter_map(|node| {
            let known = one.known_of(tokens, node)?;
            Some((node.clone(), known))
        });
        let others: Vec<_> = others.collect();
        one.vouched = vouched(others.iter().map(|(_, known)| known.token));
        let (highest, mut ignored) = (one.highest(), others);
        ignored.retain(|(_, known)| !is_near(known.token, highest));
        for (node, known) in &ignored {
            if one.is_first(node, false) {
                effects.push(Effect::Say(one.ignores(name, node, *known)));
            }
        }
        one.ignored = ignored;
        effects
    }

    /// Continues to take a lock, with the tokens that the candidates publish.
    pub fn told(&mut self, name: &Name, tokens: &[(Node, Known)]) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (me, now) = (self.me.clone(), self.now);
        let Some(one) = self.all.get_mut(name) else {
            return effects;
        };
        let Some(lock) = &one.lock else {
            return effects;
        };
        let known = lock.candidates.iter();
        let known = known.map(|node| (node.clone(), one.known_of(tokens, node)));
        let (mine, others): (Vec<_>, Vec<_>) = known.partition(|(node, _)| *node == me);
        match one.stage {
            Stage::Asking(until) => {
                let (own, reset, highest) = (one.token, one.reset, one.highest());
                // A candidate that has not accepted the reset may be about to.
                let is_behind = |known: &Known| known.reset < reset && known.token > own;
                let is_ready =
                    |known: &Option<Known>| known.is_some_and(|known| !is_behind(&known));
                if now < until && !others.iter().all(|(_, known)| is_ready(known)) {
                    one.due = Some(now + LOOK_AGAIN);
                    return effects;
                }
                for (node, known) in &others {
                    let known = known.unwrap_or_default();
                    if !is_near(known.token, highest) {
                        continue;
                    }
                    if is_behind(&known) {
                        effects.push(Effect::Say(undoes(name, node, known.token)));
                    }
                    one.token = one.token.max(known.token);
                }
                if one.is_used_up() {
                    one.leave(name, &mut effects);
                    one.rests = now + COMES;
                    effects.push(Effect::Say(used_up(name)));
                } else {
                    one.token += 1;
                    one.stage = Stage::Publishing(now + PATIENCE);
                    effects.extend([Effect::Save, Effect::Retell, Effect::Look(name.clone())]);
                }
            }
            Stage::Publishing(until) => {
                // The value in this node's name may be somebody else's.
                let own = mine.iter().find_map(|(_, own)| Some((*own)?.token));
                let own = own.filter(|own| is_near(*own, one.token));
                if now >= until || own >= Some(one.token) {
                    one.stage = Stage::Signing;
                    effects.push(Effect::Sign(name.clone()));
                } else {
                    one.due = Some(now + LOOK_AGAIN);
                }
            }
            _ => {}
        }
        effects
    }

    /// Records that a reset was written. A reset is accepted only when all are listed.
    pub fn reset_written(&mut self, standing: Standing) -> Vec<Effect> {
        let Standing { reset, judged, .. } = &standing;
        let one = self.all.get_mut(&reset.lock);
        match one.filter(|one| one.lock.is_some()) {
            Some(one) if judged.is_ok() && reset.number > one.reset => {
                if reset.number <= one.sought {
                    return Vec::new();
                }
                one.sought = reset.number;
                vec![Effect::Look(reset.lock.clone())]
            }
            _ => self.reset(standing),
        }
    }

    /// Records all resets of a lock in the backend. The highest number is first: after a lower one
    /// it might not be accepted any more.
    pub fn resets_listed(&mut self, name: &Name, mut resets: Vec<Standing>) -> Vec<Effect> {
        if let Some(one) = self.all.get_mut(name) {
            let is_there = |node: &Node| resets.iter().any(|one| one.reset.node == *node);
            one.refused.retain(|(node, ..)| is_there(node));
        }
        resets.sort_by_key(|one| Reverse(one.reset.number));
        let effects = resets.into_iter().flat_map(|one| self.reset(one));
        effects.collect()
    }

    /// Accepts or rejects a reset. Each number counts once, and no lower number after it. A reset
    /// does not count for a node that holds the lock, nor for a node that knows a higher token,
    /// unless the node had published that token, since the same reset, when the lock was reset: so
    /// no token is taken back that was given out since.
    fn reset(&mut self, standing: Standing) -> Vec<Effect> {
        let Standing {
            reset,
            revision,
            judged,
        } = &standing;
        let (revision, mut effects) = (*revision, Vec::new());
        let (me, now, jitter) = (self.me.clone(), self.now, self.jitter);
        let one = self.all.get_mut(&reset.lock);
        let Some(one) = one.filter(|one| one.lock.is_some()) else {
            return effects;
        };
        let holds = one.place.is_some_and(|place| place.revision > 0);
        let is_lower = reset.number < one.reset;
        // A lower reset that was written before was replaced.
        let is_replaced = is_lower && (revision < one.reset_at || one.reset_at == 0);
        let own = one.token;
        let had_published = published(&reset.before, &me)
            .is_some_and(|was| (was.token, was.reset) == (own, one.reset));
        match judged {
            Err(why) if reset.number > one.reset => one.refuse(reset, why, false, &mut effects),
            Err(_) => {}
            Ok(()) if reset.number == one.reset => {
                one.before.clone_from(&reset.before);
                one.reset_at = revision;
            }
            Ok(()) if holds || is_replaced => {}
            Ok(()) if is_lower => {
                one.refuse(reset, "a later one was taken before", true, &mut effects);
            }
            Ok(()) if own > reset.token && !had_published => {
                let why = format!(
                    "this node knows token {own}, which it had not published before; reset it again"
                );
                one.refuse(reset, &why, true, &mut effects);
            }
            Ok(()) => {
                one.take(reset, revision, now, &mut effects);
                if one.is_free() {
                    one.will_try(&me, now, jitter);
                }
            }
        }
        effects
    }
}

/// Published state of a node, if the reset names it.
fn published<'p>(before: &'p [Published], node: &Node) -> Option<&'p Published> {
    before.iter().find(|one| one.node == *node)
}

fn undoes(name: &Name, node: &Node, token: u64) -> String {
    format!(
        "{node} has not taken the last reset of the lock '{name}', so its token {token} counts; run 'again-fleet check' there"
    )
}

fn used_up(name: &Name) -> String {
    format!("nobody can take the lock '{name}': {USED_UP}")
}
