//! Who a node is: its Puppet certificate, and what it signs with it; and who others are.
//!
//! A certificate counts if its chain leads to the Puppet CA's root, no revocation list of the CA names it, and its key made
//! the signature. Who that is, Puppet decides: the subject's common name, and the trusted extensions.

/// Who others are.
pub mod authority;
/// What stands in a certificate.
pub mod certificate;
/// The files on disk, read again when they change.
pub mod files;
/// A CA for nodes that have no Puppet server.
pub mod issuer;
/// Who this node is.
pub mod own;
/// Who signed a value.
pub mod verifier;

use std::collections::BTreeMap;
use std::fmt;

use crate::wire::Malformed;
use crate::wire::name::Node;

/// A node whose certificate holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// Its certname.
    pub node: Node,
    /// Its trusted extensions, by Puppet's short name (`pp_role`) or else by object identifier.
    pub extensions: BTreeMap<String, String>,
}

/// Why something is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Untrusted {
    /// Nobody signed it.
    Unsigned,
    /// The certificate, the envelope or its body is not what it should be.
    Malformed(Malformed),
    /// The certificate that names this node does not hold, for this reason.
    Certificate(String, Reason),
    /// The certificate holds, but its key did not sign this.
    Signature(Node),
}

/// Why a certificate does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Another CA signed it.
    Foreign,
    /// The CA has revoked it.
    Revoked,
    /// Its time is over.
    Expired,
    /// Its time has not come, or this machine's clock is behind.
    NotYet,
    /// The CA's revocation list is older than it may be.
    StaleRevocations,
    /// No revocation list speaks of its issuer.
    NoRevocations,
    /// Anything else, in the words of the library.
    Other(String),
}

impl Untrusted {
    /// Whether this node's operator can do something about it, and the sender cannot.
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
