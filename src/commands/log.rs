//! `again log`: the output of a rerun.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use super::targets;
use crate::cli::{self, Global};
use crate::config;
use crate::state::logs::{LOG_SUFFIX, is_log_name};
use crate::state::record::Running;
use crate::state::store::Store;
use again_base::layout::complain;
use again_base::model::{Exit, Kind};
use again_base::sys::attributes::SignalState;
use again_base::sys::clock::moment;
use again_base::sys::pidfd;
use again_base::sys::viewer::{Growth, News, Viewer, end_by};

/// File with the output of a rerun.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Log {
    /// Time at which the log was begun, in digits that sort by age.
    stamp: String,
    chain: String,
    run: u32,
    path: PathBuf,
}

impl Log {
    fn of(path: &Path) -> Option<Self> {
        let name = path
            .file_name()?
            .to_str()
            .filter(|name| is_log_name(name))?;
        let mut parts = name.strip_suffix(LOG_SUFFIX)?.split('-');
        Some(Log {
            stamp: parts.next()?.to_owned(),
            chain: parts.next()?.to_owned(),
            run: parts.next()?.parse().ok()?,
            path: path.to_owned(),
        })
    }
}

/// Shows a log.
///
/// # Errors
/// The log that does not exist or cannot be read.
pub fn main(global: &Global, args: &cli::Log, signals: SignalState) -> Result<Exit> {
    let settings = config::of_command(global)?;
    let store = Store::existing(&settings.state_dir);
    let place = targets::place(&settings.state_dir)?;
    let mut reruns: Vec<(Kind, Running)> = Vec::new();
    let (records, exit) = targets::records(&store, store.targets());
    for record in records {
        let last = record.last.map(|last| last.rerun);
        let all = record.running.into_iter().chain(last);
        reruns.extend(all.map(|run| (record.kind, run)));
    }
    if let Some(why) = lost(&reruns, args.run.as_deref()) {
        bail!("{why} ({place})");
    }
    // A record may name a log in another directory, from before that setting was changed.
    let mut paths: Vec<PathBuf> = reruns.iter().map(|(_, run)| (&run.log).into()).collect();
    paths.retain(|path| path.exists());
    paths.extend(list(&settings.log_dir)?);
    let mut logs: Vec<Log> = paths.iter().filter_map(|path| Log::of(path)).collect();
    logs.sort_unstable();
    logs.dedup();
    let log = choose(&logs, args.run.as_deref())
        .map_err(|e| anyhow!("{e} (logs in {})", settings.log_dir.display()))?;
    let mut file = File::open(&log.path)
        .with_context(|| format!("cannot read the output {}", log.path.display()))?;
    tracing::info!(
        "run {} of chain {}: {}",
        log.run,
        log.chain,
        log.path.display()
    );
    if file.metadata().is_ok_and(|meta| meta.len() == 0) && is_agents(log, &reruns) {
        let Log { run, chain, .. } = log;
        complain(&format!(
            "again: run {run} of chain {chain} has printed nothing; {SILENCE}"
        ));
    }
    let boot = moment().boot;
    let mut running = reruns.iter().map(|(_, run)| run);
    let writer = running
        .by_ref()
        .filter(|run| run.started.boot == boot)
        .find(|run| Path::new(&run.log) == log.path);
    match writer {
        Some(writer) if args.follow => follow(&mut file, &log.path, writer, signals)?,
        _ => show(&mut file)?,
    }
    Ok(exit)
}

/// Reason why there is no output of the newest rerun on record, or of the wanted one.
fn lost(reruns: &[(Kind, Running)], wanted: Option<&str>) -> Option<String> {
    let is_wanted = |run: &&Running| match wanted {
        None => true,
        Some(wanted) => wanted == run.chain || wanted == format!("{}-{}", run.chain, run.run),
    };
    let all = reruns.iter().map(|(_, run)| run).filter(is_wanted);
    let run = all.max_by_key(|run| run.started.wall)?;
    let (why, which, chain) = (run.log_lost.as_ref()?, run.run, &run.chain);
    Some(format!(
        "the output of run {which} of chain {chain} was lost: {why}"
    ))
}

/// Reason why the log of an agent's run is empty, and where to find its messages.
const SILENCE: &str = "without --test the agent logs to syslog: 'journalctl -t puppet-agent', or 'grep puppet-agent /var/log/syslog'";

