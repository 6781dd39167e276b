//! Who holds the locks, as this node tells it.

use super::{Locks, One, Seen};
use crate::ask::Held;
use crate::wire::name::Name;

impl Locks {
    /// What there is to say of each lock for which this node is a candidate.
    pub fn held(&self) -> Vec<Held> {
        let held = |(_, one): &(Name, One)| {
            let lock = one.lock.as_ref()?;
            let is_mine = one.is_mine(&self.me);
            let is_sure = is_mine && self.now < one.ends;
            let why = match (&one.seen, &self.away) {
                _ if is_sure => "",
                (_, Some(away)) => away,
                _ if is_mine => "the lease of this node may have ended",
                (Seen::Held(word), _) if word.node == self.me => "this node is giving it up",
                (Seen::Held(_), _) => "",
                (Seen::Unknown, _) => "it was not looked at yet",
                (Seen::Nobody, _) => "nobody holds it",
                (Seen::Coming, _) => "somebody is taking it",
                (Seen::Nothing(why), _) => why,
            };
            let word = match &one.seen {
                Seen::Held(word) if why.is_empty() => Some(word),
                _ => None,
            };
            Some(Held {
                lock: lock.name.clone(),
                candidates: lock.candidates.clone(),
                holder: word.map(|word| word.node.clone()),
                token: word.map(|word| word.token),
                since: word.map(|word| word.since),
                is_mine: is_sure,
                why: crate::ask::words(why),
            })
        };
        self.all.0.iter().filter_map(held).collect()
    }
}
