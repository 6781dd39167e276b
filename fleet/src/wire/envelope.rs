//! Envelope: a kind, a namespace and a body, and the signature over them, which is checked before
//! the body is read.
//!
//! The signed text contains the root of a Merkle tree whose leaves are the envelopes that were
//! sealed together; each carries the hashes on its path to the root. So a thousand triggers cost
//! one signature, and each can be verified alone. A single envelope is a tree of one leaf. A leaf
//! is the hash of kind, namespace and body, each with its length; leaves, inner nodes and the
//! signed text have different prefixes, so that none can be taken for another.

use ring::digest::{Context, SHA256};

use super::Malformed;
use super::body::{self, Content};
use super::name::Namespace;

/// Longest envelope, in bytes.
pub const MOST: usize = body::MOST + (16 << 10);
/// Longest certificate, in bytes: Puppet's have 1.5 kB, and more with many names.
const MOST_CERTIFICATE: usize = 8 << 10;
/// Longest signature, in bytes: RSA with 16,384 bits.
const MOST_SIGNATURE: usize = 2 << 10;
/// Longest path to the root, in steps: a million envelopes.
const MOST_STEPS: usize = 20;
/// Most envelopes that are sealed together.
pub const MOST_TOGETHER: usize = 1 << MOST_STEPS;

/// Format and version of an envelope.
const MAGIC: &[u8] = b"AGF1";
const LEAF: &[u8] = b"again-fleet 1 leaf\0";
const INNER: &[u8] = b"again-fleet 1 inner\0";
const SIGNED: &[u8] = b"again-fleet 1 signed\0";

type Hash = [u8; 32];

/// Step from a leaf to the root: the hash of the sibling, and whether that is on the left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    is_left: bool,
    hash: Hash,
}

/// Envelope whose frame was parsed, but not its body.
#[derive(Debug)]
pub struct Envelope<'a> {
    kind: &'a [u8],
    namespace: &'a [u8],
    certificate: &'a [u8],
    signature: &'a [u8],
    steps: Vec<Step>,
    body: &'a [u8],
}

/// Certificate, signature and message for a verifier to check.
#[derive(Debug)]
pub struct Seal<'a> {
    /// Certificate of the signer, DER; empty if the value is unsigned.
    pub certificate: &'a [u8],
    /// Signature; empty if the value is unsigned.
    pub signature: &'a [u8],
    /// Message that was signed.
    pub message: Vec<u8>,
}

/// Signature of a message, and the signer's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// Certificate of the signer, DER.
    pub certificate: Vec<u8>,
    /// Signature of the message.
    pub bytes: Vec<u8>,
}

/// Body that is not sealed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    kind: &'static str,
    namespace: String,
    body: Vec<u8>,
}

impl Draft {
    /// Draft of this content for this fleet.
    ///
    /// # Errors
    /// The content exceeds a bound.
    pub fn new<T: Content>(namespace: &Namespace, content: &T) -> Result<Draft, Malformed> {
        Ok(Draft {
            kind: T::KIND,
            namespace: namespace.to_string(),
            body: body::encode(content)?,
        })
    }

    fn leaf(&self) -> Hash {
        leaf(self.kind.as_bytes(), self.namespace.as_bytes(), &self.body)
    }
}

/// Seals drafts together with one signature; the envelopes are in the order of the drafts.
///
/// # Errors
/// The error of `sign`, or a bound that is exceeded.
pub fn seal<E: From<Malformed>>(
    drafts: &[Draft],
    sign: impl FnOnce(&[u8]) -> Result<Signature, E>,
) -> Result<Vec<Vec<u8>>, E> {
    if drafts.is_empty() {
        return Ok(Vec::new());
    }
    body::at_most("values under one signature", drafts.len(), MOST_TOGETHER)?;
    let (root, ways) = tree(drafts.iter().map(Draft::leaf).collect());
    let signature = sign(&message(&root))?;
    body::at_most(
        "bytes of a certificate",
        signature.certificate.len(),
        MOST_CERTIFICATE,
    )?;
    body::at_most(
        "bytes of a signature",
        signature.bytes.len(),
        MOST_SIGNATURE,
    )?;
    let written = drafts
        .iter()
        .zip(&ways)
        .map(|(draft, way)| write(draft, &signature, way));
    Ok(written.collect())
}

