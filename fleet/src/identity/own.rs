//! Certificate of this node, and its key for signing.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::crypto::ring::sign::{RsaSigningKey, any_ecdsa_type};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;
use x509_cert::der::Encode;

use super::{Signer, certificate};
use crate::wire::Malformed;
use crate::wire::envelope::Signature;

/// Signature schemes, one for each kind of key, with the algorithms of `authority`.
const SCHEMES: [SignatureScheme; 3] = [
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
];

/// Key for signing, of a kind that Puppet generates: RSA, or EC of P-256 or P-384; PKCS#1, SEC1 or
/// PKCS#8.
///
/// # Errors
/// The bytes are not such a key.
pub fn key(der: &PrivateKeyDer<'_>) -> Result<Arc<dyn SigningKey>, rustls::Error> {
    match RsaSigningKey::new(der) {
        Ok(key) => Ok(Arc::new(key)),
        Err(_) => any_ecdsa_type(der),
    }
}

/// Certificate and its private key.
pub struct Own {
    certificate: CertificateDer<'static>,
    key: Arc<dyn SigningKey>,
    signer: Signer,
}

impl Own {
    /// Certificate and key from the text of both files.
    ///
    /// # Errors
    /// A file cannot be read, the key is of a kind that cannot sign, or it is not the
    /// certificate's.
    pub fn new(certificate: &[u8], key: &[u8]) -> Result<Own, Malformed> {
        let certificate = CertificateDer::from_pem_slice(certificate)
            .map_err(|e| Malformed::new(format!("this node's certificate cannot be read: {e}")))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|e| Malformed::new(format!("this node's private key cannot be read: {e}")))?;
        let read = certificate::read(&certificate)?;
        let key = self::key(&key).map_err(|_| {
            let kind = certificate::kind_of_key(&read);
            Malformed::new(format!(
                "this node's private key cannot be used (its certificate says {kind}): it has to be RSA of 2048 to 4096 bits, or EC of P-256 or P-384"
            ))
        })?;
        let signer = {
            let own = read.tbs_certificate().subject_public_key_info().to_der();
            let public = key.public_key();
            if public.is_none_or(|public| own.as_deref() != Ok(public.as_ref())) {
                return Err(Malformed::new(
                    "this node's private key is not that of its certificate",
                ));
            }
            certificate::signer(&read)?
        };
        Ok(Own {
            certificate,
            key,
            signer,
        })
    }

    /// Name and extensions of this node.
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// Signs a message.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn sign(&self, message: &[u8]) -> Result<Signature, Malformed> {
        let cannot = || Malformed::new("this node's private key cannot sign");
        let signer = self.key.choose_scheme(&SCHEMES).ok_or_else(cannot)?;
        Ok(Signature {
            certificate: self.certificate.to_vec(),
            bytes: signer.sign(message).map_err(|_| cannot())?,
        })
    }
}
