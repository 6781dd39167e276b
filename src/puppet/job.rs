//! Whether one run of Puppet does the job of another.

use std::path::{Path, PathBuf};

use super::paths::{Setup, conf_file};
use again_base::puppet::cmdline::Invocation;
use again_base::puppet::options::Application;
use again_base::sys::process::os;

/// Settings that identify a run: node, server and state. Two runs that differ in one of them are
/// different runs, wherever it is set.
const OF_THE_RUN: [&str; 11] = [
    "confdir",
    "vardir",
    "ssldir",
    "certname",
    "server",
    "server_list",
    "serverport",
    "masterport",
    "node_name_value",
    "node_name_fact",
    "environment",
];

/// Settings of [`OF_THE_RUN`] that are paths.
const PATHS: [&str; 3] = ["confdir", "vardir", "ssldir"];

/// Puppet's defaults for these settings (lib/puppet/defaults.rb). The others follow from these,
/// from the machine, or are empty.
const DEFAULTS: [(&str, &[u8]); 2] = [("server", b"puppet"), ("environment", b"production")];

/// Settings that limit a run to a part of its catalog, like the option `--catalog`.
const PARTS: [&str; 2] = ["tags", "skip_tags"];

/// Boolean settings that change how a run applies its catalog.
const FLAGS: [&str; 2] = ["noop", "use_cached_catalog"];

/// Properties of a run of Puppet that determine what the run does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    application: Application,
    conf: PathBuf,
    values: Vec<Option<Vec<u8>>>,
    /// Values of [`PARTS`], each on the command line and in puppet.conf.
    parts: Vec<[Option<Vec<u8>>; 2]>,
    flags: Vec<[Option<bool>; 2]>,
    catalog: Option<Vec<u8>>,
    /// For apply: the directory, and the manifest or the text on the command line.
    apply: Option<(PathBuf, Option<Vec<u8>>)>,
}

impl Job {
    /// Run with this setup in this directory; None if the command line is unknown.
    pub fn of(setup: &Setup, directory: &Path) -> Option<Self> {
        let line = setup.invocation.as_ref()?;
        let value = |name: &&str| {
            let usual = DEFAULTS.iter().find(|(known, _)| known == name);
            let value = setup
                .setting(name)
                .or(usual.map(|(_, value)| value.to_vec()));
            match PATHS.contains(name) {
                true => value.map(|path| plain(&directory.join(os(&path)))),
                false => value,
            }
        };
        let in_file = |name: &str| setup.conf.value(line.application, name);
        let part = |name: &&str| {
            let in_file = in_file(name).map(|text| text.as_bytes().to_vec());
            [line.value(name).map(<[u8]>::to_vec), in_file]
        };
        let flag = |name: &&str| [line.flag(name), setup.conf.flag(line.application, name)];
        let is_apply = line.application == Application::Apply;
        let conf = directory.join(conf_file(Some(line), &setup.layout));
        Some(Job {
            application: line.application,
            conf: conf.canonicalize().unwrap_or(conf),
            values: OF_THE_RUN.iter().map(value).collect(),
            parts: PARTS.iter().map(part).collect(),
            flags: FLAGS.iter().map(flag).collect(),
            catalog: line.catalog.clone(),
            apply: is_apply.then(|| (directory.to_owned(), source(line))),
        })
    }

    /// Whether this run does what the run of `wanted` would do: it has the same application and
    /// configuration, and leaves out nothing that `wanted` does not leave out too. A setting of the
    /// command line has to be the same there, or not set here; puppet.conf is the same file for
    /// both.
    pub fn does(&self, wanted: &Job) -> bool {
        let same_run = self.application == wanted.application
            && self.conf == wanted.conf
            && self.values == wanted.values
            && self.apply == wanted.apply
            && self.catalog == wanted.catalog;
        let parts = self.parts.iter().zip(&wanted.parts);
        let flags = self.flags.iter().zip(&wanted.flags);
        same_run
            && parts.into_iter().all(|(own, wanted)| does(own, wanted))
            && flags.into_iter().all(|(own, wanted)| {
                // A setting that is off in puppet.conf is equivalent to an unset one.
                let on = |[line, file]: &[Option<bool>; 2]| [*line, file.filter(|is_on| *is_on)];
                does(&on(own), &on(wanted))
            })
    }
}

/// Whether a setting, on the command line and in puppet.conf, is as wanted: the same on both
/// command lines, or not on the run's command line; then puppet.conf decides.
fn does<T: PartialEq>(own: &[Option<T>; 2], wanted: &[Option<T>; 2]) -> bool {
    let [line, file] = own;
    match (line, &wanted[0]) {
        (Some(own), Some(wanted)) => own == wanted,
        (Some(_), None) => false,
        (None, Some(wanted)) => file.as_ref().is_none_or(|file| file == wanted),
        (None, None) => file == &wanted[1],
    }
}

/// Manifest of apply: the words that name it, or contain its text.
fn source(line: &Invocation) -> Option<Vec<u8>> {
    line.loose.first().cloned().or(line.code.clone())
}

