//! A directory per test with the binary under test, a stand-in for puppet, and the state of both.
//!
//! The stand-in (`stand-in.rb`) has the shape of a puppet run and nothing else of Puppet's. Its manifests are Ruby.
#![allow(dead_code, unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::rig::{
    Process, SHORT, binary_under_test, copy_program, repository, text, wait_for, wait_until,
};

/// Everything that one test touches. When it goes, no process of it may be left.
pub struct Stage {
    dir: TempDir,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Answer {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A run of the stand-in under way, or ended.
pub struct Run {
    child: Child,
    pub process: Process,
}

/// What a run of the stand-in noted of itself.
#[derive(Debug)]
pub struct Past {
    dir: PathBuf,
}

/// What a run heard from `again`.
#[derive(Debug)]
pub struct Asked {
    pub code: i32,
    /// Whether its pipe had no writer left as soon as it had ended.
    pub pipe_closed: bool,
    /// The pipe's name in /proc.
    pub pipe: String,
    pub output: String,
}

/// A line of what `helper stamp` wrote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// CLOCK_BOOTTIME in nanoseconds.
    pub at: u64,
    pub pid: i32,
    pub words: Vec<String>,
}

/// CLOCK_BOOTTIME in nanoseconds.
pub fn now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).expect("a clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// The small real programs of helper.c, built once.
fn helper() -> &'static Path {
    static HELPER: OnceLock<PathBuf> = OnceLock::new();
    HELPER.get_or_init(|| {
        let source = repository().join("tests/process/helper.c");
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("again-test-helper");
        // Both test programs may be at it at once, and again inside a namespace.
        let mine = built.with_extension(format!("{}", now()));
        let done = Command::new("cc")
            .args(["-O1", "-o"])
            .args([mine.as_os_str(), source.as_os_str()])
            .status()
            .expect("cc, which rustc links with too");
        assert!(done.success(), "helper.c does not compile");
        fs::rename(&mine, &built).expect("renamed");
        built
    })
}

impl Stage {
    pub fn new() -> Stage {
        Stage::within(&std::env::temp_dir())
    }

    pub fn within(parent: &Path) -> Stage {
        let dir = tempfile::Builder::new()
            .prefix("again-stage-")
            .tempdir_in(parent)
            .expect("a directory");
        // Some tests act as another user.
        open_to_all(dir.path(), 0o755);
        let stage = Stage { dir };
        for sub in ["bin", "work", "runs", "out"] {
            fs::create_dir(stage.path(sub)).expect("a directory");
        }
        open_to_all(&stage.path("runs"), 0o777);
        copy_program(binary_under_test(), stage.path("bin/again"));
        copy_program(helper(), stage.path("bin/helper"));
        let stand_in = repository().join("tests/process/stand-in.rb");
        copy_program(stand_in, stage.path("bin/puppet"));
        stage.settings("");
        stage
    }

    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    /// A path as text.
    pub fn at(&self, relative: &str) -> String {
        text(self.path(relative))
    }

    /// Writes the settings: everything in here, no jitter, a cap that is out of the way, and more lines.
    pub fn settings(&self, more: &str) {
        let mut lines = format!(
            "state_dir = \"{}\"\nlog_dir = \"{}\"\n",
            self.at("state"),
            self.at("logs")
        );
        // Puppet's own files, so that no agent of the machine's has a say.
        let none = |name: &str| format!("\"{}\"", self.at(&format!("puppet-has-none/{name}")));
        for (key, value) in [
            ("jitter", "0".to_owned()),
            ("max_runs", "100000".to_owned()),
            ("agent_catalog_run_lockfile", none("lock")),
            ("agent_disabled_lockfile", none("disabled")),
            ("lastrunfile", none("summary")),
            ("pidfile", none("pid")),
        ] {
            if !more.contains(&format!("{key} =")) {
                lines += &format!("{key} = {value}\n");
            }
        }
        self.write("again.toml", &format!("{lines}{more}\n"));
    }

    pub fn write(&self, relative: &str, content: &str) -> PathBuf {
        let path = self.path(relative);
        fs::write(&path, content).expect("written");
        path
    }

    /// Lets a run that holds for this file go on.
    pub fn release(&self, name: &str) {
        self.write(name, "");
    }

