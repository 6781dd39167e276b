use std::path::Path;

use crate::repository;

/// The words in backquotes that name a file or a directory: with a slash, or with an ending of ours.
fn names(text: &str) -> Vec<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.chars().all(plain) && !word.starts_with(['/', '-', '.']))
        .filter(|word| word.contains('/') || word.ends_with(".rs") || word.ends_with(".md"))
        .collect()
}

/// Whether there is such a file, from the root of the repository or from src.
fn exists(name: &str) -> bool {
    ["", "src"]
        .iter()
        .any(|from| repository().join(Path::new(from)).join(name).exists())
}

#[test]
fn names_of_files_are_found_and_looked_for() {
    let text = "The waiter (`src/waiter/`, `exit.rs`) writes `/var/log/again` as `again run -- x/y` says; see `README.md`.";
    assert_eq!(names(text), ["src/waiter/", "exit.rs", "README.md"]);
    assert!(exists("src/main.rs") && exists("main.rs") && exists("tests/rig/"));
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

#[test]
fn the_readme_is_read_in_one_sitting() {
    let text = std::fs::read_to_string(repository().join("README.md")).expect("README.md");
    assert!(text.lines().count() <= 150, "{}", text.lines().count());
}
