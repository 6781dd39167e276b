//! Certificates that make a node etcd's superuser: etcd uses the common name of a client's
//! certificate as the user name.

use std::path::Path;

use again_base::model::Walltime;
use again_base::sys::file::read_named;
use again_base::sys::localtime::utc;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;

use super::finding::Finding;
use crate::identity::authority::lists;
use crate::identity::certificate;
use crate::identity::files::{LARGEST, bytes};

/// Finding about a certificate named `root` that the CA in this directory has signed, and that is
/// neither expired nor revoked, according to the CA's inventory. The inventory also has
/// certificates that `puppetserver ca clean` has removed. `None` if it cannot be read: only root
/// can do that, on the CA's own machine.
pub fn look(directory: &Path, now: Walltime) -> Option<Finding> {
    let text = read_named(&directory.join("inventory.txt"), LARGEST).ok()?;
    let (text, now) = (String::from_utf8_lossy(&text), utc(now));
    // `0x0005 2026-11-20T00:00:00UTC 2031-11-20T00:00:00UTC /CN=web1.example.com`
    let mut named = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (serial, ends, subject) = (words.next()?, words.nth(1)?, words.next()?);
        (subject.ends_with("/CN=root") && ends > now.as_str()).then_some(serial)
    });
    let revoked = revoked(directory).unwrap_or_default();
    let serial = named.find(|serial| !revoked.contains(&digits(serial)))?;
    let what = format!(
        "the CA has signed a certificate named root (serial {serial}): etcd takes its owner for its superuser"
    );
    let todo = "revoke it: 'puppetserver ca clean --certname root'";
    Some(Finding::error("ca", what, todo))
}

/// Serial numbers on the newest revocation list of the signing CA, in the form of [`digits`];
/// `None` if the list cannot be read.
fn revoked(directory: &Path) -> Option<Vec<String>> {
    let read = |name| bytes(&directory.join(name)).ok();
    let der = CertificateDer::from_pem_slice(&read("ca_crt.pem")?).ok()?;
    let ca = certificate::read(&der).ok()?;
    let issuer = ca.tbs_certificate().subject();
    let all = lists(&read("ca_crl.pem")?).ok()?;
    let mut all = all.iter().filter_map(|der| {
        let list: CertificateList = CertificateList::from_der(der).ok()?;
        Some(list.tbs_cert_list)
    });
    let entries = all
        .find(|list| list.issuer == *issuer)?
        .revoked_certificates?;
    let serials = entries.iter().map(|entry| entry.serial_number.to_string());
    Some(serials.map(|serial| digits(&serial)).collect())
}

