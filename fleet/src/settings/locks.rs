//! The locks for which this node is a candidate, one file each.

use std::path::Path;

use again_base::toml::{self, Written};

use super::rules::{at, each};
use super::value::Setting;
use crate::policy::lock::Lock;
use crate::wire::inventory::MOST_LOCKS;
use crate::wire::lock::MOST_CANDIDATES;
use crate::wire::name::{Name, Node};

/// Keys of a lock file.
const KEYS: &[&str] = &["name", "candidates", "prefer"];
/// Longest name of a lock, in bytes.
const MOST_NAME: usize = 64;

/// Reads the locks of a directory; an empty list if it does not exist.
pub fn read(directory: &Path, me: &Node) -> Result<Vec<Lock>, String> {
    let mut locks = Vec::new();
    each(directory, ("locks", MOST_LOCKS), &mut |text| {
        let lock = parse(text)?;
        if !lock.has(me) {
            let why = format!("they do not name this node, {me}");
            return Err(at(text, "candidates", &why));
        }
        let name = lock.name.to_string();
        locks.push(lock);
        Ok(name)
    })?;
    Ok(locks)
}

/// Checks that a text is valid as a lock file.
///
/// # Errors
/// A sentence that names the line and the key.
pub fn check(text: &str) -> Result<(), String> {
    parse(text).map(|_| ())
}

fn parse(text: &str) -> Result<Lock, String> {
    let (mut name, mut candidates, mut prefer) = (None, Vec::new(), Vec::new());
    toml::read(text, KEYS, &mut |key, written: Written| {
        match key {
            "name" => name = Some(named(written)?),
            "candidates" => candidates = nodes(written)?,
            _ => prefer = nodes(written)?,
        }
        Ok(())
    })?;
    let name = name.ok_or_else(|| at(text, "name", "it is missing"))?;
    if candidates.is_empty() {
        return Err(at(text, "candidates", "nobody is named"));
    }
    if let Some(node) = prefer.iter().find(|node| !candidates.contains(node)) {
        let why = format!("{node} is no candidate");
        return Err(at(text, "prefer", &why));
    }
    Ok(Lock {
        name,
        candidates,
        prefer,
    })
}

fn named(written: Written) -> Result<Name, String> {
    let name: Name = Setting::of(written)?;
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if name.as_str().len() > MOST_NAME || !name.as_str().bytes().all(is_plain) {
        return Err(format!(
            "'{}' has more than {MOST_NAME} characters, or others than letters, digits, '_', '.' and '-'",
            crate::wire::shown(name.as_str())
        ));
    }
    Ok(name)
}

fn nodes(written: Written) -> Result<Vec<Node>, String> {
    let nodes: Vec<Node> = Setting::of(written)?;
    if nodes.len() > MOST_CANDIDATES {
        let count = nodes.len();
        return Err(format!("{count} nodes: {MOST_CANDIDATES} are allowed"));
    }
    match nodes
        .iter()
        .enumerate()
        .find(|(n, node)| nodes[..*n].contains(node))
    {
        Some((_, node)) => Err(format!("{node} is named twice")),
        None => Ok(nodes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: &str =
        "name = 'db-master'\ncandidates = ['db1', 'db2', 'db3']\nprefer = ['db2', 'db1']\n";

    #[test]
    fn all_that_can_be_set_is_read() {
        let lock = parse(ALL).expect("a lock");
        assert_eq!(lock.name.as_str(), "db-master");
        assert_eq!((lock.candidates.len(), lock.prefer.len()), (3, 2));
        assert_eq!(lock.prefer[0].as_str(), "db2");
        assert!(KEYS.iter().all(|key| ALL.contains(key)));
    }

    #[test]
    fn an_error_names_line_and_key() {
        for (file, words) in [
            ("candidates = ['a']", &["'name'", "missing"][..]),
            ("name = 'x'", &["'candidates'", "nobody is named"]),
            (
                "name = 'a b'\ncandidates = ['a']",
                &["line 1", "'name'", "letters, digits"],
            ),
            (
                "name = 'x'\ncandidates = ['A']",
                &["line 2", "'candidates'", "no certname"],
            ),
            (
                "name = 'x'\ncandidates = ['a', 'a']",
                &["line 2", "a is named twice"],
            ),
            (
                "name = 'x'\ncandidates = ['a']\nprefer = ['b']",
                &["line 3", "'prefer'", "b is no candidate"],
            ),
            ("name = 'x'\nnode = 'a'", &["line 2", "unknown key 'node'"]),
        ] {
            let error = parse(file).expect_err(file);
            for word in words {
                assert!(error.contains(word), "{error:?} lacks {word:?}");
            }
        }
        let many: Vec<String> = (0..65).map(|n| format!("n{n}")).collect();
        let many = parse(&format!("name = 'x'\ncandidates = {many:?}")).expect_err("many");
        assert!(many.contains("65 nodes: 64 are allowed"), "{many}");
    }

    #[test]
    fn this_node_is_a_candidate_of_each() {
        let dir = tempfile::tempdir().expect("a directory");
        let me: Node = "db1".parse().expect("a certname");
        assert_eq!(read(&dir.path().join("none"), &me), Ok(vec![]));
        std::fs::write(dir.path().join("db.toml"), ALL).expect("written");
        assert_eq!(read(dir.path(), &me).map(|all| all.len()), Ok(1));
        let other: Node = "web1".parse().expect("a certname");
        let error = read(dir.path(), &other).expect_err("no candidate");
        let words = "db.toml: line 2: key 'candidates': they do not name this node, web1";
        assert!(error.contains(words), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC{0,60}") {
            let _ = check(&text);
        }
    }
}
