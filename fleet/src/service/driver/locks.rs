//! Locks for which this node is a candidate, and requests of clients about locks.

use std::time::Duration;
use tracing::{error, info, warn};

use again_base::model::Span;
use again_base::sys::clock;
use rand::RngExt;

use super::{Driver, Reply, then};
use crate::ask;
use crate::backend::{Change, Error, NO_LOCKS, Value};
use crate::policy::fire::Request;
use crate::policy::lock::{Known, Lock};
use crate::policy::slots::Lease;
use crate::service::failures::Work;
use crate::service::link::{Call, Listed};
use crate::service::locks::{Effect, Locks, Seen, Standing};
use crate::service::places::{Act, Entered};
use crate::step::model::{Client, Event};
use crate::wire::envelope::Draft;
use crate::wire::inventory::Inventory;
use crate::wire::key::{Key, Prefix};
use crate::wire::lineage::{Cause, Lineage};
use crate::wire::lock::{Lock as Word, Reset};
use crate::wire::name::{Id, Name, Node};

/// Upper bound of the random delay before a free lock is tried, in nanoseconds.
const JITTER: u64 = 500_000_000;
/// Time to live of the triggers that a new holder sends to all candidates of a lock.
const TTL: Span = Span::from_secs(3600);
/// Time that an operator's request to move a lock stays in the backend.
const MOVE_TTL: Duration = Duration::from_secs(60);

impl Driver {
    /// Locks, with the current time and a new random delay.
    pub fn locks(&mut self) -> &mut Locks {
        self.locks.now = clock::boottime();
        self.locks.jitter = Span::from_nanos(rand::rng().random::<u64>() % JITTER);
        &mut self.locks
    }

    /// Makes this node a candidate for these locks, and for no others.
    pub fn lock(&mut self, locks: &[Lock]) {
        let has_places = self.health.backend.supports_slots();
        if !has_places && !locks.is_empty() {
            warn!("{NO_LOCKS}");
        }
        let effects = self.locks().set(if has_places { locks } else { &[] });
        self.do_with_locks(effects);
    }

    /// Does what is due. On a beat, it also renews leases.
    pub fn locks_go_on(&mut self, is_beat: bool) {
        let mut effects = self.locks().tick();
        if is_beat {
            effects.extend(self.locks.beat());
        }
        self.do_with_locks(effects);
    }

    /// Handles a value that was written or removed below `lock/`.
    pub(super) fn lock_changed(&mut self, name: &Name, change: Change) {
        let (seen, revision) = match change {
            Change::Put(value) => (self.lock_seen(name, &value), value.revision),
            Change::Removed { revision, .. } => (Seen::Nobody, revision),
        };
        let effects = self.locks().saw(name, seen, Some(revision), false);
        self.do_with_locks(effects);
    }

    /// Kind of a value at the key of a lock for which this node is a candidate.
    fn lock_seen(&mut self, name: &Name, value: &Value) -> Seen {
        let Some(lock) = self.locks.lock(name).cloned() else {
            return Seen::Unknown;
        };
        if value.bytes.is_empty() {
            return Seen::Coming;
        }
        let word = self.seals.read(&value.bytes, &Key::Lock(name.clone()));
        let judged = word.and_then(|word| {
            lock.judge(&word, value.first, value.writes)?;
            Ok(word)
        });
        match judged {
            Ok(word) => Seen::Held(Box::new(word)),
            Err(why) => {
                let why = format!("{} is not believed: {why}", value.key);
                self.reject(&why);
                Seen::Nothing(why)
            }
        }
    }

    /// Handles a request to move a lock, if an operator signed it.
    pub(super) fn move_seen(&mut self, key: &Key, value: &Value) {
        let word = self.seals.read(&value.bytes, key);
        let word = word.and_then(|word: Word| {
            self.is_operator(&value.bytes, &word.node)?;
            Ok(word)
        });
        match word {
            Ok(Word {
                lock, token, to, ..
            }) => {
                let effects = to.map(|to| self.locks().passed(&lock, token, to));
                self.do_with_locks(effects.unwrap_or_default());
            }
            Err(why) => self.reject(&format!("{} is not believed: {why}", value.key)),
        }
    }

    /// Handles a reset of a lock, if its node signed it.
    pub(super) fn reset_seen(&mut self, key: &Key, value: &Value) {
        match self.standing_reset(key, value) {
            Ok(reset) => {
                let effects = self.locks().reset_written(reset);
                self.do_with_locks(effects);
            }
            Err(why) => self.reject(&format!("{} is not believed: {why}", value.key)),
        }
    }