impl<'a> Envelope<'a> {
    /// Parses the frame.
    ///
    /// # Errors
    /// The bytes are not an envelope, or exceed a bound.
    pub fn parse(bytes: &'a [u8]) -> Result<Envelope<'a>, Malformed> {
        body::at_most("bytes of a value", bytes.len(), MOST)?;
        let mut reader = Reader { rest: bytes };
        if reader.take(MAGIC.len()) != Some(MAGIC) {
            return Err(unknown(bytes));
        }
        let envelope =
            frame(&mut reader).ok_or_else(|| Malformed::new("the envelope is cut short"))?;
        body::at_most(
            "bytes of a certificate",
            envelope.certificate.len(),
            MOST_CERTIFICATE,
        )?;
        body::at_most(
            "bytes of a signature",
            envelope.signature.len(),
            MOST_SIGNATURE,
        )?;
        body::at_most("steps to the root", envelope.steps.len(), MOST_STEPS)?;
        if !reader.rest.is_empty() {
            return Err(Malformed::new("something stands behind the envelope's end"));
        }
        Ok(envelope)
    }

    /// Certificate, signature and message of the envelope.
    pub fn seal(&self) -> Seal<'a> {
        let mut hash = leaf(self.kind, self.namespace, self.body);
        for step in &self.steps {
            hash = if step.is_left {
                inner(&step.hash, &hash)
            } else {
                inner(&hash, &step.hash)
            };
        }
        Seal {
            certificate: self.certificate,
            signature: self.signature,
            message: message(&hash),
        }
    }

    /// Verifies the seal over kind, namespace and body, then reads the content.
    ///
    /// # Errors
    /// The error of `verify`; or the value is for another fleet, of another kind, or exceeds a
    /// bound. These errors are reported only for a verified value.
    pub fn open<T: Content, S, E: From<Malformed>>(
        self,
        namespace: &Namespace,
        verify: impl FnOnce(&Seal<'_>) -> Result<S, E>,
    ) -> Result<(S, T), E> {
        let signer = verify(&self.seal())?;
        self.is_for(namespace)?;
        if self.kind != T::KIND.as_bytes() {
            let is = super::shown(&String::from_utf8_lossy(self.kind));
            return Err(
                Malformed::new(format!("the value is a '{is}', not a '{}'", T::KIND)).into(),
            );
        }
        Ok((signer, body::decode(self.body)?))
    }

    fn is_for(&self, namespace: &Namespace) -> Result<(), Malformed> {
        if self.namespace == namespace.as_str().as_bytes() {
            return Ok(());
        }
        let is = super::shown(&String::from_utf8_lossy(self.namespace));
        Err(Malformed::new(format!(
            "the value was signed for namespace '{is}', not for '{namespace}'"
        )))
    }
}

/// Error about a value with another prefix. It names the version of an envelope of another version,
/// because the reader may have to upgrade.
fn unknown(bytes: &[u8]) -> Malformed {
    let version = bytes.strip_prefix(b"AGF").and_then(|rest| rest.first());
    match version.filter(|version| version.is_ascii_alphanumeric()) {
        Some(version) => Malformed::new(format!(
            "the value is an envelope of again-fleet's version {}, and this program knows version 1",
            char::from(*version)
        )),
        None => Malformed::new("the value is no envelope of again-fleet's version 1"),
    }
}

fn leaf(kind: &[u8], namespace: &[u8], body: &[u8]) -> Hash {
    let mut context = Context::new(&SHA256);
    context.update(LEAF);
    for part in [kind, namespace, body] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    hash(context)
}

fn inner(left: &Hash, right: &Hash) -> Hash {
    let mut context = Context::new(&SHA256);
    for part in [INNER, left, right] {
        context.update(part);
    }
    hash(context)
}

fn hash(context: Context) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

fn message(root: &Hash) -> Vec<u8> {
    [SIGNED, root].concat()
}

/// Root of a tree with these leaves, and the path of each leaf to it. A node without a sibling
/// moves up unchanged.
fn tree(leaves: Vec<Hash>) -> (Hash, Vec<Vec<Step>>) {
    let mut ways = vec![Vec::new(); leaves.len()];
    // Index of each leaf's ancestor on the current level.
    let mut places: Vec<usize> = (0..leaves.len()).collect();
    let mut floor = leaves;
    while floor.len() > 1 {
        for (way, place) in ways.iter_mut().zip(&mut places) {
            if let Some(beside) = floor.get(*place ^ 1) {
                way.push(Step {
                    is_left: *place % 2 == 1,
                    hash: *beside,
                });
            }
            *place /= 2;
        }
        floor = floor
            .chunks(2)
            .map(|pair| {
                if let [left, right] = pair {
                    inner(left, right)
                } else {
                    pair[0]
                }
            })
            .collect();
    }
    (floor[0], ways)
}

fn write(draft: &Draft, signature: &Signature, way: &[Step]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for part in [
        draft.kind.as_bytes(),
        draft.namespace.as_bytes(),
        &signature.certificate,
        &signature.bytes,
        &draft.body,
    ] {
        out.extend(u32::try_from(part.len()).expect("bounded").to_be_bytes());
        out.extend(part);
    }
    for step in way {
        out.push(step.is_left.into());
        out.extend(step.hash);
    }
    out
}

fn frame<'a>(reader: &mut Reader<'a>) -> Option<Envelope<'a>> {
    let mut envelope = Envelope {
        kind: reader.part()?,
        namespace: reader.part()?,
        certificate: reader.part()?,
        signature: reader.part()?,
        body: reader.part()?,
        steps: Vec::new(),
    };
    while !reader.rest.is_empty() && envelope.steps.len() <= MOST_STEPS {
        let is_left = match reader.take(1)? {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        let hash = reader.take(32)?.try_into().ok()?;
        envelope.steps.push(Step { is_left, hash });
    }
    Some(envelope)
}

