//! Paths of Puppet's lock, its summary and its pid file.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use again_base::model::{Bytes, Span};
use again_base::puppet::cmdline::Invocation;
use again_base::puppet::conf::Conf;
use again_base::puppet::options::Application;
use again_base::sys::process::os;

/// Files of the agent, with the names of Puppet's settings (lib/puppet/defaults.rb).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// Lock that an agent's catalog run holds.
    pub agent_catalog_run_lockfile: Option<Bytes>,
    /// File that exists while the agent is disabled.
    pub agent_disabled_lockfile: Option<Bytes>,
    /// Summary of the last run.
    pub lastrunfile: Option<Bytes>,
    /// Pid file of the daemon.
    pub pidfile: Option<Bytes>,
}

impl Paths {
    /// Calls `find` with the name of each setting.
    pub fn of(find: impl Fn(&str) -> Option<Bytes>) -> Self {
        Paths {
            agent_catalog_run_lockfile: find("agent_catalog_run_lockfile"),
            agent_disabled_lockfile: find("agent_disabled_lockfile"),
            lastrunfile: find("lastrunfile"),
            pidfile: find("pidfile"),
        }
    }

    fn get(&self, name: &str) -> Option<&Bytes> {
        match name {
            "agent_catalog_run_lockfile" => self.agent_catalog_run_lockfile.as_ref(),
            "agent_disabled_lockfile" => self.agent_disabled_lockfile.as_ref(),
            "lastrunfile" => self.lastrunfile.as_ref(),
            _ => self.pidfile.as_ref(),
        }
    }

    /// Makes relative paths, which a run's options may contain, absolute from its directory.
    #[must_use]
    pub fn from_directory(self, directory: &Path) -> Self {
        let seen = |path: &Bytes| Bytes::from(directory.join(path.path()).as_path());
        Paths::of(|name| self.get(name).map(seen))
    }
}

/// Directories of one way to package Puppet, in the order of [`DIRECTORIES`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout(Vec<PathBuf>);

const DIRECTORIES: [&str; 4] = ["confdir", "vardir", "publicdir", "rundir"];

/// Root's directories, and those below the home directory of any other user.
type Packaging = [&'static str; 2];

const DEBIAN: Packaging = [
    "/etc/puppet /var/cache/puppet /var/cache/puppet/public /run/puppet",
    ".puppet/etc .puppet/cache .puppet/cache/public .puppet/var/run",
];
const AIO: Packaging = [
    "/etc/puppetlabs/puppet /opt/puppetlabs/puppet/cache /opt/puppetlabs/puppet/public /var/run/puppetlabs",
    ".puppetlabs/etc/puppet .puppetlabs/opt/puppet/cache .puppetlabs/opt/puppet/public .puppetlabs/var/run",
];
const OLDER: Packaging = [
    "/etc/puppet /var/lib/puppet /var/lib/puppet/state /run/puppet",
    ".puppet .puppet/var .puppet/var/state .puppet/var/run",
];

impl Layout {
    fn directory(&self, name: &str) -> Option<&Path> {
        let at = DIRECTORIES.iter().position(|known| *known == name)?;
        self.0.get(at).map(PathBuf::as_path)
    }
}

/// Chooses the layout: that of the all-in-one packages if Puppet runs from /opt/puppetlabs, else
/// the first whose vardir has a `state` directory, else Debian's.
///
/// `home` is set for everyone but root.
pub fn layout(exe: &Path, home: Option<&Path>, exists: impl Fn(&Path) -> bool) -> Layout {
    let make = |[root, user]: Packaging| {
        let (base, directories) = home.map_or((Path::new("/"), root), |home| (home, user));
        let directories = directories.split_ascii_whitespace();
        Layout(directories.map(|path| base.join(path)).collect())
    };
    if exe.starts_with("/opt/puppetlabs") {
        return make(AIO);
    }
    let is_there = |layout: &Layout| {
        let vardir = layout.directory("vardir");
        vardir.is_some_and(|vardir| exists(&vardir.join("state")))
    };
    let found = [DEBIAN, AIO, OLDER].map(make).into_iter().find(is_there);
    found.unwrap_or_else(|| make(DEBIAN))
}

/// Configuration file that this command line reads.
pub fn conf_file(invocation: Option<&Invocation>, layout: &Layout) -> PathBuf {
    let value = |name| invocation?.value(name).map(|path| PathBuf::from(os(path)));
    value("config").unwrap_or_else(|| {
        let usual = || layout.directory("confdir").map(Path::to_owned);
        let confdir = value("confdir").or_else(usual);
        confdir.unwrap_or_default().join("puppet.conf")
    })
}

/// Sources of a setting's value in order of precedence: the command line, puppet.conf, and the
/// defaults of the packaging.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Command line, if it is known and Puppet's.
    pub invocation: Option<Invocation>,
    /// Configuration file that the command line reads.
    pub conf: Conf,
    /// Directories of the packaging.
    pub layout: Layout,
}

