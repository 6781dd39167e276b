//! A directory per test, with everything that a run of puppet and of `again` touches.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::process::{Process, boottime, of_directory};
use super::record::{Kind, Record};
use super::{binary_under_test, repository, rig_file, search_path, text, wait_for, wait_until};

/// The directory, and what was started from it.
pub struct Scratch {
    dir: TempDir,
    outputs: AtomicUsize,
    /// What may be left running at the end; see [`Scratch::forgive`].
    strict: bool,
}

/// A puppet command line that has not been started yet.
pub struct PuppetCommand {
    command: Command,
    output: PathBuf,
}

/// A command under way. Dropped before its end, it is ended.
pub struct Started {
    child: Child,
    pub process: Process,
    output: PathBuf,
    waited: bool,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    pub process: Process,
    /// The exit status; none after a signal.
    pub code: Option<i32>,
    /// Standard output and error.
    pub output: String,
    /// When we noticed the end; seconds since boot.
    pub ended_at: f64,
}

impl Scratch {
    pub fn new() -> Scratch {
        super::sweep();
        let dir = tempfile::Builder::new()
            .prefix("again-rig-")
            .tempdir()
            .expect("a scratch directory");
        super::claim(dir.path());
        // Execs with `user =>` come here as well.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        let scratch = Scratch {
            dir,
            outputs: AtomicUsize::new(0),
            strict: true,
        };
        for sub in [
            "bin",
            "runs",
            "work",
            "home",
            "outputs",
            "modules",
            "puppet/conf",
            "puppet/code/environments/production/manifests",
        ] {
            fs::create_dir_all(scratch.path(sub)).expect("a directory");
        }
        super::copy_program(binary_under_test(), scratch.path("bin/again"));
        copy_tree(&rig_file("module"), &scratch.path("modules/rig"));
        std::os::unix::fs::symlink(
            repository().join("puppet-module"),
            scratch.path("modules/common"),
        )
        .expect("the module");
        fs::write(
            scratch.path("puppet/code/environments/production/environment.conf"),
            format!("modulepath = {}\n", text(scratch.path("modules"))),
        )
        .expect("environment.conf");
        scratch.puppet_conf("");
        scratch.settings("");
        scratch
    }

    /// A path below the directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    /// The directory as text, for manifests and arguments.
    pub fn root(&self) -> String {
        text(self.dir.path())
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

    /// Writes the settings of `again`: its directories in here and no jitter, with more lines at the end.
    pub fn settings(&self, more: &str) {
        let root = self.root();
        let jitter = if more.contains("jitter") {
            ""
        } else {
            "jitter = 0\n"
        };
        fs::write(
            self.path("again.toml"),
            format!("state_dir = \"{root}/state\"\nlog_dir = \"{root}/logs\"\n{jitter}{more}\n"),
        )
        .expect("again.toml");
    }

    /// A manifest that records its run and has `Exec['again']`.
    pub fn manifest(&self, body: &str) -> String {
        self.manifest_with("", body)
    }

    /// The same with more parameters of the class.
    pub fn manifest_with(&self, parameters: &str, body: &str) -> String {
        let root = self.root();
        format!(
            "rig_run {{ 'run': runs => '{root}/runs' }}\n\
             class {{ 'common::again':\n  manage_binary      => 'none',\n  binary             => '{root}/bin/again',\n  \
             manage_config      => false,\n  config_file        => '{root}/again.toml',\n  manage_man         => false,\n  \
             manage_completions => false,\n  manage_boot_unit   => false,\n  {parameters}\n}}\n{body}\n"
        )
    }

    /// A manifest that records its run, and the body.
    pub fn bare_manifest(&self, body: &str) -> String {
        format!(
            "rig_run {{ 'run': runs => '{}/runs' }}\n{body}\n",
            self.root()
        )
    }

    /// Writes a file below the directory and returns its path.
    pub fn write(&self, relative: &str, content: &str) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, content).expect("a file");
        path
    }

    /// The environment of everything that is started here; nothing of the test's own gets in.
    pub fn environment(&self) -> Vec<(String, String)> {
        let root = self.root();
        [
            ("PATH", search_path().to_owned()),
            ("HOME", format!("{root}/home")),
            ("USER", "rig".to_owned()),
            ("LOGNAME", "rig".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("RIG_MARK", "two words, a=b and an ä".to_owned()),
            ("RIG_EMPTY", String::new()),
            ("RIG_RUNS", format!("{root}/runs")),
            (
                "RUBYOPT",
                format!("-r{root}/modules/rig/lib/puppet_x/rig/record.rb"),
            ),
            ("AGAIN_CONFIG", format!("{root}/again.toml")),
            ("AGAIN_BIN", format!("{root}/bin/again")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Any command, in the scratch environment and working directory.
    pub fn command(&self, words: &[&str]) -> PuppetCommand {
        let output = self.path(&format!(
            "outputs/{:03}.log",
            self.outputs.fetch_add(1, Ordering::SeqCst)
        ));
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env_clear()
            .envs(self.environment())
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
        PuppetCommand { command, output }
    }

    /// `puppet apply --confdir … WORDS`.
    pub fn apply(&self, words: &[&str]) -> PuppetCommand {
        let conf = text(self.path("puppet/conf"));
        self.command(&[&["puppet", "apply", "--confdir", &conf], words].concat())
    }

    /// `again WORDS`, as a person would call it.
    pub fn again(&self, words: &[&str]) -> Output {
        Command::new(self.path("bin/again"))
            .args(words)
            .env_clear()
            .envs(self.environment())
            .current_dir(self.path("work"))
            .stdin(Stdio::null())
            .output()
            .expect("again")
    }

    /// `again status --json`.
    pub fn status(&self) -> serde_json::Value {
        let output = self.again(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
            panic!(
                "status --json: {e}\n{}{}",
                lossy(&output.stdout),
                lossy(&output.stderr)
            )
        })
    }

    /// All timers of all targets, by `status --json`.
    pub fn timers(&self) -> Vec<serde_json::Value> {
        let status = self.status();
        let targets = status["targets"].as_array().cloned().unwrap_or_default();
        targets
            .iter()
            .flat_map(|target| target["timers"].as_array().cloned().unwrap_or_default())
            .collect()
    }

    /// What became of every request, oldest first: the lines of the history.
    pub fn history(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path("state/history.jsonl")).unwrap_or_default();
        text.lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|e| panic!("history: {e}: {line}"))
            })
            .collect()
    }

    /// The lines of the history of one kind (`requested`, `started`, `satisfied` …).
    pub fn history_of(&self, what: &str) -> Vec<serde_json::Value> {
        self.history()
            .into_iter()
            .filter(|entry| entry["what"] == what)
            .collect()
    }

    /// The records of puppet processes as they started.
    pub fn starts(&self) -> Vec<Record> {
        self.records(Kind::Exec)
    }

    /// The records of catalogs being applied.
    pub fn catalogs(&self) -> Vec<Record> {
        self.records(Kind::Catalog)
    }

    fn records(&self, kind: Kind) -> Vec<Record> {
        Record::all(&self.path("runs"))
            .into_iter()
            .filter(|record| record.kind == kind)
            .collect()
    }

    /// Everything that runs and comes from here: by its program, arguments, environment or working directory.
    pub fn processes(&self) -> Vec<Process> {
        of_directory(self.dir.path())
    }

    /// The processes that run the binary under test: waiters, and requesters while they last.
    pub fn agains(&self) -> Vec<Process> {
        let binary = self.path("bin/again");
        Process::all()
            .into_iter()
            .filter(|process| process.link("exe").as_deref() == Some(&binary))
            .collect()
    }

    /// The one waiter there is.
    pub fn waiter(&self) -> Process {
        wait_for("one waiter", super::SHORT, || match self.agains()[..] {
            [waiter] => Some(waiter),
            _ => None,
        })
    }

    /// Waits until nothing runs any more and nothing is pending: after that no further run can come.
    pub fn settle(&self, timeout: Duration) {
        wait_until("everything to end", timeout, || self.processes().is_empty());
        let output = self.again(&["status"]);
        assert_eq!(
            output.status.code(),
            Some(3),
            "status says that something is pending: {}",
            lossy(&output.stdout)
        );
    }

    /// The text of all logs of reruns, oldest first.
    pub fn logs(&self) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        let mut dirs = vec![self.path("logs")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    dirs.push(path);
                } else if !path.is_symlink() {
                    found.push((path.clone(), lossy(&fs::read(path).unwrap_or_default())));
                }
            }
        }
        found.sort_by_key(|(path, _)| fs::metadata(path).and_then(|m| m.modified()).ok());
        found
    }

    /// Leaves what is still running at the end to the scratch directory, without failing the test.
    pub fn forgive(&mut self) {
        self.strict = false;
    }

    fn tell(&self) {
        for entry in fs::read_dir(self.path("outputs"))
            .into_iter()
            .flatten()
            .flatten()
        {
            eprintln!(
                "--- {}\n{}",
                entry.path().display(),
                lossy(&fs::read(entry.path()).unwrap_or_default())
            );
        }
        for (path, log) in self.logs() {
            eprintln!("--- {}\n{log}", path.display());
        }
        let history = self.path("state/history.jsonl");
        eprintln!(
            "--- {}\n{}",
            history.display(),
            fs::read_to_string(&history).unwrap_or_default()
        );
        for process in self.processes() {
            eprintln!("--- still running: {} {}", process.pid, process.title());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
        let stop = self.again(&["stop"]);
        let end = std::time::Instant::now() + Duration::from_secs(2);
        while !self.processes().is_empty() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let left = self.processes();
        let titles: Vec<String> = left
            .iter()
            .map(|process| format!("{} {}", process.pid, process.title()))
            .collect();
        for process in left {
            process.end();
        }
        if self.strict && !std::thread::panicking() {
            assert!(
                titles.is_empty(),
                "left running: {titles:#?}\nagain stop said: {}{}",
                lossy(&stop.stdout),
                lossy(&stop.stderr)
            );
        }
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
        let file = File::create(&self.output).expect("a file for the output");
        let child = self
            .command
            .stdout(file.try_clone().expect("dup"))
            .stderr(file)
            .spawn()
            .expect("the command starts");
        let process = Process::now(child.id() as i32).unwrap_or(Process {
            pid: child.id() as i32,
            start: 0,
        });
        Started {
            child,
            process,
            output: self.output,
            waited: false,
        }
    }

    /// Runs it to its end.
    pub fn run(self) -> Finished {
        self.start().wait()
    }
}