    /// The environment of everything that is started here.
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", self.at("work")),
            ("USER", "stage".to_owned()),
            ("LOGNAME", "stage".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("STAGE_MARK", "two words, a=b and an ä".to_owned()),
            ("STAGE_EMPTY", String::new()),
            ("AGAIN_CONFIG", self.at("again.toml")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// A command in that environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(self.environment())
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
        command
    }

    /// Runs `again` to its end.
    pub fn again(&self, words: &[&str]) -> Answer {
        answer(self.command(self.path("bin/again")).args(words))
    }

    /// [`Stage::again`] that has to succeed; gives its output.
    pub fn again_well(&self, words: &[&str]) -> String {
        let answer = self.again(words);
        assert_eq!(answer.code, Some(0), "again {words:?}: {answer:?}");
        answer.out
    }

    /// The words that run the stand-in.
    pub fn puppet(&self) -> Vec<OsString> {
        vec![
            "ruby".into(),
            "--disable-gems".into(),
            self.path("bin/puppet").into(),
        ]
    }

    /// `puppet apply NAME.pp` with this manifest, not started yet.
    pub fn apply(&self, name: &str, manifest: &str) -> Command {
        self.write(&format!("work/{name}.pp"), manifest);
        let words = [OsString::from("apply"), format!("{name}.pp").into()];
        self.puppet_command(&words)
    }

    /// `puppet agent --onetime --no-daemonize --no-splay --certname NAME`, with this manifest.
    pub fn agent(&self, name: &str, manifest: &str) -> Command {
        self.write(&format!("work/{name}.pp"), manifest);
        let words = [
            "agent",
            "--onetime",
            "--no-daemonize",
            "--no-splay",
            "--certname",
            name,
        ];
        self.puppet_command(&words.map(OsString::from))
    }

    /// The stand-in with these words.
    pub fn puppet_command(&self, words: &[OsString]) -> Command {
        let all = self.puppet();
        let mut command = self.command(&all[0]);
        command.args(&all[1..]).args(words);
        self.with_output(&mut command);
        command
    }

    /// Sends output to a file of its own, so that a failing test can show it.
    pub fn with_output(&self, command: &mut Command) {
        let path = self.path(&format!("out/{}", now()));
        let file = File::create(path).expect("created");
        command
            .stdout(file.try_clone().expect("duplicated"))
            .stderr(file);
    }

    /// What the runs of this manifest noted, in order; those that have begun only.
    pub fn runs(&self, name: &str) -> Vec<Past> {
        let mut dirs: Vec<PathBuf> = fs::read_dir(self.path(&format!("runs/{name}")))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.join("started").exists())
            .collect();
        dirs.sort();
        dirs.into_iter().map(|dir| Past { dir }).collect()
    }

    /// Waits until there are as many, and all have ended.
    pub fn wait_for_runs(&self, name: &str, count: usize) -> Vec<Past> {
        wait_for(&format!("{count} runs of {name}"), SHORT, || {
            let runs = self.runs(name);
            (runs.len() >= count && runs.iter().all(|run| run.ended().is_some())).then_some(runs)
        })
    }

    /// Waits until the first run of this manifest has heard as many answers.
    pub fn wait_for_answers(&self, name: &str, count: usize) -> Vec<Asked> {
        wait_for(&format!("{count} answers"), SHORT * 2, || {
            let asked = self.runs(name).first()?.asked();
            (asked.len() >= count).then_some(asked)
        })
    }

    pub fn stamps(&self) -> Vec<Stamp> {
        self.stamps_in("stamps")
    }

    /// What `helper stamp` wrote there.
    pub fn stamps_in(&self, file: &str) -> Vec<Stamp> {
        let text = fs::read_to_string(self.path(file)).unwrap_or_default();
        text.lines()
            .map(|line| {
                let mut words = line.split(' ').map(str::to_owned);
                let mut number = || words.next().expect("a number");
                let (at, pid) = (number(), number());
                Stamp {
                    at: at.parse().expect("nanoseconds"),
                    pid: pid.parse().expect("a pid"),
                    words: words.collect(),
                }
            })
            .collect()
    }

    /// The id of the only target there is.
    pub fn id(&self) -> String {
        let status = self.status();
        let targets = status["targets"].as_array().expect("targets");
        assert_eq!(targets.len(), 1, "{status:#}");
        targets[0]["id"].as_str().expect("an id").to_owned()
    }

