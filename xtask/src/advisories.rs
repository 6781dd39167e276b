//! What is known against the crates of others: packaging/advisories.toml, and how it is renewed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::repository;

const HEAD: &str = "\
# What the RustSec database (https://rustsec.org, CC0) tells of crates in Cargo.lock: ids, days and versions are its own, titles are ours.
# Withdrawn advisories are left out. The list is as complete as its source was on its day. The room `house` of the tests holds Cargo.lock
# against it; `cargo xtask advisories DIRECTORY` renews it from a checkout of the database.
";

/// The list of advisories.
#[derive(Serialize, Deserialize)]
pub struct List {
    /// The day on which it was complete.
    as_of: String,
    /// What it was made of.
    source: String,
    /// In the order of crates and ids.
    #[serde(default, rename = "advisory")]
    pub advisories: Vec<Advisory>,
}

/// What is known against versions of a crate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advisory {
    /// RUSTSEC-, a year and a number.
    pub id: String,
    /// The crate.
    pub package: String,
    /// The day on which it was reported.
    date: String,
    /// What it is about.
    pub title: String,
    /// A vulnerability, or what the database calls informational: unsound, unmaintained, notice.
    kind: String,
    /// The versions in which it is mended; what none of these requirements fits is affected.
    pub patched: Vec<String>,
    /// The versions that never had it.
    pub unaffected: Vec<String>,
}

/// How the database writes an advisory, as far as it is wanted: TOML in front of a text.
#[derive(Deserialize)]
struct Front {
    advisory: About,
    versions: Versions,
}

#[derive(Deserialize)]
struct About {
    id: String,
    package: String,
    date: String,
    informational: Option<String>,
    withdrawn: Option<String>,
}

#[derive(Deserialize)]
struct Versions {
    #[serde(default)]
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

fn path() -> PathBuf {
    repository().join("packaging/advisories.toml")
}

/// The list as it is.
pub fn list() -> Result<List> {
    let text = std::fs::read_to_string(path()).context("packaging/advisories.toml")?;
    basic_toml::from_str(&text).context("packaging/advisories.toml")
}

fn text(list: &List) -> Result<String> {
    Ok(format!("{HEAD}{}", basic_toml::to_string(list)?))
}

/// Writes the list anew, by the database as it is checked out there.
pub fn renew(checkout: &Path) -> Result<()> {
    let mut git = Command::new("git");
    let git = git
        .arg("-C")
        .arg(checkout)
        .args(["log", "-1", "--format=%cs"]);
    let day = String::from_utf8(git.output().context("cannot start git")?.stdout)?;
    ensure!(!day.is_empty(), "{} is no checkout", checkout.display());
    let lock = std::fs::read_to_string(repository().join("Cargo.lock"))?;
    let renewed = renewed(&list()?, checkout, day.trim(), &names(&lock))?;
    Ok(std::fs::write(path(), text(&renewed)?)?)
}

/// The crates of a Cargo.lock.
fn names(lock: &str) -> BTreeSet<&str> {
    let names = lock.lines().filter_map(|line| line.strip_prefix("name = "));
    names.map(|name| name.trim_matches('"')).collect()
}

/// The list by this checkout. What is listed already keeps its title, which is in our words.
fn renewed(list: &List, checkout: &Path, day: &str, names: &BTreeSet<&str>) -> Result<List> {
    let as_of = &list.as_of;
    ensure!(
        *day >= **as_of,
        "the checkout is of {day}, the list is newer: {as_of}"
    );
    let mut advisories = Vec::new();
    for name in names {
        let Ok(entries) = std::fs::read_dir(checkout.join("crates").join(name)) else {
            // Nothing is known against most crates.
            continue;
        };
        let mut paths = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(&path)?;
            let read = advisory(&text).with_context(|| path.display().to_string())?;
            advisories.extend(read);
        }
    }
    ensure!(!advisories.is_empty(), "{} has none", checkout.display());
    for advisory in &mut advisories {
        let same = list
            .advisories
            .iter()
            .find(|listed| listed.id == advisory.id);
        if let Some(listed) = same {
            advisory.title.clone_from(&listed.title);
        }
    }
    Ok(List {
        as_of: day.to_owned(),
        source: "a checkout of the database, for all crates in Cargo.lock".to_owned(),
        advisories,
    })
}

