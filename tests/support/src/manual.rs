//! Parser for manual pages in the macros of mdoc(7), for comparison with the programs.

use std::collections::{BTreeMap, BTreeSet};

/// Returns lines by their heading: `.Sh`, or `.Sh` and `.Ss`.
pub fn parts(page: &str) -> BTreeMap<String, Vec<&str>> {
    let mut parts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let (mut section, mut heading) = (String::new(), String::new());
    for line in page.lines() {
        if let Some(name) = line.strip_prefix(".Sh ") {
            section = name.to_owned();
            heading = section.clone();
        } else if let Some(name) = line.strip_prefix(".Ss ") {
            heading = format!("{section}/{name}");
        } else {
            parts.entry(heading.clone()).or_default().push(line);
        }
    }
    parts
}

/// Returns the commands that have a heading of their own, such as `again run`.
pub fn commands(parts: &BTreeMap<String, Vec<&str>>) -> BTreeSet<String> {
    let names = parts.keys();
    let names = names.filter_map(|name| name.strip_prefix("COMMANDS/"));
    names.map(str::to_owned).collect()
}

/// Returns the flags of `.It Fl` lines, as they are typed.
pub fn flags(lines: &[&str]) -> BTreeSet<String> {
    let mut flags = BTreeSet::new();
    for line in lines.iter().filter_map(|line| line.strip_prefix(".It ")) {
        let words: Vec<&str> = line.split(' ').collect();
        for pair in words.windows(2).filter(|pair| pair[0] == "Fl") {
            flags.insert(format!("-{}", pair[1]));
        }
    }
    // The end of options, before a command.
    flags.remove("--");
    flags
}

/// Returns a command's own flags, as they are typed; or, with `global`, those of every command.
pub fn flags_of(command: &clap::Command, global: bool) -> BTreeSet<String> {
    let mut flags = BTreeSet::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
        let everywhere =
            arg.is_global_set() || ["help", "version"].contains(&arg.get_id().as_str());
        if everywhere == global {
            flags.extend(arg.get_long().map(|long| format!("--{long}")));
            flags.extend(arg.get_short().map(|short| format!("-{short}")));
        }
    }
    flags
}

/// Returns the text on one line, without macros, comment marks and quotes.
pub fn plain(lines: &[&str]) -> String {
    const MARKS: [&str; 8] = ["//!", "#", ".Ql", ".Pq", ".Cm", ".Pa", ".Ic", ".Xr"];
    let words = lines.iter().flat_map(|line| line.split_whitespace());
    let words = words.filter(|word| !MARKS.contains(word));
    let text = words.collect::<Vec<_>>().join(" ").replace("\\(dq", "");
    text.replace(" ,", ",")
}