    /// The record of a target.
    pub fn record(&self, id: &str) -> PathBuf {
        self.path(&format!("state/targets/{id}/state.json"))
    }

    /// A command as another user, who may read the stage: `nobody`, of Debian and most others.
    pub fn as_nobody(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(program);
        command
    }

    pub fn status(&self) -> Value {
        self.status_of(&[])
    }

    /// `again status --json` with more options.
    pub fn status_of(&self, options: &[&str]) -> Value {
        let answer = self.again(&[&["status", "--json"], options].concat());
        assert!(matches!(answer.code, Some(0 | 3)), "{answer:?}");
        assert_eq!(answer.err, "");
        let status: Value = serde_json::from_str(&answer.out).expect("JSON");
        assert_eq!(status["unreadable"], serde_json::json!([]), "{status:#}");
        status
    }

    /// Every pending timer of every target.
    pub fn timers(&self) -> Vec<Value> {
        timers(&self.status())
    }

    /// The timer of that name.
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

    /// The process that holds the timer of that name.
    pub fn waiter(&self, name: &str) -> Process {
        let timer = self
            .timer(name)
            .unwrap_or_else(|| panic!("no timer {name}: {:#}", self.status()));
        let pid = timer["waiter"]["pid"].as_i64().expect("a pid") as i32;
        Process::now(pid).expect("the waiter")
    }

    /// The records in the state directory, as they are written.
    pub fn records(&self, state: &str) -> Vec<Value> {
        fs::read_dir(self.path(state).join("targets"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|target| fs::read(target.path().join("state.json")).ok())
            .map(|text| serde_json::from_slice(&text).expect("a whole record"))
            .collect()
    }

    /// What the timers' orders on disk are called.
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

    /// The history's entries of one kind: timer and reason.
    pub fn history(&self, what: &str) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.path("state/history.jsonl")).unwrap_or_default();
        // Of two that append at once, one may take the other's unfinished line for one that was cut short, and end it.
        text.lines()
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
            .filter(|entry| entry["what"] == what)
            .map(|entry| {
                let word = |key: &str| entry[key].as_str().expect("a string").to_owned();
                (word("timer"), word("reason"))
            })
            .collect()
    }

    /// Every process that was started from here and lives.
    pub fn processes(&self) -> Vec<Process> {
        let root = self.dir.path().as_os_str().as_bytes().to_vec();
        let me = std::process::id() as i32;
        let is_here = |process: &Process| {
            let mentions = |block: &[u8]| block.windows(root.len()).any(|window| window == root);
            let exe = process.link("exe").unwrap_or_default();
            process.pid != me
                && (mentions(exe.as_os_str().as_bytes()) || mentions(&process.raw_command()))
        };
        Process::all().into_iter().filter(is_here).collect()
    }

    /// The waiters among them: `again` in the background.
    pub fn waiters(&self) -> Vec<Process> {
        self.processes()
            .into_iter()
            .filter(|process| is_waiter(&process.raw_command()))
            .collect()
    }

    /// Nothing pending, nothing running, no process, no order on disk, no rerun noted: so nothing can come of it.
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

    /// Stops what is pending and running, in whatever state directories there are.
    pub fn stop_all(&self) {
        self.again_well(&["stop", "--run"]);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let left = self.processes();
        // Where in the kernel it is tells what it waits for.
        let describe = |process: &Process| {
            let file = |name: &str| {
                let text = fs::read_to_string(format!("/proc/{}/{name}", process.pid));
                text.unwrap_or_default().trim().to_owned()
            };
            let state = process.status("State").unwrap_or_default();
            format!(
                "{} {state} {} {}",
                process.title(),
                file("wchan"),
                file("syscall")
            )
        };
        let titles: Vec<String> = left.iter().map(describe).collect();
        if std::thread::panicking() {
            let status = self.again(&["status"]).out;
            eprintln!("processes left: {titles:?}\n{status}");
            for out in fs::read_dir(self.path("out"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let said = fs::read_to_string(out.path()).unwrap_or_default();
                if !said.is_empty() {
                    eprintln!("a run said: {said}");
                }
            }
        }
        for process in &left {
            let _ = process.signal(Signal::SIGKILL);
        }
        if !std::thread::panicking() {
            assert!(titles.is_empty(), "left behind: {titles:?}");
        }
    }
}

