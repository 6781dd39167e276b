//! CA for nodes that have no Puppet server: its certificates and revocation lists have the form and
//! the validity of Puppet's. Input and output are PEM; this module uses neither files nor clocks.

use std::fmt::Display;
use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyUsagePurpose, PublicKeyData,
    RevokedCertParams, SanType, SignatureAlgorithm, SigningKey,
};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;
use x509_cert::Certificate;
use x509_cert::crl::CertificateList;
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::der::pem::{LineEnding, encode_string};
use x509_cert::der::{Decode, Encode, Tag, Tagged};

use super::authority::lists;
use super::certificate;
use crate::wire::Malformed;
use crate::wire::name::Node;

const DAY: i64 = 86_400;
/// Validity of a CA and of a node's certificate, in seconds, as in Puppet.
const OF_CA: i64 = 15 * 365 * DAY;
const OF_NODE: i64 = 5 * 365 * DAY;
/// Serial number of the CA's own certificate.
const FIRST: u64 = 1;

/// CA that can sign.
pub struct Issuer {
    /// Parameters of the issuer: its name, and the identifier of its key.
    params: CertificateParams,
    key: Key,
    /// Certificate of the CA, as PEM.
    pub certificate: String,
    /// End of the certificate's validity, in seconds since 1970.
    pub ends: i64,
}

/// Private key that Puppet, etcd and NATS all read: EC of P-256.
struct Key(EcdsaKeyPair);

/// Certificate and its private key, as PEM.
pub struct Issued {
    /// Certificate as PEM.
    pub certificate: String,
    /// Private key as PEM.
    pub key: String,
}

/// Revocations of a CA.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Revocations {
    /// Number of the list, which increases with each new one (RFC 5280, 5.2.3).
    pub number: u64,
    /// Serial numbers, and the time of each revocation in seconds since 1970.
    pub revoked: Vec<(u64, i64)>,
}

impl Key {
    /// New key, also as PEM.
    fn new() -> Result<(Key, String), Malformed> {
        let made =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
        let made = made.map_err(cannot)?;
        let text = pem("PRIVATE KEY", made.as_ref())?;
        Ok((Key::read(made.as_ref()).map_err(cannot)?, text))
    }

    fn read(der: &[u8]) -> Result<Key, ring::error::KeyRejected> {
        let random = SystemRandom::new();
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random).map(Key)
    }

    /// Identifier of this key in certificates and lists: the beginning of its hash (RFC 7093,
    /// method 1).
    fn id(&self) -> KeyIdMethod {
        let hash = digest(&SHA256, self.der_bytes());
        KeyIdMethod::PreSpecified(hash.as_ref()[..20].to_vec())
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signed = self.0.sign(&SystemRandom::new(), message);
        let signed = signed.map_err(|_| rcgen::Error::RemoteKeyError)?;
        Ok(signed.as_ref().to_vec())
    }
}

impl Issuer {
    /// New CA and its private key. `id` distinguishes it from other CAs in its name.
    ///
    /// # Errors
    /// No key can be generated.
    pub fn create(id: u32, now: i64) -> Result<(Issuer, String), Malformed> {
        let (key, text) = Key::new()?;
        let ends = now + OF_CA;
        let mut params = parameters(
            &format!("again-fleet CA {id:08x}"),
            &key,
            FIRST,
            [now, ends],
        )?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let mut issuer = Issuer {
            params,
            key,
            certificate: String::new(),
            ends,
        };
        issuer.certificate = issuer.sign(&issuer.params, &issuer.key)?;
        Ok((issuer, text))
    }

