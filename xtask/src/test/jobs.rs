//! Runs commands at the same time, each below a guard.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::programs::readable;
use crate::repository;

/// Command to run.
pub struct Job {
    pub name: String,
    /// Load in tenths of a core.
    pub load: u32,
    /// Time limit in seconds.
    pub limit: u32,
    pub words: Vec<String>,
    pub environment: Vec<(&'static str, PathBuf)>,
}

/// Job that has ended.
pub struct Ended {
    pub name: String,
    pub status: ExitStatus,
    pub output: String,
    pub seconds: u64,
    /// Processor time in seconds of the job with all its descendants.
    pub busy: u64,
}

struct Running {
    job: Job,
    child: Child,
    began: Instant,
}

/// Runner that starts jobs, and waits for them and for signals.
pub struct Jobs(Signals);

impl Jobs {
    pub fn new() -> Result<Jobs> {
        Ok(Jobs(Signals::new([SIGCHLD, SIGINT, SIGTERM, SIGHUP])?))
    }

    /// Runs all jobs, as many at the same time as the capacity allows, the first ones first. A
    /// signal ends them and this process, with status 130.
    ///
    /// # Errors
    ///
    /// The error of `ended`; all jobs have ended then.
    pub fn run(
        &mut self,
        waiting: Vec<Job>,
        capacity: u32,
        ended: impl FnMut(Ended) -> Result<()>,
    ) -> Result<()> {
        let mut running = Vec::new();
        let result = self.go(waiting, capacity, &mut running, ended);
        end(running);
        result
    }

    fn go(
        &mut self,
        mut waiting: Vec<Job>,
        capacity: u32,
        running: &mut Vec<Running>,
        mut ended: impl FnMut(Ended) -> Result<()>,
    ) -> Result<()> {
        loop {
            let beside = running.iter().map(|one| one.job.load).sum();
            if let Some(next) = waiting.iter().position(|job| fits(job, beside, capacity)) {
                running.push(start(waiting.remove(next))?);
                continue;
            }
            if running.is_empty() {
                return Ok(());
            }
            if self.0.wait().any(|signal| signal != SIGCHLD) {
                end(std::mem::take(running));
                std::process::exit(130);
            }
            let mut at = 0;
            while at < running.len() {
                let before = children_were_busy()?;
                match running[at].child.try_wait()? {
                    None => at += 1,
                    Some(status) => {
                        let busy = children_were_busy()? - before;
                        ended(running.remove(at).ended(status, busy)?)?;
                    }
                }
            }
        }
    }

    /// Runs jobs that must succeed; prints the output of one that does not.
    pub fn must(&mut self, jobs: Vec<Job>) -> Result<()> {
        self.run(jobs, u32::MAX, |ended| {
            if !ended.status.success() {
                bail!(
                    "{}{}: {}",
                    readable(&ended.output),
                    ended.name,
                    ended.status
                );
            }
            println!(
                "=== {}: {} s, {} s of a processor",
                ended.name, ended.seconds, ended.busy
            );
            Ok(())
        })
    }
}

/// Whether a job may start beside others; it always may when there are none.
fn fits(job: &Job, beside: u32, capacity: u32) -> bool {
    beside == 0 || beside.saturating_add(job.load) <= capacity
}

/// Returns the path of a job's output.
pub fn log(name: &str) -> PathBuf {
    let name = name.replace('/', "-");
    repository()
        .join("target/test-logs")
        .join(name)
        .with_extension("log")
}

/// Returns the path of this program while it runs: the build of the tests may replace its file.
pub fn this_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

fn start(job: Job) -> Result<Running> {
    let log = log(&job.name);
    fs::create_dir_all(log.parent().context("a directory")?)?;
    let file = File::create(&log)?;
    let mut command = Command::new(this_program());
    command
        .args(["guard", &job.limit.to_string(), "--"])
        .args(&job.words);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AGAIN_") {
            command.env_remove(name);
        }
    }
    let child = command
        .envs(job.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(repository())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start {}", job.name))?;
    println!("--- {} begins", job.name);
    Ok(Running {
        job,
        child,
        began: Instant::now(),
    })
}

impl Running {
    fn ended(&self, status: ExitStatus, busy: u64) -> Result<Ended> {
        Ok(Ended {
            name: self.job.name.clone(),
            status,
            output: String::from_utf8_lossy(&fs::read(log(&self.job.name))?).into_owned(),
            seconds: self.began.elapsed().as_secs(),
            busy,
        })
    }
}

/// Tells all guards to end their commands, and waits until they have done so.
fn end(running: Vec<Running>) {
    for one in &running {
        // The pid is the child's until it is waited for.
        let _ = kill(Pid::from_raw(one.child.id().cast_signed()), Signal::SIGTERM);
    }
    for mut one in running {
        let _ = one.child.wait();
    }
}

/// Returns the processor time in seconds of all children that were waited for, with theirs: cutime
/// and cstime of proc_pid_stat(5), in hundredths.
fn children_were_busy() -> Result<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("/proc/self/stat")?;
    let of_children = fields.split_whitespace().skip(13).take(2);
    let ticks: u64 = of_children.map(|field| field.parse().unwrap_or(0)).sum();
    Ok(ticks / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_share_the_cores_or_run_alone() {
        let job = |load| Job {
            name: String::new(),
            load,
            limit: 1,
            words: Vec::new(),
            environment: Vec::new(),
        };
        assert!(fits(&job(20), 0, 20) && !fits(&job(20), 5, 20));
        assert!(fits(&job(10), 10, 20) && !fits(&job(15), 10, 20));
        assert!(fits(&job(20), 0, 0) && !fits(&job(1), 1, 0));
    }
}
