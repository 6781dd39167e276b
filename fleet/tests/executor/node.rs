//! Node: its settings, a script instead of `again`, and the socket that starts the executor.

use again_test_support::{SHORT, ask_for, wait_for};
use std::fs;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use again_fleet::handover::{Answer, HEAD, MOST_PIDFDS, answers, ask, became, length};
use again_fleet::wire::name::Id;
use again_fleet::wire::trigger::{Ask, Trigger};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::ca::Ca;

/// Script instead of `again`. The output and exit status to use are in files beside it, and so is
/// what it has recorded.
const HELPER: &str = r#"#!/bin/bash
case $1 in status|history) cat "$0.$1.json"; exit;; esac
printf '%s\0' "$@" >>"$0.calls"; printf '\n\0' >>"$0.calls"
env >"$0.env"
find /proc/self/fd -lname 'socket:*' >"$0.sockets"
sed -n 's/^\(SigBlk\|SigIgn\):\t/\1:/p' /proc/self/status | paste -sd' ' >"$0.signals"
if [ -e "$0.kills" ]; then kill -9 $PPID; fi
cat "$0.says"
exit "$(cat "$0.status")"
"#;

/// Idle time of the executor, short enough for most of these tests.
const IDLE: &str = "2s";

pub struct Node {
    dir: tempfile::TempDir,
    started: Mutex<Option<Child>>,
    /// Time without a request after which the executor ends.
    pub idle: &'static str,
}

