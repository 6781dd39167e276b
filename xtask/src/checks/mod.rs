//! Rules for the sources. Each check is a test that reads their text.

/// Uses of modules, and of layers.
#[cfg(test)]
mod arrows;
/// Reads of the wall clock.
#[cfg(test)]
mod clocks;
/// Names of files in the documentation.
#[cfg(test)]
mod documents;
/// Count of the lines of code.
pub mod lines;
/// Length of functions and files.
#[cfg(test)]
mod sizes;
/// Fixed sleeps in tests.
#[cfg(test)]
mod sleeps;
/// Facts that are compared as text, and words in comments.
#[cfg(test)]
mod words;

use std::path::{Path, PathBuf};

use crate::repository;

/// Directories of the sources: of both programs' base, of `again`, and of `again-fleet`.
const BASE: &str = "base/src";
const HELPER: &str = "src";
const FLEET: &str = "fleet/src";

/// File of src, without its tests.
struct Source {
    /// Path below src.
    path: PathBuf,
    /// Text up to the first line that begins with `#[cfg(test)]`.
    text: String,
}

/// Returns all files below a directory except tests, in order.
fn sources(below: &str) -> Vec<Source> {
    let root = repository().join(below);
    let mut found = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect(below) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs")
                && !path.ends_with("tests.rs")
            {
                let text = std::fs::read_to_string(&path).expect("UTF-8");
                found.push(Source::new(path.strip_prefix(&root).expect("below"), &text));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

impl Source {
    fn new(path: &Path, text: &str) -> Source {
        let lines = text.split_inclusive('\n');
        Source {
            path: path.to_owned(),
            text: lines
                .take_while(|line| !line.starts_with("#[cfg(test)]"))
                .collect(),
        }
    }

    /// Returns the directory below src that contains the file, or the file's own name.
    fn layer(&self) -> &str {
        let first = self.path.components().next().expect("a name");
        let first = first.as_os_str().to_str().expect("plain");
        first.strip_suffix(".rs").unwrap_or(first)
    }
}
