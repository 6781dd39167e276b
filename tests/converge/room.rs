//! A scratch directory, and what is started in it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Long enough for a few puppet runs on a busy machine; reached only by a failing test.
const LIMIT: Duration = Duration::from_secs(120);

pub struct Room {
    dir: TempDir,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// As a shell counts it.
    pub status: i32,
    pub out: String,
    pub err: String,
}

/// A command under way, with its output in files.
pub struct Going {
    child: Child,
    pub stdin: Option<ChildStdin>,
    out: PathBuf,
    err: PathBuf,
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn read(path: &PathBuf) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

impl Room {
    pub fn new() -> Room {
        let dir = tempfile::Builder::new()
            .prefix("again-converge-")
            .tempdir()
            .expect("a directory");
        let room = Room { dir };
        let root = room.root();
        fs::create_dir_all(room.path("conf")).expect("made");
        room.write(
            "conf/puppet.conf",
            &format!(
                "[main]\nvardir = {root}/conf/var\npublicdir = {root}/conf/public\nrundir = {root}/conf/run\nlogdir = {root}/conf/log\ncertname = room.example\n"
            ),
        );
        let again = std::env::var_os("AGAIN_BIN").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("dist/again"),
            PathBuf::from,
        );
        assert!(again.is_file(), "no {}: run `make build`", again.display());
        copy_program(&again, &room.path("again"));
        room
    }

    pub fn root(&self) -> String {
        self.dir.path().to_str().expect("plain").to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("plain").to_owned()
    }