/// Bytes that are not read yet.
pub(super) struct Reader<'a> {
    pub rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub fn part(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
        self.take(usize::try_from(length).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Text(String);

    impl Content for Text {
        const KIND: &'static str = "text.1";
        fn check(&self) -> Result<(), Malformed> {
            body::at_most("bytes", self.0.len(), 100)
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Other(String);

    impl Content for Other {
        const KIND: &'static str = "other.1";
        fn check(&self) -> Result<(), Malformed> {
            Ok(())
        }
    }

    fn namespace(name: &str) -> Namespace {
        name.parse().expect("a namespace")
    }

    fn draft(text: &str) -> Draft {
        Draft::new(&namespace("test"), &Text(text.to_owned())).expect("a draft")
    }

    /// Stands for a signature: the message itself, behind a word.
    fn sign(message: &[u8]) -> Result<Signature, Malformed> {
        Ok(Signature {
            certificate: b"certificate".to_vec(),
            bytes: [b"signed ", message].concat(),
        })
    }

    fn verify(seal: &Seal<'_>) -> Result<(), Malformed> {
        if seal.certificate == b"certificate"
            && seal.signature == [b"signed ", &*seal.message].concat()
        {
            return Ok(());
        }
        Err(Malformed::new("not signed"))
    }

    fn open<T: Content>(bytes: &[u8]) -> Result<T, Malformed> {
        let envelope = Envelope::parse(bytes)?;
        Ok(envelope.open(&namespace("test"), verify)?.1)
    }

    fn sealed(texts: &[&str]) -> Vec<Vec<u8>> {
        let drafts: Vec<Draft> = texts.iter().map(|text| draft(text)).collect();
        seal(&drafts, sign).expect("sealed")
    }

    #[test]
    fn a_kind_and_a_namespace_are_part_of_what_is_signed() {
        let bytes = &sealed(&["hello"])[0];
        assert_eq!(open::<Text>(bytes), Ok(Text("hello".to_owned())));
        let error = open::<Other>(bytes).expect_err("refused").to_string();
        assert_eq!(error, "the value is a 'text.1', not a 'other.1'");
        let elsewhere = Envelope::parse(bytes).expect("a frame");
        let error = elsewhere.open::<Text, _, _>(&namespace("production"), verify);
        assert!(
            error
                .expect_err("refused")
                .to_string()
                .contains("namespace 'test'")
        );
        // The same body under another kind or namespace is not what was signed.
        for (from, to) in [("text.1", "other."), ("test", "prod")] {
            let mut forged = bytes.clone();
            let at = forged
                .windows(from.len())
                .position(|w| w == from.as_bytes())
                .expect("there");
            forged[at..at + to.len()].copy_from_slice(to.as_bytes());
            assert_eq!(open::<Text>(&forged), Err(Malformed::new("not signed")));
        }
    }

    #[test]
    fn the_body_of_what_was_not_signed_is_not_read() {
        let mut bytes = sealed(&["hello"]).remove(0);
        let length = bytes.len();
        bytes[length - 1] = b'!';
        // Not a complaint about JSON.
        assert_eq!(open::<Text>(&bytes), Err(Malformed::new("not signed")));
    }

    #[test]
    fn bounds_hold_on_both_sides() {
        assert!(Draft::new(&namespace("test"), &Text("x".repeat(101))).is_err());
        let mut long = draft("x");
        long.body = serde_json::to_vec(&"x".repeat(101)).expect("JSON");
        let bytes = seal(&[long], sign).expect("sealed").remove(0);
        assert!(
            open::<Text>(&bytes)
                .expect_err("refused")
                .to_string()
                .contains("100 are allowed")
        );
        let huge = vec![b'A'; 10 << 20];
        assert!(
            Envelope::parse(&huge)
                .expect_err("refused")
                .to_string()
                .contains("too many")
        );
        let fat = |_: &[u8]| {
            Ok(Signature {
                certificate: vec![0; MOST_CERTIFICATE + 1],
                bytes: vec![],
            })
        };
        assert!(seal::<Malformed>(&[draft("x")], fat).is_err());
    }

    /// Each can be verified alone, and its way grows with the logarithm.
    #[test]
    fn many_are_sealed_by_one_signature() {
        for count in (1..70).chain([1000, 1024]) {
            let texts: Vec<String> = (0..count).map(|n| n.to_string()).collect();
            let drafts: Vec<Draft> = texts.iter().map(|text| draft(text)).collect();
            let mut signatures = 0;
            let all = seal(&drafts, |message| {
                signatures += 1;
                sign(message)
            })
            .expect("sealed");
            assert_eq!((all.len(), signatures), (count, 1));
            for (bytes, text) in all.iter().zip(&texts) {
                assert_eq!(open::<Text>(bytes), Ok(Text(text.clone())));
                let steps = Envelope::parse(bytes).expect("a frame").steps.len();
                assert!(1 << steps <= 2 * count, "{steps} steps of {count}");
            }
        }
        assert_eq!(seal(&[], sign).expect("nothing"), Vec::<Vec<u8>>::new());
    }

    /// What is signed for one cannot be put before another's body.
    #[test]
    fn a_way_belongs_to_its_leaf() {
        let all = sealed(&["a", "b", "c", "d", "e"]);
        let mut seen = BTreeMap::new();
        for (i, one) in all.iter().enumerate() {
            let envelope = Envelope::parse(one).expect("a frame");
            for (j, other) in all.iter().enumerate().filter(|(j, _)| *j != i) {
                let mixed = Envelope {
                    body: Envelope::parse(other).expect("a frame").body,
                    ..Envelope::parse(one).expect("a frame")
                };
                let opened = mixed.open::<Text, _, _>(&namespace("test"), verify);
                assert!(opened.is_err(), "{i} as {j}");
            }
            seen.insert(envelope.steps.len(), i);
        }
        assert_eq!(seen.into_keys().collect::<Vec<_>>(), [1, 3]);
    }

    /// An inner node is no leaf: the hashes of two leaves are not a body.
    #[test]
    fn an_inner_node_is_not_taken_for_a_leaf() {
        let (one, other) = (draft("a").leaf(), draft("b").leaf());
        let forged = leaf(b"", b"", &[one, other].concat());
        assert_ne!(forged, inner(&one, &other));
        assert_ne!(inner(&one, &other), inner(&other, &one));
        assert_ne!(leaf(b"ab", b"c", b""), leaf(b"a", b"bc", b""));
    }

    proptest! {
        /// Whatever byte is changed, added or left out: refused, and never a panic.
        #[test]
        fn every_change_is_noticed(count in 1..6_usize, at in any::<prop::sample::Index>(), bit in 0..8_u8, what in 0..3) {
            let texts: Vec<String> = (0..count).map(|n| format!("text {n}")).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            for mut bytes in sealed(&texts) {
                let at = at.index(bytes.len());
                match what {
                    0 => bytes[at] ^= 1 << bit,
                    1 => bytes.truncate(at),
                    _ => bytes.push(bit),
                }
                prop_assert!(open::<Text>(&bytes).is_err());
            }
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), magic: bool) {
            let bytes = if magic { [MAGIC, &bytes].concat() } else { bytes };
            prop_assert!(open::<Text>(&bytes).is_err());
        }
    }
}
