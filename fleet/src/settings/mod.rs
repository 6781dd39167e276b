//! The settings. Flags override `AGAIN_FLEET_*`, which override /etc/again-fleet.toml, which
//! overrides the defaults.

/// The locks, one file each.
mod locks;
/// The rules, one file each.
mod rules;
/// Types of the values, and their syntax.
mod value;

use std::cell::LazyCell;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use again_base::model::{Span, Usage};
use again_base::settings::{option, variable};
use again_base::sys::file::read_settings;
use again_base::toml;

use crate::identity::authority::{Authority, Revocation};
use crate::identity::files::{self, Paths};
use crate::policy::accept::{Accept, Pattern, Who};
use crate::policy::judge::Rules;
use crate::policy::lock::Lock;
use crate::policy::rule::Rule;
use crate::policy::share::SHARE;
use crate::puppet;
use crate::wire::Malformed;
use crate::wire::name::{Name, Namespace, Node};
pub use locks::check as check_lock;
pub use rules::{KEYS as RULE_KEYS, check as check_rule};
pub use value::{Backend, Endpoint, Trust};
use value::{Command, Hops, MaxWait, Percent, Skew, Slots, Spread, Table, Ttl};

/// Settings file unless another one is named.
pub const FILE: &str = "/etc/again-fleet.toml";

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Type of the backend.
    pub backend: Backend,
    /// Servers of the backend.
    pub endpoints: Vec<Endpoint>,
    /// Whether the connections to the servers use TLS.
    pub tls: bool,
    /// Name of the fleet.
    pub namespace: Namespace,
    /// Authority for values from the backend: signatures, or the backend itself.
    pub trust: Trust,
    /// Senders whose triggers this node accepts. There is no default.
    pub accept: Option<Vec<Who>>,
    /// Nodes that may send triggers on behalf of others, each with the patterns of those others.
    pub accept_for: Vec<(Who, Vec<Pattern>)>,
    /// Nodes that may release the slots and queue positions of others, and move or reset locks.
    pub operators: Vec<Who>,
    /// Command that a trigger runs on this node.
    pub run_cmd: Vec<OsString>,
    /// Directory in which `run_cmd` starts.
    pub cwd: PathBuf,
    /// Facts that this node publishes to all others.
    pub facts: Vec<String>,
    /// Longest time that a trigger of this node may wait to be accepted.
    pub ttl: Span,
    /// Largest accepted difference between the clocks of two nodes.
    pub skew: Span,
    /// Longest delay added for each further target of a trigger.
    pub spread: Span,
    /// Largest number of hops of a trigger.
    pub hop_limit: usize,
    /// Share of the cap of `again` that the triggers of one node may use, in percent.
    pub cap_share: u32,
    /// Group in which the runs of this node wait for a slot; `None`: runs need no slot.
    pub slots_group: Option<Name>,
    /// Number of slots of the group.
    pub slots_limit: u32,
    /// Whether a run without a slot is forbidden.
    pub slots_required: bool,
    /// Longest time that a run waits for a slot.
    pub slots_max_wait: Span,
    /// Path of the program `again`.
    pub helper: PathBuf,
    /// Directory of the outbox and the numbers.
    pub state_dir: PathBuf,
    /// Directory of the sockets.
    pub run_dir: PathBuf,
    /// Directory in which runs leave their events.
    pub spool_dir: PathBuf,
    /// Directory of the rules with which this node reacts to events.
    pub rules_dir: PathBuf,
    /// Directory of the locks for which this node is a candidate.
    pub locks_dir: PathBuf,
    certname: Option<Node>,
    files: Files,
}

/// Puppet's files, if their paths are known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: PathBuf,
    crl: PathBuf,
    revocation: Revocation,
}

