//! Runs of the stand-in for Puppet, in a scratch directory where nothing delays them: no jitter, no
//! cap, no scope.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

use again_test_support::{Scratch, Started, start, wait_until};
use anyhow::{Context, Result, ensure};

/// Creates the directory. Processes that are left at the end are ended.
pub fn scratch() -> Scratch {
    let mut scratch = Scratch::new();
    scratch.forgive();
    scratch.settings("scope = \"never\"\nmax_runs = 1000000");
    scratch
}

/// Runs `again` to its end, outside any run; returns its standard output.
pub fn ask(scratch: &Scratch, words: &[&str]) -> Result<String> {
    let ended = scratch.again(words);
    ensure!(
        matches!(ended.code, Some(0 | 3)),
        "again {words:?}: {ended:?}"
    );
    Ok(ended.out)
}

/// Formats words as a list in Ruby.
pub fn ruby_words(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    quoted.join(", ")
}

/// Run that is held until the benchmark ends it.
pub struct Held {
    run: Started,
    stdin: ChildStdin,
}

/// Starts a run that makes one request with these words, and stays until it is ended.
pub fn held_run(scratch: &Scratch, name: &str, request: &[&str]) -> Result<Held> {
    let manifest = format!(
        "if NTH == 1\n  code = ask({})\n  STDOUT.puts(code)\n  STDOUT.flush\n  STDIN.read\nend\n",
        ruby_words(&[&["run"], request].concat())
    );
    let mut command = scratch.apply(name, &manifest);
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::piped()).stdout(writer);
    let mut run = start(&mut command);
    drop(command);
    let mut said = String::new();
    BufReader::new(reader).read_line(&mut said)?;
    ensure!(said == "0\n", "the run was told: {said}");
    let stdin = run.stdin.take().context("a pipe")?;
    Ok(Held { run, stdin })
}

impl Held {
    /// Lets the run end.
    pub fn end(self) {
        drop(self.stdin);
        self.run.finish();
    }
}

/// Cancels everything that is pending, and waits until its waiters have ended.
pub fn stop_all(scratch: &Scratch) -> Result<()> {
    ask(scratch, &["stop", "--run"])?;
    wait_until("the waiters to end", Duration::from_secs(30), || {
        scratch.agains().is_empty()
    });
    Ok(())
}
