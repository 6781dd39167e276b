//! Signatures and signers, with the certificates of a real Puppet CA, and with some that a Puppet
//! CA would not make.

#[path = "../support/ca.rs"]
mod ca;
/// Fields of a later version.
mod newer;

use std::fs;
use std::time::{Duration, SystemTime};

use again_fleet::identity::authority::{Authority, Revocation};
use again_fleet::identity::files::{Identity, Paths};
use again_fleet::identity::own::Own;
use again_fleet::identity::{Reason, Signer, Untrusted};
use again_fleet::wire::Malformed;
use again_fleet::wire::envelope::{Draft, Envelope, Seal, seal};
use again_fleet::wire::outcome::{Outcome, TriggerStatus};
use ca::Ca;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

fn authority(crl: &str, revocation: Revocation) -> Authority {
    let ca = Ca::get();
    Authority::new(&ca.read("ca.pem"), &ca.read(crl), revocation).expect("the CA")
}

fn own(name: &str) -> Result<Own, Malformed> {
    let ca = Ca::get();
    Own::new(
        &ca.read(&format!("{name}.pem")),
        &ca.read(&format!("{name}.key")),
    )
}

/// Certificate of a file, and a signature with its key, even if the certificate does not allow it.
fn signed(name: &str, message: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let ca = Ca::get();
    // A valid certificate of the same key allows it to sign.
    let key = ca.read(&format!("{name}.key"));
    let good = [
        "web1.test",
        "web2.test",
        "lb1.test",
        "foreign",
        "below",
        "p521",
    ];
    let with_key = good
        .iter()
        .find_map(|good| Own::new(&ca.read(&format!("{good}.pem")), &key).ok());
    let signature = with_key
        .expect("a certificate of this key")
        .sign(message)
        .expect("a signature");
    let der = CertificateDer::from_pem_slice(&ca.read(&format!("{name}.pem")));
    (der.expect("a certificate").to_vec(), signature.bytes)
}

fn verify(authority: &Authority, name: &str, now: SystemTime) -> Result<Signer, Untrusted> {
    let (certificate, signature) = signed(name, b"hello");
    let message = b"hello".to_vec();
    authority.verify(
        &Seal {
            certificate: &certificate,
            signature: &signature,
            message,
        },
        now,
    )
}

/// Reason for which a signature with this file's key and certificate is not trusted now, with this
/// revocation list.
fn why(name: &str, crl: &str) -> Reason {
    match verify(&authority(crl, Revocation::Chain), name, SystemTime::now()) {
        Err(Untrusted::Certificate(_, reason)) => reason,
        other => panic!("{name}: {other:?}"),
    }
}

fn now() -> SystemTime {
    SystemTime::now()
}

#[test]
fn rsa_and_ec_keys_of_puppet_sign_and_are_verified() {
    let authority = authority("crl.pem", Revocation::Chain);
    for name in ["web1.test", "web2.test", "lb1.test", "server.test"] {
        assert_eq!(own(name).expect("this node").signer().node.as_str(), name);
        assert_eq!(
            verify(&authority, name, now())
                .expect("believed")
                .node
                .as_str(),
            name
        );
    }
    let ca = Ca::get();
    let pkcs8 = Own::new(&ca.read("web1.test.pem"), &ca.read("web1.pkcs8.key"));
    assert_eq!(
        pkcs8.expect("this node").signer().node.as_str(),
        "web1.test"
    );
}

#[test]
fn trusted_extensions_go_by_puppets_names() {
    let signer =
        verify(&authority("crl.pem", Revocation::Chain), "web1.test", now()).expect("believed");
    let extensions: Vec<(&str, &str)> = signer
        .extensions
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let expected = [
        ("1.3.6.1.4.1.34380.1.2.1", "ours"),
        ("1.3.6.1.4.1.34380.1.3.39", "true"),
        ("pp_auth_role", "boss"),
        ("pp_role", "frontend"),
    ];
    assert_eq!(extensions, expected);
}