// Only the file sets who may do what, and what is run.
again_base::layer! {
    backend: Backend, "AGAIN_FLEET_BACKEND" => Backend::Etcd;
    endpoints: Vec<Endpoint>, "AGAIN_FLEET_ENDPOINTS" => Vec::new();
    tls: bool, "AGAIN_FLEET_TLS" => true;
    namespace: Namespace, "AGAIN_FLEET_NAMESPACE" => "default".parse().expect("a namespace");
    certname: Node, "AGAIN_FLEET_CERTNAME";
    cert: PathBuf, "AGAIN_FLEET_CERT";
    key: PathBuf, "AGAIN_FLEET_KEY";
    ca: PathBuf, "AGAIN_FLEET_CA";
    crl: PathBuf, "AGAIN_FLEET_CRL";
    revocation: Revocation, "AGAIN_FLEET_REVOCATION" => Revocation::Chain;
    trust: Trust => Trust::Puppet;
    accept: Vec<Who>;
    accept_for: Table => Table::default();
    operators: Vec<Who> => Vec::new();
    run_cmd: Command;
    cwd: PathBuf => "/root".into();
    facts: Vec<String> => Vec::new();
    ttl: Ttl, "AGAIN_FLEET_TTL" => Ttl(Span::from_secs(3600));
    skew: Skew, "AGAIN_FLEET_SKEW" => Skew(Span::from_secs(300));
    spread: Spread, "AGAIN_FLEET_SPREAD" => Spread(Span::from_nanos(50_000_000));
    hop_limit: Hops, "AGAIN_FLEET_HOP_LIMIT" => Hops(10);
    cap_share: Percent => Percent(SHARE);
    slots_group: Name;
    slots_limit: Slots => Slots(1);
    slots_required: bool => false;
    slots_max_wait: MaxWait => MaxWait(Span::from_secs(1800));
    helper: PathBuf, "AGAIN_FLEET_HELPER";
    state_dir: PathBuf, "AGAIN_FLEET_STATE_DIR" => "/var/lib/again-fleet".into();
    run_dir: PathBuf, "AGAIN_FLEET_RUN_DIR" => "/run/again-fleet".into();
    spool_dir: PathBuf, "AGAIN_FLEET_SPOOL_DIR" => "/var/spool/again-fleet".into();
    rules_dir: PathBuf, "AGAIN_FLEET_RULES_DIR" => "/etc/again-fleet.d".into();
    locks_dir: PathBuf, "AGAIN_FLEET_LOCKS_DIR" => "/etc/again-fleet-locks.d".into();
}

/// Keys of the settings file.
pub const KEYS: &[&str] = Layer::KEYS;
/// The keys that an environment variable can set, each with its variable.
pub const VARIABLES: &[(&str, &str)] = Layer::VARIABLES;

/// Flags of the command line.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// The settings file, which must exist if it is named here.
    pub config: Option<PathBuf>,
    /// The state directory.
    pub state_dir: Option<PathBuf>,
}

/// Environment, file system root and program path, on which settings also depend.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Environment of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Root directory below which Puppet's files are searched.
    pub root: PathBuf,
    /// Path of this program.
    pub program: PathBuf,
}

impl Surroundings {
    /// The surroundings of this process.
    pub fn of_this_process() -> Self {
        Surroundings {
            environment: std::env::vars_os().collect(),
            root: PathBuf::from("/"),
            program: std::env::current_exe().unwrap_or_default(),
        }
    }
}

/// Combines flags, environment, file and defaults.
///
/// # Errors
/// A sentence that names the wrong setting, its place, and the reason.
pub fn settings(flags: &Flags, around: &Surroundings) -> Result<Settings, Usage> {
    put_together(flags, around).map_err(|e| Usage(format!("the settings cannot be used: {e}")))
}

fn put_together(flags: &Flags, around: &Surroundings) -> Result<Settings, String> {
    let typed = Layer {
        state_dir: option("--state-dir", &flags.state_dir)?,
        ..Layer::default()
    };
    let environment = Layer::of_environment(&around.environment)?;
    let set = typed.or(environment).or(read_file(flags, around)?);
    let settings = resolve(set, around);
    check_trust(&settings)?;
    Ok(settings)
}

