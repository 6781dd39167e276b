//! `again-fleet ca`: its files, and nodes and backends that have nothing but these.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::real::{done, well};
use crate::servers::{Kind, Server};
use crate::whole::{Node, until};

/// A directory with a CA in `ca`, and what is copied from it.
struct Site(tempfile::TempDir);

impl Site {
    /// One without a CA.
    fn empty() -> Site {
        Site(tempfile::tempdir().expect("a directory"))
    }

    fn new() -> Site {
        let site = Site::empty();
        site.well(&["create"]);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn run(&self, words: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_again-fleet"));
        command.args(["ca", "--dir"]).arg(self.path("ca"));
        command.args(words).env_remove("TERM");
        done(command)
    }

    fn well(&self, words: &[&str]) -> String {
        let (status, out, err) = self.run(words);
        assert_eq!((status, err.as_str()), (0, ""), "{words:?}: {out}");
        out
    }

    fn fails(&self, words: &[&str], parts: &[&str]) {
        let (status, out, err) = self.run(words);
        assert!(status == 1 || status == 2, "{words:?}: {status}: {out}");
        assert_eq!(err.lines().count(), 1, "{words:?}: {err}");
        for part in parts {
            assert!(err.contains(part), "{words:?}: no {part}: {err}");
        }
    }

    fn sh(&self, script: &str) -> String {
        let mut command = Command::new("sh");
        let command = command.args(["-ec", script]).current_dir(self.0.path());
        let run = command.output().expect("sh");
        let out = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{script}: {out}");
        out.into_owned()
    }

    /// Copies a node's files to its `ssldir`, as doc/fleet.md does.
    fn copy(&self, node: &str) -> PathBuf {
        self.sh(&format!(
            "mkdir {node}; tar -C ca/nodes/{node} -ch certs private_keys crl.pem | tar --no-same-owner -xC {node}"
        ));
        self.path(node)
    }

    fn mode(&self, name: &str) -> u32 {
        let metadata = fs::metadata(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        metadata.permissions().mode() & 0o7777
    }
}

#[test]
fn openssl_reads_what_it_makes_and_only_the_owner_reads_keys() {
    let site = Site::new();
    site.well(&["sign", "web1.test", "lb1.test"]);
    for name in ["web1.test", "lb1.test"] {
        let ssldir = site.copy(name);
        let verify = "openssl verify -x509_strict -crl_check -CAfile certs/ca.pem -CRLfile crl.pem";
        let dir = ssldir.display();
        for purpose in ["sslserver", "sslclient"] {
            site.sh(&format!(
                "cd {dir}; {verify} -purpose {purpose} -verify_hostname {name} certs/{name}.pem"
            ));
        }
        let keys = "openssl pkey -pubout -in private_keys/NAME.pem >k; openssl x509 -noout -pubkey -in certs/NAME.pem | cmp k -";
        site.sh(&format!("cd {dir}; {}", keys.replace("NAME", name)));
    }
    for (name, mode) in [
        ("ca", 0o700),
        ("ca/ca_key.pem", 0o600),
        ("ca/serial", 0o600),
        ("ca/ca.pem", 0o644),
        ("ca/nodes/web1.test", 0o700),
        ("ca/nodes/web1.test/private_keys/web1.test.pem", 0o600),
        ("web1.test/private_keys/web1.test.pem", 0o600),
    ] {
        assert_eq!(site.mode(name), mode, "{name}");
    }
}

#[test]
fn what_is_there_is_not_overwritten_and_no_serial_number_comes_twice() {
    let site = Site::new();
    let before = site.read("ca/ca.pem");
    site.fails(&["create"], &["is not empty", "--dir"]);
    site.well(&["sign", "web1.test"]);
    let first = site.read("ca/nodes/web1.test/certs/web1.test.pem");
    let again = ["sign", "lb1.test", "web1.test"];
    site.fails(
        &again,
        &["web1.test has a certificate", "revoke that first"],
    );
    assert_eq!(site.read("ca/nodes/web1.test/certs/web1.test.pem"), first);
    // A command that was killed has left this; its serial number is used up.
    fs::create_dir(site.path("ca/nodes/.new")).expect("made");
    site.well(&["revoke", "web1.test"]);
    site.well(&["sign", "web1.test"]);
    let serial = |name: &str| {
        let path = format!("ca/nodes/{name}/certs/{name}.pem");
        site.sh(&format!("openssl x509 -noout -serial -in {path}"))
    };
    assert_eq!(serial("lb1.test"), "serial=03\n");
    assert_eq!(serial("web1.test"), "serial=04\n");
    let list = "openssl crl -in ca/crl.pem -noout -text";
    let text = site.sh(list);
    assert_eq!(text.matches("Serial Number: 02").count(), 1, "{text}");
    assert_eq!(text.matches("Serial Number").count(), 1, "{text}");
    let number = |hex: &str| {
        let said = site.sh("openssl crl -in ca/crl.pem -noout -crlnumber");
        assert_eq!(said, format!("crlNumber={hex}\n"));
    };
    number("0x01");
    site.well(&["revoke", "lb1.test", "web1.test"]);
    number("0x03");
    assert_eq!(site.read("ca/ca.pem"), before);
}

#[test]
fn errors_name_the_file_and_what_to_do() {
    let site = Site::empty();
    site.fails(
        &["sign", "web1.test"],
        &["no CA in", "again-fleet ca create"],
    );
    site.well(&["create"]);
    for (name, part) in [
        ("root", "superuser"),
        ("ca", "under this name"),
        ("..", "begins with a dot"),
        ("Web1.test", "lower case"),
        ("a/b", "no '/'"),
    ] {
        site.fails(&["sign", name], &[name, part]);
    }
    for name in ["web1.test", ".."] {
        site.fails(&["revoke", name], &["no certificate of", name]);
    }
    fs::write(site.path("ca/serial"), "1\n").expect("written");
    site.fails(&["sign", "web1.test"], &["ca/serial", "no serial number"]);
    let other = Site::new();
    fs::copy(other.path("ca/ca_key.pem"), site.path("ca/ca_key.pem")).expect("copied");
    let words = ["private key is not that of its certificate"];
    site.fails(&["sign", "web1.test"], &words);
    assert!(
        fs::read_dir(site.path("ca/nodes"))
            .expect("a directory")
            .next()
            .is_none()
    );
}

/// A node with these certificates, its processes running.
fn node(name: &'static str, server: &Server, ssldir: &Path) -> Node {
    let node = Node::off(name, server);
    for (key, file) in [
        ("cert", format!("certs/{name}.pem")),
        ("key", format!("private_keys/{name}.pem")),
        ("ca", "certs/ca.pem".to_owned()),
        ("crl", "crl.pem".to_owned()),
    ] {
        node.set_also(&format!("{key} = {:?}", ssldir.join(file)));
    }
    node.take();
    node.start();
    node
}

/// Over both backends, from nothing: a CA, a backend, and two nodes, one of which is revoked in the end.
#[test]
fn masterless_nodes_trigger_one_another_until_one_is_revoked() {
    let site = Site::new();
    site.well(&["sign", "localhost", "web1.test", "lb1.test"]);
    let ssldirs = ["localhost", "web1.test", "lb1.test"].map(|name| site.copy(name));
    let [server, web1, lb1] = &ssldirs;
    let fleets = [Kind::Etcd, Kind::Nats].map(|kind| {
        let server = Server::with_ssldir(kind, "localhost", server);
        let nodes = [
            node("web1.test", &server, web1),
            node("lb1.test", &server, lb1),
        ];
        (server, nodes)
    });
    let trigger = ["trigger", "--to", "lb1.test"];
    for (_, [web1, lb1]) in &fleets {
        web1.is_linked(true);
        lb1.is_linked(true);
        well(web1, &trigger);
        until("its run", || lb1.runs().len() == 1);
    }
    site.well(&["revoke", "web1.test"]);
    fs::copy(site.path("ca/nodes/lb1.test/crl.pem"), lb1.join("new")).expect("copied");
    fs::rename(lb1.join("new"), lb1.join("crl.pem")).expect("renamed");
    for (_, [web1, lb1]) in &fleets {
        let before = lb1.how().turned_away;
        well(web1, &trigger);
        until("its refusal", || lb1.how().turned_away > before);
        let why = "the certificate of web1.test was revoked";
        assert!(lb1.log().contains(why), "{}", lb1.log());
        assert_eq!(lb1.runs().len(), 1);
    }
}
