use std::collections::BTreeMap;

use super::{FLEET, HELPER, Source, sources};

/// What there is may become less, and not more. Of the helper's 11,000 it was raised for what hostile reviews found, for the
/// triggers of other nodes, for slots, for the numbers of a fleet's service, for field cases, and for requests that one line tells;
/// 9,611 is aimed at. The second program's 14,200 was raised for rules, the programs that they call, slots, numbers for a
/// monitoring, rolling runs, locks with their two verbs, what `check` says of each failure, a certificate named root,
/// ends of runs that are unknown, failures that were logged, pidfds of runs, serials of facts, stories that are read in part, shares of the cap,
/// resets of locks, a CA for masterless nodes, a spool that is root's, a bounded ledger with floors, shares of senders in memory, beats of
/// holders, stories by node, the last inventory, selections that are stored, and presence by signature. The helper's was raised for the processes of a rerun and for a status that is watched.
const ALLOWED: [(&str, usize); 2] = [(HELPER, 17_560), (FLEET, 28_400)];

/// Prints how many lines of code each room of either program has, and all of them: without tests, comments and blank lines.
pub fn show() {
    for (root, allowed) in ALLOWED {
        let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
        for source in sources(root) {
            *rooms.entry(source.room().to_owned()).or_default() += count(&source);
        }
        for (room, lines) in &rooms {
            println!("{lines:6}  {room}");
        }
        let all: usize = rooms.values().sum();
        println!("{all:6}  in {root}; {allowed} are allowed");
    }
}

fn count(source: &Source) -> usize {
    let lines = source.text.lines().map(str::trim_start);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn tests_comments_and_blank_lines_do_not_count() {
        let text = "//! A file.\n\nfn a() {\n    // Why.\n    b(); // and what\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(count(&Source::new(Path::new("a.rs"), text)), 3);
    }

    #[test]
    fn no_program_grows() {
        for (root, allowed) in ALLOWED {
            let all: usize = sources(root).iter().map(count).sum();
            assert!(
                all <= allowed,
                "{all} lines of code in {root}, of {allowed}"
            );
        }
    }
}
