use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::command::{Ended, Started};
use super::record::{Kind, Record};
use super::scratch::Scratch;
use super::{repository, rig_file, text};

/// Command line that has not been started yet, with a file for all of its output.
pub struct PuppetCommand {
    command: Command,
    output: PathBuf,
}

impl Scratch {
    /// Installs Puppet's directories, a recorder in every puppet process, and the module as
    /// `common`.
    pub(crate) fn install_puppet(&mut self) {
        let root = self.root();
        for sub in [
            "runs",
            "home",
            "modules",
            "puppet/conf",
            "puppet/code/environments/production/manifests",
        ] {
            fs::create_dir_all(self.path(sub)).expect("a directory");
        }
        copy_tree(&rig_file("module"), &self.path("modules/rig"));
        let module = repository().join("puppet-module");
        std::os::unix::fs::symlink(module, self.path("modules/common")).expect("the module");
        self.write(
            "puppet/code/environments/production/environment.conf",
            &format!("modulepath = {}\n", self.at("modules")),
        );
        self.puppet_conf("");
        for (name, value) in [
            ("HOME", format!("{root}/home")),
            ("RIG_RUNS", format!("{root}/runs")),
            (
                "RUBYOPT",
                format!("-r{root}/modules/rig/lib/puppet_x/rig/record.rb"),
            ),
            ("AGAIN_BIN", format!("{root}/bin/again")),
            ("RIG_BYTECODE", text(bytecode())),
        ] {
            self.set(name, &value);
        }
    }

    /// Writes puppet.conf, with more lines at its end (which may open a section).
    pub fn puppet_conf(&self, more: &str) {
        let root = self.root();
        let certname = if more.contains("certname") {
            ""
        } else {
            "certname = rig.example\n"
        };
        fs::write(
            self.path("puppet/conf/puppet.conf"),
            format!(
                "[main]\nvardir = {root}/puppet/var\npublicdir = {root}/puppet/public\nrundir = {root}/puppet/run\n\
                 logdir = {root}/puppet/log\nssldir = {root}/puppet/ssl\ncodedir = {root}/puppet/code\n\
                 {certname}{more}\n"
            ),
        )
        .expect("puppet.conf");
    }

    /// Returns a manifest that records its run and has `Exec['again']`.
    pub fn manifest(&self, body: &str) -> String {
        self.manifest_with("", body)
    }

    /// Returns the same manifest with more parameters of the class.
    pub fn manifest_with(&self, parameters: &str, body: &str) -> String {
        let root = self.root();
        format!(
            "rig_run {{ 'run': runs => '{root}/runs' }}\n\
             class {{ 'common::again':\n  manage_binary      => 'none',\n  binary             => '{root}/bin/again',\n  \
             manage_config      => false,\n  config_file        => '{root}/again.toml',\n  \
             manage_boot_unit   => false,\n  {parameters}\n}}\n{body}\n"
        )
    }

    /// Returns a manifest that records its run, followed by the body.
    pub fn bare_manifest(&self, body: &str) -> String {
        format!(
            "rig_run {{ 'run': runs => '{}/runs' }}\n{body}\n",
            self.root()
        )
    }

    /// Prepares any command, in the scratch environment and working directory.
    pub fn prepare(&self, words: &[&str]) -> PuppetCommand {
        let mut command = self.line(words);
        let output = self.with_output(&mut command);
        PuppetCommand { command, output }
    }

    /// Prepares `puppet apply --confdir … WORDS`.
    pub fn puppet_apply(&self, words: &[&str]) -> PuppetCommand {
        let conf = self.at("puppet/conf");
        self.prepare(&[&["puppet", "apply", "--confdir", &conf], words].concat())
    }

    /// Returns the words of a `puppet apply` of a manifest, for a driver.
    pub fn driven_apply(&self, manifest: &str) -> Vec<String> {
        let manifest = text(self.write("site.pp", manifest));
        let conf = self.at("conf");
        [
            "puppet",
            "apply",
            "--color=false",
            "--confdir",
            &conf,
            &manifest,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// Returns an Exec that requests another run when notified, without the module.
    pub fn again_exec(&self, title: &str, options: &[&str]) -> String {
        let mut words = vec![format!("'{}'", self.at("bin/again"))];
        words.extend(options.iter().map(|word| format!("'{word}'")));
        format!(
            "exec {{ '{title}': command => [{}], refreshonly => true, logoutput => true }}\n",
            words.join(", ")
        )
    }

    /// Returns the records of puppet processes as they started.
    pub fn starts(&self) -> Vec<Record> {
        self.recorded(Kind::Exec)
    }

    /// Returns the records of catalogs being applied.
    pub fn catalogs(&self) -> Vec<Record> {
        self.recorded(Kind::Catalog)
    }

    fn recorded(&self, kind: Kind) -> Vec<Record> {
        Record::all(&self.path("runs"))
            .into_iter()
            .filter(|record| record.kind == kind)
            .collect()
    }
}

impl PuppetCommand {
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> PuppetCommand {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: &str) -> PuppetCommand {
        self.command.env_remove(name);
        self
    }

    pub fn directory(mut self, path: impl AsRef<Path>) -> PuppetCommand {
        self.command.current_dir(path);
        self
    }

    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> PuppetCommand {
        self.command.stdin(stdin);
        self
    }

    pub fn start(mut self) -> Started {
        Started::new(&mut self.command, Some(self.output), None)
    }

    /// Runs the command to its end.
    #[must_use]
    pub fn run(self) -> Ended {
        self.start().wait()
    }
}

/// Returns the directory in which ruby keeps the bytecode of Puppet's files
/// (`puppet_x/rig/bytecode.rb`).
fn bytecode() -> PathBuf {
    let directory = repository().join("target/bytecode");
    fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// Copies a directory, following links.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from)
        .unwrap_or_else(|e| panic!("{}: {e}", from.display()))
        .flatten()
    {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target)
                .unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()));
        }
    }
}
