//! Record of a puppet process at its start or while it applied its catalog, written by
//! `module/lib/puppet_x/rig/record.rb`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::process::{Process, environment, split_nul, stat_fields, status_line};

/// Point in a process's life at which a record was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Made by a puppet process immediately after its exec.
    Exec,
    /// Made by the resource `rig_run`, in whatever process applies the catalog.
    Catalog,
}

/// Record of a process.
#[derive(Clone, Debug)]
pub struct Record {
    pub dir: PathBuf,
    pub kind: Kind,
    /// Time of the record in seconds since boot.
    pub at: f64,
    pub process: Process,
    pub raw_command: Vec<u8>,
    pub command: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub raw_environment: Vec<u8>,
    pub directory: PathBuf,
    pub descriptors: BTreeMap<i32, String>,
    pub limits: String,
    status: String,
    stat: String,
    /// Pids of processes with earlier records, and whether they were still running.
    pub earlier: Vec<(i32, bool)>,
}

impl Record {
    /// Reads a record from its directory.
    pub fn read(dir: &Path) -> Record {
        let bytes = |name: &str| {
            fs::read(dir.join(name)).unwrap_or_else(|e| panic!("{}/{name}: {e}", dir.display()))
        };
        let text = |name: &str| String::from_utf8_lossy(&bytes(name)).into_owned();
        let stat = text("stat");
        let raw_command = bytes("cmdline");
        let raw_environment = bytes("environ");
        let words = |line: &str| {
            line.split_once(' ')
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
        };
        Record {
            dir: dir.to_owned(),
            kind: if text_of(dir).ends_with("-exec") {
                Kind::Exec
            } else {
                Kind::Catalog
            },
            at: text("at").parse::<f64>().expect("a moment") / 1e9,
            process: Process {
                pid: stat
                    .split(' ')
                    .next()
                    .and_then(|pid| pid.parse().ok())
                    .expect("a pid"),
                start: stat_fields(&stat)[19].parse().expect("a start time"),
            },
            command: split_nul(&raw_command)
                .iter()
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect(),
            raw_command,
            environment: environment(&raw_environment),
            raw_environment,
            directory: PathBuf::from(text("cwd")),
            descriptors: text("fds")
                .lines()
                .filter_map(words)
                .filter_map(|(fd, to)| Some((fd.parse().ok()?, to)))
                .collect(),
            limits: text("limits"),
            status: text("status"),
            stat,
            earlier: text("earlier")
                .lines()
                .filter_map(words)
                .filter_map(|(pid, how)| Some((pid.parse().ok()?, how == "running")))
                .collect(),
        }
    }

    /// Returns all records in a directory, oldest first.
    pub fn all(runs: &Path) -> Vec<Record> {
        let mut dirs: Vec<PathBuf> = fs::read_dir(runs)
            .expect("the records")
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| !text_of(path).starts_with('.'))
            .collect();
        dirs.sort();
        dirs.iter().map(|dir| Record::read(dir)).collect()
    }

    /// Returns a line of the process's /proc status.
    pub fn status(&self, name: &str) -> String {
        status_line(&self.status, name).unwrap_or_else(|| panic!("no {name} in status"))
    }

    /// Returns a field of the process's /proc stat, numbered as in proc(5).
    pub fn stat(&self, field: usize) -> i64 {
        stat_fields(&self.stat)[field - 3]
            .parse()
            .expect("a number")
    }

    pub fn nice(&self) -> i64 {
        self.stat(19)
    }

    /// Returns the record of the same process while it applied its catalog.
    pub fn in_its_catalog(&self) -> Record {
        Record::all(self.dir.parent().expect("the records"))
            .into_iter()
            .find(|record| record.kind == Kind::Catalog && record.process == self.process)
            .expect("the record of its catalog")
    }

    /// Returns the time at which the last of ruby's exit handlers ran, a moment before the process
    /// ended. Only for `Kind::Exec`.
    pub fn ended(&self) -> Option<f64> {
        Some(
            fs::read_to_string(self.dir.join("ended"))
                .ok()?
                .parse::<f64>()
                .ok()?
                / 1e9,
        )
    }

    /// Returns the environment without the variables that `again` adds for a rerun.
    pub fn environment_without_again(&self) -> BTreeMap<String, String> {
        let added = ["AGAIN_CHAIN", "AGAIN_RUN", "AGAIN_TIMER"];
        self.environment
            .iter()
            .filter(|(name, _)| !added.contains(&name.as_str()))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect()
    }

    /// Returns the ignored signals, as the mask that /proc shows.
    pub fn ignored_signals(&self) -> u64 {
        u64::from_str_radix(&self.status("SigIgn"), 16).expect("a mask")
    }

    pub fn blocked_signals(&self) -> u64 {
        u64::from_str_radix(&self.status("SigBlk"), 16).expect("a mask")
    }
}

fn text_of(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}
