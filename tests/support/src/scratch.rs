//! Directory per test, with every file that a run and `again` touch.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::command::{Ended, Started, answer, lossy};
use super::help::open_to_all;
use super::process::{Process, at_a_glance, of_directory};
use super::{
    SHORT, binary_under_test, copy_program, helper, rig_file, search_path, text, wait_for,
    wait_until, write_program,
};

/// Scratch directory and the processes started in it, which end when it is dropped.
pub struct Scratch {
    dir: TempDir,
    /// Working directory of commands, below the scratch directory.
    home: &'static str,
    environment: Vec<(String, String)>,
    /// Whether the real Puppet runs here, so that its own files count.
    pub(crate) has_puppet: bool,
    outputs: AtomicUsize,
    pub(crate) children: Vec<Child>,
    left: Left,
}

/// Processes that may still be running when the directory is dropped.
#[derive(Clone, Copy, PartialEq)]
enum Left {
    Nothing,
    /// Timers only, which are stopped first.
    Timers,
    /// Any process; it is ended.
    Anything,
}

impl Scratch {
    /// Creates a directory with the binary, the helper and the stand-in in `bin`, and settings that
    /// keep everything inside: no jitter, a cap too high to matter, and no influence of the
    /// machine's agent. At the end no process may be left.
    pub fn new() -> Scratch {
        Scratch::within(&std::env::temp_dir())
    }

    /// Creates the same below another directory.
    pub fn within(parent: &Path) -> Scratch {
        let scratch = Scratch::empty(parent, "work");
        for sub in ["work", "past"] {
            fs::create_dir(scratch.path(sub)).expect("a directory");
        }
        open_to_all(&scratch.path("past"), 0o777);
        scratch.settings("");
        scratch
    }

    /// Creates a directory as [`Scratch::new`] does, with the real Puppet's directories and
    /// modules. At the end pending timers are stopped, and no other process may be left.
    pub fn with_puppet() -> Scratch {
        let mut scratch = Scratch::empty(&std::env::temp_dir(), "work");
        scratch.has_puppet = true;
        scratch.left = Left::Timers;
        fs::create_dir(scratch.path("work")).expect("a directory");
        scratch.install_puppet();
        scratch.settings("");
        scratch
    }

    /// Creates a directory for an operator's tests: settings in the environment, and the default
    /// cap. Manifests of the stand-in are shell scripts ([`Scratch::shell`]), which find `again` as
    /// `$AGAIN` and the directory as `$HERE`. Processes that are left at the end are ended.
    pub fn for_operator() -> Scratch {
        let mut scratch = Scratch::empty(&std::env::temp_dir(), "");
        scratch.left = Left::Anything;
        fs::create_dir(scratch.path("past")).expect("a directory");
        let root = scratch.root();
        for (name, value) in [
            ("AGAIN_STATE_DIR", format!("{root}/state")),
            ("AGAIN_LOG_DIR", format!("{root}/log")),
            ("AGAIN_SCOPE", "never".to_owned()),
            ("AGAIN_JITTER", "0".to_owned()),
            ("TZ", "UTC".to_owned()),
            ("AGAIN", format!("{root}/bin/again")),
            ("HERE", root.clone()),
        ] {
            scratch.set(name, &value);
        }
        let summary = format!("lastrunfile = \"{root}/summary.yaml\"\n");
        scratch.write("again.toml", &summary);
        scratch
    }

    /// Creates a directory for a driver's tests: the state directory is the only setting, and a
    /// real Puppet has its files in `conf`. At the end no process may be left.
    pub fn for_driver() -> Scratch {
        let mut scratch = Scratch::empty(&std::env::temp_dir(), "");
        let root = scratch.root();
        for (name, value) in [
            ("HOME", root.clone()),
            ("TERM", "xterm".to_owned()),
            ("SHELL", "/bin/sh".to_owned()),
            ("AGAIN", format!("{root}/bin/again")),
            ("AGAIN_CONFIG", "/dev/null".to_owned()),
            ("AGAIN_STATE_DIR", format!("{root}/state")),
            ("AGAIN_SCOPE", "never".to_owned()),
        ] {
            scratch.set(name, &value);
        }
        scratch.write(
            "conf/puppet.conf",
            &format!(
                "[main]\nvardir = {root}/conf/var\npublicdir = {root}/conf/public\nrundir = {root}/conf/run\n\
                 logdir = {root}/conf/log\ncertname = rig.example\n"
            ),
        );
        scratch
    }