    fn standing_reset(&mut self, key: &Key, value: &Value) -> Result<Standing, String> {
        let reset: Reset = self.seals.read(&value.bytes, key)?;
        Ok(Standing {
            judged: self.judge_reset(&value.bytes, &reset),
            revision: value.revision,
            reset,
        })
    }

    /// Whether an operator signed the reset, with a number that is not ahead of the clock:
    /// otherwise no later reset would count.
    fn judge_reset(&self, bytes: &[u8], reset: &Reset) -> Result<(), String> {
        self.is_operator(bytes, &reset.node)?;
        let latest = clock::walltime() + self.state.rules.skew;
        if reset.number > latest.millis() {
            return Err(format!("the clock of {} is ahead", reset.node));
        }
        Ok(())
    }

    /// Whether an operator signed a value in the name of this node.
    pub(super) fn is_operator(&self, bytes: &[u8], node: &Node) -> Result<(), String> {
        if self.seals.is_among(bytes, node, &self.operators) {
            return Ok(());
        }
        Err(format!("operators does not list {node}"))
    }

    fn act_on_lock(&self, name: Name, act: Act) {
        let (key, done) = (Key::Lock(name.clone()), act.clone());
        let then = then(move |driver, answer| driver.lock_acted(&name, &done, answer));
        self.order(Call::Place { key, act, then });
    }

    /// Handles the answer to the first write at the key of a lock, which is empty.
    fn lock_entered(&mut self, name: &Name, answer: Result<Entered, Error>) {
        let effects = match answer {
            Ok(Entered { first, lease }) => self.locks().entered(name, Some((first, lease))),
            Err(Error::Conflict) => self.locks().entered(name, None),
            Err(e) => self.lock_failed(name, &e),
        };
        self.do_with_locks(effects);
    }

    /// Handles the answer to the second write at the key of a lock, which is signed.
    fn lock_signed(&mut self, name: &Name, lease: Lease, answer: Result<u64, Error>) {
        if !self.has_lock(name, lease) {
            return;
        }
        let effects = match answer {
            Ok(revision) => {
                let work = Work::Lock(name.clone());
                self.health.failures.succeeded(&work);
                self.locks().signed(name, revision)
            }
            Err(Error::Conflict) => self.locks().gone(name),
            Err(e) => self.lock_failed(name, &e),
        };
        self.do_with_locks(effects);
    }

    /// Handles the answer to an action at the key of a lock.
    fn lock_acted(&mut self, name: &Name, act: &Act, answer: Result<(), Error>) {
        if let Act::Resume(lease) | Act::Leave(lease) = act
            && !self.has_lock(name, *lease)
        {
            return;
        }
        let effects = match (act, answer) {
            (Act::Resume(_), Ok(())) => {
                self.locks().renewed(name);
                Vec::new()
            }
            (Act::Resume(_), Err(Error::Conflict)) => self.locks().gone(name),
            (Act::Clear(_), Ok(())) => {
                warn!("a write at the lock '{name}' that nobody signed for 90 s is removed");
                Vec::new()
            }
            (Act::Clear(revision), Err(Error::Conflict)) => {
                self.locks().not_cleared(name, *revision)
            }
            (_, Err(e)) => self.lock_failed(name, &e),
            (_, Ok(())) => Vec::new(),
        };
        self.do_with_locks(effects);
    }

    /// Whether an answer about a write under this lease is about this node's current one.
    fn has_lock(&mut self, name: &Name, lease: Lease) -> bool {
        let place = self.locks().place(name);
        place.is_some_and(|place| place.lease == lease)
    }

    fn lock_failed(&mut self, name: &Name, e: &Error) -> Vec<Effect> {
        let what = format!("the lock '{name}' cannot be taken: the backend {e}");
        self.note_refusal(Work::Lock(name.clone()), e, &what);
        self.locks().failed(name)
    }

    /// Handles the value at the key of a lock, and the inventories of its candidates.
    fn locks_told(&mut self, name: &Name, asked: &[String], answer: Listed) {
        let Ok(list) = answer else {
            let effects = self.locks().not_seen(name);
            return self.do_with_locks(effects);
        };
        let (mut seen, mut tokens) = ((Seen::Nobody, None), Vec::new());
        let mut resets = Vec::new();
        for value in &list.values {
            let is_asked = asked.contains(&value.key);
            match Key::decode(&value.key, &self.namespace) {
                Ok(Key::Lock(_)) if is_asked => {
                    seen = (self.lock_seen(name, value), Some(value.revision));
                }
                // An older version has a lower token, or its reset shows that it is older.
                Ok(key @ Key::Node(_)) if is_asked => {
                    match self.seals.read::<Inventory>(&value.bytes, &key) {
                        Ok(told) => {
                            let known = Known {
                                token: told.token(name),
                                reset: told.reset(name),
                                serial: told.order(),
                            };
                            tokens.push((told.node, known));
                        }
                        Err(why) => {
                            self.reject(&format!("{} is not believed: {why}", value.key));
                        }
                    }
                }
                // A candidate that takes the lock reads the resets after its first write, and so
                // misses none. A reset that does not count was logged when it was written.
                Ok(key @ Key::Reset { .. }) => resets.extend(self.standing_reset(&key, value)),
                _ => {}
            }
        }
        let mut effects = self.locks().resets_listed(name, resets);
        effects.extend(self.locks.weigh(name, &tokens));
        effects.extend(self.locks.saw(name, seen.0, seen.1, true));
        effects.extend(self.locks.told(name, &tokens));
        self.do_with_locks(effects);
    }

