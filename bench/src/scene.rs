//! Two nodes and an etcd on this machine, with TLS and signatures from a Puppet CA.

use std::ffi::CString;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use again_test_support::{binary_under_test, wait_until};
use anyhow::{Context, Result};

use crate::numbers::many;
use crate::start::words;
use crate::waiter::{Ended, needs};

/// Number of slots.
pub const SLOTS: usize = 8;
/// Name of a command: `again-bench stamp FILE` writes the time into a file.
pub const STAMP: &str = "stamp";
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the number of other nodes.
pub fn crowd() -> usize {
    many(1000, 100)
}

/// Returns the path of the measured program.
pub fn program() -> String {
    let path = std::env::var("AGAIN_FLEET_BIN").unwrap_or_else(|_| "dist/again-fleet".to_owned());
    let path = fs::canonicalize(&path).unwrap_or_else(|_| path.into());
    path.display().to_string()
}

/// Directory with a CA, an etcd and two nodes.
pub struct Scene {
    pub dir: PathBuf,
    port: u16,
    /// Processes: etcd, then executor and service of each node.
    pub cast: Vec<Ended>,
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Scene {
    pub fn new(dir: PathBuf) -> Result<Scene> {
        let port = free_port()?;
        let mut scene = Scene {
            dir,
            port,
            cast: Vec::new(),
        };
        scene.etcd()?;
        for name in ["web1.test", "lb1.test"] {
            scene.node(name)?;
        }
        Ok(scene)
    }

    pub fn at(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Returns the path of a node's file or directory, such as its `toml`, `log` or `run`.
    pub fn path(&self, name: &str, what: &str) -> PathBuf {
        self.dir.join(format!("{name}.{what}"))
    }

    /// Returns the resident memory of the backend, in kB.
    pub fn backend_memory(&self) -> Result<u64> {
        Ok(needs(self.cast[0].0.id())?.resident)
    }

    /// Returns the processor time of the backend in seconds: utime and stime of proc_pid_stat(5),
    /// in hundredths.
    pub fn backend_busy(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.cast[0].0.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("stat")?;
        let both = fields.split_whitespace().skip(11).take(2);
        let ticks: f64 = both.filter_map(|field| field.parse::<f64>().ok()).sum();
        Ok(ticks / 100.0)
    }

    /// Kills the backend, and restarts it with its data on disk.
    pub fn backend_anew(&mut self) -> Result<()> {
        drop(self.cast.remove(0));
        self.etcd()?;
        let backend = self.cast.pop().context("a backend")?;
        self.cast.insert(0, backend);
        Ok(())
    }

    fn begin(&mut self, command: &mut Command, log: &str) -> Result<()> {
        let log = fs::File::create(self.dir.join(log))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?);
        let child = child.stderr(log).spawn();
        let child = child.with_context(|| format!("{command:?}"))?;
        self.cast.push(Ended(child));
        Ok(())
    }

    fn etcd(&mut self) -> Result<()> {
        let port = self.port;
        let peers = format!("http://127.0.0.1:{}", free_port()?);
        let mut command = Command::new("etcd");
        command
            .args(["--data-dir", &self.at("etcd"), "--client-cert-auth"])
            .args(["--listen-client-urls", &format!("https://127.0.0.1:{port}")])
            .args(["--advertise-client-urls", &self.address()])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--cert-file", &self.at("server.test.pem")])
            .args(["--key-file", &self.at("server.test.key")])
            .args(["--trusted-ca-file", &self.at("ca.pem")])
            .args(["--client-crl-file", &self.at("crl.pem")]);
        self.begin(&mut command, "etcd.log")?;
        wait_until("etcd", PATIENCE, || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Ok(())
    }

    pub fn address(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Writes the settings of a node, and creates its directory for sockets. Its runs write a
    /// stamp.
    pub fn settings(&self, name: &str, key: &str) -> Result<String> {
        let (bench, stamp) = (std::env::current_exe()?, self.at("stamp"));
        let files = [
            ("cert", self.at(&format!("{name}.pem"))),
            ("key", self.at(key)),
            ("ca", self.at("ca.pem")),
            ("crl", self.at("crl.pem")),
            ("helper", binary_under_test().display().to_string()),
            ("run_dir", self.at(&format!("{name}.run"))),
            ("state_dir", self.at(&format!("{name}.state"))),
            ("spool_dir", self.at(&format!("{name}.spool"))),
        ];
        let mut text = format!(
            "backend = 'etcd'\nendpoints = ['localhost:{}']\nnamespace = 'test'\ncertname = '{name}'\naccept = ['*.test']\n\
             spread = 0\nslots_group = 'bench'\nslots_limit = {}\nrun_cmd = [{bench:?}, '{STAMP}', {stamp:?}]\n",
            self.port, SLOTS
        );
        for (key, path) in files {
            text += &format!("{key} = {path:?}\n");
        }
        let settings = self.at(&format!("{name}.toml"));
        fs::write(&settings, text)?;
        fs::create_dir(self.path(name, "run"))?;
        Ok(settings)
    }

    /// Starts executor and service of a node.
    fn node(&mut self, name: &str) -> Result<()> {
        let settings = self.settings(name, &format!("{name}.key"))?;
        let run = self.path(name, "run");
        let mut executor = Command::new("systemd-socket-activate");
        executor
            .arg("--listen")
            .arg(run.join("executor"))
            .arg(format!("--setenv=AGAIN_FLEET_CONFIG={settings}"))
            .arg(format!(
                "--setenv=AGAIN_CONFIG={}",
                std::env::var("AGAIN_CONFIG")?
            ))
            .args([&program(), "executor", "--idle", "1h"]);
        self.begin(&mut executor, &format!("{name}.executor.log"))?;
        let mut serve = Command::new(program());
        serve.args(["--config", &settings, "serve"]);
        self.begin(&mut serve, &format!("{name}.log"))?;
        wait_until(name, PATIENCE, || {
            let log = fs::read_to_string(self.path(name, "log"));
            log.is_ok_and(|log| log.contains("is reached"))
        });
        Ok(())
    }

    /// Returns the command with which web1 sends a trigger.
    pub fn trigger(&self, target: &str) -> Vec<CString> {
        self.ours(&["trigger", "--to", target])
    }

    /// Returns a command of web1.
    pub fn ours(&self, more: &[&str]) -> Vec<CString> {
        let settings = self.at("web1.test.toml");
        words(&[&[&program(), "--config", &settings], more].concat())
    }

    /// Returns a command of the backend's own client.
    pub fn etcdctl(&self, more: &[&str]) -> Vec<CString> {
        let (address, ca) = (self.address(), self.at("ca.pem"));
        let (cert, key) = (self.at("web2.test.pem"), self.at("web2.test.key"));
        let client = ["/usr/bin/etcdctl", "--endpoints", &address];
        let files = ["--cacert", &ca, "--cert", &cert, "--key", &key];
        words(&[&client, &files[..], more].concat())
    }

    /// Returns an `etcdctl put` of a value with the size of a trigger.
    pub fn put(&self) -> Vec<CString> {
        self.etcdctl(&["put", "again/v1/test/bench", &"x".repeat(2048)])
    }
}

/// Converts the words of a command to text.
pub fn texts(words: &[CString]) -> Vec<String> {
    let text = |word: &CString| word.to_string_lossy().into_owned();
    words.iter().map(text).collect()
}
