use std::path::Path;

use crate::repository;

/// Returns the words in backquotes that name a file or a directory: with a slash, or with a known
/// extension.
fn names(text: &str) -> Vec<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.chars().all(plain) && !word.starts_with(['/', '-', '.']))
        .filter(|word| word.contains('/') || word.ends_with(".rs") || word.ends_with(".md"))
        .collect()
}

/// Whether the file exists, relative to the root of the repository or to src.
fn exists(name: &str) -> bool {
    ["", "src"]
        .iter()
        .any(|from| repository().join(Path::new(from)).join(name).exists())
}

#[test]
fn names_of_files_are_found_and_looked_for() {
    let text = "The waiter (`src/waiter/`, `exit.rs`) writes `/var/log/again` as `again run -- x/y` says; see `README.md`.";
    assert_eq!(names(text), ["src/waiter/", "exit.rs", "README.md"]);
    assert!(exists("src/main.rs") && exists("main.rs") && exists("tests/support/"));
    assert!(!exists("src/none.rs"));
}

#[test]
fn the_architecture_names_files_that_exist() {
    let path = repository().join("doc/architecture.md");
    let text = std::fs::read_to_string(path).expect("doc/architecture.md");
    let names = names(&text);
    assert!(names.len() > 10, "it names no files: {names:?}");
    let wrong: Vec<&str> = names.into_iter().filter(|name| !exists(name)).collect();
    assert!(wrong.is_empty(), "no such files: {wrong:?}");
}

/// Whether a test file of this name has a function whose name begins like this.
fn has_test(file: &str, name: &str, below: &Path) -> bool {
    let entries = std::fs::read_dir(below).expect("a directory of tests");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths.any(|path| {
        let is_it = path.file_name().is_some_and(|own| own == file);
        (path.is_dir() && has_test(file, name, &path))
            || (is_it && std::fs::read_to_string(&path).is_ok_and(|text| text.contains(name)))
    })
}

/// Tests that these pages name as evidence must exist.
#[test]
fn the_tests_that_are_named_as_evidence_exist() {
    for page in ["doc/compare-evidence.md", "SECURITY.md"] {
        let text = std::fs::read_to_string(repository().join(page)).expect("a page");
        let words = text.split('`').skip(1).step_by(2);
        let named: Vec<_> = words
            .filter(|word| !word.starts_with("common::"))
            .filter_map(|word| word.rsplit_once("::"))
            .map(|(modules, name)| (modules.rsplit("::").next().unwrap_or(modules), name))
            .filter(|(_, name)| {
                name.chars()
                    .all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c))
            })
            .collect();
        assert!(named.len() > 10, "{page} names no tests: {named:?}");
        for (file, name) in named {
            let (file, name) = (format!("{file}.rs"), format!("fn {name}"));
            let layers = ["tests", "fleet/tests"].map(|below| repository().join(below));
            let is_there = layers.iter().any(|below| has_test(&file, &name, below));
            assert!(is_there, "{page}: no {name} in {file}");
        }
    }
}

#[test]
fn readme_has_at_most_150_lines_and_900_words() {
    let text = std::fs::read_to_string(repository().join("README.md")).expect("README.md");
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(
        lines <= 150 && words <= 900,
        "README.md: {lines} lines, {words} words"
    );
}
