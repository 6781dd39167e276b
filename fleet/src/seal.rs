//! Values as they stand in the backend: signed by this node, and what is found there and by whom it was signed.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime};

use again_base::sys::clock::system_time;
use ring::digest::{SHA256, digest};

use crate::backend::Value;
use crate::identity::files::Identity;
use crate::identity::verifier::Verifier;
use crate::identity::{Reason, Signer, Untrusted};
use crate::policy::accept::{Extensions, Who};
use crate::policy::judge::Signed;
use crate::policy::newest::{Ignored, Newest};
use crate::settings::{Settings, Trust};
use crate::step::model::{Content, Found};
use crate::wire::Malformed;
use crate::wire::beat::Beat;
use crate::wire::body::Placed;
use crate::wire::envelope::{Draft, Signature, seal};
use crate::wire::event::Batch;
use crate::wire::inventory::Inventory;
use crate::wire::key::Key;
use crate::wire::name::{Namespace, Node};
use crate::wire::outcome::Entry;

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

/// What a value is that does not hold.
fn judged(why: &Untrusted) -> Found {
    match why.is_ours() {
        true => Found::Unclear(why.to_string()),
        false => Found::Bad(why.to_string()),
    }
}

/// Signs and verifies; or neither, where the backend is trusted.
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
    signers: BTreeMap<[u8; 32], Signer>,
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
            Trust::Backend => None,
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

    /// Whether an entry keeps to all bounds.
    ///
    /// # Errors
    /// Which one it breaks.
    pub fn check(&self, content: &Content) -> Result<(), Malformed> {
        let mut keys = content.keys().into_iter();
        keys.try_for_each(|key| self.draft(content, &key).map(|_| ()))
    }

    /// What an entry puts at one of its keys.
    ///
    /// # Errors
    /// It breaks a bound.
    pub fn draft(&self, content: &Content, key: &Key) -> Result<Draft, Malformed> {
        match (content, key) {
            (Content::Node(inventory), _) => Draft::new(&self.namespace, inventory),
            (Content::Targets(list), _) => Draft::new(&self.namespace, list),
            (Content::Trigger(trigger), _) => Draft::new(&self.namespace, trigger),
            (Content::Selection(_), _) => Err(Malformed::new("a selection is never sent")),
            (Content::Status { told, lineage, .. }, Key::Story { origin, .. }) => {
                let of = lineage.0.iter().find(|one| one.id == *origin);
                let origin = of.ok_or_else(|| Malformed::new("that is another one's story"))?;
                let entry = Entry {
                    told: told.clone(),
                    origin: origin.clone(),
                };
                Draft::new(&self.namespace, &entry)
            }
            (Content::Status { told, .. }, _) => Draft::new(&self.namespace, told),
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

    fn verifier(&self) -> Verifier<'_> {
        Verifier {
            namespace: &self.namespace,
            authority: self.identity.as_ref().map(Identity::authority),
        }
    }

    /// What a register for this node is.
    pub fn found(&self, bytes: &[u8]) -> Found {
        let opened = self.verifier().open(bytes);
        opened.map_or_else(
            |why| judged(&why),
            |(signer, trigger)| Found::Good(Signed::new(signer, trigger)),
        )
    }

    /// What a batch of events would say if its node had signed it, to see whether that is worth finding out.
    ///
    /// # Errors
    /// It is none, or breaks a bound.
    pub fn peek(&self, bytes: &[u8]) -> Result<Batch, Untrusted> {
        self.verifier().peek(bytes)
    }

    /// The events at this key, and what else the certificate of their node says.
    ///
    /// # Errors
    /// Their node did not sign them there, or that cannot be told now.
    pub fn events(&self, bytes: &[u8], key: &Key) -> Result<(Extensions, Batch), Box<Found>> {
        let opened = self.verifier().at(key, bytes, None);
        let (signer, batch) = opened.map_err(|why| judged(&why))?;
        Ok((signer.map(|one| one.extensions).unwrap_or_default(), batch))
    }

    /// What a node tells of itself at this key.
    ///
    /// # Errors
    /// It did not tell that, or something newer was read before.
    pub fn inventory(&mut self, bytes: &[u8], key: &Key) -> Result<Inventory, Ignored> {
        let inventory = self.read(bytes, key)?;
        if self.identity.is_some() {
            self.newest.judge(&inventory)?;
        }
        Ok(inventory)
    }

    /// What a node signs at this key while it has places.
    ///
    /// # Errors
    /// It did not sign that there; or that cannot be told now, as its certificate does not hold by this clock and these revocation lists.
    pub fn beat(&self, bytes: &[u8], key: &Key) -> Result<Beat, Box<Found>> {
        let opened = self.verifier().at(key, bytes, None);
        let beat = opened.map(|(_, beat)| beat);
        Ok(beat.map_err(|why| match why {
            Untrusted::Certificate(_, Reason::Expired) => Found::Unclear(why.to_string()),
            why => judged(&why),
        })?)
    }

    /// Whether one of these signed a value, which this node says.
    pub fn is_among(&self, bytes: &[u8], node: &Node, whom: &[Who]) -> bool {
        let Ok(signer) = self.verifier().signer(bytes) else {
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
        if self.identity.is_none() {
            return;
        }
        self.believed.make_room();
        let known = &self.believed.signers;
        let all = values.iter().map(|value| (hash(&value.bytes), value));
        let new: Vec<_> = all.filter(|(hash, _)| !known.contains_key(hash)).collect();
        let many = thread::available_parallelism().map_or(1, NonZero::get);
        let verifier = self.verifier();
        let signer = |value: &Value| verifier.signer(&value.bytes).ok()?;
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

    /// What stands at a key.
    ///
    /// # Errors
    /// It does not belong there, or its node did not sign it.
    pub fn read<T: Placed>(&mut self, bytes: &[u8], key: &Key) -> Result<T, String> {
        self.believed.make_room();
        let hash = hash(bytes);
        let known = self.believed.signers.get(&hash);
        let opened = self.verifier().at(key, bytes, known);
        let (signer, content) = opened.map_err(|e| e.to_string())?;
        if let Some(signer) = signer {
            self.believed.signers.entry(hash).or_insert(signer);
        }
        Ok(content)
    }
}
