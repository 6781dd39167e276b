//! TLS as rustls is told of it, with what Puppet's CA has made.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Error, Tls};

/// The server is believed by the Puppet CA alone, and this node shows its certificate. A server sends no certificate but its
/// own, so each of the CA's counts as a root.
///
/// # Errors
/// A certificate or the key cannot be used.
pub fn configuration(tls: &Tls) -> Result<rustls::ClientConfig, Error> {
    let wrong = |e: String| Error::Unreachable(format!("a certificate cannot be used: {e}"));
    let mut roots = rustls::RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(&tls.ca) {
        roots
            .add(der.map_err(|e| wrong(e.to_string()))?)
            .map_err(|e| wrong(e.to_string()))?;
    }
    let certificate =
        CertificateDer::from_pem_slice(&tls.certificate).map_err(|e| wrong(e.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(&tls.key).map_err(|e| wrong(e.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder
        .map_err(|e| wrong(e.to_string()))?
        .with_root_certificates(roots);
    builder
        .with_client_auth_cert(vec![certificate], key)
        .map_err(|e| wrong(e.to_string()))
}
