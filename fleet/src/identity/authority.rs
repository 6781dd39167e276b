//! Authority that verifies other nodes: the Puppet CA's certificates and revocation lists.

use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, SignatureVerificationAlgorithm, TrustAnchor,
    UnixTime,
};
use webpki::ring::{
    ECDSA_P256_SHA256, ECDSA_P256_SHA384, ECDSA_P384_SHA256, ECDSA_P384_SHA384,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
    RSA_PKCS1_2048_8192_SHA512, RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    RSA_PSS_2048_8192_SHA256_LEGACY_KEY, RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
    RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
};
use webpki::{
    CertRevocationList, EndEntityCert, Error, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy, anchor_from_trusted_cert,
};

use super::{Reason, Signer, Untrusted, certificate};
use crate::wire::Malformed;
use crate::wire::envelope::Seal;

/// Signature algorithms for messages: one for each kind of key.
const ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 3] = [
    RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
    ECDSA_P256_SHA256,
    ECDSA_P384_SHA384,
];

/// Signature algorithms of CAs for certificates and revocation lists: with RSA or EC, like Puppet's
/// keys.
static OF_CAS: &[&dyn SignatureVerificationAlgorithm] = &[
    RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512,
    RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
    RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
    RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
    RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
    RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
    ECDSA_P256_SHA256,
    ECDSA_P256_SHA384,
    ECDSA_P384_SHA256,
    ECDSA_P384_SHA384,
];

/// Extent of the revocation check, like Puppet's setting `certificate_revocation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Revocation {
    /// For the node's certificate and those of the CAs above it.
    #[default]
    Chain,
    /// For the node's certificate only.
    Leaf,
    /// Not at all.
    Off,
}

/// Puppet CA: `ca.pem` and `crl.pem`.
pub struct Authority {
    roots: Vec<TrustAnchor<'static>>,
    intermediates: Vec<CertificateDer<'static>>,
    revoked: Vec<CertRevocationList<'static>>,
    revocation: Revocation,
}

impl Authority {
    /// Authority from the text of both files: certificates (the self-signed ones are roots, the
    /// others intermediates), and the revocation lists of the CAs. `crl` is not read if revocation
    /// is off.
    ///
    /// # Errors
    /// A file cannot be read or is empty, or no root is among the certificates.
    pub fn new(ca: &[u8], crl: &[u8], revocation: Revocation) -> Result<Authority, Malformed> {
        let mut authority = Authority {
            roots: Vec::new(),
            intermediates: Vec::new(),
            revoked: Vec::new(),
            revocation,
        };
        for der in CertificateDer::pem_slice_iter(ca) {
            let der = der.map_err(|e| {
                Malformed::new(format!("the CA's certificates cannot be read: {e}"))
            })?;
            authority.add(der)?;
        }
        if authority.roots.is_empty() {
            return Err(Malformed::new(
                "no self-signed root is among the CA's certificates",
            ));
        }
        if revocation == Revocation::Off {
            return Ok(authority);
        }
        for der in lists(crl)? {
            let list = OwnedCertRevocationList::from_der(&der);
            authority.revoked.push(list.map_err(unreadable)?.into());
        }
        Ok(authority)
    }

    fn add(&mut self, der: CertificateDer<'static>) -> Result<(), Malformed> {
        let is_root = {
            let read = certificate::read(&der)?;
            let read = read.tbs_certificate();
            read.subject() == read.issuer()
        };
        if is_root {
            let anchor = anchor_from_trusted_cert(&der);
            let anchor = anchor
                .map_err(|e| Malformed::new(format!("a root of the CA cannot be used: {e}")))?;
            self.roots.push(anchor.to_owned());
        } else {
            self.intermediates.push(der);
        }
        Ok(())
    }

