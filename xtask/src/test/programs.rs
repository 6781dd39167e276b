//! The test programs, built by one call of cargo.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::rooms::{Room, Run};
use crate::repository;

/// Where each test program is, by package and kind (`lib`, `bin`), or by the name of an integration test.
pub struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// Builds those that the rooms take.
    pub fn build(rooms: &[&Room]) -> Result<Programs> {
        let mut command = Command::new("cargo");
        command.args(["test", "--no-run", "--quiet", "--locked"]);
        command.arg("--message-format=json-render-diagnostics");
        let mut any = false;
        for room in rooms {
            match room.run {
                Run::Unit("again") => command.args(["--package", "again", "--lib"]),
                Run::Unit(package) => command.args(["--package", package, "--bins"]),
                Run::Tests(name, _) => command.args(["--package", "again", "--test", name]),
                Run::Script(["tests/matrix/run", ..]) => {
                    command.args(["--package", "again", "--test", "matrix"])
                }
                _ => continue,
            };
            any = true;
        }
        if !any {
            return Ok(Programs(BTreeMap::new()));
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
        self.get(&format!("unit {package}"))
    }

    /// An integration test.
    pub fn tests(&self, name: &str) -> Result<PathBuf> {
        self.get(&format!("test {name}"))
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
    let kind = match message["target"]["kind"][0].as_str()? {
        "test" => "test",
        _ => "unit",
    };
    let name = message["target"]["name"].as_str()?;
    Some((format!("{kind} {name}"), executable.into()))
}

#[cfg(test)]
#[test]
fn only_test_programs_are_taken() {
    let line = |kind: &str, test: bool, executable: &str| {
        format!(
            r#"{{"target":{{"kind":["{kind}"],"name":"again"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
        )
    };
    let at = |name: &str| Some((name.to_owned(), PathBuf::from("/x")));
    assert_eq!(program(&line("test", true, "\"/x\"")), at("test again"));
    assert_eq!(program(&line("lib", true, "\"/x\"")), at("unit again"));
    assert_eq!(program(&line("bin", false, "\"/x\"")), None);
    assert_eq!(program(&line("lib", false, "null")), None);
    assert_eq!(program("   Compiling"), None);
}