/// Runs a command to its end, with its outputs apart.
pub fn answer(command: &mut Command) -> Answer {
    // A file that was just written is busy while another thread's child, forked at that
    // moment, has not yet closed its copy of the descriptor.
    let busy = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ExecutableFileBusy;
    let mut done = command.output();
    while done.as_ref().is_err_and(busy) {
        std::thread::yield_now();
        done = command.output();
    }
    let done = done.expect("started");
    Answer {
        code: done.status.code(),
        out: String::from_utf8(done.stdout).expect("UTF-8"),
        err: String::from_utf8(done.stderr).expect("UTF-8"),
    }
}

/// Every pending timer in a status.
pub fn timers(status: &Value) -> Vec<Value> {
    let targets = status["targets"].as_array().expect("targets");
    targets
        .iter()
        .flat_map(|target| target["timers"].as_array().expect("timers").clone())
        .collect()
}

/// Whether a command line is a waiter's: started as such, or with its title set.
pub fn is_waiter(cmdline: &[u8]) -> bool {
    cmdline.starts_with(b"again: timer '") || cmdline.split(|b| *b == 0).nth(1) == Some(b"wait")
}

/// A line, which has to be of the form `again: OUTCOME: CAUSE (EVIDENCE)…`. Gives the outcome.
#[track_caller]
pub fn assert_line(said: &str) -> String {
    let line = said
        .strip_suffix('\n')
        .unwrap_or_else(|| panic!("no line end: {said:?}"));
    assert!(!line.contains('\n'), "more than one line: {said:?}");
    let rest = line
        .strip_prefix("again: ")
        .unwrap_or_else(|| panic!("not ours: {line}"));
    let (outcome, cause) = rest
        .split_once(": ")
        .unwrap_or_else(|| panic!("no outcome: {line}"));
    let outcomes = [
        "scheduled",
        "refused",
        "nothing to do",
        "error",
        "stopped",
        "resumed",
    ];
    assert!(outcomes.contains(&outcome), "what outcome is that: {line}");
    let open = cause
        .find(" (")
        .unwrap_or_else(|| panic!("no evidence in brackets: {line}"));
    assert!(
        cause[open..].contains(')'),
        "no evidence in brackets: {line}"
    );
    assert!(
        !cause.starts_with(char::is_uppercase) && !line.ends_with('.'),
        "not lower case, or with a full stop: {line}"
    );
    outcome.to_owned()
}

/// Makes a path what everybody may use.
pub fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
}

/// Starts a run.
pub fn start(command: &mut Command) -> Run {
    let child = command.spawn().expect("started");
    let pid = child.id() as i32;
    // It may have ended already; then it is nobody.
    let process = Process::now(pid).unwrap_or(Process { pid, start: 0 });
    Run { child, process }
}

impl Run {
    /// Waits for its end, which has to be a good one.
    #[track_caller]
    pub fn wait(mut self) {
        let status = self.child.wait().expect("waited for");
        assert!(status.success(), "the run ended with {status}");
    }

    /// Waits for its end, whatever that is.
    pub fn reap(&mut self) {
        self.child.wait().expect("waited for");
    }

