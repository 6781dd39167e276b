//! Real agent without a server, with its own certificate and a cached catalog.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::command::lossy;
use super::process::Process;
use super::puppet::{PuppetCommand, copy_tree};
use super::scratch::Scratch;
use super::{default_confdir, repository, rig_file, text};

/// Certificate name of every such agent.
pub const NAME: &str = "rig.example";

/// Lines that its puppet.conf needs.
pub const CONFIGURATION: &str = "[agent]\nuse_cached_catalog = true\nreport = false\ncertificate_revocation = false\n\
    ca_refresh_interval = 3650d\nhostcert_renewal_interval = 0\n";

/// Agent that lives in a scratch directory. Its catalog is what the manifest said when it was
/// compiled: what changes from run to run has to be in resources (an Exec's `onlyif`, a file), not
/// in facts.
pub struct CachedAgent<'a> {
    scratch: &'a Scratch,
}

impl<'a> CachedAgent<'a> {
    /// Creates an agent whose every run applies this manifest, with more lines for the section
    /// `agent` of puppet.conf.
    pub fn new(scratch: &'a Scratch, manifest: &str, more_conf: &str) -> CachedAgent<'a> {
        write_ssldir(&scratch.path("puppet/ssl"));
        // As pluginsync leaves it.
        for lib in [
            rig_file("module/lib"),
            repository().join("puppet-module/lib"),
        ] {
            copy_tree(&lib, &scratch.path("puppet/var/lib"));
        }
        let agent = CachedAgent { scratch };
        agent.configure(more_conf);
        agent.catalog(manifest);
        agent
    }

    /// Writes puppet.conf, with more lines in its section `agent`.
    pub fn configure(&self, more: &str) {
        self.scratch.puppet_conf(&format!("{CONFIGURATION}{more}"));
    }

    /// Compiles a manifest to a catalog for [`CachedAgent::cache`]. Takes a second or two.
    pub fn compile(&self, manifest: &str) -> String {
        let input = self.scratch.write("work/.catalog.pp", manifest);
        let output = Command::new("ruby")
            .arg(rig_file("compile.rb"))
            .args([
                NAME,
                "--confdir",
                &text(self.scratch.path("puppet/conf")),
                "--modulepath",
                &text(self.scratch.path("modules")),
            ])
            .env("LANG", "C.UTF-8")
            .stdin(Stdio::from(fs::File::open(input).expect("the manifest")))
            .output()
            .expect("ruby");
        assert!(
            output.status.success(),
            "the manifest does not compile: {}",
            lossy(&output.stderr)
        );
        lossy(&output.stdout)
    }

    /// Sets the catalog that the next run applies.
    pub fn cache(&self, catalog: &str) {
        self.scratch.write(
            &format!("puppet/var/client_data/catalog/{NAME}.json"),
            catalog,
        );
    }

    /// Compiles a manifest into the cache.
    pub fn catalog(&self, manifest: &str) {
        self.cache(&self.compile(manifest));
    }

    /// Command `puppet agent --confdir … WORDS`.
    pub fn command(&self, words: &[&str]) -> PuppetCommand {
        let conf = text(self.scratch.path("puppet/conf"));
        self.scratch
            .prepare(&[&["puppet", "agent", "--confdir", &conf], words].concat())
    }

    /// Command `puppet agent` without a single option, which finds its configuration at its default
    /// path in a mount namespace of its own. Its argv is as short as the title that the agent gives
    /// to a run's process, which overwrites that process's environment.
    pub fn plain(&self) -> PuppetCommand {
        let script = format!(
            "mount --bind '{}' {} && exec puppet agent",
            text(self.scratch.path("puppet/conf")),
            default_confdir()
        );
        self.scratch.prepare(&[
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &script,
        ])
    }

    /// Lock that an agent run holds.
    pub fn lock(&self) -> PathBuf {
        self.scratch.path("puppet/var/state/agent_catalog_run.lock")
    }

    /// File whose presence disables the agent.
    pub fn disabled(&self) -> PathBuf {
        self.scratch.path("puppet/var/state/agent_disabled.lock")
    }

    /// Agent daemon, found through its pid file.
    pub fn daemon(&self) -> Option<Process> {
        Process::now(
            fs::read_to_string(self.scratch.path("puppet/run/agent.pid"))
                .ok()?
                .trim()
                .parse()
                .ok()?,
        )
    }
}

/// Writes the ssldir of the agent [`NAME`].
pub fn write_ssldir(dir: &Path) {
    for (file, content) in ssldir() {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, content).expect("a certificate");
    }
}

/// Files of an ssldir, by path: one certificate authority for all agents of a test program, made
/// once.
fn ssldir() -> &'static [(String, Vec<u8>)] {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let output = Command::new("ruby")
            .arg(rig_file("ca.rb"))
            .arg(dir.path())
            .arg(NAME)
            .output()
            .expect("ruby");
        assert!(
            output.status.success(),
            "no certificate authority: {}",
            lossy(&output.stderr)
        );
        [
            "crl.pem",
            "certs/ca.pem",
            &format!("certs/{NAME}.pem"),
            &format!("public_keys/{NAME}.pem"),
            &format!("private_keys/{NAME}.pem"),
        ]
        .map(|file| {
            (
                file.to_owned(),
                fs::read(dir.path().join(file)).expect("a certificate"),
            )
        })
        .to_vec()
    })
}