impl Node {
    pub fn new() -> Node {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node {
            dir,
            started: Mutex::new(None),
            idle: IDLE,
        };
        fs::write(node.path("helper"), HELPER).expect("written");
        fs::set_permissions(node.path("helper"), fs::Permissions::from_mode(0o755))
            .expect("its mode");
        node.helper_says("again: scheduled: by the stand-in", 0);
        node.helper_shows("status", r#"{"schema":1,"targets":[]}"#);
        node.helper_shows("history", "");
        node.set_well("");
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn set(&self, settings: &str) {
        fs::write(self.path("again-fleet.toml"), settings).expect("written");
    }

    /// Writes valid settings, preceded by these.
    pub fn set_well(&self, more: &str) {
        let ca = Ca::get();
        let usual = [
            ("certname", "lb1.test".into()),
            ("namespace", "test".into()),
            ("ca", ca.path("ca.pem")),
            ("crl", ca.path("crl.pem")),
            ("helper", self.path("helper")),
        ];
        let is_unset = |key: &str| {
            !more
                .lines()
                .any(|line| line.starts_with(&format!("{key} =")))
        };
        let mut text = format!("{more}\n");
        for (key, value) in usual.iter().filter(|(key, _)| is_unset(key)) {
            text.push_str(&format!("{key} = {value:?}\n"));
        }
        if is_unset("accept") {
            text.push_str("accept = [\"web*.test\"]\n");
        }
        text.push_str("run_cmd = [\"/bin/puppet it\", \"--test\"]\n");
        self.set(&text);
    }

    pub fn helper_says(&self, line: &str, status: u8) {
        fs::write(self.path("helper.says"), line).expect("written");
        fs::write(self.path("helper.status"), status.to_string()).expect("written");
    }

    /// Sets the output of the script for a verb that only reads.
    pub fn helper_shows(&self, verb: &str, text: &str) {
        fs::write(self.path(&format!("helper.{verb}.json")), text).expect("written");
    }

    pub fn helper_kills(&self, kills: bool) {
        let path = self.path("helper.kills");
        if kills {
            fs::write(path, "").expect("written");
        } else {
            fs::remove_file(path).expect("removed");
            // The process may take a moment to die.
            let killed = self.started.lock().expect("alone").take();
            let status = killed.expect("it was started").wait().expect("a child");
            assert_eq!(status.signal(), Some(9));
        }
    }

    pub fn helper_saw(&self, what: &str) -> String {
        let text = fs::read_to_string(self.path(&format!("helper.{what}")));
        text.expect("it was asked").trim().to_owned()
    }

    /// Replaces the program, as an upgrade does; the first call only installs it.
    pub fn upgrade(&self) {
        let new = self.path("new");
        fs::copy(env!("CARGO_BIN_EXE_again-fleet"), &new).expect("a copy");
        fs::rename(new, self.path("again-fleet")).expect("renamed");
    }

    fn program(&self) -> PathBuf {
        let own = self.path("again-fleet");
        if own.exists() {
            return own;
        }
        env!("CARGO_BIN_EXE_again-fleet").into()
    }

    /// Arguments of each call of the script.
    pub fn calls(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.path("helper.calls")).unwrap_or_default();
        let calls = text.split("\n\0").filter(|call| !call.is_empty());
        calls
            .map(|call| call.split_terminator('\0').map(str::to_owned).collect())
            .collect()
    }

    /// Connects to the executor, and starts it for the first connection.
    pub fn connect(&self) -> UnixStream {
        let socket = self.path("executor");
        let mut started = self.started.lock().expect("alone");
        let lives = started
            .as_mut()
            .is_some_and(|child| child.try_wait().expect("a child").is_none());
        if !lives {
            let _ = fs::remove_file(&socket);
            let errors = fs::File::options()
                .create(true)
                .append(true)
                .open(self.path("errors"))
                .expect("a file");
            let child = Command::new("systemd-socket-activate")
                .arg("--listen")
                .arg(&socket)
                .args([
                    "--setenv=KEPT=1",
                    "--setenv=INVOCATION_ID=1",
                    "--setenv=JOURNAL_STREAM=1:2",
                ])
                .arg(format!(
                    "--setenv=AGAIN_FLEET_CONFIG={}",
                    self.path("again-fleet.toml").display()
                ))
                .arg(format!(
                    "--setenv=AGAIN_FLEET_STATE_DIR={}",
                    self.path("state").display()
                ))
                .arg(self.program())
                .args(["executor", "--idle", self.idle])
                .stdin(Stdio::null())
                .stderr(errors)
                .spawn();
            *started = Some(child.expect("systemd-socket-activate"));
        }
        let what = format!("who listens at {}", socket.display());
        wait_for(&what, SHORT, || UnixStream::connect(&socket).ok())
    }

    pub fn try_to_hand_over(&self, values: &[Vec<u8>]) -> io::Result<Vec<Answer>> {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(&ask(values).expect("a question"))?;
        let mut head = [0; HEAD];
        stream.read_exact(&mut head)?;
        let mut rest = vec![0; length(&head).expect("an answer")];
        stream.read_exact(&mut rest)?;
        Ok(answers(values.len(), &rest).expect("an answer"))
    }

    /// Asks for the outcome of a trigger; returns the answer, and the descriptors that come with
    /// it.
    pub fn became(&self, id: &Id) -> (Answer, Vec<OwnedFd>) {
        let mut stream = self.connect();
        let question = became(std::slice::from_ref(id)).expect("a question");
        stream.write_all(&question).expect("asked");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PIDFDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut head = [0; HEAD];
        let bytes = &mut [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        recvmsg(&stream, bytes, &mut control, flags).expect("an answer");
        let mut rest = vec![0; length(&head).expect("an answer")];
        stream.read_exact(&mut rest).expect("an answer");
        let pidfds = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(pidfds) => pidfds.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let answer = answers(1, &rest).expect("an answer").remove(0);
        (answer, pidfds.collect())
    }

    /// Hands over one value, and returns the answer.
    pub fn one(&self, value: &[u8]) -> Answer {
        self.hand_over(&[value.to_vec()]).remove(0)
    }

    pub fn hand_over(&self, values: &[Vec<u8>]) -> Vec<Answer> {
        self.try_to_hand_over(values)
            .unwrap_or_else(|e| panic!("{e}: {}", self.errors()))
    }

    pub fn errors(&self) -> String {
        fs::read_to_string(self.path("errors")).unwrap_or_default()
    }

    /// Whether the process has ended, or ends within a few seconds.
    pub fn ends(&self) -> bool {
        let mut started = self.started.lock().expect("alone");
        let child = started.as_mut().expect("it was started");
        let ended = || child.try_wait().expect("a child");
        ask_for(Duration::from_secs(10), Duration::from_millis(20), ended).is_some()
    }

    /// Waits until the process has ended because it was idle.
    pub fn wait_until_idle(&self) {
        let child = self.started.lock().expect("alone").take();
        let status = child.expect("it was started").wait().expect("a child");
        assert!(status.success(), "{status}: {}", self.errors());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = self.started.lock().expect("alone").as_mut() {
            let _ = (child.kill(), child.wait());
        }
    }
}

pub fn cancel(of: &Trigger) -> Trigger {
    Trigger {
        ask: Ask::Cancel,
        number: of.number + 1,
        ..of.clone()
    }
}
