//! Values as they stand in the engine: signed by this node, and what is found there and by whom it was signed.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime};

use again_base::sys::clock::system_time;
use ring::digest::{SHA256, digest};

use crate::engine::Value;
use crate::identity::authority::Authority;
use crate::identity::files::Identity;
use crate::identity::{Reason, Signer, Untrusted};
use crate::policy::accept::{Extensions, Who};
use crate::policy::judge::Signed;
use crate::policy::newest::{Ignored, Newest};
use crate::settings::{Settings, Trust};
use crate::step::model::{Content, Found};
use crate::wire::Malformed;
use crate::wire::beat::Beat;
use crate::wire::body;
use crate::wire::envelope::{Draft, Envelope, Seal, Signature, seal};
use crate::wire::event::Batch;
use crate::wire::inventory::Inventory;
use crate::wire::key::Key;
use crate::wire::lock::{Lock, Reset};
use crate::wire::name::{Namespace, Node};
use crate::wire::outcome::{Entry, Told};
use crate::wire::slot::Slot;
use crate::wire::targets::Targets;
use crate::wire::trigger::Trigger;

/// How long a value that was verified is believed without another look, unless certificates or revocation lists change.
const BELIEVED: Duration = Duration::from_secs(600);
/// How many values are.
const MOST_BELIEVED: usize = 4096;

/// SHA-256 of a value.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// Where a batch of events belongs, and whose it is.
fn place_of_events(batch: &Batch) -> (Key, &Node) {
    let key = Key::Event {
        node: batch.node.clone(),
        run: batch.run.clone(),
        first: batch.first(),
    };
    (key, &batch.node)
}

/// What a value is that does not hold.
fn judged(why: Untrusted) -> Found {
    match why {
        // The sender can do nothing about these; this node's operator can.
        Untrusted::Certificate(
            _,
            Reason::NotYet | Reason::StaleRevocations | Reason::NoRevocations,
        ) => Found::Unclear(why.to_string()),
        why => Found::Bad(why.to_string()),
    }
}

/// Signs and verifies; or neither, where the engine is trusted.
pub struct Seals {
    me: Node,
    namespace: Namespace,
    identity: Option<Identity>,
    believed: Believed,
    /// Newest versions of what nodes publish of themselves; of no use where nothing is signed.
    pub newest: Newest,
}

/// Values that were verified, by their hashes, and who signed them: lists show the same ones again and again. No trigger is among them.
struct Believed {
    since: SystemTime,
    signers: BTreeMap<[u8; 32], Node>,
}

impl Believed {
    fn nothing() -> Believed {
        Believed {
            since: system_time(),
            signers: BTreeMap::new(),
        }
    }

    /// Makes room for another one, and forgets what was verified too long ago, or under another clock.
    fn make_room(&mut self) {
        let age = system_time().duration_since(self.since);
        let is_recent = age.is_ok_and(|age| age < BELIEVED);
        if !is_recent || self.signers.len() >= MOST_BELIEVED {
            *self = Believed::nothing();
        }
    }
}

impl Seals {
    /// By these settings.
    ///
    /// # Errors
    /// A certificate, key or revocation list cannot be used, or the certificate is another node's.
    pub fn new(settings: &Settings) -> Result<Seals, String> {
        let me = settings.certname().map_err(|e| e.to_string())?.clone();
        let identity = match settings.trust {
            Trust::Engine => None,
            Trust::Puppet => {
                let paths = settings.identity().map_err(|e| e.to_string())?;
                Some(Identity::read(paths).map_err(|e| e.to_string())?)
            }
        };
        let seals = Seals {
            me,
            namespace: settings.namespace.clone(),
            identity,
            believed: Believed::nothing(),
            newest: Newest::default(),
        };
        seals.is_mine()?;
        Ok(seals)
    }

    fn is_mine(&self) -> Result<(), String> {
        let signer = self
            .identity
            .as_ref()
            .map(|identity| identity.own().signer());
        match signer {
            Some(Signer { node, .. }) if *node != self.me => Err(format!(
                "the certificate is that of {node}, and this node is {}; set certname, or cert and key",
                self.me
            )),
            _ => Ok(()),
        }
    }