    fn empty(parent: &Path, home: &'static str) -> Scratch {
        super::sweep();
        let dir = tempfile::Builder::new()
            .prefix("again-test-support-")
            .tempdir_in(parent)
            .expect("a scratch directory");
        super::claim(dir.path());
        // Some tests and some Execs run as another user.
        open_to_all(dir.path(), 0o755);
        let mut scratch = Scratch {
            dir,
            home,
            environment: Vec::new(),
            has_puppet: false,
            outputs: AtomicUsize::new(0),
            children: Vec::new(),
            left: Left::Nothing,
        };
        for sub in ["bin", "outputs"] {
            fs::create_dir(scratch.path(sub)).expect("a directory");
        }
        copy_program(binary_under_test(), scratch.path("bin/again"));
        if fs::hard_link(helper(), scratch.path("bin/helper")).is_err() {
            copy_program(helper(), scratch.path("bin/helper"));
        }
        // Ruby reads this file; it is never executed.
        fs::copy(rig_file("stand-in.rb"), scratch.path("bin/puppet")).expect("the stand-in");
        let root = scratch.root();
        scratch.environment = [
            ("PATH", search_path().to_owned()),
            ("HOME", format!("{root}/work")),
            ("USER", "rig".to_owned()),
            ("LOGNAME", "rig".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("RIG_MARK", "two words, a=b and an ä".to_owned()),
            ("RIG_EMPTY", String::new()),
            ("AGAIN_CONFIG", format!("{root}/again.toml")),
            // The tests may run in a container whose first process may end early.
            ("AGAIN_CONTAINER", "stays".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        scratch
    }

    /// Returns a path below the directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    /// Returns a path below the directory as text.
    pub fn at(&self, relative: &str) -> String {
        text(self.path(relative))
    }

    /// Returns the directory as text, for manifests and arguments.
    pub fn root(&self) -> String {
        text(self.dir.path())
    }

    /// Writes a file below the directory, creating its parents; returns its path.
    pub fn write(&self, relative: &str, content: &str) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, content).expect("written");
        path
    }

    /// Writes an executable shell script; returns its path as text.
    pub fn script(&self, name: &str, text: &str) -> String {
        write_program(self.path(name), &format!("#!/bin/sh\n{text}\n"));
        self.at(name)
    }

    /// Returns the content of a file below the directory; empty if it does not exist.
    pub fn text(&self, relative: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(relative)).unwrap_or_default()).into_owned()
    }

    /// Releases a run that waits for this file.
    pub fn release(&self, name: &str) {
        self.write(name, "");
    }

    /// Writes the settings: all paths inside, no jitter, and more lines. Without Puppet, also a cap
    /// too high to matter, and Puppet files that do not exist, so that the machine's agent has no
    /// influence.
    pub fn settings(&self, more: &str) {
        let mut lines = format!(
            "state_dir = \"{}\"\nlog_dir = \"{}\"\n",
            self.at("state"),
            self.at("logs")
        );
        let none = |name: &str| format!("\"{}\"", self.at(&format!("puppet-has-none/{name}")));
        let others = [
            ("jitter", "0".to_owned()),
            ("max_runs", "100000".to_owned()),
            ("agent_catalog_run_lockfile", none("lock")),
            ("agent_disabled_lockfile", none("disabled")),
            ("lastrunfile", none("summary")),
            ("pidfile", none("pid")),
        ];
        for (key, value) in &others[..if self.has_puppet { 1 } else { others.len() }] {
            if !more.contains(&format!("{key} =")) {
                lines += &format!("{key} = {value}\n");
            }
        }
        self.write("again.toml", &format!("{lines}{more}\n"));
    }

    /// Sets a variable for everything that is started here from now on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.retain(|(other, _)| other != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Returns the environment of everything that is started here; it contains nothing from the
    /// test's own.
    pub fn environment(&self) -> Vec<(String, String)> {
        self.environment.clone()
    }

    /// Prepares a command in that environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(self.environment())
            .current_dir(self.path(self.home))
            .stdin(Stdio::null());
        command
    }

    /// Wraps a command so that system calls fail in it and its children: number and error of each.
    pub fn without(&self, calls: &[(&str, &str)], command: &Command) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        for (call, error) in calls {
            words.extend([
                self.path("bin/helper").into(),
                "without".into(),
                call.into(),
                error.into(),
                "--".into(),
            ]);
        }
        words.push(command.get_program().to_owned());
        words.extend(command.get_args().map(ToOwned::to_owned));
        let mut filtered = self.command(&words[0]);
        filtered.args(&words[1..]);
        filtered
    }

    /// Wraps a command so that it can reach neither the journal nor syslog, and `again` logs to a
    /// file.
    pub fn without_system_log(&self, command: &Command) -> Command {
        let socket = if cfg!(target_arch = "x86_64") {
            "41"
        } else {
            "198"
        };
        // 97 is EAFNOSUPPORT.
        self.without(&[(socket, "97")], command)
    }

    /// Prepares a whole command line in that environment.
    pub fn line(&self, words: &[&str]) -> Command {
        let mut command = self.command(words[0]);
        command.args(&words[1..]);
        command
    }

    /// Prepares `again WORDS`.
    pub fn again_command(&self, words: &[&str]) -> Command {
        let mut command = self.command(self.path("bin/again"));
        command.args(words);
        command
    }

    /// Runs `again` to its end.
    pub fn again(&self, words: &[&str]) -> Ended {
        answer(&mut self.again_command(words))
    }

    /// Runs `again`, which must succeed; returns its output.
    #[track_caller]
    pub fn again_well(&self, words: &[&str]) -> String {
        let answer = self.again(words);
        assert_eq!(answer.code, Some(0), "again {words:?}: {answer:?}");
        answer.out
    }

    /// Runs any command to its end.
    pub fn run(&self, program: &str, words: &[&str]) -> Ended {
        answer(self.command(program).args(words))
    }

    /// Starts a command with its outputs in separate files.
    pub fn start(&self, mut command: Command) -> Started {
        let (out, err) = (self.output("out"), self.output("err"));
        command
            .stdout(fs::File::create(&out).expect("created"))
            .stderr(fs::File::create(&err).expect("created"));
        Started::new(&mut command, Some(out), Some(err))
    }

    /// Starts a command that is killed with the directory at the latest.
    pub fn spawn(&mut self, mut command: Command) {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(command.spawn().expect("started"));
    }

    /// Returns a new file for a command's output; a test that fails shows all of them.
    pub(crate) fn output(&self, ending: &str) -> PathBuf {
        let number = self.outputs.fetch_add(1, Ordering::SeqCst);
        self.path(&format!("outputs/{number:05}.{ending}"))
    }

    /// Sends both outputs of a command to one file.
    pub fn with_output(&self, command: &mut Command) -> PathBuf {
        let path = self.output("both");
        let file = fs::File::create(&path).expect("created");
        command
            .stdout(file.try_clone().expect("duplicated"))
            .stderr(file);
        path
    }

    /// Returns the id of the only target.
    pub fn id(&self) -> String {
        let status = self.status();
        let targets = status["targets"].as_array().expect("targets");
        assert_eq!(targets.len(), 1, "{status:#}");
        targets[0]["id"].as_str().expect("an id").to_owned()
    }

    /// Returns the path of a target's record.
    pub fn record_of(&self, id: &str) -> PathBuf {
        self.path(&format!("state/targets/{id}/state.json"))
    }

    /// Prepares a command as another user, who may read the directory: `nobody`, of Debian and most
    /// others.
    pub fn as_nobody(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(program);
        command
    }

    /// Whether /proc is mounted with `hidepid`, so that no user sees the processes of others.
    pub fn hides_processes(&self) -> bool {
        let ours = format!("/proc/{}/stat", std::process::id());
        let read = self.as_nobody("cat").arg(ours).output();
        !read.expect("setpriv").status.success()
    }

    /// Returns the output of `again status --json`.
    pub fn status(&self) -> Value {
        self.status_of(&[])
    }

    /// Returns the output of `again status --json` with more options.
    pub fn status_of(&self, options: &[&str]) -> Value {
        let answer = self.again(&[&["status", "--json"], options].concat());
        assert!(matches!(answer.code, Some(0 | 3)), "{answer:?}");
        assert_eq!(answer.err, "");
        let status = answer.json();
        assert_eq!(status["unreadable"], serde_json::json!([]), "{status:#}");
        status
    }

    /// Returns every pending timer of every target.
    pub fn timers(&self) -> Vec<Value> {
        timers(&self.status())
    }

    /// Returns the timer of that name.
    pub fn timer(&self, name: &str) -> Option<Value> {
        self.timers()
            .into_iter()
            .find(|timer| timer["name"] == name)
    }

    pub fn wait_for_state(&self, name: &str, state: &str) -> Value {
        wait_for(&format!("timer {name} to be {state}"), SHORT, || {
            self.timer(name).filter(|timer| timer["state"] == state)
        })
    }

    /// Returns the waiter of the timer of that name.
    pub fn waiter(&self, name: &str) -> Process {
        let timer = self
            .timer(name)
            .unwrap_or_else(|| panic!("no timer {name}: {:#}", self.status()));
        let pid = timer["waiter"]["pid"].as_i64().expect("a pid") as i32;
        Process::now(pid).expect("the waiter")
    }

    /// Returns the records in the state directory, as they are on disk.
    pub fn records(&self, state: &str) -> Vec<Value> {
        fs::read_dir(self.path(state).join("targets"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|target| fs::read(target.path().join("state.json")).ok())
            .map(|text| serde_json::from_slice(&text).expect("a whole record"))
            .collect()
    }

    /// Returns the names of the timers' orders on disk.
    pub fn orders(&self, state: &str) -> Vec<String> {
        fs::read_dir(self.path(state).join("targets"))
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|target| {
                fs::read_dir(target.path().join("orders"))
                    .into_iter()
                    .flatten()
            })
            .flatten()
            .map(|order| order.file_name().into_string().expect("a plain name"))
            .collect()
    }

    /// Returns the lines of the history, oldest first.
    pub fn history(&self) -> Vec<Value> {
        // When two processes append at the same time, one may mistake the other's unfinished line
        // for a truncated one, and end it.
        self.text("state/history.jsonl")
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|e| panic!("history: {e}: {line}"))
            })
            .collect()
    }

    /// Returns the lines of the history of one kind (`requested`, `started`, `satisfied` …).
    pub fn history_of(&self, what: &str) -> Vec<Value> {
        let mut entries = self.history();
        entries.retain(|entry| entry["what"] == what);
        entries
    }

    /// Returns timer and reason of the history's entries of one kind.
    pub fn told(&self, what: &str) -> Vec<(String, String)> {
        let word = |entry: &Value, key: &str| entry[key].as_str().expect("a string").to_owned();
        self.history_of(what)
            .iter()
            .map(|entry| (word(entry, "timer"), word(entry, "reason")))
            .collect()
    }

    /// Returns the directory of the only target without running `again`, which would record the
    /// ends of reruns.
    pub fn target(&self) -> PathBuf {
        let mut entries = fs::read_dir(self.path("state/targets")).expect("targets");
        entries.next().expect("a target").expect("readable").path()
    }

    /// Returns the record of the only target.
    pub fn record(&self) -> Value {
        let text = fs::read(self.target().join("state.json")).expect("a record");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Waits until there is a timer in this state.
    #[track_caller]
    pub fn timer_in_state(&self, state: &str) -> Value {
        wait_for(&format!("a timer that is {state}"), SHORT, || {
            self.timers().into_iter().find(|timer| {
                // The waiter has not noticed yet that the run has ended.
                let early = state == "waiting" && timer["due_at"].is_null();
                timer["state"] == state && !early
            })
        })
    }

    /// Returns the running processes that belong to the directory: through their program,
    /// arguments, environment or working directory.
    pub fn processes(&self) -> Vec<Process> {
        of_directory(self.dir.path())
    }

    /// Returns those of them that are recognized quickly, through their program or arguments.
    pub fn processes_at_a_glance(&self) -> Vec<Process> {
        at_a_glance(self.dir.path())
    }

    /// Returns the waiters: `again` in the background.
    pub fn waiters(&self) -> Vec<Process> {
        Process::with_program_of(self.dir.path())
            .into_iter()
            .filter(|process| is_waiter(&process.raw_command()))
            .collect()
    }

    /// Returns the processes that run the binary under test: waiters, and requesters while they
    /// last.
    pub fn agains(&self) -> Vec<Process> {
        let binary = self.path("bin/again");
        Process::with_program_of(self.dir.path())
            .into_iter()
            .filter(|process| process.link("exe").as_deref() == Some(&binary))
            .collect()
    }

    /// Returns the only waiter.
    pub fn only_waiter(&self) -> Process {
        wait_for("one waiter", SHORT, || match self.agains()[..] {
            [waiter] => Some(waiter),
            _ => None,
        })
    }

    /// Waits until nothing runs and nothing is pending: after that no further run can come. A rerun
    /// that has overwritten its arguments and environment with a title can only be recognized from
    /// the record; anything else that is pending when nothing runs stays pending.
    #[track_caller]
    pub fn settle(&self, timeout: Duration) {
        wait_until("everything to end", timeout, || {
            if !self.processes().is_empty() {
                return false;
            }
            let status = self.again(&["status"]);
            let is_titled = status.out.contains("\n  running   ");
            assert!(
                status.code == Some(3) || is_titled || !self.processes().is_empty(),
                "something is pending: {status:?}"
            );
            status.code == Some(3)
        });
    }

    /// Checks that nothing runs, nothing is pending, and no driver has left a file.
    #[track_caller]
    pub fn is_clean(&self) {
        wait_until("everything to end", SHORT, || self.processes().is_empty());
        for directory in ["state/drivers", "state/reruns"] {
            let left: Vec<_> = fs::read_dir(self.path(directory))
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect();
            assert!(left.is_empty(), "left behind: {left:?}");
        }
        assert_eq!(self.again(&["status"]).code, Some(3));
    }

    /// Prepares `again converge OPTIONS -- COMMAND`.
    pub fn converge(&self, options: &[&str], command: &[String]) -> Command {
        let mut converge = self.again_command(&["converge"]);
        converge.args(options).arg("--").args(command);
        converge
    }

    /// Prepares the same on a terminal of its own; input written to it is typed.
    pub fn on_terminal(&self, options: &[&str], command: &str) -> Command {
        let line = format!(
            "exec {} converge {} -- {command}",
            self.at("bin/again"),
            options.join(" ")
        );
        let mut script = self.line(&["script", "--quiet", "--return", "--flush", "--command"]);
        script.args([&line, "/dev/null"]).stdin(Stdio::piped());
        script
    }

    /// Returns path and text of all logs of reruns, oldest first.
    pub fn logs(&self) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        let mut dirs = vec![self.path("logs")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    dirs.push(path);
                } else if !path.is_symlink() {
                    let text = fs::read(&path).unwrap_or_default();
                    found.push((path, String::from_utf8_lossy(&text).into_owned()));
                }
            }
        }
        found.sort_by_key(|(path, _)| fs::metadata(path).and_then(|m| m.modified()).ok());
        found
    }

    /// Checks that nothing is pending or running, and that there is no process, order on disk or
    /// recorded rerun: so no run can follow.
    pub fn assert_nothing_left(&self) {
        let status = self.again(&["status", "--json"]);
        assert_eq!(status.code, Some(3), "{}", status.out);
        let left: Vec<String> = self.waiters().iter().map(|p| p.title()).collect();
        assert!(left.is_empty(), "processes left: {left:?}");
        assert_eq!(self.orders("state"), Vec::<String>::new(), "orders left");
        for record in self.records("state") {
            assert_eq!(record["timers"], serde_json::json!({}), "{record:#}");
            assert_eq!(record["running"], serde_json::json!([]), "{record:#}");
        }
        let reruns = fs::read_dir(self.path("state/reruns"))
            .into_iter()
            .flatten()
            .flatten();
        assert_eq!(reruns.count(), 0, "reruns left");
    }

    /// Waits until nothing is pending or running.
    pub fn wait_until_settled(&self) {
        wait_until("everything to settle", SHORT, || {
            self.again(&["status"]).code == Some(3) && self.waiters().is_empty()
        });
    }

    /// Stops everything that is pending and running in the state directory.
    pub fn stop_all(&self) {
        self.again_well(&["stop", "--run"]);
    }

    /// Allows processes to be left at the end: the scratch directory ends them without failing the
    /// test.
    pub fn forgive(&mut self) {
        self.left = Left::Anything;
    }

    /// Prints all outputs of a test that failed.
    fn tell(&self) {
        let entries = fs::read_dir(self.path("outputs")).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        files.push(self.path("state/history.jsonl"));
        let outputs = files.into_iter().map(|path| {
            let text = fs::read(&path).unwrap_or_default();
            (path, String::from_utf8_lossy(&text).into_owned())
        });
        for (path, said) in outputs.chain(self.logs()) {
            if !said.is_empty() {
                eprintln!("--- {}\n{said}", path.display());
            }
        }
        if let Ok(status) = self.again_command(&["status"]).output() {
            eprintln!("--- status\n{}", lossy(&status.stdout));
        }
        for process in self.processes() {
            eprintln!("--- still running: {}", process.describe());
        }
    }

    /// Ends the processes that may be left, first with `again stop`; returns its output.
    fn stop_what_may_be_left(&self) -> String {
        let said = match self.left {
            Left::Nothing => String::new(),
            Left::Timers => self.again(&["stop"]).said(),
            Left::Anything => {
                let disabled = self.again(&["disable", "the test is over"]).said();
                disabled + &self.again(&["stop", "--run"]).said()
            }
        };
        // A process that has written its last output may not have ended yet.
        let end = Instant::now() + Duration::from_secs(30);
        while !self.processes().is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        said
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
        let said = self.stop_what_may_be_left();
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let left = self.processes();
        let titles: Vec<String> = left.iter().map(|process| process.describe()).collect();
        for process in left {
            process.end();
        }
        // The directory must be removable whatever a test did to it.
        for entry in fs::read_dir(self.dir.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.path().is_dir() {
                let _ = fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o755));
            }
        }
        if self.left != Left::Anything && !std::thread::panicking() {
            assert!(
                titles.is_empty(),
                "left running: {titles:#?}\nagain said: {said}"
            );
        }
    }
}

/// Returns every pending timer in a status.
pub fn timers(status: &Value) -> Vec<Value> {
    let targets = status["targets"].as_array().expect("targets");
    targets
        .iter()
        .flat_map(|target| target["timers"].as_array().expect("timers").clone())
        .collect()
}

/// Whether a command line is a waiter's: started as one, or with its title set.
pub fn is_waiter(cmdline: &[u8]) -> bool {
    cmdline.starts_with(b"again: timer '") || cmdline.split(|b| *b == 0).nth(1) == Some(b"wait")
}
