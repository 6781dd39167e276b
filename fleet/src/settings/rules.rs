//! The rules with which this node reacts to events, one file each.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use again_base::model::Span;
use again_base::toml::{self, Written};

use super::value::{Command, Delta, Setting, Timeout};
use crate::policy::rule::Rule;
use crate::wire::rule_match::MOST_NAME;

/// Keys of a rule file.
pub const KEYS: &[&str] = &[
    "name",
    "resource",
    "change",
    "class",
    "where",
    "environment",
    "own",
    "delta",
    "command",
    "timeout",
];
/// Default time limit of a rule's command.
const TIMEOUT: Span = Span::from_secs(60);
/// Largest number of rules of a node.
const MOST: usize = 1000;
/// Longest rule file, in bytes.
const LONGEST: u64 = 64 << 10;

/// Reads the rules of a directory; an empty list if it does not exist.
pub fn read(directory: &Path) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    each(directory, ("rules", MOST), &mut |text| {
        let rule = parse(text)?;
        let name = rule.name.clone();
        rules.push(rule);
        Ok(name)
    })?;
    Ok(rules)
}

/// Reads all `.toml` files of a directory, at most `most`. `read` returns the name in a file, which
/// must be unique.
pub fn each(
    directory: &Path,
    (what, most): (&str, usize),
    read: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("{} cannot be read: {e}", directory.display());
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(cannot(e)),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(cannot)?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    if paths.len() > most {
        let (path, count) = (directory.display(), paths.len());
        return Err(format!("{path} has {count} {what}: {most} are allowed"));
    }
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in paths {
        let wrong = |e: String| format!("{}: {e}", path.display());
        let text = again_base::sys::file::read_regular(&path, LONGEST, 0);
        let text = text.map_err(|e| wrong(format!("it cannot be read: {e}")))?;
        let text = String::from_utf8(text).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
        let name = read(&text).map_err(wrong)?;
        let also = name.clone();
        if let Some(other) = files.insert(name, path.clone()) {
            let e = format!("'{also}' is also the name in {}", other.display());
            return Err(wrong(at(&text, "name", &e)));
        }
    }
    Ok(())
}

/// Checks that a text is valid as a rule file.
///
/// # Errors
/// A sentence that names the line and the key.
pub fn check(text: &str) -> Result<(), String> {
    parse(text).map(|_| ())
}

/// Error message about a key, with its line.
pub fn at(text: &str, key: &str, why: &str) -> String {
    let line = toml::line_of(text, key);
    format!("line {line}: key '{key}': {why}")
}

fn parse(text: &str) -> Result<Rule, String> {
    let mut rule = Rule::default();
    let (mut delta, mut timeout) = (None, None);
    toml::read(text, KEYS, &mut |key, written: Written| {
        match key {
            "name" => rule.name = name(written)?,
            "resource" => rule.resource = Some(Setting::of(written)?),
            "change" => rule.changes = Setting::of(written)?,
            "class" => rule.class = Some(Setting::of(written)?),
            "where" => rule.conditions = Setting::of(written)?,
            "environment" => rule.environment = Some(Setting::of(written)?),
            "own" => rule.own = Setting::of(written)?,
            "delta" => delta = Some(Delta::of(written)?.0),
            "command" => rule.command = command(written)?,
            _ => timeout = Some(Timeout::of(written)?.0),
        }
        Ok(())
    })?;
    let wrong = |key: &str, why: &str| Err(at(text, key, why));
    if rule.name.is_empty() {
        return wrong("name", "it is missing");
    }
    if rule.resource.is_none() && rule.changes.is_empty() && rule.class.is_none() {
        return wrong(
            "name",
            "the rule says neither resource nor change nor class",
        );
    }
    if delta.is_some() && !rule.command.is_empty() {
        return wrong("delta", "it is for rules without command");
    }
    if timeout.is_some() && rule.command.is_empty() {
        return wrong("timeout", "it is for rules with command");
    }
    rule.delta = delta.unwrap_or_default();
    rule.timeout = timeout.unwrap_or(TIMEOUT);
    Ok(rule)
}

fn name(written: Written) -> Result<String, String> {
    let name: String = Setting::of(written)?;
    if name.chars().count() > MOST_NAME || name.chars().any(char::is_control) {
        return Err(format!(
            "'{}' has more than {MOST_NAME} characters, or control characters",
            crate::wire::shown(&name)
        ));
    }
    Ok(name)
}