/// The advisory of a file, unless it was withdrawn or has no number yet.
fn advisory(text: &str) -> Result<Option<Advisory>> {
    let front = text
        .strip_prefix("```toml\n")
        .and_then(|rest| rest.split_once("\n```\n"));
    let (front, text) = front.context("no TOML in front")?;
    let Front { advisory, versions } = basic_toml::from_str(front)?;
    let title = text.lines().find_map(|line| line.strip_prefix("# "));
    let found = Advisory {
        id: advisory.id,
        package: advisory.package,
        date: advisory.date,
        title: title.context("no title")?.trim().to_owned(),
        kind: advisory.informational.unwrap_or("vulnerability".to_owned()),
        patched: versions.patched,
        unaffected: versions.unaffected,
    };
    let counts = advisory.withdrawn.is_none() && found.id != "RUSTSEC-0000-0000";
    Ok(counts.then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(id: &str, more: &str, versions: &str, title: &str) -> String {
        format!(
            "```toml\n[advisory]\nid = \"{id}\"\npackage = \"h2\"\ndate = \"2026-01-02\"\n{more}\n\
             [affected.functions]\n\"h2::a\" = [\"< 2\"]\n\n[versions]\n{versions}\n```\n\n# {title}\n\nMore.\n"
        )
    }

    #[test]
    fn the_list_is_renewed_from_a_checkout() {
        let checkout = tempfile::tempdir().unwrap();
        let put = |name: &str, number: &str, more: &str, versions: &str, title: &str| {
            let directory = checkout.path().join("crates").join(name);
            std::fs::create_dir_all(&directory).unwrap();
            let id = format!("RUSTSEC-{number}");
            let text = file(&id, more, versions, title);
            std::fs::write(directory.join(format!("{id}.md")), text).unwrap();
        };
        put(
            "h2",
            "2026-0002",
            "",
            "patched = [\n  \">= 2\", # so\n]",
            "Theirs",
        );
        put(
            "h2",
            "2026-0001",
            "informational = \"unsound\"",
            "patched = []\nunaffected = [\"< 1\"]",
            "`b` is new",
        );
        put(
            "h2",
            "2026-0003",
            "withdrawn = \"2026-01-03\"",
            "patched = []",
            "Nothing",
        );
        put(
            "elsewhere",
            "2026-0004",
            "",
            "patched = []",
            "Another crate",
        );
        let ours =
            |id: &str, title: &str, kind: &str, patched: &[&str], unaffected: &[&str]| Advisory {
                id: format!("RUSTSEC-{id}"),
                package: "h2".to_owned(),
                date: "2026-01-02".to_owned(),
                title: title.to_owned(),
                kind: kind.to_owned(),
                patched: patched.iter().map(|&text| text.to_owned()).collect(),
                unaffected: unaffected.iter().map(|&text| text.to_owned()).collect(),
            };
        let list = List {
            as_of: "2026-02-01".to_owned(),
            source: String::new(),
            advisories: vec![ours("2026-0002", "ours", "vulnerability", &[], &[])],
        };
        let names = names(
            "[[package]]\nname = \"h2\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"http\"\n",
        );
        let found = renewed(&list, checkout.path(), "2026-02-02", &names).unwrap();
        assert_eq!(found.as_of, "2026-02-02");
        let expected = [
            ours("2026-0001", "`b` is new", "unsound", &[], &["< 1"]),
            ours("2026-0002", "ours", "vulnerability", &[">= 2"], &[]),
        ];
        assert_eq!(found.advisories, expected);
        let older = renewed(&list, checkout.path(), "2026-01-31", &names);
        assert!(older.is_err(), "an older checkout is taken");
        put("h2", "2026-0005", "", "patched = 3", "Not understood");
        let unread = renewed(&list, checkout.path(), "2026-02-02", &names);
        assert!(unread.is_err(), "what is not understood is left out");
    }

    #[test]
    fn the_list_is_written_as_it_would_be_renewed() {
        let written = std::fs::read_to_string(path()).unwrap();
        assert_eq!(written, text(&list().unwrap()).unwrap());
    }
}
