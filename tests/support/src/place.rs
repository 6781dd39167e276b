use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{
    Ended, LONG, PuppetCommand, Record, Scratch, agent, assert_same_run, copy_tree,
    default_confdir, repository, rig_file, search_path, wait_until,
};

/// Puppet installation, with the paths of its packages.
pub struct Place {
    pub name: &'static str,
    /// Start of the output of `puppet --version`.
    pub version: &'static str,
    pub codedir: &'static str,
    pub ssldir: &'static str,
    pub vardir: &'static str,
    pub statedir: &'static str,
    pub publicdir: &'static str,
    pub rundir: &'static str,
    /// Path of the script in the argv of a run.
    pub script: &'static str,
    /// Interpreter before the script in the argv of a run.
    pub ruby: &'static str,
    /// Directories of other users, below their home.
    pub users: Users,
}

/// Directories of users other than root.
pub struct Users {
    pub statedir: &'static str,
    pub publicdir: &'static str,
    pub rundir: &'static str,
}

const DEBIANS: Place = Place {
    name: "",
    version: "",
    codedir: "/etc/puppet/code",
    ssldir: "/var/lib/puppet/ssl",
    vardir: "/var/cache/puppet",
    statedir: "/var/cache/puppet/state",
    publicdir: "/var/cache/puppet/public",
    rundir: "/run/puppet",
    script: "/usr/bin/puppet",
    ruby: "/usr/bin/ruby",
    users: Users {
        statedir: ".puppet/cache/state",
        publicdir: ".puppet/cache/public",
        rundir: ".puppet/var/run",
    },
};

const PLACES: [Place; 4] = [
    Place {
        name: "puppet-7",
        version: "7.23.",
        ..DEBIANS
    },
    Place {
        name: "puppet-8",
        version: "8.10.",
        ..DEBIANS
    },
    Place {
        name: "openvox-9",
        version: "9.",
        // The script begins with `#!/usr/bin/env ruby`.
        ruby: "ruby",
        ..DEBIANS
    },
    Place {
        name: "aio",
        version: "8.10.",
        codedir: "/etc/puppetlabs/code",
        ssldir: "/etc/puppetlabs/puppet/ssl",
        vardir: "/opt/puppetlabs/puppet/cache",
        statedir: "/opt/puppetlabs/puppet/cache/state",
        publicdir: "/opt/puppetlabs/puppet/public",
        rundir: "/var/run/puppetlabs",
        script: "/opt/puppetlabs/puppet/bin/puppet",
        ruby: "/opt/puppetlabs/puppet/bin/ruby",
        users: Users {
            statedir: ".puppetlabs/opt/puppet/cache/state",
            publicdir: ".puppetlabs/opt/puppet/public",
            rundir: ".puppetlabs/var/run",
        },
    },
];

/// Returns the current installation.
pub fn place() -> &'static Place {
    let name = std::env::var("MATRIX_PLACE").unwrap_or_default();
    PLACES
        .iter()
        .find(|place| place.name == name)
        .unwrap_or_else(|| panic!("this is no place of the matrix: start tests/matrix/run"))
}

/// Creates a scratch directory for the current installation.
pub fn scratch() -> Scratch {
    place();
    Scratch::with_puppet()
}

/// Runs a command in an empty environment.
pub fn plain(words: &[&str]) -> Output {
    Command::new("/usr/bin/env")
        .args(words)
        .env_clear()
        .envs([
            ("PATH", search_path()),
            ("HOME", "/root"),
            ("USER", "root"),
            ("LOGNAME", "root"),
            ("LANG", "C.UTF-8"),
            // The tests run in a namespace whose first process, a shell, lives as long as they do.
            ("AGAIN_CONTAINER", "stays"),
        ])
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .expect("env")
}

/// Returns a command's status, and its output from both streams.
pub fn said(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.clone(), output.stderr.clone()].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

const PROOF: &str = "/tmp/puppet.again";
const HISTORY: &str = "/var/lib/again/history.jsonl";

/// Machine itself, with the module in its default module path: one test uses it at a time.
pub struct Machine {
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    pub fn get() -> Machine {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let code = Path::new(place().codedir);
        let modules = code.join("modules");
        std::fs::create_dir_all(&modules).expect("the module path");
        let ours = repository().join("tests/matrix/modules");
        let mut wanted: Vec<_> = std::fs::read_dir(ours)
            .expect("modules")
            .map(|entry| entry.expect("a module").path())
            .collect();
        wanted.push(repository().join("puppet-module"));
        for module in wanted {
            let name = module.file_name().expect("a name").to_owned();
            let link = modules.join(if name == "puppet-module" {
                "common".into()
            } else {
                name
            });
            if !link.exists() {
                std::os::unix::fs::symlink(module, link).expect("the module");
            }
        }
        // Data of the site: chains without the jitter that slows them down.
        let environment = code.join("environments/production");
        for (file, text) in [
            (
                "hiera.yaml",
                "version: 5\nhierarchy: [{ name: common, path: common.yaml }]\n",
            ),
            ("data/common.yaml", "common::again::jitter: 0\n"),
        ] {
            let path = environment.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            std::fs::write(path, text).expect("data");
        }
        Machine { _alone: alone }
    }

