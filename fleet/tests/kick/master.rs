use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use again_test_support::{copy_program, repository, text, wait_until, write_program};

use crate::node::Node;
use crate::servers;
use crate::site::{certify, code, starts};

/// Puppet server that is a node of the fleet and uses a PuppetDB.
pub struct Master {
    pub server: again_test_support::Server,
    pub node: Node,
    _database: Database,
}

impl Master {
    pub fn start(etcd: &servers::Server) -> Master {
        let database = Database::start();
        let node = Node::off("server.test", etcd);
        starts(&node);
        for_puppet(&node);
        let server = again_test_support::Server::with(|dir| prepare(dir, &node));
        wait_until("PuppetDB", Duration::from_secs(600), || database.is_ready());
        let conf = database.dir.join("conf/puppetdb.conf");
        fs::copy(conf, server.path("puppet/puppetdb.conf")).expect("copied");
        node.is_linked(true);
        Master {
            server,
            node,
            _database: database,
        }
    }

    /// Newest report of a node that is stored on the server.
    pub fn stored(&self, name: &str) -> String {
        let directory = self.server.path("var/reports").join(name);
        let listed = fs::read_dir(directory).expect("reports").flatten();
        let newest = listed.map(|one| one.path()).max();
        fs::read_to_string(newest.expect("one")).expect("a report")
    }
}

/// Prepares the directory of a server of the fleet's CA. The program is a copy, because the user
/// `puppet` may not read the original.
fn prepare(dir: &Path, node: &Node) {
    let root = text(dir);
    certify(&dir.join("puppet/ssl"), "server.test", "localhost");
    code(&dir.join("code"));
    let conf = format!(
        "[main]\nssldir = {root}/puppet/ssl\ncodedir = {root}/code\n[server]\ncertname = localhost\nreports = store,kick\n\
         reportdir = {root}/var/reports\nstoreconfigs = true\nstoreconfigs_backend = puppetdb\nenvironment_timeout = 0\n"
    );
    fs::write(dir.join("puppet/puppet.conf"), conf).expect("written");
    let routes = "/usr/share/doc/puppet-terminus-puppetdb/routes.yaml.example";
    let routes = fs::read(routes).expect("Debian's");
    fs::write(dir.join("puppet/routes.yaml"), routes).expect("written");
    let ca = "puppetlabs.services.ca.certificate-authority-disabled-service/certificate-authority-disabled-service\n\
              puppetlabs.trapperkeeper.services.watcher.filesystem-watch-service/filesystem-watch-service\n";
    fs::write(dir.join("services.d/ca.cfg"), ca).expect("written");
    fs::create_dir(dir.join("bin")).expect("made");
    copy_program(
        env!("CARGO_BIN_EXE_again-fleet"),
        dir.join("bin/again-fleet.real"),
    );
    let settings = node.at("again-fleet.toml");
    write_program(
        dir.join("bin/again-fleet"),
        &format!("#!/bin/sh\nexec {root}/bin/again-fleet.real --config {settings} \"$@\"\n"),
    );
}

/// Allows the group `puppet` to use the node's service, as the class does with `firing_group`.
fn for_puppet(node: &Node) {
    let id = Command::new("id").args(["-g", "puppet"]).output();
    let id = String::from_utf8(id.expect("id").stdout).expect("UTF-8");
    let socket = node.path("run/trigger");
    chown(&socket, None, Some(id.trim().parse().expect("a group"))).expect("chown");
    for (path, mode) in [(socket, 0o660), (node.path(""), 0o711)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }
}

/// PuppetDB process, which ends with the test and removes its directory.
struct Database {
    dir: PathBuf,
    process: Child,
}

impl Database {
    fn start() -> Database {
        let dir = tempfile::Builder::new().prefix("again-puppetdb.").tempdir();
        let dir = dir.expect("a directory").keep();
        certify(&dir.join("ssl"), "server.test", "localhost");
        let log = fs::File::create(dir.join("log")).expect("a file");
        let process = Command::new(repository().join("tests/module/puppetdb"))
            .arg(&dir)
            .stdin(Stdio::piped())
            .stderr(log.try_clone().expect("a file"))
            .stdout(log)
            // The process needs its own group: signals of the terminal and of `timeout` must not
            // reach it before it has cleaned up.
            .process_group(0)
            .spawn();
        Database {
            dir,
            process: process.expect("bash"),
        }
    }

    fn is_ready(&self) -> bool {
        self.dir.join("ready").exists()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["log", "puppetdb.log"] {
                let said = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
                let said: Vec<&str> = said.lines().collect();
                eprintln!(
                    "{name}:\n{}",
                    said[said.len().saturating_sub(10)..].join("\n")
                );
            }
        }
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
