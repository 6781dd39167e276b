//! Checks of the files of Puppet's CA and of this node.

use again_base::model::{Span, Walltime};
use again_base::sys::clock::system_time;
use again_base::sys::file::read_named;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;
use x509_cert::time::Time;

use super::finding::Finding;
use crate::identity::authority::Revocation;
use crate::identity::certificate;
use crate::identity::files::{LARGEST, Paths};
use crate::identity::own::Own;
use crate::settings::Settings;
use crate::verbs::clock;
use crate::wire::envelope::Seal;

/// Remaining validity below which a warning is given.
const SOON: Span = Span::from_secs(30 * 86_400);

/// Checks the certificate, the key, the CA and the revocation lists.
pub fn look(settings: &Settings, now: Walltime) -> Vec<Finding> {
    let paths = match settings.identity() {
        Ok(paths) => paths,
        Err(e) => {
            return vec![Finding::error(
                "certificate",
                e.0,
                "see again-fleet.toml(5)",
            )];
        }
    };
    let mut found = vec![own(settings, &paths, now).unwrap_or_else(|bad| bad)];
    match key(settings, &paths) {
        Ok(good) | Err(good) => found.push(good),
    }
    found.push(revocations(&paths, now).unwrap_or_else(|bad| bad));
    found
}

/// Finding about the end of a validity.
fn validity(
    about: &'static str,
    until: Walltime,
    now: Walltime,
    what: &str,
    todo: &str,
) -> Finding {
    let shown = clock(until, now);
    if until <= now {
        Finding::error(
            about,
            format!("{what} is no longer valid, since {shown}"),
            todo,
        )
    } else if until.since(now) < SOON {
        Finding::warning(about, format!("{what} is valid until {shown} only"), todo)
    } else {
        Finding::ok(about, format!("{what} is valid until {shown}"))
    }
}

/// Finding about this node's certificate: its certname and its validity.
fn own(settings: &Settings, paths: &Paths, now: Walltime) -> Result<Finding, Finding> {
    let path = paths.certificate.display();
    let todo = "run the agent, which gets one from the Puppet server; without a server 'again-fleet ca' makes one (again-fleet(8)); or set cert";
    let bad = |why: String| Finding::error("certificate", why, todo);
    let pem = read_named(&paths.certificate, LARGEST)
        .map_err(|e| bad(format!("{path} cannot be read: {e}")))?;
    let der = CertificateDer::from_pem_slice(&pem)
        .map_err(|e| bad(format!("{path} is no certificate: {e}")))?;
    let read = certificate::read(&der).map_err(|e| bad(format!("{path}: {e}")))?;
    let signer = certificate::signer(&read).map_err(|e| bad(format!("{path}: {e}")))?;
    if let Some(name) = settings
        .certname()
        .ok()
        .filter(|name| **name != signer.node)
    {
        let node = signer.node;
        return Err(bad(format!("{path} is of {node}, and this node is {name}")));
    }
    let until = walltime(read.tbs_certificate().validity().not_after);
    let what = format!("{path}, of {},", signer.node);
    Ok(validity(
        "certificate",
        until,
        now,
        &what,
        "renew it: 'puppet ssl clean', then 'puppet ssl bootstrap', and sign it on the server; without a server: 'again-fleet ca revoke', then 'sign'",
    ))
}

