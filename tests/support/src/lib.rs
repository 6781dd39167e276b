//! Support for the tests with real processes and a real Puppet, and for the benchmarks.
//!
//! - [`Scratch`]: a directory per test that contains everything: the binary under test, its
//!   settings, state and logs. Nothing else on the machine is changed. When it is dropped, every
//!   process that was started in it ends, and a process that should have ended before fails the
//!   test.
//! - The stand-in for Puppet (`stand-in.rb`, in every scratch directory as `bin/puppet`), and
//!   [`Past`], the record of one of its runs.
//! - The real Puppet in a scratch directory ([`Scratch::with_puppet`]); [`CachedAgent`]: a real
//!   agent without a server, with a cached catalog; [`Server`]: a real puppetserver on a loopback
//!   port, one per test program; [`Record`]: the state of a puppet process, written by that process
//!   itself.
//! - [`Lab`]: a booted machine. [`place`]: one of the Puppets of the matrix.
//! - [`Process`]: a process by pid and start time, as the kernel shows it from outside.

/// A real agent without a server.
pub mod agent;
/// Commands under way, and how they ended.
mod command;
mod dice;
/// Namespaces, unrelated processes, and other helpers.
mod help;
/// A booted Debian.
pub mod lab;
pub mod manual;
/// A network of booted machines.
pub mod net;
/// Permissions that root may lack in a container.
mod permission;
/// The Puppets of the matrix.
pub mod place;
mod process;
/// The real Puppet in a scratch directory.
mod puppet;
mod record;
mod same;
mod scratch;
mod server;
/// Script instead of `again-fleet slot`.
mod slot;
/// Stand-in for Puppet: how its runs are started, and their records.
mod stand_in;

pub use agent::CachedAgent;
pub use command::{Ended, Started, answer, start};
pub use dice::Dice;
pub use help::{
    Bystander, assert_line, in_namespaces, open_to_all, pass_a_tick, sleep_until, spread, stable,
    timed,
};
pub use lab::Lab;
pub use permission::{Permission, permits};
pub use process::{Process, boottime, now};
pub use puppet::{PuppetCommand, copy_tree};
pub use record::{Kind, Record};
pub use same::{assert_same_circumstances, assert_same_run, changes_once, hold_until, until_held};
pub use scratch::{Scratch, is_waiter, timers};
pub use server::{Enrolled, Server};
pub use slot::WAITS;
pub use stand_in::{Asked, Past, Stamp};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for a Puppet run or two on a busy machine.
pub const LONG: Duration = Duration::from_secs(240);
/// Words that an agent's rerun adds to those of its run, unless waiting for the lock is set.
pub const LOCK_WAIT: [&str; 4] = ["--waitforlock", "10", "--maxwaitforlock", "unlimited"];

/// Time limit for processes at idle priority, on a busy machine.
pub const IDLE: Duration = Duration::from_secs(600);
/// Time limit for steps without a Puppet run.
pub const SHORT: Duration = Duration::from_secs(60);

/// Repeats a check until it returns a value, or the time is over. Since the processes under test
/// need the processor, the pause is nine times the check's duration, at most `LONGEST`, and never
/// below `pause`.
pub fn ask_for<T>(
    timeout: Duration,
    pause: Duration,
    mut ask: impl FnMut() -> Option<T>,
) -> Option<T> {
    const LONGEST: Duration = Duration::from_millis(500);
    let end = Instant::now() + timeout;
    loop {
        let asked = Instant::now();
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= end {
            return None;
        }
        let pause_after = (9 * asked.elapsed()).min(LONGEST);
        std::thread::sleep(pause.max(pause_after));
    }
}

/// Repeats a check like [`ask_for`]; panics with `what` when the time is over.
#[track_caller]
pub fn wait_for<T>(what: &str, timeout: Duration, ask: impl FnMut() -> Option<T>) -> T {
    match ask_for(timeout, Duration::from_millis(10), ask) {
        Some(answer) => answer,
        None => panic!("waited {timeout:?} in vain for {what}"),
    }
}

/// Waits for a condition, like [`wait_for`].
#[track_caller]
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, timeout, || condition().then_some(()));
}

