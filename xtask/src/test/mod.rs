//! Runs rooms of tests, side by side where there are cores for it, and counts.

mod programs;
mod results;
mod rooms;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::programs::Programs;
use self::results::Results;
use self::rooms::{ROOMS, Room, Run, When};
use crate::repository;

/// Which rooms are to run, and how.
#[derive(clap::Args)]
pub struct Options {
    /// Only what every change has to pass: no more rights than a container's root has, a few minutes
    #[arg(long, conflicts_with_all = ["nightly", "rooms"])]
    check: bool,
    /// Only what says something after long
    #[arg(long, conflicts_with = "rooms")]
    nightly: bool,
    /// Leave out what takes more privilege than a container has: lab, matrix
    #[arg(long)]
    without_lab: bool,
    /// Test this program instead of building dist/again
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// One room at a time
    #[arg(long)]
    alone: bool,
    /// Rooms, by name; without any, all but those of the night
    rooms: Vec<String>,
}

/// Runs the rooms; whether all of them passed. The last line counts the tests.
pub fn test(options: &Options) -> Result<bool> {
    let began = Instant::now();
    let rooms = wanted(options)?;
    let programs = prepare(options, &rooms)?;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let capacity = if options.alone { 0 } else { 10 * cores as u32 };
    let mut ended = run_all(&rooms, capacity, |room| {
        Going::start(room, &programs, options, &[])
    })?;
    for one in &mut ended {
        once_more(one, &programs, options)?;
    }

    println!();
    let sum = |count: fn(&Results) -> u64| ended.iter().map(|one| count(&one.results)).sum::<u64>();
    for one in &ended {
        println!("{}", one.line());
    }
    println!("all rooms took {} s", began.elapsed().as_secs());
    for one in ended.iter().filter(|one| !one.late.is_empty()) {
        let late = one.late.join(", ");
        println!("passed by itself only, in {}: {late}", one.room.name);
    }
    let bad: Vec<&Ended> = ended.iter().filter(|one| one.results.failed > 0).collect();
    for one in &bad {
        println!(
            "failed in {}: {}",
            one.room.name,
            one.results.bad.join(", ")
        );
    }
    println!(
        "{} passed, {} failed",
        sum(|results| results.passed),
        sum(|results| results.failed)
    );
    Ok(bad.is_empty())
}

fn wanted(options: &Options) -> Result<Vec<&'static Room>> {
    if options.rooms.is_empty() {
        let is_wanted = |room: &&Room| match room.when {
            When::Check => !options.nightly,
            When::Test => !options.nightly && !options.check,
            When::Lab => !options.nightly && !options.check && !options.without_lab,
            When::Nightly => options.nightly,
        };
        return Ok(ROOMS.iter().filter(is_wanted).collect());
    }
    for name in &options.rooms {
        let names: Vec<&str> = ROOMS.iter().map(|room| room.name).collect();
        ensure!(
            names.contains(&name.as_str()),
            "there is no room {name}: {}",
            names.join(" ")
        );
    }
    let is_wanted = |room: &&Room| options.rooms.iter().any(|name| name == room.name);
    Ok(ROOMS.iter().filter(is_wanted).collect())
}

/// Packages, the program under test, and what else has to be there before anything starts, side by side: the compiler's last step of a
/// program and an image take a processor each. Gives the tests.
fn prepare(options: &Options, rooms: &[&Room]) -> Result<Programs> {
    let needs = rooms.iter().flat_map(|room| room.needs.split_whitespace());
    let mut needs: Vec<&str> = needs.collect();
    needs.sort_unstable();
    needs.dedup();
    must(Command::new("tests/tools/need").args(needs).arg("binutils"))?;
    let images = || -> Result<()> {
        for program in rooms.iter().flat_map(|room| room.before) {
            // What an image is called is nobody's to know here.
            must(Command::new(program).stdout(Stdio::null()))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let images = scope.spawn(images);
        let tests = scope.spawn(|| Programs::build(rooms));
        let built = match options.bin {
            Some(_) => Ok(()),
            None => must(Command::new("tests/tools/build").args(["x86_64", "again"])),
        };
        let images = images.join().expect("no panic");
        let tests = tests.join().expect("no panic");
        built.and(images).and(tests)
    })
}