    /// A shell script; `$AGAIN` is the binary under test.
    pub fn script(&self, name: &str, text: &str) -> String {
        let draft = self.write(&format!("{name}.draft"), &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("executable");
        let path = self.path(name);
        copy_program(draft.as_ref(), &path);
        fs::remove_file(draft).expect("removed");
        path.to_str().expect("plain").to_owned()
    }

    pub fn read(&self, name: &str) -> String {
        read(&self.path(name))
    }

    /// `puppet apply` of a manifest, with all of Puppet's files in here.
    pub fn apply(&self, manifest: &str) -> Vec<String> {
        let manifest = self.write("site.pp", manifest);
        let conf = format!("{}/conf", self.root());
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

    /// An Exec that asks for another run when notified.
    pub fn again_exec(&self, title: &str, options: &[&str]) -> String {
        let mut words = vec![format!("'{}/again'", self.root())];
        words.extend(options.iter().map(|word| format!("'{word}'")));
        format!(
            "exec {{ '{title}': command => [{}], refreshonly => true, logoutput => true }}\n",
            words.join(", ")
        )
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.root())
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .env("AGAIN", self.path("again"))
            .env("AGAIN_CONFIG", "/dev/null")
            .env("AGAIN_STATE_DIR", self.path("state"))
            .env("AGAIN_SCOPE", "never")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    pub fn start(&self, mut command: Command) -> Going {
        let number = fs::read_dir(self.dir.path()).expect("dir").count();
        let (out, err) = (
            self.path(&format!("out-{number}")),
            self.path(&format!("err-{number}")),
        );
        command
            .stdout(fs::File::create(&out).expect("made"))
            .stderr(fs::File::create(&err).expect("made"));
        // What was just written is busy while a child that another thread forked at that
        // moment has not yet closed its copy of the descriptor.
        let busy = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ExecutableFileBusy;
        let mut spawned = command.spawn();
        while spawned.as_ref().is_err_and(busy) {
            std::thread::yield_now();
            spawned = command.spawn();
        }
        let mut child = spawned.expect("started");
        let stdin = child.stdin.take();
        Going {
            child,
            stdin,
            out,
            err,
        }
    }

    /// `again WORDS` to its end.
    pub fn again(&self, words: &[&str]) -> Ended {
        let again = format!("{}/again", self.root());
        self.start(self.command(&[&[again.as_str()], words].concat()))
            .wait()
    }

    /// `again converge OPTIONS -- COMMAND`, as a command to start.
    pub fn converge(&self, options: &[&str], command: &[String]) -> Command {
        let again = format!("{}/again", self.root());
        let mut words = vec![again.as_str(), "converge"];
        words.extend(options);
        words.push("--");
        words.extend(command.iter().map(String::as_str));
        self.command(&words)
    }

    /// The same on a terminal of its own; what is written to its input is typed.
    pub fn on_terminal(&self, options: &[&str], command: &str) -> Command {
        let line = format!(
            "exec {}/again converge {} -- {command}",
            self.root(),
            options.join(" ")
        );
        let mut script = self.command(&[
            "script",
            "--quiet",
            "--return",
            "--flush",
            "--command",
            &line,
            "/dev/null",
        ]);
        script.stdin(Stdio::piped());
        script
    }

    pub fn history(&self) -> Vec<serde_json::Value> {
        self.read("state/history.jsonl")
            .lines()
            .map(|line| serde_json::from_str(line).expect("json"))
            .collect()
    }

    pub fn history_of(&self, what: &str) -> Vec<serde_json::Value> {
        let mut entries = self.history();
        entries.retain(|entry| entry["what"] == what);
        entries
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.again(&["status", "--json"]).out).expect("json")
    }

    /// The processes that were started in here and live.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let root = self.root();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let file = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let environment = String::from_utf8_lossy(&file("environ")).into_owned();
            // Puppet takes HOME away from what its Execs start.
            if environment.contains(&format!("AGAIN_STATE_DIR={root}/state\0")) {
                found.push((
                    pid,
                    String::from_utf8_lossy(&file("cmdline")).replace('\0', " "),
                ));
            }
        }
        found
    }

    /// Nothing runs, and drivers left nothing.
    pub fn is_clean(&self) {
        wait_until("everything to end", || self.processes().is_empty());
        for directory in ["state/drivers", "state/reruns"] {
            let left: Vec<_> = fs::read_dir(self.path(directory))
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect();
            assert!(left.is_empty(), "left behind: {left:?}");
        }
        assert_eq!(self.again(&["status"]).status, 3);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let left = self.processes();
        for (pid, _) in &left {
            let _ = Command::new("kill")
                .args(["-KILL", &pid.to_string()])
                .status();
        }
        if std::thread::panicking() {
            for entry in fs::read_dir(self.dir.path())
                .into_iter()
                .flatten()
                .flatten()
            {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("out-") || name.starts_with("err-") {
                    eprintln!("--- {name}\n{}", read(&entry.path()));
                }
            }
            eprintln!("--- history\n{}", self.read("state/history.jsonl"));
        } else {
            assert!(left.is_empty(), "left running: {left:?}");
        }
    }
}

impl Going {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    pub fn out(&self) -> String {
        read(&self.out)
    }

    pub fn err(&self) -> String {
        read(&self.err)
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.pid().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }

    /// Types on the terminal.
    pub fn types(&mut self, keys: &str) {
        let stdin = self.stdin.as_mut().expect("a terminal");
        stdin.write_all(keys.as_bytes()).expect("typed");
        stdin.flush().expect("typed");
    }

    pub fn wait(mut self) -> Ended {
        let mut status = None;
        wait_until("the command to end", || {
            status = self.child.try_wait().expect("its end");
            status.is_some()
        });
        let status = status.expect("ended");
        Ended {
            status: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().expect("a signal")),
            out: self.out(),
            err: self.err(),
        }
    }
}

/// Copies a program by another process: what a test beside this one forks would hold our descriptor for writing until
/// its exec, and the kernel does not execute what somebody may write to (execve(2), ETXTBSY).
fn copy_program(from: &Path, to: &Path) {
    let cp = Command::new("cp").args([from, to]).status().expect("cp");
    assert!(cp.success(), "{} could not be copied", from.display());
}
