//! Node: its settings, its service and its executor as processes, and the real `again` with a state
//! directory of its own. A trigger runs a script that counts its runs, or a real `puppet apply`.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use again_base::model::Span;
use again_fleet::ask::{self, Answer, How, Question};
use again_fleet::policy::fire::Request;
use again_fleet::wire::lineage::{Cause, Lineage};
use again_fleet::wire::name::Id;
use again_test_support::{ask_for, wait_for, wait_until, write_program};
use serde_json::Value;

use crate::ca::Ca;
use crate::servers::{Kind, Server};

/// Default command of a trigger: it writes its arguments, and what `again` reports about the run,
/// into a file of its own, and continues while the file `hold` exists.
const RUN: &str = r#"#!/bin/sh
DIR/note "$@"
while [ -e DIR/hold ]; do sleep 0.05; done
[ ! -e DIR/fails ]
"#;

/// Script that notes a run, and changes nothing.
const NOTE: &str = r#"#!/bin/sh
AGAIN status --this-run --json >"DIR/runs/.$$" || [ $? = 3 ] || exit
printf '%s\n' "$@" >>"DIR/runs/.$$"
mv "DIR/runs/.$$" "DIR/runs/$(date +%s%N)"
"#;

/// Longer than any step of a test may take on a busy machine.
pub const LONG: Duration = Duration::from_secs(240);

pub struct Node {
    pub name: &'static str,
    dir: tempfile::TempDir,
    serve: Mutex<Option<Child>>,
    take: Mutex<Option<Child>>,
    systemd: Mutex<Option<Systemd>>,
    run_cmd: Mutex<Vec<String>>,
    /// Words before each of the node's commands.
    before: Mutex<Vec<String>>,
}

/// Receiver of the service's messages to systemd. Like systemd, it reads them immediately, because
/// a sender blocks when too many are unread.
struct Systemd {
    socket: Arc<UnixDatagram>,
    told: Receiver<String>,
}

