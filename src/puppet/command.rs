//! A command line before it is run: its program, and its meaning if it is Puppet's.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::ancestry::Line;
use super::environment;
use super::job::Job;
use super::live::setup;
use super::paths::Setup;
use super::rerun::rewrite;
use again_base::puppet::cmdline::{Invocation, is_ruby_name};
use again_base::puppet::prefix::{self, Prefix};
use again_base::sys::process::{base_name, os};

/// Command line with its program and meaning.
#[derive(Debug)]
pub struct Command {
    /// Words of the command line, unchanged.
    pub words: Vec<Vec<u8>>,
    /// Possible paths of the program at the time of the rerun, the best first.
    pub programs: Vec<PathBuf>,
    /// Puppet's command line and configuration, if it is Puppet's. Its indices count from the end
    /// of the prefix.
    pub setup: Setup,
    /// Words before Puppet's own, such as `nice -n 5`.
    prefix: Prefix,
}

/// Surroundings in which a command line is run.
#[derive(Debug)]
pub struct Place {
    /// Environment, `NAME=VALUE` each.
    pub environment: Vec<Vec<u8>>,
    /// Working directory.
    pub directory: PathBuf,
    /// User's home directory; None for root, whose Puppet has its files elsewhere.
    pub home: Option<PathBuf>,
}

impl Place {
    /// Surroundings of this process.
    ///
    /// # Errors
    /// Errors of getcwd(3).
    pub fn here(variables: &[(OsString, OsString)], home: Option<&Path>) -> io::Result<Self> {
        Ok(Place {
            environment: environment::without_ours(environment::entries(variables)),
            directory: std::env::current_dir()?,
            home: home.map(Path::to_owned),
        })
    }
}

impl Command {
    /// Command line of a run. `exe` is the executable of its process.
    pub fn of_run(line: Line, exe: Option<&Path>, place: &Place) -> Self {
        let path = exe.unwrap_or(Path::new(""));
        Command {
            programs: programs(exe, line.argv.first(), place),
            setup: setup(Some(line.invocation), path, place.home.as_deref()),
            words: line.argv,
            prefix: Prefix::default(),
        }
    }

    /// Named command. One that does not run a catalog, such as `puppet agent --disable`, counts as
    /// any other program.
    pub fn named(words: &[OsString], place: &Place) -> Self {
        let mut words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        // Two programs with the same relative name in two directories are two targets.
        if let Some(first) = words.first_mut().filter(|first| first.contains(&b'/')) {
            *first = place.directory.join(os(first)).into_os_string().into_vec();
        }
        let prefix = prefix::of(&words);
        let own = &words[prefix.length..];
        // A link may lead to the directory of the packages.
        let exe = self::programs(None, own.first(), place)
            .iter()
            .find_map(|program| program.canonicalize().ok());
        let line = Line::parse(own.to_vec()).filter(|line| !line.invocation.is_no_run);
        let invocation = line.map(|line| line.invocation);
        Command {
            setup: setup(invocation, &exe.unwrap_or_default(), place.home.as_deref()),
            programs: programs(None, words.first(), place),
            words,
            prefix,
        }
    }

    /// Words to run: for Puppet's command line, those of one prompt foreground run.
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        let (before, own) = self.words.split_at(self.prefix.length);
        match &self.setup.invocation {
            Some(invocation) => {
                let own = rewrite(own, invocation, &self.setup.conf);
                before.iter().cloned().chain(own).collect()
            }
            None => self.words.clone(),
        }
    }

    /// Working directory of the command after the prefix, if the prefix is started in `directory`.
    pub fn directory(&self, directory: &Path) -> PathBuf {
        self.prefix.directory_from(directory)
    }

    /// Job of the command, started in `directory`; None for any other program than Puppet.
    pub fn job(&self, directory: &Path) -> Option<Job> {
        Job::of(&self.setup, &self.directory(directory))
    }

    /// Words as /proc will show them for the run itself, so that it can be recognized: the kernel
    /// puts a script's interpreter in front of it (execve(2)), and the wrapper of the all-in-one
    /// packages executes their own ruby and puppet.
    pub fn as_run(&self, words: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let line = self.setup.invocation.as_ref();
        let program = self.programs.iter().find(|program| program.is_file());
        let is_script = |line: &Invocation| line.script == 0 && self.prefix.length == 0;
        let found = program.filter(|_| line.is_some_and(is_script));
        let Some(mut front) = found.and_then(|program| interpreter(program)) else {
            return words;
        };
        front.extend(words.into_iter().skip(1));
        front
    }
}

/// Words that the kernel substitutes for a ruby script: its interpreter, the interpreter's option,
/// and the script; or those that the wrapper of the all-in-one packages executes.
fn interpreter(script: &Path) -> Option<Vec<Vec<u8>>> {
    let mut head = Vec::new();
    let file = File::open(script).ok()?;
    file.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let mut words = line.trim_ascii().splitn(2, |&b| b == b' ');
    let (program, option) = (words.next()?, words.next().map(<[u8]>::trim_ascii));
    let path = script.as_os_str().as_bytes();
    let words = match (base_name(program), option) {
        (b"env", Some(ruby)) if is_ruby_name(ruby) => vec![ruby, path],
        (name, None) if is_ruby_name(name) => vec![program, path],
        (name, Some(option)) if is_ruby_name(name) => vec![program, option, path],
        _ if script.canonicalize().ok()?.starts_with("/opt/puppetlabs") => AIO.to_vec(),
        _ => return None,
    };
    Some(words.into_iter().map(<[u8]>::to_vec).collect())
}