    /// Reads the files again if one has changed; whether one has.
    ///
    /// # Errors
    /// Which one cannot be used now; what was read before still counts.
    pub fn refresh(&mut self) -> Result<bool, String> {
        let refreshed = self.identity.as_mut().map(Identity::refresh);
        match refreshed.unwrap_or(Ok(false)) {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.believed = Believed::nothing();
                self.is_mine().map(|()| true)
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// Whether a letter keeps to all bounds.
    ///
    /// # Errors
    /// Which one it breaks.
    pub fn check(&self, content: &Content) -> Result<(), Malformed> {
        let mut keys = content.keys().into_iter();
        keys.try_for_each(|key| self.draft(content, &key).map(|_| ()))
    }

    /// What a letter puts at one of its keys.
    ///
    /// # Errors
    /// It breaks a bound.
    pub fn draft(&self, content: &Content, key: &Key) -> Result<Draft, Malformed> {
        match (content, key) {
            (Content::Node(inventory), _) => Draft::new(&self.namespace, inventory),
            (Content::Targets(list), _) => Draft::new(&self.namespace, list),
            (Content::Trigger(trigger), _) => Draft::new(&self.namespace, trigger),
            (Content::Selection(_), _) => Err(Malformed::new("a selection is never sent")),
            (Content::Told { told, lineage }, Key::Story { origin, .. }) => {
                let of = lineage.0.iter().find(|one| one.id == *origin);
                let origin = of.ok_or_else(|| Malformed::new("that is another one's story"))?;
                let entry = Entry {
                    told: told.clone(),
                    origin: origin.clone(),
                };
                Draft::new(&self.namespace, &entry)
            }
            (Content::Told { told, .. }, _) => Draft::new(&self.namespace, told),
        }
    }

    /// Signs all of these together, once.
    ///
    /// # Errors
    /// This node's key cannot.
    pub fn seal(&self, drafts: &[Draft]) -> Result<Vec<Vec<u8>>, Malformed> {
        seal(drafts, |message| match &self.identity {
            Some(identity) => identity.own().sign(message),
            None => Ok(Signature::default()),
        })
    }

    /// Who signed a value, as this one finds out, and what it says.
    fn open<T: body::Content, S>(
        &self,
        bytes: &[u8],
        verify: impl FnOnce(&Seal<'_>) -> Result<S, Untrusted>,
    ) -> Result<(S, T), Untrusted> {
        Envelope::parse(bytes)?.open(&self.namespace, verify)
    }

    /// Who made a seal; nobody where the engine is trusted.
    fn verify(&self, seal: &Seal<'_>) -> Result<Option<Signer>, Untrusted> {
        let verify = |authority: &Authority| authority.verify(seal, system_time());
        self.identity
            .as_ref()
            .map(|identity| verify(identity.authority()))
            .transpose()
    }

    /// What a register for this node is.
    pub fn found(&self, bytes: &[u8]) -> Found {
        match self.signed::<Trigger>(bytes) {
            Ok((Some(signer), trigger)) => Found::Good(Signed {
                signer: signer.node,
                extensions: signer.extensions,
                trigger,
            }),
            Ok((None, trigger)) => Found::Good(Signed {
                signer: trigger.sender.clone(),
                extensions: Extensions::new(),
                trigger,
            }),
            Err(found) => *found,
        }
    }

    /// What a batch of events would say if its node had signed it, to see whether that is worth finding out.
    ///
    /// # Errors
    /// It is none, or breaks a bound.
    pub fn glance(&self, bytes: &[u8]) -> Result<Batch, Untrusted> {
        self.open(bytes, |_| Ok(())).map(|((), batch)| batch)
    }

    /// The events at this key, and what else the certificate of their node says.
    ///
    /// # Errors
    /// Their node did not sign them there, or that cannot be told now.
    pub fn events(&self, bytes: &[u8], key: &Key) -> Result<(Extensions, Batch), Box<Found>> {
        let (signer, batch) = self.signed::<Batch>(bytes)?;
        let (belongs, teller) = place_of_events(&batch);
        if belongs != *key {
            return Err(Found::Bad(format!("{teller} told it elsewhere")).into());
        }
        match signer {
            Some(signer) if signer.node != *teller => {
                let node = signer.node;
                Err(Found::Bad(format!("{node} signed it in the name of {teller}")).into())
            }
            signer => Ok((signer.map(|one| one.extensions).unwrap_or_default(), batch)),
        }
    }

    /// Who signed a value, and what it says.
    fn signed<T: body::Content>(&self, bytes: &[u8]) -> Result<(Option<Signer>, T), Box<Found>> {
        self.open::<T, _>(bytes, |seal| self.verify(seal))
            .map_err(|why| Box::new(judged(why)))
    }

    /// What the target told at a key of results.
    ///
    /// # Errors
    /// It did not tell that.
    pub fn told(&mut self, bytes: &[u8], key: &Key) -> Result<Told, String> {
        self.stands(bytes, key, |told: &Told| {
            (crate::step::model::result_key(told), &told.target)
        })
    }

    /// What a node tells of itself at this key.
    ///
    /// # Errors
    /// It did not tell that, or something newer was read before.
    pub fn inventory(&mut self, bytes: &[u8], key: &Key) -> Result<Inventory, Ignored> {
        let inventory = self.any_inventory(bytes, key)?;
        if self.identity.is_some() {
            self.newest.judge(&inventory)?;
        }
        Ok(inventory)
    }

    /// What a node tells of itself at this key, also if something newer was read before.
    ///
    /// # Errors
    /// It did not tell that.
    pub fn any_inventory(&mut self, bytes: &[u8], key: &Key) -> Result<Inventory, String> {
        self.stands(bytes, key, |one: &Inventory| {
            (Key::Node(one.node.clone()), &one.node)
        })
    }

    /// What the target told at a key of a story.
    ///
    /// # Errors
    /// It did not tell that.
    pub fn entry(&mut self, bytes: &[u8], key: &Key) -> Result<Entry, String> {
        self.stands(bytes, key, |Entry { told, origin }: &Entry| {
            let key = Key::Story {
                node: told.target.clone(),
                origin: origin.id.clone(),
                trigger: told.id.clone(),
            };
            (key, &told.target)
        })
    }

    /// The targets of a rolling run at this key.
    ///
    /// # Errors
    /// Their sender did not sign that there.
    pub fn targets(&mut self, bytes: &[u8], key: &Key) -> Result<Targets, String> {
        self.stands(bytes, key, |list: &Targets| (list.key(), &list.sender))
    }

    /// What a node tells of its runs at this key.
    ///
    /// # Errors
    /// It did not tell that.
    pub fn batch(&mut self, bytes: &[u8], key: &Key) -> Result<Batch, String> {
        self.stands(bytes, key, place_of_events)
    }

    /// Who runs or waits in a group, by its own word at this key.
    ///
    /// # Errors
    /// It did not say that.
    pub fn slot(&mut self, bytes: &[u8], key: &Key) -> Result<Slot, String> {
        self.stands(bytes, key, |slot: &Slot| {
            let (group, node) = (slot.group.clone(), slot.node.clone());
            (Key::Slot { group, node }, &slot.node)
        })
    }

    /// What a node signs at this key while it has places.
    ///
    /// # Errors
    /// It did not sign that there; or that cannot be told now, as its certificate does not hold by this clock and these revocation lists.
    pub fn beat(&self, bytes: &[u8], key: &Key) -> Result<Beat, Box<Found>> {
        let opened = self.open::<Beat, _>(bytes, |seal| self.verify(seal));
        let (signer, beat) = opened.map_err(|why| match why {
            Untrusted::Certificate(_, Reason::Expired) => Found::Unclear(why.to_string()),
            why => judged(why),
        })?;
        let node = signer.map_or_else(|| beat.node.clone(), |signer| signer.node);
        if node != beat.node || Key::Beat(node) != *key {
            return Err(Found::Bad("another node signed it, or elsewhere".to_owned()).into());
        }
        Ok(beat)
    }

    /// Who holds a lock, or to whom it is to go on, by the word of whoever may say so at this key.
    ///
    /// # Errors
    /// It did not say that.
    pub fn lock(&mut self, bytes: &[u8], key: &Key) -> Result<Lock, String> {
        self.stands(bytes, key, |word: &Lock| {
            let (lock, node) = (word.lock.clone(), word.node.clone());
            let key = match word.to {
                Some(_) => Key::Pass { lock, node },
                None => Key::Lock(lock),
            };
            (key, &word.node)
        })
    }

    /// An operator's reset of a lock at this key.
    ///
    /// # Errors
    /// Its node did not sign that there.
    pub fn reset(&mut self, bytes: &[u8], key: &Key) -> Result<Reset, String> {
        self.stands(bytes, key, |reset: &Reset| {
            let (lock, node) = (reset.lock.clone(), reset.node.clone());
            (Key::Reset { lock, node }, &reset.node)
        })
    }

    /// Whether one of these signed a value, which this node says.
    pub fn is_among(&self, bytes: &[u8], node: &Node, whom: &[Who]) -> bool {
        let envelope = Envelope::parse(bytes);
        let signer = envelope.map(|envelope| self.verify(&envelope.seal()));
        let Ok(Ok(signer)) = signer else {
            return false;
        };
        let extensions = signer.map_or_else(Extensions::new, |signer| signer.extensions);
        whom.iter().any(|who| who.is_met_by(node, &extensions))
    }

    /// Whether this node is one of these.
    pub fn am_among(&self, whom: &[Who]) -> bool {
        let nothing = Extensions::new();
        let signer = self
            .identity
            .as_ref()
            .map(|identity| identity.own().signer());
        let extensions = signer.map_or(&nothing, |signer| &signer.extensions);
        whom.iter().any(|who| who.is_met_by(&self.me, extensions))
    }

    /// Verifies values that will be asked for, on all processors, and believes those that hold; why another one does not is said when it
    /// is asked for. A list of a thousand nodes takes several signatures each.
    pub fn meet(&mut self, values: &[Value]) {
        let Some(identity) = &self.identity else {
            return;
        };
        self.believed.make_room();
        let known = &self.believed.signers;
        let all = values.iter().map(|value| (hash(&value.bytes), value));
        let new: Vec<_> = all.filter(|(hash, _)| !known.contains_key(hash)).collect();
        let many = thread::available_parallelism().map_or(1, NonZero::get);
        let (authority, now) = (identity.authority(), system_time());
        let signer = |value: &Value| {
            let seal = Envelope::parse(&value.bytes).ok()?.seal();
            Some(authority.verify(&seal, now).ok()?.node)
        };
        let verified = |part: &[([u8; 32], &Value)]| -> Vec<_> {
            let signed = part.iter();
            signed
                .filter_map(|(hash, value)| Some((*hash, signer(value)?)))
                .collect()
        };
        let share = new.len().div_ceil(many).max(1);
        let signers = thread::scope(|scope| {
            let parts = new.chunks(share);
            let start = |part| Builder::new().spawn_scoped(scope, move || verified(part));
            // What no thread can be had for is verified when it is asked for.
            let parts: Vec<_> = parts.filter_map(|part| start(part).ok()).collect();
            let parts = parts.into_iter().filter_map(|part| part.join().ok());
            parts.flatten().collect::<Vec<_>>()
        });
        self.believed.signers.extend(signers);
    }

    /// What stands at a key, if it belongs there and its node signed it.
    fn stands<T: body::Content>(
        &mut self,
        bytes: &[u8],
        key: &Key,
        of: impl Fn(&T) -> (Key, &Node),
    ) -> Result<T, String> {
        self.believed.make_room();
        let hash = hash(bytes);
        let known = self.believed.signers.get(&hash);
        let is_new = known.is_none();
        let opened = self.open::<T, _>(bytes, |seal| match known {
            Some(node) => Ok(Some(node.clone())),
            None => Ok(self.verify(seal)?.map(|signer| signer.node)),
        });
        let (signer, content) = opened.map_err(|e| e.to_string())?;
        if is_new && let Some(node) = &signer {
            self.believed.signers.insert(hash, node.clone());
        }
        let (belongs, teller) = of(&content);
        if belongs != *key {
            return Err(format!("{teller} told it elsewhere"));
        }
        match signer {
            Some(node) if node != *teller => {
                Err(format!("{node} signed it in the name of {teller}"))
            }
            _ => Ok(content),
        }
    }
}