/// Checks twenty times in this duration that a condition stays true: that nothing happens can only
/// be seen over time.
#[track_caller]
pub fn stays(what: &str, duration: Duration, mut is_so: impl FnMut() -> bool) {
    let (end, pause) = (Instant::now() + duration, duration / 20);
    loop {
        assert!(is_so(), "no longer so within {duration:?}: {what}");
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(pause));
    }
}

/// Copies a program to the path from which it will be started.
///
/// Another process does this: a child that another thread forks would hold the descriptor for
/// writing until its exec, and the kernel does not execute a file that is open for writing
/// (execve(2), ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let cp = std::process::Command::new("cp")
        .args([from.as_ref(), to.as_ref()])
        .status()
        .expect("cp");
    assert!(
        cp.success(),
        "{} could not be copied",
        from.as_ref().display()
    );
}

/// Writes a program, with the same care as [`copy_program`].
pub fn write_program(path: impl AsRef<Path>, text: &str) {
    let draft = path.as_ref().with_extension("draft");
    std::fs::write(&draft, text).expect("written");
    std::fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("executable");
    copy_program(&draft, path);
    std::fs::remove_file(draft).expect("removed");
}

/// Returns the root of the repository.
pub fn repository() -> PathBuf {
    let rig = Path::new(env!("CARGO_MANIFEST_DIR"));
    rig.ancestors().nth(2).expect("two above").to_owned()
}

/// Path of the small programs in helper.c.
pub fn helper() -> &'static Path {
    Path::new(concat!(env!("OUT_DIR"), "/helper"))
}

/// Whether Puppet is installed here from its all-in-one packages.
pub fn is_all_in_one() -> bool {
    Path::new("/opt/puppetlabs/bin/puppet").exists()
}

/// PATH of the tests.
pub fn search_path() -> &'static str {
    if is_all_in_one() {
        "/opt/puppetlabs/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    } else {
        "/usr/sbin:/usr/bin:/sbin:/bin"
    }
}

/// Directory in which an agent without options finds its puppet.conf.
pub fn default_confdir() -> &'static str {
    if is_all_in_one() {
        "/etc/puppetlabs/puppet"
    } else {
        "/etc/puppet"
    }
}

/// Path of a file of the test support.
pub fn rig_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Path of the binary under test: `AGAIN_BIN`, or what `make build` built.
pub fn binary_under_test() -> PathBuf {
    let path = std::env::var_os("AGAIN_BIN")
        .map_or_else(|| repository().join("dist/again"), PathBuf::from);
    assert!(
        path.is_file(),
        "no binary to test at {}: run `make build`, or set AGAIN_BIN",
        path.display()
    );
    path.canonicalize().expect("binary under test")
}

/// Returns the pid namespace of this process: its pids mean nothing in another one.
fn pid_namespace() -> String {
    text(std::fs::read_link("/proc/self/ns/pid").expect("/proc"))
}

/// Marks a directory as this test program's.
fn claim(dir: &Path) {
    let me = Process::now(std::process::id() as i32).expect("this process");
    let mark = format!("{} {} {}", pid_namespace(), me.pid, me.start);
    std::fs::write(dir.join("owner"), mark).expect("the owner's mark");
}

/// Whether a directory belongs to a test program that has ended.
fn is_abandoned(dir: &Path) -> bool {
    let mark = std::fs::read_to_string(dir.join("owner")).unwrap_or_default();
    let [namespace, pid, start] = mark.split(' ').collect::<Vec<_>>()[..] else {
        return false;
    };
    namespace == pid_namespace()
        && match (pid.parse(), start.parse()) {
            (Ok(pid), Ok(start)) => !Process { pid, start }.alive(),
            _ => false,
        }
}

/// Ends the processes and removes the directories of test programs that were killed before they
/// could clean up, once per test program.
fn sweep() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let entries = std::fs::read_dir(std::env::temp_dir());
        for entry in entries.into_iter().flatten().flatten() {
            let dir = entry.path();
            let name = entry.file_name();
            if name.to_string_lossy().starts_with("again-test-support-") && is_abandoned(&dir) {
                process::of_directory(&dir)
                    .into_iter()
                    .for_each(Process::end);
                let _ = std::fs::remove_dir_all(dir);
            }
        }
    });
}

/// Converts a path to text: all paths of the test support are plain.
pub fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().expect("a plain path").to_owned()
}