    /// Signer of a seal: verifies that the owner of the seal's certificate is a node of this CA and
    /// signed the seal's message.
    ///
    /// # Errors
    /// The reason why the seal is not trusted.
    pub fn verify(&self, seal: &Seal<'_>, now: SystemTime) -> Result<Signer, Untrusted> {
        if seal.certificate.is_empty() && seal.signature.is_empty() {
            return Err(Untrusted::Unsigned);
        }
        let read = certificate::read(seal.certificate)?;
        let der = CertificateDer::from(seal.certificate);
        let wrong = |reason| Untrusted::Certificate(certificate::claimed(&read), reason);
        let end = EndEntityCert::try_from(&der).map_err(|e| wrong(reason(&e)))?;
        self.holds(&end, now).map_err(|e| wrong(reason(&e)))?;
        // Only now is it verified that the CA issued this name.
        let signer = certificate::signer(&read)?;
        let fits = |algorithm: &&dyn SignatureVerificationAlgorithm| {
            end.verify_signature(*algorithm, &seal.message, seal.signature)
                .is_ok()
        };
        if ALGORITHMS.iter().any(fits) {
            return Ok(signer);
        }
        Err(Untrusted::Signature(signer.node))
    }

    fn holds(&self, end: &EndEntityCert<'_>, now: SystemTime) -> Result<(), Error> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let held = self.holds_at(end, UnixTime::since_unix_epoch(now));
        // webpki checks the validity period first, so a certificate of another CA may be reported
        // as not valid yet.
        if let Err(Error::CertNotValidYet { not_before, .. }) = held
            && let Err(e @ (Error::UnknownIssuer | Error::InvalidSignatureForPublicKey)) =
                self.holds_at(end, not_before)
        {
            return Err(e);
        }
        held
    }

    fn holds_at(&self, end: &EndEntityCert<'_>, time: UnixTime) -> Result<(), Error> {
        let lists: Vec<&CertRevocationList<'_>> = self.revoked.iter().collect();
        let options = match self.revocation {
            Revocation::Off => None,
            depth => {
                let depth = if depth == Revocation::Chain {
                    RevocationCheckDepth::Chain
                } else {
                    RevocationCheckDepth::EndEntity
                };
                let builder = RevocationOptionsBuilder::new(&lists)
                    .map_err(|_| Error::UnknownRevocationStatus)?;
                let builder = builder
                    .with_depth(depth)
                    .with_status_policy(UnknownStatusPolicy::Deny);
                Some(
                    builder
                        .with_expiration_policy(ExpirationPolicy::Enforce)
                        .build(),
                )
            }
        };
        let (roots, between) = (&self.roots, &self.intermediates);
        end.verify_for_usage(
            OF_CAS,
            roots,
            between,
            time,
            KeyUsage::client_auth(),
            options,
            None,
        )?;
        Ok(())
    }
}

fn unreadable(error: impl Display) -> Malformed {
    Malformed::new(format!("a revocation list cannot be read: {error}"))
}

/// Revocation lists in the text of a file, the newest first: webpki uses the first of several lists
/// of one CA.
///
/// # Errors
/// A list cannot be read, or the text has none.
pub fn lists(crl: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, Malformed> {
    let mut lists = Vec::new();
    for der in CertificateRevocationListDer::pem_slice_iter(crl) {
        let der = der.map_err(unreadable)?;
        lists.push((certificate::edition(&der)?, der));
    }
    if lists.is_empty() {
        return Err(Malformed::new("there is no revocation list"));
    }
    lists.sort_by(|(a, _), (b, _)| b.cmp(a));
    Ok(lists.into_iter().map(|(_, list)| list).collect())
}

fn reason(error: &Error) -> Reason {
    match error {
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => Reason::Foreign,
        Error::CertRevoked => Reason::Revoked,
        Error::CertExpired { .. } => Reason::Expired,
        Error::CertNotValidYet { .. } => Reason::NotYet,
        Error::CrlExpired { .. } => Reason::StaleRevocations,
        Error::UnknownRevocationStatus | Error::InvalidCrlSignatureForPublicKey => {
            Reason::NoRevocations
        }
        other => Reason::Other(format!("{other}")),
    }
}