fn must(command: &mut Command) -> Result<()> {
    let status = command.current_dir(repository()).status();
    let status = status.with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// A room under way.
struct Going {
    room: &'static Room,
    child: Child,
    log: PathBuf,
    began: Instant,
}

/// A room that has ended.
struct Ended {
    room: &'static Room,
    results: Results,
    seconds: u64,
    /// Seconds of a processor that it took, with all that it started and waited for.
    busy: u64,
    /// What failed beside other rooms, and passed by itself.
    late: Vec<String>,
}

impl Going {
    /// Starts a room, with these tests alone if any are named.
    fn start(
        room: &'static Room,
        programs: &Programs,
        options: &Options,
        only: &[String],
    ) -> Result<Going> {
        let logs = repository().join("target/test-logs");
        fs::create_dir_all(&logs)?;
        let log = logs.join(room.name).with_extension("log");
        let file = File::create(&log)?;
        // As started from a terminal: a shell's background job ignores some signals, and so would all that it starts.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", "timeout", "--kill-after=30"])
            .arg(room.limit.to_string())
            .args(words(room, programs)?)
            .args(only);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AGAIN_") {
                command.env_remove(name);
            }
        }
        if let Some(path) = &options.bin {
            let path = path.canonicalize().context("--bin")?;
            command.env("AGAIN_BIN", &path).env("LAB_BINARY", &path);
            command.env("AGAIN", path);
        }
        if let Run::Script(["tests/matrix/run", ..]) = room.run {
            command.env("MATRIX_PROGRAM", programs.tests("matrix")?);
        }
        let child = command
            .current_dir(repository())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", room.name))?;
        println!("--- {} begins", room.name);
        Ok(Going {
            room,
            child,
            log,
            began: Instant::now(),
        })
    }

    /// What came of it, if it has ended; shows what is worth seeing of its output.
    fn ended(&mut self) -> Result<Option<Ended>> {
        let before = children_were_busy()?;
        let Some(status) = self.child.try_wait()? else {
            return Ok(None);
        };
        let busy = children_were_busy()? - before;
        let output = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        let ended = Ended {
            room: self.room,
            results: judged(Results::of(&output), status, self.room.name),
            seconds: self.began.elapsed().as_secs(),
            busy,
            late: Vec::new(),
        };
        println!("=== {}", self.room.name);
        if ended.results.failed > 0 {
            print!("{output}");
        }
        for line in &ended.results.said {
            println!("  {line}");
        }
        println!("{}", ended.line());
        Ok(Some(ended))
    }
}

impl Ended {
    fn line(&self) -> String {
        let Results {
            passed,
            failed,
            cases,
            ..
        } = &self.results;
        let cases = match cases {
            0 => String::new(),
            cases => format!(", {cases} cases counted"),
        };
        format!(
            "=== {}: {passed} passed, {failed} failed{cases}, {} s, {} s of a processor",
            self.room.name, self.seconds, self.busy
        )
    }
}

/// Seconds of a processor that children took which have been waited for, with theirs: cutime and cstime of proc_pid_stat(5), in
/// hundredths.
fn children_were_busy() -> Result<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("/proc/self/stat")?;
    let of_children = fields.split_whitespace().skip(13).take(2);
    let ticks: u64 = of_children.map(|field| field.parse().unwrap_or(0)).sum();
    Ok(ticks / 100)
}

/// The results of a room that ended so: one that failed for another reason than a test has failed all the same, and one that ran
/// no test too.
fn judged(mut results: Results, status: ExitStatus, name: &str) -> Results {
    if results.failed == 0 && !status.success() {
        results.failed = 1;
        results.bad.push(format!("{name} ended with {status}"));
    } else if results.failed == 0 && results.passed == 0 {
        results.failed = 1;
        results.bad.push(format!("{name} ran no test"));
    }
    results
}