    /// CA from these two files.
    ///
    /// # Errors
    /// One of them cannot be used, or they do not belong together.
    pub fn read(certificate: String, key: &str) -> Result<Issuer, Malformed> {
        let wrong =
            |e: &dyn Display| Malformed::new(format!("the CA's private key cannot be read: {e}"));
        let key = PrivatePkcs8KeyDer::from_pem_slice(key.as_bytes()).map_err(|e| wrong(&e))?;
        let key = Key::read(key.secret_pkcs8_der()).map_err(|e| wrong(&e))?;
        let read = read(certificate.as_bytes())?;
        let name = certificate::claimed(&read);
        let read = read.tbs_certificate();
        if read.subject_public_key_info().to_der().ok() != Some(key.subject_public_key_info()) {
            return Err(Malformed::new(
                "the CA's private key is not that of its certificate",
            ));
        }
        let subject = read.subject().iter();
        let subject = subject.map(|one| (one.oid, one.value.tag(), one.value.value()));
        if !subject.eq([(CN, Tag::Utf8String, name.as_bytes())]) {
            return Err(Malformed::new(
                "the CA's certificate is not one that again-fleet has made: its subject is another",
            ));
        }
        let ends = read.validity().not_after.to_unix_duration().as_secs();
        let ends = ends.cast_signed();
        Ok(Issuer {
            params: parameters(&name, &key, FIRST, [ends, ends])?,
            key,
            certificate,
            ends,
        })
    }

    /// Certificate with these parameters and the public part of this key, as PEM.
    fn sign(&self, params: &CertificateParams, key: &Key) -> Result<String, Malformed> {
        let signed = params.signed_by(key, &self.issuer()).map_err(cannot)?;
        pem("CERTIFICATE", signed.der())
    }

    fn issuer(&self) -> rcgen::Issuer<'_, &Key> {
        rcgen::Issuer::from_params(&self.params, &self.key)
    }

    fn is_valid(&self, now: i64) -> Result<(), Malformed> {
        let expired = "the CA has expired: create a new one, and give all nodes new certificates";
        (now < self.ends)
            .then_some(())
            .ok_or_else(|| Malformed::new(expired))
    }

    /// New key and certificate for a node.
    ///
    /// # Errors
    /// The CA has expired, or no key can be generated.
    pub fn issue(&self, node: &Node, serial: u64, now: i64) -> Result<Issued, Malformed> {
        self.is_valid(now)?;
        let (key, text) = Key::new()?;
        let ends = (now + OF_NODE).min(self.ends);
        let mut params = parameters(node.as_str(), &key, serial, [now, ends])?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.subject_alt_names = vec![match node.as_str().parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(node.as_str().try_into().map_err(cannot)?),
        }];
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        Ok(Issued {
            certificate: self.sign(&params, &key)?,
            key: text,
        })
    }

    /// Revocation list, as PEM. It is valid as long as the CA, because nothing renews it on the
    /// nodes.
    ///
    /// # Errors
    /// The CA has expired.
    pub fn list(&self, revocations: &Revocations, now: i64) -> Result<String, Malformed> {
        self.is_valid(now)?;
        let entry = |&(serial, at): &(u64, i64)| {
            Ok(RevokedCertParams {
                serial_number: serial.into(),
                revocation_time: date(at)?,
                reason_code: None,
                invalidity_date: None,
            })
        };
        let revoked = revocations.revoked.iter().map(entry);
        let list = CertificateRevocationListParams {
            this_update: date(now - DAY)?,
            next_update: date(self.ends)?,
            crl_number: revocations.number.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect::<Result<_, Malformed>>()?,
            key_identifier_method: self.key.id(),
        };
        let list = list.signed_by(&self.issuer()).map_err(cannot)?;
        pem("X509 CRL", list.der())
    }
}

