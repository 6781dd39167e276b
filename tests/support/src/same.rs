//! Manifests and assertions that the test suites with real runs share.

use super::record::Record;
use super::scratch::Scratch;
use super::{LOCK_WAIT, LONG, wait_until};

/// Returns a resource that changes in the first run only, and then notifies another.
pub fn changes_once(scratch: &Scratch, notified: &str) -> String {
    format!(
        "file {{ '{}/made': content => 'x', notify => {notified} }}",
        scratch.root()
    )
}

/// Returns an Exec that holds the run until the file exists.
pub fn hold_until(title: &str, file: &str) -> String {
    format!(
        "exec {{ '{title}': command => ['/bin/sh', '-c', 'until test -e {file}; do sleep 0.05; done'], provider => 'posix', timeout => 300 }}"
    )
}

/// Waits until a run is in such an Exec.
pub fn until_held(scratch: &Scratch) {
    wait_until("the run to be held", LONG, || {
        scratch.processes().iter().any(|process| {
            process
                .command()
                .get(2)
                .is_some_and(|script| script.starts_with("until test -e"))
        })
    });
}

/// Checks that the second process is a rerun of the first: started with the same arguments and
/// circumstances, and only after the first had ended. The first must have been started with
/// RIG_LINGER.
pub fn assert_same_run(first: &Record, second: &Record) {
    let mut expected = first.command.clone();
    let is_agent = expected.iter().any(|word| word == "agent");
    if is_agent && !expected.ends_with(&LOCK_WAIT.map(str::to_owned)) {
        expected.extend(LOCK_WAIT.map(str::to_owned));
    }
    assert_eq!(second.command, expected, "the command line");
    assert_same_circumstances(first, second);
}

/// Checks the same except for the command line, in which an agent's rerun may have to differ.
pub fn assert_same_circumstances(first: &Record, second: &Record) {
    assert_ne!(second.process, first.process);
    assert!(
        !second.earlier.iter().any(|(_, running)| *running),
        "started while the first run was there: {:?}",
        second.earlier
    );
    assert!(second.at >= first.ended().expect("the end of the first run"));
    assert_eq!(second.directory, first.directory, "the working directory");
    assert_eq!(
        second.environment_without_again(),
        first.environment_without_again(),
        "the environment"
    );
    assert_eq!(second.status("Umask"), first.status("Umask"));
    assert_eq!(second.limits, first.limits, "the resource limits");
    assert_eq!(second.nice(), first.nice());
    // Puppet traps some signals: their earlier dispositions are unknown when the catalog is
    // applied.
    let applying = first.in_its_catalog();
    assert_eq!(
        second.ignored_signals(),
        applying.ignored_signals(),
        "the signals that are ignored"
    );
    assert_eq!(
        second.in_its_catalog().ignored_signals(),
        applying.ignored_signals()
    );
    assert_eq!(
        second.blocked_signals(),
        first.blocked_signals(),
        "the signals that are blocked"
    );
    // Ruby's own descriptors: eventfds, since 3.3 an eventpoll, and the script that it is reading.
    let own = |to: &str| {
        ["anon_inode:[eventfd]", "anon_inode:[eventpoll]"].contains(&to)
            || to.ends_with("/bin/puppet")
            // The lock that shows elsewhere that a rerun is alive; Puppet's children do not inherit
            // it.
            || to.contains("/targets/") && to.contains("/orders/")
    };
    assert!(
        second
            .descriptors
            .iter()
            .all(|(fd, to)| *fd <= 2 || own(to)),
        "descriptors above 2: {:?}",
        second.descriptors
    );
    assert_ne!(second.stat(6), first.stat(6), "a session of its own");
    assert_eq!(second.stat(7), 0, "no terminal");
}