fn words(room: &Room, programs: &Programs) -> Result<Vec<String>> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    Ok(match room.run {
        Run::Unit(package) => vec![text(programs.unit(package)?), "--quiet".to_owned()],
        Run::Tests(name, threads) => tests(text(programs.tests(name)?), threads),
        Run::Fleet(name, threads) => tests(text(programs.fleet(name)?), threads),
        Run::Newer(name, threads) => [vec!["tests/engines/newer".to_owned()]]
            .into_iter()
            .chain([tests(text(programs.fleet(name)?), threads)])
            .flatten()
            .collect(),
        Run::Task(words) => [text(std::env::current_exe()?)]
            .into_iter()
            .chain(words.iter().map(|word| (*word).to_owned()))
            .collect(),
        Run::Script(words) => words.iter().map(|word| (*word).to_owned()).collect(),
    })
}

/// Integration tests, so many at a time.
fn tests(program: String, threads: usize) -> Vec<String> {
    let threads = format!("--test-threads={threads}");
    vec![
        program,
        "--quiet".to_owned(),
        "--show-output".to_owned(),
        threads,
    ]
}

/// Whether a room may start beside others: alone it may always.
fn fits(room: &Room, beside: u32, capacity: u32) -> bool {
    beside == 0 || beside + room.load <= capacity
}

