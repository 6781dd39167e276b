//! A booted Debian: systemd as pid 1, cron, login sessions, and a Puppet agent that makes real
//! runs out of its cached catalog. One machine per test, thrown away with it.
//!
//! The machine lives in `tests/lab/boot`, which holds every mount and process of it and tears
//! all of it down when the pipe to this program closes, however this program ended.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use super::command::Ended;
use super::net::{Host, Net};
use super::process::Process;
use super::{ask_for, repository};

/// Time limit for one command inside the machine.
const COMMAND_LIMIT: Duration = Duration::from_secs(240);
/// Time limit for one step of the machine: boot, reboot, shutdown.
const MACHINE_LIMIT: Duration = Duration::from_secs(300);

/// Catalog run, as Puppet itself recorded it (`lab-stamp.rb` in the image).
#[derive(Debug, Clone)]
pub struct Run {
    pub pid: u64,
    /// Start in seconds since the boot of the machine.
    pub started: f64,
    pub ended: Option<f64>,
    /// Wall clock at the start.
    pub started_at: f64,
    pub ended_at: Option<f64>,
    pub boot: String,
    /// Control group in which the run started.
    pub group: String,
    pub argv: Vec<String>,
    pub stdin: String,
    pub stdout: String,
    pub tty: i64,
    pub env: Value,
}

impl Run {
    /// Returns one variable of the run's environment. HOME, PATH, `AGAIN_*` and a few others are
    /// recorded.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env[name].as_str()
    }
}

/// Booted machine.
pub struct Lab {
    supervisor: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    leader: Cell<u32>,
}

fn here() -> PathBuf {
    repository().join("tests/lab")
}

/// Image of a machine: a script in tests/lab that prints the path of a root directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// A node.
    Node,
    /// Node with a Puppet server and the backends of a fleet, none of which is started.
    Server,
}

impl Image {
    fn root(self) -> &'static str {
        static NODE: OnceLock<String> = OnceLock::new();
        static SERVER: OnceLock<String> = OnceLock::new();
        let (root, script) = match self {
            Image::Node => (&NODE, "image"),
            Image::Server => (&SERVER, "server-image"),
        };
        root.get_or_init(|| built(script))
    }
}

fn built(script: &str) -> String {
    let built = Command::new(here().join(script))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("a script of tests/lab can be started");
    assert!(
        built.status.success(),
        "the lab has no image, see above; `tests/lab/setup` installs what it needs, and needs root"
    );
    String::from_utf8(built.stdout).unwrap().trim().to_owned()
}

/// Path of the program under test, `dist/again` unless LAB_BINARY names another.
fn binary() -> PathBuf {
    let path = std::env::var_os("LAB_BINARY")
        .map_or_else(|| repository().join("dist/again"), PathBuf::from);
    assert!(
        path.is_file(),
        "{} is not there: run `make build` first",
        path.display()
    );
    path.canonicalize().unwrap()
}

impl Lab {
    /// Boots a machine with the program and the module in place.
    pub fn boot() -> Self {
        let lab = Self::boot_with(&[]);
        // A copy, because the class may replace it, which a mount would prevent.
        lab.sh("install -m 755 /srv/again /usr/local/bin/again");
        lab
    }

    /// Boots a machine with the module and these files or directories of the host, each at its path
    /// inside; the program is in /srv only.
    pub fn boot_with(binds: &[(&Path, &str)]) -> Self {
        Self::boot_as(Image::Node, &[], binds)
    }

    /// Boots a machine on a network.
    pub fn boot_on(net: &Net, host: &Host<'_>, image: Image, binds: &[(&Path, &str)]) -> Self {
        let hub = net.hub.id().to_string();
        let address = format!("{}/24", host.address);
        let options = [
            "--hostname",
            host.name,
            "--net",
            &hub,
            host.port(),
            &address,
        ];
        Self::boot_as(image, &options, binds)
    }

