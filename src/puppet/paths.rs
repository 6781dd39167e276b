//! Where Puppet keeps its lock, its summary and its pid file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cmdline::Invocation;
use super::conf::Conf;
use crate::model::Bytes;

/// Files of the agent, named as Puppet's settings are (lib/puppet/defaults.rb).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// Held while an agent's catalog run is under way.
    pub agent_catalog_run_lockfile: Option<Bytes>,
    /// There while the agent is disabled.
    pub agent_disabled_lockfile: Option<Bytes>,
    /// The summary of the last run.
    pub lastrunfile: Option<Bytes>,
    /// The daemon's pid file.
    pub pidfile: Option<Bytes>,
}

impl Paths {
    /// Relative paths, as a run's options may name them, seen from its directory.
    #[must_use]
    pub fn from_directory(self, directory: &Path) -> Self {
        let whole = |path: Option<Bytes>| {
            path.map(|path| Bytes::from(directory.join(path.path()).as_path()))
        };
        Paths {
            agent_catalog_run_lockfile: whole(self.agent_catalog_run_lockfile),
            agent_disabled_lockfile: whole(self.agent_disabled_lockfile),
            lastrunfile: whole(self.lastrunfile),
            pidfile: whole(self.pidfile),
        }
    }
}

/// The directories of one way to package Puppet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    confdir: PathBuf,
    vardir: PathBuf,
    publicdir: PathBuf,
    rundir: PathBuf,
}

/// Picks the layout: that of the all-in-one packages if Puppet runs from
/// /opt/puppetlabs, else the first whose vardir exists, else Debian's.
///
/// `home` is set for everyone but root.
pub fn layout(exe: &Path, home: Option<&Path>, exists: impl Fn(&Path) -> bool) -> Layout {
    let make = |confdir: &str, vardir: &str, publicdir: &str, rundir: &str| {
        let at = |path: &str| home.map_or_else(|| PathBuf::from(path), |home| home.join(path));
        Layout {
            confdir: at(confdir),
            vardir: at(vardir),
            publicdir: at(publicdir),
            rundir: at(rundir),
        }
    };
    let (aio, debian, older) = if home.is_some() {
        (
            make(
                ".puppetlabs/etc/puppet",
                ".puppetlabs/opt/puppet/cache",
                ".puppetlabs/opt/puppet/public",
                ".puppetlabs/var/run",
            ),
            make(
                ".puppet/etc",
                ".puppet/cache",
                ".puppet/cache/public",
                ".puppet/var/run",
            ),
            make(
                ".puppet",
                ".puppet/var",
                ".puppet/var/state",
                ".puppet/var/run",
            ),
        )
    } else {
        (
            make(
                "/etc/puppetlabs/puppet",
                "/opt/puppetlabs/puppet/cache",
                "/opt/puppetlabs/puppet/public",
                "/var/run/puppetlabs",
            ),
            make(
                "/etc/puppet",
                "/var/cache/puppet",
                "/var/cache/puppet/public",
                "/run/puppet",
            ),
            make(
                "/etc/puppet",
                "/var/lib/puppet",
                "/var/lib/puppet/state",
                "/run/puppet",
            ),
        )
    };
    if exe.starts_with("/opt/puppetlabs") {
        return aio;
    }
    [&debian, &aio, &older]
        .into_iter()
        .find(|layout| exists(&layout.vardir.join("state")))
        .unwrap_or(&debian)
        .clone()
}

/// The configuration file that this command line reads.
pub fn conf_file(invocation: Option<&Invocation>, layout: &Layout) -> PathBuf {
    let value = |name| {
        invocation
            .and_then(|i| i.value(name))
            .map(crate::sys::process::os)
    };
    value("config").map_or_else(
        || {
            value("confdir")
                .map_or_else(|| layout.confdir.clone(), PathBuf::from)
                .join("puppet.conf")
        },
        PathBuf::from,
    )
}

/// Finds every path: `given` by the request, else `set` in our own settings, else
/// on the run's command line, else in puppet.conf, else by the layout.
pub fn resolve(
    given: &Paths,
    set: &Paths,
    invocation: Option<&Invocation>,
    conf: &Conf,
    layout: &Layout,
) -> Paths {
    let find = |given: &Option<Bytes>, set: &Option<Bytes>, name: &str| {
        given
            .clone()
            .or_else(|| set.clone())
            .or_else(|| lookup(name, invocation, conf, layout, 0).map(Bytes))
    };
    Paths {
        agent_catalog_run_lockfile: find(
            &given.agent_catalog_run_lockfile,
            &set.agent_catalog_run_lockfile,
            "agent_catalog_run_lockfile",
        ),
        agent_disabled_lockfile: find(
            &given.agent_disabled_lockfile,
            &set.agent_disabled_lockfile,
            "agent_disabled_lockfile",
        ),
        lastrunfile: find(&given.lastrunfile, &set.lastrunfile, "lastrunfile"),
        pidfile: find(&given.pidfile, &set.pidfile, "pidfile"),
    }
}

/// Deeper than any real configuration refers to itself.
const DEEPEST: u8 = 8;

fn lookup(
    name: &str,
    invocation: Option<&Invocation>,
    conf: &Conf,
    layout: &Layout,
    depth: u8,
) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    if depth > DEEPEST {
        return None;
    }
    let raw = match invocation.and_then(|i| i.value(name)) {
        Some(value) => value.to_vec(),
        None => match conf.agent(name) {
            Some(value) => value.as_bytes().to_vec(),
            None => match name {
                "confdir" => layout.confdir.as_os_str().as_bytes().to_vec(),
                "vardir" => layout.vardir.as_os_str().as_bytes().to_vec(),
                "publicdir" => layout.publicdir.as_os_str().as_bytes().to_vec(),
                "rundir" => layout.rundir.as_os_str().as_bytes().to_vec(),
                "statedir" => b"$vardir/state".to_vec(),
                "run_mode" => b"agent".to_vec(),
                "agent_catalog_run_lockfile" => b"$statedir/agent_catalog_run.lock".to_vec(),
                "agent_disabled_lockfile" => b"$statedir/agent_disabled.lock".to_vec(),
                "lastrunfile" => b"$publicdir/last_run_summary.yaml".to_vec(),
                "pidfile" => b"$rundir/$run_mode.pid".to_vec(),
                _ => return None,
            },
        },
    };
    interpolate(&raw, |name| {
        lookup(name, invocation, conf, layout, depth + 1)
    })
}

/// Replaces `$name` and `${name}`. `None` if one is not known.
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
    use super::super::cmdline::parse;
    use super::*;
    use proptest::prelude::*;

    fn debian() -> Layout {
        layout(Path::new("/usr/bin/ruby3.1"), None, |_| false)
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
        resolve(
            &none,
            &none,
            parse(&argv).as_ref(),
            &Conf::parse(conf.as_bytes()),
            &debian(),
        )
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
        let conf = Conf::default();
        assert_eq!(
            lock(&resolve(&given, &set, None, &conf, &debian())),
            "/given"
        );
        assert_eq!(lock(&resolve(&none, &set, None, &conf, &debian())), "/set");
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
        assert_eq!(older.vardir, Path::new("/var/lib/puppet"));
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
