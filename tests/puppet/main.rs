//! Real Puppet: every test here starts a real `puppet apply` or `puppet agent` and looks at what really ran.
//! What needs no Puppet belongs to `tests/process` (real processes) or `tests/cli` (words in, words out).
#![allow(missing_docs)]

#[path = "../rig/mod.rs"]
mod rig;

/// The agent: one-off, against a real server, as a daemon; its lock.
mod agent;
/// `puppet apply`: the second run is the first one's equal; what cannot be run again is refused.
mod apply;
/// The forms of an Exec that `again` may be called from.
mod exec;
/// What stops a loop, and what must not meet the cap.
mod loops;
/// The rig itself.
mod rig_itself;
/// Several timers, and when they fire.
mod timers;
/// The process that waits, and stopping it.
mod waiter;

use rig::{LONG, Record, Scratch, wait_until};

/// A resource that changes in the first run only, and then asks for another.
fn changes_once(scratch: &Scratch, notified: &str) -> String {
    format!(
        "file {{ '{}/made': content => 'x', notify => {notified} }}",
        scratch.root()
    )
}

/// An Exec that holds the run until the file is there.
fn hold_until(title: &str, file: &str) -> String {
    format!(
        "exec {{ '{title}': command => ['/bin/sh', '-c', 'until test -e {file}; do sleep 0.05; done'], provider => 'posix', timeout => 300 }}"
    )
}

/// Waits until a run is in such an Exec.
fn until_held(scratch: &Scratch) {
    wait_until("the run to be held", LONG, || {
        scratch.processes().iter().any(|process| {
            process
                .command()
                .get(2)
                .is_some_and(|script| script.starts_with("until test -e"))
        })
    });
}

/// That the second process is a rerun of the first: the same in everything that the first run was started with, begun only
/// after the first had ended. The first has to have been started with RIG_LINGER.
fn assert_same_run(first: &Record, second: &Record) {
    assert_eq!(second.command, first.command, "the command line");
    assert_same_circumstances(first, second);
}

/// [`assert_same_run`] but for the command line, which an agent's rerun may have to differ in.
fn assert_same_circumstances(first: &Record, second: &Record) {
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
    // Puppet traps some signals, whatever they were before: those nobody can know any more when the catalog is applied.
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
    // Ruby's own: two eventfds, and the script that it is reading.
    let own = |to: &str| to == "anon_inode:[eventfd]" || to == "/usr/bin/puppet";
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
