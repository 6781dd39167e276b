//! TLS to the engine: rustls with its provider of ring, and what Puppet's CA has made.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::{Error, Tls};
use crate::identity::authority::lists;

/// The configuration of a client that trusts the Puppet CA alone, and shows this node's certificate.
///
/// A server sends no certificate but its own, so each of the CA's counts as a root. A server whose certificate is revoked
/// is refused; a revocation list that is out of date still says who is.
///
/// # Errors
/// A certificate, a revocation list or the key cannot be used.
pub fn configuration(tls: &Tls) -> Result<ClientConfig, Error> {
    let wrong = |e: String| Error::Unreachable(format!("a certificate cannot be used: {e}"));
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(&tls.ca) {
        roots
            .add(der.map_err(|e| wrong(e.to_string()))?)
            .map_err(|e| wrong(e.to_string()))?;
    }
    let certificate =
        CertificateDer::from_pem_slice(&tls.certificate).map_err(|e| wrong(e.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(&tls.key).map_err(|e| wrong(e.to_string()))?;
    let provider = Arc::new(default_provider());
    let mut verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    if let Some(crl) = &tls.crl {
        let lists = lists(crl).map_err(|e| Error::Unreachable(e.to_string()))?;
        verifier = verifier.with_crls(lists);
    }
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(e.to_string()))?
        .with_webpki_verifier(verifier.build().map_err(|e| wrong(e.to_string()))?)
        .with_client_auth_cert(vec![certificate], key)
        .map_err(|e| wrong(e.to_string()))
}

/// What to do about an error of TLS, by words of rustls in it: alerts of the server first, then what is wrong with the
/// server's certificate.
const REMEDIES: [(&[&str], &str); 13] = [
    (
        &[
            "alert: HandshakeFailure",
            "alert: InsufficientSecurity",
            "is incompatible",
        ],
        "have the server allow TLS 1.3, or 1.2 with ECDHE and AES-GCM or ChaCha20; its key has to be RSA, EC of P-256 or P-384 (not P-521), or Ed25519",
    ),
    (
        &["alert: ProtocolVersion", "alert: InappropriateFallback"],
        "have the server allow TLS 1.2 or 1.3",
    ),
    (
        &["alert: CertificateRevoked"],
        "this node's certificate is revoked: clean it on the CA, and have the agent ask for a new one",
    ),
    (
        &["alert: CertificateExpired"],
        "this node's certificate has expired, or the server's clock is wrong: renew the one, or set the other",
    ),
    (
        &["alert: UnknownCA", "alert: CertificateUnknown"],
        "have the server trust the CA of this node's certificate (etcd: --trusted-ca-file, nats-server: ca_file)",
    ),
    (
        &[
            "alert: BadCertificate",
            "alert: UnsupportedCertificate",
            "alert: CertificateRequired",
            "alert: NoCertificate",
            "alert: AccessDenied",
            "alert: DecryptError",
        ],
        "the server refuses this node's certificate: its log says why, and may name an old revocation list or another CA",
    ),
    (
        &["alert: NoApplicationProtocol", "any known protocol"],
        "what listens there speaks no HTTP/2: see whether it is etcd, and no proxy that lacks it",
    ),
    (
        &["alert: UnrecognisedName", "not valid for"],
        "name the server in endpoints as its certificate does, or sign that with dns_alt_names",
    ),
    (
        &["certificate expired", "certificate: Expired"],
        "the server's certificate has expired, or this node's clock is wrong: renew the one, or set the other",
    ),
    (
        &["not valid yet", "certificate: NotValidYet"],
        "set the clock of this node or that of the CA: the server's certificate is not valid yet",
    ),
    (
        &["certificate: Revoked"],
        "the server's certificate is revoked: give it a new one",
    ),
    (
        &["certificate: UnknownIssuer", "certificate: BadSignature"],
        "give the server a certificate of this node's CA, or see that ca.pem is the newest",
    ),
    (
        &["certificate: UnknownRevocationStatus"],
        "crl.pem has no revocation list of the CA that signed the server's certificate: have the agent fetch it again",
    ),
];

/// The remedy for the error of TLS that these words tell of; none where they tell of no such error.
pub fn remedy(why: &str) -> Option<&'static str> {
    let named = |(words, _): &&(&[&str], &str)| words.iter().any(|word| why.contains(word));
    let known = REMEDIES.iter().find(named).map(|(_, remedy)| *remedy);
    let speaks_none = why.contains("corrupt message of type");
    let other = ["fatal alert", "invalid peer certificate", "peer misbehaved"];
    known
        .or(speaks_none.then_some(
            "what listens there speaks no TLS: see the port, and tls in again-fleet.toml(5)",
        ))
        .or(other
            .iter()
            .any(|word| why.contains(word))
            .then_some("see the server's log at this time, and its settings of TLS"))
}
