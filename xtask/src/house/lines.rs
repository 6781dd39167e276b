use std::collections::BTreeMap;

use super::{Source, sources};

/// What there is may become less, and not more. Of 11,000 it was raised for what a hostile review found; 9,611 is aimed at.
pub const ALLOWED: usize = 13_150;

/// Prints how many lines of code each room of src has, and all of them: without tests, comments and blank lines.
pub fn show() {
    let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
    for source in sources() {
        *rooms.entry(source.room().to_owned()).or_default() += count(&source);
    }
    for (room, lines) in &rooms {
        println!("{lines:6}  {room}");
    }
    let all: usize = rooms.values().sum();
    println!("{all:6}  in all; {ALLOWED} are allowed");
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
    fn src_does_not_grow() {
        let all: usize = sources().iter().map(count).sum();
        assert!(all <= ALLOWED, "{all} lines of code in src, of {ALLOWED}");
    }
}
