//! Values as the backend stores them: real envelopes, whose signatures only contain the signer's
//! name.

use again_fleet::policy::accept::Extensions;
use again_fleet::policy::judge::Signed;
use again_fleet::policy::rolling::Fact;
use again_fleet::step::model::{Content, Found};
use again_fleet::wire::Malformed;
use again_fleet::wire::body::Content as Body;
use again_fleet::wire::envelope::{Draft, Envelope, Seal, Signature, seal};
use again_fleet::wire::inventory::Inventory;
use again_fleet::wire::key::Key;
use again_fleet::wire::name::{Namespace, Node};
use again_fleet::wire::outcome::{Entry, TriggerStatus};
use again_fleet::wire::targets::Targets;
use again_fleet::wire::trigger::Trigger;

pub fn namespace() -> Namespace {
    "sim".parse().expect("a namespace")
}

fn write<T: Body>(me: &Node, content: &T) -> Vec<u8> {
    let draft = Draft::new(&namespace(), content).expect("within its bounds");
    let sign = |message: &[u8]| {
        Ok::<_, Malformed>(Signature {
            certificate: me.as_str().as_bytes().to_vec(),
            bytes: [me.as_str().as_bytes(), message].concat(),
        })
    };
    seal(&[draft], sign).expect("sealed").remove(0)
}

fn verify(seal: &Seal<'_>) -> Result<Node, Malformed> {
    if seal.signature != [seal.certificate, &seal.message].concat() {
        return Err(Malformed::new("not signed"));
    }
    String::from_utf8_lossy(seal.certificate).parse()
}

/// Returns the value that an entry puts at one of its keys.
pub fn value(me: &Node, content: &Content, key: &Key) -> Vec<u8> {
    match (content, key) {
        (Content::Node(inventory), _) => write(me, inventory),
        (Content::Targets(list), _) => write(me, list),
        (Content::Trigger(trigger), _) => write(me, trigger),
        (Content::Selection(_), _) => unreachable!("a selection is never sent"),
        (Content::Status { told, lineage, .. }, Key::Story { origin, .. }) => {
            let origin = lineage
                .0
                .iter()
                .find(|o| o.id == *origin)
                .expect("of the lineage");
            let entry = Entry {
                told: told.clone(),
                origin: origin.clone(),
            };
            write(me, &entry)
        }
        (Content::Status { told, .. }, _) => write(me, told),
    }
}

fn open<T: Body>(bytes: &[u8]) -> Result<(Node, T), Malformed> {
    Envelope::parse(bytes).and_then(|envelope| envelope.open(&namespace(), verify))
}

/// Seals a trigger as this node.
pub fn trigger(me: &Node, trigger: &Trigger) -> Vec<u8> {
    write(me, trigger)
}

/// Returns a trigger for a node, as its service reads it.
pub fn found(bytes: &[u8]) -> Found {
    match open(bytes) {
        Ok((signer, trigger)) => Found::Good(Signed {
            signer,
            extensions: Extensions::new(),
            trigger,
        }),
        Err(why) => Found::Bad(why.to_string()),
    }
}

pub fn told(bytes: &[u8]) -> Option<TriggerStatus> {
    let (signer, told) = open::<TriggerStatus>(bytes).ok()?;
    (signer == told.target).then_some(told)
}

/// Reads the inventory that a node has signed at its own key.
pub fn inventory(node: &Node, bytes: &[u8]) -> Result<Inventory, Malformed> {
    match open::<Inventory>(bytes)? {
        (signer, inventory) if (&signer, &inventory.node) == (node, node) => Ok(inventory),
        (signer, _) => Err(Malformed::new(format!("{signer} signed it"))),
    }
}

/// Reads a fact about a rolling run, if the node that owns the key has signed it for that key.
pub fn fact(key: &Key, bytes: &[u8]) -> Option<Fact> {
    match key {
        Key::Targets { sender, .. } => {
            let (signer, list) = open::<Targets>(bytes).ok()?;
            (signer == *sender && list.key() == *key).then_some(Fact::Targets(list))
        }
        Key::Story { node, .. } => {
            let (signer, Entry { told, origin }) = open(bytes).ok()?;
            let place = Key::Story {
                node: told.target.clone(),
                origin: origin.id,
                trigger: told.id.clone(),
            };
            (signer == *node && place == *key).then_some(Fact::Status(told))
        }
        Key::Slot { node, .. } => Some(Fact::Slot(node.clone())),
        _ => None,
    }
}