impl Systemd {
    fn at(path: &Path) -> Systemd {
        let _ = fs::remove_file(path);
        let socket = Arc::new(UnixDatagram::bind(path).expect("a socket"));
        let (tell, told) = mpsc::channel();
        let ear = Arc::clone(&socket);
        thread::spawn(move || {
            let mut words = [0; 4000];
            loop {
                match ear.recv(&mut words) {
                    Ok(length @ 1..) => {
                        let words = String::from_utf8_lossy(&words[..length]);
                        let _ = tell.send(words.into_owned());
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => return,
                }
            }
        });
        Systemd { socket, told }
    }

    /// Returns the next message.
    fn hears(&self) -> Option<String> {
        self.told.recv_timeout(LONG).ok()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // Ends the thread that receives.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Run, as it saw itself.
#[derive(Debug)]
pub struct Run {
    pub arguments: Vec<String>,
    /// Triggers that the run satisfied, and their origins.
    pub triggers: Vec<Id>,
    pub origins: Lineage,
}

impl Node {
    /// Creates a node and starts its processes.
    pub fn new(name: &'static str, server: &Server) -> Node {
        let node = Node::off(name, server);
        node.take();
        node.start();
        node
    }

    /// Creates a node without processes.
    pub fn off(name: &'static str, server: &Server) -> Node {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node {
            name,
            dir,
            serve: Mutex::new(None),
            take: Mutex::new(None),
            systemd: Mutex::new(None),
            run_cmd: Mutex::default(),
            before: Mutex::default(),
        };
        for made in ["run", "runs", "puppet"] {
            fs::create_dir(node.path(made)).expect("made");
        }
        node.write(
            "again.toml",
            "state_dir = 'DIR/again'\nlog_dir = 'DIR/logs'\nscope = 'never'\ncontainer = 'stays'\njitter = 0\nmax_runs = 100000\n",
        );
        node.program("note", NOTE);
        node.program("puppet it", RUN);
        node.runs_this(&[&node.at("puppet it"), "--test"]);
        node.certify(name);
        node.set(server);
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn at(&self, name: &str) -> String {
        self.path(name).to_str().expect("a plain path").to_owned()
    }

    /// Replaces `DIR` with the node's directory, `AGAIN` with `again`, and `FLEET` with the program
    /// under test and the node's settings.
    fn filled(&self, text: &str) -> String {
        let fleet = format!(
            "{} --config {}",
            self.words(env!("CARGO_BIN_EXE_again-fleet")).join(" "),
            self.at("again-fleet.toml")
        );
        let again = format!(
            "AGAIN_CONFIG={} {}",
            self.at("again.toml"),
            self.words(&self.helper()).join(" ")
        );
        let again = format!("/usr/bin/env {again}");
        text.replace("FLEET", &fleet)
            .replace("AGAIN ", &format!("{again} "))
            .replace("DIR", self.dir.path().to_str().expect("a plain path"))
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), self.filled(text)).expect("written");
    }

    pub fn program(&self, name: &str, text: &str) {
        write_program(self.path(name), &self.filled(text));
    }

    /// Sets the command that triggers run from now on; it takes effect with the next settings.
    pub fn runs_this(&self, words: &[&str]) {
        let words = words.iter().map(|word| (*word).to_owned());
        *self.run_cmd.lock().expect("alone") = words.collect();
    }

    /// Makes triggers run a real `puppet apply` with this manifest.
    pub fn runs_puppet(&self, manifest: &str) {
        self.write("site.pp", manifest);
        let words = self.puppet();
        self.runs_this(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Command line of `puppet apply` with the node's manifest.
    pub fn puppet(&self) -> Vec<String> {
        let (conf, manifest) = (self.at("puppet"), self.at("site.pp"));
        let words = ["puppet", "apply", "--confdir", &conf, "--vardir", &conf];
        let more = ["--publicdir", &conf, "--color=false", &manifest];
        // Two runs that create Puppet's usual directories at the same moment conflict.
        let others = ["--rundir", &conf, "--logdir", &conf];
        words
            .iter()
            .chain(&others)
            .chain(&more)
            .map(|word| (*word).to_owned())
            .collect()
    }

    /// Replaces the node's certificate and key with those of this name, as Puppet does.
    pub fn certify(&self, name: &str) {
        for (from, to) in [
            (format!("{name}.pem"), "cert.pem"),
            (format!("{name}.key"), "key.pem"),
            ("crl.pem".to_owned(), "crl.pem"),
        ] {
            fs::write(self.path("new"), Ca::get().read(&from)).expect("written");
            fs::rename(self.path("new"), self.path(to)).expect("renamed");
        }
    }

    /// Writes the settings, with this backend.
    pub fn set(&self, server: &Server) {
        let backend = match server.kind {
            Kind::Etcd => "etcd",
            Kind::Nats => "nats",
        };
        let mut text = format!(
            "backend = '{backend}'\nendpoints = ['localhost:{}']\nnamespace = 'test'\ncertname = '{name}'\naccept = ['*.test', '{name}']\nspread = 0\nrun_cmd = {:?}\n",
            server.port,
            self.run_cmd.lock().expect("alone"),
            name = self.name,
        );
        let files = [
            // The runs of the tests start in this directory too: an apply is identified by its
            // directory.
            ("cwd", std::env::current_dir().expect("a directory")),
            ("cert", self.path("cert.pem")),
            ("key", self.path("key.pem")),
            ("ca", Ca::get().path("ca.pem")),
            ("crl", self.path("crl.pem")),
            ("helper", self.helper().into()),
            ("run_dir", self.path("run")),
            ("state_dir", self.path("state")),
            ("spool_dir", self.path("spool")),
        ];
        for (key, path) in files {
            text.push_str(&format!("{key} = {path:?}\n"));
        }
        fs::write(self.path("again-fleet.toml"), text).expect("written");
    }

    /// Replaces the line of a setting, or adds it.
    pub fn set_also(&self, line: &str) {
        let path = self.path("again-fleet.toml");
        let text = fs::read_to_string(&path).expect("settings");
        let key = line.split_inclusive('=').next().expect("a key");
        let others = text.lines().filter(|one| !one.starts_with(key));
        let all: Vec<&str> = others.chain([line]).collect();
        fs::write(path, all.join("\n") + "\n").expect("written");
    }

    /// Runs `again` of this node with these arguments.
    pub fn again(&self, words: &[&str]) -> Output {
        let mut command = self.below(&self.helper());
        command.env("AGAIN_CONFIG", self.path("again.toml"));
        command.env("AGAIN_FLEET_STATE_DIR", self.path("state"));
        command.args(words).output().expect("the helper")
    }

    /// Records of this kind in the history of `again`.
    pub fn history(&self, what: &str) -> Vec<Value> {
        let text = self.again(&["history", "--json"]).stdout;
        let text = String::from_utf8(text).expect("UTF-8");
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        lines.filter(|line: &Value| line["what"] == what).collect()
    }

    /// Command of the program under test.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.below(env!("CARGO_BIN_EXE_again-fleet"));
        command
            .env("AGAIN_CONFIG", self.path("again.toml"))
            .arg("--config")
            .arg(self.path("again-fleet.toml"))
            .args(words)
            .env_remove("TERM")
            .stdin(Stdio::null());
        command
    }

    fn errors(&self) -> fs::File {
        let mut options = fs::File::options();
        let opened = options.create(true).append(true).open(self.path("errors"));
        opened.expect("a file")
    }

    /// Log of the node's processes.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("errors")).unwrap_or_default()
    }

    fn activated(&self, socket: &str, command: &[String]) -> Child {
        let socket = self.path("run").join(socket);
        let _ = fs::remove_file(&socket);
        // Between bind(2) and listen(2) the socket refuses connections.
        let listening = format!("Listening on {}", socket.display());
        let times = || self.log().matches(&listening).count();
        let before = times();
        let child = mortal("systemd-socket-activate")
            .arg("--listen")
            .arg(&socket)
            .arg(format!(
                "--setenv=AGAIN_FLEET_CONFIG={}",
                self.path("again-fleet.toml").display()
            ))
            .arg(format!(
                "--setenv=AGAIN_CONFIG={}",
                self.path("again.toml").display()
            ))
            .args(command)
            .stdin(Stdio::null())
            .stderr(self.errors())
            .spawn();
        let child = child.expect("systemd-socket-activate");
        until("a socket", || times() > before);
        child
    }

    /// Starts the executor through its socket: it starts with the first request.
    pub fn take(&self) {
        self.take_with(&[]);
    }

    /// Starts the executor so that it is killed as it enters its nth system call that others could
    /// notice.
    pub fn take_killed_at(&self, n: u64) {
        self.take_with(&self.killed_at(n));
    }

    /// Words before a command so that it is killed at its nth system call that others could notice.
    fn killed_at(&self, n: u64) -> Vec<String> {
        let _ = fs::remove_file(self.path("killed"));
        let helper = again_test_support::helper().to_str().expect("a plain path");
        let words = [
            helper,
            "killed-at",
            &n.to_string(),
            &self.at("killed"),
            "--",
        ];
        words.map(str::to_owned).to_vec()
    }

    /// Sets the wall clock ahead by this number of seconds, or behind if it is negative. This
    /// applies to all processes that start from now on, and to those that started after the first
    /// call.
    pub fn set_ahead(&self, seconds: i64) {
        fs::write(self.path("new-clock"), seconds.to_string()).expect("written");
        fs::rename(self.path("new-clock"), self.path("clock")).expect("renamed");
        self.comes_after(&["/usr/bin/env", &format!("SHIFT_CLOCK={}", self.at("clock"))]);
        self.set_also(&format!("helper = '{}'", self.helper()));
    }

    /// Starts the node's processes from now on in time namespaces whose CLOCK_BOOTTIME is ahead by
    /// this number of seconds.
    pub fn set_later(&self, seconds: u32) {
        let offset = format!("--boottime={seconds}");
        self.comes_after(&["/usr/bin/unshare", "--time", &offset, "--"]);
    }

    fn comes_after(&self, words: &[&str]) {
        let words = words.iter().map(|word| (*word).to_owned());
        *self.before.lock().expect("alone") = words.collect();
    }

    /// Words that start a program, with those that come before it.
    fn words(&self, program: &str) -> Vec<String> {
        let before = self.before.lock().expect("alone").clone();
        before.into_iter().chain([program.to_owned()]).collect()
    }

    fn below(&self, program: &str) -> Command {
        let words = self.words(program);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// Path of `again`: `AGAIN_BIN`, or what `make build` built; if the node has a clock of its
    /// own, the program that uses it.
    fn helper(&self) -> String {
        if self.path("clock").exists() {
            return env!("CARGO_BIN_EXE_again-shifted").to_owned();
        }
        let helper = again_test_support::binary_under_test();
        helper.to_str().expect("a plain path").to_owned()
    }

    /// Starts the executor and the service with these variables in their environment.
    pub fn start_in(&self, variables: &[&str]) {
        let env = ["env"].iter().chain(variables);
        let env: Vec<String> = env.map(|word| (*word).to_owned()).collect();
        self.take_with(&env);
        self.start_with(&env);
    }

    /// Whether a process was killed at its nth system call.
    pub fn was_killed(&self) -> bool {
        self.path("killed").exists()
    }

    fn take_with(&self, before: &[String]) {
        let program = self.words(env!("CARGO_BIN_EXE_again-fleet"));
        let words = ["executor", "--idle", "1h"].map(str::to_owned);
        let command = [before, &program, &words].concat();
        let child = self.activated("executor", &command);
        *self.take.lock().expect("alone") = Some(child);
    }

    /// Kills the executor.
    pub fn kill_take(&self) {
        let mut child = self.take.lock().expect("alone").take().expect("it runs");
        child.kill().and_then(|()| child.wait()).expect("its end");
    }

    /// Starts the service through its socket, with the first client.
    pub fn start_by_socket(&self) {
        let command = [env!("CARGO_BIN_EXE_again-fleet"), "serve"].map(str::to_owned);
        let child = self.activated("trigger", &command);
        *self.serve.lock().expect("alone") = Some(child);
    }

    /// Starts the service, and waits until it is ready.
    pub fn start(&self) {
        self.start_with(&[]);
    }

    /// Starts the service with these words before its command, and waits until it is ready.
    fn start_with(&self, before: &[String]) {
        let systemd = Systemd::at(&self.path("notify"));
        self.spawn(before);
        let told = systemd.hears().unwrap_or_else(|| panic!("{}", self.log()));
        assert_eq!(told.trim(), "READY=1");
        *self.systemd.lock().expect("alone") = Some(systemd);
    }

    /// Starts the service so that it is killed as it enters its nth system call that others could
    /// notice.
    pub fn start_killed_at(&self, n: u64) {
        self.spawn(&self.killed_at(n));
    }

    fn spawn(&self, before: &[String]) {
        let program = self.words(env!("CARGO_BIN_EXE_again-fleet"));
        let words = [before, &program].concat();
        let child = mortal(&words[0])
            .args(&words[1..])
            .arg("serve")
            .arg("--config")
            .arg(self.path("again-fleet.toml"))
            .env("NOTIFY_SOCKET", self.path("notify"))
            .stdin(Stdio::null())
            .stderr(self.errors())
            .spawn();
        *self.serve.lock().expect("alone") = Some(child.expect("the service"));
    }

    /// Returns the service's next message to systemd.
    pub fn tells(&self) -> String {
        let systemd = self.systemd.lock().expect("alone");
        let told = systemd.as_ref().expect("it runs").hears();
        told.expect("a word")
    }

    pub fn pid(&self) -> u32 {
        self.serve
            .lock()
            .expect("alone")
            .as_ref()
            .expect("it runs")
            .id()
    }

    /// Kills the service, as `kill -9` does.
    pub fn kill(&self) {
        let mut child = self.serve.lock().expect("alone").take().expect("it runs");
        child.kill().and_then(|()| child.wait()).expect("its end");
    }

    /// Restarts the service after it was killed, or was about to be.
    pub fn start_anew(&self) {
        self.kill();
        self.start();
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.pid().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }

    /// Waits until the service has ended.
    pub fn ended(&self) -> ExitStatus {
        let mut child = self.serve.lock().expect("alone").take().expect("it runs");
        until("its end", || child.try_wait().expect("a child").is_some());
        child.wait().expect("a child")
    }

    /// Ends the service as systemd does.
    pub fn stop(&self) {
        self.signal("-TERM");
        let status = self.ended();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Returns the runs that triggers have started, in order.
    pub fn runs(&self) -> Vec<Run> {
        let listed = fs::read_dir(self.path("runs")).expect("runs");
        let mut names: Vec<String> = listed
            .map(|one| one.expect("one").file_name().into_string().expect("plain"))
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        let read = |name: String| fs::read_to_string(self.path("runs").join(name)).expect("a run");
        names.into_iter().map(|name| run(&read(name))).collect()
    }

    /// Ids of all triggers that were run, each once per run.
    pub fn ran(&self) -> Vec<Id> {
        let runs = self.runs();
        runs.into_iter().flat_map(|run| run.triggers).collect()
    }

    /// Waits until this trigger was run; it must then be the only one since the last call.
    #[track_caller]
    pub fn runs_once(&self, id: &Id) {
        let is_run = || self.ran().contains(id).then_some(());
        let done = ask_for(LONG, Duration::from_millis(20), is_run).is_some();
        assert!(done, "{id} is not run: {}", self.log());
        let times = self.ran().iter().filter(|one| *one == id).count();
        assert_eq!(times, 1, "{}", self.log());
    }

    pub fn connect(&self) -> UnixStream {
        let socket = self.path("run/trigger");
        let stream = UnixStream::connect(&socket).unwrap_or_else(|e| panic!("{e}: {}", self.log()));
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream
    }

    /// Sends a request, and returns the service's answers up to its death; nothing if it died
    /// before.
    pub fn try_to_fire(&self, request: &Request) -> Vec<String> {
        let question = Question::Fire {
            request: request.clone(),
            wait: false,
        };
        let question = ask::ask(&question).expect("a question");
        let socket = self.path("run/trigger");
        wait_for("an answer", LONG, || {
            let stream = UnixStream::connect(&socket);
            let asked = stream.and_then(|mut stream| {
                stream.set_read_timeout(Some(LONG))?;
                stream.write_all(&question)?;
                Ok(stream)
            });
            match asked {
                Ok(stream) => Some(Answers(stream).map(word).collect()),
                Err(_) => self.was_killed().then(Vec::new),
            }
        })
    }

    /// Sends a question to the service.
    pub fn ask(&self, question: &Question) -> Answers {
        let mut stream = self.connect();
        stream
            .write_all(&ask::ask(question).expect("a question"))
            .expect("asked");
        Answers(stream)
    }

    /// Sends a request, and returns all answers.
    pub fn fire(&self, request: &Request) -> Vec<String> {
        let request = request.clone();
        self.ask(&Question::Fire {
            request,
            wait: false,
        })
        .all()
    }

    pub fn how(&self) -> How {
        match self.ask(&Question::HowAreYou).next() {
            Some(Answer::How(how)) => *how,
            other => panic!("{other:?}"),
        }
    }

    /// Whether the service reports an empty outbox. False if it dies meanwhile.
    pub fn is_done(&self) -> bool {
        let asked = UnixStream::connect(self.path("run/trigger")).and_then(|mut stream| {
            stream.set_read_timeout(Some(LONG))?;
            stream.write_all(&ask::ask(&Question::HowAreYou).expect("a question"))?;
            Ok(Answers(stream).next())
        });
        matches!(asked, Ok(Some(Answer::How(how))) if how.outbox.triggers == 0)
    }

    /// Waits until the service is connected to the backend, or is not.
    #[track_caller]
    pub fn is_linked(&self, is_up: bool) {
        until("the link", || self.how().link.is_up == is_up);
    }
}

fn run(text: &str) -> Run {
    let (said, arguments) = text.split_once('\n').expect("a line");
    let said: Value = serde_json::from_str(said).expect("JSON");
    let origin = &said["this_run"]["origin"];
    let triggers = origin["triggers"].as_array().into_iter().flatten();
    let id = |one: &Value| one["id"].as_str().expect("an id").parse().expect("an id");
    let origins = (!origin.is_null()).then(|| origin["origins"].clone());
    Run {
        arguments: arguments.lines().map(str::to_owned).collect(),
        triggers: triggers.map(id).collect(),
        origins: origins.map_or_else(Lineage::default, |all| {
            serde_json::from_value(all).expect("a lineage")
        }),
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in [&mut self.serve, &mut self.take] {
            if let Some(child) = child.get_mut().expect("alone").as_mut() {
                let _ = (child.kill(), child.wait());
            }
        }
        // Runs that were started for triggers end as well.
        let _ = fs::remove_file(self.path("hold"));
        self.again(&["stop", "--run"]);
        if std::thread::panicking() {
            eprintln!("{} said:\n{}", self.name, self.log());
        }
    }
}

/// Command that is killed when this test ends, in whatever way that ends.
fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// Answers of the service, as they arrive.
pub struct Answers(pub UnixStream);

impl Iterator for Answers {
    type Item = Answer;

    fn next(&mut self) -> Option<Answer> {
        let mut head = [0; ask::HEAD];
        self.0.read_exact(&mut head).ok()?;
        let mut rest = vec![0; ask::length_of_answer(&head).expect("an answer")];
        self.0.read_exact(&mut rest).ok()?;
        Some(ask::answer(&rest).expect("an answer"))
    }
}

impl Answers {
    /// Returns the next answer as text.
    pub fn word(&mut self) -> String {
        word(self.next().expect("an answer"))
    }

    /// Returns all answers before the final `end`, which must come.
    pub fn all(self) -> Vec<String> {
        let mut words: Vec<String> = self.map(word).collect();
        assert_eq!(words.pop().as_deref(), Some("end"), "{words:?}");
        words
    }
}

/// Formats an answer as text.
pub fn word(answer: Answer) -> String {
    match answer {
        Answer::Delivered(node) => format!("delivered {node}"),
        Answer::Kept(node) => format!("kept {node}"),
        Answer::Failed(node, why) => format!("failed {node}: {why}"),
        Answer::Said(summary) => format!(
            "said {}{}",
            summary.backend,
            summary.away.map_or("", |_| " away")
        ),
        Answer::Progress { target, news, .. } => format!("{target} {news:?}"),
        Answer::Refused(why) => format!("refused: {why}"),
        Answer::End => "end".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A new request for these nodes.
pub fn request(name: &str, targets: &[&str]) -> Request {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock");
    Request {
        id: Id::from_bits(now.as_nanos()),
        targets: targets
            .iter()
            .map(|target| target.parse().expect("a certname"))
            .collect(),
        name: name.parse().expect("a name"),
        cause: Cause::Person,
        on_behalf: None,
        run: Lineage::default(),
        delta: Span::ZERO,
        ttl: Span::from_secs(3600),
        parallel: 0,
        stop_after: 0,
        selection: None,
        is_open: false,
    }
}

#[track_caller]
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    within(LONG, what, is_so);
}

#[track_caller]
pub fn within(patience: Duration, what: &str, is_so: impl FnMut() -> bool) {
    wait_until(what, patience, is_so);
}