/// Checks that a backend whose values are trusted without signatures is only accessible with a
/// client certificate or on this machine.
///
/// # Errors
/// A sentence that names the server.
fn check_trust(settings: &Settings) -> Result<(), String> {
    if settings.trust != Trust::Backend || settings.tls {
        return Ok(());
    }
    match settings.endpoints.iter().find(|one| !one.is_loopback()) {
        Some(Endpoint { host, .. }) => Err(format!(
            "trust = \"backend\" with tls = false lets everybody who reaches {host} run Puppet here; \
             set tls = true, or use a backend on localhost"
        )),
        None => Ok(()),
    }
}

fn resolve(mut set: Layer, around: &Surroundings) -> Settings {
    // Puppet's configuration is read only for paths that are not set.
    let found = LazyCell::new(|| puppet::certificates(&around.root));
    let certname = set.certname.take();
    let certname = certname.or_else(|| found.certname.clone());
    let of_node = |directory: &str| {
        let name = certname.as_ref()?;
        Some(found.directory.join(directory).join(format!("{name}.pem")))
    };
    let beside = around.program.with_file_name("again");
    let puppet = [
        "puppet",
        "agent",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
    ];
    Settings {
        files: Files {
            cert: set.cert.take().or_else(|| of_node("certs")),
            key: set.key.take().or_else(|| of_node("private_keys")),
            ca: set
                .ca
                .take()
                .unwrap_or_else(|| found.directory.join("certs/ca.pem")),
            crl: set
                .crl
                .take()
                .unwrap_or_else(|| found.directory.join("crl.pem")),
            revocation: set.revocation(),
        },
        backend: set.backend(),
        endpoints: set.endpoints(),
        tls: set.tls(),
        namespace: set.namespace(),
        trust: set.trust(),
        accept_for: set.accept_for().0,
        operators: set.operators(),
        run_cmd: match set.run_cmd.take() {
            Some(words) => words.0.into_iter().map(OsString::from).collect(),
            None => puppet.map(OsString::from).to_vec(),
        },
        cwd: set.cwd(),
        facts: set.facts(),
        ttl: set.ttl().0,
        skew: set.skew().0,
        spread: set.spread().0,
        hop_limit: set.hop_limit().0,
        cap_share: set.cap_share().0,
        slots_limit: set.slots_limit().0,
        slots_required: set.slots_required(),
        slots_max_wait: set.slots_max_wait().0,
        slots_group: set.slots_group.take(),
        helper: set.helper.take().unwrap_or(beside),
        state_dir: set.state_dir(),
        run_dir: set.run_dir(),
        spool_dir: set.spool_dir(),
        rules_dir: set.rules_dir(),
        locks_dir: set.locks_dir(),
        accept: set.accept.take(),
        certname,
    }
}

impl Settings {
    /// Checks the directory in which `run_cmd` starts.
    ///
    /// # Errors
    /// The directory does not exist or cannot be used: the kind of the error, and a message.
    pub fn check_cwd(&self) -> Result<(), (ErrorKind, String)> {
        let shown = self.cwd.display();
        let kind = match fs::metadata(&self.cwd) {
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => ErrorKind::NotADirectory,
            Err(e) => e.kind(),
        };
        let why = match kind {
            ErrorKind::NotFound => "is not there".to_owned(),
            kind => format!("cannot be used: {kind}"),
        };
        Err((kind, format!("{shown}, the directory of run_cmd, {why}")))
    }

    /// Certname of this node.
    ///
    /// # Errors
    /// The certname is neither set nor found in Puppet's files.
    pub fn certname(&self) -> Result<&Node, Usage> {
        self.certname.as_ref().ok_or_else(|| {
            Usage("this node's certname is not known: puppet.conf names none, and there is not exactly one certificate; set certname".to_owned())
        })
    }