/// Finding about the key: whether nodes with the same CA can verify this node's signatures.
fn key(settings: &Settings, paths: &Paths) -> Result<Finding, Finding> {
    let error = |why: String, todo: &str| Err(Finding::error("key", why, todo));
    let authority = match settings.authority() {
        Ok(authority) => authority,
        Err(e) => {
            let todo = "have ca and crl name Puppet's files";
            return Err(Finding::error("ca", e.to_string(), todo));
        }
    };
    let path = paths.key.display();
    let key = match read_named(&paths.key, LARGEST) {
        Ok(key) => key,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let what = format!("{path} may not be read by this user");
            return Err(Finding::warning("key", what, "check as root"));
        }
        Err(e) => return error(format!("{path} cannot be read: {e}"), "have key name it"),
    };
    let certificate = read_named(&paths.certificate, LARGEST).unwrap_or_default();
    let signed = Own::new(&certificate, &key).and_then(|own| {
        own.sign(b"again-fleet check")
            .map(|signature| (own, signature))
    });
    let (own, signature) = match signed {
        Ok(signed) => signed,
        Err(e) => {
            return error(
                format!("{path}: {e}"),
                "have cert and key name a pair; 'puppet ssl bootstrap' makes one by key_type and named_curve of puppet.conf",
            );
        }
    };
    let seal = Seal {
        certificate: &signature.certificate,
        signature: &signature.bytes,
        message: b"again-fleet check".to_vec(),
    };
    match authority.verify(&seal, system_time()) {
        Ok(_) => Ok(Finding::ok(
            "key",
            format!(
                "what {} signs is believed by those who have its CA",
                own.signer().node
            ),
        )),
        Err(why) => error(
            format!("nobody believes what this node signs: {why}"),
            "compare ca, crl and cert with Puppet's own (puppet config print localcacert hostcrl hostcert)",
        ),
    }
}

/// Finding about the revocation lists, from the one that expires first.
fn revocations(paths: &Paths, now: Walltime) -> Result<Finding, Finding> {
    const ABOUT: &str = "revocation";
    let path = paths.crl.display();
    if paths.revocation == Revocation::Off {
        return Err(Finding::warning(
            ABOUT,
            "revocation = \"off\": a certificate that the CA has revoked is believed all the same",
            "set revocation = \"chain\"",
        ));
    }
    let todo = format!(
        "fetch it anew: remove {path}, and run 'puppet ssl bootstrap'; without a server copy crl.pem of 'again-fleet ca'"
    );
    let bad = |why: String| Finding::error(ABOUT, why, todo.clone());
    let text =
        read_named(&paths.crl, LARGEST).map_err(|e| bad(format!("{path} cannot be read: {e}")))?;
    let mut lists = Vec::new();
    for der in CertificateRevocationListDer::pem_slice_iter(&text) {
        let der = der.map_err(|e| bad(format!("{path}: {e}")))?;
        let list = <CertificateList>::from_der(&der).map_err(|e| bad(format!("{path}: {e}")))?;
        let list = list.tbs_cert_list;
        lists.push((walltime(list.this_update), list.next_update.map(walltime)));
    }
    let Some(newest) = lists.iter().map(|(made, _)| *made).max() else {
        return Err(bad(format!("there is no revocation list in {path}")));
    };
    let age = now.since(newest);
    let what = format!("the CA's list, made {age} ago,");
    let ends = lists.iter().filter_map(|(_, ends)| *ends).min();
    Ok(match ends {
        Some(ends) => validity(ABOUT, ends, now, &what, &todo),
        None => Finding::ok(ABOUT, format!("{what} is valid for ever")),
    })
}

fn walltime(time: Time) -> Walltime {
    let seconds = time.to_unix_duration().as_secs();
    Walltime::from_millis(seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Grade;
    use super::*;

    #[test]
    fn what_ends_soon_is_said_before() {
        let now = Walltime::from_millis(1_795_219_387_045);
        let grade = |days: u64| {
            let until = now + Span::from_secs(days * 86_400);
            validity("certificate", until, now, "it", "renew it").grade
        };
        assert_eq!(
            (grade(0), grade(1), grade(29), grade(30)),
            (Grade::Error, Grade::Warning, Grade::Warning, Grade::Ok)
        );
        let gone = validity("certificate", now, now + SOON, "it", "renew it");
        assert!(
            gone.what.starts_with("it is no longer valid, since "),
            "{}",
            gone.what
        );
        assert_eq!(gone.todo.as_deref(), Some("renew it"));
    }
}
