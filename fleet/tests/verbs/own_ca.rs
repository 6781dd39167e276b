//! `again-fleet ca`: its files, and nodes and backends that have no other certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::real::{done, well};
use crate::servers::{Kind, Server};
use crate::whole::{Node, until};

/// Directory with a CA in `ca`, and copies of its files.
struct Site(tempfile::TempDir);

impl Site {
    /// Returns a site without a CA.
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

    /// Copies a node's files to its `ssldir`, as doc/fleet/quick-start.md does.
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
    site.well(&["sign", "web1.test", "192.0.2.1"]);
    for (name, of_kind) in [("web1.test", "hostname"), ("192.0.2.1", "ip")] {
        let ssldir = site.copy(name);
        let verify = "openssl verify -x509_strict -crl_check -CAfile certs/ca.pem -CRLfile crl.pem";
        let dir = ssldir.display();
        for purpose in ["sslserver", "sslclient"] {
            site.sh(&format!(
                "cd {dir}; {verify} -purpose {purpose} -verify_{of_kind} {name} certs/{name}.pem"
            ));
        }
        let keys = "openssl pkey -pubout -in private_keys/NAME.pem >k; openssl x509 -noout -pubkey -in certs/NAME.pem | cmp k -";
        site.sh(&format!("cd {dir}; {}", keys.replace("NAME", name)));
    }
    for (name, mode) in [
        ("ca", 0o700),
        ("ca/ca_key.pem", 0o600),
        ("ca/issued", 0o600),
        ("ca/ca.pem", 0o644),
        ("ca/nodes/web1.test", 0o700),
        ("ca/nodes/web1.test/private_keys/web1.test.pem", 0o600),
        ("web1.test/private_keys/web1.test.pem", 0o600),
    ] {
        assert_eq!(site.mode(name), mode, "{name}");
    }
}

#[test]
fn node_has_one_valid_certificate_whatever_was_removed_or_interrupted() {
    let site = Site::new();
    let before = site.read("ca/ca.pem");
    site.fails(&["create"], &["is not empty", "--dir"]);
    site.well(&["sign", "web1.test"]);
    let first = site.read("ca/nodes/web1.test/certs/web1.test.pem");
    let again = ["sign", "lb1.test", "web1.test"];
    site.fails(&again, &["web1.test has a certificate", "revoke web1.test"]);
    assert_eq!(site.read("ca/nodes/web1.test/certs/web1.test.pem"), first);
    // Temporary files of commands that were killed.
    fs::create_dir(site.path("ca/nodes/.new")).expect("made");
    fs::create_dir_all(site.path("ca/nodes/.old/certs")).expect("made");
    site.sh("rm -r ca/nodes/lb1.test/certs; cp -a ca backup");
    site.well(&["revoke", "lb1.test"]);
    site.well(&["sign", "lb1.test"]);
    assert_eq!(site.sh("ls -A ca/nodes"), "lb1.test\nweb1.test\n");
    // Issued certificates are known without their files.
    site.sh("rm -r ca/nodes/web1.test");
    site.fails(&["sign", "web1.test"], &["web1.test has a certificate"]);
    site.well(&["revoke", "web1.test"]);
    site.fails(&["revoke", "web1.test"], &["web1.test", "ca/issued"]);
    let revoked = || {
        let list = site.sh("openssl crl -in ca/crl.pem -noout -text");
        let serials = list.lines().filter_map(|line| {
            let (_, serial) = line.split_once("Serial Number: ")?;
            Some(serial.to_owned())
        });
        serials.collect::<Vec<_>>()
    };
    let issued = || {
        let text = String::from_utf8(site.read("ca/issued")).expect("text");
        let lines = text.lines().map(|line| line.split_once(' '));
        let parts = lines.map(|parts| parts.expect("a serial number and a node"));
        let parts = parts.map(|(serial, node)| (serial.to_owned(), node.to_owned()));
        parts.collect::<Vec<_>>()
    };
    let before_backup = issued();
    let [(web1, _), (lb1, _), (_, again)] = &before_backup[..] else {
        panic!("{before_backup:?}");
    };
    assert_eq!(again, "lb1.test");
    assert_eq!(revoked(), [lb1.clone(), web1.clone()]);
    // A CA from a backup repeats neither a serial number nor the number of a revocation list.
    let number = || {
        let said = site.sh("openssl crl -in ca/crl.pem -noout -crlnumber");
        let digits = said.trim().strip_prefix("crlNumber=0x").expect("hex");
        u64::from_str_radix(digits, 16).expect("a number")
    };
    let newest = number();
    site.sh("rm -r ca; mv backup ca");
    site.well(&["revoke", "lb1.test"]);
    site.well(&["sign", "lb1.test"]);
    assert!(number() + 60 > newest && number() > 1_700_000_000);
    assert_ne!(issued()[2].0, before_backup[2].0);
    assert_eq!(site.read("ca/ca.pem"), before);
}

#[test]
fn errors_name_the_file_and_what_to_do() {
    let site = Site::empty();
    site.fails(
        &["sign", "web1.test"],
        &["no CA in", "again-fleet ca create"],
    );
    let mut command = Command::new("sh");
    let script = r#"mkdir "ca.$$"; exec "$0" ca --dir ca create"#;
    command.args(["-c", script, env!("CARGO_BIN_EXE_again-fleet")]);
    command.current_dir(site.0.path());
    let (status, _, err) = done(command);
    assert!(
        status == 1 && err.contains("interrupted 'create'"),
        "{status}: {err}"
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
    fs::write(site.path("ca/issued"), "web1.test\n").expect("written");
    site.fails(&["sign", "web1.test"], &["ca/issued", "SERIAL NODE"]);
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

/// Returns a node with these certificates, whose processes run.
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

/// Setup from nothing with both backends: a CA, a backend, and two nodes, one of which is revoked
/// at the end.
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
        let before = lb1.how().rejected;
        well(web1, &trigger);
        until("its refusal", || lb1.how().rejected > before);
        let why = "the certificate of web1.test was revoked";
        assert!(lb1.log().contains(why), "{}", lb1.log());
        assert_eq!(lb1.runs().len(), 1);
    }
}