    /// Paths of the files with this node's certificate and key, and of the CA.
    ///
    /// # Errors
    /// The certname, and with it the names of the files, is not known.
    pub fn identity(&self) -> Result<Paths, Usage> {
        let (Some(certificate), Some(key)) = (&self.files.cert, &self.files.key) else {
            return Err(self
                .certname()
                .err()
                .unwrap_or_else(|| Usage("cert and key are not set".to_owned())));
        };
        Ok(Paths {
            certificate: certificate.clone(),
            key: key.clone(),
            ca: self.files.ca.clone(),
            crl: self.files.crl.clone(),
            revocation: self.files.revocation,
        })
    }

    /// The CA that verifies other nodes, from the current files.
    ///
    /// # Errors
    /// The file that cannot be used, and the reason.
    pub fn authority(&self) -> Result<Authority, Malformed> {
        let Files {
            ca,
            crl,
            revocation,
            ..
        } = &self.files;
        files::authority(ca, crl, *revocation)
    }

    /// The rules with which this node reacts to events, from the current files.
    ///
    /// # Errors
    /// The wrong file, the place in it, and the reason.
    pub fn reactions(&self) -> Result<Vec<Rule>, Usage> {
        rules::read(&self.rules_dir).map_err(|e| Usage(format!("the settings cannot be used: {e}")))
    }

    /// The rules that decide whether a trigger is accepted.
    ///
    /// # Errors
    /// The certname of this node is not known, or `accept` is not set.
    pub fn rules(&self) -> Result<Rules, Usage> {
        let from = self.accept.clone().ok_or_else(|| {
            Usage(
                "it is not set whose triggers this node takes; set accept, to [] for nobody's"
                    .to_owned(),
            )
        })?;
        let on_behalf = self.accept_for.clone();
        Ok(Rules {
            me: self.certname()?.clone(),
            accept: Accept { from, on_behalf },
            skew: self.skew,
            hop_limit: self.hop_limit,
            locks: self.locks()?,
        })
    }

    /// The locks for which this node is a candidate, from the current files.
    ///
    /// # Errors
    /// The wrong file, the place in it, and the reason.
    pub fn locks(&self) -> Result<Vec<Lock>, Usage> {
        let locks = locks::read(&self.locks_dir, self.certname()?);
        locks.map_err(|e| Usage(format!("the settings cannot be used: {e}")))
    }
}

/// Whether the file sets `slots_required = true`, even if other settings in it are invalid.
pub fn requires_slots(flags: &Flags, around: &Surroundings) -> bool {
    let text = read_settings(&file(flags, around).0).unwrap_or_default();
    toml::says(&text, "slots_required", "true")
}

/// Path of the settings file, and whether a flag or a variable named it.
fn file(flags: &Flags, around: &Surroundings) -> (PathBuf, bool) {
    let variable = || variable(&around.environment, "AGAIN_FLEET_CONFIG").map(PathBuf::from);
    let named = flags.config.clone().or_else(variable);
    let is_named = named.is_some();
    (named.unwrap_or_else(|| PathBuf::from(FILE)), is_named)
}