fn command(written: Written) -> Result<Vec<String>, String> {
    let Command(words) = Setting::of(written)?;
    if !words[0].starts_with('/') || words.iter().any(|word| word.contains('\0')) {
        return Err(format!(
            "'{}' is not an absolute path",
            crate::wire::shown(&words[0])
        ));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::event::Change;
    use proptest::prelude::*;

    const ALL: &str = r#"
name = "a web server came up"
resource = "Service[httpd]"
change = ["started", "refreshed"]
class = "roles::frontend_web"
where = ["role=web", "uptime>10"]
environment = "production"
own = true
"#;

    #[test]
    fn all_that_can_be_set_is_read() {
        let run = parse(&format!("{ALL}delta = '30s'\n")).expect("a rule");
        assert_eq!(run.name, "a web server came up");
        assert_eq!(run.changes, [Change::Started, Change::Refreshed]);
        assert_eq!(run.class.as_deref(), Some("roles::frontend_web"));
        assert_eq!(run.environment.as_deref(), Some("production"));
        assert_eq!(
            (run.conditions.len(), run.own, run.resource.is_some()),
            (2, true, true)
        );
        assert_eq!((run.delta.secs(), run.command.len()), (30, 0));
        let call = "name = 'x'\nclass = 'a'\ncommand = ['/bin/tell', 'x']\n";
        assert_eq!(parse(call).expect("a rule").timeout.secs(), 60);
        let call = parse(&format!("{call}timeout = 1\n")).expect("a rule");
        assert_eq!(call.command, ["/bin/tell", "x"]);
        assert_eq!((call.timeout.secs(), call.own), (1, false));
        let all = format!("{ALL}delta command timeout");
        assert!(KEYS.iter().all(|key| all.contains(key)));
    }

    #[test]
    fn an_error_names_line_and_key() {
        for (file, words) in [
            ("class = 'a'", &["line 1", "'name'", "missing"][..]),
            ("\nname = ''\nclass = 'a'", &["line 2", "'name'", "empty"]),
            ("name = \"a\\nb\"\nclass = 'a'", &["'name'", "control"]),
            ("name = 'x'", &["line 1", "neither resource nor change"]),
            ("name = 'x'\nclas = 'a'", &["line 2", "unknown key 'clas'"]),
            (
                "name = 'x'\nresource = 'httpd'",
                &["line 2", "'resource'", "no resource"],
            ),
            (
                "name = 'x'\nchange = ['started', 'gone']",
                &[
                    "line 2",
                    "'change'",
                    "'gone' is not one of changed, started",
                ],
            ),
            ("name = 'x'\nchange = 'started'", &["line 2", "'change'"]),
            (
                "name = 'x'\nclass = 'a'\nwhere = ['x']",
                &["line 3", "'where'", "no condition"],
            ),
            (
                "name = 'x'\nclass = 'a'\ncommand = ['tell']",
                &["line 3", "'command'", "'tell' is not an absolute path"],
            ),
            (
                "name = 'x'\nclass = 'a'\ncommand = []",
                &["'command'", "empty"],
            ),
            (
                "name = 'x'\nclass = 'a'\ndelta = 1\ncommand = ['/x']",
                &["line 3", "'delta'", "without command"],
            ),
            (
                "name = 'x'\nclass = 'a'\ntimeout = 1",
                &["line 3", "'timeout'", "with command"],
            ),
            (
                "name = 'x'\nclass = 'a'\ndelta = '25h'",
                &["line 3", "'delta'", "is not from 0s to 1d"],
            ),
            (
                "name = 'x'\nclass = 'a'\ncommand = ['/x']\ntimeout = '2h'",
                &["line 4", "'timeout'", "is not from 1s to 1h"],
            ),
            (
                "name = 'x'\nclass = 'a'\nown = 'maybe'",
                &["line 3", "'own'"],
            ),
            ("name", &["line 1"]),
        ] {
            let error = parse(file).expect_err(file);
            for word in words {
                assert!(error.contains(word), "{error:?} lacks {word:?}");
            }
        }
        let long = format!("name = '{}'\nclass = 'a'", "x".repeat(MOST_NAME + 1));
        assert!(parse(&long).expect_err("long").contains("'name'"));
    }

    #[test]
    fn rules_are_read_from_a_directory_in_order_and_have_names_of_their_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let put = |file: &str, text: &str| {
            std::fs::write(dir.path().join(file), text).expect("written");
        };
        assert_eq!(read(&dir.path().join("none")), Ok(vec![]));
        put("b.toml", "name = 'second'\nclass = 'a'");
        put("a.toml", "name = 'first'\nclass = 'a'");
        put("c.toml.disabled", "garbage");
        let names = |rules: Vec<Rule>| rules.into_iter().map(|rule| rule.name).collect::<Vec<_>>();
        assert_eq!(
            read(dir.path()).map(names),
            Ok(vec!["first".to_owned(), "second".to_owned()])
        );
        put("c.toml", "class = 'a'\nname = 'first'");
        let error = read(dir.path()).expect_err("twice");
        for words in ["c.toml: line 2: key 'name': 'first' is also", "a.toml"] {
            assert!(error.contains(words), "{error}");
        }
        put("c.toml", "name = 'x'\nfoo = 1");
        let error = read(dir.path()).expect_err("unknown");
        assert!(
            error.contains("c.toml: line 2: unknown key 'foo'"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC{0,60}") {
            let _ = check(&text);
        }
    }
}