/// Puppet's own defaults (lib/puppet/defaults.rb).
const DEFAULTS: &str = "statedir=$vardir/state \
    agent_catalog_run_lockfile=$statedir/agent_catalog_run.lock \
    agent_disabled_lockfile=$statedir/agent_disabled.lock \
    lastrunfile=$publicdir/last_run_summary.yaml pidfile=$rundir/$run_mode.pid";

/// Maximum nesting of `$name`, more than any real configuration has.
const DEEPEST: u8 = 8;

impl Setup {
    /// Finds every path: `given` in the request, else `set` in our own settings, else from these
    /// sources.
    pub fn paths(&self, given: &Paths, set: &Paths) -> Paths {
        Paths::of(|name| {
            let named = given.get(name).or_else(|| set.get(name)).cloned();
            named.or_else(|| self.value(name, 0).map(Bytes))
        })
    }

    /// Maximum time of a run: the setting `runtimeout`, if it is set. Puppet's 0 means no limit.
    pub fn run_timeout(&self) -> Option<Span> {
        let text = self.value("runtimeout", 0)?;
        let span = std::str::from_utf8(&text).ok()?.trim().parse().ok();
        span.filter(|span| *span > Span::ZERO)
    }

    /// Application whose section of puppet.conf applies.
    pub fn application(&self) -> Application {
        let line = self.invocation.as_ref();
        line.map_or(Application::Agent, |line| line.application)
    }

    /// Value of a setting, from this command line and file; for a path, also from the packaging and
    /// Puppet's defaults.
    pub fn setting(&self, name: &str) -> Option<Vec<u8>> {
        self.value(name, 0)
    }

    fn value(&self, name: &str, depth: u8) -> Option<Vec<u8>> {
        if name == "run_mode" {
            return Some(self.application().section().into());
        }
        let on_line = self.invocation.as_ref().and_then(|line| line.value(name));
        let in_file = || self.conf.value(self.application(), name).map(str::as_bytes);
        let packaged = || Some(self.layout.directory(name)?.as_os_str().as_bytes());
        let is_it = |pair: &'static str| pair.strip_prefix(name)?.strip_prefix('=');
        let usual = || Some(DEFAULTS.split(' ').find_map(is_it)?.as_bytes());
        let raw = on_line.or_else(in_file).or_else(packaged).or_else(usual)?;
        let deeper = Some(depth + 1).filter(|depth| *depth <= DEEPEST);
        interpolate(raw, |name| self.value(name, deeper?))
    }
}

