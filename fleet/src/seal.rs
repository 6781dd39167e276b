//! Signing of values for the backend, and verification of values from it.

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

/// Time for which a verified signature is cached, unless certificates or revocation lists change.
const BELIEVED: Duration = Duration::from_secs(600);
/// Largest number of cached signatures.
const MOST_BELIEVED: usize = 4096;

/// SHA-256 of a value.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// Result for a value that is not trusted.
fn judged(why: &Untrusted) -> Found {
    match why.is_ours() {
        true => Found::Unclear(why.to_string()),
        false => Found::Bad(why.to_string()),
    }
}

/// Signs and verifies values; does neither if the backend is trusted.
pub struct Seals {
    me: Node,
    namespace: Namespace,
    identity: Option<Identity>,
    believed: Believed,
    /// Newest versions of the nodes' inventories; not used without signatures.
    pub newest: Newest,
}

/// Cache of verified values by their hashes, with their signers: lists contain the same values
/// again and again. Triggers are not cached.
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

    /// Clears the cache if it is full or too old, or if the clock was set back.
    fn make_room(&mut self) {
        let age = system_time().duration_since(self.since);
        let is_recent = age.is_ok_and(|age| age < BELIEVED);
        if !is_recent || self.signers.len() >= MOST_BELIEVED {
            *self = Believed::nothing();
        }
    }
}

impl Seals {
    /// Signing and verification with these settings.
    ///
    /// # Errors
    /// A certificate, key or revocation list cannot be used, or the certificate belongs to another
    /// node.
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

    /// Reads the files again if one has changed. Returns whether one has.
    ///
    /// # Errors
    /// The file that cannot be used; the earlier content stays in use.
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

    /// Checks that an entry is within all limits.
    ///
    /// # Errors
    /// The limit that the entry exceeds.
    pub fn check(&self, content: &Content) -> Result<(), Malformed> {
        let mut keys = content.keys().into_iter();
        keys.try_for_each(|key| self.draft(content, &key).map(|_| ()))
    }

    /// Value of an entry for one of its keys, before it is signed.
    ///
    /// # Errors
    /// The entry exceeds a limit, or has no value for the key.
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

    /// Signs several values with one signature.
    ///
    /// # Errors
    /// This node's key cannot sign.
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

    /// Result of verifying a trigger for this node.
    pub fn found(&self, bytes: &[u8]) -> Found {
        let opened = self.verifier().open(bytes);
        opened.map_or_else(
            |why| judged(&why),
            |(signer, trigger)| Found::Good(Signed::new(signer, trigger)),
        )
    }

    /// A batch of events without verification, to decide whether verifying it is worthwhile.
    ///
    /// # Errors
    /// The bytes are not a batch, or exceed a limit.
    pub fn peek(&self, bytes: &[u8]) -> Result<Batch, Untrusted> {
        self.verifier().peek(bytes)
    }

    /// Batch of events at a key, and the extensions of its node's certificate.
    ///
    /// # Errors
    /// The node did not sign the batch for this key, or that cannot be verified now.
    pub fn events(&self, bytes: &[u8], key: &Key) -> Result<(Extensions, Batch), Box<Found>> {
        let opened = self.verifier().at(key, bytes, None);
        let (signer, batch) = opened.map_err(|why| judged(&why))?;
        Ok((signer.map(|one| one.extensions).unwrap_or_default(), batch))
    }

    /// Inventory of a node at a key.
    ///
    /// # Errors
    /// The node did not sign the inventory for this key, or a newer one was read before.
    pub fn inventory(&mut self, bytes: &[u8], key: &Key) -> Result<Inventory, Ignored> {
        let inventory = self.read(bytes, key)?;
        if self.identity.is_some() {
            self.newest.judge(&inventory)?;
        }
        Ok(inventory)
    }

    /// Heartbeat that a node signs at a key while it has entries for slots or locks.
    ///
    /// # Errors
    /// The node did not sign the heartbeat for this key, or that cannot be verified now because its
    /// certificate is not valid at this time or with these revocation lists.
    pub fn beat(&self, bytes: &[u8], key: &Key) -> Result<Beat, Box<Found>> {
        let opened = self.verifier().at(key, bytes, None);
        let beat = opened.map(|(_, beat)| beat);
        Ok(beat.map_err(|why| match why {
            Untrusted::Certificate(_, Reason::Expired) => Found::Unclear(why.to_string()),
            why => judged(&why),
        })?)
    }

    /// Whether a node signed a value and is one of these.
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

    /// Verifies values on all processors before they are read, and caches valid signatures; errors
    /// are reported when a value is read. A list of a thousand nodes has several signatures each.
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
            // Values for which no thread could be started are verified when they are read.
            let parts: Vec<_> = parts.filter_map(|part| start(part).ok()).collect();
            let parts = parts.into_iter().filter_map(|part| part.join().ok());
            parts.flatten().collect::<Vec<_>>()
        });
        self.believed.signers.extend(signers);
    }

    /// Verified content of a value at a key.
    ///
    /// # Errors
    /// The value does not belong to the key, or its node did not sign it.
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