    /// Runs `puppet apply --detailed-exitcodes WORDS` in the default directories.
    pub fn apply(&self, words: &[&str]) -> (Option<i32>, String) {
        said(&plain(
            &[&["puppet", "apply", "--detailed-exitcodes"], words].concat(),
        ))
    }

    /// Runs `puppet agent WORDS` in the default directories.
    pub fn agent(&self, words: &[&str]) -> (Option<i32>, String) {
        said(&plain(&[&["puppet", "agent"], words].concat()))
    }

    /// Makes this machine an agent without a server, whose catalog is this manifest.
    pub fn cached_agent(&self, manifest: &str) {
        let place = place();
        agent::write_ssldir(Path::new(place.ssldir));
        let conf = format!(
            "[main]\ncertname = {}\n{}",
            agent::NAME,
            agent::CONFIGURATION
        );
        std::fs::write(Path::new(default_confdir()).join("puppet.conf"), conf)
            .expect("puppet.conf");
        let site = "/tmp/agent.pp";
        std::fs::write(site, manifest).expect("the manifest");
        let compile = format!(
            "mkdir -p {var}/client_data/catalog && cp -rL {code}/modules/common/lib {var} && \
             ruby -W0 {script} {name} --modulepath {code}/modules < {site} > {var}/client_data/catalog/{name}.json",
            var = place.vardir,
            code = place.codedir,
            script = rig_file("compile.rb").display(),
            name = agent::NAME,
        );
        let (status, output) = said(&plain(&["sh", "-c", &compile]));
        assert_eq!(status, Some(0), "{output}");
    }

    /// Runs the installed `again`.
    pub fn again(&self, words: &[&str]) -> (Option<i32>, String) {
        said(&plain(&[&["/usr/local/bin/again"], words].concat()))
    }

    pub fn status(&self) -> serde_json::Value {
        let (_, text) = self.again(&["status", "--json"]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("status --json: {e}: {text}"))
    }

    /// Applies one of the manifests in the style of the original's users, with its two minutes
    /// replaced by `delta`, and waits for the last of its reruns. Returns the number of runs.
    pub fn drop_in(&self, name: &str, delta: &str) -> usize {
        for file in ["/tmp/foo", PROOF, HISTORY] {
            let _ = std::fs::remove_file(file);
        }
        let site = format!("/tmp/{name}.pp");
        let ours = repository().join("tests/matrix");
        let manifest = std::fs::read_to_string(ours.join(format!("manifests/{name}.pp")))
            .expect("the manifest");
        std::fs::write(&site, manifest.replace("120", delta)).expect("the manifest");
        // One delta is in a module.
        let init = Path::new(place().codedir).join("modules/settle");
        let _ = std::fs::remove_file(&init);
        copy_tree(&ours.join("modules/settle"), &init);
        let again = init.join("manifests/again.pp");
        let text = std::fs::read_to_string(&again).expect("a class");
        std::fs::write(&again, text.replace("120", delta)).expect("a class");

        let (status, output) = self.apply(&[&site]);
        assert_eq!(status, Some(2), "{output}");
        self.settle();
        std::fs::read_to_string(PROOF)
            .expect("a line for each run")
            .lines()
            .count()
    }

    /// Returns the names of the timers that became reruns since the last [`Machine::drop_in`]
    /// began.
    pub fn timers_that_ran(&self) -> Vec<String> {
        std::fs::read_to_string(HISTORY)
            .expect("the history")
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
            .filter(|entry| entry["what"] == "started")
            .map(|entry| entry["timer"].as_str().expect("a name").to_owned())
            .collect()
    }

    /// Waits until nothing is pending and nothing runs.
    pub fn settle(&self) {
        wait_until("nothing to be pending or running", LONG, || {
            let status = self.status();
            let targets = status["targets"].as_array().cloned().unwrap_or_default();
            targets.iter().all(|target| {
                target["timers"].as_array().is_some_and(Vec::is_empty)
                    && target["running"].is_null()
            })
        });
    }
}

/// Returns the outcomes of the reruns so far from the history, without the evidence.
pub fn outcomes(scratch: &Scratch) -> Vec<String> {
    // Any look at the status records the ends of reruns.
    scratch.status();
    scratch
        .history_of("ended")
        .iter()
        .map(|entry| entry["outcome"].as_str().expect("an outcome").to_owned())
        .collect()
}

/// Runs a command that makes one request and ends with this code, and its only rerun; checks that
/// the two are otherwise the same.
pub fn run_twice(scratch: &Scratch, command: PuppetCommand, code: i32) -> (Ended, Vec<Record>) {
    let (run, starts) = run_and_rerun(scratch, command, code);
    assert_same_run(&starts[0], &starts[1]);
    (run, starts)
}

/// Runs a command and its rerun, whose command line may differ.
pub fn run_and_rerun(scratch: &Scratch, command: PuppetCommand, code: i32) -> (Ended, Vec<Record>) {
    // The run lingers for long enough that a rerun which starts too early is detected.
    let run = command.env("RIG_LINGER", "0.4").run().expect(&[code]);
    assert_asked_once(&run);
    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!((starts.len(), scratch.catalogs().len()), (2, 2));
    (run, starts)
}

/// Fails unless a run made exactly one request.
pub fn assert_asked_once(run: &Ended) {
    let [line] = &run.lines_of_again()[..] else {
        panic!("one line of again, not: {}", run.out)
    };
    assert!(line.starts_with("again: scheduled: "), "{line}");
}
