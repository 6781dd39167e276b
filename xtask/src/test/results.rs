//! Reads the results of tests from the output of a suite.
//!
//! Two forms count: the last line of a test program of libtest, and the line
//! `NAME: 3 passed, 1 failed, 2 skipped` of a script. Other lines do not, for example the result
//! of a test that runs itself in a namespace: a program's own result adds up to the number of
//! tests that it started with.
//!
//! A test that lacks a permission prints `skipped: needs PERMISSION`; a script prints
//! `skip  WHAT: needs PERMISSION`.

/// Results of a suite.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Results {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    /// Names of the tests that failed.
    pub bad: Vec<String>,
    /// Tests that were skipped, each with the permission that it lacks.
    pub skips: Vec<String>,
    /// Output of tests that passed, with their names.
    pub said: Vec<String>,
}

/// Reader of an output, line by line.
#[derive(Debug, Default)]
pub struct Reader {
    results: Results,
    /// Number of tests that the running program runs.
    running: Option<u64>,
    /// Test whose output follows, among those that passed.
    of: Option<String>,
    among_successes: bool,
    /// Number of skipped tests of the running program, which libtest counts as passed.
    skipped: u64,
}

impl Results {
    pub fn of(output: &str) -> Results {
        let mut reader = Reader::default();
        output.lines().for_each(|line| reader.line(line));
        reader.end()
    }
}

impl Reader {
    pub fn line(&mut self, line: &str) {
        match self.running {
            None => self.outside(line),
            Some(count) => self.inside(line, count),
        }
    }

    /// Ends the output: a program that has not finished has failed.
    pub fn end(mut self) -> Results {
        if self.running.is_some() {
            self.results.failed += 1;
            self.results
                .bad
                .push("a program that did not finish".to_owned());
        }
        self.results
    }

    fn outside(&mut self, line: &str) {
        if let Some(count) = begins(line) {
            self.running = Some(count);
        } else if let Some([passed, failed, skipped]) = line_of_script(line) {
            self.results.passed += passed;
            self.results.failed += failed;
            self.results.skipped += skipped;
        } else if let Some(what) = line.strip_prefix("skip  ") {
            self.results.skips.push(what.to_owned());
        } else if let Some(what) = line
            .strip_prefix("FAILED ")
            .or_else(|| line.strip_prefix("FAIL "))
        {
            self.results.bad.push(what.trim().to_owned());
        }
    }

    fn inside(&mut self, line: &str, count: u64) {
        if let Some(result) = result(line)
            && result.passed + result.failed + result.others == count
        {
            self.results.passed += result.passed.saturating_sub(self.skipped);
            self.results.skipped += self.skipped;
            self.results.failed += result.failed;
            *self = Reader {
                results: std::mem::take(&mut self.results),
                ..Reader::default()
            };
        } else if line == "successes:" {
            self.among_successes = true;
            self.of = None;
        } else if line == "failures:" {
            self.among_successes = false;
        } else if let Some(name) = failed(line) {
            self.results.bad.push(name.to_owned());
        } else if self.among_successes {
            self.success(line);
        }
    }

    fn success(&mut self, line: &str) {
        if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.of = Some(name.to_owned());
        } else if let (Some(name), Some(needs)) = (&self.of, line.strip_prefix("skipped: ")) {
            self.results.skips.push(format!("{name}: {needs}"));
            self.skipped += 1;
            self.of = None;
        } else if let Some(name) = self.of.as_ref().filter(|_| !line.is_empty()) {
            self.results.said.push(format!("{name}: {line}"));
        }
    }
}

/// Parses `running 38 tests`.
fn begins(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("running ")?;
    let (count, tests) = rest.split_once(' ')?;
    matches!(tests, "test" | "tests").then(|| count.parse().ok())?
}

struct Sums {
    passed: u64,
    failed: u64,
    others: u64,
}

/// Parses
/// `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.40s`.
fn result(line: &str) -> Option<Sums> {
    let (_, sums) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut numbers = ["passed", "failed", "ignored", "measured"]
        .into_iter()
        .zip(sums.split("; "))
        .map(|(what, part)| part.strip_suffix(what)?.trim().parse().ok());
    let mut next = || numbers.next().flatten();
    let (passed, failed, ignored, measured): (u64, u64, u64, u64) =
        (next()?, next()?, next()?, next()?);
    Some(Sums {
        passed,
        failed,
        others: ignored + measured,
    })
}

