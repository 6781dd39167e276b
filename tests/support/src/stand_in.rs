use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::Command;

use super::scratch::Scratch;
use super::{LONG, SHORT, wait_for};

/// Record that a run of the stand-in made of itself.
#[derive(Debug)]
pub struct Past {
    dir: PathBuf,
}

/// Answer of `again` that a run received.
#[derive(Debug)]
pub struct Asked {
    pub code: i32,
    /// Whether the pipe had no writer left as soon as `again` had ended.
    pub pipe_closed: bool,
    /// Name of the pipe in /proc.
    pub pipe: String,
    pub output: String,
}

/// Line that `helper stamp` wrote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Time as CLOCK_BOOTTIME in nanoseconds.
    pub at: u64,
    pub pid: i32,
    pub words: Vec<String>,
}

impl Scratch {
    /// Returns the words that run the stand-in.
    pub fn puppet(&self) -> Vec<OsString> {
        vec![
            "ruby".into(),
            "--disable-gems".into(),
            self.path("bin/puppet").into(),
        ]
    }

    /// Prepares `puppet apply NAME.pp` with this manifest.
    pub fn apply(&self, name: &str, manifest: &str) -> Command {
        self.write(&format!("work/{name}.pp"), manifest);
        let words = [OsString::from("apply"), format!("{name}.pp").into()];
        self.puppet_command(&words)
    }

    /// Prepares `puppet agent --onetime --no-daemonize --no-splay --certname NAME`, with this
    /// manifest.
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

    /// Prepares a run of the agent with this certificate name, like [`Scratch::agent`], but with a
    /// manifest of its own, which `--logdest` names.
    pub fn agent_of(&self, certname: &str, name: &str, manifest: &str) -> Command {
        let path = self.write(&format!("work/{name}.pp"), manifest);
        let words = "agent --onetime --no-daemonize --no-splay --certname";
        let words = words.split(' ').chain([certname, "--logdest"]);
        let words: Vec<OsString> = words.map(OsString::from).chain([path.into()]).collect();
        self.puppet_command(&words)
    }

    /// Prepares the stand-in with these words.
    pub fn puppet_command(&self, words: &[OsString]) -> Command {
        let all = self.puppet();
        let mut command = self.command(&all[0]);
        command.args(&all[1..]).args(words);
        self.with_output(&mut command);
        command
    }

    /// Returns the records of this manifest's runs that have begun, in order.
    pub fn runs(&self, name: &str) -> Vec<Past> {
        let mut dirs: Vec<PathBuf> = fs::read_dir(self.path(&format!("past/{name}")))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.join("started").exists())
            .collect();
        dirs.sort();
        dirs.into_iter().map(|dir| Past { dir }).collect()
    }

    /// Waits until there are `count` runs, and all have ended.
    pub fn wait_for_runs(&self, name: &str, count: usize) -> Vec<Past> {
        wait_for(&format!("{count} runs of {name}"), LONG, || {
            let runs = self.runs(name);
            (runs.len() >= count && runs.iter().all(|run| run.ended().is_some())).then_some(runs)
        })
    }

    /// Waits until the first run of this manifest has received `count` answers.
    pub fn wait_for_answers(&self, name: &str, count: usize) -> Vec<Asked> {
        wait_for(&format!("{count} answers"), SHORT * 2, || {
            let asked = self.runs(name).first()?.asked();
            (asked.len() >= count).then_some(asked)
        })
    }

    pub fn stamps(&self) -> Vec<Stamp> {
        self.stamps_in("stamps")
    }

    /// Returns the lines that `helper stamp` wrote to a file.
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

    /// Runs a shell script as the manifest of a puppet run; returns its output.
    pub fn shell(&mut self, manifest: &str) -> String {
        self.begin_shell(manifest);
        self.end_shell()
    }

    /// Starts such a run without waiting for it; returns its pid.
    pub fn begin_shell(&mut self, manifest: &str) -> i32 {
        self.write_shell("site.pp", manifest);
        let create = |name: &str| File::create(self.path(name)).expect("created");
        let child = self
            .line(&["ruby", &self.at("bin/puppet"), "apply", "site.pp"])
            .stdout(create("out"))
            .stderr(create("err"))
            .spawn()
            .expect("ruby");
        let pid = child.id() as i32;
        self.children.push(child);
        pid
    }

    /// Waits for the last run that was started in this way; returns its output.
    pub fn end_shell(&mut self) -> String {
        let mut child = self.children.pop().expect("a run");
        child.wait().expect("waited");
        format!("{}{}", self.text("out"), self.text("err"))
    }

    /// Writes a manifest that is a shell script.
    pub fn write_shell(&self, name: &str, manifest: &str) {
        self.write(name, &format!("#!/bin/sh\n{manifest}"));
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

    /// Returns a line of the run's /proc/PID/status.
    pub fn status(&self, name: &str) -> String {
        let prefix = format!("{name}:");
        let status = self.text("status");
        let line = status.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {name}"))
            .trim()
            .to_owned()
    }

    /// Returns a field of the run's /proc/PID/stat, as in proc_pid_stat(5).
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

    /// Returns the run's descriptors, with number and target.
    pub fn descriptors(&self) -> Vec<(i32, String)> {
        self.text("fds")
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(fd, to)| (fd.parse().expect("a number"), to.to_owned()))
            .collect()
    }

    /// Returns the run's environment in order, without the variables that belong to one rerun.
    pub fn environment(&self) -> Vec<OsString> {
        let raw = self.raw("environ");
        let ours = ["AGAIN_CHAIN=", "AGAIN_RUN=", "AGAIN_TIMER="];
        raw.split(|byte| *byte == 0)
            .filter(|entry| !entry.is_empty())
            .filter(|entry| !ours.iter().any(|name| entry.starts_with(name.as_bytes())))
            .map(|entry| OsString::from_vec(entry.to_vec()))
            .collect()
    }

    /// Returns the value of a variable.
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

    /// Returns the answers of `again` in the order of the requests.
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