    fn boot_as(image: Image, options: &[&str], binds: &[(&Path, &str)]) -> Self {
        let binds = binds.iter().flat_map(|(ours, inside)| {
            ["--bind".to_owned(), format!("{}:{inside}", ours.display())]
        });
        let module = repository().join("puppet-module");
        let mut supervisor = Command::new(here().join("boot"))
            .arg("--bind")
            .arg(format!("{}:/srv/again", binary().display()))
            .arg("--bind")
            .arg(format!(
                "{}:/etc/puppet/code/modules/common",
                module.display()
            ))
            .args(binds)
            .args(options)
            .arg(image.root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            // A Ctrl-C on the terminal is for the test program; the machine notices the closed
            // pipe.
            .process_group(0)
            .spawn()
            .expect("tests/lab/boot can be started");
        let input = supervisor.stdin.take();
        let (tell, answers) = channel();
        let output = supervisor.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let lab = Lab {
            supervisor,
            input,
            answers,
            leader: Cell::new(0),
        };
        lab.start("boot");
        lab
    }

    fn order(&self, order: &str) -> String {
        let mut input = self.input.as_ref().expect("the lab is there");
        writeln!(input, "{order}").expect("the lab's supervisor lives");
        self.answers
            .recv_timeout(MACHINE_LIMIT)
            .unwrap_or_else(|e| panic!("no answer of the lab to `{order}`: {e}"))
    }

    fn start(&self, order: &str) {
        let answer = self.order(order);
        let pid = answer.strip_prefix("up ").and_then(|p| p.parse().ok());
        self.leader.set(
            pid.unwrap_or_else(|| panic!("the lab did not come up after `{order}`: {answer}")),
        );
    }

    /// Pid of the machine's init, as seen on the host.
    pub fn leader(&self) -> u32 {
        self.leader.get()
    }

    /// Pid of the script that holds the machine.
    pub fn supervisor(&self) -> u32 {
        self.supervisor.id()
    }

    /// Reboots the machine in an orderly way: the same root, a new boot.
    pub fn reboot(&self) {
        self.start("reboot");
    }

    /// Boots again after [`Lab::shutdown`] or [`Lab::power_cut`].
    pub fn boot_again(&self) {
        self.start("boot");
    }

    /// Kills everything in the machine immediately.
    pub fn power_cut(&self) {
        assert_eq!(self.order("cut"), "down");
    }

    /// Shuts the machine down in an orderly way.
    pub fn shutdown(&self) {
        assert_eq!(self.order("off"), "down");
    }

    fn command(&self, argv: &[&str]) -> Command {
        let leader = self.leader.get().to_string();
        let mut command = Command::new("nsenter");
        // A process that enters from outside is in no group of the container. It gets a group that
        // is not a service, scope or session, so that nothing kills the processes left in it.
        command
            .args(["--target", &leader, "--all", "--root", "/bin/sh", "-c"])
            .arg("cd /root && mkdir -p /sys/fs/cgroup/lab && echo $$ >/sys/fs/cgroup/lab/cgroup.procs && exec \"$@\"")
            .args(["sh", "/usr/bin/env"])
            .args(argv)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .env("HOME", "/root")
            .env("USER", "root")
            .env("LOGNAME", "root")
            .stdin(Stdio::null());
        command
    }

    /// Runs a command inside, as root, in no unit.
    pub fn exec(&self, argv: &[&str]) -> Ended {
        self.exec_with_input(argv, None)
    }

    fn exec_with_input(&self, argv: &[&str], input: Option<&[u8]>) -> Ended {
        // Files instead of pipes, so that a process left behind with the descriptors open cannot
        // delay the test.
        let mut out = tempfile::tempfile().unwrap();
        let mut err = tempfile::tempfile().unwrap();
        let mut command = self.command(argv);
        if let Some(input) = input {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(input).unwrap();
            file.rewind().unwrap();
            command.stdin(file);
        }
        let mut child = command
            .stdout(out.try_clone().unwrap())
            .stderr(err.try_clone().unwrap())
            .spawn()
            .expect("nsenter can be started");
        let process = Process::now(child.id() as i32).unwrap_or(Process { pid: 0, start: 0 });
        let status = end_of(&mut child, COMMAND_LIMIT)
            .unwrap_or_else(|| panic!("in the lab {argv:?} took longer than {COMMAND_LIMIT:?}"));
        let output = std::process::Output {
            status,
            stdout: from_start(&mut out),
            stderr: from_start(&mut err),
        };
        Ended::new(process, output)
    }

    /// Runs a shell script inside, which must succeed, and returns its output.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.exec(&["sh", "-euc", script]).ok()
    }