    /// Performs effects on locks.
    pub fn do_with_locks(&mut self, mut effects: Vec<Effect>) {
        if effects.contains(&Effect::Save) {
            match self.slots_file.write_locks(&self.locks) {
                Ok(()) => effects.extend(self.locks().kept()),
                Err(e) => {
                    error!("nothing of locks is kept: {e}");
                    effects.retain(|effect| !matches!(effect, Effect::Sign(_)));
                    effects.extend(self.locks().not_kept());
                }
            }
        }
        for effect in effects {
            match effect {
                Effect::Save => {}
                Effect::Retell => self.tell_tokens(),
                Effect::Enter(name) => self.order(Call::Enter {
                    key: Key::Lock(name.clone()),
                    is_own: false,
                    then: then(move |driver, answer| driver.lock_entered(&name, answer)),
                }),
                Effect::Resume(name, lease) => self.act_on_lock(name, Act::Resume(lease)),
                Effect::Leave(name, lease) => self.act_on_lock(name, Act::Leave(lease)),
                Effect::Clear(name, revision) => self.act_on_lock(name, Act::Clear(revision)),
                Effect::Sign(name) => match self.word(&name) {
                    Ok(call) => self.order(call),
                    Err(e) => {
                        warn!("the lock '{name}' cannot be taken: {e}");
                        let effects = self.locks().failed(&name);
                        self.do_with_locks(effects);
                    }
                },
                Effect::Look(name) => {
                    let candidates = self.locks.lock(&name).map(|lock| lock.candidates.clone());
                    let nodes = candidates.into_iter().flatten().map(Key::Node);
                    let passes = Prefix::MovesOf(&name).encode(&self.namespace);
                    let keys = [Key::Lock(name.clone())].into_iter().chain(nodes);
                    let keys = keys.map(|key| key.encode(&self.namespace));
                    let keys = keys.chain([passes]).collect();
                    self.list(keys, move |driver, asked, answer| {
                        driver.locks_told(&name, asked, answer);
                    });
                }
                Effect::Fire(name) => self.fire_lock(&name),
                Effect::Say(text) => warn!("{text}"),
                Effect::Note(text) => info!("{text}"),
            }
        }
    }

    /// Call that signs this node's value at the key of a lock.
    fn word(&mut self, name: &Name) -> Result<Call<Reply>, String> {
        let (Some(place), Some(lock)) = (self.locks.place(name), self.locks.lock(name)) else {
            return Err("it was given up".to_owned());
        };
        let word = Word {
            lock: name.clone(),
            node: self.me.clone(),
            first: place.first,
            token: self.locks.token(name),
            since: clock::walltime().millis(),
            candidates: lock.candidates.clone(),
            to: None,
            beats: true,
        };
        let (first, lease) = (place.first, place.lease);
        let bytes = self.sealed(&Draft::new(&self.namespace, &word).map_err(|e| e.to_string())?)?;
        let name = name.clone();
        Ok(Call::Sign {
            key: Key::Lock(name.clone()),
            entered: Entered { first, lease },
            bytes,
            then: then(move |driver, answer| driver.lock_signed(&name, lease, answer)),
        })
    }

    /// Signed bytes of one value.
    pub(super) fn sealed(&self, draft: &Draft) -> Result<Vec<u8>, String> {
        let sealed = self.seals.seal(std::slice::from_ref(draft));
        let mut sealed = sealed.map_err(|e| e.to_string())?;
        Ok(sealed.pop().unwrap_or_default())
    }