impl Started {
    /// Its standard input, if it was asked to be piped.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    pub fn output(&self) -> String {
        lossy(&fs::read(&self.output).unwrap_or_default())
    }

    pub fn wait(mut self) -> Finished {
        let status = self.child.wait().expect("its end");
        let ended_at = boottime();
        self.waited = true;
        Finished {
            process: self.process,
            code: status.code(),
            output: self.output(),
            ended_at,
        }
    }

    /// Ends it, if it has not ended by itself.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if !self.waited {
            if self.child.try_wait().ok().flatten().is_none() {
                self.process.end();
            }
            let _ = self.child.wait();
            self.waited = true;
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.end();
    }
}

impl Finished {
    /// Fails with the output unless the exit status is one of these.
    pub fn expect(self, codes: &[i32]) -> Finished {
        assert!(
            self.code.is_some_and(|code| codes.contains(&code)),
            "exit status {:?}, not {codes:?}:\n{}",
            self.code,
            self.output
        );
        self
    }

    /// The lines that `again` printed and the Exec logged.
    pub fn lines_of_again(&self) -> Vec<String> {
        self.output
            .lines()
            .filter_map(|line| {
                Some(
                    line[line.find("again: ")?..]
                        .trim_end_matches("\u{1b}[0m")
                        .to_owned(),
                )
            })
            .collect()
    }
}

/// Bytes as text, for messages.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