    /// Starts a command inside without waiting for it. Dropping it does not end it.
    pub fn spawn(&self, argv: &[&str], stdin: Stdio) -> Child {
        self.command(argv)
            .stdin(stdin)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nsenter can be started")
    }

    /// Writes a file inside, and creates its directory.
    pub fn write(&self, path: &str, text: &str) {
        let script = "mkdir -p \"$(dirname \"$1\")\" && cat >\"$1\"";
        self.exec_with_input(&["sh", "-euc", script, "sh", path], Some(text.as_bytes()))
            .ok();
    }

    /// Returns the content of a file inside, empty if it does not exist.
    pub fn read(&self, path: &str) -> String {
        self.exec(&["cat", path]).out
    }

    /// Returns the seconds since the machine's boot, as processes inside see them.
    pub fn uptime(&self) -> f64 {
        let text = self.sh("cat /proc/uptime");
        text.split(' ').next().unwrap().parse().unwrap()
    }

    /// Returns the wall clock.
    pub fn wall(&self) -> f64 {
        self.sh("date +%s.%N").trim().parse().unwrap()
    }

    /// Returns the machine's boot id.
    pub fn boot_id(&self) -> String {
        self.sh("cat /proc/sys/kernel/random/boot_id")
            .trim()
            .to_owned()
    }

    /// Repeats a check until it returns a value. The limit in seconds is for an idle machine; a
    /// busy one gets six times that.
    #[track_caller]
    pub fn wait_until<T>(&self, what: &str, limit: u64, mut ask: impl FnMut() -> Option<T>) -> T {
        let limit = Duration::from_secs(6 * limit);
        ask_for(limit, Duration::from_millis(100), &mut ask).unwrap_or_else(|| {
            panic!(
                "{what}: not within {limit:?}\nruns: {:#?}\nagain status: {}\nhistory: {}\njournal: {}",
                self.runs(),
                self.exec(&["again", "status", "--json"]).said(),
                self.history(),
                self.journal("40"),
            )
        })
    }

    fn journal(&self, lines: &str) -> String {
        self.exec(&[
            "journalctl",
            "--no-pager",
            "-o",
            "short-precise",
            "-n",
            lines,
        ])
        .out
    }

    /// Returns the log of a unit from all boots.
    pub fn log_of(&self, unit: &str) -> String {
        self.exec(&["journalctl", "--no-pager", "-o", "cat", "-u", unit])
            .out
    }

