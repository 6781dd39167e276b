//! The test programs, built by one call of cargo.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::rooms::{Room, Run};
use crate::repository;

/// Where each test program is: unit tests by package, integration tests by their names and whose they are.
pub struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// Builds those that the rooms take.
    pub fn build(rooms: &[&Room]) -> Result<Programs> {
        let mut command = Command::new("cargo");
        command.args(["test", "--no-run", "--quiet", "--locked"]);
        command.arg("--message-format=json-render-diagnostics");
        // Cargo takes some of its options only once.
        let mut wanted = BTreeSet::new();
        for room in rooms {
            wanted.extend(match room.run {
                Run::Unit(package @ ("again" | "again-fleet")) => {
                    vec![("--package", package), ("--lib", "")]
                }
                Run::Unit(package) => vec![("--package", package), ("--bins", "")],
                Run::Tests(name, _) => vec![("--package", "again"), ("--test", name)],
                Run::Fleet(name, _) | Run::Newer(name, _) => {
                    vec![("--package", "again-fleet"), ("--test", name)]
                }
                Run::Script(["tests/matrix/run", ..]) => {
                    vec![("--package", "again"), ("--test", "matrix")]
                }
                _ => continue,
            });
        }
        if wanted.is_empty() {
            return Ok(Programs(BTreeMap::new()));
        }
        for (option, value) in wanted {
            command.arg(option);
            if !value.is_empty() {
                command.arg(value);
            }
        }
        let output = command
            .current_dir(repository())
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(output.status.success(), "the tests cannot be built");
        let lines = String::from_utf8(output.stdout)?;
        Ok(Programs(lines.lines().filter_map(program).collect()))
    }

    /// The unit tests of a package.
    pub fn unit(&self, package: &str) -> Result<PathBuf> {
        // A library goes by the name that Rust can say.
        self.get(&format!("unit {}", package.replace('-', "_")))
    }

    /// An integration test of the helper.
    pub fn tests(&self, name: &str) -> Result<PathBuf> {
        self.get(&format!("test {name}"))
    }

    /// One of the second program.
    pub fn fleet(&self, name: &str) -> Result<PathBuf> {
        self.get(&format!("fleet {name}"))
    }

    fn get(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.get(name);
        path.cloned()
            .with_context(|| format!("cargo built no program for {name}"))
    }
}

/// One message of cargo's: the test program that it built.
fn program(line: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let executable = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = message["manifest_path"].as_str().unwrap_or_default();
    let kind = match message["target"]["kind"][0].as_str()? {
        // Both programs have a test of this name or that.
        "test" if manifest.ends_with("/fleet/Cargo.toml") => "fleet",
        "test" => "test",
        _ => "unit",
    };
    let name = message["target"]["name"].as_str()?;
    Some((format!("{kind} {name}"), executable.into()))
}

#[cfg(test)]
#[test]
fn only_test_programs_are_taken() {
    let below = |below: &str, kind: &str, test: bool, executable: &str| {
        format!(
            r#"{{"manifest_path":"/repository{below}/Cargo.toml","target":{{"kind":["{kind}"],"name":"again"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
        )
    };
    let line = |kind: &str, test: bool, executable: &str| below("", kind, test, executable);
    let at = |name: &str| Some((name.to_owned(), PathBuf::from("/x")));
    assert_eq!(program(&line("test", true, "\"/x\"")), at("test again"));
    let fleet = below("/fleet", "test", true, "\"/x\"");
    assert_eq!(program(&fleet), at("fleet again"));
    assert_eq!(program(&line("lib", true, "\"/x\"")), at("unit again"));
    assert_eq!(program(&line("bin", false, "\"/x\"")), None);
    assert_eq!(program(&line("lib", false, "null")), None);
    assert_eq!(program("   Compiling"), None);
}