/// Runs all, so many at once as the capacity allows, the first ones first.
fn run_all(
    rooms: &[&'static Room],
    capacity: u32,
    start: impl Fn(&'static Room) -> Result<Going>,
) -> Result<Vec<Ended>> {
    let mut waiting: VecDeque<&Room> = rooms.iter().copied().collect();
    let mut going: Vec<Going> = Vec::new();
    let mut done = Vec::new();
    while !(waiting.is_empty() && going.is_empty()) {
        let beside = going.iter().map(|one| one.room.load).sum();
        if let Some(next) = waiting.iter().position(|room| fits(room, beside, capacity)) {
            let room = waiting.remove(next).expect("a room");
            going.push(start(room)?);
            continue;
        }
        std::thread::sleep(Duration::from_millis(50));
        let mut left = Vec::new();
        for mut one in going {
            match one.ended()? {
                Some(ended) => done.push(ended),
                None => left.push(one),
            }
        }
        going = left;
    }
    Ok(done)
}

/// What a room runs once more, by itself, because it failed beside others: a busy machine may be late. Some tests of a program, or a
/// script as a whole. More than a few, or what no machine's business can break, stay failed.
fn again_alone(room: &Room, results: &Results) -> Option<Vec<String>> {
    const FEW: u64 = 5;
    let named = results.bad.len() as u64 == results.failed;
    match room.run {
        _ if results.failed == 0 => None,
        Run::Tests(..) | Run::Fleet(..) | Run::Newer(..) if named && results.failed <= FEW => {
            let exact = std::iter::once("--exact".to_owned());
            Some(exact.chain(results.bad.iter().cloned()).collect())
        }
        Run::Script(_) if results.failed <= FEW => Some(Vec::new()),
        _ => None,
    }
}

/// What failed at first and passes now; a script need not have named what failed.
fn late(room: &str, first: Vec<String>, second: &Results) -> Vec<String> {
    if first.is_empty() && second.failed == 0 {
        return vec![room.to_owned()];
    }
    let is_good = |name: &String| !second.bad.contains(name);
    first.into_iter().filter(is_good).collect()
}

/// Runs what failed in a room once more, when nothing else runs. What passes now is named in the end.
fn once_more(ended: &mut Ended, programs: &Programs, options: &Options) -> Result<()> {
    let Some(only) = again_alone(ended.room, &ended.results) else {
        return Ok(());
    };
    println!(
        "once more, by itself, of {}: {}",
        ended.room.name,
        ended.results.bad.join(", ")
    );
    let mut going = Going::start(ended.room, programs, options, &only)?;
    let second = loop {
        match going.ended()? {
            Some(second) => break second,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let first = std::mem::replace(&mut ended.results, second.results);
    ended.late = late(ended.room.name, first.bad, &ended.results);
    if !only.is_empty() {
        ended.results.passed += first.passed;
        ended.results.said.splice(0..0, first.said);
        ended.results.cases += first.cases;
    }
    ended.seconds += second.seconds;
    ended.busy += second.busy;
    Ok(())
}

/// Checks of form: formatting, lints, and that every script can be read. Prints its own count; whether all were good.
pub fn style() -> Result<bool> {
    let mut checks = vec![
        vec!["cargo", "fmt", "--all", "--check"],
        vec![
            "cargo",
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    ];
    let scripts = bash_scripts(&repository())?;
    checks.extend(scripts.iter().map(|path| vec!["bash", "-n", path.as_str()]));
    let mut failed = 0;
    for words in &checks {
        let status = Command::new(words[0])
            .args(&words[1..])
            .current_dir(repository())
            .status()?;
        if status.success() {
            println!("ok {}", words.join(" "));
        } else {
            println!("FAILED {}", words.join(" "));
            failed += 1;
        }
    }
    println!("style: {} passed, {failed} failed", checks.len() - failed);
    Ok(failed == 0)
}

/// Every file in tests and .ci that bash runs.
fn bash_scripts(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut directories = vec![root.join("tests"), root.join(".ci")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = fs::read(&path)?;
            let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
            if first.starts_with(b"#!") && first.ends_with(b"bash") {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    ensure!(!found.is_empty(), "no scripts in {}", root.display());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn names_are_unique_and_every_directory_of_tests_is_a_room() {
        let mut names: Vec<&str> = ROOMS.iter().map(|room| room.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for entry in fs::read_dir(repository().join("tests")).expect("tests") {
            let entry = entry.expect("an entry");
            if entry.path().join("main.rs").exists() {
                let name = entry.file_name().into_string().expect("plain");
                assert!(names.contains(&name.as_str()), "{name} is no room");
            }
        }
    }

    #[test]
    fn a_room_that_fails_without_a_failed_test_or_runs_none_has_failed() {
        let ok = ExitStatus::from_raw(0);
        let bad = ExitStatus::from_raw(1 << 8);
        let with = |passed, failed| Results {
            passed,
            failed,
            ..Results::default()
        };
        assert_eq!(judged(with(3, 0), ok, "x").failed, 0);
        assert_eq!(judged(with(3, 0), bad, "x").failed, 1);
        assert_eq!(judged(with(0, 0), ok, "x").failed, 1);
        assert_eq!(judged(with(3, 2), bad, "x").failed, 2);
    }

    #[test]
    fn few_tests_that_failed_or_a_script_are_run_once_more() {
        let of = |run| Room { run, ..ROOMS[0] };
        let with = |failed, bad: &[&str]| Results {
            failed,
            bad: bad.iter().map(|name| (*name).to_owned()).collect(),
            ..Results::default()
        };
        let program = of(Run::Tests("x", 2));
        let again = again_alone(&program, &with(2, &["a::b", "c"]));
        assert_eq!(again.expect("some"), ["--exact", "a::b", "c"]);
        assert_eq!(again_alone(&program, &with(0, &[])), None);
        assert_eq!(again_alone(&program, &with(2, &["a::b"])), None);
        let many = ["a", "b", "c", "d", "e", "f"];
        assert_eq!(again_alone(&program, &with(6, &many)), None);
        let script = of(Run::Script(&["x"]));
        assert_eq!(again_alone(&script, &with(1, &["a line"])), Some(vec![]));
        for never in [Run::Unit("x"), Run::Task(&["style"])] {
            assert_eq!(again_alone(&of(never), &with(1, &["a"])), None);
        }
    }

    #[test]
    fn what_passes_only_by_itself_is_named() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let with = |failed, bad: &[&str]| Results {
            failed,
            bad: names(bad),
            ..Results::default()
        };
        let first: Vec<String> = names(&["a", "b"]);
        assert_eq!(late("x", first.clone(), &with(1, &["b"])), ["a"]);
        assert_eq!(late("x", first, &with(0, &[])), ["a", "b"]);
        assert_eq!(late("x", Vec::new(), &with(0, &[])), ["x"]);
        assert_eq!(late("x", Vec::new(), &with(1, &[])), [""; 0]);
    }

    #[test]
    fn rooms_share_the_cores_or_run_alone() {
        let room = |load| Room { load, ..ROOMS[0] };
        assert!(fits(&room(20), 0, 20) && !fits(&room(20), 5, 20));
        assert!(fits(&room(10), 10, 20) && !fits(&room(15), 10, 20));
        assert!(fits(&room(20), 0, 0) && !fits(&room(1), 1, 0));
    }
}