/// Ruby and puppet that the wrapper of the all-in-one packages executes.
const AIO: [&[u8]; 2] = [
    b"/opt/puppetlabs/puppet/bin/ruby",
    b"/opt/puppetlabs/puppet/bin/puppet",
];

/// Possible paths of a command line's program: the executable of its run, then the file that its
/// first word names. If the file was replaced meanwhile, the name goes first, then the file that is
/// now at the old path.
fn programs(exe: Option<&Path>, first: Option<&Vec<u8>>, place: &Place) -> Vec<PathBuf> {
    let first = first.map(Vec::as_slice).unwrap_or_default();
    let named: Vec<PathBuf> = if first.contains(&b'/') {
        vec![place.directory.join(os(first))]
    } else {
        let path = environment::value(&place.environment, b"PATH").unwrap_or(environment::PATH);
        path.split(|&b| b == b':')
            // An empty or relative element would depend on a directory.
            .filter(|dir| dir.starts_with(b"/"))
            .map(|dir| PathBuf::from(os(dir)).join(os(first)))
            .collect()
    };
    let exe = exe.map(|exe| exe.as_os_str().as_bytes());
    match exe.map(|exe| exe.strip_suffix(b" (deleted)").ok_or(exe)) {
        Some(Ok(replaced)) => named.into_iter().chain([os(replaced).into()]).collect(),
        Some(Err(exe)) => [os(exe).into()].into_iter().chain(named).collect(),
        None => named,
    }
}

#[cfg(test)]
mod tests {
    use super::super::rerun::LOCK_WAIT;
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn place(path: &str) -> Place {
        Place {
            environment: vec![format!("PATH={path}").into_bytes()],
            directory: PathBuf::from("/d"),
            home: None,
        }
    }

    fn text(words: &[Vec<u8>]) -> String {
        let words: Vec<_> = words.iter().map(|w| String::from_utf8_lossy(w)).collect();
        words.join(" ")
    }

    #[test]
    fn a_replaced_program_is_looked_up_by_name_first() {
        let place = place("/a:rel::/b");
        let list = |exe: &str, first: &[u8]| -> Vec<String> {
            programs(Some(Path::new(exe)), Some(&first.to_vec()), &place)
                .iter()
                .map(|p| p.display().to_string())
                .collect()
        };
        assert_eq!(
            list("/usr/bin/ruby3.1", b"/usr/bin/ruby"),
            ["/usr/bin/ruby3.1", "/usr/bin/ruby"]
        );
        assert_eq!(
            list("/usr/bin/ruby3.1 (deleted)", b"ruby"),
            ["/a/ruby", "/b/ruby", "/usr/bin/ruby3.1"]
        );
        assert_eq!(list("/x", b"./y"), ["/x", "/d/./y"]);
    }

    #[test]
    fn a_script_is_known_by_what_the_kernel_makes_of_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = directory.path().join("puppet");
        let path = script.display().to_string();
        let wait = format!(" {}", LOCK_WAIT.join(" "));
        for (head, shown) in [
            (
                "#!/usr/bin/ruby\n",
                format!("/usr/bin/ruby {path} agent -t{wait}"),
            ),
            (
                "#! /usr/bin/ruby3.1 -W0 -x\n",
                format!("/usr/bin/ruby3.1 -W0 -x {path} agent -t{wait}"),
            ),
            (
                "#!/usr/bin/env ruby\n",
                format!("ruby {path} agent -t{wait}"),
            ),
            ("#!/bin/sh\n", format!("puppet agent -t{wait}")),
            ("", format!("puppet agent -t{wait}")),
        ] {
            std::fs::write(&script, head).expect("written");
            let place = place(&directory.path().display().to_string());
            let command = Command::named(&words("puppet agent -t"), &place);
            assert_eq!(text(&command.as_run(command.arguments())), shown, "{head}");
            let command = Command::named(&words("puppet config print"), &place);
            assert_eq!(
                text(&command.as_run(command.arguments())),
                "puppet config print"
            );
        }
    }

    #[test]
    fn what_runs_no_catalog_counts_as_any_program() {
        let place = place("/nowhere");
        let wait = LOCK_WAIT.join(" ");
        for (line, arguments) in [
            (
                "puppet agent",
                "puppet agent --onetime --no-daemonize --no-splay WAIT",
            ),
            (
                "bin/puppet agent --onetime --daemonize",
                "/d/bin/puppet agent --onetime --no-daemonize WAIT",
            ),
            (
                "env -i X=1 bin/puppet agent",
                "env -i X=1 bin/puppet agent --onetime --no-daemonize --no-splay WAIT",
            ),
            (
                "nice -n 5 puppet agent --enable",
                "nice -n 5 puppet agent --enable",
            ),
            ("sh -c puppet agent", "sh -c puppet agent"),
            ("puppet agent --disable why", "puppet agent --disable why"),
            ("puppet agent --enable", "puppet agent --enable"),
            ("wrapper agent", "wrapper agent"),
        ] {
            let expected = arguments.replace("WAIT", &wait);
            assert_eq!(
                text(&Command::named(&words(line), &place).arguments()),
                expected
            );
        }
    }
}