impl Revocations {
    /// Revocations in a list from [`Issuer::list`].
    ///
    /// # Errors
    /// The text is not such a list.
    pub fn read(crl: &[u8]) -> Result<Revocations, Malformed> {
        let wrong = |e: &dyn Display| {
            Malformed::new(format!("the CA's revocation list cannot be read: {e}"))
        };
        let lists = lists(crl)?;
        let (number, _) = certificate::edition(&lists[0])?;
        let number = number.and_then(|(_, digits)| whole(&digits));
        let list: CertificateList = CertificateList::from_der(&lists[0]).map_err(|e| wrong(&e))?;
        let entries = list.tbs_cert_list.revoked_certificates.unwrap_or_default();
        let revoked = entries.iter().map(|entry| {
            let at = entry.revocation_date.to_unix_duration().as_secs();
            Some((whole(entry.serial_number.as_bytes())?, at.cast_signed()))
        });
        let foreign = || wrong(&"its numbers are not those of this CA");
        Ok(Revocations {
            number: number.ok_or_else(foreign)?,
            revoked: revoked.collect::<Option<_>>().ok_or_else(foreign)?,
        })
    }

    /// Whether a certificate is revoked.
    pub fn has(&self, serial: u64) -> bool {
        self.revoked.iter().any(|(known, _)| *known == serial)
    }

    /// Adds a certificate. The number of the list is at least the clock's time in seconds, because
    /// that of a list from a backup is too low.
    pub fn add(&mut self, serial: u64, now: i64) {
        if !self.has(serial) {
            self.revoked.push((serial, now));
            self.number = (self.number + 1).max(now.cast_unsigned());
        }
    }
}

/// Serial number of a node's certificate.
///
/// # Errors
/// The certificate cannot be read, or is another node's.
pub fn serial(pem: &[u8], node: &Node) -> Result<u64, Malformed> {
    let read = read(pem)?;
    if certificate::signer(&read)?.node != *node {
        return Err(Malformed::new("the certificate is another node's"));
    }
    whole(read.tbs_certificate().serial_number().as_bytes())
        .ok_or_else(|| Malformed::new("the certificate has no serial number of this CA"))
}

fn read(pem: &[u8]) -> Result<Certificate, Malformed> {
    let der = CertificateDer::from_pem_slice(pem)
        .map_err(|e| Malformed::new(format!("the certificate cannot be read: {e}")))?;
    certificate::read(&der)
}

fn parameters(
    name: &str,
    key: &Key,
    serial: u64,
    [now, ends]: [i64; 2],
) -> Result<CertificateParams, Malformed> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(serial.into());
    // Validity begins a day earlier, as in Puppet, because the clocks of nodes differ.
    params.not_before = date(now - DAY)?;
    params.not_after = date(ends)?;
    params.key_identifier_method = key.id();
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn pem(label: &'static str, der: &[u8]) -> Result<String, Malformed> {
    encode_string(label, LineEnding::LF, der).map_err(cannot)
}

fn date(seconds: i64) -> Result<OffsetDateTime, Malformed> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(cannot)
}

fn cannot(e: impl Display) -> Malformed {
    Malformed::new(format!("the CA cannot make this: {e}"))
}

