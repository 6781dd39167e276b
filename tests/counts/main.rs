//! The instructions of a request, of `status` and of a waiter from its start to its exec, compared
//! with doc/numbers/counts.
//!
//! A count hardly varies from run to run where times do, so it shows what a change costs. It does
//! depend on the compiler: with another one than the file names, more is allowed.
//! `cargo xtask counts` writes the file.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use again_test_support::{SHORT, Scratch, repository, wait_until};

/// By how much a count may exceed what is kept, in percent: by the same compiler, and by another one.
const ALLOWED: [f64; 2] = [5.0, 40.0];

/// Makes itself a child of the first process, so that the way up is as long everywhere, and counts.
const MANIFEST: &str = r##"
exit!(0) if fork
Process.setsid
200.times { Process.ppid == 1 ? break : sleep(0.01) }
def count(name, *words)
  system('valgrind', '--tool=callgrind', "--callgrind-out-file=#{ROOT}/#{name}.%p", AGAIN, *words, [:out, :err] => "#{ROOT}/#{name}.out")
  [0, 3].include?($?.exitstatus) or raise "#{name} failed"
end
ask('run', '--delta', '1d', '--name', 'before')
ask('stop')
count('request', 'run', '--delta', '1d')
count('status', 'status')
count('status-json', 'status', '--json')
note('counted', '')
"##;

/// What was counted, in the order of the file: each with the word that is in its command line.
const COUNTED: [(&str, &str); 4] = [
    ("request", "run --delta"),
    ("status", "status"),
    ("status-json", "json"),
    ("waiter", "again wait"),
];

#[test]
fn no_command_takes_more_instructions_than_is_allowed() {
    let file = repository().join("doc/numbers/counts");
    let now = count();
    if std::env::var_os("AGAIN_WRITE_COUNTS").is_some() {
        fs::write(&file, &now).expect("written");
    }
    let kept = fs::read_to_string(&file).expect("doc/numbers/counts");
    let lines = compare(&kept, &now);
    for (_, line) in &lines {
        println!("{line}");
    }
    assert!(
        lines.iter().all(|(is_good, _)| *is_good),
        "too many; 'cargo xtask counts' keeps new ones"
    );
}

/// The counts of today, as the file has them.
fn count() -> String {
    let mut scratch = Scratch::new();
    scratch.forgive();
    scratch.set("TZ", "UTC");
    scratch.settings("scope = \"never\"");
    let run = scratch.apply("count", MANIFEST);
    let words = std::iter::once(run.get_program()).chain(run.get_args());
    // A request reads the command line of the first process too, which should be the same one everywhere.
    let mut alone = scratch.line(&["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    let done = scratch.at("past/count/001/counted");
    let script = format!(
        "\"$@\"; n=0; until [ -e {done} ] || [ $n = 600 ]; do sleep 0.1; n=$((n + 1)); done"
    );
    alone.args(["sh", "-c", &script, "sh"]).args(words);
    let output = alone.output().expect("unshare");
    if !scratch.path("past/count/001/counted").exists() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        panic!("counting has failed: {said}{}", scratch.text("request.out"));
    }
    // Outside any run, so that it is due at once. What it runs is not there: an exec would take the count along.
    let mut waiter = scratch.line(&["valgrind", "--tool=callgrind", "--trace-children=yes"]);
    waiter
        .arg(format!("--callgrind-out-file={}", scratch.at("waiter.%p")))
        .arg(scratch.path("bin/again"))
        .args(["run", "--delta", "0", "--", "/nonexistent/true"]);
    waiter.stdout(Stdio::null()).stderr(Stdio::null());
    let status = waiter.status().expect("valgrind");
    assert!(status.success(), "the waiter was not started");
    wait_until("the waiter to give up", SHORT, || {
        !scratch.history_of("failed").is_empty() && scratch.agains().is_empty()
    });
    wait_until("its count", SHORT, || {
        instructions(&scratch, "waiter", "again wait").is_some()
    });
    let version = Command::new("rustc").arg("--version").output();
    let version = String::from_utf8(version.expect("rustc").stdout).expect("UTF-8");
    let mut text = format!(
        "compiler {}\n",
        version.split(' ').nth(1).unwrap_or_default()
    );
    for (name, word) in COUNTED {
        let count = instructions(&scratch, name, word);
        let count = count.unwrap_or_else(|| panic!("no count: {name}"));
        text += &format!("{name} {count}\n");
    }
    text
}

/// The instructions of the process with this word in its command line.
fn instructions(scratch: &Scratch, name: &str, word: &str) -> Option<u64> {
    let entries = fs::read_dir(scratch.path("")).ok()?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let prefix = format!("{name}.");
    let mut texts = files
        .iter()
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&prefix) && !name.ends_with(".out")
        })
        .filter_map(|path| fs::read_to_string(path).ok());
    let of = |text: &String, key: &str| -> Option<String> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim().to_owned())
    };
    let text = texts.find(|text| of(text, "cmd:").is_some_and(|line| line.contains(word)))?;
    let sum = of(&text, "summary:").or_else(|| of(&text, "totals:"))?;
    sum.split(' ').next()?.parse().ok()
}

/// Each count beside the one that is kept: whether it is good, and how it is told.
fn compare(kept: &str, now: &str) -> Vec<(bool, String)> {
    let same = kept.lines().next() == now.lines().next();
    let allowed = ALLOWED[usize::from(!same)];
    let number = |text: &str, name: &str| -> Option<f64> {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    COUNTED
        .iter()
        .map(|(name, _)| {
            let was = number(kept, name).unwrap_or_else(|| panic!("no {name} is kept"));
            let is = number(now, name).unwrap_or_else(|| panic!("no {name} was counted"));
            let change = (is - was) * 100.0 / was;
            let line = format!(
                "{name}: {is} instructions, {change:+.1} % against what is kept, at most +{allowed} % are allowed"
            );
            (change <= allowed, line)
        })
        .collect()
}

#[test]
fn comparison_allows_five_percent_and_more_with_another_compiler() {
    let text = |compiler: &str, request: u64| {
        format!("compiler {compiler}\nrequest {request}\nstatus 10\nstatus-json 10\nwaiter 10\n")
    };
    let bad = |now: &str| -> usize {
        let results = compare(&text("1.95.0", 1000), now);
        results.iter().filter(|(good, _)| !good).count()
    };
    assert_eq!(bad(&text("1.95.0", 1050)), 0);
    assert_eq!(bad(&text("1.95.0", 1051)), 1);
    assert_eq!(bad(&text("1.96.0", 1400)), 0);
    assert_eq!(bad(&text("1.96.0", 1401)), 1);
}