/// Hexadecimal digits of a serial number without leading zeros: `5` for both `0x0005` and `05`.
fn digits(serial: &str) -> String {
    let all = serial.trim_start_matches("0x").replace(':', "");
    all.trim_start_matches('0').to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::finding::Grade;
    use super::*;

    /// The certificate of a CA.
    const CA: &str = "\
-----BEGIN CERTIFICATE-----
MIIBFjCBvaADAgECAgEBMAoGCCqGSM49BAMCMBQxEjAQBgNVBAMMCVB1cHBldCBD
QTAgFw0yNjAxMDEwMDAwMDBaGA8yMDk5MDEwMTAwMDAwMFowFDESMBAGA1UEAwwJ
UHVwcGV0IENBMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE2NpWissjZl1KyiQB
unXwgiSTWokcUKnXwmC8OE5mVreScqlJKuK34eYV73QUWEHeqy2it6wb+1wtbFlM
7524fjAKBggqhkjOPQQDAgNIADBFAiAyr6DSdtk5L7vftPZSJnscxSmVNTjZUdOO
ZTgfd5a+BwIhAM1fxWJ+cSo+RHBoFelOxaNv/Nk4k4mAvSaqyx62gd/t
-----END CERTIFICATE-----
";

    /// Its revocation list, with 0x5 and 0xab01, and one of another CA, with 0x6. OpenSSL made both.
    const CRL: &str = "\
-----BEGIN X509 CRL-----
MIHbMIGBAgEBMAoGCCqGSM49BAMCMBQxEjAQBgNVBAMMCVB1cHBldCBDQRcNMjYw
MTAxMDAwMDAwWhgPMjA5OTAxMDEwMDAwMDBaMCowEgIBBRcNMjYwMTAxMDAwMDAw
WjAUAgMAqwEXDTI2MDEwMTAwMDAwMFqgDjAMMAoGA1UdFAQDAgEBMAoGCCqGSM49
BAMCA0kAMEYCIQCM8RcYpZkAelogFSIG/2mbcJAtWLYqeWIvsMFucT+7GgIhANnb
4aduB0RAj6Tgi7YhKiW4g5r4O5tjcCO8jR0E5vqX
-----END X509 CRL-----
-----BEGIN X509 CRL-----
MIG+MGYCAQEwCgYIKoZIzj0EAwIwDzENMAsGA1UEAwwEUm9vdBcNMjYwMTAyMDAw
MDAwWhgPMjA5OTAxMDEwMDAwMDBaMBQwEgIBBhcNMjYwMTAxMDAwMDAwWqAOMAww
CgYDVR0UBAMCAQIwCgYIKoZIzj0EAwIDSAAwRQIgOqUKj+5ETJ0AcKjq65FSiTba
SotGoX1fR2brz9B/GA4CIQCyo1zmZ3e/fnUOgsASawSJjrXg0ZB84PkHmIUxDst5
IQ==
-----END X509 CRL-----
";

    /// 2026-11-21.
    const NOW: Walltime = Walltime::from_millis(1_795_219_387_045);

    fn line(serial: &str, year: u16, subject: &str) -> String {
        format!("{serial} 2026-01-01T00:00:00UTC {year}-01-01T00:00:00UTC {subject}\n")
    }

    /// A CA with this inventory.
    fn authority(inventory: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in [
            ("inventory.txt", inventory),
            ("ca_crt.pem", CA),
            ("ca_crl.pem", CRL),
        ] {
            fs::write(directory.path().join(name), text).expect("written");
        }
        directory
    }

    #[test]
    fn check_fails_if_the_ca_has_signed_a_certificate_named_root() {
        for serial in ["0x0004", "0x0006", "0xab02"] {
            let lines = line("0x0005", 2031, "/CN=root") + &line(serial, 2031, "/CN=root");
            let found = look(authority(&lines).path(), NOW).expect("a finding");
            let what = format!(
                "the CA has signed a certificate named root (serial {serial}): etcd takes its owner for its superuser"
            );
            assert_eq!(
                (found.grade, found.about, found.what),
                (Grade::Error, "ca", what)
            );
            let todo = "revoke it: 'puppetserver ca clean --certname root'";
            assert_eq!(found.todo.as_deref(), Some(todo));
        }
    }

    #[test]
    fn check_says_nothing_of_certificates_that_etcd_would_not_take_for_its_superusers() {
        let revoked = line("0x0005", 2031, "/CN=root") + &line("0xAB01", 2031, "/CN=root");
        let expired = line("0x0004", 2026, "/CN=root");
        let others = line("0x0004", 2031, "/CN=root.test") + "0x0007 /CN=root\n\n/CN=root\n";
        for lines in [revoked, expired, others] {
            let found = look(authority(&lines).path(), NOW);
            assert!(found.is_none(), "{lines}: {found:?}");
        }
        assert!(look(Path::new("/nonexistent"), NOW).is_none());
    }

    #[test]
    fn check_counts_nothing_as_revoked_without_the_list_of_the_ca() {
        let directory = authority(&line("0x0005", 2031, "/CN=root"));
        assert!(look(directory.path(), NOW).is_none());
        let crl = directory.path().join("ca_crl.pem");
        let other = CRL.rfind("-----BEGIN").expect("another list");
        fs::write(&crl, &CRL[other..]).expect("written");
        assert!(look(directory.path(), NOW).is_some());
        fs::remove_file(&crl).expect("removed");
        assert!(look(directory.path(), NOW).is_some());
    }
}
