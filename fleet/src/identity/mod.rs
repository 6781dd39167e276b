//! Identities: this node's Puppet certificate and its signatures, and the verification of other
//! nodes.
//!
//! A certificate is valid if its chain leads to the Puppet CA's root and no revocation list of the
//! CA contains it; a value is trusted if the certificate's key signed it. Puppet defines the
//! identity: the subject's common name, and the trusted extensions.

/// Authority that verifies other nodes.
pub mod authority;
/// Contents of a certificate.
pub mod certificate;
/// Files on disk, which are read again when they change.
pub mod files;
/// CA for nodes that have no Puppet server.
pub mod issuer;
/// Certificate and key of this node.
pub mod own;
/// Verification of signed values.
pub mod verifier;

use std::collections::BTreeMap;
use std::fmt;

use crate::wire::Malformed;
use crate::wire::name::Node;

/// Node with a valid certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// Certname of the node.
    pub node: Node,
    /// Trusted extensions of the node, by Puppet's short name (`pp_role`) or else by object
    /// identifier.
    pub extensions: BTreeMap<String, String>,
}

/// Reason why a value is not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Untrusted {
    /// The value is not signed.
    Unsigned,
    /// The certificate, the envelope or its body is malformed.
    Malformed(Malformed),
    /// The certificate that names this node is not valid, for this reason.
    Certificate(String, Reason),
    /// The certificate is valid, but its key did not sign this.
    Signature(Node),
}

/// Reason why a certificate is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Another CA signed the certificate.
    Foreign,
    /// The CA has revoked the certificate.
    Revoked,
    /// The certificate has expired.
    Expired,
    /// The certificate is not valid yet, or this machine's clock is behind.
    NotYet,
    /// The CA's revocation list has expired.
    StaleRevocations,
    /// No revocation list is from the certificate's issuer.
    NoRevocations,
    /// Another reason, in the words of the library.
    Other(String),
}

impl Untrusted {
    /// Whether this node's operator can fix it, and the sender cannot.
    pub fn is_ours(&self) -> bool {
        use Reason::{NoRevocations, NotYet, StaleRevocations};
        matches!(
            self,
            Untrusted::Certificate(_, NotYet | StaleRevocations | NoRevocations)
        )
    }
}

impl From<Malformed> for Untrusted {
    fn from(malformed: Malformed) -> Self {
        Untrusted::Malformed(malformed)
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::Unsigned => f.write_str("nobody signed it"),
            Untrusted::Malformed(malformed) => malformed.fmt(f),
            Untrusted::Certificate(name, reason) => write!(f, "the certificate of {name} {reason}"),
            Untrusted::Signature(node) => write!(f, "{node} did not sign this"),
        }
    }
}

impl std::error::Error for Untrusted {}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Foreign => f.write_str("is not signed by our CA"),
            Reason::Revoked => f.write_str("was revoked"),
            Reason::Expired => f.write_str("has expired"),
            Reason::NotYet => f.write_str("is not valid yet; compare the clocks"),
            Reason::StaleRevocations => f.write_str(
                "cannot be checked: the CA's revocation list has expired; fetch a new one",
            ),
            Reason::NoRevocations => f.write_str(
                "cannot be checked: no revocation list is of its issuer; fetch the whole chain's",
            ),
            Reason::Other(words) => write!(f, "does not hold: {words}"),
        }
    }
}
