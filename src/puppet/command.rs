//! A command line before it is run: where its program is, and what it says if it is
//! Puppet's.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::ancestry::Line;
use super::cmdline::{base_name, is_ruby_name};
use super::environment;
use super::live::setup;
use super::paths::Setup;
use super::rerun::rewrite;
use crate::sys::process::os;

/// A command line, and what is known of it.
#[derive(Debug)]
pub struct Command {
    /// Its words, as they stand.
    pub words: Vec<Vec<u8>>,
    /// Where its program may be found at the time of the rerun, the best first.
    pub programs: Vec<PathBuf>,
    /// What it says as a command line of Puppet's, if it is one.
    pub setup: Setup,
}

/// Where a command line is run.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// `NAME=VALUE` each.
    pub environment: &'a [Vec<u8>],
    /// The working directory.
    pub directory: &'a Path,
    /// The user's home; none for root, whose Puppet has its files elsewhere.
    pub home: Option<&'a Path>,
}

impl Command {
    /// The command line of a run. `exe` is what its process executes.
    pub fn of_run(line: Line, exe: Option<&Path>, place: Place<'_>) -> Self {
        Command {
            programs: programs(exe, line.argv.first(), place),
            setup: setup(
                Some(line.invocation),
                exe.unwrap_or(Path::new("")),
                place.home,
            ),
            words: line.argv,
        }
    }

    /// A command that somebody named. One that runs no catalog, such as
    /// `puppet agent --disable`, counts as any program.
    pub fn named(mut words: Vec<Vec<u8>>, place: Place<'_>) -> Self {
        // Two programs of the same relative name in two directories are two targets.
        if let Some(first) = words.first_mut().filter(|first| first.contains(&b'/')) {
            *first = place
                .directory
                .join(os(first))
                .as_os_str()
                .as_bytes()
                .to_vec();
        }
        let programs = programs(None, words.first(), place);
        // A link may lead to where the packages keep their own.
        let exe = programs
            .iter()
            .find_map(|program| program.canonicalize().ok());
        let line = Line::parse(words.clone()).filter(|line| !line.invocation.is_no_run);
        let invocation = line.map(|line| line.invocation);
        Command {
            setup: setup(invocation, &exe.unwrap_or_default(), place.home),
            programs,
            words,
        }
    }

    /// The words to run: of Puppet's, those for one prompt foreground run.
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        match &self.setup.invocation {
            Some(invocation) => rewrite(&self.words, invocation, &self.setup.conf),
            None => self.words.clone(),
        }
    }

    /// The words as /proc will show them of the run itself, by which it is known again:
    /// the kernel puts a script's interpreter in front of it (execve(2)), and the
    /// wrapper of the all-in-one packages executes their own ruby and puppet.
    pub fn as_run(&self, words: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let is_script = self
            .setup
            .invocation
            .as_ref()
            .is_some_and(|line| line.script == 0);
        let Some(program) = self.programs.iter().find(|program| program.is_file()) else {
            return words;
        };
        if !is_script {
            return words;
        }
        let is_aio = || {
            program
                .canonicalize()
                .is_ok_and(|path| path.starts_with("/opt/puppetlabs"))
        };
        let mut front = match interpreter(program) {
            Some(mut interpreter) => {
                interpreter.push(program.as_os_str().as_bytes().to_vec());
                interpreter
            }
            None if is_aio() => ["ruby", "puppet"]
                .map(|name| format!("/opt/puppetlabs/puppet/bin/{name}").into_bytes())
                .to_vec(),
            None => return words,
        };
        front.extend(words.into_iter().skip(1));
        front
    }
}

/// The ruby that a script names in its first line, and that ruby's option.
fn interpreter(script: &Path) -> Option<Vec<Vec<u8>>> {
    let mut head = Vec::new();
    File::open(script)
        .ok()?
        .take(256)
        .read_to_end(&mut head)
        .ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let mut words = line.trim_ascii().splitn(2, |&b| b == b' ');
    let program = words.next()?;
    let option = words.next().map(|option| option.trim_ascii().to_vec());
    match option {
        Some(ruby) if base_name(program) == b"env" && is_ruby_name(&ruby) => Some(vec![ruby]),
        option if is_ruby_name(base_name(program)) => {
            Some([program.to_vec()].into_iter().chain(option).collect())
        }
        _ => None,
    }
}

/// Where the program of a command line may be found: what its run executes; what its
/// first word names. If the file was replaced meanwhile, the name goes first, then what
/// is now at its old place.
fn programs(exe: Option<&Path>, first: Option<&Vec<u8>>, place: Place<'_>) -> Vec<PathBuf> {
    let first = first.map(Vec::as_slice).unwrap_or_default();
    let named: Vec<PathBuf> = if first.contains(&b'/') {
        vec![place.directory.join(os(first))]
    } else {
        let path = environment::value(place.environment, b"PATH").unwrap_or(environment::PATH);
        path.split(|&b| b == b':')
            // An empty or relative element would make it depend on a directory.
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
    use super::*;

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split(' ').map(|w| w.as_bytes().to_vec()).collect()
    }

    fn text(words: &[Vec<u8>]) -> String {
        let words: Vec<_> = words.iter().map(|w| String::from_utf8_lossy(w)).collect();
        words.join(" ")
    }

    #[test]
    fn a_replaced_program_is_looked_up_by_name_first() {
        let place = Place {
            environment: &[b"PATH=/a:rel::/b".to_vec()],
            directory: Path::new("/d"),
            home: None,
        };
        let list = |exe: &str, first: &[u8]| -> Vec<String> {
            programs(Some(Path::new(exe)), Some(&first.to_vec()), place)
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
        for (head, shown) in [
            (
                "#!/usr/bin/ruby\n",
                format!("/usr/bin/ruby {path} agent -t"),
            ),
            (
                "#! /usr/bin/ruby3.1 -W0 -x\n",
                format!("/usr/bin/ruby3.1 -W0 -x {path} agent -t"),
            ),
            ("#!/usr/bin/env ruby\n", format!("ruby {path} agent -t")),
            ("#!/bin/sh\n", "puppet agent -t".to_owned()),
            ("", "puppet agent -t".to_owned()),
        ] {
            std::fs::write(&script, head).expect("written");
            let place = Place {
                environment: &[[b"PATH=", directory.path().as_os_str().as_bytes()].concat()],
                directory: Path::new("/"),
                home: None,
            };
            let command = Command::named(words("puppet agent -t"), place);
            assert_eq!(text(&command.as_run(command.arguments())), shown, "{head}");
            let command = Command::named(words("puppet config print"), place);
            assert_eq!(
                text(&command.as_run(command.arguments())),
                "puppet config print"
            );
        }
    }

    #[test]
    fn what_runs_no_catalog_counts_as_any_program() {
        let place = Place {
            environment: &[],
            directory: Path::new("/d"),
            home: None,
        };
        for (line, arguments) in [
            (
                "puppet agent",
                "puppet agent --onetime --no-daemonize --no-splay",
            ),
            (
                "bin/puppet agent --onetime --daemonize",
                "/d/bin/puppet agent --onetime --no-daemonize",
            ),
            ("puppet agent --disable why", "puppet agent --disable why"),
            ("puppet agent --enable", "puppet agent --enable"),
            ("wrapper agent", "wrapper agent"),
        ] {
            assert_eq!(
                text(&Command::named(words(line), place).arguments()),
                arguments
            );
        }
    }
}
