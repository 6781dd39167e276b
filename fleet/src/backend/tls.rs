//! TLS to the backend: rustls with the ring provider, and the certificates of Puppet's CA.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::Tls;
use crate::identity::authority::{Revocation, lists};
use crate::identity::own::Own;
use crate::wire::Malformed;

/// Configuration of a client that trusts only the Puppet CA and presents this node's certificate.
///
/// A server sends no certificate but its own, so each of the CA's certificates is a root. A server
/// with a revoked certificate is rejected; an expired revocation list still counts.
///
/// # Errors
/// A certificate, a revocation list or the key cannot be used.
pub fn configuration(tls: &Tls) -> Result<ClientConfig, Malformed> {
    let wrong = |e: String| Malformed::new(format!("a certificate cannot be used: {e}"));
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
    if tls.revocation != Revocation::Off {
        verifier = verifier.with_crls(lists(&tls.crl)?);
    }
    if tls.revocation == Revocation::Leaf {
        verifier = verifier.only_check_end_entity_revocation();
    }
    // The error of `Own::new` for an unusable key names its kind.
    let of_key = |e: String| {
        Own::new(&tls.certificate, &tls.key)
            .err()
            .unwrap_or(wrong(e))
    };
    let verifier = verifier.build().map_err(|e| wrong(e.to_string()))?;
    let mut configuration = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(e.to_string()))?
        .with_webpki_verifier(Arc::clone(&verifier))
        .with_client_auth_cert(vec![certificate], key)
        .map_err(|e| of_key(e.to_string()))?;
    if tls.refuses_open_servers {
        let both = Arc::new(ClosedServer {
            verifier,
            certificate: Arc::clone(&configuration.client_auth_cert_resolver),
            is_asked: AtomicBool::new(false),
        });
        configuration.client_auth_cert_resolver = both.clone();
        configuration.dangerous().set_certificate_verifier(both);
    }
    Ok(configuration)
}

/// Verifier that rejects a server which has not requested a client certificate before its own is
/// verified. rustls looks up the client's certificate when the server requests it, which is before
/// that in TLS 1.2 and 1.3, and looks up the signature schemes when it begins a connection. Only
/// for connections made one after the other.
#[derive(Debug)]
struct ClosedServer {
    verifier: Arc<WebPkiServerVerifier>,
    certificate: Arc<dyn ResolvesClientCert>,
    is_asked: AtomicBool,
}

impl ResolvesClientCert for ClosedServer {
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.is_asked.store(true, Ordering::Relaxed);
        self.certificate.resolve(hints, schemes)
    }

    fn has_certs(&self) -> bool {
        self.certificate.has_certs()
    }
}

impl ServerCertVerifier for ClosedServer {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_asked = self.is_asked.load(Ordering::Relaxed);
        let verifier = &self.verifier;
        let verified = verifier.verify_server_cert(end, others, name, ocsp, now)?;
        if is_asked {
            return Ok(verified);
        }
        let why = "the server asks for no client certificate";
        Err(rustls::Error::General(why.to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        end: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, end, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        end: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, end, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        // A request of an earlier connection that broke off does not count for the next one.
        self.is_asked.store(false, Ordering::Relaxed);
        self.verifier.supported_verify_schemes()
    }
}

/// Remedies for TLS errors, by words of the error: alerts of the server, then faults of its
/// certificate, then of this node's files.
const REMEDIES: &[(&[&str], &str)] = &[
    (
        &[
            "alert: HandshakeFailure",
            "alert: InsufficientSecurity",
            "peer is incompatible",
        ],
        "allow TLS 1.3, or 1.2 with ECDHE and AES-GCM or ChaCha20, on the server; its key must not be P-521",
    ),
    (
        &["alert: ProtocolVersion", "alert: InappropriateFallback"],
        "allow TLS 1.2 or 1.3 on the server",
    ),
    (
        &["alert: CertificateRevoked"],
        "this node's certificate is revoked: run 'puppetserver ca clean --certname NODE' on the CA, then 'puppet ssl clean' and 'puppet ssl bootstrap' here; without a Puppet server: 'again-fleet ca revoke', then 'sign'",
    ),
    (
        &["alert: CertificateExpired"],
        "this node's certificate or the server's revocation list has expired, or a clock is wrong",
    ),
    (
        &["alert: UnknownCA"],
        "make the server trust this node's CA (etcd: --trusted-ca-file, nats-server: ca_file)",
    ),
    (
        &[
            "alert: BadCertificate",
            "alert: UnsupportedCertificate",
            "alert: CertificateUnknown",
            "alert: CertificateRequired",
            "alert: NoCertificate",
            "alert: AccessDenied",
            "alert: DecryptError",
        ],
        "the server refuses this node's certificate: its log says why",
    ),
    (
        &["asks for no client certificate"],
        "have the server verify client certificates (etcd: --client-cert-auth, nats-server: verify), or set trust = \"puppet\"",
    ),
    (
        &["alert: NoApplicationProtocol"],
        "the server does not speak HTTP/2: see whether it is etcd, or a proxy without HTTP/2",
    ),
    (
        &["alert: UnrecognisedName", "not valid for"],
        "use a name from the server's certificate in endpoints, or add this one to it (dns_alt_names)",
    ),
    (
        &["certificate expired", "certificate: Expired"],
        "renew the server's certificate, or set the clock of this node",
    ),
    (
        &["not valid yet", "certificate: NotValidYet"],
        "set the clock of this node or that of the CA",
    ),
    (
        &["certificate: Revoked"],
        "the server's certificate is revoked: give it a new one",
    ),
    (
        &["certificate: UnknownIssuer", "certificate: BadSignature"],
        "give the server a certificate of this node's CA, or see that the file ca is the newest",
    ),
    (
        &["certificate: UnknownRevocationStatus"],
        "the file crl lacks the list of the CA that signed the server's certificate",
    ),
    (
        &["revocation list"],
        "see that the file crl has the CA's newest lists, and none of a former CA of the same name",
    ),
    (
        &["extended key usage", "certificate: InvalidPurpose"],
        "give the server a certificate for servers (extended key usage serverAuth)",
    ),
    (
        &["UnsupportedSignatureAlgorithm"],
        "sign the server's certificate with a CA whose key is RSA, or EC of P-256 or P-384",
    ),
    (
        &["invalid peer certificate"],
        "give the server a certificate that Puppet's CA has signed",
    ),
    (
        &["a certificate cannot be used", "private key"],
        "see that cert, key and ca name PEM files that belong together",
    ),
    (
        &["type InvalidContentType", "type UnknownProtocolVersion"],
        "the server does not use TLS there: check the port, and tls in again-fleet.toml(5)",
    ),
    (
        &[
            "fatal alert",
            "peer misbehaved",
            "corrupt message",
            "tls handshake eof",
        ],
        "the server's log says why it broke off",
    ),
];

/// Remedy for a TLS error with these words; `None` if they are of another error.
pub fn remedy(why: &str) -> Option<&'static str> {
    let named = |(words, _): &&(&[&str], &str)| words.iter().any(|word| why.contains(word));
    REMEDIES.iter().find(named).map(|(_, remedy)| *remedy)
}
