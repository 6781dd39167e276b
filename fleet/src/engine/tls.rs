//! TLS as rustls is told of it, with what Puppet's CA has made.

use std::sync::Arc;

use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};
use rustls::crypto::ring::kx_group::{SECP256R1, SECP384R1};
use rustls::crypto::{
    CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use webpki::ring::{
    ECDSA_P256_SHA256, ECDSA_P384_SHA384, RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
    RSA_PSS_2048_8192_SHA384_LEGACY_KEY, RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
};

use super::{Error, Tls};
use crate::identity::{authority::OF_CAS, own};

/// What servers sign a handshake of TLS 1.3 with, by the kinds of key that Puppet makes.
static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: OF_CAS,
    mapping: &[
        (SignatureScheme::ECDSA_NISTP256_SHA256, &[ECDSA_P256_SHA256]),
        (SignatureScheme::ECDSA_NISTP384_SHA384, &[ECDSA_P384_SHA384]),
        (
            SignatureScheme::RSA_PSS_SHA256,
            &[RSA_PSS_2048_8192_SHA256_LEGACY_KEY],
        ),
        (
            SignatureScheme::RSA_PSS_SHA384,
            &[RSA_PSS_2048_8192_SHA384_LEGACY_KEY],
        ),
        (
            SignatureScheme::RSA_PSS_SHA512,
            &[RSA_PSS_2048_8192_SHA512_LEGACY_KEY],
        ),
    ],
};

/// TLS 1.3 with AES-GCM over NIST's curves, which every etcd and nats-server has. All that ring could do besides is a twentieth of the
/// program.
#[derive(Debug)]
struct Ring;

impl SecureRandom for Ring {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        use ring::rand::{SecureRandom as _, SystemRandom};
        SystemRandom::new().fill(bytes).map_err(|_| GetRandomFailed)
    }
}

impl KeyProvider for Ring {
    fn load_private_key(
        &self,
        key: PrivateKeyDer<'static>,
    ) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        own::key(&key)
    }
}

fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![TLS13_AES_256_GCM_SHA384, TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![SECP256R1, SECP384R1],
        signature_verification_algorithms: SIGNATURES,
        secure_random: &Ring,
        key_provider: &Ring,
    }
}

/// The server is believed by the Puppet CA alone, and this node shows its certificate. A server sends no certificate but its
/// own, so each of the CA's counts as a root.
///
/// # Errors
/// A certificate or the key cannot be used.
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
    let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder
        .map_err(|e| wrong(e.to_string()))?
        .with_root_certificates(roots);
    builder
        .with_client_auth_cert(vec![certificate], key)
        .map_err(|e| wrong(e.to_string()))
}
