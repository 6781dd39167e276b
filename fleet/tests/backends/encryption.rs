//! TLS between a real etcd or nats-server, or servers of OpenSSL with limited algorithms, and
//! clients; and the messages when it fails.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use again_fleet::backend::tls::{configuration, remedy};
use again_fleet::backend::{Error, Tls};
use again_fleet::identity::authority::Revocation;
use again_test_support::{SHORT, ask_for};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::ca::Ca;
use super::rights::connect_and_list;
use super::run;
use super::servers::{Kind, Server, free_port, tls};

/// Key types that servers may have, by the names of their certificates: RSA, P-256, P-384 and
/// Ed25519.
const KEYS: [&str; 4] = ["server.test", "web2.test", "lb1.test", "ed25519"];

/// Process of `openssl s_server`, which answers each line with its bytes in reverse. It is killed
/// when the value is dropped.
struct LimitedServer {
    port: u16,
    child: Child,
}

impl LimitedServer {
    fn new(certificate: &str, words: &[&str]) -> LimitedServer {
        let verify = ["-Verify", "2", "-verify_return_error"];
        LimitedServer::open(certificate, &[&verify, words].concat())
    }

    /// Starts a server that does not request a client certificate.
    fn open(certificate: &str, words: &[&str]) -> LimitedServer {
        let (ca, port) = (Ca::get(), free_port());
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-rev", "-accept"]);
        command.arg(format!("127.0.0.1:{port}"));
        command
            .arg("-cert")
            .arg(ca.path(&format!("{certificate}.pem")));
        command
            .arg("-key")
            .arg(ca.path(&format!("{certificate}.key")));
        command.args(words).current_dir(ca.path(""));
        if !words.contains(&"-CAfile") {
            command.args(["-CAfile", "ca.pem"]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl");
        let server = LimitedServer { port, child };
        let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
        let listens = ask_for(SHORT, Duration::from_millis(10), listens);
        assert!(listens.is_some(), "{certificate} {words:?} does not listen");
        server
    }

    fn address(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Whether the server answers a line.
    async fn answers(&self, tls: &Tls) -> std::io::Result<bool> {
        self.answers_to(configuration(tls).expect("certificates"))
            .await
    }

    async fn answers_to(&self, configuration: ClientConfig) -> std::io::Result<bool> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        let connector = TlsConnector::from(Arc::new(configuration));
        let mut stream = connector.connect(name, stream).await?;
        stream.write_all(b"abc\n").await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        Ok(&answer == b"cba\n")
    }
}

impl Drop for LimitedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn client_agrees_with_servers_that_are_limited() {
    for words in [
        &["-tls1_2"][..],
        &["-tls1_3"],
        &["-groups", "X25519"],
        &["-groups", "P-384"],
        &["-tls1_2", "-cipher", "ECDHE+AESGCM"],
        &["-tls1_2", "-cipher", "ECDHE+CHACHA20"],
        &["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
    ] {
        for certificate in KEYS {
            let server = LimitedServer::new(certificate, words);
            run(async {
                let answer = server.answers(&tls("web1.test")).await;
                assert!(
                    matches!(answer, Ok(true)),
                    "{certificate} {words:?}: {answer:?}"
                );
            });
        }
    }
}

#[test]
fn client_is_let_in_whatever_key_the_backend_has() {
    for kind in [Kind::Etcd, Kind::Nats] {
        for certificate in KEYS {
            let server = Server::with_certificate(kind, certificate);
            run(async {
                let answer = connect_and_list(kind, server.address(), &tls("web1.test")).await;
                assert_eq!(answer, Ok(()), "{kind:?} {certificate}");
            });
        }
    }
}

/// Error of a connection attempt through etcd's client, and its remedy. An alert that comes after
/// the handshake may be lost when a write fails first.
fn refusal(address: &str, with: &Tls) -> (String, &'static str) {
    let mut lost = Vec::new();
    for _ in 0..4 {
        run(async {
            let answer = connect_and_list(Kind::Etcd, address.to_owned(), with).await;
            let Err(Error::Unreachable(why) | Error::Unknown(why)) = answer else {
                panic!("{answer:?}")
            };
            lost.push(why);
        });
        if let Some((why, todo)) = lost.last().and_then(|why| Some((why, remedy(why)?))) {
            return (why.clone(), todo);
        }
    }
    panic!("no remedy: {lost:?}");
}

#[test]
fn each_failure_of_tls_has_its_remedy() {
    let ours = tls("web1.test");
    let with = |change: &dyn Fn(&mut Tls)| {
        let mut tls = ours.clone();
        change(&mut tls);
        tls
    };
    let revoked = with(&|tls| tls.crl = Ca::get().read("crl-web1.pem"));
    let no_list = with(&|tls| tls.crl = Ca::get().read("foreign-crl.pem"));
    let expired = tls("expired");
    for (certificate, words, with, todo) in [
        // The server's algorithms are not sufficient.
        ("p521", &[][..], &ours, "must not be P-521"),
        (
            "server.test",
            &["-tls1_2", "-cipher", "AES128-SHA"],
            &ours,
            "1.2 with ECDHE",
        ),
        (
            "server.test",
            &["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"],
            &ours,
            "allow TLS 1.2 or 1.3 on the server",
        ),
        // Faults of the server's certificate.
        ("expired", &[], &ours, "renew the server's certificate"),
        ("future", &[], &ours, "set the clock"),
        (
            "foreign",
            &[],
            &ours,
            "give the server a certificate of this node's CA",
        ),
        (
            "web1.test",
            &[],
            &revoked,
            "the server's certificate is revoked",
        ),
        ("server.test", &[], &no_list, "the file crl lacks the list"),
        // Faults of this node's certificate.
        (
            "server.test",
            &["-CAfile", "foreign-ca.pem"],
            &ours,
            "make the server trust this node's CA",
        ),
        ("server.test", &[], &expired, "this node's certificate or"),
        (
            "server.test",
            &["-crl_check", "-CRL", "crl-web1.pem"],
            &ours,
            "this node's certificate is revoked",
        ),
    ] {
        let server = LimitedServer::new(certificate, words);
        let (why, found) = refusal(&server.address(), with);
        assert!(
            found.contains(todo),
            "{certificate} {words:?}: {why}: {found}"
        );
    }
    let server = LimitedServer::new("server.test", &[]);
    let elsewhere = server.address().replace("localhost", "127.0.0.1");
    let (_, found) = refusal(&elsewhere, &ours);
    assert!(
        found.contains("a name from the server's certificate"),
        "{found}"
    );
}

/// A server that does not request a client certificate admits everybody; a client whose settings
/// trust the backend refuses it.
#[test]
fn server_that_is_open_to_everybody_is_refused_where_its_word_is_believed() {
    let (signed, mut believed) = (tls("web1.test"), tls("web1.test"));
    believed.refuses_open_servers = true;
    for version in ["-tls1_2", "-tls1_3"] {
        let open = LimitedServer::open("server.test", &[version]);
        let closed = LimitedServer::new("server.test", &[version]);
        run(async {
            assert!(matches!(open.answers(&signed).await, Ok(true)));
            assert!(matches!(closed.answers(&believed).await, Ok(true)));
            // Another server requested a certificate, and broke off.
            let asked = configuration(&believed).expect("certificates");
            asked.client_auth_cert_resolver.resolve(&[], &[]);
            assert!(open.answers_to(asked).await.is_err());
        });
        let (why, found) = refusal(&open.address(), &believed);
        assert!(found.contains("--client-cert-auth"), "{why}: {found}");
    }
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::start(kind);
        run(async {
            let answer = connect_and_list(kind, server.address(), &believed).await;
            assert_eq!(answer, Ok(()), "{kind:?}");
        });
    }
}

#[test]
fn key_that_cannot_be_used_is_named() {
    let why = configuration(&tls("p521")).expect_err("refused");
    let why = why.to_string();
    assert!(why.contains("its certificate says EC of P-521"), "{why}");
    assert!(remedy(&why).is_some(), "{why}");
}

/// With "leaf" the lists of the CAs above are not needed; with "off" no list is.
#[test]
fn revocation_is_looked_at_as_far_as_the_setting_says() {
    let server = Server::with_certificate(Kind::Etcd, "web1.test");
    for (revocation, list, is_let_in) in [
        (Revocation::Chain, "crl.pem", true),
        (Revocation::Chain, "crl-web1.pem", false),
        (Revocation::Leaf, "crl-leaf.pem", true),
        (Revocation::Leaf, "crl-web1.pem", false),
        (Revocation::Off, "crl-web1.pem", true),
    ] {
        let with = Tls {
            crl: Ca::get().read(list),
            revocation,
            ..tls("web2.test")
        };
        run(async {
            let answer = connect_and_list(Kind::Etcd, server.address(), &with).await;
            assert_eq!(
                answer.is_ok(),
                is_let_in,
                "{revocation:?} {list}: {answer:?}"
            );
        });
    }
}

#[test]
fn server_without_tls_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut s| s.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
    });
    let (why, found) = refusal(&format!("https://localhost:{port}"), &tls("web1.test"));
    assert!(found.contains("does not use TLS there"), "{why}: {found}");
}

/// The newest revocation list of the CA excludes a revoked server, for both backends.
#[test]
fn revoked_backend_is_refused() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::with_certificate(kind, "web1.test");
        let mut with = tls("web2.test");
        run(async {
            assert_eq!(
                connect_and_list(kind, server.address(), &with).await,
                Ok(())
            );
        });
        with.crl = Ca::get().read("crl-twice.pem");
        run(async {
            let answer = connect_and_list(kind, server.address(), &with).await;
            assert!(
                matches!(&answer, Err(Error::Unreachable(why)) if why.contains("Revoked")),
                "{kind:?}: {answer:?}"
            );
        });
    }
}
