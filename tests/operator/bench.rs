//! A directory per test with state, logs and a `puppet` that takes milliseconds.
//!
//! The puppet is a ruby script of that name: to `again`, which goes by what a
//! process is, it is a run like any other. Its manifest is a shell script. When
//! the bench goes away, so does every process that was started from it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For whatever should take milliseconds, on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

const PUPPET: &str = "# Runs its manifest, a shell script, as puppet apply runs a manifest.\nmanifest = ARGV.last\nexit(system('/bin/sh', '-e', manifest) ? 0 : 1)\n";

pub struct Bench {
    directory: tempfile::TempDir,
    children: Vec<Child>,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    /// That it succeeded; its output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.out
    }

    /// Its output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// The binary under test.
pub fn again() -> PathBuf {
    std::env::var_os("AGAIN_BIN").map_or_else(|| env!("CARGO_BIN_EXE_again").into(), PathBuf::from)
}

/// Asks until there is an answer.
#[track_caller]
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Bench {
    pub fn new() -> Self {
        let bench = Bench {
            directory: tempfile::tempdir().expect("a directory"),
            children: Vec::new(),
        };
        std::fs::create_dir(bench.path("bin")).expect("made");
        bench.write("bin/puppet", PUPPET);
        let summary = bench.path("summary.yaml");
        bench.write(
            "again.toml",
            &format!("lastrunfile = \"{}\"\n", summary.display()),
        );
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    /// Adds to the environment of `command` what makes it ours.
    fn at_home<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AGAIN_") {
                command.env_remove(name);
            }
        }
        command
            .env("AGAIN_STATE_DIR", self.path("state"))
            .env("AGAIN_LOG_DIR", self.path("log"))
            .env("AGAIN_CONFIG", self.path("again.toml"))
            .env("AGAIN_SCOPE", "never")
            .env("AGAIN_JITTER", "0")
            .env("TZ", "UTC")
            .env("AGAIN", again())
            .env("HERE", self.directory.path())
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
    }

    /// `again` with these words, ready to be run.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(again());
        self.at_home(command.args(words));
        command
    }

    /// Starts a command that ends with the bench at the latest.
    pub fn spawn(&mut self, mut command: Command) {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(command.spawn().expect("started"));
    }

    /// Runs `again` with these words.
    pub fn again(&self, words: &[&str]) -> Said {
        said(&mut self.command(words))
    }

    /// Runs any command at home in the bench.
    pub fn run(&self, program: &str, words: &[&str]) -> Said {
        let mut command = Command::new(program);
        said(self.at_home(command.args(words)))
    }

    /// Starts a puppet run of this manifest and does not wait for it.
    pub fn start(&mut self, manifest: &str) -> i32 {
        self.write("site.pp", manifest);
        let mut command = Command::new("ruby");
        let child = self
            .at_home(
                command
                    .arg(self.path("bin/puppet"))
                    .args(["apply", "site.pp"]),
            )
            .stdout(std::fs::File::create(self.path("out")).expect("made"))
            .stderr(std::fs::File::create(self.path("err")).expect("made"))
            .spawn()
            .expect("ruby");
        let pid = i32::try_from(child.id()).expect("a pid");
        self.children.push(child);
        pid
    }

    /// Waits for the last run that was started; its output.
    #[track_caller]
    pub fn end(&mut self) -> String {
        let mut child = self.children.pop().expect("a run");
        child.wait().expect("waited");
        format!("{}{}", self.text("out"), self.text("err"))
    }

    /// Runs this manifest to its end; its output.
    pub fn apply(&mut self, manifest: &str) -> String {
        self.start(manifest);
        self.end()
    }

    /// The report of `again status --json`.
    pub fn status(&self) -> serde_json::Value {
        self.again(&["status", "--json"]).json()
    }

    /// Waits until there is a timer in this state.
    #[track_caller]
    pub fn timer_in_state(&self, state: &str) -> serde_json::Value {
        wait_for(&format!("a timer that is {state}"), || {
            let report = self.status();
            let timers = report["targets"][0]["timers"].as_array()?.clone();
            timers.into_iter().find(|timer| {
                // Its waiter has yet to notice that the run has ended.
                let early = state == "waiting" && timer["due_at"].is_null();
                timer["state"] == state && !early
            })
        })
    }

    /// Waits until nothing is pending and nothing runs.
    #[track_caller]
    pub fn settled(&self) {
        wait_for("nothing to be pending", || {
            (self.again(&["status"]).status == 3).then_some(())
        });
    }

    /// The state directory's only target.
    pub fn target(&self) -> PathBuf {
        let mut entries = std::fs::read_dir(self.path("state/targets")).expect("targets");
        entries.next().expect("a target").expect("readable").path()
    }

    /// The only target's record.
    pub fn record(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.target().join("state.json")).expect("a record");
        serde_json::from_str(&text).expect("JSON")
    }
}

fn said(command: &mut Command) -> Said {
    let output = command.output().expect("started");
    Said {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.again(&["disable", "the test is over"]);
        let _ = self.again(&["stop", "--run"]);
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        // So that the directory can be removed whatever a test did to it.
        for entry in std::fs::read_dir(self.directory.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.path().is_dir() {
                let open = std::fs::Permissions::from_mode(0o755);
                let _ = std::fs::set_permissions(entry.path(), open);
            }
        }
    }
}

/// Replaces whatever differs from run to run, so that the rest can be compared.
pub fn stable(text: &str, bench: &Bench) -> String {
    let text = text.replace(bench.directory.path().to_str().expect("plain"), "HERE");
    let mut out = String::new();
    let mut word = String::new();
    // Words of hexadecimal digits of an id's length, and numbers of a time.
    let flush = |word: &mut String, out: &mut String| {
        let hex = word.bytes().all(|b| b.is_ascii_hexdigit());
        match word.len() {
            16 if hex => out.push_str("ID"),
            8 if hex => out.push_str("CHAIN"),
            _ => out.push_str(word),
        }
        word.clear();
    };
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            word.push(c);
        } else {
            flush(&mut word, &mut out);
            out.push(c);
        }
    }
    flush(&mut word, &mut out);
    out
}

/// Where the repository is.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
