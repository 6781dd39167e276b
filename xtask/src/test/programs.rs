//! Test programs, built with one call of cargo, which also runs the lints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::suites::Suite;

/// Key of `again-fleet` itself, as the tests run it.
const FLEET: &str = "program again-fleet";

/// Test programs, and the lints' output from their build.
#[derive(Default)]
pub struct Programs {
    /// Programs by kind and name, as in a suite's row: `unit again`, `fleet backends`.
    programs: BTreeMap<String, PathBuf>,
    /// Warnings of the compiler and of clippy.
    pub warnings: Vec<String>,
}

/// Returns the command that builds the test programs of these suites. The features are those of the
/// whole workspace, so that every crate is built once. The fuzzer needs a C++ compiler; its suite
/// lints it.
pub fn build(suites: &[Suite]) -> Vec<String> {
    let words = "env RUSTC_WORKSPACE_WRAPPER=clippy-driver cargo test --no-run --quiet --locked --workspace --exclude again-fuzz --message-format=json";
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    if suites.iter().any(|suite| suite.needs_all_programs()) {
        words.push("--all-targets".to_owned());
        return words;
    }
    let mut options = BTreeSet::new();
    if suites.iter().any(Suite::needs_programs) {
        // `--bin` would build their unit tests; with a test of each package, cargo builds both
        // programs.
        options.extend(["--test=cli".to_owned(), "--test=manual".to_owned()]);
    }
    for program in suites.iter().filter_map(|suite| suite.program()) {
        match program.split_once(' ').unwrap_or_default() {
            ("unit", "xtask") => options.insert("--bin=xtask".to_owned()),
            ("unit", _) => options.insert("--lib".to_owned()),
            (_, name) => options.insert(format!("--test={name}")),
        };
    }
    words.extend(options);
    words
}

/// Returns the output of a job for people: cargo's messages are reduced to the text of the
/// compiler.
pub fn readable(output: &str) -> String {
    let lines = output.lines().filter_map(|line| {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            return Some(format!("{line}\n"));
        };
        message["message"]["rendered"].as_str().map(str::to_owned)
    });
    lines.collect()
}

impl Programs {
    /// Reads the output of cargo.
    pub fn read(output: &str) -> Programs {
        let mut found = Programs::default();
        for message in output
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
        {
            if let Some((name, path)) = program(&message) {
                found.programs.insert(name, path);
            } else if let Some(warning) = message["message"]["rendered"].as_str() {
                found.warnings.push(warning.to_owned());
            }
        }
        found
    }

    /// Returns the directory of `again` and `again-fleet` as the tests run them.
    pub fn directory(&self) -> Result<PathBuf> {
        let fleet = PathBuf::from(self.get(FLEET)?);
        Ok(fleet.parent().context("a directory")?.to_owned())
    }

    /// Returns the path of the program with this key, for example `unit again`.
    pub fn get(&self, name: &str) -> Result<String> {
        let path = self.programs.get(name);
        let path = path.with_context(|| format!("cargo built no program for {name}"))?;
        Ok(path.to_string_lossy().into_owned())
    }
}

/// Returns key and path of a test program, or of `again-fleet`, from a message of cargo.
fn program(message: &Value) -> Option<(String, PathBuf)> {
    let executable = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        let is_fleet = message["target"]["name"] == "again-fleet";
        return is_fleet.then(|| (FLEET.to_owned(), executable.into()));
    }
    let manifest = message["manifest_path"].as_str().unwrap_or_default();
    // Several packages have tests with the same name.
    let kind = match message["target"]["kind"][0].as_str()? {
        "test" if manifest.ends_with("/fleet/Cargo.toml") => "fleet",
        "test" if manifest.ends_with("/xtask/Cargo.toml") => "xtask-tests",
        "test" => "tests",
        "lib" => "unit",
        // The other programs have no unit tests beside those of their libraries.
        "bin" if manifest.ends_with("/xtask/Cargo.toml") => "unit",
        _ => return None,
    };
    // The name of a library has underscores.
    let name = message["target"]["name"].as_str()?.replace('_', "-");
    Some((format!("{kind} {name}"), executable.into()))
}

#[cfg(test)]
#[test]
fn test_programs_and_warnings_are_read_from_the_messages_of_cargo() {
    let below = |below: &str, kind: &str, test: bool, executable: &str| {
        format!(
            r#"{{"manifest_path":"/repository{below}/Cargo.toml","target":{{"kind":["{kind}"],"name":"again_x"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
        )
    };
    let line = |kind: &str, test: bool, executable: &str| below("", kind, test, executable);
    let key = |line: &str| Programs::read(line).programs.into_keys().next();
    let at = |name: &str| Some(name.to_owned());
    assert_eq!(key(&line("test", true, "\"/x\"")), at("tests again-x"));
    let fleet = below("/fleet", "test", true, "\"/x\"");
    assert_eq!(key(&fleet), at("fleet again-x"));
    assert_eq!(key(&line("lib", true, "\"/x\"")), at("unit again-x"));
    // The unit tests of `again` have the name of its library.
    assert_eq!(key(&line("bin", true, "\"/x\"")), None);
    assert_eq!(key(&line("lib", false, "null")), None);
    let read = Programs::read("   Compiling\n{\"message\":{\"rendered\":\"warning: x\"}}");
    assert!(read.programs.is_empty());
    assert_eq!(read.warnings, ["warning: x"]);
    let output = "Compiling\n{\"reason\":\"\"}\n{\"message\":{\"rendered\":\"error: y\\n\"}}";
    assert_eq!(readable(output), "Compiling\nerror: y\n");
}