    /// Ends it with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Past {
    pub fn raw(&self, name: &str) -> Vec<u8> {
        fs::read(self.dir.join(name))
            .unwrap_or_else(|e| panic!("{}: {e}", self.dir.join(name).display()))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.raw(name)).expect("UTF-8")
    }

    /// A line of its /proc/PID/status.
    pub fn status(&self, name: &str) -> String {
        let prefix = format!("{name}:");
        let status = self.text("status");
        let line = status.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {name}"))
            .trim()
            .to_owned()
    }

    /// A field of its /proc/PID/stat, as in proc_pid_stat(5).
    pub fn stat(&self, field: usize) -> i64 {
        let stat = self.text("stat");
        let (_, rest) = stat.rsplit_once(')').expect("a stat line");
        let word = rest.split_whitespace().nth(field - 3).expect("a field");
        word.parse().expect("a number")
    }

    pub fn pid(&self) -> i32 {
        let stat = self.text("stat");
        stat.split(' ')
            .next()
            .expect("a pid")
            .parse()
            .expect("a pid")
    }

    /// Its descriptors, as number and what they are.
    pub fn descriptors(&self) -> Vec<(i32, String)> {
        self.text("fds")
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(fd, to)| (fd.parse().expect("a number"), to.to_owned()))
            .collect()
    }

    /// Its environment in order, less what belongs to one rerun.
    pub fn environment(&self) -> Vec<OsString> {
        let raw = self.raw("environ");
        let ours = ["AGAIN_CHAIN=", "AGAIN_RUN=", "AGAIN_TIMER="];
        raw.split(|byte| *byte == 0)
            .filter(|entry| !entry.is_empty())
            .filter(|entry| !ours.iter().any(|name| entry.starts_with(name.as_bytes())))
            .map(|entry| OsString::from_vec(entry.to_vec()))
            .collect()
    }

    /// The value of a variable.
    pub fn variable(&self, name: &str) -> Option<String> {
        let prefix = format!("{name}=");
        let raw = self.raw("environ");
        raw.split(|byte| *byte == 0)
            .find_map(|entry| entry.strip_prefix(prefix.as_bytes()))
            .map(|value| String::from_utf8_lossy(value).into_owned())
    }

    pub fn started(&self) -> u64 {
        self.text("started").parse().expect("nanoseconds")
    }

    pub fn ended(&self) -> Option<u64> {
        fs::read_to_string(self.dir.join("ended"))
            .ok()?
            .parse()
            .ok()
    }

    /// What it heard from `again`, in the order it asked.
    pub fn asked(&self) -> Vec<Asked> {
        (1..)
            .map(|n| self.dir.join(format!("ask-{n:03}")))
            .take_while(|path| path.exists())
            .map(|path| {
                let text = fs::read_to_string(path).expect("readable");
                let (head, output) = text.split_once('\n').expect("a head");
                let words: Vec<&str> = head.split(' ').collect();
                Asked {
                    code: words[0].parse().expect("a status"),
                    pipe_closed: words[1] == "closed",
                    pipe: words[2].to_owned(),
                    output: output.to_owned(),
                }
            })
            .collect()
    }
}

/// Runs `body` in namespaces of its own, made by unshare(1) with these options: as this same test, in a process below.
/// `test` is the test's full name.
pub fn in_namespaces(options: &[&str], test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "AGAIN_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == test) {
        return body();
    }
    let me = std::env::current_exe().expect("our own path");
    let done = Command::new("unshare")
        .args(options)
        .arg("--")
        .arg(me)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .stdin(Stdio::null())
        .output()
        .expect("unshare, of util-linux");
    let said = [&done.stdout[..], &done.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{test} inside its namespaces: {}\n{said}",
        done.status
    );
    // What it printed, without what the test program says of itself, lest one test is counted twice.
    let begun = format!("test {test} ... ");
    said.lines()
        .map(|line| line.strip_prefix(&begun).unwrap_or(line))
        .filter(|line| !["", "ok", "running 1 test"].contains(line))
        .filter(|line| !line.starts_with("test result: "))
        .for_each(|line| println!("{line}"));
}

/// A process that has nothing to do with anything, and goes with its owner.
pub struct Bystander(Child);

impl Bystander {
    pub fn new() -> Bystander {
        let mut sleep = Command::new("/bin/sleep");
        sleep.arg("1000").stdin(Stdio::null());
        let child = sleep.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Bystander(child.expect("sleep"))
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Whether it runs still, undisturbed.
    pub fn is_unharmed(&mut self) -> bool {
        // A signal that was sent has been delivered by now, or is pending.
        let pending = ["ShdPnd", "SigPnd"]
            .map(|line| Process::now(self.pid()).and_then(|process| process.status(line)));
        let none = Some("0000000000000000".to_owned());
        pending == [none.clone(), none] && matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sleeps until a point on CLOCK_BOOTTIME.
pub fn sleep_until(at: u64) {
    let left = at.saturating_sub(now());
    std::thread::sleep(Duration::from_nanos(left));
}

/// The numbers of a sorted sample: median, 99th percentile, most.
pub fn spread(sample: &mut [u64]) -> (u64, u64, u64) {
    sample.sort_unstable();
    let at = |part: usize| sample[(sample.len() - 1) * part / 100];
    (at(50), at(99), at(100))
}

/// A deterministic generator for tests (xorshift64*), so that a seed says which cases were run.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// How long something took.
pub fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = what();
    (done, begun.elapsed())
}