#[test]
fn another_message_or_another_key_is_no_signature() {
    let authority = authority("crl.pem", Revocation::Chain);
    let (certificate, signature) = signed("web1.test", b"hello");
    let seal = |certificate: &[u8], signature: &[u8], message: &[u8]| {
        authority
            .verify(
                &Seal {
                    certificate,
                    signature,
                    message: message.to_vec(),
                },
                now(),
            )
            .map(|signer| signer.node.to_string())
    };
    assert_eq!(
        seal(&certificate, &signature, b"hello"),
        Ok("web1.test".to_owned())
    );
    let web1 = Untrusted::Signature("web1.test".parse().expect("a certname"));
    assert_eq!(seal(&certificate, &signature, b"hellO"), Err(web1.clone()));
    assert_eq!(
        seal(&certificate, &signed("web2.test", b"hello").1, b"hello"),
        Err(web1.clone())
    );
    assert_eq!(seal(&certificate, &[], b"hello"), Err(web1));
    assert_eq!(seal(&[], &[], b"hello"), Err(Untrusted::Unsigned));
    assert!(matches!(
        seal(&[], &signature, b"hello"),
        Err(Untrusted::Malformed(_))
    ));
    let longer = [certificate.as_slice(), b"x"].concat();
    assert!(matches!(
        seal(&longer, &signature, b"hello"),
        Err(Untrusted::Malformed(_))
    ));
}

#[test]
fn a_certificate_that_does_not_hold_says_why() {
    for (name, crl, reason) in [
        ("foreign", "crl.pem", Reason::Foreign),
        ("below", "crl.pem", Reason::Foreign),
        ("expired", "crl.pem", Reason::Expired),
        ("future", "crl.pem", Reason::NotYet),
        ("alone", "crl.pem", Reason::Foreign),
        ("foreign-future", "crl.pem", Reason::Foreign),
        ("web1.test", "crl-web1.pem", Reason::Revoked),
        ("web2.test", "crl-ca.pem", Reason::Revoked),
        ("web1.test", "crl-twice.pem", Reason::Revoked),
        ("web1.test", "crl-twice-dated.pem", Reason::Revoked),
        ("web1.test", "crl-old.pem", Reason::StaleRevocations),
        ("web1.test", "crl-leaf.pem", Reason::NoRevocations),
        ("web1.test", "foreign-crl.pem", Reason::NoRevocations),
    ] {
        assert_eq!(why(name, crl), reason, "{name} with {crl}");
    }
    // Certificate for servers only.
    assert!(matches!(why("serving", "crl.pem"), Reason::Other(_)));
    // Only the revoked certificate is affected.
    let revoked = authority("crl-web1.pem", Revocation::Chain);
    assert!(verify(&revoked, "web2.test", now()).is_ok());
    let in_twenty_years = now() + Duration::from_secs(20 * 365 * 86_400);
    assert!(
        verify(
            &authority("crl.pem", Revocation::Chain),
            "web1.test",
            in_twenty_years
        )
        .is_err()
    );
}

#[test]
fn revocation_is_looked_at_as_far_as_puppet_does() {
    for (name, crl, revocation, holds) in [
        ("web1.test", "crl-leaf.pem", Revocation::Leaf, true),
        ("web1.test", "crl-web1.pem", Revocation::Leaf, false),
        ("web1.test", "crl-web1.pem", Revocation::Off, true),
        ("web2.test", "crl-ca.pem", Revocation::Leaf, true),
    ] {
        assert_eq!(
            verify(&authority(crl, revocation), name, now()).is_ok(),
            holds,
            "{name} {crl} {revocation:?}"
        );
    }
}

/// The CA signed these, but their names could not be Puppet certnames.
#[test]
fn a_certificate_has_one_name_that_puppet_could_have_given() {
    let authority = authority("crl.pem", Revocation::Chain);
    for (name, words) in [
        ("nameless", "0 common names"),
        ("twonames", "2 common names"),
        ("upper", "'WEB1.test' is no certname"),
        ("slashed", "'a/b' is no certname"),
    ] {
        let error = verify(&authority, name, now()).expect_err(name);
        assert!(
            matches!(&error, Untrusted::Malformed(why) if why.to_string().contains(words)),
            "{name}: {error}"
        );
    }
}

#[test]
fn files_that_do_not_fit_are_refused_with_the_reason() {
    let ca = Ca::get();
    let error = |certificate: &str, key: &str| {
        Own::new(&ca.read(certificate), &ca.read(key))
            .err()
            .expect("refused")
            .to_string()
    };
    assert_eq!(
        error("web1.test.pem", "web2.test.key"),
        "this node's private key is not that of its certificate"
    );
    assert_eq!(
        error("p521.pem", "p521.key"),
        "this node's private key cannot be used (its certificate says EC of P-521): it has to be RSA of 2048 to 4096 bits, or EC of P-256 or P-384"
    );
    assert!(error("web1.test.key", "web1.test.key").contains("certificate cannot be read"));
    assert!(error("web1.test.pem", "web1.test.pem").contains("private key cannot be read"));
    let error = |certificates: &[u8], crl: &[u8]| {
        Authority::new(certificates, crl, Revocation::Chain)
            .err()
            .expect("refused")
            .to_string()
    };
    let (good, lists) = (ca.read("ca.pem"), ca.read("crl.pem"));
    assert_eq!(
        error(b"", &lists),
        "no self-signed root is among the CA's certificates"
    );
    assert_eq!(
        error(&ca.read("web1.test.pem"), &lists),
        "no self-signed root is among the CA's certificates"
    );
    assert_eq!(error(&good, b""), "there is no revocation list");
    let broken = String::from_utf8(good)
        .expect("PEM")
        .replacen("MII", "!!!", 1);
    assert!(error(broken.as_bytes(), &lists).contains("cannot be read"));
}

