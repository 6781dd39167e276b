//! Registers as version 0.1.0 wrote them, one of each kind and with every word, sealed with certificates of that day: `before/registers` has
//! a line for each, its key and its bytes in hexadecimal. An engine that is in use holds such values when the first node is upgraded.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use again_fleet::identity::Untrusted;
use again_fleet::identity::authority::{Authority, Revocation};
use again_fleet::wire::Malformed;
use again_fleet::wire::beat::Beat;
use again_fleet::wire::body::Content;
use again_fleet::wire::envelope::{Draft, Envelope, seal};
use again_fleet::wire::event::Batch;
use again_fleet::wire::inventory::Inventory;
use again_fleet::wire::key::Key;
use again_fleet::wire::lock::{Lock, Reset};
use again_fleet::wire::name::Namespace;
use again_fleet::wire::outcome::{Entry, Outcome, Told};
use again_fleet::wire::slot::Slot;
use again_fleet::wire::trigger::Trigger;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const REGISTERS: &str = include_str!("before/registers");

fn namespace() -> Namespace {
    "test".parse().expect("a namespace")
}

fn registers() -> Vec<(&'static str, Vec<u8>)> {
    let byte = |two: &[u8]| {
        let two = std::str::from_utf8(two).expect("ASCII");
        u8::from_str_radix(two, 16).expect("hexadecimal")
    };
    let register = |line: &'static str| {
        let (key, bytes) = line.split_once(' ').expect("two columns");
        (key, bytes.as_bytes().chunks(2).map(byte).collect())
    };
    REGISTERS.lines().map(register).collect()
}

/// The body of an envelope: the last of the parts that come with their lengths.
fn body(bytes: &[u8]) -> Value {
    let (mut rest, mut part) = (&bytes[4..], &bytes[..0]);
    for _ in 0..5 {
        let (length, more) = rest.split_first_chunk().expect("a length");
        (part, rest) = more.split_at(u32::from_be_bytes(*length) as usize);
    }
    serde_json::from_slice(part).expect("JSON")
}

/// Who signed it, and what it says, written as today.
fn read<T: Content>(authority: &Authority, bytes: &[u8]) -> (String, Value) {
    let at: u64 = include_str!("before/at").trim().parse().expect("seconds");
    let at = UNIX_EPOCH + Duration::from_secs(at + 60);
    let envelope = Envelope::parse(bytes).expect("a frame");
    let opened = envelope.open::<T, _, Untrusted>(&namespace(), |seal| authority.verify(seal, at));
    let (signer, content) = opened.expect("it is read");
    let written = serde_json::to_value(content).expect("JSON");
    (signer.node.to_string(), written)
}

/// Everything that it said then is said of it today.
fn is_kept(was: &Value, is: &Value) -> bool {
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => was
            .iter()
            .all(|(key, value)| is.get(key).is_some_and(|is| is_kept(value, is))),
        (Value::Array(was), Value::Array(is)) => {
            was.len() == is.len() && was.iter().zip(is).all(|(was, is)| is_kept(was, is))
        }
        _ => was == is,
    }
}

#[test]
fn what_the_version_before_wrote_is_read_and_loses_nothing() {
    let ca = include_bytes!("before/ca.pem");
    let authority = Authority::new(ca, include_bytes!("before/crl.pem"), Revocation::Chain);
    let authority = authority.expect("the CA");
    let all = registers();
    let mut kinds = Vec::new();
    for (text, bytes) in &all {
        let key = Key::decode(text, &namespace()).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(key.encode(&namespace()), *text);
        let (kind, (signer, is)) = match &key {
            Key::To { .. } => ("to", read::<Trigger>(&authority, bytes)),
            Key::Result { .. } => ("result", read::<Told>(&authority, bytes)),
            Key::Story { .. } => ("story", read::<Entry>(&authority, bytes)),
            Key::Node(_) => ("node", read::<Inventory>(&authority, bytes)),
            Key::Event { .. } => ("event", read::<Batch>(&authority, bytes)),
            Key::Slot { .. } => ("slot", read::<Slot>(&authority, bytes)),
            Key::Lock(_) => ("lock", read::<Lock>(&authority, bytes)),
            Key::Pass { .. } => ("pass", read::<Lock>(&authority, bytes)),
            Key::Beat(_) => ("beat", read::<Beat>(&authority, bytes)),
            Key::Reset { .. } => ("reset", read::<Reset>(&authority, bytes)),
            Key::Targets { .. } | Key::Alive(_) => panic!("{text} was not written then"),
        };
        if let Some(node) = key.signer() {
            assert_eq!(node.as_str(), signer, "{text}");
        }
        let was = body(bytes);
        assert!(is_kept(&was, &is), "{text}: {was} is read as {is}");
        kinds.push(kind);
    }
    let of = |kind: &str| kinds.iter().filter(|one| **one == kind).count();
    assert_eq!(
        [of("to"), of("result"), of("node"), of("event")],
        [4, 1, 1, 1]
    );
    assert_eq!([of("slot"), of("lock"), of("pass")], [1; 3]);
    // Each outcome that there was then.
    assert!(of("story") == 14 && Outcome::ALL.len() >= 14);
}

/// What a later version may write under the same key.
#[derive(Debug, Serialize, Deserialize)]
struct Later {
    colour: String,
}

impl Content for Later {
    const KIND: &'static str = "trigger.2";

    fn check(&self) -> Result<(), Malformed> {
        Ok(())
    }
}

#[test]
fn what_a_later_version_wrote_is_refused_with_its_version() {
    let own = super::own("web1.test").expect("this node");
    let authority = super::authority("crl.pem", Revocation::Chain);
    let open = |bytes: &[u8]| {
        let envelope = Envelope::parse(bytes).map_err(Untrusted::Malformed)?;
        envelope.open::<Trigger, _, Untrusted>(&namespace(), |seal| {
            authority.verify(seal, SystemTime::now())
        })
    };
    let why = |bytes: &[u8]| open(bytes).expect_err("refused").to_string();
    let colour = "red".to_owned();
    let draft = Draft::new(&namespace(), &Later { colour }).expect("a draft");
    let mut bytes = seal(&[draft], |message| own.sign(message)).expect("sealed");
    let mut bytes = bytes.remove(0);
    let said = why(&bytes);
    assert!(
        said.contains("the value is a 'trigger.2', not a 'trigger.1'"),
        "{said}"
    );
    bytes[..4].copy_from_slice(b"AGF2");
    let said = why(&bytes);
    assert!(
        said.contains("an envelope of again-fleet's version 2, and this program knows version 1"),
        "{said}"
    );
    let strange = why(b"AGF\0");
    assert!(
        strange.contains("no envelope of again-fleet's version 1"),
        "{strange}"
    );
}