/// Number from big-endian bytes; `None` if it does not fit.
fn whole(digits: &[u8]) -> Option<u64> {
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let digits = &digits[zeros..];
    let whole = digits.iter().fold(0, |n, digit| n << 8 | u64::from(*digit));
    (digits.len() <= 8).then_some(whole)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::super::authority::{Authority, Revocation};
    use super::super::own::Own;
    use super::super::{Reason, Untrusted};
    use super::*;
    use crate::wire::envelope::Seal;

    const NOW: i64 = 1_795_219_387;

    fn web1() -> Node {
        "web1.example.com".parse().expect("a certname")
    }

    /// What a node of this CA says about a message of the owner of `issued`.
    fn verified((ca, crl): (&Issuer, &str), issued: &Issued, at: i64) -> Result<Node, Untrusted> {
        let own = Own::new(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("a key");
        let signature = own.sign(b"message").expect("signed");
        let seal = Seal {
            certificate: &signature.certificate,
            signature: &signature.bytes,
            message: b"message".to_vec(),
        };
        let (ca, crl) = (ca.certificate.as_bytes(), crl.as_bytes());
        let authority = Authority::new(ca, crl, Revocation::Chain).expect("a CA");
        let at: SystemTime = UNIX_EPOCH + Duration::from_secs(at.cast_unsigned());
        authority.verify(&seal, at).map(|signer| signer.node)
    }

    #[test]
    fn node_verifies_what_the_ca_has_signed_until_it_is_revoked() {
        let (made, key) = Issuer::create(7, NOW).expect("a CA");
        // What is read from its files signs as the CA that wrote them.
        let ca = Issuer::read(made.certificate.clone(), &key).expect("its files");
        assert_eq!((&ca.certificate, ca.ends), (&made.certificate, made.ends));
        let issued = ca.issue(&web1(), 300, NOW).expect("a certificate");
        assert_eq!(serial(issued.certificate.as_bytes(), &web1()), Ok(300));
        let mut revocations = Revocations::default();
        let crl = made.list(&revocations, NOW).expect("a list");
        let at = |at| verified((&ca, &crl), &issued, at);
        let wrong = |reason| {
            Err(Untrusted::Certificate(
                "web1.example.com".to_owned(),
                reason,
            ))
        };
        assert_eq!(at(NOW - DAY), Ok(web1()));
        assert_eq!(at(NOW + OF_NODE), Ok(web1()));
        assert_eq!(at(NOW + OF_NODE + 1), wrong(Reason::Expired));
        revocations.add(300, NOW);
        revocations.add(300, NOW + 1);
        assert!(revocations.has(300) && !revocations.has(301));
        let crl = ca.list(&revocations, NOW).expect("a list");
        assert_eq!(verified((&ca, &crl), &issued, NOW), wrong(Reason::Revoked));
        let read = Revocations::read(crl.as_bytes()).expect("a list");
        let number = NOW.cast_unsigned();
        assert_eq!(
            (read.number, &read.revoked[..]),
            (number, &[(300, NOW)][..])
        );
        assert_eq!(read, revocations);
        // A clock that was set back.
        revocations.add(301, NOW - 5);
        assert_eq!(revocations.number, number + 1);
    }

    #[test]
    fn nothing_outlives_the_ca() {
        let (ca, _) = Issuer::create(7, NOW).expect("a CA");
        let late = ca.ends - DAY;
        let issued = ca.issue(&web1(), 2, late).expect("a certificate");
        let read = read(issued.certificate.as_bytes()).expect("a certificate");
        let ends = read.tbs_certificate().validity().not_after;
        assert_eq!(ends.to_unix_duration().as_secs(), ca.ends.cast_unsigned());
        let late = ca.issue(&web1(), 3, ca.ends).map(drop);
        let list = ca.list(&Revocations::default(), ca.ends).map(drop);
        for refused in [late, list] {
            let words = refused.expect_err("too late").to_string();
            assert!(words.contains("the CA has expired"), "{words}");
        }
    }

    #[test]
    fn files_that_do_not_belong_together_are_refused() {
        let [(one, _), (_, other)] = [1, 2].map(|id| Issuer::create(id, NOW).expect("a CA"));
        let refused = Issuer::read(one.certificate.clone(), &other).map(drop);
        let words = refused.expect_err("two CAs").to_string();
        assert!(words.contains("not that of its certificate"), "{words}");
        assert!(Issuer::read(one.certificate.clone(), "").is_err());
        let issued = one.issue(&web1(), 2, NOW).expect("a certificate");
        let (mut ca, text) = Issuer::create(3, NOW).expect("a CA");
        ca.params.distinguished_name.push(DnType::CountryName, "DE");
        let named = ca.sign(&ca.params, &ca.key).expect("a certificate");
        let refused = Issuer::read(named, &text).map(drop);
        let words = refused.expect_err("another subject").to_string();
        assert!(words.contains("its subject is another"), "{words}");
        let db1 = "db1.example.com".parse().expect("a certname");
        assert!(serial(issued.certificate.as_bytes(), &db1).is_err());
    }
}