/// Parses the name of a failed test: `NAME --- FAILED` with `--quiet`, `test NAME ... FAILED`
/// without.
fn failed(line: &str) -> Option<&str> {
    line.strip_suffix(" --- FAILED").or_else(|| {
        line.strip_prefix("test ")?
            .strip_suffix(" ... FAILED")
            .filter(|name| !name.contains(' '))
    })
}

/// Parses `NAME: 3 passed, 1 failed` or `NAME: 3 passed, 1 failed, 2 skipped`.
fn line_of_script(line: &str) -> Option<[u64; 3]> {
    let (name, sums) = line.split_once(": ")?;
    let is_name = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    (is_name && !name.is_empty()).then_some(())?;
    let mut parts = sums.split(", ");
    let mut number = |what| parts.next()?.strip_suffix(what)?.parse().ok();
    let (passed, failed) = (number(" passed")?, number(" failed")?);
    let skipped = number(" skipped").unwrap_or(0);
    let is_all = sums.split(", ").count() == if sums.ends_with("skipped") { 3 } else { 2 };
    is_all.then_some([passed, failed, skipped])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "
running 3 tests
...
successes:

---- crash::at_every_call stdout ----
1,204 deaths, each followed by a look
pid_max is 400 here

---- timing::late stdout ----
15 ms late at most

successes:
    crash::at_every_call
    timing::late

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.40s

";

    #[test]
    fn a_program_that_passes_is_counted_and_quoted() {
        let results = Results::of(PASSED);
        assert_eq!((results.passed, results.failed), (2, 0));
        assert_eq!(
            results.said,
            [
                "crash::at_every_call: 1,204 deaths, each followed by a look",
                "crash::at_every_call: pid_max is 400 here",
                "timing::late: 15 ms late at most",
            ]
        );
        assert!(results.bad.is_empty());
    }

    #[test]
    fn several_programs_add_up() {
        let results = Results::of(&format!("--- one\n{PASSED}--- two\n{PASSED}"));
        assert_eq!((results.passed, results.failed), (4, 0));
    }

    /// A test that failed inside a namespace prints the output of the program there.
    #[test]
    fn what_a_failed_test_quotes_is_not_counted() {
        let output = "
running 40 tests
.......................................
faults::full_disk --- FAILED

failures:

---- faults::full_disk stdout ----
faults::full_disk inside its namespaces: exit status: 101

running 1 test
test faults::full_disk ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 39 filtered out; finished in 0.01s
other: 5 passed, 0 failed

failures:
    faults::full_disk

test result: FAILED. 39 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.00s
";
        let results = Results::of(output);
        assert_eq!((results.passed, results.failed), (39, 1));
        assert_eq!(results.bad[0], "faults::full_disk");
    }

    #[test]
    fn a_program_that_dies_has_failed() {
        let results = Results::of("\nrunning 40 tests\n.........\n");
        assert_eq!((results.passed, results.failed), (0, 1));
        assert_eq!(results.bad, ["a program that did not finish"]);
    }

    #[test]
    fn reader_takes_skipped_tests_from_those_that_passed() {
        let output = PASSED.replace("pid_max is 400 here", "skipped: needs CAP_SYS_ADMIN\nmore");
        let results = Results::of(&format!("{output}{PASSED}"));
        assert_eq!((results.passed, results.failed, results.skipped), (3, 0, 1));
        assert_eq!(results.skips, ["crash::at_every_call: needs CAP_SYS_ADMIN"]);
    }

    #[test]
    fn reader_takes_the_sums_of_a_script_from_its_last_line() {
        let output = "ok    metadata.json\nFAIL  README\nskip  a site: needs mount\n      2 passed, 3 failed in it\nmodule: 466 passed, 1 failed, 1 skipped\n";
        let results = Results::of(output);
        assert_eq!(
            (results.passed, results.failed, results.skipped),
            (466, 1, 1)
        );
        assert_eq!(results.bad, ["README"]);
        assert_eq!(results.skips, ["a site: needs mount"]);
        assert_eq!(Results::of("x: 466 passed, 1 failed").passed, 466);
        for none in [
            "466 passed, 1 failed",
            "module: 466 passed",
            "module: 466 passed, 1 failed, 3 s",
            "=== module: 466 passed, 1 failed",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            assert_eq!(Results::of(none), Results::default(), "{none}");
        }
    }
}