fn read_file(flags: &Flags, around: &Surroundings) -> Result<Layer, String> {
    let (path, is_named) = file(flags, around);
    match read_settings(&path) {
        Ok(text) => Layer::of_file(&text).map_err(|e| format!("{}: {e}", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !is_named => Ok(Layer::default()),
        Err(e) => Err(format!("{} cannot be read: {e}", path.display())),
    }
}

/// Checks that a text is valid as the settings file.
///
/// # Errors
/// A sentence that names the line and the key.
pub fn check(text: &str) -> Result<(), String> {
    Layer::of_file(text).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::value::Value;
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn with(file: &str, environment: &[(&str, &str)], flags: Flags) -> Result<Settings, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("again-fleet.toml");
        std::fs::write(&path, file).expect("written");
        let flags = Flags {
            config: Some(path),
            ..flags
        };
        let around = Surroundings {
            environment: environment
                .iter()
                .map(|(n, v)| (n.into(), v.into()))
                .collect(),
            root: dir.path().to_owned(),
            program: "/usr/bin/again-fleet".into(),
        };
        settings(&flags, &around).map_err(|e| e.to_string())
    }

    fn of(file: &str) -> Settings {
        with(file, &[], Flags::default()).expect(file)
    }

    #[test]
    fn flags_before_environment_before_file_before_defaults() {
        let dir = |file, environment: &[(&str, &str)], flag: Option<&str>| {
            let state_dir = flag.map(PathBuf::from);
            let flags = Flags {
                state_dir,
                ..Flags::default()
            };
            with(file, environment, flags).expect("settings").state_dir
        };
        let (file, variable) = (
            "state_dir = '/file'",
            [("AGAIN_FLEET_STATE_DIR", "/variable")],
        );
        assert_eq!(dir("", &[], None), Path::new("/var/lib/again-fleet"));
        assert_eq!(dir(file, &[], None), Path::new("/file"));
        assert_eq!(dir(file, &variable, None), Path::new("/variable"));
        assert_eq!(dir(file, &variable, Some("/flag")), Path::new("/flag"));
        let relative = Flags {
            state_dir: Some("x".into()),
            ..Flags::default()
        };
        let error = with("", &[], relative).expect_err("refused");
        assert!(
            error.ends_with("the option --state-dir: 'x' is not an absolute path"),
            "{error}"
        );
    }

    #[test]
    fn all_that_can_be_set_is_read() {
        let all = r#"
backend = "nats"
endpoints = ["localhost", "[::1]:4333", "127.0.0.2:1"]
tls = false
namespace = "test"
certname = "web1.example.com"
cert = "/c"
key = "/k"
ca = "/a"
crl = "/r"
revocation = "leaf"
trust = "backend"
accept = ["web*.example.com", "pp_role=frontend"]
operators = ["admin.example.com"]
run_cmd = ["puppet", "apply", "/site.pp"]
cwd = "/w"
facts = ["role"]
ttl = "2h"
skew = 60
spread = "100ms"
hop_limit = 3
cap_share = 20
slots_group = "puppetserver"
slots_limit = 8
slots_required = true
slots_max_wait = "10m"
helper = "/opt/again"
state_dir = "/s"
run_dir = "/n"
spool_dir = "/e"
rules_dir = "/d"
locks_dir = '/l'

[accept_for]
"puppet.example.com" = ["web*.example.com"]
"#;
        let set = of(all);
        let host = |host: &str, port| Endpoint {
            host: host.to_owned(),
            port,
        };
        assert_eq!(
            (set.backend, set.tls, set.trust),
            (Backend::Nats, false, Trust::Backend)
        );
        let endpoints = [
            host("localhost", None),
            host("::1", Some(4333)),
            host("127.0.0.2", Some(1)),
        ];
        assert_eq!(set.endpoints, endpoints);
        assert_eq!(set.namespace.as_str(), "test");
        assert_eq!(set.certname().expect("known").as_str(), "web1.example.com");
        let paths = set.identity().expect("known");
        let files = [&paths.certificate, &paths.key, &paths.ca, &paths.crl];
        assert_eq!(
            files.map(|path| path.to_str().expect("plain")),
            ["/c", "/k", "/a", "/r"]
        );
        assert_eq!(paths.revocation, Revocation::Leaf);
        assert_eq!(set.accept.as_deref().map(<[Who]>::len), Some(2));
        let pattern = |text: &str| text.parse::<Pattern>().expect("a pattern");
        let puppet = Who::Named(pattern("puppet.example.com"));
        assert_eq!(
            set.accept_for,
            [(puppet, vec![pattern("web*.example.com")])]
        );
        assert_eq!((set.operators.len(), set.facts.len()), (1, 1));
        assert_eq!(set.run_cmd, ["puppet", "apply", "/site.pp"]);
        assert_eq!(set.cwd, Path::new("/w"));
        let spans = [set.ttl, set.skew, set.spread].map(Span::millis);
        assert_eq!((spans, set.hop_limit), ([7_200_000, 60_000, 100], 3));
        assert_eq!((set.cap_share, of("").cap_share), (20, 50));
        let group = set.slots_group.as_ref().map(Name::as_str);
        let wait = set.slots_max_wait.millis();
        assert_eq!(
            (group, set.slots_limit, set.slots_required, wait),
            (Some("puppetserver"), 8, true, 600_000)
        );
        let directories = [&set.run_dir, &set.spool_dir, &set.rules_dir, &set.locks_dir];
        let paths = [&[&set.helper, &set.state_dir], &directories[..]].concat();
        assert_eq!(
            paths
                .iter()
                .map(|path| path.to_str().expect("plain"))
                .collect::<Vec<_>>(),
            ["/opt/again", "/s", "/n", "/e", "/d", "/l"]
        );
        // Not one key is missing here.
        let unset = KEYS.iter().find(|key| {
            !all.lines().any(|line| {
                line.split([' ', ']'])
                    .next()
                    .is_some_and(|word| word.trim_start_matches('[') == **key)
            })
        });
        assert_eq!(unset, None);
    }

    #[test]
    fn nobody_is_accepted_by_default() {
        let set = of("certname = 'web1'");
        let error = set.rules().expect_err("refused").to_string();
        assert!(error.contains("set accept, to [] for nobody's"), "{error}");
        assert_eq!(
            of("certname = 'web1'\naccept = []")
                .rules()
                .expect("rules")
                .me
                .as_str(),
            "web1"
        );
        assert_eq!(
            (set.accept, set.trust, set.tls),
            (None, Trust::Puppet, true)
        );
        assert_eq!(set.helper, Path::new("/usr/bin/again"));
        assert_eq!(of("accept = []").accept, Some(Vec::new()));
    }

    #[test]
    fn who_is_accepted_stands_in_no_environment() {
        let hostile = [
            ("AGAIN_FLEET_ACCEPT", "*"),
            ("AGAIN_FLEET_TRUST", "backend"),
            ("AGAIN_FLEET_RUN_CMD", "id"),
            ("AGAIN_FLEET_CWD", "/tmp"),
            ("AGAIN_FLEET_CAP_SHARE", "100"),
        ];
        let set = with("", &hostile, Flags::default()).expect("settings");
        assert_eq!((set.accept, set.cap_share), (None, SHARE));
        for key in [
            "trust",
            "accept",
            "accept_for",
            "operators",
            "run_cmd",
            "cwd",
            "cap_share",
        ] {
            assert!(VARIABLES.iter().all(|(by_variable, _)| *by_variable != key));
        }
        assert!(
            VARIABLES
                .iter()
                .all(|(key, name)| *name == format!("AGAIN_FLEET_{}", key.to_uppercase()))
        );
    }

    #[test]
    fn a_list_in_the_environment_has_commas() {
        let endpoints = |text| {
            with("", &[("AGAIN_FLEET_ENDPOINTS", text)], Flags::default())
                .map(|set| set.endpoints.len())
        };
        assert_eq!(endpoints("a:1, b"), Ok(2));
        assert!(
            endpoints("a,,b")
                .expect_err("refused")
                .contains("AGAIN_FLEET_ENDPOINTS: '' is no server")
        );
    }

    #[test]
    fn a_node_without_a_name_says_so() {
        let set = of("");
        assert!(set.certname().is_err());
        assert!(
            set.identity()
                .expect_err("refused")
                .to_string()
                .ends_with("set certname")
        );
        let paths = of("certname = 'web1'").identity().expect("known");
        assert!(
            paths.certificate.ends_with("certs/web1.pem")
                && paths.key.ends_with("private_keys/web1.pem")
        );
    }

    #[test]
    fn an_error_names_file_line_and_key() {
        for (file, words) in [
            (
                "ttl = 3\nttls = 4\n",
                &["again-fleet.toml: line 2: unknown key 'ttls'; known are backend, "][..],
            ),
            (
                "\nttl = \"x\"\n",
                &["line 2", "ttl", "'x' is not a duration"],
            ),
            ("ttl = 0", &["line 1", "ttl", "'0' is not from 1s to 1d"]),
            ("ttl = '25h'", &["line 1", "ttl", "is not from 1s to 1d"]),
            ("skew = '2h'", &["line 1", "skew", "to 1h"]),
            (
                "spread = '50 ms'",
                &["line 1", "spread", "'50 ms' is not a duration"],
            ),
            ("hop_limit = 21", &["line 1", "hop_limit", "from 1 to 20"]),
            ("slots_limit = 0", &["line 1", "slots_limit", "from 1 to"]),
            ("slots_group = ''", &["line 1", "slots_group", "empty"]),
            ("slots_max_wait = '2d'", &["slots_max_wait", "to 1d"]),
            (
                "backend = 'zookeeper'",
                &["line 1", "backend", "'zookeeper' is not one of etcd, nats"],
            ),
            (
                "tls = 'maybe'",
                &["line 1", "tls", "'maybe' is not one of true, false"],
            ),
            (
                "\nendpoints = ['a', 'https://b']",
                &[
                    "line 2",
                    "endpoints",
                    "'https://b' is no server",
                    "HOST:PORT",
                ],
            ),
            (
                "endpoints = ['a:65536']",
                &["endpoints", "no number up to 65535"],
            ),
            (
                "certname = 'Web1'",
                &["line 1", "certname", "'Web1' is no certname"],
            ),
            (
                "namespace = 'a/b'",
                &["line 1", "namespace", "'a/b' is no namespace"],
            ),
            ("key = 'x'", &["line 1", "key", "absolute"]),
            (
                "trust = 'all'",
                &["line 1", "trust", "not one of puppet, backend"],
            ),
            ("accept = 'web1'", &["line 1", "accept"]),
            (
                "accept = ['web1', 'Web*']",
                &["line 1", "accept", "'Web*' is no certname"],
            ),
            ("run_cmd = []", &["line 1", "'run_cmd'", "empty"]),
            (
                r#"run_cmd = ["puppet", ""]"#,
                &["line 1", "'run_cmd'", "empty"],
            ),
            (
                "[accept_for]\nweb1 = 'x'",
                &["line 2", "'accept_for': in the row 'web1'"],
            ),
            ("ttl", &["line 1"]),
            (
                "trust = 'backend'\ntls = false\nendpoints = ['localhost', '192.0.2.1:1']",
                &["reaches 192.0.2.1", "tls = true", "localhost"],
            ),
            (
                "trust = 'backend'\ntls = false\nendpoints = ['localhost.example.com']",
                &["reaches localhost.example.com"],
            ),
        ] {
            let error = with(file, &[], Flags::default()).expect_err(file);
            for word in words {
                assert!(error.contains(word), "{error:?} lacks {word:?}");
            }
        }
        let error =
            with("", &[("AGAIN_FLEET_TTL", "soon")], Flags::default()).expect_err("refused");
        assert!(error.contains("AGAIN_FLEET_TTL"), "{error}");
        let missing = Flags {
            config: Some("/nonexistent".into()),
            ..Flags::default()
        };
        let around = Surroundings {
            environment: Vec::new(),
            root: "/nonexistent".into(),
            program: PathBuf::new(),
        };
        let error = settings(&missing, &around)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("/nonexistent cannot be read"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC{0,60}") {
            let _ = check(&text);
        }

        #[test]
        fn any_server_is_taken_or_refused(text in "[a-z0-9.:\\[\\]-]{0,12}") {
            let _ = Endpoint::read(&text);
        }
    }
}