    /// Sends a trigger to all candidates of a lock, including this node.
    fn fire_lock(&mut self, name: &Name) {
        let Some(lock) = self.locks.lock(name) else {
            return;
        };
        let request = Request {
            id: Id::from_bits(rand::rng().random()),
            targets: lock.candidates.clone(),
            name: lock.trigger(),
            cause: Cause::Lock,
            on_behalf: None,
            run: Lineage::default(),
            delta: Span::ZERO,
            ttl: TTL,
            parallel: 0,
            stop_after: 0,
            selection: None,
            is_open: false,
        };
        let client = Client::Service;
        self.feed(Event::Fire { client, request });
        let effects = self.locks().fired(name);
        self.do_with_locks(effects);
    }

    /// Shows a client the holders of locks: as this node knows them for the locks of which it is a
    /// candidate, or as the backend has them for all locks.
    pub(super) fn show_locks(&mut self, client: Client, is_own: bool) {
        if !self.health.backend.supports_slots() {
            let why = ask::Answer::Refused(NO_LOCKS.to_owned());
            return self.callers.answer(client, why);
        }
        for (lock, node, token) in self.locks.ignored() {
            let answer = ask::Answer::IgnoredToken { lock, node, token };
            self.callers.tell(client, answer);
        }
        for (word, why) in self.locks().held() {
            if is_own || !why.is_empty() {
                let answer = ask::Answer::Lock(Box::new(word), why);
                self.callers.tell(client, answer);
            }
        }
        if is_own {
            self.callers.end(client);
        } else {
            self.look(client, &[Prefix::Locks]);
        }
    }

    /// Verified value of a lock from the backend.
    pub(super) fn shown_lock(&mut self, value: &Value, key: &Key) -> Result<Word, String> {
        let word: Word = self.seals.read(&value.bytes, key)?;
        let lock = self.locks.lock(&word.lock).cloned();
        let lock = lock.unwrap_or_else(|| Lock {
            name: word.lock.clone(),
            candidates: word.candidates.clone(),
            prefer: Vec::new(),
        });
        lock.judge(&word, value.first, value.writes)?;
        self.locks.doubt(&word).map_or(Ok(word), Err)
    }

    /// Asks the holder of a lock to move it.
    pub(super) fn move_lock(&mut self, client: Client, word: Word) {
        let node = self.me.clone();
        let word = Word { node, ..word };
        let (lock, node) = (word.lock.clone(), word.node.clone());
        let key = Key::Move { lock, node };
        let draft = self.may("passes no locks on").and_then(|()| {
            let draft = Draft::new(&self.namespace, &word);
            draft.map_err(|e| e.to_string())
        });
        match draft.and_then(|draft| self.sealed(&draft)) {
            Ok(bytes) => self.order(Call::Put {
                key,
                bytes,
                ttl: Some(MOVE_TTL),
                needs_room: false,
                then: then(move |driver, answer| driver.pass_told(client, answer)),
            }),
            Err(why) => {
                let why = ask::Answer::Refused(ask::words(&why));
                self.callers.answer(client, why);
            }
        }
    }

    /// Resets a lock that no node holds.
    pub(super) fn reset(&mut self, client: Client, reset: Reset) {
        let (lock, node) = (reset.lock.clone(), self.me.clone());
        let draft = self.may("resets no locks").and_then(|()| {
            let skew = self.state.rules.skew.millis();
            let ahead = self.state.ahead().unwrap_or(0);
            if ahead > i64::try_from(skew).unwrap_or(i64::MAX) {
                let ahead = ahead / 1000;
                return Err(format!(
                    "the clock of this node is {ahead} s ahead of the other nodes': set it first"
                ));
            }
            let node = node.clone();
            let draft = Draft::new(&self.namespace, &Reset { node, ..reset });
            draft.map_err(|e| e.to_string())
        });
        match draft.and_then(|draft| self.sealed(&draft)) {
            Ok(bytes) => {
                let key = Key::Lock(lock.clone());
                let keys = [Key::Reset { lock, node }, key];
                let then = then(move |driver, answer| driver.reset_told(client, answer));
                self.order(Call::Reset { keys, bytes, then });
            }
            Err(why) => {
                let why = ask::Answer::Refused(ask::words(&why));
                self.callers.answer(client, why);
            }
        }
    }

    /// Answers a client whether the backend has the reset.
    fn reset_told(&mut self, client: Client, answer: Result<(), Error>) {
        match answer {
            Err(Error::Conflict) => {
                let why =
                    "somebody holds the lock, or is taking it, or something else stands at its key";
                self.callers
                    .answer(client, ask::Answer::Refused(why.to_owned()));
            }
            answer => self.pass_told(client, answer),
        }
    }

    /// Answers a client whether the backend has its request.
    fn pass_told<T>(&mut self, client: Client, answer: Result<T, Error>) {
        match answer {
            Ok(_) => self.callers.end(client),
            Err(e) => {
                let why = self.not_seen(&e);
                self.callers.answer(client, why);
            }
        }
    }
}
