//! The environment of a run, and whether /proc shows it intact.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Whether a block is an environment that a process was started with: entries `NAME=VALUE`, none
/// empty. A title written over it (`$0 =` in Ruby) leaves NULs or spaces at its beginning.
pub fn is_whole(block: &[u8]) -> bool {
    block.is_empty()
        || (block.ends_with(b"\0")
            && block[..block.len() - 1].split(|&b| b == 0).all(|entry| {
                entry
                    .iter()
                    .position(|&b| b == b'=')
                    .is_some_and(|at| at > 0)
            }))
}

/// Variables as entries `NAME=VALUE`.
pub fn entries(variables: &[(OsString, OsString)]) -> Vec<Vec<u8>> {
    let entry =
        |(name, value): &(OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    variables.iter().map(entry).collect()
}

/// Name of the variable in an entry.
pub fn name(entry: &[u8]) -> &[u8] {
    entry.split(|&b| b == b'=').next().unwrap_or_default()
}

/// Value of a variable.
pub fn value<'a>(entries: &'a [Vec<u8>], variable: &[u8]) -> Option<&'a [u8]> {
    let mut entries = entries
        .iter()
        .map(|entry| entry.split_at(name(entry).len()));
    let (_, value) = entries.find(|(name, _)| *name == variable)?;
    value.strip_prefix(b"=")
}

/// Default PATH.
pub const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names of variables that differ between reruns.
const OURS: [&[u8]; 3] = [b"AGAIN_CHAIN", b"AGAIN_RUN", b"AGAIN_TIMER"];

/// Entries of a run's environment without those that an earlier rerun added.
pub fn without_ours(entries: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    entries
        .into_iter()
        .filter(|entry| !OURS.contains(&name(entry)))
        .collect()
}

/// Restores the run's environment from our own, as far as possible: Puppet removes HOME, USER and
/// LOGNAME from the environment of an Exec (util/execution.rb).
pub fn restored(own: Vec<Vec<u8>>, home: Option<&[u8]>, user: &[u8]) -> Vec<Vec<u8>> {
    let mut entries = own;
    let mut add = |variable: &[u8], value: &[u8]| {
        if !entries.iter().any(|entry| name(entry) == variable) {
            entries.push([variable, b"=", value].concat());
        }
    };
    if let Some(home) = home {
        add(b"HOME", home);
    }
    add(b"USER", user);
    add(b"LOGNAME", user);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tells_a_damaged_block() {
        assert!(is_whole(b""));
        assert!(is_whole(b"A=1\0B=\0"));
        assert!(!is_whole(b"\0\0\0\0"));
        assert!(!is_whole(b"  \0B=1\0"));
        assert!(!is_whole(b"guration\0B=1\0"));
        assert!(!is_whole(b"A=1\0B=2"));
        assert!(!is_whole(b"=1\0"));
    }

    #[test]
    fn restores_what_puppet_takes_away_and_nothing_else() {
        let own = vec![b"PATH=/bin".to_vec(), b"USER=x".to_vec()];
        assert_eq!(
            restored(own, Some(b"/root"), b"root"),
            [&b"PATH=/bin"[..], b"USER=x", b"HOME=/root", b"LOGNAME=root"]
        );
    }

    proptest! {
        #[test]
        fn total(block in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = is_whole(&block);
        }
    }
}
