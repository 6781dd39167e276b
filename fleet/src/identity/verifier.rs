//! Verifier, the only one, for service and executor: it determines who signed a value for this
//! fleet, and whether the value belongs at its key.

use again_base::sys::clock::system_time;

use super::authority::Authority;
use super::{Signer, Untrusted};
use crate::wire::Malformed;
use crate::wire::body::{Content, Placed};
use crate::wire::envelope::{Envelope, Seal};
use crate::wire::key::Key;
use crate::wire::name::Namespace;

/// Verifies values that nodes have signed for a fleet. Without a CA the backend is trusted: every
/// value is accepted, and has no signer.
#[derive(Clone, Copy)]
pub struct Verifier<'a> {
    /// Namespace of the fleet.
    pub namespace: &'a Namespace,
    /// Authority of the CA.
    pub authority: Option<&'a Authority>,
}

impl Verifier<'_> {
    fn verify(&self, seal: &Seal<'_>) -> Result<Option<Signer>, Untrusted> {
        let verify = |authority: &Authority| authority.verify(seal, system_time());
        self.authority.map(verify).transpose()
    }

    /// Signer of a value, regardless of its content.
    ///
    /// # Errors
    /// The signature is not valid.
    pub fn signer(&self, value: &[u8]) -> Result<Option<Signer>, Untrusted> {
        self.verify(&Envelope::parse(value)?.seal())
    }

    /// Signer and content of a value.
    ///
    /// # Errors
    /// The signature is not valid, or the content exceeds a bound.
    pub fn open<T: Content>(&self, value: &[u8]) -> Result<(Option<Signer>, T), Untrusted> {
        Envelope::parse(value)?.open(self.namespace, |seal| self.verify(seal))
    }

    /// Content of a value without verification, to decide whether it is worth verifying.
    ///
    /// # Errors
    /// The content exceeds a bound.
    pub fn peek<T: Content>(&self, value: &[u8]) -> Result<T, Untrusted> {
        let opened = Envelope::parse(value)?.open::<_, _, Untrusted>(self.namespace, |_| Ok(()));
        opened.map(|((), content)| content)
    }

    /// Signer and content of a value that a node signed in its own name.
    ///
    /// # Errors
    /// As [`Verifier::open`], or another node signed it.
    pub fn own<T: Placed>(&self, value: &[u8]) -> Result<(Option<Signer>, T), Untrusted> {
        own(self.open(value)?)
    }

    /// Signer and content of a value at this key. If its signer is `known`, the signature is not
    /// verified again.
    ///
    /// # Errors
    /// As [`Verifier::own`], or the content belongs at another key.
    pub fn at<T: Placed>(
        &self,
        key: &Key,
        value: &[u8],
        known: Option<&Signer>,
    ) -> Result<(Option<Signer>, T), Untrusted> {
        let verify = |seal: &Seal<'_>| match known {
            Some(signer) => Ok(Some(signer.clone())),
            None => self.verify(seal),
        };
        let opened = Envelope::parse(value)?.open::<T, _, Untrusted>(self.namespace, verify)?;
        match opened.1.place() {
            (belongs, _) if belongs == *key => own(opened),
            (_, node) => Err(Malformed::new(format!("{node} told it elsewhere")).into()),
        }
    }
}

/// Rejects content that another node has signed.
fn own<T: Placed>(
    (signer, content): (Option<Signer>, T),
) -> Result<(Option<Signer>, T), Untrusted> {
    let (_, node) = content.place();
    match signer.as_ref().filter(|signer| signer.node != *node) {
        None => Ok((signer, content)),
        Some(Signer { node: other, .. }) => {
            Err(Malformed::new(format!("{other} signed it in the name of {node}")).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::beat::Beat;
    use crate::wire::envelope::{Draft, Signature, seal};
    use crate::wire::name::Node;

    fn node(name: &str) -> Node {
        name.parse().expect("a certname")
    }

    #[test]
    fn value_counts_at_its_key_and_under_its_nodes_signature_only() {
        let namespace: Namespace = "test".parse().expect("a namespace");
        let verifier = Verifier {
            namespace: &namespace,
            authority: None,
        };
        let beat = Beat {
            node: node("web1"),
            counter: 1,
            slots: vec![],
            locks: vec![],
        };
        let draft = Draft::new(&namespace, &beat).expect("a draft");
        let sign = |_: &[u8]| Ok::<_, Malformed>(Signature::default());
        let value = seal(&[draft], sign).expect("sealed").remove(0);
        let at = |key: &str, signer: &str| {
            let signer = Signer {
                node: node(signer),
                extensions: Default::default(),
            };
            let read = verifier.at::<Beat>(&Key::Beat(node(key)), &value, Some(&signer));
            read.map(|(_, beat)| beat).map_err(|e| e.to_string())
        };
        assert_eq!(at("web1", "web1"), Ok(beat.clone()));
        let elsewhere = "web1 told it elsewhere".to_owned();
        assert_eq!(at("web2", "web1"), Err(elsewhere));
        let forged = "web2 signed it in the name of web1".to_owned();
        assert_eq!(at("web1", "web2"), Err(forged));
        assert_eq!(verifier.peek::<Beat>(&value), Ok(beat.clone()));
        assert_eq!(verifier.own::<Beat>(&value), Ok((None, beat)));
    }
}
