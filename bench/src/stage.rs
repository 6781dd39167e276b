//! A directory with the binary, its settings, and a stand-in for puppet.
//!
//! The stand-in is this program, started as `puppet apply FILE`: to `again`, which goes by what a process is, it is a
//! run like any other, and it takes a millisecond. FILE holds one word, which says what the run does.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::start;

pub struct Stage {
    dir: TempDir,
}

/// The repository.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The binary that is measured.
pub fn binary() -> PathBuf {
    std::env::var_os("AGAIN_BIN").map_or_else(|| repository().join("dist/again"), PathBuf::from)
}

impl Stage {
    pub fn new() -> Result<Stage> {
        let stage = Stage {
            dir: tempfile::Builder::new().prefix("again-bench-").tempdir()?,
        };
        for sub in ["bin", "work"] {
            std::fs::create_dir(stage.path(sub))?;
        }
        std::fs::copy(binary(), stage.path("bin/again"))
            .context("no binary to measure: run make build")?;
        std::fs::copy(std::env::current_exe()?, stage.path("bin/puppet"))?;
        let at = |name: &str| stage.path(name).display().to_string();
        // No agent of this machine has a say.
        let none = at("none");
        let settings = format!(
            "state_dir = \"{}\"\nlog_dir = \"{}\"\njitter = 0\nmax_runs = 1000000\nscope = \"never\"\n\
             agent_catalog_run_lockfile = \"{none}/lock\"\nagent_disabled_lockfile = \"{none}/disabled\"\n\
             lastrunfile = \"{none}/summary\"\npidfile = \"{none}/pid\"\n",
            at("state"),
            at("log"),
        );
        std::fs::write(stage.path("again.toml"), settings)?;
        Ok(stage)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.path("work"))
            .env("LANG", "C.UTF-8")
            .env("AGAIN_CONFIG", self.path("again.toml"))
            .env("STAGE", self.dir.path())
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
        command
    }

    pub fn again(&self, words: &[&str]) -> Command {
        let mut command = self.command(self.path("bin/again"));
        command.args(words);
        command
    }

    /// Runs `again` to its end, outside any run; its standard output.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        let output = self.again(words).output()?;
        anyhow::ensure!(
            matches!(output.status.code(), Some(0 | 3)),
            "again {words:?}: {output:?}"
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The stand-in with this to do, not started yet. Of different names: different targets.
    pub fn run(&self, name: &str, script: &str) -> Result<Command> {
        let manifest = self.path(&format!("work/{name}.pp"));
        std::fs::write(&manifest, script)?;
        let mut command = self.command(self.path("bin/puppet"));
        command.arg("apply").arg(manifest);
        command.stdout(Stdio::null());
        Ok(command)
    }

    /// Starts a run that stays until its standard input is closed, and asks once with these words.
    pub fn held_run(&self, name: &str, request: &str) -> Result<Held> {
        let mut command = self.run(name, &format!("held {request}"))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        let mut byte = [0];
        let out = child.stdout.as_mut().context("a pipe")?;
        while out.read(&mut byte)? == 1 && byte != [b'\n'] {
            said.push(char::from(byte[0]));
        }
        anyhow::ensure!(said.contains("scheduled"), "the run was told: {said}");
        Ok(Held { child })
    }

    /// Cancels what is pending, and waits until its waiters have ended.
    pub fn stop_all(&self) -> Result<()> {
        self.ask(&["stop", "--run"])?;
        let end = start::now() + 30_000_000_000;
        while !self.waiters().is_empty() {
            anyhow::ensure!(start::now() < end, "waiters stay");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Ok(())
    }

    /// The processes that run this stage's binary.
    pub fn waiters(&self) -> Vec<i32> {
        let binary = self.path("bin/again");
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid: &i32| {
                std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == binary)
            })
            .collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.ask(&["stop", "--run"]);
    }
}

/// A run under way.
pub struct Held {
    pub child: Child,
}

impl Held {
    pub fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        self.child.wait()?;
        Ok(())
    }
}

pub fn is_stand_in() -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|name| Path::new(&name).file_name() == Some("puppet".as_ref()))
}

/// What a run does: the first word of its manifest says which.
pub fn stand_in() -> Result<()> {
    let began = start::now();
    let manifest = std::env::args().nth(2).context("a manifest")?;
    let script = std::fs::read_to_string(&manifest)?;
    let stage = PathBuf::from(std::env::var_os("STAGE").context("a stage")?);
    let again = stage.join("bin/again");
    let again = again.to_str().context("a plain path")?;
    let (what, rest) = script.split_once(' ').unwrap_or((&script, ""));
    match what {
        "cost" => crate::cost::stand_in(again, rest),
        "herd" => crate::herd::stand_in(&stage, again, began, rest),
        "exit" => crate::exit::stand_in(&stage, again, began, rest),
        "stamp" => {
            // One write, so that those of many do not mix.
            let mut file = std::fs::File::options()
                .append(true)
                .create(true)
                .open(stage.join("stamps"))?;
            let name = Path::new(&manifest).file_stem().unwrap_or_default();
            let timer = std::env::var("AGAIN_TIMER").unwrap_or_default();
            let line = format!("{began} {} {timer}\n", name.to_string_lossy());
            file.write_all(line.as_bytes())?;
            Ok(())
        }
        "held" => {
            if std::env::var_os("AGAIN_RUN").is_some() {
                return Ok(());
            }
            for request in rest.split(';') {
                let words: Vec<&str> = [again, "run"]
                    .into_iter()
                    .chain(request.split_whitespace())
                    .collect();
                let cost = start::as_exec_does(&start::words(&words))?;
                anyhow::ensure!(cost.status == 0, "{}", cost.output);
            }
            println!("scheduled");
            let _ = std::io::stdin().read(&mut [0]);
            Ok(())
        }
        other => anyhow::bail!("a run cannot {other}"),
    }
}