/// Replaces `$name` and `${name}`. `None` if one is unknown.
fn interpolate(raw: &[u8], value: impl Fn(&str) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut done = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|&b| b == b'$') {
        done.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let braces = rest.first() == Some(&b'{');
        if braces {
            rest = &rest[1..];
        }
        let length = rest
            .iter()
            .position(|b| !b.is_ascii_alphanumeric() && *b != b'_')
            .unwrap_or(rest.len());
        let name = std::str::from_utf8(&rest[..length]).ok()?;
        done.extend(value(name)?);
        rest = &rest[length..];
        if braces {
            rest = rest.strip_prefix(b"}")?;
        }
    }
    done.extend_from_slice(rest);
    Some(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::puppet::cmdline::parse;
    use proptest::prelude::*;

    fn debian() -> Layout {
        layout(Path::new("/usr/bin/ruby3.1"), None, |_| false)
    }

    #[test]
    fn a_runs_time_is_limited_where_somebody_has_set_it() {
        let limit = |line: &str, conf: &str| {
            let argv: Vec<Vec<u8>> = line.split(' ').map(|w| w.as_bytes().to_vec()).collect();
            setup(parse(&argv), conf).run_timeout().map(Span::secs)
        };
        let agent = "ruby puppet agent -t";
        assert_eq!(limit(agent, ""), None);
        assert_eq!(limit(agent, "[agent]\nruntimeout = 90m"), Some(5400));
        assert_eq!(limit(agent, "[main]\nruntimeout = 0"), None);
        assert_eq!(limit(agent, "runtimeout = soon"), None);
        let line = "ruby puppet agent -t --runtimeout=20";
        assert_eq!(limit(line, "runtimeout = 1h"), Some(20));
    }

    #[test]
    fn a_relative_directory_is_the_runs() {
        let paths =
            found("ruby puppet apply --vardir var x.pp", "").from_directory(Path::new("/d"));
        assert_eq!(lock(&paths), "/d/var/state/agent_catalog_run.lock");
        let paths = found("ruby puppet apply x.pp", "");
        assert_eq!(paths.clone().from_directory(Path::new("/d")), paths);
    }

    fn lock(paths: &Paths) -> String {
        paths
            .agent_catalog_run_lockfile
            .as_ref()
            .expect("a path")
            .lossy()
    }

    fn found(line: &str, conf: &str) -> Paths {
        let argv: Vec<Vec<u8>> = line.split(' ').map(|w| w.as_bytes().to_vec()).collect();
        let none = Paths::default();
        setup(parse(&argv), conf).paths(&none, &none)
    }

    fn setup(invocation: Option<Invocation>, conf: &str) -> Setup {
        Setup {
            invocation,
            conf: Conf::parse(conf.as_bytes()),
            layout: debian(),
        }
    }

    #[test]
    fn each_source_goes_before_the_next() {
        let line = "puppet agent --vardir /v";
        assert_eq!(
            lock(&found("puppet agent", "")),
            "/var/cache/puppet/state/agent_catalog_run.lock"
        );
        assert_eq!(
            lock(&found("puppet agent", "statedir=/s")),
            "/s/agent_catalog_run.lock"
        );
        assert_eq!(
            lock(&found(line, "vardir=/w")),
            "/v/state/agent_catalog_run.lock"
        );
        assert_eq!(
            lock(&found(
                line,
                "[agent]\nagent_catalog_run_lockfile=${statedir}/l"
            )),
            "/v/state/l"
        );
        // --vardir does not move the public directory.
        assert_eq!(
            found(line, "").lastrunfile.expect("a path").lossy(),
            "/var/cache/puppet/public/last_run_summary.yaml"
        );
        assert_eq!(
            found(line, "").pidfile.expect("a path").lossy(),
            "/run/puppet/agent.pid"
        );
        let given = Paths {
            agent_catalog_run_lockfile: Some(Bytes(b"/given".to_vec())),
            ..Paths::default()
        };
        let set = Paths {
            agent_catalog_run_lockfile: Some(Bytes(b"/set".to_vec())),
            ..Paths::default()
        };
        let none = Paths::default();
        assert_eq!(lock(&setup(None, "").paths(&given, &set)), "/given");
        assert_eq!(lock(&setup(None, "").paths(&none, &set)), "/set");
    }

    /// lib/puppet/application/apply.rb, `run_mode :user`.
    #[test]
    fn apply_has_the_paths_of_the_section_user() {
        let conf =
            "[main]\npublicdir=/main\n[agent]\nvardir=/agent\npublicdir=/a\n[user]\nvardir=/user\n";
        let paths = found("puppet apply x.pp", conf);
        assert_eq!(lock(&paths), "/user/state/agent_catalog_run.lock");
        let path = |path: Option<Bytes>| path.expect("a path").lossy();
        assert_eq!(path(paths.lastrunfile), "/main/last_run_summary.yaml");
        assert_eq!(path(paths.pidfile), "/run/puppet/user.pid");
        let paths = found("puppet agent -t", conf);
        assert_eq!(lock(&paths), "/agent/state/agent_catalog_run.lock");
        assert_eq!(path(paths.lastrunfile), "/a/last_run_summary.yaml");
        assert_eq!(path(paths.pidfile), "/run/puppet/agent.pid");
    }

    #[test]
    fn knows_the_layouts() {
        let conf = |layout: &Layout| conf_file(None, layout).display().to_string();
        let aio = layout(Path::new("/opt/puppetlabs/puppet/bin/ruby"), None, |_| {
            false
        });
        assert_eq!(conf(&aio), "/etc/puppetlabs/puppet/puppet.conf");
        let user = layout(
            Path::new("/usr/bin/ruby"),
            Some(Path::new("/home/u")),
            |_| false,
        );
        assert_eq!(conf(&user), "/home/u/.puppet/etc/puppet.conf");
        let older = layout(Path::new("/usr/bin/ruby"), None, |p| {
            p.starts_with("/var/lib/puppet")
        });
        assert_eq!(
            older.directory("vardir"),
            Some(Path::new("/var/lib/puppet"))
        );
    }

    #[test]
    fn a_setting_that_refers_to_itself_is_not_followed_for_ever() {
        assert!(
            found("puppet agent", "vardir=$statedir")
                .agent_catalog_run_lockfile
                .is_none()
        );
    }

    proptest! {
        #[test]
        fn interpolation_is_total(raw in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = interpolate(&raw, |_| Some(b"x".to_vec()));
        }
    }
}
