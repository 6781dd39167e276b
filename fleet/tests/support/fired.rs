//! Triggers as another node sends them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use again_fleet::identity::own::Own;
use again_fleet::wire::Malformed;
use again_fleet::wire::body::Content;
use again_fleet::wire::envelope::{Draft, Signature, seal};
use again_fleet::wire::lineage::{Cause, Lineage, Origin};
use again_fleet::wire::name::Id;
use again_fleet::wire::trigger::{Ask, Trigger};

use crate::ca::Ca;

/// Returns a trigger for lb1.test that `sender` sends now, with a unique id.
pub fn trigger(sender: &str) -> Trigger {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock");
    let now = u64::try_from(now.as_millis()).expect("a time");
    let bits = u128::from(now) << 64 | u128::from(LAST.fetch_add(1, Ordering::Relaxed));
    let sender: again_fleet::wire::name::Node = sender.parse().expect("a certname");
    Trigger {
        ask: Ask::Run,
        id: Id::from_bits(bits),
        target: "lb1.test".parse().expect("a certname"),
        sender: sender.clone(),
        on_behalf: None,
        name: "again".parse().expect("a name"),
        number: now,
        at: now,
        ttl: 3_600_000,
        delta: 0,
        targets: 1,
        parallel: 0,
        stop_after: 0,
        lineage: Lineage(vec![Origin {
            id: Id::from_bits(bits),
            cause: Cause::Refresh,
            path: vec![sender],
        }]),
    }
}

/// Seals triggers together with the key of this certificate.
pub fn sealed(signer: &str, namespace: &str, triggers: &[Trigger]) -> Vec<Vec<u8>> {
    let own = own(signer);
    let namespace = namespace.parse().expect("a namespace");
    let drafts = triggers
        .iter()
        .map(|one| Draft::new(&namespace, one).expect("a draft"));
    seal(&drafts.collect::<Vec<_>>(), |message| own.sign(message)).expect("sealed")
}

/// Seals any content as this node does.
pub fn sealed_as(signer: &str, what: &impl Content) -> Vec<u8> {
    let own = own(signer);
    let namespace = "test".parse().expect("a namespace");
    let draft = Draft::new(&namespace, what).expect("a draft");
    seal(&[draft], |message| own.sign(message))
        .expect("sealed")
        .remove(0)
}

fn own(signer: &str) -> Own {
    let ca = Ca::get();
    let (certificate, key) = (format!("{signer}.pem"), format!("{signer}.key"));
    let own = Own::new(&ca.read(&certificate), &ca.read(&key));
    own.expect("a certificate and its key")
}

/// Seals a trigger as this node does.
pub fn by(signer: &str, trigger: &Trigger) -> Vec<u8> {
    sealed_as(signer, trigger)
}

/// Seals a trigger with an empty signature.
pub fn unsigned(trigger: &Trigger) -> Vec<u8> {
    let draft = Draft::new(&"test".parse().expect("a namespace"), trigger).expect("a draft");
    let nobody = |_: &[u8]| Ok::<_, Malformed>(Signature::default());
    seal(&[draft], nobody).expect("sealed").remove(0)
}