/// Path without `.`, double slashes and a slash at its end.
fn plain(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let path: PathBuf = path.components().collect();
    path.as_os_str().as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::paths::layout;
    use super::*;
    use again_base::puppet::cmdline::parse;
    use again_base::puppet::conf::Conf;

    fn job(line: &str, conf: &str) -> Job {
        let argv: Vec<Vec<u8>> = format!("ruby puppet {line}")
            .split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect();
        let setup = Setup {
            invocation: parse(&argv),
            conf: Conf::parse(conf.as_bytes()),
            layout: layout(Path::new("/usr/bin/ruby3.1"), None, |_| false),
        };
        Job::of(&setup, Path::new("/d")).expect(line)
    }

    fn does(run: &str, rerun: &str, conf: &str) -> bool {
        job(run, conf).does(&job(rerun, conf))
    }

    const CONF: &str = "[main]\ncertname = n\n[agent]\nenvironment = e\n";

    #[test]
    fn a_run_of_the_same_configuration_does_the_job() {
        for (run, rerun) in [
            ("agent -t", "agent -t"),
            ("agent", "agent --onetime --no-daemonize --no-splay"),
            ("agent -t --verbose --color false", "agent -t"),
            ("agent -t --environment=e", "agent -t"),
            ("agent -t --certname n --server puppet", "agent -t"),
            ("agent -t --confdir /etc/puppet/", "agent -t"),
            ("agent -t --tags a", "agent -t --tags=a"),
            // It applies more than is wanted.
            ("agent -t", "agent -t --tags=a"),
            ("agent -t", "agent -t --skip_tags a"),
            ("agent -t", "agent -t --use_cached_catalog"),
            ("agent -t", "agent -t --no-noop"),
            ("agent -t --no-noop", "agent -t --no-noop"),
            // No abbreviation of a setting is one, nor is one with another dash.
            ("agent -t --noo", "agent -t"),
            ("agent -t --skip-tags x", "agent -t"),
            ("apply x.pp", "apply x.pp --verbose"),
            ("apply -e a", "apply --execute a"),
        ] {
            assert!(does(run, rerun, CONF), "{run}, {rerun}");
        }
    }

    #[test]
    fn a_run_of_anything_else_does_not() {
        for (run, rerun) in [
            ("agent -t --noop", "agent -t"),
            ("agent -t --no-noop", "agent -t"),
            ("agent --noop", "agent -t"),
            ("agent -t --tags a", "agent -t"),
            ("agent -t --tags=a", "agent -t --tags b"),
            ("agent -t --skip_tags a", "agent -t"),
            ("agent -t --use_cached_catalog", "agent -t"),
            ("agent -t --no-use_cached_catalog", "agent -t"),
            ("agent -t --environment x", "agent -t"),
            ("agent -t -E x", "agent -t"),
            ("agent -t", "agent -t --environment x"),
            ("agent -t --config /x", "agent -t"),
            ("agent -t --confdir /x", "agent -t"),
            ("agent -t --vardir /x", "agent -t"),
            ("agent -t --ssldir /x", "agent -t"),
            ("agent -t --certname x", "agent -t"),
            ("agent -t --server x", "agent -t"),
            ("agent -t --serverport 1", "agent -t"),
            ("agent -t", "agent -t --vardir /x"),
            ("apply x.pp", "agent -t"),
            ("apply y.pp", "apply x.pp"),
            ("apply -e a", "apply -e b"),
            ("apply --catalog c", "apply x.pp"),
            ("apply --catalog c", "apply --catalog d"),
        ] {
            assert!(!does(run, rerun, CONF), "{run}, {rerun}");
        }
        let elsewhere = Job {
            apply: Some(("/e".into(), Some(b"x.pp".to_vec()))),
            ..job("apply x.pp", "")
        };
        assert!(!elsewhere.does(&job("apply x.pp", "")));
    }

    #[test]
    fn puppet_conf_decides_what_no_command_line_says() {
        for (run, rerun, conf, expected) in [
            ("agent -t", "agent -t", "noop = true", true),
            ("agent -t", "agent -t --no-noop", "noop = true", false),
            ("agent -t", "agent -t --no-noop", "noop = false", true),
            (
                "agent -t --no-noop",
                "agent -t --no-noop",
                "noop = true",
                true,
            ),
            ("agent -t", "agent -t", "tags = a", true),
            ("agent -t", "agent -t --tags a", "tags = a", true),
            ("agent -t", "agent -t --tags b", "tags = a", false),
            (
                "agent -t",
                "agent -t --no-use_cached_catalog",
                "use_cached_catalog = true",
                false,
            ),
            (
                "apply x.pp",
                "apply x.pp --no-noop",
                "[agent]\nnoop = true",
                true,
            ),
            (
                "apply x.pp",
                "apply x.pp --no-noop",
                "[user]\nnoop = true",
                false,
            ),
        ] {
            assert_eq!(does(run, rerun, conf), expected, "{run}, {rerun}, {conf}");
        }
        assert!(!job("agent -t", "server = a").does(&job("agent -t", "server = b")));
    }
}
