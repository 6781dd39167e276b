//! Node: its settings, a script instead of `again`, and a listener instead of its service.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use again_base::sys::pidfd::is_readable_by;
use again_fleet::ask::{self, Answer, HEAD, Question};
use serde_json::Value;

pub struct Node {
    dir: tempfile::TempDir,
}

/// Result of a command.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Done {
    /// Returns the only line on standard error.
    pub fn error(&self) -> &str {
        let line = self.err.trim_end();
        assert!(!line.contains('\n'), "{self:?}");
        line.strip_prefix("again-fleet: error: ")
            .unwrap_or_else(|| panic!("{self:?}"))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

impl Node {
    pub fn new() -> Node {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node { dir };
        fs::create_dir(node.path("run")).expect("made");
        node.set("");
        node.is_in("null");
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the settings, with these lines added.
    pub fn set(&self, more: &str) {
        let (run, spool, helper) = (self.path("run"), self.path("spool"), self.path("again"));
        let text = format!(
            "certname = 'web1.test'\naccept = []\nrun_dir = {run:?}\nspool_dir = {spool:?}\nhelper = {helper:?}\n{more}\n"
        );
        fs::write(self.path("again-fleet.toml"), text).expect("written");
    }

    /// Installs a script as `again`, which reports this run as the one that called it.
    pub fn is_in(&self, this_run: &str) {
        let script = format!(
            "#!/bin/sh\nprintf '%s ' \"$@\" >>\"$0.calls\"\n[ \"$1\" = --version ] && echo again 0.1.0 && exit\necho '{{\"schema\":1,\"targets\":[],\"this_run\":{this_run}}}'\nexit 3\n"
        );
        let path = self.path("again");
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    /// Listens on the service's socket.
    pub fn listen(&self) -> UnixListener {
        UnixListener::bind(self.path("run/trigger")).expect("bound")
    }

    /// Acts as the service for one connection; returns the question.
    pub fn serves(
        &self,
        talk: impl FnOnce(&mut UnixStream, &Question) + Send + 'static,
    ) -> JoinHandle<Question> {
        let listener = self.listen();
        std::thread::spawn(move || {
            let (mut stream, question) = asked(&listener);
            talk(&mut stream, &question);
            question
        })
    }

    /// Acts as the service for several connections, one after the other, with these answers to
    /// each.
    pub fn answers_each(&self, answers: Vec<Vec<Answer>>) -> JoinHandle<Vec<Question>> {
        let listener = self.listen();
        std::thread::spawn(move || {
            let answered = answers.iter().map(|answers| {
                let (mut stream, question) = asked(&listener);
                tell(&mut stream, answers);
                question
            });
            answered.collect()
        })
    }

    /// Acts as the service for one connection, and sends all answers immediately.
    pub fn answers(&self, answers: Vec<Answer>) -> JoinHandle<Question> {
        self.serves(move |stream, _| tell(stream, &answers))
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_again-fleet"));
        command
            .arg("--config")
            .arg(self.path("again-fleet.toml"))
            .args(words)
            .env_remove("TERM")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, words: &[&str]) -> Done {
        let began = Instant::now();
        let output = self.command(words).output().expect("it is there");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Done {
            status: output.status.code().expect("no signal"),
            out: text(output.stdout),
            err: text(output.stderr),
            took: began.elapsed(),
        }
    }
}

/// Accepts the next connection, and reads its question.
fn asked(listener: &UnixListener) -> (UnixStream, Question) {
    let until = Instant::now() + Duration::from_secs(60);
    let is_asked = is_readable_by(listener.as_fd(), until).expect("polled");
    assert!(is_asked, "the command has ended without a question");
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).expect("a head");
    let mut rest = vec![0; ask::length_of_question(&head).expect("a length")];
    stream.read_exact(&mut rest).expect("the rest");
    let question = ask::question(&rest).expect("a question");
    (stream, question)
}

pub fn tell(stream: &mut UnixStream, answers: &[Answer]) {
    for answer in answers {
        // The client may have closed the connection already.
        let _ = stream.write_all(&ask::say(answer).expect("an answer"));
    }
}