#[test]
fn a_thousand_results_are_signed_once_and_believed_one_by_one() {
    let namespace = "test".parse().expect("a namespace");
    let own = own("web2.test").expect("this node");
    let told = |n: u64| TriggerStatus {
        id: again_fleet::wire::name::Id::from_bits(n.into()),
        number: n,
        sender: "web1.test".parse().expect("a certname"),
        target: own.signer().node.clone(),
        name: "again".parse().expect("a name"),
        outcome: Outcome::Taken,
        why: String::new(),
        at: 0,
        stopped: vec![],
        ran: None,
        above: None,
        waits: false,
    };
    let drafts: Vec<Draft> = (0..1000)
        .map(|n| Draft::new(&namespace, &told(n)).expect("a draft"))
        .collect();
    let sealed = seal(&drafts, |message| own.sign(message)).expect("sealed");
    let authority = authority("crl.pem", Revocation::Chain);
    for (n, bytes) in sealed.iter().enumerate() {
        let envelope = Envelope::parse(bytes).expect("a frame");
        let opened = envelope
            .open::<TriggerStatus, _, Untrusted>(&namespace, |seal| authority.verify(seal, now()));
        let (signer, read) = opened.expect("believed");
        assert_eq!((signer.node.as_str(), read.number), ("web2.test", n as u64));
    }
    let mut forged = sealed[7].clone();
    *forged.last_mut().expect("bytes") ^= 1;
    let envelope = Envelope::parse(&forged).expect("a frame");
    let opened = envelope
        .open::<TriggerStatus, _, Untrusted>(&namespace, |seal| authority.verify(seal, now()));
    assert_eq!(
        opened.err(),
        Some(Untrusted::Signature(
            "web2.test".parse().expect("a certname")
        ))
    );
}

#[test]
fn changed_files_are_taken_up_and_bad_ones_are_not() {
    let ca = Ca::get();
    let dir = tempfile::tempdir().expect("a directory");
    let place = |name: &str, from: &str| {
        // Replaces the file, as Puppet does.
        let new = dir.path().join("new");
        fs::write(&new, ca.read(from)).expect("written");
        fs::rename(new, dir.path().join(name)).expect("renamed");
    };
    let start = [
        ("cert", "web1.test.pem"),
        ("key", "web1.test.key"),
        ("ca", "ca.pem"),
        ("crl", "crl.pem"),
    ];
    start.iter().for_each(|(name, from)| place(name, from));
    let path = |name: &str| dir.path().join(name);
    let paths = Paths {
        certificate: path("cert"),
        key: path("key"),
        ca: path("ca"),
        crl: path("crl"),
        revocation: Revocation::Chain,
    };
    let mut identity = Identity::read(paths.clone()).expect("read");
    assert_eq!(identity.refresh(), Ok(false));
    assert!(verify(identity.authority(), "web1.test", now()).is_ok());

    place("crl", "crl-web1.pem");
    assert_eq!(identity.refresh(), Ok(true));
    assert!(verify(identity.authority(), "web1.test", now()).is_err());

    place("crl", "web1.test.key");
    assert!(
        identity
            .refresh()
            .expect_err("refused")
            .to_string()
            .contains("no revocation list")
    );
    assert!(
        verify(identity.authority(), "web1.test", now()).is_err(),
        "the last good list still counts"
    );
    assert_eq!(identity.refresh(), Ok(false));

    fs::remove_file(path("crl")).expect("removed");
    assert!(
        identity
            .refresh()
            .expect_err("refused")
            .to_string()
            .contains("crl cannot be read")
    );

    place("crl", "crl.pem");
    place("cert", "web2.test.pem");
    place("key", "web2.test.key");
    assert_eq!(identity.refresh(), Ok(true));
    assert_eq!(identity.own().signer().node.as_str(), "web2.test");
    // With revocation off, no list is needed.
    fs::remove_file(path("crl")).expect("removed");
    assert!(
        Identity::read(Paths {
            revocation: Revocation::Off,
            ..paths
        })
        .is_ok()
    );
}
