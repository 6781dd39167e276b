//! Contents of a certificate: the names and extensions that webpki does not expose.

use std::collections::BTreeMap;
use std::time::Duration;

use x509_cert::Certificate;
use x509_cert::crl::CertificateList;
use x509_cert::der::asn1::{Any, ObjectIdentifier, Uint};
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::der::oid::db::rfc5912::{
    ID_EC_PUBLIC_KEY, RSA_ENCRYPTION, SECP_256_R_1, SECP_384_R_1, SECP_521_R_1,
};
use x509_cert::der::oid::db::rfc8410::ID_ED_25519;
use x509_cert::der::{Decode, Tag, Tagged};

use super::Signer;
use crate::wire::{Malformed, shown};

/// Prefix of Puppet's object identifiers: registered, private and authorization extensions
/// (`lib/puppet/ssl/oids.rb`).
const ARC: &str = "1.3.6.1.4.1.34380.1.";

/// Short names of the registered extensions, from 1.3.6.1.4.1.34380.1.1.1 on.
const REGISTERED: [&str; 26] = [
    "pp_uuid",
    "pp_instance_id",
    "pp_image_name",
    "pp_preshared_key",
    "pp_cost_center",
    "pp_product",
    "pp_project",
    "pp_application",
    "pp_service",
    "pp_employee",
    "pp_created_by",
    "pp_environment",
    "pp_role",
    "pp_software_version",
    "pp_department",
    "pp_cluster",
    "pp_provisioner",
    "pp_region",
    "pp_datacenter",
    "pp_zone",
    "pp_network",
    "pp_securitypolicy",
    "pp_cloudplatform",
    "pp_apptier",
    "pp_hostname",
    "pp_owner",
];

/// Parses a certificate; bytes after it are an error.
///
/// # Errors
/// The bytes are not a certificate.
pub fn read(der: &[u8]) -> Result<Certificate, Malformed> {
    Certificate::from_der(der)
        .map_err(|e| Malformed::new(format!("the certificate cannot be read: {e}")))
}

/// Age of a revocation list among those of its CA, the newest the greatest: the length and digits
/// of its number (RFC 5280, 5.2.3) if it has one, then the time of its update since 1970.
pub type Edition = (Option<(usize, Vec<u8>)>, Duration);

/// Edition of a revocation list.
///
/// # Errors
/// The list cannot be read.
pub fn edition(list: &[u8]) -> Result<Edition, Malformed> {
    const NUMBER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.20");
    let list: CertificateList = CertificateList::from_der(list)
        .map_err(|e| Malformed::new(format!("a revocation list cannot be read: {e}")))?;
    let list = list.tbs_cert_list;
    let mut extensions = list.crl_extensions.into_iter().flatten();
    let number = extensions.find(|extension| extension.extn_id == NUMBER);
    let number = number.and_then(|number| Uint::from_der(number.extn_value.as_bytes()).ok());
    let digits = number.map(|number| (number.as_bytes().len(), number.as_bytes().to_vec()));
    Ok((digits, list.this_update.to_unix_duration()))
}

/// Node that a certificate names, from the one common name of its subject, and its trusted
/// extensions. Does not verify the certificate.
///
/// # Errors
/// The certificate does not have exactly one common name, or that is not a certname.
pub fn signer(certificate: &Certificate) -> Result<Signer, Malformed> {
    let names: Vec<&Any> = common_names(certificate).collect();
    let [name] = names[..] else {
        return Err(Malformed::new(format!(
            "the certificate has {} common names, not one",
            names.len()
        )));
    };
    let name =
        text(name).ok_or_else(|| Malformed::new("the certificate's common name is no text"))?;
    Ok(Signer {
        node: name.parse()?,
        extensions: extensions(certificate),
    })
}

/// Kind of a certificate's key, for a message about it: for EC its curve.
pub fn kind_of_key(certificate: &Certificate) -> String {
    let key = certificate.tbs_certificate().subject_public_key_info();
    let parameters = key.algorithm.parameters.as_ref();
    let curve = parameters.and_then(|curve| curve.decode_as::<ObjectIdentifier>().ok());
    match (key.algorithm.oid, curve) {
        (RSA_ENCRYPTION, _) => "RSA".to_owned(),
        (ID_EC_PUBLIC_KEY, Some(SECP_256_R_1)) => "EC of P-256".to_owned(),
        (ID_EC_PUBLIC_KEY, Some(SECP_384_R_1)) => "EC of P-384".to_owned(),
        (ID_EC_PUBLIC_KEY, Some(SECP_521_R_1)) => "EC of P-521".to_owned(),
        (ID_EC_PUBLIC_KEY, Some(curve)) => format!("EC of the curve {curve}"),
        (ID_ED_25519, _) => "Ed25519".to_owned(),
        (other, _) => format!("of the algorithm {other}"),
    }
}

/// Common name in a certificate, for a message about it.
pub fn claimed(certificate: &Certificate) -> String {
    let name = common_names(certificate).next();
    name.and_then(text)
        .map_or_else(|| "nobody".to_owned(), shown)
}

fn common_names(certificate: &Certificate) -> impl Iterator<Item = &Any> {
    let subject = certificate.tbs_certificate().subject().iter();
    subject.filter(|one| one.oid == CN).map(|one| &one.value)
}

fn extensions(certificate: &Certificate) -> BTreeMap<String, String> {
    let all = certificate.tbs_certificate().extensions();
    let found = all.into_iter().flatten().filter_map(|extension| {
        let name = short_name(&extension.extn_id)?;
        let value = Any::from_der(extension.extn_value.as_bytes()).ok()?;
        Some((name, text(&value)?.to_owned()))
    });
    found.collect()
}

/// Name that an operator uses for an extension of Puppet's; `None` for other extensions, which the
/// CA does not vouch for in the same way.
fn short_name(oid: &ObjectIdentifier) -> Option<String> {
    let oid = oid.to_string();
    let below = oid.strip_prefix(ARC)?;
    Some(known(below).map_or_else(|| oid.clone(), str::to_owned))
}

/// Short name of an extension, from the part of its identifier below Puppet's prefix.
fn known(below: &str) -> Option<&'static str> {
    match below.split_once('.')? {
        ("1", number) => {
            let number: usize = number.parse().ok()?;
            REGISTERED.get(number.checked_sub(1)?).copied()
        }
        ("3", "1") => Some("pp_authorization"),
        ("3", "13") => Some("pp_auth_role"),
        _ => None,
    }
}

/// Text of a name or of the value of an extension. Puppet writes UTF8String; older CAs have written
/// other strings.
fn text(value: &Any) -> Option<&str> {
    let is_text = matches!(
        value.tag(),
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String
    );
    std::str::from_utf8(value.value()).ok().filter(|_| is_text)
}

/// Whether an extension of this name is one that Puppet's CA vouches for.
pub fn is_extension(name: &str) -> bool {
    if REGISTERED.contains(&name) || ["pp_authorization", "pp_auth_role"].contains(&name) {
        return true;
    }
    // An extension with a short name is known by that name only.
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let below = name
        .strip_prefix(ARC)
        .filter(|below| below.split('.').all(is_number));
    below.is_some_and(|below| known(below).is_none())
}