fn is_agents(log: &Log, reruns: &[(Kind, Running)]) -> bool {
    let mut known = reruns.iter();
    known.any(|(kind, rerun)| rerun.chain == log.chain && kind.is_agent())
}

/// Files in the log directory.
fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", directory.display())),
    }
}

/// Finds the wanted log: `logs` are sorted, the newest last.
fn choose<'a>(logs: &'a [Log], wanted: Option<&str>) -> Result<&'a Log, String> {
    let newest = logs.last().ok_or("there is no output of any rerun")?;
    let Some(wanted) = wanted else {
        return Ok(newest);
    };
    let find = |chain: &str, run: Option<u32>| {
        logs.iter()
            .rev()
            .find(|log| log.chain.starts_with(chain) && run.is_none_or(|run| log.run == run))
    };
    let found = match wanted.split_once('-') {
        Some((chain, run)) if !chain.is_empty() => {
            run.parse().ok().and_then(|run| find(chain, Some(run)))
        }
        Some(_) => None,
        // Eight digits may be a chain's id; fewer are a number.
        None => (wanted.len() >= 8 || wanted.parse::<u32>().is_err())
            .then(|| find(wanted, None))
            .flatten()
            .or_else(|| find(&newest.chain, Some(wanted.parse().ok()?))),
    };
    found.ok_or_else(|| {
        let of = format!(
            "the newest is run {} of chain {}, '{}-{}'",
            newest.run, newest.chain, newest.chain, newest.run
        );
        if wanted.parse::<u32>().is_ok() {
            format!("there is no output of run {wanted} of the newest chain; {of}")
        } else {
            format!("there is no output of a rerun '{wanted}'; {of}")
        }
    })
}

/// Copies the output so far to standard output.
fn show(file: &mut File) -> Result<()> {
    let mut out = io::stdout().lock();
    io::copy(file, &mut out)?;
    out.flush()?;
    Ok(())
}

/// Copies the output so far, then all additions, until the rerun has ended. A signal that asks to
/// end ends this process.
fn follow(file: &mut File, path: &Path, writer: &Running, signals: SignalState) -> Result<()> {
    // Before the first read, so that no output in between is missed.
    let growth = Growth::of(path).with_context(|| format!("cannot watch {}", path.display()))?;
    let process = match pidfd::open(writer.process) {
        Ok(process) => process,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return show(file),
        Err(e) => return Err(e).context("cannot take hold of the rerun"),
    };
    let mut viewer = Viewer::new(signals)?;
    loop {
        show(file)?;
        match viewer.wait(Some(&process), Some(&growth), None)? {
            News::Grown | News::Redraw | News::Time => {}
            News::Ended => return show(file),
            News::Signal(signal) => {
                let (run, chain, pid) = (writer.run, &writer.chain, writer.process.pid);
                complain(&format!(
                    "again: interrupted; run {run} of chain {chain} continues (pid {pid})"
                ));
                end_by(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn logs() -> Vec<Log> {
        [
            "20261120T140307123-0123abcd-2-00000007.log",
            "20261121T140307123-12345678-2-00000007.log",
            "20261121T150307123-12345678-3-00000007.log",
            "20261122T140307123-0123abcd-13-00000007.log",
        ]
        .iter()
        .map(|name| Log::of(&Path::new("/log").join(name)).expect("a log"))
        .collect()
    }

    #[test]
    fn finds_what_is_meant() {
        let logs = logs();
        let run = |wanted: Option<&str>| {
            choose(&logs, wanted).map(|log| format!("{}-{}", log.chain, log.run))
        };
        for (wanted, found) in [
            (None, "0123abcd-13"),
            (Some("2"), "0123abcd-2"),
            (Some("13"), "0123abcd-13"),
            (Some("12345678"), "12345678-3"),
            (Some("12345678-2"), "12345678-2"),
            (Some("0123a"), "0123abcd-13"),
            (Some("0123a-2"), "0123abcd-2"),
        ] {
            assert_eq!(run(wanted).as_deref(), Ok(found), "{wanted:?}");
        }
        for wanted in ["4", "ffff", "0123abcd-4", "-", "-2", "0123abcd-", "é"] {
            assert!(run(Some(wanted)).is_err(), "{wanted}");
        }
        assert!(choose(&[], None).is_err());
    }

    proptest! {
        #[test]
        fn total(wanted in "\\PC{0,12}") {
            let _ = choose(&logs(), Some(&wanted));
        }
    }
}
