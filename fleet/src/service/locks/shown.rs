//! Holders of the locks, as this node reports them.

use super::USED_UP;
use super::{LockState, Locks, Seen};
use crate::wire::lock::Lock as Word;
use crate::wire::name::Name;

impl Locks {
    /// Holder of each lock for which this node is a candidate; or a value without a token, and the
    /// reason why the holder is not certain.
    pub fn held(&self) -> Vec<(Word, String)> {
        let held = |(_, one): &(Name, LockState)| {
            let lock = one.lock.as_ref()?;
            let is_mine = one.is_mine(&self.me);
            let is_sure = is_mine && self.now < one.ends();
            let why = match (&one.seen, &self.away) {
                _ if is_sure => "",
                (_, Some(away)) => away,
                _ if is_mine => "the lease or the beats of this node may have ended",
                (Seen::Held(word), _) if word.node == self.me => "this node is giving it up",
                (Seen::Held(_), _) => "",
                (Seen::Unknown, _) => "it was not looked at yet",
                (Seen::Nobody, _) if one.is_used_up() => USED_UP,
                (Seen::Nobody, _) => "nobody holds it",
                (Seen::Coming, _) => "somebody is taking it",
                (Seen::Nothing(why) | Seen::Doubted(why), _) => why,
            };
            let word = match &one.seen {
                Seen::Held(word) if why.is_empty() => Word::clone(word),
                _ => Word {
                    lock: lock.name.clone(),
                    node: self.me.clone(),
                    first: 0,
                    token: 0,
                    since: 0,
                    candidates: lock.candidates.clone(),
                    to: None,
                    beats: false,
                },
            };
            Some((word, crate::ask::words(why)))
        };
        self.all.0.iter().filter_map(held).collect()
    }
}