    /// Returns every catalog run so far, in order. A daemonised agent appears once, as the daemon.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for line in self.read("/var/log/lab/runs").lines() {
            let stamp: Value = serde_json::from_str(line).expect("a stamp");
            let text = |key: &str| stamp[key].as_str().unwrap_or_default().to_owned();
            let (pid, uptime) = (
                stamp["pid"].as_u64().unwrap(),
                stamp["uptime"].as_f64().unwrap(),
            );
            if stamp["what"] == "start" {
                runs.push(Run {
                    pid,
                    started: uptime,
                    ended: None,
                    started_at: stamp["wall"].as_f64().unwrap(),
                    ended_at: None,
                    boot: text("boot"),
                    group: text("group"),
                    argv: stamp["argv"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|a| a.as_str().unwrap().to_owned())
                        .collect(),
                    stdin: text("stdin"),
                    stdout: text("stdout"),
                    tty: stamp["tty"].as_i64().unwrap(),
                    env: stamp["env"].clone(),
                });
            } else if let Some(run) = runs
                .iter_mut()
                .rev()
                .find(|r| r.pid == pid && r.boot == stamp["boot"].as_str().unwrap())
            {
                run.ended = Some(uptime);
                run.ended_at = stamp["wall"].as_f64();
            }
        }
        runs
    }

    /// Returns the runs that `again` started, according to their environment.
    pub fn reruns(&self) -> Vec<Run> {
        let mut runs = self.runs();
        runs.retain(|run| run.var("AGAIN_CHAIN").is_some());
        runs
    }

    /// Waits for this number of finished reruns.
    #[track_caller]
    pub fn wait_for_reruns(&self, count: usize, limit: u64) -> Vec<Run> {
        self.wait_until(&format!("{count} reruns have ended"), limit, || {
            let runs = self.reruns();
            (runs.iter().filter(|r| r.ended.is_some()).count() >= count).then_some(runs)
        })
    }

    /// `again status --json`.
    pub fn status(&self) -> Value {
        let out = self.exec(&["again", "status", "--json"]);
        assert!(matches!(out.code, Some(0 | 3)), "again status: {out:#?}");
        out.json()
    }

    /// Returns all pending timers of all targets.
    pub fn timers(&self) -> Vec<Value> {
        self.status()["targets"]
            .as_array()
            .expect("status has targets")
            .iter()
            .flat_map(|target| {
                target["timers"]
                    .as_array()
                    .expect("a target has timers")
                    .clone()
            })
            .collect()
    }

    /// Waits until there is one pending timer and its waiter is alive; returns the timer.
    #[track_caller]
    pub fn pending(&self, limit: u64) -> Value {
        self.wait_until("a timer is pending", limit, || {
            let timers = self.timers();
            assert!(timers.len() < 2, "more than one timer: {timers:#?}");
            timers.into_iter().find(|t| t["waiter"]["alive"] == true)
        })
    }

    /// Returns the history as it is on disk.
    pub fn history(&self) -> String {
        self.read("/var/lib/again/history.jsonl")
    }

    /// Returns the scopes of waiters and reruns that systemd knows.
    pub fn scopes(&self) -> Vec<String> {
        let out = self
            .sh("systemctl list-units --all --plain --no-legend --no-pager --type=scope 'again*'");
        out.lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    }

    /// Returns the control group of a process in the unified hierarchy.
    pub fn group_of(&self, pid: u64) -> Option<String> {
        let text = self.read(&format!("/proc/{pid}/cgroup"));
        text.lines()
            .find_map(|l| l.strip_prefix("0::"))
            .map(str::to_owned)
    }

    /// Writes the manifest at the path of the tests' units, and makes it the agent's cached
    /// catalog.
    pub fn catalog(&self, manifest: &str) {
        self.write("/root/site.pp", manifest);
        let made = self.exec(&["lab-catalog", "/root/site.pp"]);
        assert!(
            made.code == Some(0),
            "the catalog could not be compiled: {made:#?}"
        );
    }

    /// Writes the manifest at the path of the tests' units.
    pub fn manifest(&self, manifest: &str) {
        self.write("/root/site.pp", manifest);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() && self.leader.get() != 0 {
            eprintln!(
                "--- the lab's last journal lines\n{}---",
                self.journal("30")
            );
        }
        // The end of its input makes the supervisor tear the machine down.
        drop(self.input.take());
        if end_of(&mut self.supervisor, Duration::from_secs(30)).is_none() {
            let _ = self.supervisor.kill();
            let _ = self.supervisor.wait();
        }
    }
}

/// Waits for a child's end; kills it and returns none if that does not come in time.
fn end_of(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let ended = ask_for(limit, Duration::from_millis(5), || {
        child.try_wait().expect("a child can be waited for")
    });
    if ended.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    ended
}

fn from_start(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}
